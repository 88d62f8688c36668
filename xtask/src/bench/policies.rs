//! `cargo xtask bench policies`: what each policy of a route costs, in instructions of user space for each request, beside nginx where that does
//! the same. It needs valgrind; without nginx its column is empty.
//!
//! Each figure is of one run under callgrind, whose counters begin after a warm-up and are read before the process ends, so what it does at its start and
//! at its end is not in it. `--only` measures nothing that the chosen policies are not compared with. What is being measured is on standard error. One client sends the requests one after the other on one connection, over HTTP/1.1, to one worker. An origin of ours answers them.
//! Only the worker counts, which is the first thread that the process starts, and for the log and traces the busiest other one, which formats or sends them: others do something at intervals, which takes more of a run that takes longer, and made
//! figures differ by 1,500 instructions on a busy host. They are no times: instructions in the kernel, and waits for memory, are not counted. Valgrind's CPU
//! lacks some instructions of real ones, such as those for SHA-256, so what hashes is cheaper than it looks here. `--demo` builds Steelyard as `cargo xtask demo` does, which takes a few minutes; its figures
//! are larger than those of a release. `--only` chooses policies by a part of their names. `--steelyard` may name an older build; a policy that it does not know has no figure.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use testkit::client;
use testkit::strict::ResponseTo;

use super::child::{Child, POLL, Ready, free_port, pause};
use super::options::pairs;
use crate::cargo::target_directory;
use crate::command::{self, cargo, find_program};
use crate::setup;

const USAGE: &str = "usage: cargo xtask bench policies [--demo] [--requests N] [--only TEXT] [--steelyard PROGRAM]";

/// The requests before the counters begin, and those that are counted.
const WARM_UP: usize = 200;
const REQUESTS_DEFAULT: usize = 1_000;

/// The threads that serve requests, as callgrind numbers them: Steelyard starts its worker first, and nginx has no other.
const WORKER: u32 = 2;
const MAIN: u32 = 1;

/// Under valgrind, a start takes seconds.
const STARTS_WITHIN: usize = 1_200;

/// A policy, in both languages.
struct Policy {
    name: &'static str,
    /// Keys of the file, each on a line.
    file: &'static str,
    /// Keys of the listener.
    listener: &'static str,
    /// Keys of the route.
    route: &'static str,
    /// Directives of the location of nginx; `None` if it does not do the same.
    nginx: Option<&'static str>,
    /// Directives of its `http` block.
    nginx_http: &'static str,
    request: Request,
}

/// What the client sends.
#[derive(Clone, Copy)]
enum Request {
    Get(&'static str),
    /// With a body of 1 KiB.
    Post(&'static str),
    /// The same, compressed by gzip.
    PostGzip,
    /// GET of a response of 16 KiB.
    Large(&'static str),
}

const USER: &str = "Authorization: Basic am9lOmpvZQ==\r\n";

/// Of a key that is only here.
const JWT: &str = concat!(
    "auth: {jwt: {issuer: a, audience: b, claim_headers: {x-user: sub}, jwks: {inline: '",
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"1","x":"A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg"}]}"#,
    "'}}}"
);
const TOKEN: &str = concat!(
    "Authorization: Bearer eyJhbGciOiJFZERTQSIsImtpZCI6IjEifQ.eyJpc3MiOiJhIiwiYXVkIjoiYiIsInN1YiI6ImpvZSIsImV4cCI6NDEwMjQ0NDgwMH0.",
    "NbxvAMml3RmHIKXDsI1mum2YUU7rYXoPrGWFxVi8pgYM_UucUTHKESNUwcwe3et4ODJ9RL7Xb9H502G4gxK8Bg\r\n"
);

/// A log of chosen fields, with headers, TLS and the trace.
const FIELDS: &str = "access_log: {path: /dev/null, format: json, query: false, fields: [time, client_ip, request_line, status, total_ms, added_us, \
                      'request_header:user-agent', 'request_header:referer', 'response_header:content-type', trace_id, tls_version]}\n";

