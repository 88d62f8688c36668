//! The cluster as a source: turns Kubernetes objects into the model, and writes statuses back.
//!
//! Its job is to watch Gateways, routes, Ingresses, Services and their endpoints, and to derive a [`model::Snapshot`] and the status of
//! each object. It passes the snapshot to the planes, and writes the statuses if this process holds the Lease. It does not serve traffic.
//! Every replica watches for itself and derives the same result from the same objects; replicas share nothing but the API server.
//!
//! `watch -> index -> translate -> (snapshot, statuses, notices)`: the index holds what the translation needs of each object, the
//! translation is pure, and [`start()`] runs everything on a thread of its own, so that ten thousand routes do not delay anything else.
#![forbid(unsafe_code)]

mod addresses;
mod index;
pub mod ingress_nginx;
mod lease;
mod objects;
mod read;
mod reconciler;
mod replicas;
mod settings;
mod start;
mod translate;
mod watch;
mod webhook;
mod write;

pub use read::{Seen, read_nginx};
pub use reconciler::{Outcome, Refusal, Update};
pub use replicas::FoundReplicas;
pub use settings::{INGRESS_CONTROLLER, IngressNginx, Pool, Published, SecretRef, ServiceName, Settings};
pub use start::{Handle, NodeLeases, Options, start};
pub use translate::{DRAIN_TIMEOUT, FLOWS_MAX, RefusedObject, ServiceFault};
pub use webhook::{Review, WebhookOptions, serve_webhook};

#[cfg(test)]
mod tests;
