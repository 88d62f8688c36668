//! Connects, from an address of one's choice.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::{TcpSocket, TcpStream};

/// A connection to `address`, from `source` if there is one.
///
/// More source addresses are how a load makes more connections a second than one address has ports for: of 28,232 ports, each rests for
/// 60 s in TIME_WAIT after its connection.
pub(super) async fn dial(address: SocketAddr, source: Option<IpAddr>) -> io::Result<TcpStream> {
    let Some(source) = source else { return TcpStream::connect(address).await };
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Without it, a port that has any connection in TIME_WAIT could not be bound.
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::new(source, 0))?;
    socket.connect(address).await
}
