//! Which responses are compressed, and what their heads say.

use model::{Compression, Encoding, FieldValue, HeaderChanges};
use wire::message::{Body, Field, FieldId, Method, RequestHead, ResponseHead, list};

use super::accept::choose;
use crate::grpc::Call;
use crate::http::headers::{Out, is_named, named_in_connection};
use crate::policy::headers::{decides, drops};

/// How the head of a response on a route with compression changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompressedHead {
    /// The body is compressed.
    pub(crate) encoding: Option<Encoding>,
    /// `Vary` does not say yet that another client may get the response in another encoding.
    needs_vary: bool,
    /// A strong `ETag` becomes a weak one: the bytes are not those that it stands for.
    weakens: bool,
}

/// What should happen to a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) head: CompressedHead,
    /// Its client should get the body in this encoding.
    pub(crate) encoding: Option<Encoding>,
    /// What the endpoint has sent is passed on whenever it pauses: the end is not known, so it may pause for long.
    pub(crate) flushes: bool,
}

/// `changes`: those of the route to the response's headers. Returns `None` if it stays as it is.
pub(crate) fn decide(
    policy: &Compression,
    (request, request_bytes): (&RequestHead, &[u8]),
    (response, bytes): (&ResponseHead, &[u8]),
    changes: &HeaderChanges,
) -> Option<Wish> {
    let found = Found::of(response, bytes, changes);
    if response.status == 304 {
        // It is about the response that the client has, whose ETag was made weak here (RFC 9111 section 4.3.4 compares them). For a client that
        // takes no such response it stays strong, so that a cache does not use one for it.
        choose(&request.fields, request_bytes, &policy.encodings)?;
        found.etag.filter(|etag| is_strong(etag) && has_made_weak(request, request_bytes, etag))?;
        let head = CompressedHead { encoding: None, needs_vary: !found.varies, weakens: true };
        return Some(Wish { head, encoding: None, flushes: false });
    }
    // 205 has no body, and 206 is a part of a representation whose bytes the client counts.
    if !matches!(response.status, 200..=599) || matches!(response.status, 204..=206) || found.is_final {
        return None;
    }
    let content_type = found.content_type?;
    let is_listed = policy.types.iter().any(|range| range.contains(content_type));
    let is_long = response.content_length.is_none_or(|length| length >= policy.bytes_min);
    if !is_listed || !is_long || Call::of_content_type(content_type).is_some() {
        return None;
    }
    let head = CompressedHead { encoding: None, needs_vary: !found.varies, weakens: false };
    let is_asked_for = request.method != Method::Head
        && response.body != Body::None
        && !has(&request.fields, request_bytes, b"range")
        && !has_no_transform(&request.fields, request_bytes);
    let encoding = if is_asked_for { choose(&request.fields, request_bytes, &policy.encodings) } else { None };
    let is_stream = content_type.len() >= EVENTS.len()
        && content_type.get(..EVENTS.len()).is_some_and(|text| text.eq_ignore_ascii_case(EVENTS));
    Some(Wish { head, encoding, flushes: response.content_length.is_none() || is_stream })
}

const EVENTS: &[u8] = b"text/event-stream";

/// The fields of a response that matter here.
#[derive(Default)]
struct Found<'b> {
    content_type: Option<&'b [u8]>,
    etag: Option<&'b [u8]>,
    /// Nobody may change the body, or it has an encoding, or something about its bytes is promised.
    is_final: bool,
    varies: bool,
}

impl<'b> Found<'b> {
    fn of(response: &ResponseHead, bytes: &'b [u8], changes: &'b HeaderChanges) -> Self {
        let mut found = Self { is_final: decides(changes, b"content-encoding"), ..Self::default() };
        // What `Connection` names is not passed on.
        let named = named_in_connection(response.names_fields, &response.fields, bytes);
        let is_passed_on = |name: &[u8]| !drops(changes, name) && !is_named(&named, name);
        for field in &response.fields {
            let (name, value) = (field.name.get(bytes), field.value.get(bytes));
            let is = |wanted: &[u8]| name.eq_ignore_ascii_case(wanted);
            match (field.id, name.len()) {
                (FieldId::Trailer, _) => found.is_final |= list(value).any(is_digest),
                (FieldId::Other, 4) if is(b"etag") => found.etag = Some(value).filter(|_| is_passed_on(name)),
                (FieldId::Other, 4) if is(b"vary") => found.varies |= is_passed_on(name) && names_encoding(value),
                (FieldId::Other, 12) if is(b"content-type") => found.content_type = Some(value),
                (FieldId::Other, 13) if is(b"cache-control") => found.is_final |= forbids(value),
                (FieldId::Other, _) => {
                    found.is_final |= is(b"content-encoding") || is(b"content-range") || is_digest(name);
                }
                _ => {}
            }
        }
        for (name, value) in changes.set.iter().chain(&changes.add) {
            // One with variables is different in each response, so no client has it.
            let FieldValue::Text(text) = value else { continue };
            match name.as_str() {
                "etag" => found.etag = Some(text.as_bytes()),
                "vary" => found.varies |= names_encoding(text.as_bytes()),
                _ => {}
            }
        }
        found
    }
}

