//! The measurement of one instance under one case in one round.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Judgement;

/// One instance, under one case, in one round. A cell that the host disturbed is measured again: then several have the same round, and the
/// last sound one counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// [`Case::name`](super::Case::name).
    pub case: String,
    /// [`Instance::id`](super::Instance::id).
    pub instance: String,
    /// From 0.
    pub round: u32,
    /// 0, or 1 for the second measurement of the same instance in the same round: the two differ only by noise.
    pub twin: u8,
    /// The block of the round in which it was measured, from 0: some contenders and the reference, within seconds. Ratios are taken within a
    /// block.
    #[serde(default)]
    pub block: u32,
    /// Place in the run, from 0.
    pub order: u32,
    /// When the load was started, in ms since 1970 UTC.
    pub started_unix_ms: u64,
    /// The load's command, as it was run.
    pub command: String,
    /// What was measured; absent when the cell failed.
    pub measurement: Option<Measurement>,
    /// Why there is no measurement.
    pub failure: Option<Failure>,
    /// The assessment of the measurement; absent until it has been judged.
    #[serde(default)]
    pub judgement: Option<Judgement>,
}

/// Why a cell has no measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// One sentence.
    pub why: String,
    /// The last lines of output of the contender or the load.
    pub log: Vec<String>,
}

/// Everything within the window: after ramp and warm-up, before the trim at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Length of the window in seconds.
    pub window_s: f64,
    /// Connections of the load.
    pub connections: u32,
    /// Streams on each connection; 1 if the protocol has none.
    pub streams: u32,
    /// The offered rate in operations a second; absent for a closed loop.
    pub rate: Option<f64>,
    /// Open loop: operations that were due. Absent for a closed loop.
    pub planned: Option<u64>,
    /// Operations that were begun.
    pub sent: u64,
    /// Operations that succeeded: requests, transactions, connections, or messages; for a saturating stream, bytes / 100 KB.
    pub ok: u64,
    /// `ok / window_s`.
    pub ok_per_s: f64,
    /// Errors by kind.
    pub errors: Errors,
    /// Answers by status; empty if the protocol has none.
    #[serde(default)]
    pub statuses: BTreeMap<u16, u64>,
    /// TLS handshakes of the whole load, not only of its window: version, cipher suite, group, and whether it was `full` or `resumed`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub handshakes: BTreeMap<String, u64>,
    /// Bytes that the load received.
    pub received_bytes: u64,
    /// Bytes that the load sent.
    pub sent_bytes: u64,
    /// Bytes that the origin wrote within the same window, by its own count; only for streams.
    #[serde(default)]
    pub origin_sent_bytes: Option<u64>,
    /// Latency from the actual send.
    pub service: Option<Distribution>,
    /// Open loop: latency from the scheduled send.
    pub response: Option<Distribution>,
    /// Time to connect, of connections that were made within the window (ab's `Connect`).
    #[serde(default)]
    pub connect: Option<Distribution>,
    /// From the end of the send to the first byte (ab's `Waiting`).
    #[serde(default)]
    pub waiting: Option<Distribution>,
    /// One way from writing to reading a message, by time stamps of one clock; paced streams only.
    #[serde(default)]
    pub delivery: Option<Distribution>,
    /// What one more connection measured at the same time, at a hundredth of the load's rate; absent if the load itself is one connection,
    /// or has no operations.
    #[serde(default)]
    pub probe: Option<Probe>,
    /// Open loop: how late the load sent, against its schedule, at p99, in µs.
    pub lateness_p99_us: Option<f64>,
    /// Share of the window for which the load's busiest thread was on a CPU, 0 to 1; absent if the load does not report it.
    #[serde(default)]
    pub generator_busiest_thread: Option<f64>,
    /// CPU time within the window, by component.
    pub cpu: Cpu,
    /// The reference loop around the cell; absent in runs of before it existed.
    #[serde(default)]
    pub reference: Option<ReferenceLoop>,
    /// Memory.
    pub memory: Memory,
    /// The kernel's counters.
    pub net: NetCounters,
    /// Connections that the origins accepted within the window. With keep-alive on both sides there are almost none.
    pub origin_connections: Option<u64>,
    /// How much each origin served.
    #[serde(default)]
    pub shares: Vec<OriginShare>,
    /// Load average of one minute, over the number of CPUs, before the cell.
    pub load_average_per_cpu: f64,
    /// Second by second, warm-up included.
    #[serde(default)]
    pub series: Vec<Second>,
    /// CPU by component as it was sampled, warm-up included.
    #[serde(default)]
    pub samples: Vec<Sample>,
}

impl Measurement {
    /// Latency as a user of the case sees it: from the scheduled send if there is a schedule, one way for messages, otherwise from the
    /// send.
    #[must_use]
    pub fn latency(&self) -> Option<&Distribution> {
        self.response.as_ref().or(self.delivery.as_ref()).or(self.service.as_ref())
    }

