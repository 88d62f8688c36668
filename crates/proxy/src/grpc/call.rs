//! The state of a gRPC call in an exchange, and the fields that are written for it.

use std::time::Duration;

use model::ClusterProtocol;
use telemetry::Reason;
use wire::message::{FieldId, RequestHead, ResponseHead, find as find_id, list};

use super::answer::Answer;
use super::content::{Call, content_type, find};
use super::methods::{Method, Methods};
use super::status::Status;
use super::timeout::{parse_timeout, write_timeout};
use super::web::Translation;
use crate::http::headers::Out;

/// A call in progress.
#[derive(Debug)]
pub(crate) struct Ongoing {
    pub(crate) call: Call,
    /// How long the client waits.
    pub(crate) timeout: Option<Duration>,
    /// The method under which it is counted; `None` if its route names no service.
    pub(crate) method: Option<Method>,
    /// How it has ended, as the client sees it.
    pub(crate) status: Option<Status>,
    /// The client speaks gRPC-Web, the endpoint gRPC.
    pub(crate) is_translated: bool,
}

impl Ongoing {
    /// `None` if the request is not a call.
    pub(crate) fn of(request: &RequestHead, buffer: &[u8]) -> Option<Self> {
        let call = Call::of(request, buffer)?;
        let timeout = find(&request.fields, buffer, b"grpc-timeout").and_then(parse_timeout);
        Some(Self { call, timeout, method: None, status: None, is_translated: false })
    }

    /// Records the route of the call, and the protocol of its endpoints.
    pub(crate) fn route(&mut self, methods: Option<&Methods>, path: &[u8], protocol: ClusterProtocol) {
        self.method = methods.map(|methods| methods.find(path));
        // An endpoint with HTTP/1.1 has to speak gRPC-Web itself.
        self.is_translated = self.call != Call::Grpc && protocol == ClusterProtocol::H2;
    }

    /// What its request tells the endpoint. `left_ms` is the time until its deadline, if it has one.
    pub(crate) fn outgoing(&self, left_ms: Option<u64>) -> Outgoing {
        Outgoing { is_translated: self.is_translated, left_ms }
    }

    /// The translation of its request's body.
    pub(crate) fn request_translation(&self) -> Option<Translation> {
        if self.is_translated { Translation::of_request(self.call) } else { None }
    }

    /// The translation of its response's body.
    pub(crate) fn response_translation(&self) -> Option<Translation> {
        if self.is_translated { Translation::of_response(self.call) } else { None }
    }

    /// Records the head of its response. Returns false if it is not a gRPC response.
    pub(crate) fn take_head(&mut self, response: &ResponseHead, buffer: &[u8]) -> bool {
        self.status = find(&response.fields, buffer, b"grpc-status").map(Status::parse);
        let is_grpc = || response.status == 200 && Call::of_fields(&response.fields, buffer).is_some();
        self.status.is_some() || is_grpc()
    }

    /// Whether it ended in a way that counts against its endpoint.
    pub(crate) fn is_endpoints_fault(&self) -> bool {
        self.status.is_some_and(Status::is_endpoints_fault)
    }

    /// Records its failure, and returns the response for its client. `status` is the one that another client would get; `endpoints` is the
    /// status that the endpoint sent.
    pub(crate) fn fail(&mut self, reason: Reason, status: Option<u16>, endpoints: Option<u16>) -> Answer {
        let answer = match (reason, endpoints) {
            (Reason::UpstreamNotGrpc, Some(endpoints)) => Answer::not_grpc(self.call, endpoints),
            _ => Answer::failure(self.call, reason, status),
        };
        self.status = Some(answer.status);
        answer
    }
}

/// What a request tells its endpoint in addition to the client's fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    is_translated: bool,
    left_ms: Option<u64>,
}

impl Outgoing {
    /// Whether a field of the client is replaced.
    pub(crate) fn replaces(&self, name: &[u8]) -> bool {
        (self.left_ms.is_some() && name.eq_ignore_ascii_case(b"grpc-timeout"))
            || (self.is_translated && name.eq_ignore_ascii_case(b"content-type"))
    }

