//! Checks the conclusions of each published report against these figures.

use crate::record::{Case, Conclusion, Instance, Layer, LoadKind, Mode, Rate, Table, Verdict};
use crate::stats::{Difference, Estimate, ROUNDS_MIN, differs, unpaired_ratio};

use super::super::figures::{CORES_PER_GBPS, Figures, GBPS, LB_CORES_PER_GBPS, ORIGIN_US, RPS};
use super::super::number;
use super::super::tables::{case_title, is_one_at_a_time, levels, middle, title, variation};
use super::{TOO_FEW, conclusion, name, too_few};

/// A gateway suits services to which it adds at most this share at p95.
const SUITABLE_SHIFT_MAX: f64 = 0.05;
/// The seed of intervals from resampling. Any number will do, as long as it never changes.
const RATIO_SEED: u64 = 2;
/// Origins are used evenly if the standard deviation of their operations over the mean is less than this.
const EVEN_MAX: f64 = 0.1;
/// The knee is where p95 exceeds this many times that of the lightest case, or less than this share of the offered rate is reached.
const KNEE_P95_FACTOR: f64 = 2.0;
const KNEE_REACHED_MIN: f64 = 0.99;

pub(super) fn conclusions(figures: Figures<'_>) -> Vec<Conclusion> {
    match figures.run.scenario.table {
        Table::L4l7Ab => l4l7_ab(figures),
        Table::GrpcGateway => grpc_gateway(figures),
        Table::L4Matrix => l4_matrix(figures),
        Table::TcpDownstream => tcp_downstream(figures),
        Table::CpuScaling => cpu_scaling(figures),
        Table::Generic => Vec::new(),
    }
}

fn balancers<'a>(figures: Figures<'a>, case: &'a Case, wanted: &'a [Layer]) -> impl Iterator<Item = &'a Instance> {
    let of_layer = |instance: &&Instance| wanted.contains(&crate::judge::layer_of(figures.run, &instance.id));
    figures.instances(&case.name).into_iter().filter(of_layer)
}

/// The report found layer 4 level with a NodePort, found that layer 7 loses 50 to 60 %, and blamed the balancer.
fn l4l7_ab(figures: Figures<'_>) -> Vec<Conclusion> {
    let mut conclusions = Vec::new();
    let reference = &figures.run.scenario.reference;
    for case in figures.run.scenario.cases.iter().filter(|case| case.load.mode == Mode::Closed) {
        for (layers, place, published) in [
            (&[Layer::Kernel, Layer::Tcp][..], "layer 4", "level with a NodePort"),
            (&[Layer::Http][..], "layer 7", "a loss of 50 to 60 %"),
        ] {
            let others = balancers(figures, case, layers).filter(|instance| instance.id != *reference);
            let ratios = others.filter_map(|instance| {
                Some((title(figures, instance), figures.ratio(&case.name, &instance.id, reference, RPS)?))
            });
            let mut ratios: Vec<_> = ratios.collect();
            ratios.sort_by(|left, right| left.1.median.total_cmp(&right.1.median));
            if let (Some((worst, low)), Some((best, high))) = (ratios.first(), ratios.last()) {
                let against =
                    format!("{}: rates through {place}, against {}", case_title(case), name(figures, reference));
                let one = |who: &str, ratio: &Estimate| format!("{} ({who})", number::change(ratio.median - 1.0));
                let because = |who: &str, ratio: &Estimate| format!("{who} {}", number::ratio(ratio));
                let (range, because) = match ratios.len() {
                    1 => (one(worst, low), because(worst, low)),
                    _ => (
                        format!("from {} to {}", one(worst, low), one(best, high)),
                        format!("{}; {}", because(worst, low), because(best, high)),
                    ),
                };
                conclusions.push(conclusion(format!("{against}, {range}; published: {published}."), because));
            }
        }
        conclusions.extend(dearer_origins(figures, case));
    }
    conclusions.extend(more_origins(figures));
    conclusions
}

