//! Bodies of every size and framing, between every pair of protocols, with clients and origins from other projects. The tests compare every byte,
//! and every exchange must end.
//!
//! | | |
//! |---|---|
//! | clients | curl: HTTP/1.0, HTTP/1.1, HTTP/1.1 over TLS, h2c, HTTP/2 over TLS; nghttp and h2load: h2c, HTTP/2 over TLS |
//! | endpoints | HTTP/1.1, HTTP/1.1 over TLS, h2c, HTTP/2 over TLS; nginx; nghttpd |
//! | framing | content length, chunked, until the connection closes, chunked with trailers; over HTTP/2: with a length, without one, with trailers |
//! | sizes | 0, 1, 16 KiB - 1 .. + 1, 64 KiB - 1 .. + 1, 256 KiB - 1 .. + 1, 1 MiB, 20 MiB |
//!
//! Every pair downloads all sizes up to 1 MiB in every framing, and uploads them. Every pair also moves 20 MiB in both directions, in one
//! framing each. curl and `nghttp -w 30` open windows larger than any body and send nothing while they read. nghttp with its default windows
//! enlarges them as it reads. Other tests make curl read slowly, pause, and stop reading for good.
#![forbid(unsafe_code)]

#[path = "support/bodies.rs"]
mod bodies;
mod support;
#[path = "support/tls.rs"]
mod tls;

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bodies::{BYTES_MAX, ENDPOINTS, Endpoint, Origin, pattern};
use support::{Scratch, Steelyard, local, port, skip};
use testkit::{Program, until};
use tls::Pki;

/// Buffers, windows and turns have these sizes. Bodies are also one byte smaller and one byte larger.
const EDGES: [usize; 3] = [16 * 1024, 64 * 1024, 256 * 1024];
const MIB: usize = 1024 * 1024;

/// A client that runs for longer than this hangs. 10 s was too short on a host with 2 CPUs and a load average of about 10.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    Http10,
    Http11,
    Http11Tls,
    H2c,
    H2Tls,
}

impl Speaks {
    fn is_tls(self) -> bool {
        matches!(self, Self::Http11Tls | Self::H2Tls)
    }

    fn curl_option(self) -> &'static str {
        match self {
            Self::Http10 => "--http1.0",
            Self::Http11 | Self::Http11Tls => "--http1.1",
            Self::H2c => "--http2-prior-knowledge",
            Self::H2Tls => "--http2",
        }
    }

    /// The version of the response, as curl prints it.
    fn version(self) -> &'static str {
        match self {
            // A response states the version of the sender, also to an HTTP/1.0 request (RFC 9110 section 6.2).
            Self::Http10 | Self::Http11 | Self::Http11Tls => "1.1",
            Self::H2c | Self::H2Tls => "2",
        }
    }
}

fn sizes() -> Vec<usize> {
    let edges = EDGES.iter().flat_map(|edge| [edge - 1, *edge, edge + 1]);
    [0, 1].into_iter().chain(edges).chain([MIB]).collect()
}

/// A balancer in front of an origin of each kind.
struct Matrix {
    balancer: Steelyard,
    /// A second balancer with a short `stall_timeout`, and its listeners.
    impatient: (Steelyard, Vec<[SocketAddr; 2]>),
    places: Places,
}

/// What the clients need. Threads share this; they cannot share a balancer.
struct Places {
    origins: Vec<Origin>,
    /// For each endpoint, a plain listener and a TLS listener.
    listeners: Vec<[SocketAddr; 2]>,
    scratch: Scratch,
}

impl Matrix {
    fn start() -> Self {
        let scratch = Scratch::new();
        let pki = Pki::new(&scratch.path().join("pki"));
        pki.issue("server", &["localhost"]);
        let server = pki.server("server");
        let origins: Vec<Origin> = ENDPOINTS.iter().map(|endpoint| Origin::start(*endpoint, &server)).collect();
        let endpoints: Vec<_> = ENDPOINTS.into_iter().zip(origins.iter().map(|origin| origin.address)).collect();
        let (balancer, listeners) = balance(&endpoints, scratch.path(), "");
        let impatient = balance(&endpoints, scratch.path(), ", stall_timeout: 1s");
        Self { balancer, impatient, places: Places { origins, listeners, scratch } }
    }
}

