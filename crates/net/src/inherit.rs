//! Listening sockets that another process opened: a service manager (LISTEN_FDS, sd_listen_fds(3)) or the Steelyard that this one replaces,
//! which uses the same protocol. Sockets are identified by their address; LISTEN_FDNAMES is ignored.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};
use socket2::{Domain, SockRef, Type};

/// The first passed descriptor (SD_LISTEN_FDS_START).
const FIRST_FD: RawFd = 3;

/// A limit on a number that comes from the environment. Nothing passes this many.
const FDS_MAX: usize = 4096;

/// Inherited listening sockets, each with its address, until they are taken.
#[derive(Default)]
pub struct Inherited {
    listeners: Vec<(SocketAddr, TcpListener)>,
    at_paths: Vec<(PathBuf, UnixListener)>,
}

/// A socket that was passed.
enum Passed {
    Tcp(SocketAddr, TcpListener),
    Unix(PathBuf, UnixListener),
}

impl Inherited {
    /// Adopts the descriptors that LISTEN_FDS and LISTEN_PID announce. A descriptor that is neither a listening TCP socket nor a Unix
    /// socket with a path is closed with a warning.
    ///
    /// Call this first in `main`, before anything else opens descriptors from 3 on. A second call returns nothing.
    pub fn from_environment() -> Self {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        if TAKEN.swap(true, Relaxed) {
            return Self::default();
        }
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<usize>().ok());
        let Some(count) = number("LISTEN_FDS") else { return Self::default() };
        // LISTEN_PID protects a child that inherited the variables by accident. A Steelyard that hands over cannot know the pid of the new
        // process before it runs, and sends 0.
        let pid = number("LISTEN_PID").unwrap_or(0);
        if pid != 0 && pid != std::process::id() as usize {
            return Self::default();
        }
        let passed = (FIRST_FD..).take(count.min(FDS_MAX)).filter_map(|fd| {
            // SAFETY: borrowed for one call that only checks whether it is open.
            let open = fcntl_getfd(unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }).is_ok();
            // SAFETY: it is open, the protocol of these variables passed it to this process, and it is taken once. Nothing else in this
            // process owns it, unless the rule above was broken.
            let owned = open.then(|| unsafe { OwnedFd::from_raw_fd(fd) });
            let adopted = owned.ok_or_else(|| io::Error::other("not open")).and_then(adopt);
            adopted.inspect_err(|error| tracing::warn!(fd, %error, "ignoring an inherited descriptor")).ok()
        });
        Self::of(passed)
    }

    fn of(passed: impl Iterator<Item = Passed>) -> Self {
        let mut inherited = Self::default();
        for passed in passed {
            match passed {
                Passed::Tcp(address, listener) => inherited.listeners.push((address, listener)),
                Passed::Unix(path, listener) => inherited.at_paths.push((path, listener)),
            }
        }
        inherited
    }

    /// Removes and returns the sockets that listen on `address`.
    pub fn take(&mut self, address: SocketAddr) -> Vec<TcpListener> {
        let is_wanted = |(bound, _): &mut (SocketAddr, TcpListener)| same_address(*bound, address);
        self.listeners.extract_if(.., is_wanted).map(|(_, listener)| listener).collect()
    }

    /// Removes and returns the Unix socket that listens at `path`.
    pub fn take_path(&mut self, path: &Path) -> Option<UnixListener> {
        let place = self.at_paths.iter().position(|(bound, _)| bound == path)?;
        Some(self.at_paths.swap_remove(place).1)
    }

    /// The addresses and paths of the sockets that were not taken. Dropping `self` closes them.
    pub fn left_over(&self) -> impl Iterator<Item = String> {
        let addresses = self.listeners.iter().map(|(address, _)| address.to_string());
        addresses.chain(self.at_paths.iter().map(|(path, _)| path.display().to_string()))
    }
}

