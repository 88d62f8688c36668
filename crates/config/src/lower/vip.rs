//! Lowers vips and checks that they do not collide.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use model::{
    Announce, Announcing, Endpoint, EndpointAddress, FlowTimeouts, HealthCheck, OnUnhealthy, PortRange, SourceRate,
    Transport, Vip, VipMode,
};

use super::{Binds, cluster};
use crate::defaults;
use crate::diagnostic::{Location, Report, Wrong, ticked};
use crate::raw::{ModeName, RawFlowTimeouts, RawHealthCheck, RawKernelPlane, RawSourceRate, RawVip, RawVipEndpoint};
use crate::read::{Keyed, Located, Many, Named, OneOrMany};
use crate::text::{Interface, Label, Network, Seconds, VipAddress};

/// The most vips of one file: the capacity of the kernel plane.
pub const VIPS_MAX: usize = 8192;

/// The most endpoints of all vips together. The kernel plane has room for twice as many, because removed endpoints stay while they have
/// connections.
const VIP_ENDPOINTS_MAX: usize = 32_768;

/// Source addresses of one vip.
const VIP_SOURCES_MAX: usize = 8;

/// Ranges of ports on one address, over both protocols.
const VIP_RANGES_MAX: usize = 8;

/// Entries of `interfaces` of one vip, of `allow` and of `deny`.
const LIST_MAX: usize = 4096;

/// The table of the host's own addresses.
pub const TABLE_LOCAL: u32 = 255;

/// Why routes cannot be in it.
pub const NOT_TABLE_LOCAL: &str =
    "table 255 has the addresses of this host itself: use 254, the main table, or a table of your own";

/// What all vips share.
#[derive(Default)]
pub struct Shared {
    pub flows_max: Option<u32>,
    pub socket_cgroup: Option<PathBuf>,
    pub announce: Announce,
    pub announcing: Announcing,
}

/// Lowers what all vips share.
pub fn shared(raw: RawKernelPlane, report: &mut Report) -> Shared {
    let default = Announcing::default();
    if let Some(table) = raw.route_table.as_ref().filter(|table| table.value.0 == u64::from(TABLE_LOCAL)) {
        report.add(table.location, Wrong::new(NOT_TABLE_LOCAL));
    }
    let number = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Shared {
        flows_max: raw.flows_max.map(|flows| number(flows.value.0)),
        socket_cgroup: raw.socket_cgroup.map(|folder| folder.value.0),
        announce: raw.announce.map_or(Announce::None, |announce| announce.value.0),
        announcing: Announcing {
            after: raw.announce_after.map_or(default.after, |after| after.value.0),
            table: raw.route_table.map_or(default.table, |table| number(table.value.0)),
            metric: raw.route_metric.map_or(default.metric, |metric| number(metric.value.0)),
        },
    }
}

/// Lowers all vips that could be read. `announce` is for those that do not say how they are announced.
pub fn vips(raw: Located<Named<Label, RawVip>>, announce: Announce, binds: &Binds, report: &mut Report) -> Vec<Vip> {
    let whole = raw.location;
    let mut taken = Taken::default();
    let mut vips = Vec::with_capacity(raw.value.0.len());
    for entry in raw.value.0 {
        let Some(raw) = entry.value else { continue };
        let mode = raw.mode.as_ref().map_or(ModeName::Nat, |mode| mode.value.0);
        if let Some(address) = &raw.address {
            taken.add(&entry.name.0, address, mode == ModeName::Socket, report);
            if !matches!(mode, ModeName::Local | ModeName::Socket) {
                binds.refuse_vip(&entry.name.0, address, report);
            }
        }
        vips.extend(vip(&entry.name.0, raw, mode, announce, report));
    }
    let mut ways: HashMap<IpAddr, &Vip> = HashMap::new();
    for vip in vips.iter().filter(|vip| vip.announce != Announce::None) {
        let other = *ways.entry(vip.address).or_insert(vip);
        if other.announce != vip.announce {
            let (one, two) = (ticked(&other.name), ticked(&vip.name));
            let wrong = Wrong::new(format!("{one} and {two} announce {} in different ways", vip.address));
            report.add(
                whole,
                wrong.hint("an address is announced in one way: set the same `announce` in both, or none in one"),
            );
        }
    }
    let endpoints: usize = vips.iter().map(|vip| vip.endpoints.len()).sum();
    for (count, max, what) in [(vips.len(), VIPS_MAX, "vips"), (endpoints, VIP_ENDPOINTS_MAX, "endpoints of vips")] {
        if count > max {
            report.add(whole, Wrong::new(format!("there are {count} {what}; the kernel plane has room for {max}")));
        }
    }
    vips
}

