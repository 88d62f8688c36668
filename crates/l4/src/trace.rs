//! Traces: the programs' own dry run against the live maps, described in sentences.

use std::net::{IpAddr, SocketAddr};

use libbpf_rs::ProgramInput;
use model::Transport;

use crate::abi::*;
use crate::flows::socket;
use crate::load::{self, CONNECT_DRY, TRACE, TRACES};
use crate::plan::{Named, proto};
use crate::plane::Plane;
use crate::sync::{get, set};
use crate::{DropReason, Refusal, Trace, TraceQuery, TraceStep, frame, host};

/// The bytes of `ifindex` in `struct __sk_buff` (<linux/bpf.h>).
const CONTEXT_IFINDEX: std::ops::Range<usize> = 40..44;

impl Plane {
    /// Returns what would happen to this packet now. Changes nothing.
    ///
    /// # Errors
    /// If the interface does not exist, or the kernel refuses.
    pub fn trace(&self, query: &TraceQuery) -> Result<Trace, Refusal> {
        let query = &TraceQuery { vip: self.one_address(query.vip), ..query.clone() };
        let (address, port, transport) = query.vip;
        let interface = match &query.interface {
            Some(name) => Some(self.interfaces.iter().find(|interface| interface.name == *name).ok_or_else(|| {
                let nearest = crate::interfaces::nearest(name, &self.interfaces);
                Refusal::NoInterface { vip: format!("{address}:{port}"), name: name.clone(), nearest }
            })?),
            None => None,
        };
        let packet = frame::packet(query.from, (address, port).into(), transport, query.flags);
        let frame = frame::ethernet(interface.map_or([0; 6], |interface| interface.mac), &packet);
        let mut context = [0; CONTEXT_IFINDEX.end];
        if let (Some(room), Some(interface)) = (context.get_mut(CONTEXT_IFINDEX), interface) {
            room.copy_from_slice(&interface.index.to_ne_bytes());
        }
        set(&self.maps.traces, &0_u32, &lb_trace::default())?;
        let input = ProgramInput { context_in: Some(&mut context), data_in: Some(&frame), ..ProgramInput::default() };
        load::program(&self.object, TRACE)?.test_run(input).map_err(|error| Refusal::kernel("try a packet", error))?;
        let found: lb_trace = get(&self.maps.traces, &0_u32)?.unwrap_or_default();
        Ok(self.tell(query, &found))
    }

