//! `cargo xtask bench l4`: the kernel plane in comparison with a routed path, nftables, IPVS and HAProxy.
//!
//! A client, three endpoints and a balancer each have a namespace, and veth pairs join them. Each contender has a
//! balancer of its own, and all take turns. The load is pinned to CPU 0 and the endpoints to CPU 1. HAProxy is on CPU 2
//! if there is one, else on CPU 1. The kernel handles a packet on the CPU that sent it. The CPU figure is the time that
//! the whole host did not sleep, divided by the amount of work. It includes the load, the endpoints, and everything
//! else that runs, so only differences mean anything. The row `hop` computes such a difference: it puts 1, 2 and 4 of a
//! contender in a row, with everything on CPU 0, and takes the slope, starting from no hop.
//!
//! Turns are short and rounds are many: a disturbance affects only some of the rounds, and the median ignores these.
//!
//! With all contenders, the endpoint closes the connections of TCP_CRR. If the client closed them, as netperf does, it
//! would keep each of its ports in TIME_WAIT for a minute and run out of ports after some seconds. The endpoints accept
//! a SYN from a port that they have in TIME_WAIT.
//!
//! "routed" has no balancer. It is an upper bound for the others, and an unfair one in two ways: its connections all go
//! to one endpoint, without translation; but its packets pass through the whole IP stack of the balancer's host, which
//! a redirect in eBPF avoids.

mod contender;
mod host;
mod network;
mod row;

use std::net::SocketAddr;
use std::path::PathBuf;

use super::child::Child;
use super::options::Options;
use super::table;
use crate::cargo::metadata;
use crate::command::{self, cargo, find_program, is_root};
use crate::setup;
use contender::{Contender, Frontend, Running, Testbed, accepts, in_namespace};
use network::{CubicAllowed, ENDPOINTS, Fan};
use row::{ROWS, Row};

const USAGE: &str = "usage: cargo xtask bench l4 [--rounds N] [--seconds N] [--only ROW[,ROW]] [--binary PATH]";

/// The port of each kind of endpoint, which is also the port of its vip: requests, an echo, a sink, and an echo that
/// closes after one answer.
pub const HTTP: u16 = 2020;
pub const ECHO: u16 = 2021;
pub const SINK: u16 = 2022;
pub const CLOSE: u16 = 2023;

/// The load runs on the CPU `tools::CPU`.
const ENDPOINT_CPU: usize = 1;

/// What the rows need.
pub struct Bench {
    steelyard: PathBuf,
    contenders: Vec<Contender>,
    directory: PathBuf,
    rounds: usize,
    seconds: u64,
}

/// Builds the release binary unless one is named, and runs all rows or the named ones.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let (options, binary) = parse(arguments)?;
    if !is_root() {
        return Err("namespaces and eBPF need root".into());
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Err("this needs one CPU for the load and one for the endpoints, but there is only one".into());
    }
    setup::install_for("bench")?;
    for tool in ["wrk", "taskset", "nsenter", "ip"] {
        if find_program(tool).is_none() {
            return Err(format!("{tool} is missing: apt-get install wrk util-linux iproute2"));
        }
    }
    let target = metadata()?.target_directory;
    let steelyard = match binary {
        Some(path) => path,
        None => {
            command::run(&mut cargo(&["build", "--release", "--package", "steelyard"]))?;
            target.join("release/steelyard")
        }
    };
    let directory = target.join("bench");
    std::fs::create_dir_all(&directory).map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    let _cubic = CubicAllowed::new()?;
    let (contenders, gaps) = contender::find_all();
    let bench = Bench { steelyard, contenders, directory, rounds: options.rounds, seconds: options.seconds };
    println!(
        "{} rounds of {} s; veth of MTU {}, offloads as the kernel sets them",
        bench.rounds,
        bench.seconds,
        network::MTU
    );
    host::describe().iter().for_each(|line| println!("  {line}"));
    gaps.iter().for_each(|gap| println!("  GAP {gap}"));
    let mut csv = String::from("row,contender,round,figure,value\n");
    bench.run_rows(&options.only, &mut csv)?;
    let raw = bench.directory.join("l4-raw.csv");
    std::fs::write(&raw, csv).map_err(|error| format!("cannot write {}: {error}", raw.display()))?;
    println!("\nevery round: {}", raw.display());
    Ok(())
}

