//! What happens to connections through a vip during changes: reloads, drains, deaths of endpoints and of Steelyard itself, floods.
#![forbid(unsafe_code)]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use support::echo::{ECHO_PORT, datagram, exchange, try_datagram};
use support::network::{FAMILIES, Family, Links, Network, Vips, detach, endpoint_figures, endpoint_words, vip, within};
use support::{Load, Origin, until_served};
use testkit::packet::{Packet, SYN};
use testkit::{Exit, PATIENCE, Signal, until};

const WEB: u16 = 80;

fn web(rest: &str) -> String {
    vip("web", SocketAddr::new(Family::V4.vip(1), WEB), "tcp", rest)
}

fn echo(rest: &str) -> String {
    vip("echo", SocketAddr::new(Family::V4.vip(1), ECHO_PORT), "tcp", rest)
}

fn served_by(network: &Network, connections: usize) -> Vec<String> {
    let to = SocketAddr::new(Family::V4.vip(1), WEB);
    network.get(to, connections, connections as u64 * 4).origins.into_keys().collect()
}

#[test]
fn reloads_under_load_break_nothing() {
    within("reloads_under_load_break_nothing", Links::default(), |network| {
        let origins = network.origins();
        let all: Vec<&Origin> = origins.iter().collect();
        let (first, second, third) = ("31.31.31.1:5001", "32.32.32.1:5001", "33.33.33.1:5001");
        let mut vips = Vips::serve(&web(&format!("endpoints: ['{first}', '{second}', '{third}']")));
        let to = SocketAddr::new(Family::V4.vip(1), WEB);
        let load = network.client.inside(|| Load::start(to, "/", 16));
        until_served(&all, 500);
        for rest in [
            format!("endpoints: [{{address: '{first}', weight: 5}}, '{second}', '{third}']"),
            format!("endpoints: ['{first}']"),
            format!("endpoints: ['{second}', '{third}'], balance: maglev"),
            format!("endpoints: ['{third}', '{first}'], balance: least_connections, affinity: 10m"),
            format!("endpoints: ['{first}', '{second}', '{third}'], balance: random"),
        ] {
            // Another vip is added and removed at the same time.
            let other = vip("other", SocketAddr::new(Family::V6.vip(2), 81), "tcp", "endpoints: ['[fd00:31::1]:5001']");
            vips.reload(&format!("{}{other}", web(&rest)));
            until_served(&all, 1000);
            vips.reload(&web(&rest));
            until_served(&all, 1000);
        }
        let total = load.end(&mut vips.steelyard);
        // No connection was lost, not even one that could have been opened again.
        assert_eq!((total.reconnects, total.resent), (0, 0), "{total:?}");
    });
}

#[test]
fn a_drained_endpoint_keeps_what_it_has() {
    within("a_drained_endpoint_keeps_what_it_has", Links::default(), |network| {
        let (_origins, _echoes) = (network.origins(), network.echoes());
        let rest = |port| format!("endpoints: {}", Family::V4.endpoints(port));
        let mut vips = Vips::serve(&format!("{}{}", web(&rest(5001)), echo(&rest(ECHO_PORT))));
        let to = SocketAddr::new(Family::V4.vip(1), ECHO_PORT);
        // Round robin: one at each endpoint.
        let streams: Vec<TcpStream> = (0..3).map(|_| network.connect(to)).collect();
        vips.ask(&["endpoint", "drain", "32.32.32.1:5001"]);
        vips.ask(&["endpoint", "drain", "32.32.32.1:7", "--vip", "echo"]);
        let states = |status: &serde_json::Value| endpoint_words(status, "echo", "state");
        vips.steelyard.until("draining", |status| states(status)[1] == "draining");
        assert_eq!(served_by(network, 12), ["ep0", "ep2"]);
        for stream in &streams {
            exchange(stream, "still here").unwrap();
        }
        assert_eq!(endpoint_figures(&vips.steelyard.status(), "echo", "flows"), [1, 1, 1]);
        // Once its last connection has ended, it carries nothing.
        drop(streams);
        vips.steelyard.until("drained", |status| endpoint_figures(status, "echo", "flows") == [0, 0, 0]);
        vips.ask(&["endpoint", "ready", "32.32.32.1:5001", "--vip", "web"]);
        vips.steelyard.until("ready", |status| endpoint_words(status, "web", "state")[1] != "draining");
        assert_eq!(served_by(network, 12), ["ep0", "ep1", "ep2"]);
    });
}

