//! How things are, as `/status` tells it in JSON.
//!
//! [`STATUS_VERSION`] grows when a field changes its meaning or goes; new fields may come without that, and readers pass over those that they
//! do not know.

use std::collections::BTreeMap;

use model::{Algorithm, Protocol, RouteAction, Snapshot, WeightedCluster};
use serde::{Deserialize, Serialize};
use telemetry::{
    Distribution, EndpointOutcomes, ListenerTotals, MethodKey, MethodTotals, Outcomes, ReasonTotals, RouteOutcomes,
    Spans, Totals,
};

use crate::findings::Finding;
use crate::vip::{KernelPlaneStatus, VipStatus};

/// The version of the JSON. 2: an endpoint that nothing has checked is `unchecked`, where version 1 called it `healthy`.
pub const STATUS_VERSION: u32 = 2;

/// How things are. Counts are since the start of the process, or since the thing came into the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`STATUS_VERSION`].
    pub version: u32,
    /// The version of the program.
    pub steelyard: String,
    /// The process.
    pub pid: u32,
    /// Threads that carry traffic.
    pub workers: usize,
    /// When this was told, seconds since 1970.
    pub unix_seconds: u64,
    /// Since the process began.
    pub uptime_seconds: u64,
    /// The snapshot in force.
    pub generation: u64,
    /// The process was told to end and is not ready; it takes new connections until `drain_delay` is over.
    #[serde(default)]
    pub ending: bool,
    /// The process finishes what is under way and then ends.
    pub draining: bool,
    /// What an operator should look at, the widest first.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// The last time that the configuration was read again; `None`: never.
    pub last_reload: Option<Reload>,
    /// Files of the configuration that are no longer there: a restart would fail.
    #[serde(default)]
    pub missing_files: Vec<String>,
    /// File descriptors in use; `None`: the host does not tell.
    #[serde(default)]
    pub open_files: Option<u64>,
    /// File descriptors that this process may have open; `None`: as many as it likes.
    #[serde(default)]
    pub open_files_max: Option<u64>,
    /// Memory of its own that this process uses, in bytes; 0: it has no listeners.
    #[serde(default)]
    pub memory: u64,
    /// Memory that it may use: `memory_max`; `None`: without limit.
    #[serde(default)]
    pub memory_max: Option<u64>,
    /// In the order of the file.
    pub listeners: Vec<ListenerStatus>,
    /// Routes that were hit, in the order of the file.
    pub routes: Vec<RouteStatus>,
    /// Methods of gRPC that were called, by listener, service and name.
    #[serde(default)]
    pub methods: Vec<MethodStatus>,
    /// In the order of the file.
    pub clusters: Vec<ClusterStatus>,
    /// `None`: there is none, since there are no vips.
    #[serde(default)]
    pub kernel_plane: Option<KernelPlaneStatus>,
    /// Those of the file in its order, then those that were added.
    #[serde(default)]
    pub vips: Vec<VipStatus>,
    /// This process serves no vips, and those of an earlier process still forward, with no process that looks after them.
    #[serde(default)]
    pub vips_left: bool,
}

/// A reload and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reload {
    /// Seconds since 1970.
    pub unix_seconds: u64,
    /// Whether the file was taken.
    pub ok: bool,
    /// What was wrong with it, as `steelyard check` says it.
    pub errors: Vec<String>,
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub bind: String,
    /// `http` or `tcp`.
    pub protocol: String,
    /// Connections open now.
    pub connections_open: u64,
    /// Connections accepted.
    pub connections_total: u64,
    /// Requests, or TCP connections given to a cluster.
    pub requests: u64,
    /// What was refused, failed or closed, by reason; reasons that did not occur are not there.
    pub refused: BTreeMap<String, u64>,
    /// The last minute.
    #[serde(default)]
    pub recent: ListenerRecent,
    /// The last 5 to 10 seconds.
    #[serde(default)]
    pub latest: ListenerRecent,
}

/// What happened at a listener in a span of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerRecent {
    /// Connections accepted.
    pub connections: u64,
    /// Requests, or TCP connections, that ended.
    pub requests: u64,
    /// Attempts to accept a connection that failed for want of descriptors or memory.
    pub accept_failures: u64,
    /// What was refused, failed or closed, by reason; reasons that did not occur are not there.
    pub refused: BTreeMap<String, u64>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouteStatus {
    /// Its listener's name.
    pub listener: String,
    /// Its name.
    pub name: String,
    /// Its cluster's name; of a split `v1 95, v2 5`, of a redirect `redirect`.
    pub cluster: String,
    /// Requests answered.
    pub requests: u64,
    /// The last minute.
    #[serde(default)]
    pub recent: RouteRecent,
    /// The last 5 to 10 seconds.
    #[serde(default)]
    pub latest: RouteRecent,
    /// The time that Steelyard itself added; `None`: nothing measured yet.
    pub added_us: Option<Quantiles>,
    /// The time until the endpoint's response head; `None`: nothing measured yet.
    pub upstream_us: Option<Quantiles>,
}

