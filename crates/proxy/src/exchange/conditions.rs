//! The conditions of a route other than host and path: method, headers, cookies, query, and the claims of a token.

use model::{Route, TextMatcher, ValueMatcher};
use smallvec::SmallVec;
use wire::message::Field;

use crate::auth::jwt::Verified;
use crate::grpc::Call;
use crate::http::cookie;
use crate::policy::cors::Preflight;

/// What is known of the token of a request when its route is chosen.
#[derive(Clone, Copy)]
pub(crate) enum Bearer<'r> {
    /// There is none, or no route asks.
    Nobody,
    /// It is right.
    Known(&'r Verified),
    /// It is not right, or cannot be verified. Every condition on claims may be met.
    Unclear,
}

/// The conditions of a route other than host and path.
pub(super) struct Conditions {
    methods: Vec<String>,
    headers: Vec<ValueMatcher>,
    cookies: Vec<ValueMatcher>,
    query: Vec<ValueMatcher>,
    claims: Vec<ValueMatcher>,
    /// The content type must be that of gRPC or gRPC-Web.
    is_grpc: bool,
    /// The route says what scripts of other origins may do, so it can answer preflight requests.
    pub(super) has_cors: bool,
}

/// The request whose route is wanted.
#[derive(Clone, Copy)]
pub(super) enum Wanted<'r> {
    Itself,
    /// Not the preflight request, but the one that it asks about.
    Asked(Preflight<'r>),
    /// A preflight request itself: the route of the one that it asks about allows nothing.
    Unanswered,
}

/// The parts of a request that conditions read.
pub(super) struct Request<'r> {
    pub(super) method: &'r [u8],
    pub(super) fields: &'r [Field],
    pub(super) buffer: &'r [u8],
    pub(super) query: &'r [u8],
    pub(super) bearer: Bearer<'r>,
}

impl Conditions {
    pub(super) fn new(route: &Route) -> Self {
        Self {
            methods: route.methods.clone(),
            headers: route.headers.clone(),
            cookies: route.cookies.clone(),
            query: route.query.clone(),
            claims: route.claims.clone(),
            is_grpc: route.grpc.is_some(),
            has_cors: route.policy.cors.is_some(),
        }
    }

    pub(super) fn accept(&self, request: &Request<'_>, wanted: Wanted<'_>) -> bool {
        let takes = |asked: &[u8]| self.methods.iter().any(|method| method.as_bytes() == asked);
        let is_method = match wanted {
            // It would say what is allowed on a route that another request takes.
            Wanted::Unanswered if self.has_cors => takes(request.method),
            Wanted::Asked(Preflight { method }) => self.methods.is_empty() || takes(method),
            Wanted::Itself | Wanted::Unanswered => self.methods.is_empty() || takes(request.method),
        };
        // A preflight request does not tell whether a gRPC call is meant, and browsers send no token with it.
        let may_be_call = self.has_cors && matches!(wanted, Wanted::Asked(_));
        is_method
            && self.headers.iter().all(|matcher| matches_header(matcher, request))
            && self.cookies.iter().all(|matcher| matches_cookie(matcher, request))
            && self.query.iter().all(|matcher| matches_query(matcher, request.query))
            && (may_be_call || self.claims.iter().all(|matcher| matches_claim(matcher, request.bearer)))
            && (!self.is_grpc || may_be_call || Call::of_fields(request.fields, request.buffer).is_some())
    }
}

fn matches_header(matcher: &ValueMatcher, request: &Request<'_>) -> bool {
    let is_named = |field: &&Field| field.name.get(request.buffer).eq_ignore_ascii_case(matcher.name.as_bytes());
    let values = request.fields.iter().filter(is_named).map(|field| field.value.get(request.buffer));
    matches_any(&matcher.value, values)
}

/// Whether one of several values matches, or all of them together if the matcher wants that.
fn matches_any<'v>(matcher: &TextMatcher, mut values: impl Iterator<Item = &'v [u8]>) -> bool {
    match matcher {
        TextMatcher::JoinedRegex(regex) => {
            // Each byte is a letter.
            let letters = |value: &[u8]| value.iter().copied().map(char::from).collect::<String>();
            let Some(first) = values.next() else { return false };
            let joined = values.fold(letters(first), |joined, value| joined + ", " + &letters(value));
            regex.is_match(&joined)
        }
        TextMatcher::Exact(_) | TextMatcher::Regex(_) | TextMatcher::Present => {
            values.any(|value| matches_text(matcher, value))
        }
    }
}

fn matches_claim(matcher: &ValueMatcher, bearer: Bearer<'_>) -> bool {
    match bearer {
        Bearer::Nobody => false,
        Bearer::Unclear => true,
        Bearer::Known(verified) => verified.claim(&matcher.name).is_some_and(|claim| {
            let is_there = matches!(matcher.value, TextMatcher::Present);
            is_there || claim.values().iter().any(|value| matches_text(&matcher.value, value.as_bytes()))
        }),
    }
}

fn matches_cookie(matcher: &ValueMatcher, request: &Request<'_>) -> bool {
    matches_any(&matcher.value, cookie::values(request.fields, request.buffer, matcher.name.as_bytes()))
}

/// The first parameter with the name decides, as in most servers.
fn matches_query(matcher: &ValueMatcher, query: &[u8]) -> bool {
    query
        .split(|byte| *byte == b'&')
        .map(|pair| match memchr::memchr(b'=', pair) {
            Some(at) => (pair.get(..at).unwrap_or_default(), pair.get(at + 1..).unwrap_or_default()),
            None => (pair, &[][..]),
        })
        .find(|(name, _)| *decode(name) == *matcher.name.as_bytes())
        .is_some_and(|(_, value)| matches_text(&matcher.value, &decode(value)))
}

/// Decodes `%xx` and `+` (application/x-www-form-urlencoded). Anything that is not an escape is kept.
pub(crate) fn decode(text: &[u8]) -> SmallVec<[u8; 64]> {
    let mut out = SmallVec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        let hex = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
        match (byte, tail) {
            (b'+', _) => out.push(b' '),
            (b'%', [high, low, after @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => {
                    out.push(high << 4 | low);
                    rest = after;
                }
                _ => out.push(b'%'),
            },
            _ => out.push(*byte),
        }
    }
    out
}

pub(crate) fn matches_text(matcher: &TextMatcher, value: &[u8]) -> bool {
    match matcher {
        TextMatcher::Exact(text) => text.as_bytes() == value,
        // A byte that is not UTF-8 is a letter like any other: a client must not get past a route that refuses `.*bot.*` by adding one.
        TextMatcher::Regex(regex) => regex.is_match(&String::from_utf8_lossy(value)),
        TextMatcher::JoinedRegex(_) => matches_any(matcher, std::iter::once(value)),
        TextMatcher::Present => true,
    }
}
