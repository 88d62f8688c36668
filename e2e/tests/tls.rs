//! TLS on both sides of the whole binary: which certificate is shown, which clients must show one, what is passed on, and that keys change
//! without loss.
#![forbid(unsafe_code)]

mod support;
#[path = "support/tls.rs"]
mod tls;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use support::{Origin, Scratch, Steelyard, local, port, run};
use testkit::{Exit, Signal};
use tls::{Pki, Tls};

/// A listener with three certificates, one of which requires a client certificate, in front of one origin.
struct Edge {
    balancer: Steelyard,
    address: SocketAddr,
    pki: Pki,
    clients: Pki,
    origin: Origin,
    _scratch: Scratch,
}

impl Edge {
    fn start(more: &str) -> Self {
        let scratch = Scratch::new();
        let (pki, clients) = (Pki::new(&scratch.path().join("tls")), Pki::new(&scratch.path().join("clients")));
        pki.issue("www", &["www.example.com", "www2.example.com"]);
        pki.issue("wild", &["*.apps.example.com"]);
        pki.issue("admin", &["admin.example.com", "www3.example.com"]);
        clients.issue("alice", &["alice"]);
        let origin = Origin::start("o");
        let address = local(port());
        let balancer = Steelyard::serve(&config(address, &origin, &pki, &clients, more), 1);
        Self { balancer, address, pki, clients, origin, _scratch: scratch }
    }

    fn connect(&self, name: &str) -> std::io::Result<Tls> {
        Tls::connect(&self.pki.client(None), self.address, name)
    }

    fn refused(&self, reason: &str) -> f64 {
        self.balancer.metric("steelyard_refused_total", &[("listener", "edge"), ("reason", reason)])
    }

    /// Waits, because a client may see the end of its connection before that is counted.
    fn until_refused(&self, reason: &str, count: f64) {
        testkit::until(testkit::PATIENCE, || (self.refused(reason) == count).then_some(()))
            .unwrap_or_else(|| panic!("{reason}: {} and not {count}", self.refused(reason)));
    }
}

fn config(address: SocketAddr, origin: &Origin, pki: &Pki, clients: &Pki, more: &str) -> String {
    let pair = |name: &str| {
        let path = |suffix: &str| pki.path(&format!("{name}.{suffix}")).display().to_string();
        format!("{{cert: {}, key: {}}}", path("pem"), path("key"))
    };
    format!(
        "admin: {{admin}}
listeners:
  edge:
    bind: {address}
    protocol: https
    tls:
      certificates: [{}, {}, {}]
      client_ca: {{hosts: [admin.example.com], ca: {}}}
{more}
    to: web
clusters:
  web: {{endpoints: [{}]}}
",
        pair("www"),
        pair("wild"),
        pair("admin"),
        clients.path("ca.pem").display(),
        origin.address
    )
}

#[test]
fn the_name_asked_for_chooses_the_certificate() {
    let edge = Edge::start("");
    let check = |name: &str, expect: &str| {
        let mut tls = edge.connect(name).unwrap();
        assert_eq!(tls.shown(), edge.pki.certificate(expect), "{name}");
        assert_eq!(tls.get(name, "/").unwrap().0, 200, "{name}");
        // The connection is kept, and serves again.
        assert_eq!(tls.get(name, "/again").unwrap().0, 200, "{name}");
    };
    check("www.example.com", "www");
    check("WWW2.example.com", "www");
    check("a.apps.example.com", "wild");
    check("www3.example.com", "admin");
    // The star stands for one label, not two, and not none: the first certificate is shown, and this client does not trust it.
    for name in ["a.b.apps.example.com", "apps.example.com", "elsewhere.example.com"] {
        let error = edge.connect(name).err().unwrap().to_string();
        assert!(error.contains("not valid for name"), "{name}: {error}");
    }
}

#[test]
fn a_connection_serves_the_hosts_that_it_was_made_for() {
    let edge = Edge::start("");
    let check = |name: &str, host: &str, expect: u16| {
        let mut tls = edge.connect(name).unwrap();
        assert_eq!(tls.get(host, "/").unwrap().0, expect, "{host} over a connection for {name}");
    };
    check("www.example.com", "www.example.com:8443", 200);
    check("www.example.com", "WWW2.example.com.", 200);
    check("www.example.com", "a.apps.example.com", 421);
    check("a.apps.example.com", "b.apps.example.com", 200);
    // The same certificate, but that host requires a client certificate.
    check("www3.example.com", "admin.example.com", 421);
    assert_eq!(edge.refused("misdirected"), 2.0);
}

