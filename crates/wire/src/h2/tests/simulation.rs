//! A client and a server, both ours, over two pipes, with random bodies, windows, splits, stalls and resets from a seed that is printed.
//!
//! A side that could not send waits for `Writable` and does not try before, so a missing wake-up is a deadlock here. The value of each byte
//! of a body follows from its stream and position. Overrunning a window ends the connection, which is a failure.

use std::collections::{BTreeMap, VecDeque};

use super::*;

/// SplitMix64.
#[derive(Clone)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// `0..bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub(super) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// One stream, as one side's owner sees it.
struct Flow {
    key: StreamKey,
    /// The head was sent.
    is_begun: bool,
    left: usize,
    sent: usize,
    with_trailers: bool,
    is_sent: bool,
    waits: bool,
    received: usize,
    expected: usize,
    is_received: bool,
    /// Received and not released.
    held: u32,
}

struct Side {
    name: &'static str,
    connection: Connection,
    flows: BTreeMap<u32, Flow>,
    /// Bytes on their way to this side.
    pipe: VecDeque<u8>,
    completed: usize,
    resets: usize,
}

fn length_of(seed: u64, id: u32, role: Role) -> usize {
    let mut random = Random(seed ^ u64::from(id) << 8 ^ if role == Role::Server { 1 << 60 } else { 0 });
    match random.below(4) {
        0 => 0,
        1 => random.below(100),
        2 => random.below(20_000),
        _ => random.below(200_000),
    }
}

fn byte_at(id: u32, at: usize) -> u8 {
    (id as usize * 31 + at + (at >> 8)) as u8
}

impl Side {
    fn new(name: &'static str, role: Role, random: &mut Random) -> Self {
        let limits = Limits {
            stream_window_bytes: 65_535 + random.below(100_000) as u32,
            connection_window_bytes: 65_535 + random.below(100_000) as u32,
            output_bytes_max: 300 + random.below(40_000) as u32,
            streams_max: 1 + random.below(20) as u32,
            glitches_max: 1 << 30,
            ..Limits::default()
        };
        let connection = Connection::new(role, limits);
        Self { name, connection, flows: BTreeMap::new(), pipe: VecDeque::new(), completed: 0, resets: 0 }
    }

    fn add(&mut self, seed: u64, key: StreamKey, random: &mut Random) {
        let (role, other) = match self.connection.role {
            Role::Client => (Role::Client, Role::Server),
            Role::Server => (Role::Server, Role::Client),
        };
        let flow = Flow {
            key,
            is_begun: role == Role::Client,
            left: length_of(seed, key.id, role),
            sent: 0,
            with_trailers: random.one_in(2),
            is_sent: false,
            waits: false,
            received: 0,
            expected: length_of(seed, key.id, other),
            is_received: false,
            held: 0,
        };
        assert!(self.flows.insert(key.id, flow).is_none());
    }

    /// Takes bytes from the pipe.
    fn receive(&mut self, seed: u64, bytes_max: usize, random: &mut Random) {
        let count = bytes_max.min(self.pipe.len());
        let bytes: Vec<u8> = self.pipe.drain(..count).collect();
        let mut rest = bytes.as_slice();
        loop {
            let piece = &rest[..rest.len().min(1 + random.below(20_000))];
            let handled =
                self.connection.handle_bytes(0, piece).unwrap_or_else(|error| panic!("{}: {error}", self.name));
            rest = &rest[handled.consumed..];
            let stream_of = |key: StreamKey| key.id;
            match handled.event {
                None if rest.is_empty() => break,
                None | Some(Event::Settings | Event::GoAway { .. } | Event::Pong { .. }) => {}
                Some(Event::Request { stream, end }) => {
                    self.add(seed, stream, random);
                    self.flow(stream).is_received = end;
                }
                Some(Event::Response { stream, end }) => self.flow(stream).is_received = end,
                Some(Event::Trailers { stream }) => self.flow(stream).is_received = true,
                Some(Event::Data { stream, bytes, end }) => {
                    let id = stream_of(stream);
                    let flow = self.flow(stream);
                    for byte in bytes {
                        assert_eq!(*byte, byte_at(id, flow.received), "stream {id} at {}", flow.received);
                        flow.received += 1;
                    }
                    flow.held += bytes.len() as u32;
                    flow.is_received = end;
                }
                Some(Event::Reset { stream, .. }) => {
                    self.flows.remove(&stream.id);
                    self.connection.forget(stream);
                    self.resets += 1;
                }
                Some(Event::Writable { stream }) => {
                    let flow = self.flow(stream);
                    assert!(flow.waits);
                    flow.waits = false;
                }
                // The owner still holds many streams that are over, and there is no slot. The client gets a reset.
                Some(Event::Refused { reason: Reason::StreamLimit }) => {}
                Some(event @ (Event::RequestTooLarge { .. } | Event::Refused { .. })) => {
                    panic!("all heads are small and well formed: {event:?}")
                }
            }
        }
    }

    fn flow(&mut self, key: StreamKey) -> &mut Flow {
        self.flows
            .get_mut(&key.id)
            .unwrap_or_else(|| panic!("{}: got an event for the unknown stream {key:?}", self.name))
    }

