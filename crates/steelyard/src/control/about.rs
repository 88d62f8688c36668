//! What the page tells besides the status: the traffic of the last hour, how busy the workers are, and what the configuration changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::sync::Arc;

use admin::{CertificateStatus, ChangesStatus, OTHERS_MAX, OtherRoute, RouteQuestion, RouteReport, STATUS_VERSION};
use model::{Cluster, Listener, Protocol, Route, Snapshot, Vip};
use proxy::{Compiled, Explanation, ListenerPlan, NamedFiles, WhyNot};

/// Lines of a difference that are kept.
const LINES_MAX: usize = 500;
/// Threads whose CPU time is read each second.
const THREADS_MAX: usize = 256;

/// The CPU time of each worker.
#[derive(Debug, Default)]
pub(super) struct WorkerTimes {
    /// Of each thread: its number, and its ticks at the last look.
    seen: HashMap<u32, u64>,
    looked_ms: u64,
    busiest_percent: Option<f64>,
}

impl WorkerTimes {
    /// Reads the times. What happened since the last look is what counts, so it must not be long ago.
    pub(super) fn look(&mut self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.looked_ms);
        if passed_ms < 500 {
            return;
        }
        let now = worker_ticks();
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        let grown = |(thread, ticks): (&u32, &u64)| Some(ticks.saturating_sub(*self.seen.get(thread)?));
        let most = now.iter().filter_map(grown).max();
        self.busiest_percent = most.map(|ticks| (ticks as f64 / per_second * 100_000.0 / passed_ms as f64).min(100.0));
        (self.seen, self.looked_ms) = (now, now_ms);
    }

    pub(super) fn busiest_percent(&self) -> Option<f64> {
        self.busiest_percent
    }
}

/// User and system time of each worker thread, in ticks.
fn worker_ticks() -> HashMap<u32, u64> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return HashMap::new() };
    let ticks = |task: fs::DirEntry| {
        let thread = task.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        // The name of the thread is in parentheses and may contain some itself. Fields 14 and 15 are the times (proc_pid_stat(5)).
        let (name, fields) = stat.rsplit_once(") ")?;
        let (_, name) = name.split_once('(')?;
        if !name.starts_with("worker") {
            return None;
        }
        let mut times = fields.split(' ').skip(14 - 3);
        Some((thread, times.next()?.parse::<u64>().ok()? + times.next()?.parse::<u64>().ok()?))
    };
    tasks.flatten().take(THREADS_MAX).filter_map(ticks).collect()
}

/// The certificates that this process shows, the first to expire first.
pub(crate) fn certificates(files: &NamedFiles) -> Vec<CertificateStatus> {
    let mut all: Vec<CertificateStatus> = files
        .certificates()
        .map(|(owner, shown)| CertificateStatus {
            owner,
            names: shown.names.clone(),
            expires_unix_seconds: shown.valid_until_s,
        })
        .collect();
    all.sort();
    all
}

/// What a snapshot says, without secrets, for people.
pub(super) fn text(snapshot: &Snapshot) -> String {
    let nothing = Snapshot { listeners: Vec::new(), clusters: Vec::new(), ..snapshot.clone() };
    parts(snapshot, &nothing).values().map(|part| format!("{}\n{}\n\n", part.name, part.text)).collect()
}

/// What `now` has and `before` has not, and the reverse, as lines. No secret is in them.
pub(crate) fn changes(before: &Snapshot, now: &Snapshot) -> ChangesStatus {
    let mut lines = Vec::new();
    let mut more = 0;
    let mut add = |line: String| if lines.len() < LINES_MAX { lines.push(line) } else { more += 1 };
    let (old, new) = (parts(before, now), parts(now, before));
    for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        match (old.get(key), new.get(key)) {
            (Some(Part { name, .. }), None) => add(format!("- {name}")),
            (None, Some(Part { name, .. })) => add(format!("+ {name}")),
            (Some(old), Some(new)) if old.text != new.text => {
                add(format!("  {}", new.name));
                let (was, is): (BTreeSet<&str>, BTreeSet<&str>) =
                    (old.text.lines().collect(), new.text.lines().collect());
                old.text.lines().filter(|line| !is.contains(line)).for_each(|line| add(format!("-   {}", line.trim())));
                new.text
                    .lines()
                    .filter(|line| !was.contains(line))
                    .for_each(|line| add(format!("+   {}", line.trim())));
            }
            (Some(old), Some(new)) if old.of.differs(&new.of) => {
                add(format!("  {}", new.name));
                add("    values that are not shown here".to_owned());
            }
            _ => {}
        }
    }
    ChangesStatus { generation: now.generation.0, lines, more }
}

