//! An upstream connection: one from the pool, or a new one.

use std::io;
use std::net::SocketAddr;

use model::ProxyProtocol;
use net::buffer::Buffer;
use net::timer::Timer;
use telemetry::Reason;
use tokio::io::AsyncWriteExt;
use wire::proxy_protocol;

use crate::cluster::{Cluster, Endpoint};
use crate::error::Error;
use crate::stream::Stream;
use crate::tls;

/// A connection to an endpoint, in use.
pub(crate) struct Upstream {
    pub(crate) stream: Stream,
    /// What the endpoint sent and nobody took yet.
    pub(crate) input: Buffer,
    /// It served another request before: the endpoint may be closing it this very moment.
    pub(crate) is_reused: bool,
}

/// Who the connection is for, where the endpoint is to be told.
#[derive(Clone, Copy)]
pub(crate) struct OnBehalfOf {
    pub(crate) client: SocketAddr,
    pub(crate) local: SocketAddr,
}

/// Gives a pooled connection, or opens one. `fresh` asks for a new one.
///
/// # Errors
/// [`Reason::ConnectRefused`], [`Reason::ConnectTimeout`], [`Reason::ConnectFailed`], each of the upstream side; for any of them nothing
/// was sent.
pub(crate) async fn checkout(
    cluster: &Cluster,
    endpoint: &Endpoint,
    who: OnBehalfOf,
    fresh: bool,
    timer: &Timer,
    now_ms: u64,
    deadline_ms: u64,
) -> Result<Upstream, Error> {
    if !fresh && let Some(stream) = endpoint.pool.take(now_ms) {
        cluster.counters.reused.inc();
        return Ok(Upstream { stream, input: Buffer::none(), is_reused: true });
    }
    connect(cluster, endpoint, who, timer, now_ms, deadline_ms).await
}

async fn connect(
    cluster: &Cluster,
    endpoint: &Endpoint,
    who: OnBehalfOf,
    timer: &Timer,
    now_ms: u64,
    deadline_ms: u64,
) -> Result<Upstream, Error> {
    let policy = &cluster.plan.policy;
    cluster.counters.connects.inc();
    timer.set(now_ms.saturating_add(crate::millis(policy.connect_timeout)).min(deadline_ms));
    let opened = timer.guard(open(cluster, endpoint, who)).await;
    let error = match opened {
        Ok(Ok(stream)) => return Ok(Upstream { stream, input: Buffer::none(), is_reused: false }),
        Err(_) if net::clock::now_ms() >= deadline_ms => Error::upstream(Reason::RequestTimeout),
        Err(_) => Error::upstream(Reason::ConnectTimeout),
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Error::upstream(Reason::ConnectRefused).because(error)
        }
        // Ours, not the endpoint's: it is not blamed, and another one would fare no better.
        Ok(Err(error)) if is_local(&error) => return Err(Error::internal(Reason::NoLocalResources).because(error)),
        Ok(Err(error)) if tls::is_of_tls(&error) => Error::upstream(Reason::UpstreamTls).because(error),
        Ok(Err(error)) => Error::upstream(Reason::ConnectFailed).because(error),
    };
    cluster.counters.connect_failures.inc();
    Err(error)
}

/// Out of descriptors, buffers, memory, or ports for the address.
fn is_local(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let local = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
    local.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

async fn open(cluster: &Cluster, endpoint: &Endpoint, who: OnBehalfOf) -> io::Result<Stream> {
    let address = endpoint.state.address();
    let mut stream = net::socket::connect(address).await?;
    if let Some(version) = cluster.plan.policy.send_proxy_protocol {
        let version = match version {
            ProxyProtocol::V1 => proxy_protocol::Version::V1,
            ProxyProtocol::V2 => proxy_protocol::Version::V2,
        };
        let mut bytes = Vec::new();
        proxy_protocol::encode(version, who.client, who.local, &mut bytes);
        stream.write_all(&bytes).await?;
    }
    match &cluster.plan.tls {
        None => Ok(Stream::Plain(stream)),
        // In a box: connections in the clear do not pay for the room that a handshake takes.
        Some(keys) => {
            let secured = Box::pin(keys.connect(stream, address, endpoint.host.as_deref())).await?;
            Ok(Stream::Tls(Box::new(secured)))
        }
    }
}
