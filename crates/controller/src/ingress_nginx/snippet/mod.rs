//! Snippets: the directives of nginx that change headers, say who may come in, or answer by themselves. One other directive refuses the whole
//! snippet, because half of a snippet is not what its author wrote.

mod answer;
mod block;
mod headers;
mod http;
mod pattern;
mod server;
mod set;
mod step;
mod words;

use ipnet::IpNet;

pub use self::answer::Answer;
pub(super) use self::block::blocks;
pub use self::headers::Headers;
pub use self::http::http_protects;
pub use self::pattern::of_path;
pub use self::server::{LocationKind, Server, ServerLocation, check_locations, read_server};
pub use self::step::{Found, Like, Step, Test, found_in};
use self::words::Directive;
use super::{backend, value};

/// Changes to headers, as the fields of a TrafficPolicy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// `requestHeaders`.
    pub request: Headers,
    /// `responseHeaders`.
    pub response: Headers,
    /// The `Host` that the endpoint gets.
    pub host: Option<String>,
    /// Who may use the routes; `None` if it does not say.
    pub addresses: Option<Addresses>,
    /// Headers of requests with variables of the [`Backend`](super::Backend).
    pub backend_headers: Vec<(String, String)>,
    /// `X-Forwarded-Proto` and `X-Forwarded-Host` with a constant.
    pub forwarded: Vec<(String, String)>,
    /// Headers that it takes from what a client claims. Endpoints get what Steelyard knows.
    pub claims: Vec<String>,
    /// What it decides before everything else, in the order in which it is written.
    pub steps: Vec<Step>,
    /// The methods that pass; `None` means all.
    pub methods: Option<Vec<String>>,
    /// It has `add_header`, so that of a `server-snippet` does not count.
    pub has_add_header: bool,
    /// It has `more_set_headers` or `more_clear_headers`, likewise.
    pub has_more_headers: bool,
    /// Headers of endpoints that it hides while it is read; then they are in `response`.
    hidden: Vec<String>,
    /// An `add_header` without `always`, which nginx leaves out of most errors.
    pub is_lenient: bool,
    /// How long an endpoint of gRPC may be silent, and how long a connection to it takes, in milliseconds.
    pub grpc_read_ms: Option<u64>,
    /// See `grpc_read_ms`.
    pub grpc_connect_ms: Option<u64>,
}

/// Networks of `allow` and `deny`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Addresses {
    /// Others are kept out, if there is one.
    pub allow: Vec<IpNet>,
    /// Those are kept out in any case.
    pub deny: Vec<IpNet>,
}

impl Changes {
    /// The names of the headers of requests that change, in lower case.
    pub fn request_names(&self) -> impl Iterator<Item = &str> {
        self.request.names().chain(self.backend_headers.iter().map(|(name, _)| name.as_str()))
    }

    /// The expressions that are looked for in paths.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().filter_map(|step| match step {
            Step::If { test: Test::Path(pattern, _), .. } | Step::Rewrite { pattern, .. } => Some(pattern.as_str()),
            _ => None,
        })
    }

    /// Whether endpoints get other paths.
    pub fn rewrites(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Rewrite { status: None, .. }))
    }
}

/// The headers that an `if` looks at, in lower case.
pub fn headers(steps: &[Step]) -> impl Iterator<Item = &str> {
    steps.iter().filter_map(|step| match step {
        Step::If { test: Test::Header(name, _), .. } => Some(name.as_str()),
        _ => None,
    })
}

/// Why a snippet is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The directive, or what cannot be read.
    pub what: String,
    /// Whether the snippet may keep somebody out, so that its route must not be served without it.
    pub protects: bool,
}

