//! Records as messages of the syslog protocol (RFC 5424), one datagram each, over UDP (RFC 5426) or a local socket.

use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use model::{Syslog, SyslogAddress};
use rustix::time::{ClockId, clock_gettime};

use super::Shared;
use super::entry::LogEntry;
use super::format::Timestamp;
use super::formatter::Formatter;

/// Bytes of a message. Servers must take 2 KiB (RFC 5424 section 6.1); rsyslog and syslog-ng take 8 KiB or more unless told otherwise.
const MESSAGE_BYTES_MAX: usize = 8192;

/// The lengths that texts are cut to if a message is too long, the longest that fits.
const CUTS: [usize; 5] = [usize::MAX, 1024, 256, 64, 16];

/// How long the writer waits for a server that does not read its socket. After that, it does not wait until a message is taken again.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);

/// A UDP server counts as away for this long after it has refused a message, in seconds. Hosts limit their ICMP messages: Linux sends one a second
/// to each address (`icmp_ratelimit`), so single messages that are not refused mean nothing.
const REFUSED_SECONDS: i64 = 3;

/// Severities (RFC 5424 section 6.2.1).
const WARNING: u8 = 4;
const INFORMATIONAL: u8 = 6;

/// The sender of messages.
pub(super) struct SyslogSender {
    config: Syslog,
    formatter: Formatter,
    shared: Arc<Shared>,
    /// Host, name and process, as each message has them.
    origin: String,
    socket: Option<Socket>,
    message: Vec<u8>,
}

struct Socket {
    kind: SocketKind,
    /// Nothing is taken, so nothing waits for it.
    is_stuck: bool,
}

enum SocketKind {
    Udp(UdpSocket, Refusals),
    Unix(UnixDatagram),
}

/// What is known of messages that were refused on their way (ICMP). UDP itself says nothing of those that are lost.
#[derive(Default)]
struct Refusals {
    /// When the last one was refused, in seconds of the monotonic clock; `None` if none was for [`REFUSED_SECONDS`].
    last: Option<i64>,
    /// Messages since then.
    sent: u64,
}

impl SyslogSender {
    /// Does not fail if there is no server: it may come later.
    pub(super) fn new(config: Syslog, formatter: Formatter, shared: Arc<Shared>) -> Self {
        let origin = format!("{} {} {} access", host_name(), config.app_name, std::process::id());
        let mut sender = Self { config, formatter, shared, origin, socket: None, message: Vec::new() };
        sender.socket = sender.open().inspect_err(|error| sender.tell(error)).ok();
        sender
    }

    pub(super) fn push(&mut self, entry: &LogEntry<'_>) {
        let fits = CUTS.into_iter().any(|bytes_max| {
            self.write_message(&entry.with_texts_of(bytes_max));
            self.message.len() <= MESSAGE_BYTES_MAX
        });
        let sent = if fits { self.send(monotonic_seconds()) } else { Err(io::ErrorKind::InvalidData.into()) };
        match sent {
            Ok(()) if self.is_refused() => {}
            Ok(()) if self.shared.is_failing.swap(false, Relaxed) => {
                tracing::info!("the syslog server takes messages again")
            }
            Ok(()) => {}
            Err(error) => {
                self.shared.failed.fetch_add(1, Relaxed);
                self.tell(&error);
            }
        }
    }

    fn write_message(&mut self, entry: &LogEntry<'_>) {
        let Self { config, formatter, origin, message, .. } = self;
        let severity = if entry.is_error() { WARNING } else { INFORMATIONAL };
        let priority = config.facility * 8 + severity;
        message.clear();
        // Writing to a Vec does not fail.
        let _ = write!(message, "<{priority}>1 {} {origin} ", Timestamp(entry.unix_ms()));
        if let Formatter::StructuredData { .. } = formatter {
            formatter.write(message, entry);
            let _ = write!(message, " {}", entry.summary());
        } else {
            message.extend_from_slice(b"- ");
            formatter.write(message, entry);
        }
    }

    fn send(&mut self, now_s: i64) -> io::Result<()> {
        let mut socket = match self.socket.take() {
            Some(socket) => socket,
            None => self.open()?,
        };
        let sent = match socket.send(&self.message) {
            Ok(()) => Ok(()),
            // Nothing takes it, or there is no memory: the message is lost, and the socket is good.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory) => Err(error),
            // The kernel reports what became of earlier messages once, and sends nothing then.
            Err(error) if socket.is_udp() && socket.send(&self.message).is_ok() => {
                self.shared.failed.fetch_add(socket.handle_refused(now_s), Relaxed);
                self.tell(&error);
                Ok(())
            }
            // A server that was started again has another socket, and this host may have another address.
            Err(_) => {
                socket = self.open()?;
                // What is no good now is opened again for the next message.
                socket.send(&self.message)?;
                Ok(())
            }
        };
        if sent.is_ok() {
            socket.handle_sent(now_s);
        }
        self.socket = Some(socket);
        sent
    }

