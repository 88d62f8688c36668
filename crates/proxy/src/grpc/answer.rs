//! The response to a gRPC client when there is no usable response of an endpoint: trailers only.
//!
//! A gRPC client that gets an HTTP status has to guess its meaning and which of its policies applies. So its failures are responses with
//! status 200, `grpc-status` and `grpc-message`, as an endpoint would send them ("Trailers-Only").

use telemetry::Reason;

use super::content::Call;
use super::status::Status;
use crate::http::respond;

/// A response that this hop makes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    call: Call,
    /// Percent-encoded.
    message: Vec<u8>,
}

impl Answer {
    /// For a failure. `http_status` is what other clients get; `None` if they get no response.
    pub(crate) fn failure(call: Call, reason: Reason, http_status: Option<u16>) -> Self {
        // As in HTTP, a client gets the reason only if it caused it.
        let message = match respond::word(reason) {
            Some(word) => format!("{word}: {}", reason.meaning()),
            None => http_status.map_or("", respond::phrase).to_owned(),
        };
        Self { status: Status::of_failure(reason, http_status), call, message: encoded(&message) }
    }

    /// For an endpoint whose response is plain HTTP.
    pub(crate) fn not_grpc(call: Call, http_status: u16) -> Self {
        let message = format!("{}: HTTP status {http_status}", Reason::UpstreamNotGrpc.name());
        Self { status: Status::of_http(http_status), call, message: encoded(&message) }
    }

    /// The fields of its head, in addition to the status 200.
    pub(crate) fn head(&self) -> [(&'static [u8], &[u8]); 3] {
        let [status, message] = self.trailers();
        [(b"content-type", self.call.content_type()), status, message]
    }

    /// The fields that end a response whose head was already sent.
    pub(crate) fn trailers(&self) -> [(&'static [u8], &[u8]); 2] {
        [(b"grpc-status", self.status.code()), (b"grpc-message", &self.message)]
    }
}

/// Percent-encodes a message ("gRPC over HTTP2", section "Responses"): everything except printable ASCII, and the `%`.
fn encoded(message: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len());
    for byte in message.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            out.push(byte);
        } else {
            const HEX: &[u8; 16] = b"0123456789ABCDEF";
            out.push(b'%');
            out.extend([byte >> 4, byte & 15].iter().filter_map(|digit| HEX.get(usize::from(*digit))));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(answer: &Answer) -> String {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        answer.head().iter().map(|(name, value)| format!("{}: {}\n", text(name), text(value))).collect()
    }

    #[test]
    fn a_failure_is_trailers_alone() {
        assert_eq!(
            shown(&Answer::failure(Call::Grpc, Reason::NoRoute, Some(404))),
            "content-type: application/grpc\ngrpc-status: 12\n\
             grpc-message: no_route: No route of the listener matches the request.\n"
        );
        assert_eq!(
            shown(&Answer::failure(Call::Grpc, Reason::ConnectRefused, Some(502))),
            "content-type: application/grpc\ngrpc-status: 14\ngrpc-message: Bad Gateway\n"
        );
        assert_eq!(
            shown(&Answer::not_grpc(Call::Web { is_text: true }, 502)),
            "content-type: application/grpc-web-text+proto\ngrpc-status: 14\n\
             grpc-message: upstream_not_grpc: HTTP status 502\n"
        );
    }

    #[test]
    fn messages_are_percent_encoded() {
        let check = |text, expect: &str| assert_eq!(String::from_utf8(encoded(text)).unwrap(), expect);
        check("a b~", "a b~");
        check("100%", "100%25");
        check("a\r\nb\t\u{7f}", "a%0D%0Ab%09%7F");
        check("ü", "%C3%BC");
        check("", "");
    }
}
