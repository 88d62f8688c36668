//! Ends sockets of this host that are connected to dead endpoints (SOCK_DESTROY, sock_diag(7)): their processes get ECONNABORTED at once,
//! instead of waiting for an endpoint that will never answer.
//!
//! The kernel finds a socket by its addresses and ports, in the network namespace of the request, and compares its cookie. `lb_sockets` has
//! the cookie, the namespace and the endpoint; a dump of the namespace's sockets has the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use libbpf_rs::MapHandle;
use netlink_sys::{Socket, SocketAddr};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::abi::{address_of, lb_socket};
use crate::host;
use crate::plan::{TCP, UDP};
use crate::sync::entries;

/// The most sockets that are ended at once. Others wait for the next collection.
const ENDS_MAX: usize = 1024;
/// The most network namespaces that are entered at once to find sockets.
const NAMESPACES_MAX: usize = 4096;
/// Datagrams of a dump. Each holds some hundreds of sockets. Sockets after these are found when others have ended.
const DATAGRAMS_MAX: usize = 4096;

/// `<linux/netlink.h>`, `<linux/sock_diag.h>` and `<linux/inet_diag.h>`.
const NETLINK_SOCK_DIAG: isize = 4;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const REQUEST_ACK: u16 = 0x5;
const REQUEST_DUMP: u16 = 0x301;
/// `struct nlmsghdr`, and the addresses, interface and cookie of a socket (`struct inet_diag_sockid`).
const HEADER_BYTES: usize = 16;
const SOCKET_ID_BYTES: usize = 48;
/// All states of a connection except TIME_WAIT and LISTEN, which have no process that waits.
const CONNECTED: u32 = 0xfff & !(1 << 6 | 1 << 10);

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// The sockets that were ended, by their cookies.
    pub(crate) sockets: BTreeMap<u64, lb_socket>,
    /// Why others could not be.
    pub(crate) why_not: Option<String>,
    /// The last cookie, if there are more sockets than were tried; the next call should begin after it.
    pub(crate) last: Option<u64>,
}

/// Ends sockets of these endpoints, at most [`ENDS_MAX`], beginning with the first cookie that is larger than `after`. It needs a thread of
/// its own, because it enters the sockets' namespaces and does not come back.
pub(crate) fn end_of_endpoints(map: &MapHandle, dead: &BTreeSet<u32>, after: u64) -> Ended {
    let (mut chosen, mut is_cut) = (BTreeMap::new(), false);
    for entry in entries::<u64, lb_socket>(map) {
        let (cookie, socket) = match entry {
            Ok(entry) => entry,
            Err(refusal) => return Ended { why_not: Some(refusal.to_string()), ..Ended::default() },
        };
        if dead.contains(&socket.endpoint) && socket.left == 0 {
            chosen.insert((cookie <= after, cookie), socket);
        }
        if chosen.len() > ENDS_MAX {
            chosen.pop_last();
            is_cut = true;
        }
    }
    // Those that were already tried belong to the next round.
    let is_round_over = !is_cut || chosen.keys().any(|(is_next_round, _)| *is_next_round);
    let last = chosen.last_key_value().map(|((_, cookie), _)| *cookie).filter(|_| !is_round_over);
    let sockets = chosen.into_iter().map(|((_, cookie), socket)| (cookie, socket)).collect();
    Ended { last, ..end(&sockets) }
}

