//! Requests that a browser has saved (HAR 1.2): Chromium's and Firefox's files.

use std::fmt;
use std::io;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Entry, Form, HEADERS_MAX, Read, Recorded, Wish, add_header, of_url, shown, time};

/// The most fields of a form that are read.
const FIELDS_MAX: usize = 10_000;

/// Reads a file, entry by entry. Returns false if it is no HAR file; nothing is taken then.
///
/// # Errors
/// It begins as a HAR file, but the rest is none. The message says where it breaks. Entries that are no HTTP requests are left out.
pub(super) fn read(
    bytes: &[u8],
    wish: Wish<'_>,
    read: &mut Read,
    take: &mut dyn FnMut(Entry) -> bool,
) -> io::Result<bool> {
    let mut reader = Reader { wish, read, take, is_har: false, has_entries: false, number: 0, is_enough: false };
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    let parsed = Level::File(&mut reader).deserialize(&mut parser);
    let Reader { is_har, has_entries, is_enough, .. } = reader;
    match parsed {
        Ok(()) if has_entries => {
            if !is_enough && parser.end().is_err() {
                read.skip("there is more behind the end of the HAR file: only the first document is read");
            }
            Ok(true)
        }
        Err(error) if is_har => {
            let why = format!("it cannot be read as a HAR file: {error}");
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        }
        Ok(()) | Err(_) => Ok(false),
    }
}

/// What is known of a file while it is parsed.
struct Reader<'a, 'w> {
    wish: Wish<'w>,
    read: &'a mut Read,
    take: &'a mut dyn FnMut(Entry) -> bool,
    /// `log` has a member that only a HAR file has.
    is_har: bool,
    has_entries: bool,
    /// Of the next entry.
    number: u64,
    is_enough: bool,
}

impl Reader<'_, '_> {
    fn entry(&mut self, saved: &Saved) {
        match one(saved, self.wish.host) {
            Ok(request) => {
                self.read.taken += 1;
                let at = time::iso(&saved.started_date_time.0);
                self.is_enough = !(self.take)(Entry { request, at, form: Form::Saved });
            }
            Err(why) => self.read.skip(&format!("entry {}: {why}", self.number)),
        }
        self.number += 1;
    }
}

/// A level of a file. Everything else, which is most of it, is skipped by the parser.
enum Level<'r, 'a, 'w> {
    File(&'r mut Reader<'a, 'w>),
    Log(&'r mut Reader<'a, 'w>),
    Entries(&'r mut Reader<'a, 'w>),
}

impl<'de> DeserializeSeed<'de> for Level<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        // A file with something else instead of an object is left to the parser of lines.
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Level<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::File(_) => "a HAR file",
            Self::Log(_) => "an object at log",
            Self::Entries(_) => "a list of entries",
        })
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let (reader, is_log) = match self {
            Self::File(reader) => (reader, false),
            Self::Log(reader) => (reader, true),
            Self::Entries(_) => return Err(M::Error::custom("log.entries is no list")),
        };
        while let Some(Text(key)) = map.next_key()? {
            reader.is_har |= is_log && ["entries", "version", "creator", "pages"].contains(&key.as_str());
            match key.as_str() {
                "log" if !is_log => map.next_value_seed(Level::Log(reader))?,
                "entries" if is_log => map.next_value_seed(Level::Entries(reader))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<(), S::Error> {
        let Self::Entries(reader) = self else { return Err(S::Error::custom("a list instead of an object")) };
        reader.has_entries = true;
        while !reader.is_enough {
            let Some(saved) = list.next_element::<Saved>()? else { return Ok(()) };
            reader.entry(&saved);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Saved {
    #[serde(default)]
    started_date_time: Text,
    request: Option<Request>,
    #[serde(default)]
    comment: Text,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    #[serde(default)]
    method: Text,
    #[serde(default)]
    url: Text,
    headers: Option<AtMost<Pair, HEADERS_MAX>>,
    post_data: Option<Posted>,
}

#[derive(Deserialize)]
struct Posted {
    #[serde(default)]
    text: Text,
    params: Option<AtMost<Pair, FIELDS_MAX>>,
}

#[derive(Deserialize)]
struct Pair {
    #[serde(default)]
    name: Text,
    #[serde(default)]
    value: Text,
}

/// A text; empty if the file has something else there.
#[derive(Default)]
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Text;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("a text")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.to_owned()))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Text, E> {
                Ok(Text(text))
            }

            fn visit_unit<E: Error>(self) -> Result<Text, E> {
                Ok(Text::default())
            }

            fn visit_bool<E: Error>(self, _: bool) -> Result<Text, E> {
                Ok(Text::default())
            }

            fn visit_i64<E: Error>(self, _: i64) -> Result<Text, E> {
                Ok(Text::default())
            }

            fn visit_u64<E: Error>(self, _: u64) -> Result<Text, E> {
                Ok(Text::default())
            }

            fn visit_f64<E: Error>(self, _: f64) -> Result<Text, E> {
                Ok(Text::default())
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Text, S::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Text::default())
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Text, M::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Text::default())
            }
        }
        from.deserialize_any(Any)
    }
}