    /// Writes the replacements.
    pub(crate) fn write(&self, out: &mut impl Out, head: &RequestHead, buffer: &[u8]) {
        if let Some(left_ms) = self.left_ms {
            write_timeout(out.value(b"grpc-timeout"), left_ms);
            out.end(false);
        }
        if !self.is_translated {
            return;
        }
        Call::Grpc
            .write_content_type(content_type(&head.fields, buffer).unwrap_or_default(), out.value(b"content-type"));
        out.end(false);
        // Browsers may not send it, and gRPC endpoints refuse calls without it.
        let te = find_id(&head.fields, FieldId::Te).map_or(&[][..], |field| field.value.get(buffer));
        if !list(te).any(|coding| coding.eq_ignore_ascii_case(b"trailers")) {
            out.field(b"te", b"trailers", false);
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::h1::{Parsed, parse_request, parse_response};
    use wire::message::Method as HttpMethod;

    use super::*;

    fn call(fields: &str) -> (RequestHead, String) {
        let text = format!("POST /a.B/Get HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut head = RequestHead::default();
        assert_eq!(parse_request(text.as_bytes(), 100, &mut head), Ok(Parsed::Complete(text.len())));
        (head, text)
    }

    #[test]
    fn what_an_endpoint_is_told() {
        let check = |fields: &str, protocol, left_ms, expect: &str| {
            let (head, text) = call(fields);
            let mut ongoing = Ongoing::of(&head, text.as_bytes()).unwrap();
            ongoing.route(None, b"/a.B/Get", protocol);
            let outgoing = ongoing.outgoing(left_ms);
            let mut out = Vec::new();
            for field in head.fields.iter().filter(|field| !outgoing.replaces(field.name.get(text.as_bytes()))) {
                out.field(field.name.get(text.as_bytes()), field.value.get(text.as_bytes()), false);
            }
            outgoing.write(&mut out, &head, text.as_bytes());
            assert_eq!(String::from_utf8(out).unwrap(), format!("Host: a\r\n{expect}"), "{fields:?}");
        };
        let h2 = ClusterProtocol::H2;
        check("Content-Type: application/grpc\r\n", h2, None, "Content-Type: application/grpc\r\n");
        check(
            "Content-Type: application/grpc\r\nGrpc-Timeout: 1S\r\n",
            h2,
            Some(900),
            "Content-Type: application/grpc\r\ngrpc-timeout: 900m\r\n",
        );
        check(
            "Grpc-Timeout: soon\r\nContent-Type: application/grpc\r\n",
            h2,
            None,
            "Grpc-Timeout: soon\r\nContent-Type: application/grpc\r\n",
        );
        check(
            "Content-Type: application/grpc-web-text+proto\r\n",
            h2,
            None,
            "content-type: application/grpc+proto\r\nte: trailers\r\n",
        );
        check(
            "Content-Type: application/grpc-web\r\nTE: gzip, Trailers\r\n",
            h2,
            None,
            "TE: gzip, Trailers\r\ncontent-type: application/grpc\r\n",
        );
        check(
            "Content-Type: application/grpc-web\r\n",
            ClusterProtocol::H1,
            None,
            "Content-Type: application/grpc-web\r\n",
        );
    }

    #[test]
    fn timeouts_of_clients() {
        let check = |fields: &str, expect| {
            let (head, text) = call(&format!("Content-Type: application/grpc\r\n{fields}"));
            assert_eq!(Ongoing::of(&head, text.as_bytes()).unwrap().timeout, expect, "{fields:?}");
        };
        check("", None);
        check("grpc-timeout: 20m\r\n", Some(Duration::from_millis(20)));
        check("grpc-timeout: soon\r\n", None);
    }

    #[test]
    fn which_responses_are_of_grpc() {
        let check = |lines: &str, is_grpc: bool, status| {
            let text = format!("HTTP/1.1 {lines}\r\nContent-Length: 0\r\n\r\n");
            let mut response = ResponseHead::default();
            let parsed = parse_response(text.as_bytes(), 100, HttpMethod::Post, &mut response);
            assert_eq!(parsed, Ok(Parsed::Complete(text.len())));
            let (head, request) = call("Content-Type: application/grpc\r\n");
            let mut ongoing = Ongoing::of(&head, request.as_bytes()).unwrap();
            assert_eq!((ongoing.take_head(&response, text.as_bytes()), ongoing.status), (is_grpc, status), "{lines}");
        };
        check("200 OK\r\nContent-Type: application/grpc+proto", true, None);
        check("200 OK\r\nContent-Type: application/grpc\r\nGrpc-Status: 5", true, Some(Status::NotFound));
        check("200 OK\r\ngrpc-status: 0", true, Some(Status::Ok));
        check("200 OK\r\nContent-Type: text/html", false, None);
        check("502 Bad Gateway\r\nContent-Type: text/html", false, None);
        check("503 Busy\r\nContent-Type: application/grpc", false, None);
        check("503 Busy\r\nContent-Type: application/grpc\r\ngrpc-status: 14", true, Some(Status::Unavailable));
        check("204 No Content", false, None);
    }

    #[test]
    fn a_failure_is_how_it_ended() {
        let (head, text) = call("Content-Type: application/grpc\r\n");
        let mut ongoing = Ongoing::of(&head, text.as_bytes()).unwrap();
        assert_eq!(ongoing.fail(Reason::UpstreamNotGrpc, Some(502), Some(404)).status, Status::Unimplemented);
        assert_eq!(ongoing.fail(Reason::ClientReset, None, None).status, Status::Cancelled);
        assert_eq!(ongoing.status, Some(Status::Cancelled));
    }
}
