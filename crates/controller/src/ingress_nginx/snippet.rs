//! Snippets: the directives of nginx that only change headers. One other directive refuses the whole snippet, because half of a snippet is
//! not what its author wrote.

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
    /// Adds a header that replaces others of its name.
    pub fn set(&mut self, name: &str, value: &str) {
        self.set.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.set.push((name.to_ascii_lowercase(), value.to_owned()));
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

/// Whether a snippet that is not served may have kept somebody out or hidden something.
pub fn protects(text: &str) -> bool {
    directives(text).map_or(true, |directives| directives.iter().any(|words| may_protect(words)))
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
        ["proxy_set_header", name, host] if name.eq_ignore_ascii_case("host") => {
            changes.host = Some(with_variables(host)?)
        }
        ["proxy_set_header" | "grpc_set_header", name, text] => match with_variables(text)?.as_str() {
            "" => changes.request.remove.push(name.to_ascii_lowercase()),
            text => changes.request.set(name, text),
        },
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

/// `Name: value` as one word. A condition such as `-s 404` is not understood.
fn each(fields: &[&str], headers: &mut Headers) -> Result<(), String> {
    for field in fields {
        let (name, text) = field.split_once(':').ok_or_else(|| (*field).to_owned())?;
        match with_variables(text.trim())?.as_str() {
            "" => headers.remove.push(name.trim().to_ascii_lowercase()),
            text => headers.set(name.trim(), text),
        }
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
fn with_variables(text: &str) -> Result<String, String> {
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
        assert!(protects("include a;") && protects("deny all") && protects("more_clear_input_headers X-User;"));
        assert!(!protects("add_header X-A 1; gzip on;"));
    }
}
