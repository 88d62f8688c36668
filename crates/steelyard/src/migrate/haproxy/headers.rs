//! Changes of headers, in the order in which HAProxy makes them, as the one change that a route has for each name.

use super::super::draft::{Became, Keys, literal};
use super::Making;
use super::acl::{self, Place, Signed};
use super::read::Line;

/// A change of one header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Set,
    Add,
    Remove,
}

/// One step: the line that makes it, the name of the header, and its value.
#[derive(Clone, Debug)]
struct Step {
    line: Line,
    how: How,
    name: String,
    value: String,
}

/// Changes in their order, and the host that the endpoint is asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    steps: Vec<Step>,
    host: Option<String>,
}

impl Changes {
    /// Adds a step; a name that no header has changes nothing.
    pub(super) fn push(&mut self, line: &Line, how: How, name: &str, value: &str) {
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            return;
        }
        self.steps.push(Step { line: line.clone(), how, name: name.to_owned(), value: value.to_owned() });
    }

    /// How much there is to do for each route: each name is looked for in all steps.
    pub(super) fn work(&self) -> usize {
        self.steps.len() * self.steps.len()
    }

    /// These and then those.
    pub(super) fn then(&self, other: &Self) -> Self {
        let mut all = self.clone();
        all.steps.extend(other.steps.iter().cloned());
        all.host = other.host.clone().or(all.host);
        all
    }
}

impl Making<'_> {
    /// Writes the changes into a route. Answers false if those of a header have no form.
    #[must_use]
    pub(super) fn write_changes(&mut self, changes: &Changes, side: &str, route: &mut Keys) -> bool {
        if let Some(host) = &changes.host {
            route.set_in("rewrite", "host", host.as_str());
        }
        let mut done: Vec<String> = Vec::new();
        for first in &changes.steps {
            let name = first.name.to_ascii_lowercase();
            if done.contains(&name) {
                continue;
            }
            // Whether the values of the client, or of the endpoint, are gone, and the new ones.
            let (mut is_cleared, mut values) = (false, Vec::new());
            for step in changes.steps.iter().filter(|step| step.name.eq_ignore_ascii_case(&name)) {
                if step.how != How::Add {
                    is_cleared = true;
                    values.clear();
                }
                if step.how != How::Remove {
                    values.push(step.value.as_str());
                }
            }
            let written = match (is_cleared, &values[..]) {
                (true, []) => route.header(side, "remove", &first.name, ""),
                (true, [one]) => route.header(side, "set", &first.name, one),
                (false, [one]) => route.header(side, "add", &first.name, one),
                (false, []) => Ok(()),
                _ if side == "response_headers" => {
                    self.note(&first.line, Became::Lost, "a route gives a header one value, not several");
                    Ok(())
                }
                _ => {
                    self.note(
                        &first.line,
                        Became::Closed,
                        "a route of Steelyard gives a header one value, not several",
                    );
                    return false;
                }
            };
            if let Err(why) = written {
                self.note(&first.line, Became::Different, why);
            }
            done.push(name);
        }
        true
    }

    /// A rule that changes a header of requests. Its condition holds always, or never, or the endpoint does not get the header at all.
    pub(super) fn request_header(
        &mut self,
        line: &Line,
        lists: Option<&[Vec<Signed>]>,
        place: &mut Place,
        changes: &mut Changes,
    ) {
        let holds = acl::holds(lists);
        if holds == Some(false) {
            return;
        }
        let (name, value) = (line.word(2), line.word(3));
        let lower = name.to_ascii_lowercase();
        place.changed.insert(lower.clone());
        if line.word(1) == "del-header" {
            if line.has("-m") {
                self.note(line, Became::Lost, "headers are removed by their whole name");
            }
            return changes.push(line, How::Remove, name, "");
        }
        if lower == "host" {
            match value.contains('%') || holds.is_none() || line.word(1) == "add-header" {
                true => self.note(line, Became::Lost, "the endpoint gets the host that the client asks for"),
                false => changes.host = Some(value.to_owned()),
            }
            return;
        }
        // Steelyard sends these itself.
        if ["x-forwarded-proto", "x-forwarded-for", "x-forwarded-host", "connection"].contains(&lower.as_str()) {
            if holds == Some(true) && lower != "connection" && !value.contains('%') {
                let why = "Steelyard sends what it knows of the client; behind another proxy, name that in `trusted_proxies` of the listener";
                self.note(line, Became::Different, why);
            }
            return;
        }
        if holds.is_none() {
            // Nobody may write it in the place of the rule.
            changes.push(line, How::Remove, name, "");
            let why = "a header with a condition: the endpoint never gets it; write it at the route";
            return self.note(line, Became::Lost, why);
        }
        match variables(value) {
            Some(value) => {
                let how = if line.word(1) == "add-header" { How::Add } else { How::Set };
                changes.push(line, how, name, &value);
            }
            None => {
                // A client could write it otherwise, and the endpoint relies on it.
                changes.push(line, How::Remove, name, "");
                self.note(line, Became::Lost, "its value is not understood, so the endpoint does not get it");
            }
        }
    }

    /// A rule about responses. Answers false if it may keep a response back.
    #[must_use]
    pub(super) fn response(&mut self, line: &Line, changes: &mut Changes) -> bool {
        let (name, value) = (line.word(2), line.word(3));
        let is_plain = is_value(value) && !value.contains('%') && !line.has("if") && !line.has("unless");
        let action = line.word(1).split('(').next().unwrap_or_default();
        match action {
            "del-header" if !line.has("-m") => changes.push(line, How::Remove, name, ""),
            "set-header" if is_plain => changes.push(line, How::Set, name, &literal(value)),
            "add-header" if is_plain => changes.push(line, How::Add, name, &literal(value)),
            "set-header" | "add-header" | "del-header" | "replace-header" | "replace-value" | "set-status"
            | "cache-store" => {
                self.note(line, Became::Lost, "only headers with a text are changed");
            }
            "set-log-level"
            | "capture"
            | "set-var"
            | "set-var-fmt"
            | "unset-var"
            | "set-nice"
            | "set-mark"
            | "set-tos"
            | "set-fc-mark"
            | "set-fc-tos"
            | "set-bandwidth-limit"
            | "strict-mode"
            | "set-timeout" => self.harmless(line, action),
            action if action.starts_with("sc-") || action.starts_with("track-sc") => self.harmless(line, action),
            _ => {
                let why =
                    "it may keep responses back, so what leads through it is closed; remove it, or write what it does";
                self.note(line, Became::Closed, why);
                return false;
            }
        }
        true
    }
}

/// A value with variables of Steelyard.
fn variables(value: &str) -> Option<String> {
    Some(match value {
        "%[src]" | "%ci" => "${client_ip}".to_owned(),
        "%[src_port]" | "%cp" => "${client_port}".to_owned(),
        "%[ssl_fc_sni]" => "${sni}".to_owned(),
        "%[ssl_fc_protocol]" => "${tls_version}".to_owned(),
        "%[unique-id]" | "%ID" => "${request_id}".to_owned(),
        // In other forms, an endpoint would read another name.
        "%[ssl_c_s_dn(,0,rfc2253)]" => "${client_cert_subject}".to_owned(),
        value if !value.contains('%') && is_value(value) => literal(value),
        _ => return None,
    })
}

/// Whether a route can give a header this value.
fn is_value(text: &str) -> bool {
    text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) && text.trim() == text
}
