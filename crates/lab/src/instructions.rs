//! Counts instructions: what one more operation costs a program, on a host whose clocks cannot be trusted.
//!
//! This is `steelyard lab instructions`. Where a host has no counters of its CPU, as most virtual machines have none, callgrind (part of valgrind)
//! counts the instructions that a program executes in user space. The program serves a number of operations, and then more of them; the
//! difference of both counts over the difference of operations is the cost of one. No neighbour changes it. It does not have the kernel's
//! work in it, nor what a cache miss costs: it compares two builds of one program, not two programs.

use std::fmt;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::contender::{self, EndpointVars, Recipe, ServiceVars, Vars, render};
use crate::host;
use crate::record::{Protocol, Variant};

/// How long a program under callgrind may take to serve, or to end: it is fifty times slower.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often to look.
const POLL: Duration = Duration::from_millis(50);

/// The arguments of `lab instructions`.
#[derive(Clone, Debug, Args)]
pub struct InstructionsArgs {
    /// Count this build of Steelyard [default: this program]
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,

    /// Operations by which the two counts of a workload differ
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pub operations: u32,

    /// Only these workloads: http, http-close, h2c, tcp-rr, tcp-crr
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = workload)]
    pub workloads: Vec<&'static str>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A workload: which contender serves it, the origin behind it, and the load.
struct Workload {
    name: &'static str,
    title: &'static str,
    contender: &'static str,
    protocol: Protocol,
    origin: &'static [&'static str],
    load: &'static [&'static str],
}

const WORKLOADS: &[Workload] = &[
    Workload {
        name: "http",
        title: "an HTTP/1.1 request, connections kept",
        contender: "steelyard-http",
        protocol: Protocol::Http,
        origin: &["http", "--body=18"],
        load: &["http", "--http=1.1"],
    },
    Workload {
        name: "http-close",
        title: "an HTTP/1.1 request on a connection of its own",
        contender: "steelyard-http",
        protocol: Protocol::Http,
        origin: &["http", "--body=18"],
        load: &["http", "--http=1.1", "--close"],
    },
    Workload {
        name: "h2c",
        title: "a gRPC call, HTTP/2 on both sides",
        contender: "steelyard-h2",
        protocol: Protocol::H2,
        origin: &["grpc"],
        load: &["grpc"],
    },
    Workload {
        name: "tcp-rr",
        title: "a byte in each direction over TCP",
        contender: "steelyard-tcp",
        protocol: Protocol::Tcp,
        origin: &["tcp"],
        load: &["tcp-rr"],
    },
    Workload {
        name: "tcp-crr",
        title: "a TCP connection with a byte in each direction",
        contender: "steelyard-tcp",
        protocol: Protocol::Tcp,
        origin: &["tcp"],
        load: &["tcp-crr"],
    },
];

fn workload(text: &str) -> Result<&'static str, String> {
    let known = WORKLOADS.iter().map(|workload| workload.name);
    let found = known.clone().find(|name| *name == text);
    found.ok_or_else(|| format!("no such workload; there are {}", known.collect::<Vec<_>>().join(", ")))
}

/// The cost of one operation of a workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// The workload.
    pub name: String,
    /// The operation in words.
    pub title: String,
    /// Instructions in user space for one more operation.
    pub instructions: f64,
}

/// The costs of a program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The version of this form.
    pub version: u32,
    /// Whether the program was built without optimisations, which multiplies the counts. Known only of this program.
    pub is_debug: Option<bool>,
    /// A cost for each workload.
    pub costs: Vec<Cost>,
}

impl fmt::Display for Report {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Cost { name, title, instructions } in &self.costs {
            writeln!(to, "{instructions:>12.0}  {name:<11} {title}")?;
        }
        write!(
            to,
            "Instructions in user space for one more operation, counted by callgrind; the kernel's are not in them."
        )?;
        match self.is_debug {
            Some(true) => {
                write!(to, "\nThis program was built without optimisations: count a release build, with --program.")
            }
            Some(false) | None => Ok(()),
        }
    }
}

/// Counts the instructions of each workload.
///
/// # Errors
/// Without valgrind, or if a program does not start, does not serve, or leaves no count.
pub fn count(args: &InstructionsArgs, itself: &Path) -> io::Result<Report> {
    let valgrind = host::find_program("valgrind").ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, "valgrind is not installed: apt-get install valgrind")
    })?;
    let program = args.program.as_deref().unwrap_or(itself);
    let program = fs::canonicalize(program)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", program.display())))?;
    let directory = std::env::temp_dir().join(format!("steelyard-instructions-{}", std::process::id()));
    fs::create_dir_all(&directory)?;
    let counter = Counter { valgrind, program, itself: itself.to_owned(), directory };
    let is_wanted = |workload: &&Workload| args.workloads.is_empty() || args.workloads.contains(&workload.name);
    let mut costs = Vec::new();
    for workload in WORKLOADS.iter().filter(is_wanted) {
        costs.push(counter.cost(workload, args.operations)?);
    }
    let is_debug = args.program.is_none().then_some(cfg!(debug_assertions));
    Ok(Report { version: 1, is_debug, costs })
}

struct Counter {
    valgrind: PathBuf,
    program: PathBuf,
    itself: PathBuf,
    /// Removed when dropped.
    directory: PathBuf,
}

