//! The page at the admin address in a real browser, chromium: every number beside `/metrics`, names that are HTML, the content security policy, a
//! narrow window, a dark one, the keyboard, and no script. With STEELYARD_SCREENSHOTS=FOLDER it also takes pictures for people.
#![forbid(unsafe_code)]

#[path = "support/browser.rs"]
mod browser;
#[path = "support/grpc.rs"]
mod grpc;
mod support;

use browser::Browser;
use grpc::{Caller, Greeter, SAY_HELLO, framed};
use serde_json::{Value, json};
use support::{Load, Origin, Steelyard, get, local, port};
use testkit::prometheus::sum;
use testkit::strict::ResponseTo;
use testkit::{PATIENCE, client, until};

/// The name of a route: markup that would run as a script if it were not escaped.
const NASTY: &str = "<img src=x onerror=alert(1)>\"'&";

struct World {
    steelyard: Steelyard,
    web: u16,
    origins: (Origin, Origin, Greeter),
}

impl World {
    fn new() -> Self {
        let (web, calls) = (port(), port());
        let (one, other, greeter) = (Origin::start("one"), Origin::start("other"), Greeter::start("greeter"));
        let config = format!(
            "admin: {{admin}}
listeners:
  web:
    bind: 127.0.0.1:{web}
    protocol: http
    routes:
      - {{name: {}, path: /a, to: good}}
      - {{path: /gone, to: gone}}
      - {{path: /fixed, respond: {{status: 503, body: x}}}}
  calls:
    bind: 127.0.0.1:{calls}
    protocol: http
    routes:
      - {{grpc: helloworld.Greeter, to: greeter}}
clusters:
  good:
    endpoints: [{{address: '{}', weight: 3}}, '{}']
    health_check: {{tcp: true, interval: 100ms}}
  gone: {{endpoints: ['127.0.0.1:9']}}
  greeter: {{protocol: h2c, endpoints: ['{}']}}
",
            json!(NASTY),
            one.address,
            other.address,
            greeter.address
        );
        let mut steelyard = Steelyard::serve(&config, 2);
        steelyard.until("healthy", |status| status["clusters"][0]["endpoints"][1]["state"] == "healthy");
        let world = Self { steelyard, web, origins: (one, other, greeter) };
        world.ask("/a", 40, 200);
        world.ask("/gone", 7, 502);
        world.ask("/fixed", 5, 503);
        world.ask("/nothing", 3, 404);
        let caller = Caller::connect(local(calls));
        (0..6).for_each(|_| drop(caller.call(SAY_HELLO, &[], &framed(b"\x0a\x03joe"))));
        world
    }

