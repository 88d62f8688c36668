//! Ingresses as objects of the Gateway API: a Gateway with GatewayParameters, HTTPRoutes, and a TrafficPolicy for what no route can say. What would
//! be lost is told, and what keeps somebody out and would be lost is not written at all.

mod clients;
mod lost;
mod prefixes;
mod rules;
#[cfg(test)]
mod tests;
mod valid;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::catalogue::Verdict;
use super::options::Globals;
use super::plan::{Compat, Https, Location, Plan, Target};
use super::report::{self, Read};
use super::snippet::Step;
use prefixes::{Prefixes, prefixes};
use rules::{Canaries, canaries};

/// Rules of an HTTPRoute, as the API has it.
const RULES_MAX: usize = 16;

/// The objects, and what they do not say.
#[derive(Debug, Default)]
pub struct Written {
    /// In the order in which they are to be applied.
    pub objects: Vec<Value>,
    /// Sentences.
    pub lost: Vec<String>,
    /// What is not known, such as the flags of a controller whose Deployment is not among the objects.
    pub notes: Vec<String>,
    /// Whether paths are left out. Other routes of the same host would take their requests, without what kept somebody out.
    pub leaves_out: bool,
}

/// Hosts of an HTTPRoute.
const HOSTS_MAX: usize = 16;

/// Listeners of a Gateway, and of a ListenerSet.
const LISTENERS_MAX: usize = 64;

/// Entries of a ReferenceGrant.
const GRANTED_MAX: usize = 16;

/// Writes the Ingresses among these objects for a Gateway with this name, `NAMESPACE/NAME`, of this class.
pub fn written(objects: &[Value], class: &str, gateway: (&str, &str, &str), compat: Compat) -> Written {
    let mut written = Written::default();
    let (read, globals, flags) = report::all(objects, class, compat, &mut written.notes);
    let (parameters, lost) = clients::parameters(&globals, compat, (gateway.0, gateway.1));
    written.lost = lost;
    written.lost.extend(lost::of_controller(&globals.findings, &flags));
    let is_regex: BTreeSet<&str> = regex_hosts(&read);
    let mains: Vec<&Read<'_>> = read.iter().filter(|read| read.plan.canary.is_none()).collect();
    // The oldest Ingress with a certificate for a host decides it.
    let mut certificates: BTreeMap<String, (String, String)> = BTreeMap::new();
    for (host, secret) in mains.iter().flat_map(|ingress| tls_of(ingress)) {
        certificates.entry(host).or_insert(secret);
    }
    let (mut all, listeners) = listeners(gateway, &certificates);
    let has_listener_sets = all.len() > 1;
    all.insert(0, parameters);
    let canaries = canaries(&read);
    let prefixes = prefixes(&mains);
    let has_tls = |ingress: &&&Read<'_>| ingress.object["spec"]["tls"].as_array().is_some_and(|tls| !tls.is_empty());
    let mut making = Making {
        written: &mut written,
        globals: &globals,
        gateway: (gateway.0, gateway.1),
        is_regex: &is_regex,
        prefixes: &prefixes,
        canaries: &canaries,
        listeners: &listeners,
        hosts: mains.iter().flat_map(|ingress| ingress.hosts()).collect(),
        redirected: BTreeSet::new(),
        with_tls: mains.iter().filter(has_tls).flat_map(|ingress| ingress.hosts()).collect(),
        grants: BTreeMap::new(),
    };
    for (namespace, secret) in certificates.values().filter(|(namespace, _)| namespace != gateway.0) {
        for kind in ["Gateway", "ListenerSet"].into_iter().take(if has_listener_sets { 2 } else { 1 }) {
            let from = (GROUP, kind, gateway.0.to_owned());
            making.grants.entry((namespace.clone(), from)).or_default().insert(("Secret", secret.clone()));
        }
    }
    let mut routes = Vec::new();
    for ingress in &mains {
        let objects = making.ingress(ingress);
        if let Some(why) = objects.iter().find_map(valid::wrong) {
            making.left_out(ingress, &format!("nothing of it is written: {why}"));
            continue;
        }
        routes.extend(objects);
    }
    all.extend(granted(&making.grants));
    if let Some(why) = all.iter().find_map(valid::wrong) {
        written.leaves_out = true;
        written.lost.push(format!("the Gateway and what belongs to it: {why}"));
    }
    all.append(&mut routes);
    written.objects = all;
    for read in &read {
        let refused = read.plan.findings.iter().filter(|finding| finding.verdict == Verdict::Refused);
        written.lost.extend(refused.map(|finding| format!("{}: {}: {}", read.name, finding.key, finding.says)));
    }
    written
}

