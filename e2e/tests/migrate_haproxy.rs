//! `steelyard migrate haproxy`, on HAProxy itself: HAProxy runs a file, Steelyard runs its translation, and both get the same requests, byte for
//! byte. Nothing that HAProxy refuses may reach an endpoint through Steelyard; what Steelyard refuses for safety is listed here, too.
#![forbid(unsafe_code)]

mod support;

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use support::{Scratch, Steelyard, local, port, run, skip};
use testkit::Program;

/// Endpoints that say what they got.
const ENDPOINTS: &str = "
defaults
    mode http
    timeout client 10s
    timeout server 10s
    timeout connect 10s
frontend one
    bind {one}
    http-request return status 200 content-type text/plain lf-string 'one %[path] %[query] %[req.hdr(x-role)] %[req.fhdr_cnt(x-role)] %[req.hdr(host)]'
frontend two
    bind {two}
    http-request return status 200 content-type text/plain lf-string 'two %[path] %[query] %[req.hdr(x-role)] %[req.fhdr_cnt(x-role)] %[req.hdr(host)]'
";

/// What all cases begin with, and the backends that they share.
const COMMON: &str = "
defaults plain
    timeout client 10s
    timeout server 10s
    timeout connect 10s
defaults web from plain
    mode http
backend one from web
    server one {one}
backend two from web
    server two {two} weight 10 check inter 1h
# No section of these defaults: each names its own.
defaults
    mode tcp
";

