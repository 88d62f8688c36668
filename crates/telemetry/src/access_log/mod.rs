//! One line for each request or TCP connection, formatted and written off the workers' way.
//!
//! A worker copies what it knows into a batch ([`Logger`]), and hands over full batches; one thread formats and writes them. A worker never
//! waits: when the writer is so far behind that a worker has [`BATCHES_MAX`] batches under way, the next full one is dropped and counted.

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

pub use logger::Logger;

use crate::prometheus::{Kind, Sample};
use crate::reason::Reason;
use batch::Batch;
use writer::Writer;

/// Batches of one worker: one that is filled, and those that wait for the writer. With the 1,024 records of a batch, a worker at 80,000
/// requests a second survives a disk that hangs for 200 ms, and 4 MiB are the most that it costs.
const BATCHES_MAX: usize = 16;
/// Batches of all workers that wait for the writer.
const QUEUE_BATCHES_MAX: usize = 1024;
/// The longest that dropping an [`AccessLog`] waits for the last lines: a reader of our standard output that has stopped must not keep us
/// from ending.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// What a line tells.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// When it began, milliseconds since 1970.
    pub unix_ms: u64,
    /// Who connected, or who that was by the PROXY protocol. Port 0: the port is not known, and not written.
    pub client: SocketAddr,
    /// The listener's name.
    pub listener: &'a str,
    /// What only a request has; `None`: it was a TCP connection.
    pub http: Option<HttpRecord<'a>>,
    /// Bytes from the client: the request with its head, or all of the connection's.
    pub bytes_in: u64,
    /// Bytes to the client.
    pub bytes_out: u64,
    /// The cluster's name; empty: none was chosen.
    pub cluster: &'a str,
    /// The last one tried; `None`: none was.
    pub endpoint: Option<SocketAddr>,
    /// From the first byte of the request, or the accept of the TCP connection, to the last byte of the answer; microseconds.
    pub total_us: u64,
    /// Endpoints tried.
    pub attempts: u32,
    /// What went wrong, if anything did.
    pub reason: Option<Reason>,
}

/// What only a request has. Texts are as the client sent them, whatever they hold; empty ones were not understood or not there.
#[derive(Clone, Copy, Debug)]
pub struct HttpRecord<'a> {
    /// `GET`.
    pub method: &'a [u8],
    /// The request target.
    pub target: &'a [u8],
    /// The version of HTTP that the client spoke: `1.0`, `1.1` or `2`.
    pub version: &'static str,
    /// The Host.
    pub host: &'a [u8],
    /// The code that a call of gRPC ended with; `None`: the request was none.
    pub grpc_status: Option<u8>,
    /// Of the final response; 0: the connection was closed without one.
    pub status: u16,
    /// The route's name; empty: none matched.
    pub route: &'a str,
    /// The time that Steelyard itself took, microseconds.
    pub added_us: u64,
    /// The time until the endpoint's response head was there, microseconds; `None`: it never was.
    pub upstream_us: Option<u64>,
}

/// The access log: its file and the thread that writes it.
///
/// The thread ends when this and all loggers are gone and their lines are written. Dropping this waits for that, but not long, so drop the
/// loggers first, or let the workers take others.
#[derive(Debug)]
pub struct AccessLog {
    // Dropped in this order: our end of the queue must be closed before the writer's end is waited for.
    queue: SyncSender<Message>,
    shared: Arc<Shared>,
    _ended: Ended,
}

/// Closed when the writer has ended; nothing is ever sent. Dropping it waits for that.
// In a mutex that is never contended: a bare receiver would keep the log from being shared.
#[derive(Debug)]
struct Ended(Mutex<Receiver<()>>);

/// What goes to the writer.
#[derive(Debug)]
enum Message {
    /// Records, and where to send the emptied batch.
    Batch(Batch, SyncSender<Batch>),
    /// Look at the flag of [`Shared`].
    Wake,
}

/// What the loggers, the writer and the handle know together.
#[derive(Debug, Default)]
struct Shared {
    /// The file is to be opened again.
    reopen: AtomicBool,
    /// Records that no line was written for since the writer was behind.
    dropped: AtomicU64,
    /// Records whose line could not be written.
    failed: AtomicU64,
}

impl AccessLog {
    /// Opens the file (made with mode 640 where it is not there, appended to where it is) and starts the thread that writes it.
    ///
    /// # Errors
    /// The file cannot be opened, or no thread be started.
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

    /// A worker's way to the log.
    pub fn logger(&self) -> Logger {
        Logger::new(self.queue.clone(), Arc::clone(&self.shared))
    }

    /// Opens the file again by its path, after it was moved away. Where that fails, the old file goes on and the log says why.
    pub fn reopen(&self) {
        self.shared.reopen.store(true, Release);
        // A full queue wakes the writer as well.
        let _ = self.queue.try_send(Message::Wake);
    }

    /// What was lost, for [`crate::Registry::render`].
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
