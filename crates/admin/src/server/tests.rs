//! A real server on loopback, with the real client and with bare sockets.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Mutex;

use tokio::sync::oneshot;

use super::*;
use crate::{
    Access, ChangeRefused, Client, ClientError, Doubt, EndpointState, EndpointStatus, FlowStatus, Flows, Login, Proof,
    RefusedFor, Role, Status, TraceQuestion, TraceReport, TraceStep, User, Users, VipChange, Within, endpoint_path,
    flows_path, get, maintenance_path, post, trace_path, vip_add_path, vip_remove_path,
};

/// Answers as the test configured it, and records the requests.
#[derive(Default)]
struct Scripted {
    access: Access,
    feed: crate::Feed,
    refused: Mutex<Vec<RefusedFor>>,
    not_ready: Option<&'static str>,
    reload_errors: Option<&'static str>,
    drained: Mutex<Vec<(String, String, bool)>>,
    maintained: Mutex<Vec<(Option<String>, String, bool)>>,
    changes: Mutex<Vec<VipChange>>,
    /// Lines of the configuration besides one.
    lines: usize,
}

impl Control for Scripted {
    fn access(&self) -> Access {
        self.access.clone()
    }

    fn note_refused(&self, reason: RefusedFor) {
        self.refused.lock().unwrap().push(reason);
    }

    fn metrics(&self, format: telemetry::Exposition) -> Vec<u8> {
        telemetry::Registry::default().render(&[], format)
    }

    fn status(&self) -> Status {
        status()
    }

    fn counters(&self) -> crate::Counters {
        let [_, counters] = crate::counters::tests::before_and_now();
        counters
    }

    fn history(&self) -> (crate::Points, crate::Verdict) {
        (crate::Points::default(), crate::History::default().verdict())
    }

    fn overview(&self) -> crate::OverviewStatus {
        crate::OverviewStatus {
            version: crate::OVERVIEW_VERSION,
            host: "edge-1".into(),
            pid: 1,
            uptime_seconds: 2,
            started_ms: 0,
            generation: 3,
            verdict: crate::History::default().verdict(),
            point: crate::Point::default(),
            so_far: crate::SoFar::default(),
        }
    }

    fn feed(&self) -> Option<&crate::Feed> {
        Some(&self.feed)
    }

    fn explain(&self, question: &crate::RouteQuestion) -> Result<crate::RouteReport, String> {
        Err(format!("{question:?}"))
    }

    fn debug_route(&self, route: &str, seconds: u64) -> Result<(), String> {
        if route == "/" && seconds == 60 { Ok(()) } else { Err(format!("no such route: {route}")) }
    }

    fn log_lines(&self) -> String {
        "a line\n".to_owned()
    }

    fn configuration(&self) -> String {
        "a listener\n".repeat(self.lines + 1)
    }

    fn ready(&self) -> Result<(), String> {
        self.not_ready.map_or(Ok(()), |why| Err(why.to_owned()))
    }

