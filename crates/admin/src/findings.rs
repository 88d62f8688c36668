//! Judges from a status what an operator should look at. Failures in the last minute or the last few seconds count for
//! more than totals since the start. This module does no I/O.
//!
//! A finding says what happened, to what, the figure, and what to do. The text is for people and may change; the kind
//! is for programs.

mod access_log;
mod certificates;
mod routes;
mod services;
mod workers;

use std::collections::BTreeMap;

pub use access_log::AccessLogStatus;

use serde::{Deserialize, Serialize};
use telemetry::{Reason, ReasonGroup};

use crate::show::{counted, duration, shortened, state_name};
use crate::status::{
    ClusterStatus, EndpointRecent, EndpointState, EndpointStatus, KeySetStatus, ListenerStatus, MaintenanceStatus,
    Reload, RouteStatus, Status, ZoneStatus,
};
use crate::vip::{
    AnnouncementState, KernelPlaneStatus, SocketsStatus, VipEndpointRecent, VipEndpointStatus, VipStatus,
};

/// A share of failures below this is not reported, in percent.
const SHARE_PERCENT: u64 = 1;
/// The number of failures from which a sufficient share is reported. A smaller number is reported only if it is at
/// least [`FEW_PERCENT`] of all.
const FAILURES_MIN: u64 = 5;
/// See [`FAILURES_MIN`].
const FEW_PERCENT: u64 = 20;
/// The share of refused requests from which a listener is reported, in percent.
const REFUSED_PERCENT: u64 = 50;
/// Stands for "all", in percent: some requests may still be in progress.
const NEARLY_ALL_PERCENT: u64 = 90;
/// The share of a table or a limit that may be in use before it is reported, in percent.
const FULL_PERCENT: u64 = 80;
/// The same for file descriptors.
const OPEN_FILES_PERCENT: u64 = 90;
/// The number of packets that an endpoint of a vip must leave unanswered in a minute before it is reported. A single
/// packet may still be in flight.
const UNANSWERED_MIN: u64 = 2;
/// The number of dropped packets in a minute from which a vip is reported.
const DROPS_MIN: u64 = 5;

/// Something that an operator should look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Whether this is a problem or only worth knowing.
    pub severity: Severity,
    /// The kind of finding, for programs. The meaning of a kind never changes.
    pub kind: String,
    /// The name of the listener, cluster, vip or file. Empty for the whole process.
    pub about: String,
    /// For people. May have several lines.
    pub text: String,
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A problem: `steelyard status --check` exits with 1.
    Wrong,
    /// An operator asked for this, or it may be intended.
    Notice,
}

/// Returns the findings for a status.
pub fn findings(status: &Status) -> Vec<Finding> {
    let mut found = Found::default();
    of_process(status, &mut found);
    for listener in &status.listeners {
        of_listener(listener, &mut found);
        of_left_requests(listener, &status.routes, &mut found);
    }
    routes::of_routes(status, &mut found);
    of_maintenance(&status.maintenance, &mut found);
    of_key_sets(&status.key_sets, &mut found);
    for cluster in &status.clusters {
        of_cluster(cluster, &mut found);
    }
    of_vips(status, &mut found);
    services::of_services(status, &mut found);
    of_faults(status, &mut found);
    found.0
}

#[derive(Default)]
pub(crate) struct Found(Vec<Finding>);

impl Found {
    fn add(&mut self, severity: Severity, kind: &str, about: &str, text: String) {
        self.0.push(Finding { severity, kind: kind.to_owned(), about: about.to_owned(), text });
    }

    fn wrong(&mut self, kind: &str, about: &str, text: String) {
        self.add(Severity::Wrong, kind, about, text);
    }

    fn notice(&mut self, kind: &str, about: &str, text: String) {
        self.add(Severity::Notice, kind, about, text);
    }
}

