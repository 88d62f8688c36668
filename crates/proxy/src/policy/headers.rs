//! Header fields that a route puts in, takes out or exchanges. Whichever encoder writes a head asks here.

use model::HeaderChanges;

/// What a route changes of a request.
pub(crate) struct RequestEdits<'e> {
    /// Instead of the client's path and query.
    pub(crate) target: Option<&'e [u8]>,
    /// Instead of the client's authority.
    pub(crate) host: Option<&'e str>,
    pub(crate) headers: &'e HeaderChanges,
}

/// What a route, and a sticky cluster, change of a response.
pub(crate) struct ResponseEdits<'e> {
    pub(crate) headers: &'e HeaderChanges,
    /// One more `Set-Cookie`.
    pub(crate) cookie: Option<&'e [u8]>,
}

static UNCHANGED: HeaderChanges = HeaderChanges { set: Vec::new(), add: Vec::new(), remove: Vec::new() };

impl ResponseEdits<'static> {
    /// Nothing changes.
    pub(crate) const NONE: Self = Self { headers: &UNCHANGED, cookie: None };
}

impl RequestEdits<'static> {
    /// Nothing changes.
    pub(crate) const NONE: Self = Self { target: None, host: None, headers: &UNCHANGED };
}

/// Whether a field of this name, in whatever case, does not pass: it is removed, or another takes its place.
pub(crate) fn drops(changes: &HeaderChanges, name: &[u8]) -> bool {
    // A handful of names at most; comparing lengths first rules nearly all of them out.
    changes.remove.iter().any(|removed| name.eq_ignore_ascii_case(removed.as_bytes()))
        || changes.set.iter().any(|(set, _)| name.eq_ignore_ascii_case(set.as_bytes()))
}

/// The fields that come in, each with its value.
pub(crate) fn puts(changes: &HeaderChanges) -> impl Iterator<Item = (&[u8], &[u8])> {
    changes.set.iter().chain(&changes.add).map(|(name, value)| (name.as_bytes(), value.as_bytes()))
}
