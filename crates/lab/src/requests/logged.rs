//! Requests from an access log: nginx's formats `combined` and `main`, the format of ingress-nginx, HAProxy's HTTP log, others that quote the
//! request line, and lines of JSON.

use serde_json::Value;

use super::{Entry, Form, Stamp, Wish, of_target, time};

/// The request of a line.
///
/// # Errors
/// A sentence, if the line has none that can be sent.
pub(super) fn read(line: &str, wish: Wish<'_>) -> Result<Entry, String> {
    if line.starts_with('{') {
        return json(line, wish);
    }
    let at = stamp(line);
    // Only HAProxy gives milliseconds in brackets, without a zone.
    let is_haproxy = at.is_some_and(|(at, is_in_brackets)| is_in_brackets && !at.is_whole_second);
    let unescaped = |text: &str| if is_haproxy { without_hashes(text) } else { unescaped(text) };
    let request = quoted(line).into_iter().find_map(|text| request_line(&unescaped(text)));
    let Some((method, target)) = request else {
        return pairs(line).map_or_else(|| Err("it has no request line".to_owned()), |entry| of_object(&entry, wish));
    };
    let named = || wish.hosts.and_then(|hosts| hosts.host_of(line, &target));
    let host = wish.host.map(|host| (false, host.to_owned())).or_else(named).or_else(|| {
        // In the text of Steelyard.
        let host = pairs(line)?.get("host")?.as_str()?.to_owned();
        Some((false, host))
    });
    let request = of_target(&method, host, &target, wish)?;
    Ok(Entry { request, at: at.map(|(at, _)| at), form: Form::Logged })
}

/// When a line of text was written: in brackets, or as its first word. Returns whether it was in brackets.
fn stamp(line: &str) -> Option<(Stamp, bool)> {
    let in_brackets = line.split('[').skip(1).take(BRACKETS_MAX).filter_map(|rest| Some(rest.split_once(']')?.0));
    let in_brackets = in_brackets.filter_map(|text| time::clf(text).or_else(|| time::iso(text))).next();
    let first = || {
        let word = line.split_ascii_whitespace().next()?;
        time::iso(word.strip_prefix("time=").unwrap_or(word))
    };
    in_brackets.map(|at| (at, true)).or_else(|| first().map(|at| (at, false)))
}

/// How many brackets of a line are looked at for its time, so that a hostile target does not cost much.
const BRACKETS_MAX: usize = 8;

/// `#HH`, with which HAProxy writes bytes that are not printable, and the hash itself.
fn without_hashes(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'#', [one, two, more @ ..]) if hex(&[*one, *two]).is_some() => {
                bytes.extend(hex(&[*one, *two]));
                rest = more;
            }
            _ => bytes.push(*first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex(digits: &[u8]) -> Option<u8> {
    let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
    u8::from_str_radix(std::str::from_utf8(digits).ok().filter(|_| is_hex)?, 16).ok()
}

/// `name=value` and `name="value"`, separated by spaces, as Steelyard writes text.
fn pairs(line: &str) -> Option<Value> {
    let mut found = serde_json::Map::new();
    let mut rest = line;
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_start();
        if name.contains([' ', '"']) {
            return None;
        }
        let (value, more) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(' ').unwrap_or((after, "")),
        };
        found.insert(name.to_owned(), value.into());
        rest = more;
    }
    (!found.is_empty()).then_some(Value::Object(found))
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

/// A line of JSON.
fn json(line: &str, wish: Wish<'_>) -> Result<Entry, String> {
    let entry: Value = serde_json::from_str(line).map_err(|error| format!("it is no JSON: {error}"))?;
    match entry["log"].as_str().map(str::trim_end) {
        // Docker wraps each line of a container.
        Some(inner) if !inner.starts_with('{') => read(inner, wish),
        Some(inner) => {
            let inner: Value = serde_json::from_str(inner).map_err(|error| format!("it is no JSON: {error}"))?;
            of_object(&inner, wish)
        }
        None => of_object(&entry, wish),
    }
}

/// A record with the names that people give to nginx's variables, those of Steelyard, Envoy and Traefik, or the nested ones of Caddy.
fn of_object(entry: &Value, wish: Wish<'_>) -> Result<Entry, String> {
    let nested = &entry["request"];
    let text = |names: &[&str]| {
        let of = |name: &&str| entry[*name].as_str().or_else(|| nested[*name].as_str());
        names.iter().find_map(of).map(str::trim).filter(|text| !text.is_empty() && *text != "-")
    };
    let whole = text(&["request", "request_line"]).and_then(request_line);
    let parts = || {
        let target = text(&["request_uri", "target", "uri", "path", "request_path", "RequestPath"])?;
        let method = text(&["method", "request_method", "http_method", "verb", "RequestMethod"])?;
        Some((method.to_owned(), target.to_owned()))
    };
    let (method, mut target) = whole.or_else(parts).ok_or("it has neither request, nor method and request_uri")?;
    if let Some(query) = text(&["args", "query", "request_query"]).filter(|_| !target.contains('?')) {
        target = format!("{target}?{query}");
    }
    let is_https = text(&["scheme", "proto", "x_forwarded_proto", "RequestScheme"]) == Some("https");
    let named = text(&["host", "vhost", "http_host", "server_name", "authority", "RequestHost"]);
    let host = wish.host.or(named).map(|host| (is_https, host.to_owned()));
    let request = of_target(&method, host, &target, wish)?;
    let at = TIMES.iter().find_map(|name| match &entry[*name] {
        Value::String(text) => {
            time::iso(text).or_else(|| time::clf(text)).or_else(|| time::unix(text.parse::<f64>().ok()?))
        }
        Value::Number(number) => time::unix(number.as_f64()?),
        _ => None,
    });
    Ok(Entry { request, at, form: Form::Logged })
}

