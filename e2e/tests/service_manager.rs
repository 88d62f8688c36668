//! Messages to a service manager (sd_notify(3)), and how the process ends under one. The manager is a socket of this test.
#![forbid(unsafe_code)]

mod support;

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use support::{Origin, Scratch, Steelyard, get, local, port, status, steelyard};
use testkit::strict::ResponseTo;
use testkit::{Exit, PATIENCE, Program, Signal, client, until};

/// Longer than any test, so only a second signal ends it.
const LONG_DELAY: &str = "drain_delay: 1h\n";

/// The manager's socket, and the messages received.
struct Manager {
    socket: UnixDatagram,
    /// The value of NOTIFY_SOCKET.
    name: String,
    heard: Vec<String>,
    unread: VecDeque<String>,
    _scratch: Scratch,
}

impl Manager {
    fn at_path() -> Self {
        let scratch = Scratch::new();
        let path = scratch.path().join("notify");
        Self::of(UnixDatagram::bind(&path).unwrap(), path.display().to_string(), scratch)
    }

    fn without_path() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("steelyard-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        Self::of(UnixDatagram::bind_addr(&address).unwrap(), format!("@{name}"), Scratch::new())
    }

    fn of(socket: UnixDatagram, name: String, scratch: Scratch) -> Self {
        socket.set_nonblocking(true).unwrap();
        Self { socket, name, heard: Vec::new(), unread: VecDeque::new(), _scratch: scratch }
    }

    fn read(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(count) = self.socket.recv(&mut buffer) {
            let message = String::from_utf8(buffer[..count].to_vec()).unwrap();
            self.heard.push(message.clone());
            self.unread.push_back(message);
        }
    }

    /// Waits for a message that begins with `assignment`, and returns it. The messages before it are consumed.
    #[track_caller]
    fn hears(&mut self, assignment: &str) -> String {
        let message = until(PATIENCE, || {
            self.read();
            while let Some(message) = self.unread.pop_front() {
                if message.starts_with(assignment) {
                    return Some(message);
                }
            }
            None
        });
        message.unwrap_or_else(|| panic!("no message {assignment} arrived: {:?}", self.heard))
    }

    /// The number of messages so far that begin with it.
    fn all(&mut self, assignment: &str) -> usize {
        self.read();
        self.heard.iter().filter(|message| message.starts_with(assignment)).count()
    }

    /// Starts the program under this manager, whose watchdog expects a keep-alive message within this many microseconds.
    fn serve(&self, config: &str, watchdog_us: Option<u32>) -> Steelyard {
        self.serve_with(Path::new(steelyard().get_program()), config, watchdog_us)
    }

    /// The same with the program at another place.
    fn serve_with(&self, program: &Path, config: &str, watchdog_us: Option<u32>) -> Steelyard {
        Steelyard::serve_by(config, |arguments| {
            // WATCHDOG_PID is the pid of the shell, which becomes the program.
            let watched =
                watchdog_us.map_or_else(String::new, |us| format!("export WATCHDOG_USEC={us} WATCHDOG_PID=$$; "));
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("{watched}exec \"$0\" \"$@\" --workers 2")]);
            shell.arg(program).args(arguments).env("NOTIFY_SOCKET", &self.name);
            Program::spawn("steelyard", &mut shell).unwrap()
        })
    }
}

fn config(more: &str, address: SocketAddr, origin: &Origin) -> String {
    format!(
        "admin: {{admin}}\nwatch: false\n{more}listeners:\n  web: {{bind: '{address}', protocol: http, to: all}}\nclusters:\n  all: {{endpoints: ['{}']}}\n",
        origin.address
    )
}

fn value<'m>(message: &'m str, name: &str) -> &'m str {
    let line = message.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("no {name} in {message:?}"))
}

/// Microseconds of CLOCK_MONOTONIC.
fn now_us() -> u64 {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let seconds: f64 = uptime.split_whitespace().next().unwrap().parse().unwrap();
    (seconds * 1e6) as u64
}

