//! Listening sockets that a service manager opened (sd_listen_fds(3)); here a shell does that.
#![forbid(unsafe_code)]

mod support;

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

use support::{Origin, Scratch, Steelyard, get, local, names, port, steelyard};
use testkit::{Exit, PATIENCE, Program, Signal, until};

/// Starts steelyard like a service manager: with these sockets at descriptors 3 and 4, and its own pid in LISTEN_PID.
///
/// The shell gets them as its standard input and output, which is how std passes descriptors on.
fn start(arguments: &[&str], third: &TcpListener, fourth: &TcpListener) -> Program {
    let own = |listener: &TcpListener| Stdio::from(OwnedFd::from(listener.try_clone().unwrap()));
    let move_up = "exec 3<&0 4<&1 0</dev/null 1>&2; export LISTEN_FDS=2 LISTEN_PID=$$; exec \"$0\" \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", move_up]).arg(steelyard().get_program()).args(arguments).stdin(own(third)).stdout(own(fourth));
    Program::spawn_on_own_stdio("steelyard", &mut shell).unwrap()
}

fn config(listeners: &[(&str, SocketAddr)], origin: &Origin) -> String {
    let mut text = "admin: {admin}\nlisteners:\n".to_owned();
    for (name, address) in listeners {
        text += &format!("  {name}: {{bind: '{address}', protocol: http, to: all}}\n");
    }
    text + &format!("clusters:\n  all: {{endpoints: ['{}']}}\n", origin.address)
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(local(0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn status_of(address: SocketAddr) -> u16 {
    get(address, "/").map_or(0, |response| response.status)
}

fn refuses(address: SocketAddr) -> bool {
    until(PATIENCE, || TcpStream::connect(address).is_err().then_some(())).is_some()
}

#[test]
fn what_the_file_asks_for_is_served_and_the_rest_is_closed() {
    for workers in ["1", "2"] {
        let origin = Origin::start("x");
        let ((wanted, address), (unwanted, nobodys)) = (listen(), listen());
        let own = local(port());
        // A client that connected before us, as in a socket-activated start: it waits in the socket's queue.
        let mut early = testkit::client::connect("early", address, None).unwrap();
        early.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();

        let mut balancer = Steelyard::serve_by(&config(&[("web", address), ("own", own)], &origin), |arguments| {
            start(&[arguments, &["--workers", workers]].concat(), &wanted, &unwanted)
        });
        drop(unwanted);
        assert_eq!(early.response(testkit::strict::ResponseTo::Other).unwrap().status, 200);
        assert_eq!((status_of(address), status_of(own)), (200, 200));
        let warning = balancer.program.says("inherited socket closed").unwrap();
        assert!(warning.contains("WARN") && warning.contains(&nobodys.to_string()), "{warning}");
        assert!(refuses(nobodys));
        assert!(!balancer.program.log().contains(&format!("closed: no listener has this address address={address}")));

        // The manager keeps its own copy, where connections wait for the next process during a restart.
        balancer.program.signal(Signal::TERM).unwrap();
        assert_eq!(balancer.program.exit_within(PATIENCE).unwrap(), Exit::Code(0), "{}", balancer.program.log());
        TcpStream::connect(address).unwrap();
        drop(wanted);
        assert!(refuses(address));
    }
}

#[test]
fn a_request_that_waited_is_logged() {
    let origin = Origin::start("x");
    let scratch = Scratch::new();
    let log = scratch.path().join("access.log");
    // What comes first after the start, the worker or the log, is a matter of chance.
    for round in 0..20 {
        let ((socket, address), (twin, _)) = (listen(), listen());
        let mut early = testkit::client::connect("early", address, None).unwrap();
        early.send(format!("GET /{round} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
        let text = format!("access_log: {}\n{}", log.display(), config(&[("web", address)], &origin));
        let balancer = Steelyard::serve_by(&text, |arguments| start(arguments, &socket, &twin));
        assert_eq!(early.response(testkit::strict::ResponseTo::Other).unwrap().status, 200);
        let is_logged = || fs::read_to_string(&log).unwrap_or_default().contains(&format!("/{round} "));
        assert!(until(PATIENCE, || is_logged().then_some(())).is_some(), "round {round}");
        drop(balancer);
    }
}

#[test]
fn more_sockets_than_workers() {
    let origin = Origin::start("x");
    let (socket, address) = listen();
    let twin = socket.try_clone().unwrap();
    let own = local(port());
    let both = config(&[("web", address), ("own", own)], &origin);
    let mut balancer =
        Steelyard::serve_by(&both, |arguments| start(&[arguments, &["--workers", "1"]].concat(), &socket, &twin));
    drop((socket, twin));
    assert_eq!(status_of(address), 200);
    // A listener that is removed from the file closes all of its sockets.
    balancer.reload(&config(&[("own", own)], &origin), |status| names(status, "listeners") == ["own"]);
    assert!(refuses(address), "one of two sockets still accepts");
    assert_eq!(status_of(own), 200);
}

#[test]
fn variables_meant_for_another_process() {
    let origin = Origin::start("x");
    let address = local(port());
    // A shell that runs us as a child: the variables are for the shell (LISTEN_PID), and descriptor 3 is not ours to take.
    let script = "exec 3</dev/null; export LISTEN_FDS=1 LISTEN_PID=$$; \"$0\" \"$@\"; exit $?";
    let mut balancer = Steelyard::serve_by(&config(&[("web", address)], &origin), |arguments| {
        Program::spawn(
            "steelyard",
            Command::new("sh").args(["-c", script]).arg(steelyard().get_program()).args(arguments),
        )
        .unwrap()
    });
    assert_eq!(status_of(address), 200);
    assert!(!balancer.program.log().contains("inherited"), "{}", balancer.program.log());
}

/// The number of the process's descriptors that are epoll instances with this socket, which is identified by its inode.
fn epolls_with(pid: u32, socket: &TcpListener) -> usize {
    let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
    let inode = link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']'));
    let wanted = format!("ino:{:x} ", inode.unwrap().parse::<u64>().unwrap());
    let infos = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap();
    // Descriptors open and close while they are read.
    let infos = infos.filter_map(|info| fs::read_to_string(info.ok()?.path()).ok());
    infos.filter(|info| info.lines().any(|line| line.starts_with("tfd:") && line.contains(&wanted))).count()
}

#[test]
fn one_of_many_workers_is_woken_for_a_connection() {
    let epolls: Vec<_> = ["1", "4"]
        .map(|workers| {
            let origin = Origin::start("x");
            let ((socket, address), (other, at)) = (listen(), listen());
            let mut balancer = Steelyard::serve_by(&config(&[("web", address), ("more", at)], &origin), |arguments| {
                start(&[arguments, &["--workers", workers]].concat(), &socket, &other)
            });
            // The worker that polls the socket accepts all connections, and hands them over to the others.
            let conns: Vec<_> = (0..8).map(|_| testkit::client::connect("idle", address, None).unwrap()).collect();
            balancer.until("accepted", |status| status["listeners"][0]["connections_open"] == 8);
            assert_eq!(status_of(at), 200);
            drop(conns);
            [&socket, &other].map(|socket| epolls_with(balancer.program.pid(), socket))
        })
        .into();
    // The kernel wakes every epoll instance that contains a socket. Each instance has two descriptors, since its owner keeps a copy for
    // registrations.
    assert_eq!(epolls, [[2, 2], [2, 2]], "with one worker, and with four");
}
