//! TLS of the admin address: its keys, and whose certificate a client has shown.

use std::sync::Arc;

use model::{AdminTls, HolderMatcher};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;

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
            Ok(config) if errors.is_empty() => {
                let is_same = |old: &&Arc<Self>| old.settings == *settings && old.contents == contents;
                Ok(match old.filter(is_same) {
                    Some(old) => old.clone(),
                    None => Arc::new(Self { settings: settings.clone(), contents, own, config }),
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
) -> Result<Arc<ServerConfig>, Fault> {
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
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(certificates));
    config.alpn_protocols = vec![H1.to_vec()];
    // Each connection is new: a session must not outlive the right of its client.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    Ok(Arc::new(config))
}

/// Whose certificate it is.
pub(crate) enum HolderOf {
    Name(Name),
    Subject(String),
}

impl HolderOf {
    /// # Errors
    /// The name is not one that a certificate can have.
    pub(crate) fn new(matcher: &HolderMatcher) -> Result<Self, String> {
        Ok(match matcher {
            HolderMatcher::Name(name) => Self::Name(Name::new(name)?),
            HolderMatcher::Subject(subject) => Self::Subject(subject.clone()),
        })
    }

    /// What belongs to the first holder of a certificate in DER.
    pub(crate) fn first<'h, T>(holders: &'h [(Self, T)], der: &[u8]) -> Option<&'h T> {
        let der = CertificateDer::from(der);
        let leaf = webpki::EndEntityCert::try_from(&der).ok()?;
        let subject = subject::text(leaf.subject());
        let is_it = |holder: &Self| match holder {
            Self::Name(name) => name.is_in(&leaf),
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
        let mut params = rcgen::CertificateParams::new(vec!["ann.example.com".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "ops");
        params.distinguished_name.push(rcgen::DnType::CommonName, "ann");
        let der = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().to_vec();
        let check = |matcher: HolderMatcher, expect: bool| {
            let holders = [(HolderOf::new(&matcher).unwrap(), ())];
            assert_eq!(HolderOf::first(&holders, &der).is_some(), expect, "{matcher:?}");
        };
        let subject = |text: &str| HolderMatcher::Subject(text.to_owned());
        let dns = |text: &str| HolderMatcher::Name(SubjectAltName::Dns(text.to_owned()));
        check(subject("CN=ann,O=ops"), true);
        check(subject("CN=ann"), false);
        check(subject("O=ops,CN=ann"), false);
        check(dns("ann.example.com"), true);
        check(dns("*.example.com"), true);
        check(dns("eve.example.com"), false);
        assert!(HolderOf::first(&[(HolderOf::Subject(String::new()), ())], b"no certificate").is_none());
    }
}
