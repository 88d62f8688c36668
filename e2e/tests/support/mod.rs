//! Shared helpers for the tests of the whole binary: a balancer, origins behind it, and load in front of it.
#![allow(dead_code, reason = "each test binary compiles all of it and uses its part")]

pub mod at_sockets;
pub mod cgroup;
pub mod echo;
pub mod frr;
pub mod network;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread::JoinHandle;

use lab::load::{HttpLoad, Target, Until, run_http};
use lab::origin::{HttpOrigin, HttpOriginArgs};
use serde_json::Value;
use testkit::strict::{Response, ResponseTo};
use testkit::{Finished, PATIENCE, Program, Signal, client, free_port, until};
use tokio::sync::oneshot;

/// Requests of one round of load. Its connections close after each round, so that old and new ones are always in use.
const ROUND_REQUESTS: u64 = 4_000;

pub fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

pub fn port() -> u16 {
    free_port().unwrap()
}

/// The binary under test, to which arguments can be added.
pub fn steelyard() -> Command {
    let mut command = Command::new(e2e::binary::steelyard().unwrap());
    for name in [
        "STEELYARD_LOG",
        "STEELYARD_ADMIN",
        "NO_COLOR",
        "LISTEN_FDS",
        "LISTEN_PID",
        "NOTIFY_SOCKET",
        "WATCHDOG_USEC",
        "WATCHDOG_PID",
    ] {
        command.env_remove(name);
    }
    command
}

/// Runs `steelyard WORDS...` to its end.
pub fn run(words: &[&str]) -> Finished {
    Program::run("steelyard", steelyard().args(words)).unwrap()
}

/// A directory for this test, removed on drop.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let path = std::env::temp_dir().join(format!("steelyard-whole-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Replaces a file atomically, like a careful deployment.
    pub fn write(&self, name: &str, text: &str) -> String {
        let (path, new) = (self.0.join(name), self.0.join(format!("{name}.new")));
        fs::write(&new, text).unwrap();
        fs::rename(&new, &path).unwrap();
        path.display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If this fails, the rest stays in the temporary directory.
        _ = fs::remove_dir_all(&self.0);
    }
}

/// A running `steelyard serve`.
pub struct Steelyard {
    pub program: Program,
    pub admin: SocketAddr,
    scratch: Scratch,
}

impl Steelyard {
    /// Serves `config`, in which `{admin}` stands for the admin address, and waits until it is ready.
    pub fn serve(config: &str, workers: u16) -> Self {
        let workers = workers.to_string();
        Self::serve_by(config, |arguments| {
            Program::spawn("steelyard", steelyard().args(arguments).args(["--workers", &workers])).unwrap()
        })
    }

    /// The same, where `start` starts the program with the arguments that it gets.
    pub fn serve_by(config: &str, start: impl FnOnce(&[&str]) -> Program) -> Self {
        let (admin, scratch) = (local(port()), Scratch::new());
        let file = scratch.write("steelyard.yaml", &config.replace("{admin}", &admin.to_string()));
        let program = start(&["serve", "-c", &file]);
        Self::of(program, admin, scratch)
    }

    /// A program that was started with the files in `scratch`, once it is ready.
    pub fn of(program: Program, admin: SocketAddr, scratch: Scratch) -> Self {
        let mut steelyard = Self { program, admin, scratch };
        let ready = || get(admin, "/readyz").filter(|response| response.status == 200);
        steelyard.program.until("ready", ready).unwrap();
        steelyard
    }

    /// Starts another process with the same file, after the first has ended.
    pub fn start_again(&mut self, file: &str) {
        self.program = Program::spawn("steelyard", steelyard().args(["serve", "-c", file, "--workers", "1"])).unwrap();
        let admin = self.admin;
        self.program.until("ready", || get(admin, "/readyz").filter(|response| response.status == 200)).unwrap();
    }

    /// Replaces the configuration, and sends no signal.
    pub fn write(&self, config: &str) {
        self.scratch.write("steelyard.yaml", &config.replace("{admin}", &self.admin.to_string()));
    }

    pub fn file(&self) -> String {
        self.scratch.path().join("steelyard.yaml").display().to_string()
    }

    /// Replaces the configuration, sends SIGHUP, and waits until `is_there` sees in the status that it is in use.
    pub fn reload(&mut self, config: &str, is_there: impl Fn(&Value) -> bool) {
        self.write(config);
        self.program.signal(Signal::HUP).unwrap();
        self.until("reloaded", is_there);
    }

    /// `steelyard WORDS... --admin ADDRESS`.
    pub fn ask(&self, words: &[&str]) -> Finished {
        let admin = self.admin.to_string();
        Program::run("steelyard", steelyard().args(words).args(["--admin", &admin])).unwrap()
    }

    pub fn status(&self) -> Value {
        status(self.admin).expect("a status")
    }

    pub fn generation(&self) -> u64 {
        self.status()["generation"].as_u64().unwrap()
    }

    /// Waits until `is_there` accepts the status.
    pub fn until(&mut self, what: &str, is_there: impl Fn(&Value) -> bool) -> Value {
        let admin = self.admin;
        self.program.until(what, || status(admin).filter(&is_there)).unwrap()
    }

    /// The sum over the samples with this name and these labels.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let response = get(self.admin, "/metrics").expect("metrics");
        testkit::prometheus::sum(&String::from_utf8_lossy(&response.body), name, labels)
    }
}

