//! What people write that cannot be, and faults of the cluster, on real nodes: a status and an Event tell of it, the rest is served, and no
//! request is lost. `bad_input` and `faults` of the tests in `e2e/tests/kube` look closer at the same cases.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::{Span, Timestamp};
use serde_json::{Value, json};
use testkit::netns::Netns;
use testkit::strict::{Response, ResponseTo};
use testkit::{client, until};

use crate::load::{Load, status_of};
use crate::site::{CHART, GATEWAY, GATEWAYS, PATIENCE, SHOP, Site, WEB, site};

/// Hosts of one listener, in Ingresses of so many: an object of more than a megabyte is refused by the API server.
const HOSTS: usize = 10_000;
const HOSTS_OF_AN_INGRESS: usize = 2_000;

/// Changes of one endpoint.
const CHANGES: usize = 120;

const LISTENERS: usize = 64;
const SETS: usize = 1_000;

/// Clients of the site, and the pods of the gateway, which must be the same at the end.
struct Calm {
    site: &'static Site,
    load: Load,
    pods: BTreeSet<String>,
    restarts: u64,
}

impl Calm {
    fn start() -> Self {
        let site = site();
        site.until_complete(&GATEWAYS);
        Self { site, load: Load::start(site, GATEWAY, SHOP), pods: site.pods(&GATEWAYS), restarts: restarts(site) }
    }

    fn end(self, event: &str) {
        self.load.end(self.site, event);
        assert_eq!((self.site.pods(&GATEWAYS), restarts(self.site)), (self.pods, self.restarts), "{event}");
    }
}

/// How often the containers of the gateway have been restarted.
fn restarts(site: &Site) -> u64 {
    let namespace = ["--namespace", GATEWAYS.namespace, "pods", "--selector", GATEWAYS.selector];
    let pods = site.get(&namespace);
    let pods = pods["items"].as_array().into_iter().flatten();
    pods.filter_map(|pod| pod["status"]["containerStatuses"][0]["restartCount"].as_u64()).sum()
}

/// Waits until `path` of an object has this value.
fn until_is(site: &Site, namespace: &str, object: &str, path: &str, value: &str) {
    let condition = format!("--for=jsonpath={path}={value}");
    site.kubectl(&["--namespace", namespace, "wait", &condition, object, "--timeout=2m"]);
}

/// Waits until a condition of a route has this reason.
fn until_route(site: &Site, namespace: &str, route: &str, condition: &str, reason: &str) {
    let path = format!(r#"{{.status.parents[0].conditions[?(@.type=="{condition}")].reason}}"#);
    until_is(site, namespace, route, &path, reason);
}

/// Waits until an Event about an object of the namespace `shop` has this reason.
fn until_event(site: &Site, name: &str, reason: &str) {
    let selector = format!("--field-selector=involvedObject.name={name},reason={reason}");
    let is_there = || {
        let events = site.get(&["--namespace=shop", "events", &selector]);
        events["items"].as_array().is_some_and(|events| !events.is_empty()).then_some(())
    };
    assert!(until(PATIENCE, is_there).is_some(), "there is no Event {reason} about {name}");
}

/// Waits until requests for this host and path are answered with this status, by whichever pod gets them.
fn until_status(site: &Site, host: &str, path: &str, status: u16) {
    let mut last = Vec::new();
    let is_so = || {
        last = (0..10).map(|_| status_of(GATEWAY, host, path)).collect();
        last.iter().all(|found| *found == Ok(status)).then_some(())
    };
    let found = site.client.inside(|| until(PATIENCE, is_so));
    assert!(found.is_some(), "{host}{path} is not answered with {status}: {last:?}");
}

fn http_route(name: &str, rest: &str) -> String {
    format!(
        "
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {name}, namespace: shop}}
spec: {{parentRefs: [{{name: front}}], {rest}}}
"
    )
}

/// A route of the host `wrong.example.com` and this path.
fn route_to(name: &str, backend: &str) -> String {
    let rule = format!("{{matches: [{{path: {{value: /{name}}}}}], backendRefs: [{backend}]}}");
    http_route(name, &format!("hostnames: [wrong.example.com], rules: [{rule}]"))
}

