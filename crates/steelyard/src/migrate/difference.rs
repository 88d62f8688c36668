//! What is different in two responses to the same request, and whether it matters.

use std::collections::BTreeMap;

/// A response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in lower case, and values, in their order.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Difference {
    /// `status`, `redirect`, `endpoint`, `body`, or `header NAME`.
    pub(crate) what: String,
    /// Of the first server.
    pub(crate) old: String,
    /// Of the second one.
    pub(crate) new: String,
    /// False: clients do not depend on it.
    pub(crate) matters: bool,
}

/// Headers that say nothing of what is served: they differ from response to response, or belong to the connection.
const UNIMPORTANT: &[&str] = &[
    "connection",
    "content-length",
    "date",
    "etag",
    "keep-alive",
    "last-modified",
    "server",
    "transfer-encoding",
    "x-request-id",
    "accept-ranges",
];

/// What stands in the pages by which proxies say that they cannot serve a request: nginx, ingress-nginx, HAProxy, Envoy.
const PAGES: &[&str] = &[
    "<center>nginx",
    "default backend - 404",
    "<html><body><h1>",
    "no healthy upstream",
    "upstream connect error",
    "upstream request timeout",
];

/// Whether clients do not read the body: it is a redirect, or a page that a proxy made itself.
fn is_own_page(answer: &Answer) -> bool {
    let text = String::from_utf8_lossy(&answer.body);
    let is_redirect = (300..400).contains(&answer.status);
    let is_known = || text.is_empty() || PAGES.iter().any(|part| text.contains(part)) || is_ours(answer.status, &text);
    is_redirect || answer.status >= 400 && is_known()
}

/// Whether this is what Steelyard itself says of an error: a line, or a problem document.
fn is_ours(status: u16, text: &str) -> bool {
    let line = text.strip_prefix(&format!("{status} ")).and_then(|rest| rest.strip_suffix('\n'));
    line.is_some_and(|line| line.len() <= OWN_LINE_BYTES_MAX && !line.contains('\n'))
        || text.starts_with(&format!("{{\"status\":{status},\"title\":\""))
}

/// Bytes of such a line.
const OWN_LINE_BYTES_MAX: usize = 120;

/// The differences of two responses to a request for `url`. `marker` is the header or cookie by which endpoints name themselves, and `ignored` are
/// headers that do not matter.
pub(crate) fn differences(
    url: &str,
    old: &Answer,
    new: &Answer,
    marker: Option<&str>,
    ignored: &[String],
) -> Vec<Difference> {
    // A page of a proxy in place of another one. If an application answers instead, it may show what nobody was to see.
    let is_page = old.status == new.status && is_own_page(old) && is_own_page(new);
    let mut found = Vec::new();
    let mut add = |what: &str, old: String, new: String, matters: bool| {
        if old != new {
            found.push(Difference { what: what.to_owned(), old: cut(&old), new: cut(&new), matters });
        }
    };
    add("status", old.status.to_string(), new.status.to_string(), true);
    let (before, after) = (by_name(old), by_name(new));
    let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let of = |all: &BTreeMap<String, Vec<String>>| all.get(name).cloned().unwrap_or_default();
        let (one, other) = (of(&before), of(&after));
        let is_ignored =
            UNIMPORTANT.contains(&name.as_str()) || ignored.iter().any(|known| known.eq_ignore_ascii_case(name));
        match name.as_str() {
            "location" => {
                let (one, other) = (one.join(", "), other.join(", "));
                let leads_elsewhere = absolute(url, &one) != absolute(url, &other);
                add("redirect", one, other, leads_elsewhere && !is_ignored);
            }
            "set-cookie" => {
                let (set, also) = (cookies(&one, sent(old)), cookies(&other, sent(new)));
                let alike = set.len() == also.len() && set.iter().zip(&also).all(|(one, other)| one.is_like(other));
                let told = |all: &[Cookie]| all.iter().map(Cookie::told).collect::<Vec<_>>().join(", ");
                match alike {
                    true => add("value of a cookie", one.join("; "), other.join("; "), false),
                    false => add("header set-cookie", told(&set), told(&also), !is_ignored),
                }
            }
            name if marker.is_some_and(|marker| marker.eq_ignore_ascii_case(name)) => {
                add("endpoint", one.join(", "), other.join(", "), true);
            }
            "vary" => {
                let (one, other) = (one.join(", "), other.join(", "));
                let is_served_to_others = !keeps_apart(&other, &one);
                add("header vary", one, other, is_served_to_others && !is_ignored);
            }
            name => {
                let (one, other) = (one.join(", "), other.join(", "));
                // The type of a page that a proxy makes itself.
                let is_own = is_page && name == "content-type";
                let is_same = meant(name, &one) == meant(name, &other);
                add(&format!("header {name}"), one, other, !is_ignored && !is_own && !is_same);
            }
        }
    }
    if old.body != new.body {
        let told =
            |body: &[u8]| format!("{} bytes: {}", body.len(), String::from_utf8_lossy(body.get(..60).unwrap_or(body)));
        let (one, other) = (told(&old.body), told(&new.body));
        let same_beginning = one == other;
        let behind = if same_beginning { " and something else behind" } else { "" };
        add("body", one, format!("{other}{behind}"), !is_page);
    }
    found
}

