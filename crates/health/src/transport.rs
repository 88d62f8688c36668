//! How a probe reaches its endpoint: the PROXY protocol header, TLS, and the HTTP version.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use model::{ClusterProtocol, ProxyProtocol};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A connection on which a probe asks.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A handshake that is under way.
pub type Handshaking<'h> = Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send + 'h>>;

/// Makes a TCP connection one within TLS, as requests to the cluster do: what is believed of a probe is believed of them.
pub trait Handshake: Send + Sync {
    /// Tells one from another for as long as it lives: two that give the same do the same.
    fn id(&self) -> usize;

    /// Does the handshake with the endpoint at `address`, which was found by the name `host`.
    fn handshake<'h>(&'h self, tcp: TcpStream, address: SocketAddr, host: Option<&'h str>) -> Handshaking<'h>;
}

/// How a probe talks to its endpoint. Probes of one endpoint that agree in it are made once.
#[derive(Clone, Default)]
pub struct ProbeTransport {
    /// The cluster's [`model::Cluster::send_proxy_protocol`]: an endpoint that expects the header expects it of a probe, too.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// What the cluster speaks, and so a probe over HTTP.
    pub protocol: ClusterProtocol,
    /// Where the cluster speaks TLS; probes of TCP alone do without.
    pub tls: Option<Arc<dyn Handshake>>,
    /// The name by which the endpoint was found.
    pub host: Option<String>,
}

impl PartialEq for ProbeTransport {
    fn eq(&self, other: &Self) -> bool {
        let tls = match (&self.tls, &other.tls) {
            (Some(one), Some(two)) => one.id() == two.id(),
            (one, two) => one.is_none() && two.is_none(),
        };
        tls && (self.proxy_protocol, self.protocol, &self.host) == (other.proxy_protocol, other.protocol, &other.host)
    }
}

impl fmt::Debug for ProbeTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { proxy_protocol, protocol, tls, host } = self;
        write!(f, "{proxy_protocol:?} {protocol:?} tls={} host={host:?}", tls.is_some())
    }
}
