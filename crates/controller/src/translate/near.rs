//! Which endpoints are meant for clients of this node: the hints of EndpointSlices, which the cluster writes for `trafficDistribution` of a
//! Service (PreferSameZone, PreferSameNode, and PreferClose as the former) and for topology aware routing. kube-proxy follows the same rules.

use super::cluster::{self, Share};
use crate::index::{Index, SliceEndpoint, Standing};

/// Where the endpoints are meant for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Near<'n> {
    /// All count.
    Anywhere,
    /// Those for this zone.
    Zone(&'n str),
    /// Those for this node.
    Node(&'n str),
}

impl Near<'_> {
    /// Whether an endpoint counts.
    pub(crate) fn includes(&self, endpoint: &SliceEndpoint) -> bool {
        let hints = endpoint.hints.as_deref();
        match self {
            Self::Anywhere => true,
            Self::Zone(zone) => hints.is_some_and(|hints| hints.zones.iter().any(|of| &**of == *zone)),
            Self::Node(node) => hints.is_some_and(|hints| hints.nodes.iter().any(|of| &**of == *node)),
        }
    }
}

/// Hints count only if every ready endpoint has some, and one is for this node or zone: otherwise the cluster is about to change them, and
/// following half of them would send all traffic to a few endpoints.
pub(crate) fn of<'n>(
    index: &Index,
    share: &Share,
    is_wanted: &dyn Fn(&SliceEndpoint) -> bool,
    node: &'n str,
    zone: Option<&'n str>,
) -> Near<'n> {
    let ready = || {
        cluster::each_endpoint(index, &share.service, share.port, share.transport)
            .map(|(endpoint, _)| endpoint)
            .filter(|endpoint| endpoint.standing == Standing::Ready && is_wanted(endpoint))
    };
    let hints = |endpoint: &'_ SliceEndpoint, of_nodes: bool| {
        let hints = endpoint.hints.as_deref();
        hints.is_some_and(|hints| if of_nodes { !hints.nodes.is_empty() } else { !hints.zones.is_empty() })
    };
    let has = |near: &Near<'_>| ready().any(|endpoint| near.includes(endpoint));
    let for_node = Near::Node(node);
    if has(&for_node) && ready().all(|endpoint| hints(endpoint, true)) {
        return for_node;
    }
    match zone.map(Near::Zone) {
        Some(for_zone) if has(&for_zone) && ready().all(|endpoint| hints(endpoint, false)) => for_zone,
        _ => Near::Anywhere,
    }
}
