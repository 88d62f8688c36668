//! What happens beside a request: a copy of it, and its line in the access log.

use serde_json::{Map, json};

use super::access::SERVICE_OVER_TLS;
use super::variables::{Part, parts};
use super::{Reading, Target, Verdict, outside};

impl Reading<'_> {
    /// What gets copies.
    pub(super) fn mirror(&mut self) -> Option<Target> {
        let Some(target) = self.text("mirror-target").map(str::to_owned) else {
            self.idle(&["mirror-host", "mirror-request-body"], "without mirror-target, it has no effect");
            return None;
        };
        let found = self.target(&target).and_then(|target| match target.request() {
            ("/", "") => Ok(target),
            _ => Err("the copy has the path of the request: write the URL without a path".to_owned()),
        });
        let mut target = found.map_err(|why| self.tell("mirror-target", Verdict::Refused, &why)).ok()?;
        if self.text("mirror-request-body").is_some_and(|word| word.eq_ignore_ascii_case("on")) {
            self.tell("mirror-request-body", Verdict::Served, "copies have bodies; see mirror-target");
        }
        match &target {
            Target::Outside(url) => self.tell_copies(outside::says(url.to.is_https, self.compat)),
            Target::Service(url) if url.sni.is_some() => self.tell_copies(SERVICE_OVER_TLS),
            Target::Service(_) => {}
        }
        match self.text("mirror-host").map(str::to_owned) {
            // In place of the host of the URL.
            Some(host) if ["$host", "$http_host", "$best_http_host"].contains(&host.as_str()) => {
                target.set_host(String::new())
            }
            Some(host) if host.contains('$') => {
                self.tell(
                    "mirror-host",
                    Verdict::Refused,
                    "a variable of nginx other than $host; the copy has the host of the URL",
                );
            }
            Some(host) => target.set_host(host),
            None => {}
        }
        Some(target)
    }

    fn tell_copies(&mut self, says: &str) {
        let says = format!("{says}. Requests with bodies of more than 64 KiB are not copied");
        self.tell("mirror-target", Verdict::Differs, &says);
    }

    /// Whether requests are in the access log.
    pub(super) fn log(&mut self) {
        if !self.bool("enable-access-log", true) {
            self.route.insert("accessLog".to_owned(), json!(false));
        }
    }

    /// How the traces of requests differ from those of other routes.
    pub(super) fn traces(&mut self) {
        const TRUST: &str = "opentelemetry-trust-incoming-span";
        const NAME: &str = "opentelemetry-operation-name";
        if !self.bool("enable-opentelemetry", self.globals.bool("enable-opentelemetry", true)) {
            self.idle(&[TRUST, NAME], "enable-opentelemetry is off");
            self.route.insert("tracing".to_owned(), json!({"enabled": false}));
            return;
        }
        let mut tracing = Map::new();
        if !self.bool(TRUST, self.globals.bool(TRUST, true)) {
            tracing.insert("continueTrace".to_owned(), json!(false));
        }
        match self.either(NAME).map(|name| span_name(name, &self.namespace)) {
            None => {}
            Some(Ok(name)) => drop(tracing.insert("spanName".to_owned(), json!(name))),
            Some(Err(why)) => self.tell(NAME, Verdict::Refused, &format!("{why}; spans have their usual names")),
        }
        if !tracing.is_empty() {
            self.route.insert("tracing".to_owned(), tracing.into());
        }
    }
}

/// The longest name of a span.
const SPAN_NAME_BYTES_MAX: usize = 256;

/// The name of spans, with our variables.
///
/// # Errors
/// Says in a sentence what of it is not understood.
fn span_name(written: &str, namespace: &str) -> Result<String, String> {
    let variable = |name: &str| {
        let of = |name: &str| Some(Part::Variable(name.to_owned()));
        match name {
            "request_method" => of("method"),
            "host" | "http_host" | "best_http_host" => of("host"),
            "uri" | "document_uri" | "request_uri" => of("path"),
            "namespace" => Some(Part::Text(namespace.to_owned())),
            _ => None,
        }
    };
    let mut name = String::new();
    for part in parts(written.trim_matches('"'), variable)? {
        match part {
            Ok(part) => name.push_str(&part.written()),
            Err(unknown) => {
                let known = "$request_method, $host, $uri, $namespace and text are";
                return Err(format!("{unknown} is not known in the name of a span; {known}"));
            }
        }
    }
    let is_plain =
        name.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && !name.starts_with(' ') && !name.ends_with(' ');
    match is_plain && (1..=SPAN_NAME_BYTES_MAX).contains(&name.len()) {
        true => Ok(name),
        false => Err(format!("a name is one line of 1 to {SPAN_NAME_BYTES_MAX} printable characters of ASCII")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_spans() {
        let check =
            |written: &str, expect: &str| assert_eq!(span_name(written, "shop").as_deref(), Ok(expect), "{written}");
        check("checkout", "checkout");
        check("\"HTTP $request_method $namespace$uri\"", "HTTP ${method} shop${path}");
        check("${host} of $request_uri", "${host} of ${path}");
        let refused = |written: &str, part: &str| {
            let why = span_name(written, "shop").unwrap_err();
            assert!(why.contains(part), "{why}");
        };
        refused("HTTP $service_name", "$service_name is not known");
        refused("a $", "before no name");
        refused("\"\"", "one line");
        refused("a\nb", "one line");
        refused(&"a".repeat(257), "256");
    }
}
