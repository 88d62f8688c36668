//! Turns header lists into neutral heads. It refuses what RFC 9113 section 8 forbids, and what HTTP/1.1 could not carry.
//!
//! A head is an index over bytes in the same buffer. Nothing that is refused here reaches the other side of the proxy in any form, so a
//! field that means one thing in HTTP/2 and another in HTTP/1.1 cannot smuggle anything.

use super::error::Reason;
use super::limits::Limits;
use super::memo::{self, Memo};
use crate::h1::authority::is_authority;
use crate::h1::fields::content_length;
use crate::hpack::{Decoded, Decoder, FIELD_OVERHEAD_BYTES, HpackError, Kind};
use crate::message::{Body, Field, FieldId, Method, RequestHead, ResponseHead, Span, Version};

/// The buffers for the next head. The owner takes the head by swapping it for its own buffers.
#[derive(Debug, Default)]
pub(super) struct HeadBuffers {
    pub(super) request: RequestHead,
    pub(super) response: ResponseHead,
    pub(super) trailers: Vec<Field>,
    /// The bytes that the spans point into.
    pub(super) bytes: Vec<u8>,
    /// Cookie crumbs, joined.
    cookies: Vec<u8>,
    /// One for heads and one for trailers, because the two alternate on a connection to a gRPC server.
    memos: [Memo; 2],
}

/// Why a decoded head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A stream error (section 8.1.1).
    Malformed(Reason),
    /// It exceeds the limits; a server answers 431.
    TooLarge,
}

/// A list that was read or refused. The block was decoded in both cases.
type Outcome<T> = Result<Result<T, Refusal>, HpackError>;

/// The length of the body that the head states; `None` if it states none.
type ContentLength = Option<u64>;

impl HeadBuffers {
    /// Reads a request. `is_end`: the head ends the stream.
    pub(super) fn read_request(
        &mut self,
        decoder: &mut Decoder,
        block: &[u8],
        limits: &Limits,
        is_end: bool,
    ) -> Outcome<ContentLength> {
        let Self { request, bytes, cookies, memos: [memo, _], .. } = self;
        let mut list = List::new(&mut request.fields, bytes, cookies, limits);
        let outcome = list.read(decoder, block, memo)?;
        let pseudo = list.pseudo;
        if let Some((known, length)) = memo.request(is_end) {
            *request = RequestHead { fields: std::mem::take(&mut request.fields), ..*known };
            return Ok(Ok(length));
        }
        let filled = outcome.and_then(|()| {
            fill_request(request, bytes, &pseudo, limits.extended_connect, is_end).map_err(Refusal::Malformed)
        });
        if filled.is_ok() {
            memo.note_request(request, is_end);
        }
        Ok(filled)
    }

    /// Reads a response, informational or final. `is_bodiless`: it answers HEAD.
    pub(super) fn read_response(
        &mut self,
        decoder: &mut Decoder,
        block: &[u8],
        limits: &Limits,
        is_end: bool,
        is_bodiless: bool,
    ) -> Outcome<ContentLength> {
        let Self { response, bytes, cookies, memos: [memo, _], .. } = self;
        let mut list = List::new(&mut response.fields, bytes, cookies, limits);
        let outcome = list.read(decoder, block, memo)?;
        let pseudo = list.pseudo;
        Ok(outcome
            .and_then(|()| fill_response(response, bytes, &pseudo, is_end, is_bodiless).map_err(Refusal::Malformed)))
    }

    /// Reads trailers.
    pub(super) fn read_trailers(&mut self, decoder: &mut Decoder, block: &[u8], limits: &Limits) -> Outcome<()> {
        let Self { trailers, bytes, cookies, memos: [_, memo], .. } = self;
        let mut list = List::new(trailers, bytes, cookies, limits);
        let outcome = list.read(decoder, block, memo)?;
        let pseudo = list.pseudo;
        Ok(outcome.and_then(|()| {
            // No pseudo-header fields (section 8.1), and no field by which a recipient that merges trailers into the head would frame or
            // route (RFC 9110 section 6.5.1).
            let framing = trailers.iter().any(|field| matches!(field.id, FieldId::ContentLength | FieldId::Host));
            if framing { Err(Refusal::Malformed(Reason::Trailers)) } else { pseudo.none().map_err(Refusal::Malformed) }
        }))
    }

    /// How many lists were read without decoding their blocks.
    #[cfg(test)]
    pub(super) fn recalls(&self) -> u32 {
        self.memos.iter().map(Memo::recalls).sum()
    }

