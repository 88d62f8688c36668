//! GatewayParameters: our own kind, with the settings of a class or a Gateway. Its definition is in `deploy/steelyard/crds`, and the API
//! server checks objects against it. [`crate::translate`] checks them again, because a cluster may have a newer definition.

use serde::Deserialize;

use super::{NoStatus, OWN_GROUP, Others, object};

object! {
    /// Settings of a GatewayClass, an IngressClass or a Gateway.
    GatewayParameters in OWN_GROUP, "gatewayparameters", ParametersSpec, NoStatus, ["v1alpha1"]
}

/// The fields of GatewayParameters. An absent field leaves the setting to the next level: that of a Gateway to its class, and that of a
/// class to the arguments of the controller.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParametersSpec {
    /// What is written to the statuses as the address. For classes only.
    pub publish: Option<PublishSpec>,
    /// The pools for the addresses of Gateways. For classes only.
    pub address_pools: Option<Vec<String>>,
    /// The certificate for hosts of Ingresses that have none of their own. For classes only.
    pub default_certificate: Option<NamespacedName>,
    /// How clients are treated.
    pub clients: ClientSettings,
    /// How clients of single ports are treated.
    pub per_port: Vec<PortClients>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// The source of the addresses in statuses: either of the two.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PublishSpec {
    /// Addresses or names.
    pub addresses: Option<Vec<String>>,
    /// The Service by which clients come.
    pub service: Option<NamespacedName>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// The namespace and name of an object.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NamespacedName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// The settings for clients of one port.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PortClients {
    /// The port.
    pub port: u16,
    /// The settings. Those that it does not set are those of all ports.
    pub clients: ClientSettings,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// How the clients of a listener are treated. Each field means what the field of the same meaning in a configuration file means.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientSettings {
    /// `Required` or `Off`.
    pub proxy_protocol: Option<String>,
    /// Addresses and networks.
    pub trusted_proxies: Option<Vec<String>>,
    /// `XForwarded`, `Forwarded`, `Both`, `IngressNginx` or `Off`.
    pub forwarded_headers: Option<String>,
    /// Endpoints get the client's address in `X-Real-IP`.
    pub x_real_ip: Option<bool>,
    /// `Any`, `Underscores` or `Strict`.
    pub header_names: Option<String>,
    /// Requests get ids.
    pub request_id: Option<RequestIdSettings>,
    /// `1.2` or `1.3`.
    pub min_tls_version: Option<String>,
    /// Limits on what clients may send.
    pub limits: ClientLimits,
    /// Limits on the time that they may take.
    pub timeouts: ClientTimeouts,
    /// How paths are compared and forwarded.
    pub paths: ClientPaths,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// How requests get their ids.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RequestIdSettings {
    /// `Trusted`, `Always`, `Never`, or `Off` for no ids.
    pub keep: Option<String>,
    /// Responses have the id, too.
    pub respond: Option<bool>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// Limits on what clients may send. Numbers are wide, so that one that is out of range is a fault of its object alone.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientLimits {
    /// Open connections.
    pub connections: Option<i64>,
    /// Open connections of one client.
    pub connections_per_client: Option<i64>,
    /// The size of the request line and the headers, such as `32Ki`.
    pub header_size: Option<String>,
    /// Header fields of one request.
    pub header_count: Option<i64>,
    /// The size of a request body.
    pub body_size: Option<String>,
    /// Requests on one connection.
    pub requests_per_connection: Option<i64>,
    /// Concurrent requests on one HTTP/2 connection.
    pub streams_per_connection: Option<i64>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// Limits on the time that clients may take. Each is a duration of GEP-2257, such as `1m30s`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientTimeouts {
    /// Until the headers of a request, or a TLS handshake, are complete.
    pub header: Option<String>,
    /// The longest pause within a body.
    pub stall: Option<String>,
    /// Between two requests of a connection; of a connection that is not HTTP, without any bytes.
    pub idle: Option<String>,
    /// The same within a tunnel (WebSocket).
    pub tunnel_idle: Option<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}

/// How paths are compared with those of routes, and forwarded.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientPaths {
    /// `//` is `/`.
    pub merge_slashes: Option<bool>,
    /// `Received` or `Normal`.
    pub forward: Option<String>,
    /// A path that can be read in two ways is answered 400.
    pub refuse_ambiguous: Option<bool>,
    /// Unknown fields.
    #[serde(flatten)]
    pub others: Others,
}
