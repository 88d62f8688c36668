//! Snippets: the directives of nginx that change headers, say who may come in, or answer by themselves. One other directive refuses the whole
//! snippet, because half of a snippet is not what its author wrote.

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::value;

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
    /// `X-Forwarded-Proto` and `X-Forwarded-Host` with a constant.
    pub forwarded: Vec<(String, String)>,
    /// Headers that it takes from what a client claims. Endpoints get what Steelyard knows.
    pub claims: Vec<String>,
    /// Paths that are redirected: the path, the new one, and the status.
    pub redirects: Vec<(String, String, u16)>,
    /// Answers all requests.
    pub answer: Option<Answer>,
    /// How long an endpoint of gRPC may be silent, and how long a connection to it takes, in milliseconds.
    pub grpc_read_ms: Option<u64>,
    /// See `grpc_read_ms`.
    pub grpc_connect_ms: Option<u64>,
}

/// What `return` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This status, and perhaps a place to go to or a text.
    Fixed {
        /// The status.
        status: u16,
        /// The value of `Location`.
        location: Option<String>,
        /// The body.
        text: Option<String>,
    },
    /// A redirect of the whole URL to another scheme, host or port.
    Moved {
        /// The status.
        status: u16,
        /// Whether it leads to HTTPS; `None` means the scheme of the request.
        is_https: Option<bool>,
        /// The host; `None` means that of the request.
        host: Option<String>,
        /// The port.
        port: Option<u16>,
    },
}

/// Networks of `allow` and `deny`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Addresses {
    /// Others are kept out, if there is one.
    pub allow: Vec<IpNet>,
    /// Those are kept out in any case.
    pub deny: Vec<IpNet>,
}

/// One of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Headers {
    set: Vec<(String, String)>,
    add: Vec<(String, String)>,
    remove: Vec<String>,
}

impl Headers {
    /// The names of the headers that change, in lower case.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.set.iter().chain(&self.add).map(|(name, _)| name.as_str()).chain(self.remove.iter().map(String::as_str))
    }

    /// Adds a header that replaces others of its name.
    pub fn set(&mut self, name: &str, value: &str) {
        self.set.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.set.push((name.to_ascii_lowercase(), value.to_owned()));
    }

    /// The same; an empty value removes the header.
    pub fn set_or_remove(&mut self, name: &str, value: &str) {
        match value {
            "" => self.remove.push(name.to_ascii_lowercase()),
            value => self.set(name, value),
        }
    }

    /// Adds changes that come after these: they decide the headers that both change.
    pub fn extend(&mut self, next: &Self) {
        let is_decided = |name: &String| {
            next.remove.contains(name) || next.set.iter().chain(&next.add).any(|(decided, _)| decided == name)
        };
        self.set.retain(|(name, _)| !is_decided(name));
        self.add.retain(|(name, _)| !is_decided(name));
        self.remove.retain(|name| !is_decided(name));
        self.set.extend(next.set.iter().cloned());
        self.add.extend(next.add.iter().cloned());
        self.remove.extend(next.remove.iter().cloned());
    }

    /// Adds a header beside others of its name. Two values become one field, which means the same, except for cookies.
    fn add(&mut self, name: &str, value: &str) -> Result<(), String> {
        match self.add.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            Some(_) if name.eq_ignore_ascii_case("set-cookie") => return Err("a second Set-Cookie".to_owned()),
            Some((_, known)) => *known = format!("{known}, {value}"),
            None => self.add.push((name.to_ascii_lowercase(), value.to_owned())),
        }
        Ok(())
    }

    /// The field of a TrafficPolicy; `None` if nothing changes.
    pub fn field(&self) -> Option<Value> {
        let pairs = |pairs: &[(String, String)]| -> Map<String, Value> {
            pairs.iter().map(|(name, value)| (name.clone(), json!(value))).collect()
        };
        let mut field = Map::new();
        if !self.set.is_empty() {
            field.insert("set".to_owned(), Value::Object(pairs(&self.set)));
        }
        if !self.add.is_empty() {
            field.insert("add".to_owned(), Value::Object(pairs(&self.add)));
        }
        if !self.remove.is_empty() {
            field.insert("remove".to_owned(), json!(self.remove));
        }
        (!field.is_empty()).then_some(Value::Object(field))
    }
}

/// Why a snippet is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The directive, or what cannot be read.
    pub what: String,
    /// Whether the snippet may keep somebody out, so that its route must not be served without it.
    pub protects: bool,
}

