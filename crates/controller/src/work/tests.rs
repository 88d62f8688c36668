//! The loop, with a watch that the test plays and a data plane that it is. No API server: nothing is written by one who does not lead.

use std::collections::BTreeSet;

use kube::{Client, Config};
use model::Snapshot;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::*;
use crate::index::Kind;
use crate::tests::{object, yaml};

/// The loop at work, and its surroundings.
struct Played {
    news: mpsc::Sender<News>,
    updates: mpsc::Receiver<Update>,
    leads: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Played {
    /// One watch is to be heard of before anything is published.
    fn begin() -> Self {
        // Nobody is there, and nobody is asked.
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
        let work = Work::new(settings, [(Kind::Service, None)].into(), updates_sender, client);
        Self { news, updates, leads, task: tokio::spawn(work.run(news_receiver, leads_receiver)) }
    }

    async fn tell(&self, objects: &str) {
        for value in yaml(objects).as_array().unwrap() {
            assert!(self.news.send(News::Applied(object(value.clone()))).await.is_ok());
        }
    }

    async fn listed(&self, names: &[&str]) {
        let names: BTreeSet<Name> = names.iter().map(|name| Name::new("shop", name)).collect();
        assert!(self.news.send(News::Listed(Kind::Service, None, names)).await.is_ok());
    }

    /// The next snapshot; answers so.
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
    // Taken in and not published: what is told next is taken in later.
    while played.news.capacity() < 64 {
        tokio::task::yield_now().await;
    }
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
    while played.news.capacity() < 64 {
        tokio::task::yield_now().await;
    }
    assert!(played.updates.try_recv().is_err(), "one at a time");
    under_way.outcome.send(Outcome::Adopted).unwrap();
    let (snapshot, _) = played.next(Outcome::Adopted).await;
    let address = snapshot.clusters.iter().find_map(|cluster| Some(cluster.endpoints.first()?.address.clone()));
    assert_eq!(address, Some(model::EndpointAddress::Socket("10.0.0.49:8080".parse().unwrap())));
}

#[tokio::test(start_paused = true)]
async fn a_vip_that_is_refused_is_left_out_alone() {
    let mut played = Played::begin();
    let service = |name: &str| {
        format!(
            "{{kind: Service, metadata: {{name: {name}}}, spec: {{type: LoadBalancer, loadBalancerClass: steelyard.io/kernel-plane, \
             ports: [{{port: 80}}]}}, status: {{loadBalancer: {{ingress: [{{ip: {}}}]}}}}}}",
            if name == "good" { "10.9.2.1" } else { "10.9.2.2" }
        )
    };
    played.tell(&format!("[{}, {}]", service("good"), service("bad"))).await;
    played.listed(&["good", "bad"]).await;
    let names = |snapshot: &Snapshot| snapshot.vips.iter().map(|vip| vip.name.clone()).collect::<Vec<_>>();
    let (good, bad) = ("good.shop@10.9.2.1:80/tcp", "bad.shop@10.9.2.2:80/tcp");
    let vips = vec![(bad.to_owned(), "no source address".to_owned())];
    let refusal = Refusal { kernel: true, vips, why: "no source address".to_owned(), ..Refusal::default() };
    let (first, _) = played.next(Outcome::Refused(refusal)).await;
    assert_eq!(names(&first), [bad, good]);
    let (second, _) = played.next(Outcome::Adopted).await;
    assert_eq!(names(&second), [good]);
    // By itself, some seconds later.
    let (third, _) = played.next(Outcome::Adopted).await;
    assert_eq!(names(&third), [bad, good]);
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
