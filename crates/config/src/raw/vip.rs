//! The keys of the kernel plane.

use std::sync::LazyLock;

use model::{FlowTimeouts, OnUnhealthy, Transport, VipAlgorithm};

use super::{RawHealthCheck, word};
use crate::defaults;
use crate::define::{Kind, keys};
use crate::diagnostic::{Report, Wrong};
use crate::read::{Choice, Int, Many, OneOf, OneOrMany, Read, Scalar, unexpected};
use crate::text::{Address, Interface, Network, Rate, Seconds, VipAddress, VipEndpoint, duration_text};
use crate::yaml::{Node, Value};

static TCP: LazyLock<FlowTimeouts> = LazyLock::new(|| FlowTimeouts::new(Transport::Tcp));
static UDP: LazyLock<FlowTimeouts> = LazyLock::new(|| FlowTimeouts::new(Transport::Udp));

keys! {
    /// What all vips share.
    pub struct RawKernelPlane as "the kernel plane" {
        /// Connections that the kernel plane tracks at once; the packets that would open one more are dropped and counted. The table is allocated whole, some 350 bytes for each. Another number takes effect after `steelyard vip detach`.
        optional flows_max: Int<1024, 16_777_216>, default defaults::FLOWS_MAX.to_string();
    }
}

keys! {
    /// A virtual address whose packets the kernel sends on to endpoints; none of them enters user space.
    pub struct RawVip as "a vip" {
        /// The address, the port or range of ports, and the protocol: `192.0.2.1:80/tcp`, `[2001:db8::1]:5000-5010/udp`. It need not be an address of this host; packets for it must be routed here.
        required address: VipAddress;
        /// Where packets for the address, and the replies of the endpoints, arrive. Nothing is attached to any other interface. Without this key, it is where the host's routes lead: the default routes of the main table, by which clients are thought to come, and the route to each endpoint. Routes are followed as they change.
        optional interfaces: OneOrMany<Interface>, default "along the routes";
        /// Addresses of the family of `address`, with or without a port: without, it is the one that the client asked for. No names: the kernel resolves none. At least one, but none with `mode: local`.
        optional endpoints: Many<RawVipEndpoint>, default "required, but for mode local";
        /// How the endpoint of a new connection is chosen.
        optional balance: OneOf<VipAlgorithm>, default word(&defaults::VIP_ALGORITHM);
        /// What is rewritten on the way.
        optional mode: OneOf<ModeName>, default word(&ModeName::Nat);
        /// Addresses that endpoints see connections come from. With `mode: full_nat` only; at most 8.
        optional sources: OneOrMany<Address>, default "the address that this host would use towards the endpoint";
        /// A client stays with its endpoint for this long after its last new connection.
        optional affinity: Seconds, default "each connection is chosen anew";
        /// An active probe of each endpoint, over TCP whatever the protocol of the vip. It asks the endpoint's own port where `port` says no other.
        optional health_check: RawHealthCheck, default "none: endpoints are thought healthy";
        /// What becomes of TCP connections to an endpoint whose health check fails. With UDP, clients get another endpoint either way.
        optional on_unhealthy: OneOf<OnUnhealthy>, default word(&OnUnhealthy::Keep);
        /// Addresses or networks that may open connections.
        optional allow: OneOrMany<Network>, default "all";
        /// Addresses or networks that may not. Of two networks that both hold, the longer prefix decides.
        optional deny: OneOrMany<Network>, default "none";
        /// New connections of one source address; more are dropped. A rate is enough where the burst is that of one second.
        optional new_connections_per_source: RawSourceRate, default "no limit";
        /// How long a silent connection is remembered.
        optional timeouts: RawFlowTimeouts, default "as below";
    }
}

keys! {
    /// One address behind a vip.
    pub struct RawVipEndpointObject as "an endpoint of a vip" {
        /// With or without a port.
        required address: VipEndpoint;
        /// Relative to the others; 0 takes no new connections.
        optional weight: Int<0, 65535>, default defaults::WEIGHT.to_string();
    }
}

keys! {
    /// A limit on new connections, for each source address.
    pub struct RawSourceRateObject as "a rate for each source" {
        /// In the long run.
        required rate: Rate;
        /// At once, before the rate holds.
        optional burst: Int<1, 10_000_000>, default "that of one second";
    }
}

keys! {
    /// How long a connection lives in silence. In whole seconds.
    pub struct RawFlowTimeouts as "the timeouts of a vip" {
        /// From its first packet until the endpoint answers.
        optional syn: Seconds, default either(|timeouts| timeouts.syn);
        /// Afterwards, when neither side says anything. A TCP connection is then reset on both sides, except in `mode: dsr`.
        optional idle: Seconds, default either(|timeouts| timeouts.idle);
        /// After both sides have ended it and the last end was acknowledged, or one has reset it. Without the acknowledgement it is 60s.
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

/// What is rewritten, without what belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeName {
    Nat,
    FullNat,
    Dsr,
    Local,
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
            "the source too: replies come back by themselves, and endpoints see an address of this host",
        ),
        (
            "dsr",
            Self::Dsr,
            "only the link layer: each endpoint, on the same link, holds the address itself and answers the client directly",
        ),
        ("local", Self::Local, "nothing: a listener of this host serves the address, and there are no endpoints"),
    ];
}

impl Choice for OnUnhealthy {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("keep", Self::Keep, "they go on, since an endpoint that fails a probe may still serve them"),
        (
            "reset",
            Self::Reset,
            "they are reset, so that clients connect again at once; needs a `health_check`, and not with `mode: dsr`",
        ),
    ];
}

impl Choice for VipAlgorithm {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("round_robin", Self::RoundRobin, "in turn, each by its weight"),
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
