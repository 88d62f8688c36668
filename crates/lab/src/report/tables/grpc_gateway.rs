//! Percentiles of a gRPC gateway: what it adds, at which rate, over how many connections.

use crate::record::{Case, Instance, Layer, Mode, OriginShare, Pacing, Rate};
use crate::stats::median;

use super::super::figures::{Figures, LB_US, RPS};
use super::super::number;
use super::super::table::Table;
use super::{absent, case_title, cell, middle, middle_shown, or_dash, title, verdict};

const PERCENTILES: [(&str, &str); 5] =
    [("p50", "p50_us"), ("p75", "p75_us"), ("p90", "p90_us"), ("p95", "p95_us"), ("p99", "p99_us")];

/// From this many connection counts on, a series over connections is a separate table.
const SWEEP_MIN: usize = 3;

pub(super) fn published(figures: Figures<'_>) -> Vec<Table> {
    let cases = &figures.run.scenario.cases;
    let mut tables: Vec<Table> =
        cases.iter().filter(|case| is_one_at_a_time(case)).map(|case| added(figures, case)).collect();
    tables.extend(by_rate(figures));
    tables.extend(by_connections(figures));
    tables
}

/// What a gateway adds to sequential calls, for each published service time; and which origins one connection's calls reach.
pub(super) fn summary(figures: Figures<'_>) -> Option<Table> {
    let run = figures.run;
    let times: Vec<&Case> =
        run.scenario.cases.iter().filter(|case| is_one_at_a_time(case) && case.label.is_some()).collect();
    let first = *times.first()?;
    let shared = run.scenario.cases.iter().find(|case| case.load.connections == 1 && case.load.streams > 1);
    let columns = times.iter().flat_map(|case| {
        ["p50", "p95", "p99", figures.title_of("相差 (shift) p95", "shift of p95")]
            .map(|column| format!("{}: {column}", case_title(case)))
    });
    let ends = ["LB µs/call", "spread over origins", "verdict"].map(str::to_owned);
    let head = std::iter::once("gateway".to_owned()).chain(columns).chain(ends);
    let mut table = Table::new(first.title.as_str(), head).words_from(3 + 4 * times.len());
    for instance in figures.instances(&first.name) {
        let id = &instance.id;
        let of_case = |case: &&Case| {
            let us = |metric| {
                let median = figures.estimate(&case.name, id, metric).map(|estimate| estimate.median);
                median.map_or_else(|| absent(figures, &case.name, id), |us| format!("{us:.0}us"))
            };
            let shift = figures.shift(&case.name, id, &run.scenario.reference, "p95_us");
            let shift = shift.filter(|_| *id != run.scenario.reference).map(|shift| shift.median);
            [us("p50_us"), us("p95_us"), us("p99_us"), or_dash(shift, |us| format!("{us:.0}us"))]
        };
        let ends = [
            cell(figures, &first.name, id, LB_US, number::plain),
            shared.map_or("-".to_owned(), |case| spread(figures, case, id)),
            verdict(figures, &first.name, id),
        ];
        table.row(std::iter::once(title(figures, instance)).chain(times.iter().flat_map(of_case)).chain(ends));
    }
    super::add_gaps(&mut table, figures, 1);
    table.note("Spread: coefficient of variation of what each origin got of one connection's calls; 0 is even. LB µs/call and the verdict are those of the first case.");
    Some(table)
}

/// Whether the case has sequential calls, as in the published figures of added latency.
pub(crate) fn is_one_at_a_time(case: &Case) -> bool {
    case.load.mode == Mode::Closed && case.load.connections == 1 && case.load.streams == 1
}

/// `P(x) | direct | gateway | difference`, for each gateway.
fn added(figures: Figures<'_>, case: &Case) -> Table {
    let reference = &figures.run.scenario.reference;
    let through: Vec<&Instance> =
        figures.instances(&case.name).into_iter().filter(|instance| instance.id != *reference).collect();
    let mut head = vec!["P(x)".to_owned(), figures.title_of("原生网络延迟 (direct)", "direct").to_owned()];
    for instance in &through {
        head.extend([title(figures, instance), figures.title_of("相差 (shift)", "shift").to_owned()]);
    }
    let mut table = Table::new(case_title(case), head);
    for (name, metric) in PERCENTILES {
        let of = |instance: &str| {
            let value = figures.estimate(&case.name, instance, metric).map(|estimate| estimate.median);
            value.map_or_else(|| absent(figures, &case.name, instance), |us| format!("{us:.0}us"))
        };
        let mut row = vec![name.to_owned(), of(reference)];
        for instance in &through {
            let shift = figures.shift(&case.name, &instance.id, reference, metric);
            row.extend([of(&instance.id), or_dash(shift.map(|shift| shift.median), |us| format!("{us:.0}us"))]);
        }
        table.row(row);
    }
    table.note("A shift of a percentile is not the time added to a request: the requests at p95 with and without a gateway are not the same ones.");
    table
}

