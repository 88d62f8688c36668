//! Recorded requests that a load sends again: which of a file, to whom, and when.
//!
//! The file is read before the load begins, up to `-n` requests. Only what will be sent is kept, and equal requests are kept once, so a log may
//! be larger than the memory. `requests` reads it.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::{Args, ValueHint};
use serde::{Deserialize, Serialize};

use super::target::Url;
use crate::requests::{self, Entry, Form, Recorded, Stamp, Wish};
use crate::schedule::clock;

/// The most requests of one replay. Each takes 12 bytes besides what is sent.
const REQUESTS_MAX: usize = 5_000_000;

/// The most memory that the different requests of a replay may take.
const BYTES_MAX: usize = 256 << 20;

/// The hosts that an error names.
const HOSTS_SHOWN_MAX: usize = 5;

const SECOND_NS: u64 = 1_000_000_000;

const HEADING: &str = "Replay";

/// Which recorded requests are sent, and how.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct ReplayArgs {
    /// Send the requests of this file to the server of the URL, at the times that the file has: an access log (of nginx, ingress-nginx, HAProxy or
    /// Steelyard, or JSON lines), a HAR file, or a list with `METHOD PATH` or `METHOD URL` on each line; - for standard input. With --rate, at that
    /// rate. At most -n requests
    #[arg(
        long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = HEADING,
        conflicts_with_all = ["method", "data", "body", "mix", "same_length", "duration", "trim", "stages", "pacing", "find_capacity", "generators"]
    )]
    pub replay: Option<PathBuf>,

    /// With --replay: send this many times as fast as recorded, such as 2 or 0.5, or as fast as the connections allow (max)
    #[arg(long, value_name = "FACTOR|max", default_value = "1", value_parser = speed, requires = "replay", conflicts_with = "rate", help_heading = HEADING)]
    pub speed: Speed,

    /// With --replay: send only the requests that were recorded for this host; repeat it for several
    #[arg(long = "only-host", value_name = "NAME", requires = "replay", help_heading = HEADING)]
    pub only_hosts: Vec<String>,

    /// With --replay: send the recorded host instead of that of the URL
    #[arg(long, requires = "replay", help_heading = HEADING)]
    pub keep_host: bool,

    /// With --replay: send recorded bodies, cookies, passwords and tokens also to another server than they were recorded for
    #[arg(long, requires = "replay", help_heading = HEADING)]
    pub keep_secrets: bool,
}

/// How fast recorded requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Speed {
    /// At this multiple of the recorded speed.
    Times(f64),
    /// As fast as the connections allow.
    Max,
}

impl fmt::Display for Speed {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Times(factor) => factor.fmt(to),
            Self::Max => to.write_str("max"),
        }
    }
}

fn speed(text: &str) -> Result<Speed, String> {
    match text.parse::<f64>() {
        _ if text == "max" => Ok(Speed::Max),
        Ok(factor) if (0.001..=100_000.0).contains(&factor) => Ok(Speed::Times(factor)),
        _ => Err("write a factor from 0.001 to 100,000, or max".to_owned()),
    }
}

/// What a file had, for the report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Replayed {
    /// The file.
    pub file: String,
    /// Requests that are sent.
    pub requests: u64,
    /// From the first to the last of them, in seconds; `None` if the file has no times.
    pub recorded_s: Option<f64>,
    /// The speed, as on the command line; `None` if `--rate` says when requests are due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<String>,
    /// Entries of the file that are no requests that can be sent.
    pub skipped: u64,
    /// Where the first one of these is, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_skipped: Option<String>,
    /// Requests for other hosts than those of `--only-host`.
    pub other_hosts: u64,
    /// Requests that were probably recorded with a body, and are sent without: a log does not have it.
    pub without_body: u64,
    /// Requests for another server than the recorded one from which headers with secrets, or the query of `Referer`, are left out.
    pub without_secrets: u64,
    /// Requests for another server than the recorded one from which the body is left out.
    #[serde(default)]
    pub withheld_bodies: u64,
    /// Whether the file may have more requests.
    pub is_cut: bool,
}

