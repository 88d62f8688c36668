//! A client's request to switch protocols, kept until the endpoint has answered, and the translation of the answer for a client with the
//! other HTTP version.

use aws_lc_rs::digest;
use wire::message::{FieldId, Method, RequestHead, ResponseHead, Version, list};

use crate::grpc;

/// A protocol that a client requests instead of HTTP.
pub(crate) struct Upgrade {
    protocol: Box<[u8]>,
    /// The value of `Sec-WebSocket-Accept`, if the client speaks HTTP/1.1 and the endpoint HTTP/2, which has no such field.
    accept: Option<Box<[u8]>>,
}

impl Upgrade {
    /// `None` if the client requests nothing that this endpoint can be asked for. `Upgrade` belongs to an HTTP/1.1 connection. Of the
    /// protocols that it can name, only WebSocket has a form in HTTP/2 (RFC 8441). Others are omitted, because an upgrade is optional (RFC
    /// 9110 section 7.8).
    pub(crate) fn of(head: &RequestHead, buffer: &[u8], is_to_h2: bool) -> Option<Box<Self>> {
        let protocol = head.upgrade?.get(buffer);
        let accept =
            if is_to_h2 && head.version != Version::Http2 { Some(accept(head, buffer, protocol)?) } else { None };
        Some(Box::new(Self { protocol: protocol.into(), accept }))
    }

    pub(crate) fn protocol(&self) -> &[u8] {
        &self.protocol
    }

    pub(crate) fn accept(&self) -> Option<&[u8]> {
        self.accept.as_deref()
    }

    /// Whether a 101 switches to exactly the requested protocol. A 101 that names no protocol is invalid (RFC 9110 section 15.2.2).
    pub(crate) fn is_agreed(&self, head: &ResponseHead, buffer: &[u8]) -> bool {
        let fields = head.fields.iter().filter(|field| field.id == FieldId::Upgrade);
        let mut named = fields.flat_map(|field| list(field.value.get(buffer))).peekable();
        named.peek().is_some() && named.all(|protocol| name(protocol).eq_ignore_ascii_case(name(&self.protocol)))
    }
}

/// The name without its version: an endpoint may name a version even if the client did not.
fn name(protocol: &[u8]) -> &[u8] {
    protocol.split(|byte| *byte == b'/').next().unwrap_or_default()
}

/// The answer to the key of a complete WebSocket handshake (RFC 6455 section 4.2.2); `None` if the request is not one.
fn accept(head: &RequestHead, buffer: &[u8], protocol: &[u8]) -> Option<Box<[u8]>> {
    const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    if head.method != Method::Get || !protocol.eq_ignore_ascii_case(b"websocket") {
        return None;
    }
    let is_key = |name: &[u8]| name.eq_ignore_ascii_case(b"sec-websocket-key");
    let mut keys = head.fields.iter().filter(|field| is_key(field.name.get(buffer)));
    let (key, None) = (keys.next()?, keys.next()) else { return None };
    let digest = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &[key.value.get(buffer), GUID].concat());
    let mut out = Vec::new();
    grpc::encode_base64(digest.as_ref(), &mut out);
    Some(out.into())
}

#[cfg(test)]
mod tests {
    use wire::h1::{Parsed, parse_request, parse_response};

    use super::*;

    fn asked(lines: &str, is_to_h2: bool) -> Option<Box<Upgrade>> {
        let text = format!("{lines}\r\n");
        let mut head = RequestHead::default();
        assert_eq!(parse_request(text.as_bytes(), 100, &mut head), Ok(Parsed::Complete(text.len())));
        Upgrade::of(&head, text.as_bytes(), is_to_h2)
    }

    const START: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\n";

    #[test]
    fn the_key_is_answered() {
        let key = format!("{START}Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n");
        // RFC 6455 section 1.3.
        assert_eq!(asked(&key, true).unwrap().accept(), Some(&b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="[..]));
        assert_eq!(asked(&key, false).unwrap().accept(), None);
        assert!(asked(&key.replace("Sec-WebSocket-Key", "X"), true).is_none());
        assert!(asked(&format!("{key}Sec-WebSocket-Key: x\r\n"), true).is_none());
        assert!(asked(&key.replace("GET", "PUT"), true).is_none());
        assert!(asked(&key.replace("Upgrade: websocket", "Upgrade: other"), true).is_none());
        assert!(asked(&format!("{START}Upgrade: other\r\n"), false).is_some());
    }

    #[test]
    fn only_what_was_asked_for_is_agreed_upon() {
        let check = |asked_for: &str, lines: &str, expect: bool| {
            let text = format!("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n{lines}\r\n");
            let mut head = ResponseHead::default();
            parse_response(text.as_bytes(), 100, Method::Get, &mut head).unwrap();
            let upgrade = asked(&format!("{START}Upgrade: {asked_for}\r\n"), false).unwrap();
            assert_eq!(upgrade.is_agreed(&head, text.as_bytes()), expect, "{asked_for} {lines}");
        };
        check("websocket", "Upgrade: WebSocket\r\n", true);
        check("SPDY/3.1", "Upgrade: SPDY/3.1\r\n", true);
        check("tcp", "Upgrade: tcp/1\r\n", true);
        check("websocket", "Upgrade: h2c\r\n", false);
        check("websocket", "Upgrade: websocket, h2c\r\n", false);
        check("websocket", "Upgrade: websocket\r\nUpgrade: h2c\r\n", false);
        check("websocket", "", false);
    }
}