    /// Every distribution that was measured.
    pub fn distributions(&self) -> impl Iterator<Item = &Distribution> {
        [&self.service, &self.response, &self.connect, &self.waiting, &self.delivery]
            .into_iter()
            .flatten()
            .chain(self.probe.as_ref().map(|probe| &probe.response))
    }

    pub(super) fn distributions_mut(&mut self) -> impl Iterator<Item = &mut Distribution> {
        [&mut self.service, &mut self.response, &mut self.connect, &mut self.waiting, &mut self.delivery]
            .into_iter()
            .flatten()
            .chain(self.probe.as_mut().map(|probe| &mut probe.response))
    }
}

/// One connection of a separate process, at the same time as the load. Its latency does not include the load's own queues.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The offered rate in operations a second.
    pub rate: f64,
    /// Operations that succeeded. They do not count in the measurement's `ok`, but the CPU time includes their cost.
    pub ok: u64,
    /// Latency from the scheduled send.
    pub response: Distribution,
}

/// Errors by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errors {
    /// Connections that could not be made.
    pub connect: u64,
    /// Connections that broke, and answers that were invalid.
    pub request: u64,
    /// No answer in time.
    pub timeout: u64,
    /// Answers with a length different from the first one's (ab's `length`).
    pub length: u64,
    /// Answers with a status of failure; gRPC: a status that is not 0.
    pub status: u64,
    /// Open loop: due, and not sent because no connection was free.
    pub unsent: u64,
}

impl Errors {
    /// All of them. Unsent operations do not count, because they were never begun.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.connect + self.request + self.timeout + self.length + self.status
    }
}

/// A distribution of times, all in µs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// The number of values. If it is 0, everything else is 0.
    pub count: u64,
    /// The minimum.
    pub min_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// Standard deviation.
    pub stdev_us: f64,
    /// Percentiles as pairs of per cent and µs, ascending: 50, 66, 75, 80, 90, 95, 98, 99, 99.9, 99.99.
    pub percentiles: Vec<(f64, f64)>,
    /// The maximum.
    pub max_us: f64,
    /// The complete distribution: HdrHistogram's V2 encoding, deflated, in base64; values in the unit of `histogram_unit_ns`.
    #[serde(default)]
    pub histogram: Option<String>,
    /// Nanoseconds per unit of the histogram's values.
    #[serde(default)]
    pub histogram_unit_ns: Option<u64>,
}

impl Distribution {
    /// The time that `percent` of the values do not exceed, in µs, if it is one of the stored percentiles.
    #[must_use]
    pub fn percentile_us(&self, percent: f64) -> Option<f64> {
        self.percentiles.iter().find(|(known, _)| (known - percent).abs() < 1e-9).map(|&(_, us)| us)
    }
}

/// CPU time within the window, in seconds, by component.
///
/// A kernel without CONFIG_IRQ_TIME_ACCOUNTING charges soft interrupts to the process that was running ([`Environment`](super::Environment)
/// says which kind it is). Then `softirq_s` is a count of ticks and is included in the other figures as well, and for a balancer in the
/// kernel only `busy_s` is accurate to a few per cent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Of the balancer's processes; for a chain, all of them.
    pub balancer_s: f64,
    /// Of the load.
    pub client_s: f64,
    /// Of the origins.
    pub origin_s: f64,
    /// Of all CPUs together, for any purpose: user, nice, system, irq, softirq.
    pub busy_s: f64,
    /// The part of `busy_s` in soft interrupts, as far as the kernel knows.
    pub softirq_s: f64,
    /// Of all CPUs together.
    pub idle_s: f64,
    /// Taken by the hypervisor.
    pub steal_s: f64,
    /// Share of the window for which each CPU was busy, 0 to 1, by CPU number.
    #[serde(default)]
    pub busy_by_cpu: Vec<f64>,
    /// CPUs that the balancer may use.
    pub balancer_cpus: Vec<u32>,
    /// CPUs that the load may use.
    pub client_cpus: Vec<u32>,
    /// CPUs that the origins may use.
    pub origin_cpus: Vec<u32>,
    /// How often a quota throttled a component. There is no quota, so it must be 0.
    pub throttled: u64,
    /// CPU time of tasks that belong to no component: other programs of this host, in seconds. Absent if the kernel does not tell it for all
    /// tasks together.
    #[serde(default)]
    pub strangers_s: Option<f64>,
    /// The same by CPU number, as a share of the window; empty if the kernel does not tell it by CPU.
    #[serde(default)]
    pub strangers_by_cpu: Vec<f64>,
    /// Share of the window for which each CPU would have been busy without the run, by CPU number: [`Environment`](super::Environment) has the
    /// same.
    #[serde(default)]
    pub idle_busy_by_cpu: Vec<f64>,
    /// Whether `busy_s`, `idle_s` and `busy_by_cpu` are exact to the microsecond, and not counts of the kernel's ticks of 10 ms.
    #[serde(default)]
    pub is_exact: bool,
}

impl Cpu {
    /// CPU time that none of the three used: the kernel's own, and other processes'. Never below 0.
    #[must_use]
    pub fn other_s(&self) -> f64 {
        (self.busy_s - self.balancer_s - self.client_s - self.origin_s).max(0.0)
    }

