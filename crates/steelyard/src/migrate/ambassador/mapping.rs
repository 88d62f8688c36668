//! One Mapping, and the route of Mappings that match the same requests.

use serde_json::{Value, json};

use super::super::draft::{Became, Draft, Keys, closed, literal, milliseconds, searched};
use super::super::tree::Node;
use super::Object;

/// A Mapping, read.
pub(super) struct Mapping<'t> {
    object: &'t Object<'t>,
    /// The conditions of a route.
    pub(super) matches: Keys,
    pub(super) precedence: i64,
    /// The letters of its prefix, and how many conditions it has.
    pub(super) length: usize,
    pub(super) conditions: usize,
    pub(super) bypasses_auth: bool,
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
    pub(super) fn of(object: &'t Object<'t>, draft: &mut Draft) -> Option<Self> {
        let spec = &object.spec;
        let prefix = spec.at("prefix");
        let Some(path) = prefix.text() else {
            draft.note(object.place(spec), &format!("Mapping {}", object.name), Became::Lost, "it has no prefix");
            return None;
        };
        let mut is_closed = false;
        for (key, value) in spec.entries() {
            let name = key.text().unwrap_or_default();
            if !KNOWN.contains(&name) && !NO_EFFECT.contains(&name) {
                let why = "it is not understood, so the Mapping is closed; remove it, or write what it does by hand";
                draft.note(object.place(key), name, Became::Closed, why);
                is_closed = true;
            }
            if name == "labels" && !value.is_null() {
                draft.note(object.place(key), name, Became::Lost, "write the descriptors of `global_rate_limit`");
            }
            if ["envoy_override", "regex_redirect", "keepalive", "host_regex"].contains(&name) {
                let is_harmless = name == "keepalive";
                let became = if is_harmless { Became::Lost } else { Became::Closed };
                is_closed |= !is_harmless;
                draft.note(object.place(key), name, became, "it has no equivalent");
            }
        }
        let (mut matches, is_known) = matches(object, path, draft);
        if !is_known {
            is_closed = true;
            matches.remove("path");
        }
        let conditions = matches.entries().count();
        let mut route = route_of(object, path, draft);
        let leads_nowhere = route.get("redirect").is_some();
        let to = (!leads_nowhere && !is_closed).then(|| cluster(object, draft)).flatten();
        if is_closed || to.is_none() && !leads_nowhere {
            route = Keys::default().with("respond", json!({"status": 403}));
        }
        Some(Self {
            object,
            matches,
            precedence: spec.at("precedence").text().and_then(|text| text.parse().ok()).unwrap_or(0),
            length: path.len(),
            conditions,
            bypasses_auth: spec.at("bypass_auth").is_true(),
            is_shadow: spec.at("shadow").is_true(),
            weight: spec.at("weight").number(),
            route,
            to,
        })
    }
}

/// The conditions of a Mapping, and whether all are understood.
fn matches(object: &Object<'_>, path: &str, draft: &mut Draft) -> (Keys, bool) {
    let spec = &object.spec;
    let mut keys = Keys::default();
    let mut is_known = true;
    let host = spec.at("hostname").text().or(spec.at("host").text()).unwrap_or("*");
    if !["*", ""].contains(&host) {
        keys.set("hosts", json!([host]));
        if host.trim_start_matches("*.").contains('*') {
            draft.note(
                object.place(spec.at("hostname")),
                "hostname",
                Became::Closed,
                "a host is a name, or `*.` in front of one",
            );
            keys.remove("hosts");
            is_known = false;
        }
    }
    let ignores_case = spec.at("case_sensitive").text() == Some("false");
    if spec.at("prefix_regex").is_true() {
        match searched(&format!("^{path}$"), ignores_case) {
            Some(regex) => keys.set("path", json!({"regex": regex})),
            None => {
                draft.note(
                    object.place(spec.at("prefix")),
                    "prefix",
                    Became::Closed,
                    "the expression looks around or refers back",
                );
                is_known = false;
            }
        }
    } else if spec.at("prefix_exact").is_true() {
        keys.set("path", json!({"exact": path}));
    } else if ignores_case {
        keys.set("path", json!({"regex": format!("(?i){}.*", super::super::draft::escaped(path))}));
    } else if path != "/" {
        if !path.ends_with('/') {
            let why = format!("a prefix ends at a segment: {path}x does not match");
            draft.note(object.place(spec.at("prefix")), "prefix", Became::Different, &why);
        }
        keys.set("path", path);
    }
    if let Some(method) = spec.at("method").text() {
        match spec.at("method_regex").is_true() {
            true => keys.set(
                "methods",
                method.split('|').map(|one| one.trim_matches(['(', ')', '^', '$']).to_owned()).collect::<Vec<_>>(),
            ),
            false => keys.set("methods", json!([method])),
        }
    }
    let is_known = values(object, &mut keys, draft) && is_known;
    (keys, is_known)
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
        for (name, value) in spec.at(from).entries() {
            let (name, value) = (name.text().unwrap_or_default(), value.text().unwrap_or_default());
            if name.starts_with(':') {
                draft.note(object.place(spec.at(from)), name, Became::Closed, "write `methods`, `hosts` or `path`");
                is_known = false;
                continue;
            }
            let condition = match (is_regex, value) {
                (false, "true" | "") => json!({"present": true}),
                (false, value) => json!(value),
                (true, value) => json!({"regex": value}),
            };
            keys.set_in(key, name, condition);
        }
    }
    is_known
}

