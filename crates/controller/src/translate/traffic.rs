//! TrafficPolicy: which policies apply to a rule and to a cluster, and what each is told (GEP-713).
//!
//! `Gateway < listener < route < rule < Service`: the more specific target decides, field by field. Of several policies with one target, the
//! oldest that has a field decides it. A rule or a Service with a policy that cannot be applied is not served at all: its requests get 500.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use model::{
    ApiKeyAuth, Auth, BasicAuth, ClientLimits, Cluster, ClusterId, ExternalAuth, GlobalRateLimit, IngressNginxSessions,
    Keys, Route, SharedPolicy, Users,
};

use super::cluster::{Clusters, Share};
use super::gateway::{GatewayListener, Gateways};
use super::reference::{self, TRAFFIC_POLICY, Why};
use super::status::{at, condition};
use super::{Desired, Statuses, filter};
use crate::index::{CREDENTIALS_TYPE, Index, Kind, Name, RouteKind, Rules, TrafficEntry, UsersPart};
use crate::objects::{AncestorStatus, BackendRef, Condition, GROUP, ObjectRef, ParentRef, PolicyTarget, Text};
use crate::settings::Settings;

/// The most entries that the API allows in a status.
const ANCESTORS_MAX: usize = 16;

/// Policies with one target. Each is looked at for every rule that it applies to.
const POLICIES_MAX: usize = 16;

/// Bytes of lists, pages and credentials that policies may put into routes. Each route has its own, and a policy of a Gateway is for all of its routes.
const BYTES_MAX: usize = 256 << 20;

/// What the proxy needs for one user or client of a Secret, for each policy.
const CREDENTIAL_BYTES: usize = 256;

/// In a scope, stands for the policies of a target that has too many.
const TOO_MANY: usize = usize::MAX;

/// Fields that a message names at most.
const FIELDS_TOLD_MAX: usize = 8;

/// A kind of target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Of {
    Gateway,
    Route(RouteKind),
    Service,
}

/// A target: an object, or a part of it.
type Target = (Of, Name, Option<Text>);

/// Policies by their numbers, of which the oldest policy has 0. The most specific come first, and of one target the oldest.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Scope(Vec<usize>);

/// All policies.
#[derive(Default)]
pub(crate) struct Policies<'i> {
    all: Vec<(&'i Name, &'i TrafficEntry)>,
    /// The policies of each target, the oldest first. If there are too many, [`TOO_MANY`] is the last.
    of: HashMap<Target, Vec<usize>>,
    /// The policy that decides each field of a target.
    deciding: HashMap<Target, BTreeMap<String, usize>>,
    /// What the requests of each policy must prove, with what is in its Secret: `auths.len() == all.len()`.
    auths: Vec<Option<Result<Arc<Auth>, Why>>>,
    /// The policies of which routes have that already.
    proving: RefCell<BTreeSet<usize>>,
    /// The services of policies, at the cluster that the routes of a listener ask.
    authorizing: RefCell<HashMap<(usize, ClusterId), Arc<ExternalAuth>>>,
    counting: RefCell<HashMap<(usize, ClusterId), Arc<GlobalRateLimit>>>,
    /// Bytes that the routes have of policies so far.
    bytes: Cell<usize>,
    /// The Gateways of ours that each route is attached to.
    attached: BTreeMap<(RouteKind, Name), BTreeSet<Name>>,
    /// The Services that requests are sent to, also by Ingresses.
    served: BTreeSet<Name>,
    /// The policies that the annotations of Ingresses stand for, by the Ingress. They follow the objects in `all`, and have no targets.
    of_ingresses: HashMap<&'i Name, usize>,
    /// How many are objects.
    objects: usize,
}

