//! The exact text on the screen.

use super::*;
use crate::findings;
use crate::status::{EndpointRecent, ListenerRecent, Reload, RouteRecent};
use crate::vip::{
    FlowStatus, Flows, KernelPlaneStatus, TraceReport, TraceStep, VipEndpointRecent, VipEndpointStatus, VipRates,
    VipStatus,
};

pub(crate) fn endpoint(address: &str, state: EndpointState, why: Option<&str>) -> EndpointStatus {
    EndpointStatus {
        address: address.into(),
        weight: 1,
        priority: 0,
        zone: crate::ZoneStatus::Unknown,
        state,
        why: why.map(str::to_owned),
        in_flight: 2,
        connections: 5,
        requests: 1000,
        failures: 12,
        upstream_us: None,
        cause: crate::EndpointCause::default(),
        recent: EndpointRecent::default(),
        latest: EndpointRecent::default(),
    }
}

#[expect(clippy::too_many_lines, reason = "each field of a status has a line")]
pub(crate) fn status() -> Status {
    let listener = ListenerStatus {
        name: "web".into(),
        bind: "0.0.0.0:80".into(),
        protocol: "http".into(),
        admits_unverified_clients: false,
        connections_open: 12,
        connections_total: 3456,
        requests: 70_000,
        refused: [("bad_header".to_owned(), 2), ("no_route".to_owned(), 10)].into(),
        recent: ListenerRecent::default(),
        latest: ListenerRecent::default(),
    };
    let route = |name: &str, requests, upstream_us| RouteStatus {
        listener: "web".into(),
        name: name.into(),
        cluster: "shop".into(),
        auth: None,
        requests,
        statuses: [0; 5],
        refused: BTreeMap::new(),
        retries: 0,
        recent: RouteRecent::default(),
        latest: RouteRecent::default(),
        added_us: Some(Quantiles { p50: 41.2, p99: 1_234.0 }),
        upstream_us,
    };
    let cluster = ClusterStatus {
        name: "shop".into(),
        algorithm: "round_robin".into(),
        requests: 70_000,
        retries: 3,
        retry_budget_used: 0.0,
        panic: false,
        priority: None,
        zone_share: None,
        is_missing: false,
        endpoints: vec![
            endpoint("127.0.0.1:9001", EndpointState::Healthy, None),
            endpoint("127.0.0.1:9002", EndpointState::Unchecked, None),
        ],
    };
    Status {
        version: crate::STATUS_VERSION,
        steelyard: "0.1.0".into(),
        pid: 4242,
        workers: 2,
        unix_seconds: 1_795_241_235,
        uptime_seconds: 93_784,
        generation: 7,
        ending: false,
        draining: false,
        findings: Vec::new(),
        missing_files: Vec::new(),
        invalid_certificates: Vec::new(),
        open_files: Some(40),
        open_files_max: Some(1024),
        memory: 40 << 20,
        memory_max: Some(1 << 30),
        last_reload: Some(Reload { unix_seconds: 1_795_241_000, ok: true, errors: Vec::new() }),
        listeners: vec![listener],
        routes: vec![route("/quiet", 10, None), route("/", 69_990, Some(Quantiles { p50: 2_345.0, p99: 1_500_000.0 }))],
        password_checks: None,
        key_sets: Vec::new(),
        methods: Vec::new(),
        clusters: vec![cluster],
        kernel_plane: None,
        vips: Vec::new(),
        maintenance: Vec::new(),
        access_log: None,
        vips_left: false,
        service_faults: Vec::new(),
        about: crate::AboutStatus::default(),
        kernel_refusal: None,
        stalled_workers: Vec::new(),
    }
}

const TABLES: &str = "
LISTENER  BIND        PROTOCOL  OPEN  ACCEPTED  REQUESTS
web       0.0.0.0:80  http        12      3456     70000
  refused or cut: 10 no_route, 2 bad_header

ROUTE   LISTENER  CLUSTER  REQUESTS   ADDED p50/p99  UPSTREAM p50/p99
/       web       shop        69990  41 us / 1.2 ms    2.3 ms / 1.5 s
/quiet  web       shop           10  41 us / 1.2 ms                 -

CLUSTER  ALGORITHM    USABLE  REQUESTS  RETRIES
shop     round_robin  2 of 2     70000        3

