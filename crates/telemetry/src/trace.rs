//! What is recorded of a request for its trace, and the queue in which the records wait to be exported.
//!
//! A worker collects records in a batch ([`TraceSender`]), and hands it over when it is full or a tenth of a second old. The queue is bounded by the
//! number of records that were not exported yet; a worker never waits, and what does not fit is dropped and counted.

use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};

use model::RouteTracing;

use crate::prometheus::{Kind, Sample};
use crate::reason::Reason;

/// Requests whose spans were not exported yet, of all workers. With 4 tries each and the longest texts, they take 16 MiB.
pub const TRACES_MAX: u64 = 4096;

/// Requests that a worker hands over at once.
const BATCH_TRACES_MAX: usize = 64;

/// Tries of a request that have a span. Further ones take the place of the last.
pub const TRIES_MAX: usize = 16;

/// A recorded request: one SERVER span, and one CLIENT span for each try.
///
/// The texts are as the client sent them, cut to a limit; nothing else is known about them.
#[derive(Debug, Default)]
pub struct TraceRecord {
    /// The trace, never all zeros.
    pub trace_id: [u8; 16],
    /// The SERVER span, never all zeros.
    pub span_id: [u8; 8],
    /// The span of whoever sent the request; `None` if the trace begins here.
    pub parent_id: Option<[u8; 8]>,
    /// The trace flags that are sent on.
    pub flags: u8,
    /// The `tracestate` that is sent on; empty if there is none.
    pub state: String,
    /// The beginning of the request, in microseconds since 1970.
    pub begun_unix_us: u64,
    /// From then to the last byte of the response, in microseconds.
    pub took_us: u64,
    /// The method.
    pub method: String,
    /// The path without its query.
    pub path: String,
    /// The query; empty if there is none, or it is not wanted.
    pub query: String,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// The host, perhaps with a port.
    pub host: String,
    /// The address that the client connected to.
    pub local: Option<SocketAddr>,
    /// The HTTP version of the client: `1.0`, `1.1` or `2`.
    pub version: &'static str,
    /// The client as trusted proxies report it.
    pub client: Option<IpAddr>,
    /// The address of the connection, or the one in its PROXY protocol header.
    pub peer: Option<SocketAddr>,
    /// The `User-Agent`; empty if there is none.
    pub user_agent: String,
    /// The id of the request; empty if the listener gives none.
    pub request_id: String,
    /// The listener.
    pub listener: String,
    /// The route's name; empty if none matched.
    pub route: String,
    /// What the route says about traces.
    pub tracing: Option<Arc<RouteTracing>>,
    /// The path of the route's condition; empty if it is not known.
    pub route_path: String,
    /// The cluster; empty if none was chosen.
    pub cluster: String,
    /// The status that the client got; 0 if there was none.
    pub status: u16,
    /// Whether the request was a gRPC call, and the code that the client got.
    pub grpc_status: Option<u8>,
    /// The reason of a failure.
    pub reason: Option<Reason>,
    /// The time that Steelyard took, in microseconds; `None` if there was no response of an endpoint.
    pub added_us: Option<u64>,
    /// The time until the head of the endpoint's response, in microseconds.
    pub upstream_us: Option<u64>,
    /// The number of tries, which may be more than `tries` has.
    pub attempts: u32,
    /// Whether endpoints are spoken to within TLS.
    pub is_tls_upstream: bool,
    /// Whether endpoints are spoken to over HTTP/2.
    pub is_h2_upstream: bool,
    /// The tries in their order; at most [`TRIES_MAX`].
    pub tries: Vec<TryRecord>,
}

/// A try at one endpoint.
#[derive(Clone, Debug)]
pub struct TryRecord {
    /// The CLIENT span, which the endpoint got as its parent.
    pub span_id: [u8; 8],
    /// Its number: 0 for the first.
    pub number: u32,
    /// When it began, in microseconds after the request.
    pub begun_us: u64,
    /// How long it took, in microseconds; `None` as long as it lasts.
    pub took_us: Option<u64>,
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// The status of the response; `None` if none arrived.
    pub status: Option<u16>,
    /// The code of a gRPC call, if it is known.
    pub grpc_status: Option<u8>,
    /// Why it failed.
    pub reason: Option<Reason>,
}