/// One certificate for all names, so that it decides nothing.
#[test]
fn isolated_hosts_decide_which_requests_a_connection_carries() {
    let scratch = Scratch::new();
    let (pki, clients) = (Pki::new(&scratch.path().join("tls")), Pki::new(&scratch.path().join("clients")));
    let names = ["example.org", "second.org", "third.wild.org", "fourth.wild.org", "admin.org", "unknown.org"];
    pki.issue("all", &names);
    clients.issue("alice", &["alice"]);
    let origins = ["any", "second", "wild", "fourth", "admin"].map(Origin::start);
    let [edge, strict] = [local(port()), local(port())];
    let listener = |name: &str, bind: SocketAddr, more: &str| {
        let path = |file: &str| pki.path(file).display().to_string();
        format!(
            "  {name}:
    bind: {bind}
    protocol: https
    tls:
      certificates: [{{cert: {}, key: {}}}]
      client_ca: {{hosts: admin.org, ca: {}}}
    isolated_hosts: [second.org, '*.wild.org', fourth.wild.org, admin.org]
    routes:
      - {{hosts: second.org, to: second}}
      - {{hosts: '*.wild.org', to: wild}}
      - {{hosts: fourth.wild.org, path: /only, to: fourth}}
      - {{hosts: admin.org, to: admin}}
{more}",
            path("all.pem"),
            path("all.key"),
            clients.path("ca.pem").display()
        )
    };
    let clusters = ["any", "second", "wild", "fourth", "admin"].iter().zip(&origins);
    let clusters: Vec<String> =
        clusters.map(|(name, origin)| format!("  {name}: {{endpoints: ['{}']}}\n", origin.address)).collect();
    let any = "      - {hosts: example.org, to: any}\n";
    let listeners = listener("edge", edge, any) + &listener("strict", strict, "");
    let _balancer =
        Steelyard::serve(&format!("admin: {{admin}}\nlisteners:\n{listeners}clusters:\n{}", clusters.concat()), 1);
    let check = |address: SocketAddr, name: &str, host: &str, path: &str, expect: (u16, &str)| {
        let mut tls = Tls::connect(&pki.client(None), address, name).unwrap();
        let (status, body) = tls.get(host, path).unwrap();
        let body = String::from_utf8_lossy(&body).into_owned();
        let is_from = expect.1.is_empty() || body.starts_with(expect.1);
        assert!(status == expect.0 && is_from, "{host}{path} over a connection for {name}: {status} {body}");
    };
    // Routes of other hosts do not take the requests of an isolated one.
    check(edge, "fourth.wild.org", "fourth.wild.org", "/only", (200, "fourth"));
    check(edge, "fourth.wild.org", "fourth.wild.org", "/", (404, ""));
    check(edge, "third.wild.org", "third.wild.org", "/", (200, "wild"));
    // A connection carries the requests of the host that it was made for, and of others that belong together with it.
    check(edge, "example.org", "example.org", "/", (200, "any"));
    check(edge, "example.org", "unknown.org", "/", (404, ""));
    check(edge, "unknown.org", "example.org", "/", (200, "any"));
    check(edge, "third.wild.org", "fifth.wild.org", "/", (200, "wild"));
    for (name, host) in [
        ("example.org", "second.org"),
        ("second.org", "example.org"),
        ("second.org", "unknown.org"),
        ("third.wild.org", "fourth.wild.org"),
        ("fourth.wild.org", "third.wild.org"),
        ("example.org", "admin.org"),
    ] {
        check(edge, name, host, "/", (421, ""));
    }
    // If no route is for any other host, another connection would serve it no better.
    check(strict, "second.org", "example.org", "/", (404, ""));
    check(strict, "second.org", "admin.org", "/", (421, ""));
    check(strict, "unknown.org", "second.org", "/", (421, ""));
    let alice = pki.client(Some((&clients, "alice")));
    let mut tls = Tls::connect(&alice, strict, "admin.org").unwrap();
    let answers = ["admin.org", "second.org", "example.org"].map(|host| tls.get(host, "/").unwrap().0);
    assert_eq!(answers, [200, 421, 404]);
}

