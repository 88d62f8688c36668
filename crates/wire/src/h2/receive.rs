//! Receiving: splits bytes into frames, and handles DATA. `blocks.rs` and `control.rs` handle the other frames.

use super::connection::{Connection, Role};
use super::error::{Fault, Reason};
use super::event::Event;
use super::frame::{FRAME_BYTES_MAX, FrameHead, HEAD_BYTES, PREFACE, flag, kind};
use super::glitches::Glitch;
use super::streams::{Departure, Half, StreamKey};

/// What the next bytes are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reading {
    /// The client's preface, of which `got` bytes have arrived.
    Preface { got: usize },
    /// The head of a frame.
    Head,
    /// The payload of a frame that is handled as a whole.
    Payload(FrameHead),
    /// The payload of a DATA frame, passed on as it arrives.
    Data(DataFrame),
    /// A payload that is ignored.
    Skip { left: u32 },
}

/// A DATA frame that is being received.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataFrame {
    key: StreamKey,
    /// Bytes of the payload that have not arrived, including padding.
    left: u32,
    /// The padding at the end of these: `padding <= left`.
    padding: u32,
    /// The byte with the length of the padding has not arrived.
    is_padding_unknown: bool,
    is_end: bool,
    /// It contained DATA.
    has_bytes: bool,
}

/// The outcome of a frame.
pub(super) type Outcome = Result<Option<Event<'static>>, Fault>;

