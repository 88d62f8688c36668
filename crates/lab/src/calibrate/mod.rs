//! Compares the load with other load generators: the same origin, the same loop, in turns.
//!
//! This is `steelyard lab verify --calibrate`. Limits apply where both must get the same figures: an origin that waits or works for a fixed
//! time determines how many requests there can be, whichever tool sends them. Where the generator's own speed decides, the figures are
//! shown and no limit applies.
//!
//! A run measures its own ceilings itself.

mod child;
mod stall;
mod tools;

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::load::LoadReport;
use crate::stats::{estimate, median};
use crate::{Verdict, environment, host, procfs};
use child::{Origin, capture};
pub(crate) use stall::DURATIONS;
pub use stall::{StallPlan, StallReport, StallRow, stall};
use tools::{CONNECTIONS, Figures, Tool};

/// Differences up to these count as agreement.
const BAR_PER_S_PERCENT: f64 = 3.0;
const BAR_P50_PERCENT: f64 = 5.0;

/// A row of which more is better.
const PER_SECOND: &str = "per second";

/// The load average per CPU above which a host is not quiet.
const QUIET_LOAD_MAX: f64 = 0.5;

/// The parameters of the comparison.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Rounds; odd, so that the median is a measured value.
    pub rounds: u32,
    /// How long each load takes, roughly: some are given by their number of requests.
    pub duration: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Self { rounds: 5, duration: Duration::from_secs(2) }
    }
}

/// One thing that both tools measure.
#[derive(Clone, Copy)]
struct Comparison {
    tool: Tool,
    /// One line, for the table.
    case: &'static str,
    /// The arguments of `steelyard origin` without the address; empty for a tool that has its own.
    origin: &'static [&'static str],
    /// The arguments of `steelyard load`, with `ADDRESS` in place of the address.
    load: &'static [&'static str],
    amount: Amount,
    /// Whether the figures must agree.
    is_held: bool,
}

/// How much load to put on.
#[derive(Clone, Copy)]
enum Amount {
    /// For the duration of the plan.
    Time,
    /// This many requests over all connections for each second of the duration: with long waits, a clock would cut the last round off.
    RequestsPerSecond(u64),
}

const COMPARISONS: &[Comparison] = &[
    Comparison {
        tool: Tool::Wrk,
        case: "HTTP/1.1, the origin waits 20 ms",
        origin: &["http", "--delay", "20ms"],
        load: &["http", "http://ADDRESS/", "-c", CONNECTIONS],
        amount: Amount::Time,
        is_held: true,
    },
    Comparison {
        tool: Tool::Wrk,
        case: "HTTP/1.1, the origin works 100 µs",
        origin: &["http", "--work", "100us"],
        load: &["http", "http://ADDRESS/", "-c", CONNECTIONS],
        amount: Amount::Time,
        is_held: true,
    },
    Comparison {
        tool: Tool::Ab,
        case: "HTTP/1.0 kept alive, the origin waits 100 ms",
        origin: &["http", "--delay", "100ms"],
        load: &["http", "http://ADDRESS/", "-c", CONNECTIONS, "--http", "1.0", "--same-length"],
        amount: Amount::RequestsPerSecond(640),
        is_held: true,
    },
    Comparison {
        tool: Tool::H2loadH1,
        case: "HTTP/1.1, the origin waits 20 ms",
        origin: &["http", "--delay", "20ms"],
        load: &["http", "http://ADDRESS/", "-c", CONNECTIONS],
        amount: Amount::RequestsPerSecond(3_200),
        is_held: true,
    },
    Comparison {
        tool: Tool::H2load,
        case: "HTTP/2, 8 connections x 8 streams, the origin waits 20 ms",
        origin: &["grpc", "--delay", "20ms"],
        load: &["http", "http://ADDRESS/", "-c", "8", "-s", "8", "--http", "2"],
        amount: Amount::RequestsPerSecond(3_200),
        is_held: true,
    },
    Comparison {
        tool: Tool::Wrk,
        case: "HTTP/1.1, as fast as it goes",
        origin: &["http"],
        load: &["http", "http://ADDRESS/", "-c", CONNECTIONS],
        amount: Amount::Time,
        is_held: false,
    },
    Comparison {
        tool: Tool::H2load,
        case: "HTTP/2, 8 connections x 8 streams, as fast as it goes",
        origin: &["grpc"],
        load: &["http", "http://ADDRESS/", "-c", "8", "-s", "8", "--http", "2"],
        amount: Amount::RequestsPerSecond(10_000),
        is_held: false,
    },
    Comparison {
        tool: Tool::Iperf3,
        case: "TCP, 4 connections, each tool with a sink of its own; bits a second",
        origin: &["tcp", "--sink"],
        load: &["stream", "ADDRESS", "-c", "4", "--direction", "send"],
        amount: Amount::Time,
        is_held: false,
    },
];