    /// Does one thing that an owner does with one stream.
    fn act(&mut self, id: u32, bytes_max: usize, random: &mut Random) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        let release = flow.held.min(bytes_max as u32);
        self.connection.release_capacity(flow.key, release);
        flow.held -= release;
        if !flow.waits && !flow.is_sent {
            Self::send(&mut self.connection, flow, bytes_max, random);
        }
        if flow.is_sent && flow.is_received && flow.held == 0 {
            assert_eq!(flow.received, flow.expected, "{}: stream {id}", self.name);
            self.connection.forget(flow.key);
            self.flows.remove(&id);
            self.completed += 1;
        }
    }

    fn send(connection: &mut Connection, flow: &mut Flow, bytes_max: usize, random: &mut Random) {
        if !flow.is_begun {
            let is_interim = random.one_in(5);
            let end = flow.left == 0 && !flow.with_trailers;
            let status = if is_interim { 103 } else { 200 };
            match connection.send_response(flow.key, status, end, |head| head.field(b"x", b"y")) {
                Ok(()) => (flow.is_begun, flow.is_sent) = (!is_interim, end && !is_interim),
                Err(error) => (flow.waits, _) = (true, assert_eq!(error, SendError::Full)),
            }
        } else if flow.left > 0 || !flow.with_trailers {
            let length = flow.left.min(bytes_max);
            let bytes: Vec<u8> = (0..length).map(|at| byte_at(flow.key.id, flow.sent + at)).collect();
            let end = length == flow.left && !flow.with_trailers;
            let taken = connection.send_data(flow.key, &bytes, end).unwrap();
            flow.sent += taken;
            flow.left -= taken;
            flow.waits = taken < length;
            flow.is_sent = end && taken == length;
        } else {
            match connection.send_trailers(flow.key, |head| head.field(b"grpc-status", b"0")) {
                Ok(()) => flow.is_sent = true,
                Err(error) => (flow.waits, _) = (true, assert_eq!(error, SendError::Full)),
            }
        }
    }
}

fn pump(from: &mut Side, to: &mut Side, bytes_max: usize) {
    let count = from.connection.output().len().min(bytes_max);
    to.pipe.extend(&from.connection.output()[..count]);
    from.connection.consume_output(count);
}

fn run(seed: u64) {
    let mut random = Random(seed);
    let mut client = Side::new("client", Role::Client, &mut random);
    let mut server = Side::new("server", Role::Server, &mut random);
    let requests = 1 + random.below(40);
    let reset_one_in = [usize::MAX, 50, 300][random.below(3)];
    let target = PseudoHeaders { method: b"POST", scheme: b"http", authority: b"a", path: b"/", protocol: None };
    let (mut opened, mut cut) = (0, 0);
    let mut rounds = 0;
    // First at random, then steadily until everything is done.
    while opened < requests || !client.flows.is_empty() || !server.flows.is_empty() {
        rounds += 1;
        assert!(rounds < 100_000, "stuck");
        let is_steady = rounds > 3_000;
        let amount = |random: &mut Random| if is_steady { 100_000 } else { random.below(30_000) };
        if opened < requests && client.connection.can_open() > 0 {
            let key = client.connection.send_request(&target, false, |head| head.field(b"x-n", b"y")).unwrap();
            client.add(seed, key, &mut random);
            opened += 1;
        }
        for side in [&mut client, &mut server] {
            let ids: Vec<u32> = side.flows.keys().copied().collect();
            let chosen: Vec<u32> =
                if is_steady { ids } else { ids.get(random.below(ids.len())).copied().into_iter().collect() };
            for id in chosen {
                if !is_steady && random.one_in(reset_one_in) {
                    let flow = side.flows.remove(&id).unwrap();
                    side.connection.reset(flow.key, ErrorCode::CANCEL);
                    side.connection.forget(flow.key);
                    cut += 1;
                    continue;
                }
                let bytes = amount(&mut random);
                side.act(id, bytes, &mut random);
            }
        }
        let (out, back) = (amount(&mut random), amount(&mut random));
        pump(&mut client, &mut server, out);
        pump(&mut server, &mut client, back);
        let (out, back) = (amount(&mut random), amount(&mut random));
        server.receive(seed, out, &mut random);
        client.receive(seed, back, &mut random);
    }
    for _ in 0..3 {
        pump(&mut client, &mut server, usize::MAX);
        pump(&mut server, &mut client, usize::MAX);
        server.receive(seed, usize::MAX, &mut random);
        client.receive(seed, usize::MAX, &mut random);
    }
    // A stream that was refused for lack of slots was also reset.
    assert!(client.completed + client.resets + cut >= requests, "{} {} {cut}", client.completed, client.resets);
    if cut == 0 && client.resets == 0 {
        assert_eq!((client.completed, server.completed), (requests, requests));
    }
    for side in [&mut client, &mut server] {
        assert_eq!(side.connection.streams_held(), 0);
        assert!(side.connection.memory_bytes() <= side.connection.limits.memory_bytes_max());
        side.connection.windows.assert_whole();
    }
    server.connection.drain();
    for _ in 0..3 {
        pump(&mut server, &mut client, usize::MAX);
        client.receive(seed, usize::MAX, &mut random);
        pump(&mut client, &mut server, usize::MAX);
        server.receive(seed, usize::MAX, &mut random);
    }
    assert!(client.connection.is_done() && server.connection.is_done());
}

#[test]
fn nothing_is_lost_and_nobody_waits_for_ever() {
    for seed in 0..50 {
        let outcome = std::panic::catch_unwind(|| run(seed));
        assert!(outcome.is_ok(), "seed {seed}");
    }
}
