//! Resolves the names and services among the endpoints, and resolves them again when their TTL is over.
//!
//! A name that can no longer be resolved keeps its last addresses (RFC 8767 gives the reasons). A name that never could
//! has none.
//!
//! Names of clusters with [`model::Outside`] were written by others than the operator. Nothing waits for their first answer, they have limits of
//! their own, and only addresses in reach become endpoints.

mod lookups;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use l4::Reachability;
use lookups::{Answer, Lane, Lookups, Resolved, look_up_host, make};
use model::{Cluster, Dns, Endpoint, EndpointAddress, Snapshot};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The pause after a failed lookup.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The pause after a lookup of a name that others wrote has failed as many times as its index plus one, and after more.
const RETRY_OTHERS_AFTER: [Duration; 3] = [RETRY_AFTER, Duration::from_secs(15), Duration::from_secs(60)];

/// Failed lookups in a row after which such a name has no address any more, some five minutes after the first one.
const OTHERS_FAILURES_MAX: u32 = 7;

/// The shortest time for which the addresses of such a name are used, whatever its TTL says.
const OTHERS_TTL_MIN: Duration = Duration::from_secs(5);

/// Addresses of such a name that are kept, and that become endpoints.
const OTHERS_KEPT_MAX: usize = 64;
const OTHERS_ENDPOINTS_MAX: usize = 16;

/// How long the first snapshot with listeners waits for such names. A process that takes over from another one should know them.
const OTHERS_FIRST_WAIT: Duration = Duration::from_secs(2);

/// The time between two changes that are applied. All that comes meanwhile is applied at once: each change is a snapshot for every worker.
const APPLY_EVERY: Duration = Duration::from_secs(3);

/// Targets of one service that are used. Each is a name to look up.
const TARGETS_MAX: usize = 256;

/// Addresses of one name that are used. A message of DNS has room for some 4,000.
const ADDRESSES_MAX: usize = 1024;

/// Endpoints of one service that are used.
const ENDPOINTS_MAX: usize = 4096;

/// How finely the weights of a service are kept: a target with weight 0 gets a hundredth of what one with weight 1 gets (RFC 2782).
const WEIGHT_PARTS: u32 = 100;

/// What names and services were resolved to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// The addresses of every name that has been resolved, in ascending order.
    hosts: HashMap<String, Vec<IpAddr>>,
    /// The targets of every service that has been looked up, in ascending order.
    services: HashMap<String, Vec<Target>>,
}

/// One target of a service, with the addresses of its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    priority: u16,
    weight: u16,
    host: String,
    port: u16,
    ips: Vec<IpAddr>,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Wanted {
    /// The addresses of a name.
    Host(String),
    /// The SRV records of a service, and the addresses of their targets.
    Service(String),
}

/// Who wrote a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Operator,
    /// Only others.
    Others,
}

/// Whose turn a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    by: By,
    /// How many names of the same namespace come before it. New names are asked for in the order of this number, so that a namespace with many of
    /// them, whose servers are silent, holds up no other one.
    rank: u32,
}

/// Resolves the names of one snapshot in the background, until it is dropped.
///
/// Each snapshot has a resolver of its own, so a refused snapshot does not disturb the one in use. They share the lookups that are under way.
pub(crate) struct Resolver {
    names: Arc<BTreeMap<Wanted, Turn>>,
    dns: Dns,
    found: watch::Receiver<Found>,
    lookups: Lookups,
    /// Changes are told from this time on.
    hold_until: Instant,
    /// The only task. Dropping the set ends it.
    _task: JoinSet<()>,
}

#[derive(Clone, Default)]
struct Found {
    addresses: Addresses,
    /// A name that is absent has not been asked for yet, whether successfully or not.
    due: HashMap<Wanted, Due>,
}

/// When a name is asked for again.
#[derive(Clone, Copy)]
struct Due {
    at: Instant,
    /// How many lookups have failed since the last success.
    failures: u32,
}

impl Resolver {
    /// A resolver that has nothing to do.
    pub(crate) fn idle() -> Self {
        let (_, found) = watch::channel(Found::default());
        let (names, dns, lookups) = (Arc::default(), Dns::default(), Lookups::default());
        Self { names, dns, found, lookups, hold_until: Instant::now(), _task: JoinSet::new() }
    }

