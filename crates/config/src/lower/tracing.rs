//! Traces.

use std::sync::Arc;

use model::{Cluster, ClusterProtocol, OtlpProtocol, Tracing};

use super::{ClusterIds, positive};
use crate::defaults;
use crate::diagnostic::{Report, Wrong, ticked};
use crate::raw::{OtlpName, RawTracing};

/// The most attributes of the resource: each export has all of them.
const ATTRIBUTES_MAX: usize = 64;

/// Returns `None` if the cluster is missing; the report says so. `clusters` are those of the file, if all of them could be read.
pub fn tracing(raw: &RawTracing, ids: &ClusterIds, clusters: &[Cluster], report: &mut Report) -> Option<Arc<Tracing>> {
    let name = raw.protocol.as_ref().map_or(OtlpName::Grpc, |protocol| protocol.value.0);
    if let (OtlpName::Grpc, Some(path)) = (name, &raw.path) {
        let wrong = Wrong::new("`path` has no effect: the path of a gRPC call is that of its method");
        report.add(path.location, wrong.hint("remove it, or add `protocol: http`"));
    }
    let to = raw.to.as_ref()?;
    let id = ids.find(to, report)?;
    if let Some(cluster) = clusters.iter().find(|cluster| cluster.name == to.value.0) {
        let wrong = match (name, cluster.protocol) {
            (OtlpName::Grpc, ClusterProtocol::H1) => Some((
                format!("the cluster {} speaks HTTP/1.1, and gRPC needs HTTP/2", ticked(&cluster.name)),
                "add `protocol: h2c`, or `protocol: h2` and `tls`, to the cluster; or send traces with `protocol: http`",
            )),
            (OtlpName::Http, ClusterProtocol::H2) => Some((
                format!(
                    "the cluster {} speaks HTTP/2, and traces with `protocol: http` use HTTP/1.1",
                    ticked(&cluster.name)
                ),
                "send traces with `protocol: grpc`, or remove `protocol` from the cluster",
            )),
            _ if cluster.send_proxy_protocol.is_some() => Some((
                format!("the cluster {} has `proxy_protocol`, and exports have no client", ticked(&cluster.name)),
                "give the collector a cluster of its own",
            )),
            _ => None,
        };
        if let Some((message, hint)) = wrong {
            report.add(to.location, Wrong::new(message).hint(hint));
        }
    }
    let attributes = raw.attributes.as_ref();
    if let Some(attributes) = attributes.filter(|attributes| attributes.value.0.len() > ATTRIBUTES_MAX) {
        let found = attributes.value.0.len();
        report.add(attributes.location, Wrong::new(format!("{found} attributes; the limit is {ATTRIBUTES_MAX}")));
    }
    let pairs = attributes.iter().flat_map(|attributes| &attributes.value.0);
    let is_set =
        |flag: &Option<crate::read::Located<crate::read::Flag>>| flag.as_ref().is_some_and(|flag| flag.value.0);
    Some(Arc::new(Tracing {
        to: id,
        protocol: match name {
            OtlpName::Grpc => OtlpProtocol::Grpc,
            OtlpName::Http => {
                let path = raw.path.as_ref().map_or(defaults::OTLP_PATH, |path| &path.value.0);
                OtlpProtocol::Http { path: path.to_owned() }
            }
        },
        host: raw.host.as_ref().map(|host| host.value.0.clone()),
        sampling: raw.sampling.as_ref().map_or(defaults::SAMPLING, |share| share.value.0),
        trust_client_sampling: is_set(&raw.trust_client_sampling),
        query: is_set(&raw.query),
        service: raw.service.as_ref().map_or(defaults::SERVICE, |name| &name.value.0).to_owned(),
        attributes: pairs.filter_map(|entry| Some((entry.name.0.clone(), entry.value.as_ref()?.0.clone()))).collect(),
        timeout: positive(&raw.timeout, defaults::OTLP_TIMEOUT),
    }))
}
