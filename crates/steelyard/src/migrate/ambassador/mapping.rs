//! One Mapping, and the route of Mappings that match the same requests.

use serde_json::{Value, json};

use super::super::draft::{Became, Draft, Keys, closed, literal, milliseconds};
use super::super::envoy::{PathCondition, is_host, is_of_proxy, is_plain, is_same_regex};
use super::super::tree::Node;
use super::{Around, Object};

/// A Mapping, read.
pub(super) struct Mapping<'t> {
    object: &'t Object<'t>,
    /// The conditions of a route.
    pub(super) matches: Keys,
    /// What Ambassador sorts by, the largest first: the precedence, the letters of the prefix, those of the conditions on headers and of those on
    /// parameters, the prefix, and the method.
    pub(super) weight_of_route: (i64, usize, usize, usize, String, String),
    pub(super) bypasses_auth: bool,
    /// Clients may ask for a WebSocket.
    pub(super) upgrades: bool,
    /// It gets copies only.
    is_shadow: bool,
    weight: Option<u64>,
    /// What else it says about a route; `respond` or `redirect` is in it if it leads to no endpoint.
    route: Keys,
    to: Option<String>,
}

/// Keys that say nothing about requests here.
const NO_EFFECT: &[&str] = &[
    "ambassador_id",
    "apiVersion",
    "kind",
    "name",
    "namespace",
    "docs",
    "stats_name",
    "resolver",
    "use_websocket",
    "allow_upgrade",
    "cluster_tag",
    "priority",
    "labels",
    "generation",
    "metadata_labels",
    "dns_type",
    "respect_dns_ttl",
    "enable_ipv4",
];

/// Keys that are read in this file.
const KNOWN: &[&str] = &[
    "prefix",
    "prefix_regex",
    "prefix_exact",
    "case_sensitive",
    "hostname",
    "host",
    "host_regex",
    "method",
    "method_regex",
    "headers",
    "regex_headers",
    "query_parameters",
    "regex_query_parameters",
    "precedence",
    "weight",
    "service",
    "rewrite",
    "regex_rewrite",
    "timeout_ms",
    "connect_timeout_ms",
    "idle_timeout_ms",
    "cluster_idle_timeout_ms",
    "retry_policy",
    "tls",
    "cors",
    "add_request_headers",
    "remove_request_headers",
    "add_response_headers",
    "remove_response_headers",
    "host_redirect",
    "path_redirect",
    "prefix_redirect",
    "redirect_response_code",
    "shadow",
    "bypass_auth",
    "load_balancer",
    "circuit_breakers",
    "outlier_detection",
    "grpc",
    "host_rewrite",
    "auto_host_rewrite",
    "keepalive",
    "regex_redirect",
    "envoy_override",
];