/// The group of most of these kinds.
const GROUP: &str = "gateway.networking.k8s.io";

/// Where a host has a listener for HTTPS: the kind and the name of the object, and the name of the listener.
type Listeners = BTreeMap<String, (&'static str, String, String)>;

/// What objects of one kind in one namespace may refer to in another namespace: the namespace with the group, the kind and the namespace of
/// those that refer, and the kinds and names that they refer to.
type Grants = BTreeMap<(String, (&'static str, &'static str, String)), BTreeSet<(&'static str, String)>>;

/// The objects that let others refer to something in their namespace.
fn granted(grants: &Grants) -> Vec<Value> {
    let mut objects = Vec::new();
    for ((namespace, (group, kind, from)), to) in grants {
        let to: Vec<Value> = to.iter().map(|(kind, name)| json!({"group": "", "kind": kind, "name": name})).collect();
        for (part, to) in to.chunks(GRANTED_MAX).enumerate() {
            objects.push(json!({
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "ReferenceGrant",
                "metadata": {
                    "name": format!("{}-of-{from}{}", kind.to_ascii_lowercase(), number_of(part)),
                    "namespace": namespace,
                },
                "spec": {"from": [{"group": group, "kind": kind, "namespace": from}], "to": to},
            }));
        }
    }
    objects
}

fn regex_hosts<'r>(read: &'r [Read<'_>]) -> BTreeSet<&'r str> {
    let is_it =
        |read: &&'r Read<'_>, paths: &[(&str, &str)]| paths.iter().any(|(path, _)| read.plan.location.is_regex(path));
    let of = |read: &'r Read<'_>| {
        read.rules.iter().filter(move |(_, paths)| is_it(&read, paths)).map(|(host, _)| host.as_str())
    };
    read.iter().flat_map(of).collect()
}

fn tls_of(ingress: &Read<'_>) -> Vec<(String, (String, String))> {
    let (namespace, _) = ingress.name.split_once('/').unwrap_or_default();
    let tls = ingress.object["spec"]["tls"].as_array().into_iter().flatten();
    tls.flat_map(|tls| {
        let secret = tls["secretName"].as_str().unwrap_or_default().to_owned();
        let hosts = tls["hosts"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let mut hosts: Vec<String> = hosts.map(str::to_ascii_lowercase).collect();
        if hosts.is_empty() {
            hosts.extend(ingress.hosts().filter(|host| !host.is_empty()).map(str::to_owned));
        }
        hosts.into_iter().map(move |host| (host, (namespace.to_owned(), secret.clone()))).collect::<Vec<_>>()
    })
    .filter(|(_, (_, secret))| !secret.is_empty())
    .collect()
}

/// The Gateway, and ListenerSets for the certificates that it has no place for; and where each host has its listener.
fn listeners(
    (namespace, name, class): (&str, &str, &str),
    certificates: &BTreeMap<String, (String, String)>,
) -> (Vec<Value>, Listeners) {
    let from = json!({"namespaces": {"from": "All"}});
    let mut found = Listeners::new();
    let listener = |(number, (host, (of, secret))): (usize, (&String, &(String, String)))| {
        let mut certificate = json!({"name": secret});
        if of != namespace {
            certificate["namespace"] = json!(of);
        }
        json!({
            "name": format!("https-{number}"),
            "port": 443,
            "protocol": "HTTPS",
            "hostname": host,
            "tls": {"certificateRefs": [certificate]},
            "allowedRoutes": from,
        })
    };
    let mut all: Vec<Value> = certificates.iter().enumerate().map(listener).collect();
    let others = all.split_off(all.len().min(LISTENERS_MAX - 1));
    for (number, host) in certificates.keys().enumerate() {
        let (kind, of) = match number.checked_sub(LISTENERS_MAX - 1) {
            None => ("Gateway", name.to_owned()),
            Some(more) => ("ListenerSet", format!("{name}{}", number_of(more / LISTENERS_MAX + 1))),
        };
        found.insert(host.clone(), (kind, of, format!("https-{number}")));
    }
    all.insert(0, json!({"name": "http", "port": 80, "protocol": "HTTP", "allowedRoutes": from}));
    let parameters = json!({"group": "steelyard.io", "kind": "GatewayParameters", "name": name});
    let mut spec =
        json!({"gatewayClassName": class, "infrastructure": {"parametersRef": parameters}, "listeners": all});
    if !others.is_empty() {
        spec["allowedListeners"] = json!({"namespaces": {"from": "Same"}});
    }
    let mut objects = vec![json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    })];
    for (part, listeners) in others.chunks(LISTENERS_MAX).enumerate() {
        objects.push(json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "ListenerSet",
            "metadata": {"name": format!("{name}{}", number_of(part + 1)), "namespace": namespace},
            "spec": {"parentRef": {"name": name}, "listeners": listeners},
        }));
    }
    (objects, found)
}

