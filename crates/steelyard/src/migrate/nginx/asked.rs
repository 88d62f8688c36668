//! What the locations of `auth_request` and `mirror` become.

use super::*;

/// The text, and what is said about it.
fn translated(text: &str) -> (String, String) {
    let draft = Draft::of_text(text, translate);
    (draft.checked(), draft.told().join("\n"))
}

/// A server with these lines, and a location that asks `/auth`. `u` is the application, and `w` the service.
fn asking(server: &str) -> String {
    format!(
        "http {{ upstream u {{ server 10.0.0.1; }} upstream w {{ server 10.0.0.2; }} server {{ listen 80;\n{server}\n\
         location /app {{ auth_request /auth; proxy_pass http://u; }} }} }}"
    )
}

/// The same with these lines in `location = /auth`.
fn auth(inner: &str) -> String {
    asking(&format!("location = /auth {{ internal; {inner} }}"))
}

/// The application is closed, and a note about line 2 of the file says so.
#[track_caller]
fn is_closed(text: &str, note: &str) {
    let (file, told) = translated(text);
    assert!(
        !file.contains("to: u") && !file.contains("external_auth") && file.contains("status: 403"),
        "{text}\n{file}"
    );
    let is_told = |line: &str| line.contains(":2: ") && line.contains(note) && line.contains(": closed: ");
    assert!(told.lines().any(is_told), "{note}: {told}");
}

/// Each part is in what a key of a route says, or in a note. Returns the value of the key.
#[track_caller]
fn says(text: &str, key: &str, parts: &[&str]) -> String {
    let draft = Draft::of_text(text, translate);
    let file = draft.checked();
    let told = draft.told().join("\n");
    let routes = || draft.listeners.iter().flat_map(|(_, listener)| &listener.routes);
    let found = routes().filter(|route| route.get("to").is_some()).find_map(|route| route.get(key));
    let value = found.unwrap_or_else(|| panic!("{text}\n{file}\n{told}")).to_string().replace('"', "");
    for part in parts {
        assert!(value.contains(part) || told.contains(part), "{part}: {text}\n{value}\n{told}");
    }
    value
}

/// The application is open to whom `w` lets in.
#[track_caller]
fn is_asked(text: &str, parts: &[&str]) {
    let value = says(text, "external_auth", parts);
    assert!(value.ends_with("to:w}"), "{text}\n{value}");
}

#[test]
fn what_decides_before_the_service_is_asked() {
    let pass = "proxy_pass http://w;";
    for (rule, note) in [
        ("if ($http_x_secret != abc) { return 403; }", "if ($http_x_secret != abc)"),
        ("return 403;", "return 403"),
        ("rewrite ^ /verify break;", "rewrite ^ /verify break"),
        ("rewrite ^ /other last;", "rewrite ^ /other last"),
        ("set $a b;", "set $a b"),
        ("access_by_lua_block { x }", "access_by_lua_block"),
        ("nonsense on;", "nonsense on"),
        ("proxy_set_body x;", "proxy_set_body x"),
        ("proxy_pass_request_headers off;", "proxy_pass_request_headers off"),
        ("limit_except GET { deny all; }", "limit_except GET"),
        ("auth_request /other;", "auth_request /other"),
        ("try_files $uri =404;", "try_files"),
        ("location /auth/x { return 403; }", "location /auth/x"),
        ("empty_gif;", "empty_gif"),
        ("fastcgi_pass 10.0.0.3:9000;", "fastcgi_pass"),
    ] {
        is_closed(&auth(&format!("{rule} {pass}")), note);
    }
    is_closed(
        &auth("set $ok 0; if ($http_x = good) { set $ok 1; } if ($ok = 0) { return 401; } proxy_pass http://w;"),
        "",
    );
    let harmless = "proxy_pass_request_body off; proxy_set_header Content-Length ''; proxy_set_header X-Original-URI $request_uri; \
        access_log off; proxy_connect_timeout 1s; proxy_send_timeout 1s; proxy_read_timeout 2s; auth_request off; deny all; \
        proxy_buffering off; proxy_http_version 1.1; client_max_body_size 1m; proxy_cache off;";
    is_asked(&auth(&format!("{harmless} {pass}")), &["path:/auth}"]);
    let (file, _) = translated(&auth(&format!("{harmless} {pass}")));
    assert!(!file.contains("headers:") && file.contains("response_timeout: 2s"), "{file}");
}

