//! The capture of a sidecar: rules of nftables that redirect the connections of this network namespace to it.
//!
//! Making [`Rules`] is pure, and [`Rules::install`] replaces a table of the kernel in one transaction, so that there is no moment with half of
//! the rules. No program besides this one is needed. `nft list table inet steelyard_sidecar` shows the same rules as [`Rules`] does as text.
//!
//! Both directions are redirected (nat), and the sidecar asks the kernel for the original destination. docs/design/2026-11-24-sidecar.md has
//! the reasons, and what a redirected connection costs.

mod netlink;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};
use model::{CaptureListener, Direction, Listener, Protocol, Snapshot};

/// The name of the table, of the family `inet`.
pub const TABLE: &str = "steelyard_sidecar";

/// Rules of one network namespace, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    inbound: Vec<Rule>,
    outbound: Vec<Rule>,
    /// The ports that are redirected to.
    ports: (u16, u16),
    user: u32,
}

/// A packet that meets all conditions meets this end. Each rule is for the first packet of a TCP connection; the kernel treats the others
/// alike.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    conditions: Vec<Condition>,
    end: End,
    why: &'static str,
}

/// A condition on the first packet of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    /// It arrives from, or leaves to, the loopback interface.
    Loopback(Direction),
    /// Whether its destination is an address of this namespace.
    Local(bool),
    /// It is no first SYN. The kernel takes a packet in the middle of a connection that it does not track for the first one.
    Midway,
    From(IpNet),
    To(IpNet),
    Port(u16),
    /// Its socket belongs to this user.
    User(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It is not captured.
    Return,
    /// It is redirected to this port of this namespace.
    Redirect(u16),
}

impl Rules {
    /// The rules for the sidecar of a snapshot; `None` if it has none.
    pub fn of(snapshot: &Snapshot) -> Option<Self> {
        let gate = |direction: Direction| {
            snapshot.listeners.iter().find_map(|listener: &Listener| match &listener.protocol {
                Protocol::Capture(capture) if capture.direction == direction => Some((listener.bind.port(), capture)),
                _ => None,
            })
        };
        Some(Self::new(gate(Direction::Inbound)?, gate(Direction::Outbound)?))
    }

    /// The rules for two listeners, each with its port.
    fn new(inbound: (u16, &CaptureListener), outbound: (u16, &CaptureListener)) -> Self {
        use Condition::{From, Local, Loopback, Midway, Port, To, User};
        let skip = |conditions: &[Condition], why| Rule { conditions: conditions.into(), end: End::Return, why };
        let ((inbound_port, inbound), (outbound_port, outbound)) = (inbound, outbound);
        let own = [inbound_port, outbound_port];
        let user = User(outbound.user);

        let mut to_application =
            vec![skip(&[Midway], "older than the rules"), skip(&[Loopback(Direction::Inbound)], "from this pod")];
        to_application.push(skip(&[Local(false)], "only passes through"));
        to_application.extend(own.map(|port| skip(&[Port(port)], "to the sidecar itself")));
        to_application.extend(inbound.excluded.ports.iter().map(|port| skip(&[Port(*port)], "exclude_ports")));
        to_application
            .extend(inbound.excluded.networks.iter().map(|network| skip(&[From(*network)], "exclude_networks")));
        to_application.push(Rule { conditions: Vec::new(), end: End::Redirect(inbound_port), why: "inbound" });

        let loopback: [IpNet; 2] = [
            Ipv4Net::new(Ipv4Addr::new(127, 0, 0, 0), 8).map_or_else(|_| Ipv4Net::default().into(), IpNet::from),
            IpNet::from(std::net::IpAddr::V6(Ipv6Addr::LOCALHOST)),
        ];
        let mut of_application = vec![skip(&[Midway], "older than the rules")];
        of_application.extend(loopback.map(|network| skip(&[To(network)], "to the loopback")));
        // The sidecar connects to its own application from the loopback.
        of_application.extend(loopback.map(|network| skip(&[From(network)], "from the sidecar to its application")));
        of_application.extend(own.map(|port| skip(&[Local(true), Port(port)], "to the sidecar itself")));
        // The application calls its own Service, and its own pod is chosen: the sidecar expects a sidecar there.
        let to_self = [user, Local(true)];
        of_application.extend(
            inbound
                .excluded
                .ports
                .iter()
                .map(|port| skip(&[user, Local(true), Port(*port)], "exclude_ports, to itself")),
        );
        of_application.push(Rule { conditions: to_self.into(), end: End::Redirect(inbound_port), why: "to itself" });
        of_application.push(skip(&[user], "of the sidecar"));
        of_application.push(skip(&[Local(true)], "within this pod"));
        of_application.extend(outbound.excluded.ports.iter().map(|port| skip(&[Port(*port)], "exclude_ports")));
        of_application
            .extend(outbound.excluded.networks.iter().map(|network| skip(&[To(*network)], "exclude_networks")));
        of_application.push(Rule { conditions: Vec::new(), end: End::Redirect(outbound_port), why: "outbound" });
        Self {
            inbound: to_application,
            outbound: of_application,
            ports: (inbound_port, outbound_port),
            user: outbound.user,
        }
    }

