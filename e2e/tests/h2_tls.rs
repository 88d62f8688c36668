//! HTTP/2 over TLS on both sides: negotiated by ALPN, and for the hosts that a connection was made for.
#![forbid(unsafe_code)]

#[path = "support/sides.rs"]
mod sides;
mod support;
#[path = "support/tls.rs"]
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use rustls::pki_types::ServerName;
use sides::{Ask, BIG, Client, Side, Speaks, pattern, runtime, shake};
use support::{Scratch, Steelyard, local, port};
use testkit::PATIENCE;
use tls::{Pki, Tls};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// A listener with two certificates, in front of one origin.
struct Edge {
    balancer: Steelyard,
    address: SocketAddr,
    pki: Pki,
    config: String,
    _origin: Side,
    _scratch: Scratch,
}

impl Edge {
    fn start() -> Self {
        Self::with("")
    }

    /// With these further keys of the listener, each in a line of its own.
    fn with(keys: &str) -> Self {
        let scratch = Scratch::new();
        let pki = Pki::new(&scratch.path().join("tls"));
        pki.issue("www", &["example.com", "www.example.com"]);
        pki.issue("other", &["other.example.com"]);
        let origin = Side::start(Speaks::H1);
        let address = local(port());
        let pair = |name: &str| {
            let path = |suffix: &str| pki.path(&format!("{name}.{suffix}")).display().to_string();
            format!("{{cert: {}, key: {}}}", path("pem"), path("key"))
        };
        let config = format!(
            "admin: {{admin}}
listeners:
  edge:
    bind: {address}
    protocol: https
    tls: {{certificates: [{}, {}]}}
    to: web
{keys}clusters:
  web: {{endpoints: [{}]}}
",
            pair("www"),
            pair("other"),
            origin.address
        );
        Self { balancer: Steelyard::serve(&config, 1), address, pki, config, _origin: origin, _scratch: scratch }
    }

    /// A connection of a client that offers these protocols, and the negotiated one.
    async fn connect(&self, offers: &[&str]) -> (tokio_rustls::client::TlsStream<TcpStream>, Option<String>) {
        let mut config = (*self.pki.client(None)).clone();
        config.alpn_protocols = offers.iter().map(|offer| offer.as_bytes().to_vec()).collect();
        let tcp = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("www.example.com").unwrap();
        let stream = timeout(PATIENCE, TlsConnector::from(Arc::new(config)).connect(name, tcp)).await.unwrap().unwrap();
        let agreed = stream.get_ref().1.alpn_protocol().map(|protocol| String::from_utf8_lossy(protocol).into_owned());
        (stream, agreed)
    }
}

/// The status of GET for a host.
async fn get(send: &SendRequest<Bytes>, host: &str) -> u16 {
    let request = Request::get(format!("https://{host}/small")).body(()).unwrap();
    let (response, _) = send.clone().ready().await.unwrap().send_request(request, true).unwrap();
    timeout(PATIENCE, response).await.unwrap().unwrap().status().as_u16()
}

/// A client that was admitted without a certificate must not stay when the listener begins to ask for one.
#[test]
fn a_connection_whose_client_is_no_longer_admitted_ends() {
    let mut edge = Edge::start();
    let clients = Pki::new(&edge.pki.path("clients"));
    let runtime = runtime();
    let (send, ended) = runtime.block_on(async {
        let (stream, _) = edge.connect(&["h2"]).await;
        let (send, connection) = h2::client::handshake(stream).await.unwrap();
        let ended = tokio::spawn(connection);
        assert_eq!(get(&send, "www.example.com").await, 200);
        (send, ended)
    });
    let config =
        edge.config.replace("tls: {", &format!("tls: {{client_ca: {{ca: {}}}, ", clients.path("ca.pem").display()));
    let before = edge.balancer.generation();
    edge.balancer.reload(&config, |status| status["generation"].as_u64() > Some(before));
    runtime.block_on(async {
        assert_eq!(get(&send, "www.example.com").await, 421);
        // GOAWAY, so that the client repeats the request on another connection.
        timeout(PATIENCE, ended).await.expect("the connection stays").unwrap().unwrap();
        drop(send);
    });
}