impl<'i> Policies<'i> {
    pub(super) fn of(index: &'i Index, ingresses: impl Iterator<Item = (&'i Name, &'i TrafficEntry)>) -> Self {
        let mut all: Vec<_> = index.traffic.iter().collect();
        all.sort_by_key(|(name, entry)| (entry.meta.created, *name));
        let objects = all.len();
        all.extend(ingresses);
        let of_ingresses = all.iter().enumerate().skip(objects).map(|(number, (name, _))| (*name, number)).collect();
        let auth = |(name, entry): &(&'i Name, &'i TrafficEntry)| {
            let auth = entry.policy.as_ref().ok()?.auth()??;
            Some(with_secret(index, name, auth, entry.users))
        };
        let auths = all.iter().map(auth).collect();
        let mut found = Self { all, auths, of_ingresses, objects, ..Self::default() };
        for (number, (name, entry)) in found.all.iter().enumerate() {
            for target in entry.targets.iter().filter_map(|target| target_of(name, target)) {
                let policies = found.of.entry(target.clone()).or_default();
                // The definition allows a target only once, but an object may be older than the definition.
                if policies.last().is_some_and(|last| [number, TOO_MANY].contains(last)) {
                    continue;
                }
                if policies.len() == POLICIES_MAX {
                    policies.push(TOO_MANY);
                    continue;
                }
                policies.push(number);
                let deciding = found.deciding.entry(target).or_default();
                for field in entry.policy.iter().flat_map(|policy| policy.fields()) {
                    deciding.entry(field).or_insert(number);
                }
            }
        }
        found
    }

    fn at(&self, of: Of, name: &Name, section: Option<&str>) -> &[usize] {
        if self.all.is_empty() {
            return &[];
        }
        self.of.get(&(of, name.clone(), section.map(Text::from))).map(Vec::as_slice).unwrap_or_default()
    }

    /// Those that every route at a listener inherits.
    pub(super) fn inherited(&self, listener: &GatewayListener<'_>) -> Scope {
        // The listeners of a ListenerSet have names of their own.
        let section = Some(listener.spec.name.as_str()).filter(|_| listener.owner.0 == Kind::Gateway);
        let own = section.map(|section| self.at(Of::Gateway, listener.gateway, Some(section))).unwrap_or_default();
        Scope([own, self.at(Of::Gateway, listener.gateway, None)].concat())
    }

    /// Puts what the policies of a Gateway say of its clients over these limits. Of policies that cannot be applied, its routes get no traffic.
    pub(super) fn limit_clients(&self, gateway: &Name, limits: &mut ClientLimits) {
        let scope = Scope(self.at(Of::Gateway, gateway, None).to_vec());
        let policies: Vec<_> = self.entries(&scope).filter_map(|(_, entry)| entry.policy.as_deref().ok()).collect();
        config::apply_to_clients(policies.into_iter(), limits);
    }

    /// Those of a rule of a route.
    pub(super) fn of_rule(&self, kind: RouteKind, route: &Name, rule: Option<&Text>, inherited: &Scope) -> Scope {
        let of = Of::Route(kind);
        let own = rule.filter(|rule| !rule.is_empty()).map(|rule| self.at(of, route, Some(rule))).unwrap_or_default();
        Scope([own, self.at(of, route, None), &inherited.0].concat())
    }

    /// That of the annotations of an Ingress.
    pub(super) fn of_ingress(&self, ingress: &Name) -> Scope {
        Scope(self.of_ingresses.get(ingress).copied().into_iter().collect())
    }

    /// The number of that policy.
    pub(super) fn number_of(&self, ingress: &Name) -> usize {
        self.of_ingresses.get(ingress).copied().unwrap_or(TOO_MANY)
    }

    /// Notes the Gateways of ours that a route is attached to.
    pub(super) fn attach(&mut self, kind: RouteKind, route: &Name, gateways: &BTreeSet<&Name>) {
        if !self.all.is_empty() && !gateways.is_empty() {
            self.attached.insert((kind, route.clone()), gateways.iter().map(|name| (*name).clone()).collect());
        }
    }

    fn entries(&self, scope: &Scope) -> impl Iterator<Item = (&'i Name, &'i TrafficEntry)> + Clone {
        scope.0.iter().filter_map(|number| self.all.get(*number).copied()).collect::<Vec<_>>().into_iter()
    }

