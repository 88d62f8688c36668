//! Detects that a client has left while nothing reads from it, so that no request is served for a client that is gone.
//!
//! Nothing here consumes bytes from the client's connection: they stay there for the next reader.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};

use telemetry::Reason;
use tokio::io::{Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::error::Error;
use crate::stream::Stream;

/// A client that waits for its response, and what counts as leaving.
#[derive(Clone, Copy)]
pub(crate) struct Watched<'s> {
    pub(crate) stream: &'s Stream,
    /// A client that ends its side of a TCP connection has left. Otherwise it still waits for its response.
    pub(crate) leaves_by_fin: bool,
    /// Bytes of its request that are not read yet, as far as they are known. A client that ends its side before it has sent as many has left.
    pub(crate) owed: u64,
}

/// Bytes of a client that TLS may have read from its socket and not given out: what fits into its buffers.
const TLS_BUFFERED_BYTES_MAX: u64 = 128 * 1024;

impl Watched<'_> {
    /// Waits until the client has left: its connection or its stream was reset or lost, or a FIN arrived and `leaves_by_fin` is set or the
    /// request is cut off. Bytes that it sends meanwhile do not matter.
    pub(crate) async fn gone(self) -> Error {
        match (self.stream.tcp(), self.stream.h2()) {
            // Unread bytes would make any interest in reading ready at once. The runtime tracks the two relevant events separately:
            // EPOLLERR, and EPOLLRDHUP, which is part of an interest in PRIORITY. It never asks the kernel for EPOLLPRI itself.
            (Some(tcp), _) => {
                let watches_fin = self.leaves_by_fin || self.owed > 0;
                let interest = if watches_fin { Interest::ERROR | Interest::PRIORITY } else { Interest::ERROR };
                let mut ready = tcp.ready(interest).await;
                if ready.as_ref().is_ok_and(|ready| !ready.is_error()) {
                    if self.leaves_by_fin || self.is_cut_off(tcp) {
                        return Error::downstream(Reason::ClientEof);
                    }
                    ready = tcp.ready(Interest::ERROR).await;
                }
                let error = ready.and_then(|_| tcp.take_error()).unwrap_or_else(Some);
                Error::client_io(error.unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()))
            }
            (None, Some(handle)) => Error::client_io(poll_fn(|cx| handle.poll_cut(cx)).await),
            (None, None) => std::future::pending().await,
        }
    }

    /// Whether less of the request has arrived than there must be. Nothing more comes after a FIN.
    fn is_cut_off(&self, tcp: &TcpStream) -> bool {
        let in_tls = if self.stream.plain().is_some() { 0 } else { TLS_BUFFERED_BYTES_MAX };
        net::socket::unread_bytes(tcp).is_some_and(|bytes| bytes.saturating_add(in_tls) < self.owed)
    }

    /// Waits until the task is woken by anything that it registered for before. Returns an error if the client has left by then.
    pub(crate) async fn gone_before_wake(self) -> Option<Error> {
        let mut gone = pin!(self.gone());
        let mut was_asleep = false;
        poll_fn(|cx| match gone.as_mut().poll(cx) {
            Poll::Ready(error) => Poll::Ready(Some(error)),
            Poll::Pending if was_asleep => Poll::Ready(None),
            Poll::Pending => {
                was_asleep = true;
                Poll::Pending
            }
        })
        .await
    }
}

/// Watches a client while its exchange is polled.
///
/// A peek watches a silent client, and costs no system call while nothing arrives. Once the client has sent bytes that are not read, or a
/// FIN, a peek shows nothing new. Then [`ClientWatch::needs_gone`] asks for [`Watched::gone_before_wake`].
#[derive(Default)]
pub(crate) struct ClientWatch {
    /// A peek has found something.
    has_spoken: bool,
    needs_gone: bool,
}

impl ClientWatch {
    /// Checks the client. This costs no system call while the client is silent, and none after a peek has found something. `is_unread`:
    /// nothing else reads from the client now.
    ///
    /// # Errors
    /// The client is gone.
    pub(crate) fn check(&mut self, cx: &mut Context<'_>, stream: &Stream, is_unread: bool) -> Result<(), Error> {
        let Some(tcp) = stream.tcp() else {
            // The end of an HTTP/2 stream is known without reading.
            let gone = stream.h2().map_or(Poll::Pending, |handle| handle.poll_cut(cx));
            return if let Poll::Ready(error) = gone { Err(Error::client_io(error)) } else { Ok(()) };
        };
        if is_unread && !self.has_spoken {
            match tcp.poll_peek(cx, &mut ReadBuf::new(&mut [0])) {
                Poll::Pending => {}
                Poll::Ready(Ok(_)) => self.has_spoken = true,
                Poll::Ready(Err(error)) => return Err(Error::client_io(error)),
            }
        }
        self.needs_gone = is_unread && self.has_spoken;
        Ok(())
    }

    /// Whether the task must also wait for the client's departure.
    pub(crate) fn needs_gone(&self) -> bool {
        self.needs_gone
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// A client that has sent bytes that are not read, and the other end of its connection.
    async fn client() -> (Stream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let near = listener.accept().await.unwrap().0;
        far.write_all(b"the next request").await.unwrap();
        near.readable().await.unwrap();
        (Stream::Plain(near), far)
    }

    fn is_there(gone: std::pin::Pin<&mut impl Future<Output = Error>>) -> bool {
        gone.poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[tokio::test]
    async fn a_fin_behind_unread_bytes_counts_where_it_is_to_count() {
        let (client, mut far) = client().await;
        let mut strict = pin!(Watched { stream: &client, leaves_by_fin: true, owed: 0 }.gone());
        assert!(is_there(strict.as_mut()), "bytes do not mean that the client has left");
        far.write_all(b", and more of it").await.unwrap();
        far.shutdown().await.unwrap();
        assert_eq!(strict.await.reason, Reason::ClientEof);
        let mut lenient = pin!(Watched { stream: &client, leaves_by_fin: false, owed: 0 }.gone());
        assert!(is_there(lenient.as_mut()), "the client still waits for its response");
        net::socket::reset_on_close(&far);
        drop(far);
        assert_eq!(lenient.await.reason, Reason::ClientReset);
    }

    #[tokio::test]
    async fn a_peek_that_found_something_is_not_repeated() {
        let (client, _far) = client().await;
        let mut cx = Context::from_waker(Waker::noop());
        let mut watch = ClientWatch::default();
        watch.check(&mut cx, &client, false).unwrap();
        assert_eq!((watch.has_spoken, watch.needs_gone()), (false, false), "another reader reads");
        watch.check(&mut cx, &client, true).unwrap();
        assert_eq!((watch.has_spoken, watch.needs_gone()), (true, true));
        watch.check(&mut cx, &client, false).unwrap();
        assert_eq!((watch.has_spoken, watch.needs_gone()), (true, false));
    }

    #[tokio::test]
    async fn a_wake_ends_the_wait_for_a_departure() {
        let (client, _far) = client().await;
        let mut wait = pin!(Watched { stream: &client, leaves_by_fin: true, owed: 0 }.gone_before_wake());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        assert!(matches!(wait.as_mut().poll(&mut cx), Poll::Ready(None)));
    }
}
