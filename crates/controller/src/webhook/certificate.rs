//! The certificate of the webhook: made here, signed by itself, and never written to a file.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use jiff::{Timestamp, ToSpan, tz::TimeZone};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// How long a certificate is valid, in days. It is replaced when two thirds of that are over.
pub(super) const VALID_DAYS: i64 = 30;

/// A certificate with its key.
#[derive(Clone)]
pub(super) struct Certificate {
    key: Arc<CertifiedKey>,
    /// For the webhook configuration.
    pub(super) pem: String,
}

/// Makes a certificate for these names and addresses.
///
/// # Errors
/// A name is none.
pub(super) fn make(names: &[String]) -> Result<Certificate, String> {
    let failed = |error: &dyn fmt::Display| format!("cannot make a certificate for {}: {error}", names.join(", "));
    let mut params = CertificateParams::new(names).map_err(|error| failed(&error))?;
    params.distinguished_name.push(DnType::CommonName, "Steelyard's sidecar webhook");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
    let day = |days: i64| {
        let date = today.saturating_add(days.days());
        rcgen::date_time_ymd(i32::from(date.year()), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    // The clock of the API server may be behind.
    (params.not_before, params.not_after) = (day(-1), day(VALID_DAYS + 1));
    let pair = KeyPair::generate().map_err(|error| failed(&error))?;
    let made = params.self_signed(&pair).map_err(|error| failed(&error))?;
    let der = PrivateKeyDer::Pkcs8(pair.serialize_der().into());
    let signing = rustls::crypto::aws_lc_rs::sign::any_supported_type(&der).map_err(|error| failed(&error))?;
    let key = Arc::new(CertifiedKey::new(vec![made.der().clone()], signing));
    Ok(Certificate { key, pem: made.pem() })
}

/// The certificate that clients get.
pub(super) struct Shown(RwLock<Certificate>);

impl Shown {
    pub(super) fn new(certificate: Certificate) -> Self {
        Self(RwLock::new(certificate))
    }

    /// Shows another one from the next handshake on.
    pub(super) fn show(&self, certificate: Certificate) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = certificate;
    }

    pub(super) fn pem(&self) -> String {
        self.0.read().unwrap_or_else(PoisonError::into_inner).pem.clone()
    }

    /// The settings of TLS, which show what is shown at the time of a handshake.
    pub(super) fn config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, String> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| error.to_string())?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().unwrap_or_else(PoisonError::into_inner).key.clone())
    }
}
