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

/// The table that stays after [`remove`], for the connections that were captured. The kernel forgets how to translate them when the last
/// rule that needs it is gone.
pub const TABLE_ENDED: &str = "steelyard_sidecar_ended";

/// Rules of one network namespace, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// For the first packet of each connection; the kernel treats the others alike.
    inbound: Vec<Rule>,
    outbound: Vec<Rule>,
    /// For each packet. The kernel does not translate the address of one that it does not find in its connection: it would reach a port
    /// without this connection, whose reset ends it, or leave in plain text instead of going to the sidecar.
    invalid_inbound: Vec<Rule>,
    invalid_outbound: Vec<Rule>,
    /// The ports that are redirected to.
    ports: (u16, u16),
    user: u32,
}

/// A TCP packet that meets all conditions meets this end.
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
    /// The kernel has found its connection, or takes it for the first packet of one.
    Valid,
    /// It ends a connection. The kernel takes it for an invalid packet if it is the first one that it sees of a connection.
    Reset,
    ResetOrEnd,
    From(IpNet),
    To(IpNet),
    Port(u16),
    SourcePort(u16),
    /// Its socket belongs to this user.
    User(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It is not captured.
    Return,
    /// It is redirected to this port of this namespace.
    Redirect(u16),
    /// It is dropped. TCP sends again what is missing.
    Drop,
}

/// Where rules are applied.
struct Chain {
    name: &'static str,
    /// What the kernel calls the type of the chain.
    kind: &'static str,
    hook: Hook,
    priority: i32,
}

#[derive(Clone, Copy)]
enum Hook {
    Prerouting,
    Output,
}

/// `NF_IP_PRI_NAT_DST`.
const PRIORITY_NAT: i32 = -100;
/// `NF_IP_PRI_MANGLE`: after the connection of a packet was looked up, and before its address is translated.
const PRIORITY_MANGLE: i32 = -150;

const INBOUND: Chain = Chain { name: "inbound", kind: "nat", hook: Hook::Prerouting, priority: PRIORITY_NAT };
const OUTBOUND: Chain = Chain { name: "outbound", kind: "nat", hook: Hook::Output, priority: PRIORITY_NAT };
const INVALID_INBOUND: Chain =
    Chain { name: "invalid_inbound", kind: "filter", hook: Hook::Prerouting, priority: PRIORITY_MANGLE };
const INVALID_OUTBOUND: Chain =
    Chain { name: "invalid_outbound", kind: "filter", hook: Hook::Output, priority: PRIORITY_MANGLE };

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
        let (invalid_inbound, invalid_outbound) = invalid(inbound, outbound, own);
        Self {
            inbound: to_application,
            outbound: of_application,
            invalid_inbound,
            invalid_outbound,
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

    fn chains(&self) -> [(Chain, &[Rule]); 4] {
        [
            (INBOUND, &self.inbound),
            (OUTBOUND, &self.outbound),
            (INVALID_INBOUND, &self.invalid_inbound),
            (INVALID_OUTBOUND, &self.invalid_outbound),
        ]
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

fn skip(conditions: &[Condition], why: &'static str) -> Rule {
    Rule { conditions: conditions.into(), end: End::Return, why }
}

/// The rules for packets that belong to no connection, of both directions. They leave alone what is not captured.
fn invalid(inbound: &CaptureListener, outbound: &CaptureListener, own: [u16; 2]) -> (Vec<Rule>, Vec<Rule>) {
    use Condition::{From, Local, Loopback, Port, Reset, ResetOrEnd, SourcePort, To, User, Valid};
    let drop = |conditions: &[Condition], why| Rule { conditions: conditions.into(), end: End::Drop, why };
    let ports = |excluded: &model::Excluded| -> Vec<Rule> {
        excluded.ports.iter().map(|port| skip(&[Port(*port)], "exclude_ports")).collect()
    };
    let begin = |end| vec![skip(&[Valid], "in its connection"), skip(&[end], "the end of a connection")];

    let mut inbound_rules = begin(ResetOrEnd);
    inbound_rules.push(skip(&[Loopback(Direction::Inbound)], "from this pod"));
    inbound_rules.push(skip(&[Local(false)], "only passes through"));
    inbound_rules.extend(ports(&inbound.excluded));
    inbound_rules.extend(inbound.excluded.networks.iter().map(|network| skip(&[From(*network)], "exclude_networks")));
    inbound_rules.push(drop(&[], "of no connection"));

    let mut outbound_rules = begin(Reset);
    outbound_rules.push(skip(&[Loopback(Direction::Outbound)], "within this pod"));
    // The sidecar answers from these ports, which its clients have never seen.
    outbound_rules.extend(own.map(|port| drop(&[SourcePort(port)], "of no connection of the sidecar")));
    outbound_rules.push(skip(&[User(outbound.user)], "of the sidecar"));
    outbound_rules.extend(ports(&outbound.excluded));
    outbound_rules.extend(outbound.excluded.networks.iter().map(|network| skip(&[To(*network)], "exclude_networks")));
    outbound_rules.push(drop(&[], "of no connection"));
    (inbound_rules, outbound_rules)
}

/// Removes the rules of [`Rules::install`] from the network namespace of this thread, so that no new connection is captured. Those that
/// were captured stay translated ([`TABLE_ENDED`]) until [`remove_completely`]. Returns whether there were any rules.
///
/// # Errors
/// What is missing, for an operator.
pub fn remove() -> Result<bool, String> {
    is_found(netlink::end())
}

/// Removes the rules, and what translates the connections that were captured: they break. Returns whether there was anything.
///
/// # Errors
/// What is missing, for an operator.
pub fn remove_completely() -> Result<bool, String> {
    let rules = is_found(netlink::remove(TABLE))?;
    Ok(is_found(netlink::remove(TABLE_ENDED))? || rules)
}

fn is_found(removed: io::Result<()>) -> Result<bool, String> {
    match removed {
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
            "; this kernel lacks a part of nftables, or the module is not loaded: modprobe -a nft_chain_nat nft_redir nft_fib_inet nft_ct"
        }
        _ => "",
    };
    format!("cannot change the rules of nftables: {error}{hint}")
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prerouting => "prerouting",
            Self::Output => "output",
        })
    }
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
            Self::Valid => f.write_str("ct state != invalid"),
            Self::Reset => f.write_str("tcp flags & rst != 0"),
            Self::ResetOrEnd => f.write_str("tcp flags & (fin | rst) != 0"),
            Self::From(from) => write!(f, "{} saddr {}", family(from), network(from)),
            Self::To(to) => write!(f, "{} daddr {}", family(to), network(to)),
            Self::Port(port) => write!(f, "tcp dport {port}"),
            Self::SourcePort(port) => write!(f, "tcp sport {port}"),
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
            End::Drop => f.write_str("counter drop")?,
        }
        write!(f, " comment \"{}\"", self.why)
    }
}

