//! A snapshot in the form that workers use: routes are compiled, and the state of every endpoint that stays is kept.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use balance::{ClusterState, EndpointState};
use model::{Cluster, ClusterId, Direction, EndpointAddress, Listener, Protocol, Route, Snapshot, Zone};

use crate::auth::passwords::PasswordCounts;
use crate::auth::{Authenticators, ListenerAuth};
use crate::counts::Counts;
use crate::downstream::captured::Destinations;
use crate::exchange::route::Router;
use crate::external_auth::{Authorizers, ListenerAuthorizers};
use crate::http::pages::{PageFiles, Pages};
use crate::named_files::NamedFiles;
use crate::policy::addresses::AddressTable;
use crate::policy::bandwidth::Shapers;
use crate::policy::concurrency::{ConcurrencyLimiter, InProgress};
use crate::policy::maintenance::Maintenance;
use crate::policy::rate_limit::{Clients, Limiter};
use crate::policy::sticky::StickySessions;
use crate::tls::{ClientKeys, ServerKeys};
use crate::upstream::cluster::Breaker;

/// A compiled snapshot, shared by all workers.
pub struct Compiled {
    /// The snapshot that this was made from.
    pub snapshot: Arc<Snapshot>,
    /// The listeners in the order of the snapshot.
    pub listeners: Vec<Arc<ListenerPlan>>,
    /// Indexed by `ClusterId`.
    pub clusters: Vec<Arc<ClusterPlan>>,
    /// The clients that rate limits remember; `None` if there are no rate limits.
    clients: Option<Arc<Clients>>,
    /// The requests that concurrency limits count; `None` if there are no such limits.
    in_progress: Option<Arc<InProgress>>,
    authenticators: Authenticators,
    authorizers: Authorizers,
}

/// A listener, ready for use.
pub struct ListenerPlan {
    /// Its configuration.
    pub policy: Listener,
    pub(crate) router: Arc<Router>,
    /// `None` for plain text.
    pub(crate) tls: Option<Arc<ServerKeys>>,
    /// The rate limits of routes, by the route's number.
    pub(crate) limiters: Arc<HashMap<usize, Limiter>>,
    /// Their concurrency limits, as well.
    pub(crate) concurrency_limiters: Arc<HashMap<usize, ConcurrencyLimiter>>,
    /// That of the listener; `None` if it has none.
    pub(crate) limiter: Option<Limiter>,
    /// The bandwidths of each client; `None` if there are none.
    pub(crate) shapers: Option<Arc<Shapers>>,
    /// The open connections of each client; `None` if they have no limit.
    pub(crate) client_connections: Option<Arc<Counts>>,
    /// The clients that may use it; `None` if all may.
    pub(crate) addresses: Option<Arc<AddressTable>>,
    /// The same of routes, by the route's number.
    pub(crate) route_addresses: Arc<HashMap<usize, AddressTable>>,
    /// What routes demand of requests.
    pub(crate) auth: ListenerAuth,
    /// The services that are asked about requests.
    pub(crate) external_auth: ListenerAuthorizers,
    pub(crate) pages: Pages,
    pub(crate) maintenance: Arc<Maintenance>,
    /// Who serves captured connections; `None` if the kernel redirects none here.
    pub(crate) destinations: Option<Arc<Destinations>>,
    /// Open downstream connections of all workers.
    pub(crate) open: Arc<AtomicUsize>,
}

/// A cluster, ready for use.
pub struct ClusterPlan {
    /// Its configuration.
    pub policy: Arc<Cluster>,
    /// The state of its endpoints, which all workers and the health checks share.
    pub state: Arc<ClusterState>,
    pub(crate) breaker: Arc<Breaker>,
    /// `None` for plain text.
    pub(crate) tls: Option<Arc<ClientKeys>>,
    /// Whether connections to addresses of this namespace must not come back to this sidecar: no sidecar is expected there, or a listener of
    /// inbound connections uses the cluster, and would connect to itself without end.
    pub(crate) is_within: bool,
    /// `None` if the cluster is not sticky.
    pub(crate) sticky: Option<StickySessions>,
    /// The names from which addresses were resolved, if TLS needs them.
    pub(crate) hosts: HashMap<SocketAddr, String>,
}

