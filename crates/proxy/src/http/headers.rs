//! Writes heads for the next hop: it removes hop-by-hop fields, writes new framing, and adds the client's address.
//!
//! Nothing that a client or an endpoint sends decides how the next hop frames a message, and nothing in `Connection` can remove what this
//! hop sets (RFC 9110 section 7.6.1 lets it name any field; naming `x-forwarded-for` there is an old way to lose that field).
//!
//! Half of the file's length is tests: requests, responses and trailers share their rules and are tested together.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use model::{ForwardedHeaders, HeaderChanges, HeaderNames};
use net::clock;
use smallvec::SmallVec;
use wire::h1;
use wire::message::{Body, Field, FieldId, Method, RequestHead, ResponseHead, Version, find, list};

use crate::exchange::transfer::Head;
use crate::grpc::{Call, Outgoing};
use crate::h2::HeaderList;
use crate::http::client_address::known_client_ip;
use crate::http::ingress_nginx;
use crate::policy::headers::{RequestEdits, ResponseEdits, added, decides, drops, is_alike, puts};
use crate::policy::{request_id, via};
use crate::tcp::upgrade::Upgrade;
use crate::tls::Secured;

/// What is known about a client besides its request.
pub(crate) struct Client<'c> {
    /// The address of the connection, or the one in its PROXY protocol header.
    pub(crate) address: SocketAddr,
    /// Its IP address as text, formatted once for all requests of the connection.
    pub(crate) ip_text: &'c [u8],
    /// The address that the client connected to.
    pub(crate) local: SocketAddr,
    /// `http` or `https`: the scheme of the client's request.
    pub(crate) scheme: &'static str,
    pub(crate) forwarded: ForwardedHeaders,
    /// Whether `address` is that of the client. It is not if a PROXY protocol header says that there is a client, and not where.
    pub(crate) is_known: bool,
    /// The connection comes from a trusted proxy.
    pub(crate) is_trusted: bool,
    pub(crate) trusted_proxies: &'c [IpNet],
    /// What the connection was made for; `None` for plain text.
    pub(crate) secured: Option<&'c Secured>,
    /// The id of the request, if the listener gives ids.
    pub(crate) request_id: Option<&'c str>,
    /// The endpoint gets the client's address in `X-Real-IP`.
    pub(crate) x_real_ip: bool,
    /// Set if the request is a gRPC call.
    pub(crate) call: Option<Outgoing>,
}

/// Fields that `Connection` may name without removing them. They are end-to-end, and removing them would change who the request is from or
/// for.
const NOT_HOP_BY_HOP: [&[u8]; 4] = [b"authorization", b"cookie", b"set-cookie", b"cache-control"];

/// The field of the client's address that nginx made customary.
const REAL_IP: &[u8] = b"x-real-ip";

/// Removes the fields whose names are not allowed.
#[inline]
pub(crate) fn drop_names(allowed: HeaderNames, head: &mut RequestHead, buffer: &[u8]) {
    if allowed != HeaderNames::Any {
        head.fields.retain(|field| allowed.allows(field.name.get(buffer)));
    }
}

pub(crate) type Named<'b> = SmallVec<[&'b [u8]; 4]>;

/// The fields that `Connection` makes hop-by-hop, in addition to those that always are. `names_fields`: there are any.
pub(crate) fn named_in_connection<'b>(names_fields: bool, fields: &[Field], buffer: &'b [u8]) -> Named<'b> {
    if !names_fields {
        return Named::new();
    }
    fields
        .iter()
        .filter(|field| field.id == FieldId::Connection)
        .flat_map(|field| list(field.value.get(buffer)))
        .filter(|option| {
            let is = |name: &&[u8]| option.eq_ignore_ascii_case(name);
            ![&b"close"[..], b"keep-alive", b"upgrade"].iter().any(is) && !NOT_HOP_BY_HOP.iter().any(is)
        })
        .collect()
}

pub(crate) fn is_named(named: &Named<'_>, name: &[u8]) -> bool {
    named.iter().any(|option| option.eq_ignore_ascii_case(name))
}

/// The output for a head, field by field: the bytes of HTTP/1.1, or a list for HTTP/2.
pub(crate) trait Out {
    /// Begins a field. Its value is written to the returned buffer.
    fn value(&mut self, name: &[u8]) -> &mut Vec<u8>;

    /// Ends the field. `never_indexed`: no hop may keep it in a table (RFC 7541 section 6.2.3).
    fn end(&mut self, never_indexed: bool);

    /// Writes a complete field.
    fn field(&mut self, name: &[u8], value: &[u8], never_indexed: bool) {
        self.value(name).extend_from_slice(value);
        self.end(never_indexed);
    }
}

/// Writes the head for an endpoint. `scheme` is the one used to reach it.
pub(crate) fn write_request(
    out: Head<'_>,
    head: &RequestHead,
    buffer: &[u8],
    client: &Client<'_>,
    scheme: &'static str,
    edits: &RequestEdits<'_>,
) {
    match out {
        Head::H1(out) => write_h1_request(out, head, buffer, client, edits),
        Head::H2(out) => write_h2_request(out, head, buffer, client, scheme, edits),
    }
}

