//! `steelyard trace`: traces a packet against the live tables.

use std::net::{IpAddr, SocketAddr};

use admin::{STATUS_VERSION, TraceQuestion, TraceReport, TraceStep};
use l4::TraceQuery;
use model::{Transport, Vip};

use crate::kernel::KernelPlane;

/// The client's port if the question does not give one: an ephemeral port (RFC 6335 section 6).
const CLIENT_PORT: u16 = 50_000;

/// The client that is a process of this host, which connects.
const OWN_PROCESS: &str = "local";

const FLAGS: &[(&str, u8)] = &[("fin", 0x01), ("syn", 0x02), ("rst", 0x04), ("psh", 0x08), ("ack", 0x10)];

/// Returns what the kernel plane would do.
///
/// # Errors
/// Says in a sentence that the question makes no sense or cannot be answered.
pub(super) fn answer(kernel: &KernelPlane, question: &TraceQuestion) -> Result<TraceReport, String> {
    let (address, port, transport, interface) = destination(kernel, &question.vip)?;
    if question.from == OWN_PROCESS {
        if question.interface.is_some() || question.flags.is_some() {
            return Err("a process connects: there is no packet yet that could have an interface or flags".to_owned());
        }
        let trace = kernel.plane()?.trace_connect((address, port, transport)).map_err(|refusal| refusal.to_string())?;
        return Ok(report(trace));
    }
    let query = TraceQuery {
        vip: (address, port, transport),
        from: source(&question.from, address)?,
        interface: question.interface.clone().or(interface),
        flags: flags(question.flags.as_deref(), transport)?,
    };
    let trace = kernel.plane()?.trace(&query).map_err(|refusal| refusal.to_string())?;
    Ok(report(trace))
}

fn report(trace: l4::Trace) -> TraceReport {
    let step = |step: l4::TraceStep| TraceStep { stage: step.stage.to_owned(), text: step.text };
    TraceReport {
        version: STATUS_VERSION,
        steps: trace.steps.into_iter().map(step).collect(),
        forwarded: trace.forwarded,
        verdict: trace.verdict,
    }
}

/// Returns address, port, protocol, and an interface where packets of the vip arrive. An address that no vip has is
/// also a valid question.
fn destination(kernel: &KernelPlane, vip: &str) -> Result<(IpAddr, u16, Transport, Option<String>), String> {
    let first = |vip: &Vip| kernel.plane().ok()?.interfaces_of(vip).into_iter().next();
    let interface = |address: IpAddr| {
        let plan = kernel.vips().iter().find(|plan| plan.vip.address == address).or(kernel.vips().first());
        plan.and_then(|plan| first(&plan.vip))
    };
    if let Ok(address) = vip.parse::<SocketAddr>() {
        return Ok((address.ip(), address.port(), Transport::Tcp, interface(address.ip())));
    }
    if let Ok((address, ports, transport)) = config::parse_vip_address(vip) {
        return Ok((address, ports.first, transport, interface(address)));
    }
    let vip = &kernel.vip(vip)?.vip;
    Ok((vip.address, vip.ports.first, vip.transport, first(vip)))
}

fn source(from: &str, to: IpAddr) -> Result<SocketAddr, String> {
    let alone = from.strip_prefix('[').and_then(|from| from.strip_suffix(']')).unwrap_or(from);
    let address = match alone.parse::<IpAddr>() {
        Ok(address) => SocketAddr::new(address, CLIENT_PORT),
        Err(_) => from.parse().map_err(|_| {
            format!("{from:?} is not an address; write one such as 10.0.0.7 or 10.0.0.7:40000, or {OWN_PROCESS}")
        })?,
    };
    if address.is_ipv4() != to.is_ipv4() {
        return Err(format!("{} and {to} are of different address families", address.ip()));
    }
    Ok(address)
}

/// The bits of the TCP header (RFC 9293 section 3.1).
fn flags(written: Option<&str>, transport: Transport) -> Result<u8, String> {
    let Some(written) = written else { return Ok(0x02) };
    if transport == Transport::Udp {
        return Err("a UDP packet has no flags".to_owned());
    }
    written.split(',').try_fold(0, |bits, word| {
        let found = FLAGS.iter().find(|(name, _)| name.eq_ignore_ascii_case(word.trim()));
        let names = || FLAGS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        found.map(|(_, bit)| bits | bit).ok_or_else(|| format!("{word:?} is not a TCP flag; the flags are {}", names()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources() {
        let check = |from: &str, to: &str, expect: Result<&str, &str>| {
            let have = source(from, to.parse().unwrap()).map(|address| address.to_string());
            assert_eq!(have.as_deref().map_err(String::as_str), expect, "{from}");
        };
        check("10.0.0.7", "10.0.0.1", Ok("10.0.0.7:50000"));
        check("10.0.0.7:1", "10.0.0.1", Ok("10.0.0.7:1"));
        check("fd00::7", "fd00::1", Ok("[fd00::7]:50000"));
        check("[fd00::7]", "fd00::1", Ok("[fd00::7]:50000"));
        check("[fd00::7]:5", "fd00::1", Ok("[fd00::7]:5"));
        check("fd00::7", "10.0.0.1", Err("fd00::7 and 10.0.0.1 are of different address families"));
        check(
            "home",
            "10.0.0.1",
            Err(r#""home" is not an address; write one such as 10.0.0.7 or 10.0.0.7:40000, or local"#),
        );
    }

    #[test]
    fn bits_of_the_header() {
        let check = |written: Option<&str>, expect: Result<u8, &str>| {
            assert_eq!(flags(written, Transport::Tcp).as_ref().map(|bits| *bits).map_err(String::as_str), expect);
        };
        check(None, Ok(0x02));
        check(Some("syn"), Ok(0x02));
        check(Some("SYN, ack"), Ok(0x12));
        check(Some("urg"), Err(r#""urg" is not a TCP flag; the flags are fin, syn, rst, psh, ack"#));
        assert!(flags(Some("syn"), Transport::Udp).is_err());
    }

    #[test]
    fn destinations() {
        let kernel = KernelPlane::new();
        let check = |vip: &str, expect: Result<(&str, u16, Transport), &str>| {
            let have =
                destination(&kernel, vip).map(|(address, port, transport, _)| (address.to_string(), port, transport));
            let have = have.as_ref().map(|(address, port, transport)| (address.as_str(), *port, *transport));
            assert_eq!(have.map_err(String::as_str), expect, "{vip}");
        };
        check("10.0.0.1:80", Ok(("10.0.0.1", 80, Transport::Tcp)));
        check("10.0.0.1:53/udp", Ok(("10.0.0.1", 53, Transport::Udp)));
        check("[fd00::1]:80", Ok(("fd00::1", 80, Transport::Tcp)));
        check("web", Err("no such vip: web; there is none"));
    }
}
