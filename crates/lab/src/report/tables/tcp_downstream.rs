//! Bulk and paced messages from server to client, by path.

use crate::record::{Case, Layer, LoadKind, Measurement};

use super::super::figures::{self, Figures, GBPS, lb_seconds, mib};
use super::super::number;
use super::super::table::Table;
use super::{absent, case_title, cell, lower_bound_mark, middle, or_dash, title, verdict};

fn streams(figures: Figures<'_>) -> impl Iterator<Item = &Case> {
    let is_stream = |case: &&Case| matches!(case.load.kind, LoadKind::Stream | LoadKind::StreamPaced);
    figures.run.scenario.cases.iter().filter(is_stream)
}

/// The figures that the published report lists under each of its cases: bandwidth at both ends, CPU of each process, and what the node had
/// left.
pub(super) fn published(figures: Figures<'_>) -> Vec<Table> {
    streams(figures).map(|case| published_of(figures, case)).collect()
}

fn published_of(figures: Figures<'_>, case: &Case) -> Table {
    let head = [
        figures.title_of("情况 (path)", "path"),
        figures.title_of("client侧入带宽 (client in), Mbps", "client in, Mbps"),
        figures.title_of("server侧出带宽 (server out), Mbps", "server out, Mbps"),
        "client CPU",
        "server CPU",
        "proxy CPU",
        figures.title_of("空闲率 (idle)", "idle"),
    ];
    let mut table = Table::new(case_title(case), head);
    for instance in figures.instances(&case.name) {
        let id = &instance.id;
        let layer = crate::judge::layer_of(figures.run, id);
        let middle = |figure: &dyn Fn(&Measurement) -> Option<f64>| middle(figures, &case.name, id, figure);
        let cores = |seconds: fn(&Measurement) -> f64| {
            or_dash(middle(&|m| Some(seconds(m) / m.window_s)), |cores| format!("{:.0}%", cores * 100.0))
        };
        let mbps = middle(&|m| Some(m.received_bytes as f64 * 8.0 / 1e6 / m.window_s));
        let sent = middle(&|m| Some(m.origin_sent_bytes? as f64 * 8.0 / 1e6 / m.window_s));
        let idle = middle(&|m| Some(m.cpu.idle_s / (m.cpu.idle_s + m.cpu.busy_s)));
        table.row([
            title(figures, instance),
            mbps.map_or_else(|| absent(figures, &case.name, id), |mbps| format!("{mbps:.0}")),
            or_dash(sent, |mbps| format!("{mbps:.0}")),
            cores(|m| m.cpu.client_s),
            cores(|m| m.cpu.origin_s),
            or_dash(middle(&|m| Some(lb_seconds(m, layer)? / m.window_s)), |cores| format!("{:.0}%", cores * 100.0)),
            or_dash(idle, number::per_cent),
        ]);
    }
    super::add_gaps(&mut table, figures, 1);
    table.note("CPU: 100% is one core. Both ends count the same window of the same clock, so that they differ only by what is under way.");
    table
}

/// Bulk and messages, with a row for each path.
pub(super) fn summary(figures: Figures<'_>) -> Option<Table> {
    let bulk = streams(figures).find(|case| case.load.kind == LoadKind::Stream)?;
    let paced = streams(figures).find(|case| case.load.kind == LoadKind::StreamPaced);
    let head = [
        figures.title_of("情况 (path)", "path"),
        "bulk, client in, Gbps",
        "LB cores/Gbps",
        "whole host, cores/Gbps",
        "against direct",
        "verdict",
        "paced: LB cores/Gbps",
        "delivery p50",
        "delivery p99",
    ];
    let mut table = Table::new(format!("{}, and at the pace of the business", bulk.title), head);
    table.head[5].is_figure = false;
    for instance in &figures.run.scenario.instances {
        let id = &instance.id;
        let of_bulk = |metric| cell(figures, &bulk.name, id, metric, number::plain);
        let of_paced =
            |metric, show| paced.map_or("-".to_owned(), |paced| cell(figures, &paced.name, id, metric, show));
        table.row([
            title(figures, instance),
            format!("{}{}", lower_bound_mark(figures, &bulk.name, id), of_bulk(GBPS)),
            of_bulk(figures::LB_CORES_PER_GBPS),
            of_bulk(figures::CORES_PER_GBPS),
            against_reference(figures, bulk, id),
            verdict(figures, &bulk.name, id),
            of_paced(figures::LB_CORES_PER_GBPS, number::plain),
            of_paced(figures::P50, number::micros),
            of_paced(figures::P99, number::micros),
        ]);
    }
    super::add_gaps(&mut table, figures, 1);
    table.note("≥: the balancer was not at its limit; the verdict, of the bulk, says what was.");
    Some(table)
}

