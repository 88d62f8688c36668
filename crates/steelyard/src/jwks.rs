//! Fetches the sets of keys that verify tokens, and fetches them again when they may have changed.
//!
//! One task for each source, whatever the number of workers, listeners and routes that use it. A set is fetched again when its `Cache-Control`
//! says so, and when a token names a key that it does not have. While that fails, the keys that are known stay in use.

use std::collections::HashMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::{self, HeaderMap};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use model::{Dns, JwkSet, JwksUrl};
use net::clock;
use proxy::{ClientKeys, KeySource, NamedFiles};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::resolve;

/// The shortest time between two fetches of one set, whatever `Cache-Control` says and however many tokens name keys that are not there.
const PAUSE_MIN: Duration = Duration::from_secs(5);

/// How long a set without `Cache-Control` is good.
const AGE_DEFAULT: Duration = Duration::from_secs(15 * 60);

/// How long any set is good: a key that an issuer takes back must go on the same day.
const AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// The pauses after failures: doubled from the first to the second.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// From the first packet to the last byte of a set.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Sets that are fetched at the same time, which bounds their memory (16 MiB). Hosts that do not answer hold up few others.
const FETCHES_MAX: usize = 64;

/// Bytes of the head of a response.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// How long a new configuration waits for its keys.
const FIRST_TIMEOUT: Duration = Duration::from_secs(2);

/// What TLS with the host of a URL trusts, or why that is not known. `None` for plain text.
type Trust = Option<Result<Arc<ClientKeys>, String>>;

/// The tasks that fetch the sets of a snapshot.
#[derive(Default)]
pub(crate) struct Fetchers {
    /// By the address of the source, which each of them holds.
    all: HashMap<usize, Fetcher>,
    room: Option<Arc<Semaphore>>,
}

struct Fetcher {
    source: Arc<KeySource>,
    trust: Trust,
    dns: Dns,
    /// True after the first attempt.
    is_tried: watch::Receiver<bool>,
    /// The only task. Dropping the set ends it.
    _task: JoinSet<()>,
}

/// A set that was fetched.
struct Fetched {
    text: Bytes,
    /// How long it is good.
    age: Duration,
}

impl Fetchers {
    /// Fetches the sets of these files, and no others.
    pub(crate) fn follow(&mut self, files: &NamedFiles, dns: &Dns) {
        let room = self.room.get_or_insert_with(|| Arc::new(Semaphore::new(FETCHES_MAX))).clone();
        let mut before = std::mem::take(&mut self.all);
        for (source, trust) in files.key_sources() {
            let Some(url) = source.url() else { continue };
            let (address, trust) = (Arc::as_ptr(source) as usize, trust.cloned());
            let is_same = |old: &Fetcher| is_same(&old.trust, &trust) && old.dns == *dns;
            let fetcher = match before.remove(&address).filter(is_same) {
                Some(same) => same,
                None => Fetcher::start(source.clone(), url.clone(), trust, dns.clone(), room.clone()),
            };
            self.all.insert(address, fetcher);
        }
    }

    /// Waits until each set has been tried once, for a while.
    pub(crate) async fn tried(&self) {
        let all = async {
            for fetcher in self.all.values() {
                let _ = fetcher.is_tried.clone().wait_for(|is_tried| *is_tried).await;
            }
        };
        let _ = timeout(FIRST_TIMEOUT, all).await;
    }
}

fn is_same(one: &Trust, other: &Trust) -> bool {
    match (one, other) {
        (Some(Ok(one)), Some(Ok(other))) => Arc::ptr_eq(one, other),
        (Some(Err(one)), Some(Err(other))) => one == other,
        (one, other) => one.is_none() && other.is_none(),
    }
}

impl Fetcher {
    fn start(source: Arc<KeySource>, url: JwksUrl, trust: Trust, dns: Dns, room: Arc<Semaphore>) -> Self {
        let (tried, is_tried) = watch::channel(source.counts().is_some());
        let mut task = JoinSet::new();
        let (of_task, of_fetch) = (source.clone(), (trust.clone(), dns.clone()));
        task.spawn(async move {
            let (trust, dns) = of_fetch;
            let fetch = async || {
                // The semaphore is never closed.
                let _room = room.acquire().await;
                let late = || format!("no answer within {} s", FETCH_TIMEOUT.as_secs());
                timeout(FETCH_TIMEOUT, fetch(&url, &trust, &dns)).await.unwrap_or_else(|_| Err(late()))
            };
            keep(&of_task, tried, fetch).await;
        });
        Self { source, trust, dns, is_tried, _task: task }
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        tracing::debug!(jwks = self.source.name(), "no longer fetched by this task");
    }
}

