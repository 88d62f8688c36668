//! Recorded requests: reads them from an access log, a HAR file or a list, line by line.
//!
//! `steelyard load --replay` and `steelyard migrate compare` share this reader. Its input is hostile: a line may be cut, forged or endless. What
//! cannot be read is counted, and the first such place is kept with the reason. Not its job: to send anything, or to decide what may be sent.

mod har;
mod logged;
mod time;

use std::io::{self, BufRead, Cursor, Read as _};

use serde_json::Value;

pub use time::{Stamp, http_date};

/// The longest line that is read. nginx accepts 8 KiB in a request line by default.
const LINE_BYTES_MAX: usize = 64 << 10;

/// The largest HAR file. Unlike a log, it is one JSON document, and is kept in memory while it is read.
const HAR_BYTES_MAX: usize = 256 << 20;

/// The most headers of a request. nginx and HAProxy read about 100 by default.
const HEADERS_MAX: usize = 128;

/// The longest target. nginx reads a request line of 8 KiB by default, and HAProxy one of 16 KiB.
const TARGET_BYTES_MAX: usize = 16 << 10;

/// The longest name of a host (RFC 1035 section 2.3.4).
const HOST_BYTES_MAX: usize = 255;

/// The longest method; those that are registered have at most 17 letters.
const METHOD_BYTES_MAX: usize = 32;

/// What an allocation takes besides its bytes, roughly.
const ALLOCATION_BYTES: usize = 32;

/// Headers that belong to a connection or to a version of HTTP, or that follow from the request.
const NOT_SENT: &[&str] = &[
    "content-length",
    "connection",
    "keep-alive",
    "transfer-encoding",
    "te",
    "upgrade",
    "http2-settings",
    "trailer",
    // The body is sent at once.
    "expect",
];

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recorded {
    /// As on the wire; never `CONNECT`.
    pub method: String,
    /// Over TLS.
    pub is_https: bool,
    /// `Host`, perhaps with a port; empty if the file does not say.
    pub host: String,
    /// The path with its query.
    pub target: String,
    /// Names and values, valid in HTTP/1, without those that belong to a connection.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// What it is to show, for people; empty if the file does not say.
    pub about: String,
}

/// In which form a request was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A line of a list.
    Listed,
    /// A line of an access log, which has no headers and no body.
    Logged,
    /// An entry of a HAR file.
    Saved,
}

/// A request, with what the file says besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What to send.
    pub request: Recorded,
    /// When it was sent, or when its response was complete, whichever the file has.
    pub at: Option<Stamp>,
    /// The form of the file.
    pub form: Form,
}

/// Knows the hosts of a log that does not name them.
pub trait Hosts {
    /// Whether a line is of https, and its host: by the line and the target of its request.
    fn host_of(&self, line: &str, target: &str) -> Option<(bool, String)>;
}

/// What a reader needs to know besides the file.
#[derive(Clone, Copy, Default)]
pub struct Wish<'a> {
    /// The host of requests that name none, as in an access log. Of a HAR file, only requests to it are read.
    pub host: Option<&'a str>,
    /// Knows the hosts of lines that name none.
    pub hosts: Option<&'a dyn Hosts>,
    /// Why a request without a host cannot be used; `None` if it can.
    pub without_host: Option<&'a str>,
}

/// What became of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Requests that were read.
    pub taken: u64,
    /// Entries that are no requests that can be sent.
    pub skipped: u64,
    /// Where the first one of these is, and why; empty if there is none.
    pub first: String,
}

