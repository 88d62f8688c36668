//! Prints a packet in one line.

use std::fmt::{Display, Formatter, Result};
use std::net::{IpAddr, SocketAddr};

use super::{ACK, FIN, PSH, Packet, RST, SYN, Transport, URG};

const FLAGS: [(u8, char); 6] = [(SYN, 'S'), (FIN, 'F'), (RST, 'R'), (PSH, 'P'), (URG, 'U'), (ACK, '.')];

/// The notation resembles tcpdump's, and fields with default values are left out: `10.0.0.1:40000 > 20.0.0.1:80 tcp S.
/// seq 1 ack 2, 3 bytes, ttl 63`.
impl Display for Packet {
    fn fmt(&self, to: &mut Formatter<'_>) -> Result {
        for id in &self.vlans {
            write!(to, "vlan {id} ")?;
        }
        let (source_port, destination_port) = self.ports().unzip();
        write!(to, "{} > {} ", place(self.source, source_port), place(self.destination, destination_port))?;
        match &self.transport {
            Transport::Tcp(tcp) => {
                write!(to, "tcp ")?;
                for (_, letter) in FLAGS.iter().filter(|(flag, _)| tcp.flags & flag != 0) {
                    write!(to, "{letter}")?;
                }
                write!(to, " seq {} ack {} win {}", tcp.seq, tcp.ack, tcp.window)?;
                if !tcp.options.is_empty() {
                    write!(to, " options {:02x?}", tcp.options)?;
                }
            }
            Transport::Udp { is_summed, .. } => write!(to, "udp{}", if *is_summed { "" } else { " without checksum" })?,
            Transport::Icmp { kind, rest } => {
                let family = if self.source.is_ipv4() { "icmp" } else { "icmp6" };
                write!(to, "{family} {}/{} {rest:02x?}", kind.0, kind.1)?;
            }
            Transport::Opaque(number) => write!(to, "protocol {number}")?,
        }
        write!(to, ", {} bytes, ttl {}", self.payload.len(), self.ttl)?;
        if self.id != 0 {
            write!(to, ", id {}", self.id)?;
        }
        if let Some((offset, more)) = self.fragment {
            write!(to, ", fragment at {offset}{}", if more { " and more" } else { "" })?;
        }
        if self.dont_fragment {
            write!(to, ", DF")?;
        }
        if self.tos != 0 {
            write!(to, ", tos {:#04x}", self.tos)?;
        }
        if !self.ip_options.is_empty() {
            write!(to, ", IP options {:02x?}", self.ip_options)?;
        }
        for (number, content) in &self.extensions {
            write!(to, ", extension {number} of {} bytes", content.len() + 2)?;
        }
        if let (Transport::Icmp { kind, .. }, Ok(quoted)) = (&self.transport, Packet::read_ip(&self.payload))
            && !matches!(kind.0, 0 | 8 | 128 | 129)
        {
            write!(to, " ({})", quoted.packet)?;
        }
        Ok(())
    }
}

fn place(address: IpAddr, port: Option<u16>) -> String {
    port.map_or_else(|| address.to_string(), |port| SocketAddr::new(address, port).to_string())
}
