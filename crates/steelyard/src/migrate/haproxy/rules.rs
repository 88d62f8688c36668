//! The rules of an HTTP frontend, in their order, as routes.

use std::rc::Rc;

use serde_json::{Value, json};

use super::super::draft::{Became, Keys, closed};
use super::Making;
use super::acl::{self, Fit, Signed};
use super::clients;
use super::front::Rules;
use super::read::{Line, Section};

/// Whether a rule keeps nobody out, and changes nothing that a condition can test here: such conditions are not understood.
pub(super) fn is_harmless(action: &str) -> bool {
    const HARMLESS: &[&str] = &[
        "add-acl",
        "cache-use",
        "capture",
        "del-acl",
        "del-map",
        "disable-l7-retry",
        "early-hint",
        "sc-add-gpc",
        "sc-inc-gpc",
        "sc-inc-gpc0",
        "sc-inc-gpc1",
        "sc-set-gpt",
        "sc-set-gpt0",
        "set-bandwidth-limit",
        "set-bc-mark",
        "set-bc-tos",
        "set-fc-mark",
        "set-fc-tos",
        "set-log-level",
        "set-map",
        "set-mark",
        "set-nice",
        "set-priority-class",
        "set-priority-offset",
        "set-timeout",
        "set-tos",
        "set-var",
        "set-var-fmt",
        "strict-mode",
        "track-sc0",
        "track-sc1",
        "track-sc2",
        "unset-var",
        "wait-for-body",
        "wait-for-handshake",
    ];
    HARMLESS.contains(&action.split('(').next().unwrap_or_default())
}

/// What to write for a harmless action that changes how a request is served.
fn instead(action: &str) -> Option<&'static str> {
    Some(match action.split('(').next().unwrap_or_default() {
        "track-sc0" | "track-sc1" | "track-sc2" => "write `rate_limit` or `client_limits`",
        "cache-use" => "nothing is cached",
        "disable-l7-retry" => "write `retry` of a route",
        "early-hint" => "no 103 is sent",
        "set-bandwidth-limit" => "write `response_bandwidth` of a route, or `client_limits`",
        "set-bc-mark" | "set-bc-tos" | "set-fc-mark" | "set-fc-tos" | "set-mark" | "set-tos" => {
            "packets and connections are not marked"
        }
        "set-priority-class" | "set-priority-offset" => "requests wait in their order",
        "set-timeout" => "write `timeout` of a route, or `response_timeout` of the cluster",
        "wait-for-body" => "write `buffer` of a route",
        _ => return None,
    })
}

const REFUSALS: &[&str] = &["deny", "reject", "tarpit", "silent-drop"];

