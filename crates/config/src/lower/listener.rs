//! Listeners: what is spoken decides which keys have a meaning.

use std::net::SocketAddr;

use model::{ClusterId, HttpListener, Listener, ListenerLimits, Protocol, TcpListener};

use super::{ClusterIds, count, positive, route};
use crate::defaults;
use crate::diagnostic::{Report, Wrong};
use crate::raw::{ProtocolName, RawListener};
use crate::read::{Keyed, Written};

/// `None` where something that it cannot do without is missing; the report says so.
pub fn listener(name: &str, raw: RawListener, ids: &ClusterIds, report: &mut Report) -> Option<Listener> {
    // Names are looked up before anything else can end this: their errors are worth telling whatever else is wrong.
    let to = raw.to.as_ref().and_then(|to| ids.find(to, report));
    let routes = raw.routes.as_ref().map(|routes| route::routes(routes, ids, report));
    let protocol = raw.protocol.as_ref()?.value.0;
    refuse_keys_of_others(&raw, protocol, report);
    if let Some(limits) = &raw.limits {
        refuse_keys_of_others(&limits.value, protocol, report);
    }
    let bind = raw.bind.as_ref()?.value.0;
    let protocol = match protocol {
        ProtocolName::Tcp => Protocol::Tcp(TcpListener {
            idle_timeout: positive(&raw.idle_timeout, defaults::TCP_IDLE_TIMEOUT),
            to: to?,
        }),
        ProtocolName::Http => {
            let routes = match routes {
                Some(routes) => routes,
                None => vec![route::catch_all(to?)],
            };
            Protocol::Http(http(&raw, routes))
        }
    };
    let limits = raw.limits.map(|limits| limits.value);
    let connections_max = limits.and_then(|limits| limits.connections).map(|connections| count(connections.value.0));
    Some(Listener {
        name: name.to_owned(),
        bind,
        protocol,
        accept_proxy_protocol: raw.proxy_protocol.is_some_and(|accept| accept.value.0),
        connections_max: connections_max.unwrap_or(defaults::CONNECTIONS_MAX),
    })
}

/// What a listener is that says no more than where it listens, what it speaks and where all of it goes.
pub fn bare(name: &str, bind: SocketAddr, protocol: ProtocolName, to: ClusterId) -> Listener {
    let protocol = match protocol {
        ProtocolName::Tcp => Protocol::Tcp(TcpListener { to, idle_timeout: defaults::TCP_IDLE_TIMEOUT }),
        ProtocolName::Http => Protocol::Http(bare_http(vec![route::catch_all(to)])),
    };
    Listener {
        name: name.to_owned(),
        bind,
        protocol,
        accept_proxy_protocol: false,
        connections_max: defaults::CONNECTIONS_MAX,
    }
}

fn bare_http(routes: Vec<model::Route>) -> HttpListener {
    HttpListener {
        routes,
        trusted_proxies: Vec::new(),
        forwarded: defaults::FORWARDED,
        limits: ListenerLimits::default(),
    }
}

fn http(raw: &RawListener, routes: Vec<model::Route>) -> HttpListener {
    let mut http = bare_http(routes);
    if let Some(trusted) = &raw.trusted_proxies {
        http.trusted_proxies = trusted.value.0.iter().map(|network| network.value.0).collect();
    }
    if let Some(forwarded) = &raw.forwarded {
        http.forwarded = forwarded.value.0;
    }
    let limits = &mut http.limits;
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
    http
}

/// A key that only another protocol knows would be ignored in silence, and the operator would believe in it.
fn refuse_keys_of_others<T: Keyed>(raw: &T, protocol: ProtocolName, report: &mut Report) {
    let name = protocol.name();
    for Written { key, place } in raw.written() {
        if let Some(only) = T::object().key(key).and_then(|key| key.only)
            && only != name
        {
            let wrong = Wrong::new(format!("`{key}` belongs to protocol {only}, and this listener speaks {name}"));
            let hint = if *key == "routes" { "name the cluster in `to`" } else { "remove it" };
            report.add(*place, wrong.hint(hint));
        }
    }
}
