//! The state of the endpoints of vips: what operators requested and what probes found. It survives a new snapshot.
//!
//! To the health checks, a vip is a cluster with the name `vip/NAME`; the name of a real cluster never contains a `/`.
//! Not its job: the kernel plane itself, which gets the state from [`crate::kernel`].

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use balance::{ClusterState, EndpointState, EndpointStatus};
use l4::EndpointVerdict;
use model::{Cluster, EndpointAddress, Vip};

/// A vip and the state of its endpoints.
pub(crate) struct VipPlan {
    pub(crate) vip: Vip,
    /// Whether a command added the vip, rather than the file.
    pub(crate) added: bool,
    pub(crate) state: Arc<ClusterState>,
}

/// Makes plans for vips. The state of endpoints in `previous` is kept, by the name of the vip and the address.
pub(crate) fn plans<'v>(
    vips: impl Iterator<Item = (&'v Vip, bool)>,
    previous: &[Arc<VipPlan>],
    now_ms: u64,
) -> Vec<Arc<VipPlan>> {
    let known: HashMap<&str, &Arc<VipPlan>> = previous.iter().map(|plan| (plan.vip.name.as_str(), plan)).collect();
    let plan = |(vip, added): (&Vip, bool)| {
        let old = known.get(vip.name.as_str());
        let states: HashMap<SocketAddr, &Arc<EndpointState>> = old
            .map(|old| old.state.endpoints().iter().map(|endpoint| (endpoint.address(), endpoint)).collect())
            .unwrap_or_default();
        let endpoints = addresses(vip).map(|(address, weight)| {
            let state = match states.get(&address) {
                Some(state) => (*state).clone(),
                None if old.is_some() => Arc::new(EndpointState::joining(address, now_ms)),
                None => Arc::new(EndpointState::new(address)),
            };
            (state, weight)
        });
        let cluster = Cluster::new(cluster_name(vip), Vec::new());
        let state = Arc::new(ClusterState::new(&cluster, endpoints.collect()));
        Arc::new(VipPlan { vip: vip.clone(), added, state })
    };
    vips.map(plan).collect()
}

/// The addresses and weights of the endpoints, in their order. The configuration ensures that there are no names.
fn addresses(vip: &Vip) -> impl Iterator<Item = (SocketAddr, u32)> {
    vip.endpoints.iter().filter_map(|endpoint| match endpoint.address {
        EndpointAddress::Socket(address) => Some((address, endpoint.weight)),
        EndpointAddress::Name { .. } | EndpointAddress::Service { .. } => None,
    })
}

fn cluster_name(vip: &Vip) -> String {
    format!("vip/{}", vip.name)
}

impl VipPlan {
    /// The endpoints to probe.
    pub(crate) fn targets(&self) -> Vec<health::ProbeTarget> {
        let Some(check) = &self.vip.health_check else { return Vec::new() };
        let target = |(index, endpoint): (usize, &Arc<EndpointState>)| health::ProbeTarget {
            cluster: self.state.clone(),
            index,
            cluster_name: cluster_name(&self.vip),
            address: self.probed(endpoint.address()),
            check: check.clone(),
            transport: health::ProbeTransport::default(),
        };
        self.state.endpoints().iter().enumerate().map(target).collect()
    }

    /// The address at which to probe an endpoint. Without a port of its own, and unless the check sets another port, it
    /// is the port that clients use.
    fn probed(&self, endpoint: SocketAddr) -> SocketAddr {
        let port = if endpoint.port() == 0 { self.vip.ports.first } else { endpoint.port() };
        SocketAddr::new(endpoint.ip(), port)
    }

    /// Marks endpoints that an earlier process found dead as dead until a probe says otherwise. Without a health check
    /// no probe would ever do so, so they are not marked.
    pub(crate) fn begin(&self, dead: &BTreeSet<SocketAddr>) {
        if self.vip.health_check.is_none() {
            return;
        }
        for (index, endpoint) in self.state.endpoints().iter().enumerate() {
            if dead.contains(&endpoint.address()) {
                self.state.set_healthy(index, false, 0);
            }
        }
    }

    /// Each endpoint with its verdict.
    pub(crate) fn verdicts(&self) -> impl Iterator<Item = (SocketAddr, EndpointVerdict)> {
        self.state.endpoints().iter().enumerate().map(|(index, endpoint)| (endpoint.address(), self.verdict(index)))
    }