/// What a field says, however it is written: a list has no order of blanks, and passwords are UTF-8 to browsers in any case.
fn meant(name: &str, value: &str) -> String {
    let is_list =
        name.starts_with("access-control-allow-") || name == "access-control-expose-headers" || name == "allow";
    match name {
        _ if is_list => value.split(',').map(|part| part.trim().to_ascii_lowercase()).collect::<Vec<_>>().join(","),
        "www-authenticate" => value.replace(", charset=\"UTF-8\"", ""),
        _ => value.to_owned(),
    }
}

fn by_name(answer: &Answer) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in &answer.headers {
        all.entry(name.clone()).or_default().push(value.clone());
    }
    all
}

/// Whether caches with one `Vary` keep apart all that they do with another one. What they keep apart besides makes no client get another response.
fn keeps_apart(vary: &str, wanted: &str) -> bool {
    let names = |text: &str| -> Vec<String> {
        text.split(',').map(|name| name.trim().to_ascii_lowercase()).filter(|name| !name.is_empty()).collect()
    };
    let (known, wanted) = (names(vary), names(wanted));
    let has = |name: &str| known.iter().any(|known| known == name);
    // `*` forbids to cache, so it is no matter of names.
    if wanted.iter().any(|name| name == "*") { has("*") } else { !has("*") && wanted.iter().all(|name| has(name)) }
}

/// When a response was sent, in seconds since 1970.
fn sent(answer: &Answer) -> i64 {
    let date = answer.headers.iter().find(|(name, _)| name == "date").and_then(|(_, date)| seconds(date));
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date.unwrap_or_else(|| i64::try_from(now()).unwrap_or(i64::MAX))
}

fn seconds(date: &str) -> Option<i64> {
    let stamp = lab::requests::http_date(date)?;
    i64::try_from(stamp.ns / 1_000_000_000).ok()
}

/// A cookie without its value: one names an endpoint in a way of its own.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cookie {
    /// Its name, and the attributes that say nothing of its lifetime.
    what: String,
    /// The seconds for which a browser keeps it; `None`: until it is closed.
    lifetime: Option<i64>,
    /// By `Max-Age`, and not by a date.
    is_exact: bool,
    /// What says so, as it is written.
    written: String,
}

impl Cookie {
    fn of(cookie: &str, sent: i64) -> Self {
        let (pair, attributes) = cookie.split_once(';').unwrap_or((cookie, ""));
        let attributes = attributes.split(';').map(|part| part.trim().to_ascii_lowercase());
        let (lifetimes, mut others): (Vec<String>, Vec<String>) = attributes
            .filter(|part| !part.is_empty())
            .partition(|part| part.starts_with("max-age=") || part.starts_with("expires="));
        others.sort_unstable();
        let last = |name: &str| lifetimes.iter().rev().find_map(|part| part.strip_prefix(name)).map(str::trim);
        // `Max-Age` comes first, and a value that cannot be read does not count (RFC 6265 section 5.2).
        let age = last("max-age=").and_then(|age| age.parse::<i64>().ok());
        let until = last("expires=").and_then(seconds).map(|until| until.saturating_sub(sent));
        Self {
            what: format!("{}; {}", pair.split('=').next().unwrap_or_default().trim(), others.join("; ")),
            lifetime: age.or(until),
            is_exact: age.is_some(),
            written: lifetimes.join("; "),
        }
    }

