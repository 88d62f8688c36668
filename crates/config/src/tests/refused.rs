//! Every refusal: its place, its message and its hint.

use model::Generation;
use proptest::prelude::*;

use super::example;
use crate::parse;

/// Every error of a file, one per line, without the name of the file.
fn errors(text: &str) -> String {
    let Err(errors) = parse("f", text, Generation(1)) else { return "no error".to_owned() };
    assert!(!errors.0.is_empty());
    let lines: Vec<String> = errors.0.iter().map(|d| d.to_string().trim_start_matches("f:").to_owned()).collect();
    lines.join("\n")
}

pub(super) fn check(text: &str, expect: &str) {
    assert_eq!(errors(text), expect, "\n{text}");
}

/// The keys of the only listener, from column 17 of line 2.
fn listener(keys: &str, expect: &str) {
    check(&format!("clusters: {{web: {{endpoints: [\"a:1\"]}}}}\nlisteners: {{l: {{{keys}}}}}"), expect);
}

/// Routes of the only listener, one a line: the first in line 7, each from column 6.
pub(super) fn routes(routes: &[&str], expect: &str) {
    let routes: String = routes.iter().map(|route| format!("   - {{{route}}}\n")).collect();
    let head = "clusters: {web: {endpoints: [\"a:1\"]}}\nlisteners:\n l:\n  bind: :1\n  protocol: http\n  routes:\n";
    check(&format!("{head}{routes}"), expect);
}

/// The keys of the only cluster, from column 17 of line 2.
fn cluster(keys: &str, expect: &str) {
    check(
        &format!("listeners: {{l: {{bind: \":1\", protocol: tcp, to: web}}}}\nclusters: {{web: {{{keys}}}}}"),
        expect,
    );
}

#[test]
fn the_file_as_a_whole() {
    check(
        "42",
        "1:1: the file must be a mapping with `admin`, `admin_access`, `metrics`, `access_log`, `tracing`, `dns`, `watch`, `drain_delay`, `drain_timeout`, `memory_max`, `listeners`, `clusters`, `zone`, `vips`, `sidecar` or `kernel_plane`, not text",
    );
    check(
        "- a",
        "1:1: the file must be a mapping with `admin`, `admin_access`, `metrics`, `access_log`, `tracing`, `dns`, `watch`, `drain_delay`, `drain_timeout`, `memory_max`, `listeners`, `clusters`, `zone`, `vips`, `sidecar` or `kernel_plane`, not a list",
    );
    check(
        r#"listeners: {}
clusters: {}"#,
        "1:12: `listeners` is empty; add at least one, with a name, `bind` and `protocol`",
    );
    check(
        r#"listeners:
clusters: 1"#,
        r#"1:10: `listeners` has no value; it must be a mapping from a name to a listener
2:11: `clusters` must be a mapping from a name to a cluster, not text"#,
    );
    check(
        r#"? [a]
: b
? {c: d}
: 1
~: 1"#,
        r#"1:1: the file needs `listeners` or `vips`; the proxy plane serves `listeners`, and the kernel plane serves `vips`
1:3: a key must be text, not a list
3:3: a key must be text, not a mapping
5:1: a key must be text, not nothing"#,
    );
    check(
        r#"listners: {}
clusters: {}
clusters: {}
admin: '[::1]:1'
admin: '[::1]:1'
<<: a"#,
        r#"1:1: the file needs `listeners` or `vips`; the proxy plane serves `listeners`, and the kernel plane serves `vips`
1:1: unknown key `listners` in the file; did you mean `listeners`?
3:1: `clusters` is given twice in the file; the first is at line 2
5:1: `admin` is given twice in the file; the first is at line 4
6:1: unknown key `<<` in the file; YAML 1.2 has no merge keys; an alias (`*name`) can stand for a whole value"#,
    );
}

#[test]
fn what_is_not_yaml() {
    check(
        "access_log: -",
        r#"1:13: this is not YAML: block sequence entries are not allowed in this context; begin the list on a line of its own; write a single `-` as "-""#,
    );
    check(
        r#"listeners:
  a:
    bind: [::1]:80
"#,
        r#"3:16: this is not YAML: while parsing a block mapping, did not find expected key; put an address with brackets in quotes: "[::1]:80""#,
    );
    check(
        "a: {b: [::1]:80}",
        r#"1:13: this is not YAML: while parsing a flow mapping, did not find expected ',' or '}'; put an address with brackets in quotes: "[::1]:80""#,
    );
    check(
        r#"a: b
   c: d"#,
        "2:5: this is not YAML: mapping values are not allowed in this context",
    );
}