fn end(sockets: &BTreeMap<u64, lb_socket>) -> Ended {
    let mut ended = Ended::default();
    let mut namespaces: BTreeSet<u64> = sockets.values().map(|socket| socket.netns).collect();
    match host::netns_cookie() {
        Ok(here) if namespaces.remove(&here) => end_in(here, sockets, &mut ended),
        _ => {}
    }
    if namespaces.is_empty() {
        return ended;
    }
    // The kernel gives no namespace by its cookie, so those of all processes are tried.
    let (mut tried, mut hidden) = (BTreeSet::new(), false);
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process =
        |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit);
    for path in processes.filter(is_process).map(|entry| entry.path().join("ns/net")) {
        if namespaces.is_empty() || tried.len() == NAMESPACES_MAX {
            break;
        }
        // A process may end at any time, and another one may be in its namespace.
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) => {
                hidden |= error.kind() == io::ErrorKind::PermissionDenied;
                continue;
            }
        };
        if !file.metadata().is_ok_and(|found| tried.insert(found.ino())) {
            continue;
        }
        let moved = move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).map_err(io::Error::from);
        match moved.and_then(|()| host::netns_cookie()) {
            Ok(cookie) if namespaces.remove(&cookie) => end_in(cookie, sockets, &mut ended),
            Ok(_) => {}
            Err(error) => {
                ended.why_not.get_or_insert_with(|| {
                    format!("this process may not enter other network namespaces ({error}): it needs CAP_SYS_ADMIN")
                });
            }
        }
    }
    if !namespaces.is_empty() {
        ended.why_not.get_or_insert_with(|| {
            let why = if hidden {
                "this process may not see the network namespaces of others: it needs CAP_SYS_PTRACE"
            } else if tried.len() == NAMESPACES_MAX {
                "this host has too many network namespaces to try them all"
            } else {
                "no process that is visible here is in the network namespace of some sockets: in a container, Steelyard needs `hostPID`"
            };
            why.to_owned()
        });
    }
    ended
}

/// Ends those of this thread's namespace, whose cookie is `netns`.
fn end_in(netns: u64, sockets: &BTreeMap<u64, lb_socket>, ended: &mut Ended) {
    // An IPv6 socket may be connected to an IPv4 address.
    for (proto, family) in [TCP, UDP].into_iter().flat_map(|proto| [(proto, libc::AF_INET), (proto, libc::AF_INET6)]) {
        let here = sockets.iter().filter(|(_, socket)| {
            let may_be = family == libc::AF_INET6 || address_of(socket.addr).is_ipv4();
            socket.netns == netns && socket.proto == proto && may_be
        });
        let here = here.map(|(cookie, socket)| (*cookie, *socket)).collect();
        if let Err(error) = end_of(family as u8, proto, &here, ended) {
            ended.why_not.get_or_insert_with(|| reason(&error, proto));
        }
    }
}

fn reason(error: &io::Error, proto: u8) -> String {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => "this kernel was built without CONFIG_INET_DIAG_DESTROY".to_owned(),
        Some(libc::ENOENT | libc::EINVAL) => {
            let module = if proto == TCP { "tcp_diag" } else { "udp_diag" };
            format!("this kernel lists no such sockets ({error}): load the module {module}")
        }
        Some(libc::EPERM | libc::EACCES) => {
            format!("this process may not end sockets of others ({error}): it needs CAP_NET_ADMIN there")
        }
        _ => format!("the kernel refuses: {error}"),
    }
}

