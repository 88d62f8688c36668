//! BackendTLSPolicy: TLS towards the endpoints of a Service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{ClusterTls, Pem, SubjectAltName, Transport};
use rustls::pki_types::ServerName;

use super::cluster::held;
use super::reference::Why;
use super::{Desired, Statuses};
use crate::index::{AuthorityEntry, Index, Kind, Name, PolicyEntry, ServicePort};
use crate::objects::{AncestorStatus, BackendValidation, Condition, GROUP, ParentRef};
use crate::settings::Settings;

/// The most entries that the API allows in a status.
const ANCESTORS_MAX: usize = 16;

/// Whether any policy applies to this port.
pub(super) fn applies(index: &Index, service: &Name, port: &ServicePort) -> bool {
    winner(index, service, &port.name).is_some()
}

/// The policy that applies to a port: one that names the port comes before one that does not, then the oldest, then the first by name.
fn winner<'i>(index: &'i Index, service: &Name, port: &str) -> Option<(&'i Name, &'i PolicyEntry)> {
    let section = |policy: &PolicyEntry| {
        let targets = policy.spec.target_refs.iter();
        let of = targets
            .filter(|target| target.group.is_empty() && target.kind == "Service" && *target.name == *service.name);
        let mut sections = of.map(|target| target.section_name.as_deref().filter(|section| !section.is_empty()));
        let names_port = sections.clone().any(|section| section == Some(port));
        if names_port { Some(0) } else { sections.any(|section| section.is_none()).then_some(1) }
    };
    let about = index.policies.iter().filter(|(name, _)| name.namespace == service.namespace);
    let about = about.filter_map(|(name, policy)| Some((section(policy)?, policy.meta.created, name, policy)));
    about
        .min_by_key(|(section, created, name, _)| (*section, *created, *name))
        .map(|(_, _, name, policy)| (name, policy))
}

/// The TLS settings of a port's policy; `None` if there is no policy.
///
/// # Errors
/// Returns why the policy cannot be applied: traffic that needs it must fail.
pub(super) fn tls(index: &Index, service: &Name, port: u16, transport: Transport) -> Result<Option<ClusterTls>, Why> {
    let entry = index.services.get(service);
    let port = entry.and_then(|entry| entry.ports.iter().find(|of| of.port == port && of.transport == transport));
    let Some((name, policy)) = port.and_then(|port| winner(index, service, &port.name)) else { return Ok(None) };
    let ca = believed(index, name, policy)?.map(|authority| authority.pem());
    Ok(Some(ClusterTls {
        server_name: Some(policy.spec.validation.hostname.clone()),
        subject_alt_names: names(&policy.spec.validation)?,
        ca,
        certificate: None,
        verify: true,
    }))
}

/// An object, and the CA certificates in it.
pub(super) struct Authority<'i> {
    kind: &'static str,
    name: Name,
    text: &'i Arc<[u8]>,
    crl: Option<&'i Arc<[u8]>>,
}

impl<'i> Authority<'i> {
    /// # Errors
    /// Returns a sentence if there is no usable one.
    pub(super) fn find(index: &'i Index, name: Name) -> Result<Self, String> {
        match index.authorities.get(&name) {
            Some(AuthorityEntry::Good { text, .. }) => Ok(Self { kind: "ConfigMap", name, text, crl: None }),
            Some(AuthorityEntry::Wrong(wrong)) => Err(format!("ConfigMap {name}: {wrong}")),
            None => {
                let authority = format!("ConfigMap {name} with the key ca.crt");
                Err(index.unknown(Kind::ConfigMap, &name.namespace, &authority))
            }
        }
    }

    /// Those in a Secret, which annotations of ingress-nginx name.
    ///
    /// # Errors
    /// Returns a sentence if there is no usable one.
    pub(super) fn in_secret(index: &'i Index, name: Name) -> Result<Self, String> {
        let of_tls = index.secrets.get(&name).and_then(|secret| secret.authority.as_ref());
        let of_others = || index.credentials.get(&name).and_then(|secret| secret.authority.as_ref());
        match of_tls.or_else(of_others) {
            Some(AuthorityEntry::Good { text, crl }) => Ok(Self { kind: "Secret", name, text, crl: crl.as_ref() }),
            Some(AuthorityEntry::Wrong(wrong)) => Err(format!("Secret {name}: {wrong}")),
            None => {
                let authority = format!("Secret {name} with the key ca.crt");
                Err(index.unknown(Kind::Credentials, &name.namespace, &authority))
            }
        }
    }

    pub(super) fn pem(&self) -> Pem {
        held(format!("{} {}", self.kind, self.name), self.text)
    }

    /// The lists of certificates that they have revoked.
    pub(super) fn crl(&self) -> Option<Pem> {
        Some(held(format!("{} {} (ca.crl)", self.kind, self.name), self.crl?))
    }
}

