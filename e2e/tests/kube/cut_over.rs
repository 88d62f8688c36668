//! The cut-over from ingress-nginx, and back, under load: who answers, who writes statuses, and the solvers of cert-manager meanwhile.
//!
//! Debian's nginx stands for the data plane of the other controller, and the administrator for its control plane, who writes statuses as it
//! does.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use serde_json::{Value, json};
use testkit::strict::ResponseTo;
use testkit::{Conn, Exit, Program, Signal, client, until};

use crate::edge::{Edge, answer, api_server, ask, gateway, header, pod, within};
use crate::harness::{GATEWAY, PATIENCE};
use crate::ingress_nginx::{ANY, PREFIXED, ingress, prepared, until_answer};
use crate::support::{Origin, Scratch, Steelyard, skip};
use crate::tls::{Pki, Tls};

const CLIENTS: usize = 8;

/// Answers at one address before anything else happens.
const ANSWERS: usize = 400;

/// Where the others listen.
const NGINX: &str = "10.244.0.2";
const SECOND: &str = "10.244.0.3";

/// The status that the other controller writes, and that of the second replica.
const OLD: &str = "192.0.2.10";
const NEW: &str = "192.0.2.20";

/// A name that leads to one of the addresses, and clients of it, each of which asks again and again on one connection. It changes the connection
/// when the name leads elsewhere, and when a response announces the end.
struct Name {
    addresses: [SocketAddr; 3],
    leads_to: AtomicUsize,
    ended: AtomicBool,
    /// The answers that came from each address.
    answers: [AtomicUsize; 3],
    /// Where each client is.
    clients: [AtomicUsize; CLIENTS],
    /// Requests without a good answer.
    lost: Mutex<Vec<String>>,
}

impl Name {
    fn new() -> Self {
        Self {
            addresses: [NGINX, GATEWAY, SECOND].map(|address| SocketAddr::new(address.parse().unwrap(), 80)),
            leads_to: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            answers: Default::default(),
            clients: Default::default(),
            lost: Mutex::default(),
        }
    }

    fn client(&self, number: usize) {
        let mut held: Option<(usize, Conn)> = None;
        while !self.ended.load(Relaxed) {
            let to = self.leads_to.load(Relaxed);
            match self.one(held.take().filter(|(at, _)| *at == to), to) {
                Ok(conn) => held = conn.map(|conn| (to, conn)),
                Err(why) => self.lost.lock().unwrap().push(format!("at {}: {why}", self.addresses[to])),
            }
            self.answers[to].fetch_add(1, Relaxed);
            self.clients[number].store(to, Relaxed);
        }
    }

    /// One request. Returns the connection, if it stays.
    fn one(&self, held: Option<(usize, Conn)>, to: usize) -> Result<Option<Conn>, String> {
        let connect = || client::connect("client", self.addresses[to], None).map_err(|why| format!("{why:?}"));
        let mut conn = held.map_or_else(connect, |(_, conn)| Ok(conn))?;
        conn.send(b"GET /x HTTP/1.1\r\nHost: b.example\r\n\r\n").map_err(|why| format!("{why:?}"))?;
        let response = conn.response(ResponseTo::Other).map_err(|why| format!("{why:?}"))?;
        match (response.status, &*header(&response, "x-origin")) {
            (200, "pod-1") => Ok(Some(conn).filter(|_| header(&response, "connection") != "close")),
            other => Err(format!("{other:?}")),
        }
    }

    /// Waits until every client is at this address, where there have been many answers since.
    #[track_caller]
    fn move_to(&self, to: usize) {
        self.leads_to.store(to, Relaxed);
        let begun = self.answers[to].load(Relaxed);
        let are_there = || {
            let all = self.clients.iter().all(|client| client.load(Relaxed) == to);
            (all && self.answers[to].load(Relaxed) > begun + ANSWERS).then_some(())
        };
        assert!(until(PATIENCE, are_there).is_some(), "the clients are not at {}", self.addresses[to]);
    }
}

/// The clients end with it, so that a test that fails ends, too.
struct Ends<'t>(&'t Name);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Relaxed);
    }
}

/// What ingress-nginx would make of the Ingress of `b.example`.
fn nginx(scratch: &Scratch, upstream: SocketAddr) -> Program {
    let directory = scratch.path().display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {directory}/{name};\n"))
        .concat();
    let config = format!(
        "daemon off;\nmaster_process off;\npid {directory}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}\
         upstream web {{ server {upstream}; keepalive 16; }}\n\
         server {{ listen {NGINX}:80; server_name b.example;\n\
         location / {{ proxy_pass http://web; proxy_http_version 1.1; proxy_set_header Connection ''; }} }}\n}}\n"
    );
    let file = scratch.write("nginx.conf", &config);
    let mut nginx = Program::spawn("nginx", Command::new("nginx").args(["-e", "stderr", "-c", &file])).unwrap();
    let address = SocketAddr::new(NGINX.parse().unwrap(), 80);
    assert!(until(PATIENCE, || std::net::TcpStream::connect(address).ok()).is_some(), "{}", nginx.log());
    nginx
}

