//! The addresses on which the proxy plane listens, and what each serves. Listeners of Gateways, ListenerSets and Ingresses come together
//! here.

use std::cmp::Reverse;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use model::{
    ClientCa, ClusterId, HostCertificates, HostMatcher, HttpListener, Listener, ListenerTls, Passthrough, PathMatcher,
    Pem, Protocol, Route, TcpListener, TextMatcher, TlsListener, TlsMode, TlsRoute,
};

use super::clients::ClientPolicy;
use super::cluster;
use super::hosts::Isolated;
use crate::index::{Keypair, Name};

/// Routes of all listeners together, a hundred times as many as large clusters have. It bounds what objects can make a worker hold.
pub(crate) const ROUTES_MAX: usize = 500_000;

/// The protocol at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    Http,
    Https,
    Tls,
    Tcp,
}

impl Speaks {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Https => "HTTPS",
            Self::Tls => "TLS",
            Self::Tcp => "TCP",
        }
    }
}

/// The precedence of a route. The order of the fields is the order that the Gateway API prescribes, and gives the longest path of an
/// Ingress precedence too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// Exact paths, then regular expressions, then prefixes, the longest first.
    path: (u8, Reverse<usize>),
    has_no_method: bool,
    headers: Reverse<usize>,
    query: Reverse<usize>,
    created: i64,
    name: Name,
    /// The number of the rule, and of the match in it.
    place: (usize, usize),
}

impl Rank {
    /// The precedence of a route of a host whose routes have an order of their own.
    pub(crate) fn ordered(place: usize, created: i64, name: &Name) -> Self {
        Self {
            path: (0, Reverse(usize::MAX.saturating_sub(place))),
            has_no_method: false,
            headers: Reverse(0),
            query: Reverse(0),
            created,
            name: name.clone(),
            place: (place, 0),
        }
    }

    pub(crate) fn new(route: &Route, created: i64, name: &Name, place: (usize, usize)) -> Self {
        let path = match &route.path {
            PathMatcher::Exact(path) => (0, Reverse(path.len())),
            PathMatcher::Regex(regex) => (1, Reverse(regex.as_str().len())),
            // `/a/` and `/a` are the same.
            PathMatcher::Prefix(path) => (2, Reverse(path.trim_end_matches('/').len())),
        };
        Self {
            path,
            has_no_method: route.methods.is_empty(),
            headers: Reverse(route.headers.len()),
            query: Reverse(route.query.len()),
            created,
            name: name.clone(),
            place,
        }
    }
}

/// What one address serves.
struct Bind {
    speaks: Speaks,
    /// How its clients are treated.
    policy: ClientPolicy,
    /// The Gateway whose settings `policy` has; `None` if it has those of Ingresses.
    gateway: Option<Name>,
    routes: Vec<(Rank, Route)>,
    /// The first object that asked for such requests, by their fingerprints.
    claimed: HashMap<u64, Name>,
    certificates: Vec<(Name, Keypair)>,
    /// The Secrets of hosts whose names are served with no other certificates. Without this, the owner of one host could have a certificate
    /// shown for another.
    own: HashMap<HostMatcher, Vec<Name>>,
    clients: Clients,
    /// The hosts of the listeners of Gateways.
    isolated: Isolated,
    /// Whether Ingresses are served here too.
    has_ingresses: bool,
    sni: Vec<TlsRoute>,
    /// The hosts whose TLS is not decrypted, each with the cluster of its connections.
    passed: BTreeMap<String, ClusterId>,
    /// The cluster of its connections, and the route that names it.
    tcp: Option<(Name, ClusterId)>,
}

/// What is asked of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// The CA that must have signed their certificates.
    pub(crate) ca: Pem,
    /// Lists of those that it has revoked.
    pub(crate) crl: Option<Pem>,
    /// False means that they are admitted whatever they answer.
    pub(crate) verify: bool,
    /// False means that routes decide what becomes of clients without such a certificate.
    pub(crate) required: bool,
}

/// Which clients are asked for a certificate at one address.
#[derive(Default)]
struct Clients {
    ask: Option<Ask>,
    /// For these names they are; `None` stands for all names.
    asked: Vec<Option<HostMatcher>>,
    /// For these names they are not.
    open: Vec<Option<HostMatcher>>,
}

