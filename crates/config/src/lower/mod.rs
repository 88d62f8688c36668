//! Turns raw values into the model: looks up names, fills in defaults and finds contradictions.

mod access_log;
mod addresses;
mod admin;
mod auth;
mod bandwidth;
mod cluster;
mod compression;
mod external_auth;
mod files;
mod global_rate_limit;
mod inherited;
mod jwt;
mod limits;
mod listener;
mod otlp;
mod part;
mod policy;
mod reachable;
mod request_body;
mod respond;
mod response_rewrite;
mod route;
mod sidecar;
mod template;
mod tls;
mod tracing;
mod via;
mod vip;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use model::{
    AdminAccess, AdminAddress, Announcing, Cluster, ClusterId, Dns, Generation, Listener, Ping, Snapshot, Transport,
};

use crate::defaults;
use crate::diagnostic::{Location, Report, Wrong, nearest, ticked};
use crate::raw::{RawBind, RawCluster, RawDns, RawFile, RawListener, RawPing};
use crate::read::{Keyed, Located, Named, NamedEntry};
use crate::text::{Label, Positive, VipAddress, duration_text};

pub use cluster::cluster;
pub use external_auth::usual_external_auth;
pub use files::locations as file_places;
pub use listener::client_limits;
pub use part::{RoutePart, route as route_part};
pub use vip::{NOT_TABLE_LOCAL, TABLE_LOCAL, VIPS_MAX};

/// Builds the snapshot as far as possible. It is only usable if the report is still empty. Relative file names are resolved from `base`.
pub fn snapshot(raw: RawFile, base: &Path, generation: Generation, report: &mut Report) -> Option<Snapshot> {
    refuse_what_serves_nothing(&raw, report);
    whole(raw, base, generation, report)
}

/// The keys of a file of settings for telemetry.
const TELEMETRY: [&str; 4] = ["access_log", "tracing", "clusters", "dns"];

/// As [`snapshot`], of a file that only says where logs and spans go.
pub fn telemetry(raw: RawFile, base: &Path, report: &mut Report) -> Option<Snapshot> {
    let written = raw.written();
    for other in written.iter().filter(|written| !TELEMETRY.contains(&written.key)) {
        let wrong = Wrong::new(format!("`{}` does not belong in a telemetry file", other.key));
        report.add(
            other.location,
            wrong.hint("it can have `access_log`, `tracing`, and the `clusters` that they name, with `dns`"),
        );
    }
    if !written.iter().any(|written| ["access_log", "tracing"].contains(&written.key)) {
        report.add(Location::START, Wrong::new("the file needs `access_log` or `tracing`"));
    }
    whole(raw, base, Generation(1), report)
}