/// With curl as the client, whose own message says whether the handshake failed.
#[test]
fn clients_that_are_not_verified_are_admitted_and_reported() {
    let scratch = Scratch::new();
    let (pki, clients) = (Pki::new(&scratch.path().join("tls")), Pki::new(&scratch.path().join("clients")));
    pki.issue("www", &["www.example.com"]);
    pki.issue("mallory", &["mallory"]);
    clients.issue("alice", &["alice"]);
    let (origin, address) = (Origin::start("o"), local(port()));
    let config = |verify: bool| {
        let path = |file: &str| pki.path(file).display().to_string();
        format!(
            "admin: {{admin}}\nlisteners: {{edge: {{bind: '{address}', protocol: https, to: web, tls: \
             {{certificates: [{{cert: {}, key: {}}}], client_ca: {{ca: {}, verify: {verify}}}}}}}}}\n\
             clusters: {{web: {{endpoints: ['{}']}}}}\n",
            path("www.pem"),
            path("www.key"),
            clients.path("ca.pem").display(),
            origin.address
        )
    };
    let curl = |shows: Option<(&Pki, &str)>| {
        let mut curl = std::process::Command::new("curl");
        curl.args(["--silent", "--output", "/dev/null", "--write-out", "%{http_code}", "--max-time", "30", "--cacert"]);
        curl.arg(pki.path("ca.pem")).args(["--connect-to", &format!("::{address}")]);
        if let Some((of, name)) = shows {
            let path = |suffix: &str| of.path(&format!("{name}.{suffix}"));
            curl.arg("--cert").arg(path("pem")).arg("--key").arg(path("key"));
        }
        String::from_utf8(curl.arg("https://www.example.com/").output().expect("curl").stdout).unwrap()
    };
    let shown = [None, Some((&pki, "mallory")), Some((&clients, "alice"))];
    let mut balancer = Steelyard::serve(&config(false), 1);
    assert_eq!(shown.map(curl), ["200", "200", "200"]);
    let listener = |balancer: &Steelyard| balancer.status()["listeners"][0]["admits_unverified_clients"].clone();
    assert_eq!(listener(&balancer), true);
    assert_eq!(balancer.status()["findings"][0]["kind"], "unverified_clients");
    // A session that began without a certificate is of no use where one is required.
    let before = balancer.generation();
    balancer.reload(&config(true), |status| status["generation"].as_u64() > Some(before));
    assert_eq!(shown.map(curl), ["000", "000", "200"]);
    assert_eq!(listener(&balancer), false);
}

/// A client that was admitted before must not stay when the listener begins to ask for a certificate, or trusts another CA.
#[test]
fn what_is_asked_of_clients_holds_for_connections_that_are_open() {
    let scratch = Scratch::new();
    let folder = |name: &str| Pki::new(&scratch.path().join(name));
    let (pki, old, new) = (folder("tls"), folder("old"), folder("new"));
    pki.issue("www", &["www.example.com", "open.example.com"]);
    old.issue("alice", &["alice"]);
    new.issue("bob", &["bob"]);
    let ca = |pki: &Pki| std::fs::read_to_string(pki.path("ca.pem")).unwrap();
    pki.put("both.pem", &(ca(&old) + &ca(&new)));
    let (origin, address) = (Origin::start("o"), local(port()));
    let config = |client_ca: &str| {
        let path = |file: &str| pki.path(file).display().to_string();
        format!(
            "admin: {{admin}}\nlisteners: {{edge: {{bind: '{address}', protocol: https, to: web, tls: \
             {{certificates: [{{cert: {}, key: {}}}]{client_ca}}}}}}}\nclusters: {{web: {{endpoints: ['{}']}}}}\n",
            path("www.pem"),
            path("www.key"),
            origin.address
        )
    };
    let asks = |of: &std::path::Path| format!(", client_ca: {{hosts: [www.example.com], ca: {}}}", of.display());
    let mut balancer = Steelyard::serve(&config(""), 1);
    let mut reload = |client_ca: &str| {
        let before = balancer.generation();
        balancer.reload(&config(client_ca), |status| status["generation"].as_u64() > Some(before));
    };
    let connect = |shows: Option<(&Pki, &str)>, name: &str| {
        let mut tls = Tls::connect(&pki.client(shows), address, name).unwrap();
        assert_eq!(tls.get(name, "/").unwrap().0, 200, "{name}");
        tls
    };
    let host = "www.example.com";
    // Another certificate or another setting alone closes nothing.
    let (mut nobody, mut elsewhere) = (connect(None, host), connect(None, "open.example.com"));
    reload(", min_version: '1.3'");
    assert_eq!(nobody.get(host, "/").unwrap().0, 200);

    reload(&asks(&old.path("ca.pem")));
    assert_eq!(nobody.get(host, "/").unwrap().0, 421);
    assert!(nobody.get(host, "/").is_err(), "the connection is still open");
    // Clients of other hosts are asked for nothing, but their connections are not a way around it.
    assert_eq!(elsewhere.get("open.example.com", "/").unwrap().0, 200);
    assert_eq!(elsewhere.get(host, "/").unwrap().0, 421);
    assert_eq!(elsewhere.get("open.example.com", "/").unwrap().0, 200);

    // The new CA comes before the old one goes, and then nobody is closed who could connect again.
    let mut alice = connect(Some((&old, "alice")), host);
    reload(&asks(&pki.path("both.pem")));
    assert_eq!(alice.get(host, "/").unwrap().0, 200);
    let mut bob = connect(Some((&new, "bob")), host);
    reload(&asks(&new.path("ca.pem")));
    assert_eq!(alice.get(host, "/").unwrap().0, 421);
    assert!(alice.get(host, "/").is_err(), "the connection is still open");
    assert_eq!(bob.get(host, "/").unwrap().0, 200);
    reload("");
    assert_eq!(bob.get(host, "/").unwrap().0, 200);
}