/// One table for each number of connections and instance, with a column for each rate.
fn by_rate(figures: Figures<'_>) -> Vec<Table> {
    let mut tables = Vec::new();
    for group in groups(figures, |left, right| left.load.connections == right.load.connections && is_alike(left, right))
    {
        if group.len() < 2 {
            continue;
        }
        for instance in instances_of(figures, &group) {
            let first = group[0];
            let caption = format!(
                "{}, {} origins, {} connections{}",
                title(figures, instance),
                first.origin.count,
                first.load.connections,
                pacing(first)
            );
            let rates = group.iter().map(|case| offered(figures, case, &instance.id));
            let head: Vec<String> = std::iter::once("P(x)".to_owned()).chain(rates).collect();
            let mut table = Table::new(caption, head);
            for (name, metric) in PERCENTILES {
                let of = |case: &&Case| {
                    let value = figures.estimate(&case.name, &instance.id, metric).map(|estimate| estimate.median);
                    value.map_or_else(|| absent(figures, &case.name, &instance.id), |us| format!("{us:.0}us"))
                };
                table.row(std::iter::once(name.to_owned()).chain(group.iter().map(of)));
            }
            let reached = |case: &&Case| {
                middle_shown(figures, &case.name, &instance.id, |m| Some(m.ok_per_s), |rate| format!("{rate:.0}/s"))
            };
            table.row(std::iter::once("reached".to_owned()).chain(group.iter().map(reached)));
            tables.push(table);
        }
    }
    tables
}

/// One table for each rate that was offered over several numbers of connections, with a row per instance.
fn by_connections(figures: Figures<'_>) -> Vec<Table> {
    let mut tables = Vec::new();
    for group in groups(figures, |left, right| left.load.mode == right.load.mode && is_alike(left, right)) {
        let mut counts: Vec<u32> = group.iter().map(|case| case.load.connections).collect();
        counts.dedup();
        if counts.len() < SWEEP_MIN {
            continue;
        }
        let columns =
            counts.iter().map(|count| format!("{count}{}", figures.title_of("连接 (connections)", " connections")));
        let head: Vec<String> =
            std::iter::once(figures.title_of("模式 (mode)", "mode").to_owned()).chain(columns).collect();
        let first = group[0];
        let rate = first.instances.first().map_or(String::new(), |instance| offered(figures, first, instance));
        let caption = format!("{rate}, {} origins{}", first.origin.count, pacing(first));
        let mut table = Table::new(caption, head).words_from(0);
        for instance in instances_of(figures, &group) {
            let of = |case: &&Case| {
                let at = |metric| figures.estimate(&case.name, &instance.id, metric);
                match (at("p50_us"), at("p75_us"), at("p95_us")) {
                    (p50 @ Some(_), p75 @ Some(_), p95 @ Some(_)) => {
                        let [p50, p75, p95] = [p50, p75, p95].map(|time| number::median(time, number::micros));
                        format!("p50: {p50}, p75: {p75}, p95: {p95}")
                    }
                    _ => absent(figures, &case.name, &instance.id),
                }
            };
            table.row(std::iter::once(title(figures, instance)).chain(group.iter().map(of)));
        }
        tables.push(table);
    }
    tables
}

/// Open-loop cases, grouped; in the scenario's order.
fn groups<'a>(figures: Figures<'a>, is_same: impl Fn(&Case, &Case) -> bool) -> Vec<Vec<&'a Case>> {
    let mut groups: Vec<Vec<&Case>> = Vec::new();
    let open = figures.run.scenario.cases.iter().filter(|case| matches!(case.load.mode, Mode::Open { .. }));
    for case in open {
        match groups.iter_mut().find(|group| is_same(group[0], case)) {
            Some(group) => group.push(case),
            None => groups.push(vec![case]),
        }
    }
    groups
}

fn is_alike(left: &Case, right: &Case) -> bool {
    left.origin == right.origin && pacing(left) == pacing(right) && left.load.kind == right.load.kind
}

fn instances_of<'a>(figures: Figures<'a>, group: &[&Case]) -> Vec<&'a Instance> {
    let takes_part = |instance: &&Instance| group.iter().any(|case| case.instances.contains(&instance.id));
    figures.run.scenario.instances.iter().filter(takes_part).collect()
}

fn pacing(case: &Case) -> &'static str {
    match case.load.mode {
        Mode::Open { pacing: Pacing::Burst1hz, .. } => ", one burst a second",
        Mode::Open { pacing: Pacing::Uniform, .. } => ", evenly paced",
        Mode::Open { pacing: Pacing::Poisson, .. } => ", at random times",
        Mode::Closed | Mode::Search { .. } => "",
    }
}

fn offered(figures: Figures<'_>, case: &Case, instance: &str) -> String {
    match &case.load.mode {
        Mode::Open { rate: Rate::Fixed(rate), .. } => format!("{rate:.0}qps"),
        _ => or_dash(middle(figures, &case.name, instance, |m| m.rate), |rate| format!("{rate:.0}qps")),
    }
}

