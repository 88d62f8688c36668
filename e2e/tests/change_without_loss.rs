//! Everything that can change under load changes under load, and no request is lost.
#![forbid(unsafe_code)]

mod support;

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::{Pid, WaitOptions, set_child_subreaper, waitpid};
use serde_json::Value;
use support::{Load, Origin, Steelyard, local, names, port, steelyard, until_served};
use testkit::strict::{Field, Response, ResponseTo};
use testkit::{Conn, End, Exit, PATIENCE, Program, Signal, client, until};

const CONNECTIONS: usize = 32;

/// One test at a time, because each uses all CPUs of a small host.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

macro_rules! alone {
    () => {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    };
}

/// A listener `web` that sends requests under /a/ to cluster `a` and all others to cluster `b`, and a listener `NAME` that marks the
/// version.
fn config(web: u16, mark: (&str, u16), a: &[&Origin], b: &[&Origin], swapped: bool) -> String {
    let list = |origins: &[&Origin]| {
        // Weights 1, 2, 3: another set of endpoints also has other weights.
        let weighted = origins.iter().zip(1..);
        let entries: Vec<_> =
            weighted.map(|(origin, weight)| format!("{{address: {}, weight: {weight}}}", origin.address)).collect();
        entries.join(", ")
    };
    let (first, second) = if swapped { ("b", "a") } else { ("a", "b") };
    let (name, port) = mark;
    format!(
        "admin: {{admin}}
listeners:
  web:
    bind: 127.0.0.1:{web}
    protocol: http
    routes:
      - {{path: /a/, to: {first}}}
      - {{to: {second}}}
  {name}:
    bind: 127.0.0.1:{port}
    protocol: http
    to: b
clusters:
  a: {{endpoints: [{}]}}
  b: {{endpoints: [{}], balance: least_request}}
",
        list(a),
        list(b)
    )
}

fn has_listener(name: &str) -> impl Fn(&Value) -> bool {
    let name = name.to_owned();
    move |status| names(status, "listeners").contains(&name.as_str())
}

#[test]
fn twenty_reloads() {
    alone!();
    for workers in [1, 2] {
        let [x, y, z] = ["x", "y", "z"].map(Origin::start);
        let (web, marks) = (port(), [port(), port()]);
        let sets: [&[&Origin]; 5] = [&[&x, &y], &[&x, &y, &z], &[&z], &[&z, &y], &[&y, &x, &z]];
        let version = |number: usize| {
            let mark = format!("mark-{number}");
            let (a, b) = (sets[number % 5], sets[(number + 2) % 5]);
            (config(web, (&mark, marks[number % 2]), a, b, number.is_multiple_of(3)), mark)
        };
        let mut balancer = Steelyard::serve(&version(0).0, workers);
        let before = balancer.generation();
        let load = Load::start(local(web), "/a/x", CONNECTIONS);
        for number in 1..=20 {
            until_served(&[&x, &y, &z], 200);
            let (config, mark) = version(number);
            balancer.reload(&config, has_listener(&mark));
            // The new listener serves, and the previous one is gone.
            assert_eq!(ask(local(marks[number % 2])), 200);
            assert!(refuses(local(marks[(number + 1) % 2])), "the listener of version {} is still open", number - 1);
        }
        until_served(&[&x, &y, &z], 200);
        let total = load.end(&mut balancer);
        let after = balancer.generation();
        eprintln!("{workers} workers: 20 reloads, {} answers, generation {before} to {after}", total.answers);
        assert_eq!(total.reconnects, 0, "connections were closed for a change that is not about their listener");
        assert!(after >= before + 20, "generation {after} after 20 reloads, {before} before");
        for origin in [&x, &y, &z] {
            assert!(origin.requests() > 0);
        }
    }
}