    fn ask(&self, path: &str, count: usize, status: u16) {
        for _ in 0..count {
            let mut conn = client::connect("web", local(self.web), None).unwrap();
            conn.send(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n").as_bytes()).unwrap();
            assert_eq!(conn.response(ResponseTo::Other).unwrap().status, status, "{path}");
        }
    }

    fn metrics(&self) -> String {
        String::from_utf8(get(self.steelyard.admin, "/metrics").unwrap().body).unwrap()
    }

    fn url(&self, query: &str) -> String {
        format!("http://{}/{query}", self.steelyard.admin)
    }
}

/// The rows of a table as text.
fn rows(browser: &mut Browser, selector: &str) -> Vec<Vec<String>> {
    let cells = "[...row.cells].map((cell) => cell.textContent.trim())";
    let rows = browser.eval(&format!("[...document.querySelectorAll('{selector} tbody tr')].map((row) => {cells})"));
    serde_json::from_value(rows).unwrap()
}

fn number(text: &str) -> f64 {
    let digits: String =
        text.chars().skip_while(|c| !c.is_ascii_digit()).take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    digits.parse().unwrap_or_else(|_| panic!("no number in {text:?}"))
}

#[test]
fn the_page_in_a_browser() {
    let Some(mut browser) = Browser::start() else {
        return support::skip("the_page_in_a_browser", "no chromium");
    };
    let world = World::new();
    numbers(&world, &mut browser);
    looks(&world, &mut browser);
    keyboard(&world, &mut browser);
    forms_by_keyboard(&world, &mut browser);
    actions(&world, &mut browser);
    live(&world, &mut browser);
    let ours = format!("http://{}/", world.steelyard.admin);
    assert!(browser.asked.iter().all(|url| url.starts_with(&ours) || url.starts_with("about:")), "{:?}", browser.asked);
    // Nothing broke the content security policy, and no script failed.
    // A form that was not confirmed was answered 400, which the browser logs.
    browser.logged.retain(|entry| !(entry.contains("400 (Bad Request)") && entry.contains("/do\"")));
    assert!(browser.logged.is_empty(), "{:?}", browser.logged);
    without_script(&world, &mut browser);
    many_routes(&mut browser);
}

/// Nothing is under way, so that two scrapes with the same counters enclose the page. What happened, happened in the last minute.
fn numbers(world: &World, browser: &mut Browser) {
    let counters = |text: &str| -> Vec<String> {
        let is_steady =
            |line: &&str| line.starts_with("steelyard_") && !line.contains("_bytes") && !line.contains("admin_");
        text.lines().filter(is_steady).map(str::to_owned).collect()
    };
    let compared = until(PATIENCE, || {
        let before = world.metrics();
        browser.open(&world.url(""));
        // The rates are those of the last seconds, which must have begun after the requests.
        let page = Shown::read(browser);
        (counters(&before) == counters(&world.metrics()) && page.is_whole()).then_some((before, page))
    });
    let (metrics, page) = compared.expect("the counters stood still");
    page.compare(&metrics);
    browser.screenshot("light");
}

/// The numbers of the page.
#[derive(Debug)]
struct Shown {
    routes: Vec<Vec<String>>,
    endpoints: Vec<Vec<String>>,
    listeners: Vec<Vec<String>>,
    methods: Vec<Vec<String>>,
    saturation: Value,
    details: String,
    head: String,
}

impl Shown {
    fn read(browser: &mut Browser) -> Self {
        let pairs = "[...document.querySelectorAll('#saturation dt')].map((name) => [name.textContent, name.nextElementSibling.textContent])";
        Self {
            routes: rows(browser, "#routes"),
            endpoints: rows(browser, "#endpoints"),
            listeners: rows(browser, "#listeners"),
            methods: rows(browser, "#methods"),
            saturation: browser.eval(&format!("Object.fromEntries({pairs})")),
            details: browser
                .eval("[...document.querySelectorAll('#routes details')].map((more) => more.textContent).join('\\n')")
                .to_string(),
            head: browser.eval("document.querySelector('header').textContent").to_string(),
        }
    }

    /// Whether the workers' last counts have arrived.
    fn is_whole(&self) -> bool {
        let sum = |column: usize| self.routes.iter().map(|row| number(&row[column])).sum::<f64>();
        sum(6) == 58.0 && sum(2) == 58.0
    }

