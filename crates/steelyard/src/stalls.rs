//! Notices a worker that makes no progress, and says where it stands.
//!
//! A worker beats several times a second. One that spins, or waits for something that blocks, does not. The control thread looks once a second;
//! after the second look in a row without a beat it reports the worker, with its stack.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use proxy::Progress;

/// Looks without a beat until a worker is reported. One is not enough: on a busy host a worker may not get its turn for so long.
const LOOKS: u32 = 2;

/// The workers that stand still.
pub(crate) struct Stalls {
    progress: Progress,
    /// How often in a row each was seen standing still.
    still: BTreeMap<usize, u32>,
    total: Arc<AtomicU64>,
}

impl Stalls {
    pub(crate) fn new(progress: Progress, total: Arc<AtomicU64>) -> Self {
        Self { progress, still: BTreeMap::new(), total }
    }

    /// Looks at the workers. Call this about once a second.
    pub(crate) fn look(&mut self) {
        let now = self.progress.standing_still();
        let (begun, ended) = follow(&mut self.still, &now);
        for worker in begun {
            self.total.fetch_add(1, Relaxed);
            // The worker may not answer, and reading the symbols takes time.
            std::thread::spawn(move || report(worker));
        }
        for (worker, looks) in ended {
            tracing::warn!(worker, seconds = looks, "a worker that stood still makes progress again");
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

fn report(worker: usize) {
    let thread = net::stack::thread_named(&format!("worker-{worker}"));
    let stack = thread.ok_or_else(|| "its thread is gone".to_owned()).and_then(|thread| {
        net::stack::of_thread(thread)
            .map_err(|error| format!("no stack: {error}; it may wait in the kernel, or get no CPU time"))
    });
    match stack {
        Ok(frames) => {
            let stack = frames.join(" < ");
            tracing::error!(worker, stack, "a worker makes no progress: its connections wait");
        }
        Err(why) => tracing::error!(worker, why, "a worker makes no progress: its connections wait"),
    }
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
        testkit::until(testkit::PATIENCE, || net::stack::thread_named(&name)).unwrap();
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let said = || String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        // On a host that is busy, the thread may get no CPU time for long, and the log says so.
        let reported = tracing::subscriber::with_default(subscriber, || {
            testkit::until(testkit::PATIENCE, || {
                report(worker);
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