    /// Starts with the names of a snapshot and with the addresses that `previous` has found. Names that `previous` has
    /// asked for in the same way are asked for again when they are due, all others at once.
    pub(crate) fn start(snapshot: &Snapshot, previous: Option<&Self>) -> Self {
        let names = Arc::new(names(snapshot));
        let dns = snapshot.dns.clone();
        let mut known = previous.map(|previous| previous.found.borrow().clone()).unwrap_or_default();
        known.addresses.hosts.retain(|name, _| names.contains_key(&Wanted::Host(name.clone())));
        known.addresses.services.retain(|name, _| names.contains_key(&Wanted::Service(name.clone())));
        known.due.retain(|name, _| names.contains_key(name) && previous.is_some_and(|previous| previous.dns == dns));
        let (found_tx, found) = watch::channel(known);
        let lookups = previous.map(|previous| previous.lookups.clone()).unwrap_or_default();
        let hold_until = previous.map_or_else(Instant::now, |previous| previous.hold_until);
        let mut task = JoinSet::new();
        task.spawn(run(names.clone(), dns.clone(), lookups.clone(), found_tx));
        Self { names, dns, found, lookups, hold_until, _task: task }
    }

    /// Waits until each name of the operator has been asked for once. `is_first`: also for names of others, but not as long as it takes.
    pub(crate) async fn asked(&mut self, is_first: bool) {
        self.asked_for(By::Operator).await;
        if is_first {
            let _ = tokio::time::timeout(OTHERS_FIRST_WAIT, self.asked_for(By::Others)).await;
        }
    }

    async fn asked_for(&mut self, by: By) {
        let names: Vec<&Wanted> = self.names.iter().filter(|(_, turn)| turn.by == by).map(|(name, _)| name).collect();
        // An error means that the task has ended, which happens only if there is nothing to ask for.
        let _ = self.found.wait_for(|found| names.iter().all(|name| found.due.contains_key(*name))).await;
    }

    /// The addresses found so far.
    pub(crate) fn addresses(&mut self) -> Addresses {
        self.found.borrow_and_update().addresses.clone()
    }

