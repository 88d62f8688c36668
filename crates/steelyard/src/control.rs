//! The state that the control API reads: the snapshot in use, the health checks, the kernel plane, and the channel to
//! the main loop.

pub(crate) mod about;
pub(crate) mod answers;
mod keys;
pub(crate) mod operators;
pub(crate) mod replicas;
mod trace;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use admin::{Pages, Reload, VipChange};
use health::{Handshake, Handshaking, ProbeTransport};
use model::{AdminAddress, Generation};
use net::clock;
use net::inherit::Inherited;
use net::unix::SocketFile;
use proxy::{ClientKeys, ClusterPlan, Compiled, KeySource, NamedFiles, OwnCertificate};
use telemetry::{AccessLog, Recent, Registry};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use self::replicas::Replicas;
use crate::exit::Refused;
use crate::files;
use crate::kernel::KernelPlane;
use crate::otlp::Numbers;
use crate::stalls::Stalled;
use crate::vips::VipPlan;

/// The routes whose requests are logged at a time.
const DEBUGGED_MAX: usize = 16;

/// What the control API asks the main loop to do.
pub(crate) enum Order {
    /// Reload the configuration, and answer with the generation or with every error.
    Reload(oneshot::Sender<Result<u64, String>>),
    /// Change the vips, and answer with the generation or with the reason why not.
    ChangeVips(VipChange, oneshot::Sender<Result<u64, Refused>>),
}

/// State that the main loop writes and the control API reads. The main thread does both, except that large responses are made on other threads: who holds
/// the lock of `state` must not wait for that of `kernel`, because the main thread takes them in the other order.
pub(crate) struct Control {
    registry: Arc<Registry>,
    workers: usize,
    traces: Numbers,
    started_ms: u64,
    orders: mpsc::Sender<Order>,
    /// The last number given to a snapshot, whether it was used or refused.
    generation: AtomicU64,
    reloads_good: AtomicU64,
    reloads_refused: AtomicU64,
    /// The process has been asked to end and does not drain yet.
    ending: AtomicBool,
    draining: AtomicBool,
    /// The source has not delivered anything yet.
    waiting: AtomicBool,
    /// Requests to the admin address that were refused, in the order of [`admin::RefusedFor::ALL`].
    admin_refused: [AtomicU64; admin::RefusedFor::ALL.len()],
    /// Connections to the admin address that ended for another, in the order of [`admin::MadeWayFor::ALL`].
    admin_made_way: [AtomicU64; admin::MadeWayFor::ALL.len()],
    /// The workers that stand still.
    stalled: Arc<Stalled>,
    /// Those who look at the stream of events.
    feed: admin::Feed,
    /// The counters are being written for them.
    counting: AtomicBool,
    /// Where the configuration comes from.
    source: String,
    /// Where all processes that serve the same tell their figures.
    replicas: Option<Replicas>,
    state: Mutex<State>,
    kernel: Mutex<KernelPlane>,
}

struct State {
    history: admin::History,
    worker_times: about::WorkerTimes,
    certificates: Vec<admin::CertificateStatus>,
    changes: Option<admin::ChangesStatus>,
    /// The routes whose requests are logged, and until when.
    debugged: BTreeMap<String, u64>,
    access: admin::Access,
    compiled: Option<Arc<Compiled>>,
    /// The sources of the keys that verify tokens.
    key_sources: Vec<Arc<KeySource>>,
    checker: health::Checker,
    last_reload: Option<Reload>,
    access_log: Option<Arc<AccessLog>>,
    admin: Option<Server>,
    metrics: Option<Server>,
    /// The outcomes of the last minute.
    recent: Recent,
    /// The files from which the snapshot in use was read.
    files: Vec<PathBuf>,
    /// The certificates that are shown, each with its user.
    own_certificates: Vec<(String, OwnCertificate)>,
    /// See the field of the status.
    service_faults: Vec<admin::ServiceFaultStatus>,
    /// See the fields of the status.
    refused_objects: (Vec<admin::RefusedObjectStatus>, usize),
    /// See the field of the status.
    kernel_refusal: Option<String>,
}

