//! Watches a load: what each component used during its window.

use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::ChildStderr;

use super::counters::{self, Counters};
use crate::cgroup::{Accounts, Group};
use crate::environment::Ticks;
use crate::host_cpu::{Idle, Strangers, busy_share, idle, strangers};
use crate::process::Process;
use crate::record::{Cpu, Failure, Sample};

/// The time between two samples.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How many lines of a load's standard error are kept.
const LINES_MAX: usize = 20;

/// How many samples are kept: an hour of them.
const LOOKS_MAX: usize = 14_400;

/// The three components.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups<'a> {
    pub balancer: &'a Group,
    pub client: &'a Group,
    pub origin: &'a Group,
    /// What they and all other tasks used.
    pub accounts: &'a Accounts,
    /// The CPUs of the run.
    pub cpus: &'a [u32],
}

/// What each component has used up to one moment.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub at: Instant,
    pub balancer: Duration,
    pub client: Duration,
    pub origin: Duration,
    pub ticks: Ticks,
}

impl Look {
    fn take(groups: Groups<'_>) -> Self {
        Self {
            at: Instant::now(),
            balancer: groups.balancer.cpu_time(),
            client: groups.client.cpu_time(),
            origin: groups.origin.cpu_time(),
            ticks: Ticks::now(),
        }
    }
}

/// One end of the window.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    pub look: Look,
    pub idle: Vec<Option<Idle>>,
    pub strangers: Strangers,
    pub throttled: u64,
    pub counters: Vec<Counters>,
    pub net_rx: Vec<u64>,
    pub balancer_rss: u64,
    pub balancer_maps: u64,
    pub client_rss: u64,
    pub origin_rss: u64,
}

/// What was seen while a load ran.
#[derive(Debug)]
pub(super) struct Seen {
    pub begun: Instant,
    pub open: Edge,
    pub closed: Edge,
    pub looks: Vec<Look>,
}

/// Watches a load to its end.
///
/// # Errors
/// If it failed, wrote no report, or took longer than `patience` and was killed.
pub(super) async fn watch(
    load: &mut Process,
    groups: Groups<'_>,
    namespaces: &[Option<String>],
    patience: Duration,
) -> Result<Seen, Failure> {
    let begun = Instant::now();
    let errors = load.take_errors().ok_or_else(|| load.failure("has no standard error"))?;
    let mut watcher = Watcher { groups, namespaces, open: None, closed: None, looks: Vec::new(), lines: Vec::new() };
    let outcome = tokio::time::timeout(patience, watcher.run(load, errors)).await;
    let Watcher { open, closed, looks, lines, .. } = watcher;
    let failure = |why: String| Failure { why, log: lines.clone() };
    match outcome {
        Err(_) => {
            load.kill().await;
            Err(failure(format!("the load did not end within {} s", patience.as_secs())))
        }
        Ok(Err(error)) => Err(failure(format!("cannot read from the load: {error}"))),
        Ok(Ok(is_good)) => match (open, closed) {
            (Some(open), Some(closed)) if is_good => Ok(Seen { begun, open, closed, looks }),
            (Some(_), Some(_)) => Err(failure(unanswered(&std::fs::read_to_string(load.log()).unwrap_or_default()))),
            _ => Err(failure("the load ended before its measuring window".to_owned())),
        },
    }
}

/// Why a load has failed that ran to its end, from its report: each status and each reason, with its count.
fn unanswered(report: &str) -> String {
    let report: serde_json::Value = serde_json::from_str(report).unwrap_or_default();
    let counts = |name: &str, label: &str| -> Vec<String> {
        let counts = report.get(name).and_then(serde_json::Value::as_object).into_iter().flatten();
        counts.map(|(what, count)| format!("{label}{what} × {count}")).collect()
    };
    let why = [counts("statuses", "status "), counts("reasons", "")].concat().join(", ");
    let sent = report.get("sent").and_then(serde_json::Value::as_u64).unwrap_or_default();
    match why.is_empty() {
        true => "nothing that the load sent was answered".to_owned(),
        false => format!("nothing that the load sent was answered as it should be: {sent} sent, {why}"),
    }
}

struct Watcher<'a> {
    groups: Groups<'a>,
    namespaces: &'a [Option<String>],
    open: Option<Edge>,
    closed: Option<Edge>,
    looks: Vec<Look>,
    lines: Vec<String>,
}

