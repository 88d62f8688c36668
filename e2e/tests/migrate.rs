//! `steelyard migrate nginx`, on nginx itself: nginx runs a file, Steelyard runs its translation, and `steelyard migrate compare` sends both the same
//! requests. HAProxy is in `migrate_haproxy`, Envoy in `migrate_envoy`. The other translations are tested in the crate; whatever they print is checked
//! there.
#![forbid(unsafe_code)]

mod support;
#[path = "support/tls.rs"]
mod tls;

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

fn until_listening(program: &mut Program, address: SocketAddr) {
    program.until("listening", || TcpStream::connect(address).ok()).unwrap();
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
    let root = scratch.path().display().to_string();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {root}/{kind};"))
        .concat();
    let (http, https) = (local(port()), local(port()));
    let text = [
        ("{root}", root),
        ("{temporary}", temporary),
        ("{one}", one.address.to_string()),
        ("{two}", two.address.to_string()),
        ("{gone}", local(port()).to_string()),
        ("{http}", http.to_string()),
        ("{https}", https.to_string()),
    ]
    .into_iter()
    .fold(FILE.to_owned(), |text, (name, value)| text.replace(name, &value));
    let file = scratch.write("nginx.conf", &text);
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
