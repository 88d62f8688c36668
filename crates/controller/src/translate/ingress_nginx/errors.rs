//! The default backend of an Ingress: it makes the pages of errors, and gets the requests for a Service without endpoints.

use std::time::Duration;

use model::{ClusterId, Fallback, FieldValue, HeaderChanges, InterceptErrors, Route};

use super::super::cluster::Share;
use super::super::reference::{Why, service_port};
use super::{Making, Place};
use crate::index::{IngressTarget, Name};

/// How long a default backend has for the headers of its response: the sum of the timeouts that ingress-nginx gives it.
const TIMEOUT: Duration = Duration::from_secs(65);

impl Making<'_, '_, '_> {
    /// Puts into a route which responses are replaced, and who serves requests while there is no endpoint.
    pub(super) fn errors(&mut self, place: &Place<'_>, route: &mut Route) -> Result<(), String> {
        let location = &place.ingress.planned.plan.location;
        let own = match &location.default_backend {
            Some(service) => self.own_backend(place, service)?,
            None => None,
        };
        let headers = told(place);
        if let Some(errors) = &location.errors {
            let to = own.filter(|_| !errors.is_global).or(self.default_backend);
            route.policy.intercept_errors = Some(Box::new(InterceptErrors {
                statuses: errors.statuses.iter().map(|status| (*status, *status)).collect(),
                of_endpoints: errors.of_endpoints,
                to,
                path: "/".to_owned(),
                request_headers: headers.clone(),
                timeout: TIMEOUT,
            }));
        }
        route.policy.fallback = own.map(|to| Box::new(Fallback { to, request_headers: headers }));
        Ok(())
    }

    /// The route of a path whose Service does not exist: its default backend gets the requests.
    pub(super) fn without_service(&mut self, place: &Place<'_>, route: &Route) -> Result<Route, String> {
        let nowhere = self.with.nowhere.into();
        let mut all = Route { to: nowhere, ..route.clone() };
        self.shaped(place, &mut all)?;
        Ok(all)
    }

    /// The cluster of the default backend of an Ingress. One that does not exist is ignored, as there.
    fn own_backend(&mut self, place: &Place<'_>, service: &str) -> Result<Option<ClusterId>, String> {
        let service = Name::new(&place.ingress.name.namespace, service);
        match self.first_port(&service) {
            Ok(share) => self.out.clusters.of(self.index, vec![share]).map(Some),
            Err(why) => {
                let why = format!("these annotations are not served: default-backend: {why}");
                self.tell(place.ingress, Why::new("UnsupportedAnnotation", why));
                Ok(None)
            }
        }
    }

    /// The first port of a Service.
    pub(super) fn first_port(&self, service: &Name) -> Result<Share, String> {
        let port = service_port(self.index, service, model::Transport::Tcp, |_| true)?;
        let port = port.ok_or_else(|| format!("the Service {service} has no TCP port"))?;
        Share::of(port, service.clone())
    }
}

/// What a default backend is told about the path.
fn told(place: &Place<'_>) -> HeaderChanges {
    let (service, port) = match place.target {
        IngressTarget::Service(service, port) => (service.to_string(), port.to_string()),
        IngressTarget::Resource(_) => (String::new(), String::new()),
    };
    let fields = [
        ("x-namespace", place.ingress.name.namespace.to_string()),
        ("x-ingress-name", place.ingress.name.name.to_string()),
        ("x-service-name", service),
        ("x-service-port", port),
    ];
    let set = fields.into_iter().map(|(name, value)| (name.to_owned(), FieldValue::Text(value)));
    HeaderChanges { set: set.collect(), ..HeaderChanges::default() }
}
