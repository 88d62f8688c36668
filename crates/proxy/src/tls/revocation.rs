//! Certificates of clients that a CA has revoked (RFC 5280 section 5).
//!
//! As in nginx (`ssl_crl`), every CA between a certificate and the root needs a list that has not expired. Without one, nobody knows which of
//! its certificates are revoked, so they are refused.

use std::cmp::Reverse;
use std::sync::Arc;

use model::Pem;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};

use super::Provider;
use super::files::{self, Contents};
use super::subject::Element;
use super::validity::time;
use crate::named_files::Fault;

/// The lists of a file, and the CA certificates that they are for.
pub(super) struct Revocation {
    lists: Vec<CertificateRevocationListDer<'static>>,
    /// Those that nothing in the file has signed.
    roots: RootCertStore,
    /// The others. If they were roots, nobody would ask whether they are revoked.
    issuers: Vec<CertificateDer<'static>>,
}

impl Revocation {
    /// # Errors
    /// A file cannot be read, or a list in it cannot be used. A list that is left out would admit what is in it.
    pub(super) fn read(crl: &Pem, ca: &Pem, contents: &mut Contents) -> Result<Self, Fault> {
        let found: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(contents.pem(crl)?).collect();
        let mut lists = found.map_err(|error| Fault::of(crl, &format!("not PEM: {error}")))?;
        if lists.is_empty() {
            let hint = "use PEM: `openssl crl -inform DER -in FILE` writes it".to_owned();
            return Err(Fault::of(crl, "contains no certificate revocation list").hint(hint));
        }
        for list in &lists {
            webpki::BorrowedCertRevocationList::from_der(list).map_err(|error| unusable(crl, error))?;
        }
        // The first list of an issuer counts, and a file that a script appends to has the oldest one first. One that is not in force yet must not
        // hide the one that is.
        let now = UnixTime::now().as_secs();
        lists.sort_by_cached_key(|list| {
            let made = this_update(list);
            (made.is_some_and(|made| made > now), Reverse(made))
        });
        let certificates = files::certificates(ca, contents)?;
        let names: Vec<Names<'_>> = certificates.iter().map(Names::of).collect();
        let is_root = |name: &Names<'_>| name.is_own() || !names.iter().any(|other| other.has_signed(name));
        let mut are_roots: Vec<bool> = names.iter().map(is_root).collect();
        // They have signed each other. Chains end at the first of them then.
        if let (false, Some(first)) = (are_roots.contains(&true), are_roots.first_mut()) {
            *first = true;
        }
        let (mut roots, mut issuers) = (RootCertStore::empty(), Vec::new());
        for (certificate, is_root) in certificates.iter().zip(are_roots) {
            match is_root {
                true => roots.add(certificate.clone()).map_err(|error| Fault::of(ca, &error.to_string()))?,
                false => issuers.push(certificate.clone()),
            }
        }
        Ok(Self { lists, roots, issuers })
    }

    /// What refuses revoked certificates. `all` are all CA certificates, whose names clients are told.
    ///
    /// # Errors
    /// Says what is wrong with a list.
    pub(super) fn verifier(
        self,
        all: &RootCertStore,
        provider: &Provider,
    ) -> Result<Arc<dyn ClientCertVerifier>, Fault> {
        let Self { lists, roots, issuers } = self;
        let inner = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .clear_root_hint_subjects()
            .add_root_hint_subjects(all.subjects())
            .with_crls(lists)
            .enforce_revocation_expiration()
            .build()
            .map_err(|error| error.to_string())?;
        Ok(match issuers.as_slice() {
            [] => inner,
            _ => Arc::new(WithIssuers { inner, issuers }),
        })
    }
}

