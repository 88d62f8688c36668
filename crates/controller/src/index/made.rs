//! Objects that a controller of ours has written: the Services of Gateways and their EndpointSlices.
//!
//! An annotation of each object records what it was written from. So a new leader knows what the previous one wrote, and nothing is written
//! twice.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Meta;
use crate::objects::{GROUP, Text};

/// The annotation with the record: the name of the controller, the class of the Gateway, and a digest of what was written.
pub(crate) const RECORD: &str = "steelyard.io/applied";

/// An object that a controller of ours has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeEntry {
    /// Its identity.
    pub meta: Meta,
    /// The Gateway that owns it: its name and its uid.
    pub owner: (Text, Box<str>),
    /// The name of the controller.
    pub controller: Text,
    /// The class of the Gateway.
    pub class: Text,
    /// The digest of what was written.
    pub digest: Box<str>,
}

impl MadeEntry {
    /// Returns `None` for an object that has no record, or that no Gateway owns.
    pub(super) fn of(metadata: &ObjectMeta) -> Option<Self> {
        let record = metadata.annotations.as_ref()?.get(RECORD)?;
        let mut words = record.rsplitn(3, ' ');
        let (digest, class, controller) = (words.next()?, words.next()?, words.next()?);
        let is_gateway = |kind: &str, version: &str| kind == "Gateway" && version.split('/').next() == Some(GROUP);
        let mut owners = metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| is_gateway(&owner.kind, &owner.api_version))?;
        Some(Self {
            meta: Meta::of(metadata),
            owner: (owner.name.as_str().into(), owner.uid.as_str().into()),
            controller: controller.into(),
            class: class.into(),
            digest: digest.into(),
        })
    }

    /// Whether both were written for the same Gateway by the same controller.
    pub(super) fn belongs_as(&self, other: &Self) -> bool {
        self.owner == other.owner && self.controller == other.controller
    }
}