/// Of these, nothing is written: no response has this status.
const FILTERED: &str = "access_log: {path: /dev/null, only: {status: 5xx, slower_than: 60s}}\n";

const POLICIES: [Policy; 27] = [
    Policy::new("none (GET)", "", "", Some(""), Request::Get("")),
    Policy::logged("`access_log`, as text", "access_log: /dev/null\n", Some("access_log /dev/null combined;")),
    Policy::logged("`access_log`, as JSON", "access_log: {path: /dev/null, format: json}\n", None),
    Policy::logged("`access_log`, 11 chosen fields as JSON", FIELDS, None),
    Policy::logged("`access_log` with `only`, and nothing to write", FILTERED, None),
    Policy::traced("`tracing`, no sample", "tracing: {to: web, protocol: http, sampling: 0%}\n"),
    Policy::traced("`tracing`, 1 %", "tracing: {to: web, protocol: http, sampling: 1%}\n"),
    Policy::traced("`tracing`, 100 %", "tracing: {to: web, protocol: http, sampling: 100%}\n"),
    Policy::new(
        "`request_headers`, `response_headers`: one of each",
        "",
        "request_headers: {set: {x-a: b}}, response_headers: {set: {x-c: d}}",
        Some("proxy_set_header X-A b; add_header X-C d;"),
        Request::Get(""),
    ),
    Policy::new(
        "`allow`, `deny`",
        "",
        "allow: [127.0.0.0/8, 10.0.0.0/8], deny: [127.0.0.2]",
        Some("deny 127.0.0.2; allow 127.0.0.0/8; allow 10.0.0.0/8; deny all;"),
        Request::Get(""),
    ),
    Policy {
        nginx_http: "limit_req_zone $binary_remote_addr zone=a:1m rate=1000r/s;",
        ..Policy::new(
            "`rate_limit`",
            "",
            "rate_limit: {requests: 100000, per: 1s, by: client_ip}",
            Some("limit_req zone=a burst=100000 nodelay;"),
            Request::Get(""),
        )
    },
    Policy::new(
        "`request_id`",
        "request_id: {}",
        "",
        Some("proxy_set_header X-Request-ID $request_id;"),
        Request::Get(""),
    ),
    Policy::new("`via`", "via: {name: edge}", "", None, Request::Get("")),
    Policy::new(
        "`cors`",
        "",
        "cors: {origins: 'https://a.test'}",
        Some("add_header Access-Control-Allow-Origin https://a.test always; add_header Vary Origin always;"),
        Request::Get("Origin: https://a.test\r\n"),
    ),
    Policy {
        nginx_http: "limit_req_zone $binary_remote_addr zone=a:1m rate=1000r/s; limit_conn_zone $binary_remote_addr zone=b:1m;",
        ..Policy::new(
            "`client_limits`: `connections`, `requests`",
            "client_limits: {connections: 100, requests: {requests: 100000, per: 1s}}",
            "",
            Some("limit_req zone=a burst=100000 nodelay; limit_conn b 100;"),
            Request::Get(""),
        )
    },
    Policy::new(
        "`auth: {basic: ...}` (SHA-1)",
        "",
        "auth: {basic: {users: {joe: '{SHA}FqmlTd9CWZUuPBGMdjE46DaT1/0='}}}",
        Some("auth_basic a; auth_basic_user_file USERS;"),
        Request::Get(USER),
    ),
    Policy::new(
        "`auth: {api_key: ...}`",
        "",
        "auth: {api_key: {header: x-api-key, keys: {joe: 0f9a2c4be7d14b6a9c1d}}}",
        None,
        Request::Get("X-Api-Key: 0f9a2c4be7d14b6a9c1d\r\n"),
    ),
    Policy::new("`auth: {jwt: ...}`, a token that is remembered", "", JWT, None, Request::Get(TOKEN)),
    Policy::new(
        "`external_auth` over HTTP",
        "",
        "external_auth: {to: web, http: {path: /check}, timeout: 10s}",
        Some("auth_request /check;"),
        Request::Get(""),
    ),
    Policy::new("`respond`, without an endpoint", "", "respond: {status: 200}", Some("return 200;"), Request::Get("")),
    Policy::new("none (POST, 1 KiB)", "", "", Some("proxy_request_buffering off;"), Request::Post("")),
    Policy::new("`buffer`", "", "buffer: {}", Some("proxy_request_buffering on;"), Request::Post("")),
    Policy::new("`decompress` (gzip)", "", "decompress: {}", None, Request::PostGzip),
    Policy::new(
        "`request_bandwidth`",
        "client_limits: {request_bandwidth: {bytes: 1GiB}}",
        "",
        None,
        Request::Post(""),
    ),
    Policy::new("none (GET, 16 KiB)", "", "", Some(""), Request::Large("")),
    Policy::new(
        "`compress` (gzip, level 3)",
        "",
        "compress: {level: 3, types: ['text/*', 'application/*']}",
        Some("gzip on; gzip_comp_level 3; gzip_types *; gzip_proxied any;"),
        Request::Large("Accept-Encoding: gzip\r\n"),
    ),
    Policy::new(
        "`response_bandwidth`",
        "client_limits: {response_bandwidth: {bytes: 1GiB}}",
        "",
        Some("limit_rate 1000m;"),
        Request::Large(""),
    ),
];

