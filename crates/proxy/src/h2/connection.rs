//! What the task of a connection shares with the exchanges on its streams.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use net::spares::Spares;
use wire::h2::{self, ErrorCode, Event, Limits, ResetBy, Role, StreamKey};
use wire::message::ResponseHead;

use super::place::{Arrived, Place};

/// Informational responses that wait for their exchange to pass them on; one more cuts the stream off.
const HEADS_MAX: usize = 16;

/// The payload of a PING that asks for a sign of life. What comes back is not looked at: anything is one.
const PING: [u8; 8] = *b"liveness";

/// Rooms for heads and trailers that are kept for other streams ([`Arrived`]).
const SPARES_MAX: usize = 128;

/// A connection. Each call borrows what it needs for its own duration: nothing is held while something else runs.
pub(crate) struct Connection {
    pub(super) wire: RefCell<h2::Connection>,
    /// By [`StreamKey::slot`].
    pub(super) places: RefCell<Vec<Place>>,
    /// For heads and trailers that come.
    spares: RefCell<Spares<Arrived>>,
    /// The task that reads and writes the socket.
    driver: RefCell<Option<Waker>>,
    /// It was woken and has not run since, or it runs: what is said to it now it will hear.
    is_woken: Cell<bool>,
    /// Exchanges that have a connection and wait for room in its output, to open their stream.
    pub(super) openers: RefCell<Vec<Waker>>,
    /// Why nothing goes over it any more.
    over: Cell<Option<Cut>>,
    /// Something of a message has come since the last PING.
    has_spoken: Cell<bool>,
    /// It holds too much to be read on: its task is woken when some of that is passed on.
    is_paused: Cell<bool>,
}

/// Why a stream came to an early end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The other side reset it.
    Reset(ErrorCode),
    /// The other side did not look at it, and said so: it may be sent again elsewhere, whatever it is.
    Refused,
    /// This side reset it, because of what the other sent.
    Broken(h2::Reason),
    /// The other side closed the connection.
    Gone,
    /// The connection failed.
    Lost,
    /// The other side has not answered a PING.
    Silent,
}

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Reset(ErrorCode(code)) => write!(f, "stream reset with code {code}"),
            Self::Refused => f.write_str("stream refused"),
            Self::Broken(reason) => write!(f, "stream broken: {}", reason.name()),
            Self::Gone => f.write_str("connection closed"),
            Self::Lost => f.write_str("connection lost"),
            Self::Silent => f.write_str("PING not answered"),
        }
    }
}

impl std::error::Error for Cut {}

impl Cut {
    /// The cut that a failure to read or write was.
    pub(crate) fn within(error: &std::io::Error) -> Option<Self> {
        error.get_ref().and_then(|source| source.downcast_ref::<Self>()).copied()
    }

    fn of(code: ErrorCode, by: ResetBy) -> Self {
        match by {
            ResetBy::GoAway => Self::Refused,
            ResetBy::Peer if code == ErrorCode::REFUSED_STREAM => Self::Refused,
            ResetBy::Peer => Self::Reset(code),
            ResetBy::Us(reason) => Self::Broken(reason),
        }
    }
}

