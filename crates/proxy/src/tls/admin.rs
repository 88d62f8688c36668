//! TLS of the admin address: its keys, which certificates of clients it trusts, and whose they are.

use std::sync::Arc;

use model::{AdminTls, HolderMatcher, SubjectAltName};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use super::accept::Certificates;
use super::connect::Name;
use super::files::{self, Contents};
use super::{H1, OwnCertificate, Provider, subject, versions};
use crate::named_files::Fault;

/// The keys of the admin address.
pub(crate) struct AdminKeys {
    settings: AdminTls,
    contents: Contents,
    pub(super) own: Vec<OwnCertificate>,
    pub(super) config: Arc<ServerConfig>,
    pub(super) trusted: Option<TrustedClients>,
}

/// The CA of clients.
#[derive(Clone)]
pub(crate) struct TrustedClients(Arc<dyn ClientCertVerifier>);

impl TrustedClients {
    /// Whether a certificate, which is the first of these, is valid now. A handshake says that only for its time: a connection may be older than
    /// the CA, and a stream longer than the certificate.
    pub(crate) fn trust(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some((leaf, others)) = chain.split_first() else { return false };
        self.0.verify_client_cert(leaf, others, UnixTime::now()).is_ok()
    }
}

impl AdminKeys {
    /// Reads the files. Returns `old` if they and the settings are unchanged.
    ///
    /// # Errors
    /// Everything that is wrong with any of them.
    pub(super) fn load(
        settings: &AdminTls,
        old: Option<&Arc<Self>>,
        provider: &Provider,
    ) -> Result<Arc<Self>, Vec<Fault>> {
        let mut contents = Contents::default();
        let mut errors = Vec::new();
        let (mut certificates, mut own) = (Certificates::default(), Vec::new());
        for pair in &settings.certificates {
            match files::certified(pair, &mut contents, provider) {
                Ok(certified) => {
                    own.extend(OwnCertificate::of(&pair.cert, &certified));
                    certificates.add(certified);
                }
                Err(error) => errors.push(error),
            }
        }
        match config(settings, certificates, &mut contents, provider) {
            Ok((config, trusted)) if errors.is_empty() => {
                let is_same = |old: &&Arc<Self>| old.settings == *settings && old.contents == contents;
                Ok(match old.filter(is_same) {
                    Some(old) => old.clone(),
                    None => Arc::new(Self { settings: settings.clone(), contents, own, config, trusted }),
                })
            }
            made => {
                errors.extend(made.err());
                Err(errors)
            }
        }
    }
}

fn config(
    settings: &AdminTls,
    certificates: Certificates,
    contents: &mut Contents,
    provider: &Provider,
) -> Result<(Arc<ServerConfig>, Option<TrustedClients>), Fault> {
    let mut trusted = None;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions(settings.min_version))
        .map_err(|error| error.to_string())?;
    let builder = match &settings.client_ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let roots = files::roots(ca, contents)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
            // A token or a password will do instead, and probes need nothing.
            let verifier = verifier.allow_unauthenticated().build().map_err(|error| error.to_string())?;
            trusted = Some(TrustedClients(verifier.clone()));
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(certificates));
    config.alpn_protocols = vec![H1.to_vec()];
    // Each connection is new: a session must not outlive the right of its client.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    Ok((Arc::new(config), trusted))
}

/// Whose certificate it is.
pub(crate) enum HolderOf {
    /// It has this name itself. A wildcard in it stands for hosts that its holder serves, and not for who its holder is.
    Dns(String),
    /// It has a name of one label more than this.
    DnsBelow(String),
    Other(Name),
    Subject(String),
}

impl HolderOf {
    /// # Errors
    /// The name is not one that a certificate can have.
    pub(crate) fn new(matcher: &HolderMatcher) -> Result<Self, String> {
        Ok(match matcher {
            HolderMatcher::Subject(subject) => Self::Subject(subject.clone()),
            HolderMatcher::Name(name) => match (name, Name::new(name)?) {
                (SubjectAltName::Dns(name), Name::Dns(_)) => Self::Dns(name.clone()),
                (_, Name::Wildcard(domain)) => Self::DnsBelow(domain),
                (_, other) => Self::Other(other),
            },
        })
    }

