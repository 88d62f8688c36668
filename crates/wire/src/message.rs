//! The neutral message: the content of a request or response head, as an index over the bytes of the head.
//!
//! A head does not own its bytes. To read a [`Span`], pass the buffer in again. The buffer's contents must not move while the head is in
//! use.

use crate::words;

/// A range of the buffer that a head was read from: `start <= end <= buffer.len()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span {
    /// The first byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// The span of `part` within `whole`. If `part` is not a slice of `whole`, the span is empty.
    pub fn of(part: &[u8], whole: &[u8]) -> Self {
        let start = (part.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
        if start > whole.len() || part.len() > whole.len() - start {
            return Self::default();
        }
        Self { start: start as u32, end: (start + part.len()) as u32 }
    }

    /// The bytes. Empty if the range is outside the buffer.
    pub fn get(self, buffer: &[u8]) -> &[u8] {
        buffer.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    /// The number of bytes.
    pub fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether it is empty.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// A header field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Which field it is, if a hop has to know it.
    pub id: FieldId,
    /// As received, in its original case.
    pub name: Span,
    /// Without surrounding white space.
    pub value: Span,
    /// The sender asked that no hop puts it into a compression table (RFC 7541 section 6.2.3). It keeps this mark when it is sent on in
    /// HTTP/2.
    pub never_indexed: bool,
}

/// The fields that a hop has to know: those for framing and routing, the hop-by-hop ones, and those that it sets itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the field of that name")]
pub enum FieldId {
    Host,
    ContentLength,
    TransferEncoding,
    Connection,
    KeepAlive,
    ProxyConnection,
    Te,
    Trailer,
    Upgrade,
    Http2Settings,
    Expect,
    XForwardedFor,
    XForwardedProto,
    XForwardedHost,
    Forwarded,
    ProxyAuthorization,
    ProxyAuthenticate,
    Cookie,
    Date,
    /// `x-real-ip`, `x-forwarded-port`, `x-original-url` and similar fields, which describe a proxy's client and request and which this hop
    /// does not set. Only a trusted proxy may send them.
    Claim,
    /// `x_forwarded_for`, `content.length`, `x~real~ip` and similar names. Servers that map several characters to one (CGI, WSGI, PHP, lighttpd)
    /// take them for a field that this hop sets, or for a claim.
    Alias,
    /// A field that this hop has added to the request. No name has this id, so no `Connection` removes such a field.
    Identity,
    /// Any other field.
    Other,
}

impl FieldId {
    /// The id for a name, in any case.
    pub fn of(name: &[u8]) -> Self {
        // The length alone decides in most cases, so most names cost one comparison or none.
        let known: &[(&[u8], Self)] = match name.len() {
            2 => &[(b"te", Self::Te)],
            4 => &[(b"host", Self::Host), (b"date", Self::Date)],
            6 => &[(b"cookie", Self::Cookie), (b"expect", Self::Expect)],
            7 => &[(b"upgrade", Self::Upgrade), (b"trailer", Self::Trailer)],
            8 => &[(b"x-scheme", Self::Claim)],
            // Frameworks that look for the client's address read `Client-IP`. PHP applications read it as HTTP_CLIENT_IP, before any other.
            9 => &[(b"forwarded", Self::Forwarded), (b"x-real-ip", Self::Claim), (b"client-ip", Self::Claim)],
            10 => &[(b"connection", Self::Connection), (b"keep-alive", Self::KeepAlive)],
            // `client-cert` and its chain: RFC 9440 section 2.4.
            11 => &[(b"x-client-ip", Self::Claim), (b"x-forwarded", Self::Claim), (b"client-cert", Self::Claim)],
            12 => &[(b"x-url-scheme", Self::Claim)],
            13 => &[(b"x-rewrite-url", Self::Claim), (b"forwarded-for", Self::Claim), (b"x-forward-for", Self::Claim)],
            14 => &[
                (b"content-length", Self::ContentLength),
                (b"http2-settings", Self::Http2Settings),
                (b"true-client-ip", Self::Claim),
                (b"x-original-url", Self::Claim),
            ],
            15 => &[
                (b"x-forwarded-for", Self::XForwardedFor),
                (b"x-original-host", Self::Claim),
                (b"front-end-https", Self::Claim),
                (b"proxy-client-ip", Self::Claim),
            ],
            16 => &[
                (b"x-forwarded-host", Self::XForwardedHost),
                (b"proxy-connection", Self::ProxyConnection),
                (b"cf-connecting-ip", Self::Claim),
                (b"fastly-client-ip", Self::Claim),
            ],
            17 => &[
                (b"transfer-encoding", Self::TransferEncoding),
                (b"x-forwarded-proto", Self::XForwardedProto),
                (b"client-cert-chain", Self::Claim),
            ],
            18 => &[
                (b"proxy-authenticate", Self::ProxyAuthenticate),
                (b"wl-proxy-client-ip", Self::Claim),
                (b"cf-connecting-ipv6", Self::Claim),
            ],
            19 => &[(b"proxy-authorization", Self::ProxyAuthorization), (b"x-cluster-client-ip", Self::Claim)],
            20 => &[(b"x-http-host-override", Self::Claim)],
            24 => &[(b"x-envoy-external-address", Self::Claim), (b"x-original-forwarded-for", Self::Claim)],
            25 => &[(b"x-original-forwarded-host", Self::Claim)],
            _ => &[],
        };
        let ends = lower_ends(name);
        for (text, id) in known {
            if ends == lower_ends(text) && is_same_between_ends(name, text) {
                return *id;
            }
        }
        let begins_as_claim = name.first_chunk::<12>().is_some_and(|start| start.eq_ignore_ascii_case(b"x-forwarded-"));
        if begins_as_claim {
            return Self::Claim;
        }
        if name.len() >= ALIAS_BYTES_MIN && is_alias(name) { Self::Alias } else { Self::Other }
    }
}

/// The first and the last bytes of a name in lower case; up to 16 bytes, they are the whole name. Every field of every head is compared by
/// them.
///
/// Setting the bit that lowers a letter does not change digits and `-`, and turns no other byte of a valid name into one of these.
#[inline]
fn lower_ends(name: &[u8]) -> [u64; 2] {
    const LOWER: u64 = u64::from_ne_bytes([0x20; 8]);
    let ends = match (name.first_chunk(), name.last_chunk()) {
        (Some(first), Some(last)) => [u64::from_ne_bytes(*first), u64::from_ne_bytes(*last)],
        _ => match (name.first_chunk(), name.last_chunk()) {
            (Some(first), Some(last)) => [u32::from_ne_bytes(*first).into(), u32::from_ne_bytes(*last).into()],
            _ => [name.iter().fold(0, |ends, byte| ends << 8 | u64::from(*byte)), 0],
        },
    };
    ends.map(|end| end | LOWER)
}

/// Whether two names of equal length are the same between their ends.
fn is_same_between_ends(name: &[u8], text: &[u8]) -> bool {
    name.len() <= 16 || name.eq_ignore_ascii_case(text)
}

/// The length of `x-scheme`, the shortest name with an alias.
const ALIAS_BYTES_MIN: usize = 8;

/// This many bytes of a name are searched for aliases, with everything but letters and digits replaced by `-`. No known name is longer, except those that begin with
/// `x-forwarded-`.
const ALIAS_BYTES_MAX: usize = 25;

/// Measured: CGI and WSGI (Python 3.11) take `_` for `-`, PHP 8.2 also `.`, and lighttpd 1.4.69 everything that is neither a letter nor a digit. Node
/// 20 keeps names apart.
fn is_alias(name: &[u8]) -> bool {
    if !words::any(name, |word| words::special(word) != 0) {
        return false;
    }
    let mut folded = [0; ALIAS_BYTES_MAX];
    let length = name.len().min(ALIAS_BYTES_MAX);
    for (to, from) in folded.iter_mut().zip(name) {
        *to = if from.is_ascii_alphanumeric() { *from } else { b'-' };
    }
    let of_folded = FieldId::of(folded.get(..length).unwrap_or_default());
    match of_folded {
        // The name was cut to its beginning. A longer name is a different one, unless only the beginning counts.
        FieldId::Claim => {
            name.len() <= ALIAS_BYTES_MAX
                || folded.get(..12).is_some_and(|start| start.eq_ignore_ascii_case(b"x-forwarded-"))
        }
        FieldId::ContentLength
        | FieldId::TransferEncoding
        | FieldId::XForwardedFor
        | FieldId::XForwardedHost
        | FieldId::XForwardedProto => name.len() <= ALIAS_BYTES_MAX,
        _ => false,
    }
}

/// The version in a start line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
    /// HTTP/2.
    Http2,
}

