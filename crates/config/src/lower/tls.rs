//! What is encrypted, and by which files. None of them is opened here.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use model::{Certificate, ClientCa, ClusterTls, ListenerTls, Pem};

use super::route::listed;
use crate::defaults;
use crate::diagnostic::Location;
use crate::raw::{RawCertificate, RawClusterTls, RawFile, RawListenerTls};
use crate::read::{Located, NamedEntry};
use crate::text::FileName;

/// `None` where it has no certificate that could be read; the report says why.
pub fn listener(raw: &RawListenerTls, base: &Path) -> Option<ListenerTls> {
    let written = raw.certificates.as_ref()?;
    let client_ca = raw.client_ca.as_ref().and_then(|client| {
        Some(ClientCa { hosts: listed(&client.value.hosts, |host| host.0.clone()), ca: pem(&client.value.ca, base)? })
    });
    Some(ListenerTls {
        certificates: written.value.0.iter().filter_map(|raw| certificate(&raw.value, base)).collect(),
        client_ca,
        min_version: raw.min_version.as_ref().map_or(defaults::TLS_MIN_VERSION, |version| version.value.0),
    })
}

/// Where the TLS of each listener and cluster is written, and each file that it names: what is in those is judged later, and by others.
pub fn locations(raw: &RawFile, base: &Path) -> HashMap<(String, Option<PathBuf>), Location> {
    let mut locations = Places { base, found: HashMap::new() };
    for NamedEntry { name, value } in raw.listeners.iter().flat_map(|listeners| &listeners.value.0) {
        let Some(tls) = value.as_ref().and_then(|listener| listener.tls.as_ref()) else { continue };
        let owner = format!("listener {}", name.0);
        locations.add(&owner, None, tls.location);
        for certificate in tls.value.certificates.iter().flat_map(|certificates| &certificates.value.0) {
            locations.certificate(&owner, &certificate.value);
        }
        locations.file(&owner, tls.value.client_ca.as_ref().and_then(|client| client.value.ca.as_ref()));
    }
    for NamedEntry { name, value } in raw.clusters.iter().flat_map(|clusters| &clusters.value.0) {
        let Some(tls) = value.as_ref().and_then(|cluster| cluster.tls.as_ref()) else { continue };
        let owner = format!("cluster {}", name.0);
        locations.add(&owner, None, tls.location);
        locations.file(&owner, tls.value.ca.as_ref());
        if let Some(certificate) = &tls.value.certificate {
            locations.certificate(&owner, &certificate.value);
        }
    }
    locations.found
}

struct Places<'a> {
    base: &'a Path,
    /// Who names a file, as in "listener web", and which; `None`: its TLS as a whole.
    found: HashMap<(String, Option<PathBuf>), Location>,
}

impl Places<'_> {
    fn certificate(&mut self, owner: &str, raw: &RawCertificate) {
        for file in [&raw.cert, &raw.key, &raw.ocsp] {
            self.file(owner, file.as_ref());
        }
    }

    fn file(&mut self, owner: &str, raw: Option<&Located<FileName>>) {
        if let Some(raw) = raw {
            self.add(owner, Some(self.base.join(&raw.value.0)), raw.location);
        }
    }

    /// The first place counts: what is wrong with a file is told once.
    fn add(&mut self, owner: &str, file: Option<PathBuf>, location: Location) {
        self.found.entry((owner.to_owned(), file)).or_insert(location);
    }
}

/// Towards endpoints.
pub fn cluster(raw: &RawClusterTls, base: &Path) -> ClusterTls {
    ClusterTls {
        server_name: raw.server_name.as_ref().map(|name| name.value.0.clone()),
        ca: pem(&raw.ca, base),
        certificate: raw.certificate.as_ref().and_then(|raw| certificate(&raw.value, base)),
        verify: raw.verify.as_ref().is_none_or(|verify| verify.value.0),
    }
}

fn certificate(raw: &RawCertificate, base: &Path) -> Option<Certificate> {
    Some(Certificate { cert: pem(&raw.cert, base)?, key: pem(&raw.key, base)?, ocsp: file(&raw.ocsp, base) })
}

fn pem(raw: &Option<Located<FileName>>, base: &Path) -> Option<Pem> {
    file(raw, base).map(Pem::File)
}

/// As seen from the folder of the configuration file: it is moved together with what it names.
fn file(raw: &Option<Located<FileName>>, base: &Path) -> Option<PathBuf> {
    raw.as_ref().map(|file| base.join(&file.value.0))
}
