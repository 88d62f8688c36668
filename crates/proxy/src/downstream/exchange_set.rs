//! The exchanges on the streams of a client's HTTP/2 connection, polled by the connection's task.
//!
//! With one runtime task per stream, every request would create, queue and free a task. Instead, each task slot has a future that serves
//! one request after another, and is neither created nor moved for a request. Waking a slot sets its bit in a ready set, and wakes the
//! connection's task once for all set bits. The task writes the output of all exchanges in the same turn.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::AcqRel;
use std::task::{Context, Poll, Wake, Waker};

use net::cache::CacheLines;
use net::memory;

/// Task slots that keep their future for the next request. It is rare that more streams are open at once; their futures are created as the
/// requests arrive.
const KEPT_MAX: usize = 64;

/// Task slots in one [`ReadySet`].
const SLOTS_PER_SET: usize = 63;

/// The bit that belongs to no slot: the task is running, and checks the ready set again before it sleeps.
const RUNNING: u64 = 1 << SLOTS_PER_SET;

/// The exchanges in progress: as many as the connection has streams, at most twice its limit.
pub(super) struct ExchangeSet<J, F, B> {
    slots: Vec<TaskSlot<J, F>>,
    active: usize,
    /// One set for every [`SLOTS_PER_SET`] slots.
    ready_sets: Vec<Arc<ReadySet>>,
    /// For each ready set, the bits of its free slots.
    free: Vec<u64>,
    /// The task that polls them.
    task: Waker,
    next_job: Rc<NextJob<J>>,
    /// Creates the future that serves the requests of a slot, which it takes from `next_job`.
    begin: B,
}

/// A future that serves requests, and what it needs to be polled.
struct TaskSlot<J, F> {
    waker: Waker,
    /// The memory that the exchange works on, besides its future.
    data: CacheLines,
    /// The request to begin with.
    job: Option<J>,
    /// In a free slot: a future that waits for its next request, or `None`.
    exchange: Option<Pin<Box<F>>>,
}

/// Hands the next request to the future that is polled. Futures are polled one by one, so one cell serves all slots.
pub(super) struct NextJob<J> {
    job: Cell<Option<J>>,
    is_asked: Cell<bool>,
}

impl<J> NextJob<J> {
    /// The next request. A future that asks for it has finished the last one.
    pub(super) async fn next(&self) -> J {
        poll_fn(|_| match self.job.take() {
            Some(job) => Poll::Ready(job),
            None => {
                self.is_asked.set(true);
                Poll::Pending
            }
        })
        .await
    }
}

/// The task slots that are ready to be polled.
struct ReadySet {
    /// A bit for each slot, and [`RUNNING`].
    ready: AtomicU64,
    task: Waker,
}

/// The waker of one slot: sets its bit in the ready set.
struct SlotWaker {
    ready_set: Arc<ReadySet>,
    bit: u64,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // If any bit was set, the task has been woken and has not run since, or it is running.
        if self.ready_set.ready.fetch_or(self.bit, AcqRel) == 0 {
            self.ready_set.task.wake_by_ref();
        }
    }
}

impl<J, F: Future<Output = ()>, B: Fn(Rc<NextJob<J>>) -> F> ExchangeSet<J, F, B> {
    /// `begin` creates a future that takes a request from the [`NextJob`], serves it, and takes the next one, or ends.
    pub(super) fn new(begin: B) -> Self {
        let (slots, ready_sets, free) = (Vec::new(), Vec::new(), Vec::new());
        let next_job = Rc::new(NextJob { job: Cell::new(None), is_asked: Cell::new(false) });
        Self { slots, active: 0, ready_sets, free, task: Waker::noop().clone(), next_job, begin }
    }

    /// Accepts a request. Its exchange begins at the next [`ExchangeSet::poll`], after those that were accepted earlier. `data` is the
    /// memory that it works on, which is prefetched before the exchange is polled.
    pub(super) fn push(&mut self, job: J, data: CacheLines) {
        let index = self.free_slot();
        if let (Some(slot), Some(ready_set)) = (self.slots.get_mut(index), self.ready_sets.get(index / SLOTS_PER_SET)) {
            slot.job = Some(job);
            slot.data = data;
            self.active += 1;
            ready_set.ready.fetch_or(bit(index), AcqRel);
        }
    }

    /// The first free slot, because slots are polled in order.
    fn free_slot(&mut self) -> usize {
        if let Some((number, free)) = self.free.iter_mut().enumerate().find(|(_, free)| **free != 0) {
            let slot = free.trailing_zeros() as usize;
            *free &= *free - 1;
            return number * SLOTS_PER_SET + slot;
        }
        let index = self.slots.len();
        if index.is_multiple_of(SLOTS_PER_SET) {
            self.ready_sets.push(Arc::new(ReadySet { ready: AtomicU64::new(0), task: self.task.clone() }));
            self.free.push(0);
        }
        let waker = waker(&self.ready_sets, index);
        self.slots.push(TaskSlot { waker, data: CacheLines::of(&()), job: None, exchange: None });
        index
    }

