//! What the kernel plane refuses, and what it reports when nothing gets through.
#![forbid(unsafe_code)]

mod support;

use std::net::SocketAddr;
use std::process::Command;

use support::echo::{ECHO_PORT, exchange};
use support::network::{Family, Links, Network, Vips, on_one_cpu, vip, vip_config, within};
use support::{Scratch, steelyard};
use testkit::{Exit, Finished, Program};

fn echo(rest: &str) -> String {
    let endpoints = Family::V4.endpoints(ECHO_PORT);
    vip("echo", SocketAddr::new(Family::V4.vip(1), ECHO_PORT), "tcp", &format!("endpoints: {endpoints}{rest}"))
}

/// `serve` with these vips ends by itself with this code, and prints all of this.
#[track_caller]
fn refused(mut command: Command, vips: &str, code: i32, expect: &[&str]) {
    let scratch = Scratch::new();
    let admin = support::local(support::port()).to_string();
    let file = scratch.write("steelyard.yaml", &vip_config(vips).replace("{admin}", &admin));
    // Others must be able to read it, because not every user here is root.
    let finished = Program::run("steelyard", command.args(["serve", "-c", &file])).unwrap();
    assert_eq!(finished.exit, Exit::Code(code), "{}{}", finished.stdout, finished.stderr);
    for text in expect {
        assert!(finished.stderr.contains(text), "does not say {text:?}:\n{}", finished.stderr);
    }
}

#[test]
fn without_privilege() {
    within("without_privilege", Links::default(), |_| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all", "--"]);
        command.arg(steelyard().get_program());
        refused(command, &echo(""), 77, &["CAP_BPF", "CAP_NET_ADMIN"]);
        // Root only by uid, as in a container.
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-sys_admin,-bpf", "--inh-caps=-all", "--"]).arg(steelyard().get_program());
        refused(command, &echo(""), 77, &["CAP_BPF"]);
    });
}

#[test]
fn an_interface_that_is_not_there() {
    within("an_interface_that_is_not_there", Links::default(), |_| {
        refused(steelyard(), &echo("").replace("client0", "cleint0"), 64, &["cleint0", "did you mean", "client0"]);
    });
}

#[test]
fn a_refused_file_leaves_the_old_one_in_force() {
    within("a_refused_file_leaves_the_old_one_in_force", Links::default(), |network| {
        let _echoes = network.echoes();
        let mut vips = Vips::serve(&echo(""));
        let to = SocketAddr::new(Family::V4.vip(1), ECHO_PORT);
        let stream = network.connect(to);
        let generation = vips.steelyard.generation();
        vips.steelyard.write(&vip_config(&echo("").replace("client0", "nowhere0")));
        let refused = vips.steelyard.ask(&["reload"]);
        assert_ne!(refused.exit, Exit::Code(0));
        assert!(refused.stderr.contains("nowhere0"), "{}", refused.stderr);
        assert_eq!(vips.steelyard.generation(), generation);
        exchange(&stream, "as before").unwrap();
        exchange(&network.connect(to), "new ones, too").unwrap();
        assert!(vips.steelyard.program.ended().unwrap().is_none());
    });
}

/// `steelyard trace` of a SYN to the echo's vip: checks the code and the whole text.
fn trace(vips: &Vips, words: &[&str]) -> Finished {
    vips.steelyard.ask(&[&["trace"], words].concat())
}

#[track_caller]
fn check_trace(vips: &Vips, words: &[&str], code: i32, expect: &[&str]) {
    let finished = trace(vips, words);
    assert_eq!(finished.exit, Exit::Code(code), "{words:?}:\n{}{}", finished.stdout, finished.stderr);
    for text in expect {
        let said = [&*finished.stdout, &*finished.stderr].concat();
        assert!(said.contains(text), "{words:?} does not say {text:?}:\n{said}");
    }
}

