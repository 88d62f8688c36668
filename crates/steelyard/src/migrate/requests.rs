//! The requests of a comparison that come from Ingresses: those that show how each path is served, and the hosts of a log of ingress-nginx.
//!
//! `lab::requests` reads the files.

use std::borrow::Cow;
use std::collections::HashSet;

use controller::ingress_nginx::{PREFIX, Prefix, prefix_of};
use lab::requests::{Hosts, Recorded};
use serde_json::Value;

use super::sample;

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
        let regex_hosts = regex_hosts(objects);
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
                let is_regex = regex_hosts.contains(&host.to_ascii_lowercase());
                for path in rule["http"]["paths"].as_array().into_iter().flatten() {
                    let service = &path["backend"]["service"];
                    let port = service["port"]["number"].as_u64().map(|number| number.to_string());
                    let port = port.or_else(|| service["port"]["name"].as_str().map(str::to_owned)).unwrap_or_default();
                    let name = format!("[{namespace}-{}-{port}]", service["name"].as_str().unwrap_or_default());
                    let path = path["path"].as_str().unwrap_or("/");
                    let path = if is_regex { literal(path) } else { path }.to_owned();
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

/// An annotation of ingress-nginx.
fn annotation<'i>(ingress: &'i Value, name: &str) -> Option<&'i str> {
    let key = format!("{PREFIX}{name}");
    ingress["metadata"]["annotations"][key.as_str()].as_str().map(str::trim).filter(|text| !text.is_empty())
}

fn is_on(ingress: &Value, name: &str) -> bool {
    annotation(ingress, name).is_some_and(|text| ["1", "t", "T", "true", "TRUE", "True"].contains(&text))
}

/// The hosts all of whose paths are regular expressions: one Ingress with `use-regex` or with a rewrite is enough.
fn regex_hosts(objects: &[Value]) -> HashSet<String> {
    let mut hosts = HashSet::new();
    for ingress in objects.iter().filter(|object| object["kind"] == "Ingress") {
        let target = annotation(ingress, "rewrite-target");
        for rule in ingress["spec"]["rules"].as_array().into_iter().flatten() {
            let mut paths = rule["http"]["paths"].as_array().into_iter().flatten();
            let is_rewritten = |path: &Value| target.is_some_and(|target| path["path"].as_str() != Some(target));
            if is_on(ingress, "use-regex") || paths.any(is_rewritten) {
                hosts.insert(rule["host"].as_str().unwrap_or_default().to_ascii_lowercase());
            }
        }
    }
    hosts
}

/// A path as a request can have it: what HTTP does not allow in it is percent-encoded.
fn target_of(path: &str) -> String {
    let mut target = String::new();
    for byte in path.bytes() {
        match byte {
            b'!'..=b'~' if !b"\"#<>?\\^`{|}".contains(&byte) => target.push(char::from(byte)),
            byte => target.push_str(&format!("%{byte:02X}")),
        }
    }
    if target.starts_with('/') { target } else { format!("/{target}") }
}

/// The targets that show how a path is served: the first one gets all kinds of requests.
fn targets(path: &str, is_regex: bool) -> Vec<String> {
    if !is_regex {
        return vec![target_of(path)];
    }
    let mut all: Vec<String> = sample::samples(path).iter().map(|text| target_of(text)).collect();
    // This may match or not, as an expression that cannot be read.
    all.push(target_of(literal(path)));
    all
}

/// The most requests that are made from Ingresses.
pub(crate) const MADE_MAX: usize = 200_000;

/// The most names of an Ingress' host that are asked.
const OTHER_HOSTS_MAX: usize = 64;

/// The other hosts of an Ingress' host, by `server-alias` and `from-to-www-redirect`.
fn other_hosts(ingress: &Value, host: &str) -> Vec<(String, &'static str)> {
    let aliases = annotation(ingress, "server-alias").unwrap_or_default();
    let aliases = aliases.split([',', ' ', '\n']).map(str::trim).filter(|alias| !alias.is_empty());
    let names = |alias: &str| match alias.strip_prefix('~') {
        Some(pattern) => sample::samples(pattern),
        // `.a.example` is the domain and all names below it.
        None => vec![alias.trim_start_matches('.').replace("*.", "any.")],
    };
    let is_host = |host: &String| {
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    };
    let mut all: Vec<(String, &str)> = aliases
        .take(OTHER_HOSTS_MAX)
        .flat_map(names)
        .filter(is_host)
        .map(|alias| (alias, "an alias of the host"))
        .collect();
    if is_on(ingress, "from-to-www-redirect") {
        let other = host.strip_prefix("www.").map_or_else(|| format!("www.{host}"), str::to_owned);
        all.push((other, "with or without www"));
    }
    all
}

