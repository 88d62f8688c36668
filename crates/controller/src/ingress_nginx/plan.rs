//! The plan of one Ingress: what its annotations mean, and a verdict for each.
//!
//! What a route and a cluster of a file can say becomes the fields of a TrafficPolicy; the rest is in [`Location`]. A plan is made by these rules:
//! a value that ingress-nginx cannot read has the effect that it has there, except that a key which keeps somebody out closes its routes.

mod access;
mod auth_cache;
mod balance;
mod beside;
mod clients;
mod compression;
mod cors;
mod endpoints;
mod errors;
mod headers;
mod hosts;
mod limits;
mod outside;
mod responses;
mod session;
mod snippets;
#[cfg(test)]
mod tests;
mod tls;
mod variables;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};

pub use self::access::ServiceUrl;
pub use self::errors::Errors;
pub use self::outside::{OutsideHost, OutsideUrl, Target, reach};
pub use self::session::Affinity;
pub use self::snippets::Server;
pub use self::tls::{ClientTls, ProxySsl};
use super::catalogue::{self, Bad, Key, Verdict};
use super::header_map::HeaderMaps;
use super::options::Globals;
use super::path::is_expression;
use super::snippet::Step;
use super::value;

/// How to decide where the behaviour of ingress-nginx would be a hole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compat {
    /// As ingress-nginx.
    Exact,
    /// As Steelyard: requests are not sent to Services of other namespaces on the word of an annotation, and only `--trusted-proxy` is believed
    /// about clients.
    #[default]
    Safe,
}

/// What a plan depends on besides annotations.
#[derive(Clone, Copy)]
pub struct With<'w> {
    /// The ConfigMap of ingress-nginx.
    pub globals: &'w Globals,
    /// How to decide in doubt.
    pub compat: Compat,
    /// ConfigMaps with headers.
    pub maps: HeaderMaps<'w>,
    /// `ssl-passthrough` counts, by a flag of the controller.
    pub passes_tls: bool,
}

/// What became of one annotation, key or flag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its name, without the prefix of annotations.
    pub key: String,
    /// Its value, or the beginning of it.
    pub value: String,
    /// What became of it.
    pub verdict: Verdict,
    /// Why, or what is different, or what to write instead.
    pub says: String,
}

impl Finding {
    pub(super) fn new(key: &str, value: &str, verdict: Verdict, says: String) -> Self {
        Self { key: value::cut(key), value: value::cut(value), verdict, says }
    }

    pub(super) fn unknown(key: &str, value: &str, nearest: Option<&str>) -> Self {
        let maybe = nearest.map_or_else(String::new, |name| format!("; did you mean {name}?"));
        Self::new(key, value, Verdict::NoEffect, format!("ingress-nginx does not know it either{maybe}"))
    }
}

/// The protocol of endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UpstreamProtocol {
    /// HTTP/2.
    pub h2: bool,
    /// TLS without verification.
    pub tls: bool,
}

/// When requests over HTTP are redirected to HTTPS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Https {
    /// Never.
    No,
    /// If the host has a certificate.
    WithCertificate,
    /// Always.
    Always,
}

