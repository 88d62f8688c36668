//! HTTP/2 and gRPC in comparison with the rivals: requests in closed loops of three shapes, and long-lived streams.
//!
//! The load is h2load, and the lab's for streams. The HTTP/2 origin is `steelyard origin grpc`, which answers plain
//! requests too.

use super::Bench;
use super::child::{Ready, cpu_ns, rss_kib};
use super::contender::Mode;
use super::scenario::{CPU_US, ERRORS, Field, RPS};
use super::table::Samples;
use super::tools::{failures, figure, h2load, h2load_percentiles_us, steelyard_load};

/// Connections, and concurrent requests on each.
pub const FEW_STREAMS_EACH: (usize, usize) = (8, 32);
pub const MANY_CONNECTIONS: (usize, usize) = (100, 1);
pub const ONE_CONNECTION: (usize, usize) = (1, 100);

pub const CPU_US_EACH: &str = "CPU-us/message";

/// The number of long-lived streams: within what every contender allows on a connection by default.
const STREAM_CONNECTIONS: &str = "10";
const STREAMS_EACH: &str = "100";
const STREAMS: &str = "1000";
const REPLIES_PER_SECOND: u64 = 10;
/// The time between replies, as strest sets it: 100 ms at all percentiles but the lowest.
const REPLY_GAP: &str = "1=100,100=100";

/// Sends requests as fast as responses arrive.
pub fn closed_loop(bench: &Bench, mode: Mode, shape: (usize, usize)) -> Result<Samples, String> {
    let origin: &[&str] = if mode == Mode::H2c { &["grpc"] } else { &["http"] };
    let field = Field::start(bench, mode, origin, Ready::AnswersH2)?;
    let log = bench.directory.join("h2load.log");
    let mut samples = Samples::default();
    for running in field.running.iter().flatten() {
        // Connections to the origin, code and memory are warm for every contender before the first round.
        h2load_percentiles_us(running.port, shape, &log)?;
    }
    for round in 0..bench.rounds {
        if mode == Mode::H2c {
            let direct = h2load(field.origin_port, shape, bench.duration())?;
            samples.add("direct", RPS, direct.rps);
            samples.add("direct", ERRORS, direct.errors);
        }
        for (contender, running) in field.of_round(bench, round) {
            let before = cpu_ns(running.child.pid())?;
            let said = h2load(running.port, shape, bench.duration())?;
            let cpu_us = (cpu_ns(running.child.pid())? - before) as f64 / 1e3;
            let (p50, p99) = h2load_percentiles_us(running.port, shape, &log)?;
            samples.add(contender.name, RPS, said.rps);
            samples.add(contender.name, "p50 us", p50);
            samples.add(contender.name, "p99 us", p99);
            samples.add(contender.name, ERRORS, said.errors);
            samples.add(contender.name, CPU_US, cpu_us / said.requests);
            samples.add(contender.name, "RSS MiB", rss_kib(running.child.pid())? as f64 / 1024.0);
        }
    }
    Ok(samples)
}

/// Many long-lived calls, each of which gets a reply now and then.
pub fn streams(bench: &Bench) -> Result<Samples, String> {
    let field = Field::start(bench, Mode::H2c, &["grpc"], Ready::AnswersH2)?;
    let replies = (bench.seconds * REPLIES_PER_SECOND).to_string();
    let load = |port: u16| {
        let address = format!("127.0.0.1:{port}");
        // The timeout exceeds the duration of the calls.
        let timeout = format!("{}s", 3 * bench.seconds + 10);
        let words =
            ["grpc", &address, "-c", STREAM_CONNECTIONS, "-s", STREAMS_EACH, "-n", STREAMS, "--streaming", &replies];
        let manner = ["--latency-percentiles", REPLY_GAP, "--timeout", &timeout];
        steelyard_load(&bench.steelyard, &[&words[..], &manner].concat())
    };
    let mut samples = Samples::default();
    for round in 0..bench.rounds {
        let direct = load(field.origin_port)?;
        samples.add("direct", "calls", figure(&direct, "/ok")?);
        samples.add("direct", ERRORS, failures(&direct));
        samples.add("direct", "s", figure(&direct, "/window_s")?);
        for (contender, running) in field.of_round(bench, round) {
            let before = cpu_ns(running.child.pid())?;
            let said = load(running.port)?;
            let cpu_us = (cpu_ns(running.child.pid())? - before) as f64 / 1e3;
            let calls = figure(&said, "/ok")?;
            samples.add(contender.name, "calls", calls);
            samples.add(contender.name, ERRORS, failures(&said));
            // The latency on top of that of `direct`: late replies delayed those after them.
            samples.add(contender.name, "s", figure(&said, "/window_s")?);
            let messages = calls * (bench.seconds * REPLIES_PER_SECOND) as f64;
            samples.add(contender.name, CPU_US_EACH, cpu_us / messages);
            samples.add(contender.name, "RSS MiB", rss_kib(running.child.pid())? as f64 / 1024.0);
        }
    }
    Ok(samples)
}
