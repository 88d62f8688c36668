//! TLS settings and the files that they name. This module opens none of the files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use model::{Certificate, ClientCa, ClusterTls, ListenerTls, Pem};

use super::route::listed;
use crate::defaults;
use crate::diagnostic::{Location, Report, Wrong};
use crate::raw::{RawCertificate, RawClusterTls, RawFile, RawListenerTls};
use crate::read::{Located, NamedEntry};
use crate::text::FileName;

/// Returns `None` if it has no valid certificate; the report says why.
pub fn listener(raw: &RawListenerTls, base: &Path) -> Option<ListenerTls> {
    let written = raw.certificates.as_ref()?;
    let client_ca = raw.client_ca.as_ref().and_then(|client| {
        Some(ClientCa {
            hosts: listed(&client.value.hosts, |host| host.0.clone()),
            ca: pem(&client.value.ca, base)?,
            verify: client.value.verify.as_ref().is_none_or(|verify| verify.value.0),
        })
    });
    Some(ListenerTls {
        certificates: written.value.0.iter().filter_map(|raw| certificate(&raw.value, base)).collect(),
        client_ca,
        min_version: raw.min_version.as_ref().map_or(defaults::TLS_MIN_VERSION, |version| version.value.0),
    })
}

/// The place of each listener's and cluster's TLS and of each file that it names, for errors in the content of these files, which are found
/// later.
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
    /// By the owner, such as "listener web", and the file; `None` stands for its TLS as a whole.
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

    /// The first place counts, because an error in a file is reported once.
    fn add(&mut self, owner: &str, file: Option<PathBuf>, location: Location) {
        self.found.entry((owner.to_owned(), file)).or_insert(location);
    }
}

/// Lowers the TLS of a cluster.
pub fn cluster(raw: &RawClusterTls, base: &Path, report: &mut Report) -> ClusterTls {
    let verify = raw.verify.as_ref().is_none_or(|verify| verify.value.0);
    if let (Some(names), false) = (&raw.subject_alt_names, verify) {
        let wrong = Wrong::new("`subject_alt_names` has no effect with `verify: false`, which accepts any certificate");
        report.add(names.location, wrong.hint("remove one of them"));
    }
    ClusterTls {
        server_name: raw.server_name.as_ref().map(|name| name.value.0.clone()),
        subject_alt_names: listed(&raw.subject_alt_names, |name| name.0.clone()),
        ca: pem(&raw.ca, base),
        certificate: raw.certificate.as_ref().and_then(|raw| certificate(&raw.value, base)),
        verify,
    }
}

fn certificate(raw: &RawCertificate, base: &Path) -> Option<Certificate> {
    Some(Certificate { cert: pem(&raw.cert, base)?, key: pem(&raw.key, base)?, ocsp: file(&raw.ocsp, base) })
}

fn pem(raw: &Option<Located<FileName>>, base: &Path) -> Option<Pem> {
    file(raw, base).map(Pem::File)
}

/// Relative names are resolved from the directory of the configuration file, so that the two can be moved together.
fn file(raw: &Option<Located<FileName>>, base: &Path) -> Option<PathBuf> {
    raw.as_ref().map(|file| base.join(&file.value.0))
}