/// Directives without which nobody reads or does more than with them. All others may keep somebody out or hide something, also those that
/// nobody knows here: an `include` may hold anything, and a header of a request that is cleared may be one that an application believes.
const HARMLESS: [&str; 29] = [
    "access_log",
    "add_header",
    "charset",
    "chunked_transfer_encoding",
    "client_body_buffer_size",
    "client_body_timeout",
    "default_type",
    "error_log",
    "etag",
    "expires",
    "log_not_found",
    "more_set_headers",
    "grpc_connect_timeout",
    "grpc_read_timeout",
    "grpc_send_timeout",
    "proxy_buffering",
    "proxy_connect_timeout",
    "proxy_http_version",
    "proxy_ignore_client_abort",
    "proxy_read_timeout",
    "proxy_redirect",
    "proxy_request_buffering",
    "proxy_send_timeout",
    "send_timeout",
    "sendfile",
    "server_tokens",
    "tcp_nodelay",
    "tcp_nopush",
    "types_hash_max_size",
];

/// How the names of others of that kind begin.
const HARMLESS_BEGIN: [&str; 9] = [
    "brotli",
    "gzip",
    "keepalive_",
    "proxy_buffer_",
    "proxy_buffers",
    "proxy_busy_buffers_",
    "proxy_cache",
    "proxy_next_upstream",
    "proxy_max_temp_file_",
];

/// Reads a snippet.
///
/// # Errors
/// Returns the first thing in it that is not understood.
pub fn read(text: &str) -> Result<Changes, Refused> {
    let directives = words::read(text).map_err(|what| Refused { what: what.to_owned(), protects: true })?;
    let protects = directives.iter().flat_map(Directive::all).any(may_protect);
    let directives = set::constants(directives).map_err(|what| Refused { what, protects })?;
    let mut changes = Changes::default();
    let mut access = Vec::new();
    for directive in &directives {
        match directive.words().as_slice() {
            [rule @ ("allow" | "deny"), network] if directive.block.is_none() => {
                access.push((*rule == "allow", *network))
            }
            _ => put(directive, &mut changes).map_err(|what| Refused { what, protects })?,
        }
    }
    changes.response.hide(&std::mem::take(&mut changes.hidden));
    changes.addresses = addresses(&access).map_err(|what| Refused { what, protects })?;
    // It comes before the addresses, and its headers depend on its status.
    let answers = changes.steps.iter().any(|step| matches!(step, Step::Answer(_)));
    if answers && (changes.addresses.is_some() || changes.response != Headers::default()) {
        return Err(Refused { what: "return beside other directives".to_owned(), protects });
    }
    Ok(changes)
}

/// Whether a snippet has `$request_id`, which nginx always makes itself. Here it is that of the client if it sends one, as `$req_id` is.
pub fn has_request_id(text: &str) -> bool {
    let is_it = |word: &str| {
        word.contains("${request_id}")
            || word.match_indices("$request_id").any(|(at, name)| {
                let next = word.as_bytes().get(at + name.len());
                !next.is_some_and(|next| next.is_ascii_alphanumeric() || *next == b'_')
            })
    };
    let has_it = |directive: &Directive| directive.all().iter().any(|one| one.words.iter().any(|word| is_it(word)));
    text.contains("request_id") && words::read(text).is_ok_and(|directives| directives.iter().any(has_it))
}

/// What is different with `$request_id`.
pub const REQUEST_ID: &str =
    "$request_id is the X-Request-ID of the client if it sends one, and nginx makes one for each request";

/// The rules of who may use a location. nginx takes the first that matches, and here a denial comes first: so do they have to, and `all` comes last.
fn addresses(access: &[(bool, &str)]) -> Result<Option<Addresses>, String> {
    let (rules, last) = match access.split_last() {
        None => return Ok(None),
        Some(((allows, "all"), rules)) => (rules, *allows),
        Some(_) => (access, true),
    };
    let mut found = Addresses::default();
    for (allows, network) in rules {
        let word = if *allows { "allow" } else { "deny" };
        let networks = value::networks(network).map_err(|_| format!("{word} {network}"))?;
        match allows {
            true => found.allow.extend(networks),
            false if found.allow.is_empty() => found.deny.extend(networks),
            false => return Err("a deny behind an allow".to_owned()),
        }
    }
    match (last, found.allow.is_empty()) {
        // Everybody else may come in, so those who are allowed are no exception.
        (true, _) => found.allow.clear(),
        (false, false) => {}
        (false, true) => return Err("deny all".to_owned()),
    }
    Ok(Some(found))
}