#[test]
fn a_host_that_asks_for_a_certificate_gets_one_or_nobody() {
    let edge = Edge::start("");
    let alice = edge.pki.client(Some((&edge.clients, "alice")));
    let mut tls = Tls::connect(&alice, edge.address, "admin.example.com").unwrap();
    assert_eq!(tls.get("admin.example.com", "/").unwrap().0, 200);
    // A connection with a client certificate is only for the host that required it.
    assert_eq!(tls.get("www3.example.com", "/").unwrap().0, 421);
    // Nor is it for the routes of every host, to which a request without `Host` goes.
    let unnamed = "GET / HTTP/1.0\r\n\r\n";
    let mut tls = Tls::connect(&alice, edge.address, "admin.example.com").unwrap();
    assert_eq!(tls.ask(unnamed, b"").unwrap().0, 421);
    assert_eq!(edge.connect("www3.example.com").unwrap().ask(unnamed, b"").unwrap().0, 200);

    // In TLS 1.3 the client learns of the refusal after its own side of the handshake is done.
    let refused = |config| {
        let outcome = Tls::connect(&config, edge.address, "admin.example.com");
        outcome.and_then(|mut tls| tls.get("admin.example.com", "/")).is_err()
    };
    assert!(refused(edge.pki.client(None)), "no certificate");
    edge.pki.issue("mallory", &["mallory"]);
    assert!(refused(edge.pki.client(Some((&edge.pki, "mallory")))), "the certificate is from another authority");
    edge.until_refused("tls_handshake", 2.0);
}

#[test]
fn a_session_is_resumed_but_not_for_more_than_it_was() {
    let edge = Edge::start("");
    let kind = |config: &_, name: &str| {
        let mut tls = Tls::connect(config, edge.address, name).ok()?;
        // The tickets follow the first answer.
        tls.get(name, "/").ok()?;
        tls.0.conn.handshake_kind()
    };
    let client = edge.pki.client(None);
    assert_eq!(kind(&client, "www.example.com"), Some(rustls::HandshakeKind::Full));
    assert_eq!(kind(&client, "www.example.com"), Some(rustls::HandshakeKind::Resumed));
    assert_eq!(kind(&client, "admin.example.com"), None);
    let alice = edge.pki.client(Some((&edge.clients, "alice")));
    assert_eq!(kind(&alice, "admin.example.com"), Some(rustls::HandshakeKind::Full));
    assert_eq!(kind(&alice, "admin.example.com"), Some(rustls::HandshakeKind::Resumed));
}

#[test]
fn bodies_pass_whole_and_the_endpoint_hears_of_the_scheme() {
    let edge = Edge::start("");
    let mut tls = edge.connect("www.example.com").unwrap();
    let body: Vec<u8> = (0..3_000_000_u32).map(|n| (n ^ (n >> 8)) as u8).collect();
    let head = format!("POST / HTTP/1.1\r\nHost: www.example.com\r\nContent-Length: {}\r\n\r\n", body.len());
    for _ in 0..3 {
        assert_eq!(tls.ask(&head, &body).unwrap().0, 200);
    }
    let large = Origin::start_at(local(0), "large", 5_000_000);
    let scratch = Scratch::new();
    let address = local(port());
    let config = config(address, &large, &edge.pki, &edge.clients, "");
    let _second = Steelyard::serve(&config, 1);
    let mut tls = Tls::connect(&edge.pki.client(None), address, "www.example.com").unwrap();
    for _ in 0..3 {
        let (status, body) = tls.get("www.example.com", "/").unwrap();
        assert_eq!((status, body.len()), (200, 5_000_000));
    }
    drop(scratch);

    let endpoint = Pki::new(&edge.pki.path("upstream"));
    endpoint.issue("echo", &["echo.internal"]);
    let echo = endpoint.origin("echo", None);
    let mut edge = edge;
    let text = format!(
        "admin: {{admin}}\nlisteners:\n  edge: {{bind: {}, protocol: https, tls: {{certificates: [{{cert: {}, key: {}}}]}}, to: up}}\n\
         clusters:\n  up: {{endpoints: [{echo}], tls: {{server_name: echo.internal, ca: {}}}}}\n",
        edge.address,
        edge.pki.path("www.pem").display(),
        edge.pki.path("www.key").display(),
        endpoint.path("ca.pem").display(),
    );
    edge.balancer.reload(&text, |status| support::names(status, "clusters") == ["up"]);
    let (status, heard) = edge.connect("www.example.com").unwrap().get("www.example.com", "/").unwrap();
    let heard = String::from_utf8(heard).unwrap();
    assert_eq!(status, 200);
    assert!(heard.starts_with("sni echo.internal\n") && heard.contains("x-forwarded-proto: https\r\n"), "{heard}");
}

