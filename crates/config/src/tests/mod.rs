//! Tests of whole files: the meaning of the examples and of every key, every refusal with its place, and the published
//! descriptions of the file.

mod access_log;
mod auth;
mod compression;
mod external_auth;
mod limits;
mod policies;
mod published;
mod refused;
mod refused_vips;
mod request_body;
mod sidecar;
mod tracing;
mod values;

use std::time::Duration;

use model::{
    Algorithm, Changes, ClusterId, ClusterProtocol, Endpoint, EndpointAddress, FlowTimeouts, ForwardedHeaders,
    Generation, GrpcMatcher, HeaderChanges, HostMatcher, HttpListener, Mirror, Outlier, PathMatcher, PortRange, Probe,
    Protocol, RateHeaders, RateKey, RateLimit, Redirect, Retry, RouteAction, RoutePolicy, Scheme, Snapshot, Sticky,
    SubjectAltName, TcpListener, TlsMode, TlsVersion, Transport, Variable, VipAlgorithm, VipMode, WeightedCluster,
};

use proptest::test_runner::{Config, RngSeed};

use crate::{defaults, parse};

/// Cases from a fixed seed, so that a failure here happens everywhere.
pub fn seeded(cases: u32) -> Config {
    Config { cases, rng_seed: RngSeed::Fixed(0x57EE_17A6), failure_persistence: None, ..Config::default() }
}

