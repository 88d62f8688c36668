//! `docs/metrics.md` lists the metrics of a running Steelyard that uses everything: listeners, routes, gRPC, an access log, traces and vips. The
//! dashboard and the alerts in `deploy/monitoring` are made of the same list, and Debian's Prometheus answers each of their queries.
#![forbid(unsafe_code)]

#[path = "metrics_page/graphs.rs"]
mod graphs;
mod support;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use graphs::Help;
use support::{Scratch, skip, steelyard};
use testkit::{Exit, PATIENCE, Program};

/// Set to write the page instead of comparing it.
const WRITE: &str = "STEELYARD_WRITE_DOCS";

const CONFIG: &str = r#"
admin: 127.0.0.1:9900
admin_access: {read: {tokens: {graphs: 0123456789abcdef}}}
access_log: access.log
tracing: {to: web, sampling: 100%}
memory_max: 1GiB
listeners:
  web:
    bind: 127.0.0.1:8080
    protocol: http
    routes:
      - {grpc: shop.Cart/Get, to: web}
      - {path: /private, auth: {basic: {users: {joe: '{SHA}t6h1/B6iKLkGEEG3zsS9PFKrPOM='}}}, to: web}
      - {path: /token, auth: {jwt: {issuer: a, audience: b, jwks: {url: 'http://127.0.0.1:8081/'}}}, to: web}
      - {path: /text, compress: {}, to: text}
      - {path: /body, buffer: {}, to: text}
      - {path: /asked, external_auth: {to: web, grpc: {}}, to: web}
      - {path: /limited, global_rate_limit: {to: web, domain: a, fail_open: false, descriptors: [{entries: {path: true}}]}, to: web}
      - {to: web, rate_limit: {requests: 1000, per: 1s, by: client_ip}}
  keys:
    bind: 127.0.0.1:8081
    protocol: http
    routes:
      - respond: {body: '{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg"}]}'}
clusters:
  web: {endpoints: [127.0.0.1:9001, {address: '127.0.0.1:9002', priority: 1, zone: a}], protocol: h2c}
  # The second one with priorities and zones: the samples of both stand together.
  text: {endpoints: [127.0.0.1:9003, {address: '127.0.0.1:9004', priority: 1, zone: a}]}
zone: a
vips:
  dns: {address: 192.0.2.7:53/udp, interfaces: [veth0], endpoints: [192.0.2.21:53], mode: full_nat, sources: [192.0.2.1], announce: route}
"#;