/// Without a control group, nothing would be served, and nothing would say so.
pub fn refuse_mode_socket(raw: &Named<Label, RawVip>, report: &mut Report) {
    for vip in raw.0.iter().filter_map(|entry| entry.value.as_ref()) {
        if let Some(mode) = vip.mode.as_ref().filter(|mode| mode.value.0 == ModeName::Socket) {
            let wrong = Wrong::new("mode socket needs `kernel_plane.socket_cgroup`");
            report.add(mode.location, wrong.hint("name the control group of the processes, such as /sys/fs/cgroup"));
        }
    }
}

/// Returns `None` if a required key is missing; the report says so.
fn vip(name: &str, raw: RawVip, mode: ModeName, announce: Announce, report: &mut Report) -> Option<Vip> {
    refuse_keys_of_other_modes(&raw, mode, report);
    let address = raw.address.as_ref()?;
    refuse_ports_and_modes(address, mode, report);
    let address = address.value;
    let interfaces = raw.interfaces.map_or_else(Vec::new, |interfaces| self::interfaces(interfaces, report));
    let mut sources = Vec::new();
    for source in raw.sources.iter().flat_map(|sources| &sources.value.0) {
        refuse_other_family(source.value.0, &address, source.location, "a source", report);
        sources.push(source.value.0);
    }
    if let Some(raw) = raw.sources.as_ref().filter(|raw| raw.value.0.len() > VIP_SOURCES_MAX) {
        report.add(raw.location, Wrong::new(format!("`sources` has more than {VIP_SOURCES_MAX} addresses")));
    }
    let endpoints = match raw.endpoints {
        Some(endpoints) => self::endpoints(endpoints, name, &address, mode, report),
        None => Vec::new(),
    };
    let allow = networks(raw.allow, &address, report);
    let deny = networks(raw.deny, &address, report);
    if let Some((network, location)) = deny.iter().find(|(network, _)| allow.iter().any(|(other, _)| other == network))
    {
        report
            .add(*location, Wrong::new(format!("{network} is in both `allow` and `deny`")).hint("remove one of them"));
    }
    let health_check = raw.health_check.and_then(|check| health_check(check, &address, report));
    Some(Vip {
        name: name.to_owned(),
        address: address.address,
        ports: address.ports,
        transport: address.transport,
        interfaces,
        endpoints,
        algorithm: raw.balance.map_or(defaults::VIP_ALGORITHM, |balance| balance.value.0),
        mode: match mode {
            ModeName::Nat => VipMode::Nat,
            ModeName::FullNat => VipMode::FullNat { sources },
            ModeName::Dsr => VipMode::Dsr,
            ModeName::Local => VipMode::Local,
            ModeName::Socket => VipMode::Socket,
        },
        tunnel: raw.tunnel.map(|tunnel| tunnel.value.0).filter(|_| mode == ModeName::Dsr),
        affinity: raw.affinity.map(|affinity| affinity.value.0),
        health_check,
        on_unhealthy: raw.on_unhealthy.map_or(OnUnhealthy::Keep, |on_unhealthy| on_unhealthy.value.0),
        allow: allow.into_iter().map(|(network, _)| network).collect(),
        deny: deny.into_iter().map(|(network, _)| network).collect(),
        source_rate: raw.new_connections_per_source.map(|rate| source_rate(rate.value)),
        timeouts: timeouts(raw.timeouts.map(|timeouts| timeouts.value), address.transport),
        at_sockets: true,
        is_of_node: false,
        announce: match mode {
            // Nothing arrives for it.
            ModeName::Socket => Announce::None,
            // This host has these addresses itself.
            _ if address.address.is_unspecified() => Announce::None,
            _ => raw.announce.map_or(announce, |announce| announce.value.0),
        },
    })
}

