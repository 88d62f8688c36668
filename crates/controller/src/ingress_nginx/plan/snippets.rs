//! What the snippets of an Ingress mean.

use model::HeaderChanges;
use serde_json::json;

use super::super::snippet::{self, Changes, Found, Headers, Refused, ServerLocation, Step};
use super::super::value;
use super::{Reading, Verdict, spec};

/// What the snippet of a host says.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// What it decides of requests before everything else.
    pub steps: Vec<Step>,
    /// Its locations.
    pub locations: Vec<ServerLocation>,
    /// Headers of responses by `add_header`.
    pub add_header: HeaderChanges,
    /// Headers of responses by `more_set_headers` and `more_clear_headers`.
    pub more_headers: HeaderChanges,
    /// Headers that are removed from responses of endpoints.
    pub hidden: HeaderChanges,
}

/// Routes of an Ingress that its snippets may add. All routes of a cluster are bounded, and one Ingress must not take them.
const ROUTES_MAX: usize = 4096;

impl Reading<'_> {
    /// The headers with which the service of external authorization names the client, in lower case.
    fn granted(&self) -> Vec<&str> {
        let names = self.route.get("externalAuth").and_then(|asked| asked["responseHeaders"].as_array());
        names.into_iter().flatten().filter_map(serde_json::Value::as_str).collect()
    }

    pub(super) fn snippets(&mut self, paths: &[&str]) -> Changes {
        let has = |this: &Self, name: &str| this.text(name).is_some();
        let critical =
            ["configuration-snippet", "server-snippet", "stream-snippet", "auth-snippet", "modsecurity-snippet"];
        let used = critical.iter().find(|name| has(self, name)).copied();
        if let Some(name) = used.filter(|_| !self.globals.allows_snippets()) {
            let why = "ingress-nginx serves no Ingress with it, unless its ConfigMap has allow-snippet-annotations: \"true\" and \
                annotations-risk-level: Critical";
            self.dropped.get_or_insert(format!("{name}: {why}"));
            critical.iter().for_each(|name| self.overrule(name, Verdict::Refused, why));
            return Changes::default();
        }
        let Some(text) = self.text("configuration-snippet") else { return Changes::default() };
        match snippet::read(text) {
            Ok(changes)
                if self.granted().iter().any(|name| changes.request_names().any(|changed| *name == changed)) =>
            {
                // ingress-nginx writes what the service says after the snippet, and here it would be the other way around.
                let why = "it changes a header of auth-response-headers, which is what the service says of the client";
                self.close(&format!("configuration-snippet is refused: {why}"));
                self.tell("configuration-snippet", Verdict::Refused, &format!("{why}: nothing of it is served"));
                Changes::default()
            }
            Ok(changes) if self.text("rewrite-target").is_some() && changes.rewrites() => {
                let why = "it has a rewrite beside rewrite-target: write one of them";
                self.close(&format!("configuration-snippet is refused: {why}"));
                self.tell("configuration-snippet", Verdict::Refused, &format!("{why}; nothing of it is served"));
                Changes::default()
            }
            Ok(changes) => match self.unserved(&changes, paths) {
                None => self.understood(changes),
                Some(what) => {
                    self.refuse_snippet("configuration-snippet", &Refused { what, protects: true });
                    Changes::default()
                }
            },
            Err(refused) => {
                self.refuse_snippet("configuration-snippet", &refused);
                Changes::default()
            }
        }
    }

    /// Serves a snippet.
    fn understood(&mut self, changes: Changes) -> Changes {
        let has_id = self.text("configuration-snippet").is_some_and(snippet::has_request_id);
        match differences(&changes, has_id) {
            Some(says) => self.tell("configuration-snippet", Verdict::Differs, &says),
            None => self.tell("configuration-snippet", Verdict::Served, "all of it is understood"),
        }
        for (field, time_ms) in [("responseTimeout", changes.grpc_read_ms), ("connectTimeout", changes.grpc_connect_ms)]
        {
            if let Some(time_ms) = time_ms.filter(|_| self.is_grpc()) {
                self.cluster.insert(field.to_owned(), json!(format!("{time_ms}ms")));
            }
        }
        if let Some(addresses) = &changes.addresses {
            self.snippet_addresses(addresses);
        }
        changes
    }

    /// What of a snippet cannot be served beside the rest of the Ingress.
    fn unserved(&self, changes: &Changes, paths: &[&str]) -> Option<String> {
        let is_any = self.text("satisfy").is_some_and(|word| word.eq_ignore_ascii_case("any"));
        let beside = || (changes.methods.is_some() && is_any).then(|| "limit_except beside satisfy: any".to_owned());
        let beyond = self.beyond(&changes.steps, (changes.steps.len(), "steps"), paths);
        beyond.or_else(beside).or_else(|| elsewhere(changes, paths)).or_else(|| unchangeable(changes))
    }

    /// What goes beyond what routes of these paths may have. The steps are among `routes`, which messages call `what`.
    fn beyond(&self, steps: &[Step], (routes, what): (usize, &str), paths: &[&str]) -> Option<String> {
        let has_underscores = self.globals.bool("enable-underscores-in-headers", false);
        let header = snippet::headers(steps).find(|name| has_underscores && name.contains('-'));
        let header = header.map(|name| format!("an `if` with {name}, which clients may write with underscores here"));
        let is_many = routes * paths.len() > ROUTES_MAX;
        header.or_else(|| is_many.then(|| format!("more than {ROUTES_MAX} {what}, counted for each path")))
    }

    /// What the snippet of the hosts says, or why they are closed; neither if there is none, or if it keeps nobody out.
    pub(super) fn server_snippet(&mut self, paths: &[&str]) -> (Option<Server>, Option<String>) {
        let Some(text) = self.text("server-snippet").filter(|_| self.globals.allows_snippets()) else {
            return (None, None);
        };
        let read = snippet::read_server(text).and_then(|server| self.server_of(server, paths));
        match read {
            Ok(server) => {
                match server.hidden.is_empty() {
                    true => self.tell("server-snippet", Verdict::Served, "all of it is understood"),
                    false => {
                        let says = "all of it is understood; proxy_hide_header holds for all paths of the host, also beside hide-headers and \
                                    one of their own";
                        self.tell("server-snippet", Verdict::Differs, says);
                    }
                }
                (Some(server), None)
            }
            Err(Refused { what, protects }) => {
                let what = value::cut(&what);
                let then = if protects { ", and neither are its hosts, because it may keep somebody out" } else { "" };
                let why = format!("it has {what}, which is not understood: nothing of it is served{then}");
                self.tell("server-snippet", Verdict::Refused, &why);
                (None, protects.then(|| format!("server-snippet is refused: it has {what}")))
            }
        }
    }

    fn server_of(&self, server: snippet::Server, paths: &[&str]) -> Result<Server, Refused> {
        let refused = |what: String| Refused { what, protects: true };
        let changes = |headers: &Headers| {
            let Some(field) = headers.field() else { return Ok(HeaderChanges::default()) };
            let policy = config::TrafficPolicy::read(&spec("allResponseHeaders", field));
            policy.map(|policy| policy.all_response_headers().clone()).map_err(|wrong| refused(wrong.join("; ")))
        };
        for location in &server.locations {
            let mut own = Headers::default();
            location.headers.iter().for_each(|(name, text)| own.set(name, text));
            changes(&own)?;
        }
        let routes = server.steps.len() + server.locations.len();
        if let Some(what) = self.beyond(&server.steps, (routes, "steps and locations"), paths) {
            return Err(refused(what));
        }
        let (add_header, more_headers) = (changes(&server.add_header)?, changes(&server.more_headers)?);
        let hidden = changes(&server.hidden)?;
        Ok(Server { steps: server.steps, locations: server.locations, add_header, more_headers, hidden })
    }

    fn refuse_snippet(&mut self, name: &str, refused: &Refused) {
        let what = value::cut(&refused.what);
        let mut why = format!("it has {what}, which is not understood: nothing of it is served");
        if refused.protects {
            why.push_str(", and neither are its routes, because it may keep somebody out");
            self.close_for(name, format!("{name} is refused: it has {what}"));
        }
        self.tell(name, Verdict::Refused, &why);
    }
}

