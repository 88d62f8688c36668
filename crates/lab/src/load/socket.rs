//! A connection of a load, in clear text or over TLS.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, HandshakeKind, ProtocolVersion, RootCertStore,
    SignatureScheme, SupportedCipherSuite,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::dial::dial;

/// The ALPN names of the protocols (RFC 7301).
const ALPN_H2: &[u8] = b"h2";
const ALPN_HTTP1: &[u8] = b"http/1.1";

/// Which certificates a load accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust<'a> {
    /// Those signed by an authority that this host trusts.
    Host,
    /// Those signed by an authority in a PEM file.
    Pem {
        /// The file, for messages.
        name: &'a Path,
        /// Its contents.
        text: &'a [u8],
    },
    /// Any certificate.
    Anything,
}

/// Which protocols a load offers in the TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offer {
    /// HTTP/2 and HTTP/1.1, from which the server chooses.
    Both,
    /// Only HTTP/2.
    Http2,
    /// Only HTTP/2, because gRPC needs it. The messages about failures differ from those of `Http2`.
    Grpc,
    /// Only HTTP/1.1.
    Http1,
}

/// How a load begins its connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner<'a> {
    /// Whether no session is resumed.
    pub full_handshakes: bool,
    /// The cipher suites to offer; all if empty.
    pub ciphers: &'a [String],
    /// The groups to offer; all if empty.
    pub groups: &'a [String],
}

/// TLS handshakes by what was negotiated, of all connections of a load.
#[derive(Clone, Debug, Default)]
pub struct Handshakes(Arc<Mutex<BTreeMap<String, u64>>>);

impl Handshakes {
    fn count(&self, connection: &ClientConnection) {
        let version = match connection.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => "TLS 1.3".to_owned(),
            Some(ProtocolVersion::TLSv1_2) => "TLS 1.2".to_owned(),
            other => format!("{other:?}"),
        };
        let cipher = connection.negotiated_cipher_suite().map_or_else(|| "-".to_owned(), |suite| cipher_name(&suite));
        let group = connection.negotiated_key_exchange_group();
        let group = group.map_or_else(|| "-".to_owned(), |group| format!("{:?}", group.name()));
        let kind = match connection.handshake_kind() {
            Some(HandshakeKind::Full) => "full",
            Some(HandshakeKind::FullWithHelloRetryRequest) => "full after a retry",
            Some(HandshakeKind::Resumed) => "resumed",
            None => "-",
        };
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(format!("{version}, {cipher}, {group}, {kind}")).or_default() += 1;
    }

    /// The counts, which begin again.
    pub(super) fn take(&self) -> BTreeMap<String, u64> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The TLS settings of a load.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    handshakes: Handshakes,
    /// The name in the URL. It is sent as SNI, and the certificate must be valid for it.
    name: ServerName<'static>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Tls {
    /// Creates the settings for connections to `host`, which is a name or an IP address without brackets.
    ///
    /// # Errors
    /// `host` is neither, or there are no trusted certificates.
    pub(super) fn new(host: &str, trust: Trust<'_>, offer: Offer, manner: Manner<'_>) -> io::Result<Self> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| invalid(format!("{host} is not a valid name for a TLS server")))?;
        let provider = Arc::new(manner.provider());
        let builder = ClientConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?;
        let mut config = match trust {
            Trust::Anything => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
                .with_no_client_auth(),
            Trust::Host => builder.with_root_certificates(host_roots()?).with_no_client_auth(),
            Trust::Pem { name, text } => builder.with_root_certificates(roots_in(name, text)?).with_no_client_auth(),
        };
        config.alpn_protocols = offer.names();
        if manner.full_handshakes {
            config.resumption = Resumption::disabled();
        }
        Ok(Self { config: Arc::new(config), handshakes: Handshakes::default(), name })
    }

    /// The same settings, whose handshakes are counted there.
    pub(super) fn counting(self, handshakes: &Handshakes) -> Self {
        Self { handshakes: handshakes.clone(), ..self }
    }

    /// The same settings with another offer.
    pub(super) fn offering(&self, offer: Offer) -> Self {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = offer.names();
        Self { config: Arc::new(config), ..self.clone() }
    }
}