impl<'t> Mapping<'t> {
    /// `None` if it matches nothing.
    pub(super) fn of(object: &'t Object<'t>, around: &Around, draft: &mut Draft) -> Option<Self> {
        let spec = &object.spec;
        let prefix = spec.at("prefix");
        let Some(path) = prefix.text() else {
            object.note(draft, spec, &format!("Mapping {}", object.name), Became::Lost, "it has no prefix");
            return None;
        };
        let mut is_closed = false;
        for (key, value) in spec.entries() {
            let name = key.text().unwrap_or_default();
            if !KNOWN.contains(&name) && !NO_EFFECT.contains(&name) {
                let why = "it is not understood, so the Mapping is closed; remove it, or write what it does by hand";
                object.note(draft, key, name, Became::Closed, why);
                is_closed = true;
            }
            if name == "labels" && !value.is_null() {
                let (became, why) = match around.counts {
                    true => (
                        Became::Closed,
                        "a service counts these requests, so the Mapping is closed; write `global_rate_limit`",
                    ),
                    false => (Became::Lost, "no RateLimitService counts by them"),
                };
                is_closed |= around.counts;
                object.note(draft, key, name, became, why);
            }
            if name == "keepalive" {
                object.note(draft, key, name, Became::Lost, "it has no equivalent");
            }
            if ["envoy_override", "regex_redirect", "regex_rewrite", "host_regex"].contains(&name) && !value.is_false()
            {
                object.note(draft, key, name, Became::Closed, "it has no equivalent, so the Mapping is closed");
                is_closed = true;
            }
        }
        let (path, ignores_case, matches, is_known) = matches(object, path, draft);
        is_closed |= !is_known;
        let mut route = route_of(object, &path, ignores_case, draft);
        let leads_nowhere = route.get("redirect").is_some();
        let to = (!leads_nowhere && !is_closed).then(|| cluster(object, draft)).flatten();
        if is_closed || to.is_none() && !leads_nowhere {
            // It was not read to the end.
            spec.told();
            route = Keys::default().with("respond", json!({"status": 403}));
        }
        let upgrades = spec.at("allow_upgrade").items().iter().any(|one| one.text() == Some("websocket"));
        Some(Self {
            object,
            weight_of_route: weight_of_route(spec),
            matches,
            bypasses_auth: spec.at("bypass_auth").is_true(),
            upgrades: upgrades || spec.at("use_websocket").is_true(),
            is_shadow: spec.at("shadow").is_true(),
            weight: spec.at("weight").number(),
            route,
            to,
        })
    }
}

fn weight_of_route(spec: &Node) -> (i64, usize, usize, usize, String, String) {
    let letters = |keys: [&str; 2]| -> usize {
        let of = |key: &str, more: usize| -> usize {
            let entries = spec.at(key).entries().iter();
            entries.map(|(name, value)| name.text().map_or(0, str::len) + value.text().map_or(1, str::len) + more).sum()
        };
        of(keys[0], 0) + of(keys[1], 1)
    };
    let pseudo = |name: &str, key: &str| spec.at(key).text().map_or(0, |text| name.len() + text.len());
    let headers = letters(["headers", "regex_headers"])
        + pseudo(":authority", "host")
        + pseudo(":authority", "hostname")
        + pseudo(":method", "method");
    let prefix = spec.at("prefix").text().unwrap_or_default().to_owned();
    let method = spec.at("method").text().unwrap_or("GET").to_owned();
    let precedence = spec.at("precedence").text().and_then(|text| text.parse().ok()).unwrap_or(0);
    let parameters = letters(["query_parameters", "regex_query_parameters"]);
    (precedence, prefix.len(), headers, parameters, prefix, method)
}

/// The path of a Mapping, whether its case does not matter, its conditions, and whether all are understood; otherwise they take more.
fn matches(object: &Object<'_>, path: &str, draft: &mut Draft) -> (PathCondition, bool, Keys, bool) {
    let spec = &object.spec;
    let mut keys = Keys::default();
    let mut is_known = true;
    let mut unknown = |key: &str, why: &str| {
        object.note(draft, spec.at(key), key, Became::Closed, &format!("{why}, so the Mapping is closed"));
        is_known = false;
    };
    let named = if spec.at("hostname").text().is_some() { "hostname" } else { "host" };
    match spec.at(named).text().map(str::to_ascii_lowercase).filter(|host| !["*", ""].contains(&&**host)) {
        Some(host) if is_host(&host) => keys.set("hosts", json!([host])),
        Some(_) => unknown(named, "a host is a name, or `*.` in front of one"),
        None => {}
    }
    let ignores_case = spec.at("case_sensitive").is_false();
    let path = match path {
        path if spec.at("prefix_regex").is_true() => {
            Some(PathCondition::Regex(path.to_owned())).filter(|_| is_same_regex(path))
        }
        path if !is_plain(path) => None,
        path if spec.at("prefix_exact").is_true() => Some(PathCondition::Exact(path.to_owned())),
        "/" => Some(PathCondition::All),
        path => Some(PathCondition::Prefix(path.to_owned())),
    };
    let path = path.unwrap_or_else(|| {
        unknown("prefix", "it has another meaning here");
        PathCondition::All
    });
    if let Some(condition) = path.condition(ignores_case) {
        keys.set("path", condition);
    }
    if let Some(method) = spec.at("method").text() {
        let methods: Vec<&str> = match spec.at("method_regex").is_true() {
            true => method.trim_start_matches(['^', '(']).trim_end_matches(['$', ')']).split('|').collect(),
            false => vec![method],
        };
        if methods.iter().all(|one| !one.is_empty() && one.bytes().all(|byte| byte.is_ascii_uppercase())) {
            keys.set("methods", json!(methods));
        } else {
            unknown("method", "it is no list of methods");
        }
    }
    let is_known = values(object, &mut keys, draft) && is_known;
    (path, ignores_case, keys, is_known)
}

