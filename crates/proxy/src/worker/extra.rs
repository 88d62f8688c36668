//! What an access log may have besides what every record has: headers, the trace, TLS. It is looked up only for a log that has it, when the
//! exchange has ended.

use std::io::Write;
use std::net::SocketAddr;

use model::{LogValue, Protocol};
use wire::message::Field;

use crate::exchange::{ConnectionInfo, Exchange, Request};
use crate::http::client_address::known_client_ip;
use crate::tls::Secured;
use crate::worker::ListenerView;

/// Appends a value. Returns false if the request has none.
#[inline(never)]
pub(super) fn write(
    value: &LogValue,
    listener: &ListenerView,
    connection: &ConnectionInfo,
    exchange: &Exchange,
    out: &mut Vec<u8>,
) -> bool {
    let Request { head, bytes, .. } = &exchange.request;
    let has_head = exchange.record.has_head;
    match value {
        LogValue::ClientIp => client_ip(listener, connection, exchange, out),
        LogValue::TraceId => hex(has_head.then(|| exchange.trace_ids().0).flatten().as_ref().map(|id| &id[..]), out),
        LogValue::SpanId => hex(has_head.then(|| exchange.trace_ids().1).flatten().as_ref().map(|id| &id[..]), out),
        LogValue::RequestHeader(header) => has_head && fields(&head.fields, bytes, &header.name, out),
        LogValue::ResponseHeader(header) => {
            exchange.endpoint_response().is_some_and(|(head, bytes)| fields(&head.fields, bytes, &header.name, out))
        }
        of_connection => write_tcp(of_connection, connection.who.client, connection.secured.as_deref(), out),
    }
}

/// Appends a value of a connection. Returns false if it has none.
pub(super) fn write_tcp(value: &LogValue, client: SocketAddr, secured: Option<&Secured>, out: &mut Vec<u8>) -> bool {
    let certificate = || secured.and_then(|secured| secured.client_certificate());
    match value {
        LogValue::ClientIp => {
            // Writing to a Vec does not fail.
            let _ = write!(out, "{}", client.ip());
            true
        }
        LogValue::TlsVersion => text(secured.map(|secured| secured.version()), out),
        LogValue::Sni => text(secured.and_then(|secured| secured.sni()), out),
        LogValue::ClientCertSubject => text(certificate().map(|certificate| certificate.subject()), out),
        LogValue::ClientCertSha256 => text(certificate().map(|certificate| certificate.sha256()), out),
        // Every record has the others, or only requests have them.
        _ => false,
    }
}

/// The client as trusted proxies report it, or as the connection does.
fn client_ip(listener: &ListenerView, connection: &ConnectionInfo, exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    let Request { head, bytes, .. } = &exchange.request;
    let ip = match &listener.plan.policy.protocol {
        Protocol::Http(http) if exchange.record.has_head => {
            let (Ok(ip) | Err(ip)) = known_client_ip(head, bytes, &connection.client(http));
            ip
        }
        _ => connection.who.client.ip(),
    };
    // Writing to a Vec does not fail.
    let _ = write!(out, "{ip}");
    true
}

fn text(found: Option<&str>, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(found.unwrap_or_default().as_bytes());
    found.is_some_and(|text| !text.is_empty())
}

fn hex(id: Option<&[u8]>, out: &mut Vec<u8>) -> bool {
    for byte in id.into_iter().flatten() {
        // As above.
        let _ = write!(out, "{byte:02x}");
    }
    id.is_some()
}

/// The values of all fields with this name, which is in lower case.
fn fields(all: &[Field], bytes: &[u8], name: &str, out: &mut Vec<u8>) -> bool {
    let found = all.iter().filter(|field| field.name.get(bytes).eq_ignore_ascii_case(name.as_bytes()));
    let mut count = 0;
    for field in found {
        if count > 0 {
            out.extend_from_slice(b", ");
        }
        out.extend_from_slice(field.value.get(bytes));
        count += 1;
    }
    count > 0
}
