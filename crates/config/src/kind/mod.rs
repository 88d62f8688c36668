//! TrafficPolicy: the kind of Kubernetes that has the keys of a route and of a cluster.
//!
//! The tables of keys of [`crate::raw`] define it, as they define the file: a key that a route or a cluster of the file gets is a field of the
//! kind, unless `shape` leaves it out. `openapi` writes the definition of the kind, `read` turns objects into the model by the reader and
//! the lowering of the file, and `apply` puts policies over what a route or a Service says itself. It does not know to which objects a
//! policy applies.

mod apply;
mod openapi;
mod read;
mod shape;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use model::{Cluster, FixedResponse, Page, PageBody, RoutePolicy};

pub use apply::{apply_to_cluster, apply_to_route};
pub use openapi::definition;

/// A network in a list, and in the table that is made from it.
const NETWORK_BYTES: usize = 64;

/// What one policy sets.
#[derive(Clone, Debug)]
pub struct TrafficPolicy {
    route: RoutePart,
    cluster: ClusterPart,
}

/// What it sets of routes.
#[derive(Clone, Debug, Default)]
struct RoutePart {
    /// The keys of the file that were written.
    written: BTreeSet<&'static str>,
    policy: RoutePolicy,
    timeout: Option<std::time::Duration>,
    respond: Option<FixedResponse>,
}

/// What it sets of clusters.
#[derive(Clone, Debug)]
struct ClusterPart {
    /// As for routes.
    written: BTreeSet<&'static str>,
    /// Without endpoints.
    values: Cluster,
}

impl TrafficPolicy {
    /// Reads the fields `route` and `cluster` of a spec.
    ///
    /// # Errors
    /// Returns everything that is wrong with them, each with its place.
    pub fn read(spec: &serde_json::Map<String, serde_json::Value>) -> Result<Self, Vec<String>> {
        read::policy(spec)
    }

    /// Whether it sets anything of routes.
    pub fn has_route(&self) -> bool {
        !self.route.written.is_empty()
    }

    /// Whether it sets anything of clusters.
    pub fn has_cluster(&self) -> bool {
        !self.cluster.written.is_empty()
    }

    /// Bytes that each route with this policy has of its lists and pages.
    pub fn route_bytes(&self) -> usize {
        let RoutePolicy { addresses, error_pages, .. } = &self.route.policy;
        let networks = (addresses.allow.len() + addresses.deny.len()) * NETWORK_BYTES;
        let page = |page: &Page| match &page.body {
            PageBody::Text(text) => text.len(),
            PageBody::File(_) => 0,
        };
        let pages: usize = error_pages.iter().map(|of| page(&of.page) + of.json.as_ref().map_or(0, String::len)).sum();
        networks
            + pages
            + self.route.respond.iter().filter_map(|respond| respond.page.as_ref()).map(page).sum::<usize>()
    }

    /// The fields that it sets: `route.timeout`.
    pub fn fields(&self) -> impl Iterator<Item = String> + '_ {
        let of = |part: &'static str, written: &BTreeSet<&'static str>| -> Vec<String> {
            written.iter().map(|key| format!("{part}.{}", shape::camel(key))).collect()
        };
        of("route", &self.route.written).into_iter().chain(of("cluster", &self.cluster.written))
    }
}
