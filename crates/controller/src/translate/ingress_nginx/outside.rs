//! Hosts outside of the cluster that annotations name: how many there may be, and their clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::{ClusterId, Outside};

use super::{Ingress, Making};
use crate::index::Index;
use crate::ingress_nginx::{Compat, OutsideHost, OutsideUrl, Target, reach};
use crate::settings::Settings;

/// Hosts outside of the cluster, each with its scheme and port, that the Ingresses of one namespace name. Each is a name to look up and a cluster.
const HOSTS_OF_NAMESPACE_MAX: usize = 32;

/// The same for all namespaces. A host that two of them name counts twice.
const HOSTS_MAX: usize = 1024;

/// The hosts of all Ingresses.
pub(super) struct OutsideHosts<'t> {
    outside: Outside,
    /// Certificates are checked.
    verify: bool,
    /// Those that are too many for a namespace, or for all.
    refused: BTreeMap<(&'t str, &'t OutsideHost), String>,
}

impl<'t> OutsideHosts<'t> {
    /// Those of Ingresses, of which the oldest comes first: nobody loses a host because somebody else names more.
    pub(super) fn of(served: &[Ingress<'t>], index: &Index, settings: &Settings) -> Self {
        let compat = settings.ingress_nginx.as_ref().map(|nginx| nginx.compat).unwrap_or_default();
        let outside = Outside { reach: reach(compat), mark: mark(index, settings), namespace: None };
        let mut refused = BTreeMap::new();
        let (mut of_namespaces, mut all) = (BTreeMap::<&str, BTreeSet<&OutsideHost>>::new(), 0_usize);
        for ingress in served {
            let namespace = &*ingress.name.namespace;
            for host in hosts(*ingress) {
                let of_namespace = of_namespaces.entry(namespace).or_default();
                if of_namespace.contains(host) {
                    continue;
                }
                let why = if of_namespace.len() >= HOSTS_OF_NAMESPACE_MAX {
                    format!(
                        "{host}: the Ingresses of a namespace may name {HOSTS_OF_NAMESPACE_MAX} hosts outside of the cluster"
                    )
                } else if all >= HOSTS_MAX {
                    format!("{host}: all Ingresses together may name {HOSTS_MAX} hosts outside of the cluster")
                } else {
                    of_namespace.insert(host);
                    all += 1;
                    continue;
                };
                refused.insert((namespace, host), why);
            }
        }
        Self { outside, verify: compat == Compat::Safe, refused }
    }
}

/// The hosts that the annotations of an Ingress name. That of the ConfigMap is the operator's.
fn hosts(ingress: Ingress<'_>) -> impl Iterator<Item = &OutsideHost> {
    let location = &ingress.planned.plan.location;
    let mirror = location.mirror.as_ref().and_then(Target::outside);
    location.asks_outside.iter().chain(mirror).filter(|url| url.is_annotated).map(|url| &url.to)
}

/// The mark of this installation. All of its replicas have the same settings and see the same cluster, whose identity is that of the namespace
/// `kube-system`. Clients do not know it. One that does gets nothing by it but refusals.
fn mark(index: &Index, settings: &Settings) -> Arc<str> {
    let uid = index.cluster_uid.as_deref().unwrap_or_default();
    let class = settings.ingress_class.as_deref().unwrap_or_default();
    // FNV-1a: the same in every build, unlike the hashes of the standard library.
    let hash = [uid, "/", &settings.controller_name, "/", class]
        .iter()
        .flat_map(|part| part.bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("steelyard-{hash:016x}").into()
}

impl Making<'_, '_, '_> {
    /// The cluster of a host outside of this one.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn outside(&mut self, ingress: Ingress<'_>, url: &OutsideUrl) -> Result<ClusterId, String> {
        let OutsideHosts { outside, verify, refused } = &self.outside;
        let refusal = refused.get(&(&*ingress.name.namespace, &url.to)).filter(|_| url.is_annotated);
        match refusal {
            Some(why) => Err(why.clone()),
            None => {
                let namespace = url.is_annotated.then(|| ingress.name.namespace.to_string().into());
                let outside = Outside { namespace, ..outside.clone() };
                Ok(self.out.clusters.outside(&url.to, outside, *verify))
            }
        }
    }
}