impl ClusterPlan {
    /// The certificates that the cluster trusts and shows; `None` for plain text.
    pub fn tls(&self) -> Option<&Arc<ClientKeys>> {
        self.tls.as_ref()
    }

    /// The name from which an address was resolved, if TLS needs it.
    pub fn host(&self, address: SocketAddr) -> Option<&str> {
        self.hosts.get(&address).map(String::as_str)
    }
}

impl ListenerPlan {
    /// Its routes; none if it does not speak HTTP.
    pub fn routes(&self) -> &[Route] {
        routes(&self.policy)
    }

    /// The routes that are in maintenance by their configuration or by an operator, and whether the configuration says so.
    pub fn in_maintenance(&self) -> impl Iterator<Item = (&Route, bool)> {
        let routes = self.routes().iter().map(|route| (route, route.policy.maintenance));
        routes.filter(|(route, configured)| *configured || self.maintenance.has(&route.name))
    }

    /// The names that an operator has put into maintenance. The listener may no longer have routes of these names, and would have them in
    /// maintenance if they came back.
    pub fn maintenance_names(&self) -> BTreeSet<String> {
        self.maintenance.routes()
    }

    /// Puts the route of this name into maintenance, or back into service, until the process ends. Returns whether that is a change; `None`
    /// if there is no such route.
    pub fn set_maintenance(&self, route: &str, on: bool) -> Option<bool> {
        let is_known = self.routes().iter().any(|known| known.name == route);
        // A route that is gone can still be taken out of maintenance.
        (is_known || !on && self.maintenance.has(route)).then(|| self.maintenance.set(route, on))
    }
}

impl Compiled {
    /// Compiles a snapshot. Keeps what `previous` knows of endpoints, by cluster name and address.
    ///
    /// The names among the endpoints must have been resolved; a remaining name counts as having no address. `files` are those of
    /// this snapshot.
    #[expect(clippy::too_many_lines, reason = "each listener gets its parts one after the other")]
    pub fn new(snapshot: Arc<Snapshot>, files: &NamedFiles, previous: Option<&Self>, now_ms: u64) -> Self {
        let before = Before::of(previous);
        let is_limited = |listener: &Listener| match same_routes(listener, before.listener(listener)) {
            _ if listener.client_limits.counts() => true,
            Some(old) => !old.limiters.is_empty(),
            None => routes(listener).iter().any(|route| route.policy.rate_limit.is_some()),
        };
        let clients = snapshot.listeners.iter().any(is_limited).then(|| {
            let known = previous.and_then(|previous| previous.clients.clone());
            known.unwrap_or_default()
        });
        let in_progress =
            snapshot.listeners.iter().any(|listener| before.is_concurrency_limited(listener)).then(|| {
                let known = previous.and_then(|previous| previous.in_progress.clone());
                known.unwrap_or_default()
            });
        let known = previous.map(|previous| &previous.authenticators);
        // Routes that demanded nothing and are the same are not looked at again.
        let may_demand = |listener: &Listener| {
            let demands = |old: &Arc<ListenerPlan>| !old.auth.is_empty() || !old.external_auth.is_empty();
            same_routes(listener, before.listener(listener)).is_none_or(demands)
        };
        let demanding = || snapshot.listeners.iter().filter(|listener| may_demand(listener)).flat_map(routes);
        let authenticators = Authenticators::new(demanding(), &files.auth, known);
        let known = previous.map(|previous| &previous.authorizers);
        let authorizers = Authorizers::new(demanding(), &snapshot.clusters, known);
        let listeners = snapshot.listeners.iter().map(|listener| {
            let old = before.listener(listener);
            let (mut auth, mut external_auth) = (ListenerAuth::default(), ListenerAuthorizers::default());
            if may_demand(listener) {
                auth = authenticators.of(routes(listener));
                external_auth = authorizers.of(routes(listener), &snapshot.clusters);
                auth.add_claims(external_auth.claims());
            }
            Arc::new(ListenerPlan {
                policy: listener.clone(),
                router: router(listener, old),
                tls: files.keys.listener(&listener.name),
                limiters: limiters(listener, old, clients.as_ref()),
                concurrency_limiters: concurrency_limiters(listener, old, in_progress.as_ref()),
                limiter: limiter(listener, clients.as_ref()),
                shapers: Shapers::of(listener, clients.as_ref()),
                client_connections: client_connections(listener, old),
                addresses: addresses(listener, old),
                route_addresses: route_addresses(listener, old),
                auth,
                external_auth,
                pages: pages(listener, &files.pages),
                maintenance: old.map_or_else(Arc::default, |old| old.maintenance.clone()),
                destinations: Destinations::of(listener, &snapshot.listeners).map(Arc::new),
                open: old.map_or_else(Arc::default, |old| old.open.clone()),
            })
        });
        let is_sidecar = snapshot.listeners.iter().any(|listener| matches!(listener.protocol, Protocol::Capture(_)));
        let inward = inward(&snapshot.listeners);
        let clusters = snapshot.clusters.iter().enumerate().map(|(index, cluster)| {
            let old = before.clusters.get(cluster.name.as_str()).copied();
            let tls = files.keys.cluster(&cluster.name);
            let is_within = is_sidecar && (tls.is_none() || inward.contains(&index));
            let is_unchanged = |old: &&Arc<ClusterPlan>| {
                Arc::ptr_eq(&old.policy, cluster) && is_same(&old.tls, &tls) && old.is_within == is_within
            };
            if let Some(same) = old.filter(is_unchanged) {
                return same.clone();
            }
            let Endpoints { endpoints, priorities, zones } = endpoints(cluster, old, now_ms);
            let sticky = cluster.sticky.as_ref().map(|sticky| {
                let endpoints = endpoints.iter().map(|(endpoint, weight)| (endpoint.address(), *weight));
                StickySessions::new(sticky, &cluster.name, endpoints)
            });
            let state = match old {
                Some(old) => ClusterState::replacing(&old.state, cluster, endpoints),
                None => ClusterState::new(cluster, endpoints),
            };
            let state = state.with_priorities(&priorities).with_zones(&zones);
            Arc::new(ClusterPlan {
                policy: cluster.clone(),
                state: Arc::new(state),
                breaker: old.map_or_else(Arc::default, |old| old.breaker.clone()),
                hosts: if tls.is_some() { hosts(cluster) } else { HashMap::new() },
                tls,
                is_within,
                sticky,
            })
        });
        let (listeners, clusters) = (listeners.collect(), clusters.collect());
        Self { listeners, clusters, clients, in_progress, authenticators, authorizers, snapshot }
    }