/// A frontend, with backends of its own, and requests for it. `{front}` begins a frontend with an address of its own, and `{tcp}` one that reads
/// no requests. Each request begins with
///
/// - `=` both answer alike, and an endpoint gets the same
/// - `<` HAProxy serves it, and the translation refuses it
/// - `<=` both refuse it
/// - `! REQUEST | REQUEST` Steelyard answers the first as HAProxy answers the second, which is its normal form
const CASES: &[(&str, &[&str])] = &[
    (
        "{front}\n http-request deny if { path_beg /admin }\n acl api path_beg /api/\n acl api path /v1 /v2\n use_backend two if api\n default_backend one",
        &[
            "=GET /",
            "=GET /admin",
            "=GET /adminx/y",
            "=GET /ADMIN",
            "=GET //admin",
            "=GET /api/a%20b?c=d",
            "=GET /api",
            "=GET /v2",
            "=GET /v2/",
            "=GET /admin%2fx",
            "=GET /admin%2Fx",
            "=GET http://shop.example/admin",
            "=GET /x%2F..%2Fadmin",
            "=GET /;/admin",
            "=GET /a\\admin",
            // HAProxy compares what the client wrote, and so lets these through.
            "!GET /%61dmin|GET /admin",
            "!GET /./admin|GET /admin",
            "!GET /x/../admin|GET /admin",
            "!GET /x/../api/y|GET /api/y",
            // What HAProxy refuses does not reach the endpoint in the form that it refuses.
            "!GET /admin/../x|GET /x",
            "!GET /admin/..|GET /",
            "!GET /%41pi|GET /Api",
        ],
    ),
    (
        // A rule without a host comes before one with a host, which Steelyard would try first.
        "{front}\n http-request deny if { path_beg /admin }\n use_backend two if { hdr_end(host) -i .b.example }\n use_backend one if { hdr(host) -i a.b.example }\n \
         http-request deny if { hdr(host) -i c.example }\n use_backend two if { path_dir /pics/ } or { path_sub zz }\n default_backend one",
        &[
            "=GET /admin Host: a.b.example",
            "=GET /x Host: a.b.example",
            "=GET /admin Host: x.b.example",
            "=GET / Host: b.example",
            "=GET / Host: c.example",
            "=GET /admin Host: other",
            "=GET /a/pics",
            "=GET /a/pics/b",
            "=GET /a/picsb",
            "=GET /azzb",
            "=GET / Host: A.B.EXAMPLE",
        ],
    ),
    (
        "{front}\n http-request deny deny_status 429 if { hdr(x-tag) -i bad worse }\n http-request deny if { hdr_sub(user-agent) bot } { method GET }\n \
         http-request deny if { hdr(x-a) 1 } { hdr(x-a) 2 }\n http-request deny if { hdr(x-gone) -m found }\n default_backend one",
        &[
            "=GET / X-Tag: bad",
            "=GET / X-Tag: good",
            "=GET / X-Tag: good , BAD,",
            "=GET / X-Tag: badly",
            "=GET / X-Tag: x;X-Tag: worse",
            "=GET / User-Agent: a robot",
            "=POST / User-Agent: a robot",
            "=GET / User-Agent: \\xffbot\\xfe",
            "=GET / X-Gone:",
            "=GET / X-Tag: \\xff, bad",
            "=GET / X-A: 1;X-A: 2",
            "<GET / X-A: 1",
            "=GET / X-A: 2",
        ],
    ),
    (
        // Any of several definitions, alternatives, and `unless`.
        "{front}\n acl inner src 192.0.2.0/24\n acl inner src 198.51.100.0/24\n acl safe method GET\n http-request deny if inner\n http-request deny unless { src 127.0.0.0/8 }\n \
         http-request redirect location /gone code 301 if { path /old } || { path_end .old }\n http-request return status 200 content-type text/plain string fine if { path /health }\n \
         use_backend two if safe { path_reg ^/r[0-9]+$ }\n use_backend two if { path -m str -i /CASE }\n default_backend one",
        &[
            "=GET /",
            "=GET /old",
            "=GET /a.old",
            "=GET /health",
            "=GET /r12",
            "=POST /r12",
            "=GET /r12x",
            "=GET /case",
            "=GET /cases",
        ],
    ),
    // The longest network would admit.
    (
        "{front}\n http-request deny if { src 127.0.0.0/8 }\n http-request deny unless { src 127.0.0.1 }\n default_backend one",
        &["=GET /"],
    ),
    (
        "{front}\n http-request deny if { src 127.0.0.0/16 }\n http-request deny unless { src 127.0.0.0/8 }\n default_backend one",
        &["=GET /"],
    ),
    (
        // The rule sees the header that an earlier rule has set.
        "{front}\n http-request set-header X-Role guest\n http-request deny if { hdr(x-role) guest }\n default_backend one",
        &["=GET /", "=GET / X-Role: admin"],
    ),
    (
        // Of several changes of a header, in the frontend and in the backend, the order counts.
        "{front}\n http-request set-header X-Role front\n use_backend set{n} if { path /set }\n use_backend del{n} if { path /del }\n use_backend add{n} if { path /add }\n \
         default_backend one\nbackend set{n} from web\n http-request del-header x-role\n http-request add-header X-Role back\n server one {one}\n\
         backend del{n} from web\n http-request del-header X-ROLE\n server one {one}\nbackend add{n} from web\n http-request add-header X-Role back\n server one {one}",
        &["=GET / X-Role: own", "=GET /set X-Role: own", "=GET /del X-Role: own", "<GET /add X-Role: own"],
    ),
    (
        // Rules of backends, also of a `listen` that a frontend leads to.
        "{front}\n use_backend a{n} if { path_beg /a }\n use_backend b{n} if { path_beg /b }\n use_backend c{n} if { path_beg /c }\n use_backend d{n} if { path_beg /d }\n \
         use_backend e{n} if { path_beg /e }\n use_backend f{n} if { path_beg /f }\n use_backend g{n} if { path_beg /g/ }\n default_backend one\n\
         backend a{n} from web\n http-request deny if { src 127.0.0.1 }\n server one {one}\nbackend b{n} from web\n tcp-request content reject if { src 127.0.0.1 }\n server one {one}\n\
         listen c{n} from web\n bind {own}\n http-request deny if { path_end /secret }\n server one {one}\nbackend d{n} from web\n http-response deny if { status 200 }\n server one {one}\n\
         backend e{n} from web\n http-request replace-path /e/(.*) /\\1\n http-request deny if { path /y }\n server one {one}\n\
         backend g{n} from web\n http-request replace-path ^/g/(.*)$ /\\1\n server one {one}\n\
         backend f{n} from web\n server one {two} disabled\n server ssl {one} cookie disabled",
        &[
            "=GET /a",
            "<=GET /b",
            "=GET /c",
            "=GET /c/secret",
            "<=GET /d",
            "<GET /e/x",
            "<=GET /e/y",
            "=GET /f",
            "=GET /g/x?y",
            "=GET /g",
            "=GET /",
        ],
    ),
    (
        // Unknown protections, and conditions that decide against somebody.
        "{front}\n http-request auth realm x unless { path_beg /open }\n default_backend one",
        &["<=GET /", "<GET /open"],
    ),
    ("{front}\n http-request deny unless { path_beg /open }\n default_backend one", &["=GET /x", "<GET /open"]),
    (
        "{front}\n http-request deny if { path_beg /in } !{ src 127.0.0.0/8 }\n http-request deny if { path_beg /out } { src_is_local }\n \
         http-request deny if { path_beg /len } { hdr(host) -m len 3 }\n http-request deny if { path_beg /dom } { hdr_dom(host) corp }\n default_backend one",
        &[
            "<GET /in",
            "<=GET /out",
            "=GET /len Host: abc",
            "<GET /len Host: abcd",
            "=GET /dom Host: a.corp.x",
            "<GET /dom Host: x",
            "=GET /",
        ],
    ),
    (
        // Cookies and parameters are split and decoded in ways of their own, so a rule that refuses closes.
        "{front}\n http-request deny if { path_beg /q } { url_param(a) evil }\n http-request deny if { path_beg /c } { cook(b) evil }\n use_backend two if { url_param(v) 2 }\n \
         use_backend two if { cook(v) 2 }\n default_backend one",
        &[
            "=GET /q?%61=1&a=evil",
            "=GET /q?x=1;a=evil",
            "=GET /c Cookie: x=1, b=evil",
            "<GET /q",
            "=GET /?v=2",
            "=GET /?v=1",
            "=GET / Cookie: v=2",
            "=GET / Cookie: x=1; v=3",
        ],
    ),
    ("{front}\n default_backend none{n}\nbackend none{n} from web\n disabled\n server one {one}", &["<=GET /"]),
    ("{front}\n option http-restrict-req-hdr-names reject\n default_backend one", &["=GET / a_b: c", "<GET /"]),
    (
        "{front}\n http-request allow if { path /free }\n http-request set-header X-Role checked\n default_backend one",
        &["<GET /free", "=GET /x"],
    ),
    ("{tcp}\n default_backend t{n}\nbackend t{n} from plain\n server one {one}", &["=GET /x"]),
    (
        "{tcp}\n default_backend t{n}\nbackend t{n} from plain\n tcp-request content reject if { src 127.0.0.1 }\n server one {one}",
        &["=GET /x"],
    ),
    (
        "{tcp}\n tcp-request connection reject if { src 127.0.0.0/8 }\n default_backend t{n}\nbackend t{n} from plain\n server one {one}",
        &["=GET /x"],
    ),
    (
        "{tcp}\n tcp-request connection accept if { src 192.0.2.1 }\n tcp-request connection reject unless { src 127.0.0.0/8 }\n default_backend t{n}\n\
         backend t{n} from plain\n server one {one}",
        &["=GET /x"],
    ),
    (
        // Without the delay, HAProxy decides by whether the request has come with the connection.
        "{tcp}\n tcp-request inspect-delay 5s\n tcp-request content reject if { req_len gt 0 }\n default_backend t{n}\nbackend t{n} from plain\n server one {one}",
        &["<=GET /x"],
    ),
    (
        "{front}\n monitor-uri /alive\n http-request set-header Host inner\n default_backend one",
        &["=HEAD /alive", "=GET /x"],
    ),
];

