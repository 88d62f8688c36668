//! ingress-nginx: what its annotations, its ConfigMap and its flags mean here.
//!
//! `catalogue` has every annotation with a verdict, and `options` every key of the ConfigMap and every flag. [`Plan::of`] reads those of one
//! Ingress by ingress-nginx's rules of parsing and failure. The controller serves that plan, and [`Report`] prints it, so that a report
//! cannot disagree with what is served. Most of a plan is a TrafficPolicy: the policies of an Ingress are read, lowered and applied by the code
//! that does so for the kind. Nothing here knows a cluster.
//!
//! Where ingress-nginx fails open, this fails closed: if a key that keeps somebody out cannot be served, its routes answer 403.

mod alias;
mod backend;
mod catalogue;
mod gateway;
mod header_map;
mod options;
mod path;
mod plan;
mod prefix;
mod report;
mod snippet;
mod url;
mod value;

pub use backend::{Backend, filled};
pub use catalogue::{Bad, KEYS, Key, Verdict, find};
pub use gateway::{Written, written};
pub use header_map::{
    HeaderMap, HeaderMaps, KEYS as HEADER_MAP_KEYS, OPTIONS as HEADER_MAP_OPTIONS, named as named_header_map,
};
pub use options::{FLAGS, Globals, OPTIONS, Opt};
pub use path::regex_of;
pub(crate) use path::{is_expression, literal_of, pattern_of};
pub use plan::{
    Affinity, Canary, ClientTls, Compat, Errors, Finding, HeaderRule, Https, Known, Location, OutsideHost, OutsideUrl,
    Plan, ProxySsl, Server, ServiceUrl, Target, UpstreamProtocol, With, reach,
};
pub use prefix::{PREFIX, Prefix};
pub use report::{Format, OBJECTS_MAX, Report, Score, prefix_of, table};
pub use snippet::{Answer, Found, Like, LocationKind, ServerLocation, Step, Test, check_locations, found_in, of_path};
pub(crate) use value::cut;

/// The `controller` of ingress-nginx's IngressClasses.
pub const CONTROLLER: &str = "k8s.io/ingress-nginx";
