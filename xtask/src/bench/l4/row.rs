//! What is measured: the rows of the published comparisons of kernel balancers, and what each cost.

use std::path::Path;

use serde_json::Value;

use super::contender::{Contender, Frontend, Place, accepts, in_namespace};
use super::host::{busy_seconds, slope};
use super::network::Chain;
use super::{Bench, ECHO, ENDPOINT_CPU, Field, HTTP, SINK};
use crate::bench::child::pinned;
use crate::bench::table::Samples;
use crate::bench::tools::{self, figure};
use crate::command::capture;
use testkit::netns::Netns;

/// One row.
pub struct Row {
    pub name: &'static str,
    pub about: &'static str,
    /// The figure by which Steelyard is set against the others.
    pub headline: &'static str,
    pub kind: Kind,
}

/// How a row comes about.
pub enum Kind {
    /// Each contender in turn is put under one load.
    Turns(fn(&Asked) -> Result<Figures, String>),
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
        about: "HTTP requests a second, each on a new connection, 64 at once",
        headline: CPS,
        kind: Kind::Turns(cps),
    },
    Row {
        name: "crr",
        about: "TCP_CRR: connect, one byte there and back, close; 16 at once",
        headline: CPS,
        kind: Kind::Turns(crr),
    },
    Row {
        name: "rr",
        about: "TCP_RR: one byte there and back on one connection",
        headline: "min us",
        kind: Kind::Turns(rr),
    },
    Row {
        name: "bulk1",
        about: "bulk to the endpoints, 1 connection",
        headline: GBPS,
        kind: Kind::Turns(|asked| bulk(asked, "1")),
    },
    Row {
        name: "bulk4",
        about: "bulk to the endpoints, 4 connections",
        headline: GBPS,
        kind: Kind::Turns(|asked| bulk(asked, "4")),
    },
    Row {
        name: "bulk100",
        about: "bulk to the endpoints, 100 connections",
        headline: GBPS,
        kind: Kind::Turns(|asked| bulk(asked, "100")),
    },
    Row {
        name: "hop",
        about: "0, 1, 2 and 4 in a row, TCP_RR on 16 connections: what one more costs",
        headline: PER_HOP,
        kind: Kind::Hops,
    },
];

const RPS: &str = "RPS";
const CPS: &str = "CPS";
const GBPS: &str = "Gbit/s";
const PER_HOP: &str = "CPU-us/transaction for a hop";
const ERRORS: &str = "errors";

/// Hops in a row. With none the client is next to the endpoint, whoever is measured.
const LENGTHS: [(usize, &str); 4] = [
    (0, "0: CPU-us/transaction"),
    (1, "1: CPU-us/transaction"),
    (2, "2: CPU-us/transaction"),
    (4, "4: CPU-us/transaction"),
];

pub fn by_name(name: &str) -> Result<&'static Row, String> {
    let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
    let found = ROWS.iter().find(|row| row.name == name);
    found.ok_or_else(|| format!("no row `{name}`; there are {}", names.join(", ")))
}

/// Who is asked, from where, for how long.
pub struct Asked<'b> {
    steelyard: &'b Path,
    client: &'b Netns,
    address: String,
    seconds: u64,
}

/// Names and values of one turn.
type Figures = Vec<(&'static str, f64)>;

/// Each contender in turn, round by round.
pub fn turns(bench: &Bench, field: &Field, measure: fn(&Asked) -> Result<Figures, String>) -> Result<Samples, String> {
    let mut samples = Samples::default();
    let asked = |way: usize, seconds: u64| Asked {
        steelyard: &bench.steelyard,
        client: &field.fan.client,
        address: field.address(bench, way),
        seconds,
    };
    for way in 0..bench.contenders.len() {
        // Neighbours, code and tables: warm for everybody before the first round.
        measure(&asked(way, 1))?;
    }
    for round in 0..bench.rounds {
        for way in bench.order(round) {
            let Some(contender) = bench.contenders.get(way) else { continue };
            for (name, value) in measure(&asked(way, bench.seconds))? {
                samples.add(contender.name(), name, value);
            }
        }
    }
    Ok(samples)
}

fn rps(asked: &Asked) -> Result<Figures, String> {
    let (said, busy) = with_busy(|| asked.wrk(&[]))?;
    let cpu = busy * 1e6 / said.requests;
    Ok(vec![
        (RPS, said.rps),
        ("p50 us", said.p50_us),
        ("p99 us", said.p99_us),
        ("CPU-us/request", cpu),
        (ERRORS, said.errors),
    ])
}

fn cps(asked: &Asked) -> Result<Figures, String> {
    let (said, busy) = with_busy(|| asked.wrk(&["-H", "Connection: close"]))?;
    Ok(vec![(CPS, said.rps), ("CPU-us/connection", busy * 1e6 / said.requests), (ERRORS, said.errors)])
}

fn crr(asked: &Asked) -> Result<Figures, String> {
    let (said, busy) = with_busy(|| asked.load("tcp-crr", ECHO, &["-c", "16"]))?;
    let cpu = busy * 1e6 / figure(&said, "/ok")?;
    Ok(vec![(CPS, figure(&said, "/ok_per_s")?), ("CPU-us/connection", cpu), (ERRORS, tools::failures(&said))])
}

fn rr(asked: &Asked) -> Result<Figures, String> {
    let (said, busy) = with_busy(|| asked.load("tcp-rr", ECHO, &["-c", "1"]))?;
    let cpu = busy * 1e6 / figure(&said, "/ok")?;
    Ok(vec![
        ("min us", figure(&said, "/service/min_us")?),
        ("mean us", figure(&said, "/service/mean_us")?),
        ("p99 us", tools::percentile_us(&said, "service", 99.0)?),
        ("CPU-us/transaction", cpu),
        (ERRORS, tools::failures(&said)),
    ])
}

fn bulk(asked: &Asked, connections: &str) -> Result<Figures, String> {
    let (said, busy) = with_busy(|| asked.load("stream", SINK, &["--direction", "send", "-c", connections]))?;
    // One core for one second, over one Gbit/s for one second.
    let cores = busy * 1e9 / (figure(&said, "/sent_bytes")? * 8.0);
    Ok(vec![(GBPS, figure(&said, "/gbit_per_s")?), ("cores per Gbit/s", cores), (ERRORS, tools::failures(&said))])
}

impl Asked<'_> {
    fn wrk(&self, words: &[&str]) -> Result<tools::Wrk, String> {
        let mut command = pinned(tools::CPU, Path::new("nsenter"));
        command.args([&format!("--net={}", self.client.path()), "--", "wrk", "-t1", "--latency"]);
        command.args([format!("-c{}", tools::CONNECTIONS), format!("-d{}s", self.seconds)]).args(words);
        tools::parse_wrk(&capture(command.arg(format!("http://{}:{HTTP}/", self.address)))?)
    }

    fn load(&self, kind: &str, port: u16, words: &[&str]) -> Result<Value, String> {
        let mut command = pinned(tools::CPU, Path::new("nsenter"));
        command.args([&format!("--net={}", self.client.path()), "--"]).arg(self.steelyard);
        command.args(["load", kind, &format!("{}:{port}", self.address), "-d", &format!("{}s", self.seconds)]);
        let said = capture(command.args(words).arg("--json"))?;
        serde_json::from_str(&said).map_err(|error| format!("steelyard load said {said:?}: {error}"))
    }
}

