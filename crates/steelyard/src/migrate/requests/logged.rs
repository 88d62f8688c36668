//! Requests from an access log: nginx's formats `combined` and `main`, the format of ingress-nginx, others that quote the request line, and lines
//! of JSON.

use serde_json::Value;

use super::{Upstreams, Wanted, of_url};

/// The request of a line.
///
/// # Errors
/// A sentence, if the line has none that can be sent.
pub(super) fn read(line: &str, host: Option<&str>, upstreams: &Upstreams) -> Result<Wanted, String> {
    if line.starts_with('{') {
        return json(line, host);
    }
    let request = quoted(line).into_iter().find_map(|text| request_line(&unescaped(text)));
    let (method, target) = request.ok_or("it has no request line")?;
    if let Some(host) = host {
        return made(false, &method, host, &target);
    }
    let (is_https, host) = upstreams
        .host_of(line, &target)
        .ok_or("the log names no host: give --host, or --ingresses for the log of ingress-nginx")?;
    made(is_https, &method, &host, &target)
}

/// The texts in double quotes. nginx writes a quote within them as `\x22`, and others as `\"`.
fn quoted(line: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let mut begin = None;
    let mut is_escaped = false;
    for (place, byte) in line.bytes().enumerate() {
        match (byte, begin) {
            (b'"', Some(from)) if !is_escaped => {
                all.extend(line.get(from..place));
                begin = None;
            }
            (b'"', None) => begin = Some(place + 1),
            _ => {}
        }
        is_escaped = byte == b'\\' && !is_escaped && begin.is_some();
    }
    all
}

/// Method and target of `GET /a HTTP/1.1`. A target may have spaces.
fn request_line(text: &str) -> Option<(String, String)> {
    let (method, rest) = text.split_once(' ')?;
    let (target, version) = rest.rsplit_once(' ')?;
    let is_method =
        !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_alphabetic() || b"-_".contains(&byte));
    (is_method && version.starts_with("HTTP/")).then(|| (method.to_owned(), target.to_owned()))
}

