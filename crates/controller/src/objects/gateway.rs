//! GatewayClass, Gateway, ListenerSet.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

use super::{Condition, Others, Text, object};

object! {
    /// A sort of Gateway, and who looks after it.
    GatewayClass, "gatewayclasses", GatewayClassSpec, GatewayClassStatus, ["v1", "v1beta1"]
}
object! {
    /// Listeners, and where they are.
    Gateway, "gateways", GatewaySpec, GatewayStatus, ["v1", "v1beta1"]
}
object! {
    /// More listeners for a Gateway, from whoever the Gateway allows.
    ListenerSet, "listenersets", ListenerSetSpec, GatewayStatus, ["v1"]
}

/// Of a GatewayClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayClassSpec {
    /// Who looks after Gateways of this class.
    pub controller_name: String,
    /// More about the class.
    pub parameters_ref: Option<ObjectRef>,
}

/// Of a GatewayClass.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayClassStatus {
    /// What was found.
    pub conditions: Vec<Condition>,
    /// What this implementation can do beyond the core, in order.
    pub supported_features: Vec<SupportedFeature>,
}

/// One feature, named as the conformance suite names it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct SupportedFeature {
    /// Its name.
    pub name: String,
}

/// Of a Gateway.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewaySpec {
    /// Its GatewayClass.
    pub gateway_class_name: String,
    /// Where connections come in.
    pub listeners: Vec<ListenerSpec>,
    /// Addresses that are asked for; empty: whichever.
    pub addresses: Vec<GatewayAddress>,
    /// Which ListenerSets may add to it.
    pub allowed_listeners: Option<AllowedListeners>,
    /// Certificates asked of clients, and shown to endpoints.
    pub tls: Option<GatewayTls>,
    /// For what an implementation makes for the Gateway. Nothing is made here but addresses.
    pub infrastructure: Option<Infrastructure>,
    /// What nobody here knows.
    #[serde(flatten)]
    pub others: Others,
}

/// Labels and annotations for what is made, and parameters.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Infrastructure {
    /// More about the Gateway.
    pub parameters_ref: Option<ObjectRef>,
}

/// TLS of a whole Gateway.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GatewayTls {
    /// Towards endpoints.
    pub backend: Option<serde_json::Value>,
    /// Towards clients.
    pub frontend: Option<FrontendTls>,
    /// What nobody here knows.
    #[serde(flatten)]
    pub others: Others,
}

/// What is asked of clients.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FrontendTls {
    /// On every port that is not among the others.
    pub default: ClientTls,
    /// On single ports.
    pub per_port: Vec<PortTls>,
    /// What nobody here knows.
    #[serde(flatten)]
    pub others: Others,
}

/// What is asked on one port.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PortTls {
    /// Which.
    pub port: u16,
    /// What.
    pub tls: ClientTls,
}

/// What is asked of the clients of a listener.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClientTls {
    /// A certificate; absent: nothing.
    pub validation: Option<ClientValidation>,
    /// What nobody here knows.
    #[serde(flatten)]
    pub others: Others,
}

/// By whom the certificates of clients must have been signed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientValidation {
    /// ConfigMaps with a `ca.crt`.
    pub ca_certificate_refs: Vec<ObjectRef>,
    /// `AllowValidOnly` or `AllowInsecureFallback`; absent: the former.
    pub mode: Option<String>,
    /// What nobody here knows.
    #[serde(flatten)]
    pub others: Others,
}

/// Which ListenerSets.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllowedListeners {
    /// Those of these namespaces; none, if nothing is said.
    pub namespaces: Option<Namespaces>,
}

/// Namespaces, told in one of several ways.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Namespaces {
    /// `All`, `Same`, `Selector` or `None`.
    pub from: Option<String>,
    /// By their labels.
    pub selector: Option<LabelSelector>,
}

/// An address of a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct GatewayAddress {
    /// `IPAddress`, `Hostname`, or another; absent: `IPAddress`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The address; absent: any of the type.
    pub value: Option<String>,
}

/// Where connections come in.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerSpec {
    /// Unique in its Gateway or ListenerSet.
    pub name: String,
    /// The names served; absent: any.
    pub hostname: Option<String>,
    /// Where.
    pub port: u16,
    /// What is spoken: `HTTP`, `HTTPS`, `TLS`, `TCP`, `UDP`, or another.
    pub protocol: String,
    /// Certificates.
    pub tls: Option<ListenerTlsSpec>,
    /// Who may attach.
    pub allowed_routes: Option<AllowedRoutes>,
    /// What nobody here knows.
    #[serde(flatten)]
    pub others: Others,
}

/// Certificates of a listener.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerTlsSpec {
    /// `Terminate` or `Passthrough`; absent: `Terminate`.
    pub mode: Option<String>,
    /// Secrets.
    pub certificate_refs: Vec<ObjectRef>,
    /// What implementations make of it.
    pub options: BTreeMap<String, String>,
    /// What nobody here knows.
    #[serde(flatten)]
    pub others: Others,
}

/// Which routes may attach.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllowedRoutes {
    /// Those of these namespaces; absent: of the same.
    pub namespaces: Option<Namespaces>,
    /// Of these kinds; empty: those that the protocol can serve.
    pub kinds: Vec<RouteGroupKind>,
}

/// A kind of route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct RouteGroupKind {
    /// Absent: the Gateway API's.
    pub group: Option<String>,
    /// Such as `HTTPRoute`.
    pub kind: String,
}

/// Another object, by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ObjectRef {
    /// Absent or empty: the core group, or what the place says.
    pub group: Option<Text>,
    /// Absent: what the place says.
    pub kind: Option<Text>,
    /// Absent: the same namespace.
    pub namespace: Option<Text>,
    /// Its name.
    pub name: Text,
}

/// Of a Gateway or a ListenerSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayStatus {
    /// Where it is. A ListenerSet has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<GatewayAddress>,
    /// What was found.
    pub conditions: Vec<Condition>,
    /// The same, for each listener.
    pub listeners: Vec<ListenerStatus>,
    /// ListenerSets that were accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attached_listener_sets: Option<i32>,
}

/// Of a listener.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerStatus {
    /// Its name.
    pub name: String,
    /// Kinds that it serves.
    pub supported_kinds: Vec<RouteGroupKind>,
    /// Routes that it serves.
    pub attached_routes: i32,
    /// What was found.
    pub conditions: Vec<Condition>,
}

/// Of a ListenerSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerSetSpec {
    /// The Gateway.
    pub parent_ref: ObjectRef,
    /// Where connections come in.
    pub listeners: Vec<ListenerSpec>,
}
