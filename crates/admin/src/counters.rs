//! The current counters as `/counters` returns them in JSON, for clients that compute their own rates, such as
//! `steelyard top`.
//!
//! Job: the form of the counters, and the difference of two readings ([`rates_between`]). Not its job: judging them
//! (`findings`) and showing them (`show`).
//!
//! Durations are histograms rather than quantiles, because the quantiles of the last second cannot be computed from
//! total quantiles.

use std::collections::HashMap;

use model::{Protocol, Snapshot};
use serde::{Deserialize, Serialize};
use telemetry::{Distribution, ReasonTotals, Totals};

use crate::status::{EndpointState, Quantiles, quantiles, target};
use crate::vip::{VipEndpointStatus, VipStatus};

/// The version of the JSON. It grows when the meaning of a field changes or a field is removed. New fields may appear
/// without a new version.
pub const COUNTERS_VERSION: u32 = 1;

/// Counters since the start of the process, or since the object came into the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// [`COUNTERS_VERSION`].
    pub version: u32,
    /// The version of the program.
    pub steelyard: String,
    /// The process ID.
    pub pid: u32,
    /// Threads that carry traffic.
    pub workers: usize,
    /// Milliseconds since the process started. Rates are computed with this clock.
    pub uptime_ms: u64,
    /// The snapshot in force.
    pub generation: u64,
    /// The process finishes what is in progress and then exits.
    pub draining: bool,
    /// The longest duration of each bucket of a histogram, in microseconds. The bucket after the last one holds longer
    /// durations.
    pub bounds_us: Vec<u64>,
    /// In the order of the file.
    pub listeners: Vec<ListenerCounts>,
    /// Routes that have served requests, in the order of the file.
    pub routes: Vec<RouteCounts>,
    /// In the order of the file.
    pub endpoints: Vec<EndpointCounts>,
    /// The vips of the file in its order, then those that a command added.
    pub vips: Vec<VipCounts>,
    /// In the order of their vips. A process of an earlier version tells none.
    #[serde(default)]
    pub vip_endpoints: Vec<VipEndpointCounts>,
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerCounts {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub bind: String,
    /// Connections open now.
    pub connections_open: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Requests, or TCP connections given to a cluster.
    pub requests: u64,
    /// What was refused, failed or cut short.
    pub refused: u64,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteCounts {
    /// Its listener's name.
    pub listener: String,
    /// Its name.
    pub name: String,
    /// As in `/status`.
    pub cluster: String,
    /// Requests answered.
    pub requests: u64,
    /// Requests answered with 400 to 499.
    pub client_errors: u64,
    /// Requests answered with 500 to 599.
    pub errors: u64,
    /// The time that Steelyard itself added: the number of requests in each bucket.
    pub added: Vec<u64>,
    /// The time until the endpoint's response head: the number of requests in each bucket.
    pub upstream: Vec<u64>,
}

/// An endpoint of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointCounts {
    /// Its cluster's name.
    pub cluster: String,
    /// Its address.
    pub address: String,
    /// Whether it takes new work.
    pub state: EndpointState,
    /// Requests in progress.
    pub in_flight: u64,
    /// Connections open to it.
    pub connections: u64,
    /// Requests, or TCP connections, sent to it.
    pub requests: u64,
    /// Those of them that failed.
    pub failures: u64,
    /// The time until its response head: the number of requests in each bucket.
    pub upstream: Vec<u64>,
}

/// A vip. The kernel plane measures the rates of its packets itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VipCounts {
    /// Its name.
    pub name: String,
    /// As in the file.
    pub address: String,
    /// Flows open now.
    pub flows: u64,
    /// Flows created.
    pub flows_total: u64,
    /// Packets that were not forwarded.
    pub dropped: u64,
    /// Packets per second in both directions, in the last seconds.
    pub packets_per_second: f64,
    /// Bits per second in both directions, in the last seconds.
    pub bits_per_second: f64,
}

