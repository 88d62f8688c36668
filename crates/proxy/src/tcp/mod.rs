//! One downstream connection of a TCP listener: choose, connect, relay.

pub(crate) mod by_name;
pub(crate) mod relay;
pub(crate) mod upgrade;

use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use balance::{Outcome, Proof, Redispatch};
use model::HashKey;
use net::buffer::Buffer;
use net::clock;
use net::timer::Timer;
use smallvec::SmallVec;
use telemetry::{ListenerCounters, Reason};

use self::relay::{End, Moved};
use crate::deadline::Deadline;
use crate::downstream::watch::Watched;
use crate::error::{Error, Side};
use crate::exchange::record::AccessRecord;
use crate::stream::Stream;
use crate::tls::Secured;
use crate::upstream::closing::Unhealthy;
use crate::upstream::cluster::{Cluster, Demand, Endpoint, Lease};
use crate::upstream::connect::{self, OnBehalfOf, Upstream, Wanted};
use crate::worker::{ConnectionGuard, ListenerView, Worker};

/// Endpoints that are tried for one connection, not counting unreachable ones, up to the limit of [`Redispatch`]. Nothing is sent before an
/// endpoint accepts, so trying again is safe.
const ATTEMPTS_MAX: usize = 3;

/// Serves one connection to its end. `input` holds the bytes after a PROXY protocol header.
pub(crate) async fn serve(
    worker: &Worker,
    listener: Rc<ListenerView>,
    stream: Stream,
    input: Buffer,
    who: OnBehalfOf,
    secured: Option<Rc<Secured>>,
    connection: &ConnectionGuard,
) {
    let model::Protocol::Tcp(policy) = &listener.plan.policy.protocol else { return };
    let Some(cluster) = listener.clusters.get(policy.to.0).cloned() else { return };
    let idle_timeout = policy.idle_timeout;
    relay(worker, listener, cluster, stream, input, who, secured, idle_timeout, connection).await;
}

/// Relays one connection to an endpoint of a cluster, and logs it.
#[expect(clippy::too_many_arguments, reason = "each is a part of the connection, and they are only used together")]
pub(crate) async fn relay(
    worker: &Worker,
    listener: Rc<ListenerView>,
    cluster: Rc<Cluster>,
    mut stream: Stream,
    input: Buffer,
    who: OnBehalfOf,
    secured: Option<Rc<Secured>>,
    idle_timeout: Duration,
    connection: &ConnectionGuard,
) {
    let timer = Timer::new(&worker.timers);
    let begun_us = clock::now_us();
    let mut record = AccessRecord::tcp(begun_us);
    let mut moved = Moved::default();

    let opened = open(&cluster, who, &stream, &timer, &mut record).await;
    let kept = Kept::of(&listener, &cluster);
    // The connection may last for days, and there may be a new snapshot every minute.
    drop((listener, cluster));
    let outcome = match opened {
        Ok((lease, mut upstream)) => {
            record.added_us = clock::now_us().saturating_sub(begun_us);
            let ends =
                (End { stream: &mut stream, input }, End { stream: &mut upstream.stream, input: upstream.input });
            let unhealthy = Unhealthy::of(lease.endpoint.closing.as_ref());
            let outcome =
                relay::run(ends.0, ends.1, &timer, crate::millis(idle_timeout), &mut moved, unhealthy, || {
                    connection.ends();
                })
                .await;
            if let Err(Error { side: Side::Upstream, .. }) = &outcome {
                kept.record_reset(&lease.endpoint);
            }
            if outcome.is_err() {
                // A failure on one side must not look like a normal end on the other.
                stream.reset_on_close();
                upstream.stream.reset_on_close();
            }
            outcome
        }
        Err(error) => {
            stream.reset_on_close();
            Err(error)
        }
    };
    kept.counters.bytes_received.add(moved.upstream);
    kept.counters.bytes_sent.add(moved.downstream);
    record.bytes_in = moved.upstream;
    record.bytes_out = moved.downstream;
    if let Err(mut error) = outcome {
        if worker.is_drain_over() {
            error = Error::internal(Reason::Draining);
        }
        kept.counters.reasons.inc(error.reason);
        tracing::debug!(listener = kept.names.0, client = %who.client, %error, "relay failed");
        record.reason = Some(error.reason);
    }
    kept.counters.requests.inc();
    worker.log_tcp(&kept.names.0, &kept.names.1, who.client, secured.as_deref(), &record);
}

