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

/// The result of h2load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct H2load {
    /// Requests that succeeded.
    pub requests: f64,
    pub rps: f64,
    /// Requests that failed or timed out, and responses other than 2xx.
    pub errors: f64,
}

/// Runs a closed loop of HTTP/2, with `streams` concurrent streams on each of `connections`, for this long.
pub fn h2load(port: u16, shape: (usize, usize), duration: Duration) -> Result<H2load, String> {
    parse_h2load(&capture(&mut h2load_command(port, shape, duration))?)
}

/// Runs the same for a second with a log of each request, to get percentiles: p50 and p99 in µs. h2load does not print
/// percentiles itself, and the log costs it so much that nothing else is measured in this run.
pub fn h2load_percentiles_us(port: u16, shape: (usize, usize), log: &Path) -> Result<(f64, f64), String> {
    // h2load appends to the file.
    let gone = std::fs::remove_file(log).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    });
    gone.map_err(|error| format!("cannot remove {}: {error}", log.display()))?;
    let mut command = h2load_command(port, shape, Duration::from_secs(1));
    capture(command.arg(format!("--log-file={}", log.display())))?;
    let text = std::fs::read_to_string(log).map_err(|error| format!("cannot read {}: {error}", log.display()))?;
    percentiles_of_log(&text)
}

fn h2load_command(port: u16, (connections, streams): (usize, usize), duration: Duration) -> std::process::Command {
    let mut command = pinned(CPU, Path::new("h2load"));
    command.args(["-t1", &format!("-c{connections}"), &format!("-m{streams}")]);
    command.args([format!("--duration={}", duration.as_secs()), format!("http://127.0.0.1:{port}/")]);
    command
}

/// Parses lines like `requests: 9 total, 9 started, 9 done, 9 succeeded, 0 failed, 0 errored, 0 timeout`.
fn parse_h2load(text: &str) -> Result<H2load, String> {
    let mut said = H2load::default();
    for line in text.lines() {
        if let Some(counts) = line.strip_prefix("requests: ") {
            for count in counts.split(", ") {
                match count.split_once(' ') {
                    Some((count, "succeeded")) => said.requests = number(count)?,
                    Some((count, "failed" | "errored" | "timeout")) => said.errors += number(count)?,
                    _ => {}
                }
            }
        } else if let Some(finished) = line.strip_prefix("finished in ") {
            let rate = finished.split(", ").find_map(|part| part.strip_suffix(" req/s"));
            said.rps = number(rate.ok_or_else(|| format!("h2load printed no rate: {line}"))?)?;
        }
    }
    if said.requests > 0.0 { Ok(said) } else { Err(format!("h2load printed no result:\n{text}")) }
}

/// Each line has the start time, the status, and µs until the end. A failed request has the status -1.
fn percentiles_of_log(text: &str) -> Result<(f64, f64), String> {
    let mut times = Vec::new();
    for line in text.lines() {
        let mut columns = line.split('\t').skip(1);
        if let (Some(status), Some(us)) = (columns.next(), columns.next())
            && status != "-1"
        {
            times.push(number(us)?);
        }
    }
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied();
    at(0.5).zip(at(0.99)).ok_or_else(|| "h2load logged no request".to_owned())
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
    fn what_h2load_says() {
        let text = "finished in 5.00s, 46554.60 req/s, 1.60MB/s\nrequests: 232773 total, 233029 started, 232773 done, 232770 succeeded, 1 failed, \
                    2 errored, 3 timeout\nstatus codes: 232770 2xx, 0 3xx, 0 4xx, 1 5xx\n";
        assert_eq!(parse_h2load(text), Ok(H2load { requests: 232_770.0, rps: 46_554.6, errors: 6.0 }));
        assert!(parse_h2load("requests: 1 total, 1 started, 0 done, 0 succeeded, 1 failed").is_err());
    }

    #[test]
    fn percentiles_of_what_h2load_writes_down() {
        let log: String = (1..=100).map(|us| format!("1700000000000000\t200\t{us}\n")).collect();
        assert_eq!(percentiles_of_log(&log), Ok((51.0, 100.0)));
        assert_eq!(percentiles_of_log(&format!("1\t-1\t999\n{log}")), Ok((51.0, 100.0)));
        assert!(percentiles_of_log("1\t-1\t999\n").is_err());
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
