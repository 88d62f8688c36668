//! TrafficPolicy: the kind of Kubernetes that has the keys of a route, of a cluster, and of the limits on a client.
//!
//! The tables of keys of [`crate::raw`] define it, as they define the file: a key that one of these gets in the file is a field of the
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
use std::sync::Arc;

use model::{Auth, ClientLimits, Cluster, FixedResponse, HeaderChanges, Page, PageBody, RoutePolicy};

pub use apply::{apply_to_clients, apply_to_cluster, apply_to_route};
pub use openapi::definition;

/// A network in a list, and in the table that is made from it.
const NETWORK_BYTES: usize = 64;

/// What one policy sets.
#[derive(Clone, Debug)]
pub struct TrafficPolicy {
    route: RoutePart,
    cluster: ClusterPart,
    clients: ClientsPart,
}

/// What it sets of routes.
#[derive(Clone, Debug, Default)]
struct RoutePart {
    /// The keys of the file that were written.
    written: BTreeSet<&'static str>,
    policy: RoutePolicy,
    timeout: Option<std::time::Duration>,
    respond: Option<FixedResponse>,
    /// The service of `external_auth`.
    authorizer: Option<ServiceRef>,
    /// The service of `global_rate_limit`.
    counter: Option<ServiceRef>,
}

/// A port of a Service that is asked about requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRef {
    /// The name of the Service.
    pub name: String,
    /// Its namespace; `None` means that of the policy.
    pub namespace: Option<String>,
    /// Its port.
    pub port: u16,
    /// Whether it is asked by gRPC, which needs HTTP/2.
    pub is_grpc: bool,
}

/// What it sets of clusters.
#[derive(Clone, Debug)]
struct ClusterPart {
    /// As for routes.
    written: BTreeSet<&'static str>,
    /// Without endpoints.
    values: Cluster,
}

/// What it sets of the clients of a Gateway.
#[derive(Clone, Debug, Default)]
struct ClientsPart {
    /// As for routes.
    written: BTreeSet<&'static str>,
    limits: ClientLimits,
}

impl TrafficPolicy {
    /// Reads the fields `route`, `cluster` and `clients` of a spec.
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

    /// Whether it decides what requests must prove, and what: the file of that is the name of a Secret.
    pub fn auth(&self) -> Option<Option<&Arc<Auth>>> {
        self.route.written.contains("auth").then_some(self.route.policy.auth.as_ref())
    }

    /// Whether it decides which service is asked about requests, and which.
    pub fn external_auth(&self) -> Option<Option<&ServiceRef>> {
        self.route.written.contains("external_auth").then_some(self.route.authorizer.as_ref())
    }

    /// Whether it decides which service counts requests, and which.
    pub fn global_rate_limit(&self) -> Option<Option<&ServiceRef>> {
        self.route.written.contains("global_rate_limit").then_some(self.route.counter.as_ref())
    }

    /// Whether the access log has no line for requests of its routes.
    pub fn is_unlogged(&self) -> bool {
        self.route.policy.is_unlogged
    }

    /// What it changes in the headers of all responses.
    pub fn all_response_headers(&self) -> &HeaderChanges {
        &self.route.policy.own_headers
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
        let clients = of("clients", &self.clients.written);
        of("route", &self.route.written).into_iter().chain(of("cluster", &self.cluster.written)).chain(clients)
    }
}