impl Places {
    fn url(&self, speaks: Speaks, endpoint: Endpoint, path: &str) -> String {
        url(speaks, self.listeners[endpoint as usize], path)
    }

    /// The path of a file that holds this many bytes of the pattern.
    fn file(&self, bytes: usize) -> String {
        let path = self.scratch.path().join(bytes.to_string());
        if !path.exists() {
            // Other threads may ask for the same file, so the rename makes it appear complete.
            let new = self.scratch.path().join(format!("{bytes}-{:?}", std::thread::current().id()));
            std::fs::write(&new, pattern(bytes)).and_then(|()| std::fs::rename(&new, &path)).unwrap();
        }
        path.display().to_string()
    }
}

/// Starts a balancer that has a plain and a TLS listener for each endpoint, with the certificates in `scratch/pki`.
fn balance(endpoints: &[(Endpoint, SocketAddr)], scratch: &Path, limits: &str) -> (Steelyard, Vec<[SocketAddr; 2]>) {
    let pki = scratch.join("pki").display().to_string();
    let pair = format!("{{cert: {pki}/server.pem, key: {pki}/server.key}}");
    let (mut listeners, mut clusters, mut addresses) = (String::new(), String::new(), Vec::new());
    for (index, (endpoint, address)) in endpoints.iter().enumerate() {
        let [clear, secured] = [local(port()), local(port())];
        listeners += &format!(
            "  clear-{index}: {{bind: '{clear}', protocol: http, to: c{index}{limits}}}
  secured-{index}: {{bind: '{secured}', protocol: https, to: c{index}, tls: {{certificates: [{pair}]}}{limits}}}
"
        );
        let protocol = match endpoint {
            Endpoint::H1 | Endpoint::H1Tls => "h1",
            Endpoint::H2 => "h2c",
            Endpoint::H2Tls => "h2",
        };
        let tls = if endpoint.is_tls() {
            format!(", tls: {{ca: {pki}/ca.pem, server_name: localhost}}")
        } else {
            String::new()
        };
        clusters += &format!("  c{index}: {{endpoints: ['{address}'], protocol: {protocol}{tls}}}\n");
        addresses.push([clear, secured]);
    }
    let config = format!("admin: {{admin}}\nlisteners:\n{listeners}clusters:\n{clusters}");
    (Steelyard::serve(&config, 2), addresses)
}

fn url(speaks: Speaks, [clear, secured]: [SocketAddr; 2], path: &str) -> String {
    if speaks.is_tls() {
        format!("https://localhost:{}{path}", secured.port())
    } else {
        format!("http://localhost:{}{path}", clear.port())
    }
}

/// A command that fails with status 124 if the program does not end in time.
fn bounded(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", &ENDS_WITHIN.as_secs().to_string(), program]).stdin(Stdio::null());
    command
}

/// curl, which prints the status and version of each response on standard error.
fn curl(speaks: Speaks) -> Command {
    let mut command = bounded("curl");
    let told = "%{stderr}%{http_code} %{http_version}\n";
    // Other tests verify certificates. With `Expect`, each upload could wait for a second.
    command.args(["-sS", "-k", "-4", "--no-progress-meter", "-H", "Expect:", "-w", told, speaks.curl_option()]);
    command
}