/// An endpoint of a vip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VipEndpointCounts {
    /// Its vip's name.
    pub vip: String,
    /// Where; without a port where the client's is kept.
    pub address: String,
    /// Whether it takes new flows.
    pub state: EndpointState,
    /// Flows open now.
    pub flows: u64,
    /// Flows made.
    pub flows_total: u64,
    /// Packets to the endpoint.
    pub packets_to: u64,
    /// Packets from the endpoint; none of them in mode dsr.
    pub packets_from: u64,
    /// Bytes of both directions, link layer included.
    pub bytes: u64,
}

/// What happened between two readings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// [`COUNTERS_VERSION`].
    pub version: u32,
    /// The version of the program that answered.
    pub steelyard: String,
    /// Its process ID.
    pub pid: u32,
    /// Threads that carry traffic.
    pub workers: usize,
    /// Seconds since the process started.
    pub uptime_seconds: u64,
    /// The snapshot in force.
    pub generation: u64,
    /// The process finishes what is in progress and then exits.
    pub draining: bool,
    /// The time between the readings.
    pub interval_seconds: f64,
    /// Listeners.
    pub listeners: Vec<ListenerRates>,
    /// Routes that have served requests since the start of the process.
    pub routes: Vec<RouteRates>,
    /// Endpoints of clusters.
    pub endpoints: Vec<EndpointRates>,
    /// Virtual IPs.
    pub vips: Vec<VipRow>,
    /// Endpoints of virtual IPs.
    pub vip_endpoints: Vec<VipEndpointRates>,
}

/// The rates of a listener.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ListenerRates {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub bind: String,
    /// Connections open now.
    pub connections_open: u64,
    /// Connections accepted.
    pub connections_per_second: f64,
    /// Requests, or TCP connections given to a cluster.
    pub requests_per_second: f64,
    /// What was refused, failed or cut short.
    pub refused_per_second: f64,
}

/// The rates of a route.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RouteRates {
    /// Its listener's name.
    pub listener: String,
    /// Its name.
    pub name: String,
    /// As in `/status`.
    pub cluster: String,
    /// Requests answered.
    pub requests_per_second: f64,
    /// Requests answered with 400 to 499.
    pub client_errors_per_second: f64,
    /// Requests answered with 500 to 599.
    pub errors_per_second: f64,
    /// The time that Steelyard itself added; `None` if nothing was measured.
    pub added_us: Option<Quantiles>,
    /// The time until the endpoint's response head; `None` if nothing was measured.
    pub upstream_us: Option<Quantiles>,
}

/// The rates of an endpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EndpointRates {
    /// Its cluster's name.
    pub cluster: String,
    /// Its address.
    pub address: String,
    /// Whether it takes new work.
    pub state: EndpointState,
    /// Requests in progress.
    pub in_flight: u64,
    /// Connections open to it.
    pub connections: u64,
    /// Requests, or TCP connections, sent to it.
    pub requests_per_second: f64,
    /// Those of them that failed.
    pub failures_per_second: f64,
    /// The time until its response head; `None` if nothing was measured.
    pub upstream_us: Option<Quantiles>,
}

/// The rates of a vip.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VipRow {
    /// Its name.
    pub name: String,
    /// As in the file.
    pub address: String,
    /// Flows open now.
    pub flows: u64,
    /// Flows created.
    pub flows_per_second: f64,
    /// Packets that were not forwarded.
    pub dropped_per_second: f64,
    /// Packets in both directions.
    pub packets_per_second: f64,
    /// Bits in both directions.
    pub bits_per_second: f64,
}

/// Of an endpoint of a vip, in a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VipEndpointRates {
    /// Its vip's name.
    pub vip: String,
    /// Where; without a port where the client's is kept.
    pub address: String,
    /// Whether it takes new flows.
    pub state: EndpointState,
    /// Flows open now.
    pub flows: u64,
    /// Flows made.
    pub flows_per_second: f64,
    /// Packets to the endpoint.
    pub packets_to_per_second: f64,
    /// Packets from the endpoint; none of them in mode dsr.
    pub packets_from_per_second: f64,
    /// Bits of both directions, link layer included.
    pub bits_per_second: f64,
}

