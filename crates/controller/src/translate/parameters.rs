//! GatewayParameters: the settings of classes and Gateways, over the arguments of the controller.
//!
//! `argument < class < Gateway`, and at each level `clients` < `perPort`: what a level does not set is that of the level before it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::Notice;
use super::clients::{ClientPolicy, Wrong};
use super::reference::Why;
use crate::index::{ClassEntry, Index, IngressClassEntry, Kind, Name};
use crate::ingress_nginx::CONTROLLER;
use crate::objects::{OWN_GROUP, ObjectRef, ParametersSpec};
use crate::settings::{INGRESS_CONTROLLER, SecretRef, ServiceName, Settings};

const KIND: &str = "GatewayParameters";

/// Faults of one object that are told at once. A condition has room for 32 KiB of text.
const FAULTS_TOLD_MAX: usize = 16;

/// The reason of the API for parameters that cannot be used.
pub(crate) const INVALID: &str = "InvalidParameters";

/// The classes whose objects this process serves.
pub(crate) struct Classes {
    /// GatewayClasses.
    pub(crate) gateway: BTreeMap<Name, Class>,
    /// All IngressClasses: their Ingresses share two ports.
    pub(crate) ingress: Class,
}

/// The settings of a class.
pub(crate) struct Class {
    /// The arguments of the controller, with those that the class replaces.
    pub(crate) settings: Settings,
    parameters: Arc<ParametersSpec>,
    /// Why its parameters cannot be used as they are now.
    pub(crate) wrong: Option<Why>,
    /// It names parameters, and none were valid since the start of this process. The arguments apply, but addresses that were told stay told.
    pub(crate) lacks_parameters: bool,
}

/// The parameters that each class and Gateway used last. If those that it names now are missing or invalid, the last ones stay in use: a
/// fault takes nothing back.
#[derive(Default)]
pub struct LastGood {
    known: HashMap<(Kind, Name), Arc<ParametersSpec>>,
    /// Those of the previous translation that this one has not come to yet.
    before: HashMap<(Kind, Name), Arc<ParametersSpec>>,
}

impl LastGood {
    /// Begins a translation. What it does not ask for is forgotten.
    pub(super) fn begin(&mut self) {
        self.before = std::mem::take(&mut self.known);
    }

    /// The parameters of an object that are in use, and what is wrong with those that it names.
    fn of(
        &mut self,
        about: (Kind, &Name),
        found: Result<Arc<ParametersSpec>, Why>,
    ) -> (Option<Arc<ParametersSpec>>, Option<Why>) {
        let about = (about.0, about.1.clone());
        let (parameters, wrong) = match found {
            Ok(parameters) => (parameters, None),
            Err(why) => match self.before.remove(&about) {
                None => return (None, Some(why)),
                Some(last) => {
                    let message = format!("{}; the last valid parameters stay in use", why.message);
                    (last, Some(Why::new(INVALID, message)))
                }
            },
        };
        self.known.insert(about, parameters.clone());
        (Some(parameters), wrong)
    }
}

impl Classes {
    /// Finds the classes and their parameters.
    pub(super) fn of(index: &Index, settings: &Settings, last: &mut LastGood, notices: &mut Vec<Notice>) -> Self {
        let is_served = |name: &Name| settings.gateway_class.as_ref().is_none_or(|only| **only == *name.name);
        let ours = index
            .classes
            .iter()
            .filter(|(name, class)| class.spec.controller_name == settings.controller_name && is_served(name));
        let class = |(name, class): (&Name, &ClassEntry)| {
            let about = (Kind::GatewayClass, name);
            (name.clone(), Class::of(index, settings, about, class.spec.parameters_ref.as_ref(), last))
        };
        Self { gateway: ours.map(class).collect(), ingress: ingress(index, settings, last, notices) }
    }
}

