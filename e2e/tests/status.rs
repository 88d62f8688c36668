//! `steelyard status` judges what happened, not only what is configured: each test breaks something and expects a finding.
#![forbid(unsafe_code)]

mod support;
#[path = "support/tls.rs"]
mod tls;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use serde_json::Value;
use support::network::{Family, Links, Vips, vip, within};
use support::{Origin, Scratch, Steelyard, get, local, port, steelyard};
use testkit::strict::ResponseTo;
use testkit::{Exit, PATIENCE, Program, Signal, client};

/// A listener `web` at `listen` in front of a cluster `app` with these endpoints.
fn config(listen: u16, endpoints: &str) -> String {
    format!(
        "admin: {{admin}}
listeners:
  web: {{bind: '{}', protocol: http, to: app, header_timeout: 10m}}
clusters:
  app: {{endpoints: [{endpoints}]}}
",
        local(listen)
    )
}

/// The kinds of the findings.
fn kinds(status: &Value) -> Vec<&str> {
    status["findings"].as_array().into_iter().flatten().filter_map(|finding| finding["kind"].as_str()).collect()
}

/// `status --check` fails, and prints each of these; also with `--json`.
#[track_caller]
fn is_wrong(steelyard: &Steelyard, expect: &[&str]) {
    let finished = steelyard.ask(&["status", "--check"]);
    assert_eq!(finished.exit, Exit::Code(1), "{}", finished.stdout);
    // Findings are wrapped over lines.
    let text = finished.stdout.replace("\n  ", " ");
    for words in expect {
        assert!(text.contains(words), "{words:?} is not in\n{}", finished.stdout);
    }
    assert!(!text.contains("Nothing is wrong"), "{text}");
    assert!(finished.stdout.lines().all(|line| line.chars().count() <= 80), "{}", finished.stdout);
    assert_eq!(steelyard.ask(&["status", "--check", "--json"]).exit, Exit::Code(1));
    // Without `--check` there is no judgement.
    assert_eq!(steelyard.ask(&["status"]).exit, Exit::Code(0));
}

#[track_caller]
fn is_good(steelyard: &Steelyard) {
    let finished = steelyard.ask(&["status", "--check"]);
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stdout);
    assert!(finished.stdout.contains("Nothing is wrong."), "{}", finished.stdout);
}

#[test]
fn a_dead_endpoint_that_nothing_checks() {
    // Nothing listens on port 9 of the loopback interface.
    let listen = port();
    let mut steelyard = Steelyard::serve(&config(listen, "'127.0.0.1:9'"), 2);
    let state = |status: &Value| status["clusters"][0]["endpoints"][0]["state"].clone();
    assert_eq!(state(&steelyard.status()), "unchecked");
    is_good(&steelyard);
    assert_eq!(get(local(listen), "/").map(|response| response.status), Some(502));
    // A worker's counts become visible a moment later.
    let expect = ["listener_failures", "route_errors", "endpoint_failures"];
    steelyard.until("judged", |status| expect.iter().all(|kind| kinds(status).contains(kind)));
    is_wrong(
        &steelyard,
        &[
            "web failed 1 of 1 request in the last minute: 1 connect_refused",
            "a route answered with 5xx:",
            "requests to app failed: 1 of 1 at 127.0.0.1:9 in",
            "give the cluster a `health_check`",
        ],
    );
}

#[test]
fn an_endpoint_that_is_checked_is_healthy_once_a_probe_said_so() {
    let origin = Origin::start("x");
    let text = config(port(), &format!("'{}'", origin.address))
        .replace("]}", "], health_check: {tcp: true, interval: 100ms}}");
    let mut steelyard = Steelyard::serve(&text, 1);
    steelyard.until("healthy", |status| status["clusters"][0]["endpoints"][0]["state"] == "healthy");
    is_good(&steelyard);
}

/// Stops a thread as a debugger does, until a line comes in: `PTRACE_SEIZE`, `PTRACE_INTERRUPT`, `PTRACE_DETACH`.
const HOLD: &str = "
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def ptrace(request):
    if libc.ptrace(ctypes.c_long(request), ctypes.c_long(int(sys.argv[1])), None, None) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
ptrace(0x4206)
ptrace(0x4207)
libc.waitpid(int(sys.argv[1]), None, 0x40000000)
print('held', flush=True)
sys.stdin.readline()
ptrace(17)
";

