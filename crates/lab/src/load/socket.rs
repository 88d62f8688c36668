//! A connection of a load, in clear text or over TLS.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
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

/// The TLS settings of a load.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
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
    pub(super) fn new(host: &str, trust: Trust<'_>, offer: Offer) -> io::Result<Self> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| invalid(format!("{host} is not a valid name for a TLS server")))?;
        let provider = Arc::new(aws_lc_rs::default_provider());
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
        Ok(Self { config: Arc::new(config), name })
    }

    /// The same settings with another offer.
    pub(super) fn offering(&self, offer: Offer) -> Self {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = offer.names();
        Self { config: Arc::new(config), name: self.name.clone() }
    }
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
        let Some(Tls { config, name }) = tls else { return Ok(Self::Plain(stream)) };
        let connector = TlsConnector::from(config.clone());
        Ok(Self::Tls(Box::new(connector.connect(name.clone(), stream).await?)))
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
