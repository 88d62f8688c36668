//! Clusters: endpoints and the policy for choosing among them.

use std::collections::HashMap;
use std::path::Path;

use model::{
    Algorithm, Cluster, ClusterLimits, ClusterProtocol, ClusterTls, Endpoint, EndpointAddress, HashKey, HealthCheck,
    HttpProbe, Outlier, Probe, Zone,
};

use super::route::listed;
use super::sidecar::Sidecar;
use super::{count, policy, positive, tls};
use crate::defaults;
use crate::diagnostic::{Location, Report, Wrong, ticked};
use crate::raw::{
    OnUnhealthyWord, RawBalance, RawCluster, RawClusterLimits, RawEndpoint, RawEndpointObject, RawHashKey,
    RawHealthCheck, RawOutlier, RawOutlierObject, UpstreamName,
};
use crate::read::{Keyed, Located, Many};
use crate::text::{EndpointText, Label};

/// Returns `None` if no endpoint could be read; the report says why.
pub fn cluster(
    name: &str,
    raw: RawCluster,
    base: &Path,
    own_zone: Option<&str>,
    sidecar: Option<&Sidecar>,
    report: &mut Report,
) -> Option<Cluster> {
    let towards = towards(&raw, sidecar, report);
    let protocol = protocol(&raw, report);
    if let (Some(on_unhealthy), None) = (&raw.on_unhealthy, &raw.health_check)
        && on_unhealthy.value.0 == OnUnhealthyWord::Close
    {
        let wrong =
            Wrong::new("`on_unhealthy: close` has no effect: without a `health_check`, endpoints count as healthy");
        report.add(on_unhealthy.location, wrong.hint("add `health_check: {tcp: true}`, or another one"));
    }
    let health_check = raw.health_check.map(|check| self::health_check(check.value, report));
    let sticky = raw.sticky.and_then(|sticky| policy::sticky(&sticky.value, report));
    let endpoints = endpoints(raw.endpoints?, name, own_zone, report);
    let mut cluster = Cluster::new(name, endpoints);
    cluster.protocol = protocol;
    cluster.health_check = health_check.flatten();
    cluster.sticky = sticky;
    cluster.closes_on_unhealthy =
        raw.on_unhealthy.is_some_and(|on_unhealthy| on_unhealthy.value.0 == OnUnhealthyWord::Close);
    if let Some(balance) = raw.balance {
        cluster.algorithm = algorithm(balance.value);
    }
    if let Some(outlier) = raw.outlier {
        cluster.outlier = match outlier.value {
            RawOutlier::Text(_off) => None,
            RawOutlier::Object(object) => Some(self::outlier(*object)),
        };
    }
    if let Some(share) = raw.panic_threshold {
        cluster.panic_threshold = share.value.0;
    }
    if let Some(share) = raw.zone_threshold {
        cluster.zone_threshold = share.value.0;
    }
    if let Some(duration) = raw.slow_start {
        cluster.slow_start = duration.value.0;
    }
    if let Some(limits) = raw.limits {
        cluster.limits = self::limits(limits.value);
    }
    cluster.connect_timeout = positive(&raw.connect_timeout, cluster.connect_timeout);
    cluster.response_timeout = positive(&raw.response_timeout, cluster.response_timeout);
    cluster.idle_timeout = positive(&raw.idle_timeout, cluster.idle_timeout);
    if let Some(ping) = &raw.ping {
        cluster.ping = super::ping(&ping.value);
    }
    if let Some(connections) = raw.idle_connections {
        cluster.idle_connections_max = count(connections.value.0);
    }
    cluster.send_proxy_protocol = raw.proxy_protocol.map(|version| version.value.0);
    cluster.tls = towards.or_else(|| raw.tls.map(|tls| tls::cluster(&tls.value, base, report)));
    Some(cluster)
}

/// TLS towards endpoints that have sidecars.
fn towards(raw: &RawCluster, sidecar: Option<&Sidecar>, report: &mut Report) -> Option<ClusterTls> {
    let written = raw.spiffe_ids.as_ref()?;
    if let Some(tls) = &raw.tls {
        let wrong = Wrong::new("a cluster has both `tls` and `spiffe_ids`");
        report.add(tls.location, wrong.hint("keep `spiffe_ids` if its endpoints have sidecars, and `tls` otherwise"));
    }
    let ids = listed(&raw.spiffe_ids, |id| id.0.clone());
    let towards = sidecar.and_then(|sidecar| sidecar.towards(&ids));
    if towards.is_none() {
        let wrong = Wrong::new("`spiffe_ids` needs the certificate of this sidecar");
        report.add(written.location, wrong.hint("add `tls` to `sidecar`, or write `tls: {subject_alt_names: ...}`"));
    }
    towards
}

