//! Other load generators: how to call each, and how to read its output.

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::net::TcpListener;

use super::child::{capture, serve};
use crate::procfs;

/// Connections of HTTP/1, as a word of a command line.
pub(super) const CONNECTIONS: &str = "64";

/// How often to check whether iperf3's server is there.
const POLL: Duration = Duration::from_millis(20);
const POLLS_MAX: u32 = 100;

/// A load generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    Wrk,
    Ab,
    H2load,
    /// The same, speaking HTTP/1.1.
    H2loadH1,
    Iperf3,
}

/// The result of one run of a generator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// Requests per second, or bits per second.
    pub per_s: f64,
    pub p50_us: Option<f64>,
    pub operations: Option<f64>,
    /// The CPU time of the generator.
    pub cpu: Duration,
}

impl Tool {
    pub(super) fn program(self) -> &'static str {
        match self {
            Self::Wrk => "wrk",
            Self::Ab => "ab",
            Self::H2load | Self::H2loadH1 => "h2load",
            Self::Iperf3 => "iperf3",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::H2loadH1 => "h2load --h1",
            other => other.program(),
        }
    }

    /// One run, for this time or this number of requests.
    pub(super) async fn run(
        self,
        address: SocketAddr,
        duration: Duration,
        requests: Option<u64>,
    ) -> io::Result<Figures> {
        if self == Self::Iperf3 {
            return iperf3(duration).await;
        }
        let log = std::env::temp_dir().join(format!("steelyard-h2load-{}.log", std::process::id()));
        let words = self.words(address, duration, requests.unwrap_or_default(), &log.display().to_string());
        let before = procfs::ended_children_cpu_time()?;
        let said = capture(OsStr::new(self.program()), &words).await;
        let cpu = procfs::ended_children_cpu_time()?.saturating_sub(before);
        let logged = std::fs::read_to_string(&log).unwrap_or_default();
        // Only h2load has one.
        let _ = std::fs::remove_file(&log);
        let said = said?;
        let figures = match self {
            Self::Wrk => read_wrk(&said),
            Self::Ab => read_ab(&said),
            _ => read_h2load(&said, &logged),
        };
        let figures = figures.ok_or_else(|| io::Error::other(format!("{} failed:\n{said}", self.name())))?;
        Ok(Figures { cpu, ..figures })
    }

    fn words(self, address: SocketAddr, duration: Duration, requests: u64, log: &str) -> Vec<String> {
        let seconds = duration.as_secs().max(1);
        let (url, n) = (format!("http://{address}/"), requests.to_string());
        let words: Vec<&str> = match self {
            Self::Wrk => vec!["-t1", "--latency", "-c", CONNECTIONS, "-d"],
            Self::Ab => vec!["-q", "-k", "-c", CONNECTIONS, "-n", &n, &url],
            Self::H2loadH1 => vec!["--h1", "-c", CONNECTIONS, "-n", &n, "--log-file", log, &url],
            Self::H2load => vec!["-c", "8", "-m", "8", "-n", &n, "--log-file", log, &url],
            Self::Iperf3 => Vec::new(),
        };
        let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        if self == Self::Wrk {
            words.extend([format!("{seconds}s"), url]);
        }
        words
    }
}

/// iperf3 only talks to itself: its own server replaces the origin.
async fn iperf3(duration: Duration) -> io::Result<Figures> {
    // Another process may take the port before iperf3 does, which then reports it.
    let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port().to_string();
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let server = serve("iperf3", &words(&format!("-s -p {port}")))?;
    let client = words(&format!("-c 127.0.0.1 -p {port} -P 4 -J -t {}", duration.as_secs().max(1)));
    let mut said = String::new();
    for _ in 0..POLLS_MAX {
        // If the server does not listen yet, iperf3 may report an error although it succeeds, or the other way round.
        said = capture(OsStr::new("iperf3"), &client).await.unwrap_or_else(|error| error.to_string());
        if let Some(figures) = read_iperf3(&said) {
            drop(server);
            return Ok(figures);
        }
        tokio::time::sleep(POLL).await;
    }
    Err(io::Error::other(format!("iperf3 failed:\n{said}")))
}

fn read_wrk(text: &str) -> Option<Figures> {
    let mut figures = Figures::default();
    for line in text.lines() {
        match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["50%", value] => figures.p50_us = Some(microseconds(value)?),
            [count, "requests", "in", ..] => figures.operations = Some(count.parse().ok()?),
            ["Requests/sec:", value] => figures.per_s = value.parse().ok()?,
            // Any errors.
            ["Socket", "errors:", ..] | ["Non-2xx", ..] => return None,
            _ => {}
        }
    }
    (figures.per_s > 0.0).then_some(figures)
}

pub(super) fn microseconds(text: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 60e6)];
    units.iter().find_map(|(unit, us)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * us))
}

