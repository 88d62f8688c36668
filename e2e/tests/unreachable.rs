//! Endpoints that no health check has found dead: requests go to others, and none is lost as long as there are some.
#![forbid(unsafe_code)]

mod support;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Mutex;

use serde_json::Value;
use socket2::{Domain, Socket, Type};
use support::{Load, Origin, Steelyard, local, port, steelyard, until_served};
use testkit::strict::ResponseTo;
use testkit::{Exit, PATIENCE, Program, Signal, client};

const CONNECTIONS: usize = 32;
/// Unreachable endpoints that a request passes over without charge, as stated in `docs/threat-model.md`.
const REDISPATCHES_MAX: u64 = 10;

/// One test at a time, because each uses all CPUs of a small host.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

macro_rules! alone {
    () => {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    };
}

/// An address that refuses connections, and that nothing else can take meanwhile: it is bound, but does not listen.
struct Dead {
    address: SocketAddr,
    _socket: Socket,
}

impl Dead {
    fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&local(0).into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        Self { address, _socket: socket }
    }
}

/// An address where connections are neither accepted nor refused, because the queue of those that wait to be accepted is full.
struct Silent {
    address: SocketAddr,
    sockets: Vec<Socket>,
}

impl Silent {
    fn new() -> Self {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&local(0).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let mut sockets = vec![listener];
        // A queue of 0 holds one connection (Linux: it is full when there are more than its length).
        let filler = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        filler.connect_timeout(&address.into(), PATIENCE).unwrap();
        sockets.push(filler);
        Self { address, sockets }
    }

    /// Accepts connections from here on. Returns the listener; the connection that filled the queue is already accepted.
    fn listen(self) -> std::net::TcpListener {
        let listener = self.sockets.into_iter().next().expect("the first one listens");
        drop(listener.accept().unwrap());
        listener.into()
    }
}

/// A listener `web` and a cluster `all`. `route` and `cluster` have further keys of these.
fn config(web: u16, protocol: &str, route: &str, endpoints: &[String], cluster: &str) -> String {
    let to = if protocol == "tcp" { "to: all".to_owned() } else { format!("routes: [{{to: all{route}}}]") };
    format!(
        "admin: {{admin}}
listeners:
  web: {{bind: '127.0.0.1:{web}', protocol: {protocol}, {to}}}
clusters:
  all: {{endpoints: [{}]{cluster}}}
",
        endpoints.join(", ")
    )
}