fn whole(raw: RawFile, base: &Path, generation: Generation, report: &mut Report) -> Option<Snapshot> {
    tracing::refuse_without_traces(&raw, report);
    let ids = ClusterIds::of(raw.clusters.as_ref());
    let admin = raw.admin.map(|bind| Located { location: bind.location, value: bind.value.0 });
    let metrics = raw.metrics.map(|bind| Located { location: bind.location, value: bind.value.0 });
    let mut binds = Binds::default();
    if let Some(Located { location, value: AdminAddress::Socket(address) }) = &admin {
        binds.add(*address, *location, report);
    }
    if let Some(metrics) = &metrics {
        binds.add(metrics.value, metrics.location, report);
    }
    let admin_access = admin::access(&raw.admin_access, admin.as_ref(), base, report);
    let sidecar = raw.sidecar.as_ref().map(|sidecar| sidecar::Sidecar::new(sidecar, base, &mut binds, report));
    let context = listener::Context { base, ids: &ids, sidecar: sidecar.as_ref() };
    let listeners = raw.listeners.map(|listeners| self::listeners(listeners, &context, &mut binds, report));
    let gates = sidecar.iter().flat_map(sidecar::Sidecar::listeners);
    let listeners: Vec<Listener> = listeners.unwrap_or_default().into_iter().chain(gates).collect();
    let own_zone = raw.zone.map(|zone| zone.value.0);
    let clusters = raw.clusters.map_or_else(Vec::new, |clusters| clusters.value.0);
    let lowered = |entry: NamedEntry<Label, RawCluster>, report: &mut Report| {
        cluster::cluster(&entry.name.0, entry.value?, base, own_zone.as_deref(), sidecar.as_ref(), report)
    };
    let clusters: Vec<_> = clusters.into_iter().filter_map(|entry| lowered(entry, report)).collect();
    let tracing = raw.tracing.and_then(|raw| tracing::tracing(&raw.value, &ids, &clusters, base, report));
    let of_log = access_log::Context { ids: &ids, clusters: &clusters, listeners: &listeners, base };
    let access_log = raw.access_log.and_then(|log| access_log::access_log(&log.value, &of_log, report));
    let shared = raw.kernel_plane.map(|plane| vip::shared(plane.value, report)).unwrap_or_default();
    if shared.socket_cgroup.is_none() {
        raw.vips.iter().for_each(|vips| vip::refuse_mode_socket(&vips.value, report));
    }
    Some(Snapshot {
        admin: admin.map(|admin| admin.value),
        admin_access,
        metrics: metrics.map(|metrics| metrics.value),
        access_log,
        tracing,
        dns: raw.dns.map_or_else(Dns::default, |dns| resolver(dns.value, report)),
        drain_delay: raw.drain_delay.map_or(defaults::DRAIN_DELAY, |delay| delay.value.0),
        drain_timeout: raw.drain_timeout.map_or(defaults::DRAIN_TIMEOUT, |timeout| timeout.value.0),
        memory_max: raw.memory_max.map(|bytes| bytes.value.0),
        vips: raw.vips.map_or_else(Vec::new, |vips| vip::vips(vips, shared.announce, &binds, report)),
        flows_max: shared.flows_max.unwrap_or(defaults::FLOWS_MAX),
        socket_cgroup: shared.socket_cgroup,
        announcing: shared.announcing,
        ..bare(generation, listeners, clusters)
    })
}

/// A file with neither listeners nor vips is most likely mistyped.
fn refuse_what_serves_nothing(raw: &RawFile, report: &mut Report) {
    let wrote = |key| raw.written().iter().any(|written| written.key == key);
    if !wrote("listeners") && !wrote("vips") && !wrote("sidecar") {
        let hint = "the proxy plane serves `listeners`, and the kernel plane serves `vips`";
        report.add(Location::START, Wrong::new("the file needs `listeners` or `vips`").hint(hint));
    }
    if wrote("listeners") && !wrote("clusters") {
        let wrong = Wrong::new("the file needs `clusters`");
        report.add(
            Location::START,
            wrong.hint("it maps names to clusters, which hold the endpoints that serve the listeners"),
        );
    }
}

/// Builds a snapshot of one listener that sends everything to one cluster.
pub fn one_listener(name: &str, bind: SocketAddr, tcp: bool, cluster: Cluster) -> Snapshot {
    bare(Generation(1), vec![listener::bare(name, bind, tcp, ClusterId(0))], vec![cluster])
}

/// Builds a snapshot with defaults for everything else.
fn bare(generation: Generation, listeners: Vec<Listener>, clusters: Vec<Cluster>) -> Snapshot {
    Snapshot {
        generation,
        admin: None,
        admin_access: AdminAccess::default(),
        metrics: None,
        access_log: None,
        tracing: None,
        dns: Dns::default(),
        drain_delay: defaults::DRAIN_DELAY,
        drain_timeout: defaults::DRAIN_TIMEOUT,
        memory_max: None,
        listeners,
        clusters: clusters.into_iter().map(Arc::new).collect(),
        vips: Vec::new(),
        flows_max: defaults::FLOWS_MAX,
        socket_cgroup: None,
        announcing: Announcing::default(),
    }
}