    /// Returns what connect(2) of a process of this host to this address would do now. Changes nothing.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn trace_connect(&self, vip: (IpAddr, u16, Transport)) -> Result<Trace, Refusal> {
        let vip = self.one_address(vip);
        let (address, port, transport) = vip;
        let Some(sockets) = &self.sockets else {
            let why = self.sockets().and_then(|sockets| sockets.why_not);
            let text = why
                .unwrap_or_else(|| "connections are not balanced at the socket: no control group is named".to_owned());
            let verdict = "not balanced: the process connects to the address itself".to_owned();
            return Ok(Trace {
                steps: vec![TraceStep { stage: stage(LB_STAGE_CONNECT as u8), text }],
                forwarded: false,
                verdict,
            });
        };
        let mut context = lb_connect_context {
            addr: words_of(address),
            // The choice by client is that of a process in the namespace of Steelyard.
            netns: host::netns_cookie().unwrap_or(0),
            now_s: host::now_s(),
            port: port.to_be(),
            proto: proto(transport),
            pad: 0,
        };
        let traces = load::map(&sockets.object, TRACES)?;
        set(&traces, &0_u32, &lb_trace::default())?;
        let input = ProgramInput { context_in: Some(bytes_of_mut(&mut context)), ..ProgramInput::default() };
        let ran = load::program(&sockets.object, CONNECT_DRY)?.test_run(input);
        ran.map_err(|error| Refusal::kernel("try a connection", error))?;
        let found: lb_trace = get(&traces, &0_u32)?.unwrap_or_default();
        let from = SocketAddr::new(address, 0);
        Ok(self.tell(&TraceQuery { vip, from, interface: None, flags: 0 }, &found))
    }

    /// One of the addresses of a vip that has every address of this host.
    fn one_address(&self, (address, port, transport): (IpAddr, u16, Transport)) -> (IpAddr, u16, Transport) {
        let own = self.every.keys().find(|own| address.is_unspecified() && own.is_ipv4() == address.is_ipv4());
        (own.copied().unwrap_or(address), port, transport)
    }

    fn tell(&self, query: &TraceQuery, found: &lb_trace) -> Trace {
        let mut trace =
            Trace { steps: Vec::new(), forwarded: false, verdict: "no stage decided: please report this".to_owned() };
        let attached =
            query.interface.as_ref().is_none_or(|name| self.attached.values().any(|attached| attached == name));
        if let Some(name) = query.interface.as_ref().filter(|_| !attached) {
            let text = format!(
                "the programs are not attached to the interface {name}, because no vip names it and no route of a vip leads by it: they \
                would never see the packet"
            );
            trace.steps.push(TraceStep { stage: "interface", text });
        }
        let steps = found.steps.get(..found.step_count as usize).unwrap_or(&found.steps);
        for step in steps {
            let step = TraceStep { stage: stage(step.stage), text: self.sentence(query, found, step) };
            // If an endpoint cannot be used, another try may end the same way.
            if !trace.steps.contains(&step) {
                trace.steps.push(step);
            }
        }
        // The deciding step is not always the last: there is only room for a number of steps, and tries can use it up.
        let decided = |step: &&lb_trace_step| !matches!(u32::from(step.outcome), LB_CONTINUE | LB_OPEN);
        if let Some(last) = steps.iter().rfind(decided) {
            trace.forwarded = attached && matches!(u32::from(last.outcome), LB_FORWARD | LB_STACK | LB_LOCAL);
            trace.verdict = self.verdict(found, last);
        }
        if !attached {
            trace.verdict =
                "not seen: add the interface to `interfaces` of the vip, or check where the packet really arrives"
                    .to_owned();
        }
        trace
    }

    fn sentence(&self, query: &TraceQuery, found: &lb_trace, step: &lb_trace_step) -> String {
        if let Some(reason) = DropReason::of(step.reason) {
            let ends = if u32::from(step.outcome) == LB_ANSWER { "answered here" } else { "dropped" };
            return format!("{ends}, {}: {}{}", reason.name, reason.text, hint(reason, query));
        }
        match (u32::from(step.stage), u32::from(step.outcome)) {
            (LB_STAGE_PACKET, LB_CONTINUE) => "a packet that can be balanced".to_owned(),
            (LB_STAGE_PACKET, _) => "neither TCP nor UDP over IP: left to this host".to_owned(),
            (LB_STAGE_CONNTRACK, LB_OPEN) => "no known flow: it may begin one".to_owned(),
            (LB_STAGE_CONNTRACK, LB_CONTINUE) => format!("belongs to a known flow to {}", self.destination(found)),
            (LB_STAGE_VIP, LB_CONTINUE) => format!("for vip {}", self.vip_name(step.detail)),
            (LB_STAGE_VIP, LB_LOCAL) => {
                format!("for vip {}, which a listener on this host serves", self.vip_name(step.detail))
            }
            (LB_STAGE_VIP, _) => self.why_no_vip(query),
            (LB_STAGE_SOURCE, LB_CONTINUE) => "its source may open a flow".to_owned(),
            (LB_STAGE_SELECT, LB_CONTINUE) => format!("chose endpoint {}", self.endpoint_name(step.detail)),
            (LB_STAGE_CREATE, LB_CONTINUE) => "there is room for the flow, and a route".to_owned(),
            (LB_STAGE_CREATE, LB_LOCAL) => {
                format!("{} is a listener of this host, which gets the connection as it is", self.endpoint_name(step.detail))
            }
            (LB_STAGE_FORWARD, LB_FORWARD) => {
                format!("leaves by {} for {}", self.interface_name(step.detail), self.destination(found))
            }
            (LB_STAGE_FORWARD, LB_STACK) if u32::from(found.flow.action) == LB_ACTION_HERE => {
                format!("rewritten for {}, which is an address of this host, and left to its own stack", self.destination(found))
            }
            (LB_STAGE_FORWARD, LB_STACK) => {
                format!("rewritten for {}, and left to this host for fragmentation", self.destination(found))
            }
            (LB_STAGE_CONNECT, LB_FORWARD) => {
                format!("the socket is connected to {}, and its packets are not touched", self.endpoint_name(step.detail))
            }
            (LB_STAGE_CONNECT, LB_PASS) => {
                "not balanced at the socket, because the vip has mode dsr or local, limits its clients by address or rate, or has the endpoints of this node alone"
                    .to_owned()
            }
            (_, outcome) => format!("decided {outcome}"),
        }
    }

    fn verdict(&self, found: &lb_trace, last: &lb_trace_step) -> String {
        if u32::from(last.stage) == LB_STAGE_CONNECT && u32::from(last.outcome) == LB_FORWARD {
            return format!("connected to {}", self.endpoint_name(last.detail));
        }
        match (u32::from(last.outcome), DropReason::of(last.reason)) {
            (LB_STACK, _) if u32::from(found.flow.action) == LB_ACTION_HERE => {
                format!("delivered to {} on this host", self.destination(found))
            }
            (LB_FORWARD | LB_STACK, _) => {
                format!("forwarded to {} by {}", self.destination(found), self.interface_name(found.flow.ifindex))
            }
            (LB_LOCAL, _) => "left to a listener on this host".to_owned(),
            (LB_PASS, _) => "not for a vip: left to this host unchanged".to_owned(),
            (LB_ANSWER, Some(reason)) => format!("answered here, not forwarded: {}", reason.name),
            (LB_ANSWER, None) => "answered here".to_owned(),
            (_, Some(reason)) => format!("dropped: {}", reason.name),
            _ => "no stage decided: please report this".to_owned(),
        }
    }

    /// The usual reasons why an address is not a vip.
    fn why_no_vip(&self, query: &TraceQuery) -> String {
        let (address, port, transport) = query.vip;
        let at = |named: &&Named| {
            let has = named.identity.address;
            has == address
                || has.is_unspecified() && self.every.contains_key(&address) && has.is_ipv4() == address.is_ipv4()
        };
        let same: Vec<&str> = self.plan.vips.values().filter(at).map(|named| named.name.as_str()).collect();
        let is_asked = |named: &&Named| named.identity.first == port && named.identity.proto == self::proto(transport);
        let of_sockets = |named: &&Named| u32::from(named.identity.scope) & LB_SCOPE_SOCKETS != 0;
        if let Some(named) = self.plan.vips.values().filter(at).filter(is_asked).find(of_sockets) {
            return format!(
                "vip {} has mode socket: it gives an endpoint to processes of this host when they connect, and packets are left to this host",
                named.name
            );
        }
        let proto = if transport == Transport::Tcp { "tcp" } else { "udp" };
        if same.is_empty() {
            return format!("no vip has the address {address}: left to this host");
        }
        format!("no vip has port {port}/{proto} of {address} (its vips: {}): left to this host", same.join(", "))
    }

    fn vip_name(&self, id: u32) -> &str {
        self.plan.vips.get(&id).map_or("(just removed)", |named| &named.name)
    }

    fn endpoint_name(&self, id: u32) -> String {
        self.held.endpoints.get(&id).map_or_else(
            || "(just removed)".to_owned(),
            |endpoint| {
                if endpoint.port == 0 {
                    address_of(endpoint.addr).to_string()
                } else {
                    socket(endpoint.addr, endpoint.port).to_string()
                }
            },
        )
    }

    fn interface_name(&self, ifindex: u32) -> String {
        let found = self.interfaces.iter().find(|interface| interface.index == ifindex);
        found.map_or_else(|| format!("interface {ifindex}"), |interface| interface.name.clone())
    }

    /// The destination of the flow's packets, and the next hop.
    fn destination(&self, found: &lb_trace) -> String {
        let flow = &found.flow;
        let to = if flow.flags & LB_FLOW_DSR as u8 == 0 {
            socket(flow.daddr, flow.dport).to_string()
        } else {
            let how = match u32::from(flow.flags) & (LB_FLOW_IPIP | LB_FLOW_GUE) {
                LB_FLOW_IPIP => "in a packet to it, IP in IP",
                LB_FLOW_GUE => "in a packet to it, by GUE",
                _ => "address unchanged",
            };
            format!("{} ({how})", self.endpoint_name(flow.endpoint))
        };
        let hop: IpAddr = address_of(flow.next_hop);
        if hop == address_of(flow.daddr) || hop.is_unspecified() || flow.flags & LB_FLOW_DSR as u8 != 0 {
            to
        } else {
            format!("{to} via {hop}")
        }
    }
}

fn stage(number: u8) -> &'static str {
    match u32::from(number) {
        LB_STAGE_PACKET => "packet",
        LB_STAGE_CONNTRACK => "conntrack",
        LB_STAGE_VIP => "vip",
        LB_STAGE_SOURCE => "source",
        LB_STAGE_SELECT => "select",
        LB_STAGE_CREATE => "create",
        LB_STAGE_FORWARD => "forward",
        LB_STAGE_CONNECT => "connect",
        _ => "unknown",
    }
}

/// Details that only user space knows.
fn hint(reason: &DropReason, query: &TraceQuery) -> String {
    let Some(interface) = &query.interface else { return String::new() };
    let ipv6 = query.from.is_ipv6();
    if reason.name == "no_route" && !host::forwards(interface, ipv6) {
        let family = if ipv6 { "ipv6" } else { "ipv4" };
        return format!(" (net.{family}.conf.{interface}.forwarding is 0: set it to 1)");
    }
    String::new()
}
