//! Sends the spans of requests, and the records of the access log, to collectors by the OpenTelemetry protocol (OTLP) 1.x.
//!
//! For each of the two, one task on the control thread takes what is in the queue four times a second, and sends it in exports of a
//! bounded size, one at a time. While an export waits for another try, the queue fills; what does not fit is dropped and counted. What the
//! configuration sends nowhere has no task.

mod logs;
mod message;
mod send;
mod spans;

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use model::{LogTarget, Otlp, OtlpHeader};
use proxy::{ClusterPlan, Compiled, NamedFiles};
use telemetry::{ExportLosses, LogExport, TraceQueue, TraceQueueHandle};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use logs::Logs;
pub(crate) use spans::Numbers;
use spans::Spans;

use send::{Client, Outcome};

/// How often the queue is looked at.
const EXPORT_EVERY: Duration = Duration::from_millis(250);

/// The pause after the first failure of an export; it doubles up to the second.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// How long an export is tried. Whoever looks for newer spans must not wait for older ones.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// How long the end of the process waits for the last export.
const LAST_TIMEOUT: Duration = Duration::from_secs(2);

/// A kind of records that are exported.
trait Signal: Send + 'static {
    /// What it is called in the log, in the plural.
    const NOUN: &str;
    /// The call of gRPC.
    const METHOD: &str;

    /// Takes what is in the queue.
    fn take(&mut self);

    /// Whether something was taken and not yet given.
    fn has_more(&self) -> bool;

    /// Gives the next export.
    fn next(&mut self, otlp: &Otlp) -> Export;

    /// Says that an export needs no more memory.
    fn done(&self, held: u64);

    /// Gives up what was taken. Returns the number of records.
    fn give_up(&mut self) -> u64;
}

/// Records that are sent at once.
struct Export {
    body: Vec<u8>,
    /// The number of spans or records, for the counters.
    units: u64,
    /// Its share of the queue.
    held: u64,
}

/// Where records go.
#[derive(Clone)]
struct Target {
    otlp: Arc<Otlp>,
    plan: Arc<ClusterPlan>,
    headers: Arc<HeaderMap>,
}

/// What has become of records.
#[derive(Debug, Default)]
struct Counts {
    exported: AtomicU64,
    refused: AtomicU64,
    unreachable: AtomicU64,
    retries: AtomicU64,
    /// The sum of those that were refused and those for which the collector was unreachable, and whether the last export failed, which was logged.
    losses: Arc<ExportLosses>,
}

impl Counts {
    fn refuse(&self, units: u64) {
        self.refused.fetch_add(units, Relaxed);
        self.losses.lost.fetch_add(units, Relaxed);
    }

    fn give_up(&self, units: u64) {
        self.unreachable.fetch_add(units, Relaxed);
        self.losses.lost.fetch_add(units, Relaxed);
    }
}

/// What exports the records of one kind, whether it runs or not.
struct Lane<S> {
    /// Taken by the task.
    signal: Option<S>,
    target: watch::Sender<Option<Target>>,
    task: Option<JoinHandle<()>>,
    counts: Arc<Counts>,
}

impl<S: Signal> Lane<S> {
    fn new(signal: S) -> Self {
        Self { signal: Some(signal), target: watch::Sender::new(None), task: None, counts: Arc::default() }
    }

    /// Sends records there from now on. Returns whether they are sent anywhere.
    fn follow(&mut self, otlp: Option<&Arc<Otlp>>, compiled: &Compiled, files: &NamedFiles) -> bool {
        let target = otlp.and_then(|otlp| {
            let plan = compiled.clusters.get(otlp.to.0)?.clone();
            Some(Target { otlp: otlp.clone(), plan, headers: Arc::new(headers(otlp, files)) })
        });
        let is_wanted = target.is_some();
        self.target.send_if_modified(|old| {
            let is_same = match (&*old, &target) {
                (Some(old), Some(new)) => {
                    Arc::ptr_eq(&old.plan, &new.plan) && old.otlp == new.otlp && old.headers == new.headers
                }
                (old, new) => old.is_none() && new.is_none(),
            };
            *old = target;
            !is_same
        });
        if is_wanted && let Some(signal) = self.signal.take() {
            let task = Task {
                signal,
                target: self.target.subscribe(),
                counts: self.counts.clone(),
                client: Client::default(),
                backoff: BACKOFF,
                give_up_after: GIVE_UP_AFTER,
                not_before: None,
            };
            self.task = Some(tokio::spawn(task.run()));
        }
        is_wanted
    }

