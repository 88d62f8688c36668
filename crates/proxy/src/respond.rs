//! What a client is told when no endpoint's answer can be had: one place that turns reasons into statuses.

use telemetry::Reason;
use wire::h1;
use wire::message::{Method, Version};

use crate::error::Error;
use crate::headers::Downstream;

/// The status for a reason; `None`: the connection is closed without one, since there is nobody to tell or nothing was asked.
pub(crate) fn status(error: &Error) -> Option<u16> {
    Some(match error.reason {
        Reason::BadRequestLine | Reason::BadHeader | Reason::BadFraming | Reason::BadHost => 400,
        Reason::BadVersion => 505,
        Reason::MethodNotSupported => 501,
        Reason::HeaderTooLarge | Reason::TooManyHeaders => 431,
        Reason::UriTooLong => 414,
        Reason::BodyTooLarge => 413,
        // RFC 6585 section 4.
        Reason::RateLimited => 429,
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
        Reason::ConnectTimeout | Reason::ResponseTimeout | Reason::RequestTimeout | Reason::PerTryTimeout => 504,
        Reason::ClientReset
        | Reason::ClientEof
        | Reason::SlowRead
        | Reason::IdleTimeout
        | Reason::TunnelIdle
        | Reason::BadProxyProtocol
        | Reason::ProxyProtocolTimeout
        | Reason::TlsHandshake
        | Reason::TlsHandshakeTimeout
        // A copy has no client.
        | Reason::MirrorTooLarge
        | Reason::MirrorFull
        | Reason::MirrorFailed => return None,
        Reason::Internal => 500,
    })
}

/// The standard's phrase for a status that this program makes itself.
pub(crate) fn phrase(status: u16) -> &'static str {
    match status {
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        404 => "Not Found",
        408 => "Request Timeout",
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
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

/// A response that is made here: the status, and a word as one line of text that names no endpoint and no cluster.
pub(crate) struct Own<'o> {
    pub(crate) status: u16,
    /// The reason, or what it is.
    pub(crate) word: &'static str,
    /// A field that belongs to this status: its name and value.
    pub(crate) field: Option<(&'static str, &'o [u8])>,
}

/// Writes a whole response.
pub(crate) fn write(out: &mut Vec<u8>, own: &Own<'_>, to: &Downstream) {
    let Own { status, word, field } = own;
    let body = format!("{status} {}: {word}\n", phrase(*status));
    h1::status_line(out, Version::Http11, *status, phrase(*status).as_bytes());
    h1::field(out, b"content-type", b"text/plain; charset=utf-8");
    if let Some((name, value)) = field {
        h1::field(out, name.as_bytes(), value);
    }
    out.extend_from_slice(b"content-length: ");
    h1::decimal(out, body.len() as u64);
    out.extend_from_slice(b"\r\n");
    match (to.keep_alive, to.version) {
        (false, _) => out.extend_from_slice(b"connection: close\r\n"),
        (true, Version::Http10) => out.extend_from_slice(b"connection: keep-alive\r\n"),
        (true, Version::Http11 | Version::Http2) => {}
    }
    out.extend_from_slice(b"\r\n");
    if to.method != Method::Head {
        out.extend_from_slice(body.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_says_status_and_reason() {
        let check = |own: Own<'_>, method, keep_alive, expect: &str| {
            let mut out = Vec::new();
            write(&mut out, &own, &Downstream { method, version: Version::Http11, keep_alive });
            assert_eq!(String::from_utf8(out).unwrap(), expect);
        };
        check(
            Own { status: 404, word: Reason::NoRoute.name(), field: None },
            Method::Get,
            false,
            "HTTP/1.1 404 Not Found\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 24\r\nconnection: close\r\n\r\n\
             404 Not Found: no_route\n",
        );
        check(
            Own { status: 308, word: "redirect", field: Some(("location", b"https://a/")) },
            Method::Head,
            true,
            "HTTP/1.1 308 Permanent Redirect\r\ncontent-type: text/plain; charset=utf-8\r\nlocation: https://a/\r\n\
             content-length: 33\r\n\r\n",
        );
    }

    #[test]
    fn every_status_has_its_phrase() {
        for reason in Reason::ALL {
            if let Some(status) = status(&Error::internal(*reason)) {
                assert_ne!(phrase(status), "Error", "{status} of {}", reason.name());
            }
        }
        for status in [301, 302, 303, 307, 308] {
            assert_ne!(phrase(status), "Error", "{status}");
        }
    }
}