    /// The checks of passwords; `None` if no route demands one.
    pub fn password_counts(&self) -> Option<PasswordCounts> {
        self.authenticators.counts()
    }

    /// The requests in progress that concurrency limits count.
    #[cfg(test)]
    pub(crate) fn in_progress(&self) -> usize {
        self.in_progress.as_ref().map_or(0, |in_progress| in_progress.total())
    }

    /// The number of clients whose entry in the table of rate limits was given to others before their allowance was restored.
    pub fn rate_limit_forgotten(&self) -> u64 {
        self.clients.as_ref().map_or(0, |clients| clients.forgotten())
    }
}

/// Whether both use the same keys.
pub(crate) fn is_same(one: &Option<Arc<ClientKeys>>, other: &Option<Arc<ClientKeys>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

/// The previous snapshot, by name.
struct Before<'p> {
    listeners: HashMap<&'p str, &'p Arc<ListenerPlan>>,
    clusters: HashMap<&'p str, &'p Arc<ClusterPlan>>,
}

impl<'p> Before<'p> {
    fn of(previous: Option<&'p Compiled>) -> Self {
        let listeners = previous.iter().flat_map(|previous| &previous.listeners);
        let clusters = previous.iter().flat_map(|previous| &previous.clusters);
        Self {
            listeners: listeners.map(|listener| (listener.policy.name.as_str(), listener)).collect(),
            clusters: clusters.map(|cluster| (cluster.policy.name.as_str(), cluster)).collect(),
        }
    }
}

impl<'p> Before<'p> {
    fn listener(&self, now: &Listener) -> Option<&'p Arc<ListenerPlan>> {
        self.listeners.get(now.name.as_str()).copied()
    }

    /// Whether a route of the listener limits the requests that are in progress.
    fn is_concurrency_limited(&self, now: &Listener) -> bool {
        match same_routes(now, self.listener(now)) {
            Some(old) => !old.concurrency_limiters.is_empty(),
            None => routes(now).iter().any(|route| route.policy.concurrency_limit.is_some()),
        }
    }
}

