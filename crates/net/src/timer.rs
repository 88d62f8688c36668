//! Deadlines, one per connection or stream. Moving a deadline costs one store.
//!
//! A connection moves its deadline several times per request and almost never reaches it. So a [`Timer`] is queued once, at the earliest
//! deadline it has had. If the deadline has moved on when that time comes, the timer is queued again at the new one. A tokio `Sleep` would
//! be taken out of its wheel and put in again each time. A dropped timer leaves its queue entry to the next timer: streams create and drop
//! timers with each request, and need no new entry for that.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock;

/// Deadlines may be met this much late, so that many of them share one wake-up.
const GRAIN_MS: u64 = 8;

const NEVER: u64 = u64::MAX;

/// With fewer stale queue entries than this, a clean-up is not worth its cost.
const FORGOTTEN_MIN: usize = 1024;

/// The timers of one worker. A task must run [`Timers::drive`].
#[derive(Clone, Default)]
pub struct Timers(Rc<RefCell<Inner>>);

/// One deadline, owned by one task.
pub struct Timer {
    timers: Timers,
    key: usize,
}

/// Checks that a waiting task keeps its timer armed. It does nothing in a release build.
#[derive(Clone)]
pub struct Watch {
    #[cfg(debug_assertions)]
    timers: Timers,
    #[cfg(debug_assertions)]
    key: usize,
}

/// The deadline came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

#[derive(Default)]
struct Inner {
    entries: Vec<TimerEntry>,
    /// Entries that no timer owns. They stay in the queue.
    free: Vec<usize>,
    /// When to look at which timer: `(time in ms, key)`. It may name timers that are free or have a later deadline now, which does no harm.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    driver: Option<Waker>,
    /// The time at which the driver will wake by itself.
    driver_wakes_at: u64,
}

struct TimerEntry {
    deadline: u64,
    /// The earliest time in the queue for this timer, or [`NEVER`].
    queued_at: u64,
    elapsed: bool,
    /// See [`Timers::interrupt`].
    interruptible: bool,
    waker: Option<Waker>,
}

