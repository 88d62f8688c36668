//! A connection, in the clear or within TLS, or one stream of a connection of HTTP/2: what the stages read from and write to.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;
use wire::h2::ErrorCode;

use crate::h2::Handle;
use crate::tls::Socket;

/// A connection whose handshakes are done, or a stream of one.
pub(crate) enum Stream {
    Plain(TcpStream),
    /// In a box: a connection in the clear does not pay for the room that the state of TLS takes.
    Tls(Box<TlsStream<Socket>>),
    /// Read and written as bytes, it is a tunnel. Messages have heads and trailers besides, which go through the handle.
    H2(Handle),
}

impl Stream {
    /// The TCP connection underneath, if it is this stream's alone. What is read from it or written to it is not what this stream carries,
    /// unless it is plain.
    pub(crate) fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Plain(stream) => Some(stream),
            Self::Tls(stream) => Some(&stream.get_ref().0.tcp),
            Self::H2(_) => None,
        }
    }

    /// The stream of HTTP/2, if it is one.
    pub(crate) fn h2(&self) -> Option<&Handle> {
        match self {
            Self::H2(handle) => Some(handle),
            Self::Plain(_) | Self::Tls(_) => None,
        }
    }

    /// What was written may not have left: it has to be flushed.
    pub(crate) fn is_buffering(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// So many bytes that were read are passed on. Where there are windows, the sender may send as many more.
    pub(crate) fn release(&self, count: usize) {
        if let Self::H2(handle) = self {
            handle.release(count);
        }
    }

    /// Closing it will look like the failure that it is.
    pub(crate) fn reset_on_close(&self) {
        match self {
            Self::H2(handle) => handle.reset(ErrorCode::INTERNAL_ERROR),
            stream => stream.tcp().map(net::socket::reset_on_close).unwrap_or_default(),
        }
    }

    /// The TCP connection, where nothing stands between it and its reader.
    pub(crate) fn plain(&self) -> Option<&TcpStream> {
        match self {
            Self::Plain(stream) => Some(stream),
            Self::Tls(_) | Self::H2(_) => None,
        }
    }

    /// Ready when a read may give something, the end of the stream included. It need not: of TLS not all that comes is for the reader.
    pub(crate) fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => stream.poll_read_ready(cx),
            Self::H2(handle) => handle.poll_readable(cx),
            Self::Tls(stream) => {
                let (socket, state) = match stream.as_mut() {
                    TlsStream::Client(stream) => {
                        let (socket, session) = stream.get_mut();
                        (socket, session.process_new_packets())
                    }
                    TlsStream::Server(stream) => {
                        let (socket, session) = stream.get_mut();
                        (socket, session.process_new_packets())
                    }
                };
                // A read takes as much as there is room for; the rest waits here, and no event of the socket tells of it.
                let state = state.map_err(io::Error::other)?;
                if state.plaintext_bytes_to_read() > 0 || state.peer_has_closed() {
                    return Poll::Ready(Ok(()));
                }
                socket.tcp.poll_read_ready(cx)
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::H2(handle) => handle.poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            // What was taken is sealed, and has left only once it is flushed.
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::H2(handle) => handle.poll_send(cx, buf, false),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::H2(handle) => {
                let first = bufs.iter().find(|buf| !buf.is_empty());
                handle.poll_send(cx, first.map_or(&[], |buf| buf), false)
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            // What was taken leaves with the frames of other streams.
            Self::H2(_) => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::H2(handle) => handle.poll_send(cx, &[], true).map_ok(|_| ()),
        }
    }
}