/// What a TrafficPolicy cannot say.
#[derive(Clone, Debug, PartialEq)]
pub struct Location {
    /// The paths are regular expressions.
    pub use_regex: bool,
    /// The new path, or a URL.
    pub rewrite: Option<String>,
    /// `X-Forwarded-Prefix`.
    pub prefix: Option<String>,
    /// Where `/` is redirected to.
    pub app_root: Option<String>,
    /// All requests are redirected: the status and the URL.
    pub redirect: Option<(u16, String)>,
    /// See [`Https`].
    pub https: Https,
    /// More hosts.
    pub aliases: Vec<String>,
    /// The other one of `example.com` and `www.example.com` is redirected.
    pub www: bool,
    /// The `Host` that endpoints get, perhaps with variables of the [`Backend`](super::Backend).
    pub host: Option<String>,
    /// Headers that endpoints get, with such variables.
    pub backend_headers: Vec<(String, String)>,
    /// The protocol of endpoints.
    pub protocol: UpstreamProtocol,
    /// Gets copies.
    pub mirror: Option<Target>,
    /// The Service that is asked by auth-url is in another namespace.
    pub asks_elsewhere: bool,
    /// Each part of the Secret of auth-secret is a user.
    pub has_user_map: bool,
    /// The path of auth-url on the host of the request; the Service behind it is asked.
    pub asks_host: Option<String>,
    /// The host outside of the cluster that is asked by auth-url.
    pub asks_outside: Option<OutsideUrl>,
    /// The Service that is asked by auth-url over TLS.
    pub asks_over_tls: Option<ServiceUrl>,
    /// TLS of its hosts ends at the endpoints of the path `/`.
    pub passes_tls: bool,
    /// Clients of the host show a certificate.
    pub client_tls: Option<ClientTls>,
    /// What is shown to endpoints that speak TLS, and what they have to show; `None` means nothing.
    pub proxy_ssl: Option<ProxySsl>,
    /// A cookie leads clients back to their endpoint, by this affinity-mode.
    pub affinity: Option<Affinity>,
    /// What a snippet decides of requests before everything else.
    pub steps: Vec<Step>,
    /// The methods that a snippet lets pass; `None` means all.
    pub methods: Option<Vec<String>>,
    /// What a snippet says of the whole host.
    pub server: Option<Server>,
    /// A snippet decides which requests pass.
    pub has_rules: bool,
    /// Why the host is closed: a snippet for it is refused, and it may keep somebody out.
    pub server_refused: Option<String>,
    /// Responses have headers by `add_header`, so that those of `server` do not count.
    pub has_add_header: bool,
    /// Responses have headers by `more_set_headers`, likewise.
    pub has_more_headers: bool,
    /// `X-Forwarded-Proto` and `X-Forwarded-Host`, if a snippet has a constant for them.
    pub forwarded: Vec<(String, String)>,
    /// Responses that are replaced; `None` means none.
    pub errors: Option<Errors>,
    /// The Service that makes error pages, and gets the requests for a Service without endpoints. In the namespace of the Ingress.
    pub default_backend: Option<String>,
    /// Redirects that Steelyard makes of itself name its port.
    pub port_in_redirects: bool,
    /// The redirect to a path with a slash names neither scheme nor host.
    pub relative_redirects: bool,
}

/// Which requests a canary gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Canary {
    /// By a header, in lower case.
    pub header: Option<(String, HeaderRule)>,
    /// By a cookie: `always` and `never`.
    pub cookie: Option<String>,
    /// Of the other requests, this many.
    pub weight: u32,
    /// Of this many.
    pub total: u32,
}

/// The values of the header of a canary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderRule {
    /// `always` and `never`.
    Words,
    /// This value.
    Value(String),
    /// Such a value, anywhere in it.
    Pattern(String),
}

/// What the annotations of an Ingress mean.
#[derive(Clone, Debug)]
pub struct Plan {
    /// One for each annotation, in the order of their names.
    pub findings: Vec<Finding>,
    /// Why the Ingress is not served at all.
    pub dropped: Option<String>,
    /// Why all requests of the Ingress get 403.
    pub closed: Option<String>,
    /// Why all requests of the Ingress get 503, as with ingress-nginx.
    pub unavailable: Option<String>,
    /// Why all requests of its hosts get 403, whichever Ingress has their path: a key that ingress-nginx applies to the whole host is refused.
    pub host_closed: Option<String>,
    /// What a TrafficPolicy cannot say.
    pub location: Location,
    /// It is a canary of another Ingress.
    pub canary: Option<Canary>,
    /// The fields of a TrafficPolicy.
    pub spec: Map<String, Value>,
    /// The same, read.
    pub policy: Option<Arc<config::TrafficPolicy>>,
    /// The namespaces and names of the ConfigMaps that it was made from.
    pub named: Vec<(String, String)>,
}

/// Policies that were read before, by their fields: most Ingresses of a cluster say the same, and reading takes most of the time.
#[derive(Debug, Default)]
pub struct Known(HashMap<String, Result<Arc<config::TrafficPolicy>, String>>);

