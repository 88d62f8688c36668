//! One table for any case: the rate with its interval, latency, cost by component, errors, verdict.

use crate::record::{Case, Instance, LoadKind, Measurement, Mode, Verdict};

use super::super::figures::{self, Figures};
use super::super::number;
use super::super::table::Table;
use super::{absent, case_title, cell, extrapolated, lower_bound_mark, middle, title, verdict};

pub(super) fn case(figures: Figures<'_>, case: &Case) -> Table {
    let (rate_title, _) = rate_figure(case);
    let mut head = vec![
        "contender",
        rate_title,
        "to reference",
        "verdict",
        "LB CPU",
        "client",
        "backend",
        "all CPU",
        "all CPU to reference",
    ];
    let latency = latency_measured(case);
    let in_bytes = case.load.kind == LoadKind::Stream;
    let is_probed = figures.instances(&case.name).iter().any(|instance| {
        figures.measurements(&case.name, &instance.id, 0).into_iter().flatten().any(|m| m.probe.is_some())
    });
    if !in_bytes {
        head.extend(["p50", "p90", "p99", "p99.9", "max"]);
    }
    if is_probed {
        head.extend(["probe p50", "probe p99"]);
    }
    head.extend(["LB RSS", "errors"]);
    let mut table = Table::new(format!("{}: {} ({latency})", case_title(case), case.title), head);
    // It comes before what a narrow window cuts off.
    table.head[3].is_figure = false;
    for instance in figures.instances(&case.name) {
        table.row(row(figures, case, instance, is_probed));
        if let Some(capacity) =
            extrapolated(figures, case.name.as_str(), instance).filter(|_| case.load.mode == Mode::Closed)
        {
            table.note(format!(
                "{}: extrapolated to all of its CPU time, {}/s; that is a division, not a measurement.",
                title(figures, instance),
                number::plain(capacity)
            ));
        }
    }
    let unit = if in_bytes { "cores per Gbps" } else { "µs per operation" };
    table.notes.insert(
        0,
        format!("CPU in {unit}. Medians over the rounds; [95 % interval]; (range) where rounds are too few for one."),
    );
    if is_probed {
        table.note(
            "Probe: one more connection beside the load, from a process of its own, at a hundredth of its rate or as much as one connection \
             can carry at half; latency from the scheduled send.",
        );
    }
    table.notes.extend(super::softirq_note(figures, &case.name));
    table
}

/// The figures of one contender.
fn row(figures: Figures<'_>, case: &Case, instance: &Instance, is_probed: bool) -> Vec<String> {
    let (id, reference) = (&instance.id, &figures.run.scenario.reference);
    let in_bytes = case.load.kind == LoadKind::Stream;
    let to_reference = |metric| {
        let ratio = figures.ratio(&case.name, id, reference, metric).filter(|_| id != reference);
        ratio.map_or("-".to_owned(), |ratio| number::ratio(&ratio))
    };
    let costs = if in_bytes {
        [figures::LB_CORES_PER_GBPS, "client_cores_per_gbps", "origin_cores_per_gbps", figures::CORES_PER_GBPS]
    } else {
        [figures::LB_US, "client_us_per_op", figures::ORIGIN_US, figures::BUSY_US]
    };
    let (_, rate_metric) = rate_figure(case);
    let mut row = vec![
        title(figures, instance),
        rate(figures, case, id),
        to_reference(rate_metric),
        verdict(figures, &case.name, id),
    ];
    row.extend(costs.map(|name| cell(figures, &case.name, id, name, number::plain)));
    row.push(to_reference(costs[3]));
    let mut times = Vec::new();
    if !in_bytes {
        times.extend([figures::P50, "p90_us", figures::P99, "p999_us", "max_us"]);
    }
    if is_probed {
        times.extend([figures::PROBE_P50, figures::PROBE_P99]);
    }
    row.extend(times.into_iter().map(|name| cell(figures, &case.name, id, name, number::micros)));
    row.push(number::median(figures.estimate(&case.name, id, figures::LB_MIB), |mib| format!("{mib:.1} MiB")));
    row.push(errors(figures, case, id));
    row
}

