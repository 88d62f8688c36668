//! Measures the limits of the instrument itself before the first round.
//!
//! These are what the host does while nothing runs; the load's ceiling against an origin that does nothing and has the balancer's CPUs; the latency of a single connection without
//! a balancer; and, at the end, what the origins served directly. `lab verify --calibrate` compares the load with other tools.

use std::collections::BTreeMap;
use std::time::Duration;

use super::origins::listening;
use super::progress::say;
use super::session::Session;
use crate::host_cpu::{Strangers, busy_share, idle, strangers};
use crate::judge;
use crate::process::{Process, Spec};
use crate::record::{Calibration, Case, Layer, LoadKind, LoadSpec, Mode, OriginKind, OriginSpec, Protocol, Run};
use crate::schedule::CALIBRATION;
use crate::stats::median;

use super::load::{Where, arguments, parse};

/// Looks at the idle host, and the length of each.
const BASELINE_LOOKS: u32 = 5;
const BASELINE_LOOK: Duration = Duration::from_millis(200);

impl Session<'_> {
    /// Calibrates the instrument for each case. A calibration that fails is left out.
    pub(super) async fn calibrate(&mut self, run: &mut Run) {
        self.freeze_all_but(None);
        self.idle_busy_by_cpu = self.idle_baseline().await;
        run.environment.idle_busy_by_cpu.clone_from(&self.idle_busy_by_cpu);
        // Cases often do not differ in what matters here: each kind of load and number of connections is tried once.
        let mut ceilings: BTreeMap<String, Option<f64>> = BTreeMap::new();
        let mut latencies: BTreeMap<String, Option<f64>> = BTreeMap::new();
        let cases = run.scenario.cases.clone();
        for case in &cases {
            let key = format!("{:?} {} {}", case.load.kind, case.load.connections, case.load.streams);
            if !ceilings.contains_key(&key) {
                ceilings.insert(key.clone(), self.generator_ceiling(case).await);
            }
            let alone = format!("{:?} {:?}", case.load.kind, case.origin);
            if !latencies.contains_key(&alone) {
                latencies.insert(alone.clone(), self.unloaded(run, case).await);
            }
            let generator_ceiling_per_s = ceilings.get(&key).copied().flatten();
            let unloaded_p50_us = latencies.get(&alone).copied().flatten();
            if let Some(ceiling) = generator_ceiling_per_s {
                say(&format!("  the load can make {ceiling:.0}/s of {}", case.name));
            }
            run.calibrations.push(Calibration {
                case: case.name.clone(),
                generator_ceiling_per_s,
                origin_ceiling_per_s: None,
                unloaded_p50_us,
            });
        }
    }

    /// The share of the time for which each CPU is busy while the run does nothing, without other programs: the kernel's own work. The median of
    /// several short looks, because a neighbour that the kernel does not tell apart would be in the mean.
    async fn idle_baseline(&self) -> Vec<f64> {
        let mut looks: Vec<Vec<f64>> = Vec::new();
        for _ in 0..BASELINE_LOOKS {
            let (idle_before, strangers_before) = (idle(&self.plan.cpus), strangers(&self.accounts));
            tokio::time::sleep(BASELINE_LOOK).await;
            let (idle_after, strangers_after) = (idle(&self.plan.cpus), strangers(&self.accounts));
            let of_strangers = |place: usize| {
                let of = |strangers: &Strangers| strangers.by_cpu.get(place).copied().unwrap_or_default();
                of(&strangers_after).saturating_sub(of(&strangers_before)).as_secs_f64() / BASELINE_LOOK.as_secs_f64()
            };
            let busy = busy_share(&idle_before, &idle_after);
            looks.push(busy.iter().enumerate().map(|(place, busy)| (busy - of_strangers(place)).max(0.0)).collect());
        }
        let cpus = looks.iter().map(Vec::len).min().unwrap_or_default();
        let of_cpu =
            |place: usize| median(&looks.iter().filter_map(|look| look.get(place).copied()).collect::<Vec<_>>());
        (0..cpus).filter_map(of_cpu).collect()
    }

    /// Puts the same load on an origin of the same kind that does nothing else, on loopback and on the balancer's CPUs.
    async fn generator_ceiling(&self, case: &Case) -> Option<f64> {
        // The origin speaks no TLS, and another program that does would be the limit itself.
        if case.load.kind.protocol() == Protocol::Https {
            return None;
        }
        // There is no proxy here that would translate between the load and the origin.
        let kind = if case.load.kind == LoadKind::H2cHttp { OriginKind::Grpc } else { case.origin.kind };
        let origin = OriginSpec { kind, arguments: idle_arguments(kind), count: 1 };
        let command = self.origin_command(&origin, 0, "127.0.0.1:0", self.plan.cpus.len().min(2));
        let placement = &self.placement;
        let spec = Spec {
            name: "origin-calibration",
            command: &command,
            namespace: None,
            cpus: if placement.is_contended() { &placement.origin } else { &placement.balancer },
            group: &self.origin,
            directory: &self.raw(),
            captures: false,
        };
        let mut process = Process::start(&spec).ok()?;
        let address = listening(&mut process).await.ok()?;
        let load = LoadSpec { mode: Mode::Closed, ..short(&case.load) };
        let case = Case { load, ..case.clone() };
        let to = Where { address, sources: Vec::new(), threads: placement.client.len() as u32, rate: None };
        let mut words = vec![self.plan.itself.display().to_string()];
        words.extend(arguments(&case.load, &to));
        let spec = Spec {
            name: "load-calibration",
            command: &words,
            namespace: None,
            cpus: &placement.client,
            group: &self.client,
            directory: &self.raw(),
            captures: true,
        };
        let mut load = Process::start(&spec).ok()?;
        let status = load.wait().await.ok()?;
        process.kill().await;
        let text = std::fs::read_to_string(load.log()).ok()?;
        status.success().then(|| parse(&text, &Mode::Closed).ok()).flatten().map(|report| report.ok_per_s)
    }

    /// Measures a single connection on the path without a balancer.
    async fn unloaded(&self, run: &Run, case: &Case) -> Option<f64> {
        if matches!(case.load.kind, LoadKind::Stream | LoadKind::StreamPaced) {
            return None;
        }
        let of_layer = |layer| case.instances.iter().find(|id| judge::layer_of(run, id) == layer);
        let bare = of_layer(Layer::Direct).or_else(|| of_layer(Layer::Routed))?;
        let load = LoadSpec { mode: Mode::Closed, connections: 1, streams: 1, ..short(&case.load) };
        let case = Case { load, ..case.clone() };
        let measured = self.put_on(&case, bare, (None, None), &mut String::new()).await.ok()?;
        measured.service.and_then(|latency| latency.percentile_us(50.0))
    }
}

