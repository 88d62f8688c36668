//! What is shown, asked for and believed where a connection is encrypted.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::HostMatcher;

/// TLS on a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTls {
    /// At least one. Which is shown follows from the name that the client asks for (SNI) and the names in the certificates; the first is
    /// shown where none fits.
    pub certificates: Vec<Certificate>,
    /// Certificates asked of clients; `None`: of nobody.
    pub client_ca: Option<ClientCa>,
    /// Older versions are refused.
    pub min_version: TlsVersion,
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate, then those that lead to the root.
    pub cert: Pem,
    /// PKCS#8, PKCS#1 or SEC1.
    pub key: Pem,
    /// A file, DER: the OCSP response that is stapled (RFC 6066 section 8); `None`: none is.
    pub ocsp: Option<PathBuf>,
}

/// Text of certificates and keys.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// In a file, read when the snapshot is put to use.
    File(PathBuf),
    /// In the snapshot itself: a cluster gives texts and not files.
    Held {
        /// Where it is from, for messages.
        name: Arc<str>,
        /// The text.
        text: Arc<[u8]>,
    },
}

impl Pem {
    /// The file that it is in.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Held { .. } => None,
        }
    }
}

/// Where it is from.
impl fmt::Display for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Held { name, .. } => f.write_str(name),
        }
    }
}

/// Without the text, which may be that of a key.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pem({self})")
    }
}

/// Which clients must show a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCa {
    /// For these names; empty: for all, and for clients that name none.
    pub hosts: Vec<HostMatcher>,
    /// Those who may have signed it.
    pub ca: Pem,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// RFC 5246.
    V1_2,
    /// RFC 8446.
    V1_3,
}

/// TLS towards the endpoints of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterTls {
    /// The name that the endpoint's certificate must carry, and that is asked for (SNI); `None`: the name in the endpoint's address, or the address.
    pub server_name: Option<String>,
    /// Who may have signed it; `None`: those that the host trusts.
    pub ca: Option<Pem>,
    /// What is shown to an endpoint that asks.
    pub certificate: Option<Certificate>,
    /// False: any certificate is believed. For tests and nothing else.
    pub verify: bool,
}
