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
    /// A gate did not hold.
    GateDoesNotHold,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Good => 0,
            Exit::Failed => 1,
            Exit::BadConfig => 64,
            Exit::HostCannot => 77,
            Exit::GateDoesNotHold => 99,
        })
    }
}

/// Why something was not done, and how the process ends where it cannot go on without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) exit: Exit,
    /// For people: what, and what to do.
    pub(crate) why: String,
}

impl Refused {
    /// What the configuration asks for, and cannot be.
    pub(crate) fn bad(why: String) -> Self {
        Self { exit: Exit::BadConfig, why }
    }
}

impl From<String> for Refused {
    /// What a configuration that reads well asks for, and the host does not give.
    fn from(why: String) -> Self {
        Self { exit: Exit::HostCannot, why }
    }
}