/// The table of the first page: the closed loop in which most balancers were at their limit, in short form.
pub(crate) fn headline(figures: Figures<'_>) -> Option<Table> {
    let limits = |case: &Case| {
        let at_limit = |instance: &&crate::record::Instance| {
            matches!(figures.verdict(&case.name, &instance.id), Some((Verdict::LbSaturated, _)))
        };
        figures.instances(&case.name).iter().filter(|instance| at_limit(instance)).count()
    };
    let cases = figures.run.scenario.cases.iter().rev().filter(|case| case.load.mode == Mode::Closed);
    // The last maximum wins, so the order is reversed to get the first of equals.
    let case = cases.max_by_key(|case| limits(case)).or(figures.run.scenario.cases.first())?;
    let (rate_title, rate_metric) = rate_figure(case);
    let in_bytes = case.load.kind == LoadKind::Stream;
    let (cost_title, cost, last_title) = match in_bytes {
        true => ("LB cores/Gbps", figures::LB_CORES_PER_GBPS, "all cores/Gbps"),
        false => ("LB µs/op", figures::LB_US, "p99"),
    };
    let all = if in_bytes { figures::CORES_PER_GBPS } else { figures::BUSY_US };
    let reference = &figures.run.scenario.reference;
    let than = figures.run.instance(reference).map_or(reference.clone(), |instance| title(figures, instance));
    let head = [
        "contender".to_owned(),
        rate_title.to_owned(),
        format!("against {than}"),
        cost_title.to_owned(),
        "all CPU against it".to_owned(),
        last_title.to_owned(),
        "verdict".to_owned(),
    ];
    let mut table =
        Table::new(format!("{}: {} ({})", case_title(case), case.title, latency_measured(case)), head).words_from(6);
    for instance in figures.instances(&case.name) {
        let id = &instance.id;
        let ratio = figures.ratio(&case.name, id, reference, rate_metric).filter(|_| id != reference);
        table.row([
            title(figures, instance),
            rate(figures, case, id),
            ratio.map_or("-".to_owned(), |ratio| number::ratio(&ratio)),
            cell(figures, &case.name, id, cost, number::plain),
            figures
                .ratio(&case.name, id, reference, all)
                .filter(|_| id != reference)
                .map_or("-".to_owned(), |ratio| number::ratio(&ratio)),
            match in_bytes {
                true => cell(figures, &case.name, id, figures::CORES_PER_GBPS, number::plain),
                false => number::median(figures.estimate(&case.name, id, figures::P99), number::micros),
            },
            verdict(figures, &case.name, id),
        ]);
    }
    super::add_gaps(&mut table, figures, 1);
    Some(table).filter(|table| !table.rows.is_empty())
}

/// The rate of a case: the column's title, and the metric.
pub(crate) fn rate_figure(case: &Case) -> (&'static str, &'static str) {
    match case.load.kind {
        LoadKind::Stream => ("Gbps", figures::GBPS),
        LoadKind::StreamPaced => ("messages/s", figures::RPS),
        LoadKind::HttpClose | LoadKind::HttpsClose | LoadKind::HttpsResume | LoadKind::TcpCrr => {
            ("connections/s", figures::RPS)
        }
        LoadKind::TcpRr => ("transactions/s", figures::RPS),
        LoadKind::Http | LoadKind::Http10 | LoadKind::Https | LoadKind::H2c | LoadKind::H2cHttp | LoadKind::Grpc => {
            ("requests/s", figures::RPS)
        }
    }
}

/// The point from which the latencies of a case are measured, in words.
pub(crate) fn latency_measured(case: &Case) -> &'static str {
    match (&case.load.mode, case.load.kind) {
        (_, LoadKind::Stream) => "bulk",
        (_, LoadKind::StreamPaced) => "at a pace, latency one way from writing to reading",
        (Mode::Closed, _) => "closed loop, latency from the send",
        (Mode::Open { .. } | Mode::Search { .. }, _) => "open loop, latency from the scheduled send",
    }
}

fn rate(figures: Figures<'_>, case: &Case, instance: &str) -> String {
    let (_, metric) = rate_figure(case);
    let Some(estimate) = figures.estimate(&case.name, instance, metric) else {
        return absent(figures, &case.name, instance);
    };
    let text = number::with_interval(&estimate, number::plain);
    let offered = middle(figures, &case.name, instance, |m| m.rate).filter(|_| case.load.mode != Mode::Closed);
    match offered {
        Some(offered) => format!("{text} of {}", number::plain(offered)),
        None => format!("{}{text}", lower_bound_mark(figures, &case.name, instance)),
    }
}

/// By kind, over all rounds, including those judged invalid because of them. Otherwise they would never be visible.
fn errors(figures: Figures<'_>, case: &Case, instance: &str) -> String {
    let cells = figures.cells(&case.name, instance);
    let measured: Vec<&Measurement> = cells.iter().filter_map(|cell| cell.measurement.as_ref()).collect();
    let sum = |of: fn(&Measurement) -> u64| measured.iter().map(|m| of(m)).sum::<u64>();
    let kinds = [
        ("connect", sum(|m| m.errors.connect)),
        ("request", sum(|m| m.errors.request)),
        ("timeout", sum(|m| m.errors.timeout)),
        ("length", sum(|m| m.errors.length)),
        ("status", sum(|m| m.errors.status)),
        ("unsent", sum(|m| m.errors.unsent)),
    ];
    let met: Vec<String> =
        kinds.iter().filter(|(_, count)| *count > 0).map(|(kind, count)| format!("{kind} {count}")).collect();
    if met.is_empty() { "0".to_owned() } else { met.join(", ") }
}
