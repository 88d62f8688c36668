//! Listeners, and which of their filter chains takes a connection.

use serde_json::json;

use super::super::draft::{Became, Keys, Listener, milliseconds, named};
use super::super::tree::Node;
use super::tls::Tls;
use super::{Making, address, duration, is_host, kind};

const LISTENER: &[&str] = &[
    "name",
    "address",
    "additional_addresses",
    "stat_prefix",
    "filter_chains",
    "listener_filters",
    "listener_filters_timeout",
    "continue_on_listener_filters_timeout",
    "per_connection_buffer_limit_bytes",
    "metadata",
    "drain_type",
    "bind_to_port",
    "freebind",
    "socket_options",
    "tcp_fast_open_queue_length",
    "tcp_backlog_size",
    "traffic_direction",
    "connection_balance_config",
    "reuse_port",
    "enable_reuse_port",
    "enable_mptcp",
    "access_log",
    "max_connections_to_accept_per_socket_event",
    "ignore_global_conn_limit",
    "udp_listener_config",
    "api_listener",
    "internal_listener",
];

const CHAIN: &[&str] =
    &["name", "filter_chain_match", "filters", "transport_socket", "transport_socket_connect_timeout", "metadata"];

const TCP_PROXY: &[&str] = &[
    "@type",
    "stat_prefix",
    "cluster",
    "idle_timeout",
    "access_log",
    "access_log_options",
    "access_log_flush_interval",
    "flush_access_log_on_connected",
    "max_connect_attempts",
    "hash_policy",
    "max_downstream_connection_duration",
];

/// What the one filter of a chain does with connections.
#[derive(Clone, Copy, PartialEq)]
enum Use {
    Http,
    Tcp,
}

/// A filter chain.
struct Chain<'n> {
    /// The configuration of its filter.
    config: &'n Node,
    does: Use,
    /// The names that clients ask for; empty for all.
    names: Vec<String>,
    is_tls: bool,
}

/// What the listener filters find out.
#[derive(Default)]
struct Found {
    has_proxy_protocol: bool,
    sees_tls: bool,
}

