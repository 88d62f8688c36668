//! Decides what limited the figure of a cell.
//!
//! [`judge`] makes one [`Judgement`] for every measured cell, with the inequalities that led to it, and [`judge_run`] adds the one verdict
//! that needs the cells of several contenders. `report` computes figures over rounds, and `stats` decides about differences.
//!
//! A figure is the balancer's capacity only if the balancer was at its limit and no other component was. The checks are in the order of
//! what would mislead most: is the cell sound at all, was the load at its limit, were the origins, was the balancer?
//!
//! The plain rules are modified in two places. First, an open loop also leaves operations unsent if a balancer at its limit keeps all
//! connections busy, so unsent operations only count against the load if neither balancer nor origins are at their limit. (Lateness always
//! counts against the load, because it only covers operations that were late although a connection was free.) Second, an origin that
//! reaches its rate without a balancer is only at its limit if it is busy, not if it sleeps through a delay.

use crate::record::{
    Calibration, Case, Cell, Instance, Judgement, Layer, LoadKind, LoadSpec, Measurement, Mode, ReferenceLoop, Run,
    Turn, Verdict,
};
use crate::stats::{Loops, STEADY_FACTOR_MAX, little_gap, median};

/// The share of handshakes of another kind than the case asks for.
const OTHER_HANDSHAKES_MAX: f64 = 0.05;

/// Errors and failure responses, as a share of what was sent.
const ERROR_SHARE_MAX: f64 = 0.001;
/// CPU time taken by the hypervisor, as a share of the total.
const STEAL_SHARE_MAX: f64 = 0.01;
/// And at least this many seconds: the kernel counts in ticks of 10 ms, and two of them in a short window mean nothing.
const STEAL_S_MAX: f64 = 0.025;
/// CPU time of other processes, as a share of the total. Ticks are too coarse for a lower limit over a few seconds. The load average is not
/// used, because it still includes the previous cell.
const STRANGERS_SHARE_MAX: f64 = 0.05;
/// Lateness of an open loop at p99: this, or a tenth of the median latency, whichever is larger.
const LATENESS_US_MAX: f64 = 1_000.0;
const LATENESS_OF_P50_MAX: f64 = 0.1;
/// The share of planned operations that was sent.
const SENT_SHARE_MIN: f64 = 0.99;
/// Busy share of the CPUs of the load, and of the origins.
const GENERATOR_BUSY_MAX: f64 = 0.90;
const ORIGIN_BUSY_MAX: f64 = 0.90;
/// The share of the rate that the origins reach without a balancer, if they are at least half busy.
const ORIGIN_CEILING_SHARE_MAX: f64 = 0.80;
const ORIGIN_AWAKE_MIN: f64 = 0.50;
/// Busy share of the balancer's CPUs.
const LB_BUSY_MIN: f64 = 0.95;
/// How far a closed loop may deviate from Little's law.
const LITTLE_GAP_MAX: f64 = 0.05;
/// Contenders whose bytes per second are this close, although their CPU use is not, share a limit outside all of them.
const CAP_CONTENDERS_MIN: usize = 3;
const CAP_SPREAD_MAX: f64 = 1.02;
const CAP_CPU_SPREAD_MIN: f64 = 1.10;

/// Judges every measured cell of `run`.
pub fn judge_run(run: &mut Run) {
    let judgements: Vec<Option<Judgement>> = run.cells.iter().map(|cell| Some(judge(&subject(run, cell)?))).collect();
    for (cell, judgement) in run.cells.iter_mut().zip(judgements) {
        cell.judgement = judgement;
    }
    for case in &run.scenario.cases {
        if case.load.kind == LoadKind::Stream {
            mark_cap(&mut run.cells, &case.name);
        }
    }
}

