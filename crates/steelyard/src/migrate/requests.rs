//! The requests of a comparison: from a list, an access log of nginx, a HAR file, or the Ingresses themselves.

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

/// Reads requests in whichever form they have. `host` is that of requests that name none, as in an access log.
///
/// # Errors
/// Returns what is wrong, and where.
pub(crate) fn read(text: &str, host: Option<&str>) -> Result<Vec<Wanted>, String> {
    if text.trim_start().starts_with('{') {
        return har(text);
    }
    let mut all = Vec::new();
    for (number, line) in text.lines().enumerate().map(|(number, line)| (number + 1, line.trim_end())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wanted = match line.split_once(" \"") {
            // The path of a list has no quotes and no spaces.
            Some((_, rest)) => logged(rest, host),
            None => listed(line),
        };
        all.push(wanted.map_err(|why| format!("line {number}: {why}"))?);
    }
    Ok(all)
}

/// `GET https://shop.example.com/a?b`, then headers after tabs: `Cookie: a=b`.
fn listed(line: &str) -> Result<Wanted, String> {
    let form = "write METHOD URL, such as GET https://shop.example.com/, and headers after tabs";
    let mut parts = line.split('\t');
    let (method, url) = parts.next().and_then(|first| first.trim().split_once(' ')).ok_or(form)?;
    let mut wanted = of_url(method, url.trim()).ok_or(form)?;
    for header in parts.filter(|part| !part.trim().is_empty()) {
        let (name, value) = header.split_once(':').ok_or(form)?;
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
    let (host, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let target = target.split('#').next().unwrap_or_default();
    let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
    let is_method =
        !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_alphabetic() || b"-_".contains(&byte));
    let is_one_line = |text: &str| !text.bytes().any(|byte| byte <= b' ' || byte == 0x7f);
    let is_right = is_method && !host.is_empty() && is_one_line(host) && is_one_line(&target);
    is_right.then(|| Wanted { method: method.to_owned(), ..Wanted::get(is_https, host, &target, "") })
}

/// The rest of a line of an access log, after the first quote: `GET /a HTTP/1.1" 200 ...`.
fn logged(rest: &str, host: Option<&str>) -> Result<Wanted, String> {
    let (request, _) = rest.split_once('"').ok_or("it is not a line of an access log")?;
    let mut parts = request.split(' ');
    let (Some(method), Some(target), Some(_)) = (parts.next(), parts.next(), parts.next()) else {
        return Err("the request line has no method, target and version".to_owned());
    };
    let host = host.ok_or("an access log of nginx names no host: give --host")?;
    of_url(method, &format!("http://{host}{target}")).ok_or_else(|| "the request cannot be read".to_owned())
}

/// What a browser has saved.
fn har(text: &str) -> Result<Vec<Wanted>, String> {
    let har: Value = serde_json::from_str(text).map_err(|error| format!("neither a list nor a HAR file: {error}"))?;
    let entries = har["log"]["entries"].as_array().ok_or("a HAR file has log.entries")?;
    let one = |(number, entry): (usize, &Value)| {
        let request = &entry["request"];
        let (method, url) =
            (request["method"].as_str().unwrap_or_default(), request["url"].as_str().unwrap_or_default());
        let mut wanted = of_url(method, url).ok_or_else(|| format!("entry {number} has no method and URL"))?;
        for header in request["headers"].as_array().into_iter().flatten() {
            let (name, value) =
                (header["name"].as_str().unwrap_or_default(), header["value"].as_str().unwrap_or_default());
            // The headers of HTTP/2, and those that belong to the connection.
            let is_own = name.starts_with(':')
                || ["host", "content-length", "connection"].contains(&name.to_ascii_lowercase().as_str());
            if !is_own && !name.is_empty() {
                wanted.headers.push((name.to_owned(), value.to_owned()));
            }
        }
        wanted.body = request["postData"]["text"].as_str().unwrap_or_default().into();
        Ok(wanted)
    };
    entries.iter().enumerate().map(one).collect()
}

/// Requests that show how Ingresses are served: each path as it is, with and without its slash, in capital letters, with more behind it, by other
/// methods, from a script of another origin, with and without a password, and over TLS.
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
                }
            }
        }
    }
    all.push(Wanted::get(false, "unknown.invalid", "/", "an unknown host"));
    let mut seen = std::collections::HashSet::new();
    all.retain(|wanted| seen.insert((wanted.method.clone(), wanted.url(), wanted.headers.clone())));
    all
}

fn of_path(is_https: bool, host: &str, path: &str, all: &mut Vec<Wanted>) {
    // Of an expression, the text before its first sign.
    let literal = path.split(['(', '[', '.', '*', '+', '?', '\\', '|', '^', '$', '{']).next().unwrap_or("/");
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
    all.push(Wanted { method: "HEAD".to_owned(), ..get(literal, "HEAD") });
    let with = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let origin = || with("Origin", "https://script.example");
    all.push(Wanted { headers: vec![origin()], ..get(literal, "from a script of another origin") });
    all.push(Wanted {
        method: "OPTIONS".to_owned(),
        headers: vec![origin(), with("Access-Control-Request-Method", "PUT")],
        ..get(literal, "a preflight request")
    });
    // `nobody:nothing`
    let nobody = with("Authorization", "Basic bm9ib2R5Om5vdGhpbmc=");
    all.push(Wanted { headers: vec![nobody], ..get(literal, "a wrong password") });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_of_every_form() {
        let check = |text: &str, expect: &[&str]| {
            let found = read(text, Some("a.example")).unwrap_or_else(|why| panic!("{text}: {why}"));
            let told: Vec<String> =
                found.iter().map(|wanted| format!("{} {} {:?}", wanted.method, wanted.url(), wanted.headers)).collect();
            assert_eq!(told, expect, "{text}");
        };
        check(
            "# a list\n\nGET https://b.example:8443/x?y\tA: b\tC: d\n",
            &["GET https://b.example:8443/x?y [(\"A\", \"b\"), (\"C\", \"d\")]"],
        );
        check("GET http://b.example?x", &["GET http://b.example/?x []"]);
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
            let why = read(text, None).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        };
        check("GET /x", "line 1: write METHOD URL");
        check("GET ftp://a/", "METHOD URL");
        check("GET http://a/x y", "METHOD URL");
        check(r#"1.1.1.1 - - [x] "GET /a HTTP/1.1" 200 0"#, "--host");
        check(r#"1.1.1.1 - - [x] "\x16\x03" 400 0"#, "no method");
        check("{", "HAR");
        check("{\"log\": {\"entries\": [{}]}}", "entry 0");
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
        assert!(found.iter().all(Wanted::is_safe));
    }
}
