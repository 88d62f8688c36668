//! One server of nginx: its certificates, its redirects, and its locations in the order in which nginx tries them.

use serde_json::{Value, json};

use super::super::draft::{Became, Keys, closed, literal};
use super::location::with_path;
use super::parse::Directive;
use super::words::{self, Word};
use super::{Bound, Making, Scope, path};

/// The largest number of locations of a server: they are compared with each other.
const LOCATIONS_MAX: usize = 2_000;

/// How a location is compared with a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Matcher {
    Exact(String),
    Prefix {
        path: String,
        /// `^~`: no regular expression comes before it.
        is_first: bool,
        /// It ends with a slash, and the path without it has a route in front.
        has_bare: bool,
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
    /// How many locations are around it.
    deep: usize,
    /// What it gets depends on expressions in a way that has no equivalent.
    is_shut: bool,
}

/// What the locations around a block have decided about those in it.
#[derive(Clone, Default)]
struct Around {
    deep: usize,
    /// `^~` of the outermost: only there it comes before the expressions of a server.
    is_first: Option<bool>,
    /// Prefixes that are longer than one of the locations around it: what begins with them never gets into it.
    longer: Vec<String>,
    /// The same for exact paths.
    exact: Vec<String>,
}

/// Where a location stands.
pub(super) struct Of<'d, 's> {
    pub(super) server: &'d Directive,
    pub(super) scope: Scope<'d>,
    pub(super) matcher: &'s Matcher,
    pub(super) is_tls: bool,
    pub(super) port: u16,
}

