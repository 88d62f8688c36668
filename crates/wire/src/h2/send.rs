//! Sending: heads, DATA, trailers.

use super::connection::{Connection, Role};
use super::error::SendError;
use super::frame::{FRAME_BYTES_MAX, FrameHead, HEAD_BYTES, STREAM_ID_MAX, flag, kind, write_head};
use super::streams::{Departure, Half, Stream, StreamKey};
use crate::hpack::{Encoder, Indexed};

/// The target of a request: its pseudo-header fields (RFC 9113 section 8.3.1).
#[derive(Clone, Copy, Debug)]
pub struct PseudoHeaders<'t> {
    /// A token, which is case-sensitive.
    pub method: &'t [u8],
    /// `http` or `https`.
    pub scheme: &'t [u8],
    /// Host and port.
    pub authority: &'t [u8],
    /// Never empty, except for a plain CONNECT, which has neither scheme nor path (section 8.5).
    pub path: &'t [u8],
    /// For extended CONNECT (RFC 8441); see [`Connection::allows_extended_connect`].
    pub protocol: Option<&'t [u8]>,
}

/// A name of up to this many bytes is changed to lower case without an allocation.
const SHORT_NAME_BYTES: usize = 64;

/// Writes the fields of a head after its pseudo-header fields.
#[derive(Debug)]
pub struct HeadWriter<'c> {
    encoder: &'c mut Encoder,
    out: &'c mut Vec<u8>,
}

impl HeadWriter<'_> {
    /// Writes a field. The name may have upper case, as in HTTP/1.1; it is written in lower case. Neither name nor value may contain CR, LF
    /// or NUL. The fields of an HTTP/1.1 connection (`connection`, `keep-alive`, `proxy-connection`, `transfer-encoding`, `upgrade`, and
    /// `te` except for `trailers`) are not allowed here. Callers pass fields of a parsed head without those, or their own.
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        // An expected field has no upper case.
        if !self.encoder.expected(self.out, name, value) {
            self.write(name, value, false);
        }
    }

    /// Writes a field that was marked as one that no table may hold ([`Field::never_indexed`](crate::message::Field::never_indexed)).
    pub fn never_indexed(&mut self, name: &[u8], value: &[u8]) {
        self.write(name, value, true);
    }

    /// Writes the last fields of a head or of trailers, which `write` does. `list` identifies them: two lists that are the same have the same
    /// fields in the same order, with the same marks. A list that is sent again costs a comparison.
    pub fn list(&mut self, list: &[u8], write: impl FnOnce(&mut HeadWriter<'_>)) {
        self.encoder.list(self.out, list, |encoder, out| write(&mut HeadWriter { encoder, out }));
    }

    fn indexed(&mut self, field: Indexed) {
        self.encoder.indexed(self.out, field);
    }

    fn write(&mut self, name: &[u8], value: &[u8], never_indexed: bool) {
        // Avoids a branch per byte.
        if !name.iter().fold(false, |upper, byte| upper | byte.is_ascii_uppercase()) {
            return self.encoder.unexpected(self.out, name, value, never_indexed);
        }
        let mut short = [0; SHORT_NAME_BYTES];
        if let Some(short) = short.get_mut(..name.len()) {
            short.copy_from_slice(name);
            short.make_ascii_lowercase();
            self.encoder.field(self.out, short, value, never_indexed);
        } else {
            self.encoder.field(self.out, &name.to_ascii_lowercase(), value, never_indexed);
        }
    }
}

