//! The status as `/status` returns it in JSON.
//!
//! [`STATUS_VERSION`] grows when the meaning of a field changes or a field is removed. New fields may appear without a
//! new version, and readers ignore fields that they do not know.

mod endpoint;

use std::collections::BTreeMap;

use model::{Algorithm, Protocol, RouteAction, Snapshot, WeightedCluster};
use serde::{Deserialize, Serialize};
use telemetry::{
    Distribution, ListenerTotals, MethodKey, MethodTotals, Outcomes, Reason, ReasonTotals, RouteOutcomes, Spans, Totals,
};

use crate::findings::{AccessLogStatus, Finding};
use crate::vip::{KernelPlaneStatus, VipStatus};

pub use self::endpoint::{EndpointCause, EndpointRecent, EndpointState, EndpointStatus, ProbeStatus, ZoneStatus};

/// The version of the JSON. Since version 2, an endpoint that nothing has checked is `unchecked`; version 1 called it
/// `healthy`.
pub const STATUS_VERSION: u32 = 2;

/// The status. Counts start with the process, or when the object came into the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`STATUS_VERSION`].
    pub version: u32,
    /// The version of the program.
    pub steelyard: String,
    /// The process ID.
    pub pid: u32,
    /// Threads that carry traffic.
    pub workers: usize,
    /// When the status was taken, in seconds since 1970.
    pub unix_seconds: u64,
    /// Seconds since the process started.
    pub uptime_seconds: u64,
    /// The snapshot in force.
    pub generation: u64,
    /// The process has been asked to end and is not ready. It accepts new connections until `drain_delay` is over.
    #[serde(default)]
    pub ending: bool,
    /// The process finishes what is in progress and then exits.
    pub draining: bool,
    /// What an operator should look at. Findings about the whole process come first.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// The last reload; `None` if there was none.
    pub last_reload: Option<Reload>,
    /// Files of the configuration that no longer exist: a restart would fail.
    #[serde(default)]
    pub missing_files: Vec<String>,
    /// Certificates that this process shows and that nobody accepts now, by their files.
    #[serde(default)]
    pub invalid_certificates: Vec<InvalidCertificate>,
    /// File descriptors in use; `None` if the host does not say.
    #[serde(default)]
    pub open_files: Option<u64>,
    /// The limit on open file descriptors; `None` if there is none.
    #[serde(default)]
    pub open_files_max: Option<u64>,
    /// The memory that this process uses, in bytes; 0 if it has no listeners.
    #[serde(default)]
    pub memory: u64,
    /// The memory that it may use, `memory_max`; `None` if there is no limit.
    #[serde(default)]
    pub memory_max: Option<u64>,
    /// Records that the access log has lost; `None` without one.
    #[serde(default)]
    pub access_log: Option<AccessLogStatus>,
    /// In the order of the file.
    pub listeners: Vec<ListenerStatus>,
    /// Routes that have served requests, in the order of the file.
    pub routes: Vec<RouteStatus>,
    /// Routes in maintenance, in the order of the file.
    #[serde(default)]
    pub maintenance: Vec<MaintenanceStatus>,
    /// Checks of passwords; `None` if no route demands one.
    #[serde(default)]
    pub password_checks: Option<PasswordStatus>,
    /// The sets of keys that verify tokens.
    #[serde(default)]
    pub key_sets: Vec<KeySetStatus>,
    /// gRPC methods that were called, by listener, service and name.
    #[serde(default)]
    pub methods: Vec<MethodStatus>,
    /// In the order of the file.
    pub clusters: Vec<ClusterStatus>,
    /// The state of the kernel plane; `None` if there are no vips.
    #[serde(default)]
    pub kernel_plane: Option<KernelPlaneStatus>,
    /// The vips of the file in its order, then those that a command added.
    #[serde(default)]
    pub vips: Vec<VipStatus>,
    /// This process serves no vips, but the vips of an earlier process still forward, and no process manages them.
    #[serde(default)]
    pub vips_left: bool,
    /// Services of a Kubernetes cluster that this process does not serve as they say, at most 256.
    #[serde(default)]
    pub service_faults: Vec<ServiceFaultStatus>,
    /// Why the kernel plane of this node refused what the cluster wants. It serves what it had before.
    #[serde(default)]
    pub kernel_refusal: Option<String>,
    /// Workers that make no progress now.
    #[serde(default)]
    pub stalled_workers: Vec<StalledWorkerStatus>,
    /// For people.
    #[serde(default)]
    pub about: AboutStatus,
}