impl Recorded {
    /// A GET request.
    pub fn get(is_https: bool, host: &str, target: &str, about: &str) -> Self {
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
    pub fn url(&self) -> String {
        format!("{}://{}{}", if self.is_https { "https" } else { "http" }, self.host, self.target)
    }

    /// Whether it changes nothing at an endpoint (RFC 9110 section 9.2.1).
    pub fn is_safe(&self) -> bool {
        ["GET", "HEAD", "OPTIONS"].contains(&self.method.as_str())
    }

    /// The bytes that it takes in memory, roughly.
    pub fn bytes(&self) -> usize {
        let texts = self.headers.iter().flat_map(|(name, value)| [name, value]);
        let texts = texts.chain([&self.method, &self.host, &self.target, &self.about]);
        let texts: usize = texts.map(|text| text.len() + ALLOCATION_BYTES).sum();
        let pairs = self.headers.len() * size_of::<(String, String)>();
        size_of::<Self>() + texts + pairs + self.body.len() + 2 * ALLOCATION_BYTES
    }
}

impl Read {
    fn skip(&mut self, why: &str) {
        self.skipped += 1;
        if self.first.is_empty() {
            self.first = why.to_owned();
        }
    }
}

/// Reads requests in whichever form they have, and gives each to `take`, until that returns false.
///
/// A log or a list is read line by line and takes no memory but for the line. A HAR file is read as a whole.
///
/// # Errors
/// The input cannot be read, or has no request that can be sent. The message says what is expected.
pub fn read(mut input: impl BufRead, wish: Wish<'_>, take: &mut dyn FnMut(Entry) -> bool) -> io::Result<Read> {
    let mut read = Read::default();
    let mut first = Vec::new();
    let mut number = 0;
    // The first line tells a HAR file from a log of JSON.
    let is_whole = loop {
        let Some(is_whole) = next_line(&mut input, &mut first)? else { break true };
        number += 1;
        if number == 1 && first.starts_with("\u{feff}".as_bytes()) {
            first.drain(..3);
        }
        if !first.trim_ascii().is_empty() {
            break is_whole;
        }
    };
    if first.trim_ascii_start().starts_with(b"{") {
        let is_har = match serde_json::from_slice::<Value>(&first) {
            // A log of JSON may have an object of this name, too.
            Ok(value) if is_whole => value["log"]["entries"].is_array(),
            _ => true,
        };
        if is_har {
            input.by_ref().take((HAR_BYTES_MAX - first.len()) as u64).read_to_end(&mut first)?;
            let is_longer = first.len() == HAR_BYTES_MAX && !input.fill_buf()?.is_empty();
            // Never goes on with lines after the begin of a HAR file: the text of a response may look like a request.
            match har::read(&first, wish, &mut read, take) {
                Ok(true) => return concluded(read),
                Ok(false) => {}
                Err(_) if is_longer => {
                    let why = format!("it is a HAR file of more than {} MiB", HAR_BYTES_MAX >> 20);
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
                }
                Err(error) => return Err(error),
            }
        }
        read = Read::default();
        lines(&mut Cursor::new(first).chain(input), number, wish, &mut read, take)?;
        return concluded(read);
    }
    if !is_whole {
        skip_line(&mut input)?;
        read.skip(&format!("line {number}: {}", too_long()));
        number += 1;
        lines(&mut input, number, wish, &mut read, take)?;
    } else {
        lines(&mut Cursor::new(first).chain(input), number.max(1), wish, &mut read, take)?;
    }
    concluded(read)
}

fn concluded(read: Read) -> io::Result<Read> {
    if read.taken > 0 {
        return Ok(read);
    }
    let why = match read.skipped {
        0 => format!("there is no request in it: it must be {FORMS}"),
        count => {
            format!("none of its {count} entries is a request that can be sent; {}; it must be {FORMS}", read.first)
        }
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// What can be read.
const FORMS: &str = "an access log (of nginx, ingress-nginx, HAProxy or Steelyard, or one that quotes the request line, or JSON lines), a HAR \
                     file of at most 256 MiB, or a list with lines such as `GET https://shop.example.com/` or `GET /path`";

fn too_long() -> String {
    format!("it is longer than {LINE_BYTES_MAX} bytes")
}

/// Reads a line without its end into `line`. Returns whether that is all of it; `None` at the end of the input.
fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    line.clear();
    if input.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', line)? == 0 {
        return Ok(None);
    }
    Ok(Some(line.ends_with(b"\n") || line.len() <= LINE_BYTES_MAX))
}

/// Skips the rest of a line.
fn skip_line(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let bytes = input.fill_buf()?;
        let (count, is_end) = match memchr::memchr(b'\n', bytes) {
            Some(at) => (at + 1, true),
            None => (bytes.len(), bytes.is_empty()),
        };
        input.consume(count);
        if is_end {
            return Ok(());
        }
    }
}

/// Reads lines of a log or a list; the first one has this number.
fn lines(
    input: &mut impl BufRead,
    first: u64,
    wish: Wish<'_>,
    read: &mut Read,
    take: &mut dyn FnMut(Entry) -> bool,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    let mut number = first;
    while let Some(is_whole) = next_line(input, &mut bytes)? {
        // A log may have bytes that are no UTF-8.
        let line = String::from_utf8_lossy(&bytes);
        let line = line.trim_end();
        let found = match line {
            _ if !is_whole => {
                skip_line(input)?;
                Some(Err(too_long()))
            }
            "" => None,
            _ if line.starts_with('#') => None,
            _ => Some(entry(line, wish)),
        };
        match found {
            Some(Ok(entry)) => {
                read.taken += 1;
                if !take(entry) {
                    return Ok(());
                }
            }
            Some(Err(why)) => read.skip(&format!("line {number}: {why}")),
            None => {}
        }
        number += 1;
    }
    Ok(())
}

fn entry(line: &str, wish: Wish<'_>) -> Result<Entry, String> {
    if is_listed(line) {
        let request = listed(line, wish)?;
        return Ok(Entry { request, at: None, form: Form::Listed });
    }
    logged::read(line, wish)
}

const FORM: &str = "write METHOD URL, such as GET https://shop.example.com/, and headers after tabs";

/// Whether a line is one of a list: a method, and a URL or a path.
fn is_listed(line: &str) -> bool {
    let mut words = line.split('\t').next().unwrap_or_default().split(' ');
    let is_method =
        words.next().is_some_and(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase()));
    is_method && words.next().is_some_and(|word| word.starts_with('/') || word.contains("://"))
}

