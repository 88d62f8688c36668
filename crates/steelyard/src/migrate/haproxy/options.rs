//! The words of `bind` and `server`, by what becomes of them. A word that is in none of the tables closes its socket or its backend.

use super::super::draft::Became;
use super::Making;
use super::read::Line;

/// Words of a `bind` line that nothing follows.
pub(super) const BIND_FLAGS: &[&str] = &[
    "accept-proxy",
    "allow-0rtt",
    "defer-accept",
    "force-sslv3",
    "force-tlsv10",
    "force-tlsv11",
    "force-tlsv12",
    "force-tlsv13",
    "ktls",
    "no-alpn",
    "no-ca-names",
    "no-sslv3",
    "no-tls-tickets",
    "no-tlsv10",
    "no-tlsv11",
    "no-tlsv12",
    "no-tlsv13",
    "prefer-client-ciphers",
    "prefer-server-ciphers",
    "ssl",
    "tfo",
    "tls-tickets",
    "transparent",
    "v4v6",
    "v6only",
];

/// Words of a `bind` line with a value.
pub(super) const BIND_VALUES: &[&str] = &[
    "alpn",
    "backlog",
    "ca-file",
    "ca-ignore-err",
    "cc",
    "ciphers",
    "ciphersuites",
    "client-sigalgs",
    "crl-file",
    "crt",
    "crt-ignore-err",
    "curves",
    "ecdhe",
    "expose-fd",
    "gid",
    "group",
    "guid-prefix",
    "id",
    "idle-ping",
    "label",
    "level",
    "maxconn",
    "mode",
    "mss",
    "name",
    "nbconn",
    "nice",
    "npn",
    "ocsp-update",
    "process",
    "proto",
    "severity-output",
    "shards",
    "sigalgs",
    "ssl-max-ver",
    "ssl-min-ver",
    "tcp-ut",
    "thread",
    "tls-ticket-keys",
    "uid",
    "user",
    "verify",
];

/// Words of a `server` line that nothing follows; each may have `no-` in front.
pub(super) const SERVER_FLAGS: &[&str] = &[
    "agent-check",
    "allow-0rtt",
    "backup",
    "check",
    "check-reuse-pool",
    "check-send-proxy",
    "check-sni-auto",
    "check-ssl",
    "disabled",
    "enabled",
    "force-sslv3",
    "force-tlsv10",
    "force-tlsv11",
    "force-tlsv12",
    "force-tlsv13",
    "ktls",
    "non-stick",
    "renegotiate",
    "send-proxy",
    "send-proxy-v2",
    "send-proxy-v2-ssl",
    "send-proxy-v2-ssl-cn",
    "sni-auto",
    "ssl",
    "ssl-reuse",
    "sslv3",
    "stick",
    "strict-maxconn",
    "tfo",
    "tls-tickets",
    "tlsv10",
    "tlsv11",
    "tlsv12",
    "tlsv13",
];

/// Words of a `server` line with a value.
pub(super) const SERVER_VALUES: &[&str] = &[
    "addr",
    "agent-addr",
    "agent-inter",
    "agent-port",
    "agent-send",
    "alpn",
    "ca-file",
    "cc",
    "check-alpn",
    "check-pool-conn-name",
    "check-proto",
    "check-sni",
    "ciphers",
    "ciphersuites",
    "client-sigalgs",
    "cookie",
    "crt",
    "curves",
    "downinter",
    "error-limit",
    "fall",
    "fastinter",
    "guid",
    "hash-key",
    "id",
    "idle-ping",
    "init-addr",
    "init-state",
    "inter",
    "log-bufsize",
    "log-proto",
    "max-reuse",
    "maxconn",
    "maxqueue",
    "minconn",
    "npn",
    "observe",
    "on-error",
    "on-marked-down",
    "on-marked-up",
    "pool-conn-name",
    "pool-low-conn",
    "pool-max-conn",
    "pool-purge-delay",
    "port",
    "proto",
    "proxy-v2-options",
    "resolve-net",
    "resolve-opts",
    "resolve-prefer",
    "resolvers",
    "rise",
    "shard",
    "sigalgs",
    "slowstart",
    "sni",
    "ssl-max-ver",
    "ssl-min-ver",
    "tcp-ut",
    "track",
    "verify",
    "verifyhost",
    "weight",
    "ws",
];

