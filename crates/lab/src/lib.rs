//! The lab: what Steelyard and its rivals are measured with.
//!
//! Job: origins to stand behind a balancer ([`origin`]), load to put in front of it ([`load`]), the kernel's account of what that cost
//! ([`procfs`], [`cgroup`]), and the demo that puts them together ([`demo`]). On top of these, `steelyard lab` ([`command`]): scenarios
//! ([`scenario`]) and contenders ([`contender`]) as files, runs ([`run`]) that leave a record ([`record`]), verdicts ([`judge`]) and reports
//! ([`report`]). The `steelyard` binary mounts the argument structs found here.
//!
//! Non-job: balancing. The lab drives Steelyard as it drives a rival, as a child process with a configuration file and an address, and
//! shares no code with it: a fault in the instrument cannot hide the same fault in the thing it measures. That is why there is a second,
//! small HTTP/1.1 reader in here.
#![forbid(unsafe_code)]

mod alarm;
mod buffer;
pub mod document;
mod framing;
mod host;
mod message;
mod percentiles;
mod shipped;
mod strest;
mod units;

pub mod calibrate;
pub mod cgroup;
pub mod command;
pub mod compare;
pub mod contender;
pub mod demo;
pub mod doctor;
pub mod environment;
pub mod gate;
pub mod judge;
pub mod keep;
pub mod leftovers;
pub mod load;
pub mod origin;
pub mod placement;
pub mod process;
pub mod procfs;
pub mod record;
pub mod report;
pub mod run;
pub mod scenario;
pub mod schedule;
pub mod stats;
pub mod topology;
pub mod verify;

/// How a run ended that could be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// What was to be shown was shown.
    Good,
    /// The run took place and what it measured failed.
    Failed,
}

impl From<Verdict> for std::process::ExitCode {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Good => Self::SUCCESS,
            Verdict::Failed => Self::FAILURE,
        }
    }
}

/// Several problems as one error, each in a line.
pub(crate) fn in_lines(problems: Vec<document::Problem>) -> std::io::Error {
    let lines: Vec<_> = problems.iter().map(ToString::to_string).collect();
    std::io::Error::new(std::io::ErrorKind::InvalidInput, lines.join("\n"))
}
