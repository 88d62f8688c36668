//! Shows whether load generators report a stall: an origin that answers nothing for a second in the middle of a run.
//!
//! This is `steelyard lab verify --stall`. Who sends its next request only when the last one was answered (a closed loop) sends hardly anything
//! during the stall, so that its percentiles hardly have it, although everybody who came in that second had to wait. This is known as coordinated
//! omission. The origin stalls by its own clock, so the right answer is known: with requests at an even rate, the latency that 1 % of the requests of
//! a run of T seconds exceed is that of a request due T/100 after the begin of the stall, which waits for the rest of it.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::process::Command;

use super::child::{Origin, capture};
use super::tools::{microseconds, read_h2load_log};
use crate::load::LoadReport;
use crate::stats::median;
use crate::{Verdict, environment, host};

/// How long the origin answers nothing.
const STALL: Duration = Duration::from_secs(1);

/// Requests per second of those generators that have a rate.
const RATE: u32 = 1_000;

/// Connections, or calls at a time. In a closed loop, as many requests wait for the end of the stall: fewer than 1 % of those of a run.
const CONNECTIONS: u32 = 10;

/// A percentile shows the stall if it is at least this share of its length. Without the stall, all of them are far below.
const SHOWN_MIN: f64 = 0.5;

/// The shortest and the longest run. In a shorter one, 1 % of the requests of a closed loop may meet the stall; in a longer one, hardly more of an
/// open loop do, and p99 need not have much of it.
pub(crate) const DURATIONS: RangeInclusive<Duration> = Duration::from_secs(3)..=Duration::from_secs(45);

/// The parameters of the test.
#[derive(Clone, Copy, Debug)]
pub struct StallPlan {
    /// Runs of each generator.
    pub rounds: u32,
    /// How long each takes, with the stall in its middle.
    pub duration: Duration,
}

/// The generators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Generator {
    Http,
    Grpc,
    Wrk,
    H2load,
    Hey,
    Ghz,
    Oha,
    OhaCorrected,
}

const ALL: [Generator; 8] = [
    Generator::Http,
    Generator::Grpc,
    Generator::Wrk,
    Generator::H2load,
    Generator::Hey,
    Generator::Ghz,
    Generator::Oha,
    Generator::OhaCorrected,
];

/// The percentiles of one run, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tail {
    p99_us: Option<f64>,
    p999_us: Option<f64>,
}

/// What a generator reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StallRow {
    /// The program, and what it was told.
    pub generator: String,
    /// What it says about its version; empty if it says nothing.
    pub version: String,
    /// The median of its p99 over the rounds, in ms.
    pub p99_ms: Option<f64>,
    /// The median of its p99.9, if it gives that.
    pub p999_ms: Option<f64>,
    /// Whether half of the stall is in its p99.
    pub shows_at_p99: bool,
    /// Whether half of the stall is in its p99.9.
    pub shows_at_p999: bool,
    /// Whether the verdict depends on it: our own.
    pub is_held: bool,
}

/// The result of the test.
#[derive(Clone, Debug, Serialize)]
pub struct StallReport {
    /// The version of this form, as JSON.
    pub version: u32,
    /// Runs of each generator.
    pub rounds: u32,
    /// The length of a run, in seconds.
    pub duration_s: f64,
    /// The length of the stall, in milliseconds.
    pub stall_ms: f64,
    /// The p99 that follows from an even rate, in milliseconds.
    pub expected_p99_ms: f64,
    /// The generators.
    pub rows: Vec<StallRow>,
    /// The host's load average of one minute over the number of its CPUs, before and after.
    pub load_average_per_cpu: [f64; 2],
    /// Generators that are missing on this host.
    pub missing: Vec<String>,
    /// Generators that failed, and why.
    pub failed: Vec<String>,
}

/// Runs the test, with progress on standard error. `exe` is this program, for its origins and its load.
///
/// # Errors
/// If the host refuses a runtime, or on a signal. No process outlives this call.
pub fn stall(plan: &StallPlan, exe: &Path) -> io::Result<StallReport> {
    super::until_interrupted(stall_all(plan, exe))
}

