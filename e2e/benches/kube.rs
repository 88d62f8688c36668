//! `cargo xtask bench kube`: what thousands of routes cost a controller, and how soon it serves a change.
//!
//! A real API server, on the same host. Nothing here is asserted: a figure belongs to the host it was measured on. What is printed:
//!
//! - memory: resident, of a controller of nothing, and of one of all of it: when it is ready, when all statuses have been written, after the
//!   changes of endpoints, during those of routes, and later; the differences are what index, snapshot and routers hold;
//! - the first list: from the start of the process until `/readyz` says 200;
//! - a change: from the moment that an EndpointSlice is sent to the API server until a request is answered by one of the new endpoints.
//!   Requests are made all the time, so half a millisecond of it is the bench's own. Measured alone, and while other EndpointSlices change 50
//!   times a second;
//! - the load on the API server: requests of the controller per second, at rest, while endpoints change, and while routes change.
#![forbid(unsafe_code)]

#[path = "../tests/kube/edge.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod edge;
#[path = "../tests/kube/harness/mod.rs"]
mod harness;
#[path = "../tests/support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use edge::{Edge, api_server, gateway, header, within};
use serde_json::{Value, json};
use support::{Origin, Steelyard};
use testkit::strict::ResponseTo;
use testkit::{Conn, client, until};

/// Who writes objects at the same time.
const WRITERS: usize = 4;
/// Between two looks whether a change is served.
const LOOK_AGAIN: Duration = Duration::from_micros(500);
/// Endpoints of each Service.
const ENDPOINTS: u8 = 10;
/// Other changes of endpoints in each second of the storm, and changes of routes.
const ENDPOINT_CHANGES_PER_SECOND: u32 = 50;
const ROUTE_CHANGES_PER_SECOND: u32 = 10;
/// How long requests to the API server are counted at rest, and while routes change.
const COUNTED: Duration = Duration::from_secs(10);
/// For all statuses to be written.
const STATUSES_TIMEOUT: Duration = Duration::from_secs(300);

struct Options {
    routes: usize,
    services: usize,
    changes: usize,
}

/// Endpoints that are one program.
struct Pods {
    name: String,
    addresses: Vec<SocketAddr>,
    _origin: Origin,
}

impl Pods {
    fn start(number: u8) -> Self {
        let name = format!("pod-{number}");
        let addresses: Vec<SocketAddr> =
            (1..=ENDPOINTS).map(|host| SocketAddr::new([10, 244, 100 + number, host].into(), 8080)).collect();
        let _origin = Origin::start_on(addresses.clone(), &name, 18);
        Self { name, addresses, _origin }
    }
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Option<Self> {
        let mut options = Self { routes: 5_000, services: 1_000, changes: 200 };
        // cargo says that it is a bench.
        let arguments: Vec<String> = arguments.filter(|argument| argument != "--bench").collect();
        for pair in arguments.chunks(2) {
            let [option, value] = pair else { return None };
            let number = value.parse().ok().filter(|number| (1..=100_000).contains(number))?;
            match option.as_str() {
                "--routes" => options.routes = number,
                "--services" => options.services = number,
                "--changes" => options.changes = number,
                _ => return None,
            }
        }
        Some(options)
    }
}

fn main() -> ExitCode {
    let Some(options) = Options::parse(std::env::args().skip(1)) else {
        eprintln!("usage: cargo xtask bench kube [--routes N] [--services N] [--changes N]");
        return ExitCode::from(2);
    };
    within("bench", |edge| run(edge, &options));
    ExitCode::SUCCESS
}

