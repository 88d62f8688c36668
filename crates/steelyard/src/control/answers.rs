//! The responses of the control API.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use admin::{
    COUNTERS_VERSION, ChangeRefused, ClusterStatus, Counters, EndpointCause, EndpointCounts, EndpointState,
    EndpointStatus, Flows, InvalidCertificate, MaintenanceStatus, PasswordStatus, ProbeStatus, STATUS_VERSION, Status,
    TraceQuestion, TraceReport, Turn, VipChange, VipCounts, Within, ZoneStatus, vip_endpoint_counts,
};
use model::{Snapshot, Zone};
use net::clock;
use proxy::{ClusterPlan, Compiled, KeySource, ListenerPlan, OwnCertificate, PasswordCounts};
use telemetry::{
    ClusterTotals, Distribution, EndpointKey, EndpointTotals, Kind, OpenFiles, Outcomes, Sample, Spans, Totals,
};
use tokio::sync::oneshot;

use super::about::there_are;
use super::{Control, Order, about, keys, operators, trace, unix_seconds};
use crate::exit::Exit;
use crate::handover;
use crate::kernel;
use crate::vips::{self, VipPlan};

/// The maximum number of endpoints that an error names when the requested one does not exist.
const KNOWN_MAX: usize = 20;

impl admin::Control for Control {
    fn access(&self) -> admin::Access {
        self.state().access.clone()
    }

    fn note_refused(&self, reason: admin::RefusedFor) {
        operators::count(&admin::RefusedFor::ALL, &self.admin_refused, &reason);
    }

    fn note_made_way(&self, reason: admin::MadeWayFor) {
        operators::count(&admin::MadeWayFor::ALL, &self.admin_made_way, &reason);
    }

    fn metrics(&self, format: telemetry::Exposition) -> Vec<u8> {
        self.registry.render(&self.samples(), format)
    }

    fn status(&self) -> Status {
        let totals = self.registry.totals();
        // Other threads must not hold this lock while they wait for the kernel plane: the control thread takes them in the other order.
        let (seen, probes) = self.seen();
        let outcomes = &seen.outcomes;
        let (kernel_plane, vips) = {
            let mut kernel = self.kernel();
            // The result of a probe that has just finished is known here before the main loop has sent it to the
            // kernel. A client that reads a state relies on the kernel knowing it. A successor that is starting writes
            // the same tables: as in the main loop, two writers would undo each other's work.
            if handover::successor().is_none() {
                kernel.follow_verdicts(&|| probes.unproven.clone());
            }
            kernel.status(&probes)
        };
        let OpenFiles { used, max } = telemetry::open_files();
        let missing = seen.files.iter().filter(|file| is_missing(file));
        let snapshot = seen.compiled.as_ref().map(|compiled| compiled.snapshot.clone());
        let plans = seen.compiled.iter().flat_map(|compiled| &compiled.clusters);
        let listeners = seen.compiled.iter().flat_map(|compiled| &compiled.listeners);
        let passwords = seen.compiled.as_ref().and_then(|compiled| compiled.password_counts());
        let mut status = Status {
            version: STATUS_VERSION,
            steelyard: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            workers: self.workers,
            unix_seconds: unix_seconds(),
            uptime_seconds: clock::now_ms().saturating_sub(self.started_ms) / 1000,
            generation: snapshot.as_ref().map_or(0, |snapshot| snapshot.generation.0),
            ending: self.ending.load(Relaxed) && !self.draining.load(Relaxed),
            draining: self.draining.load(Relaxed),
            findings: Vec::new(),
            last_reload: seen.last_reload,
            missing_files: missing.map(|file| file.display().to_string()).collect(),
            invalid_certificates: invalid(&seen.own_certificates, unix_seconds()),
            open_files: used,
            open_files_max: max,
            access_log: seen.access_log.as_deref().map(access_log_status),
            memory: net::memory::bytes_used(),
            memory_max: net::memory::bytes_max(),
            listeners: snapshot
                .iter()
                .flat_map(|snapshot| admin::listener_statuses(snapshot, &totals, outcomes))
                .collect(),
            routes: snapshot.iter().flat_map(|snapshot| admin::route_statuses(snapshot, &totals, outcomes)).collect(),
            maintenance: listeners.flat_map(|plan| in_maintenance(plan)).collect(),
            password_checks: passwords.map(password_status),
            key_sets: seen.key_sources.iter().map(|source| keys::status(source)).collect(),
            methods: admin::method_statuses(&totals),
            clusters: plans.map(|plan| cluster_status(plan, &totals, outcomes, &probes)).collect(),
            service_faults: seen.service_faults,
            kernel_refusal: seen.kernel_refusal,
            stalled_workers: self.stalled.statuses(),
            about: admin::AboutStatus {
                host: host_name(),
                source: self.source.clone(),
                busiest_worker_percent: seen.busiest_worker_percent,
                pending: totals.clusters.values().map(|cluster| cluster.pending).sum(),
                connections_max: snapshot.as_deref().and_then(connections_max),
                certificates: seen.certificates,
                changes: seen.changes,
                refused_objects: seen.refused_objects.0,
                refused_objects_more: seen.refused_objects.1,
            },
            vips_left: kernel_plane.is_none() && kernel::are_vips_left(),
            kernel_plane,
            vips,
        };
        status.findings = admin::findings(&status);
        status
    }

