//! The demo: three origins and a balancer in processes of their own, load, one origin killed during the load, and the cost of it all.
//!
//! This is `steelyard demo`. It uses the balancer like any user does: an executable, a configuration file, an address and `/readyz`. It is
//! not a benchmark: load, origins and balancer share this host's CPUs, so the figures say what to expect here, not what is possible.

mod child;
mod report;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;

pub use report::{DemoReport, Phase, Share};

use crate::load::{HttpLoad, LoadReport, Target, Until, run_http};
use crate::{Verdict, host, procfs};
use child::Child;

/// Connections of the load.
const CONNECTIONS: usize = 32;

/// The origins, by the name that they send in `x-origin`. The second one is killed.
const ORIGINS: [&str; 3] = ["a", "b", "c"];
const KILLED: usize = 1;

/// How long a child may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often to check whether a child is ready.
const POLL: Duration = Duration::from_millis(50);

/// The arguments of `demo`.
#[derive(Clone, Debug, Args)]
pub struct DemoArgs {
    /// Seconds of load, over all phases
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=45))]
    pub seconds: u64,

    /// Print the result as JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Why the demo could not be carried out.
#[derive(Debug)]
pub enum DemoError {
    /// This host refused something.
    Host {
        /// What was attempted.
        doing: String,
        /// The host's error.
        source: io::Error,
    },
    /// A child ended, or never became ready.
    Child {
        /// The child.
        name: String,
        /// What happened to it.
        what: String,
        /// The last lines of its standard error.
        stderr: String,
    },
    /// SIGINT or SIGTERM arrived.
    Interrupted,
}

impl fmt::Display for DemoError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { doing, source } => write!(to, "{doing}: {source}"),
            Self::Child { name, what, stderr } if stderr.is_empty() => {
                write!(to, "{name} {what}; its standard error is empty")
            }
            Self::Child { name, what, stderr } => write!(to, "{name} {what}; the end of its standard error:\n{stderr}"),
            Self::Interrupted => write!(to, "interrupted; the balancer and the origins have been stopped"),
        }
    }
}

impl std::error::Error for DemoError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Host { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Runs the demo with `steelyard_exe` as origins and balancer. Progress goes to standard error, the table to standard output. Returns
/// `Failed` if a single request failed.
///
/// # Errors
/// If the demo could not be carried out. In any case, no child outlives this call.
pub fn run(args: &DemoArgs, steelyard_exe: &Path) -> Result<Verdict, DemoError> {
    host::raise_open_files_limit();
    let runtime = host::runtime().map_err(host_error("cannot start a runtime"))?;
    let report = runtime.block_on(async {
        tokio::select! {
            report = carry_out(args, steelyard_exe) => report,
            outcome = interrupted() => Err(outcome.err().unwrap_or(DemoError::Interrupted)),
        }
    })?;
    print(args.json, &report).map_err(host_error("cannot write to standard output"))?;
    Ok(report.verdict())
}

fn print(as_json: bool, report: &DemoReport) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if as_json {
        serde_json::to_writer(&mut out, report)?;
        writeln!(out)
    } else {
        writeln!(out, "{report}")
    }
}

/// Returns when a signal asks the process to end.
async fn interrupted() -> Result<(), DemoError> {
    use tokio::signal::unix::{SignalKind, signal};
    let listen = |kind| signal(kind).map_err(host_error("cannot listen for signals"));
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}

async fn carry_out(args: &DemoArgs, exe: &Path) -> Result<DemoReport, DemoError> {
    say(&format!("starting origins {} and a balancer in front of them", ORIGINS.join(", ")));
    let mut farm = Farm::start(exe).await?;
    // Direct and balanced parts alternate, so that a host that slows down during the demo affects both.
    let part = Duration::from_secs(args.seconds) / 8;
    let (direct_target, balanced_target) = (target(farm.origins[0].address), target(farm.balancer_address));

    let mut direct = Phase::new("direct");
    let mut balanced = Phase::new("balanced");
    for _ in 0..2 {
        direct.add(&measured(&direct_target, part, None).await?);
        say(&direct.progress());
        balanced.add(&measured(&balanced_target, part, Some(&farm.balancer)).await?);
        say(&balanced.progress());
    }
    let mut killed = Phase::new("origin killed");
    let outcome = killing(&balanced_target, part * 4, &mut farm).await?;
    killed.add(&outcome);
    say(&killed.progress());

    farm.check_alive().await?;
    let rss_bytes =
        procfs::resident_bytes(farm.balancer.pid()).map_err(host_error("cannot read the balancer's memory"))?;
    Ok(DemoReport::new([direct, balanced, killed], shares(&outcome.load), rss_bytes))
}

/// Progress in plain lines. If nothing reads it, the demo continues.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// One load, and its cost for the balancer.
struct Measured {
    load: LoadReport,
    /// The balancer's CPU time, if it was involved.
    cpu_time: Option<Duration>,
}

async fn measured(target: &Target, duration: Duration, balancer: Option<&Child>) -> Result<Measured, DemoError> {
    let cpu_time = || match balancer {
        Some(child) => {
            procfs::cpu_time(child.pid()).map(Some).map_err(host_error("cannot read the balancer's CPU time"))
        }
        None => Ok(None),
    };
    let before = cpu_time()?;
    let load = HttpLoad::get(target.clone(), CONNECTIONS, Until::Elapsed(duration));
    let load = run_http(&load).await.map_err(host_error("cannot put load on"))?;
    let after = cpu_time()?;
    Ok(Measured { load, cpu_time: after.zip(before).map(|(after, before)| after.saturating_sub(before)) })
}