/// The names of the time of a record, the more exact ones first.
const TIMES: &[&str] = &[
    "msec",
    "StartUTC",
    "start_time",
    "@timestamp",
    "timestamp",
    "time",
    "ts",
    "time_iso8601",
    "time_local",
    "datetime",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_every_format() {
        let wish = Wish { host: Some("a.example"), ..Wish::default() };
        let check = |line: &str, expect: &str| {
            let told = read(line, wish).map(|entry| format!("{} {}", entry.request.method, entry.request.url()));
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
        assert_eq!(read(log, Wish::default()).unwrap().request.url(), "https://v.example/p?q=1");
        check("{", "it is no JSON: EOF while parsing an object at line 1 column 1");
    }

    #[test]
    fn hosts_and_times() {
        let check = |line: &str, url: &str, ms: u64| {
            let entry = read(line, Wish::default()).unwrap_or_else(|why| panic!("{line}: {why}"));
            assert_eq!((entry.request.url().as_str(), entry.at.map(|at| at.ns / 1_000_000)), (url, Some(ms)), "{line}");
        };
        let first = 1_795_514_400_000;
        check(r#"::1 - [x] [24/Nov/2026:10:00:00 +0000] "GET /a HTTP/1.1" 200 1 "-" "-""#, "http:///a", first);
        // HAProxy, with a captured Host and a byte that is not printable; over HTTP/2 it logs the absolute form.
        check(
            r##"Nov 24 10:00:00 lb haproxy[7]: 192.0.2.7:4711 [24/Nov/2026:10:00:00.655] web~ app/one 0/0/1/2/3 200 2750 - - ---- 1/1/0/0/0 0/0 {a.example} "GET /caf#C3#A9?a=%20 HTTP/1.1""##,
            "http:///caf%C3%A9?a=%20",
            first + 655,
        );
        check(
            r#"192.0.2.7:4711 [24/Nov/2026:10:00:00.655] web~ app/one 0/0/1/2/3 200 9 - - ---- 1/1/0/0/0 0/0 "GET https://b.example/x HTTP/2.0""#,
            "https://b.example/x",
            first + 655,
        );
        // Kubernetes and Docker put something around a line.
        check(r#"2026-11-24T10:00:00.5Z stdout F ::1 - - "GET /k HTTP/1.1" 200 1"#, "http:///k", first + 500);
        check(
            r#"{"log": "::1 - - [24/Nov/2026:10:00:00 +0000] \"GET /d HTTP/1.1\" 200 1\n", "stream": "stdout"}"#,
            "http:///d",
            first,
        );
        // Steelyard, Envoy, Traefik, Caddy.
        check(
            r#"time=2026-11-24T10:00:00.001Z method=GET host=s.example target="/a b" status=200"#,
            "http://s.example/a%20b",
            first + 1,
        );
        check(
            r#"{"time": "2026-11-24T10:00:00.001Z", "method": "GET", "host": "s.example", "target": "/a?b", "path": "/a"}"#,
            "http://s.example/a?b",
            first + 1,
        );
        check(
            r#"{"start_time": "2026-11-24T10:00:00.002Z", "method": "GET", "path": "/e?f", "authority": "e.example"}"#,
            "http://e.example/e?f",
            first + 2,
        );
        check(
            r#"{"RequestMethod": "GET", "RequestPath": "/t", "RequestHost": "t.example", "StartUTC": "2026-11-24T10:00:00.003Z"}"#,
            "http://t.example/t",
            first + 3,
        );
        check(
            r#"{"ts": 1795514400.004, "request": {"method": "GET", "host": "c.example", "uri": "/c"}}"#,
            "http://c.example/c",
            first + 4,
        );
    }

    #[test]
    fn hostile_lines() {
        for line in [
            "",
            "=",
            "\"",
            "a=\"",
            "[[[[[[[[[[]",
            "{\"log\": \"{\"}",
            "{\"log\": \"\"}",
            "{\"request\": {\"request\": 7}}",
            "x \"GET /\\x HTTP/1.1",
            "x \"GET /a HTTP/1.1\r\nx: y\"",
            "192.0.2.7:1 [24/Nov/2026:10:00:00.655] a b/<NOSRV> -1/-1/-1/-1/0 400 0 - - PR-- 0/0/0/0/0 0/0 \"<BADREQ>\"",
        ] {
            assert!(read(line, Wish::default()).is_err(), "{line}");
        }
        // A line break in a target is escaped.
        let forged = read("x \"GET /a\\x0d\\x0aHost: b HTTP/1.1\"", Wish::default()).unwrap();
        assert_eq!(forged.request.target, "/a%0D%0AHost:%20b");
        let deep = "[".repeat(100_000);
        assert!(read(&format!("{{\"request\": {deep}"), Wish::default()).is_err());
    }
}
