//! An HTTP/1 connection to an endpoint, or an HTTP/2 stream: what the endpoint reads from it, and what it answers.

use std::collections::VecDeque;

use net::socket::Progress;
use telemetry::Reason;
use wire::h1::{self, ChunkedDecoder, Decoded, Parsed};
use wire::h2::ErrorCode;
use wire::message::{Body, Method, RequestHead};

use super::client::{LAST_CHUNK, TRAILERS};
use super::{Demands, ERROR_PORT, Event, Others, SimRequest, SimResponse, TRANSIT_US, World, content};
use crate::error::Error;
use crate::exchange::{ConnectionState, Lost};
use crate::h2::StreamEnd;

/// Bytes that may be on their way to an endpoint.
const ROOM_BYTES: usize = 16 * 1024;

/// How long a kernel delays an acknowledgement, in microseconds.
const DELAYED_ACK_US: u64 = 40_000;

/// Something that an endpoint sends.
pub(super) enum Delivery {
    Bytes(Vec<u8>),
    Ack,
    Fin,
    Rst,
    /// Over HTTP/2: the head of a response in HTTP/1 form, and whether it ends the stream.
    Head(Vec<u8>, bool),
    /// Over HTTP/2: DATA, and whether it ends the stream.
    Data(Vec<u8>, bool),
    Ended(StreamEnd, bool),
}

pub(super) struct Link {
    pub(super) is_h2: bool,
    /// The port of the endpoint.
    port: u16,
    /// The proxy holds it, in use or idle.
    pub(super) is_held: bool,
    /// The client whose exchange uses it.
    pub(super) owner: Option<usize>,
    // The bytes on their way to the endpoint, and what its kernel knows of them.
    flight: VecDeque<(u64, Vec<u8>)>,
    pub(super) in_flight: usize,
    sent: u64,
    delivered: u64,
    acked: u64,
    /// When the endpoint's kernel acknowledges what has arrived, unless something else does so before.
    ack_us: Option<u64>,
    // The endpoint.
    is_closed: bool,
    /// When it closes the connection, if it is idle until then.
    closes_us: Option<u64>,
    /// It reads nothing until then.
    deaf_until_us: u64,
    unread: Vec<u8>,
    /// Of HTTP/2: the request has ended.
    pub(super) end_sent: bool,
    /// Over HTTP/2: trailers that arrived, and those of its response.
    pub(super) got_trailers: bool,
    pub(super) trailers: Option<Vec<u8>>,
    /// The request that is being read: its number, its body so far, and the framing of the rest.
    reading: Option<Reading>,
    /// Anything that arrives from now on is ignored.
    is_over: bool,
    // The bytes on their way from the endpoint.
    coming: VecDeque<(u64, u64, Delivery)>,
    /// Arrived and unread.
    pub(super) arrived: VecDeque<Delivery>,
    is_reset: bool,
    pub(super) is_ending: bool,
}

struct Reading {
    number: usize,
    /// It is not the client's request, but that to the error backend.
    is_of_error: bool,
    body: Vec<u8>,
    framing: Framing,
    plan: Plan,
    is_answered: bool,
}

enum Framing {
    Length(usize),
    Chunked(ChunkedDecoder),
    UntilEnd,
    Done,
}

/// What an endpoint does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Answer,
    /// Before the request is complete.
    AnswerEarly,
    /// With an error, and without waiting for the rest of the request.
    RefuseEarly,
    Interims(usize),
    Unavailable,
    NoContent,
    /// After it has acted on the request: a reset, or an end.
    Reset,
    End,
    /// Before it has acted on the request, which it has read.
    ResetUnread,
    HalfHead,
    HalfBody(bool),
    Silence,
    /// HTTP/2: the request was not processed, as the stream or the connection says.
    Refuse(bool),
}

const PLANS: [Plan; 25] = [
    Plan::Answer,
    Plan::Answer,
    Plan::Answer,
    Plan::Answer,
    Plan::Answer,
    Plan::Answer,
    Plan::Answer,
    Plan::AnswerEarly,
    Plan::RefuseEarly,
    Plan::Interims(1),
    Plan::Interims(3),
    Plan::Interims(20),
    Plan::Unavailable,
    Plan::NoContent,
    Plan::NoContent,
    Plan::Reset,
    Plan::End,
    Plan::ResetUnread,
    Plan::HalfHead,
    Plan::HalfBody(true),
    Plan::HalfBody(false),
    Plan::Silence,
    Plan::Refuse(true),
    Plan::Refuse(false),
    Plan::Answer,
];

