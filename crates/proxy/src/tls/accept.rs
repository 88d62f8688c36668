//! TLS with the client: which certificate it gets, whether it must show one, and for which names the connection then serves requests.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use model::{ClientCa, HostMatcher, ListenerTls};
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{Acceptor, ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ProtocolVersion, ServerConfig};
use tokio_rustls::LazyConfigAcceptor;

use super::any::AnyClient;
use super::client_certificate::ClientCertificate;
use super::files::{self, Contents};
use super::{H2, Provider, Socket, versions};
use crate::exchange::route::Router;
use crate::named_files::Fault;
use crate::stream::Stream;

/// The certificates that a listener shows and requires.
pub(crate) struct ServerKeys {
    settings: ListenerTls,
    protocols: &'static [&'static [u8]],
    contents: Contents,
    certificates: Arc<Certificates>,
    /// For names whose clients are not asked for a certificate; `None` if all are.
    open: Option<Arc<ServerConfig>>,
    /// For names whose clients are.
    mutual: Option<Mutual>,
}

struct Mutual {
    /// Empty means all.
    hosts: Vec<HostMatcher>,
    config: Arc<ServerConfig>,
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
        for pair in &settings.certificates {
            match files::certified(pair, &mut contents, provider) {
                Ok(certified) => certificates.add(certified),
                Err(error) => errors.push(error),
            }
        }
        let certificates = Arc::new(certificates);
        let config = |client_ca: Option<&ClientCa>, contents: &mut Contents| {
            let builder = ServerConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(versions(settings.min_version))
                .map_err(|error| error.to_string())?;
            let builder = match client_ca {
                None => builder.with_no_client_auth(),
                Some(client) => {
                    let roots = files::roots(&client.ca, contents)?;
                    if client.verify {
                        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build();
                        builder.with_client_cert_verifier(verifier.map_err(|error| error.to_string())?)
                    } else {
                        builder.with_client_cert_verifier(Arc::new(AnyClient::new(&roots, provider.clone())))
                    }
                }
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
        let open = if needs_all { Ok(None) } else { config(None, &mut contents).map(Some) };
        let mutual = settings.client_ca.as_ref().map(|client| {
            let config = config(Some(client), &mut contents)?;
            Ok::<_, Fault>(Mutual { hosts: client.hosts.clone(), config })
        });
        match (open, mutual.transpose()) {
            (Ok(open), Ok(mutual)) if errors.is_empty() => {
                let is_same = |old: &&Arc<Self>| {
                    old.settings == *settings && old.protocols == protocols && old.contents == contents
                };
                Ok(match old.filter(is_same) {
                    Some(old) => old.clone(),
                    None => {
                        Arc::new(Self { settings: settings.clone(), protocols, contents, certificates, open, mutual })
                    }
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

    /// Whether clients that ask for this name are asked for a certificate. A client that asks for no name is asked if all are.
    fn is_mutual(&self, host: Option<&str>) -> bool {
        self.mutual.as_ref().is_some_and(|mutual| {
            mutual.hosts.is_empty() || host.is_some_and(|host| mutual.hosts.iter().any(|matcher| matcher.matches(host)))
        })
    }

    fn config(&self, is_mutual: bool) -> Option<&Arc<ServerConfig>> {
        if is_mutual { self.mutual.as_ref().map(|mutual| &mutual.config) } else { self.open.as_ref() }
    }
}

/// What a connection was made for.
pub(crate) struct Secured {
    keys: Arc<ServerKeys>,
    /// The name that the client asked for, in lower case.
    sni: Option<Box<str>>,
    is_mutual: bool,
    is_h2: bool,
    version: &'static str,
    /// The client's, if it was verified.
    client_certificate: Option<Box<ClientCertificate>>,
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
        self.client_certificate.as_deref()
    }

    /// Whether HTTP/2 was negotiated.
    pub(crate) fn is_h2(&self) -> bool {
        self.is_h2
    }

    /// Whether a request for this host may use the connection (RFC 9110 section 7.4): the connection was made for exactly this name; or the
    /// same is required of clients of both, and both belong to the same isolated host of the listener, or, if it isolates none, have the
    /// same certificate. `host` is in lower case and has no port. It is empty in an HTTP/1.0 request without `Host`, which goes to the routes
    /// for every host; no certificate is for it.
    pub(crate) fn serves(&self, host: &str, router: &Router) -> bool {
        // A client that asked for no name got the first certificate, and has decided to trust it.
        let Some(sni) = self.sni.as_deref() else { return self.asks_the_same_for(host) };
        if sni == host {
            return true;
        }
        if !router.isolates() {
            return (host.is_empty() || self.keys.certificates.same(sni, host)) && self.asks_the_same_for(host);
        }
        match router.isolated_host(host) {
            // No other connection would serve it better. What is found, most likely 404, must not depend on a certificate that this
            // connection did not require.
            None => self.is_mutual || self.asks_the_same_for(host),
            there => router.isolated_host(sni) == there && self.asks_the_same_for(host),
        }
    }

    /// Whether a connection for this host would have required the same of the client.
    fn asks_the_same_for(&self, host: &str) -> bool {
        self.keys.is_mutual(Some(host)) == self.is_mutual
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
    let is_verified = is_mutual && keys.settings.client_ca.as_ref().is_some_and(|client| client.verify);
    let shown = connection.peer_certificates().and_then(<[_]>::first).filter(|_| is_verified);
    let client_certificate = shown.map(|shown| Box::new(ClientCertificate::new(shown.clone().into_owned())));
    let is_h2 = connection.alpn_protocol() == Some(H2);
    let secured = Secured { keys, sni, is_mutual, is_h2, version, client_certificate };
    Ok((Stream::Tls(Box::new(stream.into())), Rc::new(secured)))
}

/// The certificates of a listener, by the names in them.
#[derive(Default)]
struct Certificates {
    all: Vec<Arc<CertifiedKey>>,
    exact: HashMap<String, Vec<usize>>,
    /// Holds `*.example.com` as `example.com`. A wildcard stands for one label (RFC 9525 section 6.3).
    wildcard: HashMap<String, Vec<usize>>,
}

impl Certificates {
    fn add(&mut self, certified: CertifiedKey) {
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

    /// The certificates for a name, in the order of the file. If there are none, the client gets the first of all.
    fn of(&self, name: &str) -> &[usize] {
        let exact = self.exact.get(name);
        let wildcard = || name.split_once('.').and_then(|(_, domain)| self.wildcard.get(domain));
        exact.or_else(wildcard).map(Vec::as_slice).unwrap_or_default()
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
        // Of several certificates for one name (ECDSA and RSA), use the first that the client can verify.
        let can_check = |key: &&Arc<CertifiedKey>| key.key.choose_scheme(hello.signature_schemes()).is_some();
        let mut candidates = fitting.iter().filter_map(|index| self.all.get(*index)).chain(&self.all);
        // A client that can verify none also gets the first one. Then the handshake fails when the two sides look for a common algorithm,
        // and the client gets handshake_failure (RFC 8446 section 4.1.1) instead of access_denied.
        candidates.clone().find(can_check).or_else(|| candidates.next()).cloned()
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("exact", &self.exact).field("wildcard", &self.wildcard).finish()
    }
}
