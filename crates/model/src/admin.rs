//! The address of the control API, and who may use it.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::{Keys, Users};

/// The prefix of a Unix socket's path in an operator's notation.
pub const UNIX_PREFIX: &str = "unix:";

/// Where the control API is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// An address and port. Every program on this host can reach a loopback address.
    Socket(SocketAddr),
    /// A Unix socket at an absolute path. The permissions of the file decide who can reach it.
    Path(PathBuf),
}

impl AdminAddress {
    /// Whether only programs on this host can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Socket(address) => address.ip().to_canonical().is_loopback(),
            Self::Path(_) => true,
        }
    }
}

/// Who may use the control API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminAccess {
    /// Names, in lower case and without a port, under which browsers reach it, besides addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Those who may see everything and change nothing.
    pub read: AdminRole,
    /// Those who may also change things.
    pub act: AdminRole,
}

/// The holders of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminRole {
    /// Tokens, each with the name of its holder.
    pub tokens: Vec<Keys>,
    /// Users with passwords.
    pub users: Vec<Users>,
}

impl AdminAccess {
    /// The least length of a token, in characters: with fewer, guessing might succeed.
    pub const TOKEN_LENGTH_MIN: usize = 16;

    /// Whether requests must prove who they are from.
    pub fn demands(&self) -> bool {
        [&self.read, &self.act].iter().any(|role| !role.tokens.is_empty() || !role.users.is_empty())
    }

    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.read, &self.act].into_iter().flat_map(AdminRole::files)
    }
}

impl AdminRole {
    fn files(&self) -> impl Iterator<Item = &Path> {
        let tokens = self.tokens.iter().filter_map(|keys| match keys {
            Keys::File(path) => Some(path.as_path()),
            Keys::Inline(_) => None,
        });
        let users = self.users.iter().filter_map(|users| match users {
            Users::File(path) => Some(path.as_path()),
            Users::Inline(_) => None,
        });
        tokens.chain(users)
    }
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