struct Making<'w, 'o> {
    written: &'w mut Written,
    globals: &'w Globals,
    gateway: (&'w str, &'w str),
    is_regex: &'w BTreeSet<&'w str>,
    prefixes: &'w BTreeMap<&'w str, Prefixes<'w>>,
    canaries: &'w Canaries<'w, 'o>,
    listeners: &'w Listeners,
    /// The hosts of Ingresses with `tls`, whose requests over HTTP are redirected unless an annotation says otherwise.
    with_tls: BTreeSet<&'w str>,
    /// The hosts of all rules.
    hosts: BTreeSet<&'w str>,
    /// The hosts that have a redirect because of `from-to-www-redirect`.
    redirected: BTreeSet<String>,
    grants: Grants,
}

/// What an Ingress says about TLS that only a listener of the Gateway can say.
fn tls_of_listeners(location: &Location) -> Option<&'static str> {
    match (location.passes_tls, &location.client_tls) {
        (true, _) => {
            Some("ssl-passthrough: write a listener of the protocol TLS with `mode: Passthrough`, and a TLSRoute")
        }
        (false, Some(_)) => Some(
            "auth-tls-secret: write tls.frontend.validation of the Gateway, whose CA certificates are in a ConfigMap",
        ),
        (false, None) => None,
    }
}

impl Making<'_, '_> {
    fn left_out(&mut self, ingress: &Read<'_>, what: &str) {
        self.written.leaves_out = true;
        self.lost(ingress, what);
    }

    fn lost(&mut self, ingress: &Read<'_>, what: &str) {
        self.written.lost.push(format!("{}: {what}", ingress.name));
    }

    /// What is lost of the heads that endpoints get.
    fn heads_lost(&mut self, ingress: &Read<'_>, location: &Location) {
        if location.host.as_ref().is_some_and(|host| host.contains('$')) {
            self.lost(ingress, "the `Host` of endpoints has variables of nginx: write it for each rule");
        } else if location.host.as_ref().is_some_and(|host| host.bytes().any(|byte| byte.is_ascii_uppercase())) {
            self.lost(ingress, "the `Host` of endpoints is in lower case");
        }
        for (name, text) in &location.backend_headers {
            self.lost(
                ingress,
                &format!("configuration-snippet: {name}: {text} has variables of nginx: write it for each rule"),
            );
        }
        for (name, _) in &location.forwarded {
            self.lost(ingress, &format!("configuration-snippet: {name} is what the Gateway knows of the client"));
        }
    }

