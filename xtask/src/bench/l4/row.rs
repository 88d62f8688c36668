//! The measurements: the rows of the published comparisons of kernel balancers, and the cost of each.

use std::path::Path;

use serde_json::Value;

use super::contender::{Contender, Frontend, Testbed, accepts, in_namespace};
use super::host::{Meter, slope};
use super::network::Chain;
use super::{Bench, CLOSE, ECHO, Field, HTTP, SINK};
use crate::bench::child::pinned;
use crate::bench::table::Samples;
use crate::bench::tools::{self, figure};
use crate::command::capture;
use testkit::netns::Netns;

/// One row.
pub struct Row {
    pub name: &'static str,
    pub about: &'static str,
    /// The figure by which Steelyard is compared with the others.
    pub headline: &'static str,
    pub kind: Kind,
}

/// How a row is measured.
pub enum Kind {
    /// Each contender in turn gets one load.
    Turns(fn(&LoadRun) -> Result<Figures, String>),
    /// Several of a contender in a row.
    Hops,
}

pub const ROWS: &[Row] = &[
    Row {
        name: "rps",
        about: "HTTP requests a second, 64 connections kept alive",
        headline: RPS,
        kind: Kind::Turns(rps),
    },
    Row {
        name: "cps",
        about: "HTTP requests a second, each on a new connection, 64 at a time",
        headline: CPS,
        kind: Kind::Turns(cps),
    },
    Row {
        name: "crr",
        about: "TCP_CRR: connect, one byte in each direction, closed by the endpoint, which keeps the TIME_WAIT; 16 at \
                a time",
        headline: CPS,
        kind: Kind::Turns(crr),
    },
    Row {
        name: "rr",
        about: "TCP_RR: one byte in each direction on one connection",
        headline: "min us",
        kind: Kind::Turns(rr),
    },
    Row {
        name: "bulk1",
        about: "bulk to the endpoints, 1 connection",
        headline: GBPS,
        kind: Kind::Turns(|load_run| bulk(load_run, "1")),
    },
    Row {
        name: "bulk4",
        about: "bulk to the endpoints, 4 connections",
        headline: GBPS,
        kind: Kind::Turns(|load_run| bulk(load_run, "4")),
    },
    Row {
        name: "bulk100",
        about: "bulk to the endpoints, 100 connections",
        headline: GBPS,
        kind: Kind::Turns(|load_run| bulk(load_run, "100")),
    },
    Row {
        name: "hop",
        about: "0, 1, 2 and 4 in a row, TCP_RR on 16 connections, all on one CPU that never sleeps: the cost of one \
                more",
        headline: PER_HOP,
        kind: Kind::Hops,
    },
];

const RPS: &str = "RPS";
const CPS: &str = "CPS";
const GBPS: &str = "Gbit/s";
const PER_HOP: &str = "CPU-us/transaction for a hop";
const IDLE: &str = "idle %";
const ERRORS: &str = "errors";

/// The chain without a hop: the client is next to the endpoint. It is the same for every contender.
const DIRECT: &str = "0: CPU-us/transaction";
/// The numbers of hops.
const LENGTHS: [(usize, &str); 3] =
    [(1, "1: CPU-us/transaction"), (2, "2: CPU-us/transaction"), (4, "4: CPU-us/transaction")];
/// The duration of one measurement of a chain, for each second of the turn.
const CELL_MS: u64 = 500;
/// The pause before each, so that the start of the load and of its connections is not measured.
const WARM_UP: &str = "100ms";

pub fn by_name(name: &str) -> Result<&'static Row, String> {
    let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
    let found = ROWS.iter().find(|row| row.name == name);
    found.ok_or_else(|| format!("no row `{name}`; there are {}", names.join(", ")))
}

/// One run of load: the address, the namespace it comes from, and the duration.
pub struct LoadRun<'b> {
    steelyard: &'b Path,
    client: &'b Netns,
    address: String,
    seconds: u64,
}

