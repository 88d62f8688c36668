//! TLS with the endpoint: which certificates are trusted, and which one is shown.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use model::{ClusterProtocol, ClusterTls};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, TlsStream};

use super::files::{self, Contents, Fault};
use super::{H1, H2, Provider, Socket, versions};

/// The certificates that a cluster trusts and shows.
pub struct ClientKeys {
    settings: ClusterTls,
    protocol: ClusterProtocol,
    contents: Contents,
    /// The name that every endpoint's certificate must have; `None` means that each endpoint has its own.
    name: Option<ServerName<'static>>,
    connector: TlsConnector,
}

impl ClientKeys {
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
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions(model::TlsVersion::V1_2))
            .map_err(|error| error.to_string())?;
        let builder = match &settings.ca {
            _ if !settings.verify => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider.clone())))
            }
            Some(ca) => builder.with_root_certificates(files::roots(ca, &mut contents)?),
            None => builder.with_root_certificates(roots_of_the_host()?),
        };
        let mut config = match &settings.certificate {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let certified = files::certified(pair, &mut contents, provider)?;
                builder.with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified)))
            }
        };
        config.alpn_protocols = vec![alpn(protocol).to_vec()];
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
                Arc::new(Self { settings, protocol, contents, name, connector })
            }
        })
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
        let own = || match host.map(|host| ServerName::try_from(host.to_owned())) {
            Some(Ok(name)) => name,
            _ => ServerName::IpAddress(address.ip().into()),
        };
        let name = self.name.clone().unwrap_or_else(own);
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

fn alpn(protocol: ClusterProtocol) -> &'static [u8] {
    match protocol {
        ClusterProtocol::H1 => H1,
        ClusterProtocol::H2 => H2,
    }
}

fn roots_of_the_host() -> Result<Arc<RootCertStore>, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err("this host has no trusted roots (Debian: ca-certificates); name a file in `tls: {ca: FILE}`".into());
    }
    Ok(Arc::new(roots))
}

/// Accepts any certificate, but verifies signatures, so that the other side at least holds the certificate's key when the operator turns
/// verification off.
#[derive(Debug)]
struct AcceptAnyCertificate(Provider);

impl ServerCertVerifier for AcceptAnyCertificate {
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
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
