//! Makes sure that only one process at a time changes the kernel plane of a network namespace: two would undo each
//! other's work.
//!
//! The lock is a Unix socket with an abstract name (unix(7)). Such names belong to a network namespace, as the kernel
//! plane does, and are free again when the process ends, however it ends.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

const NAME: &[u8] = b"steelyard/kernel-plane";

/// The lock, which is held until this is dropped.
pub(crate) struct Sole(#[expect(dead_code, reason = "held for its name")] UnixListener);

/// Why the lock was not taken.
#[derive(Debug)]
pub(crate) enum Taken {
    /// Another process holds it. The ID of that process, if the kernel gives it.
    By(Option<i32>),
    /// The socket cannot be created.
    No(std::io::Error),
}

impl Sole {
    /// Takes the lock.
    ///
    /// # Errors
    /// Another process holds it, or it cannot be taken.
    pub(crate) fn take() -> Result<Self, Taken> {
        Self::take_as(NAME)
    }

    /// Whether a process holds the lock. This never takes it, not even for a moment. Returns false if the host does not
    /// say.
    pub(crate) fn is_taken() -> bool {
        is_bound(NAME)
    }

    fn take_as(name: &[u8]) -> Result<Self, Taken> {
        let address = SocketAddr::from_abstract_name(name).map_err(Taken::No)?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(Self(listener)),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Err(Taken::By(owner(&address))),
            Err(error) => Err(Taken::No(error)),
        }
    }
}

/// Looks in the list of this network namespace's sockets, in which abstract names begin with `@`.
fn is_bound(name: &[u8]) -> bool {
    let table = std::fs::read("/proc/net/unix").unwrap_or_default();
    let path = [b"@", name].concat();
    table.split(|byte| *byte == b'\n').any(|line| line.rsplit(|byte| *byte == b' ').next() == Some(&path[..]))
}

fn owner(address: &SocketAddr) -> Option<i32> {
    let stream = UnixStream::connect_addr(address).ok()?;
    let credentials = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    Some(credentials.pid.as_raw_nonzero().get())
}

impl std::fmt::Display for Taken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::By(Some(pid)) => {
                write!(f, "process {pid} already serves the vips of this network namespace, and only one process can")
            }
            Self::By(None) => f.write_str(
                "another process already serves the vips of this network namespace, and only one process can",
            ),
            Self::No(error) => write!(f, "cannot make sure that no other process serves the vips: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_at_a_time() {
        let name = format!("steelyard/test-{}", std::process::id());
        let sole = Sole::take_as(name.as_bytes()).unwrap_or_else(|taken| panic!("{taken}"));
        assert!(is_bound(name.as_bytes()));
        assert!(!is_bound(&name.as_bytes()[..name.len() - 1]), "another name");
        let Err(taken) = Sole::take_as(name.as_bytes()) else { panic!("two at a time") };
        let expect = format!(
            "process {} already serves the vips of this network namespace, and only one process can",
            std::process::id()
        );
        assert_eq!(taken.to_string(), expect);
        drop(sole);
        assert!(Sole::take_as(name.as_bytes()).is_ok());
    }
}
