//! Ingresses: hosts and paths on the two ports that all Ingresses share.
//!
//! Every rule is served over HTTP, and also over HTTPS if its host has a certificate. If two Ingresses claim the same path, the older one
//! wins and the newer one is told so.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;

use model::{HostMatcher, PathMatcher, Route, Transport};

use super::bind::{Binds, Rank, Speaks};
use super::clients::ClientPolicy;
use super::cluster::{Clusters, Share};
use super::listener::certificate;
use super::parameters::{self, Class};
use super::reference::{Why, service_port};
use super::{Circumstances, Desired, Notice, Statuses, published};
use crate::index::{Index, IngressEntry, IngressPath, IngressTarget, Keypair, Kind, Name, PortRef};
use crate::settings::Settings;

/// The owner of each host and path with its type, to find conflicts between Ingresses.
type Claimed = BTreeMap<(Option<String>, bool, String), Name>;

/// The result of translating Ingresses.
pub(crate) struct Serving<'t> {
    pub(crate) binds: &'t mut Binds,
    pub(crate) clusters: &'t mut Clusters,
    pub(crate) statuses: &'t mut Statuses,
    pub(crate) notices: &'t mut Vec<Notice>,
}

/// Serves every Ingress that we manage, the oldest first.
pub(crate) fn translate(index: &Index, class: &Class, circumstances: &Circumstances, out: &mut Serving<'_>) {
    let settings = &class.settings;
    let mut ours: Vec<_> = index.ingresses.iter().filter(|(_, entry)| is_ours(index, settings, entry)).collect();
    ours.sort_by_key(|(name, entry)| (entry.meta.created, *name));
    if ours.is_empty() {
        return;
    }
    let mut claimed = Claimed::new();
    let places = Places::of(index, class, circumstances, (&|_| {}, &|_| {}), out.binds);
    for (name, entry) in ours {
        let mut one = One::of(index, (name, entry), places.default.as_ref(), out);
        let plain = one.or_told(places.plain.clone());
        let tls = if entry.tls.is_empty() { None } else { one.or_told(places.tls.clone()) };
        one.certificates(tls);
        one.rules(plain, tls, &mut claimed);
        one.annotations();
        tell_addresses(index, class, (name, entry), out);
    }
}

type Changes<'c> = (&'c dyn Fn(&mut ClientPolicy), &'c dyn Fn(&mut ClientPolicy));

/// The two ports of Ingresses, and the certificate for hosts without one of their own.
pub(super) struct Places {
    pub(super) plain: Result<SocketAddr, Why>,
    pub(super) tls: Result<SocketAddr, Why>,
    pub(super) default: Option<Result<Found, Why>>,
}

impl Places {
    /// `changes` change how clients are treated: the first one the defaults, and the second one what GatewayParameters say.
    pub(super) fn of(
        index: &Index,
        class: &Class,
        circumstances: &Circumstances,
        changes: Changes<'_>,
        binds: &mut Binds,
    ) -> Self {
        let settings = &class.settings;
        let default = settings.default_certificate.as_ref().map(|secret| {
            let found = certificate(index, Name::new(&secret.namespace, &secret.name));
            found.map_err(|Why { reason, message }| Why::new(reason, format!("the default certificate: {message}")))
        });
        let plain = place(class, settings.ingress_ports.0, Speaks::Http, circumstances, changes, binds);
        let tls = place(class, settings.ingress_ports.1, Speaks::Https, circumstances, changes, binds);
        if let (Ok(place), Some(Ok((secret, keypair, _)))) = (&tls, &default) {
            binds.default_certificate(*place, secret, keypair);
        }
        Self { plain, tls, default }
    }
}

/// Sets the addresses of an Ingress.
pub(super) fn tell_addresses(
    index: &Index,
    class: &Class,
    (name, entry): (&Name, &IngressEntry),
    out: &mut Serving<'_>,
) {
    // Another controller serves the same Ingresses, and writes their statuses.
    if !class.settings.ingress_status {
        return;
    }
    let told = match class.lacks_parameters && !entry.present.is_empty() {
        true => entry.present.iter().map(ToString::to_string).collect(),
        false => published(index, &class.settings).iter().map(ToString::to_string).collect(),
    };
    out.statuses.insert((Kind::Ingress, name.clone()), Desired::Ingress(told));
}

/// A host of an Ingress: here `*.example.com` stands for one label in front, and not for several as in the Gateway API.
pub(super) fn host(text: &str) -> HostMatcher {
    let lower = text.to_ascii_lowercase();
    match lower.strip_prefix("*.") {
        Some(domain) => HostMatcher::OneLabel(domain.to_owned()),
        None => HostMatcher::Exact(lower),
    }
}

pub(super) fn is_ours(index: &Index, settings: &Settings, entry: &IngressEntry) -> bool {
    let is_our_class = |class: &Name| {
        index
            .ingress_classes
            .get(class)
            .is_some_and(|entry| parameters::is_our_ingress_class(settings, class, &entry.controller))
    };
    match entry.class.as_deref().filter(|class| !class.is_empty()) {
        // ingress-nginx takes the class of the older annotation for a name, whether or not there is such an object.
        Some(class)
            if settings.ingress_nginx.is_some() && class == settings.ingress_class.as_deref().unwrap_or("nginx") =>
        {
            true
        }
        Some(class) => is_our_class(&Name::new("", class)),
        None => index.ingress_classes.iter().any(|(name, class)| class.is_default && is_our_class(name)),
    }
}