fn ingress(name: &str, rules: &str) -> String {
    format!(
        "
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {{name: {name}, namespace: shop}}
spec:
  ingressClassName: steelyard
  rules:
{rules}"
    )
}

#[test]
fn objects_that_cannot_be() {
    let calm = Calm::start();
    let site = calm.site;
    let web = "{name: web, port: 80}";
    let whole =
        |name: &str| http_route(name, &format!("hostnames: [both.example.com], rules: [{{backendRefs: [{web}]}}]"));
    site.apply(&whole("older"));
    // The API server stores the second of creation.
    until_route(site, "shop", "httproute/older", "Accepted", "Accepted");
    let port = "{service: {name: web, port: {name: unknown}}}";
    let objects = [
        whole("younger"),
        route_to("ungranted", "{name: db, namespace: data, port: 80}"),
        route_to("missing", "{name: missing, port: 80}"),
        route_to("port", "{name: web, port: 81}"),
        route_to("empty", "{name: empty, port: 80}"),
        ingress(
            "port",
            &format!(
                "    - {{host: port.example.com, http: {{paths: [{{path: /, pathType: Prefix, backend: {port}}}]}}}}\n"
            ),
        ),
        WRONG.to_owned(),
    ];
    site.apply(&objects.concat());

    until_event(site, "younger", "OlderRoute");
    for (name, reason, status) in
        [("ungranted", "RefNotPermitted", 500), ("missing", "BackendNotFound", 500), ("port", "BackendNotFound", 500)]
    {
        until_route(site, "shop", &format!("httproute/{name}"), "ResolvedRefs", reason);
        until_event(site, name, reason);
        until_status(site, "wrong.example.com", &format!("/{name}"), status);
    }
    until_event(site, "empty", "NoEndpoints");
    until_status(site, "wrong.example.com", "/empty", 503);
    until_status(site, "port.example.com", "/", 500);
    let reason = r#"{.status.listeners[0].conditions[?(@.type=="ResolvedRefs")].reason}"#;
    until_is(site, "shop", "gateway/none", reason, "InvalidCertificateRef");
    until_event(site, "none", "InvalidCertificateRef");
    until_status(site, "both.example.com", "/", 200);
    calm.end("objects that cannot be");

    site.kubectl(&["delete", "namespace", "data", "--wait=false"]);
    let names = ["older", "younger", "ungranted", "missing", "port", "empty"].map(|name| format!("httproute/{name}"));
    let rest = ["ingress/port", "service/empty", "gateway/none", "secret/none"].map(str::to_owned);
    let all: Vec<&str> = names.iter().chain(&rest).map(String::as_str).collect();
    site.kubectl(&[&["--namespace=shop", "delete"], &all[..]].concat());
}

const WRONG: &str = "
---
apiVersion: v1
kind: Namespace
metadata: {name: data}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: data}
spec: {selector: {app: none}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: shop}
spec: {selector: {app: none}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Secret
metadata: {name: none, namespace: shop}
type: kubernetes.io/tls
stringData: {tls.crt: none, tls.key: none}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: none, namespace: shop}
spec:
  gatewayClassName: steelyard
  listeners:
    - {name: tls, protocol: HTTPS, port: 443, hostname: none.example.com, tls: {certificateRefs: [{name: none}]}}
";

#[test]
fn ten_thousand_hosts() {
    let calm = Calm::start();
    let site = calm.site;
    let name = |first: usize| format!("hosts-{first}");
    let firsts = || (0..HOSTS).step_by(HOSTS_OF_AN_INGRESS);
    for first in firsts() {
        let mut rules = String::new();
        for host in first..first + HOSTS_OF_AN_INGRESS {
            let backend = "{service: {name: web, port: {number: 80}}}";
            let paths = format!("[{{path: /, pathType: Prefix, backend: {backend}}}]");
            writeln!(rules, "    - {{host: h{host}.example.com, http: {{paths: {paths}}}}}").unwrap();
        }
        // `apply` would keep a copy in an annotation, and those may have 256 KiB.
        site.create(&ingress(&name(first), &rules));
    }
    for host in [0, HOSTS / 2, HOSTS - 1] {
        until_status(site, &format!("h{host}.example.com"), "/", 200);
    }
    until_status(site, &format!("h{HOSTS}.example.com"), "/", 404);
    calm.end("ten thousand hosts");
    for first in firsts() {
        site.kubectl(&["--namespace=shop", "delete", "ingress", &name(first)]);
    }
}

