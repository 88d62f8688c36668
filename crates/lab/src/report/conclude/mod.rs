//! Sentences that the figures support.
//!
//! Each of the [`conclusions`] has the inequality that triggered it. A sentence without such an inequality is not written: "no difference
//! was shown" has one, "they are equal" has none. Opinions do not belong here.

mod by_scenario;

use crate::record::{Case, Conclusion, Instance, Layer, Mode, Run, Verdict};
use crate::stats::{Difference, Estimate, ROUNDS_MIN, differs, drifts};

use super::figures::{Figures, GBPS, LB_CORES_PER_GBPS, LB_US, P99, RPS};
use super::tables::{case_title, rate_figure, title};
use super::{hops, number};

/// With a noise floor above this, a run is of little use.
const NOISE_MAX: f64 = 0.05;

/// The number of conclusions that a reader must read first.
const LEADING_MAX: usize = 8;

/// The most of one kind among them, so that there is room for the others.
const LEADING_OF_KIND_MAX: usize = 3;

/// The subject of a conclusion. Conclusions of the first kinds lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Which contender certainly costs least.
    Cheapest,
    /// What the published report concluded.
    Published,
    /// Which rates are capacities.
    Capacity,
    /// What a hop adds.
    Hop,
    /// The host is too noisy.
    Noise,
    /// What was not shown, because of too few rounds or no difference.
    NotShown,
    /// Other limits of rates, and drift.
    Circumstance,
}

/// All conclusions of the run: first the leading ones, then those about its published report and those for every scenario.
pub(crate) fn conclusions(run: &Run) -> Vec<Conclusion> {
    let figures = Figures::new(run);
    let mut all: Vec<(Kind, Conclusion)> = Vec::new();
    all.extend(by_scenario::conclusions(figures).into_iter().map(|conclusion| (Kind::Published, conclusion)));
    all.extend(cheapest(figures));
    all.extend(hops::conclusions(figures).into_iter().map(|conclusion| (Kind::Hop, conclusion)));
    for case in &run.scenario.cases {
        all.extend(limits(figures, case));
    }
    all.extend(noise(figures).into_iter().map(|conclusion| (Kind::Noise, conclusion)));
    all.extend(drift(figures).into_iter().map(|conclusion| (Kind::Circumstance, conclusion)));
    for (kind, conclusion) in &mut all {
        // A conclusion that lacked rounds does not lead, whatever its subject.
        if conclusion.because.starts_with(TOO_FEW) {
            *kind = Kind::NotShown;
        }
    }
    // The sort is stable: within a kind they stay in the order of cases.
    all.sort_by_key(|(kind, _)| *kind);
    let mut leading: Vec<Kind> = Vec::new();
    for (kind, conclusion) in &mut all {
        let of_kind = leading.iter().filter(|known| *known == kind).count();
        conclusion.leads = leading.len() < LEADING_MAX && of_kind < LEADING_OF_KIND_MAX;
        leading.extend(conclusion.leads.then_some(*kind));
    }
    all.into_iter().map(|(_, conclusion)| conclusion).collect()
}

/// The beginning of the reason if there were too few rounds.
pub(super) const TOO_FEW: &str = "rounds: ";

pub(super) fn too_few(rounds: usize) -> String {
    format!("{TOO_FEW}{rounds} < {ROUNDS_MIN}")
}

pub(super) fn conclusion(text: impl Into<String>, because: impl Into<String>) -> Conclusion {
    Conclusion { text: text.into(), because: because.into(), leads: false }
}

/// The contender that costs least CPU for the same work in one case and layer, and how the next one differs from it.
struct Least<'a> {
    case: &'a str,
    place: &'static str,
    unit: &'static str,
    first: &'a str,
    second: &'a str,
    /// The cost of the first.
    cost: f64,
    /// The second over the first.
    ratio: Estimate,
    floor: f64,
    difference: Difference,
}

/// One sentence for all cases with the same result.
fn cheapest(figures: Figures<'_>) -> Vec<(Kind, Conclusion)> {
    let mut groups: Vec<Vec<Least<'_>>> = Vec::new();
    for least in figures.run.scenario.cases.iter().flat_map(|case| least_of(figures, case)) {
        let is_alike = |group: &&mut Vec<Least<'_>>| {
            let key = |least: &Least<'_>| {
                (
                    least.place,
                    least.unit,
                    least.difference == Difference::More,
                    least.difference == Difference::TooFewRounds,
                )
            };
            key(&group[0]) == key(&least) && (group[0].first, group[0].second) == (least.first, least.second)
        };
        match groups.iter_mut().find(is_alike) {
            Some(group) => group.push(least),
            None => groups.push(vec![least]),
        }
    }
    groups.iter().map(|group| cheapest_of(figures, group)).collect()
}