/// The settings of Ingresses: those of the first class, by name, whose parameters can be used. The other classes are told.
fn ingress(index: &Index, settings: &Settings, last: &mut LastGood, notices: &mut Vec<Notice>) -> Class {
    let ours =
        index.ingress_classes.iter().filter(|(name, entry)| is_our_ingress_class(settings, name, &entry.controller));
    let mut all: Vec<(&Name, &IngressClassEntry, Class)> = ours
        .filter(|(_, entry)| entry.parameters.is_some())
        .map(|(name, entry)| {
            let about = (Kind::IngressClass, name);
            (name, entry, Class::of(index, settings, about, entry.parameters.as_ref(), last))
        })
        .collect();
    let first = all.iter().position(|(.., class)| !class.lacks_parameters).unwrap_or(0);
    for (name, entry, class) in &all {
        let other = all.get(first).filter(|(.., used)| !class.lacks_parameters && used.parameters != class.parameters);
        let overruled = other.map(|(used, ..)| {
            let message = format!("the parameters of the IngressClass {used} apply: all Ingresses share their ports");
            Why::new("Conflicted", message)
        });
        if let Some(Why { reason, message }) = class.wrong.clone().or(overruled) {
            let about = (Kind::IngressClass, (*name).clone());
            notices.push(Notice { about, uid: entry.uid.clone(), reason: reason.into(), message });
        }
    }
    if all.is_empty() { Class::without(settings) } else { all.swap_remove(first).2 }
}

/// Whether we serve the Ingresses of an IngressClass.
pub(crate) fn is_our_ingress_class(settings: &Settings, name: &Name, controller: &str) -> bool {
    let is_served = controller == INGRESS_CONTROLLER || settings.ingress_nginx.is_some() && controller == CONTROLLER;
    is_served && settings.ingress_class.as_deref().is_none_or(|only| *only == *name.name)
}

impl Class {
    fn of(
        index: &Index,
        settings: &Settings,
        about: (Kind, &Name),
        reference: Option<&ObjectRef>,
        last: &mut LastGood,
    ) -> Self {
        let Some(reference) = reference else { return Self::without(settings) };
        let found = spec_of(index, reference, reference.namespace.as_deref());
        let found = found.and_then(|(name, spec)| {
            let mut wrong = judge(spec);
            wrong.extend(overlaid(settings, spec, &mut Wrong::default()).check().err());
            valid(name, spec, wrong)
        });
        let (parameters, wrong) = last.of(about, found);
        match parameters {
            None => {
                let told = |why: Why| Why::new(INVALID, format!("{}; the controller's arguments apply", why.message));
                Self { wrong: wrong.map(told), lacks_parameters: true, ..Self::without(settings) }
            }
            Some(parameters) => {
                let settings = overlaid(settings, &parameters, &mut Wrong::default());
                Self { settings, parameters, wrong, lacks_parameters: false }
            }
        }
    }

    fn without(settings: &Settings) -> Self {
        Self { settings: settings.clone(), parameters: Arc::default(), wrong: None, lacks_parameters: false }
    }

    /// How clients of a port are treated, by the parameters of the class and of a Gateway.
    pub(crate) fn client_policy(&self, port: u16, own: Option<&ParametersSpec>) -> ClientPolicy {
        self.client_policy_over(ClientPolicy::of(&self.settings), port, own)
    }

    /// The same, with other defaults.
    pub(crate) fn client_policy_over(
        &self,
        mut policy: ClientPolicy,
        port: u16,
        own: Option<&ParametersSpec>,
    ) -> ClientPolicy {
        for spec in [Some(&*self.parameters), own].into_iter().flatten() {
            let of_port = spec.per_port.iter().filter(|of| of.port == port).map(|of| &of.clients);
            for clients in std::iter::once(&spec.clients).chain(of_port) {
                policy.apply(clients, &mut Wrong::default());
            }
        }
        policy
    }
}

