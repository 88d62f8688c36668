//! ReferenceGrant, BackendTLSPolicy.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Condition, ObjectRef, ParentRef, Text, object};

object! {
    /// Allows objects in other namespaces to refer to objects in this one.
    ReferenceGrant, "referencegrants", ReferenceGrantSpec, NoStatus, ["v1", "v1beta1"]
}
object! {
    /// TLS towards the endpoints of a Service.
    BackendTLSPolicy, "backendtlspolicies", BackendTlsSpec, PolicyStatus, ["v1", "v1alpha3"]
}

/// The status of kinds that have none.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct NoStatus {}

/// The fields of a ReferenceGrant.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReferenceGrantSpec {
    /// The objects that may refer.
    pub from: Vec<GrantFrom>,
    /// The objects that may be referred to.
    pub to: Vec<GrantTo>,
}

/// Objects that may refer to others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GrantFrom {
    /// Their group.
    pub group: String,
    /// Their kind.
    pub kind: String,
    /// Their namespace.
    pub namespace: String,
}

/// Objects that may be referred to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GrantTo {
    /// Their group; empty means the core group.
    pub group: String,
    /// Their kind.
    pub kind: String,
    /// The name; absent means all.
    pub name: Option<String>,
}

/// The fields of a BackendTLSPolicy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsSpec {
    /// Services, or ports of them.
    pub target_refs: Vec<PolicyTarget>,
    /// How to verify the certificates of endpoints.
    pub validation: BackendValidation,
    /// Options of the implementation.
    pub options: BTreeMap<String, String>,
}

/// The target of a policy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyTarget {
    /// The API group; empty means the core group.
    pub group: String,
    /// Such as `Service`.
    pub kind: String,
    /// The name, in the policy's namespace.
    pub name: String,
    /// The name of a port.
    pub section_name: Option<String>,
}

/// How to verify the certificates of endpoints.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendValidation {
    /// ConfigMaps with a `ca.crt`.
    pub ca_certificate_refs: Vec<ObjectRef>,
    /// `System` stands for the CA certificates that the host trusts.
    #[serde(rename = "wellKnownCACertificates")]
    pub well_known_ca_certificates: Option<String>,
    /// The name that we ask for and that the certificate must have.
    pub hostname: String,
    /// Other names, one of which the certificate must have instead.
    pub subject_alt_names: Vec<SubjectAltName>,
}

/// A name in a certificate.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SubjectAltName {
    /// `Hostname` or `URI`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The name of the type `Hostname`.
    pub hostname: Option<String>,
    /// The name of the type `URI`.
    pub uri: Option<String>,
}

/// The status of a policy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct PolicyStatus {
    /// An entry for each Gateway that it affects.
    pub ancestors: Vec<AncestorStatus>,
}

/// The conditions with respect to one Gateway.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AncestorStatus {
    /// The Gateway.
    pub ancestor_ref: ParentRef,
    /// The controller that wrote the entry.
    pub controller_name: Text,
    /// The conditions.
    pub conditions: Vec<Condition>,
}
