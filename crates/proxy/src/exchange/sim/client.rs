//! A client's HTTP/1 connection, or its HTTP/2 stream.

use std::collections::VecDeque;
use std::rc::Rc;

use model::Encoding;
use net::buffer::Buffer;
use telemetry::Reason;
use wire::h1::{self, ChunkedDecoder, Decoded, Parsed};
use wire::message::{Body, Method, RequestHead, ResponseHead, Version};

use super::drive::{Connecting, Upstream};
use super::{Demands, Event, SimRequest, SimResponse, World, content};
use crate::compression::{Encoder, testing};
use crate::exchange::{Disposition, Exchange};
use crate::question::Reply;
use crate::worker::ListenerView;
use crate::worker::snapshot::fixture;

/// Bytes that may be on their way to a client.
const ROOM_BYTES: usize = 8 * 1024;

/// Trailers, in the form that follows the last chunk.
pub(super) const TRAILERS: &[u8] = b"T: u\r\n\r\n";
pub(super) const LAST_CHUNK: &[u8] = b"0\r\nT: u\r\n\r\n";

/// A body in this encoding.
fn coded(coding: Encoding, body: &[u8]) -> Vec<u8> {
    let mut encoder = Encoder::new(coding, 3, Some(body.len() as u64)).expect("memory");
    let mut out = Vec::new();
    encoder.put(body, &mut out).expect("memory");
    encoder.finish(&mut out).expect("memory");
    out
}

/// An action of a client.
pub(super) enum Act {
    Bytes(Vec<u8>),
    /// Ends its side, or its stream.
    End,
    Reset,
}

pub(super) struct Client {
    pub(super) is_h2: bool,
    /// Its actions and their times, in order.
    pub(super) acts: VecDeque<(u64, Act)>,
    /// Bytes from it that have arrived and were not read.
    pub(super) arrived: Vec<u8>,
    pub(super) has_ended: bool,
    pub(super) was_reset: bool,
    /// The numbers of its requests, in order.
    pub(super) requests: Vec<usize>,
    /// The head of its request over HTTP/2.
    pub(super) head: Option<(RequestHead, Vec<u8>)>,
    /// The trailers of its request over HTTP/2.
    pub(super) trailers: Option<Vec<u8>>,
    /// How many bytes it takes now.
    pub(super) room: usize,
    /// How many bytes it reads in a hundred milliseconds.
    rate: usize,
    next_read_us: u64,
    reads_at_us: Option<u64>,
    pub(super) received: Vec<u8>,
    /// Over HTTP/2: the status of the final response, and the end of the stream.
    pub(super) status: Option<u16>,
    pub(super) number: Option<usize>,
    pub(super) encoding: Option<String>,
    pub(super) is_complete: bool,
    pub(super) got_trailers: bool,
    /// Set when the connection has ended, and says how.
    pub(super) gone: Option<Disposition>,
    // The proxy's side.
    pub(super) exchange: Option<Box<Exchange>>,
    /// The listener as it was when the exchange began.
    pub(super) view: Option<Rc<ListenerView>>,
    /// What it had received by then, and whether its connection was already going to end.
    pub(super) received_before: usize,
    pub(super) was_ending: bool,
    /// When the last try began, in milliseconds.
    pub(super) try_ms: u64,
    /// When the first one of the request began.
    pub(super) first_try_ms: Option<u64>,
    /// When its response began, if the bandwidth of that is limited, and until when it waits for that.
    pub(super) paced_from_us: Option<u64>,
    pub(super) paced_until_us: u64,
    /// All deadlines have passed.
    pub(super) has_elapsed: bool,
    pub(super) input: Buffer,
    pub(super) upstream: Option<Upstream>,
    pub(super) connecting: Option<Connecting>,
    /// When the check of its password is over, and the result.
    pub(super) checked: Option<(u64, Result<bool, Reason>)>,
    /// When the service that is asked answers, and what.
    pub(super) answer: Option<(u64, Result<Reply, Reason>)>,
    /// The bytes in the kernel's pipes: of the request, and of the response.
    pub(super) pipes: [Vec<u8>; 2],
    /// When it stops waiting for room at an endpoint.
    pub(super) waits_until_us: Option<u64>,
    pub(super) served: u64,
    pub(super) armed_ms: Option<u64>,
}