#[test]
fn admin_sockets() {
    let check = |text: &str, expect: Result<&str, &str>| {
        let found = crate::parse_admin(text).map(|admin| admin.to_string());
        assert_eq!(found, expect.map(str::to_owned).map_err(str::to_owned), "{text}");
    };
    check("unix:/run/a b.sock", Ok("unix:/run/a b.sock"));
    check("unix:run/a.sock", Err("\"run/a.sock\" is not an absolute path; write unix:/run/steelyard/admin.sock"));
    check("unix:", Err("\"\" is not an absolute path; write unix:/run/steelyard/admin.sock"));
    check("unix:/run/", Err("\"/run/\" is a directory; write unix:/run/steelyard/admin.sock"));
    check(&format!("unix:/{}", "a".repeat(106)), Ok(&format!("unix:/{}", "a".repeat(106))));
    assert!(crate::parse_admin(&format!("unix:/{}", "a".repeat(107))).unwrap_err().contains("107 bytes"));
    assert!(crate::parse_admin("/run/a.sock").is_err() && crate::parse_admin("0.0.0.0:9900").is_err());
}

#[test]
fn values_that_contradict_each_other() {
    check(
        r#"admin: 0.0.0.0:9900
metrics: 10.0.0.7
listeners: {a: {bind: ':80', protocol: tcp, to: web}}
clusters: {web: {endpoints: ['a:1']}}"#,
        r#"1:8: `admin`: "0.0.0.0:9900" can be reached from other hosts, and nothing says who may use it; add `admin_access: {act: {token_file: admin.tokens}}`, or write 127.0.0.1:9900; use the key `metrics` to serve metrics and probes to other hosts
2:10: `metrics`: "10.0.0.7" has no port; add the port, for example 10.0.0.7:80"#,
    );
    check(
        r#"admin: 127.0.0.1:80
metrics: 127.0.0.1:80
listeners:
 a: {bind: '127.0.0.1:80', protocol: tcp, to: web}
 b: {bind: '0.0.0.0:81', protocol: tcp, to: web}
 c: {bind: ':81', protocol: tcp, to: web}
 c: 3
 'd d': {}
clusters: {web: {endpoints: ['a:1']}}"#,
        r#"2:10: 127.0.0.1:80 is used twice; line 1 also listens there; change one of the ports
4:12: 127.0.0.1:80 is used twice; line 1 also listens there; change one of the ports
6:12: [::]:81 is used twice; line 5 also listens on 0.0.0.0:81; change one of the ports
7:2: `c` is given twice in `listeners`; the first is at line 6
8:2: a name in `listeners`: "d d" is not a name; a name consists of 1 to 64 letters, digits, `-`, `_` and `.`"#,
    );
    check(
        r#"dns: {ttl_min: 10m, servers: []}
listeners: {}
clusters: {}
drain_timeout: 30
admin: 80"#,
        r#"1:16: `ttl_min` (10m) is above `ttl_max` (5m)
1:30: `servers` is empty; add at least one entry
2:12: `listeners` is empty; add at least one, with a name, `bind` and `protocol`
4:16: `drain_timeout`: "30" has no unit; write 30s, or another unit (ms, s, m, h, d)
5:8: `admin`: "80" is only a port; write 127.0.0.1:80"#,
    );
}

#[test]
fn addresses_that_take_the_same_connections() {
    let two = |first: &str, second: &str, expect: &str| {
        let file = format!(
            "clusters: {{web: {{endpoints: ['a:1']}}}}\nlisteners:\n a: {{bind: '{first}', protocol: tcp, to: web}}\n b: {{bind: '{second}', protocol: tcp, to: web}}"
        );
        if expect.is_empty() {
            assert!(parse("f", &file, Generation(1)).is_ok(), "{file}");
        } else {
            let expect = expect.split_once(' ').unwrap();
            let expect =
                format!("4:12: {} is used twice; line 3 also listens {}; change one of the ports", expect.0, expect.1);
            check(&file, &expect);
        }
    };
    two(":25100", "127.0.0.1:25100", "127.0.0.1:25100 on [::]:25100");
    two("127.0.0.1:25100", ":25100", "[::]:25100 on 127.0.0.1:25100");
    two("[::]:80", "[::1]:80", "[::1]:80 on [::]:80");
    two("[::1]:80", "*:80", "[::]:80 on [::1]:80");
    two("0.0.0.0:80", "127.0.0.1:80", "127.0.0.1:80 on 0.0.0.0:80");
    two("10.0.0.1:80", "0.0.0.0:80", "0.0.0.0:80 on 10.0.0.1:80");
    two("[::ffff:127.0.0.1]:80", "127.0.0.1:80", "127.0.0.1:80 there");
    two("0.0.0.0:80", "[::1]:80", "");
    two("127.0.0.1:80", "127.0.0.2:80", "");
    two("127.0.0.1:80", "[::1]:80", "");
    two(":0", "127.0.0.1:0", "");
    two(":80", "127.0.0.1:81", "");
}

