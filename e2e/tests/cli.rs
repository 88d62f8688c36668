//! The command line from the view of a new user: what it prints, on which stream, and with which exit code it ends.
#![forbid(unsafe_code)]

mod support;
#[path = "support/tls.rs"]
mod tls;

use std::net::TcpListener;
use std::path::Path;

use serde_json::Value;
use support::{Origin, Scratch, Steelyard, local, port, run, steelyard};
use testkit::strict::ResponseTo;
use testkit::{Exit, Finished, PATIENCE, Program, Signal, until};
use tls::Pki;

#[track_caller]
fn check(words: &[&str], exit: i32, expect: &[&str]) -> Finished {
    let finished = run(words);
    // Errors go to standard error, so that they are not lost in a pipe.
    let said = if exit == 0 { &finished.stdout } else { &finished.stderr };
    assert_eq!(finished.exit, Exit::Code(exit), "{words:?}: {finished:?}");
    for text in expect {
        assert!(said.contains(text), "{words:?} does not print {text:?}, but:\n{said}");
    }
    let other = if exit == 0 { &finished.stderr } else { &finished.stdout };
    assert_eq!(other, "", "{words:?} printed to the wrong stream");
    finished
}

fn minimal(listen: &str, admin: &str) -> String {
    format!(
        "admin: {admin}
listeners:
  web: {{bind: '{listen}', protocol: http, to: app}}
clusters:
  app: {{endpoints: ['127.0.0.1:9']}}
"
    )
}

#[test]
fn usage() {
    check(&[], 2, &["Usage: steelyard <COMMAND>", "serve", "An HTTP, gRPC, TCP and eBPF load balancer"]);
    check(&["blance"], 2, &["unrecognized subcommand 'blance'"]);
    check(&["serv"], 2, &["'serve'"]);
    check(&["serve"], 2, &["--config <FILE>"]);
    check(&["serve", "-c", "x", "--workers", "0"], 2, &["--workers"]);
    check(&["proxy", "--listen", ":8080"], 2, &["--to <ENDPOINTS>"]);
    check(&["proxy", "--listen", "8080", "--to", "127.0.0.1:9001"], 2, &["8080", "--listen <ADDRESS>"]);
    check(&["--version"], 0, &["steelyard 0."]);
    check(
        &["--help"],
        0,
        &[
            "demo", "proxy", "serve", "check", "schema", "status", "top", "reload", "endpoint", "vip", "flows",
            "trace", "origin", "load",
        ],
    );
}

#[test]
fn a_bad_file() {
    let scratch = Scratch::new();
    let bad =
        minimal("127.0.0.1:80800", "127.0.0.1:9900").replace("to: app", "to: ap").replace("endpoints", "endpoint");
    let file = scratch.write("bad.yaml", &bad);
    let places = [
        format!("{file}:3:15: "), // the port
        format!("{file}:3:54: "), // a missing cluster
        format!("{file}:5:9: "),  // an unknown key
        "did you mean `endpoints`?".to_owned(),
    ];
    let expect: Vec<&str> = places.iter().map(String::as_str).collect();
    check(&["check", "-c", &file], 64, &expect);
    // Before any port is opened.
    check(&["serve", "-c", &file], 64, &expect);

    let good = scratch.write("good.yaml", &minimal("127.0.0.1:8080", "127.0.0.1:9900"));
    check(&["check", "-c", &good], 0, &["good (1 listener, 1 cluster)"]);
    let missing = scratch.path().join("missing.yaml").display().to_string();
    for command in ["check", "serve"] {
        check(&[command, "-c", &missing], 64, &["cannot read ", &missing, "No such file"]);
        check(&[command, "-c", &scratch.path().display().to_string()], 64, &["directory"]);
    }
    let empty = scratch.write("empty.yaml", "");
    check(&["check", "-c", &empty], 64, &["empty.yaml:1:1: "]);
}

#[test]
fn a_path_that_cannot_be_made() {
    let scratch = Scratch::new();
    // A directory of the kernel's, where root cannot make a file either.
    let good = minimal("127.0.0.1:8080", "127.0.0.1:9900");
    let log = scratch.write("log.yaml", &format!("access_log: /proc/none/access.log\n{good}"));
    check(
        &["serve", "-c", &log],
        77,
        &["access_log: cannot write to /proc/none/access.log: ", "make its directory first"],
    );
    let socket = scratch.write("socket.yaml", &good.replace("127.0.0.1:9900", "unix:/proc/none/admin.sock"));
    check(
        &["serve", "-c", &socket],
        77,
        &["admin: cannot listen on unix:/proc/none/admin.sock: ", "make its directory first"],
    );
}

