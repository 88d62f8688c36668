//! What the control API is answered from: the snapshot in use, the health checks, and the way to the main loop.

use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use admin::{ClusterStatus, EndpointState, EndpointStatus, Reload, STATUS_VERSION, Status};
use health::{Handshake, Handshaking, Way};
use model::Generation;
use net::clock;
use net::inherit::Inherited;
use proxy::{ClientKeys, ClusterPlan, Compiled};
use telemetry::{AccessLog, Kind, Registry, Sample, Totals};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// What the control API asks the main loop to do.
pub(crate) enum Order {
    /// Read the configuration again, and answer with the generation or with every error.
    Reload(oneshot::Sender<Result<u64, String>>),
}

/// Shared by the main loop, which writes, and the control API, which reads. Both are on the main thread; the lock is for the compiler.
pub(crate) struct Control {
    registry: Arc<Registry>,
    workers: usize,
    started_ms: u64,
    orders: mpsc::Sender<Order>,
    /// The last number given to a snapshot, used or refused.
    generation: AtomicU64,
    reloads_good: AtomicU64,
    reloads_refused: AtomicU64,
    draining: AtomicBool,
    state: Mutex<State>,
}

struct State {
    compiled: Option<Arc<Compiled>>,
    checker: health::Checker,
    last_reload: Option<Reload>,
    access_log: Option<Arc<AccessLog>>,
    server: Option<Server>,
}

/// The control API, listening.
struct Server {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    task: JoinHandle<()>,
}

/// The control API as a snapshot wants it.
pub(crate) enum Listen {
    /// As it is.
    Unchanged,
    /// Nowhere.
    Nowhere,
    /// Here, from now on.
    Here(SocketAddr, TcpListener),
}

