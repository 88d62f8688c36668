//! What is shown, asked for and believed where a connection is encrypted.

use std::path::PathBuf;

use crate::HostMatcher;

/// TLS on a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTls {
    /// At least one. Which is shown follows from the name that the client asks for (SNI) and the names in the certificates; the first is
    /// shown where none fits.
    pub certificates: Vec<CertificateFiles>,
    /// Certificates asked of clients; `None`: of nobody.
    pub client_ca: Option<ClientCa>,
    /// Older versions are refused.
    pub min_version: TlsVersion,
}

/// A certificate and its key, in files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// PEM: the certificate, then those that lead to the root.
    pub cert: PathBuf,
    /// PEM: PKCS#8, PKCS#1 or SEC1.
    pub key: PathBuf,
    /// DER: the OCSP response that is stapled (RFC 6066 section 8); `None`: none is.
    pub ocsp: Option<PathBuf>,
}

/// Which clients must show a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCa {
    /// For these names; empty: for all, and for clients that name none.
    pub hosts: Vec<HostMatcher>,
    /// PEM: those who may have signed it.
    pub ca: PathBuf,
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
    /// PEM: who may have signed it; `None`: those that the host trusts.
    pub ca: Option<PathBuf>,
    /// What is shown to an endpoint that asks.
    pub certificate: Option<CertificateFiles>,
    /// False: any certificate is believed. For tests and nothing else.
    pub verify: bool,
}