impl World {
    pub(super) fn add_client(&mut self) {
        let index = self.clients.len();
        let is_h2 = self.rng.one_in(2);
        let rate = self.rng.pick(&[0, 100, 5_000, 1_000_000, 1_000_000, 1_000_000]);
        let mut client = Client {
            is_h2,
            acts: VecDeque::new(),
            arrived: Vec::new(),
            has_ended: false,
            was_reset: false,
            requests: Vec::new(),
            head: None,
            trailers: None,
            room: ROOM_BYTES,
            rate,
            next_read_us: self.now_us,
            reads_at_us: None,
            received: Vec::new(),
            status: None,
            number: None,
            encoding: None,
            is_complete: false,
            got_trailers: false,
            gone: None,
            exchange: None,
            view: None,
            received_before: 0,
            was_ending: false,
            try_ms: 0,
            first_try_ms: None,
            paced_from_us: None,
            paced_until_us: 0,
            has_elapsed: false,
            input: Buffer::none(),
            upstream: None,
            connecting: None,
            checked: None,
            answer: None,
            pipes: [Vec::new(), Vec::new()],
            waits_until_us: None,
            served: 0,
            armed_ms: None,
        };
        let mut at_us = self.now_us + self.rng.below(200_000);
        let count = if is_h2 { 1 } else { 1 + self.rng.below(3) };
        for _ in 0..count {
            at_us = self.add_request(&mut client, at_us);
            at_us += if self.rng.one_in(3) { 0 } else { self.rng.below(2_000_000) };
        }
        match self.rng.below(10) {
            0 => client.acts.push_back((at_us, Act::Reset)),
            1 => {
                // In the middle of something.
                let cut = self.rng.below(client.acts.len() as u64 + 1) as usize;
                client.acts.truncate(cut);
                let at_us = client.acts.back().map_or(at_us, |(at_us, _)| *at_us + self.rng.below(3_000));
                client.acts.push_back((at_us, Act::Reset));
            }
            2 => {
                let cut = self.rng.below(client.acts.len() as u64 + 1) as usize;
                client.acts.truncate(cut);
            }
            3 if !is_h2 => client.acts.push_back((at_us, Act::End)),
            _ => {}
        }
        for (at_us, _) in &client.acts {
            let at_us = *at_us;
            self.numbers += 1;
            self.events.push(std::cmp::Reverse((at_us, self.numbers, Event::Client(index))));
        }
        self.clients.push(client);
    }