/// Conditions on headers and parameters; whether all are understood.
fn values(object: &Object<'_>, keys: &mut Keys, draft: &mut Draft) -> bool {
    let spec = &object.spec;
    let mut is_known = true;
    for (from, key, is_regex) in [
        ("headers", "headers", false),
        ("regex_headers", "headers", true),
        ("query_parameters", "query", false),
        ("regex_query_parameters", "query", true),
    ] {
        for (key_node, value) in spec.at(from).entries() {
            let (name, text) = (key_node.text().unwrap_or_default(), value.text().unwrap_or_default());
            let condition = match (is_regex, value.boolean()) {
                (false, Some(true)) => Some(json!({"present": true})),
                (_, Some(_)) => None,
                (false, None) => Some(json!(text)),
                (true, None) => Some(json!({"regex": text})).filter(|_| is_same_regex(text)),
            };
            let is_own =
                key == "headers" && is_of_proxy(name) || key == "query" && format!("{name}{text}").contains(['%', '+']);
            let is_added = condition
                .filter(|_| !is_own && !text.is_empty())
                .is_some_and(|condition| keys.condition(key, name, condition));
            if !is_added {
                let why = "the condition is not understood, so what it may be about is closed";
                object.note(draft, key_node, name, Became::Closed, why);
                is_known = false;
            }
        }
    }
    is_known
}

/// What a Mapping does besides choosing a cluster.
fn route_of(object: &Object<'_>, path: &PathCondition, ignores_case: bool, draft: &mut Draft) -> Keys {
    let spec = &object.spec;
    let mut route = Keys::default();
    if spec.at("host_redirect").is_true()
        || !spec.at("path_redirect").is_null()
        || !spec.at("prefix_redirect").is_null()
    {
        return redirect(spec, path, ignores_case);
    }
    let rewrite = spec.get("rewrite").map_or("/", |node| node.text().unwrap_or_default());
    // An expression is rewritten by an expression only.
    if !rewrite.is_empty()
        && !matches!(path, PathCondition::Regex(_))
        && (rewrite != "/" || !matches!(path, PathCondition::All))
    {
        let (condition, new) = path.replaced(ignores_case, rewrite);
        route.set("path", condition);
        route.set_in("rewrite", "path", new);
    }
    if let Some(host) = spec.at("host_rewrite").text() {
        route.set_in("rewrite", "host", host);
    } else if spec.at("auto_host_rewrite").is_true() {
        let service = spec.at("service").text().unwrap_or_default();
        let host = service.split_once("://").map_or(service, |(_, host)| host);
        let host = host.trim_end_matches('/').split(':').next().unwrap_or_default();
        route.set_in("rewrite", "host", full_name(host, object.namespace.as_deref()));
    }
    match spec.at("timeout_ms").number() {
        Some(0) => {}
        time => route.set("timeout", milliseconds(time.unwrap_or(3_000))),
    }
    policies(object, &mut route, draft);
    route
}

