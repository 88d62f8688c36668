//! TLS settings.

use std::path::Path;

use model::{Certificate, ClientCa, ClientCertMode, ClientCertRule, ClusterTls, ListenerTls, TextMatcher};

use super::files::{file, pem};
use super::route::{listed, matcher};
use crate::defaults;
use crate::diagnostic::{Report, Wrong, ticked};
use crate::raw::{RawCertificate, RawClientCert, RawClusterTls, RawListenerTls};
use crate::text::RedirectUrl;

/// Returns `None` if it has no valid certificate; the report says why.
pub fn listener(raw: &RawListenerTls, base: &Path, report: &mut Report) -> Option<ListenerTls> {
    let written = raw.certificates.as_ref()?;
    let client_ca = raw.client_ca.as_ref().and_then(|client| {
        let verify = client.value.verify.as_ref().is_none_or(|verify| verify.value.0);
        if let (Some(crl), false) = (&client.value.crl, verify) {
            let wrong =
                Wrong::new("`crl` has no effect with `verify: false`, which admits clients with any certificate");
            report.add(crl.location, wrong.hint("remove one of them"));
        }
        Some(ClientCa {
            hosts: listed(&client.value.hosts, |host| host.0.clone()),
            ca: pem(&client.value.ca, base)?,
            crl: pem(&client.value.crl, base),
            spiffe_ids: listed(&client.value.spiffe_ids, |id| id.0.clone()),
            verify,
            required: client.value.required.as_ref().is_none_or(|required| required.value.0),
        })
    });
    Some(ListenerTls {
        certificates: written.value.0.iter().filter_map(|raw| certificate(&raw.value, base)).collect(),
        hosts: Vec::new(),
        client_ca,
        min_version: raw.min_version.as_ref().map_or(defaults::TLS_MIN_VERSION, |version| version.value.0),
    })
}

/// Lowers what a route demands of the certificate of a client.
pub fn client_cert(raw: &RawClientCert, report: &mut Report) -> ClientCertRule {
    let subject = raw.subject.as_ref().and_then(|subject| match matcher(&subject.value)? {
        TextMatcher::Exact(text) => {
            let respelled = model::respelled(&text);
            let wrong = |why: &String| {
                let wrong = Wrong::new(format!("{} is not the subject of a certificate: {why}", ticked(&text)));
                wrong.hint("write it as `openssl x509 -noout -subject -nameopt RFC2253` does")
            };
            respelled.inspect_err(|why| report.add(subject.location, wrong(why))).ok().map(TextMatcher::Exact)
        }
        other => Some(other),
    });
    let redirect = raw.redirect.as_ref().map(|redirect| {
        let RedirectUrl { scheme, host, port, path } = &redirect.value;
        let port = port.map_or_else(String::new, |port| format!(":{port}"));
        format!("{}://{host}{port}{}", scheme.name(), path.as_deref().unwrap_or("/"))
    });
    let mode = raw.mode.as_ref().map_or(ClientCertMode::Required, |mode| mode.value.0);
    if let (ClientCertMode::Unsigned, Some(subject)) = (mode, &raw.subject) {
        let wrong =
            Wrong::new("`subject` proves nothing beside `mode: unsigned`, which accepts a certificate of anybody");
        report.add(subject.location, wrong.hint("remove it, or let `client_ca` verify certificates with another mode"));
    }
    ClientCertRule { mode, subject, redirect }
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
