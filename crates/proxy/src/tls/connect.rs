//! TLS with the endpoint: which certificates are trusted, and which one is shown.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::{fmt, io};

use model::{ClusterProtocol, ClusterTls, JwksUrl, SpiffeMatcher, SubjectAltName};
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, OtherError, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, TlsStream};

use super::any::AnyEndpoint;
use super::files::{self, Contents};
use super::{H1, H2, OwnCertificate, Provider, Socket, versions};
use crate::named_files::Fault;

/// The certificates that a cluster trusts and shows.
pub struct ClientKeys {
    settings: ClusterTls,
    protocol: ClusterProtocol,
    contents: Contents,
    /// The name that every endpoint is asked for; `None` means that each endpoint has its own.
    name: Option<ServerName<'static>>,
    connector: TlsConnector,
    own: Option<OwnCertificate>,
}

impl ClientKeys {
    /// What is trusted for the URL of a set of keys.
    ///
    /// # Errors
    /// What is wrong with `ca`, or that this host has no roots.
    pub(crate) fn of_url(url: &JwksUrl, old: Option<&Arc<Self>>) -> Result<Arc<Self>, Fault> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let settings = ClusterTls {
            ca: url.ca.clone().map(model::Pem::File),
            server_name: Some(url.host.clone()),
            subject_alt_names: Vec::new(),
            certificate: None,
            verify: true,
        };
        Self::load(&settings, ClusterProtocol::H1, old, &provider)
    }

    /// Keys that accept every certificate, for a client that only compares what servers answer. Each server is asked for the name that
    /// [`ClientKeys::secure`] gets.
    ///
    /// # Errors
    /// TLS cannot be set up at all.
    pub fn accepting_any() -> Result<Arc<Self>, Fault> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let settings =
            ClusterTls { ca: None, server_name: None, subject_alt_names: Vec::new(), certificate: None, verify: false };
        Self::load(&settings, ClusterProtocol::H1, None, &provider)
    }

    /// Reads the files. Returns `old` if they and the settings are unchanged.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn load(
        settings: &ClusterTls,
        protocol: ClusterProtocol,
        old: Option<&Arc<Self>>,
        provider: &Provider,
    ) -> Result<Arc<Self>, Fault> {
        let mut contents = Contents::default();
        let (config, own) = config(settings, protocol, &mut contents, provider)?;
        let name = settings.server_name.clone().map(|name| {
            ServerName::try_from(name.clone()).map_err(|_| format!("server_name: {name} is not a name or an address"))
        });
        let name = name.transpose()?;
        let is_same =
            |old: &&Arc<Self>| old.settings == *settings && old.protocol == protocol && old.contents == contents;
        Ok(match old.filter(is_same) {
            Some(old) => old.clone(),
            None => {
                let (settings, connector) = (settings.clone(), TlsConnector::from(Arc::new(config)));
                Arc::new(Self { settings, protocol, contents, name, connector, own })
            }
        })
    }

    pub(super) fn own_certificates(&self) -> &[OwnCertificate] {
        self.own.as_slice()
    }

    /// Does the handshake with an endpoint. `host` is the name by which the endpoint was resolved, if there is one. Afterwards the
    /// connection speaks the cluster's protocol.
    ///
    /// # Errors
    /// The endpoint aborted it, its certificate is not trusted, or it does not support the protocol.
    pub async fn secure(
        &self,
        tcp: TcpStream,
        address: SocketAddr,
        host: Option<&str>,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<>> {
        // A health check only needs the text of the error.
        self.connect(tcp, address, host).await.map_err(|error| io::Error::new(error.kind(), super::told(&error)))
    }

    /// The same for a worker's connection.
    pub(crate) async fn connect(
        &self,
        tcp: TcpStream,
        address: SocketAddr,
        host: Option<&str>,
    ) -> io::Result<TlsStream<Socket>> {
        let name = match (&self.name, host) {
            (Some(name), _) => name.clone(),
            // A certificate for the address says nothing of the name.
            (None, Some(host)) => ServerName::try_from(host.to_owned())
                .map_err(|_| io::Error::other(format!("{host} is not a name that a certificate can have")))?,
            (None, None) => ServerName::IpAddress(address.ip().into()),
        };
        let socket = Socket::new(tcp, net::buffer::Buffer::none());
        let stream = self.connector.connect(name, socket).await?;
        // Many HTTP/1.1 endpoints do not support ALPN; HTTP/2 requires it (RFC 9113 section 3.2).
        let agreed = stream.get_ref().1.alpn_protocol();
        if self.protocol == ClusterProtocol::H2 && agreed != Some(alpn(self.protocol)) {
            return Err(io::Error::other(rustls::Error::NoApplicationProtocol));
        }
        Ok(stream.into())
    }
}

