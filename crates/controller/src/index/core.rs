//! What the index keeps of core objects: Ingresses, Services, Secrets.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::networking::v1::{Ingress, IngressBackend, IngressClass};
use model::{Credential, PasswordHash, ProxyProtocol, Secret as KeyText, Transport, WrongLine, parse_credentials};

use super::entry::{IndexEntry, Meta, name_of, transport};
use super::keys::{judge_authority, judge_crl};
use super::{CREDENTIALS_TYPE, Difference, Keypair, Name};
use crate::ingress_nginx::Prefix;
use crate::objects::{ObjectRef, Text};
use crate::settings::Published;

const DEFAULT_CLASS: &str = "ingressclass.kubernetes.io/is-default-class";
const OLD_CLASS: &str = "kubernetes.io/ingress.class";

/// An IngressClass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngressClassEntry {
    /// Distinguishes it from a later object of the same name.
    pub uid: Box<str>,
    /// The controller that manages it.
    pub controller: Box<str>,
    /// It is the default for Ingresses that name no class.
    pub is_default: bool,
    /// Its parameters.
    pub parameters: Option<ObjectRef>,
}

impl IngressClassEntry {
    pub(super) fn of(object: IngressClass) -> (Name, Self) {
        let spec = object.spec.unwrap_or_default();
        let annotations = object.metadata.annotations.as_ref();
        let is_default = annotations.and_then(|all| all.get(DEFAULT_CLASS)).is_some_and(|value| value == "true");
        let entry = Self {
            uid: object.metadata.uid.as_deref().unwrap_or_default().into(),
            controller: spec.controller.unwrap_or_default().into(),
            is_default,
            parameters: spec.parameters.map(|reference| ObjectRef {
                group: reference.api_group.map(Into::into),
                kind: Some(reference.kind.into()),
                namespace: reference.namespace.map(Into::into),
                name: reference.name.into(),
            }),
        };
        (name_of(&object.metadata), entry)
    }
}

impl IndexEntry for IngressClassEntry {
    fn difference(&self, old: &Self) -> Difference {
        if self == old { Difference::None } else { Difference::All }
    }
}

/// An Ingress.
#[derive(Clone, Debug)]
pub struct IngressEntry {
    /// Its identity.
    pub meta: Meta,
    /// The class that it names, in its field or in the older annotation.
    pub class: Option<Box<str>>,
    /// The backend for requests that no rule matches.
    pub default_backend: Option<IngressTarget>,
    /// The rules, each with its host.
    pub rules: Vec<IngressRuleEntry>,
    /// Certificates.
    pub tls: Vec<IngressTlsEntry>,
    /// Annotations of other controllers, which have no effect here.
    pub foreign: Vec<Box<str>>,
    /// Annotations of ingress-nginx without their prefix, if they are served.
    pub nginx: Arc<BTreeMap<Box<str>, Box<str>>>,
    /// Addresses in its status: IP addresses or names.
    pub present: Vec<Box<str>>,
}

/// A host and its paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngressRuleEntry {
    /// The host; absent means every host.
    pub host: Option<Box<str>>,
    /// In the order of the object.
    pub paths: Vec<IngressPath>,
}

/// A path and its backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngressPath {
    /// The path, which begins with `/`.
    pub path: Box<str>,
    /// `Exact`, `Prefix` or `ImplementationSpecific`.
    pub kind: Box<str>,
    /// The backends.
    pub target: IngressTarget,
}

/// The backend of a path of an Ingress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IngressTarget {
    /// A port of a Service.
    Service(Box<str>, PortRef),
    /// Another object.
    Resource(Box<str>),
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortRef {
    /// By its number.
    Number(u16),
    /// By its name.
    Name(Box<str>),
}

impl fmt::Display for PortRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// A Secret and the names that its certificate is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngressTlsEntry {
    /// The hosts; empty means all hosts of the Ingress.
    pub hosts: Vec<Box<str>>,
    /// The Secret, in the same namespace.
    pub secret: Option<Box<str>>,
}

