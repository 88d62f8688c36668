//! The scenarios: what is measured.

use std::time::{Duration, Instant};

use super::Bench;
use super::child::{Child, POLL, Ready, cpu_ns, free_port, open_files, pause, pinned, rss_kib};
use super::contender::{self, Contender, Mode, Running};
use super::h2;
use super::table::Samples;
use super::tools::{self, wrk};

/// One kind of measurement.
pub struct Scenario {
    pub name: &'static str,
    pub about: &'static str,
    /// The figure by which Steelyard is compared with the others.
    pub headline: &'static str,
    pub run: fn(&Bench) -> Result<Samples, String>,
}

/// All of them, in the order in which they run.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "routes",
        about: "HTTP/1.1, 64 connections kept alive, closed loop, Steelyard alone: one route, and ten thousand routes of which the last one matches",
        headline: CPU_US,
        run: routes,
    },
    Scenario {
        name: "memory",
        about: "resident memory with idle HTTP connections, each of which has carried one request",
        headline: MIB_AT_2000,
        run: memory,
    },
    Scenario {
        name: "grpc-streams",
        about: "1,000 concurrent calls with 10 replies a second each, over 10 connections",
        headline: h2::CPU_US_EACH,
        run: h2::streams,
    },
];

const CPU_US: &str = "CPU-us/request";
const MIB_AT_2000: &str = "MiB at 2000";
const RPS: &str = "RPS";
pub const ERRORS: &str = "errors";

/// A load that takes longer is stopped.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time from the last request until connections count as idle: the pools of every contender get time to shrink,
/// also of those that never do.
const SETTLE: Duration = Duration::from_secs(4);

/// The scenario with this name.
pub fn by_name(name: &str) -> Result<Vec<&'static Scenario>, String> {
    let found: Vec<&Scenario> = SCENARIOS.iter().filter(|scenario| scenario.name == name).collect();
    if found.is_empty() {
        let names: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        return Err(format!("no scenario `{name}`; there are {}", names.join(", ")));
    }
    Ok(found)
}

fn routes(bench: &Bench) -> Result<Samples, String> {
    let few_and_many = [("1 route", 1), ("10000 routes", 10_000)];
    let contenders = few_and_many.map(|(name, count)| contender::with_routes(name, &bench.steelyard, count));
    closed_loop(&Bench { contenders: contenders.into(), ..bench.clone_settings() })
}

fn closed_loop(bench: &Bench) -> Result<Samples, String> {
    let field = Field::start(bench, Mode::Http, &["http"], Ready::Answers)?;
    let mut samples = Samples::default();
    for running in field.running.iter().flatten() {
        // Connections to the origin, code and memory are warm for every contender before the first round.
        wrk(running.port, Duration::from_secs(1))?;
    }
    for round in 0..bench.rounds {
        let direct = wrk(field.origin_port, bench.duration())?;
        for (name, value) in
            [(RPS, direct.rps), ("p50 us", direct.p50_us), ("p99 us", direct.p99_us), (ERRORS, direct.errors)]
        {
            samples.add("direct", name, value);
        }
        for (contender, running) in field.of_round(bench, round) {
            let before = cpu_ns(running.child.pid())?;
            let said = wrk(running.port, bench.duration())?;
            let cpu_us = (cpu_ns(running.child.pid())? - before) as f64 / 1e3;
            samples.add(contender.name, RPS, said.rps);
            samples.add(contender.name, "p50 us", said.p50_us);
            samples.add(contender.name, "p99 us", said.p99_us);
            samples.add(contender.name, ERRORS, said.errors);
            samples.add(contender.name, CPU_US, cpu_us / said.requests);
            samples.add(contender.name, "RSS MiB", rss_kib(running.child.pid())? as f64 / 1024.0);
        }
    }
    Ok(samples)
}

fn memory(bench: &Bench) -> Result<Samples, String> {
    let mut samples = Samples::default();
    let (_origin, origin_port) = origin(bench, &["http"])?;
    for contender in &bench.contenders {
        let resident_kib = |connections| {
            let running = contender.start(Mode::Http, origin_port, Ready::Answers, &bench.directory)?;
            with_idle_connections(bench, &running, connections)
        };
        match resident_kib(2_000).and_then(|few| Ok((few as f64, resident_kib(10_000)? as f64))) {
            Ok((few, many)) => {
                samples.add(contender.name, MIB_AT_2000, few / 1024.0);
                samples.add(contender.name, "MiB at 10000", many / 1024.0);
                samples.add(contender.name, "KiB for each between", (many - few) / 8_000.0);
            }
            // The most likely cause is a limit on open files, which is the fault of this host and not of the contender.
            Err(why) => println!("GAP  {}: {why}", contender.name),
        }
    }
    Ok(samples)
}

/// Resident memory in KiB after each of `count` connections has carried one request and was idle for [`SETTLE`].
fn with_idle_connections(bench: &Bench, running: &Running, count: usize) -> Result<u64, String> {
    let count_text = count.to_string();
    let url = format!("http://127.0.0.1:{}/", running.port);
    let mut command = pinned(tools::CPU, &bench.steelyard);
    command.args(["load", "http", &url, "-c", &count_text, "-n", &count_text, "--hold", "120s", "--json"]);
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    let mut load = command.spawn().map_err(|error| format!("cannot start the load: {error}"))?;
    let pid = running.child.pid();
    let deadline = Instant::now() + PATIENCE;
    let outcome = loop {
        let before = cpu_ns(pid)?;
        pause(POLL * 10);
        // The load is connected, and busy for less than a hundredth of the time, so it is idle.
        if open_files(pid) >= count && cpu_ns(pid)? - before < (POLL * 10).as_nanos() as u64 / 100 {
            pause(SETTLE);
            break rss_kib(pid);
        }
        if Instant::now() > deadline {
            break Err(format!(
                "{} open files, and the load is not idle, where {count} idle connections should be",
                open_files(pid)
            ));
        }
    };
    // Both fail only for a load that has already ended.
    let _ = load.kill();
    let _ = load.wait();
    outcome
}

/// An origin, and every contender that supports the mode in front of it.
pub struct Field {
    pub origin_port: u16,
    pub running: Vec<Option<Running>>,
    _origin: Child,
}

impl Field {
    pub fn start(bench: &Bench, mode: Mode, origin_words: &[&str], ready: Ready) -> Result<Self, String> {
        let (child, origin_port) = origin(bench, origin_words)?;
        let start = |contender: &Contender| match contender.can(mode) {
            true => contender.start(mode, origin_port, ready, &bench.directory).map(Some),
            false => Ok(None),
        };
        let running = bench.contenders.iter().map(start).collect::<Result<_, _>>()?;
        Ok(Self { origin_port, running, _origin: child })
    }

    pub fn of_round<'a>(
        &'a self,
        bench: &'a Bench,
        round: usize,
    ) -> impl Iterator<Item = (&'a Contender, &'a Running)> {
        bench.order(round).filter_map(|index| Some((bench.contenders.get(index)?, self.running.get(index)?.as_ref()?)))
    }
}

fn origin(bench: &Bench, words: &[&str]) -> Result<(Child, u16), String> {
    let port = free_port()?;
    let mut arguments: Vec<String> = ["origin"].iter().chain(words).map(|word| (*word).to_owned()).collect();
    arguments.extend(["--listen".to_owned(), format!("127.0.0.1:{port}")]);
    let child =
        Child::start("origin", tools::CPU, &bench.steelyard, &arguments, &bench.directory, (port, Ready::Accepts))?;
    Ok((child, port))
}
