//! What files of HAProxy become.

use super::*;

fn translated(text: &str) -> Draft {
    Draft::of_text(text, translate)
}

#[test]
fn a_usual_file() {
    let draft = translated(
        r#"
global
maxconn 4096
defaults
mode http
option forwardfor
timeout connect 5s
timeout client 30s
timeout server 1m
frontend web
bind *:80
bind *:443 ssl crt /etc/haproxy/site.pem alpn h2,http/1.1
http-request redirect scheme https code 301 unless { ssl_fc }
acl is_api path_beg /api/ /v1/
acl host_shop hdr(host) -i shop.example.com
use_backend api if is_api host_shop
use_backend static if { path_end .png .css }
default_backend app
backend api
balance leastconn
option httpchk GET /health
http-check expect status 200
server a1 10.0.0.1:8080 check weight 10 inter 5s fall 2 rise 3
server a2 10.0.0.2:8080 check backup
backend static
server s1 10.0.0.3:80 maxconn 50
backend app
cookie SRV insert indirect nocache
http-request set-header X-Client %[src]
server p1 10.0.0.4:80 ssl verify none
"#,
    );
    let text = draft.checked();
    for part in [
        "bind: 0.0.0.0:80",
        "protocol: https",
        "/etc/haproxy/site.pem",
        "scheme: https",
        "shop.example.com",
        "(?:/api/|/v1/).*",
        "least_connections",
        "http: /health",
        "priority: 1",
        "panic_threshold: 0%",
        "weight: 10",
        "connections: 50",
        "cookie: SRV",
        "${client_ip}",
        "verify: false",
        "response_timeout: 60s",
        "connect_timeout: 5s",
        ".*(?:\\\\.png|\\\\.css)",
    ] {
        assert!(text.contains(part) || text.contains(&part.replace("\\\\", "\\")), "{part}: {text}");
    }
}

#[test]
fn what_keeps_somebody_out() {
    let of = |rules: &str| {
        translated(&format!(
            "defaults\n mode http\nfrontend f\n bind :80\n{rules} default_backend b\nbackend b\n server a 10.0.0.1:80\n"
        ))
    };
    let check = |rules: &str, parts: &[&str]| {
        let draft = of(rules);
        let text = draft.checked();
        for part in parts {
            assert!(
                text.contains(part) || draft.told().iter().any(|note| note.contains(part)),
                "{rules}: {part}: {text}\n{:?}",
                draft.told()
            );
        }
    };
    check(" http-request deny if { path_beg /admin }\n", &["status: 403", "/admin.*"]);
    check(
        " acl inside src 10.0.0.0/8 192.168.0.0/16\n http-request deny if !inside\n",
        &["allow:", "10.0.0.0/8", "192.168.0.0/16"],
    );
    check(" http-request deny if { src 192.0.2.0/24 }\n", &["deny:", "192.0.2.0/24"]);
    // Not understood: what it may be about is closed.
    check(
        " http-request deny if { path_beg /a } !{ src 10.0.0.0/8 }\n",
        &["status: 403", "/a.*", ":5: http-request deny if", "closed"],
    );
    check(" http-request deny if { lua.f } { path_beg /b }\n", &["/b.*", "status: 403"]);
    check(" http-request auth realm x unless { http_auth(users) }\n", &["status: 403", "closed"]);
    check(" http-request lua.check\n", &["status: 403", "closed"]);
    check(" http-request deny deny_status 429 if { sc_http_req_rate(0) gt 9 }\n", &["rate_limit", "left out", "to: b"]);
    check(" nonsense x\n", &["closed"]);
}

