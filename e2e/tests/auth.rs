//! Authentication with clients that are not ours: curl over HTTP/1.1 and HTTP/2, and calls of gRPC. What must not appear in a log, files of
//! users that change, and clients that try many passwords or tokens. `scripts/auth` tests the messages.
#![forbid(unsafe_code)]

#[path = "support/grpc.rs"]
mod grpc;
mod support;

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;

use grpc::{Caller, Greeter, SAY_HELLO, framed};
use support::{Origin, Scratch, Steelyard, local, port, run};
use testkit::strict::ResponseTo;
use testkit::{Exit, PATIENCE, client, until};

/// `letmein` with a cost of 5, and with one of 12, which takes a quarter of a second and more.
const QUICK: &str = "$2y$05$abcdefghijklmnopqrstuuKwWV7ESJpzKzf9FQg57dBvMuv92X9HS";
const SHA: &str = "{SHA}t6h1/B6iKLkGEEG3zsS9PFKrPOM=";

/// What curl gets: the status and the body.
fn curl(words: &[&str]) -> (String, String) {
    let mut command = Command::new("curl");
    command.args(["-s", "-w", "\n%{http_version} %{http_code}"]).args(words);
    let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let (body, status) = output.rsplit_once('\n').unwrap();
    (status.to_owned(), body.to_owned())
}

#[test]
fn curl_passes_with_a_password_and_no_log_has_it() {
    let (web, origin) = (port(), Origin::start("web"));
    let scratch = Scratch::new();
    let users = scratch.write("users", &format!("# staff\njoe:{QUICK}\n"));
    let log = scratch.path().join("log");
    let mut balancer = Steelyard::serve(
        &format!(
            "admin: {{admin}}
access_log: {}
listeners:
  web:
    bind: 127.0.0.1:{web}
    protocol: http
    auth: {{basic: {{file: {users}}}}}
    routes:
      - {{path: /key, to: web, auth: {{api_key: {{query: key, cookie: key, keys: {{shop: s3cr3t-k3y}}}}}}}}
      - {{to: web}}
clusters:
  web: {{endpoints: ['{}']}}
",
            log.display(),
            origin.address
        ),
        1,
    );
    let url = format!("http://127.0.0.1:{web}/");
    for (version, flag) in [("1.1", "--http1.1"), ("2", "--http2-prior-knowledge")] {
        let ask = |words: &[&str]| curl(&[&[flag][..], words].concat()).0;
        assert_eq!(ask(&[&url]), format!("{version} 401"));
        assert_eq!(ask(&["-u", "joe:letmein", &url]), format!("{version} 200"));
        assert_eq!(ask(&["-u", "joe:h4ckm3", &url]), format!("{version} 401"));
        assert_eq!(ask(&["-u", "eve:letmein", &url]), format!("{version} 401"));
        let key = format!("{url}key?key=s3cr3t-k3y&a=1");
        assert_eq!(ask(&[&key]), format!("{version} 200"));
        assert_eq!(ask(&["-b", "key=s3cr3t-k3y", &format!("{url}key")]), format!("{version} 200"));
        assert_eq!(ask(&[&format!("{url}key?key=wr0ng-k3y")]), format!("{version} 401"));
    }
    // One check for the right password; the wrong ones are not remembered.
    let checks = |result| balancer.metric("steelyard_password_checks_total", &[("result", result)]);
    assert_eq!((checks("right"), checks("wrong"), checks("refused")), (1.0, 4.0, 0.0));

    let logged = until(PATIENCE, || std::fs::read_to_string(&log).ok().filter(|text| text.lines().count() == 14));
    let status = balancer.status();
    let all = format!("{} {status}", logged.unwrap());
    assert!(all.contains("/key?a=1"), "{all}");
    for secret in ["letmein", "h4ckm3", "bGV0bWVpb", "k3y", QUICK] {
        assert!(!all.contains(secret), "{secret}: {all}");
    }
    assert_eq!(status["password_checks"]["right"], 1);
    let kinds: Vec<_> = status["routes"].as_array().unwrap().iter().map(|route| route["auth"].clone()).collect();
    assert_eq!(kinds, ["api_key", "basic"]);

    // Another password for the same user.
    scratch.write("users", "joe:$apr1$zxA9Rk1p$smQR8PBBal.4A/a/5wEaS1\n");
    let generation = balancer.generation();
    balancer.until("the new file", |status| status["generation"].as_u64() > Some(generation));
    assert_eq!(curl(&["-u", "joe:letmein", &url]).0, "1.1 401");
    assert_eq!(curl(&["-u", "joe:a much longer password than sixteen bytes", &url]).0, "1.1 200");
}

