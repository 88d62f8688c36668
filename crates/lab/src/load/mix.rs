//! Several requests with weights, read from a file, that a load sends in random order.

use std::io;
use std::path::Path;

use bytes::Bytes;

use super::files::Files;
use super::target::Url;
use crate::stats::Rng;

/// The most requests in a file.
const ENTRIES_MAX: usize = 10_000;

/// The greatest weight of a request.
const WEIGHT_MAX: u32 = 1_000_000;

/// The most servers of a load. Each connection of the load becomes one to each.
pub(super) const SERVERS_MAX: usize = 64;

/// The longest file of requests, without the bodies that it names.
const FILE_BYTES_MAX: usize = 16 << 20;

/// A request of a mix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// How often it is sent, in relation to the others.
    pub weight: u32,
    /// The method, such as `GET`.
    pub method: String,
    /// The path and the query.
    pub path: String,
    /// The place of the server among those of the load: 0 is that of its URL.
    pub server: usize,
    /// The body; `None` for that of the load.
    pub data: Option<Bytes>,
}

/// What is sent, by weight.
#[derive(Clone, Debug)]
pub(super) struct Mix<T> {
    /// At least one.
    items: Vec<T>,
    /// For each item, the sum of the weights up to it.
    sums: Vec<u64>,
}

impl<T> Mix<T> {
    /// The items with their weights, and `first` in front of them.
    pub(super) fn new((weight, first): (u32, T), more: impl IntoIterator<Item = (u32, T)>) -> Self {
        let mut mix = Self { items: vec![first], sums: vec![u64::from(weight)] };
        for (weight, item) in more {
            mix.sums.push(mix.all() + u64::from(weight));
            mix.items.push(item);
        }
        mix
    }

    fn all(&self) -> u64 {
        self.sums.last().copied().unwrap_or_default()
    }

    /// The place of one of them. A mix of one takes nothing from `rng`.
    pub(super) fn draw(&self, rng: &mut Rng) -> usize {
        match self.items.len() {
            1 => 0,
            _ => {
                let drawn = rng.below(usize::try_from(self.all()).unwrap_or(usize::MAX)) as u64;
                self.sums.partition_point(|sum| *sum <= drawn)
            }
        }
    }

    pub(super) fn at(&self, place: usize) -> &T {
        // `draw` gives no other places.
        self.items.get(place).unwrap_or(&self.items[0])
    }
}

/// A file of requests.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub entries: Vec<Entry>,
    /// The servers that it names besides that of the load, in the order of their places, from 1 on. Their paths mean nothing.
    pub servers: Vec<Url>,
}

impl Listed {
    /// The servers in the order of their places, with that of the load if a request is for it. If none is, the others move to the places before them.
    pub(super) fn with_url(mut self, url: Url) -> (Vec<Entry>, Vec<Url>) {
        if self.entries.is_empty() || self.entries.iter().any(|entry| entry.server == 0) {
            self.servers.insert(0, url);
        } else {
            self.entries.iter_mut().for_each(|entry| entry.server -= 1);
        }
        (self.entries, self.servers)
    }
}

/// Reads a file of requests, and the bodies that it names. `url` is that of the load.
///
/// # Errors
/// If it cannot be read or is empty, and for the first line that is wrong, with its number.
pub(super) fn read(file: &Path, url: &Url, files: &Files) -> io::Result<Listed> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
    let bytes = files.read(file)?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(named(invalid("it is longer than 16 MiB".to_owned())));
    }
    let text = str::from_utf8(&bytes).map_err(|_| named(invalid("it is not UTF-8".to_owned())))?;
    parse(text, url, |name| files.data(name)).map_err(named)
}

fn parse(text: &str, url: &Url, body: impl Fn(&str) -> io::Result<Bytes>) -> io::Result<Listed> {
    let mut listed = Listed::default();
    for (number, line) in (1_usize..).zip(text.lines()) {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let entry = entry(line, url, &mut listed.servers, &body);
        listed.entries.push(entry.map_err(|why| invalid(format!("line {number}: {why}")))?);
        if listed.entries.len() > ENTRIES_MAX {
            return Err(invalid(format!("more than {ENTRIES_MAX} requests")));
        }
    }
    if listed.entries.is_empty() {
        return Err(invalid("there is no request in it; write lines such as `3 GET /path`".to_owned()));
    }
    Ok(listed)
}

