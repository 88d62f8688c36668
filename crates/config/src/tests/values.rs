//! Every key and the value that it gets in the model.

use std::sync::Arc;
use std::time::Duration;

use model::{
    AccessLog, Algorithm, Announce, Announcing, Cluster, ClusterProtocol, Endpoint, EndpointAddress, FlowTimeouts,
    ForwardPath, ForwardedHeaders, HashKey, HeaderNames, HostMatcher, LogFormat, LogTarget, MinRate, OnUnhealthy,
    Outlier, PathMatcher, PathRules, Ping, PortRange, Probe, Protocol, ProxyProtocol, SourceRate, TextMatcher,
    Transport, VipAlgorithm, VipMode,
};

use super::{http, load, tcp};
use crate::{parse_endpoint, proxy_snapshot};

const EVERY_HTTP_KEY: &str = r#"
admin: localhost:9900
metrics: :9901
access_log: {path: /var/log/access.json, format: json}
dns: {servers: [10.0.0.2, "[::1]:5353"], ttl_min: 2s, ttl_max: 1m}
drain_delay: 5s
drain_timeout: 5m
memory_max: 2GiB
listeners:
  web:
    bind: "*:8080"
    protocol: http
    proxy_protocol: true
    trusted_proxies: [10.1.2.3/8, "::1", "::ffff:192.168.0.0/112"]
    forwarded: both
    header_names: strict
    paths: {merge_slashes: false, forward: normal, refuse_ambiguous: true}
    abort_on_half_close: true
    header_timeout: 1s
    stall_timeout: 2s
    idle_timeout: 3s
    tunnel_idle_timeout: 4s
    min_rate: {bytes: 1KiB, per: 2s, grace: 3s}
    ping: {after: 5s, timeout: 6s}
    limits: {connections: 10, header_bytes: 64KiB, header_count: 50, body_bytes: 5GiB, requests_per_connection: 1000, streams_per_connection: 250}
    routes:
      - name: everything
        hosts: [Shop.Example.com, "*.example.com"]
        path: {exact: /buy}
        methods: [GET, PUT]
        headers: {X-Canary: always, x-version: {regex: "v[0-9]+"}, x-trace: {present: true}}
        query: {Page: 1}
        to: all
        timeout: 10s
      - {hosts: a.example.com, path: {regex: "/v[0-9]/.*"}, methods: GET, to: all}
clusters:
  all:
    endpoints: [{address: "Origin.example.com.:80", weight: 0}, "[fd00::1]:80"]
    balance: {maglev: {key: {header: X-User}}}
    health_check: {http: /ready, host: "origin:80", expect: 204, interval: 5s, timeout: 2s, unhealthy_after: 1, healthy_after: 4, port: 8081}
    outlier: {consecutive_5xx: 7, eject_for: 20s, max_ejected: 10%}
    panic_threshold: 0%
    slow_start: 30s
    limits: {connections: 100, pending: 20, pending_timeout: 1s, streams_per_connection: 50}
    connect_timeout: 250ms
    response_timeout: 1m
    idle_timeout: 10s
    idle_connections: 0
    proxy_protocol: v2
"#;