fn plain(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<String> {
    addresses.into_iter().map(|address| format!("'{address}'")).collect()
}

fn counted(balancer: &Steelyard, what: &str) -> u64 {
    balancer.metric(&format!("steelyard_{what}_total"), &[("cluster", "all")]) as u64
}

fn ejected(status: &Value) -> usize {
    let endpoints = status["clusters"][0]["endpoints"].as_array().expect("endpoints");
    endpoints.iter().filter(|endpoint| endpoint["state"] == "ejected").count()
}

/// Ten listeners of HTTP/1.1 and HTTP/2 in front of one origin. Seven are a separate process, which dies as a whole.
struct Ten {
    origin: Origin,
    addresses: Vec<SocketAddr>,
    doomed: Program,
    _others: Program,
    _scratch: support::Scratch,
}

impl Ten {
    fn start() -> Self {
        let (origin, scratch) = (Origin::start("origin"), support::Scratch::new());
        let addresses: Vec<_> = (0..10).map(|_| local(port())).collect();
        let relay = |name: &str, addresses: &[SocketAddr]| {
            let listener = |address: &SocketAddr| {
                format!("  l{}: {{bind: '{address}', protocol: http, to: origin}}\n", address.port())
            };
            let listeners: String = addresses.iter().map(listener).collect();
            let text = format!("listeners:\n{listeners}clusters:\n  origin: {{endpoints: ['{}']}}\n", origin.address);
            let file = scratch.write(&format!("{name}.yaml"), &text);
            let mut program = Program::spawn(name, steelyard().args(["serve", "-c", &file, "--workers", "1"])).unwrap();
            let serve = || addresses.iter().all(|address| support::get(*address, "/").is_some()).then_some(());
            program.until("serves", serve).unwrap();
            program
        };
        let doomed = relay("doomed", &addresses[..7]);
        let others = relay("others", &addresses[7..]);
        Self { origin, addresses, doomed, _others: others, _scratch: scratch }
    }
}

#[test]
fn seven_of_ten_endpoints_die_at_once() {
    alone!();
    // Without ejection all seven stay in.
    let off = ", outlier: off";
    for (protocol, outlier, workers) in [("h1", "", 1), ("h1", off, 2), ("h2c", "", 2), ("h2c", off, 1)] {
        let mut ten = Ten::start();
        let web = port();
        let cluster = format!(", protocol: {protocol}{outlier}");
        let config = config(web, "http", "", &plain(ten.addresses.iter().copied()), &cluster);
        let mut balancer = Steelyard::serve(&config, workers);
        let load = Load::start(local(web), "/", CONNECTIONS);
        until_served(&[&ten.origin], 1_000);
        ten.doomed.signal(Signal::KILL).unwrap();
        assert_eq!(ten.doomed.exit_within(PATIENCE).unwrap(), Exit::Signal(9));
        if outlier.is_empty() {
            // At most half of a cluster may be ejected: two of the dead endpoints stay in.
            balancer.until("half is ejected", |status| ejected(status) == 5);
        }
        until_served(&[&ten.origin], 2_000);
        let total = load.end(&mut balancer);
        let redispatches = counted(&balancer, "cluster_redispatches");
        eprintln!("{protocol}{outlier}, {workers} workers: {} answers, {redispatches} redispatches", total.answers);
        assert!(redispatches > 0, "no request met a dead endpoint");
    }
}

/// One request, or one connection to a TCP listener: its status, or 0 if it was cut off.
fn ask(web: u16, method: &str) -> u16 {
    let mut conn = client::connect("client", local(web), None).unwrap();
    let head = format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    conn.send(head.as_bytes()).unwrap();
    conn.response(ResponseTo::Other).map_or(0, |response| response.status)
}

#[test]
fn ten_that_are_dead_cost_no_try() {
    alone!();
    // Requests that are not idempotent are sent to another endpoint as well, because nothing of them was sent.
    for (protocol, speaks) in [("http", "h1"), ("http", "h2c"), ("tcp", "h1")] {
        let dead: Vec<_> = (0..10).map(|_| Dead::new()).collect();
        let ten = Ten::start();
        let web = port();
        let endpoints = plain(dead.iter().map(|dead| dead.address).chain([ten.addresses[9]]));
        // No retry is allowed.
        let route = ", retry: {attempts: 1, on: connect_failure, budget: 0%}";
        let cluster = format!(", protocol: {speaks}, outlier: off");
        let balancer = Steelyard::serve(&config(web, protocol, route, &endpoints, &cluster), 1);
        for _ in 0..22 {
            assert_eq!(ask(web, "POST"), 200, "{protocol} {speaks}");
        }
        let [redispatches, failures, retries] =
            ["cluster_redispatches", "endpoint_failures", "cluster_retries"].map(|what| counted(&balancer, what));
        // Endpoints have their turns in order, and dead ones are passed over: each request finds the live one within a round.
        assert!(redispatches >= 22, "{protocol} {speaks}: {redispatches}");
        assert_eq!((failures, retries), (redispatches, 0), "{protocol} {speaks}: each failure must be counted");
        assert_eq!(counted(&balancer, "cluster_connect_failures"), redispatches, "{protocol} {speaks}");
    }
}

/// `dead` endpoints that refuse and `silent` ones that do not answer, all before the live one. Checks the result of one request, how many
/// connects failed, and for how many of them a retry was charged.
#[track_caller]
fn check(protocol: &str, route: &str, dead: usize, silent: usize, expect: (u16, u64, u64)) {
    let dead: Vec<_> = (0..dead).map(|_| Dead::new()).collect();
    let silent: Vec<_> = (0..silent).map(|_| Silent::new()).collect();
    let origin = Origin::start("origin");
    let web = port();
    let heavy = dead.iter().map(|dead| dead.address).chain(silent.iter().map(|silent| silent.address));
    let endpoints = heavy.map(|address| format!("{{address: '{address}', weight: 60000}}"));
    let endpoints: Vec<_> = endpoints.chain([format!("{{address: '{}', weight: 1}}", origin.address)]).collect();
    let patience = if silent.is_empty() { "" } else { ", connect_timeout: 300ms" };
    let config = config(web, protocol, route, &endpoints, &format!(", outlier: off{patience}"));
    let balancer = Steelyard::serve(&config, 1);
    let status = ask(web, "POST");
    let got = (status, counted(&balancer, "endpoint_failures"), counted(&balancer, "cluster_retries"));
    assert_eq!(got, expect, "{protocol}{route}, {} dead, {} silent", dead.len(), silent.len());
    let reasons: f64 = ["connect_refused", "connect_timeout"]
        .map(|reason| balancer.metric("steelyard_refused_total", &[("reason", reason)]))
        .iter()
        .sum();
    assert_eq!(reasons, if status == 200 { 0.0 } else { 1.0 }, "the failure must have the right reason");
}

#[test]
fn beyond_the_limit_tries_are_charged() {
    alone!();
    let max = REDISPATCHES_MAX;
    for protocol in ["http", "tcp"] {
        check(protocol, "", max as usize, 0, (200, max, 0));
        check(protocol, "", max as usize + 2, 0, (200, max + 2, 2));
        check(protocol, "", 20, 0, (if protocol == "http" { 502 } else { 0 }, max + 3, 2));
    }
    // The route's own rules decide whether it is tried again at all.
    check("http", ", retry: off", 3, 0, (502, 1, 0));
    check("http", ", retry: {on: [503]}", 3, 0, (502, 1, 0));
    check("http", ", retry: {attempts: 1, on: connect_failure}", 20, 0, (502, max + 2, 1));
}

#[test]
fn one_that_does_not_answer_is_charged() {
    alone!();
    for protocol in ["http", "tcp"] {
        check(protocol, "", 0, 1, (200, 1, 1));
        check(protocol, "", 0, 2, (200, 2, 2));
        check(protocol, "", 0, 3, (if protocol == "http" { 504 } else { 0 }, 3, 2));
    }
}

#[test]
fn who_has_been_everywhere_goes_by_the_routes_tries() {
    alone!();
    let dead = [Dead::new(), Dead::new()];
    let web = port();
    let route = ", retry: {attempts: 3, on: connect_failure}";
    let endpoints = plain(dead.iter().map(|dead| dead.address));
    let balancer = Steelyard::serve(&config(web, "http", route, &endpoints, ", outlier: off"), 1);
    assert_eq!(ask(web, "GET"), 502);
    // The first one is passed over. Each further try is charged, and uses the same endpoints again.
    let got = ["endpoint_failures", "cluster_redispatches", "cluster_retries"].map(|what| counted(&balancer, what));
    assert_eq!(got, [5, 1, 3]);
}

#[test]
fn the_status_tells_of_the_dead() {
    alone!();
    let (dead, origin) = (Dead::new(), Origin::start("origin"));
    let web = port();
    let endpoints = plain([dead.address, origin.address]);
    let mut balancer =
        Steelyard::serve(&config(web, "http", "", &endpoints, ", outlier: {consecutive_5xx: 3, eject_for: 1h}"), 1);
    for _ in 0..20 {
        assert_eq!(ask(web, "POST"), 200);
    }
    balancer.until("ejected", |status| ejected(status) == 1);
    assert_eq!(counted(&balancer, "endpoint_failures"), 3);
    let shown = balancer.ask(&["status"]);
    assert!(shown.stdout.contains("ejected"), "{}", shown.stdout);
    assert!(balancer.program.log().contains("last=ConnectFailure"), "{}", balancer.program.log());
}

/// A TCP listener and its only endpoint, which accepts no connection yet, and a client that has sent something and waits for one.
fn waiting() -> (Steelyard, Silent, std::net::TcpStream) {
    let (silent, web) = (Silent::new(), port());
    let config = config(web, "tcp", "", &plain([silent.address]), ", connect_timeout: 1h");
    let mut balancer = Steelyard::serve(&config, 1);
    let mut client = std::net::TcpStream::connect(local(web)).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"hello").unwrap();
    balancer.until("connecting", |status| status["clusters"][0]["endpoints"][0]["connections"] == 1);
    (balancer, silent, client)
}

