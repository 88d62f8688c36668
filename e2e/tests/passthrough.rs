//! A listener of HTTPS that leaves TLS for some names to the endpoint (`passthrough`), and terminates it for all others as it always does.
#![forbid(unsafe_code)]

mod support;
#[path = "support/tls.rs"]
mod tls;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use support::{Origin, Scratch, Steelyard, local, port};
use testkit::PATIENCE;
use tls::{Pki, Tls};

/// The client's first message may be this long.
const HELLO_BYTES_MAX: usize = 16 * 1024;

struct Edge {
    balancer: Steelyard,
    address: SocketAddr,
    /// That of the listener.
    pki: Pki,
    /// That of the endpoint.
    vault: Pki,
    _origin: Origin,
    scratch: Scratch,
}

impl Edge {
    /// `more` are keys of the listener.
    fn start(more: &str) -> Self {
        let scratch = Scratch::new();
        let (pki, vault) = (Pki::new(&scratch.path().join("tls")), Pki::new(&scratch.path().join("vault")));
        pki.issue("www", &["www.example.com", "vault.example.com", "in.wild.example.com"]);
        vault.issue("vault", &["vault.example.com", "out.wild.example.com"]);
        let (endpoint, origin, address) = (vault.origin("vault", None), Origin::start("plain"), local(port()));
        let path = |file: &str| pki.path(file).display().to_string();
        let (cert, key, log) = (path("www.pem"), path("www.key"), scratch.path().join("access.log"));
        let config = format!(
            "admin: {{admin}}
access_log: {}
listeners:
  edge:
    bind: {address}
    protocol: https
    tls: {{certificates: [{{cert: {cert}, key: {key}}}]}}
    passthrough:
      - {{sni: ['*.wild.example.com', vault.example.com], to: vault}}
{more}
    routes:
      - {{hosts: in.wild.example.com, to: plain}}
      - {{to: plain}}
clusters:
  vault: {{endpoints: [{endpoint}]}}
  plain: {{endpoints: ['{}']}}
",
            log.display(),
            origin.address
        );
        let balancer = Steelyard::serve(&config, 1);
        Self { balancer, address, pki, vault, _origin: origin, scratch }
    }

    fn until_refused(&self, reason: &str, count: f64) {
        let refused = || self.balancer.metric("steelyard_refused_total", &[("listener", "edge"), ("reason", reason)]);
        testkit::until(PATIENCE, || (refused() == count).then_some(()))
            .unwrap_or_else(|| panic!("{reason}: {} and not {count}", refused()));
    }

    /// What openssl says of a handshake.
    fn openssl(&self, words: &[&str]) -> String {
        let mut openssl = Command::new("openssl");
        openssl.args(["s_client", "-connect", &self.address.to_string()]).args(words).stdin(Stdio::null());
        String::from_utf8_lossy(&openssl.output().expect("openssl").stdout).into_owned()
    }

    /// What curl gets from a host, with the certificate of this authority.
    fn curl(&self, pki: &Pki, host: &str, words: &[&str]) -> String {
        let port = self.address.port();
        let mut curl = Command::new("curl");
        curl.args(["-s", "-w", " %{http_code} %{http_version}", "--cacert"]).arg(pki.path("ca.pem")).args(words);
        curl.args(["--resolve", &format!("{host}:{port}:127.0.0.1"), &format!("https://{host}:{port}/")]);
        String::from_utf8_lossy(&curl.output().expect("curl").stdout).into_owned()
    }

