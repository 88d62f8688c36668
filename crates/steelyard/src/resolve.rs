//! Resolves the names among the endpoints, and resolves them again when their TTL is over.
//!
//! A name that can no longer be resolved keeps its last addresses (RFC 8767 gives the reasons). A name that never could
//! has none.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use model::{Cluster, Dns, Endpoint, EndpointAddress, Snapshot};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The limit on a lookup, with all servers and attempts.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause after a failed lookup.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The addresses of every name that has been resolved, in ascending order.
pub(crate) type Addresses = HashMap<String, Vec<IpAddr>>;

/// Resolves the names of one snapshot in the background, until it is dropped.
///
/// Each snapshot has a resolver of its own, so a refused snapshot does not disturb the one in use.
pub(crate) struct Resolver {
    names: Arc<BTreeSet<String>>,
    dns: Dns,
    found: watch::Receiver<Found>,
    /// The only task. Dropping the set ends it.
    _task: JoinSet<()>,
}

#[derive(Clone, Default)]
struct Found {
    addresses: Addresses,
    /// When each name is due again. A name that is absent has not been asked for yet, whether successfully or not.
    due: HashMap<String, Instant>,
}

impl Resolver {
    /// A resolver that has nothing to do.
    pub(crate) fn idle() -> Self {
        let (_, found) = watch::channel(Found::default());
        Self { names: Arc::default(), dns: Dns::default(), found, _task: JoinSet::new() }
    }

    /// Starts with the names of a snapshot and with the addresses that `previous` has found. Names that `previous` has
    /// asked for in the same way are asked for again when they are due, all others at once.
    pub(crate) fn start(snapshot: &Snapshot, previous: Option<&Self>) -> Self {
        let names: Arc<BTreeSet<String>> = Arc::new(names(snapshot).map(str::to_owned).collect());
        let dns = snapshot.dns.clone();
        let mut known = previous.map(|previous| previous.found.borrow().clone()).unwrap_or_default();
        known.addresses.retain(|name, _| names.contains(name));
        known.due.retain(|name, _| names.contains(name) && previous.is_some_and(|previous| previous.dns == dns));
        let (found_tx, found) = watch::channel(known);
        let mut task = JoinSet::new();
        task.spawn(run(names.clone(), dns.clone(), found_tx));
        Self { names, dns, found, _task: task }
    }

    /// Waits until each name has been asked for once.
    pub(crate) async fn asked(&mut self) {
        let names = &self.names;
        // An error means that the task has ended, which happens only if there is nothing to ask for.
        let _ = self.found.wait_for(|found| names.iter().all(|name| found.due.contains_key(name))).await;
    }

    /// The addresses found so far.
    pub(crate) fn addresses(&mut self) -> Addresses {
        self.found.borrow_and_update().addresses.clone()
    }

    /// Waits until the addresses differ from those that [`Resolver::addresses`] last returned.
    pub(crate) async fn changed(&mut self) {
        if self.found.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn names(snapshot: &Snapshot) -> impl Iterator<Item = &str> {
    let endpoints = snapshot.clusters.iter().flat_map(|cluster| &cluster.endpoints);
    endpoints.filter_map(|endpoint| match &endpoint.address {
        EndpointAddress::Name { host, .. } => Some(host.as_str()),
        EndpointAddress::Socket(_) => None,
    })
}

/// Looks a name up once.
///
/// # Errors
/// Why it has no address.
pub(crate) async fn addresses(dns: &Dns, name: &str) -> Result<Vec<IpAddr>, String> {
    let resolver = make(dns)?;
    let answers = look_up(&resolver, &[name.to_owned()]).await;
    let answer = answers.into_iter().next().ok_or_else(|| "no answer".to_owned())?;
    answer.1.map(|(addresses, _)| addresses)
}

/// Returns the snapshot with every name replaced by its addresses. Each becomes an endpoint with the weight of the
/// name.
pub(crate) fn expand(snapshot: &Snapshot, addresses: &Addresses) -> Snapshot {
    let mut expanded = snapshot.clone();
    let is_name = |endpoint: &Endpoint| matches!(endpoint.address, EndpointAddress::Name { .. });
    for cluster in expanded.clusters.iter_mut().filter(|cluster| cluster.endpoints.iter().any(is_name)) {
        let cluster = Arc::make_mut(cluster);
        let endpoints = std::mem::take(&mut cluster.endpoints);
        for endpoint in endpoints {
            let EndpointAddress::Name { host, port } = &endpoint.address else {
                cluster.endpoints.push(endpoint);
                continue;
            };
            let ips = addresses.get(host).map(Vec::as_slice).unwrap_or_default();
            cluster.endpoints.extend(ips.iter().map(|ip| Endpoint {
                address: EndpointAddress::Socket(SocketAddr::new(*ip, *port)),
                weight: endpoint.weight,
                priority: endpoint.priority,
                zone: endpoint.zone,
                host: Some(host.clone()),
            }));
        }
    }
    expanded
}

/// Returns a cluster that has endpoints in the snapshot, but none of whose names has an address.
pub(crate) fn unreachable<'s>(snapshot: &'s Snapshot, addresses: &Addresses) -> Option<&'s str> {
    let has_address = |endpoint: &Endpoint| match &endpoint.address {
        EndpointAddress::Name { host, .. } => addresses.get(host).is_some_and(|ips| !ips.is_empty()),
        EndpointAddress::Socket(_) => true,
    };
    let is_without =
        |cluster: &&Arc<Cluster>| !cluster.endpoints.is_empty() && !cluster.endpoints.iter().any(has_address);
    snapshot.clusters.iter().find(is_without).map(|cluster| cluster.name.as_str())
}