#[test]
fn rules_of_the_server() {
    let server = |rule: &str| asking(&format!("{rule} location = /auth {{ internal; proxy_pass http://w; }}"));
    is_closed(&server("rewrite ^/auth$ https://a.example/ permanent;"), "rewrite ^/auth$");
    is_closed(&server("if ($uri ~ ^/auth) { return 403; }"), "if ($uri ~ ^/auth)");
    is_asked(&server("if ($uri ~ ^/old) { return 301 https://a.example/; }"), &[]);
    is_asked(&server("rewrite ^/old$ https://a.example/ permanent;"), &[]);
    is_asked(&server("if ($http_x = bad) { return 403; }"), &[]);
}

#[test]
fn the_path_that_is_asked() {
    let path = |url: &str, path: &str| is_asked(&auth(&format!("proxy_pass {url};")), &[&format!("path:{path}}}")]);
    path("http://w", "/auth");
    path("http://w$uri", "/auth");
    path("http://w$uri$is_args$args", "/auth");
    path("http://w/verify", "/verify");
    path("http://w/verify$is_args$args", "/verify");
    is_asked(&auth("proxy_pass http://w/verify?by=nginx;"), &["path:/verify,query:by=nginx}"]);
    is_asked(&asking("location /au { proxy_pass http://w/x/; }"), &["path:/x/th}"]);
    for url in ["http://w/check$request_uri", "http://w$request_uri", "http://w/?u=$request_uri", "http://w/$host"] {
        is_closed(&auth(&format!("proxy_pass {url};")), &format!("proxy_pass {url}"));
    }
}

#[test]
fn the_location_that_is_asked() {
    let (app, service) = ("{ proxy_pass http://u; }", "{ proxy_pass http://w; }");
    for server in [
        format!("location /auth {app} location = /auth {service}"),
        format!("location ~ ^/auth {app} location = /auth {service}"),
        format!("location ~ ^/auth {app} location ^~ /auth {service}"),
        format!("location /auth {app} location ~ ^/a {service} location ~ ^/auth {app}"),
        format!("location ~ ^/b {app} location ~* ^/AUTH$ {service}"),
        format!(
            "location / {app} location /au {service} location /a {app} location /auth/ {app} location = /authx {app} location /auth {service}"
        ),
        format!("location =/auth {service}"),
    ] {
        is_asked(&asking(&server), &[]);
    }
    for server in [
        format!("location = /auth {app} location /auth {service}"),
        format!("location ~ ^/auth {app} location /auth {service}"),
        format!("location /auth {app} location /a {service}"),
    ] {
        assert!(says(&asking(&server), "external_auth", &[]).ends_with("to:u}"), "{server}");
    }
    // nginx redirects there, and there is no such location.
    let is_shut = |server: &str| {
        let (file, _) = translated(&asking(server));
        assert!(!file.contains("external_auth"), "{file}");
    };
    is_shut(&format!("location /auth/ {service}"));
    is_shut("location @auth { proxy_pass http://w; }");
}

#[test]
fn the_headers_that_the_service_gets() {
    let headers = |lines: &str, parts: &[&str]| is_asked(&auth(&format!("{lines} proxy_pass http://w;")), parts);
    headers("proxy_set_header X-Role guest;", &["headers:{x-role:guest}"]);
    headers("proxy_set_header Cookie '';", &["headers:{cookie:}"]);
    headers("proxy_set_header X-Real-IP $remote_addr;", &["x-real-ip:${client_ip}"]);
    headers("proxy_set_header X-Uri ${request_method}:$request_uri;", &["x-uri:${method}:${target}"]);
    headers("proxy_set_header X-Key \"a$http_x_key\";", &["x-key:a${header.x-key}"]);
    headers("proxy_set_header X-Original-URI $http_x_original_uri;", &["x-original-uri:${header.x-original-uri}"]);
    headers("proxy_set_header Host $host;", &[]);
    headers("proxy_set_header Host a.example;", &["host:a.example"]);
    headers("", &["host:w"]);
    let usual = auth("proxy_set_header Host $host; proxy_set_header X-Key $http_x_key; proxy_pass http://w;");
    assert_eq!(says(&usual, "external_auth", &[]), "{failure_status:500,http:{path:/auth},timeout:60s,to:w}");
    // Those of the server hold, and those of the location that asks do not.
    is_asked(
        &asking("proxy_set_header X-Role guest; location = /auth { proxy_pass http://w; }"),
        &["headers:{x-role:guest}"],
    );
    let asks = "location /b { auth_request /auth; proxy_set_header X-Role admin; proxy_pass http://u; } location = /auth { proxy_pass http://w; }";
    let (file, _) = translated(&asking(asks));
    assert!(!file.contains("x-role:") && file.contains("X-Role: admin"), "{file}");
    for line in [
        "proxy_set_header X-Role $geoip_country;",
        "proxy_set_header Host $cookie_a;",
        "proxy_set_header X-Forwarded-Proto https;",
        "proxy_set_header X-Role é;",
    ] {
        is_closed(&auth(&format!("{line} proxy_pass http://w;")), line.trim_end_matches(';'));
    }
    let many: String = (0..33).map(|number| format!("proxy_set_header X-{number} a; ")).collect();
    is_closed(&auth(&format!("{many} proxy_pass http://w;")), "proxy_set_header X-32 a");
    headers("proxy_set_header X-Forwarded-Proto $http_x_forwarded_proto;", &["$http_x_forwarded_proto: different"]);
}