#[test]
fn why_there_is_no_traffic() {
    within("why_there_is_no_traffic", Links::default(), |network| {
        let _echoes = network.echoes();
        let client = "10.10.10.1:40000";
        // A trace tells of the turn of the CPU that it runs on.
        on_one_cpu();
        let mut vips = Vips::serve(&echo(", balance: round_robin"));
        check_trace(&vips, &["--vip", "echo", "--from", client], 0, &["31.31.31.1:7", "ep0"]);
        // A trace changes nothing: the next connection is still the first.
        check_trace(&vips, &["--vip", "echo", "--from", client], 0, &["31.31.31.1:7"]);
        check_trace(&vips, &["--vip", "20.20.20.1:7/tcp", "--from", client], 0, &["31.31.31.1:7"]);
        check_trace(&vips, &["--vip", "20.20.20.1:9/tcp", "--from", client], 1, &["vip"]);
        check_trace(&vips, &["--vip", "nothing", "--from", client], 1, &["nothing", "echo"]);
        // There is no route to this host for the answer.
        check_trace(&vips, &["--vip", "echo", "--from", "192.0.2.7"], 1, &["no_route"]);
        // In the middle of an unknown connection.
        check_trace(&vips, &["--vip", "echo", "--from", client, "--flags", "ack"], 1, &["no_flow"]);

        vips.reload(&echo(", deny: [10.10.10.0/24]"));
        check_trace(&vips, &["--vip", "echo", "--from", client], 1, &["source_denied"]);
        vips.reload(&echo(", allow: [10.10.10.64/26]"));
        check_trace(&vips, &["--vip", "echo", "--from", client], 1, &["source_not_allowed"]);
        check_trace(&vips, &["--vip", "echo", "--from", "10.10.10.77:40000"], 0, &[]);

        vips.reload(&echo(""));
        for endpoint in ["31.31.31.1:7", "32.32.32.1:7", "33.33.33.1:7"] {
            vips.ask(&["endpoint", "drain", endpoint]);
        }
        check_trace(&vips, &["--vip", "echo", "--from", client], 1, &["no_endpoint"]);
        for endpoint in ["31.31.31.1:7", "32.32.32.1:7", "33.33.33.1:7"] {
            vips.ask(&["endpoint", "ready", endpoint]);
        }
        // A host that does not forward, and one without a route.
        network.balancer.sysctl("net.ipv4.ip_forward", "0").unwrap();
        check_trace(&vips, &["--vip", "echo", "--from", client], 1, &["no_route", "forwarding"]);
        network.balancer.sysctl("net.ipv4.ip_forward", "1").unwrap();
        check_trace(&vips, &["--vip", "echo", "--from", client], 0, &[]);
        // An interface without our programs.
        check_trace(&vips, &["--vip", "echo", "--from", client, "--interface", "lo"], 1, &["lo"]);
    });
}

#[test]
fn drops_are_counted_by_their_reason() {
    within("drops_are_counted_by_their_reason", Links::default(), |network: &Network| {
        let _echoes = network.echoes();
        let mut vips = Vips::serve(&echo(""));
        let to = SocketAddr::new(Family::V4.vip(1), ECHO_PORT);
        let stream = network.connect(to);
        exchange(&stream, "hello").unwrap();
        for endpoint in ["31.31.31.1:7", "32.32.32.1:7", "33.33.33.1:7"] {
            vips.ask(&["endpoint", "drain", endpoint]);
        }
        let nobody = || {
            network
                .client
                .inside(|| std::net::TcpStream::connect_timeout(&to, std::time::Duration::from_millis(100)).is_err())
        };
        assert!(nobody());
        let labels = [("vip", "echo"), ("reason", "no_endpoint")];
        let (admin, program) = (vips.steelyard.admin, &mut vips.steelyard.program);
        let counted = || {
            let metrics = support::get(admin, "/metrics")?;
            let sum =
                testkit::prometheus::sum(&String::from_utf8_lossy(&metrics.body), "steelyard_vip_drops_total", &labels);
            (sum >= 1.0).then_some(())
        };
        program.until("counted", counted).unwrap();
        let status = vips.ask(&["status"]);
        assert!(status.contains("no_endpoint"), "{status}");
        let flows = vips.ask(&["flows", "--vip", "echo"]);
        let own = stream.local_addr().unwrap().to_string();
        assert!(flows.lines().any(|line| line.starts_with("echo ") && line.contains(&own)), "{flows}");
    });
}