fn of_process(status: &Status, found: &mut Found) {
    if status.ending {
        let text = "steelyard is ending: /readyz fails, and listeners accept new connections until drain_delay is over";
        found.notice("ending", "", text.to_owned());
    }
    if status.draining {
        let text = "steelyard is draining: it accepts no new connections and exits when the open ones are done";
        found.notice("draining", "", text.to_owned());
    }
    if let Some(reload) = status.last_reload.as_ref().filter(|reload| !reload.ok) {
        found.wrong("reload_refused", "", refused_reload(status, reload));
    }
    if status.vips_left {
        let text = "vips of an earlier process still forward packets, and no process checks their endpoints: \
                    `steelyard vip detach` removes them";
        found.wrong("vips_left", "", text.to_owned());
    }
    for file in &status.missing_files {
        let text = format!(
            "{file} is missing: generation {} stays in use, but a restart would fail; put the file back",
            status.generation
        );
        found.wrong("file_missing", file, text);
    }
    workers::of_workers(status, found);
    certificates::of_certificates(status, found);
    access_log::of_access_log(status, found);
    if let (Some(used), Some(max)) = (status.open_files, status.open_files_max)
        && is_percent(used, max, OPEN_FILES_PERCENT)
    {
        let text = format!(
            "{used} of {max} file descriptors are in use: raise LimitNOFILE (`ulimit -n`), or lower limits.connections \
             of the listeners"
        );
        found.wrong("open_files", "", text);
    }
    let refused = |listener: &ListenerStatus| listener.recent.refused.get(Reason::MemoryFull.name()).copied();
    let refused: u64 = status.listeners.iter().filter_map(refused).sum();
    if refused > 0 {
        let text = format!(
            "steelyard is short of memory: new connections and requests were refused {} in the last minute ({} of the \
             {} MiB of memory_max are in use now); raise memory_max if the host has more, or lower limits.connections \
             and limits.streams_per_connection of the listeners",
            times(refused),
            status.memory >> 20,
            status.memory_max.unwrap_or_default() >> 20
        );
        found.wrong("memory_full", "", text);
    }
}

/// Reports requests that clients abandoned. Some clients always do; but if a listener answered no request at all, the
/// clients are not the cause.
fn of_left_requests(listener: &ListenerStatus, routes: &[RouteStatus], found: &mut Found) {
    let own = || routes.iter().filter(|route| route.listener == listener.name);
    let answered = [
        own().map(|route| route.recent.responses).sum::<u64>(),
        own().map(|route| route.latest.responses).sum::<u64>(),
    ];
    let left = [&listener.recent, &listener.latest]
        .map(|of| of.refused.get(Reason::ClientReset.name()).copied().unwrap_or_default());
    let is_unanswered = |(left, answered)| (left >= FAILURES_MIN && answered == 0).then_some(left);
    let spans = [(left[0], answered[0]), (left[1], answered[1])];
    let Some((left, span)) = first_span(spans, is_unanswered) else { return };
    // TCP listeners do not count responses.
    if !matches!(listener.protocol.as_str(), "http" | "https") {
        return;
    }
    let text = format!(
        "clients of {} gave up {} in the {span} before a response came, and no client got a response: find out why the \
         endpoints do not answer",
        listener.name,
        counted(left, "request")
    );
    found.wrong("listener_unanswered", &listener.name, text);
}

fn refused_reload(status: &Status, reload: &Reload) -> String {
    let ago = duration(status.unix_seconds.saturating_sub(reload.unix_seconds));
    let errors = shortened(reload.errors.iter().map(String::as_str), "\n");
    format!("the last reload, {ago} ago, was refused; generation {} stays in use:\n{errors}", status.generation)
}

