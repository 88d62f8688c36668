//! Which plots a report has.
//!
//! There are six kinds, each only if the scenario has the data: CPU per operation; latency by percentile; rate and latency against the
//! offered rate, with the knee; against connections; over time; cores against rate; and for each case the CPU of all components, stacked.
//! `plot` draws them.

use maud::Markup;

use crate::record::{Case, Instance, Layer, LoadKind, Measurement, Mode};
use crate::stats::{Estimate, estimate};

use super::figures::{self, Figures};
use super::first;
use super::merged::Merged;
use super::number;
use super::plot::{self, Bar, COLOURS, DASHES, Ink, Line, Lines, Point, Scale, Stack};
use super::tables::{case_title, levels, middle, rate_figure, title};

/// Lines in one plot. More would be indistinguishable.
const LINES_MAX: usize = 8;
/// Cases that get plots of one kind; the tables have all cases.
const CASES_MAX: usize = 4;

/// What a latency plot shows.
const PERCENTILES: [f64; 10] = [50.0, 66.0, 75.0, 80.0, 90.0, 95.0, 98.0, 99.0, 99.9, 99.99];

/// All plots, in the order of the page.
pub(super) fn plots(figures: Figures<'_>) -> Vec<Markup> {
    let cases = &figures.run.scenario.cases;
    let with_sound_rounds = |case: &&Case| {
        let instances = figures.instances(&case.name);
        instances.iter().any(|instance| figures.measurements(&case.name, &instance.id, 0).iter().any(Option::is_some))
    };
    let shown: Vec<&Case> = cases.iter().filter(with_sound_rounds).collect();
    let mut plots: Vec<Option<Markup>> = Vec::new();
    plots.extend(shown.iter().take(CASES_MAX).map(|case| costs(figures, case)));
    plots.extend(shown.iter().take(CASES_MAX).map(|case| everybody(figures, case)));
    plots.extend(
        shown
            .iter()
            .filter(|case| case.load.kind != LoadKind::Stream)
            .take(CASES_MAX)
            .flat_map(|case| latencies(figures, case)),
    );
    plots.extend(knees(figures));
    plots.extend(against_connections(figures));
    plots.extend(scaling(figures));
    plots.extend(shown.iter().take(2).flat_map(|case| over_time(figures, case)));
    plots.into_iter().flatten().collect()
}

/// The colour shows the product and the dash its variant; whatever is not a balancer is grey.
pub(super) fn ink(figures: Figures<'_>, instance: &Instance) -> Ink {
    let layer = |instance: &Instance| crate::judge::layer_of(figures.run, &instance.id);
    let is_plain = |instance: &Instance| matches!(layer(instance), Layer::Direct | Layer::Routed);
    let make = |instance: &Instance| instance.contender.split('-').next().unwrap_or_default().to_owned();
    let key = |instance: &Instance| if is_plain(instance) { String::new() } else { make(instance) };
    let own = key(instance);
    let alike = figures.run.scenario.instances.iter().filter(|other| key(other) == own);
    let dash = alike.clone().position(|other| other.id == instance.id).unwrap_or(0) % DASHES;
    let colour = if own.is_empty() {
        0
    } else if own == "steelyard" {
        1
    } else {
        let mut others: Vec<String> = Vec::new();
        for other in &figures.run.scenario.instances {
            let key = key(other);
            if !key.is_empty() && key != "steelyard" && !others.contains(&key) {
                others.push(key);
            }
        }
        2 + others.iter().position(|other| *other == own).unwrap_or(0) % (COLOURS - 2)
    };
    Ink { colour, dash }
}

/// The chart beside the answer: ratios of the whole host's CPU, with their intervals.
pub(super) fn leading(figures: Figures<'_>) -> Option<Markup> {
    let (case, metric) = first::charted(figures)?;
    let reference = &figures.run.scenario.reference;
    let bar = |instance: &Instance| {
        let estimate = figures.ratio(&case.name, &instance.id, reference, metric)?;
        Some(Bar { name: title(figures, instance), ink: ink(figures, instance), estimate, rounds: Vec::new() })
    };
    let others = figures.instances(&case.name).into_iter().filter(|instance| instance.id != *reference);
    let bars: Vec<Bar> = others.filter_map(bar).collect();
    let rounds = bars.iter().map(|bar| bar.estimate.rounds).min().unwrap_or_default();
    plot::bars(&first::caption(figures, case), "times the CPU", &first::note(rounds), &bars)
}

