//! One cell: one instance under one case in one round.

use std::time::Duration;

use super::counters::Counters;
use super::load::{Where, arguments, measurement, parse, probe, probed, wants_sources};
use super::now;
use super::origins::Service;
use super::session::{Live, Session};
use super::watch::{Groups, Seen, cpu, samples, watch};
use crate::environment::load_average;
use crate::process::{self, Process, Spec};
use crate::record::{
    Calibration, Case, Cell, Failure, Layer, LoadKind, Measurement, Memory, Mode, NetCounters, OriginShare, Probe,
    Rate, ReferenceLoop, Run, Turn,
};
use crate::schedule::{Step, load_time};
use crate::stats::median;

/// The time that a probe may take beyond its load.
const PROBE_EXTRA: Duration = Duration::from_secs(5);

/// The time that a load may take beyond its own: the connects of 2,000 connections, the last responses, the report.
const LOAD_EXTRA: Duration = Duration::from_secs(30);

/// How often a contender is looked at until it has nothing left to do: when it used less than a twentieth of this time, or after so many looks.
const SETTLE_LOOK: Duration = Duration::from_millis(20);
const SETTLE_LOOKS_MAX: usize = 50;

impl Session<'_> {
    /// Measures one cell. The cell records any failure.
    pub(super) async fn measure(&mut self, run: &Run, step: &Step, order: u32) -> Cell {
        let mut cell = Cell {
            case: step.case.clone(),
            instance: step.instance.clone(),
            round: step.round,
            twin: step.twin,
            block: step.block,
            order,
            started_unix_ms: u64::try_from(now().as_millis()).unwrap_or_default(),
            command: String::new(),
            measurement: None,
            failure: None,
            judgement: None,
        };
        match self.attempt(run, step, &mut cell.command).await {
            Ok(measurement) => cell.measurement = Some(measurement),
            Err(failure) => cell.failure = Some(failure),
        }
        cell
    }

    async fn attempt(&mut self, run: &Run, step: &Step, command: &mut String) -> Result<Measurement, Failure> {
        let failure = |why: String| Failure { why, log: Vec::new() };
        let case = run.case(&step.case).ok_or_else(|| failure(format!("no contender is left for {}", step.case)))?;
        self.revive(run, &step.instance).await?;
        let rate = rate_of(run, case).map_err(failure)?;
        let calibration = run.calibrations.iter().find(|calibration| calibration.case == case.name);
        self.freeze_all_but(Some(&step.instance));
        self.settle(&step.instance).await;
        let before = self.reference_loop(&step.instance);
        let mut measurement = self.put_on(case, &step.instance, (rate, calibration), command).await;
        if let Ok(measurement) = &mut measurement {
            self.settle(&step.instance).await;
            measurement.reference = Some(ReferenceLoop { before, after: self.reference_loop(&step.instance) });
        }
        // A contender that dies under a load fails its cell, however much was answered before.
        let live = self.lives.iter_mut().find(|live| live.id == step.instance);
        let death = live.and_then(|live| live.processes.iter_mut().find_map(Process::ended));
        match death {
            Some(death) => Err(death),
            None => measurement,
        }
    }

    /// Waits until a contender and its origins have nothing left to do. After a load of bulk they close its connections for a while, and
    /// one that was stopped before it could do so does it when it continues. The reference loop would share the CPU with that: 10 us of CPU time a turn
    /// took 12 to 30 us on the clock around the cells of sidecars, and 10 around those of a direct path.
    async fn settle(&self, id: &str) {
        let Some(live) = self.lives.iter().find(|live| live.id == id) else { return };
        let used = || live.group.cpu_time() + self.origin.cpu_time();
        let mut before = used();
        for _ in 0..SETTLE_LOOKS_MAX {
            tokio::time::sleep(SETTLE_LOOK).await;
            let now = used();
            if now.saturating_sub(before) < SETTLE_LOOK / 20 {
                return;
            }
            before = now;
        }
    }

    /// The reference loop, on the CPUs of an instance and of its load and origins.
    fn reference_loop(&self, id: &str) -> Vec<Turn> {
        let live = self.lives.iter().find(|live| live.id == id);
        let cpus = live.map(|live| {
            let placement = &live.load_path.placement;
            [placement.balancer.as_slice(), &placement.client, &placement.origin].concat()
        });
        crate::reference::measure(&cpus.unwrap_or_default())
    }

    /// Puts a case's load on an instance, and watches it. If the case has been calibrated, a probe measures the latency beside the load.
    pub(super) async fn put_on(
        &self,
        case: &Case,
        id: &str,
        (rate, calibration): (Option<f64>, Option<&Calibration>),
        command: &mut String,
    ) -> Result<Measurement, Failure> {
        let failure = |why: String| Failure { why, log: Vec::new() };
        let live =
            self.lives.iter().find(|live| live.id == id).ok_or_else(|| failure(format!("{id} is not running")))?;
        let service = self.services.iter().find(|service| service.is_of(case));
        let service = service.ok_or_else(|| failure("there is no origin for the case".to_owned()))?;
        let address = live.addresses.iter().find(|(name, _)| *name == service.name).map(|&(_, address)| address);
        let address = address.ok_or_else(|| failure(format!("{id} cannot serve {}", case.name)))?;
        if let Some(topology) = &self.topology {
            topology.use_origins(&live.load_path, case.origin.count).map_err(|error| failure(error.to_string()))?;
        }
        let to = Where {
            address,
            sources: if wants_sources(case.load.kind) { self.sources(&live.load_path) } else { Vec::new() },
            threads: live.load_path.placement.client.len() as u32,
            rate,
        };
        let mut words = vec![self.plan.itself.display().to_string()];
        words.extend(arguments(&case.load, &to));
        let namespace = self.topology.as_ref().map(|topology| topology.client_of(&live.load_path));
        let spec = Spec {
            name: "load",
            command: &words,
            namespace: namespace.as_deref(),
            cpus: &live.load_path.placement.client,
            group: &self.client,
            directory: &self.raw(),
            captures: true,
        };
        *command = process::text(&spec);
        let before = load_average() / self.plan.cpus.len() as f64;
        let probe = probe(case, rate, calibration).and_then(|(case, rate)| {
            let to = Where { rate: Some(rate), threads: 1, ..to.clone() };
            let mut words = vec![self.plan.itself.display().to_string()];
            words.extend(arguments(&case.load, &to));
            Process::start(&Spec { name: "probe", command: &words, ..spec }).ok()
        });
        let mut load = Process::start(&spec)?;
        let groups = Groups {
            balancer: &live.group,
            client: &self.client,
            origin: &self.origin,
            accounts: &self.accounts,
            cpus: &self.plan.cpus,
        };
        let namespaces = self.namespaces(live, service);
        let seen = watch(&mut load, groups, &namespaces, load_time(&case.load) + LOAD_EXTRA).await?;
        let text = std::fs::read_to_string(load.log()).map_err(|error| failure(error.to_string()))?;
        let report = parse(&text, &case.load.mode).map_err(failure)?;
        let operations = report.origins.clone();
        let mut measured = measurement(report);
        self.fill_in(&mut measured, live, &seen, case);
        measured.load_average_per_cpu = before;
        measured.probe = match probe {
            Some(probe) => heard(probe).await,
            None => None,
        };
        for share in &mut measured.shares {
            share.operations = operations.get(&share.name).copied();
        }
        Ok(measured)
    }

    /// The namespaces whose counters are read: the client's, the balancer's, then one for each origin.
    fn namespaces(&self, live: &Live, service: &Service) -> Vec<Option<String>> {
        let Some(topology) = &self.topology else { return vec![None] };
        let client = topology.client_of(&live.load_path);
        // Nothing stands between client and origins that one link joins. The client's namespace stands in, and is subtracted from itself.
        let balancer = if live.load_path.is_one_link() { client.clone() } else { topology.balancer(&live.load_path) };
        let origins = (0..service.origin.count).map(|endpoint| Some(topology.origin_of(&live.load_path, endpoint)));
        [Some(client), Some(balancer)].into_iter().chain(origins).collect()
    }

    /// Fills in what was seen from outside the load.
    fn fill_in(&self, measured: &mut Measurement, live: &Live, seen: &Seen, case: &Case) {
        let placement = &live.load_path.placement;
        measured.cpu = cpu(&seen.open, &seen.closed);
        measured.cpu.idle_busy_by_cpu.clone_from(&self.idle_busy_by_cpu);
        measured.cpu.balancer_cpus.clone_from(&placement.balancer);
        measured.cpu.client_cpus.clone_from(&placement.client);
        measured.cpu.origin_cpus.clone_from(&placement.origin);
        measured.cpu.throttled = live.group.throttled() + self.client.throttled() + self.origin.throttled();
        measured.cpu.throttled += seen.closed.throttled.saturating_sub(seen.open.throttled);
        measured.memory = Memory {
            balancer_rss: seen.closed.balancer_rss,
            balancer_rss_idle: live.rss_idle,
            balancer_peak: live.group.memory_peak(),
            balancer_maps: seen.closed.balancer_maps,
            origin_rss: seen.closed.origin_rss,
            client_rss: seen.closed.client_rss,
        };
        let since = |(after, before): (&Counters, &Counters)| after.since(*before);
        let counted: Vec<Counters> = seen.closed.counters.iter().zip(&seen.open.counters).map(since).collect();
        measured.net = net(&counted, live.load_path.is_one_link());
        let both = seen.closed.net_rx.iter().zip(&seen.open.net_rx);
        measured.net.net_rx_by_cpu = both.map(|(after, before)| after.saturating_sub(*before)).collect();
        // On loopback there is one namespace, in which the connections of the components cannot be distinguished.
        let of_origins = counted.get(2..).unwrap_or_default();
        if self.topology.is_some() {
            measured.origin_connections = Some(of_origins.iter().map(|counters| counters.passive_opens).sum());
            if matches!(case.load.kind, LoadKind::Stream | LoadKind::StreamPaced) {
                measured.origin_sent_bytes = Some(of_origins.iter().map(|counters| counters.sent_bytes).sum());
            }
        }
        let share = |endpoint: u32| OriginShare {
            name: format!("ep{endpoint}"),
            operations: None,
            connections: of_origins.get(endpoint as usize).map(|counters| counters.passive_opens).unwrap_or_default(),
        };
        measured.shares = (0..case.origin.count).map(share).collect();
        measured.samples = samples(seen.begun, &seen.looks);
    }
}

