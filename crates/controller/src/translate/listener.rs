//! What a listener of a Gateway or ListenerSet can be: the kinds that it serves, its certificates, what excludes it, its places.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use model::{AdminAddress, Transport};

use super::bind::{Binds, Speaks};
use super::gateway::{Plan, Slot};
use super::policy::Authority;
use super::reference::{self, Why};
use super::{Circumstances, lower, service};
use crate::index::{Index, Keypair, Kind, Name, RouteKind};
use crate::objects::{GROUP, ListenerSpec, RouteGroupKind};
use crate::settings::Settings;

pub(crate) fn slot<'i>(index: &'i Index, plan: &Plan<'i>, owner: (Kind, &'i Name), spec: &'i ListenerSpec) -> Slot<'i> {
    let mut slot = Slot {
        owner,
        gateway: plan.name,
        spec,
        kinds: Vec::new(),
        places: Vec::new(),
        conflict: None,
        refused: None,
        references: None,
        certificates: Vec::new(),
        client_ca: None,
        attached: BTreeSet::new(),
        hosts: Default::default(),
    };
    let Some(possible) = kinds_of(&spec.protocol) else {
        let message = format!("the protocol {} is not spoken; HTTP, HTTPS, TLS, TCP and UDP are", spec.protocol);
        slot.refused = Some(Why::new("UnsupportedProtocol", message));
        return slot;
    };
    let wanted = spec.allowed_routes.as_ref().map(|allowed| allowed.kinds.as_slice()).unwrap_or_default();
    let (kinds, unknown) = kinds(wanted, possible);
    slot.kinds = kinds;
    if let Some(unknown) = unknown {
        slot.references =
            Some(Why::new("InvalidRouteKinds", format!("a {} listener serves no {unknown}", spec.protocol)));
    }
    if let Some(field) = spec.others.keys().next() {
        slot.refused = Some(Why::new("UnsupportedValue", format!("`{field}` is not supported")));
    }
    match spec.protocol.as_str() {
        "HTTPS" => {
            terminate(index, &mut slot);
            ask_clients(index, plan, &mut slot);
        }
        "TLS" if spec.tls.as_ref().and_then(|tls| tls.mode.as_deref()) != Some("Passthrough") => {
            let message = "TLS is passed through unopened here: tls.mode must be Passthrough (HTTPS opens it)";
            slot.refused = Some(Why::new("UnsupportedValue", message));
        }
        _ => {}
    }
    if slot.refused.as_ref().is_some_and(|why| why.reason == "UnsupportedValue") {
        // The API wants the kinds that are supported for this listener as it is written, and it is not served as it is written.
        slot.kinds.clear();
    }
    slot
}

fn kinds_of(protocol: &str) -> Option<&'static [RouteKind]> {
    Some(match protocol {
        "HTTP" | "HTTPS" => lower::HTTP_KINDS,
        "TLS" => &[RouteKind::Tls],
        "TCP" => &[RouteKind::Tcp],
        "UDP" => &[RouteKind::Udp],
        _ => return None,
    })
}

/// Those of the wanted kinds that are possible, and the first that is not.
fn kinds(wanted: &[RouteGroupKind], possible: &[RouteKind]) -> (Vec<RouteKind>, Option<String>) {
    if wanted.is_empty() {
        return (possible.to_vec(), None);
    }
    let find = |wanted: &RouteGroupKind| {
        let is_ours = wanted.group.as_deref().is_none_or(|group| group == GROUP);
        possible.iter().copied().find(|kind| is_ours && kind.name() == wanted.kind)
    };
    let unknown = wanted.iter().find(|wanted| find(wanted).is_none()).map(|unknown| unknown.kind.clone());
    (wanted.iter().filter_map(find).collect(), unknown)
}

