//! One location of nginx: what it answers itself, and the endpoints that it leads to.

use serde_json::{Value, json};

use super::super::draft::{Became, Keys, closed, literal};
use super::super::pattern::{escaped, searched};
use super::parse::Directive;
use super::server::{Matcher, Of};
use super::words::OTHER_SERVERS;
use super::{Making, Scope, path};

/// What the directives `if`, `return` and `rewrite` of a block answer.
#[derive(Default)]
pub(super) struct Answers {
    /// In front of everything else.
    pub(super) routes: Vec<Keys>,
    /// What everything else must have, and what is answered otherwise.
    pub(super) guards: Vec<(Keys, Keys)>,
    /// Nothing comes after it.
    pub(super) is_final: bool,
}

impl Answers {
    /// Adds a route that comes after the guards so far. Answers false if it cannot have their conditions.
    #[must_use = "if it is false, the route is not there"]
    fn add(&mut self, mut route: Keys) -> bool {
        let fits = self.guards.iter().all(|(guard, _)| route.conditions(guard));
        if fits {
            self.routes.push(route);
        }
        fits
    }
}

impl<'d> Making<'d, '_> {
    /// The routes of a location. `None` closes the server.
    pub(super) fn location(&mut self, location: &'d Directive, of: &Of<'d, '_>) -> Option<Vec<Keys>> {
        let base = with_path(of.matcher.condition(false));
        let all = || Some(vec![closed(&base)]);
        let block = &location.block;
        if self.is_closed(block, "the location is closed") {
            return all();
        }
        // Before everything else, and also for the locations inside of one that has it.
        if of.scope.last("internal").is_some() {
            return Some(vec![base.with("respond", json!({"status": 404}))]);
        }
        let Some(answers) = self.answered(block, of) else { return all() };
        let Answers { mut routes, guards, is_final } = answers;
        let before = routes.len();
        if is_final {
            return self.guarded(location, routes, before, guards).or_else(all);
        }
        let Ok(policies) = self.policies(of) else { return all() };
        if policies.get("respond").is_some() {
            routes.push(base.clone().joined(&policies));
            return self.guarded(location, routes, before, guards).or_else(all);
        }
        let Some(made) = self.handled(location, of) else { return all() };
        let Ok(methods) = self.methods(block) else { return all() };
        for mut route in made {
            self.copied_alike(of, &mut route);
            let Some(mut limited) = self.limited(location, route, &policies, methods.as_deref()) else { return all() };
            routes.append(&mut limited);
        }
        self.guarded(location, routes, before, guards).or_else(all)
    }

    /// A route with the policies of its location, for these methods, and what others get. `None` closes the location.
    fn limited(
        &mut self,
        place: &Directive,
        mut route: Keys,
        policies: &Keys,
        methods: Option<&[String]>,
    ) -> Option<Vec<Keys>> {
        let is_refusal = route.get("respond").is_some_and(|answer| answer["status"].as_u64() >= Some(400));
        if !is_refusal && !route.agreed(policies) {
            let why = "a request has to pass the rules of this location and those of the one that it leads to, so it is closed; write them as one";
            self.draft.note(place.place(), &place.told(), Became::Closed, why);
            return None;
        }
        let Some(methods) = methods else { return Some(vec![route]) };
        let mut limited = route.clone();
        if !limited.conditions(&Keys::default().with("methods", methods)) {
            self.two_conditions(place);
            return None;
        }
        Some(vec![limited, closed(&route)])
    }

    fn two_conditions(&mut self, place: &Directive) {
        let why = "two conditions on one header, cookie, part of the query or method have no equivalent, so the location is closed; write both as one";
        self.draft.note(place.place(), &place.told(), Became::Closed, why);
    }

    /// Adds guards to the routes from a place on, and what is answered where one does not hold: the first of those decides, so the answer of a
    /// later one needs those before it. `None` closes the location.
    fn guarded(
        &mut self,
        place: &Directive,
        mut routes: Vec<Keys>,
        from: usize,
        guards: Vec<(Keys, Keys)>,
    ) -> Option<Vec<Keys>> {
        let mut rest = guards.as_slice();
        let mut fits =
            routes.iter_mut().skip(from).all(|route| guards.iter().all(|(guard, _)| route.conditions(guard)));
        while let [before @ .., (_, otherwise)] = rest {
            let mut otherwise = otherwise.clone();
            fits &= before.iter().all(|(guard, _)| otherwise.conditions(guard));
            routes.push(otherwise);
            rest = before;
        }
        if !fits {
            self.two_conditions(place);
            return None;
        }
        Some(routes)
    }

    /// `limit_except GET { deny all; }`: the methods that pass.
    fn methods(&mut self, block: &[Directive]) -> Result<Option<Vec<String>>, ()> {
        let mut limits = block.iter().filter(|one| one.name == "limit_except");
        let Some(limit) = limits.next() else { return Ok(None) };
        let is_deny = |one: &Directive| one.name == "deny" && one.arg(0) == "all";
        if limit.block.is_empty() || !limit.block.iter().all(is_deny) || limits.next().is_some() {
            let why = "only `deny all` is understood in it, so the location is closed; write a route for each list of methods";
            self.draft.note(limit.place(), &limit.told(), Became::Closed, why);
            return Err(());
        }
        let mut methods = limit.args.clone();
        if methods.iter().any(|method| method == "GET") && !methods.iter().any(|method| method == "HEAD") {
            methods.push("HEAD".to_owned());
        }
        Ok(Some(methods))
    }

    /// The routes of what serves a location.
    fn handled(&mut self, location: &'d Directive, of: &Of<'d, '_>) -> Option<Vec<Keys>> {
        let block = &location.block;
        let find = |name: &str| block.iter().find(|one| one.name == name);
        let nothing = || Some(vec![with_path(of.matcher.condition(false)).with("respond", json!({"status": 404}))]);
        if let Some(files) = find("try_files") {
            return self.tried(location, files, of);
        }
        // A fixed method may be there so that nobody can change anything.
        if let Some(one) = of.scope.last("proxy_method").filter(|_| find("proxy_pass").is_some()) {
            let why = "endpoints get the client's method, so the location is closed; write `methods` of the route if others must not pass";
            self.draft.note(one.place(), &one.told(), Became::Closed, why);
            return None;
        }
        if let Some(pass) = find("proxy_pass").or(find("grpc_pass")) {
            return self.proxied(pass, block, of);
        }
        if let Some(other) = block.iter().find(|one| OTHER_SERVERS.contains(&one.name.as_str())) {
            let why = "Steelyard speaks HTTP and gRPC to endpoints, so it answers 404; put an HTTP server in front of the application";
            self.draft.note(other.place(), &other.told(), Became::Lost, why);
            return nothing();
        }
        self.no_files(location, &location.told());
        nothing()
    }

    /// `try_files`: there are no files, so the location with a name that is last, if it is one. `None` closes the location.
    fn tried(&mut self, location: &'d Directive, files: &'d Directive, of: &Of<'d, '_>) -> Option<Vec<Keys>> {
        let name = files.args.last().filter(|name| name.starts_with('@'));
        let mut inner = of.server.block.iter().filter(|one| one.name == "location");
        let named = inner.find(|one| Some(one.arg(0)) == name.map(String::as_str));
        let Some(named) = named else {
            self.no_files(location, &location.told());
            return Some(vec![with_path(of.matcher.condition(false)).with("respond", json!({"status": 404}))]);
        };
        if location.arg(0).starts_with('@') {
            let why = "a location with a name that leads to another one has no equivalent, so it is closed; write both as one";
            self.draft.note(files.place(), &files.told(), Became::Closed, why);
            return None;
        }
        let why = "Steelyard serves no files; all requests go to the location that is named last";
        self.draft.note(files.place(), &files.told(), Became::Lost, why);
        // What is around a location with a name is its server, and nothing of the location that leads to it.
        let scope = Scope::of(&[self.http, &of.server.block, &named.block]);
        self.location(named, &Of { scope, ..*of })
    }

    /// See [`Answers`]; the second is whether nothing comes after them. `None` closes the block.
    pub(super) fn answers(&mut self, block: &'d [Directive], of: &Of<'d, '_>) -> Option<(Vec<Keys>, bool)> {
        let Answers { routes, guards, is_final } = self.answered(block, of)?;
        if let Some(one) = block.iter().find(|_| !guards.is_empty()) {
            let why = "a condition that must not hold is only understood in a location, so the server is closed; move it into `location /`";
            self.draft.note(one.place(), "if", Became::Closed, why);
            return None;
        }
        Some((routes, is_final))
    }

    fn answered(&mut self, block: &'d [Directive], of: &Of<'d, '_>) -> Option<Answers> {
        let mut answers = Answers::default();
        for one in block {
            match one.name.as_str() {
                "return" => {
                    let route = self.returned(one, with_path(of.matcher.condition(false)), of)?;
                    self.added(&mut answers, one, route)?;
                    answers.is_final = true;
                    return Some(answers);
                }
                "rewrite" => match self.rewritten(one, of)? {
                    Some(route) => {
                        self.added(&mut answers, one, route)?;
                        if takes_all(one.arg(0), of.matcher) {
                            answers.is_final = true;
                            return Some(answers);
                        }
                    }
                    // It is part of a proxied location.
                    None => continue,
                },
                "if" => self.condition(one, of, &mut answers)?,
                _ => {}
            }
        }
        Some(answers)
    }

    fn added(&mut self, answers: &mut Answers, place: &Directive, route: Keys) -> Option<()> {
        if !answers.add(route) {
            self.two_conditions(place);
            return None;
        }
        Some(())
    }

    fn condition(&mut self, one: &'d Directive, of: &Of<'d, '_>, answers: &mut Answers) -> Option<()> {
        let base = with_path(of.matcher.condition(false));
        let Some((keys, is_negated)) = condition(one, of, base) else {
            let why =
                "the condition is not understood, so what it stands in is closed; write a route with the condition";
            self.draft.note(one.place(), &one.told(), Became::Closed, why);
            return None;
        };
        let Some(keys) = keys else { return Some(()) };
        let answer = match one.block.iter().find(|one| one.name != "set" && one.name != "break") {
            Some(inner) if inner.name == "return" => self.returned(inner, keys.clone(), of)?,
            Some(inner) if inner.name == "rewrite" => {
                let route = self.rewritten(inner, of)?;
                let Some(route) = route else { return self.unknown_if(one) };
                keys.clone().joined(&route)
            }
            _ => return self.unknown_if(one),
        };
        if is_negated {
            let mut otherwise = answer;
            for key in ["headers", "cookies", "query", "methods"] {
                otherwise.remove(key);
            }
            let mut guard = keys;
            guard.remove("path");
            answers.guards.push((guard, otherwise));
            return Some(());
        }
        self.added(answers, one, answer)
    }

    fn unknown_if(&mut self, one: &Directive) -> Option<()> {
        let why = "only `return` and redirects are understood in it, so what it stands in is closed; write a route with the condition";
        self.draft.note(one.place(), &one.told(), Became::Closed, why);
        None
    }

    /// The answer of `return`.
    fn returned(&mut self, one: &Directive, route: Keys, of: &Of<'d, '_>) -> Option<Keys> {
        let (status, text) = match one.arg(0).parse::<u16>() {
            Ok(status) => (status, one.args.get(1).map(|text| of.scope.resolved(text))),
            Err(_) => (302, Some(of.scope.resolved(one.arg(0)))),
        };
        if [301, 302, 303, 307, 308].contains(&status) {
            let answer = text.as_deref().and_then(|url| redirect(url, status, of, false));
            if answer.is_none() {
                let why = "the place that it leads to is not understood, so it is closed; write `redirect` by hand";
                self.draft.note(one.place(), &one.told(), Became::Closed, why);
            }
            return answer.map(|answer| route.joined(&answer));
        }
        if status == 444 {
            self.draft.note(one.place(), &one.told(), Became::Different, "clients get 403 before the connection ends");
        }
        let mut answer = json!({"status": if (200..600).contains(&status) && status != 444 { status } else { 403 }});
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            if text.contains('$') {
                let why = "variables in a text stay as they are written";
                self.draft.note(one.place(), &one.told(), Became::Different, why);
            }
            answer["body"] = json!(text);
            answer["content_type"] = json!(of.scope.last("default_type").map_or("text/plain", |kind| kind.arg(0)));
        }
        Some(route.with("respond", answer))
    }

    /// The redirect of `rewrite`; the inner `None` if it changes what an endpoint gets.
    fn rewritten(&mut self, one: &Directive, of: &Of<'d, '_>) -> Option<Option<Keys>> {
        let (pattern, to, flag) = (one.arg(0), of.scope.resolved(one.arg(1)), one.arg(2));
        let is_url = to.starts_with("http://") || to.starts_with("https://") || to.starts_with("$scheme://");
        let mut close = |why: &str| {
            self.draft.note(one.place(), &one.told(), Became::Closed, why);
            None
        };
        if !is_url && flag != "permanent" && flag != "redirect" {
            let proxies = of.scope.has(&["proxy_pass", "grpc_pass"]);
            if flag == "break" && proxies && within(pattern, of.matcher) {
                return Some(None);
            }
            return close(
                "a request that is served as if it had another path has no equivalent here, so it is closed; write a route for each path",
            );
        }
        if !within(pattern, of.matcher) {
            return close("its paths are not only those of the location, so it is closed; write a route for it");
        }
        let status = if flag == "permanent" { 301 } else { 302 };
        if to.ends_with('?') {
            self.draft.note(one.place(), &one.told(), Became::Different, "the query stays");
        }
        let answer = path::found(pattern, false).and_then(|regex| {
            let answer = redirect(to.trim_end_matches('?'), status, of, true)?;
            Some(with_path(Some(json!({"regex": regex}))).joined(&answer))
        });
        match answer {
            Some(answer) => Some(Some(answer)),
            None => {
                let why = "it is not understood, so it is closed; write `redirect` by hand";
                self.draft.note(one.place(), &one.told(), Became::Closed, why);
                None
            }
        }
    }
}