/// Keeps the keys of a source fresh, forever.
async fn keep<F: Future<Output = Result<Fetched, String>>>(
    source: &KeySource,
    tried: watch::Sender<bool>,
    fetch: impl Fn() -> F,
) {
    let mut failures = 0;
    loop {
        let begun = Instant::now();
        let outcome = match fetch().await {
            Ok(Fetched { text, age }) => source.publish(&text, clock::now_ms()).map(|()| age),
            Err(why) => Err(why),
        };
        let name = source.name();
        let pause = match outcome {
            Ok(age) => {
                let keys = source.counts().map_or(0, |(keys, _)| keys);
                tracing::debug!(jwks = name, keys, ?age, "fetched a key set");
                failures = 0;
                age.clamp(PAUSE_MIN, AGE_MAX)
            }
            Err(error) => {
                let has_keys = source.counts().is_some();
                tracing::warn!(jwks = name, error, has_keys, "cannot fetch a key set");
                source.note_failure(error);
                let (first, last) = RETRY_AFTER;
                let pause = first.saturating_mul(1 << failures.min(10)).min(last);
                failures += 1;
                // Where there are keys, little depends on it.
                if has_keys { pause.max(PAUSE_MIN) } else { pause }
            }
        };
        tried.send_replace(true);
        let (soonest, due) = (begun + PAUSE_MIN.min(pause), Instant::now() + pause);
        sleep_until(soonest).await;
        tokio::select! {
            () = sleep_until(due) => {}
            () = source.asked() => {}
        }
    }
}

async fn fetch(url: &JwksUrl, trust: &Trust, dns: &Dns) -> Result<Fetched, String> {
    let addresses = match url.host.parse::<IpAddr>() {
        Ok(address) => vec![address],
        Err(_) => {
            resolve::addresses(dns, &url.host).await.map_err(|why| format!("cannot resolve {}: {why}", url.host))?
        }
    };
    let mut failure = format!("{} has no address", url.host);
    for address in addresses {
        let address = SocketAddr::new(address, url.port);
        let tcp = match TcpStream::connect(address).await {
            Ok(tcp) => tcp,
            Err(error) => {
                failure = format!("cannot connect to {address}: {error}");
                continue;
            }
        };
        return match trust {
            None if url.is_https => Err("it is not known which certificates are trusted".to_owned()),
            None => ask(url, tcp).await,
            Some(Err(why)) => Err(why.clone()),
            Some(Ok(keys)) => {
                let tls = keys.secure(tcp, address, Some(&url.host)).await;
                ask(url, tls.map_err(|error| format!("TLS with {address} failed: {error}"))?).await
            }
        };
    }
    Err(failure)
}

/// Asks for the set over a connection of its own.
async fn ask(url: &JwksUrl, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Fetched, String> {
    let request = Request::get(&url.path)
        .header(header::HOST, url.authority())
        .header(header::ACCEPT, "application/jwk-set+json, application/json")
        .header(header::USER_AGENT, "steelyard")
        .body(Empty::<Bytes>::new())
        .map_err(|error| format!("the URL cannot be asked for: {error}"))?;
    let mut builder = hyper::client::conn::http1::Builder::new();
    builder.max_buf_size(HEAD_BYTES_MAX);
    let (mut sender, connection) =
        builder.handshake(TokioIo::new(stream)).await.map_err(|error| format!("no HTTP: {error}"))?;
    let mut connections = JoinSet::new();
    connections.spawn(connection);
    let response = sender.send_request(request).await.map_err(|error| format!("no response: {error}"))?;
    match response.status() {
        StatusCode::OK => {}
        status if status.is_redirection() => {
            return Err(format!(
                "the answer is {status}, and redirects are not followed: name the URL where it leads to"
            ));
        }
        status => return Err(format!("the answer is {status}")),
    }
    let age = age(response.headers());
    let body = Limited::new(response.into_body(), (JwkSet::KIB_MAX * 1024) as usize);
    match body.collect().await {
        Ok(body) => Ok(Fetched { text: body.to_bytes(), age }),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(format!("the key set is larger than {} KiB", JwkSet::KIB_MAX))
        }
        Err(error) => Err(format!("the answer was cut off: {error}")),
    }
}

