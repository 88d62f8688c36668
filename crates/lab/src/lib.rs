//! The lab: what Steelyard and its rivals are measured with.
//!
//! Job: origins to stand behind a balancer ([`origin`]), load to put in front of it ([`load`]), the kernel's account of what a process
//! cost ([`procfs`]), and the demo that puts them together ([`demo`]). The `steelyard` binary mounts the argument structs found here.
//!
//! Non-job: balancing. The lab drives Steelyard as it drives a rival, as a child process with a configuration file and an address, and
//! shares no code with it: a fault in the instrument cannot hide the same fault in the thing it measures. That is why there is a second,
//! small HTTP/1.1 reader in here.
#![forbid(unsafe_code)]

mod buffer;
mod framing;
mod host;
mod units;

pub mod demo;
pub mod load;
pub mod origin;
pub mod procfs;

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
