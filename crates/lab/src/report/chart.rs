//! One case of a run as a chart and as a table row: the cost of an operation for each balancer.
//!
//! Documents use the chart that `--chart` writes and the table that `--table=costs` prints. Both show the same instances: each contender
//! alone, with the configuration that its makers recommend and the fewest workers in the run. The full report is elsewhere (`plots`,
//! `tables`).

use crate::record::{Instance, LoadKind, Mode, Variant};
use crate::stats::{Estimate, ROUNDS_MIN, estimate};

use super::figures::{self, Figures};
use super::plot::{self, Bar};
use super::table::Table;
use super::{environment, number, plots};

/// A complete SVG file; None if the run has no such case, or no valid round of it.
pub(super) fn chart(figures: Figures<'_>, name: &str, case: &str) -> Option<String> {
    let case = figures.run.case(case)?;
    let (metric, unit) = match case.load.kind {
        LoadKind::Stream => (figures::LB_CORES_PER_GBPS, "cores per Gbps"),
        _ => (figures::LB_US, "µs of CPU per operation"),
    };
    let bars: Vec<Bar> = shown(figures)
        .into_iter()
        .filter_map(|instance| {
            let rounds = figures.values(&case.name, &instance.id, metric);
            let estimate = estimate(&rounds)?;
            let name = format!("{}, n={}", contender(figures, instance), estimate.rounds);
            Some(Bar { name, ink: plots::ink(figures, instance), estimate, rounds })
        })
        .collect();
    let made_by = format!("steelyard lab report lab/runs/{name} --case {} --chart", case.name);
    let caption = format!("{}: CPU time of the balancer", case.title);
    plot::document(
        &caption,
        unit,
        &format!("Run {name}. Bar: median. Dot: one round. Bracket: range. Shorter is better."),
        &made_by,
        &bars,
    )
}

/// A row for each closed loop with operations, and a column for each balancer.
pub(super) fn costs(figures: Figures<'_>) -> Table {
    let shown = shown(figures);
    let titles = shown.iter().map(|instance| contender(figures, instance));
    let mut table = Table::new("", ["µs of CPU per operation".to_owned()].into_iter().chain(titles));
    // The cost of an operation depends on how busy the balancer is, so only cases that load it as much as they can may share a table.
    for case in figures.run.scenario.cases.iter().filter(|case| matches!(case.load.mode, Mode::Closed)) {
        let cells = shown
            .iter()
            .map(|instance| figures.estimate(&case.name, &instance.id, figures::LB_US).map_or("-".to_owned(), cell));
        let cells: Vec<String> = cells.collect();
        if cells.iter().any(|cell| cell != "-") {
            table.row([case.title.clone()].into_iter().chain(cells));
        }
    }
    table.note("Median over n rounds, with the minimum and the maximum. Every balancer has one worker on a CPU of its own, and the load is a closed loop.");
    table.note(environment::noise_sentence(figures));
    if let Some(left_out) =
        environment::cautions(figures.run).into_iter().find(|caution| caution.contains("cells do not count"))
    {
        table.note(left_out);
    }
    table
}

fn cell(estimate: Estimate) -> String {
    match estimate.rounds {
        // In as many digits as so few rounds can claim.
        n if n < ROUNDS_MIN => number::with_interval(&estimate, number::plain),
        n => {
            let [median, low, high] = [estimate.median, estimate.low, estimate.high].map(number::plain);
            format!("{median} ({low}–{high}, n={n})")
        }
    }
}

fn contender(figures: Figures<'_>, instance: &Instance) -> String {
    let known = figures.run.contenders.iter().find(|known| known.name == instance.contender);
    known.map_or(&instance.contender, |known| &known.title).clone()
}

fn shown(figures: Figures<'_>) -> Vec<&Instance> {
    let instances = &figures.run.scenario.instances;
    let is_shown = |instance: &&Instance| {
        let of_contender = instances.iter().filter(|other| other.contender == instance.contender);
        let fewest = of_contender.map(|other| other.workers).min();
        instance.variant == Variant::Tuned && instance.hops == 1 && Some(instance.workers) == fewest
    };
    instances.iter().filter(is_shown).collect()
}
