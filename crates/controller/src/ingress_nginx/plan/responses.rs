//! URLs and cookies in the responses of endpoints: `proxy-redirect-*` and `proxy-cookie-*`.

use serde_json::{Map, Value, json};

use super::super::path::is_expression;
use super::super::value;
use super::{Reading, Verdict, spec};

/// What an annotation changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Location,
    Domain,
    Path,
}

impl Of {
    fn field(self) -> &'static str {
        match self {
            Self::Location => "location",
            Self::Domain => "cookieDomain",
            Self::Path => "cookiePath",
        }
    }
}

impl Reading<'_> {
    /// What becomes of URLs and cookies in responses.
    pub(super) fn responses(&mut self) {
        const ALL: [&str; 4] = ["proxy-redirect-from", "proxy-redirect-to", "proxy-cookie-domain", "proxy-cookie-path"];
        if self.is_grpc() {
            return self.idle(&ALL, "nginx changes nothing in the responses of gRPC endpoints");
        }
        let mut fields = Map::new();
        for (key, of, signs) in
            [("proxy-cookie-domain", Of::Domain, "-._~/: "), ("proxy-cookie-path", Of::Path, "-._~/:?&=, ")]
        {
            self.drop_if_odd(key, signs);
            let Some(text) = self.either(key).map(str::to_owned) else { continue };
            match text.split_whitespace().collect::<Vec<_>>().as_slice() {
                ["off"] => self.tell(key, Verdict::NoEffect, "it is off"),
                [from, to] => self.put(key, of, (from, to), &mut fields),
                _ => self.tell(key, Verdict::Refused, "write two words, FROM TO, or off"),
            }
        }
        self.redirects_of_endpoints(&mut fields);
        if !fields.is_empty() {
            self.route.insert("rewriteResponses".to_owned(), Value::Object(fields));
        }
    }

    fn redirects_of_endpoints(&mut self, fields: &mut Map<String, Value>) {
        let [from, to] =
            ["proxy-redirect-from", "proxy-redirect-to"].map(|key| self.either(key).unwrap_or("off").to_owned());
        if from == "off" || from == "default" {
            let why = match from.as_str() {
                "off" => "without proxy-redirect-from, it has no effect",
                // The name in `proxy_pass` is that of an upstream, which no endpoint knows.
                _ => "`default` changes URLs that begin with the name of an upstream of nginx, so it changes nothing",
            };
            return self.idle(&["proxy-redirect-from", "proxy-redirect-to"], why);
        }
        if to == "off" {
            return self
                .idle(&["proxy-redirect-from", "proxy-redirect-to"], "without proxy-redirect-to, nothing is changed");
        }
        self.put("proxy-redirect-from", Of::Location, (&from, &to), fields);
    }

    /// Of an annotation with other characters, ingress-nginx takes the default. It does not look at those of its ConfigMap.
    fn drop_if_odd(&mut self, key: &str, signs: &str) {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || signs.contains(c);
        if self.text(key).is_some_and(|text| !text.chars().all(is_plain)) {
            self.values.remove(key);
            let why = "it has a character that ingress-nginx does not take here; the default counts, as there";
            self.tell(key, Verdict::Refused, why);
        }
    }

    fn put(&mut self, key: &str, of: Of, (from, to): (&str, &str), fields: &mut Map<String, Value>) {
        match self.entry(of, from, to) {
            Ok(entry) => drop(fields.insert(of.field().to_owned(), json!([entry]))),
            Err(why) => self.tell(key, Verdict::Refused, &why),
        }
    }

    /// # Errors
    /// Returns why it cannot be served.
    fn entry(&self, of: Of, from: &str, to: &str) -> Result<Value, String> {
        if from.contains(char::is_whitespace) || to.contains(char::is_whitespace) {
            return Err("nginx takes one word for each of both".to_owned());
        }
        // The value as a whole is replaced if an expression matches anywhere in it. Of domains, case never counts.
        let pattern = match (from.strip_prefix("~*"), from.strip_prefix('~')) {
            (Some(pattern), _) if of != Of::Domain => Some((pattern, true)),
            (_, Some(pattern)) => Some((pattern, of == Of::Domain)),
            _ => None,
        };
        let mut to = with_variables(to)?;
        // nginx makes a whole URL of a path that it has put there, unless it is told otherwise.
        let is_relative = self.bool("relative-redirects", self.globals.bool("relative-redirects", false));
        if of == Of::Location && to.starts_with('/') && !is_relative {
            to.insert_str(0, "${scheme}://${host}");
        }
        let entry = match pattern {
            // `a)|(b` must not become valid through the parentheses that are put around it.
            Some((pattern, _)) if !is_expression(pattern) => {
                return Err(format!("{pattern:?} is not a regular expression, or looks around or refers back"));
            }
            Some((pattern, ignores_case)) => {
                let flag = if ignores_case { "(?i)" } else { "" };
                json!({"regex": format!("{flag}(?s:.*?)(?:{pattern})(?s:.*)"), "to": to})
            }
            None if from.contains('$') => return Err("a variable of nginx in what is replaced".to_owned()),
            None => json!({"from": from, "to": to}),
        };
        let field = json!({of.field(): [entry]});
        match config::TrafficPolicy::read(&spec("rewriteResponses", field)) {
            Ok(_) => Ok(entry),
            Err(why) => Err(format!("it cannot be served: {}", value::cut(&why.join("; ")))),
        }
    }
}

/// A new value with the variables of Steelyard. `$1` means the same in both.
fn with_variables(text: &str) -> Result<String, String> {
    const KNOWN: [(&str, &str); 3] = [("scheme", "scheme"), ("pass_access_scheme", "scheme"), ("host", "host")];
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let braced = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let (name, tail) = match braced {
            Some(found) => found,
            None if after.starts_with(|c: char| c.is_ascii_digit()) => after.split_at(1),
            None => {
                let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
                after.split_at(end)
            }
        };
        let is_group = name.len() == 1 && name.bytes().all(|byte| byte.is_ascii_digit());
        let name = match KNOWN.iter().find(|(known, _)| *known == name) {
            Some((_, ours)) => ours,
            None if is_group => name,
            None => return Err(format!("the variable ${}", value::cut(name))),
        };
        out.push_str(&format!("${{{name}}}"));
        rest = tail;
    }
    out.push_str(rest);
    Ok(out)
}
