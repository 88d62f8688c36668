//! Thresholds that a load must meet for the command to succeed.

use std::fmt;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::micros;
use super::report::LoadReport;
use crate::units;

const HEADING: &str = "Thresholds (exit with 99 when one is missed)";

/// Limits that set the exit code.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
pub struct Thresholds {
    /// Fail if the median latency is longer than this
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with = "find_capacity", help_heading = HEADING)]
    pub max_p50: Option<Duration>,

    /// Fail if the 95th percentile of latency is longer than this
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with = "find_capacity", help_heading = HEADING)]
    pub max_p95: Option<Duration>,

    /// Fail if the 99th percentile of latency is longer than this
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with = "find_capacity", help_heading = HEADING)]
    pub max_p99: Option<Duration>,

    /// Fail if the 99.9th percentile of latency is longer than this
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with = "find_capacity", help_heading = HEADING)]
    pub max_p999: Option<Duration>,

    /// Fail if more operations than this fail or, with --rate, cannot be sent in time: a share, such as 0.1%, or a count, such as 5
    #[arg(long, value_name = "SHARE|COUNT", value_parser = errors_max, conflicts_with = "find_capacity", help_heading = HEADING)]
    pub max_errors: Option<ErrorsMax>,

    /// Fail if fewer operations than this succeed per second
    #[arg(long, value_name = "PER_SECOND", value_parser = rate_min, conflicts_with = "find_capacity", help_heading = HEADING)]
    pub min_rate: Option<f64>,
}

/// How many operations may fail.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum ErrorsMax {
    /// A share of all operations, from 0 to 1.
    Share(f64),
    /// A number of operations.
    Count(u64),
}

/// A threshold, and whether a load met it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// `p99`, `errors` and so on.
    pub name: String,
    /// The measured value, as text for people.
    pub value: String,
    /// The limit, as text for people.
    pub limit: String,
    /// Whether the load met the threshold.
    pub met: bool,
}

impl Thresholds {
    /// Compares a report with the thresholds that are set, in a fixed order.
    pub fn judge(&self, report: &LoadReport) -> Vec<Judged> {
        let mut judged = Vec::new();
        // With a rate, latency counts from when an operation was due.
        let latency = report.response.as_ref().or(report.service.as_ref());
        let percentiles = [
            ("p50", 50.0, self.max_p50),
            ("p95", 95.0, self.max_p95),
            ("p99", 99.0, self.max_p99),
            ("p99.9", 99.9, self.max_p999),
        ];
        for (name, percent, limit) in percentiles {
            let Some(limit_us) = limit.map(|limit| limit.as_secs_f64() * 1e6) else { continue };
            let value = latency.and_then(|latency| latency.percentile_us(percent));
            judged.push(Judged {
                name: name.to_owned(),
                value: value.map_or("no response".to_owned(), micros),
                limit: format!("at most {}", micros(limit_us)),
                met: value.is_some_and(|value| value <= limit_us),
            });
        }
        if let Some(limit) = self.max_errors {
            // Operations that could not be sent because the server kept every connection busy count as failures too.
            let unsent = if report.interrupted { 0 } else { report.errors.unsent };
            judged.push(of_errors(limit, report.failures() + unsent, report.requests() + unsent));
        }
        if let Some(limit) = self.min_rate {
            judged.push(Judged {
                name: "rate".to_owned(),
                value: format!("{:.1}/s", report.ok_per_s),
                limit: format!("at least {limit}/s"),
                met: report.ok_per_s >= limit,
            });
        }
        judged
    }
}

fn of_errors(limit: ErrorsMax, failed: u64, all: u64) -> Judged {
    let name = "errors".to_owned();
    match limit {
        ErrorsMax::Count(limit) => {
            Judged { name, value: failed.to_string(), limit: format!("at most {limit}"), met: failed <= limit }
        }
        ErrorsMax::Share(limit) => {
            let share = if all == 0 { 0.0 } else { failed as f64 / all as f64 };
            Judged { name, value: percent(share), limit: format!("at most {}", percent(limit)), met: share <= limit }
        }
    }
}

/// Formats a share with enough digits to distinguish a small share from 0.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let digits = if percent == 0.0 || percent >= 1.0 { 2 } else { 4 };
    let text = format!("{percent:.digits$}");
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

impl fmt::Display for Judged {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value, limit, met } = self;
        write!(to, "{name} {value}, {limit}: {}", if *met { "ok" } else { "MISSED" })
    }
}

fn errors_max(text: &str) -> Result<ErrorsMax, String> {
    let example = "write a share, such as 0.1%, or a count, such as 5";
    let Some(share) = text.strip_suffix('%') else {
        return text.parse().map(ErrorsMax::Count).map_err(|_| example.to_owned());
    };
    match share.trim().parse::<f64>() {
        Ok(share) if (0.0..=100.0).contains(&share) => Ok(ErrorsMax::Share(share / 100.0)),
        _ => Err(example.to_owned()),
    }
}

fn rate_min(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|rate| (0.0..=1e9).contains(rate)).ok_or_else(|| format!("{text:?} is not a rate"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_many_may_fail() {
        let check = |text: &str, expect: Option<ErrorsMax>| assert_eq!(errors_max(text).ok(), expect, "{text}");
        check("0", Some(ErrorsMax::Count(0)));
        check("5", Some(ErrorsMax::Count(5)));
        check("1%", Some(ErrorsMax::Share(0.01)));
        check("0.5 %", Some(ErrorsMax::Share(0.005)));
        check("101%", None);
        check("-1%", None);
        check("0.1", None);
        check("", None);
    }

    #[test]
    fn errors_are_judged_by_share_or_by_count() {
        let check = |limit, failed, all, expect: &str| {
            assert_eq!(of_errors(limit, failed, all).to_string(), expect);
        };
        check(ErrorsMax::Count(2), 2, 10, "errors 2, at most 2: ok");
        check(ErrorsMax::Count(2), 3, 10, "errors 3, at most 2: MISSED");
        check(ErrorsMax::Share(0.001), 1, 1_000, "errors 0.1 %, at most 0.1 %: ok");
        check(ErrorsMax::Share(0.001), 2, 1_000, "errors 0.2 %, at most 0.1 %: MISSED");
        check(ErrorsMax::Share(0.0), 1, 1_000_000, "errors 0.0001 %, at most 0 %: MISSED");
        check(ErrorsMax::Share(0.5), 0, 0, "errors 0 %, at most 50 %: ok");
        check(ErrorsMax::Share(1.0), 10, 10, "errors 100 %, at most 100 %: ok");
    }
}