#[test]
fn endpoints_are_believed_only_with_the_right_certificate() {
    let scratch = Scratch::new();
    let (pki, clients) = (Pki::new(&scratch.path().join("e")), Pki::new(&scratch.path().join("c")));
    pki.issue("right", &["right.internal", "127.0.0.1", "spiffe://internal/right"]);
    pki.issue_expired("old", &["127.0.0.1"]);
    clients.issue("us", &["us"]);
    pki.issue_ca("ca_like", &["127.0.0.1"]);
    let (old, ca_like) = (pki.origin("old", None), pki.origin("ca_like", None));
    let (plain, mutual) = (pki.origin("right", None), pki.origin("right", Some(&clients)));
    let web = local(port());
    let ca = pki.path("ca.pem").display().to_string();
    let config = |endpoint: SocketAddr, tls: &str| {
        format!(
            "admin: {{admin}}\nlisteners: {{web: {{bind: {web}, protocol: http, to: up}}}}\nclusters: {{up: {{endpoints: [{endpoint}], outlier: off, tls: {tls}}}}}\n"
        )
    };
    let mut balancer = Steelyard::serve(&config(plain, &format!("{{ca: {ca}}}")), 1);
    // The counted reason, and a part of the status text for the endpoint.
    let mut check = |endpoint, tls: &str, failure: Option<(&str, &str)>| {
        let before = balancer.generation();
        balancer.reload(&config(endpoint, tls), |status| status["generation"].as_u64() > Some(before));
        let count =
            |reason: &str| balancer.metric("steelyard_refused_total", &[("listener", "web"), ("reason", reason)]);
        let counted = failure.map(|(reason, _)| count(reason));
        let response = support::get(web, "/").unwrap();
        let text = String::from_utf8_lossy(&response.body).into_owned();
        let expect = if failure.is_some() { 502 } else { 200 };
        assert_eq!(response.status, expect, "{tls}: {text}\n{}", balancer.program.log());
        let why = balancer.status()["clusters"][0]["endpoints"][0]["why"].clone();
        let Some((reason, piece)) = failure else { return assert!(why.is_null(), "{tls}: {why}") };
        assert_eq!(text, "502 Bad Gateway\n");
        assert_eq!(Some(count(reason) - 1.0), counted, "{tls}: {reason}");
        assert!(why.as_str().is_some_and(|why| why.starts_with("TLS: ") && why.contains(piece)), "{tls}: {why}");
    };
    check(plain, &format!("{{ca: {ca}}}"), None);
    check(plain, &format!("{{ca: {ca}, server_name: right.internal}}"), None);
    let wrong = Some(("upstream_tls_name", "not valid for name"));
    check(plain, &format!("{{ca: {ca}, server_name: wrong.internal}}"), wrong);
    let unknown = Some(("upstream_tls_issuer", "UnknownIssuer"));
    check(plain, &format!("{{ca: {}}}", clients.path("ca.pem").display()), unknown);
    check(plain, "{verify: false, server_name: wrong.internal}", None);
    // Other names count instead of the one that is asked for.
    let named = |names: &str| format!("{{ca: {ca}, server_name: wrong.internal, subject_alt_names: [{names}]}}");
    check(plain, &named("other.internal, right.internal"), None);
    check(plain, &named("'*.internal'"), None);
    check(plain, &named("'spiffe://internal/right'"), None);
    let other = Some(("upstream_tls_name", "none of the names in subject_alt_names"));
    check(plain, &named("wrong.internal, 'spiffe://internal/wrong'"), other);
    let other_ca = clients.path("ca.pem").display().to_string();
    check(plain, &format!("{{ca: {other_ca}, subject_alt_names: right.internal}}"), unknown);
    let expired = Some(("upstream_tls_expired", "expired"));
    check(old, &format!("{{ca: {ca}}}"), expired);
    check(old, &format!("{{ca: {ca}, subject_alt_names: right.internal}}"), expired);
    check(ca_like, &format!("{{ca: {ca}}}"), Some(("upstream_tls_certificate", "basicConstraints says CA:TRUE")));
    let us = format!("{{cert: {}, key: {}}}", clients.path("us.pem").display(), clients.path("us.key").display());
    check(mutual, &format!("{{ca: {ca}, certificate: {us}}}"), None);
    check(mutual, &format!("{{ca: {ca}}}"), Some(("upstream_tls_alert", "alert")));
}

