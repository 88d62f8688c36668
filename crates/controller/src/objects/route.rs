//! HTTPRoute, GRPCRoute, TLSRoute, TCPRoute, UDPRoute.

use serde::{Deserialize, Serialize};

use super::{ObjectRef, Others, RouteStatus, Text, object};

object! {
    /// Conditions on HTTP requests, and their backends.
    HTTPRoute, "httproutes", RouteSpec<HttpRule>, RouteStatus, ["v1", "v1beta1"]
}
object! {
    /// Conditions on gRPC calls, and their backends.
    GRPCRoute, "grpcroutes", RouteSpec<GrpcRule>, RouteStatus, ["v1", "v1alpha2"]
}
object! {
    /// Server names of TLS connections that are passed through, and their backends.
    TLSRoute, "tlsroutes", RouteSpec<StreamRule>, RouteStatus, ["v1", "v1alpha3", "v1alpha2"]
}
object! {
    /// The backends of a listener's TCP connections.
    TCPRoute, "tcproutes", RouteSpec<StreamRule>, RouteStatus, ["v1", "v1alpha2"]
}
object! {
    /// The backends of a listener's UDP flows.
    UDPRoute, "udproutes", RouteSpec<StreamRule>, RouteStatus, ["v1", "v1alpha2"]
}

/// The fields of a route.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, bound(deserialize = "R: Default + Deserialize<'de>"))]
pub struct RouteSpec<R> {
    /// The parents that it wants to be attached to.
    pub parent_refs: Box<[ParentRef]>,
    /// Its hosts; empty means those of the listener.
    pub hostnames: Box<[String]>,
    /// The rules, independent of each other.
    pub rules: Box<[R]>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// A Gateway or ListenerSet, or one listener of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParentRef {
    /// The API group; absent means the Gateway API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<Text>,
    /// The kind; absent means `Gateway`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Text>,
    /// The namespace; absent means that of the route.
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
    /// The text for people.
    pub name: Option<Text>,
    /// Any of these conditions; empty means every request.
    pub matches: Box<[HttpMatch]>,
    /// Other actions on the request or response.
    pub filters: Box<[HttpFilter]>,
    /// The backends.
    pub backend_refs: Box<[BackendRef]>,
    /// The time limits.
    pub timeouts: Option<Timeouts>,
    /// When a request is sent again. Experimental channel (GEP-1731).
    pub retry: Option<RetrySpec>,
    /// How a client returns to the endpoint that served it. Experimental channel (GEP-1619).
    pub session_persistence: Option<Box<SessionSpec>>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// When a request is sent again.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RetrySpec {
    /// Statuses of responses.
    pub codes: Box<[u64]>,
    /// The most tries after the first.
    pub attempts: Option<u64>,
    /// The least time between two tries.
    pub backoff: Option<Text>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// How a client returns to the endpoint that served it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionSpec {
    /// The name of the cookie or header; absent means one of ours.
    pub session_name: Option<String>,
    /// How long a session lasts at most.
    pub absolute_timeout: Option<String>,
    /// `Cookie` (the default) or `Header`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// For `Cookie`.
    pub cookie_config: Option<SessionCookie>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// The cookie of a session.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionCookie {
    /// `Session` (the default) or `Permanent`.
    pub lifetime_type: Option<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// Conditions that must all hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpMatch {
    /// The path; absent means the prefix `/`.
    pub path: Option<PathMatch>,
    /// The headers.
    pub headers: Box<[ValueMatch]>,
    /// The query parameters.
    pub query_params: Box<[ValueMatch]>,
    /// The method.
    pub method: Option<Text>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// A condition on a path.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PathMatch {
    /// `Exact`, `PathPrefix` (the default) or `RegularExpression`.
    #[serde(rename = "type")]
    pub kind: Option<Text>,
    /// The path; absent means `/`.
    pub value: Option<Text>,
}

/// A condition on a named value.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ValueMatch {
    /// `Exact` (the default) or `RegularExpression`.
    #[serde(rename = "type")]
    pub kind: Option<Text>,
    /// The name of the value.
    pub name: Text,
    /// The text or the expression.
    pub value: Text,
}

/// An action on a request or a response.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpFilter {
    /// Such as `RequestRedirect`. It says which of the other fields is set.
    #[serde(rename = "type")]
    pub kind: String,
    /// Changes to the headers that the endpoint gets.
    pub request_header_modifier: Option<HeaderModifier>,
    /// Changes to the headers that the client gets.
    pub response_header_modifier: Option<HeaderModifier>,
    /// The backend that gets a copy.
    pub request_mirror: Option<MirrorFilter>,
    /// The redirect.
    pub request_redirect: Option<RedirectFilter>,
    /// The rewrite of the request.
    pub url_rewrite: Option<RewriteFilter>,
    /// The scripts of other origins that may use the rule.
    pub cors: Option<Box<CorsFilter>>,
    /// The service that is asked about each request. Experimental channel (GEP-1494).
    pub external_auth: Option<Box<ExternalAuthFilter>>,
}

