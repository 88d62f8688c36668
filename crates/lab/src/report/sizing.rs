//! The line for operators: the cores and the memory for a number of requests per second.

use crate::record::{Case, Instance, Layer, LoadKind, Mode, Rate};

use super::figures::{Figures, LB_US, P99, mib};
use super::number;
use super::table::Table;
use super::tables::{case_title, middle, or_dash, title};

/// The rate to size a balancer for.
const SIZE_FOR_PER_S: f64 = 10_000.0;
/// The CPU utilisation at that rate: above it, queues grow faster than the load.
const UTILISATION: f64 = 0.7;

/// One row for each balancer that was measured under requests, including those in the kernel. None if the scenario has no such case.
pub(crate) fn table(figures: Figures<'_>) -> Option<Table> {
    let case = best_case(figures)?;
    let head = ["balancer", "CPU µs/request", "cores", "MiB", "1 core : MiB", "p99 held"];
    let mut table = Table::new(
        format!(
            "For {} requests a second on {} connections, CPUs {} full (from: {})",
            number::plain(SIZE_FOR_PER_S),
            case.load.connections,
            number::per_cent(UTILISATION),
            case_title(case)
        ),
        head,
    );
    for instance in figures.instances(&case.name) {
        if let Some(need) = need(figures, case, instance) {
            table.row([
                title(figures, instance),
                number::of_rounds(need.us, need.rounds, number::plain),
                need.cores(),
                need.mib.map_or("in the kernel".to_owned(), |_| need.mib()),
                or_dash(need.mib, |mib| format!("1 : {}", number::of_rounds(mib / need.cores, need.rounds, whole))),
                or_dash(need.p99_us, |p99| number::of_rounds(p99, need.rounds, number::micros)),
            ]);
        }
    }
    table.note("The published report recommends 1 core : 300 MiB. Cores = rate × CPU per request / 0.7, memory = what was held at that many connections.");
    table.note(match case.load.mode {
        Mode::Closed => "p99 is that of a closed loop at full load: an upper bound of what a balancer sized like this would show, and no promise.",
        Mode::Open { .. } | Mode::Search { .. } => "p99 is that of the case, at the load of the case; a balancer with cores to spare does no worse.",
    });
    (!table.rows.is_empty()).then_some(table)
}

