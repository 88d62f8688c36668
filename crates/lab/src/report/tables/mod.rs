//! The tables: those of each published report, with the same columns, and after them those that it should have had.
//!
//! It decides which tables a run gets ([`published`], [`honest()`]), but not how they look. A table is made from the kind of load, the mode
//! and the connections of the cases, not from their names, so other scenarios get their tables, too.

mod cpu_scaling;
mod grpc_gateway;
mod honest;
mod l4_matrix;
mod l4l7_ab;
mod tcp_downstream;

use crate::record::{Case, Gap, Instance, Layer, LoadKind, Measurement, Mode, Table as Kind, Variant, Verdict};
use crate::stats::median;

use super::figures::{Figures, RPS};
use super::number;
use super::table::Table;

pub(crate) use cpu_scaling::{Level, levels};
pub(crate) use grpc_gateway::{is_one_at_a_time, variation};
pub(crate) use honest::{headline, rate_figure};

/// The tables of the published report, with its columns.
pub(crate) fn published(figures: Figures<'_>) -> Vec<Table> {
    let mut tables = match figures.run.scenario.table {
        Kind::L4l7Ab => l4l7_ab::published(figures),
        Kind::GrpcGateway => grpc_gateway::published(figures),
        Kind::L4Matrix => l4_matrix::published(figures),
        Kind::TcpDownstream => tcp_downstream::published(figures),
        Kind::CpuScaling => cpu_scaling::published(figures),
        Kind::Generic => Vec::new(),
    };
    if let (Some(table), Some(note)) = (tables.first_mut(), steering_note(figures)) {
        table.note(note);
    }
    tables
}

/// The tables with intervals, costs and verdicts.
pub(crate) fn honest(figures: Figures<'_>) -> Vec<Table> {
    let mut tables = match figures.run.scenario.table {
        Kind::L4l7Ab => l4l7_ab::honest(figures),
        Kind::GrpcGateway => grpc_gateway::honest(figures),
        Kind::L4Matrix => l4_matrix::honest(figures),
        Kind::TcpDownstream => tcp_downstream::honest(figures),
        Kind::CpuScaling => cpu_scaling::honest(figures),
        Kind::Generic => Vec::new(),
    };
    if !matches!(figures.run.scenario.table, Kind::TcpDownstream | Kind::CpuScaling) {
        tables.extend(figures.run.scenario.cases.iter().map(|case| honest::case(figures, case)));
    }
    tables.retain(|table| !table.rows.is_empty());
    tables
}

/// The whole run in one table for a README: the figures that the published report is known for, with their cost and the verdict. None if
/// nothing was measured.
pub(crate) fn summary(figures: Figures<'_>) -> Option<Table> {
    let table = match figures.run.scenario.table {
        Kind::L4l7Ab => l4l7_ab::summary(figures),
        Kind::GrpcGateway => grpc_gateway::summary(figures),
        Kind::L4Matrix => l4_matrix::summary(figures),
        Kind::TcpDownstream => tcp_downstream::summary(figures),
        Kind::CpuScaling => cpu_scaling::summary(figures),
        Kind::Generic => headline(figures),
    };
    let mut table = table.filter(|table| !table.rows.is_empty())?;
    if let Some(note) = steering_note(figures) {
        table.note(note);
    }
    Some(table)
}

/// Contenders that should have taken part and did not. Those that `--quick` leaves out do not count, nor do those that took part with fewer
/// workers.
pub(crate) fn gaps(figures: Figures<'_>) -> Vec<&Gap> {
    let run = figures.run;
    let takes_part = |gap: &Gap| {
        let bare = gap.what.split_once('@').map(|(bare, _)| bare);
        let ids = run.scenario.instances.iter().map(|instance| instance.id.as_str());
        bare.is_some_and(|bare| ids.into_iter().any(|id| id.split('@').next() == Some(bare)))
    };
    let is_left_out = |gap: &Gap| run.quick && gap.why.contains("--quick");
    run.gaps.iter().filter(|gap| !is_left_out(gap) && !takes_part(gap)).collect()
}

