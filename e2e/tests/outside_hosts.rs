//! `auth-url` and `mirror-target` of ingress-nginx with hosts outside of the cluster: two replicas of the controller, and beyond a link a world with
//! Debian's nginx as the service that is asked. Some names of the world lead back to the replicas, as the public address of a load balancer does.
#![forbid(unsafe_code)]

#[path = "ingress_nginx/api.rs"]
mod api;
mod support;
#[path = "support/tls.rs"]
mod tls;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use support::{Scratch, get, skip, steelyard};
use testkit::netns::{Netns, join};
use testkit::strict::values;
use testkit::{Conn, Program};
use tls::Pki;

/// Where the two replicas serve, the first with its admin address, the second.
const ONE: (&str, &str) = ("10.77.0.1", "127.0.0.1:9901");
const TWO: (&str, &str) = ("10.77.0.3", "127.0.0.1:9902");
const API: &str = "127.0.0.1:6443";
const DNS: &str = "127.0.0.1:5300";
/// The endpoint of the Service that all Ingresses have. It is not one that anybody outside may name.
const ENDPOINT: &str = "10.9.1.1:80";
const WORLD: &str = "10.77.0.2";
const AUTH: &str = "93.184.216.10";
const AUTH_V6: &str = "2a02:2e0:3fe::10";
/// They lead to the replicas.
const TO_ONE: &str = "93.184.216.20";
const TO_TWO: &str = "93.184.216.21";
/// Packets to it are lost.
const LOST: &str = "93.184.216.30";
const EDGE_V6: &str = "2a02:2e0:3fe:1::1";
const WORLD_V6: &str = "2a02:2e0:3fe:1::2";

/// Names, and their addresses. Other names have none; `silent` is never answered.
const NAMES: [(&str, &[&str]); 10] = [
    ("auth.example.com", &[AUTH]),
    ("other.example.com", &[AUTH]),
    ("loop.example.com", &[TO_ONE]),
    ("far.example.com", &[TO_TWO]),
    ("a.example.com", &[TO_ONE]),
    ("b.example.com", &[TO_TWO]),
    ("copies.example.com", &[TO_ONE]),
    ("private.example.com", &[WORLD]),
    ("own.example.com", &[ONE.0]),
    ("half.example.com", &[AUTH, LOST]),
];

/// The Ingresses: the host, and its annotation.
const INGRESSES: [(&str, &str, &str); 16] = [
    ("secure.example.com", "auth-url", "https://auth.example.com/check"),
    ("plain.example.com", "auth-url", "http://auth.example.com/check"),
    ("address.example.com", "auth-url", "http://[2a02:2e0:3fe::10]:8080/check"),
    // An address of the replicas' own host.
    ("own-address.example.com", "auth-url", "http://[2a02:2e0:3fe:1::1]:8080/check"),
    // The certificate has another name.
    ("misnamed.example.com", "auth-url", "https://other.example.com/check"),
    ("loop.example.com", "auth-url", "http://loop.example.com/"),
    ("far.example.com", "auth-url", "http://far.example.com/"),
    ("a.example.com", "auth-url", "http://b.example.com/"),
    ("b.example.com", "auth-url", "http://a.example.com/"),
    ("copies.example.com", "mirror-target", "http://copies.example.com"),
    ("asks-private.example.com", "auth-url", "http://private.example.com/check"),
    ("asks-own.example.com", "auth-url", "http://own.example.com/check"),
    ("asks-silent.example.com", "auth-url", "http://silent.example.com/check"),
    ("asks-copies.example.com", "auth-url", "http://copies.example.com/"),
    ("asks-half.example.com", "auth-url", "http://half.example.com/check"),
    ("open.example.com", "enable-cors", "false"),
];

fn ingress((host, annotation, value): &(&str, &str, &str)) -> Value {
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let path = json!({"path": "/", "pathType": "Prefix", "backend": backend});
    json!({
        "metadata": {
            "name": host, "namespace": "default", "uid": host, "resourceVersion": "1",
            "annotations": {format!("nginx.ingress.kubernetes.io/{annotation}"): value},
        },
        "spec": {"ingressClassName": "nginx", "rules": [{"host": host, "http": {"paths": [path]}}]},
    })
}