/// Refuses keys that belong to another mode. Ignoring them silently would let the operator believe that they work.
fn refuse_keys_of_other_modes(raw: &RawVip, mode: ModeName, report: &mut Report) {
    // A health check with errors counts as present.
    let has_health_check = raw.written().iter().any(|written| written.key == "health_check");
    for written in raw.written() {
        let wrong = match (written.key, mode) {
            ("interfaces", ModeName::Socket) => Wrong::new("`interfaces` has no effect in mode socket")
                .hint("remove it: connections get their endpoint when a process of this host makes them"),
            ("announce", ModeName::Socket) if raw.announce.as_ref().is_some_and(|it| it.value.0 != Announce::None) => {
                Wrong::new("a vip in mode socket cannot be announced")
                    .hint("remove `announce`: only processes of this host reach it")
            }
            ("address" | "interfaces" | "mode" | "announce", _) => continue,
            (_, ModeName::Local) => Wrong::new(format!("`{}` has no effect in mode local", written.key))
                .hint("remove it: the listener on this address decides how to serve it"),
            ("allow" | "deny" | "new_connections_per_source", ModeName::Socket) => {
                Wrong::new(format!("`{}` has no effect in mode socket", written.key))
                    .hint("remove it: a socket gets its own address after its endpoint, so nothing can be compared")
            }
            ("sources", ModeName::Nat | ModeName::Dsr | ModeName::Socket) => {
                Wrong::new(format!("`sources` has no effect in mode {}", mode.name()))
                    .hint("remove it, or use `mode: full_nat`: in this mode endpoints see the client's address")
            }
            ("tunnel", ModeName::Nat | ModeName::FullNat | ModeName::Socket) => {
                Wrong::new(format!("`tunnel` has no effect in mode {}", mode.name()))
                    .hint("remove it, or use `mode: dsr`: in this mode packets carry the endpoint's address")
            }
            ("on_unhealthy", ModeName::Dsr)
                if raw.on_unhealthy.as_ref().is_some_and(|it| it.value.0 == OnUnhealthy::Reset) =>
            {
                Wrong::new("`on_unhealthy: reset` cannot work in mode dsr")
                    .hint("remove it: endpoints answer clients directly, so this host cannot reset their connections")
            }
            ("on_unhealthy", _)
                if !has_health_check
                    && raw.on_unhealthy.as_ref().is_some_and(|it| it.value.0 == OnUnhealthy::Reset) =>
            {
                Wrong::new("`on_unhealthy: reset` needs a `health_check`").hint(
                    "without one, no endpoint ever becomes unhealthy; add one, such as `health_check: {tcp: true}`",
                )
            }
            _ => continue,
        };
        report.add(written.location, wrong);
    }
    if let (Some(address), None, true) = (&raw.address, &raw.endpoints, mode != ModeName::Local)
        && !raw.written().iter().any(|written| written.key == "endpoints")
    {
        let hint = "add at least one, or set `mode: local` if a listener on this host serves the address";
        report.add(address.location, Wrong::new("a vip needs `endpoints`").hint(hint));
    }
}

/// Some modes need one address and one port.
fn refuse_ports_and_modes(address: &Located<VipAddress>, mode: ModeName, report: &mut Report) {
    let is_range = address.value.ports.first != address.value.ports.last;
    let every = address.value.address.is_unspecified();
    let wrong = match mode {
        ModeName::Socket if is_range => {
            Wrong::new("a vip in mode socket has one port").hint("make a vip for each port")
        }
        ModeName::Dsr | ModeName::Local if every => Wrong::new(format!(
            "{} stands for every address of this host, which mode {} cannot serve",
            address.value.address,
            mode.name()
        ))
        .hint("name one address"),
        _ if every && is_range => {
            Wrong::new("a vip with every address of this host has one port").hint("make a vip for each port")
        }
        _ => return,
    };
    report.add(address.location, wrong);
}

