//! Counts calls by method: which counters a call belongs to, on one worker.

use std::cell::{OnceCell, RefCell};
use std::sync::Arc;

use model::GrpcMatcher;
use telemetry::{MethodCounters, OTHER_METHODS, Registry};

use super::status::Status;

/// The longest method name that is counted separately. Names in .proto files are shorter.
const NAME_CHARS_MAX: usize = 64;

/// The counters of the methods that are called over one route.
pub(crate) struct Methods {
    /// `/helloworld.Greeter/`: the beginning of the path of every call over the route.
    prefix: String,
    service: String,
    /// The only method of the route, if it names one.
    only: Option<String>,
    /// Methods with their own counters, in the order of their first calls: `<= telemetry::METHODS_MAX`, which the registry ensures.
    known: RefCell<Vec<Known>>,
    other: OnceCell<Arc<MethodCounters>>,
}

/// A method with its own counters.
struct Known {
    name: Box<[u8]>,
    counters: Arc<MethodCounters>,
}

/// The method of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Its index among the methods with counters.
    Known(usize),
    /// It may get counters when an endpoint has shown that it knows the method.
    New(Box<[u8]>),
    /// No code generator makes such a name.
    Other,
}

/// Where counters come from.
pub(crate) struct Source<'s> {
    pub(crate) registry: &'s Registry,
    pub(crate) worker: usize,
    pub(crate) listener: &'s str,
}

impl Methods {
    /// For a route that matches gRPC.
    pub(crate) fn new(matcher: &GrpcMatcher) -> Self {
        Self {
            prefix: format!("/{}/", matcher.service),
            service: matcher.service.clone(),
            only: matcher.method.clone(),
            known: RefCell::default(),
            other: OnceCell::new(),
        }
    }

    /// The method that a path names. This allocates for a method without counters.
    pub(crate) fn find(&self, path: &[u8]) -> Method {
        let Some(name) = path.strip_prefix(self.prefix.as_bytes()) else { return Method::Other };
        if let Some(place) = self.known.borrow().iter().position(|known| *known.name == *name) {
            return Method::Known(place);
        }
        let is_identifier = name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        if is_identifier && !name.is_empty() && name.len() <= NAME_CHARS_MAX {
            Method::New(name.into())
        } else {
            Method::Other
        }
    }

    /// Counts a call that has ended. `by_endpoint`: the endpoint sent the status.
    pub(crate) fn count(&self, source: &Source<'_>, method: &Method, status: Status, by_endpoint: bool, took_us: u64) {
        let count = |counters: &MethodCounters| {
            counters.codes.inc(status as u8);
            counters.duration.record(took_us);
        };
        let is_named = |name: &[u8]| self.only.as_deref().is_some_and(|only| only.as_bytes() == name);
        match method {
            Method::Known(place) => {
                if let Some(known) = self.known.borrow().get(*place) {
                    count(&known.counters);
                }
            }
            // An endpoint reports a method that it does not know. Without this check, clients could invent names until there are no
            // counters left for real ones.
            Method::New(name) if is_named(name) || (by_endpoint && status != Status::Unimplemented) => {
                count(&self.learn(source, name));
            }
            Method::New(_) | Method::Other => {
                count(self.other.get_or_init(|| source.counters(&self.service, OTHER_METHODS)));
            }
        }
    }

    fn learn(&self, source: &Source<'_>, name: &[u8]) -> Arc<MethodCounters> {
        let counters = source.counters(&self.service, &String::from_utf8_lossy(name));
        let mut known = self.known.borrow_mut();
        if known.len() < telemetry::METHODS_MAX && !known.iter().any(|known| *known.name == *name) {
            known.push(Known { name: name.into(), counters: counters.clone() });
        }
        counters
    }
}

impl Source<'_> {
    fn counters(&self, service: &str, method: &str) -> Arc<MethodCounters> {
        self.registry.method(self.worker, self.listener, service, method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(method: Option<&str>) -> GrpcMatcher {
        GrpcMatcher { service: "a.B".into(), method: method.map(str::to_owned) }
    }

    /// For calls over one route, each with its path, its status, and whether the endpoint sent it: checks what is counted under which name.
    #[track_caller]
    fn check(only: Option<&str>, calls: &[(&str, Status, bool)], expect: &[(&str, u64)]) {
        let (registry, methods) = (Registry::default(), Methods::new(&matcher(only)));
        let source = Source { registry: &registry, worker: 0, listener: "l" };
        for (path, status, by_endpoint) in calls {
            methods.count(&source, &methods.find(path.as_bytes()), *status, *by_endpoint, 7);
        }
        let totals = registry.totals().methods;
        let found: Vec<_> = totals.iter().map(|(key, total)| (key.method.as_str(), total.codes.sum())).collect();
        assert_eq!(found, expect);
        assert!(totals.iter().all(|(key, _)| key.service == "a.B" && key.listener == "l"));
    }

    #[test]
    fn methods_that_an_endpoint_knows_are_counted_apart() {
        let ok = |path| (path, Status::Ok, true);
        check(None, &[ok("/a.B/Get"), ok("/a.B/Put"), ok("/a.B/Get")], &[("Get", 2), ("Put", 1)]);
        check(None, &[("/a.B/Get", Status::Internal, true), ok("/a.B/Get")], &[("Get", 2)]);
        check(None, &[("/a.B/Get", Status::Unimplemented, true), ok("/a.B/Get")], &[("*", 1), ("Get", 1)]);
        check(None, &[("/a.B/Get", Status::Unavailable, false)], &[("*", 1)]);
        check(None, &[ok("/a.B/"), ok("/a.B/x/y"), ok("/a.B/x-y"), ok("/other")], &[("*", 4)]);
    }

    #[test]
    fn the_method_that_a_route_names_is_counted_whatever_becomes_of_it() {
        check(Some("Get"), &[("/a.B/Get", Status::Unimplemented, false)], &[("Get", 1)]);
    }

    #[test]
    fn there_is_room_for_so_many() {
        let paths: Vec<String> = (0..2 * telemetry::METHODS_MAX).map(|number| format!("/a.B/M{number}")).collect();
        let registry = Registry::default();
        let source = Source { registry: &registry, worker: 0, listener: "l" };
        let methods = Methods::new(&matcher(None));
        for path in &paths {
            methods.count(&source, &methods.find(path.as_bytes()), Status::Ok, true, 1);
        }
        let totals = registry.totals().methods;
        assert_eq!(totals.len(), telemetry::METHODS_MAX + 1);
        assert_eq!(totals.values().map(|total| total.codes.sum()).sum::<u64>(), paths.len() as u64);
    }
}