fn unusable(crl: &Pem, error: webpki::Error) -> Fault {
    let what = match error {
        webpki::Error::UnsupportedCrlVersion => "is of version 1".to_owned(),
        webpki::Error::UnsupportedDeltaCrl => "has only what has changed (a delta CRL)".to_owned(),
        webpki::Error::UnsupportedIndirectCrl => "is for certificates of other CAs (an indirect CRL)".to_owned(),
        other => format!("cannot be read ({other:?})"),
    };
    let hint = "use complete lists of version 2 that say when the next one comes: `openssl ca -gencrl` with `crlnumber` writes them";
    Fault::of(crl, &format!("a certificate revocation list {what}")).hint(hint.to_owned())
}

/// The names in a certificate, in DER.
struct Names<'c> {
    subject: Option<&'c [u8]>,
    issuer: Option<&'c [u8]>,
}

impl<'c> Names<'c> {
    fn of(certificate: &'c CertificateDer<'_>) -> Self {
        let names = || {
            let mut rest = to_be_signed(certificate)?;
            // The version, if it is there, the serial number, and the algorithm.
            if rest.first() == Some(&0xa0) {
                Element::take(&mut rest)?;
            }
            Element::take(&mut rest)?;
            Element::take(&mut rest)?;
            let issuer = Element::take(&mut rest)?.whole;
            // The validity.
            Element::take(&mut rest)?;
            Some((Element::take(&mut rest)?.whole, issuer))
        };
        let (subject, issuer) = names().unzip();
        Self { subject, issuer }
    }

    /// Whether it names itself as its issuer.
    fn is_own(&self) -> bool {
        self.subject == self.issuer
    }

    fn has_signed(&self, other: &Self) -> bool {
        self.subject.is_some() && self.subject == other.issuer
    }
}

/// When a list was made, in seconds since 1970.
fn this_update(list: &[u8]) -> Option<u64> {
    const INTEGER: u8 = 2;
    let mut rest = to_be_signed(list)?;
    // The version, if it is there, the algorithm, and the issuer.
    if rest.first() == Some(&INTEGER) {
        Element::take(&mut rest)?;
    }
    Element::take(&mut rest)?;
    Element::take(&mut rest)?;
    time(&Element::take(&mut rest)?)
}

/// The content of what is signed in a certificate or a list.
fn to_be_signed(mut der: &[u8]) -> Option<&[u8]> {
    let mut content = Element::take(&mut der)?.content;
    Some(Element::take(&mut content)?.content)
}

/// Knows CA certificates that clients need not send.
#[derive(Debug)]
struct WithIssuers {
    inner: Arc<dyn ClientCertVerifier>,
    issuers: Vec<CertificateDer<'static>>,
}

