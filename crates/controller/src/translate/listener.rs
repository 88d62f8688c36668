//! Listeners of a Gateway or ListenerSet: the kinds that each serves, its certificates, its conflicts and its addresses.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use model::{AdminAddress, HostMatcher, Transport};

use super::bind::{Ask, Binds, Speaks, host};
use super::gateway::{GatewayListener, Plan};
use super::policy::Authority;
use super::reference::{self, Why};
use super::traffic::Policies;
use super::{Circumstances, lower, service};
use crate::index::{Index, Keypair, Kind, Name, RouteKind};
use crate::objects::{GROUP, ListenerSpec, RouteGroupKind};
use crate::settings::Settings;

pub(crate) fn gateway_listener<'i>(
    index: &'i Index,
    plan: &Plan<'i>,
    owner: (Kind, &'i Name),
    spec: &'i ListenerSpec,
) -> GatewayListener<'i> {
    let mut listener = GatewayListener {
        owner,
        gateway: plan.name,
        spec,
        kinds: Vec::new(),
        places: Vec::new(),
        conflict: None,
        refused: None,
        references: None,
        certificates: Vec::new(),
        ask: None,
        overruled: None,
        attached: BTreeSet::new(),
        hosts: Default::default(),
    };
    let Some(possible) = kinds_of(&spec.protocol) else {
        let message = format!("the protocol {} is not supported; use HTTP, HTTPS, TLS, TCP or UDP", spec.protocol);
        listener.refused = Some(Why::new("UnsupportedProtocol", message));
        return listener;
    };
    let wanted = spec.allowed_routes.as_ref().map(|allowed| allowed.kinds.as_slice()).unwrap_or_default();
    let (kinds, unknown) = kinds(wanted, possible);
    listener.kinds = kinds;
    if let Some(unknown) = unknown {
        listener.references =
            Some(Why::new("InvalidRouteKinds", format!("a {} listener does not serve {unknown}", spec.protocol)));
    }
    if let Some(field) = spec.others.keys().next() {
        listener.refused = Some(Why::new("UnsupportedValue", format!("`{field}` is not supported")));
    }
    match spec.protocol.as_str() {
        "HTTPS" => {
            terminate(index, &mut listener);
            ask_clients(index, plan, &mut listener);
        }
        // The API asks only the clients of HTTPS listeners for certificates.
        "TLS" if listener.terminates() => terminate(index, &mut listener),
        _ => {}
    }
    if listener.refused.as_ref().is_some_and(|why| why.reason == "UnsupportedValue") {
        // The API wants the kinds that are supported for this listener as it is written, and it is not served as written.
        listener.kinds.clear();
    }
    listener
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

/// The wanted kinds that are possible, and the first that is not.
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

/// Finds the certificates of a listener that terminates TLS.
fn terminate(index: &Index, listener: &mut GatewayListener<'_>) {
    let protocol = listener.spec.protocol.as_str();
    let Some(tls) = &listener.spec.tls else {
        let message = match protocol {
            "HTTPS" => "an HTTPS listener needs tls.certificateRefs",
            _ => {
                "a TLS listener that terminates TLS needs tls.certificateRefs; to pass TLS through, set tls.mode to Passthrough"
            }
        };
        listener.references = Some(Why::new("InvalidCertificateRef", message));
        return;
    };
    if tls.mode.as_deref().is_some_and(|mode| mode != "Terminate") {
        let message = match protocol {
            "HTTPS" => "an HTTPS listener terminates TLS: set tls.mode to Terminate",
            _ => "tls.mode must be Terminate or Passthrough",
        };
        listener.refused = Some(Why::new("UnsupportedValue", message));
    }
    if let Some(field) = tls.options.keys().chain(tls.others.keys()).next() {
        listener.refused = Some(Why::new("UnsupportedValue", format!("`{field}` in tls is not supported")));
    }
    if tls.certificate_refs.is_empty() {
        listener.references = Some(Why::new("InvalidCertificateRef", "tls.certificateRefs names no Secret"));
    }
    let (kind, namespace) = (listener.owner.0, &listener.owner.1.namespace);
    let kind = if kind == Kind::Gateway { "Gateway" } else { "ListenerSet" };
    for reference in &tls.certificate_refs {
        let found = reference::core_object(index, kind, namespace, "Secret", reference, "InvalidCertificateRef");
        match found.and_then(|name| certificate(index, name)) {
            Ok((name, keypair, wrong)) => {
                listener.certificates.push((name, keypair));
                listener.references = listener.references.take().or(wrong);
            }
            Err(why) => listener.references = listener.references.take().or(Some(why)),
        }
    }
}