    /// Polls the ready slots. Before the task sleeps it must call [`ExchangeSet::end_poll`].
    pub(super) fn poll(&mut self, cx: &Context<'_>) {
        if !self.task.will_wake(cx.waker()) {
            self.move_to(cx.waker());
        }
        let Self { slots, ready_sets, free, next_job, begin, .. } = self;
        for ((number, ready_set), free) in ready_sets.iter().enumerate().zip(free) {
            // A free slot is woken if something still has a waker of its last exchange.
            let mut ready = ready_set.ready.swap(RUNNING, AcqRel) & !RUNNING & !*free;
            while ready != 0 {
                let index = number * SLOTS_PER_SET + ready.trailing_zeros() as usize;
                ready &= ready - 1;
                // Hundreds of exchanges wait, and none is in the nearest cache when its turn comes, so prefetch the next one while this one
                // runs.
                if ready != 0
                    && let Some(next) = slots.get(number * SLOTS_PER_SET + ready.trailing_zeros() as usize)
                {
                    if let Some(exchange) = &next.exchange {
                        CacheLines::of(&**exchange).prefetch();
                    }
                    next.data.prefetch();
                }
                let Some(slot) = slots.get_mut(index) else { continue };
                let exchange = slot.exchange.get_or_insert_with(|| {
                    memory::note_allocated(size_of::<F>());
                    Box::pin(begin(next_job.clone()))
                });
                next_job.job.set(slot.job.take());
                let is_gone = exchange.as_mut().poll(&mut Context::from_waker(&slot.waker)).is_ready();
                if next_job.is_asked.take() || is_gone {
                    self.active -= 1;
                    *free |= bit(index);
                    if is_gone || index >= KEPT_MAX {
                        slot.exchange = None;
                        memory::note_freed(size_of::<F>());
                    }
                }
            }
        }
    }

    /// Makes the waking of a slot wake the task from now on. If a slot was woken in the meantime, this wakes the task.
    pub(super) fn end_poll(&self, cx: &Context<'_>) {
        if self
            .ready_sets
            .iter()
            .fold(false, |any, ready_set| any | (ready_set.ready.fetch_and(!RUNNING, AcqRel) & !RUNNING != 0))
        {
            cx.waker().wake_by_ref();
        }
    }

    /// Whether no exchange is in progress.
    pub(super) fn is_empty(&self) -> bool {
        self.active == 0
    }

    /// Frees the slots if no exchange is in progress.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() {
            (self.slots, self.ready_sets, self.free) = (Vec::new(), Vec::new(), Vec::new());
        }
    }

    /// Moves the slots to another task, or assigns the first one: waking a slot wakes that task from now on. All slots are polled once, so
    /// that they register their new wakers.
    fn move_to(&mut self, task: &Waker) {
        self.task = task.clone();
        for ready_set in &mut self.ready_sets {
            *ready_set = Arc::new(ReadySet { ready: AtomicU64::new(!RUNNING), task: task.clone() });
        }
        for (index, slot) in self.slots.iter_mut().enumerate() {
            slot.waker = waker(&self.ready_sets, index);
        }
    }
}

fn bit(index: usize) -> u64 {
    1 << (index % SLOTS_PER_SET)
}