/// Published: twice the origins give, in theory, twice the rate.
fn more_origins(figures: Figures<'_>) -> Vec<Conclusion> {
    let cases = &figures.run.scenario.cases;
    let is_more = |few: &Case, many: &Case| {
        few.load == many.load
            && few.load.mode == Mode::Closed
            && few.origin.arguments == many.origin.arguments
            && few.origin.count < many.origin.count
    };
    let pairs =
        cases.iter().flat_map(|few| cases.iter().filter(|many| is_more(few, many)).map(move |many| (few, many)));
    let mut conclusions = Vec::new();
    for (few, many) in pairs {
        let ratio = |instance: &&Instance| {
            let (new, old) =
                (figures.values(&many.name, &instance.id, RPS), figures.values(&few.name, &instance.id, RPS));
            // They were not measured in the same round, so nothing cancels.
            Some((title(figures, instance), unpaired_ratio(&new, &old, RATIO_SEED)?))
        };
        let mut ratios: Vec<_> = figures.instances(&few.name).iter().filter_map(ratio).collect();
        ratios.sort_by(|left, right| left.1.median.total_cmp(&right.1.median));
        if let (Some((least, low)), Some((most, high))) = (ratios.first(), ratios.last()) {
            conclusions.push(conclusion(
                format!(
                    "{} with {} origins instead of {}: rates change by {} ({least}) to {} ({most}); published: in theory by as much as the \
                     origins.",
                    case_title(few),
                    many.origin.count,
                    few.origin.count,
                    number::change(low.median - 1.0),
                    number::change(high.median - 1.0)
                ),
                format!("{least} {}; {most} {}", number::ratio(low), number::ratio(high)),
            ));
        }
    }
    conclusions
}

/// Origins whose requests cost more because of the balancer in front of them.
fn dearer_origins(figures: Figures<'_>, case: &Case) -> Vec<Conclusion> {
    let reference = &figures.run.scenario.reference;
    let floor = figures.noise(&case.name, ORIGIN_US);
    let mut conclusions = Vec::new();
    for instance in balancers(figures, case, &[Layer::Tcp, Layer::Http, Layer::H2]) {
        let ratio = figures.ratio(&case.name, &instance.id, reference, ORIGIN_US);
        let Some(ratio) = ratio.filter(|ratio| differs(ratio, floor) == Difference::More) else { continue };
        let reuse = middle(figures, &case.name, &instance.id, |m| {
            Some(1.0 - m.origin_connections? as f64 / m.ok.max(1) as f64)
        });
        let reuse = reuse.map_or(String::new(), |reuse| {
            format!("; {} of requests reused a connection upstream", number::per_cent(reuse.max(0.0)))
        });
        conclusions.push(conclusion(
            format!(
                "{}: behind {} a request costs the origins {} of what it costs them behind {}.",
                case_title(case),
                title(figures, instance),
                number::ratio(&ratio),
                name(figures, reference)
            ),
            format!("{:.3} > 1 + {floor:.3}{reuse}", ratio.low),
        ));
    }
    conclusions
}

/// What a gateway adds, which services can tolerate it, and where it becomes overloaded.
fn grpc_gateway(figures: Figures<'_>) -> Vec<Conclusion> {
    let mut conclusions = Vec::new();
    let reference = &figures.run.scenario.reference;
    for case in figures.run.scenario.cases.iter().filter(|case| is_one_at_a_time(case)) {
        for instance in figures.instances(&case.name).into_iter().filter(|instance| instance.id != *reference) {
            let shift = figures.shift(&case.name, &instance.id, reference, "p95_us");
            let relative = figures.ratio(&case.name, &instance.id, reference, "p95_us");
            if let (Some(shift), Some(relative)) = (shift, relative) {
                conclusions.push(added(case, &title(figures, instance), &shift, &relative));
            }
        }
    }
    conclusions.extend(spreads(figures));
    conclusions.extend(knees(figures));
    conclusions
}