fn run(edge: &Edge, options: &Options) {
    println!("{} HTTPRoutes, {} Services of {ENDPOINTS} endpoints each\n", options.routes, options.services);
    let pods = [1, 2].map(Pods::start);
    edge.gateway("{name: web, port: 80, protocol: HTTP}");
    let begun = Instant::now();
    let empty = edge.controller();
    println!("first list of nothing          {:>9.1} ms", milliseconds(begun.elapsed()));
    edge.until_programmed();
    let base = rss_kib(&empty);
    println!("resident, of nothing           {:>9.1} MiB", mib(base));
    drop(empty);

    let begun = Instant::now();
    write_objects(edge, options, &pods[0]);
    println!("(written in {:.1} s)", begun.elapsed().as_secs_f64());

    let begun = Instant::now();
    let controller = edge.controller();
    println!("first list, until ready        {:>9.1} ms", milliseconds(begun.elapsed()));
    say_memory("when ready", &controller, base);
    until_all_statuses_are_written(edge, options);
    say_memory("statuses written", &controller, base);
    if std::env::var("STOP_SOON").is_ok() {
        return;
    }
    say_load("at rest", edge, || wait_until(Instant::now() + COUNTED));

    // Measured in the first half of the Services, with a storm in the second half.
    say_changes("an endpoint, until served", changes(edge, options, 0, &pods));
    say_load("endpoints change", edge, || {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for half in 0..2 {
                let (is_over, pods) = (&is_over, &pods);
                scope.spawn(move || storm_of_endpoints(edge, options, half, pods, is_over));
            }
            let measured = changes(edge, options, options.changes, &pods);
            is_over.store(true, Relaxed);
            say_changes("the same in the storm", measured);
        });
    });
    say_memory("endpoints changed", &controller, base);
    say_load("routes change", edge, || storm_of_routes(edge, options));
    say_memory("routes changed", &controller, base);
    wait_until(Instant::now() + COUNTED);
    say_memory("ten seconds later", &controller, base);
}

fn say_changes(what: &str, mut changes: Vec<Duration>) {
    changes.sort_unstable();
    let at = |percent: usize| milliseconds(changes[(changes.len() - 1) * percent / 100]);
    println!(
        "{what:<30} {:>9.1} ms median, {:.1} ms p90, {:.1} ms p99, {:.1} to {:.1} ms, of {} changes",
        at(50),
        at(90),
        at(99),
        at(0),
        at(100),
        changes.len()
    );
}

/// Says how many requests the controller makes to the API server meanwhile. Its watches are requests that began earlier.
fn say_load(when: &str, edge: &Edge, run: impl FnOnce()) {
    let requests = || api_server().audit(&format!("{}:steelyard", edge.name)).len();
    let (before, begun) = (requests(), Instant::now());
    run();
    let took = begun.elapsed();
    let made = requests() - before;
    println!(
        "requests to the API server, {when:<17} {:.2} a second ({made} in {:.1} s)",
        made as f64 / took.as_secs_f64(),
        took.as_secs_f64()
    );
}

/// Changes endpoints of Services that nobody measures, until `is_over`. `half` is 0 or 1: two writers take turns.
fn storm_of_endpoints(edge: &Edge, options: &Options, half: usize, pods: &[Pods; 2], is_over: &AtomicBool) {
    let cluster = api_server().admin(&edge.name);
    let first = options.services / 2;
    let begun = Instant::now();
    for number in (half..).step_by(2).take_while(|_| !is_over.load(Relaxed)) {
        let service = first + number % (options.services - first);
        cluster.apply_object(slice(service, &pods[(number / options.services + 1) % 2])).unwrap();
        wait_until(begun + Duration::from_secs(1) * number as u32 / ENDPOINT_CHANGES_PER_SECOND);
    }
}

/// Gives routes another path, which needs another status.
fn storm_of_routes(edge: &Edge, options: &Options) {
    let begun = Instant::now();
    for number in 0..ROUTE_CHANGES_PER_SECOND * COUNTED.as_secs() as u32 {
        let mut route = route(number as usize % options.routes, options);
        route["spec"]["rules"][0]["matches"][0]["path"]["value"] = "/changed".into();
        edge.cluster.apply_object(route).unwrap();
        wait_until(begun + Duration::from_secs(1) * number / ROUTE_CHANGES_PER_SECOND);
    }
}

