//! One server of nginx: its certificates, its redirects, and its locations in the order in which nginx tries them.

use serde_json::{Value, json};

use super::super::draft::{Became, Keys, closed, escaped, searched};
use super::parse::Directive;
use super::words::{self, Word};
use super::{Bound, Making, Scope};

/// How a location is compared with a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Matcher {
    Exact(String),
    Prefix {
        path: String,
        /// `^~`: no regular expression comes before it.
        is_first: bool,
    },
    Regex {
        pattern: String,
        ignores_case: bool,
    },
}

/// A location with the levels around it.
struct Located<'d> {
    matcher: Matcher,
    directive: &'d Directive,
    scope: Scope<'d>,
}

/// Where a location stands.
pub(super) struct Of<'d, 's> {
    pub(super) server: &'d Directive,
    pub(super) scope: Scope<'d>,
    pub(super) matcher: &'s Matcher,
    pub(super) is_tls: bool,
    pub(super) port: u16,
}

impl<'d> Making<'d, '_> {
    /// The routes of a server, without its hosts.
    pub(super) fn server(&mut self, bound: Bound<'d>, port: u16) -> Vec<Keys> {
        let server = bound.server;
        let all = || vec![closed(&Keys::default())];
        if self.closed | self.is_closed(&server.block, "the server is closed") {
            return all();
        }
        let scope = self.scope.inner(&server.block);
        let matcher = Matcher::Prefix { path: "/".to_owned(), is_first: false };
        let of = Of { server, scope: scope.clone(), matcher: &matcher, is_tls: bound.is_tls, port };
        let Some((mut routes, is_final)) = self.answers(&server.block, &of) else { return all() };
        if is_final {
            return routes;
        }
        let mut located = Vec::new();
        let Some(()) = self.locate(&server.block, &scope, &mut located) else { return all() };
        let bare = self.slashes(&located);
        let mut made = Vec::new();
        for one in &located {
            let of = Of { server, scope: one.scope.clone(), matcher: &one.matcher, is_tls: bound.is_tls, port };
            let Some(of_location) = self.location(one.directive, &of) else { return all() };
            made.push(of_location);
        }
        let order = self.order(&located);
        let mut taken = order.into_iter();
        // Exact paths first, then the redirects to a path with a slash, and then the rest.
        let exact = located.iter().filter(|one| matches!(one.matcher, Matcher::Exact(_))).count();
        for number in taken.by_ref().take(exact) {
            routes.append(made.get_mut(number).unwrap_or(&mut Vec::new()));
        }
        routes.extend(bare);
        for number in taken {
            routes.append(made.get_mut(number).unwrap_or(&mut Vec::new()));
        }
        if !located.iter().any(|one| matches!(&one.matcher, Matcher::Prefix { path, .. } if path == "/")) {
            self.no_files(server, "what no location takes");
            routes.push(Keys::default().with("respond", json!({"status": 404})));
        }
        routes
    }

    /// Reports what is not translated in a block, and returns whether it closes the block.
    pub(super) fn is_closed(&mut self, block: &[Directive], what: &str) -> bool {
        let mut closes = false;
        for one in block {
            match words::of(&one.name) {
                Word::Known | Word::Tuning => {}
                Word::Lost(instead) => self.draft.note(one.place(), &one.told(), Became::Lost, instead),
                Word::Unknown if words::OTHER_SERVERS.contains(&one.name.as_str()) => {}
                Word::Unknown => {
                    let why = format!("it is not understood, so {what}; remove it, or write what it does by hand");
                    self.draft.note(one.place(), &one.told(), Became::Closed, &why);
                    closes = true;
                }
            }
        }
        closes
    }

    pub(super) fn no_files(&mut self, place: &Directive, what: &str) {
        let why = "Steelyard serves no files, so it answers 404; put a web server behind it";
        self.draft.note(place.place(), what, Became::Lost, why);
    }

    /// All locations of a block, with those inside of them. `None` closes the server.
    fn locate(&mut self, block: &'d [Directive], scope: &Scope<'d>, all: &mut Vec<Located<'d>>) -> Option<()> {
        for directive in block.iter().filter(|one| one.name == "location") {
            let first = directive.arg(0);
            let (sign, path) = match (directive.args.len(), first) {
                (2.., sign) => (sign, directive.arg(1)),
                // `location =/x` and `location ~\.php$` without a blank.
                (_, first) => {
                    let sign = ["^~", "~*", "~", "="].into_iter().find(|sign| first.starts_with(sign)).unwrap_or("");
                    (sign, first.get(sign.len()..).unwrap_or_default())
                }
            };
            let matcher = match sign {
                // Named: others lead to it.
                _ if path.starts_with('@') => continue,
                "=" => Matcher::Exact(path.to_owned()),
                "~" | "~*" => Matcher::Regex { pattern: path.to_owned(), ignores_case: sign == "~*" },
                sign => Matcher::Prefix { path: path.to_owned(), is_first: sign == "^~" },
            };
            if let Matcher::Regex { pattern, ignores_case } = &matcher
                && searched(pattern, *ignores_case).is_none()
            {
                let why = "it looks around or refers back, which takes a time without limit, and decides what other locations get, so the \
                    server is closed; write it otherwise";
                self.draft.note(directive.place(), &directive.told(), Became::Closed, why);
                return None;
            }
            let scope = scope.inner(&directive.block);
            let is_prefix = matches!(matcher, Matcher::Prefix { .. });
            let has_inner_regex =
                directive.block.iter().any(|one| one.name == "location" && one.arg(0).starts_with('~'));
            if has_inner_regex {
                let why = "a regular expression inside of another location has no equivalent, so the server is closed; write both as one";
                self.draft.note(directive.place(), &directive.told(), Became::Closed, why);
                return None;
            }
            all.push(Located { matcher, directive, scope: scope.clone() });
            if is_prefix {
                self.locate(&directive.block, &scope, all)?;
            }
        }
        Some(())
    }

    /// The order in which routes are tried: exact paths, prefixes that come before regular expressions, these, and the other prefixes.
    fn order(&mut self, located: &[Located<'d>]) -> Vec<usize> {
        let of_prefix = |one: &Located<'d>| match &one.matcher {
            Matcher::Prefix { path, is_first } => Some((path.clone(), *is_first)),
            Matcher::Exact(_) | Matcher::Regex { .. } => None,
        };
        let firsts: Vec<String> =
            located.iter().filter_map(of_prefix).filter(|(_, is_first)| *is_first).map(|(path, _)| path).collect();
        let has_regex = located.iter().any(|one| matches!(one.matcher, Matcher::Regex { .. }));
        let mut ranks = Vec::new();
        for (number, one) in located.iter().enumerate() {
            let rank = match &one.matcher {
                Matcher::Exact(_) => (0, 0),
                Matcher::Regex { .. } => (2, number),
                Matcher::Prefix { path, is_first } => {
                    let length = usize::MAX - path.len();
                    let is_below = firsts.iter().any(|first| path.starts_with(first.as_str()) && path != first);
                    if is_below && !is_first && has_regex {
                        let why = "a shorter location has ^~, so this one comes before all regular expressions, too";
                        self.draft.note(one.directive.place(), &one.directive.told(), Became::Different, why);
                    }
                    (if *is_first || is_below { 1 } else { 3 }, length)
                }
            };
            ranks.push((rank, number));
        }
        ranks.sort_unstable();
        ranks.into_iter().map(|(_, number)| number).collect()
    }

    /// `/x` is redirected to `/x/` if that is a location with an endpoint.
    fn slashes(&self, located: &[Located<'d>]) -> Vec<Keys> {
        let mut all = Vec::new();
        for one in located {
            let Matcher::Prefix { path, .. } = &one.matcher else { continue };
            let bare = path.trim_end_matches('/');
            let proxies =
                one.directive.block.iter().any(|one| ["proxy_pass", "grpc_pass"].contains(&one.name.as_str()));
            let is_taken = located.iter().any(|other| match &other.matcher {
                Matcher::Exact(other) | Matcher::Prefix { path: other, .. } => other == bare,
                Matcher::Regex { .. } => false,
            });
            if proxies && !bare.is_empty() && bare.len() + 1 == path.len() && !is_taken {
                let to = json!({"path": super::super::draft::literal(path), "status": 301});
                all.push(Keys::default().with("path", json!({"exact": bare})).with("redirect", to));
            }
        }
        all
    }

    /// The `tls` of a listener: the certificates of its servers, that of the default server first.
    pub(super) fn tls(&mut self, first: Bound<'d>, bound: &[Bound<'d>]) -> Value {
        let mut certificates: Vec<Value> = Vec::new();
        let others = bound.iter().filter(|one| one.number != first.number);
        for one in std::iter::once(&first).chain(others) {
            let scope = self.scope.inner(&one.server.block);
            let (certs, keys) = (scope.all(&["ssl_certificate"]), scope.all(&["ssl_certificate_key"]));
            if certs.is_empty() {
                let why = "the server has TLS and no ssl_certificate";
                self.draft.note(one.server.place(), "server", Became::Lost, why);
            }
            for (cert, key) in certs.iter().zip(keys) {
                if cert.arg(0).contains('$') || key.arg(0).starts_with("engine:") {
                    let why = "a certificate is a file: name each, and Steelyard chooses by the names in them";
                    self.draft.note(cert.place(), &cert.told(), Became::Lost, why);
                    continue;
                }
                let pair = json!({"cert": cert.arg(0), "key": key.arg(0)});
                if !certificates.contains(&pair) {
                    certificates.push(pair);
                }
            }
        }
        if certificates.is_empty() {
            certificates.push(json!({"cert": "missing.pem", "key": "missing.key"}));
        }
        let mut tls = json!({"certificates": certificates});
        let scope = self.scope.inner(&first.server.block);
        if let Some(versions) = scope.last("ssl_protocols") {
            let has = |version: &str| versions.args.iter().any(|arg| arg == version);
            if !has("TLSv1.2") && has("TLSv1.3") {
                tls["min_version"] = json!("1.3");
            }
            if has("TLSv1") || has("TLSv1.1") {
                let why = "the oldest version is TLS 1.2";
                self.draft.note(versions.place(), &versions.told(), Became::Different, why);
            }
        }
        if let Some(ca) = self.client_ca(bound) {
            tls["client_ca"] = ca;
        }
        tls
    }

    /// The certificates that clients must show.
    fn client_ca(&mut self, bound: &[Bound<'d>]) -> Option<Value> {
        let mut hosts = Vec::new();
        let mut file: Option<&str> = None;
        for one in bound {
            let scope = self.scope.inner(&one.server.block);
            let Some(verify) = scope.last("ssl_verify_client").filter(|one| one.arg(0) != "off") else { continue };
            let ca = scope.last("ssl_client_certificate").map(|one| one.arg(0));
            let is_one = ca.is_some() && file.is_none_or(|file| Some(file) == ca);
            if verify.arg(0) != "on" {
                // The locations are closed where they are made; see `policies`.
                continue;
            }
            if !is_one {
                let why = "a port has one CA for certificates of clients, so all servers are closed; write a listener for each CA";
                self.draft.note(verify.place(), &verify.told(), Became::Closed, why);
                self.closed = true;
                continue;
            }
            file = ca;
            hosts.push(self.names(one.server));
        }
        let file = file?;
        let is_all = hosts.len() == bound.len() || hosts.iter().any(Vec::is_empty);
        let hosts: Vec<String> = hosts.into_iter().flatten().collect();
        Some(if is_all { json!({"ca": file}) } else { json!({"ca": file, "hosts": hosts}) })
    }

    /// What a listener has of the settings of its servers: the size of bodies, the proxies in front, the headers about clients.
    pub(super) fn clients(&mut self, bound: &[Bound<'d>], keys: &mut Keys) {
        let mut sizes = Vec::new();
        let mut trusted = Vec::new();
        let mut tells = false;
        for one in bound {
            let scope = self.scope.inner(&one.server.block);
            sizes.extend(self.sizes(&one.server.block, &scope));
            trusted.extend(
                scope
                    .all(&["set_real_ip_from"])
                    .iter()
                    .map(|one| one.arg(0).to_owned())
                    .filter(|text| !text.starts_with("unix:")),
            );
            tells |= names_forwarded(self.http) || names_forwarded(&one.server.block);
        }
        let largest = if sizes.contains(&0) { 0 } else { sizes.iter().copied().max().unwrap_or(1 << 20) };
        if sizes.iter().any(|size| *size != largest)
            && let Some(one) = bound.first()
        {
            let why = "the size of bodies is limited for each listener, so the largest of these counts; `buffer: {max_size: ...}` limits a route";
            self.draft.note(one.server.place(), "client_max_body_size", Became::Different, why);
        }
        if largest > 0 {
            keys.set("limits", json!({"body_bytes": format!("{largest}B")}));
        }
        trusted.sort_unstable();
        trusted.dedup();
        if !trusted.is_empty() {
            keys.set("trusted_proxies", trusted);
        }
        if !tells {
            keys.set("forwarded", "off");
        }
    }

    /// The sizes of bodies of all locations of a block.
    fn sizes(&mut self, block: &'d [Directive], scope: &Scope<'d>) -> Vec<u64> {
        let own = match scope.last("client_max_body_size") {
            None => 1 << 20,
            Some(one) => size(one.arg(0)).unwrap_or_else(|| {
                self.draft.note(
                    one.place(),
                    &one.told(),
                    Became::Different,
                    "it is no size, so the default of 1m counts",
                );
                1 << 20
            }),
        };
        let mut all = vec![own];
        for one in block.iter().filter(|one| one.name == "location") {
            all.extend(self.sizes(&one.block, &scope.inner(&one.block)));
        }
        all
    }
}

/// Whether a block sets a header that tells endpoints about clients.
fn names_forwarded(block: &[Directive]) -> bool {
    block.iter().any(|one| {
        one.name == "proxy_set_header" && one.arg(0).to_ascii_lowercase().starts_with("x-forwarded-")
            || one.name != "server" && names_forwarded(&one.block)
    })
}

/// `10m` in bytes.
pub(super) fn size(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let (digits, factor) = match text.strip_suffix(['k', 'm', 'g']) {
        Some(digits) if text.ends_with('k') => (digits, 1 << 10),
        Some(digits) if text.ends_with('m') => (digits, 1 << 20),
        Some(digits) => (digits, 1 << 30),
        None => (text.as_str(), 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

impl Matcher {
    /// The condition of a route; `None` if it takes every path. `proxies`: a path that ends with a slash and leads to an endpoint, whose bare form
    /// has a redirect of its own.
    pub(super) fn condition(&self, proxies: bool) -> Option<Value> {
        match self {
            Self::Exact(path) => Some(json!({"exact": path})),
            Self::Prefix { path, .. } if path == "/" => None,
            Self::Prefix { path, .. } if proxies && path.ends_with('/') => Some(json!(path)),
            Self::Prefix { path, .. } => Some(json!({"regex": format!("{}.*", escaped(path))})),
            Self::Regex { pattern, ignores_case } => {
                searched(pattern, *ignores_case).map(|regex| json!({"regex": regex}))
            }
        }
    }
}
