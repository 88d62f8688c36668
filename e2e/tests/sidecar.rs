//! Sidecars on both sides of two pods, with applications that know nothing of them. A pod is a network namespace.
#![forbid(unsafe_code)]

mod support;
#[path = "support/tls.rs"]
mod tls;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;

use serde_json::Value;
use support::{Scratch, skip, steelyard};
use testkit::netns::{Netns, join};
use testkit::{Exit, Finished, PATIENCE, Program, Signal, until};
use tls::Pki;

const CLIENT: &str = "10.7.0.1";
const SERVER: &str = "10.7.0.2";
const SERVER_V6: &str = "fd07::2";

/// An id of the server, and of the client.
const SHOP: &str = "spiffe://example.org/ns/shop/sa/shop";
const WEB: &str = "spiffe://example.org/ns/shop/sa/web";

/// A namespace with an application, and perhaps a sidecar.
struct Pod {
    netns: Netns,
    scratch: Scratch,
    sidecar: Option<Program>,
}

impl Pod {
    fn new(name: &str) -> Self {
        Self { netns: Netns::new(name).unwrap(), scratch: Scratch::new(), sidecar: None }
    }

    /// Writes the configuration, captures, and starts the sidecar.
    fn add_sidecar(&mut self, config: &str) {
        let file = self.write(config);
        let said = self.run(steelyard().args(["sidecar", "init", "-c", &file]));
        assert_eq!(said.exit, Exit::Code(0), "{said:?}");
        assert!(said.stdout.starts_with("captured: "), "{said:?}");
        self.start();
    }

    fn write(&self, config: &str) -> String {
        self.scratch.write("sidecar.yaml", &format!("admin: 127.0.0.1:9900\n{config}"))
    }

    fn start(&mut self) {
        let exe = steelyard().get_program().to_owned();
        let file = self.scratch.path().join("sidecar.yaml");
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "1337", "--regid", "1337", "--clear-groups"]).arg(exe);
        command.args(["sidecar", "run", "--workers", "1", "-c"]).arg(file);
        let mut program = self.netns.spawn("sidecar", &mut command).unwrap();
        program.until("ready", || self.curl(&["http://127.0.0.1:9900/readyz"]).ok()).unwrap();
        self.sidecar = Some(program);
    }

    fn run(&self, command: &mut Command) -> Finished {
        self.netns.inside(|| Program::run("program", command)).unwrap()
    }

    fn curl(&self, words: &[&str]) -> Result<String, Finished> {
        let common = ["--silent", "--show-error", "--fail", "--max-time", "30"];
        let finished = self.run(Command::new("curl").args(common).args(words));
        if finished.exit == Exit::Code(0) { Ok(finished.stdout) } else { Err(finished) }
    }

    /// What the application says about a request.
    #[track_caller]
    fn ask(&self, words: &[&str]) -> Value {
        let answer = self.curl(words).unwrap_or_else(|finished| panic!("{words:?}: {finished:?}\n{}", self.explain()));
        serde_json::from_str(&answer).unwrap()
    }

    fn python(&self, words: &[&str]) -> Finished {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/sidecar_client.py");
        self.run(Command::new("python3").arg(script).args(words))
    }

    #[track_caller]
    fn client(&self, words: &[&str]) -> String {
        let finished = self.python(words);
        assert_eq!(finished.exit, Exit::Code(0), "{words:?}: {finished:?}\n{}", self.explain());
        finished.stdout.trim().to_owned()
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.curl(&["http://127.0.0.1:9900/status"]).unwrap()).unwrap()
    }

    fn explain(&self) -> String {
        self.curl(&["http://127.0.0.1:9900/status"]).unwrap_or_default()
    }

    /// A listener of the status.
    fn listener(&self, name: &str) -> Value {
        let status = self.status();
        let found = status["listeners"].as_array().unwrap().iter().find(|listener| listener["name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {status}")).clone()
    }

    /// Waits until the listener has counted a reason this many times.
    #[track_caller]
    fn refuses(&self, name: &str, reason: &str, count: u64) {
        let counted = || self.listener(name)["refused"][reason].as_u64().unwrap_or_default();
        let found = until(PATIENCE, || (counted() == count).then_some(()));
        assert!(found.is_some(), "{name} {reason}: {} instead of {count}\n{}", counted(), self.listener(name));
    }

    fn connections(&self, name: &str) -> u64 {
        self.listener(name)["connections_total"].as_u64().unwrap()
    }
}