impl Counters {
    /// Parses a response of `/counters`.
    ///
    /// # Errors
    /// Says in a sentence that the counters have another version, or that this is not a response of Steelyard.
    pub fn parse(json: &[u8]) -> Result<Self, String> {
        let foreign = |error| format!("this is not a response of Steelyard: {error}; is this the address of `admin:`?");
        let counters: Self = serde_json::from_slice(json).map_err(foreign)?;
        if counters.version != COUNTERS_VERSION {
            return Err(format!(
                "the running Steelyard reports its counters in version {}, but this program reads version \
                 {COUNTERS_VERSION}: use the same binary for both",
                counters.version
            ));
        }
        Ok(counters)
    }
}

/// Returns what the configuration and the counters say about the listeners.
pub fn listener_counts(snapshot: &Snapshot, totals: &Totals) -> Vec<ListenerCounts> {
    let counts = |listener: &model::Listener| {
        let total = totals.listeners.get(&listener.name);
        let refused = |reasons: &ReasonTotals| reasons.counted().map(|(_, count)| count).sum();
        ListenerCounts {
            name: listener.name.clone(),
            bind: listener.place(),
            connections_open: total.map_or(0, |total| total.open),
            connections: total.map_or(0, |total| total.connections),
            requests: total.map_or(0, |total| total.requests),
            refused: total.map_or(0, |total| refused(&total.reasons)),
        }
    };
    snapshot.listeners.iter().map(counts).collect()
}

/// Returns what the configuration and the counters say about the routes that have served requests.
pub fn route_counts(snapshot: &Snapshot, totals: &Totals) -> Vec<RouteCounts> {
    let mut counts = Vec::new();
    for listener in &snapshot.listeners {
        let Protocol::Http(http) = &listener.protocol else { continue };
        for route in http.routes.iter() {
            let Some(total) = totals.routes.get(&(listener.name.clone(), route.name.clone())) else { continue };
            let [_, _, _, client_errors, errors] = total.responses.0;
            counts.push(RouteCounts {
                listener: listener.name.clone(),
                name: route.name.clone(),
                cluster: target(snapshot, &route.to),
                requests: total.responses.sum(),
                client_errors,
                errors,
                added: total.added.counts().to_vec(),
                upstream: total.upstream.counts().to_vec(),
            });
        }
    }
    counts
}

impl From<&VipStatus> for VipCounts {
    fn from(vip: &VipStatus) -> Self {
        Self {
            name: vip.name.clone(),
            address: vip.address.clone(),
            flows: vip.flows,
            flows_total: vip.flows_total,
            dropped: vip.drops.values().sum(),
            packets_per_second: vip.rates.packets_per_second,
            bits_per_second: vip.rates.bits_per_second,
        }
    }
}

/// Returns the counters of the endpoints of the vips.
pub fn vip_endpoint_counts(vips: &[VipStatus]) -> Vec<VipEndpointCounts> {
    let counts = |(vip, of): (&VipStatus, &VipEndpointStatus)| VipEndpointCounts {
        vip: vip.name.clone(),
        address: of.address.clone(),
        state: of.state,
        flows: of.flows,
        flows_total: of.flows_total,
        packets_to: of.packets_to,
        packets_from: of.packets_from,
        bytes: of.bytes_to.saturating_add(of.bytes_from),
    };
    vips.iter().flat_map(|vip| vip.endpoints.iter().map(move |of| (vip, of))).map(counts).collect()
}

