//! Sockets as a balancer wants them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::TcpStream;

/// Connections that the kernel completes before they are accepted; the kernel lowers it to net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// Without this, an endpoint that lost its power keeps a silent connection open for ever.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// A listening socket, not blocking. Several may be opened on one address by the same user: the kernel spreads connections over
/// them (SO_REUSEPORT, Linux 3.9), which gives each worker its own queue.
///
/// `[::]` accepts IPv4 as well; where the host has no IPv6 it becomes `0.0.0.0`.
///
/// # Errors
/// Those of socket(2), bind(2) and listen(2): the address is in use by another, is not of this host, or needs a privilege.
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
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Whether nobody listens on `address`. [`listen`] alone would not tell: another process of the same user that shares its ports, another
/// Steelyard above all, would get half of the connections, and nobody would know why.
///
/// # Errors
/// As [`listen`].
pub fn check_unused(address: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    // Connections that a former process left behind are no listeners.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())
}

/// What to tell an operator whose listener could not be opened: where, why, and what to do about it.
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

/// What both sides want: no waiting for more bytes (a relay that waits for an acknowledgement adds 40 ms), and an end to
/// connections whose other end is gone. Failing to set them is no reason to refuse a connection.
pub fn tune(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_INTERVAL);
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
}

/// How many bytes the other end has acknowledged since the connection began (RFC 4898 tcpEStatsAppHCThruOctetsAcked, Linux 4.1); `None`
/// where the kernel does not tell.
pub fn bytes_acked(stream: &TcpStream) -> Option<u64> {
    /// Where struct tcp_info of linux/tcp.h has `tcpi_bytes_acked`; the struct only ever grows at its end.
    const OFFSET: usize = 120;
    let mut info = [0_u8; OFFSET + 8];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the descriptor is borrowed from `stream` and open; the kernel writes at most `length` bytes to `info`, and says how many.
    let outcome = unsafe {
        let (info, length) = (info.as_mut_ptr().cast(), &raw mut length);
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info, length)
    };
    let acked = info.get(OFFSET..).filter(|_| outcome == 0 && length as usize == info.len())?;
    acked.try_into().ok().map(u64::from_ne_bytes)
}

/// Lets closing `stream` send RST instead of FIN: the other end learns that what it got is not all there was to get.
pub fn reset_on_close(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn what_was_heard_is_acknowledged() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut stream = connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut far, _) = tokio::net::TcpListener::from_std(listener).unwrap().accept().await.unwrap();
        let before = bytes_acked(&stream).unwrap();
        stream.write_all(b"hello").await.unwrap();
        far.write_all(b"!").await.unwrap();
        stream.read_u8().await.unwrap();
        assert_eq!(bytes_acked(&stream).unwrap() - before, 5);
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