/// CPU of the balancer per operation, with every round.
fn costs(figures: Figures<'_>, case: &Case) -> Option<Markup> {
    let (metric, unit) = match case.load.kind {
        LoadKind::Stream => (figures::LB_CORES_PER_GBPS, "cores per Gbps"),
        _ => (figures::LB_US, "µs of CPU per operation"),
    };
    let bars: Vec<Bar> = figures
        .instances(&case.name)
        .into_iter()
        .filter_map(|instance| {
            let rounds = figures.values(&case.name, &instance.id, metric);
            let estimate = estimate(&rounds)?;
            Some(Bar { name: title(figures, instance), ink: ink(figures, instance), estimate, rounds })
        })
        .collect();
    plot::bars(
        &format!("{}: the balancer's CPU", case_title(case)),
        unit,
        "Bar: median; dots: rounds; bracket: interval.",
        &bars,
    )
}

/// CPU of all components per operation.
fn everybody(figures: Figures<'_>, case: &Case) -> Option<Markup> {
    let is_stream = case.load.kind == LoadKind::Stream;
    let parts = ["load", "balancer", "origins", "rest of the system"];
    let inks = [2, 1, 3, 0].map(|colour| Ink { colour, dash: 0 });
    let parts: Vec<(String, Ink)> = parts.map(str::to_owned).into_iter().zip(inks).collect();
    let stacks: Vec<Stack> = figures
        .instances(&case.name)
        .into_iter()
        .filter_map(|instance| {
            let layer = crate::judge::layer_of(figures.run, &instance.id);
            let of = |seconds: &dyn Fn(&Measurement) -> f64| {
                middle(figures, &case.name, &instance.id, |m| {
                    let per = if is_stream { m.received_bytes as f64 * 8.0 / 1e9 } else { m.ok as f64 / 1e6 };
                    (per > 0.0).then(|| seconds(m) / per)
                })
            };
            let balancer = |m: &Measurement| figures::lb_seconds(m, layer).unwrap_or(0.0);
            let known = |m: &Measurement| balancer(m) + m.cpu.client_s + m.cpu.origin_s;
            let parts = [
                of(&|m| m.cpu.client_s)?,
                of(&balancer)?,
                of(&|m| m.cpu.origin_s)?,
                of(&|m| (m.cpu.busy_s - known(m)).max(0.0))?,
            ];
            Some(Stack { name: title(figures, instance), parts: parts.into() })
        })
        .collect();
    let unit = if is_stream { "cores per Gbps" } else { "µs of CPU per operation" };
    plot::stacked(&format!("{}: everybody's CPU", case_title(case)), unit, "", &parts, &stacks)
}

/// At most [`LINES_MAX`] instances per plot: first in each is what is not a balancer, and layers are separate if there are too many.
fn line_groups<'a>(figures: Figures<'a>, case: &Case) -> Vec<(&'static str, Vec<&'a Instance>)> {
    let instances = figures.instances(&case.name);
    if instances.len() <= LINES_MAX {
        return vec![("", instances)];
    }
    let layer = |instance: &Instance| crate::judge::layer_of(figures.run, &instance.id);
    let group = |wanted: &[Layer]| -> Vec<&'a Instance> {
        let is_plain = |instance: &&Instance| matches!(layer(instance), Layer::Direct | Layer::Routed);
        let plain = instances.iter().copied().filter(is_plain);
        plain
            .chain(instances.iter().copied().filter(|instance| wanted.contains(&layer(instance))))
            .take(LINES_MAX)
            .collect()
    };
    vec![(", layer 4", group(&[Layer::Kernel, Layer::Tcp])), (", layer 7", group(&[Layer::Http, Layer::H2]))]
}

fn latencies(figures: Figures<'_>, case: &Case) -> Vec<Option<Markup>> {
    let of_group = |(which, instances): (&str, Vec<&Instance>)| {
        let lines = instances.into_iter().map(|instance| Line {
            name: title(figures, instance),
            ink: ink(figures, instance),
            points: percentile_points(figures, case, &instance.id),
            has_marks: true,
        });
        Lines {
            caption: &format!("{}{which}: latency by percentile", case_title(case)),
            note: "All rounds together where their histograms are kept, else the median of the rounds; whiskers: interval over the rounds.",
            x: ("percentile", Scale::Tail),
            y: ("latency", Scale::Log),
            show_y: plot::short_micros,
            lines: lines.collect(),
            shades: Vec::new(),
        }
        .draw()
    };
    line_groups(figures, case).into_iter().map(of_group).collect()
}

fn percentile_points(figures: Figures<'_>, case: &Case, instance: &str) -> Vec<Point> {
    let rounds =
        || figures.measurements(&case.name, instance, 0).into_iter().flatten().filter_map(Measurement::latency);
    let merged = Merged::of(rounds());
    let mut points = Vec::new();
    for percent in PERCENTILES {
        let values: Vec<f64> = rounds().filter_map(|latency| latency.percentile_us(percent)).collect();
        let Some(all) = estimate(&values) else { continue };
        match merged.as_ref().map(|merged| merged.percentile_us(percent)) {
            Some(Some(y)) => points.push(Point { x: percent, y, interval: interval(&all) }),
            // More than this number of values can show.
            Some(None) => {}
            None => points.push(Point { x: percent, y: all.median, interval: interval(&all) }),
        }
    }
    points
}

