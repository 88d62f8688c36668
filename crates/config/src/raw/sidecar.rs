//! The keys of a sidecar: what it captures, and how sidecars know each other.

use model::UnknownDestination;

use super::{RawCertificate, word};
use crate::defaults;
use crate::define::{Kind, keys};
use crate::diagnostic::{Report, Wrong};
use crate::read::{Choice, Int, OneOf, OneOrMany, Read, Scalar, unexpected};
use crate::text::{Bind, DestinationText, FileName, Network, Positive, SpiffeText, duration_text};
use crate::yaml::{Node, Value};

keys! {
    /// Makes this process the sidecar of an application, whose connections the kernel redirects here (`steelyard sidecar init`). An empty mapping
    /// (`{}`) is enough: connections that no listener captures pass to their original destination, and are counted.
    pub struct RawSidecar as "the sidecar" {
        /// Connections to the application.
        optional inbound: RawInbound, default "captured, as below";
        /// Connections from the application.
        optional outbound: RawOutbound, default "captured, as below";
        /// The certificate of this sidecar, and those of others that it accepts.
        optional tls: RawSidecarTls, default "none: nothing is encrypted";
        /// How long to wait for the bytes that tell protocols apart. After that, a connection counts as one whose server sends first, and its bytes
        /// are relayed.
        optional detect_timeout: Positive, default duration_text(defaults::DETECT_TIMEOUT);
        /// How long both directions of a connection to an unknown destination may be silent; then it is closed.
        optional idle_timeout: Positive, default duration_text(defaults::TCP_IDLE_TIMEOUT);
        /// The number of the user that this process runs as. The kernel does not capture the connections of this user, or they would come back
        /// here. The application must be another user.
        optional user: Int<1, 4_294_967_294>, default defaults::SIDECAR_USER.to_string();
    }
}

keys! {
    /// Connections to the application, which the kernel redirects before they reach it.
    pub struct RawInbound as "the inbound side" {
        /// The port that they are redirected to, on every address: `:15006`, or `0.0.0.0:15006` on a host without IPv6.
        optional bind: Bind, default format!(":{}", defaults::SIDECAR_INBOUND_PORT);
        /// Whether clients must be sidecars. It also holds for ports that no listener captures.
        optional mode: OneOf<ModeOfSidecar>, default "permissive with `tls`, otherwise off";
        /// Ports that are not captured: those for probes and metrics, and those of protocols that are encrypted otherwise.
        optional exclude_ports: OneOrMany<Int<1, 65535>>, default "none";
        /// Clients whose connections are not captured, such as the node with its probes.
        optional exclude_networks: OneOrMany<Network>, default "none";
    }
}

keys! {
    /// Connections from the application. Those to the loopback, and those to the host's own addresses, are never captured.
    pub struct RawOutbound as "the outbound side" {
        /// The port that they are redirected to, on every address.
        optional bind: Bind, default format!(":{}", defaults::SIDECAR_OUTBOUND_PORT);
        /// What happens to a connection whose destination no listener captures.
        optional unknown: OneOf<UnknownDestination>, default word(&UnknownDestination::Pass);
        /// Ports that are not captured.
        optional exclude_ports: OneOrMany<Int<1, 65535>>, default "53, which is DNS over TCP";
        /// Destinations that are not captured.
        optional exclude_networks: OneOrMany<Network>, default "none";
    }
}

keys! {
    /// Mutual TLS between sidecars. Files are read again when they change.
    pub struct RawSidecarTls as "the TLS of a sidecar" {
        /// What this sidecar presents, to clients and to other sidecars: a certificate with a SPIFFE id.
        required certificate: RawCertificate;
        /// A PEM file with the CA certificates that sign those of sidecars.
        required ca: FileName;
        /// The SPIFFE ids that may connect: one id, or `spiffe://example.org/ns/shop/*` for those below a path, or `spiffe://example.org/*` for a
        /// trust domain. The certificate must have exactly one URI.
        required admit: OneOrMany<SpiffeText>;
    }
}

keys! {
    /// The connections of a sidecar that a listener serves, instead of those that arrive at a port of its own.
    pub struct RawCaptureObject as "a captured listener", one of [inbound, outbound] {
        /// Those to these ports of the application.
        optional inbound: OneOrMany<Int<1, 65535>>;
        /// Those of the application to these destinations: an address or a network with a port, or `*` for every address. The most specific
        /// one counts.
        optional outbound: OneOrMany<DestinationText>;
        /// Whether clients of these ports must be sidecars; inbound only.
        optional mode: OneOf<ModeOfSidecar>, default "that of the sidecar";
    }
}

/// What inbound connections must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeOfSidecar {
    Strict,
    Permissive,
    Off,
}

impl Choice for ModeOfSidecar {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("strict", Self::Strict, "mutual TLS with an admitted SPIFFE id; others are refused"),
        ("permissive", Self::Permissive, "the same, or plain text"),
        ("off", Self::Off, "as the client sends it: TLS passes to the application"),
    ];
}

impl Choice for UnknownDestination {
    const CHOICES: &'static [(&'static str, Self, &'static str)] =
        &[("pass", Self::Pass, "it is relayed there, byte for byte"), ("refuse", Self::Refuse, "it is reset")];
}

text_or_object! {
    /// An address to listen on, or what a sidecar captures.
    RawBind = Bind | RawCaptureObject
}

impl RawBind {
    /// Whether it captures connections of the application.
    pub fn is_outbound(&self) -> bool {
        matches!(self, Self::Object(capture) if capture.outbound.is_some())
    }
}
