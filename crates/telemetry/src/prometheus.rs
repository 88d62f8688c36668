//! Prometheus text, format 0.0.4 (<https://prometheus.io/docs/instrumenting/exposition_formats/>).
//!
//! This module has the names, the help texts, the units (seconds and bytes) and the escaping. `registry` makes the sums, and `admin` serves
//! the text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::ops::RangeInclusive;
use std::sync::Arc;

use model::{Encoding, GRPC_STATUS_NAMES};

use crate::groups::{
    BodyTotals, ClusterTotals, CompressionTotals, EndpointTotals, ListenerTotals, MethodTotals, RouteTotals,
};
use crate::grpc::MethodKey;
use crate::histogram::Distribution;
use crate::reason::Reason;
use crate::registry::{EndpointKey, Totals};

/// A value that the caller adds to [`crate::Registry::render`].
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The name, `steelyard_...`, in the alphabet of Prometheus.
    pub name: &'static str,
    /// One sentence. The first sample of a name has the text for all of them.
    pub help: &'static str,
    /// The same for all samples of a name.
    pub kind: Kind,
    /// Names in the alphabet of Prometheus, values of any text.
    pub labels: Vec<(&'static str, String)>,
    /// In the base unit: seconds, bytes, or a number of things.
    pub value: f64,
}

/// What a value does over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only increases, until the process ends.
    Counter,
    /// It increases and decreases.
    Gauge,
}

/// The bounds of the histogram of the time that Steelyard added, as powers of two in microseconds: 4 us to 0.26 s. There are fewer than the
/// counters have, because each is a series.
const ADDED_BOUNDS: RangeInclusive<u32> = 2..=18;
/// The bounds of the histogram of the endpoint's time: 128 us to 67 s.
const UPSTREAM_BOUNDS: RangeInclusive<u32> = 7..=26;

pub(crate) fn render(totals: &Totals, extra: &[Sample]) -> String {
    let mut text = Text(String::with_capacity(16 * 1024));
    listeners(&mut text, &totals.listeners);
    routes(&mut text, &totals.routes);
    compressions(&mut text, &totals.compressions);
    bodies(&mut text, &totals.bodies);
    methods(&mut text, &totals.methods);
    clusters(&mut text, &totals.clusters);
    endpoints(&mut text, &totals.endpoints);
    let mut last = "";
    for sample in extra {
        if sample.name != last {
            text.head(sample.name, sample.help, sample.kind.name());
            last = sample.name;
        }
        let labels: Vec<(&str, &str)> = sample.labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
        text.sample(sample.name, &labels, sample.value);
    }
    text.0
}

fn listeners(text: &mut Text, totals: &BTreeMap<String, ListenerTotals>) {
    let mut family = |name, kind, help, value: fn(&ListenerTotals) -> u64| {
        text.family(name, kind, help, totals, |name, total, emit| emit(&[("listener", name)], value(total)));
    };
    use Kind::{Counter, Gauge};
    family("steelyard_listener_connections_total", Counter, "Downstream connections accepted.", |total| {
        total.connections
    });
    family("steelyard_listener_connections_open", Gauge, "Open downstream connections.", |total| total.open);
    let help = "Failed attempts to accept a connection, for lack of descriptors or memory.";
    family("steelyard_listener_accept_failures_total", Counter, help, |total| total.accept_failures);
    family("steelyard_listener_requests_total", Counter, "Requests, or TCP connections given to a cluster.", |total| {
        total.requests
    });
    family("steelyard_listener_received_bytes_total", Counter, "Bytes from clients.", |total| total.bytes_received);
    family("steelyard_listener_sent_bytes_total", Counter, "Bytes to clients.", |total| total.bytes_sent);
    family(
        "steelyard_listener_bandwidth_waits_total",
        Counter,
        "Waits of connections for the bandwidth of their client.",
        |total| total.bandwidth_waits,
    );
    let help = "Requests and connections that were refused, failed or cut short, by reason.";
    text.family("steelyard_refused_total", Counter, help, totals, |name, total, emit| {
        for reason in Reason::ALL {
            emit(&[("listener", name), ("reason", reason.name())], total.reasons.of(*reason));
        }
    });
}