#[test]
fn keys_of_other_balancers() {
    check(
        "http: {}",
        "1:1: the file needs `listeners` or `vips`; the proxy plane serves `listeners`, and the kernel plane serves `vips`\n\
         1:1: unknown key `http` in the file; did you mean `listeners`?",
    );
    cluster(
        "servers: ['127.0.0.1:1']",
        "2:17: a cluster needs `endpoints`; it must be a list\n2:18: unknown key `servers` in a cluster; did you mean `endpoints`?",
    );
    routes(
        &[
            "location: /api, to: web",
            "path: '~ /api', to: web",
            "path: /api/*, to: web",
            "path: {exact: /a/*}, to: web",
        ],
        r#"7:7: unknown key `location` in a route; did you mean `path`?
8:13: `path`: "~ /api" is not a path; write {regex: '.*/api.*'}, which matches the whole path
9:13: `path`: "/api/*" contains a `*`, which is not a wildcard in a path; a prefix matches every path below it: write /api/
10:21: `exact`: "/a/*" contains a `*`, which is not a wildcard in a path; a prefix matches every path below it: write /a/"#,
    );
}

#[test]
fn what_is_wrong_with_a_named_file_is_told_where_it_is_named() {
    let text = "listeners:
  edge: {bind: ':1', protocol: https, to: app, tls: {certificates: [{cert: a.pem, key: tls/a.key}]}}
clusters:
  app: {endpoints: ['a:1'], tls: {ca: /roots.pem}}
watch: false
";
    let file = crate::read_file("/etc/edge.yaml", text, Generation(1)).unwrap();
    assert!(!file.watch);
    let check = |owner: &str, path: Option<&str>, expect: &str| {
        let wrong = crate::WrongFile {
            owner: owner.to_owned(),
            file: path.map(Into::into),
            message: "wrong".to_owned(),
            hint: Some("do this".to_owned()),
        };
        let errors = file.written.errors(vec![wrong.clone()]);
        assert!(errors.starts_with(&format!("/etc/edge.yaml:{expect}: {owner}: wrong; do this\n")), "{errors}");
        let nowhere = crate::Written::default().errors(vec![wrong]);
        assert_eq!(nowhere, format!("{owner}: wrong; do this"));
    };
    check("listener edge", Some("/etc/a.pem"), "2:76");
    check("listener edge", Some("/etc/tls/a.key"), "2:88");
    check("listener edge", None, "2:53");
    check("cluster app", Some("/roots.pem"), "4:39");
    check("cluster app", None, "4:34");
    check("cluster other", None, "1:1");
    assert!(crate::read_file("f", "vips: {}", Generation(1)).unwrap().watch, "the default");
}

