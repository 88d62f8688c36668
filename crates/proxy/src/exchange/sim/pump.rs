//! Bodies on their way between the simulated connections, as `driver::pump` moves them between sockets.

use net::buffer::Buffer;
use wire::h1;

use super::World;
use super::client::Client;
use super::link::{Delivery, Link};
use crate::exchange::transfer::{self, Transfer};
use crate::exchange::{HeldBody, TransferError};
use crate::h2::HeaderList;

/// Bytes that an exchange may hold, in addition to those that it has read and not written.
const HELD_BYTES_MAX: usize = 160 * 1024;

/// A side of an exchange.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Client(usize),
    Link(usize),
}

impl Side {
    /// The number of its pipe.
    fn number(self) -> usize {
        usize::from(matches!(self, Self::Client(_)))
    }
}

/// The result of a read.
pub(super) enum Read {
    Bytes(usize),
    /// The end of the connection or of the stream.
    End,
    Nothing,
}

pub(super) fn reset() -> std::io::Error {
    std::io::ErrorKind::ConnectionReset.into()
}
impl World {
    /// Moves a message as far as possible.
    pub(super) fn pump(
        &mut self,
        index: usize,
        transfer: Option<&mut Transfer>,
        input: &mut Buffer,
        from: Side,
        to: Side,
    ) -> Result<bool, TransferError> {
        let Some(transfer) = transfer else { return Ok(true) };
        loop {
            self.note_stream_end(transfer, from);
            if self.write(index, Some(transfer), input, to)? {
                return Ok(true);
            }
            let pipe_bytes_max = match transfer.next(input)? {
                transfer::TransferStep::Read => None,
                transfer::TransferStep::FillPipe(bytes_max) => Some(bytes_max as usize),
                _ => {
                    transfer.rest();
                    return Ok(false);
                }
            };
            let read = match from {
                Side::Client(index) if self.clients[index].was_reset => Err(reset()),
                Side::Client(index) => {
                    let client = &mut self.clients[index];
                    std::mem::swap(&mut client.input, input);
                    let read = read_client(client);
                    std::mem::swap(&mut client.input, input);
                    Ok(read)
                }
                Side::Link(index) => read_link(&mut self.links[index], input),
            };
            match read.map_err(TransferError::Read)? {
                Read::Bytes(_) if pipe_bytes_max.is_some() => {
                    let bytes_max = pipe_bytes_max.unwrap_or_default();
                    let count = input.len().min(bytes_max);
                    self.clients[index].pipes[to.number()] = input.filled()[..count].to_vec();
                    let rest = input.filled()[count..].to_vec();
                    *input = Buffer::none();
                    // It stays in the sender's kernel.
                    self.unread(from, rest);
                    transfer.handle_pipe_filled(count)?;
                }
                Read::Bytes(count) => transfer.handle_read(count, self.rng.one_in(2)),
                Read::End if self.is_h2(from) => self.note_stream_end(transfer, from),
                Read::End => transfer.handle_closed()?,
                Read::Nothing if transfer.handle_pause() => {}
                Read::Nothing => {
                    transfer.rest();
                    return Ok(false);
                }
            }
        }
    }

    /// Holds back what has arrived of a request's body. Returns whether that is all of it, or `None` if more may come.
    pub(super) fn hold(
        &mut self,
        index: usize,
        (transfer, held, bytes_max): (&mut Transfer, &mut Vec<u8>, usize),
        input: &mut Buffer,
    ) -> Result<Option<bool>, TransferError> {
        let now_us = self.now_us;
        loop {
            self.note_stream_end(transfer, Side::Client(index));
            if held.len() > bytes_max {
                return Ok(Some(false));
            }
            match transfer.next(input)? {
                transfer::TransferStep::Write { bytes, .. } => {
                    HeldBody::add(held, bytes);
                    let count = bytes.len();
                    transfer.handle_written(count, false, || now_us);
                }
                transfer::TransferStep::Forward { count, ends } => {
                    HeldBody::add(held, &input.filled()[..count]);
                    transfer.handle_forwarded(count, (count, ends), false, input)?;
                }
                transfer::TransferStep::Code => drop(transfer.code(input, || 0)?),
                transfer::TransferStep::Done => return Ok(Some(true)),
                transfer::TransferStep::Read => {
                    let client = &mut self.clients[index];
                    std::mem::swap(&mut client.input, input);
                    let read = read_client(client);
                    std::mem::swap(&mut client.input, input);
                    match read {
                        Read::Bytes(count) => transfer.handle_read(count, false),
                        Read::End if self.clients[index].is_h2 => {}
                        Read::End => transfer.handle_closed()?,
                        Read::Nothing => return Ok(None),
                    }
                }
                _ => unreachable!("a body is only read"),
            }
        }
    }

