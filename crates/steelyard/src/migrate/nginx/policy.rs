//! Who may use a location, how often, and the headers that it changes.

use std::collections::HashSet;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::super::draft::{Became, Keys, literal};
use super::Making;
use super::parse::Directive;
use super::server::{Of, size};

/// A limit and its further rates.
const RATES_MAX: usize = 5;

/// The largest number of addresses in the lists of all locations together: each location repeats those of what is around it.
const NETWORKS_MAX: usize = 200_000;

impl<'d> Making<'d, '_> {
    /// The policies of a location; if all is denied, its answer.
    ///
    /// # Errors
    /// Something that keeps somebody out is not understood; the notes say what.
    pub(super) fn policies(&mut self, of: &Of<'d, '_>) -> Result<Keys, ()> {
        let mut keys = Keys::default();
        let scope = &of.scope;
        let mut close = |one: &Directive, why: &str| {
            self.draft.note(one.place(), &one.told(), Became::Closed, why);
            Err(())
        };
        let satisfy = scope.last("satisfy").filter(|one| one.arg(0) != "all");
        if let Some(one) = satisfy.filter(|one| one.arg(0) != "any") {
            return close(one, "it is neither all nor any, so the location is closed");
        }
        if let Some(one) = scope.last("ssl_verify_client").filter(|one| !["on", "off"].contains(&one.arg(0))) {
            let mode = match one.arg(0) {
                "optional" => "optional",
                "optional_no_ca" => "unsigned",
                _ => return close(one, "its value is not understood, so the location is closed"),
            };
            if !of.is_tls || !self.optional_certs {
                let why = "other servers of the port demand certificates, or there is no TLS or no CA, so the location is closed; write `client_cert`";
                return close(one, why);
            }
            keys.set("client_cert", json!({"mode": mode}));
        }
        if let Some(one) = scope.last("ssl_verify_client").filter(|one| one.arg(0) == "on" && !of.is_tls) {
            return close(one, "there is no TLS at this port, so the location is closed");
        }
        let access = scope.all(&["allow", "deny"]);
        if let (Some(one), Some((_, why))) = (access.first(), self.unclear) {
            return close(one, &format!("the address of a client is not known here, so the location is closed: {why}"));
        }
        self.networks = self.networks.saturating_add(access.len());
        if let (Some(one), true) = (access.first(), self.networks > NETWORKS_MAX) {
            return close(
                one,
                "there are too many addresses in all, so the location is closed; write them for the listener",
            );
        }
        let is_all = |all: &[IpNet]| all.iter().any(|network| network.prefix_len() == 0);
        match networks(&access) {
            Ok(Some(Access { allow, deny })) => {
                if allow.is_empty() && deny.iter().any(|network| network.prefix_len() == 0) && satisfy.is_none() {
                    return Ok(keys.with("respond", json!({"status": 403})));
                }
                let told = |all: &[IpNet]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
                if !allow.is_empty() {
                    keys.set("allow", told(&allow));
                }
                if !(deny.is_empty() || satisfy.is_some() && allow.is_empty() && is_all(&deny)) {
                    keys.set("deny", told(&deny));
                }
            }
            Ok(None) => {}
            Err(one) => return close(one, "it is no address and no network, so the location is closed"),
        }
        self.basic(of, &mut keys)?;
        self.asked(of, &mut keys)?;
        if let Some(one) = satisfy {
            self.satisfy(one, &access, &mut keys)?;
        }
        self.rate(of, &mut keys);
        self.concurrency(of, &mut keys);
        Ok(keys)
    }

    /// `satisfy any`: one proof is enough.
    fn satisfy(&mut self, one: &Directive, access: &[&Directive], keys: &mut Keys) -> Result<(), ()> {
        let proofs = ["allow", "auth", "external_auth"].iter().filter(|key| keys.get(key).is_some()).count();
        if proofs == 0 && !access.is_empty() {
            let why = "nothing is left that a client could prove, so the location is closed; write `satisfy: any` of the route";
            self.draft.note(one.place(), &one.told(), Became::Closed, why);
            return Err(());
        }
        if proofs > 1 {
            keys.set("satisfy", "any");
        }
        if proofs > 0 && access.iter().any(|one| one.name == "deny" && one.arg(0) != "all") {
            let why = "an address in `deny` stays out, whatever else the client can prove";
            self.draft.note(one.place(), &one.told(), Became::Different, why);
        }
        Ok(())
    }

    fn basic(&mut self, of: &Of<'d, '_>, keys: &mut Keys) -> Result<(), ()> {
        let Some(basic) = of.scope.last("auth_basic").filter(|one| one.arg(0) != "off") else { return Ok(()) };
        let file = of.scope.last("auth_basic_user_file").map(|one| one.arg(0));
        match file {
            Some(file) if !file.contains('$') && !basic.arg(0).contains('$') => {
                // nginx passes the password on.
                keys.set("auth", json!({"basic": {"realm": basic.arg(0), "file": file, "forward": true}}));
                Ok(())
            }
            _ => {
                let why =
                    "the realm or the file is not known, so the location is closed; write `auth: {basic: {file: ...}}`";
                self.draft.note(basic.place(), &basic.told(), Became::Closed, why);
                Err(())
            }
        }
    }

    fn rate(&mut self, of: &Of<'d, '_>, keys: &mut Keys) {
        let mut rates: Vec<Value> = Vec::new();
        let mut zones: Vec<(&'d str, &'d Directive)> = Vec::new();
        for one in of.scope.all(&["limit_req"]) {
            let value = |name: &str| one.args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='));
            let zone = value("zone").and_then(|zone| self.zones.get(zone)).copied();
            match zone {
                Some(zone) if zone.is_by_address && rates.len() < RATES_MAX => {
                    let burst =
                        value("burst").and_then(|burst| burst.parse::<u64>().ok()).unwrap_or(0).min(999_999) + 1;
                    let is_same = |rate: &&mut Value| rate["requests"] == zone.requests && rate["per"] == zone.per;
                    match rates.iter_mut().find(is_same) {
                        // Of two zones with one rate, the smaller burst decides.
                        Some(same) => same["burst"] = json!(same["burst"].as_u64().unwrap_or(burst).min(burst)),
                        None => rates.push(json!({"requests": zone.requests, "per": zone.per, "burst": burst})),
                    }
                    zones.push((value("zone").unwrap_or_default(), one));
                    if !one.args.iter().any(|arg| arg == "nodelay") {
                        let why = "no request waits: one above the limit is refused";
                        self.draft.note(one.place(), &one.told(), Became::Different, why);
                    }
                }
                _ => {
                    let why = "a limit is by the address of the client or a header, with at most five rates: write `rate_limit`";
                    self.draft.note(one.place(), &one.told(), Became::Lost, why);
                }
            }
        }
        let mut rates = rates.into_iter();
        let Some(mut limit) = rates.next() else { return };
        let also: Vec<Value> = rates.collect();
        if !also.is_empty() {
            limit["also"] = json!(also);
        }
        let group = self.counted_together(&zones, &limit);
        limit["status"] = json!(status(of, "limit_req_status"));
        if let Some(group) = group {
            limit["group"] = json!(group);
        }
        keys.set("rate_limit", limit);
    }

    /// The group of a limit: requests of all locations with the same zones and bursts count together.
    fn counted_together(&mut self, zones: &[(&'d str, &'d Directive)], limit: &Value) -> Option<String> {
        let group = zones.iter().map(|(zone, _)| *zone).collect::<Vec<_>>().join("_");
        let is_group = is_group(&group);
        let counts = format!("{group} {limit}");
        for (zone, one) in zones {
            let first = self.counted.entry(zone).or_insert_with(|| counts.clone());
            if !is_group {
                let why = "each route counts on its own: write `group` of `rate_limit`";
                self.draft.note(one.place(), &one.told(), Became::Different, why);
            } else if *first != counts {
                let why = "another location has this zone with another burst, or beside another zone; each of the two counts on its own";
                self.draft.note(one.place(), &one.told(), Became::Different, why);
            }
        }
        is_group.then_some(group)
    }

    /// `limit_conn`. Requests of all locations with the same zone and the same number count together.
    fn concurrency(&mut self, of: &Of<'d, '_>, keys: &mut Keys) {
        for one in of.scope.all(&["limit_conn"]) {
            let (zone, requests) =
                (one.arg(0), one.arg(1).parse::<u64>().ok().filter(|count| (1..=1_000_000).contains(count)));
            match requests.filter(|_| self.counts.contains(zone) && keys.get("concurrency_limit").is_none()) {
                Some(requests) => {
                    let status = status(of, "limit_conn_status");
                    let mut limit = json!({"requests": requests, "status": status});
                    if is_group(zone) {
                        limit["group"] = json!(zone);
                    }
                    keys.set("concurrency_limit", limit);
                }
                None => {
                    let why = "a route has one limit of requests at once, by the address of the client or a header: write `concurrency_limit`";
                    self.draft.note(one.place(), &one.told(), Became::Lost, why);
                }
            }
        }
    }

    /// `limit_rate`, which holds for what nginx buffers. It counts from the beginning of a second, so the first one's bytes go at once.
    pub(super) fn bandwidth(&mut self, of: &Of<'d, '_>, keys: &mut Keys) {
        let Some(one) = of.scope.last("limit_rate").filter(|one| one.arg(0) != "0") else { return };
        let after = of.scope.last("limit_rate_after").map_or(Some(0), |one| size(one.arg(0)));
        if of.scope.last("proxy_buffering").is_some_and(|one| one.arg(0) == "off") {
            let why = "nginx slows down only what it buffers, and proxy_buffering is off";
            return self.draft.note(one.place(), &one.told(), Became::Different, why);
        }
        match (size(one.arg(0)), after) {
            (Some(rate @ 1024..), Some(after)) => {
                let text = |bytes: u64| format!("{}B", bytes.min(1 << 40));
                keys.set("response_bandwidth", json!({"bytes": text(rate), "after": text(after.saturating_add(rate))}));
            }
            _ => {
                let why = "a rate is a number of bytes, at least 1k: write `response_bandwidth`";
                self.draft.note(one.place(), &one.told(), Became::Lost, why);
            }
        }
    }

    /// The headers that a proxied location changes. `authority` is that of its endpoints.
    pub(super) fn headers(&mut self, of: &Of<'d, '_>, authority: &str, route: &mut Keys) {
        let mut host = Some(authority.to_owned());
        // These come from the service of `auth_request`.
        let passed = passed_on(&of.scope.all(&["auth_request_set"]), &of.scope.all(&["proxy_set_header"]));
        for one in of.scope.all(&["proxy_set_header", "grpc_set_header"]) {
            let (name, value) = (one.arg(0), of.scope.resolved(one.arg(1)));
            if name.eq_ignore_ascii_case("host") {
                host = match value.as_str() {
                    "$host" | "$http_host" | "$host:$server_port" | "$server_name" => None,
                    "$proxy_host" => Some(authority.to_owned()),
                    value if value.contains('$') => {
                        let why =
                            "the endpoint gets the client's Host: only that, a text and $proxy_host are understood";
                        self.draft.note(one.place(), &one.told(), Became::Different, why);
                        None
                    }
                    value => Some(value.to_owned()),
                };
                continue;
            }
            if !passed.iter().any(|passed| passed.eq_ignore_ascii_case(name)) {
                self.request_header(one, name, &value, (of.is_tls, &mut *route));
            }
        }
        if let Some(host) = host {
            route.set_in("rewrite", "host", host);
        }
        for one in of.scope.all(&["add_header"]) {
            let value = of.scope.resolved(one.arg(1));
            if value.contains('$') || value.is_empty() {
                self.draft.note(one.place(), &one.told(), Became::Lost, "its value is not understood");
            } else {
                self.header(one, route, ("response_headers", "add", one.arg(0)), &value);
            }
        }
        for one in of.scope.all(&["proxy_hide_header"]) {
            let is_changed = route.get("response_headers").is_some_and(|all| all["add"][one.arg(0)].is_string());
            if !is_changed {
                self.header(one, route, ("response_headers", "remove", one.arg(0)), "");
            }
        }
    }

    fn header(&mut self, one: &Directive, route: &mut Keys, (side, how, name): (&str, &str, &str), value: &str) {
        if let Err(why) = route.header(side, how, name, value) {
            self.draft.note(one.place(), &one.told(), Became::Different, why);
        }
    }

    /// Notes a header that nginx passes on as the client sent it, and that Steelyard writes itself.
    pub(super) fn forwarded(&mut self, one: &Directive, lower: &str, value: &str) {
        let is_own = ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"].contains(&lower);
        if is_own && value.starts_with("$http_x_forwarded_") {
            let why = "what clients send in it is replaced, unless they are in `trusted_proxies`: list the proxies in front there";
            self.draft.note(one.place(), &one.told(), Became::Different, why);
        }
    }

    fn request_header(&mut self, one: &Directive, name: &str, value: &str, (is_tls, route): (bool, &mut Keys)) {
        let lower = name.to_ascii_lowercase();
        let mut set = |route: &mut Keys, value: &str| self.header(one, route, ("request_headers", "set", name), value);
        match (lower.as_str(), value) {
            ("x-forwarded-for", "$proxy_add_x_forwarded_for") => {
                let why = "what clients send in it is replaced, unless they are in `trusted_proxies`";
                self.draft.note(one.place(), &one.told(), Became::Different, why);
            }
            (lower, value) if is_usual(lower, value) => self.forwarded(one, lower, value),
            (_, "") => self.header(one, route, ("request_headers", "remove", name), ""),
            (_, "$remote_addr" | "$realip_remote_addr" | "$binary_remote_addr") => set(route, "${client_ip}"),
            (_, "$remote_port") => set(route, "${client_port}"),
            (_, "$ssl_client_s_dn") => set(route, "${client_cert_subject}"),
            (_, "$ssl_client_escaped_cert") => set(route, "${client_cert_pem}"),
            (_, "$ssl_server_name") => set(route, "${sni}"),
            (_, "$ssl_protocol") => set(route, "${tls_version}"),
            (_, "$scheme") => set(route, if is_tls { "https" } else { "http" }),
            (_, value) if value.contains('$') => {
                // A client could write it otherwise, and the endpoint relies on it.
                self.header(one, route, ("request_headers", "remove", name), "");
                let why = "its value is not understood, so the endpoint does not get it; the variables of Steelyard are in its manual";
                self.draft.note(one.place(), &one.told(), Became::Lost, why);
            }
            (_, value) => set(route, &literal(value)),
        }
    }
}

