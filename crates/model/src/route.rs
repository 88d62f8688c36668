//! Conditions on a request, and the action for requests that meet them.

use std::time::Duration;

use crate::{Changes, GrpcMatcher, HeaderChanges, HostMatcher, PathMatcher, RouteAction, SharedPolicy, ValueMatcher};

/// One entry of a listener's routing table. All conditions must hold; an empty list always does.
#[derive(Clone, Debug)]
pub struct Route {
    /// A label of its metrics: the `name` in the file, or made from its conditions (`shop.example.com/api/`); unique in its listener.
    pub name: String,
    /// Any of these hosts.
    pub hosts: Vec<HostMatcher>,
    /// The path without the query.
    pub path: PathMatcher,
    /// Any of these methods; case matters (RFC 9110 section 9.1).
    pub methods: Vec<String>,
    /// All of these headers.
    pub headers: Vec<ValueMatcher>,
    /// All of these cookies; case matters in their names.
    pub cookies: Vec<ValueMatcher>,
    /// All of these query parameters, decoded.
    pub query: Vec<ValueMatcher>,
    /// All of these claims ([`claim_path`](crate::claim_path)) of the token that the listener demands.
    pub claims: Vec<ValueMatcher>,
    /// Only gRPC calls, recognised by their content type. `path` and `methods` are then those of the service or method.
    pub grpc: Option<GrpcMatcher>,
    /// The action.
    pub to: RouteAction,
    /// From the end of the request's headers to the end of the response's headers; then 504. `None` means no limit.
    pub timeout: Option<Duration>,
    /// The policies.
    pub policy: SharedPolicy,
}

impl Route {
    /// A route that takes every request, with the default policies.
    pub fn to_all(name: impl Into<String>, to: RouteAction) -> Self {
        Self {
            name: name.into(),
            hosts: Vec::new(),
            path: PathMatcher::Prefix("/".to_owned()),
            methods: Vec::new(),
            headers: Vec::new(),
            cookies: Vec::new(),
            query: Vec::new(),
            claims: Vec::new(),
            grpc: None,
            to,
            timeout: None,
            policy: SharedPolicy::default(),
        }
    }

    /// Changes the headers of all responses: those of endpoints, after what changes them already, and those that Steelyard makes itself.
    pub fn change_all_responses(&mut self, all: &HeaderChanges) {
        if all.is_empty() {
            return;
        }
        self.policy.own_headers = self.policy.own_headers.then(all);
        self.for_each_changes(|changes| changes.response_headers = changes.response_headers.then(all));
    }

    /// Applies a change to the changes of the route, and to those that replace them for single clusters.
    pub fn for_each_changes(&mut self, change: impl Fn(&mut Changes)) {
        change(&mut self.policy.changes);
        if let RouteAction::Clusters(clusters) = &mut self.to {
            clusters.iter_mut().filter_map(|cluster| cluster.changes.as_deref_mut()).for_each(change);
        }
    }

    /// What changes in requests that the cluster with this index gets, and in its responses.
    pub fn changes(&self, cluster: usize) -> &Changes {
        let own = self.to.shares().get(cluster).and_then(|share| share.changes.as_deref());
        own.unwrap_or(&self.policy.changes)
    }
}
