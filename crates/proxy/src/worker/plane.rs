//! The control thread's handle on the proxy plane: it starts workers, gives them snapshots, and drains them.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use model::Snapshot;
use net::clock;
use net::inherit::Inherited;
use telemetry::{Logger, Registry, TraceQueueHandle};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::worker::connection_balance::Workers;
use crate::worker::heartbeat::{Heartbeats, Progress};
use crate::worker::snapshot::Compiled;
use crate::worker::{self, Command};

/// How often an address in use is checked again, and the time in between.
const LOOKS: usize = 5;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The proxy plane. If it is dropped, the workers run until the process ends; [`Plane::drain`] ends them.
pub struct Plane {
    workers: Vec<Handle>,
    heartbeats: Heartbeats,
    registry: Arc<Registry>,
    /// A second descriptor of every listening socket, to pass to a new process.
    sockets: HashMap<SocketAddr, Vec<TcpListener>>,
    /// The listeners for which the workers have sockets, by name and address.
    served: HashSet<(String, SocketAddr)>,
    /// The snapshot that the workers have.
    applied: Option<Arc<Snapshot>>,
}

struct Handle {
    commands: UnboundedSender<Command>,
    thread: JoinHandle<()>,
}

/// Checks an address in use several times, because one of our own workers may be about to close the socket of the last snapshot.
async fn until_unused(address: SocketAddr) -> io::Result<()> {
    for _ in 0..LOOKS {
        match net::socket::check_unused(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => tokio::time::sleep(LOOK_EVERY).await,
            // `listen` reports all other errors, because it handles hosts without IPv6.
            _ => return Ok(()),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// A listener that cannot be opened.
#[derive(Debug)]
pub struct BindError {
    /// The listener's name.
    pub listener: String,
    /// Its address.
    pub address: SocketAddr,
    /// The error of the operating system.
    pub error: io::Error,
}

impl std::fmt::Display for BindError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { listener, address, error } = self;
        write!(f, "listener {listener}: {}", net::socket::cannot_listen(*address, error))
    }
}

impl std::error::Error for BindError {}

impl Plane {
    /// Starts this many workers, each on its own CPU if there are enough. What they record for traces goes to `traces`.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(workers: usize, registry: Arc<Registry>, traces: &TraceQueueHandle) -> io::Result<Self> {
        net::memory::limit(None, workers);
        net::memory::look();
        let cpus = net::worker::allowed_cpus();
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..workers).map(|_| unbounded_channel()).unzip();
        let all = Arc::new(Workers::new(senders.clone()));
        let heartbeats = Heartbeats::new(workers);
        let start = |(index, (commands, receiver))| {
            // With more workers than CPUs, the scheduler places them.
            let cpu = cpus.get(index).copied().filter(|_| workers <= cpus.len());
            let (registry, all, heartbeats) = (registry.clone(), all.clone(), heartbeats.clone());
            let traces = traces.sender();
            let main = move || worker::run(index, all, registry, heartbeats, traces, receiver);
            Ok(Handle { commands, thread: net::worker::spawn(format!("worker-{index}"), cpu, main)? })
        };
        let channels = senders.into_iter().zip(receivers).enumerate();
        let workers = channels.map(start).collect::<io::Result<Vec<_>>>()?;
        Ok(Self { workers, heartbeats, registry, sockets: HashMap::new(), served: HashSet::new(), applied: None })
    }

    /// Applies a snapshot to all workers. New listeners take sockets from `inherited` if it has them. All sockets are opened before
    /// anything changes, and closed again if one cannot be opened.
    ///
    /// # Errors
    /// Every listener that cannot be opened. Nothing has changed then.
    pub async fn apply(&mut self, compiled: Arc<Compiled>, inherited: &mut Inherited) -> Result<(), Vec<BindError>> {
        let wanted: HashSet<SocketAddr> = worker::binds(&compiled).map(|(_, address)| address).collect();
        let mut opened: HashMap<SocketAddr, Vec<TcpListener>> = HashMap::new();
        let mut errors = Vec::new();
        for (name, address) in worker::binds(&compiled).filter(|(_, address)| !self.sockets.contains_key(address)) {
            match self.open(address, inherited).await {
                Ok(sockets) => drop(opened.insert(address, sockets)),
                Err(error) => errors.push(BindError { listener: name.to_owned(), address, error }),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        net::memory::limit(compiled.snapshot.memory_max, self.workers.len());
        self.sockets.extend(opened);
        self.sockets.retain(|address, _| wanted.contains(address));
        let binds: HashSet<_> = worker::binds(&compiled).map(|(name, address)| (name.to_owned(), address)).collect();
        // By name and address: a renamed listener keeps its sockets, and its workers get them under the new name.
        let fresh: Vec<_> = binds.difference(&self.served).cloned().collect();
        let mut answers = Vec::new();
        for (index, handle) in self.workers.iter().enumerate() {
            let sockets = fresh.iter().flat_map(|(name, address)| {
                self.share(*address, index).map(|socket| (name.clone(), socket)).collect::<Vec<_>>()
            });
            let (done, answer) = oneshot::channel();
            let command = Command::Apply { compiled: compiled.clone(), sockets: sockets.collect(), done };
            if handle.commands.send(command).is_ok() {
                answers.push(answer);
            }
        }
        for answer in answers {
            // A worker that has ended uses no snapshot.
            let _ = answer.await;
        }
        self.served = binds;
        self.registry.retain(&compiled.snapshot, self.applied.as_deref());
        self.applied = Some(compiled.snapshot.clone());
        Ok(())
    }

    /// One socket per worker, or the sockets that were passed to this process.
    async fn open(&self, address: SocketAddr, inherited: &mut Inherited) -> io::Result<Vec<TcpListener>> {
        let handed = inherited.take(address);
        if !handed.is_empty() {
            // The process that opened them may not have set the options that their connections inherit.
            handed.iter().for_each(net::socket::tune);
            return Ok(handed);
        }
        until_unused(address).await?;
        let first = net::socket::listen(address)?;
        // All use the port that the first got, in case the operator asked for any port.
        let address = SocketAddr::new(address.ip(), first.local_addr()?.port());
        let rest = (1..self.workers.len()).map(|_| net::socket::listen(address));
        std::iter::once(Ok(first)).chain(rest).collect()
    }

    /// The sockets of an address on which this worker accepts: one, or several if there are more sockets than workers, so that each socket
    /// is served. If there are fewer, as with those from a service manager, some workers have none: a socket in several epolls wakes all of
    /// them for each connection. The worker that accepts a connection may hand it over ([`crate::worker::connection_balance`]).
    ///
    /// Measured on Linux 6.18 as voluntary context switches per connection, less those of an idle process: one socket in four epolls 4.0;
    /// four workers and one inherited socket 1.9 (one accepts, and hands over three of four); a socket for each worker 1.9.
    fn share(&self, address: SocketAddr, worker: usize) -> impl Iterator<Item = TcpListener> {
        let sockets = self.sockets.get(&address).map(Vec::as_slice).unwrap_or_default();
        let workers = self.workers.len();
        // Starts at the port's number, so that addresses with one socket each do not all use the same worker.
        let first = usize::from(address.port());
        let mine = sockets.iter().enumerate().filter(move |(index, _)| (first + index) % workers == worker);
        mine.filter_map(|(_, socket)| socket.try_clone().ok())
    }

    /// Makes each worker write the access log through its own logger, or not at all.
    pub fn log_to(&self, mut logger: impl FnMut() -> Option<Logger>) {
        for handle in &self.workers {
            // This fails only for a worker that has ended.
            let _ = handle.commands.send(Command::Log(logger()));
        }
    }

    /// Makes each worker close its long connections to endpoints that have become unhealthy, where the configuration says so.
    pub fn close_unhealthy(&self) {
        for handle in &self.workers {
            let _ = handle.commands.send(Command::CloseUnhealthy);
        }
    }

    /// All listening sockets, for a process that takes over.
    pub fn sockets(&self) -> impl Iterator<Item = &TcpListener> {
        self.sockets.values().flatten()
    }

    /// The configured and the actual address of each listener. The ports differ if the operator asked for port 0.
    pub fn addresses(&self) -> impl Iterator<Item = (SocketAddr, SocketAddr)> {
        self.sockets.iter().filter_map(|(asked, sockets)| Some((*asked, sockets.first()?.local_addr().ok()?)))
    }

    /// Reports the progress of the workers from now on. It can be used on any thread, and after the plane was dropped.
    pub fn progress(&self) -> Progress {
        Progress::new(self.heartbeats.clone())
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Accepts no new connections, and blocks until the old ones have finished or `timeout` has passed.
    pub fn drain(self, timeout: Duration) {
        let deadline_ms = clock::now_ms().saturating_add(crate::millis(timeout));
        // First, so that the kernel queues nothing on sockets that only this handle holds.
        drop(self.sockets);
        for handle in &self.workers {
            let _ = handle.commands.send(Command::Drain { deadline_ms });
        }
        for handle in self.workers {
            // This fails only if a worker has panicked in a development build. In a release build a panic ends the process (`panic =
            // "abort"`), because connections that the kernel gives to this worker's sockets would never be served. The service manager then
            // restarts it.
            let _ = handle.thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::Weak;

    use model::Listener;

    use super::*;
    use crate::worker::snapshot::{ClusterPlan, ListenerPlan, fixture};

    /// Idle connections to listeners of each kind.
    struct Idle(Vec<(TcpStream, Option<TcpStream>)>);

    fn start(workers: usize) -> io::Result<Plane> {
        Plane::start(workers, Arc::default(), &telemetry::TraceQueue::new().0)
    }

    /// A first message of TLS.
    fn hello() -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config =
            rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
        let name = "a.example".try_into().unwrap();
        let mut hello = Vec::new();
        rustls::ClientConnection::new(config.into(), name).unwrap().write_tls(&mut hello).unwrap();
        hello
    }

    impl Idle {
        fn open(addresses: &HashMap<String, SocketAddr>, endpoint: &TcpListener) -> Self {
            let connect = |name: &str| TcpStream::connect(addresses[name]).unwrap();
            let mut opened = Vec::new();
            for (name, first) in [("db", b"x".to_vec()), ("tls", hello())] {
                let mut client = connect(name);
                client.write_all(&first).unwrap();
                // The relay runs: the client's bytes have arrived.
                let (mut far, _) = endpoint.accept().unwrap();
                far.read_exact(&mut vec![0; first.len()]).unwrap();
                opened.push((client, Some(far)));
            }
            let mut client = connect("web");
            client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            let (mut far, _) = endpoint.accept().unwrap();
            far.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").unwrap();
            let mut byte = [0];
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\n") {
                client.read_exact(&mut byte).unwrap();
                answer.push(byte[0]);
            }
            opened.push((client, Some(far)));
            opened.push((connect("web"), None));
            Self(opened)
        }
    }

    #[test]
    fn a_socket_is_accepted_on_by_one_worker() {
        let mut plane = start(3).unwrap();
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        for count in [1, 2, 3, 7] {
            for port in 1..=3 {
                let address = SocketAddr::from(([127, 0, 0, 1], port));
                plane.sockets.insert(address, (0..count).map(|_| listen()).collect());
                let shares: Vec<usize> = (0..3).map(|worker| plane.share(address, worker).count()).collect();
                // This includes sockets from a service manager: in the epolls of several workers, a connection would wake all of them.
                assert_eq!(shares.iter().sum::<usize>(), count, "{shares:?}");
                assert!(shares.iter().all(|share| share.abs_diff(count / 3) <= 1), "{shares:?}");
            }
        }
    }

    #[test]
    fn a_worker_that_hangs_makes_no_progress() {
        let plane = start(2).unwrap();
        let (begun, has_begun) = std::sync::mpsc::sync_channel(1);
        let (release, until_released) = std::sync::mpsc::channel();
        assert!(plane.workers[1].commands.send(Command::Hang(begun, until_released)).is_ok());
        has_begun.recv().unwrap();
        let mut progress = plane.progress();
        let beats = |worker: usize| plane.heartbeats.read()[worker];
        let beats_twice = |worker: usize| {
            let before = beats(worker);
            testkit::until(testkit::PATIENCE, || (beats(worker) >= before + 2).then_some(())).unwrap();
        };
        beats_twice(0);
        assert_eq!(progress.standing_still(), [1]);
        drop(release);
        beats_twice(0);
        beats_twice(1);
        assert!(progress.standing_still().is_empty());
        // Workers that have ended do not count as hanging.
        plane.drain(Duration::ZERO);
        progress.standing_still();
        assert!(progress.standing_still().is_empty());
    }

    #[tokio::test]
    async fn connections_that_last_hold_no_old_snapshot() {
        let endpoint = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = endpoint.local_addr().unwrap().port();
        let mut listeners: Vec<Listener> =
            vec![fixture::http("web", 0), fixture::tcp("db", 0), fixture::passthrough("tls", 0)];
        // Any port, but distinguishable addresses.
        for (listener, host) in listeners.iter_mut().zip(2..) {
            listener.bind = ([127, 0, 0, host], 0).into();
        }
        let mut plane = start(1).unwrap();
        let mut old: Option<(Weak<ClusterPlan>, Vec<Weak<ListenerPlan>>)> = None;
        let mut opened = Vec::new();
        for _ in 0..3 {
            let compiled = Arc::new(fixture::compiled(listeners.clone(), &[port]));
            let new = (Arc::downgrade(&compiled.clusters[0]), compiled.listeners.iter().map(Arc::downgrade).collect());
            plane.apply(compiled, &mut Inherited::default()).await.unwrap();
            if let Some((cluster, listeners)) = old.replace(new) {
                assert_eq!(cluster.strong_count(), 0);
                assert!(listeners.iter().all(|listener| listener.strong_count() == 0));
            }
            let bound: HashMap<SocketAddr, SocketAddr> = plane.addresses().collect();
            let addresses = listeners.iter().map(|listener| (listener.name.clone(), bound[&listener.bind])).collect();
            opened.push(Idle::open(&addresses, &endpoint));
        }
        // The connections of all generations are still open and carry bytes.
        for (client, far) in opened.iter_mut().flat_map(|idle| &mut idle.0[..1]) {
            client.write_all(b"y").unwrap();
            far.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        }
    }
}
