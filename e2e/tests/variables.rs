//! Values of headers that are made for each request: what an endpoint gets of a client's TLS connection, over HTTP/1, HTTP/2 and gRPC, and
//! the id of a request from the endpoint to the access log. `scripts/policy` tests the rest.
#![forbid(unsafe_code)]

#[path = "support/grpc.rs"]
mod grpc;
mod support;
#[path = "support/tls.rs"]
mod tls;

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use grpc::{Caller, Greeter, SAY_HELLO, framed};
use rustls::HandshakeKind;
use support::{Scratch, Steelyard, local, port};
use testkit::{PATIENCE, until};
use tls::{Pki, Tls};

/// All variables of a TLS connection, and what a client could claim.
const SET: &str = r#"{x-tls: "${tls_version}", x-sni: "${sni}", client-cert: "${client_cert}", x-pem: "${client_cert_pem}",
                     x-dn: "${client_cert_subject}", x-sha: "${client_cert_sha256}"}"#;

struct Edge {
    _balancer: Steelyard,
    address: SocketAddr,
    origin: SocketAddr,
    pki: Pki,
    clients: Pki,
    _scratch: Scratch,
}

impl Edge {
    fn serve(client_ca: &str) -> Self {
        let scratch = Scratch::new();
        let (pki, clients) = (Pki::new(&scratch.path().join("tls")), Pki::new(&scratch.path().join("clients")));
        pki.issue("www", &["www.example.com"]);
        pki.issue("inner", &["inner.test"]);
        clients.issue(NAME, &["alice"]);
        let (address, origin) = (local(port()), pki.origin("inner", None));
        let path = |name: &str| pki.path(name).display().to_string();
        let balancer = Steelyard::serve(
            &format!(
                "admin: {{admin}}
listeners:
  edge:
    bind: {address}
    protocol: https
    tls:
      certificates: [{{cert: {}, key: {}}}]
      client_ca: {{ca: {}{client_ca}}}
    routes: [{{to: web, request_headers: {{set: {SET}}}, response_headers: {{set: {{x-by: '${{endpoint}}'}}}}}}]
clusters:
  web: {{endpoints: ['{origin}'], tls: {{ca: {}, server_name: inner.test}}}}
",
                path("www.pem"),
                path("www.key"),
                clients.path("ca.pem").display(),
                path("ca.pem"),
            ),
            1,
        );
        Self { _balancer: balancer, address, origin, pki, clients, _scratch: scratch }
    }

    /// The PEM file of the client's certificate.
    fn certificate(&self) -> String {
        self.clients.path(&format!("{NAME}.pem")).display().to_string()
    }
}

/// A name with signs that a subject escapes.
const NAME: &str = "alice, \"A\u{f6}\"";

fn openssl(arguments: &[&str]) -> String {
    let output = Command::new("openssl").args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The value of a field in a head; `None` if it is not there.
fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut values = head.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let value = values.next();
    assert!(values.next().is_none(), "{name} is there twice:\n{head}");
    value
}

/// The head with what OpenSSL says about the certificate in `pem`.
#[track_caller]
fn assert_certificate(head: &str, pem: &str) {
    let subject = openssl(&["x509", "-in", pem, "-noout", "-subject", "-nameopt", "RFC2253"]);
    assert_eq!(field(head, "x-dn"), subject.trim_end().strip_prefix("subject="), "{head}");
    let sha256 = openssl(&["x509", "-in", pem, "-noout", "-fingerprint", "-sha256"]);
    let sha256 = sha256.trim_end().split('=').nth(1).unwrap().replace(':', "").to_lowercase();
    assert_eq!(field(head, "x-sha"), Some(sha256.as_str()), "{head}");
    let text = openssl(&["x509", "-in", pem]);
    let base64: String = text.lines().filter(|line| !line.contains("-----")).collect();
    assert_eq!(field(head, "client-cert"), Some(format!(":{base64}:").as_str()), "{head}");
    let escaped: String = text
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect();
    assert_eq!(field(head, "x-pem"), Some(escaped.as_str()), "{head}");
}

const CLAIMS: &str = "GET / HTTP/1.1\r\nHost: www.example.com\r\nClient-Cert: :AAAA:\r\nX_DN: CN=root\r\nX-DN: CN=root\r\nX-SHA: 00\r\n\r\n";

