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
