//! What a disturbed host did to a measurement, by a loop of fixed work before and after it.
//!
//! A neighbour on the same CPU, or on the same core or cache of the machine below a virtual one, makes the same work take longer. The loop
//! takes longer by about the same factor, so dividing by it leaves what the work itself costs. The correction is as good as the loop
//! resembles the work, and as the host stays the same between the two loops: [`is_steady`] says when it did not.

/// Between two loops that differ by more than this factor, the host was in two states, and no division corrects that.
pub const STEADY_FACTOR_MAX: f64 = 1.25;

/// The time that one turn of the loop took, before and after a measurement, in the same unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loops {
    /// Before.
    pub before: f64,
    /// After.
    pub after: f64,
}

impl Loops {
    fn mean(self) -> f64 {
        f64::midpoint(self.before, self.after)
    }

    /// The longer time over the shorter.
    #[must_use]
    pub fn change(self) -> f64 {
        self.before.max(self.after) / self.before.min(self.after)
    }
}

/// Whether the host was in one state around the measurement. It was not if a loop is missing (zero, or no number).
#[must_use]
pub fn is_steady(loops: Loops) -> bool {
    loops.before > 0.0 && loops.after > 0.0 && loops.change() <= STEADY_FACTOR_MAX
}

/// CPU time in turns of the loop, by the CPU time of the loop.
#[must_use]
pub fn corrected_cpu(cpu: f64, loops: Loops) -> f64 {
    cpu / loops.mean()
}

/// A rate in operations for each turn of the loop, by the loop's time on the clock: what a neighbour took of the CPU, it took of both.
#[must_use]
pub fn corrected_rate(per_second: f64, loops: Loops) -> f64 {
    per_second * loops.mean()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Rng, half_width, ratio_of_pairs};

    /// A host whose neighbour makes everything slower by a factor that changes with time.
    struct Host {
        rng: Rng,
        /// The greatest slowdown: 1.0 is a host without a neighbour.
        slowdown_max: f64,
        /// How many cells pass before the neighbour changes its mind.
        cells: usize,
        now: f64,
        cell: usize,
    }

    impl Host {
        fn new(seed: u64, slowdown_max: f64, cells: usize) -> Self {
            Self { rng: Rng::new(seed), slowdown_max, cells, now: 1.0, cell: 0 }
        }

        /// One cell of something that costs `cost`: the figure as measured, and the loops around it, with noise of 2 %.
        fn cell(&mut self, cost: f64) -> (f64, Loops) {
            if self.cell.is_multiple_of(self.cells) {
                self.now = 1.0 + (self.slowdown_max - 1.0) * self.rng.unit();
            }
            self.cell += 1;
            let mut noisy = |value: f64| value * (0.98 + 0.04 * self.rng.unit());
            let (measured, before, after) = (noisy(cost), noisy(6.0), noisy(6.0));
            (measured * self.now, Loops { before: before * self.now, after: after * self.now })
        }
    }

    /// The ratio of costs of two contenders, in pairs, corrected or not.
    fn ratio(host: &mut Host, (cost, reference): (f64, f64), is_corrected: bool) -> crate::stats::Estimate {
        let pairs: Vec<f64> = (0..12)
            .map(|_| {
                let ((one, of_one), (other, of_other)) = (host.cell(cost), host.cell(reference));
                if is_corrected { corrected_cpu(one, of_one) / corrected_cpu(other, of_other) } else { one / other }
            })
            .collect();
        ratio_of_pairs(&pairs).unwrap()
    }

    #[test]
    fn a_planted_neighbour_does_not_change_the_ratio() {
        for seed in 0..20 {
            let quiet = ratio(&mut Host::new(seed, 1.0, 1), (13.0, 10.0), true);
            // It changes with every cell, in the middle of pairs, or stays for some of them.
            for cells in [1, 3, 8] {
                let noisy = ratio(&mut Host::new(seed, 2.0, cells), (13.0, 10.0), true);
                assert!((noisy.median / quiet.median - 1.0).abs() < 0.05, "{seed} {cells}: {noisy:?} {quiet:?}");
                assert!(half_width(&noisy) < 0.05, "{seed} {cells}: {noisy:?}");
                let raw = ratio(&mut Host::new(seed, 2.0, cells), (13.0, 10.0), false);
                assert!(cells != 1 || half_width(&raw) > half_width(&noisy), "the loop is what helps: {raw:?}");
            }
        }
    }

    #[test]
    fn the_order_of_contenders_stays() {
        let costs = [10.0, 12.0, 15.0, 40.0];
        for seed in 0..20 {
            let mut host = Host::new(seed, 2.0, 1);
            let ratios: Vec<f64> = costs.iter().map(|&cost| ratio(&mut host, (cost, 12.0), true).median).collect();
            assert!(ratios.windows(2).all(|pair| pair[0] < pair[1]), "{seed}: {ratios:?}");
        }
    }

    #[test]
    fn what_no_division_corrects() {
        let check = |before, after, expect| assert_eq!(is_steady(Loops { before, after }), expect, "{before} {after}");
        check(6.0, 6.0, true);
        check(6.0, 7.4, true);
        check(7.6, 6.0, false);
        check(0.0, 6.0, false);
        check(f64::NAN, 6.0, false);
    }

    #[test]
    fn rates_and_costs_are_corrected_in_opposite_ways() {
        // A CPU of which a neighbour takes half: half of the rate, and twice the time of the loop.
        let (alone, shared) = (Loops { before: 5.0, after: 5.0 }, Loops { before: 9.0, after: 11.0 });
        assert_eq!(corrected_rate(1_000.0, alone), corrected_rate(500.0, shared));
        assert_eq!(corrected_cpu(10.0, alone), corrected_cpu(20.0, shared));
    }
}
