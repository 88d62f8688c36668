//! Names among the endpoints: looked up, and looked up again when their TTL is over.
//!
//! A name that cannot be resolved keeps its last addresses (RFC 8767 gives the reasons); one that never could has none.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use model::{Dns, Endpoint, EndpointAddress, Snapshot};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long a lookup may take, all servers and attempts together.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// After a lookup failed.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The addresses of every name that has been resolved, in ascending order.
pub(crate) type Addresses = HashMap<String, Vec<IpAddr>>;

/// What is to be resolved, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    dns: Dns,
    names: BTreeSet<String>,
}

/// Resolves in the background.
pub(crate) struct Resolver {
    wanted: watch::Sender<Wanted>,
    found: watch::Receiver<Arc<Found>>,
}

#[derive(Default)]
struct Found {
    /// Every name here has been asked for at least once, with or without success.
    asked: BTreeSet<String>,
    addresses: Addresses,
}

impl Resolver {
    /// Starts without names.
    pub(crate) fn start() -> Self {
        let (wanted, wanted_rx) = watch::channel(Wanted { dns: Dns::default(), names: BTreeSet::new() });
        let (found_tx, found) = watch::channel(Arc::default());
        tokio::spawn(run(wanted_rx, found_tx));
        Self { wanted, found }
    }

    /// Makes the names of a snapshot those that are resolved, and waits until each has been asked for once.
    pub(crate) async fn resolve(&mut self, snapshot: &Snapshot) {
        let names: BTreeSet<String> = names(snapshot).map(str::to_owned).collect();
        let wanted = Wanted { dns: snapshot.dns.clone(), names: names.clone() };
        self.wanted.send_if_modified(|current| {
            let changed = *current != wanted;
            *current = wanted;
            changed
        });
        // An error means that the task has ended, which it does only with the process.
        let _ = self.found.wait_for(|found| names.is_subset(&found.asked)).await;
    }

    /// The addresses found so far.
    pub(crate) fn addresses(&mut self) -> Addresses {
        self.found.borrow_and_update().addresses.clone()
    }

    /// Waits for other addresses than those that [`Resolver::addresses`] gave last.
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

/// The snapshot with every name replaced by its addresses, each an endpoint of the name's weight.
pub(crate) fn expand(snapshot: &Snapshot, addresses: &Addresses) -> Snapshot {
    let mut expanded = snapshot.clone();
    for cluster in &mut expanded.clusters {
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
            }));
        }
    }
    expanded
}

async fn run(mut wanted: watch::Receiver<Wanted>, found: watch::Sender<Arc<Found>>) {
    let mut due: HashMap<String, Instant> = HashMap::new();
    let mut dns = Dns::default();
    let mut resolver = None;
    loop {
        let now = wanted.borrow_and_update().clone();
        if now.dns != dns || resolver.is_none() {
            resolver = make(&now.dns).inspect_err(|error| tracing::error!(error, "no name can be resolved")).ok();
            dns = now.dns.clone();
            due.clear();
        }
        due.retain(|name, _| now.names.contains(name));
        let is_due = |name: &&String| due.get(*name).is_none_or(|at| *at <= Instant::now());
        let asking: Vec<String> = now.names.iter().filter(is_due).cloned().collect();
        let answers = match &resolver {
            Some(resolver) => look_up(resolver, &asking).await,
            None => asking.iter().map(|name| (name.clone(), Err("no resolver".to_owned()))).collect(),
        };
        publish(&found, &now, &mut due, answers);

        let next = due.values().min().copied();
        let wait = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = wait => {}
        }
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
    // We keep what we found ourselves: a second memory would only make it older.
    builder.options_mut().cache_size = 0;
    builder.build().map_err(|error| error.to_string())
}

async fn look_up(resolver: &TokioResolver, names: &[String]) -> Vec<(String, Answer)> {
    let mut lookups = JoinSet::new();
    for name in names {
        let (resolver, name) = (resolver.clone(), name.clone());
        lookups.spawn(async move {
            // The dot keeps the search list of resolv.conf out: an endpoint's name is a whole name, unless it is a single label.
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

fn publish(
    found: &watch::Sender<Arc<Found>>,
    wanted: &Wanted,
    due: &mut HashMap<String, Instant>,
    answers: Vec<(String, Answer)>,
) {
    let before = found.borrow().clone();
    let mut addresses = before.addresses.clone();
    addresses.retain(|name, _| wanted.names.contains(name));
    for (name, answer) in answers {
        let wait = match answer {
            Ok((ips, ttl)) => {
                if addresses.get(&name) != Some(&ips) {
                    tracing::info!(name, ?ips, "resolved");
                }
                addresses.insert(name.clone(), ips);
                ttl.clamp(wanted.dns.ttl_min, wanted.dns.ttl_max)
            }
            Err(error) => {
                tracing::warn!(name, error, kept = ?addresses.get(&name), "cannot resolve");
                RETRY_AFTER
            }
        };
        due.insert(name, Instant::now() + wait);
    }
    if addresses != before.addresses || wanted.names != before.asked {
        found.send_replace(Arc::new(Found { asked: wanted.names.clone(), addresses }));
    }
}

#[cfg(test)]
mod tests {
    use model::{Cluster, Generation};

    use super::*;

    fn snapshot(endpoints: &[(&str, u32)], servers: Vec<SocketAddr>) -> Snapshot {
        let endpoint = |(host, weight): &(&str, u32)| Endpoint {
            address: EndpointAddress::Name { host: (*host).to_owned(), port: 80 },
            weight: *weight,
        };
        Snapshot {
            generation: Generation(1),
            admin: None,
            access_log: None,
            dns: Dns { servers, ttl_min: Duration::ZERO, ..Dns::default() },
            drain_timeout: Duration::ZERO,
            listeners: Vec::new(),
            clusters: vec![Cluster::new("c", endpoints.iter().map(endpoint).collect())],
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

    /// Answers every A query with the address that `next` gives and a TTL of one second, every other query with nothing.
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
        let mut resolver = Resolver::start();
        resolver.resolve(&snapshot(&[("api.example.com", 1)], vec![server])).await;
        let first = resolver.addresses();
        assert_eq!(first["api.example.com"].len(), 1);
        resolver.changed().await;
        assert_ne!(resolver.addresses(), first);
        serving.abort();
    }

    #[tokio::test]
    async fn a_name_without_an_answer_does_not_hold_up_the_start() {
        // A port on which nothing answers: bound, and never read.
        let silent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut resolver = Resolver::start();
        tokio::time::pause();
        resolver.resolve(&snapshot(&[("api.example.com", 1)], vec![silent.local_addr().unwrap()])).await;
        assert!(resolver.addresses().is_empty());
    }
}