/// The words of a line as names and values; of one with a value that is written twice, all in their order.
///
/// # Errors
/// The word that is not understood. What follows it could be its value, or another word.
pub(super) fn options<'l>(
    words: &'l [String],
    flags: &[&str],
    values: &[&str],
) -> Result<Vec<(&'l str, &'l str)>, &'l str> {
    let mut all = Vec::new();
    let mut rest = words.iter().map(String::as_str);
    while let Some(word) = rest.next() {
        let is_flag = flags.contains(&word) || word.strip_prefix("no-").is_some_and(|word| flags.contains(&word));
        match word {
            _ if is_flag => all.push((word, "")),
            word if values.contains(&word) => all.push((word, rest.next().ok_or(word)?)),
            word => return Err(word),
        }
    }
    Ok(all)
}

/// Words of `bind` that the translation reads, and those about sockets, threads, names and versions that Steelyard does not have.
const BIND_FINE: &[&str] = &[
    "accept-proxy",
    "alpn",
    "backlog",
    "ca-file",
    "cc",
    "crl-file",
    "crt",
    "defer-accept",
    "expose-fd",
    "force-tlsv13",
    "gid",
    "group",
    "guid-prefix",
    "id",
    "idle-ping",
    "ktls",
    "label",
    "level",
    "maxconn",
    "mode",
    "mss",
    "name",
    "nbconn",
    "nice",
    "no-alpn",
    "no-ca-names",
    "no-sslv3",
    "no-tls-tickets",
    "no-tlsv10",
    "no-tlsv11",
    "no-tlsv12",
    "npn",
    "prefer-client-ciphers",
    "prefer-server-ciphers",
    "process",
    "proto",
    "severity-output",
    "shards",
    "ssl",
    "tcp-ut",
    "tfo",
    "thread",
    "tls-tickets",
    "uid",
    "user",
    "v4v6",
    "v6only",
    "verify",
];

/// What becomes of a word of `bind` that is not translated as it is.
fn of_bind(word: &str, value: &str) -> Option<(Became, &'static str)> {
    let name = word.strip_prefix("no-").unwrap_or(word);
    Some(match word {
        "ssl-min-ver" if ["TLSv1.2", "TLSv1.3"].contains(&value) => return None,
        "ssl-min-ver" => (Became::Different, "1.2 is the oldest version of TLS that is accepted"),
        "ssl-max-ver" if value == "TLSv1.3" => return None,
        "ssl-max-ver" | "no-tlsv13" | "force-sslv3" | "force-tlsv10" | "force-tlsv11" | "force-tlsv12" => {
            (Became::Different, "TLS 1.2 and 1.3 are accepted")
        }
        "ciphers" | "ciphersuites" | "curves" | "ecdhe" | "sigalgs" | "client-sigalgs" => {
            (Became::Different, "modern suites and curves are accepted")
        }
        "allow-0rtt" => (Became::Different, "data before the handshake (0-RTT) is not accepted"),
        "ca-ignore-err" | "crt-ignore-err" => (Became::Lost, "certificates with errors are refused"),
        "tls-ticket-keys" => (Became::Lost, "no file has the keys of tickets"),
        "ocsp-update" => (Became::Lost, "no OCSP response is fetched"),
        "transparent" => (Became::Lost, "Steelyard listens on addresses of this host"),
        word if BIND_FINE.contains(&word) || BIND_FINE.contains(&name) => return None,
        _ => (Became::Lost, "it has no equivalent"),
    })
}

/// Words of `server` that the translation reads, and those about names, pools and versions that Steelyard does not have.
const SERVER_FINE: &[&str] = &[
    "allow-0rtt",
    "alpn",
    "backup",
    "ca-file",
    "cc",
    "check",
    "check-reuse-pool",
    "check-sni-auto",
    "check-pool-conn-name",
    "cookie",
    "crt",
    "disabled",
    "enabled",
    "error-limit",
    "fall",
    "guid",
    "id",
    "idle-ping",
    "init-addr",
    "inter",
    "ktls",
    "log-bufsize",
    "log-proto",
    "maxconn",
    "non-stick",
    "npn",
    "observe",
    "on-marked-down",
    "pool-conn-name",
    "pool-low-conn",
    "pool-max-conn",
    "pool-purge-delay",
    "port",
    "proto",
    "renegotiate",
    "resolvers",
    "rise",
    "send-proxy",
    "send-proxy-v2",
    "shard",
    "slowstart",
    "sni",
    "sni-auto",
    "ssl",
    "ssl-reuse",
    "stick",
    "strict-maxconn",
    "tcp-ut",
    "tfo",
    "tls-tickets",
    "verify",
    "verifyhost",
    "weight",
    "ws",
];