    fn reload(&self) -> Pin<Box<dyn Future<Output = Result<u64, String>> + Send + '_>> {
        Box::pin(async {
            tokio::task::yield_now().await;
            self.reload_errors.map_or(Ok(8), |errors| Err(errors.to_owned()))
        })
    }

    fn set_draining(&self, within: Within<'_>, endpoint: &str, draining: bool) -> Result<usize, String> {
        self.drained.lock().unwrap().push((format!("{within:?}"), endpoint.to_owned(), draining));
        if endpoint == "10.0.0.7:80" { Ok(2) } else { Err(format!("no cluster has an endpoint {endpoint}")) }
    }

    fn set_maintenance(&self, listener: Option<&str>, route: &str, on: bool) -> Result<usize, String> {
        self.maintained.lock().unwrap().push((listener.map(str::to_owned), route.to_owned(), on));
        if route == "GET /shop" { Ok(1) } else { Err(format!("no such route: {route}")) }
    }

    fn change_vips(&self, change: VipChange) -> Pin<Box<dyn Future<Output = Result<u64, ChangeRefused>> + Send + '_>> {
        Box::pin(async {
            self.changes.lock().unwrap().push(change.clone());
            match change {
                VipChange::Add { .. } => Ok(9),
                VipChange::Remove { name } => Err(ChangeRefused::Bad(format!("{name} comes from the file"))),
                VipChange::Detach => Err(ChangeRefused::HostCannot("no kernel plane".to_owned())),
            }
        })
    }

    fn flows(&self, vip: Option<&str>, limit: usize) -> Result<Flows, String> {
        let flow = FlowStatus {
            vip: vip.ok_or("there is no such vip")?.to_owned(),
            protocol: "tcp".into(),
            client: "10.0.0.1:40000".into(),
            address: "192.0.2.1:80".into(),
            endpoint: "10.0.0.7:80".into(),
            state: "established".into(),
            age_seconds: limit as u64,
            idle_seconds: Some(0),
        };
        Ok(Flows { version: crate::STATUS_VERSION, flows: vec![flow], more: false })
    }

    fn trace(&self, question: &TraceQuestion) -> Result<TraceReport, String> {
        let text = format!("{question:?}");
        let steps = vec![TraceStep { stage: "vip".into(), text }];
        Ok(TraceReport { version: crate::STATUS_VERSION, steps, forwarded: true, verdict: "forwarded".into() })
    }
}

fn status() -> Status {
    let endpoint = EndpointStatus {
        address: "127.0.0.1:9001".into(),
        weight: 1,
        priority: 0,
        zone: crate::ZoneStatus::Unknown,
        state: EndpointState::Ejected,
        why: Some("5 failures in a row".into()),
        in_flight: 0,
        connections: 1,
        requests: 2,
        failures: 3,
        upstream_us: None,
        cause: crate::EndpointCause::default(),
        recent: crate::EndpointRecent::default(),
        latest: crate::EndpointRecent::default(),
    };
    let cluster = model::Cluster::new("web", Vec::new());
    let totals = telemetry::Totals::default();
    Status {
        version: crate::STATUS_VERSION,
        steelyard: "0.1.0".into(),
        pid: 1,
        workers: 2,
        unix_seconds: 3,
        uptime_seconds: 4,
        generation: 5,
        ending: false,
        draining: false,
        findings: Vec::new(),
        missing_files: Vec::new(),
        invalid_certificates: Vec::new(),
        open_files: None,
        open_files_max: None,
        memory: 40 << 20,
        memory_max: Some(1 << 30),
        last_reload: Some(crate::Reload { unix_seconds: 6, ok: false, errors: vec!["no".into()] }),
        listeners: Vec::new(),
        routes: Vec::new(),
        password_checks: None,
        key_sets: Vec::new(),
        methods: Vec::new(),
        clusters: vec![crate::ClusterStatus::new(&cluster, &totals, crate::Turn::default(), vec![endpoint])],
        kernel_plane: None,
        vips: Vec::new(),
        maintenance: Vec::new(),
        access_log: None,
        vips_left: false,
        service_faults: Vec::new(),
        about: crate::AboutStatus::default(),
        kernel_refusal: None,
        stalled_workers: Vec::new(),
    }
}

/// A server on a thread of its own, which ends when this is dropped.
struct Server {
    address: SocketAddr,
    control: Arc<Scripted>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    fn start(control: Scripted, limits: Limits) -> Self {
        let control = Arc::new(control);
        let (stop, stopped) = oneshot::channel();
        let (bound, address) = std::sync::mpsc::channel();
        let answers = Arc::clone(&control);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                bound.send(listener.local_addr().unwrap()).unwrap();
                tokio::select! {
                    () = serve_with(Watched::Tcp(listener), answers, Pages::All, limits) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address: address.recv().unwrap(), control, stop: Some(stop), thread: Some(thread) }
    }