/// What was measured, and for how many seconds CPUs of this host were busy meanwhile.
fn with_busy<T>(measure: impl FnOnce() -> Result<T, String>) -> Result<(T, f64), String> {
    let before = busy_seconds()?;
    let measured = measure()?;
    Ok((measured, busy_seconds()? - before))
}

/// Chains of every length of every contender, all at work at once and measured in turn.
pub fn hops(bench: &Bench) -> Result<Samples, String> {
    let mut rows = Vec::new();
    for contender in &bench.contenders {
        let chains =
            LENGTHS.iter().map(|(length, figure)| Hops::start(bench, *contender, *length).map(|hops| (hops, *figure)));
        rows.push((contender, chains.collect::<Result<Vec<_>, _>>()?));
    }
    for (hops, _) in rows.iter().flat_map(|(_, chains)| chains) {
        hops.transaction_us(bench, 1)?;
    }
    let mut samples = Samples::default();
    for round in 0..bench.rounds {
        for way in bench.order(round) {
            let Some((contender, chains)) = rows.get(way) else { continue };
            let mut points = Vec::new();
            for (hops, name) in chains {
                let cpu_us = hops.transaction_us(bench, bench.seconds)?;
                points.push((hops.chain.hops.len() as f64, cpu_us));
                samples.add(contender.name(), name, cpu_us);
            }
            if let Some(slope) = slope(&points) {
                samples.add(contender.name(), PER_HOP, slope);
            }
        }
    }
    Ok(samples)
}

/// A chain with a contender at every hop, each balancing over the next alone.
struct Hops {
    // Dropped in this order: who is in a namespace leaves it before it is gone.
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
            in_namespace(&chain.endpoint, "origin", ENDPOINT_CPU, &bench.steelyard, &words, &bench.directory)?;
        origin.wait_for(|| accepts(&chain.endpoint, "127.0.0.1", ECHO))?;
        let mut running = Vec::new();
        for (index, netns) in chain.hops.iter().enumerate() {
            let next = if index + 1 < length { Chain::vip(index + 1) } else { chain.endpoint() };
            let next = format!("{next}:{ECHO}").parse().map_err(|_| format!("{next} is no address"))?;
            let place = Place {
                netns,
                vip: Chain::vip(index),
                interfaces: ["left0", "right0"].map(str::to_owned).into(),
                frontends: vec![Frontend { name: "echo", port: ECHO, endpoints: vec![next] }],
            };
            running.push(contender.start(&place, ENDPOINT_CPU, &bench.steelyard, &bench.directory)?);
        }
        let is_direct = length == 0 || contender == Contender::Routed;
        let address = if is_direct { chain.endpoint() } else { Chain::vip(0) };
        Ok(Self { _running: running, _origin: origin, chain, address })
    }

    /// What a transaction costs the whole host.
    fn transaction_us(&self, bench: &Bench, seconds: u64) -> Result<f64, String> {
        let asked =
            Asked { steelyard: &bench.steelyard, client: &self.chain.client, address: self.address.clone(), seconds };
        let (said, busy) = with_busy(|| asked.load("tcp-rr", ECHO, &["-c", "16"]))?;
        Ok(busy * 1e6 / figure(&said, "/ok")?)
    }
}
