//! Names that appear and disappear, sums over workers, and the page as a scraper reads it.

use std::collections::BTreeMap;

use model::{
    Cluster, ClusterId, Endpoint, ForwardedHeaders, Generation, HttpListener, Listener, ListenerLimits, PathRules,
    Route,
};

use super::*;
use crate::prometheus::Kind;
use crate::reason::Reason;

fn snapshot(listeners: &[(&str, &[&str])], clusters: &[(&str, &[EndpointAddress])]) -> Snapshot {
    Snapshot {
        generation: Generation(1),
        admin: None,
        admin_access: Default::default(),
        metrics: None,
        access_log: None,
        tracing: None,
        dns: model::Dns::default(),
        drain_delay: std::time::Duration::ZERO,
        drain_timeout: std::time::Duration::ZERO,
        memory_max: None,
        listeners: listeners.iter().map(|(name, routes)| listener(name, routes)).collect(),
        clusters: clusters.iter().map(|(name, addresses)| cluster(name, addresses).into()).collect(),
        vips: Vec::new(),
        flows_max: 1,
        socket_cgroup: None,
        announcing: model::Announcing::default(),
    }
}

fn listener(name: &str, routes: &[&str]) -> Listener {
    let route = |name: &&str| Route::to_all(*name, ClusterId(0).into());
    let protocol = Protocol::Http(HttpListener {
        isolated_hosts: Vec::new(),
        routes: routes.iter().map(route).collect(),
        trusted_proxies: Vec::new(),
        forwarded: ForwardedHeaders::XForwarded,
        x_real_ip: false,
        header_names: model::HeaderNames::Any,
        passthrough: Default::default(),
        http2: true,
        request_id: None,
        paths: PathRules::default(),
        limits: ListenerLimits::default(),
        error_pages: Box::default(),
    });
    let bind = address(80);
    Listener {
        name: name.into(),
        bind,
        captured: None,
        protocol,
        tls: None,
        accept_proxy_protocol: false,
        addresses: model::AddressRules::default(),
        client_limits: model::ClientLimits::default(),
        connections_max: 1,
    }
}

fn cluster(name: &str, addresses: &[EndpointAddress]) -> Cluster {
    Cluster::new(
        name,
        addresses
            .iter()
            .map(|address| Endpoint {
                address: address.clone(),
                weight: 1,
                priority: 0,
                zone: model::Zone::Unknown,
                host: None,
            })
            .collect(),
    )
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 7], port))
}

#[test]
fn workers_are_summed() {
    let registry = Registry::default();
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let counters = registry.cluster(worker, "web");
            scope.spawn(move || (0..10_000).for_each(|_| counters.requests.inc()));
        }
    });
    assert_eq!(registry.totals().clusters["web"].requests, 40_000);
}

#[test]
fn the_same_name_and_worker_give_the_same_counters() {
    let registry = Registry::default();
    let counters = registry.route(0, "web", "/");
    assert!(Arc::ptr_eq(&counters, &registry.clone().route(0, "web", "/")));
    assert!(!Arc::ptr_eq(&counters, &registry.route(1, "web", "/")));
    assert!(!Arc::ptr_eq(&counters, &registry.route(0, "api", "/")));
}

#[test]
fn a_reload_keeps_what_stays_and_forgets_the_rest() {
    let socket = |port| EndpointAddress::Socket(address(port));
    let registry = Registry::default();
    for (listener, route) in [("web", "/a"), ("web", "/b"), ("old", "/a")] {
        registry.listener(0, listener).requests.add(5);
        registry.route(0, listener, route).responses.inc(200);
    }
    for (cluster, port) in [("shop", 1), ("shop", 2), ("gone", 1)] {
        registry.cluster(0, cluster).requests.add(5);
        registry.endpoint(0, cluster, address(port)).requests.add(5);
    }
    registry.retain(&snapshot(&[("web", &["/b", "/c"])], &[("shop", &[socket(2), socket(3)])]), None);
    let totals = registry.totals();
    assert_eq!(totals.listeners.keys().collect::<Vec<_>>(), ["web"]);
    assert_eq!(totals.listeners["web"].requests, 10);
    assert_eq!(totals.routes.keys().collect::<Vec<_>>(), [&("web".to_owned(), "/b".to_owned())]);
    assert_eq!(totals.clusters.keys().map(|name| &**name).collect::<Vec<_>>(), ["shop"]);
    assert_eq!(totals.clusters["shop"].requests, 10);
    assert_eq!(totals.endpoints.keys().collect::<Vec<_>>(), [&("shop".into(), address(2))]);
}

