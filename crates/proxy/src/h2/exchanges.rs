//! The exchanges on the streams of a client's connection, which its task runs by itself.
//!
//! A task of the runtime for each stream would be made, queued and taken apart for each request. Here a seat has a future that serves one
//! request after another, and is neither made nor moved for any of them; waking it sets a bit; the connection's task is woken once for all
//! whose bits are set, and what they say goes out in the same turn.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::AcqRel;
use std::task::{Context, Poll, Wake, Waker};

use net::cache::Place;
use net::memory;

/// Seats that keep their future for the next request. More streams than that at once are rare, and find theirs made as they come.
const KEPT_MAX: usize = 64;

/// Exchanges that one [`Bell`] is for.
const SEATS_EACH: usize = 63;

/// The bit that no seat has: the task runs, and looks before it rests.
const ATTENDED: u64 = 1 << SEATS_EACH;

/// The exchanges under way: as many as the connection has streams, at most twice its limit.
pub(super) struct Exchanges<J, F, B> {
    seats: Vec<Seat<J, F>>,
    taken: usize,
    /// One for each [`SEATS_EACH`] seats.
    bells: Vec<Arc<Bell>>,
    /// A bit for each seat of a bell that is free.
    free: Vec<u64>,
    /// Who runs them.
    task: Waker,
    desk: Rc<Desk<J>>,
    /// Makes what serves the requests that it finds on the desk.
    begin: B,
}

struct Seat<J, F> {
    waker: Waker,
    /// What the exchange works on, besides itself.
    work: Place,
    /// What it is to begin with.
    job: Option<J>,
    /// Of a free seat one that waits for its next request, or `None`.
    exchange: Option<Pin<Box<F>>>,
}

/// Where an exchange finds its next request. They run one by one, so there is one desk for all.
pub(super) struct Desk<J> {
    job: Cell<Option<J>>,
    is_asked: Cell<bool>,
}

impl<J> Desk<J> {
    /// The next request. Whoever asks has done with the last.
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

impl<J, F: Future<Output = ()>, B: Fn(Rc<Desk<J>>) -> F> Exchanges<J, F, B> {
    /// `begin` makes a future that asks the desk for a request, serves it, and asks for the next; or ends.
    pub(super) fn new(begin: B) -> Self {
        let (seats, bells, free) = (Vec::new(), Vec::new(), Vec::new());
        let desk = Rc::new(Desk { job: Cell::new(None), is_asked: Cell::new(false) });
        Self { seats, taken: 0, bells, free, task: Waker::noop().clone(), desk, begin }
    }

