//! Runs the probes, and reports their verdicts to the clusters.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use balance::{ClusterState, HealthMachine, Proof, Rng, first_probe_delay_ms, next_probe_delay_ms};
use model::{HealthCheck, Probe};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{Duration, sleep};

use crate::probe::{Failure, probe};
use crate::transport::ProbeTransport;

/// Concurrent probes over all clusters, which limits the sockets. Further probes wait; their timeout begins when they start.
pub const PROBES_AT_ONCE_MAX: usize = 512;

/// An endpoint that is to be probed.
#[derive(Clone, Debug)]
pub struct ProbeTarget {
    /// The cluster that gets the verdicts.
    pub cluster: Arc<ClusterState>,
    /// The endpoint, as an index into the cluster.
    pub index: usize,
    /// For logs and [`LastFailure`].
    pub cluster_name: String,
    /// The address of the endpoint; [`HealthCheck::port`] may direct the probe to another port.
    pub address: SocketAddr,
    /// The check, and its interval.
    pub check: HealthCheck,
    /// How the probe connects to the endpoint. It is not used for a different port, which may use another protocol.
    pub transport: ProbeTransport,
}

/// Why an endpoint is unhealthy, or why its last probe failed although it is not unhealthy yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastFailure {
    /// The cluster's name.
    pub cluster: String,
    /// The endpoint's address.
    pub address: SocketAddr,
    /// Text for an operator: `connect refused`, `status 503, expected 200-399`.
    pub why: String,
    /// The time, by the clock given to [`Checker::new`].
    pub at_ms: u64,
}

/// The last probe of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastProbe {
    /// When it ended, by the clock given to [`Checker::new`].
    pub at_ms: u64,
    /// Whether it succeeded.
    pub is_success: bool,
}

/// All active probes of the process. Dropping it ends them.
pub struct Checker {
    /// By the address probed. There are several if clusters have different checks.
    running: HashMap<SocketAddr, Vec<Running>>,
    common: Arc<Common>,
    rng: Rng,
}

/// Shared by all probes.
struct Common {
    now_ms: Box<dyn Fn() -> u64 + Send + Sync>,
    permits: Semaphore,
    results: watch::Sender<u64>,
}

/// One probe and its task.
struct Running {
    check: HealthCheck,
    transport: ProbeTransport,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

struct State {
    machine: HealthMachine,
    /// A probe has ended, so `machine` has a verdict instead of an assumption.
    proven: bool,
    /// The last failure and its time; `None` once a probe has succeeded and the verdict is healthy.
    failure: Option<(Failure, u64)>,
    last: Option<LastProbe>,
    targets: Vec<ProbeTarget>,
}

impl Checker {
    /// Starts without probes. `now_ms` is the clock that the cluster states use; `seed` spreads the probes, and should differ between
    /// processes.
    pub fn new(now_ms: impl Fn() -> u64 + Send + Sync + 'static, seed: u64) -> Self {
        let common = Common {
            now_ms: Box::new(now_ms),
            permits: Semaphore::new(PROBES_AT_ONCE_MAX),
            results: watch::Sender::new(0),
        };
        Self { running: HashMap::new(), common: Arc::new(common), rng: Rng::new(seed) }
    }

    /// Replaces the probes by those of `targets`. It must be called on a tokio runtime, and before the new cluster states are used.
    ///
    /// A probe whose address and check stay keeps its count of results and its schedule, and reports its verdict to the new cluster states
    /// at once. An endpoint that is no longer probed is reported as healthy again, because nothing else would ever do that.
    pub fn apply(&mut self, targets: Vec<ProbeTarget>) {
        let still_probed: HashSet<_> = targets.iter().filter_map(endpoint_of).collect();
        let mut groups = group(targets);
        for (address, running) in &mut self.running {
            let groups = groups.entry(*address).or_default();
            running.retain(|probe| {
                let same = |group: &[ProbeTarget]| group.first().is_some_and(|target| probe.serves(target));
                let targets = groups.iter().position(|group| same(group)).map(|place| groups.swap_remove(place));
                let stays = targets.is_some();
                let now_ms = (self.common.now_ms)();
                for gone in lock(&probe.state).take_over(targets.unwrap_or_default(), now_ms) {
                    if endpoint_of(&gone).is_none_or(|endpoint| !still_probed.contains(&endpoint)) {
                        gone.cluster.set_healthy(gone.index, true, now_ms);
                    }
                }
                stays
            });
        }
        for (address, groups) in groups {
            let new: Vec<Running> = groups.into_iter().filter_map(|group| self.start(address, group)).collect();
            self.running.entry(address).or_default().extend(new);
        }
        self.running.retain(|_, running| !running.is_empty());
    }