fn cheapest_of(figures: Figures<'_>, group: &[Least<'_>]) -> (Kind, Conclusion) {
    let Least { place, unit, first, second, difference, .. } = &group[0];
    let (first, second) = (name(figures, first), name(figures, second));
    let cases: Vec<&str> = group.iter().map(|least| least.case).collect();
    let range = |of: &dyn Fn(&Least<'_>) -> f64, show: fn(f64) -> String| {
        let (low, high) = group
            .iter()
            .map(of)
            .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)));
        if show(low) == show(high) { show(low) } else { format!("{} to {}", show(low), show(high)) }
    };
    let cost = range(&|least| least.cost, number::plain);
    let ratio = match group {
        [only] => number::ratio(&only.ratio),
        _ => format!("×{}", range(&|least| least.ratio.median, number::plain)),
    };
    // The case that supports the sentence least.
    let weakest = group.iter().min_by(|left, right| left.ratio.low.total_cmp(&right.ratio.low)).unwrap_or(&group[0]);
    let bound = format!("1 + {:.3}, lower end of the interval of the ratio against the noise floor", weakest.floor);
    let (kind, text, because) = match difference {
        Difference::More => (
            Kind::Cheapest,
            format!("{first} costs least {place}, {cost} {unit}; {second}, the next, costs {ratio}"),
            format!("{:.3} > {bound}", weakest.ratio.low),
        ),
        Difference::TooFewRounds => (
            Kind::NotShown,
            format!("{first} cost least {place} in the middle of too few rounds, {cost} {unit}; {second} {ratio}"),
            too_few(weakest.ratio.rounds),
        ),
        Difference::NotShown | Difference::Less => (
            Kind::Cheapest,
            format!("{first} and {second} cost least {place}; no difference between them was shown"),
            format!("{:.3} is not > {bound}", weakest.ratio.low),
        ),
    };
    (kind, conclusion(format!("{}: {text}.", cases.join(", ")), because))
}

fn least_of<'a>(figures: Figures<'a>, case: &'a Case) -> Vec<Least<'a>> {
    let (metric, unit) = match rate_figure(case).0 {
        "Gbps" => (LB_CORES_PER_GBPS, "cores/Gbps"),
        _ => (LB_US, "µs of CPU per operation"),
    };
    let layers = [
        (Layer::Kernel, "in the kernel"),
        (Layer::Tcp, "on layer 4"),
        (Layer::Http, "on layer 7"),
        (Layer::H2, "over HTTP/2"),
    ];
    let of_layer = |(layer, place): (Layer, &'static str)| {
        let ranked = ranked(figures, case, layer, metric);
        let [(first, least), (second, _), ..] = ranked.as_slice() else { return None };
        let ratio = figures.ratio(&case.name, second, first, metric)?;
        let floor = figures.noise(&case.name, metric);
        let difference = differs(&ratio, floor);
        Some(Least { case: case_title(case), place, unit, first, second, cost: least.median, ratio, floor, difference })
    };
    layers.into_iter().filter_map(of_layer).collect()
}

/// The contenders of a layer by cost, the cheapest first: of each one its cheapest configuration, all with as many CPUs.
fn ranked<'a>(figures: Figures<'a>, case: &Case, layer: Layer, metric: &str) -> Vec<(&'a str, Estimate)> {
    let single =
        |instance: &&Instance| instance.hops <= 1 && crate::judge::layer_of(figures.run, &instance.id) == layer;
    let instances: Vec<&Instance> = figures.instances(&case.name).into_iter().filter(single).collect();
    let workers = instances.iter().map(|instance| instance.workers).min();
    let alike = instances.into_iter().filter(|instance| Some(instance.workers) == workers);
    let with_cost = |instance: &'a Instance| Some((instance, figures.estimate(&case.name, &instance.id, metric)?));
    let mut ranked: Vec<(&Instance, Estimate)> = alike.filter_map(with_cost).collect();
    ranked.sort_by(|left, right| left.1.median.total_cmp(&right.1.median));
    let mut contenders: Vec<&str> = Vec::new();
    ranked.retain(|(instance, _)| {
        let is_first = !contenders.contains(&instance.contender.as_str());
        contenders.push(&instance.contender);
        is_first
    });
    ranked.into_iter().map(|(instance, cost)| (instance.id.as_str(), cost)).collect()
}