    /// The policies of a scope.
    ///
    /// # Errors
    /// Returns why not all of them can be applied.
    fn valid(&self, scope: &Scope) -> Result<Vec<&'i config::TrafficPolicy>, String> {
        if scope.0.contains(&TOO_MANY) {
            return Err(too_many());
        }
        let wrong = |name: &Name| format!("the TrafficPolicy {name} cannot be applied");
        self.entries(scope).map(|(name, entry)| entry.policy.as_deref().map_err(|_| wrong(name))).collect()
    }

    /// Those of them that say something of clusters. Only valid ones do; of the others, the rule gets no traffic.
    pub(super) fn of_clusters(&self, scope: &Scope) -> ClusterScope {
        let has_cluster = |number: &usize| {
            let entry = self.all.get(*number).map(|(_, entry)| entry);
            entry.is_some_and(|entry| entry.policy.as_ref().is_ok_and(|policy| policy.has_cluster()))
        };
        let numbers: Vec<usize> = scope.0.iter().copied().filter(has_cluster).collect();
        let told = |number: &usize| {
            let (name, _) = self.all.get(*number)?;
            Some(if *number < self.objects { name.to_string() } else { format!("ingress/{name}") })
        };
        let names: Vec<String> = numbers.iter().filter_map(told).collect();
        let label = if names.is_empty() { String::new() } else { format!("+policy={}", names.join(",")) };
        ClusterScope { scope: Scope(numbers), label, session: None, tls: None, sessions: None }
    }

    /// Puts the policies of a rule over a route that has its filters and nothing else yet. `nowhere` takes the requests of a rule whose
    /// policies cannot be applied. `copies` is how many routes it becomes.
    ///
    /// # Errors
    /// Returns why they cannot.
    pub(super) fn apply(
        &self,
        scope: &Scope,
        nowhere: ClusterId,
        copies: usize,
        route: &mut Route,
    ) -> Result<(), String> {
        if scope.0.is_empty() {
            return Ok(());
        }
        let outcome = match self.valid(scope).and_then(|policies| self.spend(policies, copies)) {
            Err(why) => Err(why),
            Ok(policies) => {
                config::apply_to_route(policies.into_iter(), route);
                // One may set a header that the other decides.
                filter::check_cors(route)
                    .map_err(|_| {
                        "CORS and a change of response headers, of a filter and a TrafficPolicy, decide the same header"
                            .to_owned()
                    })
                    .and_then(|()| self.put_auth(scope, route))
            }
        };
        if outcome.is_err() {
            route.to = nowhere.into();
            route.policy = SharedPolicy::default();
        }
        outcome
    }

    /// Puts what is in a Secret in place of its name.
    fn put_auth(&self, scope: &Scope, route: &mut Route) -> Result<(), String> {
        if route.policy.auth.is_none() {
            return Ok(());
        }
        let decides = |number: &&usize| {
            let policy = self.all.get(**number).and_then(|(_, entry)| entry.policy.as_ref().ok());
            policy.is_some_and(|policy| policy.auth().is_some())
        };
        let decided =
            scope.0.iter().find(decides).and_then(|number| Some((*number, self.auths.get(*number)?.as_ref()?)));
        match decided {
            Some((number, Ok(auth))) => {
                // The proxy makes what it compares with once for each policy.
                if self.proving.borrow_mut().insert(number) {
                    self.spend_bytes(credentials(auth).saturating_mul(CREDENTIAL_BYTES))?;
                }
                route.policy.auth = Some(auth.clone());
                Ok(())
            }
            Some((_, Err(why))) => Err(why.message.clone()),
            None => Err("the policy that decides auth is not known".to_owned()),
        }
    }

    /// The service that is asked, and the number of the policy that decides it.
    ///
    /// # Errors
    /// Returns why it cannot be asked.
    pub(super) fn asked(&self, index: &Index, scope: &Scope, asked: Asked) -> Result<(usize, Share), String> {
        let of = |number: &usize| {
            let (name, entry) = self.all.get(*number)?;
            Some((*number, *name, asked.of(entry.policy.as_ref().ok()?)?))
        };
        match scope.0.iter().find_map(of) {
            Some((number, name, Some(service))) => {
                // Whether an annotation may name a Service of another namespace was decided when it was read.
                let from = service.namespace.as_deref().filter(|_| number >= self.objects);
                let from = from.map_or_else(|| name.clone(), |namespace| Name::new(namespace, &name.name));
                share(index, &from, service).map(|share| (number, share)).map_err(|why| why.message)
            }
            _ => Err(format!("the policy that decides {} is not known", asked.field())),
        }
    }

    /// The external authorization of a policy at a cluster. Routes share it, as the proxy does what it remembers of answers.
    pub(super) fn authorizing(&self, number: usize, to: ClusterId, policy: &ExternalAuth) -> Arc<ExternalAuth> {
        let mut known = self.authorizing.borrow_mut();
        let make = || Arc::new(ExternalAuth { to, ..policy.clone() });
        known.entry((number, to)).or_insert_with(make).clone()
    }

    /// The same for a global rate limit.
    pub(super) fn counting(&self, number: usize, to: ClusterId, policy: &GlobalRateLimit) -> Arc<GlobalRateLimit> {
        let mut known = self.counting.borrow_mut();
        let make = || Arc::new(GlobalRateLimit { to, ..policy.clone() });
        known.entry((number, to)).or_insert_with(make).clone()
    }

    /// The reference of a policy that cannot be resolved.
    fn unresolved(&self, index: &Index, number: usize) -> Option<Why> {
        let auth = self.auths.get(number)?.as_ref().and_then(|auth| auth.as_ref().err().cloned());
        let (name, entry) = self.all.get(number)?;
        let service = |asked: Asked| share(index, name, asked.of(entry.policy.as_ref().ok()?)??).err();
        auth.or_else(|| service(Asked::Authorization)).or_else(|| service(Asked::RateLimit))
    }

    /// Counts what these policies add to that many routes.
    ///
    /// # Errors
    /// Returns a sentence if it is too much with what all routes before have.
    fn spend<'p>(
        &self,
        policies: Vec<&'p config::TrafficPolicy>,
        copies: usize,
    ) -> Result<Vec<&'p config::TrafficPolicy>, String> {
        let each: usize = policies.iter().map(|policy| policy.route_bytes()).sum();
        self.spend_bytes(each.saturating_mul(copies))?;
        Ok(policies)
    }

    /// # Errors
    /// As [`Policies::spend`].
    fn spend_bytes(&self, more: usize) -> Result<(), String> {
        let bytes = self.bytes.get().saturating_add(more);
        if bytes > BYTES_MAX {
            return Err(format!(
                "the lists, pages and credentials of TrafficPolicies take more than {} MiB in all routes together",
                BYTES_MAX >> 20
            ));
        }
        self.bytes.set(bytes);
        Ok(())
    }

    /// Puts the policies of clusters over them. A cluster with one that cannot be applied has no endpoints, and gets no traffic.
    pub(super) fn shape(&mut self, clusters: &mut Clusters) {
        if self.all.is_empty() {
            return;
        }
        self.served = clusters.services().collect();
        clusters.shape(|services, scope, cluster: &mut Arc<Cluster>| {
            let mut own: Vec<usize> =
                services.iter().flat_map(|service| self.at(Of::Service, service, None)).copied().collect();
            // Several Services that form one cluster are one target.
            own.sort_unstable();
            own.dedup();
            let scope = Scope([&own[..], &scope.0].concat());
            if scope.0.is_empty() {
                return true;
            }
            let Ok(policies) = self.valid(&scope) else { return false };
            config::apply_to_cluster(policies.into_iter(), Arc::make_mut(cluster));
            true
        });
    }
}

