//! What an operator says about the cluster as a source.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use model::AccessLog;

/// How objects are understood. Two replicas with the same settings make the same of the same objects.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The `controllerName` of GatewayClasses that are looked after here.
    pub controller_name: String,
    /// Only Gateways of this class; `None`: of every class that names the controller.
    pub gateway_class: Option<String>,
    /// Only Ingresses of this class; `None`: of every class that names the controller of Ingresses.
    pub ingress_class: Option<String>,
    /// The `loadBalancerClass` of Services that are looked after here.
    pub load_balancer_class: String,
    /// Where Ingresses are served, and Gateways without an address of their own.
    pub listen: IpAddr,
    /// The ports of Ingresses, in the clear and within TLS.
    pub ingress_ports: (u16, u16),
    /// By what the outside reaches `listen`: written to the status of those who are served there. Empty: `listen` itself, if it is an address.
    pub publish: Vec<Published>,
    /// Addresses for Gateways, one for each and family; empty: all share `listen`.
    pub gateway_pools: Vec<Pool>,
    /// Addresses for Services; empty: none is given any.
    pub service_pools: Vec<Pool>,
    /// Where packets of Services and UDP listeners arrive; empty: where routes lead, if there is a pool for Services. With neither there is no kernel plane.
    pub interfaces: Vec<String>,
    /// The name of the node that this runs on, for Services that want endpoints of the same node.
    pub node: Option<String>,
    /// Whose `X-Forwarded-*` are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Where this process itself listens: no listener of an object may.
    pub admin: Option<model::AdminAddress>,
    /// The same of `/metrics` and the probes alone.
    pub metrics: Option<SocketAddr>,
    /// Where a line for each request or connection goes.
    pub access_log: Option<AccessLog>,
}

/// The `controller` of IngressClasses that are looked after here.
pub const INGRESS_CONTROLLER: &str = "steelyard.io/ingress-controller";

impl Default for Settings {
    fn default() -> Self {
        Self {
            controller_name: "steelyard.io/gateway-controller".to_owned(),
            gateway_class: None,
            ingress_class: None,
            load_balancer_class: "steelyard.io/kernel-plane".to_owned(),
            listen: Ipv6Addr::UNSPECIFIED.into(),
            ingress_ports: (80, 443),
            publish: Vec::new(),
            gateway_pools: Vec::new(),
            service_pools: Vec::new(),
            interfaces: Vec::new(),
            node: None,
            trusted_proxies: Vec::new(),
            admin: None,
            metrics: None,
            access_log: None,
        }
    }
}

impl Settings {
    /// # Errors
    /// What they ask for and cannot be had together, and what would be right.
    pub fn check(&self) -> Result<(), String> {
        if !self.gateway_pools.is_empty() && self.listen.is_unspecified() {
            return Err("a pool of addresses for Gateways needs --listen-address to be one address: \
                        the whole of this host and one of its addresses cannot be listened on at the same port"
                .to_owned());
        }
        if self.ingress_ports.0 == self.ingress_ports.1 {
            return Err(format!("--http-port and --https-port are both {}", self.ingress_ports.0));
        }
        let pools: Vec<&Pool> = self.gateway_pools.iter().chain(&self.service_pools).collect();
        for (place, pool) in pools.iter().enumerate() {
            if let Some(other) = pools.iter().skip(place + 1).find(|other| pool.overlaps(other)) {
                return Err(format!("the pools {pool} and {other} have addresses in common"));
            }
            if pool.contains(self.listen) {
                return Err(format!("the pool {pool} holds --listen-address {}", self.listen));
            }
        }
        Ok(())
    }

    /// What is written to the status of those who are served at `listen`.
    pub fn published(&self) -> Vec<Published> {
        match self.publish.is_empty() && !self.listen.is_unspecified() {
            true => vec![Published::Address(self.listen)],
            false => self.publish.clone(),
        }
    }
}

/// What clients are told to connect to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Published {
    /// An address.
    Address(IpAddr),
    /// A name of DNS.
    Host(String),
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Host(host) => f.write_str(host),
        }
    }
}

impl FromStr for Published {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let is_label = |label: &str| {
            !label.is_empty()
                && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        };
        if text.len() <= 253 && text.split('.').all(is_label) {
            return Ok(Self::Host(text.to_owned()));
        }
        Err("an address, or a name in lower case, is needed: 203.0.113.7, lb.example.com".to_owned())
    }
}

