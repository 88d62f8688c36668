//! All counters of the process, found by name and summed over the workers.
//!
//! A worker gets its counters when it takes a snapshot, or when a route is hit for the first time, and keeps them: no request takes the
//! lock here. Series whose names stay in the configuration stay, so that no counter decreases on a reload.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{Cluster, EndpointAddress, Listener, Protocol, Route, Snapshot};

use crate::exposition::Exposition;
use crate::groups::{
    BodyCounters, BodyTotals, ClusterCounters, ClusterTotals, CompressionCounters, CompressionTotals, EndpointCounters,
    EndpointTotals, ListenerCounters, ListenerTotals, MethodCounters, MethodTotals, RouteCounters, RouteTotals, Summed,
};
use crate::grpc::{METHODS_MAX, MethodKey, OTHER_METHODS};
use crate::overall::Overall;
use crate::process;
use crate::prometheus::{self, Sample};
use crate::reason::Reason;
use crate::tail::Tail;

/// The name of a cluster, which all of its endpoints share, and an address.
pub type EndpointKey = (Arc<str>, SocketAddr);

/// The names of listener and route, and a reason.
pub(crate) type RouteReason = ((String, String), Reason);

/// All counters of the process. A clone is another handle on the same ones.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    series: Arc<Mutex<Series>>,
    tail: Arc<Tail>,
}

/// Sums over the workers at one moment. Each total is exact, but totals may differ from each other by some requests, because the workers
/// continue meanwhile.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// By the name of the listener.
    pub listeners: BTreeMap<String, ListenerTotals>,
    /// By the names of listener and route. A route that was never hit is missing.
    pub routes: BTreeMap<(String, String), RouteTotals>,
    /// The same for the compression of its responses. A route that has compressed nothing is missing.
    pub compressions: BTreeMap<(String, String), CompressionTotals>,
    /// The same for the bodies of its requests. A route that has collected and decompressed nothing is missing.
    pub bodies: BTreeMap<(String, String), BodyTotals>,
    /// The gRPC methods that were called.
    pub methods: BTreeMap<MethodKey, MethodTotals>,
    /// By the name of the cluster.
    pub clusters: BTreeMap<Arc<str>, ClusterTotals>,
    /// By the name of the cluster and the address.
    pub endpoints: BTreeMap<EndpointKey, EndpointTotals>,
}

#[derive(Debug, Default)]
pub(crate) struct Series {
    listeners: Family<String, ListenerCounters>,
    routes: Family<(String, String), RouteCounters>,
    compressions: Family<(String, String), CompressionCounters>,
    bodies: Family<(String, String), BodyCounters>,
    methods: Family<MethodKey, MethodCounters>,
    clusters: Family<Arc<str>, ClusterCounters>,
    endpoints: Family<EndpointKey, EndpointCounters>,
}

/// The counters of one kind by name.
#[derive(Debug)]
pub(crate) struct Family<K, C>(BTreeMap<K, Workers<C>>);

/// The counters of one series, separate for each worker. In no order: there are few workers, and a map of two entries takes 200 bytes.
#[derive(Debug)]
struct Workers<C>(Vec<(usize, Arc<C>)>);

/// A kind of counters that are kept by name.
pub(crate) trait Kind: Sized {
    /// Their key.
    type Key: Clone;

    fn family(series: &Series) -> &Family<Self::Key, Self>;
}

macro_rules! kinds {
    ($($counters:ident $key:ty, $field:ident;)*) => {
        $(impl Kind for $counters {
            type Key = $key;

            fn family(series: &Series) -> &Family<$key, Self> {
                &series.$field
            }
        })*
    };
}

kinds! {
    ListenerCounters String, listeners;
    RouteCounters (String, String), routes;
    EndpointCounters EndpointKey, endpoints;
}

impl Registry {
    /// The counters of a listener for one worker; created if they do not exist.
    pub fn listener(&self, worker: usize, name: &str) -> Arc<ListenerCounters> {
        self.lock().listeners.counters(worker, name.to_owned())
    }

    /// The counters of a route for one worker; created if they do not exist, so call this at the first hit.
    pub fn route(&self, worker: usize, listener: &str, route: &str) -> Arc<RouteCounters> {
        self.lock().routes.counters(worker, (listener.to_owned(), route.to_owned()))
    }

