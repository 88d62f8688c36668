//! The Grafana dashboard and the alert rules in `deploy/monitoring`. What their texts say of a metric is what the metric says of itself, so they
//! can name none that does not exist.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

/// The series of one instance, or of several.
const OF: &str = "instance=~\"$instance\"";

/// A panel: title, unit, and queries with their legends. `OF` in a query stands for the chosen instances.
struct Panel(&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// An alert.
struct Alert {
    name: &'static str,
    severity: &'static str,
    lasts: &'static str,
    /// A query that always has an answer, and what makes it an alert.
    value: &'static str,
    condition: &'static str,
    summary: &'static str,
    /// What to do.
    action: &'static str,
    /// Half an hour of series for which it fires, and of others for which it does not: the series and its values by the minute, for `promtool test`.
    fires: &'static [(&'static str, &'static str)],
    silent: &'static [(&'static str, &'static str)],
}

const ROWS: &[(&str, &[Panel])] = &[
    (
        "Is it Steelyard or the endpoints?",
        &[
            Panel(
                "Requests",
                "reqps",
                &[(
                    "sum by (listener) (rate(steelyard_listener_requests_total{OF}[$__rate_interval]))",
                    "{{listener}}",
                )],
            ),
            Panel(
                "Responses with status 5xx",
                "percentunit",
                &[(
                    "sum(rate(steelyard_route_responses_total{OF,class=\"5xx\"}[$__rate_interval])) / sum(rate(steelyard_route_responses_total{OF}[$__rate_interval]))",
                    "5xx",
                )],
            ),
            Panel(
                "Time that Steelyard added",
                "s",
                &[
                    (
                        "histogram_quantile(0.5, sum by (le) (rate(steelyard_route_added_seconds_bucket{OF}[$__rate_interval])))",
                        "median",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(steelyard_route_added_seconds_bucket{OF}[$__rate_interval])))",
                        "99 %",
                    ),
                ],
            ),
            Panel(
                "Time of the endpoints",
                "s",
                &[
                    (
                        "histogram_quantile(0.5, sum by (le) (rate(steelyard_route_upstream_seconds_bucket{OF}[$__rate_interval])))",
                        "median",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(steelyard_route_upstream_seconds_bucket{OF}[$__rate_interval])))",
                        "99 %",
                    ),
                ],
            ),
            Panel(
                "Refused and failed, by reason",
                "reqps",
                &[(
                    "sum by (reason) (rate(steelyard_refused_total{OF}[$__rate_interval])) > 0 or vector(0)",
                    "{{reason}}",
                )],
            ),
        ],
    ),
    (
        "Saturation",
        &[
            Panel(
                "CPU",
                "percentunit",
                &[("rate(process_cpu_seconds_total{OF}[$__rate_interval]) / steelyard_workers{OF}", "{{instance}}")],
            ),
            Panel(
                "Memory",
                "percentunit",
                &[("steelyard_memory_bytes{OF} / steelyard_memory_max_bytes{OF}", "{{instance}}")],
            ),
            Panel(
                "File descriptors",
                "percentunit",
                &[(
                    "process_open_fds{OF} / process_max_fds{OF} and on (job, instance) steelyard_workers{OF}",
                    "{{instance}}",
                )],
            ),
            Panel(
                "Open connections",
                "short",
                &[("sum by (listener) (steelyard_listener_connections_open{OF})", "{{listener}}")],
            ),
            Panel(
                "Requests that wait for a connection",
                "short",
                &[("sum by (cluster) (steelyard_cluster_pending{OF})", "{{cluster}}")],
            ),
            Panel(
                "Used part of the retry budget",
                "percentunit",
                &[("max by (cluster) (steelyard_cluster_retry_budget_used_ratio{OF})", "{{cluster}}")],
            ),
            Panel(
                "Stalls of workers",
                "short",
                &[("increase(steelyard_worker_stalls_total{OF}[$__rate_interval])", "{{instance}}")],
            ),
        ],
    ),
    (
        "Routes",
        &[
            Panel(
                "Responses",
                "reqps",
                &[(
                    "sum by (listener, route) (rate(steelyard_route_responses_total{OF}[$__rate_interval]))",
                    "{{listener}} {{route}}",
                )],
            ),
            Panel(
                "Responses with status 5xx",
                "reqps",
                &[(
                    "sum by (listener, route) (rate(steelyard_route_responses_total{OF,class=\"5xx\"}[$__rate_interval]))",
                    "{{listener}} {{route}}",
                )],
            ),
            Panel(
                "Refused and failed, by reason",
                "reqps",
                &[(
                    "sum by (listener, route, reason) (rate(steelyard_route_refused_total{OF}[$__rate_interval])) > 0 or vector(0)",
                    "{{listener}} {{route}} {{reason}}",
                )],
            ),
            Panel(
                "Time that Steelyard added, 99 %",
                "s",
                &[(
                    "histogram_quantile(0.99, sum by (listener, route, le) (rate(steelyard_route_added_seconds_bucket{OF}[$__rate_interval])))",
                    "{{listener}} {{route}}",
                )],
            ),
            Panel(
                "Time of the endpoints, 99 %",
                "s",
                &[(
                    "histogram_quantile(0.99, sum by (listener, route, le) (rate(steelyard_route_upstream_seconds_bucket{OF}[$__rate_interval])))",
                    "{{listener}} {{route}}",
                )],
            ),
        ],
    ),
    (
        "Clusters and endpoints",
        &[
            Panel(
                "Endpoints that take no new work",
                "short",
                &[("count by (cluster) (steelyard_endpoint_up{OF} == 0) or vector(0)", "{{cluster}}")],
            ),
            Panel(
                "Requests in progress",
                "short",
                &[("sum by (cluster, endpoint) (steelyard_endpoint_in_flight{OF})", "{{cluster}} {{endpoint}}")],
            ),
            Panel(
                "Failures",
                "reqps",
                &[(
                    "sum by (cluster, endpoint) (rate(steelyard_endpoint_failures_total{OF}[$__rate_interval]))",
                    "{{cluster}} {{endpoint}}",
                )],
            ),
            Panel(
                "Ejections",
                "short",
                &[(
                    "sum by (cluster, endpoint) (increase(steelyard_endpoint_ejections_total{OF}[$__rate_interval]))",
                    "{{cluster}} {{endpoint}}",
                )],
            ),
            Panel(
                "Retries and other endpoints",
                "reqps",
                &[
                    (
                        "sum by (cluster) (rate(steelyard_cluster_retries_total{OF}[$__rate_interval]))",
                        "{{cluster}} retried",
                    ),
                    (
                        "sum by (cluster) (rate(steelyard_cluster_redispatches_total{OF}[$__rate_interval]))",
                        "{{cluster}} passed over",
                    ),
                ],
            ),
            Panel(
                "Connections that could not be opened",
                "reqps",
                &[(
                    "sum by (cluster) (rate(steelyard_cluster_connect_failures_total{OF}[$__rate_interval]))",
                    "{{cluster}}",
                )],
            ),
        ],
    ),
    (
        "gRPC",
        &[
            Panel(
                "Calls by status",
                "reqps",
                &[("sum by (status) (rate(steelyard_grpc_calls_total{OF}[$__rate_interval]))", "{{status}}")],
            ),
            Panel(
                "Duration of calls, 99 %",
                "s",
                &[(
                    "histogram_quantile(0.99, sum by (service, method, le) (rate(steelyard_grpc_call_seconds_bucket{OF}[$__rate_interval])))",
                    "{{service}}/{{method}}",
                )],
            ),
        ],
    ),
    (
        "Virtual IPs",
        &[
            Panel("Flows", "short", &[("sum by (vip) (steelyard_vip_flows_active{OF})", "{{vip}}")]),
            Panel(
                "Packets",
                "pps",
                &[(
                    "sum by (vip, direction) (rate(steelyard_vip_packets_total{OF}[$__rate_interval]))",
                    "{{vip}} {{direction}}",
                )],
            ),
            Panel(
                "Packets that were not forwarded",
                "pps",
                &[(
                    "sum by (vip, reason) (rate(steelyard_vip_drops_total{OF}[$__rate_interval]))",
                    "{{vip}} {{reason}}",
                )],
            ),
            Panel(
                "Table of flows",
                "percentunit",
                &[("steelyard_flow_table_used{OF} / steelyard_flow_table_max{OF}", "{{instance}}")],
            ),
        ],
    ),
    (
        "This process",
        &[
            Panel("Generation of the configuration", "short", &[("steelyard_generation{OF}", "{{instance}}")]),
            Panel(
                "Reloads",
                "short",
                &[("sum by (result) (increase(steelyard_reloads_total{OF}[$__rate_interval]))", "{{result}}")],
            ),
            Panel(
                "Lost records of the access log",
                "short",
                &[
                    ("sum(increase(steelyard_access_log_dropped_total{OF}[$__rate_interval]))", "dropped"),
                    ("sum(increase(steelyard_access_log_failed_total{OF}[$__rate_interval]))", "failed"),
                ],
            ),
            Panel(
                "Spans",
                "short",
                &[("sum by (result) (rate(steelyard_trace_spans_total{OF}[$__rate_interval]))", "{{result}}")],
            ),
        ],
    ),
];

