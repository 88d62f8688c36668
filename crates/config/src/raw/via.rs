//! The keys of `Via`.

use super::Off;
use crate::define::{Kind, keys};
use crate::diagnostic::{Report, Wrong};
use crate::read::{Flag, OneOf, Read, Scalar, unexpected};
use crate::text::Label;
use crate::yaml::{Node, Value};

keys! {
    /// The field `Via` of requests, which says through which proxies they came (RFC 9110 section 7.6.3). It is how a request is recognised that
    /// comes back, because two proxies each take the other for the endpoint.
    pub struct RawViaObject as "a Via" {
        /// What this hop is called in `Via`. Instances that serve the same clients may share a name, and hops that follow each other need different
        /// ones.
        required name: Label;
        /// Whether a request that has this name in its `Via` is answered 508 (`loop_detected`).
        optional refuse_loops: Flag, default "true";
        /// Whether the responses of endpoints get a `Via`, too.
        optional in_response: Flag, default "false";
        /// Whether requests also get the name in `CDN-Loop` (RFC 8586), and are refused if they have it there. For networks of caches in
        /// front of networks of caches: the configuration of none of them can remove it.
        optional cdn_loop: Flag, default "false";
    }
}

text_or_object! {
    /// `off`, or the name.
    RawVia = OneOf<Off> | RawViaObject
}
