//! HTTP/2 connections and their streams, as both sides use them.
//!
//! One task reads and writes the socket of a connection (`socket_io`). It shares what `wire::h2` knows of the connection with the exchanges on
//! its streams (`connection`). The task of a client's connection also polls those exchanges. An exchange holds a stream by a [`Handle`], which
//! takes the place of an HTTP/1 connection in [`Stream`](crate::stream::Stream), so an exchange does not know which version either side speaks.
//! Everything lives on one worker.
//!
//! | what | file |
//! |---|---|
//! | what the task and the streams share | `connection` |
//! | data that a stream has received, and the wakers that wait for it | `stream_state` |
//! | one stream, as its exchange holds it | `handle` |
//! | a header list to be sent | `header_list` |
//! | the socket | `socket_io` |
//! | when to send a PING, and when to give up | `liveness` |
//! | how much endpoints may send ahead | `window` |
//!
//! A client's connection is served by `downstream::h2_session`. Those to endpoints are chosen by `upstream::mux` and made by
//! `upstream::h2_session`.
//!
//! **Who writes when.** Exchanges put frames into the output of a connection. The task of a client's connection writes the output once it has
//! polled all exchanges that were ready. The task of an endpoint's connection is woken once, and runs after all tasks that are ready by then.
//! So one write takes the frames of all of them.
//!
//! **Where data waits.** DATA that no exchange has taken yet waits in the [`StreamState`](stream_state::StreamState), up to the stream's window. It
//! is released to the sender once the other side has it. A client can stall its own stream to an endpoint, but not the others on that
//! connection, because the connection's window is the sum of its streams' windows.

pub(crate) mod connection;
mod handle;
mod header_list;
pub(crate) mod liveness;
pub(crate) mod socket_io;
mod stream_state;
mod window;

pub(crate) use connection::StreamEnd;
pub(crate) use handle::{Handle, code};
pub(crate) use header_list::HeaderList;

use telemetry::Reason;
use wire::h2::{self, Limits};

/// DATA of one stream that may be on its way to an exchange, in either direction. A stream transfers at most this much per round trip.
/// Streams to endpoints get less if there are many (`window`).
const STREAM_WINDOW_BYTES: u32 = 128 * 1024;

/// The same for all streams of a client's connection together: how much one client can make this side hold for endpoints that do not read.
const CLIENT_WINDOW_BYTES: u32 = 2 * 1024 * 1024;

/// The same where the bandwidth of clients is limited: all windows of the 100 streams that a connection has by default, and some more. Streams
/// then wait with full windows in the normal course, and those of one client must not keep those of another, behind the same proxy, from sending.
const PACED_CLIENT_WINDOW_BYTES_MAX: u32 = 16 * 1024 * 1024;

/// The limits of a client's connection. `is_paced`: requests may have to wait for the bandwidth of their client.
pub(crate) fn server_limits(limits: &model::ListenerLimits, is_paced: bool) -> Limits {
    let of_streams = STREAM_WINDOW_BYTES.saturating_mul(limits.streams_per_connection_max);
    Limits {
        streams_max: limits.streams_per_connection_max,
        stream_window_bytes: STREAM_WINDOW_BYTES,
        connection_window_bytes: match is_paced {
            true => of_streams.clamp(CLIENT_WINDOW_BYTES, PACED_CLIENT_WINDOW_BYTES_MAX),
            false => CLIENT_WINDOW_BYTES,
        },
        header_list_bytes_max: u32::try_from(limits.header_bytes_max).unwrap_or(u32::MAX),
        fields_max: u32::try_from(limits.header_count_max).unwrap_or(u32::MAX),
        ..Limits::default()
    }
}

/// The limits of a connection to an endpoint.
pub(crate) fn client_limits(limits: &model::ClusterLimits) -> Limits {
    let streams_max = limits.streams_per_connection_max;
    Limits {
        streams_max,
        stream_window_bytes: STREAM_WINDOW_BYTES,
        // A client that does not read stalls its own stream, but never those of others on the connection.
        connection_window_bytes: STREAM_WINDOW_BYTES.saturating_mul(streams_max),
        header_list_bytes_max: wire::RESPONSE_HEAD_BYTES_MAX as u32,
        fields_max: wire::h1::FIELDS_MAX as u32,
        ..Limits::default()
    }
}

/// The reason under which a client's violation of the protocol is counted.
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