/// The previous plan of a listener, if it had the very same list of routes, as it has if only endpoints have changed. What is made from
/// the routes alone is kept then: looking at thousands of them takes longer than everything else.
fn same_routes<'p>(listener: &Listener, old: Option<&'p Arc<ListenerPlan>>) -> Option<&'p Arc<ListenerPlan>> {
    old.filter(|old| std::ptr::eq(old.routes(), routes(listener)))
}

/// The clusters, by index, that serve connections which were captured on their way to this namespace, get copies of their requests, or are
/// asked about them.
fn inward(listeners: &[Listener]) -> BTreeSet<usize> {
    let captures = |listener: &&Listener| {
        listener.captured.as_ref().is_some_and(|captured| captured.direction == Direction::Inbound)
    };
    let used = listeners.iter().filter(captures).flat_map(|listener| {
        let bytes = match &listener.protocol {
            Protocol::Tcp(tcp) => Some(tcp.to),
            _ => listener.captured.as_ref().and_then(|captured| captured.detect?.to),
        };
        let others = |route: &'_ Route| {
            let policy = &route.policy;
            let mirrors: Vec<ClusterId> = policy.mirrors.iter().map(|mirror| mirror.to).collect();
            let asked = policy.external_auth.iter().map(|service| service.to);
            let asked: Vec<ClusterId> =
                asked.chain(policy.global_rate_limit.iter().map(|service| service.to)).collect();
            let instead = policy.intercept_errors.iter().filter_map(|errors| errors.to);
            let instead: Vec<ClusterId> = instead.chain(policy.fallback.iter().map(|fallback| fallback.to)).collect();
            mirrors.into_iter().chain(asked).chain(instead)
        };
        routes(listener).iter().flat_map(move |route| route.to.clusters().chain(others(route))).chain(bytes)
    });
    used.map(|cluster| cluster.0).collect()
}

/// If only endpoints have changed, the routes are identical, and so are the tables made from them. Making the tables is most of the work.
fn router(listener: &Listener, old: Option<&Arc<ListenerPlan>>) -> Arc<Router> {
    let same = old.filter(|old| match (&old.policy.protocol, &listener.protocol) {
        (Protocol::Http(before), Protocol::Http(http)) => {
            Arc::ptr_eq(&before.routes, &http.routes)
                && before.paths == http.paths
                && before.isolated_hosts == http.isolated_hosts
                && before.passthrough == http.passthrough
        }
        _ => false,
    });
    let (isolated, passthrough, merge_slashes) = match &listener.protocol {
        Protocol::Http(http) => (&*http.isolated_hosts, &*http.passthrough, http.paths.merge_slashes),
        Protocol::Tcp(_) | Protocol::Tls(_) | Protocol::Capture(_) => (&[][..], &[][..], false),
    };
    let before = old.map(|old| &*old.router);
    let make = || {
        let router = Router::replacing(before, routes(listener), isolated, merge_slashes);
        Arc::new(router.with_passthrough(passthrough))
    };
    same.map_or_else(make, |old| old.router.clone())
}

fn routes(listener: &Listener) -> &[Route] {
    match &listener.protocol {
        Protocol::Http(http) => &http.routes,
        Protocol::Tcp(_) | Protocol::Tls(_) | Protocol::Capture(_) => &[],
    }
}

fn pages(listener: &Listener, files: &PageFiles) -> Pages {
    match &listener.protocol {
        Protocol::Http(http) => Pages::new(http, files),
        Protocol::Tcp(_) | Protocol::Tls(_) | Protocol::Capture(_) => Pages::default(),
    }
}

/// The table of a listener, which is kept if its networks are the same: making one sorts up to 16,384 of them.
fn addresses(listener: &Listener, old: Option<&Arc<ListenerPlan>>) -> Option<Arc<AddressTable>> {
    match old.filter(|old| old.policy.addresses == listener.addresses) {
        Some(same) => same.addresses.clone(),
        None => AddressTable::new(&listener.addresses).map(Arc::new),
    }
}

/// The same of its routes.
fn route_addresses(listener: &Listener, old: Option<&Arc<ListenerPlan>>) -> Arc<HashMap<usize, AddressTable>> {
    let make = || {
        let tables = routes(listener).iter().map(|route| AddressTable::new(&route.policy.addresses));
        Arc::new(tables.enumerate().filter_map(|(number, table)| Some((number, table?))).collect())
    };
    same_routes(listener, old).map_or_else(make, |old| old.route_addresses.clone())
}

