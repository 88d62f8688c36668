//! Socket options and socket state that a balancer needs.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpSocket, TcpStream};

/// Connections that the kernel completes before they are accepted. The kernel lowers this to net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// Without keep-alive, a silent connection to an endpoint that lost its power stays open for ever.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Opens a non-blocking listening socket. The same user may open several on one address: the kernel spreads connections over them
/// (SO_REUSEPORT, Linux 3.9), which gives each worker its own queue.
///
/// `[::]` accepts IPv4 as well; on a host without IPv6 it becomes `0.0.0.0`.
///
/// # Errors
/// Those of socket(2), bind(2) and listen(2): the address is in use, is not an address of this host, or needs a privilege.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match open_listener(address) {
        Err(error) if address.ip().is_unspecified() && address.is_ipv6() && lacks_ipv6(&error) => {
            open_listener(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port()))
        }
        outcome => outcome,
    }
}

fn lacks_ipv6(error: &io::Error) -> bool {
    let lacks = [rustix::io::Errno::AFNOSUPPORT, rustix::io::Errno::ADDRNOTAVAIL];
    lacks.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn open_listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    tune(&socket);
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Checks that nothing listens on `address`. [`listen`] alone does not find that out: another process of the same user that shares its
/// ports, such as another Steelyard, would silently get half of the connections.
///
/// # Errors
/// Those of [`listen`].
pub fn check_unused(address: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    // Ignore connections that an earlier process left behind.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())
}

/// A message for an operator whose listener could not be opened: where, why, and what to do about it.
pub fn cannot_listen(address: SocketAddr, error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => "; another process has this port (ss -ltnp shows which)",
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need CAP_NET_BIND_SERVICE, or a socket from the service manager"
        }
        io::ErrorKind::AddrNotAvailable => "; no interface of this host has this address (ip addr)",
        _ => "",
    };
    format!("cannot listen on {address}: {error}{hint}")
}

/// Opens a connection to an endpoint.
///
/// # Errors
/// Those of socket(2) and connect(2).
pub async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    tune(&stream);
    Ok(stream)
}

/// As [`connect`], from this address of this host.
///
/// # Errors
/// Those of socket(2), bind(2) and connect(2).
pub async fn connect_from(source: IpAddr, address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    choose_port_late(&socket);
    socket.bind(SocketAddr::new(source, 0))?;
    let stream = socket.connect(address).await?;
    tune(&stream);
    Ok(stream)
}

/// Makes connect(2) choose the port instead of bind(2), which takes each port once whatever the destination is, and so runs out of ports
/// early. It is no reason to refuse a connection if the kernel does not know this (before Linux 4.2).
fn choose_port_late(socket: &TcpSocket) {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is borrowed from `socket` and open, and the kernel reads an int at `on`. The option of IP holds for IPv6, too.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
}

/// Whether an address is one of this network namespace. This is three system calls.
pub fn is_own(address: IpAddr) -> bool {
    std::net::UdpSocket::bind(SocketAddr::new(address, 0)).is_ok()
}

/// Where an accepted connection was going before the kernel redirected it here (SO_ORIGINAL_DST); its own address if it was not redirected
/// and the kernel tracks connections; `None` if the kernel does not know.
pub fn original_destination(stream: &TcpStream) -> Option<SocketAddr> {
    let socket = SockRef::from(stream);
    // An IPv4 connection of a dual-stack socket answers to the option of IPv4 alone.
    let is_ipv4 = stream.local_addr().ok()?.ip().to_canonical().is_ipv4();
    let found = if is_ipv4 { socket.original_dst_v4() } else { socket.original_dst_v6() };
    found.ok()?.as_socket()
}

/// Sets the options that both sides want: no waiting for more bytes (a relay that waits for an acknowledgement adds 40 ms), and keep-alive,
/// which ends connections whose other end is gone. A failure to set them is no reason to refuse a connection.
///
/// Accepted connections inherit them from the listening socket, which saves four system calls per connection.
pub fn tune(socket: &impl AsFd) {
    let socket = SockRef::from(socket);
    let _ = socket.set_tcp_nodelay(true);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_INTERVAL);
    let _ = socket.set_tcp_keepalive(&keepalive);
}

/// What the kernel knows about the bytes that were sent over a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that the other end has acknowledged since the connection began (RFC 4898 tcpEStatsAppHCThruOctetsAcked).
    pub acked: u64,
    /// Some of the sent bytes are not acknowledged. A FIN acknowledges everything that its sender had received, so this says what the other
    /// end had when it ended the connection. An RST says nothing: Linux does not process the acknowledgement that it carries.
    pub has_unacked: bool,
    /// The shortest recent round trip on this connection, in microseconds. The smoothed one would include the time that the other end takes
    /// to answer, since its acknowledgements leave with its answers.
    pub round_trip_us: u64,
}

