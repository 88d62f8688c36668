//! Each finding, and cases that give none.

use super::*;
use crate::show::tests::{endpoint, status, vip};
use crate::status::InvalidCertificate;
use crate::status::RouteRecent;
use crate::vip::SocketsStatus;

/// Compares kind, severity and text of each finding.
fn check(status: &Status, expect: &[(&str, Severity, &str)]) {
    let found = findings(status);
    let found: Vec<(&str, Severity, &str)> =
        found.iter().map(|finding| (finding.kind.as_str(), finding.severity, finding.text.as_str())).collect();
    assert_eq!(found, expect);
}

use Severity::{Notice, Wrong};

fn counts(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
    counts.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
}

#[test]
fn nothing() {
    check(&status(), &[]);
    // Clients that go away, and copies that no client waits for.
    let mut status = status();
    status.listeners[0].recent.requests = 100;
    status.listeners[0].recent.refused = counts(&[("client_reset", 90), ("mirror_failed", 90), ("tunnel_idle", 9)]);
    status.routes[0].recent.responses = 10;
    check(&status, &[]);
}

#[test]
fn the_process() {
    let mut status = status();
    (status.open_files, status.open_files_max) = (Some(90), Some(100));
    status.missing_files = vec!["/etc/steelyard.yaml".into()];
    (status.memory, status.memory_max) = (901 << 20, Some(1 << 30));
    status.listeners[0].recent.requests = 100_000;
    status.listeners[0].recent.refused = counts(&[("memory_full", 3)]);
    check(
        &status,
        &[
            (
                "file_missing",
                Wrong,
                "/etc/steelyard.yaml is missing: generation 7 stays in use, but a restart would fail; put the file back",
            ),
            (
                "open_files",
                Wrong,
                "90 of 100 file descriptors are in use: raise LimitNOFILE (`ulimit -n`), or lower limits.connections of \
                 the listeners",
            ),
            (
                "memory_full",
                Wrong,
                "steelyard is short of memory: new connections and requests were refused 3 times in the last minute \
                 (901 of the 1024 MiB of memory_max are in use now); raise memory_max if the host has more, or lower \
                 limits.connections and limits.streams_per_connection of the listeners",
            ),
        ],
    );
    status.listeners[0].recent.refused.clear();
    (status.open_files, status.open_files_max, status.missing_files) = (Some(89), Some(100), Vec::new());
    check(&status, &[]);
}

#[test]
fn certificates_that_nobody_accepts() {
    let mut status = status();
    let invalid = |valid_from: u64, valid_until: u64| InvalidCertificate {
        file: "tls/shop.pem".into(),
        used_by: vec!["cluster payments".into(), "listener app".into()],
        valid_from,
        valid_until,
    };
    status.unix_seconds = 1000;
    status.invalid_certificates = vec![invalid(0, 940)];
    let text = "the certificate in tls/shop.pem (cluster payments, listener app) expired 1 min 0 s ago, and nobody accepts \
                it: renew it; it is used within seconds after that";
    check(&status, &[("certificate_invalid", Wrong, text)]);
    status.invalid_certificates = vec![invalid(1060, 2000)];
    let text = "the certificate in tls/shop.pem (cluster payments, listener app) is not valid before 1 min 0 s from now: \
                set the clock of this host, or issue the certificate again";
    check(&status, &[("certificate_invalid", Wrong, text)]);
}

#[test]
fn clients_that_are_not_verified() {
    let mut status = status();
    status.listeners[0].admits_unverified_clients = true;
    let text = "web asks clients for certificates and also admits clients without a valid one: its client_ca has \
                `verify: false`, or its Gateway has the mode AllowInsecureFallback";
    check(&status, &[("unverified_clients", Notice, text)]);
}

#[test]
fn shares_of_failures() {
    let check = |failed, all, expect| assert_eq!(is_worth_a_look(failed, all), expect, "{failed} of {all}");
    check(0, 0, false);
    check(0, 100, false);
    check(1, 1, true);
    check(1, 5, true);
    check(1, 6, false);
    check(4, 100, false);
    check(5, 100, true);
    check(5, 500, true);
    check(5, 501, false);
    check(u64::MAX, u64::MAX, true);
}