/// Finds what the Gateway demands of the clients of this listener.
fn ask_clients(index: &Index, plan: &Plan<'_>, listener: &mut GatewayListener<'_>) {
    let Some(frontend) = plan.entry.spec.tls.as_ref().and_then(|tls| tls.frontend.as_ref()) else { return };
    let of_port = frontend.per_port.iter().find(|of| of.port == listener.spec.port).map(|of| &of.tls);
    let Some(validation) = &of_port.unwrap_or(&frontend.default).validation else { return };
    let verify = match validation.mode.as_deref() {
        None | Some("AllowValidOnly") => true,
        Some("AllowInsecureFallback") => false,
        Some(other) => {
            let message =
                format!("tls.frontend: the mode {other} is not supported; use AllowValidOnly or AllowInsecureFallback");
            listener.refused = Some(Why::new("UnsupportedValue", message));
            return;
        }
    };
    let found = match validation.ca_certificate_refs.as_slice() {
        [reference] => {
            let (kind, namespace) = ("Gateway", &plan.name.namespace);
            reference::core_object(index, kind, namespace, "ConfigMap", reference, "InvalidCACertificateKind")
        }
        _ => Err(Why::new("InvalidCACertificateRef", "tls.frontend needs exactly one caCertificateRefs entry")),
    };
    let invalid = |message| Why::new("InvalidCACertificateRef", message);
    match found.and_then(|name| Authority::find(index, name).map_err(invalid)) {
        Ok(authority) => listener.ask = Some(Ask { ca: authority.pem(), crl: None, verify, required: true }),
        Err(why) => {
            // The alternatives would be to admit all clients or none, so the listener is not served at all.
            listener.refused = Some(Why::new("NoValidCACertificate", why.message.clone()));
            listener.references = listener.references.take().or(Some(why));
        }
    }
}

/// The certificate in a Secret. It also returns what is wrong with the Secret as it is now, if the previous certificate is still in use.
///
/// # Errors
/// Returns why there is no usable certificate.
pub(crate) fn certificate(index: &Index, name: Name) -> Result<(Name, Keypair, Option<Why>), Why> {
    let invalid = |message: String| Why::new("InvalidCertificateRef", message);
    let Some(secret) = index.secrets.get(&name) else {
        let secret = format!("Secret {name} of type kubernetes.io/tls");
        return Err(invalid(index.unknown(Kind::Secret, &name.namespace, &secret)));
    };
    match (&secret.good, &secret.wrong) {
        (Some(good), None) => Ok((name, good.clone(), None)),
        (Some(good), Some(wrong)) => {
            let why = invalid(format!("Secret {name}: {wrong}; the previous certificate stays in use"));
            Ok((name, good.clone(), Some(why)))
        }
        (None, wrong) => {
            Err(invalid(format!("Secret {name}: {}", wrong.as_deref().unwrap_or("it has no certificate"))))
        }
    }
}

/// What the listeners of a Gateway and its older ListenerSets already hold. A listener that is not accepted holds nothing.
#[derive(Default)]
pub(crate) struct Held<'i> {
    /// The protocol of each port, and the name of a listener that speaks it.
    protocols: BTreeMap<Port, (&'i str, &'i str)>,
    /// The names of each port, and the name of the listener.
    hosts: HashMap<(Port, String), &'i str>,
}