/// An endpoint comes and goes several times a second, because the label of its pod does.
#[test]
fn an_endpoint_that_flaps() {
    let site = site();
    site.apply(FLAPPING);
    let pods = Vec::from_iter(site.pods(&WEB));
    let label = |pod: &str, label: &str| site.kubectl(&["--namespace=shop", "label", "--overwrite", "pod", pod, label]);
    for pod in &pods {
        label(pod, "flapping=yes");
    }
    site.until_all_serve(GATEWAY, "flapping.example.com");
    let calm = Calm::start();
    let load = Load::start(site, GATEWAY, "flapping.example.com");
    for number in 0..CHANGES {
        label(&pods[0], if number % 2 == 0 { "flapping=no" } else { "flapping=yes" });
    }
    load.end(site, "an endpoint that flaps, at its own host");
    calm.end("an endpoint that flaps, at another host");
    for object in ["httproute/flapping", "service/flapping"] {
        site.kubectl(&["--namespace=shop", "delete", object]);
    }
    for pod in &pods {
        label(pod, "flapping-");
    }
}

const FLAPPING: &str = "
apiVersion: v1
kind: Service
metadata: {name: flapping, namespace: shop}
spec: {selector: {app: web, flapping: 'yes'}, ports: [{name: http, port: 80, targetPort: http}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: flapping, namespace: shop}
spec: {parentRefs: [{name: front}], hostnames: [flapping.example.com], rules: [{backendRefs: [{name: flapping, port: 80}]}]}
";

#[test]
fn definitions_are_removed_and_installed_again() {
    const KINDS: [&str; 2] = ["tcproutes", "tlsroutes"];
    let calm = Calm::start();
    let site = calm.site;
    for kind in KINDS {
        site.kubectl(&["delete", "customresourcedefinition", &format!("{kind}.gateway.networking.k8s.io")]);
    }
    site.apply(&http_route("later", "hostnames: [later.example.com], rules: [{backendRefs: [{name: web, port: 80}]}]"));
    until_status(site, "later.example.com", "/", 200);
    until_route(site, "shop", "httproute/later", "Accepted", "Accepted");

    let folder = site.programs.join("gateway-api").display().to_string();
    site.kubectl(&["apply", "--server-side", "--filename", &folder]);
    for kind in KINDS {
        let definition = format!("customresourcedefinition/{kind}.gateway.networking.k8s.io");
        site.kubectl(&["wait", "--for=condition=Established", &definition, "--timeout=1m"]);
    }
    site.apply(TCP);
    until_route(site, "shop", "tcproute/tcp", "Accepted", "Accepted");
    calm.end("definitions that are removed and installed again");
    for object in ["httproute/later", "tcproute/tcp", "gateway/tcp"] {
        site.kubectl(&["--namespace=shop", "delete", object]);
    }
}

const TCP: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: tcp, namespace: shop}
spec: {gatewayClassName: steelyard, listeners: [{name: tcp, protocol: TCP, port: 7000}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: tcp, namespace: shop}
spec: {parentRefs: [{name: tcp}], rules: [{backendRefs: [{name: web, port: 80}]}]}
";

#[test]
fn a_gateway_with_a_thousand_listener_sets() {
    let calm = Calm::start();
    let site = calm.site;
    let listener = |name: &str, host: &str| json!({"name": name, "port": 80, "protocol": "HTTP", "hostname": host});
    let own = (0..LISTENERS).map(|number| listener(&format!("l{number}"), &format!("l{number}.example.com")));
    let object = |kind: &str, name: &str, spec: Value| {
        let metadata = json!({"name": name, "namespace": "crowd"});
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec})
    };
    let spec = json!({
        "gatewayClassName": "steelyard",
        "allowedListeners": {"namespaces": {"from": "Same"}},
        "listeners": own.collect::<Vec<_>>(),
    });
    let sets = (0..SETS).map(|number| {
        let listeners = [listener("only", &format!("s{number}.example.com"))];
        object("ListenerSet", &format!("s{number}"), json!({"parentRef": {"name": "crowd"}, "listeners": listeners}))
    });
    let last = format!("s{}", SETS - 1);
    let redirect = json!({"type": "RequestRedirect", "requestRedirect": {"hostname": "other.example.com"}});
    let spec_of_last =
        json!({"parentRefs": [{"kind": "ListenerSet", "name": last}], "rules": [{"filters": [redirect]}]});
    let mut items = vec![object("Gateway", "crowd", spec), object("HTTPRoute", "last", spec_of_last)];
    items.extend(sets);
    site.kubectl(&["create", "namespace", "crowd"]);
    site.create(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());

    until_is(site, "crowd", "gateway/crowd", "{.status.attachedListenerSets}", &SETS.to_string());
    let reason = r#"{.status.conditions[?(@.type=="Programmed")].reason}"#;
    until_is(site, "crowd", &format!("listenerset/{last}"), reason, "Programmed");
    until_route(site, "crowd", "httproute/last", "Accepted", "Accepted");
    until_status(site, &format!("{last}.example.com"), "/", 302);
    calm.end("a Gateway with a thousand ListenerSets");
    site.kubectl(&["delete", "namespace", "crowd", "--timeout=4m"]);
}