    /// The routes of an Ingress, one for each host, and their policy.
    fn ingress(&mut self, ingress: &Read<'_>) -> Vec<Value> {
        let Plan { dropped, closed, unavailable, location, spec, .. } = &ingress.plan;
        if let Some(why) = dropped.as_ref().or(closed.as_ref()).or(unavailable.as_ref()) {
            self.left_out(ingress, &format!("nothing of it is written: {why}"));
            return Vec::new();
        }
        if let Some(what) = tls_of_listeners(location) {
            self.left_out(ingress, &format!("nothing of it is written: {what}"));
            return Vec::new();
        }
        let of_host = location.asks_host.as_ref().map(|path| format!("behind {path} instead of $host"));
        let outside = location.asks_outside.as_ref().map(|url| format!("that stands for {}", url.to));
        if let Some(what) = of_host.or(outside) {
            self.left_out(ingress, &format!("auth-url: write the URL of the Service {what}"));
            return Vec::new();
        }
        for what in lost::of_annotations(&ingress.plan.findings) {
            self.lost(ingress, &what);
        }
        let decides = |steps: &[Step]| steps.iter().any(|step| matches!(step, Step::If { .. } | Step::Answer(_)));
        let server = location.server.as_ref();
        let is_decided = [
            ("configuration-snippet", decides(&location.steps) || location.methods.is_some()),
            ("server-snippet", server.is_some_and(|server| decides(&server.steps) || !server.locations.is_empty())),
            ("block-user-agents or block-referers of the ConfigMap", !self.globals.blocks.is_empty()),
        ];
        if let Some((name, _)) = is_decided.iter().find(|(_, decides)| *decides) {
            let what = format!(
                "nothing of it is written: {name}: write what answers by itself as rules of their own, with a RequestRedirect or `respond` of a TrafficPolicy"
            );
            self.left_out(ingress, &what);
            return Vec::new();
        }
        if server.is_some() {
            self.lost(ingress, "server-snippet: write it for each route of the host");
        }
        for step in &location.steps {
            let (from, to) = match step {
                Step::Moved { from, to, .. } | Step::Rewrite { pattern: from, to, .. } => (from, to),
                Step::If { .. } | Step::Answer(_) => continue,
            };
            self.lost(ingress, &format!("configuration-snippet: write a rule that makes {to} of {from}"));
        }
        self.heads_lost(ingress, location);
        if let Some(root) = &location.app_root {
            self.lost(ingress, &format!("app-root is a rule of its own: `/` is redirected to {root} with its query"));
        }
        if !ingress.object["spec"]["defaultBackend"].is_null() {
            self.lost(ingress, "defaultBackend: write an HTTPRoute without hostnames");
        }
        let mut objects = Vec::new();
        let (namespace, name) = names_of(ingress);
        let mut names = Vec::new();
        for (number, (host, _)) in ingress.rules.iter().enumerate() {
            let rules = self.rules(ingress, number);
            for (part, rules) in rules.chunks(RULES_MAX).enumerate() {
                let name = [name, &number_of(number), &part_of("rules", part)].concat();
                for object in self.routes(ingress, (namespace, &name), host, rules) {
                    if !is_to_https(&object["spec"]["rules"][0]) {
                        names.extend(object["metadata"]["name"].as_str().map(str::to_owned));
                    }
                    objects.push(object);
                }
            }
        }
        if !spec.is_empty() && !names.is_empty() {
            objects.extend(policies(spec, (namespace, name), &names));
            self.beside_policies(ingress, namespace);
        }
        objects.extend(self.www(ingress, (namespace, name)));
        objects
    }