/// Runs a program that must succeed. Returns its standard output and standard error.
#[track_caller]
fn output(what: &str, command: &mut Command) -> (Vec<u8>, String) {
    let output = command.output().unwrap_or_else(|error| panic!("{what}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{what}: {}, after {} bytes: {said}", output.status, output.stdout.len());
    (output.stdout, said)
}

/// Runs curl for all of these requests in turn, over one connection. Over h2c each request has its own connection: curl 7.88 fails with status
/// 16 when it reuses one, also without a proxy.
#[track_caller]
fn many<const N: usize>(what: &str, speaks: Speaks, options: &[&str], asks: &[[String; N]]) -> (Vec<u8>, String) {
    let each = if speaks == Speaks::H2c { 1 } else { asks.len() };
    let (mut got, mut told) = (Vec::new(), String::new());
    for asks in asks.chunks(each) {
        let (output, said) = output(what, curl(speaks).args(options).args(asks.iter().flatten()));
        got.extend(output);
        told += &said;
    }
    (got, told)
}

/// Fails unless `got` is these bodies, one after another.
#[track_caller]
fn compare(what: &str, got: &[u8], bodies: &[usize]) {
    let mut at = 0;
    for bytes in bodies {
        let piece =
            got.get(at..at + bytes).unwrap_or_else(|| panic!("{what}: {bodies:?} end after {} bytes", got.len()));
        assert!(piece == pattern(*bytes), "{what}: the body of {bytes} bytes is corrupt");
        at += bytes;
    }
    assert_eq!(got.len(), at, "{what}: more than {bodies:?}");
}

/// Whether this host lacks one of these programs. The test then skips itself.
fn lacks(name: &str, programs: &[&str]) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |program: &&str| std::env::split_paths(&paths).any(|folder| folder.join(program).exists());
    let missing: Vec<_> = programs.iter().copied().filter(|program| !is_there(program)).collect();
    if !missing.is_empty() {
        skip(name, &format!("this host lacks {}", missing.join(", ")));
    }
    !missing.is_empty()
}

/// Runs `check` for all endpoints in parallel.
fn each_endpoint(check: impl Fn(Endpoint) + Sync) {
    std::thread::scope(|scope| {
        for endpoint in ENDPOINTS {
            let check = &check;
            scope.spawn(move || check(endpoint));
        }
    });
}

/// Everything that one kind of client can ask of all endpoints.
fn matrix(name: &str, speaks: Speaks) {
    if lacks(name, &["curl"]) {
        return;
    }
    let matrix = Matrix::start();
    let places = &matrix.places;
    each_endpoint(|endpoint| {
        downloads(places, speaks, endpoint);
        uploads(places, speaks, endpoint);
        without_bodies(places, speaks, endpoint);
        slow_and_pausing(places, speaks, endpoint);
    });
    stalled(&matrix, speaks);
    assert_eq!(matrix.balancer.metric("steelyard_refused_total", &[("reason", "upstream_eof")]), 0.0);
}

fn downloads(places: &Places, speaks: Speaks, endpoint: Endpoint) {
    let framings: &[&str] =
        if endpoint.is_h2() { &["length", "chunked", "trailers"] } else { &["length", "chunked", "close", "trailers"] };
    // Each pair moves the largest size in one framing, and the pairs differ in which.
    let largest = (speaks as usize + endpoint as usize) % framings.len();
    for (index, framing) in framings.iter().enumerate() {
        let mut sizes = sizes();
        sizes.extend((index == largest).then_some(BYTES_MAX));
        let what = format!("{speaks:?} from {endpoint:?}, {framing}");
        let heads = places.scratch.path().join(format!("{speaks:?}-{endpoint:?}-{framing}"));
        let urls = sizes.iter().map(|bytes| places.url(speaks, endpoint, &format!("/{framing}/{bytes}")));
        let heads_to = ["-D", &heads.display().to_string()];
        let (got, said) = many(&what, speaks, &heads_to, &urls.map(|url| [url]).collect::<Vec<_>>());
        compare(&what, &got, &sizes);
        assert_eq!(said, format!("200 {}\n", speaks.version()).repeat(sizes.len()), "{what}");
        if *framing == "trailers" && !matches!(speaks, Speaks::Http10 | Speaks::H2c) {
            // curl writes trailers into the same file as heads.
            let told = std::fs::read_to_string(&heads).unwrap().to_ascii_lowercase();
            for bytes in &sizes {
                assert!(told.lines().any(|line| line == format!("x-sum: {bytes}")), "{what}: {bytes}: {told}");
            }
        }
    }
}

