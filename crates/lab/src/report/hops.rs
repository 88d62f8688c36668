//! What one more hop adds: chains of the same balancer with different lengths.
//!
//! It computes the slope of a figure over the length of the chain, round by round ([`slopes`]), as a table and as sentences. The cost of
//! load and origins is the same for every length and cancels, and so does what the kernel charges to the wrong process; and the longer the
//! chain, the less noise matters. The cost of the first hop compared with none at all is an ordinary ratio, and is not computed here.

use crate::record::{Case, Conclusion, Instance, Layer, LoadKind};
use crate::stats::Estimate;

use super::conclude::{conclusion, too_few};
use super::figures::{self, BUSY_US, CORES_PER_GBPS, Figures, LB_CORES_PER_GBPS, LB_US, P50};
use super::number;
use super::table::Table;
use super::tables::{case_title, title};

/// The slope of one figure, for one balancer under one case.
struct Slope<'a> {
    case: &'a Case,
    /// The shortest of its chains.
    link: &'a Instance,
    /// Lengths that were measured, ascending.
    lengths: Vec<u32>,
    metric: &'static str,
    /// Per hop, over the lengths from one on: otherwise the path is the same.
    per_hop: Estimate,
    /// The same with the path without a balancer as length 0, if there is one.
    from_none: Option<Estimate>,
}

/// A row for each chain and figure.
pub(crate) fn table(figures: Figures<'_>) -> Option<Table> {
    let head = ["case", "balancer", "lengths", "figure", "for each hop", "with no balancer as 0"];
    let mut table = Table::new("What one more hop adds (least squares, round by round)", head);
    for place in [1, 2, 3] {
        table.head[place].is_figure = false;
    }
    for slope in slopes(figures) {
        let (title_of_metric, show) = shown(slope.metric);
        let lengths: Vec<String> = slope.lengths.iter().map(u32::to_string).collect();
        table.row([
            case_title(slope.case).to_owned(),
            title(figures, slope.link),
            lengths.join(", "),
            title_of_metric.to_owned(),
            number::with_interval(&slope.per_hop, show),
            slope.from_none.map_or("-".to_owned(), |slope| number::with_interval(&slope, show)),
        ]);
    }
    table.note(
        "Load and origins are the same for every length, so what they cost cancels, and so does what the kernel charged to the wrong one. The \
         last column has the way to and from the first hop in it, and what forwarding without a balancer costs on that way.",
    );
    (!table.rows.is_empty()).then_some(table)
}

/// A sentence for each chain and figure whose slope is certain, and one for each that is not.
pub(crate) fn conclusions(figures: Figures<'_>) -> Vec<Conclusion> {
    let of_slope = |slope: Slope<'_>| {
        let (metric, show) = shown(slope.metric);
        let (case, who) = (case_title(slope.case), title(figures, slope.link));
        let interval = number::with_interval(&slope.per_hop, show);
        let lengths = slope.lengths.len();
        let (text, because) = if !slope.per_hop.is_sure() {
            (
                format!(
                    "{case}: one more hop of {who} added {interval} ({metric}), in too few rounds to be sure of it."
                ),
                too_few(slope.per_hop.rounds),
            )
        } else if slope.per_hop.low > 0.0 {
            (
                format!("{case}: one more hop of {who} adds {interval} ({metric})."),
                format!("slope over {lengths} lengths of chain, {} > 0", show(slope.per_hop.low)),
            )
        } else {
            (
                format!("{case}: one more hop of {who} was not shown to add to {metric}."),
                format!("the interval of the slope, {interval}, reaches to 0 or below"),
            )
        };
        conclusion(text, because)
    };
    slopes(figures).into_iter().map(of_slope).collect()
}

fn slopes(figures: Figures<'_>) -> Vec<Slope<'_>> {
    let mut slopes = Vec::new();
    for case in &figures.run.scenario.cases {
        for links in chains(figures, case) {
            slopes.extend(metrics(case).iter().filter_map(|metric| slope(figures, case, &links, metric)));
        }
    }
    slopes
}

/// The instances of each balancer that has chains of different length, shortest first.
fn chains<'a>(figures: Figures<'a>, case: &Case) -> Vec<Vec<&'a Instance>> {
    let mut chains: Vec<Vec<&Instance>> = Vec::new();
    for instance in figures.instances(&case.name).into_iter().filter(|instance| instance.hops > 0) {
        let key = |instance: &Instance| (instance.contender.clone(), instance.variant, instance.workers);
        match chains.iter_mut().find(|links| key(links[0]) == key(instance)) {
            Some(links) => links.push(instance),
            None => chains.push(vec![instance]),
        }
    }
    for links in &mut chains {
        links.sort_by_key(|link| link.hops);
    }
    chains.retain(|links| links.len() > 1);
    chains
}

