//! Who may use the admin address, with clients that are not ours: certificates with curl, rights that a reload takes away, and what an incident needs.
#![forbid(unsafe_code)]

mod support;
#[path = "support/tls.rs"]
mod tls;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use support::{Origin, Scratch, Steelyard, get, local, port, run, steelyard};
use testkit::{Exit, PATIENCE, Program, until};
use tls::Pki;

#[test]
fn certificates_have_roles() {
    let scratch = Scratch::new();
    let pki = |name: &str| Pki::new(&scratch.path().join(name));
    let (own, operators, other) = (pki("own"), pki("operators"), pki("other"));
    own.issue("admin", &["localhost", "127.0.0.1"]);
    operators.issue("ann", &["ann.test"]);
    operators.issue("graphs", &["graphs.test"]);
    operators.issue("eve", &["eve.test"]);
    other.issue("ann", &["ann.test"]);
    let path = |pki: &Pki, name: &str| pki.path(name).display().to_string();
    let config = format!(
        "admin: {{admin}}
admin_access:
  tls:
    certificates: [{{cert: {}, key: {}}}]
    client_ca: {}
  read: {{certificates: {{graphs: graphs.test}}, tokens: {{scraper: 0123456789abcdef}}}}
  act: {{certificates: {{ann: CN=ann}}}}
vips: {{}}
",
        path(&own, "admin.pem"),
        path(&own, "admin.key"),
        path(&operators, "ca.pem")
    );
    let (admin, folder) = (local(port()), Scratch::new());
    let file = folder.write("steelyard.yaml", &config.replace("{admin}", &admin.to_string()));
    let program = Program::spawn("steelyard", steelyard().args(["serve", "-c", &file, "--workers", "1"])).unwrap();
    let balancer = Secured { program, admin };
    let ask = |path: &str, shows: Option<(&Pki, &str)>, words: &[&str]| balancer.curl(&own, path, shows, words);
    let up = until(PATIENCE, || (ask("/readyz", None, &[]) == "200").then_some(()));
    assert!(up.is_some(), "not ready");
    let post = ["-X", "POST", "-H", "X-Steelyard-Admin: 1"];
    assert_eq!(ask("/status", Some((&operators, "graphs")), &[]), "200");
    assert_eq!(ask("/reload", Some((&operators, "graphs")), &post), "403");
    assert_eq!(ask("/reload", Some((&operators, "ann")), &post), "200");
    // A certificate that no role has, none, and a token instead of one.
    assert_eq!(ask("/status", Some((&operators, "eve")), &[]), "401");
    assert_eq!(ask("/status", None, &[]), "401");
    assert_eq!(ask("/status", None, &["-H", "Authorization: Bearer 0123456789abcdef"]), "200");
    assert_eq!(ask("/readyz", None, &[]), "200");
    // The same name by another authority.
    assert_eq!(ask("/status", Some((&other, "ann")), &[]), "no TLS");

    let url = format!("https://localhost:{}", admin.port());
    let (ca, cert, key) = (path(&own, "ca.pem"), path(&operators, "ann.pem"), path(&operators, "ann.key"));
    let finished = run(&["status", "--admin", &url, "--admin-ca", &ca, "--admin-cert", &cert, "--admin-key", &key]);
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    let refused = run(&["status", "--admin", &url, "--admin-ca", &path(&other, "ca.pem")]);
    assert!(refused.exit == Exit::Code(1) && refused.stderr.contains("UnknownIssuer"), "{}", refused.stderr);
    let plain = run(&["status", "--admin", &admin.to_string()]);
    assert!(
        plain.exit == Exit::Code(1) && plain.stderr.contains("expects TLS: write `--admin https://"),
        "{}",
        plain.stderr
    );
    certificates_change(&balancer, [&own, &operators, &other]);
    drop(balancer.program);
}

/// `ann` is the holder of certificates by two authorities, one of which is trusted.
fn certificates_change(balancer: &Secured, [own, operators, other]: [&Pki; 3]) {
    // The certificate is read again when it changes. That ends no stream.
    let mut viewer = balancer.watch(own, (operators, "ann"));
    own.issue("admin", &["localhost", "127.0.0.1", "renewed.test"]);
    let renewed = ["--resolve", &format!("renewed.test:{}:127.0.0.1", balancer.admin.port())].map(str::to_owned);
    let words: Vec<&str> = renewed.iter().map(String::as_str).collect();
    // The handshake is good, and the address does not know itself by this name.
    let has_new = || balancer.curl_at("renewed.test", own, "/readyz", None, &words) == "421";
    assert!(until(PATIENCE, || has_new().then_some(())).is_some(), "the old certificate stayed");
    viewer.goes_on(balancer.uptime(own, (operators, "ann")));
    // The end of a client's certificate does, and so does that of its CA.
    operators.issue_for("brief", &["graphs.test"], Duration::from_secs(4));
    let brief = balancer.watch(own, (operators, "brief"));
    brief.ends();
    viewer.goes_on(balancer.uptime(own, (operators, "ann")));
    operators.put("ca.pem", &std::fs::read_to_string(other.path("ca.pem")).unwrap());
    viewer.ends();
    assert_eq!(balancer.curl(own, "/status", Some((other, "ann")), &[]), "200");
    assert_eq!(balancer.curl(own, "/status", Some((operators, "ann")), &[]), "no TLS");
}

