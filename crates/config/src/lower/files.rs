//! The files that the configuration names. This module opens none of them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use model::Pem;

use crate::diagnostic::Location;
use crate::raw::{RawAuth, RawCertificate, RawErrorPage, RawFile, RawSecretValue, TextOrObject};
use crate::read::{Located, Many, NamedEntry};
use crate::text::FileName;

/// The place of each file that the configuration names, and of the TLS of each listener and cluster, for errors in the content of these files,
/// which are found later.
pub fn locations(raw: &RawFile, base: &Path) -> HashMap<(String, Option<PathBuf>), Location> {
    let mut locations = Places { base, found: HashMap::new() };
    if let Some(access) = &raw.admin_access {
        for role in [&access.value.read, &access.value.act].into_iter().flatten() {
            locations.file("admin_access", role.value.token_file.as_ref());
            locations.file("admin_access", role.value.user_file.as_ref());
        }
        if let Some(tls) = &access.value.tls {
            locations.add("admin_access", None, tls.location);
            for certificate in tls.value.certificates.iter().flat_map(|certificates| &certificates.value.0) {
                locations.certificate("admin_access", &certificate.value);
            }
            locations.file("admin_access", tls.value.client_ca.as_ref());
        }
    }
    let of_traces = raw.tracing.iter().flat_map(|tracing| &tracing.value.headers);
    let log = raw.access_log.as_ref().and_then(|log| log.value.object());
    let of_log = log.and_then(|log| log.otlp.as_ref()).into_iter().flat_map(|otlp| &otlp.value.headers);
    for (owner, headers) in
        of_traces.map(|headers| ("tracing", headers)).chain(of_log.map(|headers| ("access_log", headers)))
    {
        for value in headers.value.0.iter().filter_map(|entry| entry.value.as_ref()) {
            if let RawSecretValue::File(file) = value {
                locations.file(owner, file.file.as_ref());
            }
        }
    }
    for NamedEntry { name, value } in raw.listeners.iter().flat_map(|listeners| &listeners.value.0) {
        let Some(listener) = value else { continue };
        let owner = format!("listener {}", name.0);
        locations.pages(&owner, &listener.error_pages);
        locations.auth(&owner, &listener.auth);
        for Located { value: route, .. } in listener.routes.iter().flat_map(|routes| &routes.value.0) {
            locations.file(&owner, route.respond.as_ref().and_then(|respond| respond.value.file.as_ref()));
            locations.pages(&owner, &route.error_pages);
            locations.auth(&owner, &route.auth);
        }
        let Some(tls) = &listener.tls else { continue };
        locations.add(&owner, None, tls.location);
        for certificate in tls.value.certificates.iter().flat_map(|certificates| &certificates.value.0) {
            locations.certificate(&owner, &certificate.value);
        }
        for client in tls.value.client_ca.iter() {
            locations.file(&owner, client.value.ca.as_ref());
            locations.file(&owner, client.value.crl.as_ref());
        }
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

    fn pages(&mut self, owner: &str, raw: &Option<Located<Many<RawErrorPage>>>) {
        for page in raw.iter().flat_map(|pages| &pages.value.0) {
            self.file(owner, page.value.file.as_ref());
        }
    }

    fn auth(&mut self, owner: &str, raw: &Option<Located<RawAuth>>) {
        let Some(RawAuth::Object(auth)) = raw.as_ref().map(|auth| &auth.value) else { return };
        self.file(owner, auth.basic.as_ref().and_then(|basic| basic.value.file.as_ref()));
        self.file(owner, auth.api_key.as_ref().and_then(|api_key| api_key.value.file.as_ref()));
        if let Some(jwks) = auth.jwt.as_ref().and_then(|jwt| jwt.value.jwks.as_ref()) {
            self.file(owner, jwks.value.file.as_ref());
            self.file(owner, jwks.value.ca.as_ref());
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

/// A file with certificates or keys.
pub fn pem(raw: &Option<Located<FileName>>, base: &Path) -> Option<Pem> {
    file(raw, base).map(Pem::File)
}

/// Relative names are resolved from the directory of the configuration file, so that the two can be moved together.
pub fn file(raw: &Option<Located<FileName>>, base: &Path) -> Option<PathBuf> {
    raw.as_ref().map(|file| base.join(&file.value.0))
}
