//! Requests per second by number of CPUs, and what can be said about the series.

use crate::record::{Case, Instance, Mode, Variant, Verdict};
use crate::stats::{Estimate, Usl, fit_usl};

use super::super::figures::{Figures, LB_US, P99, RPS};
use super::super::number;
use super::super::table::Table;
use super::{absent, case_title, lower_bound_mark, middle, or_dash, verdict};

/// The efficiency that every level must have for a series to be called linear.
const LINEAR_EFFICIENCY_MIN: f64 = 0.9;

/// One contender over its numbers of CPUs, under one case.
pub(crate) struct Series<'a> {
    pub case: &'a Case,
    pub contender: String,
    /// Ascending by CPUs.
    pub levels: Vec<Level<'a>>,
    /// Fitted to all rounds of the comparable levels; absent if there are fewer than two of those.
    pub usl: Option<Usl>,
}

/// One number of CPUs.
pub(crate) struct Level<'a> {
    pub cpus: u32,
    pub instance: &'a Instance,
    /// Median and interval of operations per second.
    pub rate: Option<Estimate>,
    /// Rate over the rate of the first level, round by round.
    pub speed_up: Option<Estimate>,
    /// `speed_up * first level's CPUs / cpus`.
    pub efficiency: Option<Estimate>,
    /// Whether the balancer had its CPUs to itself. If it shared them with load or origins, the level says nothing about scaling.
    pub is_comparable: bool,
    pub verdict: Option<Verdict>,
}

/// All series of the run, of closed loops and searches, since an offered rate does not scale.
pub(crate) fn levels(figures: Figures<'_>) -> Vec<Series<'_>> {
    let mut series = Vec::new();
    let capacity = |case: &&Case| !matches!(case.load.mode, Mode::Open { .. });
    for case in figures.run.scenario.cases.iter().filter(capacity) {
        let mut known: Vec<(&str, Variant)> = Vec::new();
        for instance in figures.instances(&case.name).into_iter().filter(|instance| instance.hops > 0) {
            let key = (instance.contender.as_str(), instance.variant);
            if !known.contains(&key) {
                known.push(key);
                series.push(of_contender(figures, case, instance));
            }
        }
    }
    series
}

fn of_contender<'a>(figures: Figures<'a>, case: &'a Case, like: &Instance) -> Series<'a> {
    let is_same = |instance: &&Instance| {
        instance.contender == like.contender && instance.variant == like.variant && instance.hops == like.hops
    };
    let mut instances: Vec<&Instance> = figures.instances(&case.name).into_iter().filter(is_same).collect();
    instances.sort_by_key(|instance| instance.workers);
    let first = instances.first().map(|first| (first.id.as_str(), f64::from(first.workers.max(1))));
    let levels: Vec<Level<'_>> = instances
        .iter()
        .map(|&instance| {
            let speed_up = first.and_then(|(first, _)| figures.ratio(&case.name, &instance.id, first, RPS));
            let times = first.map_or(1.0, |(_, cpus)| cpus) / f64::from(instance.workers.max(1));
            let measured: Vec<_> = figures.measurements(&case.name, &instance.id, 0).into_iter().flatten().collect();
            Level {
                cpus: instance.workers,
                instance,
                rate: figures.estimate(&case.name, &instance.id, RPS),
                speed_up,
                efficiency: speed_up.map(|speed_up| scaled(&speed_up, times)),
                is_comparable: !measured.is_empty() && measured.iter().all(|m| crate::judge::is_box_apart(m)),
                verdict: figures.verdict(&case.name, &instance.id).map(|(verdict, _)| verdict),
            }
        })
        .collect();
    let comparable = levels.iter().filter(|level| level.is_comparable);
    let points = comparable.flat_map(|level| {
        let rounds = figures.values(&case.name, &level.instance.id, RPS);
        rounds.into_iter().map(|rate| (f64::from(level.cpus), rate))
    });
    let usl = fit_usl(&points.collect::<Vec<_>>());
    let base = figures.run.contenders.iter().find(|contender| contender.name == like.contender);
    let mut contender = base.map_or(like.contender.clone(), |contender| contender.title.clone());
    if like.variant == Variant::Default {
        contender.push_str(", default");
    }
    Series { case, contender, levels, usl }
}

fn scaled(estimate: &Estimate, factor: f64) -> Estimate {
    let Estimate { median, low, high, .. } = *estimate;
    Estimate { median: median * factor, low: low * factor, high: high * factor, ..*estimate }
}

impl Series<'_> {
    /// Why the series may not be called linear; None if it may.
    pub(crate) fn why_not_linear(&self) -> Option<String> {
        if self.levels.len() < 2 {
            return Some("one number of CPUs is no series".to_owned());
        }
        for level in &self.levels {
            let cpus = if level.cpus == 1 { "1 CPU".to_owned() } else { format!("{} CPUs", level.cpus) };
            if !level.is_comparable {
                return Some(format!(
                    "at {cpus} the balancer had to share them with load or origins: contended, not comparable"
                ));
            }
            match (level.verdict, &level.efficiency) {
                (Some(Verdict::LbSaturated), Some(efficiency)) if !efficiency.is_sure() => {
                    return Some(format!("{} rounds at {cpus} are too few for a 95 % interval", efficiency.rounds));
                }
                (Some(Verdict::LbSaturated), Some(efficiency)) if efficiency.low < LINEAR_EFFICIENCY_MIN => {
                    return Some(format!(
                        "efficiency at {cpus} {} reaches below {LINEAR_EFFICIENCY_MIN}",
                        number::with_interval(efficiency, number::plain)
                    ));
                }
                (Some(Verdict::LbSaturated), Some(_)) => {}
                (Some(other), _) => {
                    return Some(format!("at {cpus} the verdict is {}, not lb-saturated", number::verdict(other)));
                }
                (None, _) => return Some(format!("no sound round at {cpus}")),
            }
        }
        None
    }
}

