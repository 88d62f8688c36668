//! `steelyard load` and `steelyard top` from the view of their users: what they send, what they print, and with which exit code they end.
#![forbid(unsafe_code)]

mod support;
#[path = "support/terminal.rs"]
mod terminal;
#[path = "support/tls.rs"]
mod tls;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use serde_json::Value;
use support::{Origin, Scratch, Steelyard, local, port, run};
use terminal::Terminal;
use testkit::{Exit, Finished, Program, Signal};
use tls::Pki;

/// Steelyard in front of an origin: `https` with a certificate for `localhost`, with HTTP/2 and HTTP/1.1; and `http`.
struct Edge {
    balancer: Steelyard,
    https: SocketAddr,
    http: SocketAddr,
    pki: Pki,
    origin: Origin,
    scratch: Scratch,
}

impl Edge {
    fn start() -> Self {
        let scratch = Scratch::new();
        let pki = Pki::new(&scratch.path().join("tls"));
        pki.issue("www", &["localhost"]);
        let (https, http) = (local(port()), local(port()));
        let origin = Origin::start("o");
        let (cert, key) = (pki.path("www.pem"), pki.path("www.key"));
        let config = format!(
            "admin: {{admin}}
listeners:
  edge: {{bind: '{https}', protocol: https, tls: {{certificates: [{{cert: {}, key: {}}}]}}, to: web}}
  plain: {{bind: '{http}', protocol: http, to: web}}
clusters:
  web: {{endpoints: ['{}', '{}'], health_check: {{tcp: true, interval: 200ms}}}}
",
            cert.display(),
            key.display(),
            origin.address,
            local(port()),
        );
        let balancer = Steelyard::serve(&config, 1);
        Self { balancer, https, http, pki, origin, scratch }
    }

    fn url(&self) -> String {
        format!("https://localhost:{}/", self.https.port())
    }

    fn ca(&self) -> String {
        self.pki.path("ca.pem").display().to_string()
    }
}