    #[expect(clippy::too_many_lines, reason = "one request, from its line to its last piece")]
    fn add_request(&mut self, client: &mut Client, mut at_us: u64) -> u64 {
        let number = self.asked.len();
        let method = self.rng.pick(&["GET", "GET", "POST", "POST", "PUT", "HEAD"]);
        let has_body = matches!(method, "POST" | "PUT");
        let length = if has_body { self.rng.pick(&[0, 1, 500, 3_000, 20_000, 70_000]) } else { 0 };
        let body = content(number, length);
        let decompresses = self.request_body.as_ref().is_some_and(|rules| rules.decompression.is_some());
        let coding = (decompresses && has_body && self.rng.one_in(2)).then(|| self.rng.pick(&Encoding::ALL));
        let mut sent = coding.map_or_else(|| body.clone(), |coding| coded(coding, &body));
        // What stands at the end is needed: a check sum, or the mark of the last block.
        let is_broken = coding.is_some() && sent.len() > 1 && self.rng.one_in(5);
        sent.truncate(sent.len() - usize::from(is_broken));
        let length = sent.len();
        let is_chunked = has_body && self.rng.one_in(2);
        let is_http10 = !is_chunked && !client.is_h2 && self.rng.one_in(8);
        let has_trailers = is_chunked && self.rng.one_in(3);
        let version = if is_http10 { "1.0" } else { "1.1" };
        let mut text = format!("{method} /{number} HTTP/{version}\r\nHost: a\r\n");
        // `joe:password`, `joe:letmein`, nothing; or a token that is right or wrong.
        let login = self.rng.pick(&["am9lOnBhc3N3b3Jk", "am9lOnBhc3N3b3Jk", "am9lOmxldG1laW4=", ""]);
        if !login.is_empty() {
            let credentials = match self.demands {
                Demands::Token => format!("Bearer {}", fixture::token(login.ends_with("3Jk"))),
                Demands::Nothing | Demands::Password => format!("Basic {login}"),
            };
            text += &format!("Authorization: {credentials}\r\nX-User: root\r\n");
        }
        let accepts = self.rng.pick(&["", "", "gzip", "br", "zstd", "gzip;q=0.5, zstd", "*;q=0"]);
        if !accepts.is_empty() {
            text += &format!("Accept-Encoding: {accepts}\r\n");
        }
        if self.external_auth.is_some() {
            text += "X-Service: forged\r\n";
        }
        if is_http10 && self.rng.one_in(2) {
            text += "Connection: keep-alive\r\n";
        }
        if let Some(coding) = coding {
            text += &format!("Content-Encoding: {}\r\n", coding.name());
        }
        if has_body && !client.is_h2 {
            text += &if is_chunked {
                "Transfer-Encoding: chunked\r\n".into()
            } else {
                format!("Content-Length: {length}\r\n")
            };
        }
        text += "\r\n";
        let bytes = (text.len() + length) as u64;
        let mut pieces: Vec<Vec<u8>> = Vec::new();
        if client.is_h2 {
            let mut head = RequestHead::default();
            assert_eq!(h1::parse_request(text.as_bytes(), 100, &mut head), Ok(Parsed::Complete(text.len())));
            head.version = Version::Http2;
            head.body = match has_body {
                false => Body::None,
                true if is_chunked => Body::Chunked,
                true => Body::Length(length as u64),
            };
            client.head = Some((head, text.into_bytes()));
            pieces.push(Vec::new());
        } else {
            let cut = if self.rng.one_in(6) { self.rng.below(text.len() as u64) as usize } else { 0 };
            pieces.extend([&text.as_bytes()[..cut], &text.as_bytes()[cut..]].map(<[u8]>::to_vec));
        }
        let step = self.rng.pick(&[100.max(length / 16), 4_000, 100_000]);
        pieces.extend(sent.chunks(step).map(|piece| framed(piece, is_chunked && !client.is_h2)));
        if is_chunked && !client.is_h2 {
            pieces.push(if has_trailers { LAST_CHUNK.to_vec() } else { h1::LAST_CHUNK.to_vec() });
        }
        client.trailers = (has_trailers && client.is_h2).then(|| TRAILERS.to_vec());
        for piece in pieces {
            if self.rng.one_in(4) {
                at_us += self.rng.below(30_000);
            }
            client.acts.push_back((at_us, Act::Bytes(piece)));
        }
        if client.is_h2 && has_body {
            client.acts.push_back((at_us, Act::End));
        }
        client.requests.push(number);
        self.asked.push(SimRequest {
            is_idempotent: method != "POST",
            is_head: method == "HEAD",
            may_pass: false,
            questions: 0,
            is_granted: false,
            is_decided: false,
            is_within_limit: false,
            limit_questions: 0,
            is_from_joe: login.ends_with("3Jk"),
            is_http10,
            body,
            is_broken,
            has_trailers,
            accepts,
            bytes,
            executions: 0,
            tries: 0,
            error_tries: 0,
        });
        at_us
    }

    /// Performs the due actions of a client.
    pub(super) fn client_turn(&mut self, index: usize) {
        let now_us = self.now_us;
        let client = &mut self.clients[index];
        while client.acts.front().is_some_and(|(at_us, _)| *at_us <= now_us) {
            match client.acts.pop_front() {
                Some((_, Act::Bytes(bytes))) => client.arrived.extend_from_slice(&bytes),
                Some((_, Act::End)) => client.has_ended = true,
                Some((_, Act::Reset)) => {
                    client.was_reset = true;
                    client.arrived.clear();
                    client.acts.clear();
                }
                None => {}
            }
        }
        if client.room < ROOM_BYTES && client.rate > 0 && now_us >= client.next_read_us {
            client.room = (client.room + client.rate).min(ROOM_BYTES);
            client.next_read_us = now_us + 100_000;
        }
        let is_reading = client.rate > 0;
        self.drive(index);
        let client = &self.clients[index];
        if client.room < ROOM_BYTES && is_reading && client.exchange.is_some() {
            let at_us = client.next_read_us.max(now_us + 1);
            if client.reads_at_us != Some(at_us) {
                self.clients[index].reads_at_us = Some(at_us);
                self.at(at_us, Event::Client(index));
            }
        }
    }
}