impl<'i> Held<'i> {
    /// Adds the accepted ones of these listeners.
    pub(crate) fn add(&mut self, listeners: &[GatewayListener<'i>]) {
        for listener in listeners.iter().filter(|listener| listener.is_accepted()) {
            let (port, spec) = (port_of(listener), listener.spec);
            self.protocols.entry(port).or_insert((&spec.protocol, &spec.name));
            self.hosts.entry((port, host_of(listener))).or_insert(&spec.name);
        }
    }

    fn conflict(&self, listener: &GatewayListener<'_>) -> Option<Why> {
        let port = port_of(listener);
        let (protocol, name) = self.protocols.get(&port)?;
        if *protocol != listener.spec.protocol {
            return Some(other_protocol(listener, name, protocol));
        }
        self.hosts.get(&(port, host_of(listener))).map(|name| same_host(listener, name))
    }
}

/// Marks the conflicting listeners of one owner: first those that want what an older owner holds, then those of the rest that conflict with
/// each other, none of which takes precedence.
pub(crate) fn conflicts(listeners: &mut [GatewayListener<'_>], held: &Held<'_>) {
    for listener in listeners.iter_mut().filter(|listener| listener.is_accepted()) {
        listener.conflict = held.conflict(listener);
    }
    let found: Vec<(usize, Why)> = {
        let peers = Peers::of(listeners);
        let accepted = listeners.iter().enumerate().filter(|(_, listener)| listener.is_accepted());
        accepted.filter_map(|(place, listener)| Some((place, peers.conflict(listeners, place, listener)?))).collect()
    };
    for (place, why) in found {
        if let Some(listener) = listeners.get_mut(place) {
            listener.conflict = Some(why);
        }
    }
}

/// A port, and whether it is UDP.
type Port = (u16, bool);

/// The accepted listeners of one owner, indexed, because there may be thousands and comparing each with each would be slow.
struct Peers<'s> {
    protocols: BTreeMap<Port, BTreeMap<&'s str, usize>>,
    hosts: HashMap<(Port, &'s str, String), Vec<usize>>,
}

impl<'s> Peers<'s> {
    fn of(listeners: &'s [GatewayListener<'_>]) -> Self {
        let mut peers = Self { protocols: BTreeMap::new(), hosts: HashMap::new() };
        for (place, listener) in listeners.iter().enumerate().filter(|(_, listener)| listener.is_accepted()) {
            let (port, protocol) = (port_of(listener), listener.spec.protocol.as_str());
            peers.protocols.entry(port).or_default().entry(protocol).or_insert(place);
            peers.hosts.entry((port, protocol, host_of(listener))).or_default().push(place);
        }
        peers
    }

    fn conflict(&self, listeners: &[GatewayListener<'_>], place: usize, listener: &GatewayListener<'_>) -> Option<Why> {
        let (port, protocol) = (port_of(listener), listener.spec.protocol.as_str());
        let mut others = self.protocols.get(&port)?.iter().filter(|(other, _)| **other != protocol);
        if let Some((other, with)) = others.next().and_then(|(other, at)| Some((other, listeners.get(*at)?))) {
            return Some(other_protocol(listener, &with.spec.name, other));
        }
        let places = self.hosts.get(&(port, protocol, host_of(listener)))?;
        let with = places.iter().take(2).find(|other| **other != place).and_then(|other| listeners.get(*other))?;
        Some(same_host(listener, &with.spec.name))
    }
}

fn other_protocol(listener: &GatewayListener<'_>, other: &str, protocol: &str) -> Why {
    let ListenerSpec { port, protocol: own, .. } = listener.spec;
    Why::new(
        "ProtocolConflict",
        format!("port {port}: listener {other} uses protocol {protocol}, and this one uses {own}"),
    )
}

fn same_host(listener: &GatewayListener<'_>, other: &str) -> Why {
    let host = listener.hostname().unwrap_or("every host");
    Why::new("HostnameConflict", format!("port {}: listener {other} also serves {host}", listener.spec.port))
}

fn port_of(listener: &GatewayListener<'_>) -> Port {
    (listener.spec.port, listener.is_udp())
}

fn host_of(listener: &GatewayListener<'_>) -> String {
    listener.hostname().unwrap_or_default().to_ascii_lowercase()
}

/// Reserves the addresses of a listener: all of them, or none if it returns a reason.
pub(crate) fn claim(
    listener: &mut GatewayListener<'_>,
    plan: &Plan<'_>,
    circumstances: &Circumstances,
    policies: &Policies<'_>,
    binds: &mut Binds,
) {
    let settings = &plan.class.settings;
    let (true, None, Ok(places)) = (listener.is_accepted(), &plan.refused, &plan.places) else { return };
    let places: Vec<SocketAddr> = places.iter().map(|ip| SocketAddr::new(*ip, listener.spec.port)).collect();
    listener.refused = places.iter().find_map(|place| unavailable(*place, listener, settings, circumstances, binds));
    if listener.refused.is_some() {
        return;
    }
    for place in &places {
        let Some(speaks) = speaks(listener) else { continue };
        let mut policy = plan.class.client_policy(listener.spec.port, plan.parameters.as_deref());
        if [Speaks::Http, Speaks::Https].contains(&speaks) {
            policies.limit_clients(plan.name, &mut policy.client_limits);
        }
        if let Some(older) = binds.open(*place, speaks, policy, Some(plan.name)) {
            let message = format!(
                "the older Gateway {older} has other parameters or limits on clients, which apply to all clients of {place}"
            );
            listener.overruled = Some(Why::new("OtherGateway", message));
        }
        if speaks != Speaks::Tcp {
            // Even if it cannot be served, because its requests are for no other listener.
            if let Some(older) = binds.isolate(*place, listener.hostname(), listener.gateway) {
                let host = listener.hostname().unwrap_or("every host");
                let message = format!(
                    "the older Gateway {older} also has a listener for {host} at {place}: both serve the routes of both"
                );
                listener.overruled.get_or_insert_with(|| Why::new("OtherGateway", message));
            }
        }
        if speaks == Speaks::Https {
            binds.note_clients(*place, listener.hostname(), listener.ask.as_ref());
        }
        let host = || std::iter::once(listener.hostname().map_or(HostMatcher::Any, host));
        for (secret, keypair) in &listener.certificates {
            binds.certificate(*place, host(), (secret, keypair));
        }
    }
    listener.places = places;
}

/// The protocol of the proxy plane there; `None` if it belongs to the kernel plane.
fn speaks(listener: &GatewayListener<'_>) -> Option<Speaks> {
    match listener.spec.protocol.as_str() {
        "HTTP" => Some(Speaks::Http),
        "HTTPS" => Some(Speaks::Https),
        "TLS" => Some(Speaks::Tls),
        "TCP" => Some(Speaks::Tcp),
        _ => None,
    }
}

/// Why a listener cannot have this address; `None` if it can. Changes nothing.
fn unavailable(
    place: SocketAddr,
    listener: &GatewayListener<'_>,
    settings: &Settings,
    circumstances: &Circumstances,
    binds: &Binds,
) -> Option<Why> {
    let port = |message: String| Why::new("PortUnavailable", message);
    let Some(speaks) = speaks(listener) else { return no_udp(place, settings) };
    let admin = match &settings.admin {
        Some(AdminAddress::Socket(address)) => Some(*address),
        Some(AdminAddress::Path(_)) | None => None,
    };
    if admin.into_iter().chain(settings.metrics).any(|own| overlap(own, place)) {
        return Some(port(format!("Steelyard uses port {} for its own control API or metrics", place.port())));
    }
    if let Some(why) = circumstances.binds.get(&place) {
        return Some(port(why.clone()));
    }
    if let Err(why) = binds.may_speak(place, speaks) {
        return Some(port(why));
    }
    let asked = match speaks {
        Speaks::Https => binds.may_ask_clients(place, listener.hostname(), listener.ask.as_ref()),
        Speaks::Http | Speaks::Tls | Speaks::Tcp => Ok(()),
    };
    asked.err().map(|why| Why::new("UnsupportedValue", why))
}

/// Why there can be no UDP at an address; `None` if there can.
pub(crate) fn no_udp(place: SocketAddr, settings: &Settings) -> Option<Why> {
    if let Some(why) = service::no_kernel_plane(settings) {
        let message = format!("{why}: {} is not available", reference::word(Transport::Udp));
        return Some(Why::new("UnsupportedProtocol", message));
    }
    place.ip().is_unspecified().then(|| {
        let message = "the kernel plane cannot serve a wildcard address: give --listen-address, or a pool of addresses for Gateways";
        Why::new("UnsupportedProtocol", message)
    })
}

fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let whole = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && (whole || one.ip() == other.ip())
}