#[test]
fn requests_that_fail() {
    let mut status = status();
    let recent = &mut status.listeners[0].recent;
    recent.requests = 17_137;
    recent.refused = counts(&[("no_local_resources", 17_120), ("connect_refused", 2), ("client_reset", 15)]);
    recent.accept_failures = 3;
    (status.routes[1].recent.responses, status.routes[1].recent.errors) = (17_122, 17_122);
    check(
        &status,
        &[
            (
                "accept_failures",
                Wrong,
                "web failed to accept connections 3 times in the last minute because file descriptors or memory ran \
                 out: raise LimitNOFILE (`ulimit -n`), or lower limits.connections of the listeners",
            ),
            (
                "listener_failures",
                Wrong,
                "web failed 17122 of 17137 requests in the last minute: 17120 no_local_resources, 2 connect_refused; raise \
                 LimitNOFILE (`ulimit -n`), or lower limits.connections of the listeners",
            ),
            ("route_errors", Wrong, "a route answered with 5xx: / of web (17122 of 17122 requests in the last minute)"),
        ],
    );
}

#[test]
fn requests_that_clients_give_up() {
    let mut status = status();
    let recent = &mut status.listeners[0].recent;
    (recent.requests, recent.refused) = (4, counts(&[("client_reset", 4)]));
    check(&status, &[]);
    let recent = &mut status.listeners[0].recent;
    (recent.requests, recent.refused) = (5, counts(&[("client_reset", 5)]));
    let text = "clients of web gave up 5 requests in the last minute before a response came, and no client got a \
                response: find out why the endpoints do not answer";
    check(&status, &[("listener_unanswered", Wrong, text)]);
    // The requests of a minute ago were answered.
    status.routes[0].recent.responses = 1;
    status.listeners[0].latest.refused = counts(&[("client_reset", 5)]);
    let text = text.replace("minute", "few seconds");
    check(&status, &[("listener_unanswered", Wrong, &text)]);
    status.listeners[0].latest.refused.clear();
    // A request whose client leaves during the response has been answered.
    status.routes[0].recent.responses = 1;
    check(&status, &[]);
    status.routes[0].recent.responses = 0;
    status.listeners[0].protocol = "tcp".into();
    check(&status, &[]);
}

#[test]
fn calls_that_fail() {
    let with = |errors, call_failures| {
        let mut status = status();
        status.routes[1].recent = RouteRecent { responses: 1_000, errors, call_failures, ..RouteRecent::default() };
        findings(&status).into_iter().map(|finding| finding.text).collect::<Vec<_>>()
    };
    assert_eq!(
        with(600, 600),
        ["a route answered with gRPC errors: / of web (600 of 1000 requests in the last minute)"]
    );
    assert_eq!(
        with(600, 500),
        ["a route answered with 5xx and gRPC errors: / of web (600 of 1000 requests in the last minute)"]
    );
}

#[test]
fn workers_that_make_no_progress() {
    let stalled = |connections: &[(&str, u64)], stack: &[&str], why: Option<&str>| {
        let mut status = status();
        status.stalled_workers.push(crate::StalledWorkerStatus {
            worker: 1,
            since_unix_seconds: 1_795_651_207,
            seconds: 62,
            connections: counts(connections),
            stack: stack.iter().map(|frame| (*frame).to_owned()).collect(),
            why_no_stack: why.map(str::to_owned),
        });
        status
    };
    let begin = "worker 1 has made no progress since 00:00:07 UTC, for 1 min 2 s: ";
    let text = format!("{begin}its 12 connections wait (api 10, web 2); it stands in memchr < parse");
    check(&stalled(&[("api", 10), ("web", 2)], &["memchr", "parse"], None), &[("worker_stalled", Wrong, &text)]);
    let text = format!("{begin}its 1 connection waits (api 1); it stands in parse");
    check(&stalled(&[("api", 1)], &["parse"], None), &[("worker_stalled", Wrong, &text)]);
    let text = format!("{begin}it serves no connection; there is no stack: it is being taken");
    check(&stalled(&[], &[], Some("it is being taken")), &[("worker_stalled", Wrong, &text)]);
}

#[test]
fn responses_that_the_configuration_wants_are_no_failures() {
    let with = |errors, intended_errors| {
        let mut status = status();
        status.routes[1].recent = RouteRecent { responses: 1_000, errors, intended_errors, ..RouteRecent::default() };
        findings(&status).into_iter().map(|finding| finding.text).collect::<Vec<_>>()
    };
    assert_eq!(with(600, 600), [""; 0]);
    assert_eq!(with(600, 500), ["a route answered with 5xx: / of web (100 of 1000 requests in the last minute)"]);
}

