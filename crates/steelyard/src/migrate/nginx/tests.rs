//! Files of nginx and what they become. Not here: nginx itself, which `e2e/tests/migrate.rs` compares with.

use super::*;

fn translated(text: &str) -> Draft {
    Draft::of_text(text, translate)
}

/// Each part is in the file or in a note.
#[track_caller]
pub(super) fn check(text: &str, parts: &[&str]) {
    let draft = translated(text);
    let (file, notes) = (draft.checked(), draft.told());
    for part in parts {
        let is_there = file.contains(part) || notes.iter().any(|note| note.contains(part));
        assert!(is_there, "{part}: {file}\n{}", notes.join("\n"));
    }
}

#[test]
fn a_usual_file() {
    let text = r#"
user www-data;
events { worker_connections 1024; }
http {
    include mime.types;
    gzip on;
    gzip_types application/json;
    upstream app {
        least_conn;
        server 10.0.0.1:8080 weight=3 max_fails=2 fail_timeout=5s;
        server 10.0.0.2:8080;
        server 10.0.0.3:8080 backup;
        keepalive 16;
    }
    server {
        listen 80;
        listen [::]:80;
        server_name shop.example.com www.shop.example.com;
        return 301 https://$host$request_uri;
    }
    server {
        listen 443 ssl http2;
        server_name shop.example.com *.shop.example.com;
        ssl_certificate /etc/ssl/shop.pem;
        ssl_certificate_key /etc/ssl/shop.key;
        client_max_body_size 20m;
        location /api/ {
            proxy_pass http://app/;
            proxy_set_header Host $host;
            proxy_set_header X-Real-IP $remote_addr;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_read_timeout 30s;
        }
        location = /health { return 200 "ok"; }
        location ~* \.(png|css)$ { proxy_pass http://app; expires 30d; }
        location /old { return 301 /new; }
        location / { proxy_pass http://app; proxy_set_header Host $host; add_header X-Frame-Options DENY always; }
    }
}
"#;
    check(
        text,
        &[
            "bind: :80",
            "scheme: https",
            "status: 301",
            "protocol: https",
            "/etc/ssl/shop.pem",
            "path: /api/",
            "path_prefix: /",
            "exact: /api",
            "exact: /health",
            "(?i).*?(?:\\.(png|css)$).*",
            "refuse_ambiguous: true",
            "regex: /old.*",
            "location: /new",
            "weight: 3",
            "priority: 1",
            "panic_threshold: 0%",
            "least_connections",
            "consecutive_5xx: 2",
            "response_timeout: 30s",
            "20971520B",
            "X-Frame-Options",
            "encodings:",
            "expires 30d: left out",
        ],
    );
}

#[test]
fn the_order_of_locations() {
    let text = "server { listen 80; location / { return 200 root; } location ~ /x { return 200 regex; } location ^~ /first { return 200 first; } \
        location /longer { return 200 longer; } location = /exact { return 200 exact; } }";
    let file = translated(text).checked();
    let places: Vec<usize> = ["body: exact", "body: first", "body: regex", "body: longer", "body: root"]
        .iter()
        .map(|part| file.find(part).unwrap_or_else(|| panic!("{part}: {file}")))
        .collect();
    assert!(places.is_sorted(), "{file}");
}

#[test]
fn servers_with_one_address() {
    let text = "server { listen 80 default_server; return 404; } server { listen 80; server_name a.example .b.example; return 200 named; }";
    check(text, &["isolated_hosts", "a.example", "b.example", "- *.b.example", "status: 404"]);
    // It is the default server anyway.
    check(
        "server { listen 80; server_name ~^(.+)\\.example$; return 200; }",
        &["server_name ~^(.+)\\.example$: different", "status: 200"],
    );
}

#[test]
fn what_keeps_somebody_out() {
    let of = |inner: &str| format!("server {{ listen 80; location /a {{ {inner} proxy_pass http://10.0.0.1; }} }}");
    check(&of("allow 10.0.0.0/8; deny all;"), &["allow:", "10.0.0.0/8"]);
    check(&of("deny 10.1.0.0/16; allow 10.0.0.0/8; deny all;"), &["deny:", "10.1.0.0/16"]);
    check(&of("deny all;"), &["status: 403"]);
    check(&of("auth_basic x; auth_basic_user_file /etc/users;"), &["realm: x", "file: /etc/users", "forward: true"]);
    check(&of("auth_basic x;"), &["status: 403", "auth_basic x: closed"]);
    let basic = "auth_basic x; auth_basic_user_file /etc/users;";
    check(
        &of(&format!("satisfy any; allow 10.0.0.0/8; deny all; {basic}")),
        &["satisfy: any", "10.0.0.0/8", "realm: x"],
    );
    let denied = of(&format!("satisfy any; deny all; {basic}"));
    check(&denied, &["realm: x"]);
    assert!(!translated(&denied).checked().contains("deny"));
    check(&of("satisfy any; deny all;"), &["status: 403", "satisfy any: closed"]);
    check(&of("satisfy any;"), &["to: "]);
    check(&of(&format!("satisfy any; deny 10.1.0.0/16; {basic}")), &["satisfy any: different", "10.1.0.0/16"]);
    check(&of("satisfy some;"), &["status: 403", "satisfy some: closed"]);
    check(&of("auth_request /auth;"), &["status: 403", "auth_request /auth: closed"]);
    check(&of("limit_except GET { deny all; }"), &["methods:", "HEAD", "status: 403"]);
    check(&of("access_by_lua_block { x }"), &["status: 403", "access_by_lua_block: closed"]);
    check(&of("auth_jwt x;"), &["status: 403", "auth_jwt x: closed"]);
    check(&of("internal;"), &["status: 404"]);
    check(&of("if ($geoip_country_code = XX) { return 403; }"), &["if ($geoip_country_code = XX): closed"]);
    check(
        "server { listen 80; nonsense on; location / { proxy_pass http://10.0.0.1; } }",
        &["status: 403", "nonsense on: closed"],
    );
    check(
        "server { listen 80; location ~ ^/(?!public) { return 403; } location / { proxy_pass http://10.0.0.1; } }",
        &["status: 403", "the server is closed"],
    );
    let asked = "server { listen 80; location / { auth_request /auth; auth_request_set $u $upstream_http_x_user; proxy_set_header X-User $u; proxy_pass http://10.0.0.1; } \
        location = /auth { internal; proxy_pass http://10.0.0.2:4180/check; } }";
    check(asked, &["external_auth", "path: /check", "- x-user", "failure_status: 500"]);
    assert!(!translated(asked).checked().contains("method: "));
    let by = |method: &str| asked.replace("internal;", &format!("internal; proxy_method {method};"));
    check(&by("POST"), &["path: /check", "method: POST"]);
    let by_get = translated(&by("GET"));
    assert!(!by_get.checked().contains("method: ") && !by_get.told().iter().any(|note| note.contains("proxy_method")));
    for method in ["TRACE", "post", "$request_method"] {
        check(&by(method), &["status: 403", &format!("proxy_method {method}: closed")]);
    }
    check(
        "server { listen 80; proxy_method HEAD; location / { auth_request /auth; return 200; } location = /auth { internal; proxy_pass http://10.0.0.2; } }",
        &["status: 200"],
    );
    check(&of("proxy_method GET;"), &["status: 403", "proxy_method GET: closed"]);
    check(
        "modsecurity on; server { listen 80; location / { proxy_pass http://10.0.0.1; } }",
        &["status: 403", "modsecurity on: closed"],
    );
}

#[test]
fn paths_of_endpoints() {
    let of = |location: &str, rest: &str| format!("server {{ listen 80; location {location} {{ {rest} }} }}");
    check(&of("/a/", "proxy_pass http://10.0.0.1/b/;"), &["path: /a/", "path_prefix: /b/", "exact: /a"]);
    check(&of("/a", "proxy_pass http://10.0.0.1/b;"), &["/a(.*)", "/b${1}"]);
    check(&of("= /a", "proxy_pass http://10.0.0.1/b;"), &["exact: /a", "path: /b"]);
    check(&of("/", "proxy_pass http://10.0.0.1/b/;"), &["path: /", "path_prefix: /b/"]);
    check(&of("~ ^/u/(.*)$", "proxy_pass http://10.0.0.1/v/$1$is_args$args;"), &["/u/(.*)", "/v/${1}"]);
    check(&of("/a/", "rewrite ^/a/(.*)$ /$1 break; proxy_pass http://10.0.0.1;"), &["/a/(.*)", "path: /${1}"]);
    check(&of("/a/", "rewrite ^/a/(.*)$ /b/$1 last; proxy_pass http://10.0.0.1;"), &["closed"]);
    check(&of("/a/", "rewrite ^/a/(.*)$ /b/$1 permanent;"), &["status: 301", "/b/${1}"]);
    check(&of("/", "proxy_pass http://$backend;"), &["status: 403", "not known before the request"]);
    // With variables, the path is always this one.
    for (location, url) in [("/a/", "http://$b/b/"), ("/a", "http://10.0.0.1/b/$is_args$args"), ("/a/", "http://$v/b/")]
    {
        let text = of(location, &format!("set $b 10.0.0.1; proxy_pass {url};"));
        let text = format!("map $http_x $v {{ default 10.0.0.1; y 10.0.0.2; }} {text}");
        check(&text, &["path: /b/"]);
        let file = translated(&text).checked();
        assert!(!file.contains("path_prefix") && !file.contains("${1}") && file.contains("to: "), "{url}: {file}");
        let is_told = translated(&text).told().iter().any(|note| note.contains("the query stays"));
        assert_eq!(is_told, !url.contains("$args"), "{url}");
    }
    check(&of("/a", "proxy_pass http://10.0.0.1/b?c=d;"), &["status: 403", "the new path is not understood"]);
    check(&of("/", "set $backend 10.0.0.9:81; proxy_pass http://$backend;"), &["10.0.0.9:81"]);
    check(&of("/", "proxy_pass https://secure.example;"), &["verify: false", "secure.example:443"]);
    check(&of("/", "grpc_pass grpc://10.0.0.1:50051;"), &["protocol: h2c"]);
    check(&of("/", "fastcgi_pass unix:/run/php.sock;"), &["status: 404", "fastcgi_pass unix:/run/php.sock: left out"]);
    check(&of("/", "root /var/www; try_files $uri =404;"), &["serves no files"]);
}

#[test]
fn conditions_and_maps() {
    let of = |inner: &str| format!("server {{ listen 80; location / {{ {inner} proxy_pass http://10.0.0.1; }} }}");
    check(&of("if ($request_method = POST) { return 405; }"), &["- POST", "status: 405"]);
    check(&of("if ($http_x_bad) { return 403; }"), &["regex: (?s)[^0].*|0.+"]);
    check(
        &of("if ($http_x_forwarded_proto != \"https\") { return 301 https://$host$request_uri; }"),
        &["x-forwarded-proto: https", "scheme: https"],
    );
    check(&of("if ($scheme = http) { return 301 https://$host$request_uri; }"), &["scheme: https"]);
    check(&of("if (-f $request_filename) { return 403; }"), &["closed"]);
    let map = "map $http_x_pool $pool { default one; two two; ~^t three; } upstream one { server 10.0.0.1; } upstream two { server 10.0.0.2; } upstream three { server 10.0.0.3; } \
        server { listen 80; location / { proxy_pass http://$pool; } }";
    check(map, &["regex: (?i)two", "10.0.0.2:80", "regex: t.*", "to: one"]);
    let split = "split_clients $remote_addr $v { 10% canary; * main; } upstream main { server 10.0.0.1; } upstream canary { server 10.0.0.2; } \
        server { listen 80; location / { proxy_pass http://$v; } }";
    check(split, &["weight: 100000", "weight: 900000"]);
    let limit = "limit_req_zone $binary_remote_addr zone=a:10m rate=5r/s; server { listen 80; location / { limit_req zone=a burst=10 nodelay; proxy_pass http://10.0.0.1; } }";
    check(limit, &["requests: 5", "burst: 11", "status: 503"]);
    let limits = "limit_req_zone $binary_remote_addr zone=a:10m rate=5r/s; limit_req_zone $remote_addr zone=b:10m rate=60r/m; limit_req_status 429; \
        limit_conn_zone $binary_remote_addr zone=c:10m; limit_conn_zone $server_name zone=d:10m; \
        server { listen 80; limit_rate_after 500k; location / { limit_req zone=a nodelay; limit_req zone=b burst=9; \
        limit_conn c 3; limit_conn d 9; limit_rate 100k; proxy_pass http://10.0.0.1; } }";
    check(
        limits,
        &[
            "also:",
            "requests: 60",
            "status: 429",
            "limit_req zone=b burst=9: different",
            "limit_conn d 9: left out",
            "group: c",
            "status: 503",
            "bytes: 102400B",
            "after: 614400B",
        ],
    );
    let same = "limit_req_zone $binary_remote_addr zone=a:10m rate=5r/s; limit_req_zone $binary_remote_addr zone=b:10m rate=5r/s; \
        server { listen 80; location / { limit_req zone=a burst=9 nodelay; limit_req zone=b burst=2 nodelay; proxy_pass http://10.0.0.1; } }";
    check(same, &["burst: 3"]);
    assert!(!translated(same).checked().contains("also:"));
    let off = "server { listen 80; limit_rate 100k; proxy_buffering off; location / { proxy_pass http://10.0.0.1; } }";
    check(off, &["limit_rate 100k: different", "to: "]);
    check(
        "server { listen 80; limit_rate $x; location / { proxy_pass http://10.0.0.1; } }",
        &["limit_rate $x: left out"],
    );
}

/// No route of a file leads to an endpoint.
#[track_caller]
fn is_shut(text: &str) {
    let file = translated(text).checked();
    assert!(!file.contains("to:") && file.contains("status: 403"), "{text}\n{file}");
}

#[test]
fn two_conditions_on_one_thing() {
    let of = |inner: &str| format!("server {{ listen 80; location / {{ {inner} proxy_pass http://10.0.0.1; }} }}");
    is_shut(&of("if ($http_x !~ ^a) { return 403; } if ($http_x !~ b$) { return 403; }"));
    is_shut(&of("if ($cookie_x != a) { return 403; } if ($cookie_x != b) { return 403; }"));
    is_shut(&of("if ($request_method !~ ^(GET|POST)$) { return 405; } limit_except GET { deny all; }"));
    check(&of("if ($http_x != a) { return 403; } if ($http_x != a) { return 403; }"), &["x: a", "to: 10.0.0.1"]);
}

/// A file with these parts, in which `{}` stands for an endpoint.
fn shop(server: &str) -> String {
    format!("server {{ listen 80; {server} }}").replace("{}", "proxy_pass http://10.0.0.1;")
}

/// The routes of the only listener that lead to an endpoint, each as one line.
fn led(text: &str) -> Vec<String> {
    let draft = translated(text);
    draft.checked();
    let routes = &draft.listeners[0].1.routes;
    let is_led = |route: &&Keys| route.get("to").is_some();
    let told = |route: &Keys| {
        route
            .entries()
            .filter(|(key, _)| super::super::draft::CONDITIONS.contains(key))
            .map(|(key, value)| format!("{key}={value}"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    routes.iter().filter(is_led).map(told).collect()
}

#[test]
fn the_order_of_conditions() {
    let statuses = |inner: &str| {
        let draft = translated(&shop(&format!("location / {{ {inner} {{}} }}")));
        let all = draft.listeners[0].1.routes.iter().map(|route| {
            let conditions: usize = ["headers", "cookies", "methods"]
                .iter()
                .filter_map(|key| route.get(key))
                .map(|value| value.as_object().map_or(1, |map| map.len()))
                .sum();
            format!(
                "{}:{conditions}",
                route.get("respond").map_or("to".to_owned(), |answer| answer["status"].to_string())
            )
        });
        draft.checked();
        all.collect::<Vec<_>>().join(" ")
    };
    // What comes after a guard needs it, and the first guard that does not hold answers.
    assert_eq!(statuses("if ($http_a != 1) { return 401; } if ($http_b = 2) { return 204; }"), "204:2 to:1 401:0");
    assert_eq!(statuses("if ($http_b = 2) { return 204; } if ($http_a != 1) { return 401; }"), "204:1 to:1 401:0");
    assert_eq!(statuses("if ($http_a != 1) { return 200; } if ($http_b != 2) { return 403; }"), "to:2 403:1 200:0");
    assert_eq!(statuses("if ($http_a != 1) { return 401; } return 200;"), "200:1 401:0");
    // Absent is empty.
    assert_eq!(statuses("if ($http_a = '') { return 401; }"), "to:1 401:0");
    assert_eq!(statuses("if ($http_a != '') { return 401; }"), "401:1 to:0");
    is_shut(&shop("location / { if ($http_a ~ ^$) { return 401; } {} }"));
    is_shut(&shop("location / { if ($arg_debug = 1) { return 403; } {} }"));
    is_shut(&shop("location / { if ($arg_key != a) { return 403; } {} }"));
    is_shut(&shop("location / { if ($cookie_key != a) { return 403; } {} }"));
    is_shut(&shop("location / { limit_except GET { deny all; } limit_except POST { deny all; } {} }"));
    assert!(led(&shop("set $a 10.0.0.1; set $a $http_x; location / { proxy_pass http://$a; }")).is_empty());
}

#[test]
fn what_is_internal() {
    let draft = |inner: &str| translated(&shop(inner)).checked();
    for inner in ["location /a { internal; return 200 secret; }", "location /a { internal; location /a/b { {} } }"] {
        let text = draft(inner);
        assert!(!text.contains("to:") && !text.contains("secret"), "{text}");
    }
}

#[test]
fn locations_in_locations() {
    // Expressions come before the inner ^~, and not before what is in an outer one.
    let all = |server: &str| led(&shop(server)).join(" | ");
    let regex = "location ~ \\.php$ { deny all; }";
    let file = translated(&shop(&format!("location /a {{ location ^~ /a/b {{ {{}} }} }} {regex}"))).checked();
    assert!(file.find("php").unwrap() < file.find("/a/b").unwrap(), "{file}");
    let file = translated(&shop(&format!("location ^~ /a {{ location /a/b {{ {{}} }} }} {regex}"))).checked();
    assert!(file.find("php").unwrap() > file.find("/a/b").unwrap(), "{file}");
    // Below ^~ of another location, expressions come first: closed.
    assert_eq!(all(&format!("location ^~ /a/ {{ deny all; }} location /a/b {{ {{}} }} {regex}")), "");
    assert_eq!(all("location ^~ /a/ { deny all; } location /a/b { {} }"), r#"path={"regex":"/a/b.*"}"#);
    // No request gets to these.
    assert_eq!(all("location /a { location /a/b/c { {} } location = /a/b/d { {} } } location /a/b { deny all; }"), "");
    assert_eq!(all("location /a { location = /a/d { {} } } location = /a/d { deny all; }"), "");
    // The inner of two.
    assert_eq!(all("location /a { {} location /a { deny all; } }"), r#"path={"regex":"/a.*"}"#);
    // The outer one is not there any more.
    let file = translated(&shop("location /a { {} location /a { deny all; } }")).checked();
    assert!(file.contains("status: 403") && !file.contains("to:"), "{file}");
    is_shut(&shop("location ~ /a { location /a/b { deny all; } {} }"));
    // `/a` is another location here.
    assert_eq!(all("location /a/ { {} } location /a { deny all; }"), r#"path={"regex":"/a/.*"}"#);
    assert_eq!(all("location /a+b { {} }"), r#"path={"regex":"(?:(?:/a)(?:\\+|(?:%2B))b).*"}"#);
}

#[test]
fn locations_with_names() {
    let allowed = |outer: &str, named: &str, server: &str| {
        translated(&shop(&format!(
            "{server} location / {{ {outer} try_files $uri @a; }} location @a {{ {named} {{}} }}"
        )))
        .checked()
    };
    let text = allowed("", "allow 10.0.0.0/8; deny all;", "");
    assert!(text.contains("to:") && text.contains("10.0.0.0/8"), "{text}");
    let text = allowed("auth_basic off;", "", "auth_basic x; auth_basic_user_file /u;");
    assert!(text.contains("to:") && text.contains("file: /u"), "{text}");
    let text = allowed("allow 10.0.0.0/8; deny all;", "allow 127.0.0.0/8; deny all;", "");
    assert!(!text.contains("to:"), "{text}");
    let text = allowed("allow 10.0.0.0/8; deny all;", "return 200 secret;", "");
    assert!(text.contains("secret") && text.contains("10.0.0.0/8"), "{text}");
    assert!(!allowed("proxy_pass http://10.0.0.2;", "deny all;", "").contains("to:"));
    is_shut(&shop("location / { try_files $uri @a; } location @a { try_files $uri @a; }"));
    check(&shop("location / { try_files $uri =404; {} }"), &["status: 404"]);
    assert!(led(&shop("location / { try_files $uri =404; {} }")).is_empty());
}

#[test]
fn names_of_servers() {
    let two = |first: &str, second: &str| {
        format!(
            "server {{ listen 80 default_server; {first} location / {{ proxy_pass http://10.0.0.1; }} }} server {{ listen 80; {second} deny all; location / {{ proxy_pass http://10.0.0.2; }} }}"
        )
    };
    // The default server takes requests without a host, if it is the first without a name.
    assert_eq!(led(&two("", "server_name \"\";")), [""]);
    for name in ["~^admin\\.", "admin.*", "\"\"", "$hostname"] {
        assert!(led(&two("server_name _;", &format!("server_name {name};"))).is_empty(), "{name}");
        assert_eq!(led(&two("server_name a;", &format!("server_name b {name};"))), [r#"hosts=["a"]"#], "{name}");
    }
    // The first has a name.
    let file = |first: &str, second: &str| translated(&two(first, second));
    assert_eq!(led(&two("server_name a;", "server_name a;")), [""]);
    assert!(!file("server_name a;", "server_name a;").checked().contains("403"));
    let deny = "server { listen 80; server_name a; return 403; } server { listen 80; server_name a; location / { proxy_pass http://10.0.0.2; } }";
    assert!(led(deny).is_empty());
    // A condition on a host holds for the hosts of the server.
    let text = "server { listen 80; return 403; } server { listen 80; server_name a *.b; if ($host = c) { return 200 c; } if ($host = x.b) { return 200 b; } return 404; }";
    let file = translated(text).checked();
    assert!(!file.contains("body: c") && file.contains("body: b"), "{file}");
}

#[test]
fn addresses_of_clients() {
    let is_known = |server: &str| {
        let text = format!(
            "server {{ listen 80; {server} location /a {{ allow 10.0.0.0/8; deny all; proxy_pass http://10.0.0.1; }} }}"
        );
        let file = translated(&text).checked();
        (file.contains("to:"), file.contains("trusted_proxies"))
    };
    let from = "set_real_ip_from 10.0.0.1;";
    assert_eq!(is_known(""), (true, false));
    assert_eq!(is_known(from), (false, false));
    assert_eq!(is_known(&format!("{from} real_ip_header X-Forwarded-For;")), (false, false));
    assert_eq!(is_known(&format!("{from} real_ip_header X-Forwarded-For; real_ip_recursive on;")), (true, true));
    assert_eq!(is_known(&format!("location /x {{ {from} }}")), (false, false));
    assert_eq!(is_known("listen 81 proxy_protocol;"), (true, false), "another port");
    let text = |more: &str| {
        format!(
            "server {{ listen 80 proxy_protocol; {more} location /a {{ deny 10.0.0.0/8; proxy_pass http://10.0.0.1; }} }}"
        )
    };
    assert!(led(&text("")).is_empty());
    assert!(led(&text("set_real_ip_from 10.0.0.1; real_ip_header proxy_protocol;")).is_empty());
    assert_eq!(led(&text("set_real_ip_from 0.0.0.0/0; real_ip_header proxy_protocol;")).len(), 1);
    // What one server trusts is no matter of another.
    let two = "server { listen 80; deny 10.0.0.0/8; location / { proxy_pass http://10.0.0.1; } } \
        server { listen 80; server_name b; set_real_ip_from 10.0.0.0/8; real_ip_header X-Forwarded-For; real_ip_recursive on; location / { proxy_pass http://10.0.0.1; } }";
    let file = translated(two).checked();
    assert!(!file.contains("trusted_proxies"), "{file}");
    assert_eq!(led(two), [r#"hosts=["b"]"#]);
}

#[test]
fn what_nobody_knows() {
    let of = |http: &str, server: &str, location: &str| {
        format!(
            "http {{ {http} server {{ listen 80; {server} location /a {{ {location} proxy_pass http://10.0.0.1; }} location /b {{ proxy_pass http://10.0.0.1; }} }} }}"
        )
    };
    assert_eq!(led(&of("", "", "")).len(), 2);
    assert_eq!(led(&of("", "", "shield on;")).len(), 1);
    assert_eq!(led(&of("", "shield on;", "")).len(), 0);
    assert_eq!(led(&of("shield on;", "", "")).len(), 0);
    assert_eq!(led(&of("geo $x { default 0; } fastcgi_cache_valid 1m; proxy_cache_lock_age 1s;", "", "")).len(), 2);
    assert_eq!(led(&of("geo $x { default 0; }", "", "if ($x) { return 403; }")).len(), 1);
    assert_eq!(led(&of("", "merge_slashes off;", "proxy_pass_request_headers off;")).len(), 1);
    let stream = "stream { deny all; server { listen 1; proxy_pass 10.0.0.1:1; } }";
    let draft = translated(stream);
    assert!(draft.listeners.is_empty() && draft.told()[0].contains("deny all: closed"), "{:?}", draft.told());
    let slashes = "server { listen 80; merge_slashes off; location / { proxy_pass http://10.0.0.1; } } server { listen 80; server_name b; }";
    assert!(led(slashes).is_empty());
}

#[test]
fn tls_of_servers() {
    let servers = |first: &str, second: &str| {
        let pair = "ssl_certificate /a.pem; ssl_certificate_key /a.key;";
        format!("server {{ listen 443 ssl; {pair} {first} }} server {{ listen 443; server_name b; {pair} {second} }}")
    };
    let verify = "ssl_verify_client on; ssl_client_certificate /ca.pem;";
    check(&servers("", "ssl_protocols TLSv1.3;"), &["min_version: 1.3", "all of the port has"]);
    let text = translated(&servers("", "ssl_protocols TLSv1.2 TLSv1.3;")).checked();
    assert!(!text.contains("min_version"), "{text}");
    let text = translated(&servers("", verify)).checked();
    assert!(text.contains("ca: /ca.pem\n        hosts:"), "{text}");
    let text = translated(&servers(&format!("server_name a; {verify}"), "")).checked();
    assert!(text.contains("ca: /ca.pem") && !text.contains("ca: /ca.pem\n        hosts:"), "{text}");
    check(&servers(verify, "ssl_verify_client on; ssl_client_certificate /other.pem;"), &["one CA", "status: 403"]);
    let optional =
        "ssl_verify_client optional; ssl_client_certificate /ca.pem; location / { proxy_pass http://10.0.0.1; }";
    check(&servers("", optional), &["ca: /ca.pem\n        hosts:", "required: false", "mode: optional", "to: "]);
    let unsigned = optional.replace("optional", "optional_no_ca");
    check(&servers("", &unsigned), &["required: false", "mode: unsigned"]);
    check(&servers(verify, optional), &["ssl_verify_client optional: closed", "status: 403"]);
    let without_ca = "ssl_verify_client optional; location / { proxy_pass http://10.0.0.1; }";
    check(&servers("", without_ca), &["ssl_verify_client optional: closed", "status: 403"]);
    let revoking = format!("{verify} ssl_crl /revoked.pem;");
    check(&servers("", &revoking), &["crl: /revoked.pem"]);
    check(&servers(verify, &revoking), &["one CA", "status: 403"]);
}

#[test]
fn lists_of_addresses() {
    let of = |text: &str| {
        let one = |entry: &str| {
            let (name, network) = entry.split_once(' ').unwrap();
            Directive {
                file: "f".into(),
                line: 1,
                name: name.to_owned(),
                args: vec![network.to_owned()],
                block: Vec::new(),
            }
        };
        let all: Vec<Directive> = text.split("; ").map(one).collect();
        policy::lists(&all.iter().collect::<Vec<_>>()).to_string()
    };
    assert_eq!(of("allow 10.0.0.0/8; deny all"), r#"{"allow":["10.0.0.0/8"],"deny":[]}"#);
    // The first entry decides, so the second has no effect.
    assert_eq!(
        of("deny 10.0.0.0/8; allow 10.1.0.0/16; deny all"),
        r#"{"allow":[],"deny":["10.0.0.0/8","0.0.0.0/0","::/0"]}"#
    );
    assert_eq!(
        of("allow 10.1.0.0/16; deny 10.0.0.0/8"),
        r#"{"allow":["10.1.0.0/16","0.0.0.0/0","::/0"],"deny":["10.0.0.0/8"]}"#
    );
    assert_eq!(of("deny 10.0.0.0/8"), r#"{"allow":[],"deny":["10.0.0.0/8"]}"#);
    assert_eq!(of("allow 10.0.0.0/8"), "null");
    assert_eq!(of("deny nonsense"), r#""deny nonsense""#);
}

#[test]
fn connections() {
    let text = "stream { upstream db { server 10.0.0.1:5432; server 10.0.0.2:5432 backup; } server { listen 127.0.0.1:5432; proxy_pass db; proxy_timeout 10m; } \
        server { listen 53 udp; proxy_pass 10.0.0.3:53; } }";
    check(
        text,
        &["protocol: tcp", "bind: 127.0.0.1:5432", "idle_timeout: 600s", "priority: 1", "listen 53 udp: left out"],
    );
}

#[test]
fn whole_names_of_variables() {
    let of = |inner: &str| {
        format!(
            "server {{ listen 80; set $h foo; set $remote x; location / {{ {inner} proxy_pass http://10.0.0.1; }} }}"
        )
    };
    let file = translated(&of(
        "proxy_set_header Host $host; proxy_set_header X-A $remote_addr; proxy_set_header X-B ${h}ost;",
    ));
    let text = file.checked();
    assert!(!text.contains("host: ") && text.contains("X-A: ${client_ip}") && text.contains("X-B: fooost"), "{text}");
    check(&of("if ($http_x = a) { return 301 https://$host$request_uri; }"), &["scheme: https"]);
    check(&of("proxy_set_header Host $H;"), &["host: foo"]);
    let map = |url: &str| {
        format!(
            "map $http_x $b {{ default 10.0.0.1; y 10.0.0.2; }} map $http_y $v {{ default 10.0.0.3; }} \
             server {{ listen 80; set $backend 10.0.0.4; location / {{ proxy_pass {url}; }} }}"
        )
    };
    assert_eq!(led(&map("http://$b")).len(), 2);
    assert_eq!(led(&map("http://${b}")).len(), 2);
    assert_eq!(led(&map("http://$backend")).len(), 1);
    is_shut(&map("http://$both"));
    is_shut(&map("http://$b$v"));
}

#[test]
fn grpc_of_variables() {
    for variable in [
        "map $http_x $v { default 10.0.0.1; y 10.0.0.2; }",
        "split_clients $remote_addr $v { 50% 10.0.0.1; * 10.0.0.2; }",
    ] {
        for url in ["grpc://$v", "$v"] {
            let text = format!("{variable} server {{ listen 80; location / {{ grpc_pass {url}; }} }}");
            let file = translated(&text).checked();
            assert_eq!(file.matches("protocol: h2c").count(), 2, "{file}");
        }
    }
}

#[test]
fn forwarded_headers_of_clients() {
    for name in ["For", "Proto", "Host"] {
        let variable = format!("$http_x_forwarded_{}", name.to_lowercase());
        let text = shop(&format!("location / {{ proxy_set_header X-Forwarded-{name} {variable}; {{}} }}"));
        check(&text, &[&format!("X-Forwarded-{name} {variable}: different"), "trusted_proxies"]);
    }
    let draft = translated(&shop("location / { proxy_set_header X-Key $http_x_key; {} }"));
    assert!(!draft.told().iter().any(|note| note.contains("X-Key")), "{:?}", draft.told());
}

#[test]
fn limits_that_count_together() {
    let of = |a: &str, b: &str| {
        format!(
            "limit_req_zone $binary_remote_addr zone=one:10m rate=5r/s; limit_req_zone $binary_remote_addr zone=two:10m rate=9r/s; \
             map $http_x $v {{ default 10.0.0.1; y 10.0.0.2; }} \
             server {{ listen 80; location /a {{ {a} proxy_pass http://$v; }} location /b {{ {b} proxy_pass http://10.0.0.1; }} }}"
        )
    };
    let together = translated(&of(
        "limit_req zone=one burst=5 nodelay;",
        "limit_req zone=one burst=5 nodelay; limit_req_status 429;",
    ));
    assert_eq!(together.checked().matches("group: one").count(), 3, "{}", together.checked());
    let is_told = |draft: &Draft| draft.told().iter().any(|note| note.contains("counts on its own"));
    assert!(!is_told(&together));
    assert!(is_told(&translated(&of("limit_req zone=one burst=5 nodelay;", "limit_req zone=one nodelay;"))));
    let both =
        translated(&of("limit_req zone=one nodelay;", "limit_req zone=one nodelay; limit_req zone=two nodelay;"));
    assert!(is_told(&both) && both.checked().contains("group: one_two"), "{}", both.checked());
}