    /// The client's first message for a name.
    fn hello(&self, client: &Arc<ClientConfig>, name: &str) -> (ClientConnection, Vec<u8>) {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut connection = ClientConnection::new(client.clone(), name).unwrap();
        let mut hello = Vec::new();
        connection.write_tls(&mut hello).unwrap();
        (connection, hello)
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// What this side hears after these bytes, to the end.
    fn talk(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // It may be refused before all of it is sent, and a reset is also an end.
        let mut heard = Vec::new();
        _ = stream.write_all(bytes).and_then(|()| stream.read_to_end(&mut heard).map(drop));
        heard
    }
}

#[test]
fn a_name_passes_through_beside_others_that_end_here() {
    let edge = Edge::start("");
    assert_eq!(edge.balancer.status()["listeners"][0]["protocol"], "https");
    // By their certificates, curl knows who has answered.
    let is_plain = |host: &str, version: &str, expect: &str| {
        let heard = edge.curl(&edge.pki, host, &[version]);
        assert!(heard.starts_with("plain\n") && heard.ends_with(expect), "{heard}");
    };
    is_plain("www.example.com", "--http2", " 200 2");
    is_plain("www.example.com", "--http1.1", " 200 1.1");
    for host in ["vault.example.com", "out.wild.example.com"] {
        let heard = edge.curl(&edge.vault, host, &[]);
        assert!(
            heard.starts_with(&format!("sni {host}\nGET / HTTP/1.1\r\n")) && heard.ends_with(" 200 1.1"),
            "{heard}"
        );
        assert!(!heard.to_ascii_lowercase().contains("x-forwarded"), "nobody has touched it: {heard}");
    }
    // The more specific name, that of a route, ends here.
    is_plain("in.wild.example.com", "--http2", " 200 2");
    let subject = |words: &[&str]| {
        let heard = edge.openssl(words);
        heard
            .lines()
            .find_map(|line| line.split_once("CN=").or(line.split_once("CN = ")))
            .map(|(_, name)| name.to_owned())
    };
    assert_eq!(subject(&["-servername", "VAULT.example.com"]).as_deref(), Some("vault"));
    assert_eq!(subject(&["-servername", "www.example.com"]).as_deref(), Some("www"));
    assert_eq!(subject(&["-noservername"]).as_deref(), Some("www"));
    let alpn = edge.openssl(&["-servername", "www.example.com", "-alpn", "h2"]);
    assert!(alpn.contains("ALPN protocol: h2"), "{alpn}");
    // A browser reuses a connection whose certificate has the name, and must not get around the endpoint by that.
    let mut here = Tls::connect(&edge.pki.client(None), edge.address, "www.example.com").unwrap();
    assert_eq!(here.get("vault.example.com", "/").unwrap().0, 421);
    assert_eq!(here.get("www.example.com", "/").unwrap().0, 200);
    // They are logged as connections.
    let log = edge.scratch.path().join("access.log");
    testkit::until(PATIENCE, || {
        let text = std::fs::read_to_string(&log).ok()?;
        text.lines().any(|line| line.contains("vault") && !line.contains("GET")).then_some(())
    })
    .unwrap_or_else(|| panic!("{}", std::fs::read_to_string(&log).unwrap()));
}

#[test]
fn first_messages_in_pieces_too_long_slow_or_missing() {
    let edge = Edge::start("    header_timeout: 700ms\n");
    for (name, pki) in [("vault.example.com", &edge.vault), ("www.example.com", &edge.pki)] {
        let (mut connection, hello) = edge.hello(&pki.client(None), name);
        let mut stream = edge.connect();
        hello.iter().for_each(|byte| stream.write_all(&[*byte]).unwrap());
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).unwrap();
        }
        assert_eq!(Tls(StreamOwned::new(connection, stream)).get(name, "/").unwrap().0, 200, "{name}");
    }
    // With as many protocols as are needed to make it this long.
    let long = |bytes: usize| {
        let mut client = (*edge.vault.client(None)).clone();
        client.alpn_protocols = vec![vec![b'a'; 250]; bytes / 251];
        edge.hello(&Arc::new(client), "vault.example.com").1
    };
    let fits = long(HELLO_BYTES_MAX - 2048);
    assert!(fits.len() > 12_000 && fits.len() < HELLO_BYTES_MAX);
    // The endpoint answers with a message of its handshake.
    let (mut stream, mut first) = (edge.connect(), [0]);
    stream.write_all(&fits).unwrap();
    stream.read_exact(&mut first).unwrap();
    assert_eq!(first, [22]);
    let too_long = long(HELLO_BYTES_MAX + 1024);
    assert!(too_long.len() > HELLO_BYTES_MAX);
    assert_eq!(edge.talk(&too_long), b"");
    edge.until_refused("tls_handshake", 1.0);
    // What is no handshake ends as without `passthrough`.
    assert_eq!(edge.talk(b"\x01\x02\x03\x04\x05\x06").first(), Some(&21));
    edge.until_refused("tls_handshake", 2.0);
    let heard = edge.talk(b"GET / HTTP/1.1\r\nHost: vault.example.com\r\n\r\n");
    assert!(heard.starts_with(b"HTTP/1.1 400 Bad Request\r\n"));
    drop(edge.connect());
    edge.until_refused("client_eof", 1.0);
    // Nothing is waited for any longer than a handshake may take: neither silence, nor half a message, nor the rest of a handshake that ends here.
    edge.talk(b"");
    edge.talk(&fits[..6000]);
    edge.talk(&edge.hello(&edge.pki.client(None), "www.example.com").1);
    edge.until_refused("tls_handshake_timeout", 3.0);
}

#[test]
fn behind_a_proxy_protocol_header_and_for_clients_that_are_allowed() {
    let edge = Edge::start("    proxy_protocol: true\n    deny: 192.0.2.7\n");
    let over = |client: &str, pki: &Pki, name: &str| {
        let mut stream = edge.connect();
        stream.write_all(format!("PROXY TCP4 {client} 192.0.2.2 1 2\r\n").as_bytes()).unwrap();
        Tls::over(&pki.client(None), stream, name)?.get(name, "/").map(|(status, _)| status)
    };
    assert_eq!(over("192.0.2.1", &edge.vault, "vault.example.com").unwrap(), 200);
    assert_eq!(over("192.0.2.1", &edge.pki, "www.example.com").unwrap(), 200);
    // The one has no request that could be answered.
    assert!(over("192.0.2.7", &edge.vault, "vault.example.com").is_err());
    assert_eq!(over("192.0.2.7", &edge.pki, "www.example.com").unwrap(), 403);
    edge.until_refused("client_denied", 2.0);
}