/// Whether a field promises something about the bytes of a body (RFC 9530, and its predecessors).
pub(super) fn is_digest(name: &[u8]) -> bool {
    const DIGESTS: [&[u8]; 4] = [b"content-digest", b"repr-digest", b"digest", b"content-md5"];
    DIGESTS.iter().any(|digest| name.eq_ignore_ascii_case(digest))
}

fn has(fields: &[Field], bytes: &[u8], name: &[u8]) -> bool {
    fields.iter().any(|field| field.name.get(bytes).eq_ignore_ascii_case(name))
}

/// RFC 9111 sections 5.2.1.6 and 5.2.2.6.
fn has_no_transform(fields: &[Field], bytes: &[u8]) -> bool {
    let is_it = |field: &&Field| field.name.get(bytes).eq_ignore_ascii_case(b"cache-control");
    fields.iter().filter(is_it).any(|field| forbids(field.value.get(bytes)))
}

fn forbids(cache_control: &[u8]) -> bool {
    list(cache_control).any(|directive| directive.eq_ignore_ascii_case(b"no-transform"))
}

/// Whether a `Vary` says that the response depends on `Accept-Encoding`.
fn names_encoding(vary: &[u8]) -> bool {
    list(vary).any(|name| name == b"*" || name.eq_ignore_ascii_case(b"accept-encoding"))
}

fn is_strong(etag: &[u8]) -> bool {
    etag.starts_with(b"\"")
}

/// Whether the request is about a response with this ETag, made weak.
fn has_made_weak(request: &RequestHead, bytes: &[u8], etag: &[u8]) -> bool {
    let is_it = |field: &&Field| field.name.get(bytes).eq_ignore_ascii_case(b"if-none-match");
    let values = request.fields.iter().filter(is_it).map(|field| field.value.get(bytes));
    values.flat_map(list).any(|known| known.strip_prefix(b"W/") == Some(etag))
}

impl CompressedHead {
    /// The body is compressed.
    pub(crate) fn coded(self, encoding: Encoding) -> Self {
        Self { encoding: Some(encoding), weakens: true, ..self }
    }

    /// Writes a field of the response differently, or leaves it out. Returns false if it stays as it is.
    pub(crate) fn write(&mut self, out: &mut impl Out, name: &[u8], value: &[u8], never_indexed: bool) -> bool {
        match name.len() {
            4 if self.needs_vary && name.eq_ignore_ascii_case(b"vary") => {
                self.needs_vary = false;
                let text = out.value(name);
                text.extend_from_slice(value);
                text.extend_from_slice(if value.is_empty() { b"accept-encoding" } else { b", accept-encoding" });
                out.end(never_indexed);
                true
            }
            4 if self.weakens && is_strong(value) && name.eq_ignore_ascii_case(b"etag") => {
                write_weak(out, name, value, never_indexed);
                true
            }
            // Parts of the compressed body cannot be had.
            13 => self.encoding.is_some() && name.eq_ignore_ascii_case(b"accept-ranges"),
            _ => false,
        }
    }

    /// Writes a field that the route adds.
    pub(crate) fn write_added(&self, out: &mut impl Out, name: &[u8], value: &[u8]) {
        match self.weakens && is_strong(value) && name == b"etag" {
            true => write_weak(out, name, value, false),
            false => out.field(name, value, false),
        }
    }

    /// Writes what no field of the response has said.
    pub(crate) fn write_rest(&self, out: &mut impl Out) {
        if let Some(encoding) = self.encoding {
            out.field(b"content-encoding", encoding.name().as_bytes(), false);
        }
        if self.needs_vary {
            out.field(b"vary", b"accept-encoding", false);
        }
    }
}

fn write_weak(out: &mut impl Out, name: &[u8], value: &[u8], never_indexed: bool) {
    let text = out.value(name);
    text.extend_from_slice(b"W/");
    text.extend_from_slice(value);
    out.end(never_indexed);
}