/// What a connection keeps of the snapshot under which it began.
struct Kept {
    /// The listener's.
    counters: Arc<ListenerCounters>,
    /// The names of the listener and the cluster.
    names: (String, String),
    cluster: Weak<Cluster>,
}

impl Kept {
    fn of(listener: &ListenerView, cluster: &Rc<Cluster>) -> Self {
        Self {
            counters: listener.counters.clone(),
            names: (listener.plan.policy.name.clone(), cluster.plan.policy.name.clone()),
            cluster: Rc::downgrade(cluster),
        }
    }

    /// Records that the endpoint has broken the connection.
    fn record_reset(&self, endpoint: &Endpoint) {
        match self.cluster.upgrade() {
            Some(cluster) => cluster.record(endpoint, clock::now_ms(), Outcome::Reset),
            // Under another snapshot, the endpoint may have another index, or none: the failure is counted, but does not count for
            // ejection.
            None => endpoint.counters.resets.inc(),
        }
    }
}

async fn open(
    cluster: &Rc<Cluster>,
    who: OnBehalfOf,
    client: &Stream,
    timer: &Timer,
    record: &mut AccessRecord,
) -> Result<(Lease, Upstream), Error> {
    // A FIN is passed on to the endpoint, and the other direction may continue.
    let client = Watched { stream: client, leaves_by_fin: false, owed: 0 };
    let mut tried: SmallVec<[usize; ATTEMPTS_MAX]> = SmallVec::new();
    let (mut attempts, mut redispatch, mut failed) = (0, Redispatch::default(), None);
    let connect_timeout_ms = crate::millis(cluster.plan.policy.connect_timeout);
    cluster.counters.requests.inc();
    let key = cluster.hash_key().map_or(0, |key| hash(key, who.client));
    loop {
        let demand = Demand { key, tried: &tried, takes_ejected: failed.is_some(), deadline: Deadline::Never };
        let lease = match cluster.lease_or_wait(clock::now_ms(), &demand, client, timer).await {
            Ok(lease) => lease,
            // Report the earlier failure instead of the lack of another endpoint.
            Err(error) => return Err(failed.unwrap_or(error)),
        };
        let now_ms = lease.at_ms;
        record.handle_attempt(&lease.endpoint);
        lease.endpoint.counters.requests.inc();
        let begun_us = now_ms.saturating_mul(1000);
        let wanted = Wanted {
            who: &who,
            client: Some(client),
            begun_us,
            fresh_since_us: Some(begun_us),
            now_ms,
            deadline: Deadline::Never,
        };
        let made = connect::connect(cluster, &lease.endpoint, &wanted, timer);
        match connect::unless_gone(&wanted, made).await {
            Ok(upstream) => {
                let now_ms = clock::now_ms();
                cluster.record(&lease.endpoint, now_ms, Outcome::Success);
                if lease.was_ejected {
                    cluster.readmit(&lease.endpoint, now_ms, Proof::Connected);
                }
                cluster.counters.tunnels.inc();
                return Ok((lease, upstream));
            }
            Err(error) => {
                // The endpoint is not to blame if this host has run out of something, or if the client has left.
                if error.side != Side::Upstream {
                    return Err(error);
                }
                let now_ms = clock::now_ms();
                cluster.record(&lease.endpoint, now_ms, Outcome::ConnectFailure);
                tried.push(lease.endpoint.index);
                let is_free =
                    connect::is_unreachable(&error) && redispatch.try_another(lease.at_ms, now_ms, connect_timeout_ms);
                attempts += usize::from(!is_free);
                if attempts == ATTEMPTS_MAX || tried.len() == cluster.endpoints.len() {
                    return Err(error);
                }
                if is_free {
                    cluster.counters.redispatches.inc();
                } else {
                    cluster.counters.retries.inc();
                }
                failed = Some(error);
            }
        }
    }
}

/// A connection has only its address to hash.
fn hash(key: &HashKey, client: SocketAddr) -> u64 {
    match key {
        HashKey::ClientIp | HashKey::Header(_) | HashKey::Cookie(_) | HashKey::Template(_) => {
            crate::upstream::hash::ip(client.ip())
        }
    }
}
