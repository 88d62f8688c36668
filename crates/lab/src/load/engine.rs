//! The loops that generate load: closed (like wrk and ab) or open (like wrk2), for any protocol, on several threads.
//!
//! A *lane* carries one operation at a time. It is a connection, or one of several streams on a connection.
//!
//! In a closed loop, each lane starts its next operation when the last one ends, so a slow server receives fewer operations. This is good
//! for measuring capacity and misleading for latency, because the requests that would have arrived during a stall are never sent. In an
//! open loop, operations are due at a fixed rate, and latency counts from when they were due.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::arrivals::{Arrivals, Clock};
use super::generators::Part;
use super::pace::{Pacer, paced};
use super::replay::Schedule;
use super::report::LoadReport;
use super::shape::{Shape, Timeline, Until, share_of};
use super::tally::{Met, Outcome, Tally, ThreadCost, Times};
use crate::record::Pacing;
use crate::{host, procfs};

/// The pause after a failed connect. A refused connect fails at once, and a tight loop would only measure how fast connects fail.
const CONNECT_PAUSE: Duration = Duration::from_millis(10);

/// Carries operations, one at a time.
pub(super) trait Lane: Send + 'static {
    /// Connects before the first operation of an open loop. If that fails, the first operation connects again and counts the failure.
    fn prepare(&mut self) -> impl Future<Output = ()> + Send;

    /// Runs one operation: with a recording, that at this place of its requests. If it times out, the future is dropped, and the lane must then
    /// be ready for the next operation.
    fn operate(&mut self, place: Option<usize>, met: &mut Met) -> impl Future<Output = Outcome> + Send;

    /// Whether the lane has an open connection, which [`Shape::hold`] may keep open.
    fn is_open(&self) -> bool;
}

/// Creates the lanes of a load.
pub(super) trait Protocol: Clone + Send + Sync + 'static {
    /// The lanes of this protocol.
    type Lane: Lane;

    /// Returns the lanes of one connection. `number` is the number of the connection, counted over all threads.
    fn lanes(&self, number: u64, streams: usize) -> Vec<Self::Lane>;
}

/// The state that the threads of a load share.
pub(super) struct Run {
    pub shape: Shape,
    pub timeline: Timeline,
    /// The responses to operations that start after this is set count under `origins_after_mark`.
    mark: Arc<AtomicBool>,
    given_up: AtomicBool,
}

/// One thread of a load.
#[derive(Clone)]
pub(super) struct Thread {
    pub run: Arc<Run>,
    pub index: u64,
    /// The number of the first connection of this thread; it has `share` connections.
    pub first: u64,
    pub share: u64,
    /// Shared by the tasks of this thread, and read twice a second if progress is shown, so the lock is hardly ever contended.
    tally: Arc<Mutex<Tally>>,
}