#[test]
fn the_admin_address_of_another_program() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let commands = ["status", "top", "reload", "flows"];
    let server = std::thread::spawn(move || {
        for _ in commands {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let answer =
                b"HTTP/1.0 501 Not Implemented\r\nContent-Type: text/html\r\nContent-Length: 7\r\n\r\n<p>no\r\n";
            stream.write_all(answer).unwrap();
        }
    });
    for command in commands {
        let expect = format!("steelyard: what listens on {address} does not respond as steelyard does");
        check(&[command, "--admin", &address], 1, &[&expect, "`admin:`"]);
    }
    server.join().unwrap();
}

#[test]
fn certificates_and_keys_that_are_wrong() {
    let scratch = Scratch::new();
    let pki = Pki::new(&scratch.path().join("tls"));
    pki.issue("www", &["www.example.com"]);
    pki.issue("api", &["api.example.com"]);
    pki.put("bad.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n");
    let config = |pair: &str| {
        let text =
            minimal("127.0.0.1:8443", "127.0.0.1:9900").replace("http, ", "https, tls: {certificates: [{pair}]}, ");
        scratch.write("tls.yaml", &text.replace("{pair}", pair))
    };
    let says = |pair: &str, place: &str, expect: &str| {
        let file = config(pair);
        for command in ["check", "serve"] {
            check(&[command, "-c", &file], 64, &[&format!("{file}:3:{place}: listener web: "), expect, "^"]);
        }
    };
    says("{cert: tls/none.pem, key: tls/www.key}", "78", "tls/none.pem: No such file");
    says("{cert: tls/bad.pem, key: tls/www.key}", "78", "tls/bad.pem: not PEM");
    says("{cert: tls/www.pem, key: tls/api.key}", "96", "tls/api.key: does not belong to the certificate in");
    says("{cert: tls/www.pem, key: tls/api.pem}", "96", "tls/api.pem: contains no readable private key");
    says("{cert: tls/www.key, key: tls/www.pem}", "78", "swap `cert` and `key`");
    check(&["check", "-c", &config("{cert: tls/www.pem, key: tls/www.key}")], 0, &["good"]);
}

#[test]
fn filters_of_the_log() {
    let proxy =
        |log: &str| ["proxy", "--listen", "192.0.2.1:8080", "--to", "127.0.0.1:9", "--log", log].map(str::to_owned);
    let words = proxy("foo");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    check(&words, 64, &["--log foo: \"foo\" is not a level; write off, error,", "such as proxy=debug"]);

    // One module logs more, and the others as much as before.
    let origin = Origin::start("x");
    let config =
        minimal(&local(port()).to_string(), "{admin}").replace("127.0.0.1:9'", &format!("{}'", origin.address));
    let mut balancer = Steelyard::serve_by(&config, |arguments| {
        Program::spawn("steelyard", steelyard().args(arguments).args(["--log", "proxy=debug"])).unwrap()
    });
    balancer.program.says("INFO steelyard::run: listening").unwrap();
}

#[test]
fn a_file_that_is_not_watched_changes_on_reload_alone() {
    let (listen, other) = (local(port()).to_string(), local(port()).to_string());
    let mut balancer = Steelyard::serve(&minimal(&listen, "{admin}"), 1);
    balancer
        .program
        .says("watching the files: a saved change takes effect within two seconds (`watch: false` turns this off)")
        .unwrap();
    // The file is still watched, so its `watch: false` is seen and applies from then on.
    balancer.write(&format!("{}watch: false\n", minimal(&listen, "{admin}")));
    balancer.until("not watched", |status| status["generation"] == 2);
    balancer.program.says("not watching the files: a change takes effect on `steelyard reload` or SIGHUP").unwrap();
    balancer.write(&minimal(&other, "{admin}"));
    assert_eq!(balancer.ask(&["reload"]).stdout, "reloaded: generation 3");
    balancer.program.says("watching the files: a saved change").unwrap();
    balancer.write(&minimal(&listen, "{admin}"));
    balancer.until("watched again", |status| status["generation"] == 4);
    let help = run(&["serve", "--help"]);
    // Lines are wrapped at the terminal's width.
    let words = help.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("serves a saved change within two seconds") && words.contains("`watch: false`"),
        "{}",
        help.stdout
    );
}