#[test]
fn a_refused_file_changes_nothing() {
    alone!();
    let [x, y] = ["x", "y"].map(Origin::start);
    let (web, mark) = (port(), port());
    let good = config(web, ("good", mark), &[&x], &[&y], false);
    let mut balancer = Steelyard::serve(&good, 2);
    let load = Load::start(local(web), "/a/x", CONNECTIONS);
    until_served(&[&x], 200);

    let reload = |bad: &str, balancer: &Steelyard| {
        balancer.write(bad);
        balancer.ask(&["reload"])
    };
    let bad = good.replace("protocol: http", "protocol: htpp").replace("{address:", "{adress:");
    let refused = reload(&bad, &balancer);
    assert_eq!(refused.exit, Exit::Code(64), "{}", refused.stderr);
    let file = balancer.file();
    for expect in ["5:15: ", "14:20: "] {
        assert!(refused.stderr.contains(&format!("{file}:{expect}")), "no {expect}in:\n{}", refused.stderr);
    }
    // The file is valid, but this host cannot apply it: the port of `taken` is in use.
    let taken = std::net::TcpListener::bind(local(0)).unwrap();
    let refused = reload(&config(web, ("taken", taken.local_addr().unwrap().port()), &[&x], &[&y], false), &balancer);
    assert_eq!(refused.exit, Exit::Code(64), "{}", refused.stderr);
    assert!(refused.stderr.contains("listener taken: cannot listen on"), "{}", refused.stderr);

    let status = balancer.status();
    assert_eq!(names(&status, "listeners"), ["web", "good"]);
    assert_eq!(status["last_reload"]["ok"], false, "{status}");
    until_served(&[&x], 200);
    let generation = balancer.generation();
    balancer.write(&config(web, ("good-again", mark), &[&y], &[&x], false));
    let taken = balancer.ask(&["reload"]);
    assert_eq!(taken.exit, Exit::Code(0), "{}", taken.stderr);
    assert!(balancer.generation() > generation);
    until_served(&[&y], 200);
    load.end(&mut balancer);
    balancer.until("good-again", has_listener("good-again"));
}

#[test]
fn a_changed_file_is_taken_without_a_signal() {
    alone!();
    let [x, y] = ["x", "y"].map(Origin::start);
    let (web, mark) = (port(), port());
    let mut balancer = Steelyard::serve(&config(web, ("before", mark), &[&x], &[&y], false), 1);
    let before = balancer.generation();
    let load = Load::start(local(web), "/a/x", CONNECTIONS);
    until_served(&[&x], 200);
    balancer.write(&config(web, ("after", mark), &[&y], &[&x], false));
    let status = balancer.until("reloaded", has_listener("after"));
    assert!(status["generation"].as_u64() > Some(before));
    until_served(&[&y], 200);
    load.end(&mut balancer);
}

#[test]
fn two_hand_overs_in_a_row() {
    alone!();
    // The second predecessor is the child of a process that is gone by then. It becomes our child, so that its exit code can be read.
    set_child_subreaper(Some(Pid::INIT)).unwrap();
    for workers in [1, 2] {
        let [x, y] = ["x", "y"].map(Origin::start);
        let web = port();
        let mut balancer = Steelyard::serve(&config(web, ("mark", port()), &[&x, &y], &[&y], false), workers);
        let load = Load::start(local(web), "/a/x", CONNECTIONS);
        until_served(&[&x, &y], 500);

        let first = pid(&balancer.status());
        assert_eq!(first, balancer.program.pid());
        balancer.program.signal(Signal::USR2).unwrap();
        assert_eq!(balancer.program.exit_within(PATIENCE * 2).unwrap(), Exit::Code(0), "{}", balancer.program.log());
        let second = successor(balancer.admin, first);
        until_served(&[&x, &y], 500);

        signal(second, Signal::USR2);
        let status = until(PATIENCE * 2, || waitpid(as_pid(second), WaitOptions::NOHANG).unwrap());
        let (_, status) = status.unwrap_or_else(|| panic!("{second} still runs:\n{}", balancer.program.log()));
        assert_eq!(status.exit_status(), Some(0), "{}", balancer.program.log());
        let third = successor(balancer.admin, second);
        until_served(&[&x, &y], 500);

        let total = load.end(&mut balancer);
        eprintln!("{workers} workers: {first} -> {second} -> {third}, {} answers", total.answers);
        assert!(total.reconnects > 0, "no connection was closed to send its client to the successor: {total:?}");
        assert_eq!(total.resent, 0, "requests were lost on connections that were closed without notice");
        assert_eq!(balancer.metric("steelyard_workers", &[]), f64::from(workers));
        signal(third, Signal::TERM);
        let status = until(PATIENCE, || waitpid(as_pid(third), WaitOptions::NOHANG).unwrap());
        assert_eq!(status.and_then(|(_, status)| status.exit_status()), Some(0), "{}", balancer.program.log());
    }
}

fn pid(status: &Value) -> u32 {
    status["pid"].as_u64().and_then(|pid| pid.try_into().ok()).expect("a pid")
}

/// The process that now answers on the admin address instead of `old`.
fn successor(admin: SocketAddr, old: u32) -> u32 {
    let new = || support::status(admin).map(|status| pid(&status)).filter(|pid| *pid != old);
    until(PATIENCE, new).expect("a successor")
}

fn as_pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(pid.try_into().unwrap())
}

fn signal(pid: u32, signal: Signal) {
    rustix::process::kill_process(as_pid(pid).unwrap(), signal).unwrap();
}