/// What a gateway adds at p95, and the services for which that does not matter.
fn added(case: &Case, gateway: &str, shift: &Estimate, relative: &Estimate) -> Conclusion {
    let interval = number::with_interval(shift, number::micros);
    if shift.low <= 0.0 {
        let text = format!("{}: {gateway} was not shown to shift p95.", case_title(case));
        return conclusion(text, format!("the interval of the shift, {interval}, reaches to 0 or below"));
    }
    if !shift.is_sure() {
        let text =
            format!("{}: {gateway} shifted p95 by {interval} in too few rounds to be sure of it.", case_title(case));
        return conclusion(text, too_few(shift.rounds));
    }
    let suits = number::micros(shift.median / SUITABLE_SHIFT_MAX);
    conclusion(
        format!(
            "{}: {gateway} shifts p95 by {interval}, {}; it suits services that take {suits} or more.",
            case_title(case),
            number::change(relative.median - 1.0)
        ),
        format!("{} is at most {} of {suits}", number::micros(shift.median), number::per_cent(SUITABLE_SHIFT_MAX)),
    )
}

/// Whether one connection's calls reach all origins.
fn spreads(figures: Figures<'_>) -> Vec<Conclusion> {
    let mut conclusions = Vec::new();
    let one_connection = |case: &&Case| case.load.connections == 1 && case.load.streams > 1 && case.origin.count > 1;
    for case in figures.run.scenario.cases.iter().filter(one_connection) {
        for instance in balancers(figures, case, &[Layer::Kernel, Layer::Tcp, Layer::Http, Layer::H2]) {
            let Some(variation) = middle(figures, &case.name, &instance.id, |m| variation(&m.shares)) else { continue };
            let (sentence, sign) = if variation < EVEN_MAX {
                ("spreads the calls of one connection over all origins", "<")
            } else {
                ("does not spread the calls of one connection", ">=")
            };
            conclusions.push(conclusion(
                format!("{}: {} {sentence}.", case_title(case), title(figures, instance)),
                format!("coefficient of variation of the origins' calls {variation:.2} {sign} {EVEN_MAX}"),
            ));
        }
    }
    conclusions
}

/// For each instance, the first rate (and number of connections) at which it becomes overloaded, compared with the lightest of its
/// open-loop cases with as many origins.
fn knees(figures: Figures<'_>) -> Vec<Conclusion> {
    let mut conclusions = Vec::new();
    let weight = |case: &Case| match &case.load.mode {
        Mode::Open { rate: Rate::Fixed(rate), .. } => Some((case.load.connections, *rate)),
        _ => None,
    };
    for instance in &figures.run.scenario.instances {
        let takes_part = |case: &&Case| case.instances.contains(&instance.id) && weight(case).is_some();
        let mut cases: Vec<&Case> = figures.run.scenario.cases.iter().filter(takes_part).collect();
        cases.sort_by(|left, right| weight(left).partial_cmp(&weight(right)).unwrap_or(std::cmp::Ordering::Equal));
        let Some(&lightest) = cases.first() else { continue };
        let p95 = |case: &Case| figures.estimate(&case.name, &instance.id, "p95_us");
        let Some(light) = p95(lightest) else { continue };
        let gives_way = cases.iter().skip(1).filter(|case| case.load.kind == lightest.load.kind).find_map(|case| {
            let reached = middle(figures, &case.name, &instance.id, |m| Some(m.ok_per_s / m.rate?))?;
            let p95 = p95(case)?;
            let (is_slow, is_short) = (p95.median > KNEE_P95_FACTOR * light.median, reached < KNEE_REACHED_MIN);
            (is_slow || is_short).then(|| {
                let [p95, light] = [p95, light].map(|time| number::median(Some(time), number::micros));
                let slow = format!("p95 {p95} > {KNEE_P95_FACTOR} × {light}");
                let short = format!(
                    "{} of the rate reached < {}",
                    number::per_cent(reached),
                    number::per_cent(KNEE_REACHED_MIN)
                );
                (*case, if is_slow { slow } else { short })
            })
        });
        if let Some((case, because)) = gives_way {
            conclusions.push(conclusion(
                format!("{}: the knee is at {}.", title(figures, instance), case_title(case)),
                because,
            ));
        }
    }
    conclusions
}