impl Connection {
    /// Takes some of `rest`, which is not empty, up to the end of a frame or of a piece of DATA.
    pub(super) fn step<'b>(&mut self, rest: &'b [u8]) -> (usize, Result<Option<Event<'b>>, Fault>) {
        match self.reading {
            Reading::Preface { got } => self.step_preface(got, rest),
            Reading::Head => self.step_head(rest),
            Reading::Payload(head) => self.step_payload(head, rest),
            Reading::Data(data) => self.step_data(data, rest),
            Reading::Skip { left } => {
                let count = rest.len().min(left as usize);
                self.skip(left - count as u32);
                (count, Ok(None))
            }
        }
    }

    fn step_head<'b>(&mut self, rest: &'b [u8]) -> (usize, Result<Option<Event<'b>>, Fault>) {
        let (count, head) = self.gather(HEAD_BYTES, rest);
        let Some(head) = head.first_chunk().map(FrameHead::parse) else { return (count, Ok(None)) };
        self.carry.clear();
        let begun = self.begin_frame(head);
        // Almost always more of the frame has arrived than its head.
        let Some(behind) = rest.get(count..).filter(|behind| !behind.is_empty() && matches!(begun, Ok(None))) else {
            return (count, begun);
        };
        let (more, outcome) = match self.reading {
            Reading::Payload(head) => self.step_payload(head, behind),
            Reading::Data(data) => self.step_data(data, behind),
            _ => (0, begun),
        };
        (count + more, outcome)
    }

    fn step_preface<'b>(&mut self, got: usize, rest: &[u8]) -> (usize, Result<Option<Event<'b>>, Fault>) {
        let expected = PREFACE.get(got..).unwrap_or_default();
        let count = rest.len().min(expected.len());
        if rest.get(..count) != expected.get(..count) {
            return (count, Err(Fault::connection(Reason::Preface)));
        }
        let got = got + count;
        self.reading = if got == PREFACE.len() { Reading::Head } else { Reading::Preface { got } };
        (count, Ok(None))
    }

    /// Collects `wanted` bytes, and returns how many of `rest` it took. Bytes that are in one piece are not copied. The returned bytes are
    /// empty until all have arrived; then the caller clears `carry`.
    fn gather<'a>(&'a mut self, wanted: usize, rest: &'a [u8]) -> (usize, &'a [u8]) {
        if self.carry.is_empty()
            && let Some(whole) = rest.get(..wanted)
        {
            return (wanted, whole);
        }
        let missing = wanted.saturating_sub(self.carry.len());
        let piece = rest.get(..missing).unwrap_or(rest);
        self.carry.extend_from_slice(piece);
        let whole = if self.carry.len() >= wanted { self.carry.as_slice() } else { &[] };
        (piece.len(), whole)
    }

    fn step_payload<'b>(&mut self, head: FrameHead, rest: &'b [u8]) -> (usize, Result<Option<Event<'b>>, Fault>) {
        let length = head.length as usize;
        if self.carry.is_empty()
            && let Some(payload) = rest.get(..length)
        {
            self.reading = Reading::Head;
            return (length, self.handle_frame(head, payload));
        }
        let (count, _) = self.gather(length, rest);
        if self.carry.len() < length {
            return (count, Ok(None));
        }
        self.reading = Reading::Head;
        // Taken out while the frame is handled.
        let mut carry = std::mem::take(&mut self.carry);
        let outcome = self.handle_frame(head, &carry);
        carry.clear();
        self.carry = carry;
        (count, outcome)
    }

    /// Checks a frame by its head alone, so that a bad frame is refused without waiting for its payload.
    fn begin_frame<'b>(&mut self, head: FrameHead) -> Result<Option<Event<'b>>, Fault> {
        self.begun += u64::from(self.block.is_none());
        let is_more = head.kind == kind::CONTINUATION;
        match &self.block {
            Some(block) if !is_more || block.stream != head.stream => {
                return Err(Fault::connection(Reason::Continuation));
            }
            None if is_more => return Err(Fault::connection(Reason::Continuation)),
            _ => {}
        }
        if !self.theirs.is_known && (head.kind != kind::SETTINGS || head.has(flag::ACK)) {
            return Err(Fault::connection(Reason::Preface));
        }
        if head.length as usize > FRAME_BYTES_MAX {
            return Err(Fault::connection(Reason::FrameSize));
        }
        match head.kind {
            kind::DATA => return self.begin_data(head),
            kind::HEADERS..=kind::CONTINUATION => {
                if head.length == 0 {
                    return self.handle_frame(head, &[]);
                }
                self.reading = Reading::Payload(head);
            }
            // Section 5.5: ignore unknown frames.
            _ => {
                self.glitches.charge(Glitch::Idle)?;
                self.skip(head.length);
            }
        }
        Ok(None)
    }

    fn skip(&mut self, left: u32) {
        self.reading = if left == 0 { Reading::Head } else { Reading::Skip { left } };
    }

    fn handle_frame(&mut self, head: FrameHead, payload: &[u8]) -> Outcome {
        let on_connection = matches!(head.kind, kind::SETTINGS | kind::PING | kind::GOAWAY);
        let on_stream = !on_connection && head.kind != kind::WINDOW_UPDATE;
        if on_connection && head.stream != 0 || on_stream && head.stream == 0 {
            return Err(Fault::connection(Reason::StreamId));
        }
        match head.kind {
            kind::HEADERS => self.handle_headers(head, payload),
            kind::CONTINUATION => self.handle_continuation(head, payload),
            kind::PRIORITY => self.handle_priority(head, payload),
            kind::RST_STREAM => self.handle_reset(head, payload),
            kind::SETTINGS => self.handle_settings(head, payload),
            kind::PUSH_PROMISE => Err(Fault::connection(Reason::Push)),
            kind::PING => self.handle_ping(head, payload),
            kind::GOAWAY => self.handle_goaway(payload),
            _ => self.handle_window_update(head, payload),
        }
    }

    /// Handles the head of a DATA frame. Its whole length counts against both windows at once (section 6.9.1).
    fn begin_data<'b>(&mut self, head: FrameHead) -> Result<Option<Event<'b>>, Fault> {
        let length = head.length;
        if head.stream == 0 || self.is_idle(head.stream) {
            return Err(Fault::connection(Reason::StreamId));
        }
        let is_padded = head.has(flag::PADDED);
        if is_padded && length == 0 {
            return Err(Fault::connection(Reason::FrameSize));
        }
        if !self.windows.receive(length, &mut self.output) {
            return Err(Fault::connection(Reason::FlowControl));
        }
        let reason = match self.streams.find(head.stream) {
            Some((key, stream)) if stream.recv == Half::Body => {
                stream.recv_window -= i64::from(length);
                // An empty frame needs no window (section 6.9.1), and an announced smaller window may have made this one negative.
                if stream.recv_window >= 0 || length == 0 {
                    let is_end = head.has(flag::END_STREAM);
                    let (left, is_padding_unknown) = (length, is_padded);
                    return self.continue_data(DataFrame {
                        key,
                        left,
                        padding: 0,
                        is_padding_unknown,
                        is_end,
                        has_bytes: false,
                    });
                }
                Reason::FlowControl
            }
            Some((_, stream)) if stream.recv == Half::Head => Reason::Response,
            Some(_) => Reason::StreamClosed,
            None => {
                self.drop_data(length);
                self.skip(length);
                return match self.streams.departure(head.stream) {
                    Some(Departure::Theirs) => Err(Fault::stream(head.stream, Reason::StreamClosed)),
                    // The other side sent it before it saw our RST_STREAM.
                    _ => self.glitches.charge(Glitch::Idle).map(|()| None),
                };
            }
        };
        self.drop_data(length);
        self.skip(length);
        Err(Fault::stream(head.stream, reason))
    }

    /// Returns DATA that is not delivered to the connection's window at once.
    fn drop_data(&mut self, length: u32) {
        self.windows.release(length, &mut self.output);
    }

    /// Continues a DATA frame, whose last byte may have arrived.
    fn continue_data<'b>(&mut self, data: DataFrame) -> Result<Option<Event<'b>>, Fault> {
        if data.left > 0 {
            self.reading = Reading::Data(data);
            return Ok(None);
        }
        self.reading = Reading::Head;
        if !data.has_bytes && !data.is_end {
            self.glitches.charge(Glitch::Empty)?;
        }
        // A frame without padding ends with its last piece.
        if data.is_end && !data.has_bytes { self.deliver(data.key, &[], true) } else { Ok(None) }
    }

    fn step_data<'b>(&mut self, mut data: DataFrame, rest: &'b [u8]) -> (usize, Result<Option<Event<'b>>, Fault>) {
        if data.is_padding_unknown {
            let padding = rest.first().copied().map_or(0, u32::from);
            if padding >= data.left {
                return (1, Err(Fault::connection(Reason::Padding)));
            }
            data.left -= 1;
            (data.padding, data.is_padding_unknown) = (padding, false);
            // Padding is returned at once, even before it arrives, because nothing uses it.
            self.credit(data.key, padding + 1);
            return (1, self.continue_data(data));
        }
        let bytes_left = data.left - data.padding;
        let count = rest.len().min(if bytes_left > 0 { bytes_left } else { data.left } as usize);
        data.left -= count as u32;
        if bytes_left == 0 {
            data.padding = data.left;
            // If padding follows the last piece, the end of the stream had to wait for it.
            let is_end = data.left == 0 && data.is_end;
            data.has_bytes &= !is_end;
            return (count, self.continue_data(data));
        }
        if !data.has_bytes {
            // For the whole frame, not for each piece of it.
            self.glitches.data(bytes_left);
        }
        data.has_bytes = true;
        let piece = rest.get(..count).unwrap_or_default();
        let is_end = data.left == 0 && data.is_end;
        let outcome = self.continue_data(data).and_then(|_| self.deliver(data.key, piece, is_end));
        (count, outcome)
    }

    /// Passes a piece of DATA to the owner, unless the stream is over by now.
    fn deliver<'b>(&mut self, key: StreamKey, bytes: &'b [u8], is_end: bool) -> Result<Option<Event<'b>>, Fault> {
        let length = bytes.len() as u32;
        let Some(stream) = self.streams.get(key).filter(|stream| stream.recv == Half::Body) else {
            self.drop_data(length);
            return Ok(None);
        };
        stream.unreleased += length;
        if stream.is_bodiless && length > 0 {
            return Err(Fault::stream(key.id, Reason::Trailers));
        }
        if let Some(left) = &mut stream.content_left {
            match left.checked_sub(u64::from(length)) {
                Some(rest) if rest == 0 || !is_end => *left = rest,
                _ => return Err(Fault::stream(key.id, Reason::ContentLength)),
            }
        }
        if is_end {
            self.end_receiving(key);
        }
        Ok(Some(Event::Data { stream: key, bytes, end: is_end }))
    }

    pub(super) fn end_receiving(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get(key) else { return };
        stream.recv = Half::Ended;
        if stream.is_over() {
            self.glitches.message();
            self.streams.depart(key.id, Departure::Theirs);
        }
    }

    /// Whether this stream was neither used nor passed over (section 5.1).
    pub(super) fn is_idle(&self, id: u32) -> bool {
        match (self.role, id % 2 == 1) {
            (Role::Server, true) => id > self.last_theirs,
            (Role::Client, true) => id >= self.next_ours,
            // A stream of the server: only a push would open one, and push is refused.
            (_, false) => true,
        }
    }
}
