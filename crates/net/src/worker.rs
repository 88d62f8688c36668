//! A worker: a thread on its own CPU, with its own runtime.

use std::future::Future;
use std::io;
use std::thread::{self, JoinHandle};

use rustix::thread::CpuSet;
use tokio::runtime::{Builder, LocalOptions};

/// Starts a worker that runs the future of `main` to its end. The thread is pinned to `cpu`; where that is not allowed it runs unpinned.
///
/// # Errors
/// The thread or its runtime cannot be created: the process is out of threads or descriptors.
pub fn spawn<F, M>(name: String, cpu: Option<usize>, main: M) -> io::Result<JoinHandle<()>>
where
    F: Future<Output = ()> + 'static,
    M: FnOnce() -> F + Send + 'static,
{
    // The channel lets the caller report a failure, because a local runtime cannot leave the thread that creates it.
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
    outcome.recv().unwrap_or_else(|_| Err(io::Error::other("the worker ended before its runtime started")))?;
    Ok(handle)
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::debug!(cpu, %error, "not pinned");
    }
}

/// How many workers this process can keep busy, by its CPU affinity and its cgroup's quota rather than the size of the machine.
pub fn available_cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The CPUs that this process may run on, ascending; empty if the kernel does not report them.
pub fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}
