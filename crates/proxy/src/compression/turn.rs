//! How much a worker compresses and decompresses before it looks after its other connections.
//!
//! A budget for each connection is not enough: with a hundred connections that compress, each of which had 32 KiB a poll, a request that needed none of
//! it waited for all of them, several times. So all codings of a worker share one budget, and those that find it used up wait in a queue. The
//! driver task gives the next their turns only after the runtime has polled the sockets and the tasks that are ready by then have been woken.
//!
//! Measured with a development build, one worker, 64 responses of 2 MiB compressed by Brotli at once and two shared cores: a request for 18 bytes
//! took 155 ms in the median and 471 ms at most with a budget for each connection, and 3 and 5 ms with one for all. The 64 took 3.4 and 3.3 s.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use super::SLICE_BYTES_MAX;

/// Bytes that a worker compresses before its other tasks get their turn: two slices.
const TURN_BYTES_MAX: usize = 2 * SLICE_BYTES_MAX;

thread_local! {
    /// Those of this worker.
    static TURNS: Turns = Turns::default();
}

/// A place in the queue, while there is one. Dropped, it gives the place up.
#[derive(Default)]
pub(crate) struct Ticket(Option<Rc<Place>>);

struct Place {
    is_granted: Cell<bool>,
    waker: RefCell<Waker>,
}

struct Turns {
    /// What is left of the budget, once nothing waits.
    left_bytes: Cell<usize>,
    queue: RefCell<VecDeque<Weak<Place>>>,
    driver: RefCell<Option<Waker>>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { left_bytes: Cell::new(TURN_BYTES_MAX), queue: RefCell::default(), driver: RefCell::default() }
    }
}

/// Whether a slice may be compressed now. If not, the task is woken when it is its turn.
pub(crate) fn poll(cx: &mut Context<'_>, ticket: &mut Ticket) -> bool {
    TURNS.with(|turns| turns.poll(cx, ticket))
}

/// Records that so many bytes were compressed.
pub(crate) fn note(bytes: usize) {
    TURNS.with(|turns| turns.left_bytes.set(turns.left_bytes.get().saturating_sub(bytes)));
}

/// Gives the codings of this worker their turns. It never ends. Each worker runs one.
pub(crate) async fn drive() {
    loop {
        poll_fn(|cx| TURNS.with(|turns| turns.poll_waiting(cx))).await;
        // The runtime polls the sockets before it resumes this task, and wakes the tasks of the sockets first.
        tokio::task::yield_now().await;
        TURNS.with(Turns::grant);
    }
}

impl Turns {
    fn poll(&self, cx: &mut Context<'_>, ticket: &mut Ticket) -> bool {
        match &ticket.0 {
            Some(place) if place.is_granted.get() => {
                ticket.0 = None;
                true
            }
            Some(place) => {
                place.waker.borrow_mut().clone_from(cx.waker());
                false
            }
            None if self.left_bytes.get() > 0 && self.queue.borrow().is_empty() => true,
            None => {
                let place = Place { is_granted: Cell::new(false), waker: RefCell::new(cx.waker().clone()) };
                let place = ticket.0.insert(Rc::new(place));
                self.queue.borrow_mut().push_back(Rc::downgrade(place));
                if let Some(driver) = self.driver.borrow_mut().take() {
                    driver.wake();
                }
                false
            }
        }
    }

    /// Ready when something waits for its turn.
    fn poll_waiting(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.queue.borrow().is_empty() {
            *self.driver.borrow_mut() = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Begins a turn: wakes as many as the budget is enough for.
    fn grant(&self) {
        let mut left_bytes = TURN_BYTES_MAX;
        while left_bytes >= SLICE_BYTES_MAX {
            let Some(place) = self.queue.borrow_mut().pop_front() else { break };
            // Of one that is gone, there is only the weak reference.
            let Some(place) = place.upgrade() else { continue };
            place.is_granted.set(true);
            place.waker.borrow().wake_by_ref();
            left_bytes -= SLICE_BYTES_MAX;
        }
        self.left_bytes.set(left_bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a task may go on.
    fn goes_on(turns: &Turns, count: &Arc<Count>, ticket: &mut Ticket) -> bool {
        let waker = Waker::from(count.clone());
        let goes_on = turns.poll(&mut Context::from_waker(&waker), ticket);
        if goes_on {
            turns.left_bytes.set(turns.left_bytes.get().saturating_sub(SLICE_BYTES_MAX));
        }
        goes_on
    }

    #[test]
    fn codings_take_turns_in_the_order_of_their_arrival() {
        let turns = Turns::default();
        let counts: [Arc<Count>; 5] = Default::default();
        let mut tickets: [Ticket; 5] = Default::default();
        let mut poll = |number: usize| goes_on(&turns, &counts[number], &mut tickets[number]);
        // What there is before anything waits.
        assert_eq!([poll(0), poll(0), poll(0)], [true, true, false]);
        assert_eq!([1, 2, 3].map(&mut poll), [false; 3]);
        // Asking again gives no second place.
        assert!(!poll(1));
        turns.grant();
        assert_eq!([3, 2, 1, 0].map(&mut poll), [false, false, true, true]);
        // Those who had their turn are the last.
        assert_eq!([0, 1].map(&mut poll), [false; 2]);
        turns.grant();
        assert_eq!([0, 1, 2, 3].map(&mut poll), [false, false, true, true]);
        turns.grant();
        assert_eq!([0, 1].map(&mut poll), [true; 2]);
        // Nothing waits any more, but the budget is used up.
        assert!(!poll(4));
        let woken = counts.map(|count| count.0.load(Ordering::Relaxed));
        assert_eq!(woken, [2, 2, 1, 1, 0]);
    }

    #[test]
    fn who_leaves_the_queue_takes_nobodys_turn() {
        let turns = Turns::default();
        let counts: [Arc<Count>; 4] = Default::default();
        let mut tickets: [Ticket; 4] = Default::default();
        turns.left_bytes.set(0);
        for number in 0..4 {
            assert!(!goes_on(&turns, &counts[number], &mut tickets[number]));
        }
        tickets[0] = Ticket::default();
        tickets[2] = Ticket::default();
        turns.grant();
        assert!([1, 3].iter().all(|number| goes_on(&turns, &counts[*number], &mut tickets[*number])));
        assert!(turns.queue.borrow().is_empty());
    }

    #[tokio::test]
    async fn the_driver_goes_on_while_something_waits() {
        let local = tokio::task::LocalSet::new();
        local.spawn_local(drive());
        let all: Vec<_> = (0..10).map(|_| local.spawn_local(compress())).collect();
        for one in all {
            local.run_until(one).await.unwrap();
        }
    }

    /// Needs a hundred turns.
    async fn compress() {
        let mut ticket = Ticket::default();
        for _ in 0..100 {
            poll_fn(|cx| if poll(cx, &mut ticket) { Poll::Ready(()) } else { Poll::Pending }).await;
            note(SLICE_BYTES_MAX);
        }
    }
}