/// HTTP/2 differs in the clear and within TLS, so the keys must agree about which one is meant.
fn protocol(raw: &RawCluster, report: &mut Report) -> ClusterProtocol {
    let name = raw.protocol.as_ref().map_or(UpstreamName::H1, |name| name.value.0);
    if let Some(written) = &raw.protocol {
        let encrypts = match (&raw.tls, &raw.spiffe_ids) {
            (None, None) => None,
            (Some(_), _) => Some("`tls`"),
            (None, Some(_)) => Some("`spiffe_ids`"),
        };
        match (name, encrypts) {
            (UpstreamName::H2c, Some(key)) => {
                let wrong = Wrong::new(format!("protocol h2c is HTTP/2 in the clear, and this cluster has {key}"));
                report.add(written.location, wrong.hint(format!("write `protocol: h2`, or remove {key}")));
            }
            (UpstreamName::H2, None) => {
                let wrong = Wrong::new("protocol h2 is HTTP/2 within TLS, and this cluster has no `tls`");
                report.add(written.location, wrong.hint("write `protocol: h2c`, or add `tls: {}`"));
            }
            _ => {}
        }
    }
    let protocol = name.protocol();
    if let (ClusterProtocol::H2, Some(proxy_protocol)) = (protocol, &raw.proxy_protocol) {
        let wrong =
            Wrong::new("`proxy_protocol` names one client, but an HTTP/2 connection carries requests of many clients");
        let hint = "remove it: the endpoint learns the client of each request from `X-Forwarded-For`";
        report.add(proxy_protocol.location, wrong.hint(hint));
    }
    if let (ClusterProtocol::H1, Some(ping)) = (protocol, &raw.ping) {
        let wrong = Wrong::new("`ping` needs HTTP/2, and this cluster speaks h1");
        report.add(ping.location, wrong.hint("remove `ping`, or write `protocol: h2c`, or `protocol: h2` with `tls`"));
    }
    let asks_grpc = raw.health_check.as_ref().and_then(|check| check.value.grpc.as_ref());
    let encrypts = raw.tls.is_some() || raw.spiffe_ids.is_some();
    if let (Some(asked), true, ClusterProtocol::H1) = (asks_grpc, encrypts, protocol) {
        let wrong = Wrong::new("a gRPC health check needs HTTP/2, and this cluster speaks h1 within TLS");
        report.add(asked.location, wrong.hint("add `protocol: h2` to the cluster"));
    }
    protocol
}

fn endpoints(
    raw: Located<Many<RawEndpoint>>,
    name: &str,
    own_zone: Option<&str>,
    report: &mut Report,
) -> Vec<Endpoint> {
    let whole = raw.location;
    let mut first: HashMap<EndpointAddress, Location> = HashMap::new();
    let mut endpoints = Vec::with_capacity(raw.value.0.len());
    for Located { location, value } in raw.value.0 {
        let (address, weight, priority, zone) = match value {
            RawEndpoint::Text(address) => (Some(address), None, None, None),
            RawEndpoint::Object(object) => {
                let address = match &object.srv {
                    Some(service) => {
                        refuse_beside_srv(&object, report);
                        Some(EndpointText(EndpointAddress::Service { name: service.value.0.clone() }))
                    }
                    None => object.address.map(|address| address.value),
                };
                (address, object.weight, object.priority, object.zone)
            }
        };
        let zone = zone.map_or(Zone::Unknown, |zone| self::zone(&zone, own_zone, report));
        let Some(address) = address.map(|address| address.0) else { continue };
        if let Some(first) = first.insert(address.clone(), location) {
            let hint = format!("the first is at line {}; to send it more traffic, raise its weight", first.line);
            report.add(location, Wrong::new(format!("an endpoint of {} is given twice", ticked(name))).hint(hint));
        }
        let weight = weight.map(|weight| u32::try_from(weight.value.0).unwrap_or(u32::MAX));
        let priority = priority.map_or(0, |priority| u8::try_from(priority.value.0).unwrap_or(u8::MAX));
        endpoints.push(Endpoint { address, weight: weight.unwrap_or(defaults::WEIGHT), priority, zone, host: None });
    }
    if !endpoints.is_empty() && endpoints.iter().all(|endpoint| endpoint.weight == 0) {
        let hint = "no endpoint would get traffic; give at least one a weight above 0";
        report.add(whole, Wrong::new(format!("every endpoint of {} has weight 0", ticked(name))).hint(hint));
    }
    endpoints
}

/// The records say these.
fn refuse_beside_srv(object: &RawEndpointObject, report: &mut Report) {
    let written = [
        ("weight", object.weight.as_ref().map(|weight| weight.location)),
        ("priority", object.priority.as_ref().map(|priority| priority.location)),
    ];
    for (key, location) in written {
        if let Some(location) = location {
            let wrong = Wrong::new(format!("`{key}` has no effect beside `srv`: the records of the service say it"));
            report.add(location, wrong.hint("remove it"));
        }
    }
}