/// A row for each missing contender, with its name and, in `column`, a note that it is missing: a gap should be visible where the figure
/// would be.
fn add_gaps(table: &mut Table, figures: Figures<'_>, column: usize) {
    for gap in gaps(figures) {
        let row = (0..table.head.len()).map(|place| match place {
            0 => gap.what.as_str(),
            place if place == column => NOT_THERE,
            _ => "-",
        });
        table.row(row.collect::<Vec<_>>());
    }
}

/// The text in place of a missing contender's figure.
pub(crate) const NOT_THERE: &str = "not there";

/// The title of an instance in tables.
pub(crate) fn title(figures: Figures<'_>, instance: &Instance) -> String {
    let contender = figures.run.contenders.iter().find(|known| known.name == instance.contender);
    let mut title = contender.map_or(instance.contender.as_str(), |contender| contender.title.as_str()).to_owned();
    if instance.hops > 1 {
        title = format!("{title} ×{}", instance.hops);
    }
    let peers = figures.run.scenario.instances.iter().filter(|other| other.contender == instance.contender);
    let (mut has_workers, mut has_variants) = (false, false);
    for other in peers {
        has_workers |= other.workers != instance.workers;
        has_variants |= other.variant != instance.variant;
    }
    if has_workers {
        title = format!("{title} @{}", instance.workers);
    }
    match instance.variant {
        Variant::Default => format!("{title}, default"),
        Variant::Tuned if has_variants => format!("{title}, tuned"),
        Variant::Tuned => title,
    }
}

/// A note on CPU by component in this case, for a kernel that charges soft interrupts to the process that was running.
fn softirq_note(figures: Figures<'_>, case: &str) -> Option<String> {
    let is_charged_to_anybody = figures.run.environment.irq_time_accounting == Some(false);
    let is_apart = |instance: &&Instance| {
        let rounds = figures.measurements(case, &instance.id, 0);
        rounds.into_iter().flatten().all(crate::judge::is_box_apart)
    };
    let balancers = figures.instances(case).into_iter();
    let mut balancers =
        balancers.filter(|instance| crate::judge::layer_of(figures.run, &instance.id) != Layer::Direct).peekable();
    balancers.peek()?;
    let of_balancer = match balancers.all(|instance| is_apart(&instance)) {
        true => "The LB's is the busy time of its own CPUs, which has them in it, whoever they were charged to",
        false => {
            "The LB's is what its processes were charged with where it had no CPUs of its own, and may miss them or have others' in it"
        }
    };
    is_charged_to_anybody.then(|| {
        format!(
            "Soft interrupts are charged to whoever was running: client and backend are right to a few per cent at best. {of_balancer}; all \
             CPU does not depend on it."
        )
    })
}

/// The median of `figure` over the rounds.
pub(crate) fn middle(
    figures: Figures<'_>,
    case: &str,
    instance: &str,
    figure: impl Fn(&Measurement) -> Option<f64>,
) -> Option<f64> {
    median(&in_rounds(figures, case, instance, figure))
}

/// The same as text; a dash if no round has the figure.
pub(crate) fn middle_shown(
    figures: Figures<'_>,
    case: &str,
    instance: &str,
    figure: impl Fn(&Measurement) -> Option<f64>,
    show: fn(f64) -> String,
) -> String {
    let values = in_rounds(figures, case, instance, figure);
    or_dash(median(&values), |value| number::of_rounds(value, values.len(), show))
}

fn in_rounds(
    figures: Figures<'_>,
    case: &str,
    instance: &str,
    figure: impl Fn(&Measurement) -> Option<f64>,
) -> Vec<f64> {
    figures.measurements(case, instance, 0).into_iter().flatten().filter_map(figure).collect()
}

/// A figure, or a dash.
pub(crate) fn or_dash(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or("-".to_owned(), show)
}

/// Median and interval of a metric, or the reason why the cell has none.
pub(crate) fn cell(figures: Figures<'_>, case: &str, instance: &str, metric: &str, show: fn(f64) -> String) -> String {
    match figures.estimate(case, instance, metric) {
        Some(estimate) => number::with_interval(&estimate, show),
        None => absent(figures, case, instance),
    }
}