fn end_of(family: u8, proto: u8, sockets: &BTreeMap<u64, lb_socket>, ended: &mut Ended) -> io::Result<()> {
    if sockets.is_empty() {
        return Ok(());
    }
    let mut failed = None;
    for (cookie, id) in find(family, proto, sockets)? {
        match destroy(family, proto, &id) {
            Ok(()) => ended.sockets.extend(sockets.get(&cookie).map(|socket| (cookie, *socket))),
            // It has just ended by itself.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Those of these sockets that are connected to the endpoints that their entries name, and their identities for the kernel. One dump serves
/// all ports: it reads the kernel's whole table of connections in any case.
fn find(family: u8, proto: u8, sockets: &BTreeMap<u64, lb_socket>) -> io::Result<BTreeMap<u64, [u8; SOCKET_ID_BYTES]>> {
    let mut id = [0; SOCKET_ID_BYTES];
    let ports: BTreeSet<u16> = sockets.values().map(|socket| socket.port).collect();
    // In network byte order already. Zero: all ports.
    let port = ports.first().filter(|_| ports.len() == 1).copied().unwrap_or(0);
    id[2..4].copy_from_slice(&port.to_ne_bytes());
    let socket = ask(SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, family, proto, &id)?;
    let mut found = BTreeMap::new();
    for _ in 0..DATAGRAMS_MAX {
        let (datagram, _) = socket.recv_from_full()?;
        for (kind, content) in messages(&datagram) {
            match kind {
                NLMSG_DONE => return Ok(found),
                NLMSG_ERROR => return Err(error_of(content)),
                // `struct inet_diag_msg`: family, state, timer and retransmissions come first.
                SOCK_DIAG_BY_FAMILY => {
                    let id: Option<[u8; SOCKET_ID_BYTES]> =
                        content.get(4..4 + SOCKET_ID_BYTES).and_then(|id| id.try_into().ok());
                    let ours = id.map(|id| (cookie_of(&id), id)).filter(|(cookie, id)| {
                        sockets.get(cookie).is_some_and(|socket| is_connected_to(family, id, socket))
                    });
                    found.extend(ours);
                }
                _ => {}
            }
        }
    }
    Ok(found)
}

/// Whether it is connected to the endpoint of this entry. A UDP socket that failed to connect to another vip is still connected to the
/// endpoint of the first.
fn is_connected_to(family: u8, id: &[u8; SOCKET_ID_BYTES], socket: &lb_socket) -> bool {
    let address = socket.addr.map(u32::to_ne_bytes).concat();
    let there: &[u8] = if i32::from(family) == libc::AF_INET { &id[20..24] } else { &id[20..36] };
    id[2..4] == socket.port.to_ne_bytes() && address.ends_with(there)
}

fn destroy(family: u8, proto: u8, id: &[u8; SOCKET_ID_BYTES]) -> io::Result<()> {
    let socket = ask(SOCK_DESTROY, REQUEST_ACK, family, proto, id)?;
    let (datagram, _) = socket.recv_from_full()?;
    match messages(&datagram).next() {
        // An error of zero is an acknowledgement.
        Some((NLMSG_ERROR, [0, 0, 0, 0, ..])) => Ok(()),
        Some((NLMSG_ERROR, content)) => Err(error_of(content)),
        _ => Err(io::Error::other("the answer is to another request")),
    }
}

/// Sends `struct inet_diag_req_v2` on a socket of its own, which may be closed before the answer is complete.
fn ask(kind: u16, flags: u16, family: u8, proto: u8, id: &[u8; SOCKET_ID_BYTES]) -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut request = Vec::with_capacity(HEADER_BYTES + 8 + SOCKET_ID_BYTES);
    request.extend((HEADER_BYTES as u32 + 8 + SOCKET_ID_BYTES as u32).to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    request.extend([0; 8]);
    request.extend([family, proto, 0, 0]);
    request.extend(CONNECTED.to_ne_bytes());
    request.extend(id);
    socket.send(&request, 0)?;
    Ok(socket)
}

/// The last field of `struct inet_diag_sockid`.
fn cookie_of(id: &[u8; SOCKET_ID_BYTES]) -> u64 {
    let word = |at: usize| id.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_ne_bytes);
    u64::from(word(40)) | u64::from(word(44)) << 32
}

/// The types and contents of the messages of a datagram.
fn messages(datagram: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?) as usize;
        let kind = u16::from_ne_bytes(rest.get(4..6)?.try_into().ok()?);
        let content = rest.get(HEADER_BYTES..length)?;
        // Messages begin at multiples of four (netlink(7)).
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, content))
    })
}