    /// The redirects to `example.com` or `www.example.com` from the other one. Its clients are asked for nothing, so no policy holds for it.
    fn www(&mut self, ingress: &Read<'_>, (namespace, name): (&str, &str)) -> Vec<Value> {
        let mut all = Vec::new();
        for (number, (host, _)) in ingress.rules.iter().enumerate().filter(|_| ingress.plan.location.www) {
            let other = host.strip_prefix("www.").map_or_else(|| format!("www.{host}"), str::to_owned);
            let is_taken = host.is_empty() || host.contains('*') || self.hosts.contains(other.as_str());
            if is_taken || !self.redirected.insert(other.clone()) {
                continue;
            }
            let tls = self.tls_parents(&[&other]);
            if tls.is_empty() && !self.tls_parents(&[host]).is_empty() {
                let what = format!(
                    "from-to-www-redirect: https://{other} is not redirected, because it has no certificate: name it in `tls`"
                );
                self.lost(ingress, &what);
            }
            let parents = [vec![self.parent("Gateway", self.gateway.1, "http")], tls].concat();
            let to = json!({"hostname": host, "statusCode": 308});
            all.push(json!({
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "HTTPRoute",
                "metadata": {"name": format!("{name}{}-www", number_of(number)), "namespace": namespace},
                "spec": {
                    "parentRefs": parents,
                    "hostnames": [other],
                    "rules": [{"filters": [{"type": "RequestRedirect", "requestRedirect": to}]}],
                },
            }));
        }
        all
    }

    /// Whether the requests of a rule are served over HTTP although the others of the host are redirected.
    fn is_open(&self, rule: &Value) -> bool {
        let path = rule.pointer("/matches/0/path/value").and_then(Value::as_str).unwrap_or("/");
        // So begin the expressions of paths.
        let path = path.strip_prefix("(?i:").unwrap_or(path);
        let prefixes = self.globals.prefixes("no-tls-redirect-locations");
        prefixes.iter().any(|prefix| path.starts_with(prefix.as_str()))
    }

    /// What policies and routes need besides, or do not say.
    fn beside_policies(&mut self, ingress: &Read<'_>, namespace: &str) {
        let Plan { location, spec, .. } = &ingress.plan;
        if let Some(secret) = spec.get("route").and_then(|route| route.pointer("/auth/basic/secretRef/name")) {
            let secret = secret.as_str().unwrap_or_default();
            let lines = if location.has_user_map { ", with a line NAME:HASH for each of its keys" } else { "" };
            self.lost(ingress, &format!(
                "auth-secret: a TrafficPolicy needs a Secret of the type steelyard.io/credentials with the key `users`: make one of {secret}{lines}"
            ));
        }
        let asked = spec.get("route").and_then(|route| route.pointer("/externalAuth/backendRef"));
        if let Some(asked) = asked.filter(|_| location.asks_elsewhere) {
            self.grant(asked, ("steelyard.io", "TrafficPolicy", namespace));
        }
        let mirror = location.mirror.as_ref().and_then(Target::service);
        if let Some(mirror) = mirror.filter(|mirror| mirror.namespace != namespace) {
            let to = json!({"name": mirror.name, "namespace": mirror.namespace});
            self.grant(&to, (GROUP, "HTTPRoute", namespace));
        }
        if let Some(mirror) = location.mirror.as_ref().and_then(Target::outside) {
            self.lost(
                ingress,
                &format!("mirror-target: {} is outside of the cluster: copies need a Service", mirror.to),
            );
        }
        if mirror.is_some_and(|mirror| !mirror.host.is_empty()) {
            self.lost(ingress, "mirror-target: the copy has the host of the request");
        }
        let over_tls = [
            ("backend-protocol", location.protocol.tls),
            ("auth-url", location.asks_over_tls.is_some()),
            ("mirror-target", mirror.is_some_and(|mirror| mirror.sni.is_some())),
        ];
        for (key, _) in over_tls.iter().filter(|(_, is_it)| *is_it) {
            self.lost(
                ingress,
                &format!("{key}: TLS to endpoints needs a BackendTLSPolicy, which verifies their certificates"),
            );
        }
        if location.proxy_ssl.is_some() {
            let what =
                "proxy-ssl-secret: write tls.backend.clientCertificateRef of the Gateway, and a BackendTLSPolicy";
            self.left_out(ingress, what);
        }
        if location.protocol.h2 {
            self.lost(ingress, "backend-protocol: the port of the Service needs appProtocol: kubernetes.io/h2c");
        }
        let paths: usize = ingress.rules.iter().map(|(_, paths)| paths.len()).sum();
        if ingress.plan.limits_clients() && paths > 1 {
            self.lost(ingress, "limit-rps, limit-rpm and limit-connections: each path counts a client alone");
        }
        if location.errors.is_some() {
            self.lost(
                ingress,
                "custom-http-errors: no route names an error backend; let the application answer with its pages",
            );
        }
        if location.default_backend.is_some() {
            self.lost(ingress, "default-backend: no route names another Service for one without endpoints");
        }
        if location.affinity.is_some() {
            self.lost(ingress, "affinity: the cookie has another value, so each client is assigned an endpoint anew");
        }
    }

