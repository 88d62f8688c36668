//! The transport under TLS: a TCP connection whose first bytes may have been read already.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use net::buffer::Buffer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A TCP connection that first returns the bytes that were already read.
pub(crate) struct Socket {
    pub(crate) tcp: TcpStream,
    early: Buffer,
}

impl Socket {
    pub(crate) fn new(tcp: TcpStream, early: Buffer) -> Self {
        // An empty buffer with storage would be kept for as long as the connection lasts.
        let early = if early.is_empty() { Buffer::none() } else { early };
        Self { tcp, early }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.early.is_empty() {
            return Pin::new(&mut this.tcp).poll_read(cx, buf);
        }
        let early = this.early.filled();
        let count = early.len().min(buf.remaining());
        buf.put_slice(early.get(..count).unwrap_or_default());
        this.early.consume(count);
        if this.early.is_empty() {
            this.early = Buffer::none();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().tcp).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().tcp).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_shutdown(cx)
    }
}
