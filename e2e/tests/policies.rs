//! The policies of routes and clusters, with real processes: the figures that they promise, and what happens when the other side
//! misbehaves. `scripts/policy` tests the messages that they send.
#![forbid(unsafe_code)]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use lab::load::{HttpLoad, LoadReport, Target, Until, run_http};
use support::{Origin, Steelyard, local, port};
use testkit::strict::{Response, ResponseTo};
use testkit::{Conn, Exit, PATIENCE, client, until};

/// A file with one route, with these keys, for all requests to `web`.
fn config(web: u16, route: &str, clusters: &[(&str, &str)]) -> String {
    let clusters: String = clusters.iter().map(|(name, keys)| format!("  {name}: {{{keys}}}\n")).collect();
    format!(
        "admin: {{admin}}
listeners:
  web: {{bind: '127.0.0.1:{web}', protocol: http, routes: [{{{route}}}]}}
clusters:
{clusters}"
    )
}

fn endpoints(addresses: &[SocketAddr]) -> String {
    let list: Vec<_> = addresses.iter().map(|address| format!("'{address}'")).collect();
    format!("endpoints: [{}]", list.join(", "))
}

fn load(web: u16, connections: usize, requests: u64) -> LoadReport {
    let target = Target::resolve(&format!("http://127.0.0.1:{web}/")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(run_http(&HttpLoad::get(target, connections, Until::Requests(requests)))).unwrap()
}

fn refused(balancer: &Steelyard, reason: &str) -> u64 {
    balancer.metric("steelyard_refused_total", &[("reason", reason)]) as u64
}

fn of_cluster(balancer: &Steelyard, what: &str, cluster: &str) -> u64 {
    balancer.metric(&format!("steelyard_cluster_{what}_total"), &[("cluster", cluster)]) as u64
}

/// An origin that answers every request with the same bytes, or never if there are none.
struct Stub {
    address: SocketAddr,
    requests: Arc<AtomicU64>,
    end: Arc<AtomicBool>,
}

impl Stub {
    fn start(answer: &'static str) -> Self {
        let listener = TcpListener::bind(local(0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, end) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, ended) = (requests.clone(), end.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if ended.load(Relaxed) {
                    return;
                }
                let counted = counted.clone();
                std::thread::spawn(move || serve(stream, answer, &counted));
            }
        });
        Self { address, requests, end }
    }

    fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.end.store(true, Relaxed);
        // Wakes the thread. If that fails, it ends with the process.
        _ = TcpStream::connect(self.address);
    }
}