#[test]
fn listeners_with_tls() {
    listener(
        "bind: ':1', protocol: https, to: web",
        "2:39: protocol https needs a certificate; add `tls: {certificates: [{cert: www.pem, key: www.key}]}`",
    );
    listener(
        "bind: ':1', protocol: https, to: web, tls: {certificates: [], min_version: 1.1, client_ca: {}}",
        r#"2:75: `certificates` is empty; add at least one entry
2:92: `min_version`: "1.1" is not valid; it must be 1.2 or 1.3
2:108: a client CA needs `ca`; it must be a file such as tls/www.pem"#,
    );
    listener(
        "bind: ':1', protocol: http, to: web, tls: {certificates: [{cert: a.pem}]}",
        r#"2:54: `tls` needs protocol https or tls, and this listener has protocol http; write `protocol: https`
2:75: a certificate needs `key`; it must be a file such as tls/www.pem"#,
    );
    listener(
        "bind: ':1', protocol: tls_passthrough, routes: [{sni: a.example, to: web}, {hosts: b.example, to: web}]",
        "2:93: `hosts` needs protocol http, and this listener has protocol tls_passthrough; write `sni`",
    );
    listener(
        "bind: ':1', protocol: http, routes: [{sni: a.example, to: web}]",
        "2:55: `sni` needs protocol tls or tls_passthrough, and this listener has protocol http; write `hosts`",
    );
    listener(
        "bind: ':1', protocol: tls, to: web",
        "2:39: protocol tls needs a certificate; add `tls: {certificates: [{cert: www.pem, key: www.key}]}`",
    );
    listener(
        "bind: ':1', protocol: tcp, to: web, tls: {certificates: [{cert: a.pem, key: a.key}]}, isolated_hosts: a.example",
        r#"2:53: `tls` needs protocol https or tls, and this listener has protocol tcp; write `protocol: tls`
2:103: `isolated_hosts` needs protocol http or tls or tls_passthrough, and this listener has protocol tcp; remove it"#,
    );
    listener(
        "bind: ':1', protocol: tls_passthrough, routes: [{passthrough: true, to: web}]",
        "2:66: `passthrough` needs protocol tls, and this listener has protocol tls_passthrough; remove it: all routes pass TLS through",
    );
    check(
        "clusters: {web: {endpoints: [\"a:1\"], tls: {verify: false, subject_alt_names: a.example}}}\nlisteners: {l: {bind: \":1\", protocol: http, to: web}}",
        "1:78: `subject_alt_names` has no effect with `verify: false`, which accepts any certificate; remove one of them",
    );
}

#[test]
fn listeners() {
    listener(
        "",
        r#"2:16: a listener needs `bind`; it must be an address and port such as 127.0.0.1:8080 or a mapping with `inbound`, `outbound` or `mode`
2:16: a listener needs `protocol`; it must be http, https, detect, tcp, tls or tls_passthrough
2:16: a listener needs `to` or `routes`"#,
    );
    listener("bind: ':1', protocol: http", "2:16: a listener needs `to` or `routes`");
    listener(
        "bind: ':1', protocol: http, to: wbe",
        "2:49: `to` names the cluster `wbe`, which is not in `clusters`; did you mean `web`?",
    );
    listener(
        "bind: ':1', protocol: http, to: web, routes: [{to: web}]",
        "2:54: a listener has both `routes` and `to`; keep one of them",
    );
    listener(
        "bind: ':1', protocol: tcp, routes: [{to: web}]",
        "2:44: `routes` needs protocol http or tls or tls_passthrough, and this listener has protocol tcp; name the cluster with `to`",
    );
    listener(
        "bind: ':1', protocol: tcp, to: web, header_timeout: 1s, limits: {header_bytes: 1KiB, connections: 0}",
        r#"2:53: `header_timeout` needs protocol http or tls or tls_passthrough, and this listener has protocol tcp; remove it
2:82: `header_bytes` needs protocol http, and this listener has protocol tcp; remove it
2:115: `connections`: "0" is not a whole number from 1 to 10000000"#,
    );
    listener(
        "bind: ':1', protocol: http, to: web, trusted_proxies: [10.0.0.0/33], forwarded: x-forwarded, proxy_protocol: yes",
        r#"2:72: an entry of `trusted_proxies`: "10.0.0.0/33" is not an address or network; "33" is not a prefix length for it
2:97: `forwarded`: "x-forwarded" is not valid; it must be x_forwarded, rfc7239, both, ingress_nginx or off; did you mean x_forwarded?
2:126: `proxy_protocol` must be true or false, not "yes"; write true, without quotes"#,
    );
    listener(
        "bind: ':1', protocol: http, to: web, idle_timeout: 0s, limits: {body_bytes: 10, header_count: 1000}",
        r#"2:68: `idle_timeout`: "0s" would expire at once; write more than zero
2:93: `body_bytes`: "10" has no unit; write 10B, or another unit (B, kB, KB, KiB, MB, MiB, GB, GiB, TB, TiB)
2:111: `header_count`: "1000" is not a whole number from 1 to 256"#,
    );
    listener(
        "bind: ':1', protocol: http, to: web, proxy_protocol: 'true', health_check: 3, limits: [1]",
        r#"2:70: `proxy_protocol` must be true or false, not "true"; write true, without quotes
2:78: unknown key `health_check` in a listener; it is a key of a cluster
2:103: `limits` must be a mapping with `connections`, `header_bytes`, `header_count`, `body_bytes`, `requests_per_connection` or `streams_per_connection`, not a list"#,
    );
    listener(
        "bind: ':1', protocol: htps, to: wob",
        r#"2:39: `protocol`: "htps" is not valid; it must be http, https, detect, tcp, tls or tls_passthrough; did you mean https?
2:49: `to` names the cluster `wob`, which is not in `clusters`; did you mean `web`?"#,
    );
}

