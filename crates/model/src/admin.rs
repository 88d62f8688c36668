//! The address of the control API, and who may use it.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::{Certificate, Keys, Pem, SubjectAltName, TlsVersion, Users};

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
    /// How connections are encrypted; `None`: they are not.
    pub tls: Option<AdminTls>,
}

/// The TLS of the admin address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminTls {
    /// At least one. The name that the client asks for decides which one is presented; the first is used if none matches.
    pub certificates: Vec<Certificate>,
    /// The CA of the certificates that clients may show; `None`: they are not asked for any.
    pub client_ca: Option<Pem>,
    /// The oldest version that is accepted.
    pub min_version: TlsVersion,
}

/// The holders of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminRole {
    /// Tokens, each with the name of its holder.
    pub tokens: Vec<Keys>,
    /// Users with passwords.
    pub users: Vec<Users>,
    /// What the certificate of a client must have, each with the name of its holder.
    pub certificates: Vec<(String, HolderMatcher)>,
}

/// Whose certificate it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HolderMatcher {
    /// It has this DNS name or URI.
    Name(SubjectAltName),
    /// Its whole subject is this, in the form of RFC 4514: `CN=ann,O=ops`.
    Subject(String),
}

impl AdminAccess {
    /// The least length of a token, in characters: with fewer, guessing might succeed.
    pub const TOKEN_LENGTH_MIN: usize = 16;

    /// Whether requests must prove who they are from.
    pub fn demands(&self) -> bool {
        [&self.read, &self.act].iter().any(|role| !role.is_empty())
    }

    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let tls = self.tls.iter().flat_map(AdminTls::files);
        [&self.read, &self.act].into_iter().flat_map(AdminRole::files).chain(tls)
    }
}

impl AdminTls {
    fn files(&self) -> impl Iterator<Item = &Path> {
        let pairs = self.certificates.iter().flat_map(|pair| [&pair.cert, &pair.key]);
        let ocsp = self.certificates.iter().filter_map(|pair| pair.ocsp.as_deref());
        pairs.chain(&self.client_ca).filter_map(Pem::file).chain(ocsp)
    }
}

impl AdminRole {
    /// Whether nobody has it.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.users.is_empty() && self.certificates.is_empty()
    }

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
