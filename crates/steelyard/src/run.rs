//! `serve`, `proxy` and `controller`: the loop between the sources and the planes.
//!
//! Every event (a signal, a changed file, a request to the control API, a name with new addresses, a dead endpoint of a
//! vip) comes to this one loop on the main thread, one at a time. A new snapshot is compiled, the kernel plane judges
//! it, and its sockets are opened. Only then does anything change.

mod orders;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use admin::Pages;
use model::{AdminAddress, Generation, LogTarget, Snapshot};
use net::clock;
use net::inherit::Inherited;
use proxy::{Compiled, ListenerPlan, NamedFiles, Plane};
use telemetry::{AccessLog, Registry, TraceQueue};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Interval, MissedTickBehavior};

use crate::cli::{ADMIN_DEFAULT, ProxyArgs, RunArgs, ServeArgs};
use crate::cluster::{self, Handle, Update};
use crate::control::replicas::{Name, Replicas};
use crate::control::{Control, Listen, Order, about, operators};
use crate::exit::{Exit, Refused};
use crate::files::{self, Watch};
use crate::handover;
use crate::jwks::Fetchers;
use crate::kernel::{self, COLLECT_EVERY, COLLECT_ON};
use crate::limits::OpenFiles;
use crate::manager::Told;
use crate::network::{Heard, Network};
use crate::otlp::Exporter;
use crate::overlay::Overlay;
use crate::resolve::{self, Addresses, Resolver};
use crate::signals::{Ending, Signals};
use crate::stalls::Stalls;
use crate::vips::{self, VipPlan};

/// The maximum number of orders that wait for the loop. Beyond it, the control API answers "busy".
const ORDERS_MAX: usize = 16;

/// The interval at which changes of a cluster are compared, for the page.
const COMPARE_EVERY: Duration = Duration::from_secs(10);
/// With more routes, changes are not told: the texts that are compared took some 30 KiB for each route, so that reloads of 10,000 routes doubled the
/// memory of the process.
const COMPARED_ROUTES_MAX: usize = 2_000;

/// The interval at which the loop gives back memory that a burst has left unused, and samples the counters.
const TIDY_EVERY: Duration = Duration::from_secs(1);

/// The source of the snapshots.
pub(crate) enum Source {
    /// A configuration file.
    File(PathBuf),
    /// The command line, which never changes. The flag says whether it includes an address of the control API;
    /// otherwise the default is used.
    Fixed(Box<Snapshot>, bool),
    /// A Kubernetes cluster, which sends updates by itself. The snapshot is what is served before the first update.
    Cluster(Box<Snapshot>),
}

impl Source {
    fn read(&self, generation: Generation) -> Result<config::File, String> {
        match self {
            Self::File(path) => files::load(path, generation),
            Self::Fixed(snapshot, _) | Self::Cluster(snapshot) => {
                Ok(Snapshot { generation, ..(**snapshot).clone() }.into())
            }
        }
    }

    /// Where the snapshots come from, for people.
    fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Fixed(..) => "the command line".to_owned(),
            Self::Cluster(_) => "the Kubernetes cluster".to_owned(),
        }
    }

    fn file(&self) -> Option<PathBuf> {
        match self {
            Self::File(path) => Some(path.clone()),
            Self::Fixed(..) | Self::Cluster(_) => None,
        }
    }

    /// The control API is optional if the command line did not ask for it: another process may have its address, and
    /// this one still serves.
    fn can_do_without_admin(&self) -> bool {
        matches!(self, Self::Fixed(_, false))
    }
}

/// Runs `steelyard serve`.
pub(crate) fn serve(args: ServeArgs) -> Exit {
    log_and_run(Source::File(args.file.config), &args.run)
}

/// Runs `steelyard proxy`.
pub(crate) fn proxy(args: ProxyArgs) -> Exit {
    let mut snapshot = config::proxy_snapshot(args.listen, &args.to, args.tcp);
    let is_wanted = args.admin.is_some();
    snapshot.admin = Some(args.admin.unwrap_or(ADMIN_DEFAULT));
    log_and_run(Source::Fixed(Box::new(snapshot), is_wanted), &args.run)
}

fn log_and_run(source: Source, args: &RunArgs) -> Exit {
    match log_to_stderr_or_say(&args.log) {
        Ok(()) => run(source, None, args),
        Err(exit) => exit,
    }
}