#[test]
fn ready_reloading_stopping() {
    for mut manager in [Manager::at_path(), Manager::without_path()] {
        let origin = Origin::start("x");
        let address = local(port());
        let good = config("", address, &origin);
        let mut balancer = manager.serve(&good, None);
        assert_eq!(manager.hears("READY=1"), "READY=1\nSTATUS=serving generation 1, listeners: 1");

        // /proc/uptime is rounded to hundredths of a second; allow two.
        let before = now_us().saturating_sub(20_000);
        balancer.reload(&good, |status| status["generation"] == 2);
        let reloading = manager.hears("RELOADING=1");
        let told_at: u64 = value(&reloading, "MONOTONIC_USEC").parse().unwrap();
        assert!(told_at >= before, "{told_at} {before}");
        assert_eq!(manager.hears("READY=1"), "READY=1\nSTATUS=serving generation 2, listeners: 1");

        balancer
            .reload(&good.replace("protocol: http", "protocol: htp"), |status| status["last_reload"]["ok"] == false);
        manager.hears("RELOADING=1");
        let ready = manager.hears("READY=1");
        let refused = "STATUS=serving generation 2, listeners: 1; the last reload was refused: ";
        assert!(ready.lines().count() == 2 && ready.contains(refused), "{ready}");

        balancer.program.signal(Signal::TERM).unwrap();
        let stopping = manager.hears("STOPPING=1");
        // drain_timeout is 30 s by default.
        assert!(value(&stopping, "EXTEND_TIMEOUT_USEC").parse::<u64>().unwrap() > 30_000_000, "{stopping}");
        assert_eq!(balancer.program.exit_within(PATIENCE).unwrap(), Exit::Code(0));
        assert_eq!(manager.all("WATCHDOG=1"), 0, "the manager did not ask for keep-alive messages");
    }
}

#[test]
fn a_manager_that_is_not_there_stops_nothing() {
    for name in ["/nowhere/notify", "@nobody-listens-here", "relative", ""] {
        let origin = Origin::start("x");
        let address = local(port());
        let mut balancer = Steelyard::serve_by(&config("", address, &origin), |arguments| {
            Program::spawn("steelyard", steelyard().args(arguments).env("NOTIFY_SOCKET", name)).unwrap()
        });
        assert_eq!(get(address, "/").unwrap().status, 200, "{name}");
        balancer.program.signal(Signal::TERM).unwrap();
        assert_eq!(balancer.program.exit_within(PATIENCE).unwrap(), Exit::Code(0));
        assert_eq!(balancer.program.log().contains("service manager"), !name.is_empty(), "{}", balancer.program.log());
    }
}

#[test]
fn signs_of_life_go_on_in_the_successor() {
    let mut manager = Manager::at_path();
    let origin = Origin::start("x");
    let address = local(port());
    // There is no delay despite the file, because the successor is already there.
    let mut balancer = manager.serve(&config(LONG_DELAY, address, &origin), Some(1_500_000));
    manager.hears("READY=1");
    for _ in 0..3 {
        assert_eq!(manager.hears("WATCHDOG=1"), "WATCHDOG=1");
    }

    let old = balancer.program.pid();
    balancer.program.signal(Signal::USR2).unwrap();
    let told = manager.hears("MAINPID=");
    let successor: u32 = value(&told, "MAINPID").parse().unwrap();
    assert_ne!(successor, old);
    assert_eq!(value(&told, "WATCHDOG"), "1");
    assert_eq!(balancer.program.exit_within(PATIENCE).unwrap(), Exit::Code(0), "{}", balancer.program.log());
    let pid = until(PATIENCE, || status(balancer.admin)).expect("the successor answers")["pid"].as_u64().unwrap();
    assert_eq!(pid, u64::from(successor));
    // Messages of the successor only, because the other process has ended.
    manager.read();
    manager.unread.clear();
    manager.hears("WATCHDOG=1");
    assert_eq!(get(address, "/").unwrap().status, 200);
    assert_eq!(manager.all("STOPPING=1"), 0, "the service goes on");

    let successor = rustix::process::Pid::from_raw(successor.try_into().unwrap()).unwrap();
    rustix::process::kill_process(successor, Signal::TERM).unwrap();
    manager.hears("STOPPING=1");
}

/// The program at a place where another one can be put.
struct Installed {
    path: PathBuf,
    scratch: Scratch,
}

impl Installed {
    fn new() -> Self {
        let scratch = Scratch::new();
        let path = scratch.path().join("steelyard");
        symlink(steelyard().get_program(), &path).unwrap();
        Self { path, scratch }
    }

    fn replace(&self, script: &str) {
        let script = self.scratch.write("other", &format!("#!/bin/sh\n{script}\n"));
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(script, &self.path).unwrap();
    }
}

#[test]
fn a_program_that_hangs_in_the_place_of_this_one_stops_nothing() {
    let mut manager = Manager::at_path();
    let (origin, installed, address) = (Origin::start("x"), Installed::new(), local(port()));
    let mut balancer = manager.serve_with(&installed.path, &config("", address, &origin), Some(1_500_000));
    installed.replace("exec sleep 600");
    balancer.program.signal(Signal::USR2).unwrap();
    let gave_up = || balancer.program.log().contains("its launcher did not end within").then_some(());
    until(PATIENCE, gave_up).expect("it is not waited for");
    manager.read();
    manager.unread.clear();
    manager.hears("WATCHDOG=1");
    assert_eq!((get(address, "/").unwrap().status, get(balancer.admin, "/readyz").unwrap().status), (200, 200));

    balancer.program.signal(Signal::TERM).unwrap();
    manager.hears("STOPPING=1");
    assert_eq!(balancer.program.exit_within(PATIENCE).unwrap(), Exit::Code(0), "{}", balancer.program.log());
}