#[test]
fn connections_of_other_protocols() {
    let draft = translated(
        "defaults\n mode tcp\nlisten db\n bind 127.0.0.1:5432\n balance source\n server a db1:5432 check\nfrontend tls\n bind :443\n tcp-request inspect-delay 5s\n \
         tcp-request content accept if { req_ssl_hello_type 1 }\n use_backend a if { req_ssl_sni -i a.example }\n default_backend b\nbackend a\n server x 10.0.0.1:443\n\
         backend b\n server y 10.0.0.2:443 send-proxy-v2\n",
    );
    let text = draft.checked();
    for part in ["protocol: tcp", "maglev", "tcp: true", "tls_passthrough", "a.example", "proxy_protocol: v2"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Checks that parts are in the translation, or in what is told about it; a part that begins with `!` must not be.
#[track_caller]
pub(super) fn check(text: &str, parts: &[&str]) {
    let draft = translated(text);
    let all = format!("{}\n{}", draft.checked(), draft.told().join("\n"));
    for part in parts {
        match part.strip_prefix('!') {
            Some(part) => assert!(!all.contains(part), "{part}: {all}"),
            None => assert!(all.contains(part), "{part}: {all}"),
        }
    }
}

#[test]
fn sections_that_are_closed() {
    let front = |lines: &str| {
        format!(
            "defaults\n mode http\nfrontend f\n bind :80\n{lines}\n default_backend b\nbackend b\n server a 10.0.0.1:80\n"
        )
    };
    for line in [
        "filter spoe engine x config y",
        "option checkcache",
        "option http_proxy",
        "tcp-response content reject",
        "http-response deny if { status 200 }",
        "http-after-response allow",
        "use-server a if TRUE",
        "bind :81 interface eth0",
        "bind :81 ssl crt a.pem strict-sni",
        "bind :81 ssl crt a.pem crt-list list",
        "tcp-request connection expect-proxy layer4",
        "http-request deny if { path -f /etc/list }",
        "http-request deny if { src_get_gpc0 gt 0 }",
        "http-request deny if !{ sc_http_req_rate(0) lt 10 }",
        "http-request deny if { path,lower -m beg /a }",
        "http-request deny if { hdr(x),map(f) a }",
        "http-request deny if { hdr(x,1) a }",
        "http-request deny if { ssl_fc_sni a.example }",
        "http-request deny if { method -i get }",
        "http-request deny if { hdr_reg(x) ^a }",
        "http-request deny if { path_reg [a&&b] }",
    ] {
        check(&front(line), &["closed", "status: 403"]);
    }
    let back =
        |lines: &str| format!("defaults\n mode http\nfrontend f\n bind :80\n default_backend b\nbackend b\n{lines}\n");
    for lines in [
        "server a 10.0.0.1:80\n option checkcache",
        "server a 10.0.0.1:80\n redirect location /",
        "server a 10.0.0.1:80\n tcp-request content reject",
        "server a 10.0.0.1:80 nonsense",
        "server a 10.0.0.1:80 ssl crl-file x",
        "server a 10.0.0.1:443 ssl verify none\n server b 10.0.0.2:443 ssl verify required ca-file x",
        "server a 10.0.0.1:80\n server b 10.0.0.2:443 ssl verify none",
        "disabled\n server a 10.0.0.1:80",
        "server a 10.0.0.1:80\n http-request set-path %[path]",
        "server a 10.0.0.1:80\n http-request replace-path ^/a /b\n http-request replace-path ^/b /c",
    ] {
        check(&back(lines), &["closed", "status: 403", "!to: b"]);
    }
}

#[test]
fn what_is_harmless() {
    check(
        "defaults\n mode http\n option httplog\n option dontlognull\n stats enable\n http-after-response set-header X-B c\nfrontend f\n bind :::80\n bind :443 ssl crt a crt b ssl-min-ver TLSv1.3\n \
         option forwardfor header X-Client\n unique-id-header X-Id\n default_backend b\nbackend b\n default-server check inter 3s ssl verify none\n server ssl 10.0.0.1:80 no-ssl cookie ssl\n \
         server off 10.0.0.2:80 no-ssl disabled\n server nowhere 10.0.0.3\n server six ::1:80 no-ssl\n",
        &[
            "bind: :80",
            "cert: b",
            "min_version: 1.3",
            "X-Client: ${client_ip}",
            "- X-Id",
            "X-B: c",
            "interval: 3s",
            "!tls_",
            "!address: 10.0.0.2",
            "[::1]:80",
            "!status: 403",
            "server nowhere 10.0.0.3: left out",
            "!verify: false",
        ],
    );
    check(
        "global\n ssl-default-bind-options ssl-min-ver TLSv1.3\nlisten l\n mode http\n bind :443 ssl crt a\n server a 10.0.0.1:80\n",
        &["min_version: 1.3"],
    );
}

#[test]
fn switched_off() {
    check(
        "defaults\n mode http\nfrontend off\n disabled\n bind :80\nfrontend on\n bind :81\n",
        &["frontend off: different", "!0.0.0.0:80\n", "0.0.0.0:81"],
    );
}

#[test]
fn names_of_tls_clients() {
    let text = |rules: &str| {
        format!(
            "defaults\n mode tcp\nfrontend f\n bind :443\n{rules}\n default_backend b\nbackend a\n server x 10.0.0.1:443\nbackend b\n server y 10.0.0.2:443\n"
        )
    };
    // The first rule has all of them.
    check(
        &text(" use_backend a if { req_ssl_sni -m end .example }\n use_backend b if { req.ssl_sni x.example y.other }"),
        &["*.example", "y.other", "!x.example", "tls_passthrough"],
    );
    for rules in [
        " tcp-request content reject if { req_ssl_sni bad.example }",
        " use_backend a if { req_ssl_sni a.example } { src 10.0.0.0/8 }",
        " use_backend a if { hdr(host) a.example }",
        " use_backend none if { req_ssl_sni a.example }",
    ] {
        check(&text(rules), &["closed", "0.0.0.0/0", "nowhere"]);
    }
    check("frontend f\n bind :1\n mode health\n", &["its mode is neither", "0.0.0.0/0"]);
    check(
        "listen l\n bind :1\n disabled\nlisten m\n bind :2\n default_backend n\n server a 10.0.0.1:1\nbackend n\n server b 10.0.0.2:1\n",
        &["10.0.0.2:1", "!10.0.0.1:1"],
    );
}

#[test]
fn small_files_that_become_large() {
    let check = |text: &str| {
        let file = std::env::temp_dir().join(format!("steelyard-large-{}-{}", std::process::id(), text.len()));
        std::fs::write(&file, text).unwrap();
        let translated = translate(&file);
        std::fs::remove_file(file).unwrap();
        assert!(translated.unwrap_err().contains("split it"));
    };
    let rules =
        |count: usize, rule: &str| (0..count).map(|number| rule.replace('#', &number.to_string())).collect::<String>();
    let head = "defaults\n mode http\nfrontend f\n bind :80\n";
    // Each rule leads to a backend with many rules.
    let back = format!("backend b\n server a 10.0.0.1:80\n{}", rules(200, " http-request deny if { path /#/ }\n"));
    check(&format!("{head}{}{back}", rules(200, " use_backend b if { path /#/x }\n")));
    // Each rule has all names before it.
    check(&format!(
        "{head}{}",
        rules(3_000, " http-request deny if { path /#/ }\n http-request deny if { hdr(host) h#.example }\n")
    ));
    // Conditions with long lists.
    let acl = rules(50, " acl a path /#/\n");
    check(&format!("{head}{acl}{}", rules(1_000, " http-request deny if a or a\n")));
}

#[test]
fn values_that_steelyard_does_not_take() {
    let text = |front: &str, back: &str| {
        format!(
            "defaults\n mode http\nfrontend f\n bind :80\n {front}\n default_backend b\nbackend b\n server a 10.0.0.1:80\n {back}\n"
        )
    };
    for (front, back) in [
        ("timeout tunnel 3650d", "server a 10.0.0.1:80"),
        ("maxconn 99999999", "server b 10.0.0.2:80 weight 0 check fall 0 rise 5000 port 0 maxconn 99999999"),
        ("http-request set-header X-A é", ""),
        ("http-request set-header X:Y b", ""),
        ("monitor-uri alive", ""),
        ("use_backend b if { hdr(host) .. }", ""),
        ("use_backend b if { hdr_end(host) .10.0.0.1 }", ""),
        ("http-request deny if { path '/a b' /a?b }", ""),
        ("http-request deny if { path /a?b }", ""),
        ("http-request return status 204 string x if { path /204 }", ""),
        ("http-request deny if { src ::ffff:10.0.0.0/104 }", ""),
        ("unique-id-header X:Y", ""),
    ] {
        translated(&text(front, back)).checked();
    }
    // Ports that only one of the names has.
    check(&text("http-request deny if { hdr(host) a.example:80 a.example }", ""), &["- a.example", "!closed"]);
    check(&text("http-request deny if { hdr(host) a.example:80 }", ""), &["closed"]);
    check("listen l\n mode http\n bind :80\n server a 10.0.0.1:80 weight 0\n", &["no server in use", "status: 403"]);
}