/// Starts logging.
///
/// # Errors
/// The filter is invalid, and the reason has been printed.
pub(crate) fn log_to_stderr_or_say(filter: &str) -> Result<(), Exit> {
    crate::logging::begin(filter).map_err(|error| {
        eprintln!("steelyard: --log {filter}: {error}");
        Exit::BadConfig
    })
}

/// Runs with the snapshots of a source until the process is asked to end.
pub(crate) fn run(source: Source, cluster: Option<Handle>, args: &RunArgs) -> Exit {
    // This comes first: nothing else may own the descriptors that were passed to us.
    let inherited = handover::inherited();
    // The file is checked before anything is opened.
    let file = match source.read(Generation(1)).and_then(files::with_good_files) {
        Ok(file) => file,
        Err(errors) => {
            eprintln!("{}", errors.trim_end());
            return Exit::BadConfig;
        }
    };
    if let Some(why) = crate::sidecar::runs_as_another_user(&file.snapshot) {
        eprintln!("steelyard: {why}");
        return Exit::BadConfig;
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return crate::fail(&format!("cannot start: {error}")),
    };
    let workers = args.workers.map_or_else(net::worker::available_cpus, usize::from);
    runtime.block_on(async {
        let replicas = args.replicas.clone();
        let mut running = match Running::new(source, cluster, file.snapshot.clone(), workers, replicas, inherited) {
            Ok(running) => running,
            Err(error) => return cannot(error.into()),
        };
        match running.begin(file).await {
            Ok(()) => {}
            Err(_) if running.ending.told => return Exit::Good,
            Err(refused) => return cannot(refused),
        }
        let handed_over = running.until_told_to_end().await;
        running.end(handed_over).await
    })
}

fn cannot(refused: Refused) -> Exit {
    eprintln!("steelyard: {}", refused.why);
    refused.exit
}

/// Everything that runs.
pub(crate) struct Running {
    pub(crate) source: Source,
    /// The cluster, if it is the source.
    pub(crate) cluster: Option<Handle>,
    /// The newest snapshot as the source gave it, with names.
    pub(crate) wanted: Snapshot,
    /// The files that it names.
    pub(crate) files: Arc<NamedFiles>,
    /// What commands have added to it.
    pub(crate) overlay: Overlay,
    /// A command has detached the kernel plane. A reload attaches it again.
    detached: bool,
    /// The kernel plane has refused the wanted vips. It keeps those that it has until the source asks again.
    pub(crate) keep_vips: bool,
    plane: Plane,
    pub(crate) resolver: Resolver,
    fetchers: Fetchers,
    exporter: Exporter,
    access_log: Option<Arc<AccessLog>>,
    pub(crate) control: Arc<Control>,
    orders: mpsc::Receiver<Order>,
    watch: Watch,
    probes: watch::Receiver<u64>,
    collect: Interval,
    network: Network,
    /// The Leases of addresses that this node holds, in a cluster that announces them on links.
    held: Option<watch::Receiver<std::collections::BTreeMap<std::net::IpAddr, bool>>>,
    tidy: Interval,
    stalls: Stalls,
    signals: Signals,
    pub(crate) ending: Ending,
    told: Told,
    /// The task that sends the watchdog messages to the service manager.
    signs: Option<AbortHandle>,
    /// When the process was asked to end, it accepts new connections until this time.
    close_at: Option<tokio::time::Instant>,
    inherited: Inherited,
    open_files: OpenFiles,
    /// When two snapshots were last compared.
    compared: Option<Instant>,
    begun: Instant,
}

