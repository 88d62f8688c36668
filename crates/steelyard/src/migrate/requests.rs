//! The requests of a comparison that come from Ingresses: those that show how each path is served, and the hosts of a log of ingress-nginx.
//!
//! `lab::requests` reads the files.

use lab::requests::{Hosts, Recorded};
use serde_json::Value;

/// The hosts behind the names by which the log of ingress-nginx calls Services: `NAMESPACE-SERVICE-PORT`.
#[derive(Debug, Default)]
pub(crate) struct Upstreams(Vec<Upstream>);

#[derive(Debug)]
struct Upstream {
    /// In brackets, as in a line.
    name: String,
    is_https: bool,
    host: String,
    path: String,
}

impl Upstreams {
    /// Those of Ingresses.
    pub(crate) fn of(objects: &[Value]) -> Self {
        let mut all = Vec::new();
        for ingress in objects.iter().filter(|object| object["kind"] == "Ingress") {
            let namespace = ingress["metadata"]["namespace"].as_str().unwrap_or("default");
            let tls = ingress["spec"]["tls"].as_array().map(Vec::as_slice).unwrap_or_default();
            for rule in ingress["spec"]["rules"].as_array().into_iter().flatten() {
                let Some(host) = rule["host"].as_str() else { continue };
                let is_https = tls.iter().any(|one| match one["hosts"].as_array() {
                    Some(hosts) => hosts.iter().any(|named| named == host),
                    None => true,
                });
                for path in rule["http"]["paths"].as_array().into_iter().flatten() {
                    let service = &path["backend"]["service"];
                    let port = service["port"]["number"].as_u64().map(|number| number.to_string());
                    let port = port.or_else(|| service["port"]["name"].as_str().map(str::to_owned)).unwrap_or_default();
                    let name = format!("[{namespace}-{}-{port}]", service["name"].as_str().unwrap_or_default());
                    let path = literal(path["path"].as_str().unwrap_or("/")).to_owned();
                    all.push(Upstream { name, is_https, host: host.replace("*.", "any."), path });
                }
            }
        }
        Self(all)
    }
}

impl Hosts for Upstreams {
    /// That of the longest path that leads to a Service that the line names.
    fn host_of(&self, line: &str, target: &str) -> Option<(bool, String)> {
        let Self(all) = self;
        let fits = all.iter().filter(|one| target.starts_with(&one.path) && line.contains(&one.name));
        fits.max_by_key(|one| one.path.len()).map(|one| (one.is_https, one.host.clone()))
    }
}

/// Of an expression, the text before its first sign.
fn literal(path: &str) -> &str {
    path.split(['(', '[', '.', '*', '+', '?', '\\', '|', '^', '$', '{']).next().unwrap_or("/")
}

/// Requests that show how Ingresses are served: each path as it is, with and without its slash, in capital letters, with more behind it, by other
/// methods, from a script of another origin and of an allowed one, with and without a password, for the canary, and over TLS.
pub(crate) fn of_ingresses(objects: &[Value]) -> Vec<Recorded> {
    let mut all = Vec::new();
    for ingress in objects.iter().filter(|object| object["kind"] == "Ingress") {
        let spec = &ingress["spec"];
        let has_tls = spec["tls"].as_array().is_some_and(|tls| !tls.is_empty());
        for rule in spec["rules"].as_array().into_iter().flatten() {
            let host = rule["host"].as_str().unwrap_or("unknown.invalid").replace("*.", "any.");
            for path in rule["http"]["paths"].as_array().into_iter().flatten() {
                let path = path["path"].as_str().unwrap_or("/");
                for is_https in [false, true].into_iter().filter(|is_https| has_tls || !is_https) {
                    of_path(is_https, &host, path, &mut all);
                    of_annotations(is_https, &host, path, ingress, &mut all);
                }
            }
        }
    }
    all.push(Recorded::get(false, "unknown.invalid", "/", "an unknown host"));
    let mut seen = std::collections::HashSet::new();
    all.retain(|wanted| seen.insert((wanted.method.clone(), wanted.url(), wanted.headers.clone())));
    all
}

fn preflight(origin: &str) -> Vec<(String, String)> {
    vec![("Origin".to_owned(), origin.to_owned()), ("Access-Control-Request-Method".to_owned(), "PUT".to_owned())]
}