impl Client {
    /// Writes to it, and returns how many bytes it took.
    pub(super) fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.was_reset {
            return Err(std::io::ErrorKind::ConnectionReset.into());
        }
        let count = bytes.len().min(self.room);
        self.room -= count;
        self.received.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    /// Checks that it got what an endpoint sent for it, or a response made by the proxy, and that an incomplete response is recognisable.
    /// `may_pass`: also a response that the route intercepts.
    pub(super) fn check(&self, seed: u64, asked: &[SimRequest], answered: &[SimResponse], may_pass: bool) {
        let is_right = |number: usize| may_pass || !answered[number].is_intercepted;
        if self.is_h2 {
            let Some(request) = self.requests.first() else { return };
            if let Some(number) = self.number {
                assert!(is_right(number), "seed {seed}: response {number} was to be replaced");
                self.check_body(
                    seed,
                    (*request, &asked[*request]),
                    &answered[number],
                    &self.received,
                    self.encoding.as_deref(),
                    self.is_complete,
                );
                let has_trailers = answered[number].has_trailers;
                assert!(
                    !self.is_complete || self.got_trailers == has_trailers,
                    "seed {seed}: trailers: {has_trailers}"
                );
            }
            return;
        }
        let mut rest = &self.received[..];
        for request in self.requests.iter().take(self.served as usize) {
            let asked = &asked[*request];
            let method = if asked.is_head { Method::Head } else { Method::Get };
            let mut head = ResponseHead::default();
            let mut interims = 0;
            let head_bytes = loop {
                match h1::parse_response(rest, 100, method, &mut head) {
                    Ok(Parsed::Complete(length)) if matches!(head.status, 100..=199) => {
                        rest = &rest[length..];
                        interims += 1;
                        assert!(interims <= 16, "seed {seed}: an endless series of interim responses");
                        assert!(!asked.is_http10, "seed {seed}: an interim response for HTTP/1.0");
                    }
                    Ok(Parsed::Complete(length)) => break length,
                    _ if self.gone.is_some() || self.was_reset => return,
                    other => panic!("seed {seed}: request {request} has no response: {other:?}, {:?}", self.gone),
                }
            };
            let number = head.fields.iter().find(|field| field.name.get(rest).eq_ignore_ascii_case(b"x-number"));
            let number: Option<usize> = number
                .map(|field| std::str::from_utf8(field.value.get(rest)).expect("text").parse().expect("a number"));
            let encoding = encoding(&head, rest);
            let is_reset = matches!(self.gone, Some(Disposition::Reset(_))) || self.was_reset;
            let (body, used, is_complete) = body(&head, &rest[head_bytes..], self.gone.is_some() && !is_reset);
            if let Some(number) = number {
                assert!(is_right(number), "seed {seed}: response {number} was to be replaced");
                if is_complete && head.body == Body::Chunked && answered[number].is_whole {
                    let got_trailers = rest[head_bytes..head_bytes + used].ends_with(LAST_CHUNK);
                    assert_eq!(got_trailers, answered[number].has_trailers, "seed {seed}: trailers");
                }
                self.check_body(seed, (*request, asked), &answered[number], &body, encoding.as_deref(), is_complete);
            } else {
                assert!(
                    is_complete || is_reset || self.gone.is_none(),
                    "seed {seed}: half a response to request {request}"
                );
            }
            if !is_complete {
                return;
            }
            rest = &rest[head_bytes + used..];
        }
    }