/// A worker that makes no progress: whatever it serves waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StalledWorkerStatus {
    /// Its number, from 0.
    pub worker: usize,
    /// Since when, in seconds since 1970, to a second or so.
    pub since_unix_seconds: u64,
    /// How long ago that is.
    pub seconds: u64,
    /// Its open connections by listener. Listeners without any are absent.
    pub connections: BTreeMap<String, u64>,
    /// Where it stands, the innermost function first; empty if that is not known.
    pub stack: Vec<String>,
    /// Why there is no stack.
    pub why_no_stack: Option<String>,
}

/// What a person wants to know besides what programs judge.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AboutStatus {
    /// The name of the host, or of the pod.
    pub host: String,
    /// Where the configuration comes from.
    pub source: String,
    /// The CPU time of the busiest worker in the last second or so; `None` if it is not known.
    pub busiest_worker_percent: Option<f64>,
    /// Requests that wait for a connection to an endpoint.
    pub pending: u64,
    /// Connections that all HTTP listeners together accept; `None` if there are no such listeners.
    pub connections_max: Option<u64>,
    /// The certificates of listeners and clusters, the first to expire first.
    pub certificates: Vec<CertificateStatus>,
    /// What the last change of the configuration changed; `None` if there was none.
    pub changes: Option<ChangesStatus>,
    /// Objects of a Kubernetes cluster that are not served as they say, at most 256.
    #[serde(default)]
    pub refused_objects: Vec<RefusedObjectStatus>,
    /// The number of those that are left out.
    #[serde(default)]
    pub refused_objects_more: usize,
}

/// An object of a Kubernetes cluster that is not served as it says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedObjectStatus {
    /// Kind, namespace and name: `HTTPRoute shop/cart`.
    pub object: String,
    /// The type of the condition that reports this; empty if only an Event does.
    pub condition: String,
    /// The reason in the condition.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// A certificate that Steelyard shows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CertificateStatus {
    /// When it expires, in seconds since 1970.
    pub expires_unix_seconds: u64,
    /// Its listener or cluster, such as `listener web`.
    pub owner: String,
    /// The DNS names in it.
    pub names: Vec<String>,
}

/// The difference between two snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangesStatus {
    /// The later one.
    pub generation: u64,
    /// Lines: `+` what it has and the earlier one has not, `-` the reverse. No secret is in them.
    pub lines: Vec<String>,
    /// Lines that were left out.
    pub more: usize,
}

/// Why a Service is not served as it says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceFaultStatus {
    /// Namespace and name.
    pub service: String,
    /// The reason in its Event.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// A route whose requests are answered 503.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaintenanceStatus {
    /// Its listener.
    pub listener: String,
    /// Its name.
    pub route: String,
    /// The configuration says so. Otherwise a command did, and it lasts until the process ends.
    pub configured: bool,
    /// The listener no longer has a route of this name. One that comes back is in maintenance.
    #[serde(default)]
    pub gone: bool,
}

/// Checks of passwords against their hashes, since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PasswordStatus {
    /// Right ones. Later requests with the same password need no check.
    pub right: u64,
    /// Wrong ones, and those of users that do not exist.
    pub wrong: u64,
    /// Checks that were refused because too many were waiting, or because there was no memory for them.
    pub refused: u64,
    /// Checks that wait now.
    pub waiting: u64,
}

/// A set of keys that verify tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySetStatus {
    /// Its URL, its file, or `inline`.
    pub name: String,
    /// Whether it is fetched from a URL.
    pub fetched: bool,
    /// Keys in use; `None` if there is no set yet.
    pub keys: Option<u64>,
    /// Keys of the set that do not verify tokens.
    pub ignored: u64,
    /// Sets that were fetched since the process started and are good.
    pub fetches: u64,
    /// Attempts that failed.
    pub fetches_failed: u64,
    /// Seconds since the last good set was fetched.
    pub age_seconds: Option<u64>,
    /// Why the last attempt failed; `None` if it did not.
    pub failure: Option<String>,
    /// Signatures that were right. Tokens that a worker remembers are not counted.
    pub right: u64,
    /// Tokens that were refused after a look at their signature.
    pub wrong: u64,
}

/// A reload and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reload {
    /// Seconds since 1970.
    pub unix_seconds: u64,
    /// Whether the new configuration was accepted.
    pub ok: bool,
    /// What was wrong with it, in the words of `steelyard check`.
    pub errors: Vec<String>,
}