fn routes(text: &mut Text, totals: &BTreeMap<(String, String), RouteTotals>) {
    let help = "Final responses to clients, by the class of their status.";
    text.family("steelyard_route_responses_total", Kind::Counter, help, totals, |(listener, route), total, emit| {
        for (class, count) in ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(total.responses.0) {
            emit(&[("listener", listener), ("route", route), ("class", class)], count);
        }
    });
    let mut histogram = |name, bounds: RangeInclusive<u32>, help, distribution: fn(&RouteTotals) -> &Distribution| {
        text.head(name, help, "histogram");
        for ((listener, route), total) in totals {
            text.histogram(name, &[("listener", listener), ("route", route)], distribution(total), bounds.clone());
        }
    };
    histogram(
        "steelyard_route_added_seconds",
        ADDED_BOUNDS,
        "Time that Steelyard itself added to a request.",
        |total| &total.added,
    );
    histogram(
        "steelyard_route_upstream_seconds",
        UPSTREAM_BOUNDS,
        "Time from sending a request's head to receiving its response's head.",
        |total| &total.upstream,
    );
    let mut asked = |name, help, distribution: fn(&RouteTotals) -> &Distribution| {
        text.head(name, help, "histogram");
        // Most routes ask no service.
        let asks = |total: &RouteTotals| *distribution(total) != Distribution::default();
        for ((listener, route), total) in totals.iter().filter(|(_, total)| asks(total)) {
            text.histogram(name, &[("listener", listener), ("route", route)], distribution(total), UPSTREAM_BOUNDS);
        }
    };
    asked(
        "steelyard_route_authorization_seconds",
        "Time that external authorization of a request took, until its answer or its timeout.",
        |total| &total.authorization,
    );
    asked(
        "steelyard_route_rate_limit_seconds",
        "Time that the global rate limit of a request took, until its answer or its timeout.",
        |total| &total.rate_limit,
    );
}

fn compressions(text: &mut Text, totals: &BTreeMap<(String, String), CompressionTotals>) {
    use Kind::Counter;
    let help = "Responses that were compressed, by encoding.";
    text.family("steelyard_route_compressed_total", Counter, help, totals, |(listener, route), total, emit| {
        for (encoding, count) in Encoding::ALL.iter().zip(total.responses.0) {
            emit(&[("listener", listener), ("route", route), ("encoding", encoding.name())], count);
        }
    });
    let mut family = |name, help, value: fn(&CompressionTotals) -> f64| {
        text.head(name, help, Counter.name());
        for ((listener, route), total) in totals {
            text.sample(name, &[("listener", listener), ("route", route)], value(total));
        }
    };
    family(
        "steelyard_route_compression_busy_total",
        "Responses that were not compressed, because too many were at that moment or memory was short.",
        |total| total.busy as f64,
    );
    family("steelyard_route_compression_input_bytes_total", "Bytes of bodies before compression.", |total| {
        total.bytes_in as f64
    });
    family("steelyard_route_compression_output_bytes_total", "Bytes of bodies after compression.", |total| {
        total.bytes_out as f64
    });
    family("steelyard_route_compression_cpu_seconds_total", "CPU time spent on compression.", |total| {
        total.cpu_ns as f64 / 1e9
    });
}

fn bodies(text: &mut Text, totals: &BTreeMap<(String, String), BodyTotals>) {
    use Kind::Counter;
    let help = "Requests whose body was decompressed, by encoding.";
    text.family("steelyard_route_decompressed_total", Counter, help, totals, |(listener, route), total, emit| {
        for (encoding, count) in Encoding::ALL.iter().zip(total.decompressed.0) {
            emit(&[("listener", listener), ("route", route), ("encoding", encoding.name())], count);
        }
    });
    let mut family = |name, help, value: fn(&BodyTotals) -> f64| {
        text.head(name, help, Counter.name());
        for ((listener, route), total) in totals {
            text.sample(name, &[("listener", listener), ("route", route)], value(total));
        }
    };
    family("steelyard_route_decompression_input_bytes_total", "Bytes of bodies before decompression.", |total| {
        total.bytes_in as f64
    });
    family("steelyard_route_decompression_output_bytes_total", "Bytes of bodies after decompression.", |total| {
        total.bytes_out as f64
    });
    family("steelyard_route_decompression_cpu_seconds_total", "CPU time spent on decompression.", |total| {
        total.cpu_ns as f64 / 1e9
    });
    family(
        "steelyard_route_buffered_total",
        "Requests whose whole body was collected before an endpoint got it.",
        |total| total.buffered as f64,
    );
    family("steelyard_route_buffered_bytes_total", "Bytes of the bodies that were collected.", |total| {
        total.buffered_bytes as f64
    });
}

