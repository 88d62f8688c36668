//! TLS with the client: which certificate it gets, whether it must show one, and for which names the connection then serves requests.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use model::{ClientCa, HostCertificates, HostMatcher, ListenerTls};
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{Acceptor, ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ProtocolVersion, RootCertStore, ServerConfig};
use tokio_rustls::LazyConfigAcceptor;

use super::any::AnyClient;
use super::client_certificate::{ClientCertificate, Fault as CertificateFault};
use super::files::{self, Contents};
use super::revocation::Revocation;
use super::spiffe_client::SpiffeClient;
use super::{H2, OwnCertificate, Provider, Socket, versions};
use crate::exchange::route::Router;
use crate::named_files::Fault;
use crate::stream::Stream;

/// The certificates that a listener shows and requires.
pub(crate) struct ServerKeys {
    settings: ListenerTls,
    protocols: &'static [&'static [u8]],
    contents: Contents,
    certificates: Arc<Certificates>,
    own: Vec<OwnCertificate>,
    /// For names whose clients are not asked for a certificate; `None` if all are.
    open: Option<Arc<ServerConfig>>,
    /// For names whose clients are.
    mutual: Option<Mutual>,
}

struct Mutual {
    /// Empty means all.
    hosts: Vec<HostMatcher>,
    /// What says which certificates are good; `None` if nothing does.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// Clients without a good certificate are admitted, too.
    is_open: bool,
    config: Arc<ServerConfig>,
}

impl Mutual {
    /// `config` makes the configuration with what looks at certificates in the handshake.
    fn load(
        client: &ClientCa,
        contents: &mut Contents,
        provider: &Provider,
        config: impl FnOnce(Arc<dyn ClientCertVerifier>) -> Result<Arc<ServerConfig>, Fault>,
    ) -> Result<Self, Fault> {
        let roots = &files::roots(&client.ca, contents)?;
        let crl = client.crl.as_ref();
        let revoked = crl.map(|crl| Revocation::read(crl, &client.ca, contents)).transpose()?;
        let verifier = client.verify.then(|| verifier(client, roots, revoked, provider)).transpose()?;
        let is_open = !client.verify || !client.required;
        let in_handshake = match &verifier {
            Some(verifier) if !is_open => verifier.clone(),
            // The certificate is looked at after the handshake, also of one that continues an older one.
            _ => Arc::new(AnyClient::new(roots, provider.clone())),
        };
        Ok(Self { hosts: client.hosts.clone(), verifier, is_open, config: config(in_handshake)? })
    }
}

