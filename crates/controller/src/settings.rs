//! The operator's settings for a cluster as a source.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use model::{AccessLog, Announce, Announcing, Cluster, Dns, Tracing};

use crate::ingress_nginx::{Compat, Prefix};

/// How objects are understood. Two replicas with the same settings derive the same result from the same objects.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The `controllerName` of the GatewayClasses that this controller manages.
    pub controller_name: String,
    /// Serve only Gateways of this class; `None` means every class that names the controller.
    pub gateway_class: Option<String>,
    /// Serve only Ingresses of this class; `None` means every class that names the Ingress controller.
    pub ingress_class: Option<String>,
    /// The `loadBalancerClass` of the Services that this controller manages.
    pub load_balancer_class: String,
    /// The address that serves Ingresses, and Gateways without an address of their own.
    pub listen: IpAddr,
    /// The ports of Ingresses: HTTP and HTTPS.
    pub ingress_ports: (u16, u16),
    /// Serve the annotations of ingress-nginx; `None` means that Ingresses have none.
    pub ingress_nginx: Option<IngressNginx>,
    /// Write the statuses of Ingresses. While another controller serves the same Ingresses, only one may.
    pub ingress_status: bool,
    /// The certificate for hosts of Ingresses that have none of their own.
    pub default_certificate: Option<SecretRef>,
    /// The addresses by which clients reach `listen`, written to the status of the objects that it serves. If empty, `listen` itself is
    /// written, if it is one address.
    pub publish: Vec<Published>,
    /// Write the addresses of this Service to the statuses instead, as the cluster assigns them.
    pub publish_service: Option<ServiceName>,
    /// Address pools for Gateways. Each Gateway gets one address of each family. If empty, all Gateways share `listen`.
    pub gateway_pools: Vec<Pool>,
    /// Address pools for Services. If empty, no Service gets an address.
    pub service_pools: Vec<Pool>,
    /// The interfaces on which packets of Services and UDP listeners arrive. If empty, the kernel plane follows the routes, if there is a
    /// pool for Services. With neither there is no kernel plane.
    pub interfaces: Vec<String>,
    /// The control group whose processes' connections to Services are balanced at the socket.
    pub socket_cgroup: Option<PathBuf>,
    /// Serve every Service on this node, as kube-proxy does.
    pub kube_proxy_replacement: bool,
    /// With it, cluster IPs are served to packets too.
    pub cluster_ip_packets: bool,
    /// How the addresses of Services are announced.
    pub announce: Announce,
    /// What these announcements share.
    pub announcing: Announcing,
    /// The name of this node, for Services that want only endpoints on the same node.
    pub node: Option<String>,
    /// The zone of this node, for endpoints with hints about zones.
    pub zone: Option<String>,
    /// The proxies whose `X-Forwarded-*` headers are trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// The control API of this process. No listener of an object may use its address.
    pub admin: Option<model::AdminAddress>,
    /// The address of `/metrics` and the probes. No listener may use it either.
    pub metrics: Option<SocketAddr>,
    /// How long connections are still accepted after SIGTERM.
    pub drain_delay: Duration,
    /// The target of the access log. Its cluster is one of `clusters`.
    pub access_log: Option<AccessLog>,
    /// Spans of requests. Their cluster is one of `clusters`.
    pub tracing: Option<Arc<Tracing>>,
    /// Clusters that come from no object, and are the first of every snapshot.
    pub clusters: Vec<Arc<Cluster>>,
    /// How the host names of their endpoints are resolved.
    pub dns: Dns,
}

/// The `controller` of the IngressClasses that this controller manages.
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
            ingress_nginx: None,
            ingress_status: true,
            default_certificate: None,
            publish: Vec::new(),
            publish_service: None,
            gateway_pools: Vec::new(),
            service_pools: Vec::new(),
            interfaces: Vec::new(),
            socket_cgroup: None,
            kube_proxy_replacement: false,
            cluster_ip_packets: false,
            announce: Announce::None,
            announcing: Announcing::default(),
            node: None,
            zone: None,
            trusted_proxies: Vec::new(),
            admin: None,
            metrics: None,
            drain_delay: Duration::ZERO,
            access_log: None,
            tracing: None,
            clusters: Vec::new(),
            dns: Dns::default(),
        }
    }
}

impl Settings {
    /// # Errors
    /// Returns settings that contradict each other, and what would be right.
    pub fn check(&self) -> Result<(), String> {
        if !self.gateway_pools.is_empty() && self.listen.is_unspecified() {
            return Err("a pool of addresses for Gateways needs --listen-address to be a single address: a wildcard address and one of the \
                host's addresses cannot both listen on the same port"
                .to_owned());
        }
        if self.publish_service.is_some() && !self.publish.is_empty() {
            return Err("--publish-address and --publish-service exclude each other".to_owned());
        }
        if self.ingress_ports.0 == self.ingress_ports.1 {
            return Err(format!("--http-port and --https-port are both {}", self.ingress_ports.0));
        }
        if self.kube_proxy_replacement {
            // Without it, connections of the node's pods to Services would lead nowhere.
            if self.socket_cgroup.is_none() {
                return Err(
                    "--kube-proxy-replacement needs --socket-cgroup, the root of this node's control groups".to_owned()
                );
            }
            if self.node.is_none() {
                return Err("--kube-proxy-replacement needs --node-name".to_owned());
            }
        }
        if self.cluster_ip_packets && !self.kube_proxy_replacement {
            return Err("--cluster-ip-packets needs --kube-proxy-replacement".to_owned());
        }
        let pools: Vec<&Pool> = self.gateway_pools.iter().chain(&self.service_pools).collect();
        for (place, pool) in pools.iter().enumerate() {
            if let Some(other) = pools.iter().skip(place + 1).find(|other| pool.overlaps(other)) {
                return Err(format!("the pools {pool} and {other} overlap"));
            }
            if pool.contains(self.listen) {
                return Err(format!("the pool {pool} contains --listen-address {}", self.listen));
            }
        }
        Ok(())
    }