impl Thread {
    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Run {
    /// Whether another operation may start.
    pub(super) fn may_begin(&self, now: Instant) -> bool {
        !self.given_up.load(Ordering::Relaxed) && self.timeline.deadline.is_none_or(|deadline| now < deadline)
    }

    /// Waits until the ramp lets this connection open.
    pub(super) async fn ramp(&self, number: u64) {
        if !self.shape.ramp.is_zero() {
            let turn = self.shape.ramp.mul_f64(number as f64 / self.shape.connections.max(1) as f64);
            tokio::time::sleep_until((self.timeline.start + turn).into()).await;
        }
    }
}

struct GiveUpOnDrop(Arc<Run>);

impl Drop for GiveUpOnDrop {
    fn drop(&mut self) {
        self.0.given_up.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` on each thread of the load, and returns the report. When the future is dropped, no further operation starts.
pub(super) async fn drive<W, F>(name: &str, shape: &Shape, mark: Arc<AtomicBool>, work: W) -> io::Result<LoadReport>
where
    W: Fn(Thread) -> F + Clone + Send + 'static,
    F: Future<Output = io::Result<()>>,
{
    let timeline = Timeline::new(shape, Instant::now());
    let run = Arc::new(Run { shape: shape.clone(), timeline, mark, given_up: AtomicBool::new(false) });
    let _give_up_on_drop = GiveUpOnDrop(run.clone());
    let threads = shape.threads() as u64;
    shape.progress.begin(timeline);
    let on_thread = {
        let run = run.clone();
        move |index| {
            let (first, share) = share_of(run.shape.connections as u64, index as u64, threads);
            let thread = Thread { run: run.clone(), index: index as u64, first, share, tally: Arc::default() };
            run.shape.progress.watch(&thread.tally);
            metered(thread, work.clone())
        }
    };
    let mut total = Tally::default();
    for tally in host::on_threads(threads as usize, on_thread).await? {
        total.add(&tally);
    }
    total.handshakes = shape.handshakes.take();
    if let Some(part) = &shape.part {
        *part.lock().unwrap_or_else(PoisonError::into_inner) = Some(Part::new(name, timeline.start, &total));
    }
    Ok(LoadReport::new(name, shape, &run.timeline.stopped(shape.stop.at()), &total))
}

/// Runs the work of one thread, and measures its CPU time within the window.
async fn metered<W, F>(thread: Thread, work: W) -> io::Result<Tally>
where
    W: Fn(Thread) -> F,
    F: Future<Output = io::Result<()>>,
{
    let meter = Arc::new(Mutex::new((Instant::now(), procfs::own_thread_cpu_time()?)));
    let watch = tokio::spawn(watch(thread.clone(), meter.clone()));
    tokio::select! {
        biased;
        outcome = work(thread.clone()) => outcome?,
        // Operations in progress end with the runtime of this thread and are not counted.
        () = thread.run.shape.stop.told() => {}
    }
    let in_time = watch.is_finished();
    watch.abort();
    if !in_time {
        let begun = *meter.lock().unwrap_or_else(PoisonError::into_inner);
        thread.tally().costs.push(cost_since(begun)?);
        announce(&thread, "closed");
    }
    let tally = std::mem::take(&mut *thread.tally());
    Ok(tally)
}

/// Reads the thread's CPU time when the window opens, and again when it closes if that happens at a fixed time.
async fn watch(thread: Thread, meter: Arc<Mutex<(Instant, Duration)>>) -> io::Result<()> {
    let timeline = &thread.run.timeline;
    tokio::time::sleep_until(timeline.window_start.into()).await;
    let begun = (Instant::now(), procfs::own_thread_cpu_time()?);
    *meter.lock().unwrap_or_else(PoisonError::into_inner) = begun;
    announce(&thread, "open");
    let Some(end) = timeline.window_end else { return std::future::pending().await };
    tokio::time::sleep_until(end.into()).await;
    thread.tally().costs.push(cost_since(begun)?);
    announce(&thread, "closed");
    Ok(())
}

fn cost_since((begun, before): (Instant, Duration)) -> io::Result<ThreadCost> {
    Ok(ThreadCost { cpu: procfs::own_thread_cpu_time()?.saturating_sub(before), window: begun.elapsed() })
}

fn announce(thread: &Thread, what: &str) {
    if thread.index == 0 && thread.run.shape.announce {
        eprintln!("window {what}");
    }
}

/// Runs a load of operations.
///
/// # Errors
/// The host refuses a thread or a timer. The failures of operations are in the report.
pub(super) async fn run<P: Protocol>(
    name: &str,
    protocol: P,
    shape: &Shape,
    mark: Arc<AtomicBool>,
) -> io::Result<LoadReport> {
    drive(name, shape, mark, move |thread| loops(thread, protocol.clone())).await
}

async fn loops<P: Protocol>(thread: Thread, protocol: P) -> io::Result<()> {
    let shape = &thread.run.shape;
    let streams = shape.streams.max(1);
    let lanes_in_all = (shape.connections * streams) as u64;
    let numbers = thread.first..thread.first + thread.share;
    let workers = numbers.flat_map(|connection| {
        let lanes = protocol.lanes(connection, streams).into_iter().zip(connection * streams as u64..);
        let thread = &thread;
        lanes.map(move |(lane, number)| Worker {
            thread: thread.clone(),
            lane,
            connection,
            met: Met::default(),
            operations_left: match thread.run.shape.until {
                Until::Requests(count) if thread.run.shape.replay.is_none() => share_of(count, number, lanes_in_all).1,
                Until::Requests(_) | Until::Elapsed(_) => u64::MAX,
            },
        })
    });
    match (shape.rate, &shape.replay) {
        (Some(rate), _) => open_loops(&thread, rate, workers).await?,
        (None, Some(schedule)) if schedule.has_times() => recorded_loops(&thread, schedule, workers).await?,
        (None, _) => all(workers.map(Worker::closed_loop)).await,
    }
    Ok(())
}

/// Sends recorded requests at their times. Each thread has its share of them.
async fn recorded_loops<L: Lane>(
    thread: &Thread,
    schedule: &Arc<Schedule>,
    workers: impl Iterator<Item = Worker<L>>,
) -> io::Result<()> {
    let threads = thread.run.shape.threads() as u64;
    let planned = share_of(schedule.len(), thread.index, threads).1;
    let arrivals = Arrivals::recorded(schedule.clone(), thread.index, threads);
    on_schedule(thread, Pacer::new(thread.run.timeline.ramped, arrivals, planned, None), workers).await
}

async fn open_loops<L: Lane>(thread: &Thread, rate: f64, workers: impl Iterator<Item = Worker<L>>) -> io::Result<()> {
    let Run { shape, timeline, .. } = &*thread.run;
    let threads = shape.threads() as u64;
    let lasts = timeline.deadline.map(|deadline| deadline - timeline.ramped);
    let count = match (shape.until, lasts) {
        (Until::Requests(count), _) => count,
        // Random arrivals are as many as they are until the end.
        (Until::Elapsed(_), Some(_)) if shape.pacing == Pacing::Poisson => u64::MAX,
        // Round the sum for all threads. Rounding for each thread would turn 3 operations on 8 threads into none. The first operation is due
        // at once at any rate, so there is at least one.
        (Until::Elapsed(_), lasts) => {
            let all = Clock::new(shape, rate, 1.0).count(lasts.unwrap_or_default());
            (all.round() as u64).max(1)
        }
    };
    let planned = share_of(count, thread.index, threads).1;
    // Each thread starts a little later than the one before it, so that they do not all send at the same instant.
    let turn = match shape.pacing {
        Pacing::Uniform => Duration::from_secs_f64(thread.index as f64 / rate),
        Pacing::Burst1hz | Pacing::Poisson => Duration::ZERO,
    };
    let clock = Clock::new(shape, rate, threads as f64);
    let arrivals = Arrivals::new(clock, shape.pacing, shape.seed.wrapping_add(thread.index));
    let end = lasts.filter(|_| shape.pacing == Pacing::Poisson);
    on_schedule(thread, Pacer::new(timeline.ramped + turn, arrivals, planned, end), workers).await
}

async fn on_schedule<L: Lane>(
    thread: &Thread,
    pacer: Pacer,
    workers: impl Iterator<Item = Worker<L>>,
) -> io::Result<()> {
    let pacer = Arc::new(pacer);
    let _noted_at_the_end = Planned { thread, pacer: &pacer };
    let takers = all(workers.map(|worker| worker.open_loop(pacer.clone())));
    paced(&pacer, thread.run.timeline.deadline, takers).await
}

/// Records how many operations of a thread were due, and the age of those that never began. This happens on drop, because a load that is stopped is dropped.
struct Planned<'a> {
    thread: &'a Thread,
    pacer: &'a Pacer,
}

impl Drop for Planned<'_> {
    fn drop(&mut self) {
        let Run { shape, timeline, .. } = &*self.thread.run;
        let timeline = timeline.stopped(shape.stop.at());
        let (now, mut tally) = (Instant::now(), self.thread.tally());
        tally.planned = self.pacer.planned_when(|at| timeline.is_measured(at));
        for due in self.pacer.left_when(|at| timeline.is_measured(at)) {
            tally.count_unsent(now.saturating_duration_since(due));
        }
    }
}

/// Runs all futures as tasks of this thread, and propagates a panic.
pub(super) async fn all<F: Future<Output = ()> + Send + 'static>(futures: impl Iterator<Item = F>) {
    let tasks: Vec<_> = futures.map(tokio::spawn).collect();
    for task in tasks {
        if let Err(error) = task.await
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

/// A lane, and the loop that uses it.
struct Worker<L> {
    thread: Thread,
    lane: L,
    /// The number of its connection.
    connection: u64,
    met: Met,
    /// Operations that a closed loop has left to start.
    operations_left: u64,
}

impl<L: Lane> Worker<L> {
    async fn closed_loop(mut self) {
        self.thread.run.ramp(self.connection).await;
        let mut now = Instant::now();
        while self.operations_left > 0 && self.thread.run.may_begin(now) {
            self.operations_left -= 1;
            let recorded = self.thread.run.shape.replay.as_ref().map(|schedule| schedule.take());
            // All of the recording is taken.
            if recorded == Some(None) {
                break;
            }
            now = self.operate(recorded.flatten(), None, now).await;
        }
        self.end().await;
    }

    async fn open_loop(mut self, pacer: Arc<Pacer>) {
        self.thread.run.ramp(self.connection).await;
        // Ignore a timeout here: like a refused connect, the first operation will find it.
        let _ = tokio::time::timeout(self.thread.run.shape.timeout, self.lane.prepare()).await;
        while let Some(due) = pacer.next().await {
            if self.thread.run.given_up.load(Ordering::Relaxed) {
                pacer.end();
                return;
            }
            let Run { shape, .. } = &*self.thread.run;
            // The threads take turns.
            let operation = due.index * shape.threads() as u64 + self.thread.index;
            let place = shape.replay.as_ref().and_then(|schedule| schedule.place(operation));
            self.operate(place, Some((due.at, due.was_lane_free)), Instant::now()).await;
        }
        self.end().await;
    }

    /// Runs one operation, and returns the time at which the next one may start.
    async fn operate(&mut self, place: Option<usize>, due: Option<(Instant, bool)>, begun: Instant) -> Instant {
        let run = &*self.thread.run;
        burn(run.shape.work);
        let mut origin = std::mem::take(&mut self.met.origin);
        origin.clear();
        self.met = Met { origin, ..Met::default() };
        let is_after_mark = run.mark.load(Ordering::Relaxed);
        let outcome = match tokio::time::timeout(run.shape.timeout, self.lane.operate(place, &mut self.met)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                self.met.why = Some(format!("no response within {:?}", run.shape.timeout));
                Outcome::TimedOut
            }
        };
        let ended = Instant::now();
        self.count(Times { due, begun, ended }, outcome, is_after_mark);
        if outcome != Outcome::NoConnection {
            return ended;
        }
        tokio::time::sleep(CONNECT_PAUSE).await;
        Instant::now()
    }

    fn count(&self, times: Times, outcome: Outcome, is_after_mark: bool) {
        let mut tally = self.thread.tally();
        // A thread notices a stop a little later. Operations that were due in between are not in the schedule, so they must not be counted.
        let Run { shape, timeline, .. } = &*self.thread.run;
        tally.count(&timeline.stopped(shape.stop.at()), times, outcome, &self.met);
        if !self.met.origin.is_empty() {
            tally.count_origin(is_after_mark, &self.met.origin, 1);
        }
    }

    /// Keeps the connection open for [`Shape::hold`] after the load.
    async fn end(self) {
        self.thread.tally().ended_at(Instant::now());
        if self.lane.is_open() && !self.thread.run.shape.hold.is_zero() {
            tokio::time::sleep(self.thread.run.shape.hold).await;
        }
    }
}

/// Busy-waits for this long.
pub(crate) fn burn(time: Duration) {
    if time.is_zero() {
        return;
    }
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}
