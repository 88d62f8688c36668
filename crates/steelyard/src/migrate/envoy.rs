//! `steelyard migrate envoy`: the static resources of Envoy as listeners, routes and clusters.
//!
//! A message whose keys are not all known closes what it stands in: a route, or, where the extent is unclear, the listener. A closed listener keeps its
//! routes and denies every address, so that whoever reads the file sees what there is to decide.

mod cluster;
mod filters;
mod http;
mod listener;
mod matches;
#[cfg(test)]
mod reported;
mod route;
mod tls;
mod unread;

use std::collections::HashSet;
use std::path::Path;

use serde_json::json;

use super::draft::{Became, Draft, Keys};
use super::tree::{self, Node};
pub(super) use matches::{Path as PathCondition, is_of_proxy, is_plain, is_same_regex};
pub(super) use route::without_upgrade;

/// Keys whose values decide by being true or false.
const BOOLEANS: &[&str] = &[
    "allow_credentials",
    "allow_partial_message",
    "append",
    "auto_host_rewrite",
    "bind_to_port",
    "case_sensitive",
    "clear_route_cache",
    "disabled",
    "failure_mode_allow",
    "generate_request_id",
    "https_redirect",
    "ignore_case",
    "ignore_path_parameters_in_path_matching",
    "invert_match",
    "ipv4_compat",
    "merge_slashes",
    "normalize_path",
    "pass_through_mode",
    "present_match",
    "preserve_external_request_id",
    "require_client_certificate",
    "strip_query",
    "treat_missing_header_as_empty",
    "use_remote_address",
];

/// The translation of one file.
pub(super) struct Making<'d> {
    file: String,
    draft: &'d mut Draft,
    /// Names of Envoy's clusters, and those of ours; empty if one cannot be reached.
    clusters: Vec<(String, String)>,
    /// The listener that is being read is closed; the notes say why.
    is_closed: bool,
    /// Its clients speak TLS.
    is_tls: bool,
    /// The hosts that virtual hosts of this listener have.
    hosts: HashSet<String>,
    /// The zone that Envoy runs in.
    zone: Option<String>,
}

/// # Errors
/// The place, and what cannot be read there.
pub(super) fn translate(path: &Path) -> Result<Draft, String> {
    let file = path.display().to_string();
    let text = super::text_of(path)?;
    let told = |(line, why): (usize, String)| format!("{file}:{line}: {why}");
    let documents = tree::documents(&text).map_err(told)?;
    let Some(root) = documents.first() else { return Err(format!("{file}: the file is empty")) };
    if let Some(unclear) = documents.iter().find_map(|document| document.unclear(BOOLEANS)) {
        return Err(told(unclear));
    }
    let resources = root.at("static_resources");
    if resources.at("listeners").items().is_empty() {
        return Err(format!(
            "{file}: there are no static_resources.listeners; give the bootstrap file, or a dump of the configuration with them"
        ));
    }
    let mut draft = Draft::default();
    let mut making = Making {
        file: file.clone(),
        draft: &mut draft,
        clusters: Vec::new(),
        is_closed: false,
        is_tls: false,
        hosts: HashSet::new(),
        zone: root.at("node").at("locality").at("zone").text().map(str::to_owned),
    };
    for (key, value) in root.entries() {
        match key.text().unwrap_or_default() {
            "static_resources" | "staticResources" | "node" | "admin" | "stats_config" | "stats_flush_interval" => {}
            "overload_manager" => {
                making.note(value, "overload_manager", Became::Lost, "write `memory_max` at the top of the file");
            }
            name => making.note(value, name, Became::Lost, "only static_resources are translated"),
        }
    }
    for node in resources.at("clusters").items() {
        making.cluster(node);
    }
    for node in resources.at("listeners").items() {
        making.listener(node);
    }
    // By construction, no key is dropped without a note.
    for unread in resources.unread() {
        if let Some((became, why)) = unread::verdict(&unread) {
            making.draft.note((&file, unread.line), unread.key, became, why);
        }
    }
    Ok(draft)
}