/// Returns what happened between two readings; `None` if they are of two processes or of the same moment.
pub fn rates_between(before: &Counters, now: &Counters) -> Option<Rates> {
    let passed_ms = now.uptime_ms.checked_sub(before.uptime_ms).filter(|ms| *ms > 0 && before.pid == now.pid)?;
    let seconds = passed_ms as f64 / 1000.0;
    Some(Rates {
        version: COUNTERS_VERSION,
        steelyard: now.steelyard.clone(),
        pid: now.pid,
        workers: now.workers,
        uptime_seconds: now.uptime_ms / 1000,
        generation: now.generation,
        draining: now.draining,
        interval_seconds: seconds,
        listeners: listener_rates(&before.listeners, &now.listeners, seconds),
        routes: route_rates(&before.routes, &now.routes, seconds),
        endpoints: endpoint_rates(&before.endpoints, &now.endpoints, seconds),
        vips: vip_rates(&before.vips, &now.vips, seconds),
        vip_endpoints: vip_endpoint_rates(&before.vip_endpoints, &now.vip_endpoints, seconds),
    })
}

/// A series that did not exist before started within the interval, and so did a series whose count has gone down.
fn rate(before: Option<u64>, now: u64, seconds: f64) -> f64 {
    now.checked_sub(before.unwrap_or(0)).unwrap_or(now) as f64 / seconds
}

fn time(before: Option<&Vec<u64>>, now: &[u64]) -> Option<Quantiles> {
    quantiles(&Distribution::between(before.map_or(&[], Vec::as_slice), now))
}

fn listener_rates(before: &[ListenerCounts], now: &[ListenerCounts], seconds: f64) -> Vec<ListenerRates> {
    let before: HashMap<&str, &ListenerCounts> = before.iter().map(|of| (of.name.as_str(), of)).collect();
    let rates = |of: &ListenerCounts| {
        let before = before.get(of.name.as_str());
        ListenerRates {
            name: of.name.clone(),
            bind: of.bind.clone(),
            connections_open: of.connections_open,
            connections_per_second: rate(before.map(|of| of.connections), of.connections, seconds),
            requests_per_second: rate(before.map(|of| of.requests), of.requests, seconds),
            refused_per_second: rate(before.map(|of| of.refused), of.refused, seconds),
        }
    };
    now.iter().map(rates).collect()
}

fn route_rates(before: &[RouteCounts], now: &[RouteCounts], seconds: f64) -> Vec<RouteRates> {
    let before: HashMap<(&str, &str), &RouteCounts> =
        before.iter().map(|of| ((of.listener.as_str(), of.name.as_str()), of)).collect();
    let rates = |of: &RouteCounts| {
        let before = before.get(&(of.listener.as_str(), of.name.as_str()));
        RouteRates {
            listener: of.listener.clone(),
            name: of.name.clone(),
            cluster: of.cluster.clone(),
            requests_per_second: rate(before.map(|of| of.requests), of.requests, seconds),
            client_errors_per_second: rate(before.map(|of| of.client_errors), of.client_errors, seconds),
            errors_per_second: rate(before.map(|of| of.errors), of.errors, seconds),
            added_us: time(before.map(|of| &of.added), &of.added),
            upstream_us: time(before.map(|of| &of.upstream), &of.upstream),
        }
    };
    now.iter().map(rates).collect()
}

fn endpoint_rates(before: &[EndpointCounts], now: &[EndpointCounts], seconds: f64) -> Vec<EndpointRates> {
    let before: HashMap<(&str, &str), &EndpointCounts> =
        before.iter().map(|of| ((of.cluster.as_str(), of.address.as_str()), of)).collect();
    let rates = |of: &EndpointCounts| {
        let before = before.get(&(of.cluster.as_str(), of.address.as_str()));
        EndpointRates {
            cluster: of.cluster.clone(),
            address: of.address.clone(),
            state: of.state,
            in_flight: of.in_flight,
            connections: of.connections,
            requests_per_second: rate(before.map(|of| of.requests), of.requests, seconds),
            failures_per_second: rate(before.map(|of| of.failures), of.failures, seconds),
            upstream_us: time(before.map(|of| &of.upstream), &of.upstream),
        }
    };
    now.iter().map(rates).collect()
}