/// A listening server of the control API or of the metrics.
struct Server {
    address: AdminAddress,
    listener: Arc<admin::Listener>,
    task: JoinHandle<()>,
    /// The file of a Unix socket, which is removed when this is dropped.
    file: Option<SocketFile>,
}

/// Where a snapshot wants pages to be served.
pub(crate) enum Listen {
    /// The address does not change.
    Unchanged,
    /// The pages are not served.
    Nowhere,
    /// The pages are served here from now on. The file belongs to a Unix socket that this process has opened; it is
    /// removed if the snapshot is not put to use.
    Here(AdminAddress, admin::Listener, Option<SocketFile>),
}

impl Control {
    pub(crate) fn new(
        registry: Arc<Registry>,
        workers: usize,
        traces: Numbers,
        orders: mpsc::Sender<Order>,
        source: String,
        replicas: Option<Replicas>,
    ) -> Self {
        let seed = u64::from(std::process::id()) ^ clock::now_us();
        Self {
            registry,
            workers,
            traces,
            started_ms: clock::now_ms(),
            orders,
            generation: AtomicU64::new(1),
            reloads_good: AtomicU64::new(0),
            reloads_refused: AtomicU64::new(0),
            ending: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            admin_refused: Default::default(),
            admin_made_way: Default::default(),
            stalled: Arc::default(),
            feed: admin::Feed::default(),
            counting: AtomicBool::new(false),
            source,
            replicas,
            state: Mutex::new(State {
                history: admin::History::default(),
                worker_times: about::WorkerTimes::default(),
                certificates: Vec::new(),
                changes: None,
                debugged: BTreeMap::new(),
                access: admin::Access::default(),
                compiled: None,
                key_sources: Vec::new(),
                checker: health::Checker::new(clock::now_ms, seed),
                last_reload: None,
                access_log: None,
                admin: None,
                metrics: None,
                recent: Recent::default(),
                files: Vec::new(),
                own_certificates: Vec::new(),
                service_faults: Vec::new(),
                refused_objects: (Vec::new(), 0),
                kernel_refusal: None,
            }),
            kernel: Mutex::new(KernelPlane::new()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel plane. The caller must not call this again while it holds the guard.
    pub(crate) fn kernel(&self) -> MutexGuard<'_, KernelPlane> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes after each probe. The kernel plane may then need new states of its endpoints.
    pub(crate) fn probes(&self) -> watch::Receiver<u64> {
        self.state().checker.results()
    }

    /// Sends the kernel plane what the probes have found.
    pub(crate) fn follow_verdicts(&self) {
        self.kernel().follow_verdicts(&|| self.state().checker.unproven());
    }

    /// Announces and withdraws the addresses of vips, after these have changed.
    pub(crate) fn announce(&self) {
        self.kernel().announce(&|| self.state().checker.unproven(), false);
    }

    /// Runs one step of the kernel plane's collection. Returns true if there is more to go over.
    pub(crate) fn collect(&self) -> bool {
        self.kernel().collect(&|| self.state().checker.unproven())
    }

    /// The host's network has changed.
    pub(crate) fn look_again(&self) {
        self.kernel().look_again(&|| self.state().checker.unproven());
    }

    pub(crate) fn compiled(&self) -> Option<Arc<Compiled>> {
        self.state().compiled.clone()
    }

    pub(crate) fn next_generation(&self) -> Generation {
        Generation(self.generation.fetch_add(1, Relaxed) + 1)
    }

    /// Starts probing the endpoints of `compiled` and `vips`, which are about to be used.
    pub(crate) fn check_health(&self, compiled: &Compiled, vips: &[Arc<VipPlan>]) {
        let of_vips = vips.iter().flat_map(|plan| plan.targets());
        let targets = compiled.clusters.iter().flat_map(targets).chain(of_vips).collect();
        self.state().checker.apply(targets);
    }

    pub(crate) fn adopt(&self, compiled: Arc<Compiled>, files: &NamedFiles) {
        let mut state = self.state();
        state.compiled = Some(compiled);
        state.key_sources = files.key_sources().map(|(source, _)| source.clone()).collect();
        state.own_certificates = files.certificates().map(|(user, certificate)| (user, certificate.clone())).collect();
    }

    /// The process is not ready as long as the source has not said what to serve.
    pub(crate) fn wait_for_source(&self, waits: bool) {
        self.waiting.store(waits, Relaxed);
    }

    /// Sets the Services that the status reports from now on.
    #[cfg(feature = "controller")]
    pub(crate) fn set_service_faults(&self, faults: Vec<admin::ServiceFaultStatus>) {
        self.state().service_faults = faults;
    }

    /// Sets the objects of the cluster that are not served as they say, and how many more there are.
    #[cfg(feature = "controller")]
    pub(crate) fn set_refused_objects(&self, refused: Vec<admin::RefusedObjectStatus>, more: usize) {
        self.state().refused_objects = (refused, more);
    }

    /// Sets why the kernel plane does not serve what the cluster wants; `None` if it does.
    #[cfg(feature = "controller")]
    pub(crate) fn set_kernel_refusal(&self, why: Option<String>) {
        self.state().kernel_refusal = why;
    }

    /// Samples the counters, and tells those who look. The caller calls this about once a second.
    pub(crate) fn sample(self: &Arc<Self>) {
        let now_ms = clock::now_ms();
        let overall = self.registry.overall();
        {
            let mut state = self.state();
            state.recent.sample(&self.registry, now_ms);
            state.history.record(now_ms, unix_seconds(), overall);
            state.worker_times.look(now_ms);
        }
        self.feed.review_certificates(&admin::Control::access(&**self));
        self.tell_viewers();
        self.tell_counters();
    }

    /// Sends the counters to those who look at them. With thousands of routes they take a moment, which this thread does not have.
    fn tell_counters(self: &Arc<Self>) {
        if !self.feed.wanted().counters || self.counting.swap(true, Relaxed) {
            return;
        }
        let control = self.clone();
        let work = move || {
            control.feed.send("counters", &admin::Control::counters(&*control), |wanted| wanted.counters);
            control.counting.store(false, Relaxed);
        };
        // Without a thread, viewers wait for the next second.
        if std::thread::Builder::new().name("counters".to_owned()).spawn(work).is_err() {
            self.counting.store(false, Relaxed);
        }
    }

    /// Sends one event of each kind that somebody looks at, and the requests since the last call.
    fn tell_viewers(&self) {
        let wanted = self.feed.wanted();
        let routes = self.debugged_routes();
        self.registry.tail().want(wanted.requests, wanted.all_requests, routes.clone());
        if wanted.overview {
            let state = self.state();
            if let Some(point) = state.history.latest() {
                let overview = admin::Overview {
                    pid: std::process::id(),
                    uptime_seconds: clock::now_ms().saturating_sub(self.started_ms) / 1000,
                    generation: state.compiled.as_ref().map_or(0, |compiled| compiled.snapshot.generation.0),
                    verdict: &state.history.verdict(),
                    point,
                };
                self.feed.send("second", &overview, |wanted| wanted.overview);
            }
        }
        if wanted.requests || !routes.is_empty() {
            let (seen, passed_over) = self.registry.tail().take();
            for seen in &seen {
                if routes.contains(&seen.route) {
                    log_request(&admin::RequestSeen::from(seen));
                }
                let matters = seen.matters();
                let is_for = |wanted: &admin::Wanted| wanted.all_requests || wanted.requests && matters;
                self.feed.send("request", &admin::RequestSeen::from(seen), is_for);
            }
            if passed_over > 0 {
                self.feed.send("passed_over", &passed_over, |wanted| wanted.requests);
            }
        }
    }

    /// The routes whose requests are logged now. Those whose time is over are forgotten.
    fn debugged_routes(&self) -> Vec<String> {
        let now_ms = clock::now_ms();
        let mut state = self.state();
        state.debugged.retain(|route, until_ms| {
            let goes_on = *until_ms > now_ms;
            if !goes_on {
                tracing::info!(route, "requests of the route are no longer logged");
            }
            goes_on
        });
        state.debugged.keys().cloned().collect()
    }

    /// Logs the requests of a route for a time, or no longer.
    fn debug_route(&self, route: &str, seconds: u64) -> Result<(), String> {
        let compiled = self.compiled().ok_or("not ready")?;
        let mut state = self.state();
        if seconds == 0 {
            return state
                .debugged
                .remove(route)
                .map(drop)
                .ok_or_else(|| format!("the requests of {route} are not logged"));
        }
        if !compiled.listeners.iter().any(|plan| plan.routes().iter().any(|known| known.name == route)) {
            return Err(format!("no such route: {route}"));
        }
        if state.debugged.len() >= DEBUGGED_MAX && !state.debugged.contains_key(route) {
            return Err(format!("the requests of {DEBUGGED_MAX} routes are logged already"));
        }
        state.debugged.insert(route.to_owned(), clock::now_ms() + seconds * 1000);
        drop(state);
        // From now on, and not from the next second on.
        self.tell_viewers();
        Ok(())
    }

    /// Sets what the page tells about certificates, and about what the configuration has changed.
    pub(crate) fn set_certificates(&self, certificates: Vec<admin::CertificateStatus>) {
        self.state().certificates = certificates;
    }

    /// Sets what the last change of the configuration has changed. An older one is not taken.
    pub(crate) fn set_changes(&self, changes: admin::ChangesStatus) {
        let mut state = self.state();
        if state.changes.as_ref().is_none_or(|known| known.generation < changes.generation) {
            state.changes = Some(changes);
        }
    }

    /// Sets the files whose absence the status reports from now on.
    pub(crate) fn set_files(&self, files: Vec<PathBuf>) {
        self.state().files = files;
    }

    pub(crate) fn set_access_log(&self, log: Option<Arc<AccessLog>>) {
        self.state().access_log = log;
    }

    /// The workers that stand still.
    pub(crate) fn stalled(&self) -> Arc<Stalled> {
        self.stalled.clone()
    }

    /// Sets who may use the admin address from now on. The streams of those who no longer may end, and no others: a new certificate of the server
    /// matters to new connections alone.
    pub(crate) fn set_access(&self, access: admin::Access) {
        self.state().access = access.clone();
        self.feed.review(&access);
    }

    /// Records the outcome of a reload. Those who see it may not see the file.
    pub(crate) fn note_reload(&self, errors: Option<String>) {
        let ok = errors.is_none();
        let counter = if ok { &self.reloads_good } else { &self.reloads_refused };
        counter.fetch_add(1, Relaxed);
        let errors = errors.iter().flat_map(|errors| config::without_excerpts(errors)).map(str::to_owned).collect();
        self.state().last_reload = Some(Reload { unix_seconds: unix_seconds(), ok, errors });
    }

    /// Opens the socket that a snapshot wants for these pages.
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub(crate) fn listen(
        &self,
        pages: Pages,
        wanted: Option<AdminAddress>,
        inherited: &mut Inherited,
    ) -> Result<Listen, String> {
        let Some(address) = wanted else { return Ok(Listen::Nowhere) };
        if self.state().server(pages).as_ref().is_some_and(|server| server.address == address) {
            return Ok(Listen::Unchanged);
        }
        let key = match pages {
            Pages::All => "admin",
            Pages::ForAnyone => "metrics",
        };
        match &address {
            AdminAddress::Socket(socket) => {
                let handed = inherited.take(*socket).pop();
                let listener = handed.map_or_else(|| bind_alone(*socket), Ok);
                let listener =
                    listener.map_err(|error| format!("{key}: {}", net::socket::cannot_listen(*socket, &error)))?;
                Ok(Listen::Here(address, admin::Listener::Tcp(listener), None))
            }
            AdminAddress::Path(path) => {
                // The file of an inherited socket belongs to the old process until this one serves.
                if let Some(listener) = inherited.take_path(path) {
                    return Ok(Listen::Here(address, admin::Listener::Unix(listener), None));
                }
                let opened = net::unix::listen(path).and_then(|listener| Ok((listener, SocketFile::at(path)?)));
                let (listener, file) = opened
                    .map_err(|error| format!("{key}: cannot listen on {address}: {}", files::cannot_make(&error)))?;
                Ok(Listen::Here(address, admin::Listener::Unix(listener), Some(file)))
            }
        }
    }

    /// Serves these pages where the new snapshot wants them.
    pub(crate) fn serve(self: &Arc<Self>, pages: Pages, listen: Listen) {
        let server = match listen {
            Listen::Unchanged => return,
            Listen::Nowhere => None,
            Listen::Here(address, listener, file) => self.start(pages, address, listener, file),
        };
        if let Some(old) = std::mem::replace(self.state().server(pages), server) {
            old.task.abort();
            if pages == Pages::All {
                self.feed.end();
            }
        }
    }

    fn start(
        self: &Arc<Self>,
        pages: Pages,
        address: AdminAddress,
        listener: admin::Listener,
        file: Option<SocketFile>,
    ) -> Option<Server> {
        let shared = listener.try_clone();
        let shared = shared.inspect_err(|error| tracing::error!(%address, %error, "no control API")).ok()?;
        let file = match &address {
            AdminAddress::Path(path) => file.or_else(|| SocketFile::at(path).ok()),
            AdminAddress::Socket(_) => None,
        };
        let (control, at) = (self.clone(), address.clone());
        let task = tokio::spawn(async move {
            if let Err(error) = admin::serve(shared, control, pages).await {
                tracing::error!(address = %at, %error, "no control API");
            }
        });
        Some(Server { address, listener: Arc::new(listener), task, file })
    }

    /// The sockets of the control API and the metrics, for a process that takes over.
    pub(crate) fn listeners(&self) -> Vec<Arc<admin::Listener>> {
        let state = self.state();
        state.admin.iter().chain(&state.metrics).map(|server| server.listener.clone()).collect()
    }

    /// Makes the process not ready. It still accepts connections.
    pub(crate) fn begin_ending(&self) {
        self.ending.store(true, Relaxed);
    }

    /// Makes the process not ready and accepts no new connections. A successor answers for itself: our control API
    /// closes, so that nobody asks the wrong process.
    pub(crate) fn begin_drain(&self, handed_over: bool) {
        self.draining.store(true, Relaxed);
        if handed_over {
            self.feed.end();
        }
        if !handed_over {
            return;
        }
        let mut state = self.state();
        for server in [state.admin.take(), state.metrics.take()].into_iter().flatten() {
            server.task.abort();
            // The file belongs to the successor.
            server.file.into_iter().for_each(SocketFile::leave);
        }
    }

    /// Stops answering, and removes the file of a Unix socket.
    pub(crate) fn close(&self) {
        self.feed.end();
        let mut state = self.state();
        for server in [state.admin.take(), state.metrics.take()].into_iter().flatten() {
            server.task.abort();
        }
    }
}

impl State {
    /// The server of these pages.
    fn server(&mut self, pages: Pages) -> &mut Option<Server> {
        match pages {
            Pages::All => &mut self.admin,
            Pages::ForAnyone => &mut self.metrics,
        }
    }
}

/// Writes what is known of a request to the log.
fn log_request(seen: &admin::RequestSeen) {
    let admin::RequestSeen { route, method, host, path, status, reason, endpoint, attempts, client, .. } = seen;
    let admin::RequestSeen { grpc_status, total_us, added_us, upstream_us, request_id, .. } = seen;
    tracing::info!(
        route,
        method,
        host,
        path,
        status,
        grpc_status,
        reason,
        endpoint,
        attempts,
        total_us,
        added_us,
        upstream_us,
        client,
        request_id,
        "request of a route that is looked at"
    );
}

/// Binds a socket that a second Steelyard cannot share by accident: with SO_REUSEPORT, both would answer in turns.
fn bind_alone(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn targets(plan: &Arc<ClusterPlan>) -> Vec<health::ProbeTarget> {
    let Some(check) = &plan.policy.health_check else { return Vec::new() };
    let tls = plan.tls().map(|keys| Arc::new(Probing(keys.clone())) as Arc<dyn Handshake>);
    let target = |(index, endpoint): (usize, &Arc<balance::EndpointState>)| health::ProbeTarget {
        cluster: plan.state.clone(),
        index,
        cluster_name: plan.policy.name.clone(),
        address: endpoint.address(),
        check: check.clone(),
        transport: ProbeTransport {
            proxy_protocol: plan.policy.send_proxy_protocol,
            protocol: plan.policy.protocol,
            tls: tls.clone(),
            host: plan.host(endpoint.address()).map(str::to_owned),
        },
    };
    plan.state.endpoints().iter().enumerate().map(target).collect()
}

/// Probes use the same TLS as requests.
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
