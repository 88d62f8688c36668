//! TLS settings.

use std::path::Path;

use model::{Certificate, ClientCa, ClusterTls, ListenerTls};

use super::files::{file, pem};
use super::route::listed;
use crate::defaults;
use crate::diagnostic::{Report, Wrong};
use crate::raw::{RawCertificate, RawClusterTls, RawListenerTls};

/// Returns `None` if it has no valid certificate; the report says why.
pub fn listener(raw: &RawListenerTls, base: &Path) -> Option<ListenerTls> {
    let written = raw.certificates.as_ref()?;
    let client_ca = raw.client_ca.as_ref().and_then(|client| {
        Some(ClientCa {
            hosts: listed(&client.value.hosts, |host| host.0.clone()),
            ca: pem(&client.value.ca, base)?,
            spiffe_ids: listed(&client.value.spiffe_ids, |id| id.0.clone()),
            verify: client.value.verify.as_ref().is_none_or(|verify| verify.value.0),
        })
    });
    Some(ListenerTls {
        certificates: written.value.0.iter().filter_map(|raw| certificate(&raw.value, base)).collect(),
        hosts: Vec::new(),
        client_ca,
        min_version: raw.min_version.as_ref().map_or(defaults::TLS_MIN_VERSION, |version| version.value.0),
    })
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

pub fn certificate(raw: &RawCertificate, base: &Path) -> Option<Certificate> {
    Some(Certificate { cert: pem(&raw.cert, base)?, key: pem(&raw.key, base)?, ocsp: file(&raw.ocsp, base) })
}