/// In a separate network, since vips belong to a network namespace and the ports are fixed.
const SCRIPT: &str = "set -eu
mount -t sysfs none /sys && mount -t bpf none /sys/fs/bpf
ip link set lo up
ip link add veth0 type veth peer name veth1
ip addr add 192.0.2.1/24 dev veth0
ip link set veth0 up
ip link set veth1 up
\"$STEELYARD\" origin http --listen 127.0.0.1:9003 --body 64KiB & origin=$!
\"$STEELYARD\" serve -c all.yaml & balancer=$!
until curl -sf http://127.0.0.1:9900/readyz >/dev/null; do kill -0 $balancer; sleep 0.1; done
curl -s -o /dev/null http://127.0.0.1:8080/
curl -s -o /dev/null --http2-prior-knowledge -H 'content-type: application/grpc' -d '' http://127.0.0.1:8080/shop.Cart/Get
curl -s -o /dev/null http://127.0.0.1:8080/asked
curl -s -o /dev/null -d a http://127.0.0.1:8080/body
curl -s -o /dev/null http://127.0.0.1:8080/limited
until curl -sf -H 'authorization: Bearer 0123456789abcdef' http://127.0.0.1:9900/metrics | grep -q ^steelyard_jwks_age_seconds; do kill -0 $balancer; sleep 0.1; done
curl -s -o /dev/null --retry 5 --retry-all-errors -f -H 'accept-encoding: gzip' http://127.0.0.1:8080/text
metrics() { curl -sf -H 'authorization: Bearer 0123456789abcdef' \"$@\" http://127.0.0.1:9900/metrics; }
metrics
# What follows is for Prometheus. The figures are those of a load, so that rates and quantiles have values.
if ! command -v prometheus >/dev/null; then echo 'no prometheus' >&2; kill $origin $balancer; wait $balancer; exit 0; fi
metrics | promtool check metrics >&2
metrics -H 'accept: application/openmetrics-text; version=1.0.0' >open.txt
tail -n 1 open.txt | grep -qx '# EOF'
promtool check rules rules.yaml >&2
promtool test rules tests.yaml >&2
load() { for path in / /text /body /limited; do curl -s -o /dev/null http://127.0.0.1:8080$path; done; curl -s -o /dev/null --http2-prior-knowledge -H 'content-type: application/grpc' -d '' http://127.0.0.1:8080/shop.Cart/Get; }
prometheus --config.file=prometheus.yaml --storage.tsdb.path=data --web.listen-address=127.0.0.1:9090 --enable-feature=exemplar-storage 2>prometheus.log & prometheus=$!
trap 'kill $prometheus $origin $balancer 2>/dev/null || :' EXIT
until curl -sf http://127.0.0.1:9090/-/ready >/dev/null; do kill -0 $prometheus; sleep 0.1; done
ask() { curl -sf --data-urlencode \"query=$1\" http://127.0.0.1:9090/api/v1/query; }
while read -r query; do
  # A quantile of nothing is NaN.
  tries=0
  until answer=$(ask \"$query\") && ! echo \"$answer\" | grep -q '\"result\":\\[\\]' && echo \"$answer\" | grep -q '\"status\":\"success\"' && echo \"$answer\" | grep -q '\"[-+.e0-9]*\"\\]'; do
    tries=$((tries + 1))
    if [ $tries -gt 150 ]; then echo \"no answer: $query: $answer\" >&2; exit 1; fi
    load; sleep 0.1
  done
done <queries.txt
until curl -sf --data-urlencode 'query=steelyard_route_added_seconds_bucket' --data-urlencode start=0 --data-urlencode end=9999999999 http://127.0.0.1:9090/api/v1/query_exemplars | grep -q trace_id; do load; sleep 0.1; done
curl -sf http://127.0.0.1:9090/api/v1/targets | grep -q '\"health\":\"up\"'
kill $prometheus; wait $prometheus || :
# One that stores native histograms stores no others.
prometheus --config.file=prometheus.yaml --storage.tsdb.path=native --web.listen-address=127.0.0.1:9090 --enable-feature=native-histograms 2>native.log & prometheus=$!
until ask 'histogram_quantile(0.5, sum(rate(steelyard_route_added_seconds[5s])))' | grep -q '\"[0-9][-+.e0-9]*\"\\]'; do kill -0 $prometheus; load; sleep 0.1; done
kill $prometheus
kill $origin
kill $balancer
wait $balancer
";

const DASHBOARD: &str = "deploy/monitoring/grafana-dashboard.json";
const RULES: &str = "deploy/monitoring/prometheus-rules.yaml";

/// Scrapes often, so that the rates of a few seconds have values.
const PROMETHEUS: &str = "
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: steelyard
    authorization: {credentials: 0123456789abcdef}
    static_configs: [{targets: ['127.0.0.1:9900']}]
";

/// The beginnings of names, and their headings. The first that matches is used.
const GROUPS: [(&str, &str); 8] = [
    ("steelyard_listener_", "Listeners"),
    ("steelyard_refused_", "Listeners"),
    ("steelyard_route_", "Routes"),
    ("steelyard_grpc_", "gRPC"),
    ("steelyard_cluster_", "Clusters and endpoints"),
    ("steelyard_endpoint_", "Clusters and endpoints"),
    ("steelyard_vip_", "Virtual IPs"),
    ("steelyard_flow_", "Virtual IPs"),
];
const OTHERS: &str = "The process";
const ORDER: [&str; 6] = ["Listeners", "Routes", "gRPC", "Clusters and endpoints", "Virtual IPs", OTHERS];

const HEAD: &str = "# Metrics

<!-- Made from the /metrics of a running Steelyard. To write it again, as root: STEELYARD_WRITE_DOCS=1 cargo test -p e2e --test metrics_page -->

`/metrics` of the admin address and of `metrics` answers in Prometheus's text format, or in OpenMetrics if the scraper prefers it, as Prometheus does. In
OpenMetrics, the buckets of `steelyard_route_added_seconds` and `steelyard_route_upstream_seconds` have exemplars: the id of the last [trace](tracing.md) in them. A
Prometheus that stores native histograms (`--enable-feature=native-histograms`) asks for protobuf, and gets all histograms with native buckets of schema 1, too. Their bounds lie
between those of Steelyard's counters, and durations are taken to be spread evenly between two of these. Times are in seconds and sizes in bytes. Counters begin at 0 with
each process. Labels come from the configuration and never from traffic, except for the methods of a gRPC service that a route names. Metrics of virtual
IPs exist if the file has some. [Operating](operate.md#monitoring) names the metrics that tell most, and
`deploy/monitoring` has a dashboard for Grafana and alerts for Prometheus that are made of the same list.
";

#[test]
fn the_page_of_metrics_is_current() {
    if !rustix::process::geteuid().is_root() {
        skip("the_page_of_metrics_is_current", "not root: no vips, so not all metrics");
        return;
    }
    let scratch = Scratch::new();
    scratch.write("all.yaml", CONFIG);
    scratch.write("all.sh", SCRIPT);
    scratch.write("prometheus.yaml", PROMETHEUS);
    scratch.write("queries.txt", &(graphs::queries("5s").join("\n") + "\n"));
    scratch.write("tests.yaml", &graphs::rule_tests());
    scratch.write("rules.yaml", &graphs::rules(None));
    let mut command = Command::new("unshare");
    command.args(["-n", "-m", "--propagation", "private", "bash", "all.sh"]).current_dir(scratch.path());
    let mut program = Program::spawn("all metrics", command.env("STEELYARD", steelyard().get_program())).unwrap();
    let exit = program.exit_within(PATIENCE * 6).unwrap();
    let finished = program.finish().unwrap();
    assert_eq!(exit, Exit::Code(0), "{}", finished.stderr);

    if finished.stderr.contains("no prometheus") {
        skip("the_page_of_metrics_is_current", "no prometheus (Debian: prometheus), so nothing asks the queries");
    }
    let help = Help::of(&finished.stdout);
    compare("docs/metrics.md", &page(&finished.stdout));
    compare(DASHBOARD, &graphs::dashboard(&help));
    compare(RULES, &graphs::rules(Some(&help)));
}

/// The path of a file of the repository.
fn deployed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// Compares a file of the repository with what it should be, or writes it.
fn compare(name: &str, expect: &str) {
    let path = deployed(name);
    if std::env::var_os(WRITE).is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, expect).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let differs: Vec<&str> = expect.lines().filter(|line| !written.contains(line)).collect();
    assert!(
        expect == written,
        "{name} differs from the program: run {WRITE}=1 cargo test -p e2e --test metrics_page as root; lines that it lacks:\n{}",
        differs.join("\n")
    );
}

fn page(metrics: &str) -> String {
    let mut groups: BTreeMap<&str, String> = BTreeMap::new();
    let lines: Vec<&str> = metrics.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) else { continue };
        let kind = lines[at + 1].rsplit(' ').next().unwrap();
        let labels = lines.get(at + 2).map_or(Vec::new(), |sample| labels(name, sample));
        let group = GROUPS.iter().find(|(begin, _)| name.starts_with(begin)).map_or(OTHERS, |(_, group)| group);
        let labels = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        _ = writeln!(
            groups.entry(group).or_default(),
            "| `{name}` | {kind} | {labels} | {} |",
            help.replace('|', "\\|")
        );
    }
    let mut page = HEAD.to_owned();
    for group in ORDER {
        let rows = groups.get(group).unwrap_or_else(|| panic!("no metrics of {group}"));
        _ = write!(page, "\n## {group}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n{rows}");
    }
    page
}

/// The names of the labels of a sample, without the `le` of a histogram.
fn labels<'s>(name: &str, sample: &'s str) -> Vec<&'s str> {
    let Some((_, rest)) = sample.split_once('{').filter(|_| sample.starts_with(name)) else { return Vec::new() };
    let names = rest.split("\",").filter_map(|label| label.split_once("=\"").map(|(name, _)| name));
    names.filter(|name| *name != "le" && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')).collect()
}