impl IngressEntry {
    /// With a prefix, annotations of ingress-nginx count.
    pub(super) fn of(object: Ingress, prefix: Option<&Prefix>) -> (Name, Self) {
        let name = name_of(&object.metadata);
        let meta = Meta::of(&object.metadata);
        let annotations = object.metadata.annotations.unwrap_or_default();
        let spec = object.spec.unwrap_or_default();
        let class = spec.ingress_class_name.or_else(|| annotations.get(OLD_CLASS).cloned());
        let rule = |rule: k8s_openapi::api::networking::v1::IngressRule| IngressRuleEntry {
            host: rule.host.filter(|host| !host.is_empty()).map(Into::into),
            paths: rule.http.into_iter().flat_map(|http| http.paths).filter_map(path).collect(),
        };
        let tls = |tls: k8s_openapi::api::networking::v1::IngressTLS| IngressTlsEntry {
            hosts: tls.hosts.unwrap_or_default().into_iter().map(Into::into).collect(),
            secret: tls.secret_name.map(Into::into),
        };
        let of_nginx = |(key, value): (&String, &String)| Some((prefix?.name_of(key)?.into(), value.as_str().into()));
        let nginx: BTreeMap<Box<str>, Box<str>> = annotations.iter().filter_map(of_nginx).collect();
        let is_unserved = |key: &String| is_foreign(key) && prefix.and_then(|prefix| prefix.name_of(key)).is_none();
        let load_balancer = object.status.and_then(|status| status.load_balancer);
        let present = load_balancer.into_iter().flat_map(|status| status.ingress.unwrap_or_default());
        let entry = Self {
            meta,
            class: class.map(Into::into),
            default_backend: spec.default_backend.and_then(target),
            rules: spec.rules.unwrap_or_default().into_iter().map(rule).collect(),
            tls: spec.tls.unwrap_or_default().into_iter().map(tls).collect(),
            foreign: annotations.into_keys().filter(is_unserved).map(Into::into).collect(),
            nginx: Arc::new(nginx),
            present: present.filter_map(|point| point.ip.or(point.hostname)).map(Into::into).collect(),
        };
        (name, entry)
    }
}

/// Whether another controller acts on this annotation, so that a user who comes from there may rely on it.
fn is_foreign(annotation: &str) -> bool {
    let prefix = annotation.split_once('/').map_or("", |(prefix, _)| prefix);
    prefix.ends_with("ingress.kubernetes.io") && annotation != OLD_CLASS
}

fn path(path: k8s_openapi::api::networking::v1::HTTPIngressPath) -> Option<IngressPath> {
    let text = path.path.filter(|path| !path.is_empty()).unwrap_or_else(|| "/".to_owned());
    Some(IngressPath { path: text.into(), kind: path.path_type.into(), target: target(path.backend)? })
}

fn target(backend: IngressBackend) -> Option<IngressTarget> {
    if let Some(resource) = backend.resource {
        return Some(IngressTarget::Resource(format!("{} {}", resource.kind, resource.name).into()));
    }
    let service = backend.service?;
    let port = service.port?;
    let port = match (port.number, port.name) {
        (Some(number), _) => PortRef::Number(u16::try_from(number).ok()?),
        (None, Some(name)) => PortRef::Name(name.into()),
        (None, None) => return None,
    };
    Some(IngressTarget::Service(service.name.into(), port))
}

impl IndexEntry for IngressEntry {
    fn difference(&self, old: &Self) -> Difference {
        let says_the_same = self.class == old.class && self.foreign == old.foreign && self.nginx == old.nginx;
        let same = self.meta.wants_the_same(&old.meta) && says_the_same;
        if same { Difference::Status } else { Difference::All }
    }
}

/// A Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceEntry {
    /// Its identity. Services do not count their generations.
    pub meta: Meta,
    /// In the order of the object.
    pub ports: Vec<ServicePort>,
    /// The type is ExternalName: a name without endpoints.
    pub is_external_name: bool,
    /// The fields of a Service of type LoadBalancer.
    pub load_balancer: Option<Box<LoadBalancer>>,
    /// Its addresses in the cluster, which no other Service may claim, whoever serves it. A headless Service has none.
    pub cluster_ips: Box<[IpAddr]>,
    /// How kube-proxy serves it. `None`: it does not, because the Service has no address in the cluster, names another proxy, or is labelled
    /// headless.
    pub on_nodes: Option<Box<OnNodes>>,
    /// By which addresses and names clients reach it: those in the status of a LoadBalancer and the external IPs. A Service of another type
    /// without external IPs has its cluster IPs.
    pub reached_at: Box<[Published]>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// The name; may be empty if there is only one.
    pub name: Text,
    /// The port of the Service. The ports of its endpoints are in their slices.
    pub port: u16,
    /// The transport protocol.
    pub transport: Transport,
    /// The application protocol.
    pub app_protocol: Option<Text>,
    /// The port at every address of each node.
    pub node_port: Option<u16>,
}