/// `None` for a cell that was not measured, or that is not in the scenario.
fn subject<'a>(run: &'a Run, cell: &'a Cell) -> Option<Subject<'a>> {
    Some(Subject {
        measurement: cell.measurement.as_ref()?,
        case: run.case(&cell.case)?,
        instance: run.instance(&cell.instance)?,
        layer: layer_of(run, &cell.instance),
        calibration: run.calibrations.iter().find(|calibration| calibration.case == cell.case),
    })
}

/// The layer of the instance's contender. An unknown contender counts as one that runs as processes.
pub(crate) fn layer_of(run: &Run, instance: &str) -> Layer {
    let contender = run.instance(instance).map(|instance| instance.contender.as_str());
    let contender = run.contenders.iter().find(|known| Some(known.name.as_str()) == contender);
    contender.map_or(Layer::Http, |contender| contender.layer)
}

/// A cell with everything that is needed to judge it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// What was measured.
    pub measurement: &'a Measurement,
    /// The workload.
    pub case: &'a Case,
    /// The instance.
    pub instance: &'a Instance,
    /// The layer of its contender.
    pub layer: Layer,
    /// The ceilings, if they were measured.
    pub calibration: Option<&'a Calibration>,
}

/// Judges one cell by itself. It never returns [`Verdict::CapBound`], which needs several contenders.
pub fn judge(subject: &Subject<'_>) -> Judgement {
    let (mut unsound, disturbed) = (unsound(subject.measurement), spoiled(subject.measurement));
    unsound.extend(other_handshakes(&subject.case.load, subject.measurement));
    if !unsound.is_empty() {
        return Judgement { verdict: Verdict::Invalid, reasons: [unsound, disturbed].concat() };
    }
    if !disturbed.is_empty() {
        // Only with the loop around it does a ratio to another cell still mean something.
        let verdict = if subject.measurement.reference.is_some() { Verdict::Disturbed } else { Verdict::Invalid };
        return Judgement { verdict, reasons: disturbed };
    }
    let (generator, origin, balancer) = (generator_limit(subject), origin_limit(subject), balancer_limit(subject));
    let found = |verdict, reasons: Vec<String>| Judgement { verdict, reasons };
    if !generator.is_empty() {
        return found(Verdict::GeneratorSaturated, generator);
    }
    if !origin.is_empty() {
        return found(Verdict::BackendSaturated, origin);
    }
    if !balancer.is_empty() {
        return found(Verdict::LbSaturated, balancer);
    }
    if let Some(short) = unsent(subject.measurement) {
        return found(Verdict::GeneratorSaturated, vec![short]);
    }
    nobody_saturated(subject)
}

/// Why the figures of the cell mean nothing, if they do.
fn unsound(measurement: &Measurement) -> Vec<String> {
    let mut reasons = Vec::new();
    let errors = measurement.errors.total();
    let begun = measurement.sent.max(measurement.ok + errors);
    if begun == 0 {
        reasons.push("nothing was sent".to_owned());
    } else if share(errors, begun) > ERROR_SHARE_MAX {
        reasons.push(format!(
            "{errors} errors in {begun} = {} > {}{}",
            per_cent(share(errors, begun)),
            per_cent(ERROR_SHARE_MAX),
            statuses_of_failure(measurement)
        ));
    }
    if measurement.net.listen_drops > 0 {
        reasons.push(format!("{} drops at listening sockets > 0", measurement.net.listen_drops));
    }
    reasons
}

/// Why a case's connections did not begin as it says, if so: nearly all of a kind have to, because a full handshake costs many times a resumed one.
fn other_handshakes(load: &LoadSpec, measurement: &Measurement) -> Option<String> {
    // The first connections have no session that they could resume.
    let (asked, excused) = match load.kind {
        LoadKind::HttpsClose => ("full", 0),
        LoadKind::HttpsResume => ("resumed", u64::from(load.connections)),
        _ => return None,
    };
    let is_asked = |negotiated: &str| negotiated.rsplit(", ").next() == Some(asked);
    let all: u64 = measurement.handshakes.values().sum();
    let others = measurement.handshakes.iter().filter(|(negotiated, _)| !is_asked(negotiated)).map(|(_, count)| count);
    let others = others.sum::<u64>();
    if others >= all {
        return Some(format!("none of {all} handshakes was {asked}"));
    }
    let others = others.saturating_sub(excused);
    (share(others, all) > OTHER_HANDSHAKES_MAX).then(|| {
        let (others_share, limit) = (per_cent(share(others, all)), per_cent(OTHER_HANDSHAKES_MAX));
        format!("{others} of {all} handshakes were not {asked} = {others_share} > {limit}")
    })
}