/// Which of the published claims "better everywhere" hold.
fn l4_matrix(figures: Figures<'_>) -> Vec<Conclusion> {
    let mut conclusions = Vec::new();
    for case in &figures.run.scenario.cases {
        let (metric, is_rate) = match case.load.kind {
            LoadKind::Stream => (GBPS, true),
            LoadKind::TcpRr if case.load.connections == 1 => ("min_us", false),
            _ => (RPS, true),
        };
        let floor = figures.noise(&case.name, metric);
        let routed = figures
            .instances(&case.name)
            .into_iter()
            .find(|instance| crate::judge::layer_of(figures.run, &instance.id) == Layer::Routed);
        let Some(routed) = routed else { continue };
        let (mut better, mut worse, mut level, mut few) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for instance in balancers(figures, case, &[Layer::Kernel, Layer::Tcp, Layer::Http]) {
            let Some(ratio) = figures.ratio(&case.name, &instance.id, &routed.id, metric) else { continue };
            let entry = format!("{} {}", title(figures, instance), number::ratio(&ratio));
            match (differs(&ratio, floor), is_rate) {
                (Difference::More, true) | (Difference::Less, false) => better.push(entry),
                (Difference::Less, true) | (Difference::More, false) => worse.push(entry),
                (Difference::NotShown, _) => level.push(entry),
                (Difference::TooFewRounds, _) => few.push(entry),
            }
        }
        let whole = format!("the whole interval against 1 ± {floor:.3}");
        let groups = [
            ("better than", better, whole.clone()),
            ("worse than", worse, whole.clone()),
            ("not shown to differ from", level, whole),
            ("in too few rounds to tell, against", few, format!("{TOO_FEW}fewer than {ROUNDS_MIN}")),
        ];
        for (relation, entries, because) in groups.into_iter().filter(|(_, entries, _)| !entries.is_empty()) {
            let entries = entries.join(", ");
            let text = format!("{}: {relation} the routed path without a balancer: {entries}.", case_title(case));
            conclusions.push(conclusion(text, because));
        }
    }
    conclusions
}

/// Whether a path costs bandwidth, and what it costs in CPU: one sentence each for all paths of a case.
fn tcp_downstream(figures: Figures<'_>) -> Vec<Conclusion> {
    let mut conclusions = Vec::new();
    let reference = &figures.run.scenario.reference;
    for case in figures.run.scenario.cases.iter().filter(|case| case.load.kind == LoadKind::Stream) {
        let (rate_floor, cost_floor) = (figures.noise(&case.name, GBPS), figures.noise(&case.name, CORES_PER_GBPS));
        let (mut lower, mut dearer, mut level) = (Vec::new(), Vec::new(), Vec::new());
        for instance in figures.instances(&case.name).into_iter().filter(|instance| instance.id != *reference) {
            let against = |metric| figures.ratio(&case.name, &instance.id, reference, metric);
            let is_capped = matches!(figures.verdict(&case.name, &instance.id), Some((Verdict::CapBound, _)));
            let rate = against(GBPS).filter(|ratio| differs(ratio, rate_floor) == Difference::Less && !is_capped);
            lower.extend(rate.map(|ratio| format!("{} {}", title(figures, instance), number::ratio(&ratio))));
            let is_level =
                |ratio: &Estimate| ratio.is_sure() && ratio.low > 1.0 - LEVEL_SHARE && ratio.high < 1.0 + LEVEL_SHARE;
            let same = against(CORES_PER_GBPS).filter(is_level);
            level.extend(same.map(|ratio| format!("{} {}", title(figures, instance), number::ratio(&ratio))));
            let cost = against(CORES_PER_GBPS).filter(|ratio| differs(ratio, cost_floor) == Difference::More);
            let own = figures.estimate(&case.name, &instance.id, LB_CORES_PER_GBPS);
            let own =
                own.map_or(String::new(), |own| format!(" ({} of its own)", number::median(Some(own), number::plain)));
            dearer.extend(cost.map(|ratio| format!("{} {}{own}", title(figures, instance), number::ratio(&ratio))));
        }
        if !dearer.is_empty() {
            conclusions.push(conclusion(
                format!("{}: cores for each Gbps, against the direct path: {}.", case_title(case), dearer.join(", ")),
                format!("the whole interval of each > 1 + {cost_floor:.3}"),
            ));
        }
        if !level.is_empty() {
            conclusions.push(conclusion(
                format!(
                    "{}: the whole host pays for each Gbps what it pays on the direct path: {}.",
                    case_title(case),
                    level.join(", ")
                ),
                format!("the whole interval of each within 1 ± {LEVEL_SHARE:.2}"),
            ));
        }
        conclusions.extend(sidecars(figures, case));
        if !lower.is_empty() {
            conclusions.push(conclusion(
                format!("{}: lower in bandwidth than the direct path: {}.", case_title(case), lower.join(", ")),
                format!("the whole interval of each < 1 - {rate_floor:.3}"),
            ));
        }
    }
    conclusions
}