/// The result of a calibration.
#[derive(Clone, Debug, Serialize)]
pub struct CalibrationReport {
    /// The version of this form, as JSON.
    pub version: u32,
    /// The comparisons.
    pub rows: Vec<Row>,
    /// The host's load average of one minute over the number of its CPUs, before and after.
    pub load_average_per_cpu: [f64; 2],
    /// Tools that are missing on this host.
    pub missing: Vec<String>,
    /// Comparisons that failed, and why.
    pub failed: Vec<String>,
}

/// One figure, from both tools.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The other tool.
    pub tool: String,
    /// What it measured.
    pub case: String,
    /// `per second`, `p50 us`, `CPU us each`.
    pub figure: String,
    /// The median of its rounds.
    pub theirs: f64,
    /// The median of ours.
    pub ours: f64,
    /// The median over the rounds of our difference in per cent.
    pub difference_percent: f64,
    /// The range of the differences over the rounds; with enough rounds, of the middle 95 %.
    pub interval_percent: (f64, f64),
    /// The largest difference that counts as agreement; `None` if no limit applies.
    pub bar_percent: Option<f64>,
    /// The share of its CPU that each generator used, theirs and ours, 0 to 1; `None` if unknown.
    pub busy: Option<(f64, f64)>,
}

/// From here on a generator has no CPU left, and its figures are its own limits.
const SATURATED_MIN: f64 = 0.9;

impl Row {
    /// `theirs` and `ours` by round.
    fn new(comparison: &Comparison, figure: &str, theirs: &[f64], ours: &[f64], bar: Option<f64>) -> Option<Self> {
        let by_round: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
        let ratio = estimate(&by_round)?;
        let percent = |ratio: f64| (ratio - 1.0) * 100.0;
        Some(Self {
            tool: comparison.tool.name().to_owned(),
            case: comparison.case.to_owned(),
            figure: figure.to_owned(),
            theirs: median(theirs)?,
            ours: median(ours)?,
            difference_percent: percent(ratio.median),
            interval_percent: (percent(ratio.low), percent(ratio.high)),
            bar_percent: bar.filter(|_| comparison.is_held),
            busy: None,
        })
    }

    /// Whether it is within its limit. True if there is none, and if the other tool's CPU was full and ours did better.
    #[must_use]
    pub fn agrees(&self) -> bool {
        self.bar_percent.is_none_or(|bar| self.difference_percent.abs() <= bar) || self.is_their_limit()
    }

    fn is_their_limit(&self) -> bool {
        let is_better =
            if self.figure == PER_SECOND { self.difference_percent > 0.0 } else { self.difference_percent < 0.0 };
        is_better && self.busy.is_some_and(|(theirs, _)| theirs > SATURATED_MIN)
    }

    /// A few words for the table. Rounds on both sides of the limit decide nothing.
    fn outcome(&self) -> String {
        let Some(bar) = self.bar_percent else { return "shown only".to_owned() };
        let (low, high) = self.interval_percent;
        if self.difference_percent.abs() <= bar {
            "agrees".to_owned()
        } else if self.is_their_limit() {
            format!("{} had no CPU left", self.tool)
        } else if low > bar || high < -bar {
            "DIFFERS".to_owned()
        } else {
            "undecided: too noisy".to_owned()
        }
    }
}

impl CalibrationReport {
    /// Good if at least one limit applied, all of them held, and nothing failed. A missing tool is not a failure.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let mut held = self.rows.iter().filter(|row| row.bar_percent.is_some()).peekable();
        if self.failed.is_empty() && held.peek().is_some() && held.all(Row::agrees) {
            Verdict::Good
        } else {
            Verdict::Failed
        }
    }
}

/// Runs the comparison, with progress on standard error. `exe` is this program, for its origins and its load.
///
/// # Errors
/// If the host refuses a runtime, or on a signal. No process outlives this call.
pub fn calibrate(plan: &Plan, exe: &Path) -> io::Result<CalibrationReport> {
    until_interrupted(compare_all(plan, exe))
}

