//! The kinds that are watched, and the conversion of their objects for the index.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{DynamicResourceScope, PartialObjectMeta};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use super::{Name, RouteEntry, RouteKind, Rules};
use crate::objects::{
    BackendTLSPolicy, GROUP, GRPCRoute, Gateway, GatewayClass, GatewayParameters, HTTPRoute, ListenerSet, OWN_GROUP,
    ReferenceGrant, TCPRoute, TLSRoute, TrafficPolicy, UDPRoute, Version,
};

/// A watched kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    GatewayClass,
    Gateway,
    ListenerSet,
    Route(RouteKind),
    Grant,
    Policy,
    Traffic,
    Parameters,
    Ingress,
    IngressClass,
    Service,
    Slice,
    Secret,
    /// A Secret with users or keys.
    Credentials,
    ConfigMap,
    Namespace,
    /// The definition of a kind.
    Definition,
}

impl Kind {
    /// Whether every request would get an error without this kind. A process that may not read it is useless.
    pub fn is_essential(self) -> bool {
        matches!(self, Self::Service | Self::Slice)
    }

    /// Whether requests would pass that an object of this kind should stop, or would be sent in the clear. If the account may not read the
    /// kind, nobody knows whether there is one. An API server that does not know the kind has none.
    pub fn is_protective(self) -> bool {
        matches!(self, Self::Traffic | Self::Policy)
    }

    /// Group and kind in the API.
    pub fn told(self) -> (&'static str, &'static str) {
        let gateway = |kind| (GROUP, kind);
        match self {
            Self::GatewayClass => gateway("GatewayClass"),
            Self::Gateway => gateway("Gateway"),
            Self::ListenerSet => gateway("ListenerSet"),
            Self::Route(kind) => gateway(kind.name()),
            Self::Grant => gateway("ReferenceGrant"),
            Self::Policy => gateway("BackendTLSPolicy"),
            Self::Traffic => (OWN_GROUP, "TrafficPolicy"),
            Self::Parameters => (OWN_GROUP, "GatewayParameters"),
            Self::Ingress => ("networking.k8s.io", "Ingress"),
            Self::IngressClass => ("networking.k8s.io", "IngressClass"),
            Self::Slice => ("discovery.k8s.io", "EndpointSlice"),
            Self::Service => ("", "Service"),
            Self::Secret | Self::Credentials => ("", "Secret"),
            Self::ConfigMap => ("", "ConfigMap"),
            Self::Namespace => ("", "Namespace"),
            Self::Definition => ("apiextensions.k8s.io", "CustomResourceDefinition"),
        }
    }
}

/// An object of any watched kind.
pub enum Object {
    GatewayClass(Box<GatewayClass>),
    Gateway(Box<Gateway>),
    ListenerSet(Box<ListenerSet>),
    Route(RouteObject),
    Grant(Box<ReferenceGrant>),
    Policy(Box<BackendTLSPolicy>),
    Traffic(Box<TrafficPolicy>),
    Parameters(Box<GatewayParameters>),
    Ingress(Box<Ingress>),
    IngressClass(Box<IngressClass>),
    Service(Box<Service>),
    Slice(Box<EndpointSlice>),
    Secret(Box<Secret>),
    Credentials(Box<CredentialSecret>),
    ConfigMap(Box<ConfigMap>),
    Namespace(Box<Namespace>),
    Definition(Box<Definition>),
}

/// The type of Secrets with users or keys.
pub const CREDENTIALS_TYPE: &str = "steelyard.io/credentials";

/// A Secret of this type, which a watch of its own brings.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(transparent)]
pub struct CredentialSecret(pub Secret);

impl Resource for CredentialSecret {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(dynamic: &()) -> std::borrow::Cow<'_, str> {
        Secret::kind(dynamic)
    }

    fn group(dynamic: &()) -> std::borrow::Cow<'_, str> {
        Secret::group(dynamic)
    }

    fn version(dynamic: &()) -> std::borrow::Cow<'_, str> {
        Secret::version(dynamic)
    }

    fn plural(dynamic: &()) -> std::borrow::Cow<'_, str> {
        Secret::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}

/// The metadata of a definition. The rest is half a megabyte of schemas.
pub type Definition = PartialObjectMeta<CustomResourceDefinition>;

/// A route of any kind.
pub enum RouteObject {
    Http(Box<HTTPRoute>),
    Grpc(Box<GRPCRoute>),
    Tls(Box<TLSRoute>),
    Tcp(Box<TCPRoute>),
    Udp(Box<UDPRoute>),
}

impl RouteObject {
    pub(super) fn into_entry(self) -> (RouteKind, Name, RouteEntry) {
        match self {
            Self::Http(route) => RouteEntry::of(RouteKind::Http, route.metadata, route.spec, route.status, Rules::Http),
            Self::Grpc(route) => RouteEntry::of(RouteKind::Grpc, route.metadata, route.spec, route.status, Rules::Grpc),
            Self::Tls(route) => RouteEntry::of(RouteKind::Tls, route.metadata, route.spec, route.status, Rules::Stream),
            Self::Tcp(route) => RouteEntry::of(RouteKind::Tcp, route.metadata, route.spec, route.status, Rules::Stream),
            Self::Udp(route) => RouteEntry::of(RouteKind::Udp, route.metadata, route.spec, route.status, Rules::Stream),
        }
    }
}