/// The classes belong to the first installation, so that helm accepts the second one.
#[test]
fn two_controllers_with_one_name() {
    let calm = Calm::start();
    let site = calm.site;
    site.helm(&[
        "install",
        "second",
        CHART,
        "--namespace=second",
        "--create-namespace",
        "--set=image.repository=localhost/steelyard",
        "--set=gatewayClass.create=false,ingressClass.create=false,service.enabled=false,replicas=1",
        "--set=publishAddresses={203.0.113.9}",
        "--wait",
    ]);
    until_event(site, "front", "StatusContested");
    site.helm(&["uninstall", "second", "--namespace=second", "--wait"]);
    until_is(site, "shop", "gateway/front", "{.status.addresses[0].value}", &GATEWAY.ip().to_string());
    calm.end("two controllers with one name");
    site.kubectl(&["delete", "namespace", "second", "--wait=false"]);
}

/// Another process, whose clock is a minute ahead, takes the Lease and dies. The pods measure durations only, so it expires all the same.
#[test]
fn a_holder_whose_clock_is_a_minute_ahead() {
    let calm = Calm::start();
    let site = calm.site;
    let ahead = MicroTime(Timestamp::now() + Span::new().minutes(1));
    let spec = json!({"holderIdentity": "gone", "renewTime": ahead, "acquireTime": ahead});
    let patch = json!({"spec": spec}).to_string();
    let steelyard = ["--namespace=steelyard", "lease", "steelyard"];
    site.kubectl(&["--namespace=steelyard", "patch", "lease", "steelyard", "--type=merge", "--patch", &patch]);
    let holder = || site.get(&steelyard)["spec"]["holderIdentity"].clone();
    assert!(until(PATIENCE, || (holder() != "gone").then_some(())).is_some(), "the Lease has not expired");
    site.apply(&http_route("later", "hostnames: [later.example.com], rules: [{backendRefs: [{name: web, port: 80}]}]"));
    until_route(site, "shop", "httproute/later", "Accepted", "Accepted");
    calm.end("a holder whose clock is a minute ahead");
    site.kubectl(&["--namespace=shop", "delete", "httproute/later"]);
}