#[test]
fn a_dead_endpoint_is_told_to_its_clients() {
    within("a_dead_endpoint_is_told_to_its_clients", Links::default(), |network| {
        dies_and_comes_back(network, Family::V4)
    });
}

#[test]
fn a_dead_endpoint_is_told_to_its_clients_over_ipv6() {
    within("a_dead_endpoint_is_told_to_its_clients_over_ipv6", Links::default(), |network| {
        // Otherwise an interface that goes down loses its addresses of this family.
        network.balancer.sysctl("net.ipv6.conf.ep1.keep_addr_on_down", "1").unwrap();
        dies_and_comes_back(network, Family::V6);
    });
}

/// An endpoint that vanishes silently, and returns later.
fn dies_and_comes_back(network: &Network, family: Family) {
    let (_origins, _echoes) = (network.origins(), network.echoes());
    // Long enough that no probe of a live endpoint fails because the host is busy.
    let check = "health_check: {tcp: true, interval: 100ms, timeout: 500ms, unhealthy_after: 2, healthy_after: 1}";
    let rest = |port| format!("endpoints: {}, on_unhealthy: reset, {check}", family.endpoints(port));
    let [web, to] = [WEB, ECHO_PORT].map(|port| SocketAddr::new(family.vip(1), port));
    let config = [vip("web", web, "tcp", &rest(5001)), vip("echo", to, "tcp", &rest(ECHO_PORT))];
    let mut vips = Vips::serve(&config.concat());
    let served = || network.get(web, 12, 48).origins.into_keys().collect::<Vec<String>>();
    let healthy = |status: &serde_json::Value, name: &str| {
        endpoint_words(status, name, "state").iter().filter(|state| *state == "healthy").count()
    };
    vips.steelyard.until("healthy", |status| healthy(status, "web") == 3 && healthy(status, "echo") == 3);
    let streams: Vec<TcpStream> = (0..6).map(|_| network.connect(to)).collect();
    for stream in &streams {
        exchange(stream, "hello").unwrap();
    }
    // Its host is gone: it sends neither FIN nor RST.
    network.balancer.ip("link set dev ep1 down").unwrap();
    vips.steelyard.until("unhealthy", |status| healthy(status, "web") == 2 && healthy(status, "echo") == 2);
    // New connections go to the others.
    assert_eq!(served(), ["ep0", "ep2"]);
    // Its clients, which only wait, get a reset; other clients do not.
    let ended = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        let outcome = stream.read(&mut [0]);
        stream.set_nonblocking(false).unwrap();
        matches!(outcome, Err(error) if error.kind() == ErrorKind::ConnectionReset)
    };
    let told = until(PATIENCE, || (streams.iter().filter(|stream| ended(stream)).count() >= 1).then_some(()));
    assert!(told.is_some(), "no client got a reset");
    let mut reset = 1;
    for stream in &streams {
        match exchange(stream, "still here") {
            Ok(()) => {}
            Err(_) => reset += 1,
        }
    }
    assert!((2..=3).contains(&reset), "{reset} of 2 connections to the dead endpoint ended");
    // It returns, and so do its connections.
    network.balancer.ip("link set dev ep1 up").unwrap();
    vips.steelyard.until("healthy", |status| healthy(status, "web") == 3);
    vips.steelyard.program.until("served by all", || (served() == ["ep0", "ep1", "ep2"]).then_some(())).unwrap();
}

#[test]
fn a_failed_probe_leaves_connections_alone() {
    within("a_failed_probe_leaves_connections_alone", Links::default(), |network| {
        let (mut origins, _echoes) = (network.origins(), network.echoes());
        // The probe uses another port than the connections: it fails while these work.
        let check = "health_check: {tcp: true, port: 5001, interval: 100ms, timeout: 500ms, unhealthy_after: 1, healthy_after: 1}";
        let mut vips = Vips::serve(&echo(&format!("endpoints: {}, {check}", Family::V4.endpoints(ECHO_PORT))));
        let to = SocketAddr::new(Family::V4.vip(1), ECHO_PORT);
        let state = |status: &serde_json::Value| endpoint_words(status, "echo", "state")[1].clone();
        let streams: Vec<TcpStream> = (0..3).map(|_| network.connect(to)).collect();
        drop(origins.remove(1));
        vips.steelyard.until("unhealthy", |status| state(status) == "unhealthy");
        for stream in &streams {
            exchange(stream, "still here").unwrap();
        }
        // New connections go elsewhere.
        let new: Vec<TcpStream> = (0..4).map(|_| network.connect(to)).collect();
        assert_eq!(endpoint_figures(&vips.steelyard.status(), "echo", "flows"), [3, 1, 3]);
        drop(new);
    });
}

