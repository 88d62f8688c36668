//! The clock of an open loop: says when each request is due, whatever has become of those before it.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

/// Requests due at even distances, taken in order by whichever connection is free.
///
/// One queue for all connections of a thread and not one for each: a slow answer then delays only what no other connection could carry,
/// as with real users who do not wait for each other.
pub(super) struct Pacer {
    start: Instant,
    interval: Duration,
    planned: u64,
    /// `taken <= due <= planned`
    due: AtomicU64,
    taken: AtomicU64,
    ended: AtomicBool,
    notify: Notify,
}

impl Pacer {
    /// Request `n` of `planned` is due at `start + n * interval`.
    pub(super) fn new(start: Instant, interval: Duration, planned: u64) -> Self {
        Self {
            start,
            interval,
            planned,
            due: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            notify: Notify::new(),
        }
    }

    /// Makes requests due as their time comes; returns when the last one is.
    pub(super) async fn run(&self) -> io::Result<()> {
        let timer = Timer::new()?;
        let mut due = 0;
        while due < self.planned {
            timer.sleep_until(self.time_of(due)).await?;
            let now_due = self.due_by(Instant::now()).max(due + 1).min(self.planned);
            self.due.store(now_due, Ordering::Relaxed);
            for _ in due..now_due {
                self.notify.notify_one();
            }
            due = now_due;
        }
        Ok(())
    }

    /// No request is taken from now on; those who wait for one get `None`.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.notify.notify_waiters();
    }

    /// The next request, when it is due: the time it was due at. `None` when there are no more.
    ///
    /// Pacer and takers share one thread, so nothing comes between a look at the counts and the wait.
    pub(super) async fn next(&self) -> Option<Instant> {
        loop {
            let taken = self.taken.load(Ordering::Relaxed);
            if self.ended.load(Ordering::Relaxed) || taken == self.planned {
                // Others may wait for what will not come.
                self.notify.notify_waiters();
                return None;
            }
            if taken < self.due.load(Ordering::Relaxed) {
                self.taken.store(taken + 1, Ordering::Relaxed);
                return Some(self.time_of(taken));
            }
            self.notify.notified().await;
        }
    }

    /// Requests that were planned and never taken.
    pub(super) fn untaken(&self) -> u64 {
        self.planned - self.taken.load(Ordering::Relaxed)
    }

    fn time_of(&self, index: u64) -> Instant {
        self.start + Duration::from_nanos((self.interval.as_nanos() * u128::from(index)) as u64)
    }

    fn due_by(&self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.start).as_nanos();
        (passed / self.interval.as_nanos().max(1)) as u64 + 1
    }
}

/// A timer of the kernel's. The runtime's own timers tick in whole ms, longer than most answers that are measured here.
struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    #[expect(
        deprecated,
        reason = "its successor is unsafe, for types whose descriptor may change; that of an OwnedFd does not"
    )]
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self(AsyncFd::new(rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?)?))
    }

    async fn sleep_until(&self, time: Instant) -> io::Result<()> {
        let wait = time.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            // Behind its time the pacer must still let the connections run.
            tokio::task::yield_now().await;
            return Ok(());
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        let once = Itimerspec { it_interval: zero, it_value: value };
        rustix::time::timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.0.readable().await?;
            let read = ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut [0; 8])?));
            if let Ok(outcome) = read {
                outcome?;
                return Ok(());
            }
        }
    }
}

/// Runs `takers` beside the pacer, ends the pacer at `deadline`, and gives how many requests were planned and never taken.
pub(super) async fn paced(
    pacer: &Pacer,
    deadline: Option<Instant>,
    takers: impl Future<Output = ()>,
) -> io::Result<u64> {
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
        () = &mut takers => return Ok(pacer.untaken()),
        () = at_deadline => {}
        outcome = pacing => outcome?,
    }
    pacer.end();
    takers.await;
    Ok(pacer.untaken())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_taken_once_at_its_own_time() {
        let start = Instant::now();
        let interval = Duration::from_micros(300);
        let pacer = Pacer::new(start, interval, 50);
        let times = std::cell::RefCell::new(Vec::new());
        let taker = || async {
            while let Some(time) = pacer.next().await {
                assert!(Instant::now() >= time, "taken before it was due");
                times.borrow_mut().push(time);
            }
        };
        let both = async {
            tokio::join!(taker(), taker());
        };
        let untaken = crate::host::runtime().unwrap().block_on(paced(&pacer, None, both)).unwrap();
        assert_eq!(untaken, 0);
        assert_eq!(times.into_inner(), (0..50).map(|n| start + interval * n).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_not_taken_by_the_deadline_is_counted() {
        let start = Instant::now();
        let pacer = Pacer::new(start, Duration::from_nanos(1), 100);
        let taker = async {
            pacer.next().await;
            // Busy with the first request for as long as anybody else may take one.
            while !pacer.ended.load(Ordering::Relaxed) {
                tokio::task::yield_now().await;
            }
            assert_eq!(pacer.next().await, None);
        };
        let untaken = crate::host::runtime().unwrap().block_on(paced(&pacer, Some(start), taker)).unwrap();
        // The deadline may come before the first is taken.
        assert!(untaken == 99 || untaken == 100, "{untaken}");
    }
}
