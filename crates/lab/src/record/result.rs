//! What is made of the measurements.

use serde::{Deserialize, Serialize};

/// What is to be thought of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judgement {
    /// In one word.
    pub verdict: Verdict,
    /// The inequalities that led to it, each with its figures: `balancer's CPU 97 % busy >= 95 %`.
    pub reasons: Vec<String>,
}

/// What held the figure of a cell down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The balancer: the figure is its capacity.
    LbSaturated,
    /// The load could not make more: the figure is a lower bound.
    GeneratorSaturated,
    /// The origins could not serve more: the figure is a lower bound.
    BackendSaturated,
    /// Nobody: there were no more requests in flight.
    ConcurrencyLimited,
    /// Nobody: the offered rate was below everybody's capacity.
    BelowCapacity,
    /// Something outside of all contenders, which capped several of them alike.
    CapBound,
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
    /// What it is a figure of: `ok_per_s`, `balancer_us_per_op`, `p99_us`.
    pub metric: String,
    /// Rounds that it was computed from.
    pub rounds: u32,
    /// Median of the rounds.
    pub median: f64,
    /// Least of the rounds.
    pub least: f64,
    /// Greatest of the rounds.
    pub greatest: f64,
    /// Interval in which the median lies with 95 % confidence; absent for too few rounds.
    pub interval: Option<(f64, f64)>,
    /// Against the scenario's reference, round by round.
    pub ratio: Option<Ratio>,
    /// Spearman's rank correlation with the number of the round; beyond 0.5 either way the host drifted.
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

/// A sentence that the figures bear out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conclusion {
    /// The sentence.
    pub text: String,
    /// The inequality that triggered it, with its figures.
    pub because: String,
    /// Whether it is one of the few that a reader must have read who reads nothing else.
    #[serde(default)]
    pub leads: bool,
}