    /// Waits until the addresses differ from those that [`Resolver::addresses`] last returned, and at least [`APPLY_EVERY`] after
    /// [`Resolver::applied`].
    pub(crate) async fn changed(&mut self) {
        // First of all: a change that was seen is lost if something else happens before it is told.
        tokio::time::sleep_until(self.hold_until).await;
        if self.found.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Notes that a change of addresses was applied.
    pub(crate) fn applied(&mut self) {
        self.hold_until = Instant::now() + APPLY_EVERY;
    }
}

fn names(snapshot: &Snapshot) -> BTreeMap<Wanted, Turn> {
    let mut names = BTreeMap::new();
    let mut of_namespaces: HashMap<&str, u32> = HashMap::new();
    for cluster in &snapshot.clusters {
        let namespace = cluster.outside.as_ref().and_then(|outside| outside.namespace.as_deref());
        let by = if namespace.is_some() { By::Others } else { By::Operator };
        for endpoint in &cluster.endpoints {
            let name = match &endpoint.address {
                EndpointAddress::Name { host, .. } => Wanted::Host(host.clone()),
                EndpointAddress::Service { name } => Wanted::Service(name.clone()),
                EndpointAddress::Socket(_) => continue,
            };
            let rank = namespace.map_or(0, |namespace| {
                let count = of_namespaces.entry(namespace).or_default();
                *count = count.saturating_add(1);
                *count
            });
            let known = names.entry(name).or_insert(Turn { by, rank });
            known.rank = known.rank.min(rank);
            if by == By::Operator {
                known.by = by;
            }
        }
    }
    names
}

/// Looks a name up once.
///
/// # Errors
/// Why it has no address.
pub(crate) async fn addresses(dns: &Dns, name: &str) -> Result<Vec<IpAddr>, String> {
    let resolver = make(dns)?;
    look_up_host(&resolver, name, Lane::Operator).await.map(|(addresses, _)| addresses)
}

/// Returns the snapshot with every name replaced by its addresses. Each becomes an endpoint with the weight of the
/// name.
pub(crate) fn expand(snapshot: &Snapshot, addresses: &Addresses) -> Snapshot {
    let mut expanded = snapshot.clone();
    let is_name = |endpoint: &Endpoint| !matches!(endpoint.address, EndpointAddress::Socket(_));
    let changes = |cluster: &&mut Arc<Cluster>| cluster.outside.is_some() || cluster.endpoints.iter().any(is_name);
    for cluster in expanded.clusters.iter_mut().filter(changes) {
        let cluster = Arc::make_mut(cluster);
        let endpoints = std::mem::take(&mut cluster.endpoints);
        for endpoint in endpoints {
            let resolved = match &endpoint.address {
                EndpointAddress::Socket(_) => vec![endpoint],
                EndpointAddress::Name { host, port } => {
                    let ips = addresses.hosts.get(host).map(Vec::as_slice).unwrap_or_default();
                    let at = |ip: &IpAddr| Endpoint {
                        address: EndpointAddress::Socket(SocketAddr::new(*ip, *port)),
                        host: Some(host.clone()),
                        ..endpoint.clone()
                    };
                    ips.iter().map(at).collect()
                }
                EndpointAddress::Service { name } => {
                    let targets = addresses.services.get(name).map(Vec::as_slice).unwrap_or_default();
                    of_service(targets, &endpoint)
                }
            };
            cluster.endpoints.extend(resolved);
        }
        if let Some(outside) = &cluster.outside {
            cluster.endpoints.retain(|endpoint| ip(endpoint).is_some_and(|ip| outside.reach.allows(ip)));
            cluster.endpoints.truncate(OTHERS_ENDPOINTS_MAX);
        }
    }
    keep_remote(&mut expanded.clusters);
    expanded
}

fn ip(endpoint: &Endpoint) -> Option<IpAddr> {
    match &endpoint.address {
        EndpointAddress::Socket(address) => Some(address.ip()),
        EndpointAddress::Name { .. } | EndpointAddress::Service { .. } => None,
    }
}

/// Removes the addresses of this host from the clusters that others may lead anywhere, and those without a route where there are others: a host without
/// IPv6 would send every second request nowhere. The kernel is asked once for each address.
fn keep_remote(clusters: &mut [Arc<Cluster>]) {
    let outside = || clusters.iter().filter(|cluster| cluster.outside.is_some());
    let all: BTreeSet<IpAddr> = outside().flat_map(|cluster| &cluster.endpoints).filter_map(ip).collect();
    if all.is_empty() {
        return;
    }
    let embedded: Vec<IpAddr> = all.iter().filter_map(|ip| translated(*ip)).collect();
    let known = l4::reachability(all.into_iter().chain(embedded));
    let reachability = |endpoint: &Endpoint| {
        let of = |ip: IpAddr| known.get(&ip).copied().unwrap_or(Reachability::Local);
        let ip = ip(endpoint)?;
        let is_own = translated(ip).is_some_and(|ip| of(ip) == Reachability::Local);
        Some(if is_own { Reachability::Local } else { of(ip) })
    };
    for cluster in clusters.iter_mut().filter(|cluster| cluster.outside.is_some()) {
        let endpoints = &mut Arc::make_mut(cluster).endpoints;
        let has_remote = endpoints.iter().any(|endpoint| reachability(endpoint) == Some(Reachability::Remote));
        let kept = if has_remote { Reachability::Remote } else { Reachability::Unreachable };
        endpoints.retain(|endpoint| reachability(endpoint) == Some(kept));
    }
}

/// The IPv4 address that NAT64 makes of an address of its well-known prefix (RFC 6052).
fn translated(ip: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(ip) = ip else { return None };
    let [0x64, 0xff9b, 0, 0, 0, 0, ..] = ip.segments() else { return None };
    let [.., a, b, c, d] = ip.octets();
    Some(Ipv4Addr::new(a, b, c, d).into())
}

/// The endpoints of a service. All addresses of a target share its weight. The priorities become the numbers from 0 on, as an endpoint can have 8 of
/// them; those after the seventh are one.
fn of_service(targets: &[Target], endpoint: &Endpoint) -> Vec<Endpoint> {
    let priorities: BTreeSet<u16> = targets.iter().map(|target| target.priority).collect();
    let (mut endpoints, mut known) = (Vec::new(), HashSet::new());
    for target in targets {
        let rank = priorities.range(..target.priority).count().min(PRIORITY_MAX);
        // Without any weights, all are alike.
        let is_weighted = targets.iter().any(|other| other.priority == target.priority && other.weight > 0);
        let share = if is_weighted { u32::from(target.weight) * WEIGHT_PARTS } else { WEIGHT_PARTS };
        let heaviest = targets.iter().map(|target| u32::from(target.weight) * WEIGHT_PARTS).max().unwrap_or(0);
        let scale = heaviest.div_ceil(WEIGHT_MAX).max(1);
        let weight = (share / scale / u32::try_from(target.ips.len()).unwrap_or(u32::MAX).max(1)).max(1);
        for ip in &target.ips {
            let address = SocketAddr::new(*ip, target.port);
            // Two names may have one address.
            if endpoints.len() == ENDPOINTS_MAX || !known.insert(address) {
                continue;
            }
            let address = EndpointAddress::Socket(address);
            let priority = u8::try_from(rank).unwrap_or(u8::MAX);
            let host = Some(target.host.clone());
            endpoints.push(Endpoint { address, weight, priority, zone: endpoint.zone, host });
        }
    }
    endpoints
}

/// The largest number of an endpoint's priority, and its largest weight.
const PRIORITY_MAX: usize = 7;
const WEIGHT_MAX: u32 = 65_535;

/// Returns a cluster of the operator that has endpoints in the snapshot, but none of whose names has an address.
pub(crate) fn unreachable<'s>(snapshot: &'s Snapshot, addresses: &Addresses) -> Option<&'s str> {
    let has_address = |endpoint: &Endpoint| match &endpoint.address {
        EndpointAddress::Name { host, .. } => addresses.hosts.get(host).is_some_and(|ips| !ips.is_empty()),
        EndpointAddress::Service { name } => {
            addresses.services.get(name).is_some_and(|targets| targets.iter().any(|target| !target.ips.is_empty()))
        }
        EndpointAddress::Socket(_) => true,
    };
    let is_without = |cluster: &&Arc<Cluster>| {
        cluster.outside.is_none() && !cluster.endpoints.is_empty() && !cluster.endpoints.iter().any(has_address)
    };
    snapshot.clusters.iter().find(is_without).map(|cluster| cluster.name.as_str())
}