    /// Returns all bytes of the response to these bytes.
    fn raw(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn connect(&self) -> std::net::TcpStream {
        std::net::TcpStream::connect(self.address).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

fn text(answer: Result<Vec<u8>, ClientError>) -> Result<String, String> {
    answer.map(|body| String::from_utf8(body).unwrap()).map_err(|error| error.to_string())
}

#[test]
fn every_page_answers() {
    let server = Server::start(Scripted::default(), LIMITS);
    let page = |path| text(get(&server.address.into(), path)).unwrap();
    assert_eq!(page("/healthz"), "ok\n");
    assert_eq!(page("/readyz"), "ok\n");
    assert!(page("/metrics").contains("\nprocess_cpu_seconds_total "));
    let index = page("/");
    for path in ["/metrics", "/healthz", "/readyz", "/status", "/reload", "/endpoint/drain", "/endpoint/ready"] {
        assert!(index.contains(&format!("<code>{path}</code>")), "{path}");
    }
    assert_eq!(text(post(&server.address.into(), "/reload", "")), Ok("{\"generation\":8}\n".into()));
    assert_eq!(
        text(get(&server.address.into(), "/nothing")).unwrap_err().split(';').next(),
        Some("there is no \"/nothing\" here")
    );
    assert_eq!(text(get(&server.address.into(), "/reload")), Err("/reload takes POST".into()));
    assert_eq!(text(post(&server.address.into(), "/status", "")), Err("/status takes GET, HEAD".into()));
}

#[test]
fn the_status_survives_the_way() {
    let server = Server::start(Scripted::default(), LIMITS);
    assert_eq!(Status::parse(&get(&server.address.into(), "/status").unwrap()), Ok(status()));
}

#[test]
fn other_statuses_are_told_apart() {
    let check = |json: &str, expect: &str| {
        let error = Status::parse(json.as_bytes()).unwrap_err();
        assert!(error.starts_with(expect), "{json}: {error}");
    };
    check("{\"version\":1}", "the running Steelyard reports its status in version 1, but this program reads version 2");
    check("{\"version\":2}", "this is not the status of a Steelyard: missing field");
    check("<html>", "this is not the status of a Steelyard: ");
    let newer = serde_json::to_string(&status()).unwrap().replacen('{', "{\"mood\":\"good\",", 1);
    assert_eq!(Status::parse(newer.as_bytes()), Ok(status()));
}

#[test]
fn no_is_said_with_its_cause() {
    let control = Scripted {
        not_ready: Some("draining"),
        reload_errors: Some("file:1:1: bad\nfile:2:1: worse"),
        ..Scripted::default()
    };
    let server = Server::start(control, LIMITS);
    let status = |answer| match answer {
        Err(ClientError::Refused { status, why }) => (status, why),
        other => panic!("{other:?}"),
    };
    assert_eq!(status(get(&server.address.into(), "/readyz")), (503, "draining".into()));
    assert_eq!(status(post(&server.address.into(), "/reload", "")), (422, "file:1:1: bad\nfile:2:1: worse".into()));
    assert_eq!(status(post(&server.address.into(), "/endpoint/drain", "")).0, 400);
    assert_eq!(
        status(post(&server.address.into(), &endpoint_path(Within::All, "10.9.9.9:1", true), "")),
        (404, "no cluster has an endpoint 10.9.9.9:1".into())
    );
}

#[test]
fn endpoints_are_drained_and_taken_back() {
    let server = Server::start(Scripted::default(), LIMITS);
    let ask =
        |within, draining| text(post(&server.address.into(), &endpoint_path(within, "10.0.0.7:80", draining), ""));
    assert_eq!(ask(Within::All, true), Ok("{\"endpoints\":2}\n".into()));
    assert_eq!(ask(Within::Cluster("a&b"), false), Ok("{\"endpoints\":2}\n".into()));
    assert_eq!(ask(Within::Vip("web"), true), Ok("{\"endpoints\":2}\n".into()));
    let both = "/endpoint/drain?endpoint=10.0.0.7:80&cluster=a&vip=b";
    assert!(text(post(&server.address.into(), both, "")).unwrap_err().contains("name one of them"));
    let asked = server.control.drained.lock().unwrap();
    let expect = [("All", true), (r#"Cluster("a&b")"#, false), (r#"Vip("web")"#, true)];
    assert_eq!(*asked, expect.map(|(within, draining)| (within.to_owned(), "10.0.0.7:80".to_owned(), draining)));
}

#[test]
fn routes_go_into_maintenance_and_back() {
    let server = Server::start(Scripted::default(), LIMITS);
    let ask = |listener, on| text(post(&server.address.into(), &maintenance_path(listener, "GET /shop", on), ""));
    assert_eq!(ask(None, true), Ok("{\"routes\":1}\n".into()));
    assert_eq!(ask(Some("web"), false), Ok("{\"routes\":1}\n".into()));
    assert!(text(post(&server.address.into(), "/maintenance/on", "")).unwrap_err().contains("name the route"));
    let unknown = text(post(&server.address.into(), &maintenance_path(None, "x", true), ""));
    assert!(unknown.unwrap_err().contains("no such route: x"));
    let asked = server.control.maintained.lock().unwrap();
    let expect = [(None, "GET /shop", true), (Some("web"), "GET /shop", false), (None, "x", true)];
    assert_eq!(*asked, expect.map(|(listener, route, on)| (listener.map(str::to_owned), route.to_owned(), on)));
}

#[test]
fn vips_come_and_go() {
    let server = Server::start(Scripted::default(), LIMITS);
    let document = "{address: 192.0.2.1:80/tcp}\nü";
    assert_eq!(text(post(&server.address.into(), &vip_add_path("web"), document)), Ok("{\"generation\":9}\n".into()));
    let refused = |path: &str, body: &str| match post(&server.address.into(), path, body) {
        Err(ClientError::Refused { status, why }) => (status, why),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&vip_remove_path("dns"), ""), (422, "dns comes from the file".into()));
    assert_eq!(refused("/vip/detach", ""), (501, "no kernel plane".into()));
    assert_eq!(refused("/vip/add", "").0, 400);
    let (status, why) = refused(&vip_add_path("web"), &"x".repeat((1 << 20) + 1));
    assert!(status == 400 && why.contains("length limit exceeded"), "{status} {why}");
    let asked = server.control.changes.lock().unwrap();
    let add = VipChange::Add { name: "web".into(), document: document.into() };
    assert_eq!(*asked, [add, VipChange::Remove { name: "dns".into() }, VipChange::Detach]);
}

#[test]
fn flows_and_traces() {
    let server = Server::start(Scripted::default(), LIMITS);
    let flows: Flows =
        serde_json::from_slice(&get(&server.address.into(), &flows_path(Some("web"), 7)).unwrap()).unwrap();
    assert_eq!(flows.flows.iter().map(|flow| (flow.vip.as_str(), flow.age_seconds)).collect::<Vec<_>>(), [("web", 7)]);
    assert_eq!(text(get(&server.address.into(), "/flows")), Err("there is no such vip".into()));
    assert!(text(get(&server.address.into(), "/flows?vip=web&limit=0")).unwrap_err().contains("from 1 to 100000"));

    let question =
        TraceQuestion { vip: "web".into(), from: "[fd00::1]:5".into(), interface: Some("eth0".into()), flags: None };
    let report: TraceReport =
        serde_json::from_slice(&get(&server.address.into(), &trace_path(&question)).unwrap()).unwrap();
    assert_eq!(report.steps.iter().map(|step| step.text.as_str()).collect::<Vec<_>>(), [format!("{question:?}")]);
    assert!(text(get(&server.address.into(), "/trace?vip=web")).unwrap_err().contains("`from` is missing"));
}

#[test]
fn web_pages_are_refused() {
    let server = Server::start(Scripted::default(), LIMITS);
    let check = |request: &str, expect: &str| {
        let answer = server.raw(request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {expect}")), "{request:?}: {answer}");
        answer
    };
    check("POST /reload HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3\r\n\r\na=b", "403");
    check("POST /reload HTTP/1.1\r\nHost: evil.example\r\nX-Steelyard-Admin: 1\r\n\r\n", "421");
    check("GET /status HTTP/1.1\r\nHost: evil.example\r\n\r\n", "421");
    check("POST /reload HTTP/1.1\r\nHost: localhost:9900\r\nX-Steelyard-Admin: 1\r\n\r\n", "200");
    let preflight = check("OPTIONS /reload HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n", "405");
    assert!(preflight.contains("\r\nallow: POST\r\n") && !preflight.contains("access-control"), "{preflight}");
    let head = check("HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "200");
    assert!(head.ends_with("\r\n\r\n") && head.contains("\r\ncache-control: no-store\r\n"), "{head}");
    check("nonsense\r\n\r\n", "400");
    let long = "a".repeat(2 * HEADER_BYTES_MAX);
    check(&format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {long}\r\n\r\n"), "431");
}

#[test]
fn a_client_that_says_nothing_loses_its_place() {
    let limits = Limits { connections_max: 1, header_timeout: Duration::from_millis(20), ..LIMITS };
    let server = Server::start(Scripted::default(), limits);
    let mut silent = server.connect();
    // This connection waits for a slot and gets it only after the other one is closed.
    assert_eq!(text(get(&server.address.into(), "/healthz")), Ok("ok\n".into()));
    silent.set_nonblocking(true).unwrap();
    let mut rest = Vec::new();
    assert!(silent.read_to_end(&mut rest).is_ok(), "the first connection is still open");
}

#[test]
fn what_is_not_steelyard_is_told_apart() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // Read first: closing with unread bytes would reset the connection.
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            request.push(byte[0]);
        }
        stream.write_all(b"220 mail.example ESMTP\r\n").unwrap();
    });
    let error = text(get(&address.into(), "/status")).unwrap_err();
    assert_eq!(
        error,
        format!("what listens on {address} does not respond as steelyard does: is this the address of `admin:`?")
    );
    other.join().unwrap();
    // The listener is gone with its thread.
    let error = text(get(&address.into(), "/status")).unwrap_err();
    assert_eq!(
        error,
        format!("nothing listens on {address}: is steelyard running, and does its file have `admin: {address}`?")
    );
}

/// One who may read, and one who may act.
struct Two;

impl Users for Two {
    fn known(&self, proof: &Proof) -> Option<User> {
        let (name, role) = match proof {
            Proof::Token(token) if token == b"0123456789abcdef" => ("graphs", Role::Read),
            Proof::Token(token) if token == b"fedcba9876543210" => ("oncall", Role::Act),
            _ => return None,
        };
        Some(User { name: Some(name.to_owned()), role })
    }

    fn identify<'u>(&'u self, proof: &'u Proof) -> Pin<Box<dyn Future<Output = Result<User, Doubt>> + Send + 'u>> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            match proof {
                Proof::Password { user, password } if user == "ann" && password == b"secret" => {
                    Ok(User { name: Some("ann".to_owned()), role: Role::Act })
                }
                _ => Err(Doubt::Wrong),
            }
        })
    }
}