pub(super) fn with_path(path: Option<Value>) -> Keys {
    let mut keys = Keys::default();
    if let Some(path) = path {
        keys.set("path", path);
    }
    keys
}

/// Whether an expression that begins with a text can only match paths of a location.
pub(super) fn within(pattern: &str, matcher: &Matcher) -> bool {
    match matcher {
        Matcher::Prefix { path, .. } if path == "/" => true,
        Matcher::Prefix { path, .. } => {
            let plain = pattern.strip_prefix('^').map(|rest| rest.replace("\\/", "/"));
            plain.is_some_and(|rest| rest.starts_with(path.as_str()) || rest.starts_with(&escaped(path)))
                && !pattern.contains('|')
        }
        Matcher::Regex { pattern: own, ignores_case } => own == pattern && !ignores_case,
        Matcher::Exact(_) => false,
    }
}

/// Whether an expression matches every path of a location.
fn takes_all(pattern: &str, matcher: &Matcher) -> bool {
    let inner = pattern.strip_prefix('^').unwrap_or(pattern);
    let ends = ["(.*)$", ".*$", "(.*)", ".*"];
    let rest = ends.iter().find_map(|end| inner.strip_suffix(end)).or((!inner.ends_with('$')).then_some(inner));
    match (rest, matcher) {
        (Some(""), _) => true,
        (Some(rest), Matcher::Prefix { path, .. }) => pattern.starts_with('^') && rest == path,
        (_, _) => false,
    }
}

