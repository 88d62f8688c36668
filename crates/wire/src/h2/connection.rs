//! The connection: its state, its events, and the calls other than receiving (`receive.rs`) and sending (`send.rs`).

use std::collections::VecDeque;

use super::blocks::HeaderBlock;
use super::error::{Error, ErrorCode, Fault, Reason};
use super::event::{Event, Handled, ResetBy};
use super::flow::Windows;
use super::frame::{self, STREAM_ID_MAX, WINDOW_DEFAULT};
use super::glitches::{Glitch, Glitches};
use super::head::HeadBuffers;
use super::limits::{ANSWER_BYTES_MAX, Limits, WINDOWS_ANNOUNCED_MAX};
use super::output::Output;
use super::receive::Reading;
use super::settings::{self, Theirs};
use super::streams::{Departure, Half, Queue, StreamKey, Streams};
use crate::hpack::{Decoder, Encoder};
use crate::message::{Field, RequestHead, ResponseHead};

/// Which side of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends requests, towards an endpoint.
    Client,
    /// Answers requests, towards a client.
    Server,
}

/// How far a graceful shutdown has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    No,
    /// GOAWAY announced the end. Requests that are on their way are still accepted (RFC 9113 section 6.8).
    Announced,
    /// GOAWAY named the last request that is accepted. It never grows after that.
    Final {
        last: u32,
    },
}

/// The payload of the PING whose answer shows that the other side has seen the announcement.
pub(super) const DRAIN_PING: [u8; 8] = *b"drain-rt";

/// One HTTP/2 connection. See the module's documentation.
#[derive(Debug)]
pub struct Connection {
    pub(super) role: Role,
    pub(super) limits: Limits,
    pub(super) reading: Reading,
    /// A frame of which only a part has arrived: `<= HEAD_BYTES + FRAME_BYTES_MAX`.
    pub(super) carry: Vec<u8>,
    /// The number of frames begun so far. A head and its CONTINUATIONs count as one.
    pub(super) begun: u64,
    /// The header block that CONTINUATION frames add to.
    pub(super) block: Option<HeaderBlock>,
    /// Its bytes: `<= limits.block_bytes_max()`.
    pub(super) block_bytes: Vec<u8>,
    pub(super) decoder: Decoder,
    pub(super) encoder: Encoder,
    pub(super) head: HeadBuffers,
    pub(super) streams: Streams,
    pub(super) theirs: Theirs,
    pub(super) windows: Windows,
    pub(super) output: Output,
    /// Events beyond the first of one step: at most one per stream.
    pub(super) events: VecDeque<Event<'static>>,
    /// Streams that wait for room in the output.
    pub(super) want_room: Queue,
    /// Streams that wait for the connection's window.
    pub(super) want_window: Queue,
    /// The last turn that was given out.
    pub(super) turn: u64,
    pub(super) glitches: Glitches,
    /// The other side's latest stream.
    pub(super) last_theirs: u32,
    /// The id of this side's next stream.
    pub(super) next_ours: u32,
    pub(super) drain: Drain,
    /// The other side has sent GOAWAY.
    pub(super) is_going_away: bool,
    /// The other side has acknowledged this side's settings.
    pub(super) is_acknowledged: bool,
    /// Windows that were announced after the first settings and are not acknowledged.
    pub(super) windows_announced: VecDeque<u32>,
    pub(super) failed: Option<Error>,
}

impl Connection {
    /// A new connection, with this side's first frames in the output. Limits below the protocol's minimum are raised to it.
    pub fn new(role: Role, limits: Limits) -> Self {
        let window_min = WINDOW_DEFAULT as u32;
        let limits = Limits {
            stream_window_bytes: limits.stream_window_bytes.clamp(window_min, STREAM_ID_MAX),
            connection_window_bytes: limits.connection_window_bytes.clamp(window_min, STREAM_ID_MAX),
            streams_max: limits.streams_max.max(1),
            ..limits
        };
        let mut output = Output::default();
        settings::write_first(output.bytes(), role, &limits);
        Self {
            role,
            limits,
            reading: if role == Role::Server { Reading::Preface { got: 0 } } else { Reading::Head },
            carry: Vec::new(),
            begun: 0,
            block: None,
            block_bytes: Vec::new(),
            decoder: Decoder::default(),
            encoder: Encoder::default(),
            head: HeadBuffers::default(),
            streams: Streams::new(limits.slots_max()),
            theirs: Theirs::default(),
            windows: Windows::new(limits.connection_window_bytes),
            output,
            events: VecDeque::new(),
            want_room: Queue::default(),
            want_window: Queue::default(),
            turn: 0,
            glitches: Glitches::new(limits.glitches_max),
            last_theirs: 0,
            next_ours: 1,
            drain: Drain::No,
            is_going_away: false,
            is_acknowledged: false,
            windows_announced: VecDeque::new(),
            failed: None,
        }
    }