/// All addresses.
#[derive(Default)]
pub(crate) struct Binds {
    places: BTreeMap<SocketAddr, Bind>,
    routes: usize,
}

impl Binds {
    /// Whether the address can be used for this protocol.
    ///
    /// # Errors
    /// Returns a sentence if it is already used for another protocol.
    pub(crate) fn may_speak(&self, place: SocketAddr, speaks: Speaks) -> Result<(), String> {
        match self.places.get(&place) {
            Some(bind) if bind.speaks != speaks => {
                let (there, asked) = (bind.speaks.name(), speaks.name());
                Err(format!("an older object speaks {there} at {place}, so {asked} cannot be served there too"))
            }
            _ => Ok(()),
        }
    }

    /// Reserves the address for this protocol.
    ///
    /// # Errors
    /// As [`Binds::may_speak`].
    pub(crate) fn claim(&mut self, place: SocketAddr, speaks: Speaks, policy: ClientPolicy) -> Result<(), String> {
        self.may_speak(place, speaks)?;
        self.open(place, speaks, policy, None);
        Ok(())
    }

    /// Reserves an address that is known to be available for the protocol, for a Gateway or (`None`) for Ingresses. The first object there
    /// decides how clients are treated. Returns its Gateway if that wants something else than `policy`.
    pub(crate) fn open(
        &mut self,
        place: SocketAddr,
        speaks: Speaks,
        policy: ClientPolicy,
        gateway: Option<&Name>,
    ) -> Option<&Name> {
        let wanted = policy.clone();
        let bind = self.places.entry(place).or_insert_with(|| Bind {
            speaks,
            policy,
            gateway: gateway.cloned(),
            routes: Vec::new(),
            claimed: HashMap::new(),
            certificates: Vec::new(),
            own: HashMap::new(),
            clients: Clients::default(),
            isolated: Isolated::default(),
            has_ingresses: false,
            sni: Vec::new(),
            passed: BTreeMap::new(),
            tcp: None,
        });
        bind.gateway.as_ref().filter(|_| bind.policy != wanted)
    }

    /// Adds a route at a reserved address. Older routes must be added first. Returns the name of an older object that takes some or all of
    /// its requests, if there is one.
    ///
    /// # Errors
    /// Returns a sentence if there are too many routes.
    pub(crate) fn route(&mut self, place: SocketAddr, rank: Rank, route: Route) -> Result<Option<Name>, String> {
        if self.routes >= ROUTES_MAX {
            return Err(format!("the limit of {ROUTES_MAX} routes is reached"));
        }
        let Some(bind) = self.places.get_mut(&place) else { return Ok(None) };
        self.routes += 1;
        let mut older = None;
        for fingerprint in fingerprints(&route) {
            let first = bind.claimed.entry(fingerprint).or_insert_with(|| rank.name.clone());
            if *first != rank.name {
                older.get_or_insert_with(|| first.clone());
            }
        }
        bind.routes.push((rank, route));
        Ok(older)
    }

    /// Shows this certificate to clients that ask for a name of these hosts, or for a name of no host that has certificates of its own.
    pub(crate) fn certificate(
        &mut self,
        place: SocketAddr,
        hosts: impl Iterator<Item = HostMatcher>,
        (secret, keypair): (&Name, &Keypair),
    ) {
        let Some(bind) = self.places.get_mut(&place) else { return };
        for host in hosts {
            let own = bind.own.entry(host).or_default();
            if !own.contains(secret) {
                own.push(secret.clone());
            }
        }
        if bind.certificates.iter().all(|(name, _)| name != secret) {
            bind.certificates.push((secret.clone(), keypair.clone()));
        }
    }

    /// Gives a host (`None`: every host that has no listener of its own) to a listener of this Gateway. Returns the older Gateway that has the
    /// same host, if there is one.
    pub(crate) fn isolate(&mut self, place: SocketAddr, host: Option<&str>, gateway: &Name) -> Option<&Name> {
        let first = self.places.get_mut(&place)?.isolated.add(host.map_or(HostMatcher::Any, self::host), gateway);
        Some(first).filter(|first| *first != gateway)
    }

