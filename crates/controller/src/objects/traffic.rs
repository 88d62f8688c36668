//! TrafficPolicy: our own kind with what a configuration file says of a route and of a cluster. Its definition in `deploy/steelyard/crds` is made
//! from the keys of the file, by the crate `config`, which also reads the fields.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{OWN_GROUP, PolicyStatus, PolicyTarget, object};

object! {
    /// Policies of Gateways, routes and Services.
    TrafficPolicy in OWN_GROUP, "trafficpolicies", TrafficPolicySpec, PolicyStatus, ["v1alpha1"]
}

/// The fields of a TrafficPolicy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TrafficPolicySpec {
    /// The objects that it is for.
    pub target_refs: Vec<PolicyTarget>,
    /// Everything else.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}
