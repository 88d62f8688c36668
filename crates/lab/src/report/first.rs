//! The answer of a run in one sentence.

use crate::record::{Case, Conclusion, Layer};
use crate::stats::ROUNDS_MIN;

use super::conclude::TOO_FEW;
use super::figures::{BUSY_US, CORES_PER_GBPS, Figures};
use super::tables::{case_title, rate_figure, title};

/// A sentence, and the inequality behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub text: String,
    /// Empty if the sentence says that there is no answer.
    pub because: String,
}

/// The first of the leading conclusions that has enough rounds; without one, that the run bears nothing out.
pub(super) fn answer(figures: Figures<'_>) -> Answer {
    let run = figures.run;
    let has_rounds = |conclusion: &&Conclusion| conclusion.leads && !conclusion.because.starts_with(TOO_FEW);
    if let Some(conclusion) = run.conclusions.iter().find(has_rounds) {
        return Answer { text: conclusion.text.clone(), because: conclusion.because.clone() };
    }
    let why = match run.cells.is_empty() {
        true => "nothing was measured",
        false => "no figure bears an answer out",
    };
    Answer { text: format!("This run has no answer: {why}."), because: String::new() }
}

/// The case and the metric of the chart beside the answer: what the whole host pays for the same work, in the first case in which balancers
/// can be compared with the reference. Its ratios mean something on a host that is not quiet, too.
pub(super) fn charted<'a>(figures: Figures<'a>) -> Option<(&'a Case, &'static str)> {
    let metric = |case: &Case| if rate_figure(case).0 == "Gbps" { CORES_PER_GBPS } else { BUSY_US };
    let has_ratio = |case: &&Case| {
        let reference = &figures.run.scenario.reference;
        let others = case.instances.iter().filter(|id| *id != reference);
        others.into_iter().any(|id| figures.ratio(&case.name, id, reference, metric(case)).is_some())
    };
    figures.run.scenario.cases.iter().find(has_ratio).map(|case| (case, metric(case)))
}

/// The caption of that chart.
pub(super) fn caption(figures: Figures<'_>, case: &Case) -> String {
    let run = figures.run;
    let reference = run.scenario.instances.iter().find(|instance| instance.id == run.scenario.reference);
    let name = reference.map_or(run.scenario.reference.clone(), |instance| title(figures, instance));
    let is_direct = reference.is_some_and(|instance| crate::judge::layer_of(run, &instance.id) == Layer::Direct);
    let than = if is_direct { "without a balancer".to_owned() } else { format!("through {name}") };
    format!("{}: CPU of the whole host for the same work, 1 is the host {than}", case_title(case))
}

/// The note below it.
pub(super) fn note(rounds: usize) -> String {
    match rounds {
        0..ROUNDS_MIN => {
            format!(
                "Bar: median of the ratios in a block; bracket: minimum and maximum. {rounds} rounds are too few for an interval."
            )
        }
        _ => "Bar: median of the ratios in a block; bracket: 95 % interval.".to_owned(),
    }
}