/// The methods that a hop has to know (RFC 9110 section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "each is the method of that name")]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Delete,
    Connect,
    Options,
    Trace,
    Patch,
    /// Any other token.
    Other,
}

impl Method {
    /// The method for a name, which is case-sensitive.
    pub fn of(name: &[u8]) -> Self {
        match name {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"CONNECT" => Self::Connect,
            b"OPTIONS" => Self::Options,
            b"TRACE" => Self::Trace,
            b"PATCH" => Self::Patch,
            _ => Self::Other,
        }
    }

    /// Whether doing it twice means the same as doing it once (RFC 9110 section 9.2.2), so that it may be sent again.
    pub fn is_idempotent(self) -> bool {
        matches!(self, Self::Get | Self::Head | Self::Put | Self::Delete | Self::Options | Self::Trace)
    }
}

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Body {
    /// There is no body.
    #[default]
    None,
    /// This many bytes, more than zero.
    Length(u64),
    /// A body of unknown length, which may have trailers: the chunked coding (RFC 9112 section 7.1), or HTTP/2's DATA frames.
    Chunked,
    /// Everything until the connection ends; only for responses.
    UntilClose,
}

/// A request head. It is reused: reading the next head keeps the allocations of the last.
#[derive(Debug, Default)]
pub struct RequestHead {
    /// The method, if a hop has to know it.
    pub method: Method,
    /// As received.
    pub method_name: Span,
    /// Path and query, beginning with `/`; or `*`. It is empty for an absolute-form target without a path, which means `/`, and for a plain
    /// CONNECT in HTTP/2.
    pub path: Span,
    /// Host and port: of an absolute-form target, or else of `Host`; in HTTP/2 of `:authority`, or else of `Host`. Empty if the client
    /// (HTTP/1.0) named none.
    pub authority: Span,
    /// `:scheme` in HTTP/2; empty in HTTP/1 and for a plain CONNECT.
    pub scheme: Span,
    /// As received.
    pub version: Version,
    /// All of them, in the order received.
    pub fields: Vec<Field>,
    /// How the end of the body is known.
    pub body: Body,
    /// The client intends to send more on this connection.
    pub keep_alive: bool,
    /// `Connection` names fields that must not be passed on. Never set in HTTP/2, which has no such field.
    pub names_fields: bool,
    /// The protocol of `Connection: upgrade` that is passed on: WebSocket if it is among several. In HTTP/2 it is the `:protocol` of an
    /// extended CONNECT (RFC 8441), which asks for the same; `method` is then `Connect`.
    pub upgrade: Option<Span>,
    /// The client waits for a 100 before it sends the body.
    pub expect_continue: bool,
    /// In HTTP/2, the client expects something else. In HTTP/1, the reader refuses such a head.
    pub expect_unknown: bool,
}

