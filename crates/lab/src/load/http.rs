//! HTTP load: a closed loop (as wrk) or an open one (as wrk2).
//!
//! Closed: each connection sends its next request when the last is answered, so a slow server is asked less. Good for capacity, misleading
//! for latency: who would have come during a stall is never counted. Open: requests are due at a fixed rate, and latency counts from
//! when they were due.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::client::{Client, Failure, Request};
use super::pace::{Pacer, paced};
use super::report::{HttpReport, Tally};
use super::target::Target;
use crate::host;

/// After a failed connect: a refused one comes back at once, and a tight loop would only measure how fast.
const CONNECT_PAUSE: Duration = Duration::from_millis(10);

/// How long a load goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Until {
    /// No request is sent after that; those on their way are waited for.
    Elapsed(Duration),
    /// That many requests are begun: in a closed loop the connections share them evenly, in an open one as they are due.
    Requests(u64),
}

/// What to send, and how.
#[derive(Clone, Debug)]
pub struct HttpLoad {
    /// Where to.
    pub target: Target,
    /// `GET`, and so on.
    pub method: String,
    /// Fields beside `host` and `content-length`.
    pub headers: Vec<(String, String)>,
    /// Size of the request's body.
    pub body_bytes: u64,
    /// Connections, each with one request at a time.
    pub connections: usize,
    /// Threads, each with its share of the connections; no more than connections.
    pub threads: usize,
    /// How long.
    pub until: Until,
    /// Requests per second over all connections, for an open loop; `None` is a closed one.
    pub rate: Option<f64>,
    /// How long a connect or a whole answer may take.
    pub timeout: Duration,
    /// How long the connections stay open, unused, after the last answer.
    pub hold: Duration,
    /// Once it is true, answers are counted under `origins_after_mark`.
    pub mark: Arc<AtomicBool>,
}

impl HttpLoad {
    /// GETs in a closed loop on one thread, answers within 10 s.
    pub fn get(target: Target, connections: usize, until: Until) -> Self {
        Self {
            target,
            method: "GET".to_owned(),
            headers: Vec::new(),
            body_bytes: 0,
            connections,
            threads: 1,
            until,
            rate: None,
            timeout: Duration::from_secs(10),
            hold: Duration::ZERO,
            mark: Arc::default(),
        }
    }
}

/// Puts the load on, from threads of its own, and reports when it is over. When the future is dropped, no further request is sent.
///
/// # Errors
/// Threads or timers that this host refuses. What the target does is in the report.
pub async fn run_http(load: &HttpLoad) -> io::Result<HttpReport> {
    let start = Instant::now();
    let threads = load.threads.clamp(1, load.connections.max(1));
    let request = Request::new(&load.method, &load.target.path, &load.target.host, &load.headers, load.body_bytes);
    let run = Arc::new(Run {
        request,
        deadline: match load.until {
            Until::Elapsed(duration) => Some(start + duration),
            Until::Requests(_) => None,
        },
        load: load.clone(),
        start,
        given_up: AtomicBool::new(false),
    });
    let _give_up_on_drop = GiveUpOnDrop(run.clone());
    let work = {
        let run = run.clone();
        move |index| on_thread(run.clone(), index, threads)
    };
    let mut total = Tally::default();
    for tally in host::on_threads(threads, work).await? {
        total.add(&tally);
    }
    let end = total.end.unwrap_or_else(Instant::now);
    Ok(HttpReport::new(&total, end - start))
}

/// What all threads share.
struct Run {
    load: HttpLoad,
    request: Request,
    start: Instant,
    deadline: Option<Instant>,
    given_up: AtomicBool,
}

struct GiveUpOnDrop(Arc<Run>);

impl Drop for GiveUpOnDrop {
    fn drop(&mut self) {
        self.0.given_up.store(true, Ordering::Relaxed);
    }
}

async fn on_thread(run: Arc<Run>, index: usize, threads: usize) -> io::Result<Tally> {
    let (connections, threads) = (run.load.connections as u64, threads as u64);
    let (first, share) = share_of(connections, index as u64, threads);
    let tally = Arc::new(Mutex::new(Tally::default()));
    let new = |number| Connection {
        run: run.clone(),
        tally: tally.clone(),
        client: None,
        has_connected: false,
        requests_left: match run.load.until {
            Until::Elapsed(_) => u64::MAX,
            Until::Requests(count) => share_of(count, number, connections).1,
        },
    };
    let connections = (first..first + share).map(new);
    match run.load.rate {
        None => all(connections.map(Connection::closed_loop)).await,
        Some(rate) => {
            let rate = rate / threads as f64;
            let planned = match run.load.until {
                Until::Elapsed(duration) => (rate * duration.as_secs_f64()) as u64,
                Until::Requests(count) => share_of(count, index as u64, threads).1,
            };
            // Threads take turns, each a little later than the one before it, rather than sending at the same instant.
            let interval = Duration::from_secs_f64(1.0 / rate);
            let start = run.start + interval.mul_f64(index as f64 / threads as f64);
            let pacer = Arc::new(Pacer::new(start, interval, planned));
            locked(&tally).service_latencies = Some(Default::default());
            let takers = all(connections.map(|connection| connection.open_loop(pacer.clone())));
            let unsent = paced(&pacer, run.deadline, takers).await?;
            locked(&tally).unsent = unsent;
        }
    }
    let tally = locked(&tally).clone();
    Ok(tally)
}

