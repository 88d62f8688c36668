//! Applies a new snapshot on a worker. Unchanged parts stay and cost nothing: a cluster of thousands of endpoints must not be rebuilt
//! because an endpoint of another cluster has changed.

use std::cell::{OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use balance::RetryBudget;
use model::Listener;

use super::{ListenerView, RouteViews, Worker};
use crate::downstream::listener::ActiveListener;
use crate::grpc::Methods;
use crate::policy::TrafficSplit;
use crate::upstream::cluster::{Cluster, Endpoint};
use crate::upstream::pool::Pool;
use crate::worker::snapshot::{ClusterPlan, Compiled, ListenerPlan, is_same};

impl Worker {
    pub(super) fn apply(self: &Rc<Self>, compiled: &Compiled) {
        let old = self.clusters.take();
        let clusters: Rc<[Rc<Cluster>]> = {
            let by_name: HashMap<&str, &Rc<Cluster>> =
                old.iter().map(|cluster| (cluster.plan.policy.name.as_str(), cluster)).collect();
            let cluster = |plan: &Arc<ClusterPlan>| {
                let before = by_name.get(plan.policy.name.as_str()).copied();
                let same = before.filter(|before| Arc::ptr_eq(&before.plan, plan));
                same.map_or_else(|| self.cluster(plan, before), Rc::clone)
            };
            compiled.clusters.iter().map(cluster).collect()
        };
        close_unused_pools(&old, &clusters);
        *self.clusters.borrow_mut() = clusters.to_vec();

        // A listener that has a socket, and then has none, or the other way round, is another listener.
        let place = |listener: &Listener| (listener.bind, listener.captured.is_some());
        let places: HashMap<&str, (SocketAddr, bool)> =
            compiled.listeners.iter().map(|plan| (plan.policy.name.as_str(), place(&plan.policy))).collect();
        let mut active_listeners = self.active_listeners.borrow_mut();
        let before = active_listeners.len();
        active_listeners.retain(|name, active| {
            let stays = places.get(name.as_str()) == Some(&place(&active.view().plan.policy));
            if !stays {
                active.close();
            }
            stays
        });
        let has_closed = active_listeners.len() < before;
        for plan in &compiled.listeners {
            let active = active_listeners.get(&plan.policy.name);
            let view = Rc::new(ListenerView {
                plan: plan.clone(),
                clusters: clusters.clone(),
                counters: self.registry.listener(self.index, &plan.policy.name),
                routes: self.routes(plan, active.map(|active| active.view()).as_deref()),
                tracing: compiled.snapshot.tracing.clone(),
            });
            match active {
                Some(active) => active.update(view),
                None => drop(active_listeners.insert(plan.policy.name.clone(), Rc::new(ActiveListener::new(view)))),
            }
        }
        drop(active_listeners);
        // Only idle connections of removed listeners have to end. All others stay asleep: waking ten thousand of them for each change of an
        // endpoint took a worker some 20 ms, and they had no use for the change yet.
        if has_closed {
            self.timers.interrupt();
        }
    }

    /// The listener with this name in this snapshot.
    #[cfg(test)]
    pub(crate) fn view_of(self: &Rc<Self>, compiled: &Compiled, name: &str) -> Rc<ListenerView> {
        self.apply(compiled);
        self.active_listeners.borrow().get(name).expect("a listener of this name").view()
    }

    fn routes(&self, plan: &ListenerPlan, old: Option<&ListenerView>) -> Rc<RouteViews> {
        if let Some(old) = old.filter(|old| Arc::ptr_eq(&old.plan.router, &plan.router)) {
            return old.routes.clone();
        }
        let routes = plan.routes();
        Rc::new(RouteViews {
            counters: routes.iter().map(|_| OnceCell::new()).collect(),
            methods: routes.iter().map(|route| Some(Box::new(Methods::new(route.grpc.as_ref()?)))).collect(),
            compressions: routes
                .iter()
                .map(|route| route.policy.compression.as_ref().map(|_| Box::default()))
                .collect(),
            bodies: routes.iter().map(|route| route.policy.request_body.as_ref().map(|_| Box::default())).collect(),
            splits: routes.iter().map(|route| TrafficSplit::new(route, self.index)).collect(),
        })
    }

    /// This worker's view of a cluster. Pools of endpoints that stay are kept.
    fn cluster(&self, plan: &Arc<ClusterPlan>, old: Option<&Rc<Cluster>>) -> Rc<Cluster> {
        let old = old.filter(|old| {
            old.plan.policy.send_proxy_protocol == plan.policy.send_proxy_protocol
                && old.plan.policy.protocol == plan.policy.protocol
                && is_same(&old.plan.tls, &plan.tls)
        });
        let known: HashMap<_, &Rc<Endpoint>> =
            old.iter().flat_map(|old| &old.endpoints).map(|endpoint| (endpoint.state.address(), endpoint)).collect();
        let name = plan.policy.name.as_str();
        let endpoints = plan.state.endpoints().iter().enumerate().map(|(index, state)| {
            let host = plan.host(state.address());
            let known = known.get(&state.address());
            let closing = known.and_then(|known| known.closing.clone());
            Rc::new(Endpoint {
                index,
                state: state.clone(),
                host: host.map(Into::into),
                pool: known.map_or_else(Pool::default, |known| known.pool.clone()),
                closing: plan.policy.closes_on_unhealthy.then(|| closing.unwrap_or_default()),
                counters: self.registry.endpoint(self.index, name, state.address()),
            })
        });
        let counters = self.registry.cluster(self.index, name);
        let budget = old.map_or_else(|| Rc::new(RefCell::new(RetryBudget::new())), |old| old.budget.clone());
        Rc::new(Cluster::new(plan.clone(), endpoints.collect(), counters, self.index, self.workers.count(), budget))
    }
}

/// Closes connections to endpoints that were removed from the configuration. An old request may still hold the endpoint, and would return
/// its connection to the pool.
fn close_unused_pools(old: &[Rc<Cluster>], new: &[Rc<Cluster>]) {
    let stay: HashSet<*const Cluster> = new.iter().map(Rc::as_ptr).collect();
    let gone: Vec<&Rc<Cluster>> = old.iter().filter(|cluster| !stay.contains(&Rc::as_ptr(cluster))).collect();
    if gone.is_empty() {
        return;
    }
    let were: HashSet<*const Cluster> = old.iter().map(Rc::as_ptr).collect();
    let made = new.iter().filter(|cluster| !were.contains(&Rc::as_ptr(cluster)));
    // Clusters that stay have their endpoints to themselves.
    let kept: HashSet<_> = made.flat_map(|cluster| &cluster.endpoints).map(|endpoint| endpoint.pool.id()).collect();
    for endpoint in gone.iter().flat_map(|cluster| &cluster.endpoints) {
        if !kept.contains(&endpoint.pool.id()) {
            endpoint.pool.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use net::timer::Timer;
    use telemetry::Registry;

    use super::*;
    use crate::worker::connection_balance::Workers;
    use crate::worker::snapshot::fixture;

    #[test]
    fn idle_connections_are_woken_only_where_their_listener_may_be_gone() {
        let worker = Rc::new(Worker::new(0, Arc::new(Workers::new(Vec::new())), Arc::new(Registry::default())));
        let (web, db) = (fixture::http("web", 80), fixture::tcp("db", 81));
        let apply = |listeners: &[&model::Listener], ports: &[u16]| {
            let listeners = listeners.iter().map(|listener| (*listener).clone()).collect();
            worker.apply(&fixture::compiled(listeners, ports));
        };
        apply(&[&web, &db], &[1]);
        let idle = Timer::new(&worker.timers);
        idle.set_interruptible(u64::MAX - 1);
        for ports in [[1].as_slice(), &[2, 3], &[3]] {
            apply(&[&web, &db], ports);
            assert!(!idle.is_elapsed(), "{ports:?}");
        }
        apply(&[&web], &[3]);
        assert!(idle.is_elapsed());
    }
}
