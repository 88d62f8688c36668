//! Lookups that are under way.
//!
//! A lookup belongs to no snapshot: one that takes seconds would never end in a cluster that changes every second. It ends on its own, and the
//! resolvers of all snapshots that want its answer get it. How many are under way is limited, separately for names of the operator and for those
//! that others have named, so that nobody can hold up somebody else's.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{RData, RecordType};
use model::Dns;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{ADDRESSES_MAX, RETRY_AFTER, TARGETS_MAX, Target, Wanted};

/// The limit on a lookup, with all servers and attempts.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Lookups in each lane at once. Each has two sockets or so.
const LOOKUPS_MAX: usize = 64;

/// Which lookups share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Names that the operator wrote.
    Operator,
    /// Names that others wrote.
    Others,
    /// Those of them whose last lookup has failed, and may have taken all of its time.
    Failing,
}

/// All lookups of the process that are under way, or wait for their turn.
#[derive(Clone, Default)]
pub(super) struct Lookups(Arc<Shared>);

struct Shared {
    under_way: Mutex<HashMap<Key, watch::Sender<Option<Answer>>>>,
    operator: Arc<Semaphore>,
    others: Arc<Semaphore>,
    failing: Arc<Semaphore>,
}

/// The servers that are asked, and what for.
type Key = (Vec<SocketAddr>, Wanted);

impl Default for Shared {
    fn default() -> Self {
        let lane = || Arc::new(Semaphore::new(LOOKUPS_MAX));
        Self { under_way: Mutex::default(), operator: lane(), others: lane(), failing: lane() }
    }
}

impl Lookups {
    /// Asks, unless the same question is under way, and returns what waits for the answer. A question that nothing waits for any more is not
    /// asked.
    pub(super) fn ask(
        &self,
        resolver: &TokioResolver,
        dns: &Dns,
        name: &Wanted,
        lane: Lane,
    ) -> impl Future<Output = Answer> + use<> {
        let key = (dns.servers.clone(), name.clone());
        let mut under_way = self.under_way();
        let mut answer = match under_way.get(&key) {
            Some(known) => known.subscribe(),
            None => {
                let (answer_tx, answer) = watch::channel(None);
                under_way.insert(key.clone(), answer_tx.clone());
                tokio::spawn(self.clone().look_up(resolver.clone(), key, lane, answer_tx));
                answer
            }
        };
        async move {
            let found = answer.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
            found.unwrap_or_else(|| Err("the lookup has ended without an answer".to_owned()))
        }
    }