impl Policy {
    const fn new(
        name: &'static str,
        listener: &'static str,
        route: &'static str,
        nginx: Option<&'static str>,
        request: Request,
    ) -> Self {
        Self { name, file: "", listener, route, nginx, nginx_http: "", request }
    }

    /// Whether others are compared with it.
    fn is_base(&self) -> bool {
        self.name.starts_with("none")
    }

    /// Whether it is one of the whole file. Another thread works for these, too.
    const fn is_file(&self) -> bool {
        !self.file.is_empty()
    }

    const fn logged(name: &'static str, file: &'static str, nginx: Option<&'static str>) -> Self {
        Self { file, ..Self::new(name, "", "", nginx, Request::Get("")) }
    }

    const fn traced(name: &'static str, file: &'static str) -> Self {
        Self { file, ..Self::new(name, "", "", None, Request::Get("")) }
    }
}

/// What is measured, and where.
struct Bench {
    directory: PathBuf,
    origins: [u16; 2],
    requests: usize,
}

/// Prints a table: for each policy, the instructions of a request without it and what it adds.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let (mut requests, mut program, mut only, mut is_demo) = (REQUESTS_DEFAULT, None, String::new(), false);
    let rest: Vec<String> = arguments.iter().filter(|argument| *argument != "--demo").cloned().collect();
    is_demo |= rest.len() < arguments.len();
    for pair in pairs(&rest, USAGE) {
        match pair? {
            ("--requests", number) => requests = number.parse().map_err(|_| USAGE)?,
            ("--only", text) => text.clone_into(&mut only),
            ("--steelyard", path) => program = Some(PathBuf::from(path)),
            _ => return Err(USAGE.into()),
        }
    }
    setup::install_for("instructions")?;
    let steelyard = match program {
        Some(program) => program,
        None => build(is_demo)?,
    };
    let directory = target_directory()?.join("bench");
    fs::create_dir_all(&directory).map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    let origins = [free_port()?, free_port()?];
    let start_origin = |port: u16, body: &str| {
        let arguments = ["origin", "http", "--listen", &format!("127.0.0.1:{port}"), "--body", body];
        let arguments: Vec<String> = arguments.map(str::to_owned).into();
        Child::start(&format!("origin-{body}"), 0, &steelyard, &arguments, &directory, (port, Ready::Accepts))
    };
    let _origins = [start_origin(origins[0], "18")?, start_origin(origins[1], "16KiB")?];
    let bench = Bench { directory, origins, requests };
    let nginx = find_program("nginx");
    println!("| policy | Steelyard | nginx |\n|---|---|---|");
    let mut without: [Option<[u64; 2]>; 2] = [None, None];
    for (policy, with_nginx) in chosen(&only) {
        let ours = if bench.knows(&steelyard, policy)? { Some(bench.steelyard(&steelyard, policy)?) } else { None };
        let theirs = match (&nginx, policy.nginx.filter(|_| with_nginx)) {
            (Some(nginx), Some(directives)) => Some(bench.nginx(nginx, policy, directives)?),
            _ => None,
        };
        let is_base = policy.is_base();
        let cell = |got: Option<[u64; 2]>, base: Option<[u64; 2]>| match (got, base) {
            (None, _) => "–".to_owned(),
            (Some([got, _]), Some([base, _])) if !is_base && got >= base => format!("+ {}", grouped(got - base)),
            (Some([got, _]), Some([base, _])) if !is_base => format!("- {}", grouped(base - got)),
            (Some([got, _]), _) => grouped(got),
        };
        let other =
            ours.filter(|_| policy.is_file()).map(|[_, other]| format!(", and {} of another thread", grouped(other)));
        let [ours_text, theirs_text] = [cell(ours, without[0]) + &other.unwrap_or_default(), cell(theirs, without[1])];
        println!("| {} | {ours_text} | {theirs_text} |", policy.name);
        if is_base {
            without = [ours, theirs];
        }
    }
    Ok(())
}