#[test]
fn no_log_has_the_key_of_a_request_that_is_answered_before_its_key_counts() {
    let (web, origin) = (port(), Origin::start("web"));
    let scratch = Scratch::new();
    let log = scratch.path().join("log");
    let _balancer = Steelyard::serve(
        &format!(
            "admin: {{admin}}
access_log: {}
listeners:
  web:
    bind: 127.0.0.1:{web}
    protocol: http
    auth: {{api_key: {{query: key, keys: {{shop: s3cr3t-k3y}}}}}}
    routes:
      - {{path: /limited, rate_limit: {{requests: 1, per: 1h}}, to: web}}
      - {{path: /maintenance, maintenance: true, to: web}}
      - {{path: /denied, deny: 127.0.0.0/8, to: web}}
      - {{path: /cors, cors: {{origins: 'https://www.foo.com'}}, to: web}}
clusters:
  web: {{endpoints: ['{}']}}
",
            log.display(),
            origin.address
        ),
        1,
    );
    let ask = |path: &str, words: &[&str]| {
        let url = format!("http://127.0.0.1:{web}{path}?a=1&key=s3cr3t-k3y");
        curl(&[words, &[&url]].concat()).0
    };
    assert_eq!(ask("/limited", &[]), "1.1 200");
    assert_eq!(ask("/limited", &[]), "1.1 429");
    assert_eq!(ask("/maintenance", &[]), "1.1 503");
    assert_eq!(ask("/denied", &[]), "1.1 403");
    assert_eq!(ask("/none", &[]), "1.1 404");
    let preflight = ["-X", "OPTIONS", "-H", "Origin: https://www.foo.com", "-H", "Access-Control-Request-Method: GET"];
    assert_eq!(ask("/cors", &preflight), "1.1 204");
    let logged = until(PATIENCE, || std::fs::read_to_string(&log).ok().filter(|text| text.lines().count() == 6));
    let logged = logged.unwrap();
    assert_eq!(logged.matches("?a=1 HTTP").count(), 6, "{logged}");
    assert!(!logged.contains("k3y"), "{logged}");
}

#[test]
fn a_wrong_file_is_refused_without_its_secrets() {
    let scratch = Scratch::new();
    scratch.write("users", &format!("joe:{SHA}\njoe:{SHA}\nann:hunter2\nhunter2\n"));
    let file = scratch.write(
        "edge.yaml",
        "listeners:
  web: {bind: 127.0.0.1:1, protocol: http, to: web, auth: {basic: {file: users}}}
clusters:
  web: {endpoints: [127.0.0.1:2]}
",
    );
    let checked = run(&["check", "-c", &file]);
    assert_eq!(checked.exit, Exit::Code(64));
    for part in
        ["users:2: the same name as in line 1", "users:3: the hash must be bcrypt", "users:4: the line has no `:`"]
    {
        assert!(checked.stderr.contains(part), "{}", checked.stderr);
    }
    assert!(!checked.stderr.contains("hunter2") && checked.stderr.contains("edge.yaml:2:"), "{}", checked.stderr);
}