/// What was at its limit; only for closed loops, since an open one is meant to stay below.
fn limits(figures: Figures<'_>, case: &Case) -> Vec<(Kind, Conclusion)> {
    let mut conclusions = Vec::new();
    let verdicts = [
        (Verdict::LbSaturated, "the balancer was at its limit, so the rate is its capacity, for"),
        (Verdict::BackendSaturated, "the origins were at their limit, so the rate is a lower bound, for"),
        (Verdict::GeneratorSaturated, "the load was at its limit, so the rate is a lower bound, for"),
        (
            Verdict::ConcurrencyLimited,
            "nothing was at its limit but the number of connections, so the rate is a lower bound, for",
        ),
        (Verdict::CapBound, "something outside of all contenders capped the rate, for"),
        (
            Verdict::Disturbed,
            "the host was disturbed in every round, so only ratios to the reference mean anything, for",
        ),
        (Verdict::Invalid, "the figures mean nothing, for"),
    ];
    for (verdict, sentence) in verdicts {
        if case.load.mode != Mode::Closed
            && !matches!(verdict, Verdict::GeneratorSaturated | Verdict::Disturbed | Verdict::Invalid)
        {
            continue;
        }
        let judged = figures.instances(&case.name).into_iter().filter_map(|instance| {
            let (found, reasons) = figures.verdict(&case.name, &instance.id)?;
            (found == verdict).then(|| (title(figures, instance), reasons))
        });
        let judged: Vec<_> = judged.collect();
        let Some((_, reasons)) = judged.first() else { continue };
        let names: Vec<&str> = judged.iter().map(|(name, _)| name.as_str()).collect();
        let of_first = if names.len() > 1 { format!("{}: ", names[0]) } else { String::new() };
        let kind = if verdict == Verdict::LbSaturated { Kind::Capacity } else { Kind::Circumstance };
        let text = format!("{}: {sentence} {}.", case_title(case), names.join(", "));
        conclusions.push((kind, conclusion(text, format!("{of_first}{}", reasons.join("; ")))));
    }
    conclusions
}

/// One sentence for all figures of a case that this host cannot tell apart.
fn noise(figures: Figures<'_>) -> Vec<Conclusion> {
    let metrics = [
        (RPS, "rate"),
        (GBPS, "rate"),
        (LB_US, "CPU per operation"),
        (LB_CORES_PER_GBPS, "CPU per Gbps"),
        (P99, "p99"),
    ];
    let of_case = |case: &Case| {
        let floors = metrics.iter().filter(|(name, _)| !figures.same_over_same(&case.name, name).is_empty());
        let floors = floors.map(|(name, what)| (*what, figures.noise(&case.name, name)));
        let floors: Vec<String> = floors
            .filter(|(_, floor)| *floor > NOISE_MAX)
            .map(|(what, floor)| format!("{what} {}", number::per_cent(floor)))
            .collect();
        let text = format!(
            "{}: this host is too noisy to tell differences below these: {}.",
            case_title(case),
            floors.join(", ")
        );
        let because =
            format!("the same contender against itself differs by as much, > {}", number::per_cent(NOISE_MAX));
        (!floors.is_empty()).then(|| conclusion(text, because))
    };
    figures.run.scenario.cases.iter().filter_map(of_case).collect()
}

/// Cells whose rate changed over the rounds.
fn drift(figures: Figures<'_>) -> Vec<Conclusion> {
    let mut conclusions = Vec::new();
    for case in &figures.run.scenario.cases {
        let (_, rate) = rate_figure(case);
        let wandering = figures.instances(&case.name).into_iter().filter_map(|instance| {
            let values = figures.values(&case.name, &instance.id, rate);
            let spread = spread_beyond_noise(figures, &case.name, rate, &values);
            (drifts(&values) && spread).then(|| (title(figures, instance), crate::stats::spearman(&values)))
        });
        let wandering: Vec<_> = wandering.collect();
        if let Some((_, Some(rho))) = wandering.first() {
            let names: Vec<&str> = wandering.iter().map(|(name, _)| name.as_str()).collect();
            let text = format!(
                "{}: the rate of {} drifted over the rounds; its median describes no one state.",
                case_title(case),
                names.join(", ")
            );
            conclusions.push(conclusion(text, format!("|ρ| = {:.2} > 0.5", rho.abs())));
        }
    }
    conclusions
}

/// An open loop holds its rate to a fraction of a per mille. That such rounds happen to be in some order is no drift.
fn spread_beyond_noise(figures: Figures<'_>, case: &str, metric: &str, values: &[f64]) -> bool {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = values.iter().copied().fold(0.0, f64::max);
    greatest > least * (1.0 + figures.noise(case, metric))
}

pub(super) fn name(figures: Figures<'_>, instance: &str) -> String {
    figures.run.instance(instance).map_or(instance.to_owned(), |instance| title(figures, instance))
}