impl Control {
    pub(crate) fn new(registry: Arc<Registry>, workers: usize, orders: mpsc::Sender<Order>) -> Self {
        let seed = u64::from(std::process::id()) ^ clock::now_us();
        Self {
            registry,
            workers,
            started_ms: clock::now_ms(),
            orders,
            generation: AtomicU64::new(1),
            reloads_good: AtomicU64::new(0),
            reloads_refused: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            state: Mutex::new(State {
                compiled: None,
                checker: health::Checker::new(clock::now_ms, seed),
                last_reload: None,
                access_log: None,
                server: None,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn compiled(&self) -> Option<Arc<Compiled>> {
        self.state().compiled.clone()
    }

    pub(crate) fn next_generation(&self) -> Generation {
        Generation(self.generation.fetch_add(1, Relaxed) + 1)
    }

    /// Lets the health checks probe the endpoints of `compiled`, which is about to be used.
    pub(crate) fn check_health(&self, compiled: &Compiled) {
        let targets = compiled.clusters.iter().flat_map(targets).collect();
        self.state().checker.apply(targets);
    }

    pub(crate) fn adopt(&self, compiled: Arc<Compiled>) {
        self.state().compiled = Some(compiled);
    }

    pub(crate) fn set_access_log(&self, log: Option<Arc<AccessLog>>) {
        self.state().access_log = log;
    }

    /// Takes note of how a reload went.
    pub(crate) fn note_reload(&self, errors: Option<String>) {
        let ok = errors.is_none();
        let counter = if ok { &self.reloads_good } else { &self.reloads_refused };
        counter.fetch_add(1, Relaxed);
        let errors = errors.iter().flat_map(|errors| errors.lines()).map(str::to_owned).collect();
        self.state().last_reload = Some(Reload { unix_seconds: unix_seconds(), ok, errors });
    }

    /// Opens the socket that a snapshot wants for the control API.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn listen(&self, wanted: Option<SocketAddr>, inherited: &mut Inherited) -> Result<Listen, String> {
        let Some(address) = wanted else { return Ok(Listen::Nowhere) };
        if self.state().server.as_ref().is_some_and(|server| server.address == address) {
            return Ok(Listen::Unchanged);
        }
        let handed = inherited.take(address).pop();
        let listener = handed.map_or_else(|| bind_alone(address), Ok);
        let listener = listener.map_err(|error| format!("admin: {}", net::socket::cannot_listen(address, &error)))?;
        Ok(Listen::Here(address, listener))
    }

    /// Serves the control API where it is wanted from now on.
    pub(crate) fn serve(self: &Arc<Self>, listen: Listen) {
        let server = match listen {
            Listen::Unchanged => return,
            Listen::Nowhere => None,
            Listen::Here(address, listener) => self.start(address, listener),
        };
        if let Some(old) = std::mem::replace(&mut self.state().server, server) {
            old.task.abort();
        }
    }

    fn start(self: &Arc<Self>, address: SocketAddr, listener: TcpListener) -> Option<Server> {
        let shared = listener.try_clone().and_then(tokio::net::TcpListener::from_std);
        let shared = shared.inspect_err(|error| tracing::error!(%address, %error, "no control API")).ok()?;
        let task = tokio::spawn(admin::serve(shared, self.clone()));
        Some(Server { address, listener: Arc::new(listener), task })
    }

    /// The socket of the control API, for a process that takes over.
    pub(crate) fn listener(&self) -> Option<Arc<TcpListener>> {
        self.state().server.as_ref().map(|server| server.listener.clone())
    }

    /// From now on not ready. A successor answers for itself: our control API closes, and is not asked in its place.
    pub(crate) fn begin_drain(&self, handed_over: bool) {
        self.draining.store(true, Relaxed);
        if handed_over && let Some(server) = self.state().server.take() {
            server.task.abort();
        }
    }

    fn samples(&self) -> Vec<Sample> {
        let state = self.state();
        let gauge = |name, help, value: f64| Sample { name, help, kind: Kind::Gauge, labels: Vec::new(), value };
        let reloads = |result: &str, count: &AtomicU64| Sample {
            name: "steelyard_reloads_total",
            help: "Times that the configuration was read again, by outcome.",
            kind: Kind::Counter,
            labels: vec![("result", result.to_owned())],
            value: count.load(Relaxed) as f64,
        };
        let generation = state.compiled.as_ref().map_or(0, |compiled| compiled.snapshot.generation.0);
        let mut samples = vec![
            gauge("steelyard_generation", "The snapshot in use.", generation as f64),
            gauge("steelyard_workers", "Threads that carry traffic.", self.workers as f64),
            gauge("steelyard_draining", "1: finishing what is under way.", f64::from(self.draining.load(Relaxed))),
            reloads("good", &self.reloads_good),
            reloads("refused", &self.reloads_refused),
        ];
        samples.extend(state.access_log.iter().flat_map(|log| log.samples()));
        let plans = state.compiled.iter().flat_map(|compiled| &compiled.clusters);
        samples.extend(endpoint_samples(plans));
        samples
    }
}

/// A socket that no second Steelyard can share by accident: SO_REUSEPORT would let both answer in turns.
fn bind_alone(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn targets(plan: &Arc<ClusterPlan>) -> Vec<health::Target> {
    let Some(check) = &plan.policy.health_check else { return Vec::new() };
    let tls = plan.tls().map(|keys| Arc::new(Probing(keys.clone())) as Arc<dyn Handshake>);
    let target = |(index, endpoint): (usize, &Arc<balance::EndpointState>)| health::Target {
        cluster: plan.state.clone(),
        index,
        cluster_name: plan.policy.name.clone(),
        address: endpoint.address(),
        check: check.clone(),
        way: Way {
            proxy_protocol: plan.policy.send_proxy_protocol,
            tls: tls.clone(),
            host: plan.host(endpoint.address()).map(str::to_owned),
        },
    };
    plan.state.endpoints().iter().enumerate().map(target).collect()
}

/// Probes speak TLS as requests do.
struct Probing(Arc<ClientKeys>);

impl Handshake for Probing {
    fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    fn handshake<'h>(&'h self, tcp: TcpStream, address: SocketAddr, host: Option<&'h str>) -> Handshaking<'h> {
        Box::pin(async move {
            let stream = self.0.secure(tcp, address, host).await?;
            Ok(Box::new(stream) as Box<dyn health::Stream>)
        })
    }
}

/// One gauge after the other, as the text format wants samples of one name together.
fn endpoint_samples<'p>(plans: impl Iterator<Item = &'p Arc<ClusterPlan>> + Clone) -> Vec<Sample> {
    let now_ms = clock::now_ms();
    let mut samples = Vec::new();
    let mut all = |name, help, value: &dyn Fn(&ClusterPlan, usize, &balance::EndpointState) -> f64| {
        for plan in plans.clone() {
            for (index, endpoint) in plan.state.endpoints().iter().enumerate() {
                let labels = vec![("cluster", plan.policy.name.clone()), ("endpoint", endpoint.address().to_string())];
                let value = value(plan, index, endpoint);
                samples.push(Sample { name, help, kind: Kind::Gauge, labels, value });
            }
        }
    };
    all("steelyard_endpoint_up", "1: the endpoint takes new work.", &|plan, index, _| {
        f64::from(plan.state.usable(index, now_ms))
    });
    all("steelyard_endpoint_in_flight", "Requests under way at the endpoint.", &|_, _, endpoint| {
        f64::from(endpoint.in_flight())
    });
    for plan in plans.clone() {
        samples.push(Sample {
            name: "steelyard_cluster_panic",
            help: "1: so little of the cluster is usable that health and ejection are ignored.",
            kind: Kind::Gauge,
            labels: vec![("cluster", plan.policy.name.clone())],
            value: f64::from(plan.state.panicking(now_ms)),
        });
    }
    samples
}

impl admin::Control for Control {
    fn metrics(&self) -> String {
        self.registry.render(&self.samples())
    }

    fn status(&self) -> Status {
        let totals = self.registry.totals();
        let state = self.state();
        let failures = state.checker.last_failures();
        let snapshot = state.compiled.as_ref().map(|compiled| compiled.snapshot.clone());
        let plans = state.compiled.iter().flat_map(|compiled| &compiled.clusters);
        Status {
            version: STATUS_VERSION,
            steelyard: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            workers: self.workers,
            unix_seconds: unix_seconds(),
            uptime_seconds: clock::now_ms().saturating_sub(self.started_ms) / 1000,
            generation: snapshot.as_ref().map_or(0, |snapshot| snapshot.generation.0),
            draining: self.draining.load(Relaxed),
            last_reload: state.last_reload.clone(),
            listeners: snapshot.iter().flat_map(|snapshot| admin::listener_statuses(snapshot, &totals)).collect(),
            routes: snapshot.iter().flat_map(|snapshot| admin::route_statuses(snapshot, &totals)).collect(),
            clusters: plans.map(|plan| cluster_status(plan, &totals, &failures)).collect(),
        }
    }

    fn ready(&self) -> Result<(), String> {
        if self.draining.load(Relaxed) {
            return Err("draining: this process finishes what is under way and takes no new connections".to_owned());
        }
        Ok(())
    }

    fn reload(&self) -> Pin<Box<dyn Future<Output = Result<u64, String>> + Send + '_>> {
        Box::pin(async {
            let (answer, outcome) = oneshot::channel();
            if self.orders.try_send(Order::Reload(answer)).is_err() {
                return Err("busy with other orders: ask again".to_owned());
            }
            outcome.await.unwrap_or_else(|_| Err("the process is ending".to_owned()))
        })
    }

    fn set_draining(&self, cluster: Option<&str>, endpoint: &str, draining: bool) -> Result<usize, String> {
        let compiled = self.compiled().ok_or("not ready")?;
        let now_ms = clock::now_ms();
        let mut found = 0;
        let plans = compiled.clusters.iter().filter(|plan| cluster.is_none_or(|name| plan.policy.name == name));
        for plan in plans {
            for (index, state) in plan.state.endpoints().iter().enumerate() {
                if state.address().to_string() == endpoint {
                    found += 1;
                    if plan.state.set_draining(index, draining, now_ms) {
                        tracing::info!(cluster = plan.policy.name, endpoint, draining, "set by the control API");
                    }
                }
            }
        }
        if found > 0 {
            return Ok(found);
        }
        let known: Vec<String> = compiled
            .clusters
            .iter()
            .flat_map(|plan| plan.state.endpoints())
            .map(|state| state.address().to_string())
            .take(20)
            .collect();
        Err(format!("no such endpoint: {endpoint}; there are {}", known.join(", ")))
    }
}

fn cluster_status(plan: &ClusterPlan, totals: &Totals, failures: &[health::LastFailure]) -> ClusterStatus {
    let now_ms = clock::now_ms();
    let name = plan.policy.name.as_str();
    let endpoint = |(index, endpoint): (usize, &Arc<balance::EndpointState>)| {
        let address = endpoint.address();
        let failure = failures.iter().find(|failure| failure.cluster == name && failure.address == address);
        let mut why = failure.map(|failure| failure.why.clone());
        let state = match plan.state.status(index, now_ms) {
            Some(balance::EndpointStatus::Draining) => EndpointState::Draining,
            Some(balance::EndpointStatus::Unhealthy) => EndpointState::Unhealthy,
            Some(balance::EndpointStatus::Ejected { until_ms }) => {
                let left = until_ms.saturating_sub(now_ms).div_ceil(1000);
                why = Some(format!("failed real requests; back in {left} s"));
                EndpointState::Ejected
            }
            Some(balance::EndpointStatus::Healthy) | None => EndpointState::Healthy,
        };
        let total = totals.endpoints.get(&(name.to_owned(), address));
        EndpointStatus {
            address: address.to_string(),
            weight: plan.state.weight(index),
            state,
            why,
            in_flight: u64::from(endpoint.in_flight()),
            connections: u64::from(endpoint.connections()),
            requests: total.map_or(0, |total| total.requests),
            failures: total.map_or(0, |total| total.failures),
        }
    };
    let endpoints = plan.state.endpoints().iter().enumerate().map(endpoint).collect();
    ClusterStatus::new(&plan.policy, totals, plan.state.panicking(now_ms), endpoints)
}
