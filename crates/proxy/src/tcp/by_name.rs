//! One downstream connection of a TLS listener: read the name that the client asks for, choose a route, do the handshake or leave it to
//! the endpoint, relay.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use model::{HostMatcher, Passthrough, Protocol, TlsListener, TlsMode, TlsRoute};
use net::buffer::{Buffer, SMALL_BYTES};
use net::clock;
use net::timer::Timer;
use rustls::server::Acceptor;
use telemetry::Reason;
use tokio::net::TcpStream;

use crate::error::Error;
use crate::stream::Stream;
use crate::upstream::cluster::Cluster;
use crate::upstream::connect::OnBehalfOf;
use crate::worker::{ConnectionGuard, ListenerView, Worker};
use crate::{tcp, tls};

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
    let Protocol::Tls(policy) = &listener.plan.policy.protocol else { return };
    let timer = Timer::new(&worker.timers);
    timer.set(clock::now_ms().saturating_add(crate::millis(policy.hello_timeout)));
    let refuse = |error: Error| {
        listener.count(error.reason);
        tracing::debug!(listener = listener.plan.policy.name, client = %who.client, %error, "refused");
    };
    let chosen = match timer.guard(hello(&mut stream, &mut input)).await {
        Ok(Ok(sni)) => choose(policy, &listener, sni.as_deref()).ok_or_else(|| Error::internal(Reason::NoRoute)),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(timed_out()),
    };
    let (cluster, keys) = match chosen {
        Ok(chosen) => chosen,
        Err(error) => {
            net::socket::reset_on_close(&stream);
            return refuse(error);
        }
    };
    let (stream, input, secured) = match keys {
        None => (Stream::Plain(stream), input, None),
        // Boxed, so that the state of the handshake is not kept while the connection is served. A failed one has been answered by an alert.
        Some(keys) => match Box::pin(timer.guard(tls::accept(keys, tls::Socket::new(stream, input)))).await {
            Ok(Ok((stream, secured))) => (stream, Buffer::none(), Some(secured)),
            Ok(Err(error)) => return refuse(not_tls(error)),
            Err(_) => return refuse(timed_out()),
        },
    };
    drop(timer);
    let idle_timeout = policy.idle_timeout;
    tcp::relay(worker, listener, cluster, stream, input, who, secured, idle_timeout, connection).await;
}

fn timed_out() -> Error {
    Error::downstream(Reason::TlsHandshakeTimeout)
}

/// What becomes of a connection of a listener of HTTPS with `passthrough`.
pub(crate) enum Passing {
    /// TLS ends here, as it would without.
    Ends,
    /// It goes to this cluster.
    To(Rc<Cluster>, Duration),
}