impl World {
    pub(super) fn open_link(&mut self, is_h2: bool, owner: usize, port: u16) -> usize {
        let deaf = if self.rng.one_in(12) { self.rng.below(15_000_000) } else { 0 };
        self.links.push(Link {
            is_h2,
            port,
            is_held: true,
            owner: Some(owner),
            flight: VecDeque::new(),
            in_flight: 0,
            sent: 0,
            delivered: 0,
            acked: 0,
            ack_us: None,
            is_closed: false,
            closes_us: None,
            deaf_until_us: self.now_us + deaf,
            unread: Vec::new(),
            end_sent: false,
            got_trailers: false,
            trailers: None,
            reading: None,
            is_over: false,
            coming: VecDeque::new(),
            arrived: VecDeque::new(),
            is_reset: false,
            is_ending: false,
        });
        self.links.len() - 1
    }

    /// Sends bytes to the endpoint, and returns how many were taken.
    pub(super) fn write_link(&mut self, index: usize, bytes: &[u8], ends: bool) -> std::io::Result<usize> {
        let link = &mut self.links[index];
        if link.is_reset {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(ROOM_BYTES - link.in_flight);
        if count == 0 && !bytes.is_empty() {
            return Ok(0);
        }
        link.in_flight += count;
        link.sent += count as u64;
        link.flight.push_back((self.now_us + TRANSIT_US, bytes[..count].to_vec()));
        link.end_sent |= ends && count == bytes.len();
        self.at(self.now_us + TRANSIT_US, Event::Link(index));
        Ok(count)
    }

    /// The proxy closes it.
    pub(super) fn close_link(&mut self, index: usize) {
        let link = &mut self.links[index];
        (link.is_held, link.owner, link.is_over) = (false, None, true);
    }

    fn answer(&mut self, index: usize, delay_us: u64, what: Delivery) {
        let at_us =
            self.links[index].coming.back().map_or(0, |(at_us, ..)| *at_us).max(self.now_us + delay_us) + TRANSIT_US;
        let acked = self.links[index].delivered;
        self.links[index].coming.push_back((at_us, acked, what));
        self.at(at_us, Event::Link(index));
    }

    /// Processes what has arrived at the endpoint.
    pub(super) fn link_turn(&mut self, index: usize) {
        let now_us = self.now_us;
        let link = &mut self.links[index];
        if link.ack_us.is_some_and(|at_us| at_us <= now_us) {
            link.ack_us = None;
            link.acked = link.delivered;
        }
        while link.coming.front().is_some_and(|(at_us, ..)| *at_us <= now_us) {
            let Some((_, acked, what)) = link.coming.pop_front() else { break };
            match what {
                Delivery::Rst => {
                    // The acknowledgement in an RST is not processed.
                    link.is_reset = true;
                    link.ack_us = None;
                    link.arrived.push_back(Delivery::Rst);
                }
                Delivery::Ack => link.acked = link.acked.max(acked),
                what => {
                    if let Delivery::Ended(_, is_ending) = &what {
                        link.is_ending |= *is_ending;
                        link.is_reset = true;
                    }
                    link.acked = link.acked.max(acked);
                    link.arrived.push_back(what);
                }
            }
        }
        if now_us < link.deaf_until_us {
            if !link.flight.is_empty() {
                let at_us = link.deaf_until_us;
                self.at(at_us, Event::Link(index));
            }
        } else {
            let mut has_come = false;
            while link.flight.front().is_some_and(|(at_us, _)| *at_us <= now_us) {
                let Some((_, bytes)) = link.flight.pop_front() else { break };
                link.in_flight -= bytes.len();
                if link.is_closed {
                    // The process is gone, and its kernel says so.
                    let acked = link.delivered;
                    link.coming.push_back((now_us + TRANSIT_US, acked, Delivery::Rst));
                    self.numbers += 1;
                    self.events.push(std::cmp::Reverse((now_us + TRANSIT_US, self.numbers, Event::Link(index))));
                } else {
                    link.delivered += bytes.len() as u64;
                    link.unread.extend_from_slice(&bytes);
                    has_come = true;
                }
            }
            if has_come && link.ack_us.is_none() {
                let at_us = now_us + DELAYED_ACK_US;
                link.ack_us = Some(at_us);
                self.at(at_us, Event::Link(index));
            }
            self.read_requests(index);
        }
        let link = &mut self.links[index];
        if link.closes_us.is_some_and(|at_us| at_us <= now_us) && !link.is_over {
            link.closes_us = None;
            self.end(index, 0);
        }
        if let Some(owner) = self.links[index].owner {
            self.drive(owner);
        }
    }

    fn read_requests(&mut self, index: usize) {
        loop {
            let link = &mut self.links[index];
            if link.is_over || link.is_closed {
                return;
            }
            if link.reading.is_none() {
                let mut head = RequestHead::default();
                let Ok(Parsed::Complete(length)) = h1::parse_request(&link.unread, 100, &mut head) else { return };
                let path = std::str::from_utf8(head.path.get(&link.unread)).expect("text");
                let fields = |name: &[u8]| -> Vec<&[u8]> {
                    let named =
                        head.fields.iter().filter(|field| field.name.get(&link.unread).eq_ignore_ascii_case(name));
                    named.map(|field| field.value.get(&link.unread)).collect()
                };
                let is_of_error = link.port == ERROR_PORT;
                let number = if is_of_error {
                    number_of(&fields(b"x-original-uri").concat())
                } else {
                    number_of(path.as_bytes())
                };
                if is_of_error {
                    check_error_request(
                        self.seed,
                        &self.others,
                        &self.asked[number],
                        (&head, path),
                        &fields(b"x-code"),
                    );
                }
                if !is_of_error && self.demands != Demands::Nothing {
                    let said = (&*fields(b"x-user"), &*fields(b"authorization"));
                    check_credentials((self.seed, number), &self.asked[number], said);
                }
                if !is_of_error && self.external_auth.is_some() {
                    let (seed, asked) = (self.seed, &self.asked[number]);
                    assert!(asked.may_pass, "seed {seed}: request {number} passed without authorization");
                    let expect: &[&[u8]] = if asked.is_granted { &[b"yes"] } else { &[] };
                    assert_eq!(fields(b"x-service"), expect, "seed {seed}: what the service said of request {number}");
                }
                if !is_of_error && self.global_limit.is_some() {
                    let (seed, asked) = (self.seed, &self.asked[number]);
                    assert!(asked.is_within_limit, "seed {seed}: request {number} passed over its limit");
                }
                if let Some(buffer) = self.request_body.as_ref().and_then(|rules| rules.buffer)
                    && !link.is_h2
                    && head.body != Body::None
                {
                    check_collected((self.seed, number), head.body, self.asked[number].body.len(), buffer.bytes_max);
                }
                let framing = match head.body {
                    _ if link.is_h2 => Framing::UntilEnd,
                    Body::None | Body::UntilClose => Framing::Done,
                    Body::Length(length) => Framing::Length(length as usize),
                    Body::Chunked => Framing::Chunked(ChunkedDecoder::default()),
                };
                link.unread.drain(..length);
                link.closes_us = None;
                link.got_trailers &= link.is_h2;
                let plan = self.rng.pick(&PLANS);
                let plan =
                    if matches!(plan, Plan::Refuse(_)) && !self.links[index].is_h2 { Plan::Answer } else { plan };
                self.say(|| format!("link {index}: request {number}: {plan:?}"));
                self.links[index].reading =
                    Some(Reading { number, is_of_error, body: Vec::new(), framing, plan, is_answered: false });
            }
            if self.read_body(index) {
                return;
            }
        }
    }

    /// Reads further, and acts as planned. Returns true if more has to arrive.
    fn read_body(&mut self, index: usize) -> bool {
        let link = &mut self.links[index];
        let Some(mut reading) = link.reading.take() else { return true };
        match &mut reading.framing {
            Framing::Length(left) => {
                let count = (*left).min(link.unread.len());
                reading.body.extend(link.unread.drain(..count));
                *left -= count;
                if *left == 0 {
                    reading.framing = Framing::Done;
                }
            }
            Framing::Chunked(decoder) => {
                let bytes = std::mem::take(&mut link.unread);
                let mut at = 0;
                loop {
                    match decoder.decode(&bytes, at).expect("good chunks") {
                        Decoded::More => break,
                        Decoded::Data(range) => {
                            at = range.end;
                            reading.body.extend_from_slice(&bytes[range]);
                        }
                        Decoded::End(end) => {
                            link.unread = bytes[end..].to_vec();
                            link.got_trailers = decoder.trailers() != b"\r\n";
                            reading.framing = Framing::Done;
                            break;
                        }
                    }
                }
            }
            Framing::UntilEnd => {
                reading.body.append(&mut link.unread);
                if link.end_sent && link.flight.is_empty() {
                    reading.framing = Framing::Done;
                }
            }
            Framing::Done => {}
        }
        let is_whole = matches!(reading.framing, Framing::Done);
        let is_due = is_whole || matches!(reading.plan, Plan::AnswerEarly | Plan::RefuseEarly | Plan::Refuse(_));
        if is_due && !reading.is_answered {
            reading.is_answered = true;
            self.act(index, &reading, is_whole);
        }
        if is_whole {
            return self.links[index].is_h2;
        }
        self.links[index].reading = Some(reading);
        true
    }

    fn act(&mut self, index: usize, reading: &Reading, is_whole: bool) {
        let (number, plan) = (reading.number, reading.plan);
        let is_h2 = self.links[index].is_h2;
        let delay_us = if self.rng.one_in(5) { self.rng.below(12_000_000) } else { self.rng.below(2_000) };
        if !reading.is_of_error && !matches!(plan, Plan::ResetUnread | Plan::Refuse(_)) {
            let asked = &mut self.asked[number];
            asked.executions += 1;
            let seed = self.seed;
            assert!(asked.body.starts_with(&reading.body), "seed {seed}: request {number} has another body");
            assert!(
                !is_whole || asked.body.len() == reading.body.len() && !asked.is_broken,
                "seed {seed}: request {number} looks whole"
            );
            let has_trailers = asked.has_trailers;
            // Trailers of a body that was held back are dropped.
            let is_held = self.external_auth.as_ref().is_some_and(|auth| auth.body.is_some())
                || self.request_body.as_ref().is_some_and(|rules| rules.buffer.is_some());
            assert!(
                !is_whole || is_held || self.links[index].got_trailers == has_trailers,
                "seed {seed}: trailers of {number}"
            );
        }
        match plan {
            Plan::Answer | Plan::AnswerEarly => self.respond(index, number, delay_us, 200, None),
            Plan::RefuseEarly => self.respond(index, number, delay_us, 413, None),
            Plan::Interims(count) => {
                for _ in 0..count {
                    let head = b"HTTP/1.1 103 Early Hints\r\n\r\n".to_vec();
                    self.answer(
                        index,
                        delay_us,
                        if is_h2 { Delivery::Head(head, false) } else { Delivery::Bytes(head) },
                    );
                }
                self.respond(index, number, delay_us, 200, None);
            }
            Plan::Unavailable => self.respond(index, number, delay_us, 503, None),
            Plan::NoContent => self.respond(index, number, delay_us, 204, None),
            Plan::Reset | Plan::ResetUnread if is_h2 => {
                let end =
                    if self.rng.one_in(2) { StreamEnd::Reset(ErrorCode::INTERNAL_ERROR) } else { StreamEnd::Lost };
                self.answer(index, delay_us, Delivery::Ended(end, end == StreamEnd::Lost));
            }
            Plan::Reset | Plan::ResetUnread => {
                self.links[index].is_over = true;
                self.answer(index, delay_us, Delivery::Rst);
                self.links[index].is_closed = true;
            }
            Plan::End if is_h2 => self.answer(index, delay_us, Delivery::Ended(StreamEnd::Gone, true)),
            Plan::End => self.end(index, delay_us),
            Plan::HalfHead if is_h2 => self.answer(index, delay_us, Delivery::Ended(StreamEnd::Lost, true)),
            Plan::HalfHead => {
                self.answer(index, delay_us, Delivery::Bytes(b"HTTP/1.1 200 OK\r\nContent-".to_vec()));
                self.end(index, delay_us);
            }
            Plan::HalfBody(by_reset) => self.respond(index, number, delay_us, 200, Some(by_reset)),
            Plan::Silence => {}
            Plan::Refuse(is_ending) => self.answer(index, delay_us, Delivery::Ended(StreamEnd::Refused, is_ending)),
        }
    }

    /// The endpoint ends its side, and reads nothing more.
    fn end(&mut self, index: usize, delay_us: u64) {
        self.answer(index, delay_us, Delivery::Fin);
        self.links[index].is_closed = true;
    }

    /// `broken`: the response is cut off, by a reset or by an end.
    fn respond(&mut self, index: usize, asked: usize, delay_us: u64, status: u16, broken: Option<bool>) {
        let (is_head, is_h2) = (self.asked[asked].is_head, self.links[index].is_h2);
        let number = self.answered.len();
        let length = if status == 204 { 0 } else { self.rng.pick(&[0, 18, 18, 600, 5_000, 40_000]) };
        let body = content(number + 1_000, length);
        // 0: a length; 1: chunks; 2: until the connection ends.
        let framing = if status == 204 { 3 } else { self.rng.below(3) };
        let closes = self.rng.one_in(6);
        let content_type = self.rng.pick(&["text/plain", "Text/Event-Stream; a=b", "text/html", "image/png"]);
        let more = self.rng.pick(&["", "", "", "Content-Encoding: x\r\n", "Cache-Control: private, no-transform\r\n"]);
        let may_be_coded = content_type != "image/png" && more.is_empty() && status != 204;
        let mut head = format!("HTTP/1.1 {status} X\r\nX-Number: {number}\r\nContent-Type: {content_type}\r\n{more}");
        match framing {
            0 => head += &format!("Content-Length: {length}\r\n"),
            1 if !is_h2 => head += "Transfer-Encoding: chunked\r\n",
            _ => {}
        }
        if closes && !is_h2 {
            head += "Connection: close\r\n";
        }
        head += "\r\n";
        let sends_body = !is_head && status != 204;
        let has_trailers =
            sends_body && broken.is_none() && framing == 1 && (!is_h2 || length > 0) && self.rng.one_in(3);
        let sent = if broken.is_some() { length / 2 } else { length };
        // A body that ends with its connection is complete wherever that ends normally.
        let ends_anywhere = framing == 2 && !is_h2 && broken == Some(false);
        let is_whole = broken.is_none() || !sends_body || ends_anywhere;
        let told = if ends_anywhere { content(number + 1_000, sent) } else { body.clone() };
        let told = if sends_body { told } else { Vec::new() };
        let is_intercepted = self.links[index].port < ERROR_PORT && self.others.intercepts_endpoints(status);
        self.answered.push(SimResponse { asked, body: told, has_trailers, is_whole, may_be_coded, is_intercepted });
        if is_h2 {
            let body = if sends_body { &body[..] } else { &[] };
            self.links[index].trailers = has_trailers.then(|| TRAILERS.to_vec());
            return self.respond_h2(index, delay_us, head.into_bytes(), body, sent, broken);
        }
        let mut bytes = head.into_bytes();
        if sends_body {
            let step = self.rng.pick(&[100.max(length / 16), 3_000, 100_000]);
            for piece in body[..sent].chunks(step) {
                if framing == 1 {
                    h1::chunk_start(&mut bytes, piece.len());
                    bytes.extend_from_slice(piece);
                    h1::chunk_end(&mut bytes);
                } else {
                    bytes.extend_from_slice(piece);
                }
                if self.rng.one_in(8) {
                    self.answer(index, delay_us, Delivery::Bytes(std::mem::take(&mut bytes)));
                    let pause_us = self.rng.below(3_000_000);
                    self.answer(index, pause_us, Delivery::Ack);
                }
            }
            if framing == 1 && broken.is_none() {
                bytes.extend_from_slice(if has_trailers { LAST_CHUNK } else { h1::LAST_CHUNK });
            }
        }
        self.answer(index, delay_us, Delivery::Bytes(bytes));
        match broken {
            Some(true) => {
                self.answer(index, 0, Delivery::Rst);
                self.links[index].is_closed = true;
            }
            Some(false) => self.end(index, 0),
            None if closes || (framing == 2 && sends_body) => self.end(index, 0),
            // An idle connection may be closed at any time.
            None if self.rng.one_in(4) => {
                let idle_us = self.now_us + delay_us + self.rng.below(2_000_000);
                self.links[index].closes_us = Some(idle_us);
                self.at(idle_us, Event::Link(index));
            }
            None => {}
        }
    }

    /// Only this many bytes of a body are sent.
    fn respond_h2(
        &mut self,
        index: usize,
        delay_us: u64,
        head: Vec<u8>,
        body: &[u8],
        sent: usize,
        broken: Option<bool>,
    ) {
        self.answer(index, delay_us, Delivery::Head(head, body.is_empty()));
        if body.is_empty() {
            return;
        }
        let step = self.rng.pick(&[100.max(body.len() / 16), 3_000, 100_000]);
        let pieces: Vec<&[u8]> = body[..sent].chunks(step).collect();
        for (at, piece) in pieces.iter().enumerate() {
            let ends = broken.is_none() && at + 1 == pieces.len();
            let pause_us = if self.rng.one_in(8) { self.rng.below(3_000_000) } else { 0 };
            self.answer(index, pause_us, Delivery::Data(piece.to_vec(), ends));
        }
        match broken {
            Some(true) => self.answer(index, 0, Delivery::Ended(StreamEnd::Reset(ErrorCode::INTERNAL_ERROR), false)),
            Some(false) => self.answer(index, 0, Delivery::Ended(StreamEnd::Gone, true)),
            None => {}
        }
    }
}

/// The number of a request, which is its path.
fn number_of(path: &[u8]) -> usize {
    std::str::from_utf8(path).expect("text").trim_start_matches('/').parse().expect("a number")
}

/// Checks what the error backend is asked about a request.
fn check_error_request(
    seed: u64,
    others: &Others,
    asked: &SimRequest,
    (head, path): (&RequestHead, &str),
    code: &[&[u8]],
) {
    let method = if asked.is_head { Method::Head } else { Method::Get };
    assert_eq!((head.method, head.body), (method, Body::None), "seed {seed}: the error backend got another request");
    let code = code.concat();
    let status = std::str::from_utf8(&code).expect("text");
    assert_eq!(path, format!("/{status}"), "seed {seed}: the error backend got another path");
    let status = status.parse().expect("a status");
    assert!(others.intercepts(status), "seed {seed}: the error backend is asked about {status}");
}

fn check_credentials((seed, number): (u64, usize), asked: &SimRequest, (user, left): (&[&[u8]], &[&[u8]])) {
    assert!(asked.is_from_joe, "seed {seed}: request {number} passed with wrong credentials");
    assert_eq!(user, [b"joe"], "seed {seed}: the user of request {number}");
    assert!(left.is_empty(), "seed {seed}: the endpoint got the credentials");
}

fn check_collected((seed, number): (u64, usize), body: Body, length: usize, bytes_max: usize) {
    assert_eq!(body, Body::Length(length as u64), "seed {seed}: request {number} was not collected");
    assert!(length <= bytes_max, "seed {seed}: request {number} is too large");
}

impl Link {
    fn progress(&self) -> Progress {
        Progress { acked: self.acked, has_unacked: self.sent > self.acked, round_trip_us: 2 * TRANSIT_US }
    }

    pub(super) fn asked_progress(&self) -> Option<Progress> {
        (!self.is_h2).then(|| self.progress())
    }

    pub(super) fn lost(&self, error: Error, has_input: bool) -> Lost {
        let connection = if self.is_h2 {
            ConnectionState::Stream { is_ending: self.is_ending }
        } else {
            ConnectionState::Tcp(Some(self.progress()))
        };
        Lost { error, has_input, connection }
    }

    /// Whether the endpoint has ended or reset it, as far as the proxy can know.
    pub(super) fn has_left(&self) -> bool {
        self.arrived.iter().any(|sent| matches!(sent, Delivery::Fin | Delivery::Rst | Delivery::Ended(..)))
    }

    /// Whether it is idle, and nothing has arrived.
    pub(super) fn is_silent(&self) -> bool {
        self.arrived.is_empty()
    }

    pub(super) fn eof() -> Error {
        Error::upstream(Reason::UpstreamEof)
    }
}