const ALERTS: &[Alert] = &[
    Alert {
        name: "SteelyardEndpointDown",
        severity: "warning",
        lasts: "5m",
        value: "min by (instance, cluster, endpoint) (steelyard_endpoint_up)",
        condition: "== 0",
        summary: "{{ $labels.endpoint }} of {{ $labels.cluster }} takes no new work",
        action: "`steelyard status` says why: its last probe, an ejection, or a drain.",
        fires: &[("steelyard_endpoint_up{instance=\"i\",cluster=\"c\",endpoint=\"e\"}", "0x60")],
        silent: &[("steelyard_endpoint_up{instance=\"i\",cluster=\"c\",endpoint=\"e\"}", "1x60")],
    },
    Alert {
        name: "SteelyardClusterDown",
        severity: "critical",
        lasts: "1m",
        value: "max by (instance, cluster) (steelyard_endpoint_up)",
        condition: "== 0",
        summary: "no endpoint of {{ $labels.cluster }} takes new work",
        action: "Requests go to endpoints that are probably down, or get 503.",
        fires: &[
            ("steelyard_endpoint_up{instance=\"i\",cluster=\"c\",endpoint=\"e\"}", "0x60"),
            ("steelyard_endpoint_up{instance=\"i\",cluster=\"c\",endpoint=\"f\"}", "0x60"),
        ],
        silent: &[
            ("steelyard_endpoint_up{instance=\"i\",cluster=\"c\",endpoint=\"e\"}", "0x60"),
            ("steelyard_endpoint_up{instance=\"i\",cluster=\"c\",endpoint=\"f\"}", "1x60"),
        ],
    },
    Alert {
        name: "SteelyardErrors",
        severity: "critical",
        lasts: "5m",
        value: "sum by (instance, listener, route) (rate(steelyard_route_responses_total{class=\"5xx\"}[5m])) / sum by (instance, listener, route) (rate(steelyard_route_responses_total[5m]))",
        condition: "> 0.05",
        summary: "{{ $value | humanizePercentage }} of the responses of {{ $labels.route }} have status 5xx",
        action: "Compare with steelyard_endpoint_failures_total: that counts those of the endpoints.",
        fires: &[
            ("steelyard_route_responses_total{instance=\"i\",listener=\"l\",route=\"r\",class=\"5xx\"}", "0+10x60"),
            ("steelyard_route_responses_total{instance=\"i\",listener=\"l\",route=\"r\",class=\"2xx\"}", "0+90x60"),
        ],
        silent: &[
            ("steelyard_route_responses_total{instance=\"i\",listener=\"l\",route=\"r\",class=\"5xx\"}", "0+1x60"),
            ("steelyard_route_responses_total{instance=\"i\",listener=\"l\",route=\"r\",class=\"2xx\"}", "0+90x60"),
        ],
    },
    Alert {
        name: "SteelyardAddsTime",
        severity: "warning",
        lasts: "10m",
        value: "histogram_quantile(0.99, sum by (instance, le) (rate(steelyard_route_added_seconds_bucket[5m])))",
        condition: "> 0.05",
        summary: "Steelyard adds {{ $value | humanizeDuration }} to one of a hundred requests",
        action: "Look at CPU and at steelyard_cluster_pending: workers are busy, or requests wait for connections.",
        fires: &[
            ("steelyard_route_added_seconds_bucket{instance=\"i\",le=\"0.065536\"}", "0+1x60"),
            ("steelyard_route_added_seconds_bucket{instance=\"i\",le=\"0.262144\"}", "0+100x60"),
            ("steelyard_route_added_seconds_bucket{instance=\"i\",le=\"+Inf\"}", "0+100x60"),
        ],
        silent: &[
            ("steelyard_route_added_seconds_bucket{instance=\"i\",le=\"0.001\"}", "0+100x60"),
            ("steelyard_route_added_seconds_bucket{instance=\"i\",le=\"+Inf\"}", "0+100x60"),
        ],
    },
    Alert {
        name: "SteelyardRequestsWait",
        severity: "warning",
        lasts: "5m",
        value: "min_over_time(steelyard_cluster_pending[5m])",
        condition: "> 0",
        summary: "requests wait for connections to {{ $labels.cluster }} all the time",
        action: "The limit of connections is too low, or there are too few endpoints.",
        fires: &[("steelyard_cluster_pending{instance=\"i\",cluster=\"c\"}", "3x60")],
        silent: &[(
            "steelyard_cluster_pending{instance=\"i\",cluster=\"c\"}",
            "3 0 3 0 3 0 3 0 3 0 3 0 3 0 3 0 3 0 3 0 3 0 3 0 3 0 3 0 3 0 3",
        )],
    },
    Alert {
        name: "SteelyardRetryBudget",
        severity: "warning",
        lasts: "5m",
        value: "max by (instance, cluster) (steelyard_cluster_retry_budget_used_ratio)",
        condition: ">= 1",
        summary: "the retry budget of {{ $labels.cluster }} is used up: failures there reach clients",
        action: "Look at the endpoints first. `retry.budget` of the routes is the limit.",
        fires: &[("steelyard_cluster_retry_budget_used_ratio{instance=\"i\",cluster=\"c\"}", "1x60")],
        silent: &[("steelyard_cluster_retry_budget_used_ratio{instance=\"i\",cluster=\"c\"}", "0.9x60")],
    },
    Alert {
        name: "SteelyardRefuses",
        severity: "warning",
        lasts: "5m",
        value: "sum by (instance, listener, reason) (rate(steelyard_refused_total{reason=~\"connections_full|memory_full|pending_full|buffers_full\"}[5m]))",
        condition: "> 0",
        summary: "{{ $labels.listener }} refuses requests: {{ $labels.reason }}",
        action: "docs/reasons.md says which limit it is.",
        fires: &[("steelyard_refused_total{instance=\"i\",listener=\"l\",reason=\"pending_full\"}", "0+5x60")],
        silent: &[("steelyard_refused_total{instance=\"i\",listener=\"l\",reason=\"no_route\"}", "0+5x60")],
    },
    Alert {
        name: "SteelyardMemory",
        severity: "warning",
        lasts: "5m",
        value: "steelyard_memory_bytes / steelyard_memory_max_bytes",
        condition: "> 0.85",
        summary: "{{ $labels.instance }} uses {{ $value | humanizePercentage }} of its memory",
        action: "From seven eighths on, new requests are refused: raise memory_max, or add instances.",
        fires: &[
            ("steelyard_memory_bytes{instance=\"i\"}", "90x60"),
            ("steelyard_memory_max_bytes{instance=\"i\"}", "100x60"),
        ],
        silent: &[
            ("steelyard_memory_bytes{instance=\"i\"}", "50x60"),
            ("steelyard_memory_max_bytes{instance=\"i\"}", "100x60"),
        ],
    },
    Alert {
        name: "SteelyardDescriptors",
        severity: "warning",
        lasts: "5m",
        value: "(process_open_fds / process_max_fds and on (job, instance) steelyard_workers)",
        condition: "> 0.85",
        summary: "{{ $labels.instance }} uses {{ $value | humanizePercentage }} of its file descriptors",
        action: "Raise LimitNOFILE, or lower limits.connections.",
        fires: &[
            ("process_open_fds{instance=\"i\",job=\"a\"}", "90x60"),
            ("process_max_fds{instance=\"i\",job=\"a\"}", "100x60"),
            ("steelyard_workers{instance=\"i\",job=\"a\"}", "2x60"),
        ],
        silent: &[
            ("process_open_fds{instance=\"other\",job=\"a\"}", "90x60"),
            ("process_max_fds{instance=\"other\",job=\"a\"}", "100x60"),
            ("steelyard_workers{instance=\"i\",job=\"a\"}", "2x60"),
        ],
    },
    Alert {
        name: "SteelyardFlowTable",
        severity: "critical",
        lasts: "1m",
        value: "max by (instance) (steelyard_flow_table_pressure)",
        condition: "> 0",
        summary: "the table of flows of {{ $labels.instance }} is almost full",
        action: "Raise kernel_plane.flows_max.",
        fires: &[("steelyard_flow_table_pressure{instance=\"i\"}", "1x60")],
        silent: &[("steelyard_flow_table_pressure{instance=\"i\"}", "0x60")],
    },
    Alert {
        name: "SteelyardReloadFailed",
        severity: "warning",
        lasts: "0m",
        value: "sum by (instance) (increase(steelyard_reloads_total{result=\"refused\"}[10m]))",
        condition: "> 0",
        summary: "{{ $labels.instance }} has refused a configuration, and serves the last good one",
        action: "`steelyard status` and the log have the errors.",
        fires: &[("steelyard_reloads_total{instance=\"i\",result=\"refused\"}", "0x28 1x10")],
        silent: &[("steelyard_reloads_total{instance=\"i\",result=\"good\"}", "0+1x60")],
    },
    Alert {
        name: "SteelyardWorkerStalls",
        severity: "critical",
        lasts: "0m",
        value: "sum by (instance) (increase(steelyard_worker_stalls_total[10m]))",
        condition: "> 0",
        summary: "a worker of {{ $labels.instance }} stood still for a second or longer",
        action: "The log has its stack. Please report it as a bug, unless the host was overloaded.",
        fires: &[("steelyard_worker_stalls_total{instance=\"i\"}", "0x28 1x10")],
        silent: &[("steelyard_worker_stalls_total{instance=\"i\"}", "1x60")],
    },
    Alert {
        name: "SteelyardLosesLog",
        severity: "warning",
        lasts: "0m",
        value: "sum by (instance) (increase(steelyard_access_log_dropped_total[10m])) + sum by (instance) (increase(steelyard_access_log_failed_total[10m]))",
        condition: "> 0",
        summary: "{{ $labels.instance }} has lost {{ $value | humanize }} records of its access log",
        action: "The disk is full or slow, or the syslog server or collector is away: the log says which.",
        fires: &[
            ("steelyard_access_log_dropped_total{instance=\"i\"}", "0x60"),
            ("steelyard_access_log_failed_total{instance=\"i\"}", "0x28 5x10"),
        ],
        silent: &[
            ("steelyard_access_log_dropped_total{instance=\"i\"}", "7x60"),
            ("steelyard_access_log_failed_total{instance=\"i\"}", "5x60"),
        ],
    },
    Alert {
        name: "SteelyardLosesSpans",
        severity: "info",
        lasts: "10m",
        value: "sum by (instance) (increase(steelyard_trace_spans_total{result!=\"exported\"}[10m]))",
        condition: "> 0",
        summary: "{{ $labels.instance }} has lost {{ $value | humanize }} spans",
        action: "The collector is away, refuses them, or is too slow: the log says which.",
        fires: &[("steelyard_trace_spans_total{instance=\"i\",result=\"unreachable\"}", "0+5x60")],
        silent: &[("steelyard_trace_spans_total{instance=\"i\",result=\"exported\"}", "0+5x60")],
    },
];

