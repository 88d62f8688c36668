//! The example files, served unchanged. Their ports are fixed, so each runs in its own network namespace.
#![forbid(unsafe_code)]

#[path = "support/grpc.rs"]
mod grpc_client;
#[path = "support/tls.rs"]
mod pki;
mod support;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use grpc_client::{Called, Caller, SAY_HELLO, STREAM, framed};
use lab::load::{HttpLoad, LoadReport, Target, Until, run_http};
use pki::{Pki, Tls};
use serde_json::Value;
use support::{Origin, Scratch, local, names, skip, status, steelyard};
use testkit::strict::ResponseTo;
use testkit::{Exit, Program, Signal};

/// Set in the process inside the namespace.
const INSIDE: &str = "STEELYARD_E2E_INSIDE";

/// The admin address of all examples.
const ADMIN: u16 = 9900;

/// A GET with these fields to the listener of an example, on a connection of its own.
fn ask(path: &str, fields: &str) -> testkit::strict::Response {
    let mut conn = testkit::client::connect("client", local(8080), None).unwrap();
    conn.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes()).unwrap();
    conn.response(ResponseTo::Other).unwrap()
}

/// Whether the process has its own network. If not, this runs the test called `name` in such a process, and returns false.
fn has_own_network(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    // As root only a network namespace; otherwise also a user namespace, if the host allows that.
    let is_root = rustix::process::geteuid().is_root();
    let own = if is_root { "-n" } else { "-rn" };
    let loopback = "ip link set lo up && exec \"$0\" \"$@\"";
    let possible = Program::run("unshare", Command::new("unshare").args([own, "sh", "-c", loopback, "true"]));
    match possible {
        Ok(finished) if finished.exit == Exit::Code(0) => {}
        Ok(finished) => {
            skip(name, &format!("no network namespace: {}", finished.stderr.replace('\n', "; ")));
            return false;
        }
        Err(failure) => {
            skip(name, &format!("no network namespace: {failure}"));
            return false;
        }
    }
    let mut command = Command::new("unshare");
    command.args([own, "sh", "-c", loopback]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").env("STEELYARD_BIN", steelyard().get_program());
    let mut inside = Program::spawn("in the namespace", &mut command).unwrap();
    let exit = inside.exit_within(testkit::PATIENCE * 6).unwrap();
    let finished = inside.finish().unwrap();
    assert_eq!(exit, Exit::Code(0), "{}\n{}", finished.stdout, finished.stderr);
    assert!(finished.stdout.contains("1 passed"), "{}", finished.stdout);
    false
}

fn example(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name).display().to_string()
}

/// `steelyard serve` with an unchanged example, ready.
fn serve(name: &str) -> Program {
    serve_file(&example(name))
}

fn serve_file(file: &str) -> Program {
    let mut balancer = Program::spawn("steelyard", steelyard().args(["serve", "-c", file])).unwrap();
    let ready = || support::get(local(ADMIN), "/readyz").filter(|response| response.status == 200);
    balancer.until("ready", ready).unwrap();
    balancer
}