/// What happened at a route in a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteRecent {
    /// Requests answered.
    pub responses: u64,
    /// Those answered with 500 to 599.
    pub errors: u64,
}

/// A method of gRPC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MethodStatus {
    /// Its listener's name.
    pub listener: String,
    /// With its package: `helloworld.Greeter`.
    pub service: String,
    /// `SayHello`; `*` stands for those beyond the number that are counted apart, or that no endpoint knows.
    pub method: String,
    /// Calls that ended, by their status; those that did not occur are not there.
    pub codes: BTreeMap<String, u64>,
    /// From the head of a call to the end of its response; `None`: nothing measured yet.
    pub duration_us: Option<Quantiles>,
}

/// Of durations, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Half took no longer.
    pub p50: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
}

/// A cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// Its name.
    pub name: String,
    /// As in the file.
    pub algorithm: String,
    /// Requests, or TCP connections, given to it.
    pub requests: u64,
    /// Requests sent again.
    pub retries: u64,
    /// So little is usable that health and ejection are ignored.
    pub panic: bool,
    /// In the order of the file; the addresses of a name where the name stands.
    pub endpoints: Vec<EndpointStatus>,
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// Where.
    pub address: String,
    /// Relative to the others; 0 takes no new work.
    pub weight: u32,
    /// Whether it takes new work.
    pub state: EndpointState,
    /// What led to that state, or the last failure.
    pub why: Option<String>,
    /// Requests under way.
    pub in_flight: u64,
    /// Connections open to it.
    pub connections: u64,
    /// Requests, or TCP connections, sent to it.
    pub requests: u64,
    /// Those that failed.
    pub failures: u64,
    /// The time until its response head; `None`: nothing measured yet.
    #[serde(default)]
    pub upstream_us: Option<Quantiles>,
    /// The last minute.
    #[serde(default)]
    pub recent: EndpointRecent,
    /// The last 5 to 10 seconds.
    #[serde(default)]
    pub latest: EndpointRecent,
}

/// What happened at an endpoint in a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointRecent {
    /// Requests, or TCP connections, sent to it.
    pub requests: u64,
    /// No connection came about.
    pub unreachable: u64,
    /// It answered with 500 to 599.
    pub errors: u64,
    /// It closed or reset the connection before the end of its answer, or its answer was malformed.
    pub resets: u64,
    /// It was silent for too long.
    pub timeouts: u64,
}

/// Whether an endpoint takes new work, and who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndpointState {
    /// It does: its health check says so.
    Healthy,
    /// It does, and nothing has checked whether it can: its cluster has no health check, or no probe has ended yet.
    Unchecked,
    /// Active probes fail.
    Unhealthy,
    /// Taken out for a while by what real requests met there.
    Ejected,
    /// The operator wants no new work there.
    Draining,
}

impl EndpointState {
    /// Whether it takes new work.
    pub fn takes_work(self) -> bool {
        matches!(self, Self::Healthy | Self::Unchecked)
    }
}

impl EndpointRecent {
    /// All that failed.
    pub fn failures(&self) -> u64 {
        self.unreachable + self.errors + self.resets + self.timeouts
    }
}

impl From<RouteOutcomes> for RouteRecent {
    fn from(RouteOutcomes { responses, errors }: RouteOutcomes) -> Self {
        Self { responses, errors }
    }
}

impl From<EndpointOutcomes> for EndpointRecent {
    fn from(outcomes: EndpointOutcomes) -> Self {
        let EndpointOutcomes { requests, unreachable, errors, resets, timeouts } = outcomes;
        Self { requests, unreachable, errors, resets, timeouts }
    }
}

impl Status {
    /// Reads what `/status` told.
    ///
    /// # Errors
    /// It is of another version, or no status at all; in a sentence.
    pub fn parse(json: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let no_status =
            |error| format!("this is not the status of a Steelyard: {error}; is it the address of `admin:`?");
        let Version { version } = serde_json::from_slice(json).map_err(no_status)?;
        if version != STATUS_VERSION {
            return Err(format!(
                "the running Steelyard tells its status in version {version}, this program knows {STATUS_VERSION}: use the same binary for both"
            ));
        }
        serde_json::from_slice(json).map_err(no_status)
    }
}