fn objects() -> BTreeMap<String, Vec<Value>> {
    let named = |name: &str, rest: Value| {
        let mut object =
            json!({"metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"}});
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        object
    };
    let ports = json!([{"name": "http", "port": 80, "targetPort": 80, "protocol": "TCP"}]);
    let service = named("web", json!({"spec": {"clusterIP": "10.96.0.1", "type": "ClusterIP", "ports": ports}}));
    let (address, _) = ENDPOINT.split_once(':').unwrap();
    let endpoints = json!([{"addresses": [address], "conditions": {"ready": true}}]);
    let ports = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
    let mut slice = named("web", json!({"addressType": "IPv4", "endpoints": endpoints, "ports": ports}));
    slice["metadata"]["labels"] = json!({"kubernetes.io/service-name": "web"});
    let cluster_wide = |name: &str, rest: Value| {
        let mut object = json!({"metadata": {"name": name, "uid": format!("uid-of-{name}"), "resourceVersion": "1"}});
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        object
    };
    let class = cluster_wide("nginx", json!({"spec": {"controller": "k8s.io/ingress-nginx"}}));
    [
        ("ingresses", INGRESSES.iter().map(ingress).collect()),
        ("ingressclasses", vec![class]),
        ("services", vec![service]),
        ("endpointslices", vec![slice]),
        ("secrets", vec![]),
        ("configmaps", vec![]),
        ("namespaces", vec![cluster_wide("default", json!({})), cluster_wide("kube-system", json!({}))]),
        ("customresourcedefinitions", vec![]),
    ]
    .map(|(plural, objects): (&str, Vec<Value>)| (plural.to_owned(), objects))
    .into()
}

/// A name server with the names of the test, all with a TTL of zero (RFC 1035 section 4).
fn name_server() {
    let socket = UdpSocket::bind(DNS).unwrap();
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((_, client)) = socket.recv_from(&mut query) {
            let (mut name, mut at) = (Vec::new(), 12);
            while query[at] > 0 {
                let end = at + 1 + usize::from(query[at]);
                name.push(String::from_utf8_lossy(&query[at + 1..end]).into_owned());
                at = end;
            }
            let (name, is_a) = (name.join("."), query[at + 1..at + 3] == [0, 1]);
            if name.starts_with("silent") {
                continue;
            }
            let found = NAMES.iter().find(|(known, _)| *known == name);
            let mut reply = query[..at + 5].to_vec();
            let code = if found.is_some() { 0 } else { 3 };
            let records = found.filter(|_| is_a).map_or_else(Default::default, |(_, addresses)| *addresses);
            reply[2..12].copy_from_slice(&[0x81, 0x80 | code, 0, 1, 0, records.len() as u8, 0, 0, 0, 0]);
            for address in records {
                reply.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
                reply.extend_from_slice(&address.parse::<Ipv4Addr>().unwrap().octets());
            }
            _ = socket.send_to(&reply, client);
        }
    });
}