/// The certificates that must have signed those of the endpoints; `None` means those that the host trusts.
fn believed<'i>(index: &'i Index, name: &Name, policy: &PolicyEntry) -> Result<Option<Authority<'i>>, Why> {
    let validation = &policy.spec.validation;
    names(validation)?;
    if let Some(option) = policy.spec.options.keys().next() {
        return Err(Why::new("Invalid", format!("the option {option} is not supported")));
    }
    if ServerName::try_from(validation.hostname.as_str()).is_err() {
        return Err(Why::new("Invalid", format!("hostname: {:?} is not a valid name", validation.hostname)));
    }
    match (validation.ca_certificate_refs.as_slice(), validation.well_known_ca_certificates.as_deref()) {
        ([], Some("System")) => Ok(None),
        ([], _) => Err(Why::new("Invalid", "set caCertificateRefs, or wellKnownCACertificates: System")),
        ([reference], _) => {
            let (group, kind) = (reference.group.as_deref().unwrap_or_default(), reference.kind.as_deref());
            if !group.is_empty() || kind.is_some_and(|kind| kind != "ConfigMap") {
                let message =
                    format!("{}: caCertificateRefs can only name a ConfigMap with the key ca.crt", reference.name);
                return Err(Why::new("InvalidKind", message));
            }
            let found = Authority::find(index, Name::new(&name.namespace, &reference.name));
            found.map(Some).map_err(|why| Why::new("InvalidCACertificateRef", why))
        }
        _ => Err(Why::new("InvalidCACertificateRef", "more than one entry in caCertificateRefs is not supported")),
    }
}

/// The names of which the certificates of the endpoints must have one, instead of `hostname`.
fn names(validation: &BackendValidation) -> Result<Vec<SubjectAltName>, Why> {
    let invalid = |message: String| Why::new("Invalid", format!("subjectAltNames: {message}"));
    let one = |name: &crate::objects::SubjectAltName| match (&*name.kind, &name.hostname, &name.uri) {
        ("Hostname", Some(host), None) => {
            // What cannot be verified must not reach the proxy plane, which would refuse everything else with it.
            match ServerName::try_from(host.strip_prefix("*.").unwrap_or(host)) {
                Ok(ServerName::DnsName(_)) => Ok(SubjectAltName::Dns(host.to_ascii_lowercase())),
                _ => Err(invalid(format!("{host:?} is not a DNS name"))),
            }
        }
        ("URI", None, Some(uri)) if uri.split_once(':').is_some_and(|(_, rest)| !rest.is_empty()) => {
            Ok(SubjectAltName::Uri(uri.clone()))
        }
        ("URI", None, Some(uri)) => {
            Err(invalid(format!("{uri:?} is not a URI; write it like spiffe://example.com/shop")))
        }
        ("Hostname", ..) => Err(invalid("an entry of the type Hostname needs `hostname`, and nothing else".to_owned())),
        ("URI", ..) => Err(invalid("an entry of the type URI needs `uri`, and nothing else".to_owned())),
        (other, ..) => Err(invalid(format!("the type {other} is not supported; use Hostname or URI"))),
    };
    validation.subject_alt_names.iter().map(one).collect()
}

/// The status of each policy, for each Gateway that serves its target.
pub(super) fn statuses(
    index: &Index,
    settings: &Settings,
    users: &BTreeMap<Name, BTreeSet<Name>>,
    statuses: &mut Statuses,
) {
    for (name, policy) in &index.policies {
        let services: BTreeSet<Name> =
            policy.spec.target_refs.iter().map(|target| Name::new(&name.namespace, &target.name)).collect();
        let gateways: BTreeSet<&Name> = services.iter().filter_map(|service| users.get(service)).flatten().collect();
        let conditions = conditions(index, name, policy);
        let ancestor = |gateway: &&Name| AncestorStatus {
            ancestor_ref: ParentRef {
                group: Some(GROUP.into()),
                kind: Some("Gateway".into()),
                namespace: Some(gateway.namespace.clone()),
                name: gateway.name.clone(),
                ..ParentRef::default()
            },
            controller_name: settings.controller_name.as_str().into(),
            conditions: conditions.clone(),
        };
        let ancestors = gateways.iter().take(ANCESTORS_MAX).map(ancestor).collect();
        statuses.insert((Kind::Policy, name.clone()), Desired::Policy(ancestors));
    }
}

fn conditions(index: &Index, name: &Name, policy: &PolicyEntry) -> Vec<Condition> {
    let loses = policy.spec.target_refs.iter().any(|target| {
        let service = Name::new(&name.namespace, &target.name);
        let section = target.section_name.as_deref().unwrap_or_default();
        index.services.contains_key(&service)
            && winner(index, &service, section).is_some_and(|(winner, of)| {
                // A policy that names the port does not take the rest of the Service away from a policy that names none.
                winner != name
                    && of.spec.target_refs.iter().any(|other| {
                        other.name == target.name && other.section_name.as_deref().unwrap_or_default() == section
                    })
            })
    });
    let (accepted, resolved) = match believed(index, name, policy) {
        Ok(_) => (Ok(()), Ok(())),
        Err(why) if why.reason == "Invalid" => (Err(why), Ok(())),
        Err(why) => (Err(Why::new("NoValidCACertificate", why.message.clone())), Err(why)),
    };
    let accepted = match accepted {
        Ok(()) if loses => Err(Why::new("Conflicted", "an older BackendTLSPolicy applies to the same port")),
        other => other,
    };
    [("Accepted", accepted), ("ResolvedRefs", resolved)]
        .into_iter()
        .map(|(kind, outcome)| super::status::condition(kind, kind, &outcome, policy.meta.generation))
        .collect()
}
