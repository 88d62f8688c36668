//! Requests that nginx makes itself, for `auth_request` and `mirror`, and the locations that they lead to.
//!
//! What such a location does besides passing the request on decides who is let in, and what the service or the copy gets. What is not understood in it
//! closes the location that asks, or ends its copies.

use model::AuthMethod;
use serde_json::{Value, json};

use super::super::draft::{Became, Keys, literal};
use super::parse::Directive;
use super::policy::{is_usual, passed_on};
use super::server::{Matcher, Of, matcher};
use super::upstream::Target;
use super::variables::{Part, parts};
use super::words::{self, Word};
use super::{Making, Scope, path};

/// The largest number of copies of a request.
const MIRRORS_MAX: usize = 4;

/// The largest number of directives of a location that is asked, and of headers that a question has in addition.
const DIRECTIVES_MAX: usize = 1_000;
const HEADERS_MAX: usize = 32;

/// The largest number of bytes and variables of such a header.
const VALUE_BYTES_MAX: usize = 4_096;
const VARIABLES_MAX: usize = 32;

/// Expressions that are kept for other paths.
const EXPRESSIONS_MAX: usize = 4_000;

/// Directives that say nothing about a request that nginx makes itself, or that are read here. Its rules about clients (`allow`, `auth_basic`) do not
/// hold for such a request.
const HARMLESS: &[&str] = &[
    "add_header",
    "allow",
    "auth_basic",
    "auth_basic_user_file",
    "client_body_timeout",
    "client_max_body_size",
    "deny",
    "gzip",
    "gzip_comp_level",
    "gzip_min_length",
    "gzip_types",
    "internal",
    "keepalive_requests",
    "keepalive_timeout",
    "limit_rate",
    "limit_rate_after",
    "mirror",
    "proxy_connect_timeout",
    "proxy_hide_header",
    "proxy_method",
    "proxy_next_upstream",
    "proxy_next_upstream_timeout",
    "proxy_next_upstream_tries",
    "proxy_pass",
    "proxy_read_timeout",
    "proxy_set_header",
    "proxy_ssl_name",
    "proxy_ssl_server_name",
    "proxy_ssl_trusted_certificate",
    "proxy_ssl_verify",
    "satisfy",
    "send_timeout",
];

/// Directives that answer in place of `proxy_pass`, and that are harmless elsewhere.
const ANSWERING: &[&str] = &["empty_gif", "flv", "mp4", "stub_status"];

/// A directive that has no equivalent, and why.
pub(super) struct Refusal<'d> {
    one: &'d Directive,
    why: &'static str,
}

/// Where a request of nginx goes. An error of `None` has a note already.
struct Inner<'d> {
    location: &'d Directive,
    matcher: Matcher,
    scope: Scope<'d>,
    pass: &'d Directive,
    target: Target,
}

/// The `Host` that an endpoint gets.
enum Host {
    Clients,
    Text(String),
    Unknown,
}

