//! What a small number of rounds can show.
//!
//! It has medians with intervals ([`estimate`]), ratios of pairs and when they count as different ([`ratio_of_pairs`], [`differs`]), what a
//! disturbed host did to a measurement ([`corrected_cpu`], [`corrected_rate`]), drift ([`spearman`]), Little's law ([`little_gap`]), slopes of
//! chained hops ([`slope`]), and scaling over CPUs ([`fit_usl`]). It is pure and
//! seeded: the same rounds give the same figures on every host and at any time, so that a report can be computed again.
//!
//! Percentiles of latency are not computed here. They come from histograms of one round each, and are never averaged over rounds, here or
//! elsewhere.

mod bootstrap;
mod disturbance;
mod drift;
mod interval;
mod ratio;
mod rng;
mod scaling;

pub use disturbance::{Loops, STEADY_FACTOR_MAX, corrected_cpu, corrected_rate, is_steady};
pub use drift::{DRIFT_ROUNDS_MIN, drifts, spearman};
pub use interval::{Estimate, ROUNDS_MIN, bootstrap, estimate, median};
pub use ratio::{Difference, NOISE_MIN, differs, half_width, noise_floor, ratio_of_pairs, unpaired_ratio};
pub use rng::Rng;
pub use scaling::{Usl, fit_usl, slope};

/// The difference between `X * R` (completions per second times mean seconds in the system) and the `connections` that a closed loop keeps
/// busy, as a share of them (Little, "A Proof for the Queuing Formula L = λW", Operations Research 1961). None without connections.
///
/// A large gap means that connections were not really in use, or that the two figures are from different runs.
pub fn little_gap(connections: f64, per_second: f64, mean_seconds: f64) -> Option<f64> {
    let gap = (connections - per_second * mean_seconds).abs() / connections;
    (connections > 0.0 && gap.is_finite()).then_some(gap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(connections: f64, per_second: f64, mean_seconds: f64, expect: Option<f64>) {
        match (little_gap(connections, per_second, mean_seconds), expect) {
            (Some(got), Some(expect)) => assert!((got - expect).abs() < 1e-3, "{got}, not {expect}"),
            (got, expect) => assert_eq!(got, expect),
        }
    }

    #[test]
    fn the_law_of_little() {
        // Published ab runs: 1,000 connections, 3,747.75/s, mean 263 ms; 1,558.15/s, mean 640 ms.
        check(1000.0, 3747.75, 0.263, Some(0.014));
        check(1000.0, 1558.15, 0.640, Some(0.003));
        // Half of the connections idle.
        check(100.0, 1000.0, 0.05, Some(0.5));
        check(0.0, 10.0, 1.0, None);
        check(10.0, f64::NAN, 1.0, None);
    }
}