    /// The Gateway with a listener that takes the requests for a route's host from the listener `own`; `None` if none does.
    pub(crate) fn taken(&self, place: SocketAddr, own: Option<&str>, host: &HostMatcher) -> Option<&Name> {
        let (found, gateway) = self.places.get(&place)?.isolated.of(host)?;
        (*found != own.map_or(HostMatcher::Any, self::host)).then_some(gateway)
    }

    /// Notes that Ingresses are served there.
    pub(crate) fn serves_ingresses(&mut self, place: SocketAddr) {
        if let Some(bind) = self.places.get_mut(&place) {
            bind.has_ingresses = true;
        }
    }

    /// Shows this certificate to clients that ask for a name that no certificate is for, unless a Gateway has a listener for every name.
    pub(crate) fn default_certificate(&mut self, place: SocketAddr, secret: &Name, keypair: &Keypair) {
        let Some(bind) = self.places.get_mut(&place) else { return };
        if bind.isolated.of(&HostMatcher::Any).is_some() {
            return self.certificate(place, std::iter::empty(), (secret, keypair));
        }
        bind.certificates.retain(|(name, _)| name != secret);
        bind.certificates.insert(0, (secret.clone(), keypair.clone()));
    }

    /// Whether clients that ask for this name (`None`: for any name) can be asked for a certificate in this way, or, if `ask` is `None`, can
    /// be admitted without one.
    ///
    /// # Errors
    /// Returns a sentence if an older object demands something else of the same clients: the certificate is requested before the route is
    /// known.
    pub(crate) fn may_ask_clients(
        &self,
        place: SocketAddr,
        host: Option<&str>,
        ask: Option<&Ask>,
    ) -> Result<(), String> {
        match self.places.get(&place) {
            Some(bind) => {
                bind.clients.check(host.map(self::host).as_ref(), ask).map_err(|why| format!("{place}: {why}"))
            }
            None => Ok(()),
        }
    }

    /// Admits clients that ask for this name without a certificate.
    ///
    /// # Errors
    /// As [`Binds::may_ask_clients`].
    pub(crate) fn let_in_clients(&mut self, place: SocketAddr, host: Option<&str>) -> Result<(), String> {
        self.may_ask_clients(place, host, None)?;
        self.note_clients(place, host, None);
        Ok(())
    }

    /// Requests certificates of clients that ask for this name from now on. The caller has checked it with [`Binds::may_ask_clients`].
    pub(crate) fn note_clients(&mut self, place: SocketAddr, host: Option<&str>, ask: Option<&Ask>) {
        if let Some(bind) = self.places.get_mut(&place) {
            bind.clients.note(host.map(self::host), ask);
        }
    }

    pub(crate) fn sni(&mut self, place: SocketAddr, route: TlsRoute) {
        if let Some(bind) = self.places.get_mut(&place) {
            bind.sni.push(route);
        }
    }

    /// Sends the connections for a host to a cluster as they are, at an address with HTTPS.
    pub(crate) fn pass(&mut self, place: SocketAddr, host: &str, to: ClusterId) {
        if let Some(bind) = self.places.get_mut(&place) {
            bind.passed.insert(host.to_ascii_lowercase(), to);
        }
    }

    /// Sets the cluster of the connections of a TCP listener, unless an older route has them. Returns that route.
    pub(crate) fn tcp(&mut self, place: SocketAddr, route: &Name, to: ClusterId) -> Option<Name> {
        let bind = self.places.get_mut(&place)?;
        match &bind.tcp {
            Some((older, _)) => Some(older.clone()),
            None => {
                bind.tcp = Some((route.clone(), to));
                None
            }
        }
    }

    /// The listeners of the model, in the order of their addresses. `nowhere` is the cluster of a TCP listener without a route.
    pub(crate) fn into_listeners(self, nowhere: ClusterId) -> Vec<Listener> {
        self.places.into_iter().filter_map(|(place, bind)| bind.into_listener(place, nowhere)).collect()
    }
}