fn load(path: &str, requests: u64) -> LoadReport {
    let target = Target::resolve(&format!("http://127.0.0.1:8080{path}")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(run_http(&HttpLoad::get(target, 8, Until::Requests(requests)))).unwrap();
    assert_eq!((report.failures(), report.answers), (0, requests), "{path}: {report}");
    report
}

#[test]
fn http() {
    if !has_own_network("http") {
        return;
    }
    let origins = [9001, 9002, 9003].map(|port| Origin::start_at(local(port), &port.to_string(), 18));
    let balancer = serve("http.yaml");
    // Weights 1, 1, 2, dealt by workers independently of each other: each is off by less than a round of its own.
    let report = load("/", 4_000);
    for (origin, expect) in [("9001", 1_000), ("9002", 1_000), ("9003", 2_000)] {
        let served = report.origins[origin];
        assert!(served.abs_diff(expect) < 50, "{origin} served {served} of 4000, expected {expect}");
    }
    for path in ["/api/", "/api/x?y", "/api"] {
        assert_eq!(load(path, 100).origins.keys().collect::<Vec<_>>(), ["9001"], "{path}");
    }
    assert!(load("/apix", 100).origins.len() > 1, "a prefix ends at a segment's end");

    // The health check takes out the endpoint that is gone, and no request is lost.
    let [_first, second, _third] = origins;
    drop(second);
    load("/", 4_000);
    let mut balancer = balancer;
    balancer
        .until("unhealthy", || status(local(ADMIN)).filter(|status| !takes_work(status, "127.0.0.1:9002")))
        .unwrap();
    assert!(!load("/", 1_000).origins.contains_key("9002"));
    end(balancer);
}

/// The default is true as long as no check has said otherwise.
fn takes_work(status: &Value, address: &str) -> bool {
    ["healthy", "unchecked"].contains(&state(status, address))
}

fn state<'s>(status: &'s Value, address: &str) -> &'s str {
    let clusters = status["clusters"].as_array().into_iter().flatten();
    let endpoints = clusters.flat_map(|cluster| cluster["endpoints"].as_array().into_iter().flatten());
    let mut states =
        endpoints.filter(|endpoint| endpoint["address"] == address).filter_map(|endpoint| endpoint["state"].as_str());
    states.next().unwrap_or_default()
}

#[test]
fn tcp() {
    if !has_own_network("tcp") {
        return;
    }
    let echo = |port: u16| {
        let address = local(port).to_string();
        let mut origin = Program::spawn("origin", steelyard().args(["origin", "tcp", "--listen", &address])).unwrap();
        origin.says("listening").unwrap();
        origin
    };
    let (first, second) = (echo(50013), echo(50014));
    let mut balancer = serve("tcp.yaml");
    assert_eq!(names(&status(local(ADMIN)).unwrap(), "listeners"), ["stream"]);
    exchange(local(50012), 10);
    let used = |status: &Value, index: usize| status["clusters"][0]["endpoints"][index]["requests"].as_u64();
    let status_now = status(local(ADMIN)).unwrap();
    assert!(used(&status_now, 0) > Some(0) && used(&status_now, 1) > Some(0), "{status_now}");

    drop(first);
    exchange(local(50012), 10);
    balancer
        .until("unhealthy", || status(local(ADMIN)).filter(|status| !takes_work(status, "127.0.0.1:50013")))
        .unwrap();
    exchange(local(50012), 10);
    end(balancer);
    drop(second);
}

#[test]
fn tls() {
    if !has_own_network("tls") {
        return;
    }
    // The file is unchanged, with certificates that are made for it.
    let scratch = Scratch::new();
    let (pki, clients) = (Pki::new(&scratch.path().join("tls")), Pki::new(&scratch.path().join("authority")));
    pki.issue("www", &["www.example.com", "admin.example.com"]);
    pki.issue("api", &["api.example.com"]);
    pki.issue("vault", &["vault.example.com"]);
    clients.issue("alice", &["alice"]);
    std::fs::copy(clients.path("ca.pem"), pki.path("clients.pem")).unwrap();
    let file = scratch.path().join("tls.yaml");
    std::fs::copy(example("tls.yaml"), &file).unwrap();
    let _web = Origin::start_at(local(9001), "web", 18);
    pki.origin_at(local(9444), "vault", None);
    let balancer = serve_file(&file.display().to_string());

    let check = |client, port: u16, name: &str, expect: &str| {
        let mut tls = Tls::connect(&client, local(port), name).unwrap();
        assert_eq!(tls.shown(), pki.certificate(expect), "{name}");
        assert_eq!(tls.get(name, "/").unwrap().0, 200, "{name}");
    };
    check(pki.client(None), 8443, "www.example.com", "www");
    check(pki.client(None), 8443, "api.example.com", "api");
    check(pki.client(Some((&clients, "alice"))), 8443, "admin.example.com", "www");
    check(pki.client(None), 9443, "vault.example.com", "vault");
    let anonymous = Tls::connect(&pki.client(None), local(8443), "admin.example.com");
    assert!(anonymous.and_then(|mut tls| tls.get("admin.example.com", "/")).is_err());
    end(balancer);
}

