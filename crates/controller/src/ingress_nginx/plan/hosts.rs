//! Names: more of them for a host, and the one that endpoints get.

use super::super::{alias, backend, value};
use super::{Reading, Verdict};

impl Reading<'_> {
    /// More names of the host.
    pub(super) fn aliases(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        let (mut has_regex, mut refused) = (false, Vec::new());
        for word in self.text("server-alias").into_iter().flat_map(value::words) {
            match alias::names(word) {
                Ok(found) => {
                    has_regex |= word.starts_with('~');
                    names.extend(found);
                }
                Err(why) => refused.push(format!("{}: {why}", value::cut(word))),
            }
        }
        if let Some(first) = refused.first() {
            let more = match refused.len() - 1 {
                0 => String::new(),
                more => format!("; and {more} more of its values"),
            };
            let why = format!("{first}{more}; or write the hosts as rules. Its other values are served");
            self.tell("server-alias", Verdict::Refused, &why);
        } else if has_regex {
            let why = "an expression is served as the names that it stands for, and one for a label as all names below the domain; as names, they \
                       come before a wildcard host, also of another Ingress";
            self.tell("server-alias", Verdict::Differs, why);
        }
        names
    }

    /// The `Host` that endpoints get.
    pub(super) fn vhost(&mut self) -> Option<String> {
        let mut host = self.text("upstream-vhost").map(str::to_owned);
        match host.as_deref() {
            // What endpoints get in any case.
            Some("$host" | "$http_host" | "$best_http_host") => host = None,
            Some(text) if text.contains('$') && !backend::has_only(text) => {
                host = None;
                let why = "a variable of nginx other than $host, $namespace, $ingress_name, $service_name and $service_port; write the host";
                self.tell("upstream-vhost", Verdict::Refused, why);
            }
            _ => {}
        }
        host
    }
}