    /// Sends what is left, once, and ends.
    async fn finish(self) {
        let Self { target, task, .. } = self;
        drop(target);
        if let Some(task) = task {
            let _ = timeout(LAST_TIMEOUT, task).await;
        }
    }
}

/// The exporters of spans and of the access log, whether they run or not.
pub(crate) struct Exporter {
    spans: Lane<Spans>,
    numbers: Numbers,
    logs: Lane<Logs>,
    log_queue: logs::Queue,
}

impl Exporter {
    /// Does nothing before [`Exporter::follow`].
    pub(crate) fn new((handle, queue): (TraceQueueHandle, TraceQueue)) -> Self {
        let spans = Lane::new(Spans::new(queue));
        let numbers = Numbers::new(handle, spans.counts.clone());
        let (log_queue, logs) = logs::queue();
        Self { spans, numbers, logs: Lane::new(logs), log_queue }
    }

    /// The numbers of the spans.
    pub(crate) fn numbers(&self) -> Numbers {
        self.numbers.clone()
    }

    /// What an access log gives its records to.
    pub(crate) fn log_export(&self) -> Box<dyn LogExport> {
        Box::new(self.log_queue.sender(self.logs.counts.losses.clone()))
    }

    /// Sends records where this snapshot says.
    pub(crate) fn follow(&mut self, compiled: &Compiled, files: &NamedFiles) {
        let snapshot = &compiled.snapshot;
        if self.spans.follow(snapshot.tracing.as_ref().map(|tracing| &tracing.otlp), compiled, files) {
            self.numbers.use_them();
        }
        let of_log = snapshot.access_log.as_ref().and_then(|log| match &log.target {
            LogTarget::Otlp(otlp) => Some(otlp),
            LogTarget::Stdout | LogTarget::File(_) | LogTarget::Syslog(_) => None,
        });
        self.logs.follow(of_log, compiled, files);
    }

    /// Sends what is left, once, and ends.
    pub(crate) async fn finish(self) {
        tokio::join!(self.spans.finish(), self.logs.finish());
    }
}

/// The headers that the operator wants exports to have.
fn headers(otlp: &Otlp, files: &NamedFiles) -> HeaderMap {
    let pairs = otlp.headers.iter().filter_map(|(name, value)| {
        let text = match value {
            OtlpHeader::Text(secret) => secret.0.as_str(),
            // It was read before this snapshot was adopted.
            OtlpHeader::File(path) => files.header(path)?,
        };
        let mut value = HeaderValue::from_str(text).ok()?;
        // No table of HPACK may hold it, and nothing prints it.
        value.set_sensitive(true);
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
    });
    pairs.collect()
}

/// What the task has.
struct Task<S> {
    signal: S,
    target: watch::Receiver<Option<Target>>,
    counts: Arc<Counts>,
    client: Client,
    backoff: (Duration, Duration),
    give_up_after: Duration,
    /// The collector wants nothing before this.
    not_before: Option<Instant>,
}

impl<S: Signal> Task<S> {
    async fn run(mut self) {
        let mut tick = interval(EXPORT_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_over = tokio::select! {
                _ = tick.tick() => false,
                changed = self.target.changed() => {
                    self.forget_collector();
                    changed.is_err()
                }
            };
            self.signal.take();
            while self.signal.has_more() {
                // If the process ends, it is the last one.
                let target = self.target.borrow_and_update().clone();
                match target {
                    Some(target) => self.export(target).await,
                    // The collector is no longer wanted.
                    None => {
                        let units = self.signal.give_up();
                        self.counts.give_up(units);
                    }
                }
            }
            if is_over {
                return;
            }
        }
    }

    /// The next one may be another.
    fn forget_collector(&mut self) {
        self.client.close();
        self.not_before = None;
    }

