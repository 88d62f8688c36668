//! Listeners. The protocol decides which keys have a meaning.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use model::{
    ClientLimits, ClusterId, ForwardedHeaders, HeaderNames, HostMatcher, HttpListener, Listener, ListenerLimits,
    MinRate, Passthrough, PathRules, Protocol, RequestId, TcpListener, TlsListener, TlsMode, TlsRoute, Variable,
};

use super::route::{Inherited, listed};
use super::sidecar::Sidecar;
use super::{
    ClusterIds, addresses, auth, bandwidth, count, external_auth, global_rate_limit, limits, policy, positive, respond,
    route, tls, via,
};
use crate::defaults;
use crate::diagnostic::{Report, Wrong};
use crate::raw::{
    ProtocolName, RawBind, RawCaptureObject, RawClientLimits, RawListener, RawMinRate, RawPassthrough, RawPaths,
    RawRequestId,
};
use crate::read::{Flag, Keyed, Located, OneOf, Written};

/// What the listeners of a file share.
pub struct Context<'c> {
    pub base: &'c Path,
    pub ids: &'c ClusterIds,
    pub sidecar: Option<&'c Sidecar>,
}

/// Returns `None` if a required key is missing; the report says so.
pub fn listener(name: &str, raw: RawListener, context: &Context<'_>, report: &mut Report) -> Option<Listener> {
    let &Context { base, ids, sidecar } = context;
    // Look up the names before anything can return early: errors in them are worth reporting whatever else is wrong.
    let to = raw.to.as_ref().and_then(|to| ids.find(to, report));
    let protocol = raw.protocol.as_ref();
    let auth = auth::auth(&raw.auth, None, base, report);
    let external_auth = external_auth::external_auth(&raw.external_auth, None, ids, report);
    let global_rate_limit = global_rate_limit::global_rate_limit(&raw.global_rate_limit, None, ids, report);
    let via = via::via(&raw.via, None, report);
    global_rate_limit::check_claims(&raw.global_rate_limit, global_rate_limit.as_ref(), auth.as_ref(), report);
    let inherited = Inherited { auth, external_auth, global_rate_limit, via };
    let routes = Routes::of(&raw, protocol.map(|protocol| protocol.value.0), &inherited, base, ids, report);
    let tls = raw.tls.as_ref().and_then(|tls| tls::listener(&tls.value, base, report));
    let Located { location, value: OneOf(protocol) } = protocol?;
    refuse_keys(&raw, *protocol, report);
    let is_http = matches!(protocol, ProtocolName::Http | ProtocolName::Https | ProtocolName::Detect);
    refuse_client_certs(&raw, is_http, report);
    if matches!(protocol, ProtocolName::Https | ProtocolName::Tls) && raw.tls.is_none() {
        let hint = "add `tls: {certificates: [{cert: www.pem, key: www.key}]}`";
        report.add(*location, Wrong::new(format!("protocol {} needs a certificate", protocol.name())).hint(hint));
    }
    let capture = self::capture(&raw, *protocol, sidecar, report);
    let routes = match routes {
        Some(routes) => routes,
        None => Routes::to(*protocol, to?, inherited),
    };
    let protocol_name = *protocol;
    let protocol = match routes {
        Routes::None(to) => {
            Protocol::Tcp(TcpListener { idle_timeout: positive(&raw.idle_timeout, defaults::TCP_IDLE_TIMEOUT), to })
        }
        Routes::Http(routes) => {
            let http = http(&raw, routes, base, report);
            Protocol::Http(HttpListener { passthrough: passthrough(&raw, ids, report).into(), ..http })
        }
        Routes::Sni(routes) => Protocol::Tls(TlsListener {
            isolated_hosts: isolated(&raw, routes.iter().map(|route| &route.sni)),
            routes,
            hello_timeout: positive(&raw.header_timeout, ListenerLimits::default().header_timeout),
            idle_timeout: positive(&raw.idle_timeout, defaults::TCP_IDLE_TIMEOUT),
        }),
    };
    let (bind, captured, tls) = match (&raw.bind.as_ref()?.value, capture) {
        (RawBind::Text(bind), _) => (bind.0, None, tls),
        (RawBind::Object(_), Some((object, sidecar))) => {
            let idle_timeout = positive(&raw.idle_timeout, defaults::TCP_IDLE_TIMEOUT);
            let (bind, captured, tls) = sidecar.capture(&object, protocol_name, to, idle_timeout, report);
            (bind, Some(captured), tls)
        }
        (RawBind::Object(_), None) => return None,
    };
    let addresses = addresses::rules(&raw.allow, &raw.deny, report);
    let limits = raw.limits.map(|limits| limits.value);
    let connections_max = limits.and_then(|limits| limits.connections).map(|connections| count(connections.value.0));
    let client_limits = raw
        .client_limits
        .as_ref()
        .map_or_else(ClientLimits::default, |limits| self::client_limits(&limits.value, report));
    Some(Listener {
        name: name.to_owned(),
        bind,
        captured,
        protocol,
        tls,
        accept_proxy_protocol: raw.proxy_protocol.is_some_and(|accept| accept.value.0),
        addresses,
        connections_max: connections_max.unwrap_or(defaults::CONNECTIONS_MAX),
        client_limits,
    })
}