    async fn look_up(self, resolver: TokioResolver, key: Key, lane: Lane, answer: watch::Sender<Option<Answer>>) {
        let turns = match lane {
            Lane::Operator => &self.0.operator,
            Lane::Others => &self.0.others,
            Lane::Failing => &self.0.failing,
        };
        let _turn = loop {
            tokio::select! {
                turn = turns.clone().acquire_owned() => break turn,
                () = answer.closed() => {
                    let mut under_way = self.under_way();
                    // Another resolver may have come for it meanwhile.
                    if answer.receiver_count() == 0 {
                        under_way.remove(&key);
                        return;
                    }
                }
            }
        };
        let found = match &key.1 {
            Wanted::Host(host) => look_up_host(&resolver, host, lane).await.map(|(ips, ttl)| (Resolved::Ips(ips), ttl)),
            Wanted::Service(service) => look_up_service(&resolver, service).await,
        };
        self.under_way().remove(&key);
        answer.send_replace(Some(found));
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<Key, watch::Sender<Option<Answer>>>> {
        self.0.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are under way or wait.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.under_way().len()
    }
}

/// What was found, and for how long it is valid.
pub(super) type Answer = Result<(Resolved, Duration), String>;

#[derive(Clone, Debug)]
pub(super) enum Resolved {
    Ips(Vec<IpAddr>),
    /// A target whose name could not be resolved has no addresses.
    Targets(Vec<Target>),
}

pub(super) fn make(dns: &Dns) -> Result<TokioResolver, String> {
    let mut builder = if dns.servers.is_empty() {
        TokioResolver::builder_tokio().map_err(|error| error.to_string())?
    } else {
        let servers = dns.servers.iter().map(|server| {
            let mut config = NameServerConfig::udp_and_tcp(server.ip());
            for connection in &mut config.connections {
                connection.port = server.port();
            }
            config
        });
        let config = ResolverConfig::from_name_servers(servers.collect());
        TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
    };
    // We keep the results ourselves, and a second cache would only make them older.
    builder.options_mut().cache_size = 0;
    builder.build().map_err(|error| error.to_string())
}

pub(super) async fn look_up_host(
    resolver: &TokioResolver,
    name: &str,
    lane: Lane,
) -> Result<(Vec<IpAddr>, Duration), String> {
    // The trailing dot disables the search list of resolv.conf: an endpoint's name is complete, unless it is a
    // single label.
    let asked = if name.contains('.') { format!("{name}.") } else { name.to_owned() };
    match tokio::time::timeout(LOOKUP_TIMEOUT, resolver.lookup_ip(asked)).await {
        Ok(Ok(found)) => {
            let mut ips: Vec<IpAddr> = found.iter().collect();
            ips.sort_unstable();
            ips.dedup();
            // Others could fill the log.
            if ips.len() > ADDRESSES_MAX && lane == Lane::Operator {
                tracing::warn!(
                    name,
                    addresses = ips.len(),
                    used = ADDRESSES_MAX,
                    "the name has more addresses than are used"
                );
            }
            ips.truncate(ADDRESSES_MAX);
            Ok((ips, found.valid_until().saturating_duration_since(Instant::now().into_std())))
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(no_answer()),
    }
}

async fn look_up_service(resolver: &TokioResolver, name: &str) -> Answer {
    let found = match tokio::time::timeout(LOOKUP_TIMEOUT, resolver.lookup(format!("{name}."), RecordType::SRV)).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(no_answer()),
    };
    let mut ttl = found.valid_until().saturating_duration_since(Instant::now().into_std());
    let records = found.answers().iter().filter_map(|record| match &record.data {
        RData::SRV(record) => Some(record),
        _ => None,
    });
    let mut targets: Vec<Target> = Vec::new();
    for record in records {
        let host = record.target.to_ascii().trim_end_matches('.').to_ascii_lowercase();
        // RFC 2782: a single dot says that the service is not available.
        if host.is_empty() || record.port == 0 {
            continue;
        }
        if targets.len() == TARGETS_MAX {
            tracing::warn!(name, used = TARGETS_MAX, "the service has more targets than are used");
            break;
        }
        let (priority, weight, port) = (record.priority, record.weight, record.port);
        targets.push(Target { priority, weight, host, port, ips: Vec::new() });
    }
    let hosts: BTreeSet<String> = targets.iter().map(|target| target.host.clone()).collect();
    let mut lookups = JoinSet::new();
    for host in hosts {
        let resolver = resolver.clone();
        lookups.spawn(async move {
            let found = look_up_host(&resolver, &host, Lane::Operator).await;
            (host, found)
        });
    }
    for (host, found) in lookups.join_all().await {
        match found {
            Ok((ips, valid)) => {
                ttl = ttl.min(valid);
                targets.iter_mut().filter(|target| target.host == host).for_each(|target| target.ips.clone_from(&ips));
            }
            Err(error) => {
                tracing::warn!(name, host, error, "cannot resolve a target of the service");
                ttl = ttl.min(RETRY_AFTER);
            }
        }
    }
    targets.sort_unstable();
    Ok((Resolved::Targets(targets), ttl))
}

fn no_answer() -> String {
    format!("no answer within {} s", LOOKUP_TIMEOUT.as_secs())
}
