//! Properties of this host, and what this process may do on it.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use rustix::thread::{CapabilitySet, capabilities};
use rustix::time::{ClockId, clock_gettime};

use crate::Refusal;

/// The oldest kernel that works. Batches, atomics that return a value, `bpf_for_each_map_elem` and `bpf_redirect_peer` together need 5.12,
/// and 5.15 is the next release that is still maintained. `cargo xtask test kernels` tests from 6.1 on.
const RELEASE_MIN: (u32, u32) = (5, 15);

/// The lowest port that full_nat uses: lower ports belong to services.
const PORT_MIN: u16 = 1024;

/// Any port: finding a route sends nothing.
const PORT_ANY: u16 = 9;

/// Refuses a kernel that is too old, and a process without the required capabilities.
pub(crate) fn check() -> Result<(), Refusal> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if parse_release(&release).is_some_and(|release| release < RELEASE_MIN) {
        return Err(Refusal::KernelTooOld(release.trim().to_owned()));
    }
    // If the capabilities cannot be read, the calls themselves will fail.
    let have = capabilities(None).map_or(CapabilitySet::all(), |sets| sets.effective);
    let missing = missing(have);
    if missing.is_empty() { Ok(()) } else { Err(Refusal::NotPermitted(missing)) }
}

fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

fn missing(have: CapabilitySet) -> Vec<&'static str> {
    let needed = [
        (CapabilitySet::BPF, "CAP_BPF"),
        (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
        // For programs that read packets at computed offsets: without it, the verifier suspects a speculative execution attack.
        (CapabilitySet::PERFMON, "CAP_PERFMON"),
    ];
    // Before 5.8 it covered all of these, and it still stands for the first and the last.
    let all = have.contains(CapabilitySet::SYS_ADMIN);
    let lacks = |needed: &CapabilitySet| !have.contains(*needed) && (!all || *needed == CapabilitySet::NET_ADMIN);
    needed.iter().filter(|(needed, _)| lacks(needed)).map(|(_, name)| *name).collect()
}

/// Seconds of the clock that stamps flows (`bpf_ktime_get_coarse_ns`).
pub(crate) fn now_s() -> u32 {
    clock_gettime(ClockId::MonotonicCoarse).tv_sec as u32
}

/// A number of this network namespace that no other namespace gets until the host restarts, unlike inode numbers, which are reused
/// (SO_NETNS_COOKIE, 5.14).
pub(crate) fn netns_cookie() -> io::Result<u64> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let mut cookie = 0_u64;
    let mut size = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes to `cookie`, which is that large; the socket is open.
    let result = unsafe {
        let room = std::ptr::from_mut(&mut cookie).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, room, &raw mut size)
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// The source address that this host would use to reach the endpoint.
pub(crate) fn source_towards(endpoint: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if endpoint.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    let port = if endpoint.port() == 0 { PORT_ANY } else { endpoint.port() };
    socket.connect((endpoint.ip(), port))?;
    Ok(socket.local_addr()?.ip())
}

/// Ports that the kernel does not assign to this host's own sockets, so that a flow and a health probe never have the same tuple.
pub(crate) fn free_ports() -> (u16, u16) {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    beside(&range)
}

/// `range` is as in ip(7), by default `32768 60999`.
fn beside(range: &str) -> (u16, u16) {
    let mut parts = range.split_whitespace().map(str::parse::<u16>);
    let (Some(Ok(first)), Some(Ok(last))) = (parts.next(), parts.next()) else { return (PORT_MIN, 32_767) };
    if first > PORT_MIN {
        return (PORT_MIN, first - 1);
    }
    // An operator may have given all ports to sockets. Then they are shared, and a flow whose tuple is taken tries another port.
    if last < u16::MAX { (last + 1, u16::MAX) } else { (PORT_MIN, u16::MAX) }
}

/// How strictly the kernel applies reverse path filtering to packets from the interface: 0 off, 1 strict, 2 loose (ip-sysctl: the larger
/// value counts).
pub(crate) fn rp_filter(interface: &str) -> u8 {
    let read =
        |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter")).ok()?.trim().parse().ok();
    read("all").unwrap_or(0).max(read(interface).unwrap_or(0))
}

/// Whether packets from the interface are forwarded at all. Otherwise the kernel answers no route lookups for them.
pub(crate) fn forwards(interface: &str, ipv6: bool) -> bool {
    let family = if ipv6 { "ipv6" } else { "ipv4" };
    // An unreadable value counts as yes, because the answer only decides about a warning.
    fs::read_to_string(format!("/proc/sys/net/{family}/conf/{interface}/forwarding"))
        .map_or(true, |set| set.trim() != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        let check = |release: &str, expect: Option<(u32, u32)>| assert_eq!(parse_release(release), expect, "{release}");
        check("6.18.44-fc-v445\n", Some((6, 18)));
        check("5.15.0-1051-aws", Some((5, 15)));
        check("5.4.0", Some((5, 4)));
        check("", None);
        check("six", None);
        assert!((5, 4) < RELEASE_MIN && (5, 15) >= RELEASE_MIN && (6, 1) >= RELEASE_MIN);
    }

    #[test]
    fn capabilities_that_are_missing() {
        let check = |have: CapabilitySet, expect: &[&str]| assert_eq!(missing(have), expect, "{have:?}");
        check(CapabilitySet::all(), &[]);
        check(CapabilitySet::empty(), &["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"]);
        check(CapabilitySet::SYS_ADMIN, &["CAP_NET_ADMIN"]);
        check(CapabilitySet::BPF | CapabilitySet::PERFMON, &["CAP_NET_ADMIN"]);
        check(CapabilitySet::BPF | CapabilitySet::NET_ADMIN | CapabilitySet::PERFMON, &[]);
    }

    #[test]
    fn ports_beside_those_of_sockets() {
        let check = |range: &str, expect: (u16, u16)| assert_eq!(beside(range), expect, "{range}");
        check("32768\t60999\n", (1024, 32_767));
        check("10000 65535", (1024, 9_999));
        check("1024 65000", (65_001, 65_535));
        check("1024 65535", (1024, 65_535));
        check("", (1024, 32_767));
    }

    #[test]
    fn the_namespace_has_a_number() {
        assert!(netns_cookie().unwrap() > 0);
    }

    #[test]
    fn the_source_towards_ourselves_is_ourselves() {
        assert_eq!(source_towards("127.0.0.1:0".parse().unwrap()).unwrap(), IpAddr::from([127, 0, 0, 1]));
    }
}