fn uploads(places: &Places, speaks: Speaks, endpoint: Endpoint) {
    let chunked: &[&str] = &["-H", "Transfer-Encoding: chunked"];
    let has_chunks = matches!(speaks, Speaks::Http11 | Speaks::Http11Tls);
    for fields in [&[][..], chunked] {
        if !fields.is_empty() && !has_chunks {
            continue;
        }
        let what = format!("{speaks:?} to {endpoint:?}, {fields:?}");
        let mut sizes = sizes();
        sizes.extend((fields.is_empty()).then_some(BYTES_MAX));
        // curl 7.88 never sends the last chunk of an empty file, also without a proxy.
        sizes.retain(|bytes| *bytes > 0 || fields.is_empty());
        let ask = |bytes: usize, path| ["-T".to_owned(), places.file(bytes), places.url(speaks, endpoint, path)];
        let asks: Vec<_> = sizes.iter().map(|bytes| ask(*bytes, "/count")).collect();
        let (got, _) = many(&what, speaks, fields, &asks);
        let expect: String = sizes.iter().map(|bytes| format!("{bytes} bytes\n")).collect();
        assert_eq!(String::from_utf8_lossy(&got), expect, "{what}");
        // Both directions at once.
        let both = [1, EDGES[2] + 1, MIB];
        compare(&what, &many(&what, speaks, fields, &both.map(|bytes| ask(bytes, "/echo"))).0, &both);
    }
}

fn without_bodies(places: &Places, speaks: Speaks, endpoint: Endpoint) {
    let what = format!("{speaks:?} from {endpoint:?}, without a body");
    let paths = ["/length/0", "/length/20971520", "/chunked/262145"];
    let urls = paths.map(|path| places.url(speaks, endpoint, path));
    let (heads, said) = many(&what, speaks, &["-I"], &urls.map(|url| [url]));
    assert_eq!(said, format!("200 {}\n", speaks.version()).repeat(paths.len()), "{what}");
    let heads = String::from_utf8_lossy(&heads).to_ascii_lowercase();
    assert!(heads.contains("content-length: 20971520\r\n"), "{what}: {heads}");
    // The client must not take the next response for the body of a 204.
    let mixed = ["/none", "/length/5", "/none", "/none", "/chunked/5"].map(|path| places.url(speaks, endpoint, path));
    let (got, said) = many(&what, speaks, &[], &mixed.map(|url| [url]));
    compare(&what, &got, &[5, 5]);
    assert_eq!(said.split_whitespace().step_by(2).collect::<Vec<_>>(), ["204", "200", "204", "204", "200"], "{what}");
}

/// Starts a download whose reader is the test: curl stops reading when the pipe is full.
fn begin(speaks: Speaks, listeners: [SocketAddr; 2]) -> (Child, ChildStdout) {
    let url = url(speaks, listeners, &format!("/length/{BYTES_MAX}"));
    let mut child = curl(speaks).arg(url).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    (child, stdout)
}

fn slow_and_pausing(places: &Places, speaks: Speaks, endpoint: Endpoint) {
    let what = format!("{speaks:?} from {endpoint:?}, slowly");
    let url = places.url(speaks, endpoint, &format!("/length/{}", EDGES[2] + 1));
    let (got, _) = output(&what, curl(speaks).args(["--limit-rate", "512k", &url]));
    compare(&what, &got, &[EDGES[2] + 1]);

    let what = format!("{speaks:?} from {endpoint:?}, with a pause");
    let (mut child, mut stdout) = begin(speaks, places.listeners[endpoint as usize]);
    let mut got = vec![0; EDGES[2] + 1];
    stdout.read_exact(&mut got).unwrap();
    until_quiet(&places.origins[endpoint as usize]);
    stdout.read_to_end(&mut got).unwrap();
    assert!(child.wait().unwrap().success(), "{what}: after {} bytes", got.len());
    compare(&what, &got, &[BYTES_MAX]);
}

