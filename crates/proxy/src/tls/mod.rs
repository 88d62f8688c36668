//! TLS on both sides: reading keys and certificates, and the handshakes.
//!
//! The control thread reads the files, and the workers only share the results. The keys of a listener or a cluster are made anew only if its files or its settings have changed, so that a reload ends neither resumable sessions nor
//! pooled connections.

#[macro_use]
mod signatures;

mod accept;
mod admin;
mod any;
mod client_certificate;
mod connect;
mod files;
mod revocation;
mod socket;
mod spiffe_client;
mod subject;
mod validity;

use std::collections::HashMap;
use std::sync::Arc;

use model::{Protocol, Snapshot};
use rustls::crypto::CryptoProvider;
use telemetry::Reason;

use crate::named_files::Fault;

pub(crate) use accept::{Secured, ServerKeys, accept};
pub(crate) use admin::{AdminKeys, HolderOf, TrustedClients};
pub use connect::{ClientKeys, client_config};
pub(crate) use socket::Socket;
pub use validity::OwnCertificate;

/// Everything that the listeners and clusters of a snapshot need for TLS.
#[derive(Default)]
pub(crate) struct Keys {
    listeners: HashMap<String, Arc<ServerKeys>>,
    clusters: HashMap<String, Arc<ClientKeys>>,
    admin: Option<Arc<AdminKeys>>,
}

impl Keys {
    /// Reads all files that a snapshot names. Results of `previous` with the same files and settings are kept.
    ///
    /// # Errors
    /// Everything that is wrong with any of them, each with its user, such as "listener web" or "cluster app".
    pub(crate) fn load(snapshot: &Snapshot, previous: Option<&Self>) -> Result<Self, Vec<(String, Fault)>> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut keys = Self::default();
        let mut errors = Vec::new();
        for listener in &snapshot.listeners {
            let Some(tls) = &listener.tls else { continue };
            let old = previous.and_then(|previous| previous.listeners.get(&listener.name));
            let protocols: &[&[u8]] = match &listener.protocol {
                Protocol::Http(http) if http.http2 => &[H2, H1],
                Protocol::Http(_) => &[H1],
                Protocol::Tcp(_) | Protocol::Tls(_) | Protocol::Capture(_) => &[],
            };
            match ServerKeys::load(tls, protocols, old, &provider) {
                Ok(made) => drop(keys.listeners.insert(listener.name.clone(), made)),
                Err(faults) => {
                    errors.extend(faults.into_iter().map(|fault| (format!("listener {}", listener.name), fault)));
                }
            }
        }
        let mut without: Vec<(&String, Fault)> = Vec::new();
        for cluster in &snapshot.clusters {
            let Some(tls) = &cluster.tls else { continue };
            let old = previous.and_then(|previous| previous.clusters.get(&cluster.name));
            match ClientKeys::load(tls, cluster.protocol, old, &provider) {
                Ok(made) => drop(keys.clusters.insert(cluster.name.clone(), made)),
                // Its requests fail without keys. The operator did not write it, and all others would go without their changes.
                Err(fault) if cluster.outside.is_some() => without.push((&cluster.name, fault)),
                Err(fault) => errors.push((format!("cluster {}", cluster.name), fault)),
            }
        }
        if let Some((cluster, fault)) = without.first() {
            let (clusters, why) = (without.len(), &fault.message);
            tracing::error!(clusters, cluster, why, "TLS cannot be set up for hosts outside of the cluster");
        }
        if let Some(tls) = &snapshot.admin_access.tls {
            match AdminKeys::load(tls, previous.and_then(|previous| previous.admin.as_ref()), &provider) {
                Ok(made) => keys.admin = Some(made),
                Err(faults) => errors.extend(faults.into_iter().map(|fault| ("admin_access".to_owned(), fault))),
            }
        }
        if errors.is_empty() { Ok(keys) } else { Err(errors) }
    }

    /// The certificates that are shown, each with its user, such as "listener web" or "cluster app".
    pub(crate) fn certificates(&self) -> impl Iterator<Item = (String, &OwnCertificate)> {
        let listeners = self
            .listeners
            .iter()
            .flat_map(|(name, keys)| keys.own_certificates().iter().map(move |own| (format!("listener {name}"), own)));
        let clusters = self
            .clusters
            .iter()
            .flat_map(|(name, keys)| keys.own_certificates().iter().map(move |own| (format!("cluster {name}"), own)));
        let admin = self.admin.iter().flat_map(|keys| keys.own.iter().map(|own| ("the admin address".to_owned(), own)));
        listeners.chain(clusters).chain(admin)
    }

    /// The TLS of the admin address.
    pub(crate) fn admin(&self) -> Option<&Arc<rustls::ServerConfig>> {
        self.admin.as_ref().map(|keys| &keys.config)
    }

    /// The CA of the clients of the admin address.
    pub(crate) fn admin_clients(&self) -> Option<TrustedClients> {
        self.admin.as_ref().and_then(|keys| keys.trusted.clone())
    }

    pub(crate) fn listener(&self, name: &str) -> Option<Arc<ServerKeys>> {
        self.listeners.get(name).cloned()
    }

    pub(crate) fn cluster(&self, name: &str) -> Option<Arc<ClientKeys>> {
        self.clusters.get(name).cloned()
    }
}