#[test]
fn a_worker_that_stands_still() {
    if !rustix::process::geteuid().is_root() {
        return support::skip("a_worker_that_stands_still", "not root: the host may not allow ptrace");
    }
    let origin = Origin::start("x");
    let listen = port();
    let mut steelyard = Steelyard::serve(&config(listen, &format!("'{}'", origin.address)), 1);
    let mut clients: Vec<_> = (0..3).map(|_| client::connect("client", local(listen), None).unwrap()).collect();
    let ask = |client: &mut testkit::Conn| client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    for client in &mut clients {
        ask(client);
        assert_eq!(client.response(ResponseTo::Other).unwrap().status, 200);
    }
    is_good(&steelyard);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", steelyard.program.pid())).unwrap().flatten();
    let is_worker =
        |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap() == "worker-0\n";
    let thread = tasks.filter(is_worker).map(|task| task.file_name()).next().unwrap();
    let mut debugger = Command::new("python3");
    debugger.args(["-c", HOLD]).arg(&thread).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut debugger = debugger.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(debugger.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "held\n");
    ask(&mut clients[0]);
    let because = format!("a debugger, process {}, has stopped it", debugger.id());
    let status = steelyard.until("stalled", |status| {
        let why = status["stalled_workers"][0]["why_no_stack"].as_str();
        why.is_some_and(|why| why.contains(&because))
    });
    assert_eq!(status["stalled_workers"][0]["connections"], serde_json::json!({"web": 3}), "{status:#}");
    assert_eq!(kinds(&status), ["worker_stalled"]);
    let text = "its 3 connections wait (web 3); there is no stack: it did not answer within 200 ms:";
    is_wrong(&steelyard, &["worker 0 has made no progress since ", text, &because]);
    let page = get(steelyard.admin, "/").unwrap();
    assert!(String::from_utf8(page.body).unwrap().contains(text));
    // It goes on, and so does the request.
    debugger.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(debugger.wait().unwrap().success());
    assert_eq!(clients[0].response(ResponseTo::Other).unwrap().status, 200);
    steelyard.until("in progress", |status| status["stalled_workers"] == serde_json::json!([]));
    is_good(&steelyard);
}

#[test]
fn a_file_that_is_gone() {
    let origin = Origin::start("x");
    let steelyard = Steelyard::serve(&config(port(), &format!("'{}'", origin.address)), 1);
    is_good(&steelyard);
    let text = std::fs::read_to_string(steelyard.file()).unwrap();
    std::fs::remove_file(steelyard.file()).unwrap();
    is_wrong(&steelyard, &["steelyard.yaml is missing: generation 1 stays in use, but a restart would fail"]);
    steelyard.write(&text);
    is_good(&steelyard);
}

#[test]
fn a_certificate_that_has_expired() {
    let listen = port();
    let scratch = Scratch::new();
    let pki = tls::Pki::new(scratch.path());
    pki.issue_expired("old", &["localhost"]);
    let text = config(listen, "'127.0.0.1:9'").replace(
        "protocol: http,",
        &format!(
            "protocol: https, tls: {{certificates: [{{cert: '{}', key: '{}'}}]}},",
            pki.path("old.pem").display(),
            pki.path("old.key").display()
        ),
    );
    let mut steelyard = Steelyard::serve(&text, 2);
    let curl = || {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "10", "--cacert"]).arg(pki.path("ca.pem"));
        let out = curl.arg(format!("https://localhost:{listen}/")).output().expect("curl");
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    for _ in 0..5 {
        let heard = curl();
        assert!(heard.contains("expired"), "{heard}");
    }
    steelyard.until("judged", |status| kinds(status) == ["certificate_invalid", "listener_handshakes"]);
    is_wrong(
        &steelyard,
        &["5 of 5 connections to web failed in the TLS handshake in the last minute, and no request arrived: 5 \
           tls_handshake;"],
    );
}

#[test]
fn no_descriptors_left() {
    let origin = Origin::start("x");
    let listen = port();
    let text = config(listen, &format!("'{}'", origin.address));
    let (admin, scratch) = (local(port()), Scratch::new());
    let file = scratch.write("steelyard.yaml", &text.replace("{admin}", &admin.to_string()));
    // As many as it needs to start, and for a few clients.
    let limited = "ulimit -n 64; exec \"$0\" \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", limited]).arg(steelyard().get_program()).args(["serve", "--workers", "1", "-c", &file]);
    let mut steelyard = Steelyard::of(Program::spawn("steelyard", &mut shell).unwrap(), admin, scratch);
    is_good(&steelyard);
    // Idle clients use up the descriptors; further ones cause the failure.
    let clients: Vec<_> = (0..80).map(|_| client::connect("idle", local(listen), None).unwrap()).collect();
    // The control API answers even then.
    let is_told = |status: &Value| kinds(status).contains(&"accept_failures") && kinds(status).contains(&"open_files");
    steelyard.until("judged", is_told);
    is_wrong(
        &steelyard,
        &[
            "file descriptors are in use: raise LimitNOFILE",
            "web failed to accept connections",
            "because file descriptors or memory ran out",
        ],
    );
    drop(clients);
    steelyard.until("fewer", |status| !kinds(status).contains(&"open_files"));
}

