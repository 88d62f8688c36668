//! Global rate limits with the service of the Envoy project and a Redis, and with services that misbehave (`hack/interop/rls`).

use std::path::Path;
use std::process::Command;

use testkit::{PATIENCE, Program, free_port};

use super::Score;
use super::field::start;
use super::tools::Tools;
use crate::command::{capture, command};

/// The limits of the service. A day, so that no window ends while a case runs.
const LIMITS: &str = "domain: edge
descriptors:
  - {key: remote_address, rate_limit: {name: per-client, unit: day, requests_per_unit: 3}}
  - key: x-key
    descriptors:
      - {key: path, value: /key/a, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: generic_key, value: local, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: generic_key, value: many, rate_limit: {unit: day, requests_per_unit: 1000000}}
";

/// In order, as they use up limits: what curl gets besides the URL, the path, and what its output must contain and must not contain.
const CASES: &[Case] = &[
    Case {
        name: "the first of three",
        words: &[],
        path: "/client",
        has: &[
            "HTTP/1.1 200",
            "x-ratelimit-limit: 3, 3;w=86400;name=\"per-client\"",
            "x-ratelimit-remaining: 2",
            "ratelimit: \"per-client\";r=2;t=",
        ],
        lacks: &["retry-after"],
    },
    Case { name: "the second", words: &["--http2-prior-knowledge"], path: "/client", has: &["HTTP/2 200"], lacks: &[] },
    Case { name: "the third", words: &[], path: "/client", has: &["HTTP/1.1 200", "-remaining: 0"], lacks: &[] },
    Case {
        name: "the fourth",
        words: &[],
        path: "/client",
        has: &["HTTP/1.1 429", "retry-after: ", "-remaining: 0", "global_rate_limited"],
        lacks: &[],
    },
    Case {
        name: "a call",
        words: &["--http2-prior-knowledge", "-H", "content-type: application/grpc", "-d", ""],
        path: "/client",
        has: &["grpc-status: 8"],
        lacks: &[],
    },
    Case { name: "a key", words: &["-H", "x-key: joe"], path: "/key/a", has: &["HTTP/1.1 200"], lacks: &[] },
    Case { name: "the key again", words: &["-H", "x-key: joe"], path: "/key/a?b", has: &["HTTP/1.1 429"], lacks: &[] },
    Case { name: "another key", words: &["-H", "x-key: ann"], path: "/key/a", has: &["HTTP/1.1 200"], lacks: &[] },
    Case {
        name: "a path without a limit",
        words: &["-H", "x-key: joe"],
        path: "/key/b",
        has: &["200"],
        lacks: &["429"],
    },
    Case { name: "no key", words: &[], path: "/key/a", has: &["HTTP/1.1 200"], lacks: &[] },
    Case { name: "within both limits", words: &[], path: "/local", has: &["HTTP/1.1 200"], lacks: &[] },
    Case { name: "over the local one", words: &[], path: "/local", has: &["429", " rate_limited"], lacks: &["global"] },
    Case {
        // The request before was not counted, or there would be none left.
        name: "only the local one was used up",
        words: &[],
        path: "/same",
        has: &["HTTP/1.1 200", "x-ratelimit-remaining: 0"],
        lacks: &[],
    },
    Case { name: "and then the other", words: &[], path: "/same", has: &["HTTP/1.1 429"], lacks: &[] },
    Case { name: "off", words: &[], path: "/off", has: &["HTTP/1.1 200"], lacks: &["x-ratelimit"] },
];

/// How a service misbehaves, and what a client gets if the limit fails closed and if it fails open.
const MODES: &[(&str, &str, &str)] = &[
    ("yes", "200", "200"),
    ("no", "429", "429"),
    ("hang", "503", "200"),
    ("unknown", "503", "200"),
    ("other", "503", "200"),
    ("garbage", "503", "200"),
    ("failed", "503", "200"),
    ("status", "503", "200"),
    ("headers", "503", "200"),
    ("half", "503", "200"),
    ("text", "503", "200"),
    // What came before has broken nothing.
    ("yes", "200", "200"),
];

struct Case {
    name: &'static str,
    words: &'static [&'static str],
    path: &'static str,
    has: &'static [&'static str],
    lacks: &'static [&'static str],
}

