//! Raw HTTP/2: a client that sends any bytes as frames, and reads what comes back.
//!
//! Fields are sent as literals without Huffman codes and without the table, so that the bytes sent are those that the test states. Only
//! received bytes are decoded, by the decoder of another project.
#![allow(dead_code, reason = "each test binary compiles all of it and uses its part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use httlib_hpack::Decoder;
use testkit::PATIENCE;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The largest payload of a frame.
pub const FRAME_BYTES_MAX: usize = 16_384;

pub mod kind {
    //! Types of frames (RFC 9113 section 6).
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

pub mod flag {
    //! Flags of frames (section 6).
    pub const END_STREAM: u8 = 1;
    pub const ACK: u8 = 1;
    pub const END_HEADERS: u8 = 4;
}

pub mod code {
    //! Error codes (section 7).
    pub const NO_ERROR: u32 = 0;
    pub const PROTOCOL_ERROR: u32 = 1;
    pub const FLOW_CONTROL_ERROR: u32 = 3;
    pub const CANCEL: u32 = 8;
    pub const ENHANCE_YOUR_CALM: u32 = 11;
}

pub mod setting {
    //! Settings (section 6.5.2).
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
}

/// A received frame.
#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// A frame to send.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let [s, t, u, v] = stream.to_be_bytes();
    [&[a, b, c, kind, flags, s, t, u, v], payload].concat()
}

pub fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> = values.iter().flat_map(|(id, value)| setting_bytes(*id, *value)).collect();
    frame(kind::SETTINGS, 0, 0, &payload)
}

fn setting_bytes(id: u16, value: u32) -> [u8; 6] {
    let ([a, b], [c, d, e, f]) = (id.to_be_bytes(), value.to_be_bytes());
    [a, b, c, d, e, f]
}

pub fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

pub fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(kind::RST_STREAM, 0, stream, &code.to_be_bytes())
}

/// A complete header block in one frame.
pub fn headers(stream: u32, end: bool, block: &[u8]) -> Vec<u8> {
    frame(kind::HEADERS, flag::END_HEADERS | if end { flag::END_STREAM } else { 0 }, stream, block)
}

/// Fields as literals that touch no table (RFC 7541 section 6.2.2).
pub fn block(fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        string(&mut block, name);
        string(&mut block, value);
    }
    block
}

/// A length with a prefix of seven bits, and the bytes unchanged (RFC 7541 section 5).
pub fn string(block: &mut Vec<u8>, text: &[u8]) {
    let mut length = text.len();
    if length < 127 {
        block.push(length as u8);
    } else {
        block.push(127);
        length -= 127;
        while length >= 128 {
            block.push((length % 128) as u8 | 128);
            length /= 128;
        }
        block.push(length as u8);
    }
    block.extend_from_slice(text);
}