fn of_listener(listener: &ListenerStatus, found: &mut Found) {
    let (name, recent) = (&listener.name, &listener.recent);
    let count = |reason: Reason| recent.refused.get(reason.name()).copied().unwrap_or_default();
    if listener.admits_unverified_clients {
        let text = format!(
            "{name} asks clients for certificates and also admits clients without a valid one: its client_ca has \
             `verify: false`, or its Gateway has the mode AllowInsecureFallback"
        );
        found.notice("unverified_clients", name, text);
    }
    if recent.accept_failures > 0 {
        let text = format!(
            "{name} failed to accept connections {} in the last minute because file descriptors or memory ran out: \
             raise LimitNOFILE (`ulimit -n`), or lower limits.connections of the listeners",
            times(recent.accept_failures)
        );
        found.wrong("accept_failures", name, text);
    }
    let turned_away = count(Reason::ConnectionsFull);
    if turned_away > 0 {
        let text = format!(
            "{name} turned away {} in the last minute because its limits.connections was reached ({} are open now); \
             raise it, or find out which clients hold them",
            counted(turned_away, "connection"),
            listener.connections_open
        );
        found.wrong("connections_full", name, text);
    }
    let failing = first_span([recent, &listener.latest], |of| {
        let failures = only(&of.refused, is_failure);
        let failed: u64 = failures.values().sum();
        let requests = of.requests.max(failed);
        is_worth_a_look(failed, requests).then_some((failures, failed, requests))
    });
    if let Some(((failures, failed, requests), span)) = failing {
        let most = failures.iter().max_by_key(|(_, count)| **count).map(|(reason, _)| *reason);
        let text = format!(
            "{name} failed {failed} of {} in the {span}: {}; {}",
            counted(requests, "request"),
            by_reason(&failures),
            most.map_or("", advice)
        );
        found.wrong("listener_failures", name, text);
    }
    let has_no_handshake = of_handshakes(listener, found);
    let refusals = |is_wanted: fn(Reason) -> bool, all: u64, what: &str, found: &mut Found| {
        let refusals = only(&recent.refused, is_wanted);
        let refused: u64 = refusals.values().sum();
        let all = all.max(refused);
        if is_worth_a_look(refused, all) && is_percent(refused, all, REFUSED_PERCENT) {
            let text = format!(
                "{name} refused {refused} of {} in the last minute: {}; see docs/reasons.md",
                counted(all, what),
                by_reason(&refusals)
            );
            found.notice("listener_refusals", name, text);
        }
    };
    if !has_no_handshake {
        refusals(is_refusal_of_connection, recent.connections, "connection", found);
    }
    refusals(is_refusal_of_request, recent.requests, "request", found);
}

/// Reports failed TLS handshakes. Scanners cause some of them; but if no client gets through at all, the clients are
/// not the cause. Returns whether it reported something.
fn of_handshakes(listener: &ListenerStatus, found: &mut Found) -> bool {
    let failing = first_span([&listener.recent, &listener.latest], |of| {
        let failures = only(&of.refused, |reason| matches!(reason, Reason::TlsHandshake | Reason::TlsHandshakeTimeout));
        let failed: u64 = failures.values().sum();
        // A connection that sent nothing was a probe. A few handshakes may still be in progress.
        let probes = of.refused.get(Reason::ClientEof.name()).copied().unwrap_or_default();
        let connections = of.connections.saturating_sub(probes).max(failed);
        let has_none =
            failed >= FAILURES_MIN && of.requests == 0 && is_percent(failed, connections, NEARLY_ALL_PERCENT);
        has_none.then_some((failures, failed, connections))
    });
    let Some(((failures, failed, connections), span)) = failing else { return false };
    let text = format!(
        "{failed} of {} to {} failed in the TLS handshake in the {span}, and no request arrived: {}; find out whether \
         its certificate has expired and whether clients trust it (`openssl s_client -connect`); `--log proxy=debug` \
         shows why each failed",
        counted(connections, "connection"),
        listener.name,
        by_reason(&failures)
    );
    found.wrong("listener_handshakes", &listener.name, text);
    true
}

/// Returns what `find` gives for the last minute, or else for the last few seconds, with the name of that span.
fn first_span<S, T>([minute, latest]: [S; 2], find: impl Fn(S) -> Option<T>) -> Option<(T, &'static str)> {
    let in_minute = find(minute).map(|found| (found, "last minute"));
    in_minute.or_else(|| find(latest).map(|found| (found, "last few seconds")))
}

/// The reasons for which `is_wanted` holds, with their counts.
fn only(reasons: &BTreeMap<String, u64>, is_wanted: fn(Reason) -> bool) -> BTreeMap<Reason, u64> {
    let reason = |name: &str| Reason::ALL.iter().copied().find(|reason| reason.name() == name);
    let wanted = reasons.iter().filter_map(|(name, count)| Some((reason(name)?, *count)));
    wanted.filter(|(reason, _)| is_wanted(*reason)).collect()
}

/// The client did nothing wrong and did not get what it asked for.
fn is_failure(reason: Reason) -> bool {
    match reason {
        Reason::Draining | Reason::TunnelIdle => false,
        // These concern copies, which no client waits for.
        Reason::MirrorTooLarge | Reason::MirrorFull | Reason::MirrorFailed => false,
        reason => !matches!(reason.group(), ReasonGroup::Downstream | ReasonGroup::Routing),
    }
}

/// The connection ended before a request could arrive on it.
fn is_refusal_of_connection(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::TlsHandshake
            | Reason::TlsHandshakeTimeout
            | Reason::BadProxyProtocol
            | Reason::ProxyProtocolTimeout
            | Reason::ClientConnectionsFull
            | Reason::PlainHttp
            | Reason::NotHttp
            | Reason::H2Preface
    )
}