/// The sizing in a few sentences, for the first box of the page: the balancer of requests that needs least, and the next; then the ones
/// that need least among those that balance connections, and among those in the kernel, which balance packets.
pub(crate) fn sentence(figures: Figures<'_>) -> Option<String> {
    let case = best_case(figures)?;
    let needs = figures
        .instances(&case.name)
        .into_iter()
        .filter_map(|instance| Some((instance, need(figures, case, instance)?)));
    let mut needs: Vec<_> = needs.collect();
    needs.sort_by(|left, right| left.1.cores.total_cmp(&right.1.cores));
    let least_of = |layer: Layer, what: &str| {
        let is_one = |(instance, _): &&(&Instance, Need)| crate::judge::layer_of(figures.run, &instance.id) == layer;
        let (instance, need) = needs.iter().find(is_one)?;
        Some(format!(" {what}, {} needs least: {} cores.", title(figures, instance), need.cores()))
    };
    let others =
        [least_of(Layer::Tcp, "Of those that balance connections"), least_of(Layer::Kernel, "Of those in the kernel")];
    let of_requests =
        |instance: &Instance| matches!(crate::judge::layer_of(figures.run, &instance.id), Layer::Http | Layer::H2);
    // The published advice is about balancers of requests. Those of connections only matter if there are no others.
    let has_requests = needs.iter().any(|(instance, _)| of_requests(instance));
    needs.retain(|(instance, need)| if has_requests { of_requests(instance) } else { need.mib.is_some() });
    let (of_what, others) = match has_requests {
        true => ("of requests ", others.into_iter().flatten().collect::<String>()),
        false => ("", String::new()),
    };
    let (instance, need) = needs.first()?;
    let mib = need.mib?;
    let held = match (need.p99_us, &case.load.mode) {
        (Some(p99), Mode::Open { .. } | Mode::Search { .. }) => {
            format!(" at p99 ≤ {}", number::of_rounds(p99, need.rounds, number::micros))
        }
        // At full load this is not a latency that a balancer with room to spare can be judged by.
        _ => String::new(),
    };
    let next = needs.get(1).map_or(String::new(), |(instance, need)| {
        format!("; the next is {} with {} cores and {} MiB", title(figures, instance), need.cores(), need.mib())
    });
    Some(format!(
        "For {} requests a second{held} on {} connections, the balancer {of_what}that needs least is {} with {} cores and {} MiB{next}. That is 1 core : {} MiB; published: 1 core : 300 MiB.{others}",
        number::plain(SIZE_FOR_PER_S),
        case.load.connections,
        title(figures, instance),
        need.cores(),
        need.mib(),
        number::of_rounds(mib / need.cores, need.rounds, whole)
    ))
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

struct Need {
    us: f64,
    cores: f64,
    /// `None` if it has no process, and its memory is the kernel's.
    mib: Option<f64>,
    p99_us: Option<f64>,
    /// The number of rounds behind these medians.
    rounds: usize,
}

impl Need {
    fn cores(&self) -> String {
        number::of_rounds(self.cores, self.rounds, |cores| format!("{cores:.2}"))
    }

    fn mib(&self) -> String {
        or_dash(self.mib, |mib| number::of_rounds(mib, self.rounds, whole))
    }
}

fn need(figures: Figures<'_>, case: &Case, instance: &Instance) -> Option<Need> {
    let layer = crate::judge::layer_of(figures.run, &instance.id);
    let least = figures.instances(&case.name).into_iter().map(|instance| instance.workers).min();
    // More workers disturb each other: the fewest show the cost of a balancer.
    let is_least = Some(instance.workers) == least;
    if !matches!(layer, Layer::Kernel | Layer::Tcp | Layer::Http | Layer::H2) || instance.hops != 1 || !is_least {
        return None;
    }
    let cost = figures.estimate(&case.name, &instance.id, LB_US)?;
    let (us, rounds) = (cost.median, cost.rounds);
    let memory = match layer {
        Layer::Kernel => None,
        _ => Some(
            middle(figures, &case.name, &instance.id, |m| Some(mib(m.memory.balancer_bytes())))
                .filter(|mib| *mib > 0.0)?,
        ),
    };
    let cores = SIZE_FOR_PER_S * us / 1e6 / UTILISATION;
    let p99_us = figures.estimate(&case.name, &instance.id, P99).map(|p99| p99.median);
    (cores > 0.0).then_some(Need { us, cores, mib: memory, p99_us, rounds })
}

/// A case with requests, below capacity if there is one: the heaviest of those, otherwise the closed loop with the most connections.
fn best_case(figures: Figures<'_>) -> Option<&Case> {
    let requests = |case: &&Case| {
        matches!(
            case.load.kind,
            LoadKind::Http
                | LoadKind::Https
                | LoadKind::HttpsClose
                | LoadKind::HttpsResume
                | LoadKind::Http10
                | LoadKind::H2c
                | LoadKind::H2cHttp
                | LoadKind::Grpc
                | LoadKind::HttpClose
        )
    };
    let weight = |case: &Case| match &case.load.mode {
        Mode::Open { rate: Rate::OfSlowest { share, .. }, .. } => (2, *share),
        Mode::Open { rate: Rate::Fixed(rate), .. } => (1, *rate),
        Mode::Search { .. } => (0, f64::from(case.load.connections)),
        Mode::Closed => (0, f64::from(case.load.connections)),
    };
    let cases = figures.run.scenario.cases.iter().filter(requests);
    cases.max_by(|left, right| weight(left).partial_cmp(&weight(right)).unwrap_or(std::cmp::Ordering::Equal))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Table as Kind;
    use crate::report::sample;

    #[test]
    fn what_is_needed_follows_from_what_was_measured() {
        let run = sample::run(Kind::L4l7Ab);
        let figures = Figures::new(&run);
        let case = best_case(figures).unwrap();
        assert_eq!(case.name, "steady-80", "below capacity, and there the heaviest");
        let need = need(figures, case, run.instance("nginx-http").unwrap()).unwrap();
        // 10,000/s of 15.2 µs are 0.152 CPUs, and 0.217 if those are to be 70 % busy; it held 18 MiB.
        assert!((need.cores - 0.217).abs() < 0.003, "{}", need.cores);
        assert_eq!(need.mib, Some(18.0));
        let sentence = sentence(figures).unwrap();
        for part in [
            "at p99 ≤ ",
            "the balancer of requests that needs least is Steelyard http with ",
            "the next is nginx http, tuned with 0.22 cores",
            "published: 1 core : 300 MiB",
        ] {
            assert!(sentence.contains(part), "{sentence}");
        }
        // Balancers without a process are also named, and have no memory of their own.
        let vip = super::need(figures, case, run.instance("steelyard-vip").unwrap()).unwrap();
        assert!(vip.mib.is_none() && vip.cores < need.cores, "{}", vip.cores);
        for part in [
            "Of those that balance connections, Steelyard tcp needs least: 0.1",
            "Of those in the kernel, Steelyard vip needs least: 0.0",
        ] {
            assert!(sentence.contains(part), "{part}: {sentence}");
        }
        let rows = table(figures).unwrap().rows;
        assert!(rows.iter().any(|row| row.iter().any(|cell| cell.contains("in the kernel"))), "{rows:?}");
    }

    #[test]
    fn nothing_to_size() {
        let run = sample::run(Kind::TcpDownstream);
        assert!(table(Figures::new(&run)).is_none() && sentence(Figures::new(&run)).is_none());
    }

    #[test]
    fn a_closed_loop_promises_no_latency() {
        let run = sample::run(Kind::CpuScaling);
        let sentence = sentence(Figures::new(&run)).unwrap();
        assert!(!sentence.contains("p99"), "{sentence}");
    }
}