fn place(
    class: &Class,
    port: u16,
    speaks: Speaks,
    circumstances: &Circumstances,
    (defaults, change): Changes<'_>,
    binds: &mut Binds,
) -> Result<SocketAddr, Why> {
    let place = SocketAddr::new(class.settings.listen, port);
    let refused = circumstances.binds.get(&place).cloned();
    let mut policy = ClientPolicy::of(&class.settings);
    defaults(&mut policy);
    policy = class.client_policy_over(policy, port, None);
    change(&mut policy);
    let outcome = refused.map_or_else(|| binds.claim(place, speaks, policy), Err);
    binds.serves_ingresses(place);
    outcome.map(|()| place).map_err(|why| Why::new("PortUnavailable", why))
}

/// The hosts of an entry of `tls`, indexed, because an Ingress may have thousands of hosts and as many rules.
pub(super) struct TlsHosts(HashSet<HostMatcher>);

impl TlsHosts {
    pub(super) fn of(hosts: &[Box<str>]) -> Self {
        Self(hosts.iter().map(|text| host(text)).collect())
    }

    /// Whether the entry is for this host of a rule; `None` means that the rule is for all hosts.
    fn covers(&self, host: Option<&HostMatcher>) -> bool {
        let Self(hosts) = self;
        let is_below = |name: &str| {
            let parent = name.split_once('.').map(|(_, domain)| HostMatcher::OneLabel(domain.to_owned()));
            parent.is_some_and(|parent| hosts.contains(&parent))
        };
        hosts.is_empty()
            || host.is_some_and(|host| match host {
                HostMatcher::Exact(name) => hosts.contains(host) || is_below(name),
                _ => hosts.contains(host),
            })
    }
}

/// Whether an Ingress has a certificate for a host, with the hosts of each entry of its `tls`.
pub(super) fn has_certificate(
    entry: &IngressEntry,
    tls_hosts: &[TlsHosts],
    has_default: bool,
    host: Option<&str>,
) -> bool {
    let host = host.map(self::host);
    let mut all = entry.tls.iter().zip(tls_hosts);
    all.any(|(tls, hosts)| (has_default || tls.secret.is_some()) && hosts.covers(host.as_ref()))
}

/// A certificate, and what is wrong with a newer one.
pub(super) type Found = (Name, Keypair, Option<Why>);

/// The translation of one Ingress.
pub(super) struct One<'t, 'o> {
    pub(super) index: &'t Index,
    pub(super) name: &'t Name,
    pub(super) entry: &'t IngressEntry,
    /// The hosts of each entry of its `tls`.
    pub(super) tls_hosts: Vec<TlsHosts>,
    /// The certificate for hosts without one of their own, or why there is none.
    pub(super) default: Option<&'t Result<Found, Why>>,
    pub(super) out: &'t mut Serving<'o>,
}

impl<'t, 'o> One<'t, 'o> {
    pub(super) fn of(
        index: &'t Index,
        (name, entry): (&'t Name, &'t IngressEntry),
        default: Option<&'t Result<Found, Why>>,
        out: &'t mut Serving<'o>,
    ) -> Self {
        let tls_hosts = entry.tls.iter().map(|tls| TlsHosts::of(&tls.hosts)).collect();
        Self { index, name, entry, tls_hosts, default, out }
    }

    pub(super) fn tell(&mut self, why: Why) {
        self.out.notices.push(Notice::warning((Kind::Ingress, self.name.clone()), &self.entry.meta, why));
    }

    pub(super) fn or_told<T>(&mut self, outcome: Result<T, Why>) -> Option<T> {
        outcome.map_err(|why| self.tell(why)).ok()
    }

    pub(super) fn certificates(&mut self, place: Option<SocketAddr>) {
        for (tls, hosts) in self.entry.tls.iter().zip(std::mem::take(&mut self.tls_hosts)) {
            // Only hosts of its rules: anybody can write the hosts of others here.
            let rules = self.entry.rules.iter().filter_map(|rule| rule.host.as_deref().map(host));
            let served: Vec<HostMatcher> = rules.filter(|host| hosts.covers(Some(host))).collect();
            self.tls_hosts.push(hosts);
            let default = self.default.and_then(|default| default.as_ref().ok());
            let Some(secret) = &tls.secret else {
                if let (Some(place), Some((secret, keypair, _))) = (place, default) {
                    self.out.binds.certificate(place, served.into_iter(), (secret, keypair));
                }
                match self.default {
                    Some(Ok((.., wrong))) => wrong.iter().for_each(|why| self.tell(why.clone())),
                    Some(Err(why)) => self.tell(why.clone()),
                    None => self.tell(Why::new(
                        "InvalidCertificateRef",
                        "an entry of tls names no Secret, and there is no default certificate: its hosts are not served over HTTPS",
                    )),
                }
                continue;
            };
            match certificate(self.index, Name::new(&self.name.namespace, secret)) {
                Ok((secret, keypair, wrong)) => {
                    if let Some(place) = place {
                        self.out.binds.certificate(place, served.iter().cloned(), (&secret, &keypair));
                        if let Some((secret, keypair, _)) = default {
                            self.out.binds.certificate(place, served.into_iter(), (secret, keypair));
                        }
                    }
                    wrong.into_iter().for_each(|why| self.tell(why));
                }
                Err(why) => self.tell(why),
            }
        }
    }