/// The objects with the usual prefix of annotations in place of the one that a flag of ingress-nginx says.
fn with_usual_prefix(objects: &[Value]) -> Cow<'_, [Value]> {
    let prefix = prefix_of(objects);
    if prefix == Prefix::default() {
        return Cow::Borrowed(objects);
    }
    let mut objects = objects.to_vec();
    for annotations in
        objects.iter_mut().filter_map(|object| object.pointer_mut("/metadata/annotations")?.as_object_mut())
    {
        let ours = annotations.iter().filter_map(|(key, value)| Some((prefix.name_of(key)?.to_owned(), value.clone())));
        *annotations = ours.map(|(name, value)| (format!("{PREFIX}{name}"), value)).collect();
    }
    Cow::Owned(objects)
}

/// Requests that show how Ingresses are served: each path as it is, with and without its slash, in capital letters, with more behind it, by other
/// methods, from a script of another origin and of an allowed one, with and without a password, for the canary, on the other names of its host, and
/// over TLS. Of very many Ingresses, it makes the first [`MADE_MAX`] requests and a little more, and it asks at most 64 other names of a host.
pub(crate) fn of_ingresses(objects: &[Value]) -> Vec<Recorded> {
    let objects = &*with_usual_prefix(objects);
    let regex_hosts = regex_hosts(objects);
    let mut all = Vec::new();
    for ingress in objects.iter().filter(|object| object["kind"] == "Ingress") {
        let spec = &ingress["spec"];
        let has_tls = spec["tls"].as_array().is_some_and(|tls| !tls.is_empty());
        for rule in spec["rules"].as_array().into_iter().flatten() {
            let named = rule["host"].as_str().unwrap_or_default();
            let host = if named.is_empty() { "unknown.invalid".to_owned() } else { named.replace("*.", "any.") };
            let is_regex = regex_hosts.contains(&named.to_ascii_lowercase());
            let others = if named.is_empty() { Vec::new() } else { other_hosts(ingress, &host) };
            for path in rule["http"]["paths"].as_array().into_iter().flatten() {
                let targets = targets(path["path"].as_str().unwrap_or("/"), is_regex);
                let Some((target, more)) = targets.split_first() else { continue };
                if all.len() >= MADE_MAX {
                    return distinct(all);
                }
                for is_https in [false, true].into_iter().filter(|is_https| has_tls || !is_https) {
                    of_path(is_https, &host, target, &mut all);
                    of_annotations(is_https, &host, target, ingress, &mut all);
                    let more = more.iter().map(|target| Recorded::get(is_https, &host, target, "the expression"));
                    all.extend(more);
                    for (other, about) in &others {
                        all.push(Recorded::get(is_https, other, target, about));
                        all.push(Recorded::get(is_https, other, &format!("{target}?it=1"), about));
                    }
                    if annotation(ingress, "app-root").is_some() {
                        all.push(Recorded::get(is_https, &host, "/", "the root"));
                    }
                }
            }
        }
    }
    all.push(Recorded::get(false, "unknown.invalid", "/", "an unknown host"));
    distinct(all)
}

fn distinct(mut all: Vec<Recorded>) -> Vec<Recorded> {
    let mut seen = HashSet::new();
    all.retain(|wanted| seen.insert((wanted.method.clone(), wanted.url(), wanted.headers.clone())));
    all
}

/// The Ingresses whose clients keep their endpoints by a cookie.
pub(crate) fn with_sessions(objects: &[Value]) -> usize {
    let is_it = |object: &&Value| {
        object["kind"] == "Ingress"
            && annotation(object, "affinity").is_some_and(|text| text.eq_ignore_ascii_case("cookie"))
    };
    objects.iter().filter(is_it).count()
}

fn preflight(origin: &str) -> Vec<(String, String)> {
    vec![("Origin".to_owned(), origin.to_owned()), ("Access-Control-Request-Method".to_owned(), "PUT".to_owned())]
}

fn of_path(is_https: bool, host: &str, path: &str, all: &mut Vec<Recorded>) {
    let bare = path.trim_end_matches('/');
    let get =
        |target: &str, about: &str| Recorded::get(is_https, host, if target.is_empty() { "/" } else { target }, about);
    all.push(get(path, "the path"));
    all.push(get(bare, "without the slash"));
    all.push(get(&format!("{bare}/"), "with a slash"));
    all.push(get(&format!("{bare}/more/of?it=1"), "more behind it"));
    let last = if bare.is_empty() { "/" } else { bare };
    all.push(get(&format!("{last}more"), "more in the last segment"));
    all.push(get(&path.to_ascii_uppercase(), "in capital letters"));
    all.push(get(&format!("{bare}//x"), "two slashes"));
    all.push(get(&format!("{bare}/./y/../x"), "dots"));
    all.push(get(&format!("{bare}/a%2Fb%20c"), "escapes"));
    for method in ["HEAD", "POST", "PUT", "DELETE"] {
        all.push(Recorded { method: method.to_owned(), ..get(path, method) });
    }
    let origin = "https://script.example";
    let with = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    all.push(Recorded { headers: vec![with("Origin", origin)], ..get(path, "from a script of another origin") });
    let method = "OPTIONS".to_owned();
    all.push(Recorded { method, headers: preflight(origin), ..get(path, "a preflight request") });
    // `nobody:nothing`
    let nobody = with("Authorization", "Basic bm9ib2R5Om5vdGhpbmc=");
    all.push(Recorded { headers: vec![nobody], ..get(path, "a wrong password") });
}

