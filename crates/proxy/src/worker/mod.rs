//! A worker of the proxy plane: its view of the snapshot, its connections, and its commands.

mod apply;
pub(crate) mod connection_balance;
mod extra;
pub(crate) mod heartbeat;
mod log;
pub(crate) mod plane;
pub(crate) mod snapshot;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use model::Tracing;
use net::clock;
use net::timer::{Timer, Timers};
use telemetry::{
    BodyCounters, CompressionCounters, ListenerCounters, Logger, Reason, Registry, RouteCounters, TraceSender,
};
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, oneshot};

use crate::auth::jwt::remembered::Tokens;
use crate::compression::{Compressions, turn};
use crate::downstream::listener::{self, ActiveListener};
use crate::exchange::Storage;
use crate::external_auth::cache::Remembered;
use crate::grpc::{self, Methods, Source};
use crate::policy::TrafficSplit;
use crate::policy::mirror::InFlight;
use crate::request_body::Bodies;
use crate::upstream::cluster::Cluster;
use crate::worker::connection_balance::{AcceptedConnection, Workers};
use crate::worker::heartbeat::Heartbeats;
use crate::worker::snapshot::{Compiled, ListenerPlan};

/// Time between two checks of idle upstream connections and of the access log.
const HOUSEKEEPING: Duration = Duration::from_millis(100);

/// How long connections may take to end after the drain timeout.
const CUT_MS: u64 = 500;

/// A command from the control thread.
pub(crate) enum Command {
    /// Use this snapshot and listen on these additional sockets. The answer confirms it.
    Apply { compiled: Arc<Compiled>, sockets: Vec<(String, std::net::TcpListener)>, done: oneshot::Sender<()> },
    /// Serve a connection that another worker has accepted and handed over.
    Adopt(AcceptedConnection),
    /// Write the access log here from now on.
    Log(Option<Logger>),
    /// Close the long connections to endpoints that have become unhealthy, where the configuration says so.
    CloseUnhealthy,
    /// Accept no new connections, let the old ones finish until the deadline (in milliseconds), and end.
    Drain { deadline_ms: u64 },
    /// Confirm receipt, and block until the other end of the channel is dropped: this simulates a worker that hangs.
    #[cfg(test)]
    Hang(std::sync::mpsc::SyncSender<()>, std::sync::mpsc::Receiver<()>),
}

/// The state of one worker.
pub(crate) struct Worker {
    pub(crate) index: usize,
    /// All workers, including this one.
    pub(crate) workers: Arc<Workers>,
    pub(crate) timers: Timers,
    registry: Arc<Registry>,
    active_listeners: RefCell<HashMap<String, Rc<ActiveListener>>>,
    clusters: RefCell<Vec<Rc<Cluster>>>,
    pub(crate) storage: Storage,
    pub(crate) mirrors: InFlight,
    pub(crate) compressions: Compressions,
    pub(crate) bodies: Bodies,
    /// Answers of external authorization.
    pub(crate) remembered: Remembered,
    /// Tokens that were right.
    pub(crate) tokens: Tokens,
    logger: RefCell<Option<Logger>>,
    traces: RefCell<Option<TraceSender>>,
    draining: Cell<bool>,
    /// The drain has taken too long, so everything that is left ends now.
    drain_over: Cell<bool>,
    connections: Cell<usize>,
    last_connection_gone: Notify,
}

/// A listener under one snapshot.
pub(crate) struct ListenerView {
    pub(crate) plan: Arc<ListenerPlan>,
    /// Indexed by `ClusterId`.
    pub(crate) clusters: Rc<[Rc<Cluster>]>,
    pub(crate) counters: Arc<ListenerCounters>,
    routes: Rc<RouteViews>,
    /// Which requests are recorded for their traces; `None`: none.
    pub(crate) tracing: Option<Arc<Tracing>>,
}

/// One worker's state for each route of a listener, by the route's number. It is kept as long as the routes stay the same.
struct RouteViews {
    /// Created at the first request: of ten thousand routes, most are never used.
    counters: Vec<OnceCell<Arc<RouteCounters>>>,
    /// Only for routes that match gRPC.
    methods: Vec<Option<Box<Methods>>>,
    /// Only for routes with a split or a mirror.
    splits: Vec<Option<Box<TrafficSplit>>>,
    /// Only for routes with compression: their counters, created with the first response that could be compressed.
    compressions: Vec<Option<Box<OnceCell<Arc<CompressionCounters>>>>>,
    /// The same for routes that collect or decompress the bodies of requests.
    bodies: Vec<Option<Box<OnceCell<Arc<BodyCounters>>>>>,
}

impl ListenerView {
    /// The split and mirrors of the route with this number; `None` if it has neither.
    pub(crate) fn split(&self, route: usize) -> Option<&TrafficSplit> {
        self.routes.splits.get(route)?.as_deref()
    }

    /// Counts a refusal, a failure or a closed connection.
    pub(crate) fn count(&self, reason: Reason) {
        self.counters.reasons.inc(reason);
    }