    fn told(&self) -> String {
        let Self { what, written, .. } = self;
        if written.is_empty() { what.clone() } else { format!("{what}; {written}") }
    }

    fn is_like(&self, other: &Self) -> bool {
        // The dates move from one response to the next.
        let apart = if self.is_exact && other.is_exact { 0 } else { 60 };
        let lives_alike = match (self.lifetime, other.lifetime) {
            (None, None) => true,
            // Both remove the cookie.
            (Some(..=0), Some(..=0)) => true,
            (Some(one @ 1..), Some(other @ 1..)) => one.abs_diff(other) <= apart,
            _ => false,
        };
        self.what == other.what && lives_alike
    }
}

fn cookies(all: &[String], sent: i64) -> Vec<Cookie> {
    let mut all: Vec<Cookie> = all.iter().map(|cookie| Cookie::of(cookie, sent)).collect();
    all.sort_unstable();
    all
}

/// Where a `Location` leads (RFC 3986 section 5.2, as far as redirects use it). The default port may be written or not.
fn absolute(url: &str, location: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let authority = rest.split('/').next().unwrap_or_default();
    let whole = match location {
        "" => return String::new(),
        location if location.contains("://") => location.to_owned(),
        location if location.starts_with("//") => format!("{scheme}:{location}"),
        location if location.starts_with('/') => format!("{scheme}://{authority}{location}"),
        location => format!("{scheme}://{authority}/{location}"),
    };
    let (scheme, rest) = whole.split_once("://").unwrap_or(("http", &whole));
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let port = if scheme == "https" { ":443" } else { ":80" };
    let authority = authority.strip_suffix(port).unwrap_or(authority).to_ascii_lowercase();
    let path = if path.is_empty() { "/" } else { path };
    format!("{scheme}://{authority}{path}")
}

