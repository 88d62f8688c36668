//! Requests that a browser has saved (HAR 1.2): Chromium's and Firefox's files.

use std::io;

use serde::Deserialize;
use serde_json::Value;

use super::{Entry, Form, Read, Recorded, Wish, checked, of_url, shown, time};

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
    "trailer",
    // The body is sent at once.
    "expect",
    // For the proxy that was between.
    "proxy-authorization",
];

/// What is read of a file. Responses, which are most of it, are skipped by the parser.
#[derive(Deserialize)]
struct File {
    log: Log,
}

#[derive(Deserialize)]
struct Log {
    entries: Option<Vec<Saved>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Saved {
    #[serde(default)]
    started_date_time: Value,
    #[serde(default)]
    request: Value,
    #[serde(default)]
    comment: Value,
}

/// # Errors
/// What is missing in the file as a whole. Entries that are no HTTP requests are left out.
pub(super) fn read(
    bytes: &[u8],
    wish: Wish<'_>,
    read: &mut Read,
    take: &mut dyn FnMut(Entry) -> bool,
) -> io::Result<()> {
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    let file: File =
        serde_json::from_slice(bytes).map_err(|error| invalid(format!("it cannot be read as a HAR file: {error}")))?;
    let entries = file.log.entries.ok_or_else(|| invalid("a HAR file has log.entries".to_owned()))?;
    for (number, saved) in entries.iter().enumerate() {
        match one(saved, wish.host) {
            Ok(request) => {
                read.taken += 1;
                let at = saved.started_date_time.as_str().and_then(time::iso);
                if !take(Entry { request, at, form: Form::Saved }) {
                    return Ok(());
                }
            }
            Err(why) => read.skip(&format!("entry {number}: {why}")),
        }
    }
    Ok(())
}

fn one(saved: &Saved, host: Option<&str>) -> Result<Recorded, String> {
    let request = &saved.request;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (method, url) = (text(&request["method"]), text(&request["url"]));
    let mut recorded =
        of_url(&method, &url).ok_or_else(|| format!("no HTTP request: {} {:?}", shown(&method), shown(&url)))?;
    if host.is_some_and(|host| !recorded.host.eq_ignore_ascii_case(host)) {
        return Err(format!("of another host: {}", recorded.host));
    }
    for header in request["headers"].as_array().into_iter().flatten() {
        let (name, value) = (text(&header["name"]), text(&header["value"]));
        // `:path` and the like of HTTP/2.
        let is_left_out =
            name.is_empty() || name.starts_with(':') || NOT_SENT.contains(&name.to_ascii_lowercase().as_str());
        if !is_left_out {
            recorded.headers.push(checked(&name, value.trim())?);
        }
    }
    recorded.body = body(&request["postData"]).into_bytes();
    recorded.about = text(&saved.comment);
    Ok(recorded)
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
        let forged = entry(json!({
            "method": "GET", "url": "http://a.example/",
            "headers": [{"name": "x", "value": "1\r\n\r\nGET /admin HTTP/1.1"}],
        }));
        let file = json!({"log": {"version": "1.2", "entries": [chromium, firefox, socket, page, other, forged]}});
        let file = serde_json::to_vec(&file).unwrap();
        let wish = Wish { host: Some("a.example"), ..Wish::default() };
        let (mut found, mut told) = (Read::default(), Vec::new());
        let mut take = |entry: Entry| {
            let Entry { request: one, at, form } = entry;
            let body = String::from_utf8_lossy(&one.body).into_owned();
            told.push(format!("{} {} {:?} {body}", one.method, one.url(), one.headers));
            assert_eq!((at.map(|at| at.ns), form), (Some(1_795_514_400_000_000_000), Form::Saved));
            true
        };
        read(&file, wish, &mut found, &mut take).unwrap();
        assert_eq!(
            told,
            [
                "GET https://a.example/x?y=1 [(\"accept-encoding\", \"gzip, br\"), (\"cookie\", \"s=1\")] ",
                "POST http://a.example/form [(\"Origin\", \"null\")] a%20b=c%26d",
            ]
        );
        assert_eq!(
            (found.skipped, found.first.as_str()),
            (4, "entry 2: no HTTP request: GET \"wss://a.example/socket\"")
        );
    }
}