impl ClusterStatus {
    /// What configuration and counters say about a cluster; the rest is for who knows the state of its endpoints.
    pub fn new(cluster: &model::Cluster, totals: &Totals, panic: bool, endpoints: Vec<EndpointStatus>) -> Self {
        let (requests, retries) =
            totals.clusters.get(&cluster.name).map_or((0, 0), |total| (total.requests, total.retries));
        let algorithm = match cluster.algorithm {
            Algorithm::RoundRobin => "round_robin",
            Algorithm::LeastRequest => "least_request",
            Algorithm::LeastConnections => "least_connections",
            Algorithm::Random => "random",
            Algorithm::Maglev(_) => "maglev",
            Algorithm::PeakEwma => "peak_ewma",
        };
        Self { name: cluster.name.clone(), algorithm: algorithm.into(), requests, retries, panic, endpoints }
    }
}

/// What configuration and counters say about the listeners.
pub fn listener_statuses(snapshot: &Snapshot, totals: &Totals, outcomes: &Spans<Outcomes>) -> Vec<ListenerStatus> {
    let nothing = ListenerTotals::default();
    let counted = |reasons: &ReasonTotals| -> BTreeMap<String, u64> {
        reasons.counted().map(|(reason, count)| (reason.name().to_owned(), count)).collect()
    };
    let in_span = |outcomes: &Outcomes, name: &str| match outcomes.listeners.get(name) {
        None => ListenerRecent::default(),
        Some(of) => ListenerRecent {
            connections: of.connections,
            requests: of.requests,
            accept_failures: of.accept_failures,
            refused: counted(&of.reasons),
        },
    };
    let status = |listener: &model::Listener| {
        let total = totals.listeners.get(&listener.name).unwrap_or(&nothing);
        let protocol = match listener.protocol {
            Protocol::Http(_) if listener.tls.is_some() => "https",
            Protocol::Http(_) => "http",
            Protocol::Tcp(_) => "tcp",
            Protocol::TlsPassthrough(_) => "tls_passthrough",
        };
        ListenerStatus {
            name: listener.name.clone(),
            bind: listener.bind.to_string(),
            protocol: protocol.into(),
            connections_open: total.open,
            connections_total: total.connections,
            requests: total.requests,
            refused: counted(&total.reasons),
            recent: in_span(&outcomes.minute, &listener.name),
            latest: in_span(&outcomes.latest, &listener.name),
        }
    };
    snapshot.listeners.iter().map(status).collect()
}

/// What configuration and counters say about the routes that were hit.
pub fn route_statuses(snapshot: &Snapshot, totals: &Totals, outcomes: &Spans<Outcomes>) -> Vec<RouteStatus> {
    let mut statuses = Vec::new();
    for listener in &snapshot.listeners {
        let Protocol::Http(http) = &listener.protocol else { continue };
        for route in http.routes.iter() {
            let key = (listener.name.clone(), route.name.clone());
            let Some(total) = totals.routes.get(&key) else { continue };
            let in_span = |outcomes: &Outcomes| outcomes.routes.get(&key).copied().unwrap_or_default().into();
            statuses.push(RouteStatus {
                listener: listener.name.clone(),
                name: route.name.clone(),
                cluster: target(snapshot, &route.to),
                requests: total.responses.sum(),
                recent: in_span(&outcomes.minute),
                latest: in_span(&outcomes.latest),
                added_us: quantiles(&total.added),
                upstream_us: quantiles(&total.upstream),
            });
        }
    }
    statuses
}

pub(crate) fn target(snapshot: &Snapshot, to: &RouteAction) -> String {
    match to {
        RouteAction::Redirect(_) => "redirect".to_owned(),
        RouteAction::Clusters(clusters) => match clusters.as_slice() {
            [only] => snapshot.cluster(only.cluster).name.clone(),
            many => {
                let share =
                    |share: &WeightedCluster| format!("{} {}", snapshot.cluster(share.cluster).name, share.weight);
                many.iter().map(share).collect::<Vec<_>>().join(", ")
            }
        },
    }
}

/// What counters say about the methods of gRPC that were called.
pub fn method_statuses(totals: &Totals) -> Vec<MethodStatus> {
    let status = |(key, total): (&MethodKey, &MethodTotals)| MethodStatus {
        listener: key.listener.clone(),
        service: key.service.clone(),
        method: key.method.clone(),
        codes: total.codes.counted().map(|(code, count)| (code.to_owned(), count)).collect(),
        duration_us: quantiles(&total.duration),
    };
    totals.methods.iter().map(status).collect()
}

