//! The requests of a comparison: from a list, an access log of nginx, a HAR file, or the Ingresses themselves.

mod har;
mod logged;

use serde_json::Value;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// As on the wire.
    pub(crate) method: String,
    /// Over TLS.
    pub(crate) is_https: bool,
    /// `Host`, perhaps with a port.
    pub(crate) host: String,
    /// The path with its query.
    pub(crate) target: String,
    /// Names and values.
    pub(crate) headers: Vec<(String, String)>,
    /// The body.
    pub(crate) body: Vec<u8>,
    /// What it is to show, for people; empty if it was given.
    pub(crate) about: String,
}

impl Wanted {
    fn get(is_https: bool, host: &str, target: &str, about: &str) -> Self {
        Self {
            method: "GET".to_owned(),
            is_https,
            host: host.to_owned(),
            target: target.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            about: about.to_owned(),
        }
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        format!("{}://{}{}", if self.is_https { "https" } else { "http" }, self.host, self.target)
    }

    /// Whether it changes nothing at an endpoint (RFC 9110 section 9.2.1).
    pub(crate) fn is_safe(&self) -> bool {
        ["GET", "HEAD", "OPTIONS"].contains(&self.method.as_str())
    }
}

/// The requests of a file.
#[derive(Debug, Default)]
pub(crate) struct Read {
    /// In their order.
    pub(crate) wanted: Vec<Wanted>,
    /// How many entries are no requests that can be sent, and where the first one is and why.
    pub(crate) skipped: usize,
    /// See `skipped`.
    pub(crate) first: String,
}

impl Read {
    fn skip(&mut self, why: String) {
        self.skipped += 1;
        if self.first.is_empty() {
            self.first = why;
        }
    }
}

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

    /// Scheme and host of a line of the log for this target: of the longest path that leads to a Service that the line names.
    fn host_of(&self, line: &str, target: &str) -> Option<(bool, String)> {
        let Self(all) = self;
        let fits = all.iter().filter(|one| target.starts_with(&one.path) && line.contains(&one.name));
        fits.max_by_key(|one| one.path.len()).map(|one| (one.is_https, one.host.clone()))
    }
}

/// Reads requests in whichever form they have. `host` is that of requests that name none, as in an access log; without it, `upstreams` may know.
///
/// # Errors
/// Returns what is wrong, and where.
pub(crate) fn read(text: &str, host: Option<&str>, upstreams: &Upstreams) -> Result<Read, String> {
    let text = text.trim_start_matches('\u{feff}');
    if text.trim_start().starts_with('{') {
        match serde_json::from_str::<Value>(text) {
            Ok(file) if !file["log"].is_null() => return har::read(&file, host),
            // A log with one line.
            Ok(_) => {}
            Err(error) if text.trim().lines().nth(1).is_none() => {
                return Err(format!("neither a list, nor an access log, nor a HAR file: {error}"));
            }
            Err(_) => {}
        }
    }
    let mut read = Read::default();
    let mut seen = std::collections::HashSet::new();
    for (number, line) in text.lines().enumerate().map(|(number, line)| (number + 1, line.trim_end())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if is_listed(line) {
            read.wanted.push(listed(line).map_err(|why| format!("line {number}: {why}"))?);
        } else if line.contains('"') {
            match logged::read(line, host, upstreams) {
                // A log has the same request again and again.
                Ok(wanted) => {
                    let is_new = seen.insert((wanted.method.clone(), wanted.url()));
                    read.wanted.extend(is_new.then_some(wanted));
                }
                Err(why) => read.skip(format!("line {number}: {why}")),
            }
        } else {
            return Err(format!("line {number}: {FORM}"));
        }
    }
    if read.wanted.is_empty() && read.skipped > 0 {
        return Err(format!("none of its {} entries is a request that can be sent; {}", read.skipped, read.first));
    }
    Ok(read)
}

const FORM: &str = "write METHOD URL, such as GET https://shop.example.com/, and headers after tabs";

