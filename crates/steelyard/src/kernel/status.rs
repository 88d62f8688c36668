//! The status of vips: counters, rates, and their settings as in the file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use admin::{EndpointState, VipEndpointRecent, VipEndpointStatus, VipRates, VipStatus};
use balance::EndpointStatus;
use l4::{Counters, Plane, Traffic};
use model::{Transport, Tunnel, Vip, VipAlgorithm, VipMode};
use telemetry::Window;

use crate::control::answers::Probes;
use crate::vips::{VipPlan, shown};

/// The counters of the last two collections.
#[derive(Default)]
pub(super) struct Rates {
    before: Option<(Instant, Counters)>,
    last: Option<(Instant, Counters)>,
}

impl Rates {
    pub(super) fn note(&mut self, counters: Counters, now: Instant) {
        self.before = self.last.replace((now, counters));
    }

    pub(super) fn of(&self, vip: &str) -> VipRates {
        let (Some((from, before)), Some((to, last))) = (&self.before, &self.last) else { return VipRates::default() };
        let (Some(before), Some(last)) = (before.vips.get(vip), last.vips.get(vip)) else { return VipRates::default() };
        let seconds = to.duration_since(*from).as_secs_f64();
        if seconds <= 0.0 {
            return VipRates::default();
        }
        let (before, last) = (&before.total, &last.total);
        let both = |of: [u64; 2]| of[0].saturating_add(of[1]);
        let rate = |before: u64, last: u64| last.saturating_sub(before) as f64 / seconds;
        VipRates {
            flows_per_second: rate(before.flows_made, last.flows_made),
            packets_per_second: rate(both(before.packets), both(last.packets)),
            bits_per_second: rate(both(before.bytes), both(last.bytes)) * 8.0,
        }
    }
}

/// What happened to all vips and their endpoints in the last minute.
#[derive(Default)]
pub(super) struct Recent {
    /// Flows created, packets to the endpoint, packets from it.
    endpoints: Window<(String, SocketAddr), 3>,
    /// Dropped packets, by the name of the reason.
    drops: Window<(String, &'static str), 1>,
    /// Sockets that found their table full, by vip.
    unknown: Window<String, 1>,
}

impl Recent {
    /// Records a sample. The caller calls this with each collection.
    pub(super) fn sample(&mut self, counters: &Counters, now_ms: u64) {
        let endpoints = counters.vips.iter().flat_map(|(name, vip)| {
            vip.endpoints.iter().map(|(address, traffic)| ((name.clone(), *address), of_traffic(traffic)))
        });
        self.endpoints.sample(now_ms, endpoints);
        let drops = counters
            .vips
            .iter()
            .flat_map(|(name, vip)| vip.drops.iter().map(|(reason, count)| ((name.clone(), *reason), [*count])));
        self.drops.sample(now_ms, drops);
        let unknown = counters.vips.iter().map(|(name, vip)| (name.clone(), [vip.total.sockets_unknown]));
        self.unknown.sample(now_ms, unknown);
    }

    /// In the last minute.
    pub(super) fn of_unknown(&self, counters: &Counters) -> u64 {
        let grown =
            |(name, vip): (&String, &l4::VipCounters)| self.unknown.growth(name, &[vip.total.sockets_unknown])[0];
        counters.vips.iter().map(grown).sum()
    }

    /// What happened in the last minute, and in the last few seconds.
    fn of_endpoint(&self, vip: &str, endpoint: SocketAddr, traffic: &Traffic) -> [VipEndpointRecent; 2] {
        let (key, now) = ((vip.to_owned(), endpoint), of_traffic(traffic));
        [self.endpoints.growth(&key, &now), self.endpoints.latest_growth(&key, &now)]
            .map(|[flows, packets_to, packets_from]| VipEndpointRecent { flows, packets_to, packets_from })
    }