#[test]
fn auth() {
    if !has_own_network("auth") {
        return;
    }
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path().join("auth")).unwrap();
    scratch.write("auth/staff.htpasswd", "joe:$apr1$zxA9Rk1p$nUGypAyykq1cGimy5OFQd1\n");
    scratch.write("auth/partners.keys", "shop:kHq8Zl0nWv2rT5yB\n");
    let file = scratch.path().join("auth.yaml");
    std::fs::copy(example("auth.yaml"), &file).unwrap();
    let _web = Origin::start_at(local(9001), "web", 18);
    let balancer = serve_file(&file.display().to_string());
    let ask = |path: &str, field: &str| ask(path, field).status;
    let (joe, shop) = ("Authorization: Basic am9lOmxldG1laW4=\r\n", "X-Api-Key: kHq8Zl0nWv2rT5yB\r\n");
    assert_eq!([ask("/", ""), ask("/", shop), ask("/", joe)], [401, 401, 200]);
    assert_eq!([ask("/api", ""), ask("/api", joe), ask("/api", shop)], [401, 401, 200]);
    assert_eq!(ask("/health", ""), 200);
    end(balancer);
}

#[test]
fn jwt() {
    if !has_own_network("jwt") {
        return;
    }
    let _web = Origin::start_at(local(9001), "web", 18);
    let balancer = serve("jwt.yaml");
    let ask = |path: &str, field: &str| ask(path, field).status;
    // The provider cannot be reached, so no token can be verified. This one has a head, claims and some signature.
    let token = "Authorization: Bearer eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ.eyJzdWIiOiJqb2UifQ.c2lnbmF0dXJl\r\n";
    assert_eq!([ask("/", ""), ask("/admin", ""), ask("/health", "")], [401, 401, 200]);
    assert_eq!([ask("/", token), ask("/admin", token), ask("/api", token)], [503, 503, 503]);
    end(balancer);
}

#[test]
fn global_rate_limit() {
    if !has_own_network("global_rate_limit") {
        return;
    }
    let _web = Origin::start_at(local(9001), "web", 18);
    let balancer = serve("global-rate-limit.yaml");
    let ask = |path: &str, field: &str| ask(path, field).status;
    // There is no service, so what fails open passes, and what fails closed does not.
    let key = "X-Api-Key: 0f9a2c4be7d14b6a9c1d\r\nX-Client: other\r\n";
    assert_eq!([ask("/", ""), ask("/health", ""), ask("/export", ""), ask("/export", key)], [200, 200, 401, 503]);
    end(balancer);
}

#[test]
fn compression() {
    if !has_own_network("compression") {
        return;
    }
    let _web = Origin::start_at(local(9001), "web", 4096);
    let balancer = serve("compression.yaml");
    let ask = |path: &str, accept: &str| {
        let response = ask(path, &format!("Accept-Encoding: {accept}\r\n"));
        let coding =
            testkit::strict::values(&response.headers, "content-encoding").first().copied().map(<[u8]>::to_vec);
        (response.status, coding.map(|coding| String::from_utf8(coding).unwrap()).unwrap_or_default())
    };
    let check =
        |path: &str, accept: &str, expect: &str| assert_eq!(ask(path, accept), (200, expect.to_owned()), "{path}");
    check("/", "gzip", "gzip");
    check("/", "gzip, br, zstd", "zstd");
    check("/api", "br", "br");
    check("/", "identity", "");
    check("/login", "gzip", "");
    // What the origin answers is no stream of events.
    check("/events", "gzip", "");
    end(balancer);
}

