//! Verifiers for operators who turn verification off: they accept any certificate.
//!
//! They still verify signatures, so that the other side at least holds the key of the certificate that it shows.

use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DistinguishedName, RootCertStore};

use super::Provider;

/// Accepts any certificate of an endpoint.
#[derive(Debug)]
pub(super) struct AnyEndpoint(pub(super) Provider);

/// Asks clients for a certificate, and accepts any, or none.
#[derive(Debug)]
pub(super) struct AnyClient {
    provider: Provider,
    /// The names of the CAs, from which a client picks one of its certificates.
    hints: Vec<DistinguishedName>,
}

impl AnyClient {
    pub(super) fn new(roots: &RootCertStore, provider: Provider) -> Self {
        Self { provider, hints: roots.subjects() }
    }
}

impl ServerCertVerifier for AnyEndpoint {
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

    verifies_signatures!(0);
}

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    verifies_signatures!(provider);
}