/// The policies of a cluster besides those of its Services. They distinguish clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ClusterScope {
    pub(crate) scope: Scope,
    /// For the name of the cluster.
    pub(crate) label: String,
    /// The sessions that a rule wants, in words.
    pub(crate) session: Option<String>,
    /// TLS to endpoints, unless a BackendTLSPolicy says more.
    pub(crate) tls: Option<UpstreamTls>,
    /// The form of the sessions, if a policy has some.
    pub(crate) sessions: Option<IngressNginxSessions>,
}

/// TLS to endpoints as annotations of ingress-nginx mean it. The default verifies nothing, and asks for no name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct UpstreamTls {
    /// The Secret with the CA certificates, and the name that certificates of endpoints have.
    pub(crate) verify: Option<(Name, String)>,
    /// The name that endpoints are asked for.
    pub(crate) sni: Option<String>,
}

/// What a service is asked for.
#[derive(Clone, Copy)]
pub(super) enum Asked {
    Authorization,
    RateLimit,
}

impl Asked {
    /// Whether a policy decides the service, and which it is.
    fn of(self, policy: &config::TrafficPolicy) -> Option<Option<&config::ServiceRef>> {
        match self {
            Self::Authorization => policy.external_auth(),
            Self::RateLimit => policy.global_rate_limit(),
        }
    }

