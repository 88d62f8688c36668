//! Sends the spans of requests to a collector, by the OpenTelemetry protocol (OTLP) 1.x.
//!
//! One task on the control thread takes what the workers have recorded ([`TraceQueue`]) four times a second, and sends it in exports of a
//! bounded size, one at a time. While an export waits for another try, the queue fills; what does not fit is dropped and counted. Without
//! `tracing` in the configuration there is no task.

mod message;
mod send;

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use bytes::Bytes;
use model::Tracing;
use proxy::{ClusterPlan, Compiled};
use telemetry::{Kind, Sample, TraceQueue, TraceQueueHandle, TraceRecord};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use send::{Client, Outcome};

/// How often the queue is looked at.
const EXPORT_EVERY: Duration = Duration::from_millis(250);

/// Requests whose spans are sent at once. With the longest texts and all their tries, they take less than the 4 MiB that gRPC allows a message.
const EXPORT_REQUESTS_MAX: usize = 256;

/// The pause after the first failure of an export; it doubles up to the second.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// How long an export is tried. Whoever looks for newer spans must not wait for older ones.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// How long the end of the process waits for the last export.
const LAST_TIMEOUT: Duration = Duration::from_secs(2);

/// Where spans go.
#[derive(Clone)]
struct Target {
    tracing: Arc<Tracing>,
    plan: Arc<ClusterPlan>,
}

/// What has become of spans.
#[derive(Debug, Default)]
struct Counts {
    /// The configuration has had traces.
    is_used: AtomicBool,
    exported: AtomicU64,
    refused: AtomicU64,
    unreachable: AtomicU64,
    retries: AtomicU64,
}

/// The exporter, whether it runs or not.
pub(crate) struct Exporter {
    /// Taken by the task.
    queue: Option<TraceQueue>,
    target: watch::Sender<Option<Target>>,
    task: Option<JoinHandle<()>>,
    numbers: Numbers,
}

/// The numbers of the exporter, for `/metrics`.
#[derive(Clone)]
pub(crate) struct Numbers {
    queue: TraceQueueHandle,
    counts: Arc<Counts>,
}

impl Exporter {
    /// Does nothing before [`Exporter::follow`].
    pub(crate) fn new((handle, queue): (TraceQueueHandle, TraceQueue)) -> Self {
        let numbers = Numbers { queue: handle, counts: Arc::default() };
        Self { queue: Some(queue), target: watch::Sender::new(None), task: None, numbers }
    }

    /// Its numbers.
    pub(crate) fn numbers(&self) -> Numbers {
        self.numbers.clone()
    }

    /// Sends spans where this snapshot says.
    pub(crate) fn follow(&mut self, compiled: &Compiled) {
        let tracing = compiled.snapshot.tracing.clone();
        let target = tracing.and_then(|tracing| {
            let plan = compiled.clusters.get(tracing.to.0)?.clone();
            Some(Target { tracing, plan })
        });
        let is_wanted = target.is_some();
        self.target.send_if_modified(|old| {
            let is_same = match (&*old, &target) {
                (Some(old), Some(new)) => Arc::ptr_eq(&old.plan, &new.plan) && old.tracing == new.tracing,
                (old, new) => old.is_none() && new.is_none(),
            };
            *old = target;
            !is_same
        });
        if is_wanted && let Some(queue) = self.queue.take() {
            self.numbers.counts.is_used.store(true, Relaxed);
            let task = Task {
                queue,
                pending: VecDeque::new(),
                target: self.target.subscribe(),
                counts: self.numbers.counts.clone(),
                client: Client::default(),
                backoff: BACKOFF,
                give_up_after: GIVE_UP_AFTER,
                is_failing: false,
            };
            self.task = Some(tokio::spawn(task.run()));
        }
    }

    /// Sends what is left, once, and ends.
    pub(crate) async fn finish(self) {
        let Self { target, task, .. } = self;
        drop(target);
        if let Some(task) = task {
            let _ = timeout(LAST_TIMEOUT, task).await;
        }
    }
}