/// Two pods, of which the second has the application.
struct Pods {
    client: Pod,
    server: Pod,
    _application: Program,
}

/// Runs a test if this host can run it.
fn with_pods(name: &str, test: impl FnOnce(Pods)) {
    if !rustix::process::geteuid().is_root() {
        return skip(name, "network namespaces need root");
    }
    let (client, server) = (Pod::new("client"), Pod::new("server"));
    join((&client.netns, "eth0"), (&server.netns, "eth0"), 1500).unwrap();
    client.netns.ip(&format!("addr add {CLIENT}/24 dev eth0\naddr add fd07::1/64 dev eth0")).unwrap();
    server.netns.ip(&format!("addr add {SERVER}/24 dev eth0\naddr add {SERVER_V6}/64 dev eth0")).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/sidecar_app.py");
    let mut application = server.netns.spawn("application", Command::new("python3").arg(script)).unwrap();
    application.says("ready").unwrap();
    test(Pods { client, server, _application: application });
}

fn url(path: &str) -> String {
    format!("http://{SERVER}:8080{path}")
}

#[test]
fn everything_passes_to_where_it_was_going() {
    with_pods("everything_passes_to_where_it_was_going", |mut pods| {
        assert_eq!(pods.client.ask(&[&url("/")])["client"], CLIENT);
        pods.server.add_sidecar("sidecar: {inbound: {exclude_ports: 53}}\n");
        pods.client.add_sidecar("sidecar: {}\n");

        for host in [SERVER, "[fd07::2]"] {
            let said = pods.client.ask(&[&format!("http://{host}:8080/x")]);
            // The sidecar of the application connects to it.
            assert!(said["client"] == "127.0.0.6" || said["client"] == "::1", "{said}");
            assert_eq!(said["path"], "/x");
        }
        for host in [SERVER, SERVER_V6] {
            let greeting = pods.client.client(&["greeting", host, "9000"]);
            assert!(greeting == "220 127.0.0.6" || greeting == "220 ::1", "{greeting}");
            assert_eq!(pods.client.client(&["bulk", host, "9001", "16"]), (16 << 20).to_string());
        }
        // No connection came back to a sidecar: there was one for each client.
        assert_eq!(pods.client.connections("sidecar/outbound"), 6);
        assert_eq!(pods.server.connections("sidecar/inbound"), 6);
        assert_eq!(pods.server.connections("sidecar/outbound"), 0);

        // DNS is not captured, over TCP or UDP.
        assert_eq!(pods.client.client(&["greeting", SERVER, "53"]), format!("220 {CLIENT}"));
        assert_eq!(pods.client.client(&["datagram", SERVER, "53"]), format!("{CLIENT} query"));
        assert_eq!(pods.client.connections("sidecar/outbound"), 6);
        assert_eq!(pods.server.connections("sidecar/inbound"), 6);

        // Nor is what stays within a pod.
        let own = pods.server.ask(&["http://127.0.0.1:8080/"]);
        assert_eq!(own["client"], "127.0.0.1");
        assert_eq!(pods.server.ask(&[&url("/")])["client"], SERVER);
        assert_eq!(pods.server.connections("sidecar/outbound"), 0);

        // A refused port is a reset: the sidecar has accepted the connection by then.
        let refused = pods.client.curl(&[&format!("http://{SERVER}:7/")]).unwrap_err();
        assert!(matches!(refused.exit, Exit::Code(7 | 52 | 56)), "{refused:?}");
        pods.server.refuses("sidecar/inbound", "connect_refused", 1);

        // A stranger cannot make a sidecar connect to itself.
        for (port, gate) in [("15001", "sidecar/outbound"), ("15006", "sidecar/inbound")] {
            let before = pods.server.connections(gate);
            assert_eq!(pods.client.client(&["silent", SERVER, port]), "reset");
            pods.server.refuses(gate, "not_captured", 1);
            assert_eq!(pods.server.connections(gate), before + 1);
        }
    });
}