    fn counters(&self) -> Counters {
        let totals = self.registry.totals();
        let (compiled, unproven) = {
            let state = self.state();
            (state.compiled.clone(), state.checker.unproven())
        };
        // This response does not include the failures of probes, only the states of endpoints.
        let probes = Probes { failures: Vec::new(), unproven, last: HashMap::new() };
        let (_, vips) = {
            let mut kernel = self.kernel();
            kernel.follow_verdicts(&|| probes.unproven.clone());
            kernel.status(&probes)
        };
        let snapshot = compiled.as_ref().map(|compiled| compiled.snapshot.clone());
        let plans = compiled.iter().flat_map(|compiled| &compiled.clusters);
        Counters {
            version: COUNTERS_VERSION,
            steelyard: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            workers: self.workers,
            uptime_ms: clock::now_ms().saturating_sub(self.started_ms),
            generation: snapshot.as_ref().map_or(0, |snapshot| snapshot.generation.0),
            draining: self.draining.load(Relaxed),
            bounds_us: Distribution::bounds_us().collect(),
            listeners: snapshot.iter().flat_map(|snapshot| admin::listener_counts(snapshot, &totals)).collect(),
            routes: snapshot.iter().flat_map(|snapshot| admin::route_counts(snapshot, &totals)).collect(),
            endpoints: plans.flat_map(|plan| endpoint_counts(plan, &totals, &probes)).collect(),
            vips: vips.iter().map(VipCounts::from).collect(),
            vip_endpoints: vip_endpoint_counts(&vips),
        }
    }

    fn history(&self) -> (admin::Points, admin::Verdict) {
        let state = self.state();
        (state.history.points(), state.history.verdict())
    }

    fn overview(&self) -> admin::OverviewStatus {
        let state = self.state();
        admin::OverviewStatus {
            version: admin::OVERVIEW_VERSION,
            host: host_name(),
            pid: std::process::id(),
            uptime_seconds: clock::now_ms().saturating_sub(self.started_ms) / 1000,
            started_ms: self.started_ms,
            generation: state.compiled.as_ref().map_or(0, |compiled| compiled.snapshot.generation.0),
            verdict: state.history.verdict(),
            point: state.history.latest().copied().unwrap_or_default(),
            so_far: state.history.so_far(),
        }
    }

    fn has_replicas(&self) -> bool {
        self.replicas.is_some()
    }

