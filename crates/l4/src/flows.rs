//! The table of flows for people to read: one line for each connection.

use std::net::SocketAddr;

use model::Transport;

use crate::abi::*;
use crate::plan::TCP;
use crate::plane::Plane;
use crate::sync::{entries, get};
use crate::{Flow, FlowClient, Refusal, host};

impl Plane {
    /// Returns up to `limit` flows of one vip or of all, and whether there are more: first those whose packets are balanced, then sockets of
    /// this host. They are in no particular order, and the tables may change while they are read.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn flows(&self, vip: Option<&str>, limit: usize) -> Result<(Vec<Flow>, bool), Refusal> {
        let now_s = host::now_s();
        let mut found = Vec::new();
        for entry in entries::<lb_flow_key, lb_flow>(&self.maps.flows) {
            let (key, flow) = entry?;
            let Some(named) = self.plan.vips.get(&flow.vip).filter(|named| vip.is_none_or(|vip| named.name == vip))
            else {
                continue;
            };
            if flow.flags & LB_FLOW_REPLY as u8 != 0 {
                continue;
            }
            if found.len() == limit {
                return Ok((found, true));
            }
            let twin = if is_dsr(&flow) { None } else { get::<_, lb_flow>(&self.maps.flows, &twin_key(&key, &flow))? };
            let touched_s = twin.map_or(flow.touched_s, |twin| later(flow.touched_s, twin.touched_s));
            found.push(Flow {
                vip: named.name.clone(),
                transport: transport(key.proto),
                client: FlowClient::Address(socket(key.saddr, key.sport)),
                address: socket(key.daddr, key.dport),
                endpoint: self.endpoint_of(&flow),
                state: state(&flow, twin.as_ref()),
                age_s: now_s.saturating_sub(flow.born_s),
                idle_s: Some(now_s.saturating_sub(touched_s)),
            });
        }
        let more = self.add_sockets(vip, limit, &mut found)?;
        Ok((found, more))
    }

    /// Returns true if there are more than the limit allows.
    fn add_sockets(&self, vip: Option<&str>, limit: usize, found: &mut Vec<Flow>) -> Result<bool, Refusal> {
        let Some(sockets) = &self.sockets else { return Ok(false) };
        let now_s = host::now_s();
        for entry in entries::<u64, lb_socket>(&sockets.map) {
            let (cookie, entry) = entry?;
            let Some(named) = self.plan.vips.get(&entry.vip).filter(|named| vip.is_none_or(|vip| named.name == vip))
            else {
                continue;
            };
            if entry.left != 0 {
                continue;
            }
            if found.len() == limit {
                return Ok(true);
            }
            found.push(Flow {
                vip: named.name.clone(),
                transport: transport(entry.proto),
                client: FlowClient::Socket(cookie),
                address: socket(entry.vip_addr, entry.vip_port),
                endpoint: socket(entry.addr, entry.port),
                state: "connected",
                age_s: now_s.saturating_sub(entry.born_s),
                idle_s: None,
            });
        }
        Ok(false)
    }

    fn endpoint_of(&self, flow: &lb_flow) -> SocketAddr {
        match self.held.endpoints.get(&flow.endpoint) {
            // With DSR, packets are still addressed to the vip.
            Some(endpoint) if is_dsr(flow) => socket(endpoint.addr, flow.dport),
            _ => socket(flow.daddr, flow.dport),
        }
    }
}

fn transport(proto: u8) -> Transport {
    if proto == TCP { Transport::Tcp } else { Transport::Udp }
}

pub(crate) fn socket(address: [u32; 4], port: u16) -> SocketAddr {
    SocketAddr::new(address_of(address), u16::from_be(port))
}

fn is_dsr(flow: &lb_flow) -> bool {
    flow.flags & LB_FLOW_DSR as u8 != 0
}

/// As `twin_key` in `bpf/base.h`: the tuple with which the packet leaves, reversed.
fn twin_key(key: &lb_flow_key, flow: &lb_flow) -> lb_flow_key {
    lb_flow_key {
        saddr: flow.daddr,
        daddr: flow.saddr,
        sport: flow.dport,
        dport: flow.sport,
        proto: key.proto,
        pad: [0; 3],
    }
}

/// The later of two times of a clock that may have wrapped.
fn later(a: u32, b: u32) -> u32 {
    if a.wrapping_sub(b) as i32 > 0 { a } else { b }
}

/// As `flow_life_s` in `bpf/flow.h` reads it.
fn state(flow: &lb_flow, twin: Option<&lb_flow>) -> &'static str {
    let answers = twin.map_or(0, |twin| twin.state);
    if (flow.state | answers) & LB_CLOSING != 0 {
        return "closing";
    }
    let answered = is_dsr(flow) || answers & (LB_SEEN_SYN | LB_SEEN_ACK) != 0;
    if flow.state & LB_SEEN_ACK != 0 && answered { "established" } else { "opening" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states() {
        let check = |mine: u32, twin: Option<u32>, flags: u32, expect: &str| {
            let flow = |state| lb_flow { state, flags: flags as u8, ..lb_flow::default() };
            assert_eq!(state(&flow(mine), twin.map(flow).as_ref()), expect, "{mine} {twin:?} {flags}");
        };
        check(LB_SEEN_SYN, Some(0), 0, "opening");
        check(LB_SEEN_SYN, Some(LB_SEEN_SYN), 0, "opening");
        check(LB_SEEN_SYN | LB_SEEN_ACK, Some(LB_SEEN_SYN), 0, "established");
        // A datagram without an answer.
        check(LB_SEEN_ACK, Some(0), 0, "opening");
        check(LB_SEEN_ACK, Some(LB_SEEN_ACK), 0, "established");
        check(LB_SEEN_ACK | LB_SEEN_FIN, Some(LB_SEEN_ACK), 0, "established");
        check(LB_SEEN_ACK, Some(LB_CLOSING), 0, "closing");
        // With DSR we do not see what the endpoint sends.
        check(LB_SEEN_SYN | LB_SEEN_ACK, None, LB_FLOW_DSR, "established");
    }

    #[test]
    fn times_that_wrap() {
        assert_eq!(later(5, 3), 5);
        assert_eq!(later(u32::MAX, 2), 2);
        assert_eq!(later(2, u32::MAX), 2);
    }
}