/// The recorded requests of a load.
#[derive(Debug)]
pub struct Recording {
    /// Without duplicates.
    pub(super) requests: Vec<Recorded>,
    pub(super) schedule: Arc<Schedule>,
}

/// Which request is sent when.
#[derive(Debug)]
pub(super) struct Schedule {
    /// For each operation, the place of its request.
    places: Vec<u32>,
    /// For each operation, when it is due, in nanoseconds after the first one; in order. `None`: whenever a connection is free.
    due_ns: Option<Vec<u64>>,
    /// The next operation, if there are no times.
    next: AtomicUsize,
    pub about: Replayed,
}

impl Schedule {
    pub(super) fn len(&self) -> u64 {
        self.places.len() as u64
    }

    pub(super) fn has_times(&self) -> bool {
        self.due_ns.is_some()
    }

    /// When the last operation is due, after the first one. `None` if there are no times.
    pub(super) fn span(&self) -> Option<Duration> {
        self.due(self.len().checked_sub(1)?)
    }

    /// When an operation is due, after the first one. `None` if there are no times, or no such operation.
    pub(super) fn due(&self, operation: u64) -> Option<Duration> {
        self.due_ns.as_ref()?.get(usize::try_from(operation).ok()?).map(|ns| Duration::from_nanos(*ns))
    }

    /// The place of the request of an operation.
    pub(super) fn place(&self, operation: u64) -> Option<usize> {
        self.places.get(usize::try_from(operation).ok()?).map(|place| *place as usize)
    }

    /// Takes the next operation, and returns the place of its request. `None` if all are taken.
    pub(super) fn take(&self) -> Option<usize> {
        self.place(self.next.fetch_add(1, Ordering::Relaxed) as u64)
    }
}

