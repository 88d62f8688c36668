//! Exit codes, which scripts rely on.

use std::net::SocketAddr;
use std::process::ExitCode;

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success.
    Good,
    /// The command failed.
    Failed,
    /// The configuration is bad (EX_USAGE of sysexits.h has the same number).
    BadConfig,
    /// This host cannot do it; the message says why.
    HostCannot,
    /// A gate of `lab gate` was not passed.
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

/// Why something was not done, and the exit code if the process cannot continue without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) exit: Exit,
    /// A message for people: what failed, and what to do.
    pub(crate) why: String,
    /// The addresses on which nothing can listen, if that is the reason, each with the cause.
    pub(crate) places: Vec<(SocketAddr, String)>,
    /// The kernel plane is what failed.
    pub(crate) by_kernel_plane: bool,
    /// The vips that the kernel plane cannot serve, if it could serve the others, each with the cause.
    pub(crate) vips: Vec<(String, String)>,
}

impl Refused {
    /// The configuration asks for something that is not possible.
    pub(crate) fn bad(why: String) -> Self {
        Self::new(Exit::BadConfig, why)
    }

    /// Exits with this code, for this reason.
    pub(crate) fn new(exit: Exit, why: String) -> Self {
        Self { exit, why, places: Vec::new(), by_kernel_plane: false, vips: Vec::new() }
    }
}

impl From<String> for Refused {
    /// The configuration is valid, but the host cannot do what it asks for.
    fn from(why: String) -> Self {
        Self::new(Exit::HostCannot, why)
    }
}
