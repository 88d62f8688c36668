//! What a snippet answers by itself: `return`, and a `rewrite` of everything to a URL.

use super::super::value;

/// What `return` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This status, and perhaps a place to go to or a text.
    Fixed {
        /// The status.
        status: u16,
        /// The value of `Location`.
        location: Option<String>,
        /// The body.
        text: Option<String>,
    },
    /// A redirect of the whole URL to another scheme, host or port.
    Moved {
        /// The status.
        status: u16,
        /// Whether it leads to HTTPS; `None` means the scheme of the request.
        is_https: Option<bool>,
        /// The host; `None` means that of the request.
        host: Option<String>,
        /// The port.
        port: Option<u16>,
    },
}

/// Bytes of a text, which each route has.
const TEXT_BYTES_MAX: usize = 4096;

/// What follows `return`: a status, a status with a URL or a text, or a URL.
pub(super) fn answer(words: &[&str]) -> Result<Answer, String> {
    let refused = || format!("return {}", words.join(" "));
    let (status, rest) = match words {
        [url] if url.contains("://") => (302, Some(*url)),
        [status] => (status.parse::<u16>().map_err(|_| refused())?, None),
        [status, rest] => (status.parse::<u16>().map_err(|_| refused())?, Some(*rest)),
        _ => return Err(refused()),
    };
    match (status, rest) {
        (301 | 302 | 303 | 307 | 308, Some(url)) => redirect(status, url).ok_or_else(refused),
        // 444 closes the connection.
        (200 | 204 | 400..=443 | 445..=599, text)
            if text.is_none_or(|text| !text.contains('$') && text.len() <= TEXT_BYTES_MAX) =>
        {
            Ok(Answer::Fixed { status, location: None, text: text.map(str::to_owned) })
        }
        _ => Err(refused()),
    }
}

fn redirect(status: u16, url: &str) -> Option<Answer> {
    let fixed = || Answer::Fixed { status, location: Some(url.to_owned()), text: None };
    let Some(base) = url.strip_suffix("$request_uri") else {
        let is_graphic = url.len() <= TEXT_BYTES_MAX && url.bytes().all(|byte| byte.is_ascii_graphic());
        let is_plain = is_graphic
            && !url.contains('$')
            && ((url.starts_with('/') && !url.starts_with("//")) || value::split_url(url).is_some());
        return is_plain.then(fixed);
    };
    let (scheme, authority) = base.split_once("://")?;
    let is_https = match scheme {
        "https" => Some(true),
        "http" => Some(false),
        "$scheme" => None,
        _ => return None,
    };
    if ["$host", "$http_host", "$best_http_host"].contains(&authority) {
        return Some(Answer::Moved { status, is_https, host: None, port: None });
    }
    let (_, host, port, path) = value::split_url(&format!("https://{authority}")).map(|url| {
        let (is_https, host, port, path) = url;
        (is_https, host.to_owned(), port, path.to_owned())
    })?;
    (path.is_empty() && !host.contains('$')).then_some(Answer::Moved { status, is_https, host: Some(host), port })
}

/// A `rewrite` of all paths to the same path of another host or scheme: `^ https://$host$request_uri?`, `^(.*)$ https://a.example$1`.
pub(super) fn moved(from: &str, to: &str, flag: &str) -> Option<Answer> {
    let status = match flag {
        "permanent" => 301,
        "redirect" => 302,
        _ => return None,
    };
    let base = match from {
        "^" | ".*" | "^.*$" => to.strip_suffix("$request_uri?")?.to_owned(),
        // A rewrite appends the query.
        "^(.*)$" | "^(.*)" | "(.*)" | "^(/.*)$" => {
            to.strip_suffix("$1").filter(|base| !base.ends_with('/'))?.to_owned()
        }
        "^/(.*)$" | "^/(.*)" => to.strip_suffix("/$1")?.to_owned(),
        _ => return None,
    };
    redirect(status, &format!("{base}$request_uri"))
}