async fn run(names: Arc<BTreeSet<String>>, dns: Dns, found: watch::Sender<Found>) {
    if names.is_empty() {
        return;
    }
    let resolver = make(&dns).inspect_err(|error| tracing::error!(error, "cannot resolve any name")).ok();
    loop {
        let next = {
            let due = &found.borrow().due;
            // A name that was never asked for is due at once.
            names.iter().map(|name| due.get(name).copied()).min().flatten()
        };
        if let Some(at) = next {
            tokio::time::sleep_until(at).await;
        }
        let asking: Vec<String> = {
            let (due, now) = (&found.borrow().due, Instant::now());
            names.iter().filter(|name| due.get(*name).is_none_or(|at| *at <= now)).cloned().collect()
        };
        let answers = match &resolver {
            Some(resolver) => look_up(resolver, &asking).await,
            None => asking.into_iter().map(|name| (name, Err("no resolver".to_owned()))).collect(),
        };
        publish(&found, &dns, answers);
    }
}

type Answer = Result<(Vec<IpAddr>, Duration), String>;

fn make(dns: &Dns) -> Result<TokioResolver, String> {
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

async fn look_up(resolver: &TokioResolver, names: &[String]) -> Vec<(String, Answer)> {
    let mut lookups = JoinSet::new();
    for name in names {
        let (resolver, name) = (resolver.clone(), name.clone());
        lookups.spawn(async move {
            // The trailing dot disables the search list of resolv.conf: an endpoint's name is complete, unless it is a
            // single label.
            let asked = if name.contains('.') { format!("{name}.") } else { name.clone() };
            let answer = match tokio::time::timeout(LOOKUP_TIMEOUT, resolver.lookup_ip(asked)).await {
                Ok(Ok(found)) => {
                    let mut ips: Vec<IpAddr> = found.iter().collect();
                    ips.sort_unstable();
                    ips.dedup();
                    let ttl = found.valid_until().saturating_duration_since(Instant::now().into_std());
                    Ok((ips, ttl))
                }
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err(format!("no answer within {} s", LOOKUP_TIMEOUT.as_secs())),
            };
            (name, answer)
        });
    }
    lookups.join_all().await
}

fn publish(found: &watch::Sender<Found>, dns: &Dns, answers: Vec<(String, Answer)>) {
    found.send_if_modified(|Found { addresses, due }| {
        let mut changed = false;
        for (name, answer) in answers {
            let wait = match answer {
                Ok((ips, ttl)) => {
                    if addresses.get(&name) != Some(&ips) {
                        tracing::info!(name, ?ips, "resolved");
                        addresses.insert(name.clone(), ips);
                        changed = true;
                    }
                    ttl.clamp(dns.ttl_min, dns.ttl_max)
                }
                Err(error) => {
                    tracing::warn!(name, error, kept = ?addresses.get(&name), "cannot resolve");
                    RETRY_AFTER
                }
            };
            // `Resolver::asked` waits for the first answer, even if it is an error.
            changed |= due.insert(name, Instant::now() + wait).is_none();
        }
        changed
    });
}

#[cfg(test)]
mod tests {
    use model::Generation;

    use super::*;

    fn snapshot(endpoints: &[(&str, u32)], servers: Vec<SocketAddr>) -> Snapshot {
        let endpoint = |(host, weight): &(&str, u32)| Endpoint {
            address: EndpointAddress::Name { host: (*host).to_owned(), port: 80 },
            weight: *weight,
            priority: 0,
            zone: model::Zone::Unknown,
            host: None,
        };
        Snapshot {
            generation: Generation(1),
            admin: None,
            metrics: None,
            access_log: None,
            dns: Dns { servers, ttl_min: Duration::ZERO, ..Dns::default() },
            drain_delay: Duration::ZERO,
            drain_timeout: Duration::ZERO,
            memory_max: None,
            listeners: Vec::new(),
            clusters: vec![Cluster::new("c", endpoints.iter().map(endpoint).collect()).into()],
            vips: Vec::new(),
            flows_max: 1,
            socket_cgroup: None,
            announcing: model::Announcing::default(),
        }
    }

    #[test]
    fn a_name_becomes_all_its_addresses() {
        let addresses = Addresses::from([("a".to_owned(), vec!["1.1.1.1".parse().unwrap(), "::1".parse().unwrap()])]);
        let expanded = expand(&snapshot(&[("a", 3), ("unknown", 1)], Vec::new()), &addresses);
        let got: Vec<_> = expanded.clusters[0].endpoints.iter().map(|e| (e.address.clone(), e.weight)).collect();
        let at = |text: &str| EndpointAddress::Socket(text.parse().unwrap());
        assert_eq!(got, [(at("1.1.1.1:80"), 3), (at("[::1]:80"), 3)]);
    }

    /// Answers every A query with the address that `next` gives and a TTL of one second, and every other query with no
    /// address.
    async fn serve(socket: tokio::net::UdpSocket, mut next: impl FnMut() -> [u8; 4]) {
        let mut query = [0; 512];
        loop {
            let (length, client) = socket.recv_from(&mut query).await.unwrap();
            let question_end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
            let is_a = query[question_end - 4..question_end - 2] == [0, 1];
            let mut answer = query[..question_end.min(length)].to_vec();
            answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
            if is_a {
                answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
                answer.extend_from_slice(&next());
            }
            socket.send_to(&answer, client).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_name_follows_its_ttl() {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let server = socket.local_addr().unwrap();
        let mut last = 0;
        let serving = tokio::spawn(serve(socket, move || {
            last += 1;
            [10, 0, 0, last]
        }));
        let mut resolver = Resolver::start(&snapshot(&[("api.example.com", 1)], vec![server]), None);
        resolver.asked().await;
        let first = resolver.addresses();
        assert_eq!(first["api.example.com"].len(), 1);
        resolver.changed().await;
        assert_ne!(resolver.addresses(), first);
        serving.abort();
    }

    #[tokio::test]
    async fn a_name_without_an_answer_does_not_hold_up_the_start() {
        // A port on which nothing answers: it is bound but never read.
        let silent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let wanted = snapshot(&[("api.example.com", 1)], vec![silent.local_addr().unwrap()]);
        let mut resolver = Resolver::start(&wanted, None);
        tokio::time::pause();
        resolver.asked().await;
        assert!(resolver.addresses().is_empty());
    }

    #[tokio::test]
    async fn a_resolver_knows_what_the_one_before_it_found() {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let server = socket.local_addr().unwrap();
        let serving = tokio::spawn(serve(socket, || [10, 0, 0, 1]));
        let mut in_use = Resolver::start(&snapshot(&[("a.example.com", 1)], vec![server]), None);
        in_use.asked().await;
        serving.abort();
        let found = in_use.addresses();

        // No server answers any more. A resolver that wants other names forgets these only for itself...
        tokio::time::pause();
        let mut refused = Resolver::start(&snapshot(&[("b.example.com", 1)], vec![server]), Some(&in_use));
        refused.asked().await;
        assert!(refused.addresses().is_empty());
        assert_eq!(in_use.addresses(), found);
        drop(refused);
        // ... and one that wants the same names has them, even if it asks another server in vain.
        let silent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        for servers in [vec![server], vec![silent]] {
            let mut next = Resolver::start(&snapshot(&[("a.example.com", 1)], servers), Some(&in_use));
            next.asked().await;
            assert_eq!(next.addresses(), found);
        }
    }

    #[test]
    fn a_cluster_without_an_address_is_found() {
        let check = |endpoints: &[(&str, u32)], expect: Option<&str>| {
            let ip = |name: &str, ips: &[&str]| {
                (name.to_owned(), ips.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>())
            };
            let addresses = Addresses::from([ip("a", &["1.1.1.1"]), ip("empty", &[])]);
            assert_eq!(unreachable(&snapshot(endpoints, Vec::new()), &addresses), expect, "{endpoints:?}");
        };
        check(&[("a", 1), ("unknown", 1)], None);
        check(&[("unknown", 1), ("empty", 1)], Some("c"));
        check(&[], None);
    }
}
