//! Nothing is dropped without a note.

use super::tests::check;

/// A file with these lines in its global section, its frontend and its backend.
fn file(global: &str, front: &str, back: &str) -> String {
    format!(
        "global\n {global}\ndefaults\n mode http\nfrontend f\n bind :80\n {front}\n default_backend b\nbackend b\n {back}\n"
    )
}

#[test]
fn lines_of_global() {
    let server = "server a 10.0.0.1:443 ssl ca-file ca.pem crt own.pem";
    let tls = "bind :443 ssl crt site.pem ca-file clients.pem verify required crl-file l.pem";
    check(
        &file("ca-base /ca/\n crt-base /crt", tls, server),
        &["cert: /crt/site.pem", "ca: /ca/clients.pem", "crl: /ca/l.pem", "ca: /ca/ca.pem", "cert: /crt/own.pem"],
    );
    check(&file("crt-base /crt", "bind :443 ssl crt /etc/site.pem", "server a 10.0.0.1:80"), &["cert: /etc/site.pem"]);
    let plain = "server a 10.0.0.1:443 ssl";
    check(&file("ssl-default-server-verify none", "", plain), &["verify: false"]);
    check(&file("ssl-server-verify none", "", plain), &["verify: false"]);
    check(&file("ssl-server-verify none", "", &format!("{plain} verify required")), &["!verify: false"]);
    check(
        &file("maxconn 4096\n hard-stop-after 20s", "", "server a 10.0.0.1:80"),
        &["connections: 4096", ":2: maxconn 4096: different", "drain_timeout: 20s"],
    );
    check(&file("maxconn 4096", "maxconn 100", "server a 10.0.0.1:80"), &["connections: 100"]);
    let nothing = "user x\n chroot /y\n ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets";
    check(&file(nothing, "", "server a 10.0.0.1:80"), &["!left out", "!different", "!closed"]);
    for (line, part) in [
        ("nonsense x", "nonsense x: left out"),
        ("log /dev/log local0", "log /dev/log local0: different"),
        ("ssl-default-bind-options ssl-max-ver TLSv1.2", "ssl-max-ver TLSv1.2: different"),
        ("ssl-default-bind-ciphers X", "ssl-default-bind-ciphers X: different"),
        ("tune.http.maxhdr 50", "header_count"),
        ("default-path /x", "default-path /x: left out"),
        ("maxconnrate 5", "maxconnrate 5: left out"),
        ("ssl-default-server-options ssl-min-ver TLSv1.3", "ssl-default-server-options ssl-min-ver TLSv1.3: left out"),
    ] {
        check(&file(line, "", "server a 10.0.0.1:80"), &[part]);
    }
    let strict = "global\n ssl-default-bind-options strict-sni\nlisten l\n mode http\n bind :443 ssl crt a\n server a 10.0.0.1:80\n";
    check(strict, &["`strict-sni` is not understood", "status: 403", "!to: l"]);
}

#[test]
fn lines_that_look_harmless() {
    let server = "server a 10.0.0.1:80";
    check(&file("user x", "", &format!("http-reuse never\n {server}")), &["http-reuse never: different"]);
    check(
        &file("user x", "", &format!("http-reuse safe\n no log\n no option redispatch\n {server}")),
        &["!different", "!left out"],
    );
    let proxied = "http-request set-header X-Forwarded-Proto https";
    check(&file("user x", proxied, server), &["X-Forwarded-Proto https: different"]);
    check(&file("user x", &format!("{proxied} if {{ ssl_fc }}"), server), &["!different"]);
    check(&file("user x", "", &format!("{server} check")), &["panic_threshold: 0%"]);
    check(&file("user x", "", &format!("no strange\n {server}")), &["no strange: left out"]);
    check(&file("no strange\n no busy-polling", "", server), &[":2: no strange: left out", "!busy-polling"]);
    let statistics = "defaults\n mode http\n stats uri /s\nlisten l\n bind :80\n server a 10.0.0.1:80\n";
    check(statistics, &["stats uri /s: left out"]);
}