impl Drop for Counter {
    fn drop(&mut self) {
        // What stays behind is in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Counter {
    fn cost(&self, workload: &Workload, operations: u32) -> io::Result<Cost> {
        let few = operations / 10;
        let [fewer, more] = [self.serve(workload, few)?, self.serve(workload, few + operations)?];
        Ok(Cost {
            name: workload.name.to_owned(),
            title: workload.title.to_owned(),
            instructions: (more as f64 - fewer as f64) / f64::from(operations),
        })
    }

    /// Instructions of a program from its start to its end, with so many operations in between.
    fn serve(&self, workload: &Workload, operations: u32) -> io::Result<u64> {
        let failed = |what: &str| io::Error::other(format!("{}: {what}", workload.name));
        let origin_address = free_address()?;
        let mut origin = Command::new(&self.itself);
        origin.arg("origin").args(workload.origin).arg(format!("--listen={origin_address}"));
        let origin = Running::start(&mut origin)?;
        origin.wait_for(origin_address).map_err(|why| failed(&format!("the origin {why}")))?;
        let address = free_address()?;
        let counts = self.directory.join("callgrind.out");
        let mut balancer = Command::new(&self.valgrind);
        balancer.args(["--quiet", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", counts.display()));
        balancer.args(self.command(workload, address, origin_address)?);
        let mut balancer = Running::start(&mut balancer)?;
        balancer.wait_for(address).map_err(|why| failed(&format!("Steelyard under callgrind {why}")))?;
        let target =
            if workload.load.first() == Some(&"http") { format!("http://{address}/") } else { address.to_string() };
        let mut load = Command::new(&self.itself);
        let (kind, options) = workload.load.split_first().ok_or_else(|| failed("no load"))?;
        load.args(["load", kind]).arg(target).args(options).args(["--connections=1", "--timeout=60s"]);
        load.arg(format!("--requests={operations}")).args(["--max-errors=0"]).stdin(Stdio::null());
        let said = load.output()?;
        if !said.status.success() {
            let why = String::from_utf8_lossy(&said.stdout).trim().to_owned();
            return Err(failed(&format!("the load failed: {why}")));
        }
        balancer.end().map_err(|why| failed(&format!("Steelyard under callgrind {why}")))?;
        let text = fs::read_to_string(&counts)?;
        total(&text).ok_or_else(|| failed("callgrind left no count"))
    }

    /// The command of a contender that serves the workload, with its configuration written.
    fn command(&self, workload: &Workload, address: SocketAddr, origin: SocketAddr) -> io::Result<Vec<String>> {
        let recipes = contender::all(None).map_err(crate::in_lines)?;
        let recipe: Option<&Recipe> = recipes.iter().find(|recipe| recipe.name == workload.contender);
        let recipe = recipe.ok_or_else(|| io::Error::other(format!("no contender {}", workload.contender)))?;
        let file = self.directory.join(format!("config.{}", recipe.suffix));
        let endpoint = EndpointVars { name: "ep0".into(), address: origin.ip().to_string(), port: origin.port() };
        let service = ServiceVars {
            name: "s0".into(),
            protocol: workload.protocol.name(),
            address: address.ip().to_string(),
            port: address.port(),
            endpoints: vec![endpoint],
        };
        let vars = Vars {
            program: self.program.display().to_string(),
            file: file.display().to_string(),
            dir: self.directory.display().to_string(),
            workers: 1,
            interfaces: Vec::new(),
            pod: "",
            shared: String::new(),
            load_cgroup: String::new(),
            certificate: String::new(),
            services: vec![service],
        };
        let rendered = render(recipe, Variant::Tuned, &vars).map_err(io::Error::other)?;
        fs::write(&file, rendered.configuration)?;
        Ok(rendered.start)
    }
}

/// The sum of a callgrind file.
fn total(text: &str) -> Option<u64> {
    let sum = |line: &str| {
        let rest = line.strip_prefix("summary:").or_else(|| line.strip_prefix("totals:"))?;
        rest.split_ascii_whitespace().next()?.parse().ok()
    };
    text.lines().find_map(sum)
}

/// An address on loopback where nothing listens.
fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

#[expect(clippy::disallowed_methods, reason = "a program under callgrind gives no event to wait for")]
fn pause() {
    std::thread::sleep(POLL);
}

/// A process, killed when dropped.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> io::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let name = command.get_program().to_string_lossy().into_owned();
        command.spawn().map(Self).map_err(|error| io::Error::new(error.kind(), format!("cannot start {name}: {error}")))
    }

    /// Waits until something accepts connections.
    fn wait_for(&self, address: SocketAddr) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect_timeout(&address, POLL).is_err() {
            if Instant::now() > deadline {
                return Err(format!("does not serve after {} s", PATIENCE.as_secs()));
            }
            pause();
        }
        Ok(())
    }

    /// Asks it to end, and waits.
    fn end(&mut self) -> Result<(), String> {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or("has no id")?;
        kill_process(pid, Signal::TERM).map_err(|error| format!("cannot be ended: {error}"))?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("ended with {status}")),
                Ok(None) if Instant::now() < deadline => pause(),
                Ok(None) => return Err(format!("does not end within {} s", PATIENCE.as_secs())),
                Err(error) => return Err(format!("cannot be waited for: {error}")),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_has_a_contender_that_carries_it() {
        let recipes = contender::all(None).unwrap();
        for workload in WORKLOADS {
            let recipe = recipes.iter().find(|recipe| recipe.name == workload.contender).unwrap();
            assert!(recipe.itself && recipe.speaks.contains(&workload.protocol), "{}", workload.name);
            assert_eq!(super::workload(workload.name), Ok(workload.name));
        }
        assert!(super::workload("udp").unwrap_err().contains("http-close"));
    }

    #[test]
    fn the_sum_of_a_callgrind_file() {
        assert_eq!(total("version: 1\nevents: Ir\nsummary: 12345\n\nfn=x\n"), Some(12_345));
        assert_eq!(total("version: 1\ntotals: 7\n"), Some(7));
        assert_eq!(total("version: 1\n"), None);
    }
}