/// Waits until an origin has written nothing for a while, because all buffers between it and the test are full.
fn until_quiet(origin: &Origin) {
    let (mut before, mut looks) = (u64::MAX, 0);
    let quiet = until(ENDS_WITHIN, || {
        let now = origin.written.load(Relaxed);
        looks = if now == before { looks + 1 } else { 0 };
        before = now;
        (looks >= 10).then_some(())
    });
    assert!(quiet.is_some(), "the origin never stops writing");
}

/// `stall_timeout` ends the exchange of a client that stops reading, whichever protocols the two sides speak.
fn stalled(matrix: &Matrix, speaks: Speaks) {
    let (balancer, listeners) = &matrix.impatient;
    let refused = || balancer.metric("steelyard_refused_total", &[("reason", "slow_read")]);
    let stalled = ENDPOINTS.map(|endpoint| begin(speaks, listeners[endpoint as usize]));
    let ended = until(ENDS_WITHIN, || (refused() >= 4.0).then_some(()));
    for (mut child, stdout) in stalled {
        drop(stdout);
        _ = child.kill();
        _ = child.wait();
    }
    assert!(ended.is_some(), "{speaks:?}: {} of 4 exchanges ended", refused());
}

#[test]
fn curl_over_http10() {
    matrix("curl_over_http10", Speaks::Http10);
}

#[test]
fn curl_over_http11() {
    matrix("curl_over_http11", Speaks::Http11);
}

#[test]
fn curl_over_http11_over_tls() {
    matrix("curl_over_http11_over_tls", Speaks::Http11Tls);
}

#[test]
fn curl_over_h2c() {
    matrix("curl_over_h2c", Speaks::H2c);
}

#[test]
fn curl_over_http2_over_tls() {
    matrix("curl_over_http2_over_tls", Speaks::H2Tls);
}

#[test]
fn nghttp_and_h2load() {
    if lacks("nghttp_and_h2load", &["nghttp", "h2load"]) {
        return;
    }
    let matrix = Matrix::start();
    let places = &matrix.places;
    each_endpoint(|endpoint| {
        for speaks in [Speaks::H2c, Speaks::H2Tls] {
            let what = format!("nghttp, {speaks:?} from {endpoint:?}");
            let silent: &[&str] = &["-w", "30", "-W", "30"];
            for (windows, bytes) in [(silent, EDGES[2] + 1), (silent, BYTES_MAX), (&[], EDGES[2] + 1), (&[], MIB)] {
                let url = places.url(speaks, endpoint, &format!("/length/{bytes}"));
                let (got, _) = output(&what, bounded("nghttp").args(windows).arg(&url));
                compare(&what, &got, &[bytes]);
            }
            let url = places.url(speaks, endpoint, "/count");
            let (got, _) = output(&what, bounded("nghttp").args(["-H", ":method: PUT", "-d", &places.file(MIB), &url]));
            assert_eq!(String::from_utf8_lossy(&got), format!("{MIB} bytes\n"), "{what}");
            let url = places.url(speaks, endpoint, "/trailer");
            // Over HTTP/1.1, a body with a length has no trailers.
            let put = ["--no-content-length", "-H", ":method: PUT", "-d", &places.file(EDGES[0] + 1)];
            let (got, _) = output(&what, bounded("nghttp").args(put).args(["--trailer", "x-sum: 7", &url]));
            assert_eq!(String::from_utf8_lossy(&got), "x-sum: 7\n", "{what}");

            let url = places.url(speaks, endpoint, &format!("/chunked/{}", EDGES[2] + 1));
            for windows in [silent, &[]] {
                let what = format!("h2load, {speaks:?} from {endpoint:?}, {windows:?}");
                let many = ["-n", "40", "-c", "2", "-m", "10", &url];
                let (report, said) = output(&what, bounded("h2load").args(windows).args(many));
                let report = String::from_utf8_lossy(&report);
                assert!(report.contains("40 done, 40 succeeded, 0 failed, 0 errored"), "{what}: {report}{said}");
                assert!(report.contains(&format!("({}) data", 40 * (EDGES[2] + 1))), "{what}: {report}");
            }
        }
    });
}

