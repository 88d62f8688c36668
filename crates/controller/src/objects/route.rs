//! HTTPRoute, GRPCRoute, TLSRoute, TCPRoute, UDPRoute.

use serde::{Deserialize, Serialize};

use super::{ObjectRef, Others, RouteStatus, Text, object};

object! {
    /// Conditions on HTTP requests, and who serves them.
    HTTPRoute, "httproutes", RouteSpec<HttpRule>, RouteStatus, ["v1", "v1beta1"]
}
object! {
    /// Conditions on calls of gRPC, and who serves them.
    GRPCRoute, "grpcroutes", RouteSpec<GrpcRule>, RouteStatus, ["v1", "v1alpha2"]
}
object! {
    /// Names of TLS connections that are not opened, and who serves them.
    TLSRoute, "tlsroutes", RouteSpec<StreamRule>, RouteStatus, ["v1", "v1alpha3", "v1alpha2"]
}
object! {
    /// Who serves the TCP connections of a listener.
    TCPRoute, "tcproutes", RouteSpec<StreamRule>, RouteStatus, ["v1", "v1alpha2"]
}
object! {
    /// Who serves the UDP flows of a listener.
    UDPRoute, "udproutes", RouteSpec<StreamRule>, RouteStatus, ["v1", "v1alpha2"]
}

/// Of any route.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, bound(deserialize = "R: Default + Deserialize<'de>"))]
pub struct RouteSpec<R> {
    /// Where it wants to be attached.
    pub parent_refs: Box<[ParentRef]>,
    /// Names that it is for; empty: those of the listener.
    pub hostnames: Box<[String]>,
    /// Each holds for itself.
    pub rules: Box<[R]>,
    /// What nobody here knows.
    #[serde(flatten)]
    pub others: Others,
}

/// A Gateway or ListenerSet, or one listener of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParentRef {
    /// Absent: the Gateway API's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<Text>,
    /// Absent: `Gateway`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Text>,
    /// Absent: that of the route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Text>,
    /// Its name.
    pub name: Text,
    /// Only this listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<Text>,
    /// Only listeners on this port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// A rule of an HTTPRoute.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRule {
    /// For people.
    pub name: Option<Text>,
    /// One of these; empty: every request.
    pub matches: Box<[HttpMatch]>,
    /// What else happens.
    pub filters: Box<[HttpFilter]>,
    /// Who serves it.
    pub backend_refs: Box<[BackendRef]>,
    /// How long it may take.
    pub timeouts: Option<Timeouts>,
    /// What nobody here knows.
    #[serde(flatten)]
    pub others: Others,
}

/// Conditions that must all hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpMatch {
    /// On the path; absent: the prefix `/`.
    pub path: Option<PathMatch>,
    /// On headers.
    pub headers: Box<[ValueMatch]>,
    /// On the query.
    pub query_params: Box<[ValueMatch]>,
    /// The method.
    pub method: Option<Text>,
    /// What nobody here knows.
    #[serde(flatten)]
    pub others: Others,
}

/// A condition on a path.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PathMatch {
    /// `Exact`, `PathPrefix` or `RegularExpression`; absent: `PathPrefix`.
    #[serde(rename = "type")]
    pub kind: Option<Text>,
    /// Absent: `/`.
    pub value: Option<Text>,
}

/// A condition on a named value.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ValueMatch {
    /// `Exact` or `RegularExpression`; absent: `Exact`.
    #[serde(rename = "type")]
    pub kind: Option<Text>,
    /// Which value.
    pub name: Text,
    /// What it must be.
    pub value: Text,
}

/// Something that is done to a request or a response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpFilter {
    /// Such as `RequestRedirect`; it says which of the others is there.
    #[serde(rename = "type")]
    pub kind: String,
    /// What the endpoint gets.
    pub request_header_modifier: Option<HeaderModifier>,
    /// What the client gets.
    pub response_header_modifier: Option<HeaderModifier>,
    /// Who gets a copy.
    pub request_mirror: Option<MirrorFilter>,
    /// Where the client is sent.
    pub request_redirect: Option<RedirectFilter>,
    /// What the endpoint is asked for.
    pub url_rewrite: Option<RewriteFilter>,
}

/// Headers exchanged, put in, taken out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HeaderModifier {
    /// In place of those of the name.
    pub set: Vec<HeaderValue>,
    /// One more.
    pub add: Vec<HeaderValue>,
    /// Names.
    pub remove: Vec<String>,
}

/// A header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HeaderValue {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// Who gets a copy, and how much.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MirrorFilter {
    /// A Service.
    pub backend_ref: BackendRef,
    /// Of a hundred; absent: all.
    pub percent: Option<u32>,
    /// The same as a fraction.
    pub fraction: Option<Fraction>,
}

/// A share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Fraction {
    /// So many.
    pub numerator: u32,
    /// Of so many; absent: a hundred.
    pub denominator: Option<u32>,
}

/// Where the client is sent. What is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RedirectFilter {
    /// `http` or `https`.
    pub scheme: Option<String>,
    /// A name.
    pub hostname: Option<String>,
    /// Another path.
    pub path: Option<PathModifier>,
    /// Another port.
    pub port: Option<u16>,
    /// Absent: 302.
    pub status_code: Option<u16>,
}

/// What the endpoint is asked for instead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RewriteFilter {
    /// The `Host`.
    pub hostname: Option<String>,
    /// Another path.
    pub path: Option<PathModifier>,
}

/// Another path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PathModifier {
    /// `ReplaceFullPath` or `ReplacePrefixMatch`.
    #[serde(rename = "type")]
    pub kind: String,
    /// For the one.
    pub replace_full_path: Option<String>,
    /// For the other.
    pub replace_prefix_match: Option<String>,
}

/// How long a request may take: durations as GEP-2257 writes them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Timeouts {
    /// From the client's request to the end of the response.
    pub request: Option<Text>,
    /// Of one try.
    pub backend_request: Option<Text>,
}

/// Who serves, and how much of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct BackendRef {
    /// The object, a Service if it says nothing else.
    #[serde(flatten)]
    pub object: ObjectRef,
    /// Of the Service.
    pub port: Option<u16>,
    /// Share of the rule's requests; absent: 1.
    pub weight: Option<u32>,
    /// Done to what goes there alone.
    pub filters: Box<[HttpFilter]>,
}

/// A rule of a GRPCRoute.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRule {
    /// For people.
    pub name: Option<Text>,
    /// One of these; empty: every call.
    pub matches: Box<[GrpcMatch]>,
    /// What else happens.
    pub filters: Box<[HttpFilter]>,
    /// Who serves it.
    pub backend_refs: Box<[BackendRef]>,
    /// What nobody here knows.
    #[serde(flatten)]
    pub others: Others,
}

/// Conditions that must all hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GrpcMatch {
    /// On service and method.
    pub method: Option<GrpcMethod>,
    /// On metadata.
    pub headers: Box<[ValueMatch]>,
    /// What nobody here knows.
    #[serde(flatten)]
    pub others: Others,
}

/// A service, a method, or both.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GrpcMethod {
    /// `Exact` or `RegularExpression`; absent: `Exact`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// With its package; absent: any.
    pub service: Option<String>,
    /// Absent: any.
    pub method: Option<String>,
}

/// A rule of a TLSRoute, TCPRoute or UDPRoute.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamRule {
    /// Who serves it.
    pub backend_refs: Box<[BackendRef]>,
    /// What nobody here knows.
    #[serde(flatten)]
    pub others: Others,
}