#[test]
fn requests_that_fail_for_want_of_descriptors() {
    let origin = Origin::start("x");
    let listen = port();
    let text = config(listen, &format!("'{}'", origin.address));
    let (admin, scratch) = (local(port()), Scratch::new());
    let file = scratch.write("steelyard.yaml", &text.replace("{admin}", &admin.to_string()));
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]);
    shell.arg(steelyard().get_program()).args(["serve", "--workers", "1", "-c", &file]);
    let mut steelyard = Steelyard::of(Program::spawn("steelyard", &mut shell).unwrap(), admin, scratch);
    let mut clients: Vec<_> = (0..80).map(|_| client::connect("client", local(listen), None).unwrap()).collect();
    steelyard.until("full", |status| kinds(status).contains(&"accept_failures"));
    // The accepted clients send requests at once, and there are hardly any descriptors for connections to the endpoint.
    let asking = &mut clients[..20];
    for client in &mut *asking {
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    }
    let statuses: Vec<u16> =
        asking.iter_mut().map(|client| client.response(ResponseTo::Other).unwrap().status).collect();
    assert!(statuses.iter().filter(|status| **status == 503).count() >= 10, "{statuses:?}");
    steelyard.until("judged", |status| kinds(status).contains(&"listener_failures"));
    is_wrong(&steelyard, &[" of 20 requests in the last minute: ", " no_local_resources; raise LimitNOFILE"]);
}

#[test]
fn packets_to_an_endpoint_that_does_not_answer() {
    within("packets_to_an_endpoint_that_does_not_answer", Links::default(), |network| {
        let to = std::net::SocketAddr::new(Family::V4.vip(1), 80);
        let _origins = network.origins();
        let endpoints = format!("endpoints: ['{}:80', '{}:80']", Family::V4.endpoint(0), Family::V4.endpoint(1));
        let mut vips = Vips::serve(&vip("web", to, "tcp", &endpoints));
        is_good(&vips.steelyard);
        // There is no route back for its answers.
        network.endpoints[0].ip(&format!("route del default via {}", Family::V4.balancer(0))).unwrap();
        // Every second connection goes to it.
        for _ in 0..6 {
            drop(network.try_connect(to));
        }
        vips.steelyard.until("judged", |status| kinds(status).contains(&"vip_unanswered"));
        is_wrong(
            &vips.steelyard,
            &["endpoints of web do not answer: 31.31.31.1:80 (", "of 3 new flows in the last minute"],
        );
    });
}

#[test]
fn an_endpoint_of_a_vip_that_refuses_connections() {
    within("an_endpoint_of_a_vip_that_refuses_connections", Links::default(), |network| {
        let to = std::net::SocketAddr::new(Family::V4.vip(1), 80);
        // Nothing listens there, and no health check tests it.
        let vips = Vips::serve(&vip("web", to, "tcp", &format!("endpoints: ['{}:80']", Family::V4.endpoint(0))));
        for _ in 0..3 {
            assert!(network.try_connect(to).is_none());
        }
        is_wrong(
            &vips.steelyard,
            &["most connections of web were refused", "31.31.31.1:80 (3 new flows in the last minute)"],
        );
    });
}

#[test]
fn vips_that_an_earlier_process_left() {
    within("vips_that_an_earlier_process_left", Links::default(), |network| {
        let to = std::net::SocketAddr::new(Family::V4.vip(1), 80);
        let _origins = network.origins();
        let mut vips = Vips::serve(&vip("web", to, "tcp", &format!("endpoints: ['{}:80']", Family::V4.endpoint(0))));
        vips.steelyard.program.signal(Signal::KILL).unwrap();
        vips.steelyard.program.exit_within(PATIENCE).unwrap();
        let other = Steelyard::serve(&config(port(), "'127.0.0.1:9'"), 1);
        is_wrong(&other, &["vips of an earlier process still forward packets"]);
        assert_eq!(support::network::detach().exit, Exit::Code(0));
        is_good(&other);
    });
}

#[test]
fn an_endpoint_that_the_balancer_has_itself() {
    within("an_endpoint_that_the_balancer_has_itself", Links::default(), |network| {
        let to = std::net::SocketAddr::new(Family::V4.vip(1), 80);
        let _origins = network.origins();
        // With nat it gets the packets; with dsr nobody would.
        let endpoints = format!("endpoints: ['{}', '{}']", Family::V4.endpoint(0), Family::V4.balancer(1));
        let mut vips = Vips::serve(&vip("web", to, "tcp", &endpoints));
        assert_eq!(kinds(&vips.steelyard.status()), Vec::<String>::new());
        vips.reload(&vip("web", to, "tcp", &format!("mode: dsr, {endpoints}")));
        assert_eq!(kinds(&vips.steelyard.status()), ["vip_endpoint_here"]);
        let here = format!("or at a loopback address: {};", Family::V4.balancer(1));
        is_wrong(&vips.steelyard, &["endpoints of web are on this host", &here]);
    });
}