fn methods(text: &mut Text, totals: &BTreeMap<MethodKey, MethodTotals>) {
    let labels = |key: &'_ MethodKey| {
        [("listener", key.listener.clone()), ("service", key.service.clone()), ("method", key.method.clone())]
    };
    let help = "gRPC calls that ended, by status.";
    text.family("steelyard_grpc_calls_total", Kind::Counter, help, totals, |key, total, emit| {
        let of_method = labels(key);
        let [listener, service, method] = of_method.each_ref().map(|(name, value)| (*name, value.as_str()));
        for (code, count) in GRPC_STATUS_NAMES.into_iter().zip(total.codes.0) {
            emit(&[listener, service, method, ("status", code)], count);
        }
    });
    let name = "steelyard_grpc_call_seconds";
    text.head(name, "Time from a call's head to the end of its response.", "histogram");
    for (key, total) in totals {
        let of_method = labels(key);
        let of_method = of_method.each_ref().map(|(name, value)| (*name, value.as_str()));
        text.histogram(name, &of_method, &total.duration, UPSTREAM_BOUNDS);
    }
}

fn clusters(text: &mut Text, totals: &BTreeMap<Arc<str>, ClusterTotals>) {
    let mut family = |name, kind, help, value: fn(&ClusterTotals) -> u64| {
        text.family(name, kind, help, totals, |name, total, emit| emit(&[("cluster", name)], value(total)));
    };
    use Kind::{Counter, Gauge};
    family(
        "steelyard_cluster_requests_total",
        Counter,
        "Requests or TCP connections, not counting retries.",
        |total| total.requests,
    );
    family("steelyard_cluster_retries_total", Counter, "Retried requests.", |total| total.retries);
    family(
        "steelyard_cluster_redispatches_total",
        Counter,
        "Endpoints passed over at once because they could not be reached.",
        |total| total.redispatches,
    );
    family("steelyard_cluster_connects_total", Counter, "Attempts to open an upstream connection.", |total| {
        total.connects
    });
    family(
        "steelyard_cluster_connect_failures_total",
        Counter,
        "Upstream connections that could not be opened.",
        |total| total.connect_failures,
    );
    family("steelyard_cluster_reused_total", Counter, "Requests sent on a reused connection.", |total| total.reused);
    family(
        "steelyard_cluster_stale_reuse_total",
        Counter,
        "Kept connections that turned out to be closed when reused.",
        |total| total.stale_reuse,
    );
    family("steelyard_cluster_pending", Gauge, "Requests that are waiting for a connection.", |total| total.pending);
    family(
        "steelyard_cluster_panic_picks_total",
        Counter,
        "Endpoint picks that ignored health and ejection.",
        |total| total.panic_picks,
    );
    family("steelyard_cluster_tunnels_total", Counter, "Upgraded connections and TCP connections.", |total| {
        total.tunnels
    });
    family("steelyard_cluster_mirrored_total", Counter, "Copies of requests that were answered.", |total| {
        total.mirrored
    });
}

fn endpoints(text: &mut Text, totals: &BTreeMap<EndpointKey, EndpointTotals>) {
    let mut family = |name, help, value: fn(&EndpointTotals) -> u64| {
        text.family(name, Kind::Counter, help, totals, |(cluster, address), total, emit| {
            emit(&[("cluster", cluster), ("endpoint", &address.to_string())], value(total));
        });
    };
    family("steelyard_endpoint_requests_total", "Requests or TCP connections sent to the endpoint.", |total| {
        total.requests
    });
    family("steelyard_endpoint_failures_total", "Failed requests or TCP connections.", EndpointTotals::failures);
    family("steelyard_endpoint_ejections_total", "Times that outlier ejection removed the endpoint.", |total| {
        total.ejections
    });
}