/// Whether a line is one of a list: a method and a URL.
fn is_listed(line: &str) -> bool {
    let mut words = line.split([' ', '\t']);
    let is_method =
        words.next().is_some_and(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase()));
    is_method && words.next().is_some_and(|word| word.contains("://"))
}

/// `GET https://shop.example.com/a?b`, then headers after tabs: `Cookie: a=b`.
fn listed(line: &str) -> Result<Wanted, String> {
    let mut parts = line.split('\t');
    let (method, url) = parts.next().and_then(|first| first.trim().split_once(' ')).ok_or(FORM)?;
    let url = url.trim();
    let mut wanted = of_url(method, url).filter(|_| !url.contains(' ')).ok_or(FORM)?;
    for header in parts.filter(|part| !part.trim().is_empty()) {
        let (name, value) = header.split_once(':').ok_or(FORM)?;
        wanted.headers.push((name.trim().to_owned(), value.trim().to_owned()));
    }
    Ok(wanted)
}

fn of_url(method: &str, url: &str) -> Option<Wanted> {
    let (scheme, rest) = url.split_once("://")?;
    let is_https = match scheme {
        "http" => false,
        "https" => true,
        _ => return None,
    };
    let (authority, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    // A browser has already turned a name and a password into a header.
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let target = target.split('#').next().unwrap_or_default();
    let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
    let is_method =
        !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_alphabetic() || b"-_".contains(&byte));
    let is_host =
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte));
    let target = escaped(&target, TARGET);
    (is_method && is_host).then(|| Wanted { method: method.to_owned(), ..Wanted::get(is_https, host, &target, "") })
}

/// What a target has besides letters and digits (RFC 3986), and what many clients send in it.
const TARGET: &[u8] = b"-._~:/?[]@!$&'()*+,;=%|";