/// What a log has escaped: `\xHH` of nginx, and `\"` and `\\`. Bytes that no target has become `%HH`.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        match (first, after) {
            (b'\\', [b'x', one, two, more @ ..]) if hex(&[*one, *two]).is_some() => {
                bytes.extend(hex(&[*one, *two]));
                rest = more;
            }
            (b'\\', [next @ (b'"' | b'\\'), more @ ..]) => {
                bytes.push(*next);
                rest = more;
            }
            _ => bytes.push(*first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn made(is_https: bool, method: &str, host: &str, target: &str) -> Result<Wanted, String> {
    let scheme = if is_https { "https" } else { "http" };
    // The absolute form names the host itself.
    let url = if target.contains("://") && !target.starts_with('/') {
        target.to_owned()
    } else {
        format!("{scheme}://{host}{target}")
    };
    let is_request = target.starts_with('/') || target.contains("://");
    of_url(method, &url).filter(|_| is_request).ok_or_else(|| format!("{method} {target} asks for no path of a host"))
}

/// A line of JSON, by the names that people give to nginx's variables.
fn json(line: &str, host: Option<&str>) -> Result<Wanted, String> {
    let entry: Value = serde_json::from_str(line).map_err(|error| format!("it is no JSON: {error}"))?;
    let text = |names: &[&str]| {
        names
            .iter()
            .find_map(|name| entry[*name].as_str())
            .map(str::trim)
            .filter(|text| !text.is_empty() && *text != "-")
    };
    let whole = text(&["request", "request_line"]).and_then(request_line);
    let parts = || {
        let target = text(&["request_uri", "uri", "path", "request_path"])?;
        Some((text(&["method", "request_method", "http_method", "verb"])?.to_owned(), target.to_owned()))
    };
    let (method, mut target) = whole.or_else(parts).ok_or("it has neither request, nor method and request_uri")?;
    if let Some(query) = text(&["args", "query", "request_query"]).filter(|_| !target.contains('?')) {
        target = format!("{target}?{query}");
    }
    let named = text(&["host", "vhost", "http_host", "server_name", "authority"]);
    let host = host.or(named).ok_or("it names no host: give --host")?;
    made(text(&["scheme", "proto", "x_forwarded_proto"]) == Some("https"), &method, host, &target)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_of_every_format() {
        let none = Upstreams::default();
        let check = |line: &str, expect: &str| {
            let found = read(line, Some("a.example"), &none);
            let told = found.map(|wanted| format!("{} {}", wanted.method, wanted.url()));
            assert_eq!(told.as_deref().unwrap_or_else(|why| why), expect, "{line}");
        };
        // combined
        check(
            r#"192.0.2.7 - - [24/Nov/2026:10:00:00 +0000] "GET /a?b=%20 HTTP/1.1" 200 612 "https://b.example/?q=\x22x\x22" "Mozilla/5.0 (X11; \x22quoted\x22)""#,
            "GET http://a.example/a?b=%20",
        );
        // ingress-nginx
        check(
            r#"2001:db8::7 - ann [24/Nov/2026:10:00:00 +0000] "POST /cart HTTP/2.0" 201 12 "-" "curl/8.5" 80 0.001 [shop-web-80] [] 10.0.0.2:80, 10.0.0.3:80 0, 12 0.000, 0.001 502, 201 abc"#,
            "POST http://a.example/cart",
        );
        check(r#"::1 - - [x] "GET http://c.example:8080/x HTTP/1.1" 200 0 "-" "-""#, "GET http://c.example:8080/x");
        check(
            r#"1.1.1.1 - - [x] "GET /caf\xC3\xA9/\x22x\x22 HTTP/1.1" 200 0"#,
            "GET http://a.example/caf%C3%A9/%22x%22",
        );
        check(r#"1.1.1.1 - - [x] "GET /a b HTTP/1.1" 200 0"#, "GET http://a.example/a%20b");
        check(r#"v.example 1.1.1.1 "ref" "GET /late HTTP/1.1" 200"#, "GET http://a.example/late");
        check(r#"1.1.1.1 - - [x] "-" 400 0 "-" "-""#, "it has no request line");
        check(r#"1.1.1.1 - - [x] "\x16\x03\x01\x02" 400 150 "-" "-""#, "it has no request line");
        check(r#"1.1.1.1 - - [x] "" 400 0"#, "it has no request line");
        check(r#"1.1.1.1 - - [x] "PRI * HTTP/2.0" 400 0"#, "PRI * asks for no path of a host");
        check(r#"1.1.1.1 - - [x] "CONNECT b:443 HTTP/1.1" 400 0"#, "CONNECT b:443 asks for no path of a host");
        check(r#"{"request": "GET /j HTTP/1.1", "status": 200}"#, "GET http://a.example/j");
        let log = r#"{"vhost": "v.example", "method": "GET", "path": "/p", "request_query": "q=1", "x_forwarded_proto": "https"}"#;
        assert_eq!(read(log, None, &none).unwrap().url(), "https://v.example/p?q=1");
        check("{", "it is no JSON: EOF while parsing an object at line 1 column 1");
    }

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
        let line = |target: &str| {
            format!(
                r#"::1 - - [x] "GET {target} HTTP/1.1" 200 1 "-" "-" 80 0.001 [shop-web-80] [] 10.0.0.2:80 1 0.001 200 abc"#
            )
        };
        let url = |target: &str| read(&line(target), None, &upstreams).map(|wanted| wanted.url());
        assert_eq!(url("/x").unwrap(), "http://a.example/x");
        assert_eq!(url("/b/x").unwrap(), "https://b.example/b/x");
        assert!(read(r#"::1 "GET / HTTP/1.1" 200 [other-80]"#, None, &upstreams).unwrap_err().contains("--host"));
    }
}
