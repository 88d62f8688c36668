//! The figures of a run that `compare` and `gate` need.

use crate::compare::{Change, Outcome};
use crate::record::Run;

use super::figures::{self, Figures};
use super::number;
use super::table::Table;

/// Which direction is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    More,
    Less,
}

/// The metrics by which runs are compared, each with its better direction.
pub(crate) const METRICS_COMPARED: &[(&str, Better)] = &[
    (figures::RPS, Better::More),
    (figures::GBPS, Better::More),
    (figures::LB_US, Better::Less),
    (figures::LB_CORES_PER_GBPS, Better::Less),
    (figures::BUSY_US, Better::Less),
    (figures::CORES_PER_GBPS, Better::Less),
    (figures::ORIGIN_US, Better::Less),
    (figures::P50, Better::Less),
    (figures::P99, Better::Less),
    (figures::LB_MIB, Better::Less),
];

/// The better direction of a metric; less if the metric is unknown.
pub(crate) fn better(metric: &str) -> Better {
    METRICS_COMPARED.iter().find(|(name, _)| *name == metric).map_or(Better::Less, |(_, better)| *better)
}

/// A run's figures, for code that does not know the tables.
pub(crate) struct Reading<'a>(Figures<'a>);

impl<'a> Reading<'a> {
    pub(crate) fn new(run: &'a Run) -> Self {
        Self(Figures::new(run))
    }

    /// Cases and instances that have at least one cell.
    pub(crate) fn cells(&self) -> Vec<(&'a str, &'a str)> {
        let run = self.0.run;
        let of_case = |case: &'a crate::record::Case| {
            let measured = case.instances.iter().filter(|instance| !self.0.cells(&case.name, instance).is_empty());
            measured.map(|instance| (case.name.as_str(), instance.as_str()))
        };
        run.scenario.cases.iter().flat_map(of_case).collect()
    }

    pub(crate) fn values(&self, case: &str, instance: &str, metric: &str) -> Vec<f64> {
        self.0.values(case, instance, metric)
    }

    /// `left` over `right`, block by block, corrected for what disturbed the host.
    pub(crate) fn ratio(&self, case: &str, left: &str, right: &str, metric: &str) -> Option<crate::stats::Estimate> {
        self.0.ratio(case, left, right, metric)
    }

    pub(crate) fn noise(&self, case: &str, metric: &str) -> f64 {
        self.0.noise(case, metric)
    }
}

/// Changes as a Markdown table, which is also readable on a terminal.
pub(crate) fn changes(changes: &[Change]) -> String {
    let head = ["case", "contender", "figure", "old", "new", "new / old", "noise", "outcome"];
    let mut table = Table::new("", head);
    for column in [1, 2, 7] {
        table.head[column].is_figure = false;
    }
    for change in changes {
        let outcome = match change.outcome {
            Outcome::Better => "better",
            Outcome::Worse => "worse",
            Outcome::NotShown => "no difference shown",
            Outcome::TooFewRounds => "too few rounds",
        };
        let title = figures::metric(&change.metric).map_or(change.metric.as_str(), |metric| metric.title);
        table.row([
            change.case.clone(),
            change.instance.clone(),
            title.to_owned(),
            number::plain(change.old),
            number::plain(change.new),
            number::ratio(&change.ratio),
            format!("± {}", number::per_cent(change.noise)),
            outcome.to_owned(),
        ]);
    }
    table.markdown()
}
