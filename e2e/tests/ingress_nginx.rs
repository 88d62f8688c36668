//! Annotations of ingress-nginx against nginx itself: Debian's nginx runs the directives that ingress-nginx 1.15 writes for an Ingress, `steelyard
//! controller --ingress-nginx` serves the same Ingress, and `steelyard migrate compare` sends both the same requests.
//!
//! The cases are in `e2e/nginx`: annotations, the directives, requests with the status that nginx answers, and the differences that are known, each
//! with its reason. A difference that no case names fails the test, and so does one that a case names and that is not there. The page of annotations
//! lists the cases. What ingress-nginx does in Go and Lua no nginx can tell: `alone` has some of it, and canaries and sticky sessions are tested on a
//! real API server (`kube`).
#![forbid(unsafe_code)]

#[path = "ingress_nginx/alone.rs"]
mod alone;
#[path = "ingress_nginx/api.rs"]
mod api;
#[path = "ingress_nginx/cases.rs"]
mod cases;
#[path = "ingress_nginx/endpoint.rs"]
mod endpoint;
mod support;
#[path = "support/tls.rs"]
mod tls;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;

use cases::Case;
use serde_json::{Value, json};
use support::{Scratch, get, skip, steelyard};
use testkit::netns::Netns;
use testkit::{Exit, Program};
use tls::Pki;

const HEADERS_MORE: &str = "/usr/lib/nginx/modules/ngx_http_headers_more_filter_module.so";

/// Every address of this network is on the loopback interface of the test's namespace. Clients have the first.
const NETWORK: &str = "10.9.0.0/16";
const CLIENT: &str = "10.9.0.1";
const NGINX: &str = "10.9.0.10";
const STEELYARD: &str = "10.9.0.20";
const ADMIN: &str = "127.0.0.1:9900";
const API: &str = "10.9.0.2:6443";
/// Both answer requests; nothing listens on [`GONE`].
const MAIN: &str = "10.9.1.1";
const OTHER: &str = "10.9.1.2";
const AUTH: &str = "10.9.1.3";
/// nginx with TLS in front of [`MAIN`].
const SECURE: &str = "10.9.1.4";
/// nginx with TLS in front of [`AUTH`], for this name alone. It tells the name that it was asked for in `X-App`.
const LOGIN: &str = "10.9.1.5";
const LOGIN_NAME: &str = "login.default.svc.cluster.local";
const GONE: &str = "10.9.1.9";

fn port_80(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse::<IpAddr>().unwrap(), 80)
}

/// Why the test cannot run here.
fn lacking() -> Option<&'static str> {
    let is_root = rustix::process::geteuid().is_root();
    match (Command::new("nginx").arg("-v").output().is_ok(), Path::new(HEADERS_MORE).exists(), is_root) {
        (false, ..) => Some("nginx is not installed"),
        (_, false, _) => Some("nginx's module headers-more is not installed"),
        (.., false) => Some("namespaces need root"),
        (true, true, true) => None,
    }
}

#[test]
fn nginx_and_steelyard_answer_alike() {
    if let Some(why) = lacking() {
        return skip("nginx_and_steelyard_answer_alike", why);
    }
    let cases = cases::all();
    let netns = namespace("nginx");
    let scratch = Scratch::new();
    let pki = Pki::new(&scratch.path().join("pki"));
    pki.issue("site", &["*.example"]);
    let objects = cases::objects(&cases, &pki);
    netns.inside(|| {
        endpoint::start(port_80(MAIN), "main");
        endpoint::start(port_80(OTHER), "other");
        endpoint::start(port_80(AUTH), "auth");
        api::start(API.parse().unwrap(), objects);
    });
    let mut nginx = nginx(&netns, &scratch, &cases);
    nginx.until("listening", || netns.inside(|| std::net::TcpStream::connect(port_80(NGINX)).ok())).unwrap();
    let mut controller = controller(&netns, &scratch, &[]);
    until_ready(&netns, &mut controller);
    let requests = scratch.write("requests.har", &cases::har(&cases).to_string());
    let words = ["migrate", "compare", "--old", NGINX, "--new", STEELYARD, "--requests", &requests, "--all-methods"];
    let more = ["--marker", "x-endpoint", "--format", "json"];
    let found = netns.spawn("compare", steelyard().args(words).args(more)).unwrap().finish().unwrap();
    assert!([Exit::Code(0), Exit::Code(1)].contains(&found.exit), "{:?}: {}", found.exit, found.stderr);
    let wrong = cases::judge(&cases, &serde_json::from_str(&found.stdout).unwrap());
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), controller.log());
}

/// A namespace with the addresses of the test.
fn namespace(name: &str) -> Netns {
    let netns = Netns::new(name).unwrap();
    let route = format!("addr add {CLIENT}/32 dev lo\nroute add local {NETWORK} dev lo src {CLIENT}");
    netns.ip(&route).unwrap();
    netns
}

