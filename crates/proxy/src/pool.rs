//! Upstream connections between requests: one stack for each endpoint and worker, the last used on top.
//!
//! The last used is the least likely to have been closed by the endpoint, and what lies at the bottom ages out.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Waker};

use tokio::net::TcpStream;

/// The idle connections of one worker to one endpoint. Cheap to clone: all clones are the same pool.
#[derive(Clone, Default)]
pub(crate) struct Pool(Rc<RefCell<Vec<Idle>>>);

struct Idle {
    stream: TcpStream,
    /// When it is closed, in milliseconds.
    expires_ms: u64,
}

impl Pool {
    /// The connection used last that is neither too old nor closed by the endpoint, as far as can be told without a system call.
    pub(crate) fn take(&self, now_ms: u64) -> Option<TcpStream> {
        let mut idle = self.0.borrow_mut();
        while let Some(connection) = idle.pop() {
            if connection.expires_ms > now_ms && is_silent(&connection.stream) {
                return Some(connection.stream);
            }
        }
        None
    }

    /// Keeps a connection on which nothing is outstanding.
    pub(crate) fn put(&self, stream: TcpStream, expires_ms: u64, connections_max: usize) {
        let mut idle = self.0.borrow_mut();
        if idle.len() < connections_max {
            idle.push(Idle { stream, expires_ms });
        }
    }

    /// Closes what is too old or was closed by the endpoint.
    pub(crate) fn sweep(&self, now_ms: u64) {
        self.0.borrow_mut().retain(|connection| connection.expires_ms > now_ms && is_silent(&connection.stream));
    }
}

/// An idle connection has nothing to say: if it is readable, that is its end, or bytes that nobody asked for.
fn is_silent(stream: &TcpStream) -> bool {
    stream.poll_read_ready(&mut Context::from_waker(Waker::noop())).is_pending()
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn the_last_used_comes_first_and_old_ones_go() {
        let pool = Pool::default();
        let ((a, _a), (b, _b), (c, _c)) = (pair().await, pair().await, pair().await);
        let last = b.local_addr().unwrap();
        pool.put(a, 10, 2);
        pool.put(b, 20, 2);
        pool.put(c, 20, 2);
        assert_eq!(pool.take(15).unwrap().local_addr().unwrap(), last);
        assert!(pool.take(15).is_none(), "one has expired, one was too many");
    }

    #[tokio::test]
    async fn what_the_endpoint_closed_or_spoke_on_is_not_used() {
        let pool = Pool::default();
        let ((closed, far), (spoken, mut talker)) = (pair().await, pair().await);
        drop(far);
        talker.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
        closed.readable().await.unwrap();
        spoken.readable().await.unwrap();
        pool.put(closed, 10, 9);
        pool.put(spoken, 10, 9);
        assert!(pool.take(0).is_none());
    }
}