/// Ends a program as a cluster does.
#[track_caller]
fn stop(program: &mut Program, signal: Signal) {
    program.signal(signal).unwrap();
    assert_eq!(program.exit_within(PATIENCE).unwrap(), Exit::Code(0), "{}", program.log());
}

/// The writes of our controllers to the status of Ingresses, so far.
fn statuses_written(edge: &Edge) -> usize {
    let of_us = api_server().audit(&format!("{}:steelyard", edge.name));
    let is_one =
        |event: &&Value| event["objectRef"]["resource"] == "ingresses" && event["objectRef"]["subresource"] == "status";
    of_us.iter().filter(is_one).count()
}

fn address_of(ingress: &Value) -> &Value {
    &ingress["status"]["loadBalancer"]["ingress"][0]["ip"]
}

#[track_caller]
fn old_writes(edge: &Edge) {
    for name in ["web", "plain"] {
        let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": OLD}]}}});
        edge.cluster.patch_status_in("Ingress", &edge.name, name, status);
    }
}

/// Two Ingresses, of which one has a certificate and redirects to HTTPS.
fn ingresses(edge: &Edge, pki: &Pki) {
    pki.issue("web", &["a.example"]);
    edge.secret("web", pki, "web");
    ingress(edge, "web", &json!({"force-ssl-redirect": "true"}), ("a.example", "/", PREFIXED), "web");
    edge.cluster.patch("Ingress", "web", json!({"spec": {"tls": [{"hosts": ["a.example"], "secretName": "web"}]}}));
    ingress(edge, "plain", &json!({}), ("b.example", "/", PREFIXED), "web");
    old_writes(edge);
}

/// The pod and the Service of a solver, which has no name for its port that means anything.
fn solver_pod(edge: &Edge) -> Origin {
    let origin = Origin::start_at(pod(9, 8089), "solver", 18);
    edge.cluster.apply(
        "
apiVersion: v1
kind: Service
metadata: {name: cm-acme-http-solver-8xr2k}
spec: {type: NodePort, ports: [{name: http, port: 8089, targetPort: 8089}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cm-acme-http-solver-8xr2k-a, labels: {kubernetes.io/service-name: cm-acme-http-solver-8xr2k}}
addressType: IPv4
ports: [{name: http, port: 8089}]
endpoints: [{addresses: ['10.244.1.9'], conditions: {ready: true}}]
",
    );
    origin
}

/// A path of a challenge, as cert-manager writes it: the type is `Exact` since its version 1.18, and was `ImplementationSpecific` before.
fn challenge(kind: &str) -> Value {
    let service = json!({"name": "cm-acme-http-solver-8xr2k", "port": {"number": 8089}});
    json!({"path": TOKEN, "pathType": kind, "backend": {"service": service}})
}

const TOKEN: &str = "/.well-known/acme-challenge/mX-t0ken_AbC";

/// The Ingress of a challenge, whose class is in the older annotation (the solver's `class`) or in the field (its `ingressClassName`).
fn solver(kind: &str, has_old_class: bool) -> Value {
    let mut solver = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {
            "name": "cm-acme-http-solver-x7d2f",
            "annotations": {"nginx.ingress.kubernetes.io/whitelist-source-range": "0.0.0.0/0,::/0"},
            "labels": {
                "acme.cert-manager.io/http-domain": "1234567890",
                "acme.cert-manager.io/http-token": "987654321",
                "acme.cert-manager.io/http01-solver": "true",
            },
        },
        "spec": {"rules": [{"host": "a.example", "http": {"paths": [challenge(kind)]}}]},
    });
    match has_old_class {
        true => solver["metadata"]["annotations"]["kubernetes.io/ingress.class"] = "nginx".into(),
        false => solver["spec"]["ingressClassName"] = "nginx".into(),
    }
    solver
}