    fn of_drops(&self, vip: &str, drops: &BTreeMap<&'static str, u64>) -> BTreeMap<&'static str, u64> {
        let growth = |(reason, count): (&&'static str, &u64)| {
            let [dropped] = self.drops.growth(&(vip.to_owned(), *reason), &[*count]);
            (*reason, dropped)
        };
        drops.iter().map(growth).collect()
    }
}

fn of_traffic(traffic: &Traffic) -> [u64; 3] {
    [traffic.flows_made, traffic.packets[0], traffic.packets[1]]
}

/// The status of a vip.
pub(super) fn vip_status(
    plan: &VipPlan,
    plane: &Plane,
    counters: &Counters,
    rates: &Rates,
    recent: &Recent,
    here: &BTreeSet<IpAddr>,
    probes: &Probes,
) -> VipStatus {
    let vip = &plan.vip;
    let counted = counters.vips.get(&vip.name);
    let total = counted.map(|counted| counted.total.clone()).unwrap_or_default();
    let endpoint = |(index, endpoint): (usize, &Arc<balance::EndpointState>)| {
        let address = endpoint.address();
        let traffic = counted.and_then(|counted| counted.endpoints.get(&address)).cloned().unwrap_or_default();
        let [of_minute, latest] = recent.of_endpoint(&vip.name, address, &traffic);
        let unreachable = plane.why_unreachable(&vip.name, address);
        VipEndpointStatus {
            address: shown(address),
            weight: plan.state.weight(index),
            state: match plan.state.status(index, 0) {
                Some(EndpointStatus::Draining) => EndpointState::Draining,
                _ if unreachable.is_some() => EndpointState::Unhealthy,
                Some(EndpointStatus::Unhealthy) => EndpointState::Unhealthy,
                _ if plan.is_checked(address, &probes.unproven) => EndpointState::Healthy,
                _ => EndpointState::Unchecked,
            },
            why: unreachable.map(str::to_owned).or_else(|| plan.failure(address, &probes.failures)),
            flows: traffic.flows_active,
            flows_total: traffic.flows_made,
            packets_to: traffic.packets[0],
            packets_from: traffic.packets[1],
            bytes_to: traffic.bytes[0],
            bytes_from: traffic.bytes[1],
            is_here: here.contains(&address.ip()),
            sockets: traffic.sockets_open,
            sockets_total: traffic.sockets_made,
            recent: of_minute,
            latest,
        }
    };
    VipStatus {
        name: vip.name.clone(),
        address: written(vip),
        mode: mode(&vip.mode).to_owned(),
        tunnel: vip.tunnel.map(|tunnel| self::tunnel(tunnel).to_owned()),
        algorithm: algorithm(vip.algorithm).to_owned(),
        interfaces: plane.interfaces_of(vip),
        along_routes: vip.interfaces.is_empty() && vip.mode != VipMode::Socket,
        added: plan.added,
        flows: total.flows_active,
        flows_total: total.flows_made,
        sockets: total.sockets_open,
        sockets_total: total.sockets_made,
        rates: rates.of(&vip.name),
        drops: counted.map(|counted| occurred(&counted.drops)).unwrap_or_default(),
        recent_drops: counted.map(|counted| occurred(&recent.of_drops(&vip.name, &counted.drops))).unwrap_or_default(),
        announcement: None,
        endpoints: plan.state.endpoints().iter().enumerate().map(endpoint).collect(),
    }
}

/// Keeps the reasons that occurred.
pub(super) fn occurred(drops: &BTreeMap<&'static str, u64>) -> BTreeMap<String, u64> {
    drops.iter().filter(|(_, count)| **count > 0).map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
}

/// The address of a vip, as written in the file.
fn written(vip: &Vip) -> String {
    let first = SocketAddr::new(vip.address, vip.ports.first);
    let last = if vip.ports.first == vip.ports.last { String::new() } else { format!("-{}", vip.ports.last) };
    format!("{first}{last}/{}", transport(vip.transport))
}

pub(super) fn transport(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
    }
}

fn tunnel(tunnel: Tunnel) -> &'static str {
    match tunnel {
        Tunnel::Ipip => "ipip",
        Tunnel::Gue => "gue",
    }
}

fn mode(mode: &VipMode) -> &'static str {
    match mode {
        VipMode::Nat => "nat",
        VipMode::FullNat { .. } => "full_nat",
        VipMode::Dsr => "dsr",
        VipMode::Local => "local",
        VipMode::Socket => "socket",
    }
}

fn algorithm(algorithm: VipAlgorithm) -> &'static str {
    match algorithm {
        VipAlgorithm::RoundRobin => "round_robin",
        VipAlgorithm::Random => "random",
        VipAlgorithm::Maglev => "maglev",
        VipAlgorithm::SourceHash => "source_hash",
        VipAlgorithm::LeastConnections => "least_connections",
    }
}

#[cfg(test)]
mod tests {
    use l4::{Traffic, VipCounters};

    use super::*;
    use crate::kernel::COLLECT_EVERY;

    fn counters(flows_made: u64, packets: [u64; 2], bytes: [u64; 2]) -> Counters {
        let total = Traffic { flows_made, packets, bytes, ..Traffic::default() };
        let web = VipCounters { total, ..VipCounters::default() };
        Counters { vips: [("web".to_owned(), web)].into(), ..Counters::default() }
    }

    #[test]
    fn rates_are_those_of_the_last_interval() {
        let start = Instant::now();
        let mut rates = Rates::default();
        assert_eq!(rates.of("web"), VipRates::default());
        rates.note(counters(1000, [9, 9], [9, 9]), start);
        assert_eq!(rates.of("web"), VipRates::default());
        rates.note(counters(1010, [10, 10], [10, 10]), start + COLLECT_EVERY);
        rates.note(counters(1030, [20, 30], [110, 60]), start + 2 * COLLECT_EVERY);
        let expect = VipRates { flows_per_second: 10.0, packets_per_second: 15.0, bits_per_second: 600.0 };
        assert_eq!(rates.of("web"), expect);
        assert_eq!(rates.of("dns"), VipRates::default());
        // The plane was detached and set up again, so no counter went backwards.
        rates.note(counters(0, [0, 0], [0, 0]), start + 3 * COLLECT_EVERY);
        assert_eq!(rates.of("web"), VipRates::default());
    }

    #[test]
    fn addresses_are_written_as_in_the_file() {
        let check = |address: &str| {
            let description = format!("{{address: '{address}', interfaces: a, mode: local}}");
            assert_eq!(config::parse_vip("v", &description).map(|vip| written(&vip)), Ok(address.to_owned()));
        };
        check("192.0.2.1:80/tcp");
        check("[2001:db8::1]:5000-5010/udp");
    }
}
