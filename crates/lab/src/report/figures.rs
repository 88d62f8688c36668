//! The figures of a report, and where their rounds come from.
//!
//! It has the list of metrics ([`METRICS`]), and the rounds of one metric of one cell ([`Figures`]). Rounds whose cell was judged invalid
//! are left out everywhere; the appendix names them. A cell that the host disturbed has no figure of its own, but takes part in ratios of rates
//! and of CPU, which are taken between cells of one block, corrected by the reference loop around each.

use super::Language;
use crate::judge::is_box_apart;
use crate::record::{Cell, Cpu, Instance, Layer, LoadKind, Measurement, Run, Turn, Verdict};
use crate::stats::{Estimate, Loops, corrected_cpu, corrected_rate, estimate, is_steady, noise_floor, ratio_of_pairs};

/// One figure of a cell.
pub(crate) struct Metric {
    /// The name in [`Statistic::metric`](crate::record::Statistic::metric). It never changes, since files contain it.
    pub name: &'static str,
    /// The title in a table's head.
    pub title: &'static str,
    of: fn(&Round<'_>) -> Option<f64>,
}

/// One sound round of a cell.
struct Round<'a> {
    m: &'a Measurement,
    layer: Layer,
    kind: LoadKind,
}

pub(crate) const RPS: &str = "ok_per_s";
pub(crate) const LB_US: &str = "lb_us_per_op";
pub(crate) const ORIGIN_US: &str = "origin_us_per_op";
pub(crate) const BUSY_US: &str = "busy_us_per_op";
pub(crate) const P50: &str = "p50_us";
pub(crate) const P99: &str = "p99_us";
pub(crate) const PROBE_P50: &str = "probe_p50_us";
pub(crate) const PROBE_P99: &str = "probe_p99_us";
pub(crate) const GBPS: &str = "gbps";
pub(crate) const LB_CORES_PER_GBPS: &str = "lb_cores_per_gbps";
pub(crate) const CORES_PER_GBPS: &str = "cores_per_gbps";
pub(crate) const LB_MIB: &str = "balancer_mib";

/// Every metric that has a statistic.
pub(crate) const METRICS: &[Metric] = &[
    Metric { name: RPS, title: "operations/s", of: |r| r.counts_ops().then_some(r.m.ok_per_s) },
    Metric { name: LB_US, title: "LB CPU µs/op", of: |r| r.per_op(lb_seconds(r.m, r.layer)?) },
    Metric { name: "client_us_per_op", title: "client CPU µs/op", of: |r| r.per_op(r.m.cpu.client_s) },
    Metric { name: ORIGIN_US, title: "backend CPU µs/op", of: |r| r.per_op(r.m.cpu.origin_s) },
    Metric { name: BUSY_US, title: "all CPU µs/op", of: |r| r.per_op(r.m.cpu.caused_s(r.m.window_s)) },
    Metric { name: "mean_us", title: "mean", of: |r| r.of_latency(|latency| latency.mean_us) },
    Metric { name: "min_us", title: "min", of: |r| r.of_latency(|latency| latency.min_us) },
    Metric { name: P50, title: "p50", of: |r| r.percentile(50.0) },
    Metric { name: "p66_us", title: "p66", of: |r| r.percentile(66.0) },
    Metric { name: "p75_us", title: "p75", of: |r| r.percentile(75.0) },
    Metric { name: "p80_us", title: "p80", of: |r| r.percentile(80.0) },
    Metric { name: "p90_us", title: "p90", of: |r| r.percentile(90.0) },
    Metric { name: "p95_us", title: "p95", of: |r| r.percentile(95.0) },
    Metric { name: "p98_us", title: "p98", of: |r| r.percentile(98.0) },
    Metric { name: P99, title: "p99", of: |r| r.percentile(99.0) },
    Metric { name: "p999_us", title: "p99.9", of: |r| r.percentile(99.9) },
    Metric { name: "max_us", title: "max", of: |r| r.of_latency(|latency| latency.max_us) },
    Metric { name: PROBE_P50, title: "probe p50", of: |r| r.probe(50.0) },
    Metric { name: PROBE_P99, title: "probe p99", of: |r| r.probe(99.0) },
    Metric { name: GBPS, title: "client-in Gbps", of: |r| r.gigabits(Some(r.m.received_bytes)) },
    Metric { name: "origin_gbps", title: "server-out Gbps", of: |r| r.gigabits(r.m.origin_sent_bytes) },
    Metric { name: LB_CORES_PER_GBPS, title: "LB cores/Gbps", of: |r| r.per_gigabit(lb_seconds(r.m, r.layer)?) },
    Metric { name: "client_cores_per_gbps", title: "client cores/Gbps", of: |r| r.per_gigabit(r.m.cpu.client_s) },
    Metric { name: "origin_cores_per_gbps", title: "server cores/Gbps", of: |r| r.per_gigabit(r.m.cpu.origin_s) },
    Metric { name: CORES_PER_GBPS, title: "all cores/Gbps", of: |r| r.per_gigabit(r.m.cpu.caused_s(r.m.window_s)) },
    Metric { name: LB_MIB, title: "LB RSS MiB", of: |r| r.rss_mib() },
];

