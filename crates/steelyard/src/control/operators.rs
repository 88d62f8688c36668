//! Who may use the admin address, as the configuration says.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use admin::{Access, Doubt, FeedCounts, MadeWayFor, Proof, RefusedFor, Role, User, Users};
use model::Snapshot;
use proxy::{NamedFiles, Operator, Operators};
use telemetry::{Kind, Sample};

/// What a snapshot and its files say.
pub(crate) fn access(snapshot: &Snapshot, files: &NamedFiles) -> Access {
    let users = files.operators().map(|operators| Arc::new(Judge(operators.clone())) as Arc<dyn Users>);
    Access { hosts: snapshot.admin_access.hosts.as_slice().into(), users, tls: files.admin_tls().cloned() }
}

struct Judge(Arc<Operators>);

impl Users for Judge {
    fn known(&self, proof: &Proof) -> Option<User> {
        let found = match proof {
            Proof::Token(token) => self.0.by_token(token),
            Proof::Password { user, password } => self.0.by_known_password(user, password),
            Proof::Certificate(chain) => self.0.by_certificate(chain),
        };
        found.map(user)
    }

    fn identify<'u>(&'u self, proof: &'u Proof) -> Pin<Box<dyn Future<Output = Result<User, Doubt>> + Send + 'u>> {
        Box::pin(async move {
            let found = match proof {
                Proof::Password { user, password } => {
                    self.0.by_password(user, password).await.map_err(|_| Doubt::Busy)?.map(self::user)
                }
                Proof::Token(_) | Proof::Certificate(_) => self.known(proof),
            };
            found.ok_or(Doubt::Wrong)
        })
    }
}

fn user(Operator { name, may_act }: Operator) -> User {
    User { name: Some(name), role: if may_act { Role::Act } else { Role::Read } }
}

/// Counts one of these reasons.
pub(super) fn count<R: PartialEq, const N: usize>(all: &[R; N], counters: &[AtomicU64; N], reason: &R) {
    let counter = all.iter().zip(counters).find(|(known, _)| *known == reason);
    if let Some((_, counter)) = counter {
        counter.fetch_add(1, Relaxed);
    }
}

/// The metrics of requests that were refused.
pub(super) fn samples(counters: &[AtomicU64; RefusedFor::ALL.len()]) -> impl Iterator<Item = Sample> {
    RefusedFor::ALL.iter().zip(counters).map(|(reason, counter)| Sample {
        name: "steelyard_admin_refused_total",
        help: "Requests to the admin address that were refused because of who they are from: they prove nothing, their proof is wrong, their address was wrong too often, or their user may only read.",
        kind: Kind::Counter,
        labels: vec![("reason", reason.name().to_owned())],
        value: counter.load(Relaxed) as f64,
    })
}

/// The metrics of connections that ended so that others could be served.
pub(super) fn made_way(counters: &[AtomicU64; MadeWayFor::ALL.len()]) -> impl Iterator<Item = Sample> {
    MadeWayFor::ALL.iter().zip(counters).map(|(reason, counter)| Sample {
        name: "steelyard_admin_connections_ended_total",
        help: "Connections to the admin address that ended for another: their address had too many, all places were taken, or a response needed the memory of theirs.",
        kind: Kind::Counter,
        labels: vec![("reason", reason.name().to_owned())],
        value: counter.load(Relaxed) as f64,
    })
}

/// The metrics of the stream of events.
pub(super) fn viewers(
    FeedCounts { viewers, refused, ended_behind, ended_access }: FeedCounts,
) -> impl Iterator<Item = Sample> {
    let open = Sample {
        name: "steelyard_admin_viewers",
        help: "Streams of events that are open at the admin address.",
        kind: Kind::Gauge,
        labels: Vec::new(),
        value: viewers as f64,
    };
    let ended = |(reason, count): (&str, u64)| Sample {
        name: "steelyard_admin_streams_ended_total",
        help: "Streams of events that were refused because there are too many, or ended because the viewer did not read or lost its right.",
        kind: Kind::Counter,
        labels: vec![("reason", reason.to_owned())],
        value: count as f64,
    };
    let reasons = [("too_many", refused), ("behind", ended_behind), ("access", ended_access)];
    std::iter::once(open).chain(reasons.map(ended))
}