/// Numbers that the workers and the exporter share.
#[derive(Debug, Default)]
struct Shared {
    /// Records that were handed over and are not done with.
    queued: AtomicU64,
    /// Spans that did not fit.
    overflowed: AtomicU64,
}

/// The queue of records, on its way out.
#[derive(Debug)]
pub struct TraceQueue {
    batches: Receiver<Vec<TraceRecord>>,
    shared: Arc<Shared>,
}

/// Makes the ends of queues for workers.
#[derive(Clone, Debug)]
pub struct TraceQueueHandle {
    queue: Sender<Vec<TraceRecord>>,
    shared: Arc<Shared>,
}

/// A worker's end of the queue. Dropping it hands over what is left.
#[derive(Debug)]
pub struct TraceSender {
    batch: Vec<TraceRecord>,
    handle: TraceQueueHandle,
}

impl TraceRecord {
    /// Its spans.
    pub fn spans(&self) -> u64 {
        1 + self.tries.len() as u64
    }
}

impl TraceQueue {
    /// An empty queue.
    pub fn new() -> (TraceQueueHandle, Self) {
        let (queue, batches) = channel();
        let shared = Arc::new(Shared::default());
        (TraceQueueHandle { queue, shared: shared.clone() }, Self { batches, shared })
    }

    /// The next records. Each counts as queued until [`TraceQueue::done`].
    pub fn try_take(&mut self) -> Option<Vec<TraceRecord>> {
        self.batches.try_recv().ok()
    }

    /// Says that this many records need no more memory.
    pub fn done(&self, records: u64) {
        self.shared.queued.fetch_sub(records, Relaxed);
    }
}

impl TraceQueueHandle {
    /// A worker's end.
    pub fn sender(&self) -> TraceSender {
        TraceSender { batch: Vec::new(), handle: self.clone() }
    }

    /// Spans that were dropped because the queue was full.
    pub fn overflowed(&self) -> u64 {
        self.shared.overflowed.load(Relaxed)
    }

    /// The number of records that wait.
    pub fn sample(&self) -> Sample {
        Sample {
            name: "steelyard_trace_queue_requests",
            help: "Recorded requests whose spans were not exported yet.",
            kind: Kind::Gauge,
            labels: Vec::new(),
            value: self.shared.queued.load(Relaxed) as f64,
        }
    }
}

impl TraceSender {
    /// Adds a record.
    pub fn push(&mut self, record: TraceRecord) {
        self.batch.push(record);
        if self.batch.len() >= BATCH_TRACES_MAX {
            self.flush();
        }
    }

    /// Hands over what there is. Call this a few times a second.
    pub fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let TraceQueueHandle { queue, shared } = &self.handle;
        let batch = mem::take(&mut self.batch);
        let count = batch.len() as u64;
        let spans = batch.iter().map(|record| record.spans()).sum();
        // Workers that add at the same moment may exceed the limit by a batch each.
        let has_room = shared.queued.load(Relaxed) + count <= TRACES_MAX;
        if has_room {
            shared.queued.fetch_add(count, Relaxed);
        }
        if !has_room || queue.send(batch).is_err() {
            shared.overflowed.fetch_add(spans, Relaxed);
        }
    }
}

impl Drop for TraceSender {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (handle, mut queue) = TraceQueue::new();
        let mut sender = handle.sender();
        for _ in 0..TRACES_MAX + 100 {
            sender.push(TraceRecord::default());
        }
        sender.flush();
        assert_eq!((handle.sample().value, handle.overflowed()), (TRACES_MAX as f64, 100));
        let taken: usize = std::iter::from_fn(|| queue.try_take()).map(|batch| batch.len()).sum();
        assert_eq!(taken as u64, TRACES_MAX);
        // What was taken still needs memory.
        sender.push(TraceRecord::default());
        sender.flush();
        assert_eq!(handle.overflowed(), 101);
        queue.done(1);
        sender.push(TraceRecord::default());
        drop(sender);
        assert_eq!(queue.try_take().map(|batch| batch.len()), Some(1));
        assert_eq!(handle.overflowed(), 101);
    }
}