    /// Lets objects of a kind refer to a Service in another namespace.
    fn grant(&mut self, service: &Value, (group, kind, from): (&'static str, &'static str, &str)) {
        let text = |name: &str| service[name].as_str().unwrap_or_default().to_owned();
        let names = self.grants.entry((text("namespace"), (group, kind, from.to_owned()))).or_default();
        names.insert(("Service", text("name")));
    }

    /// The listeners for HTTPS of these hosts.
    fn tls_parents(&self, hosts: &[&str]) -> Vec<Value> {
        let of = |host: &&str| {
            let wildcard = host.split_once('.').map(|(_, domain)| format!("*.{domain}"));
            self.listeners.get(*host).or_else(|| self.listeners.get(&wildcard?))
        };
        let found: BTreeSet<_> = hosts.iter().filter_map(of).collect();
        let parent = |(kind, name, section): &(&str, String, String)| self.parent(kind, name, section);
        found.into_iter().map(parent).collect()
    }

    fn parent(&self, kind: &str, name: &str, section: &str) -> Value {
        json!({"group": GROUP, "kind": kind, "name": name, "namespace": self.gateway.0, "sectionName": section})
    }

    /// The routes for a host: what is served over HTTPS, what is served over HTTP, or the redirect.
    fn routes(
        &mut self,
        ingress: &Read<'_>,
        (namespace, name): (&str, &str),
        host: &str,
        rules: &[Value],
    ) -> Vec<Value> {
        let location = &ingress.plan.location;
        let aliases = location.aliases.iter().map(String::as_str);
        let hosts: Vec<&str> = std::iter::once(host).filter(|host| !host.is_empty()).chain(aliases).collect();
        let tls = self.tls_parents(&hosts);
        let plain = self.parent("Gateway", self.gateway.1, "http");
        let redirects = match location.https {
            Https::No => false,
            Https::WithCertificate => self.with_tls.contains(host),
            Https::Always => true,
        };
        let parts = hosts.chunks(HOSTS_MAX).enumerate().map(|(part, hosts)| (part, hosts.to_vec()));
        let parts: Vec<(usize, Vec<&str>)> = if hosts.is_empty() { vec![(0, Vec::new())] } else { parts.collect() };
        let mut all = Vec::new();
        let mut route = |name: &str, parents: &[Value], rules: &[Value]| {
            for (part, hosts) in &parts {
                let part = part_of("hosts", *part);
                let mut spec = json!({"parentRefs": parents, "rules": rules});
                if !hosts.is_empty() {
                    spec["hostnames"] = json!(hosts);
                }
                all.push(json!({
                    "apiVersion": "gateway.networking.k8s.io/v1",
                    "kind": "HTTPRoute",
                    "metadata": {"name": format!("{name}{part}"), "namespace": namespace},
                    "spec": spec,
                }));
            }
        };
        let secure = self.globals.hsts().map(|hsts| with_hsts(rules, &hsts));
        match (&secure, redirects) {
            (_, true) if tls.is_empty() => {}
            (Some(secure), false) if !tls.is_empty() => {
                route(name, &tls, secure);
                route(&format!("{name}-http"), std::slice::from_ref(&plain), rules);
            }
            (Some(secure), true) => route(name, &tls, secure),
            (None, true) => route(name, &tls, rules),
            (_, false) => route(name, &[std::slice::from_ref(&plain), tls.as_slice()].concat(), rules),
        }
        if redirects {
            let open: Vec<Value> = rules.iter().filter(|rule| self.is_open(rule)).cloned().collect();
            if !open.is_empty() {
                route(&format!("{name}-open"), std::slice::from_ref(&plain), &open);
            }
            let to = json!({"scheme": "https", "statusCode": self.globals.redirect_code()});
            let rule = json!({"filters": [{"type": "RequestRedirect", "requestRedirect": to}]});
            route(&format!("{name}-to-https"), &[plain], &[rule]);
        }
        if redirects && tls.is_empty() {
            let what = format!(
                "{}: everything is redirected to HTTPS, and there is no certificate: name its Secret in `tls`",
                report::shown(host)
            );
            self.left_out(ingress, &what);
        }
        all
    }
}