/// The policies whose names have this text, with what they are compared with, and whether nginx is compared. A start under valgrind takes long.
fn chosen(only: &str) -> Vec<(&'static Policy, bool)> {
    let mut all = Vec::new();
    for group in POLICIES.chunk_by(|_, next| !next.is_base()) {
        let wanted = |policy: &&Policy| policy.name.contains(only);
        let with_nginx = group.iter().filter(wanted).any(|policy| policy.nginx.is_some());
        let is_chosen = |policy: &&Policy| wanted(policy) || policy.is_base() && group.iter().any(|of| wanted(&of));
        all.extend(group.iter().filter(is_chosen).map(|policy| (policy, with_nginx)));
    }
    all
}

fn build(is_demo: bool) -> Result<PathBuf, String> {
    let profile = if is_demo { "demo" } else { "release" };
    let mut arguments = vec!["build", "--profile", profile, "--package", "steelyard", "--locked"];
    arguments.extend(is_demo.then_some("--no-default-features"));
    command::run(&mut cargo(&arguments))?;
    Ok(target_directory()?.join(profile).join("steelyard"))
}

impl Bench {
    fn origin(&self, policy: &Policy) -> u16 {
        self.origins[usize::from(matches!(policy.request, Request::Large(_)))]
    }

    /// Whether a build, which may be an older one, has a policy.
    fn knows(&self, program: &Path, policy: &Policy) -> Result<bool, String> {
        let file = self.configuration(free_port()?, policy)?;
        Ok(command::succeeds(Command::new(program).args(["check", "-c", &file])))
    }

    fn steelyard(&self, program: &Path, policy: &Policy) -> Result<[u64; 2], String> {
        let port = free_port()?;
        let file = self.configuration(port, policy)?;
        self.instructions(program, &["serve", "-c", &file, "--workers", "1"], port, policy, WORKER)
    }

    fn configuration(&self, port: u16, policy: &Policy) -> Result<String, String> {
        let to = if policy.route.starts_with("respond") { "" } else { "to: web" };
        let keys: Vec<&str> = [to, policy.route].into_iter().filter(|keys| !keys.is_empty()).collect();
        let config = format!(
            "{}listeners:\n  web:\n    bind: 127.0.0.1:{port}\n    protocol: http\n    {}\n    routes: [{{{}}}]\n\
             clusters:\n  web: {{endpoints: ['127.0.0.1:{}']}}\n",
            policy.file,
            policy.listener,
            keys.join(", "),
            self.origin(policy)
        );
        self.write("policy.yaml", &config)
    }

