//! Makes the clients of dead endpoints, and both sides of connections that were idle for too long, send a packet, so that their connections
//! can be reset.
//!
//! The entry program answers a packet of such a connection with a reset, and takes its sequence number from that packet. A side that waits
//! for the other sends nothing. So we send it a bare ACK whose sequence number is outside its window: it must answer with an ACK that has
//! the expected number (RFC 9293 section 3.10.7.4, first step), and the program sees that ACK.

use std::io;
use std::net::SocketAddr;

use model::Transport;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::frame;

/// The most packets in one collection. Other clients wait for the next.
pub(crate) const PRODDED_MAX: usize = 1024;
/// Seconds of silence. A client that sends something is reset without our help.
pub(crate) const SILENT_S: i32 = 2;
/// IPPROTO_RAW: the packet includes its header (raw(7)).
const RAW: i32 = 255;
const ACK: u8 = 0x10;

/// Sends the packets that prod clients.
#[derive(Debug, Default)]
pub(crate) struct Prodder {
    v4: Option<Socket>,
    v6: Option<Socket>,
    /// The number of flows to skip: their clients had their turn, and a client that did not answer must not keep the others waiting.
    pub(crate) turn: usize,
    /// Whether a warning was logged.
    warned: bool,
}

impl Prodder {
    /// Prods clients of dead endpoints. Each entry is a vip and its client. Returns the number of packets sent.
    pub(crate) fn prod(&mut self, waiting: &[(SocketAddr, SocketAddr)]) -> u32 {
        let prodded = self.prod_each(waiting);
        self.turn = if waiting.len() == PRODDED_MAX { self.turn + prodded } else { 0 };
        prodded as u32
    }

    /// Prods these hosts. Each entry is the address that the packet seems to come from, and its destination. Returns the number of packets
    /// sent.
    pub(crate) fn prod_each(&mut self, waiting: &[(SocketAddr, SocketAddr)]) -> usize {
        let mut prodded = 0;
        for (from, to) in waiting {
            match self.send(*from, *to) {
                Ok(()) => prodded += 1,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    if !self.warned {
                        tracing::warn!(
                            %error,
                            "cannot notify clients of dead endpoints and the sides of idle connections (CAP_NET_RAW is probably missing): \
                            they notice when they next send something"
                        );
                    }
                    self.warned = true;
                    break;
                }
                // There is no route to this one, or no room for the packet. It notices when it sends something.
                Err(error) => tracing::debug!(%error, %to, "cannot tell it that its connection is over"),
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
        // The packet has the port. For an IPv6 raw socket, another port in the address is an error.
        socket.send_to(&packet, &SockAddr::from(SocketAddr::new(to.ip(), 0))).map(drop)
    }
}
