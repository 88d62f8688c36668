//! What is encrypted, and by which files. None of them is opened here.

use std::path::{Path, PathBuf};

use model::{Certificate, ClientCa, ClusterTls, ListenerTls, Pem};

use super::route::listed;
use crate::defaults;
use crate::raw::{RawCertificate, RawClusterTls, RawListenerTls};
use crate::read::Placed;
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

fn pem(raw: &Option<Placed<FileName>>, base: &Path) -> Option<Pem> {
    file(raw, base).map(Pem::File)
}

/// As seen from the folder of the configuration file: it is moved together with what it names.
fn file(raw: &Option<Placed<FileName>>, base: &Path) -> Option<PathBuf> {
    raw.as_ref().map(|file| base.join(&file.value.0))
}
