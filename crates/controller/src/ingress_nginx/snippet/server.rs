//! `server-snippet`: what nginx does for all paths of a host, and locations that answer by themselves.

use super::answer::{Answer, answer};
use super::headers::Headers;
use super::pattern::{self, Subject};
use super::step::{self, Step};
use super::words::{self, Directive};
use super::{Refused, each, may_protect};

/// What the snippet of a host means.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Server {
    /// In the order in which they are written.
    pub steps: Vec<Step>,
    /// In the order in which they are written.
    pub locations: Vec<ServerLocation>,
    /// By `add_header`: in responses of locations that have none of their own.
    pub add_header: Headers,
    /// By `more_set_headers` and `more_clear_headers`, likewise.
    pub more_headers: Headers,
    /// By `proxy_hide_header`: headers that are removed from responses of endpoints.
    pub hidden: Headers,
}

/// A location that answers all of its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLocation {
    /// What its path is like.
    pub kind: LocationKind,
    /// The path or the expression, as it is written.
    pub path: String,
    /// The expression that is found in its paths.
    pub regex: String,
    /// The answer.
    pub answer: Answer,
    /// The type of its text.
    pub content_type: Option<String>,
    /// More headers of the answer.
    pub headers: Vec<(String, String)>,
}

/// How nginx compares the path of a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocationKind {
    /// `=`.
    Exact,
    /// `^~`: the longest prefix, without a look at expressions.
    First,
    /// The longest prefix, if no expression is found.
    Prefix,
    /// `~` and `~*`: an expression that is found.
    Regex,
}

/// Whether nginx takes these locations beside the paths of a host, each of which is exact or not, and whether all have a place in one order.
///
/// # Errors
/// Returns the location that nginx would not take, or that has no place.
pub fn check_locations<'p>(
    locations: &[ServerLocation],
    paths: impl Iterator<Item = (&'p str, bool)> + Clone,
    is_regex: bool,
) -> Result<(), String> {
    use LocationKind::{First, Prefix, Regex};
    let has_regex = is_regex || locations.iter().any(|location| location.kind == Regex);
    for (number, location) in locations.iter().enumerate() {
        let same = |other: &ServerLocation| {
            let is_prefix = |kind: LocationKind| matches!(kind, First | Prefix);
            other.path == location.path
                && (other.kind == location.kind || (is_prefix(other.kind) && is_prefix(location.kind)))
        };
        let is_double = locations.iter().skip(number + 1).any(same)
            || (!is_regex && paths.clone().any(|path| is_same_location(path, location)));
        if is_double {
            return Err(format!("a second location {}, which nginx refuses", location.path));
        }
        let is_longer = |path: &str| path.len() > location.path.len() && path.starts_with(&location.path);
        let below = locations.iter().filter(|other| other.kind == Prefix).any(|other| is_longer(&other.path))
            || (!is_regex && paths.clone().any(|(path, exact)| !exact && is_longer(path)));
        if location.kind == First && has_regex && below {
            return Err(format!("location ^~ {} with a longer one and expressions", location.path));
        }
    }
    Ok(())
}

/// Whether ingress-nginx writes a location for this path that is the same: `= /a` and `/a/` for the prefix `/a`.
fn is_same_location((path, exact): (&str, bool), location: &ServerLocation) -> bool {
    let bare = path.trim_end_matches('/');
    match location.kind {
        LocationKind::Exact if exact => path == location.path,
        LocationKind::Exact => !bare.is_empty() && bare == location.path,
        LocationKind::First | LocationKind::Prefix => !exact && format!("{bare}/") == location.path,
        LocationKind::Regex => false,
    }
}

/// Locations of a snippet, each of which becomes a route of each host.
const LOCATIONS_MAX: usize = 16;

/// Reads a `server-snippet`.
///
/// # Errors
/// Returns the first thing in it that is not understood.
pub fn read_server(text: &str) -> Result<Server, Refused> {
    let directives = words::read(text).map_err(|what| Refused { what: what.to_owned(), protects: true })?;
    let protects = directives.iter().flat_map(Directive::all).any(may_protect_host);
    let mut server = Server::default();
    for directive in &directives {
        put(directive, &mut server).map_err(|what| Refused { what, protects })?;
    }
    Ok(server)
}

