//! AuthServices, which are asked about requests.

use serde_json::{Value, json};

use super::super::draft::{Became, Draft, Keys, milliseconds};
use super::super::tree::Node;
use super::Object;

const KNOWN: &[&str] = &[
    "ambassador_id",
    "apiVersion",
    "kind",
    "name",
    "namespace",
    "generation",
    "metadata_labels",
    "auth_service",
    "proto",
    "protocol_version",
    "path_prefix",
    "tls",
    "timeout_ms",
    "allowed_request_headers",
    "allowed_authorization_headers",
    "include_body",
    "failure_mode_allow",
    "status_on_error",
    "stats_name",
    "circuit_breakers",
];

/// `external_auth` of an AuthService; `None` if it is not understood.
pub(super) fn auth(object: &Object<'_>, draft: &mut Draft) -> Option<Keys> {
    let spec = &object.spec;
    let unknown =
        spec.entries().iter().find(|(key, value)| !value.is_null() && !KNOWN.iter().any(|known| key.is_key(known)));
    if let Some((key, _)) = unknown {
        object.note(draft, key, key.text().unwrap_or_default(), Became::Closed, "it is not understood");
        return None;
    }
    let tls = spec.at("tls");
    if !tls.is_null() && tls.boolean().is_none() {
        object.note(draft, tls, "tls", Became::Closed, "a TLSContext says how the service is verified");
        return None;
    }
    let service = spec.at("auth_service").text()?;
    let (is_tls, authority) = match service.split_once("://") {
        Some((scheme, rest)) => (scheme == "https", rest),
        None => (spec.at("tls").is_true(), service),
    };
    let authority = if authority.contains(':') { authority.to_owned() } else { format!("{authority}:80") };
    if spec.at("proto").text() == Some("grpc") {
        let why =
            "endpoints get no headers of a service over gRPC unless `response_headers` of `external_auth` names them";
        object.note(draft, spec.at("proto"), "proto", Became::Closed, why);
        return None;
    }
    let mut cluster = Keys::default().with("endpoints", json!([authority]));
    if is_tls {
        cluster.set("tls", json!({"verify": false}));
    }
    let to = draft.cluster("auth", cluster);
    Some(Keys::default().with("external_auth", asked(spec, &to)))
}

fn asked(spec: &Node, to: &str) -> Value {
    let time = spec.at("timeout_ms").number().filter(|time| *time > 0).unwrap_or(5_000);
    let mut auth = json!({"to": to, "timeout": milliseconds(time)});
    auth["http"] = match spec.at("path_prefix").text() {
        Some(prefix) if prefix.len() > 1 => json!({"prefix": prefix}),
        _ => json!({"prefix": "/"}),
    };
    let names = |key: &str| spec.at(key).items().iter().filter_map(Node::text).map(str::to_owned).collect::<Vec<_>>();
    // These the service gets always.
    let mut sent = ["authorization", "cookie", "from", "proxy-authorization", "user-agent"].map(str::to_owned).to_vec();
    sent.extend(names("allowed_request_headers").into_iter().map(|name| name.to_ascii_lowercase()));
    sent.sort_unstable();
    sent.dedup();
    auth["request_headers"] = json!(sent);
    let passed = names("allowed_authorization_headers");
    if !passed.is_empty() {
        auth["response_headers"] = json!(passed);
    }
    if spec.at("failure_mode_allow").is_true() {
        auth["fail_open"] = json!(true);
    }
    if let Some(status) = spec.at("status_on_error").at("code").number() {
        auth["failure_status"] = json!(status);
    }
    let bytes = spec.at("include_body");
    if let Some(count) = bytes.at("max_bytes").number().filter(|count| *count > 0) {
        auth["body"] =
            json!({"bytes": format!("{}B", count.min(1 << 20)), "partial": bytes.at("allow_partial").is_true()});
    }
    auth
}