/// Nothing that takes time or makes load on purpose.
fn idle_arguments(kind: OriginKind) -> Vec<String> {
    match kind {
        OriginKind::Http => vec!["--body=18".to_owned()],
        OriginKind::Grpc | OriginKind::Tcp | OriginKind::Stream => Vec::new(),
    }
}

/// A load for a calibration.
fn short(load: &LoadSpec) -> LoadSpec {
    let total = CALIBRATION.as_millis() as u64;
    LoadSpec { ramp_ms: total / 5, warm_up_ms: total / 5, measure_ms: total / 2, trim_ms: total / 10, ..load.clone() }
}

fn is_direct(run: &Run, id: &str) -> bool {
    let contender = run.instance(id).map(|instance| instance.contender.as_str());
    run.contenders.iter().any(|known| Some(known.name.as_str()) == contender && known.layer == Layer::Direct)
}

/// What the origins served without a balancer, from the rounds themselves.
pub(super) fn origin_ceilings(run: &mut Run) {
    let ceiling = |case: &str| {
        let case = run.case(case).filter(|case| case.load.mode == Mode::Closed)?;
        let direct = case.instances.iter().find(|id| is_direct(run, id))?;
        let cells = run.rounds_of(&case.name, direct, 0).filter_map(|cell| cell.measurement.as_ref());
        median(&cells.map(|measurement| measurement.ok_per_s).collect::<Vec<_>>())
    };
    let ceilings: Vec<_> = run.calibrations.iter().map(|calibration| ceiling(&calibration.case)).collect();
    for (calibration, ceiling) in run.calibrations.iter_mut().zip(ceilings) {
        calibration.origin_ceiling_per_s = ceiling;
    }
}
