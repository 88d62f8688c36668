//! The gRPC health checking protocol: `grpc.health.v1.Health/Check`
//! (<https://github.com/grpc/grpc/blob/master/doc/health-checking.md>).
//!
//! The two messages have one field each, so they are written and read here by hand.

use std::time::Duration;

use wire::h2::PseudoHeaders;

use crate::exchange::{Answer, Over, Request, ask};
use crate::probe::{Failure, USER_AGENT};
use crate::transport::Stream;

const CHECK: &[u8] = b"/grpc.health.v1.Health/Check";

/// The largest number in a `grpc-timeout`.
const TIMEOUT_MAX: u128 = 99_999_999;

/// Asks whether `service` is served; an empty name stands for the whole endpoint.
pub(crate) async fn check(
    stream: &mut (impl Stream + ?Sized),
    service: &str,
    authority: &str,
    scheme: &str,
    timeout: Duration,
) -> Result<(), Failure> {
    let body = framed(&health_check_request(service));
    let timeout = format!("{}m", timeout.as_millis().min(TIMEOUT_MAX));
    let request = Request {
        target: PseudoHeaders {
            method: b"POST",
            scheme: scheme.as_bytes(),
            authority: authority.as_bytes(),
            path: CHECK,
            protocol: None,
        },
        fields: &[
            (b"te", b"trailers"),
            (b"grpc-timeout", timeout.as_bytes()),
            (b"content-type", b"application/grpc"),
            (b"user-agent", USER_AGENT.as_bytes()),
        ],
        over: Over::Grpc(&body),
    };
    verdict(&ask(stream, &request).await?)
}

/// The verdict of a response.
fn verdict(answer: &Answer) -> Result<(), Failure> {
    if answer.status != 200 {
        return Err(Failure::NotGrpc(answer.status));
    }
    match answer.field(b"grpc-status") {
        Some(b"0") => {}
        Some(code) => {
            let message = answer.field(b"grpc-message").unwrap_or_default();
            return Err(Failure::GrpcStatus(status_text(code, message)));
        }
        None => return Err(Failure::NotGrpc(answer.status)),
    }
    match unframed(&answer.body).and_then(serving_status) {
        Some(1) => Ok(()),
        Some(status) => Err(Failure::Serving(status)),
        None => Err(Failure::BadMessage),
    }
}

/// `12 UNIMPLEMENTED: unknown service`, with the part of the endpoint's message that is printable.
fn status_text(code: &[u8], message: &[u8]) -> String {
    const MESSAGE_CHARS_MAX: usize = 200;
    let number = str::from_utf8(code).ok().and_then(|code| code.parse::<usize>().ok());
    let mut text = match number.and_then(|number| Some((number, model::GRPC_STATUS_NAMES.get(number)?))) {
        Some((number, name)) => format!("{number} {name}"),
        None => "of no known code".to_owned(),
    };
    let printable = message.iter().map(|byte| char::from(*byte)).filter(|c| c.is_ascii_graphic() || *c == ' ');
    let message: String = printable.take(MESSAGE_CHARS_MAX).collect();
    if !message.is_empty() {
        text.push_str(": ");
        text.push_str(&message);
    }
    text
}

/// `message HealthCheckRequest { string service = 1; }`. An empty field is omitted.
fn health_check_request(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(FIELD_1 | LENGTH_DELIMITED);
        let mut length = service.len();
        while length > 0x7F {
            message.push((length & 0x7F) as u8 | 0x80);
            length >>= 7;
        }
        message.push(length as u8);
        message.extend_from_slice(service.as_bytes());
    }
    message
}

/// A gRPC message: the flag for no compression, the length, and the message.
fn framed(message: &[u8]) -> Vec<u8> {
    let mut framed = vec![0];
    framed.extend((message.len() as u32).to_be_bytes());
    framed.extend_from_slice(message);
    framed
}

/// The only message of a body. We offered no compression.
fn unframed(body: &[u8]) -> Option<&[u8]> {
    let (prefix, message) = body.split_first_chunk::<5>()?;
    let [0, length @ ..] = *prefix else { return None };
    (u32::from_be_bytes(length) as usize == message.len()).then_some(message)
}

/// Wire types (<https://protobuf.dev/programming-guides/encoding/>), and the tag of the first field.
const VARINT: u8 = 0;
const FIXED_64: u8 = 1;
const LENGTH_DELIMITED: u8 = 2;
const FIXED_32: u8 = 5;
const FIELD_1: u8 = 1 << 3;