    fn open(&self) -> io::Result<Socket> {
        match &self.config.to {
            SyslogAddress::Udp(to) => {
                let any: SocketAddr = match to {
                    SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                    SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
                };
                let socket = UdpSocket::bind(any)?;
                socket.connect(to)?;
                socket.set_write_timeout(Some(SEND_TIMEOUT))?;
                Ok(Socket { kind: SocketKind::Udp(socket, Refusals::default()), is_stuck: false })
            }
            SyslogAddress::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(path)?;
                socket.set_write_timeout(Some(SEND_TIMEOUT))?;
                Ok(Socket { kind: SocketKind::Unix(socket), is_stuck: false })
            }
        }
    }

    /// Whether messages of the last seconds were refused, so that nobody knows whether the last one arrived.
    fn is_refused(&self) -> bool {
        matches!(&self.socket, Some(Socket { kind: SocketKind::Udp(_, Refusals { last: Some(_), .. }), .. }))
    }

    /// Logs the first of several failures.
    fn tell(&self, error: &io::Error) {
        if !self.shared.is_failing.swap(true, Relaxed) {
            let to = match &self.config.to {
                SyslogAddress::Udp(address) => address.to_string(),
                SyslogAddress::Unix(path) => path.display().to_string(),
            };
            tracing::warn!(to, %error, "cannot send the access log to the syslog server; records are lost until it takes them again");
        }
    }
}

impl Socket {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let sent = match &self.kind {
            SocketKind::Udp(socket, _) => socket.send(message),
            SocketKind::Unix(socket) => socket.send(message),
        };
        let now_stuck = sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        if now_stuck != self.is_stuck {
            match &self.kind {
                SocketKind::Udp(socket, _) => socket.set_nonblocking(now_stuck)?,
                SocketKind::Unix(socket) => socket.set_nonblocking(now_stuck)?,
            }
            self.is_stuck = now_stuck;
        }
        sent.map(drop)
    }

    fn is_udp(&self) -> bool {
        matches!(self.kind, SocketKind::Udp(..))
    }

    /// A message is on its way.
    fn handle_sent(&mut self, now_s: i64) {
        let SocketKind::Udp(_, refusals) = &mut self.kind else { return };
        if refusals.last.is_some_and(|last| now_s - last >= REFUSED_SECONDS) {
            refusals.last = None;
        }
        refusals.sent = refusals.sent.saturating_add(1);
    }

    /// A message was refused. Returns how many are lost: while nothing listens there, all since the one that was refused before.
    fn handle_refused(&mut self, now_s: i64) -> u64 {
        let SocketKind::Udp(_, refusals) = &mut self.kind else { return 0 };
        let lost = if refusals.last.is_some() { refusals.sent.max(1) } else { 1 };
        *refusals = Refusals { last: Some(now_s), sent: 0 };
        lost
    }
}

fn monotonic_seconds() -> i64 {
    clock_gettime(ClockId::Monotonic).tv_sec
}