/// How long a response is good (RFC 9111 section 4.2). What cannot be read is not good for long.
fn age(headers: &HeaderMap) -> Duration {
    let mut max_age = None;
    for value in headers.get_all(header::CACHE_CONTROL) {
        let Ok(value) = value.to_str() else { return Duration::ZERO };
        for directive in value.split(',').map(str::trim) {
            let (name, argument) = directive.split_once('=').unwrap_or((directive, ""));
            match name.to_ascii_lowercase().as_str() {
                "no-store" | "no-cache" => return Duration::ZERO,
                // The smaller of two that contradict each other.
                "max-age" => {
                    let found = argument.trim_matches('"').parse::<u64>().unwrap_or(0);
                    max_age = Some(max_age.map_or(found, |known: u64| known.min(found)));
                }
                _ => {}
            }
        }
    }
    let Some(max_age) = max_age else { return AGE_DEFAULT };
    let spent = headers.get(header::AGE).and_then(|age| age.to_str().ok()?.trim().parse::<u64>().ok()).unwrap_or(0);
    Duration::from_secs(max_age.saturating_sub(spent))
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use super::*;

    #[test]
    fn how_long_a_set_is_good() {
        let check = |fields: &[(&str, &str)], expect_s: u64| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(header::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
            }
            assert_eq!(age(&headers).as_secs(), expect_s, "{fields:?}");
        };
        check(&[], 900);
        check(&[("cache-control", "public")], 900);
        check(&[("cache-control", "public, Max-Age=\"60\", must-revalidate")], 60);
        check(&[("cache-control", "max-age=60"), ("cache-control", "max-age=30")], 30);
        check(&[("cache-control", "max-age=60"), ("age", "50")], 10);
        check(&[("cache-control", "max-age=60"), ("age", "70")], 0);
        check(&[("cache-control", "max-age=60, no-cache")], 0);
        check(&[("cache-control", "no-store")], 0);
        for wrong in ["max-age=x", "max-age=-1", "max-age", "max-age=99999999999999999999"] {
            check(&[("cache-control", wrong)], 0);
        }
    }

    const SET: &[u8] =
        br#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"one","x":"A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg"}]}"#;

    /// A source that is fetched with these outcomes, the last one again and again, and the seconds at which that happened.
    async fn fetched_at(outcomes: &[Result<u64, &str>], asks: &[u64], seconds: u64) -> Vec<u64> {
        let files = files();
        let source = files.key_sources().next().unwrap().0.clone();
        let (begun, at, number) = (Instant::now(), Rc::new(RefCell::new(Vec::new())), Cell::new(0));
        let fetch = async || {
            at.borrow_mut().push(begun.elapsed().as_secs());
            let outcome = outcomes[number.get().min(outcomes.len() - 1)];
            number.set(number.get() + 1);
            match outcome {
                Ok(age_s) => Ok(Fetched { text: Bytes::from_static(SET), age: Duration::from_secs(age_s) }),
                Err(why) => Err(why.to_owned()),
            }
        };
        let (tried, _is_tried) = watch::channel(false);
        let asking = async {
            for second in asks {
                sleep_until(begun + Duration::from_secs(*second)).await;
                source.ask();
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = keep(&source, tried, fetch) => {}
            () = asking => {}
            () = sleep_until(begun + Duration::from_secs(seconds)) => {}
        }
        at.take()
    }

    /// Those of a listener that demands a token with keys from a URL.
    fn files() -> NamedFiles {
        let text = "listeners: {l: {bind: :1, protocol: http, to: w, auth: {jwt: {issuer: a, audience: b, jwks: {url: 'http://a.test/'}}}}}
clusters: {w: {endpoints: ['127.0.0.1:1']}}";
        let file = config::read_file("f.yaml", text, model::Generation(1)).unwrap();
        NamedFiles::load(&file.snapshot, None).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn sets_are_fetched_when_they_are_due() {
        assert_eq!(fetched_at(&[Ok(100)], &[], 350).await, [0, 100, 200, 300]);
        // Neither all the time nor hardly ever.
        assert_eq!(fetched_at(&[Ok(0)], &[], 17).await, [0, 5, 10, 15]);
        assert_eq!(fetched_at(&[Ok(u64::MAX)], &[], 100_000).await, [0, 86_400]);
        // Failures: soon at first, and less often while there are keys.
        assert_eq!(fetched_at(&[Err("x")], &[], 200).await, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
        assert_eq!(fetched_at(&[Ok(10), Err("x")], &[], 60).await, [0, 10, 15, 20, 25, 33, 49]);
        assert_eq!(fetched_at(&[Err("x"), Err("x"), Ok(50)], &[], 60).await, [0, 1, 3, 53]);
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_keys_cause_few_fetches() {
        let each_second: Vec<u64> = (0..20).collect();
        assert_eq!(fetched_at(&[Ok(1000)], &each_second, 21).await, [0, 5, 10, 15, 20]);
        assert_eq!(fetched_at(&[Ok(1000)], &[100, 101, 102], 500).await, [0, 100, 105]);
        assert_eq!(fetched_at(&[Ok(1000), Err("x")], &[100, 101, 102, 103, 104, 300], 104).await, [0, 100]);
    }
}
