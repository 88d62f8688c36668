//! The keys of the kernel plane.

use std::sync::LazyLock;

use model::{Announce, Announcing, FlowTimeouts, OnUnhealthy, Transport, Tunnel, VipAlgorithm};

use super::{RawHealthCheck, word};
use crate::defaults;
use crate::define::{Kind, keys};
use crate::diagnostic::{Report, Wrong};
use crate::read::{Choice, Int, Many, OneOf, OneOrMany, Read, Scalar, unexpected};
use crate::text::{Address, Folder, Interface, Network, Rate, Seconds, VipAddress, VipEndpoint, Wait, duration_text};
use crate::yaml::{Node, Value};

static TCP: LazyLock<FlowTimeouts> = LazyLock::new(|| FlowTimeouts::new(Transport::Tcp));
static UDP: LazyLock<FlowTimeouts> = LazyLock::new(|| FlowTimeouts::new(Transport::Udp));

keys! {
    /// What all vips share.
    pub struct RawKernelPlane as "the kernel plane" {
        /// Connections that the kernel plane tracks at once; above this limit, packets that would open a connection are dropped and
        /// counted. The table is allocated in full, at about 350 bytes per connection. A changed number takes effect after `steelyard vip
        /// detach`.
        optional flows_max: Int<1024, 16_777_216>, default defaults::FLOWS_MAX.to_string();
        /// Balances connections of this host's own processes to vips at the socket: `connect` and `sendto` get an endpoint, and no packet
        /// is translated. This is for the processes of this control group (version 2) and of all below it, in any network namespace;
        /// the root of the hierarchy is usually `/sys/fs/cgroup`.
        optional socket_cgroup: Folder, default "none: only packets that arrive at interfaces are balanced";
        /// How the network learns that this host serves the addresses of vips, for those that do not say so themselves.
        optional announce: OneOf<Announce>, default word(&Announce::None);
        /// After an address was withdrawn because its vips were not usable, it is announced again once one of them has been usable for this
        /// long without a break.
        optional announce_after: Wait, default duration_text(Announcing::default().after);
        /// The routing table for the routes of `announce: route`; 254 is the main one.
        optional route_table: Int<1, 4_294_967_295>, default Announcing::default().table.to_string();
        /// The metric of these routes.
        optional route_metric: Int<1, 4_294_967_295>, default Announcing::default().metric.to_string();
    }
}

keys! {
    /// A virtual address whose packets the kernel forwards to endpoints; none of them enters user space.
    pub struct RawVip as "a vip" {
        /// The address, the port or range of ports, and the protocol: `192.0.2.1:80/tcp`, `[2001:db8::1]:5000-5010/udp`. It need not be an
        /// address of this host, but packets for it must be routed here. `0.0.0.0` or `[::]` with one port stands for every address that
        /// this host has, up to 16, except those of the loopback and of a link; it follows changes of them.
        required address: VipAddress;
        /// The interfaces on which packets for the address and replies of the endpoints arrive. Steelyard attaches to no other interface.
        /// In a name, `*` stands for any characters: `eth*` follows such interfaces as they come and go, without the loopback and tunnels.
        /// Without this key it follows the host's routes: the default routes of the main table, where clients are expected, and the route
        /// to each endpoint. It also follows changes of these routes.
        optional interfaces: OneOrMany<Interface>, default "along the routes";
        /// Addresses of the same family as `address`, with or without a port. Without a port, the endpoint gets connections on the port
        /// that the client connected to. Names are not allowed, because the kernel cannot resolve them. At least one endpoint is required,
        /// except with `mode: local`, where none is allowed.
        optional endpoints: Many<RawVipEndpoint>, default "required, except in mode local";
        /// How the endpoint of a new connection is chosen.
        optional balance: OneOf<VipAlgorithm>, default word(&defaults::VIP_ALGORITHM);
        /// Which addresses and ports are rewritten.
        optional mode: OneOf<ModeName>, default word(&ModeName::Nat);
        /// What packets travel in on their way to endpoints behind a router, which take them out again. Only with `mode: dsr`.
        optional tunnel: OneOf<Tunnel>, default "none: the endpoints are on the same link";
        /// The addresses from which endpoints see connections. Only with `mode: full_nat`; at most 8.
        optional sources: OneOrMany<Address>, default "the address that this host would use to reach the endpoint";
        /// A client stays with its endpoint for this long after its last new connection.
        optional affinity: Seconds, default "each connection is chosen anew";
        /// An active probe of each endpoint. It uses TCP whatever the protocol of the vip, and the endpoint's own port unless `port` is
        /// set.
        optional health_check: RawHealthCheck, default "none: endpoints count as healthy";
        /// What happens to TCP connections to an endpoint whose health check fails. Datagrams of UDP clients go to another endpoint in any case,
        /// except those of a UDP socket of this host that is connected to a vip: its connection is treated as one of TCP.
        optional on_unhealthy: OneOf<OnUnhealthy>, default word(&OnUnhealthy::Keep);
        /// Addresses or networks that may open connections.
        optional allow: OneOrMany<Network>, default "all";
        /// Addresses or networks that may not open connections. If an address is in several networks, the longest prefix decides.
        optional deny: OneOrMany<Network>, default "none";
        /// New connections per second from one source address; connections above the rate are dropped. A rate alone sets the burst to the
        /// connections of one second.
        optional new_connections_per_source: RawSourceRate, default "no limit";
        /// How the network learns that this host serves the address. If several vips have the address, it is announced while one of those
        /// that ask for it is usable.
        optional announce: OneOf<Announce>, default "that of `kernel_plane`";
        /// How long a silent connection is remembered.
        optional timeouts: RawFlowTimeouts, default "as below";
    }
}

