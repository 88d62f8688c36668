//! Stands between a controller and its API server, in the clear towards the controller, and can hold back the answers to writes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Passes requests on, each on a connection of its own. What it holds back has been done by the API server all the same.
pub struct Holding {
    pub address: SocketAddr,
    held: Arc<Held>,
}

#[derive(Default)]
struct Held {
    is_held: Mutex<bool>,
    changed: Condvar,
}

impl Holding {
    /// Passes on to an API server whose certificate was signed by that of the file `ca`.
    pub fn start(to: SocketAddr, ca: &Path) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let held = Arc::new(Held::default());
        let holding = held.clone();
        // Ends with the process: it holds nothing that a test could miss.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, held) = (config.clone(), holding.clone());
                // Whoever asked is told by the end of its connection.
                std::thread::spawn(move || _ = pass(&stream, to, config, &held));
            }
        });
        Self { address, held }
    }

    /// No answer to a PATCH comes back from now on.
    pub fn hold(&self) {
        *self.held.is_held.lock().unwrap() = true;
    }

    /// All of them do.
    pub fn let_go(&self) {
        *self.held.is_held.lock().unwrap() = false;
        self.held.changed.notify_all();
    }
}

/// One request and its answer, to the end of the connection.
fn pass(client: &TcpStream, to: SocketAddr, config: Arc<ClientConfig>, held: &Held) -> std::io::Result<()> {
    let mut reader = BufReader::new(client);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().map_err(std::io::Error::other)?;
        }
        if line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;

    let name = ServerName::IpAddress(to.ip().into());
    let connection = ClientConnection::new(config, name).map_err(std::io::Error::other)?;
    let mut server = StreamOwned::new(connection, TcpStream::connect(to)?);
    server.write_all(format!("{head}connection: close\r\n\r\n").as_bytes())?;
    server.write_all(&body)?;
    let mut client = client;
    if head.starts_with("PATCH ") {
        let mut answer = Vec::new();
        // A server that ends without a farewell has said all the same what it had to say.
        _ = server.read_to_end(&mut answer);
        let mut is_held = held.is_held.lock().unwrap();
        while *is_held {
            is_held = held.changed.wait(is_held).unwrap();
        }
        return client.write_all(&answer);
    }
    let mut piece = vec![0; 65_536];
    while let Ok(count @ 1..) = server.read(&mut piece) {
        client.write_all(&piece[..count])?;
    }
    Ok(())
}
