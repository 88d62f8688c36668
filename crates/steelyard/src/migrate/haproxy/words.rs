//! The lines of sections, and their options, by what becomes of them. A line that is in none of the tables closes what leads through it.

use super::super::draft::Became;
use super::Making;
use super::check;
use super::read::{Line, Section};

/// What a line is to the translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// The translation reads it, or nobody sees that it is absent.
    Fine,
    /// Something is different without it; this instead.
    Different(&'static str),
    /// It is left out; this instead.
    Lost(&'static str),
    /// It may keep somebody out, or decide what a request gets, and it is not understood.
    Unknown,
}

/// Lines that other parts of the translation read, and report what they do not understand of them.
const READ: &[&str] = &[
    "acl",
    "balance",
    "bind",
    "cookie",
    "default-server",
    "default_backend",
    "disabled",
    "enabled",
    "http-after-response",
    "http-check",
    "http-request",
    "http-response",
    "maxconn",
    "mode",
    "monitor-uri",
    "redirect",
    "retries",
    "retry-on",
    "server",
    "server-template",
    "tcp-check",
    "tcp-request",
    "use_backend",
];

/// Lines about logs, sockets, statistics and names, and what Steelyard does in any case.
const HARMLESS: &[&str] = &[
    "backlog",
    "bind-process",
    "capture",
    "clitcpka-cnt",
    "clitcpka-idle",
    "clitcpka-intvl",
    "declare",
    "description",
    "dynamic-cookie-key",
    "guid",
    "hash-type",
    "id",
    "load-server-state-from-file",
    "log-steps",
    "log-tag",
    "max-keep-alive-queue",
    "max-session-srv-conns",
    "server-state-file-name",
    "srvtcpka-cnt",
    "srvtcpka-idle",
    "srvtcpka-intvl",
    "unique-id-format",
];

/// Options that other parts of the translation read, besides the kinds of health checks.
const OPTIONS_READ: &[&str] = &["allbackups", "forwardfor"];

const OPTIONS_HARMLESS: &[&str] = &[
    "clitcpka",
    "contstats",
    "disable-h2-upgrade",
    "dontlog-normal",
    "dontlognull",
    "http-ignore-probes",
    "http-keep-alive",
    "http-pretend-keepalive",
    "http-use-htx",
    "http-use-proxy-header",
    "httplog",
    "httpslog",
    "idle-close-on-response",
    "independent-streams",
    "log-health-checks",
    "log-separate-errors",
    "logasap",
    "nolinger",
    "redispatch",
    "socket-stats",
    "splice-auto",
    "splice-request",
    "splice-response",
    "srvtcpka",
    "tcp-smart-accept",
    "tcp-smart-connect",
    "tcpka",
    "tcplog",
    "use-small-buffers",
];

/// Times that other parts of the translation read.
const TIMEOUTS_READ: &[&str] =
    &["check", "client", "connect", "http-keep-alive", "http-request", "queue", "server", "tunnel"];

/// The kind of the last word of a `filter` line that keeps nobody out.
const FILTERS: &[&str] =
    &["bwlim-in", "bwlim-out", "cache", "comp-req", "comp-res", "compression", "opentracing", "trace"];

fn option(name: &str) -> Word {
    match name {
        "abortonclose" => {
            Word::Different("`abort_on_half_close` of the listener ends requests of clients that have left")
        }
        "accept-invalid-http-request"
        | "accept-invalid-http-response"
        | "accept-unsafe-violations-in-http-request"
        | "accept-unsafe-violations-in-http-response" => {
            Word::Lost("messages that break the rules of HTTP are refused")
        }
        "forceclose" | "httpclose" | "http-server-close" | "http-tunnel" => {
            Word::Different("connections are kept; `idle_connections: 0` of the cluster ends that for endpoints")
        }
        "http-buffer-request" => Word::Lost("write `buffer` of a route"),
        "h1-case-adjust-bogus-client" | "h1-case-adjust-bogus-server" => {
            Word::Lost("names of headers keep the case that they have")
        }
        "prefer-last-server" => Word::Different("a client gets the same endpoint by `sticky` alone"),
        "persist" => Word::Lost("an endpoint that is down gets no requests"),
        "forwarded" => Word::Lost("write `forwarded: rfc7239` of the listener"),
        "http-drop-request-trailers"
        | "http-drop-response-trailers"
        | "http-no-delay"
        | "originalto"
        | "transparent" => Word::Lost("it has no equivalent"),
        name if [check::KINDS, OPTIONS_READ, OPTIONS_HARMLESS].iter().any(|known| known.contains(&name)) => Word::Fine,
        _ => Word::Unknown,
    }
}

/// A time; those about clients belong to the listener, and a backend cannot set them here.
fn timeout(name: &str, is_of_backend: bool) -> Word {
    match name {
        "tunnel" if is_of_backend => Word::Lost("write `tunnel_idle_timeout` of the listeners that lead here"),
        "http-keep-alive" if is_of_backend => Word::Lost("write `idle_timeout` of the listeners that lead here"),
        "http-request" if is_of_backend => Word::Lost("write `header_timeout` of the listeners that lead here"),
        "tarpit" => Word::Different("a request that is refused is answered at once"),
        "client-hs" => Word::Different("`header_timeout` of the listener limits a TLS handshake, too"),
        "client-fin" | "server-fin" => {
            Word::Different("`idle_timeout` and `stall_timeout` end half-closed connections")
        }
        name if TIMEOUTS_READ.contains(&name) => Word::Fine,
        _ => Word::Lost("it has no equivalent"),
    }
}

fn word(line: &Line, section: &Section, is_of_defaults: bool) -> Word {
    match line.word(0) {
        "option" => option(line.word(1)),
        "timeout" => timeout(line.word(1), section.kind == "backend" && !is_of_defaults),
        "stats" if !["enable", "uri"].contains(&line.word(1)) => Word::Fine,
        "stats" => Word::Lost("the admin address has a page and `/metrics`; `steelyard status` shows the same"),
        "errorfile" | "errorloc" | "errorloc302" | "errorloc303" | "http-error" | "errorfiles" => {
            Word::Lost("write `error_pages` of the listener, with the body alone")
        }
        "stick-table" | "stick" | "ignore-persist" | "force-persist" | "rate-limit" => {
            Word::Lost("write `sticky`, `rate_limit` or `client_limits`")
        }
        "persist" => Word::Lost("write `sticky` of the cluster"),
        "filter" if FILTERS.contains(&line.word(1)) => Word::Lost("write `compress` of a route or `client_limits`"),
        "compression" => Word::Lost("write `compress` of a route"),
        "monitor" | "monitor-net" => Word::Lost("`/readyz` of the admin address says whether this instance is ready"),
        "http-reuse" if line.word(1) == "never" => {
            Word::Different("clients share connections to endpoints; `idle_connections: 0` of the cluster ends that")
        }
        "http-reuse" => Word::Fine,
        "no" if ["option", "log"].contains(&line.word(1)) => Word::Fine,
        "no" => Word::Lost("it is not understood"),
        "http-send-name-header" => Word::Lost("the endpoint does not get its name"),
        "unique-id-header" => Word::Lost("write `request_id: {}` of the listener; the endpoint gets X-Request-ID"),
        "tcp-response" if line.word(1) == "inspect-delay" => Word::Fine,
        // What `global` logs to is reported there.
        "log" if line.word(1) == "global" => Word::Fine,
        "log" | "log-format" | "log-format-sd" | "error-log-format" => {
            Word::Different("write `access_log` at the top of the file, with `fields` and conditions")
        }
        "email-alert" => Word::Lost("no mail is sent; alert on the metrics"),
        "external-check" => Word::Lost("no program is run as a health check"),
        "fullconn" => Word::Lost("a limit does not grow with the load; `limits: {connections: ...}` is fixed"),
        "grace" => Word::Lost("write `drain_delay` at the top of the file"),
        "hash-balance-factor" => Word::Lost("`maglev` does not look at the load; `limits` of the cluster bounds it"),
        "source" => Word::Lost("the kernel chooses the address that connections to endpoints come from"),
        word if READ.contains(&word) || HARMLESS.contains(&word) => Word::Fine,
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
            match word(line, section, place < section.defaults) {
                Word::Fine => {}
                Word::Different(why) => self.note(line, Became::Different, why),
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
