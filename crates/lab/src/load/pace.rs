//! The schedule of an open loop: it makes each operation due at its time, regardless of the earlier ones.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::alarm::KernelTimer;
use crate::record::Pacing;

/// The minimum interval between two timer events, because a generator can afford about 20,000 of them per second. At higher rates, several
/// operations become due at once. Each is at most this late, which its lateness shows.
const TICK_MIN: Duration = Duration::from_micros(50);

/// A schedule of operations. Free lanes take them in order.
///
/// All lanes of a thread share one queue. With a queue for each lane, a slow response would delay operations that another lane could carry,
/// although real users do not wait for each other.
pub(super) struct Pacer {
    start: Instant,
    /// Operations per second.
    rate: f64,
    pacing: Pacing,
    planned: u64,
    /// `taken <= due <= planned`
    due: AtomicU64,
    taken: AtomicU64,
    /// Lanes that wait for an operation to become due, or that have been woken and have not run yet.
    idle: AtomicU64,
    ended: AtomicBool,
    notify: Notify,
}

/// An operation that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// The time at which it was due.
    pub at: Instant,
    /// Whether a lane was free for it. If so, the load itself caused any delay since then.
    pub was_lane_free: bool,
}

impl Pacer {
    /// Creates a schedule of `planned` operations at `rate` per second. The first one is due at `start`.
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

    /// Makes operations due at their times. Returns once the last one is due.
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

    /// Ends the schedule. Lanes that wait for an operation get `None`.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.notify.notify_waiters();
    }

    /// Waits for the next operation and takes it. Returns `None` if there are no more.
    ///
    /// The pacer and the lanes share one thread, so nothing can change between reading the counts and waiting.
    pub(super) async fn next(&self) -> Option<Due> {
        let mut has_waited = false;
        loop {
            let taken = self.taken.load(Ordering::Relaxed);
            if self.ended.load(Ordering::Relaxed) || taken == self.planned {
                // Other lanes may still be waiting.
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

    /// The number of planned operations that are due at a time for which `is_counted` is true. These times must form one interval.
    ///
    /// This is exact and costs a division for each operation up to the end of the interval. It runs once, when the load ends. It stops at
    /// the end of the interval, because a load of one hour that is interrupted after a second has nearly all of its operations after that.
    pub(super) fn planned_when(&self, is_counted: impl Fn(Instant) -> bool) -> u64 {
        let times = (0..self.planned).map(|index| self.time_of(index));
        times.skip_while(|time| !is_counted(*time)).take_while(|time| is_counted(*time)).count() as u64
    }

    /// When the planned operations that nothing has taken were due, of those for which `is_counted` is true, as in [`Self::planned_when`].
    pub(super) fn left_when(&self, is_counted: impl Fn(Instant) -> bool + Copy) -> impl Iterator<Item = Instant> {
        let times = (self.taken.load(Ordering::Relaxed)..self.planned).map(|index| self.time_of(index));
        times.skip_while(move |time| !is_counted(*time)).take_while(move |time| is_counted(*time))
    }

    fn time_of(&self, index: u64) -> Instant {
        let seconds = index as f64 / self.rate;
        let seconds = match self.pacing {
            Pacing::Uniform => seconds,
            // Like the token bucket of strest-grpc, which is filled at the start of each second.
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

/// Runs `takers` and the pacer concurrently, and ends the pacer at `deadline`.
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
            // Stay busy with the first operation until the pacer has ended.
            while !pacer.ended.load(Ordering::Relaxed) {
                tokio::task::yield_now().await;
            }
            assert_eq!(pacer.next().await, None);
        };
        crate::host::runtime().unwrap().block_on(paced(&pacer, Some(start), taker)).unwrap();
        // The deadline may pass before the first operation is taken.
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
        pacer.taken.store(27, Ordering::Relaxed);
        let left: Vec<_> = pacer.left_when(|at| at < start + second * 3).collect();
        assert_eq!((left.len(), left[0] - start), (3, Duration::from_millis(2_700)));
        assert_eq!(pacer.planned_when(|at| at >= start + second && at < start + second * 3), 20);
        assert_eq!(pacer.planned_when(|_| true), 100);
    }
}
