//! References between objects: whether they are allowed, and what they lead to.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use model::Transport;

use super::cluster::Share;
use crate::index::{Index, Kind, Name, ServicePort};
use crate::objects::{BackendRef, GROUP, Namespaces, OWN_GROUP, ObjectRef};

/// Why something is not done: a reason of the API for machines, and a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Why {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Why {
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// A kind of our own group.
pub(crate) const TRAFFIC_POLICY: &str = "TrafficPolicy";

/// Whether objects of `kind` (of the Gateway API, or [`TRAFFIC_POLICY`]) in `namespace` may refer to this object of the core group.
pub(crate) fn is_granted(index: &Index, kind: &str, namespace: &str, to_kind: &str, to: &Name) -> bool {
    let group = if kind == TRAFFIC_POLICY { OWN_GROUP } else { GROUP };
    *namespace == *to.namespace
        || index.grants.iter().filter(|(name, _)| name.namespace == to.namespace).any(|(_, grant)| {
            let from = |from: &crate::objects::GrantFrom| {
                from.group == group && from.kind == kind && from.namespace == namespace
            };
            let names = |granted: &crate::objects::GrantTo| {
                let name = granted.name.as_deref().filter(|name| !name.is_empty());
                granted.group.is_empty() && granted.kind == to_kind && name.is_none_or(|name| *name == *to.name)
            };
            grant.from.iter().any(from) && grant.to.iter().any(names)
        })
}

/// The object of the core group that a reference from `namespace` leads to.
///
/// # Errors
/// Returns why if it is of another kind, or if the reference is not allowed.
pub(crate) fn core_object(
    index: &Index,
    kind: &str,
    namespace: &str,
    to_kind: &str,
    reference: &ObjectRef,
    invalid_kind: &'static str,
) -> Result<Name, Why> {
    let group = reference.group.as_deref().unwrap_or_default();
    let found = reference.kind.as_deref().unwrap_or(to_kind);
    if !group.is_empty() || found != to_kind {
        let group = if group.is_empty() { String::new() } else { format!(" of {group}") };
        let message = format!("{}: a {found}{group} cannot be used here, only a {to_kind}", reference.name);
        return Err(Why::new(invalid_kind, message));
    }
    let name = Name::new(reference.namespace.as_deref().unwrap_or(namespace), &reference.name);
    if !is_granted(index, kind, namespace, to_kind, &name) {
        let mut message = format!(
            "no ReferenceGrant in {} allows a {kind} in {namespace} to refer to {to_kind} {name}",
            name.namespace
        );
        if let Some(why) = index.why_unread(Kind::Grant, &name.namespace) {
            message = format!("{message}, as far as is known: {why}");
        }
        return Err(Why::new("RefNotPermitted", message));
    }
    Ok(name)
}

/// The port of a Service that a route names.
///
/// # Errors
/// Returns why if the reference cannot be resolved, or leads to something that cannot be served.
pub(crate) fn backend(
    index: &Index,
    kind: &str,
    namespace: &str,
    reference: &BackendRef,
    transport: Transport,
) -> Result<Share, Why> {
    let name = core_object(index, kind, namespace, "Service", &reference.object, "InvalidKind")?;
    let Some(number) = reference.port else {
        return Err(Why::new("BackendNotFound", format!("{name}: a backendRef to a Service needs `port`")));
    };
    let port = service_port(index, &name, transport, |port| port.port == number)
        .map_err(|message| Why::new("BackendNotFound", message))?
        .ok_or_else(|| {
            Why::new("BackendNotFound", format!("the Service {name} has no {} port {number}", word(transport)))
        })?;
    if let Some(why) = unspoken(index, &name, port) {
        return Err(Why::new("UnsupportedProtocol", why));
    }
    let proxy = port.proxy_protocol().map_err(|why| Why::new("UnsupportedProtocol", format!("{name}: {why}")))?;
    // gRPC needs HTTP/2, whatever the port says.
    let h2 = kind == "GRPCRoute" || port.speaks_h2c();
    if h2 && proxy.is_some() {
        let message = format!(
            "{name}: a PROXY protocol header names one client, but an HTTP/2 connection carries requests of many clients"
        );
        return Err(Why::new("UnsupportedProtocol", message));
    }
    Ok(Share { service: name, port: number, transport, weight: reference.weight.unwrap_or(1), h2, proxy })
}

/// The port of a Service that is asked about requests.
///
/// # Errors
/// As [`backend`], and why if it cannot be asked by gRPC.
pub(crate) fn asked(
    index: &Index,
    kind: &str,
    namespace: &str,
    reference: &BackendRef,
    is_grpc: bool,
) -> Result<Share, Why> {
    let share = backend(index, kind, namespace, reference, Transport::Tcp)?;
    if is_grpc && share.proxy.is_some() {
        // A PROXY protocol header names one client, and a connection with HTTP/2 is for all.
        let message = format!("{}: gRPC has no PROXY protocol header", share.service);
        return Err(Why::new("UnsupportedProtocol", message));
    }
    Ok(Share { weight: 1, h2: share.h2 || is_grpc, ..share })
}