/// The help of each metric, by its name.
pub struct Help(BTreeMap<String, String>);

impl Help {
    pub fn of(metrics: &str) -> Self {
        let helps = metrics.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
        Self(helps.map(|(name, help)| (name.to_owned(), help.to_owned())).collect())
    }

    /// What the metrics of a query say of themselves. Panics if one does not exist.
    fn describe(&self, queries: &[&str]) -> String {
        let mut found: Vec<String> = Vec::new();
        for query in queries {
            let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            for word in words.filter(|word| word.starts_with("steelyard_") || word.starts_with("process_")) {
                let name = word.strip_suffix("_bucket").unwrap_or(word);
                let help = self.0.get(name).unwrap_or_else(|| panic!("no metric {name}, in {query}"));
                let text = format!("{name}: {help}");
                if !found.contains(&text) {
                    found.push(text);
                }
            }
        }
        found.join("\n\n")
    }
}

/// The dashboard, for Grafana 9 and later.
pub fn dashboard(help: &Help) -> String {
    let (mut panels, mut y, mut id) = (Vec::new(), 0, 0);
    let mut next = || {
        id += 1;
        id
    };
    for (title, row) in ROWS {
        panels.push(json!({"id": next(), "type": "row", "title": title, "collapsed": false, "panels": [], "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}}));
        y += 1;
        for (place, Panel(title, unit, queries)) in row.iter().enumerate() {
            let at = json!({"x": place % 3 * 8, "y": y + place / 3 * 8, "w": 8, "h": 8});
            panels.push(panel(next(), title, unit, queries, &at, help));
        }
        y += row.len().div_ceil(3) * 8;
    }
    let variable = |name: &str, query: &str| {
        json!({
            "name": name, "label": name, "type": "query", "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": {"query": query, "refId": name}, "refresh": 2, "includeAll": true, "multi": true, "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        })
    };
    let board = json!({
        "title": "Steelyard", "uid": "steelyard", "tags": ["steelyard"], "schemaVersion": 38, "version": 1, "editable": true, "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"}, "timezone": "", "graphTooltip": 1,
        "templating": {"list": [
            {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}},
            variable("instance", "label_values(steelyard_generation, instance)"),
        ]},
        "panels": panels,
    });
    serde_json::to_string_pretty(&board).unwrap() + "\n"
}

fn panel(id: u32, title: &str, unit: &str, queries: &[(&str, &str)], at: &Value, help: &Help) -> Value {
    let source = json!({"type": "prometheus", "uid": "${datasource}"});
    let texts: Vec<&str> = queries.iter().map(|(query, _)| *query).collect();
    // Requests with traces stand as points on the durations.
    let targets: Vec<Value> = queries
        .iter()
        .zip('A'..)
        .map(|((query, legend), name)| {
            let exemplar = query.contains("_seconds_bucket");
            json!({"refId": name.to_string(), "datasource": source, "expr": query.replace("OF", OF), "legendFormat": legend, "exemplar": exemplar})
        })
        .collect();
    json!({
        "id": id, "type": "timeseries", "title": title, "description": help.describe(&texts), "datasource": source, "gridPos": at,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 10, "showPoints": "never"}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
    })
}

/// The alert rules; without help, their descriptions do not say what the metrics mean.
pub fn rules(help: Option<&Help>) -> String {
    let mut out = "# Alerts for Prometheus. Made from the metrics of a running Steelyard, as docs/metrics.md is: adapt thresholds in your own copy.\ngroups:\n  - name: steelyard\n    rules:\n".to_owned();
    let quoted = |text: &str| serde_json::to_string(text).unwrap();
    for Alert { name, severity, lasts, value, condition, summary, action, .. } in ALERTS {
        let meaning = help.map_or_else(String::new, |help| help.describe(&[value]).replace("\n\n", " "));
        let description = format!("{action} {meaning}");
        _ = write!(
            out,
            "      - alert: {name}\n        expr: {}\n        for: {lasts}\n        labels: {{severity: {severity}}}\n        annotations:\n          \
             summary: {}\n          description: {}\n",
            quoted(&format!("{value} {condition}")),
            quoted(summary),
            quoted(&description)
        );
    }
    out
}

/// A file for `promtool test rules`: each alert fires when it should, and else does not.
pub fn rule_tests() -> String {
    let test = |alert: &Alert, series: &[(&str, &str)], fires: bool| {
        let series: Vec<Value> =
            series.iter().map(|(series, values)| json!({"series": series, "values": values})).collect();
        let expr = format!("count(ALERTS{{alertname=\"{}\",alertstate=\"firing\"}}) or vector(0)", alert.name);
        let expect = json!([{"labels": "{}", "value": u8::from(fires)}]);
        let asked = json!([{"expr": expr, "eval_time": "30m", "exp_samples": expect}]);
        json!({"interval": "1m", "input_series": series, "promql_expr_test": asked})
    };
    let both = |alert: &Alert| [test(alert, alert.fires, true), test(alert, alert.silent, false)];
    let tests: Vec<Value> = ALERTS.iter().flat_map(both).collect();
    json!({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}).to_string()
}

/// Every query of the dashboard, and the value of every alert, over this time.
pub fn queries(within: &str) -> Vec<String> {
    let panels = ROWS.iter().flat_map(|(_, panels)| panels.iter()).flat_map(|Panel(_, _, queries)| queries.iter());
    let panels = panels.map(|(query, _)| query.replace("OF", &OF.replace("$instance", ".*")));
    let alerts = ALERTS.iter().map(|alert| alert.value.to_owned());
    let all = panels.chain(alerts);
    all.map(|query| query.replace("$__rate_interval", within).replace("[5m]", &format!("[{within}]"))).collect()
}
