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
    "vary",
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
    is_redirect || answer.status >= 400 && (text.is_empty() || PAGES.iter().any(|part| text.contains(part)))
}

/// The differences of two responses to a request for `url`. `marker` is the header or cookie by which endpoints name themselves, and `ignored` are
/// headers that do not matter.
pub(crate) fn differences(
    url: &str,
    old: &Answer,
    new: &Answer,
    marker: Option<&str>,
    ignored: &[String],
) -> Vec<Difference> {
    let is_page = old.status == new.status && is_own_page(old);
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
                add("header set-cookie", cookies(&one), cookies(&other), !is_ignored);
                if cookies(&one) == cookies(&other) {
                    add("value of a cookie", one.join("; "), other.join("; "), false);
                }
            }
            name if marker.is_some_and(|marker| marker.eq_ignore_ascii_case(name)) => {
                add("endpoint", one.join(", "), other.join(", "), true);
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

/// Names and attributes of cookies, without their values: one names an endpoint in a way of its own.
fn cookies(all: &[String]) -> String {
    let one = |cookie: &String| {
        let (pair, attributes) = cookie.split_once(';').unwrap_or((cookie, ""));
        let name = pair.split('=').next().unwrap_or_default().trim();
        let mut attributes: Vec<String> = attributes.split(';').map(|part| part.trim().to_ascii_lowercase()).collect();
        // They follow from each other, and the date of one moves.
        attributes.retain(|part| !part.is_empty() && !part.starts_with("expires="));
        attributes.sort_unstable();
        format!("{name}; {}", attributes.join("; "))
    };
    let mut told: Vec<String> = all.iter().map(one).collect();
    told.sort_unstable();
    told.join(", ")
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
            answer(404, &[], "y"),
            &[("header content-type", false), ("body", false)],
        );
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
}