/// What a Mapping does besides choosing a cluster.
fn route_of(object: &Object<'_>, path: &str, draft: &mut Draft) -> Keys {
    let spec = &object.spec;
    let mut route = Keys::default();
    if spec.at("host_redirect").is_true()
        || !spec.at("path_redirect").is_null()
        || !spec.at("prefix_redirect").is_null()
    {
        let mut to = json!({"status": spec.at("redirect_response_code").number().unwrap_or(301)});
        let service = spec.at("service").text().unwrap_or_default();
        let (scheme, host) = service.split_once("://").map_or((None, service), |(scheme, host)| (Some(scheme), host));
        if !host.is_empty() && host != "_" {
            to["host"] = json!(host.split(':').next());
            to["scheme"] = json!(scheme.unwrap_or("http"));
        }
        if let Some(path) = spec.at("path_redirect").text() {
            to["path"] = json!(literal(path));
        }
        if let Some(path) = spec.at("prefix_redirect").text() {
            to["path_prefix"] = json!(path);
        }
        return route.with("redirect", to);
    }
    let is_plain = !spec.at("prefix_regex").is_true()
        && !spec.at("prefix_exact").is_true()
        && spec.at("case_sensitive").text() != Some("false");
    let rewrite = spec.get("rewrite").map_or("/", |node| node.text().unwrap_or_default());
    let regex_rewrite = spec.at("regex_rewrite");
    if !regex_rewrite.is_null() {
        let why = "write a path with an expression, and `rewrite: {path: ...}` with its groups";
        draft.note(object.place(regex_rewrite), "regex_rewrite", Became::Lost, why);
    } else if !rewrite.is_empty() && is_plain && rewrite != path {
        match path {
            "/" => route.set("path", "/"),
            path if rewrite.ends_with('/') != path.ends_with('/') => {
                draft.note(
                    object.place(spec.at("prefix")),
                    "rewrite",
                    Became::Different,
                    "a new prefix ends at a segment, too",
                );
            }
            _ => {}
        }
        route.set_in("rewrite", "path_prefix", rewrite);
    }
    if let Some(host) = spec.at("host_rewrite").text() {
        route.set_in("rewrite", "host", host);
    }
    match spec.at("timeout_ms").number() {
        Some(0) => {}
        time => route.set("timeout", milliseconds(time.unwrap_or(3_000))),
    }
    policies(object, &mut route, draft);
    route
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
                other => draft.note(
                    object.place(retry),
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
            items.into_iter().map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
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
        for (name, value) in spec.at(&format!("add_{side}")).entries() {
            // `{value: x, append: false}`, or the text alone, which is appended.
            let text = value.at("value").text().or(value.text()).unwrap_or_default();
            if text.contains('%') {
                draft.note(
                    object.place(value),
                    name.text().unwrap_or_default(),
                    Became::Lost,
                    "write it with the variables of Steelyard",
                );
                continue;
            }
            let how = if value.at("append").text() == Some("false") { "set" } else { "add" };
            let name = name.text().unwrap_or_default();
            if let Err(why) = route.header(side, how, name, &literal(text)) {
                draft.note(object.place(value), name, Became::Different, why);
            }
        }
        let removed = spec.at(&format!("remove_{side}"));
        for name in removed.items().iter().filter_map(Node::text).chain(removed.text()) {
            if let Err(why) = route.header(side, "remove", name, "") {
                draft.note(object.place(removed), name, Became::Different, why);
            }
        }
    }
}

