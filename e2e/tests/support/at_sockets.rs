//! Vips that are balanced at the socket, for the processes of a control group of the test.

use std::net::SocketAddr;

use serde_json::Value;

use super::cgroup::{Cgroup, Seen};
use super::echo::ECHO_PORT;
use super::network::{Family, Links, Network, Vips, endpoint_figures, vip, vip_config, within};
use super::{Steelyard, skip};

/// Runs `test` with a control group, whose processes are gone when it ends.
pub fn with_cgroup(name: &str, test: impl FnOnce(&Network, &Cgroup) + Send) {
    within(name, Links::default(), |network| match Cgroup::new() {
        Some(cgroup) => test(network, &cgroup),
        None => skip(name, "no hierarchy of control groups of version 2 is mounted"),
    });
}

pub fn config(cgroup: &str, vips: &str) -> String {
    vip_config(vips).replace("vips:", &format!("kernel_plane: {{socket_cgroup: {cgroup}}}\nvips:"))
}

pub fn serve(cgroup: &Cgroup, vips: &str) -> Vips {
    Vips { steelyard: Steelyard::serve(&config(cgroup.path(), vips), 1) }
}

pub fn at(family: Family) -> SocketAddr {
    SocketAddr::new(family.vip(1), ECHO_PORT)
}

/// The echo over both protocols.
pub fn echo(family: Family, rest: &str) -> String {
    let rest = format!("endpoints: {}{rest}", family.endpoints(ECHO_PORT));
    let name = format!("{family:?}").to_lowercase();
    vip(&format!("tcp-{name}"), at(family), "tcp", &rest) + &vip(&format!("udp-{name}"), at(family), "udp", &rest)
}

pub fn vip_of<'s>(status: &'s Value, name: &str) -> &'s Value {
    let found = status["vips"].as_array().into_iter().flatten().find(|vip| vip["name"] == name);
    found.unwrap_or_else(|| panic!("no vip {name}: {status}"))
}

/// Waits until so many sockets are connected to the endpoints of the vip, in any order.
pub fn until_open(vips: &mut Vips, name: &str, expect: [u64; 3]) -> Value {
    vips.steelyard.until(&format!("{expect:?} sockets of {name}"), |status| {
        let mut open = endpoint_figures(status, name, "sockets");
        open.sort_unstable();
        open == expect
    })
}

/// Every socket sees the vip, and none has failed.
#[track_caller]
pub fn sees_the_vip(seen: &Seen, vip: &str, connected: bool, count: usize) {
    assert_eq!(seen.errors, Vec::<String>::new());
    let all = vec![vip.to_owned(); count];
    if connected {
        assert_eq!(seen.peers, all);
    }
    assert!(seen.senders.is_empty() || seen.senders == all, "{seen:?}");
}