impl<'d> Making<'d, '_> {
    /// `auth_request`: the location that it names says which service is asked.
    pub(super) fn asked(&mut self, of: &Of<'d, '_>, keys: &mut Keys) -> Result<(), ()> {
        let Some(ask) = of.scope.last("auth_request").filter(|one| one.arg(0) != "off") else { return Ok(()) };
        match self.question(ask, of) {
            Ok(auth) => keys.set("external_auth", auth),
            Err(refusal) => {
                if let Some(Refusal { one, why }) = refusal {
                    let why = format!(
                        "{why}, so what asks {} is closed; write `external_auth`",
                        ask.arg(0).chars().take(100).collect::<String>()
                    );
                    self.draft.note(one.place(), &one.told(), Became::Closed, &why);
                }
                return Err(());
            }
        }
        let why = "the service gets the client's path in X-Forwarded-Uri and its method in X-Forwarded-Method, and an answer of 3xx reaches the client";
        self.draft.note(ask.place(), &ask.told(), Became::Different, why);
        Ok(())
    }

    fn question(&mut self, ask: &'d Directive, of: &Of<'d, '_>) -> Result<Value, Option<Refusal<'d>>> {
        let inner = self.inner(ask, of)?;
        let Some((asked, query)) = inner.path(ask.arg(0)) else {
            let why = "the path that is asked is not the same for all requests, or is not understood; `external_auth: {http: {prefix: ...}}` asks with the client's \
                       path and method, and `query` has variables";
            return Err(Some(Refusal { one: inner.pass, why }));
        };
        let Some(to) = self.upstream(&inner.target, &inner.scope, inner.location, false) else { return Err(None) };
        let mut http = json!({"path": asked});
        if !query.is_empty() {
            http["query"] = json!(literal(&query));
        }
        // Those of the location itself, and of what is around it; without any, it is GET.
        if let Some(one) = inner.scope.last("proxy_method") {
            let written = inner.scope.resolved(one.arg(0));
            let Some(method) = AuthMethod::ALL.into_iter().find(|method| method.name() == written) else {
                let why = "a service is asked by GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS";
                return Err(Some(Refusal { one, why }));
            };
            if method != AuthMethod::Get {
                http["method"] = json!(method.name());
            }
        }
        match inner.host(of) {
            Host::Clients => {}
            Host::Text(host) => http["host"] = json!(host),
            Host::Unknown => {
                let why = "the service would get another Host";
                return Err(Some(Refusal { one: inner.host_directive().unwrap_or(inner.pass), why }));
            }
        }
        let headers = self.headers_of_question(&inner, ask.arg(0), of)?;
        if headers.as_object().is_some_and(|all| !all.is_empty()) {
            http["headers"] = headers;
        }
        let mut auth = json!({"to": to, "http": http, "timeout": "60s", "failure_status": 500});
        let passed = passed_on(&of.scope.all(&["auth_request_set"]), &of.scope.all(&["proxy_set_header"]));
        if !passed.is_empty() {
            auth["response_headers"] = json!(passed);
        }
        Ok(auth)
    }

    /// The headers that the service gets in place of the client's.
    fn headers_of_question(
        &mut self,
        inner: &Inner<'d>,
        asked: &str,
        of: &Of<'d, '_>,
    ) -> Result<Value, Option<Refusal<'d>>> {
        let mut headers = json!({});
        for one in inner.scope.all(&["proxy_set_header"]) {
            let (name, value) = (one.arg(0).to_ascii_lowercase(), inner.scope.resolved(one.arg(1)));
            let is_own = OF_QUESTION.contains(&name.as_str());
            if name == "host" || !is_own && is_usual(&name, &value) || is_of_question(&name, &value) {
                self.forwarded(one, &name, &value);
                continue;
            }
            let refuse = |why: &'static str| Err(Some(Refusal { one, why }));
            if config::unchangeable(&name).is_some() {
                if value.is_empty() && !name.starts_with("x-forwarded-") {
                    continue;
                }
                return refuse("the service would get another value of this header");
            }
            let Some(value) = value_of_question(&value, inner, asked, of) else {
                return refuse("its value is not understood, and the service may decide by it");
            };
            let before = headers[&name].as_str().map(str::to_owned);
            let is_full = headers.as_object().is_some_and(|all| all.len() >= HEADERS_MAX && !all.contains_key(&name));
            if is_full || before.is_some_and(|before| before != value) {
                return refuse("a service gets at most 32 other headers, each with one value");
            }
            headers[&name] = json!(value);
        }
        Ok(headers)
    }

    /// The copies of requests: those of the innermost level that has any.
    pub(super) fn mirror(&mut self, of: &Of<'d, '_>, route: &mut Keys) {
        let mut copies = Vec::new();
        for one in of.scope.all(&["mirror"]).into_iter().filter(|one| one.arg(0) != "off") {
            if copies.len() >= MIRRORS_MAX {
                self.draft.note(one.place(), &one.told(), Became::Lost, "a request has at most 4 copies");
                continue;
            }
            let path: String = one.arg(0).chars().take(100).collect();
            match self.copy(one, of, route) {
                Ok(copy) => copies.push(copy),
                Err(refusal) => {
                    let Refusal { one, why } =
                        refusal.unwrap_or(Refusal { one, why: "it has no endpoint that Steelyard connects to" });
                    let why = format!("{why}, so requests are not copied to {path}; write `mirror`");
                    self.draft.note(one.place(), &one.told(), Became::Lost, &why);
                }
            }
        }
        match &copies[..] {
            [] => {}
            [one] => route.set("mirror", one.clone()),
            _ => route.set("mirror", copies),
        }
    }

    fn copy(&mut self, one: &'d Directive, of: &Of<'d, '_>, route: &Keys) -> Result<Value, Option<Refusal<'d>>> {
        let inner = self.inner(one, of)?;
        let refuse = |one: &'d Directive, why: &'static str| Err(Some(Refusal { one, why }));
        let is_off = |one: &&'d Directive| one.arg(0) == "off";
        if let Some(one) = of.scope.last("mirror_request_body").filter(is_off) {
            return refuse(one, "a copy has the body of the request");
        }
        if let Some(one) = inner.scope.last("proxy_pass_request_body").filter(is_off) {
            return refuse(one, "a copy has the body of the request");
        }
        if let Some(one) = inner.scope.last("proxy_method") {
            return refuse(one, "a copy has the method of the request");
        }
        if inner.target.uri.as_deref() != Some("$request_uri") {
            return refuse(inner.pass, "a copy has the path of the request (`$request_uri`)");
        }
        self.headers_of_copy(&inner, of)?;
        let to = self.upstream(&inner.target, &inner.scope, one, false).ok_or(None)?;
        let mut copy = json!({"to": to});
        let routes = route.get("rewrite").and_then(|rewrite| rewrite["host"].as_str());
        match inner.host(of) {
            Host::Text(host) if routes == Some(host.as_str()) => {}
            Host::Text(host) => copy["host"] = json!(host),
            Host::Clients if routes.is_none() => {}
            Host::Clients | Host::Unknown => {
                self.draft.note(one.place(), &one.told(), Became::Different, "copies have the Host of the endpoint");
            }
        }
        Ok(copy)
    }

    /// A copy has the headers that the endpoint of the request gets.
    fn headers_of_copy(&mut self, inner: &Inner<'d>, of: &Of<'d, '_>) -> Result<(), Option<Refusal<'d>>> {
        let read = |scope: &Scope<'d>, names: &[&str]| {
            let all = scope.all(names).into_iter();
            let all = all.map(|one| (one.arg(0).to_ascii_lowercase(), scope.resolved(one.arg(1)), one));
            all.filter(|(name, value, _)| name != "host" && !is_usual(name, value)).collect::<Vec<_>>()
        };
        let own = read(&inner.scope, &["proxy_set_header"]);
        let of_endpoint = read(&of.scope, &["proxy_set_header", "grpc_set_header"]);
        let has = |all: &[(String, String, &Directive)], (name, value, _): &(String, String, &Directive)| {
            all.iter().any(|(other, written, _)| other == name && written == value)
        };
        if own.len().saturating_mul(of_endpoint.len()) > DIRECTIVES_MAX * DIRECTIVES_MAX {
            return Err(Some(Refusal { one: inner.location, why: "there are too many headers" }));
        }
        if let Some((.., one)) = own.iter().find(|header| !has(&of_endpoint, header)) {
            return Err(Some(Refusal { one, why: "a copy has the headers that the endpoint of the request gets" }));
        }
        for header in of_endpoint.iter().filter(|header| !has(&own, header)) {
            let (_, value, one) = header;
            if !value.is_empty() && !value.contains('$') {
                // It may be a secret of the endpoint.
                return Err(Some(Refusal { one, why: "a copy would have this header, too" }));
            }
            self.draft.note(one.place(), &one.told(), Became::Different, "copies are changed in the same way");
        }
        Ok(())
    }

    /// A route whose endpoint gets another path has no copies: those would have that path, too.
    pub(super) fn copied_alike(&mut self, of: &Of<'d, '_>, route: &mut Keys) {
        let has_path = |rewrite: &Value| ["path", "path_prefix"].iter().any(|key| !rewrite[*key].is_null());
        if route.get("mirror").is_none() || !route.get("rewrite").is_some_and(has_path) {
            return;
        }
        route.remove("mirror");
        for one in of.scope.all(&["mirror"]) {
            let why = "a copy has the path that the endpoint gets, which is another here, so requests are not copied; write `mirror`";
            self.draft.note(one.place(), &one.told(), Became::Lost, why);
        }
    }

    /// The location of a request that a directive makes.
    fn inner(&mut self, one: &'d Directive, of: &Of<'d, '_>) -> Result<Inner<'d>, Option<Refusal<'d>>> {
        let refuse = |one: &'d Directive, why: &'static str| Err(Some(Refusal { one, why }));
        let asked = one.arg(0);
        if let Some(rule) = self.rule_of_server(of.server, asked) {
            return refuse(rule, "it holds for requests that nginx makes itself, too");
        }
        let Some((matcher, location)) = self.chosen(of.server, asked) else {
            return refuse(one, "the location that it leads to is not known");
        };
        if location.block.len() > DIRECTIVES_MAX {
            return refuse(location, "it has too many directives");
        }
        if let Some(other) = location.block.iter().find(|one| !is_harmless(one)) {
            return refuse(
                other,
                "it is in a location to which nginx sends requests itself, and has no equivalent there",
            );
        }
        let scope = of.scope.of_server().inner(&location.block);
        let pass = location.block.iter().find(|one| one.name == "proxy_pass");
        let target = pass.and_then(|pass| Target::of(&scope.resolved(pass.arg(0))));
        match (pass, target.filter(|target| !target.authority.contains('$'))) {
            (Some(pass), Some(target)) => Ok(Inner { location, matcher, scope, pass, target }),
            (pass, _) => refuse(pass.unwrap_or(one), "the service or endpoint is not known"),
        }
    }

    /// A `rewrite` or `if` of the server that a request for a path meets.
    fn rule_of_server(&mut self, server: &'d Directive, asked: &str) -> Option<&'d Directive> {
        for (number, one) in
            server.block.iter().filter(|one| ["rewrite", "if"].contains(&one.name.as_str())).enumerate()
        {
            let meets = match one.name.as_str() {
                _ if number >= DIRECTIVES_MAX => true,
                "rewrite" => self.finds(one.arg(0), false, asked).unwrap_or(true),
                _ => self.is_met(&one.args.join(" "), asked),
            };
            if meets {
                return Some(one);
            }
        }
        None
    }

    /// Whether a condition is about the path, and may hold for this one. Others are the same for the client's request, and hold there already.
    fn is_met(&mut self, condition: &str, asked: &str) -> bool {
        let is_of_path = |name: &str| {
            ["uri", "document_uri", "request_filename", "args", "query_string", "is_args"].contains(&name)
                || name.starts_with("arg_")
        };
        if !super::variables::names(condition).any(is_of_path) {
            return false;
        }
        let words: Vec<&str> = condition.trim_start_matches('(').trim_end_matches(')').split_whitespace().collect();
        match words[..] {
            ["$uri" | "$document_uri", sign, value] => {
                let value = value.trim_matches(['"', '\'']);
                let holds = match sign.trim_start_matches('!') {
                    "=" => Some(value == asked),
                    "~" => self.finds(value, false, asked),
                    "~*" => self.finds(value, true, asked),
                    _ => None,
                };
                holds.is_none_or(|holds| holds != sign.starts_with('!'))
            }
            _ => true,
        }
    }

    /// The location of a server that takes a path, as nginx chooses it; `None` if that is not known.
    fn chosen(&mut self, server: &'d Directive, asked: &str) -> Option<(Matcher, &'d Directive)> {
        let locations = || server.block.iter().filter(|one| one.name == "location");
        let all = || locations().filter_map(|one| Some((matcher(one)?, one)));
        let mut longest: Option<(Matcher, &Directive)> = None;
        let mut length = 0;
        let (mut is_redirected, mut has_same) = (false, false);
        for (matcher, one) in all() {
            match &matcher {
                Matcher::Exact(path) if path == asked => return Some((matcher, one)),
                Matcher::Exact(path) => is_redirected |= is_redirect(path, asked, one),
                Matcher::Prefix { path, .. } => {
                    has_same |= path == asked;
                    is_redirected |= is_redirect(path, asked, one);
                    if asked.starts_with(path.as_str()) && (path.len() > length || longest.is_none()) {
                        length = path.len();
                        longest = Some((matcher, one));
                    }
                }
                Matcher::Regex { .. } => {}
            }
        }
        if is_redirected && !has_same {
            return None;
        }
        if !matches!(longest, Some((Matcher::Prefix { is_first: true, .. }, _))) {
            for (matcher, one) in all() {
                let Matcher::Regex { pattern, ignores_case } = &matcher else { continue };
                if self.finds(pattern, *ignores_case, asked)? {
                    return Some((matcher, one));
                }
            }
        }
        longest
    }

    /// Whether nginx finds an expression in a path; `None` if that is not known.
    fn finds(&mut self, pattern: &str, ignores_case: bool, asked: &str) -> Option<bool> {
        if !path::is_plain(asked) {
            return None;
        }
        let key = (pattern.to_owned(), ignores_case);
        if !self.expressions.contains_key(&key) {
            if self.expressions.len() >= EXPRESSIONS_MAX {
                self.expressions.clear();
            }
            let whole = path::found(pattern, ignores_case);
            let read = whole
                .and_then(|whole| regex::RegexBuilder::new(&format!("^(?:{whole})$")).size_limit(1 << 20).build().ok());
            self.expressions.insert(key.clone(), read);
        }
        Some(self.expressions.get(&key)?.as_ref()?.is_match(asked))
    }
}

impl<'d> Inner<'d> {
    /// The path and the query that the service is asked; `None` if they are those of the request.
    fn path(&self, asked: &str) -> Option<(String, String)> {
        let has_variables = self.pass.arg(0).contains('$');
        // The request of nginx has no query.
        let empty = ["$is_args$args", "?$args", "$is_args$query_string"];
        let bare = |uri| empty.iter().find_map(|end| str::strip_suffix(uri, end)).unwrap_or(uri);
        let uri = match (self.target.uri.as_deref().map(bare), &self.matcher) {
            (None | Some("$uri"), _) => asked.to_owned(),
            // A path with variables replaces all of the other.
            (Some(uri), _) if has_variables => uri.to_owned(),
            (Some(uri), Matcher::Exact(_)) => uri.to_owned(),
            (Some(uri), Matcher::Prefix { path, .. }) => format!("{uri}{}", asked.strip_prefix(path.as_str())?),
            (Some(_), Matcher::Regex { .. }) => return None,
        };
        let (path, query) = uri.split_once('?').unwrap_or((&uri, ""));
        let is_text = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && !b"$#?".contains(&byte));
        let fits = path.starts_with('/') && is_text(path) && is_text(query) && uri.len() <= VALUE_BYTES_MAX;
        fits.then(|| (path.to_owned(), query.to_owned()))
    }

    fn host_directive(&self) -> Option<&'d Directive> {
        self.scope.all(&["proxy_set_header"]).into_iter().find(|one| one.arg(0).eq_ignore_ascii_case("host"))
    }

    fn host(&self, of: &Of<'d, '_>) -> Host {
        let Some(one) = self.host_directive() else { return Host::Text(self.target.host().to_owned()) };
        match self.scope.resolved(one.arg(1)).as_str() {
            "$host" | "$http_host" | "$host:$server_port" => Host::Clients,
            "$proxy_host" => Host::Text(self.target.host().to_owned()),
            "$server_name" => of.server_name().map_or(Host::Unknown, |name| Host::Text(name.to_owned())),
            value if value.contains('$') || value.is_empty() => Host::Unknown,
            value => Host::Text(value.to_owned()),
        }
    }
}

