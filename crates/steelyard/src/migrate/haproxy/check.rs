//! The health check of a backend.

use serde_json::{Value, json};

use super::super::draft::{Became, milliseconds};
use super::Making;
use super::read::{Line, Section, time};
use super::server::Options;

/// The options that choose how servers are probed; of these, the last one in a section counts.
pub(super) const KINDS: &[&str] = &[
    "external-check",
    "httpchk",
    "ldap-check",
    "mysql-check",
    "pgsql-check",
    "redis-check",
    "smtpchk",
    "spop-check",
    "ssl-hello-chk",
    "tcp-check",
];

impl Making<'_> {
    /// The health check of servers with these options.
    pub(super) fn check(&mut self, backend: &Section, options: &Options) -> Value {
        let mut check = json!({});
        let is_kind = |line: &&std::rc::Rc<Line>| KINDS.contains(&line.word(1)) && backend.has_option(line.word(1));
        match backend.all(&["option"]).rev().find(is_kind) {
            Some(line) if line.word(1) == "httpchk" => self.http_check(backend, line, &mut check),
            Some(line) if line.word(1) == "tcp-check" => {
                check["tcp"] = json!(true);
                for line in backend.all(&["tcp-check"]) {
                    self.tcp_check(line, &mut check);
                }
            }
            Some(line) => {
                check["tcp"] = json!(true);
                let why = "an endpoint that accepts a connection counts as healthy; write `http` or `grpc` of `health_check` if it has one";
                self.note(line, Became::Lost, why);
            }
            None => check["tcp"] = json!(true),
        }
        if let Some(time) = options.value("inter").and_then(time) {
            check["interval"] = json!(milliseconds(time));
        }
        for (word, key, most) in
            [("fall", "unhealthy_after", 1_000), ("rise", "healthy_after", 1_000), ("port", "port", 65_535)]
        {
            let count = options.value(word).and_then(|text| text.parse::<u64>().ok());
            if let Some(count) = count.filter(|count| *count > 0) {
                check[key] = json!(count.min(most));
            }
        }
        if let Some(time) = backend.time(&["timeout", "check"]) {
            check["timeout"] = json!(milliseconds(time));
        }
        check
    }

    fn tcp_check(&mut self, line: &Line, check: &mut Value) {
        match line.word(1) {
            "comment" => {}
            "connect" => self.connects(line, check),
            _ => self.note(line, Became::Lost, "only the connection is checked: nothing is sent or expected"),
        }
    }

    /// `connect` of `tcp-check` or `http-check`: another port is translated.
    fn connects(&mut self, line: &Line, check: &mut Value) {
        let mut words = line.words.iter().skip(2).map(String::as_str);
        while let Some(word) = words.next() {
            match word {
                "default" | "linger" => {}
                "comment" => drop(words.next()),
                "port" => match words.next().and_then(|text| text.parse::<u16>().ok()).filter(|port| *port > 0) {
                    Some(port) => check["port"] = json!(port),
                    None => self.note(line, Became::Lost, "a probe goes to the port of the endpoint, or to one number"),
                },
                word => {
                    let why = format!("`{word}`: a probe uses the address, the TLS and the protocol of the cluster");
                    self.note(line, Became::Lost, &why);
                    // What follows may be its value.
                    return;
                }
            }
        }
    }

    fn http_check(&mut self, backend: &Section, old: &Line, check: &mut Value) {
        let (mut path, mut method) = match (old.word(2), old.word(3)) {
            ("", _) => ("/", "OPTIONS"),
            (path, "") => (path, "OPTIONS"),
            (method, path) => (path, method),
        };
        // The version and headers, as older versions of HAProxy have them.
        let more = old.rest(4).replace("\\r\\n", "\n").replace('\r', "");
        for field in more.lines().skip(1) {
            let (name, value) = field.split_once(':').unwrap_or((field, ""));
            self.sent(old, name, value.trim(), check);
        }
        let mut sends = 0;
        for line in backend.all(&["http-check"]) {
            match line.word(1) {
                "comment" => {}
                "connect" => self.connects(line, check),
                "expect" => self.expects(line, check),
                "send" => {
                    sends += 1;
                    let mut words = line.words.iter().skip(2).map(String::as_str);
                    while let Some(word) = words.next() {
                        match word {
                            "uri" => path = words.next().unwrap_or(path),
                            "meth" => method = words.next().unwrap_or(method),
                            "ver" | "comment" => drop(words.next()),
                            "hdr" => {
                                let (name, value) =
                                    (words.next().unwrap_or_default(), words.next().unwrap_or_default());
                                self.sent(line, name, value, check);
                            }
                            word => {
                                let why = format!("`{word}`: a probe is GET for a path, without a body");
                                self.note(line, Became::Lost, &why);
                                words.next();
                            }
                        }
                    }
                }
                _ => self.note(line, Became::Lost, "a probe is one request, and its response is healthy or not"),
            }
        }
        if sends > 1 {
            self.note(old, Became::Lost, "a probe is one request: of several `http-check send`, the last one");
        }
        if !path.starts_with('/') || path.contains('%') {
            self.note(old, Became::Lost, "the path of a probe is a text that begins with `/`");
            path = "/";
        }
        check["http"] = json!(path);
        if method != "GET" {
            self.note(old, Became::Different, "probes are GET");
        }
    }

    /// A header of the request.
    fn sent(&mut self, line: &Line, name: &str, value: &str, check: &mut Value) {
        let is_plain = !value.is_empty() && value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        match name.trim() {
            _ if !is_plain || value.contains('%') => {
                self.note(line, Became::Lost, "the value of a header is a text without variables");
            }
            name if name.eq_ignore_ascii_case("host") => check["host"] = json!(value),
            name if name.eq_ignore_ascii_case("connection") => {}
            name if !name.is_empty() && name.bytes().all(is_token) && config::unchangeable(name).is_none() => {
                check["headers"][name] = json!(value);
            }
            _ => self.note(line, Became::Lost, "this header of a probe cannot be set"),
        }
    }

    fn expects(&mut self, line: &Line, check: &mut Value) {
        match (line.word(2), line.word(3)) {
            ("status", statuses) => check["expect"] = json!(statuses.split(',').collect::<Vec<_>>()),
            ("string", text) => check["body"] = json!(text),
            _ => self.note(line, Became::Lost, "a status and a text are expected, and no expression"),
        }
        if line.words.len() > 4 {
            self.note(line, Became::Lost, "one status or text is expected, without options");
        }
    }
}
