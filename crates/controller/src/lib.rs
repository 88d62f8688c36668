//! The cluster as a source: Kubernetes objects to model, and status back.
//!
//! Job: watch Gateways, routes, Ingresses, Services and their endpoints; make of them a [`model::Snapshot`] and what is to be said of each
//! object; give the one to whoever serves, and write the other where this process holds the Lease. Not its job: serving. Every replica
//! watches for itself and makes the same of the same objects; nothing is shared between them but the API server.
//!
//! `watch -> index -> translate -> (snapshot, statuses, notices)`: the index holds what the translation needs of each object, the
//! translation is pure, and [`start()`] runs it all on a thread of its own, so that ten thousand routes delay nobody.
#![forbid(unsafe_code)]

mod index;
mod lease;
mod objects;
mod reconciler;
mod settings;
mod start;
mod translate;
mod watch;
mod write;

pub use reconciler::{Outcome, Refusal, Update};
pub use settings::{INGRESS_CONTROLLER, Pool, Published, Settings};
pub use start::{Handle, Options, start};
pub use translate::{DRAIN_TIMEOUT, FLOWS_MAX};

#[cfg(test)]
mod tests;
