//! The spans of requests on their way out, and their numbers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use model::Otlp;
use telemetry::{Kind, Sample, TraceQueue, TraceQueueHandle, TraceRecord};

use super::{Counts, Export, Signal, message};

/// Requests whose spans are sent at once. With the longest texts and all their tries, they take less than the 4 MiB that gRPC allows a message.
const EXPORT_REQUESTS_MAX: usize = 256;

/// What the workers have recorded.
pub(super) struct Spans {
    queue: TraceQueue,
    /// Taken from the queue, and not exported yet. They count as queued.
    pending: VecDeque<TraceRecord>,
}

impl Spans {
    pub(super) fn new(queue: TraceQueue) -> Self {
        Self { queue, pending: VecDeque::new() }
    }
}

impl Signal for Spans {
    const NOUN: &str = "spans";
    /// `opentelemetry/proto/collector/trace/v1/trace_service.proto`.
    const METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

    fn take(&mut self) {
        while let Some(batch) = self.queue.try_take() {
            self.pending.extend(batch);
        }
    }

    fn has_more(&self) -> bool {
        !self.pending.is_empty()
    }

    fn next(&mut self, otlp: &Otlp) -> Export {
        let count = self.pending.len().min(EXPORT_REQUESTS_MAX);
        let records: Vec<_> = self.pending.drain(..count).collect();
        let units = records.iter().map(TraceRecord::spans).sum();
        Export { body: message::encode(otlp, &records), units, held: count as u64 }
    }

    fn done(&self, held: u64) {
        self.queue.done(held);
    }

    fn give_up(&mut self) -> u64 {
        let spans = self.pending.iter().map(TraceRecord::spans).sum();
        self.queue.done(self.pending.len() as u64);
        self.pending.clear();
        spans
    }
}

/// The numbers of spans, for `/metrics`.
#[derive(Clone)]
pub(crate) struct Numbers {
    queue: TraceQueueHandle,
    counts: Arc<Counts>,
    /// The configuration has had traces.
    are_used: Arc<AtomicBool>,
}

impl Numbers {
    pub(super) fn new(queue: TraceQueueHandle, counts: Arc<Counts>) -> Self {
        Self { queue, counts, are_used: Arc::default() }
    }

    pub(super) fn use_them(&self) {
        self.are_used.store(true, Relaxed);
    }

    /// For [`telemetry::Registry::render`]. None before the first configuration with traces.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        if !self.are_used.load(Relaxed) {
            return Vec::new();
        }
        let Counts { exported, refused, unreachable, retries, .. } = &*self.counts;
        let counter = |name, help, label: Option<&str>, value: u64| Sample {
            name,
            help,
            kind: Kind::Counter,
            labels: label.map(|label| ("result", label.to_owned())).into_iter().collect(),
            value: value as f64,
        };
        let (name, help) = (
            "steelyard_trace_spans_total",
            "Spans, by result. exported: the collector has them; refused: it does not want them; unreachable: it could not be reached for a \
             minute, or the process ended; overflowed: the queue was full.",
        );
        vec![
            counter(name, help, Some("exported"), exported.load(Relaxed)),
            counter(name, help, Some("refused"), refused.load(Relaxed)),
            counter(name, help, Some("unreachable"), unreachable.load(Relaxed)),
            counter(name, help, Some("overflowed"), self.queue.overflowed()),
            counter(
                "steelyard_trace_retries_total",
                "Exports of spans that were sent again.",
                None,
                retries.load(Relaxed),
            ),
            self.queue.sample(),
        ]
    }
}
