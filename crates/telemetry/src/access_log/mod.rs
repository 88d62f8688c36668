//! One line for each request or TCP connection, formatted and written without delaying the workers.
//!
//! A worker copies its data into a batch ([`Logger`]) and hands over full batches; one thread formats and writes them. A worker never
//! waits: if the writer is so far behind that a worker has [`BATCHES_MAX`] batches in use, the next full one is dropped and counted.

mod batch;
mod escape;
mod format;
mod logger;
mod writer;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use format::Timestamp;
pub use logger::Logger;

use crate::prometheus::{Kind, Sample};
use crate::reason::Reason;
use batch::Batch;
use writer::Writer;

/// Batches of one worker: the one being filled, and those that wait for the writer. With the 1,024 records of a batch, a worker at 80,000
/// requests a second survives a disk that hangs for 200 ms, and this costs 4 MiB at most.
const BATCHES_MAX: usize = 16;
/// Batches of all workers that wait for the writer.
const QUEUE_BATCHES_MAX: usize = 1024;
/// How long dropping an [`AccessLog`] waits for the last lines: if the reader of our standard output has stopped, the process must still
/// end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The content of a line.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The beginning of the request, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The client's address, or the one in the PROXY protocol header. Port 0 means that the port is unknown and not written.
    pub client: SocketAddr,
    /// The listener's name.
    pub listener: &'a str,
    /// The HTTP fields; `None` for a TCP connection.
    pub http: Option<HttpRecord<'a>>,
    /// Bytes from the client: the request with its head, or everything on the connection.
    pub bytes_in: u64,
    /// Bytes to the client.
    pub bytes_out: u64,
    /// The cluster's name; empty if none was chosen.
    pub cluster: &'a str,
    /// The last endpoint that was tried; `None` if none was.
    pub endpoint: Option<SocketAddr>,
    /// From the first byte of the request, or the accept of the TCP connection, to the last byte of the response; in microseconds.
    pub total_us: u64,
    /// The number of endpoints that were tried.
    pub attempts: u32,
    /// The reason of a failure.
    pub reason: Option<Reason>,
}

/// The HTTP fields of a record. Texts are as the client sent them, whatever they contain. Empty ones were missing or could not be
/// understood.
#[derive(Clone, Copy, Debug)]
pub struct HttpRecord<'a> {
    /// `GET`.
    pub method: &'a [u8],
    /// The request target.
    pub target: &'a [u8],
    /// The HTTP version of the client: `1.0`, `1.1` or `2`.
    pub version: &'static str,
    /// The Host.
    pub host: &'a [u8],
    /// The id of the request; empty if the listener gives none.
    pub request_id: &'a str,
    /// The status code of a gRPC call; `None` if the request was not one.
    pub grpc_status: Option<u8>,
    /// The status of the final response; 0 if the connection was closed without one.
    pub status: u16,
    /// The route's name; empty if none matched.
    pub route: &'a str,
    /// The time that Steelyard itself took, microseconds.
    pub added_us: u64,
    /// The time until the head of the endpoint's response arrived, in microseconds; `None` if it never did.
    pub upstream_us: Option<u64>,
    /// The time that external authorization took; `None` if no service was asked.
    pub authorization_us: Option<u64>,
    /// The time that the global rate limit took; `None` if no service was asked.
    pub rate_limit_us: Option<u64>,
}

/// The access log: its file and the thread that writes it.
///
/// The thread ends when this and all loggers are gone and their lines are written. Dropping this waits for that, but not for long, so drop
/// the loggers first, or give the workers others.
#[derive(Debug)]
pub struct AccessLog {
    // Dropped in this order: our end of the queue must be closed before waiting for the writer.
    queue: SyncSender<Message>,
    shared: Arc<Shared>,
    _ended: Ended,
}

/// Closed when the writer has ended; nothing is ever sent. Dropping it waits for that.
// In a mutex without contention, because a bare receiver would keep the log from being shared.
#[derive(Debug)]
struct Ended(Mutex<Receiver<()>>);

/// A message to the writer.
#[derive(Debug)]
enum Message {
    /// Records, and the channel for the emptied batch.
    Batch(Batch, SyncSender<Batch>),
    /// Check the flag of [`Shared`].
    Wake,
}

/// The state that the loggers, the writer and the handle share.
#[derive(Debug, Default)]
struct Shared {
    /// The file must be opened again.
    reopen: AtomicBool,
    /// Records that were dropped because the writer was behind.
    dropped: AtomicU64,
    /// Records whose line could not be written.
    failed: AtomicU64,
}

impl AccessLog {
    /// Opens the file (it is created with mode 640, or appended to if it exists) and starts the thread that writes it.
    ///
    /// # Errors
    /// If the file cannot be opened, or the thread cannot be started.
    pub fn start(config: &model::AccessLog) -> io::Result<Self> {
        let sink = writer::open(config.path.as_deref())?;
        Self::with_sink(config, sink)
    }

    fn with_sink(config: &model::AccessLog, sink: Box<dyn io::Write + Send>) -> io::Result<Self> {
        let (queue, messages) = mpsc::sync_channel(QUEUE_BATCHES_MAX);
        let (end, ended) = mpsc::sync_channel(0);
        let shared = Arc::new(Shared::default());
        let writer = Writer::new(config.clone(), sink, Arc::clone(&shared));
        std::thread::Builder::new().name("access-log".into()).spawn(move || {
            writer.run(&messages);
            drop(end);
        })?;
        Ok(Self { queue, shared, _ended: Ended(Mutex::new(ended)) })
    }

    /// A worker's handle on the log.
    pub fn logger(&self) -> Logger {
        Logger::new(self.queue.clone(), Arc::clone(&self.shared))
    }

    /// Opens the file again by its path, after it was moved away. If that fails, the old file is used further and the log says why.
    pub fn reopen(&self) {
        self.shared.reopen.store(true, Release);
        // A full queue wakes the writer as well.
        let _ = self.queue.try_send(Message::Wake);
    }

    /// The numbers of lost records, for [`crate::Registry::render`].
    pub fn samples(&self) -> Vec<Sample> {
        let counter = |name, help, count: &AtomicU64| Sample {
            name,
            help,
            kind: Kind::Counter,
            labels: Vec::new(),
            value: count.load(Relaxed) as f64,
        };
        vec![
            counter(
                "steelyard_access_log_dropped_total",
                "Records dropped because the writer was behind.",
                &self.shared.dropped,
            ),
            counter("steelyard_access_log_failed_total", "Records that could not be written.", &self.shared.failed),
        ]
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).recv_timeout(CLOSE_TIMEOUT);
    }
}

#[cfg(test)]
mod tests;