/// Waits for a report. On a signal it is dropped, and with it the processes that it has started.
fn until_interrupted<T>(report: impl Future<Output = T>) -> io::Result<T> {
    host::runtime()?.block_on(async {
        tokio::select! {
            report = report => Ok(report),
            outcome = host::interrupted() => {
                outcome?;
                Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted; origins and loads are stopped"))
            }
        }
    })
}

async fn compare_all(plan: &Plan, exe: &Path) -> CalibrationReport {
    let mut report = CalibrationReport {
        version: 2,
        rows: Vec::new(),
        load_average_per_cpu: [load_average_per_cpu(); 2],
        missing: Vec::new(),
        failed: Vec::new(),
    };
    for comparison in COMPARISONS {
        let name = comparison.tool.program();
        if host::find_program(name).is_none() {
            if !report.missing.iter().any(|missing| missing == name) {
                report.missing.push(name.to_owned());
            }
            continue;
        }
        // Progress. If nothing reads it, the comparison continues.
        let _ = writeln!(io::stderr(), "{name}: {}", comparison.case);
        match compare(comparison, plan, exe).await {
            Ok(rows) => report.rows.extend(rows),
            Err(error) => report.failed.push(format!("{name}, {}: {error}", comparison.case)),
        }
    }
    report.load_average_per_cpu[1] = load_average_per_cpu();
    report
}

fn load_average_per_cpu() -> f64 {
    environment::load_average() / environment::online().len().max(1) as f64
}

async fn compare(comparison: &Comparison, plan: &Plan, exe: &Path) -> io::Result<Vec<Row>> {
    let origin = Origin::start(exe, comparison.origin).await?;
    let requests = match comparison.amount {
        Amount::Time => None,
        Amount::RequestsPerSecond(count) => Some((count as f64 * plan.duration.as_secs_f64()) as u64),
    };
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for round in 0..plan.rounds {
        // In turns, and each goes first equally often.
        for turn in 0..2 {
            if (round + turn) % 2 == 0 {
                theirs.push(comparison.tool.run(origin.address, plan.duration, requests).await?);
            } else {
                ours.push(ours_once(comparison, plan, exe, origin.address, requests).await?);
            }
        }
    }
    let busy = |all: &[Figures]| {
        let of_round = |figures: &Figures| Some(figures.cpu.as_secs_f64() * figures.per_s / figures.operations?);
        median(&all.iter().filter_map(of_round).collect::<Vec<_>>())
    };
    let busy = busy(&theirs).zip(busy(&ours));
    let rows = |figure: &str, of: fn(&Figures) -> Option<f64>, bar| {
        let values = |all: &[Figures]| all.iter().filter_map(of).collect::<Vec<_>>();
        Row::new(comparison, figure, &values(&theirs), &values(&ours), bar).map(|row| Row { busy, ..row })
    };
    let cpu = |figures: &Figures| Some(figures.cpu.as_secs_f64() * 1e6 / figures.operations?);
    let per_s = rows(PER_SECOND, |figures| Some(figures.per_s), Some(BAR_PER_S_PERCENT));
    let p50 = rows("p50 us", |figures| figures.p50_us, Some(BAR_P50_PERCENT));
    Ok([per_s, p50, rows("CPU us each", cpu, None)].into_iter().flatten().collect())
}

async fn ours_once(
    comparison: &Comparison,
    plan: &Plan,
    exe: &Path,
    address: SocketAddr,
    requests: Option<u64>,
) -> io::Result<Figures> {
    let amount = match requests {
        None => ["-d".to_owned(), format!("{}us", plan.duration.as_micros())],
        Some(count) => ["-n".to_owned(), count.to_string()],
    };
    let address = address.to_string();
    let words = comparison.load.iter().map(|word| word.replace("ADDRESS", &address));
    let words: Vec<String> =
        ["load".to_owned()].into_iter().chain(words).chain(amount).chain(["--json".to_owned()]).collect();
    let before = procfs::ended_children_cpu_time()?;
    let text = capture(exe.as_os_str(), &words).await?;
    let cpu = procfs::ended_children_cpu_time()?.saturating_sub(before);
    let report: LoadReport = serde_json::from_str(&text)?;
    if report.failures() > 0 {
        return Err(io::Error::other(format!("our own load failed:\n{report}")));
    }
    let is_bulk = report.service.is_none();
    Ok(Figures {
        per_s: if is_bulk { report.gbit_per_s * 1e9 } else { report.ok_per_s },
        p50_us: report.service.as_ref().and_then(|service| service.percentile_us(50.0)),
        operations: (!is_bulk).then_some(report.ok as f64),
        cpu,
    })
}

