//! What routes demand of the certificates of clients, against Debian's nginx with the directives that mean the same; and that no connection
//! which was made for one host leads to a route of another.
#![forbid(unsafe_code)]

mod support;
#[path = "support/tls.rs"]
mod tls;

use std::net::SocketAddr;
use std::process::Command;

use support::{Origin, Scratch, Steelyard, local, port, skip};
use testkit::Program;
use tls::{Pki, Tls};

/// The hosts: `client_cert` of a route, and the directives of a server.
const HOSTS: [(&str, &str, &str); 6] = [
    ("on", "{}", "ssl_verify_client on;"),
    ("optional", "{mode: optional}", "ssl_verify_client optional;"),
    ("unsigned", "{mode: unsigned}", "ssl_verify_client optional_no_ca;"),
    (
        "named",
        "{subject: {regex: '.*CN=ali.*'}}",
        "ssl_verify_client on; if ($ssl_client_s_dn !~ CN=ali) { return 403; }",
    ),
    (
        "named-optional",
        "{mode: optional, subject: {regex: '.*CN=ali.*'}}",
        "ssl_verify_client optional; if ($ssl_client_s_dn !~ CN=ali) { return 403; }",
    ),
    (
        "page",
        "{redirect: 'https://help.example/no', subject: CN=alice}",
        "ssl_verify_client on; error_page 495 496 = https://help.example/no; if ($ssl_client_s_dn !~ CN=ali) { return 403; }",
    ),
];

/// The certificates of clients: a folder, a name, and the host that they are for.
const CLIENTS: [(&str, &str); 5] =
    [("", ""), ("clients", "alice"), ("clients", "bob"), ("clients", "old"), ("others", "alice")];

/// The number of bob's certificate.
const BOB: u64 = 4711;

struct Both {
    nginx: SocketAddr,
    steelyard: SocketAddr,
    balancer: Steelyard,
    pki: Pki,
    clients: Pki,
    others: Pki,
    _program: Program,
    _origin: Origin,
    scratch: Scratch,
}

impl Both {
    /// With `crl`, a file in the scratch directory has the certificates that are revoked; `prepare` writes it.
    fn start(crl: Option<&str>, prepare: impl FnOnce(&Pki, &Pki)) -> Self {
        let scratch = Scratch::new();
        let pki = |name: &str| Pki::new(&scratch.path().join(name));
        let (pki, clients, others) = (pki("site"), pki("clients"), pki("others"));
        let names: Vec<String> = HOSTS.iter().map(|(host, ..)| format!("{host}.example")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).chain(["open.example"]).collect();
        pki.issue("site", &names);
        clients.issue("alice", &["alice"]);
        clients.issue_numbered("bob", BOB);
        clients.issue_expired("old", &["old"]);
        others.issue("alice", &["alice"]);
        prepare(&clients, &others);
        let (nginx, steelyard, origin) = (local(port()), local(port()), Origin::start("o"));
        let root = scratch.path().display();
        let (there, here) = match crl {
            Some(file) => (format!("ssl_crl {root}/{file};"), format!(", crl: {root}/{file}")),
            None => Default::default(),
        };
        let servers: String = HOSTS
            .iter()
            .map(|(host, _, directives)| {
                format!(
                    "server {{ listen {nginx} ssl http2; server_name {host}.example; ssl_client_certificate {root}/clients/ca.pem; {there} {directives} \
                     location / {{ add_header x-client \"$ssl_client_verify $ssl_client_s_dn\"; return 200; }} }}\n"
                )
            })
            .collect();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {root}/{kind};"))
            .concat();
        let text = format!(
            "daemon off; user root; pid {root}/nginx.pid; error_log stderr; worker_processes 1;\nevents {{}}\nhttp {{ access_log off; {temporary}\n\
             ssl_certificate {root}/site/site.pem; ssl_certificate_key {root}/site/site.key;\n\
             server {{ listen {nginx} ssl http2 default_server; server_name open.example; return 200; }}\n{servers} }}\n"
        );
        let file = scratch.write("nginx.conf", &text);
        let mut program = Program::spawn("nginx", Command::new("nginx").args(["-e", "stderr", "-c", &file])).unwrap();
        program.until("listening", || std::net::TcpStream::connect(nginx).ok()).unwrap();
        let routes: String = HOSTS
            .iter()
            .map(|(host, rule, _)| {
                format!(
                    "      - {{hosts: {host}.example, client_cert: {rule}, to: web, response_headers: {{set: {{x-client: '${{client_cert_verify}} \
                     ${{shown_cert_subject}}'}}}}}}\n"
                )
            })
            .collect();
        let asked: Vec<String> = HOSTS.iter().map(|(host, ..)| format!("{host}.example")).collect();
        let config = format!(
            "admin: {{admin}}\nlisteners:\n  edge:\n    bind: {steelyard}\n    protocol: https\n    tls:\n      certificates: [{{cert: {root}/site/site.pem, \
             key: {root}/site/site.key}}]\n      client_ca: {{hosts: [{}], ca: {root}/clients/ca.pem{here}, required: false}}\n    routes:\n{routes}      \
             - {{hosts: open.example, to: web}}\nclusters:\n  web: {{endpoints: [{}]}}\n",
            asked.join(", "),
            origin.address
        );
        let balancer = Steelyard::serve(&config, 1);
        Self { nginx, steelyard, balancer, pki, clients, others, _program: program, _origin: origin, scratch }
    }