pub(super) fn published(figures: Figures<'_>) -> Vec<Table> {
    levels(figures)
        .iter()
        .map(|series| {
            let caption = format!("{}: {}", series.contender, case_title(series.case));
            let mut table =
                Table::new(caption, [figures.title_of("CPU 数量 (number of CPUs)", "number of CPUs"), "Requests/sec"]);
            for level in &series.levels {
                table.row([level.cpus.to_string(), super::rps(figures, &series.case.name, &level.instance.id)]);
            }
            table
        })
        .collect()
}

/// A row for each balancer and number of CPUs. The published cases, or those like them, are side by side.
pub(super) fn summary(figures: Figures<'_>) -> Option<Table> {
    let series = levels(figures);
    let mut cases: Vec<&Case> = series.iter().map(|series| series.case).filter(|case| case.label.is_some()).collect();
    cases.dedup_by(|left, right| left.name == right.name);
    let first = *cases.first()?;
    let columns = cases.iter().flat_map(|case| {
        ["Requests/sec", "LB µs/req", "verdict"].map(|column| format!("{}: {column}", case_title(case)))
    });
    let head = ["balancer", figures.title_of("CPU 数量 (CPUs)", "CPUs")].map(str::to_owned).into_iter().chain(columns);
    let mut table = Table::new(figures.run.scenario.title.as_str(), head);
    for place in (0..cases.len()).map(|case| 4 + 3 * case) {
        table.head[place].is_figure = false;
    }
    for series in series.iter().filter(|series| series.case.name == first.name) {
        for level in &series.levels {
            let id = &level.instance.id;
            let of_case = |case: &&Case| {
                let verdict = verdict(figures, &case.name, id);
                let verdict = if level.is_comparable { verdict } else { format!("{verdict}; contended") };
                [
                    super::rps(figures, &case.name, id),
                    super::cell(figures, &case.name, id, LB_US, number::plain),
                    verdict,
                ]
            };
            let names = [series.contender.clone(), level.cpus.to_string()];
            table.row(names.into_iter().chain(cases.iter().flat_map(of_case)));
        }
    }
    table.note("≥: the balancer was not at its limit. contended: it had to share its CPUs with load or origins, which says nothing about scaling.");
    Some(table)
}