    /// Puts back bytes that were read but must not be.
    fn unread(&mut self, from: Side, bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        match from {
            Side::Client(index) => drop(self.clients[index].arrived.splice(0..0, bytes)),
            Side::Link(index) => self.links[index].arrived.push_front(Delivery::Bytes(bytes)),
        }
    }

    pub(super) fn is_h2(&self, side: Side) -> bool {
        match side {
            Side::Client(index) => self.clients[index].is_h2,
            Side::Link(index) => self.links[index].is_h2,
        }
    }

    pub(super) fn note_stream_end(&mut self, transfer: &mut Transfer, from: Side) {
        if !transfer.awaits_stream_end() {
            return;
        }
        let has_ended = match from {
            Side::Client(index) => {
                let client = &self.clients[index];
                client.has_ended && client.arrived.is_empty()
            }
            Side::Link(index) => {
                matches!(self.links[index].arrived.front(), Some(Delivery::Data(bytes, true)) if bytes.is_empty())
            }
        };
        if !has_ended {
            return;
        }
        let trailers = match from {
            Side::Client(index) => self.clients[index].trailers.take(),
            Side::Link(index) => self.links[index].trailers.take(),
        };
        if let (Some(text), Some((fields, bytes))) = (&trailers, transfer.handle_stream_end(trailers.is_some())) {
            bytes.extend_from_slice(text);
            h1::parse_trailers(bytes, fields).expect("good trailers");
        }
    }