    fn field(self) -> &'static str {
        match self {
            Self::Authorization => "externalAuth",
            Self::RateLimit => "globalRateLimit",
        }
    }
}

/// What requests must prove, with what is in the Secret that a policy names.
fn with_secret(index: &Index, policy: &Name, auth: &Arc<Auth>, part: UsersPart) -> Result<Arc<Auth>, Why> {
    // Keys that verify tokens are no secret.
    if matches!(**auth, Auth::Jwt(_)) {
        return Ok(auth.clone());
    }
    let name = auth.file().and_then(|name| name.to_str()).unwrap_or_default();
    let name = Name::new(&policy.namespace, name);
    let Some(entry) = index.credentials.get(&name) else {
        let is_typed = part == UsersPart::Users;
        let of_type = if is_typed { format!(" of the type {CREDENTIALS_TYPE}") } else { String::new() };
        let what = format!("Secret {name}{of_type}");
        return Err(Why::new("SecretNotFound", index.unknown(Kind::Credentials, &name.namespace, &what)));
    };
    let invalid = |wrong: &str| Why::new("InvalidSecret", format!("the Secret {name}: {wrong}"));
    Ok(Arc::new(match &**auth {
        Auth::Basic(basic) => {
            let users = match part {
                UsersPart::Users => &entry.users,
                UsersPart::Auth => &entry.auth,
                UsersPart::Each => &entry.map,
            };
            let users = users.as_ref().map_err(|wrong| invalid(wrong))?;
            Auth::Basic(BasicAuth { users: Users::Inline(users.clone()), ..basic.clone() })
        }
        Auth::ApiKey(api_key) => {
            let keys = entry.keys.as_ref().map_err(|wrong| invalid(wrong))?;
            Auth::ApiKey(ApiKeyAuth { keys: Keys::Inline(keys.clone()), ..api_key.clone() })
        }
        Auth::Jwt(jwt) => Auth::Jwt(jwt.clone()),
    }))
}

/// How many users or keys a request is compared with.
fn credentials(auth: &Auth) -> usize {
    match auth {
        Auth::Basic(BasicAuth { users: Users::Inline(users), .. }) => users.len(),
        Auth::ApiKey(ApiKeyAuth { keys: Keys::Inline(keys), .. }) => keys.len(),
        Auth::Basic(_) | Auth::ApiKey(_) | Auth::Jwt(_) => 0,
    }
}

/// The Service that a policy names.
fn share(index: &Index, policy: &Name, service: &config::ServiceRef) -> Result<Share, Why> {
    let config::ServiceRef { name, namespace, port, is_grpc } = service;
    let namespace = namespace.as_deref().map(Text::from);
    let object = ObjectRef { name: name.as_str().into(), namespace, ..ObjectRef::default() };
    let backend = BackendRef { object, port: Some(*port), ..BackendRef::default() };
    reference::asked(index, TRAFFIC_POLICY, &policy.namespace, &backend, *is_grpc)
}

fn target_of(policy: &Name, target: &PolicyTarget) -> Option<Target> {
    let of = match (target.group.as_str(), target.kind.as_str()) {
        (GROUP, "Gateway") => Of::Gateway,
        (GROUP, "HTTPRoute") => Of::Route(RouteKind::Http),
        (GROUP, "GRPCRoute") => Of::Route(RouteKind::Grpc),
        ("", "Service") => Of::Service,
        _ => return None,
    };
    let section = target.section_name.as_deref().filter(|section| !section.is_empty());
    if of == Of::Service && section.is_some() {
        return None;
    }
    Some((of, Name::new(&policy.namespace, &target.name), section.map(Text::from)))
}