#[track_caller]
fn report(finished: &Finished) -> Value {
    assert_eq!(finished.exit, Exit::Code(0), "{finished:?}");
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

#[track_caller]
fn fails(finished: &Finished, code: i32, says: &str) {
    assert_eq!(finished.exit, Exit::Code(code), "{finished:?}");
    assert!(finished.stderr.contains(says), "{says:?} is not in {finished:?}");
}

#[test]
fn a_load_over_https_speaks_what_the_server_chooses() {
    let edge = Edge::start();
    let (url, ca) = (edge.url(), edge.ca());
    let load = |words: &[&str]| {
        let before = edge.origin.requests();
        let report = report(&run(&[&["load", &url, "-n", "40", "-c", "2", "--json"], words].concat()));
        assert_eq!((&report["ok"], edge.origin.requests() - before), (&40.into(), 40), "{report}");
        report["protocol"].as_str().unwrap().to_owned()
    };
    assert_eq!(load(&["--cacert", &ca]), "http/2 over TLS");
    assert_eq!(load(&["--cacert", &ca, "-s", "4"]), "http/2 over TLS");
    assert_eq!(load(&["--insecure", "--http", "2"]), "http/2 over TLS");
    assert_eq!(load(&["-k", "--http", "1.1"]), "http/1.1 over TLS");
    assert_eq!(load(&["-k", "--close"]), "http/1.1, one connection per request over TLS");
}

/// The client says what was negotiated, so it must be what it was told to offer.
#[test]
fn a_load_over_https_reports_its_handshakes() {
    let edge = Edge::start();
    let url = edge.url();
    let load = |count: &str, words: &[&str]| {
        let report = report(&run(&[&["load", &url, "-k", "-n", count, "-c", "1", "--json"], words].concat()));
        report["handshakes"].as_object().unwrap().clone()
    };
    let one_suite = ["--ciphers", "tls_aes_128_gcm_sha256", "--groups", "x25519"];
    let name = |how: &str| format!("TLS 1.3, TLS_AES_128_GCM_SHA256, X25519, {how}");
    // A kept connection begins once; the one that found the server is not in the load, and the session of its handshake ended before a ticket was read.
    let kept = load("20", &[&one_suite[..], &["--http", "1.1"]].concat());
    assert_eq!(kept.values().filter_map(Value::as_u64).sum::<u64>(), 1, "{kept:?}");
    let full = load("20", &[&one_suite[..], &["--close", "--full-handshakes"]].concat());
    assert_eq!(full, [(name("full"), 20.into())].into_iter().collect());
    let resumed = load("20", &[&one_suite[..], &["--close"]].concat());
    assert!(resumed[&name("resumed")].as_u64().unwrap() >= 19, "{resumed:?}");
    let old = load("3", &["--ciphers", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "--http", "2"]);
    assert!(old.keys().all(|key| key.starts_with("TLS 1.2, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, ")), "{old:?}");
    let refused = run(&["load", &url, "-k", "--groups", "ffdhe2048"]);
    fails(&refused, 2, "must be one of ");
    fails(&run(&["load", &format!("http://{}/", edge.http), "--groups", "x25519"]), 1, "--groups is for https");
}

/// Accepts WebSockets and echoes their messages. Its threads end with the test.
fn websocket_echo() -> SocketAddr {
    let listener = TcpListener::bind(local(0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            std::thread::spawn(move || {
                let Ok(mut socket) = tungstenite::accept(stream) else { return };
                while let Ok(message) = socket.read() {
                    if (message.is_text() || message.is_binary()) && socket.send(message).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn a_load_of_websocket_messages_passes_the_proxy() {
    let scratch = Scratch::new();
    let pki = Pki::new(&scratch.path().join("tls"));
    pki.issue("www", &["localhost"]);
    let (https, http) = (local(port()), local(port()));
    let (cert, key) = (pki.path("www.pem"), pki.path("www.key"));
    let _balancer = Steelyard::serve(
        &format!(
            "admin: {{admin}}
listeners:
  edge: {{bind: '{https}', protocol: https, tls: {{certificates: [{{cert: {}, key: {}}}]}}, to: web}}
  plain: {{bind: '{http}', protocol: http, to: web}}
clusters:
  web: {{endpoints: ['{}']}}
",
            cert.display(),
            key.display(),
            websocket_echo(),
        ),
        1,
    );
    let load =
        |words: &[&str]| report(&run(&[&["load"], words, &["-n", "60", "-c", "3", "--echo", "--json"]].concat()));
    for (url, words, protocol) in [
        (format!("ws://{http}/chat"), &["--data", "hello"][..], "websocket"),
        (format!("ws://{http}/chat"), &["--size", "300kB", "--binary", "-r", "1000"], "websocket"),
        (format!("wss://localhost:{}/", https.port()), &["-k"], "websocket over TLS"),
    ] {
        let report = load(&[&[url.as_str()], words].concat());
        let found = (&report["ok"], &report["messages"], report["protocol"].as_str());
        assert_eq!(found, (&60.into(), &60.into(), Some(protocol)), "{report}");
    }
    let origin = Origin::start("o");
    let refused = run(&["load", &format!("ws://{}/", origin.address), "-n", "1"]);
    fails(&refused, 1, "the server answers the upgrade with status 200 instead of 101");
}

#[test]
fn a_load_verifies_certificates_and_says_what_is_wrong() {
    let edge = Edge::start();
    let (url, ca) = (edge.url(), edge.ca());
    let place = format!("localhost:{} ({})", edge.https.port(), edge.https);
    let refused = run(&["load", &url, "-n", "4"]);
    fails(&refused, 1, &format!("the certificate of {place} is not signed by an authority that this host trusts"));
    assert!(refused.stderr.contains("--cacert FILE") && refused.stderr.contains("--insecure"), "{refused:?}");
    let address = format!("https://{}/", edge.https);
    fails(&run(&["load", &address, "-n", "4", "--cacert", &ca]), 1, "is not valid for the name 127.0.0.1");
    let plain = format!("https://{}/", edge.http);
    let refused = run(&["load", &plain, "-n", "4", "-k"]);
    // On a host that stalls, the reset that ends the connection may overtake the plain response.
    let says = ["does not answer with TLS: use http://", "does it serve https on this port?"];
    assert_eq!(refused.exit, Exit::Code(1), "{refused:?}");
    assert!(says.iter().any(|says| refused.stderr.contains(says)), "{refused:?}");
    fails(&run(&["load", &url, "--cacert", "/nonexistent"]), 1, "/nonexistent: ");
    let empty = edge.scratch.write("empty.pem", "");
    fails(&run(&["load", &url, "--cacert", &empty]), 1, "contains no certificate");
    assert_eq!(edge.origin.requests(), 0);
}

#[test]
fn grpc_calls_go_over_tls() {
    let scratch = Scratch::new();
    let pki = Pki::new(&scratch.path().join("tls"));
    pki.issue("www", &["localhost"]);
    let (listen, old, service) = (local(port()), local(port()), local(port()));
    let words = ["origin", "grpc", "--listen", &service.to_string()];
    let _origin = Program::spawn("origin", support::steelyard().args(words)).unwrap();
    let (cert, key) = (pki.path("www.pem"), pki.path("www.key"));
    let config = format!(
        "admin: {{admin}}
listeners:
  edge: {{bind: '{listen}', protocol: https, tls: {{certificates: [{{cert: {}, key: {}}}]}}, to: calls}}
clusters:
  calls: {{protocol: h2c, endpoints: ['{service}'], health_check: {{tcp: true, interval: 200ms}}}}
",
        cert.display(),
        key.display(),
    );
    let mut balancer = Steelyard::serve(&config, 1);
    balancer.until("the service answers", |status| status["clusters"][0]["endpoints"][0]["state"] == "healthy");
    let (url, ca) = (format!("https://localhost:{}/", listen.port()), pki.path("ca.pem").display().to_string());
    let calls = report(&run(&["load", "grpc", &url, "-n", "40", "-c", "2", "-s", "4", "--cacert", &ca, "--json"]));
    assert_eq!((&calls["protocol"], &calls["ok"]), (&"grpc over TLS".into(), &40.into()), "{calls}");
    assert_eq!(calls["statuses"]["0"], 40, "{calls}");

    fails(&run(&["load", "grpc", &url, "-n", "4"]), 1, "is not signed by an authority that this host trusts");
    // A server that has HTTP/1.1 alone.
    let mut openssl = Command::new("openssl");
    openssl.args(["s_server", "-quiet", "-alpn", "http/1.1", "-accept", &old.port().to_string()]);
    openssl.arg("-cert").arg(&cert).arg("-key").arg(&key);
    let _old = Program::spawn("openssl", &mut openssl).unwrap();
    testkit::until(testkit::PATIENCE, || TcpStream::connect(old).ok()).expect("openssl listens");
    let old = format!("https://localhost:{}/", old.port());
    fails(&run(&["load", "grpc", &old, "-n", "4", "-k"]), 1, "does not speak HTTP/2 over TLS, which gRPC needs");
    let nobody = local(port());
    let refused = format!("cannot connect to {nobody}: nothing listens there (connection refused)");
    fails(&run(&["load", "grpc", &nobody.to_string(), "-n", "4"]), 1, &refused);
}

#[test]
fn grpc_calls_send_json_that_a_file_describes() {
    let scratch = Scratch::new();
    let (listen, service) = (local(port()), local(port()));
    let words = ["origin", "grpc", "--listen", &service.to_string()];
    let _origin = Program::spawn("origin", support::steelyard().args(words)).unwrap();
    let mut balancer = Steelyard::serve(
        &format!(
            "admin: {{admin}}
listeners: {{edge: {{bind: '{listen}', protocol: http, to: calls}}}}
clusters: {{calls: {{protocol: h2c, endpoints: ['{service}'], health_check: {{tcp: true, interval: 200ms}}}}}}
"
        ),
        1,
    );
    balancer.until("the service answers", |status| status["clusters"][0]["endpoints"][0]["state"] == "healthy");
    let proto = scratch.write(
        "strest.proto",
        "syntax = \"proto3\";
package strest;
service Responder {
  rpc Get(Spec) returns (Reply);
  rpc StreamingGet(Specs) returns (stream Reply);
}
message Spec { int32 length = 1; int64 latency = 2; float error_rate = 3; }
message Specs { int32 count = 1; }
message Reply { string body = 1; }
",
    );
    let file = scratch.write("calls.json", "{\"length\": 100000}\n{\"errorRate\": 1}\n");
    let call = |method: &str, data: &str, more: &[&str]| {
        let url = format!("{listen}/{method}");
        run(&[&["load", "grpc", &url, "-n", "20", "--json", "--data", data], more].concat())
    };
    let described = ["--proto", proto.as_str()];
    let calls = report(&call("strest.Responder/Get", &format!("@{file}"), &described));
    assert_eq!((&calls["ok"], &calls["statuses"]["2"]), (&10.into(), &10.into()), "{calls}");
    assert!(calls["received_bytes"].as_u64().unwrap() > 1_000_000, "{calls}");
    let calls = report(&call("strest.Responder/StreamingGet", "{\"count\": 3}", &described));
    assert_eq!((&calls["ok"], &calls["messages"]), (&20.into(), &60.into()), "{calls}");

    let why = "--data: unrecognized field name 'size' at line 1 column 7; strest.Spec has length (int32), ";
    fails(&call("strest.Responder/Get", "{\"size\": 1}", &described), 1, why);
    let why = "strest.Responder has no method Put; it has Get, StreamingGet";
    fails(&call("strest.Responder/Put", "{}", &described), 1, why);
    let why = "does not describe its methods (server reflection): use --proto FILE";
    fails(&call("strest.Responder/Get", "{}", &[]), 1, why);
    fails(&call("strest.Responder/Get", "{}", &["--length", "5"]), 2, "cannot be used with");
    // What the description promises is checked.
    let wrong = scratch.write(
        "wrong.proto",
        "syntax = \"proto3\"; package strest;
service Responder { rpc StreamingGet(A) returns (A); } message A { int32 count = 1; }",
    );
    let finished = call("strest.Responder/StreamingGet", "{\"count\": 3}", &["--proto", &wrong]);
    assert_eq!(finished.exit, Exit::Code(1), "{finished:?}");
    assert!(finished.stdout.contains("a response with 3 messages, although the method returns one"), "{finished:?}");
}

/// The generators run on this host, so `env` takes the place of ssh.
#[test]
fn several_generators_put_on_one_load() {
    let edge = Edge::start();
    let program = support::steelyard().get_program().to_str().unwrap().to_owned();
    let load = |words: &[&str], program: &str| {
        let generators = ["--generators", "one,two", "--rsh", "env HOST={}", "--remote-program", program];
        run(&[&["load"], words, &generators].concat())
    };
    edge.scratch.write("order.json", "{\"item\": 7}");
    let order = edge.scratch.path().join("order.json").display().to_string();
    let mix = edge.scratch.write("mix.txt", &format!("1 POST /echo @{order}\n"));
    let (url, ca) = (edge.url(), edge.ca());
    let words = ["http", &url, "--cacert", &ca, "--mix", &mix, "-n", "41", "-c", "3", "--json", "--max-errors", "0"];
    let whole = report(&load(&words, &program));
    assert_eq!((&whole["ok"], edge.origin.requests()), (&41.into(), 41), "{whole}");
    assert_eq!((&whole["connections"], &whole["threads"]), (&3.into(), &2.into()), "{whole}");
    assert_eq!(whole["service"]["count"], 41, "{whole}");
    let [one, two] = [0, 1].map(|index| &whole["generators"][index]);
    assert_eq!(
        (&one["host"], &one["ok"], &two["host"], &two["ok"]),
        (&"one".into(), &21.into(), &"two".into(), &20.into())
    );
    assert_eq!((&whole["protocol"], &whole["thresholds"][0]["met"]), (&"http/2 over TLS".into(), &true.into()));

    // The first that fails ends the load, and is named.
    let nobody = local(port()).to_string();
    let refused = load(&["http", &nobody, "-n", "4", "-c", "2"], &program);
    fails(&refused, 1, &format!("cannot connect to {nobody}: nothing listens there (connection refused)"));
    assert!(refused.stderr.contains("generator one: ") || refused.stderr.contains("generator two: "), "{refused:?}");
    fails(
        &load(&["http", &url, "-c", "2"], "/nonexistent/steelyard"),
        1,
        "(--remote-program says where Steelyard is there)",
    );
    fails(
        &load(&["http", &url, "-c", "1"], &program),
        1,
        "2 generators cannot share 1 connections: use at least 2 (-c)",
    );
    fails(&load(&["http", &url, "--data", "@/nonexistent"], &program), 1, "cannot read @/nonexistent");
    // A generator needs the one that drives it.
    let alone = run(&["load", "generator"]);
    assert_eq!(alone.exit, Exit::Code(1), "{alone:?}");
    assert!(alone.stdout.contains("this is a part of `steelyard load --generators`"), "{alone:?}");
}

#[test]
fn a_load_sends_the_body_that_it_is_given() {
    let edge = Edge::start();
    let file = edge.scratch.write("order.json", &"[1, 2, 3]".repeat(20_000));
    let (https, http) = (format!("{}echo", edge.url()), format!("{}/echo", edge.http));
    for (url, data, bytes) in [
        (&https, "a=b".to_owned(), 3),
        (&https, format!("@{file}"), 180_000),
        (&http, "a=b".to_owned(), 3),
        (&http, format!("@{file}"), 180_000),
    ] {
        let secure: &[&str] = if url.starts_with("https") { &["-k"] } else { &[] };
        let words = ["load", url, "-n", "6", "-c", "2", "--json", "--same-length", "--data", &data];
        let report = report(&run(&[&words, secure].concat()));
        // The origin sends each body back.
        assert_eq!(report["ok"], 6, "{url} {report}");
        let [sent, received] = ["sent_bytes", "received_bytes"].map(|name| report[name].as_u64().unwrap());
        assert!(sent >= 6 * bytes && received >= 6 * bytes, "{url} {report}");
    }
}

#[test]
fn thresholds_set_the_exit_code() {
    let edge = Edge::start();
    let url = format!("http://{}/", edge.http);
    let load = |words: &[&str]| run(&[&["load", &url, "-n", "20", "-c", "2"], words].concat());
    let good = load(&["--max-p99", "1h", "--max-errors", "0"]);
    assert_eq!(good.exit, Exit::Code(0), "{good:?}");
    assert!(good.stdout.contains("threshold   errors 0, at most 0: ok"), "{good:?}");
    let missed = load(&["--max-p50", "1us", "--max-errors", "50%"]);
    assert_eq!(missed.exit, Exit::Code(99), "{missed:?}");
    assert!(missed.stdout.contains(", at most 1 µs: MISSED"), "{missed:?}");
    assert!(missed.stdout.contains("threshold   errors 0 %, at most 50 %: ok"), "{missed:?}");
}

#[test]
fn top_tells_rates_by_listener_route_and_endpoint() {
    let mut edge = Edge::start();
    edge.balancer
        .until("the dead endpoint is found", |status| status["clusters"][0]["endpoints"][1]["state"] == "unhealthy");
    let url = format!("http://{}/", edge.http);
    let words = ["load", &url, "-d", "1h", "-r", "200", "-c", "4"];
    let load = Program::spawn("load", support::steelyard().args(words)).unwrap();
    // Neither table has a line of traffic before the load has begun.
    let text = testkit::until(testkit::PATIENCE, || {
        let finished = edge.balancer.ask(&["top", "--once", "-i", "200ms"]);
        assert_eq!(finished.exit, Exit::Code(0), "{finished:?}");
        (!finished.stdout.contains(" 0 requests/s") && finished.stdout.contains("ROUTE")).then_some(finished.stdout)
    })
    .expect("rates");
    let line = |begins: &str| text.lines().find(|line| line.starts_with(begins)).map(str::to_owned);
    for head in ["LISTENER ", "ROUTE ", "ENDPOINT "] {
        assert!(line(head).is_some(), "{text}");
    }
    let endpoint = line(&edge.origin.address.to_string()).expect("the endpoint");
    assert!(endpoint.contains(" healthy ") && endpoint.contains("s / "), "{text}");
    assert!(text.contains(" unhealthy ") && !text.contains('\x1b'), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");

    let rates = edge.balancer.ask(&["top", "--json", "-n", "2", "-i", "200ms", "--sort", "errors"]);
    assert_eq!(rates.exit, Exit::Code(0), "{rates:?}");
    let rates: Vec<Value> = rates.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [rates, _] = rates.as_slice() else { panic!("{rates:?}") };
    assert_eq!((&rates["version"], &rates["generation"]), (&1.into(), &1.into()));
    assert!(rates["interval_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{rates}");
    assert!(rates["routes"][0]["added_us"]["p99"].is_number(), "{rates}");
    assert!(rates["endpoints"][0]["upstream_us"]["p50"].is_number(), "{rates}");

    // An interrupted load prints its results so far.
    load.signal(Signal::INT).unwrap();
    let interrupted = load.finish().unwrap();
    assert_eq!(interrupted.exit, Exit::Code(0), "{interrupted:?}");
    assert!(interrupted.stdout.contains("/s, interrupted\n"), "{interrupted:?}");
    // Standard error is not a terminal, so no line is redrawn.
    assert_eq!(interrupted.stderr, "");

    // When the process that it asks goes away, it says so and ends.
    let admin = edge.balancer.admin.to_string();
    let mut top = Program::spawn("top", support::steelyard().args(["top", "--admin", &admin])).unwrap();
    edge.balancer.program.signal(Signal::KILL).unwrap();
    assert_eq!(top.exit_within(testkit::PATIENCE).unwrap(), Exit::Code(1), "{}", top.log());
}

#[test]
fn top_on_a_terminal_follows_its_size_and_leaves_it_as_it_was() {
    let edge = Edge::start();
    let mut terminal = Terminal::open(80, 24);
    let modes = format!("{:?}", terminal.modes());
    let admin = edge.balancer.admin.to_string();
    // No refresh within the test: whatever is drawn again is drawn for another reason.
    let mut command = support::steelyard();
    let mut top = terminal.run("top", command.args(["top", "-i", "1h", "--admin", &admin]).env("TERM", "xterm"));
    // Shown when the keys and the signals are listened to.
    let begun = terminal.shows("q quit").to_owned();
    assert!(begun.contains("\x1b[?1049h") && begun.contains("Waiting for the first interval"), "{begun:?}");
    assert_ne!(format!("{:?}", terminal.modes()), modes);

    for (columns, lines) in [(40, 10), (132, 50), (10, 3), (1, 1), (80, 24)] {
        terminal.resize(columns, lines);
        top.signal(Signal::WINCH).unwrap();
        let frame = terminal.frame(&format!("{columns}x{lines}"), |frame| frame.len() == usize::from(lines));
        let status = frame.last().unwrap();
        assert!(status.chars().count() <= usize::from(columns), "{frame:?}");
        assert_eq!(status.contains("q quit"), columns >= 80, "{frame:?}");
    }
    terminal.press("?");
    terminal.frame("the help", |frame| frame.len() == 24 && frame[0].starts_with("Sort by"));
    terminal.press("?");
    terminal.frame("what it showed before", |frame| frame[0].starts_with("Waiting"));
    terminal.press("q");
    terminal.shows("\x1b[?1049l");
    assert_eq!(top.exit_within(testkit::PATIENCE).unwrap(), Exit::Code(0), "{}", top.log());
    assert_eq!(format!("{:?}", terminal.modes()), modes);
}
