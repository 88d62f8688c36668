//! Scripted HTTP peers, for tests of the whole binary: a client and an origin that do exactly what they are told, see every byte, and take
//! nothing that two readers could read in two ways.
//!
//! | module | job |
//! |---|---|
//! | [`strict`] | reads HTTP/1.1 to the letter of RFC 9112; shares no code with the balancer, so a fault there is not excused here |
//! | [`Conn`] | one TCP connection held by a test: bytes out, bytes in, how it ended |
//! | [`client`] | opens connections to the balancer |
//! | [`Origin`] | a listening endpoint; hands out its connections in the order in which they were opened |
//! | [`Program`] | any program as a child process: what it says, how it ends |
//! | [`Balancer`] | the binary under test as a child process: config, readiness, signals, metrics |
//! | [`netns`] | network namespaces of a test's own, joined by veth pairs |
//! | [`packet`] | packets described, built, read back with every checksum verified, printed in one line |
//!
//! Blocking and single-threaded: a test says who does what next, so nothing is left to scheduling. Every wait ends with the event waited
//! for or fails after [`PATIENCE`]; nothing sleeps.
#![forbid(unsafe_code)]

mod balancer;
mod bytes;
pub mod client;
mod conn;
pub mod netns;
mod origin;
pub mod packet;
mod ports;
mod program;
pub mod prometheus;
pub mod strict;

use std::fmt;
use std::time::Duration;

pub use balancer::{Balancer, Exit, Signal};
pub use bytes::escape;
pub use conn::{Conn, End};
pub use origin::Origin;
pub use ports::{PORTS, free_port, share_of_ports};
pub use program::{Finished, Program, until};

/// The longest wait for any one event: a byte, a connection, an exit. Far more than loopback needs, and twice the longest fixed timeout of the
/// balancer (5 s for a PROXY header), so that only a hang meets it.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What did not go as the test said, in words that name the connection and show the bytes.
#[derive(Debug)]
pub struct Failure(pub String);

impl Failure {
    /// A failure of the peer called `who`.
    pub fn of(who: &str, what: impl fmt::Display) -> Self {
        Self(format!("{who}: {what}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}