/// The name of this host, as RFC 5424 section 6.2.4 allows it: `-` if there is none.
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let is_good = !name.is_empty() && name.len() <= 255 && name.bytes().all(|byte| byte.is_ascii_graphic());
    if is_good { name } else { "-".to_owned() }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use model::{AccessLog, LogFormat, LogTarget, LogValue};

    use super::super::tests::{entry_of, request};
    use super::*;

    fn sender(to: SyslogAddress, format: &LogFormat) -> (SyslogSender, Arc<Shared>) {
        let shared = Arc::new(Shared::default());
        let config = Syslog { to, facility: 16, app_name: "edge".to_owned() };
        let log = AccessLog::new(LogTarget::Syslog(config.clone()), format.clone());
        let extras = super::super::rules::Rules::new(&log).extras;
        (SyslogSender::new(config, Formatter::new(format, &extras), shared.clone()), shared)
    }

    fn receive(socket: &UnixDatagram) -> String {
        let mut bytes = vec![0; 65536];
        let length = socket.recv(&mut bytes).unwrap();
        bytes.truncate(length);
        String::from_utf8(bytes).unwrap()
    }

    /// A path for a socket that is removed with this value.
    struct Path(PathBuf);

    impl Path {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("steelyard-syslog-{name}-{}", std::process::id())))
        }
    }

    impl Drop for Path {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn messages() {
        let path = Path::new("messages");
        let server = UnixDatagram::bind(&path.0).unwrap();
        let to = || SyslogAddress::Unix(path.0.clone());
        let (mut lines, _) = sender(to(), &LogFormat::Text(None));
        entry_of(&request(), &[], |entry| lines.push(entry));
        let head = format!("<134>1 2026-11-21T06:07:15.123Z {} edge {} access ", host_name(), std::process::id());
        let message = receive(&server);
        let text = message.strip_prefix(&head).unwrap_or_else(|| panic!("{message}"));
        assert!(text.starts_with("- 2026-11-21T06:07:15.123Z client=192.0.2.7:40312 "), "{text}");

        let id = "steelyard@32473".to_owned();
        let (mut data, _) = sender(to(), &LogFormat::StructuredData { id, fields: LogValue::usual_fields() });
        let mut record = request();
        let http = record.http.as_mut().unwrap();
        (http.status, http.host) = (503, b"a\"]\\\n\xff");
        entry_of(&record, &[], |entry| data.push(entry));
        let message = receive(&server);
        assert!(message.starts_with("<132>1 "), "{message}");
        assert!(message.contains(r#" [steelyard@32473 time="2026-11-21T06:07:15.123Z" client="192.0.2.7:40312" "#));
        assert!(message.contains(r#" host="a\"\]\\\\x0a\\xff" status="503" "#), "{message}");
        assert!(message.ends_with("] GET /x 503"), "{message}");
    }

    #[test]
    fn long_messages_are_cut_and_stay_whole() {
        let path = Path::new("long");
        let server = UnixDatagram::bind(&path.0).unwrap();
        let (mut json, shared) = sender(SyslogAddress::Unix(path.0.clone()), &LogFormat::Json(None));
        let (target, host) = (vec![b'\n'; 4096], vec![b'h'; 4096]);
        let mut record = request();
        let http = record.http.as_mut().unwrap();
        (http.target, http.host) = (&target, &host);
        entry_of(&record, &[], |entry| json.push(entry));
        let message = receive(&server);
        assert!(message.len() <= MESSAGE_BYTES_MAX);
        let json: serde_json::Value = serde_json::from_str(message.split_once(" - ").unwrap().1).unwrap();
        assert_eq!(json["status"], 200);
        assert_eq!(shared.failed.load(Relaxed), 0);
    }

    #[test]
    fn what_nobody_takes_at_a_udp_port_is_counted() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let (mut lines, shared) = sender(SyslogAddress::Udp(address), &LogFormat::Text(None));
        let lost = || (shared.failed.load(Relaxed), shared.is_failing.load(Relaxed));
        entry_of(&request(), &[], |entry| lines.push(entry));
        assert!(server.recv(&mut [0; 16]).is_ok());
        assert_eq!(lost(), (0, false));
        drop(server);
        // On the loopback interface, the refusal of each is there before the next one is sent. Of the last one nothing is known yet.
        for known in 0..4 {
            entry_of(&request(), &[], |entry| lines.push(entry));
            assert_eq!(lost(), (known, known > 0));
        }
        let server = UdpSocket::bind(address).unwrap();
        entry_of(&request(), &[], |entry| lines.push(entry));
        assert!(server.recv(&mut [0; 16]).is_ok());
        assert_eq!(lost(), (4, true));
        // It is believed to be back when nothing was refused for some seconds.
        lines.message = b"x".to_vec();
        let now_s = monotonic_seconds();
        assert!(lines.send(now_s + REFUSED_SECONDS - 1).is_ok() && lines.is_refused());
        assert!(lines.send(now_s + REFUSED_SECONDS + 60).is_ok() && !lines.is_refused());
        entry_of(&request(), &[], |entry| lines.push(entry));
        assert_eq!(lost(), (4, false));
    }

    #[test]
    fn between_two_refusals_everything_is_lost() {
        let kind = SocketKind::Udp(UdpSocket::bind("127.0.0.1:0").unwrap(), Refusals::default());
        let mut socket = Socket { kind, is_stuck: false };
        let send = |socket: &mut Socket, count, at| (0..count).for_each(|_| socket.handle_sent(at));
        send(&mut socket, 1_000, 100);
        // The server has stopped at some time. Which of the messages were lost is not known, except for one.
        assert_eq!(socket.handle_refused(100), 1);
        send(&mut socket, 50, 101);
        assert_eq!(socket.handle_refused(101), 50);
        send(&mut socket, 50, 101 + REFUSED_SECONDS);
        assert_eq!(socket.handle_refused(105), 1);
    }

    #[test]
    fn a_server_that_is_away_or_does_not_read() {
        let path = Path::new("away");
        let (mut lines, shared) = sender(SyslogAddress::Unix(path.0.clone()), &LogFormat::Text(None));
        let mut push = || entry_of(&request(), &[], |entry| lines.push(entry));
        push();
        assert_eq!(shared.failed.load(Relaxed), 1);
        let server = UnixDatagram::bind(&path.0).unwrap();
        push();
        assert!(receive(&server).starts_with("<134>1 "));
        // Its queue fills. Only the first failure waits.
        for _ in 0..2_000 {
            push();
        }
        let lost = shared.failed.load(Relaxed);
        assert!(lost > 1);
        server.set_nonblocking(true).unwrap();
        while server.recv(&mut [0; 16]).is_ok() {}
        push();
        assert_eq!(shared.failed.load(Relaxed), lost);
        // It is started again, with another socket at the same path.
        drop(server);
        std::fs::remove_file(&path.0).unwrap();
        let server = UnixDatagram::bind(&path.0).unwrap();
        push();
        assert_eq!(shared.failed.load(Relaxed), lost);
        assert!(receive(&server).starts_with("<134>1 "));
    }
}