/// What a request gets: the status, and the body if an endpoint has answered.
fn answer(address: SocketAddr, request: &str) -> (u16, String) {
    let (line, fields) = match request.match_indices(' ').nth(1) {
        Some((at, _)) => request.split_at(at),
        None => (request, ""),
    };
    let mut text = Vec::new();
    write!(text, "{line} HTTP/1.1\r\nConnection: close\r\n").unwrap();
    if !fields.contains("Host:") {
        text.extend(b"Host: shop.example\r\n");
    }
    for field in fields.trim().split(';').filter(|field| field.contains(':')) {
        let field = field.trim().replace("\\xff", "\u{ff}").replace("\\xfe", "\u{fe}");
        text.extend(field.chars().map(|letter| u8::try_from(u32::from(letter)).unwrap()));
        text.extend(b"\r\n");
    }
    text.extend(b"\r\n");
    let mut stream = TcpStream::connect(address).unwrap();
    let mut answer = Vec::new();
    // A connection that is reset has no answer, or all of it.
    let _ = stream.write_all(&text).and_then(|()| stream.read_to_end(&mut answer));
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, if status == 200 { body.to_owned() } else { String::new() })
}

/// Why two answers are not as the case says.
fn fault(case: &str, [old, new]: [SocketAddr; 2]) -> Option<String> {
    let (same, request) = case.split_at(case.find(|letter: char| letter.is_ascii_alphabetic()).unwrap());
    let (request, normal) = request.split_once('|').unwrap_or((request, request));
    let (theirs, ours) = (answer(old, normal), answer(new, request));
    let is_refused = |(status, _): &(u16, String)| *status == 0 || *status >= 400;
    let fits = match same {
        "=" | "!" => theirs == ours,
        "<" => !is_refused(&theirs) && is_refused(&ours),
        "<=" => is_refused(&theirs) && is_refused(&ours),
        _ => panic!("{case}"),
    };
    (!fits).then(|| format!("{case}: HAProxy {theirs:?}, Steelyard {ours:?}"))
}