#[test]
fn routes_and_their_conditions() {
    routes(
        &["to: web", "to: web"],
        "8:6: this route can never match: the route at line 7 takes all its requests; move this route before that one, or remove it",
    );
    routes(
        &["to: web", "to: web, path: /api"],
        "8:6: this route can never match: the route at line 7 takes all its requests; move this route before that one, or remove it",
    );
    routes(
        &[
            "to: web, hosts: a.com, path: /api/",
            "to: web, hosts: a.com, path: /api/x, headers: {x: y}",
            "to: web, hosts: b.com, path: /api/x",
        ],
        "8:6: this route can never match: the route at line 7 takes all its requests; move this route before that one, or remove it",
    );
    routes(
        &[
            "to: web, methods: [GET, POST], path: {regex: /a}",
            "to: web, methods: GET, path: {regex: /a}",
            "to: web, path: {regex: /a}, methods: PUT",
        ],
        "8:6: this route can never match: the route at line 7 takes all its requests; move this route before that one, or remove it",
    );
    routes(
        &["to: web, hosts: [a.com, '*.b.com']", "to: web, path: /x", "to: web, hosts: '*.b.com', path: {exact: /}"],
        "9:6: this route can never match: the route at line 7 takes all its requests; move this route before that one, or remove it",
    );
    routes(
        &["to: web, headers: {a: {present: true}}, query: {p: 1}", "to: web, query: {q: 2, p: 1}, headers: {A: x}"],
        "8:6: this route can never match: the route at line 7 takes all its requests; move this route before that one, or remove it",
    );
    routes(
        &["to: web, name: a, path: /a", "to: web, name: a, path: /b"],
        "8:22: two routes have the name `a`; the first is at line 7",
    );
    routes(
        &[
            "path: api, hosts: ['a:80', 'x y'], to: wbe, pth: 1, methods: get, headers: {'x y': 1, a: {regex: '('}}, query: {q: {present: false}}, timeout: 10",
        ],
        r#"7:13: `path`: "api" is not a path; a path begins with `/`: write /api
7:26: an entry of `hosts`: "a:80" is not a host; hosts are compared without their port: write a
7:34: an entry of `hosts`: "x y" is not a host name; a label consists of letters, digits, `_` and `-`, and does not begin or end with `-`
7:46: `to` names the cluster `wbe`, which is not in `clusters`; did you mean `web`?
7:51: unknown key `pth` in a route; did you mean `path`?
7:68: `methods`: no client sends "get": the case of a method matters; write GET
7:83: a name in `headers`: "x y" is not the name of a header; use letters, digits and !#$%&'*+-.^_`|~
7:104: `regex`: "(" is not a regular expression: unclosed group
7:132: `present` can only be true; otherwise remove the key
7:150: `timeout`: "10" has no unit; write 10s, or another unit (ms, s, m, h, d)"#,
    );
    routes(
        &["to: web, path: {}", "to: web, path: {exact: /x, regex: /y}", "to: web, hosts: []", "to: web, path: [a]"],
        r#"7:22: a path needs `exact` or `regex`
8:34: a path has both `regex` and `exact`; keep one of them
9:23: `hosts` is empty; add at least one entry
10:22: `path` must be a path such as /api/ or a mapping with `exact` or `regex`, not a list"#,
    );
    routes(&["to: []"], "7:11: `to` is empty; add at least one entry");
    routes(
        &["to: web, headers: {x: {exact: y}}"],
        r#"7:29: a condition needs `regex` or `present`
7:30: unknown key `exact` in a condition; it can be `regex` or `present`"#,
    );
}

/// Each second route here still takes a request that the first does not, or is one that the check does not claim to
/// understand.
#[test]
fn routes_that_an_earlier_one_does_not_cover() {
    let check =
        |first: &str, second: &str| routes(&[&format!("to: web{first}"), &format!("to: web{second}")], "no error");
    check(", path: /api", ", path: /apix");
    check(", path: /api/x", ", path: /api");
    check(", path: {exact: /api}", ", path: /api");
    check(", path: {exact: /api}", ", path: {exact: /api/}");
    check(", path: {regex: /a}", ", path: {exact: /a}");
    check(", hosts: '*.a.com'", ", hosts: x.a.com");
    check("", ", hosts: a.com");
    check(", hosts: a.com", "");
    check(", hosts: a.com", ", hosts: [a.com, b.com]");
    check(", methods: GET", "");
    check(", methods: GET", ", methods: [GET, PUT]");
    check(", headers: {a: b}", "");
    check(", headers: {a: b}", ", headers: {a: c}");
    check(", headers: {a: b}", ", headers: {a: {regex: b}}");
    check(", query: {a: b}", ", query: {A: b}");
}