/// Directives in a snippet. nginx has no limit, and a person writes a few.
const DIRECTIVES_MAX: usize = 256;

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
    let directives = directives(text).map_err(|what| Refused { what: what.to_owned(), protects: true })?;
    let protects = directives.iter().any(|words| may_protect(words));
    let mut changes = Changes::default();
    let mut access = Vec::new();
    for words in &directives {
        match words.as_slice() {
            [rule, network] if rule == "allow" || rule == "deny" => access.push((rule == "allow", network.as_str())),
            _ => put(words, &mut changes).map_err(|what| Refused { what, protects })?,
        }
    }
    changes.addresses = addresses(&access).map_err(|what| Refused { what, protects })?;
    // It comes before the addresses, and its headers depend on its status.
    let has_others =
        changes.addresses.is_some() || changes.response != Headers::default() || !changes.redirects.is_empty();
    if changes.answer.is_some() && has_others {
        return Err(Refused { what: "return beside other directives".to_owned(), protects });
    }
    Ok(changes)
}

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

/// Directives that mean nothing in a `server-snippet`, because ingress-nginx writes them into every location, or that only tune how heads are read.
const HARMLESS_IN_SERVER: [&str; 4] =
    ["client_max_body_size", "client_header_buffer_size", "client_header_timeout", "large_client_header_buffers"];

/// Whether a `server-snippet`, which is not served, may have kept somebody out or hidden something.
pub fn server_protects(text: &str) -> bool {
    let is_harmless = |words: &[String]| words.first().is_some_and(|name| HARMLESS_IN_SERVER.contains(&name.as_str()));
    directives(text).map_or(true, |all| all.iter().any(|words| may_protect(words) && !is_harmless(words)))
}

fn may_protect(words: &[String]) -> bool {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["proxy_set_header", name, _]
            if name.eq_ignore_ascii_case("upgrade") || name.eq_ignore_ascii_case("connection") =>
        {
            false
        }
        [name, ..] => !HARMLESS.contains(name) && !HARMLESS_BEGIN.iter().any(|begin| name.starts_with(begin)),
        [] => false,
    }
}

fn put(words: &[String], changes: &mut Changes) -> Result<(), String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        // These are for WebSocket, which passes anyway.
        ["proxy_set_header", name, _]
            if name.eq_ignore_ascii_case("upgrade") || name.eq_ignore_ascii_case("connection") => {}
        ["proxy_http_version", "1.1"] | ["proxy_buffering", _] => {}
        ["proxy_set_header" | "grpc_set_header", name, text] => request_header(name, text, changes)?,
        ["rewrite", from, to, flag @ ("permanent" | "redirect")] => {
            let (from, to) = moved_path(from, to).ok_or_else(|| format!("rewrite {from}"))?;
            changes.redirects.push((from, to, if *flag == "permanent" { 301 } else { 302 }));
        }
        ["return", rest @ ..] if changes.answer.is_none() => changes.answer = Some(answer(rest)?),
        // Only the first one counts.
        ["return", ..] => {}
        ["grpc_read_timeout", time] => changes.grpc_read_ms = Some(milliseconds(time)?),
        ["grpc_connect_timeout", time] => changes.grpc_connect_ms = Some(milliseconds(time)?),
        // An endpoint that does not read has the time of grpc_read_timeout.
        ["grpc_send_timeout", time] => _ = milliseconds(time)?,
        ["add_header", name, text] | ["add_header", name, text, "always"] => {
            changes.response.add(name, &with_variables(text)?)?;
        }
        ["proxy_hide_header", name] => changes.response.remove.push(name.to_ascii_lowercase()),
        ["more_set_headers", fields @ ..] if !fields.is_empty() => each(fields, &mut changes.response)?,
        ["more_set_input_headers", fields @ ..] if !fields.is_empty() => each(fields, &mut changes.request)?,
        ["more_clear_headers", names @ ..] if !names.is_empty() => {
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

/// The path that a `rewrite` of one path redirects: `^(/app)$ $1/`. Others are not understood.
fn moved_path(from: &str, to: &str) -> Option<(String, String)> {
    let inner = from.strip_prefix('^')?.strip_suffix('$')?;
    let path = inner.strip_prefix('(').map_or(Some(inner), |inner| inner.strip_suffix(')'))?;
    let is_path = |path: &str| {
        path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-_~".contains(&byte))
    };
    let to = to.replace("$1", if path == inner { "" } else { path });
    (is_path(path) && is_path(&to) && to != path).then(|| (path.to_owned(), to))
}

/// What follows `return`: a status, a status with a URL or a text, or a URL.
fn answer(words: &[&str]) -> Result<Answer, String> {
    let refused = || format!("return {}", words.join(" "));
    let (status, rest) = match words {
        [url] if url.contains("://") => (302, Some(*url)),
        [status] => (status.parse::<u16>().map_err(|_| refused())?, None),
        [status, rest] => (status.parse::<u16>().map_err(|_| refused())?, Some(*rest)),
        _ => return Err(refused()),
    };
    match (status, rest) {
        (301 | 302 | 303 | 307 | 308, Some(url)) => redirect(status, url).ok_or_else(refused),
        // 444 closes the connection.
        (200 | 204 | 400..=443 | 445..=599, text) if text.is_none_or(|text| !text.contains('$')) => {
            Ok(Answer::Fixed { status, location: None, text: text.map(str::to_owned) })
        }
        _ => Err(refused()),
    }
}

fn redirect(status: u16, url: &str) -> Option<Answer> {
    let fixed = || Answer::Fixed { status, location: Some(url.to_owned()), text: None };
    let Some(base) = url.strip_suffix("$request_uri") else {
        let is_plain = !url.contains('$') && (url.starts_with('/') || value::split_url(url).is_some());
        return is_plain.then(fixed);
    };
    let (scheme, authority) = base.split_once("://")?;
    let is_https = match scheme {
        "https" => Some(true),
        "http" => Some(false),
        "$scheme" => None,
        _ => return None,
    };
    if ["$host", "$http_host", "$best_http_host"].contains(&authority) {
        return Some(Answer::Moved { status, is_https, host: None, port: None });
    }
    let (_, host, port, path) = value::split_url(&format!("https://{authority}")).map(|url| {
        let (is_https, host, port, path) = url;
        (is_https, host.to_owned(), port, path.to_owned())
    })?;
    (path.is_empty() && !host.contains('$')).then_some(Answer::Moved { status, is_https, host: Some(host), port })
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
const VARIABLES: [(&str, &str); 8] = [
    ("remote_addr", "client_ip"),
    ("the_real_ip", "client_ip"),
    ("remote_port", "client_port"),
    ("req_id", "request_id"),
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

/// The words of each directive. A block is not understood.
fn directives(text: &str) -> Result<Vec<Vec<String>>, &'static str> {
    let mut all = Vec::new();
    let mut words: Vec<String> = Vec::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            letter if letter.is_whitespace() => {}
            '#' => drop(letters.by_ref().find(|letter| *letter == '\n')),
            ';' => {
                if words.is_empty() || all.len() == DIRECTIVES_MAX {
                    return Err("a `;` too many");
                }
                all.push(std::mem::take(&mut words));
            }
            '{' | '}' => return Err("a block"),
            quote @ ('"' | '\'') => {
                let mut word = String::new();
                loop {
                    match letters.next().ok_or("a text without an end")? {
                        '\\' => word.push(letters.next().ok_or("a text without an end")?),
                        letter if letter == quote => break,
                        letter if letter.is_control() && letter != '\t' => return Err("a line break in a text"),
                        letter => word.push(letter),
                    }
                }
                words.push(word);
            }
            letter => {
                let mut word = String::from(letter);
                // A brace belongs to a word in `${name}` alone.
                while let Some(next) = letters.next_if(|next| {
                    let is_brace = *next == '{' && word.ends_with('$') || *next == '}' && word.contains("${");
                    is_brace || !(next.is_whitespace() || [';', '{', '}', '"', '\''].contains(next))
                }) {
                    word.push(next);
                }
                words.push(word);
            }
        }
    }
    if words.is_empty() { Ok(all) } else { Err("a directive without a `;`") }
}

