//! Copies of requests for other clusters, whose responses are discarded.
//!
//! A copy is the request that the route's own endpoint gets, with the same path, headers and `Host`, unless the mirror has a host of its own (Envoy adds `-shadow` to the host; this
//! is omitted on purpose, because a name that the mirror does not serve, or has no certificate for, tests nothing). It is sent when its
//! body is complete: at once if there is none, otherwise when the exchange is over. From then on it is a separate task, and the client's
//! exchange never waits for it. The behaviour of the mirror's endpoints counts for their own ejection, since they would behave the same
//! towards a client.

use std::cell::Cell;
use std::rc::Rc;

use net::timer::{Timer, Timers};
use smallvec::SmallVec;
use telemetry::Reason;
use wire::message::Body;

use super::headers::RequestEdits;
use super::{RequestView, TrafficSplit};
use crate::upstream::cluster::Cluster;
use crate::upstream::connect::OnBehalfOf;
use crate::upstream::subrequest::{Patience, Subrequest, Terms};
use crate::worker::ListenerView;

/// Bytes of a body that are kept for a copy. A request with a longer body is not mirrored.
pub(crate) const MIRROR_BODY_BYTES_MAX: usize = 64 * 1024;

/// Copies in progress on one worker, including those that wait for their body.
const MIRRORS_MAX: usize = 128;

/// The time limit from sending a copy to the end of its response.
const MIRROR_MS_MAX: u64 = 10_000;

/// The number of copies in progress on one worker.
#[derive(Clone, Default)]
pub(crate) struct InFlight(Rc<Cell<usize>>);

/// Permission for one of them.
struct InFlightGuard(Rc<Cell<usize>>);

impl InFlight {
    fn take(&self) -> Option<InFlightGuard> {
        let count = self.0.get();
        (count < MIRRORS_MAX).then(|| {
            self.0.set(count + 1);
            InFlightGuard(self.0.clone())
        })
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

/// The copies of one request, until its body is complete.
pub(crate) struct Copies {
    listener: Rc<ListenerView>,
    who: OnBehalfOf,
    targets: SmallVec<[MirrorTarget; 1]>,
}

struct MirrorTarget {
    cluster: Rc<Cluster>,
    request: Subrequest,
    /// For consistent hashing.
    key: u64,
    guard: InFlightGuard,
}

impl Copies {
    /// The copies of this request, with the changes of `edits`, that the route asks for; `None` if there are none. `share`: the index of
    /// its cluster among those of the route.
    #[expect(
        clippy::too_many_arguments,
        reason = "all of them are borrowed from one place, and half of them is the request"
    )]
    pub(crate) fn begin<'m>(
        listener: &Rc<ListenerView>,
        mirrors: &'m [model::Mirror],
        split: &TrafficSplit,
        share: usize,
        asked: &RequestView<'_>,
        edits: &RequestEdits<'m>,
        who: OnBehalfOf,
        in_flight: &InFlight,
    ) -> Option<Box<Self>> {
        // What follows an upgrade is not a request, and cannot be duplicated.
        if asked.head.upgrade.is_some() {
            return None;
        }
        let mut targets = SmallVec::new();
        let is_meant = |mirror: &model::Mirror| mirror.only.is_none_or(|only| only == share);
        let mirrors = mirrors.iter().enumerate().filter(|(_, mirror)| is_meant(mirror));
        let edits = |mirror: &'m model::Mirror| RequestEdits { host: mirror.host.as_deref().or(edits.host), ..*edits };
        for (number, mirror) in mirrors.filter(|(number, _)| split.is_mirrored(*number)) {
            let Some(cluster) = listener.clusters.get(mirror.to.0) else { continue };
            // A copy of a copy would be copied again, without end.
            if cluster.has_sent(asked.head, asked.buffer) {
                listener.count(Reason::LoopDetected);
                continue;
            }
            let is_too_large = matches!(asked.head.body, Body::Length(length) if length > MIRROR_BODY_BYTES_MAX as u64);
            match in_flight.take() {
                _ if is_too_large => listener.count(Reason::MirrorTooLarge),
                None => listener.count(Reason::MirrorFull),
                Some(guard) => {
                    tracing::trace!(number, cluster = cluster.plan.policy.name, "mirrored");
                    let key = cluster.hash_key();
                    let key = key.map_or(0, |key| crate::upstream::hash::key(key, asked));
                    let request = Subrequest::new(cluster, asked, &edits(mirror));
                    targets.push(MirrorTarget { cluster: cluster.clone(), request, key, guard });
                }
            }
        }
        if targets.is_empty() {
            return None;
        }
        Some(Box::new(Self { listener: listener.clone(), who, targets }))
    }

    /// Sends the copies, after the request's body. `body_data` is `None` if the body is too long for that.
    pub(crate) fn send(self, body_data: Option<Vec<u8>>, timers: &Timers) {
        let Self { listener, who, targets } = self;
        let Some(data) = body_data else {
            return targets.iter().for_each(|_| listener.count(Reason::MirrorTooLarge));
        };
        for MirrorTarget { cluster, mut request, key, guard } in targets {
            request.put_body(&data);
            let (listener, timer) = (listener.clone(), Timer::new(timers));
            tokio::task::spawn_local(async move {
                let _guard = guard;
                let terms = Terms { who, key, timer: &timer, time_ms_max: MIRROR_MS_MAX, patience: Patience::None };
                match request.send(&cluster, &terms).await {
                    Ok(_) => cluster.counters.mirrored.inc(),
                    Err(error) => {
                        listener.count(Reason::MirrorFailed);
                        tracing::debug!(cluster = cluster.plan.policy.name, %error, "mirror failed");
                    }
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_under_way_are_bounded() {
        let in_flight = InFlight::default();
        let mut tickets: Vec<_> = (0..MIRRORS_MAX).map(|_| in_flight.take().unwrap()).collect();
        assert!(in_flight.take().is_none());
        tickets.pop();
        assert!(in_flight.take().is_some());
    }
}