keys! {
    /// One address behind a vip.
    pub struct RawVipEndpointObject as "an endpoint of a vip" {
        /// With or without a port.
        required address: VipEndpoint;
        /// Relative to the other weights; an endpoint with weight 0 takes no new connections.
        optional weight: Int<0, 65535>, default defaults::WEIGHT.to_string();
    }
}

keys! {
    /// A limit on new connections from each source address.
    pub struct RawSourceRateObject as "a rate for each source" {
        /// Connections per second, in the long run.
        required rate: Rate;
        /// Connections that may come at once, before the rate applies.
        optional burst: Int<1, 10_000_000>, default "the connections of one second";
    }
}

keys! {
    /// How long a connection may be silent before it is forgotten. In whole seconds.
    pub struct RawFlowTimeouts as "the timeouts of a vip" {
        /// From its first packet until the endpoint answers.
        optional syn: Seconds, default either(|timeouts| timeouts.syn);
        /// After that, while neither side sends anything. A TCP connection is then reset on both sides, except in `mode: dsr`.
        optional idle: Seconds, default either(|timeouts| timeouts.idle);
        /// After both sides have closed the connection and the last FIN was acknowledged, or after one side has reset it. Without the
        /// acknowledgement it is 60s.
        optional closing: Seconds, default duration_text(TCP.closing);
    }
}

/// A default that differs by protocol.
fn either(of: fn(&FlowTimeouts) -> std::time::Duration) -> String {
    format!("{} (tcp), {} (udp)", duration_text(of(&TCP)), duration_text(of(&UDP)))
}

text_or_object! {
    /// An address, or the address and its weight.
    RawVipEndpoint = VipEndpoint | RawVipEndpointObject
}
text_or_object! {
    /// A rate, or the rate and the burst.
    RawSourceRate = Rate | RawSourceRateObject
}

/// The mode without its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeName {
    Nat,
    FullNat,
    Dsr,
    Local,
    Socket,
}

impl ModeName {
    pub fn name(self) -> &'static str {
        word(&self)
    }
}

impl Choice for ModeName {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        (
            "nat",
            Self::Nat,
            "the destination; endpoints see the client's address, and their replies must be routed through this host",
        ),
        (
            "full_nat",
            Self::FullNat,
            "the source too: replies return without extra routes, and endpoints see an address of this host",
        ),
        (
            "dsr",
            Self::Dsr,
            "only the link layer: each endpoint is on the same link, or behind a `tunnel`, holds the address itself and answers the client directly",
        ),
        ("local", Self::Local, "nothing: a listener on this host serves the address, and there are no endpoints"),
        (
            "socket",
            Self::Socket,
            "nothing, and no packet is touched: processes of `kernel_plane.socket_cgroup` get an endpoint when they connect. Another vip may \
            have the same address, for packets of others",
        ),
    ];
}

impl Choice for Announce {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("none", Self::None, "not by Steelyard: packets for the address are routed to this host by other means"),
        (
            "route",
            Self::Route,
            "a route of this host, which a routing daemon passes on; it exists as long as the vip has a usable endpoint",
        ),
        (
            "l2",
            Self::L2,
            "this host answers ARP and neighbour discovery for the address, on the link that it belongs to, as long as the vip has a usable \
            endpoint. For one host: nothing keeps two with this setting from answering both",
        ),
    ];
}

impl Choice for Tunnel {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        (
            "ipip",
            Self::Ipip,
            "another IP packet (RFC 2003, RFC 2473); the MTU shrinks by 20 bytes with IPv4 and by 40 with IPv6",
        ),
        (
            "gue",
            Self::Gue,
            "a UDP datagram to port 6080 (Generic UDP Encapsulation), whose source port differs by connection, so that routers and network \
            cards spread them; the MTU shrinks by 32 bytes with IPv4 and by 52 with IPv6",
        ),
    ];
}

impl Choice for OnUnhealthy {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("keep", Self::Keep, "they continue, because an endpoint that fails a probe may still serve them"),
        (
            "reset",
            Self::Reset,
            "they are reset, so that clients reconnect at once; needs a `health_check`, and is not possible with `mode: dsr`",
        ),
    ];
}

impl Choice for VipAlgorithm {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        (
            "round_robin",
            Self::RoundRobin,
            "in turn, each by its weight; each CPU that gets connections has its own turn",
        ),
        ("random", Self::Random, "at random, by weight"),
        (
            "maglev",
            Self::Maglev,
            "consistent hashing of addresses, ports and protocol: every Steelyard picks the same endpoint",
        ),
        ("source_hash", Self::SourceHash, "consistent hashing of the client's address alone"),
        ("least_connections", Self::LeastConnections, "the better of two at random, by open connections over weight"),
    ];
}
