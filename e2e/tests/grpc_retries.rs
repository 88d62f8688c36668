//! Calls that are sent again because of the status that they ended with, through the whole binary.
#![forbid(unsafe_code)]

#[path = "support/grpc.rs"]
mod grpc;
mod support;

use grpc::{Ail, Called, Caller, Greeter, SAY_HELLO, framed};
use support::{Steelyard, local, port};

/// The gRPC code.
const UNAVAILABLE: u16 = 14;
const RESOURCE_EXHAUSTED: u16 = 8;

/// More than a quiet cluster may send again in ten seconds.
const STORM: usize = 300;

/// A balancer in front of two services, the first of which fails.
struct Scene {
    balancer: Steelyard,
    caller: Caller,
    ill: Greeter,
    well: Greeter,
}

impl Scene {
    /// `route`: further keys of the route.
    fn start(route: &str, ail: Ail) -> Self {
        let (ill, well) = (Greeter::start("ill"), Greeter::start("well"));
        *ill.seen.ail.lock().unwrap() = Some(ail);
        let address = local(port());
        let config = format!(
            "admin: {{admin}}
listeners:
  l: {{bind: '{address}', protocol: http, routes: [{{grpc: helloworld.Greeter, to: greeter{route}}}]}}
clusters:
  greeter: {{protocol: h2c, endpoints: ['{}', '{}'], outlier: off}}
",
            ill.address, well.address
        );
        let balancer = Steelyard::serve(&config, 1);
        Self { balancer, caller: Caller::connect(address), ill, well }
    }

    fn calls(&self, count: usize) -> Vec<Called> {
        self.caller.calls(count, SAY_HELLO, &[], &framed(b"hello"))
    }

    fn retries(&self) -> f64 {
        self.balancer.metric("steelyard_cluster_retries_total", &[("cluster", "greeter")])
    }
}

const ON_UNAVAILABLE: &str = ", retry: {on: [unavailable]}";

#[test]
fn a_call_that_one_endpoint_cannot_serve_is_served_by_another() {
    for ail in [Ail::TrailersOnly(UNAVAILABLE), Ail::WithoutMessage(UNAVAILABLE)] {
        let scene = Scene::start(ON_UNAVAILABLE, ail);
        for called in scene.calls(20) {
            assert_eq!((called.grpc_status, called.origin.as_str()), (Some(0), "well"), "{ail:?}: {called:?}");
            assert_eq!(called.body, framed(b"hello"), "{ail:?}");
        }
        let failed = scene.ill.calls();
        assert!(failed > 0, "{ail:?}");
        assert_eq!((scene.retries(), scene.well.calls()), (failed as f64, 20), "{ail:?}");
        // A call that succeeded in the end is counted with the status that the client got.
        let labels = [("listener", "l"), ("method", "SayHello"), ("status", "OK")];
        assert_eq!(scene.balancer.metric("steelyard_grpc_calls_total", &labels), 20.0, "{ail:?}");
    }
}

#[test]
fn what_nobody_asked_to_be_sent_again_is_the_clients() {
    let check = |route: &str, ail: Ail, status: u16| {
        let scene = Scene::start(route, ail);
        let called = scene.calls(10);
        let failed: Vec<_> = called.iter().filter(|called| called.origin == "ill").collect();
        assert_eq!(failed.len(), 5, "{route} {ail:?}: {called:?}");
        assert!(failed.iter().all(|called| called.grpc_status == Some(status)), "{route} {ail:?}: {failed:?}");
        assert_eq!((scene.retries(), scene.ill.calls()), (0.0, 5), "{route} {ail:?}");
    };
    check("", Ail::TrailersOnly(UNAVAILABLE), UNAVAILABLE);
    check(", retry: off", Ail::WithoutMessage(UNAVAILABLE), UNAVAILABLE);
    check(ON_UNAVAILABLE, Ail::TrailersOnly(RESOURCE_EXHAUSTED), RESOURCE_EXHAUSTED);
    check(ON_UNAVAILABLE, Ail::WithoutMessage(RESOURCE_EXHAUSTED), RESOURCE_EXHAUSTED);
}

#[test]
fn a_message_that_was_sent_on_is_not_taken_back() {
    let scene = Scene::start(ON_UNAVAILABLE, Ail::BehindMessage(UNAVAILABLE));
    let called = scene.calls(10);
    let failed: Vec<_> = called.iter().filter(|called| called.origin == "ill").collect();
    assert_eq!(failed.len(), 5, "{called:?}");
    for called in failed {
        assert_eq!((called.body.as_slice(), called.grpc_status), (&framed(b"hello")[..], Some(UNAVAILABLE)));
    }
    assert_eq!(scene.retries(), 0.0);
}

#[test]
fn the_last_status_is_the_clients_when_all_fail() {
    let scene = Scene::start(", retry: {attempts: 3, on: [unavailable]}", Ail::TrailersOnly(UNAVAILABLE));
    *scene.well.seen.ail.lock().unwrap() = Some(Ail::WithoutMessage(UNAVAILABLE));
    let called = scene.calls(1).remove(0);
    assert_eq!(called.grpc_status, Some(UNAVAILABLE), "{called:?}");
    assert_eq!((scene.ill.calls() + scene.well.calls(), scene.retries()), (4, 3.0));
}

#[test]
fn the_budget_bounds_what_is_sent_again() {
    let scene = Scene::start(", retry: {attempts: 1, on: [unavailable]}", Ail::TrailersOnly(UNAVAILABLE));
    *scene.well.seen.ail.lock().unwrap() = Some(Ail::TrailersOnly(UNAVAILABLE));
    let called = scene.calls(STORM);
    assert!(called.iter().all(|called| called.grpc_status == Some(UNAVAILABLE)), "{called:?}");
    let refused = scene.balancer.metric("steelyard_refused_total", &[("listener", "l"), ("reason", "retry_budget")]);
    let retries = scene.retries();
    assert!(refused > 0.0 && retries >= 100.0, "{retries} retries, {refused} refused");
    assert_eq!(retries + refused, STORM as f64);
    assert_eq!((scene.ill.calls() + scene.well.calls()) as f64, STORM as f64 + retries);
}