fn interval(estimate: &Estimate) -> Option<(f64, f64)> {
    (estimate.rounds > 1).then_some((estimate.low, estimate.high))
}

/// Open-loop cases that differ only in the rate: the rate that was reached, and p99, against the offered rate.
fn knees(figures: Figures<'_>) -> Vec<Option<Markup>> {
    let is_open = |case: &&Case| matches!(case.load.mode, Mode::Open { .. });
    let is_alike = |left: &Case, right: &Case| {
        left.origin == right.origin
            && left.load.connections == right.load.connections
            && left.load.kind == right.load.kind
            && pacing(left) == pacing(right)
    };
    let mut plots = Vec::new();
    for group in grouped(figures.run.scenario.cases.iter().filter(is_open), is_alike) {
        if group.len() < 2 {
            continue;
        }
        let about = format!("{} connections", group[0].load.connections);
        let offered = |case: &Case, instance: &str| middle(figures, &case.name, instance, |m| m.rate);
        let plot = |caption: &str, metric: &str, y: (&str, Scale), show_y: fn(f64) -> String| {
            let lines = series(figures, &group, metric, offered);
            Lines {
                caption,
                note: "",
                x: ("offered, operations/s", Scale::Linear),
                y,
                show_y,
                lines,
                shades: Vec::new(),
            }
            .draw()
        };
        plots.push(plot(
            &format!("{about}: p99 against the offered rate"),
            figures::P99,
            ("p99", Scale::Log),
            plot::short_micros,
        ));
        plots.push(plot(
            &format!("{about}: reached against offered"),
            figures::RPS,
            ("operations/s", Scale::Linear),
            plot::short,
        ));
        if plots.len() >= 2 * CASES_MAX {
            break;
        }
    }
    plots
}

fn pacing(case: &Case) -> Option<crate::record::Pacing> {
    match case.load.mode {
        Mode::Open { pacing, .. } => Some(pacing),
        Mode::Closed | Mode::Search { .. } => None,
    }
}

/// Cases that differ only in the number of connections.
fn against_connections(figures: Figures<'_>) -> Vec<Option<Markup>> {
    let is_alike = |left: &Case, right: &Case| {
        left.origin == right.origin
            && left.load.mode == right.load.mode
            && left.load.kind == right.load.kind
            && left.load.streams == right.load.streams
    };
    let mut plots = Vec::new();
    for group in grouped(figures.run.scenario.cases.iter(), is_alike) {
        let mut counts: Vec<u32> = group.iter().map(|case| case.load.connections).collect();
        counts.dedup();
        if counts.len() < 2 || plots.len() >= CASES_MAX {
            continue;
        }
        let connections = |case: &Case, _: &str| Some(f64::from(case.load.connections));
        let is_closed = group[0].load.mode == Mode::Closed;
        let (what, metric) = if is_closed { rate_figure(group[0]) } else { ("p99", figures::P99) };
        let offered = match &group[0].load.mode {
            Mode::Open { rate: crate::record::Rate::Fixed(rate), .. } => format!("{} offered: ", number::plain(*rate)),
            _ => String::new(),
        };
        let caption = format!("{offered}{what} against connections");
        let (y, show_y): (_, fn(f64) -> String) =
            if is_closed { ((what, Scale::Linear), plot::short) } else { ((what, Scale::Log), plot::short_micros) };
        let lines = series(figures, &group, metric, connections);
        plots.push(
            Lines { caption: &caption, note: "", x: ("connections", Scale::Log), y, show_y, lines, shades: Vec::new() }
                .draw(),
        );
    }
    plots
}

fn grouped<'a>(cases: impl Iterator<Item = &'a Case>, is_alike: impl Fn(&Case, &Case) -> bool) -> Vec<Vec<&'a Case>> {
    let mut groups: Vec<Vec<&Case>> = Vec::new();
    for case in cases {
        match groups.iter_mut().find(|group| is_alike(group[0], case)) {
            Some(group) => group.push(case),
            None => groups.push(vec![case]),
        }
    }
    groups
}