/// The client or the configuration caused the refusal. A client that only went away does not count.
fn is_refusal_of_request(reason: Reason) -> bool {
    match reason {
        reason if is_refusal_of_connection(reason) => false,
        Reason::ClientReset | Reason::ClientEof | Reason::IdleTimeout | Reason::ConnectionsFull => false,
        // A finding of its own says so.
        Reason::Maintenance => false,
        reason => matches!(reason.group(), ReasonGroup::Downstream | ReasonGroup::Routing),
    }
}

/// What an operator can do about requests that fail for this reason.
fn advice(reason: Reason) -> &'static str {
    match reason {
        Reason::NoLocalResources => "raise LimitNOFILE (`ulimit -n`), or lower limits.connections of the listeners",
        Reason::MemoryFull => "memory_max is used up: raise it if the host has more, or lower the listeners' limits",
        Reason::ConnectRefused => "start the service on the endpoint's port",
        Reason::ConnectTimeout => {
            "find out whether the endpoint's host is up and whether a firewall drops packets to it"
        }
        Reason::ConnectFailed => "find out whether this host has a route to the endpoint",
        Reason::NoEndpoint => "all endpoints are unhealthy, ejected, draining or of weight 0: repair or add one",
        Reason::ClusterMissing => "the route's target does not exist or may not be used",
        Reason::PendingFull | Reason::PendingTimeout => "raise the limits of the cluster, or add endpoints",
        Reason::UpstreamReset | Reason::UpstreamEof => "the endpoint's own log says why it closes connections",
        Reason::ResponseTimeout | Reason::RequestTimeout | Reason::PerTryTimeout => {
            "find out why the endpoint is slow, or raise the timeout"
        }
        Reason::UpstreamTls => "find out whether the endpoint speaks TLS on this port",
        Reason::UpstreamTlsIssuer | Reason::UpstreamTlsName => {
            "compare the endpoint's certificate with `ca` and `server_name` of the cluster's `tls`"
        }
        Reason::UpstreamTlsExpired => "renew the endpoint's certificate, or set the clock of this host",
        Reason::UpstreamTlsCertificate => "the endpoint needs another certificate",
        Reason::UpstreamTlsAlert => "the endpoint may require the `certificate` of `tls`, or refuse it; see its log",
        Reason::UpstreamH2 => "find out whether the endpoint speaks HTTP/2 on this port",
        Reason::ClientDenied => "compare `allow`, `deny` and `trusted_proxies` with the addresses of the clients",
        Reason::ExternalAuthFailed => {
            "find out why the cluster of the route's `external_auth` does not answer, or raise its `timeout`"
        }
        Reason::ClientConnectionsFull => {
            "a client opens more connections than `client_limits` allows; proxies and NAT put many users behind one address"
        }
        Reason::ConcurrencyLimited => {
            "a client has more requests in progress than `concurrency_limit` of the route allows; proxies and NAT put many users behind one \
             address"
        }
        Reason::BuffersFull => {
            "too many bodies of requests were collected or decompressed at once: lower `max_size` of `buffer`, or add workers"
        }
        Reason::RateLimitFailed => {
            "find out why the cluster of the route's `global_rate_limit` does not answer, or raise its `timeout`"
        }
        Reason::ErrorBackendFailed => {
            "find out why the cluster of the route's `intercept_errors` does not answer, or raise its `timeout`"
        }
        Reason::TokenKeysMissing => "a finding about the key set says why it could not be fetched",
        Reason::TokenAttempts | Reason::TokensBusy => {
            "clients send tokens that no key of the set has signed; `client_limits` of the listener, or `deny`, stops them sooner"
        }
        Reason::AuthenticationBusy => {
            "clients try many passwords (`rate_limit` bounds that), or the hashes cost more than this host can compute"
        }
        _ => "see docs/reasons.md",
    }
}

/// Reports routes in maintenance.
fn of_maintenance(routes: &[MaintenanceStatus], found: &mut Found) {
    for MaintenanceStatus { listener, route, configured, gone } in routes {
        let text = match (configured, gone) {
            (_, true) => format!(
                "listener {listener} no longer has the route {route}, which a command put into maintenance: if it comes back, its \
                 requests get 503; `steelyard maintenance off` ends that"
            ),
            (true, false) => format!(
                "route {route} of listener {listener} is in maintenance: its requests get 503; the configuration has \
                 `maintenance: true`"
            ),
            (false, false) => format!(
                "route {route} of listener {listener} is in maintenance: its requests get 503; `steelyard maintenance off` ends it"
            ),
        };
        found.notice("maintenance", route, text);
    }
}