impl Known {
    /// Policies that are remembered. When there are as many, all are forgotten.
    const POLICIES_MAX: usize = 4096;

    pub(super) fn read(&mut self, spec: &Map<String, Value>) -> Result<Arc<config::TrafficPolicy>, String> {
        let Self(known) = self;
        if known.len() >= Self::POLICIES_MAX {
            known.clear();
        }
        let read = || config::TrafficPolicy::read(spec).map(Arc::new).map_err(|wrong| wrong.join("; "));
        known.entry(Value::Object(spec.clone()).to_string()).or_insert_with(read).clone()
    }
}

/// The spec of a TrafficPolicy with one field of routes.
fn spec(field: &str, value: Value) -> Map<String, Value> {
    let route = Map::from_iter([(field.to_owned(), value)]);
    Map::from_iter([("route".to_owned(), Value::Object(route))])
}

/// The largest body that is collected in memory.
const BUFFER_MAX: u64 = 16 << 20;

/// A week: the longest time that anybody means.
const SECONDS_MAX: u64 = 604_800;

/// The largest limit of bodies.
const BODY_MAX: u64 = 1 << 40;

impl Plan {
    /// Whether Steelyard answers all requests itself.
    pub fn answers(&self) -> bool {
        let Location { redirect, steps, .. } = &self.location;
        let has_answer = steps.iter().any(|step| matches!(step, Step::Answer(_)));
        self.closed.is_some() || self.unavailable.is_some() || redirect.is_some() || has_answer
    }

    /// Reads annotations, given without their prefix, of an Ingress in this namespace with these paths.
    pub fn of<'a>(
        annotations: impl IntoIterator<Item = (&'a str, &'a str)>,
        namespace: &str,
        paths: &[&str],
        with: With<'_>,
        known: &mut Known,
    ) -> Self {
        let mut reading = Reading::of(annotations, namespace, with);
        let mut location = reading.location();
        reading.bodies();
        reading.upstream();
        reading.session();
        reading.access(paths);
        reading.limits();
        reading.cors();
        reading.compression();
        reading.responses();
        reading.log();
        reading.traces();
        location.mirror = reading.mirror();
        location.asks_elsewhere = reading.asks_elsewhere;
        location.has_user_map = reading.has_user_map;
        location.asks_host = reading.asks_host.take();
        location.asks_outside = reading.asks_outside.take();
        location.asks_over_tls = reading.asks_over_tls.take();
        location.affinity = reading.affinity;
        let changes = reading.snippets(paths);
        reading.known_addresses();
        location.host = changes.host.clone().or(location.host);
        location.steps.clone_from(&changes.steps);
        location.methods.clone_from(&changes.methods);
        location.has_add_header = changes.has_add_header;
        // ingress-nginx writes those of CORS and of custom-headers in the same way.
        let has_more = reading.bool("enable-cors", false) || reading.text("custom-headers").is_some();
        location.has_more_headers = changes.has_more_headers || has_more;
        location.has_rules = !changes.steps.is_empty() || changes.methods.is_some() || changes.addresses.is_some();
        (location.server, location.server_refused) = reading.server_snippet(paths);
        location.forwarded.clone_from(&changes.forwarded);
        location.backend_headers.clone_from(&changes.backend_headers);
        reading.headers(changes, known);
        let canary = reading.canary();
        if canary.is_some() {
            reading.keep_share();
        }
        reading.into_plan(location, canary, known)
    }

    /// The number of findings with this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.verdict == verdict).count()
    }
}

/// A plan in the making.
struct Reading<'g> {
    values: BTreeMap<&'static str, String>,
    findings: BTreeMap<String, Finding>,
    dropped: Option<String>,
    closed: Option<String>,
    unavailable: Option<String>,
    host_closed: Option<String>,
    route: Map<String, Value>,
    cluster: Map<String, Value>,
    globals: &'g Globals,
    namespace: String,
    compat: Compat,
    maps: HeaderMaps<'g>,
    passes_tls: bool,
    named: Vec<(String, String)>,
    asks_elsewhere: bool,
    has_user_map: bool,
    asks_host: Option<String>,
    asks_outside: Option<OutsideUrl>,
    asks_over_tls: Option<ServiceUrl>,
    affinity: Option<Affinity>,
}