/// A line for each instance: a metric over the cases of a group.
fn series(figures: Figures<'_>, group: &[&Case], metric: &str, x: impl Fn(&Case, &str) -> Option<f64>) -> Vec<Line> {
    let takes_part = |instance: &&Instance| group.iter().any(|case| case.instances.contains(&instance.id));
    let instances = figures.run.scenario.instances.iter().filter(takes_part).take(LINES_MAX);
    instances
        .map(|instance| {
            let point = |case: &&Case| {
                let all = figures.estimate(&case.name, &instance.id, metric)?;
                Some(Point { x: x(case, &instance.id)?, y: all.median, interval: interval(&all) })
            };
            let points = group.iter().filter_map(point).collect();
            Line { name: title(figures, instance), ink: ink(figures, instance), points, has_marks: true }
        })
        .collect()
}

/// Cores against rate, with the straight line through the first level and the fit.
fn scaling(figures: Figures<'_>) -> Vec<Option<Markup>> {
    let mut plots = Vec::new();
    for case in &figures.run.scenario.cases {
        let mut lines = Vec::new();
        let mut cpus_max: f64 = 1.0;
        let of_case: Vec<_> = levels(figures)
            .into_iter()
            .filter(|series| series.case.name == case.name && series.levels.len() > 1)
            .collect();
        for series in of_case.iter().take(LINES_MAX / 2) {
            let Some(first) = series.levels.first() else { continue };
            let colour = ink(figures, first.instance).colour;
            cpus_max = series.levels.iter().map(|level| f64::from(level.cpus)).fold(cpus_max, f64::max);
            let point = |level: &super::tables::Level<'_>| {
                let rate = level.rate?;
                Some(Point { x: f64::from(level.cpus), y: rate.median, interval: interval(&rate) })
            };
            let points = series.levels.iter().filter_map(point).collect();
            lines.push(Line { name: series.contender.clone(), ink: Ink { colour, dash: 0 }, points, has_marks: true });
            if let Some(usl) = series.usl {
                let curve = (1..=20).map(|step| 1.0 + (cpus_max - 1.0) * f64::from(step) / 20.0);
                let points = curve.map(|x| Point { x, y: usl.throughput(x), interval: None }).collect();
                lines.push(Line {
                    name: format!("{}, fit", series.contender),
                    ink: Ink { colour, dash: 1 },
                    points,
                    has_marks: false,
                });
            }
        }
        if let Some(rate) = of_case.first().and_then(|series| series.levels.first()?.rate) {
            let ideal = [1.0, cpus_max].map(|x| Point { x, y: rate.median * x, interval: None });
            lines.push(Line {
                name: "straight line through the first".into(),
                ink: Ink { colour: 0, dash: 2 },
                points: ideal.into(),
                has_marks: false,
            });
        }
        plots.push(
            Lines {
                caption: &format!("{}: rate against CPUs", case_title(case)),
                note: "",
                x: ("CPUs of the balancer", Scale::Linear),
                y: ("requests/s", Scale::Linear),
                show_y: plot::short,
                lines,
                shades: Vec::new(),
            }
            .draw(),
        );
    }
    plots
}

/// The first round of a case, second by second, warm-up shaded.
fn over_time(figures: Figures<'_>, case: &Case) -> Vec<Option<Markup>> {
    let groups = line_groups(figures, case);
    let first = |instance: &Instance| figures.measurements(&case.name, &instance.id, 0).into_iter().flatten().next();
    let of_group = |(which, instances): &(&str, Vec<&Instance>)| {
        let line = |instance: &&Instance, of: fn(&crate::record::Second) -> Option<f64>| {
            let series = first(instance).map_or(&[][..], |m| &m.series);
            let points =
                series.iter().filter_map(|second| Some(Point { x: second.at_s, y: of(second)?, interval: None }));
            Line {
                name: title(figures, instance),
                ink: ink(figures, instance),
                points: points.collect(),
                has_marks: false,
            }
        };
        let series = instances.iter().find_map(|instance| first(instance)).map_or(&[][..], |m| &m.series);
        let warm = series.iter().take_while(|second| !second.measured).last().map(|second| (0.0, second.at_s + 0.5));
        let shades: Vec<(f64, f64)> = warm.into_iter().collect();
        let rate = Lines {
            caption: &format!("{}{which}: rate over time", case_title(case)),
            note: "First round. Shaded: ramp and warm-up, which do not count.",
            x: ("s", Scale::Linear),
            y: ("operations/s", Scale::Linear),
            show_y: plot::short,
            lines: instances.iter().map(|instance| line(instance, |second| Some(second.ok as f64))).collect(),
            shades: shades.clone(),
        };
        let p99 = Lines {
            caption: &format!("{}{which}: p99 over time", case_title(case)),
            note: "First round.",
            x: ("s", Scale::Linear),
            y: ("p99", Scale::Log),
            show_y: plot::short_micros,
            lines: instances.iter().map(|instance| line(instance, |second| second.p99_us)).collect(),
            shades,
        };
        [rate.draw(), p99.draw()]
    };
    groups.iter().flat_map(of_group).collect()
}