#[test]
fn the_admin_address_by_name() {
    let config = minimal(&local(port()).to_string(), "{admin}");
    let balancer = Steelyard::serve(&config, 1);
    let name = format!("localhost:{}", balancer.admin.port());
    check(&["status", "--json", "--admin", &name], 0, &["\"generation\""]);
    check(
        &["status", "--admin", "localhost"],
        2,
        &["the port is missing; write an address and port, such as 127.0.0.1:9900"],
    );
}

#[test]
fn two_signals_to_end_at_once_are_one() {
    let mut origin = testkit::Origin::listen("origin").unwrap();
    let listen = local(port());
    let config = minimal(&listen.to_string(), "{admin}").replace("127.0.0.1:9'", &format!("{}'", origin.address()));
    let mut balancer = Steelyard::serve(&config, 1);
    let mut client = testkit::client::connect("client", listen, None).unwrap();
    client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let at_origin = origin.connection(1).unwrap();
    at_origin.request().unwrap();
    balancer.program.signal(Signal::TERM).unwrap();
    balancer.program.says("draining").unwrap();
    balancer.program.signal(Signal::TERM).unwrap();
    balancer.program.signal(Signal::INT).unwrap();
    balancer.program.says("ignoring a second signal to end").unwrap();
    at_origin.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
    assert_eq!(client.response(ResponseTo::Other).unwrap().status, 200);
    assert_eq!(balancer.program.exit_within(testkit::PATIENCE).unwrap(), Exit::Code(0));
}

#[test]
fn a_port_that_another_process_has() {
    let taken = TcpListener::bind(local(0)).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let scratch = Scratch::new();
    let free = local(port()).to_string();
    let listener = scratch.write("listener.yaml", &minimal(&address, &free));
    let admin = scratch.write("admin.yaml", &minimal(&free, &address));
    let what_to_do = [&*address, "in use", "ss -ltnp"];
    check_host(&["serve", "-c", &listener], &what_to_do);
    check_host(&["serve", "-c", &admin], &what_to_do);
    check_host(&["proxy", "--listen", &address, "--to", "127.0.0.1:9"], &what_to_do);
    // An address that no interface of this host has (RFC 5737).
    check_host(&["proxy", "--listen", "192.0.2.1:8080", "--to", "127.0.0.1:9"], &["192.0.2.1:8080", "ip addr"]);
}

/// 77: the configuration is valid, but this host cannot apply it.
#[track_caller]
fn check_host(words: &[&str], expect: &[&str]) {
    check(words, 77, expect);
}

#[test]
fn the_same_file_a_second_time() {
    let scratch = Scratch::new();
    let origin = Origin::start("x");
    let listen = local(port()).to_string();
    let config = minimal(&listen, "{admin}").replace("127.0.0.1:9'", &format!("{}'", origin.address));
    let first = Steelyard::serve(&config, 1);
    let second = scratch.write("second.yaml", &config.replace("{admin}", &first.admin.to_string()));
    check_host(&["serve", "-c", &second], &["admin: ", &first.admin.to_string(), "in use"]);
    // The kernel would let two processes of one user share a listener (SO_REUSEPORT), and give each of them half of the connections.
    check_host(&["proxy", "--listen", &listen, "--to", "127.0.0.1:9"], &[&listen, "in use", "ss -ltnp"]);
}

#[test]
fn nobody_at_the_admin_address() {
    let nobody = local(port()).to_string();
    let hint = [&*format!("nothing listens on {nobody}"), "is steelyard running", &*format!("`admin: {nobody}`")]
        .map(str::to_owned);
    let hint: Vec<&str> = hint.iter().map(String::as_str).collect();
    check(&["status", "--admin", &nobody], 1, &hint);
    check(&["status", "--json", "--admin", &nobody], 1, &hint);
    check(&["top", "--admin", &nobody], 1, &hint);
    check(&["top", "--once", "--json", "--admin", &nobody], 1, &hint);
    check(&["reload", "--admin", &nobody], 1, &hint);
    check(&["endpoint", "drain", "127.0.0.1:9001", "--admin", &nobody], 1, &hint);
    check(&["vip", "list", "--admin", &nobody], 1, &hint);
    check(&["vip", "remove", "web", "--admin", &nobody], 1, &hint);
    check(&["flows", "--admin", &nobody], 1, &hint);
    check(&["trace", "--vip", "web", "--from", "10.0.0.1", "--admin", &nobody], 1, &hint);

    let origin = Origin::start("x");
    check(&["status", "--admin", &origin.address.to_string()], 1, &["is this the address of `admin:`?"]);
    check(&["top", "--admin", &origin.address.to_string()], 1, &["is this the address of `admin:`?"]);
}