ENDPOINT        CLUSTER  STATE      WEIGHT  BUSY  CONNS  REQUESTS  FAILED
127.0.0.1:9001  shop     healthy         1     2      5      1000      12
127.0.0.1:9002  shop     unchecked       1     2      5      1000      12
";

#[test]
fn a_good_day() {
    let title = "steelyard 0.1.0, pid 4242, up 1 d 2 h, 2 workers, generation 7";
    assert_eq!(render_status_text(&status(), false), format!("{title}\n\nNothing is wrong.\n{TABLES}"));
    assert_eq!(
        render_status_text(&status(), true),
        format!("\x1b[1m{title}\x1b[0m\n\n\x1b[32mNothing is wrong.\x1b[0m\n{TABLES}")
    );
}

#[test]
fn methods_of_grpc() {
    let method = |name: &str, codes: &[(&str, u64)], duration_us| MethodStatus {
        listener: "web".into(),
        service: "shop.Cart".into(),
        method: name.into(),
        codes: codes.iter().map(|(code, count)| ((*code).to_owned(), *count)).collect(),
        duration_us,
    };
    let took = Some(Quantiles { p50: 2_345.0, p99: 1_500_000.0 });
    let status = Status {
        methods: vec![
            method("*", &[("UNIMPLEMENTED", 1)], None),
            method("Add", &[("OK", 90), ("UNAVAILABLE", 3), ("DEADLINE_EXCEEDED", 7)], took),
        ],
        ..status()
    };
    let expect = "
METHOD         LISTENER  CALLS    TOOK p50/p99
shop.Cart/Add  web         100  2.3 ms / 1.5 s
  not OK: 7 DEADLINE_EXCEEDED, 3 UNAVAILABLE
shop.Cart/*    web           1               -
  not OK: 1 UNIMPLEMENTED
";
    let text = render_status_text(&status, false);
    assert!(text.contains(expect), "{text}");
}

#[test]
fn a_bad_night() {
    let mut status = status();
    status.last_reload = Some(Reload {
        unix_seconds: status.unix_seconds - 65,
        ok: false,
        errors: vec!["steelyard.yaml:3:5: unknown key `bnd`\n  did you mean `bind`?".into(), "second".into()],
    });
    let (cluster, listener) = (&mut status.clusters[0], &mut status.listeners[0]);
    cluster.endpoints[1] = endpoint("127.0.0.1:9002", EndpointState::Unhealthy, Some("connect refused"));
    cluster.endpoints.push(endpoint("127.0.0.1:9003", EndpointState::Ejected, None));
    listener.refused = [("internal".to_owned(), 3)].into();
    listener.recent.refused = [("internal".to_owned(), 1)].into();
    listener.recent.requests = 1_000;
    status.findings = findings(&status);
    let text = render_status_text(&status, false);
    let expect = "
4 things are wrong:
- the last reload, 1 min 5 s ago, was refused; generation 7 stays in use:
  steelyard.yaml:3:5: unknown key `bnd`
    did you mean `bind`?
  second
- 1 of 3 endpoints of shop is unhealthy: 127.0.0.1:9002 connect refused
- 1 of 3 endpoints of shop is ejected: 127.0.0.1:9003
- steelyard itself failed 3 times since its start and once in the last minute
  because of a bug: please report it, with the log

";
    assert!(text.contains(expect), "{text}");
    let rows: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("ENDPOINT")).collect();
    assert_eq!(rows[1], "127.0.0.1:9002  shop     unhealthy       1     2      5      1000      12");
    assert_eq!(rows[2], "  connect refused");
    assert!(rows[3].starts_with("127.0.0.1:9003") && rows[4].starts_with("127.0.0.1:9001"), "{text}");
    assert!(
        render_status_text(&status, true)
            .contains("- \x1b[31m1 of 3 endpoints of shop is ejected: 127.0.0.1:9003\x1b[0m\n")
    );
}

#[test]
fn a_day_with_something_to_look_at() {
    let mut status = status();
    status.clusters[0].endpoints[0].state = EndpointState::Draining;
    status.findings = findings(&status);
    let expect = "
Nothing is wrong.
1 thing to look at:
- 1 of 2 endpoints of shop is draining: 127.0.0.1:9001
";
    let text = render_status_text(&status, false);
    assert!(text.contains(expect), "{text}");
}

#[test]
fn a_screen_has_80_columns() {
    let mut status = status();
    let long = "shop.example.com/api/v1/products/with/a/path/that/does/not/end";
    status.routes[0].name = long.into();
    status.routes[0].listener = "the-listener-of-the-shop-in-the-north".into();
    status.listeners[0].name = "the-listener-of-the-shop-in-the-north".into();
    status.clusters[0].name = "the-cluster-of-the-shop-in-the-north".into();
    status.clusters[0].endpoints[1].why =
        Some("connect refused, and so was every one of the hundred before it".repeat(2));
    status.listeners[0].refused =
        telemetry::Reason::ALL.iter().map(|reason| (reason.name().to_owned(), 1_000_000)).collect();
    status.vips = vec![vip()];
    status.missing_files = vec!["/etc/steelyard/steelyard.yaml".into()];
    status.findings = findings(&status);
    let text = render_status_text(&status, false);
    for line in text.lines() {
        assert!(line.chars().count() <= WIDTH, "{line}\n{text}");
    }
    assert!(text.contains("127.0.0.1:9002 ") && text.contains("shop.e\u{2026}ot/end"), "{text}");
}

#[test]
fn much_is_cut_and_nothing_is_obeyed() {
    let mut status = status();
    status.draining = true;
    let cluster = &mut status.clusters[0];
    cluster.endpoints =
        (0..30).map(|port| endpoint(&format!("10.0.0.7:{port}"), EndpointState::Healthy, None)).collect();
    cluster.endpoints[29] = endpoint("10.0.0.8:1", EndpointState::Unhealthy, Some("\x1b[2Jgone"));
    status.findings = findings(&status);
    let text = render_status_text(&status, false);
    assert!(text.contains("\n10.0.0.8:1 ") && text.ends_with("and 10 more: `--json` shows them all\n"), "{text}");
    assert!(text.contains("- steelyard is draining: ") && !text.contains('\x1b'), "{text}");
}

#[test]
fn durations() {
    let check = |seconds, expect: &str| assert_eq!(duration(seconds), expect);
    check(0, "0 s");
    check(59, "59 s");
    check(61, "1 min 1 s");
    check(3_600, "1 h 0 min");
    check(90_000, "1 d 1 h");
}

pub(crate) fn vip() -> VipStatus {
    let endpoint = |address: &str, state, why: Option<&str>| VipEndpointStatus {
        address: address.into(),
        weight: 1,
        state,
        why: why.map(str::to_owned),
        flows: 4,
        flows_total: 500,
        packets_to: 6000,
        packets_from: 5000,
        bytes_to: 1,
        bytes_from: 2,
        is_here: false,
        sockets: 1,
        sockets_total: 20,
        recent: VipEndpointRecent::default(),
        latest: VipEndpointRecent::default(),
    };
    VipStatus {
        name: "dns".into(),
        address: "192.0.2.1:53/udp".into(),
        mode: "nat".into(),
        tunnel: None,
        algorithm: "maglev".into(),
        interfaces: vec!["eth0".into(), "eth1".into()],
        along_routes: false,
        added: true,
        flows: 8,
        flows_total: 1000,
        sockets: 2,
        sockets_total: 40,
        rates: VipRates { flows_per_second: 12.4, packets_per_second: 45_678.0, bits_per_second: 9.4e9 },
        drops: [("no_endpoint".to_owned(), 3), ("rate_limited".to_owned(), 40)].into(),
        recent_drops: [].into(),
        announcement: None,
        endpoints: vec![
            endpoint("10.0.0.1", EndpointState::Healthy, None),
            endpoint("10.0.0.2:5353", EndpointState::Unhealthy, Some("connect refused")),
        ],
    }
}

#[test]
fn vips_and_their_endpoints() {
    let mut status = status();
    status.kernel_plane = Some(KernelPlaneStatus {
        entries: 90,
        entries_max: 100,
        pressure: true,
        map_bytes: 98_765_432,
        drops: [].into(),
        sockets: None,
    });
    status.vips = vec![vip()];
    status.findings = findings(&status);
    let text = render_status_text(&status, false);
    let findings = "
2 things are wrong:
- the table of flows has 90 of at most 100 entries: raise
  `kernel_plane.flows_max`, or look for a flood
- 1 of 2 endpoints of dns is unhealthy: 10.0.0.2:5353 connect refused
";
    assert!(text.contains(findings), "{text}");
    let tables = "
VIP  ADDRESS           USABLE  FLOWS  MADE  NEW/s  PACKETS/s  BITS/s
dns  192.0.2.1:53/udp  1 of 2      8  1000     12     45.7 k   9.4 G
  at the socket: 2 open, 40 made
  dropped: 40 rate_limited, 3 no_endpoint

ENDPOINT       VIP  STATE      WEIGHT  FLOWS  MADE  PACKETS TO  FROM
10.0.0.2:5353  dns  unhealthy       1      4   500        6000  5000
  connect refused
  at the socket: 1 open, 20 made
10.0.0.1       dns  healthy         1      4   500        6000  5000
  at the socket: 1 open, 20 made

Table of flows: 90 of at most 100 entries. Memory of all tables: 94.2 MiB.
";
    assert!(text.ends_with(tables), "{text}");
    let list = "
VIP  ADDRESS           MODE  BALANCE  FROM
dns  192.0.2.1:53/udp  nat   maglev   a command
    interfaces  eth0, eth1
    endpoints   10.0.0.1, 10.0.0.2:5353
";
    assert_eq!(render_vips_text(&status), &list[1..]);
    status.vips[0].along_routes = true;
    let list = render_vips_text(&status);
    assert!(list.contains("    interfaces  along the routes: eth0, eth1\n"), "{list}");
    let unattached = crate::VipStatus { interfaces: Vec::new(), ..status.vips[0].clone() };
    let list = render_vips_text(&crate::status::Status { vips: vec![unattached.clone()], ..status.clone() });
    assert!(list.contains("    interfaces  along the routes: none\n"), "{list}");
    let told = crate::findings(&crate::status::Status { vips: vec![unattached], ..status.clone() });
    assert!(told.iter().any(|finding| finding.text.contains("is not attached to any interface")), "{told:?}");
    status.vips[0].address = "20.20.20.1:2020/tcp".into();
    status.vips[0].algorithm = "least_connections".into();
    status.vips[0].interfaces = ["client0", "ep0", "ep1", "ep2"].map(String::from).into();
    for (number, endpoint) in status.vips[0].endpoints.iter_mut().enumerate() {
        endpoint.address = format!("131.131.131.{number}:5001");
    }
    let list = render_vips_text(&status);
    assert!(list.lines().all(|line| line.chars().count() <= 80), "{list}");
    status.vips = Vec::new();
    assert_eq!(render_vips_text(&status), "no vips: the file has none and none was added\n");
}

#[test]
fn flows_and_traces() {
    let flow = FlowStatus {
        vip: "web".into(),
        protocol: "tcp".into(),
        client: "10.0.0.7:40000".into(),
        address: "192.0.2.1:80".into(),
        endpoint: "10.0.1.1:8080".into(),
        state: "established".into(),
        age_seconds: 3700,
        idle_seconds: Some(5),
    };
    let mut flows = Flows { version: 1, flows: vec![flow.clone(); 30], more: true };
    let text = render_flows_text(&flows);
    assert_eq!(text.lines().count(), 32, "{text}");
    assert!(text.ends_with("and more: `--limit N` shows them\n"), "{text}");
    let row = "web  tcp    10.0.0.7:40000  10.0.1.1:8080  established  1 h 1 min   5 s";
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert_eq!(text.lines().nth(1), Some(row));
    (flows.flows, flows.more) = (Vec::new(), false);
    assert_eq!(render_flows_text(&flows), "no flows\n");

    let step = |stage: &str, text: &str| TraceStep { stage: stage.into(), text: text.into() };
    let report = TraceReport {
        version: 1,
        steps: vec![step("packet", "TCP SYN"), step("conntrack", "a new\x1b connection")],
        forwarded: false,
        verdict: "dropped: no_endpoint".into(),
    };
    let expect = "packet     TCP SYN\nconntrack  a new\u{fffd} connection\ndropped: no_endpoint\n";
    assert_eq!(render_trace_text(&report), expect);
}