#[test]
fn every_key_of_the_file_and_the_listener() {
    let snapshot = load(EVERY_HTTP_KEY);
    assert_eq!(snapshot.admin.as_ref().map(|admin| admin.to_string()).as_deref(), Some("127.0.0.1:9900"));
    assert_eq!(snapshot.metrics, Some("[::]:9901".parse().unwrap()));
    let log = AccessLog::new(LogTarget::File("/var/log/access.json".into()), LogFormat::Json(None));
    assert_eq!(snapshot.access_log, Some(log));
    assert_eq!(snapshot.dns.servers, ["10.0.0.2:53".parse().unwrap(), "[::1]:5353".parse().unwrap()]);
    assert_eq!((snapshot.dns.ttl_min, snapshot.dns.ttl_max), (Duration::from_secs(2), Duration::from_secs(60)));
    assert_eq!((snapshot.drain_delay, snapshot.drain_timeout), (Duration::from_secs(5), Duration::from_secs(300)));
    assert_eq!(snapshot.memory_max, Some(2 << 30));

    let listener = &snapshot.listeners[0];
    assert_eq!(listener.bind, "[::]:8080".parse().unwrap());
    assert!(listener.accept_proxy_protocol);
    assert_eq!(listener.connections_max, 10);
    let http = http(&snapshot);
    let networks = ["10.0.0.0/8", "::1/128", "192.168.0.0/16"].map(|network| network.parse().unwrap());
    assert_eq!(http.trusted_proxies, networks);
    assert_eq!((http.forwarded, http.header_names), (ForwardedHeaders::Both, HeaderNames::Strict));
    let paths = PathRules { merge_slashes: false, forward: ForwardPath::Normal, refuse_ambiguous: true };
    assert_eq!(http.paths, paths);
    let limits = &http.limits;
    assert!(limits.abort_on_half_close);
    let timeouts = [limits.header_timeout, limits.stall_timeout, limits.idle_timeout, limits.tunnel_idle_timeout];
    assert_eq!(timeouts, [1, 2, 3, 4].map(Duration::from_secs));
    assert_eq!((limits.header_bytes_max, limits.header_count_max), (64 * 1024, 50));
    assert_eq!((limits.body_bytes_max, limits.requests_per_connection_max), (Some(5 << 30), Some(1000)));
    assert_eq!(limits.streams_per_connection_max, 250);
    let (per, grace) = (Duration::from_secs(2), Duration::from_secs(3));
    assert_eq!(limits.min_rate, Some(MinRate { bytes: 1024, per, grace }));
    let (after, timeout) = (Duration::from_secs(5), Duration::from_secs(6));
    assert_eq!(limits.ping, Some(Ping { after, timeout }));
}

#[test]
fn every_key_of_a_route() {
    let snapshot = load(EVERY_HTTP_KEY);
    let [route, other] = &*http(&snapshot).routes else { panic!("two routes") };
    assert_eq!(route.name, "everything");
    let hosts = [HostMatcher::Exact("shop.example.com".to_owned()), HostMatcher::Suffix("example.com".to_owned())];
    assert_eq!(route.hosts, hosts);
    assert!(matches!(&route.path, PathMatcher::Exact(path) if path == "/buy"));
    assert_eq!(route.methods, ["GET", "PUT"]);
    let names: Vec<_> = route.headers.iter().map(|header| header.name.as_str()).collect();
    assert_eq!(names, ["x-canary", "x-version", "x-trace"]);
    assert!(matches!(&route.headers[0].value, TextMatcher::Exact(text) if text == "always"));
    assert!(
        matches!(&route.headers[1].value, TextMatcher::Regex(regex) if regex.is_match("v12") && !regex.is_match("v12b"))
    );
    assert!(matches!(&route.headers[2].value, TextMatcher::Present));
    assert_eq!(route.query[0].name, "Page");
    assert!(matches!(&route.query[0].value, TextMatcher::Exact(text) if text == "1"));
    assert_eq!(route.timeout, Some(Duration::from_secs(10)));

    assert_eq!(other.name, "GET a.example.com~/v[0-9]/.*");
    assert_eq!((other.methods.as_slice(), other.timeout), (&["GET".to_owned()][..], None));
    assert!(matches!(&other.path, PathMatcher::Regex(regex) if regex.is_match("/v1/x") && !regex.is_match("/a/v1/x")));
}

#[test]
fn zones_of_endpoints() {
    let snapshot = load(
        "zone: eu-1a\nclusters: {all: {zone_threshold: 50%, endpoints: [{address: 'a:1', zone: eu-1a}, {address: 'b:1', zone: eu-1b}, 'c:1']}}\n\
         listeners: {web: {bind: ':80', protocol: http, to: all}}",
    );
    let zones: Vec<model::Zone> = snapshot.clusters[0].endpoints.iter().map(|endpoint| endpoint.zone).collect();
    assert_eq!(zones, [model::Zone::Own, model::Zone::Other, model::Zone::Unknown]);
    assert_eq!(snapshot.clusters[0].zone_threshold, 0.5);
}