/// CPU in total, CPU of the balancer, and median latency if something waits for an answer.
fn metrics(case: &Case) -> &'static [&'static str] {
    match case.load.kind {
        LoadKind::Stream => &[CORES_PER_GBPS, LB_CORES_PER_GBPS],
        _ => &[BUSY_US, LB_US, P50],
    }
}

fn shown(metric: &'static str) -> (&'static str, fn(f64) -> String) {
    match metric {
        P50 => ("p50", number::micros),
        other => (figures::metric(other).map_or(other, |metric| metric.title), number::plain),
    }
}

fn slope<'a>(figures: Figures<'a>, case: &'a Case, links: &[&'a Instance], metric: &'static str) -> Option<Slope<'a>> {
    let known = figures::metric(metric)?;
    let of = |instance: &Instance, hops: u32| (f64::from(hops), figures.rounds(&case.name, &instance.id, 0, known));
    let mut series: Vec<_> = links.iter().map(|link| of(link, link.hops)).collect();
    let per_hop = over(figures, &series)?;
    // The balancer's cost is not measured if there is none.
    let none = without_balancer(figures, case).filter(|_| matches!(metric, BUSY_US | CORES_PER_GBPS | P50));
    let from_none = none.and_then(|none| {
        series.push(of(none, 0));
        over(figures, &series)
    });
    let lengths = links.iter().map(|link| link.hops).collect();
    Some(Slope { case, link: *links.first()?, lengths, metric, per_hop, from_none })
}

fn over(figures: Figures<'_>, series: &[(f64, Vec<Option<f64>>)]) -> Option<Estimate> {
    let of_round = |round: usize| {
        let point = |(hops, rounds): &(f64, Vec<Option<f64>>)| Some((*hops, (*rounds.get(round)?)?));
        series.iter().filter_map(point).collect()
    };
    let rounds: Vec<Vec<(f64, f64)>> = (0..figures.run.rounds as usize).map(of_round).collect();
    crate::stats::slope(&rounds)
}

/// The path through the balancer's namespace without it, if it was measured; otherwise the direct path.
fn without_balancer<'a>(figures: Figures<'a>, case: &Case) -> Option<&'a Instance> {
    let of_layer = |layer: Layer| {
        let instances = figures.instances(&case.name).into_iter();
        instances.into_iter().find(|instance| crate::judge::layer_of(figures.run, &instance.id) == layer)
    };
    of_layer(Layer::Routed).or_else(|| of_layer(Layer::Direct))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Table as Kind;
    use crate::report::sample;

    #[test]
    fn the_slope_is_what_a_hop_costs() {
        let run = sample::run(Kind::TcpDownstream);
        let figures = Figures::new(&run);
        let slopes = slopes(figures);
        let find = |case: &str, metric: &str| {
            let is_it = |slope: &&Slope<'_>| slope.case.name == case && slope.metric == metric;
            slopes.iter().find(is_it).unwrap()
        };
        // The sample's true value: 11.9 µs of the balancer's CPU per message and hop.
        let cost = find("paced", LB_US);
        assert_eq!((cost.lengths.as_slice(), cost.link.id.as_str()), (&[1, 2][..], "steelyard-tcp"));
        assert!((cost.per_hop.median / 11.9 - 1.0).abs() < 0.03 && cost.from_none.is_none(), "{:?}", cost.per_hop);
        assert!(find("paced", P50).from_none.is_some() && find("saturate", CORES_PER_GBPS).per_hop.low > 0.0);
        // A single length is not a chain.
        assert!(slopes.iter().all(|slope| slope.link.contender == "steelyard-tcp"));
        assert_eq!(table(figures).unwrap().rows.len(), slopes.len());
        assert!(table(Figures::new(&sample::run(Kind::L4Matrix))).is_none());
    }

    #[test]
    fn a_slope_that_is_not_sure_is_not_claimed() {
        let said = |rounds: u32, flat: bool| {
            let mut run = sample::raw(Kind::TcpDownstream);
            run.cells.retain(|cell| cell.round < rounds && cell.case == "saturate");
            if flat {
                // The longer chain is the shorter one under another name.
                let twin: Vec<_> = run.cells.iter().filter(|cell| cell.instance == "steelyard-tcp").cloned().collect();
                for cell in run.cells.iter_mut().filter(|cell| cell.instance == "steelyard-tcp*2") {
                    cell.measurement = twin[cell.round as usize].measurement.clone();
                }
            }
            crate::report::analyse(&mut run);
            conclusions(Figures::new(&run)).first().unwrap().text.clone()
        };
        assert!(said(10, false).contains("one more hop of Steelyard tcp adds"), "{}", said(10, false));
        assert!(said(3, false).contains("in too few rounds to be sure"), "{}", said(3, false));
        assert!(said(10, true).contains("was not shown to add"), "{}", said(10, true));
    }
}