fn may_protect(directive: &Directive) -> bool {
    match directive.words().as_slice() {
        ["proxy_set_header", name, _]
            if name.eq_ignore_ascii_case("upgrade") || name.eq_ignore_ascii_case("connection") =>
        {
            false
        }
        [name, ..] => !HARMLESS.contains(name) && !HARMLESS_BEGIN.iter().any(|begin| name.starts_with(begin)),
        [] => false,
    }
}

fn put(directive: &Directive, changes: &mut Changes) -> Result<(), String> {
    let words = directive.words();
    if directive.block.is_some() {
        match directive.name() {
            "if" => step::push(step::read_if(directive)?, &mut changes.steps)?,
            "limit_except" if changes.methods.is_none() => changes.methods = Some(step::read_limit_except(directive)?),
            name => return Err(name.to_owned()),
        }
        return Ok(());
    }
    match words.as_slice() {
        // These are for WebSocket, which passes anyway.
        ["proxy_set_header", name, _]
            if name.eq_ignore_ascii_case("upgrade") || name.eq_ignore_ascii_case("connection") => {}
        ["proxy_http_version", "1.1"] | ["proxy_buffering", _] => {}
        ["proxy_set_header" | "grpc_set_header", name, text] => request_header(name, text, changes)?,
        ["rewrite", rest @ ..] => step::push(step::read_rewrite(rest)?, &mut changes.steps)?,
        // Only the first one counts.
        ["return", rest @ ..] => changes.steps.push(Step::Answer(answer::answer(rest)?)),
        ["grpc_read_timeout", time] => changes.grpc_read_ms = Some(milliseconds(time)?),
        ["grpc_connect_timeout", time] => changes.grpc_connect_ms = Some(milliseconds(time)?),
        // An endpoint that does not read has the time of grpc_read_timeout.
        ["grpc_send_timeout", time] => _ = milliseconds(time)?,
        ["add_header", name, text, always @ ..] if matches!(always, [] | ["always"]) => {
            changes.has_add_header = true;
            changes.is_lenient |= always.is_empty();
            changes.response.add(name, &with_variables(text)?)?;
        }
        ["expires", "off"] => {}
        // Other times would be in errors as well, and clients would keep those.
        ["expires", "epoch" | "-1"] => {
            changes.is_lenient = true;
            changes.response.set("cache-control", "no-cache");
            changes.response.set("expires", "Thu, 01 Jan 1970 00:00:01 GMT");
        }
        ["proxy_hide_header", name] => changes.hidden.push(name.to_ascii_lowercase()),
        ["more_set_headers", fields @ ..] if !fields.is_empty() => {
            changes.has_more_headers = true;
            each(fields, &mut changes.response)?;
        }
        ["more_set_input_headers", fields @ ..] if !fields.is_empty() => each(fields, &mut changes.request)?,
        ["more_clear_headers", names @ ..] if !names.is_empty() => {
            changes.has_more_headers = true;
            names.iter().try_for_each(|name| clear(name, &mut changes.response))?;
        }
        ["more_clear_input_headers", names @ ..] if !names.is_empty() => {
            names.iter().try_for_each(|name| clear(name, &mut changes.request))?;
        }
        _ => return Err(words.first().copied().unwrap_or_default().to_owned()),
    }
    Ok(())
}

