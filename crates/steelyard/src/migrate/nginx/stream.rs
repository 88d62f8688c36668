//! The stream block: listeners of TCP.

use serde_json::json;

use super::super::draft::{Became, Draft, Keys, Listener, milliseconds, named};
use super::parse::Directive;
use super::upstream::{duration, endpoints};
use super::{socket, tls};

/// What is understood in a server.
const KNOWN: &[&str] = &[
    "listen",
    "proxy_pass",
    "proxy_connect_timeout",
    "proxy_timeout",
    "proxy_protocol",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_protocols",
];

/// What nobody sees.
const TUNING: &[&str] = &[
    "access_log",
    "error_log",
    "log_format",
    "open_log_file_cache",
    "preread_buffer_size",
    "preread_timeout",
    "proxy_buffer_size",
    "proxy_socket_keepalive",
    "resolver",
    "resolver_timeout",
    "ssl_ciphers",
    "ssl_handshake_timeout",
    "ssl_prefer_server_ciphers",
    "ssl_session_cache",
    "ssl_session_tickets",
    "ssl_session_timeout",
    "tcp_nodelay",
    "variables_hash_bucket_size",
    "variables_hash_max_size",
];

/// What has no effect on a server that does not name it, and that closes a server that does.
const OUTER: &[&str] =
    &["server", "upstream", "map", "map_hash_bucket_size", "map_hash_max_size", "geo", "split_clients"];

/// The servers of a stream block.
pub(super) fn streams(block: &[Directive], draft: &mut Draft) {
    let is_understood = |one: &&Directive| {
        [KNOWN, TUNING, OUTER].iter().any(|names| names.contains(&one.name.as_str())) && one.name != "listen"
    };
    let mut is_closed = false;
    for one in block.iter().filter(|one| !is_understood(one)) {
        let why = "it is not understood and may keep somebody out, so no server of the block is translated; write what it does by hand";
        draft.note(one.place(), &one.told(), Became::Closed, why);
        is_closed = true;
    }
    if is_closed {
        return;
    }
    for server in block.iter().filter(|one| one.name == "server") {
        if let Some((name, listener)) = stream(server, block, draft) {
            draft.listeners.push((name, listener));
        }
    }
}

fn stream(server: &Directive, outer: &[Directive], draft: &mut Draft) -> Option<(String, Listener)> {
    let find = |name: &str| {
        let inner = server.block.iter().find(|one| one.name == name);
        inner.or_else(|| outer.iter().find(|one| one.name == name))
    };
    let (Some(listen), Some(pass)) = (find("listen"), find("proxy_pass")) else {
        draft.note(server.place(), "server", Became::Lost, "it has no listen and proxy_pass");
        return None;
    };
    let is_known = |one: &Directive| [KNOWN, TUNING].iter().any(|names| names.contains(&one.name.as_str()));
    let unknown = server.block.iter().find(|one| !is_known(one));
    let is_datagrams = listen.args.iter().any(|arg| arg == "udp");
    let place = socket(listen.arg(0)).filter(|_| !is_datagrams && !pass.arg(0).contains('$'));
    let (Some(place), None) = (place, unknown) else {
        let one = unknown.unwrap_or(listen);
        let why = "the server is left out: Steelyard relays TCP from an address to a cluster; `vips` balance UDP, `protocol: tls_passthrough` chooses by SNI";
        draft.note(one.place(), &one.told(), Became::Lost, why);
        return None;
    };
    for other in server.block.iter().filter(|one| one.name == "listen").skip(1) {
        draft.note(other.place(), &other.told(), Became::Lost, "a listener has one address: write another for it");
    }
    let mut cluster = Keys::default();
    match outer.iter().find(|one| one.name == "upstream" && one.arg(0) == pass.arg(0)) {
        Some(upstream) => endpoints(upstream, &mut cluster, draft)?,
        None => cluster.set("endpoints", json!([pass.arg(0)])),
    }
    if let Some(time) = find("proxy_connect_timeout").and_then(|one| duration(one.arg(0))) {
        cluster.set("connect_timeout", milliseconds(time));
    }
    if find("proxy_protocol").is_some_and(|one| one.arg(0) == "on") {
        cluster.set("proxy_protocol", "v1");
    }
    let to = draft.cluster(pass.arg(0), cluster);
    let mut keys = Keys::default().with("bind", format!("{}:{}", place.host, place.port));
    let pair = (find("ssl_certificate"), find("ssl_certificate_key"));
    let has = |word: &str| listen.args.iter().any(|arg| arg == word);
    keys.set("protocol", if has("ssl") { "tls" } else { "tcp" });
    if has("ssl") {
        let (cert, key) = match pair {
            (Some(cert), Some(key)) => (cert.arg(0), key.arg(0)),
            _ => {
                draft.note(
                    listen.place(),
                    &listen.told(),
                    Became::Lost,
                    "it has ssl and no ssl_certificate: name its files",
                );
                ("missing.pem", "missing.key")
            }
        };
        let mut settings = json!({"certificates": [{"cert": cert, "key": key}]});
        if find("ssl_protocols").is_some_and(tls::is_newest_only) {
            settings["min_version"] = json!("1.3");
        }
        keys.set("tls", settings);
    }
    if has("proxy_protocol") {
        keys.set("proxy_protocol", true);
    }
    if let Some(time) = find("proxy_timeout").and_then(|one| duration(one.arg(0))) {
        keys.set("idle_timeout", milliseconds(time));
    }
    keys.set("to", to);
    Some((named(&format!("tcp-{}", place.port)), Listener { keys, routes: Vec::new() }))
}
