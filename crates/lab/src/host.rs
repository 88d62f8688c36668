//! Resources of this host for a run: open files, listening sockets, runtimes.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

/// Connections that may wait to be accepted. The kernel limits it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Raises the soft limit on open files to the hard limit: with the usual soft limit of 1,024, a run with 1,000 connections fails.
pub(crate) fn raise_open_files_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Some sandboxes refuse this. The run then fails when it needs more files, and reports it there.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Raises both limits on open files for child processes, which root may do. A balancer with 2,000 connections has 4,000 open files, and
/// refuses to start if it may not open as many as it is configured for.
pub(crate) fn raise_open_files_for_children() {
    /// Enough for a balancer that is configured for 16,000 connections on both sides.
    const OPEN_FILES: u64 = 65_536;
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|maximum| maximum < OPEN_FILES) {
        // Without root the limit stays, and a contender that needs more says so in its log.
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
    // A restarted origin must not wait for the TIME_WAIT of its previous connections.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A runtime that stays on the calling thread.
pub(crate) fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Runs `work(0)` to `work(threads - 1)`, each on a thread and a runtime of its own, and returns their results in this order.
///
/// A panic of one thread becomes a panic here. Dropping the future does not stop the threads.
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
            // The receiver is gone if the run was cancelled.
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

/// The pause after a failed accept: only time returns a file descriptor, and a tight loop would take CPU from the threads that could
/// release one.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Finds the file of a program: a path, or a name that is looked up in PATH and in the directories of system programs, which PATH may lack.
pub(crate) fn find_program(name: &str) -> Option<std::path::PathBuf> {
    if name.contains('/') {
        let path = std::path::PathBuf::from(name);
        return path.is_file().then_some(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Reports a skipped test past the test harness.
#[cfg(test)]
pub(crate) fn skip(what: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "SKIP {what}");
}

/// Returns when a signal asks the process to end.
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

/// The one run that measures on this host holds this lock.
pub(crate) fn lock_measuring() -> io::Result<std::fs::File> {
    use rustix::fs::{FlockOperation, flock};
    let path = std::env::temp_dir().join("steelyard-lab.lock");
    // The file may belong to another user, but can still be locked.
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
            "another lab is measuring on this host: wait until it has ended, because two would disturb each other",
        )),
        Err(error) => Err(error.into()),
    }
}