/// The cores for each Gbps of the whole host, over those of the reference in the same block.
fn against_reference(figures: Figures<'_>, case: &Case, instance: &str) -> String {
    let reference = &figures.run.scenario.reference;
    let ratio = figures.ratio(&case.name, instance, reference, figures::CORES_PER_GBPS);
    ratio.filter(|_| instance != reference).map_or("-".to_owned(), |ratio| number::ratio(&ratio))
}

pub(super) fn honest(figures: Figures<'_>) -> Vec<Table> {
    let of_case = |case| [costs(figures, case), delivery(figures, case)];
    streams(figures).flat_map(of_case).collect()
}

fn costs(figures: Figures<'_>, case: &Case) -> Table {
    let head = [
        "path",
        "Gbps",
        "skew",
        "client",
        "LB",
        "server",
        "whole host",
        "more than direct",
        "against direct",
        "busy cores",
        "LB KiB/conn",
        "verdict",
    ];
    let mut table = Table::new(format!("{}: cores for each Gbps", case_title(case)), head).words_from(11);
    let reference = &figures.run.scenario.reference;
    for instance in figures.instances(&case.name) {
        let id = &instance.id;
        let per_gbps = |metric| cell(figures, &case.name, id, metric, number::plain);
        let skew = middle(figures, &case.name, id, |m| {
            Some(m.origin_sent_bytes? as f64 / m.received_bytes.max(1) as f64 - 1.0)
        });
        let busy = |m: &crate::record::Measurement| Some(m.cpu.busy_s / m.window_s);
        let extra = figures.shift(&case.name, id, reference, figures::CORES_PER_GBPS).filter(|_| id != reference);
        table.row([
            title(figures, instance),
            cell(figures, &case.name, id, GBPS, number::plain),
            or_dash(skew, number::change),
            per_gbps("client_cores_per_gbps"),
            per_gbps(figures::LB_CORES_PER_GBPS),
            per_gbps("origin_cores_per_gbps"),
            per_gbps(figures::CORES_PER_GBPS),
            extra.map_or("-".to_owned(), |extra| number::with_interval(&extra, number::plain)),
            against_reference(figures, case, id),
            super::middle_shown(figures, &case.name, id, busy, number::plain),
            or_dash(per_connection(figures, case, id), |kib| format!("{kib:.0}")),
            verdict(figures, &case.name, id),
        ]);
    }
    table.note(
        "client, LB, server, whole host: cores for each Gbps. What none of the three was charged with is in the whole host, and only there.",
    );
    table.notes.extend(super::softirq_note(figures, &case.name));
    table
}

/// KiB that the balancer holds per connection, more than before it had any.
fn per_connection(figures: Figures<'_>, case: &Case, instance: &str) -> Option<f64> {
    if matches!(crate::judge::layer_of(figures.run, instance), Layer::Direct | Layer::Routed | Layer::Kernel) {
        return None;
    }
    middle(figures, &case.name, instance, |m| {
        let grown = mib(m.memory.balancer_rss) - mib(m.memory.balancer_rss_idle);
        (m.connections > 0 && m.memory.balancer_rss > 0).then(|| grown * 1024.0 / f64::from(m.connections))
    })
}

fn delivery(figures: Figures<'_>, case: &Case) -> Table {
    let head = ["path", "messages/s", "p50", "p90", "p99", "max", "shift of p50", "shift of p99"];
    let mut table = Table::new(format!("{}: delivery, one way", case_title(case)), head);
    if case.load.kind != LoadKind::StreamPaced {
        return table;
    }
    let reference = &figures.run.scenario.reference;
    for instance in figures.instances(&case.name) {
        let id = &instance.id;
        let time = |metric| cell(figures, &case.name, id, metric, number::micros);
        let shift = |metric| {
            let shift = figures.shift(&case.name, id, reference, metric).filter(|_| id != reference);
            shift.map_or("-".to_owned(), |shift| number::with_interval(&shift, number::micros))
        };
        table.row([
            title(figures, instance),
            cell(figures, &case.name, id, figures::RPS, number::plain),
            time("p50_us"),
            time("p90_us"),
            time("p99_us"),
            time("max_us"),
            shift("p50_us"),
            shift("p99_us"),
        ]);
    }
    table
}
