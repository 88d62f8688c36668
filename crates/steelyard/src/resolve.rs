//! Resolves the names and services among the endpoints, and resolves them again when their TTL is over.
//!
//! A name that can no longer be resolved keeps its last addresses (RFC 8767 gives the reasons). A name that never could
//! has none.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{RData, RecordType};
use model::{Cluster, Dns, Endpoint, EndpointAddress, Snapshot};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The limit on a lookup, with all servers and attempts.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause after a failed lookup.
const RETRY_AFTER: Duration = Duration::from_secs(5);

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

/// Resolves the names of one snapshot in the background, until it is dropped.
///
/// Each snapshot has a resolver of its own, so a refused snapshot does not disturb the one in use.
pub(crate) struct Resolver {
    names: Arc<BTreeSet<Wanted>>,
    dns: Dns,
    found: watch::Receiver<Found>,
    /// The only task. Dropping the set ends it.
    _task: JoinSet<()>,
}

#[derive(Clone, Default)]
struct Found {
    addresses: Addresses,
    /// When each name is due again. A name that is absent has not been asked for yet, whether successfully or not.
    due: HashMap<Wanted, Instant>,
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
        let names: Arc<BTreeSet<Wanted>> = Arc::new(names(snapshot).collect());
        let dns = snapshot.dns.clone();
        let mut known = previous.map(|previous| previous.found.borrow().clone()).unwrap_or_default();
        known.addresses.hosts.retain(|name, _| names.contains(&Wanted::Host(name.clone())));
        known.addresses.services.retain(|name, _| names.contains(&Wanted::Service(name.clone())));
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

fn names(snapshot: &Snapshot) -> impl Iterator<Item = Wanted> {
    let endpoints = snapshot.clusters.iter().flat_map(|cluster| &cluster.endpoints);
    endpoints.filter_map(|endpoint| match &endpoint.address {
        EndpointAddress::Name { host, .. } => Some(Wanted::Host(host.clone())),
        EndpointAddress::Service { name } => Some(Wanted::Service(name.clone())),
        EndpointAddress::Socket(_) => None,
    })
}

/// Looks a name up once.
///
/// # Errors
/// Why it has no address.
pub(crate) async fn addresses(dns: &Dns, name: &str) -> Result<Vec<IpAddr>, String> {
    let resolver = make(dns)?;
    look_up_host(&resolver, name).await.map(|(addresses, _)| addresses)
}

/// Returns the snapshot with every name replaced by its addresses. Each becomes an endpoint with the weight of the
/// name.
pub(crate) fn expand(snapshot: &Snapshot, addresses: &Addresses) -> Snapshot {
    let mut expanded = snapshot.clone();
    let is_name = |endpoint: &Endpoint| !matches!(endpoint.address, EndpointAddress::Socket(_));
    for cluster in expanded.clusters.iter_mut().filter(|cluster| cluster.endpoints.iter().any(is_name)) {
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
    }
    expanded
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

/// Returns a cluster that has endpoints in the snapshot, but none of whose names has an address.
pub(crate) fn unreachable<'s>(snapshot: &'s Snapshot, addresses: &Addresses) -> Option<&'s str> {
    let has_address = |endpoint: &Endpoint| match &endpoint.address {
        EndpointAddress::Name { host, .. } => addresses.hosts.get(host).is_some_and(|ips| !ips.is_empty()),
        EndpointAddress::Service { name } => {
            addresses.services.get(name).is_some_and(|targets| targets.iter().any(|target| !target.ips.is_empty()))
        }
        EndpointAddress::Socket(_) => true,
    };
    let is_without =
        |cluster: &&Arc<Cluster>| !cluster.endpoints.is_empty() && !cluster.endpoints.iter().any(has_address);
    snapshot.clusters.iter().find(is_without).map(|cluster| cluster.name.as_str())
}