/// A certificate of this process that is not valid now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvalidCertificate {
    /// The file, or the Secret.
    pub file: String,
    /// What shows it, such as "listener web" or "cluster app", in alphabetical order.
    pub used_by: Vec<String>,
    /// In seconds since 1970.
    pub valid_from: u64,
    /// In seconds since 1970.
    pub valid_until: u64,
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub bind: String,
    /// `http`, `https`, `tcp`, `tls` or `tls_passthrough`.
    pub protocol: String,
    /// Whether it asks clients for certificates and admits them whatever they answer.
    #[serde(default)]
    pub admits_unverified_clients: bool,
    /// Connections open now.
    pub connections_open: u64,
    /// Connections accepted.
    pub connections_total: u64,
    /// Requests, or TCP connections given to a cluster.
    pub requests: u64,
    /// What was refused, failed or closed, by reason. Reasons that did not occur are absent.
    pub refused: BTreeMap<String, u64>,
    /// The last minute.
    #[serde(default)]
    pub recent: ListenerRecent,
    /// The last 5 to 10 seconds.
    #[serde(default)]
    pub latest: ListenerRecent,
}

/// What happened at a listener in a period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerRecent {
    /// Connections accepted.
    pub connections: u64,
    /// Requests, or TCP connections, that ended.
    pub requests: u64,
    /// Attempts to accept a connection that failed because descriptors or memory ran out.
    pub accept_failures: u64,
    /// What was refused, failed or closed, by reason. Reasons that did not occur are absent.
    pub refused: BTreeMap<String, u64>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouteStatus {
    /// Its listener's name.
    pub listener: String,
    /// Its name.
    pub name: String,
    /// The name of its cluster. For a split, the shares, such as `v1 95, v2 5`; for a redirect, `redirect`.
    pub cluster: String,
    /// What its requests must prove: `basic`, `api_key` or `jwt`, and `external http` or `external grpc` if a service is asked about them; `None`
    /// means nothing.
    #[serde(default)]
    pub auth: Option<String>,
    /// Requests answered.
    pub requests: u64,
    /// The same by the class of their status, from 1xx.
    #[serde(default)]
    pub statuses: [u64; 5],
    /// Requests that were refused, failed or cut short, by reason. Reasons that did not occur are absent.
    #[serde(default)]
    pub refused: BTreeMap<String, u64>,
    /// Requests sent again.
    #[serde(default)]
    pub retries: u64,
    /// The last minute.
    #[serde(default)]
    pub recent: RouteRecent,
    /// The last 5 to 10 seconds.
    #[serde(default)]
    pub latest: RouteRecent,
    /// The time that Steelyard itself added; `None` if nothing was measured yet.
    pub added_us: Option<Quantiles>,
    /// The time until the endpoint's response head; `None` if nothing was measured yet.
    pub upstream_us: Option<Quantiles>,
}

/// What happened at a route in a period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteRecent {
    /// Requests answered.
    pub responses: u64,
    /// Requests answered with 500 to 599, and gRPC calls that failed.
    pub errors: u64,
    /// The calls among them.
    #[serde(default)]
    pub call_failures: u64,
    /// Those of both that the configuration or an operator wants, such as the 503 of a `respond`. They are no problem.
    #[serde(default)]
    pub intended_errors: u64,
    /// Requests that were refused, failed or cut short, by reason. Reasons that did not occur are absent.
    #[serde(default)]
    pub refused: BTreeMap<String, u64>,
}

/// A gRPC method.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MethodStatus {
    /// Its listener's name.
    pub listener: String,
    /// With its package: `helloworld.Greeter`.
    pub service: String,
    /// The name, such as `SayHello`. `*` stands for the methods beyond the limit on counted names, and for methods that
    /// no endpoint knows.
    pub method: String,
    /// Calls that ended, by status. Statuses that did not occur are absent.
    pub codes: BTreeMap<String, u64>,
    /// The time from the head of a call to the end of its response; `None` if nothing was measured yet.
    pub duration_us: Option<Quantiles>,
}

/// Quantiles of durations, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
}

/// A cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// Its name.
    pub name: String,
    /// The algorithm, as in the file.
    pub algorithm: String,
    /// Requests, or TCP connections, given to it.
    pub requests: u64,
    /// Requests sent again.
    pub retries: u64,
    /// The part of its retry budget, 0 to 1, that was used at the last retry of the last ten seconds, at the worker where most of it was.
    #[serde(default)]
    pub retry_budget_used: f64,
    /// So few endpoints are usable that health and ejection are ignored.
    pub panic: bool,
    /// The priority of the endpoints that get requests; `None` if all have the same, or in panic.
    #[serde(default)]
    pub priority: Option<u8>,
    /// The share of requests that goes to endpoints in the zone of this process, by their weights: 1 while enough of them are usable. `None` if
    /// no zone is known.
    #[serde(default)]
    pub zone_share: Option<f64>,
    /// It stands for something that does not exist or may not be used, and answers all requests with an error.
    #[serde(default)]
    pub is_missing: bool,
    /// In the order of the file. The addresses of a name are where the name is.
    pub endpoints: Vec<EndpointStatus>,
}

