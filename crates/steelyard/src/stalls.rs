//! Notices a worker that makes no progress, and says where it stands.
//!
//! A worker beats several times a second. One that spins, or waits for something that blocks, does not. The control thread looks once a second;
//! after the second look in a row without a beat it reports the worker, with its stack.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use admin::StalledWorkerStatus;
use net::clock;
use proxy::Progress;
use telemetry::Registry;

/// Looks without a beat until a worker is reported. One is not enough: on a busy host a worker may not get its turn for so long.
const LOOKS: u32 = 2;
/// The time between two looks, about.
const LOOK_MS: u64 = 1_000;

/// The workers that stand still.
pub(crate) struct Stalls {
    progress: Progress,
    /// How often in a row each was seen standing still.
    still: BTreeMap<usize, u32>,
    registry: Arc<Registry>,
    told: Arc<Stalled>,
}

/// What the control API tells of workers that stand still.
#[derive(Debug, Default)]
pub(crate) struct Stalled {
    total: AtomicU64,
    now: Mutex<BTreeMap<usize, Stall>>,
}

/// A worker that stands still.
#[derive(Debug)]
struct Stall {
    /// Its last beat, at the latest, in milliseconds of the monotonic clock.
    since_ms: u64,
    /// The connections that wait for it, by listener. They do not change meanwhile.
    connections: BTreeMap<String, u64>,
    /// Where it stands, the innermost function first, or why that is not known.
    stack: Result<Vec<String>, String>,
}

impl Stalls {
    pub(crate) fn new(progress: Progress, registry: Arc<Registry>, told: Arc<Stalled>) -> Self {
        Self { progress, still: BTreeMap::new(), registry, told }
    }

    /// Looks at the workers. Call this about once a second.
    pub(crate) fn look(&mut self) {
        let now = self.progress.standing_still();
        let (begun, ended) = follow(&mut self.still, &now);
        for worker in begun {
            self.told.begin(worker, self.registry.open_connections(worker));
        }
        for (worker, looks) in ended {
            self.told.now().remove(&worker);
            tracing::warn!(worker, seconds = looks, "a worker that stood still makes progress again");
        }
    }
}

impl Stalled {
    /// How often workers stood still.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }

    /// The workers that stand still.
    pub(crate) fn statuses(&self) -> Vec<StalledWorkerStatus> {
        let now_ms = clock::now_ms();
        let status = |(worker, stall): (&usize, &Stall)| {
            let seconds = now_ms.saturating_sub(stall.since_ms) / 1000;
            StalledWorkerStatus {
                worker: *worker,
                since_unix_seconds: crate::control::unix_seconds().saturating_sub(seconds),
                seconds,
                connections: stall.connections.clone(),
                stack: stall.stack.clone().unwrap_or_default(),
                why_no_stack: stall.stack.clone().err(),
            }
        };
        self.now().iter().map(status).collect()
    }

    fn now(&self) -> MutexGuard<'_, BTreeMap<usize, Stall>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Self>, worker: usize, connections: BTreeMap<String, u64>) {
        self.total.fetch_add(1, Relaxed);
        let since_ms = clock::now_ms().saturating_sub(u64::from(LOOKS) * LOOK_MS);
        let stack = Err("it is being taken".to_owned());
        self.now().insert(worker, Stall { since_ms, connections: connections.clone(), stack });
        // The worker may not answer, and reading the symbols takes time.
        let told = self.clone();
        let report = move || {
            let stack = report(worker, &connections);
            // It may have made progress meanwhile, and stand still again.
            if let Some(stall) = told.now().get_mut(&worker).filter(|stall| stall.since_ms == since_ms) {
                stall.stack = stack;
            }
        };
        if let Err(error) = thread::Builder::new().name("stack".to_owned()).spawn(report) {
            tracing::error!(worker, %error, "a worker makes no progress, and there is no thread to find out where");
        }
    }
}

/// Counts the looks. Returns the workers that are to be reported now, and those that were and make progress again, with their looks.
fn follow(still: &mut BTreeMap<usize, u32>, now: &[usize]) -> (Vec<usize>, Vec<(usize, u32)>) {
    let mut ended = Vec::new();
    still.retain(|worker, looks| {
        let goes_on = now.contains(worker);
        if !goes_on && *looks >= LOOKS {
            ended.push((*worker, *looks));
        }
        goes_on
    });
    let mut begun = Vec::new();
    for worker in now {
        let looks = still.entry(*worker).or_default();
        *looks = looks.saturating_add(1);
        if *looks == LOOKS {
            begun.push(*worker);
        }
    }
    (begun, ended)
}

/// Logs where a worker stands.
fn report(worker: usize, connections: &BTreeMap<String, u64>) -> Result<Vec<String>, String> {
    let stack = net::stack::thread_named(&format!("worker-{worker}")).and_then(net::stack::of_thread);
    let stack = stack.map_err(|error| error.to_string());
    let connections =
        connections.iter().map(|(listener, open)| format!("{listener} {open}")).collect::<Vec<_>>().join(", ");
    match &stack {
        Ok(frames) => {
            let stack = frames.join(" < ");
            tracing::error!(worker, stack, connections, "a worker makes no progress: its connections wait");
        }
        Err(why_no_stack) => {
            tracing::error!(worker, why_no_stack, connections, "a worker makes no progress: its connections wait");
        }
    }
    stack
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::io::{self, Write};
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// The log of a test.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    static RELEASED: AtomicBool = AtomicBool::new(false);

    #[inline(never)]
    fn a_loop_without_end() {
        let mut turns = 0_u64;
        while !RELEASED.load(Relaxed) {
            turns = black_box(turns + 1);
        }
    }

    #[test]
    fn the_log_has_the_stack_of_a_worker_that_stands_still() {
        let worker = 7701;
        let name = format!("worker-{worker}");
        let thread = std::thread::Builder::new().name(name.clone()).spawn(a_loop_without_end).unwrap();
        testkit::until(testkit::PATIENCE, || net::stack::thread_named(&name).ok()).unwrap();
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let said = || String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        // On a host that is busy, the thread may get no CPU time for long, and the log says so.
        let reported = tracing::subscriber::with_default(subscriber, || {
            testkit::until(testkit::PATIENCE, || {
                let _ = report(worker, &BTreeMap::new());
                said().contains("stack=").then(said)
            })
        });
        RELEASED.store(true, Relaxed);
        thread.join().unwrap();
        let said = reported.unwrap_or_else(said);
        let line = said.lines().find(|line| line.contains("stack=")).unwrap();
        let expect = format!("a worker makes no progress: its connections wait worker={worker} stack=");
        assert!(line.contains("ERROR") && line.contains(&expect) && line.contains("a_loop_without_end"), "{line}");
    }

    #[test]
    fn a_worker_is_reported_once_for_each_time_that_it_stands_still() {
        let mut still = BTreeMap::new();
        let mut check = |now: &[usize], begun: &[usize], ended: &[(usize, u32)]| {
            assert_eq!(follow(&mut still, now), (begun.to_vec(), ended.to_vec()), "{now:?}");
        };
        check(&[], &[], &[]);
        check(&[1], &[], &[]);
        check(&[], &[], &[]);
        check(&[0, 1], &[], &[]);
        check(&[1], &[1], &[]);
        check(&[1, 2], &[], &[]);
        check(&[2], &[2], &[(1, 3)]);
        check(&[], &[], &[(2, 2)]);
        check(&[1], &[], &[]);
    }
}
