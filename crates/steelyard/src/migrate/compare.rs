//! `steelyard migrate compare`: sends the same requests to two servers and reports what is different.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use lab::requests::{Entry, Form, Recorded, Wish};
use proxy::ClientKeys;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::difference::{Answer, Difference, differences};
use super::requests::{self, Upstreams};
use crate::cli::{CompareArgs, CompareFormat};
use crate::exit::Exit;

/// The time for one response.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of a body that are compared.
const BODY_BYTES_MAX: usize = 16 << 20;

/// Requests with unimportant differences that are shown for each kind.
const SHOWN_MAX: usize = 3;

/// One of the servers.
struct Side {
    http: SocketAddr,
    https: SocketAddr,
    keys: Arc<ClientKeys>,
}

/// What became of one request.
struct Compared {
    wanted: Recorded,
    /// The statuses of both; `None` without a response.
    statuses: [Option<u16>; 2],
    differences: Vec<Difference>,
}

pub(super) fn compare(args: &CompareArgs) -> Exit {
    match run(args) {
        Ok(exit) => exit,
        Err(why) => {
            eprintln!("steelyard: {}", admin::visible(&why));
            Exit::BadConfig
        }
    }
}

fn run(args: &CompareArgs) -> Result<Exit, String> {
    let all = wanted(args)?;
    let keys = ClientKeys::accepting_any().map_err(|fault| fault.message)?;
    let side = |at: SocketAddr, https: Option<SocketAddr>| {
        let https = https.unwrap_or_else(|| SocketAddr::new(at.ip(), 443));
        Side { http: at, https, keys: keys.clone() }
    };
    let (old, new) = (side(args.old, args.old_https), side(args.new, args.new_https));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    let mut compared = Vec::new();
    for wanted in all {
        let (statuses, differences) = runtime.block_on(both(&old, &new, &wanted, args));
        compared.push(Compared { wanted, statuses, differences });
    }
    match args.format {
        CompareFormat::Text => text(&compared),
        CompareFormat::Json => drop(crate::print_line(&format!("{:#}", in_json(&compared)))),
    }
    let matters = compared.iter().flat_map(|one| &one.differences).any(|difference| difference.matters);
    Ok(if matters { Exit::Failed } else { Exit::Good })
}

/// The requests of all files, without those that may change something.
fn wanted(args: &CompareArgs) -> Result<Vec<Recorded>, String> {
    let ingresses = match args.ingresses.is_empty() {
        true => Vec::new(),
        false => super::of_files(&args.ingresses)?,
    };
    let upstreams = Upstreams::of(&ingresses);
    let mut all = Vec::new();
    for file in &args.requests {
        all.extend(recorded(file, args, &upstreams).map_err(|error| format!("{}: {error}", file.display()))?);
    }
    all.extend(match ingresses.is_empty() {
        true => Vec::new(),
        false => requests::of_ingresses(&ingresses),
    });
    let sessions = requests::with_sessions(&ingresses);
    if sessions > 0 && args.marker.is_none() {
        eprintln!(
            "steelyard: Ingresses with affinity: cookie: {sessions}; --marker shows whether their cookies lead back to the same endpoint"
        );
    }
    let before = all.len();
    if !args.all_methods {
        all.retain(Recorded::is_safe);
    }
    if all.len() < before {
        eprintln!(
            "steelyard: {} requests may change something and are left out; --all-methods sends them",
            before - all.len()
        );
    }
    if all.len() > args.limit {
        eprintln!("steelyard: the first {} of {} requests are sent; --limit changes that", args.limit, all.len());
        all.truncate(args.limit);
    }
    if all.is_empty() { Err("there are no requests: give --requests or --ingresses".to_owned()) } else { Ok(all) }
}

/// The most memory that the requests of a file may take.
const REQUEST_BYTES_MAX: usize = 256 << 20;

/// The requests of a file. A log has the same request again and again, which is sent once.
fn recorded(file: &Path, args: &CompareArgs, upstreams: &Upstreams) -> std::io::Result<Vec<Recorded>> {
    let wish = Wish {
        host: args.host.as_deref(),
        hosts: Some(upstreams),
        without_host: Some("it names no host: give --host, or --ingresses for the log of ingress-nginx"),
    };
    let (mut all, mut seen, mut bytes) = (Vec::new(), HashSet::new(), 0);
    let mut take = |Entry { mut request, form, .. }: Entry| {
        if form == Form::Saved {
            // The two servers may compress the same body in two ways.
            request.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("accept-encoding"));
        }
        if form != Form::Logged || seen.insert((request.method.clone(), request.url())) {
            bytes += request.bytes();
            all.push(request);
        }
        bytes < REQUEST_BYTES_MAX
    };
    let read = lab::requests::read(BufReader::new(File::open(file)?), wish, &mut take)?;
    if read.skipped > 0 {
        let what = format!("{}: {} entries are left out; {}", file.display(), read.skipped, read.first);
        eprintln!("steelyard: {}", admin::visible(&what));
    }
    if bytes >= REQUEST_BYTES_MAX {
        eprintln!("steelyard: the first {} requests of {} are read, which take 256 MiB", all.len(), file.display());
    }
    Ok(all)
}