/// A service that is asked about each request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExternalAuthFilter {
    /// `HTTP` or `GRPC`.
    pub protocol: String,
    /// The Service.
    pub backend_ref: BackendRef,
    /// For `GRPC`.
    pub grpc: Option<AuthHeaders>,
    /// For `HTTP`.
    pub http: Option<AuthHeaders>,
    /// How much of the body it gets; absent means nothing.
    pub forward_body: Option<ForwardBody>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// What the service gets of a request, and the endpoint of its answer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthHeaders {
    /// In front of the path of the client's request. Only HTTP.
    pub path: String,
    /// The headers of the request.
    pub allowed_headers: Vec<String>,
    /// The headers of the answer; empty means all. Only HTTP.
    pub allowed_response_headers: Vec<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// How much of a body the service gets.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ForwardBody {
    /// In bytes; 0 means nothing.
    pub max_size: u32,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// The scripts of other origins that may use a rule (GEP-1767).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CorsFilter {
    /// Their origins, with wildcards; `*` means all.
    pub allow_origins: Vec<String>,
    /// Whether browsers may send credentials.
    pub allow_credentials: bool,
    /// The methods that they may use; `*` means all.
    pub allow_methods: Vec<String>,
    /// The headers that they may set; `*` means all.
    pub allow_headers: Vec<String>,
    /// The headers that they may read; `*` means all.
    pub expose_headers: Vec<String>,
    /// How long browsers may remember this, in seconds; absent means 5.
    pub max_age: Option<u32>,
}

/// Changes to headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HeaderModifier {
    /// Replace all headers of the name.
    pub set: Vec<HeaderValue>,
    /// Add a header.
    pub add: Vec<HeaderValue>,
    /// The names of the headers to remove.
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

/// The backend that gets a copy, and the share of requests.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MirrorFilter {
    /// A Service.
    pub backend_ref: BackendRef,
    /// The percentage of requests; absent means all.
    pub percent: Option<u32>,
    /// The share as a fraction.
    pub fraction: Option<Fraction>,
}

/// A share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Fraction {
    /// The numerator.
    pub numerator: u32,
    /// The denominator; absent means 100.
    pub denominator: Option<u32>,
}

/// A redirect. Absent parts of the URL stay the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RedirectFilter {
    /// `http` or `https`.
    pub scheme: Option<String>,
    /// The host.
    pub hostname: Option<String>,
    /// The new path.
    pub path: Option<PathModifier>,
    /// The new port.
    pub port: Option<u16>,
    /// The status; absent means 302.
    pub status_code: Option<u16>,
}

/// A rewrite of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RewriteFilter {
    /// The new `Host`.
    pub hostname: Option<String>,
    /// The new path.
    pub path: Option<PathModifier>,
}

/// The new path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PathModifier {
    /// `ReplaceFullPath` or `ReplacePrefixMatch`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The path for `ReplaceFullPath`.
    pub replace_full_path: Option<String>,
    /// The prefix for `ReplacePrefixMatch`.
    pub replace_prefix_match: Option<String>,
}

/// The time limits of a request, as durations in the format of GEP-2257.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Timeouts {
    /// From the client's request to the end of the response.
    pub request: Option<Text>,
    /// For one try.
    pub backend_request: Option<Text>,
}

/// A backend and its share.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct BackendRef {
    /// The object, by default a Service.
    #[serde(flatten)]
    pub object: ObjectRef,
    /// The port of the Service.
    pub port: Option<u16>,
    /// Its share of the rule's requests; absent means 1.
    pub weight: Option<u32>,
    /// Actions on requests for this backend only.
    pub filters: Box<[HttpFilter]>,
}

/// A rule of a GRPCRoute.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRule {
    /// The text for people.
    pub name: Option<Text>,
    /// Any of these conditions; empty means every call.
    pub matches: Box<[GrpcMatch]>,
    /// Other actions on the request or response.
    pub filters: Box<[HttpFilter]>,
    /// The backends.
    pub backend_refs: Box<[BackendRef]>,
    /// How a client returns to the endpoint that served it. Experimental channel (GEP-1619).
    pub session_persistence: Option<Box<SessionSpec>>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// Conditions that must all hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GrpcMatch {
    /// The service and the method.
    pub method: Option<GrpcMethod>,
    /// The metadata.
    pub headers: Box<[ValueMatch]>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// A service, a method, or both.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GrpcMethod {
    /// `Exact` (the default) or `RegularExpression`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The service with its package; absent means any.
    pub service: Option<String>,
    /// The method; absent means any.
    pub method: Option<String>,
}

/// A rule of a TLSRoute, TCPRoute or UDPRoute.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamRule {
    /// The backends.
    pub backend_refs: Box<[BackendRef]>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}