#[test]
fn a_tcp_client_that_resets_its_connection_costs_the_endpoint_nothing() {
    alone!();
    let (mut balancer, silent, client) = waiting();
    socket2::SockRef::from(&client).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(client);
    balancer.until("given up", |status| status["clusters"][0]["endpoints"][0]["connections"] == 0);
    let resets = balancer.metric("steelyard_refused_total", &[("listener", "web"), ("reason", "client_reset")]);
    assert_eq!((resets, counted(&balancer, "endpoint_failures")), (1.0, 0), "the endpoint is not to blame");
    // The next connection that it accepts is one of ours.
    let (address, listener) = (silent.address, silent.listen());
    let ours = std::net::TcpStream::connect(address).unwrap();
    assert_eq!(listener.accept().unwrap().1, ours.local_addr().unwrap());
}

/// A client that has ended only its own side waits for an answer. A client that has closed its connection looks the same until it is sent
/// something.
#[test]
fn a_tcp_client_that_ends_its_side_is_served() {
    alone!();
    let (_balancer, silent, mut client) = waiting();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let (mut stream, _) = silent.listen().accept().unwrap();
    let (mut asked, mut answer) = (String::new(), String::new());
    stream.read_to_string(&mut asked).unwrap();
    stream.write_all(b"and goodbye").unwrap();
    drop(stream);
    client.read_to_string(&mut answer).unwrap();
    assert_eq!((asked.as_str(), answer.as_str()), ("hello", "and goodbye"));
}