    /// The addresses to write to the status of objects that are served at `listen`, unless a Service has them.
    pub fn published(&self) -> Vec<Published> {
        match self.publish.is_empty() && !self.listen.is_unspecified() {
            true => vec![Published::Address(self.listen)],
            false => self.publish.clone(),
        }
    }
}

/// How the annotations of ingress-nginx are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngressNginx {
    /// Its ConfigMap; `None` means its defaults.
    pub config_map: Option<ServiceName>,
    /// How to decide where its behaviour would be a hole.
    pub compat: Compat,
    /// The Service that gets what no Ingress takes; `None` means that it is answered 404.
    pub default_backend: Option<ServiceName>,
    /// The ConfigMap of its TCP ports.
    pub tcp_services: Option<ServiceName>,
    /// The ConfigMap of its UDP ports.
    pub udp_services: Option<ServiceName>,
    /// `ssl-passthrough` counts.
    pub passes_tls: bool,
    /// What the names of annotations begin with.
    pub prefix: Prefix,
}

/// A Secret, written `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl FromStr for SecretRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_name = |name: &str| {
            let is_fit = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
            (1..=253).contains(&name.len()) && name.bytes().all(is_fit)
        };
        match text.split_once('/') {
            Some((namespace, name)) if is_name(namespace) && is_name(name) => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err("expected a namespace and a Secret, such as infra/wildcard-tls".to_owned()),
        }
    }
}

/// The address that clients connect to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Published {
    /// An address.
    Address(IpAddr),
    /// A DNS name.
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
        Err("expected an address or a lower-case name, such as 203.0.113.7 or lb.example.com".to_owned())
    }
}

/// The namespace and name of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for ServiceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split('/').collect::<Vec<_>>()[..] {
            [namespace, name] if !namespace.is_empty() && !name.is_empty() => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err("expected NAMESPACE/NAME, such as steelyard/steelyard".to_owned()),
        }
    }
}

/// The addresses from `first` to `last`, both included and of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    first: IpAddr,
    last: IpAddr,
    /// The first and the last are the network and broadcast addresses of an IPv4 network. They are only given to an object that asks for
    /// them by name or has them already, because many hosts drop packets from or to such an address.
    has_edges: bool,
}

impl Pool {
    /// Whether the pool contains this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4() && self.first <= address && address <= self.last
    }

    /// Whether the pool has IPv4 addresses.
    pub fn is_ipv4(&self) -> bool {
        self.first.is_ipv4()
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }

    /// The addresses that can be allotted, in order. There may be 2^128 of them, so a search for a free one must stop at the first.
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
        let wrong =
            || "expected a network, a range or an address, such as 192.0.2.0/28 or 192.0.2.10-192.0.2.20".to_owned();
        if let Ok(network) = text.parse::<IpNet>() {
            // A /31 is two addresses of a link, and a /32 is one (RFC 3021).
            let has_edges = matches!(network, IpNet::V4(network) if network.prefix_len() < 31);
            return Ok(Self { first: network.network(), last: network.broadcast(), has_edges });
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let first: IpAddr = first.trim().parse().map_err(|_| wrong())?;
        let last: IpAddr = last.trim().parse().map_err(|_| wrong())?;
        if first.is_ipv4() != last.is_ipv4() || first > last {
            return Err(format!("{text} is not a range: its end is before its beginning, or is of the other family"));
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
    fn names_of_services() {
        assert_eq!("a/b".parse::<ServiceName>().unwrap().to_string(), "a/b");
        for wrong in ["", "a", "/", "a/", "/b", "a/b/c"] {
            assert!(wrong.parse::<ServiceName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_of_secrets() {
        let found: SecretRef = "infra/wildcard-tls".parse().unwrap();
        assert_eq!((found.namespace.as_str(), found.name.as_str()), ("infra", "wildcard-tls"));
        for wrong in ["wildcard-tls", "/tls", "infra/", "infra/a/b", "Infra/tls", "infra/ tls"] {
            assert!(wrong.parse::<SecretRef>().is_err(), "{wrong}");
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
        check(|s| s.kube_proxy_replacement = true, Some("--socket-cgroup"));
        check(
            |s| (s.kube_proxy_replacement, s.socket_cgroup) = (true, Some("/sys/fs/cgroup".into())),
            Some("--node-name"),
        );
        let publish = |s: &mut Settings| {
            s.publish = vec!["192.0.2.1".parse().unwrap()];
            s.publish_service = Some("a/b".parse().unwrap());
        };
        check(publish, Some("exclude each other"));
        check(|s| s.service_pools = vec!["10.0.0.0/24".parse().unwrap()], None);
        let both = |s: &mut Settings| {
            s.listen = [10, 0, 1, 1].into();
            s.interfaces = vec!["eth0".into()];
            s.gateway_pools = vec!["10.0.0.0/24".parse().unwrap()];
            s.service_pools = vec!["10.0.0.255-10.0.1.0".parse().unwrap()];
        };
        check(both, Some("overlap"));
        check(
            |s| (s.listen, s.gateway_pools) = ([10, 0, 0, 1].into(), vec!["10.0.0.1".parse().unwrap()]),
            Some("contains"),
        );
    }
}
