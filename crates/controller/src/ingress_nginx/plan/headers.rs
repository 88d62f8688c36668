//! Headers of requests and responses: those of snippets, and those of ConfigMaps that annotations and the ConfigMap of ingress-nginx name.

use model::HeaderChanges;

use super::super::header_map::{self, HeaderMap};
use super::super::options::Globals;
use super::super::snippet::{Changes, Headers, with_variables};
use super::super::value;
use super::{Compat, Known, Reading, Verdict, spec};

impl Reading<'_> {
    /// The headers of the ConfigMap that an annotation names. The plan is made again when it changes.
    ///
    /// # Errors
    /// Returns why there are none.
    pub(super) fn header_map(&mut self, key: &str, reference: &str) -> Result<HeaderMap, String> {
        let (namespace, name) = header_map::named(reference, &self.namespace);
        // ingress-nginx asks where the ConfigMap of auth-proxy-set-headers is, and only documents it of that of custom-headers.
        let may_be_elsewhere = self.globals.bool("allow-cross-namespace-resources", false)
            || (self.compat == Compat::Exact && key == "custom-headers");
        if namespace != self.namespace && !may_be_elsewhere {
            return Err(format!(
                "the ConfigMap {reference} is in another namespace: copy it, or set allow-cross-namespace-resources: \"true\" in the ConfigMap of \
                 the controller"
            ));
        }
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let found = self.maps.find(&namespace, &name);
        self.named.push((namespace, name));
        found
    }

    /// Answers all requests with 503, as ingress-nginx does where it cannot do what an annotation says.
    pub(super) fn deny(&mut self, name: &str, why: &str) {
        self.unavailable.get_or_insert_with(|| format!("{name}: {why}"));
        self.tell(name, Verdict::Refused, &format!("{why}; its requests get 503, as with ingress-nginx"));
    }

    /// Changes to headers, with those of a snippet.
    pub(super) fn headers(&mut self, changes: Changes, known: &mut Known) {
        let mut request = self.globals.request_headers.clone();
        request.extend(&changes.request);
        if let Some(field) = request.field() {
            self.route.insert("requestHeaders".to_owned(), field);
        }
        let mut response = changes.response;
        let hidden = self.globals.text("hide-headers").into_iter().flat_map(value::words);
        response.hide(&hidden.map(str::to_ascii_lowercase).collect::<Vec<_>>());
        if let Some(field) = response.field() {
            self.route.insert("responseHeaders".to_owned(), field);
        }
        let mut all = self.globals.of_all_responses();
        // A snippet that names a server has the last word, as there.
        if let Some(server) = response.field().as_ref().and_then(|field| field["set"]["server"].as_str()) {
            let mut named = Headers::default();
            named.set("server", server);
            all.extend(&named);
        }
        if let Some(reference) = self.text("custom-headers").map(str::to_owned) {
            match self.custom_headers(&reference, known) {
                Ok(custom) => all.extend(&custom),
                Err(why) => self.deny("custom-headers", &why),
            }
        }
        if let Some(field) = all.field() {
            self.route.insert("allResponseHeaders".to_owned(), field);
        }
    }

    /// # Errors
    /// Returns why all requests get 503.
    fn custom_headers(&mut self, reference: &str, known: &mut Known) -> Result<Headers, String> {
        if !reference.contains('/') {
            return Err("write NAMESPACE/NAME: ingress-nginx finds no ConfigMap without its namespace".to_owned());
        }
        let map = self.header_map("custom-headers", reference)?;
        let allowed: Vec<&str> =
            self.globals.text("global-allowed-response-headers").into_iter().flat_map(value::words).collect();
        for (name, text) in map.iter() {
            // Case counts, as there.
            if !allowed.contains(&name) {
                return Err(format!(
                    "the header {name} is not allowed: add it to global-allowed-response-headers in the ConfigMap of the controller"
                ));
            }
            if text.is_empty() || !text.bytes().all(is_plain) {
                return Err(format!("ingress-nginx does not take the value of the header {name}"));
            }
        }
        let (headers, wrong) = read(&map, "allResponseHeaders", known);
        match wrong.into_iter().next() {
            Some(wrong) => Err(wrong),
            None => Ok(headers),
        }
    }
}

/// Whether ingress-nginx takes this byte in a value of custom-headers.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_ :;.,\\/\"'?!(){}[]@<>=-+*#$&`|~^%".contains(&byte)
}

/// The changes to headers that a ConfigMap stands for, and what of it cannot be served. `field` is the field of a TrafficPolicy for them.
fn read(map: &HeaderMap, field: &str, known: &mut Known) -> (Headers, Vec<String>) {
    let mut headers = Headers::default();
    let mut wrong = Vec::new();
    for (name, text) in map.iter() {
        let mut one = Headers::default();
        match with_variables(text) {
            Err(why) => {
                wrong.push(format!("the header {name}: {why} is not known here"));
                continue;
            }
            Ok(text) => one.set_or_remove(name, text.trim()),
        }
        let changes = one.field().unwrap_or_default();
        match known.read(&spec(field, changes)) {
            Ok(_) => headers.extend(&one),
            Err(why) => wrong.push(format!("the header {name}: {}", value::cut(&why))),
        }
    }
    (headers, wrong)
}

impl Globals {
    /// Reads the ConfigMaps that two of the keys name. `known` remembers each header: this is asked for with every change of the cluster.
    #[must_use]
    pub fn with_header_maps(mut self, maps: header_map::HeaderMaps<'_>, known: &mut Known) -> Self {
        for key in header_map::OPTIONS {
            let Some(reference) = self.text(key).map(str::to_owned) else { continue };
            let field = if key == "add-headers" { "allResponseHeaders" } else { "requestHeaders" };
            // ingress-nginx finds none without its namespace.
            let (namespace, name) = header_map::named(&reference, "");
            let (headers, wrong) = match maps.find(namespace, name) {
                Ok(map) => read(&map, field, known),
                // As there, nothing comes of it.
                Err(why) => (Headers::default(), vec![why]),
            };
            match key {
                "add-headers" => self.response_headers = headers,
                _ => self.request_headers = headers,
            }
            if let Some(finding) = self.findings.iter_mut().find(|finding| finding.key == key && !wrong.is_empty()) {
                (finding.verdict, finding.says) = (Verdict::Refused, wrong.join("; "));
            }
        }
        self
    }

    /// What becomes of the headers of all responses: those of `add-headers`, and no `Server` unless it passes.
    fn of_all_responses(&self) -> Headers {
        let mut all = self.response_headers.clone();
        let has_own = all.names().any(|name| name == "server");
        if !self.passes_server() && !has_own {
            all.set_or_remove("server", "");
        }
        all
    }

    /// The same, read.
    pub fn all_response_headers(&self) -> HeaderChanges {
        let Some(field) = self.of_all_responses().field() else { return HeaderChanges::default() };
        // Each of them was read before, so this can be read.
        let policy = config::TrafficPolicy::read(&spec("allResponseHeaders", field));
        policy.map(|policy| policy.all_response_headers().clone()).unwrap_or_default()
    }
}
