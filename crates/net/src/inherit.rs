//! Listening sockets that another process opened: a service manager (LISTEN_FDS, sd_listen_fds(3)) or the Steelyard that this one
//! takes over from, which speaks the same protocol. A socket is known by its address: LISTEN_FDNAMES is not looked at.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};
use socket2::{Domain, SockRef, Type};

/// Where passed descriptors begin (SD_LISTEN_FDS_START).
const FIRST_FD: RawFd = 3;

/// More than anyone passes; a bound on a number that comes from the environment.
const FDS_MAX: usize = 4096;

/// Listening sockets from outside, each with its address, until someone asks for them.
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
    /// Adopts the descriptors that LISTEN_FDS and LISTEN_PID announce. What is not a listening socket of TCP, or a Unix socket at a
    /// path, is closed with a warning.
    ///
    /// To be called first thing in `main`, before anything else opens descriptors from 3 on. A second call gives nothing.
    pub fn from_environment() -> Self {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        if TAKEN.swap(true, Relaxed) {
            return Self::default();
        }
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<usize>().ok());
        let Some(count) = number("LISTEN_FDS") else { return Self::default() };
        // LISTEN_PID guards a child that inherited the variables by accident. A Steelyard that hands over cannot know the pid of
        // the new one before it runs, and says 0.
        let pid = number("LISTEN_PID").unwrap_or(0);
        if pid != 0 && pid != std::process::id() as usize {
            return Self::default();
        }
        let passed = (FIRST_FD..).take(count.min(FDS_MAX)).filter_map(|fd| {
            // SAFETY: borrowed for one call that says whether it is open, which is all that is asked of it.
            let open = fcntl_getfd(unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }).is_ok();
            // SAFETY: it is open, was passed to this process by the protocol that the variables announce, and is taken once: nobody
            // else in here owns it, unless the rule above was broken.
            let owned = open.then(|| unsafe { OwnedFd::from_raw_fd(fd) });
            let adopted = owned.ok_or_else(|| io::Error::other("not open")).and_then(adopt);
            adopted.inspect_err(|error| tracing::warn!(fd, %error, "inherited descriptor left out")).ok()
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

    /// The sockets that listen on `address`; asked for once, they are the caller's.
    pub fn take(&mut self, address: SocketAddr) -> Vec<TcpListener> {
        let is_wanted = |(bound, _): &mut (SocketAddr, TcpListener)| same_address(*bound, address);
        self.listeners.extract_if(.., is_wanted).map(|(_, listener)| listener).collect()
    }

    /// The Unix socket that listens at `path`; asked for once, it is the caller's.
    pub fn take_path(&mut self, path: &Path) -> Option<UnixListener> {
        let place = self.at_paths.iter().position(|(bound, _)| bound == path)?;
        Some(self.at_paths.swap_remove(place).1)
    }

    /// The addresses and paths that nobody asked for. Dropping `self` closes them.
    pub fn left_over(&self) -> impl Iterator<Item = String> {
        let addresses = self.listeners.iter().map(|(address, _)| address.to_string());
        addresses.chain(self.at_paths.iter().map(|(path, _)| path.display().to_string()))
    }
}

/// `[::]:80` and `0.0.0.0:80` are the same wish.
fn same_address(a: SocketAddr, b: SocketAddr) -> bool {
    a == b || (a.port() == b.port() && a.ip().is_unspecified() && b.ip().is_unspecified())
}

fn adopt(fd: OwnedFd) -> io::Result<Passed> {
    let socket = SockRef::from(&fd);
    if socket.r#type()? != Type::STREAM || !socket.is_listener()? {
        return Err(io::Error::other("not a listening stream socket"));
    }
    socket.set_nonblocking(true)?;
    // Passed on only on purpose, by `pass_to`.
    fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
    if SockRef::from(&fd).domain()? == Domain::UNIX {
        let listener = UnixListener::from(fd);
        let path = listener.local_addr()?.as_pathname().map(Path::to_owned);
        let path = path.ok_or_else(|| io::Error::other("a Unix socket without a path"))?;
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
    // Above the places they go to, so that moving one does not overwrite the next. CLOEXEC: these copies are not for the child.
    let parked = listeners.iter().map(|fd| Ok(fcntl_dupfd_cloexec(fd, last)?)).collect::<io::Result<Vec<OwnedFd>>>()?;
    command.env("LISTEN_FDS", listeners.len().to_string()).env("LISTEN_PID", "0").env_remove("LISTEN_FDNAMES");
    // SAFETY: runs in the child between fork and exec, and does nothing there but dup2, which is async-signal-safe. Descriptors
    // from 3 to `last` of the child may be overwritten: all that this process owns there is CLOEXEC and meant for the parent.
    unsafe {
        command.pre_exec(move || {
            for (target, source) in (FIRST_FD..last).zip(&parked) {
                // The owner of `target` is this loop's borrow only: it must not be closed when it goes out of scope.
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