#[test]
fn probes_speak_tls_as_requests_do() {
    let scratch = Scratch::new();
    let pki = Pki::new(&scratch.path().join("e"));
    pki.issue("right", &["right.internal"]);
    pki.issue_ca("ca_like", &["right.internal"]);
    let (right, ca_like) = (pki.origin("right", None), pki.origin("ca_like", None));
    let ca = pki.path("ca.pem").display().to_string();
    let config = |endpoint: SocketAddr, name: &str| {
        format!(
            "admin: {{admin}}\nlisteners: {{web: {{bind: '127.0.0.1:0', protocol: http, to: up}}}}\nclusters:\n  up:\n    endpoints: [{endpoint}]\n    \
             tls: {{ca: {ca}, server_name: {name}}}\n    health_check: {{http: /, interval: 20ms, unhealthy_after: 1, healthy_after: 1}}\n"
        )
    };
    let mut balancer = Steelyard::serve(&config(right, "right.internal"), 1);
    let state = |status: &serde_json::Value| status["clusters"][0]["endpoints"][0].clone();
    balancer.until("healthy", |status| state(status)["state"] == "healthy");
    balancer.reload(&config(right, "wrong.internal"), |status| state(status)["state"] == "unhealthy");
    let why = state(&balancer.status()).to_string();
    assert!(why.contains("TLS: ") && why.contains("wrong.internal"), "{why}");
    balancer.reload(&config(right, "right.internal"), |status| state(status)["state"] == "healthy");
    balancer.reload(&config(ca_like, "right.internal"), |status| state(status)["state"] == "unhealthy");
    let why = state(&balancer.status()).to_string();
    assert!(why.contains("TLS: ") && why.contains("CA:TRUE"), "{why}");
}

#[test]
fn certificates_change_and_no_connection_is_lost() {
    let mut edge = Edge::start("");
    let mut kept = edge.connect("www.example.com").unwrap();
    let (client, address, end) = (edge.pki.client(None), edge.address, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut requests = 0_u32;
            while !end.load(Relaxed) {
                let mut tls = Tls::connect(&client, address, "www.example.com").expect("a handshake");
                for _ in 0..10 {
                    assert_eq!(tls.get("www.example.com", "/").expect("an answer").0, 200);
                    requests += 1;
                }
            }
            requests
        });
        let mut last = edge.pki.certificate("www");
        for round in 0..3 {
            let before = edge.balancer.generation();
            edge.pki.issue("www", &["www.example.com"]);
            if round == 0 {
                // It is seen without a signal, because the files are watched.
                edge.balancer.until("reloaded", |status| status["generation"].as_u64() > Some(before));
            } else {
                edge.balancer.program.signal(Signal::HUP).unwrap();
                edge.balancer.until("reloaded", |status| status["generation"].as_u64() > Some(before));
            }
            let shown = edge.connect("www.example.com").unwrap().shown();
            assert_eq!(shown, edge.pki.certificate("www"));
            assert_ne!(shown, last);
            last = shown;
        }
        end.store(true, Relaxed);
        assert!(load.join().unwrap() > 0);
    });
    assert_eq!(kept.get("www.example.com", "/").unwrap().0, 200, "made under the first certificate");
    assert!(edge.origin.requests() > 30);
}

#[test]
fn a_bad_pair_leaves_the_old_one_and_says_why() {
    let edge = Edge::start("");
    let old = edge.pki.certificate("www");
    edge.pki.put("www.key", &std::fs::read_to_string(edge.pki.path("wild.key")).unwrap());
    let refused = edge.balancer.ask(&["reload"]);
    assert_eq!(refused.exit, Exit::Code(64), "{refused:?}");
    assert!(refused.stderr.contains("www.key: does not belong to the certificate in"), "{}", refused.stderr);
    let mut tls = edge.connect("www.example.com").unwrap();
    assert_eq!((tls.shown(), tls.get("www.example.com", "/").unwrap().0), (old, 200));
    let check = run(&["check", "-c", &edge.balancer.file()]);
    assert_eq!(check.exit, Exit::Code(64));
    assert!(check.stderr.contains("listener edge: ") && check.stderr.contains("does not belong"), "{}", check.stderr);
    for (text, why) in [("", "contains no certificate"), ("-----BEGIN CERTIFICATE-----\nAAAA\n", "not PEM")] {
        edge.pki.put("wild.pem", text);
        let check = run(&["check", "-c", &edge.balancer.file()]);
        assert!(check.stderr.contains(why), "{text:?}: {}", check.stderr);
    }
}