    /// Frees its buffers.
    pub(super) fn shrink(&mut self) {
        *self = Self::default();
    }

    /// Bytes of memory that it holds.
    pub(super) fn memory_bytes(&self) -> usize {
        let fields = self.request.fields.capacity() + self.response.fields.capacity() + self.trailers.capacity();
        let memos: usize = self.memos.iter().map(Memo::memory_bytes).sum();
        self.bytes.capacity() + self.cookies.capacity() + fields * size_of::<Field>() + memos
    }
}

/// The maximum of [`HeadBuffers::memory_bytes`], before vectors round up.
pub(super) fn memory_bytes_max(list_bytes: usize, fields: usize) -> usize {
    // Cookies are held twice: as separate crumbs and joined.
    2 * list_bytes + 3 * fields * size_of::<Field>() + 2 * memo::MEMORY_BYTES_MAX
}

/// The pseudo-header fields of a list.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pseudo {
    method: Option<Span>,
    scheme: Option<Span>,
    authority: Option<Span>,
    path: Option<Span>,
    protocol: Option<Span>,
    status: Option<Span>,
    /// `content-length` is not a pseudo-header field, but is found in the same pass.
    pub(super) content_length: ContentLength,
    /// The same for `host`.
    host: Option<Span>,
    expects_continue: bool,
    expects_unknown: bool,
}

impl Pseudo {
    fn none(&self) -> Result<(), Reason> {
        let all = [self.method, self.scheme, self.authority, self.path, self.protocol, self.status];
        if all.iter().any(Option::is_some) { Err(Reason::PseudoHeader) } else { Ok(()) }
    }
}

/// A list that is being read.
struct List<'r> {
    fields: &'r mut Vec<Field>,
    bytes: &'r mut Vec<u8>,
    cookies: &'r mut Vec<u8>,
    /// The position of the first crumb among the fields.
    cookie_at: Option<usize>,
    pseudo: Pseudo,
    refusal: Option<Refusal>,
    bytes_left: usize,
    fields_left: usize,
}

impl<'r> List<'r> {
    fn new(fields: &'r mut Vec<Field>, bytes: &'r mut Vec<u8>, cookies: &'r mut Vec<u8>, limits: &Limits) -> Self {
        fields.clear();
        bytes.clear();
        cookies.clear();
        Self {
            fields,
            bytes,
            cookies,
            cookie_at: None,
            pseudo: Pseudo::default(),
            refusal: None,
            bytes_left: limits.header_list_bytes_max as usize,
            fields_left: limits.fields_max as usize,
        }
    }

    /// Reads a whole block. All kinds of lists share it: it is a lot of code, which then occupies only one place in the cache.
    #[inline(never)]
    fn read(&mut self, decoder: &mut Decoder, block: &[u8], memo: &mut Memo) -> Outcome<()> {
        if let Some(pseudo) = memo.recall(decoder, block, self.fields, self.bytes) {
            self.pseudo = pseudo;
            return Ok(Ok(()));
        }
        decoder.decode(block, |field| self.take(&field))?;
        if let Some(cookie) = self.cookie_at.and_then(|at| self.fields.get_mut(at)) {
            cookie.value = push(self.bytes, self.cookies);
        }
        if let Some(refusal) = self.refusal {
            return Ok(Err(refusal));
        }
        memo.note(decoder, block, self.fields, self.bytes, &self.pseudo);
        Ok(Ok(()))
    }

    /// Once the list is refused, its fields are not even looked at. So a block of one-byte references to a large field costs only its own
    /// length.
    fn take(&mut self, field: &Decoded<'_>) {
        let size = field.name.len() + field.value.len() + FIELD_OVERHEAD_BYTES;
        let left = (self.bytes_left.checked_sub(size), self.fields_left.checked_sub(1));
        let (Some(bytes_left), Some(fields_left)) = left else { return self.refuse(Refusal::TooLarge) };
        (self.bytes_left, self.fields_left) = (bytes_left, fields_left);
        if let Err(reason) = self.place(field) {
            self.refuse(Refusal::Malformed(reason));
        }
    }

    /// Keeps the first reason. From then on there is no room for any field.
    #[cold]
    fn refuse(&mut self, refusal: Refusal) {
        self.refusal.get_or_insert(refusal);
        self.fields_left = 0;
    }

