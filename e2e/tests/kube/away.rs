//! The API server goes away, says nothing any more, forgets: traffic goes on unchanged, and then the cluster is followed again.

use serde_json::Value;

use crate::edge::{Edge, api_server, gateway, origin, until_endpoints, within, within_alone};
use crate::support::{Load, Origin, Steelyard};

/// Load on a route to `before`; `disturb` is what happens to the API server's connections, meanwhile the endpoint becomes another, and `mend`
/// makes it known.
fn goes_on(edge: &Edge, disturb: impl FnOnce(), mend: impl FnOnce()) {
    let [before, after] = [1, 2].map(origin);
    let (mut controller, load) = served(edge, &before);
    disturb();
    before.until_served(500);
    edge.endpoints("web", &[after.address]);
    // Nobody has told: nothing changes.
    before.until_served(2_000);
    assert_eq!(after.requests(), 0);
    mend();
    until_endpoints(&controller, &[after.address]);
    after.until_served(500);
    let total = load.end(&mut controller);
    assert_eq!(total.reconnects, 0, "connections of clients were closed: {total:?}");
    assert_eq!(controller.status()["last_reload"]["ok"], true);
}

fn served(edge: &Edge, before: &Origin) -> (Steelyard, Load) {
    edge.web(&[before.address]);
    let controller = edge.controller();
    edge.until_served("HTTPRoute", "web");
    let load = Load::start(gateway(80), "/", 16);
    before.until_served(200);
    (controller, load)
}

#[test]
fn it_refuses_connections() {
    within("it_refuses_connections", |edge| goes_on(edge, || edge.relay.close(), || edge.relay.open()));
}

#[test]
fn it_says_nothing() {
    within("it_says_nothing", |edge| goes_on(edge, || edge.link.lose(), || edge.link.lose_no_more()));
}

#[test]
fn it_hangs() {
    within_alone("it_hangs", |edge| {
        let [before, after] = [1, 2].map(origin);
        let (mut controller, load) = served(edge, &before);
        api_server().stop();
        before.until_served(4_000);
        api_server().go_on();
        edge.endpoints("web", &[after.address]);
        until_endpoints(&controller, &[after.address]);
        after.until_served(500);
        let total = load.end(&mut controller);
        assert_eq!(total.reconnects, 0, "connections of clients were closed: {total:?}");
    });
}

#[test]
fn watches_are_dropped() {
    within("watches_are_dropped", |edge| {
        let [before, after] = [1, 2].map(origin);
        let (mut controller, load) = served(edge, &before);
        let watched = edge.relay.passed();
        assert!(watched > 0, "the controller does not come through the relay");
        for pods in [[&after], [&before], [&after]] {
            edge.relay.cut();
            edge.endpoints("web", &[pods[0].address]);
            until_endpoints(&controller, &[pods[0].address]);
            pods[0].until_served(200);
        }
        assert!(edge.relay.passed() > watched, "nothing was dropped");
        load.end(&mut controller);
    });
}

#[test]
fn it_is_killed_and_has_forgotten_where_watches_were() {
    within_alone("it_is_killed_and_has_forgotten_where_watches_were", |edge| {
        let old = edge.cluster.get("Namespace", &edge.name).unwrap();
        let old = old["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let mend = || {
            api_server().kill();
            // Nobody knows any more what was before, in memory or on disk.
            api_server().compact();
            api_server().start_again();
            let path =
                format!("/apis/discovery.k8s.io/v1/endpointslices?watch=1&resourceVersion={old}&timeoutSeconds=1");
            assert_eq!(gone(&edge.cluster.raw(&path)), Some(410), "a watch could go on where it was");
            edge.relay.open();
        };
        goes_on(edge, || edge.relay.close(), mend);
    });
}

/// The code of the error that is all that a watch says.
fn gone(said: &Result<String, String>) -> Option<u64> {
    let said = said.as_ref().ok()?;
    let event: Value = serde_json::from_str(said.lines().next()?).ok()?;
    event["object"]["code"].as_u64().filter(|_| event["type"] == "ERROR")
}
