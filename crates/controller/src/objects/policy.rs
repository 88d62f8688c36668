//! ReferenceGrant, BackendTLSPolicy.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Condition, ObjectRef, ParentRef, Text, object};

object! {
    /// Who may name objects of this namespace from another.
    ReferenceGrant, "referencegrants", ReferenceGrantSpec, NoStatus, ["v1", "v1beta1"]
}
object! {
    /// TLS towards the endpoints of a Service.
    BackendTLSPolicy, "backendtlspolicies", BackendTlsSpec, PolicyStatus, ["v1", "v1alpha3"]
}

/// Of kinds that have none.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct NoStatus {}

/// Of a ReferenceGrant.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReferenceGrantSpec {
    /// Who may.
    pub from: Vec<GrantFrom>,
    /// What may be named.
    pub to: Vec<GrantTo>,
}

/// Objects that may name others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GrantFrom {
    /// Of this group.
    pub group: String,
    /// Of this kind.
    pub kind: String,
    /// In this namespace.
    pub namespace: String,
}

/// Objects that may be named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GrantTo {
    /// Of this group; empty: the core group.
    pub group: String,
    /// Of this kind.
    pub kind: String,
    /// This one; absent: all.
    pub name: Option<String>,
}

/// Of a BackendTLSPolicy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsSpec {
    /// Services, or ports of them.
    pub target_refs: Vec<PolicyTarget>,
    /// Whom to believe.
    pub validation: BackendValidation,
    /// What implementations make of it.
    pub options: BTreeMap<String, String>,
}

/// What a policy is about.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyTarget {
    /// Empty: the core group.
    pub group: String,
    /// Such as `Service`.
    pub kind: String,
    /// Of the policy's namespace.
    pub name: String,
    /// The name of a port.
    pub section_name: Option<String>,
}

/// Whom to believe.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendValidation {
    /// ConfigMaps with a `ca.crt`.
    pub ca_certificate_refs: Vec<ObjectRef>,
    /// `System`: those that the host trusts.
    #[serde(rename = "wellKnownCACertificates")]
    pub well_known_ca_certificates: Option<String>,
    /// The name asked for, and looked for in the certificate.
    pub hostname: String,
    /// Other names, one of which is looked for instead.
    pub subject_alt_names: Vec<serde_json::Value>,
}

/// Of a policy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct PolicyStatus {
    /// For each Gateway that it has an effect on.
    pub ancestors: Vec<AncestorStatus>,
}

/// What was found with respect to one Gateway.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AncestorStatus {
    /// The Gateway.
    pub ancestor_ref: ParentRef,
    /// Who found it.
    pub controller_name: Text,
    /// What was found.
    pub conditions: Vec<Condition>,
}