impl Of<'_, '_> {
    /// `$server_name`, if it is a host.
    pub(super) fn server_name(&self) -> Option<&str> {
        let name = self.server.block.iter().find(|one| one.name == "server_name").map(|one| one.arg(0));
        name.filter(|name| !name.is_empty() && !name.contains(['$', '~', '*', '_']) && !name.starts_with('.'))
    }
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
        let matcher = Matcher::Prefix { path: "/".to_owned(), is_first: false, has_bare: false };
        let of = Of { server, scope: scope.clone(), matcher: &matcher, is_tls: bound.is_tls, port };
        let Some((mut routes, is_final)) = self.answers(&server.block, &of) else { return all() };
        if is_final {
            return routes;
        }
        let mut located = Vec::new();
        let Some(()) = self.locate(&server.block, &scope, &Around::default(), &mut located) else { return all() };
        self.shut(&mut located);
        let bare = slashes(&mut located);
        let mut made = Vec::new();
        for one in &located {
            if one.is_shut {
                made.push(vec![closed(&with_path(one.matcher.condition(false)))]);
                continue;
            }
            let of = Of { server, scope: one.scope.clone(), matcher: &one.matcher, is_tls: bound.is_tls, port };
            let Some(of_location) = self.location(one.directive, &of) else { return all() };
            made.push(of_location);
        }
        let order = order(&located);
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
            match words::of(one) {
                Word::Known | Word::Tuning => {}
                Word::Different(why) => self.draft.note(one.place(), &one.told(), Became::Different, why),
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
    fn locate(
        &mut self,
        block: &'d [Directive],
        scope: &Scope<'d>,
        around: &Around,
        all: &mut Vec<Located<'d>>,
    ) -> Option<()> {
        let own: Vec<(Matcher, &'d Directive)> =
            block.iter().filter(|one| one.name == "location").filter_map(|one| Some((matcher(one)?, one))).collect();
        for (matcher, directive) in &own {
            let mut close = |why: &str| {
                self.draft.note(directive.place(), &directive.told(), Became::Closed, why);
                None
            };
            if all.len() >= LOCATIONS_MAX {
                return close(&format!("there are more than {LOCATIONS_MAX} locations, so the server is closed"));
            }
            let inner = directive.block.iter().filter(|one| one.name == "location");
            let has_inner = |sign: &str| inner.clone().any(|one| one.arg(0).starts_with(sign));
            let mut matcher = matcher.clone();
            match &mut matcher {
                Matcher::Regex { pattern, ignores_case } => {
                    if path::found(pattern, *ignores_case).is_none() {
                        return close(
                            "it looks around or refers back, or Steelyard reads it in another way, and it decides what other locations get, \
                             so the server is closed; write it otherwise",
                        );
                    }
                    if inner.clone().next().is_some() {
                        return close(
                            "locations inside of it have no equivalent, so the server is closed; write both as one",
                        );
                    }
                    all.push(around.located(matcher, directive, scope));
                    continue;
                }
                Matcher::Exact(path) => {
                    if around.exact.contains(path) || around.has(path) {
                        self.dead(directive);
                        continue;
                    }
                    all.push(around.located(matcher, directive, scope));
                    continue;
                }
                Matcher::Prefix { path, is_first, .. } => {
                    if has_inner("~") {
                        return close(
                            "a regular expression inside of another location has no equivalent, so the server is closed; write both as one",
                        );
                    }
                    if around.has(path) {
                        self.dead(directive);
                        continue;
                    }
                    *is_first = around.is_first.unwrap_or(*is_first);
                    // Most have none inside.
                    let within = inner.clone().next().map(|_| around.within(path, *is_first, &own));
                    let located = around.located(matcher, directive, scope);
                    let scope = located.scope.clone();
                    all.push(located);
                    if let Some(within) = within {
                        self.locate(&directive.block, &scope, &within, all)?;
                    }
                }
            }
        }
        Some(())
    }

    fn dead(&mut self, directive: &Directive) {
        let why = "no request gets there: a location outside of the one around it takes its paths";
        self.draft.note(directive.place(), &directive.told(), Became::Different, why);
    }

    /// Closes prefixes below a shorter one with `^~`. There, expressions come before the longer and after the shorter one.
    fn shut(&mut self, located: &mut [Located<'d>]) {
        if !located.iter().any(|one| matches!(one.matcher, Matcher::Regex { .. })) {
            return;
        }
        let firsts = firsts(located);
        for one in located {
            let Matcher::Prefix { path, is_first: false, .. } = &one.matcher else { continue };
            if firsts.iter().any(|first| path.starts_with(first.as_str())) {
                let why = "a shorter location has ^~, and expressions come before this one, so it is closed; write ^~ here, too, or there not";
                self.draft.note(one.directive.place(), &one.directive.told(), Became::Closed, why);
                one.is_shut = true;
            }
        }
    }
}

impl Around {
    fn located<'d>(&self, matcher: Matcher, directive: &'d Directive, scope: &Scope<'d>) -> Located<'d> {
        Located { matcher, directive, scope: scope.inner(&directive.block), deep: self.deep, is_shut: false }
    }

    /// Whether a path never gets here.
    fn has(&self, path: &str) -> bool {
        self.longer.iter().any(|longer| path.starts_with(longer.as_str()))
    }

    /// What is around the locations in one of these.
    fn within(&self, path: &str, is_first: bool, siblings: &[(Matcher, &Directive)]) -> Self {
        let mut inner = Self { deep: self.deep + 1, is_first: Some(is_first), ..self.clone() };
        for (sibling, _) in siblings {
            match sibling {
                Matcher::Prefix { path: other, .. } if other.len() > path.len() && other.starts_with(path) => {
                    inner.longer.push(other.clone());
                }
                Matcher::Exact(other) => inner.exact.push(other.clone()),
                Matcher::Prefix { .. } | Matcher::Regex { .. } => {}
            }
        }
        inner
    }
}

/// How a location is compared; `None` for one with a name, to which others lead.
pub(super) fn matcher(directive: &Directive) -> Option<Matcher> {
    let first = directive.arg(0);
    let (sign, path) = match (directive.args.len(), first) {
        (2.., sign) => (sign, directive.arg(1)),
        // `location =/x` and `location ~\.php$` without a blank.
        (_, first) => {
            let sign = ["^~", "~*", "~", "="].into_iter().find(|sign| first.starts_with(sign)).unwrap_or("");
            (sign, first.get(sign.len()..).unwrap_or_default())
        }
    };
    if sign.is_empty() && path.starts_with('@') {
        return None;
    }
    Some(match sign {
        "=" => Matcher::Exact(path.to_owned()),
        "~" | "~*" => Matcher::Regex { pattern: path.to_owned(), ignores_case: sign == "~*" },
        sign => Matcher::Prefix { path: path.to_owned(), is_first: sign == "^~", has_bare: false },
    })
}

/// The prefixes that come before regular expressions.
fn firsts(located: &[Located<'_>]) -> Vec<String> {
    let first = |one: &Located<'_>| match &one.matcher {
        Matcher::Prefix { path, is_first: true, .. } => Some(path.clone()),
        Matcher::Exact(_) | Matcher::Prefix { .. } | Matcher::Regex { .. } => None,
    };
    located.iter().filter_map(first).collect()
}

/// The order in which routes are tried: exact paths, prefixes that come before regular expressions, these, and the other prefixes. Of two
/// with one path, the inner comes first.
fn order(located: &[Located<'_>]) -> Vec<usize> {
    let firsts = firsts(located);
    let mut ranks = Vec::new();
    for (number, one) in located.iter().enumerate() {
        let rank = match &one.matcher {
            Matcher::Exact(_) => (0, 0, 0),
            Matcher::Regex { .. } => (2, number, 0),
            Matcher::Prefix { path, is_first, .. } => {
                let is_below = firsts.iter().any(|first| path.starts_with(first.as_str()));
                (if *is_first || is_below { 1 } else { 3 }, usize::MAX - path.len(), usize::MAX - one.deep)
            }
        };
        ranks.push((rank, number));
    }
    ranks.sort_unstable();
    ranks.into_iter().map(|(_, number)| number).collect()
}

/// `/x` is redirected to `/x/` if that is a location with an endpoint.
fn slashes(located: &mut [Located<'_>]) -> Vec<Keys> {
    let mut all = Vec::new();
    for number in 0..located.len() {
        let Some((Matcher::Prefix { path, .. }, directive)) =
            located.get(number).map(|one| (&one.matcher, one.directive))
        else {
            continue;
        };
        let bare = path.trim_end_matches('/');
        let proxies = directive.block.iter().any(|one| ["proxy_pass", "grpc_pass"].contains(&one.name.as_str()));
        if !proxies || bare.is_empty() || bare.len() + 1 != path.len() || !path::is_plain(path) {
            continue;
        }
        let has = |is_it: &dyn Fn(&Matcher) -> bool| located.iter().any(|one| is_it(&one.matcher));
        if has(&|other| matches!(other, Matcher::Prefix { path: other, .. } if other == bare)) {
            continue;
        }
        if !has(&|other| matches!(other, Matcher::Exact(other) if other == bare)) {
            let to = json!({"path": literal(path), "status": 301});
            all.push(Keys::default().with("path", json!({"exact": bare})).with("redirect", to));
        }
        if let Some(Matcher::Prefix { has_bare, .. }) = located.get_mut(number).map(|one| &mut one.matcher) {
            *has_bare = true;
        }
    }
    all
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
    /// The condition of a route; `None` if it takes every path. `proxies`: it leads to an endpoint.
    pub(super) fn condition(&self, proxies: bool) -> Option<Value> {
        match self {
            Self::Exact(path) if path::is_plain(path) => Some(json!({"exact": path})),
            Self::Exact(path) => Some(json!({"regex": path::text(path)})),
            Self::Prefix { path, .. } if path == "/" => None,
            Self::Prefix { path, has_bare: true, .. } if proxies => Some(json!(path)),
            Self::Prefix { path, .. } => Some(json!({"regex": format!("{}.*", path::text(path))})),
            Self::Regex { pattern, ignores_case } => {
                // One that has no equivalent has closed its server.
                Some(json!({"regex": path::found(pattern, *ignores_case)?}))
            }
        }
    }
}