/// The TLS of a client that speaks HTTP/1.1 and is no part of the data path: what it trusts, and what it shows. See [`ClusterTls`].
///
/// # Errors
/// What is wrong with a file, or that this host has no roots.
pub fn client_config(settings: &ClusterTls) -> Result<Arc<ClientConfig>, Fault> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let (config, _) = config(settings, ClusterProtocol::H1, &mut Contents::default(), &provider)?;
    Ok(Arc::new(config))
}

/// What such settings and the content of their files mean, and the certificate that is shown.
fn config(
    settings: &ClusterTls,
    protocol: ClusterProtocol,
    contents: &mut Contents,
    provider: &Provider,
) -> Result<(ClientConfig, Option<OwnCertificate>), Fault> {
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions(model::TlsVersion::V1_2))
        .map_err(|error| error.to_string())?;
    let builder = match &settings.ca {
        _ if !settings.verify => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyEndpoint(provider.clone())))
        }
        ca => {
            let roots = match ca {
                Some(ca) => files::roots(ca, contents)?,
                None => roots_of_the_host()?,
            };
            match settings.subject_alt_names.as_slice() {
                [] => builder.with_root_certificates(roots),
                names => {
                    let names = names.iter().map(Name::new).collect::<Result<_, _>>()?;
                    let verifier = NamedEndpoint { names, roots, provider: provider.clone() };
                    builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
                }
            }
        }
    };
    // A sidecar has one certificate, whose id is not the name of a host.
    let is_sidecar = |name: &SubjectAltName| matches!(name, SubjectAltName::Spiffe(_));
    let is_sidecar = settings.subject_alt_names.iter().any(is_sidecar);
    let mut own = None;
    let mut config = match &settings.certificate {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let certified = files::certified(pair, contents, provider)?;
            if is_sidecar {
                files::check_spiffe_id(pair, &certified)?;
            }
            own = OwnCertificate::of(&pair.cert, &certified);
            builder.with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified)))
        }
    };
    config.alpn_protocols = vec![alpn(protocol).to_vec()];
    config.enable_sni = !is_sidecar;
    Ok((config, own))
}

fn alpn(protocol: ClusterProtocol) -> &'static [u8] {
    match protocol {
        ClusterProtocol::H1 => H1,
        ClusterProtocol::H2 => H2,
    }
}

/// The roots that this host trusts. They are read once in the life of the process: there are some 150, and hundreds of clusters may use them.
///
/// # Errors
/// There are none. They are looked for again the next time.
fn roots_of_the_host() -> Result<Arc<RootCertStore>, String> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    match ROOTS.get() {
        Some(roots) => Ok(roots.clone()),
        None => read_roots_of_the_host().map(|roots| ROOTS.get_or_init(|| roots).clone()),
    }
}

fn read_roots_of_the_host() -> Result<Arc<RootCertStore>, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err("this host has no trusted roots (Debian: ca-certificates); name a file in `tls: {ca: FILE}`".into());
    }
    Ok(Arc::new(roots))
}

/// Accepts certificates of trusted CAs that have one of certain names, whichever name was asked for.
#[derive(Debug)]
struct NamedEndpoint {
    names: Vec<Name>,
    roots: Arc<RootCertStore>,
    provider: Provider,
}

/// A name that an endpoint's certificate may have.
#[derive(Debug)]
pub(crate) enum Name {
    Dns(ServerName<'static>),
    /// `example.com` for `*.example.com`.
    Wildcard(String),
    Uri(String),
    Spiffe(SpiffeMatcher),
}

impl Name {
    pub(super) fn new(name: &SubjectAltName) -> Result<Self, String> {
        Ok(match name {
            SubjectAltName::Uri(uri) => Self::Uri(uri.clone()),
            SubjectAltName::Spiffe(matcher) => Self::Spiffe(matcher.clone()),
            SubjectAltName::Dns(name) => match name.strip_prefix("*.") {
                Some(domain) => Self::Wildcard(domain.to_ascii_lowercase()),
                None => match ServerName::try_from(name.clone()) {
                    Ok(dns @ ServerName::DnsName(_)) => Self::Dns(dns),
                    _ => return Err(format!("subject_alt_names: {name} is not a DNS name")),
                },
            },
        })
    }

