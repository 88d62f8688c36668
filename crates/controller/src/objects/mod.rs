//! Objects of the Gateway API, v1.6, standard channel, with the fields that we read, and of our own kind. Objects of older bundles with the
//! same fields work too.
//!
//! They are written by hand and not generated from the definitions: generated types are ten thousand lines of which we read a tenth, and
//! they drop unknown fields. Here an unknown field that changes the meaning of a rule lands in `others`, so that the rule is refused with
//! the name of the field instead of being served as if the field were absent. Every field has a default, because one odd object must not
//! end the watch of all others. Core objects come from `k8s-openapi`.
//!
//! Lists of which there are thousands are boxed: a vector that grows while it is read has room for four entries, and mostly holds one.

mod gateway;
mod parameters;
mod policy;
mod route;
mod status;
mod text;
mod traffic;

use std::collections::BTreeMap;

use serde::de::IgnoredAny;

pub use gateway::*;
pub use parameters::*;
pub use policy::*;
pub use route::*;
pub use status::*;
pub use text::Text;
pub use traffic::*;

/// The API group.
pub const GROUP: &str = "gateway.networking.k8s.io";

/// The API group of our own kinds.
pub const OWN_GROUP: &str = "steelyard.io";

/// Unknown fields.
pub type Others = BTreeMap<String, IgnoredAny>;

/// A version of a kind, for requests to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(pub &'static str);

/// A kind of the Gateway API, or of another group that is named, for the client. Its versions are those with the fields that we read, the
/// newest first. Older bundles serve only some of them.
macro_rules! object {
    ($(#[$doc:meta])* $name:ident, $plural:literal, $spec:ty, $status:ty, $versions:expr) => {
        $crate::objects::object! { $(#[$doc])* $name in $crate::objects::GROUP, $plural, $spec, $status, $versions }
    };
    ($(#[$doc:meta])* $name:ident in $group:expr, $plural:literal, $spec:ty, $status:ty, $versions:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, serde::Deserialize)]
        #[serde(default)]
        pub struct $name {
            /// Name, age, generation.
            pub metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            /// The spec.
            pub spec: $spec,
            /// The conditions.
            pub status: $status,
        }

        impl $name {
            /// The newest first.
            pub const VERSIONS: &[&str] = &$versions;
        }

        impl kube::Resource for $name {
            type DynamicType = $crate::objects::Version;
            // With a fixed scope the client could only make requests at one fixed version.
            type Scope = kube::core::DynamicResourceScope;

            fn kind(_: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
                stringify!($name).into()
            }

            fn group(_: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
                $group.into()
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