/// A part of a snapshot.
struct Part<'s> {
    /// For people.
    name: String,
    /// What it says, without secrets.
    text: String,
    of: Of<'s>,
}

/// What a part is about, with secrets.
enum Of<'s> {
    Cluster(&'s Cluster),
    Route(&'s Route),
    Listener(&'s Listener),
    Vip(&'s Vip),
    Settings(&'s Snapshot),
}

impl Of<'_> {
    /// Whether they differ, although their texts do not.
    fn differs(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Cluster(one), Self::Cluster(other)) => one != other,
            // Regular expressions can only be compared as text, and secrets only as they are.
            (Self::Route(one), Self::Route(other)) => {
                one.policy != other.policy || one.to != other.to || format!("{one:?}") != format!("{other:?}")
            }
            (Self::Listener(one), Self::Listener(other)) => bare(one) != bare(other),
            (Self::Vip(one), Self::Vip(other)) => one != other,
            (Self::Settings(one), Self::Settings(other)) => {
                let of = |snapshot: &Snapshot| {
                    (snapshot.admin_access.clone(), snapshot.tracing.clone(), snapshot.access_log.clone())
                };
                of(one) != of(other)
            }
            _ => true,
        }
    }
}

/// The text of a listener without its routes, which are parts of their own.
fn bare(listener: &Listener) -> String {
    let mut listener = listener.clone();
    if let Protocol::Http(http) = &mut listener.protocol {
        http.routes = Arc::default();
    }
    format!("{listener:#?}")
}

/// The parts of a snapshot by their names. Parts that are at the same place in memory in the other snapshot have not changed and are left out.
fn parts<'s>(of: &'s Snapshot, other: &Snapshot) -> BTreeMap<String, Part<'s>> {
    let mut parts = BTreeMap::new();
    let others: BTreeSet<usize> = other.clusters.iter().map(|cluster| Arc::as_ptr(cluster) as usize).collect();
    for cluster in of.clusters.iter().filter(|cluster| !others.contains(&(Arc::as_ptr(cluster) as usize))) {
        let name = format!("cluster {}", cluster.name);
        let text = format!("{:#?}", cluster.masked());
        parts.insert(name.clone(), Part { name, text, of: Of::Cluster(cluster) });
    }
    let routes_of = |snapshot: &'_ Snapshot, name: &str| -> Option<Arc<[Route]>> {
        let listener = snapshot.listeners.iter().find(|listener| listener.name == name)?;
        if let Protocol::Http(http) = &listener.protocol { Some(http.routes.clone()) } else { None }
    };
    for listener in &of.listeners {
        if let Protocol::Http(http) = &listener.protocol
            && !routes_of(other, &listener.name).is_some_and(|other| Arc::ptr_eq(&http.routes, &other))
        {
            for route in http.routes.iter() {
                let masked = route.masked();
                let name = format!("route {} of {}", masked.name, listener.name);
                let text = format!("{}\n{masked:#?}", admin_target(of, route));
                parts.insert(
                    format!("route {} of {}", route.name, listener.name),
                    Part { name, text, of: Of::Route(route) },
                );
            }
        }
        let name = format!("listener {}", listener.name);
        let text = bare(&listener.masked());
        parts.insert(name.clone(), Part { name, text, of: Of::Listener(listener) });
    }
    for vip in &of.vips {
        let name = format!("vip {}", vip.name);
        parts.insert(name.clone(), Part { name, text: format!("{:#?}", vip.masked()), of: Of::Vip(vip) });
    }
    let name = "the settings of the process".to_owned();
    parts.insert(name.clone(), Part { name, text: settings(of), of: Of::Settings(of) });
    parts
}

/// The text of what a snapshot has besides listeners, clusters and vips.
fn settings(of: &Snapshot) -> String {
    let Snapshot {
        generation: _,
        admin,
        admin_access,
        metrics,
        access_log,
        tracing,
        dns,
        drain_delay,
        drain_timeout,
        memory_max,
        listeners: _,
        clusters: _,
        vips: _,
        flows_max,
        socket_cgroup,
        announcing,
    } = of;
    let to = |otlp: &model::Otlp| format!("to {}\n", of.cluster(otlp.to).name);
    let tracing = tracing.as_ref().map(|tracing| format!("{}{:#?}", to(&tracing.otlp), tracing.masked()));
    let log = access_log.as_ref().map(|log| {
        let to = if let model::LogTarget::Otlp(otlp) = &log.target { to(otlp) } else { String::new() };
        format!("{to}{:#?}", log.masked())
    });
    let (tracing, log) = (tracing.unwrap_or_default(), log.unwrap_or_default());
    let others = (admin, admin_access, metrics, dns, (drain_delay, drain_timeout), memory_max);
    let of_kernel_plane = (flows_max, socket_cgroup, announcing);
    format!("{others:#?}\n{log}\n{tracing}\n{of_kernel_plane:#?}")
}