#[test]
fn sigterm_answers_every_request_that_it_has_accepted() {
    alone!();
    for workers in [1, 2] {
        let x = Origin::start("x");
        let web = port();
        let mut balancer = Steelyard::serve(&config(web, ("mark", port()), &[&x], &[&x], false), workers);
        // Each connection has had an answer, so it is accepted. It sends requests without a pause until a response announces the end of the
        // connection.
        let talk = move |index: usize| -> (u64, Conn) {
            let mut conn = client::connect(&format!("client {index}"), local(web), None).unwrap();
            for answers in 1.. {
                conn.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
                let response = conn.response(ResponseTo::Other).unwrap();
                assert_eq!(response.status, 200);
                if says_close(&response) {
                    return (answers, conn);
                }
            }
            unreachable!()
        };
        let threads: Vec<_> = (0..CONNECTIONS).map(|index| std::thread::spawn(move || talk(index))).collect();
        balancer.until("all connected", |status| {
            status["listeners"][0]["connections_open"] == CONNECTIONS && x.requests() > 10 * CONNECTIONS as u64
        });
        balancer.program.signal(Signal::TERM).unwrap();
        let mut answers = 0;
        for thread in threads {
            let (count, mut conn) = thread.join().expect("every request is answered");
            assert_eq!(conn.expect_end().unwrap(), End::Fin);
            answers += count;
        }
        assert_eq!(answers, x.requests());
        assert_eq!(balancer.program.exit_within(PATIENCE).unwrap(), Exit::Code(0), "{}", balancer.program.log());
        assert!(refuses(local(web)));
        eprintln!("{workers} workers: {answers} answers, the last of each connection with `connection: close`");
    }
}

#[test]
fn a_killed_endpoint_and_one_that_comes_back() {
    alone!();
    for workers in [1, 2] {
        let (web, dying) = (port(), local(port()));
        let [x, y] = ["x", "y"].map(Origin::start);
        let mut killed = child_origin(dying);
        let config = format!(
            "admin: {{admin}}
listeners:
  web: {{bind: '127.0.0.1:{web}', protocol: http, to: all}}
clusters:
  all:
    endpoints: ['{dying}', '{}', '{}']
    outlier: {{eject_for: 1s}}
",
            x.address, y.address
        );
        let mut balancer = Steelyard::serve(&config, workers);
        let load = Load::start(local(web), "/", CONNECTIONS);
        for _ in 0..2 {
            let before = requests_at(&balancer.status(), dying);
            balancer.until("used", |status| requests_at(status, dying) >= before + 200);
            killed.signal(Signal::KILL).unwrap();
            assert_eq!(killed.exit_within(PATIENCE).unwrap(), Exit::Signal(9));
            balancer.until("ejected", |status| endpoint(status, dying)["state"] == "ejected");
            until_served(&[&x, &y], 500);
            killed = child_origin(dying);
        }
        let before = requests_at(&balancer.status(), dying);
        balancer.until("used again", |status| requests_at(status, dying) >= before + 200);
        let total = load.end(&mut balancer);
        let [retries, redispatches] = ["retries", "redispatches"]
            .map(|what| balancer.metric(&format!("steelyard_cluster_{what}_total"), &[("cluster", "all")]));
        eprintln!(
            "{workers} workers: killed twice, {} answers, {retries} retries, {redispatches} redispatches",
            total.answers
        );
        assert!(retries + redispatches > 0.0, "no request was in progress at the endpoint when it was killed");
    }
}

fn child_origin(address: SocketAddr) -> Program {
    let mut command = steelyard();
    command.args(["origin", "http", "--listen", &address.to_string()]);
    let mut origin = Program::spawn("origin", &mut command).unwrap();
    origin.says("listening").unwrap();
    origin
}

fn endpoint(status: &Value, address: SocketAddr) -> &Value {
    let endpoints = status["clusters"][0]["endpoints"].as_array().expect("endpoints");
    endpoints.iter().find(|endpoint| endpoint["address"] == address.to_string()).expect("the endpoint")
}

fn requests_at(status: &Value, address: SocketAddr) -> u64 {
    endpoint(status, address)["requests"].as_u64().unwrap()
}