fn write_h1_request(
    out: &mut Vec<u8>,
    head: &RequestHead,
    buffer: &[u8],
    client: &Client<'_>,
    edits: &RequestEdits<'_>,
) {
    h1::request_line(out, head.method_name.get(buffer), edits.target.unwrap_or(head.path.get(buffer)));
    write_authority(out.value(b"host"), head, buffer, client, edits);
    out.end(false);
    write_request_fields(out, head, buffer, client, edits, head.version == Version::Http2);
    write_framing(out, head.body);
    if head.body == Body::Chunked {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    write_forwarded(out, head, buffer, client, edits.headers);
    if let Some(upgrade) = head.upgrade {
        out.extend_from_slice(b"connection: upgrade\r\n");
        h1::field(out, b"upgrade", upgrade.get(buffer));
        if head.version == Version::Http2 && upgrade.get(buffer).eq_ignore_ascii_case(b"websocket") {
            // Extended CONNECT has no key (RFC 8441 section 5), and HTTP/1.1 requires one (RFC 6455 section 4.1). It only proves that the
            // endpoint speaks WebSocket, so the example of the standard is sufficient.
            h1::field(out, b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ==");
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// RFC 9113 section 8.3.1, and RFC 8441 section 4 if the client asks for another protocol.
fn write_h2_request(
    out: &mut HeaderList,
    head: &RequestHead,
    buffer: &[u8],
    client: &Client<'_>,
    scheme: &'static str,
    edits: &RequestEdits<'_>,
) {
    let (method, protocol) = match head.upgrade {
        Some(protocol) => (&b"CONNECT"[..], Some(protocol.get(buffer))),
        None => (head.method_name.get(buffer), None),
    };
    let target = edits.target.unwrap_or(head.path.get(buffer));
    out.target(method, scheme.as_bytes(), target, protocol, |out| write_authority(out, head, buffer, client, edits));
    write_request_fields(out, head, buffer, client, edits, head.version != Version::Http2);
    write_framing(out, head.body);
    let te = head.fields.iter().filter(|field| field.id == FieldId::Te).flat_map(|field| list(field.value.get(buffer)));
    if te.into_iter().any(|coding| coding.eq_ignore_ascii_case(b"trailers")) {
        // The only allowed value (RFC 9113 section 8.2.2). gRPC endpoints refuse calls without it.
        out.field(b"te", b"trailers", false);
    }
    write_forwarded(out, head, buffer, client, edits.headers);
}

fn write_authority(
    out: &mut Vec<u8>,
    head: &RequestHead,
    buffer: &[u8],
    client: &Client<'_>,
    edits: &RequestEdits<'_>,
) {
    let authority = edits.host.map_or(head.authority.get(buffer), str::as_bytes);
    if authority.is_empty() {
        // HTTP/1.0 without Host. The endpoint must get a host, and the best known one is the address that the client connected to.
        write_display(out, client.local);
    } else {
        out.extend_from_slice(authority);
    }
}

fn write_request_fields(
    out: &mut impl Out,
    head: &RequestHead,
    buffer: &[u8],
    client: &Client<'_>,
    edits: &RequestEdits<'_>,
    is_other_version: bool,
) {
    let (named, call) = (named_in_connection(head.names_fields, &head.fields, buffer), client.call);
    // Extended CONNECT has no key (RFC 8441 section 5); for HTTP/1.1 one is made here.
    let drops_key = is_other_version && head.upgrade.is_some();
    for field in &head.fields {
        match field.id {
            FieldId::Other if call.is_some_and(|call| call.replaces(field.name.get(buffer))) => {}
            FieldId::Other if drops_key && field.name.get(buffer).eq_ignore_ascii_case(b"sec-websocket-key") => {}
            // The announced trailers cannot come.
            FieldId::Trailer if head.body == Body::None => {}
            // An untrusted client sent it.
            FieldId::Claim if !client.is_trusted && !via::stays(field.name.get(buffer)) => {}
            // Written below.
            FieldId::Claim if client.x_real_ip && field.name.get(buffer).eq_ignore_ascii_case(REAL_IP) => {}
            FieldId::Claim
                if client.forwarded == ForwardedHeaders::IngressNginx
                    && ingress_nginx::replaces(field.name.get(buffer)) => {}
            FieldId::Other if client.request_id.is_some() && is_alike(field.name.get(buffer), request_id::NAME) => {}
            FieldId::Other | FieldId::Cookie | FieldId::Date | FieldId::Trailer | FieldId::Claim => {
                let name = field.name.get(buffer);
                if ((!named.is_empty() && is_named(&named, name)) || drops(edits.headers, name)) && !via::stays(name) {
                    continue;
                }
                if field.id == FieldId::Trailer {
                    write_announced(out, field, buffer);
                } else {
                    out.field(name, field.value.get(buffer), field.never_indexed);
                }
            }
            // Nothing that the client names in `Connection` removes it.
            FieldId::Identity => {
                let name = field.name.get(buffer);
                if !drops(edits.headers, name) {
                    out.field(name, field.value.get(buffer), field.never_indexed);
                }
            }
            FieldId::ContentLength if head.body == Body::None => out.field(b"content-length", b"0", false),
            FieldId::Expect if head.expect_continue => out.field(b"expect", b"100-continue", false),
            _ => {}
        }
    }
    added(edits.headers, edits.values).for_each(|(name, value)| out.field(name, &value, false));
    if let Some(id) = client.request_id.filter(|_| !decides(edits.headers, request_id::NAME)) {
        out.field(request_id::NAME, id.as_bytes(), false);
    }
    if client.x_real_ip
        && !decides(edits.headers, REAL_IP)
        && let Ok(ip) = known_client_ip(head, buffer, client)
    {
        write_display(out.value(REAL_IP), ip);
        out.end(false);
    }
    if let Some(call) = call {
        call.write(out, head, buffer);
    }
    if let Some(via) = edits.via {
        via::write_request(via, out, head.version);
    }
    if let Some(mark) = edits.mark {
        via::write_mark(mark, out);
    }
}

/// Writes `content-length`, if there is one.
fn write_framing(out: &mut impl Out, body: Body) {
    if let Body::Length(length) = body {
        h1::decimal(out.value(b"content-length"), length);
        out.end(false);
    }
}

fn write_display(out: &mut Vec<u8>, text: impl std::fmt::Display) {
    use std::io::Write;
    // Writing to a Vec cannot fail.
    let _ = write!(out, "{text}");
}

/// Writes `X-Forwarded-*` or `Forwarded` (RFC 7239), except what the route decides: extends the values of a trusted proxy, or else starts new ones.
fn write_forwarded(
    out: &mut impl Out,
    head: &RequestHead,
    buffer: &[u8],
    client: &Client<'_>,
    changes: &HeaderChanges,
) {
    let (ip, scheme) = (client.address.ip(), client.scheme);
    let (x_forwarded, rfc7239) = match client.forwarded {
        ForwardedHeaders::XForwarded | ForwardedHeaders::IngressNginx => (true, false),
        ForwardedHeaders::Rfc7239 => (false, true),
        ForwardedHeaders::Both => (true, true),
        ForwardedHeaders::Off => (false, false),
    };
    let told = if client.is_trusted { head.fields.as_slice() } else { &[] };
    let received = |id| {
        let fields = told.iter().filter(move |field| field.id == id);
        fields.map(|field| field.value.get(buffer)).filter(|value| !value.is_empty())
    };
    let authority = head.authority.get(buffer);

    let mut extend = |name: &[u8], id, own: &dyn Fn(&mut Vec<u8>)| {
        if decides(changes, name) {
            return;
        }
        let text = out.value(name);
        for value in received(id) {
            text.extend_from_slice(value);
            text.extend_from_slice(b", ");
        }
        own(text);
        out.end(false);
    };
    if x_forwarded {
        extend(b"x-forwarded-for", FieldId::XForwardedFor, &|out| out.extend_from_slice(client.ip_text));
    }
    if rfc7239 {
        extend(b"forwarded", FieldId::Forwarded, &|out| {
            match ip {
                IpAddr::V4(ip) => write_display(out, format_args!("for={ip};proto={scheme}")),
                IpAddr::V6(ip) => write_display(out, format_args!("for=\"[{ip}]\";proto={scheme}")),
            }
            if !authority.is_empty() {
                // Quoted, because the colon of a port is not allowed in a token. A host contains neither quotes nor backslashes.
                out.extend_from_slice(b";host=\"");
                out.extend_from_slice(authority);
                out.push(b'"');
            }
        });
    }
    let mut keep = |name: &[u8], id, own: &[u8]| {
        // The first hop knows best, if the path from it is trusted.
        let value = received(id).next().unwrap_or(own);
        if !value.is_empty() && !decides(changes, name) {
            out.field(name, value, false);
        }
    };
    let own = |value| if x_forwarded { value } else { &b""[..] };
    keep(b"x-forwarded-proto", FieldId::XForwardedProto, own(scheme.as_bytes()));
    keep(b"x-forwarded-host", FieldId::XForwardedHost, own(authority));
    if !x_forwarded && !decides(changes, b"x-forwarded-for") {
        for value in received(FieldId::XForwardedFor) {
            out.field(b"x-forwarded-for", value, false);
        }
    }
    if !rfc7239 && !decides(changes, b"forwarded") {
        for value in received(FieldId::Forwarded) {
            out.field(b"forwarded", value, false);
        }
    }
    if client.forwarded == ForwardedHeaders::IngressNginx {
        ingress_nginx::write(out, head, buffer, client, changes);
    }
}

/// The properties of the client and request that affect the next response head.
pub(crate) struct ResponseContext {
    pub(crate) method: Method,
    pub(crate) version: Version,
    /// The connection stays open after this response.
    pub(crate) keep_alive: bool,
    /// The response is gRPC, and this client speaks gRPC-Web.
    pub(crate) web: Option<Call>,
}

/// How a response body is framed for the client.
pub(crate) fn response_framing(head: &ResponseHead, version: Version) -> Body {
    match (head.body, version) {
        // Not every HTTP/1.0 client knows chunks, so for it the connection ends with the body.
        (Body::Chunked | Body::UntilClose, Version::Http10) => Body::UntilClose,
        (Body::UntilClose, Version::Http11 | Version::Http2) => Body::Chunked,
        (body, _) => body,
    }
}

/// Writes the head for a client.
pub(crate) fn write_response(
    out: Head<'_>,
    head: &ResponseHead,
    buffer: &[u8],
    to: &ResponseContext,
    edits: &ResponseEdits<'_>,
) {
    match out {
        Head::H1(out) => write_h1_response(out, head, buffer, to, edits),
        Head::H2(out) => write_h2_response(out, head, buffer, to, edits),
    }
}

fn write_h1_response(
    out: &mut Vec<u8>,
    head: &ResponseHead,
    buffer: &[u8],
    to: &ResponseContext,
    edits: &ResponseEdits<'_>,
) {
    h1::status_line(out, Version::Http11, head.status, head.reason.get(buffer));
    write_response_fields(out, head, buffer, to.web, edits, false);
    write_date(out, head, edits);
    let framing = described_framing(head, to);
    write_framing(out, framing);
    if framing == Body::Chunked {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    } else if framing == Body::None && !describes_body(head, to) && head.status != 204 {
        out.extend_from_slice(b"content-length: 0\r\n");
    }
    match (to.keep_alive, to.version) {
        (false, _) => out.extend_from_slice(b"connection: close\r\n"),
        (true, Version::Http10) => out.extend_from_slice(b"connection: keep-alive\r\n"),
        (true, Version::Http11 | Version::Http2) => {}
    }
    out.extend_from_slice(b"\r\n");
}

fn write_h2_response(
    out: &mut HeaderList,
    head: &ResponseHead,
    buffer: &[u8],
    to: &ResponseContext,
    edits: &ResponseEdits<'_>,
) {
    out.status = head.status;
    write_response_fields(out, head, buffer, to.web, edits, false);
    write_date(out, head, edits);
    write_framing(out, described_framing(head, to));
    if head.body == Body::None && head.content_length == Some(0) && !describes_body(head, to) && head.status != 204 {
        out.field(b"content-length", b"0", false);
    }
}

/// Whether there is no body, but fields describe the body that there would be (RFC 9110 section 8.6).
fn describes_body(head: &ResponseHead, to: &ResponseContext) -> bool {
    to.method == Method::Head || head.status == 304
}

fn described_framing(head: &ResponseHead, to: &ResponseContext) -> Body {
    if !describes_body(head, to) {
        return response_framing(head, to.version);
    }
    match head.content_length {
        Some(length) => Body::Length(length),
        None if find(&head.fields, FieldId::TransferEncoding).is_some() && to.version == Version::Http11 => {
            Body::Chunked
        }
        None => Body::None,
    }
}

/// Writes an interim response (1xx), or the 101 that opens the requested tunnel. Over HTTP/2, an endpoint opens it with another status (RFC
/// 8441 section 5).
pub(crate) fn write_interim(
    out: &mut Vec<u8>,
    head: &ResponseHead,
    buffer: &[u8],
    upgrade: Option<&Upgrade>,
    edits: &ResponseEdits<'_>,
) {
    let opened = upgrade.filter(|_| head.status == 101 || head.status >= 200);
    match opened {
        Some(_) => h1::status_line(out, Version::Http11, 101, b"Switching Protocols"),
        None => h1::status_line(out, Version::Http11, head.status, head.reason.get(buffer)),
    }
    // An HTTP/2 endpoint may answer a key that it was not sent: a proxy in front of an HTTP/1.1 server makes one up (HAProxy does).
    let has_accept = opened.is_some_and(|upgrade| upgrade.accept().is_some());
    write_response_fields(out, head, buffer, None, edits, has_accept);
    if let Some(upgrade) = opened {
        out.extend_from_slice(b"connection: upgrade\r\n");
        h1::field(out, b"upgrade", upgrade.protocol());
        if let Some(accept) = upgrade.accept() {
            h1::field(out, b"sec-websocket-accept", accept);
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes an interim response to an HTTP/2 stream, or the 200 that opens a tunnel there instead of a 101 (RFC 8441 section 5).
pub(crate) fn write_h2_interim(out: &mut HeaderList, head: &ResponseHead, buffer: &[u8], edits: &ResponseEdits<'_>) {
    out.clear();
    out.status = if head.status == 101 { 200 } else { head.status };
    // It answers our own key (RFC 8441 section 5).
    write_response_fields(out, head, buffer, None, edits, head.status == 101);
}

/// Writes `Date` if the endpoint has sent none (RFC 9110 section 6.6.1) and the route does not change it.
fn write_date(out: &mut impl Out, head: &ResponseHead, edits: &ResponseEdits<'_>) {
    let is_there = find(&head.fields, FieldId::Date).is_some();
    let is_edited = edits.drops(b"date") || puts(edits.headers).any(|name| name.eq_ignore_ascii_case(b"date"));
    if !is_there && !is_edited {
        out.field(b"date", &clock::http_date(), false);
    }
}

fn write_response_fields(
    out: &mut impl Out,
    head: &ResponseHead,
    buffer: &[u8],
    web: Option<Call>,
    edits: &ResponseEdits<'_>,
    drops_accept: bool,
) {
    let named = named_in_connection(head.names_fields, &head.fields, buffer);
    let mut compressed = edits.compressed;
    for field in &head.fields {
        let name = field.name.get(buffer);
        let is_end_to_end = match field.id {
            FieldId::Connection
            | FieldId::KeepAlive
            | FieldId::ProxyConnection
            | FieldId::TransferEncoding
            | FieldId::ContentLength
            | FieldId::Te
            | FieldId::Upgrade => false,
            FieldId::Other if drops_accept && name.eq_ignore_ascii_case(b"sec-websocket-accept") => false,
            _ => named.is_empty() || !is_named(&named, name),
        };
        let value = field.value.get(buffer);
        match web {
            _ if !is_end_to_end || edits.drops(name) => {}
            Some(web) if name.eq_ignore_ascii_case(b"content-type") => {
                web.write_content_type(value, out.value(name));
                out.end(false);
            }
            _ if field.id == FieldId::Trailer => write_announced(out, field, buffer),
            _ if edits.rewriting.is_some_and(|rewriting| rewriting.write(out, name, value, field.never_indexed)) => {}
            _ => {
                let is_written =
                    compressed.as_mut().is_some_and(|head| head.write(out, name, value, field.never_indexed));
                if !is_written {
                    out.field(name, value, field.never_indexed);
                }
            }
        }
    }
    if let Some(compressed) = &compressed {
        compressed.write_rest(out);
    }
    for (name, value) in added(edits.headers, edits.values) {
        match &compressed {
            None => out.field(name, &value, false),
            Some(compressed) => compressed.write_added(out, name, &value),
        }
    }
    if let Some(id) = edits.request_id() {
        out.field(request_id::NAME, id.as_bytes(), false);
    }
    if let Some(cors) = &edits.cors {
        cors.write(out, &head.fields, buffer, edits.headers);
    }
    if let Some(quotas) = edits.quotas {
        quotas.write(out);
    }
    if let Some(cookies) = edits.cookies {
        cookies.write(out, head.status);
    }
    if let Some(session) = edits.session {
        out.field(session.name.as_bytes(), &session.value, true);
    }
    if let Some(via) = edits.via {
        via::write_response(via, out, head.version);
    }
}

/// Writes a trailer section without the fields that are not allowed in one.
pub(crate) fn write_trailers(out: &mut impl Out, fields: &[Field], section: &[u8]) {
    for field in fields {
        let name = field.name.get(section);
        if may_be_trailer(field.id, name) {
            out.field(name, field.value.get(section), field.never_indexed);
        }
    }
}

/// Writes a `Trailer` field without the names that [`write_trailers`] drops. Otherwise the receiver would wait for them in vain.
fn write_announced(out: &mut impl Out, field: &Field, buffer: &[u8]) {
    let value = field.value.get(buffer);
    let is_kept = |name: &&[u8]| may_be_trailer(FieldId::of(name), name);
    if list(value).all(|name| is_kept(&name)) {
        return out.field(field.name.get(buffer), value, field.never_indexed);
    }
    let kept: SmallVec<[&[u8]; 4]> = list(value).filter(is_kept).collect();
    if !kept.is_empty() {
        out.field(field.name.get(buffer), &kept.join(&b", "[..]), field.never_indexed);
    }
}

/// Whether a field is allowed in a trailer section (RFC 9110 section 6.5.1). Fields for framing, routing or authentication are not: a hop
/// that merges trailers into headers would act on them.
fn may_be_trailer(id: FieldId, name: &[u8]) -> bool {
    const FORBIDDEN: [&[u8]; 7] = [
        b"authorization",
        b"set-cookie",
        b"content-encoding",
        b"content-type",
        b"content-range",
        b"cache-control",
        request_id::NAME,
    ];
    matches!(id, FieldId::Other | FieldId::Date)
        && !FORBIDDEN.iter().any(|forbidden| name.eq_ignore_ascii_case(forbidden))
}

#[cfg(test)]
pub(crate) mod testing {
    use wire::h1::{Parsed, parse_request};

    use super::*;

    pub(crate) fn client(is_trusted: bool, forwarded: ForwardedHeaders, trusted_proxies: &[IpNet]) -> Client<'_> {
        Client {
            address: "10.0.0.9:4711".parse().unwrap(),
            ip_text: b"10.0.0.9",
            local: "127.0.0.1:8080".parse().unwrap(),
            scheme: "http",
            forwarded,
            is_known: true,
            is_trusted,
            trusted_proxies,
            secured: None,
            request_id: None,
            x_real_ip: false,
            call: None,
        }
    }

    pub(crate) fn request(text: &str) -> RequestHead {
        let mut head = RequestHead::default();
        assert_eq!(parse_request(text.as_bytes(), 100, &mut head), Ok(Parsed::Complete(text.len())));
        head
    }
}

#[cfg(test)]
mod tests {
    use wire::h1::parse_response;

    use super::testing::{client, request};
    use super::*;
    use crate::policy::sticky::SessionField;

    #[track_caller]
    fn check_request(lines: &str, is_trusted: bool, forwarded: ForwardedHeaders, expect: &str) {
        let text = format!("{lines}\r\n");
        let mut out = Vec::new();
        let client = client(is_trusted, forwarded, &[]);
        write_request(Head::H1(&mut out), &request(&text), text.as_bytes(), &client, "http", &RequestEdits::NONE);
        assert_eq!(String::from_utf8(out).unwrap(), format!("{expect}\r\n"));
    }

    const OFF: ForwardedHeaders = ForwardedHeaders::Off;

    #[test]
    fn hop_by_hop_fields_end_here() {
        check_request(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: close, X-Gone, authorization, host\r\nKeep-Alive: 1\r\nX-Gone: 1\r\nTE: trailers\r\n\
             Authorization: b\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\nProxy-Authorization: y\r\nTrailer: z\r\nX-Kept:  1 \r\n",
            false,
            OFF,
            "GET / HTTP/1.1\r\nhost: a\r\nAuthorization: b\r\nX-Kept: 1\r\n",
        );
    }

    #[test]
    fn framing_is_made_anew() {
        let post = |lines: &str, expect: &str| {
            let lines = format!("POST /x HTTP/1.1\r\nHost: a\r\n{lines}");
            check_request(&lines, false, OFF, &format!("POST /x HTTP/1.1\r\nhost: a\r\n{expect}"));
        };
        post("Content-Length: 0005\r\n", "content-length: 5\r\n");
        post("Content-Length: 0\r\n", "content-length: 0\r\n");
        post(
            "Transfer-Encoding: CHUNKED\r\nExpect: 100-Continue\r\n",
            "expect: 100-continue\r\ntransfer-encoding: chunked\r\n",
        );
        post("Expect: 100-continue\r\n", "");
        check_request("GET http://a HTTP/1.0\r\n", false, OFF, "GET / HTTP/1.1\r\nhost: a\r\n");
        check_request("GET / HTTP/1.0\r\n", false, OFF, "GET / HTTP/1.1\r\nhost: 127.0.0.1:8080\r\n");
        check_request(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n",
            false,
            OFF,
            "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n",
        );
    }

    #[test]
    fn only_a_trusted_proxy_is_believed() {
        let lines = "GET / HTTP/1.1\r\nHost: a:80\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 2.2.2.2\r\nX-Forwarded-Proto: https\r\n\
                     X-Forwarded-Host: b\r\nForwarded: for=3.3.3.3\r\nx_forwarded_for: 4.4.4.4\r\nConnection: x-forwarded-for\r\n";
        let start = "GET / HTTP/1.1\r\nhost: a:80\r\n";
        let check = |is_trusted, forwarded, expect: &str| {
            check_request(lines, is_trusted, forwarded, &format!("{start}{expect}"));
        };
        check(
            false,
            ForwardedHeaders::XForwarded,
            "x-forwarded-for: 10.0.0.9\r\nx-forwarded-proto: http\r\nx-forwarded-host: a:80\r\n",
        );
        check(
            true,
            ForwardedHeaders::XForwarded,
            "x-forwarded-for: 1.1.1.1, 2.2.2.2, 10.0.0.9\r\nx-forwarded-proto: https\r\nx-forwarded-host: b\r\nforwarded: for=3.3.3.3\r\n",
        );
        check(false, ForwardedHeaders::Rfc7239, "forwarded: for=10.0.0.9;proto=http;host=\"a:80\"\r\n");
        check(false, OFF, "");
        check(
            true,
            OFF,
            "x-forwarded-proto: https\r\nx-forwarded-host: b\r\nx-forwarded-for: 1.1.1.1\r\nx-forwarded-for: 2.2.2.2\r\nforwarded: for=3.3.3.3\r\n",
        );
    }

    /// Removes the `Date` line, which must be present.
    fn undated(out: Vec<u8>) -> String {
        let text = String::from_utf8(out).unwrap();
        let (before, behind) = text.split_once("\r\ndate: ").unwrap();
        let (date, behind) = behind.split_once("\r\n").unwrap();
        assert!(date.len() == 29 && date.ends_with(" GMT"), "{date}");
        format!("{before}\r\n{behind}")
    }

    #[track_caller]
    fn check_response(text: &str, method: Method, version: Version, keep_alive: bool, expect: &str) {
        let mut head = ResponseHead::default();
        parse_response(text.as_bytes(), 100, method, &mut head).unwrap();
        let mut out = Vec::new();
        let to = ResponseContext { method, version, keep_alive, web: None };
        write_response(Head::H1(&mut out), &head, text.as_bytes(), &to, &ResponseEdits::NONE);
        assert_eq!(undated(out), format!("{expect}\r\n"), "{text}");
    }

    #[test]
    fn responses_are_framed_for_the_client() {
        let (get, new, old) = (Method::Get, Version::Http11, Version::Http10);
        let ok = "HTTP/1.1 200 OK\r\n";
        let check = |fields: &str, version, keep_alive, expect: &str| {
            check_response(&format!("{ok}{fields}\r\n"), get, version, keep_alive, &format!("{ok}{expect}"));
        };
        check("A: b\r\nContent-Length: 03\r\n", new, true, "A: b\r\ncontent-length: 3\r\n");
        check(
            "Content-Length: 3\r\nKeep-Alive: x\r\nConnection: keep-alive, A\r\nA: b\r\n",
            new,
            true,
            "content-length: 3\r\n",
        );
        check("Content-Length: 3\r\n", old, true, "content-length: 3\r\nconnection: keep-alive\r\n");
        check("Content-Length: 0\r\n", new, true, "content-length: 0\r\n");
        check("", new, true, "transfer-encoding: chunked\r\n");
        check("", old, false, "connection: close\r\n");
        check("Transfer-Encoding: chunked\r\n", new, true, "transfer-encoding: chunked\r\n");
        check("Transfer-Encoding: chunked\r\n", old, false, "connection: close\r\n");
        check_response("HTTP/1.1 204 None\r\nContent-Length: 9\r\n\r\n", get, new, true, "HTTP/1.1 204 None\r\n");
        check_response(
            "HTTP/1.1 304 Same\r\nContent-Length: 9\r\n\r\n",
            get,
            new,
            true,
            "HTTP/1.1 304 Same\r\ncontent-length: 9\r\n",
        );
        check_response(
            &format!("{ok}Content-Length: 09\r\n\r\n"),
            Method::Head,
            new,
            true,
            &format!("{ok}content-length: 9\r\n"),
        );
        check_response(&format!("{ok}\r\n"), Method::Head, new, true, ok);
    }

    fn changes() -> HeaderChanges {
        let pair = |name: &str, value: &str| (name.to_owned(), value.into());
        HeaderChanges {
            set: vec![pair("x-edge", "steelyard")],
            add: vec![pair("x-tag", "b")],
            remove: vec!["x-internal".to_owned(), "cookie".to_owned()],
        }
    }

    #[test]
    fn a_route_changes_what_the_endpoint_gets() {
        let text = "GET /old?x HTTP/1.1\r\nHost: a\r\nX-Internal: 1\r\nX-EDGE: me\r\nx-edge: too\r\nX-Tag: a\r\n\
                    Cookie: c\r\nContent-Length: 3\r\n\r\n";
        let changes = changes();
        let edits =
            RequestEdits { target: Some(b"/new?x"), host: Some("b:81"), headers: &changes, ..RequestEdits::NONE };
        let mut out = Vec::new();
        let client = client(false, ForwardedHeaders::XForwarded, &[]);
        write_request(Head::H1(&mut out), &request(text), text.as_bytes(), &client, "http", &edits);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "GET /new?x HTTP/1.1\r\nhost: b:81\r\nX-Tag: a\r\nx-edge: steelyard\r\nx-tag: b\r\ncontent-length: 3\r\n\
             x-forwarded-for: 10.0.0.9\r\nx-forwarded-proto: http\r\nx-forwarded-host: a\r\n\r\n"
        );
    }

    #[test]
    fn nothing_takes_a_name_out_of_the_way_of_a_request() {
        let text = "GET / HTTP/1.1\r\nHost: a\r\nCDN-Loop: b; c=d\r\ncdn-loop: e\r\nCDN_Loop: f\r\nConnection: cdn-loop\r\n\r\n";
        let remove = vec!["cdn-loop".to_owned(), "cdn_loop".to_owned()];
        let changes = HeaderChanges { set: vec![("cdn-loop".to_owned(), "g".into())], add: Vec::new(), remove };
        let written = |id: FieldId, mark: Option<&str>| {
            let mut head = request(text);
            head.fields.iter_mut().filter(|field| field.id == FieldId::Other).for_each(|field| field.id = id);
            let mut out = Vec::new();
            let edits = RequestEdits { headers: &changes, mark, ..RequestEdits::NONE };
            let client = client(false, ForwardedHeaders::Off, &[]);
            write_request(Head::H1(&mut out), &head, text.as_bytes(), &client, "http", &edits);
            String::from_utf8(out).unwrap()
        };
        let kept = "GET / HTTP/1.1\r\nhost: a\r\nCDN-Loop: b; c=d\r\ncdn-loop: e\r\ncdn-loop: g\r\n";
        // Also if a service is to set it, and clients are not.
        for id in [FieldId::Other, FieldId::Claim] {
            assert_eq!(written(id, None), format!("{kept}\r\n"));
            assert_eq!(written(id, Some("m")), format!("{kept}cdn-loop: m\r\n\r\n"));
        }
    }

    #[test]
    fn a_route_changes_what_the_client_gets() {
        let text = "HTTP/1.1 200 OK\r\nX-Internal: 1\r\nX-Edge: me\r\nSet-Cookie: a=b\r\nContent-Length: 3\r\n\r\n";
        let mut head = ResponseHead::default();
        parse_response(text.as_bytes(), 100, Method::Get, &mut head).unwrap();
        let changes = changes();
        let session = SessionField { name: "set-cookie", value: b"shop=1; Path=/"[..].into() };
        let edits = ResponseEdits { headers: &changes, session: Some(&session), ..ResponseEdits::NONE };
        let mut out = Vec::new();
        let to = ResponseContext { method: Method::Get, version: Version::Http11, keep_alive: true, web: None };
        write_response(Head::H1(&mut out), &head, text.as_bytes(), &to, &edits);
        assert_eq!(
            undated(out),
            "HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nx-edge: steelyard\r\nx-tag: b\r\nset-cookie: shop=1; Path=/\r\n\
             content-length: 3\r\n\r\n"
        );
    }

    #[test]
    fn a_response_has_one_date() {
        let check = |line: &str, changes: &HeaderChanges, expect: &[&str]| {
            let text = format!("HTTP/1.1 200 OK\r\n{line}Content-Length: 3\r\n\r\n");
            let mut head = ResponseHead::default();
            parse_response(text.as_bytes(), 100, Method::Get, &mut head).unwrap();
            let edits = ResponseEdits { headers: changes, ..ResponseEdits::NONE };
            let mut out = Vec::new();
            let to = ResponseContext { method: Method::Get, version: Version::Http11, keep_alive: true, web: None };
            write_response(Head::H1(&mut out), &head, text.as_bytes(), &to, &edits);
            let text = String::from_utf8(out).unwrap();
            let dates: Vec<&str> = text.lines().filter(|line| line.to_lowercase().starts_with("date:")).collect();
            assert_eq!(dates, expect, "{line} {changes:?}");
        };
        let changes = |set: &[(&str, &str)], remove: &[&str]| HeaderChanges {
            set: set.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect(),
            add: Vec::new(),
            remove: remove.iter().map(|name| (*name).to_owned()).collect(),
        };
        check("Date: then\r\n", &changes(&[], &[]), &["Date: then"]);
        check("Date: then\r\n", &changes(&[("date", "now")], &[]), &["date: now"]);
        check("", &changes(&[("date", "now")], &[]), &["date: now"]);
        check("", &changes(&[], &["date"]), &[]);
    }

    #[test]
    fn a_tunnel_over_http_2_is_told_as_http_1_1_tells_it() {
        let asked = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        let upgrade = Upgrade::of(&request(asked), asked.as_bytes(), true).unwrap();
        let text = "HTTP/1.1 200 OK\r\nSec-WebSocket-Accept: another\r\nSec-WebSocket-Protocol: chat\r\n\r\n";
        let mut head = ResponseHead::default();
        parse_response(text.as_bytes(), 100, Method::Get, &mut head).unwrap();
        let mut out = Vec::new();
        write_interim(&mut out, &head, text.as_bytes(), Some(&upgrade), &ResponseEdits::NONE);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Protocol: chat\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
        );
    }

    #[test]
    fn what_a_stranger_claims_is_dropped() {
        let lines = "GET / HTTP/1.1\r\nHost: a\r\nX-Real-IP: 1.1.1.1\r\nX-Forwarded-Port: 443\r\nX-Forwarded-Prefix: /x\r\n\
                     X-Forwarded-Ssl: on\r\nX-Forwarded-Server: b\r\nX-Original-URL: /admin\r\nX_Real_IP: 2.2.2.2\r\nX-Kept: 1\r\n";
        let start = "GET / HTTP/1.1\r\nhost: a\r\n";
        check_request(lines, false, OFF, &format!("{start}X-Kept: 1\r\n"));
        check_request(
            lines,
            true,
            OFF,
            &format!(
                "{start}X-Real-IP: 1.1.1.1\r\nX-Forwarded-Port: 443\r\nX-Forwarded-Prefix: /x\r\nX-Forwarded-Ssl: on\r\n\
                 X-Forwarded-Server: b\r\nX-Original-URL: /admin\r\nX-Kept: 1\r\n"
            ),
        );
    }

    #[test]
    fn trailers_are_announced_where_they_can_come() {
        let lines = "POST / HTTP/1.1\r\nHost: a\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n";
        let expect = "POST / HTTP/1.1\r\nhost: a\r\nTrailer: X-Sum\r\ntransfer-encoding: chunked\r\n";
        check_request(lines, false, OFF, expect);
        let named = format!("{lines}Connection: trailer\r\n");
        check_request(&named, false, OFF, &expect.replace("Trailer: X-Sum\r\n", ""));
        // Trailers with these names are dropped.
        let some = lines.replace("X-Sum", "authorization,X-Sum ,Content-Length, X-Real-IP,X-More");
        check_request(&some, false, OFF, &expect.replace("X-Sum", "X-Sum, X-More"));
        let none = lines.replace("X-Sum", "authorization");
        check_request(&none, false, OFF, &expect.replace("Trailer: X-Sum\r\n", ""));
    }

    #[test]
    fn trailers_that_would_be_believed_are_dropped() {
        let section = b"X-Sum: 1\r\nContent-Length: 5\r\nHost: b\r\nAuthorization: c\r\nx-forwarded-for: d\r\n\r\n";
        let mut fields = Vec::new();
        h1::parse_trailers(section, &mut fields).unwrap();
        let mut out = Vec::new();
        write_trailers(&mut out, &fields, section);
        assert_eq!(out, b"X-Sum: 1\r\n");
    }
}
