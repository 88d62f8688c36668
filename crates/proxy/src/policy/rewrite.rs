//! Replaces the client's path.

use std::borrow::Cow;

use model::{PathMatcher, PathRewrite, Template, TemplatePart};
use regex::Captures;
use telemetry::Reason;
use wire::path;

use super::RequestView;
use crate::error::Error;

/// Path and query after the rewrite; `None` if they are not rewritten. `matched` is what the route matched. The rest of the client's path
/// stays in the normal form in which it was matched. A new path with a `?` has a query of its own, which replaces the client's.
///
/// # Errors
/// [`Reason::AmbiguousPath`]: what was captured makes a dot segment together with the text around it.
pub(crate) fn target(
    rewrite: Option<&PathRewrite>,
    matched: &PathMatcher,
    asked: &RequestView<'_>,
) -> Result<Option<Vec<u8>>, Error> {
    let Some(rewrite) = rewrite else { return Ok(None) };
    rewritten(rewrite, matched, asked.target, asked.paths.merge_slashes)
}

fn rewritten(
    rewrite: &PathRewrite,
    matched: &PathMatcher,
    target: &[u8],
    merge_slashes: bool,
) -> Result<Option<Vec<u8>>, Error> {
    if target == b"*" {
        // OPTIONS for `*` asks about the whole server, so there is no path.
        return Ok(None);
    }
    let (path, query) = target.split_at(memchr::memchr(b'?', target).unwrap_or(target.len()));
    let mut out = Vec::with_capacity(target.len() + 32);
    match rewrite {
        PathRewrite::Full(full) => out.extend_from_slice(full.as_bytes()),
        PathRewrite::Prefix(prefix) => {
            let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
            out.extend_from_slice(prefix.as_bytes());
            out.extend_from_slice(behind(matched, path, merge_slashes));
            if out.is_empty() {
                out.push(b'/');
            }
        }
        PathRewrite::Template(Template(parts)) => {
            let groups = captures(matched, path);
            for part in parts {
                match part {
                    TemplatePart::Text(text) => out.extend_from_slice(text.as_bytes()),
                    TemplatePart::Group(number) => {
                        let group = groups.as_ref().and_then(|groups| groups.get(*number));
                        out.extend_from_slice(group.map_or(b"", |group| group.as_str().as_bytes()));
                    }
                }
            }
            // The client's path was normal, but a part of it need not be: with the regular expression `/files(.*)`, `/files../etc` and
            // `/data/$1` make `/data/../etc`, which the author of the rewrite cannot have meant.
            let own_query = memchr::memchr(b'?', &out).map(|at| out.split_off(at)).unwrap_or_default();
            if path::has_dot_segment(&out) {
                return Err(Error::internal(Reason::AmbiguousPath));
            }
            if let Some(normal) = path::normalize(&out, merge_slashes) {
                out = normal;
            }
            out.extend_from_slice(&own_query);
        }
    }
    match memchr::memchr(b'?', &out) {
        None => out.extend_from_slice(query),
        // As in nginx: an empty query removes the client's.
        Some(at) if at + 1 == out.len() => out.truncate(at),
        Some(_) => {}
    }
    Ok(Some(out))
}

/// What the groups of the route's regular expression captured of a path.
fn captures<'p>(matched: &PathMatcher, path: &'p [u8]) -> Option<Captures<'p>> {
    let PathMatcher::Regex(regex) = matched else { return None };
    regex.captures(std::str::from_utf8(path).ok()?)
}