/// What becomes of a word of `server` that is not translated as it is. A flag has no value.
fn of_server(word: &str, value: &str) -> Option<(Became, &'static str)> {
    Some(match word {
        "addr" => {
            (Became::Lost, "a probe goes to the address of the endpoint; `port` of `health_check` changes the port")
        }
        "agent-check" | "agent-addr" | "agent-inter" | "agent-port" | "agent-send" => {
            (Became::Lost, "no agent is asked; `steelyard` commands change weights and drain endpoints")
        }
        "track" => (Became::Lost, "the endpoint is not probed by it: write `health_check` of the cluster"),
        "check-ssl" | "check-sni" | "check-alpn" | "check-proto" | "check-send-proxy" => {
            (Became::Lost, "a probe uses the TLS, the protocol and the name of the cluster")
        }
        "send-proxy-v2-ssl" | "send-proxy-v2-ssl-cn" => {
            (Became::Different, "the header of the PROXY protocol does not tell about TLS")
        }
        "proxy-v2-options" => (Became::Lost, "the header of the PROXY protocol has addresses alone"),
        "fastinter" | "downinter" => (Became::Different, "probes have one `interval`"),
        "minconn" => (Became::Lost, "a limit does not grow with the load; `limits: {connections: ...}` is fixed"),
        "maxqueue" => (Became::Lost, "write `limits: {pending: ...}`, which holds for the whole cluster"),
        "max-reuse" => (Became::Lost, "a connection to an endpoint has no largest number of requests"),
        "on-error" => (Became::Different, "`outlier` ejects an endpoint that fails"),
        "on-marked-up" => (Became::Lost, "connections to backups stay until they end"),
        "init-state" => (Became::Lost, "an endpoint is used before its first probe"),
        "hash-key" => (Became::Different, "`maglev` goes by the address of the endpoint"),
        "resolve-net" | "resolve-opts" | "resolve-prefer" => (Became::Lost, "write `dns` at the top of the file"),
        "ssl-min-ver" if value != "TLSv1.3" => return None,
        "ssl-min-ver" | "ssl-max-ver" | "force-sslv3" | "force-tlsv10" | "force-tlsv11" | "force-tlsv12"
        | "force-tlsv13" | "no-tlsv12" | "no-tlsv13" => {
            (Became::Lost, "TLS 1.2 and 1.3 are used with endpoints, and no option of `tls` changes it")
        }
        "ciphers" | "ciphersuites" | "curves" | "sigalgs" | "client-sigalgs" => {
            (Became::Different, "modern suites and curves are used")
        }
        "sslv3" | "tlsv10" | "tlsv11" | "tlsv12" | "tlsv13" => (Became::Different, "TLS 1.2 and 1.3 are used"),
        word if SERVER_FINE.contains(&word) => return None,
        // A flag that is taken back is the default.
        word if word.strip_prefix("no-").is_some_and(|word| SERVER_FLAGS.contains(&word)) => return None,
        _ => (Became::Lost, "it has no equivalent"),
    })
}

impl Making<'_> {
    /// Reports the words of a `bind` line that are not translated as they are.
    pub(super) fn report_bind(&mut self, line: &Line, words: &[(&str, &str)]) {
        self.report_words(line, words, of_bind);
    }

    /// The same of a `server` or `default-server` line. The words are known.
    pub(super) fn report_server(&mut self, line: &Line, words: &[String]) {
        let words = options(words, SERVER_FLAGS, SERVER_VALUES).unwrap_or_default();
        self.report_words(line, &words, of_server);
    }

    fn report_words(
        &mut self,
        line: &Line,
        words: &[(&str, &str)],
        of: fn(&str, &str) -> Option<(Became, &'static str)>,
    ) {
        for (word, value) in words {
            if let Some((became, why)) = of(word, value) {
                self.note(line, became, &format!("`{word}`: {why}"));
            }
        }
    }
}
