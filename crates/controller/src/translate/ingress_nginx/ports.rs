//! TCP and UDP ports of ingress-nginx: a ConfigMap for each of the two, with `"5432": "NAMESPACE/SERVICE:PORT"`. Behind it is `:PROXY` if clients
//! send the PROXY protocol, and another one if endpoints get it; like there, both mean nothing for UDP.
//!
//! TCP ports are listeners. UDP ports are vips of the kernel plane, as those of a UDPRoute are.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use model::{ProxyProtocol, Transport, VipMode};

use super::super::bind::Speaks;
use super::super::cluster::Share;
use super::super::ingress::Serving;
use super::super::parameters::Class;
use super::super::reference::{Why, service_port, word};
use super::super::service::VIPS_MAX;
use super::super::stream::{self, Choice, Source, Vips};
use super::super::{Circumstances, Notice, listener};
use crate::index::{Index, Kind, Meta, Name, PortRef, ServicePort};

/// Ports of one ConfigMap. Each is a socket of every worker, or a vip.
const PORTS_MAX: usize = 1024;

/// What a port leads to.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    service: Name,
    port: PortRef,
    /// Clients send the PROXY protocol.
    accepts: bool,
    /// Endpoints get it.
    sends: bool,
}

/// What the ports need besides their text.
struct With<'t, 'o> {
    index: &'t Index,
    class: &'t Class,
    circumstances: &'t Circumstances,
    /// The places of the vips that others have.
    taken: BTreeSet<(IpAddr, u16)>,
    vips: &'t mut Vips,
    out: &'t mut Serving<'o>,
}

/// Serves the ports of both ConfigMaps.
pub(in super::super) fn translate(
    index: &Index,
    class: &Class,
    circumstances: &Circumstances,
    vips: &mut Vips,
    out: &mut Serving<'_>,
) {
    let Some(nginx) = &class.settings.ingress_nginx else { return };
    let udp = vips.list.iter().filter(|vip| vip.transport == Transport::Udp);
    let taken = udp.map(|vip| (vip.address, vip.ports.first)).collect();
    let mut with = With { index, class, circumstances, taken, vips, out };
    let both = [
        (Transport::Tcp, &nginx.tcp_services, &index.nginx_tcp.held),
        (Transport::Udp, &nginx.udp_services, &index.nginx_udp.held),
    ];
    for (transport, name, held) in both {
        let Some(name) = name else { continue };
        let name = Name::new(&name.namespace, &name.name);
        match held {
            Some((meta, data)) => with.all(transport, &name, meta, data),
            None => {
                let missing = index.unknown(Kind::ConfigMap, &name.namespace, &format!("ConfigMap {name}"));
                let why = Why::new("NotServed", format!("the {} ports of ingress-nginx: {missing}", word(transport)));
                with.out.notices.push(Notice::warning((Kind::ConfigMap, name), &Meta::default(), why));
            }
        }
    }
}

impl With<'_, '_> {
    fn all(&mut self, transport: Transport, name: &Name, meta: &Meta, data: &BTreeMap<String, String>) {
        for (number, (port, target)) in data.iter().enumerate() {
            let outcome = match number < PORTS_MAX {
                true => self.one(transport, name, (port, target)),
                false => Err(format!("a ConfigMap has {PORTS_MAX} ports at most")),
            };
            if let Err(why) = outcome {
                let why = Why::new("NotServed", format!("the {} port {port}: {why}", word(transport)));
                self.out.notices.push(Notice::warning((Kind::ConfigMap, name.clone()), meta, why));
            }
        }
    }

    fn one(&mut self, transport: Transport, name: &Name, (port, target): (&str, &str)) -> Result<(), String> {
        let number = port.trim().parse::<u16>().ok().filter(|port| *port > 0);
        let number = number.ok_or_else(|| "the key is a number from 1 to 65535".to_owned())?;
        let place = SocketAddr::new(self.class.settings.listen, number);
        let target = read(target)?;
        match transport {
            Transport::Tcp => self.tcp(place, name, target),
            Transport::Udp => self.udp(place, target),
        }
    }