    fn place(&mut self, field: &Decoded<'_>) -> Result<(), Reason> {
        let pseudo = match field.kind {
            Kind::Field(id) => return self.place_field(id, field),
            Kind::BadName | Kind::BadValue => return Err(Reason::Field),
            Kind::UnknownPseudo => return Err(Reason::PseudoHeader),
            Kind::Method => &mut self.pseudo.method,
            Kind::Scheme => &mut self.pseudo.scheme,
            Kind::Authority => &mut self.pseudo.authority,
            Kind::Path => &mut self.pseudo.path,
            Kind::Protocol => &mut self.pseudo.protocol,
            Kind::Status => &mut self.pseudo.status,
        };
        // Each may occur once, and all must come before the other fields (section 8.3).
        if pseudo.is_some() || !self.fields.is_empty() {
            return Err(Reason::PseudoHeader);
        }
        *pseudo = Some(push(self.bytes, field.value));
        Ok(())
    }

    fn place_field(&mut self, id: FieldId, field: &Decoded<'_>) -> Result<(), Reason> {
        match id {
            FieldId::Connection
            | FieldId::KeepAlive
            | FieldId::ProxyConnection
            | FieldId::TransferEncoding
            | FieldId::Upgrade => return Err(Reason::ConnectionField),
            FieldId::Te if !field.value.eq_ignore_ascii_case(b"trailers") => return Err(Reason::ConnectionField),
            FieldId::Cookie => return self.place_crumb(field),
            FieldId::ContentLength => {
                let length = content_length(field.value).map_err(|_| Reason::ContentLength)?;
                if self.pseudo.content_length.replace(length).is_some() {
                    return Err(Reason::ContentLength);
                }
            }
            FieldId::Expect if field.value.eq_ignore_ascii_case(b"100-continue") => self.pseudo.expects_continue = true,
            FieldId::Expect => self.pseudo.expects_unknown = true,
            _ => {}
        }
        let (name, value) = if field.text.is_empty() {
            (push(self.bytes, field.name), push(self.bytes, field.value))
        } else {
            let Span { start, end } = push(self.bytes, field.text);
            let middle = start + field.name.len() as u32;
            (Span { start, end: middle }, Span { start: middle, end })
        };
        if id == FieldId::Host && self.pseudo.host.replace(value).is_some() {
            return Err(Reason::Authority);
        }
        self.fields.push(Field { id, name, value, never_indexed: field.never_indexed });
        Ok(())
    }

    /// A cookie may arrive in crumbs. They are joined for recipients that do not speak HTTP/2 (section 8.2.3).
    fn place_crumb(&mut self, field: &Decoded<'_>) -> Result<(), Reason> {
        match self.cookie_at.and_then(|at| self.fields.get_mut(at)) {
            Some(cookie) => {
                // An empty crumb has no content, and would leave white space at an end of the value, which HTTP/1.1 does not carry.
                if !field.value.is_empty() && !self.cookies.is_empty() {
                    self.cookies.extend_from_slice(b"; ");
                }
                cookie.never_indexed |= field.never_indexed;
            }
            None => {
                self.cookie_at = Some(self.fields.len());
                let name = push(self.bytes, field.name);
                let never_indexed = field.never_indexed;
                self.fields.push(Field { id: FieldId::Cookie, name, value: Span::default(), never_indexed });
            }
        }
        self.cookies.extend_from_slice(field.value);
        Ok(())
    }
}

fn push(bytes: &mut Vec<u8>, part: &[u8]) -> Span {
    let start = bytes.len() as u32;
    bytes.extend_from_slice(part);
    Span { start, end: bytes.len() as u32 }
}