#[test]
fn zones_without_a_zone() {
    cluster(
        "endpoints: [{address: 'a:1', zone: eu-1a}]",
        "2:53: `zone` of an endpoint has no effect, because the file does not say in which zone Steelyard runs; add `zone: NAME` at the top of the file",
    );
}

#[test]
fn clusters_and_their_endpoints() {
    cluster("", "2:17: a cluster needs `endpoints`; it must be a list");
    cluster("endpoints: []", "2:29: `endpoints` is empty; add at least one entry");
    cluster(
        "endpoints: [':80', '80', 'a', 3, {weight: 1}, {address: 'a:1', weight: 70000}]",
        r#"2:30: an entry of `endpoints`: ":80" names no host; put an address or name before it, such as 127.0.0.1:80
2:37: an entry of `endpoints`: "80" is only a port; write 127.0.0.1:80
2:43: an entry of `endpoints`: "a" has no port; add the port, for example a:80
2:48: an entry of `endpoints`: "3" is only a port; write 127.0.0.1:3
2:51: an endpoint needs `address` or `srv`
2:89: `weight`: "70000" is not a whole number from 0 to 65535"#,
    );
    cluster(
        "endpoints: ['a:1', 'A:1', {address: 'a:1', weight: 3}]",
        r#"2:37: an endpoint of `web` is given twice; the first is at line 2; to send it more traffic, raise its weight
2:44: an endpoint of `web` is given twice; the first is at line 2; to send it more traffic, raise its weight"#,
    );
    cluster(
        "endpoints: [{address: 'a:1', weight: 0}]",
        "2:29: every endpoint of `web` has weight 0; no endpoint would get traffic; give at least one a weight above 0",
    );
    cluster("endpoints: 'a:1'", "2:29: `endpoints` must be a list, not text");
    cluster(
        "endpoints: ['a:1'], balance: roundrobin, outlier: on, panic_threshold: 50, slow_start: 1x",
        r#"2:47: `balance`: "roundrobin" is not valid; it must be round_robin, least_request, least_connections, random, maglev or peak_ewma; did you mean round_robin?
2:68: `outlier`: "on" is not valid; it must be off; it can also be a mapping with `consecutive_5xx`, `eject_for` or `max_ejected`
2:89: `panic_threshold`: "50" has no unit; write 50%
2:105: `slow_start`: "1x" is not a duration; the units are ms, s, m, h, d"#,
    );
    cluster(
        "endpoints: ['a:1'], balance: {maglev: {key: ip}}, outlier: {max_ejected: 200%}",
        r#"2:62: `key`: "ip" is not valid; it must be client_ip; it can also be a mapping with `header`, `cookie` or `template`
2:91: `max_ejected`: "200%" is more than 100%"#,
    );
    cluster(
        "endpoints: ['a:1'], balance: {maglev: {key: {header: a, cookie: b}}}",
        "2:74: a hash key has both `cookie` and `header`; keep one of them",
    );
    cluster(
        "endpoints: ['a:1'], balance: {random: {}}",
        r#"2:47: a balance needs `maglev`; it must be a mapping with `key` or `subset`
2:48: unknown key `random` in a balance; it can be `maglev`"#,
    );
    cluster(
        "endpoints: ['a:1'], health_check: {tcp: true, http: /}",
        "2:64: a health check has both `http` and `tcp`; keep one of them",
    );
    cluster(
        "endpoints: ['a:1'], health_check: {tcp: false, expect: 200}",
        "2:58: `tcp` can only be true; otherwise remove the key",
    );
    cluster(
        "endpoints: ['a:1'], health_check: {tcp: true, expect: 200, host: a}",
        r#"2:64: `expect` has no effect in a tcp health check; it belongs to `http`
2:77: `host` has no effect in a tcp health check; it belongs to `http` and `grpc`"#,
    );
    cluster(
        "endpoints: ['a:1'], health_check: {http: x, expect: 2xx, interval: 0s, port: 0}",
        r#"2:59: `http`: "x" is not a path; a path begins with `/`: write /x
2:70: `expect`: "2xx" is not a range of statuses; write one status from 100 to 599, or the first and the last, such as 200-399
2:85: `interval`: "0s" would expire at once; write more than zero
2:95: `port`: "0" is not a whole number from 1 to 65535"#,
    );
    cluster(
        "endpoints: ['a:1'], limits: {connections: 0, pending: -1}, proxy_protocol: v3, health_chek: 1",
        r#"2:60: `connections`: "0" is not a whole number from 1 to 10000000
2:72: `pending`: "-1" is not a whole number from 0 to 10000000
2:93: `proxy_protocol`: "v3" is not valid; it must be v1 or v2
2:97: unknown key `health_chek` in a cluster; did you mean `health_check`?"#,
    );
}

