//! `serve` and `proxy`: sources on one side, planes on the other, and the loop between them.
//!
//! Whatever happens (a signal, a changed file, an order by the control API, a name that moved) comes to this one loop on the main
//! thread, one at a time. A new snapshot is compiled, its sockets are opened, and only then does anything change.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use model::{Generation, Snapshot};
use net::clock;
use net::inherit::Inherited;
use proxy::{Compiled, Keys, Plane};
use telemetry::{AccessLog, Registry};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use crate::cli::{ProxyArgs, RunArgs, ServeArgs};
use crate::control::{Control, Order};
use crate::exit::Exit;
use crate::files::{self, Watch};
use crate::handover;
use crate::limits::OpenFiles;
use crate::resolve::{self, Addresses, Resolver};

/// Orders that wait for the loop; the control API answers "busy" beyond that.
const ORDERS_MAX: usize = 16;

/// Where snapshots come from.
pub(crate) enum Source {
    /// A configuration file.
    File(PathBuf),
    /// The command line: it says the same for ever.
    Fixed(Box<Snapshot>),
}

impl Source {
    fn read(&self, generation: Generation) -> Result<Snapshot, String> {
        match self {
            Self::File(path) => files::load(path, generation),
            Self::Fixed(snapshot) => Ok(Snapshot { generation, ..(**snapshot).clone() }),
        }
    }

    fn file(&self) -> Option<PathBuf> {
        match self {
            Self::File(path) => Some(path.clone()),
            Self::Fixed(_) => None,
        }
    }
}

/// `steelyard serve`.
pub(crate) fn serve(args: ServeArgs) -> Exit {
    run(Source::File(args.file.config), &args.run)
}

/// `steelyard proxy`.
pub(crate) fn proxy(args: ProxyArgs) -> Exit {
    let mut snapshot = config::proxy_snapshot(args.listen, &args.to, args.tcp);
    snapshot.admin = args.admin;
    run(Source::Fixed(Box::new(snapshot)), &args.run)
}

fn run(source: Source, args: &RunArgs) -> Exit {
    if let Err(error) = log_to_stderr(&args.log) {
        eprintln!("steelyard: --log {}: {error}", args.log);
        return Exit::BadConfig;
    }
    // First of all: nothing else may own the descriptors that were passed to us.
    let inherited = handover::inherited();
    // The file is judged before anything is opened.
    let snapshot = match source.read(Generation(1)).and_then(files::with_good_keys) {
        Ok(snapshot) => snapshot,
        Err(errors) => {
            eprintln!("{}", errors.trim_end());
            return Exit::BadConfig;
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return crate::fail(&format!("cannot start: {error}")),
    };
    let workers = args.workers.map_or_else(net::worker::available_cpus, usize::from);
    runtime.block_on(async {
        let mut running = match Running::new(source, snapshot, workers, inherited) {
            Ok(running) => running,
            Err(error) => return cannot(&error),
        };
        match running.begin().await {
            Ok(()) => {}
            Err(_) if running.ending.told => return Exit::Good,
            Err(error) => return cannot(&error),
        }
        let handed_over = running.until_told_to_end().await;
        running.end(handed_over).await
    })
}

fn cannot(error: &str) -> Exit {
    eprintln!("steelyard: {error}");
    Exit::HostCannot
}

fn log_to_stderr(filter: &str) -> Result<(), tracing_subscriber::filter::ParseError> {
    use std::io::IsTerminal;
    let filter = tracing_subscriber::EnvFilter::builder().parse(filter)?;
    let color = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(color).init();
    Ok(())
}

/// All that runs.
struct Running {
    source: Source,
    /// The newest snapshot as the source gave it, names and all.
    wanted: Snapshot,
    /// Certificates and keys that it names.
    keys: Keys,
    plane: Plane,
    resolver: Resolver,
    access_log: Option<Arc<AccessLog>>,
    control: Arc<Control>,
    orders: mpsc::Receiver<Order>,
    watch: Watch,
    signals: Signals,
    ending: Ending,
    inherited: Inherited,
    open_files: OpenFiles,
    begun: Instant,
}

/// What the loop is woken by.
enum Event {
    End,
    Reload(&'static str),
    ReopenLog,
    HandOver,
    NamesMoved,
    Order(Order),
}

struct Signals {
    reload: Signal,
    reopen: Signal,
    hand_over: Signal,
}

/// The signals that end the process.
struct Ending {
    terminate: Signal,
    interrupt: Signal,
    /// One of them has come.
    told: bool,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            reload: signal(SignalKind::hangup())?,
            reopen: signal(SignalKind::user_defined1())?,
            hand_over: signal(SignalKind::user_defined2())?,
        })
    }
}