/// Escapes all bytes but letters, digits and these.
fn escaped(text: &str, kept: &[u8]) -> String {
    let one = |byte: u8| match byte.is_ascii_alphanumeric() || kept.contains(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

/// Of an expression, the text before its first sign.
fn literal(path: &str) -> &str {
    path.split(['(', '[', '.', '*', '+', '?', '\\', '|', '^', '$', '{']).next().unwrap_or("/")
}

/// Requests that show how Ingresses are served: each path as it is, with and without its slash, in capital letters, with more behind it, by other
/// methods, from a script of another origin and of an allowed one, with and without a password, for the canary, and over TLS.
pub(crate) fn of_ingresses(objects: &[Value]) -> Vec<Wanted> {
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
    all.push(Wanted::get(false, "unknown.invalid", "/", "an unknown host"));
    let mut seen = std::collections::HashSet::new();
    all.retain(|wanted| seen.insert((wanted.method.clone(), wanted.url(), wanted.headers.clone())));
    all
}

fn preflight(origin: &str) -> Vec<(String, String)> {
    vec![("Origin".to_owned(), origin.to_owned()), ("Access-Control-Request-Method".to_owned(), "PUT".to_owned())]
}

fn of_path(is_https: bool, host: &str, path: &str, all: &mut Vec<Wanted>) {
    let literal = literal(path);
    let bare = literal.trim_end_matches('/');
    let get =
        |target: &str, about: &str| Wanted::get(is_https, host, if target.is_empty() { "/" } else { target }, about);
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
        all.push(Wanted { method: method.to_owned(), ..get(literal, method) });
    }
    let origin = "https://script.example";
    let with = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    all.push(Wanted { headers: vec![with("Origin", origin)], ..get(literal, "from a script of another origin") });
    let method = "OPTIONS".to_owned();
    all.push(Wanted { method, headers: preflight(origin), ..get(literal, "a preflight request") });
    // `nobody:nothing`
    let nobody = with("Authorization", "Basic bm9ib2R5Om5vdGhpbmc=");
    all.push(Wanted { headers: vec![nobody], ..get(literal, "a wrong password") });
}

/// What the annotations of an Ingress make different: an origin that may use it, and who is sent to its canary.
fn of_annotations(is_https: bool, host: &str, path: &str, ingress: &Value, all: &mut Vec<Wanted>) {
    let annotation = |name: &str| {
        let key = format!("nginx.ingress.kubernetes.io/{name}");
        ingress["metadata"]["annotations"][key.as_str()].as_str().map(str::trim).filter(|text| !text.is_empty())
    };
    let get = |about: &str| {
        let target = literal(path);
        Wanted::get(is_https, host, if target.is_empty() { "/" } else { target }, about)
    };
    let origins = annotation("cors-allow-origin").unwrap_or_default().split(',').map(str::trim);
    if let Some(origin) = origins.into_iter().find(|origin| origin.contains("://")) {
        let origin = origin.replace('*', "any");
        let headers = vec![("Origin".to_owned(), origin.clone())];
        all.push(Wanted { headers, ..get("from a script of an allowed origin") });
        let method = "OPTIONS".to_owned();
        all.push(Wanted { method, headers: preflight(&origin), ..get("a preflight request of an allowed origin") });
    }
    if let Some(name) = annotation("canary-by-header") {
        let own = annotation("canary-by-header-value");
        for value in ["always", "never"].into_iter().chain(own) {
            all.push(Wanted { headers: vec![(name.to_owned(), value.to_owned())], ..get("the header of the canary") });
        }
    }
    if let Some(name) = annotation("canary-by-cookie") {
        for value in ["always", "never"] {
            let headers = vec![("Cookie".to_owned(), format!("{name}={value}"))];
            all.push(Wanted { headers, ..get("the cookie of the canary") });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_of_every_form() {
        let check = |text: &str, expect: &[&str]| {
            let host = text.contains("HTTP/1.1").then_some("a.example");
            let found = read(text, host, &Upstreams::default()).unwrap_or_else(|why| panic!("{text}: {why}")).wanted;
            let told: Vec<String> =
                found.iter().map(|wanted| format!("{} {} {:?}", wanted.method, wanted.url(), wanted.headers)).collect();
            assert_eq!(told, expect, "{text}");
        };
        check(
            "# a list\n\nGET https://b.example:8443/x?y\tA: b\tC: d\n",
            &["GET https://b.example:8443/x?y [(\"A\", \"b\"), (\"C\", \"d\")]"],
        );
        check("GET http://b.example?x", &["GET http://b.example/?x []"]);
        // A quote in a header is no sign of a log.
        check(
            "GET http://b.example/\tIf-None-Match: \"x\"",
            &["GET http://b.example/ [(\"If-None-Match\", \"\\\"x\\\"\")]"],
        );
        check("GET http://[2001:db8::1]:80/a|b^c", &["GET http://[2001:db8::1]:80/a|b%5Ec []"]);
        check(
            r#"10.0.0.1 - - [24/Nov/2026:10:00:00 +0000] "GET /a?b=%20 HTTP/1.1" 200 12 "-" "curl" 80 0.001 [x] [] 10.0.0.2:80 12 0.001 200 abc"#,
            &["GET http://a.example/a?b=%20 []"],
        );
        check(
            r#"{"log": {"entries": [{"request": {"method": "POST", "url": "https://b.example/x#y", "headers": [{"name": ":path", "value": "/x"}, {"name": "Host", "value": "b"}, {"name": "a", "value": "b"}], "postData": {"text": "body"}}}]}}"#,
            &["POST https://b.example/x [(\"a\", \"b\")]"],
        );
    }

    #[test]
    fn what_is_no_request() {
        let check = |text: &str, part: &str| {
            let why = read(text, None, &Upstreams::default()).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        };
        check("GET /x", "line 1: write METHOD URL");
        check("GET ftp://a/", "METHOD URL");
        check("GET http://a/x y", "METHOD URL");
        check(r#"1.1.1.1 - - [x] "GET /a HTTP/1.1" 200 0"#, "--host");
        check(r#"1.1.1.1 - - [x] "\x16\x03" 400 0"#, "none of its 1 entries");
        check("{", "HAR");
        check("{\"log\": {}}", "log.entries");
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
