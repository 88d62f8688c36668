//! The section `global`: what it says about all frontends and servers, and a note about each other line.

use std::rc::Rc;

use super::super::draft::{Became, milliseconds};
use super::read::{Line, Section, time};
use super::{Making, front};

/// What `global` says about other sections.
#[derive(Default)]
pub(super) struct Global {
    /// The words that hold for every `bind` with TLS.
    pub(super) bind_options: Vec<String>,
    /// One of them is not understood, so nobody gets in by TLS.
    pub(super) closes_tls: bool,
    /// Servers with TLS are not verified unless their line says so.
    pub(super) trusts_servers: bool,
    ca_base: Option<String>,
    crt_base: Option<String>,
    /// Connections of the whole process.
    pub(super) connections: Option<u64>,
}

impl Global {
    /// A file with CAs or revoked certificates, which a relative path names below `ca-base`.
    pub(super) fn ca(&self, file: &str) -> String {
        below(self.ca_base.as_deref(), file)
    }

    /// A file with a certificate and its key, which a relative path names below `crt-base`.
    pub(super) fn certificate(&self, file: &str) -> String {
        below(self.crt_base.as_deref(), file)
    }
}

fn below(base: Option<&str>, file: &str) -> String {
    match base {
        Some(base) if !file.starts_with(['/', '@']) => format!("{}/{file}", base.trim_end_matches('/')),
        _ => file.to_owned(),
    }
}

/// Lines about the process of HAProxy, which Steelyard does not need.
const HARMLESS: &[&str] = &[
    "anonkey",
    "busy-polling",
    "chroot",
    "close-spread-time",
    "cluster-secret",
    "cpu-map",
    "cpu-policy",
    "cpu-set",
    "daemon",
    "description",
    "expose-deprecated-directives",
    "expose-experimental-directives",
    "gid",
    "group",
    "insecure-fork-wanted",
    "insecure-setuid-wanted",
    "localpeer",
    "log-send-hostname",
    "log-tag",
    "master-worker",
    "max-spread-checks",
    "maxcompcpuusage",
    "maxpipes",
    "maxzlibmem",
    "mworker-max-reloads",
    "nbproc",
    "nbthread",
    "node",
    "noepoll",
    "noevports",
    "nogetaddrinfo",
    "nokqueue",
    "nopoll",
    "noreuseport",
    "nosplice",
    "numa-cpu-mapping",
    "pidfile",
    "prealloc-fd",
    "quiet",
    "server-state-base",
    "server-state-file",
    "set-dumpable",
    "setcap",
    "spread-checks",
    "ssl-dh-param-file",
    "ssl-engine",
    "ssl-mode-async",
    "ssl-propquery",
    "ssl-provider",
    "ssl-provider-path",
    "stats-file",
    "strict-limits",
    "thread-group",
    "thread-groups",
    "uid",
    "ulimit-n",
    "unix-bind",
    "user",
    "zero-warning",
];

/// Lines with an equivalent of another form, or none.
fn instead(line: &Line) -> Option<(Became, &'static str)> {
    Some(match line.word(0) {
        "log" => (Became::Different, "write `access_log` at the top of the file"),
        "stats" => {
            (Became::Different, "write `admin` at the top of the file: it has the page, `/metrics` and the commands")
        }
        "ssl-default-bind-ciphers"
        | "ssl-default-bind-ciphersuites"
        | "ssl-default-bind-curves"
        | "ssl-default-bind-sigalgs"
        | "ssl-default-bind-client-sigalgs"
        | "ssl-default-server-ciphers"
        | "ssl-default-server-ciphersuites"
        | "ssl-default-server-curves"
        | "ssl-default-server-sigalgs"
        | "ssl-default-server-client-sigalgs" => (Became::Different, "modern suites and curves are accepted"),
        "tune.http.maxhdr" => (Became::Lost, "write `limits: {header_count: ...}` of the listeners"),
        "tune.bufsize" | "tune.maxrewrite" => {
            (Became::Different, "`limits: {header_bytes: ...}` of the listeners bounds the headers of a request")
        }
        "tune.h2.max-concurrent-streams" | "tune.h2.fe.max-concurrent-streams" => {
            (Became::Lost, "write `limits: {streams_per_connection: ...}` of the listeners")
        }
        word if word.starts_with("tune.") || word.starts_with("profiling.") => {
            (Became::Different, "it tunes HAProxy itself; Steelyard has its own buffers and limits")
        }
        "maxconnrate" | "maxsessrate" | "maxsslrate" | "maxsslconn" | "maxcomprate" => {
            (Became::Lost, "write `limits` or `client_limits` of the listeners")
        }
        "default-path" => (Became::Lost, "a relative path begins at the folder of the translation: write whole paths"),
        "setenv" | "presetenv" | "resetenv" | "unsetenv" => (Became::Lost, "variables of the environment are not read"),
        "ssl-load-extra-files" | "ssl-load-extra-del-ext" => {
            (Became::Lost, "name the file of each certificate and key in `certificates`")
        }
        "grace" => (Became::Lost, "write `drain_delay` at the top of the file"),
        word if word.starts_with("lua-") => (Became::Lost, "Lua is not run; rules that need it are closed"),
        "external-check" => (Became::Lost, "no program is run as a health check"),
        _ => return None,
    })
}

