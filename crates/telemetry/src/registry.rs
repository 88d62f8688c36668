//! All counters of the process, found by name and summed over the workers.
//!
//! A worker gets its counters when it takes a snapshot, or when a route is hit for the first time, and keeps them: no request takes the
//! lock here. Series whose names stay in the configuration stay, so that no counter decreases on a reload.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{EndpointAddress, Protocol, Route, Snapshot};

use crate::groups::{
    ClusterCounters, ClusterTotals, EndpointCounters, EndpointTotals, ListenerCounters, ListenerTotals, MethodCounters,
    MethodTotals, RouteCounters, RouteTotals, Summed,
};
use crate::grpc::{METHODS_MAX, MethodKey, OTHER_METHODS};
use crate::process;
use crate::prometheus::{self, Sample};

/// All counters of the process. A clone is another handle on the same ones.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    series: Arc<Mutex<Series>>,
}

/// Sums over the workers at one moment. Each total is exact, but totals may differ from each other by some requests, because the workers
/// continue meanwhile.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// By the name of the listener.
    pub listeners: BTreeMap<String, ListenerTotals>,
    /// By the names of listener and route. A route that was never hit is missing.
    pub routes: BTreeMap<(String, String), RouteTotals>,
    /// The gRPC methods that were called.
    pub methods: BTreeMap<MethodKey, MethodTotals>,
    /// By the name of the cluster.
    pub clusters: BTreeMap<String, ClusterTotals>,
    /// By the name of the cluster and the address.
    pub endpoints: BTreeMap<(String, SocketAddr), EndpointTotals>,
}

#[derive(Debug, Default)]
pub(crate) struct Series {
    listeners: Family<String, ListenerCounters>,
    routes: Family<(String, String), RouteCounters>,
    methods: Family<MethodKey, MethodCounters>,
    clusters: Family<String, ClusterCounters>,
    endpoints: Family<(String, SocketAddr), EndpointCounters>,
}

/// The counters of one kind: by name, then by worker.
#[derive(Debug)]
pub(crate) struct Family<K, C>(BTreeMap<K, BTreeMap<usize, Arc<C>>>);

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
    EndpointCounters (String, SocketAddr), endpoints;
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
        self.lock().clusters.counters(worker, name.to_owned())
    }

    /// The counters of an endpoint for one worker; created if they do not exist.
    pub fn endpoint(&self, worker: usize, cluster: &str, address: SocketAddr) -> Arc<EndpointCounters> {
        self.lock().endpoints.counters(worker, (cluster.to_owned(), address))
    }

    /// Forgets every series whose names are not in `snapshot`.
    ///
    /// An address that a name of the configuration once had is forgotten when no worker holds its counters any more, so also call this
    /// after each change of resolved addresses, when the workers have taken it. Counters that a worker still holds continue to count, but
    /// are not shown.
    pub fn retain(&self, snapshot: &Snapshot) {
        let listeners: BTreeSet<&str> = snapshot.listeners.iter().map(|listener| listener.name.as_str()).collect();
        let routes: BTreeSet<(&str, &str)> =
            self::routes(snapshot).map(|(name, route)| (name, route.name.as_str())).collect();
        let services =
            self::routes(snapshot).filter_map(|(name, route)| Some((name, route.grpc.as_ref()?.service.as_str())));
        let services: BTreeSet<(&str, &str)> = services.collect();
        let clusters: BTreeMap<&str, &model::Cluster> =
            snapshot.clusters.iter().map(|cluster| (cluster.name.as_str(), &**cluster)).collect();
        let mut series = self.lock();
        series.listeners.0.retain(|name, _| listeners.contains(name.as_str()));
        series.routes.0.retain(|(listener, route), _| routes.contains(&(listener, route)));
        series.methods.0.retain(|key, _| services.contains(&(key.listener.as_str(), key.service.as_str())));
        series.clusters.0.retain(|name, _| clusters.contains_key(name.as_str()));
        series.endpoints.0.retain(|(name, address), workers| {
            clusters.get(name.as_str()).is_some_and(|cluster| {
                let held = workers.values().any(|counters| Arc::strong_count(counters) > 1);
                has_endpoint(cluster, *address, held)
            })
        });
    }

    /// All counters, summed over the workers.
    pub fn totals(&self) -> Totals {
        let series = self.lock();
        Totals {
            listeners: series.listeners.totals(),
            routes: series.routes.totals(),
            methods: series.methods.totals(),
            clusters: series.clusters.totals(),
            endpoints: series.endpoints.totals(),
        }
    }

    /// The counters of one kind with their keys, summed over the workers by `add`.
    pub(crate) fn sums<F: Kind, const N: usize>(&self, add: impl Fn(&F, &mut [u64; N])) -> Vec<(F::Key, [u64; N])> {
        let series = self.lock();
        let sum = |(key, workers): (&F::Key, &BTreeMap<usize, Arc<F>>)| {
            let mut sums = [0; N];
            workers.values().for_each(|counters| add(counters, &mut sums));
            (key.clone(), sums)
        };
        F::family(&series).0.iter().map(sum).collect()
    }

    /// All counters as Prometheus text (format 0.0.4): the totals, the process (from `/proc/self`), and the caller's samples. Samples with
    /// the same name must be adjacent.
    pub fn render(&self, extra: &[Sample]) -> String {
        let mut samples = process::samples();
        samples.extend_from_slice(extra);
        prometheus::render(&self.totals(), &samples)
    }

    fn lock(&self) -> MutexGuard<'_, Series> {
        // A panic leaves nothing half done in here.
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All routes, each with the name of its listener.
fn routes(snapshot: &Snapshot) -> impl Iterator<Item = (&str, &Route)> {
    snapshot.listeners.iter().flat_map(|listener| {
        let routes = match &listener.protocol {
            Protocol::Http(http) => &*http.routes,
            Protocol::Tcp(_) | Protocol::Tls(_) => &[],
        };
        routes.iter().map(|route| (listener.name.as_str(), route))
    })
}

fn has_endpoint(cluster: &model::Cluster, address: SocketAddr, held: bool) -> bool {
    cluster.endpoints.iter().any(|endpoint| match &endpoint.address {
        EndpointAddress::Socket(socket) => *socket == address,
        EndpointAddress::Name { port, .. } => *port == address.port() && held,
    })
}

impl<K: Ord + Clone, C: Summed> Family<K, C> {
    fn counters(&mut self, worker: usize, key: K) -> Arc<C> {
        Arc::clone(self.0.entry(key).or_default().entry(worker).or_default())
    }

    fn totals(&self) -> BTreeMap<K, C::Total> {
        let sum = |workers: &BTreeMap<usize, Arc<C>>| {
            let mut total = C::Total::default();
            workers.values().for_each(|counters| counters.add_to(&mut total));
            total
        };
        self.0.iter().map(|(key, workers)| (key.clone(), sum(workers))).collect()
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