fn redirect(spec: &Node, path: &PathCondition, ignores_case: bool) -> Keys {
    let mut route = Keys::default();
    let mut to = json!({"status": spec.at("redirect_response_code").number().unwrap_or(301)});
    let service = spec.at("service").text().unwrap_or_default();
    let (scheme, host) = service.split_once("://").map_or((None, service), |(scheme, host)| (Some(scheme), host));
    let (host, port) = host.split_once(':').map_or((host, None), |(host, port)| (host, port.parse::<u16>().ok()));
    if !host.is_empty() && host != "_" {
        to["host"] = json!(host);
        to["scheme"] = json!(scheme.unwrap_or("http"));
        if let Some(port) = port {
            to["port"] = json!(port);
        }
    }
    if let Some(path) = spec.at("path_redirect").text() {
        to["path"] = json!(literal(path));
    } else if let Some(new) = spec.at("prefix_redirect").text() {
        let (condition, new) = path.replaced(ignores_case, new);
        route.set("path", condition);
        to["path"] = json!(new);
    }
    route.with("redirect", to)
}

/// A name without dots is a Service of the Mapping's namespace.
fn full_name(host: &str, namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) if !host.contains(['.', ':']) => format!("{host}.{namespace}"),
        _ => host.to_owned(),
    }
}

fn policies(object: &Object<'_>, route: &mut Keys, draft: &mut Draft) {
    let spec = &object.spec;
    let retry = spec.at("retry_policy");
    if !retry.is_null() {
        let mut on = Vec::new();
        for word in retry.at("retry_on").text().unwrap_or_default().split(',').map(str::trim) {
            match word {
                "5xx" => on.extend(["connect_failure", "reset", "timeout", "500", "502", "503", "504"]),
                "gateway-error" => on.extend(["connect_failure", "reset", "timeout", "502", "503", "504"]),
                "connect-failure" => on.push("connect_failure"),
                "refused-stream" => on.push("reset"),
                other => object.note(
                    draft,
                    retry.at("retry_on"),
                    other,
                    Became::Lost,
                    "retries are for connections, timeouts and statuses",
                ),
            }
        }
        let mut value = json!({"attempts": retry.at("num_retries").number().unwrap_or(1).clamp(1, 10)});
        if !on.is_empty() {
            value["on"] = json!(on);
        }
        if let Some(time) = retry.at("per_try_timeout").text() {
            value["per_try_timeout"] = json!(time);
        }
        route.set("retry", value);
    }
    let cors = spec.at("cors");
    if !cors.is_null() {
        let words = |node: &Node| -> Vec<String> {
            let items: Vec<&str> = match node.text() {
                Some(text) => text.split(',').collect(),
                None => node.items().iter().filter_map(Node::text).collect(),
            };
            let words = items.into_iter().map(|word| word.trim().to_owned()).filter(|word| !word.is_empty());
            let words: Vec<String> = words.collect();
            // It stands for all, and alone.
            if words.iter().any(|word| word == "*") { vec!["*".to_owned()] } else { words }
        };
        let mut value = json!({"origins": words(cors.at("origins")), "credentials": cors.at("credentials").is_true()});
        for (from, key) in [("methods", "methods"), ("headers", "headers"), ("exposed_headers", "expose")] {
            let words = words(cors.at(from));
            if !words.is_empty() {
                value[key] = json!(words);
            }
        }
        if let Some(age) = cors.at("max_age").number() {
            value["max_age"] = json!(format!("{age}s"));
        }
        route.set("cors", value);
    }
    headers(object, route, draft);
}

