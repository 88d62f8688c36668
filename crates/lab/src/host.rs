//! What this host lends to a run: open files, listening sockets, runtimes.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

/// Connections that may wait for their accept. The kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Raises the soft limit on open files to the hard one: the usual soft limit of 1,024 ends a run with 1,000 connections.
pub(crate) fn raise_open_files_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Refused in some sandboxes. The run then meets its limit where it needs more files, and says so there.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Raises both limits on open files for what is started from here, which root may: a balancer of 2,000 connections has 4,000 open and
/// refuses to start where it may not have as many as it is configured for.
pub(crate) fn raise_open_files_for_children() {
    /// For a balancer that is told of 16,000 connections, on both sides.
    const OPEN_FILES: u64 = 65_536;
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|maximum| maximum < OPEN_FILES) {
        // Without root it stays, and a contender that wants more says so in its log.
        let _ = setrlimit(
            Resource::Nofile,
            rustix::process::Rlimit { current: Some(OPEN_FILES), maximum: Some(OPEN_FILES) },
        );
    }
    raise_open_files_limit();
}

/// A listening socket with a long backlog.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.cloexec().nonblocking(), None)?;
    // A restarted origin must not wait for the TIME_WAIT of its last life.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A runtime that stays on the calling thread.
pub(crate) fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Runs `work(0)` to `work(threads - 1)`, each on a thread and a runtime of its own, and gives what they gave, in that order.
///
/// A panic of one is a panic here. Dropping the future does not stop the threads.
pub(crate) async fn on_threads<T, W, F>(threads: usize, work: W) -> io::Result<Vec<T>>
where
    T: Send + 'static,
    W: Fn(usize) -> F + Clone + Send + 'static,
    F: Future<Output = io::Result<T>>,
{
    let mut outcomes = Vec::new();
    for index in 0..threads {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let work = work.clone();
        let thread = std::thread::Builder::new().name(format!("load-{index}"));
        let handle = thread.spawn(move || {
            let outcome = runtime().and_then(|runtime| runtime.block_on(work(index)));
            // Nobody listens any more when the run was given up.
            let _ = sender.send(outcome);
        })?;
        outcomes.push((handle, receiver));
    }
    let mut results = Vec::new();
    for (handle, receiver) in outcomes {
        match receiver.await {
            Ok(outcome) => results.push(outcome?),
            Err(_) => match handle.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => unreachable!("a thread that ends well has sent its outcome"),
            },
        }
    }
    Ok(results)
}

/// After a failed accept: nothing but time gives a file descriptor back, and a tight loop would take the CPU from who could.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// The file of a program: a path, or a name that is looked for along the PATH, and where system programs are, which is not on everybody's.
pub(crate) fn find_program(name: &str) -> Option<std::path::PathBuf> {
    if name.contains('/') {
        let path = std::path::PathBuf::from(name);
        return path.is_file().then_some(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Whether this process may do what only root may.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Says, past the test harness, that a test cannot run here.
#[cfg(test)]
pub(crate) fn skip(what: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "SKIP {what}");
}

/// Returns when a signal asks for the end.
pub(crate) async fn interrupted() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}

/// Held by the one run that measures on this host.
pub(crate) fn lock_measuring() -> io::Result<std::fs::File> {
    use rustix::fs::{FlockOperation, flock};
    let path = std::env::temp_dir().join("steelyard-lab.lock");
    // Another user's file may be there, which can be locked all the same.
    let file = std::fs::File::options()
        .read(true)
        .append(true)
        .create(true)
        .open(&path)
        .or_else(|_| std::fs::File::open(&path));
    let file =
        file.map_err(|error| io::Error::new(error.kind(), format!("cannot open {}: {error}", path.display())))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "another lab is measuring on this host; two would measure each other",
        )),
        Err(error) => Err(error.into()),
    }
}