/// The statuses of the failures, if there were any: HTTP's from 400 on, or gRPC's other than 0.
fn statuses_of_failure(measurement: &Measurement) -> String {
    let failed = measurement.statuses.iter().filter(|(status, _)| !matches!(**status, 0 | 100..400));
    let failed: Vec<String> = failed.map(|(status, count)| format!("status {status} × {count}")).collect();
    if failed.is_empty() || measurement.errors.status == 0 {
        String::new()
    } else {
        format!(" ({})", failed.join(", "))
    }
}

/// Disturbances by other processes on the host, by its hypervisor, or by a quota. The measured components are not to blame.
pub(crate) fn spoiled(measurement: &Measurement) -> Vec<String> {
    let mut reasons = Vec::new();
    let cpu = &measurement.cpu;
    let steal = cpu.steal_s / (cpu.busy_s + cpu.idle_s + cpu.steal_s);
    if steal > STEAL_SHARE_MAX && cpu.steal_s > STEAL_S_MAX {
        reasons.push(format!(
            "{} of CPU time stolen by the hypervisor > {}",
            per_cent(steal),
            per_cent(STEAL_SHARE_MAX)
        ));
    }
    let strangers = strangers(measurement);
    if strangers > STRANGERS_SHARE_MAX {
        reasons.push(format!(
            "{} of CPU time used by strangers > {}",
            per_cent(strangers),
            per_cent(STRANGERS_SHARE_MAX)
        ));
    }
    if cpu.throttled > 0 {
        reasons.push(format!("held back by a CPU quota {} times > 0", cpu.throttled));
    }
    if let Some(change) =
        measurement.reference.as_ref().and_then(loop_change).filter(|change| *change > STEADY_FACTOR_MAX)
    {
        reasons.push(format!(
            "the reference loop around it changed by a factor of {change:.2} > {STEADY_FACTOR_MAX}: the host was not in one state"
        ));
    }
    reasons
}

/// The factor between the reference loop before and after a cell, on the CPU where it changed most.
fn loop_change(reference: &ReferenceLoop) -> Option<f64> {
    let of_cpu = |before: &Turn| {
        let after = reference.after.iter().find(|after| after.cpu == before.cpu)?;
        Some(Loops { before: before.wall_us, after: after.wall_us }.change()).filter(|change| change.is_finite())
    };
    reference.before.iter().filter_map(of_cpu).max_by(f64::total_cmp)
}

/// The share of CPU time that unrelated processes used. If the kernel does not tell the time of all tasks, it is what neither the three
/// components nor soft interrupts used. That is never too high: if the kernel charges soft interrupts to the running process, they are
/// subtracted twice.
fn strangers(measurement: &Measurement) -> f64 {
    let cpu = &measurement.cpu;
    let all = cpu.busy_s + cpu.idle_s;
    if let Some(strangers_s) = cpu.strangers_s.filter(|_| all > 0.0) {
        return strangers_s / all;
    }
    if all > 0.0 { (cpu.other_s() - cpu.softirq_s).max(0.0) / all } else { 0.0 }
}

/// Open loop: whether everything that was due was sent. If not, there were too few connections or ports.
fn unsent(measurement: &Measurement) -> Option<String> {
    let planned = measurement.planned.filter(|&planned| planned > 0)?;
    let sent = share(measurement.sent, planned);
    let short = format!("{} of what was due was sent < {}", per_cent(sent), per_cent(SENT_SHARE_MIN));
    (sent < SENT_SHARE_MIN).then_some(short)
}