async fn stall_all(plan: &StallPlan, exe: &Path) -> StallReport {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let mut report = StallReport {
        version: 1,
        rounds: plan.rounds,
        duration_s: plan.duration.as_secs_f64(),
        stall_ms: ms(STALL),
        expected_p99_ms: ms(STALL.saturating_sub(plan.duration / 100)),
        rows: Vec::new(),
        load_average_per_cpu: [super::load_average_per_cpu(); 2],
        missing: Vec::new(),
        failed: Vec::new(),
    };
    for generator in ALL {
        let program = generator.program();
        if !generator.is_ours() && host::find_program(program).is_none() {
            if !report.missing.iter().any(|missing| missing == program) {
                report.missing.push(program.to_owned());
            }
            continue;
        }
        // Progress. If nothing reads it, the test continues.
        let _ = writeln!(io::stderr(), "{}", generator.name());
        match generator.row(plan, exe).await {
            Ok(row) => report.rows.push(row),
            Err(error) => report.failed.push(format!("{}: {error}", generator.name())),
        }
    }
    report.load_average_per_cpu[1] = super::load_average_per_cpu();
    report
}

impl Generator {
    fn program(self) -> &'static str {
        match self {
            Self::Http | Self::Grpc => "steelyard",
            Self::Wrk => "wrk",
            Self::H2load => "h2load",
            Self::Hey => "hey",
            Self::Ghz => "ghz",
            Self::Oha | Self::OhaCorrected => "oha",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Http => "steelyard load --rate",
            Self::Grpc => "steelyard load grpc --rate",
            Self::Wrk => "wrk",
            Self::H2load => "h2load --rps",
            Self::Hey => "hey -q",
            Self::Ghz => "ghz --rps",
            Self::Oha => "oha -q",
            Self::OhaCorrected => "oha -q --latency-correction",
        }
    }

    fn is_ours(self) -> bool {
        matches!(self, Self::Http | Self::Grpc)
    }

    async fn row(self, plan: &StallPlan, exe: &Path) -> io::Result<StallRow> {
        let mut tails = Vec::new();
        for _ in 0..plan.rounds {
            // The origin stalls once, at a time that counts from its first request.
            let after = format!("{}ms", (plan.duration.saturating_sub(STALL) / 2).as_millis());
            let stall = format!("{}ms", STALL.as_millis());
            let kind = if matches!(self, Self::Grpc | Self::Ghz | Self::H2load) { "grpc" } else { "http" };
            let origin = Origin::start(exe, &[kind, "--stall", &stall, "--stall-after", &after]).await?;
            tails.push(self.once(plan.duration, exe, origin.address).await?);
        }
        let of = |at: fn(&Tail) -> Option<f64>| {
            let values: Vec<f64> = tails.iter().filter_map(at).map(|us| us / 1e3).collect();
            median(&values)
        };
        let (p99_ms, p999_ms) = (of(|tail| tail.p99_us), of(|tail| tail.p999_us));
        let shows = |ms: Option<f64>| ms.is_some_and(|ms| ms >= SHOWN_MIN * STALL.as_secs_f64() * 1e3);
        Ok(StallRow {
            generator: self.name().to_owned(),
            version: self.version(exe).await,
            p99_ms,
            p999_ms,
            shows_at_p99: shows(p99_ms),
            shows_at_p999: shows(p999_ms),
            is_held: self.is_ours(),
        })
    }

    async fn once(self, duration: Duration, exe: &Path, address: SocketAddr) -> io::Result<Tail> {
        let directory = std::env::temp_dir();
        let log = directory.join(format!("steelyard-stall-{}.log", std::process::id()));
        let proto = directory.join(format!("steelyard-stall-{}.proto", std::process::id()));
        if self == Self::Ghz {
            std::fs::write(&proto, PROTO)?;
        }
        let words = self.words(duration, address, &log.display().to_string(), &proto.display().to_string());
        let program = if self.is_ours() { exe.as_os_str() } else { OsStr::new(self.program()) };
        let said = capture(program, &words).await;
        let logged = std::fs::read_to_string(&log).unwrap_or_default();
        // Only h2load has a log, and only ghz the other file.
        let _ = std::fs::remove_file(&log);
        let _ = std::fs::remove_file(&proto);
        let said = said?;
        let tail = match self {
            Self::Http | Self::Grpc => read_ours(&said),
            Self::Wrk => read_wrk(&said),
            Self::H2load => read_h2load(&logged),
            Self::Hey => read_hey(&said),
            Self::Ghz => read_ghz(&said),
            Self::Oha | Self::OhaCorrected => read_oha(&said),
        };
        tail.ok_or_else(|| io::Error::other(format!("what it says cannot be read:\n{said}")))
    }

    fn words(self, duration: Duration, address: SocketAddr, log: &str, proto: &str) -> Vec<String> {
        let url = format!("http://{address}/");
        // wrk knows whole seconds only.
        let seconds = format!("{}s", duration.as_secs().max(1));
        let ms = format!("{}ms", duration.as_millis());
        let [rate, connections] = [RATE, CONNECTIONS].map(|number| number.to_string());
        let of_each = (RATE / CONNECTIONS).to_string();
        let words: Vec<&str> = match self {
            Self::Http => vec!["load", "http", &url, "-c", &connections, "-r", &rate, "-d", &ms, "--json"],
            Self::Grpc => {
                vec!["load", "grpc", &url, "-c", "2", "-s", "5", "-r", &rate, "-d", &ms, "--json"]
            }
            Self::Wrk => vec!["-t1", "--latency", "-c", &connections, "-d", &seconds, &url],
            Self::H2load => {
                let each = ["-c", &connections, "-m", "1", "--rps", &of_each, "-D", &seconds, "--log-file", log, &url];
                each.to_vec()
            }
            // Its rate is that of each worker.
            Self::Hey => vec!["-c", &connections, "-q", &of_each, "-z", &seconds, &url],
            Self::Ghz => {
                let mut words = vec!["--insecure", "--proto", proto, "--call", "strest.Responder/Get", "-d", "{}"];
                words.extend(["-c", &connections, "--rps", &rate, "-z", &ms, "-O", "json"]);
                return words.into_iter().map(str::to_owned).chain([address.to_string()]).collect();
            }
            Self::Oha => vec!["--no-tui", "--output-format", "json", "-c", &connections, "-q", &rate, "-z", &ms, &url],
            Self::OhaCorrected => {
                let words = ["--no-tui", "--output-format", "json", "--latency-correction"];
                [&words[..], &["-c", &connections, "-q", &rate, "-z", &ms, &url]].concat()
            }
        };
        words.into_iter().map(str::to_owned).collect()
    }

    /// The first line with a digit of what a program says of its version, wherever it says it: wrk adds its usage, and ends with an error.
    async fn version(self, exe: &Path) -> String {
        let (program, words): (&OsStr, &[&str]) = match self {
            Self::Http | Self::Grpc => (exe.as_os_str(), &["--version"]),
            // It has no option for it.
            Self::Hey => return String::new(),
            _ => (OsStr::new(self.program()), &["--version"]),
        };
        let Ok(output) = Command::new(program).args(words).stdin(Stdio::null()).output().await else {
            return String::new();
        };
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let line = said.lines().find(|line| line.chars().any(|c| c.is_ascii_digit())).unwrap_or_default();
        line.split(" Copyright").next().unwrap_or_default().trim().to_owned()
    }
}

