//! The records of the access log on their way out. The thread of the log encodes them; the control thread puts them together.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use model::Otlp;
use prost::{Message, encoding};
use telemetry::{ExportLosses, LogAttribute, LogAttributes, LogEntry, LogExport};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::message::{self, AnyKind, AnyValue, KeyValue};
use super::{Export, Signal};

/// Bytes of encoded records that wait or are being sent: thousands of records. Batches are not counted, because a quiet listener has batches of one
/// record, and those of a minute must find room.
const QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A batch is handed over when it has this size, in bytes. One more record takes 96 KiB at most.
const BATCH_BYTES: usize = 64 * 1024;

/// No more batches are added to an export of this size, in bytes. gRPC allows a message 4 MiB.
const EXPORT_BYTES: usize = 1024 * 1024;

/// Severities (`opentelemetry/proto/logs/v1/logs.proto`).
const INFO: (i32, &str) = (9, "INFO");
const WARN: (i32, &str) = (13, "WARN");

#[derive(Clone, PartialEq, Message)]
struct LogRecord {
    #[prost(fixed64, tag = "1")]
    time_unix_nano: u64,
    #[prost(int32, tag = "2")]
    severity_number: i32,
    #[prost(string, tag = "3")]
    severity_text: String,
    #[prost(message, optional, tag = "5")]
    body: Option<AnyValue>,
    #[prost(message, repeated, tag = "6")]
    attributes: Vec<KeyValue>,
    #[prost(bytes = "vec", tag = "9")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "10")]
    span_id: Vec<u8>,
    #[prost(fixed64, tag = "11")]
    observed_time_unix_nano: u64,
    #[prost(string, tag = "12")]
    event_name: String,
}

/// Encoded records.
#[derive(Debug, Default)]
struct LogBatch {
    /// As they stand in a `ScopeLogs`, each with its key.
    records: Vec<u8>,
    count: u64,
}

/// The queue's end for logs.
#[derive(Clone)]
pub(super) struct Queue {
    sender: UnboundedSender<LogBatch>,
    /// Bytes of the records in the queue and in `Logs`. `held <= QUEUE_BYTES_MAX`.
    held: Arc<AtomicUsize>,
}

/// The end of the control thread.
pub(super) struct Logs {
    queue: UnboundedReceiver<LogBatch>,
    pending: VecDeque<LogBatch>,
    /// That of the queue.
    held: Arc<AtomicUsize>,
}

/// An empty queue.
pub(super) fn queue() -> (Queue, Logs) {
    let (sender, queue) = unbounded_channel();
    let held = Arc::new(AtomicUsize::new(0));
    (Queue { sender, held: held.clone() }, Logs { queue, pending: VecDeque::new(), held })
}

impl Queue {
    /// An end for one log.
    pub(super) fn sender(&self, losses: Arc<ExportLosses>) -> LogSender {
        LogSender { queue: self.clone(), batch: LogBatch::default(), losses }
    }

    /// Returns how many records there was no room for.
    fn push(&self, batch: LogBatch) -> u64 {
        let bytes = batch.records.len();
        let has_room = |held: usize| Some(held + bytes).filter(|held| *held <= QUEUE_BYTES_MAX);
        if self.held.fetch_update(Relaxed, Relaxed, has_room).is_err() {
            return batch.count;
        }
        match self.sender.send(batch) {
            Ok(()) => 0,
            // The process ends.
            Err(unsent) => unsent.0.count,
        }
    }
}

/// What an access log gives its records to.
pub(super) struct LogSender {
    queue: Queue,
    batch: LogBatch,
    losses: Arc<ExportLosses>,
}

impl LogExport for LogSender {
    fn push(&mut self, entry: &LogEntry<'_>, attributes: &LogAttributes) -> u64 {
        let record = record(entry, attributes);
        encoding::message::encode(2, &record, &mut self.batch.records);
        self.batch.count += 1;
        if self.batch.records.len() >= BATCH_BYTES { self.flush() } else { 0 }
    }

    fn flush(&mut self) -> u64 {
        if self.batch.count == 0 {
            return 0;
        }
        self.queue.push(std::mem::take(&mut self.batch))
    }

    fn losses(&self) -> Arc<ExportLosses> {
        self.losses.clone()
    }
}

fn record(entry: &LogEntry<'_>, attributes: &LogAttributes) -> LogRecord {
    let mut pairs = Vec::new();
    attributes.each(entry, |name, value| {
        let kind = match value {
            LogAttribute::Text(text) => AnyKind::Text(text.into_owned()),
            LogAttribute::Integer(number) => AnyKind::Integer(i64::try_from(number).unwrap_or(i64::MAX)),
            LogAttribute::Double(number) => AnyKind::Double(number),
        };
        pairs.push(KeyValue { key: name.to_owned(), value: Some(AnyValue { kind: Some(kind) }) });
    });
    let [trace_id, span_id] = attributes.trace(entry).map(bytes_of);
    let (severity_number, severity_text) = if entry.is_error() { WARN } else { INFO };
    let nanos = entry.unix_ms().saturating_mul(1_000_000);
    LogRecord {
        time_unix_nano: nanos,
        severity_number,
        severity_text: severity_text.to_owned(),
        body: Some(AnyValue { kind: Some(AnyKind::Text(entry.summary())) }),
        attributes: pairs,
        trace_id,
        span_id,
        observed_time_unix_nano: nanos,
        event_name: "access".to_owned(),
    }
}

