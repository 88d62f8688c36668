//! The exchanges on the streams of a client's connection, which its task runs by itself.
//!
//! A task of the runtime for each stream would be made, queued and taken apart for each request. Here an exchange is a future in a box that
//! the last one left behind, and waking it sets a bit; the connection's task is woken once for all whose bits are set, and what they
//! say goes out in the same turn.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::AcqRel;
use std::task::{Context, Wake, Waker};

use net::cache::Place;

/// Boxes kept for the next exchanges. More streams than that at once are rare, and find their boxes made as they come.
const SPARES_MAX: usize = 64;

/// Exchanges that one [`Bell`] is for.
const SEATS_EACH: usize = 63;

/// The bit that no seat has: the task runs, and looks before it rests.
const ATTENDED: u64 = 1 << SEATS_EACH;

/// The exchanges under way: as many as the connection has streams, at most twice its limit.
pub(super) struct Exchanges<F> {
    seats: Vec<Seat<F>>,
    taken: usize,
    /// One for each [`SEATS_EACH`] seats.
    bells: Vec<Arc<Bell>>,
    /// A bit for each seat of a bell that is free.
    free: Vec<u64>,
    spares: Vec<Pin<Box<Option<F>>>>,
    /// Who runs them.
    task: Waker,
}

struct Seat<F> {
    waker: Waker,
    /// What the exchange works on, besides itself.
    work: Place,
    /// `None`: the seat is free.
    exchange: Option<Pin<Box<Option<F>>>>,
}

/// Says which exchanges are to be looked at.
struct Bell {
    /// A bit for each seat, and [`ATTENDED`].
    rung: AtomicU64,
    task: Waker,
}

/// Rings a bell for one seat.
struct Rope {
    bell: Arc<Bell>,
    bit: u64,
}

impl Wake for Rope {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Else whoever rang before has woken the task, and it has not looked since; or it runs.
        if self.bell.rung.fetch_or(self.bit, AcqRel) == 0 {
            self.bell.task.wake_by_ref();
        }
    }
}

impl<F: Future<Output = ()>> Exchanges<F> {
    pub(super) fn new() -> Self {
        let (seats, bells, free, spares) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { seats, taken: 0, bells, free, spares, task: Waker::noop().clone() }
    }

    /// Takes an exchange in. It begins with the next [`Exchanges::poll`], which the task sees to, behind those that were taken in before it.
    /// `work`: what it works on, which is fetched before it runs.
    pub(super) fn push(&mut self, exchange: F, work: Place) {
        let mut room = self.spares.pop().unwrap_or_else(|| Box::pin(None));
        room.set(Some(exchange));
        let index = self.seat();
        if let (Some(seat), Some(bell)) = (self.seats.get_mut(index), self.bells.get(index / SEATS_EACH)) {
            seat.exchange = Some(room);
            seat.work = work;
            self.taken += 1;
            bell.rung.fetch_or(bit(index), AcqRel);
        }
    }

    /// The first free seat: seats are looked at in their order.
    fn seat(&mut self) -> usize {
        if let Some((number, free)) = self.free.iter_mut().enumerate().find(|(_, free)| **free != 0) {
            let seat = free.trailing_zeros() as usize;
            *free &= *free - 1;
            return number * SEATS_EACH + seat;
        }
        let index = self.seats.len();
        if index.is_multiple_of(SEATS_EACH) {
            self.bells.push(Arc::new(Bell { rung: AtomicU64::new(0), task: self.task.clone() }));
            self.free.push(0);
        }
        self.seats.push(Seat { waker: waker(&self.bells, index), work: Place::of(&()), exchange: None });
        index
    }

    /// Runs those that have something to do. Before the task rests it calls [`Exchanges::rest`].
    pub(super) fn poll(&mut self, cx: &Context<'_>) {
        if !self.task.will_wake(cx.waker()) {
            self.move_to(cx.waker());
        }
        for (number, bell) in self.bells.iter().enumerate() {
            let mut rung = bell.rung.swap(ATTENDED, AcqRel) & !ATTENDED;
            while rung != 0 {
                let index = number * SEATS_EACH + rung.trailing_zeros() as usize;
                rung &= rung - 1;
                // Hundreds wait, and none of them is in the nearest cache when its turn comes: the next is fetched while this one runs.
                if rung != 0
                    && let Some(next) = self.seats.get(number * SEATS_EACH + rung.trailing_zeros() as usize)
                    && let Some(room) = &next.exchange
                {
                    Place::of(&**room).prefetch();
                    next.work.prefetch();
                }
                let Some(seat) = self.seats.get_mut(index) else { continue };
                let Some(mut room) = seat.exchange.take() else { continue };
                let polled =
                    room.as_mut().as_pin_mut().map(|exchange| exchange.poll(&mut Context::from_waker(&seat.waker)));
                if polled.is_some_and(|polled| polled.is_pending()) {
                    seat.exchange = Some(room);
                    continue;
                }
                room.set(None);
                self.taken -= 1;
                if let Some(free) = self.free.get_mut(number) {
                    *free |= bit(index);
                }
                if self.spares.len() < SPARES_MAX {
                    self.spares.push(room);
                }
            }
        }
    }

    /// From now on whoever wakes an exchange wakes the task. Where one was woken in the meantime, that is now.
    pub(super) fn rest(&self, cx: &Context<'_>) {
        if self.bells.iter().fold(false, |any, bell| any | (bell.rung.fetch_and(!ATTENDED, AcqRel) & !ATTENDED != 0)) {
            cx.waker().wake_by_ref();
        }
    }