async fn run(names: Arc<BTreeSet<Wanted>>, dns: Dns, found: watch::Sender<Found>) {
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
        let asking: Vec<Wanted> = {
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

/// What was found, and for how long it is valid.
type Answer = Result<(Resolved, Duration), String>;

enum Resolved {
    Ips(Vec<IpAddr>),
    /// A target whose name could not be resolved has no addresses.
    Targets(Vec<Target>),
}

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

async fn look_up(resolver: &TokioResolver, names: &[Wanted]) -> Vec<(Wanted, Answer)> {
    let mut lookups = JoinSet::new();
    for name in names {
        let (resolver, name) = (resolver.clone(), name.clone());
        lookups.spawn(async move {
            let answer = match &name {
                Wanted::Host(host) => look_up_host(&resolver, host).await.map(|(ips, ttl)| (Resolved::Ips(ips), ttl)),
                Wanted::Service(service) => look_up_service(&resolver, service).await,
            };
            (name, answer)
        });
    }
    lookups.join_all().await
}

async fn look_up_host(resolver: &TokioResolver, name: &str) -> Result<(Vec<IpAddr>, Duration), String> {
    // The trailing dot disables the search list of resolv.conf: an endpoint's name is complete, unless it is a
    // single label.
    let asked = if name.contains('.') { format!("{name}.") } else { name.to_owned() };
    match tokio::time::timeout(LOOKUP_TIMEOUT, resolver.lookup_ip(asked)).await {
        Ok(Ok(found)) => {
            let mut ips: Vec<IpAddr> = found.iter().collect();
            ips.sort_unstable();
            ips.dedup();
            if ips.len() > ADDRESSES_MAX {
                tracing::warn!(
                    name,
                    addresses = ips.len(),
                    used = ADDRESSES_MAX,
                    "the name has more addresses than are used"
                );
                ips.truncate(ADDRESSES_MAX);
            }
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
            let found = look_up_host(&resolver, &host).await;
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

fn publish(found: &watch::Sender<Found>, dns: &Dns, answers: Vec<(Wanted, Answer)>) {
    found.send_if_modified(|Found { addresses, due }| {
        let mut changed = false;
        for (name, answer) in answers {
            let wait = match answer {
                Ok((resolved, ttl)) => {
                    changed |= addresses.take(&name, resolved);
                    ttl.clamp(dns.ttl_min, dns.ttl_max)
                }
                Err(error) => {
                    tracing::warn!(?name, error, kept = ?addresses.of(&name), "cannot resolve");
                    RETRY_AFTER
                }
            };
            // `Resolver::asked` waits for the first answer, even if it is an error.
            changed |= due.insert(name, Instant::now() + wait).is_none();
        }
        changed
    });
}

impl Addresses {
    /// Takes an answer. Returns whether it says something new.
    fn take(&mut self, name: &Wanted, resolved: Resolved) -> bool {
        match (name, resolved) {
            (Wanted::Host(host), Resolved::Ips(ips)) if self.hosts.get(host) != Some(&ips) => {
                tracing::info!(name = host, ?ips, "resolved");
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
                tracing::info!(name = service, ?targets, "resolved");
                self.services.insert(service.clone(), targets);
                true
            }
            _ => false,
        }
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
            admin_access: Default::default(),
            metrics: None,
            access_log: None,
            tracing: None,
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
        let hosts = HashMap::from([("a".to_owned(), vec!["1.1.1.1".parse().unwrap(), "::1".parse().unwrap()])]);
        let addresses = Addresses { hosts, ..Addresses::default() };
        let expanded = expand(&snapshot(&[("a", 3), ("unknown", 1)], Vec::new()), &addresses);
        let got: Vec<_> = expanded.clusters[0].endpoints.iter().map(|e| (e.address.clone(), e.weight)).collect();
        let at = |text: &str| EndpointAddress::Socket(text.parse().unwrap());
        assert_eq!(got, [(at("1.1.1.1:80"), 3), (at("[::1]:80"), 3)]);
    }

    #[test]
    fn the_records_of_a_service_become_endpoints() {
        let target = |priority, weight, host: &str, port, ips: &[&str]| {
            let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
            Target { priority, weight, host: host.to_owned(), port, ips }
        };
        let check = |targets: &[Target], expect: &str| {
            let mut wanted = snapshot(&[("unused", 1)], Vec::new());
            let cluster = Arc::make_mut(&mut wanted.clusters[0]);
            cluster.endpoints[0].address = EndpointAddress::Service { name: "_http._tcp.a".to_owned() };
            let services = HashMap::from([("_http._tcp.a".to_owned(), targets.to_vec())]);
            let addresses = Addresses { services, ..Addresses::default() };
            assert_eq!(unreachable(&wanted, &addresses), expect.is_empty().then_some("c"));
            let told = |endpoint: &Endpoint| {
                let EndpointAddress::Socket(address) = endpoint.address else { panic!("not resolved") };
                format!("{address} {} {} {}", endpoint.weight, endpoint.priority, endpoint.host.as_deref().unwrap())
            };
            let got: Vec<String> = expand(&wanted, &addresses).clusters[0].endpoints.iter().map(told).collect();
            assert_eq!(got.join(", "), expect);
        };
        check(&[], "");
        check(&[target(0, 0, "a", 80, &[])], "");
        check(
            &[target(0, 0, "a", 80, &["1.1.1.1"]), target(0, 0, "b", 81, &["1.1.1.2"])],
            "1.1.1.1:80 100 0 a, 1.1.1.2:81 100 0 b",
        );
        // Ten to one, and hardly ever; two addresses share a weight; the next priority stands in.
        check(
            &[
                target(5, 0, "z", 80, &["1.1.1.9"]),
                target(5, 1, "a", 80, &["1.1.1.1"]),
                target(5, 10, "b", 80, &["1.1.1.2", "1.1.1.3"]),
                target(70, 0, "c", 90, &["1.1.1.4", "1.1.1.2"]),
            ],
            "1.1.1.9:80 1 0 z, 1.1.1.1:80 100 0 a, 1.1.1.2:80 500 0 b, 1.1.1.3:80 500 0 b, 1.1.1.4:90 50 1 c, 1.1.1.2:90 50 1 c",
        );
        check(&[target(0, 65_535, "a", 80, &["1.1.1.1"]), target(0, 1, "a", 80, &["1.1.1.1"])], "1.1.1.1:80 65535 0 a");
        let ips: Vec<String> = (0..=u8::MAX).map(|last| format!("10.0.0.{last}")).collect();
        let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
        let all: Vec<Target> = (0..20).map(|number| target(0, 1, "a", 80 + number, &ips)).collect();
        let endpoint = &snapshot(&[("a", 1)], Vec::new()).clusters[0].endpoints[0];
        assert_eq!(of_service(&all, endpoint).len(), ENDPOINTS_MAX);
        let many: Vec<Target> = (0..9).map(|number| target(number, 1, "a", 80 + number, &["1.1.1.1"])).collect();
        assert!(of_service(&many, endpoint).iter().all(|endpoint| endpoint.priority <= 7));
    }

    #[test]
    fn a_service_keeps_what_it_had_until_there_is_something_better() {
        let service = Wanted::Service("_http._tcp.a".to_owned());
        let target = |host: &str, ips: &[&str]| {
            let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
            Target { priority: 0, weight: 1, host: host.to_owned(), port: 80, ips }
        };
        let mut addresses = Addresses::default();
        let mut take = |targets: &[Target]| {
            let is_news = addresses.take(&service, Resolved::Targets(targets.to_vec()));
            (is_news, addresses.of(&service).len())
        };
        assert_eq!(take(&[target("a", &[])]), (true, 0));
        assert_eq!(take(&[target("a", &["1.1.1.1"])]), (true, 1));
        // A target that cannot be resolved now, another one that never could, and one of two that can.
        assert_eq!(take(&[target("a", &[])]), (false, 1));
        assert_eq!(take(&[target("b", &[])]), (false, 1));
        assert_eq!(take(&[target("b", &[]), target("c", &["1.1.1.2"])]), (true, 1));
        // The service says that it is not available.
        assert_eq!(take(&[]), (true, 0));
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
        assert_eq!(first.hosts["api.example.com"].len(), 1);
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
        assert_eq!(resolver.addresses(), Addresses::default());
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
        assert_eq!(refused.addresses(), Addresses::default());
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
            let hosts = HashMap::from([ip("a", &["1.1.1.1"]), ip("empty", &[])]);
            let addresses = Addresses { hosts, ..Addresses::default() };
            assert_eq!(unreachable(&snapshot(endpoints, Vec::new()), &addresses), expect, "{endpoints:?}");
        };
        check(&[("a", 1), ("unknown", 1)], None);
        check(&[("unknown", 1), ("empty", 1)], Some("c"));
        check(&[], None);
    }
}
