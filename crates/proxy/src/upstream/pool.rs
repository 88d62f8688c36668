//! Upstream connections between requests: one stack per endpoint and worker, with the most recently used on top.
//!
//! The endpoint is least likely to have closed the most recently used one, and those at the bottom expire.

use std::cell::{OnceCell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use net::socket::Look;
use tokio::io::{AsyncRead, ReadBuf};

use crate::stream::Stream;
use crate::upstream::mux::Mux;

/// The connections of one worker to one endpoint that no request owns: idle HTTP/1 connections, and shared HTTP/2 connections. Cloning is
/// cheap, and all clones are the same pool.
#[derive(Clone, Default)]
pub(crate) struct Pool(Rc<Connections>);

#[derive(Default)]
struct Connections {
    idles: RefCell<Idles>,
    /// Made for the first request over HTTP/2. Few endpoints of a large cluster speak it, and a gateway may know ten thousand.
    mux: OnceCell<Mux>,
}

#[derive(Default)]
struct Idles {
    ready: Vec<Idle>,
    /// Connections to a distrusted endpoint, which are not used before the next sweep: see [`Pool::put_doubtful`].
    aside: Vec<Idle>,
    /// The endpoint has sent something after a response that must have no body.
    is_distrusted: bool,
    /// The endpoint was removed from the configuration.
    closed: bool,
}

struct Idle {
    stream: Stream,
    /// When it will be closed, in milliseconds.
    expires_ms: u64,
    /// The last response on it must have no body, but the endpoint may still send one.
    is_doubtful: bool,
}

impl Pool {
    /// The most recently used connection that is neither too old nor closed by the endpoint. This needs no system call, unless the last
    /// response must have no body.
    pub(crate) fn take(&self, now_ms: u64) -> Option<Stream> {
        let idles = &mut *self.0.idles.borrow_mut();
        while let Some(mut connection) = idles.ready.pop() {
            if connection.is_usable(now_ms, &mut idles.is_distrusted) {
                return Some(connection.stream);
            }
        }
        None
    }

    /// Keeps a connection on which nothing is outstanding.
    pub(crate) fn put(&self, stream: Stream, expires_ms: u64, connections_max: usize) {
        let mut idles = self.0.idles.borrow_mut();
        if !idles.closed && idles.ready.len() < connections_max {
            idles.ready.push(Idle { stream, expires_ms, is_doubtful: false });
        }
    }

    /// Keeps a connection whose last response must have no body (to HEAD; 204; 304). Some endpoints still send one a moment later, and it
    /// would be taken for the next response. So the socket is checked before the connection is reused. Once an endpoint has done this, its
    /// connections are reused only if they are silent at the next sweep.
    pub(crate) fn put_doubtful(&self, stream: Stream, expires_ms: u64, connections_max: usize) {
        let idles = &mut *self.0.idles.borrow_mut();
        if !idles.closed && idles.ready.len() + idles.aside.len() < connections_max {
            let queue = if idles.is_distrusted { &mut idles.aside } else { &mut idles.ready };
            queue.push(Idle { stream, expires_ms, is_doubtful: true });
        }
    }

    /// Records that the endpoint has sent something after a response that must have no body, or what looks like that.
    pub(crate) fn distrust(&self) {
        self.0.idles.borrow_mut().is_distrusted = true;
    }

    /// Closes connections that are too old or were closed by the endpoint, and takes in those that were put aside.
    pub(crate) fn sweep(&self, now_ms: u64) {
        let Idles { ready, aside, is_distrusted, .. } = &mut *self.0.idles.borrow_mut();
        // At the front, because the most recently used ones are on top of the stack.
        ready.splice(0..0, aside.drain(..));
        ready.retain_mut(|connection| connection.is_usable(now_ms, is_distrusted));
    }

    /// Distinguishes it from all other pools that exist at the same time.
    pub(crate) fn id(&self) -> *const () {
        Rc::as_ptr(&self.0).cast()
    }

    /// The HTTP/2 connections.
    pub(crate) fn mux(&self) -> &Mux {
        self.0.mux.get_or_init(|| {
            let mux = Mux::default();
            if self.0.idles.borrow().closed {
                mux.close();
            }
            mux
        })
    }

    /// Closes all connections, now and when they are returned later. Shared ones end after the last request on them.
    pub(crate) fn close(&self) {
        if let Some(mux) = self.0.mux.get() {
            mux.close();
        }
        *self.0.idles.borrow_mut() = Idles { closed: true, ..Idles::default() };
    }
}

impl Idle {
    /// Whether it is not too old, and silent. Sets `is_distrusted` if the endpoint has sent a forbidden body.
    fn is_usable(&mut self, now_ms: u64, is_distrusted: &mut bool) -> bool {
        if self.expires_ms <= now_ms {
            return false;
        }
        if !self.is_doubtful {
            return is_silent(&mut self.stream);
        }
        // Ask the kernel itself, because the runtime does not know of bytes that arrived since it last polled.
        let looked = self.stream.tcp().map_or(Look::Ended, net::socket::look);
        if looked == Look::Silent && is_silent(&mut self.stream) {
            return true;
        }
        // Within TLS, not all received bytes belong to a message.
        let has_spoken =
            if self.stream.plain().is_some() { looked == Look::Bytes } else { has_bytes(&mut self.stream) };
        *is_distrusted |= has_spoken;
        false
    }
}

/// Whether bytes have arrived, as far as the runtime knows. Takes some of them.
fn has_bytes(stream: &mut Stream) -> bool {
    let mut byte = [0];
    let mut space = ReadBuf::new(&mut byte);
    let read = Pin::new(stream).poll_read(&mut Context::from_waker(Waker::noop()), &mut space);
    matches!(read, Poll::Ready(Ok(()))) && !space.filled().is_empty()
}

/// An idle connection has nothing to send: if it is readable, this is its end, or unsolicited bytes.
fn is_silent(stream: &mut Stream) -> bool {
    stream.poll_read_ready(&mut Context::from_waker(Waker::noop())).is_pending()
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    async fn pair() -> (Stream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (Stream::Plain(client), listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn the_last_used_comes_first_and_old_ones_go() {
        let pool = Pool::default();
        let ((a, _a), (b, _b), (c, _c)) = (pair().await, pair().await, pair().await);
        let last = b.tcp().unwrap().local_addr().unwrap();
        pool.put(a, 10, 2);
        pool.put(b, 20, 2);
        pool.put(c, 20, 2);
        assert_eq!(pool.take(15).unwrap().tcp().unwrap().local_addr().unwrap(), last);
        assert!(pool.take(15).is_none(), "one has expired, one was too many");
    }

    #[tokio::test]
    async fn a_connection_behind_a_response_without_a_body_is_used_if_it_is_silent() {
        let pool = Pool::default();
        let (silent, _far) = pair().await;
        pool.put_doubtful(silent, 10, 9);
        assert!(pool.take(0).is_some());
        // An end says nothing about bodies.
        let (ended, far) = pair().await;
        drop(far);
        pool.put_doubtful(ended, 10, 9);
        assert!(pool.take(0).is_none());
        let (silent, _far) = pair().await;
        pool.put_doubtful(silent, 10, 9);
        assert!(pool.take(0).is_some());
    }

    #[tokio::test]
    async fn an_endpoint_that_sends_a_body_that_must_not_be_is_distrusted() {
        let pool = Pool::default();
        let (spoken, mut talker) = pair().await;
        talker.write_all(b"a body that HEAD must not have").await.unwrap();
        // The runtime has not polled since, and would not know.
        pool.put_doubtful(spoken, 10, 9);
        assert!(pool.take(0).is_none());
        // From now on they are watched until the next sweep, and others are not.
        let ((doubtful, _far), (other, _other)) = (pair().await, pair().await);
        pool.put_doubtful(doubtful, 10, 9);
        assert!(pool.take(0).is_none());
        pool.put(other, 10, 9);
        assert!(pool.take(0).is_some());
        pool.sweep(0);
        assert!(pool.take(0).is_some());
    }

    #[tokio::test]
    async fn a_closed_pool_keeps_nothing() {
        let pool = Pool::default();
        let ((a, _a), (b, _b)) = (pair().await, pair().await);
        pool.put(a, 10, 9);
        pool.close();
        pool.put(b, 10, 9);
        assert!(pool.take(0).is_none());
        assert!(pool.mux().is_closed(), "first asked for by a request that began before");
    }

    #[tokio::test]
    async fn what_the_endpoint_closed_or_spoke_on_is_not_used() {
        let pool = Pool::default();
        let ((closed, far), (spoken, mut talker)) = (pair().await, pair().await);
        drop(far);
        talker.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
        closed.tcp().unwrap().readable().await.unwrap();
        spoken.tcp().unwrap().readable().await.unwrap();
        pool.put(closed, 10, 9);
        pool.put(spoken, 10, 9);
        assert!(pool.take(0).is_none());
    }
}