#[test]
fn protocols_of_clusters() {
    cluster(
        "endpoints: ['a:1'], protocol: http2",
        r#"2:48: `protocol`: "http2" is not valid; it must be h1, h2c or h2"#,
    );
    cluster(
        "endpoints: ['a:1'], protocol: h2c, tls: {}",
        "2:48: protocol h2c is HTTP/2 in the clear, and this cluster has `tls`; write `protocol: h2`, or remove `tls`",
    );
    cluster(
        "endpoints: ['a:1'], protocol: h2",
        "2:48: protocol h2 is HTTP/2 within TLS, and this cluster has no `tls`; write `protocol: h2c`, or add `tls: {}`",
    );
    cluster(
        "endpoints: ['a:1'], protocol: h2c, proxy_protocol: v2, limits: {streams_per_connection: 0}",
        r#"2:69: `proxy_protocol` names one client, but an HTTP/2 connection carries requests of many clients; remove it: the endpoint learns the client of each request from `X-Forwarded-For`
2:106: `streams_per_connection`: "0" is not a whole number from 1 to 10000"#,
    );
    cluster(
        "endpoints: ['a:1'], protocol: h2c, ping: {after: 0s}",
        r#"2:67: `after`: "0s" would expire at once; write more than zero"#,
    );
    cluster(
        "endpoints: ['a:1'], ping: {}",
        "2:44: `ping` needs HTTP/2, and this cluster speaks h1; remove `ping`, or write `protocol: h2c`, or `protocol: h2` with `tls`",
    );
}

#[test]
fn health_checks_over_grpc() {
    cluster(
        "endpoints: ['a:1'], health_check: {grpc: a.B, expect: 200, host: b}",
        "2:64: `expect` has no effect in a grpc health check; it belongs to `http`",
    );
    cluster(
        "endpoints: ['a:1'], health_check: {grpc: a.B/C, http: /}",
        r#"2:59: `grpc`: "a.B/C" is not the name of a service; a health check asks about a service, not a method: write helloworld.Greeter
2:66: a health check has both `http` and `grpc`; keep one of them"#,
    );
    cluster(
        "endpoints: ['a:1'], tls: {}, health_check: {grpc: a.B}",
        "2:68: a gRPC health check needs HTTP/2, and this cluster speaks h1 within TLS; add `protocol: h2` to the cluster",
    );
    cluster("endpoints: ['a:1'], health_check: {grpc: ''}", "no error");
}

#[test]
fn routes_by_grpc() {
    // From column 6 of line 7; the cluster `web` speaks HTTP/2 here.
    let routes = |routes: &[&str], expect: &str| {
        let routes: String = routes.iter().map(|route| format!("   - {{{route}}}\n")).collect();
        let head = "clusters: {web: {protocol: h2c, endpoints: [\"a:1\"]}}\nlisteners:\n l:\n  bind: :1\n  protocol: http\n  routes:\n";
        check(&format!("{head}{routes}"), expect);
    };
    routes(&["to: web, grpc: a.B/C", "to: web, grpc: a.B", "to: web, path: /a.B/C", "to: web"], "no error");
    routes(
        &["to: web, grpc: /a.B, path: /, methods: GET, query: {a: b}"],
        r#"7:22: `grpc`: "/a.B" is not a gRPC service; remove the leading `/`: a.B"#,
    );
    routes(
        &["to: web, grpc: a.B, path: /, methods: GET, query: {a: b}"],
        r#"7:27: `grpc` already sets the path and the method, and this route also has `path`; remove it
7:36: `grpc` already sets the path and the method, and this route also has `methods`; remove it
7:50: a gRPC call has no query; remove it"#,
    );
    routes(
        &["to: web, grpc: a.B", "to: web, grpc: a.B/C"],
        "8:6: this route can never match: the route at line 7 takes all its requests; move this route before that one, or remove it",
    );
    routes(
        &["to: web, path: /a.B/", "to: web, grpc: a.B/C"],
        "8:6: this route can never match: the route at line 7 takes all its requests; move this route before that one, or remove it",
    );
    self::routes(
        &["to: web, grpc: a.B"],
        "7:22: gRPC needs HTTP/2, and the cluster `web` speaks h1; give `web` `protocol: h2c`, or `protocol: h2` with `tls`",
    );
    routes(
        &["redirect: {to: 'https://a'}, grpc: a.B", "redirect: {to: 'https://a'}"],
        "7:17: gRPC clients do not follow redirects; name the cluster that serves the calls with `to`",
    );
}

