//! Prometheus text, format 0.0.4 (<https://prometheus.io/docs/instrumenting/exposition_formats/>), and OpenMetrics 1.0.0
//! (<https://prometheus.io/docs/specs/om/open_metrics_spec/>); and what `protobuf` makes of the same.
//!
//! This module has the names, the help texts, the units (seconds and bytes) and the escaping. `registry` makes the sums, and `admin` serves
//! the text.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{Display, Write};
use std::ops::RangeInclusive;
use std::sync::Arc;

use model::{Encoding, GRPC_STATUS_NAMES};

use crate::exemplar::{Exemplar, ExemplarTotals};
use crate::exposition::Exposition;
use crate::groups::{
    BodyTotals, ClusterTotals, CompressionTotals, EndpointTotals, ListenerTotals, MethodTotals, RouteTotals,
};
use crate::grpc::MethodKey;
use crate::histogram::Distribution;
use crate::protobuf::{Bucket, Families};
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

pub(crate) fn render(totals: &Totals, extra: &[Sample], format: Exposition) -> Vec<u8> {
    let mut text = Text::new(format);
    listeners(&mut text, &totals.listeners);
    routes(&mut text, &totals.routes);
    compressions(&mut text, &totals.compressions);
    bodies(&mut text, &totals.bodies);
    methods(&mut text, &totals.methods);
    clusters(&mut text, &totals.clusters);
    endpoints(&mut text, &totals.endpoints);
    let mut last = "";
    for sample in by_name(extra) {
        if sample.name != last {
            text.head(sample.name, sample.help, sample.kind.name());
            last = sample.name;
        }
        let labels: Vec<(&str, &str)> = sample.labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
        text.sample(sample.name, &labels, sample.value);
    }
    match format {
        Exposition::Text => text.out.into_bytes(),
        Exposition::OpenMetrics => (text.out + "# EOF\n").into_bytes(),
        Exposition::Protobuf => text.families.finish(),
    }
}

