//! Receiving: header blocks, and the messages that begin or end with them.

use super::connection::{Connection, Drain, Role};
use super::error::{Fault, Reason};
use super::event::Event;
use super::frame::{self, FrameHead, STREAM_ID_MAX, flag};
use super::glitches::Glitch;
use super::head::Refusal;
use super::limits::CONTINUATIONS_MAX;
use super::receive::Outcome;
use super::streams::{Departure, Half, Stream, StreamKey};

/// An incomplete header block.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderBlock {
    pub(super) stream: u32,
    is_end: bool,
    /// The stream depends on itself. This is an error, but the block must be decoded first.
    is_circular: bool,
    continuations: u32,
}

impl Connection {
    pub(super) fn handle_headers(&mut self, head: FrameHead, payload: &[u8]) -> Outcome {
        let mut fragment = payload;
        let mut padding = 0;
        if head.has(flag::PADDED) {
            let (length, rest) = fragment.split_first().ok_or(Fault::connection(Reason::FrameSize))?;
            (padding, fragment) = (usize::from(*length), rest);
        }
        let mut is_circular = false;
        if head.has(flag::PRIORITY) {
            let (priority, rest) = fragment.split_at_checked(5).ok_or(Fault::connection(Reason::FrameSize))?;
            is_circular = frame::number(priority) & STREAM_ID_MAX == head.stream;
            fragment = rest;
        }
        let length = fragment.len().checked_sub(padding).ok_or(Fault::connection(Reason::Padding))?;
        let fragment = fragment.get(..length).unwrap_or_default();
        let is_end = head.has(flag::END_STREAM);
        let block = HeaderBlock { stream: head.stream, is_end, is_circular, continuations: 0 };
        if head.has(flag::END_HEADERS) {
            return self.handle_block(block, fragment);
        }
        self.block_bytes.clear();
        self.extend_block(block, fragment)
    }

    pub(super) fn handle_continuation(&mut self, head: FrameHead, payload: &[u8]) -> Outcome {
        let Some(mut block) = self.block.take() else { return Err(Fault::connection(Reason::Continuation)) };
        block.continuations += 1;
        if block.continuations > CONTINUATIONS_MAX {
            return Err(Fault::connection(Reason::HeadFlood));
        }
        if payload.is_empty() {
            self.glitches.charge(Glitch::Empty)?;
        }
        self.extend_block(block, payload)?;
        if !head.has(flag::END_HEADERS) {
            return Ok(None);
        }
        self.block = None;
        let bytes = std::mem::take(&mut self.block_bytes);
        let outcome = self.handle_block(block, &bytes);
        self.block_bytes = bytes;
        outcome
    }

    fn extend_block(&mut self, block: HeaderBlock, fragment: &[u8]) -> Outcome {
        if self.block_bytes.len() + fragment.len() > self.limits.block_bytes_max() {
            return Err(Fault::connection(Reason::HeadFlood));
        }
        self.block_bytes.extend_from_slice(fragment);
        self.block = Some(block);
        Ok(None)
    }

    /// Handles a complete header block. It is decoded even if the message is refused, because later blocks refer to what it puts into the
    /// table.
    fn handle_block(&mut self, block: HeaderBlock, bytes: &[u8]) -> Outcome {
        let id = block.stream;
        if self.role == Role::Server && id % 2 == 1 && id > self.last_theirs {
            return self.handle_request(block, bytes);
        }
        let Some((key, stream)) = self.streams.find(id) else { return self.handle_late_block(id, bytes) };
        let reason = match stream.recv {
            Half::Ended | Half::Reset => Reason::StreamClosed,
            _ if block.is_circular => Reason::Priority,
            Half::Body => return self.handle_trailers(key, block, bytes),
            Half::Head => {
                let is_head = stream.is_head;
                return self.handle_response(key, block, bytes, is_head);
            }
        };
        self.discard_block(bytes)?;
        Err(Fault::stream(id, reason))
    }

    /// Handles a block for a stream that is over or never existed.
    fn handle_late_block(&mut self, id: u32, bytes: &[u8]) -> Outcome {
        let departure = self.streams.departure(id);
        if self.is_idle(id) || (departure.is_none() && self.role == Role::Server) {
            // A stream id of the wrong side, or one that was passed over (section 5.1.1).
            return Err(Fault::connection(Reason::StreamId));
        }
        if departure == Some(Departure::Theirs) {
            return Err(Fault::connection(Reason::StreamClosed));
        }
        self.discard_block(bytes)?;
        self.glitches.charge(Glitch::Idle).map(|()| None)
    }