    /// Takes a request in. Its exchange begins with the next [`Exchanges::poll`], which the task sees to, behind those that were taken in
    /// before it. `work`: what it works on, which is fetched before it runs.
    pub(super) fn push(&mut self, job: J, work: Place) {
        let index = self.seat();
        if let (Some(seat), Some(bell)) = (self.seats.get_mut(index), self.bells.get(index / SEATS_EACH)) {
            seat.job = Some(job);
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
        let waker = waker(&self.bells, index);
        self.seats.push(Seat { waker, work: Place::of(&()), job: None, exchange: None });
        index
    }

    /// Runs those that have something to do. Before the task rests it calls [`Exchanges::rest`].
    pub(super) fn poll(&mut self, cx: &Context<'_>) {
        if !self.task.will_wake(cx.waker()) {
            self.move_to(cx.waker());
        }
        let Self { seats, bells, free, desk, begin, .. } = self;
        for ((number, bell), free) in bells.iter().enumerate().zip(free) {
            // A free seat is rung where somebody had still a waker of the exchange that was there.
            let mut rung = bell.rung.swap(ATTENDED, AcqRel) & !ATTENDED & !*free;
            while rung != 0 {
                let index = number * SEATS_EACH + rung.trailing_zeros() as usize;
                rung &= rung - 1;
                // Hundreds wait, and none of them is in the nearest cache when its turn comes: the next is fetched while this one runs.
                if rung != 0
                    && let Some(next) = seats.get(number * SEATS_EACH + rung.trailing_zeros() as usize)
                {
                    if let Some(exchange) = &next.exchange {
                        Place::of(&**exchange).prefetch();
                    }
                    next.work.prefetch();
                }
                let Some(seat) = seats.get_mut(index) else { continue };
                let exchange = seat.exchange.get_or_insert_with(|| {
                    memory::note_allocated(size_of::<F>());
                    Box::pin(begin(desk.clone()))
                });
                desk.job.set(seat.job.take());
                let is_gone = exchange.as_mut().poll(&mut Context::from_waker(&seat.waker)).is_ready();
                if desk.is_asked.take() || is_gone {
                    self.taken -= 1;
                    *free |= bit(index);
                    if is_gone || index >= KEPT_MAX {
                        seat.exchange = None;
                        memory::note_freed(size_of::<F>());
                    }
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
            (self.seats, self.bells, self.free) = (Vec::new(), Vec::new(), Vec::new());
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

    /// What serves jobs, and counts in `made` how many of it there are.
    async fn serve(made: &Cell<usize>, desk: Rc<Desk<Rc<Seen>>>) {
        made.set(made.get() + 1);
        loop {
            exchange(desk.next().await).await;
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
        let mut exchanges = Exchanges::new(|desk| serve(&made, desk));
        let all = jobs(5);
        all.iter().for_each(|seen| exchanges.push(seen.clone(), Place::of(&())));
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

        // A waker of an exchange that is over does no harm: to nobody, and to the one that has its seat now.
        wake(&all[3]);
        exchanges.poll(&cx);
        assert_eq!((polls(&all), exchanges.taken), (vec![0; 5], 4));
        let next = Rc::<Seen>::default();
        exchanges.push(next.clone(), Place::of(&()));
        wake(&all[3]);
        exchanges.poll(&cx);
        assert_eq!((next.polls.take(), exchanges.taken), (1, 5));
        assert_eq!(made.get(), 5, "the seat's own future served both");
    }

    #[test]
    fn those_that_came_first_begin_first() {
        let order = RefCell::new(Vec::new());
        let begin = |desk: Rc<Desk<usize>>| async {
            let desk = desk;
            loop {
                let number = desk.next().await;
                order.borrow_mut().push(number);
                // Every third stays.
                if number.is_multiple_of(3) {
                    std::future::pending::<()>().await;
                }
            }
        };
        let waker = Waker::from(Arc::new(Task::default()));
        let cx = Context::from_waker(&waker);
        let mut exchanges = Exchanges::new(begin);
        for round in 0..3 {
            (0..100).for_each(|number| exchanges.push(number, Place::of(&())));
            exchanges.poll(&cx);
            assert_eq!(order.take(), (0..100).collect::<Vec<_>>(), "{round}");
            assert_eq!(exchanges.taken, 34 * (round + 1));
        }
    }

    #[test]
    fn many_seats_have_many_bells() {
        let task = Arc::new(Task::default());
        let waker = Waker::from(task.clone());
        let cx = Context::from_waker(&waker);
        let made = Cell::new(0);
        let mut exchanges = Exchanges::new(|desk| serve(&made, desk));
        for round in 1..=2 {
            let all = jobs(200);
            all.iter().for_each(|seen| exchanges.push(seen.clone(), Place::of(&())));
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
            let kept = exchanges.seats.iter().filter(|seat| seat.exchange.is_some()).count();
            assert!(exchanges.is_empty() && kept == KEPT_MAX, "{kept}");
            assert_eq!(made.get(), 200 * round - KEPT_MAX * (round - 1));
        }
        exchanges.shrink();
        assert!(exchanges.seats.is_empty() && exchanges.bells.is_empty() && exchanges.free.is_empty());
    }

    #[test]
    fn one_that_comes_to_its_end_leaves_its_seat() {
        let waker = Waker::from(Arc::new(Task::default()));
        let cx = Context::from_waker(&waker);
        let begun = Cell::new(0);
        let mut exchanges = Exchanges::new(|desk: Rc<Desk<usize>>| async {
            let desk = desk;
            begun.set(begun.get() + desk.next().await);
        });
        for round in 1..=3 {
            exchanges.push(1, Place::of(&()));
            exchanges.poll(&cx);
            assert_eq!((begun.get(), exchanges.is_empty(), exchanges.seats.len()), (round, true, 1));
        }
    }

    #[test]
    fn another_task_can_take_over() {
        let tasks = [Arc::new(Task::default()), Arc::new(Task::default())];
        let wakers = tasks.clone().map(Waker::from);
        let (seen, made) = (Rc::<Seen>::default(), Cell::new(0));
        let mut exchanges = Exchanges::new(|desk| serve(&made, desk));
        exchanges.push(seen.clone(), Place::of(&()));
        exchanges.poll(&Context::from_waker(&wakers[0]));
        exchanges.poll(&Context::from_waker(&wakers[1]));
        exchanges.rest(&Context::from_waker(&wakers[1]));
        assert_eq!(seen.polls.take(), 2);
        wake(&seen);
        assert_eq!(tasks.map(|task| task.wakes()), [0, 1]);
    }
}