fn health_check(raw: Located<RawHealthCheck>, vip: &VipAddress, report: &mut Report) -> Option<HealthCheck> {
    let check = cluster::health_check(raw.value, report)?;
    if check.port.is_none() && vip.ports.first != vip.ports.last {
        let wrong = Wrong::new("a health check of a vip with a range of ports needs `port`");
        report.add(raw.location, wrong.hint("set the port of the endpoints to probe"));
    }
    Some(check)
}

fn interfaces(raw: Located<OneOrMany<Interface>>, report: &mut Report) -> Vec<String> {
    let mut seen = HashSet::new();
    refuse_long(raw.value.0.len(), "interfaces", raw.location, report);
    for Located { location, value: Interface(name) } in &raw.value.0 {
        if !seen.insert(name.as_str()) {
            report.add(*location, Wrong::new(format!("the interface {} is given twice", ticked(name))));
        }
    }
    raw.value.0.into_iter().map(|interface| interface.value.0).collect()
}

fn endpoints(
    raw: Located<Many<RawVipEndpoint>>,
    name: &str,
    vip: &VipAddress,
    mode: ModeName,
    report: &mut Report,
) -> Vec<Endpoint> {
    let whole = raw.location;
    let mut first: HashMap<SocketAddr, Location> = HashMap::new();
    let mut endpoints = Vec::with_capacity(raw.value.0.len());
    for Located { location, value } in raw.value.0 {
        let (address, weight) = match value {
            RawVipEndpoint::Text(address) => (Some(address), None),
            RawVipEndpoint::Object(object) => (object.address.map(|address| address.value), object.weight),
        };
        let Some(address) = address.map(|address| address.0) else { continue };
        refuse_other_family(address.ip(), vip, location, "an endpoint", report);
        if let Some(wrong) = wrong_endpoint(address, vip, mode) {
            report.add(location, wrong);
        }
        if let Some(first) = first.insert(address, location) {
            let hint = format!("the first is at line {}; to send it more traffic, raise its weight", first.line);
            report.add(location, Wrong::new(format!("an endpoint of {} is given twice", ticked(name))).hint(hint));
        }
        let weight = weight.map(|weight| u32::try_from(weight.value.0).unwrap_or(u32::MAX));
        let weight = weight.unwrap_or(defaults::WEIGHT);
        endpoints.push(Endpoint {
            address: EndpointAddress::Socket(address),
            weight,
            priority: 0,
            zone: model::Zone::Unknown,
            host: None,
        });
    }
    if !endpoints.is_empty() && endpoints.iter().all(|endpoint| endpoint.weight == 0) {
        let hint = "no endpoint would get connections; give at least one a weight above 0";
        report.add(whole, Wrong::new(format!("every endpoint of {} has weight 0", ticked(name))).hint(hint));
    }
    endpoints
}

/// Checks a single endpoint against its vip.
fn wrong_endpoint(endpoint: SocketAddr, vip: &VipAddress, mode: ModeName) -> Option<Wrong> {
    let (port, ip) = (endpoint.port(), endpoint.ip());
    if ip == vip.address {
        let hint = match mode {
            ModeName::Dsr => "write the endpoint's own address, which it has besides the virtual one",
            _ => "packets would loop; write the address of the endpoint",
        };
        return Some(Wrong::new(format!("the endpoint {ip} is the vip itself")).hint(hint));
    }
    if port == 0 {
        return None;
    }
    if vip.ports.first != vip.ports.last {
        let wrong = Wrong::new(format!("the endpoint {endpoint} has a port, but its vip has a range of ports"));
        return Some(
            wrong.hint(format!("write {ip}: the endpoint gets connections on the port that the client connected to")),
        );
    }
    if mode == ModeName::Dsr && port != vip.ports.first {
        let wrong = Wrong::new(format!("mode dsr cannot change the port to {port}"));
        return Some(
            wrong.hint(format!("the endpoint answers the client itself, from port {}; write {ip}", vip.ports.first)),
        );
    }
    None
}