/// Runs all cases.
pub fn run(steelyard: &Path, tools: &Tools, directory: &Path) -> Result<Score, String> {
    let port = || free_port().map_err(|error| error.to_string());
    let [listen, origin, redis, http, grpc, debug, bad] =
        [port()?, port()?, port()?, port()?, port()?, port()?, port()?];
    let write = |path: &Path, text: &str| {
        std::fs::create_dir_all(path.parent().unwrap_or(directory)).map_err(|error| error.to_string())?;
        std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
    };
    let root = directory.join("ratelimit");
    write(&root.join("limits/config/edge.yaml"), LIMITS)?;
    let file = directory.join("ratelimit.yaml");
    write(&file, &configuration(listen, origin, grpc, bad))?;

    let at = format!("127.0.0.1:{origin}");
    let _origin = start("origin", Command::new(steelyard).args(["origin", "http", "--listen", &at]), &[origin])?;
    let store = start_redis(redis)?;
    let _service = start_service(&tools.ratelimit, &root, redis, [http, grpc, debug])?;
    let _bad = start("rls", Command::new(&tools.rls).args(["-port", &bad.to_string()]), &[bad])?;
    let mut balancer = start("steelyard", Command::new(steelyard).args(["serve", "-c"]).arg(&file), &[listen])?;

    let mut score = Score::default();
    let mut judge = |name: &str, holds: bool, output: String| {
        score.all += 1;
        score.held += usize::from(holds);
        score.failures.extend((!holds).then(|| format!("{name}: {output}")));
    };
    let url = |path: &str| format!("http://127.0.0.1:{listen}{path}");
    for Case { name, words, path, has, lacks } in CASES {
        let output = capture(command("curl", &["-s", "-i", "-m", "20", &url(path)]).args(*words))?;
        let holds = has.iter().all(|text| output.contains(text)) && !lacks.iter().any(|text| output.contains(text));
        judge(name, holds, output);
    }
    for (mode, closed, open) in MODES {
        for (route, expect) in [("closed", closed), ("open", open)] {
            let got = status(&url(&format!("/{route}/{mode}")))?;
            judge(&format!("a service that does `{mode}`, {route}"), got == *expect, got);
        }
    }

    // Redis ends while requests are in progress, and they are answered all the same.
    let many = url("/many/closed?[1-1000000]");
    let words = [
        "-s",
        "-m",
        "60",
        "--parallel",
        "--parallel-max",
        "20",
        "-o",
        "/dev/null",
        "-w",
        "%{stderr}status=%{http_code}\\n",
        &many,
    ];
    let mut load = Program::spawn("curl", &mut command("curl", &words)).map_err(|failure| failure.to_string())?;
    let before = load.says("status=200");
    drop(store);
    let after = before.and_then(|_| load.says("status=503"));
    judge("Redis ends under load", after.is_ok(), format!("{after:?}"));
    drop(load);
    let (closed, open) = (status(&url("/many/closed"))?, status(&url("/many/open"))?);
    judge("without Redis", closed == "503" && open == "200", format!("closed: {closed}, open: {open}"));
    let _store = start_redis(redis)?;
    let is_back = || status(&url("/many/closed")).ok().filter(|status| status == "200");
    let returned = testkit::until(PATIENCE, is_back);
    judge("Redis is back", returned.is_some(), "no request passes".into());
    judge("nothing panicked", balancer.ended().is_ok_and(|ended| ended.is_none()), balancer.log());
    Ok(score)
}

fn status(url: &str) -> Result<String, String> {
    capture(&mut command("curl", &["-s", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", url]))
}

/// Starts the service of the Envoy project, with the limits below `root` and ports for HTTP, calls and debugging.
fn start_service(program: &Path, root: &Path, redis: u16, ports: [u16; 3]) -> Result<Program, String> {
    let mut service = Command::new(program);
    service.env("RUNTIME_ROOT", root).env("REDIS_URL", format!("127.0.0.1:{redis}"));
    for (name, value) in [
        ("RUNTIME_SUBDIRECTORY", "limits"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_TYPE", "SINGLE"),
        ("USE_STATSD", "false"),
        ("LOG_LEVEL", "error"),
        ("HOST", "127.0.0.1"),
        ("GRPC_HOST", "127.0.0.1"),
        ("DEBUG_HOST", "127.0.0.1"),
    ] {
        service.env(name, value);
    }
    for (name, port) in ["PORT", "GRPC_PORT", "DEBUG_PORT"].into_iter().zip(ports) {
        service.env(name, port.to_string());
    }
    start("ratelimit", &mut service, &ports[1..2])
}

fn start_redis(port: u16) -> Result<Program, String> {
    let port_text = port.to_string();
    let words = ["--port", &port_text, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    start("redis", Command::new("redis-server").args(words), &[port])
}

fn configuration(listen: u16, origin: u16, grpc: u16, bad: u16) -> String {
    let limit = |rest: &str| format!("global_rate_limit: {{to: ratelimit, domain: edge, timeout: 2s, {rest}}}");
    let client = "fail_open: false, headers: [x_ratelimit, ratelimit], descriptors: [{entries: {client_ip: true}}]";
    let key = "fail_open: false, descriptors: [{entries: [{header: x-key}, {path: true}]}]";
    let named = |name: &str, open: bool| {
        format!("fail_open: {open}, headers: x_ratelimit, descriptors: [{{entries: {{value: {name}}}}}]")
    };
    let local = format!("rate_limit: {{requests: 1, per: 1h}}, {}", limit(&named("local", false)));
    let mut routes = vec![
        format!("{{path: /client, to: web, {}}}", limit(client)),
        format!("{{path: /key, to: web, {}}}", limit(key)),
        format!("{{path: /local, to: web, {local}}}"),
        format!("{{path: /same, to: web, {}}}", limit(&named("local", false))),
        format!("{{path: /many/closed, to: web, {}}}", limit(&named("many", false))),
        format!("{{path: /many/open, to: web, {}}}", limit(&named("many", true))),
        "{path: /off, to: web}".to_owned(),
    ];
    for (mode, ..) in &MODES[..MODES.len() - 1] {
        for (route, open) in [("closed", false), ("open", true)] {
            let rest = format!("domain: bad, host: {mode}.test, timeout: 1s, {}", named("a", open));
            routes.push(format!("{{path: /{route}/{mode}, to: web, global_rate_limit: {{to: bad, {rest}}}}}"));
        }
    }
    format!(
        "listeners:\n  web: {{bind: '127.0.0.1:{listen}', protocol: http, routes: [\n    {}]}}\nclusters:\n  \
         web: {{endpoints: ['127.0.0.1:{origin}']}}\n  \
         ratelimit: {{endpoints: ['127.0.0.1:{grpc}'], protocol: h2c, outlier: off}}\n  \
         bad: {{endpoints: ['127.0.0.1:{bad}'], protocol: h2c, outlier: off}}\n",
        routes.join(",\n    ")
    )
}