/// The service of `steelyard origin grpc`, which ghz has to know.
const PROTO: &str = "syntax = \"proto3\";
package strest;
service Responder { rpc Get(ResponseSpec) returns (ResponseReply); }
message ResponseSpec { int32 count = 1; }
message ResponseReply { string body = 1; }
";

fn read_ours(text: &str) -> Option<Tail> {
    let report: LoadReport = serde_json::from_str(text).ok()?;
    let response = report.response.as_ref().filter(|_| report.failures() == 0)?;
    Some(Tail { p99_us: response.percentile_us(99.0), p999_us: response.percentile_us(99.9) })
}

/// It gives no percentile behind the 99th.
fn read_wrk(text: &str) -> Option<Tail> {
    let p99 = text.lines().find_map(|line| line.trim().strip_prefix("99%"))?;
    Some(Tail { p99_us: Some(microseconds(p99.trim())?), p999_us: None })
}

fn read_h2load(logged: &str) -> Option<Tail> {
    let took = read_h2load_log(logged)?;
    let at = |share: f64| took.get((took.len() as f64 * share) as usize).map(|us| *us as f64);
    Some(Tail { p99_us: Some(at(0.99)?), p999_us: at(0.999) })
}

/// `99% in 0.0021 secs`, in some versions `99%% in`; nothing behind it.
fn read_hey(text: &str) -> Option<Tail> {
    let line = text.lines().find(|line| line.trim_start().starts_with("99%"))?;
    let seconds: f64 = line.split_whitespace().nth(2)?.parse().ok()?;
    Some(Tail { p99_us: Some(seconds * 1e6), p999_us: None })
}

fn read_ghz(text: &str) -> Option<Tail> {
    let report: Value = serde_json::from_str(text).ok()?;
    let of = report["latencyDistribution"].as_array()?.iter().find(|of| of["percentage"] == 99)?;
    Some(Tail { p99_us: Some(of["latency"].as_f64()? / 1e3), p999_us: None })
}

fn read_oha(text: &str) -> Option<Tail> {
    let report: Value = serde_json::from_str(text).ok()?;
    let at = |name: &str| report["latencyPercentiles"][name].as_f64().map(|seconds| seconds * 1e6);
    Some(Tail { p99_us: Some(at("p99")?), p999_us: at("p99.9") })
}

