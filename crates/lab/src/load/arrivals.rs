//! When the operations of an open loop are due: a rate that may change in stages, and arrivals that are even, in bursts or random.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::replay::Schedule;
use super::shape::Shape;
use crate::record::Pacing;
use crate::stats::Rng;

/// A stage of a load: the rate changes in a straight line to this one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// How long that takes. Zero is a jump.
    pub time: Duration,
    /// Operations per second at its end.
    pub rate: f64,
}

/// A time with a rate that is constant or changes evenly.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    /// When it begins, in seconds.
    begin: f64,
    /// The operations before it.
    before: f64,
    /// The rate at its begin, in operations per second.
    rate: f64,
    /// How much the rate grows in a second.
    slope: f64,
}

impl Piece {
    fn count(&self, seconds: f64) -> f64 {
        self.before + seconds * (self.rate + self.slope * seconds / 2.0)
    }

    /// The time within it at which so many operations have been due, counted from its begin. Infinite if the rate is 0 from then on.
    fn seconds(&self, count: f64) -> f64 {
        if count <= 0.0 {
            return 0.0;
        }
        // The solution of `count` = rate t + slope t^2 / 2 that does not lose digits.
        let root = (self.rate * self.rate + 2.0 * self.slope * count).max(0.0).sqrt();
        2.0 * count / (self.rate + root)
    }
}

/// The offered rate from the first operation on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Clock {
    /// At least one, in order; the last one has no end.
    pieces: Vec<Piece>,
}

impl Clock {
    /// The rate of `shape`, divided by `share`: during the warm-up the first one, then that of the stages, then the last one.
    pub(super) fn new(shape: &Shape, rate: f64, share: f64) -> Self {
        let mut pieces = Vec::new();
        let mut next = Piece { begin: 0.0, before: 0.0, rate: rate / share, slope: 0.0 };
        let warm_up = Stage { time: shape.warm_up, rate };
        let stages: Vec<Stage> = if shape.stages.is_empty() { Vec::new() } else { vec![warm_up] };
        for stage in stages.iter().chain(&shape.stages) {
            let (seconds, rate) = (stage.time.as_secs_f64(), stage.rate / share);
            if seconds > 0.0 {
                next.slope = (rate - next.rate) / seconds;
                pieces.push(next);
                next.before = next.count(seconds);
            }
            next = Piece { begin: next.begin + seconds, before: next.before, rate, slope: 0.0 };
        }
        pieces.push(next);
        Self { pieces }
    }

    /// How many operations are due until `time`, with the fraction of the next one.
    pub(super) fn count(&self, time: Duration) -> f64 {
        let seconds = time.as_secs_f64();
        let place = self.pieces.partition_point(|piece| piece.begin <= seconds).saturating_sub(1);
        self.pieces.get(place).map_or(0.0, |piece| piece.count(seconds - piece.begin))
    }

    /// The time at which so many operations have been due.
    fn time(&self, count: f64) -> f64 {
        let place = self.pieces.partition_point(|piece| piece.before <= count).saturating_sub(1);
        self.pieces.get(place).map_or(0.0, |piece| piece.begin + piece.seconds(count - piece.before))
    }
}

/// The times of operations, one after the other. Clones give the same times from where they are.
#[derive(Clone, Debug)]
pub(super) struct Arrivals {
    clock: Arc<Clock>,
    pacing: Pacing,
    /// The number of the next operation.
    index: u64,
    /// How many operations are due on average when it is: its number, unless arrivals are random.
    count: f64,
    rng: Rng,
    /// The times of recorded requests instead of those of `clock`: of every `step`th operation of the schedule, from `first` on.
    recorded: Option<Recorded>,
}

#[derive(Clone, Debug)]
struct Recorded {
    schedule: Arc<Schedule>,
    first: u64,
    step: u64,
}

impl Arrivals {
    pub(super) fn new(clock: Clock, pacing: Pacing, seed: u64) -> Self {
        let mut arrivals =
            Self { clock: Arc::new(clock), pacing, index: 0, count: 0.0, rng: Rng::new(seed), recorded: None };
        if pacing == Pacing::Poisson {
            arrivals.count = arrivals.gap();
        }
        arrivals
    }

    /// The times of thread `first` of `threads`, as recorded.
    pub(super) fn recorded(schedule: Arc<Schedule>, first: u64, threads: u64) -> Self {
        let clock = Clock { pieces: Vec::new() };
        let recorded = Some(Recorded { schedule, first, step: threads });
        Self { recorded, ..Self::new(clock, Pacing::Uniform, 0) }
    }

