//! An upstream connection: one from the pool, a stream of a shared one, or a new one.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use model::{ClusterProtocol, ProxyProtocol};
use net::buffer::Buffer;
use net::timer::Timer;
use telemetry::Reason;
use tokio::io::AsyncWriteExt;
use wire::proxy_protocol;

use crate::deadline::Deadline;
use crate::downstream::captured;
use crate::downstream::watch::Watched;
use crate::error::{Error, Side};
use crate::stream::Stream;
use crate::tls;
use crate::upstream::cluster::{Cluster, Endpoint};
use crate::worker::snapshot::ClusterPlan;

/// A connection to an endpoint, in use.
pub(crate) struct Upstream {
    pub(crate) stream: Stream,
    /// Bytes that the endpoint sent and nothing has taken yet.
    pub(crate) input: Buffer,
    /// It served another request before, so the endpoint may be closing it at this moment.
    pub(crate) is_reused: bool,
}

/// The client of the connection, if the endpoint must get its address.
#[derive(Clone, Copy)]
pub(crate) struct OnBehalfOf {
    pub(crate) client: SocketAddr,
    /// Whether `client` is the client. It is not if a PROXY protocol header says that there is one, and not where.
    pub(crate) is_known: bool,
    pub(crate) local: SocketAddr,
}

/// The kind of connection that is wanted, and until when.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'w> {
    pub(crate) who: &'w OnBehalfOf,
    /// The client whose departure ends the wait for a connection; `None` if there is no such client.
    pub(crate) client: Option<Watched<'w>>,
    /// When the request began, in microseconds, because a connection may be made and used twice within a millisecond.
    pub(crate) begun_us: u64,
    /// Only a connection that is made now, or (if several requests share one) was made since then; `None` if any will do.
    pub(crate) fresh_since_us: Option<u64>,
    pub(crate) now_ms: u64,
    /// The end of the request's time.
    pub(crate) deadline: Deadline,
}

/// Returns a pooled connection, a stream of a shared one, or a new connection.
///
/// # Errors
/// [`Reason::ConnectRefused`], [`Reason::ConnectTimeout`], [`Reason::ConnectFailed`], [`Reason::UpstreamTls`] and its kinds,
/// [`Reason::UpstreamH2`], each of the upstream side; [`Reason::NoLocalResources`]; those of [`Error::client_io`] if the client leaves
/// meanwhile. In all cases nothing was sent.
pub(crate) async fn checkout(
    cluster: &Cluster,
    endpoint: &Rc<Endpoint>,
    wanted: &Wanted<'_>,
    timer: &Timer,
) -> Result<Upstream, Error> {
    if cluster.plan.policy.protocol == ClusterProtocol::H2 {
        let (handle, is_reused) = match endpoint.pool.mux().try_reserve(wanted) {
            Some(reserved) => reserved,
            // Boxed, here and below, so that a request that does not wait for a connection does not need the memory for it.
            None => {
                Box::pin(unless_gone(wanted, endpoint.pool.mux().reserve(cluster, endpoint, wanted, timer))).await?
            }
        };
        if is_reused {
            cluster.counters.reused.inc();
        }
        return Ok(Upstream { stream: Stream::H2(handle), input: Buffer::none(), is_reused });
    }
    if wanted.fresh_since_us.is_none()
        && let Some(stream) = endpoint.pool.take(wanted.now_ms)
    {
        cluster.counters.reused.inc();
        return Ok(Upstream { stream, input: Buffer::none(), is_reused: true });
    }
    Box::pin(unless_gone(wanted, connect(cluster, endpoint, wanted, timer))).await
}

/// Waits for a connection as long as the client is there. A request that was not sent yet is not sent for a client that has left.
///
/// # Errors
/// Those of `made`; those of [`Error::client_io`] if the client leaves meanwhile.
pub(crate) async fn unless_gone<T>(
    wanted: &Wanted<'_>,
    made: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let Some(client) = wanted.client else { return made.await };
    tokio::select! {
        biased;
        error = client.gone() => Err(error),
        made = made => made,
    }
}

