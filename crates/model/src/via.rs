//! `Via`, and requests that come back.

/// What requests and responses say of their way through Steelyard (RFC 9110 section 7.6.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Via {
    /// What this hop is called: a token.
    pub name: String,
    /// Responses of endpoints say it, too.
    pub in_response: bool,
    /// Requests that say it already are answered 508.
    pub refuses_loops: bool,
    /// Requests also say it in `CDN-Loop` (RFC 8586), which is checked in the same way.
    pub cdn_loop: bool,
}