impl ServerKeys {
    /// Reads the files. Returns `old` if they and the settings are unchanged. `protocols` are offered by ALPN, the first
    /// one before the others; if there are none, the protocol is not known, and none is negotiated.
    ///
    /// # Errors
    /// Everything that is wrong with any of them.
    pub(super) fn load(
        settings: &ListenerTls,
        protocols: &'static [&'static [u8]],
        old: Option<&Arc<Self>>,
        provider: &Provider,
    ) -> Result<Arc<Self>, Vec<Fault>> {
        let mut contents = Contents::default();
        let mut errors = Vec::new();
        let mut certificates = Certificates::default();
        let mut own = Vec::new();
        let is_sidecar = settings.client_ca.as_ref().is_some_and(|client| !client.spiffe_ids.is_empty());
        for pair in &settings.certificates {
            let certified = files::certified(pair, &mut contents, provider).and_then(|certified| {
                if is_sidecar {
                    files::check_spiffe_id(pair, &certified)?;
                }
                Ok(certified)
            });
            match certified {
                Ok(certified) => {
                    own.extend(OwnCertificate::of(&pair.cert, &certified));
                    certificates.add(certified);
                }
                Err(error) => errors.push(error),
            }
        }
        for host in &settings.hosts {
            certificates.hosts.add(host);
        }
        let certificates = Arc::new(certificates);
        let config = |verifier: Option<Arc<dyn ClientCertVerifier>>| {
            let builder = ServerConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(versions(settings.min_version))
                .map_err(|error| error.to_string())?;
            let builder = match verifier {
                None => builder.with_no_client_auth(),
                Some(verifier) => builder.with_client_cert_verifier(verifier),
            };
            let mut config = builder.with_cert_resolver(certificates.clone());
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            // Sessions are resumed by tickets, which cost no memory here. A ticket is valid only under the settings that it was made with:
            // one that was made without a client certificate is useless where one is required.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.ticketer = Ticketer::new().map_err(|error| error.to_string())?;
            Ok::<_, Fault>(Arc::new(config))
        };
        let needs_all = settings.client_ca.as_ref().is_some_and(|client| client.hosts.is_empty());
        let open = if needs_all { Ok(None) } else { config(None).map(Some) };
        let mutual = settings
            .client_ca
            .as_ref()
            .map(|client| Mutual::load(client, &mut contents, provider, |verifier| config(Some(verifier))));
        match (open, mutual.transpose()) {
            (Ok(open), Ok(mutual)) if errors.is_empty() => {
                let is_same = |old: &&Arc<Self>| {
                    old.settings == *settings && old.protocols == protocols && old.contents == contents
                };
                Ok(match old.filter(is_same) {
                    Some(old) => old.clone(),
                    None => Arc::new(Self {
                        settings: settings.clone(),
                        protocols,
                        contents,
                        certificates,
                        own,
                        open,
                        mutual,
                    }),
                })
            }
            (open, mutual) => {
                errors.extend(open.err());
                errors.extend(mutual.err());
                // If the same file is used for both, its error occurs twice.
                errors.dedup();
                Err(errors)
            }
        }
    }

    pub(super) fn own_certificates(&self) -> &[OwnCertificate] {
        &self.own
    }

    /// Whether clients that ask for this name are asked for a certificate. A client that asks for no name is asked if all are.
    fn is_mutual(&self, host: Option<&str>) -> bool {
        self.mutual.as_ref().is_some_and(|mutual| {
            mutual.hosts.is_empty() || host.is_some_and(|host| mutual.hosts.iter().any(|matcher| matcher.matches(host)))
        })
    }

    fn config(&self, is_mutual: bool) -> Option<&Arc<ServerConfig>> {
        if is_mutual { self.mutual.as_ref().map(|mutual| &mutual.config) } else { self.open.as_ref() }
    }

    /// Whether the client of a connection would be admitted, and known for the same.
    fn admits(&self, of: &Secured) -> bool {
        let Some(mutual) = self.mutual.as_ref().filter(|_| self.is_mutual(of.sni())) else { return true };
        let Some(verifier) = &mutual.verifier else { return true };
        let is_good = of.shown.as_ref().is_some_and(|(shown, _)| shown.verify(&**verifier).is_ok());
        match mutual.is_open {
            false => is_good,
            // It was asked, and what it has shown counts as before.
            true => of.is_mutual && is_good == of.client_certificate().is_some(),
        }
    }
}

/// What decides which certificates of clients are accepted.
fn verifier(
    client: &ClientCa,
    roots: &Arc<RootCertStore>,
    revoked: Option<Revocation>,
    provider: &Provider,
) -> Result<Arc<dyn ClientCertVerifier>, Fault> {
    let verifier = match revoked {
        Some(revoked) => revoked.verifier(roots, provider)?,
        None => {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
            verifier.map_err(|error| error.to_string())?
        }
    };
    Ok(match client.spiffe_ids.as_slice() {
        [] => verifier,
        ids => Arc::new(SpiffeClient { inner: verifier, ids: ids.to_vec() }),
    })
}

/// What a connection was made for.
pub(crate) struct Secured {
    keys: Arc<ServerKeys>,
    /// The name that the client asked for, in lower case.
    sni: Option<Box<str>>,
    is_mutual: bool,
    is_h2: bool,
    version: &'static str,
    /// What the client has shown, and whether it is good.
    shown: Option<(Box<ClientCertificate>, Result<(), CertificateFault>)>,
    /// The newer keys of the listener that were compared last, and whether they admit the client.
    newer: RefCell<Option<(Arc<ServerKeys>, bool)>>,
    is_outdated: Cell<bool>,
}

impl Secured {
    /// The name that the client asked for, in lower case.
    pub(crate) fn sni(&self) -> Option<&str> {
        self.sni.as_deref()
    }