impl ServicePort {
    /// Whether its endpoints speak HTTP/2 in the clear.
    pub fn speaks_h2c(&self) -> bool {
        self.app_protocol.as_deref() == Some("kubernetes.io/h2c")
    }

    /// The PROXY protocol header that its endpoints expect.
    ///
    /// # Errors
    /// Returns a sentence if this is an application protocol of ours that does not exist.
    pub fn proxy_protocol(&self) -> Result<Option<ProxyProtocol>, String> {
        match self.app_protocol.as_deref().and_then(|protocol| protocol.strip_prefix("steelyard.io/")) {
            None => Ok(None),
            Some("proxy-v1") => Ok(Some(ProxyProtocol::V1)),
            Some("proxy-v2") => Ok(Some(ProxyProtocol::V2)),
            Some(other) => Err(format!(
                "appProtocol steelyard.io/{other} does not exist; use steelyard.io/proxy-v1 or steelyard.io/proxy-v2"
            )),
        }
    }
}

/// How each node serves a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnNodes {
    /// Addresses that others route to the nodes.
    pub external_ips: Box<[IpAddr]>,
    /// The addresses in the status of a LoadBalancer, without those whose balancer is a proxy (`ipMode`).
    pub balancer_ips: Box<[IpAddr]>,
    /// `internalTrafficPolicy: Local`.
    pub internal_local: bool,
    /// `externalTrafficPolicy: Local`.
    pub external_local: bool,
    /// `sessionAffinity: ClientIP`.
    pub affinity: Option<Duration>,
    /// Where balancers ask whether a node has endpoints.
    pub health_check_port: Option<u16>,
}

/// The label of Services that another proxy serves.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

/// The label of Services that clients resolve to endpoints. kube-proxy does not even watch them, whether they have a cluster IP or not.
const HEADLESS: &str = "service.kubernetes.io/headless";

impl OnNodes {
    fn of(
        spec: &k8s_openapi::api::core::v1::ServiceSpec,
        status: &[k8s_openapi::api::core::v1::LoadBalancerIngress],
    ) -> Box<Self> {
        let is_virtual =
            |point: &&k8s_openapi::api::core::v1::LoadBalancerIngress| point.ip_mode.as_deref() != Some("Proxy");
        let external_local = spec.external_traffic_policy.as_deref() == Some("Local");
        let health_check_port = spec.health_check_node_port.and_then(|port| u16::try_from(port).ok());
        let balancers = status.iter().filter(is_virtual);
        Box::new(Self {
            external_ips: addresses(&spec.external_ips),
            balancer_ips: balancers.filter_map(|point| point.ip.as_ref()?.parse().ok()).collect(),
            internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            external_local,
            affinity: affinity(spec),
            health_check_port: health_check_port.filter(|port| *port > 0 && external_local),
        })
    }
}

/// Those that can be read.
fn addresses(list: &Option<Vec<String>>) -> Box<[IpAddr]> {
    list.iter().flatten().filter_map(|text| text.parse().ok()).collect()
}

/// How long a client stays with its endpoint.
fn affinity(spec: &k8s_openapi::api::core::v1::ServiceSpec) -> Option<Duration> {
    (spec.session_affinity.as_deref() == Some("ClientIP")).then(|| {
        let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
        // The default of the API server.
        let seconds = config.and_then(|config| config.timeout_seconds).unwrap_or(10_800);
        Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
    })
}

/// The settings of a Service of type LoadBalancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadBalancer {
    /// The controller that should manage it.
    pub class: Option<Box<str>>,
    /// One of its ports uses a protocol that we do not support.
    pub unspoken: bool,
    /// `externalTrafficPolicy: Local`.
    pub local: bool,
    /// `sessionAffinity: ClientIP`.
    pub affinity: Option<Duration>,
    /// The allowed sources; empty means all.
    pub sources: Vec<IpNet>,
    /// Sources that could not be read.
    pub bad_sources: Vec<Box<str>>,
    /// Whether it wants IPv4 and IPv6. If neither is set, it takes whichever there is.
    pub families: (bool, bool),
    /// The addresses that an annotation or field asks for, as written.
    pub asked: Vec<Box<str>>,
    /// Addresses in its status.
    pub present: Vec<IpAddr>,
}