async fn both(old: &Side, new: &Side, wanted: &Recorded, args: &CompareArgs) -> ([Option<u16>; 2], Vec<Difference>) {
    let (one, other) = tokio::join!(old.ask(wanted, None), new.ask(wanted, None));
    let statuses = [&one, &other].map(|answer| answer.as_ref().ok().map(|answer| answer.status));
    let (one, other) = match (one, other) {
        (Ok(one), Ok(other)) => (one, other),
        (one, other) => {
            let told = |answer: Result<Answer, String>| {
                answer.map_or_else(|why| why, |answer| format!("status {}", answer.status))
            };
            let what = "no response".to_owned();
            return (statuses, vec![Difference { what, old: told(one), new: told(other), matters: true }]);
        }
    };
    let mut found = differences(&wanted.url(), &one, &other, args.marker.as_deref(), &args.ignore);
    let (stays, also) = (old.stays(wanted, &one, args).await, new.stays(wanted, &other, args).await);
    if stays != also {
        let (old, new) = (stays.told(args).to_owned(), also.told(args).to_owned());
        found.push(Difference { what: "sticky session".to_owned(), old, new, matters: true });
    }
    (statuses, found)
}

/// What becomes of a client that sends back the cookies of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stays {
    /// There are no cookies, or the request may change something and is not repeated.
    Unknown,
    /// There is no response to the request with the cookies.
    Failed,
    /// It gets the same endpoint or, if endpoints do not name themselves, none of the cookies anew.
    Yes,
    No,
}

impl Stays {
    fn told(self, args: &CompareArgs) -> &'static str {
        match (self, args.marker.is_some()) {
            (Self::Yes, true) => "the cookie leads back to the endpoint",
            (Self::No, true) => "the cookie leads to another endpoint",
            (Self::Yes, false) => "a client that sends the cookie keeps it",
            (Self::No, false) => "a client that sends the cookie is given another one",
            (Self::Unknown, _) => "there is no cookie",
            (Self::Failed, _) => "a client that sends the cookie gets no response",
        }
    }
}

impl Side {
    /// Whether a client that sends back the cookies of a response stays where it is.
    async fn stays(&self, wanted: &Recorded, first: &Answer, args: &CompareArgs) -> Stays {
        let of = |answer: &Answer, name: &str| -> Vec<String> {
            answer
                .headers
                .iter()
                .filter(|(known, _)| known.eq_ignore_ascii_case(name))
                .map(|(_, value)| value.clone())
                .collect()
        };
        let pairs = |answer: &Answer| -> Vec<String> {
            of(answer, "set-cookie").iter().filter_map(|cookie| cookie.split(';').next()).map(str::to_owned).collect()
        };
        let own = pairs(first);
        let is_named = args.marker.as_ref().is_none_or(|marker| !of(first, marker).is_empty());
        // Whatever changes something is sent once to each side.
        if own.is_empty() || !is_named || !wanted.is_safe() {
            return Stays::Unknown;
        }
        let Ok(again) = self.ask(wanted, Some(&own.join("; "))).await else { return Stays::Failed };
        let stays = match &args.marker {
            Some(marker) => of(&again, marker) == of(first, marker),
            // One that is only given again, with a later end, is the same one.
            None => pairs(&again).iter().all(|pair| own.contains(pair)),
        };
        if stays { Stays::Yes } else { Stays::No }
    }

    async fn ask(&self, wanted: &Recorded, cookie: Option<&str>) -> Result<Answer, String> {
        let asked = async {
            let address = if wanted.is_https { self.https } else { self.http };
            let tcp =
                TcpStream::connect(address).await.map_err(|error| format!("cannot connect to {address}: {error}"))?;
            if !wanted.is_https {
                return exchange(tcp, wanted, cookie).await;
            }
            let tls = self.keys.secure(tcp, address, Some(name_of(&wanted.host))).await;
            exchange(tls.map_err(|error| format!("TLS with {address} failed: {error}"))?, wanted, cookie).await
        };
        timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(format!("nothing within {} s", PATIENCE.as_secs())))
    }
}