/// A port of a Service.
///
/// # Errors
/// Returns a sentence if there is no such Service, or if its type has no endpoints.
pub(crate) fn service_port<'i>(
    index: &'i Index,
    name: &Name,
    transport: Transport,
    is_it: impl Fn(&ServicePort) -> bool,
) -> Result<Option<&'i ServicePort>, String> {
    let unknown = || index.unknown(Kind::Service, &name.namespace, &format!("Service {name}"));
    let service = index.services.get(name).ok_or_else(unknown)?;
    if service.is_external_name {
        // An author of a Service could otherwise make this gateway reach anything that it can reach (CVE-2021-25740).
        return Err(format!("the Service {name} is of type ExternalName, which is not supported"));
    }
    if index.made.contains_key(&(Kind::Service, name.clone())) {
        // An author of a route could otherwise make one request go round without end.
        return Err(format!("the Service {name} is that of a Gateway: requests would come back to Steelyard"));
    }
    Ok(service.ports.iter().find(|port| port.transport == transport && is_it(port)))
}

/// Why the protocol of a port is not supported; `None` if it is.
fn unspoken(index: &Index, service: &Name, port: &ServicePort) -> Option<String> {
    let protocol = port.app_protocol.as_deref()?;
    let has_policy = super::policy::applies(index, service, port);
    match protocol {
        "kubernetes.io/wss" | "https" if !has_policy => {
            Some(format!("{service}: appProtocol {protocol} needs a BackendTLSPolicy, which sets the trusted CA"))
        }
        // Names without a prefix are IANA's and do not change what is sent; ws is an ordinary HTTP/1.1 request.
        _ => None,
    }
}

pub(crate) fn word(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "TCP",
        Transport::Udp => "UDP",
    }
}

/// Whether an object in `namespace` is one of those that an object in `own` allows. `default` applies if the object sets nothing.
pub(crate) fn is_allowed(
    index: &Index,
    allowed: Option<&Namespaces>,
    default: &str,
    own: &str,
    namespace: &str,
) -> bool {
    match allowed.and_then(|allowed| allowed.from.as_deref()).unwrap_or(default) {
        "All" => true,
        "Same" => own == namespace,
        "Selector" => {
            let labels = index.namespaces.get(&Name::new("", namespace));
            let selector = allowed.and_then(|allowed| allowed.selector.as_ref());
            selector.zip(labels).is_some_and(|(selector, labels)| selects(selector, labels))
        }
        _ => false,
    }
}

/// Whether the selector matches the labels. An unknown operator selects nothing.
fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let holds = |key: &str, value: &String| labels.get(key) == Some(value);
    selector.match_labels.iter().flatten().all(|(key, value)| holds(key, value))
        && selector.match_expressions.iter().flatten().all(|expression| {
            let has = labels.contains_key(&expression.key);
            let is_one = || expression.values.iter().flatten().any(|value| holds(&expression.key, value));
            match expression.operator.as_str() {
                "In" => is_one(),
                "NotIn" => !is_one(),
                "Exists" => has,
                "DoesNotExist" => !has,
                _ => false,
            }
        })
}

/// Parses a duration in the format of GEP-2257: up to four numbers with units, `1h30m`, `500ms`. Zero means no limit.
///
/// # Errors
/// Returns a sentence if it is not a duration.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration; write it like 10s, 1m30s or 500ms");
    let mut rest = text;
    let mut millis: u64 = 0;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let number: u64 = number.parse().ok().filter(|_| (1..=5).contains(&digits)).ok_or_else(wrong)?;
        let unit = after.bytes().take_while(u8::is_ascii_lowercase).count();
        let (unit, after) = after.split_at(unit);
        let factor = match unit {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1000,
            "ms" => 1,
            _ => return Err(wrong()),
        };
        millis = millis.saturating_add(number.saturating_mul(factor));
        rest = after;
    }
    Ok(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;

    use super::*;

    #[test]
    fn durations() {
        let check = |text: &str, expect: Option<u64>| {
            assert_eq!(duration(text).ok(), expect.map(Duration::from_millis), "{text}");
        };
        check("10s", Some(10_000));
        check("1h1m1s1ms", Some(3_661_001));
        check("0s", Some(0));
        check("99999h", Some(99_999 * 3_600_000));
        for wrong in ["", "10", "s", "1.5s", "-1s", "100000s", "1d", "1s ", "1S"] {
            check(wrong, None);
        }
    }

    #[test]
    fn selectors() {
        let labels: BTreeMap<String, String> = [("team".to_owned(), "a".to_owned())].into();
        let check = |operator: &str, key: &str, values: &[&str], expect: bool| {
            let expression = LabelSelectorRequirement {
                key: key.into(),
                operator: operator.into(),
                values: Some(values.iter().map(|value| (*value).to_owned()).collect()),
            };
            let selector = LabelSelector { match_expressions: Some(vec![expression]), match_labels: None };
            assert_eq!(selects(&selector, &labels), expect, "{key} {operator} {values:?}");
        };
        check("In", "team", &["b", "a"], true);
        check("In", "team", &["b"], false);
        check("NotIn", "team", &["b"], true);
        check("NotIn", "other", &["b"], true);
        check("NotIn", "team", &["a"], false);
        check("Exists", "team", &[], true);
        check("Exists", "other", &[], false);
        check("DoesNotExist", "other", &[], true);
        check("DoesNotExist", "team", &[], false);
        check("Near", "team", &["a"], false);
        assert!(selects(&LabelSelector::default(), &labels));
    }
}
