//! Traces.

use std::path::Path;
use std::sync::Arc;

use model::{Cluster, Tracing};

use super::{ClusterIds, otlp};
use crate::defaults;
use crate::diagnostic::Report;
use crate::raw::RawTracing;
use crate::read::{Flag, Located};

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