impl<'g> Reading<'g> {
    fn of<'a>(
        annotations: impl IntoIterator<Item = (&'a str, &'a str)>,
        namespace: &str,
        With { globals, compat, maps, passes_tls }: With<'g>,
    ) -> Self {
        let mut reading = Self {
            values: BTreeMap::new(),
            findings: BTreeMap::new(),
            dropped: None,
            closed: globals.closed.clone(),
            unavailable: None,
            host_closed: None,
            route: Map::new(),
            cluster: Map::new(),
            globals,
            namespace: namespace.to_owned(),
            compat,
            maps,
            passes_tls,
            named: Vec::new(),
            asks_elsewhere: false,
            has_user_map: false,
            asks_host: None,
            asks_outside: None,
            asks_over_tls: None,
            affinity: None,
        };
        for (name, written) in annotations {
            let Some(text) = value::trimmed(written) else { continue };
            match catalogue::find(name) {
                Some(key) => reading.note(key, text),
                None => {
                    let finding = Finding::unknown(name, &text, catalogue::nearest(name));
                    reading.findings.insert(finding.key.clone(), finding);
                }
            }
        }
        reading
    }

    /// Checks a value by the catalogue.
    fn note(&mut self, key: &'static Key, text: String) {
        let mut finding = Finding::new(key.name, &text, key.verdict, key.says.to_owned());
        let is_off = key.is_off(&text);
        match key.form.check(&text) {
            Err(right) => {
                finding.verdict = Verdict::Refused;
                finding.says = format!("the value cannot be read: {right}");
                let why = format!("{} cannot be read: {right}", key.name);
                let is_long = text.len() > value::VALUE_BYTES_MAX;
                match (key.security, key.bad) {
                    (true, _) => self.close_for(key.name, why),
                    (false, Bad::Closes) => {
                        let there = if is_long { "" } else { ", as with ingress-nginx" };
                        finding.says.push_str(&format!("; its requests get 503{there}"));
                        self.unavailable.get_or_insert(why);
                    }
                    (false, Bad::Drops) => {
                        finding.says.push_str(match is_long {
                            true => "; the Ingress is not served, and ingress-nginx would serve it",
                            false => "; ingress-nginx does not serve the Ingress, and neither does Steelyard",
                        });
                        self.dropped.get_or_insert(why);
                    }
                    (false, Bad::Default) => finding.says.push_str(match is_long {
                        true => "; the default counts, and in ingress-nginx the value would",
                        false => "; the default counts, as in ingress-nginx",
                    }),
                }
            }
            // `false` asks for nothing.
            Ok(()) if is_off && key.verdict == Verdict::Refused => {
                (finding.verdict, finding.says) = (Verdict::NoEffect, "it is off".to_owned());
            }
            Ok(()) => {
                if key.verdict == Verdict::Refused && key.security {
                    self.close_for(key.name, format!("{} is refused: {}", key.name, key.says));
                }
                self.values.insert(key.name, text);
            }
        }
        self.findings.insert(key.name.to_owned(), finding);
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    fn bool(&self, name: &str, default: bool) -> bool {
        self.text(name).and_then(value::boolean).unwrap_or(default)
    }

    fn int(&self, name: &str) -> Option<u64> {
        self.text(name).and_then(value::integer)
    }

    /// An annotation, or else the key of the ConfigMap with the same name.
    fn either(&self, name: &str) -> Option<&str> {
        self.text(name).or_else(|| self.globals.text(name))
    }

    /// Refuses what an annotation says. If it keeps somebody out, its routes are closed.
    fn refuse(&mut self, name: &str, why: &str) {
        let is_protective = catalogue::find(name).is_some_and(|key| key.security);
        if is_protective {
            self.close_for(name, format!("{name} is refused: {why}"));
        }
        self.tell(name, Verdict::Refused, why);
    }

    /// Closes what this key holds for: the routes of its Ingress, or all of its hosts.
    fn close_for(&mut self, name: &str, why: String) {
        if catalogue::OF_HOSTS.contains(&name) {
            self.host_closed.get_or_insert_with(|| why.clone());
        }
        self.closed.get_or_insert(why);
    }

    fn close(&mut self, why: &str) {
        self.closed.get_or_insert_with(|| why.to_owned());
    }

    /// Gives an annotation another verdict. One that cannot be read keeps its own.
    fn tell(&mut self, name: &str, verdict: Verdict, says: &str) {
        if self.values.contains_key(name) {
            self.overrule(name, verdict, says);
        }
    }

    /// The same for one that cannot be read, too.
    fn overrule(&mut self, name: &str, verdict: Verdict, says: &str) {
        if let Some(finding) = self.findings.get_mut(name) {
            (finding.verdict, finding.says) = (verdict, says.to_owned());
        }
    }

    /// These have no effect without another one.
    fn idle(&mut self, names: &[&str], why: &str) {
        names.iter().for_each(|name| self.overrule(name, Verdict::NoEffect, why));
    }

    fn location(&mut self) -> Location {
        let ssl = self.bool("ssl-redirect", self.globals.bool("ssl-redirect", true));
        let force = self.bool("force-ssl-redirect", self.globals.bool("force-ssl-redirect", false));
        let https = match (force, ssl) {
            (true, _) => Https::Always,
            (false, true) => Https::WithCertificate,
            (false, false) => Https::No,
        };
        let code = |this: &Self, name: &str, last: u64, default: u16| {
            let code = this.int(name).filter(|code| (300..=last).contains(code));
            code.and_then(|code| u16::try_from(code).ok()).unwrap_or(default)
        };
        let temporal =
            self.text("temporal-redirect").map(|url| (code(self, "temporal-redirect-code", 307, 302), url.to_owned()));
        let permanent = self
            .text("permanent-redirect")
            .map(|url| (code(self, "permanent-redirect-code", 308, 301), url.to_owned()));
        for name in ["temporal-redirect", "permanent-redirect"] {
            if self.text(name).is_some_and(|url| url.contains('$')) {
                let why = "a `$` in the URL has been invalid since ingress-nginx 1.12";
                self.dropped.get_or_insert(format!("{name}: {why}"));
                self.tell(name, Verdict::Refused, why);
            }
        }
        if let Some(variable) = self.text("rewrite-target").and_then(value::variable_of_target).map(str::to_owned) {
            // Without it, endpoints would serve other paths than those that it leads to.
            let why = format!("it has {variable}, and only groups of the path ($1 to $9) are served in it");
            self.close(&format!("rewrite-target is refused: {why}"));
            self.tell("rewrite-target", Verdict::Refused, &format!("{why}; its routes are closed"));
        }
        let aliases = self.aliases();
        if self.text("rewrite-target").is_none() {
            self.idle(&["x-forwarded-prefix"], "without rewrite-target, ingress-nginx does not send it");
        }
        Location {
            use_regex: self.bool("use-regex", false),
            rewrite: self.text("rewrite-target").map(str::to_owned),
            prefix: self.text("x-forwarded-prefix").map(str::to_owned),
            app_root: self.text("app-root").map(str::to_owned),
            redirect: temporal.or(permanent),
            https,
            aliases,
            www: self.bool("from-to-www-redirect", false),
            host: self.vhost(),
            backend_headers: Vec::new(),
            protocol: self.protocol(),
            mirror: None,
            asks_elsewhere: false,
            has_user_map: false,
            asks_host: None,
            asks_outside: None,
            asks_over_tls: None,
            affinity: None,
            passes_tls: self.passes_tls(),
            client_tls: self.client_tls(),
            proxy_ssl: self.proxy_ssl(),
            steps: Vec::new(),
            methods: None,
            server: None,
            has_rules: false,
            server_refused: None,
            has_add_header: false,
            has_more_headers: false,
            forwarded: Vec::new(),
            errors: self.errors(),
            default_backend: self.text("default-backend").map(str::to_owned),
            port_in_redirects: self.bool("use-port-in-redirects", self.globals.bool("use-port-in-redirects", false)),
            relative_redirects: self.bool("relative-redirects", self.globals.bool("relative-redirects", false)),
        }
    }

    fn protocol(&mut self) -> UpstreamProtocol {
        let of = |h2, tls| UpstreamProtocol { h2, tls };
        let wanted = self.text("backend-protocol").unwrap_or("HTTP").to_ascii_uppercase();
        match wanted.as_str() {
            "HTTPS" => of(false, true),
            "GRPC" => of(true, false),
            "GRPCS" => of(true, true),
            "FCGI" | "AUTO_HTTP" => {
                let why = match wanted.as_str() {
                    "FCGI" => {
                        "Steelyard does not speak FastCGI; put an HTTP server such as nginx beside the application"
                    }
                    _ => "the protocol of endpoints does not follow that of the client; write HTTP or HTTPS",
                };
                self.close(&format!("backend-protocol is refused: {why}"));
                self.tell("backend-protocol", Verdict::Refused, why);
                of(false, false)
            }
            _ => of(false, false),
        }
    }

    /// Whether endpoints speak gRPC.
    fn is_grpc(&self) -> bool {
        self.text("backend-protocol").is_some_and(|protocol| protocol.to_ascii_uppercase().starts_with("GRPC"))
    }

    /// Bodies of requests.
    fn bodies(&mut self) {
        let written = self.either("proxy-body-size").map(value::size);
        let limit = written.map_or(Some(1 << 20), |size| size.map(|bytes| bytes.unwrap_or(1 << 20)));
        let collects = self.either("proxy-request-buffering") != Some("off") && !self.is_grpc();
        let (verdict, says) = match limit {
            Some(bytes @ 1..=BUFFER_MAX) if collects => {
                self.route.insert("buffer".to_owned(), json!({"maxSize": format!("{bytes}B")}));
                (Verdict::Served, "the body is collected in memory; a larger one gets 413")
            }
            Some(0) | None => (Verdict::Served, "no limit; bodies pass as they arrive"),
            Some(bytes) => {
                self.route.insert("maxBody".to_owned(), json!(format!("{}B", bytes.min(BODY_MAX))));
                let why = "a larger body gets 413; bodies pass as they arrive, because more than 16m are not collected";
                (if collects { Verdict::Differs } else { Verdict::Served }, why)
            }
        };
        match written {
            Some(Some(None)) => self.tell(
                "proxy-body-size",
                Verdict::Differs,
                "nginx does not know the `b` at the end, so ingress-nginx leaves the value out, and the limit is 1m, here as well",
            ),
            _ => self.tell("proxy-body-size", verdict, says),
        }
    }

    /// Timeouts, retries and the choice of an endpoint.
    fn upstream(&mut self) {
        for (name, field, default) in
            [("proxy-connect-timeout", "connectTimeout", 5), ("proxy-read-timeout", "responseTimeout", 60)]
        {
            let seconds = self.either(name).and_then(value::integer).filter(|seconds| *seconds > 0).unwrap_or(default);
            self.cluster.insert(field.to_owned(), json!(format!("{}s", seconds.min(SECONDS_MAX))));
        }
        self.times_of_endpoints();
        let on = self.either("proxy-next-upstream").unwrap_or("error timeout").to_ascii_lowercase();
        let on: Vec<&str> = value::words(&on).collect();
        let mut retry_on = Vec::new();
        for word in &on {
            match *word {
                "error" => retry_on.extend(["connect_failure".to_owned(), "reset".to_owned()]),
                "timeout" => retry_on.push("timeout".to_owned()),
                word => retry_on.extend(word.strip_prefix("http_").map(str::to_owned)),
            }
        }
        retry_on.retain(|on| {
            !on.bytes().all(|byte| byte.is_ascii_digit())
                || on.parse::<u16>().is_ok_and(|code| (400..600).contains(&code))
        });
        retry_on.sort_unstable();
        retry_on.dedup();
        let tries = self.either("proxy-next-upstream-tries").and_then(value::integer).unwrap_or(3);
        let attempts = if tries == 0 { 10 } else { (tries - 1).min(10) };
        let retry = match on.contains(&"off") || attempts == 0 || retry_on.is_empty() {
            true => json!({"disabled": true}),
            false => {
                let non_idempotent = on.contains(&"non_idempotent") || self.globals.bool("retry-non-idempotent", false);
                let mut retry = json!({"attempts": attempts, "retryOn": retry_on, "nonIdempotent": non_idempotent});
                let within = self.either("proxy-next-upstream-timeout").and_then(value::integer);
                if let Some(seconds) = within.filter(|seconds| *seconds > 0) {
                    retry["within"] = json!(format!("{}s", seconds.min(SECONDS_MAX)));
                }
                retry
            }
        };
        self.route.insert("retry".to_owned(), retry);
        // nginx has no ejection of its own with ingress-nginx: max_fails is 0.
        self.cluster.insert("outlier".to_owned(), json!({"disabled": true}));
        let balance = self.balance();
        self.cluster.insert("balance".to_owned(), balance);
    }

    fn canary(&mut self) -> Option<Canary> {
        const OF_CANARY: [&str; 6] = [
            "canary-by-header",
            "canary-by-header-value",
            "canary-by-header-pattern",
            "canary-by-cookie",
            "canary-weight",
            "canary-weight-total",
        ];
        if !self.bool("canary", false) {
            self.idle(&OF_CANARY, "without canary, it has no effect");
            return None;
        }
        let rule = match (self.text("canary-by-header-value"), self.text("canary-by-header-pattern")) {
            (Some(value), _) => HeaderRule::Value(value.to_owned()),
            (None, Some(pattern)) => HeaderRule::Pattern(pattern.to_owned()),
            (None, None) => HeaderRule::Words,
        };
        if let HeaderRule::Pattern(pattern) = &rule
            && !is_expression(pattern)
        {
            self.tell(
                "canary-by-header-pattern",
                Verdict::Refused,
                "it cannot be read, or looks around: no request matches",
            );
        }
        let total = self.int("canary-weight-total").unwrap_or(100).clamp(100, 1_000_000);
        let weight = self.int("canary-weight").unwrap_or(0).min(total);
        Some(Canary {
            header: self.text("canary-by-header").map(|name| (name.to_ascii_lowercase(), rule)),
            cookie: self.text("canary-by-cookie").map(str::to_owned),
            weight: u32::try_from(weight).unwrap_or(0),
            total: u32::try_from(total).unwrap_or(100),
        })
    }

    /// ingress-nginx makes no location of a canary, so nothing that would close one with 503 counts: it gets its share of the requests.
    fn keep_share(&mut self) {
        let Some(why) = self.unavailable.take() else { return };
        let name = why.split([' ', ':']).next().unwrap_or_default();
        self.overrule(
            name,
            Verdict::NoEffect,
            "of a canary, ingress-nginx does not ask: the Ingress beside it decides",
        );
    }

    fn into_plan(mut self, location: Location, canary: Option<Canary>, known: &mut Known) -> Plan {
        let mut spec = Map::new();
        for (name, part) in [("route", std::mem::take(&mut self.route)), ("cluster", std::mem::take(&mut self.cluster))]
        {
            if !part.is_empty() {
                spec.insert(name.to_owned(), Value::Object(part));
            }
        }
        let policy = match known.read(&spec) {
            Ok(policy) => Some(policy),
            Err(wrong) => {
                self.close(&format!("the annotations cannot be served together: {}", value::cut(&wrong)));
                None
            }
        };
        Plan {
            findings: self.findings.into_values().collect(),
            dropped: self.dropped,
            closed: self.closed,
            unavailable: self.unavailable,
            host_closed: self.host_closed,
            location,
            canary,
            spec,
            policy,
            named: self.named,
        }
    }
}

impl Location {
    /// Whether an Ingress with this plan and path makes all paths of the host regular expressions.
    pub fn is_regex(&self, path: &str) -> bool {
        self.use_regex || self.rewrite.as_deref().is_some_and(|target| target != path)
    }
}
