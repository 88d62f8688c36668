//! What the snippets of an Ingress mean.

use serde_json::json;

use super::super::snippet::{self, Changes};
use super::super::value;
use super::{Reading, Verdict};

impl Reading<'_> {
    /// The headers with which the service of external authorization names the client, in lower case.
    fn granted(&self) -> Vec<&str> {
        let names = self.route.get("externalAuth").and_then(|asked| asked["responseHeaders"].as_array());
        names.into_iter().flatten().filter_map(serde_json::Value::as_str).collect()
    }

    pub(super) fn snippets(&mut self) -> Changes {
        let has = |this: &Self, name: &str| this.text(name).is_some();
        let critical =
            ["configuration-snippet", "server-snippet", "stream-snippet", "auth-snippet", "modsecurity-snippet"];
        let used = critical.iter().find(|name| has(self, name)).copied();
        if let Some(name) = used.filter(|_| !self.globals.allows_snippets()) {
            let why = "ingress-nginx serves no Ingress with it, unless its ConfigMap has allow-snippet-annotations: \"true\" and \
                annotations-risk-level: Critical";
            self.dropped.get_or_insert(format!("{name}: {why}"));
            critical.iter().for_each(|name| self.tell(name, Verdict::Refused, why));
            return Changes::default();
        }
        if self.text("server-snippet").is_some_and(snippet::server_protects) {
            self.close_for("server-snippet", "server-snippet is refused, and it may keep somebody out".to_owned());
        }
        let Some(text) = self.text("configuration-snippet") else { return Changes::default() };
        match snippet::read(text) {
            Ok(changes)
                if self.granted().iter().any(|name| changes.request.names().any(|changed| *name == changed)) =>
            {
                // ingress-nginx writes what the service says after the snippet, and here it would be the other way around.
                let why = "it changes a header of auth-response-headers, which is what the service says of the client";
                self.close(&format!("configuration-snippet is refused: {why}"));
                self.tell("configuration-snippet", Verdict::Refused, &format!("{why}: nothing of it is served"));
                Changes::default()
            }
            Ok(changes) => {
                match changes.claims.is_empty() {
                    true => self.tell("configuration-snippet", Verdict::Served, "all of it is understood"),
                    false => self.tell(
                        "configuration-snippet",
                        Verdict::Differs,
                        &format!(
                            "what a client says of itself counts only from a trusted proxy (--trusted-proxy, use-forwarded-headers): {}",
                            value::cut(&changes.claims.join(", "))
                        ),
                    ),
                }
                for (field, time_ms) in
                    [("responseTimeout", changes.grpc_read_ms), ("connectTimeout", changes.grpc_connect_ms)]
                {
                    if let Some(time_ms) = time_ms.filter(|_| self.is_grpc()) {
                        self.cluster.insert(field.to_owned(), json!(format!("{time_ms}ms")));
                    }
                }
                if let Some(addresses) = &changes.addresses {
                    self.snippet_addresses(addresses);
                }
                changes
            }
            Err(refused) => {
                let what = value::cut(&refused.what);
                let mut why = format!("it has {what}, which is not understood: nothing of it is served");
                if refused.protects {
                    why.push_str(", and neither are its routes, because it may keep somebody out");
                    self.close(&format!("configuration-snippet is refused: it has {what}"));
                }
                self.tell("configuration-snippet", Verdict::Refused, &why);
                Changes::default()
            }
        }
    }
}
