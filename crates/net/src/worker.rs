//! A worker: a thread on a CPU of its own, with a runtime of its own.

use std::future::Future;
use std::io;
use std::thread::{self, JoinHandle};

use rustix::thread::CpuSet;
use tokio::runtime::{Builder, LocalOptions};

/// Starts a worker that runs what `main` makes until it is done. `cpu` pins it; where that is not allowed it runs unpinned.
///
/// # Errors
/// The thread or its runtime cannot be made: the process is out of threads or descriptors.
pub fn spawn<F, M>(name: String, cpu: Option<usize>, main: M) -> io::Result<JoinHandle<()>>
where
    F: Future<Output = ()> + 'static,
    M: FnOnce() -> F + Send + 'static,
{
    // Made here, so that a failure is the caller's to report; a local runtime itself cannot leave its thread.
    let (made, outcome) = std::sync::mpsc::sync_channel(1);
    let handle = thread::Builder::new().name(name).spawn(move || {
        if let Some(cpu) = cpu {
            pin(cpu);
        }
        let runtime = Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default());
        match runtime {
            Ok(runtime) => {
                let _ = made.send(Ok(()));
                runtime.block_on(main());
            }
            Err(error) => {
                let _ = made.send(Err(error));
            }
        }
    })?;
    outcome.recv().unwrap_or_else(|_| Err(io::Error::other("the worker ended before it began")))?;
    Ok(handle)
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::debug!(cpu, %error, "not pinned");
    }
}

/// How many workers this process can feed: its CPU affinity and its cgroup's quota, not the size of the machine.
pub fn available_cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The CPUs that this process may run on, ascending; empty where the kernel does not tell.
pub fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}