/// The events that wake the loop.
enum Event {
    End,
    DelayOver,
    Reload(&'static str),
    ReopenLog,
    HandOver,
    NamesMoved,
    Cluster(Option<Box<Update>>),
    ProbeEnded,
    Collect,
    NetworkChanged,
    Asked,
    LeaseChanged,
    Tidy,
    Order(Order),
}

impl Running {
    fn new(
        source: Source,
        mut cluster: Option<Handle>,
        snapshot: Snapshot,
        workers: usize,
        replicas: Option<String>,
        inherited: Inherited,
    ) -> Result<Self, String> {
        let begun = Instant::now();
        // For the whole process, and for a successor that it may start.
        let open_files = OpenFiles::raise();
        let signals = Signals::new().map_err(|error| format!("cannot listen for signals: {error}"))?;
        let ending = Ending::new().map_err(|error| format!("cannot listen for signals: {error}"))?;
        let registry = Arc::new(Registry::default());
        let traces = TraceQueue::new();
        let plane = Plane::start(workers, registry.clone(), &traces.0)
            .map_err(|error| format!("cannot start workers: {error}"))?;
        let exporter = Exporter::new(traces);
        let (orders_tx, orders) = mpsc::channel(ORDERS_MAX);
        let watch = Watch::new(source.file());
        let numbers = exporter.numbers();
        let found = cluster.as_mut().and_then(Handle::take_replicas);
        let replicas = found.map(Replicas::Found).or_else(|| replicas.map(|name| Replicas::Name(Name::new(name))));
        let control = Arc::new(Control::new(registry.clone(), workers, numbers, orders_tx, source.name(), replicas));
        // The last minute starts here.
        control.sample();
        let mut collect = tokio::time::interval(COLLECT_EVERY);
        collect.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tidy = tokio::time::interval(TIDY_EVERY);
        tidy.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            wanted: snapshot,
            files: Arc::default(),
            overlay: Overlay::default(),
            detached: false,
            keep_vips: false,
            probes: control.probes(),
            collect,
            network: Network::new(),
            held: None,
            tidy,
            stalls: Stalls::new(plane.progress(), registry, control.stalled()),
            control,
            plane,
            resolver: Resolver::idle(),
            fetchers: Fetchers::default(),
            exporter,
            access_log: None,
            orders,
            watch,
            signals,
            ending,
            told: Told::from_environment(),
            signs: None,
            close_at: None,
            inherited,
            source,
            cluster,
            open_files,
            compared: None,
            begun,
        })
    }

    /// Puts the first snapshot to use, and takes over from the process that serves now.
    async fn begin(&mut self, file: config::File) -> Result<(), Refused> {
        if let Some(leases) = self.cluster.as_mut().and_then(Handle::take_leases) {
            self.held = Some(leases.1.clone());
            self.control.kernel().set_leases(leases);
        }
        if self.cluster.is_some() {
            self.begin_with_cluster().await?;
        } else {
            self.adopt(file).await?;
        }
        // A cluster has not said yet whether it wants vips.
        if self.wanted.vips.is_empty() && self.cluster.is_none() {
            kernel::warn_of_leftovers();
        }
        for address in self.inherited.left_over() {
            tracing::warn!(%address, "inherited socket closed: no listener has this address");
        }
        self.inherited = Inherited::default();
        handover::take_over();
        for (asked, bound) in self.plane.addresses() {
            let address = if asked.port() == 0 { bound } else { asked };
            tracing::info!(%address, workers = self.plane.workers(), "listening");
        }
        // A successor is not the main process yet: the old process, which was told to drain, informs the service
        // manager.
        if !handover::has_predecessor() {
            self.told.ready(&self.wanted);
        }
        self.signs = self.told.keep_watchdog(self.plane.progress());
        tracing::debug!(ready_after = ?self.begun.elapsed(), "ready");
        Ok(())
    }

    /// Puts what a source says to use, completely or not at all.
    pub(crate) async fn adopt(&mut self, file: config::File) -> Result<(), Refused> {
        let config::File { snapshot, watch, written } = file;
        let is_first = self.control.compiled().is_none();
        if let Some(why) = crate::sidecar::runs_as_another_user(&snapshot) {
            return Err(Refused::bad(why));
        }
        self.watch.also(files::named(&snapshot));
        let files = files::named_files(&snapshot, &written, Some(&self.files)).map_err(Refused::bad)?;
        let mut resolver = Resolver::start(&snapshot, Some(&self.resolver));
        // Resolving names may take seconds, and a process that has been asked to end does not wait for it. It still
        // follows changes during drain_delay.
        let in_delay = self.close_at.is_some();
        tokio::select! {
            () = resolver.asked(self.wanted.listeners.is_empty()) => {}
            () = self.ending.told(), if !in_delay => return Err("asked to end before all names were resolved".to_owned().into()),
        }
        let addresses = resolver.addresses();
        // The process that serves now has the addresses of its endpoints. This one does not, so it would be no
        // improvement.
        if self.control.compiled().is_none()
            && handover::has_predecessor()
            && let Some(cluster) = resolve::unreachable(&snapshot, &addresses)
        {
            return Err(
                format!("cluster {cluster}: none of its names has an address; the old process continues").into()
            );
        }
        let mut access_log = self.changed_access_log(&snapshot)?;
        let admin = match self.control.listen(Pages::All, snapshot.admin.clone(), &mut self.inherited) {
            Err(error) if self.source.can_do_without_admin() => {
                tracing::warn!(
                    error,
                    "`steelyard status` cannot reach this process: give it another address with --admin"
                );
                Listen::Nowhere
            }
            listen => listen?,
        };
        let metrics =
            self.control.listen(Pages::ForAnyone, snapshot.metrics.map(AdminAddress::from), &mut self.inherited)?;
        // Workers serve as soon as they have their listeners, and the first request is logged, too. Later, it is the old log that has what comes
        // before the new one, and it is kept if the change fails.
        if is_first && let Some(first) = access_log.take() {
            self.log_to(first);
        }
        let (overlay, gone) = self.overlay.beside(&snapshot);
        self.put_to_use(&snapshot, &files, &addresses, &overlay).await?;
        if !is_first && let Some(what) = crate::sidecar::capture_differs(&self.wanted, &snapshot) {
            tracing::warn!(
                what,
                "the kernel captures connections by the old file: run `steelyard sidecar init` with the new one"
            );
        }
        for why in gone {
            tracing::warn!(why, "a vip that a command added was removed: it conflicts with the file");
        }
        self.overlay = overlay;
        self.resolver = resolver;
        self.files = Arc::new(files);

        if let Some(access_log) = access_log {
            self.log_to(access_log);
        }
        self.control.set_access(operators::access(&snapshot, &self.files));
        self.control.set_certificates(about::certificates(&self.files));
        self.control.serve(Pages::All, admin);
        self.control.serve(Pages::ForAnyone, metrics);
        self.control.set_files(self.source.file().into_iter().chain(files::named(&snapshot)).collect());
        self.open_files.warn_if_short(&snapshot);
        self.watch.turn(watch, is_first);
        let before = std::mem::replace(&mut self.wanted, snapshot);
        if !is_first {
            self.compare_with(before);
        }
        Ok(())
    }

    /// The access log that takes the place of the present one, or none; `None` if it stays.
    fn changed_access_log(&self, snapshot: &Snapshot) -> Result<Option<Option<Arc<AccessLog>>>, String> {
        let stays = self.access_log.is_some() && snapshot.access_log == self.wanted.access_log;
        (!stays).then(|| open_access_log(snapshot, &self.exporter)).transpose()
    }

    /// Replaces the access log. `None`: no requests are logged.
    fn log_to(&mut self, access_log: Option<Arc<AccessLog>>) {
        self.plane.log_to(|| access_log.as_deref().map(AccessLog::logger));
        self.control.set_access_log(access_log.clone());
        if let Some(old) = std::mem::replace(&mut self.access_log, access_log) {
            // The drop waits for the last lines of the log, which may take seconds if nothing reads them. This thread
            // must not wait.
            std::thread::spawn(move || drop(old));
        }
    }

    /// Tells the page what the last change has changed.
    fn compare_with(&mut self, before: Snapshot) {
        // In a cluster, changes come one after the other, and to compare each would cost more than to serve it.
        let is_due = self.cluster.is_none() || self.compared.is_none_or(|last| last.elapsed() >= COMPARE_EVERY);
        if self.wanted.admin.is_none() || !is_due {
            return;
        }
        self.compared = Some(Instant::now());
        let routes_of = |listener: &model::Listener| match &listener.protocol {
            model::Protocol::Http(http) => http.routes.len(),
            _ => 0,
        };
        let routes: usize = self.wanted.listeners.iter().map(routes_of).sum();
        if routes > COMPARED_ROUTES_MAX {
            let lines = vec![format!("more than {COMPARED_ROUTES_MAX} routes: they are not compared")];
            return self.control.set_changes(admin::ChangesStatus {
                generation: self.wanted.generation.0,
                lines,
                more: 0,
            });
        }
        let (now, control) = (self.wanted.clone(), self.control.clone());
        // Comparing thousands of routes takes a tenth of a second, which this thread does not have.
        std::thread::spawn(move || control.set_changes(about::changes(&before, &now)));
    }

    /// Gives the planes a snapshot with the addresses of its names, and the vips of the overlay, completely or not at
    /// all.
    pub(crate) async fn put_to_use(
        &mut self,
        snapshot: &Snapshot,
        files: &NamedFiles,
        addresses: &Addresses,
        overlay: &Overlay,
    ) -> Result<(), Refused> {
        let now_ms = clock::now_ms();
        let expanded = Arc::new(resolve::expand(snapshot, addresses));
        let previous = self.control.compiled();
        let compiled = Arc::new(Compiled::new(expanded, files, previous.as_deref(), now_ms));
        let old_vips = self.control.kernel().vips().to_vec();
        let vips = match (self.detached, self.keep_vips) {
            (true, _) => Vec::new(),
            (false, true) => old_vips.clone(),
            (false, false) => vips::plans(overlay.over(snapshot), &old_vips, now_ms),
        };
        // Judged first: if the proxy plane cannot listen, the kernel must not have changed, and vice versa.
        let judged = match self.keep_vips {
            true => Ok(()),
            false => self.control.kernel().judge(&vips, snapshot.flows_max),
        };
        // Before the workers use the snapshot, so that they do not take an endpoint for healthy that is known not to
        // be.
        self.control.check_health(&compiled, &vips);
        // The keys that verify tokens. Where they are late, requests with a token get 503. A cluster has other tenants, who do not wait for
        // the keys of one.
        self.fetchers.follow(files, &snapshot.dns);
        if self.cluster.is_none() || previous.is_none() {
            self.fetchers.tried().await;
        }
        let outcome = match judged {
            Ok(()) => self.apply(compiled.clone(), previous.as_ref(), vips, snapshot).await,
            refused => refused,
        };
        match outcome {
            Ok(()) => {
                previous.iter().for_each(|previous| warn_of_lost_maintenance(previous, &compiled));
                self.exporter.follow(&compiled, files);
                self.control.adopt(compiled, files);
            }
            Err(_) => {
                if let Some(previous) = previous {
                    self.control.check_health(&previous, &old_vips);
                    let (files, dns) = (self.files.clone(), self.wanted.dns.clone());
                    self.fetchers.follow(&files, &dns);
                }
                self.control.kernel().give_up();
            }
        }
        outcome
    }

    async fn apply(
        &mut self,
        compiled: Arc<Compiled>,
        previous: Option<&Arc<Compiled>>,
        vips: Vec<Arc<VipPlan>>,
        snapshot: &Snapshot,
    ) -> Result<(), Refused> {
        if let Err(errors) = self.plane.apply(compiled, &mut self.inherited).await {
            let places = errors.iter().map(|error| (error.address, error.to_string())).collect();
            let why = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
            return Err(Refused { places, ..why.into() });
        }
        if self.keep_vips && !self.detached {
            return Ok(());
        }
        let (cgroup, announcing) = (snapshot.socket_cgroup.as_deref(), snapshot.announcing);
        let outcome = self.control.kernel().put_to_use(vips, cgroup, announcing);
        self.control.announce();
        // The snapshot was judged to be possible and then was not: the kernel ran out of memory, or another program
        // removed something.
        if outcome.is_err()
            && let Some(previous) = previous
            && let Err(errors) = self.plane.apply(previous.clone(), &mut self.inherited).await
        {
            tracing::error!(?errors, "cannot return the proxy plane to the old configuration");
        }
        outcome
    }

    /// Handles events until the process has to end. Returns true if a new process has taken over.
    #[expect(
        clippy::too_many_lines,
        reason = "all events of the process, in the order of their precedence, and what each does"
    )]
    async fn until_told_to_end(&mut self) -> bool {
        loop {
            // A starting successor writes the same tables, and two processes would undo each other's work.
            let serves_vips = self.control.kernel().serves() && handover::successor().is_none();
            let closes_unhealthy = self.wanted.clusters.iter().any(|cluster| cluster.closes_on_unhealthy);
            self.network.listen(serves_vips);
            let on_links = serves_vips && self.control.kernel().answers_on_links();
            self.network.listen_on_links(|| self.control.kernel().link_sockets(), on_links);
            let (signals, close_at) = (&mut self.signals, self.close_at);
            let event = tokio::select! {
                biased;
                () = self.ending.asked(close_at.is_some()) => Event::End,
                () = until(close_at) => Event::DelayOver,
                _ = signals.reload.recv() => Event::Reload("SIGHUP"),
                () = self.watch.changed() => Event::Reload("a file changed"),
                _ = signals.reopen.recv() => Event::ReopenLog,
                _ = signals.hand_over.recv() => Event::HandOver,
                update = cluster::next(&mut self.cluster) => Event::Cluster(update.map(Box::new)),
                Some(order) = self.orders.recv() => Event::Order(order),
                // Behind what the cluster says: each of its updates takes the newest addresses, too.
                () = self.resolver.changed() => Event::NamesMoved,
                _ = self.collect.tick(), if serves_vips => Event::Collect,
                event = self.network.next() => match event {
                    Heard::Changed => Event::NetworkChanged,
                    Heard::Asked => Event::Asked,
                },
                () = changed(&mut self.held), if serves_vips => Event::LeaseChanged,
                _ = self.tidy.tick() => Event::Tidy,
                // This comes last, because there are always such events if many endpoints are probed.
                Ok(()) = self.probes.changed(), if serves_vips || closes_unhealthy => Event::ProbeEnded,
            };
            match event {
                Event::End if handover::successor().is_some() => return true,
                Event::End if self.close_at.is_some() => {
                    tracing::info!("received another signal to end: skipping the rest of drain_delay");
                    return false;
                }
                Event::End if self.wanted.drain_delay.is_zero() => return false,
                Event::End => self.begin_delay(),
                Event::DelayOver => return false,
                Event::Reload(why) => drop(self.reload(why).await),
                Event::ReopenLog => {
                    if let Some(log) = &self.access_log {
                        log.reopen();
                    }
                }
                Event::HandOver if self.close_at.is_some() => {
                    tracing::warn!("this process is about to end: no successor is started");
                }
                Event::HandOver => handover::start(&self.plane, &self.control, self.told.is_heard()),
                Event::NamesMoved => self.follow_names().await,
                // A refused update has been answered, and what serves keeps serving.
                Event::Cluster(Some(update)) => drop(self.follow_cluster(*update).await),
                Event::Cluster(None) => {
                    tracing::error!("the cluster is no longer watched; what is served stays as it is");
                    self.cluster = None;
                }
                Event::ProbeEnded => {
                    if serves_vips {
                        self.control.follow_verdicts();
                    }
                    if closes_unhealthy {
                        self.plane.close_unhealthy();
                    }
                }
                Event::Collect => {
                    if self.control.collect() {
                        self.collect.reset_after(COLLECT_ON);
                    }
                }
                Event::NetworkChanged => {
                    let begun = Instant::now();
                    self.control.look_again();
                    self.network.looked(begun.elapsed());
                }
                Event::Asked => {
                    let begun = Instant::now();
                    self.control.kernel().answer();
                    self.network.answered(begun.elapsed());
                }
                Event::LeaseChanged => self.control.announce(),
                Event::Tidy => {
                    net::memory::give_back_after_bursts();
                    self.control.sample();
                    self.stalls.look();
                }
                Event::Order(order) => self.carry_out(order).await,
            }
        }
    }

    /// Fails readiness, so that others notice that this process ends. It serves as before until they have.
    fn begin_delay(&mut self) {
        let delay = self.wanted.drain_delay;
        self.control.begin_ending();
        // First of all: routers need a moment, and the kernel plane forwards until they have other ways.
        self.control.kernel().withdraw();
        self.told.stopping(delay, self.wanted.drain_timeout);
        tracing::info!(?delay, "asked to end: not ready from now on, and draining when drain_delay is over");
        self.close_at = Some(tokio::time::Instant::now() + delay);
    }

    async fn follow_names(&mut self) {
        let wanted = Snapshot { generation: self.control.next_generation(), ..self.wanted.clone() };
        let addresses = self.resolver.addresses();
        let overlay = self.overlay.clone();
        let files = self.files.clone();
        if let Err(refused) = self.put_to_use(&wanted, &files, &addresses, &overlay).await {
            tracing::error!(error = refused.why, "cannot use the changed addresses");
        }
        self.resolver.applied();
    }

    /// Drains. Another signal, a second or more later, ends the process at once.
    async fn end(mut self, handed_over: bool) -> Exit {
        self.control.begin_drain(handed_over);
        match handover::successor().filter(|_| handed_over) {
            Some(successor) => {
                self.told.handed_over(successor);
                // From now on, the successor sends the watchdog messages.
                self.signs.iter().for_each(AbortHandle::abort);
            }
            None if self.close_at.is_none() => self.told.stopping(Duration::ZERO, self.wanted.drain_timeout),
            None => self.told.draining(),
        }
        // From now on, another replica may write statuses.
        let cluster = self.cluster.take().map(|cluster| std::thread::spawn(move || cluster.end()));
        if !handed_over {
            self.control.kernel().withdraw();
        }
        let vips = self.control.kernel().leave();
        if vips > 0 && !handed_over {
            tracing::info!(vips, "the kernel plane stays and keeps forwarding; `steelyard vip detach` removes it");
        }
        let timeout = self.wanted.drain_timeout;
        tracing::info!(?timeout, handed_over, "draining");
        let plane = self.plane;
        let (done, drained) = oneshot::channel();
        // Waiting for the workers blocks, and this thread still has to answer the control API, so another thread waits.
        let waiter = std::thread::Builder::new().name("drain".to_owned()).spawn(move || {
            plane.drain(timeout);
            let _ = done.send(());
        });
        if let Err(error) = waiter {
            return crate::fail(&format!("cannot drain: {error}"));
        }
        tokio::select! {
            _ = drained => tracing::info!("drained"),
            () = told_to_cut(&mut self.ending, handed_over) => {
                self.control.close();
                return told_twice();
            }
        }
        if let Some(cluster) = cluster {
            let _ = cluster.join();
        }
        self.control.close();
        // The last owner writes the last lines.
        self.control.set_access_log(None);
        drop(self.access_log);
        self.exporter.finish().await;
        Exit::Good
    }
}

