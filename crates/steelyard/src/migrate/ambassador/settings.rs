//! The objects around Mappings: Hosts, Listeners, Modules and TLSContexts. A key that is not known closes all Mappings.

use super::super::draft::{Became, Draft};
use super::super::envoy::is_host;
use super::super::tree::Node;
use super::{Around, Clear, Host, Object};

/// Keys of every object.
const ANY: [&str; 7] = ["apiVersion", "kind", "name", "namespace", "ambassador_id", "generation", "metadata_labels"];

/// Keys that say nothing about requests, wherever they stand. All others that nobody looks at are reported.
pub(super) const SAYS_NOTHING: &[&str] = &[
    "ambassador_id",
    "apiVersion",
    "cluster_tag",
    "docs",
    "generation",
    "kind",
    "metadata",
    "metadata_labels",
    "name",
    "namespace",
    "previewUrl",
    "statsPrefix",
    "stats_name",
    "status",
];

/// What to do about a key that is left out.
pub(super) fn instead(key: &str) -> &'static str {
    match key {
        "l7Depth" => "name the proxies in front in `trusted_proxies` of the listener",
        "max_retries" => "`budget` of `retry` limits retries, as a share of the requests",
        "additionalPort" => "write a listener for this port that redirects",
        "circuit_breakers" => "write `limits` of the cluster; those of the first entry are translated",
        "resolver" => "the name of the service is resolved by DNS; `steelyard controller` sees endpoints",
        "cors"
        | "retry_policy"
        | "timeout_ms"
        | "idle_timeout_ms"
        | "add_request_headers"
        | "remove_request_headers"
        | "add_response_headers"
        | "remove_response_headers"
        | "load_balancer" => "a redirect does not have it in the translation",
        _ => "it is not translated; if you need it, write what it does by hand",
    }
}

pub(super) fn host(object: &Object<'_>, around: &mut Around, draft: &mut Draft) {
    const KNOWN: &[&str] =
        &["hostname", "acmeProvider", "tlsSecret", "tls", "tlsContext", "requestPolicy", "previewUrl"];
    let spec = &object.spec;
    around.known_or_closed(object, spec, &[KNOWN, &ANY].concat(), draft);
    const VERSIONS: &[&str] = &["min_tls_version", "max_tls_version", "cipher_suites", "ecdh_curves", "alpn_protocols"];
    around.known_or_closed(object, spec.at("tls"), VERSIONS, draft);
    around.needs_tls_1_3 |= versions(object, spec.at("tls"), around, draft);
    let context = spec.at("tlsContext");
    if let Some(name) = context.at("name").text() {
        around.contexts.push(name.to_owned());
        object.note(draft, context, "tlsContext", Became::Lost, "write `tls` of the listener");
    }
    let provider = spec.at("acmeProvider");
    if !provider.is_null() {
        match provider.at("authority").text() {
            Some("none") => provider.told(),
            _ => {
                let why = "Steelyard reads certificates from files; let another client get and renew them";
                object.note(draft, provider, "acmeProvider", Became::Lost, why);
            }
        }
    }
    let policy = spec.at("requestPolicy");
    around.known_or_closed(object, policy, &["insecure"], draft);
    around.known_or_closed(object, policy.at("insecure"), &["action", "additionalPort"], draft);
    let name = spec.at("hostname").text().unwrap_or("*").to_ascii_lowercase();
    if name != "*" && !is_host(&name) {
        around.close(object, spec.at("hostname"), draft, "a host is a name, or `*.` in front of one");
    }
    let secret = spec.at("tlsSecret").at("name").text().map(str::to_owned);
    if let Some(secret) = &secret {
        let why = format!("write tls.crt and tls.key of the Secret {secret} to tls/{secret}.pem and tls/{secret}.key");
        object.note(draft, spec, &format!("Host {}", object.name), Became::Different, &why);
    }
    let clear = match policy.at("insecure").at("action").text() {
        Some("Route") => Clear::Routed,
        None | Some("Redirect") => Clear::Redirected,
        Some(_) => Clear::Refused,
    };
    let (file, line) = object.place(spec);
    around.hosts.push(Host { name, secret, clear, place: (file.to_owned(), line) });
}

/// Whether clients need TLS 1.3. Reports the other settings of TLS.
fn versions(object: &Object<'_>, tls: &Node, around: &mut Around, draft: &mut Draft) -> bool {
    let oldest = tls.at("min_tls_version");
    match oldest.text() {
        None if oldest.is_null() => {}
        Some("v1.2" | "v1.3") => {}
        Some("v1.0" | "v1.1") => {
            object.note(
                draft,
                oldest,
                "min_tls_version",
                Became::Different,
                "1.2 is the oldest version that is accepted",
            );
        }
        _ => around.close(object, oldest, draft, "min_tls_version is not understood"),
    }
    let newest = tls.at("max_tls_version");
    if !matches!(newest.text(), None | Some("v1.3")) {
        object.note(draft, newest, "max_tls_version", Became::Different, "TLS 1.3 is accepted, too");
    }
    for key in ["cipher_suites", "ecdh_curves"] {
        if !tls.at(key).is_null() {
            tls.at(key).told();
            object.note(draft, tls.at(key), key, Became::Different, "modern suites and curves are accepted");
        }
    }
    let protocols = tls.at("alpn_protocols");
    let has = |name: &str| protocols.text().is_some_and(|text| text.split(',').any(|one| one.trim() == name));
    match (has("h2"), has("http/1.1")) {
        _ if protocols.is_null() => {}
        (true, true) => {}
        (true, false) => {
            object.note(draft, protocols, "alpn_protocols", Became::Different, "HTTP/1.1 is offered, too");
        }
        _ => {
            object.note(
                draft,
                protocols,
                "alpn_protocols",
                Became::Lost,
                "HTTP/2 is offered; `http2: false` ends that",
            );
        }
    }
    oldest.text() == Some("v1.3")
}

