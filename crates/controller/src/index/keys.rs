//! Whether the certificate and key of a Secret, or the certificates of a ConfigMap, are of any use: judged once, when the object arrives, and not
//! each time that it is looked at. What is let through here must not make a plane refuse a snapshot, which is everybody's.

use std::fmt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// A certificate and its key, found to belong together.
#[derive(Clone, PartialEq, Eq)]
pub struct Keypair {
    /// PEM: the certificate, then those that lead to the root.
    pub cert: Arc<[u8]>,
    /// PEM.
    pub key: Arc<[u8]>,
}

impl Keypair {
    /// # Errors
    /// What is wrong with them, in words for the status of whoever names the Secret. Never a part of the key.
    pub(super) fn judge(cert: &[u8], key: &[u8]) -> Result<Self, String> {
        let chain = certificates("tls.crt", cert)?;
        let private = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| "there is no private key in tls.key (PEM with PKCS#8, PKCS#1 or SEC1, without a password)")?;
        let private = rustls::crypto::aws_lc_rs::default_provider()
            .key_provider
            .load_private_key(private)
            .map_err(|error| format!("the key in tls.key is not supported: {error}"))?;
        match CertifiedKey::new(chain, private).keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
            Err(rustls::Error::InconsistentKeys(_)) => {
                return Err("tls.key is not the key of the certificate in tls.crt".to_owned());
            }
            Err(error) => return Err(format!("the certificate in tls.crt cannot be read: {error}")),
        }
        Ok(Self { cert: cert.into(), key: key.into() })
    }
}

/// Whether a text is certificates that may sign others.
///
/// # Errors
/// What is wrong with it, in words for the status of whoever names it.
pub(super) fn judge_authority(text: &[u8]) -> Result<(), String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("ca.crt", text)? {
        roots.add(certificate).map_err(|error| format!("a certificate in ca.crt cannot sign: {error}"))?;
    }
    Ok(())
}

fn certificates(place: &str, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let found = found.map_err(|error| match error {
        // The library's words are a list of numbers.
        rustls::pki_types::pem::Error::MissingSectionEnd { .. } => {
            format!("{place} is not PEM: a section does not end")
        }
        error => format!("{place} is not PEM: {error}"),
    })?;
    if found.is_empty() { Err(format!("there is no certificate in {place}")) } else { Ok(found) }
}

/// Without the key, which nobody shall find in a log.
impl fmt::Debug for Keypair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keypair").finish_non_exhaustive()
    }
}
