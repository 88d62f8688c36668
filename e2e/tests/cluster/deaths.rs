//! Pods and nodes that end without warning.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;
use testkit::until;

use crate::load::Load;
use crate::node::KilledNode;
use crate::site::{GATEWAY, GATEWAYS, PATIENCE, SHOP, Workload, site};

const HOST: &str = "frail.example.com";

/// More than the memory limit of the pods below.
const UPLOAD_BYTES: usize = 256 << 20;

const FRAIL: Workload = Workload { namespace: "shop", name: "deployment/frail", selector: "app=frail" };

/// nginx as a single process with little memory. It keeps uploads in memory.
const FRAIL_MANIFEST: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: frail, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: frail}}
  template:
    metadata: {labels: {app: frail}}
    spec:
      containers:
        - name: web
          image: localhost/web:1
          args: [-g, master_process off;]
          ports: [{name: http, containerPort: 8080}]
          readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1}
          resources: {limits: {memory: 64Mi}}
---
apiVersion: v1
kind: Service
metadata: {name: frail, namespace: shop}
spec: {selector: {app: frail}, ports: [{name: http, port: 80, targetPort: http}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: frail, namespace: shop}
spec: {parentRefs: [{name: front}], hostnames: [frail.example.com], rules: [{backendRefs: [{name: frail, port: 80}]}]}
";

#[test]
fn an_endpoint_runs_out_of_memory() {
    let site = site();
    site.apply(FRAIL_MANIFEST);
    site.until_complete(&FRAIL);
    let pods = || site.get(&["--namespace=shop", "pods", "--selector=app=frail"])["items"].clone();
    site.until_served(HOST);
    let load = Load::start(site, GATEWAY, HOST);
    let victim = site.addresses(&FRAIL)[0];
    site.client.inside(|| upload(SocketAddr::new(victim, 8080)));
    let was_killed = || {
        let is_killed =
            |pod: &Value| pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["reason"] == "OOMKilled";
        pods().as_array().is_some_and(|pods| pods.iter().any(is_killed)).then_some(())
    };
    until(PATIENCE, was_killed).unwrap_or_else(|| panic!("no endpoint was killed: {:#}", pods()));
    site.until_complete(&FRAIL);
    load.end(site, "endpoint out of memory");
    for kind in ["deployment", "service", "httproute"] {
        site.kubectl(&["--namespace=shop", "delete", kind, "frail"]);
    }
}

/// Sends a body until the endpoint is gone.
fn upload(to: SocketAddr) {
    let mut stream = TcpStream::connect(to).unwrap();
    let head = format!("POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: {UPLOAD_BYTES}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let piece = vec![b'.'; 1 << 20];
    while stream.write_all(&piece).is_ok() {}
}

#[test]
fn a_node_is_killed() {
    let site = site();
    site.spread();
    let survivor = SocketAddr::new(site.address_on(&GATEWAYS, "n0"), GATEWAY.port());
    let by_survivor = Load::start(site, survivor, SHOP);
    let by_service = Load::start(site, GATEWAY, SHOP);

    let node = KilledNode::kill(site, "n1");
    site.until_no_endpoint_on("steelyard", "steelyard", "n1");
    let (answered, lost) = by_service.stop("death of a node, through the Service, until the cluster knows of it");
    // Until the cluster knows, the Service still sends connections to the dead gateway, and nobody can answer those. How long that takes is
    // a setting of the cluster. But a connection goes to either gateway with the same chance, and the one that is alive answers everything:
    // so at most half of the requests are lost, and none is answered with an error.
    let errors: Vec<&String> = lost.iter().filter(|why| why.starts_with("status")).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    assert!(lost.len() as u64 <= answered, "{} requests lost, and only {answered} answered", lost.len());

    site.until_no_endpoint_on("shop", "web", "n1");
    // The gateway on the other node loses nothing: it sends requests of the dead endpoint to another one.
    by_survivor.end(site, "death of a node, at the gateway on the other node");
    // The kernel plane learns of the death a moment later than the cluster.
    site.until_all_serve(GATEWAY, SHOP);
    let later = Load::start(site, GATEWAY, SHOP);
    later.end(site, "after the cluster knows of the death of a node");

    node.start(site);
    site.spread();
}