fn is_harmless(one: &Directive) -> bool {
    let name = one.name.as_str();
    match words::of(one) {
        Word::Known => HARMLESS.contains(&name) || name == "auth_request" && one.arg(0) == "off",
        Word::Tuning | Word::Different(_) | Word::Lost(_) => {
            !ANSWERING.contains(&name) && !words::OTHER_SERVERS.contains(&name)
        }
        Word::Unknown => false,
    }
}

/// Whether nginx redirects a path to a location, which has a slash behind it.
fn is_redirect(path: &str, asked: &str, location: &Directive) -> bool {
    let leads = ["proxy_pass", "grpc_pass"].into_iter().chain(words::OTHER_SERVERS.iter().copied());
    path.strip_suffix('/') == Some(asked)
        && leads.into_iter().any(|name| location.block.iter().any(|one| one.name == name))
}

/// Headers that every question of Steelyard has, in place of the client's.
const OF_QUESTION: &[&str] = &[
    "x-auth-request-redirect",
    "x-forwarded-method",
    "x-forwarded-port",
    "x-forwarded-uri",
    "x-original-method",
    "x-original-uri",
    "x-original-url",
];

/// Whether a question of Steelyard has this header with this value anyway.
fn is_of_question(lower: &str, value: &str) -> bool {
    matches!(
        (lower, value),
        ("x-original-uri" | "x-forwarded-uri" | "x-auth-request-redirect", "$request_uri")
            | ("x-original-method" | "x-forwarded-method", "$request_method")
            | ("x-forwarded-port", "$server_port")
            | ("x-original-url", "$scheme://$http_host$request_uri")
    )
}