    /// Puts the rules into the network namespace of this thread, in place of those of an earlier call.
    ///
    /// # Errors
    /// What is missing, for an operator.
    pub fn install(&self) -> Result<(), String> {
        netlink::replace(self).map_err(|error| cannot(&error))
    }

    /// What they do, in one line.
    pub fn summary(&self) -> String {
        let (inbound, outbound) = self.ports;
        format!(
            "TCP connections to this network namespace go to port {inbound}, and those that leave it to port {outbound}, except those \
             of user {}",
            self.user
        )
    }
}

/// Removes the rules of [`Rules::install`] from the network namespace of this thread. Returns whether there were any.
///
/// # Errors
/// What is missing, for an operator.
pub fn remove() -> Result<bool, String> {
    match netlink::remove() {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(cannot(&error)),
    }
}

fn cannot(error: &io::Error) -> String {
    let hint = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "; run it as root, or give it CAP_NET_ADMIN in the network namespace of the application"
        }
        Some(libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT) => {
            "; this kernel has no nftables (CONFIG_NF_TABLES), or its module is not loaded: modprobe nf_tables"
        }
        Some(libc::ENOENT | libc::EOPNOTSUPP) => {
            "; this kernel lacks a part of nftables, or the module is not loaded: modprobe -a nft_chain_nat nft_redir nft_fib_inet"
        }
        _ => "",
    };
    format!("cannot change the rules of nftables: {error}{hint}")
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = |network: &IpNet| if matches!(network, IpNet::V4(_)) { "ip" } else { "ip6" };
        // A network of one address is shown as the address, as nft does.
        let network = |network: &IpNet| match network.prefix_len() == network.max_prefix_len() {
            true => network.addr().to_string(),
            false => network.trunc().to_string(),
        };
        match self {
            Self::Loopback(Direction::Inbound) => f.write_str("iiftype loopback"),
            Self::Loopback(Direction::Outbound) => f.write_str("oiftype loopback"),
            Self::Local(true) => f.write_str("fib daddr type local"),
            Self::Local(false) => f.write_str("fib daddr type != local"),
            Self::Midway => f.write_str("tcp flags & (fin | syn | rst | ack) != syn"),
            Self::From(from) => write!(f, "{} saddr {}", family(from), network(from)),
            Self::To(to) => write!(f, "{} daddr {}", family(to), network(to)),
            Self::Port(port) => write!(f, "tcp dport {port}"),
            Self::User(user) => write!(f, "meta skuid {user}"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("meta l4proto tcp ")?;
        for condition in &self.conditions {
            write!(f, "{condition} ")?;
        }
        match self.end {
            End::Return => f.write_str("return")?,
            End::Redirect(port) => write!(f, "counter redirect to :{port}")?,
        }
        write!(f, " comment \"{}\"", self.why)
    }
}

