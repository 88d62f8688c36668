//! The state that a connection's task shares with the exchanges on its streams.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use net::free_list::FreeList;
use wire::h2::{self, ErrorCode, Event, Limits, ResetBy, Role, StreamKey};
use wire::message::ResponseHead;

use super::stream_state::{ReceivedHeads, StreamState};

/// Informational responses that wait for their exchange to pass them on. One more resets the stream.
const HEADS_MAX: usize = 16;

/// The payload of a PING that checks whether the other side is alive. The payload of the answer is ignored, because anything that arrives
/// shows it.
const PING: [u8; 8] = *b"liveness";

/// Buffers for heads and trailers that are kept for other streams ([`ReceivedHeads`]).
const FREE_HEADS_MAX: usize = 128;

/// A connection. Each call borrows its state only for its own duration, so nothing is borrowed while other code runs.
pub(crate) struct SharedConnection {
    pub(crate) wire: RefCell<h2::Connection>,
    /// Indexed by [`StreamKey::slot`].
    streams: RefCell<Vec<StreamState>>,
    /// Free buffers for heads and trailers.
    free_heads: RefCell<FreeList<ReceivedHeads>>,
    /// The task that reads and writes the socket.
    task: RefCell<Option<Waker>>,
    /// The task was woken and has not run since, or it is running. Either way it will see what is in the output now.
    is_woken: Cell<bool>,
    /// Exchanges that have this connection and wait for room in its output to open their stream.
    pub(crate) openers: RefCell<Vec<Waker>>,
    /// Why the connection no longer carries anything.
    over: Cell<Option<StreamEnd>>,
    /// A part of a message has arrived since the last PING.
    has_spoken: Cell<bool>,
    /// The connection holds too much to be read further. Its task is woken when some of that is passed on.
    is_paused: Cell<bool>,
}

/// Why a stream ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// The other side reset it.
    Reset(ErrorCode),
    /// The other side did not process it, and said so. Any request may then be sent again elsewhere.
    Refused,
    /// This side reset it, because of what the other side sent.
    Broken(h2::Reason),
    /// The other side closed the connection.
    Gone,
    /// The connection failed.
    Lost,
    /// The other side has not answered a PING.
    Silent,
}

impl std::fmt::Display for StreamEnd {
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

impl std::error::Error for StreamEnd {}

impl StreamEnd {
    /// The end of the stream that caused a failure to read or write.
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

/// The parts of a connection's task that differ between the two sides.
pub(crate) trait ConnectionHandler {
    /// Handles a request. Its head is in [`h2::Connection::take_request`] of `wire`, unless it is too large.
    fn on_request(&mut self, wire: &mut h2::Connection, key: StreamKey, is_too_large: bool);
    /// Handles a refusal that no exchange knows of.
    fn on_refused(&mut self, reason: h2::Reason);
    /// Polls the exchanges on the connection's streams. Returns false if other tasks do that.
    fn run(&mut self, cx: &Context<'_>) -> bool;
    /// Ends the poll: from now on, waking an exchange wakes the task.
    fn end_poll(&mut self, cx: &Context<'_>);
}

impl SharedConnection {
    pub(crate) fn new(role: Role, limits: Limits) -> Self {
        Self {
            wire: RefCell::new(h2::Connection::new(role, limits)),
            streams: RefCell::default(),
            free_heads: RefCell::default(),
            task: RefCell::default(),
            is_woken: Cell::new(false),
            openers: RefCell::default(),
            over: Cell::new(None),
            has_spoken: Cell::new(false),
            is_paused: Cell::new(false),
        }
    }

    /// Notes that the task is being polled. It looks at the output before it sleeps.
    pub(crate) fn begin_poll(&self, cx: &Context<'_>) {
        self.is_woken.set(true);
        let mut task = self.task.borrow_mut();
        if !task.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *task = Some(cx.waker().clone());
        }
    }

    /// Ends the poll: from now on, [`SharedConnection::wake_task`] wakes the task.
    pub(crate) fn end_poll(&self) {
        self.is_woken.set(false);
    }

    /// Wakes the task, because there is something to write or the state of the connection has changed.
    pub(crate) fn wake_task(&self) {
        if !self.is_woken.replace(true)
            && let Some(task) = self.task.borrow().as_ref()
        {
            task.wake_by_ref();
        }
    }

    /// Handles bytes that were read, and passes each event to its stream or to `handler`. With no bytes, it only resumes streams that can
    /// send again. Returns whether there was an event.
    ///
    /// # Errors
    /// The other side broke the protocol; GOAWAY is in the output.
    pub(crate) fn handle(
        &self,
        now_ms: u64,
        input: &[u8],
        handler: &mut impl ConnectionHandler,
    ) -> Result<bool, h2::Error> {
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
                    handler.on_request(&mut wire, stream, false);
                }
                Some(Event::RequestTooLarge { stream }) => {
                    self.begin(stream, false, true);
                    handler.on_request(&mut wire, stream, true);
                }
                Some(Event::Refused { reason }) => handler.on_refused(reason),
                Some(event) => self.deliver(&mut wire, event),
            }
        }
        drop(wire);
        self.wake_openers();
        Ok(has_news)
    }