impl Bind {
    /// Returns `None` for TLS without a certificate, where nothing can be served but what passes through.
    fn into_listener(mut self, place: SocketAddr, nowhere: ClusterId) -> Option<Listener> {
        if self.speaks == Speaks::Https && self.certificates.is_empty() {
            if self.passed.is_empty() {
                return None;
            }
            let passed = std::mem::take(&mut self.passed).into_iter();
            let route = |(host, to)| TlsRoute { sni: vec![HostMatcher::Exact(host)], to, mode: TlsMode::Passthrough };
            self.sni = passed.map(route).collect();
            self.speaks = Speaks::Tls;
        }
        let isolated_hosts = self.isolated_hosts();
        let own_certificates = self.own_certificates();
        let protocol = match self.speaks {
            Speaks::Http | Speaks::Https => Protocol::Http(HttpListener {
                routes: sorted(std::mem::take(&mut self.routes)).into(),
                isolated_hosts,
                trusted_proxies: self.policy.trusted_proxies,
                forwarded: self.policy.forwarded,
                x_real_ip: self.policy.x_real_ip,
                header_names: self.policy.header_names,
                passthrough: passthrough(self.passed, self.policy.tcp_idle_timeout),
                http2: self.policy.http2,
                request_id: self.policy.request_id,
                paths: self.policy.paths,
                limits: self.policy.limits,
                error_pages: Box::default(),
            }),
            Speaks::Tcp => Protocol::Tcp(TcpListener {
                to: self.tcp.map_or(nowhere, |(_, to)| to),
                idle_timeout: self.policy.tcp_idle_timeout,
            }),
            Speaks::Tls => Protocol::Tls(TlsListener {
                routes: std::mem::take(&mut self.sni),
                isolated_hosts,
                hello_timeout: self.policy.limits.header_timeout,
                idle_timeout: self.policy.tcp_idle_timeout,
            }),
        };
        // A TLS listener that only passes TLS through has no certificates.
        let tls = (!self.certificates.is_empty()).then(|| ListenerTls {
            certificates: self.certificates.iter().map(|(name, keypair)| cluster::certificate(name, keypair)).collect(),
            hosts: own_certificates,
            client_ca: self.clients.into_model(),
            min_version: self.policy.min_tls_version,
        });
        Some(Listener {
            name: place.to_string(),
            bind: place,
            captured: None,
            protocol,
            tls,
            accept_proxy_protocol: self.policy.accept_proxy_protocol,
            addresses: model::AddressRules::default(),
            connections_max: self.policy.connections_max,
            client_limits: self.policy.client_limits,
        })
    }

    /// In an order that depends on nothing else. A sole certificate needs no hosts.
    fn own_certificates(&mut self) -> Vec<HostCertificates> {
        if self.certificates.len() < 2 {
            return Vec::new();
        }
        let places: HashMap<&Name, usize> =
            self.certificates.iter().enumerate().map(|(place, (name, _))| (name, place)).collect();
        let own = std::mem::take(&mut self.own).into_iter().map(|(host, secrets)| HostCertificates {
            host,
            certificates: secrets.iter().filter_map(|secret| places.get(secret).copied()).collect(),
        });
        let mut own: Vec<HostCertificates> = own.collect();
        own.sort_by_cached_key(|own| (own.host.to_string(), own.host.rank().1));
        own
    }

    fn isolated_hosts(&mut self) -> Vec<HostMatcher> {
        let mut hosts = std::mem::take(&mut self.isolated).into_list();
        if self.has_ingresses && !hosts.is_empty() && !hosts.contains(&HostMatcher::Any) {
            hosts.push(HostMatcher::Any);
        }
        match (self.speaks, hosts.as_slice()) {
            // A single listener for every host shares them with no other. With HTTPS, it still decides which requests a connection may
            // carry.
            (Speaks::Http | Speaks::Tls, [HostMatcher::Any]) => Vec::new(),
            _ => hosts,
        }
    }
}