/// The annotation for the addresses that a Service asks for, comma-separated.
const ADDRESSES: &str = "steelyard.io/addresses";

impl ServiceEntry {
    pub(super) fn of(object: Service) -> (Name, Self) {
        let name = name_of(&object.metadata);
        let mut meta = Meta::of(&object.metadata);
        let status = object.status.and_then(|status| status.load_balancer).and_then(|status| status.ingress);
        let annotations = object.metadata.annotations.unwrap_or_default();
        let spec = object.spec.unwrap_or_default();
        let port = |port: &k8s_openapi::api::core::v1::ServicePort| {
            Some(ServicePort {
                name: port.name.as_deref().unwrap_or_default().into(),
                port: u16::try_from(port.port).ok()?,
                transport: transport(port.protocol.as_deref())?,
                app_protocol: port.app_protocol.as_deref().map(Into::into),
                node_port: port.node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0),
            })
        };
        let is_load_balancer = spec.type_.as_deref() == Some("LoadBalancer");
        let is_external_name = spec.type_.as_deref() == Some("ExternalName");
        let is_left_out =
            |labels: &BTreeMap<String, String>| [PROXY_NAME, HEADLESS].iter().any(|it| labels.contains_key(*it));
        let is_left_out = object.metadata.labels.as_ref().is_some_and(is_left_out);
        // `None` stands for a headless Service.
        let cluster_ips = if is_external_name { Box::default() } else { addresses(&spec.cluster_ips) };
        let status = status.unwrap_or_default();
        let reached_at = reached_at(&spec, if is_load_balancer { &status } else { &[] });
        if !is_load_balancer {
            // We do not write to it, so a change of its labels does not matter.
            meta.resource_version = Box::default();
        }
        let entry = Self {
            ports: spec.ports.iter().flatten().filter_map(port).collect(),
            is_external_name,
            on_nodes: (!cluster_ips.is_empty() && !is_left_out)
                .then(|| OnNodes::of(&spec, if is_load_balancer { &status } else { &[] })),
            cluster_ips,
            load_balancer: is_load_balancer.then(|| {
                let present = status.iter().filter_map(|point| point.ip.as_ref()?.parse().ok()).collect();
                Box::new(LoadBalancer::of(&spec, &annotations, present))
            }),
            reached_at,
            meta,
        };
        (name, entry)
    }
}

/// The API server accepts no more addresses in the status of a Gateway.
const ADDRESSES_MAX: usize = 16;

/// The addresses of a Service, each once, and at most [`ADDRESSES_MAX`]; `status` is that of a LoadBalancer.
fn reached_at(
    spec: &k8s_openapi::api::core::v1::ServiceSpec,
    status: &[k8s_openapi::api::core::v1::LoadBalancerIngress],
) -> Box<[Published]> {
    let assigned = status.iter().filter_map(|point| point.ip.as_ref().or(point.hostname.as_ref()));
    let mut found: Vec<Published> =
        assigned.chain(spec.external_ips.iter().flatten()).filter_map(|text| text.parse().ok()).collect();
    if found.is_empty() && spec.type_.as_deref() != Some("LoadBalancer") {
        // `None` stands for a headless Service.
        let is_address = |published: &Published| matches!(published, Published::Address(_));
        let own = spec.cluster_ips.iter().flatten().filter_map(|text| text.parse().ok());
        found = own.filter(is_address).collect();
    }
    let mut distinct: Vec<Published> = Vec::new();
    for published in found {
        if distinct.len() < ADDRESSES_MAX && !distinct.contains(&published) {
            distinct.push(published);
        }
    }
    distinct.into()
}

impl LoadBalancer {
    fn of(
        spec: &k8s_openapi::api::core::v1::ServiceSpec,
        annotations: &BTreeMap<String, String>,
        present: Vec<IpAddr>,
    ) -> Self {
        let (mut sources, mut bad_sources) = (Vec::new(), Vec::new());
        for source in spec.load_balancer_source_ranges.iter().flatten() {
            match source.trim().parse() {
                Ok(network) => sources.push(network),
                Err(_) => bad_sources.push(source.as_str().into()),
            }
        }
        let families = spec.ip_families.as_deref().unwrap_or_default();
        let has = |family: &str| families.iter().any(|has| has == family);
        let asked = annotations.get(ADDRESSES).map(String::as_str).or(spec.load_balancer_ip.as_deref());
        let asked = asked.unwrap_or_default().split(',').map(str::trim).filter(|text| !text.is_empty());
        Self {
            class: spec.load_balancer_class.as_deref().map(Into::into),
            unspoken: spec.ports.iter().flatten().any(|port| transport(port.protocol.as_deref()).is_none()),
            local: spec.external_traffic_policy.as_deref() == Some("Local"),
            affinity: affinity(spec),
            sources,
            bad_sources,
            families: (has("IPv4"), has("IPv6")),
            asked: asked.map(Into::into).collect(),
            present,
        }
    }
}

