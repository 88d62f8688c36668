//! The objects around Mappings: Hosts, Listeners, Modules and TLSContexts. A key that is not known closes all Mappings.

use super::super::draft::{Became, Draft};
use super::super::envoy::is_host;
use super::{Around, Clear, Host, Object};

/// Keys of every object.
const ANY: [&str; 7] = ["apiVersion", "kind", "name", "namespace", "ambassador_id", "generation", "metadata_labels"];

pub(super) fn host(object: &Object<'_>, around: &mut Around, draft: &mut Draft) {
    const KNOWN: &[&str] =
        &["hostname", "acmeProvider", "tlsSecret", "tls", "tlsContext", "requestPolicy", "previewUrl"];
    let spec = &object.spec;
    around.known_or_closed(object, spec, &[KNOWN, &ANY].concat(), draft);
    const VERSIONS: &[&str] = &["min_tls_version", "max_tls_version", "cipher_suites", "ecdh_curves", "alpn_protocols"];
    around.known_or_closed(object, spec.at("tls"), VERSIONS, draft);
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
        draft.note(object.place(spec), &format!("Host {}", object.name), Became::Different, &why);
    }
    let clear = match policy.at("insecure").at("action").text() {
        Some("Route") => Clear::Routed,
        None | Some("Redirect") => Clear::Redirected,
        Some(_) => Clear::Refused,
    };
    let (file, line) = object.place(spec);
    around.hosts.push(Host { name, secret, clear, place: (file.to_owned(), line) });
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
    let is_tls = protocol == Some("HTTPS") || spec.at("securityModel").text() == Some("SECURE");
    let Some(port) = spec.at("port").number() else { return };
    if around.ports.iter().any(|(known, tls)| *tls == is_tls && *known != port) {
        let what = format!("Listener {}", object.name);
        draft.note(object.place(spec), &what, Became::Lost, "another Listener has this protocol: write a listener");
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
    draft.note(object.place(spec), "Module ambassador", Became::Lost, why);
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
    let why = "write `tls` of the listener or the cluster, with `client_ca` for certificates of clients";
    draft.note(object.place(&object.spec), &format!("TLSContext {}", object.name), Became::Lost, why);
}