fn vip_rates(before: &[VipCounts], now: &[VipCounts], seconds: f64) -> Vec<VipRow> {
    let before: HashMap<&str, &VipCounts> = before.iter().map(|of| (of.name.as_str(), of)).collect();
    let rates = |of: &VipCounts| {
        let before = before.get(of.name.as_str());
        VipRow {
            name: of.name.clone(),
            address: of.address.clone(),
            flows: of.flows,
            flows_per_second: rate(before.map(|of| of.flows_total), of.flows_total, seconds),
            dropped_per_second: rate(before.map(|of| of.dropped), of.dropped, seconds),
            packets_per_second: of.packets_per_second,
            bits_per_second: of.bits_per_second,
        }
    };
    now.iter().map(rates).collect()
}

fn vip_endpoint_rates(before: &[VipEndpointCounts], now: &[VipEndpointCounts], seconds: f64) -> Vec<VipEndpointRates> {
    let before: HashMap<(&str, &str), &VipEndpointCounts> =
        before.iter().map(|of| ((of.vip.as_str(), of.address.as_str()), of)).collect();
    let rates = |of: &VipEndpointCounts| {
        let before = before.get(&(of.vip.as_str(), of.address.as_str()));
        VipEndpointRates {
            vip: of.vip.clone(),
            address: of.address.clone(),
            state: of.state,
            flows: of.flows,
            flows_per_second: rate(before.map(|of| of.flows_total), of.flows_total, seconds),
            packets_to_per_second: rate(before.map(|of| of.packets_to), of.packets_to, seconds),
            packets_from_per_second: rate(before.map(|of| of.packets_from), of.packets_from, seconds),
            bits_per_second: rate(before.map(|of| of.bytes), of.bytes, seconds) * 8.0,
        }
    };
    now.iter().map(rates).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two readings, two seconds apart, with 200 requests between them: 10 were answered with 503 and 5 with 404, and
    /// one of two endpoints failed some.
    pub(crate) fn before_and_now() -> [Counters; 2] {
        let listener = |requests| ListenerCounts {
            name: "web".into(),
            bind: "0.0.0.0:80".into(),
            connections_open: 12,
            connections: requests / 10,
            requests,
            refused: requests / 100,
        };
        let route = |requests, errors, added: &[u64], upstream: &[u64]| RouteCounts {
            listener: "web".into(),
            name: "/".into(),
            cluster: "shop".into(),
            requests,
            client_errors: errors / 2,
            errors,
            added: added.to_vec(),
            upstream: upstream.to_vec(),
        };
        let endpoint = |port, state, requests, failures, upstream: &[u64]| EndpointCounts {
            cluster: "shop".into(),
            address: format!("127.0.0.1:{port}"),
            state,
            in_flight: 3,
            connections: 8,
            requests,
            failures,
            upstream: upstream.to_vec(),
        };
        let counters = |uptime_ms, listener, route, endpoints| Counters {
            version: COUNTERS_VERSION,
            steelyard: "0.1.0".into(),
            pid: 4242,
            workers: 2,
            uptime_ms,
            generation: 7,
            draining: false,
            bounds_us: Distribution::bounds_us().collect(),
            listeners: vec![listener],
            routes: vec![route],
            endpoints,
            vips: vec![VipCounts {
                name: "dns".into(),
                address: "192.0.2.1:53/udp".into(),
                flows: 8,
                flows_total: uptime_ms / 100,
                dropped: 0,
                packets_per_second: 45_678.0,
                bits_per_second: 9.4e9,
            }],
            vip_endpoints: vec![vip_endpoint(uptime_ms)],
        };
        let (healthy, ejected) = (EndpointState::Healthy, EndpointState::Ejected);
        [
            counters(
                60_000,
                listener(1_000),
                route(1_000, 0, &[0, 1_000], &[0, 0, 1_000]),
                vec![endpoint(9001, healthy, 500, 0, &[0, 0, 500]), endpoint(9002, healthy, 500, 0, &[0, 0, 500])],
            ),
            counters(
                62_000,
                listener(1_200),
                route(1_200, 10, &[0, 1_100, 0, 100], &[0, 0, 1_000, 0, 0, 200]),
                vec![
                    endpoint(9001, healthy, 690, 0, &[0, 0, 500, 0, 0, 190]),
                    endpoint(9002, ejected, 510, 10, &[0, 0, 500, 0, 0, 10]),
                ],
            ),
        ]
    }

    fn vip_endpoint(uptime_ms: u64) -> VipEndpointCounts {
        VipEndpointCounts {
            vip: "dns".into(),
            address: "192.0.2.53:53".into(),
            state: EndpointState::Healthy,
            flows: 8,
            flows_total: uptime_ms / 100,
            packets_to: uptime_ms,
            packets_from: uptime_ms / 2,
            bytes: uptime_ms * 100,
        }
    }

    #[test]
    fn rates_are_of_the_interval_alone() {
        let [before, now] = before_and_now();
        let rates = rates_between(&before, &now).unwrap();
        assert_eq!(rates.interval_seconds, 2.0);
        let listener = &rates.listeners[0];
        assert_eq!((listener.requests_per_second, listener.connections_per_second), (100.0, 10.0));
        let route = &rates.routes[0];
        assert_eq!((route.requests_per_second, route.errors_per_second), (100.0, 5.0));
        assert_eq!(route.client_errors_per_second, 2.5);
        // Half of the requests of the interval are in the bucket up to 2 us, which also has all earlier ones. The other
        // half took up to 4 us.
        assert_eq!(route.added_us, Some(Quantiles { p50: 2.0, p99: 3.98 }));
        assert!(route.upstream_us.is_some_and(|upstream| upstream.p50 > 6.0), "{route:?}");
        let endpoints: Vec<_> =
            rates.endpoints.iter().map(|of| (of.requests_per_second, of.failures_per_second)).collect();
        assert_eq!(endpoints, [(95.0, 0.0), (5.0, 5.0)]);
        assert_eq!(rates.vips[0].flows_per_second, 10.0);
        let endpoint = &rates.vip_endpoints[0];
        assert_eq!((endpoint.flows_per_second, endpoint.bits_per_second), (10.0, 800_000.0));
        assert_eq!((endpoint.packets_to_per_second, endpoint.packets_from_per_second), (1_000.0, 500.0));
    }

    #[test]
    fn what_is_new_counts_and_what_has_begun_anew_is_no_flood() {
        let [mut before, mut now] = before_and_now();
        before.routes.clear();
        now.listeners[0].requests = 10;
        let rates = rates_between(&before, &now).unwrap();
        assert_eq!(rates.routes[0].requests_per_second, 600.0);
        assert_eq!(rates.listeners[0].requests_per_second, 5.0);
    }

    #[test]
    fn two_processes_or_one_moment_have_no_rates() {
        let [before, now] = before_and_now();
        assert_eq!(rates_between(&now, &now), None);
        assert_eq!(rates_between(&now, &before), None);
        assert_eq!(rates_between(&before, &Counters { pid: 1, ..now }), None);
    }

    #[test]
    fn another_version_is_refused() {
        let [counters, _] = before_and_now();
        let json = serde_json::to_vec(&counters).unwrap();
        assert_eq!(Counters::parse(&json).as_ref(), Ok(&counters));
        let json = serde_json::to_vec(&Counters { version: 9, ..counters }).unwrap();
        let error = Counters::parse(&json).unwrap_err();
        assert!(error.contains("in version 9, but this program reads version 1"), "{error}");
        // A process of a version that did not count the endpoints of vips.
        let mut value = serde_json::to_value(&before_and_now()[1]).unwrap();
        value.as_object_mut().unwrap().remove("vip_endpoints");
        assert_eq!(Counters::parse(value.to_string().as_bytes()).unwrap().vip_endpoints, []);
        assert!(Counters::parse(b"<html>").unwrap_err().contains("not a response of Steelyard"));
    }
}
