//! How much load, when, and from where: what is the same for every protocol.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::live::Progress;
use crate::record::Pacing;

/// How long a load goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Until {
    /// So long after ramp and warm-up. No operation is begun after that (and the trim); those under way are waited for.
    Elapsed(Duration),
    /// That many operations are begun: in a closed loop the connections share them evenly, in an open one as they are due.
    Requests(u64),
}

/// Ends a load before its time: what it has met so far is reported. Clones stop together.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<watch::Sender<Option<Instant>>>);

impl Stop {
    /// Ends the loads of this shape now.
    pub fn now(&self) {
        self.0.send_replace(Some(Instant::now()));
    }

    /// When it was told to, if it was.
    pub(super) fn at(&self) -> Option<Instant> {
        *self.0.borrow()
    }

    /// Waits until it is told to.
    pub(super) async fn told(&self) {
        // The sender lives as long as this does: there is no error to come.
        let _ = self.0.subscribe().wait_for(Option::is_some).await;
    }
}

/// The shape of a load.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Connections.
    pub connections: usize,
    /// Operations under way on each connection at once, where the protocol knows streams; else 1.
    pub streams: usize,
    /// Threads, each with its share of the connections; no more than connections.
    pub threads: usize,
    /// How long.
    pub until: Until,
    /// Operations a second over all connections, for an open loop; `None` is a closed one.
    pub rate: Option<f64>,
    /// How an open loop spreads them.
    pub pacing: Pacing,
    /// The connections are made one after the other over so long.
    pub ramp: Duration,
    /// Load that follows the ramp and is not measured.
    pub warm_up: Duration,
    /// Load that follows the window and is not measured. Without it the window ends when the last operation does, and nothing is cut off.
    pub trim: Duration,
    /// How long one operation may take, with its connect if it needs one.
    pub timeout: Duration,
    /// How long the connections stay open, unused, after the load.
    pub hold: Duration,
    /// Addresses of this host that connections are made from, in turn; none for the kernel's choice.
    pub sources: Vec<IpAddr>,
    /// CPU time that is burnt before each operation: a generator that saturates on purpose.
    pub work: Duration,
    /// Whether to say on standard error when the window opens and closes.
    pub announce: bool,
    /// Ends it early.
    pub stop: Stop,
    /// What it has met so far.
    pub progress: Progress,
}

impl Shape {
    /// A closed loop on one thread, all of it measured, operations within 10 s.
    pub fn closed(connections: usize, until: Until) -> Self {
        Self {
            connections,
            streams: 1,
            threads: 1,
            until,
            rate: None,
            pacing: Pacing::Uniform,
            ramp: Duration::ZERO,
            warm_up: Duration::ZERO,
            trim: Duration::ZERO,
            timeout: Duration::from_secs(10),
            hold: Duration::ZERO,
            sources: Vec::new(),
            work: Duration::ZERO,
            announce: false,
            stop: Stop::default(),
            progress: Progress::default(),
        }
    }

    pub(super) fn threads(&self) -> usize {
        self.threads.clamp(1, self.connections.max(1))
    }

    pub(super) fn source(&self, number: u64) -> Option<IpAddr> {
        let count = self.sources.len() as u64;
        number.checked_rem(count).and_then(|index| self.sources.get(index as usize).copied())
    }
}

/// When what happens. `start <= window_start`, `window_end <= deadline`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeline {
    pub start: Instant,
    /// When an open loop's first operation is due.
    pub ramped: Instant,
    pub window_start: Instant,
    /// `None`: with the last operation.
    pub window_end: Option<Instant>,
    /// No operation begins after it.
    pub deadline: Option<Instant>,
}

impl Timeline {
    pub(super) fn new(shape: &Shape, start: Instant) -> Self {
        let ramped = start + shape.ramp;
        let window_start = ramped + shape.warm_up;
        let (window_end, deadline) = match shape.until {
            Until::Requests(_) => (None, None),
            Until::Elapsed(duration) => {
                let end = window_start + duration;
                (Some(end).filter(|_| !shape.trim.is_zero()), Some(end + shape.trim))
            }
        };
        Self { start, ramped, window_start, window_end, deadline }
    }

    /// The same, of a load that was stopped.
    pub(super) fn stopped(self, at: Option<Instant>) -> Self {
        let Some(at) = at.filter(|at| self.window_end.is_none_or(|end| *at < end)) else { return self };
        let at = at.max(self.window_start);
        Self { window_end: Some(at), deadline: Some(at), ..self }
    }

    /// Whether something that happened, or was due, at `time` counts.
    pub(super) fn is_measured(&self, time: Instant) -> bool {
        time >= self.window_start && self.window_end.is_none_or(|end| time < end)
    }
}

/// Of `count` things numbered from zero and dealt evenly to `all`: the first that `index` gets, and how many.
pub(super) fn share_of(count: u64, index: u64, all: u64) -> (u64, u64) {
    let (each, extra) = (count / all, count % all);
    (each * index + extra.min(index), each + u64::from(index < extra))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_even_and_together_the_whole() {
        for (count, all) in [(10, 3), (2, 3), (9, 3), (0, 2), (1_003, 7)] {
            let mut next = 0;
            for index in 0..all {
                let (first, share) = share_of(count, index, all);
                assert_eq!(first, next);
                assert!(share == count / all || share == count / all + 1);
                next += share;
            }
            assert_eq!(next, count);
        }
    }

    #[test]
    fn windows() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let check = |trim, until, measured: &[u32], not: &[u32]| {
            let shape = Shape { ramp: second, warm_up: second, trim, ..Shape::closed(1, until) };
            let timeline = Timeline::new(&shape, start);
            let is_measured = |at: &u32| timeline.is_measured(start + second * *at);
            assert!(measured.iter().all(is_measured), "{shape:?}");
            assert!(!not.iter().any(is_measured), "{shape:?}");
            timeline.deadline.map(|deadline| (deadline - start).as_secs())
        };
        assert_eq!(check(second, Until::Elapsed(second * 3), &[2, 3, 4], &[0, 1, 5, 6]), Some(6));
        assert_eq!(check(Duration::ZERO, Until::Elapsed(second * 3), &[2, 4, 5, 9], &[0, 1]), Some(5));
        assert_eq!(check(second, Until::Requests(1), &[2, 99], &[0, 1]), None);
    }

    #[test]
    fn sources_take_turns() {
        let sources: Vec<IpAddr> = ["127.0.0.1", "127.0.0.2"].map(|text| text.parse().unwrap()).into();
        let shape = Shape { sources: sources.clone(), ..Shape::closed(1, Until::Requests(1)) };
        assert_eq!(
            [0, 1, 2].map(|number| shape.source(number)),
            [Some(sources[0]), Some(sources[1]), Some(sources[0])]
        );
        assert_eq!(Shape::closed(1, Until::Requests(1)).source(3), None);
    }
}