fn listeners(
    raw: Located<Named<Label, RawListener>>,
    context: &listener::Context<'_>,
    binds: &mut Binds,
    report: &mut Report,
) -> Vec<Listener> {
    if raw.value.0.is_empty() {
        report.add(
            raw.location,
            Wrong::new("`listeners` is empty").hint("add at least one, with a name, `bind` and `protocol`"),
        );
    }
    let mut listeners = Vec::with_capacity(raw.value.0.len());
    let mut captured = Vec::new();
    for entry in raw.value.0 {
        let Some(raw) = entry.value else { continue };
        match raw.bind.as_ref().map(|bind| (&bind.value, bind.location)) {
            Some((RawBind::Text(bind), location)) => binds.add(bind.0, location, report),
            Some((RawBind::Object(_), location)) => captured.push((entry.name.0.clone(), location)),
            None => {}
        }
        listeners.extend(listener::listener(&entry.name.0, raw, context, report));
    }
    sidecar::refuse_twice(&listeners, &captured, report);
    listeners
}

/// The addresses that the file opens, each with its place.
#[derive(Default)]
pub struct Binds {
    exact: HashMap<SocketAddr, Location>,
    /// The first address on each port, for IPv4 and for IPv6.
    first: HashMap<(u16, bool), (SocketAddr, Location)>,
}

impl Binds {
    fn add(&mut self, bind: SocketAddr, location: Location, report: &mut Report) {
        // Each bind to port 0 gets a different port.
        if bind.port() == 0 {
            return;
        }
        // An IPv4-mapped IPv6 address is the same address as the IPv4 one.
        let bind = SocketAddr::new(bind.ip().to_canonical(), bind.port());
        if let Some((other, first)) = self.in_the_way(bind) {
            let there = if other == bind { "there".to_owned() } else { format!("on {other}") };
            let hint = format!("line {} also listens {there}; change one of the ports", first.line);
            report.add(location, Wrong::new(format!("{bind} is used twice")).hint(hint));
        }
        self.exact.entry(bind).or_insert(location);
        self.first.entry((bind.port(), bind.is_ipv4())).or_insert((bind, location));
    }

    /// Returns an earlier bind that takes connections to the same address and port, so that only one of the two could be opened. `[::]`
    /// accepts IPv4 too.
    fn in_the_way(&self, bind: SocketAddr) -> Option<(SocketAddr, Location)> {
        let exact = |ip: IpAddr| {
            let address = SocketAddr::new(ip, bind.port());
            self.exact.get(&address).map(|location| (address, *location))
        };
        let first = |is_ipv4: bool| self.first.get(&(bind.port(), is_ipv4)).copied();
        let every = Ipv6Addr::UNSPECIFIED.into();
        let others = match bind.ip() {
            ip if ip == every => [first(false), first(true), None],
            ip @ IpAddr::V4(Ipv4Addr::UNSPECIFIED) => [exact(ip), exact(every), first(true)],
            ip @ IpAddr::V4(_) => [exact(ip), exact(every), exact(Ipv4Addr::UNSPECIFIED.into())],
            ip @ IpAddr::V6(_) => [exact(ip), exact(every), None],
        };
        others.into_iter().flatten().min_by_key(|(_, location)| *location)
    }

    /// A listener on the address of a vip would get no connections, because the kernel plane takes them first.
    fn refuse_vip(&self, name: &str, vip: &Located<VipAddress>, report: &mut Report) {
        let VipAddress { address, ports, transport } = vip.value;
        if transport != Transport::Tcp {
            return;
        }
        let same = |bind: &SocketAddr| bind.ip() == address && (ports.first..=ports.last).contains(&bind.port());
        let mut taken: Vec<_> = self.exact.iter().filter(|(bind, _)| same(bind)).collect();
        taken.sort();
        for (bind, location) in taken {
            let hint = format!(
                "line {} listens there; give {} `mode: local`, or change the port of the listener",
                location.line,
                ticked(name)
            );
            report.add(vip.location, Wrong::new(format!("{bind} is used twice")).hint(hint));
        }
    }
}