/// Where a route leads, by name: the model has only numbers, which change with the order of clusters.
fn admin_target(snapshot: &Snapshot, route: &Route) -> String {
    let model::RouteAction::Clusters(shares) = &route.to else { return String::new() };
    shares.iter().map(|share| format!("to {} {}\n", snapshot.cluster(share.cluster).name, share.weight)).collect()
}

/// Lists the names of what there is.
pub(super) fn there_are<T: std::borrow::Borrow<str>>(known: &[T]) -> String {
    if known.is_empty() { "there are none".to_owned() } else { format!("there are {}", known.join(", ")) }
}

/// Answers which route would take a request.
///
/// # Errors
/// Says in a sentence that the question makes no sense.
pub(super) fn explain(compiled: &Compiled, question: &RouteQuestion) -> Result<RouteReport, String> {
    let http = || compiled.listeners.iter().filter(|plan| matches!(plan.policy.protocol, Protocol::Http(_)));
    let known = || there_are(&http().map(|plan| plan.policy.name.as_str()).take(20).collect::<Vec<_>>());
    let plan: &ListenerPlan = match question.listener.as_str() {
        // A host may have vips alone.
        "" if http().next().is_none() => return Err("this process has no listener with routes".to_owned()),
        "" if http().count() == 1 => http().next().ok_or("there is no listener with routes")?,
        "" => return Err(format!("name the listener: {}", known())),
        name => http()
            .find(|plan| plan.policy.name == name)
            .ok_or_else(|| format!("no such listener with routes: {name}; {}", known()))?,
    };
    let field = |line: &String| {
        let (name, value) =
            line.split_once(':').ok_or_else(|| format!("{line:?} is not a header field: write it like X-A: b"))?;
        Ok::<_, String>((name.trim().to_owned(), value.trim().to_owned()))
    };
    let headers =
        question.headers.iter().filter(|line| !line.trim().is_empty()).map(field).collect::<Result<_, _>>()?;
    let host = if question.host.is_empty() { "localhost" } else { question.host.as_str() };
    let asked = proxy::RouteQuestion {
        method: question.method.clone(),
        host: host.to_owned(),
        target: question.path.clone(),
        headers,
    };
    let Explanation { target, route, mut others, more } = plan.explain(&asked)?;
    let routes = plan.routes();
    let name = |index: usize| routes.get(index).map_or_else(String::new, |route| route.name.clone());
    // Those that nearly take it first.
    others.sort_by_key(|(index, why)| (std::cmp::Reverse(*why), *index));
    let left = others.len().saturating_sub(OTHERS_MAX) + more;
    let other = |(index, why): (usize, WhyNot)| OtherRoute { route: name(index), why: sentence(why).to_owned() };
    Ok(RouteReport {
        version: STATUS_VERSION,
        target,
        route: route.map(name),
        to: route
            .and_then(|index| routes.get(index))
            .map_or_else(String::new, |route| admin::route_target(&compiled.snapshot, route)),
        others: others.into_iter().take(OTHERS_MAX).map(other).collect(),
        more: left,
    })
}

fn sentence(why: WhyNot) -> &'static str {
    match why {
        WhyNot::Host => "It is for another host.",
        WhyNot::Path => "It is for another path.",
        WhyNot::Method => "It is for another method.",
        WhyNot::Header => "It demands a header field that the request has not, or with another value.",
        WhyNot::Cookie => "It demands a cookie that the request has not, or with another value.",
        WhyNot::Query => "It demands a query parameter that the request has not, or with another value.",
        WhyNot::Grpc => "It is for gRPC calls, and the content type is another.",
        WhyNot::Claims => "It demands claims of a token, which this question does not have.",
        WhyNot::After => "It would take the request, but the other route has a more specific host, or comes first.",
    }
}

#[cfg(test)]
mod tests {
    use model::Generation;

    use super::*;

    fn snapshot(text: &str, generation: u64) -> Snapshot {
        config::parse("f", text, Generation(generation)).unwrap_or_else(|errors| panic!("{errors}"))
    }