#[test]
fn with_a_single_try_the_ejected_endpoint_takes_over_when_the_last_one_dies() {
    alone!();
    let (dead, second) = (Dead::new(), Origin::start("second"));
    let web = port();
    let endpoints = plain([dead.address, second.address]);
    let cluster = ", outlier: {consecutive_5xx: 3, eject_for: 1h}";
    let mut balancer = Steelyard::serve(&config(web, "http", ", retry: off", &endpoints, cluster), 1);
    balancer.until("the first is ejected", |status| {
        ask(web, "POST");
        ejected(status) == 1
    });

    let address = dead.address;
    drop(dead);
    let first = Origin::start_at(address, "first", 18);
    drop(second);
    let served = testkit::until(PATIENCE, || (ask(web, "POST") == 200).then_some(()));
    served.unwrap_or_else(|| panic!("the endpoint that is back gets no request: {}", balancer.program.log()));
    assert!((0..20).all(|_| ask(web, "POST") == 200));
    assert_eq!(first.requests(), 21, "each request was sent once");
    assert_eq!(["cluster_retries", "cluster_redispatches"].map(|what| counted(&balancer, what)), [0, 0]);
    balancer.until("the other one is ejected", |status| {
        let endpoints = &status["clusters"][0]["endpoints"];
        endpoints[0]["state"] == "unchecked" && endpoints[1]["state"] == "ejected"
    });
}