/// Directives that mean nothing in a `server-snippet`, because ingress-nginx writes them into every location, or that only tune how heads are read.
const WITHOUT_EFFECT: [&str; 18] = [
    "client_body_buffer_size",
    "client_header_buffer_size",
    "client_header_timeout",
    "client_max_body_size",
    "large_client_header_buffers",
    "proxy_buffer_size",
    "proxy_buffering",
    "proxy_buffers",
    "proxy_connect_timeout",
    "proxy_http_version",
    "proxy_next_upstream",
    "proxy_next_upstream_timeout",
    "proxy_next_upstream_tries",
    "proxy_read_timeout",
    "proxy_redirect",
    "proxy_request_buffering",
    "proxy_send_timeout",
    "proxy_cookie_path",
];

fn may_protect_host(directive: &Directive) -> bool {
    !WITHOUT_EFFECT.contains(&directive.name()) && may_protect(directive)
}

fn put(directive: &Directive, server: &mut Server) -> Result<(), String> {
    let words = directive.words();
    if directive.block.is_some() {
        match words.as_slice() {
            ["if", ..] => {
                step::push(step::read_if(directive)?, &mut server.steps)?;
            }
            ["location", ..] if server.locations.len() == LOCATIONS_MAX => {
                return Err(format!("more than {LOCATIONS_MAX} locations"));
            }
            ["location", ..] => server.locations.push(location(directive)?),
            [name, ..] => return Err((*name).to_owned()),
            [] => {}
        }
        return Ok(());
    }
    match words.as_slice() {
        ["return", rest @ ..] => server.steps.push(Step::Answer(answer(rest)?)),
        ["rewrite", rest @ ..] => match step::read_rewrite(rest)? {
            // The location is looked for with the new path.
            Step::Rewrite { status: None, .. } => return Err(format!("rewrite {}", rest.join(" "))),
            step => step::push(step, &mut server.steps)?,
        },
        ["add_header", name, text] | ["add_header", name, text, "always"] => {
            server.add_header.add(name, constant(text)?)?;
        }
        ["more_set_headers", fields @ ..] if !fields.is_empty() => {
            fields.iter().try_for_each(|field| constant(field).map(drop))?;
            each(fields, &mut server.more_headers)?;
        }
        ["more_clear_headers", names @ ..] if !names.is_empty() => {
            names.iter().try_for_each(|name| super::clear(name, &mut server.more_headers))?;
        }
        ["proxy_hide_header", name] => server.hidden.set_or_remove(name, ""),
        [name, ..] if WITHOUT_EFFECT.contains(name) => {}
        [name, ..] => return Err((*name).to_owned()),
        [] => {}
    }
    Ok(())
}

fn constant(text: &str) -> Result<&str, String> {
    if text.contains('$') { Err(format!("a variable of nginx in {text}")) } else { Ok(text) }
}

