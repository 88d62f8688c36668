//! The clock of an open loop: says when each operation is due, whatever has become of those before it.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::alarm::KernelTimer;
use crate::record::Pacing;

/// The timer fires no faster than this: 20,000 times a second are what a generator can afford. Faster schedules send several operations at
/// a time, each at most this late, and say so in their lateness.
const TICK_MIN: Duration = Duration::from_micros(50);

/// Operations by a schedule, taken in order by whichever lane is free.
///
/// One queue for all lanes of a thread and not one for each: a slow answer then delays only what no other lane could carry, as with real
/// users who do not wait for each other.
pub(super) struct Pacer {
    start: Instant,
    /// A second.
    rate: f64,
    pacing: Pacing,
    planned: u64,
    /// `taken <= due <= planned`
    due: AtomicU64,
    taken: AtomicU64,
    /// Lanes that wait for something to be due, or have been woken for it and not had their turn yet.
    idle: AtomicU64,
    ended: AtomicBool,
    notify: Notify,
}

/// An operation that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// When.
    pub at: Instant,
    /// Whether a lane was free for it, so that what passed since then is the load's own fault.
    pub was_lane_free: bool,
}

impl Pacer {
    /// The first of `planned` operations is due at `start`.
    pub(super) fn new(start: Instant, rate: f64, pacing: Pacing, planned: u64) -> Self {
        Self {
            start,
            rate,
            pacing,
            planned,
            due: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            idle: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            notify: Notify::new(),
        }
    }

    /// Makes operations due as their time comes; returns when the last one is.
    pub(super) async fn run(&self) -> io::Result<()> {
        let timer = KernelTimer::new()?;
        let mut due = 0;
        let mut next = self.start;
        while due < self.planned {
            timer.set(next)?;
            timer.fired().await?;
            let now = Instant::now();
            let now_due = self.due_by(now).clamp(due, self.planned);
            self.due.store(now_due, Ordering::Relaxed);
            for _ in due..now_due {
                self.notify.notify_one();
            }
            due = now_due;
            next = self.time_of(due).max(now + TICK_MIN);
        }
        Ok(())
    }

    /// No operation is taken from now on; those who wait for one get `None`.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.notify.notify_waiters();
    }

    /// The next operation, when it is due. `None` when there are no more.
    ///
    /// Pacer and takers share one thread, so nothing comes between a look at the counts and the wait.
    pub(super) async fn next(&self) -> Option<Due> {
        let mut has_waited = false;
        loop {
            let taken = self.taken.load(Ordering::Relaxed);
            if self.ended.load(Ordering::Relaxed) || taken == self.planned {
                // Others may wait for what will not come.
                self.notify.notify_waiters();
                return None;
            }
            if taken < self.due.load(Ordering::Relaxed) {
                self.taken.store(taken + 1, Ordering::Relaxed);
                let was_lane_free = has_waited || self.idle.load(Ordering::Relaxed) > 0;
                return Some(Due { at: self.time_of(taken), was_lane_free });
            }
            self.idle.fetch_add(1, Ordering::Relaxed);
            self.notify.notified().await;
            self.idle.fetch_sub(1, Ordering::Relaxed);
            has_waited = true;
        }
    }

    /// How many of the planned operations are due at times of which `is_counted` is true. These times are one interval.
    ///
    /// Exact, and a division for each operation up to the interval's end; it is asked once, when the load is over. It does not look beyond
    /// that end: of an hour that was interrupted after a second, nearly all operations lie there.
    pub(super) fn planned_when(&self, is_counted: impl Fn(Instant) -> bool) -> u64 {
        let times = (0..self.planned).map(|index| self.time_of(index));
        times.skip_while(|time| !is_counted(*time)).take_while(|time| is_counted(*time)).count() as u64
    }

    fn time_of(&self, index: u64) -> Instant {
        let seconds = index as f64 / self.rate;
        let seconds = match self.pacing {
            Pacing::Uniform => seconds,
            // A token bucket that is filled at the start of each second, as that of strest-grpc.
            Pacing::Burst1hz => seconds.floor(),
        };
        self.start + Duration::from_secs_f64(seconds)
    }

    fn due_by(&self, now: Instant) -> u64 {
        if now < self.start {
            return 0;
        }
        let passed = now.saturating_duration_since(self.start).as_secs_f64();
        match self.pacing {
            Pacing::Uniform => (passed * self.rate) as u64 + 1,
            Pacing::Burst1hz => ((passed.floor() + 1.0) * self.rate).ceil() as u64,
        }
    }
}