/// The rest of a path after the matched prefix: empty, or something that begins with `/`.
fn behind<'p>(matched: &PathMatcher, path: &'p [u8], merge_slashes: bool) -> &'p [u8] {
    let PathMatcher::Prefix(prefix) = matched else { return path };
    let prefix = path::normalize(prefix.as_bytes(), merge_slashes).map_or(Cow::Borrowed(prefix.as_bytes()), Cow::Owned);
    path.strip_prefix(prefix.strip_suffix(b"/").unwrap_or(&prefix)).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(matched: &str, rewrite: PathRewrite, from: &str, expect: &str) {
        let to = rewritten(&rewrite, &PathMatcher::Prefix(matched.into()), from.as_bytes(), true).unwrap();
        assert_eq!(
            to.map(|to| String::from_utf8(to).unwrap()).as_deref(),
            Some(expect),
            "{matched} {rewrite:?} {from}"
        );
    }

    /// The table of Gateway API's HTTPPathModifier, and the query.
    #[test]
    fn a_prefix_is_exchanged_on_the_boundary_of_a_segment() {
        let check = |matched: &str, prefix: &str, from: &str, expect: &str| {
            check(matched, PathRewrite::Prefix(prefix.into()), from, expect);
        };
        check("/foo", "/xyz", "/foo/bar", "/xyz/bar");
        check("/foo", "/xyz/", "/foo/bar", "/xyz/bar");
        check("/foo/", "/xyz", "/foo/bar", "/xyz/bar");
        check("/foo/", "/xyz/", "/foo/bar", "/xyz/bar");
        check("/foo", "/xyz", "/foo", "/xyz");
        check("/foo", "/xyz", "/foo/", "/xyz/");
        check("/foo", "/", "/foo/bar", "/bar");
        check("/foo", "/", "/foo/", "/");
        check("/foo", "/", "/foo", "/");
        check("/", "/v2", "/cart?id=/foo", "/v2/cart?id=/foo");
        check("/foo", "/xyz", "/foo?a=b", "/xyz?a=b");
        check("/foo", "/", "/foo?", "/?");
        // The prefix is found in any spelling.
        check("/%66oo/./", "/xyz", "/foo/bar", "/xyz/bar");
    }

    #[test]
    fn a_whole_path_is_exchanged_and_the_query_kept() {
        check("/", PathRewrite::Full("/one".into()), "/x/y?z", "/one?z");
        check("/", PathRewrite::Full("/one".into()), "", "/one");
        check("/", PathRewrite::Full("/one?".into()), "/x/y?z", "/one");
        check("/", PathRewrite::Full("/one?a=/..".into()), "/x/y?z", "/one?a=/..");
        check("/", PathRewrite::Full("/one?a=b?".into()), "/x", "/one?a=b?");
    }

    #[test]
    fn a_path_is_made_of_what_was_captured() {
        let regex = regex::Regex::new("^/(?:v([0-9]+)/)?([a-z%0-9A-F]+)/?$").unwrap();
        let parts = ["/", "$2", "/x", "$1"].map(|part| match part.strip_prefix('$') {
            Some(number) => TemplatePart::Group(number.parse().unwrap()),
            None => TemplatePart::Text(part.into()),
        });
        let rewrite = PathRewrite::Template(Template(parts.into()));
        let check = |from: &str, expect: &str| {
            let to = rewritten(&rewrite, &PathMatcher::Regex(regex.clone()), from.as_bytes(), true).unwrap().unwrap();
            assert_eq!(String::from_utf8(to).unwrap(), expect, "{from}");
        };
        check("/v12/cart?a=/b", "/cart/x12?a=/b");
        check("/caf%C3%A9/", "/caf%C3%A9/x");
        let own = PathRewrite::Template(Template(vec![
            TemplatePart::Text("/".into()),
            TemplatePart::Group(2),
            TemplatePart::Text("?v=/../".into()),
            TemplatePart::Group(1),
        ]));
        let to = rewritten(&own, &PathMatcher::Regex(regex.clone()), b"/v12/cart?a=b", true).unwrap().unwrap();
        assert_eq!(String::from_utf8(to).unwrap(), "/cart?v=/../12");
    }

    #[test]
    fn what_was_captured_climbs_nowhere() {
        let check = |regex: &str, parts: [&str; 2], merge_slashes: bool, from: &str, expect: &str| {
            let matched = PathMatcher::Regex(regex::Regex::new(regex).unwrap());
            let [before, behind] = parts.map(|text| TemplatePart::Text(text.into()));
            let rewrite = PathRewrite::Template(Template(vec![before, TemplatePart::Group(1), behind]));
            let to = match rewritten(&rewrite, &matched, from.as_bytes(), merge_slashes) {
                Ok(to) => String::from_utf8(to.unwrap()).unwrap(),
                Err(error) => error.reason.name().to_owned(),
            };
            assert_eq!(to, expect, "{regex} {from}");
        };
        check("^/files(.*)$", ["/data/", ""], false, "/files../etc?../x", "ambiguous_path");
        check("^/files(.*)$", ["/data/", ""], false, "/files..", "ambiguous_path");
        check("^/files(.*)$", ["/data/", ""], false, "/files.", "ambiguous_path");
        check("^/a(.*)b$", ["/x", "%2e/y"], false, "/a/.b", "ambiguous_path");
        check("^/a(.*)$", ["/%", ""], false, "/a2e%2E/x", "ambiguous_path");
        check("^/files(.*)$", ["/data/", ""], false, "/files..x/.y?../x", "/data/..x/.y?../x");
        check("^/to(.*)$", ["/", ""], false, "/to/x", "//x");
        check("^/to(.*)$", ["/", ""], true, "/to/x", "/x");
    }

    #[test]
    fn what_is_not_rewritten_stays() {
        let full = PathRewrite::Full("/one".into());
        assert!(matches!(rewritten(&full, &PathMatcher::Prefix("/".into()), b"*", true), Ok(None)));
    }
}