/// Headers that endpoints get in any case, the variables whose value they have then, and those that hold what the client claims of itself.
const SENT: [(&str, &[&str], &[&str]); 9] = [
    ("host", &["$host", "$http_host", "$best_http_host"], &[]),
    ("x-real-ip", REMOTE, &["$http_x_real_ip", "$http_x_forwarded_for", "$proxy_add_x_forwarded_for"]),
    ("x-forwarded-for", REMOTE, &["$http_x_forwarded_for", "$proxy_add_x_forwarded_for", "$full_x_forwarded_for"]),
    ("x-forwarded-proto", SCHEME, &["$http_x_forwarded_proto"]),
    ("x-forwarded-scheme", SCHEME, &["$http_x_forwarded_scheme", "$http_x_forwarded_proto"]),
    ("x-scheme", SCHEME, &["$http_x_scheme", "$http_x_forwarded_proto"]),
    ("x-forwarded-host", &["$host", "$http_host", "$best_http_host"], &["$http_x_forwarded_host"]),
    ("x-forwarded-port", &["$server_port", "$pass_port", "$pass_server_port"], &["$http_x_forwarded_port"]),
    ("x-request-id", &["$req_id", "$request_id"], &["$http_x_request_id"]),
];
const REMOTE: &[&str] = &["$remote_addr", "$the_real_ip"];
const SCHEME: &[&str] = &["$scheme", "$pass_access_scheme"];

fn request_header(name: &str, text: &str, changes: &mut Changes) -> Result<(), String> {
    let lower = name.to_ascii_lowercase();
    if let Some((_, same, claimed)) = SENT.iter().find(|(known, ..)| *known == lower) {
        if same.contains(&text) {
            return Ok(());
        }
        if claimed.contains(&text) {
            changes.claims.push(name.to_owned());
            return Ok(());
        }
    }
    if backend::has_only(text) {
        return match lower.as_str() {
            "host" => {
                changes.host = Some(text.to_owned());
                Ok(())
            }
            name if SENT.iter().any(|(known, ..)| *known == name) => Err(format!("proxy_set_header {name}")),
            name if !value::is_token(name) || name.contains('.') => Err(format!("the header {name}")),
            _ => {
                changes.backend_headers.push((lower, text.to_owned()));
                Ok(())
            }
        };
    }
    let text = with_variables(text)?;
    let is_host =
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte));
    match lower.as_str() {
        "host" if is_host => changes.host = Some(text),
        "host" => return Err(format!("proxy_set_header {name} with a value that is no host")),
        "x-forwarded-proto" if ["http", "https"].contains(&text.as_str()) => changes.forwarded.push((lower, text)),
        "x-forwarded-host" if is_host => changes.forwarded.push((lower, text)),
        "x-forwarded-proto" | "x-forwarded-host" | "x-forwarded-for" | "forwarded" => {
            return Err(format!("proxy_set_header {name}"));
        }
        _ => changes.request.set_or_remove(name, &text),
    }
    Ok(())
}

/// A time of nginx with at most one unit: `60`, `60s`, `5m`.
fn milliseconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("the time {text}");
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let factor = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    let time = value::integer(digits).and_then(|number| number.checked_mul(factor)).ok_or_else(wrong)?;
    // A week: the longest that anybody means.
    Ok(time.clamp(1, 604_800_000))
}

/// `Name: value` as one word. A condition such as `-s 404` is not understood.
fn each(fields: &[&str], headers: &mut Headers) -> Result<(), String> {
    for field in fields {
        let (name, text) = field.split_once(':').ok_or_else(|| (*field).to_owned())?;
        headers.set_or_remove(name.trim(), &with_variables(text.trim())?);
    }
    Ok(())
}

fn clear(names: &str, headers: &mut Headers) -> Result<(), String> {
    if names.starts_with('-') || names.contains('*') {
        return Err(names.to_owned());
    }
    headers.remove.extend(names.split(',').map(|name| name.trim().to_ascii_lowercase()));
    Ok(())
}

/// Variables of nginx, and what they are called here.
const VARIABLES: [(&str, &str); 9] = [
    ("remote_addr", "client_ip"),
    ("the_real_ip", "client_ip"),
    ("remote_port", "client_port"),
    ("req_id", "request_id"),
    ("request_id", "request_id"),
    ("ssl_protocol", "tls_version"),
    ("ssl_server_name", "sni"),
    ("ssl_client_escaped_cert", "client_cert_pem"),
    ("ssl_client_s_dn", "client_cert_subject"),
];