/// What the task of a connection does with what only it can.
pub(super) trait Owner {
    /// A request. Its head is in [`h2::Connection::take_request`] of `wire`, unless it is too large.
    fn on_request(&mut self, wire: &mut h2::Connection, key: StreamKey, is_too_large: bool);
    /// Something was refused that no exchange knows of.
    fn on_refused(&mut self, reason: h2::Reason);
    /// Runs the exchanges on the connection's streams as far as they go. False: other tasks do that.
    fn run(&mut self, cx: &Context<'_>) -> bool;
    /// The task rests: whoever wakes an exchange wakes it from now on.
    fn rest(&mut self, cx: &Context<'_>);
}

impl Connection {
    pub(super) fn new(role: Role, limits: Limits) -> Self {
        Self {
            wire: RefCell::new(h2::Connection::new(role, limits)),
            places: RefCell::default(),
            spares: RefCell::default(),
            driver: RefCell::default(),
            is_woken: Cell::new(false),
            openers: RefCell::default(),
            over: Cell::new(None),
            has_spoken: Cell::new(false),
            is_paused: Cell::new(false),
        }
    }

    /// The task runs, and looks at the output before it rests.
    pub(super) fn attend(&self, cx: &Context<'_>) {
        self.is_woken.set(true);
        let mut driver = self.driver.borrow_mut();
        if !driver.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *driver = Some(cx.waker().clone());
        }
    }

    /// The task rests: it is woken by [`Connection::touch`] from now on.
    pub(super) fn rest(&self) {
        self.is_woken.set(false);
    }

    /// Lets the task run: there is something to write, or to see.
    pub(super) fn touch(&self) {
        if !self.is_woken.replace(true)
            && let Some(driver) = self.driver.borrow().as_ref()
        {
            driver.wake_by_ref();
        }
    }

    /// Takes what was read, or nothing where there may be room for who waits; hands all that it means to whom it concerns. False: it concerns
    /// nobody.
    ///
    /// # Errors
    /// The other side broke the protocol; GOAWAY is in the output.
    pub(super) fn handle(&self, now_ms: u64, input: &[u8], owner: &mut impl Owner) -> Result<bool, h2::Error> {
        let mut wire = self.wire.borrow_mut();
        let mut rest = input;
        let mut has_news = false;
        loop {
            let handled = wire.handle_bytes(now_ms, rest)?;
            rest = rest.get(handled.consumed..).unwrap_or_default();
            has_news |= handled.event.is_some();
            match handled.event {
                None if rest.is_empty() => break,
                None => {}
                Some(Event::Request { stream, end }) => {
                    self.begin(stream, end, false);
                    owner.on_request(&mut wire, stream, false);
                }
                Some(Event::RequestTooLarge { stream }) => {
                    self.begin(stream, false, true);
                    owner.on_request(&mut wire, stream, true);
                }
                Some(Event::Refused { reason }) => owner.on_refused(reason),
                Some(event) => self.deliver(&mut wire, event),
            }
        }
        drop(wire);
        self.wake_openers();
        Ok(has_news)
    }

    /// A stream that has a place from now on.
    pub(super) fn begin(&self, key: StreamKey, is_ended: bool, is_too_large: bool) {
        let mut places = self.places.borrow_mut();
        let slot = key.slot as usize;
        if slot >= places.len() {
            places.resize_with(slot + 1, Place::default);
        }
        if let Some(place) = places.get_mut(slot) {
            place.begin(key.id, is_ended, is_too_large);
        }
    }

    fn deliver(&self, wire: &mut h2::Connection, event: Event<'_>) {
        let (Event::Response { stream, .. }
        | Event::Data { stream, .. }
        | Event::Trailers { stream }
        | Event::Reset { stream, .. }
        | Event::Writable { stream }) = event
        else {
            return;
        };
        self.with_place(stream, |place| match event {
            Event::Response { end, .. } => {
                self.has_spoken.set(true);
                place.is_ended |= end;
                let arrived = place.arrived.get_or_insert_with(|| self.spare());
                if !place.has_head {
                    place.has_head = true;
                    wire.take_response(&mut arrived.head, &mut arrived.head_bytes);
                } else if arrived.heads.len() < HEADS_MAX {
                    let (mut head, mut bytes) = (ResponseHead::default(), Vec::new());
                    wire.take_response(&mut head, &mut bytes);
                    arrived.heads.push_back((head, bytes));
                } else {
                    wire.reset(stream, ErrorCode::ENHANCE_YOUR_CALM);
                    place.cut(Cut::Broken(h2::Reason::Response));
                }
                place.wake_reader();
            }
            Event::Data { bytes, end, .. } => {
                self.has_spoken.set(true);
                place.input.put(bytes);
                place.is_ended |= end;
                place.wake_reader();
            }
            Event::Trailers { .. } => {
                self.has_spoken.set(true);
                let arrived = place.arrived.get_or_insert_with(|| self.spare());
                wire.take_trailers(&mut arrived.trailers, &mut arrived.trailer_bytes);
                (place.has_trailers, place.is_ended) = (true, true);
                place.wake_reader();
            }
            Event::Reset { code, by, .. } => place.cut(Cut::of(code, by)),
            _ => place.wake_writer(),
        });
    }

    fn spare(&self) -> Box<Arrived> {
        self.spares.borrow_mut().take_or(Box::default)
    }

    /// The place of a stream, as long as its exchange has not let go of it.
    pub(super) fn with_place<R>(&self, key: StreamKey, with: impl FnOnce(&mut Place) -> R) -> Option<R> {
        let mut places = self.places.borrow_mut();
        places.get_mut(key.slot as usize).filter(|place| place.id == key.id && key.id != 0).map(with)
    }

    /// An exchange lets go of its stream.
    pub(super) fn forget(&self, key: StreamKey) {
        if let Some(mut arrived) = self.with_place(key, Place::clear).flatten()
            && arrived.clear()
        {
            self.spares.borrow_mut().put(arrived, SPARES_MAX);
        }
        let mut wire = self.wire.borrow_mut();
        wire.forget(key);
        let is_worth_a_look = !wire.output().is_empty() || wire.streams_held() == 0 || self.is_paused.get();
        drop(wire);
        self.wake_openers();
        if is_worth_a_look {
            self.touch();
        }
    }

    /// All streams end here, and nothing more can be sent. What has come whole can still be read.
    pub(super) fn end(&self, cut: Cut) {
        if self.over.get().is_some() {
            return;
        }
        self.over.set(Some(cut));
        for place in self.places.borrow_mut().iter_mut().filter(|place| place.id != 0) {
            place.cut(cut);
        }
        self.wake_openers();
    }

    /// Why nothing goes over it any more; `None`: it lives.
    pub(super) fn over(&self) -> Option<Cut> {
        self.over.get()
    }

    /// Asks the other side for a sign of life.
    pub(super) fn ping(&self) {
        self.has_spoken.set(false);
        self.wire.borrow_mut().ping(PING);
        self.touch();
    }

    /// Something of a message has come since the last PING.
    pub(super) fn has_spoken(&self) -> bool {
        self.has_spoken.get()
    }

    /// Whether it holds more DATA than this for its exchanges, and so is not to be read now. Until it is asked again, its task is woken whenever
    /// some of the DATA is passed on.
    pub(super) fn pause(&self, held_bytes_max: usize) -> bool {
        self.is_paused.set(self.wire.borrow().data_held() > held_bytes_max);
        self.is_paused.get()
    }

    /// What [`Connection::pause`] said last.
    pub(super) fn is_paused(&self) -> bool {
        self.is_paused.get()
    }

    /// Takes no new streams, and ends when the last one has.
    pub(super) fn drain(&self) {
        self.wire.borrow_mut().drain();
        self.touch();
    }

    /// Gives back what a connection without streams does not need.
    pub(super) fn shrink(&self) {
        self.wire.borrow_mut().shrink();
        *self.places.borrow_mut() = Vec::new();
        *self.spares.borrow_mut() = Spares::new();
    }

    /// Streams that exchanges hold.
    pub(super) fn held(&self) -> usize {
        self.wire.borrow().streams_held()
    }

    /// Requests that it can take besides.
    pub(super) fn room(&self) -> usize {
        if self.over.get().is_some() { 0 } else { self.wire.borrow().stream_room() }
    }

    /// Ready when it may have room for a request, or is over.
    pub(super) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        if self.room() > 0 || self.over.get().is_some() {
            return Poll::Ready(());
        }
        self.openers.borrow_mut().push(cx.waker().clone());
        Poll::Pending
    }

    fn wake_openers(&self) {
        let mut openers = self.openers.borrow_mut();
        if !openers.is_empty() {
            openers.drain(..).for_each(Waker::wake);
        }
    }
}

/// Both are the same connection.
pub(super) fn is_same(a: &Rc<Connection>, b: &Rc<Connection>) -> bool {
    Rc::ptr_eq(a, b)
}
