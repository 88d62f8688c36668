//! Requests that a browser has saved (HAR 1.2): Chromium's and Firefox's files.

use serde_json::Value;

use super::{Read, Wanted, of_url};

/// Headers that belong to a connection or to a version of HTTP, or that follow from the request.
const NOT_SENT: &[&str] = &[
    "host",
    "content-length",
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "te",
    "upgrade",
    "http2-settings",
    // The two servers may compress the same body in two ways.
    "accept-encoding",
];

/// # Errors
/// What is missing in the file as a whole. Entries that are no HTTP requests are left out.
pub(super) fn read(file: &Value, host: Option<&str>) -> Result<Read, String> {
    let entries = file["log"]["entries"].as_array().ok_or("a HAR file has log.entries")?;
    let mut read = Read::default();
    for (number, entry) in entries.iter().enumerate() {
        match one(entry, host) {
            Ok(wanted) => read.wanted.push(wanted),
            Err(why) => read.skip(format!("entry {number}: {why}")),
        }
    }
    Ok(read)
}

fn one(entry: &Value, host: Option<&str>) -> Result<Wanted, String> {
    let request = &entry["request"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (method, url) = (text(&request["method"]), text(&request["url"]));
    let shown: String = url.chars().take(60).collect();
    let mut wanted = of_url(&method, &url).ok_or_else(|| format!("no HTTP request: {method} {shown:?}"))?;
    if host.is_some_and(|host| !wanted.host.eq_ignore_ascii_case(host)) {
        return Err(format!("of another host: {}", wanted.host));
    }
    for header in request["headers"].as_array().into_iter().flatten() {
        let (name, value) = (text(&header["name"]), text(&header["value"]));
        // `:path` and the like of HTTP/2.
        let is_left_out =
            name.is_empty() || name.starts_with(':') || NOT_SENT.contains(&name.to_ascii_lowercase().as_str());
        if !is_left_out {
            wanted.headers.push((name, value));
        }
    }
    wanted.body = body(&request["postData"]).into_bytes();
    wanted.about = text(&entry["comment"]);
    Ok(wanted)
}

/// The text, or the fields of a form if there is no text.
fn body(data: &Value) -> String {
    match (data["text"].as_str(), data["params"].as_array()) {
        (Some(text), _) if !text.is_empty() => text.to_owned(),
        (_, Some(params)) => {
            let part = |value: &Value| super::escaped(value.as_str().unwrap_or_default(), b"-._~");
            let pairs: Vec<String> =
                params.iter().map(|param| format!("{}={}", part(&param["name"]), part(&param["value"]))).collect();
            pairs.join("&")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn files_of_browsers() {
        let entry = |request: Value| json!({"startedDateTime": "2026-11-24T10:00:00Z", "request": request, "response": {"status": 200}});
        let chromium = entry(json!({
            "method": "GET", "url": "https://a.example/x?y=1#z", "httpVersion": "http/2.0",
            "headers": [
                {"name": ":authority", "value": "a.example"}, {"name": ":path", "value": "/x?y=1"},
                {"name": "accept-encoding", "value": "gzip, br"}, {"name": "cookie", "value": "s=1"},
            ],
        }));
        let firefox = entry(json!({
            "method": "POST", "url": "http://a.example/form", "httpVersion": "HTTP/1.1",
            "headers": [{"name": "Host", "value": "a.example"}, {"name": "Content-Length", "value": "9"}, {"name": "Origin", "value": "null"}],
            "postData": {"mimeType": "application/x-www-form-urlencoded", "params": [{"name": "a b", "value": "c&d"}], "text": ""},
        }));
        let socket = entry(json!({"method": "GET", "url": "wss://a.example/socket", "headers": []}));
        let page = entry(json!({"method": "GET", "url": "chrome-extension://abc/hook.js", "headers": []}));
        let other = entry(json!({"method": "GET", "url": "https://cdn.example/lib.js", "headers": []}));
        let file = json!({"log": {"version": "1.2", "entries": [chromium, firefox, socket, page, other]}});
        let read = read(&file, Some("a.example")).unwrap();
        let told: Vec<String> = read
            .wanted
            .iter()
            .map(|one| format!("{} {} {:?} {}", one.method, one.url(), one.headers, String::from_utf8_lossy(&one.body)))
            .collect();
        assert_eq!(
            told,
            [
                "GET https://a.example/x?y=1 [(\"cookie\", \"s=1\")] ",
                "POST http://a.example/form [(\"Origin\", \"null\")] a%20b=c%26d",
            ]
        );
        assert_eq!(
            (read.skipped, read.first.as_str()),
            (3, "entry 2: no HTTP request: GET \"wss://a.example/socket\"")
        );
        assert!(super::read(&json!({}), None).unwrap_err().contains("log.entries"));
    }
}
