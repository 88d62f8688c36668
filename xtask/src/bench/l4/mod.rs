//! `cargo xtask bench l4`: the kernel plane beside a routed path, nftables, IPVS and HAProxy.
//!
//! A client, three endpoints and a balancer, each in a namespace, joined by veth pairs; each contender has a balancer of its own, and all
//! take turns. The load is pinned to CPU 0, the endpoints to CPU 1, HAProxy to CPU 2 where there is one and else to CPU 1; what the kernel
//! does for a packet it does on the CPU that sent it. CPU is the time that the whole host did not sleep, divided by what was done. It holds the
//! load, the endpoints, and whatever else runs there: only differences mean anything. The row `hop` makes one of them: it puts 1, 2 and
//! 4 of a contender in a row and takes the slope over no hop at all, with everything on CPU 0.
//!
//! Turns are short and rounds many: a host that is disturbed is so for some of them, and the median looks past these.
//!
//! TCP_CRR is closed by the endpoint, with all contenders. Closed by the client, as netperf does it, the client would have each of its ports in
//! TIME_WAIT for a minute, and run out of them after some seconds; the endpoints take a SYN from a port that they have in TIME_WAIT.
//!
//! "routed" has no balancer: it is the ceiling for the others, and an unfair one in two ways. Its connections all go to one endpoint, and
//! nothing is translated; but its packets pass the whole IP stack of the balancer's host, which a redirect in eBPF goes around.

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

/// Port of each kind of endpoint, which is also its vip's: requests, an echo, a sink, an echo that closes after one answer.
pub const HTTP: u16 = 2020;
pub const ECHO: u16 = 2021;
pub const SINK: u16 = 2022;
pub const CLOSE: u16 = 2023;

/// The CPU of the load is `tools::CPU`.
const ENDPOINT_CPU: usize = 1;

/// All that the rows need.
pub struct Bench {
    steelyard: PathBuf,
    contenders: Vec<Contender>,
    directory: PathBuf,
    rounds: usize,
    seconds: u64,
}

/// Builds the release binary, unless one is named, and runs all rows or those named.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let (options, binary) = parse(arguments)?;
    if !is_root() {
        return Err("namespaces and eBPF are root's".into());
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Err("a CPU for the load and one for the endpoints are needed, and there is only one".into());
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
    std::fs::create_dir_all(&directory).map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
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
        // The namespaces of the rows that need all contenders side by side, made once, warm for all.
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
                // The others are worth having all the same.
                Err(why) => println!("GAP {why}"),
            }
        }
        Ok(())
    }

    /// The contenders in the order of one round: everybody is first once.
    fn order(&self, round: usize) -> impl Iterator<Item = usize> + use<> {
        let count = self.contenders.len();
        (0..count).map(move |position| (position + round) % count.max(1))
    }
}

/// All contenders side by side, each at work in its own namespace.
pub struct Field {
    // Dropped in this order: who is in a namespace leaves it before it is gone.
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

    /// Where a contender is asked.
    pub fn address(&self, bench: &Bench, way: usize) -> String {
        match bench.contenders.get(way) {
            Some(Contender::Routed) => Fan::endpoint(way, 0),
            _ => Fan::vip(way),
        }
    }
}

/// The options, and the binary that is measured, where one is named.
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