/// The kernel gives a signal for the process to any of its threads where the main thread has another one to take: also to the one that waits for
/// the successor's end.
#[test]
fn signals_do_not_end_the_wait_for_a_successor() {
    let mut manager = Manager::at_path();
    let (origin, installed, address) = (Origin::start("x"), Installed::new(), local(port()));
    let mut balancer = manager.serve_with(&installed.path, &config("", address, &origin), None);
    // What a launcher does, for a successor that is never ready.
    installed.replace("sleep 600 </dev/null >/dev/null 2>&1 &\nprintf %s $! >&0");
    balancer.program.signal(Signal::USR2).unwrap();
    until(PATIENCE, || balancer.program.log().contains("successor started").then_some(())).expect("it is started");
    for _ in 0..20_000 {
        balancer.program.signal(Signal::USR1).unwrap();
    }
    balancer.program.signal(Signal::TERM).unwrap();
    assert_eq!(balancer.program.exit_within(PATIENCE).unwrap(), Exit::Code(0), "{}", balancer.program.log());
    let told = manager.hears("MAINPID=");
    assert_eq!(manager.all("STOPPING=1"), 0, "the service goes on: {}", balancer.program.log());
    let successor = rustix::process::Pid::from_raw(value(&told, "MAINPID").parse().unwrap()).unwrap();
    rustix::process::kill_process(successor, Signal::TERM).unwrap();
}

#[test]
fn connections_are_taken_in_the_delay() {
    let mut manager = Manager::at_path();
    let origin = Origin::start("x");
    let address = local(port());
    let mut balancer = manager.serve(&config(LONG_DELAY, address, &origin), None);
    let admin = balancer.admin;
    let mut before = client::connect("before", address, None).unwrap();
    let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    before.send(request).unwrap();
    before.response(ResponseTo::Other).unwrap();

    balancer.program.signal(Signal::TERM).unwrap();
    let stopping = manager.hears("STOPPING=1");
    assert!(value(&stopping, "STATUS").starts_with("ending: not ready"), "{stopping}");
    let told = get(admin, "/readyz").unwrap();
    assert_eq!(told.status, 503);
    assert!(told.body.starts_with(b"ending"), "{}", String::from_utf8_lossy(&told.body));
    balancer.until("ending", |status| status["ending"] == true && status["draining"] == false);

    // Nothing has changed yet: old and new connections work, and stay open.
    let mut after = client::connect("after", address, None).unwrap();
    for conn in [&mut before, &mut after] {
        for _ in 0..2 {
            conn.send(request).unwrap();
            let response = conn.response(ResponseTo::Other).unwrap();
            assert_eq!(response.status, 200);
            assert!(
                response.headers.iter().all(|field| !field.name.eq_ignore_ascii_case("connection")),
                "{response:?}"
            );
        }
    }
    // The file is still watched, and the manager gets no second READY.
    balancer.reload(&config(LONG_DELAY, address, &origin), |status| status["generation"] == 2);
    assert_eq!((manager.all("RELOADING=1"), manager.all("READY=1")), (0, 1));

    // A second signal ends the delay, once it counts as a separate one. Each signal gets time to be counted, because a third would cut
    // connections.
    for sent in 1.. {
        balancer.program.signal(Signal::TERM).unwrap();
        let counted = until(PATIENCE, || {
            let log = balancer.program.log();
            let is_another = log.contains("received another signal to end");
            (is_another || log.matches("ignoring a second signal to end").count() >= sent).then_some(is_another)
        });
        if counted.expect("the signal is taken") {
            break;
        }
    }
    manager.hears("STATUS=draining");
    until(PATIENCE, || TcpStream::connect(address).err()).expect("no worker accepts any more");
    drop((before, after));
    assert_eq!(balancer.program.exit_within(PATIENCE).unwrap(), Exit::Code(0), "{}", balancer.program.log());
}

#[test]
fn the_delay_ends_by_itself() {
    let origin = Origin::start("x");
    let address = local(port());
    let manager = Manager::at_path();
    let mut balancer = manager.serve(&config("drain_delay: 300ms\n", address, &origin), None);
    balancer.program.signal(Signal::TERM).unwrap();
    assert_eq!(balancer.program.exit_within(PATIENCE).unwrap(), Exit::Code(0), "{}", balancer.program.log());
    let log = balancer.program.log();
    assert!(log.contains("delay=300ms") && log.contains("draining"), "{log}");
    assert!(!log.contains("received another signal"), "{log}");
}