impl Round<'_> {
    /// A saturating stream has no operations, only bytes.
    fn counts_ops(&self) -> bool {
        self.kind != LoadKind::Stream
    }

    fn counts_bytes(&self) -> bool {
        matches!(self.kind, LoadKind::Stream | LoadKind::StreamPaced)
    }

    /// The probe's operations also used CPU time.
    fn per_op(&self, seconds: f64) -> Option<f64> {
        let operations = self.m.ok + self.m.probe.as_ref().map_or(0, |probe| probe.ok);
        (self.m.ok > 0 && self.counts_ops()).then(|| seconds * 1e6 / operations as f64)
    }

    /// A percentile of the probe, if it has so many values that one in a hundred of them is one.
    fn probe(&self, percent: f64) -> Option<f64> {
        let response = &self.m.probe.as_ref()?.response;
        let above = response.count as f64 * (1.0 - percent / 100.0);
        response.percentile_us(percent).filter(|_| above >= 1.0 - 1e-9)
    }

    fn gigabits(&self, bytes: Option<u64>) -> Option<f64> {
        let bits = bytes? as f64 * 8.0;
        (self.counts_bytes() && self.m.window_s > 0.0).then(|| bits / 1e9 / self.m.window_s)
    }

    /// Seconds of CPU per second, over gigabits per second: the window cancels.
    fn per_gigabit(&self, seconds: f64) -> Option<f64> {
        let gigabits = self.m.received_bytes as f64 * 8.0 / 1e9;
        (self.counts_bytes() && gigabits > 0.0).then(|| seconds / gigabits)
    }

    fn of_latency(&self, figure: fn(&crate::record::Distribution) -> f64) -> Option<f64> {
        self.m.latency().filter(|latency| latency.count > 0).map(figure)
    }

    fn percentile(&self, percent: f64) -> Option<f64> {
        self.m.latency().filter(|latency| latency.count > 0)?.percentile_us(percent)
    }

    fn rss_mib(&self) -> Option<f64> {
        let bytes = self.m.memory.balancer_bytes();
        (bytes > 0).then(|| mib(bytes))
    }
}

/// CPU time of the balancer within the window, in seconds.
///
/// If it has its own CPUs, this is their whole busy time, without unrelated tasks and what the idle host does. That includes the soft
/// interrupts of its packets, whatever the kernel charges them to. Otherwise it is what the kernel charged to its processes. None without a
/// process: the cost of a balancer in the kernel is in no single cell.
pub(crate) fn lb_seconds(measurement: &Measurement, layer: Layer) -> Option<f64> {
    let cpu = &measurement.cpu;
    match layer {
        Layer::Direct | Layer::Routed | Layer::Kernel => None,
        _ if is_box_apart(measurement) => Some(cpu.caused_on_s(&cpu.balancer_cpus, measurement.window_s)),
        Layer::Tcp | Layer::Http | Layer::H2 => Some(cpu.balancer_s),
    }
}

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