impl Clients {
    fn check(&self, host: Option<&HostMatcher>, ask: Option<&Ask>) -> Result<(), &'static str> {
        // A handshake that requires nothing hurts nobody: each route says what it demands.
        let is_harmless = |ask: &Ask| ask.verify && !ask.required;
        let Some(ask) = ask else {
            let is_asked = self.asked.iter().any(|asked| covers(asked.as_ref(), host));
            return match is_asked && !self.ask.as_ref().is_some_and(is_harmless) {
                true => Err("an older object asks clients of this name for a certificate"),
                false => Ok(()),
            };
        };
        if self.ask.as_ref().is_some_and(|other| (&other.ca, &other.crl) != (&ask.ca, &ask.crl)) {
            return Err("an older object trusts other client certificates");
        }
        if self.ask.as_ref().is_some_and(|other| (other.verify, other.required) != (ask.verify, ask.required)) {
            return Err("an older object has another mode for client certificates");
        }
        if !is_harmless(ask) && self.open.iter().any(|open| covers(host, open.as_ref())) {
            return Err("an older object admits clients of this name without a certificate");
        }
        Ok(())
    }

    fn note(&mut self, host: Option<HostMatcher>, ask: Option<&Ask>) {
        match ask {
            Some(ask) => {
                self.ask.get_or_insert_with(|| ask.clone());
                self.asked.push(host);
            }
            None => self.open.push(host),
        }
    }

    fn into_model(self) -> Option<ClientCa> {
        let Ask { ca, crl, verify, required } = self.ask?;
        let hosts: Option<Vec<HostMatcher>> = self.asked.into_iter().collect();
        Some(ClientCa { hosts: hosts.unwrap_or_default(), ca, crl, spiffe_ids: Vec::new(), verify, required })
    }
}

fn passthrough(passed: BTreeMap<String, ClusterId>, idle_timeout: Duration) -> Arc<[Passthrough]> {
    let one = |(host, to)| Passthrough { sni: vec![HostMatcher::Exact(host)], to, idle_timeout };
    passed.into_iter().map(one).collect()
}

/// Whether one name (`None` stands for all) covers everything that the other does.
fn covers(one: Option<&HostMatcher>, other: Option<&HostMatcher>) -> bool {
    match (one, other) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(one), Some(other)) => one.covers(other),
    }
}

/// A hash of a route's conditions for each of its hosts. Hashes instead of texts, because there are many; if two are equal by chance, the
/// only harm is a wrong message.
fn fingerprints(route: &Route) -> impl Iterator<Item = u64> {
    let mut hasher = DefaultHasher::new();
    match &route.path {
        PathMatcher::Prefix(path) => (0, path.trim_end_matches('/')).hash(&mut hasher),
        PathMatcher::Exact(path) => (1, path.as_str()).hash(&mut hasher),
        PathMatcher::Regex(regex) => (2, regex.as_str()).hash(&mut hasher),
    }
    route.methods.hash(&mut hasher);
    for values in [&route.headers, &route.query] {
        values.len().hash(&mut hasher);
        for value in values {
            let text = match &value.value {
                TextMatcher::Exact(text) => (0, text.as_str()),
                TextMatcher::Regex(regex) => (1, regex.as_str()),
                TextMatcher::JoinedRegex(regex) => (3, regex.as_str()),
                TextMatcher::Present => (2, ""),
            };
            (&value.name, text).hash(&mut hasher);
        }
    }
    let of = move |host: &HostMatcher| {
        let mut hasher = hasher.clone();
        host.hash(&mut hasher);
        hasher.finish()
    };
    let any = route.hosts.is_empty().then_some(&HostMatcher::Any);
    any.into_iter().chain(&route.hosts).map(of)
}

/// In the order of their ranks, each with a unique name.
fn sorted(mut routes: Vec<(Rank, Route)>) -> Vec<Route> {
    routes.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut seen = BTreeSet::new();
    routes.into_iter().map(|(_, route)| route).filter(|route| seen.insert(route.name.clone())).collect()
}

/// A host as objects write it. `*.example.com` stands for one or more labels in front, as in the Gateway API.
pub(crate) fn host(text: &str) -> HostMatcher {
    let lower = text.to_ascii_lowercase();
    match lower.strip_prefix("*.") {
        Some(domain) => HostMatcher::Suffix(domain.to_owned()),
        None => HostMatcher::Exact(lower),
    }
}

/// The hosts that both a listener and a route cover; `None` means none. An empty list means any host.
pub(crate) fn intersection(listener: Option<&str>, route: &[String]) -> Option<Vec<HostMatcher>> {
    let listener = listener.filter(|host| !host.is_empty()).map(host);
    let Some(listener) = listener else { return Some(route.iter().map(|host| self::host(host)).collect()) };
    if route.is_empty() {
        return Some(vec![listener]);
    }
    let both: Vec<HostMatcher> = route.iter().filter_map(|route| narrower(&listener, &host(route))).collect();
    (!both.is_empty()).then_some(both)
}