#[test]
fn what_was_dead_before_a_restart_takes_no_connections_after_it() {
    within("what_was_dead_before_a_restart_takes_no_connections_after_it", Links::default(), |network| {
        let mut origins = network.origins();
        // The probes are so rare that none can end between the start and what follows.
        let check = "health_check: {tcp: true, interval: 10s, timeout: 5s, unhealthy_after: 1, healthy_after: 1}";
        let fast = check.replace("10s", "100ms");
        drop(origins.remove(1));
        let rest = |check: &str| web(&format!("endpoints: {}, {check}", Family::V4.endpoints(5001)));
        let mut vips = Vips::serve(&rest(&fast));
        let state = |status: &serde_json::Value| endpoint_words(status, "web", "state")[1].clone();
        vips.steelyard.until("unhealthy", |status| state(status) == "unhealthy");
        vips.reload(&rest(check));
        let file = vips.steelyard.file();
        vips.steelyard.program.signal(Signal::KILL).unwrap();
        vips.steelyard.program.exit_within(PATIENCE).unwrap();
        vips.steelyard.start_again(&file);
        assert_eq!(state(&vips.steelyard.status()), "unhealthy");
        assert_eq!(served_by(network, 12), ["ep0", "ep2"]);
        // It returns as soon as a probe succeeds.
        origins.push(network.origin(1));
        vips.reload(&rest(&fast));
        vips.steelyard.until("healthy", |status| state(status) == "healthy");
        assert_eq!(served_by(network, 12), ["ep0", "ep1", "ep2"]);
    });
}

#[test]
fn an_endpoint_killed_under_load_costs_its_own_connections_only() {
    within("an_endpoint_killed_under_load_costs_its_own_connections_only", Links::default(), |network| {
        let mut origins = network.origins();
        let check = "health_check: {tcp: true, interval: 100ms, timeout: 500ms, unhealthy_after: 1}";
        let mut vips = Vips::serve(&web(&format!("endpoints: {}, {check}", Family::V4.endpoints(5001))));
        let to = SocketAddr::new(Family::V4.vip(1), WEB);
        let load = network.client.inside(|| Load::start(to, "/", 12));
        until_served(&origins.iter().collect::<Vec<_>>(), 500);
        drop(origins.remove(1));
        let states = |status: &serde_json::Value| endpoint_words(status, "web", "state");
        vips.steelyard.until("unhealthy", |status| states(status)[1] == "unhealthy");
        until_served(&origins.iter().collect::<Vec<_>>(), 1000);
        let total = load.stop();
        // A third of the connections broke with the endpoint, and its host refused some until the probe failed.
        assert!(total.answers > 1500, "{total:?}");
        assert_eq!(served_by(network, 12), ["ep0", "ep2"]);
    });
}

#[test]
fn datagrams_for_a_dead_endpoint_go_to_another() {
    within("datagrams_for_a_dead_endpoint_go_to_another", Links::default(), |network| {
        let _echoes = network.echoes();
        let check = "health_check: {tcp: true, interval: 100ms, timeout: 500ms, unhealthy_after: 2}";
        let to = SocketAddr::new(Family::V4.vip(1), ECHO_PORT);
        let rest = format!("endpoints: {}, {check}", Family::V4.endpoints(ECHO_PORT));
        let mut vips = Vips::serve(&vip("udp", to, "udp", &rest));
        // Round robin: one at each endpoint.
        let sockets: Vec<UdpSocket> = (0..3).map(|_| network.talk(to)).collect();
        for socket in &sockets {
            datagram(socket, 100);
        }
        let flows = endpoint_figures(&vips.steelyard.status(), "udp", "flows");
        assert_eq!(flows, [1, 1, 1]);
        network.balancer.ip("link set dev ep1 down").unwrap();
        vips.steelyard.until("unhealthy", |status| endpoint_words(status, "udp", "state")[1] == "unhealthy");
        for socket in &sockets {
            // The kernel learns of it a moment later than the status shows it. A datagram client tries again.
            socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            let answered = vips.steelyard.program.until("answered", || try_datagram(socket, 100).ok());
            answered.unwrap();
        }
    });
}

