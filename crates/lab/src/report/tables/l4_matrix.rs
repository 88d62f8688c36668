//! Tools by balancers: requests, connections, latency, bulk.

use crate::record::{Case, Instance, Layer, LoadKind, Mode};
use crate::stats::Estimate;

use super::super::figures::{BUSY_US, Figures, GBPS, LB_CORES_PER_GBPS, LB_US, RPS};
use super::super::number;
use super::super::table::Table;
use super::{absent, case_title, lower_bound_mark, title, verdict};

/// A row of the published table.
struct Row<'a> {
    case: &'a Case,
    label: String,
    metric: &'static str,
    show: fn(f64) -> String,
    /// For latency the minimum of the rounds; for everything else the median (Chen and Revels, arXiv 1608.04295: noise only ever adds).
    is_floor: bool,
}

fn rows<'a>(figures: Figures<'a>) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for case in &figures.run.scenario.cases {
        let title = case_title(case);
        let mut row = |label: &str, metric, show, is_floor| {
            rows.push(Row { case, label: label.to_owned(), metric, show, is_floor });
        };
        // What is offered is the same for all. What it costs the whole host is not, and no balancer can hide its part of it.
        if matches!(case.load.mode, Mode::Open { .. }) {
            row(&format!("{title}: all CPU µs/op"), BUSY_US, number::plain, false);
            continue;
        }
        match case.load.kind {
            LoadKind::Stream => row(title, GBPS, gbps, false),
            LoadKind::TcpRr if case.load.connections == 1 => {
                row(&format!("{title} min"), "min_us", micros, true);
                row(&format!("{title} avg"), "mean_us", micros, false);
            }
            _ => row(title, RPS, whole, false),
        }
    }
    rows
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

fn micros(us: f64) -> String {
    format!("{us:.2}us")
}

fn gbps(value: f64) -> String {
    format!("{value:.1}Gbps")
}

pub(super) fn published(figures: Figures<'_>) -> Vec<Table> {
    let instances = &figures.run.scenario.instances;
    let titles = instances.iter().map(|instance| title(figures, instance));
    let missing = super::gaps(figures);
    let absent = missing.iter().map(|gap| gap.what.clone());
    let head: Vec<String> = std::iter::once("Tool".to_owned()).chain(titles).chain(absent).collect();
    let mut table = Table::new("Single node, by tool", head);
    for row in rows(figures) {
        let of = |instance: &Instance| value(figures, &row, &instance.id);
        let absent = missing.iter().map(|_| super::NOT_THERE.to_owned());
        table.row(std::iter::once(row.label.clone()).chain(instances.iter().map(of)).chain(absent));
    }
    table.note(
        "min: of all rounds; everything else the median over the rounds. ≥: the balancer was not at its limit. Every balancer and the direct \
         path had the same origins.",
    );
    vec![table]
}

/// The published table, transposed, with the cost of a request.
pub(super) fn summary(figures: Figures<'_>) -> Option<Table> {
    let rows = rows(figures);
    let first = rows.iter().find(|row| row.metric == RPS)?.case;
    let labels = rows.iter().map(|row| row.label.clone());
    let cost = format!("{}: LB µs/op", case_title(first));
    let head = std::iter::once("balancer".to_owned()).chain(labels).chain([cost, "verdict".to_owned()]);
    let mut table = Table::new(figures.run.scenario.title.as_str(), head).words_from(rows.len() + 2);
    for instance in &figures.run.scenario.instances {
        let values = rows.iter().map(|row| value(figures, row, &instance.id));
        let cost = super::cell(figures, &first.name, &instance.id, LB_US, number::plain);
        let verdict = verdict(figures, &first.name, &instance.id);
        table.row(std::iter::once(title(figures, instance)).chain(values).chain([cost, verdict]));
    }
    super::add_gaps(&mut table, figures, 1);
    table.note(format!(
        "≥: the balancer was not at its limit; the verdict, of {}, says what was. min: of all rounds, everything else the median.",
        case_title(first)
    ));
    Some(table)
}