/// A response head. It is reused like [`RequestHead`].
#[derive(Debug, Default)]
pub struct ResponseHead {
    /// 100 to 999.
    pub status: u16,
    /// The reason phrase.
    pub reason: Span,
    /// As received.
    pub version: Version,
    /// All of them, in the order received.
    pub fields: Vec<Field>,
    /// How the end of the body is known.
    pub body: Body,
    /// The connection can carry another request after this response.
    pub keep_alive: bool,
    /// As in [`RequestHead::names_fields`].
    pub names_fields: bool,
    /// The value of `Content-Length`. It may be present without a body, and then says what the length would be for another method or status
    /// (RFC 9110 section 8.6).
    pub content_length: Option<u64>,
    /// `Keep-Alive: timeout=N`: the endpoint closes the connection after this many seconds without a request.
    pub keep_alive_timeout_s: Option<u32>,
}

/// The first field with this id.
pub fn find(fields: &[Field], id: FieldId) -> Option<&Field> {
    fields.iter().find(|field| field.id == id)
}

/// The elements of a comma-separated list (RFC 9110 section 5.6.1), without the surrounding white space and without empty elements.
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_ids_ignore_case() {
        let check = |name: &str, id| assert_eq!(FieldId::of(name.as_bytes()), id, "{name}");
        check("hOST", FieldId::Host);
        check("Transfer-Encoding", FieldId::TransferEncoding);
        check("X-Forwarded-For", FieldId::XForwardedFor);
        check("X_Forwarded-For", FieldId::Alias);
        check("x_forwarded_proto", FieldId::Alias);
        check("Content_Length", FieldId::Alias);
        check("content_lengthy", FieldId::Other);
        check("X.Forwarded.For", FieldId::Alias);
        check("x-forwarded~proto", FieldId::Alias);
        check("Content!Length", FieldId::Alias);
        check("sec.fetch.mode", FieldId::Other);
        check("dATE", FieldId::Date);
        for claim in [
            "X-Real-IP",
            "Client-IP",
            "WL-Proxy-Client-IP",
            "X-HTTP-Host-Override",
            "x-forwarded-fox",
            "X-Forwarded-Port",
            "X-Forwarded-Tls-Client-Cert-Info",
            "X-Original-URL",
        ] {
            check(claim, FieldId::Claim);
            "_.!#$%&'*+^`|~".chars().for_each(|byte| check(&claim.replace('-', &byte.to_string()), FieldId::Alias));
        }
        check("x_forwarded-tls_client_cert_info", FieldId::Alias);
        check("x_original_forwarded_form", FieldId::Other);
        check("x_original_forwarded_host", FieldId::Alias);
        check("x_original_forwarded_hosts", FieldId::Other);
        check("x_scheme", FieldId::Alias);
        check("x-forwardedness", FieldId::Other);
        check("x_trace", FieldId::Other);
        check("Accept", FieldId::Other);
        check("", FieldId::Other);
    }

    #[test]
    fn a_name_is_known_by_all_of_its_bytes() {
        let names = [
            ("te", FieldId::Te),
            ("host", FieldId::Host),
            ("cookie", FieldId::Cookie),
            ("upgrade", FieldId::Upgrade),
            ("forwarded", FieldId::Forwarded),
            ("connection", FieldId::Connection),
            ("content-length", FieldId::ContentLength),
            ("http2-settings", FieldId::Http2Settings),
            ("proxy-connection", FieldId::ProxyConnection),
            ("transfer-encoding", FieldId::TransferEncoding),
            ("proxy-authorization", FieldId::ProxyAuthorization),
        ];
        for (name, id) in names {
            for at in 0..name.len() {
                for byte in b'!'..=b'~' {
                    let mut other = name.as_bytes().to_vec();
                    other[at] = byte;
                    let is_same = other.eq_ignore_ascii_case(name.as_bytes());
                    assert_eq!(FieldId::of(&other) == id, is_same, "{:?}", String::from_utf8_lossy(&other));
                }
            }
        }
    }

    #[test]
    fn lists_drop_what_is_empty() {
        let elements: Vec<_> = list(b" a, ,b ,\tc,").collect();
        assert_eq!(elements, [b"a", b"b", b"c"]);
    }

    #[test]
    fn a_span_of_foreign_bytes_is_empty() {
        let whole = b"0123456789".to_vec();
        assert_eq!(Span::of(&whole[2..5], &whole).get(&whole), b"234");
        assert!(Span::of(b"234", &whole[..1]).is_empty());
        assert_eq!(Span { start: 5, end: 99 }.get(&whole), b"");
    }
}