#[test]
fn request_bodies() {
    if !has_own_network("request_bodies") {
        return;
    }
    let _web = Origin::start_at(local(9001), "web", 18);
    let balancer = serve("request-bodies.yaml");
    let ask = |path: &str, fields: &str, body: &[u8]| {
        let mut conn = testkit::client::connect("client", local(8080), None).unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: {}\r\n\r\n", body.len());
        conn.send(&[head.as_bytes(), body].concat()).unwrap();
        conn.response(ResponseTo::Other).unwrap().status
    };
    let (gzip, large) = ("Content-Encoding: gzip\r\n", [b'a'; 300_000]);
    // `hello`, compressed by gzip(1).
    let hello = b"\x1f\x8b\x08\0\0\0\0\0\x02\x03\xcbH\xcd\xc9\xc9\x07\0\x86\xa6\x106\x05\0\0\0";
    assert_eq!([ask("/", "", b"hello"), ask("/logs", gzip, hello), ask("/uploads", gzip, b"hello")], [200; 3]);
    assert_eq!([ask("/", "", &large), ask("/uploads", "", &large)], [413, 200]);
    assert_eq!([ask("/logs", gzip, b"hello"), ask("/logs", "Content-Encoding: br\r\n", b"hello")], [400, 415]);
    end(balancer);
}

#[test]
fn access_log() {
    if !has_own_network("access_log") {
        return;
    }
    let _origins = [9001, 9002].map(|port| Origin::start_at(local(port), &port.to_string(), 18));
    let balancer = serve("access-log.yaml");
    assert_eq!([ask("/healthz", "").status, ask("/a", "Host: b\r\nHost: c\r\n").status], [200, 400]);
    end(balancer);
}

#[test]
fn tracing() {
    if !has_own_network("tracing") {
        return;
    }
    let _origins = [9001, 9002].map(|port| Origin::start_at(local(port), &port.to_string(), 18));
    let balancer = serve("tracing.yaml");
    // There is no collector, and requests do not depend on it.
    let parent = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";
    assert_eq!([ask("/api", parent).status, ask("/api", "").status, ask("/", "").status], [200, 200, 404]);
    end(balancer);
}

#[test]
fn edge() {
    if !has_own_network("edge") {
        return;
    }
    let _web = [9001, 9002, 9003].map(|port| Origin::start_at(local(port), "web", 18));
    let balancer = serve("edge.yaml");
    let status = |path: &str, fields: &str| ask(path, fields).status;
    assert_eq!([status("/", ""), status("/robots.txt", "")], [200; 2]);
    assert_eq!([status("/office", ""), status("/checkout", ""), status("/blog/2024/x", "")], [403, 503, 308]);
    assert_eq!(status("/", "Via: 1.1 edge-1\r\n"), 508);
    end(balancer);
}

#[test]
fn external_authorization() {
    if !has_own_network("external_authorization") {
        return;
    }
    let _web = Origin::start_at(local(9001), "web", 18);
    let balancer = serve("external-authorization.yaml");
    let ask = |path: &str| ask(path, "").status;
    // Without an answer of a service, nothing passes.
    assert_eq!([ask("/"), ask("/api"), ask("/health")], [503, 503, 200]);
    let login = Origin::start_at(local(4180), "login", 18);
    assert_eq!([ask("/"), ask("/api"), ask("/oauth2/start")], [200, 503, 200]);
    assert_eq!(login.requests(), 2);
    end(balancer);
}