    fn compare(&self, metrics: &str) {
        let check = |shown: &str, name: &str, labels: &[(&str, &str)]| {
            assert_eq!(number(shown), sum(metrics, name, labels), "{name} {labels:?}: {shown:?}");
        };
        self.compare_routes(metrics);
        for row in &self.endpoints {
            let labels = [("cluster", row[1].as_str()), ("endpoint", row[0].as_str())];
            check(&row[5], "steelyard_endpoint_requests_total", &labels);
            check(&row[6], "steelyard_endpoint_failures_total", &labels);
            check(&row[8], "steelyard_endpoint_in_flight", &labels);
            check(&row[10], "steelyard_endpoint_requests_total", &labels);
            check(&row[11], "steelyard_endpoint_failures_total", &labels);
            let all = sum(metrics, "steelyard_endpoint_requests_total", &labels[..1]);
            let share = sum(metrics, "steelyard_endpoint_requests_total", &labels) * 100.0 / all;
            assert!((number(&row[3]) - share).abs() <= 0.5, "{row:?} {share}");
            let up = sum(metrics, "steelyard_endpoint_up", &labels);
            assert_eq!(row[2].contains('\u{25cf}'), up == 1.0, "{row:?}");
        }
        assert_eq!(
            self.endpoints.iter().map(|row| row[4].as_str()).collect::<Vec<_>>(),
            ["75 %", "25 %", "100 %", "100 %"]
        );
        assert!(self.endpoints[0][2].contains("the last probe succeeded"), "{:?}", self.endpoints);
        for row in &self.listeners {
            let listener = [("listener", row[0].as_str())];
            check(&row[3], "steelyard_listener_connections_open", &listener);
            check(&row[4], "steelyard_listener_connections_total", &listener);
            check(&row[5], "steelyard_listener_requests_total", &listener);
            for refused in row[6].split(", ").filter(|refused| !refused.is_empty()) {
                let (count, reason) = refused.split_once(' ').unwrap();
                check(count, "steelyard_refused_total", &[listener[0], ("reason", reason)]);
            }
        }
        assert_eq!((self.listeners.len(), self.methods.len()), (2, 1));
        check(&self.methods[0][2], "steelyard_grpc_calls_total", &[("method", "SayHello")]);
        quantiles(&self.methods[0][3], metrics, "steelyard_grpc_call_seconds", &[("method", "SayHello")]);
        let gauge =
            |name: &str| self.saturation[name].as_str().unwrap_or_else(|| panic!("{name}: {}", self.saturation));
        check(gauge("Requests that wait for a connection"), "steelyard_cluster_pending", &[]);
        check(gauge("Connections"), "steelyard_listener_connections_open", &[]);
        // Nothing was retried.
        check(gauge("Most used retry budget"), "steelyard_cluster_retry_budget_used_ratio", &[]);
        // The page is one connection more, and a scrape is one.
        assert!((number(gauge("File descriptors")) - sum(metrics, "process_open_fds", &[])).abs() <= 4.0, "{self:?}");
        let memory = sum(metrics, "steelyard_memory_bytes", &[]) / 1048576.0;
        assert!((number(gauge("Memory, MiB")) - memory).abs() <= 8.0, "{memory} {self:?}");
        assert!(self.details.contains(&format!(
            "Retries of good{}",
            sum(metrics, "steelyard_cluster_retries_total", &[("cluster", "good")])
        )));
        let generation = sum(metrics, "steelyard_generation", &[]);
        assert!(self.head.contains(&format!("generation {generation}")), "{}", self.head);
    }