    fn tcp(&mut self, place: SocketAddr, name: &Name, target: Target) -> Result<(), String> {
        let (http, https) = self.class.settings.ingress_ports;
        if [http, https].contains(&place.port()) {
            return Err("it is the port of Ingresses".to_owned());
        }
        if let Some(refused) = self.circumstances.binds.get(&place) {
            return Err(refused.clone());
        }
        let found = self.found(&target, Transport::Tcp)?;
        let proxy = if target.sends { Some(ProxyProtocol::V1) } else { found.proxy_protocol()? };
        let mut policy = self.class.client_policy(place.port(), None);
        policy.accept_proxy_protocol |= target.accepts;
        let share = share(found, target.service, Transport::Tcp, proxy);
        self.out.binds.claim(place, Speaks::Tcp, policy)?;
        let cluster = self.out.clusters.of(self.index, vec![share])?;
        match self.out.binds.tcp(place, name, cluster) {
            Some(older) if older != *name => Err(format!("it belongs to {older}")),
            _ => Ok(()),
        }
    }

    fn udp(&mut self, place: SocketAddr, target: Target) -> Result<(), String> {
        if let Some(why) = listener::no_udp(place, &self.class.settings) {
            return Err(why.message);
        }
        if self.taken.contains(&(place.ip(), place.port())) {
            return Err(format!("a UDPRoute, a Service or another key has {place}"));
        }
        if self.vips.list.len() >= VIPS_MAX {
            return Err(format!("the kernel plane has room for {VIPS_MAX} vips"));
        }
        let share = share(self.found(&target, Transport::Udp)?, target.service, Transport::Udp, None);
        // Of two keys that are one number, the first has it.
        self.taken.insert((place.ip(), place.port()));
        // An endpoint may be on any node and would answer the client directly, so it must see an address of this host.
        let mode = VipMode::FullNat { sources: Vec::new() };
        let label = format!("ingress-nginx/udp@{place}");
        let vip = stream::vip(label, place, Transport::Udp, mode, &self.class.settings.interfaces);
        let source = Source { shares: vec![share], from: Choice::All };
        self.vips.add(self.index, vec![vip], &source).map_err(|why| why.message)?;
        // It keeps serving what it had.
        self.circumstances.kernel.clone().map_or(Ok(()), Err)
    }

    fn found(&self, target: &Target, transport: Transport) -> Result<&ServicePort, String> {
        let found = service_port(self.index, &target.service, transport, |known| match &target.port {
            PortRef::Number(number) => known.port == *number,
            PortRef::Name(name) => *known.name == **name,
        })?;
        found.ok_or_else(|| format!("the Service {} has no such {} port", target.service, word(transport)))
    }
}

fn share(found: &ServicePort, service: Name, transport: Transport, proxy: Option<ProxyProtocol>) -> Share {
    Share { port: found.port, service, transport, weight: 1, h2: false, proxy }
}

fn read(target: &str) -> Result<Target, String> {
    let form = || "write NAMESPACE/SERVICE:PORT, perhaps with :PROXY behind it, once or twice".to_owned();
    let (namespace, rest) = target.trim().split_once('/').ok_or_else(form)?;
    let parts: Vec<&str> = rest.split(':').collect();
    let (name, port, marks) = match parts.as_slice() {
        [name, port, marks @ ..] if marks.len() <= 2 => (*name, *port, marks),
        _ => return Err(form()),
    };
    if namespace.is_empty() || name.is_empty() || port.is_empty() {
        return Err(form());
    }
    let mark = |at: usize| match marks.get(at).copied() {
        None | Some("") => Ok(false),
        Some(word) if word.eq_ignore_ascii_case("proxy") => Ok(true),
        Some(_) => Err(form()),
    };
    let port = port.parse().map_or_else(|_| PortRef::Name(port.into()), PortRef::Number);
    Ok(Target { service: Name::new(namespace, name), port, accepts: mark(0)?, sends: mark(1)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_ports() {
        let check = |text: &str, port: PortRef, accepts: bool, sends: bool| {
            let service = Name::new("shop", "db");
            assert_eq!(read(text), Ok(Target { service, port, accepts, sends }), "{text}");
        };
        check("shop/db:5432", PortRef::Number(5432), false, false);
        check("shop/db:pg", PortRef::Name("pg".into()), false, false);
        check("shop/db:5432:PROXY", PortRef::Number(5432), true, false);
        check("shop/db:5432::PROXY", PortRef::Number(5432), false, true);
        check(" shop/db:5432:PROXY:PROXY ", PortRef::Number(5432), true, true);
        for wrong in ["", "db:5432", "shop/db", "shop/:1", "/db:1", "shop/db:1:x", "shop/db:1:PROXY:PROXY:PROXY"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