    /// Takes bytes up to the next event. `now_ms` may come from any clock that never goes back.
    ///
    /// # Errors
    /// The connection is over, and GOAWAY is in the output. Streams get no further events.
    pub fn handle_bytes<'b>(&mut self, now_ms: u64, input: &'b [u8]) -> Result<Handled<'b>, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.glitches.at(now_ms);
        let mut consumed = 0;
        loop {
            // Events from before come first; and a frame may have opened a window.
            if let Some(event) = self.next_waiting() {
                return Ok(Handled { consumed, event: Some(event) });
            }
            let rest = input.get(consumed..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(Handled { consumed, event: None });
            }
            let (count, outcome) = self.step(rest);
            consumed += count;
            let event = match outcome {
                Ok(event) => event,
                Err(Fault::Stream(id, reason, code)) => {
                    self.stream_error(id, reason, code).map_err(|fault| self.fail(fault))?
                }
                Err(fault) => return Err(self.fail(fault)),
            };
            if self.output.len() > self.limits.output_bytes_max as usize + ANSWER_BYTES_MAX {
                return Err(self.fail(Fault::connection(Reason::OutputFlood)));
            }
            if event.is_some() {
                return Ok(Handled { consumed, event });
            }
        }
    }

    /// The bytes to write.
    pub fn output(&self) -> &[u8] {
        self.output.pending()
    }

    /// Drops `count` bytes of the output, which were written. Call `handle_bytes` after it, because a stream that waited for room in the
    /// output may now continue.
    pub fn consume_output(&mut self, count: usize) {
        self.output.consume(count);
    }

    /// Takes the head of the last [`Event::Request`]. Pass in a head and a buffer that are no longer needed: the next head is read into
    /// them.
    pub fn take_request(&mut self, head: &mut RequestHead, bytes: &mut Vec<u8>) {
        std::mem::swap(&mut self.head.request, head);
        std::mem::swap(&mut self.head.bytes, bytes);
    }

    /// Takes the head of the last [`Event::Response`] in the same way.
    pub fn take_response(&mut self, head: &mut ResponseHead, bytes: &mut Vec<u8>) {
        std::mem::swap(&mut self.head.response, head);
        std::mem::swap(&mut self.head.bytes, bytes);
    }

    /// Takes the fields of the last [`Event::Trailers`] in the same way.
    pub fn take_trailers(&mut self, fields: &mut Vec<Field>, bytes: &mut Vec<u8>) {
        std::mem::swap(&mut self.head.trailers, fields);
        std::mem::swap(&mut self.head.bytes, bytes);
    }

    /// Records that `count` bytes of the stream's DATA were passed on or dropped, so that the other side may send as many more.
    pub fn release_capacity(&mut self, key: StreamKey, count: u32) {
        let Some(stream) = self.streams.get(key) else { return };
        let count = count.min(stream.unreleased);
        stream.unreleased -= count;
        self.credit(key, count);
    }

    /// Announces another window for each stream (RFC 9113 section 6.9.2). The other side uses it once it has seen it; streams that it opens
    /// after that have it from their first byte. This does nothing while `WINDOWS_ANNOUNCED_MAX` announcements wait for their
    /// acknowledgement.
    pub fn set_stream_window(&mut self, bytes: u32) {
        let bytes = bytes.clamp(1, STREAM_ID_MAX);
        if bytes == self.stream_window()
            || self.windows_announced.len() >= WINDOWS_ANNOUNCED_MAX
            || self.failed.is_some()
        {
            return;
        }
        settings::write_window(self.output.bytes(), bytes);
        self.windows_announced.push_back(bytes);
    }

    /// The most recently announced window of a stream.
    pub fn stream_window(&self) -> u32 {
        self.windows_announced.back().copied().unwrap_or(self.limits.stream_window_bytes)
    }

    /// The other side now uses the oldest window that it had not acknowledged.
    pub(super) fn change_stream_window(&mut self) {
        let Some(bytes) = self.windows_announced.pop_front() else { return };
        let change = i64::from(bytes) - i64::from(self.limits.stream_window_bytes);
        self.limits.stream_window_bytes = bytes;
        let Self { streams, output, .. } = self;
        for (key, stream) in streams.iter_mut().filter(|(_, stream)| stream.recv.is_open()) {
            stream.recv_window += change;
            // An amount that was too small to report may now be all that the other side waits for.
            stream.tell_released(key, bytes, output);
        }
    }

    /// Bytes of DATA that the owner holds: passed to it, and neither released nor dropped.
    pub fn data_held(&self) -> usize {
        self.windows.held()
    }

    /// The owner is done with the stream. A stream that is not over is reset: by a client with CANCEL; by a server with NO_ERROR if the
    /// response was sent completely and only the rest of the request is unwanted (RFC 9113 section 8.1), and with INTERNAL_ERROR in the
    /// middle of a response.
    pub fn forget(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get(key) else { return };
        let (unreleased, is_queued) = (stream.unreleased, stream.is_queued);
        if !stream.is_over() {
            let code = match self.role {
                Role::Client => ErrorCode::CANCEL,
                Role::Server if stream.send == Half::Ended => ErrorCode::NO_ERROR,
                Role::Server => ErrorCode::INTERNAL_ERROR,
            };
            self.reset(key, code);
        }
        if unreleased > 0 {
            self.windows.release(unreleased, &mut self.output);
        }
        if is_queued {
            self.want_room.remove(key);
            self.want_window.remove(key);
        }
        self.streams.remove(key);
    }

    /// Resets a stream, if it is not over.
    pub fn reset(&mut self, key: StreamKey, code: ErrorCode) {
        let Some(stream) = self.streams.get(key).filter(|stream| !stream.is_over()) else { return };
        close(stream);
        self.streams.depart(key.id, Departure::Ours);
        if self.failed.is_none() {
            frame::write_rst_stream(self.output.bytes(), key.id, code);
        }
    }

    /// Shuts down gracefully. A server first announces it, and names the last request that it accepts once the answer shows that the client
    /// has seen the announcement (RFC 9113 section 6.8). A second call does not wait for that. A client opens no more streams.
    pub fn drain(&mut self) {
        match (self.role, self.drain) {
            (_, Drain::Final { .. }) => {}
            (Role::Server, Drain::No) => {
                frame::write_goaway(self.output.bytes(), STREAM_ID_MAX, ErrorCode::NO_ERROR);
                frame::write_ping(self.output.bytes(), 0, DRAIN_PING);
                self.drain = Drain::Announced;
            }
            _ => self.finish_drain(),
        }
    }

    pub(super) fn finish_drain(&mut self) {
        frame::write_goaway(self.output.bytes(), self.last_theirs, ErrorCode::NO_ERROR);
        self.drain = Drain::Final { last: self.last_theirs };
    }

    /// Whether no stream is left and no new one can come, so that the connection can be closed once the output is written.
    pub fn is_done(&self) -> bool {
        let is_ending = matches!(self.drain, Drain::Final { .. }) || (self.role == Role::Client && self.is_going_away);
        self.streams.held() == 0 && (is_ending || self.failed.is_some())
    }

    /// Ends the connection at once, with GOAWAY. All later calls of `handle_bytes` fail.
    pub fn abort(&mut self, reason: Reason) {
        self.fail(Fault::connection(reason));
    }

    /// Sends a PING. Its answer is [`Event::Pong`].
    pub fn ping(&mut self, payload: [u8; 8]) {
        frame::write_ping(self.output.bytes(), 0, payload);
    }

    /// The number of streams that the owner holds.
    pub fn streams_held(&self) -> usize {
        self.streams.held()
    }

    /// How many more requests could be sent now. It is 0 once either side goes away.
    pub fn can_open(&self) -> usize {
        if self.is_output_full() { 0 } else { self.stream_room() }
    }

    /// How many more requests the stream limits allow, even if the output has to be written first.
    pub fn stream_room(&self) -> usize {
        if self.role == Role::Server || self.is_ending() || self.next_ours > STREAM_ID_MAX {
            return 0;
        }
        let max = self.limits.streams_max.min(self.theirs.streams_max) as usize;
        max.saturating_sub(self.streams.open()).min(self.limits.slots_max() - self.streams.held())
    }

    /// Whether the endpoint accepts extended CONNECT (RFC 8441). False until its first settings have arrived.
    pub fn allows_extended_connect(&self) -> bool {
        self.theirs.extended_connect
    }

    /// Whether the other side's first settings have arrived, which shows that it speaks HTTP/2.
    pub fn is_established(&self) -> bool {
        self.theirs.is_known
    }

    /// Whether the other side has acknowledged this side's settings. The owner decides how long to wait for that (RFC 9113 section 6.5.3),
    /// and then calls [`Connection::abort`] with [`Reason::SettingsTimeout`].
    pub fn is_acknowledged(&self) -> bool {
        self.is_acknowledged
    }

    /// The number of the frame, or of the head with all its CONTINUATIONs, of which only a part has arrived. `None` if there is none, or if
    /// it is DATA, which is passed on as it arrives. The owner decides how long the rest may take.
    pub fn unfinished(&self) -> Option<u64> {
        match self.reading {
            _ if self.block.is_some() => Some(self.begun),
            Reading::Payload(_) => Some(self.begun),
            Reading::Head if !self.carry.is_empty() => Some(self.begun + 1),
            _ => None,
        }
    }

    /// Whether this side has announced that it goes away, the other has, or the connection is over.
    pub fn is_going_away(&self) -> bool {
        self.is_ending()
    }

    /// Frees memory that an idle connection does not need. The tables stay, because the other side relies on them.
    pub fn shrink(&mut self) {
        if self.carry.is_empty() {
            self.carry = Vec::new();
        }
        if self.block.is_none() {
            self.block_bytes = Vec::new();
        }
        self.head.shrink();
        self.output.shrink();
        self.decoder.shrink();
        self.encoder.shrink();
    }

    /// Bytes of memory that the connection holds besides its own struct: at most [`Limits::memory_bytes_max`].
    pub fn memory_bytes(&self) -> usize {
        self.carry.capacity()
            + self.block_bytes.capacity()
            + self.decoder.memory_bytes()
            + self.encoder.memory_bytes()
            + self.head.memory_bytes()
            + self.streams.memory_bytes()
            + self.output.memory_bytes()
            + self.events.capacity() * size_of::<Event<'static>>()
            + self.windows_announced.capacity() * size_of::<u32>()
            + self.want_room.memory_bytes()
            + self.want_window.memory_bytes()
    }

    /// Whether either side is going away, or the connection is over.
    pub(super) fn is_ending(&self) -> bool {
        self.is_going_away || self.drain != Drain::No || self.failed.is_some()
    }

    pub(super) fn is_output_full(&self) -> bool {
        self.output_room() == 0
    }

    /// Returns released bytes to the stream's window and to the connection's.
    pub(super) fn credit(&mut self, key: StreamKey, count: u32) {
        self.windows.release(count, &mut self.output);
        let size = self.limits.stream_window_bytes;
        // Nothing more comes on a stream that has ended, so its window is of no use.
        let Some(stream) = self.streams.get(key).filter(|stream| stream.recv == Half::Body) else { return };
        stream.released += count;
        stream.tell_released(key, size, &mut self.output);
    }

    /// Whether `handle_bytes` has an event to return without further input. If so, the owner must not wait for input alone.
    pub fn has_news(&self) -> bool {
        if self.failed.is_some() {
            return false;
        }
        let may_send = self.has_room_for_waiting()
            && (!self.want_room.is_empty() || (self.windows.send > 0 && !self.want_window.is_empty()));
        may_send || !self.events.is_empty()
    }

    /// The output must be at most half full, so that a stream that is woken can send a worthwhile frame.
    fn has_room_for_waiting(&self) -> bool {
        self.output.len() <= self.limits.output_bytes_max as usize / 2
    }

    #[inline]
    fn next_waiting(&mut self) -> Option<Event<'static>> {
        let is_nobody_waiting = self.events.is_empty() && self.want_room.is_empty() && self.want_window.is_empty();
        if is_nobody_waiting { None } else { self.next_of_waiting() }
    }

    fn next_of_waiting(&mut self) -> Option<Event<'static>> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if !self.has_room_for_waiting() {
            return None;
        }
        while let Some(stream) = self.want_room.pop() {
            if self.unqueue(stream) {
                return Some(Event::Writable { stream });
            }
        }
        while self.windows.send > 0 {
            let stream = self.want_window.pop()?;
            if self.unqueue(stream) {
                return Some(Event::Writable { stream });
            }
        }
        None
    }

    /// Marks the stream as no longer queued. Returns whether it can still send.
    fn unqueue(&mut self, key: StreamKey) -> bool {
        self.streams.get(key).is_some_and(|stream| {
            stream.is_queued = false;
            stream.send.is_open()
        })
    }

    /// Handles an error of one stream: resets it, and informs the owner if it knows the stream.
    fn stream_error(&mut self, id: u32, reason: Reason, code: ErrorCode) -> Result<Option<Event<'static>>, Fault> {
        self.glitches.charge(Glitch::StreamError)?;
        frame::write_rst_stream(self.output.bytes(), id, code);
        let Some((stream, state)) = self.streams.find(id) else {
            self.streams.remember(id, Departure::Ours);
            return Ok(Some(Event::Refused { reason }));
        };
        close(state);
        self.streams.depart(id, Departure::Ours);
        Ok(Some(Event::Reset { stream, code, by: ResetBy::Us(reason) }))
    }

    fn fail(&mut self, fault: Fault) -> Error {
        let (Fault::Connection(reason, code) | Fault::Stream(_, reason, code)) = fault;
        let error = Error { reason, code };
        if self.failed.is_none() {
            let last = if let Drain::Final { last } = self.drain { last } else { self.last_theirs };
            frame::write_goaway(self.output.bytes(), last, code);
        }
        *self.failed.get_or_insert(error)
    }
}

/// Resets both directions of a stream.
pub(super) fn close(stream: &mut super::streams::Stream) {
    for half in [&mut stream.recv, &mut stream.send] {
        if half.is_open() {
            *half = Half::Reset;
        }
    }
}
