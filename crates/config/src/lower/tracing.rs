//! Traces.

use std::path::Path;
use std::sync::Arc;

use model::{Cluster, RouteTracing, Tracing};

use super::{ClusterIds, otlp};
use crate::defaults;
use crate::diagnostic::{Report, Wrong};
use crate::raw::{RawFile, RawRouteTracing, RawTracing};
use crate::read::{Flag, Keyed, Located};

/// Returns `None` if the cluster is missing; the report says so. `clusters` are those of the file, if all of them could be read.
pub fn tracing(
    raw: &RawTracing,
    ids: &ClusterIds,
    clusters: &[Cluster],
    base: &Path,
    report: &mut Report,
) -> Option<Arc<Tracing>> {
    let is_set = |flag: &Option<Located<Flag>>| flag.as_ref().is_some_and(|flag| flag.value.0);
    Some(Arc::new(Tracing {
        otlp: otlp::otlp(&raw.into(), ids, clusters, base, report)?,
        sampling: raw.sampling.as_ref().map_or(defaults::SAMPLING, |share| share.value.0),
        trust_client_sampling: is_set(&raw.trust_client_sampling),
        query: is_set(&raw.query),
    }))
}

/// What a route says.
pub fn route(raw: &RawRouteTracing, report: &mut Report) -> RouteTracing {
    let is_on = |flag: &Option<Located<Flag>>| flag.as_ref().is_none_or(|flag| flag.value.0);
    let enabled = is_on(&raw.enabled);
    for written in raw.written().iter().filter(|written| !enabled && written.key != "enabled") {
        let wrong = Wrong::new(format!("`{}` has no effect with `enabled: false`", written.key));
        report.add(written.location, wrong.hint("remove one of them"));
    }
    RouteTracing {
        enabled,
        sampling: raw.sampling.as_ref().map(|share| share.value.0),
        continues: is_on(&raw.continue_trace),
        span_name: raw.span_name.as_ref().map(|name| name.value.0.clone()).unwrap_or_default(),
    }
}

/// Refuses what routes say about traces that there are none of.
pub fn refuse_without_traces(raw: &RawFile, report: &mut Report) {
    if raw.tracing.is_some() {
        return;
    }
    let listeners =
        raw.listeners.iter().flat_map(|listeners| &listeners.value.0).filter_map(|named| named.value.as_ref());
    for route in listeners.flat_map(|listener| &listener.routes).flat_map(|routes| &routes.value.0) {
        if let Some(tracing) = &route.value.tracing {
            let wrong = Wrong::new("`tracing` of a route has no effect, because the file has none of its own");
            report.add(tracing.location, wrong.hint("add `tracing: {to: CLUSTER}` at the top of the file"));
        }
    }
}
