//! The schedule of an open loop: it makes each operation due at its time, regardless of the earlier ones.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::arrivals::Arrivals;
use crate::alarm::KernelTimer;

/// The minimum interval between two timer events, because a generator can afford about 20,000 of them per second. At higher rates, several
/// operations become due at once. Each is at most this late, which its lateness shows.
const TICK_MIN: Duration = Duration::from_micros(50);

/// A schedule of operations. Free lanes take them in order.
///
/// All lanes of a thread share one queue. With a queue for each lane, a slow response would delay operations that another lane could carry,
/// although real users do not wait for each other.
pub(super) struct Pacer {
    start: Instant,
    /// The most operations.
    planned: u64,
    /// No operation is due at this time after the start, or later. `None` if only `planned` ends the schedule.
    end: Option<Duration>,
    /// From the first operation on.
    all: Arrivals,
    /// `taken <= due <= planned`, where `taken` is the index of these.
    next: Mutex<Arrivals>,
    due: AtomicU64,
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
    /// Its number, counted over the operations of this schedule.
    pub index: u64,
}

impl Pacer {
    /// Creates a schedule of at most `planned` operations that are due before `end`. Times count from `start`.
    pub(super) fn new(start: Instant, arrivals: Arrivals, planned: u64, end: Option<Duration>) -> Self {
        Self {
            start,
            planned,
            end,
            next: Mutex::new(arrivals.clone()),
            all: arrivals,
            due: AtomicU64::new(0),
            idle: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            notify: Notify::new(),
        }
    }

    /// Makes operations due at their times. Returns once the last one is due.
    pub(super) async fn run(&self) -> io::Result<()> {
        let timer = KernelTimer::new()?;
        let mut arrivals = self.all.clone();
        let mut earliest = self.start;
        while let Some(next) = self.time_of(&arrivals) {
            timer.set(next.max(earliest))?;
            timer.fired().await?;
            let now = Instant::now();
            let before = arrivals.index();
            while self.time_of(&arrivals).is_some_and(|time| time <= now) {
                arrivals.step();
            }
            self.due.store(arrivals.index(), Ordering::Relaxed);
            for _ in before..arrivals.index() {
                self.notify.notify_one();
            }
            earliest = now + TICK_MIN;
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
            if let Some(due) = self.take(has_waited)? {
                return Some(due);
            }
            self.idle.fetch_add(1, Ordering::Relaxed);
            self.notify.notified().await;
            self.idle.fetch_sub(1, Ordering::Relaxed);
            has_waited = true;
        }
    }

    /// The next operation if it is due. `None` if there are no more.
    fn take(&self, has_waited: bool) -> Option<Option<Due>> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = self.time_of(&next).filter(|_| !self.ended.load(Ordering::Relaxed)) else {
            // Other lanes may still be waiting.
            self.notify.notify_waiters();
            return None;
        };
        if next.index() >= self.due.load(Ordering::Relaxed) {
            return Some(None);
        }
        let index = next.index();
        next.step();
        let was_lane_free = has_waited || self.idle.load(Ordering::Relaxed) > 0;
        Some(Some(Due { at, was_lane_free, index }))
    }

    /// When the next of these is due. `None` if it is not planned.
    fn time_of(&self, arrivals: &Arrivals) -> Option<Instant> {
        let time = Some(arrivals).filter(|next| next.index() < self.planned)?.time()?;
        self.end.is_none_or(|end| time < end).then(|| self.start + time)
    }

    /// The number of planned operations that are due at a time for which `is_counted` is true. These times must form one interval.
    ///
    /// This is exact and costs a division for each operation up to the end of the interval. It runs once, when the load ends. It stops at
    /// the end of the interval, because a load of one hour that is interrupted after a second has nearly all of its operations after that.
    pub(super) fn planned_when(&self, is_counted: impl Fn(Instant) -> bool + Copy) -> u64 {
        self.times(self.all.clone(), is_counted).count() as u64
    }

    /// When the planned operations that nothing has taken were due, of those for which `is_counted` is true, as in [`Self::planned_when`].
    pub(super) fn left_when(&self, is_counted: impl Fn(Instant) -> bool + Copy) -> impl Iterator<Item = Instant> {
        let next = self.next.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.times(next, is_counted)
    }

    fn times(
        &self,
        mut arrivals: Arrivals,
        is_counted: impl Fn(Instant) -> bool + Copy,
    ) -> impl Iterator<Item = Instant> {
        let times = std::iter::from_fn(move || {
            let time = self.time_of(&arrivals)?;
            arrivals.step();
            Some(time)
        });
        times.skip_while(move |time| !is_counted(*time)).take_while(move |time| is_counted(*time))
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
    use super::super::arrivals::Clock;
    use super::super::shape::{Shape, Until};
    use super::*;
    use crate::record::Pacing;

    fn pacer(start: Instant, rate: f64, pacing: Pacing, planned: u64) -> Pacer {
        let clock = Clock::new(&Shape::closed(1, Until::Requests(1)), rate, 1.0);
        Pacer::new(start, Arrivals::new(clock, pacing, 1), planned, None)
    }

    #[test]
    fn every_operation_is_taken_once_at_its_own_time() {
        for (pacing, rate, times) in [
            (Pacing::Uniform, 4_000.0, (0..50).map(|n| n * 250).collect::<Vec<u64>>()),
            (Pacing::Burst1hz, 1e6, vec![0; 50]),
        ] {
            let start = Instant::now();
            let pacer = pacer(start, rate, pacing, 50);
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
        let pacer = pacer(start, 1e7, Pacing::Uniform, 100);
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
        assert!(pacer.next.lock().unwrap().index() <= 1);
    }

    #[test]
    fn who_finds_work_waiting_while_nobody_was_free_is_not_late() {
        let pacer = pacer(Instant::now(), 10.0, Pacing::Burst1hz, 10);
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
            let pacer = pacer(start, rate, Pacing::Burst1hz, 1_000);
            assert_eq!([1, 2, 3].map(|n| pacer.planned_when(|at| at < start + second * n)), bursts, "{rate}");
        }
        let pacer = pacer(start, 10.0, Pacing::Uniform, 100);
        (0..27).for_each(|_| pacer.next.lock().unwrap().step());
        let left: Vec<_> = pacer.left_when(|at| at < start + second * 3).collect();
        assert_eq!((left.len(), left[0] - start), (3, Duration::from_millis(2_700)));
        assert_eq!(pacer.planned_when(|at| at >= start + second && at < start + second * 3), 20);
        assert_eq!(pacer.planned_when(|_| true), 100);
    }

    #[test]
    fn nothing_is_due_at_the_end_or_later() {
        let start = Instant::now();
        let clock = Clock::new(&Shape::closed(1, Until::Requests(1)), 10.0, 1.0);
        let pacer = Pacer::new(start, Arrivals::new(clock, Pacing::Poisson, 1), 1_000, Some(Duration::from_secs(20)));
        let planned = pacer.planned_when(|_| true);
        assert!((150..250).contains(&planned), "{planned}");
        assert_eq!(pacer.planned_when(|at| at >= start + Duration::from_secs(20)), 0);
    }
}