/// Finds the certificates of a listener that opens TLS.
fn terminate(index: &Index, slot: &mut Slot<'_>) {
    let Some(tls) = &slot.spec.tls else {
        slot.references = Some(Why::new("InvalidCertificateRef", "an HTTPS listener needs tls.certificateRefs"));
        return;
    };
    if tls.mode.as_deref().is_some_and(|mode| mode != "Terminate") {
        slot.refused = Some(Why::new("UnsupportedValue", "an HTTPS listener opens TLS: tls.mode must be Terminate"));
    }
    if let Some(field) = tls.options.keys().chain(tls.others.keys()).next() {
        slot.refused = Some(Why::new("UnsupportedValue", format!("`{field}` in tls is not supported")));
    }
    if tls.certificate_refs.is_empty() {
        slot.references = Some(Why::new("InvalidCertificateRef", "tls.certificateRefs names no Secret"));
    }
    let (kind, namespace) = (slot.owner.0, &slot.owner.1.namespace);
    let kind = if kind == Kind::Gateway { "Gateway" } else { "ListenerSet" };
    for reference in &tls.certificate_refs {
        let found = reference::core_object(index, kind, namespace, "Secret", reference, "InvalidCertificateRef");
        match found.and_then(|name| certificate(index, name)) {
            Ok((name, keypair, wrong)) => {
                slot.certificates.push((name, keypair));
                slot.references = slot.references.take().or(wrong);
            }
            Err(why) => slot.references = slot.references.take().or(Some(why)),
        }
    }
}

/// Finds what the Gateway asks of the clients of this listener.
fn ask_clients(index: &Index, plan: &Plan<'_>, slot: &mut Slot<'_>) {
    let Some(frontend) = plan.entry.spec.tls.as_ref().and_then(|tls| tls.frontend.as_ref()) else { return };
    let of_port = frontend.per_port.iter().find(|of| of.port == slot.spec.port).map(|of| &of.tls);
    let Some(validation) = &of_port.unwrap_or(&frontend.default).validation else { return };
    if validation.mode.as_deref().is_some_and(|mode| mode != "AllowValidOnly") {
        let message = "tls.frontend: clients without a valid certificate cannot be let in beside others";
        slot.refused = Some(Why::new("UnsupportedValue", message));
        return;
    }
    let found = match validation.ca_certificate_refs.as_slice() {
        [reference] => {
            let (kind, namespace) = ("Gateway", &plan.name.namespace);
            reference::core_object(index, kind, namespace, "ConfigMap", reference, "InvalidCACertificateKind")
        }
        _ => Err(Why::new("InvalidCACertificateRef", "tls.frontend: one of caCertificateRefs is needed, and no more")),
    };
    let invalid = |message| Why::new("InvalidCACertificateRef", message);
    match found.and_then(|name| Authority::find(index, name).map_err(invalid)) {
        Ok(authority) => slot.client_ca = Some(authority.pem()),
        Err(why) => {
            // Everybody would be let in, or nobody: it is not served at all.
            slot.refused = Some(Why::new("NoValidCACertificate", why.message.clone()));
            slot.references = slot.references.take().or(Some(why));
        }
    }
}

/// The certificate in a Secret; besides it what is wrong with the Secret as it is now, where the one before is still in use.
///
/// # Errors
/// There is none of any use.
pub(crate) fn certificate(index: &Index, name: Name) -> Result<(Name, Keypair, Option<Why>), Why> {
    let invalid = |message: String| Why::new("InvalidCertificateRef", message);
    let Some(secret) = index.secrets.get(&name) else {
        let secret = format!("Secret {name} of type kubernetes.io/tls");
        return Err(invalid(index.unknown(Kind::Secret, &name.namespace, &secret)));
    };
    match (&secret.good, &secret.wrong) {
        (Some(good), None) => Ok((name, good.clone(), None)),
        (Some(good), Some(wrong)) => {
            let why = invalid(format!("Secret {name}: {wrong}; the certificate that it had before stays in use"));
            Ok((name, good.clone(), Some(why)))
        }
        (None, wrong) => {
            Err(invalid(format!("Secret {name}: {}", wrong.as_deref().unwrap_or("there is no certificate in it"))))
        }
    }
}