/// Ratios that are this close to 1 with their whole interval are level.
const LEVEL_SHARE: f64 = 0.03;

/// What sidecars add to the direct path, against what Envoy adds in the same arrangement: in plain text, and with mutual TLS.
fn sidecars(figures: Figures<'_>, case: &Case) -> Vec<Conclusion> {
    let mut conclusions = Vec::new();
    for (suffix, how) in [("-sidecar", "a sidecar on both sides"), ("-sidecar-tls", "sidecars with mutual TLS")] {
        let envoy = format!("envoy{suffix}");
        let all = figures.instances(&case.name);
        let Some(envoy) = all.iter().find(|instance| instance.contender == envoy) else { continue };
        let others = all.iter().filter(|other| other.contender.ends_with(suffix) && other.id != envoy.id);
        let against = others.filter_map(|other| {
            let ratio = figures.ratio(&case.name, &other.id, &envoy.id, LB_CORES_PER_GBPS);
            let ratio = ratio.filter(Estimate::is_sure)?;
            Some(format!("{} {}", title(figures, other), number::ratio(&ratio)))
        });
        let against: Vec<String> = against.collect();
        if !against.is_empty() {
            conclusions.push(conclusion(
                format!(
                    "{}: what {how} adds to the CPU for each Gbps, against what {} adds: {}.",
                    case_title(case),
                    title(figures, envoy),
                    against.join(", ")
                ),
                "the whole host, more than on the direct path; ratios by pairs".to_owned(),
            ));
        }
    }
    conclusions
}

/// The word "linear" only if it is shown; one sentence for all series of a case with the same result.
fn cpu_scaling(figures: Figures<'_>) -> Vec<Conclusion> {
    let all = levels(figures);
    let mut conclusions = Vec::new();
    for case in &figures.run.scenario.cases {
        let of_case = all.iter().filter(|series| series.case.name == case.name);
        let (linear, others): (Vec<_>, Vec<_>) = of_case
            .map(|series| (series.contender.as_str(), series.why_not_linear()))
            .partition(|(_, why)| why.is_none());
        let names =
            |series: &[(&str, Option<String>)]| series.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        if !linear.is_empty() {
            conclusions.push(conclusion(
                format!(
                    "{}: the rate grows linearly over the levels that were measured, with {}.",
                    case_title(case),
                    names(&linear)
                ),
                "efficiency's interval >= 0.9 and the verdict lb-saturated at every level",
            ));
        }
        if let Some((first, Some(why))) = others.first() {
            conclusions.push(conclusion(
                format!("{}: a linear growth is not shown, with {}.", case_title(case), names(&others)),
                format!("{first}: {why}"),
            ));
        }
    }
    conclusions
}