    fn replicas(&self) -> Pin<Box<dyn Future<Output = Vec<admin::Replica>> + Send + '_>> {
        Box::pin(async {
            match &self.replicas {
                Some(replicas) => replicas.ask().await,
                None => Vec::new(),
            }
        })
    }

    fn feed(&self) -> Option<&admin::Feed> {
        Some(&self.feed)
    }

    fn explain(&self, question: &admin::RouteQuestion) -> Result<admin::RouteReport, String> {
        about::explain(&*self.compiled().ok_or("not ready")?, question)
    }

    fn debug_route(&self, route: &str, seconds: u64) -> Result<(), String> {
        Control::debug_route(self, route, seconds)
    }

    fn log_lines(&self) -> String {
        crate::logging::last_lines()
    }

    fn configuration(&self) -> String {
        self.compiled().map_or_else(String::new, |compiled| about::text(&compiled.snapshot))
    }

    fn drop_meaning(&self, reason: &str) -> Option<&'static str> {
        l4::DropReason::ALL.iter().find(|known| known.name == reason).map(|known| known.text)
    }

    fn ready(&self) -> Result<(), String> {
        if self.draining.load(Relaxed) {
            return Err("draining: this process accepts no new connections and finishes the open ones".to_owned());
        }
        if self.ending.load(Relaxed) {
            return Err(
                "ending: this process accepts new connections until drain_delay is over, and then drains".to_owned()
            );
        }
        if self.waiting.load(Relaxed) {
            return Err(
                "the cluster has not been read yet: is the API server reachable, and may this process list and watch?"
                    .to_owned(),
            );
        }
        Ok(())
    }

    fn reload(&self) -> Pin<Box<dyn Future<Output = Result<u64, String>> + Send + '_>> {
        Box::pin(async {
            let (answer, outcome) = oneshot::channel();
            if self.orders.try_send(Order::Reload(answer)).is_err() {
                return Err("busy with other requests: try again".to_owned());
            }
            outcome.await.unwrap_or_else(|_| Err("the process is ending".to_owned()))
        })
    }

    fn set_draining(&self, within: Within<'_>, endpoint: &str, draining: bool) -> Result<usize, String> {
        let compiled = self.compiled().ok_or("not ready")?;
        let (now_ms, mut kernel) = (clock::now_ms(), self.kernel());
        let mut found = 0;
        for plan in compiled.clusters.iter().filter(|plan| is_within(within, Within::Cluster(&plan.policy.name))) {
            for (index, state) in plan.state.endpoints().iter().enumerate() {
                if state.address().to_string() == endpoint {
                    found += 1;
                    if plan.state.set_draining(index, draining, now_ms) {
                        tracing::info!(cluster = plan.policy.name, endpoint, draining, "set through the control API");
                    }
                }
            }
        }
        for plan in kernel.vips().iter().filter(|plan| is_within(within, Within::Vip(&plan.vip.name))) {
            let Some(index) = plan.find(endpoint) else { continue };
            found += 1;
            if plan.state.set_draining(index, draining, now_ms) {
                tracing::info!(vip = plan.vip.name, endpoint, draining, "set through the control API");
            }
        }
        // The kernel must know before the response is sent: a client that reads that an endpoint drains relies on it.
        kernel.follow_verdicts(&|| self.state().checker.unproven());
        if found > 0 {
            return Ok(found);
        }
        let of_clusters = compiled.clusters.iter().flat_map(|plan| plan.state.endpoints()).map(|state| state.address());
        let of_vips = kernel.vips().iter().flat_map(|plan| plan.state.endpoints()).map(|state| state.address());
        let known: Vec<String> = of_clusters.chain(of_vips).map(vips::shown).take(KNOWN_MAX).collect();
        Err(format!("no such endpoint: {endpoint}; {}", there_are(&known)))
    }

    fn set_maintenance(&self, listener: Option<&str>, route: &str, on: bool) -> Result<usize, String> {
        let compiled = self.compiled().ok_or("not ready")?;
        let asked = |plan: &&Arc<ListenerPlan>| listener.is_none_or(|name| plan.policy.name == name);
        let mut found = 0;
        for plan in compiled.listeners.iter().filter(asked) {
            let Some(has_changed) = plan.set_maintenance(route, on) else { continue };
            found += 1;
            if has_changed {
                tracing::info!(listener = plan.policy.name, route, maintenance = on, "set through the control API");
            }
            if !on && plan.in_maintenance().any(|(known, _)| known.name == route) {
                return Err(format!("the configuration keeps the route {route} in maintenance: change it there"));
            }
        }
        if found > 0 {
            return Ok(found);
        }
        if let Some(name) = listener.filter(|name| compiled.listeners.iter().all(|plan| plan.policy.name != *name)) {
            let known: Vec<&str> =
                compiled.listeners.iter().map(|plan| plan.policy.name.as_str()).take(KNOWN_MAX).collect();
            return Err(format!("no such listener: {name}; {}", there_are(&known)));
        }
        let routes = compiled.listeners.iter().filter(asked).flat_map(|plan| plan.routes());
        let known: Vec<&str> = routes.map(|route| route.name.as_str()).take(KNOWN_MAX).collect();
        Err(format!("no such route: {route}; {}", there_are(&known)))
    }

    fn change_vips(&self, change: VipChange) -> Pin<Box<dyn Future<Output = Result<u64, ChangeRefused>> + Send + '_>> {
        Box::pin(async {
            let (answer, outcome) = oneshot::channel();
            if self.orders.try_send(Order::ChangeVips(change, answer)).is_err() {
                return Err(ChangeRefused::Busy("busy with other requests: try again".to_owned()));
            }
            let ending = |_| Err(ChangeRefused::Busy("the process is ending".to_owned()));
            outcome.await.map_or_else(ending, |outcome| {
                outcome.map_err(|refused| match refused.exit {
                    Exit::BadConfig => ChangeRefused::Bad(refused.why),
                    _ => ChangeRefused::HostCannot(refused.why),
                })
            })
        })
    }

    fn flows(&self, vip: Option<&str>, limit: usize) -> Result<Flows, String> {
        self.kernel().flows(vip, limit)
    }

    fn trace(&self, question: &TraceQuestion) -> Result<TraceReport, String> {
        trace::answer(&self.kernel(), question)
    }
}