/// Addresses from `first` to `last`, both included and of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    first: IpAddr,
    last: IpAddr,
    /// The first and the last are the address of an IPv4 network and its broadcast address. They are given only to an object that asks for them by
    /// name or has them already: many hosts drop packets that come from or go to such an address.
    has_edges: bool,
}

impl Pool {
    /// Whether it has this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4() && self.first <= address && address <= self.last
    }

    /// Whether it has addresses of this family.
    pub fn is_ipv4(&self) -> bool {
        self.first.is_ipv4()
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }

    /// The addresses that are given out, in order. There may be 2^128: whoever looks for a free one looks past those that are taken, and no further.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let (edge, is_ipv4) = (u128::from(self.has_edges), self.is_ipv4());
        (number(self.first) + edge..=number(self.last) - edge).map(move |number| address(number, is_ipv4))
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

fn address(number: u128, is_ipv4: bool) -> IpAddr {
    match u32::try_from(number) {
        Ok(number) if is_ipv4 => Ipv4Addr::from(number).into(),
        _ => Ipv6Addr::from(number).into(),
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { self.first.fmt(f) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

impl FromStr for Pool {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "a network, a range or an address is needed: 192.0.2.0/28, 192.0.2.10-192.0.2.20".to_owned();
        if let Ok(network) = text.parse::<IpNet>() {
            // A /31 is two addresses of a link, and a /32 is one (RFC 3021).
            let has_edges = matches!(network, IpNet::V4(network) if network.prefix_len() < 31);
            return Ok(Self { first: network.network(), last: network.broadcast(), has_edges });
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let first: IpAddr = first.trim().parse().map_err(|_| wrong())?;
        let last: IpAddr = last.trim().parse().map_err(|_| wrong())?;
        if first.is_ipv4() != last.is_ipv4() || first > last {
            return Err(format!("{text} is no range: it ends before it begins, or in another family"));
        }
        Ok(Self { first, last, has_edges: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools() {
        let check = |text: &str, expect: &[&str]| {
            let pool: Pool = text.parse().unwrap();
            let addresses: Vec<String> = pool.addresses().take(3).map(|address| address.to_string()).collect();
            assert_eq!(addresses, expect, "{text}");
        };
        check("192.0.2.6/31", &["192.0.2.6", "192.0.2.7"]);
        check("192.0.2.9/28", &["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
        check("192.0.2.9/30", &["192.0.2.9", "192.0.2.10"]);
        check("192.0.2.9/32", &["192.0.2.9"]);
        check("192.0.2.0-192.0.2.1", &["192.0.2.0", "192.0.2.1"]);
        check("192.0.2.255-192.0.3.0", &["192.0.2.255", "192.0.3.0"]);
        check("fd00::/64", &["fd00::", "fd00::1", "fd00::2"]);
        check("::1", &["::1"]);
        for wrong in ["192.0.2.2-192.0.2.1", "192.0.2.1-::1", "192.0.2.0/33", "pool", ""] {
            assert!(wrong.parse::<Pool>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_had_together() {
        let check = |change: fn(&mut Settings), expect: Option<&str>| {
            let mut settings = Settings::default();
            change(&mut settings);
            match (settings.check(), expect) {
                (Ok(()), None) => {}
                (Err(why), Some(part)) => assert!(why.contains(part), "{why}"),
                (outcome, expect) => panic!("{outcome:?} {expect:?}"),
            }
        };
        check(|_| {}, None);
        check(|s| s.gateway_pools = vec!["10.0.0.0/24".parse().unwrap()], Some("--listen-address"));
        check(|s| s.ingress_ports = (80, 80), Some("both 80"));
        check(|s| s.service_pools = vec!["10.0.0.0/24".parse().unwrap()], None);
        let both = |s: &mut Settings| {
            s.listen = [10, 0, 1, 1].into();
            s.interfaces = vec!["eth0".into()];
            s.gateway_pools = vec!["10.0.0.0/24".parse().unwrap()];
            s.service_pools = vec!["10.0.0.255-10.0.1.0".parse().unwrap()];
        };
        check(both, Some("in common"));
        check(
            |s| (s.listen, s.gateway_pools) = ([10, 0, 0, 1].into(), vec!["10.0.0.1".parse().unwrap()]),
            Some("holds"),
        );
    }
}