impl Watcher<'_> {
    /// Returns whether the load reported success at its end.
    async fn run(&mut self, load: &mut Process, errors: ChildStderr) -> std::io::Result<bool> {
        let mut lines = BufReader::new(errors).lines();
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                line = lines.next_line() => match line? {
                    Some(line) => self.hear(line)?,
                    None => break,
                },
                _ = tick.tick() => {
                    if self.looks.len() < LOOKS_MAX {
                        self.looks.push(Look::take(self.groups));
                    }
                }
            }
        }
        Ok(load.wait().await?.success())
    }

    fn hear(&mut self, line: String) -> std::io::Result<()> {
        match line.as_str() {
            // A search for capacity has many windows. The last one belongs to its report.
            "window open" => {
                self.open = Some(self.edge()?);
                self.closed = None;
            }
            "window closed" => self.closed = Some(self.edge()?),
            _ if self.lines.len() < LINES_MAX => self.lines.push(line),
            _ => {}
        }
        Ok(())
    }

    fn edge(&self) -> std::io::Result<Edge> {
        // CPU first, because the rest takes a millisecond.
        let look = Look::take(self.groups);
        let idle = idle(self.groups.cpus);
        let strangers = strangers(self.groups.accounts);
        let throttled = self.groups.accounts.throttled();
        Ok(Edge {
            look,
            idle,
            strangers,
            throttled,
            counters: counters::read(self.namespaces)?,
            net_rx: counters::net_rx(),
            balancer_rss: self.groups.balancer.resident(),
            balancer_maps: self.groups.balancer.maps_bytes(),
            client_rss: self.groups.client.resident(),
            origin_rss: self.groups.origin.resident(),
        })
    }
}

/// CPU time between the edges of a window: exact if the kernel tells for how long each CPU was idle, otherwise by its ticks.
pub(super) fn cpu(open: &Edge, closed: &Edge) -> Cpu {
    let mut cpu = in_ticks(&open.look, &closed.look);
    let wall_s = closed.look.at.duration_since(open.look.at).as_secs_f64();
    let exact = busy_share(&open.idle, &closed.idle);
    if !exact.is_empty() {
        // The hypervisor's share is known in ticks only. It is neither busy nor idle.
        let of_cpu = |place: usize| {
            let of = |ticks: &Ticks| ticks.each.get(place).map_or(0, |ticks| ticks.steal);
            of(&closed.look.ticks).saturating_sub(of(&open.look.ticks)) as f64 / Ticks::per_second()
        };
        let share = |(place, busy): (usize, &f64)| (busy - of_cpu(place) / wall_s).max(0.0);
        cpu.busy_by_cpu = exact.iter().enumerate().map(share).collect();
        cpu.busy_s = cpu.busy_by_cpu.iter().sum::<f64>() * wall_s;
        let cpus = open.idle.iter().flatten().count() as f64;
        cpu.idle_s = (cpus * wall_s - cpu.busy_s - cpu.steal_s).max(0.0);
        cpu.is_exact = true;
    }
    let since = |after: Duration, before: Duration| after.saturating_sub(before).as_secs_f64();
    cpu.strangers_s = closed.strangers.all.zip(open.strangers.all).map(|(after, before)| since(after, before));
    let both = closed.strangers.by_cpu.iter().zip(&open.strangers.by_cpu);
    cpu.strangers_by_cpu = both.map(|(&after, &before)| since(after, before) / wall_s).collect();
    cpu
}

/// CPU time between two samples.
fn in_ticks(open: &Look, closed: &Look) -> Cpu {
    let seconds = |after: Duration, before: Duration| after.saturating_sub(before).as_secs_f64();
    let ticks = |after: u64, before: u64| after.saturating_sub(before) as f64 / Ticks::per_second();
    let (before, after) = (open.ticks.total, closed.ticks.total);
    let busy_of = |(before, after): (&crate::environment::CpuTicks, &crate::environment::CpuTicks)| {
        let busy = after.busy.saturating_sub(before.busy) as f64;
        let all =
            busy + after.idle.saturating_sub(before.idle) as f64 + after.steal.saturating_sub(before.steal) as f64;
        if all > 0.0 { busy / all } else { 0.0 }
    };
    Cpu {
        balancer_s: seconds(closed.balancer, open.balancer),
        client_s: seconds(closed.client, open.client),
        origin_s: seconds(closed.origin, open.origin),
        busy_s: ticks(after.busy, before.busy),
        softirq_s: ticks(after.softirq, before.softirq),
        idle_s: ticks(after.idle, before.idle),
        steal_s: ticks(after.steal, before.steal),
        busy_by_cpu: open.ticks.each.iter().zip(&closed.ticks.each).map(busy_of).collect(),
        ..Cpu::default()
    }
}