fn networks(raw: Option<Located<OneOrMany<Network>>>, vip: &VipAddress, report: &mut Report) -> Vec<(IpNet, Location)> {
    let Some(raw) = raw else { return Vec::new() };
    refuse_long(raw.value.0.len(), "networks", raw.location, report);
    let mut networks: Vec<(IpNet, Location)> = Vec::with_capacity(raw.value.0.len());
    for Located { location, value: Network(network) } in raw.value.0 {
        refuse_other_family(network.addr(), vip, location, "a network", report);
        networks.push((network, location));
    }
    networks
}

fn refuse_long(count: usize, what: &str, location: Location, report: &mut Report) {
    if count > LIST_MAX {
        report.add(location, Wrong::new(format!("there are {count} {what}; the limit is {LIST_MAX}")));
    }
}

fn refuse_other_family(address: IpAddr, vip: &VipAddress, location: Location, what: &str, report: &mut Report) {
    if address.is_ipv4() != vip.address.is_ipv4() {
        let family = |address: IpAddr| if address.is_ipv4() { "IPv4" } else { "IPv6" };
        let (theirs, ours) = (family(address), family(vip.address));
        let wrong = Wrong::new(format!("{address} is {theirs}, but the vip {} is {ours}", vip.address));
        report.add(
            location,
            wrong.hint(format!("{what} must be of the same family as its vip; make a second vip for {theirs}")),
        );
    }
}

fn source_rate(raw: RawSourceRate) -> SourceRate {
    let (rate, burst) = match raw {
        RawSourceRate::Text(rate) => (Some(rate), None),
        RawSourceRate::Object(object) => (object.rate.map(|rate| rate.value), object.burst),
    };
    // If the rate is missing, the report has an error and this value is never used.
    let per_second = rate.map_or(u32::MAX, |rate| rate.0);
    let burst = burst.map(|burst| u32::try_from(burst.value.0).unwrap_or(u32::MAX));
    SourceRate { per_second, burst: burst.unwrap_or(per_second) }
}

fn timeouts(raw: Option<RawFlowTimeouts>, transport: Transport) -> FlowTimeouts {
    let mut timeouts = FlowTimeouts::new(transport);
    let Some(raw) = raw else { return timeouts };
    let or = |raw: Option<Located<Seconds>>, default: Duration| raw.map_or(default, |raw| raw.value.0);
    timeouts.syn = or(raw.syn, timeouts.syn);
    timeouts.idle = or(raw.idle, timeouts.idle);
    timeouts.closing = or(raw.closing, timeouts.closing);
    timeouts
}

/// The addresses of the vips so far.
#[derive(Default)]
struct Taken {
    /// Also by whether they are for sockets alone.
    by_address: HashMap<(IpAddr, Transport, bool), Vec<TakenPorts>>,
    ranges: HashMap<IpAddr, usize>,
}

struct TakenPorts {
    ports: PortRange,
    vip: String,
    location: Location,
}