    /// None is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// Gives back the room of those that are over, if none is under way.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() {
            let task = self.task.clone();
            *self = Self { task, ..Self::new() };
        }
    }

    /// Another task runs them from now on, or the first does: whoever wakes one wakes that. All are looked at, so that they ask anew.
    fn move_to(&mut self, task: &Waker) {
        self.task = task.clone();
        for bell in &mut self.bells {
            *bell = Arc::new(Bell { rung: AtomicU64::new(!ATTENDED), task: task.clone() });
        }
        for (index, seat) in self.seats.iter_mut().enumerate() {
            seat.waker = waker(&self.bells, index);
        }
    }
}

fn bit(index: usize) -> u64 {
    1 << (index % SEATS_EACH)
}

fn waker(bells: &[Arc<Bell>], index: usize) -> Waker {
    match bells.get(index / SEATS_EACH) {
        Some(bell) => Arc::new(Rope { bell: bell.clone(), bit: bit(index) }).into(),
        None => Waker::noop().clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::poll_fn;
    use std::rc::Rc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Poll;

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

    /// What a test knows of an exchange: how often it was looked at, its waker, and that it may end.
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

    fn wake(seen: &Seen) {
        if let Some(waker) = seen.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    fn polls(all: &[Rc<Seen>]) -> Vec<usize> {
        all.iter().map(|seen| seen.polls.take()).collect()
    }

    #[test]
    fn only_those_that_were_woken_are_run_and_the_task_is_woken_once() {
        let task = Arc::new(Task::default());
        let waker = Waker::from(task.clone());
        let cx = Context::from_waker(&waker);
        let mut exchanges = Exchanges::new();
        let all: Vec<Rc<Seen>> = (0..5).map(|_| Rc::default()).collect();
        all.iter().for_each(|seen| exchanges.push(exchange(seen.clone()), Place::of(&())));
        exchanges.poll(&cx);
        exchanges.poll(&cx);
        exchanges.rest(&cx);
        assert_eq!((polls(&all), task.wakes()), (vec![1; 5], 0));

        [1, 3, 1].iter().for_each(|at: &usize| wake(&all[*at]));
        assert_eq!(task.wakes(), 1);
        all[3].may_end.set(true);
        exchanges.poll(&cx);
        assert_eq!(polls(&all), [0, 1, 0, 1, 0]);

        // While the task runs it need not be woken, but hears of it before it rests.
        wake(&all[0]);
        assert_eq!(task.wakes(), 0);
        exchanges.rest(&cx);
        assert_eq!(task.wakes(), 1);
        exchanges.poll(&cx);
        assert_eq!(polls(&all), [1, 0, 0, 0, 0]);

        // A waker of an exchange that is over does no harm to the one that has its seat now.
        let next = Rc::<Seen>::default();
        exchanges.push(exchange(next.clone()), Place::of(&()));
        wake(&all[3]);
        exchanges.poll(&cx);
        assert_eq!((next.polls.take(), exchanges.is_empty()), (1, false));
    }

    #[test]
    fn those_that_came_first_begin_first() {
        let order = Rc::new(RefCell::new(Vec::new()));
        let mut exchanges = Exchanges::new();
        let begin = |number: usize, ends: usize| {
            let order = order.clone();
            let mut polls = 0;
            poll_fn(move |_| {
                order.borrow_mut().push(number);
                polls += 1;
                if polls >= ends { Poll::Ready(()) } else { Poll::Pending }
            })
        };
        let waker = Waker::from(Arc::new(Task::default()));
        let cx = Context::from_waker(&waker);
        for round in 0..3 {
            // Every third stays.
            (0..100).for_each(|number| {
                exchanges.push(begin(number, if number % 3 == 0 { usize::MAX } else { 1 }), Place::of(&()))
            });
            exchanges.poll(&cx);
            let begun = std::mem::take(&mut *order.borrow_mut());
            assert_eq!(begun, (0..100).collect::<Vec<_>>(), "{round}");
        }
    }

    #[test]
    fn many_seats_have_many_bells() {
        let task = Arc::new(Task::default());
        let waker = Waker::from(task.clone());
        let cx = Context::from_waker(&waker);
        let mut exchanges = Exchanges::new();
        let all: Vec<Rc<Seen>> = (0..200).map(|_| Rc::default()).collect();
        all.iter().for_each(|seen| exchanges.push(exchange(seen.clone()), Place::of(&())));
        exchanges.poll(&cx);
        exchanges.rest(&cx);
        for seen in &all {
            seen.may_end.set(true);
            wake(seen);
        }
        // One for each bell, at most.
        assert!((1..=4).contains(&task.wakes()));
        exchanges.poll(&cx);
        assert_eq!(polls(&all), vec![2; 200]);
        assert!(exchanges.is_empty() && exchanges.spares.len() == SPARES_MAX);
        exchanges.shrink();
        assert!(exchanges.seats.is_empty() && exchanges.spares.is_empty());
    }

    #[test]
    fn another_task_can_take_over() {
        let tasks = [Arc::new(Task::default()), Arc::new(Task::default())];
        let wakers = tasks.clone().map(Waker::from);
        let seen = Rc::<Seen>::default();
        let mut exchanges = Exchanges::new();
        exchanges.push(exchange(seen.clone()), Place::of(&()));
        exchanges.poll(&Context::from_waker(&wakers[0]));
        exchanges.poll(&Context::from_waker(&wakers[1]));
        exchanges.rest(&Context::from_waker(&wakers[1]));
        assert_eq!(seen.polls.take(), 2);
        wake(&seen);
        assert_eq!(tasks.map(|task| task.wakes()), [0, 1]);
    }
}
