//! A connection, in plain text or with TLS, or one stream of an HTTP/2 connection: what the stages read from and write to.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;
use wire::h2::ErrorCode;

use crate::h2::Handle;
use crate::tls::Socket;

/// A connection whose handshakes are done, or one stream of it.
pub(crate) enum Stream {
    Plain(TcpStream),
    /// Boxed, so that a plain-text connection does not need the memory for the TLS state.
    Tls(Box<TlsStream<Socket>>),
    /// Reading and writing bytes treats it as a tunnel. Messages also have heads and trailers, which go through the handle.
    H2(Handle),
}

impl Stream {
    /// The underlying TCP connection, if this stream has it to itself. Its bytes are those of this stream only if the stream is plain text.
    pub(crate) fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Plain(stream) => Some(stream),
            Self::Tls(stream) => Some(&stream.get_ref().0.tcp),
            Self::H2(_) => None,
        }
    }

    /// The HTTP/2 stream, if it is one.
    pub(crate) fn h2(&self) -> Option<&Handle> {
        match self {
            Self::H2(handle) => Some(handle),
            Self::Plain(_) | Self::Tls(_) => None,
        }
    }

    /// Whether written bytes may still be in a buffer that must be flushed.
    pub(crate) fn is_buffering(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Records that `count` bytes were passed on. If the protocol has windows, the sender may send as many more.
    pub(crate) fn release(&self, count: usize) {
        if let Self::H2(handle) = self {
            handle.release(count);
        }
    }

    /// Makes the close of the stream visible as a failure.
    pub(crate) fn reset_on_close(&self) {
        match self {
            Self::H2(handle) => handle.reset(ErrorCode::INTERNAL_ERROR),
            stream => stream.tcp().map(net::socket::reset_on_close).unwrap_or_default(),
        }
    }

    /// The TCP connection, if the stream is nothing but that.
    pub(crate) fn plain(&self) -> Option<&TcpStream> {
        match self {
            Self::Plain(stream) => Some(stream),
            Self::Tls(_) | Self::H2(_) => None,
        }
    }

    /// Ready when a read may return something, including the end of the stream. It may still return nothing, because TLS also carries
    /// records that are not for the reader.
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
                // A read takes as much as fits in its buffer. The rest waits here, and no socket event announces it.
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
            // The bytes are encrypted, but are sent only after a flush.
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
            // The bytes are sent with the frames of other streams.
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
