//! What `http-snippet` of the ConfigMap may do. Nothing of it is served, so the question is only whether it keeps somebody out.

use super::may_protect;
use super::words::{self, Directive};

/// Directives at this level without which nobody reads or does more: they define something that others name.
const DEFINES: [&str; 12] = [
    "geo",
    "limit_conn_zone",
    "limit_req_zone",
    "log_format",
    "lua_package_path",
    "lua_shared_dict",
    "map",
    "map_hash_bucket_size",
    "map_hash_max_size",
    "server_names_hash_bucket_size",
    "split_clients",
    "upstream",
];

/// The ports of Ingresses, which a server without `listen` has as well.
const PORTS: [u16; 2] = [80, 443];

/// Whether a snippet may keep somebody out of Ingresses, which have these ports as well.
pub fn http_protects(text: &str, ports: &[u16]) -> bool {
    words::read(text).map_or(true, |directives| directives.iter().any(|directive| protects(directive, ports)))
}

fn protects(directive: &Directive, ports: &[u16]) -> bool {
    match directive.name() {
        "server" => !is_elsewhere(directive, ports),
        name if DEFINES.contains(&name) => false,
        _ => directive.all().into_iter().any(may_protect),
    }
}

/// Whether a server has ports of its own, so that no Ingress is served there.
fn is_elsewhere(server: &Directive, ports: &[u16]) -> bool {
    let listens = || server.block.iter().flatten().filter(|directive| directive.name() == "listen");
    let port = |listen: &Directive| {
        let address = listen.rest().first()?;
        address.rsplit(':').next()?.parse::<u16>().ok()
    };
    let is_other = |port: u16| !PORTS.contains(&port) && !ports.contains(&port);
    listens().next().is_some() && listens().all(|listen| port(listen).is_some_and(is_other))
}