/// Runs `takers` beside the pacer, and ends the pacer at `deadline`.
pub(super) async fn paced(
    pacer: &Pacer,
    deadline: Option<Instant>,
    takers: impl Future<Output = ()>,
) -> io::Result<()> {
    tokio::pin!(takers);
    let at_deadline = async {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => std::future::pending().await,
        }
    };
    let pacing = async {
        pacer.run().await?;
        std::future::pending::<io::Result<()>>().await
    };
    tokio::select! {
        () = &mut takers => return Ok(()),
        () = at_deadline => {}
        outcome = pacing => outcome?,
    }
    pacer.end();
    takers.await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_taken_once_at_its_own_time() {
        for (pacing, rate, times) in [
            (Pacing::Uniform, 4_000.0, (0..50).map(|n| n * 250).collect::<Vec<u64>>()),
            (Pacing::Burst1hz, 1e6, vec![0; 50]),
        ] {
            let start = Instant::now();
            let pacer = Pacer::new(start, rate, pacing, 50);
            let taken = std::cell::RefCell::new(Vec::new());
            let taker = || async {
                while let Some(due) = pacer.next().await {
                    assert!(Instant::now() >= due.at, "taken before it was due");
                    taken.borrow_mut().push((due.at - start).as_micros() as u64);
                }
            };
            let both = async {
                tokio::join!(taker(), taker());
            };
            crate::host::runtime().unwrap().block_on(paced(&pacer, None, both)).unwrap();
            assert_eq!(taken.into_inner(), times);
        }
    }

    #[test]
    fn what_is_not_taken_by_the_deadline_is_left() {
        let start = Instant::now();
        let pacer = Pacer::new(start, 1e7, Pacing::Uniform, 100);
        let taker = async {
            pacer.next().await;
            // Busy with the first operation for as long as anybody else may take one.
            while !pacer.ended.load(Ordering::Relaxed) {
                tokio::task::yield_now().await;
            }
            assert_eq!(pacer.next().await, None);
        };
        crate::host::runtime().unwrap().block_on(paced(&pacer, Some(start), taker)).unwrap();
        // The deadline may come before the first is taken.
        assert!(pacer.taken.load(Ordering::Relaxed) <= 1);
    }

    #[test]
    fn who_finds_work_waiting_while_nobody_was_free_is_not_late() {
        let pacer = Pacer::new(Instant::now(), 10.0, Pacing::Burst1hz, 10);
        pacer.due.store(2, Ordering::Relaxed);
        let next = || crate::host::runtime().unwrap().block_on(pacer.next()).unwrap().was_lane_free;
        assert!(!next());
        pacer.idle.store(1, Ordering::Relaxed);
        assert!(next());
    }

    #[test]
    fn bursts_are_of_the_rate_and_the_plan_is_exact() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        for (rate, bursts) in [(3.0, [3, 6, 9]), (2.5, [3, 5, 8]), (0.5, [1, 1, 2])] {
            let pacer = Pacer::new(start, rate, Pacing::Burst1hz, 1_000);
            assert_eq!([0, 1, 2].map(|n| pacer.due_by(start + second * n + second / 2)), bursts, "{rate}");
            assert_eq!(pacer.planned_when(|at| at < start + second * 3), bursts[2]);
        }
        let pacer = Pacer::new(start, 10.0, Pacing::Uniform, 100);
        assert_eq!(pacer.planned_when(|at| at >= start + second && at < start + second * 3), 20);
        assert_eq!(pacer.planned_when(|_| true), 100);
    }
}