fn headers(object: &Object<'_>, route: &mut Keys, draft: &mut Draft) {
    let spec = &object.spec;
    for side in ["request_headers", "response_headers"] {
        let list = spec.at(&format!("remove_{side}"));
        let mut removed: Vec<&str> = list.items().iter().filter_map(Node::text).chain(list.text()).collect();
        if side == "request_headers" {
            // What Envoy takes from requests of clients.
            removed.extend(["x-envoy-external-address", "x-envoy-internal", "x-forwarded-client-cert"]);
        }
        for name in &removed {
            if let Err(why) = route.header(side, "remove", name, "") {
                object.note(draft, list, name, Became::Different, why);
            }
        }
        for (key, value) in spec.at(&format!("add_{side}")).entries() {
            let name = key.text().unwrap_or_default();
            // `{value: x, append: false}`, or the text alone, which is appended.
            let text = value.at("value").text().or(value.text()).unwrap_or_default();
            // What clients send is gone before this is added.
            let is_removed = removed.iter().any(|removed| removed.eq_ignore_ascii_case(name));
            let how = match () {
                () if text.contains('%') => {
                    let why =
                        "its value is not understood, so nobody gets it; write it with the variables of Steelyard";
                    object.note(draft, value, name, Became::Lost, why);
                    "remove"
                }
                () if is_removed || value.at("append").is_false() => "set",
                () => "add",
            };
            if let Err(why) = route.header(side, how, name, &literal(text)) {
                object.note(draft, value, name, Became::Different, why);
            }
        }
    }
}

/// The cluster of a Mapping; `None` if it has none that can be reached.
fn cluster(object: &Object<'_>, draft: &mut Draft) -> Option<String> {
    let spec = &object.spec;
    let service = spec.at("service");
    let Some(text) = service.text().filter(|text| !text.is_empty()) else {
        object.note(draft, service, "service", Became::Closed, "the Mapping names no service");
        return None;
    };
    let (is_tls, authority) = match text.split_once("://") {
        Some((scheme, rest)) => (scheme == "https", rest.trim_end_matches('/')),
        None => (false, text),
    };
    let tls = spec.at("tls");
    if !tls.is_null() && tls.boolean().is_none() {
        let why =
            "a TLSContext says how its endpoints are verified, so the Mapping is closed; write `tls` of the cluster";
        object.note(draft, tls, "tls", Became::Closed, why);
        return None;
    }
    let is_tls = is_tls || tls.is_true();
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            (host, port.to_owned())
        }
        _ => (authority, if is_tls { "443" } else { "80" }.to_owned()),
    };
    let full = full_name(host, object.namespace.as_deref());
    let mut keys = Keys::default().with("endpoints", json!([format!("{full}:{port}")]));
    if spec.at("grpc").is_true() {
        keys.set("protocol", if is_tls { "h2" } else { "h2c" });
    }
    if is_tls {
        keys.set("tls", json!({"verify": false}));
        let why =
            "certificates of endpoints are not verified, as with Ambassador; remove `verify: false` to verify them";
        object.note(draft, service, "service", Became::Different, why);
    }
    if let Some(time) = spec.at("connect_timeout_ms").number().filter(|time| *time > 0) {
        keys.set("connect_timeout", milliseconds(time));
    }
    let idle = spec.at("idle_timeout_ms").number().or(spec.at("cluster_idle_timeout_ms").number());
    if let Some(time) = idle.filter(|time| *time > 0) {
        keys.set("idle_timeout", milliseconds(time));
    }
    balance(object, &mut keys, draft);
    Some(draft.cluster(host, keys))
}

fn balance(object: &Object<'_>, keys: &mut Keys, draft: &mut Draft) {
    let spec = &object.spec;
    let balancer = spec.at("load_balancer");
    match balancer.at("policy").text() {
        None | Some("round_robin") => {}
        Some("least_request") => keys.set("balance", "least_request"),
        Some("ring_hash" | "maglev") => {
            let key = match (balancer.at("cookie").at("name").text(), balancer.at("header").text()) {
                (Some(cookie), _) => json!({"maglev": {"key": {"cookie": cookie}}}),
                (None, Some(header)) => json!({"maglev": {"key": {"header": header}}}),
                (None, None) => json!("maglev"),
            };
            keys.set("balance", key);
        }
        Some(other) => object.note(draft, balancer, other, Became::Lost, "endpoints are chosen in turn"),
    }
    if let Some(breaker) = spec.at("circuit_breakers").items().first() {
        let mut limits = json!({});
        if let Some(count) =
            breaker.at("max_requests").number().or(breaker.at("max_connections").number()).filter(|count| *count > 0)
        {
            limits["connections"] = json!(count);
        }
        if let Some(count) = breaker.at("max_pending_requests").number() {
            limits["pending"] = json!(count);
        }
        if limits.as_object().is_some_and(|limits| !limits.is_empty()) {
            keys.set("limits", limits);
            object.note(
                draft,
                breaker,
                "circuit_breakers",
                Became::Different,
                "connections are counted for each endpoint",
            );
        }
    }
    let outlier = spec.at("outlier_detection");
    if let Some(count) = outlier.at("consecutive_5xx").number().filter(|count| *count > 0) {
        keys.set("outlier", json!({"consecutive_5xx": count}));
    }
}