/// Whether a header has this value anyway: it is the client's, or Steelyard makes it. Upgrades pass, and connections are Steelyard's.
pub(super) fn is_usual(lower: &str, value: &str) -> bool {
    match (lower, value) {
        ("upgrade" | "connection" | "keep-alive" | "te" | "transfer-encoding" | "content-length", _)
        | ("x-forwarded-for", "$remote_addr" | "$proxy_add_x_forwarded_for")
        | ("x-forwarded-proto", "$scheme")
        | ("x-forwarded-host", "$host" | "$http_host") => true,
        (lower, value) => value == format!("$http_{}", lower.replace('-', "_")),
    }
}

/// Whether a text can be the name of a group.
fn is_group(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// What a request above a limit is answered. nginx takes no other statuses.
fn status(of: &Of<'_, '_>, name: &str) -> u64 {
    let status = of.scope.last(name).and_then(|one| one.arg(0).parse().ok());
    status.filter(|status| (400..=599).contains(status)).unwrap_or(503)
}

struct Access {
    allow: Vec<IpNet>,
    deny: Vec<IpNet>,
}

/// The lists of `allow` and `deny`. There the first entry that has an address decides, and here the longest: an entry within an earlier one has
/// no effect there, and is left out.
fn networks<'d>(all: &[&'d Directive]) -> Result<Option<Access>, &'d Directive> {
    let mut seen: HashSet<IpNet> = HashSet::new();
    let is_within = |seen: &HashSet<IpNet>, network: IpNet| {
        let mut around = std::iter::successors(Some(network.trunc()), IpNet::supernet);
        around.any(|network| seen.contains(&network))
    };
    let mut access = Access { allow: Vec::new(), deny: Vec::new() };
    for one in all {
        let text = one.arg(0);
        let parsed: Vec<IpNet> = match text {
            "all" => ["0.0.0.0/0", "::/0"].iter().filter_map(|text| text.parse().ok()).collect(),
            "unix:" => continue,
            text => {
                let network = text.parse().ok().or_else(|| Some(IpNet::from(text.parse::<std::net::IpAddr>().ok()?)));
                vec![network.ok_or(*one)?]
            }
        };
        for network in parsed {
            if is_within(&seen, network) {
                continue;
            }
            seen.insert(network.trunc());
            let list = if one.name == "allow" { &mut access.allow } else { &mut access.deny };
            list.push(network.trunc());
        }
    }
    if all.is_empty() {
        return Ok(None);
    }
    let is_all = |all: &[IpNet]| all.iter().any(|network| network.prefix_len() == 0);
    if !access.allow.is_empty() && !access.deny.is_empty() {
        match is_all(&access.deny) {
            // Whoever is not allowed is refused anyway.
            true => access.deny.retain(|network| network.prefix_len() > 0),
            false if !is_all(&access.allow) => {
                access.allow.extend(["0.0.0.0/0", "::/0"].iter().filter_map(|text| text.parse::<IpNet>().ok()))
            }
            false => {}
        }
    } else if !access.allow.is_empty() && !is_all(&access.allow) {
        // Only `allow`, without `deny all`, keeps nobody out.
        return Ok(None);
    }
    Ok(Some(access))
}

/// Headers of the service that reach the endpoint under the same name.
pub(super) fn passed_on(set: &[&Directive], headers: &[&Directive]) -> Vec<String> {
    let of = |one: &&Directive| {
        let name = one.arg(1).strip_prefix("$upstream_http_")?.replace('_', "-");
        let is_passed =
            headers.iter().any(|header| header.arg(1) == one.arg(0) && header.arg(0).eq_ignore_ascii_case(&name));
        is_passed.then_some(name)
    };
    set.iter().filter_map(of).collect()
}

/// `allow` and `deny` as values, for tests.
#[cfg(test)]
pub(super) fn lists(all: &[&Directive]) -> serde_json::Value {
    match networks(all) {
        Ok(Some(Access { allow, deny })) => json!({"allow": allow, "deny": deny}),
        Ok(None) => serde_json::Value::Null,
        Err(one) => json!(one.told()),
    }
}