    /// The counters of the compression of a route's responses for one worker; created if they do not exist.
    pub fn compression(&self, worker: usize, listener: &str, route: &str) -> Arc<CompressionCounters> {
        self.lock().compressions.counters(worker, (listener.to_owned(), route.to_owned()))
    }

    /// The counters of the bodies of a route's requests for one worker; created if they do not exist.
    pub fn bodies(&self, worker: usize, listener: &str, route: &str) -> Arc<BodyCounters> {
        self.lock().bodies.counters(worker, (listener.to_owned(), route.to_owned()))
    }

    /// The counters of a gRPC method for one worker; created if they do not exist, so call this at the first call. Once [`METHODS_MAX`]
    /// methods of the service have their own counters, it returns those of [`OTHER_METHODS`]. `service` must come from the configuration.
    pub fn method(&self, worker: usize, listener: &str, service: &str, method: &str) -> Arc<MethodCounters> {
        let key = |method: &str| MethodKey {
            listener: listener.to_owned(),
            service: service.to_owned(),
            method: method.to_owned(),
        };
        let mut series = self.lock();
        let wanted = key(method);
        let is_of_service = |key: &&MethodKey| key.listener == listener && key.service == service;
        let has_room =
            || series.methods.0.range(key("")..).map(|(key, _)| key).take_while(is_of_service).count() < METHODS_MAX;
        let has_own = series.methods.0.contains_key(&wanted) || has_room();
        series.methods.counters(worker, if has_own { wanted } else { key(OTHER_METHODS) })
    }

    /// The counters of a cluster for one worker; created if they do not exist.
    pub fn cluster(&self, worker: usize, name: &str) -> Arc<ClusterCounters> {
        self.lock().clusters.counters(worker, name.into())
    }

    /// The counters of an endpoint for one worker; created if they do not exist.
    pub fn endpoint(&self, worker: usize, cluster: &str, address: SocketAddr) -> Arc<EndpointCounters> {
        let mut series = self.lock();
        // All endpoints of a cluster share its name.
        let name = series.clusters.0.get_key_value(cluster).map_or_else(|| cluster.into(), |(name, _)| name.clone());
        series.endpoints.counters(worker, (name, address))
    }

    /// Forgets every series whose names are not in `snapshot`. `before` is the snapshot of the previous call: what both share is not looked
    /// at again, because looking at 5,000 routes and 10,000 endpoints takes milliseconds, and in a cluster endpoints change all the time.
    ///
    /// An address that a name of the configuration once had is forgotten when no worker holds its counters any more, so also call this
    /// after each change of resolved addresses, when the workers have taken it. Counters that a worker still holds continue to count, but
    /// are not shown.
    pub fn retain(&self, snapshot: &Snapshot, before: Option<&Snapshot>) {
        let mut series = self.lock();
        if !before.is_some_and(|before| has_same_routes(before, snapshot)) {
            series.retain_routes(snapshot);
        }
        match before.filter(|before| has_same_names(before, snapshot)) {
            None => series.retain_clusters(snapshot),
            Some(before) => {
                let changed =
                    before.clusters.iter().zip(&snapshot.clusters).filter(|(old, new)| !Arc::ptr_eq(old, new));
                changed.for_each(|(_, cluster)| series.retain_endpoints(cluster));
            }
        }
    }

    /// All counters, summed over the workers.
    pub fn totals(&self) -> Totals {
        let series = self.lock();
        Totals {
            listeners: series.listeners.totals(),
            routes: series.routes.totals(),
            compressions: series.compressions.totals(),
            bodies: series.bodies.totals(),
            methods: series.methods.totals(),
            clusters: series.clusters.totals(),
            endpoints: series.endpoints.totals(),
        }
    }

    /// The open downstream connections of one worker, by listener. Listeners without any are missing.
    pub fn open_connections(&self, worker: usize) -> BTreeMap<String, u64> {
        let series = self.lock();
        let open = |(name, workers): (&String, &Workers<ListenerCounters>)| {
            let (_, counters) = workers.0.iter().find(|(of, _)| *of == worker)?;
            let mut total = ListenerTotals::default();
            counters.open.add_to(&mut total.open);
            (total.open > 0).then(|| (name.clone(), total.open))
        };
        series.listeners.0.iter().filter_map(open).collect()
    }