/// The first items of a list. Empty objects take more memory than text, so a hostile list must end somewhere.
struct AtMost<T, const MAX: usize> {
    items: Vec<T>,
    has_more: bool,
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for AtMost<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Items<T, const MAX: usize>(Vec<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Items<T, MAX> {
            type Value = AtMost<T, MAX>;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("a list")
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<AtMost<T, MAX>, S::Error> {
                let Self(mut items) = self;
                while items.len() < MAX {
                    let Some(item) = list.next_element()? else { return Ok(AtMost { items, has_more: false }) };
                    items.push(item);
                }
                let mut has_more = false;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    has_more = true;
                }
                Ok(AtMost { items, has_more })
            }
        }
        from.deserialize_seq(Items::<T, MAX>(Vec::new()))
    }
}

fn one(saved: &Saved, host: Option<&str>) -> Result<Recorded, String> {
    let request = saved.request.as_ref().ok_or("it has no request")?;
    let (Text(method), Text(url)) = (&request.method, &request.url);
    let mut recorded =
        of_url(method, url).ok_or_else(|| format!("no HTTP request: {} {:?}", shown(method), shown(url)))?;
    if host.is_some_and(|host| !recorded.host.eq_ignore_ascii_case(host)) {
        return Err(format!("of another host: {}", shown(&recorded.host)));
    }
    if let Some(headers) = &request.headers {
        if headers.has_more {
            return Err(super::too_many_headers());
        }
        for Pair { name: Text(name), value: Text(value) } in &headers.items {
            // `:path` and the like of HTTP/2. The URL has the host.
            if !name.is_empty() && !name.starts_with(':') && !name.eq_ignore_ascii_case("host") {
                add_header(&mut recorded, name, value.trim())?;
            }
        }
    }
    if let Some(data) = &request.post_data {
        recorded.body = body(data)?.into_bytes();
    }
    saved.comment.0.clone_into(&mut recorded.about);
    Ok(recorded)
}

/// The text, or the fields of a form if there is no text.
fn body(data: &Posted) -> Result<String, String> {
    match &data.params {
        Some(params) if data.text.0.is_empty() => {
            if params.has_more {
                return Err(format!("its form has more than {FIELDS_MAX} fields"));
            }
            let part = |Text(text): &Text| super::escaped(text, b"-._~");
            let pair = |Pair { name, value }: &Pair| format!("{}={}", part(name), part(value));
            Ok(params.items.iter().map(pair).collect::<Vec<_>>().join("&"))
        }
        _ => Ok(data.text.0.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

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
        assert!(read(&file, wish, &mut found, &mut take).unwrap());
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