    /// What belongs to the first holder of a certificate in DER.
    pub(crate) fn first<'h, T>(holders: &'h [(Self, T)], der: &CertificateDer<'_>) -> Option<&'h T> {
        let leaf = webpki::EndEntityCert::try_from(der).ok()?;
        let subject = subject::text(leaf.subject());
        let names = || leaf.valid_dns_names().filter(|name| !name.contains('*'));
        let is_it = |holder: &Self| match holder {
            Self::Dns(wanted) => names().any(|name| name.eq_ignore_ascii_case(wanted)),
            Self::DnsBelow(domain) => names().any(|name| {
                name.split_once('.').is_some_and(|(label, rest)| !label.is_empty() && rest.eq_ignore_ascii_case(domain))
            }),
            Self::Other(name) => name.is_in(&leaf),
            Self::Subject(wanted) => subject.as_ref() == Some(wanted),
        };
        holders.iter().find(|(holder, _)| is_it(holder)).map(|(_, of)| of)
    }
}

#[cfg(test)]
mod tests {
    use model::SubjectAltName;

    use super::*;

    #[test]
    fn holders_are_found_by_name_or_by_subject() {
        let certificate = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let mut params = rcgen::CertificateParams::new(names).unwrap();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(rcgen::DnType::OrganizationName, "ops");
            params.distinguished_name.push(rcgen::DnType::CommonName, "ann");
            params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().clone()
        };
        let check = |names: &[&str], matcher: HolderMatcher, expect: bool| {
            let holders = [(HolderOf::new(&matcher).unwrap(), ())];
            assert_eq!(HolderOf::first(&holders, &certificate(names)).is_some(), expect, "{names:?} {matcher:?}");
        };
        let subject = |text: &str| HolderMatcher::Subject(text.to_owned());
        let dns = |text: &str| HolderMatcher::Name(SubjectAltName::Dns(text.to_owned()));
        let ann = ["ann.example.com"];
        check(&ann, subject("CN=ann,O=ops"), true);
        check(&ann, subject("CN=ann"), false);
        check(&ann, subject("O=ops,CN=ann"), false);
        check(&ann, dns("ann.example.com"), true);
        check(&ann, dns("*.example.com"), true);
        check(&ann, dns("eve.example.com"), false);
        check(&["ANN.example.com"], dns("ann.Example.com"), true);
        check(&["a.ann.example.com"], dns("*.example.com"), false);
        // The certificate of a host for many names is nobody's.
        check(&["*.example.com"], dns("ann.example.com"), false);
        check(&["*.example.com"], dns("*.example.com"), false);
        check(&["*.example.com", "ann.example.com"], dns("ann.example.com"), true);
        let nothing = CertificateDer::from(b"no certificate".as_slice());
        assert!(HolderOf::first(&[(HolderOf::Subject(String::new()), ())], &nothing).is_none());
    }

    #[test]
    fn a_certificate_counts_while_it_is_valid_and_its_ca_is_trusted() {
        let authority = || {
            let mut params = rcgen::CertificateParams::default();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap()
        };
        let (ours, other) = (authority(), authority());
        let issue = |until: i32| {
            let mut params = rcgen::CertificateParams::new(vec!["ann.example.com".to_owned()]).unwrap();
            (params.not_before, params.not_after) =
                (rcgen::date_time_ymd(2019, 1, 1), rcgen::date_time_ymd(until, 1, 1));
            vec![params.signed_by(&rcgen::KeyPair::generate().unwrap(), &ours).unwrap().der().clone()]
        };
        let trusting = |authority: &rcgen::CertifiedIssuer<'_, rcgen::KeyPair>| {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(authority.der().clone()).unwrap();
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            TrustedClients(WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap())
        };
        let (valid, expired) = (issue(2500), issue(2020));
        assert!(trusting(&ours).trust(&valid));
        assert!(!trusting(&ours).trust(&expired) && !trusting(&other).trust(&valid) && !trusting(&ours).trust(&[]));
    }
}
