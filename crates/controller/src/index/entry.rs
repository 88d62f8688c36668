//! What the index keeps of Gateway API objects.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use model::Transport;

use super::object::Definition;
use super::{Difference, Name};
use crate::objects::{
    AncestorStatus, BackendTLSPolicy, BackendTlsSpec, Gateway, GatewayClass, GatewayClassSpec, GatewayClassStatus,
    GatewayParameters, GatewaySpec, GatewayStatus, GrantFrom, GrantTo, GrpcRule, HttpRule, ListenerSet,
    ListenerSetSpec, Others, ParametersSpec, ParentRef, ParentStatus, ReferenceGrant, RouteSpec, RouteStatus,
    StreamRule,
};

/// The annotation of a definition with the channel that it comes from.
const CHANNEL: &str = "gateway.networking.k8s.io/channel";

/// An entry that can be compared with the previous one.
pub(crate) trait IndexEntry {
    fn difference(&self, old: &Self) -> Difference;
}

/// The identity of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Distinguishes it from a later object of the same name.
    pub uid: Box<str>,
    /// Grows with each change of the spec; 0 for kinds that do not count.
    pub generation: i64,
    /// Seconds since 1970.
    pub created: i64,
    /// The version of this state of the object: a status is only written over the state that it was made from.
    pub resource_version: Box<str>,
}

impl Meta {
    pub(super) fn of(meta: &ObjectMeta) -> Self {
        Self {
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            generation: meta.generation.unwrap_or(0),
            created: meta.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
            resource_version: meta.resource_version.as_deref().unwrap_or_default().into(),
        }
    }

    /// Whether the spec is the same: Gateway API kinds count every change of it.
    pub(super) fn wants_the_same(&self, old: &Self) -> bool {
        self.uid == old.uid && self.generation == old.generation && self.generation != 0
    }
}

pub(super) fn name_of(meta: &ObjectMeta) -> Name {
    Name::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

pub(super) fn transport(protocol: Option<&str>) -> Option<Transport> {
    match protocol {
        None | Some("TCP") => Some(Transport::Tcp),
        Some("UDP") => Some(Transport::Udp),
        // We do not support SCTP.
        Some(_) => None,
    }
}

/// The definition of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinitionEntry {
    /// The kind has the fields of the experimental channel.
    pub is_experimental: bool,
}

impl DefinitionEntry {
    pub(super) fn of(object: &Definition) -> (Name, Self) {
        let channel = object.metadata.annotations.as_ref().and_then(|annotations| annotations.get(CHANNEL));
        (name_of(&object.metadata), Self { is_experimental: channel.is_some_and(|channel| channel == "experimental") })
    }
}

impl IndexEntry for DefinitionEntry {
    fn difference(&self, old: &Self) -> Difference {
        if self == old { Difference::None } else { Difference::All }
    }
}

/// A GatewayClass.
#[derive(Clone, Debug)]
pub struct ClassEntry {
    pub meta: Meta,
    pub spec: GatewayClassSpec,
    pub status: GatewayClassStatus,
}

impl ClassEntry {
    pub(super) fn of(object: GatewayClass) -> (Name, Self) {
        let meta = Meta::of(&object.metadata);
        (name_of(&object.metadata), Self { meta, spec: object.spec, status: object.status })
    }
}

impl IndexEntry for ClassEntry {
    fn difference(&self, old: &Self) -> Difference {
        if self.meta.wants_the_same(&old.meta) { Difference::Status } else { Difference::All }
    }
}

/// A Gateway.
#[derive(Clone, Debug)]
pub struct GatewayEntry {
    pub meta: Meta,
    pub spec: GatewaySpec,
    pub status: GatewayStatus,
}

impl GatewayEntry {
    pub(super) fn of(object: Gateway) -> (Name, Self) {
        let meta = Meta::of(&object.metadata);
        (name_of(&object.metadata), Self { meta, spec: object.spec, status: object.status })
    }
}

impl IndexEntry for GatewayEntry {
    fn difference(&self, old: &Self) -> Difference {
        // It listens on the addresses in its status.
        let same = self.meta.wants_the_same(&old.meta) && self.status.addresses == old.status.addresses;
        if same { Difference::Status } else { Difference::All }
    }
}

