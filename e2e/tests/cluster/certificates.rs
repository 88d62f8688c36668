//! Certificates that are replaced while clients use them.

use std::collections::BTreeSet;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use testkit::{PATIENCE, until};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::load::{Client, Load, Lost};
use crate::site::{self, GATEWAY, GATEWAYS, Site, site};
use crate::tls::{Pki, Tls};

const HOST: &str = "secure.example.com";
const ADDRESS: SocketAddr = SocketAddr::new(GATEWAY.ip(), PORT);
const PORT: u16 = 443;

/// Clients of each kind: HTTP/1.1 and HTTP/2, on a kept connection and on new ones.
const CLIENTS: usize = 2;

const SECURE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: secure, namespace: shop}
spec:
  gatewayClassName: steelyard
  listeners: [{name: https, protocol: HTTPS, port: 443, tls: {certificateRefs: [{name: secure}]}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: secure, namespace: shop}
spec:
  parentRefs: [{name: secure}]
  hostnames: [secure.example.com]
  rules: [{backendRefs: [{name: web, port: 80}]}]
";

#[test]
fn a_certificate_is_rotated() {
    let site = site();
    let pki = Pki::new(&site.folder("certificates"));
    for name in ["old", "new"] {
        pki.issue(name, &[HOST]);
    }
    put_secret(site, &pki, "old");
    site.apply(SECURE);
    until_shown(site, &pki, "old");

    let shown = Arc::<Shown>::default();
    let load = Load::of(site, clients(&pki, &shown));
    put_secret(site, &pki, "new");
    until_shown(site, &pki, "new");
    // Every pod of the gateway has it, so no new connection gets the old one.
    let shown_later = Arc::<Shown>::default();
    Load::of(site, clients(&pki, &shown_later)).end(site, "after the rotation of a certificate");
    assert_eq!(shown_later.names(&pki), ["new"]);
    load.end(site, "rotation of a certificate");
    assert_eq!(shown.names(&pki), ["new", "old"]);

    for object in ["gateway/secure", "httproute/secure", "secret/secure"] {
        site.kubectl(&["--namespace=shop", "delete", object]);
    }
}

/// Creates or replaces the Secret.
fn put_secret(site: &Site, pki: &Pki, name: &str) {
    let flag = |flag: &str, ending: &str| format!("--{flag}={}", pki.path(&format!("{name}.{ending}")).display());
    let (cert, key) = (flag("cert", "pem"), flag("key", "key"));
    let create = ["--namespace=shop", "create", "secret", "tls", "secure", &cert, &key, "--dry-run=client", "-oyaml"];
    let manifest = site.kubectl(&create);
    site.apply(&manifest);
}

/// Waits until each pod of the gateway serves the host with this certificate.
fn until_shown(site: &Site, pki: &Pki, name: &str) {
    let (tls, expect) = (pki.client(None), pki.certificate(name));
    for address in site.addresses(&GATEWAYS) {
        let address = SocketAddr::new(address, PORT);
        let is_shown = || {
            let mut connection = Tls::connect(&tls, address, HOST).ok()?;
            // The route may come later than the certificate.
            let is_served = connection.get(HOST, "/").ok()?.0 == 200;
            (is_served && connection.shown() == expect).then_some(())
        };
        let is_shown = site.client.inside(|| until(site::PATIENCE, is_shown));
        assert!(is_shown.is_some(), "{address} does not serve {HOST} with the {name} certificate");
    }
}

/// The certificates that connections have got.
#[derive(Default)]
struct Shown(Mutex<BTreeSet<Vec<u8>>>);

impl Shown {
    fn add(&self, certificate: &[u8]) {
        self.0.lock().unwrap().insert(certificate.to_vec());
    }

    /// Their names, in alphabetical order.
    fn names(&self, pki: &Pki) -> Vec<&'static str> {
        let shown = self.0.lock().unwrap();
        ["new", "old"].into_iter().filter(|name| shown.contains(&*pki.certificate(name).to_vec())).collect()
    }
}

fn clients(pki: &Pki, shown: &Arc<Shown>) -> Vec<Client> {
    let tls = pki.client(None);
    let mut clients = Vec::new();
    for number in 0..2 * CLIENTS {
        clients.push(h1_client(tls.clone(), number < CLIENTS, shown.clone()));
        clients.push(h2_client(&tls, number < CLIENTS, shown.clone()));
    }
    clients
}

fn h1_client(tls: Arc<ClientConfig>, keeps: bool, shown: Arc<Shown>) -> Client {
    let mut kept: Option<Tls> = None;
    Box::new(move || {
        let is_reused = kept.is_some();
        let lost = |error: std::io::Error| Lost { why: format!("HTTP/1.1: {error}"), may_be_sent_again: is_reused };
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => {
                let connection = Tls::connect(&tls, ADDRESS, HOST).map_err(lost)?;
                shown.add(&connection.shown());
                connection
            }
        };
        let (status, _) = connection.get(HOST, "/").map_err(lost)?;
        kept = keeps.then_some(connection);
        Ok(status)
    })
}

fn h2_client(tls: &ClientConfig, keeps: bool, shown: Arc<Shown>) -> Client {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let connector = TlsConnector::from(Arc::new(tls));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut kept: Option<SendRequest<Bytes>> = None;
    Box::new(move || {
        let is_reused = kept.is_some();
        let asked = runtime.block_on(async { timeout(PATIENCE, ask_h2(&mut kept, &connector, &shown)).await });
        if !keeps {
            kept = None;
        }
        let lost = |why: String| Lost { why: format!("HTTP/2: {why}"), may_be_sent_again: is_reused };
        asked.map_err(|_| lost("no response in time".to_owned()))?.map_err(|error| lost(error.to_string()))
    })
}

/// Sends one request, on the kept connection or on a new one, which is kept if the request succeeds.
async fn ask_h2(
    kept: &mut Option<SendRequest<Bytes>>,
    connector: &TlsConnector,
    shown: &Shown,
) -> Result<u16, Box<dyn Error>> {
    let connection = match kept.take() {
        Some(connection) => connection,
        None => {
            let tcp = TcpStream::connect(ADDRESS).await?;
            let stream = connector.connect(ServerName::try_from(HOST)?, tcp).await?;
            let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
            certificates.iter().take(1).for_each(|certificate| shown.add(certificate));
            let (send, connection) = h2::client::handshake(stream).await?;
            tokio::spawn(connection);
            send
        }
    };
    let request = Request::get(format!("https://{HOST}/")).body(())?;
    let (response, _) = connection.clone().ready().await?.send_request(request, true)?;
    let response = response.await?;
    let status = response.status().as_u16();
    let mut body = response.into_body();
    while let Some(piece) = body.data().await {
        body.flow_control().release_capacity(piece?.len())?;
    }
    *kept = Some(connection);
    Ok(status)
}