#[test]
fn what_a_running_one_tells() {
    let origin = Origin::start("x");
    let listen = local(port());
    let config = minimal(&listen.to_string(), "{admin}").replace("127.0.0.1:9'", &format!("{}'", origin.address));
    let mut balancer = Steelyard::serve(&config, 2);
    assert_eq!(support::get(listen, "/").map(|response| response.status), Some(200));

    let finished = balancer.ask(&["status", "--json"]);
    let status: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!((&status["version"], &status["generation"], &status["workers"]), (&2.into(), &1.into(), &2.into()));
    assert_eq!(status["pid"], balancer.program.pid());

    // This is not a terminal: no colour, with and without NO_COLOR.
    let admin = balancer.admin.to_string();
    for no_color in [false, true] {
        let mut command = steelyard();
        if no_color {
            command.env("NO_COLOR", "1");
        }
        let finished = Program::run("status", command.args(["status", "--admin", &admin])).unwrap();
        assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
        assert!(finished.stdout.contains("Nothing is wrong."), "{}", finished.stdout);
        assert!(finished.stdout.contains("web") && finished.stdout.contains("app"), "{}", finished.stdout);
        assert!(!finished.stdout.contains('\x1b'), "{}", finished.stdout);
    }
    assert!(!balancer.program.log().contains('\x1b'));

    let endpoint = origin.address.to_string();
    assert_eq!(balancer.ask(&["endpoint", "drain", &endpoint]).exit, Exit::Code(0));
    assert_eq!(balancer.status()["clusters"][0]["endpoints"][0]["state"], "draining");
    let finished = balancer.ask(&["status"]);
    assert!(finished.stdout.contains("to look at") && finished.stdout.contains("draining"), "{}", finished.stdout);
    assert_eq!(balancer.ask(&["endpoint", "ready", &endpoint]).exit, Exit::Code(0));
    let unknown = balancer.ask(&["endpoint", "drain", "127.0.0.1:1"]);
    assert_eq!(unknown.exit, Exit::Code(1));
    assert!(
        unknown.stderr.contains("no such endpoint: 127.0.0.1:1") && unknown.stderr.contains(&endpoint),
        "{}",
        unknown.stderr
    );

    let reloaded = balancer.ask(&["reload"]);
    assert_eq!(reloaded.exit, Exit::Code(0), "{}", reloaded.stderr);
    assert_eq!(reloaded.stdout, "reloaded: generation 2");
    balancer.program.signal(Signal::INT).unwrap();
    assert_eq!(balancer.program.exit_within(testkit::PATIENCE).unwrap(), Exit::Code(0));
}

#[test]
fn what_other_programs_read() {
    let schema: Value = serde_json::from_str(&check(&["schema"], 0, &[]).stdout).unwrap();
    assert!(schema["$schema"].is_string() && schema["properties"]["listeners"].is_object(), "{schema}");
    check(&["completions", "bash"], 0, &["_steelyard()", "complete -F _steelyard"]);
    check(&["completions", "tcsh"], 2, &["bash"]);
    let scratch = Scratch::new();
    check(&["man", &scratch.path().display().to_string()], 0, &[]);
    let page = std::fs::read_to_string(scratch.path().join("steelyard.1")).unwrap();
    assert!(page.contains(".SH NAME"), "{page}");
    assert!(scratch.path().join("steelyard-serve.1").is_file());
    // A missing directory is created; a file in its place is not replaced.
    check(&["man", &scratch.path().join("missing").display().to_string()], 0, &[]);
    assert!(scratch.path().join("missing/steelyard-top.1").exists());
    let file = scratch.write("file", "");
    check(&["man", &file], 1, &[&format!("cannot write to {file}: ")]);
}

#[test]
fn every_example_is_there() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    for name in ["http.yaml", "tcp.yaml", "vip.yaml"] {
        check(&["check", "-c", &examples.join(name).display().to_string()], 0, &["good"]);
    }
}

fn vip(interface: &str, keys: &str) -> String {
    format!("vips: {{web: {{address: 192.0.2.1:80/tcp, interfaces: [{interface}], {keys}}}}}\n")
}

