//! Which scripts of other origins may use the routes.

use serde_json::json;

use super::super::value;
use super::{Reading, Verdict};

impl Reading<'_> {
    pub(super) fn cors(&mut self) {
        const OF_CORS: [&str; 6] = [
            "cors-allow-origin",
            "cors-allow-methods",
            "cors-allow-headers",
            "cors-allow-credentials",
            "cors-expose-headers",
            "cors-max-age",
        ];
        if !self.bool("enable-cors", false) {
            return self.idle(&OF_CORS, "without enable-cors, it has no effect");
        }
        let words = |this: &Self, name: &str, default: &str| -> Vec<String> {
            value::words(this.text(name).unwrap_or(default)).map(str::to_owned).collect()
        };
        let mut origins = words(self, "cors-allow-origin", "*");
        let is_any = origins.iter().any(|origin| origin == "*");
        if is_any {
            origins = vec!["*".to_owned()];
        }
        let (known, others): (Vec<String>, Vec<String>) =
            origins.into_iter().partition(|origin| origin == "*" || model::OriginMatcher::parse(origin).is_some());
        if !others.is_empty() {
            let why = format!(
                "an origin begins with http:// or https://; these are left out: {}",
                value::cut(&others.join(", "))
            );
            self.tell("cors-allow-origin", Verdict::Refused, &why);
        }
        let credentials = self.bool("cors-allow-credentials", true) && !is_any;
        let names = words(
            self,
            "cors-allow-headers",
            "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization",
        );
        let age = self.int("cors-max-age").unwrap_or(1_728_000).min(31_536_000);
        let mut cors = json!({
            "origins": known,
            "credentials": credentials,
            "methods": all_or_these(words(self, "cors-allow-methods", "GET, PUT, POST, DELETE, PATCH, OPTIONS")),
            "headers": all_or_these(names),
            "maxAge": format!("{age}s"),
        });
        let expose = words(self, "cors-expose-headers", "");
        if !expose.is_empty() {
            if credentials && expose.iter().any(|name| name == "*") {
                let why = "with `*`, scripts may read all headers; browsers that send credentials take `*` for a name with ingress-nginx";
                self.tell("cors-expose-headers", Verdict::Differs, why);
            }
            cors["expose"] = json!(all_or_these(expose));
        }
        if !known.is_empty() {
            self.route.insert("cors".to_owned(), cors);
        }
    }
}

/// Names, or `*` alone if it is one of them.
fn all_or_these(names: Vec<String>) -> Vec<String> {
    if names.iter().any(|name| name == "*") { vec!["*".to_owned()] } else { names }
}