/// Writes a file of each size into `scratch/length`. Returns the sizes.
fn files(scratch: &Scratch) -> Vec<usize> {
    let sizes: Vec<usize> = sizes().into_iter().chain([BYTES_MAX]).collect();
    let folder = scratch.path().join("length");
    std::fs::create_dir_all(&folder).unwrap();
    for bytes in &sizes {
        std::fs::write(folder.join(bytes.to_string()), pattern(*bytes)).unwrap();
    }
    sizes
}

/// All clients download all of these files from origins that serve them.
fn take_files(endpoints: &[(Endpoint, SocketAddr)], sizes: &[usize], scratch: &Scratch) {
    let (_balancer, listeners) = balance(endpoints, scratch.path(), "");
    for ((endpoint, _), pair) in endpoints.iter().zip(listeners) {
        for speaks in [Speaks::Http10, Speaks::Http11, Speaks::Http11Tls, Speaks::H2c, Speaks::H2Tls] {
            let what = format!("{speaks:?} from {endpoint:?} of another project");
            let urls = sizes.iter().map(|bytes| url(speaks, pair, &format!("/length/{bytes}")));
            compare(&what, &many(&what, speaks, &[], &urls.map(|url| [url]).collect::<Vec<_>>()).0, sizes);
        }
        for speaks in [Speaks::H2c, Speaks::H2Tls] {
            let what = format!("nghttp, {speaks:?} from {endpoint:?} of another project");
            let url = url(speaks, pair, &format!("/length/{BYTES_MAX}"));
            compare(&what, &output(&what, bounded("nghttp").args(["-w", "30", "-W", "30", &url])).0, &[BYTES_MAX]);
        }
    }
}

/// Waits until a program accepts connections at this address.
fn until_listening(program: &mut Program, address: SocketAddr) {
    program.until("listening", || std::net::TcpStream::connect(address).ok()).unwrap();
}

#[test]
fn files_of_nginx() {
    if lacks("files_of_nginx", &["nginx", "curl", "nghttp"]) {
        return;
    }
    let scratch = Scratch::new();
    Pki::new(&scratch.path().join("pki")).issue("server", &["localhost"]);
    let sizes = files(&scratch);
    let (clear, secured) = (local(port()), local(port()));
    let root = scratch.path().display().to_string();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {root}/{kind};"))
        .concat();
    let config = scratch.write(
        "nginx.conf",
        &format!(
            "daemon off; master_process off; pid {root}/nginx.pid; error_log stderr;
events {{}}
http {{
    access_log off; {temporary} root {root};
    server {{ listen {clear}; }}
    server {{ listen {secured} ssl; ssl_certificate {root}/pki/server.pem; ssl_certificate_key {root}/pki/server.key; }}
}}
"
        ),
    );
    let mut nginx = Program::spawn("nginx", Command::new("nginx").args(["-e", "stderr", "-c", &config])).unwrap();
    until_listening(&mut nginx, clear);
    take_files(&[(Endpoint::H1, clear), (Endpoint::H1Tls, secured)], &sizes, &scratch);
}

#[test]
fn files_of_nghttpd() {
    if lacks("files_of_nghttpd", &["nghttpd", "curl", "nghttp"]) {
        return;
    }
    let scratch = Scratch::new();
    Pki::new(&scratch.path().join("pki")).issue("server", &["localhost"]);
    let sizes = files(&scratch);
    let root = scratch.path().display().to_string();
    let start = |address: SocketAddr, more: &[String]| {
        let mut command = Command::new("nghttpd");
        command.args(["-a", "127.0.0.1", "-d", &root]).args(more);
        let mut program = Program::spawn("nghttpd", &mut command).unwrap();
        until_listening(&mut program, address);
        program
    };
    let (clear, secured) = (local(port()), local(port()));
    let _clear = start(clear, &["--no-tls".to_owned(), clear.port().to_string()]);
    let keys = [format!("{root}/pki/server.key"), format!("{root}/pki/server.pem")];
    let _secured = start(secured, &[&[secured.port().to_string()], &keys[..]].concat());
    take_files(&[(Endpoint::H2, clear), (Endpoint::H2Tls, secured)], &sizes, &scratch);
}