#[test]
fn an_endpoint_learns_who_the_client_is() {
    let edge = Edge::serve("");
    let config = edge.pki.client(Some((&edge.clients, NAME)));
    for expect in [HandshakeKind::Full, HandshakeKind::Resumed] {
        let mut tls = Tls::connect(&config, edge.address, "www.example.com").unwrap();
        let (status, body) = tls.ask(CLAIMS, b"").unwrap();
        let head = String::from_utf8(body).unwrap();
        assert_eq!((status, tls.0.conn.handshake_kind()), (200, Some(expect)), "{head}");
        assert_eq!(field(&head, "x-tls"), Some("TLSv1.3"));
        assert_eq!(field(&head, "x-sni"), Some("www.example.com"));
        assert!(!head.contains("CN=root"), "{head}");
        assert_certificate(&head, &edge.certificate());
    }
}

#[test]
fn http_2_and_tls_1_2_make_no_difference() {
    let edge = Edge::serve("");
    let path = |pki: &Pki, name: &str| pki.path(name).display().to_string();
    let (port, ca) = (edge.address.port(), path(&edge.pki, "ca.pem"));
    for (options, version) in [(&["--http2"][..], "TLSv1.3"), (&["--http2", "--tls-max", "1.2"], "TLSv1.2")] {
        let output = Command::new("curl")
            .args(["-sS", "--noproxy", "*", "--cacert", &ca, "--resolve", &format!("www.example.com:{port}:127.0.0.1")])
            .args(["--cert", &edge.certificate(), "--key", &path(&edge.clients, &format!("{NAME}.key"))])
            .args(["-H", "Client-Cert: :AAAA:", "-H", "x-dn: CN=root", "-w", "\n%header{x-by} http %{http_version}"])
            .args(options)
            .arg(format!("https://www.example.com:{port}/"))
            .output()
            .unwrap();
        let head = String::from_utf8(output.stdout).unwrap();
        assert!(
            head.ends_with(&format!("\n{} http 2", edge.origin)),
            "{head}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(field(&head, "x-tls"), Some(version));
        assert_certificate(&head, &edge.certificate());
    }
}

#[test]
fn a_certificate_that_nothing_verifies_says_nothing() {
    let edge = Edge::serve(", verify: false");
    for shows in [None, Some((&edge.clients, NAME))] {
        let mut tls = Tls::connect(&edge.pki.client(shows), edge.address, "www.example.com").unwrap();
        let head = String::from_utf8(tls.ask(CLAIMS, b"").unwrap().1).unwrap();
        for name in ["client-cert", "x-pem", "x-dn", "X-DN", "x_dn", "X_DN", "x-sha", "X-SHA"] {
            assert_eq!(field(&head, name), None, "{name}\n{head}");
        }
        assert_eq!(field(&head, "x-sni"), Some("www.example.com"));
    }
}

#[test]
fn a_call_has_its_values_and_its_id_in_the_log() {
    let (greeter, address, scratch) = (Greeter::start("one"), local(port()), Scratch::new());
    let log = scratch.path().join("log");
    let balancer = Steelyard::serve(
        &format!(
            "admin: {{admin}}
access_log: {{path: {}, format: json}}
listeners:
  l:
    bind: {address}
    protocol: http
    request_id: {{keep: always}}
    routes:
      - name: calls
        grpc: helloworld.Greeter
        to: greeter
        request_headers: {{set: {{x-who: \"${{client_ip}}/${{route}}/${{cluster}}\", x-id: \"${{request_id}}\"}}}}
clusters:
  greeter: {{protocol: h2c, endpoints: ['{}']}}
",
            log.display(),
            greeter.address
        ),
        1,
    );
    let caller = Caller::connect(address);
    let mut ids = Vec::new();
    for sent in [None, Some("from-the-client")] {
        let claims = [("x-who", "root")];
        let fields: Vec<_> = claims.into_iter().chain(sent.map(|id| ("x-request-id", id))).collect();
        assert_eq!(caller.call(SAY_HELLO, &fields, &framed(b"hello")).grpc_status, Some(0));
        assert_eq!(greeter.seen.field("x-who").as_deref(), Some("127.0.0.1/calls/greeter"));
        let id = greeter.seen.field("x-request-id").unwrap();
        assert_eq!(greeter.seen.field("x-id").as_ref(), Some(&id));
        assert!(sent.map_or(id.len() == 36, |sent| id == sent), "{id}");
        ids.push(id);
    }
    // The last lines are written when the process ends.
    balancer.program.signal(testkit::Signal::TERM).unwrap();
    let lines = until(PATIENCE, || fs::read_to_string(&log).ok().filter(|text| text.lines().count() == 2)).unwrap();
    for (line, id) in lines.lines().zip(&ids) {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["request_id"].as_str(), Some(id.as_str()), "{line}");
    }
}
