//! Upstream connections between requests: one stack for each endpoint and worker, the last used on top.
//!
//! The last used is the least likely to have been closed by the endpoint, and what lies at the bottom ages out.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Waker};

use crate::h2::Mux;
use crate::stream::Stream;

/// The connections of one worker to one endpoint that no request owns: those of HTTP/1 that are idle, and those of HTTP/2, which are shared.
/// Cheap to clone: all clones are the same pool.
#[derive(Clone, Default)]
pub(crate) struct Pool {
    idles: Rc<RefCell<Idles>>,
    mux: Mux,
}

#[derive(Default)]
struct Idles {
    ready: Vec<Idle>,
    /// Not used before the next sweep: see [`Pool::put_aside`].
    aside: Vec<Idle>,
    /// The endpoint left the configuration.
    closed: bool,
}

struct Idle {
    stream: Stream,
    /// When it is closed, in milliseconds.
    expires_ms: u64,
}

impl Pool {
    /// The connection used last that is neither too old nor closed by the endpoint, as far as can be told without a system call.
    pub(crate) fn take(&self, now_ms: u64) -> Option<Stream> {
        let idle = &mut self.idles.borrow_mut().ready;
        while let Some(mut connection) = idle.pop() {
            if connection.expires_ms > now_ms && is_silent(&mut connection.stream) {
                return Some(connection.stream);
            }
        }
        None
    }

    /// Keeps a connection on which nothing is outstanding.
    pub(crate) fn put(&self, stream: Stream, expires_ms: u64, connections_max: usize) {
        let mut idles = self.idles.borrow_mut();
        if !idles.closed && idles.ready.len() < connections_max {
            idles.ready.push(Idle { stream, expires_ms });
        }
    }

    /// Keeps a connection whose last response had no body by rule (to HEAD; 204; 304). Endpoints exist that send one all the same, a
    /// moment later, and it would be taken for the next response: the connection is used again only if it is silent at the next sweep.
    pub(crate) fn put_aside(&self, stream: Stream, expires_ms: u64, connections_max: usize) {
        let mut idles = self.idles.borrow_mut();
        if !idles.closed && idles.ready.len() + idles.aside.len() < connections_max {
            idles.aside.push(Idle { stream, expires_ms });
        }
    }

    /// Closes what is too old or was closed by the endpoint, and takes in what was put aside.
    pub(crate) fn sweep(&self, now_ms: u64) {
        let idles = &mut *self.idles.borrow_mut();
        // In front: on top of the stack lies what was used last.
        idles.ready.splice(0..0, idles.aside.drain(..));
        idles.ready.retain_mut(|connection| connection.expires_ms > now_ms && is_silent(&mut connection.stream));
    }

    /// Tells it from all other pools that are there at the same time.
    pub(crate) fn id(&self) -> *const () {
        Rc::as_ptr(&self.idles).cast()
    }

    /// The connections of HTTP/2.
    pub(crate) fn mux(&self) -> &Mux {
        &self.mux
    }

    /// Closes all, now and what comes back later. Shared ones end with the last request on them.
    pub(crate) fn close(&self) {
        self.mux.close();
        *self.idles.borrow_mut() = Idles { closed: true, ..Idles::default() };
    }
}

/// An idle connection has nothing to say: if it is readable, that is its end, or bytes that nobody asked for.
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
    async fn what_was_put_aside_is_used_only_if_it_stays_silent() {
        let pool = Pool::default();
        let ((silent, _far), (spoken, mut talker)) = (pair().await, pair().await);
        pool.put_aside(silent, 10, 9);
        assert!(pool.take(0).is_none());
        pool.sweep(0);
        assert!(pool.take(0).is_some());
        talker.write_all(b"a body that HEAD must not have").await.unwrap();
        spoken.tcp().unwrap().readable().await.unwrap();
        pool.put_aside(spoken, 10, 9);
        pool.sweep(0);
        assert!(pool.take(0).is_none());
    }

    #[tokio::test]
    async fn a_closed_pool_keeps_nothing() {
        let pool = Pool::default();
        let ((a, _a), (b, _b)) = (pair().await, pair().await);
        pool.put(a, 10, 9);
        pool.close();
        pool.put(b, 10, 9);
        assert!(pool.take(0).is_none());
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