/// A location with these lines whose requests are copied to `/m`, which has those.
fn mirroring(location: &str, copy: &str) -> String {
    format!(
        "http {{ upstream u {{ server 10.0.0.1; }} upstream w {{ server 10.0.0.2; }} server {{ listen 80;\n\
         location / {{ mirror /m; {location} proxy_pass http://u; }} {copy} }} }}"
    )
}

#[test]
fn copies_that_can_be_said() {
    let copied = |location: &str, inner: &str, copy: &str, note: &str| {
        let text =
            mirroring(location, &format!("location = /m {{ internal; {inner} proxy_pass http://w$request_uri; }}"));
        assert_eq!(says(&text, "mirror", &[note]), copy, "{text}");
    };
    copied("", "", "{host:w,to:w}", "");
    copied("proxy_set_header Host $host;", "proxy_set_header Host $host;", "{to:w}", "");
    copied("proxy_set_header Host $host;", "", "{host:w,to:w}", "");
    copied("", "proxy_set_header Host $host;", "{to:w}", "copies have the Host of the endpoint");
    copied("proxy_set_header X-A a;", "proxy_set_header X-A a;", "{host:w,to:w}", "");
    copied("proxy_set_header X-Real-IP $remote_addr;", "", "{host:w,to:w}", "copies are changed in the same way");
    copied("", "proxy_read_timeout 3s; access_log off;", "{host:w,to:w}", "");
    // nginx takes the exact location.
    let text = mirroring("", "location /m { proxy_pass http://u; } location = /m { proxy_pass http://w$request_uri; }");
    assert_eq!(says(&text, "mirror", &[]), "{host:w,to:w}");
}

#[test]
fn copies_that_are_left_out() {
    let is_left_out = |text: &str, note: &str| {
        let (file, told) = translated(text);
        assert!(!file.contains("mirror:") && file.contains("to: u"), "{text}\n{file}");
        assert!(told.lines().any(|line| line.contains(note) && line.contains(": left out: ")), "{note}: {told}");
    };
    for line in [
        "if ($http_x = '') { return 204; }",
        "return 204;",
        "proxy_method GET;",
        "proxy_set_header Authorization '';",
        "proxy_pass_request_body off;",
        "proxy_set_body x;",
        "rewrite ^ /x break;",
        "set $a b;",
        "limit_req zone=a;",
    ] {
        let copy = format!("location = /m {{ internal; {line} proxy_pass http://w$request_uri; }}");
        // What is not known closes the location of the copy, which nobody may ask for anyway.
        let note = line.split([' ', ';', '{']).next().unwrap();
        let (file, told) = translated(&mirroring("", &copy));
        assert!(!file.contains("mirror:") && file.contains("to: u"), "{line}\n{file}");
        assert!(
            told.lines().any(|told| told.contains(note) && told.contains("requests are not copied to /m")),
            "{line}: {told}"
        );
    }
    let usual = "location = /m { internal; proxy_pass http://w$request_uri; }";
    is_left_out(&mirroring("mirror_request_body off;", usual), "mirror_request_body off");
    is_left_out(&mirroring("proxy_set_header X-Api-Key secret;", usual), "proxy_set_header X-Api-Key secret");
    for url in ["http://w", "http://w/copy$request_uri", "http://$x"] {
        is_left_out(&mirroring("", &format!("location = /m {{ proxy_pass {url}; }}")), &format!("proxy_pass {url}"));
    }
    is_left_out(&mirroring("", "location /x { proxy_pass http://w; }"), "left out");
    // The endpoint gets another path.
    let text = mirroring("", &format!("location /api/ {{ mirror /m; proxy_pass http://u/; }} {usual}"));
    let (file, told) = translated(&text);
    assert_eq!(file.matches("mirror:").count(), 1, "{file}");
    assert!(told.contains("mirror /m: left out: a copy has the path"), "{told}");
}
