//! Long-lived streams of gRPC in comparison with the rivals. Load and origin are those of the lab.

use super::Bench;
use super::child::{Ready, cpu_ns, rss_kib};
use super::contender::Mode;
use super::scenario::{ERRORS, Field};
use super::table::Samples;
use super::tools::{failures, figure, steelyard_load};

pub const CPU_US_EACH: &str = "CPU-us/message";

/// The number of long-lived streams: within what every contender allows on a connection by default.
const STREAM_CONNECTIONS: &str = "10";
const STREAMS_EACH: &str = "100";
const STREAMS: &str = "1000";
const REPLIES_PER_SECOND: u64 = 10;
/// The time between replies, as strest sets it: 100 ms at all percentiles but the lowest.
const REPLY_GAP: &str = "1=100,100=100";

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