/// Why TLS with an endpoint failed; `None` if the underlying connection failed.
pub(crate) fn reason(error: &std::io::Error) -> Option<Reason> {
    use rustls::CertificateError as Bad;
    Some(match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(bad) => match bad {
            Bad::Expired | Bad::ExpiredContext { .. } | Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
                Reason::UpstreamTlsExpired
            }
            Bad::UnknownIssuer => Reason::UpstreamTlsIssuer,
            Bad::NotValidForName | Bad::NotValidForNameContext { .. } => Reason::UpstreamTlsName,
            Bad::Other(other) if other.0.is::<connect::NoSuchName>() => Reason::UpstreamTlsName,
            _ => Reason::UpstreamTlsCertificate,
        },
        rustls::Error::AlertReceived(_) => Reason::UpstreamTlsAlert,
        _ => Reason::UpstreamTls,
    })
}

/// Why TLS with a client failed.
pub(crate) fn client_reason(error: &std::io::Error) -> Reason {
    use rustls::CertificateError::Other;
    match error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(Other(other))) if other.0.is::<connect::NoSuchName>() => {
            Reason::SpiffeId
        }
        _ => Reason::TlsHandshake,
    }
}

/// The text of such a failure for an operator. The texts of rustls mostly suffice: which name the certificate is for, when it expired.
pub(crate) fn told(error: &std::io::Error) -> String {
    const OF_A_CA: &str = "the endpoint uses a CA certificate as its own (basicConstraints says CA:TRUE); give it a \
                           certificate with CA:FALSE";
    let text = error.to_string();
    // rustls prints errors that it does not know as they are in memory.
    if text.contains("NoSuchName") {
        return connect::NoSuchName.to_string();
    }
    // `openssl req -x509` makes such a certificate by default, and other clients accept it.
    match text.contains("CaUsedAsEndEntity") {
        true => OF_A_CA.to_owned(),
        false => text,
    }
}

/// The supported TLS versions from `min` on.
fn versions(min: model::TlsVersion) -> &'static [&'static rustls::SupportedProtocolVersion] {
    static NEW: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];
    match min {
        model::TlsVersion::V1_2 => rustls::ALL_VERSIONS,
        model::TlsVersion::V1_3 => NEW,
    }
}

/// The provider for all configurations. Nothing is global in the process.
type Provider = Arc<CryptoProvider>;

/// The protocols within TLS (RFC 7301).
const H1: &[u8] = b"http/1.1";
const H2: &[u8] = b"h2";

#[cfg(test)]
mod tests {
    use model::{Cluster, ClusterTls, Outside, Reach};

    use super::*;
    use crate::worker::snapshot::fixture;

    #[test]
    fn a_fault_of_a_host_outside_is_no_fault_of_the_snapshot() {
        let load = |outside: Option<Outside>| {
            let cluster = |name: &str, server_name: &str, outside| {
                let tls = ClusterTls {
                    server_name: Some(server_name.to_owned()),
                    subject_alt_names: Vec::new(),
                    ca: None,
                    certificate: None,
                    verify: false,
                };
                Arc::new(Cluster { tls: Some(tls), outside, ..Cluster::new(name, Vec::new()) })
            };
            let mut snapshot = (*fixture::snapshot(Vec::new(), Vec::new())).clone();
            snapshot.clusters = vec![cluster("bad", "a b", outside), cluster("good", "a.b", None)];
            Keys::load(&snapshot, None)
        };
        let keys = load(Some(Outside { reach: Reach::Public, mark: "m".into(), namespace: None })).ok().unwrap();
        assert!(keys.cluster("bad").is_none() && keys.cluster("good").is_some());
        assert!(load(None).is_err());
    }
}