    /// Busy time of all CPUs that the run caused, in seconds: without unrelated tasks, and without what the idle host does.
    #[must_use]
    pub fn caused_s(&self, window_s: f64) -> f64 {
        let idle = self.idle_busy_by_cpu.iter().sum::<f64>() * window_s;
        (self.busy_s - self.strangers_s.unwrap_or_default() - idle).max(0.0)
    }

    /// The same of some CPUs, as far as unrelated tasks are known by CPU.
    #[must_use]
    pub fn caused_on_s(&self, cpus: &[u32], window_s: f64) -> f64 {
        let at = |values: &[f64], cpu: u32| values.get(cpu as usize).copied().unwrap_or_default();
        let of_cpu = |&cpu: &u32| {
            let others = at(&self.strangers_by_cpu, cpu) + at(&self.idle_busy_by_cpu, cpu);
            (at(&self.busy_by_cpu, cpu) - others).max(0.0)
        };
        cpus.iter().map(of_cpu).sum::<f64>() * window_s
    }

    /// Share of the window for which the busiest of `cpus` was busy, 0 to 1; 0 if none is known.
    #[must_use]
    pub fn busiest(&self, cpus: &[u32]) -> f64 {
        let busy = cpus.iter().filter_map(|&cpu| self.busy_by_cpu.get(cpu as usize));
        busy.copied().fold(0.0, f64::max)
    }

    /// Mean share of the window for which `cpus` were busy, 0 to 1; 0 if none is known.
    #[must_use]
    pub fn mean_busy(&self, cpus: &[u32]) -> f64 {
        let busy: Vec<f64> = cpus.iter().filter_map(|&cpu| self.busy_by_cpu.get(cpu as usize).copied()).collect();
        if busy.is_empty() { 0.0 } else { busy.iter().sum::<f64>() / busy.len() as f64 }
    }
}

/// The reference loop before and after a cell, on each CPU of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReferenceLoop {
    /// Before the load was started.
    pub before: Vec<Turn>,
    /// After it ended.
    pub after: Vec<Turn>,
}

/// The mean time that a turn of the reference loop took on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// The number of the CPU.
    pub cpu: u32,
    /// On the clock, in µs.
    pub wall_us: f64,
    /// CPU time, in µs.
    pub cpu_us: f64,
}

/// Memory in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Resident memory of the balancer's processes at the end of the window; 0 for a balancer without a process.
    pub balancer_rss: u64,
    /// The same before its first load.
    pub balancer_rss_idle: u64,
    /// The peak of the balancer's cgroup, including caches and kernel memory; absent if cgroups do not report it.
    pub balancer_peak: Option<u64>,
    /// Memory of the BPF maps that the balancer's processes hold, which is charged to no process's resident memory.
    #[serde(default)]
    pub balancer_maps: u64,
    /// Resident memory of the origins at the end of the window.
    pub origin_rss: u64,
    /// Resident memory of the load at the end of the window.
    pub client_rss: u64,
}

impl Memory {
    /// What the balancer holds: resident memory, and BPF maps.
    #[must_use]
    pub fn balancer_bytes(&self) -> u64 {
        self.balancer_rss + self.balancer_maps
    }
}

/// The kernel's counters within the window, over all namespaces of the cell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetCounters {
    /// TCP segments retransmitted.
    pub retransmitted: u64,
    /// The SYNs among them.
    pub syn_retransmitted: u64,
    /// Connections dropped because a listening socket's queue was full, and other drops at a listening socket.
    pub listen_drops: u64,
    /// Connections opened by clients.
    pub active_opens: u64,
    /// Connections that the kernel tracks in the balancer's namespace at the end.
    pub conntrack: u64,
    /// Local ports of the load's connections in TIME_WAIT at the end.
    pub time_wait: u64,
    /// Packets of soft interrupts by CPU number (`NET_RX` of `/proc/softirqs`): shows whether steering worked.
    #[serde(default)]
    pub net_rx_by_cpu: Vec<u64>,
}

/// How much one origin served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginShare {
    /// Its name.
    pub name: String,
    /// Operations that it answered since the cell began, if the load knows.
    pub operations: Option<u64>,
    /// Connections that it accepted within the window.
    pub connections: u64,
}

/// One second of a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// From the start of the load.
    pub at_s: f64,
    /// Operations that succeeded in it.
    pub ok: u64,
    /// Operations that failed in it.
    pub errors: u64,
    /// Median latency in it, in µs; absent if nothing ended in it.
    pub p50_us: Option<f64>,
    /// p99 in it, in µs.
    pub p99_us: Option<f64>,
    /// Whether it is part of the window.
    pub measured: bool,
}

/// CPU use between two readings, in CPUs (1.0 is one full CPU).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The end of the interval, from the start of the load.
    pub at_s: f64,
    /// The balancer.
    pub balancer: f64,
    /// The load.
    pub client: f64,
    /// The origins.
    pub origin: f64,
    /// All CPUs together, for any purpose.
    pub busy: f64,
}