fn waker(ready_sets: &[Arc<ReadySet>], index: usize) -> Waker {
    match ready_sets.get(index / SLOTS_PER_SET) {
        Some(ready_set) => Arc::new(SlotWaker { ready_set: ready_set.clone(), bit: bit(index) }).into(),
        None => Waker::noop().clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, AcqRel);
        }
    }

    impl Task {
        fn wakes(&self) -> usize {
            self.0.swap(0, AcqRel)
        }
    }

    /// What a test knows about an exchange: how often it was polled, its waker, and whether it may end.
    #[derive(Default)]
    struct Seen {
        polls: Cell<usize>,
        waker: RefCell<Option<Waker>>,
        may_end: Cell<bool>,
    }

    fn exchange(seen: Rc<Seen>) -> impl Future<Output = ()> {
        poll_fn(move |cx| {
            seen.polls.set(seen.polls.get() + 1);
            *seen.waker.borrow_mut() = Some(cx.waker().clone());
            if seen.may_end.get() { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    /// Serves jobs, and counts in `made` how many of these futures exist.
    async fn serve(made: &Cell<usize>, next_job: Rc<NextJob<Rc<Seen>>>) {
        made.set(made.get() + 1);
        loop {
            exchange(next_job.next().await).await;
        }
    }

    fn wake(seen: &Seen) {
        if let Some(waker) = seen.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    fn polls(all: &[Rc<Seen>]) -> Vec<usize> {
        all.iter().map(|seen| seen.polls.take()).collect()
    }

    fn jobs(count: usize) -> Vec<Rc<Seen>> {
        (0..count).map(|_| Rc::default()).collect()
    }

    #[test]
    fn only_those_that_were_woken_are_run_and_the_task_is_woken_once() {
        let task = Arc::new(Task::default());
        let waker = Waker::from(task.clone());
        let cx = Context::from_waker(&waker);
        let made = Cell::new(0);
        let mut exchanges = ExchangeSet::new(|next_job| serve(&made, next_job));
        let all = jobs(5);
        all.iter().for_each(|seen| exchanges.push(seen.clone(), CacheLines::of(&())));
        exchanges.poll(&cx);
        exchanges.poll(&cx);
        exchanges.end_poll(&cx);
        assert_eq!((polls(&all), task.wakes()), (vec![1; 5], 0));

        [1, 3, 1].iter().for_each(|at: &usize| wake(&all[*at]));
        assert_eq!(task.wakes(), 1);
        all[3].may_end.set(true);
        exchanges.poll(&cx);
        assert_eq!(polls(&all), [0, 1, 0, 1, 0]);

        // A running task is not woken, but finds the bit before it sleeps.
        wake(&all[0]);
        assert_eq!(task.wakes(), 0);
        exchanges.end_poll(&cx);
        assert_eq!(task.wakes(), 1);
        exchanges.poll(&cx);
        assert_eq!(polls(&all), [1, 0, 0, 0, 0]);

        // A stale waker does no harm, whether its slot is free or has another exchange.
        wake(&all[3]);
        exchanges.poll(&cx);
        assert_eq!((polls(&all), exchanges.active), (vec![0; 5], 4));
        let next = Rc::<Seen>::default();
        exchanges.push(next.clone(), CacheLines::of(&()));
        wake(&all[3]);
        exchanges.poll(&cx);
        assert_eq!((next.polls.take(), exchanges.active), (1, 5));
        assert_eq!(made.get(), 5, "the future of the slot served both");
    }

    #[test]
    fn those_that_came_first_begin_first() {
        let order = RefCell::new(Vec::new());
        let begin = |next_job: Rc<NextJob<usize>>| async {
            let next_job = next_job;
            loop {
                let number = next_job.next().await;
                order.borrow_mut().push(number);
                // Every third one stays.
                if number.is_multiple_of(3) {
                    std::future::pending::<()>().await;
                }
            }
        };
        let waker = Waker::from(Arc::new(Task::default()));
        let cx = Context::from_waker(&waker);
        let mut exchanges = ExchangeSet::new(begin);
        for round in 0..3 {
            (0..100).for_each(|number| exchanges.push(number, CacheLines::of(&())));
            exchanges.poll(&cx);
            assert_eq!(order.take(), (0..100).collect::<Vec<_>>(), "{round}");
            assert_eq!(exchanges.active, 34 * (round + 1));
        }
    }

    #[test]
    fn many_slots_have_many_ready_sets() {
        let task = Arc::new(Task::default());
        let waker = Waker::from(task.clone());
        let cx = Context::from_waker(&waker);
        let made = Cell::new(0);
        let mut exchanges = ExchangeSet::new(|next_job| serve(&made, next_job));
        for round in 1..=2 {
            let all = jobs(200);
            all.iter().for_each(|seen| exchanges.push(seen.clone(), CacheLines::of(&())));
            exchanges.poll(&cx);
            exchanges.end_poll(&cx);
            for seen in &all {
                seen.may_end.set(true);
                wake(seen);
            }
            // At most once per ready set.
            assert!((1..=4).contains(&task.wakes()));
            exchanges.poll(&cx);
            assert_eq!(polls(&all), vec![2; 200]);
            let kept = exchanges.slots.iter().filter(|slot| slot.exchange.is_some()).count();
            assert!(exchanges.is_empty() && kept == KEPT_MAX, "{kept}");
            assert_eq!(made.get(), 200 * round - KEPT_MAX * (round - 1));
        }
        exchanges.shrink();
        assert!(exchanges.slots.is_empty() && exchanges.ready_sets.is_empty() && exchanges.free.is_empty());
    }

    #[test]
    fn one_that_comes_to_its_end_leaves_its_slot() {
        let waker = Waker::from(Arc::new(Task::default()));
        let cx = Context::from_waker(&waker);
        let begun = Cell::new(0);
        let mut exchanges = ExchangeSet::new(|next_job: Rc<NextJob<usize>>| async {
            let next_job = next_job;
            begun.set(begun.get() + next_job.next().await);
        });
        for round in 1..=3 {
            exchanges.push(1, CacheLines::of(&()));
            exchanges.poll(&cx);
            assert_eq!((begun.get(), exchanges.is_empty(), exchanges.slots.len()), (round, true, 1));
        }
    }

    #[test]
    fn another_task_can_take_over() {
        let tasks = [Arc::new(Task::default()), Arc::new(Task::default())];
        let wakers = tasks.clone().map(Waker::from);
        let (seen, made) = (Rc::<Seen>::default(), Cell::new(0));
        let mut exchanges = ExchangeSet::new(|next_job| serve(&made, next_job));
        exchanges.push(seen.clone(), CacheLines::of(&()));
        exchanges.poll(&Context::from_waker(&wakers[0]));
        exchanges.poll(&Context::from_waker(&wakers[1]));
        exchanges.end_poll(&Context::from_waker(&wakers[1]));
        assert_eq!(seen.polls.take(), 2);
        wake(&seen);
        assert_eq!(tasks.map(|task| task.wakes()), [0, 1]);
    }
}