#[test]
fn every_key_of_a_cluster() {
    let snapshot = load(EVERY_HTTP_KEY);
    let cluster = &snapshot.clusters[0];
    let name = EndpointAddress::Name { host: "origin.example.com".to_owned(), port: 80 };
    let socket = EndpointAddress::Socket("[fd00::1]:80".parse().unwrap());
    assert_eq!(
        cluster.endpoints,
        [
            Endpoint { address: name, weight: 0, priority: 0, zone: model::Zone::Unknown, host: None },
            Endpoint { address: socket, weight: 1, priority: 0, zone: model::Zone::Unknown, host: None }
        ]
    );
    assert_eq!(cluster.algorithm, Algorithm::Maglev(HashKey::Header("x-user".to_owned())));
    let check = cluster.health_check.as_ref().unwrap();
    let probe = Probe::Http(model::HttpProbe {
        host: Some("origin:80".to_owned()),
        expect: vec![(204, 204)],
        ..model::HttpProbe::new("/ready")
    });
    assert_eq!(check.probe, probe);
    assert_eq!((check.interval, check.timeout), (Duration::from_secs(5), Duration::from_secs(2)));
    assert_eq!((check.unhealthy_after, check.healthy_after, check.port), (1, 4, Some(8081)));
    let outlier = Outlier { consecutive_5xx: 7, eject_for: Duration::from_secs(20), max_ejected: 0.1 };
    assert_eq!(cluster.outlier, Some(outlier));
    assert_eq!((cluster.panic_threshold, cluster.slow_start), (0.0, Duration::from_secs(30)));
    let limits = &cluster.limits;
    assert_eq!(
        (limits.connections_max, limits.pending_max, limits.pending_timeout),
        (Some(100), 20, Duration::from_secs(1))
    );
    assert_eq!((limits.streams_per_connection_max, cluster.protocol), (50, ClusterProtocol::H1));
    let timeouts = [cluster.connect_timeout, cluster.response_timeout, cluster.idle_timeout];
    assert_eq!(timeouts, [250, 60_000, 10_000].map(Duration::from_millis));
    assert_eq!((cluster.idle_connections_max, cluster.send_proxy_protocol), (0, Some(ProxyProtocol::V2)));
}

/// The cluster that has this beside its endpoints.
fn cluster(keys: &str) -> Cluster {
    let text =
        format!("listeners: {{a: {{bind: :1, protocol: tcp, to: c}}}}\nclusters: {{c: {{endpoints: [a:1], {keys}}}}}");
    Arc::unwrap_or_clone(load(&text).clusters.remove(0))
}

#[test]
fn other_ways_to_write_a_cluster() {
    assert_eq!(cluster("outlier: off").outlier, None);
    assert_eq!(cluster("outlier: {}").outlier, Some(Outlier::default()));
    let ping = |keys: &str| cluster(&format!("protocol: h2c, {keys}")).ping;
    assert_eq!(ping("ping: off"), None);
    assert_eq!((ping("slow_start: 0s"), ping("ping: {}")), (Some(Ping::default()), Some(Ping::default())));
    let after = Duration::from_secs(1);
    assert_eq!(ping("ping: {after: 1s}"), Some(Ping { after, ..Ping::default() }));
    let protocol = |keys: &str| cluster(keys).protocol;
    assert_eq!(protocol("protocol: h1, tls: {}"), ClusterProtocol::H1);
    assert_eq!(protocol("protocol: h2c"), ClusterProtocol::H2);
    assert_eq!(protocol("protocol: h2, tls: {}"), ClusterProtocol::H2);
    let probe = |keys: &str| cluster(&format!("health_check: {keys}")).health_check.unwrap().probe;
    assert_eq!(probe("{grpc: ''}"), Probe::Grpc { service: String::new(), host: None });
    let host = Some("greeter.example.com".to_owned());
    assert_eq!(probe("{grpc: a.B, host: greeter.example.com}"), Probe::Grpc { service: "a.B".to_owned(), host });
    let check =
        |balance: &str, expect| assert_eq!(cluster(&format!("balance: {balance}")).algorithm, expect, "{balance}");
    check("random", Algorithm::Random);
    check("peak_ewma", Algorithm::PeakEwma);
    check("maglev", Algorithm::Maglev(HashKey::ClientIp));
    check("{maglev: {}}", Algorithm::Maglev(HashKey::ClientIp));
    check("{maglev: {key: client_ip}}", Algorithm::Maglev(HashKey::ClientIp));
    check("{maglev: {subset: 3}}", Algorithm::MaglevSubset { key: HashKey::ClientIp, size: 3 });
    check("{maglev: {key: {cookie: Sid}}}", Algorithm::Maglev(HashKey::Cookie("Sid".to_owned())));
}