/// A process whose admin address has TLS.
struct Secured {
    program: Program,
    admin: std::net::SocketAddr,
}

/// A stream of events.
struct Viewer {
    curl: Child,
    lines: BufReader<ChildStdout>,
}

impl Viewer {
    /// An event comes that is later than this second of the process.
    fn goes_on(&mut self, after: u64) {
        let mut line = String::new();
        while uptime(&line).is_none_or(|seconds| seconds <= after) {
            line.clear();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the stream has ended");
        }
    }

    /// Ends, although nobody closes it here.
    fn ends(mut self) {
        self.lines.read_to_end(&mut Vec::new()).unwrap();
    }
}

fn uptime(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("\"uptime_seconds\":")?;
    rest.split(',').next()?.parse().ok()
}

impl Drop for Viewer {
    fn drop(&mut self) {
        // It has mostly ended.
        let _ = self.curl.kill();
        let _ = self.curl.wait();
    }
}

impl Secured {
    fn watch(&self, pki: &Pki, (of, name): (&Pki, &str)) -> Viewer {
        let mut command = Command::new("curl");
        command.args(["-s", "-N", "--max-time", "60", "--cacert"]).arg(pki.path("ca.pem"));
        command.arg("--cert").arg(of.path(&format!("{name}.pem"))).arg("--key").arg(of.path(&format!("{name}.key")));
        command.arg(format!("https://localhost:{}/events?overview=1", self.admin.port())).stdout(Stdio::piped());
        let mut curl = command.spawn().unwrap();
        let mut viewer = Viewer { lines: BufReader::new(curl.stdout.take().unwrap()), curl };
        viewer.goes_on(0);
        viewer
    }

    /// For how long the process runs, in seconds.
    fn uptime(&self, pki: &Pki, (of, name): (&Pki, &str)) -> u64 {
        let mut command = Command::new("curl");
        command.arg("-s").arg("--cacert").arg(pki.path("ca.pem"));
        command.arg("--cert").arg(of.path(&format!("{name}.pem"))).arg("--key").arg(of.path(&format!("{name}.key")));
        let output = command.arg(format!("https://localhost:{}/overview", self.admin.port())).output().unwrap();
        uptime(&String::from_utf8(output.stdout).unwrap()).unwrap()
    }

    fn curl(&self, pki: &Pki, path: &str, shows: Option<(&Pki, &str)>, words: &[&str]) -> String {
        self.curl_at("localhost", pki, path, shows, words)
    }

    /// The status, or that there was no TLS.
    fn curl_at(&self, host: &str, pki: &Pki, path: &str, shows: Option<(&Pki, &str)>, words: &[&str]) -> String {
        let mut command = Command::new("curl");
        command.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--cacert"]).arg(pki.path("ca.pem")).args(words);
        if let Some((pki, name)) = shows {
            let file = |kind: &str| pki.path(&format!("{name}.{kind}"));
            command.arg("--cert").arg(file("pem")).arg("--key").arg(file("key"));
        }
        let output = command.arg(format!("https://{host}:{}{path}", self.admin.port())).output().unwrap();
        let status = String::from_utf8(output.stdout).unwrap();
        if status == "000" { "no TLS".to_owned() } else { status }
    }
}

#[test]
fn commands_use_a_user_and_a_password() {
    // `letmein`.
    let users = "ann: '{SHA}t6h1/B6iKLkGEEG3zsS9PFKrPOM='";
    let (admin, folder) = (local(port()), Scratch::new());
    let config = format!(
        "admin: {admin}\nadmin_access: {{read: {{users: {{{users}}}}}, act: {{tokens: {{oncall: 0123456789abcdef}}}}}}\nvips: {{}}\n"
    );
    let file = folder.write("steelyard.yaml", &config);
    let mut program = Program::spawn("steelyard", steelyard().args(["serve", "-c", &file, "--workers", "1"])).unwrap();
    program.until("ready", || get(admin, "/readyz").filter(|response| response.status == 200)).unwrap();
    let admin = admin.to_string();
    let of = |command: &str, login: &[&str]| run(&[&[command, "--admin", &admin], login].concat());
    let (right, wrong) = (folder.write("right", "letmein\n"), folder.write("wrong", "letmein \n"));
    let ann = ["--admin-user", "ann", "--admin-password-file", &right];
    let finished = of("status", &ann);
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    let fails = |finished: testkit::Finished, code: i32, part: &str| {
        assert!(finished.exit == Exit::Code(code) && finished.stderr.contains(part), "{part}: {}", finished.stderr);
        assert!(!finished.stderr.contains("letmein"), "{}", finished.stderr);
    };
    fails(of("reload", &ann), 1, "may see everything and change nothing");
    fails(of("status", &["--admin-user", "ann", "--admin-password-file", &wrong]), 1, "is wrong");
    fails(of("status", &[]), 1, "--admin-password-file");
    fails(of("status", &["--admin-user", "ann"]), 2, "--admin-password-file");
    fails(of("status", &[&ann[..], &["--admin-token-file", &right]].concat()), 2, "cannot be used with");
    drop(program);
}