/// A watched type, and the conversion of its objects for the index.
pub trait Watched: Resource + Clone + DeserializeOwned + Debug + Send + 'static {
    /// Its kind.
    const KIND: Kind;

    /// The versions at which it can be read, the preferred one first.
    const VERSIONS: &'static [&'static str];

    /// The API for it at a version. `namespace` is `None` for all namespaces, and for cluster-wide kinds.
    fn api(client: Client, namespace: Option<&str>, version: &'static str) -> Api<Self>;

    /// Converts it to an object of any kind.
    fn into_object(self) -> Object;
}

/// The API of a Gateway API kind, or of our own.
fn versioned<K>(client: Client, namespace: Option<&str>, version: &'static str) -> Api<K>
where
    K: Resource<DynamicType = Version, Scope = DynamicResourceScope>,
{
    match namespace {
        None => Api::all_with(client, &Version(version)),
        Some(namespace) => Api::namespaced_with(client, namespace, &Version(version)),
    }
}

/// The API of a core kind.
fn namespaced<K>(client: Client, namespace: Option<&str>, _version: &'static str) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        None => Api::all(client),
        Some(namespace) => Api::namespaced(client, namespace),
    }
}

/// The API of a cluster-wide kind.
fn cluster_wide<K: Resource<DynamicType = ()>>(
    client: Client,
    _namespace: Option<&str>,
    _version: &'static str,
) -> Api<K> {
    Api::all(client)
}

macro_rules! watched {
    ($($type:ty, $versions:expr, $api:ident => $kind:expr, |$object:ident| $made:expr;)*) => {
        $(impl Watched for $type {
            const KIND: Kind = $kind;
            const VERSIONS: &'static [&'static str] = $versions;

            fn api(client: Client, namespace: Option<&str>, version: &'static str) -> Api<Self> {
                $api(client, namespace, version)
            }

            fn into_object(self) -> Object {
                let $object = self;
                $made
            }
        })*
    };
}

watched! {
    GatewayClass, GatewayClass::VERSIONS, versioned => Kind::GatewayClass, |object| Object::GatewayClass(Box::new(object));
    Gateway, Gateway::VERSIONS, versioned => Kind::Gateway, |object| Object::Gateway(Box::new(object));
    ListenerSet, ListenerSet::VERSIONS, versioned => Kind::ListenerSet, |object| Object::ListenerSet(Box::new(object));
    HTTPRoute, HTTPRoute::VERSIONS, versioned => Kind::Route(RouteKind::Http), |object| Object::Route(RouteObject::Http(Box::new(object)));
    GRPCRoute, GRPCRoute::VERSIONS, versioned => Kind::Route(RouteKind::Grpc), |object| Object::Route(RouteObject::Grpc(Box::new(object)));
    TLSRoute, TLSRoute::VERSIONS, versioned => Kind::Route(RouteKind::Tls), |object| Object::Route(RouteObject::Tls(Box::new(object)));
    TCPRoute, TCPRoute::VERSIONS, versioned => Kind::Route(RouteKind::Tcp), |object| Object::Route(RouteObject::Tcp(Box::new(object)));
    UDPRoute, UDPRoute::VERSIONS, versioned => Kind::Route(RouteKind::Udp), |object| Object::Route(RouteObject::Udp(Box::new(object)));
    ReferenceGrant, ReferenceGrant::VERSIONS, versioned => Kind::Grant, |object| Object::Grant(Box::new(object));
    BackendTLSPolicy, BackendTLSPolicy::VERSIONS, versioned => Kind::Policy, |object| Object::Policy(Box::new(object));
    TrafficPolicy, TrafficPolicy::VERSIONS, versioned => Kind::Traffic, |object| Object::Traffic(Box::new(object));
    GatewayParameters, GatewayParameters::VERSIONS, versioned => Kind::Parameters, |object| Object::Parameters(Box::new(object));
    Ingress, &["v1"], namespaced => Kind::Ingress, |object| Object::Ingress(Box::new(object));
    IngressClass, &["v1"], cluster_wide => Kind::IngressClass, |object| Object::IngressClass(Box::new(object));
    Service, &["v1"], namespaced => Kind::Service, |object| Object::Service(Box::new(object));
    EndpointSlice, &["v1"], namespaced => Kind::Slice, |object| Object::Slice(Box::new(object));
    Secret, &["v1"], namespaced => Kind::Secret, |object| Object::Secret(Box::new(object));
    CredentialSecret, &["v1"], namespaced => Kind::Credentials, |object| Object::Credentials(Box::new(object));
    ConfigMap, &["v1"], namespaced => Kind::ConfigMap, |object| Object::ConfigMap(Box::new(object));
    Namespace, &["v1"], cluster_wide => Kind::Namespace, |object| Object::Namespace(Box::new(object));
    Definition, &["v1"], cluster_wide => Kind::Definition, |object| Object::Definition(Box::new(object));
}
