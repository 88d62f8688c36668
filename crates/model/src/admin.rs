//! The address of the control API.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The prefix of a Unix socket's path in an operator's notation.
pub const UNIX_PREFIX: &str = "unix:";

/// An address that only programs on this host can reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// A loopback address, which every program on this host can reach.
    Socket(SocketAddr),
    /// A Unix socket at an absolute path. The permissions of the file decide who can reach it.
    Path(PathBuf),
}

impl From<SocketAddr> for AdminAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Socket(address)
    }
}

/// In the operator's notation.
impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(address) => address.fmt(f),
            Self::Path(path) => write!(f, "{UNIX_PREFIX}{}", path.display()),
        }
    }
}