    fn start(&mut self, address: SocketAddr, targets: Vec<ProbeTarget>) -> Option<Running> {
        let first = targets.first()?;
        let (check, transport) = (first.check.clone(), first.transport());
        // An endpoint that an earlier process or another check has found dead stays dead until probes succeed.
        let healthy = !targets.iter().any(|target| target.cluster.probes_fail(target.index));
        let machine = HealthMachine::new(&check, healthy);
        let state = Arc::new(Mutex::new(State { machine, proven: false, failure: None, last: None, targets }));
        let rng = Rng::new(self.rng.next_u64());
        let run = run(address, check.clone(), transport.clone(), Arc::clone(&state), Arc::clone(&self.common), rng);
        Some(Running { check, transport, state, task: tokio::spawn(run) })
    }

    /// The last failure of each endpoint that is unhealthy or has failed its last probe, sorted by cluster and address.
    pub fn last_failures(&self) -> Vec<LastFailure> {
        let mut failures = Vec::new();
        for running in self.running.values().flatten() {
            let state = lock(&running.state);
            let Some((failure, at_ms)) = &state.failure else { continue };
            failures.extend(state.targets.iter().map(|target| LastFailure {
                cluster: target.cluster_name.clone(),
                address: target.address,
                why: failure.to_string(),
                at_ms: *at_ms,
            }));
        }
        failures.sort_by(|a, b| (&a.cluster, a.address).cmp(&(&b.cluster, b.address)));
        failures
    }

    /// The last probe of each endpoint that was probed.
    pub fn last_probes(&self) -> HashMap<(Arc<str>, SocketAddr), LastProbe> {
        let mut probes = HashMap::new();
        for running in self.running.values().flatten() {
            let state = lock(&running.state);
            let Some(last) = state.last else { continue };
            probes.extend(
                state.targets.iter().map(|target| ((target.cluster_name.as_str().into(), target.address), last)),
            );
        }
        probes
    }

    /// Cluster and address of the endpoints of which no probe has ended yet. They are assumed to be healthy.
    pub fn unproven(&self) -> HashSet<(Arc<str>, SocketAddr)> {
        let mut unproven = HashSet::new();
        for running in self.running.values().flatten() {
            let state = lock(&running.state);
            if !state.proven {
                unproven
                    .extend(state.targets.iter().map(|target| (target.cluster_name.as_str().into(), target.address)));
            }
        }
        unproven
    }

