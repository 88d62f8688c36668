//! Conditions on a request, and the cluster that serves what meets them.

use std::time::Duration;

use crate::{ClusterId, HostMatcher, PathMatcher, ValueMatcher};

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
    /// All of these, against the decoded query parameters.
    pub query: Vec<ValueMatcher>,
    /// Who serves it.
    pub to: ClusterId,
    /// From the end of the request's headers to the end of the response's; then 504. `None`: no limit.
    pub timeout: Option<Duration>,
}
