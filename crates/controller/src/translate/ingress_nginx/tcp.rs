//! TCP ports of ingress-nginx: a ConfigMap with `"5432": "NAMESPACE/SERVICE:PORT"`, and behind it `:PROXY` if clients send the PROXY protocol, and
//! another one if endpoints get it.

use std::net::SocketAddr;

use model::{ProxyProtocol, Transport};

use super::super::bind::Speaks;
use super::super::cluster::Share;
use super::super::ingress::Serving;
use super::super::parameters::Class;
use super::super::reference::{Why, service_port};
use super::super::{Circumstances, Notice};
use crate::index::{Index, Kind, Name, PortRef};

/// Ports of one ConfigMap. Each is a socket of every worker.
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

/// Serves the ports.
pub(super) fn translate(index: &Index, class: &Class, circumstances: &Circumstances, out: &mut Serving<'_>) {
    let Some(name) = class.settings.ingress_nginx.as_ref().and_then(|nginx| nginx.tcp_services.as_ref()) else {
        return;
    };
    let Some((meta, data)) = &index.nginx_tcp else { return };
    let name = Name::new(&name.namespace, &name.name);
    for (number, (port, target)) in data.iter().enumerate() {
        let outcome = match number < PORTS_MAX {
            true => one(index, class, circumstances, (&name, port, target), out),
            false => Err(format!("a ConfigMap has {PORTS_MAX} ports at most")),
        };
        if let Err(why) = outcome {
            let why = Why::new("NotServed", format!("the TCP port {port}: {why}"));
            out.notices.push(Notice::warning((Kind::ConfigMap, name.clone()), meta, why));
        }
    }
}

fn one(
    index: &Index,
    class: &Class,
    circumstances: &Circumstances,
    (name, port, target): (&Name, &str, &str),
    out: &mut Serving<'_>,
) -> Result<(), String> {
    let number = port.trim().parse::<u16>().ok().filter(|port| *port > 0);
    let number = number.ok_or_else(|| "the key is a number from 1 to 65535".to_owned())?;
    let (http, https) = class.settings.ingress_ports;
    if number == http || number == https {
        return Err("it is the port of Ingresses".to_owned());
    }
    let Target { service, port, accepts, sends } = read(target)?;
    let place = SocketAddr::new(class.settings.listen, number);
    if let Some(refused) = circumstances.binds.get(&place) {
        return Err(refused.clone());
    }
    let found = service_port(index, &service, Transport::Tcp, |known| match &port {
        PortRef::Number(number) => known.port == *number,
        PortRef::Name(name) => *known.name == **name,
    })?;
    let found = found.ok_or_else(|| format!("the Service {service} has no such TCP port"))?;
    let proxy = if sends { Some(ProxyProtocol::V1) } else { found.proxy_protocol()? };
    let share = Share { port: found.port, service, transport: Transport::Tcp, weight: 1, h2: false, proxy };
    let mut policy = class.client_policy(number, None);
    policy.accept_proxy_protocol |= accepts;
    out.binds.claim(place, Speaks::Tcp, policy)?;
    let cluster = out.clusters.of(index, vec![share])?;
    match out.binds.tcp(place, name, cluster) {
        Some(older) if older != *name => Err(format!("it belongs to {older}")),
        _ => Ok(()),
    }
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