pub(crate) fn metric(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// The rounds of a run, by metric.
#[derive(Clone, Copy)]
pub(crate) struct Figures<'a> {
    pub run: &'a Run,
    /// The language of titles that published reports have in Chinese.
    pub language: Language,
}

impl<'a> Figures<'a> {
    pub(crate) fn new(run: &'a Run) -> Self {
        Self { run, language: Language::En }
    }

    pub(crate) fn in_language(self, language: Language) -> Self {
        Self { language, ..self }
    }

    /// A title as the published report has it in Chinese, with its translation; or the translation alone.
    pub(crate) fn title_of<'t>(self, published: &'t str, translation: &'t str) -> &'t str {
        match self.language {
            Language::En => translation,
            Language::Zh => published,
        }
    }

    /// The cell's measurement in each round; None if there is none, or if it was judged invalid or disturbed.
    pub(crate) fn measurements(self, case: &str, instance: &str, twin: u8) -> Vec<Option<&'a Measurement>> {
        let mut rounds = vec![None; self.run.rounds as usize];
        let of_cell = |cell: &&Cell| cell.case == case && cell.instance == instance && cell.twin == twin;
        for cell in self.run.cells.iter().filter(of_cell).filter(|cell| is_sound(cell)) {
            if let Some(round) = rounds.get_mut(cell.round as usize) {
                *round = cell.measurement.as_ref();
            }
        }
        rounds
    }

    /// One value per round.
    pub(crate) fn rounds(self, case: &str, instance: &str, twin: u8, metric: &Metric) -> Vec<Option<f64>> {
        if let Some((all, direct)) = self.added_by_kernel(case, instance, metric) {
            let both = [(instance, twin), (direct, 0)].map(|(id, twin)| self.rounds(case, id, twin, all));
            return both[0].iter().zip(&both[1]).map(|(with, without)| above((*with)?, (*without)?)).collect();
        }
        let of = |m: &Measurement| self.value(case, instance, m, metric);
        self.measurements(case, instance, twin).into_iter().map(|round| round.and_then(of)).collect()
    }

    /// The values of a metric that ratios are taken of, by round and block: corrected by the reference loop if the metric is one that a
    /// neighbour changes, and those of sound cells only if it cannot be corrected.
    fn comparable(self, case: &str, instance: &str, twin: u8, metric: &Metric) -> Vec<(u32, u32, f64)> {
        if let Some((all, direct)) = self.added_by_kernel(case, instance, metric) {
            let without = self.comparable(case, direct, 0, all);
            let added = |(round, block, with): (u32, u32, f64)| {
                let of_round = without.iter().find(|value| value.0 == round);
                Some((round, block, above(with, of_round?.2)?))
            };
            return self.comparable(case, instance, twin, all).into_iter().filter_map(added).collect();
        }
        let of_cell = |cell: &&Cell| cell.case == case && cell.instance == instance && cell.twin == twin;
        let mut values: Vec<(u32, u32, f64)> = Vec::new();
        for cell in self.run.cells.iter().filter(of_cell) {
            let Some(m) = cell.measurement.as_ref() else { continue };
            let Some(value) = self.value(case, instance, m, metric) else { continue };
            let Some(value) = corrected(value, cell, m, metric.name) else { continue };
            // Of a cell that was measured several times, the last one counts.
            values.retain(|(round, block, _)| (*round, *block) != (cell.round, cell.block));
            values.push((cell.round, cell.block, value));
        }
        values
    }

    /// `left / right` for each pair within a block; if the two have no block in common, each over the reference of its own block.
    fn pairs(
        self,
        case: &str,
        (left, right): (&str, &str),
        (of_left, of_right): (u8, u8),
        metric: &Metric,
    ) -> Vec<f64> {
        let rights = self.comparable(case, right, of_right, metric);
        let references = self.comparable(case, &self.run.scenario.reference, 0, metric);
        let within = |values: &[(u32, u32, f64)], round: u32, block: u32| {
            values.iter().find(|value| (value.0, value.1) == (round, block)).map(|value| value.2)
        };
        let ratio = |(round, block, value): (u32, u32, f64)| {
            if let Some(right) = within(&rights, round, block) {
                return Some(value / right);
            }
            let (_, other_block, other) = rights.iter().find(|right| right.0 == round)?;
            let over = |block| within(&references, round, block);
            Some((value / over(block)?) / (other / over(*other_block)?))
        };
        self.comparable(case, left, of_left, metric).into_iter().filter_map(ratio).collect()
    }

    /// The cost of a balancer in the kernel, or of any balancer if packets are not steered, is what the whole host pays more than without a
    /// balancer, in the same round: its work is done on whichever CPU a packet is on, and with it moves work of clients and origins. Gives the metric of the whole host, and the instance
    /// without a balancer; none if the case has no such instance.
    fn added_by_kernel(self, case: &str, instance: &str, metric: &Metric) -> Option<(&'static Metric, &'a str)> {
        let all = match metric.name {
            LB_US => BUSY_US,
            LB_CORES_PER_GBPS => CORES_PER_GBPS,
            _ => return None,
        };
        let layer = |id: &str| crate::judge::layer_of(self.run, id);
        // Without steering, the packets of any balancer are received on the CPU of whoever sent them.
        let is_anywhere = !self.run.scenario.steering && !self.run.scenario.loopback;
        if layer(instance) == Layer::Direct
            || !(is_anywhere || matches!(layer(instance), Layer::Routed | Layer::Kernel))
        {
            return None;
        }
        let direct = self.run.case(case)?.instances.iter().find(|id| layer(id) == Layer::Direct)?;
        Some((self::metric(all)?, direct))
    }

    fn value(self, case: &str, instance: &str, m: &Measurement, metric: &Metric) -> Option<f64> {
        let layer = crate::judge::layer_of(self.run, instance);
        let kind = self.run.case(case).map_or(LoadKind::Http, |case| case.load.kind);
        (metric.of)(&Round { m, layer, kind }).filter(|value| value.is_finite())
    }

    /// A metric of one cell alone, sound or not.
    pub(crate) fn of_cell(self, cell: &Cell, name: &str) -> Option<f64> {
        self.value(&cell.case, &cell.instance, cell.measurement.as_ref()?, metric(name)?)
    }

    /// Median and interval of a metric by name.
    pub(crate) fn estimate(self, case: &str, instance: &str, name: &str) -> Option<Estimate> {
        estimate(&self.values(case, instance, name))
    }

    /// The values of the sound rounds.
    pub(crate) fn values(self, case: &str, instance: &str, name: &str) -> Vec<f64> {
        metric(name).map_or(Vec::new(), |metric| self.rounds(case, instance, 0, metric).into_iter().flatten().collect())
    }

    /// `left` over `right`, block by block.
    pub(crate) fn ratio(self, case: &str, left: &str, right: &str, name: &str) -> Option<Estimate> {
        ratio_of_pairs(&self.pairs(case, (left, right), (0, 0), metric(name)?))
    }

    /// `left - right`, round by round, with the median and the interval of the differences.
    pub(crate) fn shift(self, case: &str, left: &str, right: &str, name: &str) -> Option<Estimate> {
        let metric = metric(name)?;
        let (left, right) = (self.rounds(case, left, 0, metric), self.rounds(case, right, 0, metric));
        let both = left.into_iter().zip(right).filter_map(|(left, right)| Some(left? - right?));
        estimate(&both.collect::<Vec<_>>())
    }

    /// The smallest difference of this metric that counts in this case, as a share. It comes from the twins of the case, or from those of
    /// all cases if the case has none, or is [`NOISE_MIN`](crate::stats::NOISE_MIN) if there are no twins at all.
    pub(crate) fn noise(self, case: &str, name: &str) -> f64 {
        let own = self.same_over_same(case, name);
        if !own.is_empty() {
            return noise_floor(&own);
        }
        let cases = self.run.scenario.cases.iter();
        noise_floor(&cases.flat_map(|case| self.same_over_same(&case.name, name)).collect::<Vec<_>>())
    }

    /// Second measurement over first, for each twin of the case.
    pub(crate) fn same_over_same(self, case: &str, name: &str) -> Vec<Estimate> {
        let Some(metric) = metric(name) else { return Vec::new() };
        let of_twin = |id: &String| ratio_of_pairs(&self.pairs(case, (id, id), (1, 0), metric));
        self.run.scenario.twins.iter().filter_map(of_twin).collect()
    }

    /// Instances of the case, in the scenario's order.
    pub(crate) fn instances(self, case: &str) -> Vec<&'a Instance> {
        let listed =
            |instance: &&Instance| self.run.case(case).is_some_and(|case| case.instances.contains(&instance.id));
        self.run.scenario.instances.iter().filter(listed).collect()
    }

    /// All cells of one instance under one case, without twins, in the order of their rounds.
    pub(crate) fn cells(self, case: &str, instance: &str) -> Vec<&'a Cell> {
        let of_cell = |cell: &&Cell| cell.case == case && cell.instance == instance && cell.twin == 0;
        self.run.cells.iter().filter(of_cell).collect()
    }

    /// The most frequent verdict of the sound rounds, with the reasons of the first of these; of two equally frequent verdicts, the more
    /// serious. It is Invalid or Disturbed only if no round is sound, because the figures beside it are those of the sound ones.
    pub(crate) fn verdict(self, case: &str, instance: &str) -> Option<(Verdict, &'a [String])> {
        let cells = self.cells(case, instance);
        let mut judged: Vec<_> = cells.into_iter().filter_map(|cell| cell.judgement.as_ref()).collect();
        if judged.iter().any(|judgement| has_own_figure(judgement.verdict)) {
            judged.retain(|judgement| has_own_figure(judgement.verdict));
        }
        let count = |verdict: Verdict| judged.iter().filter(|judgement| judgement.verdict == verdict).count();
        let most = judged.iter().map(|judgement| judgement.verdict).max_by_key(|&verdict| (count(verdict), verdict))?;
        let first = judged.into_iter().find(|judgement| judgement.verdict == most)?;
        Some((most, &first.reasons))
    }
}