fn example(name: &str) -> String {
    let path = format!("{}/../../examples/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn load(text: &str) -> Snapshot {
    parse("f", text, Generation(1)).unwrap_or_else(|errors| panic!("{errors}"))
}

fn http(snapshot: &Snapshot) -> &HttpListener {
    match &snapshot.listeners[0].protocol {
        Protocol::Http(http) => http,
        other => panic!("{other:?}"),
    }
}

fn tcp(snapshot: &Snapshot) -> &TcpListener {
    match &snapshot.listeners[0].protocol {
        Protocol::Tcp(tcp) => tcp,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_http_example_means_what_it_says() {
    let snapshot = parse("http.yaml", &example("http.yaml"), Generation(7)).unwrap();
    assert_eq!(snapshot.generation, Generation(7));
    assert_eq!(snapshot.admin.as_ref().map(|admin| admin.to_string()).as_deref(), Some("127.0.0.1:9900"));
    assert_eq!(snapshot.access_log, None);
    assert_eq!((snapshot.drain_delay, snapshot.drain_timeout), (Duration::ZERO, Duration::from_secs(30)));
    assert_eq!(snapshot.memory_max, None);
    assert_eq!(snapshot.listeners.len(), 1);
    let listener = &snapshot.listeners[0];
    assert_eq!((listener.name.as_str(), listener.bind), ("web", "127.0.0.1:8080".parse().unwrap()));
    assert!(!listener.accept_proxy_protocol);
    assert_eq!(listener.connections_max, 65_536);

    let http = http(&snapshot);
    let routes: Vec<_> =
        http.routes.iter().map(|route| (route.name.as_str(), format!("{:?}", route.path), route.to.clone())).collect();
    let expect =
        [("/api/", r#"Prefix("/api/")"#.to_owned(), ClusterId(1)), ("/", r#"Prefix("/")"#.to_owned(), ClusterId(0))];
    assert_eq!(routes, expect.map(|(name, path, to)| (name, path, RouteAction::from(to))));
    assert_eq!(http.limits, model::ListenerLimits::default());
    assert_eq!(http.forwarded, ForwardedHeaders::XForwarded);

    let web = snapshot.cluster(ClusterId(0));
    assert_eq!(web.name, "web");
    assert_eq!(web.endpoints.iter().map(|endpoint| endpoint.weight).collect::<Vec<_>>(), [1, 1, 2]);
    assert_eq!(web.endpoints[2].address, EndpointAddress::Socket("127.0.0.1:9003".parse().unwrap()));
    assert_eq!(web.algorithm, Algorithm::RoundRobin);
    let check = web.health_check.as_ref().unwrap();
    assert_eq!(check.probe, Probe::Http(model::HttpProbe::new("/healthz")));
    assert_eq!((check.interval, check.timeout), (Duration::from_secs(2), Duration::from_secs(1)));
    assert_eq!((check.unhealthy_after, check.healthy_after), (3, 2));

    let api = snapshot.cluster(ClusterId(1));
    assert_eq!((api.name.as_str(), &api.algorithm, &api.health_check), ("api", &Algorithm::LeastRequest, &None));
}

#[test]
fn the_tcp_example_means_what_it_says() {
    let snapshot = parse("tcp.yaml", &example("tcp.yaml"), Generation(1)).unwrap();
    assert_eq!(snapshot.listeners[0].name, "stream");
    assert_eq!((tcp(&snapshot).to, tcp(&snapshot).idle_timeout), (ClusterId(0), Duration::from_secs(3600)));
    let cluster = snapshot.cluster(ClusterId(0));
    assert_eq!(cluster.algorithm, Algorithm::LeastConnections);
    let check = cluster.health_check.as_ref().unwrap();
    assert_eq!((&check.probe, check.interval), (&Probe::Tcp, Duration::from_secs(1)));
    assert_eq!(check.timeout, Duration::from_secs(1));
}

#[test]
fn the_tls_example_means_what_it_says() {
    let snapshot = parse("/etc/edge/tls.yaml", &example("tls.yaml"), Generation(1)).unwrap();
    let tls = snapshot.listeners[0].tls.as_ref().unwrap();
    let path = |pem: &model::Pem| pem.to_string();
    let files: Vec<_> = tls.certificates.iter().map(|pair| (path(&pair.cert), path(&pair.key))).collect();
    let expect = [("www.pem", "www.key"), ("api.pem", "api.key")]
        .map(|(cert, key)| (format!("/etc/edge/tls/{cert}"), format!("/etc/edge/tls/{key}")));
    assert_eq!(files, expect);
    let client_ca = tls.client_ca.as_ref().unwrap();
    assert_eq!(client_ca.hosts, [HostMatcher::Exact("admin.example.com".to_owned())]);
    assert_eq!(client_ca.ca.file().and_then(|path| path.to_str()), Some("/etc/edge/tls/clients.pem"));
    assert_eq!(tls.min_version, TlsVersion::V1_2);
    let [admin, web] = &*http(&snapshot).routes else { panic!("{snapshot:?}") };
    assert_eq!((admin.hosts.len(), web.hosts.len()), (1, 2));
    let told: Vec<_> = admin.policy.changes.request_headers.variables().collect();
    assert_eq!(told, [Variable::ClientCert, Variable::ClientCertSubject]);
    assert!(snapshot.listeners[1].tls.is_none());
    assert!(client_ca.verify);
    let Protocol::Tls(passthrough) = &snapshot.listeners[1].protocol else { panic!("{snapshot:?}") };
    let [route] = passthrough.routes.as_slice() else { panic!("{passthrough:?}") };
    assert_eq!((&route.sni[..], route.to), (&[HostMatcher::Exact("vault.example.com".to_owned())][..], ClusterId(1)));
    assert_eq!(route.mode, TlsMode::Passthrough);
}

#[test]
fn tls_that_ends_here_or_at_the_endpoint() {
    let listener = "bind: ':1', protocol: tls, tls: {certificates: [{cert: a.pem, key: a.key}], \
                    client_ca: {ca: ca.pem, verify: false}}";
    let clusters = "clusters: {web: {endpoints: [\"127.0.0.1:1\"], tls: {server_name: a.example, \
                    subject_alt_names: [\"*.a.example\", \"spiffe://a.example/web\"]}}}";
    let parse = |more: &str| {
        let text = format!("listeners: {{l: {{{listener}, {more}}}}}\n{clusters}\n");
        parse("f", &text, Generation(1)).unwrap_or_else(|errors| panic!("{errors}"))
    };
    let snapshot =
        parse("routes: [{sni: a.example, to: web}, {passthrough: true, to: web}], isolated_hosts: a.example");
    assert!(!snapshot.listeners[0].tls.as_ref().unwrap().client_ca.as_ref().unwrap().verify);
    let Protocol::Tls(tls) = &snapshot.listeners[0].protocol else { panic!("{snapshot:?}") };
    assert_eq!(
        tls.routes.iter().map(|route| route.mode).collect::<Vec<_>>(),
        [TlsMode::Terminate, TlsMode::Passthrough]
    );
    assert_eq!(tls.isolated_hosts, [HostMatcher::Exact("a.example".to_owned()), HostMatcher::Any]);
    let names = &snapshot.cluster(ClusterId(0)).tls.as_ref().unwrap().subject_alt_names;
    let expect =
        [SubjectAltName::Dns("*.a.example".to_owned()), SubjectAltName::Uri("spiffe://a.example/web".to_owned())];
    assert_eq!(names, &expect);
    let snapshot = parse("to: web");
    let Protocol::Tls(tls) = &snapshot.listeners[0].protocol else { panic!("{snapshot:?}") };
    assert_eq!((tls.routes[0].mode, tls.routes[0].sni.len()), (TlsMode::Terminate, 0));
}

#[test]
fn https_that_passes_some_names_through() {
    let text = |protocol: &str, more: &str| {
        format!(
            "listeners: {{l: {{bind: ':1', protocol: {protocol}, {more}}}}}\n\
             clusters: {{web: {{endpoints: [\"127.0.0.1:1\"]}}, vault: {{endpoints: [\"127.0.0.1:2\"]}}}}\n"
        )
    };
    let tls = "tls: {certificates: [{cert: a.pem, key: a.key}]}, to: web";
    let good = format!(
        "{tls}, passthrough: [{{sni: [a.example, '*.b.example'], to: vault, idle_timeout: 5s}}, {{sni: c.example, to: web}}]"
    );
    let snapshot = parse("f", &text("https", &good), Generation(1)).unwrap_or_else(|errors| panic!("{errors}"));
    let [first, second] = &*http(&snapshot).passthrough else { panic!("{snapshot:?}") };
    let names = [HostMatcher::Exact("a.example".to_owned()), HostMatcher::Suffix("b.example".to_owned())];
    assert_eq!((&first.sni[..], first.to, first.idle_timeout), (&names[..], ClusterId(1), Duration::from_secs(5)));
    assert_eq!((second.to, second.idle_timeout), (ClusterId(0), defaults::TCP_IDLE_TIMEOUT));
    let refused = |protocol: &str, more: &str, expect: &str| {
        let errors = parse("f", &text(protocol, more), Generation(1)).unwrap_err().to_string();
        assert!(errors.contains(expect), "{errors}");
    };
    let entry = "passthrough: [{sni: a.example, to: vault}]";
    refused(
        "http",
        &format!("to: web, {entry}"),
        "`passthrough` needs protocol https, and this listener has protocol http",
    );
    refused("tls", &format!("{tls}, {entry}"), "write `passthrough: true` in a route");
    let route = "tls: {certificates: [{cert: a.pem, key: a.key}]}, routes: [{to: web, passthrough: true}]";
    refused("https", route, "write `passthrough` in the listener, beside `routes`");
    refused("https", &format!("{tls}, passthrough: [{{to: vault}}]"), "`sni`");
    refused("https", &format!("{tls}, passthrough: [{{sni: a.example, to: volt}}]"), "volt");
    let twice = "passthrough: [{sni: a.example, to: vault}, {sni: A.example, to: web}]";
    refused("https", &format!("{tls}, {twice}"), "an earlier entry");
}

#[test]
fn isolated_hosts_and_the_others() {
    let check = |isolated: &str, routes: &str, expect: &[&str]| {
        let text = format!(
            "listeners: {{l: {{bind: ':1', protocol: http, isolated_hosts: {isolated}, routes: [{routes}]}}}}\n\
             clusters: {{web: {{endpoints: [\"127.0.0.1:1\"]}}}}\n"
        );
        let snapshot = parse("f", &text, Generation(1)).unwrap_or_else(|errors| panic!("{errors}"));
        let hosts: Vec<String> = http(&snapshot).isolated_hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, expect, "{isolated} {routes}");
    };
    check("[a.example, \"*.b.example\"]", "{hosts: [a.example, c.b.example], to: web}", &["a.example", "*.b.example"]);
    check("a.example", "{hosts: [a.example, c.example], to: web}", &["a.example", "*"]);
    check("a.example", "{hosts: a.example, to: web}, {to: web}", &["a.example", "*"]);
    check("\"*.example\"", "{hosts: \"*.a.example\", to: web}", &["*.example"]);
}

#[test]
fn the_canary_example_means_what_it_says() {
    let snapshot = parse("canary.yaml", &example("canary.yaml"), Generation(1)).unwrap();
    let [always, shop, elsewhere] = &*http(&snapshot).routes else { panic!("three routes") };
    let (v1, v2) = (ClusterId(0), ClusterId(1));
    assert_eq!((&always.to, always.headers[0].name.as_str()), (&v2.into(), "x-canary"));
    assert_eq!(always.policy, model::SharedPolicy::default());
    let share = |cluster, weight| WeightedCluster { cluster, weight, changes: None };
    assert_eq!(shop.to, RouteAction::Clusters(vec![share(v1, 95), share(v2, 5)]));
    assert_eq!(shop.timeout, Some(Duration::from_secs(10)));
    let retry = Retry { on_statuses: vec![(503, 503)], same_endpoint: true, ..Retry::default() };
    let (by, headers) = (RateKey::ClientIp, RateHeaders::default());
    let rate_limit = RateLimit {
        requests: 100,
        per: Duration::from_secs(1),
        by,
        burst: 50,
        also: Vec::new(),
        headers,
        terms: model::LimitTerms::default(),
    };
    let expect = RoutePolicy {
        mirrors: vec![Mirror { to: v2, host: None, share: 0.1, only: None }],
        retry,
        changes: Changes {
            request_headers: HeaderChanges {
                set: vec![("x-edge".to_owned(), "steelyard".into())],
                remove: vec!["x-internal".to_owned()],
                ..HeaderChanges::default()
            },
            ..Changes::default()
        },
        rate_limit: Some(rate_limit),
        ..RoutePolicy::default()
    };
    assert_eq!(*shop.policy, expect);
    let redirect = Redirect {
        scheme: Some(Scheme::Https),
        host: Some("shop.example.com".to_owned()),
        port: None,
        path: None,
        status: 308,
        is_relative: false,
    };
    assert_eq!(elsewhere.to, RouteAction::Redirect(redirect));

    let cluster = snapshot.cluster(v1);
    assert_eq!(cluster.slow_start, Duration::from_secs(30));
    let outlier = Outlier { consecutive_5xx: 5, eject_for: Duration::from_secs(30), max_ejected: 0.5 };
    assert_eq!(cluster.outlier, Some(outlier));
    assert_eq!((cluster.limits.connections_max, cluster.limits.pending_max), (Some(1000), 200));
    let sticky =
        Sticky { ttl: Some(Duration::from_secs(3600)), ..Sticky::new(model::StickyToken::Cookie("shop".to_owned())) };
    assert_eq!((&cluster.sticky, &snapshot.cluster(v2).sticky), (&None, &Some(sticky)));
}

#[test]
fn the_vip_example_means_what_it_says() {
    let snapshot = parse("vip.yaml", &example("vip.yaml"), Generation(1)).unwrap();
    assert_eq!((snapshot.listeners.len(), snapshot.clusters.len(), snapshot.flows_max), (0, 0, 262_144));
    let [web, dns] = snapshot.vips.as_slice() else { panic!("two vips") };
    assert_eq!((web.name.as_str(), web.address), ("web", "20.20.20.1".parse().unwrap()));
    assert_eq!((web.ports, web.transport), (PortRange { first: 2020, last: 2020 }, Transport::Tcp));
    assert_eq!(web.interfaces, ["client0", "ep0", "ep1", "ep2"]);
    let endpoint = |address: &str, weight| Endpoint {
        address: EndpointAddress::Socket(address.parse().unwrap()),
        weight,
        priority: 0,
        zone: model::Zone::Unknown,
        host: None,
    };
    assert_eq!(web.endpoints, ["31.31.31.1:5001", "32.32.32.1:5001", "33.33.33.1:5001"].map(|at| endpoint(at, 1)));
    assert_eq!((web.algorithm, &web.mode, web.affinity), (VipAlgorithm::RoundRobin, &VipMode::Nat, None));
    let check = web.health_check.as_ref().unwrap();
    assert_eq!((&check.probe, check.interval), (&Probe::Tcp, Duration::from_secs(1)));
    assert_eq!((&web.allow, &web.deny, web.source_rate), (&Vec::new(), &Vec::new(), None));
    assert_eq!(web.timeouts, FlowTimeouts::new(Transport::Tcp));

    assert_eq!((dns.name.as_str(), dns.transport, dns.ports.first), ("dns", Transport::Udp, 53));
    assert_eq!(dns.endpoints, [endpoint("31.31.31.1:53", 3), endpoint("32.32.32.1:53", 1)]);
    assert_eq!((dns.algorithm, dns.affinity), (VipAlgorithm::Maglev, Some(Duration::from_secs(600))));
    assert_eq!(dns.timeouts, FlowTimeouts::new(Transport::Udp));
}

#[test]
fn the_grpc_example_means_what_it_says() {
    let snapshot = parse("grpc.yaml", &example("grpc.yaml"), Generation(1)).unwrap();
    let [streams, greeter] = &*http(&snapshot).routes else { panic!("two routes") };
    let matcher = |method: Option<&str>| {
        Some(GrpcMatcher { service: "helloworld.Greeter".to_owned(), method: method.map(str::to_owned) })
    };
    assert_eq!(
        (streams.name.as_str(), &streams.grpc),
        ("grpc /helloworld.Greeter/SayHelloStream", &matcher(Some("SayHelloStream")))
    );
    assert!(matches!(&streams.path, PathMatcher::Exact(path) if path == "/helloworld.Greeter/SayHelloStream"));
    assert_eq!((&streams.to, streams.timeout), (&ClusterId(1).into(), None));
    assert_eq!((greeter.name.as_str(), &greeter.grpc), ("grpc /helloworld.Greeter/", &matcher(None)));
    assert!(matches!(&greeter.path, PathMatcher::Prefix(path) if path == "/helloworld.Greeter/"));
    assert_eq!(greeter.methods, ["POST"]);
    assert_eq!((&greeter.to, greeter.timeout), (&ClusterId(0).into(), Some(Duration::from_secs(2))));
    assert!(snapshot.listeners[0].tls.is_none() && snapshot.listeners[1].tls.is_some());

    let [unary, streaming] = snapshot.clusters.as_slice() else { panic!("two clusters") };
    assert_eq!((unary.protocol, streaming.protocol), (ClusterProtocol::H2, ClusterProtocol::H2));
    assert!(unary.tls.is_none());
    let check = unary.health_check.as_ref().unwrap();
    assert_eq!(check.probe, Probe::Grpc { service: "helloworld.Greeter".to_owned(), host: None });
    assert_eq!(check.interval, Duration::from_secs(1));
}