fn cut(text: &str) -> String {
    const CHARS_MAX: usize = 120;
    let mut shown: String = text.chars().take(CHARS_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Answer {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Answer { status, headers, body: body.into() }
    }

    #[test]
    fn what_matters_and_what_does_not() {
        let check = |old: Answer, new: Answer, expect: &[(&str, bool)]| {
            let found = differences("http://a.example/x", &old, &new, Some("x-pod"), &["X-Ignored".to_owned()]);
            let told: Vec<(&str, bool)> = found.iter().map(|found| (found.what.as_str(), found.matters)).collect();
            assert_eq!(told, expect, "{found:?}");
        };
        check(
            answer(200, &[("date", "a"), ("x-a", "1")], "x"),
            answer(200, &[("x-a", "1"), ("date", "b")], "x"),
            &[("header date", false)],
        );
        check(answer(200, &[], "x"), answer(404, &[], "y"), &[("status", true), ("body", true)]);
        check(
            answer(404, &[("content-type", "text/html")], "<center>nginx</center>"),
            answer(404, &[], "404 Not Found: no_route\n"),
            &[("header content-type", false), ("body", false)],
        );
        // An application answers in place of the proxy.
        for body in ["leaked", "404 is what the application says\nand more\n", "{\"status\":404}"] {
            check(answer(404, &[], "<center>nginx</center>"), answer(404, &[], body), &[("body", true)]);
            check(answer(404, &[], ""), answer(404, &[], body), &[("body", true)]);
        }
        let problem = "{\"status\":404,\"title\":\"Not Found\"}\n";
        check(answer(404, &[], "default backend - 404"), answer(404, &[], problem), &[("body", false)]);
        check(
            answer(204, &[("access-control-allow-methods", "GET,PUT")], ""),
            answer(204, &[("access-control-allow-methods", "GET, PUT")], ""),
            &[("header access-control-allow-methods", false)],
        );
        // The page of an application.
        check(answer(404, &[], "no such article"), answer(404, &[], "y"), &[("body", true)]);
        check(answer(200, &[("x-a", "1")], ""), answer(200, &[], ""), &[("header x-a", true)]);
        check(answer(200, &[("x-ignored", "1")], ""), answer(200, &[], ""), &[("header x-ignored", false)]);
        check(answer(200, &[("x-pod", "1")], ""), answer(200, &[("x-pod", "2")], ""), &[("endpoint", true)]);
        check(
            answer(302, &[("location", "http://a.example:80/y")], ""),
            answer(302, &[("location", "/y")], ""),
            &[("redirect", false)],
        );
        check(answer(302, &[("location", "/y")], ""), answer(302, &[("location", "/y/")], ""), &[("redirect", true)]);
        check(
            answer(200, &[("set-cookie", "a=1; Path=/; HttpOnly")], ""),
            answer(200, &[("set-cookie", "a=2; HttpOnly; path=/")], ""),
            &[("value of a cookie", false)],
        );
        check(
            answer(200, &[("set-cookie", "a=1; Path=/x")], ""),
            answer(200, &[("set-cookie", "a=1; Path=/")], ""),
            &[("header set-cookie", true)],
        );
    }

    #[test]
    fn lists_of_vary() {
        let check = |old: &str, new: &str, matters: bool| {
            let with = |vary: &str| answer(200, &[("vary", vary)], "");
            let found = differences("http://a.example/x", &with(old), &with(new), None, &[]);
            assert_eq!(found.iter().map(|found| found.matters).collect::<Vec<_>>(), [matters], "{old:?}, {new:?}");
        };
        check("Origin", "", true);
        check("Origin, Accept-Encoding", "accept-encoding", true);
        check("Origin", "*", true);
        check("*", "Origin", true);
        check("Origin, Accept", "accept,origin", false);
        check("", "Accept-Encoding", false);
        let found = differences(
            "http://a.example/x",
            &answer(200, &[("vary", "Origin")], ""),
            &answer(200, &[], ""),
            None,
            &["Vary".to_owned()],
        );
        assert!(!found[0].matters);
    }

    #[test]
    fn lifetimes_of_cookies() {
        let check = |old: &str, new: &str, expect: (&str, bool)| {
            let with = |attributes: &str, date: &str| {
                answer(200, &[("date", date), ("set-cookie", &format!("a=1; Path=/{attributes}"))], "")
            };
            let one = with(old, "Tue, 24 Nov 2026 10:00:00 GMT");
            let found = differences("http://a.example/x", &one, &with(new, "Tue, 24 Nov 2026 10:00:03 GMT"), None, &[]);
            let found: Vec<(&str, bool)> = found
                .iter()
                .filter(|one| one.what != "header date")
                .map(|one| (one.what.as_str(), one.matters))
                .collect();
            assert_eq!(found, [expect], "{old:?}, {new:?}");
        };
        let (other, same) = (("header set-cookie", true), ("value of a cookie", false));
        check("; Expires=Thu, 01 Jan 2037 00:00:00 GMT", "", other);
        check("; Max-Age=60", "", other);
        check("; Max-Age=60", "; Max-Age=61", other);
        check("; Expires=Tue, 24 Nov 2026 11:00:00 GMT", "; Expires=Wed, 25 Nov 2026 11:00:00 GMT", other);
        check("; Expires=Tue, 24 Nov 2026 11:00:00 GMT", "; Expires=Thu, 01 Jan 1970 00:00:01 GMT", other);
        check("; Max-Age=0", "", other);
        // The same, written in another way or a little later.
        check("; Expires=Tue, 24 Nov 2026 11:00:00 GMT", "; Expires=Tue, 24 Nov 2026 11:00:03 GMT", same);
        check("; Expires=Tue, 24 Nov 2026 11:00:00 GMT; Max-Age=3600", "; Max-Age=3600", same);
        check("; Expires=Tue, 24-Nov-26 11:00:00 GMT", "; Max-Age=3600", same);
        check("; Expires=Thu, 01 Jan 1970 00:00:01 GMT", "; Max-Age=0", same);
        check("; Expires=nonsense", "", same);
    }
}
