//! Ingresses as objects of the Gateway API: a Gateway, HTTPRoutes, and a TrafficPolicy for what no route can say. What would be lost is told, and
//! what keeps somebody out and would be lost is not written at all.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::catalogue::Verdict;
use super::options::Globals;
use super::plan::{Compat, HeaderRule, Https, Location, Plan};
use super::report::{self, Read};

/// Rules of an HTTPRoute, as the API has it.
const RULES_MAX: usize = 16;

/// The objects, and what they do not say.
#[derive(Debug, Default)]
pub struct Written {
    /// In the order in which they are to be applied.
    pub objects: Vec<Value>,
    /// Sentences.
    pub lost: Vec<String>,
    /// Whether paths are left out. Other routes of the same host would take their requests, without what kept somebody out.
    pub leaves_out: bool,
}

/// Writes the Ingresses among these objects for a Gateway with this name, `NAMESPACE/NAME`, of this class.
pub fn written(objects: &[Value], class: &str, gateway: (&str, &str, &str), compat: Compat) -> Written {
    let mut written = Written::default();
    let (globals, read) = report::ingresses(objects, class, compat);
    let is_regex: BTreeSet<&str> = regex_hosts(&read);
    let mut certificates: BTreeMap<String, (String, String)> = BTreeMap::new();
    let mut making =
        Making { written: &mut written, globals: &globals, gateway: (gateway.0, gateway.1), is_regex: &is_regex };
    let mains: Vec<&Read<'_>> = read.iter().filter(|read| read.plan.canary.is_none()).collect();
    let mut routes = Vec::new();
    for ingress in &mains {
        routes.extend(making.ingress(ingress, &read));
        certificates.extend(tls_of(ingress));
    }
    let mut all = vec![gateway_object(gateway, &certificates)];
    all.append(&mut routes);
    written.objects = all;
    for read in &read {
        let refused = read.plan.findings.iter().filter(|finding| finding.verdict == Verdict::Refused);
        written.lost.extend(refused.map(|finding| format!("{}: {}: {}", read.name, finding.key, finding.says)));
    }
    written
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
        hosts.map(move |host| (host.to_owned(), (namespace.to_owned(), secret.clone()))).collect::<Vec<_>>()
    })
    .filter(|(_, (_, secret))| !secret.is_empty())
    .collect()
}

fn gateway_object(
    (namespace, name, class): (&str, &str, &str),
    certificates: &BTreeMap<String, (String, String)>,
) -> Value {
    let from = json!({"namespaces": {"from": "All"}});
    let mut listeners = vec![json!({"name": "http", "port": 80, "protocol": "HTTP", "allowedRoutes": from})];
    for (number, (host, (of, secret))) in certificates.iter().enumerate() {
        listeners.push(json!({
            "name": format!("https-{number}"),
            "port": 443,
            "protocol": "HTTPS",
            "hostname": host,
            "tls": {"certificateRefs": [{"name": secret, "namespace": of}]},
            "allowedRoutes": from,
        }));
    }
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"gatewayClassName": class, "listeners": listeners},
    })
}

struct Making<'w> {
    written: &'w mut Written,
    globals: &'w Globals,
    gateway: (&'w str, &'w str),
    is_regex: &'w BTreeSet<&'w str>,
}