#[test]
fn calls_without_a_key_are_unauthenticated() {
    let (web, greeter) = (port(), Greeter::start("one"));
    let balancer = Steelyard::serve(
        &format!(
            "admin: {{admin}}
listeners:
  web:
    bind: 127.0.0.1:{web}
    protocol: http
    auth: {{api_key: {{header: x-api-key, keys: {{shop: k-1}}}}}}
    routes: [{{grpc: helloworld.Greeter, to: greeter}}]
clusters:
  greeter: {{endpoints: ['{}'], protocol: h2c}}
",
            greeter.address
        ),
        1,
    );
    let caller = Caller::connect(local(web));
    let call = |fields: &[(&str, &str)]| caller.call(SAY_HELLO, fields, &framed(b"x"));
    assert_eq!(call(&[]).grpc_status, Some(16));
    assert_eq!(call(&[("x-api-key", "k-2")]).grpc_status, Some(16));
    assert_eq!(call(&[("x-api-key", "k-1")]).grpc_status, Some(0));
    let refused = |reason| balancer.metric("steelyard_refused_total", &[("reason", reason)]);
    assert_eq!((refused("credentials_missing"), refused("credentials_invalid")), (1.0, 1.0));
}

#[test]
fn who_tries_many_passwords_stops_nobody_else() {
    let (web, origin) = (port(), Origin::start("web"));
    // With this cost, one check takes a third of a second and more in a debug build. A higher one outlasts the wait of a check on a busy host.
    let slow = "$2y$10$abcdefghijklmnopqrstuuKwWV7ESJpzKzf9FQg57dBvMuv92X9HS";
    let balancer = Steelyard::serve(
        &format!(
            "admin: {{admin}}
listeners:
  web:
    bind: 127.0.0.1:{web}
    protocol: http
    trusted_proxies: [127.0.0.1]
    auth: {{basic: {{users: {{joe: '{QUICK}', ann: '{slow}'}}}}}}
    to: web
clusters:
  web: {{endpoints: ['{}']}}
",
            origin.address
        ),
        1,
    );
    let request = |from: &str, login: &str| {
        format!("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {from}\r\nAuthorization: Basic {login}\r\n\r\n")
    };
    let ask = |from: &str, login: &str| {
        let mut conn = client::connect("client", local(web), None).unwrap();
        conn.send(request(from, login).as_bytes()).unwrap();
        conn.response(ResponseTo::Other).unwrap().status
    };
    // `joe:letmein`.
    let joe = "am9lOmxldG1laW4=";
    assert_eq!(ask("192.0.2.1", joe), 200);
    // `ann:x@` to `ann:xu`, from one client, and each attempt waits. The last letter of the base 64 is the last letter of the password.
    let mut attempts = Vec::new();
    let mut attempt = |last: char| {
        let mut attempt = TcpStream::connect(local(web)).unwrap();
        attempt.write_all(request("192.0.2.66", &format!("YW5uOnh{last}")).as_bytes()).unwrap();
        attempts.push(attempt);
    };
    ('A'..='Z').chain('a'..='z').chain('0'..='7').for_each(&mut attempt);
    // The same password again, as often as it waits, needs no room.
    let refused = || balancer.metric("steelyard_password_checks_total", &[("result", "refused")]);
    until(PATIENCE, || (refused() >= 20.0).then_some(())).expect("its share of the queue is bounded");
    let before = refused();
    (0..60).for_each(|_| attempt('Z'));
    // Known users need no check, and others have their turn before the rest of the attempts.
    assert_eq!(ask("192.0.2.1", joe), 200);
    assert_eq!(ask("192.0.2.2", "am9lOnhjZA=="), 401);
    assert!(balancer.metric("steelyard_password_checks_waiting", &[]) > 5.0);
    assert!(refused() == before, "they share a check");
}

