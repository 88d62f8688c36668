//! A verifier for clients with SPIFFE ids.

use std::sync::Arc;

use model::SpiffeMatcher;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme};

use super::connect::{NoSuchName, has_spiffe_id};

/// Accepts the certificates that another verifier accepts, if they are for one of these ids.
#[derive(Debug)]
pub(super) struct SpiffeClient {
    pub(super) inner: Arc<dyn ClientCertVerifier>,
    pub(super) ids: Vec<SpiffeMatcher>,
}

impl ClientCertVerifier for SpiffeClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.inner.verify_client_cert(certificate, intermediates, now)?;
        let leaf = webpki::EndEntityCert::try_from(certificate).map_err(|_| CertificateError::BadEncoding)?;
        match has_spiffe_id(&leaf, &self.ids) {
            true => Ok(verified),
            false => Err(CertificateError::Other(OtherError(Arc::new(NoSuchName))).into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
