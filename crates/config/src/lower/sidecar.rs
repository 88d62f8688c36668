//! The sidecar: its two listeners, and what other listeners and clusters get from it.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use model::{
    AddressRules, CaptureListener, Captured, Certificate, ClientCa, ClientLimits, ClusterTls, Destination, Detect,
    Direction, Excluded, Listener, ListenerTls, Pem, Protocol, SpiffeMatcher, SubjectAltName, TlsVersion,
    UnknownDestination,
};

use super::files::pem;
use super::route::listed;
use super::{Binds, positive, tls};
use crate::defaults;
use crate::diagnostic::{Location, Report, Wrong};
use crate::raw::{ModeOfSidecar, ProtocolName, RawCaptureObject, RawSidecar, RawSidecarTls};
use crate::read::{Int, Located, OneOrMany};
use crate::text::Network;

/// What a file says about its sidecar.
pub struct Sidecar {
    inbound: SocketAddr,
    outbound: SocketAddr,
    identity: Option<Identity>,
    mode: ModeOfSidecar,
    unknown: UnknownDestination,
    excluded: [Excluded; 2],
    detect_timeout: Duration,
    idle_timeout: Duration,
    user: u32,
}

struct Identity {
    certificate: Certificate,
    ca: Pem,
    admit: Vec<SpiffeMatcher>,
}

impl Sidecar {
    /// Lowers the section, and takes its addresses.
    pub fn new(raw: &Located<RawSidecar>, base: &Path, binds: &mut Binds, report: &mut Report) -> Self {
        let (whole, raw) = (raw.location, &raw.value);
        let inbound = raw.inbound.as_ref().map(|inbound| &inbound.value);
        let outbound = raw.outbound.as_ref().map(|outbound| &outbound.value);
        let identity = raw.tls.as_ref().and_then(|tls| identity(&tls.value, base));
        let mode = inbound.and_then(|inbound| inbound.mode.as_ref());
        if let Some(mode) = mode.filter(|mode| mode.value.0 != ModeOfSidecar::Off && raw.tls.is_none()) {
            refuse_mode(mode.location, report);
        }
        let usual = if identity.is_some() { ModeOfSidecar::Permissive } else { ModeOfSidecar::Off };
        let mut bind = |written: Option<(SocketAddr, Location)>, port: u16, report: &mut Report| {
            let (address, location) = written.unwrap_or((SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port), whole));
            if address.port() == 0 {
                let wrong = Wrong::new("connections cannot be redirected to port 0");
                report.add(location, wrong.hint(format!("write a port such as {port}")));
            }
            if !address.ip().is_unspecified() {
                let wrong = Wrong::new(format!("the kernel cannot redirect every connection to {}", address.ip()));
                let hint = format!("write `:{}`: the address depends on the connection", address.port());
                report.add(location, wrong.hint(hint));
            }
            binds.add(address, location, report);
            address
        };
        let written = inbound.and_then(|inbound| inbound.bind.as_ref()).map(|bind| (bind.value.0, bind.location));
        let inbound_bind = bind(written, defaults::SIDECAR_INBOUND_PORT, report);
        let written = outbound.and_then(|outbound| outbound.bind.as_ref()).map(|bind| (bind.value.0, bind.location));
        let outbound_bind = bind(written, defaults::SIDECAR_OUTBOUND_PORT, report);
        let mut excluded_outbound = Excluded { ports: defaults::SIDECAR_EXCLUDED_PORTS.into(), networks: Vec::new() };
        if let Some(outbound) = outbound {
            if outbound.exclude_ports.is_some() {
                excluded_outbound.ports = ports(&outbound.exclude_ports);
            }
            excluded_outbound.networks = networks(&outbound.exclude_networks);
        }
        let excluded_inbound = inbound.map_or_else(Excluded::default, |inbound| Excluded {
            ports: ports(&inbound.exclude_ports),
            networks: networks(&inbound.exclude_networks),
        });
        Self {
            inbound: inbound_bind,
            outbound: outbound_bind,
            identity,
            mode: mode.map_or(usual, |mode| mode.value.0),
            unknown: outbound
                .and_then(|outbound| outbound.unknown.as_ref())
                .map_or(UnknownDestination::Pass, |unknown| unknown.value.0),
            excluded: [excluded_inbound, excluded_outbound],
            detect_timeout: positive(&raw.detect_timeout, defaults::DETECT_TIMEOUT),
            idle_timeout: positive(&raw.idle_timeout, defaults::TCP_IDLE_TIMEOUT),
            user: raw.user.as_ref().and_then(|user| u32::try_from(user.value.0).ok()).unwrap_or(defaults::SIDECAR_USER),
        }
    }

    /// The two listeners that the kernel redirects to.
    pub fn listeners(&self) -> [Listener; 2] {
        let [inbound, outbound] = &self.excluded;
        [
            self.gate(Direction::Inbound, self.inbound, UnknownDestination::Pass, inbound, self.mode),
            self.gate(Direction::Outbound, self.outbound, self.unknown, outbound, ModeOfSidecar::Off),
        ]
    }

    fn gate(
        &self,
        direction: Direction,
        bind: SocketAddr,
        unknown: UnknownDestination,
        excluded: &Excluded,
        mode: ModeOfSidecar,
    ) -> Listener {
        Listener {
            name: direction.listener().to_owned(),
            bind,
            captured: None,
            protocol: Protocol::Capture(CaptureListener {
                direction,
                unknown,
                admits_plain: mode != ModeOfSidecar::Strict,
                detect_timeout: self.detect_timeout,
                idle_timeout: self.idle_timeout,
                excluded: excluded.clone(),
                user: self.user,
            }),
            tls: self.tls(mode),
            accept_proxy_protocol: false,
            addresses: AddressRules::default(),
            connections_max: defaults::CONNECTIONS_MAX,
            client_limits: ClientLimits::default(),
        }
    }

    fn tls(&self, mode: ModeOfSidecar) -> Option<ListenerTls> {
        let identity = self.identity.as_ref().filter(|_| mode != ModeOfSidecar::Off)?;
        Some(ListenerTls {
            certificates: vec![identity.certificate.clone()],
            hosts: Vec::new(),
            client_ca: Some(ClientCa {
                hosts: Vec::new(),
                ca: identity.ca.clone(),
                crl: None,
                spiffe_ids: identity.admit.clone(),
                verify: true,
                required: true,
            }),
            // The other end is a sidecar, too.
            min_version: TlsVersion::V1_3,
        })
    }

    /// TLS towards other sidecars with one of these ids; `None` if this one has no certificate.
    pub fn towards(&self, ids: &[SpiffeMatcher]) -> Option<ClusterTls> {
        let identity = self.identity.as_ref()?;
        Some(ClusterTls {
            server_name: None,
            subject_alt_names: ids.iter().cloned().map(SubjectAltName::Spiffe).collect(),
            ca: Some(identity.ca.clone()),
            certificate: Some(identity.certificate.clone()),
            verify: true,
        })
    }

    /// The address that the connections of a captured listener arrive at, what it captures, and its TLS.
    pub fn capture(
        &self,
        raw: &Located<&RawCaptureObject>,
        protocol: ProtocolName,
        to: Option<model::ClusterId>,
        idle_timeout: Duration,
        report: &mut Report,
    ) -> (SocketAddr, Captured, Option<ListenerTls>) {
        let capture = raw.value;
        let (direction, bind, destinations) = match &capture.inbound {
            Some(ports) => {
                let port = |port: &Int<1, 65535>| Destination { network: None, port: number(port) };
                (Direction::Inbound, self.inbound, ports.value.0.iter().map(|one| port(&one.value)).collect())
            }
            None => (Direction::Outbound, self.outbound, listed(&capture.outbound, |to| to.0)),
        };
        if let Some(mode) = &capture.mode {
            if direction == Direction::Outbound {
                let wrong = Wrong::new("`mode` is for inbound connections");
                let hint = "remove it; the `spiffe_ids` of a cluster say that its endpoints are sidecars";
                report.add(mode.location, wrong.hint(hint));
            } else if mode.value.0 != ModeOfSidecar::Off && self.identity.is_none() {
                refuse_mode(mode.location, report);
            }
        }
        let mode = match (direction, &capture.mode) {
            (Direction::Outbound, _) => ModeOfSidecar::Off,
            (Direction::Inbound, Some(mode)) => mode.value.0,
            (Direction::Inbound, None) => self.mode,
        };
        let detect = (protocol == ProtocolName::Detect).then_some(Detect { to, idle_timeout });
        let captured = Captured {
            direction,
            destinations,
            admits_plain: mode != ModeOfSidecar::Strict,
            detect,
            detect_timeout: self.detect_timeout,
        };
        (bind, captured, self.tls(mode))
    }
}