/// A difference that noise has made negative, or zero, is no cost.
fn above(with: f64, without: f64) -> Option<f64> {
    Some(with - without).filter(|added| *added > 0.0)
}

fn is_sound(cell: &Cell) -> bool {
    cell.judgement.as_ref().is_none_or(|judgement| has_own_figure(judgement.verdict))
}

fn has_own_figure(verdict: Verdict) -> bool {
    !matches!(verdict, Verdict::Invalid | Verdict::Disturbed)
}

/// A value of a cell for a ratio. None if the cell must not take part.
fn corrected(value: f64, cell: &Cell, m: &Measurement, metric: &str) -> Option<f64> {
    let verdict = cell.judgement.as_ref().map(|judgement| judgement.verdict);
    if verdict == Some(Verdict::Invalid) {
        return None;
    }
    let undisturbed = Some(value).filter(|_| verdict != Some(Verdict::Disturbed));
    // A run of before there was a loop, or a figure that no loop corrects: latency, memory.
    let Some((correct, loops)) = correction(m, metric) else { return undisturbed };
    is_steady(loops).then(|| correct(value, loops))
}

type Correct = fn(f64, Loops) -> f64;

/// How a metric is corrected, and the reference loop on the CPUs that it is about.
fn correction(m: &Measurement, metric: &str) -> Option<(Correct, Loops)> {
    let reference = m.reference.as_ref()?;
    let cpu = &m.cpu;
    let all = [cpu.balancer_cpus.as_slice(), &cpu.client_cpus, &cpu.origin_cpus].concat();
    let (correct, cpus): (Correct, &[u32]) = match metric {
        LB_US | LB_CORES_PER_GBPS => (corrected_cpu, &cpu.balancer_cpus),
        "client_us_per_op" | "client_cores_per_gbps" => (corrected_cpu, &cpu.client_cpus),
        ORIGIN_US | "origin_cores_per_gbps" => (corrected_cpu, &cpu.origin_cpus),
        BUSY_US | CORES_PER_GBPS => (corrected_cpu, &all),
        // What is offered is the same on any host.
        RPS | GBPS | "origin_gbps" if m.rate.is_none() => (corrected_rate, limiting(cpu)),
        _ => return None,
    };
    let mean = |turns: &[Turn], of: fn(&Turn) -> f64| {
        let values: Vec<f64> = turns.iter().filter(|turn| cpus.contains(&turn.cpu)).map(of).collect();
        values.iter().sum::<f64>() / values.len() as f64
    };
    let is_rate = matches!(metric, RPS | GBPS | "origin_gbps");
    let of: fn(&Turn) -> f64 = if is_rate { |turn| turn.wall_us } else { |turn| turn.cpu_us };
    Some((correct, Loops { before: mean(&reference.before, of), after: mean(&reference.after, of) }))
}