impl Connection {
    /// Opens a stream with a request's head. `end`: there is no body. `fields` is called at most once.
    ///
    /// # Errors
    /// [`SendError::Full`]: the stream limit is reached, or the output is full; check [`Connection::can_open`] again after the next event
    /// or write. [`SendError::GoingAway`]: use another connection.
    pub fn send_request(
        &mut self,
        target: &PseudoHeaders<'_>,
        end: bool,
        fields: impl FnOnce(&mut HeadWriter<'_>),
    ) -> Result<StreamKey, SendError> {
        if self.role == Role::Server || self.is_ending() || self.next_ours > STREAM_ID_MAX {
            return Err(SendError::GoingAway);
        }
        if self.can_open() == 0 {
            return Err(SendError::Full);
        }
        let id = self.next_ours;
        let stream = Stream {
            id,
            send: if end { Half::Ended } else { Half::Body },
            is_head: target.method == b"HEAD",
            send_window: self.theirs.initial_window,
            recv_window: i64::from(self.limits.stream_window_bytes),
            ..Stream::default()
        };
        let key = self.streams.insert(stream).ok_or(SendError::Full)?;
        self.next_ours += 2;
        self.write_block(id, end, |head| {
            match target.method {
                b"GET" => head.indexed(Indexed::Get),
                b"POST" => head.indexed(Indexed::Post),
                method => head.field(b":method", method),
            }
            if target.method != b"CONNECT" || target.protocol.is_some() {
                match target.scheme {
                    b"http" => head.indexed(Indexed::Http),
                    b"https" => head.indexed(Indexed::Https),
                    scheme => head.field(b":scheme", scheme),
                }
                head.field(b":path", target.path);
            }
            head.field(b":authority", target.authority);
            if let Some(protocol) = target.protocol {
                head.field(b":protocol", protocol);
            }
            fields(head);
        });
        Ok(key)
    }

    /// Answers a request. A status below 200 is an informational response, which another one must follow; `end` is ignored then.
    ///
    /// # Errors
    /// [`SendError::Full`]: try again when the stream is writable. [`SendError::Closed`]: the stream was reset, or has its response.
    pub fn send_response(
        &mut self,
        key: StreamKey,
        status: u16,
        end: bool,
        fields: impl FnOnce(&mut HeadWriter<'_>),
    ) -> Result<(), SendError> {
        self.check_half(key, Half::Head)?;
        if self.is_output_full() {
            return Err(self.wait_for_room(key));
        }
        let is_end = end && status >= 200;
        if status >= 200
            && let Some(stream) = self.streams.get(key)
        {
            stream.send = Half::Body;
        }
        self.write_block(key.id, is_end, |head| {
            let digit = |divisor: u16| b'0' + (status / divisor % 10) as u8;
            match status {
                200 => head.indexed(Indexed::Ok),
                _ => head.field(b":status", &[digit(100), digit(10), digit(1)]),
            }
            fields(head);
        });
        if is_end {
            self.end_sending(key);
        }
        Ok(())
    }

    /// Bytes of DATA that the other side allows a stream to send now: the smaller of its window and the connection's.
    pub fn data_window(&mut self, key: StreamKey) -> usize {
        self.streams.get(key).map_or(0, |stream| stream.send_window.min(self.windows.send).max(0) as usize)
    }

    /// Bytes of DATA that a stream can send now, by the windows and the room in the output.
    pub fn data_room(&mut self, key: StreamKey) -> usize {
        self.data_window(key).min(self.output_room())
    }

    pub(super) fn output_room(&self) -> usize {
        (self.limits.output_bytes_max as usize).saturating_sub(self.output.len())
    }

    /// Sends a piece of a body, and with `end` its end. Returns how many bytes were taken. If it took all of them, it also sent the end. If
    /// it took fewer, [`Event::Writable`](super::Event::Writable) comes when it is worth trying again.
    ///
    /// # Errors
    /// [`SendError::Closed`]: the stream was reset, has ended, or has no head yet.
    pub fn send_data(&mut self, key: StreamKey, bytes: &[u8], end: bool) -> Result<usize, SendError> {
        let room = self.output_room();
        let Self { streams, windows, output, glitches, want_window, want_room, turn, failed, .. } = self;
        let stream = streams.get(key).filter(|stream| stream.send == Half::Body && failed.is_none());
        let stream = stream.ok_or(SendError::Closed)?;
        let window = stream.send_window.min(windows.send).max(0) as usize;
        let allowed = bytes.len().min(window).min(room);
        let mut taken = 0;
        while taken < allowed || (end && bytes.is_empty()) {
            let rest = bytes.get(taken..allowed).unwrap_or_default();
            let piece = rest.get(..FRAME_BYTES_MAX).unwrap_or(rest);
            taken += piece.len();
            let is_last = end && taken == bytes.len();
            let flags = if is_last { flag::END_STREAM } else { 0 };
            write_head(output.bytes(), piece.len(), kind::DATA, flags, key.id);
            output.bytes().extend_from_slice(piece);
            glitches.data(piece.len() as u32);
            if is_last {
                break;
            }
        }
        stream.send_window -= taken as i64;
        windows.send -= taken as i64;
        if taken > 0 {
            *turn += 1;
            stream.turn = *turn;
        }
        if taken < bytes.len() {
            match (stream.is_queued, stream.send_window, windows.send) {
                (true, ..) => {}
                (_, ..=0, _) => stream.is_starved = true,
                (.., ..=0) => want_window.push(key, stream),
                _ => want_room.push(key, stream),
            }
        } else if end {
            self.end_sending(key);
        }
        Ok(taken)
    }

    /// Sends trailers, which end the message.
    ///
    /// # Errors
    /// The same as [`Connection::send_response`].
    pub fn send_trailers(&mut self, key: StreamKey, fields: impl FnOnce(&mut HeadWriter<'_>)) -> Result<(), SendError> {
        self.check_half(key, Half::Body)?;
        if self.is_output_full() {
            return Err(self.wait_for_room(key));
        }
        self.write_block(key.id, true, |head| {
            head.encoder.begin_trailers();
            fields(head);
        });
        self.end_sending(key);
        Ok(())
    }

    fn check_half(&mut self, key: StreamKey, half: Half) -> Result<(), SendError> {
        let stands_there = self.streams.get(key).is_some_and(|stream| stream.send == half);
        if stands_there && self.failed.is_none() { Ok(()) } else { Err(SendError::Closed) }
    }

    fn wait_for_room(&mut self, key: StreamKey) -> SendError {
        if let Some(stream) = self.streams.get(key).filter(|stream| !stream.is_queued) {
            self.want_room.push(key, stream);
        }
        SendError::Full
    }

    fn end_sending(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get(key) else { return };
        stream.send = Half::Ended;
        if stream.is_over() {
            self.glitches.message();
            self.streams.depart(key.id, Departure::Theirs);
        }
    }

    /// Writes a header block directly into the output, and then its frame's head, when the length is known.
    fn write_block(&mut self, id: u32, is_end: bool, fields: impl FnOnce(&mut HeadWriter<'_>)) {
        let Self { encoder, output, .. } = self;
        let out = output.bytes();
        let from = out.len();
        out.extend_from_slice(&[0; HEAD_BYTES]);
        encoder.begin(out);
        fields(&mut HeadWriter { encoder, out });
        let length = out.len() - from - HEAD_BYTES;
        let end = if is_end { flag::END_STREAM } else { 0 };
        if length > FRAME_BYTES_MAX {
            return split_block(out, from, id, end);
        }
        let head = FrameHead { length: length as u32, kind: kind::HEADERS, flags: end | flag::END_HEADERS, stream: id };
        if let Some(place) = out.get_mut(from..from + HEAD_BYTES) {
            place.copy_from_slice(&head.bytes());
        }
    }
}

/// Splits a block that is too long for one frame into HEADERS and CONTINUATIONs. This is rare, so it may copy.
fn split_block(out: &mut Vec<u8>, from: usize, id: u32, end: u8) {
    let block = out.split_off(from + HEAD_BYTES);
    out.truncate(from);
    let mut pieces = block.chunks(FRAME_BYTES_MAX).peekable();
    let mut is_first = true;
    while let Some(piece) = pieces.next() {
        let last = if pieces.peek().is_none() { flag::END_HEADERS } else { 0 };
        let (kind, flags) = if is_first { (kind::HEADERS, end | last) } else { (kind::CONTINUATION, last) };
        write_head(out, piece.len(), kind, flags, id);
        out.extend_from_slice(piece);
        is_first = false;
    }
}
