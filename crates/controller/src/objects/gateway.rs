//! GatewayClass, Gateway, ListenerSet.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

use super::{Condition, Others, Text, object};

object! {
    /// A class of Gateways, and the controller that manages it.
    GatewayClass, "gatewayclasses", GatewayClassSpec, GatewayClassStatus, ["v1", "v1beta1"]
}
object! {
    /// Listeners and their addresses.
    Gateway, "gateways", GatewaySpec, GatewayStatus, ["v1", "v1beta1"]
}
object! {
    /// More listeners for a Gateway, from namespaces that the Gateway allows.
    ListenerSet, "listenersets", ListenerSetSpec, GatewayStatus, ["v1"]
}

/// The fields of a GatewayClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayClassSpec {
    /// The controller that manages Gateways of this class.
    pub controller_name: String,
    /// Parameters of the class.
    pub parameters_ref: Option<ObjectRef>,
}

/// The fields of a GatewayClass.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayClassStatus {
    /// The conditions.
    pub conditions: Vec<Condition>,
    /// The features that this implementation supports beyond the core, sorted.
    pub supported_features: Vec<SupportedFeature>,
}

/// One feature, with its name in the conformance suite.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct SupportedFeature {
    /// Its name.
    pub name: String,
}

/// The fields of a Gateway.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewaySpec {
    /// Its GatewayClass.
    pub gateway_class_name: String,
    /// The listeners.
    pub listeners: Vec<ListenerSpec>,
    /// The requested addresses; empty means any.
    pub addresses: Vec<GatewayAddress>,
    /// The ListenerSets that may add listeners.
    pub allowed_listeners: Option<AllowedListeners>,
    /// Certificates that clients must present, and that endpoints get.
    pub tls: Option<GatewayTls>,
    /// What the Gateway asks of the resources that are created for it.
    pub infrastructure: Option<Infrastructure>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// Labels and annotations for created resources, and parameters.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Infrastructure {
    /// Labels of every created resource.
    pub labels: BTreeMap<String, String>,
    /// Annotations of every created resource.
    pub annotations: BTreeMap<String, String>,
    /// Parameters of the Gateway.
    pub parameters_ref: Option<ObjectRef>,
}

/// The TLS settings of a Gateway.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GatewayTls {
    /// Towards endpoints.
    pub backend: Option<BackendTls>,
    /// Towards clients.
    pub frontend: Option<FrontendTls>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// What a Gateway presents to endpoints.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTls {
    /// A Secret with a certificate.
    pub client_certificate_ref: Option<ObjectRef>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// The requirements for clients.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FrontendTls {
    /// For every port that `per_port` does not name.
    pub default: ClientTls,
    /// For single ports.
    pub per_port: Vec<PortTls>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// The requirements for clients on one port.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PortTls {
    /// The port.
    pub port: u16,
    /// The requirements.
    pub tls: ClientTls,
}

/// The requirements for the clients of a listener.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClientTls {
    /// A certificate; absent means no requirement.
    pub validation: Option<ClientValidation>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// The CA that must have signed the certificates of clients.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientValidation {
    /// ConfigMaps with a `ca.crt`.
    pub ca_certificate_refs: Vec<ObjectRef>,
    /// `AllowValidOnly` (the default) or `AllowInsecureFallback`.
    pub mode: Option<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// The ListenerSets that may add listeners.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllowedListeners {
    /// Those of these namespaces; absent means none.
    pub namespaces: Option<Namespaces>,
}

/// Namespaces, selected in one of several ways.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Namespaces {
    /// `All`, `Same`, `Selector` or `None`.
    pub from: Option<String>,
    /// Selects namespaces by their labels.
    pub selector: Option<LabelSelector>,
}

/// An address of a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct GatewayAddress {
    /// `IPAddress` (the default), `Hostname`, or another.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The address; absent means any of the type.
    pub value: Option<String>,
}

/// The listeners.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerSpec {
    /// The name, unique in its Gateway or ListenerSet.
    pub name: String,
    /// The host that it serves; absent means any.
    pub hostname: Option<String>,
    /// The port.
    pub port: u16,
    /// The protocol: `HTTP`, `HTTPS`, `TLS`, `TCP`, `UDP`, or another.
    pub protocol: String,
    /// Certificates.
    pub tls: Option<ListenerTlsSpec>,
    /// The routes that may attach.
    pub allowed_routes: Option<AllowedRoutes>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// Certificates of a listener.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerTlsSpec {
    /// `Terminate` (the default) or `Passthrough`.
    pub mode: Option<String>,
    /// Secrets.
    pub certificate_refs: Vec<ObjectRef>,
    /// Options of the implementation.
    pub options: BTreeMap<String, String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// Which routes may attach.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllowedRoutes {
    /// Routes of these namespaces; absent means the same namespace.
    pub namespaces: Option<Namespaces>,
    /// Routes of these kinds; empty means all that the protocol can serve.
    pub kinds: Vec<RouteGroupKind>,
}

/// A kind of route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct RouteGroupKind {
    /// The API group; absent means the Gateway API.
    pub group: Option<String>,
    /// Such as `HTTPRoute`.
    pub kind: String,
}

/// A reference to another object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ObjectRef {
    /// The API group; absent or empty means the default of the field, mostly the core group.
    pub group: Option<Text>,
    /// The kind; absent means the default of the field.
    pub kind: Option<Text>,
    /// The namespace; absent means the same.
    pub namespace: Option<Text>,
    /// Its name.
    pub name: Text,
}

/// The status of a Gateway or a ListenerSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayStatus {
    /// Its addresses. A ListenerSet has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<GatewayAddress>,
    /// The conditions.
    pub conditions: Vec<Condition>,
    /// The conditions of each listener.
    pub listeners: Vec<ListenerStatus>,
    /// The number of accepted ListenerSets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attached_listener_sets: Option<i32>,
}

/// The status of a listener.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerStatus {
    /// Its name.
    pub name: String,
    /// The kinds that it serves.
    pub supported_kinds: Vec<RouteGroupKind>,
    /// The number of routes that it serves.
    pub attached_routes: i32,
    /// The conditions.
    pub conditions: Vec<Condition>,
}

/// The fields of a ListenerSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerSetSpec {
    /// The Gateway.
    pub parent_ref: ObjectRef,
    /// The listeners.
    pub listeners: Vec<ListenerSpec>,
}