/// What the annotations of an Ingress make different: an origin that may use it, and who is sent to its canary.
fn of_annotations(is_https: bool, host: &str, path: &str, ingress: &Value, all: &mut Vec<Recorded>) {
    let annotation = |name: &str| annotation(ingress, name);
    let get = |about: &str| Recorded::get(is_https, host, path, about);
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
    fn annotations_with_another_prefix() {
        let ingress = json!({"kind": "Ingress", "metadata": {"annotations": {"foo.io/canary-by-header": "x-canary"}}, "spec": {
            "rules": [{"host": "a.example", "http": {"paths": [{"path": "/"}]}}],
        }});
        let controller = json!({"kind": "Deployment", "spec": {"template": {"spec": {"containers": [
            {"args": ["/nginx-ingress-controller", "--annotations-prefix=foo.io"]}
        ]}}}});
        let has_canary = |objects: &[Value]| {
            let found = of_ingresses(objects);
            found.iter().any(|wanted| wanted.headers.iter().any(|(name, _)| name == "x-canary"))
        };
        assert!(has_canary(&[ingress.clone(), controller]));
        assert!(!has_canary(&[ingress]));
    }

    #[test]
    fn requests_of_ingresses() {
        let ingress = json!({"kind": "Ingress", "metadata": {"annotations": {"nginx.ingress.kubernetes.io/use-regex": "true"}}, "spec": {
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

    fn urls(host: &str, paths: &[&str], annotations: Value) -> Vec<String> {
        let annotations: serde_json::Map<String, Value> = annotations
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, text)| (format!("nginx.ingress.kubernetes.io/{name}"), text.clone()))
            .collect();
        let paths: Vec<Value> = paths.iter().map(|path| json!({"path": path})).collect();
        let rules = json!([{"host": host, "http": {"paths": paths}}]);
        let ingress = json!({"kind": "Ingress", "metadata": {"annotations": annotations}, "spec": {"rules": rules}});
        let found = of_ingresses(&[ingress]);
        let is_target = |target: &str| target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic());
        assert!(found.iter().all(|wanted| is_target(&wanted.target)), "{found:?}");
        found.iter().filter(|wanted| wanted.method == "GET").map(Recorded::url).collect()
    }

    #[test]
    fn paths_with_dots_are_asked_for_as_they_are() {
        let check = |path: &str, target: &str| {
            let found = urls("a.example", &[path], json!({}));
            assert!(found.contains(&format!("http://a.example{target}")), "{path}: {found:?}");
        };
        check("/robots.txt", "/robots.txt");
        check("/.well-known/acme-challenge", "/.well-known/acme-challenge");
        check("/.x", "/.x");
        check("/", "/more");
        check("/a+b(c)", "/a+b(c)");
        check("/a b?", "/a%20b%3F");
    }

    #[test]
    fn expressions_are_asked_for_by_what_they_match() {
        let found = urls("a.example", &["/api/v[0-9]+/(users|groups)", "/x.txt"], json!({"use-regex": "true"}));
        for target in ["/api/v1/users", "/api/v11/groups", "/api/v", "/xatxt"] {
            assert!(found.contains(&format!("http://a.example{target}")), "{target}: {found:?}");
        }
        // A rewrite makes expressions of paths, too.
        assert!(
            urls("a.example", &["/b/[0-9]"], json!({"rewrite-target": "/c"}))
                .contains(&"http://a.example/b/1".to_owned())
        );
        // One that cannot be read.
        assert!(
            urls("a.example", &["/b/(?!x)"], json!({"use-regex": "true"})).contains(&"http://a.example/b/".to_owned())
        );
    }

    #[test]
    fn the_other_names_of_a_host() {
        let annotations = json!({
            "server-alias": "b.example, *.c.example .e.example ~^d\\d\\.example$",
            "from-to-www-redirect": "true",
        });
        let found = urls("a.example", &["/x"], annotations);
        for host in ["b.example", "any.c.example", "e.example", "d1.example", "www.a.example"] {
            assert!(found.contains(&format!("http://{host}/x")), "{host}: {found:?}");
        }
        assert!(found.contains(&"http://www.a.example/x?it=1".to_owned()));
        let found = urls("www.a.example", &["/x"], json!({"from-to-www-redirect": "true"}));
        assert!(found.contains(&"http://a.example/x".to_owned()), "{found:?}");
    }
}