fn value(figures: Figures<'_>, row: &Row<'_>, instance: &str) -> String {
    if !row.case.instances.iter().any(|known| known == instance) {
        return "-".to_owned();
    }
    let values = figures.values(&row.case.name, instance, row.metric);
    let floor = values.iter().copied().fold(f64::INFINITY, f64::min);
    let median = figures.estimate(&row.case.name, instance, row.metric).map(|estimate| estimate.median);
    let value = median.map(|median| if row.is_floor { floor } else { median });
    let mark = if matches!(row.metric, RPS | GBPS) { lower_bound_mark(figures, &row.case.name, instance) } else { "" };
    let text = |value| format!("{mark}{}", number::of_rounds(value, values.len(), row.show));
    value.map_or_else(|| absent(figures, &row.case.name, instance), text)
}

pub(super) fn honest(figures: Figures<'_>) -> Vec<Table> {
    vec![by_instance(figures), costs(figures)]
}

/// Each balancer compared with the best of the other products.
fn by_instance(figures: Figures<'_>) -> Table {
    let rows = rows(figures);
    let head: Vec<String> =
        std::iter::once("balancer".to_owned()).chain(rows.iter().map(|row| row.label.clone())).collect();
    let mut table = Table::new("Against the best of the others (ratio, round by round)", head);
    for instance in figures.run.scenario.instances.iter().filter(|instance| is_balancer(figures, instance)) {
        let of = |row: &Row<'_>| match best_other(figures, row, instance) {
            Some((best, ratio)) => format!("{} of {best}", number::ratio(&ratio)),
            None => "-".to_owned(),
        };
        table.row(std::iter::once(title(figures, instance)).chain(rows.iter().map(of)));
    }
    table.note(
        "Rates: more is better. Times and costs: less is better. A ratio within the noise floor of 1 is no difference.",
    );
    table
}

fn is_balancer(figures: Figures<'_>, instance: &Instance) -> bool {
    !matches!(crate::judge::layer_of(figures.run, &instance.id), Layer::Direct | Layer::Routed)
}

fn best_other(figures: Figures<'_>, row: &Row<'_>, instance: &Instance) -> Option<(String, Estimate)> {
    let is_less_better = matches!(row.metric, "min_us" | "mean_us" | BUSY_US);
    let family = |name: &str| name.split('-').next().unwrap_or(name).to_owned();
    let others = figures
        .instances(&row.case.name)
        .into_iter()
        .filter(|other| is_balancer(figures, other) && family(&other.contender) != family(&instance.contender));
    let with_value = others.filter_map(|other| {
        let value = figures.estimate(&row.case.name, &other.id, row.metric)?.median;
        Some((other, if is_less_better { -value } else { value }))
    });
    let (best, _) = with_value.max_by(|left, right| left.1.total_cmp(&right.1))?;
    Some((title(figures, best), figures.ratio(&row.case.name, &instance.id, &best.id, row.metric)?))
}

/// The cost of each operation for the balancer, and what was at its limit.
fn costs(figures: Figures<'_>) -> Table {
    let cases = &figures.run.scenario.cases;
    let columns = cases.iter().map(|case| {
        let unit = if case.load.kind == LoadKind::Stream { "cores/Gbps" } else { "µs/op" };
        format!("{}, {unit}", case_title(case))
    });
    let head: Vec<String> = std::iter::once("balancer".to_owned()).chain(columns).collect();
    let mut table = Table::new("Balancer's CPU for each operation, and the verdict", head).words_from(1);
    for instance in &figures.run.scenario.instances {
        let of = |case: &Case| {
            if !case.instances.contains(&instance.id) {
                return "-".to_owned();
            }
            let metric = if case.load.kind == LoadKind::Stream { LB_CORES_PER_GBPS } else { LB_US };
            let cost = figures.estimate(&case.name, &instance.id, metric);
            let cost = number::median(cost, number::plain);
            format!("{cost} · {}", verdict(figures, &case.name, &instance.id))
        };
        table.row(std::iter::once(title(figures, instance)).chain(cases.iter().map(of)));
    }
    table
}