/// The clusters of the file by name. A cluster that could not be read has an id too, so that a `to` that names it is not a second error.
struct ClusterIds(HashMap<String, KnownCluster>);

/// What routes need to know about a cluster.
struct KnownCluster {
    id: ClusterId,
    speaks_h1: bool,
}

impl ClusterIds {
    fn of(clusters: Option<&Located<Named<Label, RawCluster>>>) -> Self {
        let entries = clusters.iter().flat_map(|clusters| &clusters.value.0);
        let known = entries.enumerate().map(|(index, entry)| {
            // A cluster that could not be read may speak any protocol.
            let speaks_h1 = entry.value.as_ref().is_some_and(RawCluster::speaks_h1);
            (entry.name.0.clone(), KnownCluster { id: ClusterId(index), speaks_h1 })
        });
        Self(known.collect())
    }

    /// Only this one, which may speak any protocol.
    fn one(name: &str) -> Self {
        Self([(name.to_owned(), KnownCluster { id: ClusterId(0), speaks_h1: false })].into())
    }

    /// Whether the cluster exists and speaks HTTP/1.1 with its endpoints.
    fn speaks_h1(&self, to: &Label) -> bool {
        self.0.get(to.0.as_str()).is_some_and(|known| known.speaks_h1)
    }

    fn find(&self, to: &Located<Label>, report: &mut Report) -> Option<ClusterId> {
        let name = to.value.0.as_str();
        if let Some(known) = self.0.get(name) {
            return Some(known.id);
        }
        let wrong = Wrong::new(format!("`to` names the cluster {}, which is not in `clusters`", ticked(name)));
        let mut known: Vec<&str> = self.0.keys().map(String::as_str).collect();
        known.sort_unstable();
        let hint = match (nearest(name, known.iter().copied()), known.as_slice()) {
            (Some(name), _) => format!("did you mean `{name}`?"),
            (None, []) => "there are no clusters".to_owned(),
            (None, [one]) => format!("the only cluster is `{one}`"),
            (None, many) if many.len() <= 8 => format!("the clusters are {}", many.join(", ")),
            (None, many) => format!("there are {} other clusters", many.len()),
        };
        report.add(to.location, wrong.hint(hint));
        None
    }
}

fn resolver(raw: RawDns, report: &mut Report) -> Dns {
    let mut dns = Dns::default();
    if let Some(servers) = raw.servers {
        dns.servers = servers.value.0.into_iter().map(|server| server.value.0).collect();
    }
    dns.ttl_min = positive(&raw.ttl_min, dns.ttl_min);
    dns.ttl_max = positive(&raw.ttl_max, dns.ttl_max);
    if let Some(location) = raw.ttl_min.or(raw.ttl_max).map(|ttl| ttl.location)
        && dns.ttl_min > dns.ttl_max
    {
        let message =
            format!("`ttl_min` ({}) is above `ttl_max` ({})", duration_text(dns.ttl_min), duration_text(dns.ttl_max));
        report.add(location, Wrong::new(message));
    }
    dns
}

/// `None` means off.
fn ping(raw: &RawPing) -> Option<Ping> {
    let RawPing::Object(raw) = raw else { return None };
    let default = Ping::default();
    Some(Ping { after: positive(&raw.after, default.after), timeout: positive(&raw.timeout, default.timeout) })
}

/// The written value, or the default.
fn positive(raw: &Option<Located<Positive>>, default: Duration) -> Duration {
    raw.as_ref().map_or(default, |raw| raw.value.0)
}

/// Converts a number to a count in memory. The limits in the tables of keys are far below what `usize` holds.
fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