/// The progress of the bytes sent over `stream`, also after it has ended; `None` if the kernel does not report it (before Linux 4.19).
pub fn progress(stream: &TcpStream) -> Option<Progress> {
    // Offsets in struct tcp_info of linux/tcp.h; the struct only grows at its end.
    const BYTES_ACKED: usize = 120;
    const MIN_RTT: usize = 148;
    const BYTES_SENT: usize = 200;
    const BYTES_RETRANS: usize = 208;
    let info = tcp_info::<{ BYTES_RETRANS + 8 }>(stream)?;
    let long = |at: usize| Some(u64::from_ne_bytes(info.get(at..at + 8)?.try_into().ok()?));
    let acked = long(BYTES_ACKED)?;
    // Both include retransmissions. The SYN counts as one byte acknowledged and none sent, so one byte of data may go unnoticed.
    let sent = long(BYTES_SENT)?.saturating_sub(long(BYTES_RETRANS)?);
    let round_trip_us = u32::from_ne_bytes(info.get(MIN_RTT..MIN_RTT + 4)?.try_into().ok()?).into();
    Some(Progress { acked, has_unacked: sent > acked, round_trip_us })
}

/// The first `BYTES` bytes of struct tcp_info; `None` if the kernel's struct is shorter.
fn tcp_info<const BYTES: usize>(stream: &TcpStream) -> Option<[u8; BYTES]> {
    let mut info = [0_u8; BYTES];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the descriptor is borrowed from `stream` and open. The kernel writes at most `length` bytes to `info`, and returns how many.
    let outcome = unsafe {
        let (info, length) = (info.as_mut_ptr().cast(), &raw mut length);
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info, length)
    };
    (outcome == 0 && length as usize == BYTES).then_some(info)
}

/// What the kernel has for the reader of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing.
    Silent,
    /// Bytes, which stay in the socket.
    Bytes,
    /// The end of the stream, or a failure.
    Ended,
}

/// Asks the kernel, which costs a system call. So it also sees what came since the runtime last polled.
pub fn look(stream: &TcpStream) -> Look {
    use rustix::net::RecvFlags;
    let mut byte = [0_u8; 1];
    match rustix::net::recv(stream, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((count, _)) if count > 0 => Look::Bytes,
        Err(rustix::io::Errno::AGAIN) => Look::Silent,
        _ => Look::Ended,
    }
}

/// Whether the other end has ended or reset the connection, even if unread bytes are still before the end. This is a system call.
pub fn has_ended(stream: &TcpStream) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut asked = [PollFd::new(stream, PollFlags::RDHUP)];
    // poll(2) reports errors in any case.
    poll(&mut asked, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Bytes that have arrived on `stream` and were not read, as far as the kernel says. This is a system call.
pub fn unread_bytes(stream: &TcpStream) -> Option<u64> {
    rustix::io::ioctl_fionread(stream).ok()
}

/// Bytes that the send buffer of `stream` can take now without waiting; `None` if the kernel does not report it (before Linux 4.12). The
/// queued bytes include the kernel's own overhead, so the result is rather too small.
pub fn send_room(stream: &TcpStream) -> Option<usize> {
    // Up to SK_MEMINFO_WMEM_QUEUED of linux/sock_diag.h; SK_MEMINFO_SNDBUF is the fourth.
    let mut info = [0_u32; 6];
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the descriptor is borrowed from `stream` and open. The kernel writes at most `length` bytes to `info`, and returns how many.
    let outcome = unsafe {
        let (info, length) = (info.as_mut_ptr().cast(), &raw mut length);
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, info, length)
    };
    let is_told = outcome == 0 && length as usize == size_of_val(&info);
    let [_, _, _, room, _, queued] = info;
    is_told.then(|| room.saturating_sub(queued) as usize)
}

