//! The certificate of contenders that terminate TLS: one for all of a run, signed by itself, which no load verifies.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The name in it.
const NAME: &str = "lab.example";

/// Writes a certificate and its key (P-256, with which contenders sign fastest) to one file of the directory, and returns the file.
pub(super) fn make(directory: &Path) -> io::Result<PathBuf> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).map_err(io::Error::other)?;
    let file = directory.join("certificate.pem");
    std::fs::create_dir_all(directory)?;
    // One of an earlier run, or a link that somebody else put there: nothing is written through it.
    match std::fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Contenders run with the rights of the lab, so no other user needs the key.
    let mut to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file)?;
    to.write_all(format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem()).as_bytes())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_file_has_certificate_and_key_and_is_for_its_owner() {
        let directory = std::env::temp_dir().join(format!("steelyard-lab-certificate-{}", std::process::id()));
        let file = make(&directory).unwrap();
        // A run that is continued makes another.
        let text = |file: &Path| std::fs::read(file).unwrap();
        let first = text(&file);
        assert_ne!(text(&make(&directory).unwrap()), first);
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let key = provider.key_provider.load_private_key(PrivateKeyDer::from_pem_slice(&first).unwrap()).unwrap();
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&first).collect::<Result<_, _>>().unwrap();
        assert_eq!(chain.len(), 1);
        rustls::sign::CertifiedKey::new(chain, key.clone()).keys_match().unwrap();
        let p256 = rustls::SignatureScheme::ECDSA_NISTP256_SHA256;
        assert!(key.choose_scheme(&[p256]).is_some_and(|signer| signer.scheme() == p256));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let other = directory.join("other");
        std::fs::write(&other, "of somebody else").unwrap();
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(&other, &file).unwrap();
        make(&directory).unwrap();
        assert_eq!(text(&other), b"of somebody else");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
