//! Has the clients of dead endpoints show themselves, so that their connections can be reset.
//!
//! The entry program answers a packet of such a connection by a reset, whose sequence number it takes from that packet. A client that waits for an
//! answer sends none. So it is sent a bare ACK whose sequence number is out of its window: it must answer by an ACK that says what it expects (RFC 9293
//! section 3.10.7.4, first step), and that one meets the program.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;

use libbpf_rs::MapHandle;
use model::Transport;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::abi::*;
use crate::flows::{entries, socket};
use crate::plan::TCP;
use crate::{Refusal, frame};

/// In one call. More wait for the next.
const PRODDED_MAX: usize = 1024;
/// Seconds of silence. A client that speaks is reset without our help.
const SILENT_S: u32 = 2;
/// Header included (raw(7)).
const RAW: i32 = 255;
const ACK: u8 = 0x10;

/// Sends what prods clients.
#[derive(Debug, Default)]
pub(crate) struct Prodder {
    v4: Option<Socket>,
    v6: Option<Socket>,
    /// Flows to begin after: those before had their turn, and whoever did not answer must not keep the others waiting.
    turn: usize,
    /// It was said that it cannot be done.
    warned: bool,
}

impl Prodder {
    /// Prods the silent clients of those endpoints. Gives their number.
    pub(crate) fn prod(&mut self, flows: &MapHandle, dead: &BTreeSet<u32>, now_s: u32) -> Result<u32, Refusal> {
        let waits = |(key, flow): &(lb_flow_key, lb_flow)| {
            key.proto == TCP
                && flow.flags & LB_FLOW_REPLY as u8 == 0
                && flow.state & LB_SEEN_ACK != 0
                && flow.state & LB_CLOSING == 0
                && now_s.wrapping_sub(flow.touched_s) as i32 >= SILENT_S as i32
                && dead.contains(&flow.endpoint)
        };
        let mut prodded = 0;
        for (key, _) in entries(flows)?.filter(waits).skip(self.turn).take(PRODDED_MAX) {
            let vip = socket(key.daddr, key.dport);
            let client = socket(key.saddr, key.sport);
            if let Err(error) = self.send(vip, client) {
                if !self.warned {
                    tracing::warn!(%error, "clients of dead endpoints cannot be told so (CAP_NET_RAW?): they will find out when they send something");
                }
                self.warned = true;
                break;
            }
            prodded += 1;
        }
        self.turn = if prodded == PRODDED_MAX { self.turn + prodded } else { 0 };
        Ok(prodded as u32)
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