    fn discard_block(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.decoder.decode(bytes, |_| {}).map_err(|_| Fault::connection(Reason::Compression))
    }

    fn handle_request(&mut self, block: HeaderBlock, bytes: &[u8]) -> Outcome {
        let id = block.stream;
        self.last_theirs = id;
        if matches!(self.drain, Drain::Final { .. }) {
            // Section 6.8: a stream after the last one in our GOAWAY. The client knows, or will in a moment.
            self.discard_block(bytes)?;
            self.streams.remember(id, Departure::Ours);
            return self.glitches.charge(Glitch::Reset).map(|()| None);
        }
        let read = self.head.read_request(&mut self.decoder, bytes, &self.limits, block.is_end);
        let outcome = read.map_err(|_| Fault::connection(Reason::Compression))?;
        if self.streams.open() >= self.limits.streams_max as usize || self.streams.is_full() {
            self.glitches.charge(Glitch::Reset)?;
            self.streams.remember(id, Departure::Ours);
            frame::write_rst_stream(self.output.bytes(), id, Reason::StreamLimit.code());
            return Ok(Some(Event::Refused { reason: Reason::StreamLimit }));
        }
        let (content_left, is_too_large) = match outcome {
            _ if block.is_circular => return Err(Fault::stream(id, Reason::Priority)),
            Ok(length) => (length, false),
            Err(Refusal::TooLarge) => (None, true),
            Err(Refusal::Malformed(reason)) => return Err(Fault::stream(id, reason)),
        };
        let stream = Stream {
            id,
            recv: if block.is_end { Half::Ended } else { Half::Body },
            send_window: self.theirs.initial_window,
            recv_window: i64::from(self.limits.stream_window_bytes),
            content_left,
            ..Stream::default()
        };
        let Some(stream) = self.streams.insert(stream) else { return Ok(None) };
        Ok(Some(match is_too_large {
            true => Event::RequestTooLarge { stream },
            false => Event::Request { stream, end: block.is_end },
        }))
    }

    fn handle_response(&mut self, key: StreamKey, block: HeaderBlock, bytes: &[u8], is_head: bool) -> Outcome {
        let read = self.head.read_response(&mut self.decoder, bytes, &self.limits, block.is_end, is_head);
        let outcome = read.map_err(|_| Fault::connection(Reason::Compression))?;
        let content_length = outcome.map_err(|refusal| match refusal {
            Refusal::Malformed(reason) => Fault::stream(key.id, reason),
            Refusal::TooLarge => Fault::stream(key.id, Reason::HeadTooLarge),
        })?;
        let status = self.head.response.status;
        if status < 200 {
            self.glitches.charge(Glitch::Interim)?;
        } else if let Some(stream) = self.streams.get(key) {
            stream.recv = Half::Body;
            stream.is_bodiless = is_head || matches!(status, 204 | 304);
            stream.content_left = content_length.filter(|_| !stream.is_bodiless);
        }
        if block.is_end {
            self.end_receiving(key);
        }
        Ok(Some(Event::Response { stream: key, end: block.is_end }))
    }

    fn handle_trailers(&mut self, key: StreamKey, block: HeaderBlock, bytes: &[u8]) -> Outcome {
        let read = self.head.read_trailers(&mut self.decoder, bytes, &self.limits);
        let outcome = read.map_err(|_| Fault::connection(Reason::Compression))?;
        outcome.map_err(|refusal| match refusal {
            Refusal::Malformed(reason) => Fault::stream(key.id, reason),
            Refusal::TooLarge => Fault::stream(key.id, Reason::HeadTooLarge),
        })?;
        if !block.is_end {
            return Err(Fault::stream(key.id, Reason::Trailers));
        }
        if self.streams.get(key).is_some_and(|stream| stream.content_left.is_some_and(|left| left > 0)) {
            return Err(Fault::stream(key.id, Reason::ContentLength));
        }
        self.end_receiving(key);
        Ok(Some(Event::Trailers { stream: key }))
    }
}