#[test]
fn an_interface_that_comes_back_is_served_again() {
    within("an_interface_that_comes_back_is_served_again", Links::default(), |network| {
        let _echoes = network.echoes();
        let mut vips = Vips::serve(&echo(&format!("endpoints: {}", Family::V4.endpoints(ECHO_PORT))));
        let to = SocketAddr::new(Family::V4.vip(1), ECHO_PORT);
        let streams: Vec<TcpStream> = (0..3).map(|_| network.connect(to)).collect();
        // As if a container were restarted under the same name and address: both ends of the link are other interfaces now.
        network.balancer.ip("link del ep1").unwrap();
        network.link_again(1);
        let works = || {
            let streams: Vec<TcpStream> = (0..3).filter_map(|_| network.try_connect(to)).collect();
            (streams.len() == 3 && streams.iter().all(|stream| exchange(stream, "hello").is_ok())).then_some(())
        };
        vips.steelyard.program.until("served again", works).unwrap();
        // Connections whose path did not change never noticed; the other one found its path again.
        for stream in &streams {
            exchange(stream, "still here").unwrap();
        }
    });
}

#[test]
fn an_end_leaves_it_forwarding_and_detach_does_not() {
    within("an_end_leaves_it_forwarding_and_detach_does_not", Links::default(), |network| {
        let _echoes = network.echoes();
        let mut vips = Vips::serve(&echo(&format!("endpoints: {}", Family::V4.endpoints(ECHO_PORT))));
        let to = SocketAddr::new(Family::V4.vip(1), ECHO_PORT);
        let stream = network.connect(to);
        vips.steelyard.program.signal(Signal::TERM).unwrap();
        assert_eq!(
            vips.steelyard.program.exit_within(PATIENCE).unwrap(),
            Exit::Code(0),
            "{}",
            vips.steelyard.program.log()
        );
        exchange(&stream, "no process").unwrap();
        exchange(&network.connect(to), "a new one").unwrap();
        assert_eq!(detach().exit, Exit::Code(0));
        assert!(network.try_connect(to).is_none(), "it forwards although it was detached");
        // There is nothing left to remove, which is also fine.
        assert_eq!(detach().exit, Exit::Code(0));
    });
}

#[test]
fn a_file_without_vips_takes_it_down() {
    within("a_file_without_vips_takes_it_down", Links::default(), |network| {
        let _echoes = network.echoes();
        let config = echo(&format!("endpoints: {}", Family::V4.endpoints(ECHO_PORT)));
        let mut vips = Vips::serve(&config);
        let to = SocketAddr::new(Family::V4.vip(1), ECHO_PORT);
        exchange(&network.connect(to), "hello").unwrap();
        let generation = vips.steelyard.generation();
        vips.steelyard.reload("admin: {admin}\nvips: {}\n", |status| status["generation"].as_u64() > Some(generation));
        assert!(network.try_connect(to).is_none(), "it forwards although there are no vips");
        vips.reload(&config);
        exchange(&network.connect(to), "and back").unwrap();
    });
}

#[test]
fn vips_come_and_go_by_command() {
    within("vips_come_and_go_by_command", Links::default(), |network| {
        let _echoes = network.echoes();
        let config = echo(&format!("endpoints: {}", Family::V4.endpoints(ECHO_PORT)));
        let vips = Vips::serve(&config);
        let (old, new) = (SocketAddr::new(Family::V4.vip(1), ECHO_PORT), SocketAddr::new(Family::V4.vip(5), ECHO_PORT));
        let stream = network.connect(old);
        let add = ["vip", "add", "more", "--address", "20.20.20.5:7/tcp", "--interface", "client0,ep0", "--endpoint"];
        vips.ask(&[&add[..], &["31.31.31.1:7"]].concat());
        exchange(&network.connect(new), "added").unwrap();
        let list = vips.ask(&["vip", "list"]);
        assert!(list.contains("more") && list.contains("20.20.20.5:7/tcp"), "{list}");
        vips.ask(&["vip", "remove", "more"]);
        assert!(network.try_connect(new).is_none(), "it forwards although the vip was removed");
        exchange(&stream, "not touched").unwrap();
    });
}

