//! The words of HAProxy by what becomes of them: lines of sections, options, and the words of `bind` and `server`.

use super::super::draft::Became;
use super::Making;
use super::read::{Line, Section};

/// What a line is to the translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// It is translated, or nobody sees that it is absent.
    Fine,
    /// Responses are different without it; this instead.
    Lost(&'static str),
    /// It may keep somebody out, or decide what a request gets, and it is not understood.
    Unknown,
}

const FINE: &[&str] = &[
    "acl",
    "backlog",
    "balance",
    "bind",
    "bind-process",
    "capture",
    "clitcpka-cnt",
    "clitcpka-idle",
    "clitcpka-intvl",
    "cookie",
    "declare",
    "default-server",
    "default_backend",
    "description",
    "disabled",
    "dynamic-cookie-key",
    "email-alert",
    "enabled",
    "error-log-format",
    "external-check",
    "fullconn",
    "grace",
    "guid",
    "hash-balance-factor",
    "hash-type",
    "http-after-response",
    "http-check",
    "http-request",
    "http-response",
    "http-reuse",
    "id",
    "load-server-state-from-file",
    "log",
    "log-format",
    "log-format-sd",
    "log-steps",
    "log-tag",
    "max-keep-alive-queue",
    "max-session-srv-conns",
    "maxconn",
    "mode",
    "monitor-uri",
    "no",
    "persist",
    "redirect",
    "retries",
    "retry-on",
    "server",
    "server-state-file-name",
    "server-template",
    "source",
    "srvtcpka-cnt",
    "srvtcpka-idle",
    "srvtcpka-intvl",
    "tcp-check",
    "tcp-request",
    "timeout",
    "unique-id-format",
    "use_backend",
];

const OPTIONS: &[&str] = &[
    "abortonclose",
    "accept-invalid-http-request",
    "accept-invalid-http-response",
    "accept-unsafe-violations-in-http-request",
    "accept-unsafe-violations-in-http-response",
    "allbackups",
    "clitcpka",
    "contstats",
    "disable-h2-upgrade",
    "dontlog-normal",
    "dontlognull",
    "external-check",
    "forceclose",
    "forwardfor",
    "h1-case-adjust-bogus-client",
    "h1-case-adjust-bogus-server",
    "http-buffer-request",
    "http-drop-request-trailers",
    "http-drop-response-trailers",
    "http-ignore-probes",
    "http-keep-alive",
    "http-pretend-keepalive",
    "http-server-close",
    "http-tunnel",
    "http-use-htx",
    "http-use-proxy-header",
    "httpchk",
    "httpclose",
    "httplog",
    "httpslog",
    "idle-close-on-response",
    "independent-streams",
    "ldap-check",
    "log-health-checks",
    "log-separate-errors",
    "logasap",
    "mysql-check",
    "persist",
    "pgsql-check",
    "prefer-last-server",
    "redis-check",
    "redispatch",
    "smtpchk",
    "socket-stats",
    "splice-auto",
    "splice-request",
    "splice-response",
    "spop-check",
    "srvtcpka",
    "ssl-hello-chk",
    "tcp-check",
    "tcp-smart-accept",
    "tcp-smart-connect",
    "tcpka",
    "tcplog",
    "use-small-buffers",
];

const OPTIONS_LOST: &[&str] = &["forwarded", "http-no-delay", "nolinger", "originalto", "transparent"];

/// The kind of the last word of a `filter` line that keeps nobody out.
const FILTERS: &[&str] =
    &["bwlim-in", "bwlim-out", "cache", "comp-req", "comp-res", "compression", "opentracing", "trace"];

fn word(line: &Line, is_of_defaults: bool) -> Word {
    match line.word(0) {
        "option" if OPTIONS_LOST.contains(&line.word(1)) => Word::Lost("it has no equivalent"),
        "option" if OPTIONS.contains(&line.word(1)) => Word::Fine,
        "option" => Word::Unknown,
        // Once, where the defaults are.
        "stats" if is_of_defaults || !["enable", "uri"].contains(&line.word(1)) => Word::Fine,
        "stats" => Word::Lost("the admin address has a page and `/metrics`; `steelyard status` shows the same"),
        "errorfile" | "errorloc" | "errorloc302" | "errorloc303" | "http-error" | "errorfiles" => {
            Word::Lost("write `error_pages` of the listener, with the body alone")
        }
        "stick-table" | "stick" | "ignore-persist" | "force-persist" | "rate-limit" => {
            Word::Lost("write `sticky`, `rate_limit` or `client_limits`")
        }
        "filter" if FILTERS.contains(&line.word(1)) => Word::Lost("write `compress` of a route or `client_limits`"),
        "compression" => Word::Lost("write `compress` of a route"),
        "monitor" | "monitor-net" => Word::Lost("`/readyz` of the admin address says whether this instance is ready"),
        "http-send-name-header" => Word::Lost("the endpoint does not get its name"),
        "unique-id-header" => Word::Lost("write `request_id: {}` of the listener; the endpoint gets X-Request-ID"),
        "tcp-response" if line.word(1) == "inspect-delay" => Word::Fine,
        word if FINE.contains(&word) => Word::Fine,
        _ => Word::Unknown,
    }
}

impl Making<'_> {
    /// Reports lines of a section that are not translated; whether they close it.
    pub(super) fn closes(&mut self, section: &Section) -> bool {
        if let Some(known) = self.closed.get(&section.line) {
            return *known;
        }
        let mut closes = false;
        if !["http", "tcp"].contains(&section.mode()) {
            self.note(&section.head(), Became::Closed, "its mode is neither http nor tcp");
            closes = true;
        }
        for (place, line) in section.lines.iter().enumerate() {
            match word(line, place < section.defaults) {
                Word::Fine => {}
                Word::Lost(instead) => self.note(line, Became::Lost, instead),
                Word::Unknown => {
                    let why =
                        "it is not understood, so what leads through it is closed; remove it, or write what it does";
                    self.note(line, Became::Closed, why);
                    closes = true;
                }
            }
        }
        self.closed.insert(section.line, closes);
        closes
    }
}

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