impl Making<'_> {
    pub(super) fn rule(&mut self, line: &Rc<Line>, section: &Section, rules: &mut Rules) {
        if !self.spend(acl::size(line, section)) || !self.fits(rules.routes.len()) {
            return;
        }
        let lists = acl::condition(line, section, &rules.place);
        match (line.word(0), line.word(1)) {
            ("use_backend", name) => self.use_backend(line, name, lists, rules),
            ("tcp-request", "inspect-delay") => {}
            ("tcp-request", "connection" | "session" | "content") => self.connection(line, lists, rules),
            ("http-request", action) if REFUSALS.contains(&action) => self.deny(line, lists, rules),
            ("http-request", "allow") => self.admit(line, section, lists, rules),
            ("http-request", "redirect") | ("redirect", _) => self.redirect(line, lists, rules),
            ("http-request", "return") => self.answer(line, lists, rules),
            ("http-request", "set-header" | "add-header" | "del-header") => {
                self.request_header(line, lists.as_deref(), &mut rules.place, &mut rules.request);
            }
            ("http-request", action) if is_harmless(action) => self.harmless(line, action),
            _ => {
                let why = "it is not understood, so what it may be about is closed; remove it, or write what it does";
                self.note(line, Became::Closed, why);
                rules.close(lists.as_deref());
            }
        }
    }

    /// Reports an action that keeps nobody out, if somebody sees that it is absent.
    pub(super) fn harmless(&mut self, line: &Line, action: &str) {
        if let Some(instead) = instead(action) {
            self.note(line, Became::Lost, instead);
        }
    }

    fn use_backend(&mut self, line: &Line, name: &str, lists: Option<Vec<Vec<Signed>>>, rules: &mut Rules) {
        let Some(lists) = lists else {
            rules.is_final = true;
            self.send(line, name, vec![Keys::default()], rules);
            return;
        };
        for list in &lists {
            let Some(found) = acl::chosen(list) else { continue };
            if found.fit == Fit::Part {
                let why = "its condition is not understood, so what it may be about is closed; write a route with the condition";
                self.note(line, Became::Closed, why);
                rules.close(Some(std::slice::from_ref(list)));
                continue;
            }
            let before = rules.routes.len();
            if !self.fits(before) {
                return;
            }
            let serves = self.send(line, name, found.keys, rules);
            if found.fit == Fit::Odd && !serves {
                let why = "it leads to what is closed, and cookies and queries can be written in ways that its condition does not see, so what it \
                           may be about is closed";
                self.note(line, Became::Closed, why);
                rules.routes.truncate(before);
                rules.close(Some(std::slice::from_ref(list)));
            } else if found.fit == Fit::Odd {
                let why = "Steelyard decodes queries and splits cookies otherwise, so a request that is written oddly can get another backend";
                self.note(line, Became::Different, why);
            }
        }
    }

    /// Whether any request gets through to a server.
    pub(super) fn send(&mut self, line: &Line, name: &str, matches: Vec<Keys>, rules: &mut Rules) -> bool {
        let Some(backend) = self.backend(name).filter(|_| !name.contains('%')) else {
            self.note(line, Became::Closed, "there is no such backend in the file, so it is closed");
            rules.routes.extend(matches.iter().map(closed));
            return false;
        };
        let routes = self.routes_to(&backend, matches, rules);
        let serves = routes.iter().any(|route| route.get("to").is_some());
        rules.routes.extend(routes);
        serves && ["server", "server-template"].iter().any(|word| backend.last(&[word]).is_some())
    }

    /// A rule that refuses requests.
    fn deny(&mut self, line: &Line, lists: Option<Vec<Vec<Signed>>>, rules: &mut Rules) {
        let status =
            line.after("deny_status").and_then(|text| text.parse().ok()).filter(|status| (200..600).contains(status));
        let status: u16 = status.or(status_of(line)).unwrap_or(403);
        let Some(lists) = lists else {
            rules.routes.push(Keys::default().with("respond", json!({"status": status})));
            rules.is_final = true;
            return;
        };
        for list in &lists {
            if clients::by_source(list, &mut rules.allow, &mut rules.deny) {
                if rules.has_answers {
                    let why = "the clients that it refuses do not get the answers of the rules before it either";
                    self.note(line, Became::Different, why);
                }
                continue;
            }
            let Some(found) = acl::refused(list) else { continue };
            if found.has_rate {
                let why = "it limits rates: write `rate_limit` of the routes, or `client_limits` of the listener";
                self.note(line, Became::Lost, why);
                continue;
            }
            if found.fit == Fit::Part {
                let why = "its condition is not understood, so everything that it may be about is closed";
                self.note(line, Became::Closed, why);
            }
            rules.is_final |= found.keys.iter().any(Keys::is_empty);
            rules.routes.extend(found.keys.into_iter().map(|keys| keys.with("respond", json!({"status": status}))));
        }
    }

    /// A rule after which no other one of its kind counts: here they do, so only rules that refuse may follow it.
    fn admit(&mut self, line: &Rc<Line>, section: &Section, lists: Option<Vec<Vec<Signed>>>, rules: &mut Rules) {
        let mut after = section.all(&["http-request"]).skip_while(|known| known.number != line.number).skip(1);
        if after.all(|line| REFUSALS.contains(&line.word(1)) || is_harmless(line.word(1))) {
            let why = "what it lets through could be refused by later rules, and here it is";
            return self.note(line, Became::Different, why);
        }
        let why = "rules that come after it would change what it lets through, so that is closed; write a route with its condition";
        self.note(line, Became::Closed, why);
        rules.close(lists.as_deref());
    }

    fn connection(&mut self, line: &Line, lists: Option<Vec<Vec<Signed>>>, rules: &mut Rules) {
        match line.word(2) {
            "reject" if rules.place.is_http => self.deny(line, lists, rules),
            "reject" => {
                for list in lists.unwrap_or_else(|| vec![Vec::new()]) {
                    if clients::by_source(&list, &mut rules.allow, &mut rules.deny) {
                        continue;
                    }
                    match acl::refused(&list) {
                        None => {}
                        Some(found) if found.has_rate => {
                            self.note(line, Became::Lost, "it limits rates: write `client_limits` of the listener");
                        }
                        Some(_) => {
                            self.note(line, Became::Closed, "only addresses are understood, so the listener is closed");
                            rules.is_final = true;
                        }
                    }
                }
            }
            "accept" => {
                // Those wait for the first bytes.
                let waits = ["ssl_hello_type", "HTTP", "WAIT_END", "req_len", "req.len"];
                if lists.is_some() && !waits.iter().any(|word| line.rest(3).contains(word)) {
                    self.note(
                        line,
                        Became::Different,
                        "what it lets through could be refused by later rules, and here it is",
                    );
                }
            }
            action if is_harmless(action) => self.harmless(line, action),
            _ => {
                self.note(line, Became::Closed, "it is not understood, so the listener is closed");
                rules.routes.push(closed(&Keys::default()));
                rules.is_final = true;
            }
        }
    }

    fn answer(&mut self, line: &Line, lists: Option<Vec<Vec<Signed>>>, rules: &mut Rules) {
        let mut answer = json!({"status": status_of(line).unwrap_or(200)});
        if let Some(kind) = line.after("content-type") {
            answer["content_type"] = json!(kind);
        }
        if let Some(text) = line.after("string").filter(|_| answer["status"] != 204 && answer["status"] != 304) {
            answer["body"] = json!(text);
        }
        let is_plain =
            ["file", "errorfile", "lf-string", "lf-file", "errorfiles", "hdr"].iter().all(|word| !line.has(word));
        if !is_plain {
            self.note(line, Became::Lost, "only a status and a `string` are understood");
        }
        self.answered(line, lists, Keys::default().with("respond", answer), rules);
    }

    /// Adds an answer for what a condition holds for.
    fn answered(&mut self, line: &Line, lists: Option<Vec<Vec<Signed>>>, answer: Keys, rules: &mut Rules) {
        rules.has_answers |= answer.get("redirect").is_some() || answer.get("respond").is_some_and(is_answer);
        let Some(lists) = lists else {
            rules.routes.push(answer);
            rules.is_final = true;
            return;
        };
        for list in &lists {
            let Some(found) = acl::refused(list) else { continue };
            if found.fit == Fit::Part {
                self.note(line, Became::Closed, "its condition is not understood, so what it may be about is closed");
                rules.routes.extend(found.keys.iter().map(closed));
                continue;
            }
            let is_all = found.keys.iter().any(Keys::is_empty);
            rules.routes.extend(found.keys.into_iter().map(|keys| keys.joined(&answer)));
            rules.is_final |= is_all;
        }
    }

    fn redirect(&mut self, line: &Line, lists: Option<Vec<Vec<Signed>>>, rules: &mut Rules) {
        let status = line
            .after("code")
            .and_then(|text| text.parse::<u16>().ok())
            .filter(|code| (300..400).contains(code))
            .unwrap_or(302);
        let answer = match (line.after("scheme"), line.after("location"), line.after("prefix")) {
            (Some(scheme), ..) => Some(json!({"redirect": {"scheme": scheme, "status": status}})),
            (_, Some(url), _) if !url.contains('%') => {
                Some(json!({"respond": {"status": status, "headers": {"location": url}}}))
            }
            (_, _, Some(url)) if !url.contains('%') => prefix(url).map(|mut to| {
                to["status"] = json!(status);
                json!({"redirect": to})
            }),
            (_, Some(url), _) => with_variables(url).map(|mut to| {
                to["status"] = json!(status);
                json!({"redirect": to})
            }),
            _ => None,
        };
        for word in ["drop-query", "append-slash", "set-cookie", "clear-cookie", "ignore-empty"] {
            if line.has(word) {
                self.note(line, Became::Different, "the query stays, and no cookie is set");
            }
        }
        let Some(Value::Object(answer)) = answer else {
            self.note(
                line,
                Became::Closed,
                "the place that it leads to is not understood, so it is closed; write `redirect`",
            );
            return rules.close(lists.as_deref());
        };
        let mut keys = Keys::default();
        answer.into_iter().for_each(|(key, value)| keys.set(&key, value));
        self.answered(line, lists, keys, rules);
    }
}