#[test]
fn haproxy_and_its_translation_answer_alike() {
    if Command::new("haproxy").arg("-v").output().is_err() {
        return skip("haproxy_and_its_translation_answer_alike", "haproxy is not installed");
    }
    let scratch = Scratch::new();
    let endpoints = [("{one}", local(port())), ("{two}", local(port()))];
    let fill =
        |text: &str| endpoints.iter().fold(text.to_owned(), |text, (name, at)| text.replace(name, &at.to_string()));
    let mut fronts = Vec::new();
    let mut text = fill(COMMON);
    for (number, (case, _)) in CASES.iter().enumerate() {
        let [own, old] = [(); 2].map(|()| local(port()));
        let case = fill(case).replace("{n}", &number.to_string()).replace("{own}", &own.to_string());
        writeln!(
            text,
            "{}",
            case.replace("{front}", &format!("frontend f{number} from web\n bind {old}"))
                .replace("{tcp}", &format!("frontend f{number} from plain\n bind {old}"))
        )
        .unwrap();
        fronts.push((old, local(port())));
    }
    let start = |name: &str, text: &str, at: SocketAddr| {
        let file = scratch.write(name, text);
        let mut program = Program::spawn(name, Command::new("haproxy").args(["-db", "-f", &file])).unwrap();
        program.until("listening", || TcpStream::connect(at).ok()).unwrap();
        (file, program)
    };
    let _endpoints = start("endpoints.cfg", &fill(ENDPOINTS), endpoints[0].1);
    let (file, _haproxy) = start("haproxy.cfg", &text, fronts[0].0);

    let translated = run(&["migrate", "haproxy", &file]);
    let mut config = translated.stdout.clone();
    for (old, new) in &fronts {
        config = config.replace(&format!("bind: {old}"), &format!("bind: {new}"));
    }
    // The `listen` of a case.
    let unused: Vec<&str> = config.lines().filter(|line| line.trim().starts_with("bind:")).collect();
    assert!(unused.len() > fronts.len(), "{}\n{config}", translated.stderr);
    let config = config.lines().map(|line| match line.trim().strip_prefix("bind: ") {
        Some(at) if !fronts.iter().any(|(_, new)| new.to_string() == at) => format!("    bind: {}\n", local(port())),
        _ => format!("{line}\n"),
    });
    let config: String = config.collect();
    let steelyard = Steelyard::serve(&format!("admin: {{admin}}\n{config}"), 1);
    let mut faults = Vec::new();
    for ((_, requests), (old, new)) in CASES.iter().zip(&fronts) {
        faults.extend(requests.iter().filter_map(|request| fault(request, [*old, *new])));
    }
    assert!(faults.is_empty(), "{}\n{}\n{config}", faults.join("\n"), translated.stderr);
    drop(steelyard);
}
