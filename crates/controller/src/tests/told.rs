//! A translation as text that a person can read and compare.

use std::fmt::Write;

use model::{
    Changes, Endpoint, EndpointAddress, ForwardedHeaders, HeaderChanges, HeaderNames, HostMatcher, Listener,
    ListenerLimits, Passthrough, PathMatcher, PathRules, Protocol, Retry, Route, RouteAction, Snapshot, TextMatcher,
    TlsMode, TlsVersion, Vip, VipMode, Zone,
};

use crate::objects::{Condition, GatewayStatus, ParentRef};
use crate::settings::Settings;
use crate::translate::{Desired, Translation};

/// Listeners with their routes, clusters and vips with their endpoints, conditions and notices, one per line.
pub(super) fn told(translation: &Translation) -> String {
    let snapshot = translation.snapshot(&Settings::default());
    let mut text = String::new();
    for listener in &snapshot.listeners {
        tell_listener(&mut text, listener, &snapshot);
    }
    for cluster in &snapshot.clusters {
        if cluster.name == "nowhere" {
            assert!(cluster.is_missing);
            continue;
        }
        let tls = cluster.tls.as_ref().map_or_else(String::new, |tls| {
            let ca = tls.ca.as_ref().map_or_else(|| "the host's".to_owned(), ToString::to_string);
            let mut text = format!(" tls={} ca={ca}", tls.server_name.as_deref().unwrap_or("-"));
            if !tls.verify {
                text.push_str(" unverified");
            }
            for name in &tls.subject_alt_names {
                let _ = write!(text, " {name:?}");
            }
            if let Some(certificate) = &tls.certificate {
                let _ = write!(text, " as [{}]", certificate.cert);
            }
            text
        });
        let proxy = cluster.send_proxy_protocol.map_or_else(String::new, |version| format!(" proxy={version:?}"));
        let missing = if cluster.is_missing { " not to be used" } else { "" };
        let own = differences(cluster, &model::Cluster { tls: cluster.tls.clone(), ..bare(cluster) });
        let _ = writeln!(text, "cluster {}{proxy}{tls}{missing}{own}{}", cluster.name, endpoints(&cluster.endpoints));
    }
    for vip in &snapshot.vips {
        tell_vip(&mut text, vip);
    }
    for ((_, name), desired) in &translation.statuses {
        tell_status(&mut text, &name.to_string(), desired);
    }
    for notice in &translation.notices {
        let _ = writeln!(text, "notice {:?} {}: {}: {}", notice.about.0, notice.about.1, notice.reason, notice.message);
    }
    text
}