#[test]
fn vips_that_are_written_wrong() {
    let scratch = Scratch::new();
    let name = scratch.write("name.yaml", &vip("eth0", "endpoints: ['origin:80']"));
    for command in ["check", "serve"] {
        check(&[command, "-c", &name], 64, &["name.yaml:1:73: ", "a vip takes no names"]);
    }
    let local = scratch.write("local.yaml", &vip("eth0", "mode: local, affinity: 1m"));
    check(&["check", "-c", &local], 64, &["`affinity` has no effect in mode local"]);
    let good = scratch.write("good.yaml", &vip("eth0", "endpoints: [198.51.100.1]"));
    // `check` cannot know whether an interface exists, because it opens nothing.
    check(&["check", "-c", &good], 0, &["good (0 listeners, 0 clusters, 1 vip)"]);
}

#[test]
fn commands_about_vips_where_there_are_none() {
    let origin = Origin::start("x");
    let config =
        minimal(&local(port()).to_string(), "{admin}").replace("127.0.0.1:9'", &format!("{}'", origin.address));
    let balancer = Steelyard::serve(&config, 1);
    let says = |words: &[&str], exit: i32, expect: &str| {
        let finished = balancer.ask(words);
        assert_eq!(finished.exit, Exit::Code(exit), "{words:?}: {finished:?}");
        let said = format!("{}{}", finished.stdout, finished.stderr);
        assert!(said.contains(expect), "{words:?}: {said}");
    };
    says(&["vip", "list"], 0, "no vips: the file has none and none was added");
    says(&["vip", "list", "--json"], 0, r#""vips":[]"#);
    says(&["flows"], 1, "there are no vips");
    says(&["flows", "--vip", "web"], 1, "no such vip: web");
    says(&["trace", "--vip", "web", "--from", "10.0.0.1"], 1, "no such vip: web");
    says(&["vip", "remove", "web"], 64, "no vip web was added by a command; none was added");
    // Errors about the vip are the same as in a file.
    let add = ["vip", "add", "web", "--interface", "eth0", "--address"];
    says(&[add.as_slice(), &["192.0.2.1:80"]].concat(), 64, "has no protocol; write 192.0.2.1:80/tcp");
    says(&[add.as_slice(), &["192.0.2.1:80/tcp"]].concat(), 64, "a vip needs `endpoints`");
    says(&[add.as_slice(), &["192.0.2.1:80/tcp", "--endpoint", "origin:80"]].concat(), 64, "a vip takes no names");
    says(&["endpoint", "drain", "10.0.0.1:80", "--vip", "web"], 1, "no such endpoint: 10.0.0.1:80");
    says(&["endpoint", "drain", "10.0.0.1:80", "--vip", "web", "--cluster", "a"], 2, "cannot be used with");
}

#[test]
fn the_control_api_is_for_this_host_alone() {
    let scratch = Scratch::new();
    for (address, right) in
        [("0.0.0.0:9900", "write 127.0.0.1:9900"), (":9901", "write 127.0.0.1:9901"), ("10.0.0.7:1", "")]
    {
        let file = scratch.write("open.yaml", &minimal("127.0.0.1:8080", &format!("'{address}'")));
        for command in ["check", "serve"] {
            let expect = [&*format!("{file}:1:8: "), "can be reached from other hosts", right, "the key `metrics`"];
            check(&[command, "-c", &file], 64, &expect);
        }
        let words = ["proxy", "--listen", ":0", "--to", "127.0.0.1:9", "--admin", address];
        check(&words, 2, &["can be reached from other hosts"]);
    }
}

#[test]
fn what_other_hosts_may_read() {
    let origin = Origin::start("x");
    let metrics = local(port());
    let config = minimal(&local(port()).to_string(), "{admin}\nmetrics: '{metrics}'");
    let config =
        config.replace("127.0.0.1:9'", &format!("{}'", origin.address)).replace("{metrics}", &metrics.to_string());
    let mut balancer = Steelyard::serve(&config, 1);
    let status = |path: &str| support::get(metrics, path).map(|response| response.status);
    for page in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(status(page), Some(200), "{page}");
    }
    for page in ["/", "/status", "/flows", "/trace", "/reload", "/vip/add", "/vip/detach", "/endpoint/drain"] {
        assert_eq!(status(page), Some(404), "{page}");
        let mut conn = testkit::client::connect("metrics", metrics, None).unwrap();
        let post =
            format!("POST {page} HTTP/1.1\r\nHost: {metrics}\r\nX-Steelyard-Admin: 1\r\nContent-Length: 0\r\n\r\n");
        conn.send(post.as_bytes()).unwrap();
        assert_eq!(conn.response(testkit::strict::ResponseTo::Other).unwrap().status, 404, "{page}");
    }
    // A new process takes over both addresses.
    let pid = balancer.program.pid();
    balancer.program.signal(Signal::USR2).unwrap();
    balancer.until("handed over", |status| status["pid"] != pid);
    assert_eq!(status("/readyz"), Some(200));
    // The address closes when it is removed from the file.
    balancer.write(&config.replace("metrics:", "#"));
    assert_eq!(balancer.ask(&["reload"]).exit, Exit::Code(0));
    assert_eq!(status("/readyz"), None);
}