/// The limits on each client.
pub fn client_limits(raw: &RawClientLimits, report: &mut Report) -> ClientLimits {
    ClientLimits {
        connections_max: raw.connections.as_ref().map(|connections| count(connections.value.0)),
        requests: raw.requests.as_ref().and_then(|rate| limits::client_rate(&rate.value, report)),
        request_bandwidth: bandwidth::bandwidth(&raw.request_bandwidth, report),
        response_bandwidth: bandwidth::bandwidth(&raw.response_bandwidth, report),
    }
}

/// What a sidecar captures for this listener. `None` if it has a socket of its own, or if the report says what is wrong.
fn capture<'c>(
    raw: &'c RawListener,
    protocol: ProtocolName,
    sidecar: Option<&'c Sidecar>,
    report: &mut Report,
) -> Option<(Located<&'c RawCaptureObject>, &'c Sidecar)> {
    let bind = raw.bind.as_ref()?;
    let RawBind::Object(object) = &bind.value else {
        if protocol == ProtocolName::Detect {
            let wrong = Wrong::new("protocol detect is for connections that a sidecar captures");
            report.add(bind.location, wrong.hint("write `protocol: http` or `protocol: tcp`"));
        }
        return None;
    };
    let Some(sidecar) = sidecar else {
        let wrong = Wrong::new("only a sidecar captures connections, and this file has no `sidecar`");
        report.add(bind.location, wrong.hint("add `sidecar: {}` at the top of the file"));
        return None;
    };
    let is_outbound = object.outbound.is_some();
    match protocol {
        ProtocolName::Http | ProtocolName::Tcp | ProtocolName::Detect => {}
        ProtocolName::TlsPassthrough if is_outbound => {}
        ProtocolName::Https | ProtocolName::Tls | ProtocolName::TlsPassthrough => {
            let name = protocol.name();
            let wrong = Wrong::new(format!("a listener that a sidecar captures cannot have protocol {name} here"));
            let hint = "write http, tcp or detect: `mode` of the sidecar says whether clients use TLS";
            report.add(bind.location, wrong.hint(hint));
        }
    }
    if let Some(header) = raw.proxy_protocol.as_ref().filter(|accept| accept.value.0) {
        let wrong = Wrong::new("a sidecar takes the address of a client from the kernel");
        report.add(header.location, wrong.hint("remove `proxy_protocol`"));
    }
    Some((Located { location: bind.location, value: &**object }, sidecar))
}

/// The target of a listener's traffic, in the form that its protocol uses.
enum Routes {
    None(ClusterId),
    Http(Vec<model::Route>),
    Sni(Vec<TlsRoute>),
}

impl Routes {
    /// Lowers `routes`. If the protocol is unknown, they are read as HTTP routes to report their errors.
    fn of(
        raw: &RawListener,
        protocol: Option<ProtocolName>,
        inherited: &Inherited,
        base: &Path,
        ids: &ClusterIds,
        report: &mut Report,
    ) -> Option<Self> {
        let routes = raw.routes.as_ref()?;
        Some(match protocol {
            Some(ProtocolName::Tls) => Self::Sni(route::by_name(routes, TlsMode::Terminate, ids, report)),
            Some(ProtocolName::TlsPassthrough) => Self::Sni(route::by_name(routes, TlsMode::Passthrough, ids, report)),
            _ => Self::Http(route::routes(routes, inherited, base, ids, report)),
        })
    }