    /// The status, `Location` and what the endpoint is told, as curl sees them.
    fn ask(&self, address: SocketAddr, host: &str, (folder, name): (&str, &str), version: &str) -> String {
        let mut curl = Command::new("curl");
        let url = format!("https://{host}.example:{}/", address.port());
        curl.args(["-sk", version, "-o", "/dev/null", "-w", "%{http_code} %{redirect_url} %header{x-client}", &url]);
        curl.args(["--resolve", &format!("{host}.example:{}:{}", address.port(), address.ip())]);
        if !name.is_empty() {
            let file = |suffix: &str| self.scratch.path().join(folder).join(format!("{name}.{suffix}"));
            curl.arg("--cert").arg(file("pem")).arg("--key").arg(file("key"));
        }
        let output = curl.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        // The words after it are those of OpenSSL.
        text.split("FAILED:").next().unwrap().trim_end().to_owned()
            + if text.contains("FAILED:") { " FAILED" } else { "" }
    }

    /// Reads the files again, of which Steelyard says this.
    fn reload(&self, expect: &str) {
        let said = self.balancer.ask(&["reload"]);
        let said = format!("{}{}", said.stdout, said.stderr);
        assert!(said.contains(expect), "{said}");
    }

    /// Sends all requests to both.
    fn compare(&self) {
        let mut wrong = Vec::new();
        for (host, ..) in HOSTS {
            for client in CLIENTS {
                for version in ["--http1.1", "--http2"] {
                    let ask = |address| self.ask(address, host, client, version);
                    let (there, here) = (ask(self.nginx), ask(self.steelyard));
                    if there != here {
                        wrong.push(format!("{host} {client:?} {version}: nginx {there:?}, Steelyard {here:?}"));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// The statuses of requests for these hosts, each over a connection of its own that was made for another host.
    fn made_for_another(
        &self,
        address: SocketAddr,
        made_for: &str,
        shows: Option<(&Pki, &str)>,
        hosts: &[&str],
    ) -> Vec<u16> {
        let client = self.pki.client(shows);
        let mut statuses = Vec::new();
        for host in hosts {
            let mut tls = Tls::connect(&client, address, &format!("{made_for}.example")).unwrap();
            statuses.push(tls.get(&format!("{host}.example"), "/").unwrap().0);
        }
        statuses
    }
}

#[test]
fn nginx_and_steelyard_demand_the_same_of_clients() {
    if Command::new("nginx").arg("-v").output().is_err() {
        return skip("nginx_and_steelyard_demand_the_same_of_clients", "nginx is not installed");
    }
    let both = Both::start(None, |_, _| {});
    both.compare();
    let said = |host, client| both.ask(both.steelyard, host, client, "--http2");
    assert_eq!(said("on", ("", "")), "400");
    assert_eq!(said("on", ("clients", "alice")), "200  SUCCESS CN=alice");
    assert_eq!(said("optional", ("", "")), "200  NONE");
    assert_eq!(said("optional", ("others", "alice")), "400");
    assert_eq!(said("unsigned", ("others", "alice")), "200 FAILED");
    assert_eq!(said("named", ("clients", "bob")), "403");
    assert_eq!(said("page", ("clients", "old")), "302 https://help.example/no");
    for reason in ["client_cert_missing", "client_cert_invalid", "client_cert_denied"] {
        let refused = both.balancer.metric("steelyard_refused_total", &[("listener", "edge"), ("reason", reason)]);
        assert!(refused > 0.0, "{reason}");
    }
}

#[test]
fn no_connection_leads_past_what_another_host_demands() {
    if Command::new("nginx").arg("-v").output().is_err() {
        return skip("no_connection_leads_past_what_another_host_demands", "nginx is not installed");
    }
    let both = Both::start(None, |_, _| {});
    let (clients, others) = (&both.clients, &both.others);
    let check = |made_for: &str, shows: Option<(&Pki, &str)>, hosts: &[&str], expect: &[u16]| {
        assert_eq!(both.made_for_another(both.steelyard, made_for, shows, hosts), expect, "{made_for} {hosts:?}");
        // nginx says the same of hosts that demand something.
        let there = both.made_for_another(both.nginx, made_for, shows, hosts);
        for ((host, there), here) in hosts.iter().zip(there).zip(expect) {
            assert_eq!(there >= 400, *here >= 400, "{made_for} {host}: nginx {there}, Steelyard {here}");
        }
    };
    let all = ["on", "optional", "unsigned", "named", "page"];
    check("open", None, &all, &[421, 421, 421, 421, 421]);
    check("open", Some((clients, "alice")), &all, &[421, 421, 421, 421, 421]);
    let over = |made_for: &str, shows, hosts: &[&str]| both.made_for_another(both.steelyard, made_for, shows, hosts);
    // All of these hosts ask for the same, and each route looks at what was shown.
    assert_eq!(over("optional", None, &["on", "named", "page"]), [400, 400, 302]);
    assert_eq!(over("unsigned", Some((others, "alice")), &["on", "optional", "named", "page"]), [400, 400, 400, 302]);
    assert_eq!(over("on", Some((clients, "bob")), &["on", "optional", "named", "page"]), [200, 200, 403, 403]);
    assert_eq!(over("on", Some((clients, "alice")), &["named", "open"]), [200, 421]);
    assert_eq!(over("unsigned", Some((clients, "old")), &["unsigned", "on"]), [400, 400]);
}

#[test]
fn nginx_and_steelyard_refuse_the_same_revoked_certificates() {
    if Command::new("nginx").arg("-v").output().is_err() {
        return skip("nginx_and_steelyard_refuse_the_same_revoked_certificates", "nginx is not installed");
    }
    let said = |both: &Both, name| both.ask(both.steelyard, "on", ("clients", name), "--http2");
    let both = Both::start(Some("clients/crl.pem"), |clients, _| clients.revoke("crl.pem", &[1, BOB], (2020, 2500)));
    both.compare();
    assert_eq!([said(&both, "alice"), said(&both, "bob")], ["200  SUCCESS CN=alice", "400"]);
    // Bob is in the list no more: a new list holds without a restart, also for connections that are open.
    let client = both.pki.client(Some((&both.clients, "bob")));
    let mut open = Tls::connect(&client, both.steelyard, "on.example").unwrap();
    assert_eq!(open.get("on.example", "/").unwrap().0, 400);
    both.clients.revoke("crl.pem", &[1], (2020, 2500));
    both.reload("reloaded");
    assert_eq!(said(&both, "bob"), "200  SUCCESS CN=bob");
    let mut open = Tls::connect(&client, both.steelyard, "on.example").unwrap();
    assert_eq!(open.get("on.example", "/").unwrap().0, 200);
    both.clients.revoke("crl.pem", &[BOB], (2020, 2500));
    both.reload("reloaded");
    assert_eq!(open.get("on.example", "/").unwrap().0, 421);
    // A file that cannot be read leaves the last good one in use.
    both.clients.put("crl.pem", "nothing");
    both.reload("crl.pem: contains no certificate revocation list");
    assert_eq!([said(&both, "alice"), said(&both, "bob")], ["200  SUCCESS CN=alice", "400"]);

    // Nobody knows what is revoked since.
    let both = Both::start(Some("clients/crl.pem"), |clients, _| clients.revoke("crl.pem", &[BOB], (2020, 2021)));
    both.compare();
    assert_eq!([said(&both, "alice"), said(&both, "bob")], ["400", "400"]);
    // It is the list of another CA.
    let both = Both::start(Some("others/crl.pem"), |_, others| others.revoke("crl.pem", &[], (2020, 2500)));
    both.compare();
    assert_eq!([said(&both, "alice"), said(&both, "bob")], ["400", "400"]);
}
