//! The results computed from the measurements.

use serde::{Deserialize, Serialize};

/// The assessment of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// The inequalities that led to it, each with its figures: `balancer's CPU 97 % busy >= 95 %`.
    pub reasons: Vec<String>,
}

/// What limited the figure of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The balancer: the figure is its capacity.
    LbSaturated,
    /// The load could not make more: the figure is a lower bound.
    GeneratorSaturated,
    /// The origins could not serve more: the figure is a lower bound.
    BackendSaturated,
    /// Nothing: there were no more requests in flight.
    ConcurrencyLimited,
    /// Nothing: the offered rate was below the capacity of all.
    BelowCapacity,
    /// Something outside the contenders, which capped several of them alike.
    CapBound,
    /// The host disturbed it: the figure alone means nothing, but its ratio to the reference, which was measured within seconds of it and is
    /// corrected by the reference loop, does.
    Disturbed,
    /// The figure means nothing.
    Invalid,
}

/// One figure of one instance under one case, over its rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Statistic {
    /// [`Case::name`](super::Case::name).
    pub case: String,
    /// [`Instance::id`](super::Instance::id).
    pub instance: String,
    /// The name of the figure: `ok_per_s`, `balancer_us_per_op`, `p99_us`.
    pub metric: String,
    /// Rounds that it was computed from.
    pub rounds: u32,
    /// Median of the rounds.
    pub median: f64,
    /// The minimum of the rounds.
    pub least: f64,
    /// The maximum of the rounds.
    pub greatest: f64,
    /// Interval in which the median lies with 95 % confidence; absent for too few rounds.
    pub interval: Option<(f64, f64)>,
    /// Against the scenario's reference, round by round.
    pub ratio: Option<Ratio>,
    /// Spearman's rank correlation with the number of the round. Beyond 0.5 in either direction, the host drifted.
    pub drift: Option<f64>,
}

/// A figure over that of the reference in the same round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The reference: [`Instance::id`](super::Instance::id).
    pub to: String,
    /// Median over the rounds.
    pub median: f64,
    /// Interval in which it lies with 95 % confidence; absent for too few rounds.
    pub interval: Option<(f64, f64)>,
    /// Whether the whole interval lies outside 1 ± the noise floor.
    pub is_different: bool,
}

/// A sentence that the figures support.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conclusion {
    /// The sentence.
    pub text: String,
    /// The inequality that triggered it, with its figures.
    pub because: String,
    /// Whether it is one of the few that a reader must read first.
    #[serde(default)]
    pub leads: bool,
}