fn in_maintenance(plan: &ListenerPlan) -> impl Iterator<Item = MaintenanceStatus> {
    let status = |route: &str, configured, gone| MaintenanceStatus {
        listener: plan.policy.name.clone(),
        route: route.to_owned(),
        configured,
        gone,
    };
    let mut left = plan.maintenance_names();
    let mut all = Vec::new();
    for (route, configured) in plan.in_maintenance() {
        left.remove(&route.name);
        all.push(status(&route.name, configured, false));
    }
    all.extend(left.iter().map(|route| status(route, false, true)));
    all.into_iter()
}

/// Whether a request for `asked` includes `here`.
fn is_within(asked: Within<'_>, here: Within<'_>) -> bool {
    asked == Within::All || asked == here
}

/// What the health checks know about endpoints.
pub(crate) struct Probes {
    pub(crate) failures: Vec<health::LastFailure>,
    /// Cluster and address of the endpoints that are probed and whose first probe has not finished.
    pub(crate) unproven: HashSet<EndpointKey>,
    /// The last probe of each endpoint.
    pub(crate) last: HashMap<EndpointKey, health::LastProbe>,
}

/// The connections that all listeners together accept; `None` if there are none.
fn connections_max(snapshot: &Snapshot) -> Option<u64> {
    snapshot.listeners.iter().map(|listener| listener.connections_max as u64).reduce(u64::saturating_add)
}

