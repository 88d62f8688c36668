//! Has the clients of dead endpoints, and both sides of connections that were idle for too long, show themselves, so that their connections can be reset.
//!
//! The entry program answers a packet of such a connection by a reset, whose sequence number it takes from that packet. Whoever waits for the other side
//! sends none. So it is sent a bare ACK whose sequence number is out of its window: it must answer by an ACK that says what it expects (RFC 9293
//! section 3.10.7.4, first step), and that one meets the program.

use std::io;
use std::net::SocketAddr;

use model::Transport;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::frame;

/// In one collection. More wait for the next.
pub(crate) const PRODDED_MAX: usize = 1024;
/// Seconds of silence. A client that speaks is reset without our help.
pub(crate) const SILENT_S: i32 = 2;
/// Header included (raw(7)).
const RAW: i32 = 255;
const ACK: u8 = 0x10;

/// Sends what prods clients.
#[derive(Debug, Default)]
pub(crate) struct Prodder {
    v4: Option<Socket>,
    v6: Option<Socket>,
    /// Flows to begin after: those before had their turn, and whoever did not answer must not keep the others waiting.
    pub(crate) turn: usize,
    /// It was said that it cannot be done.
    warned: bool,
}

impl Prodder {
    /// Prods clients of dead endpoints: each a vip and its client. Gives the number of those that it could.
    pub(crate) fn prod(&mut self, waiting: &[(SocketAddr, SocketAddr)]) -> u32 {
        let prodded = self.prod_each(waiting);
        self.turn = if waiting.len() == PRODDED_MAX { self.turn + prodded } else { 0 };
        prodded as u32
    }

    /// Prods these: each the address that a packet seems to come from, and the one that it goes to. Gives the number of those that it could.
    pub(crate) fn prod_each(&mut self, waiting: &[(SocketAddr, SocketAddr)]) -> usize {
        let mut prodded = 0;
        for (from, to) in waiting {
            match self.send(*from, *to) {
                Ok(()) => prodded += 1,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    if !self.warned {
                        tracing::warn!(
                            %error,
                            "a client of a dead endpoint, or the sides of an idle connection, cannot be told that it is over (CAP_NET_RAW?): \
                             they find out when they send something"
                        );
                    }
                    self.warned = true;
                    break;
                }
                // There is no route to this one, or no room for the packet: it finds out when it sends something.
                Err(error) => tracing::debug!(%error, %to, "cannot be told that its connection is over"),
            }
        }
        prodded
    }

    fn send(&mut self, from: SocketAddr, to: SocketAddr) -> io::Result<()> {
        let (socket, domain) = if to.is_ipv4() { (&mut self.v4, Domain::IPV4) } else { (&mut self.v6, Domain::IPV6) };
        let socket = match socket {
            Some(socket) => socket,
            none => none.insert(Socket::new(domain, Type::RAW, Some(Protocol::from(RAW)))?),
        };
        let packet = frame::packet(from, to, Transport::Tcp, ACK);
        // The packet says the port; for a raw socket of IPv6 another in the address is an error.
        socket.send_to(&packet, &SockAddr::from(SocketAddr::new(to.ip(), 0))).map(drop)
    }
}
