//! Objects of the Gateway API, v1.6, standard channel, as far as they are read; and those of older bundles that look the same.
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

/// A version of a kind, by which the API server is asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(pub &'static str);

/// A kind of the Gateway API, for the client: its versions are those whose fields are the ones that are read here, the newest first. Older bundles
/// serve only some of them.
macro_rules! object {
    ($(#[$doc:meta])* $name:ident, $plural:literal, $spec:ty, $status:ty, $versions:expr) => {
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

        impl $name {
            /// The newest first.
            pub const VERSIONS: &[&str] = &$versions;
        }

        impl kube::Resource for $name {
            type DynamicType = $crate::objects::Version;
            // Of a fixed scope the client makes requests at one fixed version alone.
            type Scope = kube::core::DynamicResourceScope;

            fn kind(_: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
                stringify!($name).into()
            }

            fn group(_: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
                $crate::objects::GROUP.into()
            }

            fn version(version: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
                version.0.into()
            }

            fn plural(_: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
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