/// The policies of routes with these names. Each has 16 targets at most.
fn policies(spec: &Map<String, Value>, (namespace, name): (&str, &str), names: &[String]) -> Vec<Value> {
    let policy = |(part, names): (usize, &[String])| {
        let target = |name: &String| json!({"group": GROUP, "kind": "HTTPRoute", "name": name});
        let mut fields = spec.clone();
        fields.insert("targetRefs".to_owned(), names.iter().map(target).collect());
        json!({
            "apiVersion": "steelyard.io/v1alpha1",
            "kind": "TrafficPolicy",
            "metadata": {"name": format!("{name}{}", number_of(part)), "namespace": namespace},
            "spec": fields,
        })
    };
    names.chunks(16).enumerate().map(policy).collect()
}

/// Whether a rule redirects to HTTPS, of which a policy says nothing.
fn is_to_https(rule: &Value) -> bool {
    let redirect = &rule["filters"][0]["requestRedirect"];
    !redirect.is_null() && redirect["hostname"].is_null()
}

/// The same rules, whose responses tell browsers to use HTTPS alone.
fn with_hsts(rules: &[Value], hsts: &str) -> Vec<Value> {
    let set = json!([{"name": "strict-transport-security", "value": hsts}]);
    let filter = json!({"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": set}});
    let mut rules = rules.to_vec();
    for rule in rules.iter_mut().filter(|rule| !rule["backendRefs"].is_null()) {
        match rule.get_mut("filters").and_then(Value::as_array_mut) {
            Some(filters) => filters.push(filter.clone()),
            None => rule["filters"] = json!([filter]),
        }
    }
    rules
}

/// The namespace and the name of an Ingress, which messages cut if they are long.
fn names_of<'o>(ingress: &Read<'o>) -> (&'o str, &'o str) {
    let meta = &ingress.object["metadata"];
    (meta["namespace"].as_str().unwrap_or("default"), meta["name"].as_str().unwrap_or_default())
}

/// The end of the name of a part that has not enough room in one object. It differs from that of a number of a host.
fn part_of(what: &str, part: usize) -> String {
    if part == 0 { String::new() } else { format!("-{what}-{part}") }
}

fn number_of(number: usize) -> String {
    if number == 0 { String::new() } else { format!("-{number}") }
}