pub(super) fn honest(figures: Figures<'_>) -> Vec<Table> {
    let mut tables: Vec<Table> = figures.run.scenario.cases.iter().map(|case| costs(figures, case)).collect();
    tables.push(both_clocks(figures));
    tables
}

fn costs(figures: Figures<'_>, case: &Case) -> Table {
    let reference = &figures.run.scenario.reference;
    let head = [
        "gateway",
        "reached",
        "good/bad",
        "shift of p50",
        "shift of p95",
        "shift of p95, %",
        "LB µs/req",
        "spread over origins",
        "verdict",
    ];
    let mut table = Table::new(format!("{}: what the gateway adds", case_title(case)), head).words_from(8);
    for instance in figures.instances(&case.name) {
        let id = &instance.id;
        let shift = |metric| {
            let shift = figures.shift(&case.name, id, reference, metric).filter(|_| id != reference);
            shift.map_or("-".to_owned(), |shift| number::with_interval(&shift, number::micros))
        };
        let relative = figures.ratio(&case.name, id, reference, "p95_us").filter(|_| id != reference);
        let sum = |of: fn(&crate::record::Measurement) -> u64| -> u64 {
            figures.cells(&case.name, id).iter().filter_map(|cell| cell.measurement.as_ref()).map(of).sum()
        };
        table.row([
            title(figures, instance),
            cell(figures, &case.name, id, RPS, number::plain),
            format!("{}/{}", sum(|m| m.ok), sum(|m| m.errors.total())),
            shift("p50_us"),
            shift("p95_us"),
            relative.map_or("-".to_owned(), |ratio| number::change(ratio.median - 1.0)),
            cell(figures, &case.name, id, LB_US, number::plain),
            spread(figures, case, id),
            verdict(figures, &case.name, id),
        ]);
    }
    table.note("Spread: coefficient of variation of the operations of each origin; 0 is even, and one long connection through a layer-4 balancer puts all on one.");
    table
}

/// Open loop: from the scheduled send and from the actual one, side by side.
fn both_clocks(figures: Figures<'_>) -> Table {
    let head = ["case, gateway", "p50 sent", "p50 scheduled", "p95 sent", "p95 scheduled", "p99 sent", "p99 scheduled"];
    let mut table = Table::new("Latency from the actual and from the scheduled send", head);
    for case in figures.run.scenario.cases.iter().filter(|case| matches!(case.load.mode, Mode::Open { .. })) {
        for instance in figures.instances(&case.name) {
            let mut row = vec![format!("{}, {}", case_title(case), title(figures, instance))];
            for percent in [50.0, 95.0, 99.0] {
                let at = |which: fn(&crate::record::Measurement) -> Option<&crate::record::Distribution>| {
                    let time = |m: &crate::record::Measurement| which(m)?.percentile_us(percent);
                    middle_shown(figures, &case.name, &instance.id, time, number::micros)
                };
                row.extend([at(|m| m.service.as_ref()), at(|m| m.response.as_ref())]);
            }
            table.row(row);
        }
    }
    table.note("A generator that reports only the first of each pair hides what its own waiting cost.");
    table
}

/// Coefficient of variation of what the origins served, over the rounds.
fn spread(figures: Figures<'_>, case: &Case, instance: &str) -> String {
    if case.origin.count < 2 || crate::judge::layer_of(figures.run, instance) == Layer::Direct {
        return "-".to_owned();
    }
    let rounds = figures.measurements(&case.name, instance, 0);
    let of_rounds: Vec<f64> = rounds.into_iter().flatten().filter_map(|m| variation(&m.shares)).collect();
    or_dash(median(&of_rounds), |variation| format!("{variation:.2}"))
}

/// Standard deviation over mean of the operations served, or of connections if the load could not see which origin answered.
pub(crate) fn variation(shares: &[OriginShare]) -> Option<f64> {
    let operations: Option<Vec<f64>> = shares.iter().map(|share| share.operations.map(|count| count as f64)).collect();
    let served = operations.unwrap_or_else(|| shares.iter().map(|share| share.connections as f64).collect());
    let mean = served.iter().sum::<f64>() / served.len() as f64;
    let variance = served.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / served.len() as f64;
    (served.len() > 1 && mean > 0.0).then(|| variance.sqrt() / mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_evenly_origins_were_used() {
        let of = |operations: &[u64]| {
            let share = |&count: &u64| OriginShare { operations: Some(count), ..Default::default() };
            variation(&operations.iter().map(share).collect::<Vec<_>>())
        };
        assert_eq!(of(&[10, 10, 10]), Some(0.0));
        assert!((of(&[30, 0, 0]).unwrap() - 2f64.sqrt()).abs() < 1e-12);
        assert_eq!(of(&[5]), None);
        assert_eq!(of(&[0, 0]), None);
    }
}
