//! Tests of the loop. The test plays the watches and the data plane. There is no API server, because a replica that does not lead writes
//! nothing.

use std::collections::BTreeSet;

use kube::{Client, Config};
use model::Snapshot;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::*;
use crate::index::Kind;
use crate::tests::{object, yaml};

/// The running loop and its surroundings.
struct Played {
    news: mpsc::Sender<News>,
    updates: mpsc::Receiver<Update>,
    leads: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Played {
    /// Begins with one watch that must report before anything is published.
    fn begin() -> Self {
        Self::expecting([(Kind::Service, None)].into())
    }

    /// Begins with these watches.
    fn expecting(expected: BTreeSet<Scoped>) -> Self {
        // Nothing listens there, and nothing is requested.
        let client = Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        let (updates_sender, updates) = mpsc::channel(1);
        let (news, news_receiver) = mpsc::channel(64);
        let (leads, leads_receiver) = watch::channel(false);
        let settings = Settings {
            publish: vec!["203.0.113.1".parse().unwrap()],
            service_pools: vec!["10.9.2.0/24".parse().unwrap()],
            interfaces: vec!["eth0".to_owned()],
            ..Settings::default()
        };
        let work = Reconciler::new(settings, expected, updates_sender, client);
        Self { news, updates, leads, task: tokio::spawn(work.run(news_receiver, leads_receiver)) }
    }

    async fn tell(&self, objects: &str) {
        for value in yaml(objects).as_array().unwrap() {
            assert!(self.news.send(News::Applied(object(value.clone()))).await.is_ok());
        }
    }

    async fn listed(&self, names: &[&str]) {
        let names: BTreeSet<Name> = names.iter().map(|name| Name::new("shop", name)).collect();
        assert!(self.news.send(News::Listed((Kind::Service, None), "v1", names)).await.is_ok());
    }

    /// Waits until the loop has taken in all news.
    async fn heard(&self) {
        while self.news.capacity() < 64 {
            tokio::task::yield_now().await;
        }
    }

    async fn unreadable(&self, kind: Kind, why: Unreadable) {
        assert!(self.news.send(News::Unreadable((kind, None), why)).await.is_ok());
    }

    /// Takes the next snapshot and answers with this outcome.
    async fn next(&mut self, answer: Outcome) -> (Snapshot, bool) {
        let update = self.updates.recv().await.unwrap();
        update.outcome.send(answer).unwrap();
        (update.snapshot, update.endpoints_only)
    }
}

const OBJECTS: &str = "
- {kind: GatewayClass, metadata: {name: steelyard}, spec: {controllerName: steelyard.io/gateway-controller}}
- {kind: Gateway, metadata: {name: edge}, spec: {gatewayClassName: steelyard, listeners: [
    {name: web, port: 80, protocol: HTTP}, {name: alt, port: 81, protocol: HTTP}]}}
- {kind: HTTPRoute, metadata: {name: all}, spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80}]}]}}
- {kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}]}}
- {kind: Service, metadata: {name: old}, spec: {ports: [{port: 80}]}}
";

fn slice(address: &str) -> String {
    format!(
        "[{{kind: EndpointSlice, metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}}, \
           addressType: IPv4, ports: [{{port: 8080}}], endpoints: [{{addresses: [{address}]}}]}}]"
    )
}

fn ports(snapshot: &Snapshot) -> Vec<u16> {
    snapshot.listeners.iter().map(|listener| listener.bind.port()).collect()
}

fn endpoints(snapshot: &Snapshot) -> usize {
    snapshot.clusters.iter().map(|cluster| cluster.endpoints.len()).sum()
}

