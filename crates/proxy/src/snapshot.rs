//! A snapshot as the workers use it: routes compiled, and the state of every endpoint that stays kept.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use balance::{ClusterState, EndpointState};
use model::{Cluster, EndpointAddress, Listener, Protocol, Snapshot};

use crate::cluster::Breaker;
use crate::route::Router;

/// A compiled snapshot, shared by all workers.
pub struct Compiled {
    /// The snapshot that this was made from.
    pub snapshot: Arc<Snapshot>,
    /// As in the snapshot.
    pub listeners: Vec<Arc<ListenerPlan>>,
    /// Indexed by `ClusterId`.
    pub clusters: Vec<Arc<ClusterPlan>>,
}

/// A listener, ready for use.
pub struct ListenerPlan {
    /// What the operator wants.
    pub policy: Listener,
    pub(crate) router: Router,
    /// Open downstream connections of all workers.
    pub(crate) open: Arc<AtomicUsize>,
}

/// A cluster, ready for use.
pub struct ClusterPlan {
    /// What the operator wants.
    pub policy: Cluster,
    /// What all workers and the health checks know of its endpoints.
    pub state: Arc<ClusterState>,
    pub(crate) breaker: Arc<Breaker>,
}

impl Compiled {
    /// Compiles a snapshot. What `previous` knows of endpoints, by cluster name and address, is kept.
    ///
    /// Names among the endpoints must have been resolved; one that is left counts as having no address.
    pub fn new(snapshot: Arc<Snapshot>, previous: Option<&Self>, now_ms: u64) -> Self {
        let listeners = snapshot.listeners.iter().map(|listener| {
            let old = previous.and_then(|previous| previous.listener(&listener.name));
            let routes = match &listener.protocol {
                Protocol::Http(http) => http.routes.as_slice(),
                Protocol::Tcp(_) => &[],
            };
            Arc::new(ListenerPlan {
                policy: listener.clone(),
                router: Router::new(routes),
                open: old.map_or_else(Arc::default, |old| old.open.clone()),
            })
        });
        let clusters = snapshot.clusters.iter().map(|cluster| {
            let old = previous.and_then(|previous| previous.cluster(&cluster.name));
            Arc::new(ClusterPlan {
                policy: cluster.clone(),
                state: Arc::new(ClusterState::new(cluster, endpoints(cluster, old, now_ms))),
                breaker: old.map_or_else(Arc::default, |old| old.breaker.clone()),
            })
        });
        Self { listeners: listeners.collect(), clusters: clusters.collect(), snapshot }
    }

    fn listener(&self, name: &str) -> Option<&Arc<ListenerPlan>> {
        self.listeners.iter().find(|listener| listener.policy.name == name)
    }

    fn cluster(&self, name: &str) -> Option<&Arc<ClusterPlan>> {
        self.clusters.iter().find(|cluster| cluster.policy.name == name)
    }
}

fn endpoints(cluster: &Cluster, old: Option<&Arc<ClusterPlan>>, now_ms: u64) -> Vec<Arc<EndpointState>> {
    let known: HashMap<SocketAddr, &Arc<EndpointState>> = old
        .map(|old| old.state.endpoints().iter().map(|endpoint| (endpoint.address(), endpoint)).collect())
        .unwrap_or_default();
    let mut states: Vec<Arc<EndpointState>> = Vec::new();
    for endpoint in &cluster.endpoints {
        let EndpointAddress::Socket(address) = endpoint.address else { continue };
        // A name may resolve to an address that is also given as such.
        if states.iter().any(|state| state.address() == address) {
            continue;
        }
        states.push(match (known.get(&address), old) {
            (Some(state), _) => {
                state.set_weight(endpoint.weight);
                (*state).clone()
            }
            (None, Some(_)) => Arc::new(EndpointState::joining(address, endpoint.weight, now_ms)),
            (None, None) => Arc::new(EndpointState::new(address, endpoint.weight)),
        });
    }
    states
}