impl StallReport {
    /// Good if all our loads show the stall at p99, and nothing failed. What others do is only shown.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let mut held = self.rows.iter().filter(|row| row.is_held).peekable();
        if self.failed.is_empty() && held.peek().is_some() && held.all(|row| row.shows_at_p99) {
            Verdict::Good
        } else {
            Verdict::Failed
        }
    }
}

impl fmt::Display for StallReport {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rounds, duration_s, stall_ms, expected_p99_ms, .. } = self;
        writeln!(
            to,
            "The origin answers nothing for {stall_ms:.0} ms in the middle of {duration_s:.0} s (n={rounds}). At an even rate, p99 is {expected_p99_ms:.0} ms.\n"
        )?;
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::ASCII_MARKDOWN);
        table.set_header(["generator", "p99", "p99.9", "shows the stall", "version"]);
        let ms = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| format!("{ms:.1} ms"));
        for row in &self.rows {
            let shows = match (row.shows_at_p99, row.shows_at_p999, row.p999_ms) {
                (true, ..) => "yes",
                (false, true, _) => "at p99.9 only",
                (false, false, Some(_)) => "no",
                (false, false, None) => "not at p99",
            };
            table.add_row([&row.generator, &ms(row.p99_ms), &ms(row.p999_ms), shows, &row.version]);
        }
        writeln!(to, "{table}")?;
        let [before, after] = self.load_average_per_cpu;
        writeln!(
            to,
            "load average per CPU: {before:.2} before, {after:.2} after; {} CPUs",
            environment::online().len()
        )?;
        for failed in &self.failed {
            writeln!(to, "failed: {failed}")?;
        }
        for missing in &self.missing {
            writeln!(to, "{missing} is missing on this host")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_they_say() {
        let tail = |p99_us, p999_us| Some(Tail { p99_us: Some(p99_us), p999_us });
        assert_eq!(read_wrk("  Latency Distribution\n     90%    2.00ms\n     99%  939.12ms\n"), tail(939_120.0, None));
        assert_eq!(read_wrk("unable to connect"), None);
        assert_eq!(
            read_hey("Latency distribution:\n  95% in 0.0010 secs\n  99% in 0.0021 secs\n"),
            tail(2_100.0, None)
        );
        assert_eq!(read_hey("  99%% in 1.0021 secs\n"), tail(1_002_100.0, None));
        assert_eq!(read_hey(""), None);
        let ghz =
            r#"{"latencyDistribution": [{"percentage": 95, "latency": 7}, {"percentage": 99, "latency": 1500000}]}"#;
        assert_eq!(read_ghz(ghz), tail(1_500.0, None));
        assert_eq!(read_ghz("{}"), None);
        let oha = r#"{"latencyPercentiles": {"p99": 0.0015, "p99.9": 0.9, "p99.99": 1.0}}"#;
        assert_eq!(read_oha(oha), tail(1_500.0, Some(900_000.0)));
        let log: String = (0..1_000).map(|us| format!("1732180000000000\t200\t{us}\n")).collect();
        assert_eq!(read_h2load(&log), tail(990.0, Some(999.0)));
        assert_eq!(read_h2load(""), None);
        assert_eq!(read_ours("{}"), None);
    }

    #[test]
    fn only_our_own_loads_decide() {
        let row = |is_held, ms: f64| StallRow {
            generator: "x".to_owned(),
            version: String::new(),
            p99_ms: Some(ms),
            p999_ms: None,
            shows_at_p99: ms >= 500.0,
            shows_at_p999: false,
            is_held,
        };
        let verdict = |rows: &[StallRow], failed: &[&str]| {
            StallReport {
                version: 1,
                rounds: 1,
                duration_s: 4.0,
                stall_ms: 1_000.0,
                expected_p99_ms: 960.0,
                rows: rows.to_vec(),
                load_average_per_cpu: [0.0; 2],
                missing: Vec::new(),
                failed: failed.iter().map(ToString::to_string).collect(),
            }
            .verdict()
        };
        assert_eq!(verdict(&[row(true, 960.0), row(false, 2.0)], &[]), Verdict::Good);
        assert_eq!(verdict(&[row(true, 960.0), row(true, 2.0)], &[]), Verdict::Failed);
        assert_eq!(verdict(&[row(true, 960.0)], &["x"]), Verdict::Failed);
        assert_eq!(verdict(&[row(false, 960.0)], &[]), Verdict::Failed, "nothing was held");
    }
}