/// Makes the close of `stream` send RST instead of FIN, so that the other end learns that its data is incomplete.
pub fn reset_on_close(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A connection on which each side has sent something, so that both will delay their acknowledgements.
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut near = connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut far, _) = tokio::net::TcpListener::from_std(listener).unwrap().accept().await.unwrap();
        near.write_all(b"hello").await.unwrap();
        far.read_exact(&mut [0; 5]).await.unwrap();
        far.write_all(b"!").await.unwrap();
        near.read_u8().await.unwrap();
        (near, far)
    }

    #[tokio::test]
    async fn an_answer_acknowledges_what_was_heard() {
        let (mut near, mut far) = pair().await;
        let before = progress(&near).unwrap();
        assert!(!before.has_unacked);
        near.write_all(b"hello").await.unwrap();
        far.write_all(b"!").await.unwrap();
        near.read_u8().await.unwrap();
        let after = progress(&near).unwrap();
        assert_eq!((after.acked - before.acked, after.has_unacked), (5, false));
        // The field tcpi_rtt is an average of the same measurements, so the shortest is at most as long.
        let info = tcp_info::<72>(&near).unwrap();
        let smoothed_us = u64::from(u32::from_ne_bytes(info[68..].try_into().unwrap()));
        assert!((1..=smoothed_us).contains(&after.round_trip_us), "{after:?}, {smoothed_us}");
    }

    /// The only case in which the other end cannot have had the bytes: its FIN came first.
    #[tokio::test]
    async fn a_fin_tells_what_was_not_heard() {
        let (mut near, far) = pair().await;
        let before = progress(&near).unwrap();
        drop(far);
        near.write_all(b"hello").await.unwrap();
        // The read returns the FIN, although an RST answered the bytes written after it.
        assert_eq!(near.read(&mut [0; 9]).await.unwrap(), 0);
        let after = progress(&near).unwrap();
        assert_eq!((after.acked, after.has_unacked), (before.acked, true));
    }

    #[tokio::test]
    async fn a_fin_tells_what_was_heard() {
        let (mut near, mut far) = pair().await;
        let before = progress(&near).unwrap();
        near.write_all(b"hello").await.unwrap();
        far.read_exact(&mut [0; 5]).await.unwrap();
        drop(far);
        assert_eq!(near.read(&mut [0; 9]).await.unwrap(), 0);
        let after = progress(&near).unwrap();
        assert_eq!((after.acked - before.acked, after.has_unacked), (5, false));
    }

    /// The other end read everything, and nothing is acknowledged.
    #[tokio::test]
    async fn a_reset_tells_nothing() {
        let (mut near, mut far) = pair().await;
        let before = progress(&near).unwrap();
        near.write_all(b"hello").await.unwrap();
        far.read_exact(&mut [0; 5]).await.unwrap();
        reset_on_close(&far);
        drop(far);
        assert_eq!(near.read(&mut [0; 9]).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        let after = progress(&near).unwrap();
        assert_eq!((after.acked, after.has_unacked), (before.acked, true));
    }

    #[tokio::test]
    async fn what_is_accepted_is_tuned() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let _near = connect(listener.local_addr().unwrap()).await.unwrap();
        let (far, _) = tokio::net::TcpListener::from_std(listener).unwrap().accept().await.unwrap();
        let far = SockRef::from(&far);
        assert!(far.tcp_nodelay().unwrap() && far.keepalive().unwrap());
        assert_eq!(far.tcp_keepalive_time().unwrap(), KEEPALIVE_AFTER);
        assert_eq!(far.tcp_keepalive_interval().unwrap(), KEEPALIVE_INTERVAL);
    }

    #[tokio::test]
    async fn the_kernel_tells_what_has_come_and_what_can_go() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let stream = connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut far, _) = tokio::net::TcpListener::from_std(listener).unwrap().accept().await.unwrap();
        assert_eq!(look(&stream), Look::Silent);
        far.write_all(b"hello").await.unwrap();
        assert_eq!((look(&stream), look(&stream)), (Look::Bytes, Look::Bytes));
        let before = send_room(&stream).unwrap();
        assert!(before > 0);
        // The other end reads nothing, so this ends when there is no room.
        while stream.try_write(&[0; 65_536]).is_ok() {}
        assert!(send_room(&stream).unwrap() < before.min(65_536), "{before}");
        let mut hello = [0; 5];
        let mut stream = stream;
        stream.read_exact(&mut hello).await.unwrap();
        drop(far);
        stream.readable().await.unwrap();
        assert_eq!(look(&stream), Look::Ended);
    }

    #[tokio::test]
    async fn two_listeners_share_a_port_and_any_address_takes_ipv4() {
        let first = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.local_addr().unwrap();
        let second = listen(address).unwrap();
        assert_eq!(second.local_addr().unwrap(), address);
        assert_eq!(check_unused(address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop((first, second));
        check_unused(address).unwrap();

        let any = listen("[::]:0".parse().unwrap()).unwrap();
        let port = any.local_addr().unwrap().port();
        connect(SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap();
    }
}
