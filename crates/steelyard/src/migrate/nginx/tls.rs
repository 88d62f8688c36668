//! The `tls` of a listener: the certificates of its servers, and what clients must show.

use serde_json::{Value, json};

use super::super::draft::Became;
use super::parse::Directive;
use super::{Bound, Making};

impl<'d> Making<'d, '_> {
    /// The certificate of the default server is first.
    pub(super) fn tls(&mut self, first: Bound<'d>, bound: &[Bound<'d>]) -> Value {
        let mut certificates: Vec<Value> = Vec::new();
        let others = bound.iter().filter(|one| one.number != first.number);
        for one in std::iter::once(&first).chain(others) {
            let scope = self.scope.inner(&one.server.block);
            let (certs, keys) = (scope.all(&["ssl_certificate"]), scope.all(&["ssl_certificate_key"]));
            if certs.is_empty() {
                let why = "the server has TLS and no ssl_certificate";
                self.draft.note(one.server.place(), "server", Became::Lost, why);
            }
            for (cert, key) in certs.iter().zip(keys) {
                if cert.arg(0).contains('$') || key.arg(0).starts_with("engine:") {
                    let why = "a certificate is a file: name each, and Steelyard chooses by the names in them";
                    self.draft.note(cert.place(), &cert.told(), Became::Lost, why);
                    continue;
                }
                let pair = json!({"cert": cert.arg(0), "key": key.arg(0)});
                if !certificates.contains(&pair) {
                    certificates.push(pair);
                }
            }
        }
        if certificates.is_empty() {
            certificates.push(json!({"cert": "missing.pem", "key": "missing.key"}));
        }
        let mut tls = json!({"certificates": certificates});
        let mut newest = 0;
        for one in bound {
            let Some(versions) = self.scope.inner(&one.server.block).last("ssl_protocols") else { continue };
            newest += usize::from(is_newest_only(versions));
            if versions.args.iter().any(|arg| arg == "TLSv1" || arg == "TLSv1.1") {
                let why = "the oldest version is TLS 1.2";
                self.draft.note(versions.place(), &versions.told(), Became::Different, why);
            }
        }
        if newest > 0 {
            tls["min_version"] = json!("1.3");
            if newest < bound.len() {
                let why = "one server of this port has only TLS 1.3, so all of the port has";
                self.draft.note(first.server.place(), "ssl_protocols", Became::Different, why);
            }
        }
        if let Some(ca) = self.client_ca(first, bound) {
            tls["client_ca"] = ca;
        }
        tls
    }

    /// The certificates that clients must show.
    fn client_ca(&mut self, first: Bound<'d>, bound: &[Bound<'d>]) -> Option<Value> {
        let mut hosts = Vec::new();
        let mut file: Option<(&str, Option<&str>)> = None;
        let mut is_all = false;
        let verifies = |one: &Bound<'d>| {
            let verify = self.scope.inner(&one.server.block).last("ssl_verify_client");
            verify.map(|one| one.arg(0)).filter(|word| *word != "off")
        };
        // If all that ask for one would also go without, routes say what becomes of it; see `policies`.
        let is_optional = bound.iter().filter_map(verifies).all(|word| word != "on");
        self.optional_certs = false;
        for one in bound {
            let scope = self.scope.inner(&one.server.block);
            let Some(verify) = scope.last("ssl_verify_client").filter(|one| one.arg(0) != "off") else { continue };
            let crl = scope.last("ssl_crl").map(|one| one.arg(0));
            let ca = scope.last("ssl_client_certificate").map(|one| (one.arg(0), crl));
            let is_one = ca.is_some() && file.is_none_or(|file| Some(file) == ca);
            if verify.arg(0) != "on" && !(is_optional && ca.is_some()) {
                // The locations are closed where they are made; see `policies`.
                continue;
            }
            if !is_one {
                let why = "a port has one CA for certificates of clients, with one list of revoked ones, so all servers are closed; write a listener for each CA";
                self.draft.note(verify.place(), &verify.told(), Became::Closed, why);
                self.closed = true;
                continue;
            }
            file = ca;
            // The default server has all hosts that have no name.
            is_all |= one.number == first.number;
            let named = self.named_hosts(one.server);
            is_all |= named.is_empty();
            hosts.push(named);
        }
        let (file, crl) = file?;
        if is_all && hosts.len() < bound.len() {
            let why = "it is that of hosts without a name, too, so all servers of the port demand a certificate";
            self.draft.note(first.server.place(), "ssl_verify_client", Became::Different, why);
        }
        is_all |= hosts.len() == bound.len();
        let hosts: Vec<String> = hosts.into_iter().flatten().collect();
        let mut client_ca = if is_all { json!({"ca": file}) } else { json!({"ca": file, "hosts": hosts}) };
        if let Some(crl) = crl {
            client_ca["crl"] = json!(crl);
        }
        if is_optional {
            client_ca["required"] = json!(false);
            self.optional_certs = true;
        }
        Some(client_ca)
    }
}

/// Whether `ssl_protocols` has TLS 1.3 and nothing older.
pub(super) fn is_newest_only(versions: &Directive) -> bool {
    versions.args.iter().any(|arg| arg == "TLSv1.3") && versions.args.iter().all(|arg| arg == "TLSv1.3")
}
