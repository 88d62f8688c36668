//! What the index keeps of a TrafficPolicy: its fields, read once when the object arrives.

use std::sync::Arc;

use super::entry::{IndexEntry, name_of};
use super::{Difference, Meta, Name};
use crate::objects::{AncestorStatus, PolicyTarget, TrafficPolicy};

/// A TrafficPolicy.
#[derive(Clone, Debug)]
pub struct TrafficEntry {
    pub meta: Meta,
    pub targets: Box<[PolicyTarget]>,
    /// What it says, or what is wrong with it, as a sentence.
    pub policy: Result<Arc<config::TrafficPolicy>, Box<str>>,
    /// The part of its Secret that has users with passwords.
    pub users: UsersPart,
    pub present: Vec<AncestorStatus>,
}

/// Where in a Secret the users are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsersPart {
    /// The lines of `users`, in a Secret of our type.
    Users,
    /// The lines of `auth`, as ingress-nginx has it.
    Auth,
    /// Each part is one, as ingress-nginx has it, too.
    Each,
}

impl TrafficEntry {
    pub(super) fn of(object: TrafficPolicy) -> (Name, Self) {
        let meta = Meta::of(&object.metadata);
        let policy = config::TrafficPolicy::read(&object.spec.fields);
        let policy = policy.map(Arc::new).map_err(|wrong| wrong.join("; ").into());
        let entry = Self {
            meta,
            targets: object.spec.target_refs.into(),
            policy,
            users: UsersPart::Users,
            present: object.status.ancestors,
        };
        (name_of(&object.metadata), entry)
    }
}

impl IndexEntry for TrafficEntry {
    fn difference(&self, old: &Self) -> Difference {
        if self.meta.wants_the_same(&old.meta) { Difference::Status } else { Difference::All }
    }
}