/// What the listeners of a Gateway and its older ListenerSets hold already. A listener that is not accepted holds nothing.
#[derive(Default)]
pub(crate) struct Held<'i> {
    /// The protocol of each port, with the name of a listener that speaks it.
    protocols: BTreeMap<Port, (&'i str, &'i str)>,
    /// The names of each port, with the name of the listener.
    hosts: HashMap<(Port, String), &'i str>,
}

impl<'i> Held<'i> {
    /// Those of these listeners that were accepted.
    pub(crate) fn add(&mut self, slots: &[Slot<'i>]) {
        for slot in slots.iter().filter(|slot| slot.is_accepted()) {
            let (port, spec) = (port_of(slot), slot.spec);
            self.protocols.entry(port).or_insert((&spec.protocol, &spec.name));
            self.hosts.entry((port, host_of(slot))).or_insert(&spec.name);
        }
    }

    fn conflict(&self, slot: &Slot<'_>) -> Option<Why> {
        let port = port_of(slot);
        let (protocol, name) = self.protocols.get(&port)?;
        if *protocol != slot.spec.protocol {
            return Some(other_protocol(slot, name, protocol));
        }
        self.hosts.get(&(port, host_of(slot))).map(|name| same_host(slot, name))
    }
}

/// Marks the listeners of one owner that cannot be served: first those that want what an older owner holds, then those of the rest that exclude
/// each other, none of which is preferred.
pub(crate) fn conflicts(slots: &mut [Slot<'_>], held: &Held<'_>) {
    for slot in slots.iter_mut().filter(|slot| slot.is_accepted()) {
        slot.conflict = held.conflict(slot);
    }
    let found: Vec<(usize, Why)> = {
        let peers = Peers::of(slots);
        let accepted = slots.iter().enumerate().filter(|(_, slot)| slot.is_accepted());
        accepted.filter_map(|(place, slot)| Some((place, peers.conflict(slots, place, slot)?))).collect()
    };
    for (place, why) in found {
        if let Some(slot) = slots.get_mut(place) {
            slot.conflict = Some(why);
        }
    }
}

/// A port; UDP is apart.
type Port = (u16, bool);

/// Where the accepted listeners of one owner are among all of its own: nothing here compares each with each, of which there may be thousands.
struct Peers<'s> {
    protocols: BTreeMap<Port, BTreeMap<&'s str, usize>>,
    hosts: HashMap<(Port, &'s str, String), Vec<usize>>,
}

impl<'s> Peers<'s> {
    fn of(slots: &'s [Slot<'_>]) -> Self {
        let mut peers = Self { protocols: BTreeMap::new(), hosts: HashMap::new() };
        for (place, slot) in slots.iter().enumerate().filter(|(_, slot)| slot.is_accepted()) {
            let (port, protocol) = (port_of(slot), slot.spec.protocol.as_str());
            peers.protocols.entry(port).or_default().entry(protocol).or_insert(place);
            peers.hosts.entry((port, protocol, host_of(slot))).or_default().push(place);
        }
        peers
    }

    fn conflict(&self, slots: &[Slot<'_>], place: usize, slot: &Slot<'_>) -> Option<Why> {
        let (port, protocol) = (port_of(slot), slot.spec.protocol.as_str());
        let mut others = self.protocols.get(&port)?.iter().filter(|(other, _)| **other != protocol);
        if let Some((other, with)) = others.next().and_then(|(other, at)| Some((other, slots.get(*at)?))) {
            return Some(other_protocol(slot, &with.spec.name, other));
        }
        let places = self.hosts.get(&(port, protocol, host_of(slot)))?;
        let with = places.iter().take(2).find(|other| **other != place).and_then(|other| slots.get(*other))?;
        Some(same_host(slot, &with.spec.name))
    }
}

fn other_protocol(slot: &Slot<'_>, other: &str, protocol: &str) -> Why {
    let ListenerSpec { port, protocol: own, .. } = slot.spec;
    Why::new("ProtocolConflict", format!("port {port}: listener {other} speaks {protocol}, this one {own}"))
}

fn same_host(slot: &Slot<'_>, other: &str) -> Why {
    let host = slot.hostname().unwrap_or("every host");
    Why::new("HostnameConflict", format!("port {}: listener {other} is for {host} too", slot.spec.port))
}

fn port_of(slot: &Slot<'_>) -> Port {
    (slot.spec.port, slot.is_udp())
}

fn host_of(slot: &Slot<'_>) -> String {
    slot.hostname().unwrap_or_default().to_ascii_lowercase()
}

/// Claims the places of a listener: all of them, or none and it says why.
pub(crate) fn claim(
    slot: &mut Slot<'_>,
    plan: &Plan<'_>,
    settings: &Settings,
    circumstances: &Circumstances,
    binds: &mut Binds,
) {
    let (true, None, Ok(places)) = (slot.is_accepted(), &plan.refused, &plan.places) else { return };
    let places: Vec<SocketAddr> = places.iter().map(|ip| SocketAddr::new(*ip, slot.spec.port)).collect();
    slot.refused = places.iter().find_map(|place| unavailable(*place, slot, settings, circumstances, binds));
    if slot.refused.is_some() {
        return;
    }
    for place in &places {
        let Some(speaks) = speaks(slot) else { continue };
        binds.open(*place, speaks);
        if speaks == Speaks::Https {
            binds.note_clients(*place, slot.hostname(), slot.client_ca.as_ref());
        }
        slot.certificates.iter().for_each(|(secret, keypair)| binds.certificate(*place, secret, keypair));
    }
    slot.places = places;
}

/// What the proxy plane speaks there; `None`: it is the kernel plane's.
fn speaks(slot: &Slot<'_>) -> Option<Speaks> {
    match slot.spec.protocol.as_str() {
        "HTTP" => Some(Speaks::Http),
        "HTTPS" => Some(Speaks::Https),
        "TLS" => Some(Speaks::Tls),
        "TCP" => Some(Speaks::Tcp),
        _ => None,
    }
}

/// Why a listener cannot have this place; `None`: it can. Changes nothing.
fn unavailable(
    place: SocketAddr,
    slot: &Slot<'_>,
    settings: &Settings,
    circumstances: &Circumstances,
    binds: &Binds,
) -> Option<Why> {
    let port = |message: String| Why::new("PortUnavailable", message);
    let Some(speaks) = speaks(slot) else { return no_udp(place, settings) };
    let admin = match &settings.admin {
        Some(AdminAddress::Socket(address)) => Some(*address),
        Some(AdminAddress::Path(_)) | None => None,
    };
    if admin.into_iter().chain(settings.metrics).any(|own| overlap(own, place)) {
        return Some(port(format!("this process answers its own questions at port {}", place.port())));
    }
    if let Some(why) = circumstances.binds.get(&place) {
        return Some(port(why.clone()));
    }
    if let Err(why) = binds.may_speak(place, speaks) {
        return Some(port(why));
    }
    let asked = match speaks {
        Speaks::Https => binds.may_ask_clients(place, slot.hostname(), slot.client_ca.as_ref()),
        Speaks::Http | Speaks::Tls | Speaks::Tcp => Ok(()),
    };
    asked.err().map(|why| Why::new("UnsupportedValue", why))
}

fn no_udp(place: SocketAddr, settings: &Settings) -> Option<Why> {
    if let Some(why) = service::no_kernel_plane(settings) {
        let message = format!("{why}: there is no {} here", reference::word(Transport::Udp));
        return Some(Why::new("UnsupportedProtocol", message));
    }
    place.ip().is_unspecified().then(|| {
        let message = "the kernel plane serves an address and not the whole host: \
                       give --listen-address, or a pool of addresses for Gateways";
        Why::new("UnsupportedProtocol", message)
    })
}

fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let whole = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && (whole || one.ip() == other.ip())
}