    fn compare_routes(&self, metrics: &str) {
        let check = |shown: &str, name: &str, labels: &[(&str, &str)]| {
            assert_eq!(number(shown), sum(metrics, name, labels), "{name} {labels:?}: {shown:?}");
        };
        assert_eq!(self.routes.len(), 4, "{:?}", self.routes);
        for row in &self.routes {
            let name = row[0].split(" more").next().unwrap().trim();
            let escaped = name.replace('\\', "\\\\").replace('"', "\\\"");
            let route = [("route", escaped.as_str())];
            // All requests were made in the last minute.
            check(&row[2], "steelyard_route_responses_total", &route);
            check(&row[3], "steelyard_route_responses_total", &[route[0], ("class", "5xx")]);
            check(&row[6], "steelyard_route_responses_total", &route);
            for status in row[7].split(", ") {
                let (count, class) = status.split_once(' ').unwrap();
                check(count, "steelyard_route_responses_total", &[route[0], ("class", class)]);
            }
            for refused in row[8].split(", ").filter(|refused| !refused.is_empty()) {
                let (count, reason) = refused.split_once(' ').unwrap();
                check(count, "steelyard_route_refused_total", &[route[0], ("reason", reason)]);
            }
            let refused: f64 = row[8].split(", ").filter(|refused| !refused.is_empty()).map(number).sum();
            assert_eq!(refused, sum(metrics, "steelyard_route_refused_total", &route), "{row:?}");
            check(&row[9], "steelyard_route_retries_total", &route);
            quantiles(&row[4], metrics, "steelyard_route_added_seconds", &route);
            quantiles(&row[5], metrics, "steelyard_route_upstream_seconds", &route);
        }
        assert!(self.routes.iter().any(|row| row[0].starts_with(NASTY)), "{:?}", self.routes);
        let gone = self.routes.iter().find(|row| row[0].starts_with("/gone"));
        assert_eq!(gone.map(|row| row[8].as_str()), Some("7 connect_refused"), "{:?}", self.routes);
    }
}

/// `p50 / p99`, both of which must be in the bucket of the histogram that their rank is in.
fn quantiles(shown: &str, metrics: &str, name: &str, labels: &[(&str, &str)]) {
    let count = sum(metrics, &format!("{name}_count"), labels);
    if count == 0.0 {
        assert_eq!(shown, "- / -", "{name} {labels:?}");
        return;
    }
    let (p50, p99) = shown.split_once(" / ").unwrap_or_else(|| panic!("{shown:?}"));
    for (text, share) in [(p50, 0.5), (p99, 0.99)] {
        let unit = if text.ends_with(" us") {
            1e-6
        } else if text.ends_with(" ms") {
            1e-3
        } else {
            1.0
        };
        let seconds = number(text) * unit;
        // The bounds around the rank. What is shown is rounded to a microsecond, or to a tenth of its unit.
        let is_below = |bound: &f64| {
            let bound = bound.to_string();
            sum(metrics, &format!("{name}_bucket"), &[labels, &[("le", &bound)]].concat()) >= (share * count).ceil()
        };
        let bounds = bounds(metrics, name);
        let at = bounds.iter().position(is_below).unwrap_or(bounds.len());
        let low = if at == 0 { 0.0 } else { bounds[at - 1] };
        let high = bounds.get(at).copied().unwrap_or(f64::INFINITY);
        let rounding = unit.max(seconds * 0.01);
        assert!(
            low - rounding <= seconds && seconds <= high + rounding,
            "{name} {labels:?} {share}: {shown:?} is not in {low}..{high}"
        );
    }
}

/// The upper bounds of the buckets of a histogram.
fn bounds(metrics: &str, name: &str) -> Vec<f64> {
    let of_line = |line: &str| {
        let rest = line.strip_prefix(&format!("{name}_bucket{{"))?;
        let (_, bound) = rest.split_once("le=\"")?;
        bound.split('"').next()?.parse::<f64>().ok().filter(|bound| bound.is_finite())
    };
    let mut bounds: Vec<f64> = metrics.lines().filter_map(of_line).collect();
    bounds.sort_by(f64::total_cmp);
    bounds.dedup();
    bounds
}

/// Nothing is wider than a narrow window, and text has contrast in the dark.
fn looks(world: &World, browser: &mut Browser) {
    browser.look(390, 844, "light");
    browser.open(&world.url(""));
    let wide = browser.eval("document.documentElement.scrollWidth");
    let over = "[...document.querySelectorAll('*')].filter(e => !e.closest('.scroll') && e.getBoundingClientRect().right > 391).slice(0, 8).map(e => e.outerHTML.slice(0, 120))";
    assert!(wide.as_u64() <= Some(390), "{wide}: {}", browser.eval(over));
    browser.screenshot("narrow");
    browser.look(1280, 900, "dark");
    browser.open(&world.url(""));
    let colours =
        browser.eval("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]");
    let light = |colour: &Value| {
        colour
            .as_str()
            .unwrap()
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|part| part.parse::<u32>().ok())
            .sum::<u32>()
    };
    assert!(light(&colours[0]) < 150 && light(&colours[1]) > 600, "{colours}");
    browser.screenshot("dark");
    browser.look(1280, 900, "light");
}