/// Asks for each name when it is due, and publishes each answer when it comes: a name whose servers are silent holds up no other one.
async fn run(names: Arc<BTreeMap<Wanted, Turn>>, dns: Dns, lookups: Lookups, found: watch::Sender<Found>) {
    if names.is_empty() {
        return;
    }
    let resolver = make(&dns).inspect_err(|error| tracing::error!(error, "cannot resolve any name")).ok();
    let mut queue: BTreeSet<(Instant, Wanted)> = {
        let (due, now) = (&found.borrow().due, Instant::now());
        // A name that was never asked for is due at once.
        let at = |rank: u32| now + Duration::from_nanos(rank.into());
        names.iter().map(|(name, turn)| (due.get(name).map_or(at(turn.rank), |due| due.at), name.clone())).collect()
    };
    let mut asking = JoinSet::new();
    loop {
        let now = Instant::now();
        while queue.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, name)) = queue.pop_first() else { break };
            let has_failed = found.borrow().due.get(&name).is_some_and(|due| due.failures > 0);
            let lane = match names.get(&name).map(|turn| turn.by) {
                Some(By::Others) if has_failed => Lane::Failing,
                Some(By::Others) => Lane::Others,
                Some(By::Operator) | None => Lane::Operator,
            };
            let answer = resolver.as_ref().map(|resolver| lookups.ask(resolver, &dns, &name, lane));
            asking.spawn(async move {
                match answer {
                    Some(answer) => (name, answer.await),
                    None => (name, Err("no resolver".to_owned())),
                }
            });
        }
        let next = queue.first().map(|(at, _)| *at);
        tokio::select! {
            Some(answered) = asking.join_next() => {
                // A lookup that panics is a bug; the others go on.
                let Ok((name, answer)) = answered else { continue };
                let by = names.get(&name).map_or(By::Operator, |turn| turn.by);
                let at = publish(&found, &dns, &name, by, answer);
                queue.insert((at, name));
            }
            () = tokio::time::sleep_until(next.unwrap_or(now)), if next.is_some() => {}
            else => return,
        }
    }
}