/// What became of a policy at one target.
enum Fate {
    /// It applies, except for these fields, which an older policy decides.
    Applies(Vec<String>),
    /// The target has so many older policies that it has no place.
    NoPlace,
    /// The target is not there.
    Absent(String),
}

/// The status of each policy, for each Gateway of ours that its targets belong to. A target that does not exist stands for itself, and so does
/// a Service that only Ingresses lead to.
pub(super) fn statuses(
    index: &Index,
    settings: &Settings,
    policies: &Policies<'_>,
    gateways: &Gateways<'_>,
    users: &BTreeMap<Name, BTreeSet<Name>>,
    statuses: &mut Statuses,
) {
    for (number, (name, entry)) in policies.all.iter().enumerate().take(policies.objects) {
        let references = policies.unresolved(index, number).map_or(Ok(()), Err);
        let mut fates: BTreeMap<ParentRef, Vec<Fate>> = BTreeMap::new();
        for written in &entry.targets {
            for (ancestor, fate) in fates_at(index, policies, gateways, users, (name, entry), written) {
                fates.entry(ancestor).or_default().push(fate);
            }
        }
        let foreign =
            entry.present.iter().filter(|present| *present.controller_name != *settings.controller_name).count();
        let ancestor = |(ancestor_ref, fates): (ParentRef, Vec<Fate>)| AncestorStatus {
            ancestor_ref,
            controller_name: settings.controller_name.as_str().into(),
            conditions: conditions(entry, &fates, &references),
        };
        let room = ANCESTORS_MAX.saturating_sub(foreign);
        let ancestors = fates.into_iter().map(ancestor).take(room).collect();
        statuses.insert((Kind::Traffic, (*name).clone()), Desired::Policy(ancestors));
    }
}

fn fates_at(
    index: &Index,
    policies: &Policies<'_>,
    gateways: &Gateways<'_>,
    users: &BTreeMap<Name, BTreeSet<Name>>,
    policy: (&Name, &TrafficEntry),
    written: &PolicyTarget,
) -> Vec<(ParentRef, Fate)> {
    let itself = || ParentRef {
        group: Some(written.group.as_str().into()),
        kind: Some(written.kind.as_str().into()),
        namespace: Some(policy.0.namespace.clone()),
        name: written.name.as_str().into(),
        section_name: written.section_name.as_deref().map(Text::from),
        ..ParentRef::default()
    };
    let absent = |message: String| vec![(itself(), Fate::Absent(message))];
    let Some(target) = target_of(policy.0, written) else {
        return absent(format!("a {} cannot be the target of a TrafficPolicy", written.kind));
    };
    let (of, name, section) = &target;
    let found = match of {
        Of::Gateway if index.gateways.contains_key(name) => {
            gateways.plans.iter().find(|plan| plan.name == name).map(|plan| vec![plan.name]).unwrap_or_default()
        }
        Of::Route(kind) if index.routes.contains_key(&(*kind, name.clone())) => {
            policies.attached.get(&(*kind, name.clone())).into_iter().flatten().collect()
        }
        Of::Service if index.services.contains_key(name) => users.get(name).into_iter().flatten().collect(),
        _ => {
            let kind = match of {
                Of::Gateway => Kind::Gateway,
                Of::Route(kind) => Kind::Route(*kind),
                Of::Service => Kind::Service,
            };
            return absent(index.unknown(kind, &name.namespace, &format!("{} {name}", written.kind)));
        }
    };
    let fate = || match section.as_deref().filter(|section| !has_section(index, of, name, section)) {
        Some(section) => Fate::Absent(format!("the {} {name} has no part named {section}", written.kind)),
        None => lost(policies, policy, &target).map_or(Fate::NoPlace, Fate::Applies),
    };
    let ancestor = |gateway: &Name| ParentRef {
        group: Some(GROUP.into()),
        kind: Some("Gateway".into()),
        namespace: Some(gateway.namespace.clone()),
        name: gateway.name.clone(),
        ..ParentRef::default()
    };
    if found.is_empty() && *of == Of::Service && policies.served.contains(name) {
        // Only Ingresses lead there, which belong to no Gateway.
        return vec![(itself(), fate())];
    }
    found.into_iter().map(|gateway| (ancestor(gateway), fate())).collect()
}