/// The status of a response, in the range that Steelyard can send.
fn status_of(line: &Line) -> Option<u16> {
    line.after("status").and_then(|text| text.parse().ok()).filter(|status| (200..600).contains(status))
}

/// Whether a fixed response is more than a refusal.
fn is_answer(respond: &Value) -> bool {
    respond["status"].as_u64().is_some_and(|status| status < 400)
}

/// `https://www.example.com` in front of the client's path.
fn prefix(url: &str) -> Option<Value> {
    let (scheme, authority) = url.trim_end_matches('/').split_once("://")?;
    let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
    if host.is_empty() || authority.contains('/') {
        return None;
    }
    let mut to = json!({"scheme": scheme, "host": host});
    if !port.is_empty() {
        to["port"] = json!(port.parse::<u16>().ok()?);
    }
    Some(to)
}

/// `https://%[hdr(host)]%[capture.req.uri]`, and with a host.
fn with_variables(url: &str) -> Option<Value> {
    let (scheme, rest) = url.split_once("://")?;
    let rest = ["%[capture.req.uri]", "%[pathq]", "%[path]", "%HU"].iter().find_map(|end| rest.strip_suffix(end))?;
    match rest {
        "%[hdr(host)]" | "%[req.hdr(Host)]" | "%[req.hdr(host)]" | "%[hdr(Host)]" => Some(json!({"scheme": scheme})),
        host if !host.contains('%') => prefix(&format!("{scheme}://{host}")),
        _ => None,
    }
}
