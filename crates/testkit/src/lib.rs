//! Scripted HTTP peers for tests of the whole binary: a client and an origin that do exactly what the test says, see
//! every byte, and accept nothing that two readers could read in two ways.
//!
//! | module | job |
//! |---|---|
//! | [`strict`] | reads HTTP/1.1 strictly by RFC 9112; it shares no code with the balancer, so a fault there cannot hide here |
//! | [`Conn`] | one TCP connection of a test: bytes out, bytes in, how it ended |
//! | [`client`] | opens connections to the balancer |
//! | [`Origin`] | a listening endpoint; returns its connections in the order in which they were opened |
//! | [`Program`] | any program as a child process: its output, and how it ends |
//! | [`Balancer`] | the binary under test as a child process: config, readiness, signals, metrics |
//! | [`netns`] | network namespaces of one test, joined by veth pairs |
//! | [`packet`] | packets that are described, built, read back with every checksum verified, and printed in one line |
//!
//! Everything is blocking and single-threaded: the test decides the order of events, so nothing depends on scheduling.
//! Every wait ends with the awaited event or fails after [`PATIENCE`]; nothing sleeps.
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

/// The longest wait for an event: a byte, a connection, an exit. It is far more than loopback needs, and twice the
/// longest fixed timeout of the balancer (5 s for a PROXY header), so that only a hang reaches it.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A failed expectation of a test, as text that names the connection and shows the bytes.
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