/// As a file for `nft -f`.
impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "add table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{")?;
        for (chain, hook, rules) in [("inbound", "prerouting", &self.inbound), ("outbound", "output", &self.outbound)] {
            writeln!(f, "\tchain {chain} {{\n\t\ttype nat hook {hook} priority -100; policy accept;")?;
            for rule in rules {
                writeln!(f, "\t\t{rule}")?;
            }
            f.write_str("\t}\n")?;
        }
        f.write_str("}\n")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::{Excluded, UnknownDestination};

    use super::*;

    fn rules(ports: &[u16], networks: &[&str]) -> Rules {
        let excluded =
            Excluded { ports: ports.into(), networks: networks.iter().map(|text| text.parse().unwrap()).collect() };
        let gate = |direction| CaptureListener {
            direction,
            unknown: UnknownDestination::Pass,
            admits_plain: true,
            detect_timeout: Duration::ZERO,
            idle_timeout: Duration::ZERO,
            excluded: excluded.clone(),
            user: 1337,
        };
        Rules::new((15_006, &gate(Direction::Inbound)), (15_001, &gate(Direction::Outbound)))
    }

    #[test]
    fn rules_as_text() {
        let text = rules(&[53], &["10.0.0.0/8", "fd00::1/128"]).to_string();
        let expect = "\
add table inet steelyard_sidecar
delete table inet steelyard_sidecar
table inet steelyard_sidecar {
\tchain inbound {
\t\ttype nat hook prerouting priority -100; policy accept;
\t\tmeta l4proto tcp tcp flags & (fin | syn | rst | ack) != syn return comment \"older than the rules\"
\t\tmeta l4proto tcp iiftype loopback return comment \"from this pod\"
\t\tmeta l4proto tcp fib daddr type != local return comment \"only passes through\"
\t\tmeta l4proto tcp tcp dport 15006 return comment \"to the sidecar itself\"
\t\tmeta l4proto tcp tcp dport 15001 return comment \"to the sidecar itself\"
\t\tmeta l4proto tcp tcp dport 53 return comment \"exclude_ports\"
\t\tmeta l4proto tcp ip saddr 10.0.0.0/8 return comment \"exclude_networks\"
\t\tmeta l4proto tcp ip6 saddr fd00::1 return comment \"exclude_networks\"
\t\tmeta l4proto tcp counter redirect to :15006 comment \"inbound\"
\t}
\tchain outbound {
\t\ttype nat hook output priority -100; policy accept;
\t\tmeta l4proto tcp tcp flags & (fin | syn | rst | ack) != syn return comment \"older than the rules\"
\t\tmeta l4proto tcp ip daddr 127.0.0.0/8 return comment \"to the loopback\"
\t\tmeta l4proto tcp ip6 daddr ::1 return comment \"to the loopback\"
\t\tmeta l4proto tcp ip saddr 127.0.0.0/8 return comment \"from the sidecar to its application\"
\t\tmeta l4proto tcp ip6 saddr ::1 return comment \"from the sidecar to its application\"
\t\tmeta l4proto tcp fib daddr type local tcp dport 15006 return comment \"to the sidecar itself\"
\t\tmeta l4proto tcp fib daddr type local tcp dport 15001 return comment \"to the sidecar itself\"
\t\tmeta l4proto tcp meta skuid 1337 fib daddr type local tcp dport 53 return comment \"exclude_ports, to itself\"
\t\tmeta l4proto tcp meta skuid 1337 fib daddr type local counter redirect to :15006 comment \"to itself\"
\t\tmeta l4proto tcp meta skuid 1337 return comment \"of the sidecar\"
\t\tmeta l4proto tcp fib daddr type local return comment \"within this pod\"
\t\tmeta l4proto tcp tcp dport 53 return comment \"exclude_ports\"
\t\tmeta l4proto tcp ip daddr 10.0.0.0/8 return comment \"exclude_networks\"
\t\tmeta l4proto tcp ip6 daddr fd00::1 return comment \"exclude_networks\"
\t\tmeta l4proto tcp counter redirect to :15001 comment \"outbound\"
\t}
}
";
        assert_eq!(text, expect);
    }
}