    /// The counters of the clusters alone.
    pub fn cluster_totals(&self) -> BTreeMap<Arc<str>, ClusterTotals> {
        self.lock().clusters.totals()
    }

    /// Everything in one sum. This is much cheaper than [`Registry::totals`], because it needs no memory.
    pub fn overall(&self) -> Overall {
        let series = self.lock();
        let mut overall = Overall::default();
        series.listeners.all().for_each(|counters| overall.add_listener(counters));
        series.routes.all().for_each(|counters| overall.add_route(counters));
        series.clusters.all().for_each(|counters| overall.add_cluster(counters));
        series.endpoints.all().for_each(|counters| overall.add_endpoint(counters));
        overall
    }

    /// What is told about single requests while somebody looks.
    pub fn tail(&self) -> &Arc<Tail> {
        &self.tail
    }

    /// The counters of one kind with their keys, summed over the workers by `add`.
    pub(crate) fn sums<F: Kind, const N: usize>(&self, add: impl Fn(&F, &mut [u64; N])) -> Vec<(F::Key, [u64; N])> {
        let series = self.lock();
        let sum = |(key, workers): (&F::Key, &Workers<F>)| {
            let mut sums = [0; N];
            workers.iter().for_each(|counters| add(counters, &mut sums));
            (key.clone(), sums)
        };
        F::family(&series).0.iter().map(sum).collect()
    }

    /// The reasons of each route that have occurred, summed over the workers.
    pub(crate) fn route_reasons(&self) -> Vec<(RouteReason, [u64; 1])> {
        let series = self.lock();
        let of_route = |(key, workers): (&(String, String), &Workers<RouteCounters>)| {
            let mut counts = BTreeMap::new();
            workers.iter().for_each(|counters| counters.reasons.add_to(&mut counts));
            let key = key.clone();
            counts.into_iter().map(move |(reason, count)| ((key.clone(), reason), [count]))
        };
        series.routes.0.iter().flat_map(of_route).collect()
    }

    /// All counters in this format: the totals, the process (from `/proc/self`), and the caller's samples.
    pub fn render(&self, extra: &[Sample], format: Exposition) -> Vec<u8> {
        let mut samples = process::samples();
        samples.extend_from_slice(extra);
        prometheus::render(&self.totals(), &samples, format)
    }

