//! Exit codes, which scripts rely on.

use std::net::SocketAddr;
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
    /// Where nothing can listen, if that is the reason.
    pub(crate) places: Vec<(SocketAddr, String)>,
    /// It is the kernel plane that cannot.
    pub(crate) by_kernel_plane: bool,
    /// The vips that it cannot serve while it could serve the others, if that is the reason.
    pub(crate) vips: Vec<(String, String)>,
}

impl Refused {
    /// What the configuration asks for, and cannot be.
    pub(crate) fn bad(why: String) -> Self {
        Self::new(Exit::BadConfig, why)
    }

    /// Ends so, for this reason.
    pub(crate) fn new(exit: Exit, why: String) -> Self {
        Self { exit, why, places: Vec::new(), by_kernel_plane: false, vips: Vec::new() }
    }
}

impl From<String> for Refused {
    /// What a configuration that reads well asks for, and the host does not give.
    fn from(why: String) -> Self {
        Self::new(Exit::HostCannot, why)
    }
}