/// A host without its port, and without the brackets of an IPv6 address.
fn name_of(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split_once(':').map_or(host, |(name, _)| name),
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    wanted: &Recorded,
    cookie: Option<&str>,
) -> Result<Answer, String> {
    let mut request =
        Request::builder().method(wanted.method.as_str()).uri(&wanted.target).header(header::HOST, &wanted.host);
    for (name, value) in &wanted.headers {
        request = request.header(name, value);
    }
    if let Some(cookie) = cookie {
        request = request.header(header::COOKIE, cookie);
    }
    let request = request.body(Full::new(Bytes::from(wanted.body.clone()))).map_err(|error| error.to_string())?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| format!("no HTTP: {error}"))?;
    let mut connections = JoinSet::new();
    connections.spawn(connection);
    let response = sender.send_request(request).await.map_err(|error| format!("no response: {error}"))?;
    let status = response.status().as_u16();
    let value = |value: &header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = response.headers().iter().map(|(name, text)| (name.as_str().to_owned(), value(text))).collect();
    let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
    let body =
        body.map_err(|error| format!("the response was cut off or is larger than {BODY_BYTES_MAX} bytes: {error}"))?;
    Ok(Answer { status, headers, body: body.to_bytes().to_vec() })
}

fn text(compared: &[Compared]) {
    let mut page = Vec::new();
    let matters = |one: &&Compared| one.differences.iter().any(|difference| difference.matters);
    let (bad, same) =
        (compared.iter().filter(matters).count(), compared.iter().filter(|one| one.differences.is_empty()).count());
    // Writing to a vector cannot fail.
    let _ = writeln!(
        page,
        "{} requests: {same} without a difference, {} with differences that do not matter, {bad} with differences that matter",
        compared.len(),
        compared.len() - same - bad
    );
    for one in compared.iter().filter(matters) {
        let about = if one.wanted.about.is_empty() { String::new() } else { format!(" ({})", one.wanted.about) };
        let _ = writeln!(page, "\n{} {}{about}", one.wanted.method, one.wanted.url());
        for Difference { what, old, new, .. } in one.differences.iter().filter(|difference| difference.matters) {
            let _ = writeln!(page, "  {what}\n    old: {old}\n    new: {new}");
        }
    }
    let mut others: BTreeMap<&str, Vec<(&Recorded, &Difference)>> = BTreeMap::new();
    for one in compared {
        for difference in one.differences.iter().filter(|difference| !difference.matters) {
            others.entry(&difference.what).or_default().push((&one.wanted, difference));
        }
    }
    if !others.is_empty() {
        let _ = writeln!(page, "\nDifferences that do not matter");
    }
    for (what, all) in others {
        let _ = writeln!(page, "  {what}: {} requests", all.len());
        for (wanted, difference) in all.iter().take(SHOWN_MAX) {
            let _ = writeln!(page, "    {} {}: {} | {}", wanted.method, wanted.url(), difference.old, difference.new);
        }
    }
    crate::print_line(admin::visible(&String::from_utf8_lossy(&page)).trim_end());
}

fn in_json(compared: &[Compared]) -> serde_json::Value {
    let one = |one: &Compared| {
        json!({
            "method": one.wanted.method,
            "url": one.wanted.url(),
            "about": one.wanted.about,
            "status": {"old": one.statuses[0], "new": one.statuses[1]},
            "differences": one.differences,
        })
    };
    let matter = |one: &&Compared| one.differences.iter().any(|difference| difference.matters);
    json!({
        "version": 1,
        "requests": compared.len(),
        "matter": compared.iter().filter(matter).count(),
        "compared": compared.iter().map(one).collect::<Vec<_>>(),
    })
}

/// An address or a name for HTTP: `10.0.0.7`, or with a port.
pub(crate) fn server(text: &str) -> Result<SocketAddr, String> {
    resolved(text, 80)
}

/// The same for HTTPS.
pub(crate) fn https_server(text: &str) -> Result<SocketAddr, String> {
    resolved(text, 443)
}

fn resolved(text: &str, port: u16) -> Result<SocketAddr, String> {
    let form = || format!("write an address or a name, such as 10.0.0.7, 127.0.0.1:8{port:03} or lb.example.com");
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, port));
    }
    let whole = if text.contains(':') { text.to_owned() } else { format!("{text}:{port}") };
    let mut found = whole.to_socket_addrs().map_err(|error| format!("{}: {error}", form()))?;
    found.next().ok_or_else(form)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses() {
        let check = |host: &str, expect: &str| assert_eq!(name_of(host), expect);
        check("a.example", "a.example");
        check("a.example:8443", "a.example");
        check("[2001:db8::1]:443", "2001:db8::1");
        check("[2001:db8::1]", "2001:db8::1");
        assert_eq!(server("10.0.0.7").unwrap().to_string(), "10.0.0.7:80");
        assert_eq!(server("::1").unwrap().to_string(), "[::1]:80");
        assert_eq!(https_server("127.0.0.1:8443").unwrap().to_string(), "127.0.0.1:8443");
        assert!(server("a b").unwrap_err().contains("write an address or a name"));
    }
}