/// Of `count` things numbered from zero and dealt evenly to `all`: the first that `index` gets, and how many.
fn share_of(count: u64, index: u64, all: u64) -> (u64, u64) {
    let (each, extra) = (count / all, count % all);
    (each * index + extra.min(index), each + u64::from(index < extra))
}

async fn all<F: Future<Output = ()> + Send + 'static>(futures: impl Iterator<Item = F>) {
    let tasks: Vec<_> = futures.map(tokio::spawn).collect();
    for task in tasks {
        if let Err(error) = task.await
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

fn locked(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One connection of the load, through all its reconnects.
struct Connection {
    run: Arc<Run>,
    /// Shared with the other connections of the thread, so the lock is never contended.
    tally: Arc<Mutex<Tally>>,
    client: Option<Client>,
    has_connected: bool,
    /// Of a closed loop.
    requests_left: u64,
}

impl Connection {
    async fn closed_loop(mut self) {
        while self.requests_left > 0 && self.run.may_begin() {
            self.requests_left -= 1;
            self.request(Instant::now()).await;
        }
        self.hold().await;
    }

    async fn open_loop(mut self, pacer: Arc<Pacer>) {
        // Connected before the first request is due; if that fails, the first request will meet and count it.
        if let Ok(Ok(client)) =
            tokio::time::timeout(self.run.load.timeout, Client::connect(self.run.load.target.address)).await
        {
            (self.client, self.has_connected) = (Some(client), true);
        }
        while let Some(due) = pacer.next().await {
            if self.run.given_up.load(Ordering::Relaxed) {
                pacer.end();
                return;
            }
            self.request(due).await;
        }
        self.hold().await;
    }

    /// Keeps the connection for as long as it was asked to be kept after the load.
    async fn hold(self) {
        locked(&self.tally).ended_at(Instant::now());
        if self.client.is_some() && !self.run.load.hold.is_zero() {
            tokio::time::sleep(self.run.load.hold).await;
        }
    }

    /// One request, begun at `due`, to its answer or failure.
    async fn request(&mut self, due: Instant) {
        let run = self.run.clone();
        let mut resent = false;
        loop {
            let Some(mut client) = self.take_client().await else {
                locked(&self.tally).connect_errors += 1;
                tokio::time::sleep(CONNECT_PAUSE).await;
                return;
            };
            let sent_at = Instant::now();
            let is_after_mark = run.load.mark.load(Ordering::Relaxed);
            let count_origin = |name: &[u8]| locked(&self.tally).count_origin(is_after_mark, name, 1);
            let outcome = tokio::time::timeout(run.load.timeout, client.exchange(&run.request, count_origin)).await;
            let mut tally = locked(&self.tally);
            tally.received_bytes += client.take_received();
            tally.sent_bytes += run.request.bytes();
            match outcome {
                Ok(Ok(answer)) => {
                    let now = Instant::now();
                    tally.count_status(answer.status, 1);
                    match &mut tally.service_latencies {
                        None => tally.latencies.record(now - sent_at),
                        Some(service) => {
                            service.record(now - sent_at);
                            tally.latencies.record(now - due);
                        }
                    }
                    if answer.keep_alive {
                        drop(tally);
                        self.client = Some(client);
                    }
                    return;
                }
                Ok(Err(Failure::Stale)) if run.request.is_idempotent && !resent => {
                    resent = true;
                    tally.resent += 1;
                }
                Ok(Err(_)) => {
                    tally.request_errors += 1;
                    return;
                }
                Err(_) => {
                    tally.timeouts += 1;
                    return;
                }
            }
        }
    }

    /// The open connection, or a new one.
    async fn take_client(&mut self) -> Option<Client> {
        if let Some(client) = self.client.take().filter(|client| !client.is_spent()) {
            return Some(client);
        }
        let connecting = Client::connect(self.run.load.target.address);
        let client = tokio::time::timeout(self.run.load.timeout, connecting).await.ok()?.ok()?;
        if std::mem::replace(&mut self.has_connected, true) {
            locked(&self.tally).reconnects += 1;
        }
        Some(client)
    }
}

impl Run {
    /// Whether a closed loop may begin another request.
    fn may_begin(&self) -> bool {
        !self.given_up.load(Ordering::Relaxed) && self.deadline.is_none_or(|deadline| Instant::now() < deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_even_and_together_the_whole() {
        for (count, all) in [(10, 3), (2, 3), (9, 3), (0, 2), (1_003, 7)] {
            let mut next = 0;
            for index in 0..all {
                let (first, share) = share_of(count, index, all);
                assert_eq!(first, next);
                assert!(share == count / all || share == count / all + 1);
                next += share;
            }
            assert_eq!(next, count);
        }
    }
}
