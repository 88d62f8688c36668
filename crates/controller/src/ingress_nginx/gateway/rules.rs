//! The rules of HTTPRoutes: their matches, their filters and the backends.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::super::plan::{HeaderRule, Location, Target};
use super::super::report::Read;
use super::super::value;
use super::Making;
use super::prefixes::{Prefixes, cut_off};
use super::valid::PATH_BYTES_MAX;

/// Expressions of what differs from a prefix in case alone. A route has 128 matches at most, and 8 such rules.
const OTHER_CASE_MAX: usize = 8;

/// The backends of canaries by their host and path, each with its Ingress.
pub(super) type Canaries<'r, 'o> = HashMap<(&'r str, &'r str), (&'r Read<'o>, Value)>;

pub(super) fn canaries<'r, 'o>(read: &'r [Read<'o>]) -> Canaries<'r, 'o> {
    let mut found = HashMap::new();
    for other in read.iter().filter(|other| other.plan.canary.is_some() && other.plan.dropped.is_none()) {
        for (number, (host, paths)) in other.rules.iter().enumerate() {
            for (place, (path, _)) in paths.iter().enumerate() {
                let object = &other.object["spec"]["rules"][number]["http"]["paths"][place];
                if let Some(target) = backend(object) {
                    found.entry((host.as_str(), *path)).or_insert((other, target));
                }
            }
        }
    }
    found
}

impl Making<'_, '_> {
    /// The rules of one host of an Ingress.
    pub(super) fn rules(&mut self, ingress: &Read<'_>, number: usize) -> Vec<Value> {
        let Some((host, paths)) = ingress.rules.get(number) else { return Vec::new() };
        let backends = ingress.object["spec"]["rules"][number]["http"]["paths"].as_array().cloned().unwrap_or_default();
        let mut rules = Vec::new();
        for ((path, kind), object) in paths.iter().zip(&backends) {
            let Some((matcher, mut filters)) = self.matched(ingress, host, path, kind) else { continue };
            rules.extend(self.in_other_case(ingress, host, path, &matcher));
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
            let canary = self.canaries.get(&(host.as_str(), *path)).cloned();
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

    /// The rule for requests that a path of ingress-nginx takes whatever the case of their letters, and the prefix that is written for it does not.
    /// They must not reach another path of the host, where nothing of what is asked for here is. A rule without a backend answers 500.
    fn in_other_case(&mut self, ingress: &Read<'_>, host: &str, path: &str, matcher: &Value) -> Option<Value> {
        let is_expression = self.is_regex.contains(host) && path != "/" && matcher["type"] == "PathPrefix";
        let prefix = matcher["value"].as_str().filter(|_| is_expression)?;
        let others = self.prefixes.get(host)?.in_other_case(prefix);
        if others.is_empty() {
            return None;
        }
        if others.len() > OTHER_CASE_MAX {
            let path = value::cut(path);
            self.left_out(ingress, &format!("{path}: it is too long for a rule about other cases of its letters"));
            return None;
        }
        self.lost(
            ingress,
            &format!("{path}: case counts in the prefix {prefix}; the path in another case is answered with 500, and ingress-nginx serves it"),
        );
        let matches: Vec<Value> =
            others.iter().map(|other| json!({"path": {"type": "RegularExpression", "value": other}})).collect();
        Some(json!({"matches": matches}))
    }

    /// The match of a path, and the filter that rewrites it; `None` if that cannot be written.
    fn matched(&mut self, ingress: &Read<'_>, host: &str, path: &str, kind: &str) -> Option<(Value, Vec<Value>)> {
        let rewrite = ingress.plan.location.rewrite.as_deref().filter(|target| *target != path);
        let replace = |modifier: Value| json!({"type": "URLRewrite", "urlRewrite": {"path": modifier}});
        // What most people write: a prefix that is cut off.
        let cut = cut_off(path, rewrite);
        if let Some((prefix, with)) =
            cut.filter(|(prefix, _)| self.prefixes.get(host).is_some_and(|paths| paths.has(prefix)))
        {
            let matcher = json!({"type": "PathPrefix", "value": prefix});
            return Some((matcher, vec![replace(json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": with}))]));
        }
        let filters = match rewrite {
            None => Vec::new(),
            Some(target) if is_literal(target) => {
                vec![replace(json!({"type": "ReplaceFullPath", "replaceFullPath": target}))]
            }
            Some(target) => {
                let why = match cut {
                    None => "",
                    Some(_) => {
                        ", because an expression of another path of the host may match the same, and would come before a prefix"
                    }
                };
                let what = format!("{path}: a rewrite to {target} cannot be written{why}; the path is left out");
                self.left_out(ingress, &what);
                return None;
            }
        };
        // Where other paths are prefixes, `/` is one that comes after them. An expression would come before them.
        let is_last = path == "/" && self.prefixes.get(host).is_some_and(Prefixes::has_cut);
        if is_last || !self.is_regex.contains(host) {
            let kind = if kind == "Exact" && !is_last { "Exact" } else { "PathPrefix" };
            let bare = path.trim_end_matches('/');
            if kind == "PathPrefix" && !bare.is_empty() && bare.len() < path.len() {
                let what =
                    format!("{path}: requests for {bare} are served, and ingress-nginx redirects them to {path}");
                self.lost(ingress, &what);
            }
            return Some((json!({"type": kind, "value": path}), filters));
        }
        match super::super::regex_of(path) {
            Ok(pattern) if pattern.len() > PATH_BYTES_MAX => {
                let what = format!("{}: an expression of more than {PATH_BYTES_MAX} bytes", value::cut(path));
                self.left_out(ingress, &what);
                None
            }
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

pub(super) fn is_literal(path: &str) -> bool {
    path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-_~".contains(&byte))
}

fn own_filters(location: &Location) -> Vec<Value> {
    let mut filters = Vec::new();
    if let Some(host) = location.host.as_ref().filter(|host| !host.contains('$')) {
        // Endpoints get it in lower case, which means the same.
        filters.push(json!({"type": "URLRewrite", "urlRewrite": {"hostname": host.to_ascii_lowercase()}}));
    }
    if let Some(prefix) = location.prefix.as_ref().filter(|_| location.rewrite.is_some()) {
        let set = json!([{"name": "x-forwarded-prefix", "value": prefix}]);
        filters.push(json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": set}}));
    }
    if let Some(mirror) = location.mirror.as_ref().and_then(Target::service) {
        let to = json!({"name": mirror.name, "namespace": mirror.namespace, "port": mirror.port});
        filters.push(json!({"type": "RequestMirror", "requestMirror": {"backendRef": to}}));
    }
    filters
}

fn redirect(status: u16, url: &str) -> Option<Value> {
    let (is_https, host, port, path) = value::split_url(url)?;
    // A redirect of the API has a path and no query of its own.
    let is_known =
        [301, 302, 303, 307, 308].contains(&status) && !path.contains(['?', '#', '$']) && !host.contains('$');
    let mut to = json!({
        "scheme": if is_https { "https" } else { "http" },
        "hostname": host.to_ascii_lowercase(),
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