/// What a condition of `if` adds to a route, and whether it must not hold; the inner `None` if it never holds here.
fn condition(one: &Directive, of: &Of<'_, '_>, mut keys: Keys) -> Option<(Option<Keys>, bool)> {
    let text = one.args.join(" ");
    let text = text.strip_prefix('(')?.strip_suffix(')')?.trim();
    let (variable, rest) = text.split_once(' ').unwrap_or((text, ""));
    let (sign, value) = rest.trim().split_once(' ').unwrap_or((rest, ""));
    let value = value.trim().trim_matches(['"', '\'']);
    if variable == "$scheme" && sign == "=" {
        return Some(((value == if of.is_tls { "https" } else { "http" }).then_some(keys), false));
    }
    let (matched, is_negated) = matched(sign, value)?;
    let named = |prefix: &str| variable.strip_prefix(prefix).filter(|name| !name.is_empty());
    let bare = sign.trim_start_matches('!');
    match variable {
        "$host" | "$http_host" if sign == "=" && !value.is_empty() => keys.set("hosts", json!([value])),
        "$request_method" if !value.is_empty() => keys.set("methods", methods(value, bare)?),
        "$uri" | "$document_uri" if bare.starts_with('~') && !is_negated && keys.get("path").is_none() => {
            keys.set("path", json!({"regex": path::found(value, bare == "~*")?}));
        }
        "$uri" | "$document_uri" if sign == "=" && within("^/", of.matcher) => {
            let exact = Matcher::Exact(value.to_owned());
            keys.set("path", exact.condition(false)?);
        }
        // Not `$cookie_` and `$arg_`: nginx takes the first one, in any case of its name and as it is written, and Steelyard any, decoded. Whoever
        // must have or must not have one could write it otherwise.
        _ => match named("$http_") {
            Some(name) if keys.condition("headers", &name.replace('_', "-"), matched) => {}
            _ => return None,
        },
    }
    let has_named = ["headers", "methods"].iter().any(|key| keys.get(key).is_some());
    (!is_negated || has_named).then_some((Some(keys), is_negated))
}