/// As a file for `nft -f`.
impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for table in [TABLE, TABLE_ENDED] {
            writeln!(f, "add table inet {table}\ndelete table inet {table}")?;
        }
        writeln!(f, "table inet {TABLE} {{")?;
        for (chain, rules) in self.chains() {
            let Chain { name, kind, hook, priority } = chain;
            writeln!(f, "\tchain {name} {{\n\t\ttype {kind} hook {hook} priority {priority}; policy accept;")?;
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
add table inet steelyard_sidecar_ended
delete table inet steelyard_sidecar_ended
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
\tchain invalid_inbound {
\t\ttype filter hook prerouting priority -150; policy accept;
\t\tmeta l4proto tcp ct state != invalid return comment \"in its connection\"
\t\tmeta l4proto tcp tcp flags & (fin | rst) != 0 return comment \"the end of a connection\"
\t\tmeta l4proto tcp iiftype loopback return comment \"from this pod\"
\t\tmeta l4proto tcp fib daddr type != local return comment \"only passes through\"
\t\tmeta l4proto tcp tcp dport 53 return comment \"exclude_ports\"
\t\tmeta l4proto tcp ip saddr 10.0.0.0/8 return comment \"exclude_networks\"
\t\tmeta l4proto tcp ip6 saddr fd00::1 return comment \"exclude_networks\"
\t\tmeta l4proto tcp counter drop comment \"of no connection\"
\t}
\tchain invalid_outbound {
\t\ttype filter hook output priority -150; policy accept;
\t\tmeta l4proto tcp ct state != invalid return comment \"in its connection\"
\t\tmeta l4proto tcp tcp flags & rst != 0 return comment \"the end of a connection\"
\t\tmeta l4proto tcp oiftype loopback return comment \"within this pod\"
\t\tmeta l4proto tcp tcp sport 15006 counter drop comment \"of no connection of the sidecar\"
\t\tmeta l4proto tcp tcp sport 15001 counter drop comment \"of no connection of the sidecar\"
\t\tmeta l4proto tcp meta skuid 1337 return comment \"of the sidecar\"
\t\tmeta l4proto tcp tcp dport 53 return comment \"exclude_ports\"
\t\tmeta l4proto tcp ip daddr 10.0.0.0/8 return comment \"exclude_networks\"
\t\tmeta l4proto tcp ip6 daddr fd00::1 return comment \"exclude_networks\"
\t\tmeta l4proto tcp counter drop comment \"of no connection\"
\t}
}
";
        assert_eq!(text, expect);
    }
}
