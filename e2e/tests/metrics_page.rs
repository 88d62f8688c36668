//! `docs/metrics.md` lists the metrics of a running Steelyard that uses everything: listeners, routes, gRPC, an access log, traces and vips.
#![forbid(unsafe_code)]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use support::{Scratch, skip, steelyard};
use testkit::{Exit, PATIENCE, Program};

/// Set to write the page instead of comparing it.
const WRITE: &str = "STEELYARD_WRITE_DOCS";

const CONFIG: &str = r#"
admin: 127.0.0.1:9900
admin_access: {read: {tokens: {graphs: 0123456789abcdef}}}
access_log: access.log
tracing: {to: web}
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
  text: {endpoints: [127.0.0.1:9003]}
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
curl -sf -H 'authorization: Bearer 0123456789abcdef' http://127.0.0.1:9900/metrics
kill $origin
kill $balancer
wait $balancer
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

`/metrics` of the admin address and of `metrics` answers in Prometheus's text format. Times are in seconds and sizes in bytes. Counters begin at 0 with
each process. Labels come from the configuration and never from traffic, except for the methods of a gRPC service that a route names. Metrics of virtual
IPs exist if the file has some. [Operating](operate.md#monitoring) names the metrics that tell most.
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
    let mut command = Command::new("unshare");
    command.args(["-n", "-m", "--propagation", "private", "bash", "all.sh"]).current_dir(scratch.path());
    let mut program = Program::spawn("all metrics", command.env("STEELYARD", steelyard().get_program())).unwrap();
    let exit = program.exit_within(PATIENCE * 6).unwrap();
    let finished = program.finish().unwrap();
    assert_eq!(exit, Exit::Code(0), "{}", finished.stderr);

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let page = page(&finished.stdout);
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let differs: Vec<&str> = page.lines().filter(|line| !written.contains(line)).collect();
    assert!(
        page == written,
        "docs/metrics.md differs from the program: run {WRITE}=1 cargo test -p e2e --test metrics_page as root; lines that it lacks:\n{}",
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