#[test]
fn without_interfaces_vips_go_along_the_routes() {
    within("without_interfaces_vips_go_along_the_routes", Links::default(), |network| {
        let _echoes = network.echoes();
        let to = SocketAddr::new(Family::V4.vip(1), ECHO_PORT);
        network.balancer.ip(&format!("route add default via {}", Family::V4.client())).unwrap();
        network.balancer.ip("route add unreachable 172.16.0.0/16").unwrap();
        network.endpoints[2].ip("addr add 172.16.0.1/32 dev eth0").unwrap();
        let mut vips =
            Vips::serve(&format!("echo: {{address: '{to}/tcp', endpoints: ['31.31.31.1:7', '172.16.0.1:7']}}\n"));
        let list = vips.ask(&["vip", "list"]);
        assert!(list.contains("interfaces  along the routes: client0, ep0\n"), "{list}");
        let stream = network.connect(to);
        exchange(&stream, "by the one that there is a way to").unwrap();
        let status = vips.ask(&["status"]);
        let tells = ["1 of 2 endpoints of echo is unhealthy: 172.16.0.1:7 no route to it:", "1 of 2"];
        assert!(tells.iter().all(|text| status.contains(text)), "{status}");
        // Without `--interface`: the interface where clients arrive.
        check_trace(&vips, &["--vip", "echo", "--from", "198.51.100.7"], "forwarded to 31.31.31.1:7 by ep0");

        network.balancer.ip("route replace 172.16.0.0/16 via 33.33.33.1").unwrap();
        let admin = vips.steelyard.admin;
        let states = || Some(support::network::endpoint_words(&support::status(admin)?, "echo", "state"));
        let served = || (states()? == ["unchecked", "unchecked"]).then_some(());
        vips.steelyard.program.until("taken up", served).unwrap();
        let list = vips.ask(&["vip", "list"]);
        assert!(list.contains("along the routes: client0, ep0, ep2\n"), "{list}");
        let streams: Vec<TcpStream> = (0..4).map(|_| network.connect(to)).collect();
        for stream in streams.iter().chain([&stream]) {
            exchange(stream, "both serve").unwrap();
        }
        let flows = vips.ask(&["flows", "--vip", "echo"]);
        assert!(flows.contains("172.16.0.1:7"), "{flows}");

        // Also for vips that are added by command.
        vips.ask(&["vip", "add", "more", "--address", "20.20.20.5:7/tcp", "--endpoint", "32.32.32.1:7"]);
        exchange(&network.connect(SocketAddr::new(Family::V4.vip(5), ECHO_PORT)), "added").unwrap();
        assert!(vips.ask(&["vip", "list"]).contains("along the routes: client0, ep1\n"));
    });
}

#[track_caller]
fn check_trace(vips: &Vips, words: &[&str], expect: &str) {
    let said = vips.ask(&[&["trace"], words].concat());
    assert!(said.contains(expect), "{said}");
}

#[test]
fn connections_outlive_the_process() {
    within("connections_outlive_the_process", Links::default(), |network| {
        let (_origins, _echoes) = (network.origins(), network.echoes());
        let rest = |port| format!("endpoints: {}", Family::V4.endpoints(port));
        let config = format!("{}{}", web(&rest(5001)), echo(&rest(ECHO_PORT)));
        let mut vips = Vips::serve(&config);
        let to = SocketAddr::new(Family::V4.vip(1), ECHO_PORT);
        let idle: Vec<TcpStream> = (0..1000).map(|_| network.connect(to)).collect();
        for stream in &idle {
            exchange(stream, "hello").unwrap();
        }
        let (end, stream) = (AtomicBool::new(false), network.connect(to));
        std::thread::scope(|scope| {
            let streaming = scope.spawn(|| stream_until(&stream, &end));
            let file = vips.steelyard.file();
            vips.steelyard.program.signal(Signal::KILL).unwrap();
            vips.steelyard.program.exit_within(PATIENCE).unwrap();
            // Without a process, old and new connections continue.
            exchange(&idle[0], "no process").unwrap();
            assert_eq!(served_by(network, 3), ["ep0", "ep1", "ep2"]);
            vips.steelyard.start_again(&file);
            for stream in &idle {
                exchange(stream, "again").unwrap();
            }
            assert_eq!(served_by(network, 3), ["ep0", "ep1", "ep2"]);
            end.store(true, Relaxed);
            let rounds = streaming.join().unwrap();
            assert!(rounds > 0, "the stream made no progress");
        });
        // The new process knows what the old one left.
        let flows = endpoint_figures(&vips.steelyard.status(), "echo", "flows");
        assert_eq!(flows.iter().sum::<u64>(), 1001, "{flows:?}");
        drop(idle);
    });
}