/// The result of a probe. A probe that failed, as it may if its load does, has none.
async fn heard(mut probe: Process) -> Option<Probe> {
    let ended = tokio::time::timeout(PROBE_EXTRA, probe.wait()).await.ok()?.ok()?;
    let text = std::fs::read_to_string(probe.log()).ok()?;
    ended.success().then(|| parse(&text, &Mode::Closed).ok().and_then(probed)).flatten()
}

/// The counters of all namespaces together. If one link joins client and origins, the balancer's is the client's and counts once.
fn net(counted: &[Counters], is_one_link: bool) -> NetCounters {
    let distinct =
        counted.iter().enumerate().filter(|(place, _)| !(is_one_link && *place == 1)).map(|(_, counters)| counters);
    let mut net = NetCounters::default();
    for counters in distinct {
        net.retransmitted += counters.retransmitted;
        net.syn_retransmitted += counters.syn_retransmitted;
        net.listen_drops += counters.listen_drops;
    }
    net.active_opens = counted.first().map(|counters| counters.active_opens).unwrap_or_default();
    net.time_wait = counted.first().map(|counters| counters.time_wait).unwrap_or_default();
    net.conntrack = counted.get(1).filter(|_| !is_one_link).map(|counters| counters.conntrack).unwrap_or_default();
    net
}

