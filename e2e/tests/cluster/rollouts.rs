//! Pods that are replaced in an orderly way. No request may be lost.

use std::net::{IpAddr, SocketAddr};

use crate::load::Load;
use crate::site::{CHART, GATEWAY, GATEWAYS, KERNEL_PLANES, SHOP, WEB, Workload, site};

#[test]
fn endpoints_are_restarted() {
    let site = site();
    let load = Load::start(site, GATEWAY, SHOP);
    site.restart(&WEB);
    load.end(site, "restart of the endpoints");
}

/// The pods of [`HOOKED`] go on answering for a while after the cluster has decided to end them. The gateway must use that time: it must stop
/// sending requests before the pods get SIGTERM, so that it need not repeat any.
#[test]
fn endpoints_with_a_pre_stop_hook_are_restarted() {
    let site = site();
    site.apply(HOOKED_MANIFEST);
    site.until_complete(&HOOKED);
    site.until_served(HOOKED_HOST);
    let load = Load::start(site, GATEWAY, HOOKED_HOST);
    site.restart(&HOOKED);
    load.end(site, "restart of endpoints with a preStop hook");
    let log = site.log_of_gateway();
    let requests = || log.lines().filter(|line| line.contains(&format!(r#""host":"{HOOKED_HOST}""#)));
    assert!(requests().count() > 0, "the access log has no requests");
    let repeated: Vec<&str> = requests().filter(|line| !line.contains(r#""attempts":1,"#)).collect();
    assert!(repeated.is_empty(), "sent to an endpoint that had ended: {repeated:#?}");
    for kind in ["deployment", "service", "httproute"] {
        site.kubectl(&["--namespace=shop", "delete", kind, "hooked"]);
    }
}

const HOOKED_HOST: &str = "hooked.example.com";

const HOOKED: Workload = Workload { namespace: "shop", name: "deployment/hooked", selector: "app=hooked" };

const HOOKED_MANIFEST: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: hooked, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: hooked}}
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  template:
    metadata: {labels: {app: hooked}}
    spec:
      containers:
        - name: web
          image: localhost/web:1
          ports: [{name: http, containerPort: 8080}]
          readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1}
          lifecycle: {preStop: {sleep: {seconds: 10}}}
---
apiVersion: v1
kind: Service
metadata: {name: hooked, namespace: shop}
spec: {selector: {app: hooked}, ports: [{name: http, port: 80, targetPort: http}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: hooked, namespace: shop}
spec: {parentRefs: [{name: front}], hostnames: [hooked.example.com], rules: [{backendRefs: [{name: hooked, port: 80}]}]}
";

/// Clients come by the Service of the chart, and by the one of a Gateway that asks for its own.
#[test]
fn the_gateway_is_restarted() {
    let site = site();
    site.apply(OWN_MANIFEST);
    let programmed = ["--namespace=shop", "wait", "--for=condition=Programmed", "gateway/own", "--timeout=1m"];
    site.kubectl(&programmed);
    let own = site.get(&["--namespace=shop", "gateway", "own"])["status"]["addresses"][0]["value"].clone();
    let own: IpAddr = own.as_str().unwrap_or_default().parse().unwrap_or_else(|error| panic!("{own}: {error}"));
    assert_ne!(own, GATEWAY.ip(), "it is not an address of its own");
    // Its port is not one of the Service of the chart.
    let own = SocketAddr::new(own, 8000);
    site.until_all_serve(own, OWN_HOST);
    let by_chart = Load::start(site, GATEWAY, SHOP);
    let by_own = Load::start(site, own, OWN_HOST);
    site.restart(&GATEWAYS);
    by_chart.end(site, "restart of the gateway");
    by_own.end(site, "restart of the gateway, by the Service of a Gateway");
    for object in ["httproute/own", "gateway/own"] {
        site.kubectl(&["--namespace=shop", "delete", object]);
    }
    // The cluster removes what the Gateway owned.
    for object in ["service/own-steelyard", "endpointslice/own-steelyard-ipv4"] {
        site.kubectl(&["--namespace=shop", "wait", "--for=delete", object, "--timeout=4m"]);
    }
}

const OWN_HOST: &str = "own.example.com";

const OWN_MANIFEST: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: own, namespace: shop}
spec:
  gatewayClassName: steelyard
  infrastructure: {labels: {team: shop}}
  listeners: [{name: http, protocol: HTTP, port: 8000}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: own, namespace: shop}
spec: {parentRefs: [{name: own}], hostnames: [own.example.com], rules: [{backendRefs: [{name: web, port: 80}]}]}
";

#[test]
fn a_node_is_drained() {
    let site = site();
    let load = Load::start(site, GATEWAY, SHOP);
    // The chart's PodDisruptionBudget lets kubectl evict one pod of the gateway at a time.
    site.kubectl(&["drain", "n1", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=4m"]);
    for workload in [&GATEWAYS, &WEB] {
        site.until_complete(workload);
    }
    load.end(site, "drain of a node");
    site.kubectl(&["uncordon", "n1"]);
    // The next test finds pods on both nodes.
    site.spread();
}

/// From the version before, with its own chart, kinds and program, to the present one, as the documentation says: the kinds, then both releases.
#[test]
fn the_release_is_upgraded() {
    let site = site();
    let releases = ["steelyard-kernel-plane", "steelyard"].map(|namespace| {
        let values = site.run.join(format!("values-{namespace}.yaml"));
        let namespace = format!("--namespace={namespace}");
        std::fs::write(&values, site.helm(&["get", "values", "steelyard", &namespace, "--output=yaml"])).unwrap();
        (namespace, format!("--values={}", values.display()))
    });
    let (before, kinds) = (site.previous.join("deploy/steelyard"), "crds");
    let apply = |chart: &std::path::Path| {
        let kinds = chart.join(kinds).display().to_string();
        site.kubectl(&["apply", "--server-side", "--force-conflicts", "--filename", &kinds]);
    };
    for (namespace, _) in &releases {
        site.helm(&["uninstall", "steelyard", namespace, "--wait"]);
    }
    apply(&before);
    for (namespace, values) in &releases {
        let chart = before.display().to_string();
        site.helm(&["install", "steelyard", &chart, namespace, values, "--set=image.tag=previous", "--wait"]);
    }
    site.until_all_serve(GATEWAY, SHOP);

    let load = Load::start(site, GATEWAY, SHOP);
    apply(std::path::Path::new(CHART));
    for ((namespace, values), workload) in releases.iter().zip([&KERNEL_PLANES, &GATEWAYS]) {
        site.helm(&["upgrade", "steelyard", CHART, namespace, values, "--reset-values", "--wait"]);
        site.until_complete(workload);
    }
    for workload in [&KERNEL_PLANES, &GATEWAYS] {
        let object = site.get(&["--namespace", workload.namespace, workload.name]);
        let image = &object["spec"]["template"]["spec"]["containers"][0]["image"];
        assert_eq!(image, concat!("localhost/steelyard:", env!("CARGO_PKG_VERSION")));
    }
    load.end(site, "upgrade of the release");
}

#[test]
fn the_kernel_plane_is_restarted() {
    let site = site();
    site.apply(SERVICE);
    let address = site.kubectl(&[
        "--namespace=shop",
        "wait",
        "--for=jsonpath={.status.loadBalancer.ingress[0].ip}",
        "service/direct",
        "--timeout=1m",
        "--output=jsonpath={.status.loadBalancer.ingress[0].ip}",
    ]);
    let address: IpAddr = address.parse().unwrap_or_else(|error| panic!("{address:?}: {error}"));
    let load = Load::start(site, SocketAddr::new(address, 80), SHOP);
    // The pods of both nodes answer. One is behind a bridge, and the other has a veth pair without a bridge.
    let names = site.until_names(SocketAddr::new(address, 80), 2);
    assert_eq!(names, site.pods(&WEB));
    site.restart(&KERNEL_PLANES);
    load.end(site, "restart of the kernel plane");
    site.kubectl(&["--namespace=shop", "delete", "service", "direct"]);
}

/// A Service that the kernel plane balances over the pods.
const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: direct, namespace: shop}
spec:
  type: LoadBalancer
  loadBalancerClass: steelyard.io/kernel-plane
  allocateLoadBalancerNodePorts: false
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}]
";