/// Sends blocks to an echo and reads them back until `end`. Returns how many.
fn stream_until(mut stream: &TcpStream, end: &AtomicBool) -> u64 {
    let mut rounds = 0;
    let (sent, mut received) = (vec![7; 64 << 10], vec![0; 64 << 10]);
    while !end.load(Relaxed) {
        stream.write_all(&sent).unwrap();
        stream.read_exact(&mut received).unwrap();
        assert!(sent == received);
        rounds += 1;
    }
    rounds
}

#[test]
fn a_flood_of_syns_does_not_touch_what_is_established() {
    within("a_flood_of_syns_does_not_touch_what_is_established", Links::default(), |network| {
        const FLOWS_MAX: u32 = 2048;
        const SYNS: u32 = 50_000;
        let _echoes = network.echoes();
        let rest = format!("endpoints: {}, timeouts: {{syn: 2s}}", Family::V4.endpoints(ECHO_PORT));
        let config = support::network::vip_config(&echo(&rest))
            .replace("vips:", &format!("kernel_plane: {{flows_max: {FLOWS_MAX}}}\nvips:"));
        let mut vips = Vips { steelyard: support::Steelyard::serve(&config, 1) };
        let to = SocketAddr::new(Family::V4.vip(1), ECHO_PORT);
        let stream = network.connect(to);
        exchange(&stream, "before").unwrap();
        // From addresses that never answer, so that each of them is a flow that stays half open.
        network.balancer.ip("route add 11.0.0.0/8 via 10.10.10.1").unwrap();
        network.client.inside(|| {
            let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(libc_ipproto_raw()))).unwrap();
            for number in 0..SYNS {
                let [_, b, c, d] = number.to_be_bytes();
                let from = format!("11.{b}.{c}.{d}:{}", 1024 + number % 60_000);
                let syn = Packet::tcp(&from, &to.to_string()).flags(SYN).seq(number);
                // A flood sometimes finds a queue full; it must just continue.
                _ = raw.send_to(&syn.build_ip(), &to.into());
                if number % 5000 == 0 {
                    exchange(&stream, &format!("after {number}")).unwrap();
                }
            }
        });
        exchange(&stream, "after all").unwrap();
        let labels = [("vip", "echo"), ("reason", "flow_table_full")];
        let dropped = vips.steelyard.metric("steelyard_vip_drops_total", &labels);
        assert!(dropped > f64::from(SYNS - 10 * FLOWS_MAX), "{dropped} of {SYNS} counted as flow_table_full");
        // After the flood there is room again without any action.
        let again = until(2 * PATIENCE, || {
            let connected =
                network.client.inside(|| TcpStream::connect_timeout(&to, std::time::Duration::from_millis(200)));
            connected.ok().filter(|stream| exchange(stream, "room again").is_ok())
        });
        assert!(again.is_some(), "{}", vips.steelyard.program.log());
        exchange(&stream, "and at the end").unwrap();
    });
}

#[test]
fn without_a_process_finished_connections_do_not_fill_the_table() {
    within("without_a_process_finished_connections_do_not_fill_the_table", Links::default(), |network| {
        const FLOWS_MAX: usize = 2048;
        // The programs find out by the clock that nobody collects, which no event shows: after 4 s (bpf/gc.h).
        const LATE: Duration = Duration::from_secs(6);
        let _echoes = network.echoes();
        let config = support::network::vip_config(&echo(&format!("endpoints: {}", Family::V4.endpoints(ECHO_PORT))))
            .replace("vips:", &format!("kernel_plane: {{flows_max: {FLOWS_MAX}}}\nvips:"));
        let mut vips = Vips { steelyard: support::Steelyard::serve(&config, 1) };
        let file = vips.steelyard.file();
        vips.steelyard.program.signal(Signal::KILL).unwrap();
        vips.steelyard.program.exit_within(PATIENCE).unwrap();
        assert!(until(LATE, || None::<()>).is_none());
        let to = SocketAddr::new(Family::V4.vip(1), ECHO_PORT);
        let refused: Vec<usize> = (0..2 * FLOWS_MAX)
            .filter(|number| {
                let Some(stream) = network.try_connect(to) else { return true };
                if number % 100 == 0 {
                    exchange(&stream, "hello").unwrap();
                }
                // The answer to the FIN is the last packet but one of the connection.
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                (&stream).read_to_end(&mut Vec::new()).is_err()
            })
            .collect();
        assert_eq!(refused, Vec::<usize>::new(), "the table has room for {FLOWS_MAX} connections");
        vips.steelyard.start_again(&file);
        let status = vips.steelyard.status();
        let entries = status["kernel_plane"]["entries"].as_u64();
        assert!(entries.is_some_and(|entries| entries < 100), "{entries:?} entries were left");
        // Each entry has 128 bytes of ours, and the kernel's. The other tables have some mebibytes.
        let bytes = status["kernel_plane"]["map_bytes"].as_u64().unwrap();
        assert!((4 << 20..64 << 20).contains(&(bytes - 2 * FLOWS_MAX as u64 * 128)), "{bytes}");
        assert_eq!(vips.steelyard.metric("steelyard_kernel_map_bytes", &[]), bytes as f64);
    });
}

