//! Certificates and keys, from files or from the snapshot itself.

use std::path::Path;
use std::sync::Arc;

use model::{Certificate, Pem, SpiffeMatcher};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::Provider;
use crate::named_files::{self, Fault};

/// A larger file is not accepted as a certificate. Bundles of public roots have a quarter of a MiB.
const FILE_KIB_MAX: u64 = 4 * 1024;

/// The contents of the files that something was made from.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Contents(Vec<Vec<u8>>);

impl Contents {
    /// Adds a text and returns it. A text in the snapshot is not copied, because a comparison of the snapshot's settings shows whether it
    /// has changed.
    ///
    /// # Errors
    /// Its file cannot be read, or is too large.
    pub(super) fn pem<'c>(&'c mut self, pem: &'c Pem) -> Result<&'c [u8], Fault> {
        match pem {
            Pem::File(path) => self.read(path),
            Pem::Held { text, .. } => Ok(text),
        }
    }

    /// Reads another file.
    ///
    /// # Errors
    /// It cannot be read, or is too large.
    pub(super) fn read(&mut self, path: &Path) -> Result<&[u8], Fault> {
        self.0.push(named_files::read(path, FILE_KIB_MAX)?);
        Ok(self.0.last().map(Vec::as_slice).unwrap_or_default())
    }
}

/// A certificate with its key, which are checked to belong together.
///
/// # Errors
/// Either one cannot be read or is invalid, or they do not belong together.
pub(super) fn certified(
    pair: &Certificate,
    contents: &mut Contents,
    provider: &Provider,
) -> Result<CertifiedKey, Fault> {
    let chain = match certificates(&pair.cert, contents) {
        Ok(chain) => chain,
        Err(_) if are_swapped(pair, contents)? => {
            let fault = Fault::of(&pair.cert, "contains a private key instead of a certificate");
            return Err(fault.hint(format!("the certificate is in {}: swap `cert` and `key`", pair.key)));
        }
        Err(fault) => return Err(fault),
    };
    let key = PrivateKeyDer::from_pem_slice(contents.pem(&pair.key)?).map_err(|error| {
        let fault = Fault::of(&pair.key, &format!("contains no readable private key ({error})"));
        fault.hint("use PEM with PKCS#8, PKCS#1 or SEC1, without a password".to_owned())
    })?;
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(|error| Fault::of(&pair.key, &format!("the private key is not supported: {error}")))?;
    let mut certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
        Err(_) => return Err(Fault::of(&pair.key, &format!("does not belong to the certificate in {}", pair.cert))),
    }
    if let Some(path) = &pair.ocsp {
        certified.ocsp = Some(contents.read(path)?.to_vec());
    }
    Ok(certified)
}

/// Checks that other sidecars can accept the certificate of a sidecar.
///
/// # Errors
/// It has no SPIFFE id, or other URIs besides.
pub(super) fn check_spiffe_id(pair: &Certificate, certified: &CertifiedKey) -> Result<(), Fault> {
    let leaf = certified.cert.first().and_then(|leaf| webpki::EndEntityCert::try_from(leaf).ok());
    let any = SpiffeMatcher::Below("spiffe://".to_owned());
    match leaf.is_some_and(|leaf| super::connect::has_spiffe_id(&leaf, std::slice::from_ref(&any))) {
        true => Ok(()),
        false => {
            Err(Fault::of(&pair.cert, "does not have exactly one URI, which is a SPIFFE id: other sidecars refuse it")
                .hint("issue it with a subjectAltName such as URI:spiffe://example.org/ns/shop/sa/shop".to_owned()))
        }
    }
}

/// The certificates of a file, in order.
pub(super) fn certificates(pem: &Pem, contents: &mut Contents) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(contents.pem(pem)?).collect();
    match found {
        Ok(found) if found.is_empty() => Err(Fault::of(pem, "contains no certificate").hint("use PEM".to_owned())),
        Ok(found) => Ok(found),
        Err(error) => Err(Fault::of(pem, &format!("not PEM: {error}"))),
    }
}

/// Whether the certificate's file contains only a key, and the key's file only a certificate.
fn are_swapped(pair: &Certificate, contents: &mut Contents) -> Result<bool, Fault> {
    let has_certificate = |text: &[u8]| CertificateDer::pem_slice_iter(text).next().is_some_and(|found| found.is_ok());
    let has_key = |text: &[u8]| PrivateKeyDer::from_pem_slice(text).is_ok();
    let cert = contents.pem(&pair.cert)?;
    if has_certificate(cert) || !has_key(cert) {
        return Ok(false);
    }
    let key = contents.pem(&pair.key)?;
    Ok(has_certificate(key) && !has_key(key))
}

impl Fault {
    pub(super) fn of(pem: &Pem, what: &str) -> Self {
        Self { file: pem.file().map(Path::to_owned), message: format!("{pem}: {what}"), hint: None }
    }
}

/// The trusted roots.
pub(super) fn roots(pem: &Pem, contents: &mut Contents) -> Result<Arc<RootCertStore>, Fault> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, contents)? {
        roots
            .add(certificate)
            .map_err(|error| Fault::of(pem, &format!("a certificate cannot be used as a trusted root: {error}")))?;
    }
    Ok(Arc::new(roots))
}
