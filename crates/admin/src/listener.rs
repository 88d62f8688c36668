//! The sockets on which the control API accepts connections: TCP, or a Unix socket.

use std::io;
use std::net::{IpAddr, Shutdown};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};

/// A listening, non-blocking socket.
#[derive(Debug)]
pub enum Listener {
    /// A TCP socket.
    Tcp(std::net::TcpListener),
    /// A Unix socket.
    Unix(std::os::unix::net::UnixListener),
}

impl Listener {
    /// Returns a second descriptor of the same socket.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(listener) => Self::Tcp(listener.try_clone()?),
            Self::Unix(listener) => Self::Unix(listener.try_clone()?),
        })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

/// The same sockets, registered with a runtime.
pub(crate) enum Watched {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

/// A connection of a client.
pub(crate) enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

impl TryFrom<Listener> for Watched {
    type Error = io::Error;

    fn try_from(listener: Listener) -> io::Result<Self> {
        Ok(match listener {
            Listener::Tcp(listener) => Self::Tcp(listener.try_into()?),
            Listener::Unix(listener) => Self::Unix(listener.try_into()?),
        })
    }
}

impl Watched {
    pub(crate) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        match self {
            Self::Tcp(listener) => listener.poll_accept(cx).map_ok(|(stream, _)| Stream::Tcp(stream)),
            Self::Unix(listener) => listener.poll_accept(cx).map_ok(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

impl Stream {
    /// The client's address, and whether only programs on this host can use the address that it connected to. Browsers cannot connect to a
    /// Unix socket, and the rules for loopback do no harm there.
    pub(crate) fn client(&self) -> (Option<IpAddr>, bool) {
        match self {
            Self::Tcp(stream) => {
                let local = stream.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback());
                (stream.peer_addr().ok().map(|address| address.ip().to_canonical()), local)
            }
            Self::Unix(_) => (None, true),
        }
    }

    /// Shuts the connection down and returns its descriptor, still open.
    pub(crate) fn end(self) -> Option<OwnedFd> {
        // The shutdown fails if the client has already closed its end.
        match self {
            Self::Tcp(stream) => {
                let stream = stream.into_std().ok()?;
                let _ = stream.shutdown(Shutdown::Both);
                Some(stream.into())
            }
            Self::Unix(stream) => {
                let stream = stream.into_std().ok()?;
                let _ = stream.shutdown(Shutdown::Both);
                Some(stream.into())
            }
        }
    }
}