/// What the value of a condition must be, and whether it must not be so. A variable that is not there has the empty text, and a condition of
/// Steelyard holds for what is there.
fn matched(sign: &str, value: &str) -> Option<(Value, bool)> {
    let is_negated = sign.starts_with('!');
    let something = || json!({"regex": "(?s).+"});
    let pattern = |ignores_case: bool| {
        let regex = path::reads_alike(value).then(|| searched(value, ignores_case))??;
        let holds_for_nothing = path::takes_nothing(&regex) && !is_negated;
        (!holds_for_nothing).then(|| json!({"regex": regex}))
    };
    Some(match (sign, value) {
        // Neither empty nor `0`.
        ("", "") => (json!({"regex": "(?s)[^0].*|0.+"}), false),
        ("=" | "!=", value) if value.contains('$') => return None,
        ("=", "") => (something(), true),
        ("!=", "") => (something(), false),
        ("=" | "!=", value) => (json!(value), is_negated),
        ("~" | "!~", _) => (pattern(false)?, is_negated),
        ("~*" | "!~*", _) => (pattern(true)?, is_negated),
        _ => return None,
    })
}

/// `GET`, or `^(GET|HEAD)$`.
fn methods(value: &str, sign: &str) -> Option<Vec<String>> {
    let text = match sign {
        "=" => value,
        _ => {
            let inner = value.strip_prefix('^')?.strip_suffix('$')?;
            inner.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')).unwrap_or(inner)
        }
    };
    let is_method = |method: &&str| !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
    text.split('|').all(|method| is_method(&method)).then(|| text.split('|').map(str::to_owned).collect())
}