#[test]
fn checks_of_other_protocols() {
    let server = "server a 10.0.0.1:80 check";
    for option in [
        "option redis-check",
        "option pgsql-check user x",
        "option mysql-check",
        "option smtpchk",
        "option ldap-check",
        "option external-check",
        "option ssl-hello-chk",
        "option tcp-check\n tcp-check send PING\\r\\n",
        "option tcp-check\n tcp-check expect string +PONG",
        "option tcp-check\n tcp-check connect ssl",
        "option httpchk\n http-check disable-on-404",
        "option httpchk\n http-check send meth POST uri / body x",
        "option httpchk\n http-check connect ssl",
        "option httpchk\n http-check send hdr X-A %[uuid]",
    ] {
        check(&file("user x", "", &format!("{option}\n {server}")), &["left out"]);
    }
    // Only the last option counts, and one that is taken back does not.
    let last = "option redis-check\n option httpchk GET /h\n option pgsql-check\n no option pgsql-check";
    check(&file("user x", "", &format!("{last}\n {server}")), &["http: /h", "!left out"]);
    check(
        &file("user x", "", &format!("option tcp-check\n tcp-check connect port 99\n {server}")),
        &["port: 99", "!left out"],
    );
    let sends = "option httpchk\n http-check connect port 81\n http-check send meth GET uri /h ver HTTP/1.1 hdr Host a.example hdr X-A b";
    check(
        &file("user x", "", &format!("{sends}\n {server}")),
        &["http: /h", "port: 81", "host: a.example", "X-A: b", "!left out", "!probes are GET"],
    );
    let old = "option httpchk GET /h HTTP/1.1\\r\\nHost:\\ a.example\\r\\nX-B:\\ c";
    check(&file("user x", "", &format!("{old}\n {server}")), &["host: a.example", "X-B: c", "!left out"]);
    // A check by HTTP of servers that get connections.
    let tcp = "listen l\n bind :1\n option httpchk GET /h\n server a 10.0.0.1:1\n server b 10.0.0.2:1 check\n";
    check(tcp, &["http: /h", "`check`: a cluster has one setting"]);
}

#[test]
fn words_of_servers() {
    for word in [
        "addr 10.0.0.9",
        "track b/x",
        "agent-check agent-port 99",
        "check-ssl",
        "check-sni x",
        "minconn 3",
        "maxqueue 4",
        "proxy-v2-options crc32c",
        "on-marked-up shutdown-backup-sessions",
        "ssl ca-file /x sni req.hdr(host)",
        "ssl ca-file /x ssl-min-ver TLSv1.3",
    ] {
        check(&file("user x", "", &format!("server a 10.0.0.1:80 check {word}")), &["left out"]);
    }
    check(
        &file("user x", "", "server a 10.0.0.1:80 check observe layer7 error-limit 7 on-marked-down shutdown-sessions"),
        &["consecutive_5xx: 7", "on_unhealthy: close"],
    );
    check(
        &file("user x", "", "server a 10.0.0.1:80 send-proxy-v2-ssl"),
        &["proxy_protocol: v2", "does not tell about TLS"],
    );
    let both = "server a 10.0.0.1:443 ssl ca-file /x sni str(a.example) verifyhost b.example";
    check(&file("user x", "", both), &["server_name: a.example", "- b.example"]);
    let differ = "server a 10.0.0.1:80 maxconn 5\n server b 10.0.0.2:80 maxconn 6";
    check(&file("user x", "", differ), &["`maxconn`: a cluster has one setting"]);
    let backups = "server a 10.0.0.1:80\n server b 10.0.0.2:80 backup\n server c 10.0.0.3:80 backup";
    check(&file("user x", "", backups), &["priority: 1", "priority: 2"]);
    check(&file("user x", "", &format!("{backups}\n option allbackups")), &["priority: 1", "!priority: 2"]);
}

#[test]
fn lines_of_sections() {
    let server = "server a 10.0.0.1:80";
    for (front, back) in [
        ("", "timeout tunnel 1h"),
        ("", "source 10.0.0.9"),
        ("", "fullconn 9"),
        ("", "hash-balance-factor 150"),
        ("", "http-request set-timeout server 5s"),
        ("", "option http-buffer-request"),
        ("", "retry-on 0rtt-rejected"),
        ("http-request set-timeout server 5s", ""),
        ("http-request set-bandwidth-limit x", ""),
        ("http-response set-bandwidth-limit x", ""),
        ("http-request wait-for-body time 1s", ""),
        ("option accept-invalid-http-request", ""),
        ("bind :81 ssl crt x crt-ignore-err all", ""),
    ] {
        check(&file("user x", front, &format!("{back}\n {server}")), &["left out", "!closed"]);
    }
    check(&file("user x", "bind :81 maxconn 7", server), &["connections: 7"]);
    check(&file("user x", "bind :81 ssl crt x alpn http/1.1", server), &["http2: false"]);
    check(
        "listen l\n bind :1\n maxconn 9\n timeout client 1m\n timeout tunnel 2h\n server a 10.0.0.1:1\n",
        &["connections: 9", "idle_timeout: 7200s"],
    );
    check(&file("user x", "log 10.0.0.9 local0", server), &["log 10.0.0.9 local0: different"]);
    let unused = format!("{}backend unused\n server z 10.0.0.9:80\n", file("user x", "", server));
    check(&unused, &["backend unused: different"]);
}