/// Reports sets of keys that are not there or may be out of date.
fn of_key_sets(sets: &[KeySetStatus], found: &mut Found) {
    for set in sets {
        let name = &set.name;
        match (set.keys, &set.failure) {
            (None, None) if set.fetched => {
                found.notice(
                    "keys_missing",
                    name,
                    format!("the key set {name} is being fetched: requests with a token get 503"),
                );
            }
            (None, failure) => {
                let why = failure.as_deref().unwrap_or("it cannot be used");
                let text = format!("there are no keys of {name}, so requests with a token get 503: {why}");
                found.wrong("keys_missing", name, text);
            }
            (Some(_), Some(why)) => {
                let age = set.age_seconds.map_or_else(String::new, |age| format!(" of {} ago", duration(age)));
                let text = format!("the key set {name} cannot be fetched, and the keys{age} stay in use: {why}");
                found.wrong("keys_stale", name, text);
            }
            (Some(_), None) => {}
        }
    }
}

fn of_cluster(cluster: &ClusterStatus, found: &mut Found) {
    let name = &cluster.name;
    let usable = |endpoint: &&EndpointStatus| endpoint.state.takes_work() && endpoint.weight > 0;
    if cluster.endpoints.is_empty() && cluster.is_missing {
        // What refers to it is reported where it is written, and its failed requests with their route.
        return;
    }
    if cluster.endpoints.is_empty() {
        found.wrong("no_endpoint", name, format!("{name} has no endpoint now: do its names resolve?"));
    } else if cluster.panic {
        let text = format!(
            "{name} is in panic: too few of its endpoints are usable, so unhealthy and ejected ones get requests too"
        );
        found.wrong("panic", name, text);
    } else if cluster.endpoints.iter().filter(usable).count() == 0 {
        found.wrong("no_usable_endpoint", name, format!("{name} gets no requests: none of its endpoints is usable"));
    } else if let Some(used) = cluster.priority
        && let Some(first) = cluster.endpoints.iter().map(|endpoint| endpoint.priority).min()
        && used > first
    {
        let text = format!("{name} uses endpoints of priority {used}: too few of those with a lower number are usable");
        found.wrong("backups_in_use", name, text);
    } else if let Some(share) = cluster.zone_share
        && share < 1.0
        && cluster.endpoints.iter().any(|endpoint| endpoint.zone == ZoneStatus::Own)
    {
        let share = (share * 100.0).round();
        let text = format!(
            "{name} sends {share} % of its requests to its own zone: too few of the endpoints there are usable"
        );
        found.notice("zone_left", name, text);
    }
    let states =
        cluster.endpoints.iter().map(|endpoint| (endpoint.state, endpoint.address.as_str(), endpoint.why.as_deref()));
    of_states(name, &states.collect::<Vec<_>>(), found);
    of_failures(cluster, found);
}

/// Reports endpoints at which requests failed.
fn of_failures(cluster: &ClusterStatus, found: &mut Found) {
    let failing = cluster.endpoints.iter().filter_map(|endpoint| {
        let is_failing = |of: EndpointRecent| {
            let failures = of.failures();
            is_worth_a_look(failures, of.requests.max(failures)).then_some(of)
        };
        Some((endpoint, first_span([endpoint.recent, endpoint.latest], is_failing)?))
    });
    let mut failing: Vec<_> = failing.collect();
    failing.sort_by_key(|(_, (of, _))| std::cmp::Reverse(of.failures()));
    if failing.is_empty() {
        return;
    }
    let each = failing.iter().map(|(endpoint, (of, span))| {
        let kinds = kinds(of).into_iter().filter(|(_, count, _)| *count > 0);
        let kinds: Vec<String> = kinds.map(|(kind, count, _)| format!("{count} {kind}")).collect();
        let failures = of.failures();
        format!(
            "{failures} of {1} at {0} in the {span} ({2})",
            endpoint.address,
            of.requests.max(failures),
            kinds.join(", ")
        )
    });
    let mut all = EndpointRecent::default();
    for (_, (of, _)) in &failing {
        all.unreachable += of.unreachable;
        all.errors += of.errors;
        all.resets += of.resets;
        all.timeouts += of.timeouts;
    }
    let what_to_do = kinds(&all).into_iter().max_by_key(|(_, count, _)| *count).map_or("", |(.., what)| what);
    // After a failed handshake, the endpoint is known to listen, and the TLS error says more.
    let unreachable = failing.iter().filter(|(_, (of, _))| of.unreachable > 0);
    let why = |endpoint: &'_ EndpointStatus| endpoint.why.clone().filter(|why| why.starts_with("TLS: "));
    let tls = unreachable.map(|(endpoint, _)| *endpoint).find_map(why);
    let is_unchecked = failing.iter().any(|(endpoint, _)| endpoint.state == EndpointState::Unchecked);
    let unchecked = match tls.is_none() && is_unchecked {
        true => "; no health check covers it: give the cluster a `health_check`",
        false => "",
    };
    let what_to_do = tls.as_deref().unwrap_or(what_to_do);
    let text = format!("requests to {} failed: {}; {what_to_do}{unchecked}", cluster.name, shortened(each, ", "));
    found.wrong("endpoint_failures", &cluster.name, text);
}