/// The tabulator reaches every link, field and scrolled table in the order of the page, and Enter follows a link.
fn keyboard(world: &World, browser: &mut Browser) {
    browser.open(&world.url(""));
    let focusable = "[...document.querySelectorAll('a[href], input:not([type=hidden]), select, textarea, button, summary, [tabindex=\"0\"]')]";
    let count = browser.eval(&format!("{focusable}.length")).as_u64().unwrap();
    let mut last = -1;
    for step in 0..count {
        browser.press("Tab", 9, "");
        let at = browser.eval(&format!("{focusable}.indexOf(document.activeElement)")).as_i64().unwrap();
        assert_eq!(at, last + 1, "step {step} of {count}: {}", browser.eval("document.activeElement.outerHTML"));
        last = at;
        assert_focus_is_visible(browser);
    }
    // The first is the link that skips the head.
    browser.open(&world.url(""));
    browser.press("Tab", 9, "");
    browser.press("Enter", 13, "\r");
    browser.until("location.hash === '#problems'");
}

/// What has the focus has an outline, a size, and is where a person looks.
fn assert_focus_is_visible(browser: &mut Browser) {
    let seen = "(() => {
        const of = document.activeElement, style = getComputedStyle(of), at = of.getBoundingClientRect();
        return style.outlineStyle === 'solid' && parseFloat(style.outlineWidth) >= 2 && at.width > 0 && at.height > 0
            && at.bottom > 0 && at.top < innerHeight && at.right > 0 && at.left < innerWidth;
    })()";
    assert_eq!(browser.eval(seen), true, "{}", browser.eval("document.activeElement.outerHTML"));
}

/// Presses the tabulator until this has the focus.
fn tab_to(browser: &mut Browser, selector: &str) {
    const STEPS_MAX: usize = 200;
    let is_there = format!("document.activeElement.matches({})", json!(selector));
    for _ in 0..STEPS_MAX {
        if browser.eval(&is_there) == true {
            return;
        }
        browser.press("Tab", 9, "");
    }
    panic!("the tabulator does not reach {selector}");
}

fn type_text(browser: &mut Browser, text: &str) {
    for c in text.chars() {
        // The codes of other characters are those of keys that move or delete.
        let code = if c.is_ascii_alphanumeric() { c.to_ascii_uppercase().into() } else { 0 };
        browser.press(&c.to_string(), code, &c.to_string());
    }
}

/// Both forms for actions and the question with nothing but keys: what is not confirmed by typing it again does not happen.
fn forms_by_keyboard(world: &World, browser: &mut Browser) {
    let address = world.origins.1.address.to_string();
    let state = || {
        let status = world.steelyard.status();
        let endpoints = status["clusters"][0]["endpoints"].as_array().unwrap().clone();
        let of = endpoints.into_iter().find(|of| of["address"] == address).unwrap();
        of["state"].as_str().unwrap().to_owned()
    };
    let mut act = |form: u32, choice: Option<&str>, about: &str, confirm: &str, says: &str| {
        let field = |name: &str| format!("#actions form:nth-of-type({form}) [name={name}]");
        browser.open(&world.url(""));
        if let Some(first_letter) = choice {
            tab_to(browser, &field("action"));
            type_text(browser, first_letter);
        }
        tab_to(browser, &field("about"));
        type_text(browser, about);
        tab_to(browser, &field("confirm"));
        type_text(browser, confirm);
        browser.press("Enter", 13, "\r");
        browser.until(&format!("document.body.textContent.includes({})", json!(says)));
    };
    act(1, None, &address, "yes", "nothing has changed");
    assert_eq!(state(), "healthy");
    act(1, None, &address, &address, "Draining: ");
    assert_eq!(state(), "draining");
    act(1, Some("p"), &address, &address, "In service: ");
    assert_eq!(state(), "healthy");
    act(2, None, "/fixed", "/fixed", "In maintenance: ");
    act(2, Some("p"), "/fixed", "/fixed", "In service: ");
    browser.open(&world.url(""));
    tab_to(browser, "#questions [name=path]");
    type_text(browser, "/gone/x");
    browser.press("Enter", 13, "\r");
    browser.until("document.querySelector('#questions').textContent.includes('The route /gone takes it')");
}