#[test]
fn tunnels_and_streams_outlive_what_they_came_through() {
    alone!();
    for workers in [1, 2] {
        let mut far = testkit::Origin::listen("origin").unwrap();
        let (web, stream, mark) = (port(), port(), port());
        let before = |mark_name: &str| {
            format!(
                "admin: {{admin}}
listeners:
  web: {{bind: '127.0.0.1:{web}', protocol: http, to: tunnels}}
  stream: {{bind: '127.0.0.1:{stream}', protocol: tcp, to: streams}}
  {mark_name}: {{bind: '127.0.0.1:{mark}', protocol: tcp, to: streams}}
clusters:
  tunnels: {{endpoints: ['{0}']}}
  streams: {{endpoints: ['{0}']}}
",
                far.address()
            )
        };
        let (zero, one, two) = (before("zero"), before("one"), before("two"));
        let mut balancer = Steelyard::serve(&zero, workers);
        let mut tunnel = client::connect("tunnel", local(web), None).unwrap();
        tunnel.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n").unwrap();
        far.connection(1).unwrap().request().unwrap();
        let switching = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        far.connection(1).unwrap().send(switching).unwrap();
        assert_eq!(tunnel.response_head().unwrap().status, 101);
        let mut stream_client = client::connect("stream", local(stream), None).unwrap();
        stream_client.send(b"first").unwrap();
        far.connection(2).unwrap().expect_bytes(b"first").unwrap();

        let mut both_ways = |text: &str| {
            for (client, number) in [(&mut tunnel, 1), (&mut stream_client, 2)] {
                client.send(text.as_bytes()).unwrap();
                far.connection(number).unwrap().expect_bytes(text.as_bytes()).unwrap();
                far.connection(number).unwrap().send(text.to_uppercase().as_bytes()).unwrap();
                client.expect_bytes(text.to_uppercase().as_bytes()).unwrap();
            }
        };
        both_ways("at first");
        for (config, name) in [(&one, "one"), (&two, "two"), (&zero, "zero")] {
            balancer.reload(config, has_listener(name));
            both_ways(name);
        }
        // First their clusters are removed, then their listeners.
        let other = Origin::start("other");
        let elsewhere = zero.replace("tunnels", "other").replace("streams", "more");
        let elsewhere = elsewhere.replace(&zero_endpoint(&zero), &other.address.to_string());
        balancer.reload(&elsewhere, |status| names(status, "clusters") == ["other", "more"]);
        both_ways("without clusters");
        assert_eq!(ask(local(web)), 200);
        let nowhere = elsewhere.replace("web:", "web2:").replace(&web.to_string(), &port().to_string());
        let nowhere = nowhere.replace("stream:", "stream2:").replace(&stream.to_string(), &port().to_string());
        balancer.reload(&nowhere, |status| has_listener("web2")(status) && has_listener("stream2")(status));
        assert!(refuses(local(web)) && refuses(local(stream)));
        both_ways("without listeners");

        // They end in the usual way.
        tunnel.half_close().unwrap();
        stream_client.half_close().unwrap();
        for number in [1, 2] {
            assert_eq!(far.connection(number).unwrap().expect_end().unwrap(), End::Fin);
            far.connection(number).unwrap().send(b"last words").unwrap();
            far.connection(number).unwrap().close();
        }
        for client in [&mut tunnel, &mut stream_client] {
            client.expect_bytes(b"last words").unwrap();
            assert_eq!(client.expect_end().unwrap(), End::Fin);
        }
    }
}

/// The address of the only endpoint of a configuration.
fn zero_endpoint(config: &str) -> String {
    config.split("['").nth(1).and_then(|rest| rest.split('\'').next()).expect("an endpoint").to_owned()
}

#[test]
fn a_busy_connection_learns_that_its_listener_is_gone() {
    alone!();
    let x = Origin::start("x");
    let (web, other) = (port(), port());
    let before = config(web, ("mark", other), &[&x], &[&x], false);
    let mut balancer = Steelyard::serve(&before, 1);
    let mut conn = client::connect("client", local(other), None).unwrap();
    let mut get = || {
        conn.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let response = conn.response(ResponseTo::Other).unwrap();
        assert_eq!(response.status, 200);
        says_close(&response)
    };
    assert!(!get());
    let gone = before.replace("  mark:", "  moved:").replace(&other.to_string(), &port().to_string());
    balancer.reload(&gone, has_listener("moved"));
    // Without this, a client that is never idle would keep using a listener that is in no file.
    assert!(get(), "the connection goes on");
    assert_eq!(conn.expect_end().unwrap(), End::Fin);
}

fn says_close(response: &Response) -> bool {
    let close = |field: &Field| field.name.eq_ignore_ascii_case("connection") && field.value == b"close";
    response.headers.iter().any(close)
}

/// The status of one GET on a separate connection.
fn ask(address: SocketAddr) -> u16 {
    support::get(address, "/").map_or(0, |response| response.status)
}

/// Whether nothing listens there any more, now or in a moment.
fn refuses(address: SocketAddr) -> bool {
    until(PATIENCE, || std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err().then_some(()))
        .is_some()
}

#[test]
fn the_load_sees_failures() {
    alone!();
    let total = Load::start(local(port()), "/", CONNECTIONS).stop();
    assert!(total.failures > 0 && total.answers == 0, "nothing listens there: {total:?}");
}
