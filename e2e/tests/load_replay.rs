//! `steelyard load --replay` and `--mix` with several hosts. nginx writes the log that is replayed, and the log that shows what was sent.
#![forbid(unsafe_code)]

mod support;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use serde_json::Value;
use support::{Origin, Scratch, local, port, run, skip};
use testkit::{Exit, Finished, PATIENCE, Program, until};

/// `{first}` is visited, and `{second}` gets the replay. `asked` and `sent` show what arrived there.
const NGINX: &str = r#"
daemon off; master_process off; pid {root}/nginx.pid; error_log stderr;
events {}
http {
    client_body_temp_path {root}/body; proxy_temp_path {root}/proxy; fastcgi_temp_path {root}/fastcgi;
    uwsgi_temp_path {root}/uwsgi; scgi_temp_path {root}/scgi;
    log_format asked '$request_method $request_uri';
    log_format sent '$request_method $request_uri $http_host $http_cookie $http_x_trace $http_content_length';
    log_format json escape=json '{"msec": "$msec", "request": "$request", "host": "$host"}';
    server {
        listen {first};
        access_log {root}/first.log; access_log {root}/first.json json; access_log {root}/first.asked asked;
        location / { return 200 "fine"; }
    }
    server {
        listen {second};
        access_log {root}/second.asked asked; access_log {root}/second.sent sent;
        location / { return 200 "fine"; }
    }
}
"#;

fn report(finished: &Finished) -> Value {
    assert_eq!(finished.exit, Exit::Code(0), "{finished:?}");
    serde_json::from_str(&finished.stdout).unwrap()
}

/// The lines of a log, in order of their text, once it has so many. Then it is emptied.
fn taken(log: &std::path::Path, count: usize) -> Vec<String> {
    let lines = || Some(fs::read_to_string(log).ok()?.lines().map(str::to_owned).collect::<Vec<_>>());
    let found = until(PATIENCE, || lines().filter(|lines| lines.len() >= count));
    let mut found = found.unwrap_or_else(|| panic!("{} has {:?}, not {count}", log.display(), lines()));
    found.sort();
    fs::write(log, "").unwrap();
    found
}

fn curl(words: &[&str]) {
    let finished = Program::run("curl", Command::new("curl").args(["-sS", "-o", "/dev/null"]).args(words)).unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{finished:?}");
}

fn visit(address: SocketAddr) {
    let url = |path: &str| format!("http://{address}{path}");
    curl(&[&url("/")]);
    curl(&[&url("/a?b=%20&c=d#e"), "-H", "Cookie: s=1"]);
    curl(&["-A", "a \"quoted\" agent", "-e", "https://b.example/?q=\"x\"", &url("/agent")]);
    curl(&["--path-as-is", &url("/x/../y//z")]);
    curl(&["-d", "a=b", &url("/form")]);
    curl(&["-X", "DELETE", &url("/items/7")]);
    curl(&["-I", &url("/head")]);
    curl(&[&url("/caf%C3%A9/%22")]);
    curl(&[&url("/")]);
    // A TLS handshake on this port, which is a line of the log and no request.
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n").unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
}

const VISITS: usize = 9;

