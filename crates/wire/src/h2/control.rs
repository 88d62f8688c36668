//! Receiving: the frames that carry no part of a message.

use super::connection::{Connection, DRAIN_PING, Drain, Role, close};
use super::error::{ErrorCode, Fault, Reason};
use super::event::{Event, ResetBy};
use super::frame::{self, FrameHead, STREAM_ID_MAX, WINDOW_MAX, flag};
use super::glitches::Glitch;
use super::receive::Outcome;
use super::settings;
use super::streams::Departure;

impl Connection {
    /// Only checks for errors, because priorities are not followed (RFC 9113 section 5.3.2).
    pub(super) fn handle_priority(&mut self, head: FrameHead, payload: &[u8]) -> Outcome {
        self.glitches.charge(Glitch::Idle)?;
        let reason = match payload.len() {
            5 if frame::number(payload) & STREAM_ID_MAX != head.stream => return Ok(None),
            5 => Reason::Priority,
            _ => Reason::FrameSize,
        };
        // A stream that never existed cannot be reset.
        Err(if self.is_idle(head.stream) { Fault::connection(reason) } else { Fault::stream(head.stream, reason) })
    }

    pub(super) fn handle_reset(&mut self, head: FrameHead, payload: &[u8]) -> Outcome {
        if payload.len() != 4 {
            return Err(Fault::connection(Reason::FrameSize));
        }
        if self.is_idle(head.stream) {
            return Err(Fault::connection(Reason::StreamId));
        }
        let Some((stream, state)) = self.streams.find(head.stream) else {
            return self.glitches.charge(Glitch::Idle).map(|()| None);
        };
        // An endpoint that gives up has its reasons, and cannot open streams. A client that does wastes the work that it has caused.
        let is_unanswered = state.send.is_open();
        close(state);
        self.streams.depart(head.stream, Departure::Theirs);
        let glitch = if self.role == Role::Server && is_unanswered { Glitch::Reset } else { Glitch::Idle };
        self.glitches.charge(glitch)?;
        Ok(Some(Event::Reset { stream, code: ErrorCode(frame::number(payload)), by: ResetBy::Peer }))
    }

    pub(super) fn handle_settings(&mut self, head: FrameHead, payload: &[u8]) -> Outcome {
        if head.has(flag::ACK) {
            let fault = Fault::connection(Reason::FrameSize);
            if self.is_acknowledged && payload.is_empty() {
                self.change_stream_window();
            }
            self.is_acknowledged |= payload.is_empty();
            return if payload.is_empty() { self.glitches.charge(Glitch::Idle).map(|()| None) } else { Err(fault) };
        }
        self.glitches.charge(Glitch::Settings)?;
        let new = self.theirs.updated(payload, self.role)?;
        let change = new.initial_window - self.theirs.initial_window;
        self.theirs = new;
        if change != 0 {
            self.change_windows(change)?;
        }
        self.encoder.set_table_bytes_max(new.header_table_bytes as usize);
        settings::write_ack(self.output.bytes());
        Ok(Some(Event::Settings))
    }

    /// Section 6.9.2: this changes the windows of all streams, but not the connection's.
    fn change_windows(&mut self, change: i64) -> Result<(), Fault> {
        let Self { streams, want_window, .. } = self;
        for (key, stream) in streams.iter_mut() {
            stream.send_window += change;
            if stream.send_window > WINDOW_MAX {
                return Err(Fault::Connection(Reason::WindowUpdate, ErrorCode::FLOW_CONTROL_ERROR));
            }
            if stream.feed() {
                want_window.push(key, stream);
            }
        }
        Ok(())
    }

    pub(super) fn handle_ping(&mut self, head: FrameHead, payload: &[u8]) -> Outcome {
        let Some(payload) = payload.first_chunk::<8>().filter(|_| payload.len() == 8) else {
            return Err(Fault::connection(Reason::FrameSize));
        };
        if !head.has(flag::ACK) {
            self.glitches.charge(Glitch::Ping)?;
            frame::write_ping(self.output.bytes(), flag::ACK, *payload);
            return Ok(None);
        }
        if self.drain == Drain::Announced && *payload == DRAIN_PING {
            self.finish_drain();
            return Ok(None);
        }
        self.glitches.charge(Glitch::Idle)?;
        Ok(Some(Event::Pong { payload: *payload }))
    }

    pub(super) fn handle_goaway(&mut self, payload: &[u8]) -> Outcome {
        let Some((last, rest)) = payload.split_at_checked(4).filter(|(_, rest)| rest.len() >= 4) else {
            return Err(Fault::connection(Reason::FrameSize));
        };
        self.glitches.charge(Glitch::Settings)?;
        self.is_going_away = true;
        let last_stream = frame::number(last) & STREAM_ID_MAX;
        let code = ErrorCode(frame::number(rest));
        let mut refused = Vec::new();
        if self.role == Role::Client {
            let behind = self.streams.iter_mut().filter(|(key, stream)| key.id > last_stream && !stream.is_over());
            refused.extend(behind.map(|(stream, state)| {
                close(state);
                stream
            }));
        }
        for stream in refused {
            self.streams.depart(stream.id, Departure::Theirs);
            self.events.push_back(Event::Reset { stream, code: ErrorCode::REFUSED_STREAM, by: ResetBy::GoAway });
        }
        Ok(Some(Event::GoAway { last_stream, code }))
    }

    pub(super) fn handle_window_update(&mut self, head: FrameHead, payload: &[u8]) -> Outcome {
        if payload.len() != 4 {
            return Err(Fault::connection(Reason::FrameSize));
        }
        self.glitches.charge(Glitch::Idle)?;
        let increment = i64::from(frame::number(payload) & STREAM_ID_MAX);
        if head.stream == 0 {
            self.windows.send += increment;
            return match increment {
                0 => Err(Fault::connection(Reason::WindowUpdate)),
                _ if self.windows.send > WINDOW_MAX => {
                    Err(Fault::Connection(Reason::WindowUpdate, ErrorCode::FLOW_CONTROL_ERROR))
                }
                _ => Ok(None),
            };
        }
        if self.is_idle(head.stream) {
            return Err(Fault::connection(Reason::StreamId));
        }
        // For a stream that is over: the other side sent it before it knew.
        let Some((key, stream)) = self.streams.find(head.stream) else { return Ok(None) };
        if increment == 0 {
            return Err(Fault::stream(head.stream, Reason::WindowUpdate));
        }
        stream.send_window += increment;
        if stream.send_window > WINDOW_MAX {
            return Err(Fault::Stream(head.stream, Reason::WindowUpdate, ErrorCode::FLOW_CONTROL_ERROR));
        }
        if stream.feed() {
            self.want_window.push(key, stream);
        }
        Ok(None)
    }
}
