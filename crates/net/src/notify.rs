//! Messages to the service manager that started this process, in the protocol of sd_notify(3): datagrams to the Unix socket in the variable
//! NOTIFY_SOCKET.
//!
//! This module finds the socket and the watchdog's interval in the environment, and sends messages. Its callers decide what to send, and
//! when.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The address of the socket: a path, or `@` and an abstract name.
const SOCKET: &str = "NOTIFY_SOCKET";
/// The manager expects a keep-alive message at least this often, in microseconds.
const WATCHDOG_USEC: &str = "WATCHDOG_USEC";
/// The process that must send the keep-alive messages. If absent, any process with the variable above.
const WATCHDOG_PID: &str = "WATCHDOG_PID";

/// The longest wait for a manager that does not read its messages. The next message may still reach it.
const SEND_MAX: Duration = Duration::from_secs(1);

/// The service manager, if there is one.
#[derive(Default)]
pub struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Manager {
    /// The manager that the environment names. A value that is not the address of a Unix socket causes a warning and is ignored, because
    /// the process also works without a manager.
    pub fn from_environment() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let Some(name) = variable(SOCKET) else { return Self::default() };
        match open(&name) {
            Ok(socket) => Self {
                socket: Some(socket),
                watchdog: watchdog(variable(WATCHDOG_USEC).as_deref(), variable(WATCHDOG_PID).as_deref()),
            },
            Err(error) => {
                tracing::warn!(name, %error, "NOTIFY_SOCKET cannot be used: the service manager will get no messages");
                Self::default()
            }
        }
    }

    /// Whether there is a manager.
    pub fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    /// The longest time between two `WATCHDOG=1` that the manager accepts; `None` if it expects none.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Sends assignments, one per line, such as `READY=1`. If the manager is gone, or reads nothing for a second, this logs a warning.
    pub fn tell(&self, message: &str) {
        let Some((socket, address)) = &self.socket else { return };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
            let message = message.lines().next();
            tracing::warn!(message, %error, "cannot send a message to the service manager");
        }
    }
}

/// Prepares `command` for a process that replaces this one: the manager then expects the keep-alive messages from the new process.
pub fn pass_to(command: &mut std::process::Command) {
    command.env_remove(WATCHDOG_PID);
}

fn open(name: &str) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None if name.starts_with('/') => SocketAddr::from_pathname(name)?,
        None => return Err(io::Error::other("it is neither a path nor an abstract name (@...)")),
    };
    // Opened once, so that a process that has run out of descriptors can still report its state. CLOEXEC, as std opens everything.
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_MAX))?;
    Ok((socket, address))
}

fn watchdog(usec: Option<&str>, pid: Option<&str>) -> Option<Duration> {
    let is_other = pid.is_some_and(|pid| pid.parse() != Ok(std::process::id()));
    let usec: u64 = usec?.parse().ok().filter(|usec| *usec > 0 && !is_other)?;
    Some(Duration::from_micros(usec))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(name: &str) -> Manager {
        Manager { socket: Some(open(name).unwrap()), watchdog: None }
    }

    fn heard(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 200];
        let count = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..count].to_vec()).unwrap()
    }

    #[test]
    fn a_path_and_an_abstract_name() {
        let unique = format!("steelyard-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&unique);
        let at_path = UnixDatagram::bind(&path).unwrap();
        manager(path.to_str().unwrap()).tell("READY=1");
        assert_eq!(heard(&at_path), "READY=1");
        std::fs::remove_file(&path).unwrap();

        let abstract_name = SocketAddr::from_abstract_name(&unique).unwrap();
        let without_path = UnixDatagram::bind_addr(&abstract_name).unwrap();
        manager(&format!("@{unique}")).tell("STOPPING=1\nSTATUS=x");
        assert_eq!(heard(&without_path), "STOPPING=1\nSTATUS=x");
    }

    #[test]
    fn a_manager_that_is_not_there_changes_nothing() {
        manager("/nowhere/at/all.sock").tell("READY=1");
        assert!(open("relative.sock").is_err() && open("vsock:2:1234").is_err());
        assert!(open(&format!("/{}", "a".repeat(200))).is_err());
        Manager::default().tell("READY=1");
    }

    #[test]
    fn the_watchdog_of_this_process() {
        let own = std::process::id().to_string();
        let check = |usec, pid, expect: Option<u64>| {
            assert_eq!(watchdog(usec, pid), expect.map(Duration::from_micros), "{usec:?} {pid:?}");
        };
        check(Some("30000000"), Some(own.as_str()), Some(30_000_000));
        check(Some("30000000"), None, Some(30_000_000));
        check(Some("30000000"), Some("1"), None);
        check(Some("30000000"), Some("x"), None);
        check(Some("0"), None, None);
        check(Some("-1"), None, None);
        check(None, Some(own.as_str()), None);
    }
}