/// `redirect` or `respond` for a URL with variables. `keeps_query`: nginx appends the query to a URL that has none.
fn redirect(url: &str, status: u16, of: &Of<'_, '_>, keeps_query: bool) -> Option<Keys> {
    if !url.contains('$') && !keeps_query {
        let answer = json!({"status": status, "headers": {"location": url}});
        return Some(Keys::default().with("respond", answer));
    }
    let own = if of.is_tls { "https" } else { "http" };
    let mut answer = json!({});
    let path = match url.split_once("://") {
        None if url.starts_with('/') => url,
        None => return None,
        Some((scheme, rest)) => {
            answer["scheme"] = json!(if scheme == "$scheme" { own } else { scheme });
            let end =
                ["$request_uri", "$uri", "/"].iter().filter_map(|sign| rest.find(sign)).min().unwrap_or(rest.len());
            let (authority, path) = rest.split_at(end);
            let authority = authority.replace(":$server_port", &format!(":{}", of.port));
            let (host, port) = authority.split_once(':').unwrap_or((&authority, ""));
            match host {
                "$host" | "$http_host" => {}
                "$server_name" => {
                    answer["host"] = json!(of.server_name()?);
                }
                host if host.contains('$') || host.is_empty() => return None,
                host => answer["host"] = json!(host),
            }
            if !port.is_empty() {
                answer["port"] = json!(port.parse::<u16>().ok()?);
            }
            if path.is_empty() { "/" } else { path }
        }
    };
    let bare =
        ["$is_args$args", "?$args", "?$query_string"].iter().find_map(|end| path.strip_suffix(end)).unwrap_or(path);
    match bare {
        "$request_uri" | "$uri" => {}
        bare if bare.contains('?') => return None,
        bare => answer["path"] = json!(template(bare)?),
    }
    answer["status"] = json!(status);
    Some(Keys::default().with("redirect", answer))
}

/// A path in which only `$1` to `$9` are variables.
pub(super) fn template(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '$' => {
                let digit = letters.next_if(char::is_ascii_digit)?;
                out.push_str(&format!("${{{digit}}}"));
            }
            letter => out.push_str(&literal(&letter.to_string())),
        }
    }
    out.starts_with('/').then_some(out)
}