pub(super) fn honest(figures: Figures<'_>) -> Vec<Table> {
    let mut tables: Vec<Table> = levels(figures).iter().map(|series| honest_of(figures, series)).collect();
    let open = figures.run.scenario.cases.iter().filter(|case| matches!(case.load.mode, Mode::Open { .. }));
    tables.extend(open.map(|case| super::honest::case(figures, case)));
    tables
}

fn honest_of(figures: Figures<'_>, series: &Series<'_>) -> Table {
    let head = [
        "CPUs",
        "requests/s",
        "speed-up",
        "efficiency",
        "requests/s each",
        "LB µs/req",
        "LB busy",
        "load busy",
        "origins busy",
        "p99 at 80 %",
        "verdict",
    ];
    let case = &series.case.name;
    let mut table = Table::new(format!("{}: {}", series.contender, case_title(series.case)), head).words_from(10);
    for level in &series.levels {
        let id = &level.instance.id;
        let busy = |of: fn(&crate::record::Measurement) -> f64| {
            or_dash(middle(figures, case, id, |m| Some(of(m))), number::per_cent)
        };
        let rate = level.rate.as_ref();
        let verdict = verdict(figures, case, id);
        table.row([
            level.cpus.to_string(),
            rate.map_or_else(
                || absent(figures, case, id),
                |rate| format!("{}{}", lower_bound_mark(figures, case, id), number::with_interval(rate, number::plain)),
            ),
            level.speed_up.as_ref().map_or("-".to_owned(), number::ratio),
            level
                .efficiency
                .as_ref()
                .map_or("-".to_owned(), |efficiency| number::with_interval(efficiency, number::plain)),
            number::median(rate.map(|rate| scaled(rate, 1.0 / f64::from(level.cpus.max(1)))), number::plain),
            super::cell(figures, case, id, LB_US, number::plain),
            busy(|m| m.cpu.mean_busy(&m.cpu.balancer_cpus)),
            busy(|m| share(m.cpu.client_s, m.window_s, m.cpu.client_cpus.len())),
            busy(|m| share(m.cpu.origin_s, m.window_s, m.cpu.origin_cpus.len())),
            p99_at_80(figures, id),
            if level.is_comparable { verdict } else { format!("{verdict}; contended, not comparable") },
        ]);
    }
    match &series.usl {
        Some(usl) => {
            let peak = usl.peak().map_or("no peak".to_owned(), |peak| format!("peak at {peak:.0} CPUs"));
            table.note(format!(
                "Fit (Universal Scalability Law): λ = {}/s, σ (contention) = {:.4}, κ (crosstalk) = {:.6}; {peak}.",
                number::plain(usl.lambda),
                usl.sigma,
                usl.kappa
            ));
        }
        None => table.note("No fit: it takes two numbers of CPUs at which the balancer had them for itself."),
    }
    table.note(match series.why_not_linear() {
        Some(why) => format!("Not called linear: {why}."),
        None => format!("Linear: efficiency's interval is at least {LINEAR_EFFICIENCY_MIN} and the verdict lb-saturated at every level."),
    });
    table
}

fn share(seconds: f64, window_s: f64, cpus: usize) -> f64 {
    if cpus == 0 { 0.0 } else { seconds / (window_s * cpus as f64) }
}

/// From the open-loop case at 80 % of the slowest, if the scenario has one.
fn p99_at_80(figures: Figures<'_>, instance: &str) -> String {
    let is_80 = |case: &&Case| match &case.load.mode {
        Mode::Open { rate: crate::record::Rate::OfSlowest { share, .. }, .. } => (share - 0.8).abs() < 0.01,
        _ => false,
    };
    let case = figures
        .run
        .scenario
        .cases
        .iter()
        .filter(is_80)
        .find(|case| case.instances.iter().any(|known| known == instance));
    let p99 = case.and_then(|case| figures.estimate(&case.name, instance, P99));
    number::median(p99, number::micros)
}
