//! What a client is told when no endpoint's answer can be had: one place that turns reasons into statuses.

use telemetry::Reason;
use wire::h1;
use wire::message::{Method, Version};

use crate::error::Error;

/// The status for a reason; `None`: the connection is closed without one, since there is nobody to tell or nothing was asked.
pub(crate) fn status(error: &Error) -> Option<u16> {
    Some(match error.reason {
        Reason::BadRequestLine | Reason::BadHeader | Reason::BadFraming | Reason::BadHost => 400,
        Reason::BadVersion => 505,
        Reason::MethodNotSupported => 501,
        Reason::HeaderTooLarge | Reason::TooManyHeaders => 431,
        Reason::UriTooLong => 414,
        Reason::BodyTooLarge => 413,
        Reason::HeaderTimeout | Reason::BodyTimeout => 408,
        Reason::ExpectationFailed => 417,
        Reason::NoRoute => 404,
        // RFC 9110 section 15.5.20: the client may try again over a connection of its own.
        Reason::Misdirected => 421,
        // Nobody to ask now; later there may be.
        Reason::ConnectionsFull
        | Reason::NoEndpoint
        | Reason::PendingFull
        | Reason::PendingTimeout
        | Reason::NoLocalResources
        | Reason::Draining => 503,
        // RFC 9110 section 15.6.3: the endpoint, or the way to it, gave no valid answer.
        Reason::ConnectRefused
        | Reason::ConnectFailed
        | Reason::UpstreamTls
        | Reason::UpstreamReset
        | Reason::UpstreamEof
        | Reason::UpstreamBadHead
        | Reason::UpstreamBadFraming
        | Reason::UpstreamHeadTooLarge
        | Reason::RetryBudget => 502,
        // RFC 9110 section 15.6.5: no answer in time.
        Reason::ConnectTimeout | Reason::ResponseTimeout | Reason::RequestTimeout => 504,
        Reason::ClientReset
        | Reason::ClientEof
        | Reason::SlowRead
        | Reason::IdleTimeout
        | Reason::TunnelIdle
        | Reason::BadProxyProtocol
        | Reason::ProxyProtocolTimeout
        | Reason::TlsHandshake
        | Reason::TlsHandshakeTimeout => return None,
        Reason::Internal => 500,
    })
}

/// The standard's phrase for a status that this program makes itself.
pub(crate) fn phrase(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        404 => "Not Found",
        408 => "Request Timeout",
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}

/// Writes a whole response: the status, and the reason as one line of text that names no endpoint and no cluster.
pub(crate) fn write(
    out: &mut Vec<u8>,
    status: u16,
    reason: Reason,
    method: Method,
    keep_alive: bool,
    version: Version,
) {
    let body = format!("{status} {}: {}\n", phrase(status), reason.name());
    h1::status_line(out, Version::Http11, status, phrase(status).as_bytes());
    h1::field(out, b"content-type", b"text/plain; charset=utf-8");
    out.extend_from_slice(b"content-length: ");
    h1::decimal(out, body.len() as u64);
    out.extend_from_slice(b"\r\n");
    match (keep_alive, version) {
        (false, _) => out.extend_from_slice(b"connection: close\r\n"),
        (true, Version::Http10) => out.extend_from_slice(b"connection: keep-alive\r\n"),
        (true, Version::Http11 | Version::Http2) => {}
    }
    out.extend_from_slice(b"\r\n");
    if method != Method::Head {
        out.extend_from_slice(body.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_says_status_and_reason() {
        let mut out = Vec::new();
        write(&mut out, 404, Reason::NoRoute, Method::Get, false, Version::Http11);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "HTTP/1.1 404 Not Found\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 24\r\nconnection: close\r\n\r\n\
             404 Not Found: no_route\n"
        );
    }

    #[test]
    fn every_status_has_its_phrase() {
        for reason in Reason::ALL {
            if let Some(status) = status(&Error::internal(*reason)) {
                assert_ne!(phrase(status), "Error", "{status} of {}", reason.name());
            }
        }
    }
}