#[test]
fn requests_that_fail_since_a_few_seconds() {
    let with = |requests, failures| {
        let mut status = status();
        let failed = || counts(&[("connect_refused", failures)]);
        let listener = &mut status.listeners[0];
        (listener.recent.requests, listener.recent.refused) = (3_010, failed());
        (listener.latest.requests, listener.latest.refused) = (requests, failed());
        let route = &mut status.routes[1];
        route.recent = RouteRecent { responses: 3_010, errors: failures, refused: failed(), ..RouteRecent::default() };
        route.latest =
            RouteRecent { responses: requests, errors: failures, refused: failed(), ..RouteRecent::default() };
        let endpoint = &mut status.clusters[0].endpoints[1];
        endpoint.recent = EndpointRecent { requests: 3_010, unreachable: failures, ..EndpointRecent::default() };
        endpoint.latest = EndpointRecent { requests, unreachable: failures, ..EndpointRecent::default() };
        status
    };
    check(&with(1_000, 5), &[]);
    check(&with(1_000, 0), &[]);
    check(
        &with(5, 5),
        &[
            (
                "listener_failures",
                Wrong,
                "web failed 5 of 5 requests in the last few seconds: 5 connect_refused; start the service on the \
                 endpoint's port",
            ),
            (
                "route_errors",
                Wrong,
                "a route answered with 5xx: / of web (5 of 5 requests in the last few seconds: 5 connect_refused)",
            ),
            (
                "endpoint_failures",
                Wrong,
                "requests to shop failed: 5 of 5 at 127.0.0.1:9002 in the last few seconds (5 not connected); find out \
                 whether it runs and listens there; no health check covers it: give the cluster a `health_check`",
            ),
        ],
    );
    // When the minute has enough failures, it is reported instead.
    let texts: Vec<String> = findings(&with(40, 40)).into_iter().map(|finding| finding.text).collect();
    assert!(texts.iter().all(|text| text.contains("40 of 3010") && text.contains("last minute")), "{texts:?}");
}

#[test]
fn connections_and_requests_that_are_refused() {
    let mut status = status();
    let recent = &mut status.listeners[0].recent;
    recent.requests = 20;
    recent.refused = counts(&[("connections_full", 1), ("no_route", 9), ("bad_host", 1)]);
    check(
        &status,
        &[
            (
                "connections_full",
                Wrong,
                "web turned away 1 connection in the last minute because its limits.connections was reached (12 are \
                 open now); raise it, or find out which clients hold them",
            ),
            (
                "listener_refusals",
                Notice,
                "web refused 10 of 20 requests in the last minute: 9 no_route, 1 bad_host; see docs/reasons.md",
            ),
        ],
    );
}

#[test]
fn handshakes_that_fail() {
    let with = |requests, connections, refused: &[(&str, u64)]| {
        let mut status = status();
        let recent = &mut status.listeners[0].recent;
        (recent.requests, recent.connections, recent.refused) = (requests, connections, counts(refused));
        status
    };
    let text = "18 of 18 connections to web failed in the TLS handshake in the last minute, and no request arrived: 17 \
                tls_handshake, 1 tls_handshake_timeout; find out whether its certificate has expired and whether \
                clients trust it (`openssl s_client -connect`); `--log proxy=debug` shows why each failed";
    // Probes send nothing.
    let refused = [("tls_handshake", 17), ("tls_handshake_timeout", 1), ("client_eof", 12)];
    check(&with(0, 30, &refused), &[("listener_handshakes", Wrong, text)]);
    // One client gets through, so the other clients are the cause.
    let text = "web refused 18 of 19 connections in the last minute: 17 tls_handshake, 1 tls_handshake_timeout; see \
                docs/reasons.md";
    check(&with(1, 19, &refused[..2]), &[("listener_refusals", Notice, text)]);
    // A few failures are not reported, nor are connections that send nothing.
    check(&with(0, 400, &[("tls_handshake", 4)]), &[]);
    check(&with(0, 400, &[("client_eof", 400)]), &[]);
    let mut latest = with(1_000, 1_000, &[("tls_handshake", 5)]);
    latest.listeners[0].latest = with(0, 5, &[("tls_handshake", 5)]).listeners[0].recent.clone();
    let found = findings(&latest);
    assert!(found.len() == 1 && found[0].text.contains("in the last few seconds"), "{found:?}");
}

