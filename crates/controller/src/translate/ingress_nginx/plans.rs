//! The plans of Ingresses, kept from one translation to the next: ten thousand of them take longer to read than everything else together.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::HeaderChanges;

use crate::index::{Index, IngressEntry, Kind, Name, TrafficEntry, UsersPart};
use crate::ingress_nginx::{Globals, HeaderMap, HeaderMaps, Known, Plan, With};
use crate::settings::{IngressNginx, Settings};

/// All of them.
#[derive(Default)]
pub struct Plans {
    pub(super) globals: Globals,
    /// What all responses get by the ConfigMap of ingress-nginx.
    pub(super) headers: HeaderChanges,
    known: BTreeMap<Name, Planned>,
    policies: Known,
}

/// The plan of an Ingress.
pub(super) struct Planned {
    /// What it was made from.
    annotations: Arc<BTreeMap<Box<str>, Box<str>>>,
    /// The ConfigMaps with headers that it was made from, too.
    maps: Vec<(Name, Result<HeaderMap, String>)>,
    pub(super) plan: Plan,
    /// The TrafficPolicy that it stands for; `None` if its routes are closed.
    traffic: Option<TrafficEntry>,
}

impl Plans {
    /// Makes the plans of Ingresses that have changed. Without ingress-nginx there are none.
    pub fn follow(&mut self, index: &Index, settings: &Settings) {
        let Some(nginx) = &settings.ingress_nginx else { return };
        let find = |namespace: &str, name: &str| index.header_map(&Name::new(namespace, name));
        let maps = HeaderMaps(&find);
        let globals = globals(index, nginx).with_header_maps(maps, &mut self.policies);
        if globals != self.globals {
            self.headers = globals.all_response_headers();
            self.globals = globals;
            self.known.clear();
        }
        let is_same = |(name, map): &(Name, Result<HeaderMap, String>)| index.header_map(name) == *map;
        self.known.retain(|name, planned| {
            index.ingresses.get(name).is_some_and(|entry| Arc::ptr_eq(&entry.nginx, &planned.annotations))
                && planned.maps.iter().all(is_same)
        });
        for (name, entry) in &index.ingresses {
            let with = With { globals: &self.globals, compat: nginx.compat, maps, passes_tls: nginx.passes_tls };
            let make = || Planned::of((name, entry), index, with, &mut self.policies);
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
    fn of((name, entry): (&Name, &IngressEntry), index: &Index, with: With<'_>, known: &mut Known) -> Self {
        let annotations = entry.nginx.iter().map(|(key, value)| (&**key, &**value));
        let paths: Vec<&str> = entry.rules.iter().flat_map(|rule| rule.paths.iter().map(|path| &*path.path)).collect();
        let plan = Plan::of(annotations, &name.namespace, &paths, with, known);
        let policy = plan.policy.clone().filter(|_| plan.closed.is_none() && plan.dropped.is_none());
        let traffic = policy.map(|policy| TrafficEntry {
            meta: entry.meta.clone(),
            targets: Box::default(),
            policy: Ok(policy),
            users: if plan.location.has_user_map { UsersPart::Each } else { UsersPart::Auth },
            present: Vec::new(),
        });
        let maps = plan.named.iter().map(|(namespace, name)| {
            let name = Name::new(namespace, name);
            let map = index.header_map(&name);
            (name, map)
        });
        Self { annotations: entry.nginx.clone(), maps: maps.collect(), plan, traffic }
    }
}