impl ReplayArgs {
    /// Reads the file, if there is one. `url` is that of the server, `requests_max` is -n, and `has_rate` says that the file's times do not count.
    ///
    /// # Errors
    /// The file cannot be read, or has no request that is to be sent.
    pub(super) fn read(&self, url: &Url, requests_max: Option<u64>, has_rate: bool) -> io::Result<Option<Recording>> {
        let Some(file) = &self.replay else { return Ok(None) };
        if url.path != "/" {
            let why =
                format!("the URL has the path {}, but --replay has the paths of its file: leave it out", url.path);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
        let max = requests_max.map_or(REQUESTS_MAX, |max| usize::try_from(max).unwrap_or(usize::MAX).min(REQUESTS_MAX));
        let found = opened(file).and_then(|input| self.chosen(input, url, max)).map_err(named)?;
        Ok(Some(self.scheduled(found, file, has_rate)))
    }

    fn chosen(&self, input: impl BufRead, url: &Url, requests_max: usize) -> io::Result<Chosen> {
        let mut chosen = Chosen::default();
        let (mut known, mut bytes) = (HashMap::<Recorded, u32>::new(), 0);
        let mut take = |Entry { mut request, at, form }: Entry| {
            if !self.is_wanted(&request.host) {
                chosen.about.other_hosts += 1;
                if chosen.other_hosts.len() < HOSTS_SHOWN_MAX && !chosen.other_hosts.contains(&request.host) {
                    chosen.other_hosts.push(request.host);
                }
                return true;
            }
            let had_body = form == Form::Logged && matches!(request.method.as_str(), "POST" | "PUT" | "PATCH");
            chosen.about.without_body += u64::from(had_body);
            if !self.keep_secrets && !is_of(&request, url) {
                chosen.about.without_secrets += u64::from(remove_secrets(&mut request));
                let body = std::mem::take(&mut request.body);
                chosen.about.withheld_bodies += u64::from(!body.is_empty());
            }
            let next = known.len() as u32;
            let size = request.bytes();
            let place = *known.entry(request).or_insert_with(|| {
                bytes += size;
                next
            });
            chosen.entries.push((at, place));
            chosen.entries.len() < requests_max && bytes < BYTES_MAX
        };
        let read = requests::read(input, Wish::default(), &mut take)?;
        chosen.about.is_cut = chosen.entries.len() >= requests_max || bytes >= BYTES_MAX;
        chosen.about.skipped = read.skipped;
        chosen.about.first_skipped = Some(read.first).filter(|first| !first.is_empty());
        if chosen.entries.is_empty() {
            let hosts = chosen.other_hosts.iter().filter(|host| !host.is_empty()).cloned().collect::<Vec<_>>();
            let has =
                if hosts.is_empty() { "it names no hosts".to_owned() } else { format!("it has {}", hosts.join(", ")) };
            let why = format!("no request is for --only-host {}; {has}", self.only_hosts.join(", "));
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let mut requests: Vec<_> = known.into_iter().collect();
        requests.sort_unstable_by_key(|(_, place)| *place);
        chosen.requests = requests.into_iter().map(|(request, _)| request).collect();
        Ok(chosen)
    }

    /// Whether requests for this host are to be sent. A name without a port stands for all ports.
    fn is_wanted(&self, host: &str) -> bool {
        let is = |name: &String| host.eq_ignore_ascii_case(name) || name_of(host).eq_ignore_ascii_case(name);
        self.only_hosts.is_empty() || self.only_hosts.iter().any(is)
    }

    fn scheduled(&self, mut chosen: Chosen, file: &Path, has_rate: bool) -> Recording {
        let times = times(&mut chosen.entries);
        let mut about = chosen.about;
        about.file = file.display().to_string();
        about.requests = chosen.entries.len() as u64;
        about.recorded_s = times.as_ref().and_then(|times| Some(*times.last()? as f64 / 1e9));
        about.speed = (!has_rate).then(|| self.speed.to_string());
        let due_ns = match self.speed {
            Speed::Times(factor) if !has_rate => {
                times.map(|times| times.into_iter().map(|ns| (ns as f64 / factor) as u64).collect())
            }
            _ => None,
        };
        let places = chosen.entries.into_iter().map(|(_, place)| place).collect();
        let schedule = Arc::new(Schedule { places, due_ns, next: AtomicUsize::new(0), about });
        Recording { requests: chosen.requests, schedule }
    }
}

/// What is sent of a file, in its order.
#[derive(Default)]
struct Chosen {
    entries: Vec<(Option<Stamp>, u32)>,
    requests: Vec<Recorded>,
    /// Some of the hosts that are not wanted.
    other_hosts: Vec<String>,
    about: Replayed,
}

fn opened(file: &Path) -> io::Result<Box<dyn BufRead>> {
    match file.to_str() {
        Some("-") => Ok(Box::new(io::stdin().lock())),
        _ => Ok(Box::new(BufReader::with_capacity(1 << 18, std::fs::File::open(file)?))),
    }
}

/// Brings the entries into the order of their times, and returns these in nanoseconds after the first one. `None` if the file has none.
///
/// Logs are written when responses are complete, by several processes, so they are not quite in order. An entry without a time has that of the one
/// before it. Requests of one second, in a log without fractions, are spread over it: they were not sent all at once.
fn times(entries: &mut [(Option<Stamp>, u32)]) -> Option<Vec<u64>> {
    let mut last = entries.iter().find_map(|(at, _)| *at)?;
    for (at, _) in entries.iter_mut() {
        last = *at.get_or_insert(last);
    }
    let ns = |(at, _): &(Option<Stamp>, u32)| at.map_or(0, |at| at.ns);
    entries.sort_by_key(ns);
    let mut times: Vec<u64> = Vec::with_capacity(entries.len());
    for same in entries.chunk_by(|one, other| one.0 == other.0) {
        let is_whole_second = same.first().is_some_and(|(at, _)| at.is_some_and(|at| at.is_whole_second));
        let count = same.len() as u64;
        let step = |index: u64| if is_whole_second { SECOND_NS * index / count } else { 0 };
        times.extend(same.iter().map(ns).zip(0..).map(|(ns, index)| ns + step(index)));
    }
    // A file may have times of both kinds.
    let first = times.first().copied()?;
    let mut latest = 0;
    for time in &mut times {
        latest = (*time - first).max(latest);
        *time = latest;
    }
    Some(times)
}

/// The name of a host without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Whether a request was recorded for this server, over a connection that was no safer.
fn is_of(request: &Recorded, url: &Url) -> bool {
    let with_port = |host: &str, is_https: bool| match name_of(host).len() == host.len() {
        true => format!("{host}:{}", if is_https { 443 } else { 80 }),
        false => host.to_owned(),
    };
    let recorded = with_port(&request.host, request.is_https);
    recorded.eq_ignore_ascii_case(&with_port(&url.authority, url.is_secure)) && (url.is_secure || !request.is_https)
}

/// Parts of the names of headers that are secret: those that the access log of Steelyard hides, and more, because another server gets them.
const SECRETS: &[&str] = &[
    "auth",
    "cookie",
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "credential",
    "api-key",
    "apikey",
    "access-key",
    "access-code",
    "admin-key",
    "license-key",
    "private-key",
    "subscription-key",
    "functions-key",
    "session",
    "jwt",
    "csrf",
    "xsrf",
    "signature",
];

/// Words that are secret if a whole part of the name is one of them: `x-pin`, but not `x-shopping-list`.
const SECRET_WORDS: &[&str] = &["sid", "otp", "pin"];

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('_', "-");
    SECRETS.iter().any(|part| name.contains(part)) || name.split('-').any(|word| SECRET_WORDS.contains(&word))
}

/// Removes headers that are secret, and the query of `Referer`. Returns whether there was one.
fn remove_secrets(request: &mut Recorded) -> bool {
    let before = request.headers.len();
    request.headers.retain(|(name, _)| !is_secret(name));
    let mut is_changed = request.headers.len() < before;
    let referers = request.headers.iter_mut().filter(|(name, _)| name.eq_ignore_ascii_case("referer"));
    for (_, url) in referers {
        if let Some(at) = url.find(['?', '#']) {
            url.truncate(at);
            is_changed = true;
        }
    }
    is_changed
}

impl Replayed {
    /// What a user must know about it, in lines of text. They contain text from the file.
    pub(super) fn lines(&self) -> Vec<String> {
        let Self { file, requests, .. } = self;
        let more = if self.is_cut { "the first " } else { "" };
        let recorded = match self.recorded_s.map(Duration::try_from_secs_f64) {
            Some(time) => format!("recorded over {}", clock(time.unwrap_or_default())),
            None => "which has no times".to_owned(),
        };
        let speed = match self.speed.as_deref() {
            Some("max") | None => String::new(),
            Some(_) if self.recorded_s.is_none() => String::new(),
            Some(factor) => format!(", at speed {factor}"),
        };
        let mut lines = vec![format!("{more}{requests} requests of {file}, {recorded}{speed}")];
        let mut add = |count: u64, what: &str| lines.extend((count > 0).then(|| format!("{count} {what}")));
        let first = self.first_skipped.as_deref().unwrap_or_default();
        add(self.skipped, &format!("entries cannot be read; {first}"));
        add(self.other_hosts, "requests were for other hosts");
        add(self.without_body, "POST, PUT and PATCH requests have no body, because the log has none");
        let kept = "(--keep-secrets sends them); their paths and queries are sent";
        add(
            self.without_secrets,
            &format!(
                "requests for another server are sent without headers with secrets or the query of Referer {kept}"
            ),
        );
        add(
            self.withheld_bodies,
            &format!("requests for another server are sent without their recorded bodies {kept}"),
        );
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(change: impl FnOnce(&mut ReplayArgs)) -> ReplayArgs {
        let mut args = ReplayArgs {
            replay: Some("-".into()),
            speed: Speed::Times(1.0),
            only_hosts: Vec::new(),
            keep_host: false,
            keep_secrets: false,
        };
        change(&mut args);
        args
    }

    fn recording(args: &ReplayArgs, url: &str, text: &str) -> io::Result<Recording> {
        let chosen = args.chosen(text.as_bytes(), &Url::parse(url)?, 100)?;
        Ok(args.scheduled(chosen, Path::new("log"), false))
    }

    fn due_ms(recording: &Recording) -> Vec<u128> {
        let schedule = &recording.schedule;
        (0..schedule.len()).map(|operation| schedule.due(operation).unwrap().as_millis()).collect()
    }

    #[test]
    fn requests_of_one_second_are_spread_over_it() {
        let line = |second: &str, path: &str| {
            format!("::1 - - [24/Nov/2026:10:00:{second} +0000] \"GET {path} HTTP/1.1\" 200 1\n")
        };
        // The last one was written late, by another process.
        let text = [line("01", "/a"), line("01", "/b"), line("03", "/a"), line("01", "/c"), line("01", "/a")].concat();
        let found = recording(&args(|_| {}), "http://a", &text).unwrap();
        assert_eq!(due_ms(&found), [0, 250, 500, 750, 2_000]);
        let target = |operation| found.requests[found.schedule.place(operation).unwrap()].target.as_str();
        assert_eq!([0, 1, 2, 3, 4].map(target), ["/a", "/b", "/c", "/a", "/a"]);
        assert_eq!((found.requests.len(), found.schedule.about.recorded_s), (3, Some(2.0)));
        let twice = recording(&args(|args| args.speed = Speed::Times(2.0)), "http://a", &text).unwrap();
        assert_eq!(due_ms(&twice), [0, 125, 250, 375, 1_000]);
        let max = recording(&args(|args| args.speed = Speed::Max), "http://a", &text).unwrap();
        assert!(!max.schedule.has_times() && max.schedule.due(0).is_none());
        assert_eq!((0..6).map(|_| max.schedule.take().is_some()).filter(|is| *is).count(), 5);
    }

    #[test]
    fn times_that_are_missing_or_mixed_stay_in_order() {
        let at = |ns, is_whole_second| Some(Stamp { ns, is_whole_second });
        let mut entries = [
            (None, 0),
            (at(SECOND_NS, true), 1),
            (at(SECOND_NS, true), 2),
            (at(SECOND_NS, false), 3),
            (None, 4),
            (at(0, false), 5),
        ];
        let times = times(&mut entries).unwrap();
        assert!(times.is_sorted(), "{times:?}");
        assert_eq!((times.len(), times[0], entries[0].1), (6, 0, 5));
        assert_eq!(super::times(&mut [(None, 0), (None, 1)]), None);
        let mut far = [(at(0, false), 0), (at(u64::MAX / 2, true), 1)];
        assert_eq!(super::times(&mut far).unwrap(), [0, u64::MAX / 2]);
    }

    #[test]
    fn hosts_are_chosen_and_secrets_stay_with_theirs() {
        let text = "GET https://a.example/1\tCookie: s=1\tX-Trace: t\nGET http://b.example:8080/2\tX-Api-Key: k\nGET /3\tAuthorization: x\n";
        let check = |args: &ReplayArgs, url: &str, expect: &[(&str, usize)]| {
            let found = recording(args, url, text).unwrap();
            let told: Vec<_> = found.requests.iter().map(|one| (one.target.as_str(), one.headers.len())).collect();
            assert_eq!(told, expect, "{url} {args:?}");
            let about = &found.schedule.about;
            assert_eq!(about.other_hosts as usize + expect.len(), 3);
            about.without_secrets
        };
        assert_eq!(check(&args(|_| {}), "http://127.0.0.1", &[("/1", 1), ("/2", 0), ("/3", 0)]), 3);
        assert_eq!(check(&args(|_| {}), "https://A.example:443", &[("/1", 2), ("/2", 0), ("/3", 0)]), 2);
        // The name is the same, but everybody can read it.
        assert_eq!(check(&args(|_| {}), "http://a.example:443", &[("/1", 1), ("/2", 0), ("/3", 0)]), 3);
        assert_eq!(check(&args(|args| args.keep_secrets = true), "http://c", &[("/1", 2), ("/2", 1), ("/3", 1)]), 0);
        let only = |names: &[&str]| args(|args| args.only_hosts = names.iter().map(ToString::to_string).collect());
        check(&only(&["B.example"]), "http://c", &[("/2", 0)]);
        check(&only(&["b.example:8080", "a.example"]), "http://c", &[("/1", 1), ("/2", 0)]);
        let why = recording(&only(&["c"]), "http://c", text).unwrap_err().to_string();
        assert_eq!(why, "no request is for --only-host c; it has a.example, b.example:8080");
    }

    #[test]
    fn bodies_and_all_names_of_secrets_stay_with_theirs() {
        let secret = "apikey x-api_key X-APIKEY x-hasura-admin-key x-license_key sid X-Sid x-otp passcode x-pin x-access-code x-xsrf X-Amz-Credential";
        let public = "x-shopping-list x-inside idempotency-key accept x-mapping";
        let headers: Vec<_> = secret
            .split(' ')
            .chain(public.split(' '))
            .map(|name| (name, "v"))
            .chain([("Referer", "https://shop.example/x?access_token=1#y")])
            .map(|(name, value)| serde_json::json!({"name": name, "value": value}))
            .collect();
        let request = serde_json::json!({
            "method": "POST", "url": "https://shop.example/login?a=b", "headers": headers, "postData": {"text": "password=p"},
        });
        let text = serde_json::json!({"log": {"entries": [{"request": request}]}}).to_string();
        let found = recording(&args(|_| {}), "http://a", &text).unwrap();
        let sent = &found.requests[0];
        let names: Vec<_> = sent.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.join(" "), format!("{public} Referer"));
        assert_eq!(sent.headers.last().unwrap().1, "https://shop.example/x");
        assert_eq!((sent.body.len(), sent.target.as_str()), (0, "/login?a=b"));
        let about = &found.schedule.about;
        assert_eq!((about.without_secrets, about.withheld_bodies), (1, 1));
        for (args, url) in [(args(|args| args.keep_secrets = true), "http://a"), (args(|_| {}), "https://shop.example")]
        {
            let found = recording(&args, url, &text).unwrap();
            assert_eq!((found.requests[0].headers.len(), found.requests[0].body.len()), (headers.len(), 10));
            assert_eq!(found.schedule.about.withheld_bodies, 0);
        }
    }

    #[test]
    fn reading_ends_with_the_last_request_that_is_sent() {
        let args = args(|_| {});
        let chosen = args.chosen("GET /1\nGET /2\nGET /3\n".as_bytes(), &Url::parse("a").unwrap(), 2).unwrap();
        assert_eq!((chosen.entries.len(), chosen.about.is_cut), (2, true));
        let log = "::1 - - [x] \"POST /1 HTTP/1.1\" 200 1\nnothing\n";
        let found = recording(&args, "http://a", log).unwrap();
        assert_eq!(
            found.schedule.about.lines(),
            [
                "1 requests of log, which has no times",
                "1 entries cannot be read; line 2: it has no request line",
                "1 POST, PUT and PATCH requests have no body, because the log has none",
            ]
        );
    }

    #[test]
    fn speeds() {
        assert_eq!((speed("max"), speed("0.5")), (Ok(Speed::Max), Ok(Speed::Times(0.5))));
        assert!(["0", "-1", "inf", "NaN", "fast", "1e9"].iter().all(|text| speed(text).is_err()));
    }
}