#[test]
fn endpoints_that_fail() {
    let mut status = status();
    let endpoints = &mut status.clusters[0].endpoints;
    endpoints[1].recent = EndpointRecent { requests: 12, unreachable: 11, timeouts: 1, ..EndpointRecent::default() };
    // One in a thousand is not reported.
    endpoints[0].recent = EndpointRecent { requests: 10_000, errors: 10, ..EndpointRecent::default() };
    check(
        &status,
        &[(
            "endpoint_failures",
            Wrong,
            "requests to shop failed: 12 of 12 at 127.0.0.1:9002 in the last minute (11 not connected, 1 timed out); \
             find out whether it runs and listens there; no health check covers it: give the cluster a `health_check`",
        )],
    );
    status.clusters[0].endpoints[1].state = EndpointState::Healthy;
    status.clusters[0].endpoints[1].recent = EndpointRecent { requests: 9, errors: 3, ..EndpointRecent::default() };
    check(
        &status,
        &[(
            "endpoint_failures",
            Wrong,
            "requests to shop failed: 3 of 9 at 127.0.0.1:9002 in the last minute (3 answered 5xx); its own log says \
             why",
        )],
    );
}

#[test]
fn endpoints_that_fail_in_tls() {
    let mut status = status();
    let endpoint = &mut status.clusters[0].endpoints[1];
    endpoint.recent = EndpointRecent { requests: 3, unreachable: 3, ..EndpointRecent::default() };
    endpoint.why = Some("TLS: invalid peer certificate: UnknownIssuer".into());
    let text = "requests to shop failed: 3 of 3 at 127.0.0.1:9002 in the last minute (3 not connected); TLS: invalid \
                peer certificate: UnknownIssuer";
    check(&status, &[("endpoint_failures", Wrong, text)]);
}

#[test]
fn a_cluster_that_stands_for_nothing_is_no_news() {
    let mut status = status();
    status.clusters[0].endpoints.clear();
    status.clusters[0].is_missing = true;
    check(&status, &[]);
}

#[test]
fn services_of_a_cluster() {
    let mut status = status();
    let fault = |service: &str, reason: &str, message: &str| crate::ServiceFaultStatus {
        service: service.into(),
        reason: reason.into(),
        message: message.into(),
    };
    status.service_faults = vec![
        fault("shop/a", "AddressInUse", "10.96.0.1 is taken"),
        fault("shop/b", "TooManyVips", "no room"),
        fault("shop/c", "AddressInUse", "10.96.0.2 is taken"),
    ];
    let in_use =
        "Services are not served as they say (AddressInUse): shop/a: 10.96.0.1 is taken; shop/c: 10.96.0.2 is taken";
    let full = "Services are not served as they say (TooManyVips): shop/b: no room";
    check(&status, &[("service_fault", Severity::Notice, in_use), ("service_fault", Wrong, full)]);
    let why = "interface eth0 does not exist; run `ip link` to list the interfaces";
    status.service_faults = vec![fault("shop/a", "KernelPlane", why)];
    status.kernel_refusal = Some(why.into());
    let refused = "the kernel plane of this node refused the last change, and serves what it had before: interface eth0 \
                   does not exist; run `ip link` to list the interfaces";
    check(&status, &[("kernel_plane_refused", Wrong, refused)]);
}