impl fmt::Display for CalibrationReport {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::ASCII_MARKDOWN);
        table.set_header([
            "tool",
            "case",
            "figure",
            "theirs",
            "ours",
            "difference",
            "of the rounds",
            "bar",
            "busy",
            "",
        ]);
        for row in &self.rows {
            table.add_row([
                row.tool.clone(),
                row.case.clone(),
                row.figure.clone(),
                format!("{:.1}", row.theirs),
                format!("{:.1}", row.ours),
                format!("{:+.1} %", row.difference_percent),
                format!("{:+.1} to {:+.1} %", row.interval_percent.0, row.interval_percent.1),
                row.bar_percent.map_or("-".to_owned(), |bar| format!("{bar:.0} %")),
                row.busy
                    .map_or("-".to_owned(), |(theirs, ours)| format!("{:.0} %, {:.0} %", theirs * 100.0, ours * 100.0)),
                row.outcome(),
            ]);
        }
        writeln!(to, "{table}")?;
        let [busy_before, busy_after] = self.load_average_per_cpu;
        writeln!(to, "load average per CPU: {busy_before:.2} before, {busy_after:.2} after")?;
        if busy_before > QUIET_LOAD_MAX {
            writeln!(to, "this host was not quiet: other processes took CPU time from both sides, and not equally")?;
        }
        for failed in &self.failed {
            writeln!(to, "failed: {failed}")?;
        }
        for missing in &self.missing {
            writeln!(to, "{missing} is missing on this host: no comparison with it")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(theirs: f64, ours: f64, is_held: bool) -> Row {
        let comparison = Comparison { is_held, ..COMPARISONS[0] };
        Row::new(&comparison, PER_SECOND, &[theirs, 10.0, 2000.0], &[ours, 5.0, 4000.0], Some(3.0)).unwrap()
    }

    #[test]
    fn what_is_held_must_agree() {
        let verdict = |rows: &[Row]| {
            CalibrationReport {
                version: 2,
                rows: rows.to_vec(),
                load_average_per_cpu: [0.0; 2],
                missing: Vec::new(),
                failed: Vec::new(),
            }
            .verdict()
        };
        // The other two rounds are twice and half of this one, so it is the median.
        let (near, far, shown) = (row(100.0, 102.9, true), row(100.0, 96.9, true), row(100.0, 60.0, false));
        assert!((far.difference_percent + 3.1).abs() < 1e-9, "{far:?}");
        assert_eq!(verdict(&[near.clone(), shown.clone()]), Verdict::Good);
        assert_eq!(verdict(&[near, far]), Verdict::Failed);
        assert_eq!(verdict(&[shown]), Verdict::Failed, "nothing was held");
    }

    #[test]
    fn what_a_difference_is_worth() {
        let check = |figure, ours: [f64; 3], busy: f64, expect: &str| {
            let theirs = [100.0, 101.0, 99.0];
            let row = Row::new(&COMPARISONS[0], figure, &theirs, &ours, Some(3.0)).unwrap();
            assert_eq!(Row { busy: Some((busy, 0.3)), ..row }.outcome(), expect);
        };
        check(PER_SECOND, [101.0, 130.0, 90.0], 0.3, "agrees");
        check(PER_SECOND, [110.0, 111.0, 109.5], 0.3, "DIFFERS");
        check(PER_SECOND, [110.0, 130.0, 90.0], 0.3, "undecided: too noisy");
        // Their CPU was full, which explains why we are faster, but would not explain why we are slower.
        check(PER_SECOND, [110.0, 111.0, 109.5], 0.97, "wrk had no CPU left");
        check(PER_SECOND, [90.0, 91.0, 89.5], 0.97, "DIFFERS");
        check("p50 us", [90.0, 91.0, 89.5], 0.97, "wrk had no CPU left");
        check("p50 us", [110.0, 111.0, 109.5], 0.97, "DIFFERS");
    }

    #[test]
    fn a_figure_that_one_does_not_give_is_no_row() {
        assert_eq!(Row::new(&COMPARISONS[0], "p50 us", &[], &[1.0], None), None);
    }
}