/// Section 8.3.1, and section 8.5 for CONNECT.
fn fill_request(
    head: &mut RequestHead,
    bytes: &[u8],
    pseudo: &Pseudo,
    extended_connect: bool,
    is_end: bool,
) -> Result<ContentLength, Reason> {
    head.method_name = pseudo.method.ok_or(Reason::PseudoHeader)?;
    let method = head.method_name.get(bytes);
    head.method = Method::of(method);
    if pseudo.status.is_some() || head.method == Method::Other && !is_token(method) {
        return Err(Reason::PseudoHeader);
    }
    let is_connect = head.method == Method::Connect;
    match pseudo.protocol {
        None => {}
        Some(protocol) if is_connect && extended_connect && is_token(protocol.get(bytes)) => {}
        Some(_) => return Err(Reason::PseudoHeader),
    }
    (head.scheme, head.path) = match (pseudo.scheme, pseudo.path) {
        (None, None) if is_connect && pseudo.protocol.is_none() => (Span::default(), Span::default()),
        (Some(scheme), Some(path)) if !is_connect || pseudo.protocol.is_some() => (scheme, path),
        _ => return Err(Reason::PseudoHeader),
    };
    let is_plain_connect = is_connect && pseudo.protocol.is_none();
    if !is_plain_connect {
        // Nothing else is proxied. A scheme that contains `://` is an attack on a recipient that writes an absolute URI from it.
        let scheme_ok = matches!(head.scheme.get(bytes), b"http" | b"https");
        if !scheme_ok || !is_path(head.path.get(bytes), head.method) {
            return Err(Reason::PseudoHeader);
        }
    }
    head.authority = authority(bytes, pseudo, is_connect)?;
    head.version = Version::Http2;
    head.keep_alive = true;
    head.names_fields = false;
    head.upgrade = pseudo.protocol;
    head.body = body(pseudo.content_length, is_end)?;
    head.expect_continue = pseudo.expects_continue && !is_end;
    head.expect_unknown = pseudo.expects_unknown;
    Ok(pseudo.content_length)
}

/// As in HTTP/1.1 (`h1::parse_request`): origin-form, or `*` for OPTIONS; visible ASCII without a fragment.
fn is_path(path: &[u8], method: Method) -> bool {
    // Avoids a branch per byte.
    let is_visible = path.iter().fold(true, |visible, byte| visible & matches!(byte, 0x21..=0x7e) & (*byte != b'#'));
    is_visible && (path.first() == Some(&b'/') || path == b"*" && method == Method::Options)
}

/// There must be one valid authority. `host` may replace it, or repeat it and then must be the same (section 8.3.1), because an endpoint
/// may read either.
fn authority(bytes: &[u8], pseudo: &Pseudo, is_connect: bool) -> Result<Span, Reason> {
    let authority = match (pseudo.authority, pseudo.host) {
        (Some(authority), Some(host)) if !authority.get(bytes).eq_ignore_ascii_case(host.get(bytes)) => {
            return Err(Reason::Authority);
        }
        (Some(authority), _) => authority,
        // For CONNECT it is the target, and `:authority` must be present.
        (None, Some(host)) if !is_connect => host,
        (None, _) => return Err(Reason::Authority),
    };
    if is_authority(authority.get(bytes)) { Ok(authority) } else { Err(Reason::Authority) }
}

/// The end of the stream and `content-length` must agree (section 8.1.1).
fn body(length: ContentLength, is_end: bool) -> Result<Body, Reason> {
    match (length, is_end) {
        (None | Some(0), true) => Ok(Body::None),
        (Some(_), true) => Err(Reason::ContentLength),
        (Some(0), false) => Ok(Body::None),
        (Some(length), false) => Ok(Body::Length(length)),
        (None, false) => Ok(Body::Chunked),
    }
}

/// Section 8.3.2.
fn fill_response(
    head: &mut ResponseHead,
    bytes: &[u8],
    pseudo: &Pseudo,
    is_end: bool,
    is_head: bool,
) -> Result<ContentLength, Reason> {
    let Some(status) = pseudo.status.map(|status| status.get(bytes)) else { return Err(Reason::PseudoHeader) };
    if [pseudo.method, pseudo.scheme, pseudo.authority, pseudo.path, pseudo.protocol].iter().any(Option::is_some) {
        return Err(Reason::PseudoHeader);
    }
    let &[hundreds @ b'1'..=b'9', tens @ b'0'..=b'9', ones @ b'0'..=b'9'] = status else {
        return Err(Reason::PseudoHeader);
    };
    let digit = |byte: u8| u16::from(byte - b'0');
    head.status = 100 * digit(hundreds) + 10 * digit(tens) + digit(ones);
    // Section 8.1: an informational response does not end the stream. Section 8.6: 101 does not exist.
    if head.status == 101 || head.status < 200 && is_end {
        return Err(Reason::Response);
    }
    head.reason = Span::default();
    head.version = Version::Http2;
    head.keep_alive = true;
    head.names_fields = false;
    head.keep_alive_timeout_s = None;
    head.content_length = pseudo.content_length;
    head.body = match head.status {
        100..=199 | 204 | 304 => Body::None,
        // `content-length` is that of the response to GET.
        _ if is_head => Body::None,
        _ => body(pseudo.content_length, is_end)?,
    };
    Ok(pseudo.content_length)
}

fn is_token(text: &[u8]) -> bool {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_allowed)
}