    fn verdict(&self, index: usize) -> EndpointVerdict {
        // A dead endpoint counts as dead even if it also drains: waiting connections should learn that it is dead.
        if self.state.probes_fail(index) {
            return EndpointVerdict::Down;
        }
        // Nothing ejects an endpoint of a vip, so time does not matter.
        match self.state.status(index, 0) {
            Some(EndpointStatus::Draining) => EndpointVerdict::Draining,
            _ => EndpointVerdict::Active,
        }
    }

    /// The index of an endpoint, given as `steelyard status` shows it.
    pub(crate) fn find(&self, endpoint: &str) -> Option<usize> {
        self.state.endpoints().iter().position(|state| shown(state.address()) == endpoint)
    }

    /// Whether a probe has judged an endpoint.
    pub(crate) fn is_checked(&self, endpoint: SocketAddr, unproven: &HashSet<telemetry::EndpointKey>) -> bool {
        self.vip.health_check.is_some() && !unproven.contains(&(cluster_name(&self.vip).into(), self.probed(endpoint)))
    }

    /// Why the last probe of an endpoint failed, if it did.
    pub(crate) fn failure(&self, endpoint: SocketAddr, failures: &[health::LastFailure]) -> Option<String> {
        let (name, address) = (cluster_name(&self.vip), self.probed(endpoint));
        failures
            .iter()
            .find(|failure| failure.cluster == name && failure.address == address)
            .map(|found| found.why.clone())
    }
}

/// An endpoint as people write it, without a port if it has none of its own.
pub(crate) fn shown(endpoint: SocketAddr) -> String {
    match endpoint.port() {
        0 => endpoint.ip().to_string(),
        _ => endpoint.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use model::Generation;

    use super::*;

    fn plans_of(text: &str, previous: &[Arc<VipPlan>]) -> Vec<Arc<VipPlan>> {
        let snapshot = config::parse("f", text, Generation(1)).unwrap_or_else(|errors| panic!("{errors}"));
        plans(snapshot.vips.iter().map(|vip| (vip, false)), previous, 7)
    }

    fn vip(endpoints: &str, check: &str) -> String {
        format!("vips: {{web: {{address: 10.0.0.1:80/tcp, interfaces: a, endpoints: [{endpoints}]{check}}}}}")
    }

    fn verdicts(plan: &VipPlan) -> Vec<(String, EndpointVerdict)> {
        plan.verdicts().map(|(address, verdict)| (shown(address), verdict)).collect()
    }

    #[test]
    fn what_is_known_of_an_endpoint_outlives_snapshots() {
        let before = plans_of(&vip("10.0.0.2:81, 10.0.0.3, 10.0.0.4", ""), &[]);
        let [draining, dead, both] = [0, 1, 2];
        before[0].state.set_draining(draining, true, 0);
        before[0].state.set_healthy(dead, false, 0);
        before[0].state.set_draining(both, true, 0);
        before[0].state.set_healthy(both, false, 0);
        let after = plans_of(&vip("10.0.0.5, 10.0.0.4, 10.0.0.3, 10.0.0.2:81", ""), &before);
        let expect = [
            ("10.0.0.5", EndpointVerdict::Active),
            ("10.0.0.4", EndpointVerdict::Down),
            ("10.0.0.3", EndpointVerdict::Down),
            ("10.0.0.2:81", EndpointVerdict::Draining),
        ];
        assert_eq!(verdicts(&after[0]), expect.map(|(address, verdict)| (address.to_owned(), verdict)));
        assert_eq!((after[0].find("10.0.0.3"), after[0].find("10.0.0.3:0")), (Some(2), None));
    }

    #[test]
    fn an_endpoint_without_a_port_is_probed_where_clients_ask() {
        let plans = plans_of(&vip("10.0.0.2:81, 10.0.0.3", ", health_check: {tcp: true}"), &[]);
        let targets = plans[0].targets();
        let probed: Vec<String> = targets.iter().map(|target| target.address.to_string()).collect();
        assert_eq!(probed, ["10.0.0.2:81", "10.0.0.3:80"]);
        assert_eq!(targets[0].cluster_name, "vip/web");
        let address = targets[1].address;
        let failure = health::LastFailure { cluster: "vip/web".into(), address, why: "refused".into(), at_ms: 1 };
        let endpoint = plans[0].state.endpoints()[1].address();
        assert_eq!(plans[0].failure(endpoint, &[failure]), Some("refused".to_owned()));
        assert!(plans_of(&vip("10.0.0.2", ""), &[])[0].targets().is_empty());
    }
}