impl IndexEntry for ServiceEntry {
    fn difference(&self, old: &Self) -> Difference {
        if self == old {
            return Difference::None;
        }
        let mut before = old.clone();
        before.meta.resource_version = self.meta.resource_version.clone();
        // It listens on the addresses in its status, so a change of these affects everything.
        if *self == before { Difference::Status } else { Difference::All }
    }
}

/// A Secret with a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretEntry {
    /// The last usable ones.
    pub good: Option<Keypair>,
    /// What is wrong with the present ones.
    pub wrong: Option<Box<str>>,
    /// The CA certificates in `ca.crt`, which Ingresses of ingress-nginx name, if they are served. The previous ones are not kept.
    pub authority: Option<AuthorityEntry>,
}

/// The CA certificates in a Secret, with the lists of those that they have revoked.
fn authority(data: &BTreeMap<String, k8s_openapi::ByteString>) -> Option<AuthorityEntry> {
    // As in ingress-nginx, an empty list is none.
    let crl = data.get("ca.crl").map(|bytes| bytes.0.as_slice()).filter(|text| !text.is_empty());
    data.get("ca.crt").map(|bytes| AuthorityEntry::with_crl(&bytes.0, crl))
}

impl SecretEntry {
    /// With `serves_nginx`, annotations of ingress-nginx count.
    pub(super) fn of(object: Secret, serves_nginx: bool) -> (Name, Self) {
        let data = object.data.unwrap_or_default();
        let part = |name: &str| data.get(name).map(|bytes| bytes.0.as_slice()).unwrap_or_default();
        let authority = authority(&data).filter(|_| serves_nginx);
        let entry = match Keypair::judge(part("tls.crt"), part("tls.key")) {
            Ok(good) => Self { good: Some(good), wrong: None, authority },
            Err(wrong) => Self { good: None, wrong: Some(wrong.into()), authority },
        };
        (name_of(&object.metadata), entry)
    }

    /// If the new pair is broken, the last good one stays in use.
    pub(super) fn after(old: Option<&Self>, mut new: Self) -> Self {
        if new.good.is_none() {
            new.good = old.and_then(|old| old.good.clone());
        }
        new
    }
}

impl IndexEntry for SecretEntry {
    fn difference(&self, old: &Self) -> Difference {
        if self == old { Difference::None } else { Difference::All }
    }
}

/// The part of a Secret that Ingresses of ingress-nginx read users from.
const AUTH: &str = "auth";

/// The text with the first line of each user alone. Later ones become empty, so that the lines keep their numbers.
fn once(text: &str) -> String {
    let mut seen = BTreeSet::new();
    let kept = |line: &str| match line.split_once(':') {
        Some((name, _)) if !seen.insert(name.to_owned()) => "\n".to_owned(),
        _ => format!("{line}\n"),
    };
    text.lines().map(kept).collect()
}

/// The parts of a Secret as users. ingress-nginx makes a line of a file of each.
fn users_of_map(data: &BTreeMap<String, k8s_openapi::ByteString>) -> Result<Arc<[(String, PasswordHash)]>, Box<str>> {
    let user = |(name, value): (&String, &k8s_openapi::ByteString)| {
        let text = std::str::from_utf8(&value.0).map_err(|_| format!("{name} is not UTF-8"))?;
        // A further line would be a user of another name.
        let text = text.trim_end_matches(['\n', '\r']);
        let is_line = !text.contains(['\n', '\r']);
        let hash = if is_line { PasswordHash::read(text) } else { Err("it has more than one line".to_owned()) };
        hash.map(|hash| (name.clone(), hash)).map_err(|wrong| format!("{name}: {wrong}"))
    };
    let (users, wrong): (Vec<_>, Vec<_>) = data.iter().map(user).partition(Result::is_ok);
    let wrong: Vec<String> = wrong.into_iter().filter_map(Result::err).take(WRONG_USERS_MAX).collect();
    match users.is_empty() && wrong.is_empty() {
        true => Err("it has no user".into()),
        false if wrong.is_empty() => Ok(users.into_iter().flatten().collect()),
        false => Err(wrong.join("; ").into()),
    }
}