fn refuse_mode(location: Location, report: &mut Report) {
    let wrong = Wrong::new("without `tls` the sidecar has no certificate");
    report.add(
        location,
        wrong.hint("add `tls: {certificate: {cert: web.pem, key: web.key}, ca: ca.pem, admit: ...}` to `sidecar`"),
    );
}

fn identity(raw: &RawSidecarTls, base: &Path) -> Option<Identity> {
    Some(Identity {
        certificate: tls::certificate(&raw.certificate.as_ref()?.value, base)?,
        ca: pem(&raw.ca, base)?,
        admit: listed(&raw.admit, |id| id.0.clone()),
    })
}

fn number(port: &Int<1, 65535>) -> u16 {
    u16::try_from(port.0).unwrap_or_default()
}

fn ports(raw: &Option<Located<OneOrMany<Int<1, 65535>>>>) -> Vec<u16> {
    listed(raw, number)
}

fn networks(raw: &Option<Located<OneOrMany<Network>>>) -> Vec<ipnet::IpNet> {
    listed(raw, |network| network.0)
}

/// Reports destinations that two listeners capture.
pub fn refuse_twice(listeners: &[Listener], locations: &[(String, Location)], report: &mut Report) {
    let mut first: std::collections::HashMap<(Direction, String), &str> = std::collections::HashMap::new();
    for listener in listeners {
        let Some(captured) = &listener.captured else { continue };
        for destination in &captured.destinations {
            let key = (captured.direction, destination.to_string());
            let Some(other) = first.insert(key, &listener.name) else { continue };
            let location = locations.iter().find(|(name, _)| *name == listener.name).map(|(_, location)| *location);
            let what = format!("{} connections to {destination} are captured twice", captured.direction.name());
            let hint = if other == listener.name {
                "remove one of them".to_owned()
            } else {
                format!("the listener `{other}` captures them, too")
            };
            report.add(location.unwrap_or(Location::START), Wrong::new(what).hint(hint));
        }
    }
}
