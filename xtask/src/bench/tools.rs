//! The load generators, and how to read their output.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::child::pinned;
use crate::command::capture;

/// The CPU that load and origin share.
pub const CPU: usize = 0;

/// The number of connections of a load by default.
pub const CONNECTIONS: usize = 64;

/// The result of wrk.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wrk {
    pub requests: f64,
    pub rps: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Socket errors, and responses with a status above 399.
    pub errors: f64,
}

/// Runs a closed loop for this long.
pub fn wrk(port: u16, duration: Duration) -> Result<Wrk, String> {
    let mut command = pinned(CPU, Path::new("wrk"));
    command.args(["-t1", &format!("-c{CONNECTIONS}"), &format!("-d{}s", duration.as_secs()), "--latency"]);
    parse_wrk(&capture(command.arg(format!("http://127.0.0.1:{port}/")))?)
}

/// Parses wrk's report.
pub fn parse_wrk(text: &str) -> Result<Wrk, String> {
    let mut said = Wrk::default();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["50%", value] => said.p50_us = micros(value)?,
            ["99%", value] => said.p99_us = micros(value)?,
            [count, "requests", "in", ..] => said.requests = number(count)?,
            ["Requests/sec:", value] => said.rps = number(value)?,
            ["Non-2xx", "or", "3xx", "responses:", count] => said.errors += number(count)?,
            ["Socket", "errors:", "connect", a, "read", b, "write", c, "timeout", d] => {
                for count in [a, b, c, d] {
                    said.errors += number(count.trim_end_matches(','))?;
                }
            }
            _ => {}
        }
    }
    if said.requests > 0.0 { Ok(said) } else { Err(format!("wrk printed no result:\n{text}")) }
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("the load printed {text:?} instead of a number"))
}

fn micros(text: &str) -> Result<f64, String> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 60e6)];
    let unit = units.iter().find_map(|(unit, us)| Some((text.strip_suffix(unit)?.parse::<f64>().ok()?, us)));
    unit.map(|(value, us)| value * us).ok_or_else(|| format!("wrk printed {text:?} instead of a time"))
}

/// Runs `steelyard load` with these arguments and returns its report.
pub fn steelyard_load(steelyard: &Path, words: &[&str]) -> Result<Value, String> {
    let mut command = pinned(CPU, steelyard);
    let said = capture(command.arg("load").args(words).arg("--json"))?;
    serde_json::from_str(&said)
        .map_err(|error| format!("the report of steelyard load, {said:?}, cannot be parsed: {error}"))
}

/// Returns a number in a report, by its path.
pub fn figure(report: &Value, pointer: &str) -> Result<f64, String> {
    report.pointer(pointer).and_then(Value::as_f64).ok_or_else(|| format!("no {pointer} in the report {report}"))
}

/// All failures, of any kind.
pub fn failures(report: &Value) -> f64 {
    let kinds = report.pointer("/errors").and_then(Value::as_object);
    kinds.into_iter().flat_map(|kinds| kinds.values()).filter_map(Value::as_f64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_a_report() {
        assert_eq!(failures(&serde_json::json!({"errors": {"connect": 2, "timeout": 1}})), 3.0);
    }

    #[test]
    fn what_wrk_says() {
        let good = "Running 3s test @ http://127.0.0.1:9302/\n  1 threads and 64 connections\n  Thread Stats   Avg      Stdev     Max   +/- Stdev\n    \
                    Latency     1.23ms    2.00ms  40.00ms   90.00%\n    Req/Sec    61.94k     5.00k   70.00k    70.00%\n  Latency Distribution\n     \
                    50%  612.00us\n     75%    1.00ms\n     90%    4.00ms\n     99%    9.75ms\n  184589 requests in 3.01s, 25.00MB read\n\
                    Requests/sec:  61325.25\nTransfer/sec:      8.31MB\n";
        let expect = Wrk { requests: 184_589.0, rps: 61_325.25, p50_us: 612.0, p99_us: 9_750.0, errors: 0.0 };
        assert_eq!(parse_wrk(good), Ok(expect));
        let bad =
            format!("{good}  Socket errors: connect 1, read 2, write 3, timeout 4\n  Non-2xx or 3xx responses: 5\n");
        assert_eq!(parse_wrk(&bad), Ok(Wrk { errors: 15.0, ..expect }));
        assert!(parse_wrk("unable to connect to 127.0.0.1:1 Connection refused\n").is_err());
        assert!(parse_wrk("  50%  fast\n").is_err());
    }
}