fn error_of(content: &[u8]) -> io::Error {
    let number = content.get(..4).and_then(|word| word.try_into().ok()).map_or(0, i32::from_ne_bytes);
    io::Error::from_raw_os_error(-number)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;

    use super::*;

    fn cookie(socket: &impl AsRawFd) -> u64 {
        let mut cookie = 0_u64;
        let mut size = 8;
        // SAFETY: the kernel writes at most `size` bytes to `cookie`, which is that large; the socket is open.
        let result = unsafe {
            let room = std::ptr::from_mut(&mut cookie).cast();
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE, room, &raw mut size)
        };
        assert_eq!(result, 0);
        cookie
    }

    /// As root only, like the tests of the plane.
    #[test]
    fn the_named_sockets_end_and_no_others() {
        use std::io::Write;
        if !rustix::process::geteuid().is_root() {
            _ = writeln!(std::io::stderr(), "SKIP the_named_sockets_end_and_no_others: it needs root");
            return;
        }
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let datagrams = UdpSocket::bind(address).unwrap();
            let to = listener.local_addr().unwrap();
            let streams = [TcpStream::connect(to).unwrap(), TcpStream::connect(to).unwrap()];
            let socket = UdpSocket::bind(address).unwrap();
            let udp_to = datagrams.local_addr().unwrap();
            socket.connect(udp_to).unwrap();
            let entry = |proto: u8, to: std::net::SocketAddr| lb_socket {
                addr: crate::abi::words_of(to.ip()),
                netns: host::netns_cookie().unwrap(),
                port: to.port().to_be(),
                proto,
                ..lb_socket::default()
            };
            let [tcp, udp] = [cookie(&streams[0]), cookie(&socket)];
            let ended = end_apart(&[(tcp, entry(TCP, to)), (udp, entry(UDP, udp_to))].into());
            assert_eq!(
                (ended.sockets.into_keys().collect::<BTreeSet<_>>(), ended.why_not),
                ([tcp, udp].into(), None),
                "{address}"
            );
            let error = (&streams[0]).read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted, "{address}");
            assert_eq!(socket.recv(&mut [0]).unwrap_err().kind(), io::ErrorKind::ConnectionAborted, "{address}");
            assert!(socket.peer_addr().is_err(), "{address}");
            streams[1].set_nonblocking(true).unwrap();
            assert_eq!((&streams[1]).read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock, "{address}");
        }
    }

    /// The entry is of an endpoint that the socket failed to reach, so it is still connected to another one.
    #[test]
    fn a_socket_at_another_endpoint_stays() {
        use std::io::Write;
        if !rustix::process::geteuid().is_root() {
            _ = writeln!(std::io::stderr(), "SKIP a_socket_at_another_endpoint_stays: it needs root");
            return;
        }
        for (address, dead) in [("127.0.0.1:0", "127.0.0.2"), ("[::1]:0", "fd00::2"), ("[::1]:0", "127.0.0.1")] {
            let echo = UdpSocket::bind(address).unwrap();
            let to = echo.local_addr().unwrap();
            let socket = UdpSocket::bind(address).unwrap();
            socket.connect(to).unwrap();
            let entry = lb_socket {
                addr: crate::abi::words_of(dead.parse().unwrap()),
                netns: host::netns_cookie().unwrap(),
                port: to.port().to_be(),
                proto: UDP,
                ..lb_socket::default()
            };
            let ended = end_apart(&[(cookie(&socket), entry)].into());
            assert_eq!((ended.sockets.len(), ended.why_not), (0, None), "{dead}");
            assert_eq!(socket.peer_addr().unwrap(), to);
        }
    }

    fn end_apart(sockets: &BTreeMap<u64, lb_socket>) -> Ended {
        std::thread::scope(|scope| scope.spawn(|| end(sockets)).join().unwrap())
    }

    #[test]
    fn what_is_no_message_is_none() {
        assert_eq!(messages(&[]).count(), 0);
        assert_eq!(messages(&[255; 15]).count(), 0);
        assert_eq!(messages(&[0; 64]).count(), 0);
    }
}