    #[test]
    fn a_difference_has_what_changed_and_no_secret() {
        let text = "listeners: {l: {bind: ':1', protocol: http, routes: [{path: /a, to: web}, {path: /b, to: web, auth: \
                    {api_key: {header: k, keys: {a: hunter2}}}}]}}\nclusters: {web: {endpoints: ['127.0.0.1:1']}}";
        let before = snapshot(text, 1);
        let again = snapshot(text, 2);
        assert_eq!(changes(&before, &again), ChangesStatus { generation: 2, lines: Vec::new(), more: 0 });
        let other = text
            .replace("hunter2", "hunter3")
            .replace("path: /a,", "path: /c,")
            .replace("127.0.0.1:1'", "127.0.0.1:2'");
        let found = changes(&before, &snapshot(&other, 3));
        let lines = found.lines.join("\n");
        assert!(lines.contains("- route /a of l") && lines.contains("+ route /c of l"), "{lines}");
        assert!(lines.contains("  cluster web\n-   127.0.0.1:1,\n+   127.0.0.1:2,"), "{lines}");
        assert!(!lines.contains("hunter"), "{lines}");
        // What is not shown is still said to have changed.
        let found = changes(&before, &snapshot(&text.replace("hunter2", "hunter3"), 3));
        assert_eq!(found.lines, ["  route /b of l", "    values that are not shown here"]);
        // Many lines are counted.
        let many: String = (0..1000).map(|route| format!("{{path: /p{route}, to: web}}, ")).collect();
        let found = changes(&before, &snapshot(&text.replace("{path: /a, to: web},", &many), 4));
        assert_eq!((found.lines.len(), found.more), (LINES_MAX, 1001 - LINES_MAX));
    }

    #[test]
    fn nobody_who_may_read_sees_what_requests_and_responses_have() {
        let text = "access_log: {otlp: {to: web, protocol: http, attributes: {a: hunter30}, headers: {k: hunter31}}}\ntracing: {to: web, protocol: http, path: /v1/traces, \
                    attributes: {a: hunter32}}\nlisteners: {l: {bind: \
                    ':1', protocol: http, error_pages: [{status: 503, body: hunter9}], routes: [{path: /shop, request_headers: {set: \
                    {x-hop: hunter2, x-b: 'a \"hunter3'}}, headers: {xa: hunter12, a: hunter13, x-api-key: hunter4, x-pw: hunter6}, query: \
                    {access_token: hunter5, sig: hunter7}, cookies: {id: hunter14}, to: web}, {path: /own, respond: {status: 200, body: 'my \
                    hunter8', headers: {x-a: hunter10}}}, {path: /in, to: web, external_auth: {to: web, http: {}, sign_in: {url: \
                    'https://${host}/start?k=hunter15'}}}, {path: /in2, to: web, external_auth: {to: web2, grpc: {context: {k: hunter16}}}}, \
                    {path: /jwt, to: web, auth: {jwt: {issuer: i, audience: a, jwks: {url: 'https://i.test/keys?k=hunter17'}}}}, {path: /key, to: web, auth: \
                    {api_key: {header: k, keys: {a: hunter18}}}}]}}\nclusters: {web: {endpoints: ['127.0.0.1:1'], sticky: {cookie: c, secret: \
                    hunter19}, health_check: {http: /, headers: {x-probe: hunter11}, body: hunter20}}, web2: {protocol: h2c, endpoints: \
                    ['127.0.0.1:2']}}\nvips: {v: {address: '192.0.2.1:80/tcp', endpoints: ['10.0.0.3:3'], health_check: {http: /, body: \
                    hunter21}}}\nadmin: 127.0.0.1:2\nadmin_access: {read: {tokens: {graphs: hunter22hunter22}}}";
        let snapshot = snapshot(text, 1);
        let shown = super::text(&snapshot);
        assert!(
            !shown.contains("hunter"),
            "{:?}",
            shown.lines().filter(|line| line.contains("hunter")).collect::<Vec<_>>()
        );
        let kept =
            ["\"x-hop\"", "\"x-api-key\"", "\"access_token\"", "\"sig\"", "/shop xa= a= x-api-key= x-pw= cookie:id="];
        for kept in
            kept.into_iter().chain(["127.0.0.1:1", "i.test", "\"/start\"", "\"?(hidden)\"", "graphs", "to web\n"])
        {
            assert!(shown.contains(kept), "{kept}: {shown}");
        }
        // Nor in the names of routes, which metrics and logs have.
        assert!(!snapshot.listeners.iter().any(|listener| match &listener.protocol {
            Protocol::Http(http) => http.routes.iter().any(|route| route.name.contains("hunter")),
            _ => false,
        }));
    }

    #[test]
    fn workers_are_found_by_their_names() {
        let thread = std::thread::Builder::new().name("worker-77".to_owned());
        thread.spawn(|| assert!(!worker_ticks().is_empty())).unwrap().join().unwrap();
    }
}