/// Which endpoints of a cluster get the requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    /// See [`ClusterStatus::panic`].
    pub panic: bool,
    /// See [`ClusterStatus::priority`].
    pub priority: Option<u8>,
    /// See [`ClusterStatus::zone_share`].
    pub zone_share: Option<f64>,
}

impl RouteRecent {
    /// Errors that nobody wants.
    pub(crate) fn failures(&self) -> u64 {
        self.errors.saturating_sub(self.intended_errors)
    }

    /// What happened at the route with these names of listener and route.
    fn of(outcomes: &Outcomes, route: &(String, String)) -> Self {
        let RouteOutcomes { responses, errors, call_failures, intended_errors } =
            outcomes.routes.get(route).copied().unwrap_or_default();
        let refused = outcomes.route_reasons.get(route).map(by_name).unwrap_or_default();
        Self { responses, errors: errors + call_failures, call_failures, intended_errors, refused }
    }
}

/// Counts by the names of their reasons.
fn by_name(reasons: &BTreeMap<Reason, u64>) -> BTreeMap<String, u64> {
    reasons.iter().map(|(reason, count)| (reason.name().to_owned(), *count)).collect()
}

impl Status {
    /// Parses a response of `/status`.
    ///
    /// # Errors
    /// Says in a sentence that the status has another version, or is no status at all.
    pub fn parse(json: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let no_status =
            |error| format!("this is not the status of a Steelyard: {error}; is this the address of `admin:`?");
        let Version { version } = serde_json::from_slice(json).map_err(no_status)?;
        if version != STATUS_VERSION {
            return Err(format!(
                "the running Steelyard reports its status in version {version}, but this program reads version \
                 {STATUS_VERSION}: use the same binary for both"
            ));
        }
        serde_json::from_slice(json).map_err(no_status)
    }
}

impl ClusterStatus {
    /// Builds what the configuration and the counters say about a cluster. The caller knows the state of the endpoints, and the time, which
    /// the budget needs.
    pub fn new(
        cluster: &model::Cluster,
        totals: &Totals,
        Turn { panic, priority, zone_share }: Turn,
        endpoints: Vec<EndpointStatus>,
    ) -> Self {
        let (requests, retries) =
            totals.clusters.get(cluster.name.as_str()).map_or((0, 0), |total| (total.requests, total.retries));
        let algorithm = match cluster.algorithm {
            Algorithm::RoundRobin => "round_robin",
            Algorithm::LeastRequest => "least_request",
            Algorithm::LeastConnections => "least_connections",
            Algorithm::Random => "random",
            Algorithm::Maglev(_) | Algorithm::MaglevSubset { .. } => "maglev",
            Algorithm::PeakEwma => "peak_ewma",
        };
        Self {
            name: cluster.name.clone(),
            algorithm: algorithm.into(),
            requests,
            retries,
            retry_budget_used: 0.0,
            panic,
            priority,
            zone_share,
            is_missing: cluster.is_missing,
            endpoints,
        }
    }
}