    /// Whether this host is served over HTTPS.
    pub(super) fn has_certificate(&self, host: Option<&str>) -> bool {
        has_certificate(self.entry, &self.tls_hosts, matches!(self.default, Some(Ok(_))), host)
    }

    fn rules(&mut self, plain: Option<SocketAddr>, tls: Option<SocketAddr>, claimed: &mut Claimed) {
        let mut all = 0;
        for rule in &self.entry.rules {
            let tls = tls.filter(|_| self.has_certificate(rule.host.as_deref()));
            let tls = tls.and_then(|place| {
                let outcome = self.out.binds.let_in_clients(place, rule.host.as_deref());
                self.or_told(outcome.map(|()| place).map_err(|why| Why::new("Conflicted", why)))
            });
            for path in &rule.paths {
                self.path(rule.host.as_deref(), path, [plain, tls], all, claimed);
                all += 1;
            }
        }
        if let Some(target) = &self.entry.default_backend {
            let tls = tls.filter(|place| self.out.binds.let_in_clients(*place, None).is_ok());
            let path = IngressPath { path: "/".into(), kind: "Prefix".into(), target: target.clone() };
            self.path(None, &path, [plain, tls], all, claimed);
        }
    }

    fn path(
        &mut self,
        host: Option<&str>,
        path: &IngressPath,
        places: [Option<SocketAddr>; 2],
        number: usize,
        claimed: &mut Claimed,
    ) {
        let matcher = match &*path.kind {
            "Exact" => PathMatcher::Exact(path.path.to_string()),
            // The implementation decides what it means. Nearly all take it for a prefix.
            "Prefix" | "ImplementationSpecific" => PathMatcher::Prefix(path.path.to_string()),
            other => return self.tell(Why::new("UnsupportedValue", format!("the pathType {other} is not supported"))),
        };
        let exact = matches!(matcher, PathMatcher::Exact(_));
        let written = if exact { &*path.path } else { path.path.trim_end_matches('/') };
        let key = (host.map(str::to_ascii_lowercase), exact, written.to_owned());
        let older = claimed.entry(key).or_insert_with(|| self.name.clone()).clone();
        if older != *self.name {
            let what = format!("{}{} belongs to the older Ingress {older}", host.unwrap_or("*"), path.path);
            return self.tell(Why::new("Conflicted", what));
        }
        let shares = match self.share(&path.target) {
            Ok(share) => vec![share],
            Err(why) => {
                self.tell(why);
                Vec::new()
            }
        };
        let to = match self.out.clusters.of(self.index, shares) {
            Ok(to) => to,
            Err(why) => return self.tell(Why::new("UnsupportedValue", why)),
        };
        let label = format!("ingress/{}#{number}", self.name);
        let hosts = host.into_iter().map(self::host).collect();
        let route = Route { hosts, path: matcher, ..Route::to_all(label, to.into()) };
        let rank = Rank::new(&route, self.entry.meta.created, self.name, (number, 0));
        for place in places.into_iter().flatten() {
            if let Err(why) = self.out.binds.route(place, rank.clone(), route.clone()) {
                self.tell(Why::new("TooManyRoutes", why));
            }
        }
    }

    pub(super) fn share(&self, target: &IngressTarget) -> Result<Share, Why> {
        let (service, wanted) = match target {
            IngressTarget::Service(service, port) => (service, port),
            IngressTarget::Resource(what) => {
                return Err(Why::new(
                    "UnsupportedValue",
                    format!("a {what} is not supported as a backend, only a Service"),
                ));
            }
        };
        let name = Name::new(&self.name.namespace, service);
        let found = service_port(self.index, &name, Transport::Tcp, |port| match wanted {
            PortRef::Number(number) => port.port == *number,
            PortRef::Name(name) => *port.name == **name,
        });
        let port = found
            .map_err(|why| Why::new("BackendNotFound", why))?
            .ok_or_else(|| Why::new("BackendNotFound", format!("the Service {name} has no TCP port {wanted}")))?;
        Share::of(port, name.clone()).map_err(|why| Why::new("UnsupportedProtocol", format!("{name}: {why}")))
    }

    /// Users who come from another controller rely on its annotations and must learn that these have no effect.
    pub(super) fn annotations(&mut self) {
        if !self.entry.foreign.is_empty() {
            let message = format!("these annotations have no effect here: {}", self.entry.foreign.join(", "));
            self.tell(Why::new("UnsupportedAnnotation", message));
        }
    }
}