    /// Everything goes to one cluster.
    fn to(protocol: ProtocolName, to: ClusterId, inherited: Inherited) -> Self {
        match protocol {
            ProtocolName::Tcp => Self::None(to),
            ProtocolName::Http | ProtocolName::Https | ProtocolName::Detect => {
                let mut route = route::catch_all(to);
                route.policy.auth = inherited.auth;
                route.policy.external_auth = inherited.external_auth;
                route.policy.global_rate_limit = inherited.global_rate_limit;
                route.policy.via = inherited.via;
                Self::Http(vec![route])
            }
            ProtocolName::Tls => Self::Sni(vec![TlsRoute { sni: Vec::new(), to, mode: TlsMode::Terminate }]),
            ProtocolName::TlsPassthrough => {
                Self::Sni(vec![TlsRoute { sni: Vec::new(), to, mode: TlsMode::Passthrough }])
            }
        }
    }
}

/// A listener with defaults for everything but its address, its protocol (TCP or HTTP) and its cluster.
pub fn bare(name: &str, bind: SocketAddr, tcp: bool, to: ClusterId) -> Listener {
    let protocol = if tcp {
        Protocol::Tcp(TcpListener { to, idle_timeout: defaults::TCP_IDLE_TIMEOUT })
    } else {
        Protocol::Http(bare_http(vec![route::catch_all(to)]))
    };
    Listener {
        name: name.to_owned(),
        bind,
        captured: None,
        protocol,
        tls: None,
        accept_proxy_protocol: false,
        addresses: model::AddressRules::default(),
        connections_max: defaults::CONNECTIONS_MAX,
        client_limits: ClientLimits::default(),
    }
}

fn bare_http(routes: Vec<model::Route>) -> HttpListener {
    HttpListener {
        routes: routes.into(),
        isolated_hosts: Vec::new(),
        trusted_proxies: Vec::new(),
        forwarded: defaults::FORWARDED,
        x_real_ip: false,
        header_names: HeaderNames::Any,
        passthrough: Default::default(),
        http2: true,
        request_id: None,
        paths: PathRules::default(),
        limits: ListenerLimits::default(),
        error_pages: Box::default(),
    }
}

/// The connections whose TLS does not end here.
fn passthrough(raw: &RawListener, ids: &ClusterIds, report: &mut Report) -> Vec<Passthrough> {
    let mut seen = HashSet::new();
    let one = |raw: &Located<RawPassthrough>| {
        let to = raw.value.to.as_ref().and_then(|to| ids.find(to, report));
        for host in raw.value.sni.iter().flat_map(|names| &names.value.0) {
            if !seen.insert(host.value.0.clone()) {
                let wrong = Wrong::new("the connections for this name go to the cluster of an earlier entry");
                report.add(host.location, wrong.hint("remove it here or there"));
            }
        }
        let sni = listed(&raw.value.sni, |host| host.0.clone());
        Some(Passthrough { sni, to: to?, idle_timeout: positive(&raw.value.idle_timeout, defaults::TCP_IDLE_TIMEOUT) })
    };
    raw.passthrough.iter().flat_map(|entries| &entries.value.0).filter_map(one).collect()
}

/// The isolated hosts. If any route has a host outside of them, all other hosts together count as one more.
fn isolated<'r>(raw: &RawListener, hosts: impl Iterator<Item = &'r Vec<HostMatcher>>) -> Vec<HostMatcher> {
    let mut isolated = listed(&raw.isolated_hosts, |host| host.0.clone());
    let is_outside = |host: &HostMatcher| !isolated.iter().any(|isolated| isolated.covers(host));
    let mut hosts = hosts;
    if !isolated.is_empty() && hosts.any(|hosts| hosts.is_empty() || hosts.iter().any(is_outside)) {
        isolated.push(HostMatcher::Any);
    }
    isolated
}

/// Clients with an IPv4 address are known by that address, so a network such as `::ffff:10.0.0.0/104` would have none of them.
fn unmapped(network: IpNet) -> IpNet {
    let IpNet::V6(v6) = network else { return network };
    let v4 = v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(96));
    v4.and_then(|(address, prefix)| Ipv4Net::new(address, prefix).ok()).map_or(network, IpNet::from)
}