/// The value of a header of a question, in which variables are Steelyard's; `None` if one is not understood.
fn value_of_question(value: &str, inner: &Inner<'_>, asked: &str, of: &Of<'_, '_>) -> Option<String> {
    let is_text = |text: &str| text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    let parts = parts(value);
    if value.len() > VALUE_BYTES_MAX || value.trim() != value || parts.len() > VARIABLES_MAX || !is_text(value) {
        return None;
    }
    let mut out = String::new();
    for part in parts {
        let name = match part {
            Part::Text(text) => {
                out.push_str(&literal(text));
                continue;
            }
            Part::Variable { name, .. } => name.to_ascii_lowercase(),
        };
        let known = match name.as_str() {
            "request_uri" => "${target}".to_owned(),
            "request_method" => "${method}".to_owned(),
            "scheme" => if of.is_tls { "https" } else { "http" }.to_owned(),
            "host" => "${host}".to_owned(),
            "http_host" => "${authority}".to_owned(),
            "remote_addr" => "${client_ip}".to_owned(),
            "remote_port" => "${client_port}".to_owned(),
            "server_port" => of.port.to_string(),
            "server_name" => of.server_name()?.to_owned(),
            "proxy_host" => literal(inner.target.host()),
            "uri" | "document_uri" => literal(asked),
            // The request of nginx has no query.
            "args" | "query_string" | "is_args" => String::new(),
            "ssl_client_s_dn" => "${client_cert_subject}".to_owned(),
            "ssl_client_escaped_cert" => "${client_cert_pem}".to_owned(),
            "ssl_server_name" => "${sni}".to_owned(),
            "ssl_protocol" => "${tls_version}".to_owned(),
            name => match (name.strip_prefix("http_"), name.strip_prefix("cookie_")) {
                (Some(name), _) if !name.is_empty() => format!("${{header.{}}}", name.replace('_', "-")),
                (_, Some(cookie)) if !cookie.is_empty() => format!("${{cookie.{cookie}}}"),
                _ => return None,
            },
        };
        out.push_str(&known);
    }
    Some(out)
}