/// Ends with the connection.
fn serve(mut stream: TcpStream, answer: &str, counted: &AtomicU64) {
    let Ok(reader) = stream.try_clone() else { return };
    for line in BufReader::new(reader).lines().map_while(Result::ok) {
        if !line.is_empty() {
            continue;
        }
        counted.fetch_add(1, Relaxed);
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

#[test]
fn a_key_of_a_subset_has_some_endpoints_from_all_workers() {
    let stubs = [(); 5].map(|()| Stub::start("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
    let cluster = endpoints(&stubs.each_ref().map(|stub| stub.address))
        + ", balance: {maglev: {key: {header: x-user}, subset: 2}}";
    let web = port();
    let _balancer = Steelyard::serve(&config(web, "to: web", &[("web", &cluster)]), 2);
    // 60 requests of one curl, on new connections as workers may have them.
    let asked = |user: &str| -> Vec<usize> {
        let before = stubs.each_ref().map(Stub::requests);
        let mut command = std::process::Command::new("curl");
        command.args(["-s", "-f", "-H", &format!("x-user: {user}"), "-H", "Connection: close"]);
        assert!(command.arg(format!("http://127.0.0.1:{web}/[1-60]")).output().unwrap().status.success());
        let more = stubs.iter().zip(before).enumerate().filter(|(_, (stub, before))| stub.requests() > *before);
        more.map(|(number, _)| number).collect()
    };
    let users = ["ann", "bob", "cy", "dan", "eve", "fay", "gus", "hal"];
    let first = users.map(&asked);
    // One of the two is left out of 60 requests once in 10^17.
    assert!(first.iter().all(|found| found.len() == 2), "{first:?}");
    assert_eq!(users.map(&asked), first);
    let all: std::collections::BTreeSet<usize> = first.into_iter().flatten().collect();
    assert!(all.len() > 2, "{all:?}");
}

#[test]
fn a_split_is_exact_over_all_workers() {
    let (v1, v2, web) = (Origin::start("v1"), Origin::start("v2"), port());
    let clusters = [("v1", endpoints(&[v1.address])), ("v2", endpoints(&[v2.address]))];
    let clusters = [("v1", clusters[0].1.as_str()), ("v2", clusters[1].1.as_str())];
    let route = "to: [{cluster: v1, weight: 95}, {cluster: v2, weight: 5}]";
    let balancer = Steelyard::serve(&config(web, route, &clusters), 2);
    let report = load(web, 16, 4_000);
    assert_eq!(report.failures(), 0, "{report}");
    // One in twenty, except in the unfinished round of twenty of each worker.
    assert!(report.origins["v2"].abs_diff(200) <= 2, "{:?}", report.origins);
    let status = balancer.status();
    assert_eq!(status["routes"][0]["cluster"], "v1 95, v2 5", "{status}");
}

#[test]
fn a_dead_mirror_costs_no_client_anything() {
    let (origin, web) = (Origin::start("web"), port());
    let clusters = [("web", endpoints(&[origin.address])), ("dead", endpoints(&[local(port())]))];
    let clusters = [("web", clusters[0].1.as_str()), ("dead", clusters[1].1.as_str())];
    let mut balancer = Steelyard::serve(&config(web, "to: web, mirror: {to: dead}", &clusters), 2);
    let report = load(web, 8, 2_000);
    assert_eq!((report.failures(), report.answers), (0, 2_000), "{report}");
    let admin = balancer.admin;
    let failed = |status: &serde_json::Value| {
        let refused = &status["listeners"][0]["refused"];
        let count = |reason: &str| refused[reason].as_u64().unwrap_or(0);
        count("mirror_failed") + count("mirror_full") == 2_000
    };
    balancer.program.until("all copies ended", || support::status(admin).filter(failed)).unwrap();
}

#[test]
fn a_mirror_that_never_answers_is_bounded() {
    let (origin, mute, web) = (Origin::start("web"), Stub::start(""), port());
    let clusters = [("web", endpoints(&[origin.address])), ("mute", endpoints(&[mute.address]))];
    let clusters = [("web", clusters[0].1.as_str()), ("mute", clusters[1].1.as_str())];
    let balancer = Steelyard::serve(&config(web, "to: web, mirror: {to: mute}", &clusters), 1);
    let report = load(web, 8, 2_000);
    assert_eq!((report.failures(), report.answers), (0, 2_000), "{report}");
    // 128 at once, and as many again if this host needs more than ten seconds for the load.
    let full = refused(&balancer, "mirror_full");
    assert!(full >= 2_000 - 2 * 128, "{full}");
    assert!(mute.requests() <= 2 * 128, "{}", mute.requests());
    assert_eq!(of_cluster(&balancer, "mirrored", "mute"), 0);
}

#[test]
fn a_share_of_the_requests_is_mirrored() {
    let (origin, shadow, web) = (Origin::start("web"), Origin::start("shadow"), port());
    let clusters = [("web", endpoints(&[origin.address])), ("shadow", endpoints(&[shadow.address]))];
    let clusters = [("web", clusters[0].1.as_str()), ("shadow", clusters[1].1.as_str())];
    let balancer = Steelyard::serve(&config(web, "to: web, mirror: {to: shadow, percent: 10}", &clusters), 1);
    let report = load(web, 4, 1_000);
    assert_eq!((report.failures(), report.origins.get("shadow")), (0, None), "{report}");
    let done = || {
        let ended = of_cluster(&balancer, "mirrored", "shadow") + refused(&balancer, "mirror_full");
        (ended >= 100).then_some(ended)
    };
    assert_eq!(until(PATIENCE, done), Some(100));
    assert_eq!(of_cluster(&balancer, "requests", "shadow"), 0);
}

#[test]
fn a_storm_of_retries_is_bounded_by_the_budget() {
    const REQUESTS: u64 = 5_000;
    let busy = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n";
    let (first, second, web) = (Stub::start(busy), Stub::start(busy), port());
    // Ejection would hide the effect of the budget.
    let cluster = format!("{}, outlier: off", endpoints(&[first.address, second.address]));
    let route = "to: web, retry: {attempts: 3, on: [503], budget: 20%}";
    let balancer = Steelyard::serve(&config(web, route, &[("web", &cluster)]), 1);
    let begun = Instant::now();
    let report = load(web, 8, REQUESTS);
    assert_eq!(report.statuses.get(&503), Some(&REQUESTS), "{report}");
    let retries = of_cluster(&balancer, "retries", "web");
    assert_eq!(first.requests() + second.requests(), REQUESTS + retries);
    // A hundred per ten seconds in addition to the share, however long this host takes for the load.
    let floor = 100 * (begun.elapsed().as_secs() / 10 + 2);
    assert!(retries <= REQUESTS / 5 + floor, "{retries}");
    assert!(retries >= REQUESTS / 5, "{retries}");
    assert!(refused(&balancer, "retry_budget") > 0);
    // What happened at the listener and the cluster happened at its route.
    let of_route =
        |name: &str, labels: &[(&str, &str)]| balancer.metric(&format!("steelyard_route_{name}_total"), labels) as u64;
    assert_eq!(of_route("retries", &[]), retries);
    assert_eq!(of_route("refused", &[("reason", "retry_budget")]), refused(&balancer, "retry_budget"));
    // What is used of it is told for ten seconds. One more request uses some again.
    let is_used = || {
        load(web, 1, 1);
        (balancer.metric("steelyard_cluster_retry_budget_used_ratio", &[("cluster", "web")]) > 0.0).then_some(())
    };
    assert!(until(PATIENCE, is_used).is_some());
}

#[test]
fn a_rate_limit_is_exact_over_all_workers() {
    let (origin, web) = (Origin::start("web"), port());
    let route = "to: web, rate_limit: {requests: 1, per: 1h, by: client_ip, burst: 100}";
    let balancer = Steelyard::serve(&config(web, route, &[("web", &endpoints(&[origin.address]))]), 2);
    let report = load(web, 16, 1_000);
    assert_eq!(report.statuses.get(&200), Some(&100), "{:?}", report.statuses);
    assert_eq!(report.statuses.get(&429), Some(&900), "{:?}", report.statuses);
    assert_eq!((refused(&balancer, "rate_limited"), origin.requests()), (900, 100));
}

/// A GET with this cookie.
fn get(web: u16, cookie: &str) -> Response {
    let mut conn: Conn = client::connect("client", local(web), None).unwrap();
    let cookie = if cookie.is_empty() { String::new() } else { format!("Cookie: {cookie}\r\n") };
    conn.send(format!("GET / HTTP/1.1\r\nHost: a.test\r\n{cookie}Connection: close\r\n\r\n").as_bytes()).unwrap();
    conn.response(ResponseTo::Other).unwrap()
}

fn field(response: &Response, name: &str) -> Option<String> {
    let values = testkit::strict::values(&response.headers, name);
    values.first().map(|value| String::from_utf8_lossy(value).into_owned())
}

/// The endpoint that served it, and the cookie that it set.
fn served(response: &Response) -> (String, Option<String>) {
    assert_eq!(response.status, 200);
    let cookie = field(response, "set-cookie").map(|set| set.split(';').next().unwrap_or_default().to_owned());
    (field(response, "x-origin").unwrap(), cookie)
}

#[test]
fn a_client_stays_where_it_was_as_long_as_that_can_be() {
    let (mut origins, web) = (vec![Origin::start("one"), Origin::start("two")], port());
    let addresses = [origins[0].address, origins[1].address];
    let cluster = format!("{}, sticky: {{cookie: shop, ttl: 1h}}", endpoints(&addresses));
    let mut balancer = Steelyard::serve(&config(web, "to: web", &[("web", &cluster)]), 2);

    let first = get(web, "");
    let set = field(&first, "set-cookie").unwrap();
    assert!(set.ends_with("; Path=/; HttpOnly; SameSite=Lax; Max-Age=3600"), "{set}");
    let (home, cookie) = served(&first);
    let cookie = cookie.unwrap();
    assert!(!cookie.contains("127"), "{cookie}");
    for _ in 0..20 {
        assert_eq!(served(&get(web, &format!("a=b; {cookie}"))), (home.clone(), None));
    }
    // A made-up value belongs to no endpoint.
    assert!(served(&get(web, "shop=0000000000000000")).1.is_some());

    // The cookie survives a reload, and a drain: old clients stay, and new ones go elsewhere.
    let reloaded = config(web, "to: web, timeout: 10s", &[("web", &cluster)]);
    let generation = balancer.generation();
    balancer.reload(&reloaded, |status| status["generation"].as_u64() > Some(generation));
    assert_eq!(served(&get(web, &cookie)), (home.clone(), None));
    let place = usize::from(home == "two");
    let drained = balancer.ask(&["endpoint", "drain", &addresses[place].to_string()]);
    assert_eq!(drained.exit, Exit::Code(0), "{}", drained.stderr);
    let is_draining = |status: &serde_json::Value| status["clusters"][0]["endpoints"][place]["state"] == "draining";
    balancer.until("draining", is_draining);
    for _ in 0..10 {
        assert_eq!(served(&get(web, &cookie)), (home.clone(), None));
        assert_ne!(served(&get(web, "")).0, home);
    }
    let ready = balancer.ask(&["endpoint", "ready", &addresses[place].to_string()]);
    assert_eq!(ready.exit, Exit::Code(0), "{}", ready.stderr);

    // The endpoint dies: the other one serves the client, and the client stays there.
    drop(origins.remove(place));
    let (away, moved) = served(&get(web, &cookie));
    assert_ne!(away, home);
    for _ in 0..20 {
        assert_eq!(served(&get(web, moved.as_ref().unwrap())), (away.clone(), None));
    }
}