#[cfg(test)]
mod tests {
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
    fn answers() {
        let fixed = |status, location: Option<&str>, text: Option<&str>| {
            Some(Answer::Fixed { status, location: location.map(str::to_owned), text: text.map(str::to_owned) })
        };
        let moved = |status, is_https, host: Option<&str>, port| {
            Some(Answer::Moved { status, is_https, host: host.map(str::to_owned), port })
        };
        let check = |text: &str, expect| assert_eq!(read(text).map(|changes| changes.answer), Ok(expect), "{text}");
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
            let found = read(text).map(|changes| changes.redirects).unwrap_or_default();
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
        check("if ($host = a) { return 403; }", "a block", true);
        check("add_header X-A $upstream_addr;", "the variable $upstream_addr", false);
        check("add_header X-A \"1;", "a text without an end", true);
        check("add_header X-A 1", "a directive without a `;`", true);
        check("access_by_lua_block { }", "a block", true);
        check("more_set_headers -s 404 'X: 1';", "-s", false);
        check("add_header Set-Cookie a=1; add_header Set-Cookie b=1;", "a second Set-Cookie", false);
        check("gzip on; proxy_read_timeout 5s; expires 1d; proxy_redirect off;", "gzip", false);
        for unknown in [
            "include /etc/nginx/deny.conf",
            "rewrite ^/admin /",
            "try_files $uri =404",
            "nonsense",
            "client_max_body_size 1m",
        ] {
            check(&format!("{unknown};"), unknown.split(' ').next().unwrap_or_default(), true);
        }
        // What a client may claim of itself is not left in.
        check("more_clear_input_headers X-Remote-User; expires 1d;", "expires", true);
        check("proxy_set_header X-User ''; expires 1d;", "expires", true);
        let protects = server_protects;
        assert!(protects("include a;") && protects("deny all") && protects("more_clear_input_headers X-User;"));
        assert!(!protects("add_header X-A 1; gzip on;"));
        // Every location has its own.
        assert!(!protects("client_max_body_size 0; large_client_header_buffers 4 32k;"));
    }
}
