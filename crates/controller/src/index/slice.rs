//! EndpointSlices: addresses and their state.

use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::{EndpointConditions, EndpointHints, EndpointSlice};
use model::{Transport, Zone};

use super::Name;
use super::entry::{name_of, transport};
use crate::objects::Text;

/// The label that names the Service of a slice.
pub(crate) const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// The endpoints of a Service in one slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceEntry {
    /// The Service.
    pub service: Name,
    /// The ports. Each endpoint has all of them.
    pub ports: Box<[SlicePort]>,
    /// Addresses that could be read.
    pub endpoints: Box<[SliceEndpoint]>,
}

/// A port of every endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// The name of the Service's port; may be empty if there is only one.
    pub name: Text,
    /// The port that the endpoint listens on.
    pub port: u16,
    /// The transport protocol.
    pub transport: Transport,
}

/// An address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceEndpoint {
    /// The port.
    pub address: IpAddr,
    /// Its state.
    pub standing: Standing,
    /// Whether the hints name the zone of this process. Kubernetes writes hints if the Service has a `trafficDistribution`; the zone that the
    /// endpoint runs in has no effect by itself.
    pub zone: Zone,
    /// The node that it runs on.
    pub node: Option<Text>,
    /// The clients that should use it; `None` means all.
    pub(crate) hints: Option<Box<Hints>>,
}

/// Where the clients are for which the cluster has meant an endpoint, because of `trafficDistribution` of its Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hints {
    /// Names of nodes.
    pub nodes: Box<[Text]>,
    /// Names of zones.
    pub zones: Box<[Text]>,
}

impl Hints {
    fn of(hints: &EndpointHints) -> Option<Box<Self>> {
        let nodes: Box<[Text]> = hints.for_nodes.iter().flatten().map(|node| node.name.as_str().into()).collect();
        let zones: Box<[Text]> = hints.for_zones.iter().flatten().map(|zone| zone.name.as_str().into()).collect();
        (!nodes.is_empty() || !zones.is_empty()).then(|| Box::new(Self { nodes, zones }))
    }
}

/// The state of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It gets work.
    Ready,
    /// Terminating and still serving: it gets work only if no endpoint is ready.
    Leaving,
    /// It gets no work.
    Out,
}

impl Standing {
    /// The state that the conditions describe. The API has defaults for absent ones: ready is true, serving equals ready, terminating is
    /// false. An endpoint that is ready and terminates is one of a Service with `publishNotReadyAddresses`: as with kube-proxy, it counts as
    /// ready.
    fn of(conditions: Option<&EndpointConditions>) -> Self {
        let Some(conditions) = conditions else { return Self::Ready };
        let ready = conditions.ready.unwrap_or(true);
        let serving = conditions.serving.unwrap_or(ready);
        match (conditions.terminating.unwrap_or(false), ready, serving) {
            (_, true, _) => Self::Ready,
            (true, false, true) => Self::Leaving,
            _ => Self::Out,
        }
    }
}

impl SliceEntry {
    /// Returns `None` if it belongs to no Service, or if its addresses are names.
    pub(super) fn of(object: EndpointSlice, own_zone: Option<&str>) -> Option<(Name, Self)> {
        let name = name_of(&object.metadata);
        let service = object.metadata.labels.as_ref()?.get(SERVICE_LABEL)?;
        let service = Name::new(&name.namespace, service);
        let port = |port: &k8s_openapi::api::discovery::v1::EndpointPort| {
            Some(SlicePort {
                name: port.name.as_deref().unwrap_or_default().into(),
                port: port.port.and_then(|port| u16::try_from(port).ok())?,
                transport: transport(port.protocol.as_deref())?,
            })
        };
        let ports = object.ports.iter().flatten().filter_map(port).collect();
        let mut endpoints = Vec::new();
        for endpoint in &object.endpoints {
            let standing = Standing::of(endpoint.conditions.as_ref());
            // According to the API, all addresses of an endpoint are the same endpoint, and clients use the first.
            let Some(address) = endpoint.addresses.first().and_then(|address| address.parse().ok()) else { continue };
            if is_this_host(address) {
                continue;
            }
            let node = endpoint.node_name.as_deref().map(Into::into);
            let hints = endpoint.hints.as_ref().and_then(Hints::of);
            let zone = zone(endpoint.hints.as_ref(), own_zone);
            endpoints.push(SliceEndpoint { address, standing, zone, node, hints });
        }
        Some((name, Self { service, ports, endpoints: endpoints.into() }))
    }
}

/// Whether the address leads to this process itself and its neighbours, such as the control API, which has no authentication. The API server
/// refuses such addresses; this does not rely on it.
fn is_this_host(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || address.is_unspecified()
}

fn zone(hints: Option<&EndpointHints>, own_zone: Option<&str>) -> Zone {
    let zones = hints.and_then(|hints| hints.for_zones.as_deref()).unwrap_or_default();
    match own_zone {
        Some(own) if zones.iter().any(|zone| zone.name == own) => Zone::Own,
        Some(_) if !zones.is_empty() => Zone::Other,
        _ => Zone::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host() {
        let check = |text: &str, expect: bool| assert_eq!(is_this_host(text.parse().unwrap()), expect, "{text}");
        for text in ["127.0.0.1", "127.1.2.3", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0"] {
            check(text, true);
        }
        for text in ["10.0.0.1", "fd00::1", "::ffff:10.0.0.1"] {
            check(text, false);
        }
    }

    #[test]
    fn the_size_of_an_endpoint() {
        // There may be tens of thousands. A name of a zone would add 8 bytes to each.
        assert_eq!(size_of::<SliceEndpoint>(), 40);
        assert_eq!(size_of::<model::Endpoint>(), 72);
    }

    #[test]
    fn hints_tell_the_zone() {
        use k8s_openapi::api::discovery::v1::ForZone;
        let check = |zones: Option<&[&str]>, own, expect| {
            let zones = zones.map(|zones| zones.iter().map(|name| ForZone { name: (*name).to_owned() }).collect());
            let hints = EndpointHints { for_zones: zones, ..EndpointHints::default() };
            assert_eq!(zone(Some(&hints), own), expect, "{hints:?}");
        };
        check(Some(&["a", "b"]), Some("b"), Zone::Own);
        check(Some(&["a"]), Some("b"), Zone::Other);
        check(Some(&[]), Some("b"), Zone::Unknown);
        check(None, Some("b"), Zone::Unknown);
        check(Some(&["a"]), None, Zone::Unknown);
        assert_eq!(zone(None, Some("a")), Zone::Unknown);
    }

    #[test]
    fn standings() {
        let check = |ready, serving, terminating, expect| {
            let conditions = EndpointConditions { ready, serving, terminating };
            assert_eq!(Standing::of(Some(&conditions)), expect, "{ready:?} {serving:?} {terminating:?}");
        };
        check(None, None, None, Standing::Ready);
        check(Some(true), Some(true), Some(false), Standing::Ready);
        check(Some(true), None, None, Standing::Ready);
        check(Some(false), None, None, Standing::Out);
        check(Some(false), Some(true), Some(true), Standing::Leaving);
        check(Some(false), Some(false), Some(true), Standing::Out);
        // With publishNotReadyAddresses all are ready, even one that terminates.
        check(Some(true), Some(true), Some(true), Standing::Ready);
        check(Some(true), Some(false), Some(true), Standing::Ready);
        check(None, None, Some(true), Standing::Ready);
        check(Some(false), Some(true), Some(false), Standing::Out);
        assert_eq!(Standing::of(None), Standing::Ready);
    }
}