/// Solvers come and go, each in another form, and are never redirected.
fn solvers(edge: &Edge, pki: &Pki) {
    let _pod = solver_pod(edge);
    for (kind, has_old_class) in [("Exact", true), (ANY, false), (ANY, true), ("Exact", false)] {
        edge.cluster.apply(&solver(kind, has_old_class).to_string());
        until_answer("a.example", TOKEN, (200, "solver"));
        let redirected = ask(gateway(80), "a.example", "/.well-known/other");
        assert_eq!(
            (redirected.status, header(&redirected, "location")),
            (308, "https://a.example/.well-known/other".into())
        );
        edge.cluster.delete("Ingress", "cm-acme-http-solver-x7d2f");
        until_answer("a.example", TOKEN, (308, ""));
    }
    // With `acme.cert-manager.io/http01-edit-in-place` it is a path of the Ingress itself, with its annotations.
    let before = edge.cluster.get("Ingress", "web").unwrap()["spec"]["rules"].clone();
    let mut edited = before.clone();
    edited[0]["http"]["paths"].as_array_mut().unwrap().push(challenge("Exact"));
    edge.cluster.patch("Ingress", "web", json!({"spec": {"rules": edited}}));
    until_answer("a.example", TOKEN, (200, "solver"));
    assert_eq!(answer(gateway(80), "a.example", "/").0, 308);
    edge.cluster.patch("Ingress", "web", json!({"spec": {"rules": before}}));
    until_answer("a.example", TOKEN, (308, ""));
    let mut tls = Tls::connect(&pki.client(None), gateway(443), "a.example").unwrap();
    assert_eq!(tls.get("a.example", "/").unwrap().0, 200);
}

/// An Ingress with a refused annotation, about which the leader sends an Event: by then it would have written statuses as well.
#[track_caller]
fn until_it_leads(edge: &Edge, name: &str) {
    ingress(edge, name, &json!({"fastcgi-index": "index.php"}), ("c.example", &format!("/{name}"), PREFIXED), "web");
    edge.cluster.until_event("Ingress", name, "UnsupportedAnnotation");
}

#[test]
fn a_cut_over_from_ingress_nginx() {
    if Command::new("nginx").arg("-v").output().is_err() {
        return skip("a_cut_over_from_ingress_nginx", "nginx is not installed");
    }
    within("a_cut_over_from_ingress_nginx", |edge| {
        let origins = prepared(edge);
        let scratch = Scratch::new();
        let pki = Pki::new(&scratch.path().join("pki"));
        ingresses(edge, &pki);
        let name = Name::new();
        std::thread::scope(|scope| {
            let _ends = Ends(&name);
            let mut old = nginx(&scratch, origins[0].address);
            let name = &name;
            let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || name.client(number))).collect();
            name.move_to(0);
            let instead = there(edge, name, &pki, &mut old);
            let _old = back(edge, name, instead, &scratch, origins[0].address);
            name.ended.store(true, Relaxed);
            clients.into_iter().for_each(|client| client.join().unwrap());
        });
        let lost = name.lost.lock().unwrap();
        assert!(lost.is_empty(), "{} requests, such as {:?}", lost.len(), lost.first());
    });
}

/// The steps of the documentation, up to the end of the other controller.
fn there(edge: &Edge, name: &Name, pki: &Pki, old: &mut Program) -> Steelyard {
    let mut beside = begin_beside(edge, "beside");
    until_answer("b.example", "/", (200, "pod-1"));
    until_it_leads(edge, "told");
    solvers(edge, pki);
    assert_eq!(statuses_written(edge), 0);
    assert_eq!(address_of(&edge.cluster.get("Ingress", "web").unwrap()), OLD);

    name.move_to(1);
    // The other one no longer writes. A replica that does starts before the one that does not ends.
    let arguments = ["--listen-address", SECOND, "--ingress-nginx", "--publish-address", NEW];
    let instead = edge.controller_with("instead", &arguments);
    name.move_to(2);
    stop(&mut beside.program, Signal::TERM);
    for ingress in ["web", "plain", "told"] {
        edge.cluster.until("told of the new address", "Ingress", ingress, |ingress| address_of(ingress) == NEW);
    }
    stop(old, Signal::QUIT);
    name.move_to(2);
    instead
}

/// The way back, from the replica that has written statuses. Returns the other one, which answers.
fn back(edge: &Edge, name: &Name, mut instead: Steelyard, scratch: &Scratch, upstream: SocketAddr) -> Program {
    let old = nginx(scratch, upstream);
    let mut beside = begin_beside(edge, "again");
    name.move_to(1);
    stop(&mut instead.program, Signal::TERM);
    let written = statuses_written(edge);
    until_it_leads(edge, "late");
    assert_eq!(address_of(&edge.cluster.get("Ingress", "web").unwrap()), NEW, "it takes nothing back");
    old_writes(edge);
    name.move_to(0);
    until_it_leads(edge, "later");
    stop(&mut beside.program, Signal::TERM);
    name.move_to(0);
    assert_eq!(statuses_written(edge), written);
    assert_eq!(address_of(&edge.cluster.get("Ingress", "web").unwrap()), OLD);
    assert!(address_of(&edge.cluster.get("Ingress", "late").unwrap()).is_null());
    old
}

/// A controller that says nothing in the status of Ingresses.
fn begin_beside(edge: &Edge, identity: &str) -> Steelyard {
    edge.controller_with(identity, &["--listen-address", GATEWAY, "--ingress-nginx", "--ingress-status=false"])
}
