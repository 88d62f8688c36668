//! One line for each request or TCP connection, formatted and written without delaying the workers.
//!
//! `rules` decides which records are logged, on the worker. A worker copies its data into a batch ([`Logger`]) and hands over full batches; one thread formats and writes them. A worker never
//! waits: if the writer is so far behind that a worker has [`BATCHES_MAX`] batches in use, the next full one is dropped and counted.

mod batch;
mod entry;
mod escape;
mod format;
mod formatter;
mod logger;
mod rules;
mod syslog;
mod writer;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::{LogFormat, LogTarget, LogValue};

pub use entry::{LogAttribute, LogAttributes, LogEntry};
pub use format::Timestamp;
pub use logger::Logger;

use crate::prometheus::{Kind, Sample};
use crate::reason::Reason;
use batch::Batch;
use formatter::Formatter;
use rules::Rules;
use syslog::SyslogSender;
use writer::{Lines, Output, Sink, Writer};

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
#[derive(Clone, Copy, Debug, Default)]
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
    /// The status of a response that was replaced; `None` if none was.
    pub intercepted: Option<u16>,
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
    rules: Arc<Rules>,
    /// What an export has lost after it took it.
    export: Option<Arc<ExportLosses>>,
    _ended: Ended,
}

/// Takes the records for a collector, on the thread of the log.
pub trait LogExport: Send {
    /// Takes a record. Returns how many records there was no room for.
    fn push(&mut self, entry: &LogEntry<'_>, attributes: &LogAttributes) -> u64;

    /// Hands over what there is. Returns how many records there was no room for.
    fn flush(&mut self) -> u64;

    /// Counts records that were taken and did not arrive.
    fn losses(&self) -> Arc<ExportLosses>;
}

/// What has become of records that an export has taken.
#[derive(Debug, Default)]
pub struct ExportLosses {
    /// Records that did not arrive.
    pub lost: AtomicU64,
    /// The last attempt failed.
    pub is_failing: AtomicBool,
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
    /// The last record could not be written, which was logged.
    is_failing: AtomicBool,
}

impl AccessLog {
    /// Opens the target (a file is created with mode 640, or appended to if it exists) and starts the thread that writes to it. `export` is for
    /// a log that goes to a collector.
    ///
    /// # Errors
    /// If the file cannot be opened, or the thread cannot be started.
    pub fn start(config: &model::AccessLog, export: Option<Box<dyn LogExport>>) -> io::Result<Self> {
        let path = match &config.target {
            LogTarget::File(path) => Some(path.as_path()),
            LogTarget::Stdout | LogTarget::Syslog(_) | LogTarget::Otlp(_) => None,
        };
        let sink = writer::open(path)?;
        Self::with_sink(config, sink, export)
    }

    fn with_sink(config: &model::AccessLog, sink: Sink, export: Option<Box<dyn LogExport>>) -> io::Result<Self> {
        let (queue, messages) = mpsc::sync_channel(QUEUE_BATCHES_MAX);
        let (end, ended) = mpsc::sync_channel(0);
        let shared = Arc::new(Shared::default());
        let rules = Arc::new(Rules::new(config));
        let formatter = Formatter::new(&config.format, &rules.extras);
        let losses = export.as_ref().map(|export| export.losses());
        let output = match (&config.target, export) {
            (LogTarget::Stdout, _) => Output::Lines(Lines::new(None, formatter, sink, shared.clone())),
            (LogTarget::File(path), _) => {
                Output::Lines(Lines::new(Some(path.clone()), formatter, sink, shared.clone()))
            }
            (LogTarget::Syslog(syslog), _) => {
                Output::Syslog(SyslogSender::new(syslog.clone(), formatter, shared.clone()))
            }
            (LogTarget::Otlp(_), Some(export)) => {
                let fields = match &config.format {
                    LogFormat::Attributes(fields) => fields.clone(),
                    _ => LogValue::usual_fields(),
                };
                Output::Export(export, LogAttributes::new(&fields, &rules.extras))
            }
            (LogTarget::Otlp(_), None) => return Err(io::ErrorKind::Unsupported.into()),
        };
        let writer = Writer::new(output, Arc::clone(&shared));
        std::thread::Builder::new().name("access-log".into()).spawn(move || {
            writer.run(&messages);
            drop(end);
        })?;
        Ok(Self { queue, shared, rules, export: losses, _ended: Ended(Mutex::new(ended)) })
    }

    /// A worker's handle on the log.
    pub fn logger(&self) -> Logger {
        Logger::new(self.queue.clone(), Arc::clone(&self.shared), Arc::clone(&self.rules))
    }

    /// Opens the file again by its path, after it was moved away. If that fails, the old file is used further and the log says why.
    pub fn reopen(&self) {
        self.shared.reopen.store(true, Release);
        // A full queue wakes the writer as well.
        let _ = self.queue.try_send(Message::Wake);
    }

    /// The numbers of lost records, for [`crate::Registry::render`].
    pub fn samples(&self) -> Vec<Sample> {
        let counter = |name, help, count: u64| Sample {
            name,
            help,
            kind: Kind::Counter,
            labels: Vec::new(),
            value: count as f64,
        };
        let [dropped, failed] = self.losses();
        vec![
            counter("steelyard_access_log_dropped_total", "Records dropped because the writer was behind.", dropped),
            counter("steelyard_access_log_failed_total", "Records that could not be written.", failed),
        ]
    }

    /// Records that were dropped because the writer was behind, and those that could not be written.
    pub fn losses(&self) -> [u64; 2] {
        let lost = self.export.as_ref().map_or(0, |export| export.lost.load(Relaxed));
        [self.shared.dropped.load(Relaxed), self.shared.failed.load(Relaxed) + lost]
    }

    /// Whether records cannot be written now, as far as is known.
    pub fn is_failing(&self) -> bool {
        let is_failing = |export: &Arc<ExportLosses>| export.is_failing.load(Relaxed);
        self.shared.is_failing.load(Relaxed) || self.export.as_ref().is_some_and(is_failing)
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).recv_timeout(CLOSE_TIMEOUT);
    }
}

#[cfg(test)]
mod tests;
