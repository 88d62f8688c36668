//! The figures of a report, and where their rounds come from.
//!
//! It has the list of metrics ([`METRICS`]), and the rounds of one metric of one cell ([`Figures`]). Rounds whose cell was judged invalid
//! are left out everywhere; the appendix names them.

use crate::judge::is_box_apart;
use crate::record::{Cell, Instance, Layer, LoadKind, Measurement, Run, Verdict};
use crate::stats::{Estimate, estimate, noise_floor, paired_ratio};

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
    Metric { name: BUSY_US, title: "all CPU µs/op", of: |r| r.per_op(r.m.cpu.busy_s) },
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
    Metric { name: CORES_PER_GBPS, title: "all cores/Gbps", of: |r| r.per_gigabit(r.m.cpu.busy_s) },
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
        (self.m.memory.balancer_rss > 0).then(|| mib(self.m.memory.balancer_rss))
    }
}

/// CPU time of the balancer within the window, in seconds.
///
/// If it has its own CPUs, this is their whole busy time. That includes the soft interrupts of a proxy's packets, and everything of a
/// kernel balancer, whatever the kernel charges them to. Otherwise it is what the kernel charged to its processes, which says nothing for a
/// kernel balancer. None without a balancer.
pub(crate) fn lb_seconds(measurement: &Measurement, layer: Layer) -> Option<f64> {
    let cpu = &measurement.cpu;
    match layer {
        Layer::Direct => None,
        _ if is_box_apart(measurement) => {
            Some(cpu.mean_busy(&cpu.balancer_cpus) * cpu.balancer_cpus.len() as f64 * measurement.window_s)
        }
        Layer::Routed | Layer::Kernel => None,
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
}

impl<'a> Figures<'a> {
    pub(crate) fn new(run: &'a Run) -> Self {
        Self { run }
    }

    /// The cell's measurement in each round; None if there is none, or if it was judged invalid.
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
        let of = |m: &Measurement| self.value(case, instance, m, metric);
        self.measurements(case, instance, twin).into_iter().map(|round| round.and_then(of)).collect()
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

    /// `left` over `right`, round by round.
    pub(crate) fn ratio(self, case: &str, left: &str, right: &str, name: &str) -> Option<Estimate> {
        let metric = metric(name)?;
        paired_ratio(&self.rounds(case, left, 0, metric), &self.rounds(case, right, 0, metric))
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
        let of_twin = |instance: &String| {
            let both = [1, 0].map(|twin| self.rounds(case, instance, twin, metric));
            paired_ratio(&both[0], &both[1])
        };
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
    /// serious. It is Invalid only if no round is sound, because the figures beside it are those of the sound ones.
    pub(crate) fn verdict(self, case: &str, instance: &str) -> Option<(Verdict, &'a [String])> {
        let cells = self.cells(case, instance);
        let mut judged: Vec<_> = cells.into_iter().filter_map(|cell| cell.judgement.as_ref()).collect();
        if judged.iter().any(|judgement| judgement.verdict != Verdict::Invalid) {
            judged.retain(|judgement| judgement.verdict != Verdict::Invalid);
        }
        let count = |verdict: Verdict| judged.iter().filter(|judgement| judgement.verdict == verdict).count();
        let most = judged.iter().map(|judgement| judgement.verdict).max_by_key(|&verdict| (count(verdict), verdict))?;
        let first = judged.into_iter().find(|judgement| judgement.verdict == most)?;
        Some((most, &first.reasons))
    }
}

fn is_sound(cell: &Cell) -> bool {
    cell.judgement.as_ref().is_none_or(|judgement| judgement.verdict != Verdict::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Cpu, Distribution, Memory, Probe};

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
        check(LB_US, Layer::Kernel, LoadKind::Http, same, Some(1000.0));
        check(LB_US, Layer::Http, LoadKind::Http, shared, Some(250.0));
        check(LB_US, Layer::Kernel, LoadKind::Http, shared, None);
        check(LB_US, Layer::Direct, LoadKind::Http, same, None);
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
        check(LB_MIB, Layer::Kernel, LoadKind::Stream, |m| m.memory = Memory::default(), None);
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
    }
}