    fn nginx(&self, program: &Path, policy: &Policy, directives: &str) -> Result<[u64; 2], String> {
        let port = free_port()?;
        let users = self.write("users", "joe:{SHA}FqmlTd9CWZUuPBGMdjE46DaT1/0=\n")?;
        let (directives, origin) = (directives.replace("USERS", &users), self.origin(policy));
        let directory = self.directory.display();
        let config = format!(
            "daemon off; master_process off; pid {directory}/nginx.pid; error_log stderr;\n\
             events {{}}\n\
             http {{\n access_log off; client_body_temp_path {directory}; proxy_temp_path {directory};\n\
             fastcgi_temp_path {directory}; uwsgi_temp_path {directory}; scgi_temp_path {directory};\n\
             keepalive_requests 1000000; {}\n\
             upstream web {{ server 127.0.0.1:{origin}; keepalive 8; keepalive_requests 1000000; }}\n\
             server {{ listen 127.0.0.1:{port};\n\
             location / {{ proxy_pass http://web; proxy_http_version 1.1; proxy_set_header Connection \"\"; {directives} }}\n\
             location = /check {{ internal; proxy_pass http://web; proxy_http_version 1.1; proxy_set_header Connection \"\";\n\
             proxy_pass_request_body off; proxy_set_header Content-Length \"\"; }} }} }}\n",
            policy.nginx_http
        );
        let file = self.write("policy.conf", &config)?;
        self.instructions(program, &["-c", &file, "-e", "stderr"], port, policy, MAIN)
    }

    fn write(&self, name: &str, text: &str) -> Result<String, String> {
        let path = self.directory.join(name);
        fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(path.display().to_string())
    }

    /// The instructions of one request: those of the thread that serves it, and those of the busiest other one.
    fn instructions(
        &self,
        program: &Path,
        arguments: &[&str],
        port: u16,
        policy: &Policy,
        serving: u32,
    ) -> Result<[u64; 2], String> {
        eprintln!("{}: {} requests to {}", policy.name, self.requests, program.display());
        let counts = self.directory.join("callgrind");
        _ = fs::remove_dir_all(&counts);
        fs::create_dir(&counts).map_err(|error| format!("cannot create {}: {error}", counts.display()))?;
        collect(program, arguments, port, &policy.request.bytes(), self.requests, &counts)?;
        let mut threads = by_thread(&counts)?;
        let served = threads.remove(&serving).ok_or_else(|| format!("callgrind has not seen thread {serving}"))?;
        let other = threads.into_values().max().unwrap_or_default();
        Ok([served, other].map(|count| count / self.requests as u64))
    }
}

/// Runs a server under callgrind, and sends it requests. The counts of each thread are in `counts` then.
fn collect(
    program: &Path,
    arguments: &[&str],
    port: u16,
    request: &[u8],
    requests: usize,
    counts: &Path,
) -> Result<(), String> {
    let mut server = Command::new("valgrind");
    server.args(["--tool=callgrind", "--separate-threads=yes", "--quiet"]);
    server.arg(format!("--callgrind-out-file={}", counts.join("out").display()));
    server.arg(program).args(arguments);
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = server.spawn().map_err(|error| format!("cannot start valgrind: {error}"))?;
    let pid = server.id().to_string();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let outcome = (|| {
        let mut starts = 0;
        let mut connection = loop {
            match client::connect("client", address, None) {
                Ok(connection) => break connection,
                Err(failure) if starts == STARTS_WITHIN => return Err(failure.to_string()),
                Err(_) => pause(POLL),
            }
            starts += 1;
        };
        let mut ask = |requests| {
            for _ in 0..requests {
                connection.send(request).map_err(|failure| failure.to_string())?;
                let response = connection.response(ResponseTo::Other).map_err(|failure| failure.to_string())?;
                if response.status != 200 {
                    return Err(format!("a request was answered {}", response.status));
                }
            }
            Ok(())
        };
        ask(WARM_UP)?;
        tell(&pid, "zero")?;
        ask(requests)?;
        tell(&pid, "dump")
    })();
    // Both end at once, as no request is in progress.
    _ = command::succeeds(&mut command::command("kill", &["-TERM", &pid]));
    // A signal that comes just before it waits is seen when the wait ends, which takes nginx a minute: a connection ends it.
    while matches!(server.try_wait(), Ok(None)) {
        _ = client::connect("poke", address, None);
        pause(POLL);
    }
    outcome
}