#[test]
fn what_two_snapshots_share_is_not_looked_at_again() {
    let socket = |port| EndpointAddress::Socket(address(port));
    let registry = Registry::default();
    let count = |names: &[(&str, u16)]| {
        names.iter().for_each(|(cluster, port)| registry.endpoint(0, cluster, address(*port)).requests.add(1));
    };
    let left = || -> Vec<(String, u16)> {
        registry.totals().endpoints.keys().map(|(name, address)| (name.to_string(), address.port())).collect()
    };
    let named = |left: &[(&str, u16)]| -> Vec<(String, u16)> {
        left.iter().map(|(name, port)| ((*name).to_owned(), *port)).collect()
    };
    let first =
        snapshot(&[("web", &["/"])], &[("a", &[socket(1)]), ("b", &[socket(1), socket(2)]), ("c", &[socket(1)])]);
    count(&[("a", 1), ("b", 1), ("b", 2), ("c", 1)]);
    registry.retain(&first, None);
    // Only the endpoints of one cluster change, as in a cluster of Kubernetes.
    let mut second = first.clone();
    Arc::make_mut(&mut second.clusters[1]).endpoints.remove(0);
    registry.route(0, "web", "/").responses.inc(200);
    registry.retain(&second, Some(&first));
    assert_eq!(left(), named(&[("a", 1), ("b", 2), ("c", 1)]));
    assert_eq!(registry.totals().routes.len(), 1);
    // A cluster goes, and others move.
    let mut third = second.clone();
    third.clusters.remove(0);
    registry.retain(&third, Some(&second));
    assert_eq!(left(), named(&[("b", 2), ("c", 1)]));
    // Routes change and clusters do not.
    let fourth = Snapshot { listeners: snapshot(&[("web", &["/new"])], &[]).listeners, ..third.clone() };
    registry.retain(&fourth, Some(&third));
    assert!(registry.totals().routes.is_empty());
    assert_eq!(left(), named(&[("b", 2), ("c", 1)]));
}

#[test]
fn methods_of_a_service_are_counted_apart_up_to_a_bound() {
    let registry = Registry::default();
    for number in 0..2 * METHODS_MAX {
        registry.method(number % 2, "web", "shop.Cart", &format!("M{number:03}")).codes.inc(0);
        registry.method(0, "web", "shop.Cart2", "Get").codes.inc(14);
    }
    registry.method(0, "web", "shop.Cart", "M001").codes.inc(0);
    let totals = registry.totals();
    let of = |service: &str, method: &str| {
        let key = MethodKey { listener: "web".into(), service: service.into(), method: method.into() };
        totals.methods.get(&key).map(|total| total.codes.sum())
    };
    assert_eq!(totals.methods.len(), METHODS_MAX + 2);
    assert_eq!((of("shop.Cart", "M000"), of("shop.Cart", "M001"), of("shop.Cart", "M064")), (Some(1), Some(2), None));
    assert_eq!(of("shop.Cart", OTHER_METHODS), Some(METHODS_MAX as u64));
    assert_eq!(of("shop.Cart2", "Get"), Some(2 * METHODS_MAX as u64));

    let mut snapshot = snapshot(&[("web", &["/"])], &[]);
    registry.retain(&snapshot, None);
    assert_eq!(registry.totals().methods.len(), 0, "no route names the services");
    registry.method(0, "web", "shop.Cart", "Get").codes.inc(0);
    registry.method(0, "web", "gone.Cart", "Get").codes.inc(0);
    let Protocol::Http(http) = &mut snapshot.listeners[0].protocol else { panic!("it speaks HTTP") };
    std::sync::Arc::make_mut(&mut http.routes)[0].grpc =
        Some(model::GrpcMatcher { service: "shop.Cart".into(), method: None });
    registry.retain(&snapshot, None);
    let left: Vec<String> = registry.totals().methods.into_keys().map(|key| key.service).collect();
    assert_eq!(left, ["shop.Cart"]);
}

#[test]
fn an_address_of_a_name_lives_as_long_as_somebody_holds_it() {
    let name = EndpointAddress::Name { host: "shop.internal".into(), port: 80 };
    let snapshot = snapshot(&[], &[("shop", &[name])]);
    let registry = Registry::default();
    let held = registry.endpoint(0, "shop", address(80));
    drop(registry.endpoint(0, "shop", SocketAddr::from(([10, 0, 0, 8], 80))));
    let wrong_port = registry.endpoint(0, "shop", address(81));
    registry.retain(&snapshot, None);
    assert_eq!(registry.totals().endpoints.keys().map(|(_, address)| *address).collect::<Vec<_>>(), [address(80)]);
    drop((held, wrong_port));
    registry.retain(&snapshot, None);
    assert!(registry.totals().endpoints.is_empty());
}