/// For each kind of failure: its name in the message, its count, and what to do.
fn kinds(of: &EndpointRecent) -> [(&'static str, u64, &'static str); 4] {
    [
        ("not connected", of.unreachable, "find out whether it runs and listens there"),
        ("answered 5xx", of.errors, "its own log says why"),
        ("cut short", of.resets, "its own log says why"),
        ("timed out", of.timeouts, "find out why it is slow, or raise the timeout"),
    ]
}

/// Reports the states of the endpoints of one cluster or vip. Each endpoint has a state, an address and a reason.
fn of_states(name: &str, endpoints: &[(EndpointState, &str, Option<&str>)], found: &mut Found) {
    use Severity::{Notice, Wrong};
    let states = [
        (EndpointState::Unhealthy, "endpoint_unhealthy", Wrong),
        (EndpointState::Ejected, "endpoint_ejected", Wrong),
        // An operator asked for it.
        (EndpointState::Draining, "endpoint_draining", Notice),
    ];
    for (state, kind, severity) in states {
        let of_it: Vec<_> = endpoints.iter().filter(|(this, ..)| *this == state).collect();
        let who = match (of_it.len(), endpoints.len()) {
            (0, _) => continue,
            (1, 1) => format!("the only endpoint of {name} is"),
            (1, all) => format!("1 of {all} endpoints of {name} is"),
            (some, all) if some == all => format!("all {all} endpoints of {name} are"),
            (some, all) => format!("{some} of {all} endpoints of {name} are"),
        };
        let each = of_it.iter().map(|(_, address, why)| match why {
            Some(why) => format!("{address} {why}"),
            None => (*address).to_owned(),
        });
        found.add(severity, kind, name, format!("{who} {}: {}", state_name(state), shortened(each, ", ")));
    }
}

fn of_sockets(sockets: &SocketsStatus, found: &mut Found) {
    let SocketsStatus { cgroup, why_not, open, open_max, cannot_end, unknown } = sockets;
    if let Some(why) = why_not {
        let text = format!("connections of the processes of {cgroup} to vips are not balanced: {why}");
        found.wrong("sockets", "", text);
    }
    if let Some(why) = cannot_end {
        let text =
            format!("sockets of this host's processes that are connected to dead endpoints cannot be ended: {why}");
        found.wrong("sockets_kept", "", text);
    }
    if *unknown > 0 || is_percent(*open, *open_max, FULL_PERCENT) && *open > 0 {
        let text = format!(
            "the table of connected sockets has {open} of at most {open_max} entries; {unknown} sockets found it full in the last minute: \
             they are connected, but not counted, and see their endpoint's address: find out which processes keep so many connections"
        );
        found.wrong("socket_table", "", text);
    }
}