    pub(crate) fn route_name(&self, route: usize) -> Option<&str> {
        self.plan.routes().get(route).map(|route| route.name.as_str())
    }

    /// The methods that are called over a gRPC route.
    pub(crate) fn methods(&self, route: usize) -> Option<&Methods> {
        self.routes.methods.get(route)?.as_deref()
    }

    /// Counts a call that has ended.
    pub(crate) fn count_call(
        &self,
        worker: &Worker,
        route: usize,
        method: Option<&grpc::Method>,
        status: grpc::Status,
        by_endpoint: bool,
        took_us: u64,
    ) {
        if let (Some(methods), Some(method)) = (self.methods(route), method) {
            let source = Source { registry: &worker.registry, worker: worker.index, listener: &self.plan.policy.name };
            methods.count(&source, method, status, by_endpoint, took_us);
        }
    }

    /// The counters of the compression of a route; `None` if it has none.
    pub(crate) fn compression_counters(
        &self,
        registry: &Registry,
        worker: usize,
        route: usize,
    ) -> Option<&Arc<CompressionCounters>> {
        let cell = self.routes.compressions.get(route)?.as_deref()?;
        let name = self.route_name(route)?;
        Some(cell.get_or_init(|| registry.compression(worker, &self.plan.policy.name, name)))
    }

    /// The counters of the bodies of a route's requests; `None` if they are passed on as they arrive.
    pub(crate) fn body_counters(&self, registry: &Registry, worker: usize, route: usize) -> Option<&Arc<BodyCounters>> {
        let cell = self.routes.bodies.get(route)?.as_deref()?;
        let name = self.route_name(route)?;
        Some(cell.get_or_init(|| registry.bodies(worker, &self.plan.policy.name, name)))
    }

    pub(crate) fn route_counters(&self, worker: &Worker, route: usize, name: &str) -> Option<&Arc<RouteCounters>> {
        let make = || worker.registry.route(worker.index, &self.plan.policy.name, name);
        self.routes.counters.get(route).map(|cell| cell.get_or_init(make))
    }
}

/// Counts a downstream connection until it is dropped, for the end of a drain and for the balance of connections between workers.
pub(crate) struct ConnectionGuard {
    worker: Rc<Worker>,
    /// It counts in [`Workers`].
    is_shared: Cell<bool>,
}

impl ConnectionGuard {
    /// Call this when the client has ended its side: the connection no longer counts in the balance between workers. A client that opens
    /// one connection after the other begins the next while this one is still being closed at the endpoint.
    pub(crate) fn ends(&self) {
        if self.is_shared.replace(false) {
            self.worker.workers.closed(self.worker.index);
        }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.ends();
        let left = self.worker.connections.get().saturating_sub(1);
        self.worker.connections.set(left);
        if left == 0 {
            self.worker.last_connection_gone.notify_one();
        }
    }
}

impl Worker {
    pub(crate) fn new(index: usize, workers: Arc<Workers>, registry: Arc<Registry>) -> Self {
        Self {
            index,
            workers,
            timers: Timers::default(),
            compressions: Compressions::new(registry.clone(), index),
            bodies: Bodies::new(registry.clone(), index),
            registry,
            active_listeners: RefCell::default(),
            clusters: RefCell::default(),
            storage: Storage::default(),
            mirrors: InFlight::default(),
            remembered: Remembered::default(),
            tokens: Tokens::default(),
            logger: RefCell::default(),
            traces: RefCell::default(),
            draining: Cell::new(false),
            drain_over: Cell::new(false),
            connections: Cell::new(0),
            last_connection_gone: Notify::new(),
        }
    }

    /// Counts a connection of this worker that already counts in [`Workers`].
    pub(crate) fn connection(self: &Rc<Self>) -> ConnectionGuard {
        self.connections.set(self.connections.get() + 1);
        ConnectionGuard { worker: self.clone(), is_shared: Cell::new(true) }
    }