impl Taken {
    fn add(&mut self, name: &str, vip: &Located<VipAddress>, is_for_sockets: bool, report: &mut Report) {
        let VipAddress { address, ports, transport } = vip.value;
        let others = self.by_address.entry((address, transport, is_for_sockets)).or_default();
        let overlap = |other: &&TakenPorts| other.ports.first <= ports.last && ports.first <= other.ports.last;
        if let Some(TakenPorts { vip: other, location: first, .. }) = others.iter().find(overlap) {
            let wrong = Wrong::new(format!("{} and {} share a port of {address}", ticked(other), ticked(name)));
            report.add(
                vip.location,
                wrong.hint(format!("the first is at line {}; a port belongs to one vip", first.line)),
            );
        }
        others.push(TakenPorts { ports, vip: name.to_owned(), location: vip.location });
        if ports.first != ports.last {
            let ranges = self.ranges.entry(address).or_default();
            *ranges += 1;
            if *ranges == VIP_RANGES_MAX + 1 {
                let wrong = Wrong::new(format!("{address} has more than {VIP_RANGES_MAX} vips with a range of ports"));
                report.add(vip.location, wrong.hint("merge ranges, or use another address"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_overlaps_is_refused() {
        let check = |one: &str, other: &str, expect: usize| {
            let text = format!(
                "vips: {{a: {{address: '{one}', interfaces: x, mode: local}}, b: {{address: '{other}', interfaces: x, mode: local}}}}"
            );
            let errors = crate::parse("f", &text, model::Generation(1)).map_or_else(|errors| errors.0.len(), |_| 0);
            assert_eq!(errors, expect, "{one} {other}");
        };
        check("10.0.0.1:80/tcp", "10.0.0.1:80/tcp", 1);
        check("10.0.0.1:80/tcp", "10.0.0.1:80/udp", 0);
        check("10.0.0.1:80/tcp", "10.0.0.2:80/tcp", 0);
        check("10.0.0.1:80/tcp", "10.0.0.1:81/tcp", 0);
        check("10.0.0.1:80/tcp", "10.0.0.1:80-90/tcp", 1);
        check("10.0.0.1:80-90/tcp", "10.0.0.1:90-91/tcp", 1);
        check("10.0.0.1:80-90/tcp", "10.0.0.1:91-92/tcp", 0);
        check("[fd00::1]:1-65535/tcp", "[fd00::1]:443/tcp", 1);
    }

    #[test]
    fn the_limits_of_the_kernel_plane() {
        let check = |vips: String, expect: &[&str]| {
            let errors = crate::parse("f", &format!("vips: {{{vips}}}"), model::Generation(1));
            let found: Vec<String> =
                errors.map_or_else(|errors| errors.0, |_| Vec::new()).into_iter().map(|d| d.message).collect();
            assert_eq!(found, expect);
        };
        let each = |count: usize, one: &dyn Fn(usize) -> String| (0..count).map(one).collect::<Vec<_>>().join(",\n ");
        let local = |i: usize| {
            format!("v{i}: {{address: '10.0.{}.{}:1/tcp', interfaces: x, mode: local}}", i / 250, i % 250 + 1)
        };
        check(each(VIPS_MAX, &local), &[]);
        check(each(VIPS_MAX + 1, &local), &["there are 8193 vips; the kernel plane has room for 8192"]);
        let range = |i: usize| {
            format!("v{i}: {{address: '10.0.0.1:{}-{}/udp', interfaces: x, mode: local}}", 10 * i + 1, 10 * i + 2)
        };
        check(each(VIP_RANGES_MAX, &range), &[]);
        check(each(VIP_RANGES_MAX + 1, &range), &["10.0.0.1 has more than 8 vips with a range of ports"]);
        let sources = |count| {
            let sources = each(count, &|i| format!("10.0.1.{}", i + 1));
            format!(
                "v: {{address: '10.0.0.1:1/udp', interfaces: x, mode: full_nat, endpoints: [10.0.0.2], sources: [{sources}]}}"
            )
        };
        check(sources(VIP_SOURCES_MAX), &[]);
        check(sources(VIP_SOURCES_MAX + 1), &["`sources` has more than 8 addresses"]);
        let endpoints = |count| {
            let endpoints = each(count, &|i| format!("10.1.{}.{}", i / 250, i % 250 + 1));
            format!("v: {{address: '10.0.0.1:1/udp', interfaces: x, endpoints: [{endpoints}]}}")
        };
        check(endpoints(VIP_ENDPOINTS_MAX), &[]);
        check(
            endpoints(VIP_ENDPOINTS_MAX + 1),
            &["there are 32769 endpoints of vips; the kernel plane has room for 32768"],
        );
    }

    #[test]
    fn the_kernel_plane_has_room_for_what_is_good() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../l4/bpf/abi.h");
        let header = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let check = |name: &str, needed: usize| {
            let line = header.lines().find(|line| line.contains(&format!("#define {name} "))).expect(name);
            let digits: String =
                line.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
            assert_eq!(digits.parse(), Ok(needed), "{line}");
        };
        check("LB_VIPS_MAX", VIPS_MAX);
        check("LB_ENDPOINTS_MAX", 2 * VIP_ENDPOINTS_MAX);
        check("LB_POOL_MAX", VIP_SOURCES_MAX);
        check("LB_RANGES_MAX", VIP_RANGES_MAX);
    }
}