fn of_vips(status: &Status, found: &mut Found) {
    if let Some(KernelPlaneStatus { entries, entries_max, .. }) = &status.kernel_plane
        && is_percent(*entries, *entries_max, FULL_PERCENT)
        && *entries > 0
    {
        let text = format!(
            "the table of flows has {entries} of at most {entries_max} entries: raise `kernel_plane.flows_max`, or look for a flood"
        );
        found.wrong("flow_table", "", text);
    }
    if let Some(sockets) = status.kernel_plane.as_ref().and_then(|plane| plane.sockets.as_ref()) {
        of_sockets(sockets, found);
    }
    for vip in &status.vips {
        let name = &vip.name;
        let usable = |endpoint: &VipEndpointStatus| endpoint.state.takes_work() && endpoint.weight > 0;
        if !may_have_none(vip) && !vip.endpoints.iter().any(usable) {
            let text = format!("{name} gets no connections: none of its endpoints is usable");
            found.wrong("no_usable_endpoint", name, text);
        }
        let states =
            vip.endpoints.iter().map(|endpoint| (endpoint.state, endpoint.address.as_str(), endpoint.why.as_deref()));
        of_states(name, &states.collect::<Vec<_>>(), found);
        if vip.interfaces.is_empty() && vip.mode != "socket" {
            let why = match vip.along_routes {
                true => {
                    "this host has neither a default route nor a route to one of its endpoints; add a route, or name \
                     the interfaces in `interfaces`"
                }
                false => "nothing fits the pattern in `interfaces`",
            };
            let text = format!("{name} is not attached to any interface: {why}");
            found.wrong("vip_not_attached", name, text);
        }
        of_announcement(vip, status.ending || status.draining, found);
        of_endpoints_here(vip, found);
        of_silence(vip, found);
        of_unmade_connections(vip, found);
        of_drops(vip, found);
    }
}

/// A listener serves it; or it is for a Service of a cluster, which may well have no endpoints at the moment.
fn may_have_none(vip: &VipStatus) -> bool {
    let is_of_service = vip.mode == "socket" || vip.address.starts_with("0.0.0.0:") || vip.address.starts_with("[::]:");
    vip.mode == "local" || vip.endpoints.is_empty() && is_of_service
}

/// Reports an address that is not announced, unless that is because the process ends.
fn of_announcement(vip: &VipStatus, ends: bool, found: &mut Found) {
    let Some(announcement) = &vip.announcement else { return };
    let (name, why) = (&vip.name, announcement.why.as_deref().unwrap_or("nothing says why"));
    match announcement.state {
        AnnouncementState::Announced => {}
        AnnouncementState::Waiting => {
            found.notice("vip_announcement_waits", name, format!("the address of {name} is not announced yet: {why}"));
        }
        AnnouncementState::Withdrawn if ends => {}
        // Another node has the endpoints of the Service.
        AnnouncementState::Withdrawn if vip.mode != "local" && vip.endpoints.is_empty() => {
            found.notice(
                "vip_withdrawn",
                name,
                format!("the address of {name} is not announced: it has no endpoints here"),
            );
        }
        AnnouncementState::Withdrawn => {
            found.wrong("vip_withdrawn", name, format!("the address of {name} is not announced: {why}"));
        }
    }
}

/// Reports endpoints that run on the balancer itself.
fn of_endpoints_here(vip: &VipStatus, found: &mut Found) {
    let here: Vec<_> = vip.endpoints.iter().filter(|endpoint| endpoint.is_here).collect();
    if here.is_empty() {
        return;
    }
    let text = format!(
        "endpoints of {} are on this host, and the kernel plane cannot serve them with `mode: dsr` or at a loopback \
         address: {}; run them on another host, or use another mode and another address",
        vip.name,
        shortened(here.iter().map(|endpoint| endpoint.address.as_str()), ", ")
    );
    found.wrong("vip_endpoint_here", &vip.name, text);
}

/// Reports endpoints that got packets and sent none back.
fn of_silence(vip: &VipStatus, found: &mut Found) {
    // With dsr, the answers do not pass through this host.
    if vip.mode == "dsr" {
        return;
    }
    let is_silent = |of: &VipEndpointRecent| of.flows > 0 && of.packets_to >= UNANSWERED_MIN && of.packets_from == 0;
    // An endpoint that answered within the minute may have become silent since.
    let silent = vip.endpoints.iter().filter_map(|endpoint| {
        let find = |of: VipEndpointRecent| is_silent(&of).then_some(of);
        Some((endpoint, first_span([endpoint.recent, endpoint.latest], find)?))
    });
    let silent: Vec<_> = silent.collect();
    if silent.is_empty() {
        return;
    }
    let each = silent.iter().map(|(endpoint, (of, span))| {
        let (flows, packets) = (counted(of.flows, "new flow"), counted(of.packets_to, "packet"));
        format!("{} ({packets} of {flows} in the {span})", endpoint.address)
    });
    let text = format!(
        "endpoints of {} do not answer: {}; find out whether they run, whether packets reach them, and whether their \
         answers come back through this host (`tcpdump` on both)",
        vip.name,
        shortened(each, ", ")
    );
    // Some UDP protocols never answer. A TCP connection never starts without an answer.
    let severity = if vip.address.ends_with("/udp") { Severity::Notice } else { Severity::Wrong };
    found.add(severity, "vip_unanswered", &vip.name, text);
}

