//! Certificates and keys, from files or from the snapshot itself.

use std::path::Path;
use std::sync::Arc;

use model::{Certificate, Pem};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::Provider;

/// A file larger than this is no certificate. Bundles of public roots are a quarter of a MiB.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The files that something was made of, as they were.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Contents(Vec<Vec<u8>>);

impl Contents {
    /// One more text. One that the snapshot holds is not copied: the snapshot's settings tell whether it is the same.
    ///
    /// # Errors
    /// Its file cannot be read, or is too large.
    pub(super) fn pem<'c>(&'c mut self, pem: &'c Pem) -> Result<&'c [u8], String> {
        match pem {
            Pem::File(path) => self.read(path),
            Pem::Held { text, .. } => Ok(text),
        }
    }

    /// Reads one more file.
    ///
    /// # Errors
    /// It cannot be read, or is too large.
    pub(super) fn read(&mut self, path: &Path) -> Result<&[u8], String> {
        let fail = |error: std::io::Error| format!("{}: {error}", path.display());
        let bytes_max = std::fs::metadata(path).map_err(fail)?.len();
        if bytes_max > FILE_BYTES_MAX {
            return Err(format!("{}: larger than {} MiB", path.display(), FILE_BYTES_MAX >> 20));
        }
        self.0.push(std::fs::read(path).map_err(fail)?);
        Ok(self.0.last().map(Vec::as_slice).unwrap_or_default())
    }
}

/// A certificate with its key, found to belong together.
///
/// # Errors
/// Either cannot be read or is not one, or they do not belong together.
pub(super) fn certified(
    pair: &Certificate,
    contents: &mut Contents,
    provider: &Provider,
) -> Result<CertifiedKey, String> {
    let chain = certificates(&pair.cert, contents)?;
    let place = &pair.key;
    let key = PrivateKeyDer::from_pem_slice(contents.pem(&pair.key)?)
        .map_err(|error| format!("{place}: no private key in it that can be read ({error}); PEM with PKCS#8, PKCS#1 or SEC1 is needed, without a password"))?;
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(|error| format!("{place}: a private key that is not supported: {error}"))?;
    let mut certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
        Err(_) => return Err(format!("{place}: not the key of the certificate in {}", pair.cert)),
    }
    if let Some(path) = &pair.ocsp {
        certified.ocsp = Some(contents.read(path)?.to_vec());
    }
    Ok(certified)
}

/// Those in a file, in its order.
pub(super) fn certificates(pem: &Pem, contents: &mut Contents) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(contents.pem(pem)?).collect();
    match found {
        Ok(found) if found.is_empty() => Err(format!("{pem}: no certificate in it; PEM is needed")),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{pem}: not PEM: {error}")),
    }
}

/// Those who may sign.
pub(super) fn roots(pem: &Pem, contents: &mut Contents) -> Result<Arc<RootCertStore>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, contents)? {
        roots.add(certificate).map_err(|error| format!("{pem}: a certificate that cannot sign: {error}"))?;
    }
    Ok(Arc::new(roots))
}