/// Passes connections to a replica.
fn relay(from: &str, to: &str) {
    let listener = TcpListener::bind((from, 80)).unwrap();
    let to: SocketAddr = format!("{to}:80").parse().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(to) else { continue };
            let both = [(client.try_clone(), server.try_clone()), (Ok(server), Ok(client))];
            for (from, to) in both {
                std::thread::spawn(move || {
                    let (Ok(mut from), Ok(mut to)) = (from, to) else { return };
                    _ = std::io::copy(&mut from, &mut to);
                    _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
}

/// Answers every request with 200, and notes its host.
fn endpoint(seen: Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind(ENDPOINT).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let seen = seen.clone();
            std::thread::spawn(move || {
                let Ok(mut conn) = Conn::new("endpoint", stream) else { return };
                while let Ok(request) = conn.request() {
                    let host =
                        values(&request.headers, "host").first().map(|host| String::from_utf8_lossy(host).into_owned());
                    seen.lock().unwrap().push(host.unwrap_or_default());
                    if conn.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// nginx, which lets requests with credentials pass and tells what they were marked with.
fn nginx(world: &Netns, scratch: &Scratch, pki: &Pki) -> Program {
    let root = scratch.path().display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {root}/{kind};"))
        .concat();
    let (cert, key) = (pki.path("auth.pem"), pki.path("auth.key"));
    let text = format!(
        "daemon off; user root; pid {root}/nginx.pid; error_log stderr; worker_processes 1; events {{}}
        http {{
            {temporary} log_format marks \"$scheme $host $http_cdn_loop\"; access_log {root}/marks marks;
            server {{
                listen {AUTH}:80; listen {AUTH}:443 ssl; listen {WORLD}:80; listen [{AUTH_V6}]:8080;
                ssl_certificate {}; ssl_certificate_key {};
                if ($http_authorization = \"\") {{ return 401; }}
                return 204;
            }}
        }}",
        cert.display(),
        key.display(),
    );
    let file = scratch.write("nginx.conf", &text);
    world.spawn("nginx", Command::new("nginx").args(["-c", &file])).unwrap()
}

fn replica(edge: &Netns, scratch: &Scratch, pki: &Pki, (address, admin): (&str, &str), roots: &str) -> Program {
    // As in a pod, where the API server is trusted by a file of its own.
    let authority = pki.path("ca.pem").display().to_string();
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": format!("http://{API}"), "certificate-authority": authority}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
        "users": [{"name": "test", "user": {}}],
    });
    let kubeconfig = scratch.write("kubeconfig", &kubeconfig.to_string());
    let telemetry = scratch.write("telemetry.yaml", &format!("access_log: stdout\ndns: {{servers: ['{DNS}']}}\n"));
    let mut command = steelyard();
    command.args(["controller", "--kubeconfig", &kubeconfig, "--listen-address", address, "--admin", admin]);
    command.args(["--ingress-nginx", "--ingress-status", "false", "--telemetry", &telemetry, "--workers", "1"]);
    command.env("SSL_CERT_FILE", roots).env_remove("SSL_CERT_DIR");
    let mut program = edge.spawn(address, &mut command).unwrap();
    let ready = || edge.inside(|| get(admin.parse().unwrap(), "/readyz")).filter(|response| response.status == 200);
    program.until("ready", ready).unwrap();
    program
}

/// The status that curl gets.
fn curl(edge: &Netns, replica: (&str, &str), host: &str, headers: &[&str]) -> String {
    let (host, url) = (format!("Host: {host}"), format!("http://{}/", replica.0));
    let mut words = vec!["curl", "-s", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", "-H", &host];
    headers.iter().for_each(|header| words.extend(["-H", header]));
    words.push(&url);
    edge.run(&words).unwrap()
}

/// Requests of a replica that ended for this reason.
fn counted(edge: &Netns, (_, admin): (&str, &str), reason: &str) -> u64 {
    let metrics = edge.inside(|| get(admin.parse().unwrap(), "/metrics")).unwrap();
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    let label = format!("reason=\"{reason}\"");
    let of = text.lines().filter(|line| line.starts_with("steelyard_refused_total") && line.contains(&label));
    of.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// How often an address of a host outside was ejected.
fn ejections(edge: &Netns, (_, admin): (&str, &str), address: &str) -> u64 {
    let metrics = edge.inside(|| get(admin.parse().unwrap(), "/metrics")).unwrap();
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    let label = format!("endpoint=\"{address}:80\"");
    let mut of =
        text.lines().filter(|line| line.starts_with("steelyard_endpoint_ejections_total") && line.contains(&label));
    of.find_map(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

/// The network of the replicas, and that of everything else.
fn networks() -> (Netns, Netns) {
    let (edge, world) = (Netns::new("edge").unwrap(), Netns::new("world").unwrap());
    join((&edge, "eth0"), (&world, "eth0"), 1500).unwrap();
    edge.ip(&format!("addr add {}/24 dev eth0\naddr add {}/24 dev eth0\nroute add default via {WORLD}\nroute add local 10.9.0.0/16 dev lo", ONE.0, TWO.0))
        .unwrap();
    edge.ip(&format!("addr add {EDGE_V6}/64 dev eth0\nroute add default via {WORLD_V6}")).unwrap();
    let lost = format!("route add blackhole {LOST}/32 table local");
    world.ip(&format!("addr add {WORLD}/24 dev eth0\nroute add local 93.184.216.0/24 dev lo\n{lost}")).unwrap();
    world.ip(&format!("addr add {WORLD_V6}/64 dev eth0\naddr add {AUTH_V6}/128 dev lo")).unwrap();
    (edge, world)
}

/// Why the test cannot run here.
fn lacking() -> Option<&'static str> {
    let has = |program: &str| Command::new(program).arg("-V").output().is_ok();
    match (rustix::process::geteuid().is_root(), has("nginx") && has("curl")) {
        (false, _) => Some("namespaces need root"),
        (_, false) => Some("nginx or curl is not installed"),
        (true, true) => None,
    }
}

/// Who knows the mark is refused, and never passes.
fn forged_marks(edge: &Netns, mark: &str, known: &str) {
    let ask = |replica, host: &str, headers: &[&str]| curl(edge, replica, host, headers);
    let forged = [format!("CDN-Loop: {mark}"), format!("cdn-loop: a; b=c, {}; d", mark.to_uppercase())];
    for forged in &forged {
        for host in ["plain.example.com", "secure.example.com"] {
            assert_eq!(ask(ONE, host, &[forged]), "508");
            assert_eq!(ask(ONE, host, &[forged, known]), "508");
        }
        assert_eq!(ask(ONE, "open.example.com", &[forged]), "200");
    }
    assert_eq!(ask(ONE, "plain.example.com", &["CDN-Loop: steelyard-0"]), "401");
}

/// Of a host's addresses, one that swallows packets is ejected, and then the others are asked alone.
fn ejects_what_swallows(edge: &Netns, one: &mut Program, known: &str) {
    let ask = |replica, host: &str, headers: &[&str]| curl(edge, replica, host, headers);
    let ejected = || {
        ask(ONE, "asks-half.example.com", &[known]);
        (ejections(edge, ONE, LOST) > 0).then_some(())
    };
    one.until("the ejection", ejected).unwrap();
    let statuses: Vec<String> = (0..10).map(|_| ask(ONE, "asks-half.example.com", &[known])).collect();
    assert_eq!(statuses, ["200"; 10]);
    assert_eq!(ejections(edge, ONE, AUTH), 0);
}

#[test]
fn hosts_outside_are_asked_and_no_question_comes_back() {
    if let Some(why) = lacking() {
        return skip("hosts_outside_are_asked_and_no_question_comes_back", why);
    }
    let (edge, world) = networks();
    let scratch = Scratch::new();
    let pki = Pki::new(&scratch.path().join("pki"));
    pki.issue("auth", &["auth.example.com"]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    edge.inside(|| {
        name_server();
        endpoint(seen.clone());
        api::start(API.parse().unwrap(), objects());
    });
    world.inside(|| {
        relay(TO_ONE, ONE.0);
        relay(TO_TWO, TWO.0);
    });
    let mut auth = nginx(&world, &scratch, &pki);
    auth.until("listening", || world.inside(|| TcpStream::connect((AUTH, 443)).ok())).unwrap();
    let roots = pki.path("ca.pem").display().to_string();
    let mut one = replica(&edge, &scratch, &pki, ONE, &roots);
    // This one has no roots. All but what needs them is served.
    let mut two = replica(&edge, &scratch, &pki, TWO, "/nonexistent");
    let ask = |replica, host: &str, headers: &[&str]| curl(&edge, replica, host, headers);
    let known = ["Authorization: Basic x"];
    for (replica, program) in [(ONE, &mut one), (TWO, &mut two)] {
        program.until("resolved", || (ask(replica, "plain.example.com", &known) == "200").then_some(())).unwrap();
        assert_eq!(ask(replica, "plain.example.com", &[]), "401");
        assert_eq!(ask(replica, "open.example.com", &[]), "200");
    }
    assert_eq!(ask(ONE, "secure.example.com", &known), "200");
    assert_eq!(ask(ONE, "secure.example.com", &[]), "401");
    assert_eq!(ask(ONE, "address.example.com", &known), "200");
    assert_eq!(ask(ONE, "address.example.com", &[]), "401");
    assert_eq!(ask(TWO, "secure.example.com", &known), "500", "nothing is trusted, and nothing is sent in the clear");
    assert_eq!(ask(ONE, "misnamed.example.com", &known), "500");
    for host in
        ["asks-private.example.com", "asks-own.example.com", "asks-silent.example.com", "own-address.example.com"]
    {
        assert_eq!(ask(ONE, host, &known), "500", "{host}");
    }
    let marks = std::fs::read_to_string(scratch.path().join("marks")).unwrap();
    let mark = marks.lines().find_map(|line| line.strip_prefix("https auth.example.com ")).unwrap().to_owned();
    assert!(mark.starts_with("steelyard-") && marks.lines().all(|line| line.ends_with(&mark)), "{marks}");
    assert!(!marks.contains("other.example.com"), "{marks}");
    assert!(marks.contains(&format!("http [{AUTH_V6}] {mark}")), "{marks}");

    // Each question ends where it would be asked again: at the same replica, at the other one, at another host.
    let before = seen.lock().unwrap().len();
    let loops = || counted(&edge, ONE, "loop_detected") + counted(&edge, TWO, "loop_detected");
    for host in ["loop.example.com", "far.example.com", "a.example.com", "b.example.com"] {
        let before = loops();
        assert_eq!(ask(ONE, host, &known), "500", "{host}");
        assert_eq!(loops(), before + 1, "{host}");
    }
    assert_eq!(seen.lock().unwrap().len(), before);

    // A copy that comes back is served, and not copied again. A question that leads to a host with copies is not copied either.
    let copies = || seen.lock().unwrap().iter().filter(|host| *host == "copies.example.com").count();
    let before = loops();
    assert_eq!(ask(ONE, "copies.example.com", &[]), "200");
    one.until("the copy", || (loops() == before + 1).then_some(())).unwrap();
    one.until("the copy at its endpoint", || (copies() == 2).then_some(())).unwrap();
    assert_eq!(ask(ONE, "asks-copies.example.com", &[]), "200");
    assert_eq!((loops(), copies()), (before + 2, 3));

    ejects_what_swallows(&edge, &mut one, known[0]);

    forged_marks(&edge, &mark, known[0]);
    for log in [one.log(), two.log()] {
        assert!(!log.contains("panicked"), "{log}");
    }
    assert!(two.log().contains("TLS cannot be set up for hosts outside of the cluster"), "{}", two.log());
}
