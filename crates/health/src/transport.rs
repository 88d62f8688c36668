//! How a probe reaches its endpoint: the PROXY protocol header, TLS, and the HTTP version.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use model::{ClusterProtocol, ProxyProtocol};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A connection on which a probe sends its request.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A handshake in progress.
pub type Handshaking<'h> = Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send + 'h>>;

/// Does the TLS handshake on a TCP connection like requests to the cluster, so that the result of a probe is also valid for them.
pub trait Handshake: Send + Sync {
    /// Identifies it as long as it lives: two with the same id do the same.
    fn id(&self) -> usize;

    /// Does the handshake with the endpoint at `address`, which was resolved from the name `host`.
    fn handshake<'h>(&'h self, tcp: TcpStream, address: SocketAddr, host: Option<&'h str>) -> Handshaking<'h>;
}

/// How a probe connects to its endpoint. Probes of one endpoint with the same transport are made once.
#[derive(Clone, Default)]
pub struct ProbeTransport {
    /// The cluster's [`model::Cluster::send_proxy_protocol`]: an endpoint that expects the header expects it from a probe, too.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// The cluster's protocol, which a probe over HTTP also uses.
    pub protocol: ClusterProtocol,
    /// Set if the cluster uses TLS; probes that only test TCP do not use it.
    pub tls: Option<Arc<dyn Handshake>>,
    /// The name from which the endpoint was resolved.
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
