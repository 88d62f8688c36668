//! Collectors of OpenTelemetry: what is the same for traces and for logs.

use std::path::Path;
use std::sync::Arc;

use model::{Cluster, ClusterProtocol, Otlp, OtlpHeader, OtlpProtocol, Secret};

use super::{ClusterIds, positive};
use crate::defaults;
use crate::diagnostic::{Report, Wrong, ticked};
use crate::raw::{OtlpCompression, OtlpName, RawLogOtlp, RawSecretValue, RawTracing};
use crate::read::{Located, Named, OneOf};
use crate::text::{ChangedHeader, HeaderValue, HostHeader, HttpPath, Label, Positive, QueryName, Text};

/// The most attributes of the resource: each export has all of them.
const ATTRIBUTES_MAX: usize = 64;

/// The most further headers of an export.
const HEADERS_MAX: usize = 16;

/// Headers that exports have already.
const OURS: [&str; 4] = ["content-type", "content-encoding", "user-agent", "grpc-encoding"];

/// The keys of a collector.
pub struct Keys<'k> {
    /// What is sent, in the plural.
    what: &'static str,
    default_path: &'static str,
    to: &'k Option<Located<Label>>,
    protocol: &'k Option<Located<OneOf<OtlpName>>>,
    path: &'k Option<Located<HttpPath>>,
    host: &'k Option<Located<HostHeader>>,
    headers: &'k Option<Located<Named<ChangedHeader, RawSecretValue>>>,
    compression: &'k Option<Located<OneOf<OtlpCompression>>>,
    service: &'k Option<Located<Text>>,
    attributes: &'k Option<Located<Named<QueryName, HeaderValue>>>,
    timeout: &'k Option<Located<Positive>>,
}

impl<'k> From<&'k RawTracing> for Keys<'k> {
    fn from(raw: &'k RawTracing) -> Self {
        let RawTracing { to, protocol, path, host, headers, compression, service, attributes, timeout, .. } = raw;
        let (what, default_path) = ("traces", defaults::OTLP_PATH);
        Self { what, default_path, to, protocol, path, host, headers, compression, service, attributes, timeout }
    }
}

impl<'k> From<&'k RawLogOtlp> for Keys<'k> {
    fn from(raw: &'k RawLogOtlp) -> Self {
        let RawLogOtlp { to, protocol, path, host, headers, compression, service, attributes, timeout, .. } = raw;
        let (what, default_path) = ("logs", defaults::OTLP_LOGS_PATH);
        Self { what, default_path, to, protocol, path, host, headers, compression, service, attributes, timeout }
    }
}

/// Returns `None` if the cluster is missing; the report says so. `clusters` are those of the file, if all of them could be read.
pub fn otlp(
    keys: &Keys<'_>,
    ids: &ClusterIds,
    clusters: &[Cluster],
    base: &Path,
    report: &mut Report,
) -> Option<Arc<Otlp>> {
    let name = keys.protocol.as_ref().map_or(OtlpName::Grpc, |protocol| protocol.value.0);
    if let (OtlpName::Grpc, Some(path)) = (name, keys.path) {
        let wrong = Wrong::new("`path` has no effect: the path of a gRPC call is that of its method");
        report.add(path.location, wrong.hint("remove it, or add `protocol: http`"));
    }
    let to = keys.to.as_ref()?;
    let id = ids.find(to, report)?;
    if let Some(cluster) = clusters.iter().find(|cluster| cluster.name == to.value.0)
        && let Some(wrong) = cannot_be_spoken_to(name, cluster, keys.what)
    {
        report.add(to.location, wrong);
    }
    if let Some(attributes) = keys.attributes.as_ref().filter(|written| written.value.0.len() > ATTRIBUTES_MAX) {
        let found = attributes.value.0.len();
        report.add(attributes.location, Wrong::new(format!("{found} attributes; the limit is {ATTRIBUTES_MAX}")));
    }
    let pairs = keys.attributes.iter().flat_map(|attributes| &attributes.value.0);
    Some(Arc::new(Otlp {
        to: id,
        protocol: match name {
            OtlpName::Grpc => OtlpProtocol::Grpc,
            OtlpName::Http => {
                let path = keys.path.as_ref().map_or(keys.default_path, |path| &path.value.0);
                OtlpProtocol::Http { path: path.to_owned() }
            }
        },
        host: keys.host.as_ref().map(|host| host.value.0.clone()),
        headers: headers(keys.headers, base, report),
        gzip: keys.compression.as_ref().is_some_and(|compression| compression.value.0 == OtlpCompression::Gzip),
        service: keys.service.as_ref().map_or(defaults::SERVICE, |name| &name.value.0).to_owned(),
        attributes: pairs.filter_map(|entry| Some((entry.name.0.clone(), entry.value.as_ref()?.0.clone()))).collect(),
        timeout: positive(keys.timeout, defaults::OTLP_TIMEOUT),
    }))
}

fn cannot_be_spoken_to(name: OtlpName, cluster: &Cluster, what: &str) -> Option<Wrong> {
    let ticked_name = ticked(&cluster.name);
    let (message, hint) = match (name, cluster.protocol) {
        (OtlpName::Grpc, ClusterProtocol::H1) => (
            format!("the cluster {ticked_name} speaks HTTP/1.1, and gRPC needs HTTP/2"),
            format!(
                "add `protocol: h2c`, or `protocol: h2` and `tls`, to the cluster; or send {what} with `protocol: http`"
            ),
        ),
        (OtlpName::Http, ClusterProtocol::H2) => (
            format!("the cluster {ticked_name} speaks HTTP/2, and {what} with `protocol: http` use HTTP/1.1"),
            format!("send {what} with `protocol: grpc`, or remove `protocol` from the cluster"),
        ),
        _ if cluster.send_proxy_protocol.is_some() => (
            format!("the cluster {ticked_name} has `proxy_protocol`, and exports have no client"),
            "give the collector a cluster of its own".to_owned(),
        ),
        _ => return None,
    };
    Some(Wrong::new(message).hint(hint))
}

fn headers(
    raw: &Option<Located<Named<ChangedHeader, RawSecretValue>>>,
    base: &Path,
    report: &mut Report,
) -> Vec<(String, OtlpHeader)> {
    let Some(Located { location, value: Named(entries) }) = raw else { return Vec::new() };
    if entries.len() > HEADERS_MAX {
        report.add(*location, Wrong::new(format!("{} headers; the limit is {HEADERS_MAX}", entries.len())));
    }
    let mut made: Vec<(String, OtlpHeader)> = Vec::with_capacity(entries.len());
    for entry in entries {
        let name = entry.name.0.to_ascii_lowercase();
        if OURS.contains(&name.as_str()) || name.starts_with("grpc-") {
            let wrong = Wrong::new(format!("`headers` cannot set {}", ticked(&name)));
            report.add(*location, wrong.hint("exports have it already"));
        } else if made.iter().any(|(other, _)| *other == name) {
            report.add(*location, Wrong::new(format!("`headers` has {} twice", ticked(&name))));
        }
        let value = match &entry.value {
            Some(RawSecretValue::Text(text)) => OtlpHeader::Text(Secret(text.clone())),
            Some(RawSecretValue::File(file)) => match super::files::file(&file.file, base) {
                Some(path) => OtlpHeader::File(path),
                None => continue,
            },
            None => continue,
        };
        made.push((name, value));
    }
    made
}