/// The name of the host, or of the pod.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The certificates that are not valid at this time, each once.
fn invalid(certificates: &[(String, OwnCertificate)], now_s: u64) -> Vec<InvalidCertificate> {
    let mut by_file: BTreeMap<&str, InvalidCertificate> = BTreeMap::new();
    for (user, certificate) in certificates.iter().filter(|(_, certificate)| certificate.fault(now_s).is_some()) {
        let OwnCertificate { file, valid_from_s, valid_until_s, .. } = certificate;
        let entry = by_file.entry(file).or_insert_with(|| InvalidCertificate {
            file: file.clone(),
            used_by: Vec::new(),
            valid_from: *valid_from_s,
            valid_until: *valid_until_s,
        });
        entry.used_by.push(user.clone());
        entry.used_by.sort();
    }
    by_file.into_values().collect()
}

/// Whether the file is gone, as opposed to unreadable.
fn is_missing(file: &Path) -> bool {
    std::fs::metadata(file).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

fn cluster_status(plan: &ClusterPlan, totals: &Totals, outcomes: &Spans<Outcomes>, probes: &Probes) -> ClusterStatus {
    let now_ms = clock::now_ms();
    let name: Arc<str> = plan.policy.name.as_str().into();
    let endpoint = |(index, endpoint): (usize, &Arc<balance::EndpointState>)| {
        let address = endpoint.address();
        let key = (name.clone(), address);
        let failure = probes.failures.iter().find(|failure| *failure.cluster == *name && failure.address == address);
        // The failure of the last probe, or else of the last connection for a request.
        let mut why = failure.map(|failure| failure.why.clone()).or_else(|| endpoint.last_failure());
        if let Some(balance::EndpointStatus::Ejected { until_ms }) = plan.state.status(index, now_ms) {
            let left = until_ms.saturating_sub(now_ms).div_ceil(1000);
            let cause = why.map_or_else(String::new, |why| format!(" ({why})"));
            why = Some(format!("requests failed there{cause}; back in {left} s"));
        }
        let total = totals.endpoints.get(&key);
        let in_span = |outcomes: &Outcomes| outcomes.endpoints.get(&key).copied().unwrap_or_default().into();
        EndpointStatus {
            address: address.to_string(),
            weight: plan.state.weight(index),
            priority: plan.state.priority(index),
            zone: match plan.state.zone(index) {
                Zone::Unknown => ZoneStatus::Unknown,
                Zone::Own => ZoneStatus::Own,
                Zone::Other => ZoneStatus::Other,
            },
            state: endpoint_state(plan, index, &key, now_ms, probes),
            why,
            in_flight: u64::from(endpoint.in_flight()),
            connections: u64::from(endpoint.connections()),
            requests: total.map_or(0, |total| total.requests),
            failures: total.map_or(0, EndpointTotals::failures),
            upstream_us: total.and_then(|total| admin::quantiles(&total.upstream)),
            cause: cause(plan, index, probes.last.get(&key), now_ms),
            recent: in_span(&outcomes.minute),
            latest: in_span(&outcomes.latest),
        }
    };
    let endpoints = plan.state.endpoints().iter().enumerate().map(endpoint).collect();
    let turn = Turn {
        panic: plan.state.panicking(now_ms),
        priority: plan.state.priority_in_use(now_ms),
        zone_share: plan.state.zone_share(now_ms),
    };
    let retry_budget_used = totals.clusters.get(&name).map_or(0.0, |total| retry_budget_used(total, now_ms));
    ClusterStatus { retry_budget_used, ..ClusterStatus::new(&plan.policy, totals, turn, endpoints) }
}

/// The part of the budget that is used, as of the last retry. Older ones do not count any more.
fn retry_budget_used(total: &ClusterTotals, now_ms: u64) -> f64 {
    total.retry_budget.fullest(now_ms, balance::RETRY_WINDOW_SECONDS * 1000)
}

fn cause(plan: &ClusterPlan, index: usize, last: Option<&health::LastProbe>, now_ms: u64) -> EndpointCause {
    let seconds_ago = |at_ms: u64| now_ms.saturating_sub(at_ms) / 1000;
    let ejected = match plan.state.status(index, now_ms) {
        Some(balance::EndpointStatus::Ejected { until_ms }) => Some(until_ms.saturating_sub(now_ms)),
        _ => None,
    };
    let slow_start = plan.state.slow_start_left_ms(index, now_ms);
    EndpointCause {
        last_probe: last.map(|last| ProbeStatus { seconds_ago: seconds_ago(last.at_ms), is_success: last.is_success }),
        ejected_seconds_left: ejected.map(|left| left.div_ceil(1000)),
        slow_start_seconds_left: slow_start.map(|left| left.div_ceil(1000)),
    }
}

fn endpoint_state(plan: &ClusterPlan, index: usize, key: &EndpointKey, now_ms: u64, probes: &Probes) -> EndpointState {
    match plan.state.status(index, now_ms) {
        Some(balance::EndpointStatus::Draining) => EndpointState::Draining,
        Some(balance::EndpointStatus::Unhealthy) => EndpointState::Unhealthy,
        Some(balance::EndpointStatus::Ejected { .. }) => EndpointState::Ejected,
        Some(balance::EndpointStatus::Healthy) | None => {
            match plan.policy.health_check.is_some() && !probes.unproven.contains(key) {
                true => EndpointState::Healthy,
                false => EndpointState::Unchecked,
            }
        }
    }
}

fn endpoint_counts(plan: &ClusterPlan, totals: &Totals, probes: &Probes) -> Vec<EndpointCounts> {
    let now_ms = clock::now_ms();
    let name: Arc<str> = plan.policy.name.as_str().into();
    let counts = |(index, endpoint): (usize, &Arc<balance::EndpointState>)| {
        let key = (name.clone(), endpoint.address());
        let total = totals.endpoints.get(&key);
        EndpointCounts {
            address: endpoint.address().to_string(),
            state: endpoint_state(plan, index, &key, now_ms, probes),
            cluster: plan.policy.name.clone(),
            in_flight: u64::from(endpoint.in_flight()),
            connections: u64::from(endpoint.connections()),
            requests: total.map_or(0, |total| total.requests),
            failures: total.map_or(0, EndpointTotals::failures),
            upstream: total.map_or_else(Vec::new, |total| total.upstream.counts().to_vec()),
        }
    };
    plan.state.endpoints().iter().enumerate().map(counts).collect()
}

/// What a status needs of the state, so that nothing else waits while it is written.
struct Seen {
    outcomes: Spans<Outcomes>,
    compiled: Option<Arc<Compiled>>,
    last_reload: Option<admin::Reload>,
    files: Vec<PathBuf>,
    own_certificates: Vec<(String, OwnCertificate)>,
    key_sources: Vec<Arc<KeySource>>,
    service_faults: Vec<admin::ServiceFaultStatus>,
    refused_objects: (Vec<admin::RefusedObjectStatus>, usize),
    kernel_refusal: Option<String>,
    busiest_worker_percent: Option<f64>,
    certificates: Vec<admin::CertificateStatus>,
    changes: Option<admin::ChangesStatus>,
    access_log: Option<Arc<telemetry::AccessLog>>,
}

impl Control {
    fn seen(&self) -> (Seen, Probes) {
        let state = self.state();
        let seen = Seen {
            outcomes: state.recent.outcomes(&self.registry),
            compiled: state.compiled.clone(),
            last_reload: state.last_reload.clone(),
            files: state.files.clone(),
            own_certificates: state.own_certificates.clone(),
            key_sources: state.key_sources.clone(),
            service_faults: state.service_faults.clone(),
            refused_objects: state.refused_objects.clone(),
            kernel_refusal: state.kernel_refusal.clone(),
            busiest_worker_percent: state.worker_times.busiest_percent(),
            certificates: state.certificates.clone(),
            changes: state.changes.clone(),
            access_log: state.access_log.clone(),
        };
        let checker = &state.checker;
        let (failures, unproven, last) = (checker.last_failures(), checker.unproven(), checker.last_probes());
        (seen, Probes { failures, unproven, last })
    }

    fn samples(&self) -> Vec<Sample> {
        let (compiled, key_sources, access_log, has_users) = {
            let state = self.state();
            let has_users = state.access.users.is_some();
            (state.compiled.clone(), state.key_sources.clone(), state.access_log.clone(), has_users)
        };
        let gauge = |name, help, value: f64| Sample { name, help, kind: Kind::Gauge, labels: Vec::new(), value };
        let reloads = |result: &str, count: &AtomicU64| Sample {
            name: "steelyard_reloads_total",
            help: "Reloads of the configuration, by outcome.",
            kind: Kind::Counter,
            labels: vec![("result", result.to_owned())],
            value: count.load(Relaxed) as f64,
        };
        let generation = compiled.as_ref().map_or(0, |compiled| compiled.snapshot.generation.0);
        let mut samples = vec![
            gauge("steelyard_generation", "The generation of the snapshot in use.", generation as f64),
            gauge("steelyard_workers", "Threads that carry traffic.", self.workers as f64),
            gauge("steelyard_draining", "1 if the process is draining.", f64::from(self.draining.load(Relaxed))),
            reloads("good", &self.reloads_good),
            reloads("refused", &self.reloads_refused),
        ];
        let help = "Memory that the process uses, as memory_max counts it.";
        samples.push(gauge("steelyard_memory_bytes", help, net::memory::bytes_used() as f64));
        let help = "Memory that the process may use: memory_max, or its default.";
        samples.extend(net::memory::bytes_max().map(|max| gauge("steelyard_memory_max_bytes", help, max as f64)));
        samples.push(Sample {
            name: "steelyard_rate_limit_forgotten_total",
            help: "Clients that rate limits forgot too early because more were active at once than are remembered.",
            kind: Kind::Counter,
            labels: Vec::new(),
            value: compiled.as_ref().map_or(0, |compiled| compiled.rate_limit_forgotten()) as f64,
        });
        samples.push(Sample {
            name: "steelyard_worker_stalls_total",
            help: "How often a worker made no progress for a second or longer; the log has the stack.",
            kind: Kind::Counter,
            labels: Vec::new(),
            value: self.stalled.total() as f64,
        });
        if has_users {
            samples.extend(operators::samples(&self.admin_refused));
        }
        samples.extend(operators::viewers(self.feed.counts()));
        samples.extend(operators::made_way(&self.admin_made_way));
        let passwords = compiled.as_ref().and_then(|compiled| compiled.password_counts());
        samples.extend(passwords.into_iter().flat_map(password_samples));
        samples.extend(keys::samples(&key_sources));
        samples.extend(access_log.iter().flat_map(|log| log.samples()));
        samples.extend(self.traces.samples());
        let plans = compiled.iter().flat_map(|compiled| &compiled.clusters);
        samples.extend(endpoint_samples(plans.clone()));
        samples.extend(cluster_samples(plans, &self.registry.cluster_totals()));
        let kernel = self.kernel();
        samples.extend(vip_endpoint_samples(kernel.vips()));
        samples.extend(kernel.samples());
        samples
    }
}

fn access_log_status(log: &telemetry::AccessLog) -> admin::AccessLogStatus {
    let [dropped, failed] = log.losses();
    admin::AccessLogStatus { dropped, failed, failing: log.is_failing() }
}

fn password_status(counts: PasswordCounts) -> PasswordStatus {
    let PasswordCounts { right, wrong, refused, waiting } = counts;
    PasswordStatus { right, wrong, refused, waiting: waiting as u64 }
}

fn password_samples(counts: PasswordCounts) -> Vec<Sample> {
    let PasswordCounts { right, wrong, refused, waiting } = counts;
    let sample = |(result, count): (&str, u64)| Sample {
        name: "steelyard_password_checks_total",
        help: "Checks of passwords against their hashes, by result; refused: too many were waiting, or there was no memory for one.",
        kind: Kind::Counter,
        labels: vec![("result", result.to_owned())],
        value: count as f64,
    };
    let mut samples: Vec<Sample> = [("right", right), ("wrong", wrong), ("refused", refused)].map(sample).into();
    samples.push(Sample {
        name: "steelyard_password_checks_waiting",
        help: "Checks of passwords that wait now.",
        kind: Kind::Gauge,
        labels: Vec::new(),
        value: waiting as f64,
    });
    samples
}

fn endpoint_samples<'p>(plans: impl Iterator<Item = &'p Arc<ClusterPlan>>) -> Vec<Sample> {
    let now_ms = clock::now_ms();
    let mut samples = Vec::new();
    for plan in plans {
        for (index, endpoint) in plan.state.endpoints().iter().enumerate() {
            let labels = vec![("cluster", plan.policy.name.clone()), ("endpoint", endpoint.address().to_string())];
            let mut one = |name, help, labels, value| {
                samples.push(Sample { name, help, kind: Kind::Gauge, labels, value });
            };
            let is_up = f64::from(plan.state.usable(index, now_ms));
            one("steelyard_endpoint_up", "1 if the endpoint takes new work.", labels.clone(), is_up);
            let in_flight = f64::from(endpoint.in_flight());
            one("steelyard_endpoint_in_flight", "Requests in progress at the endpoint.", labels, in_flight);
        }
    }
    samples
}