fn http(raw: &RawListener, routes: Vec<model::Route>, base: &Path, report: &mut Report) -> HttpListener {
    let isolated_hosts = isolated(raw, routes.iter().map(|route| &route.hosts));
    let mut http = HttpListener {
        isolated_hosts,
        error_pages: respond::error_pages(&raw.error_pages, base, report).into(),
        ..bare_http(routes)
    };
    if let Some(trusted) = &raw.trusted_proxies {
        http.trusted_proxies = trusted.value.0.iter().map(|network| unmapped(network.value.0)).collect();
    }
    if let Some(forwarded) = &raw.forwarded {
        http.forwarded = forwarded.value.0;
    }
    if raw.bind.as_ref().is_some_and(|bind| bind.value.is_outbound()) && raw.forwarded.is_none() {
        // The client is the application of this sidecar. What it says about its own client must arrive as it is.
        http.forwarded = ForwardedHeaders::Off;
        if raw.trusted_proxies.is_none() {
            http.trusted_proxies = vec![Ipv4Net::default().into(), Ipv6Net::default().into()];
        }
    }
    http.http2 = raw.http2.as_ref().is_none_or(|flag| flag.value.0);
    http.x_real_ip = raw.x_real_ip.as_ref().is_some_and(|flag| flag.value.0);
    http.header_names = raw.header_names.as_ref().map_or(HeaderNames::Any, |names| names.value.0);
    http.request_id = raw.request_id.as_ref().map(|id| request_id(&id.value));
    if http.request_id.is_none() && !raw.written().iter().any(|written| written.key == "request_id") {
        refuse_request_ids(raw, report);
    }
    if let Some(paths) = &raw.paths {
        http.paths = path_rules(&paths.value);
    }
    let limits = &mut http.limits;
    if let Some(rate) = &raw.min_rate {
        limits.min_rate = min_rate(&rate.value);
    }
    if let Some(ping) = &raw.ping {
        limits.ping = super::ping(&ping.value);
    }
    limits.abort_on_half_close = raw.abort_on_half_close.as_ref().is_some_and(|flag| flag.value.0);
    limits.header_timeout = positive(&raw.header_timeout, limits.header_timeout);
    limits.stall_timeout = positive(&raw.stall_timeout, limits.stall_timeout);
    limits.idle_timeout = positive(&raw.idle_timeout, limits.idle_timeout);
    limits.tunnel_idle_timeout = positive(&raw.tunnel_idle_timeout, limits.tunnel_idle_timeout);
    let Some(raw) = raw.limits.as_ref().map(|limits| &limits.value) else { return http };
    if let Some(bytes) = &raw.header_bytes {
        limits.header_bytes_max = count(bytes.value.0);
    }
    if let Some(headers) = &raw.header_count {
        limits.header_count_max = count(headers.value.0);
    }
    limits.body_bytes_max = raw.body_bytes.as_ref().map(|bytes| bytes.value.0).or(limits.body_bytes_max);
    let requests = raw.requests_per_connection.as_ref().map(|requests| requests.value.0);
    limits.requests_per_connection_max = requests.or(limits.requests_per_connection_max);
    if let Some(streams) = &raw.streams_per_connection {
        limits.streams_per_connection_max = u32::try_from(streams.value.0).unwrap_or(u32::MAX);
    }
    http
}

fn request_id(raw: &RawRequestId) -> RequestId {
    let default = RequestId::default();
    RequestId {
        keep: raw.keep.as_ref().map_or(default.keep, |keep| keep.value.0),
        in_response: raw.respond.as_ref().is_some_and(|flag| flag.value.0),
    }
}

