//! The plans of Ingresses, kept from one translation to the next: ten thousand of them take longer to read than everything else together.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::index::{Index, IngressEntry, Kind, Name, TrafficEntry};
use crate::ingress_nginx::{Compat, Globals, Known, Plan};
use crate::settings::{IngressNginx, Settings};

/// All of them.
#[derive(Default)]
pub struct Plans {
    pub(super) globals: Globals,
    known: BTreeMap<Name, Planned>,
    policies: Known,
}

/// The plan of an Ingress.
pub(super) struct Planned {
    /// What it was made from.
    annotations: Arc<BTreeMap<Box<str>, Box<str>>>,
    pub(super) plan: Plan,
    /// The TrafficPolicy that it stands for; `None` if its routes are closed.
    traffic: Option<TrafficEntry>,
}

impl Plans {
    /// Makes the plans of Ingresses that have changed. Without ingress-nginx there are none.
    pub fn follow(&mut self, index: &Index, settings: &Settings) {
        let Some(nginx) = &settings.ingress_nginx else { return };
        let globals = globals(index, nginx);
        if globals != self.globals {
            self.globals = globals;
            self.known.clear();
        }
        self.known.retain(|name, planned| {
            index.ingresses.get(name).is_some_and(|entry| Arc::ptr_eq(&entry.nginx, &planned.annotations))
        });
        for (name, entry) in &index.ingresses {
            let make = || Planned::of((name, entry), (&self.globals, nginx.compat), &mut self.policies);
            self.known.entry(name.clone()).or_insert_with(make);
        }
    }

    /// The TrafficPolicies that they stand for.
    pub fn policies(&self) -> impl Iterator<Item = (&Name, &TrafficEntry)> {
        self.known.iter().filter_map(|(name, planned)| Some((name, planned.traffic.as_ref()?)))
    }

    pub(super) fn of(&self, name: &Name) -> Option<&Planned> {
        self.known.get(name)
    }
}

/// What the ConfigMap says. One that is gone is still known; without one that was to be read, nobody knows who is to be kept out.
fn globals(index: &Index, nginx: &IngressNginx) -> Globals {
    match (&nginx.config_map, &index.nginx_config) {
        (None, _) => Globals::default(),
        (Some(_), Some(data)) => Globals::of(data.iter().map(|(key, value)| (key.as_str(), value.as_str()))),
        (Some(name), None) => {
            let unknown =
                index.unknown(Kind::ConfigMap, &name.namespace, &format!("ConfigMap {name} of ingress-nginx"));
            Globals::closed(&format!("{unknown}; so nobody knows whom it keeps out"))
        }
    }
}

impl Planned {
    fn of((name, entry): (&Name, &IngressEntry), with: (&Globals, Compat), known: &mut Known) -> Self {
        let annotations = entry.nginx.iter().map(|(key, value)| (&**key, &**value));
        let paths: Vec<&str> = entry.rules.iter().flat_map(|rule| rule.paths.iter().map(|path| &*path.path)).collect();
        let plan = Plan::of(annotations, &name.namespace, &paths, with, known);
        let policy = plan.policy.clone().filter(|_| plan.closed.is_none() && plan.dropped.is_none());
        let traffic = policy.map(|policy| TrafficEntry {
            meta: entry.meta.clone(),
            targets: Box::default(),
            policy: Ok(policy),
            present: Vec::new(),
        });
        Self { annotations: entry.nginx.clone(), plan, traffic }
    }
}