#[test]
fn users_prove_who_they_are_and_have_roles() {
    let access = Access { users: Some(Arc::new(Two)), ..Access::default() };
    let server = Server::start(Scripted { access, ..Scripted::default() }, LIMITS);
    let check = |method: &str, path: &str, proof: &str, expect: &str| {
        let proof = if proof.is_empty() { String::new() } else { format!("Authorization: {proof}\r\n") };
        let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-Steelyard-Admin: 1\r\n{proof}\r\n");
        let answer = server.raw(&request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {expect}")), "{request:?}: {answer}");
        answer
    };
    let refused = check("GET", "/status", "", "401");
    assert!(refused.contains("\r\nwww-authenticate: Basic realm=\"Steelyard\", charset=\"UTF-8\"\r\n"), "{refused}");
    assert!(
        refused.contains("\r\nx-frame-options: DENY\r\n") && refused.contains("frame-ancestors 'none'"),
        "{refused}"
    );
    check("GET", "/healthz", "", "200");
    check("GET", "/readyz", "", "200");
    check("GET", "/metrics", "", "401");
    check("GET", "/metrics", "Bearer 0123456789abcdef", "200");
    check("POST", "/reload", "Bearer 0123456789abcdef", "403");
    check("POST", "/reload", "Bearer fedcba9876543210", "200");
    // `ann:secret`, and one letter more.
    check("POST", "/reload", "Basic YW5uOnNlY3JldA==", "200");
    check("POST", "/reload", "Basic YW5uOnNlY3JldHM=", "401");
    use RefusedFor::{Missing, Role, Wrong};
    assert_eq!(*server.control.refused.lock().unwrap(), [Missing, Missing, Role, Wrong]);
    let secret = |text: &str| model::Secret(text.into());
    for login in [Login::Token(secret("fedcba9876543210")), Login::Password("ann".into(), secret("secret"))] {
        let client = Client { login: Some(login), ..server.address.into() };
        assert_eq!(text(post(&client, "/reload", "")), Ok("{\"generation\":8}\n".into()));
    }
}

#[test]
fn an_address_that_is_often_wrong_is_not_looked_at() {
    let access = Access { users: Some(Arc::new(Two)), ..Access::default() };
    let server = Server::start(Scripted { access, ..Scripted::default() }, LIMITS);
    let ask = |token: &str| {
        let request = format!("GET /status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n");
        server.raw(&request)[9..12].to_owned()
    };
    let answers: Vec<String> = (0..50).map(|_| ask("wrong")).collect();
    assert_eq!(answers[..10], vec!["401"; 10]);
    // Even if the host is so slow that one more may be tried.
    assert!(answers[10..].iter().filter(|status| *status == "429").count() > 30, "{answers:?}");
    assert!(server.control.refused.lock().unwrap().contains(&RefusedFor::TooOften));
    // Those who know a token share the address with the guesser.
    assert_eq!(ask("0123456789abcdef"), "200");
}

#[test]
fn many_right_passwords_at_a_time_are_all_taken() {
    let access = Access { users: Some(Arc::new(Two)), ..Access::default() };
    let server = Server::start(Scripted { access, ..Scripted::default() }, LIMITS);
    let request = "GET /status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic YW5uOnNlY3JldA==\r\n\r\n";
    let mut streams: Vec<_> = (0..12).map(|_| server.connect()).collect();
    streams.iter_mut().for_each(|stream| stream.write_all(request.as_bytes()).unwrap());
    for mut stream in streams {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[test]
fn idle_connections_starve_nobody() {
    let access = Access { users: Some(Arc::new(Two)), ..Access::default() };
    // So long that the test would not end if anybody waited for it.
    let limits = Limits { header_timeout: Duration::from_secs(600), ..LIMITS };
    let server = Server::start(Scripted { access, ..Scripted::default() }, limits);
    let mut idle: Vec<_> = (0..200).map(|_| server.connect()).collect();
    assert_eq!(text(get(&server.address.into(), "/readyz")), Ok("ok\n".into()));
    // All but the newest of the address have ended, and with the last one, so has another.
    let mut rest = Vec::new();
    for stream in &mut idle[..200 - LIMITS.of_address_max + 1] {
        assert_eq!(stream.read_to_end(&mut rest).unwrap_or_default(), 0);
    }
    let newest = idle.last_mut().unwrap();
    newest.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    newest.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.get(8..12), Some(b" 200".as_slice()));
}

/// Admits nobody.
struct Nobody;
impl Users for Nobody {
    fn known(&self, _: &Proof) -> Option<User> {
        None
    }

    fn identify<'u>(&'u self, _: &'u Proof) -> Pin<Box<dyn Future<Output = Result<User, Doubt>> + Send + 'u>> {
        Box::pin(async { Err(Doubt::Wrong) })
    }
}

#[test]
fn those_who_may_see_everything_keep_their_places() {
    let access = Access { users: Some(Arc::new(Two)), ..Access::default() };
    let limits = Limits { connections_max: 2, ..LIMITS };
    let server = Server::start(Scripted { access, ..Scripted::default() }, limits);
    let mut viewer = server.connect();
    let token = "Authorization: Bearer 0123456789abcdef";
    write!(viewer, "GET /events?overview=1 HTTP/1.1\r\nHost: localhost\r\n{token}\r\n\r\n").unwrap();
    let mut head = [0; 12];
    viewer.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    let _idle: Vec<_> = (0..20).map(|_| server.connect()).collect();
    assert_eq!(text(get(&server.address.into(), "/readyz")), Ok("ok\n".into()));
    assert_eq!(server.control.feed.counts().viewers, 1);
    // Until the configuration takes the right away. Then the connection ends at once, although its response has no end.
    server.control.feed.review(&Access { users: Some(Arc::new(Nobody)), ..Access::default() });
    viewer.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(server.control.feed.counts().ended_access, 1);
}

/// A response of 11 MB, more than the buffers of a socket hold.
const MANY_LINES: usize = 1_000_000;

#[test]
fn clients_that_do_not_read_keep_nobody_out() {
    let access = Access { users: Some(Arc::new(Two)), ..Access::default() };
    // So long that the test would not end if anybody waited for them. There is memory for two responses.
    let limits = Limits {
        connections_max: 4,
        connection_timeout: Duration::from_secs(600),
        waiting_bytes_max: 25_000_000,
        ..LIMITS
    };
    let server = Server::start(Scripted { access, lines: MANY_LINES, ..Scripted::default() }, limits);
    let ask = || {
        let mut stream = server.connect();
        let token = "Authorization: Bearer 0123456789abcdef";
        write!(stream, "GET /debug/configuration HTTP/1.0\r\nHost: localhost\r\n{token}\r\n\r\n").unwrap();
        stream
    };
    let mut deaf: Vec<_> = (0..4).map(|_| ask()).collect();
    // The first responses are there, and nobody reads them.
    deaf[..2].iter_mut().for_each(|stream| stream.read_exact(&mut [0; 1]).unwrap());
    for _ in 0..10 {
        assert_eq!(text(get(&server.address.into(), "/readyz")), Ok("ok\n".into()));
    }
    deaf.extend((0..2).map(|_| ask()));
    // One that reads gets all of its response, whatever they do.
    let mut whole = Vec::new();
    ask().read_to_end(&mut whole).unwrap();
    assert!(whole.ends_with(b"a listener\n") && whole.len() > 11 * MANY_LINES, "{}", whole.len());
    // Others have lost theirs.
    let is_cut = |stream: &mut std::net::TcpStream| {
        let mut rest = Vec::new();
        !(stream.read_to_end(&mut rest).is_ok() && rest.len() >= 11 * MANY_LINES)
    };
    assert!(deaf.iter_mut().take(4).any(is_cut));
}

#[test]
fn slow_bodies_keep_nobody_out() {
    let limits = Limits { connections_max: 4, body_timeout: Duration::from_secs(600), ..LIMITS };
    let server = Server::start(Scripted::default(), limits);
    let ask = |server: &Server, path: &str| {
        let mut stream = server.connect();
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nX-Steelyard-Admin: 1\r\nContent-Length: 9\r\n");
        stream.write_all(format!("{head}\r\na").as_bytes()).unwrap();
        stream
    };
    let _slow: Vec<_> = (0..8).map(|number| ask(&server, ["/vip/add?name=a", "/do"][number % 2])).collect();
    assert_eq!(text(get(&server.address.into(), "/readyz")), Ok("ok\n".into()));
    assert_eq!(text(post(&server.address.into(), &vip_add_path("web"), "{}")), Ok("{\"generation\":9}\n".into()));
    // Nor do they last.
    let limits = Limits { body_timeout: Duration::from_millis(20), ..LIMITS };
    let server = Server::start(Scripted::default(), limits);
    for path in ["/vip/add?name=a", "/do"] {
        let mut answer = String::new();
        ask(&server, path).read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("to arrive"), "{answer}");
    }
}