#[test]
fn canary() {
    if !has_own_network("canary") {
        return;
    }
    let origins = [9001, 9002, 9003].map(|port| Origin::start_at(local(port), &port.to_string(), 18));
    let mut balancer = serve("canary.yaml");
    // One connection means one worker, whose rounds of twenty are exact.
    let mut conn = testkit::client::connect("client", local(8080), None).unwrap();
    let mut ask = |host: &str, fields: &str| {
        conn.send(format!("GET /cart?id=1 HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n").as_bytes()).unwrap();
        let response = conn.response(ResponseTo::Other).unwrap();
        let field = |name: &str| {
            let values = testkit::strict::values(&response.headers, name);
            values.first().map(|value| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
        };
        (response.status, field("x-origin"), field("location"), field("set-cookie"))
    };

    let (code, origin, _, cookie) = ask("www.shop.example.com", "x-canary: always\r\n");
    assert_eq!((code, origin.as_str()), (200, "9003"));
    assert!(cookie.starts_with("shop=") && cookie.contains("Max-Age=3600"), "{cookie}");
    let (code, _, location, _) = ask("www.example.com", "");
    assert_eq!((code, location.as_str()), (308, "https://shop.example.com/cart?id=1"));

    let served: Vec<_> = (0..20).map(|_| ask("shop.example.com", "")).collect();
    assert!(served.iter().all(|(code, ..)| *code == 200), "{served:?}");
    assert_eq!(served.iter().filter(|(_, origin, ..)| origin == "9003").count(), 1, "{served:?}");
    // In addition, two of the twenty are mirrored.
    balancer.until("mirrored", || (origins[2].requests() == 4).then_some(())).unwrap();
    // A hundred a second, fifty at once: a client that asks as fast as it can reaches that limit.
    let limited = (0..100_000).any(|_| ask("shop.example.com", "").0 == 429);
    assert!(limited, "never limited");
    let status = status(local(ADMIN)).unwrap();
    assert_eq!(status["routes"][1]["cluster"], "v1 95, v2 5", "{status}");
    end(balancer);
}

#[test]
fn grpc() {
    if !has_own_network("grpc") {
        return;
    }
    // The file is unchanged, with a certificate that is made for it.
    let scratch = Scratch::new();
    let pki = Pki::new(&scratch.path().join("tls"));
    pki.issue("server", &["localhost"]);
    let file = scratch.path().join("grpc.yaml");
    std::fs::copy(example("grpc.yaml"), &file).unwrap();
    let origin = |port: u16| {
        let (address, name) = (local(port).to_string(), port.to_string());
        let arguments = ["origin", "grpc", "--listen", &address, "--name", &name];
        let mut origin = Program::spawn("origin", steelyard().args(arguments)).unwrap();
        origin.says("listening").unwrap();
        origin
    };
    let [first, second, third] = [50051, 50052, 50053].map(origin);
    let mut balancer = serve_file(&file.display().to_string());

    // The lab's origin knows a different service, and says so: each call has reached an origin and returned with its answer.
    let origins = |caller: &Caller, path: &str, calls: usize| {
        let called = caller.calls(calls, path, &[], &framed(b""));
        let by_endpoint = |call: &Called| call.grpc_message == "only strest.Responder is served here";
        assert!(called.iter().all(|call| call.grpc_status == Some(12) && by_endpoint(call)), "{called:?}");
        called.into_iter().map(|call| call.origin).collect::<BTreeSet<_>>()
    };
    let all = BTreeSet::from(["50051", "50052", "50053"].map(str::to_owned));
    let clear = Caller::connect(local(8080));
    let within_tls = Caller::connect_tls(&pki.client(None), local(8443), "localhost");
    assert_eq!(origins(&clear, STREAM, 30), all, "one connection, every endpoint");
    assert_eq!(origins(&clear, SAY_HELLO, 60), all);
    assert_eq!(origins(&within_tls, SAY_HELLO, 60), all);
    let other = clear.call("/other.Service/Get", &[], &framed(b""));
    assert_eq!((other.http_status, other.grpc_status, other.origin.as_str()), (200, Some(12), ""), "{other:?}");

    // The health check takes out the endpoint that is gone.
    drop(second);
    let is_out = |status: &Value| state(status, "127.0.0.1:50052") == "unhealthy";
    balancer.until("unhealthy", || status(local(ADMIN)).filter(is_out)).unwrap();
    assert!(!origins(&clear, SAY_HELLO, 60).contains("50052"));
    end(balancer);
    drop((first, third));
}

/// Connections one after the other, each of which gets its complete echo back.
fn exchange(address: SocketAddr, connections: usize) {
    for number in 0..connections {
        let mut conn = testkit::client::connect("client", address, None).unwrap();
        let text = format!("connection {number}");
        conn.send(text.as_bytes()).unwrap();
        conn.half_close().unwrap();
        conn.expect_bytes(text.as_bytes()).unwrap();
        conn.expect_end().unwrap();
    }
}

fn end(mut balancer: Program) {
    balancer.signal(Signal::TERM).unwrap();
    assert_eq!(balancer.exit_within(testkit::PATIENCE).unwrap(), Exit::Code(0), "{}", balancer.log());
}