impl Bench {
    fn run_rows(&self, rows: &[&Row], csv: &mut String) -> Result<(), String> {
        // The namespaces for the rows that need all contenders at once are created only once and are warm for all rows.
        let mut field = None;
        for row in rows {
            println!("\n== {}: {}\n", row.name, row.about);
            let outcome = match row.kind {
                row::Kind::Turns(measure) => {
                    if field.is_none() {
                        field = Some(Field::start(self)?);
                    }
                    field.as_ref().map_or_else(|| Ok(Default::default()), |field| row::turns(self, field, measure))
                }
                row::Kind::Hops => row::hops(self),
            };
            match outcome {
                Ok(samples) => {
                    print!("{}", table::text(&samples));
                    println!("\n{}", samples.ratios(row.headline));
                    samples.append_csv(row.name, csv);
                }
                // The other rows are still useful.
                Err(why) => println!("GAP {why}"),
            }
        }
        Ok(())
    }

    /// The contenders in the order of a round: each comes first once.
    fn order(&self, round: usize) -> impl Iterator<Item = usize> + use<> {
        let count = self.contenders.len();
        (0..count).map(move |position| (position + round) % count.max(1))
    }
}

/// All contenders, each running in its own namespace.
pub struct Field {
    // The fields are dropped in this order: a process leaves its namespace before the namespace disappears.
    _running: Vec<Running>,
    _origins: Vec<Child>,
    fan: Fan,
}

impl Field {
    fn start(bench: &Bench) -> Result<Self, String> {
        let fan = Fan::new(bench.contenders.len())?;
        let mut origins = Vec::new();
        for endpoint in &fan.endpoints {
            let kinds: [(&[&str], u16); 4] =
                [(&["http"], HTTP), (&["tcp"], ECHO), (&["tcp", "--sink"], SINK), (&["tcp", "--once"], CLOSE)];
            for (words, port) in kinds {
                let listen = format!("0.0.0.0:{port}");
                let words = [&["origin"], words, &["--listen", &listen]].concat();
                let name = format!("origin-{port}");
                let mut child =
                    in_namespace(endpoint, &name, ENDPOINT_CPU, &bench.steelyard, &words, &bench.directory)?;
                child.wait_for(|| accepts(endpoint, "127.0.0.1", port))?;
                origins.push(child);
            }
        }
        let haproxy_cpu =
            if std::thread::available_parallelism().map_or(1, usize::from) > 2 { 2 } else { ENDPOINT_CPU };
        let mut running = Vec::new();
        for (way, contender) in bench.contenders.iter().enumerate() {
            let endpoints = |port: u16| -> Vec<SocketAddr> {
                (0..ENDPOINTS)
                    .filter_map(|index| format!("{}:{port}", Fan::endpoint(way, index)).parse().ok())
                    .collect()
            };
            let frontend = |(name, port)| Frontend { name, port, endpoints: endpoints(port) };
            let testbed = Testbed {
                netns: &fan.balancers[way],
                vip: Fan::vip(way),
                interfaces: Fan::interfaces(),
                frontends: [("web", HTTP), ("echo", ECHO), ("sink", SINK), ("close", CLOSE)].map(frontend).into(),
            };
            running.push(contender.start(&testbed, haproxy_cpu, &bench.steelyard, &bench.directory)?);
        }
        Ok(Self { _running: running, _origins: origins, fan })
    }

    /// The address at which a contender is measured.
    pub fn address(&self, bench: &Bench, way: usize) -> String {
        match bench.contenders.get(way) {
            Some(Contender::Routed) => Fan::endpoint(way, 0),
            _ => Fan::vip(way),
        }
    }
}

/// The options, and the binary to measure if one is named.
fn parse(arguments: &[String]) -> Result<(Options<&'static Row>, Option<PathBuf>), String> {
    let options = Options { rounds: 9, seconds: 1, only: ROWS.iter().collect() };
    let by_name = |name: &str| row::by_name(name).map(|row| vec![row]);
    let mut binary = None;
    let options = options.parse(arguments, USAGE, by_name, |option, value| {
        let is_binary = option == "--binary";
        if is_binary {
            binary = Some(PathBuf::from(value));
        }
        is_binary
    })?;
    Ok((options, binary))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options() {
        let check = |line: &str, expect: Option<(usize, u64, usize)>| {
            let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let options = parse(&arguments).ok();
            let got = options.map(|(options, _)| (options.rounds, options.seconds, options.only.len()));
            assert_eq!(got, expect, "{line}");
        };
        check("", Some((9, 1, ROWS.len())));
        check("--rounds 1 --seconds 2 --only rps,hop --binary target/x", Some((1, 2, 2)));
        let (_, binary) = parse(&["--binary".to_owned(), "target/x".to_owned()]).unwrap();
        assert_eq!(binary, Some("target/x".into()));
        check("--only nonsense", None);
        check("--rounds", None);
        check("--rounds 0", None);
        check("--quick yes", None);
    }
}
