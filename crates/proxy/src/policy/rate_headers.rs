//! The fields of a response that tell a client about its limits.
//!
//! There are two forms. `X-RateLimit-*` is that of Envoy (draft-polli-ratelimit-headers-03): the limit that is nearest to its end, and a list
//! of all. `RateLimit` and `RateLimit-Policy` have all limits by name (draft-ietf-httpapi-ratelimit-headers-10, structured fields).

use std::io::Write;

use model::RateHeaders;
use smallvec::SmallVec;

use crate::http::headers::Out;

const X_LIMIT: &[u8] = b"x-ratelimit-limit";
const X_REMAINING: &[u8] = b"x-ratelimit-remaining";
const X_RESET: &[u8] = b"x-ratelimit-reset";
const POLICY: &[u8] = b"ratelimit-policy";
const CURRENT: &[u8] = b"ratelimit";

/// The characters of a name that are written.
const NAME_CHARS_MAX: usize = 64;

/// One limit of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    /// Empty if it has none.
    pub(crate) name: String,
    /// How many requests the client may make in each window, and how long that is, in seconds.
    pub(crate) limit: u64,
    pub(crate) window_s: u64,
    /// How many it may make now.
    pub(crate) remaining: u64,
    /// The seconds until it may make `limit` requests again.
    pub(crate) reset_s: u64,
}

/// The limits of a client, as far as it is told about them.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    forms: RateHeaders,
    all: SmallVec<[Quota; 1]>,
}

impl Quotas {
    /// Adds a limit about which a client is told in these forms.
    pub(crate) fn add(&mut self, forms: RateHeaders, quota: Quota) {
        self.forms.x_ratelimit |= forms.x_ratelimit;
        self.forms.ratelimit |= forms.ratelimit;
        self.all.push(quota);
    }

    /// Whether an endpoint's field with this name, in any case, is replaced.
    pub(crate) fn drops(&self, name: &[u8]) -> bool {
        let is = |own: &[u8]| name.eq_ignore_ascii_case(own);
        (self.forms.x_ratelimit && (is(X_LIMIT) || is(X_REMAINING) || is(X_RESET)))
            || (self.forms.ratelimit && (is(POLICY) || is(CURRENT)))
    }

    pub(crate) fn write(&self, out: &mut impl Out) {
        // Writing to a Vec cannot fail.
        if let (true, Some(nearest)) = (self.forms.x_ratelimit, self.all.iter().min_by_key(|quota| quota.remaining)) {
            let value = out.value(X_LIMIT);
            let _ = write!(value, "{}", nearest.limit);
            for Quota { name, limit, window_s, .. } in &self.all {
                let _ = write!(value, ", {limit};w={window_s}");
                if let Some(name) = text(name) {
                    let _ = write!(value, ";name={name}");
                }
            }
            out.end(false);
            let _ = write!(out.value(X_REMAINING), "{}", nearest.remaining);
            out.end(false);
            let _ = write!(out.value(X_RESET), "{}", nearest.reset_s);
            out.end(false);
        }
        if self.forms.ratelimit && !self.all.is_empty() {
            let numbered = || self.all.iter().enumerate();
            let value = out.value(POLICY);
            for (number, quota) in numbered() {
                let _ =
                    write!(value, "{}{};q={};w={}", separator(number), key(number, quota), quota.limit, quota.window_s);
            }
            out.end(false);
            let value = out.value(CURRENT);
            for (number, quota) in numbered() {
                let _ = write!(
                    value,
                    "{}{};r={};t={}",
                    separator(number),
                    key(number, quota),
                    quota.remaining,
                    quota.reset_s
                );
            }
            out.end(false);
        }
    }
}

fn separator(number: usize) -> &'static str {
    if number == 0 { "" } else { ", " }
}

/// What a limit is called in both fields of the second form, where each has a name.
fn key(number: usize, quota: &Quota) -> String {
    text(&quota.name).unwrap_or_else(|| format!("\"limit-{}\"", number + 1))
}

/// A name as a string of structured fields (RFC 9651 section 3.3.3); `None` if nothing of it can be written.
fn text(name: &str) -> Option<String> {
    let is_plain = |letter: &char| matches!(letter, ' '..='~') && !matches!(letter, '"' | '\\');
    let plain: String = name.chars().filter(is_plain).take(NAME_CHARS_MAX).collect();
    (!plain.is_empty()).then(|| format!("\"{plain}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(name: &str, limit: u64, window_s: u64, remaining: u64, reset_s: u64) -> Quota {
        Quota { name: name.to_owned(), limit, window_s, remaining, reset_s }
    }

    #[test]
    fn both_forms_have_all_limits() {
        let check = |forms: (bool, bool), quotas: &[Quota], expect: &str| {
            let mut all = Quotas::default();
            for quota in quotas {
                all.add(RateHeaders { x_ratelimit: forms.0, ratelimit: forms.1 }, quota.clone());
            }
            let mut out: Vec<u8> = Vec::new();
            all.write(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expect);
        };
        let quotas = [quota("local", 100, 1, 7, 1), quota("", 5, 60, 3, 20), quota("a\"\\\r\nä b", 9, 3600, 8, 9)];
        check((false, false), &quotas, "");
        check((true, true), &[], "");
        check(
            (true, false),
            &quotas[..1],
            "x-ratelimit-limit: 100, 100;w=1;name=\"local\"\r\nx-ratelimit-remaining: 7\r\nx-ratelimit-reset: 1\r\n",
        );
        check(
            (true, true),
            &quotas,
            "x-ratelimit-limit: 5, 100;w=1;name=\"local\", 5;w=60, 9;w=3600;name=\"a b\"\r\nx-ratelimit-remaining: 3\r\n\
             x-ratelimit-reset: 20\r\nratelimit-policy: \"local\";q=100;w=1, \"limit-2\";q=5;w=60, \"a b\";q=9;w=3600\r\n\
             ratelimit: \"local\";r=7;t=1, \"limit-2\";r=3;t=20, \"a b\";r=8;t=9\r\n",
        );
    }

    #[test]
    fn only_what_is_written_is_replaced() {
        let mut quotas = Quotas::default();
        assert!(!quotas.drops(b"ratelimit"));
        quotas.add(RateHeaders { x_ratelimit: false, ratelimit: true }, quota("a", 1, 1, 1, 1));
        let check = |name: &str, expect| assert_eq!(quotas.drops(name.as_bytes()), expect, "{name}");
        check("RateLimit", true);
        check("ratelimit-policy", true);
        check("X-RateLimit-Limit", false);
        check("ratelimit-limit", false);
    }
}