fn until_ready(netns: &Netns, controller: &mut Program) {
    let ready = || netns.inside(|| get(ADMIN.parse().unwrap(), "/readyz")).filter(|response| response.status == 200);
    controller.until("ready", ready).unwrap();
}

/// `steelyard controller` with the objects of the API server, and these words besides.
fn controller(netns: &Netns, scratch: &Scratch, more: &[&str]) -> Program {
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": format!("http://{API}")}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
        "users": [{"name": "test", "user": {}}],
    });
    let kubeconfig = scratch.write("kubeconfig", &kubeconfig.to_string());
    let mut command = steelyard();
    command.args(["controller", "--kubeconfig", &kubeconfig, "--listen-address", STEELYARD, "--admin", ADMIN]);
    command.args(["--ingress-nginx", "--ingress-nginx-configmap", "default/nginx", "--ingress-status", "false"]);
    netns.spawn("steelyard", command.args(["--workers", "1"]).args(more)).unwrap()
}

/// nginx with the directives of the cases.
fn nginx(netns: &Netns, scratch: &Scratch, cases: &[Case]) -> Program {
    let root = scratch.path().display().to_string();
    let users = scratch.write("users", cases::USERS);
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {root}/{kind};"))
        .concat();
    let of_cases: String = cases.iter().map(|case| case.in_nginx(NGINX, &users)).collect();
    let upstream = |name: &str, servers: &[&str]| {
        let servers: String = servers.iter().map(|server| format!("server {server} max_fails=0; ")).collect();
        format!("upstream {name} {{ {servers} }}\n")
    };
    let upstreams = [
        upstream("main", &[MAIN]),
        upstream("other", &[OTHER]),
        upstream("auth", &[AUTH]),
        upstream("flaky", &[MAIN, GONE]),
        upstream("dead", &[GONE]),
        upstream("secure", &[&format!("{SECURE}:443")]),
        upstream(LOGIN_NAME, &[&format!("{LOGIN}:443")]),
    ]
    .concat();
    let text = format!(
        r#"load_module {HEADERS_MORE};
daemon off; user root; pid {root}/nginx.pid; error_log stderr; worker_processes 1;
events {{}}
http {{
access_log off; {temporary}
default_type text/html; server_tokens off; more_clear_headers Server; server_names_hash_bucket_size 128;
map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
map $scheme $hsts {{ https "max-age=31536000; includeSubDomains"; default $upstream_http_strict_transport_security; }}
map $http_x_request_id $req_id {{ default $http_x_request_id; "" $request_id; }}
ssl_certificate {root}/pki/site.pem; ssl_certificate_key {root}/pki/site.key;
{upstreams}
server {{ listen {NGINX}:80 default_server; listen {NGINX}:443 ssl default_server; server_name _; location / {{ return 404; }} }}
server {{
    listen {SECURE}:443 ssl;
    location / {{
        client_max_body_size 0; proxy_http_version 1.1; proxy_set_header Host $http_host; proxy_set_header Connection "";
        proxy_pass http://main;
    }}
}}
server {{ listen {LOGIN}:443 ssl default_server; ssl_reject_handshake on; }}
server {{
    listen {LOGIN}:443 ssl; server_name {LOGIN_NAME};
    location / {{
        proxy_http_version 1.1; proxy_set_header Host $http_host; proxy_set_header Connection "";
        proxy_set_header X-App $ssl_server_name; proxy_pass http://auth;
    }}
}}
{of_cases}
}}
"#
    );
    let file = scratch.write("nginx.conf", &text);
    netns.spawn("nginx", Command::new("nginx").args(["-e", "stderr", "-c", &file])).unwrap()
}

#[test]
fn a_case_can_fail() {
    let case = |differs: Value| -> Case {
        let case = json!({
            "name": "a", "annotations": {}, "paths": ["/"], "nginx": "", "requests": ["GET / 200"], "differs": differs
        });
        serde_json::from_value(case).unwrap()
    };
    let found = |old: u16, what: &str| {
        let differences = json!([{"what": what, "old": "1", "new": "2", "matters": true}]);
        json!({"compared": [{"about": "a#0", "status": {"old": old, "new": 200}, "differences": differences}]})
    };
    let known = json!([{"what": "body", "old": "1", "new": "2", "why": "it is a test"}]);
    let check = |case: Case, found: Value, part: &str| {
        let wrong = cases::judge(&[case], &found).join("\n");
        assert!(if part.is_empty() { wrong.is_empty() } else { wrong.contains(part) }, "{part}: {wrong}");
    };
    check(case(known.clone()), found(200, "body"), "");
    check(case(json!([])), found(200, "body"), "a#0: body: nginx \"1\", Steelyard \"2\"");
    check(case(known.clone()), found(404, "body"), "nginx answers 404 and not 200");
    check(case(known.clone()), found(200, "status"), "no such difference: body");
    check(case(known), json!({"compared": []}), "was not sent");
}
