//! TLS settings: certificates to present, to require and to trust.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{HostMatcher, SpiffeMatcher, TextMatcher};

/// TLS on a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTls {
    /// At least one. The name that the client asks for (SNI) and the names in the certificates decide which one is presented; the first is
    /// used if none matches.
    pub certificates: Vec<Certificate>,
    /// Hosts whose names are only served with certificates of their own, each host once. Other names can have any of `certificates`.
    pub hosts: Vec<HostCertificates>,
    /// The CA for certificates of clients; `None` means that clients need none.
    pub client_ca: Option<ClientCa>,
    /// The oldest version that is accepted.
    pub min_version: TlsVersion,
}

/// The certificates of a host. A client that asks for one of its names gets one of them, whatever the names in other certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCertificates {
    /// The host. If several match a name, only the most specific counts.
    pub host: HostMatcher,
    /// Places in [`ListenerTls::certificates`], at least one. Of those with the name, the first is presented; the first of all if there is none.
    pub certificates: Vec<usize>,
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate, followed by the certificates that lead to the root.
    pub cert: Pem,
    /// PKCS#8, PKCS#1 or SEC1.
    pub key: Pem,
    /// A DER file with the OCSP response to staple (RFC 6066 section 8); `None` means none.
    pub ocsp: Option<PathBuf>,
}

/// Text of certificates and keys.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// In a file, which is read when the snapshot is adopted.
    File(PathBuf),
    /// In the snapshot itself: a Kubernetes cluster provides texts and not files.
    Held {
        /// Its origin, for messages.
        name: Arc<str>,
        /// The text.
        text: Arc<[u8]>,
    },
}

impl Pem {
    /// The path of the file.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Held { .. } => None,
        }
    }
}

/// Its origin.
impl fmt::Display for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Held { name, .. } => f.write_str(name),
        }
    }
}

/// Without the text, which may be a key.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pem({self})")
    }
}

/// Which clients must present a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCa {
    /// Required for these names; empty means for all, and for clients that send none.
    pub hosts: Vec<HostMatcher>,
    /// The CA certificates that may have signed it.
    pub ca: Pem,
    /// Lists of the certificates that their CAs have revoked; `None` means that none is known to be. With lists, each CA up to the root needs one that
    /// has not expired, or its certificates are refused.
    pub crl: Option<Pem>,
    /// The certificate must have exactly one URI, and that must be one of these SPIFFE ids. Empty means that any certificate of the CA will
    /// do.
    pub spiffe_ids: Vec<SpiffeMatcher>,
    /// False means that clients are asked for a certificate, and are admitted whatever they answer. Only for tests and migrations.
    pub verify: bool,
    /// False means that clients without such a certificate are admitted, too. What they have shown is known to routes
    /// ([`ClientCertRule`]).
    pub required: bool,
}

/// What a route demands of the certificate that the client has shown.
#[derive(Clone, Debug)]
pub struct ClientCertRule {
    /// Which clients pass.
    pub mode: ClientCertMode,
    /// The subject of the certificate ([`respelled`](crate::respelled)); others are answered 403. `None` means any, and none.
    pub subject: Option<TextMatcher>,
    /// The URL to which clients are redirected by 302, instead of an answer of 400.
    pub redirect: Option<String>,
}

/// Rules with the same text are the same.
impl PartialEq for ClientCertRule {
    fn eq(&self, other: &Self) -> bool {
        let text = |rule: &Self| match &rule.subject {
            None => None,
            Some(TextMatcher::Exact(text)) => Some((0, text.clone())),
            Some(TextMatcher::Regex(regex)) => Some((1, regex.as_str().to_owned())),
            Some(TextMatcher::JoinedRegex(regex)) => Some((3, regex.as_str().to_owned())),
            Some(TextMatcher::Present) => Some((2, String::new())),
        };
        self.mode == other.mode && self.redirect == other.redirect && text(self) == text(other)
    }
}

/// Which clients pass; others are answered 400.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientCertMode {
    /// Those with a certificate that the CA has signed.
    #[default]
    Required,
    /// Those, and others that show none.
    Optional,
    /// Those, and others that show one which anybody has signed, as long as it is valid.
    Unsigned,
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
    /// The name that is asked for (SNI), and that the endpoint's certificate must have unless `subject_alt_names` says otherwise; `None`
    /// means the name in the endpoint's address, or the address.
    pub server_name: Option<String>,
    /// The endpoint's certificate must have one of these names instead. Empty means the name that is asked for.
    pub subject_alt_names: Vec<SubjectAltName>,
    /// The CA certificates that may have signed it; `None` means those that the host trusts.
    pub ca: Option<Pem>,
    /// The certificate to present to an endpoint that asks for one.
    pub certificate: Option<Certificate>,
    /// False means that any certificate is accepted. Only for tests.
    pub verify: bool,
}

/// A name in a certificate (RFC 5280 section 4.2.1.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectAltName {
    /// A DNS name. `*.example.com` stands for exactly one label in front.
    Dns(String),
    /// A URI such as `spiffe://example.com/shop`, byte for byte.
    Uri(String),
    /// The only URI in the certificate is one of these SPIFFE ids. The endpoint is a sidecar, and is asked for no name.
    Spiffe(SpiffeMatcher),
}
