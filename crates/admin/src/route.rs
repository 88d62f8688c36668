//! Which route would take a request, and why not the others.

use serde::{Deserialize, Serialize};

/// Routes that a report names besides the one that takes the request. Those that nearly take it come first.
pub const OTHERS_MAX: usize = 50;

/// A request that nobody sends, as a person writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteQuestion {
    /// The listener's name; empty if there is only one.
    pub listener: String,
    /// `GET`.
    pub method: String,
    /// The host.
    pub host: String,
    /// The path and the query.
    pub path: String,
    /// Header fields, as `name: value`.
    pub headers: Vec<String>,
}

/// What would happen to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteReport {
    /// [`crate::STATUS_VERSION`].
    pub version: u32,
    /// Path and query as the routes see them.
    pub target: String,
    /// The route that takes it; `None`: it would be answered 404.
    pub route: Option<String>,
    /// Where that sends it, as in the status; empty if there is no route.
    pub to: String,
    /// Other routes, at most [`OTHERS_MAX`], and why they do not take it.
    pub others: Vec<OtherRoute>,
    /// The number of routes that are not among them.
    pub more: usize,
}

/// A route that does not take the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherRoute {
    /// Its name.
    pub route: String,
    /// Why not, as a sentence.
    pub why: String,
}
