//! Responses that Steelyard makes itself, as `curl` gets them: pages from files, and routes in maintenance. `scripts/policy` tests the
//! messages byte for byte.
#![forbid(unsafe_code)]

mod support;

use std::process::Command;

use support::{Origin, Scratch, Steelyard, local, port};
use testkit::Exit;

/// The largest page, in bytes.
const PAGE_BYTES_MAX: usize = 32 * 1024;

/// A route of the listener `web`.
const SHOP: &str = "{name: shop, path: /shop, to: web}";

/// The configuration, with this route before the others of `web`.
fn config(web: u16, other: u16, page: &str, origin: &Origin, route: &str) -> String {
    format!(
        "admin: {{admin}}
listeners:
  web:
    bind: '127.0.0.1:{web}'
    protocol: http
    error_pages: [{{status: 503, file: '{page}'}}]
    routes: [{route}, {{path: /page, respond: {{file: '{page}'}}}}, {{to: web}}]
  other: {{bind: '127.0.0.1:{other}', protocol: http, routes: [{{name: shop, to: web}}]}}
clusters: {{web: {{endpoints: ['{}']}}}}
",
        origin.address
    )
}

/// A process that serves a page from a file, and two listeners with a route of the same name.
struct Site {
    balancer: Steelyard,
    web: u16,
    other: u16,
    /// It has the file, `sorry.html`.
    files: Scratch,
    origin: Origin,
}

impl Site {
    fn start(page: &str) -> Self {
        let (origin, web, other, files) = (Origin::start("web"), port(), port(), Scratch::new());
        let file = files.write("sorry.html", page);
        let config = config(web, other, &file, &origin, SHOP);
        Self { balancer: Steelyard::serve(&config, 1), web, other, files, origin }
    }

    /// The status of the response.
    fn status(port: u16, path: &str) -> String {
        curl(port, path, &["--output", "/dev/null", "--write-out", "%{http_code}"])
    }

    /// Writes the page and reloads. Returns what `steelyard reload` printed, and whether it succeeded.
    fn change(&self, page: &str) -> (bool, String) {
        self.files.write("sorry.html", page);
        let reload = self.balancer.ask(&["reload"]);
        (reload.exit == Exit::Code(0), reload.stdout + &reload.stderr)
    }
}

fn curl(port: u16, path: &str, options: &[&str]) -> String {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--max-time", "60"]).args(options).arg(format!("http://{}{path}", local(port)));
    String::from_utf8(curl.output().expect("curl").stdout).unwrap()
}

#[test]
fn pages_come_from_files_and_follow_them() {
    let large: String = (0..PAGE_BYTES_MAX).map(|at| char::from(b'a' + (at % 23) as u8)).collect();
    let site = Site::start(&large);
    for protocol in ["--http1.0", "--http1.1", "--http2-prior-knowledge"] {
        assert!(curl(site.web, "/page", &[protocol]) == large, "{protocol}");
    }
    let (is_good, _) = site.change("<p>new\n");
    assert!(is_good);
    assert_eq!(curl(site.web, "/page", &[]), "<p>new\n");

    let (is_good, why) = site.change(&format!("{large}x"));
    assert!(!is_good && why.contains("sorry.html: larger than 32 KiB") && why.contains(":6:"), "{why}");
    std::fs::remove_file(site.files.path().join("sorry.html")).unwrap();
    let missing = site.balancer.ask(&["reload"]);
    assert!(missing.stderr.contains("sorry.html: No such file"), "{}", missing.stderr);
    assert_eq!(curl(site.web, "/page", &[]), "<p>new\n");
}

#[test]
fn a_route_in_maintenance_answers_503_until_it_is_put_back() {
    let site = Site::start("<p>soon\n");
    let switch = |words: &[&str]| {
        let done = site.balancer.ask(&[&["maintenance"], words].concat());
        (done.exit, done.stdout + &done.stderr)
    };
    assert_eq!(Site::status(site.web, "/shop"), "200");
    let (code, said) = switch(&["on", "shop", "--listener", "web"]);
    assert_eq!(
        (code, said.as_str()),
        (Exit::Code(0), "in maintenance, until this process ends: shop (listeners that have it: 1)")
    );
    assert_eq!(curl(site.web, "/shop/x", &[]), "<p>soon\n");
    let served = [(site.web, "/shop"), (site.web, "/"), (site.other, "/")].map(|(port, path)| Site::status(port, path));
    assert_eq!(served, ["503", "200", "200"]);

    // It outlives a reload, and the status says so.
    assert_eq!(site.balancer.ask(&["reload"]).exit, Exit::Code(0));
    assert_eq!(Site::status(site.web, "/shop"), "503");
    let status = site.balancer.status();
    assert_eq!(
        status["maintenance"].to_string(),
        r#"[{"configured":false,"gone":false,"listener":"web","route":"shop"}]"#
    );
    let kinds: Vec<_> = status["findings"].as_array().unwrap().iter().map(|finding| &finding["kind"]).collect();
    assert!(kinds.iter().any(|kind| *kind == "maintenance"), "{kinds:?}");
    assert!(site.balancer.metric("steelyard_refused_total", &[("reason", "maintenance")]) >= 3.0);

    assert_eq!(switch(&["on", "shop"]).1, "in maintenance, until this process ends: shop (listeners that have it: 2)");
    assert_eq!(Site::status(site.other, "/"), "503");
    assert_eq!(switch(&["off", "shop"]).1, "in service: shop (listeners that have it: 2)");
    assert_eq!([site.web, site.other].map(|port| Site::status(port, "/shop")), ["200", "200"]);
    let (code, why) = switch(&["on", "shpo"]);
    assert!(code == Exit::Code(1) && why.contains("no such route: shpo; there are shop, "), "{code:?} {why}");
}

/// A switch that nobody sees would surprise whoever adds the route again.
#[test]
fn maintenance_of_a_route_that_is_gone_is_shown_and_can_be_ended() {
    let mut site = Site::start("<p>soon\n");
    let page = site.files.write("sorry.html", "<p>soon\n");
    let change = |site: &mut Site, route| {
        let config = config(site.web, site.other, &page, &site.origin, route);
        let generation = site.balancer.generation();
        site.balancer.reload(&config, |status| status["generation"].as_u64() > Some(generation));
    };
    assert_eq!(site.balancer.ask(&["maintenance", "on", "shop", "--listener", "web"]).exit, Exit::Code(0));
    change(&mut site, "{name: cart, path: /shop, to: web}");
    assert_eq!(Site::status(site.web, "/shop"), "200");
    let status = site.balancer.status();
    assert_eq!(
        status["maintenance"].to_string(),
        r#"[{"configured":false,"gone":true,"listener":"web","route":"shop"}]"#
    );
    change(&mut site, SHOP);
    assert_eq!(Site::status(site.web, "/shop"), "503");
    change(&mut site, "{name: cart, path: /shop, to: web}");
    let done = site.balancer.ask(&["maintenance", "off", "shop", "--listener", "web"]);
    assert_eq!(done.exit, Exit::Code(0), "{}", done.stderr);
    assert_eq!(site.balancer.status()["maintenance"].to_string(), "[]");
    change(&mut site, SHOP);
    assert_eq!(Site::status(site.web, "/shop"), "200");
    let wrong = site.balancer.ask(&["maintenance", "on", "shop", "--listener", "wbe"]);
    assert!(wrong.stderr.contains("no such listener: wbe; there are "), "{}", wrong.stderr);
}