impl Ending {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            told: false,
        })
    }

    /// Waits until this process is told to end. That is not forgotten: asked again, it is so at once.
    async fn told(&mut self) {
        if !self.told {
            self.told_again().await;
            self.told = true;
        }
    }

    /// Waits until it is told once more.
    async fn told_again(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

impl Running {
    fn new(source: Source, snapshot: Snapshot, workers: usize, inherited: Inherited) -> Result<Self, String> {
        let begun = Instant::now();
        // For the whole process, and the successor that it may start.
        let open_files = OpenFiles::raise();
        let signals = Signals::new().map_err(|error| format!("cannot listen for signals: {error}"))?;
        let ending = Ending::new().map_err(|error| format!("cannot listen for signals: {error}"))?;
        let registry = Arc::new(Registry::default());
        let plane =
            Plane::start(workers, registry.clone()).map_err(|error| format!("cannot start workers: {error}"))?;
        let (orders_tx, orders) = mpsc::channel(ORDERS_MAX);
        let watch = Watch::new(source.file());
        Ok(Self {
            wanted: snapshot,
            keys: Keys::default(),
            control: Arc::new(Control::new(registry, workers, orders_tx)),
            plane,
            resolver: Resolver::idle(),
            access_log: None,
            orders,
            watch,
            signals,
            ending,
            inherited,
            source,
            open_files,
            begun,
        })
    }

    /// Puts the first snapshot to use, and takes over from whoever serves now.
    async fn begin(&mut self) -> Result<(), String> {
        self.adopt(self.wanted.clone()).await?;
        for address in self.inherited.left_over() {
            tracing::warn!(%address, "inherited socket closed: no listener has this address");
        }
        self.inherited = Inherited::default();
        handover::take_over();
        for (asked, bound) in self.plane.addresses() {
            let address = if asked.port() == 0 { bound } else { asked };
            tracing::info!(%address, workers = self.plane.workers(), "listening");
        }
        tracing::debug!(ready_after = ?self.begun.elapsed(), "ready");
        Ok(())
    }

    /// Makes `snapshot` the one in use, all of it or none.
    async fn adopt(&mut self, snapshot: Snapshot) -> Result<(), String> {
        self.watch.also(files::named(&snapshot));
        let keys = Keys::load(&snapshot, Some(&self.keys))?;
        let mut resolver = Resolver::start(&snapshot, Some(&self.resolver));
        // Names may take seconds, and whoever ends this process does not wait for them.
        tokio::select! {
            () = resolver.asked() => {}
            () = self.ending.told() => return Err("told to end before every name had been looked up".to_owned()),
        }
        let addresses = resolver.addresses();
        // The process that serves now has found its endpoints: this one, which has not, would be no better.
        if self.control.compiled().is_none()
            && handover::has_predecessor()
            && let Some(cluster) = resolve::unreachable(&snapshot, &addresses)
        {
            return Err(format!("cluster {cluster}: none of its names has an address; the old process goes on"));
        }
        let access_log = if self.access_log.is_some() && snapshot.access_log == self.wanted.access_log {
            None
        } else {
            Some(open_access_log(&snapshot)?)
        };
        let admin = self.control.listen(snapshot.admin, &mut self.inherited)?;
        self.put_to_use(&snapshot, &keys, &addresses).await?;
        self.resolver = resolver;
        self.keys = keys;

        if let Some(access_log) = access_log {
            self.plane.log_to(|| access_log.as_deref().map(AccessLog::logger));
            self.control.set_access_log(access_log.clone());
            if let Some(old) = std::mem::replace(&mut self.access_log, access_log) {
                // Waits for the last lines, which may take seconds where nobody reads them: not on this thread.
                std::thread::spawn(move || drop(old));
            }
        }
        self.control.serve(admin);
        self.open_files.warn_if_short(&snapshot);
        self.wanted = snapshot;
        Ok(())
    }

    /// Gives the planes a snapshot with the addresses of its names.
    async fn put_to_use(&mut self, snapshot: &Snapshot, keys: &Keys, addresses: &Addresses) -> Result<(), String> {
        let expanded = Arc::new(resolve::expand(snapshot, addresses));
        let previous = self.control.compiled();
        let compiled = Arc::new(Compiled::new(expanded, keys, previous.as_deref(), clock::now_ms()));
        // Before the workers use it: they must not find an endpoint healthy that is known not to be.
        self.control.check_health(&compiled);
        if let Err(errors) = self.plane.apply(compiled.clone(), &mut self.inherited).await {
            if let Some(previous) = previous {
                self.control.check_health(&previous);
            }
            return Err(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
        }
        self.control.adopt(compiled);
        Ok(())
    }

    /// Carries out what comes until the process is to end. True: a new process has taken over.
    async fn until_told_to_end(&mut self) -> bool {
        loop {
            let signals = &mut self.signals;
            let event = tokio::select! {
                biased;
                () = self.ending.told() => Event::End,
                _ = signals.reload.recv() => Event::Reload("SIGHUP"),
                () = self.watch.changed() => Event::Reload("the file changed"),
                _ = signals.reopen.recv() => Event::ReopenLog,
                _ = signals.hand_over.recv() => Event::HandOver,
                () = self.resolver.changed() => Event::NamesMoved,
                Some(order) = self.orders.recv() => Event::Order(order),
            };
            match event {
                Event::End => return handover::was_taken_over(),
                Event::Reload(why) => drop(self.reload(why).await),
                Event::ReopenLog => {
                    if let Some(log) = &self.access_log {
                        log.reopen();
                    }
                }
                Event::HandOver => handover::start(&self.plane, &self.control),
                Event::NamesMoved => self.follow_names().await,
                Event::Order(order) => self.carry_out(order).await,
            }
        }
    }

    async fn follow_names(&mut self) {
        let wanted = Snapshot { generation: self.control.next_generation(), ..self.wanted.clone() };
        let addresses = self.resolver.addresses();
        let keys = std::mem::take(&mut self.keys);
        let outcome = self.put_to_use(&wanted, &keys, &addresses).await;
        self.keys = keys;
        if let Err(error) = outcome {
            tracing::error!(error, "addresses changed, and cannot be used");
        }
    }

    async fn carry_out(&mut self, order: Order) {
        match order {
            Order::Reload(answer) => {
                let outcome = self.reload("asked by the control API").await;
                // Whoever asked may be gone; the reload stands all the same.
                let _ = answer.send(outcome);
            }
        }
    }

    async fn reload(&mut self, why: &str) -> Result<u64, String> {
        let generation = self.control.next_generation();
        self.watch.reading();
        let outcome = match self.source.read(generation) {
            Ok(snapshot) => self.adopt(snapshot).await,
            Err(errors) => Err(errors),
        };
        match &outcome {
            Ok(()) => tracing::info!(why, generation = generation.0, "reloaded"),
            Err(errors) => {
                tracing::error!(why, "refused, the old configuration stays");
                eprintln!("{}", errors.trim_end());
            }
        }
        self.control.note_reload(outcome.clone().err());
        outcome.map(|()| generation.0)
    }

    /// Drains, and ends at once when told a second time.
    async fn end(mut self, handed_over: bool) -> Exit {
        self.control.begin_drain(handed_over);
        let timeout = self.wanted.drain_timeout;
        tracing::info!(?timeout, handed_over, "draining");
        let plane = self.plane;
        let (done, drained) = oneshot::channel();
        // A thread of its own: waiting for the workers blocks, and this thread still answers the control API.
        let waiter = std::thread::Builder::new().name("drain".to_owned()).spawn(move || {
            plane.drain(timeout);
            let _ = done.send(());
        });
        if let Err(error) = waiter {
            return crate::fail(&format!("cannot drain: {error}"));
        }
        tokio::select! {
            _ = drained => tracing::info!("drained"),
            () = self.ending.told_again() => return told_twice(),
        }
        // The last one to hold it writes the last lines.
        self.control.set_access_log(None);
        drop(self.access_log);
        Exit::Good
    }
}

fn open_access_log(snapshot: &Snapshot) -> Result<Option<Arc<AccessLog>>, String> {
    let Some(log) = &snapshot.access_log else { return Ok(None) };
    let place = log.path.as_ref().map_or_else(|| "standard output".to_owned(), |path| path.display().to_string());
    AccessLog::start(log)
        .map(|log| Some(Arc::new(log)))
        .map_err(|error| format!("access_log: cannot write to {place}: {error}"))
}

fn told_twice() -> Exit {
    tracing::warn!("told twice: ending at once");
    Exit::Failed
}