pub(super) fn listener(object: &Object<'_>, around: &mut Around, draft: &mut Draft) {
    const KNOWN: &[&str] = &["port", "protocol", "securityModel", "hostBinding", "l7Depth", "statsPrefix"];
    let spec = &object.spec;
    around.known_or_closed(object, spec, &[KNOWN, &ANY].concat(), draft);
    // Another selection would serve at this port what is not for it.
    let binding = spec.at("hostBinding");
    around.known_or_closed(object, binding, &["namespace"], draft);
    if !matches!(binding.at("namespace").at("from").text(), None | Some("ALL")) {
        around.close(object, binding, draft, "it serves the Hosts of some namespaces");
    }
    let protocol = spec.at("protocol").text();
    if !matches!(protocol, Some("HTTP" | "HTTPS")) {
        around.close(object, spec, draft, "its protocol is neither HTTP nor HTTPS");
    }
    let model = spec.at("securityModel").text();
    let is_tls = protocol == Some("HTTPS") || model == Some("SECURE");
    if model == Some("XFP") {
        let why = "the connection says whether a request is in the clear, and X-Forwarded-Proto does not";
        object.note(draft, spec.at("securityModel"), "securityModel", Became::Different, why);
    }
    let Some(port) = spec.at("port").number() else { return };
    if around.ports.iter().any(|(known, tls)| *tls == is_tls && *known != port) {
        let what = format!("Listener {}", object.name);
        object.note(draft, spec, &what, Became::Lost, "another Listener has this protocol: write a listener");
    }
    around.ports.push((port, is_tls));
}

pub(super) fn module(object: &Object<'_>, around: &mut Around, draft: &mut Draft) {
    /// Settings of Ambassador itself, or of how endpoints are reached.
    const HARMLESS: &[&str] = &[
        "admin_port",
        "circuit_breakers",
        "cluster_idle_timeout_ms",
        "cluster_max_connection_lifetime_ms",
        "cluster_request_timeout_ms",
        "debug_mode",
        "default_label_domain",
        "diagnostics",
        "enable_ipv4",
        "enable_ipv6",
        "envoy_log_format",
        "envoy_log_path",
        "envoy_log_type",
        "envoy_validation_timeout",
        "grpc_stats",
        "gzip",
        "keepalive",
        "listener_idle_timeout_ms",
        "liveness_probe",
        "load_balancer",
        "max_request_headers_kb",
        "merge_slashes",
        "preserve_external_request_id",
        "prune_unreachable_routes",
        "readiness_probe",
        "regex_max_size",
        "regex_type",
        "resolver",
        "retry_policy",
        "server_name",
        "service_port",
        "statsd",
        "suppress_envoy_headers",
        "use_remote_address",
        "xff_num_trusted_hops",
    ];
    let spec = &object.spec;
    if object.name != "ambassador" {
        return around.close(object, spec, draft, "it is not understood and may keep somebody out");
    }
    let config = spec.get("config").unwrap_or(spec);
    around.known_or_closed(object, spec, &[&["config"][..], HARMLESS, &ANY].concat(), draft);
    around.known_or_closed(object, config, &[HARMLESS, &ANY].concat(), draft);
    let why = "settings of Ambassador itself; write those of the listener and the clusters by hand";
    object.note(draft, spec, "Module ambassador", Became::Lost, why);
}

pub(super) fn context(object: &Object<'_>, around: &mut Around, draft: &mut Draft) {
    const KNOWN: &[&str] = &[
        "hosts",
        "secret",
        "secret_namespacing",
        "min_tls_version",
        "max_tls_version",
        "cipher_suites",
        "ecdh_curves",
        "alpn_protocols",
        "sni",
        "cert_chain_file",
        "private_key_file",
    ];
    around.known_or_closed(object, &object.spec, &[KNOWN, &ANY].concat(), draft);
    if object.spec.at("min_tls_version").text() == Some("v1.3") {
        // Without hosts it may be about connections to endpoints alone.
        around.needs_tls_1_3 |= !object.spec.at("hosts").items().is_empty();
        around.strict_contexts.push(object.name.clone());
    }
    let why = "write `tls` of the listener or the cluster, with `client_ca` for certificates of clients";
    object.note(draft, &object.spec, &format!("TLSContext {}", object.name), Became::Lost, why);
}
