//! Connections to the balancer.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};

use crate::{Conn, Failure, PATIENCE};

/// Connects, from `source` if it is given. On Linux it can be any address of 127.0.0.0/8.
pub fn connect(name: &str, to: SocketAddr, source: Option<IpAddr>) -> Result<Conn, Failure> {
    let open = || -> std::io::Result<TcpStream> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        if let Some(source) = source {
            socket.bind(&SocketAddr::new(source, 0).into())?;
        }
        socket.connect_timeout(&to.into(), PATIENCE)?;
        Ok(socket.into())
    };
    match open() {
        Ok(stream) => Conn::new(name, stream),
        // The handshake had completed and the RST arrived before we looked: a refused connection would have failed with
        // another error.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(Conn::reset_at_once(name)),
        Err(error) => Err(Failure::of(name, format_args!("cannot connect to {to}: {error}"))),
    }
}
