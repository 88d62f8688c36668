//! The servers of a backend: their addresses and options, with those of `default-server`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::draft::Became;
use super::Making;
use super::options::{SERVER_FLAGS, SERVER_VALUES, options};
use super::read::{Line, Section};

/// What decides who is behind a connection and what it carries. A cluster has one setting for all of its endpoints.
const OF_THE_CLUSTER: &[&str] = &[
    "ssl",
    "verify",
    "ca-file",
    "sni",
    "verifyhost",
    "crt",
    "alpn",
    "proto",
    "send-proxy",
    "send-proxy-v2",
    "send-proxy-v2-ssl",
    "send-proxy-v2-ssl-cn",
];

/// What else a cluster has one setting for.
const OF_ALL: &[&str] = &["maxconn", "slowstart", "check", "inter", "fall", "rise", "port", "observe", "error-limit"];

/// The largest priority of an endpoint.
const PRIORITY_MAX: u8 = 7;

/// The options of a server. Flags have the value `yes` or `no`.
#[derive(Clone, Debug, Default)]
pub(super) struct Options(BTreeMap<String, String>);

impl Options {
    pub(super) fn value(&self, word: &str) -> Option<&str> {
        self.0.get(word).map(String::as_str)
    }

    pub(super) fn has(&self, flag: &str) -> bool {
        self.value(flag) == Some("yes")
    }

    /// Reads words into it, over what is there.
    fn read<'l>(&mut self, words: &'l [String]) -> Result<(), &'l str> {
        for (word, value) in options(words, SERVER_FLAGS, SERVER_VALUES)? {
            let (name, value) = match word {
                "enabled" => ("disabled", "no"),
                word if SERVER_VALUES.contains(&word) => (word, value),
                word if SERVER_FLAGS.contains(&word) => (word, "yes"),
                word => (word.strip_prefix("no-").unwrap_or(word), "no"),
            };
            self.0.insert(name.to_owned(), value.to_owned());
        }
        Ok(())
    }
}

/// The servers of a backend that are in use.
#[derive(Debug, Default)]
pub(super) struct Servers {
    pub(super) endpoints: Vec<Value>,
    pub(super) has_backup: bool,
    /// The options of the first.
    pub(super) options: Options,
    /// Those of the first that is probed.
    pub(super) probed: Option<Options>,
}

impl Making<'_> {
    /// `None` if the backend has to be closed.
    pub(super) fn servers(&mut self, backend: &Section) -> Option<Servers> {
        let mut base = Options::default();
        let mut servers = Servers::default();
        // Without the option, one backup takes all requests until it fails, and then the next.
        let (shares_backups, mut backups) = (backend.has_option("allbackups"), 0);
        let mut first: Option<Options> = None;
        for line in &backend.lines {
            let place = match line.word(0) {
                "default-server" => 1,
                "server" => 3,
                "server-template" => 4,
                _ => continue,
            };
            let mut own = base.clone();
            if let Err(word) = own.read(line.words.get(place..).unwrap_or_default()) {
                let why =
                    format!("`{word}` is not understood, so the backend is closed; remove it, or write what it does");
                self.note(line, Became::Closed, &why);
                return None;
            }
            self.report_server(line, line.words.get(place..).unwrap_or_default());
            if line.word(0) == "default-server" {
                base = own;
                continue;
            }
            if own.has("disabled") {
                self.note(line, Became::Different, "it is disabled, so it is left out");
                continue;
            }
            let Some(mut endpoint) = self.endpoint(line, line.word(place - 1), &own) else { continue };
            if servers.endpoints.iter().any(|known| known["address"] == endpoint["address"]) {
                self.note(line, Became::Different, "another server has its address, so it is one endpoint");
                continue;
            }
            servers.has_backup |= own.has("backup");
            if own.has("backup") {
                backups = if shares_backups { 1 } else { PRIORITY_MAX.min(backups + 1) };
                endpoint["priority"] = json!(backups);
            }
            servers.endpoints.push(endpoint);
            if servers.probed.is_none() && own.has("check") {
                servers.probed = Some(own.clone());
            }
            match &first {
                None => first = Some(own),
                Some(first) if OF_THE_CLUSTER.iter().any(|word| first.value(word) != own.value(word)) => {
                    let why = "TLS or the protocol is not that of the first server, and a cluster has one setting for all, so the backend is \
                               closed; write two clusters";
                    self.note(line, Became::Closed, why);
                    return None;
                }
                Some(first) => {
                    for word in OF_ALL.iter().filter(|word| first.value(word) != own.value(word)) {
                        let why =
                            format!("`{word}`: a cluster has one setting for all, that of its first server with one");
                        self.note(line, Became::Different, &why);
                    }
                }
            }
        }
        servers.options = first.unwrap_or_default();
        Some(servers)
    }

    fn endpoint(&mut self, line: &Line, address: &str, options: &Options) -> Option<Value> {
        let Some(address) = address_of(address) else {
            self.note(line, Became::Lost, "Steelyard connects to addresses and names with a port");
            return None;
        };
        let mut endpoint = json!({"address": address});
        if let Some(weight) = options.value("weight").and_then(|text| text.parse::<u16>().ok()) {
            endpoint["weight"] = json!(weight);
        }
        Some(endpoint)
    }
}

/// `10.0.0.1:80`, `app:80`, `::1:80`: HAProxy takes what follows the last colon for the port. Sockets, ports that depend on the client and
/// addresses that stand for its destination have no form.
fn address_of(text: &str) -> Option<String> {
    let text = text.trim_start_matches("ipv4@").trim_start_matches("ipv6@");
    let (host, port) = text.rsplit_once(':')?;
    port.parse::<u16>().ok().filter(|port| *port > 0 && text.ends_with(|digit: char| digit.is_ascii_digit()))?;
    if !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<std::net::IpAddr>() {
        Ok(address) if address.is_unspecified() => None,
        Ok(address) if address.is_ipv6() => Some(format!("[{address}]:{port}")),
        Ok(address) => Some(format!("{address}:{port}")),
        Err(_) => {
            let is_name = |text: &str| {
                !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
            };
            is_name(bare).then(|| format!("{bare}:{port}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let check = |text: &str, expect: Option<&str>| assert_eq!(address_of(text).as_deref(), expect, "{text}");
        check("10.0.0.1:80", Some("10.0.0.1:80"));
        check("app.example:8080", Some("app.example:8080"));
        check("::1:80", Some("[::1]:80"));
        check("ipv6@[::1]:80", Some("[::1]:80"));
        for wrong in ["10.0.0.1", "10.0.0.1:+1", "0.0.0.0:80", "*:80", "/run/a.sock", "unix@a:80", "a:0", "a b:80"] {
            check(wrong, None);
        }
    }

    #[test]
    fn options_of_servers() {
        let read = |text: &str| {
            let mut options = Options::default();
            let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            options.read(&words).map(|()| options.0.clone()).map_err(str::to_owned)
        };
        let all = read("check cookie ssl weight 3 no-check disabled enabled verify none").unwrap();
        let expect = [("check", "no"), ("cookie", "ssl"), ("disabled", "no"), ("verify", "none"), ("weight", "3")];
        assert_eq!(all.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect::<Vec<_>>(), expect);
        assert_eq!(read("check nonsense").unwrap_err(), "nonsense");
        assert_eq!(read("check weight").unwrap_err(), "weight");
    }
}
