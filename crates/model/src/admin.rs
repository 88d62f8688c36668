//! Where the control API listens.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What stands before the path of a Unix socket, wherever an operator writes one.
pub const UNIX_PREFIX: &str = "unix:";

/// A place that only programs on this host reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// A loopback address: every program on this host reaches it.
    Socket(SocketAddr),
    /// A Unix socket at an absolute path: the permissions of the file say who reaches it.
    Path(PathBuf),
}

impl From<SocketAddr> for AdminAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Socket(address)
    }
}

/// As the operator writes it.
impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(address) => address.fmt(f),
            Self::Path(path) => write!(f, "{UNIX_PREFIX}{}", path.display()),
        }
    }
}