    /// The listener with this name in the newest snapshot.
    pub(crate) fn listener(&self, name: &str) -> Option<Rc<ActiveListener>> {
        self.active_listeners.borrow().get(name).cloned()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    pub(crate) fn is_drain_over(&self) -> bool {
        self.drain_over.get()
    }

    pub(crate) fn logs_requests(&self) -> bool {
        self.logger.borrow().is_some()
    }

    pub(crate) fn with_logger(&self, write: impl FnOnce(&mut Logger)) {
        if let Some(logger) = self.logger.borrow_mut().as_mut() {
            write(logger);
        }
    }

    pub(crate) fn with_traces(&self, write: impl FnOnce(&mut TraceSender)) {
        if let Some(traces) = self.traces.borrow_mut().as_mut() {
            write(traces);
        }
    }

    fn listen(self: &Rc<Self>, sockets: Vec<(String, std::net::TcpListener)>) {
        for (name, socket) in sockets {
            let Some(active) = self.active_listeners.borrow().get(&name).cloned() else { continue };
            match TcpListener::from_std(socket) {
                Ok(socket) => drop(tokio::task::spawn_local(listener::accept(self.clone(), active, socket))),
                Err(error) => tracing::error!(listener = name, %error, "cannot listen"),
            }
        }
    }

    fn adopt(self: &Rc<Self>, accepted: AcceptedConnection) {
        let active = self.listener(&accepted.listener);
        match active.ok_or_else(|| std::io::ErrorKind::NotFound.into()).and_then(|active| {
            let stream = listener::own(accepted.stream)?;
            Ok::<_, std::io::Error>((active, stream))
        }) {
            Ok((active, stream)) => listener::begin(self, &active, stream, accepted.address),
            Err(error) => {
                // The listener was just removed from the configuration, or there are no descriptors.
                self.workers.closed(self.index);
                tracing::debug!(listener = accepted.listener, %error, "dropping a connection that another worker handed over");
            }
        }
    }

    fn close_all(&self) {
        for active in self.active_listeners.borrow().values() {
            active.close();
        }
    }

    async fn keep_house(&self, heartbeats: &Heartbeats) {
        loop {
            tokio::time::sleep(HOUSEKEEPING).await;
            heartbeats.beat(self.index);
            let now_ms = clock::now_ms();
            for cluster in self.clusters.borrow().iter() {
                for endpoint in &cluster.endpoints {
                    endpoint.pool.sweep(now_ms);
                }
            }
            self.with_logger(Logger::flush);
            self.with_traces(TraceSender::flush);
            self.storage.trim();
            net::buffer::trim();
            net::memory::look();
        }
    }

    async fn drained(&self, deadline_ms: u64) {
        let timer = Timer::new(&self.timers);
        timer.set(deadline_ms);
        while self.connections.get() > 0 {
            if timer.guard(self.last_connection_gone.notified()).await.is_err() {
                tracing::warn!(
                    worker = self.index,
                    left = self.connections.get(),
                    "the drain timeout has passed: closing the remaining connections"
                );
                return self.cut_all(&timer).await;
            }
        }
    }

    /// Ends every connection as a failure, so that incomplete work is reset, counted and logged.
    async fn cut_all(&self, timer: &Timer) {
        self.drain_over.set(true);
        self.timers.elapse_all();
        timer.set(clock::now_ms() + CUT_MS);
        while self.connections.get() > 0 {
            if timer.guard(self.last_connection_gone.notified()).await.is_err() {
                return;
            }
        }
    }
}

/// Runs a worker until it has drained.
pub(crate) async fn run(
    index: usize,
    workers: Arc<Workers>,
    registry: Arc<Registry>,
    heartbeats: Heartbeats,
    traces: TraceSender,
    mut commands: UnboundedReceiver<Command>,
) {
    // Before the first random number of a process, aws-lc collects the jitter of the CPU, which took 75 ms here. No request may wait for it.
    let _ = aws_lc_rs::rand::fill(&mut [0; 1]);
    let worker = Rc::new(Worker::new(index, workers, registry));
    *worker.traces.borrow_mut() = Some(traces);
    let timers = worker.timers.clone();
    tokio::task::spawn_local(async move { timers.drive().await });
    tokio::task::spawn_local(turn::drive());
    let (housekeeper, beating) = (worker.clone(), heartbeats.clone());
    tokio::task::spawn_local(async move { housekeeper.keep_house(&beating).await });

    while let Some(command) = commands.recv().await {
        match command {
            Command::Apply { compiled, sockets, done } => {
                worker.apply(&compiled);
                worker.listen(sockets);
                // The sender may no longer wait for the answer. The command is carried out in any case.
                let _ = done.send(());
            }
            Command::Adopt(accepted) => worker.adopt(accepted),
            Command::CloseUnhealthy => worker.clusters.borrow().iter().for_each(|cluster| cluster.close_unhealthy()),
            Command::Log(logger) => {
                worker.with_logger(Logger::flush);
                *worker.logger.borrow_mut() = logger;
            }
            #[cfg(test)]
            Command::Hang(begun, until) => {
                let _ = begun.send(());
                let _ = until.recv();
            }
            Command::Drain { deadline_ms } => {
                worker.draining.set(true);
                // Connections that other workers hand over from now on are returned to them. Those already handed over are served here.
                commands.close();
                while let Ok(command) = commands.try_recv() {
                    if let Command::Adopt(accepted) = command {
                        worker.adopt(accepted);
                    }
                }
                worker.close_all();
                worker.timers.interrupt();
                // Let the accept loops empty the kernel's queues before connections are counted.
                tokio::task::yield_now().await;
                worker.drained(deadline_ms).await;
                worker.with_logger(Logger::flush);
                worker.with_traces(TraceSender::flush);
                heartbeats.end(worker.index);
                return;
            }
        }
    }
}

/// The address of each listener in the snapshot that has sockets.
pub(crate) fn binds(compiled: &Compiled) -> impl Iterator<Item = (&str, SocketAddr)> {
    compiled
        .listeners
        .iter()
        .filter(|plan| plan.policy.captured.is_none())
        .map(|plan| (plan.policy.name.as_str(), plan.policy.bind))
}
