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
use proxy::{Compiled, Plane};
use telemetry::{AccessLog, Registry};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use crate::cli::{ProxyArgs, RunArgs, ServeArgs};
use crate::control::{Control, Order};
use crate::exit::Exit;
use crate::files::{self, Watch};
use crate::handover;
use crate::resolve::{self, Resolver};

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
    let snapshot = match source.read(Generation(1)) {
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
        let mut running = match Running::start(source, snapshot, workers, inherited).await {
            Ok(running) => running,
            Err(error) => {
                eprintln!("steelyard: {error}");
                return Exit::HostCannot;
            }
        };
        let handed_over = running.until_told_to_end().await;
        running.end(handed_over).await
    })
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
    plane: Plane,
    resolver: Resolver,
    access_log: Option<Arc<AccessLog>>,
    control: Arc<Control>,
    orders: mpsc::Receiver<Order>,
    watch: Watch,
    signals: Signals,
    inherited: Inherited,
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
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            reload: signal(SignalKind::hangup())?,
            reopen: signal(SignalKind::user_defined1())?,
            hand_over: signal(SignalKind::user_defined2())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }
}

impl Running {
    async fn start(source: Source, snapshot: Snapshot, workers: usize, inherited: Inherited) -> Result<Self, String> {
        let begun = Instant::now();
        let signals = Signals::new().map_err(|error| format!("cannot listen for signals: {error}"))?;
        let registry = Arc::new(Registry::default());
        let plane =
            Plane::start(workers, registry.clone()).map_err(|error| format!("cannot start workers: {error}"))?;
        let (orders_tx, orders) = mpsc::channel(ORDERS_MAX);
        let watch = Watch::new(source.file());
        let mut running = Self {
            wanted: snapshot.clone(),
            control: Arc::new(Control::new(registry, workers, orders_tx)),
            plane,
            resolver: Resolver::start(),
            access_log: None,
            orders,
            watch,
            signals,
            inherited,
            source,
        };
        running.adopt(snapshot).await?;
        for address in running.inherited.left_over() {
            tracing::warn!(%address, "inherited socket closed: no listener has this address");
        }
        running.inherited = Inherited::default();
        handover::take_over();
        for (asked, bound) in running.plane.addresses() {
            tracing::info!(address = %if asked.port() == 0 { bound } else { asked }, workers, "listening");
        }
        tracing::debug!(ready_after = ?begun.elapsed(), "ready");
        Ok(running)
    }

    /// Makes `snapshot` the one in use, all of it or none.
    async fn adopt(&mut self, snapshot: Snapshot) -> Result<(), String> {
        self.resolver.resolve(&snapshot).await;
        let access_log = if self.access_log.is_some() && snapshot.access_log == self.wanted.access_log {
            None
        } else {
            Some(open_access_log(&snapshot)?)
        };
        let admin = self.control.listen(snapshot.admin, &mut self.inherited)?;
        self.put_to_use(&snapshot).await?;

        if let Some(access_log) = access_log {
            self.plane.log_to(|| access_log.as_deref().map(AccessLog::logger));
            self.control.set_access_log(access_log.clone());
            self.access_log = access_log;
        }
        self.control.serve(admin);
        self.wanted = snapshot;
        Ok(())
    }

    /// Gives the planes a snapshot whose names have been resolved.
    async fn put_to_use(&mut self, snapshot: &Snapshot) -> Result<(), String> {
        let expanded = Arc::new(resolve::expand(snapshot, &self.resolver.addresses()));
        let previous = self.control.compiled();
        let compiled = Arc::new(Compiled::new(expanded, previous.as_deref(), clock::now_ms()));
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
                _ = signals.terminate.recv() => Event::End,
                _ = signals.interrupt.recv() => Event::End,
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
        if let Err(error) = self.put_to_use(&wanted).await {
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
            _ = self.signals.terminate.recv() => return told_twice(),
            _ = self.signals.interrupt.recv() => return told_twice(),
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