#[tokio::test(start_paused = true)]
async fn nothing_is_published_before_all_has_been_read_and_then_what_changed() {
    let mut played = Played::begin();
    played.tell(OBJECTS).await;
    // The news are taken in but not published: the next news are taken in later.
    played.heard().await;
    assert!(played.updates.try_recv().is_err(), "half of the objects would be half of the routes");
    played.listed(&["web"]).await;
    let (first, endpoints_only) = played.next(Outcome::Adopted).await;
    assert_eq!((ports(&first), endpoints(&first), endpoints_only), (vec![80, 81], 0, false));

    played.tell(&slice("10.0.0.1")).await;
    let (second, endpoints_only) = played.next(Outcome::Adopted).await;
    assert_eq!((endpoints(&second), endpoints_only), (1, true));

    // A list after the watch was lost: the Service that is not in it is gone, and with it its endpoints.
    played.listed(&[]).await;
    let (third, endpoints_only) = played.next(Outcome::Adopted).await;
    assert_eq!((endpoints(&third), endpoints_only), (0, false));

    // The API server goes away: nothing arrives, and nothing is published.
    drop(played.updates);
    played.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_served_is_left_out_and_tried_again() {
    let mut played = Played::begin();
    played.tell(OBJECTS).await;
    played.listed(&["web"]).await;
    let place: std::net::SocketAddr = "[::]:81".parse().unwrap();
    let refusal =
        Refusal { binds: vec![(place, "taken".to_owned())], kernel: false, vips: Vec::new(), why: "taken".to_owned() };
    let refused = Outcome::Refused(refusal);
    let (first, _) = played.next(refused.clone()).await;
    assert_eq!(ports(&first), [80, 81]);
    let (second, _) = played.next(Outcome::Adopted).await;
    assert_eq!(ports(&second), [80]);
    // By itself, some seconds later.
    let (third, _) = played.next(refused).await;
    assert_eq!(ports(&third), [80, 81]);
    let (fourth, _) = played.next(Outcome::Adopted).await;
    assert_eq!(ports(&fourth), [80]);
    assert!(played.leads.send(false).is_ok());
}

#[tokio::test(start_paused = true)]
async fn changes_that_come_fast_go_together() {
    let mut played = Played::begin();
    played.tell(OBJECTS).await;
    played.listed(&["web"]).await;
    played.next(Outcome::Adopted).await;
    played.tell(&slice("10.0.0.1")).await;
    // While the first is under way, more come: all of them are in the next.
    let under_way = played.updates.recv().await.unwrap();
    for last in 2..50 {
        played.tell(&slice(&format!("10.0.0.{last}"))).await;
    }
    played.heard().await;
    assert!(played.updates.try_recv().is_err(), "one at a time");
    under_way.outcome.send(Outcome::Adopted).unwrap();
    let (snapshot, _) = played.next(Outcome::Adopted).await;
    let address = snapshot.clusters.iter().find_map(|cluster| Some(cluster.endpoints.first()?.address.clone()));
    assert_eq!(address, Some(model::EndpointAddress::Socket("10.0.0.49:8080".parse().unwrap())));
}

/// A Service that the kernel plane serves, with an address that was given to it before.
fn vip(name: &str) -> String {
    format!(
        "{{kind: Service, metadata: {{name: {name}}}, spec: {{type: LoadBalancer, loadBalancerClass: steelyard.io/kernel-plane, \
         ports: [{{port: 80}}]}}, status: {{loadBalancer: {{ingress: [{{ip: {}}}]}}}}}}",
        if name == "good" { "10.9.2.1" } else { "10.9.2.2" }
    )
}

fn vips(snapshot: &Snapshot) -> Vec<(&str, usize)> {
    snapshot.vips.iter().map(|vip| (vip.name.as_str(), vip.endpoints.len())).collect()
}

const GOOD: &str = "good.shop@10.9.2.1:80/tcp";
const BAD: &str = "bad.shop@10.9.2.2:80/tcp";

fn refuses_bad() -> Outcome {
    let vips = vec![(BAD.to_owned(), "no source address".to_owned())];
    Outcome::Refused(Refusal { kernel: true, vips, why: "no source address".to_owned(), ..Refusal::default() })
}

#[tokio::test(start_paused = true)]
async fn a_vip_that_is_refused_is_left_out_alone() {
    let mut played = Played::begin();
    played.tell(&format!("[{}, {}]", vip("good"), vip("bad"))).await;
    played.listed(&["good", "bad"]).await;
    let (first, _) = played.next(refuses_bad()).await;
    assert_eq!(vips(&first), [(BAD, 0), (GOOD, 0)]);
    let (second, _) = played.next(Outcome::Adopted).await;
    assert_eq!(vips(&second), [(GOOD, 0)]);
    // By itself, some seconds later.
    let (third, _) = played.next(Outcome::Adopted).await;
    assert_eq!(vips(&third), [(BAD, 0), (GOOD, 0)]);
}

#[tokio::test(start_paused = true)]
async fn a_vip_that_is_served_stays_as_it_was_when_it_is_refused() {
    let mut played = Played::begin();
    played.tell(&format!("[{}, {}]", vip("good"), vip("bad"))).await;
    played.listed(&["good", "bad"]).await;
    played.next(Outcome::Adopted).await;
    let slice = slice("10.0.0.1").replace("web", "bad");
    played.tell(&slice).await;
    let (changed, _) = played.next(refuses_bad()).await;
    assert_eq!(vips(&changed), [(BAD, 1), (GOOD, 0)]);
    let (held, _) = played.next(Outcome::Adopted).await;
    assert_eq!(vips(&held), [(BAD, 0), (GOOD, 0)], "as it was served");
    // Tried again, and refused as it was served, too: then it is in the way of all others.
    let (again, _) = played.next(refuses_bad()).await;
    assert_eq!(vips(&again), [(BAD, 1), (GOOD, 0)]);
    let (held, _) = played.next(refuses_bad()).await;
    assert_eq!(vips(&held), [(BAD, 0), (GOOD, 0)]);
    let (without, _) = played.next(Outcome::Adopted).await;
    assert_eq!(vips(&without), [(GOOD, 0)]);
}

#[tokio::test(start_paused = true)]
async fn a_kernel_plane_that_refuses_keeps_what_it_serves() {
    let mut played = Played::begin();
    played.tell(&format!("[{}]", vip("good"))).await;
    played.listed(&["good"]).await;
    played.next(Outcome::Adopted).await;
    let refused = Outcome::Refused(Refusal {
        kernel: true,
        why: "interface eth0 does not exist".to_owned(),
        ..Refusal::default()
    });
    played.tell(&format!("[{}]", vip("bad"))).await;
    let update = played.updates.recv().await.unwrap();
    assert!(!update.keep_vips);
    update.outcome.send(refused.clone()).unwrap();
    // Its own part is as it was, and the rest goes on.
    let update = played.updates.recv().await.unwrap();
    assert!(update.keep_vips, "the vips would be judged and refused again, and all else with them");
    assert_eq!(update.kernel_refusal.as_deref(), Some("interface eth0 does not exist"));
    assert_eq!(vips(&update.snapshot), [(BAD, 0), (GOOD, 0)], "none is withdrawn");
    update.outcome.send(Outcome::Adopted).unwrap();
    // It is asked again by itself, some seconds later.
    let update = played.updates.recv().await.unwrap();
    assert!(!update.keep_vips);
    update.outcome.send(refused).unwrap();
    assert!(played.updates.recv().await.unwrap().keep_vips);
}

#[tokio::test(start_paused = true)]
async fn no_vip_is_wanted_only_when_none_was_refused_and_all_could_be_read() {
    let mut played = Played::begin();
    played.listed(&[]).await;
    let update = played.updates.recv().await.unwrap();
    assert!(update.wants_no_vip && update.snapshot.vips.is_empty());
    update.outcome.send(Outcome::Adopted).unwrap();

    played.tell(&format!("[{}]", vip("bad"))).await;
    let update = played.updates.recv().await.unwrap();
    assert!(!update.wants_no_vip);
    update.outcome.send(refuses_bad()).unwrap();
    let update = played.updates.recv().await.unwrap();
    assert!(update.snapshot.vips.is_empty() && !update.wants_no_vip, "it is wanted, and was refused");
    update.outcome.send(Outcome::Adopted).unwrap();

    let mut played = Played::begin();
    played.unreadable(Kind::Gateway, Unreadable::Forbidden).await;
    played.listed(&[]).await;
    let update = played.updates.recv().await.unwrap();
    assert!(update.snapshot.vips.is_empty() && !update.wants_no_vip, "a Gateway may ask for one");
    update.outcome.send(Outcome::Adopted).unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_stays_as_it_was_stays_the_same_in_memory() {
    let mut played = Played::begin();
    played.tell(OBJECTS).await;
    played.listed(&["web"]).await;
    let (first, _) = played.next(Outcome::Adopted).await;
    played.tell("[{kind: Gateway, metadata: {name: more}, spec: {gatewayClassName: steelyard, listeners: [{name: b, port: 82, protocol: HTTP}]}}]").await;
    let (second, endpoints_only) = played.next(Outcome::Adopted).await;
    assert_eq!((ports(&second), endpoints_only), (vec![80, 81, 82], false));
    assert!(first.clusters.iter().zip(&second.clusters).all(|(a, b)| std::sync::Arc::ptr_eq(a, b)));
    played.tell(&slice("10.0.0.1")).await;
    let (third, _) = played.next(Outcome::Adopted).await;
    let same: Vec<bool> =
        second.clusters.iter().zip(&third.clusters).map(|(a, b)| std::sync::Arc::ptr_eq(a, b)).collect();
    assert_eq!(same, [true, false], "nowhere, and the one whose endpoints have changed");
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_cannot_be_read_keeps_nobody_waiting() {
    let tcp = Kind::Route(crate::index::RouteKind::Tcp);
    let mut played = Played::expecting([(Kind::Service, None), (tcp, None)].into());
    played.tell(OBJECTS).await;
    played.listed(&["web"]).await;
    played.heard().await;
    assert!(played.updates.try_recv().is_err(), "it may be read yet");
    played.unreadable(tcp, Unreadable::Forbidden).await;
    let (first, _) = played.next(Outcome::Adopted).await;
    assert_eq!(ports(&first), [80, 81]);
}

#[tokio::test(start_paused = true)]
async fn without_services_it_waits() {
    let mut played = Played::begin();
    played.tell(OBJECTS).await;
    played.unreadable(Kind::Service, Unreadable::Forbidden).await;
    played.heard().await;
    assert!(played.updates.try_recv().is_err(), "every request would be answered by an error");
    played.listed(&["web"]).await;
    played.next(Outcome::Adopted).await;
}

/// An account that lost the right must not serve what the objects forbid after a restart.
#[tokio::test(start_paused = true)]
async fn without_kinds_that_protect_it_waits() {
    for kind in [Kind::Traffic, Kind::Policy] {
        let mut played = Played::expecting([(Kind::Service, None), (kind, None)].into());
        played.tell(OBJECTS).await;
        played.listed(&["web"]).await;
        played.unreadable(kind, Unreadable::Forbidden).await;
        played.heard().await;
        assert!(played.updates.try_recv().is_err(), "{kind:?} may forbid what is served");
        // It is not installed, so it has no objects.
        played.unreadable(kind, Unreadable::Unknown).await;
        played.next(Outcome::Adopted).await;
        // What is served goes on, and the class says so.
        played.unreadable(kind, Unreadable::Forbidden).await;
        played.next(Outcome::Adopted).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_gone_takes_no_object_away() {
    let mut played = Played::begin();
    played.tell(OBJECTS).await;
    played.listed(&["web"]).await;
    let routes = |snapshot: &Snapshot| match &snapshot.listeners[0].protocol {
        model::Protocol::Http(http) => http.routes.len(),
        other => panic!("{other:?}"),
    };
    let (first, _) = played.next(Outcome::Adopted).await;
    assert_eq!(routes(&first), 1);
    played.unreadable(Kind::Route(crate::index::RouteKind::Http), Unreadable::Unknown).await;
    // Published again, since the class says so; with the same routes.
    let (second, _) = played.next(Outcome::Adopted).await;
    assert_eq!(routes(&second), 1, "what is known stays in use");
    // A list that was read to its end is what there is.
    let none = News::Listed((Kind::Route(crate::index::RouteKind::Http), None), "v1", BTreeSet::new());
    assert!(played.news.send(none).await.is_ok());
    let (third, _) = played.next(Outcome::Adopted).await;
    assert_eq!(routes(&third), 0);
}