/// The bytes of an id in hex; empty if it is none.
fn bytes_of(hex: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = hex.chunks_exact(2).map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?));
    pairs.collect::<Option<Vec<u8>>>().unwrap_or_default()
}

impl Signal for Logs {
    const NOUN: &str = "records of the access log";
    /// `opentelemetry/proto/collector/logs/v1/logs_service.proto`.
    const METHOD: &str = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";

    fn take(&mut self) {
        while let Ok(batch) = self.queue.try_recv() {
            self.pending.push_back(batch);
        }
    }

    fn has_more(&self) -> bool {
        !self.pending.is_empty()
    }

    fn next(&mut self, otlp: &Otlp) -> Export {
        let (mut records, mut units) = (Vec::new(), 0);
        while records.len() < EXPORT_BYTES
            && let Some(batch) = self.pending.pop_front()
        {
            records.extend_from_slice(&batch.records);
            units += batch.count;
        }
        Export { body: request(otlp, &records), units, held: records.len() as u64 }
    }

    fn done(&self, held: u64) {
        self.held.fetch_sub(held as usize, Relaxed);
    }

    fn give_up(&mut self) -> u64 {
        let (mut units, mut bytes) = (0, 0);
        for batch in self.pending.drain(..) {
            units += batch.count;
            bytes += batch.records.len();
        }
        self.held.fetch_sub(bytes, Relaxed);
        units
    }
}

/// An `ExportLogsServiceRequest` with these records: resource logs, which have a resource and scope logs, which have a scope and the records. All
/// three have their parts as the fields 1 and 2.
fn request(otlp: &Otlp, records: &[u8]) -> Vec<u8> {
    let scope_logs = [part(1, &message::scope().encode_to_vec()), records.to_vec()].concat();
    let resource_logs = [part(1, &message::resource(otlp).encode_to_vec()), part(2, &scope_logs)].concat();
    part(1, &resource_logs)
}

/// A field with a length.
fn part(number: u32, content: &Vec<u8>) -> Vec<u8> {
    let mut out = Vec::with_capacity(content.len() + 8);
    encoding::bytes::encode(number, content, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::{ClusterId, OtlpProtocol};

    use super::*;

    #[derive(Clone, PartialEq, Message)]
    struct Request {
        #[prost(message, repeated, tag = "1")]
        resource_logs: Vec<ResourceLogs>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct ResourceLogs {
        #[prost(message, optional, tag = "1")]
        resource: Option<message::Resource>,
        #[prost(message, repeated, tag = "2")]
        scope_logs: Vec<ScopeLogs>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct ScopeLogs {
        #[prost(message, optional, tag = "1")]
        scope: Option<message::Scope>,
        #[prost(message, repeated, tag = "2")]
        log_records: Vec<LogRecord>,
    }

    fn batch(name: &str) -> LogBatch {
        let record = LogRecord { event_name: name.to_owned(), ..LogRecord::default() };
        LogBatch { records: part(2, &record.encode_to_vec()), count: 1 }
    }

    fn otlp() -> Otlp {
        Otlp {
            to: ClusterId(0),
            protocol: OtlpProtocol::Grpc,
            host: None,
            headers: Vec::new(),
            gzip: false,
            service: "edge".to_owned(),
            attributes: Vec::new(),
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn an_export_can_be_read() {
        let (queue, mut logs) = queue();
        for name in ["a", "b"] {
            assert_eq!(queue.push(batch(name)), 0);
        }
        logs.take();
        let export = logs.next(&otlp());
        assert_eq!((export.units, logs.has_more()), (2, false));
        let request = Request::decode(export.body.as_slice()).unwrap();
        let [of_resource] = request.resource_logs.as_slice() else { panic!("{request:?}") };
        let service = &of_resource.resource.as_ref().unwrap().attributes[0];
        assert_eq!(service.key, "service.name");
        let [of_scope] = of_resource.scope_logs.as_slice() else { panic!("{request:?}") };
        assert_eq!(of_scope.scope.as_ref().unwrap().name, "steelyard");
        let names: Vec<&str> = of_scope.log_records.iter().map(|record| record.event_name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn a_full_queue_takes_no_more() {
        let (queue, mut logs) = queue();
        let mut sender = queue.sender(Arc::default());
        // A batch of one record takes no more room than the record.
        let text = "a".repeat(4096);
        let one = batch(&text).records.len();
        let room = (QUEUE_BYTES_MAX / one) as u64;
        let mut push = |count: u64| {
            let each = |_| {
                sender.batch = batch(&text);
                sender.flush()
            };
            (0..count).map(each).sum::<u64>()
        };
        assert_eq!(push(room + 7), 7);
        // What is taken and what is being sent counts as well.
        logs.take();
        assert_eq!(push(1), 1);
        let export = logs.next(&otlp());
        assert!(export.units < room && push(1) == 1);
        logs.done(export.held);
        assert_eq!(push(export.units + 1), 1);
        logs.take();
        assert_eq!(logs.give_up(), room);
        assert_eq!(push(room + 1), 1);
    }

    #[test]
    fn ids() {
        assert_eq!(bytes_of(b"00ff1a"), [0, 255, 26]);
        assert_eq!(bytes_of(b"0g"), Vec::<u8>::new());
        assert_eq!(bytes_of(b""), Vec::<u8>::new());
    }
}