fn generator_limit(subject: &Subject<'_>) -> Vec<String> {
    let (measurement, cpu) = (subject.measurement, &subject.measurement.cpu);
    let mut reasons = Vec::new();
    let busy = used(cpu.client_s, measurement.window_s, cpu.client_cpus.len());
    let thread = measurement.generator_busiest_thread.unwrap_or(0.0);
    if busy > GENERATOR_BUSY_MAX {
        reasons.push(format!("load {} of its CPUs > {}", per_cent(busy), per_cent(GENERATOR_BUSY_MAX)));
    } else if thread > GENERATOR_BUSY_MAX {
        reasons.push(format!(
            "a thread of the load {} of its CPU > {}",
            per_cent(thread),
            per_cent(GENERATOR_BUSY_MAX)
        ));
    } else {
        reasons.extend(shared_limit(subject).filter(|_| cpu.client_s >= cpu.origin_s));
    }
    if let Some(late) = measurement.lateness_p99_us {
        let p50 = measurement.service.as_ref().and_then(|service| service.percentile_us(50.0)).unwrap_or(0.0);
        let allowed = LATENESS_US_MAX.max(LATENESS_OF_P50_MAX * p50);
        if late > allowed {
            reasons.push(format!("the load sent {late:.0} µs late at p99 > {allowed:.0} µs"));
        }
    }
    reasons
}

fn origin_limit(subject: &Subject<'_>) -> Vec<String> {
    let (measurement, cpu) = (subject.measurement, &subject.measurement.cpu);
    let busy = used(cpu.origin_s, measurement.window_s, cpu.origin_cpus.len());
    if busy > ORIGIN_BUSY_MAX {
        return vec![format!("origins {} of their CPUs > {}", per_cent(busy), per_cent(ORIGIN_BUSY_MAX))];
    }
    let mut reasons: Vec<String> = shared_limit(subject).filter(|_| cpu.client_s < cpu.origin_s).into_iter().collect();
    let ceiling = subject.calibration.and_then(|calibration| calibration.origin_ceiling_per_s);
    if let Some(ceiling) = ceiling.filter(|_| busy > ORIGIN_AWAKE_MIN)
        && measurement.ok_per_s >= ORIGIN_CEILING_SHARE_MAX * ceiling
    {
        reasons.push(format!(
            "{:.0}/s >= {} of the {ceiling:.0}/s that the origins reach without a balancer",
            measurement.ok_per_s,
            per_cent(ORIGIN_CEILING_SHARE_MAX)
        ));
    }
    reasons
}

/// Load and origins on the same CPUs can saturate them together, although neither does alone. Then the one that used more is named.
fn shared_limit(subject: &Subject<'_>) -> Option<String> {
    let cpu = &subject.measurement.cpu;
    if cpu.client_cpus.is_empty() || !cpu.client_cpus.iter().all(|known| cpu.origin_cpus.contains(known)) {
        return None;
    }
    let busy = cpu.mean_busy(&cpu.client_cpus);
    (busy > GENERATOR_BUSY_MAX).then(|| {
        let of = |seconds| per_cent(used(seconds, subject.measurement.window_s, cpu.client_cpus.len()));
        format!(
            "the CPUs that load ({}) and origins ({}) share {} busy > {}",
            of(cpu.client_s),
            of(cpu.origin_s),
            per_cent(busy),
            per_cent(GENERATOR_BUSY_MAX)
        )
    })
}

fn balancer_limit(subject: &Subject<'_>) -> Vec<String> {
    let busy = balancer_busy(subject).filter(|&busy| busy >= LB_BUSY_MIN);
    busy.map(|busy| format!("balancer {} of its CPUs >= {}", per_cent(busy), per_cent(LB_BUSY_MIN)))
        .into_iter()
        .collect()
}