impl Timers {
    /// Wakes the tasks whose deadlines have passed. It never ends. Each worker runs one.
    pub async fn drive(&self) {
        let mut sleep = pin!(tokio::time::sleep(Duration::ZERO));
        poll_fn(|cx| {
            loop {
                let now = clock::now_ms();
                let mut inner = self.0.borrow_mut();
                inner.fire(now);
                let wakes_at = inner.queue.peek().map_or(NEVER, |Reverse((at, _))| *at);
                inner.driver_wakes_at = wakes_at;
                if !inner.driver.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    inner.driver = Some(cx.waker().clone());
                }
                drop(inner);
                if wakes_at == NEVER {
                    return Poll::Pending;
                }
                let wait = Duration::from_millis(wakes_at.saturating_sub(now) + GRAIN_MS);
                sleep.as_mut().reset(tokio::time::Instant::now() + wait);
                if sleep.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// Makes every timer elapse now, whatever its deadline.
    pub fn elapse_all(&self) {
        for entry in &mut self.0.borrow_mut().entries {
            entry.fire();
        }
    }

    /// Whether the timer will wake this task in time: it has a deadline, and this task polled it last.
    #[cfg(debug_assertions)]
    fn is_armed(&self, key: usize, task: &Waker) -> bool {
        let inner = self.0.borrow();
        let Some(entry) = inner.entries.get(key) else { return false };
        // `will_wake` also compares the vtable. The program may contain that table twice, and a clone would then look different.
        let is_asked = entry.waker.as_ref().is_some_and(|waker| waker.data() == task.data());
        // It is queued at its deadline or earlier, or it has elapsed and the task was woken.
        is_asked && (entry.elapsed || (entry.deadline < NEVER && entry.queued_at <= entry.deadline))
    }

    /// Makes every timer that was set by [`Timer::set_interruptible`] elapse now.
    pub fn interrupt(&self) {
        for entry in &mut self.0.borrow_mut().entries {
            if entry.interruptible {
                entry.fire();
            }
        }
    }
}

impl Inner {
    fn fire(&mut self, now: u64) {
        while let Some(Reverse((at, key))) = self.queue.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.queue.pop();
            let Some(entry) = self.entries.get_mut(key).filter(|entry| entry.queued_at == at) else { continue };
            entry.queued_at = NEVER;
            if entry.deadline <= now {
                entry.fire();
            } else {
                self.enqueue(key);
            }
        }
    }

    /// Drops stale queue entries once they are most of the queue.
    fn forget(&mut self) {
        if self.queue.len() <= 2 * self.entries.len() + FORGOTTEN_MIN {
            return;
        }
        let entries = &self.entries;
        self.queue.retain(|Reverse((at, key))| entries.get(*key).is_some_and(|entry| entry.queued_at == *at));
    }

    fn enqueue(&mut self, key: usize) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if entry.deadline >= entry.queued_at {
            return;
        }
        entry.queued_at = entry.deadline;
        self.queue.push(Reverse((entry.deadline, key)));
        if entry.deadline < self.driver_wakes_at
            && let Some(driver) = &self.driver
        {
            driver.wake_by_ref();
        }
    }
}

impl Default for TimerEntry {
    fn default() -> Self {
        Self { deadline: NEVER, queued_at: NEVER, elapsed: false, interruptible: false, waker: None }
    }
}

impl TimerEntry {
    fn fire(&mut self) {
        self.elapsed = true;
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

impl Timer {
    /// A timer without a deadline.
    pub fn new(timers: &Timers) -> Self {
        let mut inner = timers.0.borrow_mut();
        let key = inner.free.pop().unwrap_or_else(|| {
            inner.entries.push(TimerEntry::default());
            inner.entries.len() - 1
        });
        drop(inner);
        Self { timers: timers.clone(), key }
    }

    /// Another timer of the same worker, without a deadline.
    pub fn sibling(&self) -> Self {
        Self::new(&self.timers)
    }

    /// Moves the deadline, in milliseconds of [`clock::now_ms`].
    pub fn set(&self, deadline_ms: u64) {
        self.arm(deadline_ms, false);
    }

    /// Moves the deadline, and lets [`Timers::interrupt`] elapse the timer early.
    pub fn set_interruptible(&self, deadline_ms: u64) {
        self.arm(deadline_ms, true);
    }

    /// Removes the deadline.
    pub fn clear(&self) {
        self.arm(NEVER, false);
    }

    fn arm(&self, deadline_ms: u64, interruptible: bool) {
        let mut inner = self.timers.0.borrow_mut();
        let Some(entry) = inner.entries.get_mut(self.key) else { return };
        entry.deadline = deadline_ms;
        entry.elapsed = false;
        entry.interruptible = interruptible;
        if deadline_ms < entry.queued_at {
            inner.enqueue(self.key);
        }
    }

    /// Whether the deadline has passed; if not, `cx` is woken when it does.
    pub fn poll_elapsed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.timers.0.borrow_mut();
        let Some(entry) = inner.entries.get_mut(self.key) else { return Poll::Pending };
        if entry.elapsed {
            return Poll::Ready(());
        }
        if !entry.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            entry.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Whether the deadline has passed.
    pub fn is_elapsed(&self) -> bool {
        self.timers.0.borrow().entries.get(self.key).is_some_and(|entry| entry.elapsed)
    }

    /// Runs `work` until it is done or the deadline has passed. It polls `work` first.
    ///
    /// # Errors
    /// [`Elapsed`]
    pub async fn guard<F: Future>(&self, work: F) -> Result<F::Output, Elapsed> {
        let mut work = pin!(work);
        poll_fn(|cx| self.poll_guard(cx, work.as_mut())).await
    }

    /// A [`Watch`], which checks that a waiting task keeps this timer armed.
    pub fn watch(&self) -> Watch {
        Watch {
            #[cfg(debug_assertions)]
            timers: self.timers.clone(),
            #[cfg(debug_assertions)]
            key: self.key,
        }
    }

    fn poll_guard<F: Future>(&self, cx: &mut Context<'_>, work: Pin<&mut F>) -> Poll<Result<F::Output, Elapsed>> {
        if let Poll::Ready(output) = work.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        self.poll_elapsed(cx).map(|()| Err(Elapsed))
    }
}

impl Watch {
    /// Runs `work`, which must keep the timer armed whenever it waits. A release build does not check that.
    #[cfg(not(debug_assertions))]
    pub fn over<F: Future>(self, _what: &'static str, work: F) -> F {
        work
    }

    /// Runs `work`, which must keep the timer armed whenever it waits. Debug builds check that after each poll of `work`.
    ///
    /// # Panics
    /// If `work` waits and the timer would not wake it.
    #[cfg(debug_assertions)]
    pub async fn over<F: Future>(self, what: &'static str, work: F) -> F::Output {
        let mut work = pin!(work);
        poll_fn(move |cx| {
            let polled = work.as_mut().poll(cx);
            assert!(polled.is_ready() || self.timers.is_armed(self.key, cx.waker()), "{what} waits without a deadline");
            polled
        })
        .await
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let mut inner = self.timers.0.borrow_mut();
        if let Some(entry) = inner.entries.get_mut(self.key) {
            *entry = TimerEntry { queued_at: entry.queued_at, ..TimerEntry::default() };
            inner.free.push(self.key);
        }
        inner.forget();
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// Runs `work` while the timers are driven.
    async fn with_timers<F: Future>(work: impl FnOnce(Timers) -> F) -> F::Output {
        let timers = Timers::default();
        let driven = timers.clone();
        tokio::select! {
            output = work(timers) => output,
            () = driven.drive() => unreachable!("drives for ever"),
        }
    }

    #[tokio::test]
    async fn a_deadline_is_met_and_can_be_moved() {
        with_timers(|timers| async move {
            let timer = Timer::new(&timers);
            timer.set(clock::now_ms() + 3_600_000);
            assert_eq!(timer.guard(async { 7 }).await, Ok(7));
            // Earlier than the queued time.
            timer.set(clock::now_ms() + 5);
            assert_eq!(timer.guard(pending::<()>()).await, Err(Elapsed));
            // It stays elapsed until it is set again.
            assert!(timer.is_elapsed());
            timer.set(clock::now_ms() + 5);
            // Later than the queued time, at which it is queued again.
            let later = clock::now_ms() + 30;
            timer.set(later);
            assert_eq!(timer.guard(pending::<()>()).await, Err(Elapsed));
            assert!(clock::now_ms() >= later);
        })
        .await;
    }

    #[test]
    #[cfg(debug_assertions)]
    fn who_waits_without_a_deadline_is_found_out() {
        let timers = Timers::default();
        let poll = |timer: &Timer, deadline_ms: Option<u64>| {
            let wait = async {
                if let Some(deadline_ms) = deadline_ms {
                    timer.set(deadline_ms);
                    return timer.guard(pending::<()>()).await;
                }
                pending().await
            };
            let mut watched = pin!(timer.watch().over("a test", wait));
            let once = || watched.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(once)).ok()
        };
        let check =
            |deadline_ms, expect| assert_eq!(poll(&Timer::new(&timers), deadline_ms), expect, "{deadline_ms:?}");
        check(Some(clock::now_ms() + 1_000), Some(true));
        check(Some(NEVER), None);
        check(None, None);
    }

    #[tokio::test]
    async fn only_interruptible_timers_are_interrupted() {
        with_timers(|timers| async move {
            let (idle, busy) = (Timer::new(&timers), Timer::new(&timers));
            idle.set_interruptible(clock::now_ms() + 3_600_000);
            busy.set(clock::now_ms() + 3_600_000);
            timers.interrupt();
            assert_eq!(idle.guard(pending::<()>()).await, Err(Elapsed));
            assert!(!busy.is_elapsed());
            drop(idle);
            timers.interrupt();
        })
        .await;
    }

    #[test]
    fn timers_that_are_gone_are_forgotten() {
        let timers = Timers::default();
        for _ in 0..100_000 {
            Timer::new(&timers).set(clock::now_ms() + 3_600_000);
        }
        assert_eq!(timers.0.borrow().queue.len(), 1);
        // Each deadline is earlier than the last, so all of them are queued; all but one are dropped at some point.
        let timer = Timer::new(&timers);
        for sooner_ms in 0..100_000 {
            timer.set(clock::now_ms() + 3_000_000 - sooner_ms);
            drop(Timer::new(&timers));
        }
        assert!(timers.0.borrow().queue.len() <= FORGOTTEN_MIN + 5);
    }

    #[tokio::test]
    async fn a_new_timer_in_an_old_place_is_not_fired_by_its_predecessor() {
        with_timers(|timers| async move {
            let first = Timer::new(&timers);
            first.set(clock::now_ms() + 10);
            drop(first);
            let (second, third) = (Timer::new(&timers), Timer::new(&timers));
            second.set(clock::now_ms() + 3_600_000);
            third.set(clock::now_ms() + 30);
            assert_eq!(third.guard(pending::<()>()).await, Err(Elapsed));
            assert!(!second.is_elapsed());
        })
        .await;
    }
}