/// `message HealthCheckResponse { ServingStatus status = 1; }`: 0 UNKNOWN, 1 SERVING, 2 NOT_SERVING, 3 SERVICE_UNKNOWN. Other fields are
/// skipped. If the field is repeated, the last one counts; if it is missing, the status is 0.
fn serving_status(mut message: &[u8]) -> Option<u64> {
    let mut status = 0;
    while !message.is_empty() {
        let (tag, rest) = varint(message)?;
        let skipped = match (tag & 7) as u8 {
            VARINT => {
                let (value, after) = varint(rest)?;
                if tag == u64::from(FIELD_1 | VARINT) {
                    status = value;
                }
                rest.len() - after.len()
            }
            FIXED_64 => 8,
            LENGTH_DELIMITED => {
                let (length, after) = varint(rest)?;
                (rest.len() - after.len()).checked_add(usize::try_from(length).ok()?)?
            }
            FIXED_32 => 4,
            _ => return None,
        };
        message = rest.get(skipped..)?;
    }
    Some(status)
}

/// A number in groups of seven bits, the least significant first, and the bytes after it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    const BYTES_MAX: usize = 10;
    let mut value = 0;
    for (place, byte) in bytes.iter().enumerate().take(BYTES_MAX) {
        value |= u64::from(byte & 0x7F).checked_shl(7 * place as u32)?;
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(place + 1..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_has_one_field() {
        assert_eq!(health_check_request(""), b"");
        assert_eq!(health_check_request("a.B"), b"\x0a\x03a.B");
        let long = "x".repeat(300);
        assert_eq!(health_check_request(&long)[..3], [0x0A, 0xAC, 0x02]);
        assert_eq!(framed(b"\x0a\x01x"), b"\0\0\0\0\x03\x0a\x01x");
    }

    #[test]
    fn answers() {
        let check = |status: u16, grpc_status: Option<&str>, body: &[u8], expect: &str| {
            let mut answer = Answer { status, body: body.to_vec(), fields: Vec::new() };
            if let Some(code) = grpc_status {
                answer.fields.push((b"grpc-status".to_vec(), code.as_bytes().to_vec()));
                answer.fields.push((b"grpc-message".to_vec(), b"a\x1b b".to_vec()));
            }
            let got = verdict(&answer).err().map_or(String::new(), |failure| failure.to_string());
            assert_eq!(got, expect, "{status} {grpc_status:?} {body:?}");
        };
        check(200, Some("0"), b"\0\0\0\0\x02\x08\x01", "");
        check(200, Some("0"), b"\0\0\0\0\x02\x08\x02", "NOT_SERVING");
        check(200, Some("0"), b"\0\0\0\0\x02\x08\x03", "SERVICE_UNKNOWN");
        check(200, Some("0"), b"\0\0\0\0\0", "UNKNOWN");
        check(200, Some("0"), b"\0\0\0\0\x02\x08\x09", "a serving status of 9");
        check(200, Some("0"), b"", "not a health check response");
        check(200, Some("0"), b"\x01\0\0\0\x02\x08\x01", "not a health check response");
        check(200, Some("0"), b"\0\0\0\0\x03\x08\x01", "not a health check response");
        check(200, Some("0"), b"\0\0\0\0\x01\x08", "not a health check response");
        check(200, Some("12"), b"", "grpc-status 12 UNIMPLEMENTED: a b");
        check(200, Some("5"), b"", "grpc-status 5 NOT_FOUND: a b");
        check(200, Some("99"), b"", "grpc-status of no known code: a b");
        check(200, None, b"\0\0\0\0\x02\x08\x01", "status 200 without grpc-status");
        check(404, None, b"", "status 404 without grpc-status");
    }

    #[test]
    fn unknown_fields_are_passed_over() {
        let check = |message: &[u8], expect| assert_eq!(serving_status(message), expect, "{message:?}");
        check(b"\x12\x02xx\x08\x01", Some(1));
        check(b"\x11abcdefgh\x08\x01\x1dabcd", Some(1));
        check(b"\x10\x01", Some(0));
        check(b"\x08\x02\x08\x01", Some(1));
        check(b"\x88\x80\x00\x01", Some(1));
        check(b"\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", None);
        check(b"\x12\x09xx", None);
        check(b"\x12\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", None);
        check(b"\x0b", None);
    }
}
