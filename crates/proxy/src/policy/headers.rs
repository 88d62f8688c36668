//! Header fields that a route adds, removes or replaces. All code that writes heads uses this module.

use model::HeaderChanges;

use super::cors::CorsEdits;

/// A route's changes to a request.
pub(crate) struct RequestEdits<'e> {
    /// Replaces the client's path and query.
    pub(crate) target: Option<&'e [u8]>,
    /// Replaces the client's authority.
    pub(crate) host: Option<&'e str>,
    pub(crate) headers: &'e HeaderChanges,
}

/// The changes of a route and of a sticky cluster to a response.
pub(crate) struct ResponseEdits<'e> {
    pub(crate) headers: &'e HeaderChanges,
    /// Replaces the fields of CORS.
    pub(crate) cors: Option<CorsEdits<'e>>,
    /// An additional `Set-Cookie`.
    pub(crate) cookie: Option<&'e [u8]>,
}

static UNCHANGED: HeaderChanges = HeaderChanges { set: Vec::new(), add: Vec::new(), remove: Vec::new() };

impl ResponseEdits<'static> {
    /// No changes.
    pub(crate) const NONE: Self = Self { headers: &UNCHANGED, cors: None, cookie: None };
}

impl ResponseEdits<'_> {
    /// Whether a field with this name, in any case, is not passed on.
    pub(crate) fn drops(&self, name: &[u8]) -> bool {
        drops(self.headers, name) || (self.cors.is_some() && CorsEdits::drops(name))
    }
}

impl RequestEdits<'static> {
    /// No changes.
    pub(crate) const NONE: Self = Self { target: None, host: None, headers: &UNCHANGED };
}

/// Whether a field with this name, in any case, is not passed on, because it is removed or replaced.
pub(crate) fn drops(changes: &HeaderChanges, name: &[u8]) -> bool {
    // There are only a few names, and comparing lengths first rules out nearly all of them.
    changes.remove.iter().any(|removed| name.eq_ignore_ascii_case(removed.as_bytes()))
        || changes.set.iter().any(|(set, _)| name.eq_ignore_ascii_case(set.as_bytes()))
}

/// The added fields, each with its value.
pub(crate) fn puts(changes: &HeaderChanges) -> impl Iterator<Item = (&[u8], &[u8])> {
    changes.set.iter().chain(&changes.add).map(|(name, value)| (name.as_bytes(), value.as_bytes()))
}