#[test]
fn what_is_no_handshake_ends_and_is_counted() {
    let edge = Edge::start("    header_timeout: 300ms\n");
    let talk = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(edge.address).unwrap();
        stream.set_read_timeout(Some(testkit::PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut heard = Vec::new();
        // A reset is also an end.
        _ = stream.read_to_end(&mut heard);
        heard
    };
    // A plain-text request gets an HTTP response.
    let heard = String::from_utf8(talk(b"GET / HTTP/1.1\r\nHost: www.example.com\r\n\r\n")).unwrap();
    assert!(heard.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{heard}");
    assert!(heard.ends_with("\r\n\r\n400 Bad Request: this port speaks HTTPS: write https://\n"), "{heard}");
    edge.until_refused("plain_http", 1.0);
    // Other bytes get an alert.
    assert_eq!(talk(b"\x01\x02\x03\x04\x05\x06").first(), Some(&21));
    edge.until_refused("tls_handshake", 1.0);
    // A client that connects and closes, like probes.
    drop(TcpStream::connect(edge.address).unwrap());
    edge.until_refused("client_eof", 1.0);
    talk(b"");
    talk(&[22, 3, 1, 0, 200, 1]);
    edge.until_refused("tls_handshake_timeout", 2.0);
}

/// RFC 8446 section 6.2: handshake_failure is 40, access_denied 49.
#[test]
fn a_client_without_a_common_cipher_is_told_so() {
    let edge = Edge::start("");
    // TLS 1.2 with RSA certificates only; those of this listener are ECDSA.
    let mut client = std::process::Command::new("openssl")
        .args(["s_client", "-connect", &edge.address.to_string(), "-servername", "www.example.com"])
        .args(["-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256"])
        .stdin(std::process::Stdio::null())
        .output()
        .expect("openssl");
    client.stderr.append(&mut client.stdout);
    let heard = String::from_utf8_lossy(&client.stderr);
    assert!(heard.contains("SSL alert number 40"), "{heard}");
    edge.until_refused("tls_handshake", 1.0);
}

#[test]
fn tls_passes_through_unopened_by_its_name() {
    let scratch = Scratch::new();
    let pki = Pki::new(&scratch.path().join("tls"));
    pki.issue("vault", &["vault.example.com"]);
    pki.issue("any", &["a.example.com", "other.net"]);
    let (vault, any) = (pki.origin("vault", None), pki.origin("any", None));
    let (address, strict) = (local(port()), local(port()));
    let balancer = Steelyard::serve(
        &format!(
            "admin: {{admin}}
listeners:
  open:
    bind: {address}
    protocol: tls_passthrough
    header_timeout: 300ms
    routes:
      - {{sni: '*.example.com', to: any}}
      - {{sni: vault.example.com, to: vault}}
      - {{to: any}}
  strict:
    bind: {strict}
    protocol: tls_passthrough
    proxy_protocol: true
    routes:
      - {{sni: vault.example.com, to: vault}}
clusters:
  vault: {{endpoints: [{vault}]}}
  any: {{endpoints: [{any}]}}
"
        ),
        1,
    );
    let client = pki.client(None);
    let check = |name: &str, expect: &str| {
        let mut tls = Tls::connect(&client, address, name).unwrap();
        assert_eq!(tls.shown(), pki.certificate(expect), "{name}");
        let (status, heard) = tls.get(name, "/").unwrap();
        assert_eq!(status, 200);
        assert!(heard.starts_with(format!("sni {name}\n").as_bytes()), "{}", String::from_utf8_lossy(&heard));
    };
    check("vault.example.com", "vault");
    check("a.example.com", "any");
    check("other.net", "any");

    let with_header = |header: &[u8], name: &str| {
        let mut stream = TcpStream::connect(strict).unwrap();
        stream.write_all(header).unwrap();
        Tls::over(&client, stream, name)
    };
    let header = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n";
    assert_eq!(with_header(header, "vault.example.com").unwrap().shown(), pki.certificate("vault"));
    assert!(with_header(header, "a.example.com").is_err());
    assert!(with_header(b"", "vault.example.com").is_err());
    let refused = |listener: &str, reason: &str| {
        balancer.metric("steelyard_refused_total", &[("listener", listener), ("reason", reason)])
    };
    assert_eq!((refused("strict", "no_route"), refused("strict", "bad_proxy_protocol")), (1.0, 1.0));

    // A first message that arrives byte by byte is accepted; one that does not arrive is not waited for.
    let mut heard = Vec::new();
    _ = TcpStream::connect(address).unwrap().read_to_end(&mut heard);
    assert_eq!(refused("open", "tls_handshake_timeout"), 1.0);
}

#[test]
fn tls_ends_here_or_at_the_endpoint_as_the_name_says() {
    let scratch = Scratch::new();
    let (pki, clients) = (Pki::new(&scratch.path().join("tls")), Pki::new(&scratch.path().join("clients")));
    pki.issue("here", &["here.example.com", "admin.example.com", "empty.example.com"]);
    pki.issue("vault", &["vault.example.com"]);
    clients.issue("alice", &["alice"]);
    let (vault, plain) = (pki.origin("vault", None), Origin::start("plain"));
    let address = local(port());
    let path = |file: &str| pki.path(file).display().to_string();
    let balancer = Steelyard::serve(
        &format!(
            "admin: {{admin}}
listeners:
  mixed:
    bind: {address}
    protocol: tls
    tls:
      certificates: [{{cert: {}, key: {}}}]
      client_ca: {{hosts: admin.example.com, ca: {}}}
    header_timeout: 5s
    isolated_hosts: empty.example.com
    routes:
      - {{sni: vault.example.com, to: vault, passthrough: true}}
      - {{sni: '*.example.com', to: plain}}
clusters:
  vault: {{endpoints: [{vault}]}}
  plain: {{endpoints: ['{}']}}
",
            path("here.pem"),
            path("here.key"),
            clients.path("ca.pem").display(),
            plain.address
        ),
        1,
    );
    assert_eq!(balancer.status()["listeners"][0]["protocol"], "tls");
    let client = pki.client(None);
    let mut tls = Tls::connect(&client, address, "here.example.com").unwrap();
    assert_eq!(tls.shown(), pki.certificate("here"));
    // The bytes are those of HTTP to the client and to the origin, and are no one's business in between: any host will do.
    for host in ["here.example.com", "elsewhere.org"] {
        let (status, heard) = tls.get(host, "/").unwrap();
        assert!(status == 200 && heard.starts_with(b"plain"), "{}", String::from_utf8_lossy(&heard));
    }
    let mut tls = Tls::connect(&client, address, "vault.example.com").unwrap();
    assert_eq!(tls.shown(), pki.certificate("vault"));
    assert!(tls.get("vault.example.com", "/").unwrap().1.starts_with(b"sni vault.example.com\n"));
    // The other client is not ours, offers a protocol, and learns that none was chosen.
    let mut openssl = std::process::Command::new("openssl");
    openssl.args(["s_client", "-connect", &address.to_string(), "-servername", "here.example.com", "-alpn", "h2,imap"]);
    openssl.arg("-CAfile").arg(pki.path("ca.pem")).stdin(std::process::Stdio::null());
    let heard = String::from_utf8_lossy(&openssl.output().expect("openssl").stdout).into_owned();
    assert!(heard.contains("Verify return code: 0 (ok)") && heard.contains("No ALPN negotiated"), "{heard}");

    assert!(Tls::connect(&client, address, "empty.example.com").is_err(), "no route of its own");
    let refused = |config| {
        let outcome = Tls::connect(&config, address, "admin.example.com");
        outcome.and_then(|mut tls| tls.get("admin.example.com", "/")).is_err()
    };
    assert!(refused(client));
    let mut tls = Tls::connect(&pki.client(Some((&clients, "alice"))), address, "admin.example.com").unwrap();
    assert_eq!(tls.get("admin.example.com", "/").unwrap().0, 200);
    let counted = |reason: &str| {
        let labels = [("listener", "mixed"), ("reason", reason)];
        testkit::until(testkit::PATIENCE, || {
            (balancer.metric("steelyard_refused_total", &labels) == 1.0).then_some(())
        })
        .unwrap_or_else(|| panic!("{reason}"));
    };
    counted("no_route");
    counted("tls_handshake");
}

#[test]
fn tls_behind_a_proxy_protocol_header() {
    let edge = Edge::start("    proxy_protocol: true\n");
    // The header in its own segment, and the client's first message after it, in either order of arrival at the balancer.
    for _ in 0..20 {
        let mut stream = TcpStream::connect(edge.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n").unwrap();
        let mut tls = Tls::over(&edge.pki.client(None), stream, "www.example.com").unwrap();
        assert_eq!(tls.get("www.example.com", "/").unwrap().0, 200);
    }
}