#[test]
fn what_nginx_has_logged_is_sent_again() {
    if Command::new("nginx").arg("-v").output().is_err() {
        return skip("what_nginx_has_logged_is_sent_again", "nginx is not installed");
    }
    let scratch = Scratch::new();
    let (first, second) = (local(port()), local(port()));
    let path = |name: &str| scratch.path().join(name);
    let config = NGINX.replace("{root}", &scratch.path().display().to_string());
    let config = config.replace("{first}", &first.to_string()).replace("{second}", &second.to_string());
    let file = scratch.write("nginx.conf", &config);
    let mut nginx = Program::spawn("nginx", Command::new("nginx").args(["-e", "stderr", "-c", &file])).unwrap();
    nginx.until("listening", || TcpStream::connect(first).ok()).unwrap();
    visit(first);
    let mut expect = taken(&path("first.asked"), VISITS + 1);
    // nginx has no method and no path for what is no request.
    expect.retain(|line| line.contains('/'));
    assert_eq!(expect.len(), VISITS, "{expect:?}");

    let url = format!("http://{second}");
    let (log, json) = (path("first.log").display().to_string(), path("first.json").display().to_string());
    let replay = |file: &str, words: &[&str]| run(&[&["load", &url, "--replay", file, "--json"], words].concat());
    for (file, words, has_times) in [
        (&log, ["--speed", "max", "-c", "3"], false),
        (&log, ["--speed", "100000", "-t", "2"], true),
        (&json, ["--speed", "1000", "-c", "2"], true),
        (&log, ["--rate", "1000", "-t", "3"], true),
    ] {
        let report = report(&replay(file, &words));
        assert_eq!((&report["ok"], &report["planned"].is_u64()), (&VISITS.into(), &has_times), "{report}");
        let replayed = &report["replay"];
        assert_eq!((&replayed["requests"], &replayed["skipped"]), (&VISITS.into(), &1.into()), "{replayed}");
        assert_eq!(replayed["without_body"], 1, "{replayed}");
        assert!(replayed["first_skipped"].as_str().unwrap().starts_with("line 10: it has n"), "{replayed}");
        assert!(replayed["recorded_s"].is_f64(), "{replayed}");
        assert_eq!(report["response"]["count"].as_u64().unwrap_or_default() > 0, has_times, "{report}");
        assert_eq!(taken(&path("second.asked"), VISITS), expect, "{words:?}");
    }
    // The first lines only.
    assert_eq!(report(&replay(&log, &["--speed", "max", "-n", "2", "-c", "1"]))["ok"], 2);
    assert_eq!(taken(&path("second.asked"), 2), ["GET /", "GET /a?b=%20&c=d"]);
    drop(taken(&path("second.sent"), 4 * VISITS + 2));

    // A HAR file has headers and bodies. Its cookies and bodies stay with the server that they were recorded for.
    let har = scratch.write(
        "shop.har",
        r#"{"log": {"entries": [{"startedDateTime": "2026-11-24T10:00:00.5Z", "request": {"method": "POST",
        "url": "https://shop.example/form", "headers": [{"name": "Cookie", "value": "s=1"}, {"name": "X-Trace", "value": "t"}],
        "postData": {"text": "a=b"}}}]}}"#,
    );
    assert_eq!(report(&replay(&har, &[]))["replay"]["without_secrets"], 1);
    assert_eq!(taken(&path("second.sent"), 1), [format!("POST /form {second} - t 0")]);
    report(&replay(&har, &["--keep-secrets", "--keep-host", "--only-host", "shop.example"]));
    assert_eq!(taken(&path("second.sent"), 1), ["POST /form shop.example s=1 t 3"]);
    let list = scratch.write("list", "GET /1\nGET https://other.example/2\nnothing\n");
    report(&replay(&list, &["--http", "1.0", "-c", "1"]));
    assert_eq!(taken(&path("second.asked"), 4)[..2], ["GET /1", "GET /2"]);

    let fails = |file: &str, words: &[&str], says: &str| {
        let finished = replay(file, words);
        assert_eq!(finished.exit, Exit::Code(1), "{finished:?}");
        assert!(finished.stderr.contains(says), "{says:?} is not in {finished:?}");
    };
    fails(&list, &["--only-host", "shop.example"], "no request is for --only-host shop.example; it has other.example");
    fails(&file, &[], "it must be an access log (of nginx");
    fails("/nonexistent", &[], "/nonexistent: No such file");
    let with_path = run(&["load", &format!("{url}/x"), "--replay", &list]);
    assert!(with_path.stderr.contains("the URL has the path /x"), "{with_path:?}");
}

#[test]
fn a_mix_for_several_hosts_says_how_each_did() {
    let (one, two) = (Origin::start("one"), Origin::start("two"));
    let scratch = Scratch::new();
    let mix = format!("3 GET /\n1 GET http://{}/two\n1 POST http://{}/echo\n", two.address, one.address);
    let mix = scratch.write("mix", &mix);
    let url = format!("http://{}/", one.address);
    for words in [&["-c", "3"][..], &["-c", "2", "-r", "2000"], &["-c", "2", "--close"]] {
        let (at_one, at_two) = (one.requests(), two.requests());
        let report = report(&run(&[&["load", &url, "--mix", &mix, "-n", "200", "--json"], words].concat()));
        assert_eq!(report["ok"], 200, "{report}");
        let targets: Vec<(&str, u64)> = report["targets"]
            .as_array()
            .unwrap()
            .iter()
            .map(|of| (of["name"].as_str().unwrap(), of["ok"].as_u64().unwrap()))
            .collect();
        let names = [format!("GET {url}"), format!("GET http://{}/two", two.address), format!("POST {url}echo")];
        assert_eq!(targets.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names, "{report}");
        assert_eq!(targets[0].1 + targets[2].1, one.requests() - at_one);
        assert_eq!(targets[1].1, two.requests() - at_two);
        assert!(targets.iter().all(|(_, ok)| *ok > 0), "{report}");
    }
    let text = run(&["load", &url, "--mix", &mix, "-n", "200"]).stdout;
    assert!(text.lines().any(|line| line.ends_with(&format!("GET http://{}/two", two.address))), "{text}");
    // A server that is not there is named before anything is sent.
    let nobody = local(port());
    let mix = scratch.write("gone", &format!("1 GET /\n1 GET http://{nobody}/\n"));
    let refused = run(&["load", &url, "--mix", &mix]);
    assert!(refused.stderr.contains(&format!("cannot connect to {nobody}: nothing listens there")), "{refused:?}");
}