/// CPU use between consecutive samples.
pub(super) fn samples(begun: Instant, looks: &[Look]) -> Vec<Sample> {
    let sample = |pair: &[Look]| {
        let [before, after] = pair else { return None };
        let wall = after.at.duration_since(before.at).as_secs_f64();
        let share = |after: Duration, before: Duration| after.saturating_sub(before).as_secs_f64() / wall;
        (wall > 0.0).then(|| Sample {
            at_s: after.at.duration_since(begun).as_secs_f64(),
            balancer: share(after.balancer, before.balancer),
            client: share(after.client, before.client),
            origin: share(after.origin, before.origin),
            busy: after.ticks.total.busy.saturating_sub(before.ticks.total.busy) as f64 / Ticks::per_second() / wall,
        })
    };
    looks.windows(2).filter_map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_without_a_good_answer_says_what_it_got() {
        let check = |report: &str, expect: &str| assert_eq!(unanswered(report), expect);
        check("", "nothing that the load sent was answered");
        check(
            r#"{"sent": 7, "statuses": {"502": 5}, "reasons": {"connect: Connection refused": 2}}"#,
            "nothing that the load sent was answered as it should be: 7 sent, status 502 × 5, connect: Connection refused × 2",
        );
    }
    use crate::environment::CpuTicks;

    fn look(at: Instant, seconds: u64) -> Look {
        let time = Duration::from_secs(seconds);
        let ticks = CpuTicks { busy: seconds * 150, softirq: seconds * 10, idle: seconds * 50, steal: 0 };
        let busy = CpuTicks { busy: seconds * 90, idle: seconds * 10, ..CpuTicks::default() };
        Look {
            at,
            balancer: time,
            client: time * 2,
            origin: time / 2,
            ticks: Ticks { total: ticks, each: vec![busy, busy] },
        }
    }

    #[test]
    fn cpu_is_what_lies_between_two_looks() {
        let now = Instant::now();
        let (open, closed) = (look(now, 1), look(now + Duration::from_secs(4), 3));
        let edge = |look: &Look, idle: &[Option<Idle>], strangers: u64| Edge {
            look: look.clone(),
            idle: idle.to_vec(),
            strangers: Strangers {
                all: Some(Duration::from_millis(strangers)),
                by_cpu: vec![Duration::from_millis(strangers / 2); 2],
            },
            throttled: 0,
            counters: Vec::new(),
            net_rx: Vec::new(),
            balancer_rss: 0,
            balancer_maps: 0,
            client_rss: 0,
            origin_rss: 0,
        };
        let cpu = cpu(&edge(&open, &[], 100), &edge(&closed, &[], 900));
        assert!(!cpu.is_exact && cpu.strangers_s == Some(0.8) && cpu.strangers_by_cpu == [0.1, 0.1], "{cpu:?}");
        let hz = Ticks::per_second();
        assert_eq!((cpu.balancer_s, cpu.client_s, cpu.origin_s), (2.0, 4.0, 1.0));
        assert_eq!((cpu.busy_s, cpu.softirq_s, cpu.idle_s), (300.0 / hz, 20.0 / hz, 100.0 / hz));
        assert_eq!(cpu.busy_by_cpu, [0.9, 0.9]);
        let read = |look: &Look, ms| Some(Idle { at: look.at, idle: Duration::from_millis(ms) });
        let idle = |look: &Look, one, other| [read(look, one), read(look, other)];
        let exact = self::cpu(&edge(&open, &idle(&open, 10, 20), 0), &edge(&closed, &idle(&closed, 1_010, 20), 0));
        assert!(exact.is_exact && exact.busy_by_cpu == [0.75, 1.0], "{exact:?}");
        assert_eq!((exact.busy_s, exact.idle_s, exact.balancer_s), (7.0, 1.0, 2.0));
        let samples = samples(now, &[open.clone(), closed.clone(), closed]);
        // Two samples at the same moment give nothing.
        assert_eq!(samples.len(), 1);
        assert_eq!((samples[0].at_s, samples[0].balancer, samples[0].client), (4.0, 0.5, 1.0));
    }
}
