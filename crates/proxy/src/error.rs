//! Errors of an exchange or a relay, with the side that caused them.

use std::io;

use telemetry::Reason;

use crate::h2::{self, StreamEnd};
use crate::tls;

/// One failure. Its side and reason decide the status, the log entry, and whether the request may be sent again.
#[derive(Debug)]
pub(crate) struct Error {
    pub(crate) reason: Reason,
    pub(crate) side: Side,
    /// The error of the operating system, if there is one.
    pub(crate) source: Option<io::Error>,
    /// The number of seconds after which the client may try again.
    pub(crate) retry_after_s: Option<u64>,
}

/// Where the failure happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// At the client, which caused it.
    Downstream,
    /// At the endpoint. Another one may succeed.
    Upstream,
    /// In this process: a limit, a missing route, a drain.
    Internal,
}

impl Error {
    pub(crate) fn downstream(reason: Reason) -> Self {
        Self { reason, side: Side::Downstream, source: None, retry_after_s: None }
    }

    pub(crate) fn upstream(reason: Reason) -> Self {
        Self { reason, side: Side::Upstream, source: None, retry_after_s: None }
    }

    pub(crate) fn internal(reason: Reason) -> Self {
        Self { reason, side: Side::Internal, source: None, retry_after_s: None }
    }

    pub(crate) fn because(mut self, source: io::Error) -> Self {
        self.source = Some(source);
        self
    }

    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// Reading from or writing to the client failed.
    pub(crate) fn client_io(source: io::Error) -> Self {
        let reason = match StreamEnd::within(&source) {
            Some(StreamEnd::Broken(reason)) => h2::reason(reason),
            _ => Reason::ClientReset,
        };
        Self::downstream(reason).because(source)
    }

    /// Reading from or writing to an endpoint failed.
    pub(crate) fn endpoint_io(source: io::Error) -> Self {
        let reason = match StreamEnd::within(&source) {
            Some(StreamEnd::Refused) => Reason::UpstreamRefused,
            Some(StreamEnd::Broken(_)) => Reason::UpstreamH2,
            Some(StreamEnd::Gone) => Reason::UpstreamEof,
            Some(StreamEnd::Silent) => Reason::UpstreamPingTimeout,
            Some(StreamEnd::Reset(_) | StreamEnd::Lost) => Reason::UpstreamReset,
            // In TLS 1.3, an endpoint that requires a client certificate reports this only after the handshake.
            None => tls::reason(&source).unwrap_or(Reason::UpstreamReset),
        };
        Self::upstream(reason).because(source)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.reason.name())?;
        self.source.as_ref().map_or(Ok(()), |source| write!(f, ": {source}"))
    }
}

impl std::error::Error for Error {}