    pub(super) fn is_in(&self, leaf: &webpki::EndEntityCert<'_>) -> bool {
        match self {
            // A wildcard in the certificate counts for the names that it stands for.
            Self::Dns(name) => leaf.verify_is_valid_for_subject_name(name).is_ok(),
            Self::Wildcard(domain) => leaf.valid_dns_names().any(|name| {
                name.split_once('.').is_some_and(|(label, rest)| !label.is_empty() && rest.eq_ignore_ascii_case(domain))
            }),
            Self::Uri(uri) => leaf.valid_uri_names().any(|name| name == uri),
            Self::Spiffe(matcher) => has_spiffe_id(leaf, std::slice::from_ref(matcher)),
        }
    }
}

/// Whether the certificate has exactly one URI, as the certificate of a SPIFFE id has
/// (<https://spiffe.io/docs/latest/spiffe-specs/x509-svid/> section 2), and the URI is one of these ids.
pub(super) fn has_spiffe_id(leaf: &webpki::EndEntityCert<'_>, ids: &[SpiffeMatcher]) -> bool {
    let mut uris = leaf.valid_uri_names();
    match (uris.next(), uris.next()) {
        (Some(uri), None) => ids.iter().any(|id| id.matches(uri)),
        _ => false,
    }
}

/// The certificate is good, but has none of the names.
#[derive(Debug)]
pub(super) struct NoSuchName;

impl fmt::Display for NoSuchName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the endpoint's certificate has none of the names in subject_alt_names or spiffe_ids")
    }
}

impl std::error::Error for NoSuchName {}

impl ServerCertVerifier for NamedEndpoint {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let algorithms = self.provider.signature_verification_algorithms.all;
        let parsed = ParsedCertificate::try_from(certificate)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)?;
        // The same bytes were parsed a line above.
        let leaf = webpki::EndEntityCert::try_from(certificate).map_err(|_| CertificateError::BadEncoding)?;
        match self.names.iter().any(|name| name.is_in(&leaf)) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::Other(OtherError(Arc::new(NoSuchName))).into()),
        }
    }

    verifies_signatures!(provider);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roots_of_the_host_are_read_once() {
        // A host may have none.
        if let Ok(roots) = roots_of_the_host() {
            assert!(Arc::ptr_eq(&roots, &roots_of_the_host().unwrap()));
        }
    }

    #[tokio::test]
    async fn the_address_does_not_stand_in_for_a_name_that_is_none() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let keys = ClientKeys::accepting_any().unwrap();
        let tcp = TcpStream::connect(address).await.unwrap();
        let error = keys.connect(tcp, address, Some("a_b..example")).await.err().unwrap();
        assert!(error.to_string().contains("not a name that a certificate can have"), "{error}");
    }

    #[test]
    fn names_of_certificates() {
        let of = |names: &[&str]| {
            let made = rcgen::generate_simple_self_signed(names.iter().map(ToString::to_string).collect::<Vec<_>>());
            made.unwrap().cert.der().clone()
        };
        let check = |names: &[&str], wanted: &SubjectAltName, expect: bool| {
            let der = of(names);
            let leaf = webpki::EndEntityCert::try_from(&der).unwrap();
            assert_eq!(Name::new(wanted).unwrap().is_in(&leaf), expect, "{names:?} {wanted:?}");
        };
        let dns = |name: &str| SubjectAltName::Dns(name.to_owned());
        check(&["b.example.com", "a.example.com"], &dns("A.example.com"), true);
        check(&["*.example.com"], &dns("a.example.com"), true);
        check(&["*.example.com"], &dns("b.a.example.com"), false);
        check(&["a.example.com"], &dns("example.com"), false);
        check(&["a.example.com"], &dns("*.example.com"), true);
        check(&["*.example.com"], &dns("*.Example.com"), true);
        check(&["b.a.example.com", "example.com"], &dns("*.example.com"), false);
        check(&["badexample.com"], &dns("*.example.com"), false);
        assert!(Name::new(&dns("10.0.0.1")).is_err());
        assert!(Name::new(&dns("a b")).is_err());

        let mut params = rcgen::CertificateParams::new(vec!["a.example.com".to_owned()]).unwrap();
        let uri = "spiffe://example.com/shop";
        params.subject_alt_names.push(rcgen::SanType::URI(uri.try_into().unwrap()));
        let der = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().clone();
        let leaf = webpki::EndEntityCert::try_from(&der).unwrap();
        let has = |name: &str| Name::new(&SubjectAltName::Uri(name.to_owned())).unwrap().is_in(&leaf);
        assert!(has(uri));
        assert!(!has("spiffe://example.com/Shop"));
        assert!(!has("spiffe://example.com/shop/x"));
        assert!(!has("a.example.com"), "a DNS name is no URI");
        assert!(!Name::new(&dns(uri)).is_ok_and(|name| name.is_in(&leaf)), "and a URI is no DNS name");
    }
}
