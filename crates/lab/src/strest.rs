//! The messages of strest-grpc (`strest.Responder`), and gRPC's framing of them, for the origin and the load.
//!
//! It converts between bytes and messages. The h2 crate does HTTP/2.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

/// The path of unary calls.
pub(crate) const GET: &str = "/strest.Responder/Get";

/// The path of streaming calls: one specification, any number of replies.
pub(crate) const STREAMING_GET: &str = "/strest.Responder/StreamingGet";

/// Bytes before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// The size limit of a message in bytes, gRPC's usual limit.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// The request of a unary call.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseSpec {
    /// Bytes of the reply's body.
    #[prost(int32, tag = "1")]
    pub length: i32,
    /// The delay before it in ms.
    #[prost(int64, tag = "2")]
    pub latency: i64,
    /// The share of calls that should fail, 0 to 1.
    #[prost(float, tag = "3")]
    pub error_rate: f32,
}

/// The request of a streaming call. The keys of the maps are percentiles times ten.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StreamingResponseSpec {
    /// Replies.
    #[prost(int32, tag = "1")]
    pub count: i32,
    /// The delay before each reply in ms.
    #[prost(btree_map = "int32, int64", tag = "2")]
    pub latency_percentiles: BTreeMap<i32, i64>,
    /// The size of each reply in bytes.
    #[prost(btree_map = "int32, int64", tag = "3")]
    pub length_percentiles: BTreeMap<i32, i64>,
}

/// A reply.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseReply {
    /// A text of the requested length.
    #[prost(string, tag = "1")]
    pub body: String,
    /// When the previous one was sent, in ns since 1970; 0 in a unary call.
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
    // The buffer grows, so there is always room.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}

/// Collects the messages of a stream from pieces of any size.
#[derive(Debug, Default)]
pub(crate) struct Deframer {
    bytes: BytesMut,
}

/// Why a stream cannot be read as messages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BadFrame {
    /// The message is compressed, which was not negotiated.
    Compressed,
    /// Over [`MESSAGE_BYTES_MAX`].
    TooLong,
    /// The bytes do not decode as the expected message.
    NotThatMessage,
}

impl Deframer {
    /// Adds a piece.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
    }

    /// The next message, if it is complete.
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
        // From the protocol's definition: field 1, varint 18; field 2, varint 200.
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