#[test]
fn states_of_endpoints() {
    use EndpointState::{Draining, Ejected, Healthy, Unchecked, Unhealthy};
    let check = |panic, endpoints: &[(u32, EndpointState)], expect: &[(&str, Severity, &str)]| {
        let endpoints =
            endpoints.iter().map(|(weight, state)| EndpointStatus { weight: *weight, ..endpoint("a", *state, None) });
        let mut status = status();
        status.clusters[0].panic = panic;
        status.clusters[0].endpoints = endpoints.collect();
        check(&status, expect);
    };
    let none_usable = ("no_usable_endpoint", Wrong, "shop gets no requests: none of its endpoints is usable");
    check(false, &[(1, Healthy), (1, Unchecked)], &[]);
    check(false, &[], &[("no_endpoint", Wrong, "shop has no endpoint now: do its names resolve?")]);
    check(false, &[(0, Healthy)], &[none_usable]);
    check(
        false,
        &[(1, Unhealthy)],
        &[none_usable, ("endpoint_unhealthy", Wrong, "the only endpoint of shop is unhealthy: a")],
    );
    check(
        false,
        &[(1, Draining), (1, Draining)],
        &[none_usable, ("endpoint_draining", Notice, "all 2 endpoints of shop are draining: a, a")],
    );
    check(
        true,
        &[(1, Unhealthy), (1, Ejected), (1, Unhealthy)],
        &[
            (
                "panic",
                Wrong,
                "shop is in panic: too few of its endpoints are usable, so unhealthy and ejected ones get requests too",
            ),
            ("endpoint_unhealthy", Wrong, "2 of 3 endpoints of shop are unhealthy: a, a"),
            ("endpoint_ejected", Wrong, "1 of 3 endpoints of shop is ejected: a"),
        ],
    );
    check(
        false,
        &[[(1, Healthy)].as_slice(), &[(1, Unhealthy); 7]].concat(),
        &[("endpoint_unhealthy", Wrong, "7 of 8 endpoints of shop are unhealthy: a, a, a, a, a, and 2 more")],
    );
}

#[test]
fn states_of_endpoints_of_a_vip() {
    use EndpointState::{Draining, Healthy, Unhealthy};
    let check = |mode: &str, states: &[EndpointState], expect: &[(&str, Severity, &str)]| {
        let (mut status, mut vip) = (status(), vip());
        let endpoint =
            |state: &EndpointState| VipEndpointStatus { state: *state, why: None, ..vip.endpoints[0].clone() };
        (vip.endpoints, vip.mode) = (states.iter().map(endpoint).collect(), mode.into());
        status.vips = vec![vip];
        check(&status, expect);
    };
    let none_usable = ("no_usable_endpoint", Wrong, "dns gets no connections: none of its endpoints is usable");
    check("nat", &[Healthy, Healthy], &[]);
    check("local", &[], &[]);
    check(
        "nat",
        &[Healthy, Draining],
        &[("endpoint_draining", Notice, "1 of 2 endpoints of dns is draining: 10.0.0.1")],
    );
    check(
        "dsr",
        &[Unhealthy],
        &[none_usable, ("endpoint_unhealthy", Wrong, "the only endpoint of dns is unhealthy: 10.0.0.1")],
    );
}

#[test]
fn packets_without_an_answer() {
    let with = |address: &str, mode: &str, recent: VipEndpointRecent| {
        let (mut status, mut vip) = (status(), vip());
        (vip.address, vip.mode) = (address.into(), mode.into());
        vip.endpoints.truncate(1);
        vip.endpoints[0].recent = recent;
        status.vips = vec![vip];
        status
    };
    let silent = VipEndpointRecent { flows: 1, packets_to: 6, packets_from: 0 };
    let text = "endpoints of dns do not answer: 10.0.0.1 (6 packets of 1 new flow in the last minute); find out \
                whether they run, whether packets reach them, and whether their answers come back through this host \
                (`tcpdump` on both)";
    check(&with("192.0.2.1:80/tcp", "nat", silent), &[("vip_unanswered", Wrong, text)]);
    check(&with("192.0.2.1:53/udp", "full_nat", silent), &[("vip_unanswered", Notice, text)]);
    check(&with("192.0.2.1:80/tcp", "dsr", silent), &[]);
    check(&with("192.0.2.1:80/tcp", "nat", VipEndpointRecent { packets_from: 1, ..silent }), &[]);
    // A single packet may be in flight, and an endpoint that is silent on old connections may have nothing to send.
    check(&with("192.0.2.1:80/tcp", "nat", VipEndpointRecent { packets_to: 1, ..silent }), &[]);
    check(&with("192.0.2.1:80/tcp", "nat", VipEndpointRecent { flows: 0, ..silent }), &[]);
}