/// The names and values of one turn.
type Figures = Vec<(&'static str, f64)>;

/// Runs each contender in turn, round by round.
pub fn turns(
    bench: &Bench,
    field: &Field,
    measure: fn(&LoadRun) -> Result<Figures, String>,
) -> Result<Samples, String> {
    let mut samples = Samples::default();
    let load_run = |way: usize, seconds: u64| LoadRun {
        steelyard: &bench.steelyard,
        client: &field.fan.client,
        address: field.address(bench, way),
        seconds,
    };
    for way in 0..bench.contenders.len() {
        // Neighbour tables, code and tables are warm for every contender before the first round.
        measure(&load_run(way, 1))?;
    }
    for round in 0..bench.rounds {
        for way in bench.order(round) {
            let Some(contender) = bench.contenders.get(way) else { continue };
            for (name, value) in measure(&load_run(way, bench.seconds))? {
                samples.add(contender.name(), name, value);
            }
        }
    }
    Ok(samples)
}

fn rps(load_run: &LoadRun) -> Result<Figures, String> {
    let (said, busy) = with_busy(|| load_run.wrk(&[]))?;
    let cpu = busy * 1e6 / said.requests;
    Ok(vec![
        (RPS, said.rps),
        ("p50 us", said.p50_us),
        ("p99 us", said.p99_us),
        ("CPU-us/request", cpu),
        (ERRORS, said.errors),
    ])
}

fn cps(load_run: &LoadRun) -> Result<Figures, String> {
    let (said, busy) = with_busy(|| load_run.wrk(&["-H", "Connection: close"]))?;
    Ok(vec![(CPS, said.rps), ("CPU-us/connection", busy * 1e6 / said.requests), (ERRORS, said.errors)])
}

fn crr(load_run: &LoadRun) -> Result<Figures, String> {
    let (said, busy) = with_busy(|| load_run.load("tcp-crr", CLOSE, &["-c", "16", "--wait-for-close"]))?;
    let cpu = busy * 1e6 / figure(&said, "/ok")?;
    Ok(vec![(CPS, figure(&said, "/ok_per_s")?), ("CPU-us/connection", cpu), (ERRORS, tools::failures(&said))])
}

fn rr(load_run: &LoadRun) -> Result<Figures, String> {
    let (said, busy) = with_busy(|| load_run.load("tcp-rr", ECHO, &["-c", "1"]))?;
    let cpu = busy * 1e6 / figure(&said, "/ok")?;
    Ok(vec![
        ("min us", figure(&said, "/service/min_us")?),
        ("mean us", figure(&said, "/service/mean_us")?),
        ("p99 us", tools::percentile_us(&said, "service", 99.0)?),
        ("CPU-us/transaction", cpu),
        (ERRORS, tools::failures(&said)),
    ])
}

fn bulk(load_run: &LoadRun, connections: &str) -> Result<Figures, String> {
    let (said, busy) = with_busy(|| load_run.load("stream", SINK, &["--direction", "send", "-c", connections]))?;
    // One core for one second, divided by one Gbit/s for one second.
    let cores = busy * 1e9 / (figure(&said, "/sent_bytes")? * 8.0);
    Ok(vec![(GBPS, figure(&said, "/gbit_per_s")?), ("cores per Gbit/s", cores), (ERRORS, tools::failures(&said))])
}

impl LoadRun<'_> {
    fn wrk(&self, words: &[&str]) -> Result<tools::Wrk, String> {
        let mut command = pinned(tools::CPU, Path::new("nsenter"));
        command.args([&format!("--net={}", self.client.path()), "--", "wrk", "-t1", "--latency"]);
        command.args([format!("-c{}", tools::CONNECTIONS), format!("-d{}s", self.seconds)]).args(words);
        tools::parse_wrk(&capture(command.arg(format!("http://{}:{HTTP}/", self.address)))?)
    }

    fn load(&self, kind: &str, port: u16, words: &[&str]) -> Result<Value, String> {
        self.load_for(&format!("{}s", self.seconds), kind, port, words)
    }

    fn load_for(&self, duration: &str, kind: &str, port: u16, words: &[&str]) -> Result<Value, String> {
        let mut command = pinned(tools::CPU, Path::new("nsenter"));
        command.args([&format!("--net={}", self.client.path()), "--"]).arg(self.steelyard);
        command.args(["load", kind, &format!("{}:{port}", self.address), "-d", duration]);
        let said = capture(command.args(words).arg("--json"))?;
        serde_json::from_str(&said)
            .map_err(|error| format!("the report of steelyard load, {said:?}, cannot be parsed: {error}"))
    }
}

/// What was measured, and the seconds for which CPUs of this host were busy meanwhile.
fn with_busy<T>(measure: impl FnOnce() -> Result<T, String>) -> Result<(T, f64), String> {
    let meter = Meter::start(None)?;
    let measured = measure()?;
    Ok((measured, meter.busy_seconds()?))
}