/// An expression that may be found in other paths than those of the rule.
fn elsewhere(changes: &Changes, paths: &[&str]) -> Option<String> {
    let mut all = changes.patterns().flat_map(|pattern| paths.iter().map(move |path| (pattern, *path)));
    // A path that the host has as an expression is looked at where its routes are made.
    let found = all.find(|(pattern, path)| snippet::found_in(pattern, path, false) == Found::Elsewhere);
    found.map(|(pattern, path)| format!("the expression {pattern}, which may be found in other paths than {path}"))
}

/// A change of headers that no route can have.
fn unchangeable(changes: &Changes) -> Option<String> {
    let of = |name: &str, headers: &Headers| config::TrafficPolicy::read(&spec(name, headers.field()?)).err();
    let wrong = of("requestHeaders", &changes.request).or_else(|| of("responseHeaders", &changes.response))?;
    let wrong = wrong.join("; ");
    // The place is that in a TrafficPolicy, which nobody has written.
    Some(format!("a change of headers: {}", wrong.strip_prefix("spec.route: ").unwrap_or(&wrong)))
}

/// What is different with a snippet that is understood.
fn differences(changes: &Changes, has_id: bool) -> Option<String> {
    let claims = (!changes.claims.is_empty()).then(|| {
        let claims = value::cut(&changes.claims.join(", "));
        format!("what a client says of itself counts only from a trusted proxy (--trusted-proxy, use-forwarded-headers): {claims}")
    });
    let lenient = changes
        .is_lenient
        .then(|| "add_header without `always`, and expires: errors of endpoints have the header too".to_owned());
    let id = has_id.then(|| snippet::REQUEST_ID.to_owned());
    let told: Vec<String> = claims.into_iter().chain(lenient).chain(id).collect();
    (!told.is_empty()).then(|| told.join("; "))
}
