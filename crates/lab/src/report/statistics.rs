//! Every figure of every cell over its rounds, as stored in `run.json`.

use crate::record::{Ratio, Run, Statistic};
use crate::stats::{Difference, Estimate, differs, estimate, spearman};

use super::figures::{Figures, METRICS, Metric};

/// All statistics of the run, in the order of its cases, instances, and [`METRICS`].
pub(crate) fn statistics(run: &Run) -> Vec<Statistic> {
    let figures = Figures::new(run);
    let mut statistics = Vec::new();
    for case in &run.scenario.cases {
        for instance in figures.instances(&case.name) {
            let of = |metric| statistic(figures, &case.name, &instance.id, metric);
            statistics.extend(METRICS.iter().filter_map(of));
        }
    }
    statistics
}

fn statistic(figures: Figures<'_>, case: &str, instance: &str, metric: &Metric) -> Option<Statistic> {
    let rounds = figures.rounds(case, instance, 0, metric);
    let values: Vec<f64> = rounds.iter().copied().flatten().collect();
    let all = estimate(&values)?;
    let reference = &figures.run.scenario.reference;
    let ratio = figures.ratio(case, instance, reference, metric.name).filter(|_| instance != reference);
    Some(Statistic {
        case: case.to_owned(),
        instance: instance.to_owned(),
        metric: metric.name.to_owned(),
        rounds: u32::try_from(all.rounds).unwrap_or(u32::MAX),
        median: all.median,
        least: values.iter().copied().fold(f64::INFINITY, f64::min),
        greatest: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        interval: interval(&all),
        ratio: ratio.map(|ratio| Ratio {
            to: reference.clone(),
            median: ratio.median,
            interval: interval(&ratio),
            is_different: matches!(
                differs(&ratio, figures.noise(case, metric.name)),
                Difference::More | Difference::Less
            ),
        }),
        drift: spearman(&values),
    })
}

fn interval(estimate: &Estimate) -> Option<(f64, f64)> {
    estimate.is_sure().then_some((estimate.low, estimate.high))
}