/// The route of Mappings with the same conditions: they share the requests by their weights.
pub(super) fn route(group: Vec<Mapping<'_>>, draft: &mut Draft) -> Keys {
    let (shadows, group): (Vec<_>, Vec<_>) = group.into_iter().partition(|mapping| mapping.is_shadow);
    let Some(first) = group.iter().find(|mapping| mapping.weight.is_none()).or(group.first()) else {
        return shadows.first().map_or_else(Keys::default, |mapping| {
            let what = format!("Mapping {}", mapping.object.name);
            let why = "it is a shadow of no other Mapping, so it is closed";
            mapping.object.note(draft, &mapping.object.spec, &what, Became::Closed, why);
            closed(&mapping.matches)
        });
    };
    let mut route = first.matches.clone().joined(&first.route);
    if group.iter().any(|mapping| mapping.route.get("respond").is_some()) {
        return closed(&first.matches);
    }
    // One with groups takes the same requests, and a share may need them.
    if let Some(path) = group.iter().find_map(|mapping| mapping.route.get("path")) {
        route.set("path", path.clone());
    }
    let copies: Vec<Value> = shadows.iter().filter_map(copy).take(4).collect();
    if !copies.is_empty() {
        route.set("mirror", copies);
    }
    if route.get("redirect").is_some() {
        return route;
    }
    let given: u64 = group.iter().filter_map(|mapping| mapping.weight).sum::<u64>().min(100);
    let others = group.iter().filter(|mapping| mapping.weight.is_none()).count() as u64;
    let mut shares = Vec::new();
    for mapping in &group {
        let Some(to) = &mapping.to else { continue };
        // In hundredths, so that what is left can be shared.
        let weight = mapping.weight.map_or_else(|| (100 - given) * 100 / others.max(1), |weight| weight * 100);
        let mut share = json!({"cluster": to, "weight": weight});
        if mapping.route.get("rewrite") != first.route.get("rewrite") {
            share["rewrite"] = mapping.route.get("rewrite").cloned().unwrap_or_else(|| json!({}));
        }
        let rest = |mapping: &Mapping<'_>| {
            let mut keys = mapping.route.clone();
            keys.remove("rewrite");
            keys.remove("path");
            keys
        };
        if rest(mapping) != rest(first) {
            let why = format!("the settings of the route are those of Mapping {}", first.object.name);
            let what = format!("Mapping {}", mapping.object.name);
            mapping.object.note(draft, &mapping.object.spec, &what, Became::Different, &why);
        }
        shares.push(share);
    }
    let is_even = shares.iter().all(|share| share["weight"].as_u64().is_some_and(|weight| weight % 100 == 0));
    if is_even {
        for share in &mut shares {
            share["weight"] = json!(share["weight"].as_u64().unwrap_or(0) / 100);
        }
    }
    match &shares[..] {
        [only] if only["rewrite"].is_null() => route.set("to", only["cluster"].clone()),
        _ => route.set("to", shares),
    }
    route
}

/// The copies that a shadow gets: as many as its weight says.
fn copy(shadow: &Mapping<'_>) -> Option<Value> {
    let to = shadow.to.as_ref()?;
    match shadow.weight {
        Some(0) => None,
        Some(percent) => Some(json!({"to": to, "percent": percent.min(100)})),
        None => Some(json!({"to": to})),
    }
}
