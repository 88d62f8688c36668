//! The certificate that a client has shown, in the forms that headers have it in.

use std::cell::OnceCell;
use std::fmt::Write;

use aws_lc_rs::digest;
use rustls::CertificateError;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;

use super::subject;

/// Bytes of a line of PEM, before base64.
const PEM_LINE_BYTES: usize = 48;

/// What is wrong with a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No CA that is trusted has signed it.
    Issuer,
    Expired,
    NotYetValid,
    Revoked,
    /// Its CA, or one above it, has no list of revoked certificates that counts.
    NoRevocationList,
    /// The list has expired.
    OldRevocationList,
    /// It cannot be read, or is not for clients.
    Other,
}

impl Fault {
    fn of(error: &rustls::Error) -> Self {
        let error = match error {
            rustls::Error::InvalidCertificate(error) => error,
            rustls::Error::InvalidCertRevocationList(_) => return Self::NoRevocationList,
            _ => return Self::Other,
        };
        match error {
            CertificateError::UnknownIssuer => Self::Issuer,
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYetValid,
            CertificateError::Revoked => Self::Revoked,
            CertificateError::UnknownRevocationStatus => Self::NoRevocationList,
            CertificateError::ExpiredRevocationList | CertificateError::ExpiredRevocationListContext { .. } => {
                Self::OldRevocationList
            }
            _ => Self::Other,
        }
    }

    /// In the words of OpenSSL, which `$ssl_client_verify` of nginx has.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Issuer => "unable to get local issuer certificate",
            Self::Expired => "certificate has expired",
            Self::NotYetValid => "certificate is not yet valid",
            Self::Revoked => "certificate revoked",
            Self::NoRevocationList => "unable to get certificate CRL",
            Self::OldRevocationList => "CRL has expired",
            Self::Other => "certificate rejected",
        }
    }

    /// Whether the certificate may still be one of somebody who signs certificates himself.
    pub(crate) fn is_of_signature(self) -> bool {
        matches!(self, Self::Issuer | Self::Other)
    }
}

/// A certificate that a client has shown. Its texts are made when they are first needed, and only the short ones are kept.
pub(crate) struct ClientCertificate {
    der: CertificateDer<'static>,
    /// The certificates that lead from it to a root.
    rest: Box<[CertificateDer<'static>]>,
    subject: OnceCell<Box<str>>,
    issuer: OnceCell<Box<str>>,
    sha256: OnceCell<Box<str>>,
}

impl ClientCertificate {
    /// Takes what the client has sent; `None` if that was nothing.
    pub(super) fn of(sent: &[CertificateDer<'_>]) -> Option<Self> {
        let (der, rest) = sent.split_first()?;
        let rest = rest.iter().map(|certificate| certificate.clone().into_owned()).collect();
        let (subject, issuer, sha256) = Default::default();
        Some(Self { der: der.clone().into_owned(), rest, subject, issuer, sha256 })
    }

    /// Whether a verifier accepts it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn verify(&self, verifier: &dyn ClientCertVerifier) -> Result<(), Fault> {
        let verified = verifier.verify_client_cert(&self.der, &self.rest, UnixTime::now());
        verified.map(drop).map_err(|error| Fault::of(&error))
    }

    /// The subject (RFC 4514), in printable ASCII. Empty if the certificate has none, or an excessively long one.
    pub(crate) fn subject(&self) -> &str {
        self.subject.get_or_init(|| self.name(|certificate| subject::text(certificate.subject())))
    }

    /// The issuer, in the same form.
    pub(crate) fn issuer(&self) -> &str {
        self.issuer.get_or_init(|| self.name(|certificate| subject::text(certificate.issuer())))
    }

    fn name(&self, of: impl FnOnce(&webpki::EndEntityCert<'_>) -> Option<String>) -> Box<str> {
        let parsed = webpki::EndEntityCert::try_from(&self.der).ok();
        parsed.and_then(|certificate| of(&certificate)).unwrap_or_default().into_boxed_str()
    }

    /// The SHA-256 fingerprint in lower-case hex.
    pub(crate) fn sha256(&self) -> &str {
        self.sha256.get_or_init(|| {
            let mut text = String::new();
            for byte in digest::digest(&digest::SHA256, &self.der).as_ref() {
                // Writing to a String cannot fail.
                let _ = write!(text, "{byte:02x}");
            }
            text.into_boxed_str()
        })
    }

    /// Appends the value of `Client-Cert` (RFC 9440 section 2.2): a byte sequence of structured fields.
    pub(crate) fn write_field(&self, out: &mut Vec<u8>) {
        out.push(b':');
        self.der.chunks(3).for_each(|three| out.extend(base64(three)));
        out.push(b':');
    }

    /// Appends PEM, percent-encoded as nginx does for `$ssl_client_escaped_cert`: everything but letters, digits and `-._~`.
    pub(crate) fn write_pem(&self, out: &mut Vec<u8>) {
        let mut put = |text: &[u8]| {
            for byte in text {
                match byte {
                    b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' | b'_' | b'~' => out.push(*byte),
                    byte => out.extend([b'%', hex(byte >> 4), hex(byte & 15)]),
                }
            }
        };
        put(b"-----BEGIN CERTIFICATE-----\n");
        for line in self.der.chunks(PEM_LINE_BYTES) {
            line.chunks(3).for_each(|three| put(&base64(three)));
            put(b"\n");
        }
        put(b"-----END CERTIFICATE-----\n");
    }
}

fn hex(digit: u8) -> u8 {
    if digit < 10 { b'0' + digit } else { b'A' + digit - 10 }
}

/// One to three bytes in base64, padded.
fn base64(three: &[u8]) -> [u8; 4] {
    let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or_default());
    let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
    let digit = |shift: u32| match (bits >> shift & 63) as u8 {
        value @ 0..=25 => b'A' + value,
        value @ 26..=51 => b'a' + (value - 26),
        value @ 52..=61 => b'0' + (value - 52),
        62 => b'+',
        _ => b'/',
    };
    let padded = |at: usize, shift| if three.len() >= at { digit(shift) } else { b'=' };
    [digit(18), digit(12), padded(2, 6), padded(3, 0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(der: &[u8], write: impl Fn(&ClientCertificate, &mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&ClientCertificate::of(&[der.to_vec().into()]).unwrap(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn forms_of_a_certificate() {
        let field = |der: &[u8], expect| assert_eq!(written(der, ClientCertificate::write_field), expect);
        // RFC 4648 section 10.
        field(b"f", ":Zg==:");
        field(b"fo", ":Zm8=:");
        field(b"foo", ":Zm9v:");
        field(b"foobar", ":Zm9vYmFy:");
        field(&[0xfb, 0xff, 0xfe], ":+//+:");
        let pem = written(&[0xff; 50], ClientCertificate::write_pem);
        let begin = "-----BEGIN%20CERTIFICATE-----%0A";
        let end = "%2F%2F8%3D%0A-----END%20CERTIFICATE-----%0A";
        assert_eq!(pem, format!("{begin}{}%0A{end}", "%2F".repeat(64)));
        let certificate = ClientCertificate::of(&[b"".to_vec().into()]).unwrap();
        assert_eq!(certificate.sha256(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(certificate.subject(), "");
    }
}