#[test]
fn mirrors_of_routes_by_grpc() {
    let head = "clusters: {web: {protocol: h2c, endpoints: [\"a:1\"]}, old: {endpoints: [\"b:1\"]}}\nlisteners:\n l:\n  bind: :1\n  protocol: http\n  routes:\n";
    check(
        &format!(
            "{head}   - {{to: web, grpc: a.B, mirror: [{{to: web}}, {{to: old}}]}}\n   - {{to: web, mirror: {{to: old}}}}\n"
        ),
        "7:52: gRPC needs HTTP/2, and the cluster `old` speaks h1; give `old` `protocol: h2c`, or `protocol: h2` with `tls`",
    );
}

#[test]
fn errors_show_where_they_are() {
    let text = "listeners: {l: {bind: \":1\", protocol: tcp, to: wbe}}\nclusters: {web: {endpoints: [\"a:1\"]}}\n";
    let errors = parse("lb.yaml", text, Generation(1)).unwrap_err();
    let expect = "\
lb.yaml:1:48: `to` names the cluster `wbe`, which is not in `clusters`; did you mean `web`?
    listeners: {l: {bind: \":1\", protocol: tcp, to: wbe}}
                                                   ^";
    assert_eq!(errors.to_string(), expect);
}

/// A file either loads or has errors.
fn answers(text: &str) -> Result<(), TestCaseError> {
    if let Err(errors) = parse("f", text, Generation(1)) {
        prop_assert!(!errors.0.is_empty());
        prop_assert!(errors.0.is_sorted_by_key(|diagnostic| (diagnostic.line, diagnostic.column)));
        prop_assert!(!errors.to_string().is_empty());
    }
    Ok(())
}

/// Pieces of files, so that random files get past the first line.
const PIECES: &[&str] = &[
    "listeners: ",
    "clusters: ",
    "vips: ",
    "address: ",
    "interfaces: ",
    "mode: ",
    "10.0.0.1:80/tcp",
    "routes: ",
    "endpoints: ",
    "bind: ",
    "protocol: ",
    "to: ",
    "path: ",
    "headers: ",
    "limits: ",
    "health_check: ",
    "balance: ",
    "a: ",
    "- ",
    "? ",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "\n",
    "\n  ",
    "\n    ",
    "\t",
    "&a ",
    "*a",
    "!t ",
    "'",
    "\"",
    "|\n",
    ">\n",
    "#",
    "---\n",
    "http",
    "tcp",
    "true",
    "~",
    "off",
    ":80",
    "[::1]:80",
    "/api",
    "30s",
    "64KiB",
    "50%",
    "v1",
    "(",
    "\r",
    "\u{feff}",
    "\u{0}",
    "ü",
    "\u{2028}",
];

proptest! {
    #![proptest_config(crate::tests::seeded(512))]

    #[test]
    fn any_text_is_answered(text in "(?s).{0,200}") {
        answers(&text)?;
    }

    #[test]
    fn any_pieces_are_answered(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..60)) {
        answers(&pieces.concat())?;
    }

    #[test]
    fn an_example_with_a_part_replaced_is_answered(
        name in prop::sample::select(&["http.yaml", "tcp.yaml", "vip.yaml", "grpc.yaml", "canary.yaml"][..]),
        from in any::<prop::sample::Index>(),
        length in 0usize..20,
        pieces in prop::collection::vec(prop::sample::select(PIECES), 0..4),
    ) {
        let text: Vec<char> = example(name).chars().collect();
        let from = from.index(text.len());
        let end = (from + length).min(text.len());
        let changed: String = text[..from].iter().copied().chain(pieces.concat().chars()).chain(text[end..].iter().copied()).collect();
        answers(&changed)?;
    }
}