/// The fields of every request.
pub const GET: [(&[u8], &[u8]); 4] =
    [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a.example"), (b":path", b"/")];

/// The block of a GET with these additional fields.
pub fn get_with(more: &[(&[u8], &[u8])]) -> Vec<u8> {
    block(&[&GET, more].concat())
}

/// A client.
pub struct Client {
    stream: TcpStream,
    decoder: Decoder<'static>,
    /// The id of the next stream.
    pub next: u32,
}

/// A response that was read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Client {
    /// Connects, and sends the client's first bytes.
    pub fn connect(address: SocketAddr, values: &[(u16, u32)]) -> Self {
        let mut client = Self::silent(address);
        client.send(&[PREFACE, &settings(values)].concat());
        client
    }

    /// Connects, and sends nothing.
    pub fn silent(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, decoder: Decoder::default(), next: 1 }
    }

    /// Returns false once the other side is gone. What it sent before can still be read.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Sends the result of `piece` for 0, 1, ... until the other side ends the connection, or `count` pieces were sent.
    pub fn flood(&mut self, count: u32, piece: impl Fn(u32) -> Vec<u8>) {
        // Several pieces per segment, for a flood that is as fast as possible.
        let mut batch = Vec::new();
        for index in 0..count {
            batch.extend_from_slice(&piece(index));
            if batch.len() >= FRAME_BYTES_MAX || index + 1 == count {
                if !self.send(&batch) {
                    return;
                }
                batch.clear();
            }
        }
    }

    /// Opens a stream with this block.
    pub fn open(&mut self, block: &[u8], end: bool) -> u32 {
        let stream = self.next;
        self.next += 2;
        self.send(&headers(stream, end, block));
        stream
    }

    /// The next frame; `None` if the connection is over.
    pub fn frame(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload).ok()?;
        if kind == self::kind::SETTINGS && flags & flag::ACK == 0 {
            self.send(&frame(self::kind::SETTINGS, flag::ACK, 0, &[]));
        }
        Some(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }

    /// Reads to the end of the connection without answering.
    pub fn end(&mut self) -> std::io::Result<usize> {
        self.stream.read_to_end(&mut Vec::new())
    }

    /// Reads to the end of the connection. Returns the code of the last GOAWAY, if there was one.
    pub fn goaway(&mut self) -> Option<u32> {
        let mut code = None;
        while let Some(frame) = self.frame() {
            if frame.kind == kind::GOAWAY {
                code = Some(u32::from_be_bytes(frame.payload[4..8].try_into().unwrap()));
            }
        }
        code
    }

    /// Reads until this stream is reset, and returns the code. Fails on a final answer.
    #[track_caller]
    pub fn reset_of(&mut self, stream: u32) -> u32 {
        loop {
            let frame = self.frame().expect("the connection ended, and the stream was not reset");
            if frame.stream == stream && frame.kind == kind::RST_STREAM {
                return u32::from_be_bytes(frame.payload[..4].try_into().unwrap());
            }
            assert!(frame.stream != stream || frame.kind != kind::HEADERS, "{:?}", self.fields(&frame));
        }
    }

    /// Reads the answer on this stream, and returns both windows for what was received.
    #[track_caller]
    pub fn answer(&mut self, stream: u32) -> Answer {
        let mut answer = Answer { status: 0, body: Vec::new() };
        loop {
            let frame = self.frame().expect("the connection ended before the answer did");
            // Decode every block, because the table belongs to the connection.
            let fields = if frame.kind == kind::HEADERS { self.fields(&frame) } else { Vec::new() };
            if frame.stream != stream {
                continue;
            }
            match frame.kind {
                kind::HEADERS => {
                    if let Some((_, status)) = fields.iter().find(|(name, _)| name == b":status") {
                        answer.status = String::from_utf8_lossy(status).parse().unwrap();
                    }
                }
                kind::DATA => {
                    answer.body.extend_from_slice(&frame.payload);
                    let length = frame.payload.len() as u32;
                    if length > 0 {
                        self.send(&[window_update(0, length), window_update(stream, length)].concat());
                    }
                }
                kind::RST_STREAM => panic!("reset with {:?} after status {}", frame.payload, answer.status),
                _ => continue,
            }
            if matches!(frame.kind, kind::HEADERS | kind::DATA) && frame.flags & flag::END_STREAM != 0 {
                return answer;
            }
        }
    }

    /// A GET and its answer.
    #[track_caller]
    pub fn get(&mut self) -> Answer {
        let stream = self.open(&block(&GET), true);
        self.answer(stream)
    }

    /// The fields of a head. Every head must be decoded in the order of arrival, because the table belongs to the connection.
    pub fn fields(&mut self, frame: &Frame) -> Vec<(Vec<u8>, Vec<u8>)> {
        assert!(frame.flags & flag::END_HEADERS != 0, "heads of the balancer fit into one frame here");
        let mut fields = Vec::new();
        self.decoder.decode(&mut frame.payload.clone(), &mut fields).unwrap();
        fields.into_iter().map(|(name, value, _)| (name, value)).collect()
    }
}