/// The API server cannot reach the webhook, and therefore refuses what the webhook was to look at.
#[test]
fn a_webhook_that_blocks_statuses() {
    let calm = Calm::start();
    let site = calm.site;
    site.apply(WEBHOOK);
    let front = ["--namespace=shop", "gateway", "front"];
    let patch = ["--namespace=shop", "patch", "gateway", "front", "--subresource=status", "--type=merge"];
    let try_patch = || site.try_kubectl(&[&patch[..], &[r#"--patch={"status":{"addresses":[]}}"#]].concat());
    assert!(until(PATIENCE, || try_patch().is_err().then_some(())).is_some(), "statuses are not refused");
    site.apply(&http_route("later", "hostnames: [later.example.com], rules: [{backendRefs: [{name: web, port: 80}]}]"));
    until_status(site, "later.example.com", "/", 200);
    let later = || site.get(&["--namespace=shop", "httproute", "later"])["status"]["parents"].clone();
    assert_eq!(later(), Value::Null, "a status was written");
    site.kubectl(&["delete", "validatingwebhookconfiguration", "statuses.example.com"]);
    until_route(site, "shop", "httproute/later", "Accepted", "Accepted");
    let addresses = || (site.get(&front)["status"]["addresses"][0]["value"] == GATEWAY.ip().to_string()).then_some(());
    assert!(until(PATIENCE, addresses).is_some(), "the Gateway has no address");
    calm.end("a webhook that blocks statuses");
    site.kubectl(&["--namespace=shop", "delete", "httproute/later"]);
}

const WEBHOOK: &str = "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: statuses.example.com}
webhooks:
  - name: statuses.example.com
    admissionReviewVersions: [v1]
    clientConfig: {url: 'https://127.0.0.1:9/'}
    failurePolicy: Fail
    sideEffects: None
    rules:
      - {apiGroups: [gateway.networking.k8s.io], apiVersions: ['*'], operations: ['*'], resources: ['*/status']}
";

#[test]
fn etcd_is_full() {
    let calm = Calm::start();
    let site = calm.site;
    fill_etcd(site, true);
    let refused = site.try_kubectl(&["--namespace=shop", "create", "configmap", "any"]);
    assert!(refused.is_err(), "etcd accepts writes");
    // A longer fault would reach the nodes, too: the cluster expects a sign of life every 10 s. When it can write again, it calls the pods of
    // silent nodes not ready, and then nobody has an endpoint until kubelet has told otherwise.
    let is_told = || site.log_of_gateway().contains("failed with status 500").then_some(());
    assert!(until(PATIENCE, is_told).is_some(), "no write of the gateway was refused");
    calm.load.until_answered(300);
    fill_etcd(site, false);
    site.apply(&http_route("later", "hostnames: [later.example.com], rules: [{backendRefs: [{name: web, port: 80}]}]"));
    until_route(site, "shop", "httproute/later", "Accepted", "Accepted");
    until_status(site, "later.example.com", "/", 200);
    // The nodes could not tell that they are alive, either.
    site.kubectl(&["wait", "--for=condition=Ready", "nodes", "--all", "--timeout=2m"]);
    calm.end("etcd is full");
    site.kubectl(&["--namespace=shop", "delete", "httproute/later"]);
    // The cluster may have decided to move the pods.
    site.spread();
}

/// Makes etcd behave as when its disk quota is used up, or as before: it answers reads and refuses writes.
fn fill_etcd(site: &Site, is_full: bool) {
    let pid = fs::read_to_string(site.run.join("n0/pid")).unwrap().trim().parse().unwrap();
    let node = Netns::of_process("n0", pid).unwrap();
    let ask = |path: &str, body: Value| -> Value {
        let Response { body, .. } = node.inside(|| {
            let mut conn = client::connect("etcd", SocketAddr::from((Ipv4Addr::LOCALHOST, 2379)), None).unwrap();
            let body = body.to_string();
            let head = format!("POST {path} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {}\r\n\r\n", body.len());
            conn.send(format!("{head}{body}").as_bytes()).unwrap();
            conn.response(ResponseTo::Other).unwrap()
        });
        serde_json::from_slice(&body).unwrap()
    };
    let member = ask("/v3/maintenance/status", json!({}))["header"]["member_id"].clone();
    let action = if is_full { "ACTIVATE" } else { "DEACTIVATE" };
    let answer = ask("/v3/maintenance/alarm", json!({"action": action, "memberID": member, "alarm": "NOSPACE"}));
    assert!(answer["header"]["revision"].is_string(), "{answer}");
}