/// The parameters of a Gateway that are in use, and what is wrong with those that it names.
pub(crate) fn of_gateway(
    index: &Index,
    gateway: &Name,
    reference: Option<&ObjectRef>,
    last: &mut LastGood,
) -> (Option<Arc<ParametersSpec>>, Option<Why>) {
    let Some(reference) = reference else { return (None, None) };
    let found = spec_of(index, reference, Some(&gateway.namespace)).and_then(|(name, spec)| {
        let mut wrong = judge(spec);
        let of_classes = [
            ("publish", spec.publish.is_some()),
            ("addressPools", spec.address_pools.is_some()),
            ("defaultCertificate", spec.default_certificate.is_some()),
        ];
        let of_classes = of_classes.iter().filter(|(_, is_there)| *is_there);
        wrong.extend(of_classes.map(|(field, _)| format!("{field} is for classes; a Gateway has clients and perPort")));
        valid(name, spec, wrong)
    });
    last.of((Kind::Gateway, gateway), found)
}

/// The object that a reference leads to.
///
/// # Errors
/// Returns what is wrong with the reference.
fn spec_of<'i>(
    index: &'i Index,
    reference: &ObjectRef,
    namespace: Option<&str>,
) -> Result<(Name, &'i ParametersSpec), Why> {
    let invalid = |message: String| Err(Why::new(INVALID, message));
    let (group, kind) = (reference.group.as_deref().unwrap_or_default(), reference.kind.as_deref().unwrap_or_default());
    if (group, kind) != (OWN_GROUP, KIND) {
        let of = if group.is_empty() { "the core group" } else { group };
        return invalid(format!("the parameters are a {kind} of {of}; they must be {KIND} of {OWN_GROUP}"));
    }
    let Some(namespace) = namespace else {
        return invalid(format!("the reference to {KIND} {} has no namespace", reference.name));
    };
    let name = Name::new(namespace, &reference.name);
    match index.parameters.get(&name) {
        Some(entry) => Ok((name, &entry.spec)),
        None => invalid(index.unknown(Kind::Parameters, namespace, &format!("{KIND} {name}"))),
    }
}

fn valid(name: Name, spec: &ParametersSpec, mut wrong: Vec<String>) -> Result<Arc<ParametersSpec>, Why> {
    if wrong.is_empty() {
        return Ok(Arc::new(spec.clone()));
    }
    let more = wrong.len().saturating_sub(FAULTS_TOLD_MAX);
    wrong.truncate(FAULTS_TOLD_MAX);
    if more > 0 {
        wrong.push(format!("and {more} more"));
    }
    Err(Why::new(INVALID, format!("{KIND} {name}: {}", wrong.join("; "))))
}

/// Everything that is wrong with the values of parameters.
fn judge(spec: &ParametersSpec) -> Vec<String> {
    let mut wrong = Wrong::default();
    wrong.unknown(&spec.others);
    overlaid(&Settings::default(), spec, &mut wrong);
    let mut policy = ClientPolicy::of(&Settings::default());
    wrong.within("clients", |wrong| policy.apply(&spec.clients, wrong));
    for (place, of) in spec.per_port.iter().enumerate() {
        wrong.within(&format!("perPort[{place}]"), |wrong| {
            wrong.unknown(&of.others);
            wrong.within("clients", |wrong| policy.apply(&of.clients, wrong));
        });
    }
    wrong.all
}

/// The arguments of the controller, with those that a class replaces.
fn overlaid(settings: &Settings, spec: &ParametersSpec, wrong: &mut Wrong) -> Settings {
    let mut settings = settings.clone();
    if let Some(publish) = &spec.publish {
        wrong.within("publish", |wrong| {
            wrong.unknown(&publish.others);
            if publish.addresses.is_some() == publish.service.is_some() {
                wrong.add("addresses", "set either this or service");
            }
            settings.publish = wrong.list("addresses", publish.addresses.as_deref().unwrap_or_default());
            let service = publish.service.as_ref().map(|service| wrong.name("service", service));
            settings.publish_service = service.map(|(namespace, name)| ServiceName { namespace, name });
        });
    }
    if let Some(pools) = &spec.address_pools {
        settings.gateway_pools = wrong.list("addressPools", pools);
    }
    if let Some(secret) = &spec.default_certificate {
        let (namespace, name) = wrong.name("defaultCertificate", secret);
        settings.default_certificate = Some(SecretRef { namespace, name });
    }
    settings
}