fn cluster_samples<'p>(
    plans: impl Iterator<Item = &'p Arc<ClusterPlan>>,
    totals: &BTreeMap<Arc<str>, ClusterTotals>,
) -> Vec<Sample> {
    let now_ms = clock::now_ms();
    let mut samples = Vec::new();
    for plan in plans {
        let mut one = |name, help, value: f64| {
            let labels = vec![("cluster", plan.policy.name.clone())];
            samples.push(Sample { name, help, kind: Kind::Gauge, labels, value });
        };
        let help = "1 if so few endpoints of the cluster are usable that health and ejection are ignored.";
        one("steelyard_cluster_panic", help, f64::from(plan.state.panicking(now_ms)));
        let help = "The part of the cluster's retry budget, 0 to 1, that was used at the last retry of the last ten seconds, at the worker where most of it was.";
        let used = totals.get(plan.policy.name.as_str()).map_or(0.0, |total| retry_budget_used(total, now_ms));
        one("steelyard_cluster_retry_budget_used_ratio", help, used);
        if let Some(priority) = plan.state.priority_in_use(now_ms) {
            let help =
                "The priority of the endpoints that get the requests of the cluster, if its endpoints differ in it.";
            one("steelyard_cluster_priority", help, f64::from(priority));
        }
        if let Some(share) = plan.state.zone_share(now_ms) {
            let help = "The share of the requests of the cluster, 0 to 1, that goes to endpoints in the zone of this process, if zones are known.";
            one("steelyard_cluster_zone_share", help, share);
        }
    }
    samples
}

fn vip_endpoint_samples(plans: &[Arc<VipPlan>]) -> Vec<Sample> {
    let of_plan = |plan: &Arc<VipPlan>| {
        let plan = plan.clone();
        (0..plan.state.endpoints().len()).map(move |index| Sample {
            name: "steelyard_vip_endpoint_up",
            help: "1 if the endpoint of the vip takes new connections.",
            kind: Kind::Gauge,
            labels: vec![
                ("vip", plan.vip.name.clone()),
                (
                    "endpoint",
                    plan.state.endpoints().get(index).map_or_else(String::new, |state| vips::shown(state.address())),
                ),
            ],
            value: f64::from(plan.state.usable(index, 0)),
        })
    };
    plans.iter().flat_map(of_plan).collect()
}