/// A ListenerSet.
#[derive(Clone, Debug)]
pub struct ListenerSetEntry {
    pub meta: Meta,
    pub spec: ListenerSetSpec,
    pub status: GatewayStatus,
}

impl ListenerSetEntry {
    pub(super) fn of(object: ListenerSet) -> (Name, Self) {
        let meta = Meta::of(&object.metadata);
        (name_of(&object.metadata), Self { meta, spec: object.spec, status: object.status })
    }
}

impl IndexEntry for ListenerSetEntry {
    fn difference(&self, old: &Self) -> Difference {
        if self.meta.wants_the_same(&old.meta) { Difference::Status } else { Difference::All }
    }
}

/// A kind of route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteKind {
    Http,
    Grpc,
    Tls,
    Tcp,
    Udp,
}

impl RouteKind {
    /// The name of the kind in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "HTTPRoute",
            Self::Grpc => "GRPCRoute",
            Self::Tls => "TLSRoute",
            Self::Tcp => "TCPRoute",
            Self::Udp => "UDPRoute",
        }
    }
}

/// A route of any kind.
#[derive(Clone, Debug)]
pub struct RouteEntry {
    /// Its identity.
    pub meta: Meta,
    /// The parents that it wants to be attached to.
    pub parents: Box<[ParentRef]>,
    /// Its hosts.
    pub hostnames: Box<[String]>,
    /// Its rules.
    pub rules: Rules,
    /// Unknown fields.
    pub others: Others,
    /// The entries in its status, ours and those of others.
    pub present: Box<[ParentStatus]>,
}

/// Rules by kind.
#[derive(Clone, Debug)]
pub enum Rules {
    Http(Box<[HttpRule]>),
    Grpc(Box<[GrpcRule]>),
    Stream(Box<[StreamRule]>),
}

impl RouteEntry {
    pub(super) fn of<R>(
        kind: RouteKind,
        metadata: ObjectMeta,
        spec: RouteSpec<R>,
        status: RouteStatus,
        rules: impl FnOnce(Box<[R]>) -> Rules,
    ) -> (RouteKind, Name, Self) {
        let entry = Self {
            meta: Meta::of(&metadata),
            parents: spec.parent_refs,
            hostnames: spec.hostnames,
            rules: rules(spec.rules),
            others: spec.others,
            present: status.parents,
        };
        (kind, name_of(&metadata), entry)
    }
}

impl IndexEntry for RouteEntry {
    fn difference(&self, old: &Self) -> Difference {
        if self.meta.wants_the_same(&old.meta) { Difference::Status } else { Difference::All }
    }
}

/// A ReferenceGrant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantEntry {
    pub from: Vec<GrantFrom>,
    pub to: Vec<GrantTo>,
}

impl GrantEntry {
    pub(super) fn of(object: ReferenceGrant) -> (Name, Self) {
        (name_of(&object.metadata), Self { from: object.spec.from, to: object.spec.to })
    }
}

impl IndexEntry for GrantEntry {
    fn difference(&self, old: &Self) -> Difference {
        if self == old { Difference::None } else { Difference::All }
    }
}

/// A BackendTLSPolicy.
#[derive(Clone, Debug)]
pub struct PolicyEntry {
    pub meta: Meta,
    pub spec: BackendTlsSpec,
    pub present: Vec<AncestorStatus>,
}

impl PolicyEntry {
    pub(super) fn of(object: BackendTLSPolicy) -> (Name, Self) {
        let meta = Meta::of(&object.metadata);
        (name_of(&object.metadata), Self { meta, spec: object.spec, present: object.status.ancestors })
    }
}

impl IndexEntry for PolicyEntry {
    fn difference(&self, old: &Self) -> Difference {
        if self.meta.wants_the_same(&old.meta) { Difference::Status } else { Difference::All }
    }
}

/// GatewayParameters.
#[derive(Clone, Debug, PartialEq)]
pub struct ParametersEntry {
    pub spec: ParametersSpec,
}

impl ParametersEntry {
    pub(super) fn of(object: GatewayParameters) -> (Name, Self) {
        (name_of(&object.metadata), Self { spec: object.spec })
    }
}

impl IndexEntry for ParametersEntry {
    fn difference(&self, old: &Self) -> Difference {
        if self == old { Difference::None } else { Difference::All }
    }
}