fn entry(
    line: &str,
    url: &Url,
    servers: &mut Vec<Url>,
    body: impl Fn(&str) -> io::Result<Bytes>,
) -> Result<Entry, String> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let (weight, method, path, data) = match words.as_slice() {
        [weight, method, path] => (weight, method, path, None),
        [weight, method, path, data] if data.starts_with('@') => (weight, method, path, Some(data)),
        _ => {
            return Err(
                "write a weight, a method, and a path or a URL, and a body if there is one: `1 POST /orders @order.json`"
                    .to_owned(),
            );
        }
    };
    let weight = weight.parse().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight));
    let weight = weight.ok_or_else(|| format!("the weight must be a number from 1 to {WEIGHT_MAX}"))?;
    let method = super::args::method(method).map_err(|why| format!("{method:?}: {why}"))?;
    let (path, server) = match path.contains("://") && !path.starts_with('/') {
        true => {
            let named = Url::parse(path).map_err(|error| error.to_string())?;
            (named.path.clone(), place_of(named, url, servers)?)
        }
        false => ((*path).to_owned(), 0),
    };
    if !path.starts_with('/') || !path.bytes().all(|byte| (0x21..0x7f).contains(&byte)) {
        return Err(format!(
            "{path:?} is not a path: it begins with a slash, and everything outside ASCII is percent-encoded"
        ));
    }
    let data = data.map(|data| body(data).map_err(|error| error.to_string())).transpose()?;
    Ok(Entry { weight, method, path, server, data })
}

/// The place of a server, which is added to these if it is new.
fn place_of(named: Url, url: &Url, servers: &mut Vec<Url>) -> Result<usize, String> {
    let is_same = |other: &Url| {
        (named.is_secure, named.port) == (other.is_secure, other.port) && named.name.eq_ignore_ascii_case(&other.name)
    };
    if is_same(url) {
        return Ok(0);
    }
    if let Some(known) = servers.iter().position(is_same) {
        return Ok(known + 1);
    }
    servers.push(named);
    // The server of the URL is one of them.
    match servers.len() < SERVERS_MAX {
        true => Ok(servers.len()),
        false => Err(format!("there are more than {SERVERS_MAX} servers, with that of the URL")),
    }
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_drawn_as_often_as_its_weight_says() {
        let mix = Mix::new((1, 'a'), [(3, 'b'), (6, 'c')]);
        let mut rng = Rng::new(5);
        let mut counts = [0_u32; 3];
        (0..10_000).for_each(|_| counts[mix.draw(&mut rng)] += 1);
        assert!((900..1_100).contains(&counts[0]) && (5_800..6_200).contains(&counts[2]), "{counts:?}");
        assert_eq!(mix.at(2), &'c');
        let before = rng.clone().next_u64();
        assert_eq!((Mix::new((7, 'x'), []).draw(&mut rng), rng.next_u64()), (0, before));
    }

    #[test]
    fn lines_of_requests() {
        let body = |name: &str| match name {
            "@order.json" => Ok(Bytes::from_static(b"{}")),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        };
        let url = Url::parse("http://a.example/x").unwrap();
        let text = "# a shop\n3 GET /?q=1\n\n 1 POST /orders @order.json\n2 GET https://b:1/2\n1 GET HTTP://A.example:80\n1 GET https://B:1?3\n";
        let Listed { entries, servers } = parse(text, &url, body).unwrap();
        let entry = |weight, method: &str, path: &str, data: Option<&'static [u8]>, server| Entry {
            weight,
            method: method.to_owned(),
            path: path.to_owned(),
            server,
            data: data.map(Bytes::from_static),
        };
        let expect = [
            entry(3, "GET", "/?q=1", None, 0),
            entry(1, "POST", "/orders", Some(b"{}"), 0),
            entry(2, "GET", "/2", None, 1),
            entry(1, "GET", "/", None, 0),
            entry(1, "GET", "/?3", None, 1),
        ];
        assert_eq!(entries, expect);
        assert_eq!(servers.iter().map(|url| url.authority.as_str()).collect::<Vec<_>>(), ["b:1"]);
        let moved = |text: &str| {
            let (entries, servers) = parse(text, &url, body).unwrap().with_url(url.clone());
            let places: Vec<_> = entries.iter().map(|entry| entry.server).collect();
            (places, servers.iter().map(|url| url.authority.clone()).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(moved("1 GET /\n1 GET http://b/\n"), (vec![0, 1], "a.example b".to_owned()));
        assert_eq!(moved("1 GET http://c/\n1 GET http://b/\n"), (vec![0, 1], "c b".to_owned()));
        let many: String = (1..=SERVERS_MAX).map(|port| format!("1 GET http://b:{port}/\n")).collect();
        assert!(parse(&many, &url, body).unwrap_err().to_string().contains("line 64: there are more than 64 servers"));
        let check = |text: &str, expect: &str| {
            let why = parse(text, &url, body).unwrap_err().to_string();
            assert!(why.contains(expect), "{text:?}: {why}");
        };
        check("", "no request in it");
        check("1 GET /\nGET /\n", "line 2: write a weight");
        check("0 GET /", "line 1: the weight");
        check("1 GET ftp://x/", "the scheme is");
        check("1 GET x", "is not a path");
        check("1 CONNECT /", "CONNECT is not supported");
        check("1 POST / @no", "not found");
        check("1 POST / body", "write a weight");
    }
}