#[test]
fn a_reload_ends_the_streams_of_those_who_lose_their_right() {
    let file = |token: &str| {
        format!(
            "admin: {{admin}}\nadmin_access: {{read: {{tokens: {{viewer: {token}, stays: fedcba9876543210}}}}}}\nvips: {{}}\n"
        )
    };
    let (admin, folder) = (local(port()), Scratch::new());
    let write = |token: &str| folder.write("steelyard.yaml", &file(token).replace("{admin}", &admin.to_string()));
    let path = write("0123456789abcdef");
    let mut program = Program::spawn("steelyard", steelyard().args(["serve", "-c", &path, "--workers", "1"])).unwrap();
    program.until("ready", || get(admin, "/readyz").filter(|response| response.status == 200)).unwrap();
    let stream = |token: &str| {
        let mut stream = TcpStream::connect(admin).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!("GET /events?overview=1 HTTP/1.1\r\nHost: {admin}\r\nAuthorization: Bearer {token}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut begin = [0; 12];
        stream.read_exact(&mut begin).unwrap();
        assert_eq!(&begin, b"HTTP/1.1 200");
        stream
    };
    let (mut viewer, mut stays) = (stream("0123456789abcdef"), stream("fedcba9876543210"));
    write("aaaaaaaaaaaaaaaa");
    program.signal(testkit::Signal::HUP).unwrap();
    // Ends, although nobody closes it here.
    viewer.read_to_end(&mut Vec::new()).unwrap();
    let mut more = [0; 1];
    (0..4000).for_each(|_| stays.read_exact(&mut more).unwrap());
}

#[test]
fn an_incident_has_a_bundle_without_secrets_and_a_log_of_one_route() {
    let (web, origin) = (port(), Origin::start("web"));
    let config = |secret: &str| {
        format!(
            "admin: {{admin}}
listeners:
  web:
    bind: 127.0.0.1:{web}
    protocol: http
    routes:
      - {{name: a, path: /a, headers: {{x-pw: {secret}}}, to: web}}
      - {{path: /own, respond: {{body: {secret}, headers: {{x-own: {secret}}}}}}}
      - {{name: rest, request_headers: {{set: {{x-hop: {secret}}}}}, to: web}}
clusters:
  web: {{endpoints: ['{}']}}
",
            origin.address
        )
    };
    let mut steelyard = Steelyard::serve(&config("hunter2"), 1);
    let generation = steelyard.generation();
    steelyard.reload(&config("hunter3"), |status| status["generation"].as_u64() > Some(generation));
    steelyard.until("compared", |status| {
        status["about"]["changes"]["lines"].as_array().is_some_and(|lines| !lines.is_empty())
    });
    let finished = steelyard.ask(&["debug", "route", "rest", "--for", "5m"]);
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    assert_eq!(get(local(web), "/x?key=hunter2").map(|response| response.status), Some(200));
    let logged = steelyard.program.says("request of a route that is looked at").unwrap();
    assert!(logged.contains("route=\"rest\"") && !logged.contains("hunter"), "{logged}");

    let scratch = Scratch::new();
    let archive = scratch.path().join("bundle.tar.gz").display().to_string();
    let finished = steelyard.ask(&["debug", "bundle", "-o", &archive]);
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    let tar = |words: &[&str]| Command::new("tar").args(words).args(["-f", &archive]).output().unwrap().stdout;
    let names = String::from_utf8(tar(&["-tz"])).unwrap();
    for name in [
        "status.txt",
        "status.json",
        "configuration.txt",
        "changes.txt",
        "metrics.txt",
        "log.txt",
        "kernel-plane.json",
        "flows.json",
        "versions.txt",
    ] {
        assert!(names.contains(&format!("/{name}\n")), "{name}: {names}");
    }
    let text = String::from_utf8(tar(&["-xzO"])).unwrap();
    assert!(!text.contains("hunter"), "{:?}", text.lines().find(|line| line.contains("hunter")));
    assert!(text.contains("values that are not shown here") && text.contains("reloaded"), "{text}");
}