/// The rate that a case offers, the same for all contenders.
fn rate_of(run: &Run, case: &Case) -> Result<Option<f64>, String> {
    match &case.load.mode {
        Mode::Closed | Mode::Search { .. } => Ok(None),
        Mode::Open { rate: Rate::Fixed(rate), .. } => Ok(Some(*rate)),
        Mode::Open { rate: Rate::OfSlowest { share, case: base }, .. } => {
            let slowest = slowest(run, base)
                .ok_or_else(|| format!("no contender reached a rate in {base}, on which it depends"))?;
            Ok(Some((slowest * share).max(1.0).round()))
        }
    }
}

/// The rate of the slowest balancer in a case, at the median of its rounds. Paths without a balancer do not count.
fn slowest(run: &Run, base: &str) -> Option<f64> {
    let is_balancer = |id: &str| {
        let instance = run.instance(id);
        let contender =
            instance.and_then(|instance| run.contenders.iter().find(|known| known.name == instance.contender));
        contender.is_some_and(|contender| !matches!(contender.layer, Layer::Direct | Layer::Routed))
    };
    let reached = |id: &String| {
        let cells = run.rounds_of(base, id, 0).filter_map(|cell| cell.measurement.as_ref());
        let rates: Vec<f64> = cells.map(|measurement| measurement.ok_per_s).collect();
        median(&rates).filter(|rate| *rate > 0.0)
    };
    run.case(base)?.instances.iter().filter(|id| is_balancer(id)).filter_map(reached).min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_namespaces_are_added_once() {
        let of = |count| Counters {
            retransmitted: count,
            syn_retransmitted: 1,
            listen_drops: 2,
            active_opens: 10 * count,
            conntrack: 7,
            time_wait: 3,
            ..Counters::default()
        };
        let through = net(&[of(1), of(10), of(100)], false);
        assert_eq!((through.retransmitted, through.syn_retransmitted, through.listen_drops), (111, 3, 6));
        assert_eq!((through.active_opens, through.time_wait, through.conntrack), (10, 3, 7));
        let direct = net(&[of(1), of(1), of(100)], true);
        assert_eq!((direct.retransmitted, direct.conntrack), (101, 0));
        assert_eq!(net(&[], false), NetCounters::default());
    }
}