fn wait_until(then: Instant) {
    while let Some(left) = then.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

fn say_memory(when: &str, controller: &Steelyard, base: u64) {
    let now = rss_kib(controller);
    println!(
        "resident, {when:<20} {:>9.1} MiB, {:.1} MiB more than of nothing",
        mib(now),
        mib(now.saturating_sub(base))
    );
}

fn write_objects(edge: &Edge, options: &Options, pods: &Pods) {
    let objects = |writer: usize| {
        let services = (writer..options.services).step_by(WRITERS).flat_map(|number| service(number, pods));
        services.chain((writer..options.routes).step_by(WRITERS).map(|number| route(number, options)))
    };
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || {
                let cluster = api_server().admin(&edge.name);
                for object in objects(writer) {
                    cluster.apply_object(object).unwrap();
                }
            });
        }
    });
}

fn service(number: usize, pods: &Pods) -> [Value; 2] {
    let name = format!("service-{number}");
    let ports = json!([{"name": "main", "port": 80}]);
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"clusterIP": "None", "ports": ports}});
    [service, slice(number, pods)]
}

fn slice(number: usize, pods: &Pods) -> Value {
    let name = format!("service-{number}");
    let endpoint = |address: &SocketAddr| json!({"addresses": [address.ip()], "conditions": {"ready": true}});
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": format!("{name}-a"), "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "main", "port": pods.addresses[0].port()}],
        "endpoints": pods.addresses.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

fn route(number: usize, options: &Options) -> Value {
    let backend = json!({"name": format!("service-{}", number % options.services), "port": 80});
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": format!("route-{number}")},
        "spec": {
            "parentRefs": [{"name": "edge"}],
            "hostnames": [format!("h{number}.example.com")],
            "rules": [{"matches": [{"path": {"type": "PathPrefix", "value": "/"}}], "backendRefs": [backend]}],
        },
    })
}

fn until_all_statuses_are_written(edge: &Edge, options: &Options) {
    let last = || {
        let routes = edge.cluster.list("HTTPRoute");
        let is_told = |route: &&Value| route["status"]["parents"].as_array().is_some_and(|parents| !parents.is_empty());
        (routes.iter().filter(is_told).count() == options.routes).then_some(())
    };
    let begun = Instant::now();
    assert!(until(STATUSES_TIMEOUT, last).is_some(), "not all routes have a status after {STATUSES_TIMEOUT:?}");
    println!("(statuses written in {:.1} s)", begun.elapsed().as_secs_f64());
}

/// As many changes as asked for, the first with the number `from`.
fn changes(edge: &Edge, options: &Options, from: usize, pods: &[Pods; 2]) -> Vec<Duration> {
    (from..from + options.changes).map(|number| change(edge, options, number, pods)).collect()
}

/// One Service of the first half changes over from all its endpoints to others.
fn change(edge: &Edge, options: &Options, number: usize, pods: &[Pods; 2]) -> Duration {
    // Each its own Service, as many as have a route, and each in turn to the other endpoints.
    let services = (options.services / 2).clamp(1, options.routes);
    let (service, to) = (number % services, &pods[(number / services + 1) % 2]);
    let expect = to.name.as_str();
    let mut conn = client::connect("client", gateway(80), None).unwrap();
    assert_ne!(answered_by(&mut conn, service), expect, "it has changed already");
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let patch = scope.spawn(|| edge.cluster.apply_object(slice(service, to)));
        while answered_by(&mut conn, service) != expect {
            assert!(begun.elapsed() < harness::PATIENCE, "{expect} never answered");
            std::thread::park_timeout(LOOK_AGAIN);
        }
        let took = begun.elapsed();
        patch.join().unwrap().unwrap();
        took
    })
}

/// The name of the endpoint that answers a request for a Service.
fn answered_by(conn: &mut Conn, service: usize) -> String {
    conn.send(format!("GET / HTTP/1.1\r\nHost: h{service}.example.com\r\n\r\n").as_bytes()).unwrap();
    header(&conn.response(ResponseTo::Other).unwrap(), "x-origin")
}

fn rss_kib(controller: &Steelyard) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", controller.program.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
