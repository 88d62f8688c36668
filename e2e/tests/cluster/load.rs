//! Clients that count. Some keep their connections, and some open a new one for each request. Every request must be answered with 200.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use testkit::strict::{Response, ResponseTo, values};
use testkit::{Conn, Failure, client, until};

use crate::site::Site;

/// Clients of each kind.
const CLIENTS: usize = 4;

/// The pause between two requests of a client. The host's CPUs also run the whole cluster.
const PAUSE: Duration = Duration::from_millis(20);

/// How long the answers that [`Load::until_answered`] awaits may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Running clients.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    ended: AtomicBool,
    answered: AtomicU64,
    /// Requests that were sent again: every HTTP client repeats a GET if a kept connection ends before the first byte of the response, because
    /// the balancer may close a connection at the moment when the client uses it again.
    resent: AtomicU64,
    lost: Mutex<Vec<String>>,
}

/// Asks for one response, on the connection that it keeps or on a new one, and returns the status.
pub type Client = Box<dyn FnMut() -> Result<u16, Lost> + Send>;

/// A request without a response.
pub struct Lost {
    pub why: String,
    /// A kept connection ended before the first byte of the response.
    pub may_be_sent_again: bool,
}

impl Load {
    /// Starts clients that speak HTTP/1.1, and waits until they are being answered.
    pub fn start(site: &Site, address: SocketAddr, host: &'static str) -> Self {
        let client = |number: usize| -> Client {
            let (mut kept, keeps) = (None, number < CLIENTS);
            Box::new(move || exchange((address, host, "/"), &mut kept, keeps).map(|response| response.status))
        };
        Self::of(site, (0..2 * CLIENTS).map(client).collect())
    }

    /// Starts these clients, and waits until they are being answered.
    pub fn of(site: &Site, clients: Vec<Client>) -> Self {
        let shared = Arc::<Shared>::default();
        let threads = site.client.inside(|| {
            let spawn = |client: Client| {
                let shared = shared.clone();
                // The thread inherits the network namespace.
                std::thread::spawn(move || talk(client, &shared))
            };
            clients.into_iter().map(spawn).collect()
        });
        let load = Self { shared, threads };
        load.until_answered(100);
        load
    }

    /// Waits for this many further responses.
    pub fn until_answered(&self, more: u64) {
        let target = self.shared.answered.load(Relaxed) + more;
        let is_reached = || (self.shared.answered.load(Relaxed) >= target).then_some(());
        until(PATIENCE, is_reached)
            .unwrap_or_else(|| panic!("the clients are not answered: {:?}", self.shared.lost.lock().unwrap()));
    }

    /// Stops the clients. If a request was lost, the test fails and shows the gateway's log.
    pub fn end(self, site: &Site, event: &str) {
        self.until_answered(200);
        let (answered, lost) = self.stop(event);
        if !lost.is_empty() {
            panic!("{event}: {} requests lost of {answered}: {lost:#?}\n{}", lost.len(), site.log_of_failures());
        }
    }

    /// Stops the clients. Returns how many requests were answered, and why the others were lost.
    pub fn stop(self, event: &str) -> (u64, Vec<String>) {
        self.shared.ended.store(true, Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        let (answered, resent) = (self.shared.answered.load(Relaxed), self.shared.resent.load(Relaxed));
        let lost = std::mem::take(&mut *self.shared.lost.lock().unwrap());
        println!("{event}: {answered} requests answered, {} lost, {resent} sent again", lost.len());
        (answered, lost)
    }
}

fn talk(mut client: Client, shared: &Shared) {
    while !shared.ended.load(Relaxed) {
        let mut answer = client();
        if matches!(&answer, Err(lost) if lost.may_be_sent_again) {
            shared.resent.fetch_add(1, Relaxed);
            answer = client();
        }
        match answer {
            Ok(200) => _ = shared.answered.fetch_add(1, Relaxed),
            Ok(status) => shared.lost.lock().unwrap().push(format!("status {status}")),
            Err(lost) => shared.lost.lock().unwrap().push(lost.why),
        }
        std::thread::park_timeout(PAUSE);
    }
}

/// Sends one request and reads the response. The connection is kept unless one of the sides ends it.
fn exchange(to: (SocketAddr, &str, &str), kept: &mut Option<Conn>, keeps: bool) -> Result<Response, Lost> {
    let (address, host, path) = to;
    let is_reused = kept.is_some();
    let lost = |Failure(why): Failure, is_unanswered| Lost { why, may_be_sent_again: is_reused && is_unanswered };
    let mut conn = match kept.take() {
        Some(conn) => conn,
        None => client::connect("client", address, None).map_err(|failure| lost(failure, false))?,
    };
    let connection = if keeps { "keep-alive" } else { "close" };
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: {connection}\r\n\r\n");
    let received = conn.received().len();
    conn.send(request.as_bytes()).map_err(|failure| lost(failure, true))?;
    let response = conn.response(ResponseTo::Other);
    let response = response.map_err(|failure| lost(failure, conn.received().len() == received))?;
    let ends = values(&response.headers, "connection").iter().any(|value| value.eq_ignore_ascii_case(b"close"));
    if keeps && !ends {
        *kept = Some(conn);
    }
    Ok(response)
}

/// Sends one request on a new connection, and returns the name of the pod that answers.
pub fn ask(address: SocketAddr, host: &str) -> Result<String, String> {
    match exchange((address, host, "/"), &mut None, false) {
        Ok(Response { status: 200, body, .. }) => Ok(String::from_utf8_lossy(&body).into_owned()),
        Ok(response) => Err(format!("status {}", response.status)),
        Err(lost) => Err(lost.why),
    }
}

/// Sends one request on a new connection, and returns the status of the response.
pub fn status_of(address: SocketAddr, host: &str, path: &str) -> Result<u16, String> {
    exchange((address, host, path), &mut None, false).map(|response| response.status).map_err(|lost| lost.why)
}