fn of_path(is_https: bool, host: &str, path: &str, all: &mut Vec<Recorded>) {
    let literal = literal(path);
    let bare = literal.trim_end_matches('/');
    let get =
        |target: &str, about: &str| Recorded::get(is_https, host, if target.is_empty() { "/" } else { target }, about);
    all.push(get(literal, "the path"));
    all.push(get(bare, "without the slash"));
    all.push(get(&format!("{bare}/"), "with a slash"));
    all.push(get(&format!("{bare}/more/of?it=1"), "more behind it"));
    all.push(get(&format!("{bare}more"), "more in the last segment"));
    all.push(get(&literal.to_ascii_uppercase(), "in capital letters"));
    all.push(get(&format!("{bare}//x"), "two slashes"));
    all.push(get(&format!("{bare}/./y/../x"), "dots"));
    all.push(get(&format!("{bare}/a%2Fb%20c"), "escapes"));
    for method in ["HEAD", "POST", "PUT", "DELETE"] {
        all.push(Recorded { method: method.to_owned(), ..get(literal, method) });
    }
    let origin = "https://script.example";
    let with = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    all.push(Recorded { headers: vec![with("Origin", origin)], ..get(literal, "from a script of another origin") });
    let method = "OPTIONS".to_owned();
    all.push(Recorded { method, headers: preflight(origin), ..get(literal, "a preflight request") });
    // `nobody:nothing`
    let nobody = with("Authorization", "Basic bm9ib2R5Om5vdGhpbmc=");
    all.push(Recorded { headers: vec![nobody], ..get(literal, "a wrong password") });
}

/// What the annotations of an Ingress make different: an origin that may use it, and who is sent to its canary.
fn of_annotations(is_https: bool, host: &str, path: &str, ingress: &Value, all: &mut Vec<Recorded>) {
    let annotation = |name: &str| {
        let key = format!("nginx.ingress.kubernetes.io/{name}");
        ingress["metadata"]["annotations"][key.as_str()].as_str().map(str::trim).filter(|text| !text.is_empty())
    };
    let get = |about: &str| {
        let target = literal(path);
        Recorded::get(is_https, host, if target.is_empty() { "/" } else { target }, about)
    };
    let origins = annotation("cors-allow-origin").unwrap_or_default().split(',').map(str::trim);
    if let Some(origin) = origins.into_iter().find(|origin| origin.contains("://")) {
        let origin = origin.replace('*', "any");
        let headers = vec![("Origin".to_owned(), origin.clone())];
        all.push(Recorded { headers, ..get("from a script of an allowed origin") });
        let method = "OPTIONS".to_owned();
        all.push(Recorded { method, headers: preflight(&origin), ..get("a preflight request of an allowed origin") });
    }
    if let Some(name) = annotation("canary-by-header") {
        let own = annotation("canary-by-header-value");
        for value in ["always", "never"].into_iter().chain(own) {
            all.push(Recorded {
                headers: vec![(name.to_owned(), value.to_owned())],
                ..get("the header of the canary")
            });
        }
    }
    if let Some(name) = annotation("canary-by-cookie") {
        for value in ["always", "never"] {
            let headers = vec![("Cookie".to_owned(), format!("{name}={value}"))];
            all.push(Recorded { headers, ..get("the cookie of the canary") });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_host_of_an_upstream() {
        let ingress = json!({"kind": "Ingress", "metadata": {"namespace": "shop"}, "spec": {
            "tls": [{"hosts": ["b.example"]}],
            "rules": [
                {"host": "a.example", "http": {"paths": [{"path": "/", "backend": {"service": {"name": "web", "port": {"number": 80}}}}]}},
                {"host": "b.example", "http": {"paths": [{"path": "/b", "backend": {"service": {"name": "web", "port": {"number": 80}}}}]}},
            ],
        }});
        let upstreams = Upstreams::of(&[ingress]);
        let line =
            r#"::1 - - [x] "GET / HTTP/1.1" 200 1 "-" "-" 80 0.001 [shop-web-80] [] 10.0.0.2:80 1 0.001 200 abc"#;
        assert_eq!(upstreams.host_of(line, "/x"), Some((false, "a.example".to_owned())));
        assert_eq!(upstreams.host_of(line, "/b/x"), Some((true, "b.example".to_owned())));
        assert_eq!(upstreams.host_of("[other-80]", "/x"), None);
    }

    #[test]
    fn requests_of_ingresses() {
        let ingress = json!({"kind": "Ingress", "spec": {
            "tls": [{}],
            "rules": [{"host": "*.a.example", "http": {"paths": [{"path": "/b(/|$)(.*)"}]}}],
        }});
        let found = of_ingresses(&[ingress]);
        let has = |method: &str, url: &str| found.iter().any(|wanted| wanted.method == method && wanted.url() == url);
        assert!(
            has("GET", "http://any.a.example/b")
                && has("GET", "https://any.a.example/b/")
                && has("GET", "http://any.a.example/B")
        );
        assert!(has("OPTIONS", "https://any.a.example/b") && has("HEAD", "http://any.a.example/b"));
        assert!(has("GET", "http://unknown.invalid/"));
        assert!(has("POST", "http://any.a.example/b"));
    }
}