    /// Sets up the state of a new stream.
    pub(crate) fn begin(&self, key: StreamKey, is_ended: bool, is_too_large: bool) {
        let mut streams = self.streams.borrow_mut();
        let slot = key.slot as usize;
        if slot >= streams.len() {
            streams.resize_with(slot + 1, StreamState::default);
        }
        if let Some(state) = streams.get_mut(slot) {
            state.begin(key.id, is_ended, is_too_large);
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
        self.with_stream(stream, |state| match event {
            Event::Response { end, .. } => {
                self.has_spoken.set(true);
                state.is_ended |= end;
                let received = state.received.get_or_insert_with(|| self.take_free_heads());
                if !state.has_head {
                    state.has_head = true;
                    wire.take_response(&mut received.head, &mut received.head_bytes);
                } else if received.heads.len() < HEADS_MAX {
                    let (mut head, mut bytes) = (ResponseHead::default(), Vec::new());
                    wire.take_response(&mut head, &mut bytes);
                    received.heads.push_back((head, bytes));
                } else {
                    wire.reset(stream, ErrorCode::ENHANCE_YOUR_CALM);
                    state.end(StreamEnd::Broken(h2::Reason::Response));
                }
                state.wake_reader();
            }
            Event::Data { bytes, end, .. } => {
                self.has_spoken.set(true);
                state.input.put(bytes);
                state.is_ended |= end;
                state.wake_reader();
            }
            Event::Trailers { .. } => {
                self.has_spoken.set(true);
                let received = state.received.get_or_insert_with(|| self.take_free_heads());
                wire.take_trailers(&mut received.trailers, &mut received.trailer_bytes);
                (state.has_trailers, state.is_ended) = (true, true);
                state.wake_reader();
            }
            Event::Reset { code, by, .. } => state.end(StreamEnd::of(code, by)),
            _ => state.wake_writer(),
        });
    }

    fn take_free_heads(&self) -> Box<ReceivedHeads> {
        self.free_heads.borrow_mut().take_or(Box::default)
    }

    /// Calls `with` on the state of a stream, unless its exchange has dropped it.
    pub(super) fn with_stream<R>(&self, key: StreamKey, with: impl FnOnce(&mut StreamState) -> R) -> Option<R> {
        let mut streams = self.streams.borrow_mut();
        streams.get_mut(key.slot as usize).filter(|state| state.id == key.id && key.id != 0).map(with)
    }

    /// Drops a stream for its exchange.
    pub(crate) fn forget(&self, key: StreamKey) {
        if let Some(mut received) = self.with_stream(key, StreamState::clear).flatten()
            && received.clear()
        {
            self.free_heads.borrow_mut().put(received, FREE_HEADS_MAX);
        }
        let mut wire = self.wire.borrow_mut();
        wire.forget(key);
        let is_worth_a_look = !wire.output().is_empty() || wire.streams_held() == 0 || self.is_paused.get();
        drop(wire);
        self.wake_openers();
        if is_worth_a_look {
            self.wake_task();
        }
    }

    /// Ends all streams; nothing more can be sent. What has arrived completely can still be read.
    pub(crate) fn end(&self, end: StreamEnd) {
        if self.over.get().is_some() {
            return;
        }
        self.over.set(Some(end));
        for state in self.streams.borrow_mut().iter_mut().filter(|state| state.id != 0) {
            state.end(end);
        }
        self.wake_openers();
    }

    /// Why the connection no longer carries anything; `None` while it is alive.
    pub(crate) fn over(&self) -> Option<StreamEnd> {
        self.over.get()
    }

    /// Sends a PING.
    pub(crate) fn ping(&self) {
        self.has_spoken.set(false);
        self.wire.borrow_mut().ping(PING);
        self.wake_task();
    }

    /// Whether a part of a message has arrived since the last PING.
    pub(crate) fn has_spoken(&self) -> bool {
        self.has_spoken.get()
    }

    /// Whether the connection holds more DATA than this for its exchanges, and should not be read now. Until the next call, its task is
    /// woken whenever some of the DATA is passed on.
    pub(crate) fn pause(&self, held_bytes_max: usize) -> bool {
        self.is_paused.set(self.wire.borrow().data_held() > held_bytes_max);
        self.is_paused.get()
    }

    /// The last result of [`SharedConnection::pause`].
    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused.get()
    }

    /// Accepts no new streams, and ends the connection after the last one.
    pub(crate) fn drain(&self) {
        self.wire.borrow_mut().drain();
        self.wake_task();
    }

    /// Frees memory that a connection without streams does not need.
    pub(crate) fn shrink(&self) {
        self.wire.borrow_mut().shrink();
        *self.streams.borrow_mut() = Vec::new();
        *self.free_heads.borrow_mut() = FreeList::new();
    }

    /// The number of streams that exchanges hold.
    pub(crate) fn held(&self) -> usize {
        self.wire.borrow().streams_held()
    }

    /// The number of further requests that it can take.
    pub(crate) fn room(&self) -> usize {
        if self.over.get().is_some() { 0 } else { self.wire.borrow().stream_room() }
    }

    /// Ready when there may be room for a request, or the connection is over.
    pub(crate) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
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

/// Whether both are the same connection.
pub(crate) fn is_same(a: &Rc<SharedConnection>, b: &Rc<SharedConnection>) -> bool {
    Rc::ptr_eq(a, b)
}
