//! Whether the workers make progress. Each worker counts a beat whenever its housekeeping runs, which is several times a second while its
//! event loop runs. A worker that spins or blocks counts none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The count of a worker that has drained and ended. Such a worker does not count as hanging.
const ENDED: u64 = u64::MAX;

/// The beats of all workers.
#[derive(Clone)]
pub(crate) struct Heartbeats(Arc<[AtomicU64]>);

impl Heartbeats {
    pub(crate) fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| AtomicU64::new(0)).collect())
    }

    /// Records that this worker is alive.
    pub(crate) fn beat(&self, worker: usize) {
        if let Some(beats) = self.0.get(worker) {
            beats.fetch_add(1, Relaxed);
        }
    }

    /// Records that this worker has ended normally.
    pub(crate) fn end(&self, worker: usize) {
        if let Some(beats) = self.0.get(worker) {
            beats.store(ENDED, Relaxed);
        }
    }

    pub(crate) fn read(&self) -> Vec<u64> {
        self.0.iter().map(|beats| beats.load(Relaxed)).collect()
    }
}

/// Reports which workers have made progress since the last call.
pub struct Progress {
    heartbeats: Heartbeats,
    seen: Vec<u64>,
}

impl Progress {
    pub(crate) fn new(heartbeats: Heartbeats) -> Self {
        let seen = heartbeats.read();
        Self { heartbeats, seen }
    }

    /// The workers that have made no progress since the last call. Call it at most twice a second, since a worker beats ten times a second.
    pub fn standing_still(&mut self) -> Vec<usize> {
        let now = self.heartbeats.read();
        let seen = std::mem::replace(&mut self.seen, now);
        let pairs = seen.iter().zip(&self.seen).enumerate();
        pairs.filter(|(_, (seen, now))| seen == now && **now != ENDED).map(|(worker, _)| worker).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stands_still() {
        let heartbeats = Heartbeats::new(3);
        let mut progress = Progress::new(heartbeats.clone());
        let mut check = |beating: &[usize], expect: &[usize]| {
            beating.iter().for_each(|worker| heartbeats.beat(*worker));
            assert_eq!(progress.standing_still(), expect);
        };
        check(&[0, 1, 2, 2], &[]);
        check(&[0, 2], &[1]);
        check(&[0, 1, 2], &[]);
        heartbeats.end(1);
        check(&[0], &[2]);
        check(&[0, 2], &[]);
        check(&[], &[0, 2]);
    }
}
