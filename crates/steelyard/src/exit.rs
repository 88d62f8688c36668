//! Exit codes, which scripts rely on.

use std::process::ExitCode;

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All went well.
    Good,
    /// What was asked for failed.
    Failed,
    /// The configuration is bad (EX_USAGE of sysexits.h has the same number).
    BadConfig,
    /// This host cannot do it, and what was printed says why.
    HostCannot,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Good => 0,
            Exit::Failed => 1,
            Exit::BadConfig => 64,
            Exit::HostCannot => 77,
        })
    }
}
