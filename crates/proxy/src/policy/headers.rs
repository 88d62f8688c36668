//! Header fields that a route adds, removes or replaces. All code that writes heads uses this module.

use std::borrow::Cow;

use model::{FieldValue, HeaderChanges, Via};

use super::cors::CorsEdits;
use super::rate_headers::Quotas;
use super::request_id;
use super::response_rewrite::Rewriting;
use super::sticky::SessionField;
use super::values::{Values, made};
use crate::compression::CompressedHead;
use crate::external_auth::Cookies;

/// A route's changes to a request.
#[derive(Clone, Copy)]
pub(crate) struct RequestEdits<'e> {
    /// Replaces the client's path and query.
    pub(crate) target: Option<&'e [u8]>,
    /// Replaces the client's authority.
    pub(crate) host: Option<&'e str>,
    pub(crate) headers: &'e HeaderChanges,
    /// For the variables in `headers`, if there are any.
    pub(crate) values: Option<&'e Values<'e>>,
    /// What is said of the way through this hop.
    pub(crate) via: Option<&'e Via>,
    /// See [`model::Outside::mark`].
    pub(crate) mark: Option<&'e str>,
}

/// The changes of a route and of a sticky cluster to a response.
pub(crate) struct ResponseEdits<'e> {
    pub(crate) headers: &'e HeaderChanges,
    /// For the variables in `headers`, if there are any.
    pub(crate) values: Option<&'e Values<'e>>,
    /// Replaces the endpoint's id, if the client gets the id of its request.
    pub(crate) request_id: Option<&'e str>,
    /// Replaces the fields of CORS.
    pub(crate) cors: Option<CorsEdits<'e>>,
    /// Replaces the fields about limits, if the client is told about its own.
    pub(crate) quotas: Option<&'e Quotas>,
    /// Those of external authorization, in addition to the endpoint's.
    pub(crate) cookies: Option<&'e Cookies>,
    /// An additional `Set-Cookie`, or a header that replaces the endpoint's.
    pub(crate) session: Option<&'e SessionField<'e>>,
    /// Changes URLs and cookies of the endpoint.
    pub(crate) rewriting: Option<Rewriting<'e>>,
    /// For a route that compresses responses.
    pub(crate) compressed: Option<CompressedHead>,
    /// What is said of the way through this hop.
    pub(crate) via: Option<&'e Via>,
}

static UNCHANGED: HeaderChanges = HeaderChanges { set: Vec::new(), add: Vec::new(), remove: Vec::new() };

impl ResponseEdits<'static> {
    /// No changes.
    pub(crate) const NONE: Self = Self {
        headers: &UNCHANGED,
        values: None,
        request_id: None,
        cors: None,
        quotas: None,
        cookies: None,
        session: None,
        rewriting: None,
        compressed: None,
        via: None,
    };
}

impl ResponseEdits<'_> {
    /// Whether a field with this name, in any case, is not passed on.
    pub(crate) fn drops(&self, name: &[u8]) -> bool {
        drops(self.headers, name)
            || (self.cors.is_some() && CorsEdits::drops(name))
            || self.quotas.is_some_and(|quotas| quotas.drops(name))
            || self.session.is_some_and(|session| session.replaces(name))
            || (self.request_id.is_some() && name.eq_ignore_ascii_case(request_id::NAME))
    }

    /// The id of the request, if the response gets it and the route does not decide the field.
    pub(crate) fn request_id(&self) -> Option<&str> {
        self.request_id.filter(|_| !decides(self.headers, request_id::NAME))
    }
}

impl RequestEdits<'static> {
    /// No changes.
    pub(crate) const NONE: Self =
        Self { target: None, host: None, headers: &UNCHANGED, values: None, via: None, mark: None };
}

/// Whether a field with this name, in any case, is not passed on, because it is removed or replaced.
#[inline]
pub(crate) fn drops(changes: &HeaderChanges, name: &[u8]) -> bool {
    // Most routes change nothing.
    !(changes.remove.is_empty() && changes.set.is_empty()) && removes_or_sets(changes, name)
}

fn removes_or_sets(changes: &HeaderChanges, name: &[u8]) -> bool {
    // There are only a few names, and comparing lengths first rules out nearly all of them.
    changes.remove.iter().any(|removed| name.eq_ignore_ascii_case(removed.as_bytes()))
        || changes.set.iter().any(|(set, value)| match value {
            FieldValue::Text(_) => name.eq_ignore_ascii_case(set.as_bytes()),
            // Endpoints rely on what this hop knows, so nothing of the client's may be taken for it.
            FieldValue::Template(_) => is_alike(name, set.as_bytes()),
        })
}

/// Whether two names are the same to software that maps several characters to one: `-` and `_` (CGI, WSGI), also `.` (PHP, which registers
/// `X.User` as `HTTP_X_USER`), or everything that is neither a letter nor a digit (lighttpd). `wanted` is in lower case.
pub(crate) fn is_alike(name: &[u8], wanted: &[u8]) -> bool {
    let folded = |byte: &u8| if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' };
    name.len() == wanted.len() && name.iter().map(folded).eq(wanted.iter().map(folded))
}

/// Whether the route itself sets, adds or removes the field with this name, which is in lower case.
pub(crate) fn decides(changes: &HeaderChanges, name: &[u8]) -> bool {
    changes.remove.iter().any(|removed| removed.as_bytes() == name) || puts(changes).any(|put| put == name)
}

/// The names of the added fields.
pub(crate) fn puts(changes: &HeaderChanges) -> impl Iterator<Item = &[u8]> {
    changes.set.iter().chain(&changes.add).map(|(name, _)| name.as_bytes())
}

/// The added fields, each with its value.
pub(crate) fn added<'e>(
    changes: &'e HeaderChanges,
    values: Option<&Values<'_>>,
) -> impl Iterator<Item = (&'e [u8], Cow<'e, [u8]>)> {
    let all = changes.set.iter().chain(&changes.add);
    all.filter_map(move |(name, value)| Some((name.as_bytes(), made(value, values)?)))
}