/// Puts load on the balancer for `duration` and kills an origin half way.
async fn killing(target: &Target, duration: Duration, farm: &mut Farm) -> Result<Measured, DemoError> {
    let mark = Arc::new(AtomicBool::new(false));
    let load = HttpLoad { mark: mark.clone(), ..HttpLoad::get(target.clone(), CONNECTIONS, Until::Elapsed(duration)) };
    let pid = farm.balancer.pid();
    let cpu_time = || procfs::cpu_time(pid).map_err(host_error("cannot read the balancer's CPU time"));
    let before = cpu_time()?;
    let kill = async {
        tokio::time::sleep(duration / 2).await;
        let outcome = farm.origins[KILLED].child.kill().await;
        mark.store(true, Ordering::Relaxed);
        say(&format!("origin {} killed with SIGKILL, under load", ORIGINS[KILLED]));
        outcome.map_err(host_error("cannot kill an origin"))
    };
    let running = async { run_http(&load).await.map_err(host_error("cannot put load on")) };
    let (load, ()) = tokio::try_join!(running, kill)?;
    Ok(Measured { load, cpu_time: Some(cpu_time()?.saturating_sub(before)) })
}

fn shares(load: &LoadReport) -> Vec<Share> {
    let count = |origins: &BTreeMap<String, u64>, name: &str| origins.get(name).copied().unwrap_or_default();
    ORIGINS
        .iter()
        .enumerate()
        .map(|(index, name)| Share {
            origin: (*name).to_owned(),
            is_killed: index == KILLED,
            before: count(&load.origins, name),
            after: count(&load.origins_after_mark, name),
        })
        .collect()
}

fn target(address: SocketAddr) -> Target {
    Target { address, host: "demo.example".to_owned(), path: "/".to_owned() }
}

/// Origins and balancer. The fields are dropped in this order: the balancer first, its file last.
struct Farm {
    balancer: Child,
    balancer_address: SocketAddr,
    origins: Vec<Origin>,
    _directory: Directory,
}

struct Origin {
    child: Child,
    address: SocketAddr,
}

impl Farm {
    async fn start(exe: &Path) -> Result<Self, DemoError> {
        let mut origins = Vec::new();
        for name in ORIGINS {
            let arguments = ["origin", "http", "--listen", "127.0.0.1:0", "--name", name];
            let mut child = Child::start(&format!("origin {name}"), exe, arguments.map(Into::into))?;
            let address = child.wait_for_address(PATIENCE).await?;
            origins.push(Origin { child, address });
        }
        let (admin, bind) = free_addresses().map_err(host_error("no free port on 127.0.0.1"))?;
        let directory = Directory::make().map_err(host_error("cannot make a directory for the configuration"))?;
        let file = directory.0.join("demo.yaml");
        let endpoints: Vec<_> = origins.iter().map(|origin| origin.address).collect();
        std::fs::write(&file, configuration(admin, bind, &endpoints))
            .map_err(host_error("cannot write the configuration"))?;
        let arguments = ["serve".into(), "-c".into(), file.into()];
        let mut balancer = Child::start("the balancer", exe, arguments)?;
        wait_until_ready(&mut balancer, admin).await?;
        Ok(Self { balancer, balancer_address: bind, origins, _directory: directory })
    }

    /// All but the killed one must be running at the end.
    async fn check_alive(&mut self) -> Result<(), DemoError> {
        self.balancer.check_alive().await?;
        for (index, origin) in self.origins.iter_mut().enumerate() {
            if index != KILLED {
                origin.child.check_alive().await?;
            }
        }
        Ok(())
    }
}

fn configuration(admin: SocketAddr, bind: SocketAddr, endpoints: &[SocketAddr]) -> String {
    let endpoints: Vec<_> = endpoints.iter().map(ToString::to_string).collect();
    let endpoints = endpoints.join(", ");
    format!(
        "admin: {admin}
listeners:
  web:
    bind: {bind}
    protocol: http
    routes:
      - to: web
clusters:
  web:
    endpoints: [{endpoints}]
    balance: round_robin
    health_check: {{http: /healthz, interval: 500ms}}
"
    )
}

async fn wait_until_ready(balancer: &mut Child, admin: SocketAddr) -> Result<(), DemoError> {
    let target = Target { path: "/readyz".to_owned(), host: admin.to_string(), ..target(admin) };
    let mut ask = HttpLoad::get(target, 1, Until::Requests(1));
    ask.shape.timeout = Duration::from_secs(1);
    let deadline = Instant::now() + PATIENCE;
    loop {
        balancer.check_alive().await?;
        let answer = run_http(&ask).await.map_err(host_error("cannot ask the balancer whether it is ready"))?;
        if answer.answers > 0 && answer.failures() == 0 {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(balancer.error(&format!("was not ready within {} s", PATIENCE.as_secs())));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Two addresses that were free a moment ago. Another process may take them before they are used; the balancer then reports it.
fn free_addresses() -> io::Result<(SocketAddr, SocketAddr)> {
    let (one, other) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
    Ok((one.local_addr()?, other.local_addr()?))
}

/// A temporary directory, which is removed with this value.
struct Directory(PathBuf);

impl Directory {
    fn make() -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        for attempt in 0..100 {
            let path = std::env::temp_dir().join(format!("steelyard-demo-{}-{attempt}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A leftover in the temporary directory does no harm, and there is no way to report it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn host_error(doing: &str) -> impl FnOnce(io::Error) -> DemoError + Copy {
    move |source| DemoError::Host { doing: doing.to_owned(), source }
}
