//! The setup for the suites: one Steelyard with a listener for each combination of protocols, and the origins behind
//! it.

use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{Program, free_port};

use super::tools::Tools;
use crate::command::{capture, command};

/// The protocol of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Cleartext HTTP/2, with prior knowledge.
    H2c,
    /// HTTP/2 over TLS, by ALPN.
    Tls,
}

impl Side {
    pub const ALL: [Self; 2] = [Self::H2c, Self::Tls];
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::H2c { "h2c" } else { "tls" })
    }
}

/// The name on the certificate.
pub const HOST: &str = "steelyard.test";

/// Everything that runs. Dropping it stops it.
pub struct Field {
    listeners: Vec<Listener>,
    /// The certificate of the balancer, which the clients trust.
    pub certificate: PathBuf,
    _programs: Vec<Program>,
}

struct Listener {
    side: Side,
    to: &'static str,
    port: u16,
}

/// The clusters: the name, the protocol of the endpoints, and how the origin is started.
const ORIGINS: [(&str, &str); 3] = [("h1", "h1"), ("h2c", "h2c"), ("grpc", "h2c")];

impl Field {
    /// Starts the origins and the balancer. All of them accept connections when this returns.
    pub fn start(steelyard: &Path, tools: &Tools, directory: &Path) -> Result<Self, String> {
        let certificate = make_certificate(directory)?;
        let mut programs = Vec::new();
        let mut clusters = String::new();
        for (name, protocol) in ORIGINS {
            let port = free_port().map_err(|error| error.to_string())?;
            let mut command = match name {
                "grpc" => Command::new(&tools.server),
                _ => Command::new(steelyard),
            };
            let listen = format!("127.0.0.1:{port}");
            match name {
                "h1" => command.args(["origin", "http", "--listen", &listen]),
                "h2c" => command.args(["origin", "grpc", "--listen", &listen]),
                _ => command.args(["-port", &port.to_string()]),
            };
            programs.push(start(name, &mut command, &[port])?);
            clusters += &format!("  {name}: {{endpoints: ['{listen}'], protocol: {protocol}}}\n");
        }
        let listeners = listeners()?;
        let config = configuration(&listeners, &clusters, &certificate, directory);
        let file = directory.join("steelyard.yaml");
        std::fs::write(&file, config).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        let ports: Vec<u16> = listeners.iter().map(|listener| listener.port).collect();
        let mut command = Command::new(steelyard);
        // Two workers, because the suites must also pass when connections are spread over workers.
        command.args(["serve", "--workers", "2", "-c"]).arg(&file);
        programs.push(start("steelyard", &mut command, &ports)?);
        Ok(Self { listeners, certificate, _programs: programs })
    }

    /// The address for h2spec with this client protocol, and the origin behind it.
    pub fn h2spec_ports(&self, side: Side) -> impl Iterator<Item = (&'static str, u16)> {
        let of_side = self.listeners.iter().filter(move |listener| listener.side == side && listener.to != "grpc");
        of_side.map(|listener| (listener.to, listener.port))
    }

    /// The address of the gRPC suite's server.
    pub fn grpc_address(&self, side: Side) -> String {
        let port = self.listeners.iter().find(|listener| listener.side == side && listener.to == "grpc");
        format!("127.0.0.1:{}", port.map_or(0, |listener| listener.port))
    }
}

fn listeners() -> Result<Vec<Listener>, String> {
    let mut listeners = Vec::new();
    for side in Side::ALL {
        for (to, _) in ORIGINS {
            let port = free_port().map_err(|error| error.to_string())?;
            listeners.push(Listener { side, to, port });
        }
    }
    Ok(listeners)
}

fn configuration(listeners: &[Listener], clusters: &str, certificate: &Path, directory: &Path) -> String {
    let mut text = String::from("listeners:\n");
    for Listener { side, to, port } in listeners {
        let protocol = match side {
            Side::H2c => "http".to_owned(),
            Side::Tls => {
                let key = key(directory);
                format!("https, tls: {{certificates: [{{cert: {}, key: {}}}]}}", certificate.display(), key.display())
            }
        };
        text += &format!("  {side}_{to}: {{bind: '127.0.0.1:{port}', protocol: {protocol}, to: {to}}}\n");
    }
    text + "clusters:\n" + clusters
}

fn key(directory: &Path) -> PathBuf {
    directory.join("key.pem")
}

/// A self-signed certificate that is valid for a day.
fn make_certificate(directory: &Path) -> Result<PathBuf, String> {
    let (certificate, key) = (directory.join("certificate.pem"), key(directory));
    let names = format!("subjectAltName=DNS:{HOST},IP:127.0.0.1");
    let subject = format!("/CN={HOST}");
    let mut openssl = command("openssl", &["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    openssl.args(["-nodes", "-days", "1", "-subj", &subject, "-addext", &names, "-keyout"]).arg(&key);
    capture(openssl.arg("-out").arg(&certificate))?;
    Ok(certificate)
}

/// Starts a program and waits until it accepts connections on these ports.
pub fn start(name: &str, command: &mut Command, ports: &[u16]) -> Result<Program, String> {
    let failed = |failure: testkit::Failure| failure.to_string();
    let mut program = Program::spawn(name, command).map_err(failed)?;
    for port in ports {
        let address = SocketAddr::from(([127, 0, 0, 1], *port));
        program.until("accepting", || TcpStream::connect(address).ok()).map_err(failed)?;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_for_each_mixture() {
        let listeners = listeners().unwrap();
        let text = configuration(&listeners, "  x: {}\n", Path::new("/c.pem"), Path::new("/d"));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 6 + 2);
        assert!(lines[1].starts_with("  h2c_h1: {bind: '127.0.0.1:") && lines[1].ends_with("protocol: http, to: h1}"));
        let tls = "protocol: https, tls: {certificates: [{cert: /c.pem, key: /d/key.pem}]}, to: grpc}";
        assert!(lines[6].starts_with("  tls_grpc: ") && lines[6].ends_with(tls), "{}", lines[6]);
    }
}