impl Making<'_> {
    fn left_out(&mut self, ingress: &Read<'_>, what: &str) {
        self.written.leaves_out = true;
        self.lost(ingress, what);
    }

    fn lost(&mut self, ingress: &Read<'_>, what: &str) {
        self.written.lost.push(format!("{}: {what}", ingress.name));
    }

    /// The routes of an Ingress, one for each host, and their policy.
    fn ingress(&mut self, ingress: &Read<'_>, all: &[Read<'_>]) -> Vec<Value> {
        let Plan { dropped, closed, location, spec, .. } = &ingress.plan;
        if let Some(why) = dropped.as_ref().or(closed.as_ref()) {
            self.left_out(ingress, &format!("nothing of it is written: {why}"));
            return Vec::new();
        }
        if let Some(root) = &location.app_root {
            self.lost(ingress, &format!("app-root is a rule of its own: `/` is redirected to {root} with its query"));
        }
        if !ingress.object["spec"]["defaultBackend"].is_null() {
            self.lost(ingress, "defaultBackend: write an HTTPRoute without hostnames");
        }
        let mut objects = Vec::new();
        let (namespace, name) = ingress.name.split_once('/').unwrap_or(("default", &ingress.name));
        let mut names = Vec::new();
        for (number, (host, _)) in ingress.rules.iter().enumerate() {
            let rules = self.rules(ingress, number, all);
            for (part, rules) in rules.chunks(RULES_MAX).enumerate() {
                let name = [name.to_owned(), number_of(number), number_of(part)].concat();
                names.push(name.clone());
                objects.extend(self.routes(ingress, namespace, &name, host, rules));
            }
        }
        if !spec.is_empty() && !names.is_empty() {
            // A policy has 16 targets at most.
            for (part, names) in names.chunks(16).enumerate() {
                let target =
                    |name: &String| json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name});
                let mut fields = spec.clone();
                fields.insert("targetRefs".to_owned(), names.iter().map(target).collect());
                objects.push(json!({
                    "apiVersion": "steelyard.io/v1alpha1",
                    "kind": "TrafficPolicy",
                    "metadata": {"name": format!("{name}{}", number_of(part)), "namespace": namespace},
                    "spec": fields,
                }));
            }
            if let Some(secret) = spec.get("route").and_then(|route| route.pointer("/auth/basic/secretRef/name")) {
                let secret = secret.as_str().unwrap_or_default();
                self.lost(ingress, &format!(
                    "auth-secret: a TrafficPolicy needs a Secret of the type steelyard.io/credentials with the key `users`: make one of {secret}"
                ));
            }
            if location.asks_elsewhere {
                self.lost(ingress, "auth-url: the Service is in another namespace, which needs a ReferenceGrant there");
            }
            if location.protocol.tls {
                self.lost(
                    ingress,
                    "backend-protocol: TLS to endpoints needs a BackendTLSPolicy, which verifies their certificates",
                );
            }
            if location.protocol.h2 {
                self.lost(ingress, "backend-protocol: the port of the Service needs appProtocol: kubernetes.io/h2c");
            }
        }
        objects
    }

    /// A route for a host; with a redirect to HTTPS, another one for HTTP.
    fn routes(&self, ingress: &Read<'_>, namespace: &str, name: &str, host: &str, rules: &[Value]) -> Vec<Value> {
        let location = &ingress.plan.location;
        let aliases = location.aliases.iter().map(String::as_str);
        let hosts: Vec<&str> = std::iter::once(host).filter(|host| !host.is_empty()).chain(aliases).collect();
        let has_tls = ingress.object["spec"]["tls"].as_array().is_some_and(|tls| !tls.is_empty());
        let redirects = match location.https {
            Https::No => false,
            Https::WithCertificate => has_tls,
            Https::Always => true,
        };
        let parent = |section: Option<&str>| {
            let mut parent = json!({"name": self.gateway.1, "namespace": self.gateway.0});
            if let Some(section) = section {
                parent["sectionName"] = json!(section);
            } else if redirects {
                parent["port"] = json!(443);
            }
            parent
        };
        let route = |name: &str, parent: Value, rules: &[Value]| {
            let mut spec = json!({"parentRefs": [parent], "rules": rules});
            if !hosts.is_empty() {
                spec["hostnames"] = json!(hosts);
            }
            json!({
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "HTTPRoute",
                "metadata": {"name": name, "namespace": namespace},
                "spec": spec,
            })
        };
        let mut all = vec![route(name, parent(None), rules)];
        if redirects {
            let status = match self.globals.redirect_code() {
                302 => 302,
                _ => 301,
            };
            let to = json!({"scheme": "https", "statusCode": status});
            let rule = json!({"filters": [{"type": "RequestRedirect", "requestRedirect": to}]});
            all.push(route(&format!("{name}-to-https"), parent(Some("http")), &[rule]));
        }
        all
    }

    /// The rules of one host of an Ingress.
    fn rules(&mut self, ingress: &Read<'_>, number: usize, all: &[Read<'_>]) -> Vec<Value> {
        let Some((host, paths)) = ingress.rules.get(number) else { return Vec::new() };
        let backends = ingress.object["spec"]["rules"][number]["http"]["paths"].as_array().cloned().unwrap_or_default();
        let mut rules = Vec::new();
        for ((path, kind), object) in paths.iter().zip(&backends) {
            let Some((matcher, mut filters)) = self.matched(ingress, host, path, kind) else { continue };
            filters.extend(own_filters(&ingress.plan.location));
            let filters = merged(filters);
            let mut rule = Map::new();
            if let Some((status, url)) = &ingress.plan.location.redirect {
                let Some(redirect) = redirect(*status, url) else {
                    self.left_out(
                        ingress,
                        &format!("{path}: a redirect to {url} with the status {status} cannot be written"),
                    );
                    continue;
                };
                rule.insert("matches".to_owned(), json!([{"path": matcher}]));
                rule.insert("filters".to_owned(), json!([redirect]));
                rules.push(Value::Object(rule));
                continue;
            }
            let Some(main) = backend(object) else {
                self.left_out(ingress, &format!("{path}: a backend by the name of its port: write the number"));
                continue;
            };
            let canary = all.iter().filter(|other| other.plan.canary.is_some()).find_map(|other| {
                let (at, (_, paths)) = other.rules.iter().enumerate().find(|(_, (of, _))| of == host)?;
                let place = paths.iter().position(|(of, _)| of == path)?;
                Some((other, backend(&other.object["spec"]["rules"][at]["http"]["paths"][place])?))
            });
            let rule = |matches: Value, backends: Value| {
                let mut rule = json!({"matches": matches, "backendRefs": backends});
                if !filters.is_empty() {
                    rule["filters"] = json!(filters);
                }
                rule
            };
            let Some((other, target)) = canary else {
                rules.push(rule(json!([{"path": matcher}]), json!([main])));
                continue;
            };
            let plan = other.plan.canary.clone().unwrap_or_default();
            let header = |name: &str, kind: &str, value: &str| json!([{"path": matcher, "headers": [{"name": name, "type": kind, "value": value}]}]);
            match &plan.header {
                Some((name, HeaderRule::Words)) => {
                    rules.push(rule(header(name, "Exact", "always"), json!([target])));
                    rules.push(rule(header(name, "Exact", "never"), json!([main])));
                }
                Some((name, HeaderRule::Value(value))) => {
                    rules.push(rule(header(name, "Exact", value), json!([target])))
                }
                Some((name, HeaderRule::Pattern(value))) => {
                    rules.push(rule(header(name, "RegularExpression", &format!(".*(?:{value}).*")), json!([target])));
                }
                None => {}
            }
            if let Some(cookie) = &plan.cookie {
                let pattern = |word: &str| format!("(?:.*; *)?{}={word}(?:;.*)?", regex::escape(cookie));
                rules.push(rule(header("cookie", "RegularExpression", &pattern("always")), json!([target])));
                rules.push(rule(header("cookie", "RegularExpression", &pattern("never")), json!([main])));
            }
            let (mut main, mut target) = (main, target);
            (main["weight"], target["weight"]) = (json!(plan.total - plan.weight), json!(plan.weight));
            rules.push(rule(json!([{"path": matcher}]), json!([main, target])));
        }
        rules
    }

    /// The match of a path, and the filter that rewrites it; `None` if that cannot be written.
    fn matched(&mut self, ingress: &Read<'_>, host: &str, path: &str, kind: &str) -> Option<(Value, Vec<Value>)> {
        let rewrite = ingress.plan.location.rewrite.as_deref().filter(|target| *target != path);
        let replace = |modifier: Value| json!({"type": "URLRewrite", "urlRewrite": {"path": modifier}});
        // What most people write: a prefix that is cut off.
        if let (Some(prefix), Some(target)) =
            (path.strip_suffix("(/|$)(.*)").filter(|prefix| is_literal(prefix)), rewrite)
            && let Some(before) = target.strip_suffix("/$2").filter(|before| is_literal(before))
        {
            let with = if before.is_empty() { "/" } else { before };
            let matcher = json!({"type": "PathPrefix", "value": prefix});
            return Some((matcher, vec![replace(json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": with}))]));
        }
        let filters = match rewrite {
            None => Vec::new(),
            Some(target) if is_literal(target) => {
                vec![replace(json!({"type": "ReplaceFullPath", "replaceFullPath": target}))]
            }
            Some(target) => {
                self.left_out(
                    ingress,
                    &format!("{path}: a rewrite to {target} cannot be written; the path is left out"),
                );
                return None;
            }
        };
        if !self.is_regex.contains(host) {
            let kind = if kind == "Exact" { "Exact" } else { "PathPrefix" };
            return Some((json!({"type": kind, "value": path}), filters));
        }
        match super::regex_of(path) {
            Ok(pattern) => Some((json!({"type": "RegularExpression", "value": pattern}), filters)),
            Err(_) => {
                self.left_out(ingress, &format!("{path}: the expression cannot be matched; the path is left out"));
                None
            }
        }
    }
}

/// A rule has one filter of a kind.
fn merged(filters: Vec<Value>) -> Vec<Value> {
    let (rewrites, mut others): (Vec<Value>, Vec<Value>) =
        filters.into_iter().partition(|filter| filter["type"] == "URLRewrite");
    let mut all = Map::new();
    for rewrite in rewrites {
        all.extend(rewrite["urlRewrite"].as_object().cloned().unwrap_or_default());
    }
    if !all.is_empty() {
        others.push(json!({"type": "URLRewrite", "urlRewrite": all}));
    }
    others
}

fn number_of(number: usize) -> String {
    if number == 0 { String::new() } else { format!("-{number}") }
}

fn is_literal(path: &str) -> bool {
    path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-_~".contains(&byte))
}

fn own_filters(location: &Location) -> Vec<Value> {
    let mut filters = Vec::new();
    if let Some(host) = &location.host {
        filters.push(json!({"type": "URLRewrite", "urlRewrite": {"hostname": host}}));
    }
    if let Some(prefix) = location.prefix.as_ref().filter(|_| location.rewrite.is_some()) {
        let set = json!([{"name": "x-forwarded-prefix", "value": prefix}]);
        filters.push(json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": set}}));
    }
    if let Some(mirror) = &location.mirror {
        let to = json!({"name": mirror.name, "namespace": mirror.namespace, "port": mirror.port});
        filters.push(json!({"type": "RequestMirror", "requestMirror": {"backendRef": to}}));
    }
    filters
}

fn redirect(status: u16, url: &str) -> Option<Value> {
    let (is_https, host, port, path) = super::value::split_url(url)?;
    let is_known = [301, 302, 303, 307, 308].contains(&status);
    let mut to = json!({
        "scheme": if is_https { "https" } else { "http" },
        "hostname": host,
        "statusCode": status,
        "path": {"type": "ReplaceFullPath", "replaceFullPath": if path.is_empty() { "/" } else { path }},
    });
    if let Some(port) = port {
        to["port"] = json!(port);
    }
    is_known.then(|| json!({"type": "RequestRedirect", "requestRedirect": to}))
}

/// The port of a Service that a path of an Ingress leads to.
fn backend(path: &Value) -> Option<Value> {
    let service = &path["backend"]["service"];
    Some(json!({"name": service["name"].as_str()?, "port": service["port"]["number"].as_u64()?}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingress_nginx::PREFIX;

    fn ingress(name: &str, annotations: Value, path: &str) -> Value {
        let annotations: Map<String, Value> = annotations
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| (format!("{PREFIX}{key}"), value.clone()))
            .collect();
        let path = json!({"path": path, "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}});
        json!({
            "kind": "Ingress",
            "metadata": {"name": name, "namespace": "shop", "annotations": annotations},
            "spec": {"ingressClassName": "nginx", "rules": [{"host": format!("{name}.example"), "http": {"paths": [path]}}]},
        })
    }

    fn made(objects: &[Value]) -> Written {
        written(objects, "nginx", ("infra", "edge", "steelyard"), Compat::Safe)
    }

    #[test]
    fn a_prefix_that_is_cut_off() {
        let made =
            made(&[ingress("a", json!({"rewrite-target": "/$2", "upstream-vhost": "in.example"}), "/api(/|$)(.*)")]);
        assert_eq!(made.lost, [""; 0]);
        let rule = &made.objects[1]["spec"]["rules"][0];
        assert_eq!(rule["matches"], json!([{"path": {"type": "PathPrefix", "value": "/api"}}]));
        let path = json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"});
        assert_eq!(
            rule["filters"],
            json!([{"type": "URLRewrite", "urlRewrite": {"path": path, "hostname": "in.example"}}])
        );
        let policy = &made.objects[2];
        assert_eq!((&policy["kind"], &policy["spec"]["targetRefs"][0]["name"]), (&json!("TrafficPolicy"), &json!("a")));
        let spec = policy["spec"].as_object().unwrap();
        assert!(config::TrafficPolicy::read(spec).is_ok());
    }

    #[test]
    fn what_keeps_somebody_out_is_not_lost_in_silence() {
        let made = made(&[
            ingress("a", json!({"auth-tls-secret": "shop/ca"}), "/"),
            ingress("b", json!({"rewrite-target": "/x/$1"}), "/b/(.*)"),
            ingress("c", json!({"custom-http-errors": "404"}), "/"),
            ingress("d", json!({"permanent-redirect": "https://new.example/x"}), "/"),
        ]);
        let names: Vec<&str> = made
            .objects
            .iter()
            .filter(|object| object["kind"] == "HTTPRoute")
            .filter_map(|object| object["metadata"]["name"].as_str())
            .collect();
        assert_eq!(names, ["d", "c"]);
        for part in
            ["shop/a: nothing of it is written: auth-tls-secret", "a rewrite to /x/$1", "shop/c: custom-http-errors"]
        {
            assert!(made.lost.iter().any(|lost| lost.contains(part)), "{part}: {:?}", made.lost);
        }
    }

    #[test]
    fn canaries() {
        let mut canary =
            ingress("canary", json!({"canary": "true", "canary-weight": "30", "canary-by-header": "x-next"}), "/");
        canary["spec"]["rules"][0]["host"] = json!("a.example");
        canary["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"] = json!("next");
        let made = made(&[ingress("a", json!({}), "/"), canary]);
        let rules = made.objects[1]["spec"]["rules"].as_array().unwrap();
        assert_eq!(rules.len(), 3);
        let weights: Vec<(&str, u64)> = rules[2]["backendRefs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|to| (to["name"].as_str().unwrap(), to["weight"].as_u64().unwrap()))
            .collect();
        assert_eq!(weights, [("web", 70), ("next", 30)]);
    }
}