/// The page that is being written.
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a String does not fail.
        let _ = writeln!(self.0, "# HELP {name} {}\n# TYPE {name} {kind}", escape(help, false));
    }

    /// Writes the head and samples of one name. `samples` calls its last argument with the labels and value of each sample of one key.
    fn family<K, T>(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        totals: &BTreeMap<K, T>,
        samples: impl Fn(&K, &T, &mut dyn FnMut(&[(&str, &str)], u64)),
    ) {
        self.head(name, help, kind.name());
        for (key, total) in totals {
            samples(key, total, &mut |labels, value| self.sample(name, labels, value));
        }
    }

    fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        distribution: &Distribution,
        bounds: RangeInclusive<u32>,
    ) {
        let bucket = format!("{name}_bucket");
        for power in bounds {
            let us = 1_u64 << power;
            let le = seconds(us).to_string();
            self.sample(&bucket, &[labels, &[("le", &le)]].concat(), distribution.at_most(us));
        }
        self.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), distribution.count());
        self.sample(&format!("{name}_sum"), labels, seconds(distribution.sum_us));
        self.sample(&format!("{name}_count"), labels, distribution.count());
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (place, (label, value)) in labels.iter().enumerate() {
            let before = if place == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{before}{label}=\"{}\"", escape(value, true));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{after} {value}");
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        }
    }
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

/// Help texts escape backslash and line feed, label values also the quote. Other control characters are allowed there.
fn escape(text: &str, quote: bool) -> Cow<'_, str> {
    if !text.contains(['\\', '\n', '"']) {
        return Cow::Borrowed(text);
    }
    let escaped = text.replace('\\', "\\\\").replace('\n', "\\n");
    Cow::Owned(if quote { escaped.replace('"', "\\\"") } else { escaped })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes() {
        let check = |text: &str, label: &str, help: &str| {
            assert_eq!((escape(text, true).as_ref(), escape(text, false).as_ref()), (label, help), "{text:?}");
        };
        check("plain", "plain", "plain");
        check("a\"b", "a\\\"b", "a\"b");
        check("a\\b\nc", "a\\\\b\\nc", "a\\\\b\\nc");
        check("\\n", "\\\\n", "\\\\n");
    }

    #[test]
    fn samples_of_one_name_have_one_head() {
        let sample = |labels: &[(&'static str, &str)], value| Sample {
            name: "steelyard_endpoint_up",
            help: "Whether it is.",
            kind: Kind::Gauge,
            labels: labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
            value,
        };
        let generation =
            Sample { name: "steelyard_generation", help: "Of the snapshot.", labels: Vec::new(), ..sample(&[], 3.0) };
        let mut text = Text(String::new());
        text.0 = render(
            &Totals::default(),
            &[sample(&[("endpoint", "[::1]:80")], 1.0), sample(&[("endpoint", "x\"}\n1")], 0.0), generation],
        );
        let end = text.0.find("# HELP steelyard_endpoint_up").unwrap();
        assert_eq!(
            &text.0[end..],
            "# HELP steelyard_endpoint_up Whether it is.\n# TYPE steelyard_endpoint_up gauge\n\
             steelyard_endpoint_up{endpoint=\"[::1]:80\"} 1\n\
             steelyard_endpoint_up{endpoint=\"x\\\"}\\n1\"} 0\n\
             # HELP steelyard_generation Of the snapshot.\n# TYPE steelyard_generation gauge\nsteelyard_generation 3\n"
        );
    }

    #[test]
    fn a_histogram_in_text() {
        let histogram = crate::Histogram::default();
        [3, 4, 5, 100, 2_000_000].into_iter().for_each(|us| histogram.record(us));
        let mut distribution = Distribution::default();
        histogram.add_to(&mut distribution);
        let mut text = Text(String::new());
        text.histogram("h_seconds", &[("route", "/")], &distribution, 1..=3);
        assert_eq!(
            text.0,
            "h_seconds_bucket{route=\"/\",le=\"0.000002\"} 0\nh_seconds_bucket{route=\"/\",le=\"0.000004\"} 2\n\
             h_seconds_bucket{route=\"/\",le=\"0.000008\"} 3\nh_seconds_bucket{route=\"/\",le=\"+Inf\"} 5\n\
             h_seconds_sum{route=\"/\"} 2.000112\nh_seconds_count{route=\"/\"} 5\n"
        );
    }
}