/// Returns what the configuration and the counters say about the listeners.
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
            Protocol::Http(_) if listener.captured.as_ref().is_some_and(|captured| captured.detect.is_some()) => {
                "detect"
            }
            Protocol::Http(_) if listener.tls.is_some() => "https",
            Protocol::Http(_) => "http",
            Protocol::Tcp(_) => "tcp",
            Protocol::Tls(_) if listener.tls.is_some() => "tls",
            Protocol::Tls(_) => "tls_passthrough",
            Protocol::Capture(_) => "capture",
        };
        let client_ca = listener.tls.as_ref().and_then(|tls| tls.client_ca.as_ref());
        ListenerStatus {
            name: listener.name.clone(),
            bind: listener.place(),
            protocol: protocol.into(),
            admits_unverified_clients: client_ca.is_some_and(|client| !client.verify),
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

/// Returns what the configuration and the counters say about the routes that have served requests.
pub fn route_statuses(snapshot: &Snapshot, totals: &Totals, outcomes: &Spans<Outcomes>) -> Vec<RouteStatus> {
    let mut statuses = Vec::new();
    for listener in &snapshot.listeners {
        let Protocol::Http(http) = &listener.protocol else { continue };
        for route in http.routes.iter() {
            let key = (listener.name.clone(), route.name.clone());
            let Some(total) = totals.routes.get(&key) else { continue };
            statuses.push(RouteStatus {
                listener: listener.name.clone(),
                name: route.name.clone(),
                cluster: target(snapshot, &route.to),
                auth: auth(route),
                requests: total.responses.sum(),
                statuses: total.responses.0,
                refused: by_name(&total.reasons),
                retries: total.retries,
                recent: RouteRecent::of(&outcomes.minute, &key),
                latest: RouteRecent::of(&outcomes.latest, &key),
                added_us: quantiles(&total.added),
                upstream_us: quantiles(&total.upstream),
            });
        }
    }
    statuses
}

/// What the requests of a route must prove.
fn auth(route: &model::Route) -> Option<String> {
    let own = route.policy.auth.as_ref().map(|auth| auth.kind());
    let external = route.policy.external_auth.as_ref().map(|external| external.kind());
    let kinds: Vec<&str> = own.into_iter().chain(external).collect();
    (!kinds.is_empty()).then(|| kinds.join(", "))
}

pub(crate) fn target(snapshot: &Snapshot, to: &RouteAction) -> String {
    match to {
        RouteAction::Redirect(_) => "redirect".to_owned(),
        RouteAction::Respond(response) => format!("status {}", response.status),
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

/// Where a route sends its requests, as the status says it.
pub fn route_target(snapshot: &Snapshot, route: &model::Route) -> String {
    target(snapshot, &route.to)
}

/// Returns what the counters say about the gRPC methods that were called.
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

/// The median and the 99th percentile; `None` if nothing was measured.
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
    use telemetry::{Recent, Registry};

    use super::*;

    fn snapshot() -> Snapshot {
        let route = |name: &str, to: ClusterId| Route::to_all(name, to.into());
        let http = Protocol::Http(HttpListener {
            isolated_hosts: Vec::new(),
            routes: [route("/hit", ClusterId(1)), route("/quiet", ClusterId(0))].into(),
            trusted_proxies: Vec::new(),
            forwarded: ForwardedHeaders::Off,
            x_real_ip: false,
            header_names: model::HeaderNames::Any,
            passthrough: Default::default(),
            http2: true,
            request_id: None,
            paths: PathRules::default(),
            limits: ListenerLimits::default(),
            error_pages: Box::default(),
        });
        let tcp = Protocol::Tcp(TcpListener { to: ClusterId(0), idle_timeout: Duration::ZERO });
        let listener = |name: &str, protocol| Listener {
            name: name.into(),
            bind: ([127, 0, 0, 1], 80).into(),
            captured: None,
            protocol,
            tls: None,
            accept_proxy_protocol: false,
            addresses: model::AddressRules::default(),
            client_limits: model::ClientLimits::default(),
            connections_max: 1,
        };
        Snapshot {
            generation: Generation(1),
            admin: None,
            admin_access: Default::default(),
            metrics: None,
            access_log: None,
            tracing: None,
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
            socket_cgroup: None,
            announcing: model::Announcing::default(),
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
        route.reasons.inc(Reason::RateLimited);
        route.retries.add(2);
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
            admits_unverified_clients: false,
            connections_open: 1,
            connections_total: 3,
            requests: 5,
            refused: [("no_route".to_owned(), 1)].into(),
            recent: recent.clone(),
            latest: recent,
        };
        assert_eq!(listeners.first(), Some(&web));
        // The database has not served anything yet.
        let db =
            listeners.get(1).map(|listener| (listener.name.as_str(), listener.protocol.as_str(), listener.requests));
        assert_eq!(db, Some(("db", "tcp", 0)));

        let limited = || BTreeMap::from([("rate_limited".to_owned(), 1)]);
        let hit = RouteStatus {
            listener: "web".into(),
            name: "/hit".into(),
            auth: None,
            cluster: "one".into(),
            requests: 2,
            statuses: [0, 1, 0, 1, 0],
            refused: limited(),
            retries: 2,
            recent: RouteRecent { responses: 2, refused: limited(), ..RouteRecent::default() },
            latest: RouteRecent { responses: 2, refused: limited(), ..RouteRecent::default() },
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
        let share = |cluster, weight| WeightedCluster { cluster: ClusterId(cluster), weight, changes: None };
        check(RouteAction::Clusters(vec![share(1, 95), share(0, 5)]), "one 95, zero 5");
        let redirect =
            Redirect { scheme: None, host: None, port: Some(81), path: None, status: 302, is_relative: false };
        check(RouteAction::Redirect(redirect), "redirect");
    }
}