#[test]
fn other_ways_to_write_an_access_log() {
    let check = |log: &str, target, format| {
        let text = format!(
            "access_log: {log}\nlisteners: {{a: {{bind: :1, protocol: tcp, to: c}}}}\nclusters: {{c: {{endpoints: [a:1]}}}}"
        );
        assert_eq!(load(&text).access_log, Some(AccessLog::new(target, format)), "{log}");
    };
    check("stdout", LogTarget::Stdout, LogFormat::Text(None));
    check("'-'", LogTarget::Stdout, LogFormat::Text(None));
    check("access.log", LogTarget::File("access.log".into()), LogFormat::Text(None));
    check("{format: json}", LogTarget::Stdout, LogFormat::Json(None));
}

#[test]
fn routes_are_named_after_their_conditions_and_each_differently() {
    let text = "
clusters: {c: {endpoints: [a:1]}}
listeners:
  l:
    bind: :1
    protocol: http
    routes:
      - {to: c, hosts: [a.com, b.com], path: /x}
      - {to: c, hosts: a.com, path: {exact: /y}}
      - {to: c, headers: {x-a: 1, x-b: {present: true}}, query: {q: {regex: .+}}}
      - {to: c, hosts: '*.a.com'}
      - {to: c, headers: {x-a: {regex: b}}}
      - {to: c, headers: {x-a: {regex: c}}}
      - {to: c, headers: {x-a: {regex: d}}}
      - {to: c, headers: {X-A: {present: true}}}
      - {to: c, name: '/ x-a~#2', path: /named}
      - {to: c, name: /}";
    let snapshot = load(text);
    let names: Vec<_> = http(&snapshot).routes.iter().map(|route| route.name.as_str()).collect();
    let made = ["a.com+1/x", "a.com=/y", "/ x-a= x-b ?q~", "*.a.com/", "/ x-a~", "/ x-a~#3", "/ x-a~#4", "/ x-a"];
    assert_eq!(names[..8], made);
    assert_eq!(names[8..], ["/ x-a~#2", "/"]);
}

#[test]
fn a_listener_without_routes_sends_everything_to_its_cluster() {
    let text = "clusters: {c: {endpoints: [a:1]}}\nlisteners: {a: {bind: :1, protocol: http, to: c}}";
    let snapshot = load(text);
    let [route] = &*http(&snapshot).routes else { panic!("one route") };
    assert_eq!((route.name.as_str(), route.hosts.len(), route.timeout), ("/", 0, None));
    assert!(matches!(&route.path, PathMatcher::Prefix(prefix) if prefix == "/"));
}

#[test]
fn slow_and_silent_clients_can_be_let_be() {
    let limits = |keys: &str| {
        let text = format!(
            "clusters: {{c: {{endpoints: [a:1]}}}}\nlisteners: {{a: {{bind: :1, protocol: http, to: c, {keys}}}}}"
        );
        http(&load(&text)).limits.clone()
    };
    let off = limits("min_rate: off, ping: off");
    assert_eq!((off.min_rate, off.ping), (None, None));
    let default = limits("min_rate: {}, ping: {}");
    assert_eq!((default.min_rate, default.ping), (Some(MinRate::default()), Some(Ping::default())));
    let grace = Duration::from_secs(1);
    assert_eq!(limits("min_rate: {grace: 1s}").min_rate, Some(MinRate { grace, ..MinRate::default() }));
}

#[test]
fn anchors_and_aliases_stand_for_whole_values() {
    let text = "
listeners:
  a: {bind: :1, protocol: tcp, to: c, idle_timeout: &t 10m}
  b: {bind: :2, protocol: tcp, to: c, idle_timeout: *t}
clusters: {c: {endpoints: [a:1]}}";
    let snapshot = load(text);
    assert_eq!(snapshot.listeners.len(), 2);
    for listener in &snapshot.listeners {
        assert!(matches!(&listener.protocol, Protocol::Tcp(tcp) if tcp.idle_timeout == Duration::from_secs(600)));
    }
}