#[test]
fn what_is_spoken_is_agreed_upon() {
    let edge = Edge::start();
    runtime().block_on(async {
        let (stream, agreed) = edge.connect(&["http/1.1", "h2"]).await;
        assert_eq!(agreed.as_deref(), Some("h2"));
        assert_eq!(get(&shake(stream).await, "www.example.com").await, 200);
        for (offers, expect) in [(&["http/1.1"][..], Some("http/1.1")), (&[], None)] {
            assert_eq!(edge.connect(offers).await.1.as_deref(), expect);
        }
    });
    // Without ALPN it is HTTP/1.1, as always.
    let mut tls = Tls::connect(&edge.pki.client(None), edge.address, "www.example.com").unwrap();
    assert_eq!(tls.get("www.example.com", "/small").unwrap().0, 200);
}

#[test]
fn a_listener_without_http2_does_not_offer_it() {
    let edge = Edge::with("    http2: false\n");
    runtime().block_on(async {
        for (offers, expect) in [(&["h2", "http/1.1"][..], Some("http/1.1")), (&[], None)] {
            assert_eq!(edge.connect(offers).await.1.as_deref(), expect);
        }
    });
    let mut tls = Tls::connect(&edge.pki.client(None), edge.address, "www.example.com").unwrap();
    assert_eq!(tls.get("www.example.com", "/small").unwrap().0, 200);
    // A client that speaks nothing else is told so (RFC 7301 section 3.2).
    let mut config = (*edge.pki.client(None)).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let Err(refused) = Tls::connect(&Arc::new(config), edge.address, "www.example.com") else { panic!("connected") };
    assert!(refused.to_string().contains("NoApplicationProtocol"), "{refused}");
}

#[test]
fn a_connection_serves_the_hosts_that_it_was_made_for() {
    let edge = Edge::start();
    runtime().block_on(async {
        let send = shake(edge.connect(&["h2"]).await.0).await;
        assert_eq!(get(&send, "www.example.com").await, 200);
        assert_eq!(get(&send, "example.com:8443").await, 200);
        assert_eq!(get(&send, "other.example.com").await, 421);
        // The connection continues.
        assert_eq!(get(&send, "www.example.com").await, 200);
    });
    let labels = [("listener", "edge"), ("reason", "misdirected")];
    assert_eq!(edge.balancer.metric("steelyard_refused_total", &labels), 1.0);
}

/// A plain-text balancer in front of a TLS endpoint.
fn before(endpoint: SocketAddr, pki: &Pki) -> (Steelyard, SocketAddr) {
    let address = local(port());
    let ca = pki.path("ca.pem").display().to_string();
    let config = format!(
        "admin: {{admin}}
listeners:
  web: {{bind: {address}, protocol: http, to: web}}
clusters:
  web: {{endpoints: [{endpoint}], protocol: h2, tls: {{ca: {ca}, server_name: example.com}}}}
"
    );
    (Steelyard::serve(&config, 1), address)
}

#[test]
fn endpoints_speak_it_within_tls() {
    let edge = Edge::start();
    let (balancer, address) = before(edge.address, &edge.pki);
    runtime().block_on(async {
        for speaks in [Speaks::H1, Speaks::H2] {
            let mut client = Client::connect(speaks, address).await;
            assert_eq!(client.ask(&Ask::get("/small")).await.unwrap().body, b"small");
            let body = pattern(BIG);
            let echoed = client.ask(&Ask { trailers: &[("x-up", "1")], ..Ask::post("/echo", &body) }).await.unwrap();
            assert!(echoed.body == body, "{} bytes", echoed.body.len());
            assert_eq!((echoed.trailer("x-sum"), echoed.trailer("x-came")), (Some("3000000"), Some("1")));
        }
    });
    // One connection carried all of it.
    assert_eq!(balancer.metric("steelyard_cluster_connects_total", &[("cluster", "web")]), 1.0);
}

#[test]
fn an_endpoint_that_does_not_agree_is_not_spoken_to() {
    let scratch = Scratch::new();
    let pki = Pki::new(&scratch.path().join("tls"));
    pki.issue("www", &["example.com"]);
    let (balancer, address) = before(pki.origin("www", None), &pki);
    runtime().block_on(async {
        let mut client = Client::connect(Speaks::H2, address).await;
        assert_eq!(client.ask(&Ask::get("/small")).await.unwrap().status, 502);
    });
    let labels = [("listener", "web"), ("reason", "upstream_tls")];
    assert_eq!(balancer.metric("steelyard_refused_total", &labels), 1.0);
}