/// The CPUs that limited a closed loop: the busier ones, of the balancer or of the others.
fn limiting(cpu: &Cpu) -> &[u32] {
    let of_others = cpu.mean_busy(&cpu.client_cpus).max(cpu.mean_busy(&cpu.origin_cpus));
    if cpu.mean_busy(&cpu.balancer_cpus) >= of_others {
        &cpu.balancer_cpus
    } else if cpu.mean_busy(&cpu.client_cpus) >= cpu.mean_busy(&cpu.origin_cpus) {
        &cpu.client_cpus
    } else {
        &cpu.origin_cpus
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Distribution, Judgement, Memory, Probe, ReferenceLoop, Table};
    use crate::report::sample;

    /// 1,000 operations and 1 GB in 2 s. CPU 1 is the balancer's, and half busy.
    fn measurement() -> Measurement {
        Measurement {
            window_s: 2.0,
            ok: 1000,
            ok_per_s: 500.0,
            received_bytes: 1_000_000_000,
            response: Some(Distribution { count: 1, percentiles: vec![(99.0, 70.0)], ..Distribution::default() }),
            cpu: Cpu {
                balancer_s: 0.25,
                client_s: 0.5,
                busy_s: 2.0,
                busy_by_cpu: vec![0.9, 0.5],
                balancer_cpus: vec![1],
                client_cpus: vec![0],
                origin_cpus: vec![0],
                ..Cpu::default()
            },
            memory: Memory { balancer_rss: 3 << 20, ..Memory::default() },
            ..Measurement::default()
        }
    }

    #[track_caller]
    fn check(name: &str, layer: Layer, kind: LoadKind, change: impl Fn(&mut Measurement), expect: Option<f64>) {
        let mut m = measurement();
        change(&mut m);
        assert_eq!((metric(name).unwrap().of)(&Round { m: &m, layer, kind }), expect, "{name}");
    }

    #[test]
    fn each_figure_from_its_round() {
        let same = |_: &mut Measurement| {};
        let shared = |m: &mut Measurement| m.cpu.client_cpus = vec![0, 1];
        check(RPS, Layer::Http, LoadKind::Http, same, Some(500.0));
        check(RPS, Layer::Tcp, LoadKind::Stream, same, None);
        // The busy time of its own CPU, 1 s; on shared CPUs its processes' time, 0.25 s.
        check(LB_US, Layer::Http, LoadKind::Http, same, Some(1000.0));
        check(LB_US, Layer::Kernel, LoadKind::Http, same, None);
        check(LB_US, Layer::Http, LoadKind::Http, shared, Some(250.0));
        check(LB_US, Layer::Kernel, LoadKind::Http, shared, None);
        check(LB_US, Layer::Direct, LoadKind::Http, same, None);
        // A neighbour took a tenth of the CPU, and the idle host 2 %.
        let with_others = |m: &mut Measurement| {
            (m.cpu.strangers_s, m.cpu.strangers_by_cpu) = (Some(0.2), vec![0.0, 0.1]);
            m.cpu.idle_busy_by_cpu = vec![0.02, 0.025];
        };
        check(LB_US, Layer::Http, LoadKind::Http, with_others, Some(750.0));
        check(BUSY_US, Layer::Http, LoadKind::Http, with_others, Some(1710.0));
        check("client_us_per_op", Layer::Direct, LoadKind::Http, same, Some(500.0));
        check(BUSY_US, Layer::Http, LoadKind::Http, |m| m.ok = 0, None);
        check(P99, Layer::Http, LoadKind::Http, same, Some(70.0));
        check(P50, Layer::Http, LoadKind::Http, same, None);
        check("max_us", Layer::Http, LoadKind::Http, |m| m.response = Some(Distribution::default()), None);
        check(GBPS, Layer::Tcp, LoadKind::Stream, same, Some(4.0));
        check(GBPS, Layer::Http, LoadKind::Http, same, None);
        // 1 s of CPU for 8 gigabits.
        check(LB_CORES_PER_GBPS, Layer::Tcp, LoadKind::StreamPaced, same, Some(0.125));
        let probed = |count: u64| {
            move |m: &mut Measurement| {
                let response =
                    Distribution { count, percentiles: vec![(50.0, 80.0), (99.0, 90.0)], ..Distribution::default() };
                m.probe = Some(Probe { rate: 5.0, ok: 250, response });
            }
        };
        // 1,250 operations in all.
        check(LB_US, Layer::Http, LoadKind::Http, probed(250), Some(800.0));
        check(PROBE_P99, Layer::Http, LoadKind::Http, probed(100), Some(90.0));
        check(PROBE_P99, Layer::Http, LoadKind::Http, probed(99), None);
        check(PROBE_P50, Layer::Http, LoadKind::Http, probed(99), Some(80.0));
        check(LB_MIB, Layer::Tcp, LoadKind::Stream, same, Some(3.0));
        check(LB_MIB, Layer::Kernel, LoadKind::Http, |m| m.memory.balancer_maps = 5 << 20, Some(8.0));
        check(LB_MIB, Layer::Kernel, LoadKind::Stream, |m| m.memory = Memory::default(), None);
    }

    /// A run of which the host disturbed every cell of one contender and its neighbours in the block, by a factor that differs from cell to
    /// cell and that the reference loop saw.
    fn disturbed() -> Run {
        let mut run = sample::raw(Table::L4l7Ab);
        run.cells.retain(|cell| cell.case == "capacity");
        for (place, cell) in run.cells.iter_mut().enumerate() {
            let slow = [1.0, 1.3, 1.7, 2.0][place % 4];
            let m = cell.measurement.as_mut().unwrap();
            let turns = |cpus: u32| -> Vec<Turn> {
                (0..cpus).map(|cpu| Turn { cpu, wall_us: 10.0 * slow, cpu_us: 8.0 * slow }).collect()
            };
            m.reference = Some(ReferenceLoop { before: turns(12), after: turns(12) });
            m.ok_per_s /= slow;
            m.ok = (m.ok as f64 / slow) as u64;
            let strangers_s = 10.0 * (slow - 0.99);
            m.cpu.strangers_s = Some(strangers_s);
            m.cpu.busy_s += strangers_s;
        }
        crate::report::analyse(&mut run);
        run
    }

    #[test]
    fn a_balancer_in_the_kernel_costs_what_the_host_pays_more() {
        let mut run = sample::raw(Table::L4l7Ab);
        for cell in run.cells.iter_mut() {
            let m = cell.measurement.as_mut().unwrap();
            let us = match cell.instance.as_str() {
                "direct" => 20.0,
                "steelyard-vip" => 23.0,
                "nodeport" => 25.0,
                _ => 40.0,
            };
            m.cpu.busy_s = us * m.ok as f64 / 1e6;
            m.probe = None;
        }
        let of = |run: &Run, id| Figures::new(run).values("capacity", id, LB_US);
        for (id, expect) in [("steelyard-vip", 3.0), ("nodeport", 5.0)] {
            let values = of(&run, id);
            assert!(values.len() == 10 && values.iter().all(|us| (us - expect).abs() < 1e-6), "{id}: {values:?}");
        }
        let ratio = Figures::new(&run).ratio("capacity", "steelyard-vip", "nodeport", LB_US).unwrap();
        assert!((ratio.median - 0.6).abs() < 1e-6, "{ratio:?}");
        // A balancer with a process has CPUs of its own to look at.
        assert!(of(&run, "nginx-http").iter().all(|us| (10.0..20.0).contains(us)));
        run.scenario.cases[0].instances.retain(|id| id != "direct");
        assert_eq!(of(&run, "nodeport"), [0.0; 0], "nothing to compare with");
    }

    #[test]
    fn a_disturbed_host_does_not_change_ratios() {
        let (quiet, noisy) = (sample::run(Table::L4l7Ab), disturbed());
        let of = |run| {
            let ratio = |metric| Figures::new(run).ratio("capacity", "nginx-http", "steelyard-http", metric).unwrap();
            [RPS, BUSY_US, LB_US].map(ratio)
        };
        for (quiet, noisy) in of(&quiet).into_iter().zip(of(&noisy)) {
            assert!((noisy.median / quiet.median - 1.0).abs() < 0.02 && noisy.rounds == 10, "{quiet:?} {noisy:?}");
        }
        // The figure alone is only that of the undisturbed rounds.
        let figures = Figures::new(&noisy);
        let rounds = figures.values("capacity", "nginx-http", RPS).len();
        assert!((1..10).contains(&rounds), "{rounds}");
        // No loop corrects a latency.
        assert!(
            figures.ratio("capacity", "nginx-http", "steelyard-http", P99).is_none_or(|ratio| ratio.rounds <= rounds)
        );
    }

    #[test]
    fn a_cell_between_two_states_of_the_host_is_in_no_ratio() {
        let mut run = disturbed();
        let of_nginx = |cell: &&mut Cell| cell.instance == "nginx-http";
        for cell in run.cells.iter_mut().filter(of_nginx).take(4) {
            cell.measurement.as_mut().unwrap().reference.as_mut().unwrap().after.iter_mut().for_each(|turn| {
                (turn.wall_us, turn.cpu_us) = (turn.wall_us * 1.5, turn.cpu_us * 1.5);
            });
        }
        let ratio = Figures::new(&run).ratio("capacity", "nginx-http", "nodeport", RPS).unwrap();
        assert_eq!(ratio.rounds, 6);
    }

    #[test]
    fn ratios_are_taken_within_a_block() {
        let mut run = sample::raw(Table::L4l7Ab);
        run.cells.retain(|cell| cell.case == "capacity" && cell.twin == 0 && cell.round < 6);
        // The host is twice as fast in the second block, in which the reference was measured again.
        let of = |run: &Run, id: &str| run.cells.iter().filter(|cell| cell.instance == id).cloned().collect::<Vec<_>>();
        let (reference, mut late) = (of(&run, "nodeport"), of(&run, "nginx-http"));
        let faster = |cell: &mut Cell| {
            cell.block = 1;
            cell.measurement.as_mut().unwrap().ok_per_s *= 2.0;
        };
        late.iter_mut().for_each(faster);
        let expect = Figures::new(&run).ratio("capacity", "nginx-http", "haproxy-http", RPS).unwrap();
        run.cells.retain(|cell| cell.instance != "nginx-http");
        run.cells.extend(late);
        run.cells.extend(reference.into_iter().map(|mut cell| {
            faster(&mut cell);
            cell
        }));
        let figures = Figures::new(&run);
        let got = figures.ratio("capacity", "nginx-http", "haproxy-http", RPS).unwrap();
        assert!((got.median / expect.median - 1.0).abs() < 1e-9, "{got:?}, not {expect:?}");
        let judgement = Judgement { verdict: Verdict::Invalid, reasons: Vec::new() };
        run.cells.iter_mut().for_each(|cell| cell.judgement = Some(judgement.clone()));
        assert_eq!(Figures::new(&run).ratio("capacity", "nginx-http", "haproxy-http", RPS), None);
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
    }
}
