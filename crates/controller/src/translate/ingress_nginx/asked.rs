//! What URLs of annotations lead to: the services that are asked about requests, and those that get copies of them.

use model::{ClusterId, Transport};

use super::super::cluster::Share;
use super::super::reference::{Why, service_port};
use super::super::traffic::{Asked, ClusterScope, Scope, UpstreamTls};
use super::{Ingress, Making};
use crate::index::Name;
use crate::ingress_nginx::{ServiceUrl, Target};

impl Making<'_, '_, '_> {
    /// The cluster that is asked who may use the routes of an Ingress.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn authorizer(&mut self, ingress: Ingress<'_>, scope: &Scope) -> Result<ClusterId, String> {
        let location = &ingress.planned.plan.location;
        if let Some(url) = &location.asks_outside {
            return self.outside(ingress, url);
        }
        if let Some(path) = &location.asks_host {
            let (by, target) = self.asked.get(path).cloned().unwrap_or_else(|| Err(format!("nothing has {path}")))?;
            let share = self.share(by, by, target).map_err(|why| why.message)?;
            return self.cluster(by, share, None);
        }
        if let Some(url) = &location.asks_over_tls {
            let ServiceUrl { namespace, name, port, .. } = url;
            let missing = || format!("there is no Service {namespace}/{name} with the TCP port {port}");
            return self.service(url)?.ok_or_else(missing);
        }
        let (_, share) = self.with.policies.asked(self.index, scope, Asked::Authorization)?;
        self.out.clusters.of(self.index, vec![share])
    }

    /// The cluster that gets copies; `None` if there is none.
    pub(super) fn copied_to(&mut self, ingress: Ingress<'_>, target: &Target) -> Result<Option<ClusterId>, String> {
        let url = match target {
            Target::Service(service) => return self.service(service),
            Target::Outside(url) => url,
        };
        let to = self.outside(ingress, url);
        // Requests are served all the same.
        Ok(to
            .map_err(|why| self.tell(ingress, Why::new("UnsupportedAnnotation", format!("mirror-target: {why}"))))
            .ok())
    }

    /// The cluster of a Service that a URL names; `None` if there is none.
    fn service(&mut self, url: &ServiceUrl) -> Result<Option<ClusterId>, String> {
        let service = Name::new(&url.namespace, &url.name);
        let found = service_port(self.index, &service, Transport::Tcp, |port| port.port == url.port);
        let Ok(Some(port)) = found else { return Ok(None) };
        let share = Share::of(port, service)?;
        let scope = match &url.sni {
            Some(sni) => ClusterScope {
                label: format!("+tls={sni}"),
                tls: Some(UpstreamTls { verify: None, sni: Some(sni.clone()) }),
                ..ClusterScope::default()
            },
            None => ClusterScope::default(),
        };
        let before = self.out.clusters.set_policies(scope);
        let cluster = self.out.clusters.of(self.index, vec![share]);
        self.out.clusters.set_policies(before);
        cluster.map(Some)
    }
}
