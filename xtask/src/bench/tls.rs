//! TLS in comparison with the rivals that terminate it: the cost of a handshake and of a byte.
//!
//! The clients open one connection after another with OpenSSL's `s_time`. A client's half of a handshake costs more
//! than a server's, so one CPU of clients does not saturate the contender's. What counts is each contender's CPU time,
//! which gives handshakes per second and core.

use std::path::Path;
use std::time::Instant;

use super::Bench;
use super::child::{Ready, cpu_ns, pinned};
use super::contender::{Mode, make_certificate};
use super::scenario::{ERRORS, Field};
use super::table::Samples;
use super::tools::CPU;
use crate::command::capture;

pub const CPU_US_EACH: &str = "CPU-us/connection";
pub const PER_CORE: &str = "GB/s per core";

/// The size of the fetched bodies.
const BODY: &str = "256MiB";
const BODY_BYTES: f64 = (256 << 20) as f64;

/// Connections that carry one request each, with full handshakes or resumed sessions.
pub fn handshakes(bench: &Bench, resumed: bool) -> Result<Samples, String> {
    make_certificate(&bench.directory)?;
    let field = Field::start(bench, Mode::Tls, &["http"], Ready::Accepts)?;
    let mut samples = Samples::default();
    for running in field.running.iter().flatten() {
        s_time(running.port, resumed, 1)?;
    }
    for round in 0..bench.rounds {
        for (contender, running) in field.of_round(bench, round) {
            let before = cpu_ns(running.child.pid())?;
            let said = s_time(running.port, resumed, bench.seconds)?;
            let cpu_us = (cpu_ns(running.child.pid())? - before) as f64 / 1e3;
            samples.add(contender.name, "connections/s", said.connections / said.seconds);
            samples.add(contender.name, "resumed, %", 100.0 * said.resumed / said.connections);
            samples.add(contender.name, CPU_US_EACH, cpu_us / said.connections);
            samples.add(contender.name, "connections/s/core", said.connections / cpu_us * 1e6);
        }
    }
    Ok(samples)
}

/// Large bodies.
pub fn bulk(bench: &Bench) -> Result<Samples, String> {
    make_certificate(&bench.directory)?;
    let field = Field::start(bench, Mode::Tls, &["http", "--body", BODY], Ready::Accepts)?;
    let mut samples = Samples::default();
    for running in field.running.iter().flatten() {
        fetch(running.port)?;
    }
    for round in 0..bench.rounds {
        for (contender, running) in field.of_round(bench, round) {
            let (before, start) = (cpu_ns(running.child.pid())?, Instant::now());
            let (mut fetched, mut errors) = (0.0, 0.0);
            while start.elapsed() < bench.duration() {
                let bytes = fetch(running.port)?;
                fetched += bytes;
                errors += f64::from(u8::from(bytes < BODY_BYTES));
            }
            let seconds = start.elapsed().as_secs_f64();
            let cpu_ns = (cpu_ns(running.child.pid())? - before) as f64;
            samples.add(contender.name, "GB/s", fetched / seconds / 1e9);
            // Bytes per ns equal GB per s.
            samples.add(contender.name, PER_CORE, fetched / cpu_ns);
            samples.add(contender.name, ERRORS, errors);
        }
    }
    Ok(samples)
}

/// The result of `openssl s_time`.
#[derive(Debug, PartialEq)]
struct STime {
    connections: f64,
    resumed: f64,
    seconds: f64,
}

fn s_time(port: u16, resumed: bool, seconds: u64) -> Result<STime, String> {
    let mut command = pinned(CPU, Path::new("openssl"));
    command.args(["s_time", "-connect", &format!("127.0.0.1:{port}"), "-time", &seconds.to_string()]);
    // TLS 1.3 sends tickets after the handshake, so the client has to read something to get one.
    command.args(["-tls1_3", "-www", "/", if resumed { "-reuse" } else { "-new" }]);
    parse_s_time(&capture(&mut command)?)
}

/// The output has a letter for each connection, `r` if it was resumed; then `N connections in S real seconds, B bytes
/// read per connection`.
fn parse_s_time(text: &str) -> Result<STime, String> {
    let failed = || format!("openssl s_time printed no result:\n{text}");
    let line = text.lines().rev().find(|line| line.contains(" real seconds, ")).ok_or_else(failed)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let [connections, "connections", "in", seconds, "real", "seconds,", bytes, ..] = words.as_slice() else {
        return Err(failed());
    };
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| *number > 0.0).ok_or_else(failed);
    // Without a byte, it was a handshake without a request.
    number(bytes)?;
    let letters = text.lines().filter(|line| !line.is_empty() && line.bytes().all(|byte| b"rt*3".contains(&byte)));
    let resumed = letters.map(|line| line.bytes().filter(|byte| *byte == b'r').count()).sum::<usize>();
    Ok(STime { connections: number(connections)?, resumed: resumed as f64, seconds: number(seconds)? })
}

/// Fetches one body and returns the number of bytes received.
fn fetch(port: u16) -> Result<f64, String> {
    let mut command = pinned(CPU, Path::new("curl"));
    command.args(["--silent", "--insecure", "--http1.1", "--output", "/dev/null", "--write-out", "%{size_download}"]);
    let said = capture(command.arg(format!("https://127.0.0.1:{port}/")))?;
    said.trim().parse().map_err(|_| format!("curl printed {said:?} instead of a size"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_s_time_says() {
        let text = "Collecting connection statistics for 1 seconds\n***rrr\n\n6 connections in 0.02s; 300.00 connections/user sec, bytes read 600\n\
                    6 connections in 2 real seconds, 100 bytes read per connection\n";
        assert_eq!(parse_s_time(text), Ok(STime { connections: 6.0, resumed: 3.0, seconds: 2.0 }));
        assert!(parse_s_time(&text.replace("100 bytes", "0 bytes")).is_err());
        assert!(parse_s_time("ERROR\n").is_err());
    }
}