/// Publishes an answer. Returns when the name is due again.
fn publish(found: &watch::Sender<Found>, dns: &Dns, name: &Wanted, by: By, answer: Answer) -> Instant {
    let mut at = Instant::now();
    found.send_if_modified(|Found { addresses, due }| {
        let mut changed = false;
        let before = due.get(name).map_or(0, |due| due.failures);
        let (wait, failures) = match answer {
            Ok((resolved, ttl)) => {
                changed |= addresses.take(name, by, resolved);
                let wait = ttl.clamp(dns.ttl_min, dns.ttl_max);
                (if by == By::Others { wait.max(OTHERS_TTL_MIN) } else { wait }, 0)
            }
            Err(error) => {
                let kept = addresses.of(name).len();
                match by {
                    By::Operator => tracing::warn!(?name, error, kept, "cannot resolve"),
                    // Once for each name: others could fill the log.
                    By::Others if before == 0 && kept == 0 => tracing::info!(?name, error, "cannot resolve"),
                    By::Others => tracing::debug!(?name, error, kept, "cannot resolve"),
                }
                // Who has the address of a name that is gone may be somebody else by now.
                if by == By::Others && before >= OTHERS_FAILURES_MAX {
                    changed |= addresses.forget(name);
                }
                let last = RETRY_OTHERS_AFTER.len() - 1;
                let pause = RETRY_OTHERS_AFTER.get((before as usize).min(last)).copied().unwrap_or(RETRY_AFTER);
                (if by == By::Others { pause } else { RETRY_AFTER }, before.saturating_add(1))
            }
        };
        at += wait;
        // `Resolver::asked` waits for the first answer, even if it is an error.
        changed |= due.insert(name.clone(), Due { at, failures }).is_none();
        changed
    });
    at
}

impl Addresses {
    /// Takes an answer. Returns whether it says something new.
    fn take(&mut self, name: &Wanted, by: By, resolved: Resolved) -> bool {
        match (name, resolved) {
            (Wanted::Host(host), Resolved::Ips(mut ips)) => {
                if by == By::Others {
                    ips.truncate(OTHERS_KEPT_MAX);
                }
                if self.hosts.get(host) == Some(&ips) {
                    return false;
                }
                let addresses = ips.len();
                match by {
                    By::Operator => tracing::info!(name = host, addresses, "resolved"),
                    By::Others => tracing::debug!(name = host, addresses, "resolved"),
                }
                self.hosts.insert(host.clone(), ips);
                true
            }
            (Wanted::Service(service), Resolved::Targets(mut targets)) => {
                let known = self.services.get(service);
                // A name that can no longer be resolved keeps its last addresses.
                for target in targets.iter_mut().filter(|target| target.ips.is_empty()) {
                    let is_it = |known: &&Target| (&known.host, known.port) == (&target.host, target.port);
                    if let Some(known) = known.and_then(|known| known.iter().find(is_it)) {
                        target.ips.clone_from(&known.ips);
                    }
                }
                // Records whose targets lead nowhere are no better than no answer.
                let leads_nowhere = |targets: &[Target]| targets.iter().all(|target| target.ips.is_empty());
                let is_worse = !targets.is_empty() && leads_nowhere(&targets);
                if known == Some(&targets) || is_worse && known.is_some_and(|known| !leads_nowhere(known)) {
                    return false;
                }
                tracing::info!(name = service, targets = targets.len(), "resolved");
                self.services.insert(service.clone(), targets);
                true
            }
            _ => false,
        }
    }

    /// Forgets the addresses of a name. Returns whether it had any.
    fn forget(&mut self, name: &Wanted) -> bool {
        let Wanted::Host(host) = name else { return false };
        self.hosts.remove(host).is_some_and(|ips| !ips.is_empty())
    }

    /// The addresses that a name or a service has.
    fn of(&self, name: &Wanted) -> Vec<IpAddr> {
        match name {
            Wanted::Host(host) => self.hosts.get(host).cloned().unwrap_or_default(),
            Wanted::Service(service) => {
                let targets = self.services.get(service).map(Vec::as_slice).unwrap_or_default();
                targets.iter().flat_map(|target| target.ips.iter().copied()).collect()
            }
        }
    }
}