/// The text of a cell without a figure.
pub(crate) fn absent(figures: Figures<'_>, case: &str, instance: &str) -> String {
    let cells = figures.cells(case, instance);
    if cells.iter().any(|cell| cell.failure.is_some()) {
        "failed".to_owned()
    } else if let Some((verdict @ (Verdict::Invalid | Verdict::Disturbed), _)) = figures.verdict(case, instance) {
        number::verdict(verdict).to_owned()
    } else {
        "-".to_owned()
    }
}

/// Requests per second as in the published tables; with `≥` if something other than the balancer was at its limit.
pub(crate) fn rps(figures: Figures<'_>, case: &str, instance: &str) -> String {
    let rounds = figures.values(case, instance, RPS).len();
    match middle(figures, case, instance, |m| Some(m.ok_per_s)) {
        Some(value) => {
            format!("{}{}", lower_bound_mark(figures, case, instance), number::of_rounds(value, rounds, number::plain))
        }
        None => absent(figures, case, instance),
    }
}

/// Why a vip may look faster than no balancer, if the run has the bare paths for comparison.
fn steering_note(figures: Figures<'_>) -> Option<String> {
    let layers: Vec<Layer> = figures
        .run
        .scenario
        .instances
        .iter()
        .map(|instance| crate::judge::layer_of(figures.run, &instance.id))
        .collect();
    let has = |wanted: &[Layer]| layers.iter().any(|layer| wanted.contains(layer));
    let has_vip = figures.run.scenario.instances.iter().any(|instance| instance.contender == VIP);
    let is_steered = figures.run.scenario.steering && !figures.run.scenario.loopback;
    (has_vip && has(&[Layer::Direct, Layer::Routed]) && is_steered).then(|| {
        "Where the vip is faster than direct or routed, the lab causes the difference, not the vip. The lab steers received packets to CPUs (RPS) \
         at every veth. The vip hands packets to the endpoint's namespace with bpf_redirect_peer, which skips that step; the bare paths take it."
            .to_owned()
    })
}

/// The contender that forwards with `bpf_redirect_peer`.
const VIP: &str = "steelyard-vip";

/// `≥ ` for a figure that is not a capacity: that of a closed loop whose balancer was not at its limit.
pub(crate) fn lower_bound_mark(figures: Figures<'_>, case: &str, instance: &str) -> &'static str {
    let is_paced = |case: &Case| case.load.kind == LoadKind::StreamPaced;
    let is_closed = figures.run.case(case).is_some_and(|case| case.load.mode == Mode::Closed && !is_paced(case));
    let is_direct = crate::judge::layer_of(figures.run, instance) == Layer::Direct;
    match figures.verdict(case, instance) {
        Some((Verdict::LbSaturated | Verdict::Disturbed | Verdict::Invalid, _)) | None => "",
        Some(_) if is_closed && !is_direct => "≥ ",
        Some(_) => "",
    }
}

pub(crate) fn verdict(figures: Figures<'_>, case: &str, instance: &str) -> String {
    match figures.verdict(case, instance) {
        Some((verdict, _)) => number::verdict(verdict).to_owned(),
        None => absent(figures, case, instance),
    }
}

/// The title of a case: the one in the published report if there is one, otherwise its name.
pub(crate) fn case_title(case: &Case) -> &str {
    case.label.as_deref().unwrap_or(&case.name)
}

/// Capacity by extrapolation: what the balancer would reach with all of its CPU time, if each operation kept its cost. Only for a round in
/// which something else was at its limit first, and labelled wherever it is shown.
pub(crate) fn extrapolated(figures: Figures<'_>, case: &str, instance: &Instance) -> Option<f64> {
    let (verdict, _) = figures.verdict(case, &instance.id)?;
    if !matches!(verdict, Verdict::GeneratorSaturated | Verdict::BackendSaturated) {
        return None;
    }
    let us = figures.estimate(case, &instance.id, super::figures::LB_US)?.median;
    figures.estimate(case, &instance.id, RPS)?;
    (us > 0.0).then(|| f64::from(instance.workers.max(1)) * 1e6 / us)
}