/// A value with the variables of Steelyard.
pub fn with_variables(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let inner = after.strip_prefix('{');
        let name = inner.unwrap_or(after);
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
        let (name, tail) = name.split_at(end);
        let tail = if inner.is_some() { tail.strip_prefix('}').ok_or_else(|| format!("${{{name}"))? } else { tail };
        let (_, ours) =
            VARIABLES.iter().find(|(known, _)| *known == name).ok_or_else(|| format!("the variable ${name}"))?;
        out.push_str(&format!("${{{ours}}}"));
        rest = tail;
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn snippets_that_are_understood() {
        let check = |text: &str, request: Value, response: Value| {
            let changes = read(text).unwrap_or_else(|refused| panic!("{text}: {refused:?}"));
            assert_eq!(changes.request.field().unwrap_or_default(), request, "{text}");
            assert_eq!(changes.response.field().unwrap_or_default(), response, "{text}");
        };
        let none = Value::Null;
        check("", none.clone(), none.clone());
        check("# nothing\n", none.clone(), none.clone());
        check(
            "proxy_set_header X-A \"b c\"; proxy_set_header X-Ip $remote_addr;",
            json!({"set": {"x-a": "b c", "x-ip": "${client_ip}"}}),
            none.clone(),
        );
        check(
            "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection \"upgrade\";",
            none.clone(),
            none.clone(),
        );
        check(
            "more_set_headers 'X-Frame-Options: DENY' \"X-B: ${ssl_protocol}-1\"; more_clear_headers Server;",
            none.clone(),
            json!({"set": {"x-frame-options": "DENY", "x-b": "${tls_version}-1"}, "remove": ["server"]}),
        );
        check(
            "add_header X-A 1 always;\nproxy_hide_header X-Powered-By;",
            none.clone(),
            json!({"add": {"x-a": "1"}, "remove": ["x-powered-by"]}),
        );
        // What is hidden or cleared is that of the endpoint, wherever it is written.
        for text in [
            "proxy_hide_header X-A; add_header X-A b always;",
            "add_header X-A b always; proxy_hide_header x-a;",
            "more_clear_headers X-A; add_header X-A b always;",
            "more_set_headers 'X-A: b'; proxy_hide_header X-A; proxy_hide_header X-A;",
        ] {
            check(text, none.clone(), json!({"set": {"x-a": "b"}}));
        }
        check("proxy_hide_header X-B; proxy_hide_header x-b;", none.clone(), json!({"remove": ["x-b"]}));
        check(
            "add_header Link '</a>; rel=preload'; add_header link '</b>; rel=preload';",
            none,
            json!({"add": {"link": "</a>; rel=preload, </b>; rel=preload"}}),
        );
        let who = |text: &str, allow: &[&str], deny: &[&str]| {
            let texts = |networks: &[IpNet]| networks.iter().map(ToString::to_string).collect::<Vec<_>>();
            let found = read(text).unwrap().addresses.unwrap();
            assert_eq!(
                (texts(&found.allow), texts(&found.deny)),
                (allow.iter().map(ToString::to_string).collect(), deny.iter().map(ToString::to_string).collect()),
                "{text}"
            );
        };
        who("allow 10.0.0.0/8; allow ::1; deny all;", &["10.0.0.0/8", "::1/128"], &[]);
        who("deny 10.1.0.0/16; allow 10.0.0.0/8; deny all;", &["10.0.0.0/8"], &["10.1.0.0/16"]);
        who("deny 192.0.2.1;", &[], &["192.0.2.1/32"]);
        who("deny 192.0.2.1; allow all;", &[], &["192.0.2.1/32"]);
        who("allow 10.0.0.0/8;", &[], &[]);
        assert_eq!(read("proxy_set_header Host inner.example;").unwrap().host.as_deref(), Some("inner.example"));
    }

    #[test]
    fn what_endpoints_get_in_any_case() {
        let check = |text: &str, forwarded: &[(&str, &str)], claims: &[&str]| {
            let changes = read(text).unwrap_or_else(|refused| panic!("{text}: {refused:?}"));
            let found: Vec<(&str, &str)> =
                changes.forwarded.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            assert_eq!(
                (found.as_slice(), changes.claims.as_slice()),
                (forwarded, claims.iter().map(ToString::to_string).collect::<Vec<_>>().as_slice()),
                "{text}"
            );
            assert_eq!((changes.request, changes.host), (Headers::default(), None), "{text}");
        };
        check("proxy_set_header X-Forwarded-Proto https;", &[("x-forwarded-proto", "https")], &[]);
        check("proxy_set_header X-Forwarded-Host shop.example;", &[("x-forwarded-host", "shop.example")], &[]);
        check("proxy_set_header Host $host; proxy_set_header X-Real-IP $remote_addr;", &[], &[]);
        check("proxy_set_header X-Forwarded-Proto $scheme; proxy_set_header X-Request-ID $req_id;", &[], &[]);
        check(
            "proxy_set_header X-Forwarded-Proto $http_x_forwarded_proto; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
            &[],
            &["X-Forwarded-Proto", "X-Forwarded-For"],
        );
        let other = read("proxy_set_header X-Forwarded-Port 443; proxy_set_header Host a.example;").unwrap();
        assert_eq!(other.request.field().unwrap(), json!({"set": {"x-forwarded-port": "443"}}));
        assert_eq!(other.host.as_deref(), Some("a.example"));
    }

    #[test]
    fn the_id_that_nginx_makes() {
        let check = |text: &str, expect: bool| assert_eq!(has_request_id(text), expect, "{text}");
        check("proxy_set_header X-Q $request_id;", true);
        check("add_header X-Q a-${request_id};", true);
        check("location /a { return 200 $request_id; }", true);
        check("proxy_set_header X-Q $req_id;", false);
        check("# $request_id", false);
        check("add_header X-Q $request_id_x;", false);
    }

    #[test]
    fn answers() {
        let fixed = |status, location: Option<&str>, text: Option<&str>| {
            Some(Answer::Fixed { status, location: location.map(str::to_owned), text: text.map(str::to_owned) })
        };
        let moved = |status, is_https, host: Option<&str>, port| {
            Some(Answer::Moved { status, is_https, host: host.map(str::to_owned), port })
        };
        let check = |text: &str, expect: Option<Answer>| {
            let steps = read(text).map(|changes| changes.steps).unwrap_or_default();
            assert_eq!(steps.first(), expect.map(Step::Answer).as_ref(), "{text}");
        };
        check("return 404;", fixed(404, None, None));
        check("return 200 \"it works\"; return 404;", fixed(200, None, Some("it works")));
        check("return 301 https://a.example/b?c;", fixed(301, Some("https://a.example/b?c"), None));
        check("return 302 /b;", fixed(302, Some("/b"), None));
        check("return https://a.example/;", fixed(302, Some("https://a.example/"), None));
        check("return 301 https://a.example$request_uri;", moved(301, Some(true), Some("a.example"), None));
        check("return 308 http://a.example:81$request_uri;", moved(308, Some(false), Some("a.example"), Some(81)));
        check("return 307 $scheme://a.example$request_uri;", moved(307, None, Some("a.example"), None));
        check("return 301 https://$host$request_uri;", moved(301, Some(true), None, None));
        check("proxy_set_header X-A 1; return 403;", fixed(403, None, None));
        let refused = |text: &str| assert!(read(text).is_err_and(|refused| refused.protects), "{text}");
        for text in [
            "return 301 https://a.example/x$request_uri;",
            "return 301 https://$arg_to;",
            "return 301 a.example;",
            "return 444;",
            "return 301;",
            "return 200 $remote_addr;",
            "return abc;",
            "return;",
            "return 301 https://a.example; add_header X-A 1;",
            "return 301 https://a.example; deny 10.0.0.1;",
        ] {
            refused(text);
        }
    }

    #[test]
    fn paths_that_are_redirected() {
        let check = |text: &str, expect: &[(&str, &str, u16)]| {
            let steps = read(text).map(|changes| changes.steps).unwrap_or_default();
            let moved = |step| match step {
                Step::Moved { from, to, status } => Some((from, to, status)),
                _ => None,
            };
            let found: Vec<_> = steps.into_iter().filter_map(moved).collect();
            let found: Vec<_> = found.iter().map(|(from, to, status)| (from.as_str(), to.as_str(), *status)).collect();
            assert_eq!(found, expect, "{text}");
        };
        check("rewrite ^(/dashboard)$ $1/ redirect;", &[("/dashboard", "/dashboard/", 302)]);
        check("rewrite ^/a$ /b/c permanent;", &[("/a", "/b/c", 301)]);
        for other in [
            "^/a /b redirect",
            "^/a$ /b break",
            "^/a.$ /b redirect",
            "^/a$ $1/ redirect",
            "^/(a|b)$ /c redirect",
            "^/a$ /a redirect",
        ] {
            let expect: &[(&str, &str, u16)] = if other == "^/a$ $1/ redirect" { &[("/a", "/", 302)] } else { &[] };
            check(&format!("rewrite {other};"), expect);
        }
    }

    #[test]
    fn times() {
        let check = |text: &str, expect| assert_eq!(milliseconds(text).ok(), expect, "{text}");
        check("60", Some(60_000));
        check("5m", Some(300_000));
        check("100ms", Some(100));
        check("99999999d", Some(604_800_000));
        check("1h30m", None);
        check("", None);
        let changes = read("grpc_read_timeout 1h; grpc_send_timeout 5; grpc_connect_timeout 2s;").unwrap();
        assert_eq!((changes.grpc_read_ms, changes.grpc_connect_ms), (Some(3_600_000), Some(2_000)));
    }

    #[test]
    fn snippets_that_are_refused_as_a_whole() {
        let check = |text: &str, what: &str, protects: bool| {
            assert_eq!(read(text), Err(Refused { what: what.to_owned(), protects }), "{text}");
        };
        check("add_header X-A 1; proxy_cache off;", "proxy_cache", false);
        check("add_header X-A 1; deny all;", "deny all", true);
        check("allow 10.0.0.0/8; deny 10.1.0.0/16; deny all;", "a deny behind an allow", true);
        check("allow unix:; deny all;", "allow unix:", true);
        check("deny all; allow 10.0.0.0/8;", "deny all", true);
        check("allow;", "allow", true);
        check("proxy_cache off; auth_basic off;", "proxy_cache", true);
        check("if ($host ~ a) { return 403; }", "if ($host ~ a)", true);
        check("if ($http_a) { add_header a b; }", "add_header in an `if`", true);
        check("location /a { deny all; }", "location", true);
        check("limit_except GET { allow all; }", "limit_except with other than `deny all`", true);
        check("add_header X-A $upstream_addr;", "the variable $upstream_addr", false);
        check("add_header X-A \"1;", "a text without an end", true);
        check("add_header X-A 1", "a directive without a `;`", true);
        check("access_by_lua_block { }", "a block of Lua", true);
        check("more_set_headers -s 404 'X: 1';", "-s", false);
        check("add_header Set-Cookie a=1; add_header Set-Cookie b=1;", "a second Set-Cookie", false);
        check("gzip on; proxy_read_timeout 5s; expires 1d; proxy_redirect off;", "gzip", false);
        for unknown in ["include /etc/nginx/deny.conf", "try_files $uri =404", "nonsense", "client_max_body_size 1m"] {
            check(&format!("{unknown};"), unknown.split(' ').next().unwrap_or_default(), true);
        }
        check("rewrite ^/admin /;", "rewrite ^/admin /", true);
        // What a client may claim of itself is not left in.
        check("more_clear_input_headers X-Remote-User; expires 1d;", "expires", true);
        check("proxy_set_header X-User ''; expires 1d;", "expires", true);
    }
}