/// Waits for a signal that means not to wait for the drain any longer. The successor's SIGTERM does not count: if a
/// service manager signals all processes of the service to stop it, that signal is the first.
async fn told_to_cut(ending: &mut Ending, handed_over: bool) {
    if handed_over {
        ending.told_again().await;
        tracing::info!("received a signal to end: already draining");
    }
    ending.told_again().await;
}

/// Waits until it changes, or forever if there is nothing that can.
async fn changed<T>(watched: &mut Option<watch::Receiver<T>>) {
    if let Some(watched) = watched
        && watched.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Waits until this time, or forever if there is none.
async fn until(time: Option<tokio::time::Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Warns of routes that a command has put into maintenance and that a new configuration no longer has.
fn warn_of_lost_maintenance(old: &Compiled, new: &Compiled) {
    for plan in &old.listeners {
        let listener = &plan.policy.name;
        let successor = new.listeners.iter().find(|new| new.policy.name == *listener);
        for route in plan.maintenance_names() {
            let has = |plan: &ListenerPlan| plan.routes().iter().any(|known| known.name == route);
            match successor {
                None => {
                    tracing::warn!(listener, route, "the listener is gone, and with it the maintenance of its route")
                }
                Some(new) if has(plan) && !has(new) => {
                    tracing::warn!(listener, route, "the route is gone; if it comes back, it is in maintenance");
                }
                Some(_) => {}
            }
        }
    }
}

fn open_access_log(snapshot: &Snapshot, exporter: &Exporter) -> Result<Option<Arc<AccessLog>>, String> {
    let Some(log) = &snapshot.access_log else { return Ok(None) };
    let (place, export) = match &log.target {
        LogTarget::Stdout => ("standard output".to_owned(), None),
        LogTarget::File(path) => (path.display().to_string(), None),
        LogTarget::Syslog(_) => ("the syslog server".to_owned(), None),
        LogTarget::Otlp(_) => ("the collector".to_owned(), Some(exporter.log_export())),
    };
    AccessLog::start(log, export)
        .map(|log| Some(Arc::new(log)))
        .map_err(|error| format!("access_log: cannot write to {place}: {}", files::cannot_make(&error)))
}

fn told_twice() -> Exit {
    tracing::warn!("received another signal to end: closing the remaining connections now");
    Exit::Failed
}