fn location(directive: &Directive) -> Result<ServerLocation, String> {
    let shown = || directive.words.join(" ");
    let (kind, path) = match directive.words().as_slice() {
        [_, "=", path] => (LocationKind::Exact, *path),
        [_, "^~", path] => (LocationKind::First, *path),
        [_, "~" | "~*", pattern] => (LocationKind::Regex, *pattern),
        [_, path] => (LocationKind::Prefix, *path),
        _ => return Err(shown()),
    };
    let regex = match kind {
        LocationKind::Regex => {
            let ignores_case = directive.words.get(1).is_some_and(|sign| sign == "~*");
            pattern::written(path, ignores_case, Subject::Path).ok_or_else(shown)?
        }
        // nginx decodes the paths of requests, and not that of a location.
        _ if !step::is_path(path) => return Err(shown()),
        LocationKind::Exact => format!("^{}$", pattern::of_path(path)),
        LocationKind::First | LocationKind::Prefix => format!("^{}", pattern::of_path(path)),
    };
    let path = path.to_owned();
    let mut place = ServerLocation {
        kind,
        path,
        regex,
        answer: Answer::Fixed { status: 0, location: None, text: None },
        content_type: None,
        headers: Vec::new(),
    };
    let (mut returns, mut denies) = (None, false);
    for inner in directive.block.as_deref().unwrap_or_default() {
        let words = inner.words();
        match words.as_slice() {
            _ if inner.block.is_some() => return Err(format!("{} in {}", inner.name(), shown())),
            ["return", rest @ ..] if returns.is_none() => returns = Some(answer(rest)?),
            ["return", ..] | ["access_log" | "log_not_found", "off"] => {}
            ["deny", "all"] => denies = true,
            ["default_type", content_type] => place.content_type = Some((*content_type).to_owned()),
            ["add_header", name, text, "always"] => {
                place.headers.push((name.to_ascii_lowercase(), constant(text)?.to_owned()))
            }
            [name, ..] => return Err(format!("{name} in {}", shown())),
            [] => {}
        }
    }
    place.answer = match (returns, denies) {
        // It comes before the addresses.
        (Some(answer), _) => answer,
        (None, true) => Answer::Fixed { status: 403, location: None, text: None },
        // nginx would look for a file.
        (None, false) => return Err(format!("{} without `return` or `deny all`", shown())),
    };
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snippets_of_hosts() {
        let server = read_server(
            "client_max_body_size 0;\n\
             location ~* ^/(metrics|actuator) { deny all; access_log off; }\n\
             location = /robots.txt { default_type text/plain; add_header X-A b always; return 200 \"none\"; }\n\
             if ($http_user_agent ~* bot) { return 403; }\n\
             rewrite ^/old/(.*)$ /new/$1 permanent;\n\
             add_header X-Frame-Options DENY always; more_clear_headers X-Powered-By; proxy_hide_header X-Runtime;",
        );
        let server = server.unwrap();
        assert_eq!(server.steps.len(), 2);
        let fixed =
            |status, text: Option<&str>| Answer::Fixed { status, location: None, text: text.map(str::to_owned) };
        let [metrics, robots] = server.locations.as_slice() else { panic!("{server:?}") };
        assert_eq!((metrics.kind, metrics.path.as_str()), (LocationKind::Regex, "^/(metrics|actuator)"));
        assert_eq!(metrics.answer, fixed(403, None));
        assert_eq!((robots.kind, robots.path.as_str()), (LocationKind::Exact, "/robots.txt"));
        assert_eq!((&robots.answer, robots.content_type.as_deref()), (&fixed(200, Some("none")), Some("text/plain")));
        assert_eq!(robots.headers, [("x-a".to_owned(), "b".to_owned())]);
        assert_eq!(server.add_header.names().collect::<Vec<_>>(), ["x-frame-options"]);
        assert_eq!(server.more_headers.names().collect::<Vec<_>>(), ["x-powered-by"]);
        assert_eq!(server.hidden.remove, ["x-runtime"]);
    }

    #[test]
    fn what_is_refused_as_a_whole() {
        let check = |text: &str, protects: bool| {
            let refused = read_server(text).map_err(|refused| refused.protects);
            assert_eq!(refused, Err(protects), "{text}");
        };
        for text in [
            "deny all;",
            "include a;",
            "more_clear_input_headers X-User;",
            "location /a { proxy_pass http://b; }",
            "location /a { allow 10.0.0.0/8; deny all; }",
            "location /a { }",
            "location /a { return 403; location /a/b { return 200; } }",
            "location /%61 { deny all; }",
            "location ~ (?=a) { deny all; }",
            "location ~ [ { deny all; }",
            "location @a { return 403; }",
            "location /a /b { return 403; }",
            "rewrite ^/a /b last;",
            "rewrite ^/a /b;",
            "if ($host = a) { set $b c; }",
            "server { return 403; }",
            "set $a b;",
            "return 444;",
        ] {
            check(text, true);
        }
        check("add_header X-A $host;", false);
        check("add_header X-A b; gzip on;", false);
        check("client_max_body_size 0; sendfile on;", false);
    }
}