    fn lock(&self) -> MutexGuard<'_, Series> {
        // A panic leaves nothing half done in here.
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Series {
    fn retain_routes(&mut self, snapshot: &Snapshot) {
        let listeners: BTreeSet<&str> = snapshot.listeners.iter().map(|listener| listener.name.as_str()).collect();
        let routes: BTreeSet<(&str, &str)> =
            self::routes(snapshot).map(|(name, route)| (name, route.name.as_str())).collect();
        let services =
            self::routes(snapshot).filter_map(|(name, route)| Some((name, route.grpc.as_ref()?.service.as_str())));
        let services: BTreeSet<(&str, &str)> = services.collect();
        self.listeners.0.retain(|name, _| listeners.contains(name.as_str()));
        self.routes.0.retain(|(listener, route), _| routes.contains(&(listener, route)));
        self.compressions.0.retain(|(listener, route), _| routes.contains(&(listener, route)));
        self.bodies.0.retain(|(listener, route), _| routes.contains(&(listener, route)));
        self.methods.0.retain(|key, _| services.contains(&(key.listener.as_str(), key.service.as_str())));
    }

    fn retain_clusters(&mut self, snapshot: &Snapshot) {
        let clusters: BTreeMap<&str, &Cluster> =
            snapshot.clusters.iter().map(|cluster| (cluster.name.as_str(), &**cluster)).collect();
        self.clusters.0.retain(|name, _| clusters.contains_key(&**name));
        self.endpoints.0.retain(|(name, address), workers| {
            clusters.get(&**name).is_some_and(|cluster| has_endpoint(cluster, *address, workers.is_held()))
        });
        // Many endpoints may be new, and in the order of their keys, which leaves the nodes of the map half full.
        self.endpoints.0 = std::mem::take(&mut self.endpoints.0).into_iter().collect();
    }

    fn retain_endpoints(&mut self, cluster: &Cluster) {
        let first = (cluster.name.as_str().into(), SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
        let of_cluster = self.endpoints.0.range(first..).take_while(|((name, _), _)| **name == *cluster.name);
        let gone = of_cluster.filter(|((_, address), workers)| !has_endpoint(cluster, *address, workers.is_held()));
        let gone: Vec<EndpointKey> = gone.map(|(key, _)| key.clone()).collect();
        for key in gone {
            self.endpoints.0.remove(&key);
        }
    }
}

/// Whether both have the same listeners with the same lists of routes.
fn has_same_routes(before: &Snapshot, snapshot: &Snapshot) -> bool {
    let is_same = |(old, new): (&Listener, &Listener)| {
        let routes = match (&old.protocol, &new.protocol) {
            (Protocol::Http(old), Protocol::Http(new)) => Arc::ptr_eq(&old.routes, &new.routes),
            (Protocol::Http(_), _) | (_, Protocol::Http(_)) => false,
            _ => true,
        };
        old.name == new.name && routes
    };
    before.listeners.len() == snapshot.listeners.len() && before.listeners.iter().zip(&snapshot.listeners).all(is_same)
}

/// Whether both have clusters of the same names, in the same order.
fn has_same_names(before: &Snapshot, snapshot: &Snapshot) -> bool {
    let is_same = |(old, new): (&Arc<Cluster>, &Arc<Cluster>)| Arc::ptr_eq(old, new) || old.name == new.name;
    before.clusters.len() == snapshot.clusters.len() && before.clusters.iter().zip(&snapshot.clusters).all(is_same)
}

/// All routes, each with the name of its listener.
fn routes(snapshot: &Snapshot) -> impl Iterator<Item = (&str, &Route)> {
    snapshot.listeners.iter().flat_map(|listener| {
        let routes = match &listener.protocol {
            Protocol::Http(http) => &*http.routes,
            Protocol::Tcp(_) | Protocol::Tls(_) | Protocol::Capture(_) => &[],
        };
        routes.iter().map(|route| (listener.name.as_str(), route))
    })
}

fn has_endpoint(cluster: &Cluster, address: SocketAddr, held: bool) -> bool {
    cluster.endpoints.iter().any(|endpoint| match &endpoint.address {
        EndpointAddress::Socket(socket) => *socket == address,
        EndpointAddress::Name { port, .. } => *port == address.port() && held,
        EndpointAddress::Service { .. } => held,
    })
}

impl<K, C> Family<K, C> {
    /// The counters of all keys and workers.
    fn all(&self) -> impl Iterator<Item = &Arc<C>> {
        self.0.values().flat_map(Workers::iter)
    }
}

impl<K: Ord + Clone, C: Summed> Family<K, C> {
    fn counters(&mut self, worker: usize, key: K) -> Arc<C> {
        self.0.entry(key).or_default().counters(worker)
    }

    fn totals(&self) -> BTreeMap<K, C::Total> {
        let sum = |workers: &Workers<C>| {
            let mut total = C::Total::default();
            workers.iter().for_each(|counters| counters.add_to(&mut total));
            total
        };
        self.0.iter().map(|(key, workers)| (key.clone(), sum(workers))).collect()
    }
}

impl<C: Default> Workers<C> {
    fn counters(&mut self, worker: usize) -> Arc<C> {
        if let Some((_, counters)) = self.0.iter().find(|(of, _)| *of == worker) {
            return counters.clone();
        }
        let counters = Arc::<C>::default();
        self.0.reserve_exact(1);
        self.0.push((worker, counters.clone()));
        counters
    }
}

impl<C> Workers<C> {
    /// Whether a worker uses them.
    fn is_held(&self) -> bool {
        self.iter().any(|counters| Arc::strong_count(counters) > 1)
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<C>> {
        self.0.iter().map(|(_, counters)| counters)
    }
}

impl<C> Default for Workers<C> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

// Written by hand, because a derived impl would require a default of the keys.
impl<K, C> Default for Family<K, C> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

#[cfg(test)]
mod tests;