/// Refuses routes that look at a certificate for which no client is asked, and a listener without routes that would have to look at it.
fn refuse_client_certs(raw: &RawListener, is_http: bool, report: &mut Report) {
    let client_ca = raw.tls.as_ref().and_then(|tls| tls.value.client_ca.as_ref());
    if client_ca.is_none() {
        for rule in
            raw.routes.iter().flat_map(|routes| &routes.value.0).filter_map(|route| route.value.client_cert.as_ref())
        {
            let wrong =
                Wrong::new("`client_cert` needs a certificate, and clients of this listener are not asked for one");
            report.add(
                rule.location,
                wrong.hint("add `client_ca: {ca: FILE, required: false}` to the `tls` of the listener"),
            );
        }
    }
    if let Some(required) =
        client_ca.and_then(|client| client.value.required.as_ref()).filter(|flag| !flag.value.0 && !is_http)
    {
        let wrong = Wrong::new("`required: false` needs routes of HTTP, which say with `client_cert` who may use them");
        report.add(required.location, wrong.hint("remove it: without it, clients need a certificate"));
    }
}

/// Refuses `${request_id}` where requests have no id: it would always be empty.
fn refuse_request_ids(raw: &RawListener, report: &mut Report) {
    for route in raw.routes.iter().flat_map(|routes| &routes.value.0) {
        for (location, _) in policy::variables(&route.value).filter(|(_, used)| *used == Variable::RequestId) {
            let wrong = Wrong::new("`${request_id}` is used, and the requests of this listener have no ids");
            report.add(location, wrong.hint("add `request_id: {}` to the listener"));
        }
    }
}

fn path_rules(raw: &RawPaths) -> PathRules {
    let default = PathRules::default();
    let flag = |flag: &Option<Located<Flag>>, default| flag.as_ref().map_or(default, |flag| flag.value.0);
    PathRules {
        merge_slashes: flag(&raw.merge_slashes, default.merge_slashes),
        forward: raw.forward.as_ref().map_or(default.forward, |forward| forward.value.0),
        refuse_ambiguous: flag(&raw.refuse_ambiguous, default.refuse_ambiguous),
    }
}

/// `None` means off.
fn min_rate(raw: &RawMinRate) -> Option<MinRate> {
    let RawMinRate::Object(raw) = raw else { return None };
    let default = MinRate::default();
    Some(MinRate {
        bytes: raw.bytes.as_ref().map_or(default.bytes, |bytes| bytes.value.0),
        // The clock of deadlines has a resolution of a millisecond.
        per: positive(&raw.per, default.per).max(Duration::from_millis(1)),
        grace: positive(&raw.grace, default.grace),
    })
}

/// Refuses keys that belong to another protocol. Ignoring them silently would let the operator believe that they work.
fn refuse_keys(raw: &RawListener, protocol: ProtocolName, report: &mut Report) {
    refuse_keys_of_others(raw, protocol, report);
    if let Some(limits) = &raw.limits {
        refuse_keys_of_others(&limits.value, protocol, report);
    }
    if let Some(limits) = &raw.client_limits {
        refuse_keys_of_others(&limits.value, protocol, report);
    }
    // One error is enough where routes have no meaning at all.
    if protocol != ProtocolName::Tcp {
        for route in raw.routes.iter().flat_map(|routes| &routes.value.0) {
            refuse_keys_of_others(&route.value, protocol, report);
        }
    }
}

fn refuse_keys_of_others<T: Keyed>(raw: &T, protocol: ProtocolName, report: &mut Report) {
    let name = protocol.name();
    for Written { key, location } in raw.written() {
        if let Some(only) = T::object().key(key).and_then(|key| key.only)
            && !protocol.has(only)
        {
            let only = only.replace(", ", " or ");
            let wrong = Wrong::new(format!("`{key}` needs protocol {only}, and this listener has protocol {name}"));
            let hint = match *key {
                "routes" => "name the cluster with `to`",
                "hosts" if protocol.is_by_name() => "write `sni`",
                "sni" => "write `hosts`",
                "tls" if protocol == ProtocolName::Http => "write `protocol: https`",
                "tls" if protocol == ProtocolName::Tcp => "write `protocol: tls`",
                "passthrough" if protocol == ProtocolName::TlsPassthrough => "remove it: all routes pass TLS through",
                // The one key is that of a route there, and the other one that of the listener.
                "passthrough" if protocol == ProtocolName::Https => {
                    "write `passthrough` in the listener, beside `routes`"
                }
                "passthrough" if protocol == ProtocolName::Tls => "write `passthrough: true` in a route",
                _ => "remove it",
            };
            report.add(*location, wrong.hint(hint));
        }
    }
}