/// A question and an action, by what a person types.
fn actions(world: &World, browser: &mut Browser) {
    browser.open(&world.url("?listener=web&path=%2Fgone%2Fx&host=a.test"));
    let answer = browser.eval("document.querySelector('#questions').textContent");
    let answer = answer.as_str().unwrap();
    assert!(
        answer.contains("The route /gone takes it, and sends it to gone") && answer.contains("It is for another path."),
        "{answer}"
    );
    assert!(answer.contains(NASTY), "{answer}");
    browser.open(&world.url(""));
    let form = "[...document.querySelectorAll('#actions form')].at(-1)";
    browser.eval(&format!("{form}.querySelector('[name=confirm]').focus()"));
    let generation = world.steelyard.generation();
    "reload".chars().for_each(|c| browser.press(&c.to_string(), c.to_ascii_uppercase().into(), &c.to_string()));
    browser.press("Enter", 13, "\r");
    browser.until("document.body.textContent.includes('Reloaded: generation')");
    assert!(world.steelyard.generation() > generation);
}

/// While there is load, the figures move without a reload of the page, and refused requests appear.
fn live(world: &World, browser: &mut Browser) {
    browser.open(&world.url(""));
    browser.until("document.getElementById('live').textContent === 'live'");
    let load = Load::start(local(world.web), "/a", 8);
    browser.until("parseFloat(document.getElementById('now-requests').textContent) > 100");
    browser.until("parseInt(document.getElementById('now-open').textContent) >= 8");
    world.ask("/gone", 1, 502);
    browser.until("document.getElementById('tail').textContent.includes('/gone')");
    let rows = rows(browser, "#requests");
    assert!(rows.iter().any(|row| row[1..4] == ["502", "connect_refused", "GET a.test/gone"]), "{rows:?}");
    browser.screenshot("live");
    assert_eq!(load.stop().failures, 0);
}

fn without_script(world: &World, browser: &mut Browser) {
    browser.call("Emulation.setScriptExecutionDisabled", json!({"value": true}));
    let opened = browser.call("Page.navigate", json!({"url": world.url("?sort=errors")}));
    assert_eq!(opened["errorText"], Value::Null);
    // Everything in one answer: the nodes of a page that is still being read have no lasting numbers.
    let shown = until(PATIENCE, || {
        let nodes = browser.call("DOM.getDocument", json!({"depth": -1}))["root"].to_string();
        ["steelyard tail", "polyline", "/gone", "For programs"].iter().all(|text| nodes.contains(text)).then_some(())
    });
    assert!(shown.is_some(), "the page lacks something without a script");
    browser.screenshot("without-script");
    browser.call("Emulation.setScriptExecutionDisabled", json!({"value": false}));
}

/// 5,000 routes are leafed through and searched.
fn many_routes(browser: &mut Browser) {
    let (web, origin) = (port(), Origin::start("web"));
    let routes: String = (0..5000).map(|route| format!("      - {{path: /r{route}, to: web}}\n")).collect();
    let config = format!(
        "admin: {{admin}}\nlisteners:\n  web:\n    bind: 127.0.0.1:{web}\n    protocol: http\n    routes:\n{routes}clusters:\n  web: \
         {{endpoints: ['{}']}}\n",
        origin.address
    );
    let steelyard = Steelyard::serve(&config, 1);
    let mut conn = client::connect("web", local(web), None).unwrap();
    for route in 0..5000 {
        conn.send(format!("GET /r{route} HTTP/1.1\r\nHost: a.test\r\n\r\n").as_bytes()).unwrap();
        assert_eq!(conn.response(ResponseTo::Other).unwrap().status, 200);
    }
    let url = |query: &str| format!("http://{}/{query}", steelyard.admin);
    browser.open(&url("?routes=100"));
    let shown = until(PATIENCE, || {
        browser.open(&url("?routes=100"));
        let text = browser.eval("document.querySelector('#routes').textContent");
        text.as_str().unwrap().contains("Rows 4951 to 5000 of 5000").then_some(())
    });
    assert!(shown.is_some());
    browser.open(&url("?find=r4999"));
    assert_eq!(rows(browser, "#routes").len(), 1);
    browser.screenshot("many-routes");
}