#[test]
fn the_proxy_command_means_what_the_shortest_file_means() {
    let to = [parse_endpoint("127.0.0.1:9001").unwrap(), parse_endpoint("origin:80").unwrap()];
    for protocol in ["http", "tcp"] {
        let text = format!(
            "listeners: {{proxy: {{bind: :8080, protocol: {protocol}, to: proxy}}}}\n\
             clusters: {{proxy: {{endpoints: [127.0.0.1:9001, origin:80]}}}}"
        );
        let command = proxy_snapshot("[::]:8080".parse().unwrap(), &to, protocol == "tcp");
        assert_eq!(format!("{command:?}"), format!("{:?}", load(&text)));
    }
    assert_eq!(tcp(&proxy_snapshot("[::]:1".parse().unwrap(), &to, true)).idle_timeout, Duration::from_secs(3600));
}

const EVERY_VIP_KEY: &str = r#"
kernel_plane: {flows_max: 2048, socket_cgroup: /sys/fs/cgroup, announce: route, announce_after: 1m, route_table: 100, route_metric: 7}
vips:
  nat:
    address: "[2001:db8::1]:5000-5010/udp"
    interfaces: eth0
    endpoints: [fd00::1, {address: "[fd00::2]", weight: 7}]
    balance: least_connections
    affinity: 10m
    health_check: {http: /ready, port: 8080}
    allow: fd00::/8
    deny: [fd00:1::/32, "fd00::7"]
    new_connections_per_source: {rate: 100/s, burst: 500}
    timeouts: {syn: 5s, idle: 10m, closing: 1s}
  one_arm:
    address: 10.0.0.1:443/tcp
    interfaces: [eth0]
    endpoints: [10.0.0.2:8443]
    mode: full_nat
    sources: [10.0.0.8, 10.0.0.9]
    health_check: {tcp: true}
    on_unhealthy: reset
    new_connections_per_source: 20/s
  here:
    address: 10.0.0.1:80/tcp
    interfaces: [eth0]
    mode: local
    announce: none
"#;

#[test]
fn every_key_of_a_vip() {
    let snapshot = load(EVERY_VIP_KEY);
    assert_eq!(snapshot.flows_max, 2048);
    assert_eq!(snapshot.socket_cgroup.as_deref(), Some(std::path::Path::new("/sys/fs/cgroup")));
    let [nat, one_arm, here] = snapshot.vips.as_slice() else { panic!("three vips") };
    assert_eq!((nat.address, nat.transport), ("2001:db8::1".parse().unwrap(), Transport::Udp));
    assert_eq!(nat.ports, PortRange { first: 5000, last: 5010 });
    let endpoint = |address: &str, weight| Endpoint {
        address: EndpointAddress::Socket(address.parse().unwrap()),
        weight,
        priority: 0,
        zone: model::Zone::Unknown,
        host: None,
    };
    assert_eq!(nat.endpoints, [endpoint("[fd00::1]:0", 1), endpoint("[fd00::2]:0", 7)]);
    assert_eq!((nat.algorithm, nat.affinity), (VipAlgorithm::LeastConnections, Some(Duration::from_secs(600))));
    let check = nat.health_check.as_ref().unwrap();
    assert_eq!(check.probe, Probe::Http(model::HttpProbe::new("/ready")));
    assert_eq!(check.port, Some(8080));
    assert_eq!(nat.allow, ["fd00::/8".parse().unwrap()]);
    assert_eq!(nat.deny, ["fd00:1::/32".parse().unwrap(), "fd00::7/128".parse().unwrap()]);
    assert_eq!(nat.source_rate, Some(SourceRate { per_second: 100, burst: 500 }));
    let [syn, idle, closing] = [5, 600, 1].map(Duration::from_secs);
    assert_eq!(nat.timeouts, FlowTimeouts { syn, idle, closing });

    let sources = ["10.0.0.8", "10.0.0.9"].map(|address| address.parse().unwrap()).into();
    assert_eq!(one_arm.mode, VipMode::FullNat { sources });
    assert_eq!((nat.on_unhealthy, one_arm.on_unhealthy), (OnUnhealthy::Keep, OnUnhealthy::Reset));
    assert_eq!(one_arm.source_rate, Some(SourceRate { per_second: 20, burst: 20 }));
    assert_eq!((&here.mode, here.endpoints.len()), (&VipMode::Local, 0));
    assert_eq!([nat, one_arm, here].map(|vip| vip.announce), [Announce::Route, Announce::Route, Announce::None]);
    assert_eq!(snapshot.announcing, Announcing { after: Duration::from_secs(60), table: 100, metric: 7 });
}

#[test]
fn a_file_may_have_no_vips_yet() {
    assert_eq!(load("vips: {}").vips, []);
}