/// Tells callgrind to set its counters to zero, or to write them down.
fn tell(pid: &str, what: &str) -> Result<(), String> {
    let mut vgdb = command::command("vgdb", &[&format!("--pid={pid}"), what]);
    if command::succeeds(&mut vgdb) { Ok(()) } else { Err(format!("`vgdb --pid={pid} {what}` has failed")) }
}

/// The instructions of each thread when callgrind was told to write them down, which it does to `out.1-THREAD`: `totals: 123`.
fn by_thread(counts: &Path) -> Result<BTreeMap<u32, u64>, String> {
    let files = fs::read_dir(counts).map_err(|error| format!("{}: {error}", counts.display()))?.flatten();
    let total = |text: String| text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
    let of = |file: fs::DirEntry| {
        let thread = file.file_name().to_str()?.strip_prefix("out.1-")?.parse().ok()?;
        Some((thread, total(fs::read_to_string(file.path()).ok()?)?))
    };
    let totals: BTreeMap<u32, u64> = files.filter_map(of).collect();
    if totals.is_empty() { Err(format!("callgrind has left no counts in {}", counts.display())) } else { Ok(totals) }
}

impl Request {
    fn bytes(self) -> Vec<u8> {
        let text: Vec<u8> = (0..1024usize).map(|at| b"the quick brown fox "[(at * 7 + at / 50) % 20]).collect();
        match self {
            Self::Get(fields) | Self::Large(fields) => {
                format!("GET /a HTTP/1.1\r\nHost: a.test\r\nUser-Agent: bench\r\nAccept: */*\r\n{fields}\r\n")
                    .into_bytes()
            }
            Self::Post(fields) => post(fields, &text),
            Self::PostGzip => {
                let gzip = command::command("gzip", &["-c", "-6"]);
                post("Content-Encoding: gzip\r\n", &through(gzip, &text))
            }
        }
    }
}

fn post(fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST /a HTTP/1.1\r\nHost: a.test\r\n{fields}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// What a program makes of its input, which is short.
fn through(mut program: Command, input: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("gzip is there");
    child.stdin.take().expect("a pipe").write_all(input).expect("it reads");
    child.wait_with_output().expect("it ends").stdout
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn every_group_begins_without_a_policy() {
        assert!(POLICIES[0].name.starts_with("none"));
        assert_eq!(POLICIES.iter().filter(|policy| policy.name.starts_with("none")).count(), 3);
    }

    #[test]
    fn only_what_is_compared_is_measured() {
        let names =
            |only| chosen(only).into_iter().map(|(policy, with_nginx)| (policy.name, with_nginx)).collect::<Vec<_>>();
        let expect = ["none (GET)", "`tracing`, no sample", "`tracing`, 1 %", "`tracing`, 100 %"];
        assert_eq!(names("tracing"), expect.map(|name| (name, false)));
        assert_eq!(names("`buffer`"), [("none (POST, 1 KiB)", true), ("`buffer`", true)]);
        assert_eq!(names("").len(), POLICIES.len());
        assert_eq!(names("no such policy"), []);
    }
}