/// The median and the 99th percentile; `None`: nothing was measured.
pub fn quantiles(distribution: &Distribution) -> Option<Quantiles> {
    Some(Quantiles { p50: distribution.quantile(0.5)?, p99: distribution.quantile(0.99)? })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::{
        ClusterId, ForwardedHeaders, Generation, HttpListener, Listener, ListenerLimits, PathRules, Redirect, Route,
        TcpListener,
    };
    use telemetry::{Reason, Recent, Registry};

    use super::*;

    fn snapshot() -> Snapshot {
        let route = |name: &str, to: ClusterId| Route::to_all(name, to.into());
        let http = Protocol::Http(HttpListener {
            routes: [route("/hit", ClusterId(1)), route("/quiet", ClusterId(0))].into(),
            trusted_proxies: Vec::new(),
            forwarded: ForwardedHeaders::Off,
            paths: PathRules::default(),
            limits: ListenerLimits::default(),
        });
        let tcp = Protocol::Tcp(TcpListener { to: ClusterId(0), idle_timeout: Duration::ZERO });
        let listener = |name: &str, protocol| Listener {
            name: name.into(),
            bind: ([127, 0, 0, 1], 80).into(),
            protocol,
            tls: None,
            accept_proxy_protocol: false,
            connections_max: 1,
        };
        Snapshot {
            generation: Generation(1),
            admin: None,
            metrics: None,
            access_log: None,
            dns: model::Dns::default(),
            drain_delay: Duration::ZERO,
            drain_timeout: Duration::ZERO,
            memory_max: None,
            listeners: vec![listener("web", http), listener("db", tcp)],
            clusters: vec![
                model::Cluster::new("zero", Vec::new()).into(),
                model::Cluster::new("one", Vec::new()).into(),
            ],
            vips: Vec::new(),
            flows_max: 1,
        }
    }

    #[test]
    fn counters_of_listeners_and_routes() {
        let (registry, mut recent) = (Registry::default(), Recent::default());
        recent.sample(&registry, 0);
        let listener = registry.listener(0, "web");
        listener.connections.add(3);
        listener.open.inc();
        listener.requests.add(5);
        listener.reasons.inc(Reason::NoRoute);
        let route = registry.route(1, "web", "/hit");
        [200, 404].into_iter().for_each(|status| route.responses.inc(status));
        route.added.record(8);
        let (snapshot, totals) = (snapshot(), registry.totals());
        let outcomes = recent.outcomes(&registry);

        let listeners = listener_statuses(&snapshot, &totals, &outcomes);
        let recent = ListenerRecent {
            connections: 3,
            requests: 5,
            accept_failures: 0,
            refused: [("no_route".to_owned(), 1)].into(),
        };
        let web = ListenerStatus {
            name: "web".into(),
            bind: "127.0.0.1:80".into(),
            protocol: "http".into(),
            connections_open: 1,
            connections_total: 3,
            requests: 5,
            refused: [("no_route".to_owned(), 1)].into(),
            recent: recent.clone(),
            latest: recent,
        };
        assert_eq!(listeners.first(), Some(&web));
        // Nothing was counted there yet.
        let db =
            listeners.get(1).map(|listener| (listener.name.as_str(), listener.protocol.as_str(), listener.requests));
        assert_eq!(db, Some(("db", "tcp", 0)));

        let hit = RouteStatus {
            listener: "web".into(),
            name: "/hit".into(),
            cluster: "one".into(),
            requests: 2,
            recent: RouteRecent { responses: 2, errors: 0 },
            latest: RouteRecent { responses: 2, errors: 0 },
            added_us: Some(Quantiles { p50: 8.0, p99: 8.0 }),
            upstream_us: None,
        };
        assert_eq!(route_statuses(&snapshot, &totals, &outcomes), [hit]);

        let method = registry.method(1, "web", "shop.Cart", "Add");
        [0, 0, 14].into_iter().for_each(|code| method.codes.inc(code));
        method.duration.record(8);
        let add = MethodStatus {
            listener: "web".into(),
            service: "shop.Cart".into(),
            method: "Add".into(),
            codes: [("OK".to_owned(), 2), ("UNAVAILABLE".to_owned(), 1)].into(),
            duration_us: Some(Quantiles { p50: 8.0, p99: 8.0 }),
        };
        assert_eq!(method_statuses(&registry.totals()), [add]);
    }

    #[test]
    fn where_a_route_leads() {
        let check = |to, expect: &str| assert_eq!(target(&snapshot(), &to), expect);
        check(ClusterId(1).into(), "one");
        let share = |cluster, weight| WeightedCluster { cluster: ClusterId(cluster), weight };
        check(RouteAction::Clusters(vec![share(1, 95), share(0, 5)]), "one 95, zero 5");
        let redirect = Redirect { scheme: None, host: None, port: Some(81), path: None, status: 302 };
        check(RouteAction::Redirect(redirect), "redirect");
    }
}
