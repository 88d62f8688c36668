//! Certificates made for a test, and a TLS client and origin that use them.
#![allow(dead_code, reason = "each test binary compiles all of it and uses its part")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa, KeyIdMethod,
    KeyPair, RevokedCertParams, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use testkit::PATIENCE;

/// An authority, and a folder with the certificates that it signed.
pub struct Pki {
    folder: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    /// `ca.pem` in the folder is its own certificate.
    pub fn new(folder: &Path) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, folder.display().to_string());
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::create_dir_all(folder).unwrap();
        let pki = Self { folder: folder.to_owned(), issuer };
        pki.put("ca.pem", &pki.issuer.pem());
        pki
    }

    /// Writes `NAME.pem` and `NAME.key`, for these hosts, addresses and URIs.
    pub fn issue(&self, name: &str, hosts: &[&str]) {
        self.issue_with(name, hosts, |_| {});
    }

    /// The same, for a certificate that has expired.
    pub fn issue_expired(&self, name: &str, hosts: &[&str]) {
        self.issue_with(name, hosts, |params| {
            params.not_before = rcgen::date_time_ymd(2019, 1, 1);
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        });
    }

    /// The same, for a certificate that expires after this time.
    pub fn issue_for(&self, name: &str, hosts: &[&str], valid: Duration) {
        self.issue_with(name, hosts, |params| params.not_after = (SystemTime::now() + valid).into());
    }

    /// The same, for a certificate that says it is a CA's, as `openssl req -x509` makes them.
    pub fn issue_ca(&self, name: &str, hosts: &[&str]) {
        self.issue_with(name, hosts, |params| {
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        });
    }

    /// The same, for a certificate with this number.
    pub fn issue_numbered(&self, name: &str, number: u64) {
        self.issue_with(name, &[name], |params| params.serial_number = Some(number.into()));
    }

    /// Writes a list of revoked certificates with these numbers, made and due on the first day of these years.
    pub fn revoke(&self, file: &str, numbers: &[u64], (made, due): (i32, i32)) {
        let revoked = numbers.iter().map(|number| RevokedCertParams {
            serial_number: (*number).into(),
            revocation_time: rcgen::date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(made, 1, 1),
            next_update: rcgen::date_time_ymd(due, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        self.put(file, &list.signed_by(&self.issuer).unwrap().pem().unwrap());
    }

    fn issue_with(&self, name: &str, hosts: &[&str], change: impl FnOnce(&mut CertificateParams)) {
        let (uris, hosts): (Vec<&str>, Vec<&str>) = hosts.iter().partition(|name| name.contains("://"));
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(hosts.into_iter().map(str::to_owned).collect::<Vec<_>>()).unwrap();
        let uris = uris.into_iter().map(|uri| SanType::URI(uri.try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        self.put(&format!("{name}.key"), &key.serialize_pem());
        self.put(&format!("{name}.pem"), &certificate.pem());
    }

    /// Replaces a file atomically.
    pub fn put(&self, name: &str, text: &str) {
        let (path, new) = (self.path(name), self.path(&format!("{name}.new")));
        fs::write(&new, text).unwrap();
        fs::rename(&new, &path).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn certificate(&self, name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.path(&format!("{name}.pem"))).unwrap()
    }

    fn key(&self, name: &str) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).unwrap()
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate("ca")).unwrap();
        roots
    }

    /// A client that trusts this authority, and shows the certificate with this name, signed by `clients`.
    pub fn client(&self, shows: Option<(&Pki, &str)>) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(self.roots());
        Arc::new(match shows {
            None => builder.with_no_client_auth(),
            Some((pki, name)) => builder.with_client_auth_cert(vec![pki.certificate(name)], pki.key(name)).unwrap(),
        })
    }

    /// An origin with this certificate, which asks clients for one of `clients`. Each connection carries one request, and the answer
    /// contains its head.
    pub fn origin(&self, name: &str, clients: Option<&Pki>) -> SocketAddr {
        self.origin_at(SocketAddr::from(([127, 0, 0, 1], 0)), name, clients)
    }

    /// The server configuration of an origin with this certificate.
    pub fn server(&self, name: &str) -> ServerConfig {
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_no_client_auth();
        builder.with_single_cert(vec![self.certificate(name)], self.key(name)).unwrap()
    }

    /// The same at this address.
    pub fn origin_at(&self, address: SocketAddr, name: &str, clients: Option<&Pki>) -> SocketAddr {
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let roots = Arc::new(clients.roots());
                let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider());
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let config = Arc::new(builder.with_single_cert(vec![self.certificate(name)], self.key(name)).unwrap());
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        // It ends with the process, and holds nothing that a test needs.
        let _serving: JoinHandle<()> = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Some tests abort the handshake.
                _ = answer(stream, config.clone());
            }
        });
        address
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn answer(stream: TcpStream, config: Arc<ServerConfig>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut stream = BufReader::new(StreamOwned::new(connection, stream));
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let sni = stream.get_ref().conn.server_name().unwrap_or("-").to_owned();
    let body = format!("sni {sni}\n{head}");
    let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
    let stream = stream.get_mut();
    stream.write_all(text.as_bytes())?;
    stream.conn.send_close_notify();
    stream.flush()
}

/// A client's connection after the handshake.
pub struct Tls(pub StreamOwned<ClientConnection, TcpStream>);

impl Tls {
    pub fn connect(config: &Arc<ClientConfig>, address: SocketAddr, name: &str) -> std::io::Result<Self> {
        Self::over(config, TcpStream::connect(address)?, name)
    }

    pub fn over(config: &Arc<ClientConfig>, stream: TcpStream, name: &str) -> std::io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let connection = ClientConnection::new(config.clone(), name).map_err(std::io::Error::other)?;
        let mut tls = Self(StreamOwned::new(connection, stream));
        while tls.0.conn.is_handshaking() {
            tls.0.conn.complete_io(&mut tls.0.sock)?;
        }
        Ok(tls)
    }

    /// The certificate that the server showed.
    pub fn shown(&self) -> CertificateDer<'static> {
        self.0.conn.peer_certificates().unwrap()[0].clone().into_owned()
    }

    /// Sends a request, and reads a response that has a length. Returns its status and its body.
    pub fn ask(&mut self, head: &str, body: &[u8]) -> std::io::Result<(u16, Vec<u8>)> {
        self.0.write_all(head.as_bytes())?;
        self.0.write_all(body)?;
        self.0.flush()?;
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte)?;
            text.push(byte[0]);
        }
        let text = String::from_utf8(text).unwrap().to_ascii_lowercase();
        let status = text.split(' ').nth(1).unwrap().parse().unwrap();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        self.0.read_exact(&mut body)?;
        Ok((status, body))
    }

    pub fn get(&mut self, host: &str, path: &str) -> std::io::Result<(u16, Vec<u8>)> {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"), b"")
    }
}