impl Making<'_> {
    fn note(&mut self, node: &Node, what: &str, became: Became, why: &str) {
        self.draft.note((&self.file, node.line), what, became, why);
        if became != Became::Different {
            node.told();
        }
    }

    /// Closes the listener that is being read. Its parts are read all the same, so that nothing is missing once it is opened.
    fn close(&mut self, node: &Node, what: &str, why: &str) {
        let why = format!("{why}, so the listener is closed (`deny`)");
        self.draft.note((&self.file, node.line), what, Became::Closed, &why);
        self.is_closed = true;
    }

    /// Reports keys that are not known, and returns whether there are any.
    fn unknown(&mut self, node: &Node, known: &[&str], what: &str) -> bool {
        let mut found = false;
        for (key, value) in node.entries() {
            if !value.is_null() && !known.iter().any(|known| key.is_key(known)) {
                let name = key.text().unwrap_or_default().to_owned();
                self.note(key, &name, Became::Closed, &format!("it is not understood, so {what}"));
                found = true;
            }
        }
        // A message that is no mapping says something that is not read.
        let is_other = node.text().is_some() || !node.items().is_empty();
        if is_other {
            self.note(node, "a value", Became::Closed, &format!("a mapping belongs here, so {what}"));
        }
        found || is_other
    }

    /// The same; unknown keys close the listener.
    fn known_or_closed(&mut self, node: &Node, known: &[&str]) {
        self.is_closed |= self.unknown(node, known, "the listener is closed (`deny`)");
    }

    /// Our cluster for a name; `None` if it is not known or cannot be reached.
    fn named_cluster(&mut self, node: &Node) -> Option<String> {
        let name = node.text().unwrap_or_default();
        let found = self.clusters.iter().find(|(known, _)| known == name).map(|(_, ours)| ours.clone());
        let found = found.filter(|ours| !ours.is_empty());
        if found.is_none() {
            let why = "no such cluster of the file can be translated, so what leads to it is closed";
            self.note(node, name, Became::Closed, why);
        }
        found
    }

    /// Keys of a listener that refuses every client.
    fn denied(keys: Keys) -> Keys {
        keys.with("deny", json!(["0.0.0.0/0", "::/0"]))
    }
}

/// The last part of the type of a `typed_config`, such as `extensions.filters.http.router.v3.Router`; for an extension without one, by its well-known
/// name.
fn kind<'n>(extension: &'n Node, by_name: &[(&'n str, &'n str)]) -> &'n str {
    let config = extension.at("typed_config");
    match config.at("@type").text() {
        Some(kind) => type_name(kind),
        None if extension.at("config_discovery").is_null() => {
            let name = extension.at("name").text().unwrap_or_default();
            by_name.iter().find(|(known, _)| *known == name).map_or("", |(_, kind)| kind)
        }
        None => "",
    }
}

/// `type.googleapis.com/envoy.extensions.NAME` without what all have.
fn type_name(url: &str) -> &str {
    let name = url.rsplit_once('/').map_or(url, |(_, name)| name);
    name.strip_prefix("envoy.extensions.").unwrap_or(name)
}

/// `{socket_address: {address, port_value}}`
fn address(node: &Node) -> Option<String> {
    let socket = node.at("socket_address");
    if !matches!(socket.at("protocol").text(), None | Some("TCP")) {
        return None;
    }
    let host = socket.at("address").text()?;
    let port = socket.at("port_value").number().filter(|port| (1..=65_535).contains(port))?;
    Some(match host {
        "::" if socket.at("ipv4_compat").is_true() => format!(":{port}"),
        host if host.contains(':') => format!("[{host}]:{port}"),
        host => format!("{host}:{port}"),
    })
}

/// `0.25s` in milliseconds; `None` for none and for zero.
fn duration(node: &Node) -> Option<u64> {
    let seconds: f64 = node.text()?.strip_suffix('s')?.parse().ok()?;
    let milliseconds = (seconds * 1000.0).round();
    (1.0..1e12).contains(&milliseconds).then_some(milliseconds as u64)
}

/// Whether it is a name, or `*.` in front of one.
pub(super) fn is_host(text: &str) -> bool {
    let bare = text.strip_prefix("*.").unwrap_or(text);
    !bare.is_empty() && bare.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

#[cfg(test)]
mod tests;