    /// The version of TLS, by the name that OpenSSL gives it.
    pub(crate) fn version(&self) -> &'static str {
        self.version
    }

    /// The certificate that the client has shown and that was verified. One that nothing verifies says nothing about the client.
    pub(crate) fn client_certificate(&self) -> Option<&ClientCertificate> {
        self.shown.as_ref().filter(|(_, verified)| verified.is_ok()).map(|(shown, _)| &**shown)
    }

    /// The certificate that the client has shown, and whether it is good. One that is not proves nothing.
    pub(crate) fn shown_certificate(&self) -> Option<(&ClientCertificate, Result<(), CertificateFault>)> {
        self.shown.as_ref().map(|(shown, verified)| (&**shown, *verified))
    }

    /// Whether HTTP/2 was negotiated.
    pub(crate) fn is_h2(&self) -> bool {
        self.is_h2
    }

    /// Whether the listener would no longer admit its client. No further request may use it.
    pub(crate) fn is_outdated(&self) -> bool {
        self.is_outdated.get()
    }

    /// Whether a request for this host may use the connection (RFC 9110 section 7.4): the connection was made for exactly this name; or the
    /// same is required of clients of both, and both belong to the same isolated host of the listener, or, if it isolates none, have the
    /// same certificate. `host` is in lower case and has no port. It is empty in an HTTP/1.0 request without `Host`, which goes to the routes
    /// for every host; no certificate is for it. `now` are the keys that the listener has now, which decide what is required.
    pub(crate) fn serves(&self, host: &str, router: &Router, now: Option<&Arc<ServerKeys>>) -> bool {
        let now = now.unwrap_or(&self.keys);
        if !Arc::ptr_eq(now, &self.keys) && !self.is_admitted_by(now) {
            self.is_outdated.set(true);
            return false;
        }
        // Whether a connection for this host would require the same of the client.
        let asks_the_same = || now.is_mutual(Some(host)) == self.is_mutual;
        // A client that asked for no name got the first certificate, and has decided to trust it.
        let Some(sni) = self.sni.as_deref() else { return asks_the_same() };
        if sni == host {
            return true;
        }
        if !router.isolates() {
            return (host.is_empty() || self.keys.certificates.same(sni, host)) && asks_the_same();
        }
        match router.isolated_host(host) {
            // No other connection would serve it better. What is found, most likely 404, must not depend on a certificate that this
            // connection did not require.
            None => self.is_mutual || asks_the_same(),
            there => router.isolated_host(sni) == there && asks_the_same(),
        }
    }

    /// Whether newer keys of the listener admit the client by what it has shown. They are compared once, and not for each request.
    fn is_admitted_by(&self, newer: &Arc<ServerKeys>) -> bool {
        if let Some((_, admits)) = self.newer.borrow().as_ref().filter(|(known, _)| Arc::ptr_eq(known, newer)) {
            return *admits;
        }
        let admits = newer.admits(self);
        *self.newer.borrow_mut() = Some((newer.clone(), admits));
        admits
    }
}

/// Does the handshake.
///
/// # Errors
/// The client aborted it, supports nothing in common with this side, or shows no trusted certificate. It has received an alert.
pub(crate) async fn accept(keys: Arc<ServerKeys>, socket: Socket) -> io::Result<(Stream, Rc<Secured>)> {
    let started = LazyConfigAcceptor::new(Acceptor::default(), socket).await?;
    let sni = started.client_hello().server_name().map(|name| name.to_ascii_lowercase().into_boxed_str());
    let is_mutual = keys.is_mutual(sni.as_deref());
    let config =
        keys.config(is_mutual).ok_or_else(|| io::Error::other("no TLS configuration for this server name"))?.clone();
    let stream = started.into_stream(config).await?;
    let connection = stream.get_ref().1;
    let version = match connection.protocol_version() {
        Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
        _ => "TLSv1.2",
    };
    let mutual = keys.mutual.as_ref().filter(|_| is_mutual);
    let shown = mutual.and_then(|mutual| {
        let shown = ClientCertificate::of(connection.peer_certificates()?)?;
        let verified = match (&mutual.verifier, mutual.is_open) {
            (None, _) => Err(CertificateFault::Issuer),
            // The handshake has done it.
            (Some(_), false) => Ok(()),
            (Some(verifier), true) => shown.verify(&**verifier),
        };
        Some((Box::new(shown), verified))
    });
    let is_h2 = connection.alpn_protocol() == Some(H2);
    let (newer, is_outdated) = (RefCell::default(), Cell::new(false));
    let secured = Secured { keys, sni, is_mutual, is_h2, version, shown, newer, is_outdated };
    Ok((Stream::Tls(Box::new(stream.into())), Rc::new(secured)))
}

/// The certificates of a listener, by the names in them.
#[derive(Default)]
pub(super) struct Certificates {
    all: Vec<Arc<CertifiedKey>>,
    exact: HashMap<String, Vec<usize>>,
    /// Holds `*.example.com` as `example.com`. A wildcard stands for one label (RFC 9525 section 6.3).
    wildcard: HashMap<String, Vec<usize>>,
    hosts: OwnCertificates,
}