#[test]
fn the_page_reads_back() {
    let registry = Registry::default();
    let odd = "a \"quoted\" \\ name\nof two lines, with=signs{}";
    let listener = registry.listener(0, odd);
    listener.connections.add(3);
    listener.open.inc();
    listener.reasons.inc(Reason::BadFraming);
    let route = registry.route(1, odd, "/");
    route.responses.inc(503);
    [10, 20, 30, 1_000_000, 900_000_000].into_iter().for_each(|us| route.added.record(us));
    let method = registry.method(1, odd, "shop.Cart", "Add");
    method.codes.inc(4);
    method.duration.record(2_000_000);
    registry.cluster(0, "shop").panic_picks.inc();
    registry.endpoint(0, "shop", "[2001:db8::1]:80".parse().unwrap()).ejections.inc();
    let generation = Sample {
        name: "steelyard_generation",
        help: "Number of the snapshot.",
        kind: Kind::Gauge,
        labels: Vec::new(),
        value: 7.0,
    };
    let page = registry.render(&[generation], Exposition::Text);
    let page = Page::parse(&String::from_utf8(page).unwrap());

    let check = |name: &str, labels: &[(&str, &str)], expect: f64| {
        assert_eq!(page.value(name, labels), Some(expect), "{name} {labels:?}");
    };
    check("steelyard_listener_connections_total", &[("listener", odd)], 3.0);
    check("steelyard_listener_connections_open", &[("listener", odd)], 1.0);
    check("steelyard_refused_total", &[("listener", odd), ("reason", "bad_framing")], 1.0);
    check("steelyard_refused_total", &[("listener", odd), ("reason", "bad_host")], 0.0);
    check("steelyard_route_responses_total", &[("listener", odd), ("route", "/"), ("class", "5xx")], 1.0);
    check("steelyard_route_added_seconds_count", &[("listener", odd), ("route", "/")], 5.0);
    check("steelyard_route_added_seconds_sum", &[("listener", odd), ("route", "/")], 901.00006);
    check("steelyard_route_added_seconds_bucket", &[("listener", odd), ("route", "/"), ("le", "0.000016")], 1.0);
    check("steelyard_route_added_seconds_bucket", &[("listener", odd), ("route", "/"), ("le", "+Inf")], 5.0);
    check("steelyard_route_upstream_seconds_count", &[("listener", odd), ("route", "/")], 0.0);
    let called = [("listener", odd), ("service", "shop.Cart"), ("method", "Add")];
    let ended = |code| [called.as_slice(), &[("status", code)]].concat();
    check("steelyard_grpc_calls_total", &ended("DEADLINE_EXCEEDED"), 1.0);
    check("steelyard_grpc_calls_total", &ended("OK"), 0.0);
    check("steelyard_grpc_call_seconds_sum", &called, 2.0);
    check("steelyard_cluster_panic_picks_total", &[("cluster", "shop")], 1.0);
    check("steelyard_endpoint_ejections_total", &[("cluster", "shop"), ("endpoint", "[2001:db8::1]:80")], 1.0);
    check("steelyard_generation", &[], 7.0);
    assert!(page.value("process_resident_memory_bytes", &[]).unwrap() > 0.0);
    page.assert_well_formed();
}

/// Prometheus text, read as strictly as the description of the format.
struct Page {
    /// The type of each name.
    types: BTreeMap<String, String>,
    samples: Vec<Line>,
}

struct Line {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Page {
    fn parse(text: &str) -> Self {
        let mut page = Page { types: BTreeMap::new(), samples: Vec::new() };
        assert!(text.ends_with('\n'));
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(page.types.insert(name.into(), kind.into()).is_none(), "{name} has two heads");
            } else if !line.starts_with("# HELP ") {
                page.samples.push(sample(line));
            }
        }
        page
    }

    fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let same = |have: &[(String, String)]| {
            have.len() == labels.len()
                && have.iter().zip(labels).all(|(have, want)| (have.0.as_str(), have.1.as_str()) == *want)
        };
        self.samples.iter().find(|line| line.name == name && same(&line.labels)).map(|line| line.value)
    }

    /// Every sample has a type and is unique, and the buckets of a histogram only grow.
    fn assert_well_formed(&self) {
        let word = |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        for (place, line @ Line { name, labels, .. }) in self.samples.iter().enumerate() {
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| {
                name.strip_suffix(suffix)
                    .filter(|family| self.types.get(*family).is_some_and(|kind| kind == "histogram"))
            });
            let kind = self.types.get(family.unwrap_or(name)).unwrap_or_else(|| panic!("{name} has no type"));
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
            assert!(word(name) && labels.iter().all(|(label, _)| word(label)), "{name} {labels:?}");
            let (before, line_before) =
                (&self.samples[..place], place.checked_sub(1).map(|before| &self.samples[before]));
            assert!(
                !before.iter().any(|other| other.name == *name && other.labels == *labels),
                "{name} {labels:?} twice"
            );
            if let Some(before) = line_before.filter(|before| name.ends_with("_bucket") && before.name == *name) {
                assert!(before.value <= line.value, "{name} {labels:?}");
            }
        }
    }
}

fn sample(line: &str) -> Line {
    let end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if rest.starts_with('{') {
        while !rest.starts_with('}') {
            let (label, after) = rest[1..].split_once("=\"").unwrap();
            let (value, after) = unescape(after);
            labels.push((label.to_owned(), value));
            rest = after;
        }
        rest = &rest[1..];
    }
    Line { name: name.to_owned(), labels, value: rest.strip_prefix(' ').unwrap().parse().unwrap() }
}

/// Returns the text up to the closing quote, and the rest.
fn unescape(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &text[at + 1..]),
            '\\' => match chars.next().unwrap().1 {
                'n' => value.push('\n'),
                c @ ('"' | '\\') => value.push(c),
                c => panic!("unknown escape {c:?}"),
            },
            c => value.push(c),
        }
    }
    panic!("no closing quote in {text:?}");
}
