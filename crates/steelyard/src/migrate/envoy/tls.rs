//! TLS of the filter chains of a listener, which all have one `tls` here.

use serde_json::{Value, json};

use super::super::draft::Became;
use super::super::tree::Node;
use super::{Making, kind, type_name};

const DOWNSTREAM: &[&str] = &[
    "@type",
    "common_tls_context",
    "require_client_certificate",
    "session_ticket_keys",
    "session_ticket_keys_sds_secret_config",
    "disable_stateless_session_resumption",
    "disable_stateful_session_resumption",
    "session_timeout",
    "ocsp_staple_policy",
    "full_scan_certs_on_sni_mismatch",
    "prefer_client_ciphers",
];

pub(super) const COMMON: &[&str] = &[
    "tls_params",
    "tls_certificates",
    "tls_certificate_sds_secret_configs",
    "validation_context",
    "combined_validation_context",
    "validation_context_sds_secret_config",
    "alpn_protocols",
    "key_log",
];

/// What certificates of others are checked by.
pub(super) enum Validation<'n> {
    None,
    /// A file of CAs, and nothing else.
    File(&'n str),
    Other,
}

/// What all chains need together.
#[derive(Default)]
pub(super) struct Tls {
    certificates: Vec<Value>,
    needs_1_3: bool,
    /// The CA of clients, and for which names they need a certificate; no names for all.
    clients: Option<(String, Vec<String>)>,
}

impl Tls {
    pub(super) fn value(self) -> Value {
        let mut tls = json!({"certificates": self.certificates});
        if self.needs_1_3 {
            tls["min_version"] = json!("1.3");
        }
        if let Some((ca, hosts)) = self.clients {
            tls["client_ca"] = json!({"ca": ca});
            if !hosts.is_empty() {
                tls["client_ca"]["hosts"] = json!(hosts);
            }
        }
        tls
    }
}

impl Making<'_> {
    /// Adds what a chain needs, and returns whether it has TLS.
    pub(super) fn tls(&mut self, chain: &Node, tls: &mut Tls, names: &[String]) -> bool {
        let socket = chain.at("transport_socket");
        if socket.is_null() {
            return false;
        }
        self.known_or_closed(socket, &["name", "typed_config"]);
        match kind(socket, &[("envoy.transport_sockets.tls", "transport_sockets.tls.v3.DownstreamTlsContext")]) {
            "transport_sockets.tls.v3.DownstreamTlsContext" => {}
            "transport_sockets.raw_buffer.v3.RawBuffer" => return false,
            _ => self.close(socket, "transport_socket", "the transport socket is not understood"),
        }
        let config = socket.at("typed_config");
        let common = config.at("common_tls_context");
        self.known_or_closed(config, DOWNSTREAM);
        self.known_or_closed(common, COMMON);
        self.certificates(chain, common, tls);
        let protocols = common.at("alpn_protocols").items();
        if !protocols.is_empty() && !protocols.iter().any(|name| name.text() == Some("h2")) {
            let why = "HTTP/2 is offered; `http2: false` of the listener ends that";
            self.note(common.at("alpn_protocols"), "alpn_protocols", Became::Lost, why);
        }
        common.at("alpn_protocols").told();
        let params = common.at("tls_params");
        params.told();
        for (key, value) in params.entries() {
            match (key.text().unwrap_or_default(), value.text()) {
                ("tls_minimum_protocol_version" | "tlsMinimumProtocolVersion", Some("TLSv1_3")) => tls.needs_1_3 = true,
                ("tls_minimum_protocol_version" | "tlsMinimumProtocolVersion", _) => {}
                (name, _) => {
                    self.note(key, name, Became::Different, "versions from 1.2 and modern suites are accepted")
                }
            }
        }
        self.clients(config, common, tls, names);
        true
    }

    fn certificates(&mut self, chain: &Node, common: &Node, tls: &mut Tls) {
        let mut found = Vec::new();
        for pair in common.at("tls_certificates").items() {
            let file = |key: &str| pair.at(key).at("filename").text();
            if let (Some(cert), Some(key)) = (file("certificate_chain"), file("private_key")) {
                found.push(json!({"cert": cert, "key": key}));
            }
        }
        if found.is_empty() || found.len() < common.at("tls_certificates").items().len() {
            let why =
                "certificates are in files: write them to tls/NAME.pem and tls/NAME.key, as the translation names them";
            self.note(chain, "tls_certificates", Became::Different, why);
            common.at("tls_certificates").told();
            common.at("tls_certificate_sds_secret_configs").told();
            let name = chain.at("name").text().map_or_else(|| "certificate".to_owned(), super::super::draft::named);
            found.push(json!({"cert": format!("tls/{name}.pem"), "key": format!("tls/{name}.key")}));
        }
        for pair in found {
            if !tls.certificates.contains(&pair) {
                tls.certificates.push(pair);
            }
        }
    }

    /// Certificates of clients.
    fn clients(&mut self, config: &Node, common: &Node, tls: &mut Tls, names: &[String]) {
        let validation = validation(common);
        if !config.at("require_client_certificate").is_true() {
            if !matches!(validation, Validation::None) {
                let why = "clients need no certificate, and are not asked for one; `client_ca` demands it";
                self.draft.note((&self.file, common.line), "validation_context", Became::Lost, why);
                for key in ["validation_context", "combined_validation_context", "validation_context_sds_secret_config"]
                {
                    common.at(key).told();
                }
            }
            return;
        }
        let Validation::File(ca) = validation else {
            let why =
                "certificates of clients are checked by something else than `trusted_ca` in a file: write `client_ca`";
            return self.close(config, "require_client_certificate", why);
        };
        match &mut tls.clients {
            None => tls.clients = Some((ca.to_owned(), names.to_vec())),
            Some((known, hosts)) if known == ca => {
                // No names stand for all.
                if names.is_empty() || hosts.is_empty() {
                    hosts.clear();
                } else {
                    hosts.extend(names.iter().filter(|name| !hosts.contains(name)).cloned().collect::<Vec<_>>());
                }
            }
            Some(_) => self.close(config, "validation_context", "its chains accept certificates of different CAs"),
        }
    }
}

/// What a context checks certificates by.
pub(super) fn validation(common: &Node) -> Validation<'_> {
    let has = |key: &str| !common.at(key).is_null();
    let context = common.at("validation_context");
    if has("combined_validation_context") || has("validation_context_sds_secret_config") {
        return Validation::Other;
    }
    let entries: Vec<_> = context.entries().iter().filter(|(_, value)| !value.is_null()).collect();
    match &entries[..] {
        [] => Validation::None,
        [(key, ca)] if key.is_key("trusted_ca") => match (ca.entries(), ca.at("filename").text()) {
            ([_], Some(file)) => Validation::File(file),
            _ => Validation::Other,
        },
        _ => Validation::Other,
    }
}

/// Whether a cluster's transport socket is TLS.
pub(super) fn is_upstream(socket: &Node) -> bool {
    match socket.at("typed_config").at("@type").text() {
        Some(url) => type_name(url) == "transport_sockets.tls.v3.UpstreamTlsContext",
        None => matches!(socket.at("name").text(), Some("tls" | "envoy.transport_sockets.tls")),
    }
}