/// The limit of the listener itself.
fn limiter(listener: &Listener, clients: Option<&Arc<Clients>>) -> Option<Limiter> {
    Some(Limiter::new(listener.client_limits.requests.as_ref()?, &listener.name, None, clients?))
}

/// The counts are those of open connections, so they are kept as long as there is a limit.
fn client_connections(listener: &Listener, old: Option<&Arc<ListenerPlan>>) -> Option<Arc<Counts>> {
    listener.client_limits.connections_max?;
    Some(old.and_then(|old| old.client_connections.clone()).unwrap_or_default())
}

fn limiters(
    listener: &Listener,
    old: Option<&Arc<ListenerPlan>>,
    clients: Option<&Arc<Clients>>,
) -> Arc<HashMap<usize, Limiter>> {
    // The clients are the same, too: as long as any listener has limits, so does the table.
    if let Some(old) = same_routes(listener, old) {
        return old.limiters.clone();
    }
    let limiter = |(number, route): (usize, &Route)| {
        let limit = route.policy.rate_limit.as_ref()?;
        Some((number, Limiter::new(limit, &listener.name, Some(&route.name), clients?)))
    };
    Arc::new(routes(listener).iter().enumerate().filter_map(limiter).collect())
}

fn concurrency_limiters(
    listener: &Listener,
    old: Option<&Arc<ListenerPlan>>,
    in_progress: Option<&Arc<InProgress>>,
) -> Arc<HashMap<usize, ConcurrencyLimiter>> {
    // As of rate limits.
    if let Some(old) = same_routes(listener, old) {
        return old.concurrency_limiters.clone();
    }
    let limiter = |(number, route): (usize, &Route)| {
        let limit = route.policy.concurrency_limit.as_ref()?;
        Some((number, ConcurrencyLimiter::new(limit, &listener.name, &route.name, in_progress?)))
    };
    Arc::new(routes(listener).iter().enumerate().filter_map(limiter).collect())
}

/// The name from which each address was resolved. If there are several, the first counts.
fn hosts(cluster: &Cluster) -> HashMap<SocketAddr, String> {
    let mut hosts = HashMap::new();
    let mut seen = HashSet::new();
    for endpoint in &cluster.endpoints {
        let EndpointAddress::Socket(address) = endpoint.address else { continue };
        if seen.insert(address)
            && let Some(host) = &endpoint.host
        {
            hosts.insert(address, host.to_string());
        }
    }
    hosts
}

/// The endpoints of a cluster, each once.
#[derive(Default)]
struct Endpoints {
    /// With their weights.
    endpoints: Vec<(Arc<EndpointState>, u32)>,
    /// `priorities.len() == endpoints.len()`.
    priorities: Vec<u8>,
    /// `zones.len() == endpoints.len()`.
    zones: Vec<Zone>,
}

/// States that are in use are not changed, because the snapshot may still be refused.
fn endpoints(cluster: &Cluster, old: Option<&Arc<ClusterPlan>>, now_ms: u64) -> Endpoints {
    let known: HashMap<SocketAddr, &Arc<EndpointState>> = old
        .map(|old| old.state.endpoints().iter().map(|endpoint| (endpoint.address(), endpoint)).collect())
        .unwrap_or_default();
    let count = cluster.endpoints.len();
    let mut found = Endpoints {
        endpoints: Vec::with_capacity(count),
        priorities: Vec::with_capacity(count),
        zones: Vec::with_capacity(count),
    };
    let mut seen = HashSet::with_capacity(cluster.endpoints.len());
    for endpoint in &cluster.endpoints {
        let EndpointAddress::Socket(address) = endpoint.address else { continue };
        // A name may resolve to an address that is also listed by itself.
        if !seen.insert(address) {
            continue;
        }
        let state = match (known.get(&address), old) {
            (Some(state), _) => (*state).clone(),
            (None, Some(_)) => Arc::new(EndpointState::joining(address, now_ms)),
            (None, None) => Arc::new(EndpointState::new(address)),
        };
        found.endpoints.push((state, endpoint.weight));
        found.priorities.push(endpoint.priority);
        found.zones.push(endpoint.zone);
    }
    found
}

