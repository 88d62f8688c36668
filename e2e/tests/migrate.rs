//! `steelyard migrate nginx`, on nginx itself: nginx runs a file, Steelyard runs its translation, and `steelyard migrate compare` sends both the same
//! requests. HAProxy is in `migrate_haproxy`, Envoy in `migrate_envoy`. The other translations are tested in the crate; whatever they print is checked
//! there.
#![forbid(unsafe_code)]

mod support;
#[path = "support/tls.rs"]
mod tls;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use serde_json::Value;
use support::{Origin, Scratch, Steelyard, local, port, run, skip};
use testkit::{Exit, Program};
use tls::Pki;

/// The file, in which `{NAME}` stands for addresses and files.
const FILE: &str = r#"
daemon off; master_process off; pid {root}/nginx.pid; error_log stderr;
events {}
http {
    access_log off; port_in_redirect off; {temporary}
    upstream app { server {one}; server {gone} backup; }
    upstream other { server {two}; }
    map $http_x_pool $pool { default app; other other; }
    server {
        listen {http};
        server_name shop.example;
        location = /health { return 200 "fine"; }
        location /api/ { proxy_pass http://app/; proxy_set_header Host $host; }
        location /v1/ { proxy_pass http://other; proxy_set_header Host $host; }
        location /plain { proxy_pass http://app/renamed; proxy_set_header Host $host; }
        location ~* \.(png|css)$ { proxy_pass http://other; proxy_set_header Host $host; }
        location ^~ /static/ { proxy_pass http://app; proxy_set_header Host $host; }
        location /old { return 301 /new; }
        location /moved/ { rewrite ^/moved/(.*)$ /api/$1 permanent; }
        location /inner/ { rewrite ^/inner/(.*)$ /x/$1 break; proxy_pass http://app; proxy_set_header Host $host; }
        location /office { allow 192.0.2.0/24; deny all; proxy_pass http://app; }
        location /home { allow 127.0.0.0/8; deny all; proxy_pass http://app; proxy_set_header Host $host; }
        location /staff { auth_basic "staff"; auth_basic_user_file {root}/users; proxy_pass http://app; proxy_set_header Host $host; }
        location /read { limit_except GET { deny all; } proxy_pass http://app; proxy_set_header Host $host; }
        location /pool { proxy_pass http://$pool; proxy_set_header Host $host; }
        location /post { if ($request_method = POST) { return 405; } proxy_pass http://app; proxy_set_header Host $host; }
        location / { proxy_pass http://app; proxy_set_header Host $host; add_header X-Added yes; }
    }
    server { listen {http}; server_name www.shop.example; return 301 http://shop.example$request_uri; }
    server { listen {http}; server_name *.any.example; location / { proxy_pass http://other; proxy_set_header Host $host; } }
    server { listen {http} default_server; return 404; }
    server {
        listen {https} ssl; server_name shop.example;
        ssl_certificate {root}/pki/site.pem; ssl_certificate_key {root}/pki/site.key;
        location / { proxy_pass http://app; proxy_set_header Host $host; }
    }
}
"#;

const REQUESTS: &str = "\
GET http://shop.example/
GET http://shop.example/x?y=z
POST http://shop.example/x
GET http://shop.example/health
GET http://shop.example/healthy
GET http://shop.example/api
GET http://shop.example/api/
GET http://shop.example/api/a%20b?c
GET http://shop.example/apix
GET http://shop.example/v1/x
GET http://shop.example/plain
GET http://shop.example/plainer/x
GET http://shop.example/a.PNG
GET http://shop.example/a.png.txt
GET http://shop.example/api/a.css
GET http://shop.example/static/a.png
GET http://shop.example/old
GET http://shop.example/older?x
GET http://shop.example/moved/a?b
GET http://shop.example/inner/a/b?c
GET http://shop.example/office
GET http://shop.example/office/x
GET http://shop.example/home
GET http://shop.example/staff
GET http://shop.example/staff\tAuthorization: Basic YW5uOnNlY3JldA==
GET http://shop.example/staff\tAuthorization: Basic YW5uOndyb25n
GET http://shop.example/read
HEAD http://shop.example/read
POST http://shop.example/read
GET http://shop.example/pool
GET http://shop.example/pool\tX-Pool: other
GET http://shop.example/post
POST http://shop.example/post
GET http://www.shop.example/x?y
GET http://a.any.example/x
GET http://a.b.any.example/x
GET http://nobody.example/
GET https://shop.example/x
";

/// What keeps somebody out. `{origin}` answers everything.
const GUARDED: &str = r#"
daemon off; master_process off; pid {root}/nginx.pid; error_log stderr;
events {}
http {
    access_log off; {temporary}
    server { listen {origin}; location / { return 200 "served\n"; } }
    server {
        listen {http} default_server; server_name paths.example;
        location /admin { deny all; }
        location /a+b { deny all; }
        location "/x y" { deny all; }
        location ~ ^/re/[+]x { deny all; }
        location ~ 20$ { proxy_pass http://{origin}; }
        location /deny { deny all; }
        location / { proxy_pass http://{origin}; }
    }
    server {
        listen {http}; server_name conditions.example;
        location /both { limit_except GET { deny all; } if ($request_method !~ ^(GET|POST)$) { return 405; } proxy_pass http://{origin}; }
        location /order { if ($http_x_token != secret) { return 403; } if ($http_x_b = 1) { return 200 inside; } proxy_pass http://{origin}; }
        location /two { if ($http_x_a != 1) { return 200 public; } if ($http_x_b != 2) { return 403; } proxy_pass http://{origin}; }
        location /empty { if ($http_x_token = "") { return 403; } proxy_pass http://{origin}; }
        location /arg { if ($arg_debug = 1) { return 403; } proxy_pass http://{origin}; }
        location /in { internal; return 200 inside; location /in/b { proxy_pass http://{origin}; } }
        location / { return 404; }
    }
    server {
        listen {http}; server_name nested.example;
        location /n { location ^~ /n/b { proxy_pass http://{origin}; } }
        location ^~ /f/ { deny all; }
        location /f/open { proxy_pass http://{origin}; }
        location /s { location /s/b/c { proxy_pass http://{origin}; } location = /s/b/d { proxy_pass http://{origin}; } }
        location /s/b { deny all; }
        location /o/ { proxy_pass http://{origin}; }
        location /o { deny all; }
        location /t { proxy_pass http://{origin}; location /t { deny all; } }
        location ~ \.php$ { deny all; }
        location / { proxy_pass http://{origin}; }
    }
    server {
        listen {http}; server_name tried.example; auth_basic x; auth_basic_user_file {root}/users;
        location /off { auth_basic off; try_files $uri @app; }
        location /net { auth_basic off; allow 127.0.0.0/8; deny all; try_files $uri @net; }
        location /pass { auth_basic off; proxy_pass http://{origin}; try_files $uri =404; }
        location @app { proxy_pass http://{origin}; }
        location @net { auth_basic off; allow 192.0.2.0/24; deny all; proxy_pass http://{origin}; }
    }
    server { listen {http}; server_name twice.example; return 403; }
    server { listen {http}; server_name twice.example once.example; location / { proxy_pass http://{origin}; } }
    server { listen {names} default_server; server_name any.example; location / { proxy_pass http://{origin}; } }
    server { listen {names}; server_name ~^admin\.; return 403; }
    server {
        listen {real}; set_real_ip_from 127.0.0.0/8;
        location /rules { deny 192.0.2.0/24; allow all; proxy_pass http://{origin}; }
        location / { proxy_pass http://{origin}; }
    }
    server {
        listen {shared}; set_real_ip_from 127.0.0.0/8; real_ip_header X-Forwarded-For; real_ip_recursive on;
        location / { proxy_pass http://{origin}; }
    }
    server { listen {shared}; server_name other.example; allow 192.0.2.0/24; deny all; location / { proxy_pass http://{origin}; } }
    server {
        listen {known}; set_real_ip_from 127.0.0.0/8; real_ip_header X-Forwarded-For; real_ip_recursive on; deny 192.0.2.0/24;
        location / { proxy_pass http://{origin}; }
    }
}
"#;

/// Requests, and the statuses of nginx and of the translation: a port, a host, a path, a method, and headers. What nginx refuses is never served.
const GUARDED_REQUESTS: &str = "\
200 200 http paths.example / GET
403 403 http paths.example /admin/x GET
403 400 http paths.example /admin%2fx GET
403 400 http paths.example /z/..%2fadmin/x GET
403 403 http paths.example //admin GET
403 403 http paths.example /./admin GET
403 403 http paths.example /%61dmin GET
403 403 http paths.example /x/../admin GET
403 403 http paths.example /x/%2e%2e/admin GET
400 400 http paths.example /admin%00 GET
403 400 http paths.example /admin#x GET
403 403 http paths.example /a+b GET
403 403 http paths.example /a%2Bb GET
403 403 http paths.example /a%2bb GET
403 403 http paths.example /x%20y GET
403 403 http paths.example /re/+x GET
403 403 http paths.example /re/%2Bx GET
403 403 http paths.example /deny%20 GET
200 200 http paths.example /deny/20 GET
403 403 http paths.example /deny/x GET
200 400 http paths.example /\\admin GET
200 403 http conditions.example /both GET
403 403 http conditions.example /both POST
403 403 http conditions.example /order GET X-B:1
200 200 http conditions.example /order GET X-B:1 X-Token:secret
200 200 http conditions.example /order GET X-Token:secret
403 403 http conditions.example /two GET X-A:1
200 200 http conditions.example /two GET X-A:1 X-B:2
200 200 http conditions.example /two GET
403 403 http conditions.example /empty GET
200 200 http conditions.example /empty GET X-Token:a
403 403 http conditions.example /arg?DEBUG=1 GET
200 403 http conditions.example /arg?x GET
404 404 http conditions.example /in GET
404 404 http conditions.example /in/b GET
403 403 http nested.example /n/b/x.php GET
200 200 http nested.example /n/b/x GET
403 403 http nested.example /f/open/x.php GET
403 403 http nested.example /f/x GET
403 403 http nested.example /s/b/c GET
403 403 http nested.example /s/b/d GET
403 403 http nested.example /o GET
200 200 http nested.example /o/ GET
403 403 http nested.example /t GET
403 403 http nested.example /x.php GET
200 200 http nested.example /x.PHP GET
401 401 http tried.example /off GET
403 403 http tried.example /net GET
404 404 http tried.example /pass GET
403 403 http twice.example / GET
200 200 http once.example / GET
403 403 http TWICE.example. / GET
200 200 names any.example / GET
403 403 names admin.example / GET
403 403 names admin.other / GET
403 403 real x /rules GET X-Real-IP:192.0.2.1
200 403 real x /rules GET
200 200 real x / GET
403 403 shared other.example / GET X-Forwarded-For:192.0.2.1
200 200 shared x / GET
403 403 known x / GET X-Forwarded-For:192.0.2.1
200 200 known x / GET X-Forwarded-For:192.0.3.1
200 200 known x / GET
";

/// One of two servers that `migrate compare` asks. `{vary}`, `{cookie}`, `{page}` and `{session}` are what differs.
const COMPARED: &str = r#"
daemon off; master_process off; pid {root}/nginx.pid; error_log stderr;
events {}
http {
    access_log off; {temporary} default_type text/plain;
    server {
        listen {http} default_server;
        location = /robots.txt { return 200 "{page}"; }
        location = /vary { {vary} return 200 x; }
        location = /cookie { add_header Set-Cookie "sid=1; Path=/{cookie}"; return 200 x; }
        location = /page { {page404} }
        location = /session { {session} return 200 x; }
        location ~ ^/api/v[0-9]+/(users|groups)$ { return 200 "{page}"; }
        location / { return 200 same; }
    }
    server { listen {http}; server_name alias.example www.shop.example; return 200 "{page}"; }
}
"#;

fn until_listening(program: &mut Program, address: SocketAddr) {
    program.until("listening", || TcpStream::connect(address).ok()).unwrap();
}

/// A file of nginx with its addresses, and with this folder for whatever it writes.
fn filled(file: &str, scratch: &Scratch, places: &[(&str, SocketAddr)]) -> String {
    let root = scratch.path().display().to_string();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {root}/{kind};"))
        .concat();
    let text = file.replace("{temporary}", &temporary).replace("{root}", &root);
    places.iter().fold(text, |text, (name, place)| text.replace(name, &place.to_string()))
}

/// The status of a request whose path is sent as it is.
fn status(address: SocketAddr, request: &[&str]) -> u64 {
    let [host, path, method, headers @ ..] = request else { panic!("{request:?}") };
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{request:?}: {answer}"))
}

#[test]
fn what_nginx_refuses_its_translation_refuses() {
    if Command::new("nginx").arg("-v").output().is_err() {
        return skip("what_nginx_refuses_its_translation_refuses", "nginx is not installed");
    }
    let scratch = Scratch::new();
    scratch.write("users", "ann:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n");
    let names = ["http", "names", "real", "shared", "known"];
    let braces = names.map(|name| format!("{{{name}}}"));
    let (old, new) = (names.map(|_| local(port())), names.map(|_| local(port())));
    let places = |all: [SocketAddr; 5]| braces.iter().map(String::as_str).zip(all).collect::<Vec<_>>();
    let (origin, moved) = (local(port()), local(port()));
    let file =
        scratch.write("nginx.conf", &filled(GUARDED, &scratch, &[&places(old)[..], &[("{origin}", origin)]].concat()));
    let mut nginx = Program::spawn("nginx", Command::new("nginx").args(["-e", "stderr", "-c", &file])).unwrap();
    until_listening(&mut nginx, old[0]);
    let translated = run(&["migrate", "nginx", &file]);
    assert_eq!(translated.exit, Exit::Code(1), "{}", translated.stderr);
    let bind = |text: String, (old, new): (SocketAddr, SocketAddr)| {
        text.replace(&format!("bind: {old}\n"), &format!("bind: {new}\n"))
    };
    let config = old.into_iter().zip(new).chain([(origin, moved)]).fold(translated.stdout, bind);
    let _steelyard = Steelyard::serve(&format!("admin: {{admin}}\n{config}"), 1);
    let mut wrong = Vec::new();
    for line in GUARDED_REQUESTS.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [of_nginx, ours, name, request @ ..] = &words[..] else { panic!("{line}") };
        let place = names.iter().position(|known| known == name).unwrap();
        let found = (status(old[place], request), status(new[place], request));
        assert!(
            found.0 < 400 || found.1 >= 400,
            "nginx refuses it, and the translation does not: {line}: {found:?}\n{config}"
        );
        if format!("{} {}", found.0, found.1) != format!("{of_nginx} {ours}") {
            wrong.push(format!("{line}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}\n{config}", wrong.join("\n"));
}

#[test]
fn includes_that_do_not_end() {
    let scratch = Scratch::new();
    let check = |text: &str, part: &str| {
        let file = scratch.write("nginx.conf", text);
        let found = run(&["migrate", "nginx", &file]);
        assert_eq!(found.exit, Exit::Code(64), "{text}: {}", found.stderr);
        assert!(found.stderr.contains(part) && found.stdout.is_empty(), "{text}: {}", found.stderr);
    };
    let pipe = scratch.path().join("pipe.conf");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    check("include /dev/zero;", "nginx.conf:1: include /dev/zero: /dev/zero: it is no file");
    check("include pipe.conf;", "pipe.conf: it is no file");
    check("include pipe*;", "pipe.conf: it is no file");
    check("include nginx.conf;", "files that include each other");
    check("include nginx.conf nginx.conf;", "files that include each other");
    check("include /proc/*/*/*/*;", "more than 20000 names");
}

#[test]
fn nginx_and_its_translation_answer_alike() {
    if Command::new("nginx").arg("-v").output().is_err() {
        return skip("nginx_and_its_translation_answer_alike", "nginx is not installed");
    }
    let scratch = Scratch::new();
    Pki::new(&scratch.path().join("pki")).issue("site", &["shop.example"]);
    // ann:secret
    scratch.write("users", "ann:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n");
    let (one, two) = (Origin::start("one"), Origin::start("two"));
    let (http, https) = (local(port()), local(port()));
    let places = [
        ("{one}", one.address),
        ("{two}", two.address),
        ("{gone}", local(port())),
        ("{http}", http),
        ("{https}", https),
    ];
    let file = scratch.write("nginx.conf", &filled(FILE, &scratch, &places));
    let mut nginx = Program::spawn("nginx", Command::new("nginx").args(["-e", "stderr", "-c", &file])).unwrap();
    until_listening(&mut nginx, http);

    let translated = run(&["migrate", "nginx", &file]);
    assert_eq!(translated.exit, Exit::Code(0), "{}", translated.stderr);
    let (new_http, new_https) = (local(port()), local(port()));
    let config = translated.stdout.replace(&http.to_string(), &new_http.to_string());
    let config = config.replace(&https.to_string(), &new_https.to_string());
    let steelyard = Steelyard::serve(&format!("admin: {{admin}}\n{config}"), 1);

    let requests = scratch.write("requests", REQUESTS);
    let [old, new, old_https, new_https] = [http, new_http, https, new_https].map(|address| address.to_string());
    let words =
        ["migrate", "compare", "--old", &old, "--new", &new, "--old-https", &old_https, "--new-https", &new_https];
    let more = ["--requests", &requests, "--all-methods", "--marker", "x-origin", "--format", "json"];
    let found = run(&[&words[..], &more[..]].concat());
    let told: Value = serde_json::from_str(&found.stdout).unwrap_or_else(|error| panic!("{error}: {}", found.stderr));
    let compared = told["compared"].as_array().unwrap();
    assert_eq!(compared.len(), REQUESTS.lines().count());
    let differs = |one: &&Value| one["differences"].as_array().unwrap().iter().any(|one| one["matters"] == true);
    let differ: Vec<String> = compared.iter().filter(differs).map(|one| format!("{one:#}")).collect();
    assert!(differ.is_empty(), "{}\n{config}", differ.join("\n"));
    // The requests show what they are to show.
    let statuses: Vec<u64> = compared.iter().filter_map(|one| one["status"]["old"].as_u64()).collect();
    for status in [200, 301, 401, 403, 404, 405] {
        assert!(statuses.contains(&status), "no request is answered {status}: {statuses:?}");
    }
    drop(steelyard);
}

#[test]
fn files_that_cannot_be_translated() {
    let scratch = Scratch::new();
    let check = |kind: &str, text: &str, part: &str| {
        let file = scratch.write("file", text);
        let found = run(&["migrate", kind, &file]);
        assert_eq!(found.exit, Exit::Code(64), "{kind}: {}", found.stderr);
        assert!(found.stderr.contains(part) && found.stdout.is_empty(), "{kind}: {}", found.stderr);
    };
    check("nginx", "http { server {", "a } is missing");
    check("nginx", "", "there is no listener");
    check("haproxy", "frontend a\n bind 'x\n", ":2: a quote is not closed");
    check("haproxy", "", "there is no listener");
    check("envoy", "{", "this is not YAML");
    check("envoy", "admin: {}", "no static_resources.listeners");
    check("ambassador", "a: b", "there is no Mapping");
}

#[test]
fn what_is_lost_is_an_exit_code() {
    let scratch = Scratch::new();
    let file =
        scratch.write("nginx.conf", "server { listen 80; location / { auth_jwt x; proxy_pass http://127.0.0.1:1; } }");
    let found = run(&["migrate", "nginx", &file]);
    assert_eq!(found.exit, Exit::Code(1));
    assert!(found.stderr.contains(&format!("{file}:1: auth_jwt x: closed: ")), "{}", found.stderr);
    assert!(found.stdout.contains("status: 403") && !found.stdout.contains("127.0.0.1:1"), "{}", found.stdout);
}

/// An Ingress with one exact path.
fn ingress(name: &str, host: &str, annotations: &str, path: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}, annotations: {{{annotations}}}}}\n\
         spec: {{rules: [{{host: {host}, http: {{paths: [{{path: '{path}', pathType: Exact, backend: {{service: {{name: a, port: {{number: 80}}}}}}}}]}}}}]}}\n"
    )
}

/// What is different between two nginx, and the requests that show it.
#[test]
fn what_is_different_is_asked_for_and_matters() {
    const NAME: &str = "what_is_different_is_asked_for_and_matters";
    if Command::new("nginx").arg("-v").output().is_err() {
        return skip(NAME, "nginx is not installed");
    }
    let start = |values: [(&str, &str); 5]| {
        let (scratch, address) = (Scratch::new(), local(port()));
        let file = values.iter().fold(COMPARED.to_owned(), |file, (name, value)| file.replace(name, value));
        let file = scratch.write("nginx.conf", &filled(&file, &scratch, &[("{http}", address)]));
        let mut nginx = Program::spawn("nginx", Command::new("nginx").args(["-e", "stderr", "-c", &file])).unwrap();
        until_listening(&mut nginx, address);
        (scratch, address.to_string(), nginx)
    };
    let (_old_files, old, _old_nginx) = start([
        ("{page}", "old"),
        ("{vary}", "add_header Vary Origin;"),
        ("{cookie}", "; Expires=Thu, 01 Jan 2037 00:00:00 GMT"),
        ("{page404}", "return 404;"),
        ("{session}", r#"if ($http_cookie !~ "sid=") { add_header Set-Cookie "sid=$request_id; Path=/"; }"#),
    ]);
    let (_new_files, new, _new_nginx) = start([
        ("{page}", "new"),
        ("{vary}", ""),
        ("{cookie}", ""),
        ("{page404}", r#"return 404 "what the application says";"#),
        ("{session}", r#"add_header Set-Cookie "sid=$request_id; Path=/";"#),
    ]);
    let compared = |words: &[&str]| -> Vec<(String, Vec<String>)> {
        let found = run(&[&["migrate", "compare", "--old", &old, "--new", &new, "--format", "json"], words].concat());
        assert_eq!(found.exit, Exit::Code(1), "{}", found.stderr);
        let told: Value = serde_json::from_str(&found.stdout).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let matter = |one: &Value| {
            let all = one["differences"].as_array().unwrap().iter().filter(|one| one["matters"] == true);
            (text(&one["url"]), all.map(|one| text(&one["what"])).collect())
        };
        told["compared"].as_array().unwrap().iter().map(matter).collect()
    };

    let scratch = Scratch::new();
    let paths = ["/vary", "/cookie", "/page", "/session", "/same"];
    let list: String = paths.iter().map(|path| format!("GET http://shop.example{path}\n")).collect();
    let found = compared(&["--requests", &scratch.write("requests", &list)]);
    let expect: [&[&str]; 5] =
        [&["header vary"], &["header set-cookie"], &["header content-type", "body"], &["sticky session"], &[]];
    for ((url, found), expect) in found.iter().zip(expect) {
        assert_eq!(found, expect, "{url}");
    }

    let prefix = "nginx.ingress.kubernetes.io";
    let names = format!("{prefix}/server-alias: alias.example, {prefix}/from-to-www-redirect: 'true'");
    let objects = [
        ingress("files", "shop.example", &names, "/robots.txt"),
        ingress("hidden", "hidden.example", "", "/.x"),
        ingress("api", "api.example", &format!("{prefix}/use-regex: 'true'"), "/api/v[0-9]+/(users|groups)"),
    ];
    let found = compared(&["--ingresses", &scratch.write("ingresses.yaml", &objects.concat())]);
    for url in [
        "http://shop.example/robots.txt",
        "http://alias.example/robots.txt",
        "http://www.shop.example/robots.txt",
        "http://api.example/api/v1/users",
    ] {
        let one = found.iter().find(|(known, _)| known == url).unwrap_or_else(|| panic!("{url}: {found:?}"));
        assert_eq!(one.1, ["body"], "{url}");
    }
    let is_malformed = |(_, differences): &&(String, Vec<String>)| differences.iter().any(|what| what == "no response");
    assert_eq!(found.iter().filter(is_malformed).collect::<Vec<_>>(), [] as [&(String, Vec<String>); 0]);
}

/// What `--to gateway-api` does not carry is an exit code, also if no annotation says it.
#[test]
fn what_objects_of_the_gateway_api_do_not_say() {
    let scratch = Scratch::new();
    let ingress = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: shop}\nspec: {ingressClassName: nginx, rules: [{host: shop.example, \
                   http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}}]}\n";
    let written =
        |name: &str, text: &str| run(&["migrate", "ingress-nginx", &scratch.write(name, text), "--to", "gateway-api"]);
    let plain = written("plain.yaml", ingress);
    assert_eq!(plain.exit, Exit::Code(0), "{}", plain.stderr);
    for part in
        ["# Note: the Deployment of ingress-nginx is not among the objects", "kind: GatewayParameters", "xRealIp: true"]
    {
        assert!(plain.stdout.contains(part), "{part}: {}", plain.stdout);
    }
    let controller = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: ingress-nginx-controller}\ndata: {proxy-add-original-uri-header: 'true'}\n\
                      ---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: ingress-nginx-controller}\n\
                      spec: {template: {spec: {containers: [{args: [/nginx-ingress-controller, --tcp-services-configmap=a/b]}]}}}\n";
    let whole = written("whole.yaml", &format!("{ingress}{controller}"));
    assert_eq!(whole.exit, Exit::Code(1), "{}", whole.stderr);
    for part in ["# Lost: ConfigMap: proxy-add-original-uri-header: ", "# Lost: flag --tcp-services-configmap: "] {
        assert!(whole.stdout.contains(part), "{part}: {}", whole.stdout);
    }
}
