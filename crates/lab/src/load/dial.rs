//! Opens TCP connections, from a given source address if there is one.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::{TcpSocket, TcpStream};

/// Connects to `address`, from `source` if there is one.
///
/// One source address limits the rate of new connections: it has 28,232 ports by default, and each stays in TIME_WAIT for 60 s after its
/// connection. Several source addresses allow a higher rate.
pub(super) async fn dial(address: SocketAddr, source: Option<IpAddr>) -> io::Result<TcpStream> {
    let Some(source) = source else { return TcpStream::connect(address).await };
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Allows `bind` to choose a port that has connections in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::new(source, 0))?;
    socket.connect(address).await
}
