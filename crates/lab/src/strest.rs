//! The messages of strest-grpc (`strest.Responder`), and gRPC's framing of them: for the origin that answers, and the load that asks.
//!
//! Job: bytes to messages and back. Non-job: HTTP/2, which the h2 crate does.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

/// Where unary calls go.
pub(crate) const GET: &str = "/strest.Responder/Get";

/// Where streaming calls go: one specification, any number of replies.
pub(crate) const STREAMING_GET: &str = "/strest.Responder/StreamingGet";

/// Bytes before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// Bytes of one message at most, gRPC's usual limit.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// What a unary call asks for.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseSpec {
    /// Bytes of the reply's body.
    #[prost(int32, tag = "1")]
    pub length: i32,
    /// How long to wait before it, in ms.
    #[prost(int64, tag = "2")]
    pub latency: i64,
    /// Share of calls that are to fail, 0 to 1.
    #[prost(float, tag = "3")]
    pub error_rate: f32,
}

/// What a streaming call asks for. The keys of the maps are percentiles times ten.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StreamingResponseSpec {
    /// Replies.
    #[prost(int32, tag = "1")]
    pub count: i32,
    /// Wait before each, in ms.
    #[prost(btree_map = "int32, int64", tag = "2")]
    pub latency_percentiles: BTreeMap<i32, i64>,
    /// Bytes of each.
    #[prost(btree_map = "int32, int64", tag = "3")]
    pub length_percentiles: BTreeMap<i32, i64>,
}

/// A reply.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseReply {
    /// Of the length that was asked for.
    #[prost(string, tag = "1")]
    pub body: String,
    /// When the one before it was sent, in ns since 1970; 0 in a unary call.
    #[prost(int64, tag = "2")]
    pub last_frame_sent: i64,
    /// When it was sent, in ns since 1970.
    #[prost(int64, tag = "3")]
    pub current_frame_sent: i64,
}

/// A message with its prefix, uncompressed.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // Into a buffer that grows: there is always room.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}

/// Collects the messages of a stream from pieces of any size.
#[derive(Debug, Default)]
pub(crate) struct Deframer {
    bytes: BytesMut,
}

/// Why a stream is none of messages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BadFrame {
    /// Nobody said that it may be compressed.
    Compressed,
    /// Over [`MESSAGE_BYTES_MAX`].
    TooLong,
    /// Its bytes are not the message that they should be.
    NotThatMessage,
}

impl Deframer {
    /// Takes a piece.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
    }

    /// The next message, when all of it has come.
    pub(crate) fn next<M: Message + Default>(&mut self) -> Result<Option<M>, BadFrame> {
        let Some((prefix, rest)) = self.bytes.split_first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
        let [compressed, length @ ..] = *prefix;
        let length = u32::from_be_bytes(length) as usize;
        if compressed != 0 {
            return Err(BadFrame::Compressed);
        }
        if length > MESSAGE_BYTES_MAX {
            return Err(BadFrame::TooLong);
        }
        if rest.len() < length {
            return Ok(None);
        }
        let message = self.bytes.split_to(PREFIX_BYTES + length);
        M::decode(&message[PREFIX_BYTES..]).map(Some).map_err(|_| BadFrame::NotThatMessage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_as_the_protocol_has_them() {
        // By the protocol's definition: field 1, varint 18; field 2, varint 200.
        let spec = ResponseSpec { length: 18, latency: 200, error_rate: 0.0 };
        assert_eq!(framed(&spec).as_ref(), [0, 0, 0, 0, 5, 0x08, 18, 0x10, 0xc8, 0x01]);
        let streaming = StreamingResponseSpec {
            count: 2,
            latency_percentiles: BTreeMap::from([(1_000, 10)]),
            ..Default::default()
        };
        // Field 2 is an entry of its own: key 1, value 2.
        assert_eq!(framed(&streaming)[5..], [0x08, 2, 0x12, 5, 0x08, 0xe8, 0x07, 0x10, 10]);
    }

    #[test]
    fn messages_come_in_pieces_of_any_size() {
        let replies = [18, 0, 300].map(|length| ResponseReply { body: "x".repeat(length), ..Default::default() });
        let bytes: Vec<u8> = replies.iter().flat_map(|reply| framed(reply).to_vec()).collect();
        for size in [1, 7, bytes.len()] {
            let mut deframer = Deframer::default();
            let mut got = Vec::new();
            for piece in bytes.chunks(size) {
                deframer.push(piece);
                while let Some(reply) = deframer.next::<ResponseReply>().unwrap() {
                    got.push(reply);
                }
            }
            assert_eq!(got, replies);
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for (bytes, expect) in [
            (&[1, 0, 0, 0, 0][..], BadFrame::Compressed),
            (&[0, 0xff, 0, 0, 0], BadFrame::TooLong),
            (&[0, 0, 0, 0, 1, 0xff], BadFrame::NotThatMessage),
        ] {
            let mut deframer = Deframer::default();
            deframer.push(bytes);
            assert_eq!(deframer.next::<ResponseSpec>(), Err(expect));
        }
    }
}
