//! One downstream connection of a TLS passthrough listener: read the name that the client asks for, choose a cluster, relay. Nothing is
//! decrypted.

use std::future::poll_fn;
use std::rc::Rc;

use model::{HostMatcher, PassthroughListener, Protocol};
use net::buffer::{Buffer, SMALL_BYTES};
use net::clock;
use net::timer::Timer;
use rustls::server::Acceptor;
use telemetry::Reason;
use tokio::net::TcpStream;

use crate::error::Error;
use crate::stream::Stream;
use crate::tcp;
use crate::upstream::cluster::Cluster;
use crate::upstream::connect::OnBehalfOf;
use crate::worker::{ConnectionGuard, ListenerView, Worker};

/// A longer first message is refused. Those of browsers with post-quantum key shares are below 2 KiB.
const HELLO_BYTES_MAX: usize = 16 * 1024;

/// Serves one connection to its end. `input` holds the bytes after a PROXY protocol header.
pub(crate) async fn serve(
    worker: &Worker,
    listener: Rc<ListenerView>,
    mut stream: TcpStream,
    mut input: Buffer,
    who: OnBehalfOf,
    connection: &ConnectionGuard,
) {
    let Protocol::TlsPassthrough(policy) = &listener.plan.policy.protocol else { return };
    let timer = Timer::new(&worker.timers);
    timer.set(clock::now_ms().saturating_add(crate::millis(policy.hello_timeout)));
    let read = timer.guard(hello(&mut stream, &mut input)).await;
    let chosen = match read {
        Ok(Ok(sni)) => choose(policy, &listener, sni.as_deref()).ok_or_else(|| Error::internal(Reason::NoRoute)),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(Error::downstream(Reason::TlsHandshakeTimeout)),
    };
    match chosen {
        Ok(cluster) => {
            drop(timer);
            let idle_timeout = policy.idle_timeout;
            tcp::relay(worker, listener, cluster, Stream::Plain(stream), input, who, idle_timeout, connection).await;
        }
        Err(error) => {
            listener.count(error.reason);
            tracing::debug!(listener = listener.plan.policy.name, client = %who.client, %error, "refused");
            net::socket::reset_on_close(&stream);
        }
    }
}

/// Reads until the client's first message is complete, which stays in `input`. Returns the name in it, in lower case.
async fn hello(stream: &mut TcpStream, input: &mut Buffer) -> Result<Option<String>, Error> {
    let mut acceptor = Acceptor::default();
    let mut fed = 0;
    loop {
        let mut fresh = input.filled().get(fed..).unwrap_or_default();
        while !fresh.is_empty() {
            fed += acceptor.read_tls(&mut fresh).map_err(not_tls)?;
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                return Ok(accepted.client_hello().server_name().map(str::to_ascii_lowercase));
            }
            Ok(None) => {}
            Err((error, _)) => return Err(not_tls(std::io::Error::other(error))),
        }
        if input.len() >= HELLO_BYTES_MAX {
            return Err(not_tls(std::io::Error::other("the first message is too long")));
        }
        if input.is_full() {
            input.grow((input.capacity() * 2).clamp(SMALL_BYTES, HELLO_BYTES_MAX));
        }
        match poll_fn(|cx| input.poll_fill(cx, stream)).await {
            Ok(0) => return Err(Error::downstream(Reason::ClientEof)),
            Ok(_) => {}
            Err(error) => return Err(Error::client_io(error)),
        }
    }
}

fn not_tls(error: std::io::Error) -> Error {
    Error::downstream(Reason::TlsHandshake).because(error)
}

/// The first route with the exact name, or else the first with the longest matching wildcard, or else the first that accepts every name.
fn choose(policy: &PassthroughListener, listener: &ListenerView, sni: Option<&str>) -> Option<Rc<Cluster>> {
    let rank = |matcher: &HostMatcher| {
        let rank = match matcher {
            HostMatcher::Exact(_) => usize::MAX,
            HostMatcher::Suffix(domain) => domain.len(),
        };
        sni.is_some_and(|sni| matcher.matches(sni)).then_some(rank)
    };
    let mut best: Option<(usize, &model::PassthroughRoute)> = None;
    for route in &policy.routes {
        let rank = if route.sni.is_empty() { Some(0) } else { route.sni.iter().filter_map(rank).max() };
        if let Some(rank) = rank
            && best.is_none_or(|(found, _)| rank > found)
        {
            best = Some((rank, route));
        }
    }
    listener.clusters.get(best?.1.to.0).cloned()
}