    /// Sends the first of what is pending, until it has arrived or is given up.
    async fn export(&mut self, target: Target) {
        let Export { body, units, held } = self.signal.next(&target.otlp);
        let body = if target.otlp.gzip { compressed(&body) } else { body };
        let lost = self.send(target, Bytes::from(body), units).await;
        self.counts.exported.fetch_add(units - lost, Relaxed);
        self.signal.done(held);
    }

    /// Returns how many of these records have not arrived, which are counted.
    async fn send(&mut self, mut target: Target, body: Bytes, units: u64) -> u64 {
        let give_up_at = Instant::now() + self.give_up_after;
        let (mut backoff, longest) = self.backoff;
        let is_gzip = target.otlp.gzip;
        // What the collector has said of the export before holds for this one.
        let mut until = self.not_before.take();
        let mut is_retry = false;
        loop {
            if let Some(pause_end) = until.take() {
                match self.wait(pause_end.min(give_up_at)).await {
                    Waited::Over if pause_end > give_up_at => {
                        self.not_before = Some(pause_end);
                        self.counts.give_up(units);
                        return units;
                    }
                    Waited::Over => {}
                    Waited::Changed(Some(new)) => target = new,
                    Waited::Changed(None) => {
                        self.counts.give_up(units);
                        return units;
                    }
                }
            }
            self.counts.retries.fetch_add(u64::from(is_retry), Relaxed);
            is_retry = true;
            let cluster = target.plan.policy.name.as_str();
            let sending = self.client.send(&target, S::METHOD, is_gzip, body.clone());
            let outcome = timeout(target.otlp.timeout, sending)
                .await
                .unwrap_or_else(|_| Outcome::TryAgain(format!("no answer within {:?}", target.otlp.timeout), None));
            let noun = S::NOUN;
            let (why, after) = match outcome {
                Outcome::Accepted { rejected, why } => {
                    let rejected = rejected.min(units);
                    if rejected > 0 || !why.is_empty() {
                        tracing::warn!(cluster, rejected, why, "the collector has not taken all {noun}");
                    }
                    if self.counts.losses.is_failing.swap(false, Relaxed) {
                        tracing::info!(cluster, "{noun} arrive again");
                    }
                    self.counts.refuse(rejected);
                    return rejected;
                }
                Outcome::Refused(why) => {
                    self.tell(cluster, &why, &format!("the collector refuses {noun}, which are lost"));
                    self.counts.refuse(units);
                    return units;
                }
                Outcome::TryAgain(why, after) => (why, after),
            };
            self.tell(cluster, &why, &format!("cannot export {noun}; they are tried for a minute"));
            // Up to half of it less, so that the exporters of many instances do not come back at the same moment.
            let jitter = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
            let pause_end = Instant::now() + after.unwrap_or_else(|| backoff.mul_f64(1.0 - jitter / 2.0));
            backoff = (backoff * 2).min(longest);
            if pause_end > give_up_at {
                // The next export waits for as long as the collector has asked for, or without a pause of its own.
                self.not_before = after.map(|_| pause_end);
                self.counts.give_up(units);
                return units;
            }
            until = Some(pause_end);
        }
    }

    async fn wait(&mut self, until: Instant) -> Waited {
        tokio::select! {
            () = sleep_until(until) => Waited::Over,
            changed = self.target.changed() => {
                self.forget_collector();
                Waited::Changed(self.target.borrow_and_update().clone().filter(|_| changed.is_ok()))
            }
        }
    }

    /// Logs the first of several failures.
    fn tell(&self, cluster: &str, why: &str, what: &str) {
        if !self.counts.losses.is_failing.swap(true, Relaxed) {
            tracing::warn!(cluster, why, "{what}");
        }
    }
}

/// The end of a wait.
enum Waited {
    Over,
    /// Another collector, or other addresses; `None` if there is none any more, or the process ends.
    Changed(Option<Target>),
}

fn compressed(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 4), Compression::fast());
    // Writing to a Vec does not fail.
    let _ = encoder.write_all(body);
    encoder.finish().unwrap_or_default()
}

#[cfg(test)]
mod tests;