/// The share of its allowed CPU time that the balancer used, 0 to 1. `None` if there is no balancer, or if the kernel does its work on CPUs
/// that others use too.
pub(crate) fn balancer_busy(subject: &Subject<'_>) -> Option<f64> {
    let (measurement, cpu, instance) = (subject.measurement, &subject.measurement.cpu, subject.instance);
    if subject.layer == Layer::Direct || cpu.balancer_cpus.is_empty() {
        return None;
    }
    let cpus = cpu.balancer_cpus.len();
    let has_process = !matches!(subject.layer, Layer::Routed | Layer::Kernel);
    // A kernel balancer works wherever packets arrive, on all CPUs of its box; a process works on as many as it has workers.
    let workers = (instance.workers as usize).saturating_mul(instance.hops.max(1) as usize);
    let allowed = if has_process { workers.clamp(1, cpus) } else { cpus };
    if is_box_apart(measurement) {
        // The whole busy time of its CPUs, including soft interrupts, whichever process they are charged to.
        return Some(cpu.mean_busy(&cpu.balancer_cpus) * cpus as f64 / allowed as f64);
    }
    has_process.then(|| used(cpu.balancer_s, measurement.window_s, allowed))
}

/// Whether the balancer had CPUs that neither load nor origins could use.
pub(crate) fn is_box_apart(measurement: &Measurement) -> bool {
    let cpu = &measurement.cpu;
    let taken = |cpus: &[u32]| cpu.balancer_cpus.iter().any(|own| cpus.contains(own));
    let are_known = cpu.balancer_cpus.iter().all(|&own| (own as usize) < cpu.busy_by_cpu.len());
    !cpu.balancer_cpus.is_empty() && are_known && !taken(&cpu.client_cpus) && !taken(&cpu.origin_cpus)
}

fn nobody_saturated(subject: &Subject<'_>) -> Judgement {
    let measurement = subject.measurement;
    let idle = match balancer_busy(subject) {
        Some(busy) => format!("balancer {} of its CPUs < {}", per_cent(busy), per_cent(LB_BUSY_MIN)),
        None => "no CPU of load or origins at its limit".to_owned(),
    };
    match &subject.case.load.mode {
        Mode::Open { .. } => Judgement { verdict: Verdict::BelowCapacity, reasons: vec![idle] },
        Mode::Search { objective_p99_us } => Judgement {
            verdict: Verdict::BelowCapacity,
            reasons: vec![idle, format!("the objective of {objective_p99_us} µs at p99 ended the search, not a CPU")],
        },
        // The origin sets the pace, and the load takes what arrives.
        Mode::Closed if subject.case.load.kind == LoadKind::StreamPaced => {
            Judgement { verdict: Verdict::BelowCapacity, reasons: vec![idle] }
        }
        Mode::Closed => match closed_loop_gap(subject.case.load.kind, measurement) {
            Some(gap) if gap > LITTLE_GAP_MAX => Judgement {
                verdict: Verdict::Invalid,
                reasons: vec![format!(
                    "connections less rate times mean latency are {} of the connections > {} (Little's law)",
                    per_cent(gap),
                    per_cent(LITTLE_GAP_MAX)
                )],
            },
            Some(gap) => Judgement {
                verdict: Verdict::ConcurrencyLimited,
                reasons: vec![
                    idle,
                    format!("Little's law holds within {} <= {}", per_cent(gap), per_cent(LITTLE_GAP_MAX)),
                ],
            },
            None => Judgement { verdict: Verdict::ConcurrencyLimited, reasons: vec![idle] },
        },
    }
}