/// Runs chains of every length of every contender, all at once, and measures them in turn.
///
/// The load, the endpoint and the contender share one CPU, as does the kernel's work for their packets, which happens
/// on the CPU that sent them. With sixteen connections there is always work: the CPU never sleeps and wakes no other
/// one, and as many requests are waiting in each measurement as there are connections, however long the chain is. So
/// the figures are the cost of a transaction, and what a hop adds to it.
pub fn hops(bench: &Bench) -> Result<Samples, String> {
    let direct = Hops::start(bench, Contender::Routed, 0)?;
    let mut rows = Vec::new();
    for contender in &bench.contenders {
        let chains = LENGTHS.iter().map(|(length, _)| Hops::start(bench, *contender, *length));
        rows.push((contender, chains.collect::<Result<Vec<_>, _>>()?));
    }
    for hops in rows.iter().flat_map(|(_, chains)| chains).chain([&direct]) {
        hops.cell(bench)?;
    }
    let mut samples = Samples::default();
    for round in 0..bench.rounds {
        for way in bench.order(round) {
            let Some((contender, chains)) = rows.get(way) else { continue };
            let lengths: Vec<(&Hops, &'static str)> =
                [(&direct, DIRECT)].into_iter().chain(chains.iter().zip(LENGTHS.map(|(_, name)| name))).collect();
            turn(bench, contender.name(), &lengths, &mut samples)?;
        }
    }
    Ok(samples)
}

/// From no hop to four and back again, so that a host that becomes slower meanwhile affects all lengths alike.
fn turn(
    bench: &Bench,
    contender: &str,
    lengths: &[(&Hops, &'static str)],
    samples: &mut Samples,
) -> Result<(), String> {
    let (mut points, mut idle) = (Vec::new(), Vec::new());
    for (hops, _) in lengths.iter().chain(lengths.iter().rev()) {
        let cell = hops.cell(bench)?;
        points.push((hops.chain.hops.len() as f64, cell.transaction_us));
        idle.push(cell.idle_share * 100.0);
    }
    for (hops, name) in lengths {
        let length = hops.chain.hops.len() as f64;
        let both: Vec<f64> = points.iter().filter(|(x, _)| *x == length).map(|(_, us)| *us).collect();
        samples.add(contender, name, both.iter().sum::<f64>() / both.len() as f64);
    }
    samples.add(contender, PER_HOP, slope(&points).ok_or("one length of chain has no slope")?);
    samples.add(contender, IDLE, idle.iter().sum::<f64>() / idle.len() as f64);
    Ok(())
}

/// The result of one measurement of a chain.
struct Cell {
    transaction_us: f64,
    /// CPU time, including the start of the load.
    idle_share: f64,
}

/// A chain with a contender at every hop, each of which balances over the next one only.
struct Hops {
    // The fields are dropped in this order: a process leaves its namespace before the namespace disappears.
    _running: Vec<super::Running>,
    _origin: super::Child,
    chain: Chain,
    address: String,
}

impl Hops {
    fn start(bench: &Bench, contender: Contender, length: usize) -> Result<Self, String> {
        let chain = Chain::new(length)?;
        let words = ["origin", "tcp", "--listen", &format!("0.0.0.0:{ECHO}")];
        let mut origin =
            in_namespace(&chain.endpoint, "origin", tools::CPU, &bench.steelyard, &words, &bench.directory)?;
        origin.wait_for(|| accepts(&chain.endpoint, "127.0.0.1", ECHO))?;
        let mut running = Vec::new();
        for (index, netns) in chain.hops.iter().enumerate() {
            let next = if index + 1 < length { Chain::vip(index + 1) } else { chain.endpoint() };
            let next = format!("{next}:{ECHO}").parse().map_err(|_| format!("{next} is not an address"))?;
            let testbed = Testbed {
                netns,
                vip: Chain::vip(index),
                interfaces: ["left0", "right0"].map(str::to_owned).into(),
                frontends: vec![Frontend { name: "echo", port: ECHO, endpoints: vec![next] }],
            };
            running.push(contender.start(&testbed, tools::CPU, &bench.steelyard, &bench.directory)?);
        }
        let is_direct = length == 0 || contender == Contender::Routed;
        let address = if is_direct { chain.endpoint() } else { Chain::vip(0) };
        Ok(Self { _running: running, _origin: origin, chain, address })
    }

    fn cell(&self, bench: &Bench) -> Result<Cell, String> {
        let load_run = LoadRun {
            steelyard: &bench.steelyard,
            client: &self.chain.client,
            address: self.address.clone(),
            seconds: bench.seconds,
        };
        let duration = format!("{}ms", bench.seconds * CELL_MS);
        let meter = Meter::start(Some(tools::CPU))?;
        let said = load_run.load_for(&duration, "tcp-rr", ECHO, &["-c", "16", "--warm-up", WARM_UP])?;
        let failures = tools::failures(&said);
        if failures > 0.0 {
            return Err(format!("{failures} failures over {} hops", self.chain.hops.len()));
        }
        Ok(Cell { transaction_us: 1e6 / figure(&said, "/ok_per_s")?, idle_share: meter.idle_share()? })
    }
}