fn narrower(a: &HostMatcher, b: &HostMatcher) -> Option<HostMatcher> {
    match (a.covers(b), b.covers(a)) {
        (true, _) => Some(b.clone()),
        (_, true) => Some(a.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_both() {
        let check = |listener: &str, route: &[&str], expect: Option<&[&str]>| {
            let route: Vec<String> = route.iter().map(|host| (*host).to_owned()).collect();
            let expect = expect.map(|hosts| hosts.iter().map(|text| host(text)).collect::<Vec<_>>());
            assert_eq!(intersection(Some(listener), &route), expect, "{listener} {route:?}");
        };
        check("", &[], Some(&[]));
        check("", &["a.example.com"], Some(&["a.example.com"]));
        check("a.example.com", &[], Some(&["a.example.com"]));
        check("a.example.com", &["A.Example.com", "b.example.com"], Some(&["a.example.com"]));
        check("*.example.com", &["a.b.example.com", "example.com"], Some(&["a.b.example.com"]));
        check("a.example.com", &["*.example.com"], Some(&["a.example.com"]));
        check("*.example.com", &["*.shop.example.com"], Some(&["*.shop.example.com"]));
        check("*.shop.example.com", &["*.example.com"], Some(&["*.shop.example.com"]));
        check("*.example.com", &["*.example.com"], Some(&["*.example.com"]));
        check("*.example.com", &["*.example.org", "example.com"], None);
        check("*.ample.com", &["*.example.com"], None);
    }

    #[test]
    fn certificates_of_clients() {
        let ca = |name: &str| Pem::Held { name: name.into(), text: [].into() };
        // Each is a name and the CA of its clients; `-` means none, `!` that they are not verified, and `?` that routes decide.
        let check = |asked: &[(&str, &str)], expect: Option<&str>| {
            let mut clients = Clients::default();
            let mut ask = |(name, signer): &(&str, &str)| {
                let ask = |signer: &str| Ask {
                    ca: ca(signer.trim_end_matches(['!', '?'])),
                    crl: None,
                    verify: !signer.ends_with('!'),
                    required: !signer.ends_with('?'),
                };
                let signer = (*signer != "-").then(|| ask(signer));
                let name = (!name.is_empty()).then(|| host(name));
                clients.check(name.as_ref(), signer.as_ref())?;
                clients.note(name, signer.as_ref());
                Ok::<(), &str>(())
            };
            let outcomes: Vec<_> = asked.iter().map(&mut ask).collect();
            let (last, before) = outcomes.split_last().unwrap();
            assert!(before.iter().all(Result::is_ok), "{asked:?} {outcomes:?}");
            match (last, expect) {
                (Ok(()), None) => {}
                (Err(why), Some(part)) => assert!(why.contains(part), "{asked:?}: {why}"),
                other => panic!("{asked:?}: {other:?}"),
            }
        };
        check(&[("a.example.com", "x"), ("b.example.com", "-")], None);
        check(&[("", "-"), ("a.example.com", "x")], None);
        check(&[("*.example.com", "-"), ("a.example.com", "x")], None);
        check(&[("a.example.com", "-"), ("*.example.com", "x")], Some("without a certificate"));
        check(&[("a.example.com", "-"), ("", "x")], Some("without a certificate"));
        check(&[("", "x"), ("a.example.com", "-")], Some("asks clients"));
        check(&[("*.example.com", "x"), ("a.example.com", "-")], Some("asks clients"));
        check(&[("a.example.com", "x"), ("", "-")], None);
        check(&[("a.example.com", "x"), ("b.example.com", "y")], Some("trusts other"));
        check(&[("a.example.com", "x"), ("b.example.com", "x!")], Some("another mode"));
        check(&[("a.example.com", "x!"), ("b.example.com", "x!")], None);
        check(&[("*.example.com", "x?"), ("a.example.com", "-")], None);
        check(&[("a.example.com", "-"), ("", "x?")], None);
        check(&[("a.example.com", "x?"), ("b.example.com", "x")], Some("another mode"));
        let mut clients = Clients::default();
        let ask = Ask { ca: ca("x"), crl: None, verify: true, required: true };
        clients.note(Some(host("a.example.com")), Some(&ask));
        clients.note(None, Some(&ask));
        assert!(
            clients.into_model().is_some_and(|asked| asked.hosts.is_empty()),
            "all, and not those of one name alone"
        );
    }
}
