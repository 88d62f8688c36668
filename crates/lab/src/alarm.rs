//! Sleeps that end within some tens of µs of their time. The runtime's own sleeps end at the next whole ms, which would turn an origin that
//! takes 10 ms into one that takes up to 11.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::io::unix::AsyncFd;

/// A timer of the kernel.
pub(crate) struct KernelTimer(AsyncFd<OwnedFd>);

impl KernelTimer {
    /// A timer that is not set yet.
    #[expect(
        deprecated,
        reason = "its successor is unsafe, for types whose descriptor may change; that of an OwnedFd does not"
    )]
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self(AsyncFd::new(rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?)?))
    }

    /// Fires once, at `at`, and replaces an earlier setting. It never fires early, because the wait begins a moment after the clock was
    /// read.
    pub(crate) fn set(&self, at: Instant) -> io::Result<()> {
        // Zero would disarm it.
        let wait = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        let spec = Itimerspec { it_interval: zero, it_value: value };
        rustix::time::timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &spec)?;
        Ok(())
    }

    /// Waits until it fires. That may have been for an earlier setting.
    pub(crate) async fn fired(&self) -> io::Result<()> {
        // It is registered edge-triggered, and each expiration is an edge: the count need not be read, which saves a system call. (A
        // periodic timer must be read, because the read arms it again.)
        self.0.readable().await?.clear_ready();
        Ok(())
    }
}

/// The sleepers of one thread.
#[derive(Clone)]
pub(crate) struct Alarms(Arc<Inner>);

struct Inner {
    timer: KernelTimer,
    /// Never contended: sleepers and timer live on one thread.
    sleepers: Mutex<Sleepers>,
}

#[derive(Default)]
struct Sleepers {
    heap: BinaryHeap<Reverse<Sleeper>>,
    /// Distinguishes sleepers with the same time.
    next_number: u64,
}

struct Sleeper {
    until: Instant,
    number: u64,
    waker: Waker,
}

impl PartialEq for Sleeper {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Sleeper {}

impl PartialOrd for Sleeper {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Sleeper {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.until, self.number).cmp(&(other.until, other.number))
    }
}

impl Alarms {
    /// Starts it for the calling thread's runtime, which wakes the sleepers from now on.
    pub(crate) fn start() -> io::Result<Self> {
        let alarms = Self(Arc::new(Inner { timer: KernelTimer::new()?, sleepers: Mutex::default() }));
        let waking = alarms.clone();
        tokio::spawn(async move {
            // This only fails if the runtime is gone, and then its tasks are too.
            while waking.0.timer.fired().await.is_ok() {
                waking.wake_due();
            }
        });
        Ok(alarms)
    }

    /// Returns at `until`, and not before.
    ///
    /// A dropped sleep keeps its place in the queue until its time, and then wakes nothing.
    pub(crate) async fn sleep_until(&self, until: Instant) {
        let mut is_queued = false;
        poll_fn(|context| {
            if Instant::now() >= until {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut is_queued, true) {
                self.queue(until, context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    fn queue(&self, until: Instant, waker: Waker) {
        let mut sleepers = self.sleepers();
        let number = sleepers.next_number;
        sleepers.next_number += 1;
        let is_first = sleepers.heap.peek().is_none_or(|Reverse(first)| until < first.until);
        sleepers.heap.push(Reverse(Sleeper { until, number, waker }));
        if is_first {
            self.set(until);
        }
    }

    fn wake_due(&self) {
        let now = Instant::now();
        let mut sleepers = self.sleepers();
        while let Some(Reverse(first)) = sleepers.heap.peek() {
            if first.until > now {
                self.set(first.until);
                return;
            }
            if let Some(Reverse(due)) = sleepers.heap.pop() {
                due.waker.wake();
            }
        }
    }

    fn set(&self, until: Instant) {
        // The kernel only refuses invalid times.
        let _ = self.0.timer.set(until);
    }

    fn sleepers(&self) -> MutexGuard<'_, Sleepers> {
        self.0.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleepers_wake_in_the_order_of_their_times_and_not_before() {
        crate::host::runtime().unwrap().block_on(async {
            let alarms = Alarms::start().unwrap();
            // So far in the future that all of them sleep before the first is due, however busy the host is.
            let start = Instant::now();
            let woken = Arc::new(Mutex::new(Vec::new()));
            let tasks: Vec<_> = [130, 100, 115, 100, 0]
                .into_iter()
                .map(|ms| {
                    let (alarms, woken) = (alarms.clone(), woken.clone());
                    tokio::spawn(async move {
                        let until = start + Duration::from_millis(ms);
                        alarms.sleep_until(until).await;
                        assert!(Instant::now() >= until);
                        woken.lock().unwrap().push(ms);
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(*woken.lock().unwrap(), [0, 100, 100, 115, 130]);
        });
    }

    #[test]
    fn a_dropped_sleep_does_not_hold_up_the_others() {
        crate::host::runtime().unwrap().block_on(async {
            let alarms = Alarms::start().unwrap();
            let soon = Instant::now() + Duration::from_micros(300);
            let dropped = tokio::spawn({
                let alarms = alarms.clone();
                async move { alarms.sleep_until(soon).await }
            });
            tokio::task::yield_now().await;
            dropped.abort();
            alarms.sleep_until(soon + Duration::from_micros(300)).await;
        });
    }
}