/// Words of `ssl-default-bind-options` and `ssl-default-server-options` that Steelyard follows without them.
const OLD_VERSIONS: &[&str] = &["no-sslv3", "no-tlsv10", "no-tlsv11", "no-tls-tickets", "prefer-client-ciphers"];

impl Making<'_> {
    /// Reads a section `global`. A line that is not known is reported.
    pub(super) fn read_global(&mut self, section: &Section) {
        for line in &section.lines {
            let value = line.word(1);
            match line.word(0) {
                "ca-base" => self.global.ca_base = Some(value.to_owned()),
                "crt-base" => self.global.crt_base = Some(value.to_owned()),
                "ssl-server-verify" | "ssl-default-server-verify" => self.global.trusts_servers = value == "none",
                "ssl-default-bind-options" => self.bind_options(line),
                "ssl-default-server-options" => self.server_options(line),
                "maxconn" => self.max_connections(line),
                "hard-stop-after" => match time(value) {
                    Some(time) => self.draft.top.set("drain_timeout", milliseconds(time)),
                    None => self.note(line, Became::Lost, "write `drain_timeout` at the top of the file"),
                },
                "no" if HARMLESS.contains(&value) => {}
                word if HARMLESS.contains(&word) => {}
                _ => {
                    let (became, why) = instead(line).unwrap_or((Became::Lost, "it is not understood"));
                    self.note(line, became, why);
                }
            }
        }
    }

    fn max_connections(&mut self, line: &Rc<Line>) {
        let count = line.word(1).parse::<u64>().ok().filter(|count| *count > 0);
        self.global.connections = count.map(|count| count.min(front::CONNECTIONS_MAX));
        let why = "each listener has this limit, and not all of them together";
        match count {
            Some(_) => self.note(line, Became::Different, why),
            None => self.note(line, Became::Lost, "write `limits: {connections: ...}` of the listeners"),
        }
    }

    fn bind_options(&mut self, line: &Rc<Line>) {
        let mut words = line.words.iter().skip(1).map(String::as_str);
        while let Some(word) = words.next() {
            match word {
                "ssl-min-ver" => match words.next() {
                    Some("TLSv1.2" | "TLSv1.3") => {}
                    _ => self.note(line, Became::Different, "1.2 is the oldest version of TLS that is accepted"),
                },
                "ssl-max-ver" => match words.next() {
                    Some("TLSv1.3") => {}
                    _ => self.note(line, Became::Different, "TLS 1.3 is accepted, too"),
                },
                "no-tlsv13" | "force-tlsv12" | "force-tlsv11" | "force-tlsv10" => {
                    self.note(line, Became::Different, "TLS 1.2 and 1.3 are accepted");
                }
                "no-tlsv12" | "force-tlsv13" | "prefer-server-ciphers" | "tls-tickets" => {}
                word if OLD_VERSIONS.contains(&word) => {}
                "allow-0rtt" => self.note(line, Became::Different, "data before the handshake (0-RTT) is not accepted"),
                word => {
                    let why = format!("`{word}` is not understood, so sockets with TLS are closed");
                    self.note(line, Became::Closed, &why);
                    self.global.closes_tls = true;
                }
            }
        }
        self.global.bind_options.extend(line.words.iter().skip(1).cloned());
    }

    fn server_options(&mut self, line: &Rc<Line>) {
        let text = line.rest(1).replace("ssl-min-ver TLSv1.2", "");
        if !text.split_whitespace().all(|word| OLD_VERSIONS.contains(&word)) {
            self.note(line, Became::Lost, "TLS 1.2 and 1.3 are used with servers, and no option of `tls` changes it");
        }
    }
}