#[test]
fn connections_that_do_not_come_about() {
    let with = |address: &str, mode: &str, recent: VipEndpointRecent, latest: VipEndpointRecent| {
        let (mut status, mut vip) = (status(), vip());
        (vip.address, vip.mode) = (address.into(), mode.into());
        vip.endpoints.truncate(1);
        (vip.endpoints[0].recent, vip.endpoints[0].latest) = (recent, latest);
        status.vips = vec![vip];
        status
    };
    let none = VipEndpointRecent::default();
    // Each flow has a SYN and the answer to it.
    let refused = VipEndpointRecent { flows: 8, packets_to: 8, packets_from: 8 };
    let text = |span| {
        format!(
            "most connections of dns were refused by the endpoint or not completed by the client: 10.0.0.1 (8 new \
             flows in the last {span}); find out whether something listens on the endpoint's port"
        )
    };
    let tcp = "192.0.2.1:80/tcp";
    check(&with(tcp, "nat", refused, none), &[("vip_refused", Wrong, &text("minute"))]);
    // The connections of half a minute ago were served.
    let served = VipEndpointRecent { flows: 50, packets_to: 500, packets_from: 500 };
    check(&with(tcp, "full_nat", served, refused), &[("vip_refused", Wrong, &text("few seconds"))]);
    check(&with(tcp, "nat", served, served), &[]);
    // The shortest established connections: SYN, ACK and the packet that ends them. Half of the others are refused.
    check(&with(tcp, "nat", VipEndpointRecent { packets_to: 16, ..refused }, none), &[]);
    check(&with(tcp, "nat", VipEndpointRecent { flows: 1, packets_to: 1, packets_from: 1 }, none), &[]);
    check(&with(tcp, "dsr", refused, none), &[]);
    check(&with("192.0.2.1:53/udp", "nat", refused, none), &[]);
}

#[test]
fn vips_that_nobody_looks_after() {
    let mut status = status();
    status.vips_left = true;
    let text = "vips of an earlier process still forward packets, and no process checks their endpoints: `steelyard \
                vip detach` removes them";
    check(&status, &[("vips_left", Wrong, text)]);
}

#[test]
fn sockets_that_cannot_be_balanced() {
    let mut status = status();
    let sockets =
        SocketsStatus { cgroup: "/x".into(), why_not: None, open: 0, open_max: 9, cannot_end: None, unknown: 0 };
    let plane = KernelPlaneStatus {
        entries: 0,
        entries_max: 100,
        pressure: false,
        map_bytes: 0,
        drops: [].into(),
        sockets: Some(sockets),
    };
    status.kernel_plane = Some(plane.clone());
    check(&status, &[]);
    let sockets = plane.sockets.clone().map(|sockets| SocketsStatus { why_not: Some("/x is none".into()), ..sockets });
    status.kernel_plane = Some(KernelPlaneStatus { sockets, ..plane });
    let text = "connections of the processes of /x to vips are not balanced: /x is none";
    check(&status, &[("sockets", Wrong, text)]);
    let full = |open, unknown| {
        let sockets =
            SocketsStatus { cgroup: "/x".into(), why_not: None, open, open_max: 10, cannot_end: None, unknown };
        let plane = status.kernel_plane.clone().map(|plane| KernelPlaneStatus { sockets: Some(sockets), ..plane });
        let mut status = status.clone();
        status.kernel_plane = plane;
        findings(&status).into_iter().map(|finding| finding.kind).collect::<Vec<_>>()
    };
    assert_eq!([full(7, 0), full(8, 0), full(0, 1)], [vec![], vec!["socket_table"], vec!["socket_table"]]);
}

#[test]
fn endpoints_on_the_balancer_itself() {
    let mut status = status();
    status.vips = vec![vip()];
    status.vips[0].endpoints.truncate(1);
    status.vips[0].endpoints[0].is_here = true;
    let text = "endpoints of dns are on this host, and the kernel plane cannot serve them with `mode: dsr` or at a loopback \
                address: 10.0.0.1; run them on another host, or use another mode and another address";
    check(&status, &[("vip_endpoint_here", Wrong, text)]);
}

#[test]
fn packets_that_are_dropped() {
    let mut status = status();
    status.vips = vec![vip()];
    status.vips[0].endpoints.truncate(1);
    status.vips[0].recent_drops = counts(&[("rate_limited", 1000), ("no_flow", 50), ("no_route", 4)]);
    check(&status, &[]);
    status.vips[0].recent_drops.insert("no_endpoint".into(), 7);
    let text = "dns dropped 11 packets in the last minute: 7 no_endpoint, 4 no_route; docs/drops.md says what to do about each";
    check(&status, &[("vip_drops", Wrong, text)]);
}

#[test]
fn faults_of_our_own_are_remembered() {
    let mut status = status();
    status.listeners[0].refused = counts(&[("internal", 1)]);
    let text = "steelyard itself failed once since its start and 0 times in the last minute because of a bug: please \
                report it, with the log";
    check(&status, &[("internal_faults", Notice, text)]);
}