#[cfg(test)]
pub(crate) mod fixture {
    //! Snapshots for tests: several listeners, all in front of one cluster.

    use std::sync::LazyLock;
    use std::time::Duration;

    use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use model::{
        Auth, AuthProtocol, BasicAuth, ClientLimits, ClusterId, Compression, Cors, CorsNames, CorsOrigins,
        DescriptorEntry, DescriptorSource, Dns, Encoding, Endpoint, ExternalAuth, ForwardedHeaders, Generation,
        GlobalRateLimit, HttpAuth, HttpListener, Jwks, JwtAuth, ListenerLimits, MediaRange, PasswordHash, PathRules,
        RateHeaders, TcpListener, TlsListener, TlsMode, TlsRoute, Users,
    };

    use super::*;

    pub(crate) fn http(name: &str, port: u16) -> Listener {
        let http = HttpListener {
            routes: [Route::to_all("/", ClusterId(0).into())].into(),
            isolated_hosts: Vec::new(),
            trusted_proxies: Vec::new(),
            forwarded: ForwardedHeaders::Off,
            x_real_ip: false,
            header_names: model::HeaderNames::Any,
            passthrough: Default::default(),
            http2: true,
            request_id: None,
            limits: ListenerLimits::default(),
            paths: PathRules::default(),
            error_pages: Box::default(),
        };
        listener(name, port, Protocol::Http(http))
    }

    pub(crate) fn tcp(name: &str, port: u16) -> Listener {
        let idle_timeout = Duration::from_secs(3600);
        listener(name, port, Protocol::Tcp(TcpListener { to: ClusterId(0), idle_timeout }))
    }

    pub(crate) fn passthrough(name: &str, port: u16) -> Listener {
        let long = Duration::from_secs(3600);
        let routes = vec![TlsRoute { sni: Vec::new(), to: ClusterId(0), mode: TlsMode::Passthrough }];
        let tls = TlsListener { routes, isolated_hosts: Vec::new(), hello_timeout: long, idle_timeout: long };
        listener(name, port, Protocol::Tls(tls))
    }

    fn listener(name: &str, port: u16, protocol: Protocol) -> Listener {
        Listener {
            name: name.into(),
            bind: ([127, 0, 0, 1], port).into(),
            captured: None,
            protocol,
            tls: None,
            accept_proxy_protocol: false,
            addresses: model::AddressRules::default(),
            connections_max: 1000,
            client_limits: ClientLimits::default(),
        }
    }

    /// A policy that allows everything to scripts of every origin.
    pub(crate) fn open_to_all() -> Cors {
        Cors {
            origins: CorsOrigins::Any,
            credentials: false,
            methods: CorsNames::Any,
            headers: CorsNames::Any,
            expose: CorsNames::Any,
            max_age: Duration::from_secs(5),
        }
    }

    /// A policy that demands `password` of `joe`, who the endpoint gets in `x-user`.
    pub(crate) fn only_joe() -> Auth {
        let hash = PasswordHash::parse("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=").unwrap();
        let (users, user_header) = (Users::Inline([("joe".into(), hash)].into()), Some("x-user".into()));
        Auth::Basic(BasicAuth { realm: "staff".into(), users, user_header, forward: false })
    }

    /// The key pair of RFC 8037 appendix A.
    fn key_pair() -> Ed25519KeyPair {
        let seed = "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A";
        Ed25519KeyPair::from_seed_unchecked(&URL_SAFE_NO_PAD.decode(seed).unwrap()).unwrap()
    }

