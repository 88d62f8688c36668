//! Objects of the Gateway API, v1.6, standard channel, as far as they are read.
//!
//! Written by hand and not generated from the definitions: generated ones are ten thousand lines of which a tenth is read, and they drop what
//! they do not know. Here a field that changes what a rule means, and that nobody here knows, lands in `others`, so that the rule is refused by
//! its name and not served as if the field were not there. Every field has a default: one odd object must not end the watch of all others.
//! Objects of Kubernetes itself come from `k8s-openapi`.
//!
//! Lists of which there are thousands are boxed: one that grows while it is read has room for four, and mostly holds one.

mod gateway;
mod policy;
mod route;
mod status;
mod text;

use std::collections::BTreeMap;

use serde::de::IgnoredAny;

pub use gateway::*;
pub use policy::*;
pub use route::*;
pub use status::*;
pub use text::Text;

/// The API group.
pub const GROUP: &str = "gateway.networking.k8s.io";

/// Fields that nobody here knows.
pub type Others = BTreeMap<String, IgnoredAny>;

/// A kind of the Gateway API at version v1, for the client.
macro_rules! object {
    ($(#[$doc:meta])* $name:ident, $plural:literal, $scope:ident, $spec:ty, $status:ty) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, serde::Deserialize)]
        #[serde(default)]
        pub struct $name {
            /// Name, age, generation.
            pub metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            /// What is wanted.
            pub spec: $spec,
            /// What was found.
            pub status: $status,
        }

        impl kube::Resource for $name {
            type DynamicType = ();
            type Scope = kube::core::$scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                stringify!($name).into()
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                $crate::objects::GROUP.into()
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                "v1".into()
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
pub(crate) use object;