    /// Sends a head over HTTP/2.
    fn send_head(&mut self, to: Side, head: &HeaderList, ends: bool) -> std::io::Result<()> {
        match to {
            Side::Client(index) => {
                let client = &mut self.clients[index];
                if client.was_reset {
                    return Err(reset());
                }
                if head.status >= 200 {
                    assert!(client.status.is_none(), "seed {}: the client got a second response", self.seed);
                    client.status = Some(head.status);
                    client.number = head.find(b"x-number").map(|text| text.parse().expect("a number"));
                    client.encoding = head.find(b"content-encoding");
                    client.is_complete = ends;
                }
                Ok(())
            }
            Side::Link(index) => {
                let path = String::from_utf8(head.to().path.to_vec()).expect("text");
                let method = String::from_utf8(head.to().method.to_vec()).expect("text");
                let field = |name: &str| head.find(name.as_bytes()).map(|value| format!("{name}: {value}\r\n"));
                let fields: String = ["x-user", "x-service", "authorization", "x-code", "x-original-uri"]
                    .into_iter()
                    .filter_map(field)
                    .collect();
                let text = format!("{method} {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
                self.links[index].in_flight = 0;
                self.write_link(index, text.as_bytes(), ends).map(|_| ())
            }
        }
    }

    /// Writes what there is. Returns true if everything is read and written.
    pub(super) fn write(
        &mut self,
        index: usize,
        transfer: Option<&mut Transfer>,
        input: &mut Buffer,
        to: Side,
    ) -> Result<bool, TransferError> {
        let Some(transfer) = transfer else { return Ok(true) };
        let now_us = self.now_us;
        loop {
            match transfer.next(input)? {
                transfer::TransferStep::Write { bytes, ends } => {
                    let (is_end_alone, length) = (bytes.is_empty(), bytes.len());
                    let count = self.write_bytes(to, bytes, ends).map_err(TransferError::Write)?;
                    if count == 0 && !is_end_alone {
                        return Ok(false);
                    }
                    transfer.handle_written(count, false, || now_us);
                    if count < length {
                        return Ok(false);
                    }
                }
                transfer::TransferStep::Forward { count, ends } => {
                    let piece = &input.filled()[..count];
                    let written = self.write_bytes(to, piece, ends).map_err(TransferError::Write)?;
                    if written == 0 {
                        return Ok(false);
                    }
                    transfer.handle_forwarded(written, (count, ends), false, input)?;
                }
                transfer::TransferStep::WriteAndForward { bytes, count } => {
                    let both = [bytes, &input.filled()[..count]].concat();
                    let written = self.write_bytes(to, &both, false).map_err(TransferError::Write)?;
                    if written == 0 {
                        return Ok(false);
                    }
                    transfer.handle_written_and_forwarded(written, count, false, input, || now_us)?;
                }
                transfer::TransferStep::SendHead { head, ends } => {
                    self.send_head(to, head, ends).map_err(TransferError::Write)?;
                    transfer.handle_head_sent(ends, || now_us);
                }
                transfer::TransferStep::SendTrailers(trailers) => {
                    let is_there = trailers.find(b"t").is_some();
                    self.write_trailers(to, is_there).map_err(TransferError::Write)?;
                    transfer.handle_trailers_sent();
                }
                transfer::TransferStep::Code => drop(transfer.code(input, || 0)?),
                transfer::TransferStep::Flush => transfer.handle_flushed(),
                transfer::TransferStep::DrainPipe => {
                    let pipe = std::mem::take(&mut self.clients[index].pipes[to.number()]);
                    let count = self.write_bytes(to, &pipe, false).map_err(TransferError::Write)?;
                    self.clients[index].pipes[to.number()] = pipe[count..].to_vec();
                    if count == 0 {
                        return Ok(false);
                    }
                    transfer.handle_pipe_drained(count);
                }
                transfer::TransferStep::Read | transfer::TransferStep::FillPipe(_) => return Ok(false),
                transfer::TransferStep::Done => return Ok(true),
            }
            let held = transfer.held_bytes();
            assert!(held <= HELD_BYTES_MAX, "seed {}: client {index} holds {held} bytes", self.seed);
        }
    }

    fn write_trailers(&mut self, to: Side, is_there: bool) -> std::io::Result<()> {
        match to {
            Side::Client(index) => {
                self.clients[index].got_trailers = is_there;
                self.clients[index].is_complete = true;
                Ok(())
            }
            Side::Link(index) => {
                self.links[index].got_trailers = is_there;
                self.write_link(index, b"", true).map(drop)
            }
        }
    }

    fn write_bytes(&mut self, to: Side, bytes: &[u8], ends: bool) -> std::io::Result<usize> {
        match to {
            Side::Client(index) => {
                let client = &mut self.clients[index];
                let count = client.write(bytes)?;
                client.is_complete |= client.is_h2 && ends && count == bytes.len();
                Ok(count)
            }
            Side::Link(index) => self.write_link(index, bytes, ends),
        }
    }
}

/// Reads what has arrived from a client into its input.
pub(super) fn read_client(client: &mut Client) -> Read {
    if client.arrived.is_empty() {
        return if client.has_ended { Read::End } else { Read::Nothing };
    }
    let count = client.arrived.len().min(16 * 1024);
    let bytes: Vec<u8> = client.arrived.drain(..count).collect();
    client.input.put(&bytes);
    Read::Bytes(count)
}

pub(super) fn read_link(link: &mut Link, input: &mut Buffer) -> std::io::Result<Read> {
    match link.arrived.pop_front() {
        None => Ok(Read::Nothing),
        Some(Delivery::Bytes(bytes)) => {
            input.put(&bytes);
            Ok(Read::Bytes(bytes.len()))
        }
        Some(Delivery::Data(bytes, ends)) => {
            let count = bytes.len();
            input.put(&bytes);
            if ends {
                link.arrived.push_front(Delivery::Data(Vec::new(), true));
            }
            Ok(if count == 0 { Read::End } else { Read::Bytes(count) })
        }
        Some(Delivery::Fin) => {
            link.arrived.push_front(Delivery::Fin);
            Ok(Read::End)
        }
        Some(Delivery::Rst) => {
            link.arrived.push_front(Delivery::Rst);
            Err(reset())
        }
        Some(Delivery::Ended(end, is_ending)) => {
            link.arrived.push_front(Delivery::Ended(end, is_ending));
            Err(std::io::Error::other(end))
        }
        Some(Delivery::Ack | Delivery::Head(..)) => Ok(Read::Nothing),
    }
}