impl Numbers {
    /// For [`telemetry::Registry::render`]. None before the first configuration with traces.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        let Counts { is_used, exported, refused, unreachable, retries } = &*self.counts;
        if !is_used.load(Relaxed) {
            return Vec::new();
        }
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

/// What the task has.
struct Task {
    queue: TraceQueue,
    /// Taken from the queue, and not exported yet. They count as queued.
    pending: VecDeque<TraceRecord>,
    target: watch::Receiver<Option<Target>>,
    counts: Arc<Counts>,
    client: Client,
    backoff: (Duration, Duration),
    give_up_after: Duration,
    /// Whether the last export failed, which was logged.
    is_failing: bool,
}

impl Task {
    async fn run(mut self) {
        let mut tick = interval(EXPORT_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_over = tokio::select! {
                _ = tick.tick() => false,
                changed = self.target.changed() => {
                    // The connection may be one to another cluster.
                    self.client.close();
                    changed.is_err()
                }
            };
            self.take();
            while !self.pending.is_empty() {
                // If the process ends, it is the last one.
                let target = self.target.borrow_and_update().clone();
                match target {
                    Some(target) => self.export(target).await,
                    None => self.drop_pending(),
                }
            }
            if is_over {
                return;
            }
        }
    }

    fn take(&mut self) {
        while let Some(batch) = self.queue.try_take() {
            self.pending.extend(batch);
        }
    }

    /// The collector is no longer wanted.
    fn drop_pending(&mut self) {
        let spans = self.pending.iter().map(|record| record.spans()).sum();
        self.counts.unreachable.fetch_add(spans, Relaxed);
        self.queue.done(self.pending.len() as u64);
        self.pending.clear();
    }

    /// Sends the first of what is pending, until it has arrived or is given up.
    async fn export(&mut self, target: Target) {
        let count = self.pending.len().min(EXPORT_REQUESTS_MAX);
        let records: Vec<_> = self.pending.drain(..count).collect();
        let spans: u64 = records.iter().map(|record| record.spans()).sum();
        let body = Bytes::from(message::encode(&target.tracing, &records));
        drop(records);
        let refused = self.send(target, body, spans).await;
        self.counts.exported.fetch_add(spans - refused, Relaxed);
        self.queue.done(count as u64);
    }

    /// Returns how many of these spans have not arrived, which are counted.
    async fn send(&mut self, mut target: Target, body: Bytes, spans: u64) -> u64 {
        let give_up_at = Instant::now() + self.give_up_after;
        let (mut backoff, longest) = self.backoff;
        loop {
            let cluster = target.plan.policy.name.as_str();
            let sending = self.client.send(&target.tracing, &target.plan, body.clone());
            let outcome = timeout(target.tracing.timeout, sending)
                .await
                .unwrap_or_else(|_| Outcome::TryAgain(format!("no answer within {:?}", target.tracing.timeout), None));
            let (why, after) = match outcome {
                Outcome::Accepted { rejected, why } => {
                    let rejected = rejected.min(spans);
                    if rejected > 0 || !why.is_empty() {
                        tracing::warn!(cluster, rejected, why, "the collector has not taken all spans");
                    }
                    if std::mem::take(&mut self.is_failing) {
                        tracing::info!(cluster, "spans arrive again");
                    }
                    self.counts.refused.fetch_add(rejected, Relaxed);
                    return rejected;
                }
                Outcome::Refused(why) => {
                    self.tell(cluster, &why, "the collector refuses spans, which are lost");
                    self.counts.refused.fetch_add(spans, Relaxed);
                    return spans;
                }
                Outcome::TryAgain(why, after) => (why, after),
            };
            self.tell(cluster, &why, "cannot export spans; they are tried for a minute");
            // Up to half of it less, so that the exporters of many instances do not come back at the same moment.
            let jitter = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
            let pause = after.unwrap_or_else(|| backoff.mul_f64(1.0 - jitter / 2.0));
            backoff = (backoff * 2).min(longest);
            if Instant::now() + pause > give_up_at {
                self.counts.unreachable.fetch_add(spans, Relaxed);
                return spans;
            }
            tokio::select! {
                () = sleep(pause) => {}
                changed = self.target.changed() => {
                    self.client.close();
                    // Another collector, or other addresses; or none, or the process ends.
                    let new = self.target.borrow_and_update().clone().filter(|_| changed.is_ok());
                    let Some(new) = new else {
                        self.counts.unreachable.fetch_add(spans, Relaxed);
                        return spans;
                    };
                    target = new;
                }
            }
            self.counts.retries.fetch_add(1, Relaxed);
        }
    }

    /// Logs the first of several failures.
    fn tell(&mut self, cluster: &str, why: &str, what: &str) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(cluster, why, "{what}");
        }
    }
}

#[cfg(test)]
mod tests;