impl Manner<'_> {
    fn provider(&self) -> CryptoProvider {
        let mut provider = aws_lc_rs::default_provider();
        let is_one_of = |names: &[String], name: &str| names.is_empty() || names.iter().any(|known| known == name);
        provider.cipher_suites.retain(|suite| is_one_of(self.ciphers, &cipher_name(suite)));
        provider.kx_groups.retain(|group| is_one_of(self.groups, &format!("{:?}", group.name())));
        provider
    }
}

/// The name of a cipher suite as IANA registered it, which is rustls' name but for TLS 1.3.
fn cipher_name(suite: &SupportedCipherSuite) -> String {
    format!("{:?}", suite.suite()).replacen("TLS13_", "TLS_", 1)
}

/// Parses the name of a cipher suite.
pub(super) fn cipher(text: &str) -> Result<String, String> {
    one_of(text, aws_lc_rs::default_provider().cipher_suites.iter().map(cipher_name))
}

/// Parses the name of a group for the key exchange.
pub(super) fn group(text: &str) -> Result<String, String> {
    one_of(text, aws_lc_rs::default_provider().kx_groups.iter().map(|group| format!("{:?}", group.name())))
}

fn one_of(text: &str, names: impl Iterator<Item = String>) -> Result<String, String> {
    let names: Vec<String> = names.collect();
    let found = names.iter().find(|name| name.eq_ignore_ascii_case(text)).cloned();
    found.ok_or_else(|| format!("must be one of {}", names.join(", ")))
}

impl Offer {
    fn names(self) -> Vec<Vec<u8>> {
        let names: &[&[u8]] = match self {
            Self::Both => &[ALPN_H2, ALPN_HTTP1],
            Self::Http2 | Self::Grpc => &[ALPN_H2],
            Self::Http1 => &[ALPN_HTTP1],
        };
        names.iter().map(|name| name.to_vec()).collect()
    }
}

/// The certificates that this host trusts.
fn host_roots() -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        let why = "this host has no trusted certificates: install ca-certificates, or use --cacert FILE or --insecure";
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    Ok(roots)
}

fn roots_in(file: &Path, text: &[u8]) -> io::Result<RootCertStore> {
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {why}", file.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(text) {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong("the file contains no certificate in PEM format".to_owned()));
    }
    Ok(roots)
}

/// Accepts every certificate, but still checks that the server has the key of its certificate.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// An open connection.
pub(super) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Socket {
    /// Connects, and performs the TLS handshake if TLS is used.
    pub(super) async fn connect(address: SocketAddr, source: Option<IpAddr>, tls: Option<&Tls>) -> io::Result<Self> {
        let stream = dial(address, source).await?;
        stream.set_nodelay(true)?;
        let Some(Tls { config, handshakes, name }) = tls else { return Ok(Self::Plain(stream)) };
        let connector = TlsConnector::from(config.clone());
        let stream = connector.connect(name.clone(), stream).await?;
        handshakes.count(stream.get_ref().1);
        Ok(Self::Tls(Box::new(stream)))
    }

    /// Whether the server chose HTTP/2 in the TLS handshake; `None` if it chose no protocol or there is no TLS.
    pub(super) fn chose_http2(&self) -> Option<bool> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => stream.get_ref().1.alpn_protocol().map(|chosen| chosen == ALPN_H2),
        }
    }

    /// Whether the server has closed the connection or sent unexpected bytes. This makes no system call if nothing has arrived.
    pub(super) fn is_spent(&mut self) -> bool {
        match self {
            Self::Plain(stream) => match stream.try_read(&mut [0]) {
                Ok(_) => true,
                Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            },
            // This also processes TLS records without application data, such as session tickets, and does not take them for a response.
            Self::Tls(stream) => {
                let mut byte = [0];
                let mut context = Context::from_waker(Waker::noop());
                Pin::new(stream).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_ready()
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, to),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, to),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, from),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, from),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, from),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, from),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