/// `GET https://shop.example.com/a?b`, or `GET /a?b`, then headers after tabs: `Cookie: a=b`.
fn listed(line: &str, wish: Wish<'_>) -> Result<Recorded, String> {
    let mut parts = line.split('\t');
    let (method, url) = parts.next().and_then(|first| first.trim().split_once(' ')).ok_or(FORM)?;
    let url = url.trim();
    if url.contains(' ') {
        return Err(FORM.to_owned());
    }
    let mut request = match url.starts_with('/') {
        true => of_target(method, wish.host.map(|host| (false, host.to_owned())), url, wish)?,
        false => of_url(method, url).ok_or(FORM)?,
    };
    let mut has_host = false;
    for header in parts.filter(|part| !part.trim().is_empty()) {
        let (name, value) = header.split_once(':').ok_or(FORM)?;
        let (name, value) = (name.trim(), value.trim());
        if name.eq_ignore_ascii_case("host") {
            let is_second = std::mem::replace(&mut has_host, true);
            let host = of_host(value).filter(|_| !is_second);
            request.host = host.ok_or_else(|| format!("Host: {:?} is no host, or a second one", shown(value)))?;
        } else {
            add_header(&mut request, name, value)?;
        }
    }
    Ok(request)
}

/// Adds a header, unless it is one that is never sent.
fn add_header(request: &mut Recorded, name: &str, value: &str) -> Result<(), String> {
    let header = checked(name, value)?;
    let name = name.to_ascii_lowercase();
    // `Proxy-Authorization` and the like are for a proxy that was between.
    if NOT_SENT.contains(&name.as_str()) || name.starts_with("proxy-") {
        return Ok(());
    }
    if request.headers.len() >= HEADERS_MAX {
        return Err(too_many_headers());
    }
    request.headers.push(header);
    Ok(())
}

fn too_many_headers() -> String {
    format!("it has more than {HEADERS_MAX} headers")
}

/// A header that HTTP/1 can carry. A line break in a value would be a second request.
fn checked(name: &str, value: &str) -> Result<(String, String), String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_name = !name.is_empty() && name.bytes().all(is_token);
    let is_value = value.bytes().all(|byte| byte == b'\t' || (byte >= 0x20 && byte != 0x7f));
    match is_name && is_value {
        true => Ok((name.to_owned(), value.to_owned())),
        false => Err(format!("{:?} is no header", shown(&format!("{name}: {value}")))),
    }
}

/// The begin of a text from a file.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}

/// The request for a target, perhaps in absolute form, at the host that is known.
fn of_target(method: &str, known: Option<(bool, String)>, target: &str, wish: Wish<'_>) -> Result<Recorded, String> {
    let refused = || format!("{} {} asks for no path of a host", shown(method), shown(target));
    // The absolute form names the host itself.
    if !target.starts_with('/') {
        return of_url(method, target).filter(|_| target.contains("://")).ok_or_else(refused);
    }
    match (known, wish.without_host) {
        (Some((is_https, host)), _) => {
            let scheme = if is_https { "https" } else { "http" };
            of_url(method, &format!("{scheme}://{host}{target}")).ok_or_else(refused)
        }
        (None, Some(why)) => Err(why.to_owned()),
        // Any valid host serves to check the rest.
        (None, None) => {
            let found = of_url(method, &format!("http://host{target}")).ok_or_else(refused)?;
            Ok(Recorded { host: String::new(), ..found })
        }
    }
}

fn of_url(method: &str, url: &str) -> Option<Recorded> {
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
    let is_method = (1..=METHOD_BYTES_MAX).contains(&method.len())
        && method.bytes().all(|byte| byte.is_ascii_alphabetic() || b"-_".contains(&byte));
    // It opens a tunnel (RFC 9110 section 9.3.6).
    let is_tunnel = method.eq_ignore_ascii_case("CONNECT");
    let host = of_host(host)?;
    let target = escaped(&target, TARGET);
    let found = is_method && !is_tunnel && target.len() <= TARGET_BYTES_MAX;
    found.then(|| Recorded { method: method.to_owned(), ..Recorded::get(is_https, &host, &target, "") })
}

/// A name or an address, perhaps with a port (RFC 3986 section 3.2). An address of IPv6 is in brackets.
fn of_host(text: &str) -> Option<String> {
    // An empty port is allowed, and means the one of the scheme.
    let text = text.strip_suffix(':').unwrap_or(text);
    let (is_name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, after) = rest.split_once(']')?;
            (address.parse::<std::net::Ipv6Addr>().is_ok(), after)
        }
        None => {
            let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
            let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
            (!name.is_empty() && name.bytes().all(is_of_name), port)
        }
    };
    let is_port = match port.strip_prefix(':') {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.parse::<u16>().is_ok(),
        None => port.is_empty(),
    };
    (is_name && is_port && text.len() <= HOST_BYTES_MAX).then(|| text.to_owned())
}

/// What a target has besides letters and digits (RFC 3986), and what many clients send in it.
const TARGET: &[u8] = b"-._~:/?[]@!$&'()*+,;=%|";

/// Escapes all bytes but letters, digits and these.
fn escaped(text: &str, kept: &[u8]) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || kept.contains(&byte) {
            true => escaped.push(char::from(byte)),
            false => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
