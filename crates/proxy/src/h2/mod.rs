//! Connections of HTTP/2, on both sides.
//!
//! A connection has one task, which alone reads and writes its socket (`driver`), and shares with the exchanges on its streams what
//! `wire::h2` keeps of it (`connection`). The task of a client's connection runs the exchanges, too (`exchanges`). An exchange holds a stream by a
//! [`Handle`], which stands in [`Stream`](crate::stream::Stream) where a connection of HTTP/1 would: so an exchange does not know what is
//! spoken on its other side. All of it lives on one worker.
//!
//! | what | file |
//! |---|---|
//! | a head on its way out | `block` |
//! | what task and streams share | `connection`, `place` |
//! | one stream, as its exchange holds it | `handle` |
//! | the socket | `driver` |
//! | whether the other side still lives | `liveness` |
//! | the exchanges on the streams | `exchanges` |
//! | how much endpoints may send ahead | `window` |
//! | a client's connection, from preface to GOAWAY | `serve` |
//! | the connections to an endpoint | `mux`, `dial` |
//!
//! **Who writes when.** Exchanges put frames into the output of a connection. What they say to their clients is written when the task that
//! runs them has run all that were ready; what they say to an endpoint, by the task of that connection, which they wake once and which
//! stands behind all that are ready by then. So one write takes the frames of all of them.
//!
//! **What waits where.** DATA that no exchange has taken yet waits in the place of its stream, up to the stream's window; it is released to
//! the sender when the other side has it. A stream towards an endpoint can be stalled by its client without stopping the others on the
//! connection: the connection's window is the sum of its streams'.

mod block;
mod connection;
mod dial;
mod driver;
mod exchanges;
mod handle;
mod liveness;
mod mux;
mod place;
mod serve;
mod window;

pub(crate) use block::Block;
pub(crate) use connection::Cut;
pub(crate) use handle::{Handle, code};
pub(crate) use mux::Mux;
pub(crate) use serve::serve;

use telemetry::Reason;
use wire::h2::{self, Limits};

/// DATA of one stream that may be on its way to an exchange, in either direction. A stream moves no more than this in a round trip. Streams to
/// endpoints get less where they are many (`window`).
const STREAM_WINDOW_BYTES: u32 = 128 * 1024;

/// Likewise for all streams of a client's connection together: what one client can make this side hold for endpoints that do not read.
const CLIENT_WINDOW_BYTES: u32 = 2 * 1024 * 1024;

/// The limits of a client's connection.
fn server_limits(limits: &model::ListenerLimits) -> Limits {
    Limits {
        streams_max: limits.streams_per_connection_max,
        stream_window_bytes: STREAM_WINDOW_BYTES,
        connection_window_bytes: CLIENT_WINDOW_BYTES,
        header_list_bytes_max: u32::try_from(limits.header_bytes_max).unwrap_or(u32::MAX),
        fields_max: u32::try_from(limits.header_count_max).unwrap_or(u32::MAX),
        ..Limits::default()
    }
}

/// The limits of a connection to an endpoint.
fn client_limits(limits: &model::ClusterLimits) -> Limits {
    let streams_max = limits.streams_per_connection_max;
    Limits {
        streams_max,
        stream_window_bytes: STREAM_WINDOW_BYTES,
        // One client that does not read stalls its own stream, never those of others that share the connection.
        connection_window_bytes: STREAM_WINDOW_BYTES.saturating_mul(streams_max),
        header_list_bytes_max: crate::receive::RESPONSE_HEAD_BYTES_MAX as u32,
        fields_max: wire::h1::FIELDS_MAX as u32,
        ..Limits::default()
    }
}

/// As what a breach of the protocol by a client is counted.
pub(crate) fn reason(reason: h2::Reason) -> Reason {
    match reason {
        h2::Reason::Preface => Reason::H2Preface,
        h2::Reason::FrameSize => Reason::H2FrameSize,
        h2::Reason::StreamId => Reason::H2StreamId,
        h2::Reason::StreamClosed => Reason::H2StreamClosed,
        h2::Reason::Padding => Reason::H2Padding,
        h2::Reason::Continuation => Reason::H2Continuation,
        h2::Reason::Push => Reason::H2Push,
        h2::Reason::Setting => Reason::H2Setting,
        h2::Reason::Priority => Reason::H2Priority,
        h2::Reason::WindowUpdate => Reason::H2WindowUpdate,
        h2::Reason::FlowControl => Reason::H2FlowControl,
        h2::Reason::Compression => Reason::H2Compression,
        h2::Reason::Field => Reason::H2Field,
        h2::Reason::ConnectionField => Reason::H2ConnectionField,
        h2::Reason::PseudoHeader => Reason::H2PseudoHeader,
        h2::Reason::Authority => Reason::H2Authority,
        h2::Reason::ContentLength => Reason::H2ContentLength,
        h2::Reason::Response => Reason::H2Response,
        h2::Reason::Trailers => Reason::H2Trailers,
        h2::Reason::HeadTooLarge => Reason::H2HeadTooLarge,
        h2::Reason::HeadFlood => Reason::H2HeadFlood,
        h2::Reason::StreamLimit => Reason::H2StreamLimit,
        h2::Reason::Glitches => Reason::H2Glitches,
        h2::Reason::OutputFlood => Reason::H2OutputFlood,
        h2::Reason::SettingsTimeout => Reason::H2SettingsTimeout,
    }
}

#[cfg(test)]
mod tests;