/// Reads the client's first message, which stays in `input`, and decides by the name in it.
///
/// # Errors
/// The client has left, or its message is too long. It has not been answered.
pub(crate) async fn passing(
    listener: &ListenerView,
    passthrough: &[Passthrough],
    stream: &mut TcpStream,
    input: &mut Buffer,
) -> Result<Passing, Error> {
    let name = match hello(stream, input).await {
        Ok(name) => name,
        // The handshake answers it with an alert.
        Err(error) if error.reason == Reason::TlsHandshake && input.len() < HELLO_BYTES_MAX => {
            return Ok(Passing::Ends);
        }
        Err(error) => return Err(error),
    };
    let entry = listener.plan.router.passthrough(name.as_deref()).and_then(|number| passthrough.get(number));
    let Some(entry) = entry else { return Ok(Passing::Ends) };
    let cluster = listener.clusters.get(entry.to.0).cloned();
    cluster.map(|cluster| Passing::To(cluster, entry.idle_timeout)).ok_or_else(|| Error::internal(Reason::NoRoute))
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

/// The cluster of a connection, and the keys to terminate its TLS with; `None` if no route takes it.
fn choose(
    policy: &TlsListener,
    listener: &ListenerView,
    sni: Option<&str>,
) -> Option<(Rc<Cluster>, Option<Arc<tls::ServerKeys>>)> {
    let route = route(policy, sni)?;
    let keys = match route.mode {
        TlsMode::Passthrough => None,
        // A listener without keys has no route that terminates TLS. If it had, its bytes would not go out undecrypted.
        TlsMode::Terminate => Some(listener.plan.tls.clone()?),
    };
    Some((listener.clusters.get(route.to.0).cloned()?, keys))
}

/// The first of the routes with the most specific name, within the isolated name that the connection belongs to.
fn route<'p>(policy: &'p TlsListener, sni: Option<&str>) -> Option<&'p TlsRoute> {
    let rank = |matcher: &HostMatcher| match (matcher, sni) {
        (HostMatcher::Any, None) => Some(matcher.rank()),
        (_, None) => None,
        (matcher, Some(sni)) => matcher.matches(sni).then(|| matcher.rank()),
    };
    let least = policy.isolated_hosts.iter().filter_map(rank).max();
    let mut best = None;
    for route in &policy.routes {
        let any = route.sni.is_empty().then_some(&HostMatcher::Any);
        let found = route.sni.iter().chain(any).filter_map(rank).max().filter(|rank| Some(*rank) >= least);
        if let Some(rank) = found
            && best.is_none_or(|(found, _)| rank > found)
        {
            best = Some((rank, route));
        }
    }
    best.map(|(_, route)| route)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::ClusterId;

    use super::*;

    fn host(text: &str) -> HostMatcher {
        match text.strip_prefix("*.") {
            Some(domain) => HostMatcher::Suffix(domain.to_owned()),
            None if text == "*" => HostMatcher::Any,
            None => HostMatcher::Exact(text.to_owned()),
        }
    }

    /// Checks which of `routes`, each with its names, a connection takes.
    #[track_caller]
    fn check(isolated: &[&str], routes: &[&[&str]], sni: &str, expect: Option<usize>) {
        let route = |(number, sni): (usize, &&[&str])| TlsRoute {
            sni: sni.iter().map(|name| host(name)).collect(),
            to: ClusterId(number),
            mode: TlsMode::Passthrough,
        };
        let policy = TlsListener {
            routes: routes.iter().enumerate().map(route).collect(),
            isolated_hosts: isolated.iter().map(|name| host(name)).collect(),
            hello_timeout: Duration::ZERO,
            idle_timeout: Duration::ZERO,
        };
        let found = super::route(&policy, (sni != "-").then_some(sni)).map(|route| route.to.0);
        assert_eq!(found, expect, "{sni} {isolated:?} {routes:?}");
    }

    #[test]
    fn the_most_specific_name_wins() {
        let routes: [&[&str]; 4] = [&[], &["*.example.com"], &["*.a.example.com", "b.example.com"], &["b.example.com"]];
        check(&[], &routes, "b.example.com", Some(2));
        check(&[], &routes, "x.a.example.com", Some(2));
        check(&[], &routes, "c.example.com", Some(1));
        check(&[], &routes, "example.org", Some(0));
        check(&[], &routes, "-", Some(0));
        check(&[], &routes[1..], "-", None);
        check(&[], &routes[1..], "example.org", None);
    }

    #[test]
    fn an_isolated_name_has_only_its_own_routes() {
        let routes: [&[&str]; 3] = [&["*"], &["*.example.com", "*"], &["a.b.example.com"]];
        let isolated = ["*", "*.example.com", "empty.example.com", "*.b.example.com"];
        check(&isolated, &routes, "x.example.com", Some(1));
        check(&isolated, &routes, "empty.example.com", None);
        check(&isolated, &routes, "a.b.example.com", Some(2));
        check(&isolated, &routes, "c.b.example.com", None);
        check(&isolated, &routes, "example.org", Some(0));
        check(&isolated, &routes, "-", Some(0));
    }
}