/// The samples with those of one name together, as the formats want them; the names are in the order of their first samples.
fn by_name(samples: &[Sample]) -> Vec<&Sample> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    for sample in samples {
        let next = places.len();
        places.entry(sample.name).or_insert(next);
    }
    let mut sorted: Vec<&Sample> = samples.iter().collect();
    // Stable: the samples of a name stay in their order.
    sorted.sort_by_cached_key(|sample| places.get(sample.name).copied());
    sorted
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
        "Waits of connections for the bandwidth of their client, or of a response.",
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
    let help = "Requests that were refused, failed or cut short, by route and reason. Only reasons that have occurred have a series.";
    text.family("steelyard_route_refused_total", Kind::Counter, help, totals, |(listener, route), total, emit| {
        for (reason, count) in &total.reasons {
            emit(&[("listener", listener), ("route", route), ("reason", reason.name())], *count);
        }
    });
    let help = "Retried requests.";
    text.family("steelyard_route_retries_total", Kind::Counter, help, totals, |(listener, route), total, emit| {
        emit(&[("listener", listener), ("route", route)], total.retries);
    });
    let help = "gRPC calls that ended with UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE or DATA_LOSS. Only routes that had some have a series.";
    text.family(
        "steelyard_route_call_failures_total",
        Kind::Counter,
        help,
        totals,
        |(listener, route), total, emit| {
            if total.call_failures > 0 {
                emit(&[("listener", listener), ("route", route)], total.call_failures);
            }
        },
    );
    let mut histogram = |name, bounds: RangeInclusive<u32>, help, of: fn(&RouteTotals) -> Observed<'_>| {
        text.head(name, help, "histogram");
        for ((listener, route), total) in totals {
            text.histogram(name, &[("listener", listener), ("route", route)], of(total), bounds.clone());
        }
    };
    histogram(
        "steelyard_route_added_seconds",
        ADDED_BOUNDS,
        "Time that Steelyard itself added to a request.",
        |total| (&total.added, Some(&total.added_exemplars)),
    );
    histogram(
        "steelyard_route_upstream_seconds",
        UPSTREAM_BOUNDS,
        "Time from sending a request's head to receiving its response's head.",
        |total| (&total.upstream, Some(&total.upstream_exemplars)),
    );
    let mut asked = |name, help, distribution: fn(&RouteTotals) -> &Distribution| {
        text.head(name, help, "histogram");
        // Most routes ask no service.
        let asks = |total: &RouteTotals| *distribution(total) != Distribution::default();
        for ((listener, route), total) in totals.iter().filter(|(_, total)| asks(total)) {
            text.histogram(
                name,
                &[("listener", listener), ("route", route)],
                (distribution(total), None),
                UPSTREAM_BOUNDS,
            );
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
        text.histogram(name, &of_method, (&total.duration, None), UPSTREAM_BOUNDS);
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

/// The durations of a histogram, and requests that stand for them.
type Observed<'t> = (&'t Distribution, Option<&'t ExemplarTotals>);

/// The page that is being written.
struct Text {
    out: String,
    /// The page instead of `out`, in protobuf.
    families: Families,
    format: Exposition,
}

/// A value of a sample.
trait Number: Display {
    fn value(&self) -> f64;
}

impl Number for u64 {
    fn value(&self) -> f64 {
        *self as f64
    }
}

impl Number for f64 {
    fn value(&self) -> f64 {
        *self
    }
}

impl Text {
    fn new(format: Exposition) -> Self {
        Self { out: String::with_capacity(16 * 1024), families: Families::default(), format }
    }

    fn head(&mut self, name: &str, help: &str, kind: &'static str) {
        if self.format == Exposition::Protobuf {
            return self.families.head(name, help, kind);
        }
        let is_open = self.format == Exposition::OpenMetrics;
        // The samples of a counter end with `_total`, but its name does not.
        let name = name.strip_suffix("_total").filter(|_| is_open && kind == Kind::Counter.name()).unwrap_or(name);
        // Writing to a String does not fail.
        let _ = writeln!(self.out, "# HELP {name} {}\n# TYPE {name} {kind}", escape(help, is_open));
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
        (distribution, exemplars): Observed<'_>,
        bounds: RangeInclusive<u32>,
    ) {
        // Text has none.
        let exemplars = exemplars.filter(|_| self.format != Exposition::Text);
        let mut last_us = 0;
        let mut buckets: Vec<Bucket<'_>> = bounds
            .map(|power| {
                let us = 1_u64 << power;
                let exemplar = exemplars.and_then(|exemplars| exemplars.within(last_us, Some(us)));
                last_us = us;
                Bucket { le: seconds(us), count: distribution.at_most(us), exemplar }
            })
            .collect();
        let exemplar = exemplars.and_then(|exemplars| exemplars.within(last_us, None));
        buckets.push(Bucket { le: f64::INFINITY, count: distribution.count(), exemplar });
        if self.format == Exposition::Protobuf {
            return self.families.histogram(labels, distribution, &buckets);
        }
        let name_of_bucket = format!("{name}_bucket");
        for Bucket { le, count, exemplar } in buckets {
            let le = if le.is_finite() { le.to_string() } else { "+Inf".to_owned() };
            self.bucket(&name_of_bucket, &[labels, &[("le", &le)]].concat(), count, exemplar);
        }
        self.sample(&format!("{name}_sum"), labels, seconds(distribution.sum_us));
        self.sample(&format!("{name}_count"), labels, distribution.count());
    }

    fn bucket(&mut self, name: &str, labels: &[(&str, &str)], count: u64, exemplar: Option<&Exemplar>) {
        self.line(name, labels);
        let _ = write!(self.out, " {count}");
        if let Some(Exemplar { trace_id, us, unix_ms }) = exemplar {
            let (id, took, time) = (u128::from_be_bytes(*trace_id), seconds(*us), *unix_ms as f64 / 1e3);
            let _ = write!(self.out, " # {{trace_id=\"{id:032x}\"}} {took} {time}");
        }
        self.out.push('\n');
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Number) {
        if self.format == Exposition::Protobuf {
            return self.families.sample(labels, value.value());
        }
        self.line(name, labels);
        let _ = writeln!(self.out, " {value}");
    }

    /// The beginning of a line.
    fn line(&mut self, name: &str, labels: &[(&str, &str)]) {
        self.out.push_str(name);
        for (place, (label, value)) in labels.iter().enumerate() {
            let before = if place == 0 { '{' } else { ',' };
            let _ = write!(self.out, "{before}{label}=\"{}\"", escape(value, true));
        }
        self.out.push_str(if labels.is_empty() { "" } else { "}" });
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

/// Help texts escape backslash and line feed; label values, and the help texts of OpenMetrics, also the quote. Other control characters are allowed there.
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
        let samples = [sample(&[("endpoint", "[::1]:80")], 1.0), sample(&[("endpoint", "x\"}\n1")], 0.0), generation];
        let text = String::from_utf8(render(&Totals::default(), &samples, Exposition::Text)).unwrap();
        let end = text.find("# HELP steelyard_endpoint_up").unwrap();
        assert_eq!(
            &text[end..],
            "# HELP steelyard_endpoint_up Whether it is.\n# TYPE steelyard_endpoint_up gauge\n\
             steelyard_endpoint_up{endpoint=\"[::1]:80\"} 1\n\
             steelyard_endpoint_up{endpoint=\"x\\\"}\\n1\"} 0\n\
             # HELP steelyard_generation Of the snapshot.\n# TYPE steelyard_generation gauge\nsteelyard_generation 3\n"
        );
    }

    /// A scraper takes a second head of the same name for an error.
    #[test]
    fn samples_of_one_name_stand_together() {
        let sample = |name, cluster: &str| Sample {
            name,
            help: "A.",
            kind: Kind::Gauge,
            labels: vec![("cluster", cluster.to_owned())],
            value: 1.0,
        };
        let samples = [sample("b", "one"), sample("a", "one"), sample("b", "other"), sample("a", "other")];
        let text = String::from_utf8(render(&Totals::default(), &samples, Exposition::Text)).unwrap();
        let expect = "# HELP b A.\n# TYPE b gauge\nb{cluster=\"one\"} 1\nb{cluster=\"other\"} 1\n\
                      # HELP a A.\n# TYPE a gauge\na{cluster=\"one\"} 1\na{cluster=\"other\"} 1\n";
        assert!(text.ends_with(expect), "{text}");
    }

    #[test]
    fn counters_of_openmetrics() {
        let one = Sample {
            name: "steelyard_spans_total",
            help: "Those of \"all\".",
            kind: Kind::Counter,
            labels: Vec::new(),
            value: 1.0,
        };
        let text = String::from_utf8(render(&Totals::default(), &[one], Exposition::OpenMetrics)).unwrap();
        let expect = "# HELP steelyard_spans Those of \\\"all\\\".\n# TYPE steelyard_spans counter\nsteelyard_spans_total 1\n# EOF\n";
        assert!(text.ends_with(expect), "{text}");
    }

    #[test]
    fn a_histogram_in_text() {
        let histogram = crate::Histogram::default();
        [3, 4, 5, 100, 2_000_000].into_iter().for_each(|us| histogram.record(us));
        let mut distribution = Distribution::default();
        histogram.add_to(&mut distribution);
        let mut text = Text::new(Exposition::Text);
        let exemplars = crate::Exemplars::default();
        exemplars.record(Exemplar { trace_id: [0xab; 16], us: 3, unix_ms: 1_795_241_235_123 });
        exemplars.record(Exemplar { trace_id: [1; 16], us: 2_000_000, unix_ms: 1_795_241_235_000 });
        let mut with_traces = ExemplarTotals::default();
        exemplars.add_to(&mut with_traces);
        let observed = (&distribution, Some(&with_traces));
        text.histogram("h_seconds", &[("route", "/")], observed, 1..=3);
        let mut open = Text::new(Exposition::OpenMetrics);
        open.histogram("h_seconds", &[("route", "/")], observed, 1..=3);
        let lines: Vec<&str> = open.out.lines().collect();
        assert_eq!(
            lines[1],
            "h_seconds_bucket{route=\"/\",le=\"0.000004\"} 2 # {trace_id=\"abababababababababababababababab\"} 0.000003 1795241235.123"
        );
        assert_eq!(
            lines[3],
            "h_seconds_bucket{route=\"/\",le=\"+Inf\"} 5 # {trace_id=\"01010101010101010101010101010101\"} 2 1795241235"
        );
        assert_eq!(lines[0], "h_seconds_bucket{route=\"/\",le=\"0.000002\"} 0");
        assert_eq!(
            text.out,
            "h_seconds_bucket{route=\"/\",le=\"0.000002\"} 0\nh_seconds_bucket{route=\"/\",le=\"0.000004\"} 2\n\
             h_seconds_bucket{route=\"/\",le=\"0.000008\"} 3\nh_seconds_bucket{route=\"/\",le=\"+Inf\"} 5\n\
             h_seconds_sum{route=\"/\"} 2.000112\nh_seconds_count{route=\"/\"} 5\n"
        );
    }
}