/// `[::]:80` and `0.0.0.0:80` ask for the same thing.
fn same_address(a: SocketAddr, b: SocketAddr) -> bool {
    a == b || (a.port() == b.port() && a.ip().is_unspecified() && b.ip().is_unspecified())
}

fn adopt(fd: OwnedFd) -> io::Result<Passed> {
    let socket = SockRef::from(&fd);
    if socket.r#type()? != Type::STREAM || !socket.is_listener()? {
        return Err(io::Error::other("not a listening stream socket"));
    }
    socket.set_nonblocking(true)?;
    // Only `pass_to` passes it on.
    fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
    if SockRef::from(&fd).domain()? == Domain::UNIX {
        let listener = UnixListener::from(fd);
        let path = listener.local_addr()?.as_pathname().map(Path::to_owned);
        let path = path.ok_or_else(|| io::Error::other("the Unix socket has no path"))?;
        return Ok(Passed::Unix(path, listener));
    }
    let listener = TcpListener::from(fd);
    Ok(Passed::Tcp(listener.local_addr()?, listener))
}

/// Prepares `command` to inherit `listeners` at descriptors from 3 on, the way [`Inherited::from_environment`] takes them.
///
/// # Errors
/// The process is out of descriptors.
pub fn pass_to(command: &mut std::process::Command, listeners: &[impl AsFd]) -> io::Result<()> {
    use std::os::unix::process::CommandExt;

    let last = FIRST_FD + listeners.len() as RawFd;
    // Copies above the final descriptors, so that moving one does not overwrite the next. CLOEXEC: the child does not get these copies.
    let parked = listeners.iter().map(|fd| Ok(fcntl_dupfd_cloexec(fd, last)?)).collect::<io::Result<Vec<OwnedFd>>>()?;
    command.env("LISTEN_FDS", listeners.len().to_string()).env("LISTEN_PID", "0").env_remove("LISTEN_FDNAMES");
    // SAFETY: this runs in the child between fork and exec, and only calls dup2, which is async-signal-safe. It may overwrite the child's
    // descriptors from 3 to `last`: everything that this process owns there is CLOEXEC and meant for the parent.
    unsafe {
        command.pre_exec(move || {
            for (target, source) in (FIRST_FD..last).zip(&parked) {
                // This loop only borrows `target`: it must not be closed at the end of the scope.
                let mut place = std::mem::ManuallyDrop::new(OwnedFd::from_raw_fd(target));
                rustix::io::dup2(source, &mut place)?;
            }
            Ok(())
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_by_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut inherited = Inherited::of([adopt(listener.into()).unwrap()].into_iter());
        assert!(inherited.take("127.0.0.1:1".parse().unwrap()).is_empty());
        assert_eq!(inherited.left_over().collect::<Vec<_>>(), [address.to_string()]);
        assert_eq!(inherited.take(address).len(), 1);
        assert!(inherited.take(address).is_empty());
    }

    #[test]
    fn sockets_are_found_by_path() {
        let path = std::env::temp_dir().join(format!("steelyard-inherit-{}.sock", std::process::id()));
        let listener = crate::unix::listen(&path).unwrap();
        let file = crate::unix::SocketFile::at(&path).unwrap();
        let mut inherited = Inherited::of([adopt(listener.into()).unwrap()].into_iter());
        assert!(inherited.take_path(Path::new("/run/other.sock")).is_none());
        assert_eq!(inherited.left_over().collect::<Vec<_>>(), [path.display().to_string()]);
        assert!(inherited.take_path(&path).is_some() && inherited.take_path(&path).is_none());
        drop(file);
    }

    #[test]
    fn what_does_not_listen_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(adopt(stream.into()).is_err());
    }

    #[test]
    fn a_child_gets_them_from_three_on() {
        let listeners = [TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap()];
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "echo $LISTEN_FDS; readlink /proc/self/fd/3 /proc/self/fd/4 | grep -c socket"]);
        pass_to(&mut command, &listeners).unwrap();
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "2\n2\n");
    }
}
