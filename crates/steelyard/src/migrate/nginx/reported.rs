//! Nothing is dropped without a note.

use super::tests::check;
use super::*;

fn translated(text: &str) -> (String, String) {
    let draft = Draft::of_text(text, translate);
    (draft.checked(), draft.told().join("\n"))
}

/// A file with these lines in its http block, its server and its location.
fn file(http: &str, server: &str, location: &str) -> String {
    format!(
        "http {{ {http} upstream u {{ server 10.0.0.1; }} upstream w {{ server 10.0.0.2; }} server {{ listen 80; {server} \
         location / {{ {location} }} location = /m {{ internal; proxy_pass http://w$request_uri; }} }} }}"
    )
}

#[test]
fn what_holds_for_endpoints_of_variables() {
    let rules = "gzip on; limit_rate 1k; mirror /m; proxy_next_upstream error http_503;";
    let parts = ["compress:", "response_bandwidth:", "mirror:", "retry:", "503"];
    let split = "split_clients $remote_addr $v { 10% w; * u; }";
    let (text, told) = translated(&file(split, "", &format!("proxy_pass http://$v; {rules}")));
    for part in parts {
        assert!(text.contains(part), "{part}: {text}\n{told}");
    }
    // The share of each has its own host.
    assert!(text.contains("host: u") && text.contains("host: w"), "{text}");
    let map = "map $http_x $v { default u; beta w; }";
    let (text, told) = translated(&file(map, "", &format!("proxy_pass http://$v; {rules}")));
    for part in parts {
        assert_eq!(text.matches(part).count(), 2, "{part}: {text}\n{told}");
    }
}

#[test]
fn copies_of_outer_blocks() {
    for (http, server) in [("mirror /m;", ""), ("", "mirror /m;")] {
        check(&file(http, server, "proxy_pass http://u;"), &["mirror:"]);
    }
    let (text, _) = translated(&file("", "mirror /m;", "proxy_pass http://u; mirror off;"));
    assert!(!text.contains("mirror:"), "{text}");
    check(
        &file("", "", "proxy_pass http://u; mirror /m; mirror /none;"),
        &["mirror:", "requests are not copied to /none"],
    );
}

#[test]
fn words_of_upstreams() {
    let of = |server: &str| {
        format!(
            "http {{ upstream u {{ server {server}; }} server {{ listen 80; location / {{ proxy_pass http://u; }} }} }}"
        )
    };
    check(&of("10.0.0.1 slow_start=30s; server 10.0.0.2 drain"), &["slow_start: 30s", "weight: 0", "drain: different"]);
    check(&of("app.example service=http resolve"), &["srv: _http._tcp.app.example"]);
    check(&of("app.example service=_http._tcp.x resolve"), &["srv: _http._tcp.x.app.example"]);
    check(&of("10.0.0.1 route=a"), &["`route=a` is not understood", "left out"]);
    check(&of("10.0.0.1 max_conns=5; server 10.0.0.2 max_conns=6"), &["connections: 5", "`max_conns`: a cluster"]);
}

#[test]
fn settings_about_clients() {
    let times = "client_header_timeout 7s; client_body_timeout 8s; send_timeout 9s; keepalive_timeout 11s; keepalive_requests 12; \
                 large_client_header_buffers 4 8k; http2_max_concurrent_streams 13; underscores_in_headers on;";
    let (text, told) = translated(&file(times, "", "proxy_pass http://u; proxy_next_upstream_timeout 6s;"));
    for part in [
        "header_timeout: 7s",
        "stall_timeout: 9s",
        "idle_timeout: 11s",
        "requests_per_connection: 12",
        "header_bytes: 32768B",
        "streams_per_connection: 13",
        "header_names: underscores",
        "within: 6s",
        "body_bytes:",
    ] {
        assert!(text.contains(part), "{part}: {text}\n{told}");
    }
    assert!(!told.contains("left out"), "{told}");
    // nginx drops headers with other names by default.
    check(&file("", "", "proxy_pass http://u;"), &["header_names: strict"]);
    check(&file("ignore_invalid_headers off;", "", "proxy_pass http://u;"), &["header_names: any"]);
    check(&file("keepalive_timeout 0;", "", "proxy_pass http://u;"), &["requests_per_connection: 1"]);
    let other =
        "server { listen 80; server_name b.example; keepalive_timeout 3s; location / { proxy_pass http://u; } }";
    check(
        &file(other, "keepalive_timeout 5s;", "proxy_pass http://u; send_timeout 2s;"),
        &["that of the default server"],
    );
}

#[test]
fn directives_without_an_equivalent() {
    for (line, part) in [
        ("charset utf-8;", "charset utf-8: left out"),
        ("proxy_send_timeout 5s;", "proxy_send_timeout 5s: different"),
        ("access_log /a;", "access_log /a: different"),
        ("ssl_stapling on;", "ssl_stapling on: left out"),
        ("ssl_ciphers X;", "ssl_ciphers X: different"),
    ] {
        check(&file(line, "", "proxy_pass http://u;"), &[part]);
    }
    let (_, told) = translated(&file("access_log off; sendfile on;", "", "proxy_pass http://u;"));
    assert!(!told.contains("access_log") && !told.contains("sendfile"), "{told}");
    let main = format!("user x; worker_shutdown_timeout 9s; nonsense y; {}", file("", "", "proxy_pass http://u;"));
    let (text, told) = translated(&main);
    assert!(text.contains("drain_timeout: 9s") && told.contains("nonsense y: left out"), "{told}\n{text}");
    assert!(!told.contains("user x"), "{told}");
    check(&file("", "listen 81 quic nonsense=1;", "proxy_pass http://u;"), &["HTTP/3 is not served", "`nonsense=1`"]);
    let stream = "stream { server { listen 5432 ssl; proxy_pass 10.0.0.1:5432; } }";
    check(stream, &["missing.pem", "no ssl_certificate", "left out"]);
}
