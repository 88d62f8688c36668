//! Where the control API takes connections: an address, or a path.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};

/// A socket that listens, not blocking.
#[derive(Debug)]
pub enum Listener {
    /// At an address.
    Tcp(std::net::TcpListener),
    /// At a path.
    Unix(std::os::unix::net::UnixListener),
}

impl Listener {
    /// The same socket again.
    ///
    /// # Errors
    /// The process is out of descriptors.
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

/// The same, watched by a runtime.
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
    /// Ends the connection, and gives its descriptor, still open.
    pub(crate) fn end(self) -> Option<OwnedFd> {
        // Shutting down fails where the client has closed its end already.
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