impl Making<'_> {
    pub(super) fn listener(&mut self, node: &Node) {
        let name = node.at("name").text().unwrap_or("listener").to_owned();
        let is_other =
            ["udp_listener_config", "api_listener", "internal_listener"].iter().any(|key| !node.at(key).is_null())
                || node.at("bind_to_port").is_false();
        let Some(bind) = address(node.at("address")).filter(|_| !is_other) else {
            return self.note(node, &name, Became::Lost, "Steelyard listens on TCP addresses and ports");
        };
        self.is_closed = false;
        self.hosts.clear();
        self.known_or_closed(node, LISTENER);
        for (key, why) in [
            ("additional_addresses", "write a listener for each"),
            ("access_log", "write `access_log` at the top of the file"),
        ] {
            if !node.at(key).is_null() {
                self.note(node.at(key), key, Became::Lost, why);
            }
        }
        let found = self.listener_filters(node);
        let mut tls = Tls::default();
        let chains: Vec<Chain<'_>> =
            node.at("filter_chains").items().iter().filter_map(|chain| self.chain(chain, &mut tls)).collect();
        let Some(protocol) = self.protocol(node, &chains, &found) else {
            return self.note(node, &name, Became::Lost, "it has neither an HTTP connection manager nor a TCP proxy");
        };
        let mut keys = Keys::default().with("bind", bind).with("protocol", protocol);
        if found.has_proxy_protocol {
            keys.set("proxy_protocol", true);
        }
        if ["https", "tls"].contains(&protocol) {
            keys.set("tls", tls.value());
        }
        let mut listener = Listener { keys, routes: Vec::new() };
        for (number, chain) in chains.iter().enumerate() {
            match chain.does {
                Use::Http => self.http(chain.config, &chain.names, number == 0, &mut listener),
                Use::Tcp => self.tcp(chain, protocol, &mut listener),
            }
        }
        self.finish(&name, listener);
    }

    /// The protocol of all chains; `None` if there is none.
    fn protocol(&mut self, node: &Node, chains: &[Chain<'_>], found: &Found) -> Option<&'static str> {
        let first = chains.first()?;
        if chains.iter().any(|chain| (chain.does, chain.is_tls) != (first.does, first.is_tls)) {
            self.close(node, "filter_chains", "its chains have different protocols");
        }
        let has_names = chains.iter().any(|chain| !chain.names.is_empty());
        Some(match (first.does, first.is_tls) {
            (Use::Http, true) => "https",
            (Use::Http, false) => {
                if has_names || chains.len() > 1 {
                    self.close(node, "filter_chains", "names of servers are known within TLS only");
                }
                "http"
            }
            (Use::Tcp, true) => "tls",
            (Use::Tcp, false) if has_names || found.sees_tls => "tls_passthrough",
            (Use::Tcp, false) => {
                if chains.len() > 1 {
                    self.close(node, "filter_chains", "nothing that is understood chooses one of its chains");
                }
                "tcp"
            }
        })
    }

    fn listener_filters(&mut self, node: &Node) -> Found {
        const BY_NAME: &[(&str, &str)] = &[
            ("envoy.filters.listener.tls_inspector", "filters.listener.tls_inspector.v3.TlsInspector"),
            ("envoy.filters.listener.http_inspector", "filters.listener.http_inspector.v3.HttpInspector"),
            ("envoy.filters.listener.proxy_protocol", "filters.listener.proxy_protocol.v3.ProxyProtocol"),
            ("envoy.listener.tls_inspector", "filters.listener.tls_inspector.v3.TlsInspector"),
            ("envoy.listener.proxy_protocol", "filters.listener.proxy_protocol.v3.ProxyProtocol"),
        ];
        let mut found = Found::default();
        for filter in node.at("listener_filters").items() {
            self.known_or_closed(filter, &["name", "typed_config"]);
            match kind(filter, BY_NAME) {
                "filters.listener.tls_inspector.v3.TlsInspector" => found.sees_tls = true,
                "filters.listener.http_inspector.v3.HttpInspector" => {}
                "filters.listener.proxy_protocol.v3.ProxyProtocol" => found.has_proxy_protocol = true,
                _ => {
                    let name = filter.at("name").text().unwrap_or("listener_filters").to_owned();
                    self.close(filter, &name, "the listener filter is not understood");
                }
            }
        }
        found
    }

    /// A chain; `None` if it has no filter that ends it.
    fn chain<'n>(&mut self, chain: &'n Node, tls: &mut Tls) -> Option<Chain<'n>> {
        self.known_or_closed(chain, CHAIN);
        let names = self.chain_names(chain);
        let is_tls = self.tls(chain, tls, &names);
        let mut found = None;
        for filter in chain.at("filters").items() {
            self.known_or_closed(filter, &["name", "typed_config"]);
            let does = match kind(filter, &[]) {
                "filters.network.http_connection_manager.v3.HttpConnectionManager" => Some(Use::Http),
                "filters.network.tcp_proxy.v3.TcpProxy" => Some(Use::Tcp),
                _ => None,
            };
            match does.filter(|_| found.is_none()) {
                Some(does) => found = Some((filter.at("typed_config"), does)),
                None => {
                    let name = filter.at("name").text().unwrap_or("filters").to_owned();
                    self.close(filter, &name, "the filter is not understood and may keep somebody out");
                }
            }
        }
        found.map(|(config, does)| Chain { config, does, names, is_tls })
    }

    /// The names that a chain is for.
    fn chain_names(&mut self, chain: &Node) -> Vec<String> {
        let conditions = chain.at("filter_chain_match");
        // Without the chain, another one would take its connections.
        self.known_or_closed(conditions, &["server_names", "transport_protocol"]);
        let has_tls = !chain.at("transport_socket").is_null();
        let names = conditions.at("server_names");
        match conditions.at("transport_protocol").text() {
            None | Some("") => {}
            Some("tls") if has_tls || !names.items().is_empty() => {}
            Some(_) => self.close(conditions, "transport_protocol", "it chooses a chain by what is not understood"),
        }
        let mut all = Vec::new();
        for name in names.items() {
            match name.text().map(str::to_ascii_lowercase).filter(|name| is_host(name)) {
                Some(name) => all.push(name),
                None => self.close(name, "server_names", "a name has another form than `a.example` and `*.example`"),
            }
        }
        if !names.is_null() && all.is_empty() {
            self.close(conditions, "server_names", "it has no name that is understood");
        }
        all
    }

    fn tcp(&mut self, chain: &Chain<'_>, protocol: &str, listener: &mut Listener) {
        let config = chain.config;
        self.known_or_closed(config, TCP_PROXY);
        for key in ["access_log", "hash_policy", "max_downstream_connection_duration"] {
            if !config.at(key).is_null() {
                self.note(config.at(key), key, Became::Lost, "connections have no such setting");
            }
        }
        if let Some(time) = duration(config.at("idle_timeout")) {
            listener.keys.set("idle_timeout", milliseconds(time));
        }
        let to = self.named_cluster(config.at("cluster")).unwrap_or_else(|| {
            // A chain without a cluster may not leave its connections to another one.
            self.is_closed = true;
            self.draft.cluster("nowhere", Keys::default().with("endpoints", json!(["127.0.0.1:9"])))
        });
        if protocol == "tcp" {
            return listener.keys.set("to", to);
        }
        let mut route = Keys::default();
        if !chain.names.is_empty() {
            route.set("sni", chain.names.clone());
        }
        listener.routes.push(route.with("to", to));
    }

    fn finish(&mut self, name: &str, mut listener: Listener) {
        if self.is_closed {
            listener.keys = Self::denied(listener.keys);
        }
        if listener.routes.is_empty() && listener.keys.get("to").is_none() {
            // Nothing matches a request, which Envoy answers 404.
            listener.routes.push(Keys::default().with("respond", json!({"status": 404})));
        }
        let name = named(name);
        let is_taken = |name: &str| self.draft.listeners.iter().any(|(known, _)| known == name);
        let mut candidate = name.clone();
        for number in 2.. {
            if !is_taken(&candidate) {
                break;
            }
            candidate = format!("{}-{number}", name.get(..56).unwrap_or(&name));
        }
        self.draft.listeners.push((candidate, listener));
    }
}