/// Reports TCP endpoints where most new flows got no second packet: nothing listens on the port and the host refuses,
/// or the clients never acknowledge. A connection that is established takes three packets or more from the client.
fn of_unmade_connections(vip: &VipStatus, found: &mut Found) {
    if vip.mode == "dsr" || !vip.address.ends_with("/tcp") {
        return;
    }
    // One packet may be in flight.
    let is_unmade = |of: &VipEndpointRecent| {
        of.flows >= 2 && of.packets_from > 0 && of.packets_to.saturating_mul(2) <= of.flows.saturating_mul(3)
    };
    let unmade = vip.endpoints.iter().filter_map(|endpoint| {
        let find = |of: VipEndpointRecent| is_unmade(&of).then_some(of);
        Some((endpoint, first_span([endpoint.recent, endpoint.latest], find)?))
    });
    let unmade: Vec<_> = unmade.collect();
    if unmade.is_empty() {
        return;
    }
    let each = unmade.iter().map(|(endpoint, (of, span))| {
        format!("{} ({} in the {span})", endpoint.address, counted(of.flows, "new flow"))
    });
    let text = format!(
        "most connections of {} were refused by the endpoint or not completed by the client: {}; find out whether \
         something listens on the endpoint's port",
        vip.name,
        shortened(each, ", ")
    );
    found.wrong("vip_refused", &vip.name, text);
}

fn of_drops(vip: &VipStatus, found: &mut Found) {
    /// The reasons that the host or the configuration causes, not the client, as named in `docs/drops.md`.
    const OURS: [&str; 6] =
        ["no_endpoint", "flow_table_full", "ports_exhausted", "flow_collision", "no_route", "redirect_failed"];
    let drops = vip.recent_drops.iter().filter(|(reason, _)| OURS.contains(&reason.as_str()));
    let drops: BTreeMap<&str, u64> = drops.map(|(reason, count)| (reason.as_str(), *count)).collect();
    let dropped: u64 = drops.values().sum();
    if dropped < DROPS_MIN {
        return;
    }
    let text = format!(
        "{} dropped {} in the last minute: {}; docs/drops.md says what to do about each",
        vip.name,
        counted(dropped, "packet"),
        by_reason(&drops)
    );
    found.wrong("vip_drops", &vip.name, text);
}

/// Reports our own faults. They are rare enough to be shown for as long as the process runs.
fn of_faults(status: &Status, found: &mut Found) {
    let internal = Reason::Internal.name();
    let sum = |of: fn(&ListenerStatus) -> &BTreeMap<String, u64>| -> u64 {
        status.listeners.iter().filter_map(|listener| of(listener).get(internal)).sum()
    };
    let (all, recent) = (sum(|listener| &listener.refused), sum(|listener| &listener.recent.refused));
    if all > 0 {
        let severity = if recent > 0 { Severity::Wrong } else { Severity::Notice };
        let text = format!(
            "steelyard itself failed {} since its start and {} in the last minute because of a bug: please report it, \
             with the log",
            times(all),
            times(recent)
        );
        found.add(severity, "internal_faults", "", text);
    }
}

/// Formats the counts, most frequent first.
fn by_reason<R: std::fmt::Display>(reasons: &BTreeMap<R, u64>) -> String {
    let mut reasons: Vec<_> = reasons.iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    shortened(reasons.iter().map(|(reason, count)| format!("{count} {reason}")), ", ")
}

fn is_worth_a_look(failed: u64, all: u64) -> bool {
    failed > 0
        && is_percent(failed, all, SHARE_PERCENT)
        && (failed >= FAILURES_MIN || is_percent(failed, all, FEW_PERCENT))
}

fn is_percent(part: u64, whole: u64, percent: u64) -> bool {
    part.saturating_mul(100) >= whole.saturating_mul(percent)
}

fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    }
}

#[cfg(test)]
mod tests;
