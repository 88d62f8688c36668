//! The shape of a load, which does not depend on the protocol: connections, rate, duration and source addresses.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::arrivals::Stage;
use super::generators::Part;
use super::live::Progress;
use super::replay::Schedule;
use super::socket::Handshakes;
use crate::record::Pacing;

/// When a load ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Until {
    /// After this time, which begins after the ramp and the warm-up, and the trim that follows it. No operation starts after that; those in
    /// progress are finished.
    Elapsed(Duration),
    /// After this many operations. In a closed loop, the connections share them evenly. In an open loop, free connections take them when
    /// they are due.
    Requests(u64),
}

/// Stops a load early; it then reports its results so far. Clones stop together.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<watch::Sender<Option<Instant>>>);

impl Stop {
    /// Stops the loads of this shape now.
    pub fn now(&self) {
        self.0.send_replace(Some(Instant::now()));
    }

    /// The time at which `now` was called, if it was.
    pub(super) fn at(&self) -> Option<Instant> {
        *self.0.borrow()
    }

    /// Waits until `now` is called.
    pub(super) async fn told(&self) {
        // This cannot fail, because the sender lives as long as `self`.
        let _ = self.0.subscribe().wait_for(Option::is_some).await;
    }
}

/// The shape of a load: everything that does not depend on the protocol.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The number of connections.
    pub connections: usize,
    /// The maximum number of concurrent operations on each connection; 1 if the protocol has no streams.
    pub streams: usize,
    /// The number of threads, which share the connections. More threads than connections are not used.
    pub threads: usize,
    /// When the load ends.
    pub until: Until,
    /// Open loop: operations per second over all connections. `None` means a closed loop.
    pub rate: Option<f64>,
    /// Open loop: how the operations are spread over each second.
    pub pacing: Pacing,
    /// Open loop: how the rate changes after the warm-up; empty if it does not.
    pub stages: Vec<Stage>,
    /// The recorded requests of the load, and when they are due if the file says so.
    pub(super) replay: Option<Arc<Schedule>>,
    /// The seed of random arrivals and of the order of a mix.
    pub seed: u64,
    /// The time over which the connections are opened, one after the other.
    pub ramp: Duration,
    /// The time after the ramp during which the load runs but is not measured.
    pub warm_up: Duration,
    /// The time after the window during which the load runs but is not measured. If it is zero, the window ends with the last operation, so
    /// that no operation is cut off.
    pub trim: Duration,
    /// The maximum time of one operation, including its connect if it needs one.
    pub timeout: Duration,
    /// How long the connections stay open and idle after the load.
    pub hold: Duration,
    /// The addresses of this host that connections use in turn. If empty, the kernel chooses.
    pub sources: Vec<IpAddr>,
    /// How long to busy-wait before each operation. This saturates the load on purpose, for tests.
    pub work: Duration,
    /// Whether to print a line to standard error when the window opens and when it closes.
    pub announce: bool,
    /// Stops the load early.
    pub stop: Stop,
    /// The results so far.
    pub progress: Progress,
    /// The TLS handshakes so far.
    pub handshakes: Handshakes,
    /// Where the results are put as they were counted, if another host adds them to its own.
    pub(super) part: Option<Arc<Mutex<Option<Part>>>>,
}

impl Shape {
    /// A closed loop on one thread with a timeout of 10 s. All of it is measured.
    pub fn closed(connections: usize, until: Until) -> Self {
        Self {
            connections,
            streams: 1,
            threads: 1,
            until,
            rate: None,
            pacing: Pacing::Uniform,
            stages: Vec::new(),
            replay: None,
            seed: 1,
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
            handshakes: Handshakes::default(),
            part: None,
        }
    }

    /// The part of generator `index` of `count`, which together put this load on. `index < count <= connections`
    pub(super) fn share(&self, index: u64, count: u64) -> Self {
        let of = |whole: f64| whole / count as f64;
        Self {
            connections: share_of(self.connections as u64, index, count).1 as usize,
            until: match self.until {
                Until::Requests(requests) => Until::Requests(share_of(requests, index, count).1),
                until @ Until::Elapsed(_) => until,
            },
            rate: self.rate.map(of),
            stages: self.stages.iter().map(|stage| Stage { rate: of(stage.rate), ..*stage }).collect(),
            // Each thread and each lane takes one of the next.
            seed: self.seed.wrapping_add(index << 32),
            ..self.clone()
        }
    }

    /// Whether operations are due at set times, whether or not the earlier ones have ended.
    pub(super) fn is_open_loop(&self) -> bool {
        self.rate.is_some() || self.replay.as_ref().is_some_and(|schedule| schedule.has_times())
    }

    pub(super) fn threads(&self) -> usize {
        self.threads.clamp(1, self.connections.max(1))
    }

    pub(super) fn source(&self, number: u64) -> Option<IpAddr> {
        let count = self.sources.len() as u64;
        number.checked_rem(count).and_then(|index| self.sources.get(index as usize).copied())
    }
}

/// The times of a load. `start <= ramped <= window_start`, and `window_end <= deadline`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeline {
    pub start: Instant,
    /// The end of the ramp. An open loop's first operation is due then.
    pub ramped: Instant,
    pub window_start: Instant,
    /// `None` if the window ends with the last operation.
    pub window_end: Option<Instant>,
    /// No operation starts after this.
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

    /// The timeline if the load was stopped at `at`.
    pub(super) fn stopped(self, at: Option<Instant>) -> Self {
        let Some(at) = at.filter(|at| self.window_end.is_none_or(|end| *at < end)) else { return self };
        let at = at.max(self.window_start);
        Self { window_end: Some(at), deadline: Some(at), ..self }
    }

    /// Whether `time` is within the window.
    pub(super) fn is_measured(&self, time: Instant) -> bool {
        time >= self.window_start && self.window_end.is_none_or(|end| time < end)
    }
}

/// Divides `count` numbered items evenly among `all`. Returns the number of the first item that `index` gets, and how many it gets.
pub(super) fn share_of(count: u64, index: u64, all: u64) -> (u64, u64) {
    let (each, extra) = (count / all, count % all);
    (each * index + extra.min(index), each + u64::from(index < extra))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_generators_are_together_the_whole() {
        let whole = Shape {
            rate: Some(30.0),
            stages: vec![Stage { time: Duration::from_secs(1), rate: 90.0 }],
            ..Shape::closed(7, Until::Requests(10))
        };
        let parts = [0, 1, 2].map(|index| whole.share(index, 3));
        assert_eq!(parts.each_ref().map(|part| part.connections), [3, 2, 2]);
        assert_eq!(parts.each_ref().map(|part| part.until), [4, 3, 3].map(Until::Requests));
        assert!(parts.iter().all(|part| part.rate == Some(10.0) && part.stages[0].rate == 30.0));
        assert_ne!(parts[0].seed, parts[1].seed);
    }

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