    /// What it can read of the body of a compressed response that is on its way; `None` if the response is not compressed.
    pub(super) fn readable(&self, request: &SimRequest) -> Option<usize> {
        if self.is_h2 {
            return Some(testing::decoded(known(self.encoding.as_deref()?)?, &self.received).0.len());
        }
        let mut rest = self.received.get(self.received_before..)?;
        let method = if request.is_head { Method::Head } else { Method::Get };
        let mut head = ResponseHead::default();
        loop {
            let Ok(Parsed::Complete(length)) = h1::parse_response(rest, 100, method, &mut head) else { return None };
            if head.status >= 200 {
                let encoding = known(&encoding(&head, rest)?)?;
                return Some(testing::decoded(encoding, &body(&head, &rest[length..], false).0).0.len());
            }
            rest = &rest[length..];
        }
    }

    fn check_body(
        &self,
        seed: u64,
        (number, asked): (usize, &SimRequest),
        answered: &SimResponse,
        got: &[u8],
        encoding: Option<&str>,
        is_complete: bool,
    ) {
        assert_eq!(answered.asked, number, "seed {seed}: the response to another request");
        let decoded: Vec<u8>;
        let mut is_complete = is_complete;
        let got = match encoding.and_then(known) {
            None => got,
            Some(encoding) => {
                let is_accepted = asked.accepts.contains(encoding.name());
                assert!(
                    is_accepted && answered.may_be_coded && !asked.is_head,
                    "seed {seed}: {encoding:?} is not wanted"
                );
                let is_whole;
                (decoded, is_whole) = testing::decoded(encoding, got);
                assert!(!is_complete || is_whole, "seed {seed}: a body in {encoding:?} has no end");
                // It ends before its framing does.
                is_complete = is_whole;
                &decoded
            }
        };
        let expect: &[u8] = if asked.is_head { &[] } else { &answered.body };
        assert!(expect.starts_with(got), "seed {seed}: {} bytes that were never sent", got.len());
        if is_complete {
            assert!(got.len() == expect.len(), "seed {seed}: {} of {} bytes look complete", got.len(), expect.len());
            assert!(
                answered.is_whole || asked.is_head || expect.is_empty(),
                "seed {seed}: a response that was cut off looks complete"
            );
        }
    }
}

/// What a head says about the encoding of its body.
fn encoding(head: &ResponseHead, bytes: &[u8]) -> Option<String> {
    let is_it = |field: &&wire::message::Field| field.name.get(bytes).eq_ignore_ascii_case(b"content-encoding");
    let all: Vec<&[u8]> = head.fields.iter().filter(is_it).map(|field| field.value.get(bytes)).collect();
    (!all.is_empty()).then(|| String::from_utf8(all.join(&b", "[..])).expect("text"))
}

/// An encoding of ours.
fn known(name: &str) -> Option<Encoding> {
    Encoding::ALL.into_iter().find(|known| known.name() == name)
}

/// A piece of a body, as a chunk or as it is.
fn framed(piece: &[u8], is_chunk: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    if is_chunk {
        h1::chunk_start(&mut bytes, piece.len());
        bytes.extend_from_slice(piece);
        h1::chunk_end(&mut bytes);
    } else {
        bytes.extend_from_slice(piece);
    }
    bytes
}

/// The body after a head, how many bytes it takes, and whether it is complete.
fn body(head: &ResponseHead, bytes: &[u8], has_ended: bool) -> (Vec<u8>, usize, bool) {
    match head.body {
        Body::None => (Vec::new(), 0, true),
        Body::Length(length) => {
            let length = (length as usize).min(bytes.len());
            (bytes[..length].to_vec(), length, Some(length as u64) == head.content_length)
        }
        Body::UntilClose => (bytes.to_vec(), bytes.len(), has_ended),
        Body::Chunked => {
            let (mut decoder, mut at, mut body) = (ChunkedDecoder::default(), 0, Vec::new());
            loop {
                match decoder.decode(bytes, at).expect("good chunks") {
                    Decoded::More => return (body, bytes.len(), false),
                    Decoded::Data(range) => {
                        at = range.end;
                        body.extend_from_slice(&bytes[range]);
                    }
                    Decoded::End(end) => return (body, end, true),
                }
            }
        }
    }
}