/// Parts of a Secret that are reported as wrong.
const WRONG_USERS_MAX: usize = 10;

/// A Secret with users or keys.
///
/// The previous good state is not kept: a user that was removed must no longer pass, and a removal cannot be distinguished from a mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialsEntry {
    /// The lines of `users`, or what is wrong with them.
    pub users: Result<Arc<[(String, PasswordHash)]>, Box<str>>,
    /// The lines of `keys`, or what is wrong with them.
    pub keys: Result<Arc<[(String, KeyText)]>, Box<str>>,
    /// The lines of `auth`, which Ingresses of ingress-nginx name, or what is wrong with them. Of two lines for one user, the first counts, as
    /// with nginx 1.22.
    pub auth: Result<Arc<[(String, PasswordHash)]>, Box<str>>,
    /// Each part as a user, which `auth-secret-type: auth-map` of such an Ingress means, or what is wrong with them.
    pub map: Result<Arc<[(String, PasswordHash)]>, Box<str>>,
    /// The CA certificates in `ca.crt`, which they name too.
    pub authority: Option<AuthorityEntry>,
}

impl CredentialsEntry {
    pub(super) fn of(object: Secret) -> (Name, Self) {
        let is_ours = object.type_.as_deref() == Some(CREDENTIALS_TYPE);
        let data = object.data.unwrap_or_default();
        fn lines<T: Credential>(
            data: &BTreeMap<String, k8s_openapi::ByteString>,
            part: &str,
        ) -> Result<Arc<[(String, T)]>, Box<str>> {
            let bytes = data.get(part).ok_or_else(|| format!("it has no {part}"))?;
            let text = std::str::from_utf8(&bytes.0).map_err(|_| format!("{part} is not UTF-8"))?;
            let text = if part == AUTH { Cow::Owned(once(text)) } else { Cow::Borrowed(text) };
            let text = &text;
            let told = |WrongLine(line, message): WrongLine| format!("line {line} of {part}: {message}");
            let lines = parse_credentials::<T>(text);
            lines.map(Into::into).map_err(|wrong| wrong.into_iter().map(told).collect::<Vec<_>>().join("; ").into())
        }
        // The type says what a Secret is for: those of another type are no users of a TrafficPolicy.
        let other = || Box::from(format!("it is not of the type {CREDENTIALS_TYPE}"));
        let (users, keys) = match is_ours {
            true => (lines(&data, "users"), lines(&data, "keys")),
            false => (Err(other()), Err(other())),
        };
        let authority = if is_ours { None } else { authority(&data) };
        let entry = Self { users, keys, auth: lines(&data, AUTH), map: users_of_map(&data), authority };
        (name_of(&object.metadata), entry)
    }
}

impl IndexEntry for CredentialsEntry {
    fn difference(&self, old: &Self) -> Difference {
        if self == old { Difference::None } else { Difference::All }
    }
}

/// A ConfigMap with CA certificates.
///
/// The previous good state is not kept: a CA that was removed must no longer be trusted, and a removal cannot be distinguished from a
/// mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthorityEntry {
    /// They can be used.
    Good {
        /// Certificates, PEM.
        text: Arc<[u8]>,
        /// Lists of revoked certificates, PEM. Only Secrets have them.
        crl: Option<Arc<[u8]>>,
    },
    /// What is wrong with the present text.
    Wrong(Box<str>),
}

impl AuthorityEntry {
    pub(super) fn of(text: &[u8]) -> Self {
        match judge_authority(text) {
            Ok(_) => Self::Good { text: text.into(), crl: None },
            Err(wrong) => Self::Wrong(wrong.into()),
        }
    }

    fn with_crl(text: &[u8], crl: Option<&[u8]>) -> Self {
        let judged = judge_authority(text).and_then(|roots| crl.map_or(Ok(()), |crl| judge_crl(roots, crl)));
        match judged {
            Ok(()) => Self::Good { text: text.into(), crl: crl.map(Into::into) },
            Err(wrong) => Self::Wrong(wrong.into()),
        }
    }
}