/// Opens a connection that is not shared, whatever the cluster's protocol is.
///
/// # Errors
/// Those of [`checkout`].
pub(crate) async fn connect(
    cluster: &Cluster,
    endpoint: &Endpoint,
    wanted: &Wanted<'_>,
    timer: &Timer,
) -> Result<Upstream, Error> {
    let Wanted { who, now_ms, deadline, .. } = *wanted;
    cluster.counters.connects.inc();
    timer.set(deadline.limit(now_ms.saturating_add(crate::millis(cluster.plan.policy.connect_timeout))));
    let error = match timer.guard(open(&cluster.plan, endpoint, *who)).await {
        Ok(Ok(stream)) => return Ok(Upstream { stream, input: Buffer::none(), is_reused: false }),
        Err(_) if deadline.is_over(net::clock::now_ms()) => Error::upstream(Reason::RequestTimeout),
        Err(_) => Error::upstream(Reason::ConnectTimeout),
        Ok(Err(error)) => failure(error),
    };
    if error.side == Side::Upstream {
        cluster.counters.connect_failures.inc();
    }
    Err(error)
}

/// Maps a failed connect to the side that caused it.
pub(crate) fn failure(error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::ConnectionRefused {
        Error::upstream(Reason::ConnectRefused).because(error)
    } else if is_local(&error) {
        // This host's failure: the endpoint is not blamed, and another one would not do better.
        Error::internal(Reason::NoLocalResources).because(error)
    } else {
        Error::upstream(tls::reason(&error).unwrap_or(Reason::ConnectFailed)).because(error)
    }
}

/// Whether an endpoint could not be reached, and so did no work. An endpoint that does not answer may be busy, and one whose handshake
/// fails has worked for it: both should get less work, not more. One that goes away during a TLS handshake is [`Reason::ConnectFailed`],
/// and so counts as unreachable.
pub(crate) fn is_unreachable(error: &Error) -> bool {
    matches!(error.reason, Reason::ConnectRefused | Reason::ConnectFailed)
}

/// Whether descriptors, buffers, memory, or ports for the address have run out.
fn is_local(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let local = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
    local.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Connects, and does the handshakes.
///
/// # Errors
/// Those that [`failure`] distinguishes.
pub(crate) async fn open(plan: &ClusterPlan, endpoint: &Endpoint, who: OnBehalfOf) -> io::Result<Stream> {
    let address = endpoint.state.address();
    // What was resolved was judged before. An address that was written is judged here alone.
    if plan.policy.outside.as_ref().is_some_and(|outside| !outside.reach.allows(address.ip())) {
        return Err(io::Error::other("the address is not one that hosts outside of the cluster may have"));
    }
    let is_within = plan.is_within && !address.ip().is_loopback() && net::socket::is_own(address.ip());
    let mut stream = match is_within {
        true => net::socket::connect_from(captured::within(address), address).await?,
        false => net::socket::connect(address).await?,
    };
    if let Some(version) = plan.policy.send_proxy_protocol {
        let version = match version {
            ProxyProtocol::V1 => proxy_protocol::Version::V1,
            ProxyProtocol::V2 => proxy_protocol::Version::V2,
        };
        let mut bytes = Vec::new();
        proxy_protocol::encode(version, who.client, who.local, &mut bytes);
        stream.write_all(&bytes).await?;
    }
    match &plan.tls {
        // Its keys could not be made, and nothing is sent in the clear instead.
        None if plan.policy.tls.is_some() => Err(io::Error::other("TLS with the endpoint cannot be set up")),
        None => Ok(Stream::Plain(stream)),
        // Boxed, so that plain-text connections do not need the memory for a handshake.
        Some(keys) => {
            let secured = Box::pin(keys.connect(stream, address, endpoint.host.as_deref())).await;
            match &secured {
                Ok(_) => endpoint.state.clear_failure(),
                Err(error) => endpoint.state.note_failure(&format!("TLS: {}", tls::told(error))),
            }
            Ok(Stream::Tls(Box::new(secured?)))
        }
    }
}
