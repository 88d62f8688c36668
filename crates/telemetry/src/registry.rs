//! All counters of the process, found by name and summed over the workers.
//!
//! A worker asks for its counters when it takes a snapshot, or when a route is hit for the first time, and keeps them: the lock here is
//! never on a request's way. Series of names that stay in the configuration stay, so that no counter goes backwards on a reload.

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

/// All counters of the process. Cloning gives another handle on the same ones.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    series: Arc<Mutex<Series>>,
}

/// Sums over the workers at one moment. A total is exact; totals among each other may be some requests apart, as the workers go on meanwhile.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// By the name of the listener.
    pub listeners: BTreeMap<String, ListenerTotals>,
    /// By the names of listener and route. A route that was never hit is not there.
    pub routes: BTreeMap<(String, String), RouteTotals>,
    /// Methods of gRPC that were called.
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

/// Counters that are kept by name.
pub(crate) trait Kind: Sized {
    /// What they are found by.
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
    /// The counters of a listener for one worker; made when they are not there.
    pub fn listener(&self, worker: usize, name: &str) -> Arc<ListenerCounters> {
        self.lock().listeners.counters(worker, name.to_owned())
    }

    /// The counters of a route for one worker; made when they are not there, so ask at the first hit.
    pub fn route(&self, worker: usize, listener: &str, route: &str) -> Arc<RouteCounters> {
        self.lock().routes.counters(worker, (listener.to_owned(), route.to_owned()))
    }

    /// The counters of a method of gRPC for one worker; made when they are not there, so ask at the first call. Those of [`OTHER_METHODS`] once
    /// [`METHODS_MAX`] methods of the service have their own. `service` has to come from the configuration.
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

    /// The counters of a cluster for one worker; made when they are not there.
    pub fn cluster(&self, worker: usize, name: &str) -> Arc<ClusterCounters> {
        self.lock().clusters.counters(worker, name.to_owned())
    }

    /// The counters of an endpoint for one worker; made when they are not there.
    pub fn endpoint(&self, worker: usize, cluster: &str, address: SocketAddr) -> Arc<EndpointCounters> {
        self.lock().endpoints.counters(worker, (cluster.to_owned(), address))
    }

    /// Forgets every series whose names are not in `snapshot`.
    ///
    /// An address that a name of the configuration once had is forgotten when nobody holds its counters any more, so call this after each
    /// change of resolved addresses, too, when the workers have taken it. Counters that a worker still holds go on counting unseen.
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

    /// Everything, summed over the workers.
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

    /// The counters of one kind, each with its key, as `add` sums them up over the workers.
    pub(crate) fn sums<F: Kind, const N: usize>(&self, add: impl Fn(&F, &mut [u64; N])) -> Vec<(F::Key, [u64; N])> {
        let series = self.lock();
        let sum = |(key, workers): (&F::Key, &BTreeMap<usize, Arc<F>>)| {
            let mut sums = [0; N];
            workers.values().for_each(|counters| add(counters, &mut sums));
            (key.clone(), sums)
        };
        F::family(&series).0.iter().map(sum).collect()
    }

    /// Everything as Prometheus text (format 0.0.4): the totals, the process (from `/proc/self`), and what the caller adds. Samples of one
    /// name must stand next to each other.
    pub fn render(&self, extra: &[Sample]) -> String {
        let mut samples = process::samples();
        samples.extend_from_slice(extra);
        prometheus::render(&self.totals(), &samples)
    }

    fn lock(&self) -> MutexGuard<'_, Series> {
        // Nothing in here is left half done by a panic.
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Each with the name of its listener.
fn routes(snapshot: &Snapshot) -> impl Iterator<Item = (&str, &Route)> {
    snapshot.listeners.iter().flat_map(|listener| {
        let routes = match &listener.protocol {
            Protocol::Http(http) => &*http.routes,
            Protocol::Tcp(_) | Protocol::TlsPassthrough(_) => &[],
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

// Derived, it would ask the counters' keys for a default.
impl<K, C> Default for Family<K, C> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

#[cfg(test)]
mod tests;