impl Certificates {
    pub(super) fn add(&mut self, certified: CertifiedKey) {
        let index = self.all.len();
        if let Some(leaf) = certified.cert.first()
            && let Ok(leaf) = webpki::EndEntityCert::try_from(leaf)
        {
            for name in leaf.valid_dns_names() {
                let name = name.to_ascii_lowercase();
                match name.strip_prefix("*.") {
                    Some(domain) => self.wildcard.entry(domain.to_owned()).or_default().push(index),
                    None => self.exact.entry(name).or_default().push(index),
                }
            }
        }
        self.all.push(Arc::new(certified));
    }

    /// The certificates with a name, in the order of the file, or of the host that the name belongs to.
    fn of(&self, name: &str) -> Cow<'_, [usize]> {
        let exact = self.exact.get(name);
        let wildcard = name.split_once('.').and_then(|(_, domain)| self.wildcard.get(domain));
        if let Some(own) = self.hosts.of(name) {
            let has_name = |index: &usize| [exact, wildcard].iter().flatten().any(|with| with.contains(index));
            return own.iter().copied().filter(has_name).collect();
        }
        exact.or(wildcard).map(Vec::as_slice).unwrap_or_default().into()
    }

    /// Whether the certificate for `sni` is also valid for `host`.
    fn same(&self, sni: &str, host: &str) -> bool {
        let shown = self.of(sni);
        !shown.is_empty() && shown.first() == self.of(host).first()
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(str::to_ascii_lowercase);
        let fitting = name.as_deref().map(|name| self.of(name)).unwrap_or_default();
        let own = name.as_deref().and_then(|name| self.hosts.of(name));
        // Of several certificates for one name (ECDSA and RSA), use the first that the client can verify.
        let can_check = |key: &&Arc<CertifiedKey>| key.key.choose_scheme(hello.signature_schemes()).is_some();
        // If none has the name, the client gets another one of the host, or of the listener.
        let all = self.all.iter().filter(|_| own.is_none());
        let mut candidates =
            fitting.iter().chain(own.unwrap_or_default()).filter_map(|index| self.all.get(*index)).chain(all);
        // A client that can verify none also gets the first one. Then the handshake fails when the two sides look for a common algorithm,
        // and the client gets handshake_failure (RFC 8446 section 4.1.1) instead of access_denied.
        candidates.clone().find(can_check).or_else(|| candidates.next()).cloned()
    }
}

/// The certificates of hosts that have their own.
#[derive(Default)]
struct OwnCertificates {
    any: Option<Box<[usize]>>,
    exact: HashMap<String, Box<[usize]>>,
    one_label: HashMap<String, Box<[usize]>>,
    suffix: HashMap<String, Box<[usize]>>,
}

impl OwnCertificates {
    fn add(&mut self, HostCertificates { host, certificates }: &HostCertificates) {
        let certificates = certificates.as_slice().into();
        let (map, name) = match host {
            HostMatcher::Any => return self.any = Some(certificates),
            HostMatcher::Exact(name) => (&mut self.exact, name),
            HostMatcher::OneLabel(domain) => (&mut self.one_label, domain),
            HostMatcher::Suffix(domain) => (&mut self.suffix, domain),
        };
        map.insert(name.clone(), certificates);
    }

    /// Those of the most specific host that matches a name; `None` if none does.
    fn of(&self, name: &str) -> Option<&[usize]> {
        let mut found = self.exact.get(name);
        let mut rest = name;
        let mut is_first = true;
        while found.is_none()
            && let Some((_, domain)) = rest.split_once('.')
        {
            found = self.one_label.get(domain).filter(|_| is_first).or_else(|| self.suffix.get(domain));
            (rest, is_first) = (domain, false);
        }
        found.or(self.any.as_ref()).map(|found| &**found)
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("exact", &self.exact).field("wildcard", &self.wildcard).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_host_decides_which_certificates_a_name_can_have() {
        let domain = "example.com".to_owned();
        let hosts = [
            HostMatcher::Any,
            HostMatcher::Suffix(domain.clone()),
            HostMatcher::OneLabel(domain.clone()),
            HostMatcher::Suffix(format!("a.{domain}")),
            HostMatcher::Exact(format!("www.{domain}")),
        ];
        let mut own = OwnCertificates::default();
        assert_eq!(own.of("www.example.com"), None);
        for (number, host) in hosts.into_iter().enumerate() {
            own.add(&HostCertificates { host, certificates: vec![number] });
        }
        let check = |name: &str, expect: usize| assert_eq!(own.of(name), Some(&[expect][..]), "{name}");
        check("www.example.com", 4);
        check("b.a.example.com", 3);
        check("a.example.com", 2);
        check("b.c.example.com", 1);
        check("example.com", 0);
        check("example.org", 0);
    }
}
