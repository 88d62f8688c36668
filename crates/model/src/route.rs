//! Conditions on a request, and what becomes of those that meet them.

use std::time::Duration;

use crate::{GrpcMatcher, HostMatcher, PathMatcher, RouteAction, RoutePolicy, ValueMatcher};

/// One entry of a listener's routing table. All conditions must hold; an empty list of a kind always does.
#[derive(Clone, Debug)]
pub struct Route {
    /// The label of its metrics: the `name` in the file, else made from its conditions (`shop.example.com/api/`); unique in its listener.
    pub name: String,
    /// One of these.
    pub hosts: Vec<HostMatcher>,
    /// The path without the query.
    pub path: PathMatcher,
    /// One of these; case matters (RFC 9110 section 9.1).
    pub methods: Vec<String>,
    /// All of these.
    pub headers: Vec<ValueMatcher>,
    /// All of these; case matters in the names of cookies.
    pub cookies: Vec<ValueMatcher>,
    /// All of these, against the decoded query parameters.
    pub query: Vec<ValueMatcher>,
    /// A call of gRPC: its content type says so. `path` and `methods` are then those of the service or method.
    pub grpc: Option<GrpcMatcher>,
    /// Who serves it.
    pub to: RouteAction,
    /// From the end of the request's headers to the end of the response's; then 504. `None`: no limit.
    pub timeout: Option<Duration>,
    /// What else is done.
    pub policy: RoutePolicy,
}

impl Route {
    /// The route that takes every request, and does nothing to it.
    pub fn to_all(name: impl Into<String>, to: RouteAction) -> Self {
        Self {
            name: name.into(),
            hosts: Vec::new(),
            path: PathMatcher::Prefix("/".to_owned()),
            methods: Vec::new(),
            headers: Vec::new(),
            cookies: Vec::new(),
            query: Vec::new(),
            grpc: None,
            to,
            timeout: None,
            policy: RoutePolicy::default(),
        }
    }
}