/// Tokens of `joe` and of `ann`, signed by the key of RFC 8037 appendix A.
const JOE: &str = "eyJhbGciOiJFZERTQSIsImtpZCI6ImEifQ.eyJpc3MiOiJsb2dpbiIsImF1ZCI6InNob3AiLCJzdWIiOiJqb2UifQ.\
    OmNJ0VtDieDQU1uZcvIdARqy5kHz1OOdIZ6jmjqdRtzKGHRQyOaEjcSxJpzsvWUL1TIP5mk9tHdNJcV2eaGJDg";
const ANN: &str = "eyJhbGciOiJFZERTQSIsImtpZCI6ImEifQ.eyJpc3MiOiJsb2dpbiIsImF1ZCI6InNob3AiLCJzdWIiOiJhbm4ifQ.\
    aWi_YyUQ57gidIYpW-oLKJFOg4r60h4pl5LKz7sgi9cFkerRCFOZp9HeuDqLOBU4skQ4lhXg69GJSCFcuDymCw";

/// That key, and one for ES512, whose signatures cost most.
const KEYS: &str = r#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
    {"kty": "EC", "crv": "P-521", "kid": "b",
     "x": "AWMBSq7GPMkyzoASYXXR7mq5gITeApXIk-pY4OqTeN1001RfHJ_vEuVmmZeSZTjL2Yb8hhTABeRuaOCaocNX8i6-",
     "y": "Aa3CY5-ndgzKn6XK1TSQ3a8XmZBcPD0WeF3Ap6muGC0Lt24_U3Kg_RRcZk9S378cv3sskmZLoFVnkLg08cTwGpzI"}]}"#;

#[test]
fn who_makes_tokens_up_stops_nobody_else() {
    let (web, origin) = (port(), Origin::start("web"));
    let scratch = Scratch::new();
    let keys = scratch.write("keys.json", KEYS);
    let balancer = Steelyard::serve(
        &format!(
            "admin: {{admin}}
listeners:
  web:
    bind: 127.0.0.1:{web}
    protocol: http
    trusted_proxies: [127.0.0.1]
    auth: {{jwt: {{issuer: login, audience: shop, require_exp: false, jwks: {{file: {keys}}}}}}}
    to: web
clusters:
  web: {{endpoints: ['{}']}}
",
            origin.address
        ),
        1,
    );
    let ask = |from: &str, token: &str| {
        let mut conn = client::connect("client", local(web), None).unwrap();
        let fields = format!("X-Forwarded-For: {from}\r\nAuthorization: Bearer {token}\r\n");
        conn.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes()).unwrap();
        let response = conn.response(ResponseTo::Other).unwrap();
        let retry_after = testkit::strict::values(&response.headers, "retry-after").len();
        (response.status, retry_after)
    };
    let wrong = |number: usize| {
        let signed = "eyJhbGciOiJFUzUxMiIsImtpZCI6ImIifQ.eyJpc3MiOiJsb2dpbiIsImF1ZCI6InNob3AiLCJzdWIiOiJqb2UifQ";
        format!("{signed}.{:A<172}{number:04}", "AQ")
    };
    let (attacker, other) = ("192.0.2.66", "192.0.2.1");
    assert_eq!(ask(other, JOE), (200, 0));
    let last = (0..2000).find(|number| match ask(attacker, &wrong(*number)) {
        (401, 0) => false,
        refused => {
            assert_eq!(refused, (429, 1), "token {number}");
            true
        }
    });
    assert!(last.is_some_and(|last| last > 10), "{last:?}");
    // What is known has its answer, also for this client.
    assert_eq!((ask(attacker, JOE), ask(attacker, &wrong(0))), ((200, 0), (401, 0)));
    // Another client shares the place of this one with a chance of 1 in 1,024.
    let passes = |number: u8| ask(&format!("192.0.2.{number}"), ANN) == (200, 0);
    assert!((2..6).any(passes), "others are refused, too");
    assert!(balancer.metric("steelyard_refused_total", &[("reason", "token_attempts")]) >= 1.0);
    assert_eq!(balancer.metric("steelyard_refused_total", &[("reason", "tokens_busy")]), 0.0);
}