    /// A policy that demands a token of `joe`, which is [`token`].
    pub(crate) fn only_joes_token() -> Auth {
        let x = URL_SAFE_NO_PAD.encode(key_pair().public_key().as_ref());
        Auth::Jwt(JwtAuth {
            realm: "staff".into(),
            places: Vec::new(),
            issuers: vec!["login".into()],
            audiences: None,
            algorithms: None,
            leeway: Duration::from_secs(60),
            require_exp: false,
            optional: false,
            forward: false,
            claim_headers: vec![("x-user".into(), "sub".into())],
            jwks: Jwks::Inline(format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}]}}"#)),
        })
    }

    /// A token that is right, or has a wrong signature.
    pub(crate) fn token(is_right: bool) -> &'static str {
        static TOKENS: LazyLock<[String; 2]> = LazyLock::new(|| [false, true].map(make_token));
        let [wrong, right] = &*TOKENS;
        if is_right { right } else { wrong }
    }

    fn make_token(is_right: bool) -> String {
        let signed = ["{\"alg\":\"EdDSA\"}", "{\"iss\":\"login\",\"sub\":\"joe\"}"]
            .map(|part| URL_SAFE_NO_PAD.encode(part))
            .join(".");
        let message = if is_right { signed.as_str() } else { "another" };
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(key_pair().sign(message.as_bytes())))
    }

    /// A policy that compresses text, in any encoding.
    pub(crate) fn compresses_text(level: u8) -> Compression {
        let types = vec![MediaRange { top: "text".into(), sub: None }];
        Compression { encodings: Encoding::ALL.into(), level, types, bytes_min: 10 }
    }

    /// A policy that asks a service, which may set `x-service`.
    pub(crate) fn asks_a_service() -> ExternalAuth {
        ExternalAuth {
            to: ClusterId(0),
            protocol: AuthProtocol::Http(HttpAuth {
                target: model::AuthTarget::Path("/".into()),
                method: None,
                host: None,
                query: [].into(),
                headers: Vec::new(),
            }),
            timeout: Duration::from_millis(200),
            fail_open: false,
            failure_status: 503,
            request_headers: None,
            response_headers: model::AnswerHeaders::Named(vec!["x-service".into()]),
            refusal_headers: Vec::new(),
            set_cookie: model::SetCookie::Off,
            is_403_bare: false,
            body: None,
            cache: None,
            sign_in: None,
        }
    }

    /// A limit that a service counts, by the client's address.
    pub(crate) fn counts_globally() -> GlobalRateLimit {
        let entry = DescriptorEntry { key: "remote_address".into(), source: DescriptorSource::ClientIp };
        GlobalRateLimit {
            to: ClusterId(0),
            host: None,
            domain: "edge".into(),
            descriptors: vec![vec![entry]],
            timeout: Duration::from_millis(100),
            fail_open: false,
            failure_status: 503,
            headers: RateHeaders { x_ratelimit: true, ratelimit: true },
        }
    }

    pub(crate) fn endpoint(port: u16, weight: u32) -> Endpoint {
        Endpoint {
            address: EndpointAddress::Socket(([127, 0, 0, 1], port).into()),
            weight,
            priority: 0,
            zone: model::Zone::Unknown,
            host: None,
        }
    }

    pub(crate) fn snapshot(listeners: Vec<Listener>, endpoints: Vec<Endpoint>) -> Arc<Snapshot> {
        Arc::new(Snapshot {
            generation: Generation(1),
            admin: None,
            admin_access: Default::default(),
            metrics: None,
            access_log: None,
            tracing: None,
            dns: Dns::default(),
            drain_delay: Duration::ZERO,
            drain_timeout: Duration::ZERO,
            memory_max: None,
            listeners,
            clusters: vec![Cluster::new("c", endpoints).into()],
            vips: Vec::new(),
            flows_max: 1,
            socket_cgroup: None,
            announcing: model::Announcing::default(),
        })
    }

    pub(crate) fn compiled(listeners: Vec<Listener>, ports: &[u16]) -> Compiled {
        let endpoints = ports.iter().map(|port| endpoint(*port, 1)).collect();
        Compiled::new(snapshot(listeners, endpoints), &NamedFiles::default(), None, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(endpoints: &[(u16, u32)]) -> Arc<Snapshot> {
        let endpoints = endpoints.iter().map(|(port, weight)| fixture::endpoint(*port, *weight)).collect();
        fixture::snapshot(Vec::new(), endpoints)
    }

    fn weights(compiled: &Compiled) -> Vec<(u16, u32)> {
        let state = &compiled.clusters[0].state;
        state.endpoints().iter().enumerate().map(|(i, e)| (e.address().port(), state.weight(i))).collect()
    }

    #[test]
    fn compiling_changes_nothing_of_the_snapshot_in_use() {
        let used = Compiled::new(snapshot(&[(1, 1), (2, 5)]), &NamedFiles::default(), None, 0);
        let new = Compiled::new(snapshot(&[(2, 0), (1, 7), (3, 1), (1, 9)]), &NamedFiles::default(), Some(&used), 0);
        assert_eq!(weights(&used), [(1, 1), (2, 5)]);
        assert_eq!(weights(&new), [(2, 0), (1, 7), (3, 1)]);
        assert!(Arc::ptr_eq(&used.clusters[0].state.endpoints()[0], &new.clusters[0].state.endpoints()[1]));
    }

    #[test]
    fn a_snapshot_that_was_replaced_sees_what_changes_in_its_successor() {
        let used = Compiled::new(snapshot(&[(1, 1), (2, 1)]), &NamedFiles::default(), None, 0);
        let new = Compiled::new(snapshot(&[(2, 1), (3, 1)]), &NamedFiles::default(), Some(&used), 0);
        let [old, new] = [&used, &new].map(|compiled| &compiled.clusters[0].state);
        let epoch = old.epoch();
        assert!(new.set_draining(0, true, 10));
        assert_eq!(old.status(1, 10), Some(balance::EndpointStatus::Draining));
        assert_ne!(old.epoch(), epoch);
    }

    #[test]
    fn what_is_the_very_same_is_not_made_anew() {
        let first = snapshot(&[(1, 1)]);
        let used = Compiled::new(first.clone(), &NamedFiles::default(), None, 0);
        let again = Compiled::new(first.clone(), &NamedFiles::default(), Some(&used), 0);
        assert!(Arc::ptr_eq(&used.clusters[0], &again.clusters[0]));
        // Equal is not enough, because the maker of a snapshot knows what has changed and shares the rest.
        let other = Compiled::new(snapshot(&[(1, 1)]), &NamedFiles::default(), Some(&used), 0);
        assert!(!Arc::ptr_eq(&used.clusters[0], &other.clusters[0]));
    }

    #[test]
    fn the_tables_of_unchanged_lists_are_kept() {
        let rules =
            |network: &str| model::AddressRules { allow: [network.parse().unwrap()].into(), ..Default::default() };
        let listener = |network: &str, of_route: &str| {
            let mut route = Route::to_all("/", model::ClusterId(0).into());
            route.policy.addresses = rules(of_route);
            let mut listener = Listener { addresses: rules(network), ..fixture::http("web", 1) };
            if let Protocol::Http(http) = &mut listener.protocol {
                http.routes = [route].into();
            }
            listener
        };
        let compile = |listener: &Listener, used| {
            let snapshot = fixture::snapshot(vec![listener.clone()], vec![fixture::endpoint(1, 1)]);
            Compiled::new(snapshot, &NamedFiles::default(), used, 0)
        };
        let plan = |compiled: &Compiled| compiled.listeners[0].clone();
        let kept = |used: &ListenerPlan, new: &ListenerPlan| {
            let own = Arc::ptr_eq(used.addresses.as_ref().unwrap(), new.addresses.as_ref().unwrap());
            (own, Arc::ptr_eq(&used.route_addresses, &new.route_addresses))
        };
        let first = listener("10.0.0.0/8", "10.1.0.0/16");
        let used = compile(&first, None);
        // Only endpoints have changed: the routes are identical.
        let again = compile(&first, Some(&used));
        assert_eq!(kept(&plan(&used), &plan(&again)), (true, true));
        let other = compile(&listener("10.0.0.0/9", "10.2.0.0/16"), Some(&used));
        assert_eq!(kept(&plan(&used), &plan(&other)), (false, false));
        let [in_first, in_other] = ["10.1.0.1", "10.2.0.1"].map(|address| Some(address.parse().unwrap()));
        let admits = |compiled: &Compiled, client| plan(compiled).route_addresses[&0].admits(client);
        assert_eq!([&used, &again, &other].map(|compiled| admits(compiled, in_first)), [true, true, false]);
        assert_eq!([&used, &again, &other].map(|compiled| admits(compiled, in_other)), [false, false, true]);
    }

    #[test]
    fn names_of_addresses() {
        let mut endpoints: Vec<_> = [1, 2, 1].map(|port| fixture::endpoint(port, 1)).into();
        endpoints[0].host = Some("first.example".into());
        endpoints[2].host = Some("second.example".into());
        let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let hosts = hosts(&Cluster::new("c", endpoints));
        assert_eq!(hosts.get(&address(1)).map(String::as_str), Some("first.example"));
        assert_eq!(hosts.get(&address(2)), None);
    }
}