#[test]
#[expect(clippy::too_many_lines, reason = "one sidecar, and what each of its routes does")]
fn captured_http_has_the_routes_of_its_listener() {
    with_pods("captured_http_has_the_routes_of_its_listener", |mut pods| {
        pods.server.add_sidecar(
            "sidecar: {}
listeners:
  app:
    bind: {inbound: [8080, 9000, 9001]}
    protocol: detect
    routes:
    - {name: secret, path: /secret, respond: {status: 403}}
    - {name: rest, request_headers: {set: {x-side: inbound}}, to: app}
clusters:
  app: {endpoints: ['127.0.0.1:8080']}
",
        );
        pods.client.add_sidecar(&format!(
            "sidecar: {{outbound: {{unknown: refuse}}}}
listeners:
  shop:
    bind: {{outbound: ['{SERVER}:8080', '{SERVER}:9000', '[fd07::/64]:9001', '10.0.0.0/8:9001']}}
    protocol: detect
    routes:
    - {{name: shop, hosts: shop, request_headers: {{set: {{x-route: shop}}}}, to: shop}}
    - {{name: other, to: shop}}
clusters:
  shop: {{endpoints: ['{SERVER}:8080']}}
",
        ));
        let said = pods.client.ask(&["-H", "Host: shop", "-H", "X-Forwarded-For: 192.0.2.7", &url("/a")]);
        assert_eq!(said["headers"]["x-route"], "shop", "{said}");
        assert_eq!(said["headers"]["x-side"], "inbound", "{said}");
        // The outbound sidecar says nothing about its application, and the inbound one reports the client that it sees.
        assert_eq!(said["headers"]["x-forwarded-for"], CLIENT, "{said}");
        let said = pods.client.ask(&["--http2-prior-knowledge", &url("/b")]);
        assert_eq!(
            (&said["headers"]["x-route"], &said["headers"]["x-side"]),
            (&Value::Null, &"inbound".into()),
            "{said}"
        );
        assert_eq!(pods.client.client(&["slow", SERVER, "8080"]), "HTTP/1.1 200 OK");
        let refused = pods.client.run(Command::new("curl").args([
            "-sS",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            &url("/secret"),
        ]));
        assert_eq!(refused.stdout, "403");

        // Large bodies, compared by their hash.
        let file = pods.client.scratch.path().join("body");
        std::fs::write(
            &file,
            (0..8_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect::<Vec<_>>(),
        )
        .unwrap();
        let sum = pods.client.run(Command::new("sha256sum").arg(&file)).stdout;
        for version in ["--http1.1", "--http2-prior-knowledge"] {
            let said = pods.client.ask(&[version, "--data-binary", &format!("@{}", file.display()), &url("/big")]);
            assert!(sum.starts_with(said["sha256"].as_str().unwrap()), "{said} {sum}");
        }
        // What is not HTTP is relayed to where it was going.
        assert!(pods.client.client(&["greeting", SERVER, "9000"]).starts_with("220 "));
        for host in [SERVER, SERVER_V6] {
            assert_eq!(pods.client.client(&["bulk", host, "9001", "4"]), (4 << 20).to_string());
        }
        // Both sides count by route.
        let metrics = pods.client.curl(&["http://127.0.0.1:9900/metrics"]).unwrap();
        let requests =
            |route: &str| testkit::prometheus::sum(&metrics, "steelyard_route_responses_total", &[("route", route)]);
        assert!(requests("shop") >= 2.0 && requests("other") >= 3.0, "{metrics}");

        // Other destinations are refused.
        assert_eq!(pods.client.client(&["silent", SERVER, "53000"]), "reset");
        pods.client.refuses("sidecar/outbound", "unknown_destination", 1);
        if Command::new("h2load").arg("--version").output().is_err() {
            return skip("captured_http_has_the_routes_of_its_listener", "h2load is not installed");
        }
        let load = pods.client.run(Command::new("h2load").args(["-n", "400", "-c", "4", "-m", "8", &url("/load")]));
        assert!(load.stdout.contains("400 succeeded"), "{load:?}\n{}", pods.client.explain());
    });
}

#[test]
fn grpc_is_captured() {
    with_pods("grpc_is_captured", |mut pods| {
        let origin = steelyard()
            .args(["origin", "grpc", "--listen", "0.0.0.0:50051"])
            .get_args()
            .map(ToOwned::to_owned)
            .collect::<Vec<_>>();
        let _origin = pods.server.netns.spawn("origin", steelyard().args(origin)).unwrap();
        let config = |bind: &str, endpoint: &str| {
            format!(
                "sidecar: {{}}
listeners: {{calls: {{bind: {bind}, protocol: detect, to: calls}}}}
clusters: {{calls: {{endpoints: ['{endpoint}'], protocol: h2c}}}}
"
            )
        };
        pods.server.add_sidecar(&config("{inbound: 50051}", "127.0.0.1:50051"));
        pods.client.add_sidecar(&config(&format!("{{outbound: '{SERVER}:50051'}}"), &format!("{SERVER}:50051")));
        let load = pods.client.run(steelyard().args([
            "load",
            "grpc",
            &format!("http://{SERVER}:50051"),
            "-n",
            "200",
            "-c",
            "2",
        ]));
        assert_eq!(load.exit, Exit::Code(0), "{load:?}");
        assert!(pods.client.listener("calls")["requests"].as_u64() >= Some(200), "{}", pods.client.explain());
        assert!(pods.server.listener("calls")["requests"].as_u64() >= Some(200), "{}", pods.server.explain());
    });
}

/// Certificates of both sides, in the folder of each pod.
fn certificates(pods: &Pods) -> Pki {
    let pki = Pki::new(&pods.server.scratch.path().join("pki"));
    pki.issue("shop", &[SHOP]);
    pki.issue("web", &[WEB]);
    pki.issue("other", &["spiffe://example.org/ns/else/sa/web"]);
    pki.issue("two", &[WEB, "spiffe://example.org/ns/shop/sa/second"]);
    pki
}

fn server_config(pki: &Pki, mode: &str) -> String {
    let file = |name: &str| pki.path(name).display().to_string();
    format!(
        "sidecar:
  inbound: {{mode: {mode}, exclude_ports: 53}}
  tls: {{certificate: {{cert: {}, key: {}}}, ca: {}, admit: 'spiffe://example.org/ns/shop/*'}}
listeners:
  app: {{bind: {{inbound: 8080}}, protocol: detect, to: app}}
clusters:
  app: {{endpoints: ['127.0.0.1:8080']}}
",
        file("shop.pem"),
        file("shop.key"),
        file("ca.pem")
    )
}

/// The client uses mutual TLS to ports 8080 and 9000, and expects this id there.
fn client_config(pki: &Pki, name: &str, expect: &str) -> String {
    let file = |name: &str| pki.path(name).display().to_string();
    format!(
        "sidecar:
  tls: {{certificate: {{cert: {}, key: {}}}, ca: {}, admit: 'spiffe://example.org/*'}}
listeners:
  shop: {{bind: {{outbound: '{SERVER}:8080'}}, protocol: detect, to: shop}}
  greets: {{bind: {{outbound: '{SERVER}:9000'}}, protocol: detect, to: greets}}
  returns: {{bind: {{outbound: '{SERVER}:9001'}}, protocol: tcp, to: returns}}
clusters:
  shop: {{endpoints: ['{SERVER}:8080'], spiffe_ids: '{expect}'}}
  greets: {{endpoints: ['{SERVER}:9000'], spiffe_ids: '{expect}'}}
  returns: {{endpoints: ['{SERVER}:9001'], spiffe_ids: '{expect}'}}
",
        file(&format!("{name}.pem")),
        file(&format!("{name}.key")),
        file("ca.pem")
    )
}

fn reload(pod: &mut Pod, config: &str) {
    let generation = pod.status()["generation"].as_u64().unwrap();
    pod.write(config);
    pod.sidecar.as_ref().unwrap().signal(Signal::HUP).unwrap();
    let newer = until(PATIENCE, || (pod.status()["generation"].as_u64() > Some(generation)).then_some(()));
    assert!(newer.is_some(), "{}", pod.sidecar.as_mut().unwrap().log());
}

#[test]
fn sidecars_know_each_other_by_their_certificates() {
    with_pods("sidecars_know_each_other_by_their_certificates", |mut pods| {
        let pki = certificates(&pods);
        pods.server.add_sidecar(&server_config(&pki, "permissive"));
        // A client without a sidecar.
        assert_eq!(pods.client.ask(&[&url("/plain")])["path"], "/plain");
        assert!(pods.client.client(&["greeting", SERVER, "9000"]).starts_with("220 "));
        pods.client.add_sidecar(&client_config(&pki, "web", SHOP));
        let mutual = |pods: &Pods| {
            for version in ["--http1.1", "--http2-prior-knowledge"] {
                assert_eq!(pods.client.ask(&[version, &url("/tls")])["path"], "/tls");
            }
            assert!(pods.client.client(&["greeting", SERVER, "9000"]).starts_with("220 "));
            assert_eq!(pods.client.client(&["bulk", SERVER, "9001", "16"]), (16 << 20).to_string());
        };
        mutual(&pods);

        reload(&mut pods.server, &server_config(&pki, "strict"));
        mutual(&pods);
        // The client's sidecar passes other destinations on as they are, and so does a client without one.
        let plain = pods.client.curl(&[&format!("http://[{SERVER_V6}]:8080/")]).unwrap_err();
        assert!(matches!(plain.exit, Exit::Code(52 | 56)), "{plain:?}");
        pods.server.refuses("app", "plain_text", 1);
        assert_eq!(pods.client.python(&["bulk", SERVER_V6, "9001", "1"]).exit, Exit::Code(1));
        pods.server.refuses("sidecar/inbound", "plain_text", 1);
        // The excluded port is open to all.
        assert_eq!(pods.client.client(&["greeting", SERVER, "53"]), format!("220 {CLIENT}"));

        // The server refuses other ids. A sidecar does not use a certificate with two.
        reload(&mut pods.client, &client_config(&pki, "other", SHOP));
        assert!(pods.client.curl(&[&url("/")]).is_err());
        pods.server.refuses("app", "spiffe_id", 1);
        let file = pods.client.write(&client_config(&pki, "two", SHOP));
        let checked = pods.client.run(steelyard().args(["check", "-c", &file]));
        assert!(checked.exit == Exit::Code(64) && checked.stderr.contains("exactly one URI"), "{checked:?}");
        // The client refuses a server with another id.
        reload(&mut pods.client, &client_config(&pki, "web", "spiffe://example.org/ns/shop/sa/else"));
        assert!(pods.client.curl(&[&url("/")]).is_err());
        pods.client.refuses("shop", "upstream_tls_name", 1);

        // A certificate that is replaced is used without a change of the file.
        reload(&mut pods.client, &client_config(&pki, "web", "spiffe://example.org/ns/shop/sa/second"));
        assert!(pods.client.curl(&[&url("/")]).is_err());
        pki.issue("shop", &["spiffe://example.org/ns/shop/sa/second"]);
        let works = until(PATIENCE, || pods.client.curl(&[&url("/")]).ok());
        assert!(works.is_some(), "{}", pods.client.explain());
    });
}

#[test]
fn tls_of_the_application_passes() {
    with_pods("tls_of_the_application_passes", |mut pods| {
        let pki = certificates(&pods);
        pki.issue("own", &["shop.example"]);
        let origin = pods.server.netns.inside(|| pki.origin_at(([0, 0, 0, 0], 8443).into(), "own", None));
        let config = server_config(&pki, "strict").replace(
            "clusters:",
            "  own: {bind: {inbound: 8443, mode: off}, protocol: tcp, to: own}\nclusters:\n  own: {endpoints: ['127.0.0.1:8443']}",
        );
        pods.server.add_sidecar(&config);
        pods.client.add_sidecar(&format!(
            "sidecar: {{outbound: {{unknown: refuse}}}}
listeners:
  by_name:
    bind: {{outbound: '*:8443'}}
    protocol: tls_passthrough
    routes: [{{sni: shop.example, to: shop}}]
clusters: {{shop: {{endpoints: ['{SERVER}:8443']}}}}
"
        ));
        let ca = pki.path("ca.pem").display().to_string();
        let resolve = format!("shop.example:8443:{SERVER}");
        let said =
            pods.client.curl(&["--http1.1", "--cacert", &ca, "--resolve", &resolve, "https://shop.example:8443/"]);
        assert!(said.is_ok(), "{said:?} {origin}");
    });
}

#[test]
fn a_pod_reaches_its_own_service() {
    with_pods("a_pod_reaches_its_own_service", |mut pods| {
        let pki = certificates(&pods);
        // The application connects to an address of a Service, whose only endpoint is its own pod.
        let config = server_config(&pki, "strict").replace(
            "clusters:",
            &format!("  own: {{bind: {{outbound: '10.96.0.20:80'}}, protocol: http, to: own}}\nclusters:\n  own: {{endpoints: ['{SERVER}:8080'], spiffe_ids: '{SHOP}'}}"),
        );
        pods.server.netns.ip(&format!("route add default via {CLIENT}")).unwrap();
        pods.server.add_sidecar(&config);
        assert_eq!(pods.server.ask(&["http://10.96.0.20/self"])["path"], "/self");
        assert_eq!(pods.server.connections("own"), 1);
        assert_eq!(pods.server.connections("app"), 1);
    });
}

#[test]
fn an_endpoint_at_the_address_of_the_pod_is_no_loop() {
    with_pods("an_endpoint_at_the_address_of_the_pod_is_no_loop", |mut pods| {
        pods.server.add_sidecar(&format!(
            "sidecar: {{}}
listeners:
  app: {{bind: {{inbound: 8080}}, protocol: detect, to: app}}
  greets: {{bind: {{inbound: 9000}}, protocol: tcp, to: greets}}
clusters:
  app: {{endpoints: ['{SERVER}:8080']}}
  greets: {{endpoints: ['[{SERVER_V6}]:9000']}}
"
        ));
        for _ in 0..2 {
            assert_eq!(pods.client.ask(&[&url("/")])["client"], "127.0.0.6");
        }
        assert_eq!(pods.client.client(&["greeting", SERVER, "9000"]), "220 ::1");
        assert_eq!(pods.server.connections("sidecar/inbound"), 3);
        assert_eq!(pods.server.connections("app"), 2);
        assert_eq!(pods.server.connections("greets"), 1);
    });
}

#[test]
fn what_happens_without_the_sidecar() {
    with_pods("what_happens_without_the_sidecar", |mut pods| {
        pods.server.add_sidecar("sidecar: {}\n");
        assert_eq!(pods.client.ask(&[&url("/")])["client"], "127.0.0.6");
        // It ends: nothing goes around it.
        let mut sidecar = pods.server.sidecar.take().unwrap();
        sidecar.signal(Signal::TERM).unwrap();
        assert_eq!(sidecar.exit_within(PATIENCE).unwrap(), Exit::Code(0));
        let refused = pods.client.curl(&[&url("/")]).unwrap_err();
        assert_eq!(refused.exit, Exit::Code(7), "{refused:?}");
        // It comes back.
        pods.server.start();
        assert_eq!(pods.client.ask(&[&url("/")])["client"], "127.0.0.6");

        // Without the rules, connections that were captured go on.
        let (mut inbound, _) = open(&pods);
        pods.client.add_sidecar("sidecar: {}\n");
        let (mut both, _) = open(&pods);
        let remove = |pod: &Pod, words: &[&str]| pod.run(steelyard().args(["sidecar", "init", "--remove"]).args(words));
        for pod in [&pods.server, &pods.client] {
            let said = remove(pod, &[]).stdout;
            assert!(said.starts_with("removed: new connections are no longer captured"), "{said}");
            assert_eq!(remove(pod, &[]).stdout.trim(), "nothing to remove: connections are not captured");
        }
        echo(&mut inbound);
        echo(&mut both);
        assert_eq!(pods.client.ask(&[&url("/")])["client"], CLIENT);
        let said = remove(&pods.server, &["--force"]).stdout;
        assert!(said.contains("are broken"), "{said}");
        assert_eq!(remove(&pods.server, &["--force"]).stdout.trim(), "nothing to remove: connections are not captured");
    });
}

/// Opens a connection to the application, which greets with the address of its client.
fn open(pods: &Pods) -> (BufReader<TcpStream>, String) {
    let stream = pods.client.netns.inside(|| TcpStream::connect((SERVER, 9000)).unwrap());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = BufReader::new(stream);
    let mut greeting = String::new();
    stream.read_line(&mut greeting).unwrap();
    (stream, greeting)
}

fn echo(stream: &mut BufReader<TcpStream>) {
    stream.get_mut().write_all(b"echo\r\n").unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert_eq!(line, "echo\r\n");
}

#[test]
fn connections_older_than_the_rules_stay() {
    with_pods("connections_older_than_the_rules_stay", |mut pods| {
        let (mut before, greeting) = open(&pods);
        assert_eq!(greeting.trim(), format!("220 {CLIENT}"));
        pods.client.add_sidecar("sidecar: {}\n");
        pods.server.add_sidecar("sidecar: {}\n");
        echo(&mut before);
        let (mut captured, greeting) = open(&pods);
        echo(&mut captured);
        assert_eq!(greeting.trim(), "220 127.0.0.6");
        // A packet far outside of the window of a captured connection, from its application: it must not leave in plain text, and the
        // connection must survive.
        let port = captured.get_ref().local_addr().unwrap().port().to_string();
        assert_eq!(pods.client.client(&["stray", SERVER, "9000", &port]), "not permitted");
        echo(&mut captured);
    });
}

#[test]
fn the_rules() {
    with_pods("the_rules", |pods| {
        let file = pods
            .server
            .write("sidecar: {inbound: {bind: ':16006', exclude_networks: [10.7.0.0/24, 'fd07::1']}, user: 4711}\n");
        let init = |words: &[&str]| pods.server.run(steelyard().args(["sidecar", "init", "-c", &file]).args(words));
        let printed = init(&["--print"]).stdout;
        assert!(printed.contains("redirect to :16006") && printed.contains("skuid 4711"), "{printed}");
        // Without rules, nothing is captured: `--print` has changed nothing.
        assert_eq!(pods.client.ask(&[&url("/")])["client"], CLIENT);
        for _ in 0..2 {
            assert_eq!(init(&[]).exit, Exit::Code(0));
        }
        // The clients of an excluded network reach the application itself.
        assert_eq!(pods.client.ask(&[&url("/")])["client"], CLIENT);
        assert_eq!(pods.client.ask(&[&format!("http://[{SERVER_V6}]:8080/")])["client"], "fd07::1");
        if Command::new("nft").arg("--version").output().is_ok() {
            let list = ["nft", "--numeric-priority", "list", "table", "inet", "steelyard_sidecar"];
            let ours = pods.server.netns.run(&list[..1].iter().chain(&list[2..]).copied().collect::<Vec<_>>()).unwrap();
            // The same rules, as nft makes them of the printed text.
            let path = pods.server.scratch.write("rules.nft", &printed);
            pods.client.netns.run(&["nft", "-f", &path]).unwrap();
            let theirs = pods.client.netns.run(&["nft", "list", "table", "inet", "steelyard_sidecar"]).unwrap();
            let rules = |text: &str| -> Vec<String> {
                let counted = |line: &str| line.split("counter packets").next().unwrap_or_default().trim().to_owned();
                text.lines().map(counted).collect()
            };
            assert_eq!(rules(&ours), rules(&theirs));
        }
        // An ordinary user may not.
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "1337", "--clear-groups"]).arg(steelyard().get_program());
        let refused = pods.server.run(command.args(["sidecar", "init", "-c", &file]));
        assert_eq!(refused.exit, Exit::Code(77), "{refused:?}");
        assert!(refused.stderr.contains("CAP_NET_ADMIN"), "{refused:?}");
        // A sidecar of the wrong user would loop.
        let wrong = pods.server.run(steelyard().args(["sidecar", "run", "-c", &file]));
        assert_eq!(wrong.exit, Exit::Code(64));
        assert!(wrong.stderr.contains("runs as user 0"), "{wrong:?}");
        let none = pods.server.scratch.write(
            "none.yaml",
            "listeners: {a: {bind: ':1', protocol: tcp, to: a}}\nclusters: {a: {endpoints: ['a:1']}}\n",
        );
        for words in [["sidecar", "run"], ["sidecar", "init"]] {
            let wrong = pods.server.run(steelyard().args(words).args(["-c", &none]));
            assert_eq!((wrong.exit, wrong.stderr.contains("has no `sidecar`")), (Exit::Code(64), true));
        }
    });
}

#[test]
fn the_example_is_served() {
    if !rustix::process::geteuid().is_root() {
        return skip("the_example_is_served", "network namespaces need root");
    }
    let mut pod = Pod::new("shop");
    let pki = Pki::new(&pod.scratch.path().join("tls"));
    pki.issue("shop", &[SHOP]);
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/sidecar.yaml");
    pod.scratch.write("sidecar.yaml", &std::fs::read_to_string(example).unwrap());
    pod.start();
    assert_eq!(pod.listener("payments")["bind"], "outbound 10.96.0.20:80");
    assert_eq!(pod.listener("sidecar/inbound")["protocol"], "capture");
}