/// Whether a Gateway has a listener of this name, or a route a rule.
fn has_section(index: &Index, of: &Of, name: &Name, section: &str) -> bool {
    match of {
        Of::Gateway => index
            .gateways
            .get(name)
            .is_some_and(|gateway| gateway.spec.listeners.iter().any(|listener| listener.name == section)),
        Of::Route(kind) => index.routes.get(&(*kind, name.clone())).is_some_and(|route| match &route.rules {
            Rules::Http(rules) => rules.iter().any(|rule| rule.name.as_deref() == Some(section)),
            Rules::Grpc(rules) => rules.iter().any(|rule| rule.name.as_deref() == Some(section)),
            Rules::Stream(_) => false,
        }),
        Of::Service => false,
    }
}

/// The fields that older policies of the same target decide, each with the policy; `None` if the target has too many policies for this one.
fn lost(policies: &Policies<'_>, (name, entry): (&Name, &TrafficEntry), target: &Target) -> Option<Vec<String>> {
    let is_it = |number: &&usize| policies.all.get(**number).is_some_and(|(known, _)| *known == name);
    let own = *policies.of.get(target)?.iter().find(is_it)?;
    let Ok(policy) = &entry.policy else { return Some(Vec::new()) };
    let deciding = policies.deciding.get(target)?;
    let taken = |field: String| {
        let by = deciding.get(&field).filter(|by| **by != own)?;
        let (by, _) = policies.all.get(*by)?;
        Some(format!("{field} ({by})"))
    };
    Some(policy.fields().filter_map(taken).collect())
}

fn too_many() -> String {
    format!("a target has more than {POLICIES_MAX} TrafficPolicies")
}

fn conditions(entry: &TrafficEntry, fates: &[Fate], references: &Result<(), Why>) -> Vec<Condition> {
    let generation = entry.meta.generation;
    let fields = entry.policy.as_ref().map_or(0, |policy| policy.fields().count());
    let absent = fates.iter().find_map(|fate| match fate {
        Fate::Absent(message) => Some(message.clone()),
        Fate::Applies(_) | Fate::NoPlace => None,
    });
    let has_no_place = fates.iter().any(|fate| matches!(fate, Fate::NoPlace));
    let lost: BTreeSet<&String> = fates
        .iter()
        .flat_map(|fate| match fate {
            Fate::Applies(lost) => lost.as_slice(),
            Fate::Absent(_) | Fate::NoPlace => &[],
        })
        .collect();
    let loses_all = fates.iter().all(|fate| matches!(fate, Fate::Applies(lost) if lost.len() == fields && fields > 0));
    let told: Vec<&str> = lost.iter().take(FIELDS_TOLD_MAX).map(|text| text.as_str()).collect();
    let message = format!("older policies of the same target decide {}", told.join(", "));
    let accepted = match (&entry.policy, absent) {
        (Err(wrong), _) => Err(Why::new("Invalid", format!("{wrong}; requests of its targets get 500"))),
        (Ok(_), _) if has_no_place => {
            Err(Why::new("Invalid", format!("{}; requests of the target get 500", too_many())))
        }
        (Ok(_), Some(absent)) => Err(Why::new("TargetNotFound", absent)),
        (Ok(_), None) if loses_all => Err(Why::new("Conflicted", message.clone())),
        (Ok(_), None) => Ok(()),
    };
    let conflicted = match lost.is_empty() {
        true => Condition::fails("Conflicted", "NoConflicts", ""),
        false => Condition::holds("Conflicted", "OlderPolicy", message),
    };
    vec![
        condition("Accepted", "Accepted", &accepted, generation),
        at(conflicted, generation),
        condition("ResolvedRefs", "ResolvedRefs", references, generation),
    ]
}