impl ClientCertVerifier for WithIssuers {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let known = self.issuers.iter().filter(|known| !intermediates.contains(known));
        let all: Vec<CertificateDer<'_>> = intermediates.iter().chain(known).cloned().collect();
        self.inner.verify_client_cert(certificate, &all, now)
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

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa, KeyIdMethod,
        KeyPair, RevokedCertParams, date_time_ymd,
    };
    use rustls::CertificateError as Bad;

    use super::*;

    type Authority = CertifiedIssuer<'static, KeyPair>;

    fn params(name: &str, number: u64) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.serial_number = Some(number.into());
        params
    }

    fn authority(name: &str, number: u64, signer: Option<&Authority>) -> Authority {
        let (mut params, key) = (params(name, number), KeyPair::generate().unwrap());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        match signer {
            None => CertifiedIssuer::self_signed(params, key).unwrap(),
            Some(signer) => CertifiedIssuer::signed_by(params, key, signer).unwrap(),
        }
    }

    /// A list of these numbers, made and due on the first day of these years.
    fn list(by: &Authority, numbers: &[u64], (made, due): (i32, i32)) -> String {
        let revoked = numbers.iter().map(|number| RevokedCertParams {
            serial_number: (*number).into(),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(made, 1, 1),
            next_update: date_time_ymd(due, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(by).unwrap().pem().unwrap()
    }

    fn held(text: &str) -> Pem {
        Pem::Held { name: "Secret a/b".into(), text: text.as_bytes().into() }
    }

    /// What becomes of a certificate with this number.
    fn outcome(ca: &[&Authority], crl: &str, (by, number): (&Authority, u64)) -> Result<(), Bad> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let ca_count = ca.len();
        let ca = held(&ca.iter().map(|authority| authority.pem()).collect::<String>());
        let mut contents = Contents::default();
        let all = files::roots(&ca, &mut contents).unwrap();
        let revocation = Revocation::read(&held(crl), &ca, &mut contents).unwrap();
        let verifier = revocation.verifier(&all, &provider).unwrap();
        assert_eq!(verifier.root_hint_subjects().len(), ca_count, "clients learn all names");
        let leaf = params("client", number).signed_by(&KeyPair::generate().unwrap(), by).unwrap();
        match verifier.verify_client_cert(leaf.der(), &[], UnixTime::now()) {
            Ok(_) => Ok(()),
            Err(rustls::Error::InvalidCertificate(Bad::ExpiredRevocationListContext { .. })) => {
                Err(Bad::ExpiredRevocationList)
            }
            Err(rustls::Error::InvalidCertificate(bad)) => Err(bad),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn what_is_revoked_or_not_known_is_refused() {
        let now = (2020, 2500);
        let (root, other) = (authority("root", 1, None), authority("other", 2, None));
        let inner = authority("inner", 3, Some(&root));
        let one: &[&Authority] = &[&root];
        let check = |ca: &[&Authority], crl: &[String], who, expect| {
            assert_eq!(outcome(ca, &crl.concat(), who), expect, "{}", crl.len());
        };
        check(one, &[list(&root, &[8, 9], now)], (&root, 7), Ok(()));
        check(one, &[list(&root, &[8, 9], now)], (&root, 9), Err(Bad::Revoked));
        check(one, &[list(&root, &[], (2020, 2021))], (&root, 7), Err(Bad::ExpiredRevocationList));
        check(one, &[list(&other, &[], now)], (&root, 7), Err(Bad::UnknownRevocationStatus));
        check(one, &[list(&root, &[], now)], (&other, 7), Err(Bad::UnknownIssuer));
        // The newer list counts, wherever it stands.
        let both = [list(&root, &[], (2020, 2500)), list(&root, &[9], (2021, 2500))];
        check(one, &both, (&root, 9), Err(Bad::Revoked));
        check(one, &[both[1].clone(), both[0].clone()], (&root, 9), Err(Bad::Revoked));
        // A CA in the file that another one has signed may be revoked, too.
        let all: [&Authority; 3] = [&inner, &root, &other];
        let lists = |revoked: &[u64]| [list(&root, revoked, now), list(&inner, &[9], now)];
        check(&all, &lists(&[]), (&inner, 7), Ok(()));
        check(&all, &lists(&[]), (&inner, 9), Err(Bad::Revoked));
        check(&all, &lists(&[3]), (&inner, 7), Err(Bad::Revoked));
        check(&all, &lists(&[])[..1], (&inner, 7), Err(Bad::UnknownRevocationStatus));
        check(&all, &lists(&[])[1..], (&inner, 7), Err(Bad::UnknownRevocationStatus));
        // Nothing above it is known.
        check(&[&inner], &lists(&[])[1..], (&inner, 7), Ok(()));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_a_fault() {
        let root = authority("root", 1, None);
        let check = |crl: &str, expect: &str| {
            let read = Revocation::read(&held(crl), &held(&root.pem()), &mut Contents::default());
            let message = read.err().map(|fault| fault.message).unwrap_or_default();
            assert!(message.contains(expect) && !message.is_empty(), "{message}");
        };
        check("", "contains no certificate revocation list");
        check(&root.pem(), "contains no certificate revocation list");
        let good = list(&root, &[], (2020, 2500));
        check(&good.replace("-----END X509 CRL-----", ""), "not PEM");
        check("-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n", "cannot be read");
        check(&format!("{good}-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n"), "cannot be read");
    }
}