/// GET on an admin address; `None` if nothing answers.
pub fn get(admin: SocketAddr, path: &str) -> Option<Response> {
    let mut conn = client::connect("admin", admin, None).ok()?;
    conn.send(format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n").as_bytes()).ok()?;
    conn.response(ResponseTo::Other).ok()
}

pub fn status(admin: SocketAddr) -> Option<Value> {
    serde_json::from_slice(&get(admin, "/status")?.body).ok()
}

/// The names below a key of the status: of listeners, of clusters.
pub fn names<'s>(status: &'s Value, key: &str) -> Vec<&'s str> {
    status[key].as_array().into_iter().flatten().filter_map(|entry| entry["name"].as_str()).collect()
}

/// An origin of the lab, on a thread of this process.
pub struct Origin {
    pub address: SocketAddr,
    origin: Arc<HttpOrigin>,
    thread: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Origin {
    /// Answers with `name` in `x-origin`.
    pub fn start(name: &str) -> Self {
        Self::start_at(local(0), name, 18)
    }

    /// Answers at this address with a body of this size.
    pub fn start_at(address: SocketAddr, name: &str, body: u64) -> Self {
        Self::start_on(vec![address], name, body)
    }

    /// The same at several addresses.
    pub fn start_on(listen: Vec<SocketAddr>, name: &str, body: u64) -> Self {
        let args = HttpOriginArgs { listen, body, delay: None, name: Some(name.to_owned()), close: false, threads: 1 };
        let origin = Arc::new(HttpOrigin::bind(&args).unwrap());
        let address = origin.addresses().unwrap()[0];
        let (end, ended) = oneshot::channel::<()>();
        let serving = origin.clone();
        let thread = std::thread::spawn(move || {
            // An error means that the sender was dropped, which is also the end.
            let end = async move { Ok(_ = ended.await) };
            serving.run_until(end).unwrap();
        });
        Self { address, origin, thread: Some((end, thread)) }
    }

    pub fn requests(&self) -> u64 {
        self.origin.requests()
    }

    /// Waits until this origin has served `more` further requests.
    pub fn until_served(&self, more: u64) {
        until_served(&[self], more);
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.thread.take() {
            drop(end);
            // A panic has already been reported.
            _ = thread.join();
        }
    }
}

/// Waits until these have together served `more` further requests.
pub fn until_served(origins: &[&Origin], more: u64) {
    let sum = || origins.iter().map(|origin| origin.requests()).sum::<u64>();
    let target = sum() + more;
    let served = until(2 * PATIENCE, || (sum() >= target).then_some(()));
    assert!(served.is_some(), "the load made no progress: {} of {target} requests", sum());
}

/// Closed-loop load of GETs on a thread of this process, round after round.
pub struct Load {
    end: Arc<AtomicBool>,
    thread: JoinHandle<Total>,
}

/// The results of all rounds of a load.
#[derive(Debug, Default)]
pub struct Total {
    pub answers: u64,
    pub failures: u64,
    /// Connections that the other side closed within a round. Each was announced, except for those whose request was sent again.
    pub reconnects: u64,
    /// Idempotent requests that were lost with their connection and sent again.
    pub resent: u64,
    pub rounds: u64,
    /// The report of the first round with failures.
    pub first_failure: String,
}

impl Load {
    pub fn start(address: SocketAddr, path: &str, connections: usize) -> Self {
        let target = Target::resolve(&format!("http://{address}{path}")).unwrap();
        let load = HttpLoad::get(target, connections, Until::Requests(ROUND_REQUESTS));
        let end = Arc::new(AtomicBool::new(false));
        let ended = end.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let mut total = Total::default();
            while total.rounds == 0 || !ended.load(Relaxed) {
                let report = runtime.block_on(run_http(&load)).unwrap();
                total.rounds += 1;
                total.answers += report.answers;
                total.failures += report.failures();
                total.reconnects += report.reconnects;
                total.resent += report.resent;
                if report.failures() > 0 && total.first_failure.is_empty() {
                    total.first_failure = format!("round {}:\n{report}\nstatuses {:?}", total.rounds, report.statuses);
                }
            }
            total
        });
        Self { end, thread }
    }

    /// Ends it after the current round.
    pub fn stop(self) -> Total {
        self.end.store(true, Relaxed);
        self.thread.join().unwrap()
    }

    /// The same, and fails if any request failed; the balancer's status then shows why.
    #[track_caller]
    pub fn end(self, balancer: &mut Steelyard) -> Total {
        let total = self.stop();
        if total.failures > 0 {
            let status = balancer.status();
            let reasons: Vec<_> = status["listeners"].as_array().into_iter().flatten().map(|l| &l["refused"]).collect();
            panic!(
                "{} of {} failed, {reasons:?}; {}\n{}",
                total.failures,
                total.answers,
                total.first_failure,
                balancer.program.log()
            );
        }
        assert!(total.answers >= ROUND_REQUESTS, "the load did not run: {total:?}");
        total
    }
}

/// Prints to standard error, around the harness's capture, that a test cannot run here.
pub fn skip(name: &str, why: &str) {
    use std::io::Write;
    _ = writeln!(std::io::stderr(), "SKIP {name}: {why}");
}