/// Before ab opens its other connections it waits for the first response on one, and includes that wait in its time. Both are subtracted,
/// using the smallest of its latencies: the rest is the closed loop that all other tools measure.
fn read_ab(text: &str) -> Option<Figures> {
    let (mut figures, mut seconds, mut least_ms) = (Figures::default(), 0.0, 0.0);
    for line in text.lines() {
        match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["Time", "taken", "for", "tests:", value, ..] => seconds = value.parse().ok()?,
            ["Complete", "requests:", count] => figures.operations = Some(count.parse().ok()?),
            ["Total:", least, ..] => least_ms = least.parse().ok()?,
            // Whole ms.
            ["50%", value] => figures.p50_us = Some(value.parse::<f64>().ok()? * 1e3),
            ["Failed", "requests:", count] if *count != "0" => return None,
            _ => {}
        }
    }
    figures.per_s = (figures.operations? - 1.0) / (seconds - least_ms / 1e3);
    (seconds > 0.0 && figures.per_s > 0.0).then_some(figures)
}

fn read_h2load(text: &str, logged: &str) -> Option<Figures> {
    let finished = text.lines().find_map(|line| line.strip_prefix("finished in "))?;
    let per_s = finished.split(", ").nth(1)?.strip_suffix(" req/s")?.parse().ok()?;
    let took = read_h2load_log(logged)?;
    let p50_us = took.get(took.len() / 2).map(|&us| us as f64)?;
    Some(Figures { per_s, p50_us: Some(p50_us), operations: Some(took.len() as f64), cpu: Duration::ZERO })
}

/// The durations of requests in µs, in order. The log has a line for each: its start in µs, its status, its duration in µs. `None` if one failed.
pub(super) fn read_h2load_log(logged: &str) -> Option<Vec<u64>> {
    let mut took: Vec<u64> = Vec::new();
    for line in logged.lines() {
        let mut fields = line.split('\t').skip(1);
        if fields.next()? != "200" {
            return None;
        }
        took.push(fields.next()?.trim().parse().ok()?);
    }
    took.sort_unstable();
    Some(took)
}

fn read_iperf3(text: &str) -> Option<Figures> {
    let report: Value = serde_json::from_str(text).ok()?;
    let per_s = report.pointer("/end/sum_received/bits_per_second")?.as_f64()?;
    Some(Figures { per_s, ..Figures::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(figures: Option<Figures>, expect: Option<(f64, Option<f64>, Option<f64>)>) {
        assert_eq!(figures.map(|figures| (figures.per_s, figures.p50_us, figures.operations)), expect);
    }

    #[test]
    fn what_wrk_says() {
        let good = "Running 2s test @ http://127.0.0.1:1/\n  Thread Stats   Avg      Stdev     Max   +/- Stdev\n    \
                    Latency     1.23ms    2.00ms  40.00ms   90.00%\n  Latency Distribution\n     50%   20.61ms\n     \
                    99%   21.75ms\n  6400 requests in 2.01s, 1.00MB read\nRequests/sec:   3184.08\nTransfer/sec:      0.31MB\n";
        check(read_wrk(good), Some((3_184.08, Some(20_610.0), Some(6_400.0))));
        check(read_wrk(&format!("{good}  Socket errors: connect 0, read 1, write 0, timeout 0\n")), None);
        check(read_wrk(&format!("{good}  Non-2xx or 3xx responses: 5\n")), None);
        check(read_wrk("unable to connect to 127.0.0.1:1 Connection refused\n"), None);
    }

    #[test]
    fn what_ab_says() {
        let good = "Time taken for tests:   2.128 seconds\nComplete requests:      1280\nFailed requests:        0\n\
                    Requests per second:    601.50 [#/sec] (mean)\nTime per request:       101.391 [ms] (mean)\n\n              \
                    min  mean[+/-sd] median   max\nConnect:        0    0   0.1      0       1\nTotal:        100  101   1.2    101     118\n\n\
                    Percentage of the requests served within a certain time (ms)\n  \
                    50%    101\n  66%    101\n 100%    118 (longest request)\n";
        // 1,279 requests after the first 100 ms.
        let per_s = 1_279.0 / (2.128 - 0.1);
        check(read_ab(good), Some((per_s, Some(101_000.0), Some(1_280.0))));
        check(read_ab(&good.replace("requests:        0", "requests:        7")), None);
        check(read_ab("apr_socket_recv: Connection refused (111)\n"), None);
    }

    #[test]
    fn what_h2load_says() {
        let said = "starting benchmark...\n\nfinished in 2.01s, 3184.08 req/s, 93.20KB/s\nrequests: 3 total\n";
        let log = "1732180000000000\t200\t20100\n1732180000000001\t200\t20300\n1732180000000002\t200\t20200\n";
        check(read_h2load(said, log), Some((3_184.08, Some(20_200.0), Some(3.0))));
        check(read_h2load(said, &log.replace("\t200\t20300", "\t503\t20300")), None);
        check(read_h2load(said, ""), None);
        check(read_h2load("", log), None);
    }

    #[test]
    fn what_iperf3_says() {
        let good = r#"{"end": {"sum_sent": {"bits_per_second": 9.0}, "sum_received": {"bits_per_second": 8.5}}}"#;
        check(read_iperf3(good), Some((8.5, None, None)));
        check(read_iperf3(r#"{"error": "unable to connect to server"}"#), None);
    }
}