    /// The number of the next operation.
    pub(super) fn index(&self) -> u64 {
        self.index
    }

    /// When the next operation is due, after the first moment of the load. `None` if it never is.
    pub(super) fn time(&self) -> Option<Duration> {
        if let Some(Recorded { schedule, first, step }) = &self.recorded {
            return schedule.due(first + self.index * step);
        }
        let seconds = self.clock.time(self.count);
        let seconds = match self.pacing {
            Pacing::Uniform | Pacing::Poisson => seconds,
            // Like the token bucket of strest-grpc, which is filled at the start of each second.
            Pacing::Burst1hz => seconds.floor(),
        };
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// Goes on to the operation after that.
    pub(super) fn step(&mut self) {
        self.index += 1;
        self.count = match self.pacing {
            Pacing::Uniform | Pacing::Burst1hz => self.index as f64,
            Pacing::Poisson => self.count + self.gap(),
        };
    }

    /// The distance of two random arrivals, 1 on average.
    fn gap(&mut self) -> f64 {
        -(1.0 - self.rng.unit()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::shape::Until;

    fn clock(warm_up: u64, rate: f64, stages: &[(u64, f64)]) -> Clock {
        let stage = |&(seconds, rate): &(u64, f64)| Stage { time: Duration::from_secs(seconds), rate };
        let shape = Shape {
            warm_up: Duration::from_secs(warm_up),
            stages: stages.iter().map(stage).collect(),
            ..Shape::closed(1, Until::Requests(1))
        };
        Clock::new(&shape, rate, 1.0)
    }

    #[test]
    fn stages_are_straight_lines_and_jumps() {
        let check = |clock: &Clock, counts: &[(u64, f64)]| {
            for &(seconds, count) in counts {
                let got = clock.count(Duration::from_secs(seconds));
                assert!((got - count).abs() < 1e-9, "{seconds} s: {got}, not {count}");
                let back = clock.time(count);
                assert!((clock.count(Duration::from_secs_f64(back)) - count).abs() < 1e-6, "{back}");
            }
        };
        check(&clock(5, 10.0, &[]), &[(0, 0.0), (3, 30.0), (100, 1_000.0)]);
        // Two seconds of warm-up, up to 100 in ten, a jump to 50 that stays, down to nothing.
        let staged = clock(2, 20.0, &[(10, 100.0), (0, 50.0), (4, 50.0), (10, 0.0)]);
        check(&staged, &[(2, 40.0), (12, 640.0), (16, 840.0), (26, 1_090.0), (99, 1_090.0)]);
        let from_nothing = clock(0, 0.0, &[(2, 0.0), (2, 10.0)]);
        check(&from_nothing, &[(1, 0.0), (2, 0.0), (4, 10.0)]);
        // The first operation is due when there is a rate.
        assert_eq!(Arrivals::new(from_nothing, Pacing::Uniform, 1).time(), Some(Duration::from_secs(2)));
        // None is, once the rate is 0 for good.
        assert_eq!(staged.time(1_090.5), f64::INFINITY);
    }

    #[test]
    fn random_arrivals_have_the_rate_and_the_spread_of_a_poisson_process() {
        let mut arrivals = Arrivals::new(clock(0, 100.0, &[]), Pacing::Poisson, 7);
        let again = arrivals.clone();
        let mut by_second = [0_u32; 200];
        while let Some(count) = by_second.get_mut(arrivals.time().unwrap().as_secs() as usize) {
            *count += 1;
            arrivals.step();
        }
        let mean = f64::from(by_second.iter().sum::<u32>()) / 200.0;
        let variance = by_second.iter().map(|&count| (f64::from(count) - mean).powi(2)).sum::<f64>() / 199.0;
        assert!((97.0..103.0).contains(&mean) && (70.0..140.0).contains(&variance), "{mean} {variance}");
        assert_eq!(again.time(), Arrivals::new(clock(0, 100.0, &[]), Pacing::Poisson, 7).time());
    }

    #[test]
    fn shares_of_threads_are_together_the_whole() {
        let shape = Shape {
            stages: vec![Stage { time: Duration::from_secs(3), rate: 9.0 }],
            ..Shape::closed(1, Until::Requests(1))
        };
        let [whole, third] = [1.0, 3.0].map(|share| Clock::new(&shape, 3.0, share).count(Duration::from_secs(5)));
        assert_eq!((whole, third), (36.0, 12.0));
    }
}
