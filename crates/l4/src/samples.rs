//! The counters as Prometheus samples.

use std::net::SocketAddr;

use telemetry::{Kind, Sample};

use crate::{Counters, Traffic};

const TO: &str = "to_endpoint";
const FROM: &str = "from_endpoint";

/// Grouped by name, as the text format requires.
#[cfg_attr(not(any(kernel_plane, test)), expect(dead_code, reason = "there are no counters to tell"))]
pub(crate) fn samples(counters: &Counters) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut family = |name, kind, help, rows: Vec<(Vec<(&'static str, String)>, u64)>| {
        samples.extend(rows.into_iter().map(|(labels, value)| Sample {
            name,
            help,
            kind,
            labels,
            value: value as f64,
        }));
    };
    family(
        "steelyard_flow_table_used",
        Kind::Gauge,
        "Entries in the kernel's table of flows; a connection has two.",
        vec![(Vec::new(), counters.flows_used)],
    );
    family(
        "steelyard_flow_table_max",
        Kind::Gauge,
        "The most entries that the table holds.",
        vec![(Vec::new(), counters.flows_max)],
    );
    let help = "Whether the table is so full that half-open and closed flows are forgotten early.";
    family("steelyard_flow_table_pressure", Kind::Gauge, help, vec![(Vec::new(), u64::from(counters.pressure))]);

    let help = "Memory of the kernel plane's maps: the table of flows and all others.";
    family("steelyard_kernel_map_bytes", Kind::Gauge, help, vec![(Vec::new(), counters.map_bytes)]);

    let help = "Flows of the vip that have neither ended nor expired.";
    family("steelyard_vip_flows_active", Kind::Gauge, help, by_endpoint(counters, |traffic| traffic.flows_active));
    family(
        "steelyard_vip_flows_total",
        Kind::Counter,
        "Flows made.",
        by_endpoint(counters, |traffic| traffic.flows_made),
    );
    family("steelyard_vip_packets_total", Kind::Counter, "Packets forwarded.", by_direction(counters, |t| t.packets));
    let help = "Bytes forwarded, including the link-layer header.";
    family("steelyard_vip_bytes_total", Kind::Counter, help, by_direction(counters, |traffic| traffic.bytes));

    let help = "Sockets of this host that are connected to an endpoint because they asked for the vip.";
    family("steelyard_vip_sockets_open", Kind::Gauge, help, by_endpoint(counters, |traffic| traffic.sockets_open));
    let help = "Sockets of this host that were connected to an endpoint, and exchanges of datagrams of sockets that are not connected.";
    family("steelyard_vip_sockets_total", Kind::Counter, help, by_endpoint(counters, |traffic| traffic.sockets_made));

    let mut drops = Vec::new();
    for (vip, by_reason) in
        counters.vips.iter().map(|(name, vip)| (name.as_str(), &vip.drops)).chain([("", &counters.drops)])
    {
        for (reason, count) in by_reason {
            drops.push((vec![("vip", vip.to_owned()), ("reason", (*reason).to_owned())], *count));
        }
    }
    let help = "Packets not forwarded, and connections refused at the socket, by reason. Packets that belong to no vip have an empty vip label.";
    family("steelyard_vip_drops_total", Kind::Counter, help, drops);
    samples
}

fn by_endpoint(counters: &Counters, value: fn(&Traffic) -> u64) -> Vec<(Vec<(&'static str, String)>, u64)> {
    let mut rows = Vec::new();
    for (name, vip) in &counters.vips {
        for (endpoint, traffic) in &vip.endpoints {
            rows.push((vec![("vip", name.clone()), ("endpoint", written(endpoint))], value(traffic)));
        }
    }
    rows
}

fn by_direction(counters: &Counters, value: fn(&Traffic) -> [u64; 2]) -> Vec<(Vec<(&'static str, String)>, u64)> {
    let mut rows = Vec::new();
    for (name, vip) in &counters.vips {
        for (endpoint, traffic) in &vip.endpoints {
            for (direction, count) in [TO, FROM].into_iter().zip(value(traffic)) {
                let endpoint = written(endpoint);
                let labels = vec![("vip", name.clone()), ("endpoint", endpoint), ("direction", direction.to_owned())];
                rows.push((labels, count));
            }
        }
    }
    rows
}

/// As in the file: without a port if it is the one that the client connected to.
fn written(endpoint: &SocketAddr) -> String {
    if endpoint.port() == 0 { endpoint.ip().to_string() } else { endpoint.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VipCounters;

    #[test]
    fn endpoints_as_in_the_file() {
        let check = |endpoint: &str, expect: &str| assert_eq!(written(&endpoint.parse().unwrap()), expect);
        check("10.0.0.1:80", "10.0.0.1:80");
        check("10.0.0.1:0", "10.0.0.1");
        check("[fd00::1]:0", "fd00::1");
    }

    #[test]
    fn a_name_stands_together_and_labels_come_from_the_configuration() {
        let traffic = Traffic {
            flows_active: 2,
            flows_made: 7,
            packets: [10, 20],
            bytes: [100, 200],
            sockets_open: 1,
            sockets_made: 5,
            sockets_unknown: 0,
        };
        let vip = VipCounters {
            total: traffic.clone(),
            endpoints: [("10.0.0.1:80".parse().unwrap(), traffic)].into(),
            drops: [("no_endpoint", 3)].into(),
        };
        let counters =
            Counters { flows_used: 4, flows_max: 8, vips: [("web".to_owned(), vip)].into(), ..Counters::default() };
        let samples = samples(&counters);
        let text: Vec<String> = samples
            .iter()
            .map(|sample| {
                let labels: Vec<&str> = sample.labels.iter().map(|(_, value)| value.as_str()).collect();
                format!("{} {} {}", sample.name, labels.join(","), sample.value)
            })
            .collect();
        assert_eq!(
            text,
            [
                "steelyard_flow_table_used  4",
                "steelyard_flow_table_max  8",
                "steelyard_flow_table_pressure  0",
                "steelyard_kernel_map_bytes  0",
                "steelyard_vip_flows_active web,10.0.0.1:80 2",
                "steelyard_vip_flows_total web,10.0.0.1:80 7",
                "steelyard_vip_packets_total web,10.0.0.1:80,to_endpoint 10",
                "steelyard_vip_packets_total web,10.0.0.1:80,from_endpoint 20",
                "steelyard_vip_bytes_total web,10.0.0.1:80,to_endpoint 100",
                "steelyard_vip_bytes_total web,10.0.0.1:80,from_endpoint 200",
                "steelyard_vip_sockets_open web,10.0.0.1:80 1",
                "steelyard_vip_sockets_total web,10.0.0.1:80 5",
                "steelyard_vip_drops_total web,no_endpoint 3",
            ]
        );
    }
}
