//! The report of a load in the text format of Prometheus, for node_exporter's textfile collector or a Pushgateway.

use std::fmt::Write;

use super::report::LoadReport;

/// Percentiles that are written.
const QUANTILES: [f64; 6] = [50.0, 90.0, 95.0, 99.0, 99.9, 100.0];

/// The report as metrics. All are gauges: they describe one load, and the next one replaces them.
pub(super) fn text(report: &LoadReport) -> String {
    let mut text = String::new();
    let mut metric = |name: &str, help: &str, samples: &[(String, f64)]| {
        let _ = writeln!(text, "# HELP steelyard_load_{name} {help}\n# TYPE steelyard_load_{name} gauge");
        for (labels, value) in samples {
            let _ = writeln!(text, "steelyard_load_{name}{{protocol=\"{}\"{labels}}} {value}", report.protocol);
        }
    };
    let errors = &report.errors;
    let results = [
        ("ok", report.ok),
        ("status", errors.status),
        ("no_connection", errors.connect),
        ("broken", errors.request),
        ("timeout", errors.timeout),
        ("length", errors.length),
        ("not_sent", errors.unsent),
    ];
    let operations: Vec<_> =
        results.iter().map(|(result, count)| (format!(",result=\"{result}\""), *count as f64)).collect();
    metric("operations", "Operations of the window by result.", &operations);
    metric("operations_per_second", "Operations that succeeded, per second.", &[(String::new(), report.ok_per_s)]);
    metric("window_seconds", "The length of the window.", &[(String::new(), report.elapsed.as_secs_f64())]);
    let bytes = [("received", report.received_bytes), ("sent", report.sent_bytes)];
    let bytes: Vec<_> = bytes.iter().map(|(way, count)| (format!(",direction=\"{way}\""), *count as f64)).collect();
    metric("bytes", "Bytes of the window by direction.", &bytes);
    // With a rate, latency counts from when an operation was due, as for thresholds.
    if let Some(latency) = report.response.as_ref().or(report.service.as_ref()) {
        let of = |percent: f64| {
            let seconds = latency.percentile_us(percent)? / 1e6;
            Some((format!(",quantile=\"{}\"", percent / 100.0), seconds))
        };
        let quantiles: Vec<_> = QUANTILES.into_iter().filter_map(of).collect();
        metric("latency_seconds", "Latency of operations with a response.", &quantiles);
    }
    let met: Vec<_> = report
        .thresholds
        .iter()
        .map(|threshold| (format!(",threshold=\"{}\"", threshold.name), f64::from(u8::from(threshold.met))))
        .collect();
    if !met.is_empty() {
        metric("threshold_met", "Whether a threshold was met: 1 or 0.", &met);
    }
    text
}
