//! The lab: measures Steelyard and its rivals.
//!
//! It has origins to put behind a balancer ([`origin`]), load to put in front of it ([`load`]), the kernel's account of its cost
//! ([`procfs`], [`cgroup`]), and the demo that combines them ([`demo`]). `steelyard lab` ([`command`]) is built on these: scenarios
//! ([`scenario`]) and contenders ([`contender`]) as files, runs ([`run`]) that leave a record ([`record`]), verdicts ([`judge`]) and
//! reports ([`report`]). The `steelyard` binary uses the argument structs from here.
//!
//! The lab does not balance. It drives Steelyard like a rival, as a child process with a configuration file and an address, and shares no
//! code with it, so that a fault in the instrument cannot hide the same fault in Steelyard. This is why it has a second, small HTTP/1.1
//! reader.
#![forbid(unsafe_code)]

mod alarm;
mod buffer;
pub mod document;
mod framing;
mod guest;
mod host;
mod host_cpu;
mod install;
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
pub mod instructions;
pub mod judge;
pub mod keep;
pub mod leftovers;
pub mod load;
pub mod neighbours;
pub mod origin;
pub mod placement;
pub mod process;
pub mod procfs;
pub mod raw;
pub mod record;
pub mod reference;
pub mod report;
pub mod requests;
pub mod run;
pub mod scenario;
pub mod schedule;
pub mod stats;
pub mod topology;
pub mod verify;

/// The result of a run that could be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The run showed what it should.
    Good,
    /// The run took place, and what it measured failed.
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

/// Several problems as one error, one per line.
pub(crate) fn in_lines(problems: Vec<document::Problem>) -> std::io::Error {
    let lines: Vec<_> = problems.iter().map(ToString::to_string).collect();
    std::io::Error::new(std::io::ErrorKind::InvalidInput, lines.join("\n"))
}