    /// How many probes have ended so far. It changes after the verdicts were reported to the cluster states.
    pub fn results(&self) -> watch::Receiver<u64> {
        self.common.results.subscribe()
    }
}

/// Groups targets by address, and within an address those that one probe can serve.
fn group(targets: Vec<ProbeTarget>) -> HashMap<SocketAddr, Vec<Vec<ProbeTarget>>> {
    let mut groups: HashMap<SocketAddr, Vec<Vec<ProbeTarget>>> = HashMap::new();
    for target in targets {
        let groups = groups.entry(target.probed()).or_default();
        let same = |group: &&mut Vec<ProbeTarget>| {
            group.first().is_some_and(|other| (&other.check, other.transport()) == (&target.check, target.transport()))
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(target),
            None => groups.push(vec![target]),
        }
    }
    groups
}

/// Identifies endpoint states, which outlive the cluster states.
fn endpoint_of(target: &ProbeTarget) -> Option<*const balance::EndpointState> {
    target.cluster.endpoints().get(target.index).map(Arc::as_ptr)
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // No code that holds the lock leaves a state half changed.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ProbeTarget {
    fn probed(&self) -> SocketAddr {
        SocketAddr::new(self.address.ip(), self.check.port.unwrap_or(self.address.port()))
    }

    /// The transport of the probe.
    fn transport(&self) -> ProbeTransport {
        if self.probed() == self.address { self.transport.clone() } else { ProbeTransport::default() }
    }
}

impl Running {
    fn serves(&self, target: &ProbeTarget) -> bool {
        self.check == target.check && self.transport == target.transport()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Probes until aborted.
async fn run(
    address: SocketAddr,
    check: HealthCheck,
    transport: ProbeTransport,
    state: Arc<Mutex<State>>,
    common: Arc<Common>,
    mut rng: Rng,
) {
    let interval_ms = u64::try_from(check.interval.as_millis()).unwrap_or(u64::MAX);
    sleep(Duration::from_millis(first_probe_delay_ms(interval_ms, &mut rng))).await;
    loop {
        // It runs while the probe runs, because the interval is from start to start.
        let next = sleep(Duration::from_millis(next_probe_delay_ms(interval_ms, &mut rng)));
        // The semaphore is never closed.
        let permit = common.permits.acquire().await.ok();
        let result = probe(address, &check, &transport).await;
        drop(permit);
        lock(&state).conclude(result, (common.now_ms)());
        common.results.send_modify(|results| *results += 1);
        next.await;
    }
}

impl State {
    /// Serves other targets from now on. Returns the previous ones.
    fn take_over(&mut self, targets: Vec<ProbeTarget>, now_ms: u64) -> Vec<ProbeTarget> {
        let before = std::mem::replace(&mut self.targets, targets);
        if self.proven {
            self.tell(now_ms);
        }
        before
    }

    fn conclude(&mut self, result: Result<(), Failure>, now_ms: u64) {
        let is_success = result.is_ok();
        self.last = Some(LastProbe { at_ms: now_ms, is_success });
        // A connection alone proves nothing, except for an endpoint that did not even accept one before.
        let is_answer =
            self.failure.is_some() || self.targets.first().is_some_and(|target| target.check.probe != Probe::Tcp);
        self.proven = true;
        self.machine.on_result(is_success);
        match result {
            Err(failure) => self.failure = Some((failure, now_ms)),
            Ok(()) if self.machine.healthy() => self.failure = None,
            Ok(()) => {}
        }
        self.tell(now_ms);
        if is_success && self.machine.healthy() {
            self.readmit(now_ms, if is_answer { Proof::Probed } else { Proof::Connected });
        }
    }

    /// Ends ejections early that the check has disproved.
    fn readmit(&self, now_ms: u64, proof: Proof) {
        for target in self.targets.iter().filter(|target| target.cluster.readmit(target.index, now_ms, proof)) {
            tracing::info!(
                cluster = %target.cluster_name,
                endpoint = %target.address,
                "ejection ended early: the endpoint passes its health check"
            );
        }
    }

    /// Reports the verdict, whether or not it has changed: the clusters know what is new to them.
    fn tell(&self, now_ms: u64) {
        let healthy = self.machine.healthy();
        for target in &self.targets {
            if !target.cluster.set_healthy(target.index, healthy, now_ms) {
                continue;
            }
            let (cluster, endpoint) = (&target.cluster_name, target.address);
            match &self.failure {
                Some((why, _)) if !healthy => tracing::info!(%cluster, %endpoint, %why, "endpoint is unhealthy"),
                _ => tracing::info!(%cluster, %endpoint, "endpoint is healthy"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use balance::{EndpointState, EndpointStatus, Outcome};
    use tokio::net::{TcpListener, TcpSocket};
    use tokio::time::timeout;

    use super::*;

    /// Three failures to become unhealthy, two successes to become healthy, as fast as loopback allows.
    fn check() -> HealthCheck {
        let mut check = HealthCheck::new(Probe::Tcp);
        (check.interval, check.timeout) = (Duration::from_millis(2), Duration::from_secs(10));
        check
    }

    fn cluster(address: SocketAddr) -> Arc<ClusterState> {
        cluster_of(Arc::new(EndpointState::new(address)))
    }

    fn cluster_of(endpoint: Arc<EndpointState>) -> Arc<ClusterState> {
        Arc::new(ClusterState::new(&model::Cluster::new("c", Vec::new()), vec![(endpoint, 1)]))
    }

    fn target(cluster: &Arc<ClusterState>, name: &str) -> ProbeTarget {
        ProbeTarget {
            cluster: Arc::clone(cluster),
            index: 0,
            cluster_name: name.to_owned(),
            address: cluster.endpoints()[0].address(),
            check: check(),
            transport: ProbeTransport::default(),
        }
    }

    fn checker() -> Checker {
        Checker::new(|| 7, 1)
    }

    /// Reserves a port that refuses connections until it listens. (An unreserved one could be given to another test.)
    fn closed(address: SocketAddr) -> TcpSocket {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        socket
    }

    fn closed_anywhere() -> (TcpSocket, SocketAddr) {
        let socket = closed(([127, 0, 0, 1], 0).into());
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    /// Accepts nothing; the kernel completes the handshakes.
    fn listen(socket: TcpSocket) -> TcpListener {
        socket.listen(1024).unwrap()
    }

    /// Waits for probes until the endpoint has the expected status.
    async fn until(checker: &Checker, cluster: &ClusterState, expect: EndpointStatus) {
        let mut results = checker.results();
        let reached = async {
            while cluster.status(0, 7) != Some(expect) {
                results.changed().await.unwrap();
            }
        };
        timeout(Duration::from_secs(30), reached).await.expect("the verdict did not come in time");
    }

    /// Waits for this many further probes.
    async fn probes(checker: &Checker, count: u64) {
        let mut results = checker.results();
        let end = *results.borrow() + count;
        let ended = async { results.wait_for(|ended| *ended >= end).await.map(|_| ()).unwrap() };
        timeout(Duration::from_secs(30), ended).await.expect("no probe has ended");
    }

    fn tasks(checker: &Checker) -> Vec<tokio::task::Id> {
        checker.running.values().flatten().map(|running| running.task.id()).collect()
    }

    #[tokio::test]
    async fn an_endpoint_goes_down_and_comes_back() {
        let (socket, address) = closed_anywhere();
        let listener = listen(socket);
        let cluster = cluster(address);
        let mut checker = checker();
        checker.apply(vec![target(&cluster, "web")]);
        assert_eq!(checker.unproven(), [("web".into(), address)].into());
        probes(&checker, 2).await;
        assert_eq!(cluster.status(0, 7), Some(EndpointStatus::Healthy));
        assert_eq!(checker.last_failures(), []);
        assert!(checker.unproven().is_empty());

        drop(listener);
        let socket = closed(address);
        until(&checker, &cluster, EndpointStatus::Unhealthy).await;
        let failure = LastFailure { cluster: "web".to_owned(), address, why: "connect refused".to_owned(), at_ms: 7 };
        assert_eq!(checker.last_failures(), [failure]);
        let key: (Arc<str>, SocketAddr) = ("web".into(), address);
        assert_eq!(checker.last_probes()[&key], LastProbe { at_ms: 7, is_success: false });

        let _listener = listen(socket);
        until(&checker, &cluster, EndpointStatus::Healthy).await;
        assert_eq!(checker.last_failures(), []);
    }

    /// An endpoint that five failures of this kind have ejected, for ten seconds that never pass.
    fn ejected(address: SocketAddr, outcome: Outcome) -> Arc<ClusterState> {
        let mut policy = model::Cluster::new("c", Vec::new());
        policy.outlier.as_mut().unwrap().max_ejected = 1.0;
        let cluster = Arc::new(ClusterState::new(&policy, vec![(Arc::new(EndpointState::new(address)), 1)]));
        assert!((0..5).any(|_| cluster.record(0, 7, outcome).is_some()));
        cluster
    }

    #[tokio::test]
    async fn a_check_that_passes_ends_an_ejection() {
        let (socket, address) = closed_anywhere();
        let _listener = listen(socket);
        let refused = ejected(address, Outcome::ConnectFailure);
        let mut checker = checker();
        checker.apply(vec![target(&refused, "web")]);
        until(&checker, &refused, EndpointStatus::Healthy).await;
    }

    #[tokio::test]
    async fn a_connection_is_an_answer_only_where_there_was_none() {
        let (socket, address) = closed_anywhere();
        let listener = listen(socket);
        let silent = ejected(address, Outcome::Timeout);
        let mut checker = checker();
        checker.apply(vec![target(&silent, "web")]);
        probes(&checker, 3).await;
        // The kernel accepts connections for a process that hangs.
        assert!(matches!(silent.status(0, 7), Some(EndpointStatus::Ejected { .. })));
        drop(listener);
        let socket = closed(address);
        until(&checker, &silent, EndpointStatus::Unhealthy).await;
        let _listener = listen(socket);
        until(&checker, &silent, EndpointStatus::Healthy).await;
    }

    #[tokio::test]
    async fn the_first_failure_decides_at_once() {
        let (_closed, address) = closed_anywhere();
        let cluster = cluster(address);
        let mut checker = checker();
        checker.apply(vec![target(&cluster, "web")]);
        probes(&checker, 1).await;
        assert_eq!(cluster.status(0, 7), Some(EndpointStatus::Unhealthy));
    }

    #[tokio::test]
    async fn clusters_that_ask_the_same_share_a_probe() {
        let (_closed, address) = closed_anywhere();
        let (one, two, other) = (cluster(address), cluster(address), cluster(address));
        let mut different = target(&other, "other");
        different.check.timeout = Duration::from_secs(9);
        let mut checker = checker();
        checker.apply(vec![target(&two, "two"), different, target(&one, "one")]);
        assert_eq!(tasks(&checker).len(), 2);
        for cluster in [&one, &two, &other] {
            until(&checker, cluster, EndpointStatus::Unhealthy).await;
        }
        let names: Vec<String> = checker.last_failures().into_iter().map(|failure| failure.cluster).collect();
        assert_eq!(names, ["one", "other", "two"]);
    }

    #[tokio::test]
    async fn a_reload_keeps_the_probe_and_its_verdict() {
        let (closed, address) = closed_anywhere();
        let old = cluster(address);
        let mut checker = checker();
        checker.apply(vec![target(&old, "web")]);
        until(&checker, &old, EndpointStatus::Unhealthy).await;
        let before = tasks(&checker);

        // Another endpoint state, so only the checker can know the verdict.
        let new = cluster(address);
        checker.apply(vec![target(&new, "web")]);
        assert_eq!(new.status(0, 7), Some(EndpointStatus::Unhealthy));
        assert_eq!(tasks(&checker), before);

        let _listener = listen(closed);
        until(&checker, &new, EndpointStatus::Healthy).await;
    }

    #[tokio::test]
    async fn a_changed_check_is_another_probe_and_forgets_no_verdict() {
        let (_closed, address) = closed_anywhere();
        let old = cluster(address);
        let mut checker = checker();
        checker.apply(vec![target(&old, "web")]);
        until(&checker, &old, EndpointStatus::Unhealthy).await;
        let before = tasks(&checker);

        let new = cluster_of(Arc::clone(&old.endpoints()[0]));
        let mut changed = target(&new, "web");
        changed.check.healthy_after = 1;
        checker.apply(vec![changed]);
        assert_eq!(new.status(0, 7), Some(EndpointStatus::Unhealthy));
        assert_ne!(tasks(&checker), before);
    }

    #[tokio::test]
    async fn who_is_probed_no_longer_is_healthy_again() {
        let (_closed, address) = closed_anywhere();
        let old = cluster(address);
        let mut checker = checker();
        checker.apply(vec![target(&old, "web")]);
        until(&checker, &old, EndpointStatus::Unhealthy).await;
        let new = cluster_of(Arc::clone(&old.endpoints()[0]));
        checker.apply(Vec::new());
        assert_eq!(new.status(0, 7), Some(EndpointStatus::Healthy));
        assert!(tasks(&checker).is_empty() && checker.last_failures().is_empty());
    }

    #[tokio::test]
    async fn dropping_the_checker_lets_go_of_everything() {
        let (socket, address) = closed_anywhere();
        let _listener = listen(socket);
        let cluster = cluster(address);
        let mut checker = checker();
        checker.apply(vec![target(&cluster, "web")]);
        probes(&checker, 1).await;
        let state: Weak<Mutex<State>> = Arc::downgrade(&checker.running[&address][0].state);
        drop(checker);
        let gone = async {
            while state.strong_count() > 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(30), gone).await.expect("the task still runs");
        assert_eq!(Arc::strong_count(&cluster), 1);
    }

    #[tokio::test]
    async fn another_port_is_probed_where_the_check_says_so() {
        let (socket, healthy) = closed_anywhere();
        let _listener = listen(socket);
        let (_closed, address) = closed_anywhere();
        let cluster = cluster(address);
        let mut target = target(&cluster, "web");
        target.check.port = Some(healthy.port());
        target.transport.proxy_protocol = Some(model::ProxyProtocol::V1);
        assert_eq!(target.transport(), ProbeTransport::default());
        let mut checker = checker();
        checker.apply(vec![target]);
        probes(&checker, 2).await;
        assert_eq!(cluster.status(0, 7), Some(EndpointStatus::Healthy));
    }
}
