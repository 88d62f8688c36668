//! Checks the certificate and key of a Secret, or the certificates of a ConfigMap, once when the object arrives. What passes here must not
//! make a plane refuse a snapshot, because the snapshot belongs to all objects.

use std::fmt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;

/// A certificate and its key, which are known to match.
#[derive(Clone, PartialEq, Eq)]
pub struct Keypair {
    /// PEM: the certificate, followed by the certificates that lead to the root.
    pub cert: Arc<[u8]>,
    /// PEM.
    pub key: Arc<[u8]>,
}

impl Keypair {
    /// # Errors
    /// Returns what is wrong with them, in words for the status of the objects that name the Secret. Never contains a part of the key.
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
                return Err("the key in tls.key does not match the certificate in tls.crt".to_owned());
            }
            Err(error) => return Err(format!("the certificate in tls.crt cannot be read: {error}")),
        }
        Ok(Self { cert: cert.into(), key: key.into() })
    }
}

/// Checks that a text consists of certificates that may sign others.
///
/// # Errors
/// Returns what is wrong with it, in words for the status of the objects that name it.
pub(super) fn judge_authority(text: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("ca.crt", text)? {
        roots.add(certificate).map_err(|error| format!("a certificate in ca.crt cannot sign: {error}"))?;
    }
    Ok(roots)
}

/// Checks that a text consists of lists of revoked certificates.
///
/// # Errors
/// Returns what is wrong with it. What a list that cannot be read would refuse is not known, so nothing may be admitted.
pub(super) fn judge_crl(roots: RootCertStore, text: &[u8]) -> Result<(), String> {
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(text).collect();
    let lists = lists.map_err(|error| not_pem("ca.crl", error))?;
    if lists.is_empty() {
        return Err("there is no certificate revocation list in ca.crl".to_owned());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).with_crls(lists).build();
    let form = "complete lists of version 2 that say when the next one comes";
    verifier.map(drop).map_err(|error| format!("ca.crl cannot be used ({error}); write {form}"))
}

fn certificates(place: &str, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let found = found.map_err(|error| not_pem(place, error))?;
    if found.is_empty() { Err(format!("there is no certificate in {place}")) } else { Ok(found) }
}

fn not_pem(place: &str, error: pem::Error) -> String {
    match error {
        // The library's message is a list of numbers.
        pem::Error::MissingSectionEnd { .. } => format!("{place} is not PEM: a section does not end"),
        error => format!("{place} is not PEM: {error}"),
    }
}

/// Without the key, which must not appear in a log.
impl fmt::Debug for Keypair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keypair").finish_non_exhaustive()
    }
}