/// IPPROTO_RAW: we write the header (raw(7)).
const fn libc_ipproto_raw() -> i32 {
    255
}

#[test]
fn sources_are_held_to_the_lists_and_the_rate() {
    within("sources_are_held_to_the_lists_and_the_rate", Links::default(), |network| {
        let _echoes = network.echoes();
        network.client.ip("addr add 10.10.10.77/24 dev eth0\naddr add fd00:10::77/64 dev eth0").unwrap();
        for (family, denied) in [(Family::V4, "10.10.10.0/26"), (Family::V6, "fd00:10::/122")] {
            let to = SocketAddr::new(family.vip(1), ECHO_PORT);
            let endpoints = family.endpoints(ECHO_PORT);
            let mut vips = Vips::serve(&vip("echo", to, "tcp", &format!("endpoints: {endpoints}, deny: ['{denied}']")));
            let try_from = |address: &str| {
                network.client.inside(|| {
                    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
                    socket.bind(&SocketAddr::new(address.parse().unwrap(), 0).into()).unwrap();
                    socket.connect_timeout(&to.into(), std::time::Duration::from_millis(300)).is_ok()
                })
            };
            let (low, high) = match family {
                Family::V4 => ("10.10.10.1", "10.10.10.77"),
                Family::V6 => ("fd00:10::1", "fd00:10::77"),
            };
            assert_eq!((try_from(low), try_from(high)), (false, true), "{family:?} deny");
            vips.reload(&vip("echo", to, "tcp", &format!("endpoints: {endpoints}, allow: ['{denied}']")));
            assert_eq!((try_from(low), try_from(high)), (true, false), "{family:?} allow");
            let rate = "new_connections_per_source: {rate: 1/s, burst: 5}";
            vips.reload(&vip("echo", to, "tcp", &format!("endpoints: {endpoints}, {rate}")));
            let opened = (0..10).filter(|_| try_from(low)).count();
            assert!((5..10).contains(&opened), "{opened} of 10 at once, with a burst of 5");
            let refused =
                vips.steelyard.metric("steelyard_vip_drops_total", &[("vip", "echo"), ("reason", "rate_limited")]);
            assert!(refused >= 1.0, "{refused}");
        }
    });
}

#[test]
fn a_client_stays_with_its_endpoint() {
    within("a_client_stays_with_its_endpoint", Links::default(), |network| {
        let _origins = network.origins();
        for (family, rest) in
            FAMILIES.into_iter().flat_map(|family| ["affinity: 10m", "balance: source_hash"].map(|rest| (family, rest)))
        {
            let to = SocketAddr::new(family.vip(1), WEB);
            let endpoints = family.endpoints(5001);
            let mut vips = Vips::serve(&vip("web", to, "tcp", &format!("endpoints: {endpoints}, {rest}")));
            let first = network.get(to, 8, 40).origins;
            assert_eq!(first.len(), 1, "{family:?} {rest}: {first:?}");
            // Another vip, and so another generation: the same endpoint.
            vips.reload(&vip("web", to, "tcp", &format!("endpoints: {endpoints}, {rest}, timeouts: {{idle: 5m}}")));
            assert_eq!(network.get(to, 8, 40).origins, first, "{family:?} {rest}");
        }
    });
}