/// `None` if connections do not wait for anything, as in a stream.
fn closed_loop_gap(kind: LoadKind, measurement: &Measurement) -> Option<f64> {
    if matches!(kind, LoadKind::Stream | LoadKind::StreamPaced) {
        return None;
    }
    let in_flight = f64::from(measurement.connections) * f64::from(measurement.streams.max(1));
    let gap = |mean_us: f64| little_gap(in_flight, measurement.ok_per_s, mean_us / 1e6);
    let service_us = measurement.service.as_ref()?.mean_us;
    let plain = gap(service_us)?;
    // If each request has a connection of its own, the latency may or may not include the time to make it, because tools differ.
    let connects =
        matches!(kind, LoadKind::HttpClose | LoadKind::HttpsClose | LoadKind::HttpsResume | LoadKind::TcpCrr);
    let connect_us = measurement.connect.as_ref().filter(|_| connects).map(|connect| connect.mean_us);
    let with_connect = connect_us.and_then(|connect_us| gap(service_us + connect_us));
    Some(with_connect.map_or(plain, |gap| gap.min(plain)))
}

/// Marks the cells of a saturating stream that end at the same rate although they cost differently: they share an outside limit.
fn mark_cap(cells: &mut [Cell], case: &str) {
    let mut of_instances: Vec<(String, f64, f64)> = Vec::new();
    for cell in cells.iter().filter(|cell| cell.case == case) {
        if of_instances.iter().any(|(instance, ..)| *instance == cell.instance) {
            continue;
        }
        let rounds =
            cells.iter().filter(|other| other.case == case && other.instance == cell.instance && is_sound(other));
        let rounds: Vec<&Measurement> = rounds.filter_map(|cell| cell.measurement.as_ref()).collect();
        let of =
            |figure: fn(&Measurement) -> f64| median(&rounds.iter().map(|round| figure(round)).collect::<Vec<_>>());
        let rate = of(|round| round.received_bytes as f64 / round.window_s);
        let cpu = of(|round| round.cpu.busy_s / round.received_bytes as f64);
        if let (Some(rate), Some(cpu)) = (rate, cpu) {
            of_instances.push((cell.instance.clone(), rate, cpu));
        }
    }
    of_instances.sort_by(|left, right| right.1.total_cmp(&left.1));
    // From the top, because the fastest contenders reach a limit first.
    let top = of_instances.first().map_or(0.0, |(_, rate, _)| *rate);
    let capped: Vec<_> = of_instances.into_iter().filter(|(_, rate, _)| *rate * CAP_SPREAD_MAX >= top).collect();
    let least = capped.iter().map(|(.., cpu)| *cpu).fold(f64::INFINITY, f64::min);
    let most = capped.iter().map(|(.., cpu)| *cpu).fold(0.0, f64::max);
    if capped.len() < CAP_CONTENDERS_MIN || most < least * CAP_CPU_SPREAD_MIN {
        return;
    }
    for cell in cells.iter_mut().filter(|cell| cell.case == case && is_sound(cell)) {
        let is_capped = capped.iter().any(|(instance, ..)| *instance == cell.instance);
        let free = |judgement: &&mut Judgement| judgement.verdict == Verdict::ConcurrencyLimited;
        if let Some(judgement) = cell.judgement.as_mut().filter(free).filter(|_| is_capped) {
            judgement.verdict = Verdict::CapBound;
            judgement.reasons.push(format!(
                "{} contenders within {} of {:.2} Gbps, though CPU per byte differs by a factor of {:.2} >= {CAP_CPU_SPREAD_MIN}",
                capped.len(),
                per_cent(CAP_SPREAD_MAX - 1.0),
                top * 8.0 / 1e9,
                most / least
            ));
        }
    }
}

fn is_sound(cell: &Cell) -> bool {
    let verdict = cell.judgement.as_ref().map(|judgement| judgement.verdict);
    !matches!(verdict, None | Some(Verdict::Invalid | Verdict::Disturbed))
}

fn used(seconds: f64, window_s: f64, cpus: usize) -> f64 {
    if cpus == 0 || window_s <= 0.0 { 0.0 } else { seconds / (window_s * cpus as f64) }
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

fn per_cent(share: f64) -> String {
    let per_cent = share * 100.0;
    if per_cent < 10.0 { format!("{per_cent:.1} %") } else { format!("{per_cent:.0} %") }
}

#[cfg(test)]
mod tests;