fn tell_listener(text: &mut String, listener: &Listener, snapshot: &Snapshot) {
    let cluster = |id| &snapshot.cluster(id).name;
    let kind = match &listener.protocol {
        Protocol::Http(_) if listener.tls.is_some() => "https",
        Protocol::Http(_) => "http",
        Protocol::Tcp(_) => "tcp",
        Protocol::Tls(_) => "tls",
        Protocol::Capture(_) => "capture",
    };
    let _ = write!(text, "listener {} {kind}", listener.name);
    for certificate in listener.tls.iter().flat_map(|tls| &tls.certificates) {
        let _ = write!(text, " [{}]", certificate.cert);
    }
    // Which host has which of them, where it has not all.
    if let Some(tls) = &listener.tls {
        for own in tls.hosts.iter().filter(|own| own.certificates.len() < tls.certificates.len()) {
            let _ = write!(text, " {}={:?}", own.host, own.certificates);
        }
    }
    if let Some(asked) = listener.tls.as_ref().and_then(|tls| tls.client_ca.as_ref()) {
        let verified = if asked.verify { "" } else { " or not" };
        let noted = if asked.required { "" } else { " for routes" };
        let _ = write!(text, " clients of {} by {}{verified}{noted}", hosts(&asked.hosts), asked.ca);
        if let Some(crl) = &asked.crl {
            let _ = write!(text, " except {crl}");
        }
    }
    let isolated = match &listener.protocol {
        Protocol::Http(http) => http.isolated_hosts.as_slice(),
        Protocol::Tls(tls) => &tls.isolated_hosts,
        Protocol::Tcp(_) | Protocol::Capture(_) => &[],
    };
    if !isolated.is_empty() {
        let _ = write!(text, " for {}", isolated.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | "));
    }
    text.push_str(&clients(listener));
    if let Protocol::Http(http) = &listener.protocol {
        for Passthrough { sni, to, .. } in &*http.passthrough {
            let _ = write!(text, " passes {} to {}", hosts(sni), snapshot.clusters[to.0].name);
        }
    }
    match &listener.protocol {
        Protocol::Http(http) => {
            text.push('\n');
            for route in &*http.routes {
                let _ = writeln!(
                    text,
                    "  {}: {} -> {}{}",
                    route.name,
                    conditions(route),
                    target(route, snapshot),
                    policy(route, snapshot)
                );
            }
        }
        Protocol::Tcp(tcp) => {
            let _ = writeln!(text, " -> {}", cluster(tcp.to));
        }
        Protocol::Capture(_) => text.push('\n'),
        Protocol::Tls(tls) => {
            text.push('\n');
            for route in &tls.routes {
                let ends = if route.mode == TlsMode::Terminate { " ends" } else { "" };
                let _ = writeln!(text, "  {}{ends} -> {}", hosts(&route.sni), cluster(route.to));
            }
        }
    }
}

/// How clients are treated, where it is not the default.
fn clients(listener: &Listener) -> String {
    let mut text = String::new();
    if listener.accept_proxy_protocol {
        text.push_str(" proxy-protocol");
    }
    if let Some(connections) = listener.client_limits.connections_max {
        let _ = write!(text, " connections-per-client={connections}");
    }
    if let Some(rate) = &listener.client_limits.requests {
        let _ = write!(text, " requests-per-client={}/{:?}", rate.requests, rate.per);
    }
    let limits = &listener.client_limits;
    for (name, of) in [("request", &limits.request_bandwidth), ("response", &limits.response_bandwidth)] {
        if let Some(of) = of {
            let _ = write!(text, " {name}-bandwidth={}/{:?}+{}", of.bytes, of.per, of.burst);
        }
    }
    if listener.connections_max != 65_536 {
        let _ = write!(text, " connections={}", listener.connections_max);
    }
    if listener.tls.as_ref().is_some_and(|tls| tls.min_version != TlsVersion::V1_2) {
        text.push_str(" tls>=1.3");
    }
    match &listener.protocol {
        Protocol::Http(http) => {
            for network in &http.trusted_proxies {
                let _ = write!(text, " trusts={network}");
            }
            if http.forwarded != ForwardedHeaders::XForwarded {
                let _ = write!(text, " {:?}", http.forwarded);
            }
            if http.x_real_ip {
                text.push_str(" x-real-ip");
            }
            if !http.http2 {
                text.push_str(" http/1");
            }
            if http.header_names != HeaderNames::Any {
                let _ = write!(text, " names={:?}", http.header_names);
            }
            if let Some(id) = &http.request_id {
                let _ = write!(text, " {id:?}");
            }
            if http.paths != PathRules::default() {
                let _ = write!(text, " {:?}", http.paths);
            }
            let (found, usual) = (format!("{:?}", http.limits), format!("{:?}", ListenerLimits::default()));
            for (found, _) in found.split(", ").zip(usual.split(", ")).filter(|(found, usual)| found != usual) {
                let _ = write!(text, " {}", found.trim_start_matches("ListenerLimits { ").trim_end_matches(" }"));
            }
        }
        Protocol::Tcp(tcp) if tcp.idle_timeout.as_secs() != 3600 => {
            let _ = write!(text, " idle={:?}", tcp.idle_timeout);
        }
        Protocol::Tls(tls) if tls.idle_timeout.as_secs() != 3600 || tls.hello_timeout.as_secs() != 10 => {
            let _ = write!(text, " hello={:?} idle={:?}", tls.hello_timeout, tls.idle_timeout);
        }
        Protocol::Tcp(_) | Protocol::Tls(_) | Protocol::Capture(_) => {}
    }
    text
}

fn target(route: &Route, snapshot: &Snapshot) -> String {
    match &route.to {
        RouteAction::Clusters(clusters) => {
            let one = |of: &model::WeightedCluster| {
                let own = of.changes.as_ref().map_or_else(String::new, |own| format!("{{{}}}", changes(own).trim()));
                match clusters.len() {
                    1 => format!("{}{own}", snapshot.cluster(of.cluster).name),
                    _ => format!("{}={}{own}", snapshot.cluster(of.cluster).name, of.weight),
                }
            };
            clusters.iter().map(one).collect::<Vec<_>>().join(",")
        }
        RouteAction::Redirect(to) => format!("{to:?}"),
        RouteAction::Respond(to) => format!("{to:?}"),
    }
}

fn retries(text: &mut String, retry: &Retry) {
    if let Some(timeout) = retry.per_try_timeout {
        let _ = write!(text, " each within {timeout:?}");
    }
    if retry.same_endpoint {
        let Retry { attempts, on_statuses, on_timeout, backoff, .. } = retry;
        let _ = write!(text, " retry {attempts} on{on_statuses:?} timeout={on_timeout} after {backoff:?}");
        if let Some(within) = retry.within {
            let _ = write!(text, " within {within:?}");
        }
    }
}

/// What other clusters do for the route.
fn other_clusters(route: &Route, snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for mirror in &route.policy.mirrors {
        let only = mirror.only.map_or_else(String::new, |place| format!("@{place}"));
        let host = mirror.host.as_ref().map_or_else(String::new, |host| format!(" as {host}"));
        let _ = write!(text, " mirror={}*{}{only}{host}", snapshot.cluster(mirror.to).name, mirror.share);
    }
    if let Some(errors) = &route.policy.intercept_errors {
        let to = errors.to.map_or("-", |to| snapshot.cluster(to).name.as_str());
        let own = if errors.of_endpoints { "" } else { " of its own" };
        let _ = write!(text, " errors{:?}{own}={to}{} {:?}", errors.statuses, errors.path, errors.request_headers.set);
    }
    if let Some(fallback) = &route.policy.fallback {
        let to = &snapshot.cluster(fallback.to).name;
        let _ = write!(text, " fallback={to} {:?}", fallback.request_headers.set);
    }
    text
}

fn asks(text: &mut String, service: &model::ExternalAuth, snapshot: &Snapshot) {
    let model::ExternalAuth { protocol, request_headers, response_headers, body, cache, sign_in, .. } = service;
    let name = &snapshot.cluster(service.to).name;
    let _ = write!(text, " asks {name} {protocol:?} with {request_headers:?} for {response_headers:?}");
    if let Some(body) = body {
        let _ = write!(text, " body<={}", body.bytes_max);
    }
    if let Some(cache) = cache {
        let _ = write!(text, " {cache:?}");
    }
    if let Some(page) = sign_in {
        let _ = write!(text, " {page:?}");
    }
}

/// The settings that are not the default.
fn policy(route: &Route, snapshot: &Snapshot) -> String {
    let route = &but_server(route);
    let mut text = other_clusters(route, snapshot);
    text.push_str(&changes(&route.policy.changes));
    let own = &route.policy.own_headers;
    if !own.is_empty() {
        let _ = write!(text, " own set{:?} add{:?} remove{:?}", own.set, own.add, own.remove);
    }
    if let Some(rewrite) = &route.policy.response_rewrite {
        let _ = write!(text, " {rewrite:?}");
    }
    if let Some(tracing) = &route.policy.tracing {
        let _ = write!(text, " {tracing:?}");
    }
    if route.policy.is_unlogged {
        text.push_str(" unlogged");
    }
    retries(&mut text, &route.policy.retry);
    if let Some(cors) = &route.policy.cors {
        let _ = write!(text, " {cors:?}");
    }
    if let Some(auth) = &route.policy.auth {
        let _ = write!(text, " {auth:?}");
    }
    if let Some(service) = &route.policy.external_auth {
        asks(&mut text, service, snapshot);
    }
    if let Some(service) = &route.policy.global_rate_limit {
        let model::GlobalRateLimit { domain, descriptors, fail_open, .. } = &**service;
        let name = &snapshot.cluster(service.to).name;
        let entry = |entry: &model::DescriptorEntry| format!("{}={:?}", entry.key, entry.source);
        let all: Vec<String> =
            descriptors.iter().map(|entries| entries.iter().map(entry).collect::<Vec<_>>().join("+")).collect();
        let _ = write!(text, " counts at {name} {domain} {}{}", all.join(","), if *fail_open { " open" } else { "" });
    }
    if route.policy.satisfy == model::Satisfy::Any {
        text.push_str(" any of");
    }
    if let Some(rule) = &route.policy.client_cert {
        let _ = write!(text, " {rule:?}");
    }
    for (what, networks) in [("allow", &route.policy.addresses.allow), ("deny", &route.policy.addresses.deny)] {
        if !networks.is_empty() {
            let _ = write!(text, " {what}{networks:?}");
        }
    }
    if let Some(model::RateLimit { requests, per, by, burst, also, headers, terms }) = &route.policy.rate_limit {
        let _ = write!(
            text,
            " RateLimit {{ requests: {requests}, per: {per:?}, by: {by:?}, burst: {burst}, headers: {headers:?} }}"
        );
        for rate in also {
            let _ = write!(text, " and {} in {:?}, {} at once", rate.requests, rate.per, rate.burst);
        }
        told_terms(&mut text, terms);
    }
    if let Some(limit) = &route.policy.concurrency_limit {
        let _ = write!(text, " at once {} by {:?}", limit.requests, limit.by);
        told_terms(&mut text, &limit.terms);
    }
    if let Some(model::ResponseBandwidth { bytes, per, after }) = &route.policy.response_bandwidth {
        let _ = write!(text, " responses {bytes}B/{per:?} after {after}B");
    }
    if route.policy.maintenance {
        text.push_str(" maintenance");
    }
    if !route.policy.error_pages.is_empty() {
        let _ = write!(text, " {:?}", route.policy.error_pages);
    }
    text
}

/// The terms of a limit that are not the default.
fn told_terms(text: &mut String, terms: &model::LimitTerms) {
    let model::LimitTerms { except, status, group } = terms;
    if *terms != model::LimitTerms::default() {
        let _ = write!(text, " status={status}");
    }
    if !except.is_empty() {
        let _ = write!(text, " except{except:?}");
    }
    if let Some(group) = group {
        let _ = write!(text, " group={group}");
    }
}

/// A cluster without settings, at the same endpoints.
fn bare(cluster: &model::Cluster) -> model::Cluster {
    model::Cluster {
        is_missing: cluster.is_missing,
        protocol: cluster.protocol,
        send_proxy_protocol: cluster.send_proxy_protocol,
        ..model::Cluster::new(cluster.name.clone(), cluster.endpoints.clone())
    }
}

/// The parts of a cluster that are not the usual ones, each with its name.
fn differences(found: &model::Cluster, usual: &model::Cluster) -> String {
    let mut text = String::new();
    let mut note = |name: &str, found: String, usual: String| {
        if found != usual {
            let _ = write!(text, " {name}={found}");
        }
    };
    macro_rules! compare {
        ($($field:ident),*) => {
            $(note(stringify!($field), format!("{:?}", found.$field), format!("{:?}", usual.$field));)*
        };
    }
    compare!(algorithm);
    note("sticky", session(found.sticky.as_ref()), session(None));
    compare!(
        health_check,
        outlier,
        panic_threshold,
        slow_start,
        limits,
        connect_timeout,
        response_timeout,
        idle_timeout,
        ping,
        idle_connections_max,
        outside
    );
    text
}

/// A session. What has its default is left out.
fn session(sticky: Option<&model::Sticky>) -> String {
    let Some(model::Sticky { token, ttl, secret, scope, ingress_nginx }) = sticky else { return "None".to_owned() };
    let mut text = format!("Some(Sticky {{ token: {token:?}, ttl: {ttl:?}, secret: {secret:?} }})");
    if *scope != model::CookieScope::default() {
        let _ = write!(text, " {scope:?}");
    }
    if let Some(sessions) = ingress_nginx {
        let _ = write!(text, " {sessions:?}");
    }
    text
}

/// All routes of ingress-nginx remove `Server`, which `no_server_of_an_endpoint_reaches_clients` tests; the tables leave it out.
fn but_server(route: &Route) -> Route {
    let mut route = route.clone();
    if route.name.starts_with("ingress/") {
        let strip = |changes: &mut HeaderChanges| changes.remove.retain(|name| name != "server");
        strip(&mut route.policy.own_headers);
        route.for_each_changes(|changes| strip(&mut changes.response_headers));
    }
    route
}

fn changes(changes: &Changes) -> String {
    let mut text = String::new();
    for (what, changes) in [("request", &changes.request_headers), ("response", &changes.response_headers)] {
        if !changes.is_empty() {
            let _ = write!(text, " {what} set{:?} add{:?} remove{:?}", changes.set, changes.add, changes.remove);
        }
    }
    if let Some(host) = &changes.rewrite.host {
        let _ = write!(text, " host={host}");
    }
    if let Some(path) = &changes.rewrite.path {
        let _ = write!(text, " path={path:?}");
    }
    text
}

fn hosts(hosts: &[HostMatcher]) -> String {
    let one = |host: &HostMatcher| match host {
        HostMatcher::OneLabel(domain) => format!("?.{domain}"),
        host => host.to_string(),
    };
    if hosts.is_empty() { "*".to_owned() } else { hosts.iter().map(one).collect::<Vec<_>>().join(",") }
}

fn conditions(route: &Route) -> String {
    let path = match &route.path {
        PathMatcher::Prefix(path) => format!("{path}*"),
        PathMatcher::Exact(path) => format!("={path}"),
        PathMatcher::Regex(regex) => format!("~{regex}"),
    };
    let mut text = format!("{} {path}", hosts(&route.hosts));
    for method in &route.methods {
        let _ = write!(text, " {method}");
    }
    for (sign, matchers) in [("", &route.headers), ("?", &route.query)] {
        for matcher in matchers {
            let value = match &matcher.value {
                TextMatcher::Exact(value) => format!("={value}"),
                TextMatcher::Regex(regex) => format!("~{regex}"),
                TextMatcher::JoinedRegex(regex) => format!("~joined {regex}"),
                TextMatcher::Present => String::new(),
            };
            let _ = write!(text, " {sign}{}{value}", matcher.name);
        }
    }
    if let Some(timeout) = route.timeout {
        let _ = write!(text, " within {timeout:?}");
    }
    text
}

fn endpoints(endpoints: &[Endpoint]) -> String {
    let one = |endpoint: &Endpoint| {
        let zone = match endpoint.zone {
            Zone::Unknown => "",
            Zone::Own => "@own",
            Zone::Other => "@other",
        };
        match (&endpoint.address, endpoint.weight) {
            (EndpointAddress::Socket(address), 1) => format!(" {address}{zone}"),
            (EndpointAddress::Socket(address), weight) => format!(" {address}={weight}{zone}"),
            (EndpointAddress::Name { host, port }, _) => format!(" {host}:{port}{zone}"),
            (EndpointAddress::Service { name }, _) => format!(" {name}{zone}"),
        }
    };
    endpoints.iter().map(one).collect()
}

fn tell_vip(text: &mut String, vip: &Vip) {
    let mode = match &vip.mode {
        VipMode::Nat => "nat",
        VipMode::FullNat { .. } => "full_nat",
        VipMode::Dsr => "dsr",
        VipMode::Local => "local",
        VipMode::Socket => "socket",
    };
    let on = if vip.interfaces.is_empty() { "routes".to_owned() } else { vip.interfaces.join(",") };
    let _ = write!(text, "vip {} {mode} on {on}", vip.name);
    if let Some(affinity) = vip.affinity {
        let _ = write!(text, " affinity={affinity:?}");
    }
    for (what, networks) in [("allow", &vip.allow), ("deny", &vip.deny)] {
        for network in networks {
            let _ = write!(text, " {what}={network}");
        }
    }
    let sockets = if vip.at_sockets { "" } else { " not at sockets" };
    let of_node = if vip.is_of_node { " of this node" } else { "" };
    let _ = writeln!(text, "{sockets}{of_node}{}", endpoints(&vip.endpoints));
}

fn tell_status(text: &mut String, name: &str, desired: &Desired) {
    match desired {
        Desired::Class(status) => {
            let _ = writeln!(text, "class {name}{}", said(&status.conditions));
        }
        Desired::Gateway(status) => tell_gateway(text, name, status),
        Desired::Route(parents) => {
            let _ = writeln!(text, "route {name}");
            for parent in parents {
                let _ = writeln!(text, "  {}{}", reference(&parent.parent_ref), said(&parent.conditions));
            }
        }
        Desired::Policy(ancestors) => {
            let _ = writeln!(text, "policy {name}");
            for ancestor in ancestors {
                let _ = writeln!(text, "  {}{}", reference(&ancestor.ancestor_ref), said(&ancestor.conditions));
            }
        }
        Desired::Ingress(addresses) => {
            let _ = writeln!(text, "ingress {name} at {}", addresses.join(","));
        }
        Desired::Service(addresses) => {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            let _ = writeln!(text, "service {name} at {}", addresses.join(","));
        }
    }
}

fn tell_gateway(text: &mut String, name: &str, status: &GatewayStatus) {
    let addresses: Vec<&str> = status.addresses.iter().filter_map(|address| address.value.as_deref()).collect();
    let sets = status.attached_listener_sets.map_or_else(String::new, |sets| format!(" sets={sets}"));
    let _ = writeln!(text, "gateway {name} at {}{sets}{}", addresses.join(","), said(&status.conditions));
    for listener in &status.listeners {
        let kinds: Vec<&str> = listener.supported_kinds.iter().map(|kind| kind.kind.as_str()).collect();
        let (name, attached) = (&listener.name, listener.attached_routes);
        let _ = writeln!(text, "  {name} {} attached={attached}{}", kinds.join(","), said(&listener.conditions));
    }
}

fn reference(parent: &ParentRef) -> String {
    let mut text =
        parent.kind.as_deref().filter(|kind| *kind != "Gateway").map_or_else(String::new, |kind| format!("{kind} "));
    for part in [parent.namespace.as_deref().map(|namespace| format!("{namespace}/")), Some(parent.name.to_string())] {
        text.push_str(&part.unwrap_or_default());
    }
    for part in
        [parent.section_name.as_ref().map(|section| format!("#{section}")), parent.port.map(|port| format!(":{port}"))]
    {
        text.push_str(&part.unwrap_or_default());
    }
    text
}

/// A condition that holds is shown as its kind, or as `kind(reason: message)` if it has a reason of its own; one that does not hold as
/// `!kind(reason: message)`.
fn said(conditions: &[Condition]) -> String {
    let one = |condition: &Condition| {
        assert_ne!(condition.observed_generation, 0, "{condition:?}");
        let (kind, reason, message) = (&condition.kind, &condition.reason, &condition.message);
        match (condition.is_true(), kind == reason) {
            (true, true) => format!(" {kind}"),
            (true, false) => format!(" {kind}({reason}: {message})"),
            // No conflict is the normal case.
            (false, _) if kind == "Conflicted" => String::new(),
            (false, _) => format!(" !{kind}({reason}: {message})"),
        }
    };
    conditions.iter().map(one).collect()
}