fn zone(zone: &Located<Label>, own_zone: Option<&str>, report: &mut Report) -> Zone {
    match own_zone {
        Some(own) if own == zone.value.0 => Zone::Own,
        Some(_) => Zone::Other,
        None => {
            let wrong = Wrong::new(
                "`zone` of an endpoint has no effect, because the file does not say in which zone Steelyard runs",
            );
            report.add(zone.location, wrong.hint("add `zone: NAME` at the top of the file"));
            Zone::Unknown
        }
    }
}

fn algorithm(raw: RawBalance) -> Algorithm {
    let maglev = match raw {
        RawBalance::Text(word) => return word.0,
        RawBalance::Object(object) => object.maglev,
    };
    let (key, subset) = maglev.map_or((None, None), |maglev| (maglev.value.key, maglev.value.subset));
    let key = match key.map(|key| key.value) {
        Some(RawHashKey::Object(object)) => match (object.header, object.cookie, object.template) {
            (Some(header), ..) => HashKey::Header(header.value.0),
            (None, Some(cookie), _) => HashKey::Cookie(cookie.value.0),
            (None, None, Some(template)) => HashKey::Template(template.value.0.into()),
            (None, None, None) => HashKey::ClientIp,
        },
        Some(RawHashKey::Text(_)) | None => HashKey::ClientIp,
    };
    match subset {
        Some(size) => Algorithm::MaglevSubset { key, size: count(size.value.0) },
        None => Algorithm::Maglev(key),
    }
}

/// Returns `None` if it does not say what to ask; the report says so.
pub fn health_check(raw: RawHealthCheck, report: &mut Report) -> Option<HealthCheck> {
    refuse_keys_of_other_checks(&raw, report);
    let host = raw.host.map(|host| host.value.0);
    let probe = match (raw.http, raw.grpc, raw.tcp) {
        (Some(path), ..) => Probe::Http(HttpProbe {
            path: path.value.0,
            host,
            headers: policy::pairs(&raw.headers),
            expect: match &raw.expect {
                Some(ranges) => ranges.value.0.iter().map(|range| (range.value.0, range.value.1)).collect(),
                None => vec![defaults::EXPECTED_STATUSES],
            },
            body: raw.body.map(|text| text.value.0),
        }),
        (None, Some(service), _) => Probe::Grpc { service: service.value.0, host },
        (None, None, Some(_)) => Probe::Tcp,
        (None, None, None) => return None,
    };
    let mut check = HealthCheck::new(probe);
    check.interval = positive(&raw.interval, check.interval);
    check.timeout = positive(&raw.timeout, check.timeout);
    if let Some(failures) = raw.unhealthy_after {
        check.unhealthy_after = u32::try_from(failures.value.0).unwrap_or(u32::MAX);
    }
    if let Some(successes) = raw.healthy_after {
        check.healthy_after = u32::try_from(successes.value.0).unwrap_or(u32::MAX);
    }
    check.port = raw.port.and_then(|port| u16::try_from(port.value.0).ok());
    Some(check)
}

fn refuse_keys_of_other_checks(raw: &RawHealthCheck, report: &mut Report) {
    let over = match (&raw.tcp, &raw.grpc) {
        (Some(_), _) => "tcp",
        (None, Some(_)) => "grpc",
        (None, None) => return,
    };
    for key in raw.written() {
        let hint = match key.key {
            "expect" | "headers" | "body" => "it belongs to `http`",
            "host" if over == "tcp" => "it belongs to `http` and `grpc`",
            _ => continue,
        };
        let wrong = Wrong::new(format!("`{}` has no effect in a {over} health check", key.key));
        report.add(key.location, wrong.hint(hint));
    }
}

fn outlier(raw: RawOutlierObject) -> Outlier {
    let mut outlier = Outlier::default();
    if let Some(answers) = raw.consecutive_5xx {
        outlier.consecutive_5xx = u32::try_from(answers.value.0).unwrap_or(u32::MAX);
    }
    outlier.eject_for = positive(&raw.eject_for, outlier.eject_for);
    if let Some(share) = raw.max_ejected {
        outlier.max_ejected = share.value.0;
    }
    outlier
}

fn limits(raw: RawClusterLimits) -> ClusterLimits {
    let mut limits = ClusterLimits::default();
    limits.connections_max = raw.connections.map(|connections| count(connections.value.0)).or(limits.connections_max);
    if let Some(pending) = raw.pending {
        limits.pending_max = count(pending.value.0);
    }
    limits.pending_timeout = positive(&raw.pending_timeout, limits.pending_timeout);
    if let Some(streams) = raw.streams_per_connection {
        limits.streams_per_connection_max = u32::try_from(streams.value.0).unwrap_or(u32::MAX);
    }
    limits
}
