//! The records of the access log on their way out. The thread of the log encodes them; the control thread puts them together.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::BufMut;
use model::Otlp;
use prost::Message;
use prost::encoding::encode_varint;
use telemetry::{ExportLosses, LogAttribute, LogAttributes, LogEntry, LogExport};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::message::{self, AnyKind, AnyValue, KeyValue};
use super::{Export, Signal};

/// Batches that wait for the control thread. With the longest texts, they take 10 MiB.
const QUEUE_BATCHES_MAX: usize = 64;

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
pub(super) struct Queue(Sender<LogBatch>);

/// The end of the control thread.
pub(super) struct Logs {
    queue: Receiver<LogBatch>,
    pending: VecDeque<LogBatch>,
}

/// An empty queue.
pub(super) fn queue() -> (Queue, Logs) {
    let (sender, queue) = channel(QUEUE_BATCHES_MAX);
    (Queue(sender), Logs { queue, pending: VecDeque::new() })
}

impl Queue {
    /// An end for one log.
    pub(super) fn sender(&self, losses: Arc<ExportLosses>) -> LogSender {
        LogSender { queue: self.0.clone(), batch: LogBatch::default(), losses }
    }
}

/// What an access log gives its records to.
pub(super) struct LogSender {
    queue: Sender<LogBatch>,
    batch: LogBatch,
    losses: Arc<ExportLosses>,
}

impl LogExport for LogSender {
    fn push(&mut self, entry: &LogEntry<'_>, attributes: &LogAttributes) -> u64 {
        let record = record(entry, attributes);
        // Field 2, with a length.
        self.batch.records.put_u8(2 << 3 | 2);
        encode_varint(record.encoded_len() as u64, &mut self.batch.records);
        // Writing to a Vec does not fail.
        let _ = record.encode(&mut self.batch.records);
        self.batch.count += 1;
        if self.batch.records.len() >= BATCH_BYTES { self.flush() } else { 0 }
    }

    fn flush(&mut self) -> u64 {
        if self.batch.count == 0 {
            return 0;
        }
        let batch = std::mem::take(&mut self.batch);
        let count = batch.count;
        match self.queue.try_send(batch) {
            Ok(()) => 0,
            Err(_) => count,
        }
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
        // As many as the queue holds: while they are exported, it can fill again, and no further.
        while self.pending.len() < QUEUE_BATCHES_MAX
            && let Ok(batch) = self.queue.try_recv()
        {
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
        Export { body: request(otlp, &records), units, held: 0 }
    }

    fn done(&self, _held: u64) {}

    fn give_up(&mut self) -> u64 {
        self.pending.drain(..).map(|batch| batch.count).sum()
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
fn part(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(content.len() + 8);
    out.put_u8(number << 3 | 2);
    encode_varint(content.len() as u64, &mut out);
    out.extend_from_slice(content);
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

    #[test]
    fn an_export_can_be_read() {
        let otlp = Otlp {
            to: ClusterId(0),
            protocol: OtlpProtocol::Grpc,
            host: None,
            headers: Vec::new(),
            gzip: false,
            service: "edge".to_owned(),
            attributes: Vec::new(),
            timeout: Duration::from_secs(1),
        };
        let (queue, mut logs) = queue();
        for name in ["a", "b"] {
            queue.0.try_send(batch(name)).unwrap();
        }
        logs.take();
        let export = logs.next(&otlp);
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
        let mut dropped = 0;
        for _ in 0..3 * QUEUE_BATCHES_MAX {
            sender.batch = batch("a");
            dropped += sender.flush();
            logs.take();
        }
        assert_eq!(dropped, QUEUE_BATCHES_MAX as u64);
        assert_eq!(logs.give_up(), QUEUE_BATCHES_MAX as u64);
    }

    #[test]
    fn ids() {
        assert_eq!(bytes_of(b"00ff1a"), [0, 255, 26]);
        assert_eq!(bytes_of(b"0g"), Vec::<u8>::new());
        assert_eq!(bytes_of(b""), Vec::<u8>::new());
    }
}