/// In a separate network, where the usual address is free.
#[test]
fn a_proxy_can_be_asked_how_it_is() {
    if !rustix::process::geteuid().is_root() {
        return support::skip("a_proxy_can_be_asked_how_it_is", "network namespaces are root's");
    }
    let netns = testkit::netns::Netns::new("proxy").unwrap();
    let start = |listen: &str| {
        let words = ["proxy", "--listen", listen, "--to", "127.0.0.1:9", "--workers", "1"];
        netns.spawn("steelyard", steelyard().args(words)).unwrap()
    };
    let status = || netns.inside(|| support::run(&["status"]));
    let mut first = start("127.0.0.1:8080");
    first.says("listening").unwrap();
    assert!(status().stdout.contains("127.0.0.1:8080"), "{}", status().stdout);
    // The second process serves, and reports what it lacks.
    let mut second = start("127.0.0.1:8081");
    let said = second.says("--admin").unwrap();
    assert!(said.contains("WARN") && said.contains("127.0.0.1:9900"), "{said}");
    second.says("listening").unwrap();
    assert!(status().stdout.contains("127.0.0.1:8080"), "{}", status().stdout);
}

/// The file of a Unix socket: who may use it, and when it is created and removed.
#[test]
fn the_control_api_at_a_path() {
    use std::os::unix::fs::PermissionsExt;

    let scratch = Scratch::new();
    let path = scratch.path().join("admin.sock");
    let place = format!("unix:{}", path.display());
    let text = format!(
        "admin: '{place}'\nlisteners: {{web: {{bind: '{}', protocol: http, to: app}}}}\nclusters: {{app: {{endpoints: ['127.0.0.1:9']}}}}\n",
        local(port())
    );
    let file = scratch.write("steelyard.yaml", &text);
    let start = || Program::spawn("steelyard", steelyard().args(["serve", "--workers", "1", "-c", &file])).unwrap();
    let ask = |words: &[&str]| run(&[words, &["--admin", &place]].concat());
    let pid = || {
        let answer = ask(&["status", "--json"]);
        serde_json::from_str::<Value>(&answer.stdout).ok().and_then(|status| status["pid"].as_u64())
    };

    // A killed process has left its socket behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut program = start();
    let first = program.until("answers", pid).unwrap();
    assert_eq!(first, u64::from(program.pid()));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(ask(&["reload"]).exit, Exit::Code(0));
    assert_eq!(ask(&["endpoint", "drain", "127.0.0.1:9"]).exit, Exit::Code(0));

    let second = run(&["serve", "--workers", "1", "-c", &file]);
    assert_eq!(second.exit, Exit::Code(77), "{}", second.stderr);
    assert!(
        second.stderr.contains(&format!("cannot listen on {place}: another process listens there")),
        "{}",
        second.stderr
    );

    // The successor answers at the same path, and the old process does not remove the file.
    program.signal(Signal::USR2).unwrap();
    assert_eq!(program.exit_within(PATIENCE).unwrap(), Exit::Code(0));
    let successor = until(PATIENCE, || pid().filter(|pid| *pid != first)).expect("a successor");
    let successor = rustix::process::Pid::from_raw(i32::try_from(successor).unwrap()).unwrap();
    rustix::process::kill_process(successor, Signal::TERM).unwrap();
    until(PATIENCE, || (!path.exists()).then_some(())).expect("the process removes the file when it ends");
    let nobody = ask(&["status"]);
    assert!(nobody.exit != Exit::Code(0) && nobody.stderr.contains("nothing listens on unix:"), "{}", nobody.stderr);
}