/// The cluster of a Mapping; `None` if it has none that can be reached.
fn cluster(object: &Object<'_>, draft: &mut Draft) -> Option<String> {
    let spec = &object.spec;
    let service = spec.at("service");
    let Some(text) = service.text().filter(|text| !text.is_empty()) else {
        draft.note(object.place(service), "service", Became::Closed, "the Mapping names no service");
        return None;
    };
    let (is_tls, authority) = match text.split_once("://") {
        Some((scheme, rest)) => (scheme == "https", rest.trim_end_matches('/')),
        None => (false, text),
    };
    let is_tls = is_tls || !spec.at("tls").is_null() && spec.at("tls").text() != Some("false");
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            (host, port.to_owned())
        }
        _ => (authority, if is_tls { "443" } else { "80" }.to_owned()),
    };
    // A name without dots is a Service of the Mapping's namespace.
    let full = match &object.namespace {
        Some(namespace) if !host.contains('.') && !host.contains(':') => format!("{host}.{namespace}"),
        _ => host.to_owned(),
    };
    let mut keys = Keys::default().with("endpoints", json!([format!("{full}:{port}")]));
    if spec.at("grpc").is_true() {
        keys.set("protocol", if is_tls { "h2" } else { "h2c" });
    }
    if is_tls {
        keys.set("tls", json!({"verify": false}));
        let why =
            "certificates of endpoints are not verified, as with Ambassador; remove `verify: false` to verify them";
        draft.note(object.place(service), "service", Became::Different, why);
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
        Some(other) => draft.note(object.place(balancer), other, Became::Lost, "endpoints are chosen in turn"),
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
            draft.note(
                object.place(breaker),
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
        return shadows.first().map(|mapping| closed(&mapping.matches)).unwrap_or_default();
    };
    let mut route = first.matches.clone().joined(&first.route);
    if group.iter().any(|mapping| mapping.route.get("respond").is_some()) {
        return closed(&first.matches);
    }
    let copies: Vec<Value> =
        shadows.iter().filter_map(|mapping| mapping.to.as_ref()).take(4).map(|to| json!({"to": to})).collect();
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
            keys
        };
        if rest(mapping) != rest(first) {
            let why = format!("the settings of the route are those of Mapping {}", first.object.name);
            let what = format!("Mapping {}", mapping.object.name);
            draft.note(mapping.object.place(&mapping.object.spec), &what, Became::Different, &why);
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

/// `external_auth` of an AuthService; `None` if it is not understood.
pub(super) fn auth(object: &Object<'_>, draft: &mut Draft) -> Option<Keys> {
    let spec = &object.spec;
    let service = spec.at("auth_service").text()?;
    let (is_tls, authority) = match service.split_once("://") {
        Some((scheme, rest)) => (scheme == "https", rest),
        None => (spec.at("tls").is_true(), service),
    };
    let authority = if authority.contains(':') { authority.to_owned() } else { format!("{authority}:80") };
    let is_grpc = spec.at("proto").text() == Some("grpc");
    let mut cluster = Keys::default().with("endpoints", json!([authority]));
    if is_grpc {
        cluster.set("protocol", if is_tls { "h2" } else { "h2c" });
    }
    if is_tls {
        cluster.set("tls", json!({"verify": false}));
    }
    let to = draft.cluster("auth", cluster);
    let mut auth = json!({"to": to, "timeout": milliseconds(spec.at("timeout_ms").number().filter(|time| *time > 0).unwrap_or(5_000))});
    if is_grpc {
        auth["grpc"] = json!({});
    } else {
        auth["http"] = match spec.at("path_prefix").text() {
            Some(prefix) if prefix.len() > 1 => json!({"prefix": prefix}),
            _ => json!({"prefix": "/"}),
        };
    }
    let names = |key: &str| spec.at(key).items().iter().filter_map(Node::text).map(str::to_owned).collect::<Vec<_>>();
    let passed = names("allowed_authorization_headers");
    if !passed.is_empty() {
        auth["response_headers"] = json!(passed);
    }
    if spec.at("failure_mode_allow").is_true() {
        auth["fail_open"] = json!(true);
    }
    if let Some(status) = spec.at("status_on_error").at("code").number() {
        auth["failure_status"] = json!(status);
    }
    let bytes = spec.at("include_body");
    if let Some(count) = bytes.at("max_bytes").number().filter(|count| *count > 0) {
        auth["body"] =
            json!({"bytes": format!("{}B", count.min(1 << 20)), "partial": bytes.at("allow_partial").is_true()});
    }
    draft.note(
        object.place(spec),
        &format!("AuthService {}", object.name),
        Became::Different,
        "the service gets all headers of a request",
    );
    Some(Keys::default().with("external_auth", auth))
}
