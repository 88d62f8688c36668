//! The work of the whole machine, and its description. The kernel plane has no process whose CPU time could be read.

use std::fs;
use std::time::Instant;

use crate::bench::table::median;

/// The time that the CPUs of this host spend working: the elapsed time minus the time that they sleep.
///
/// Sleep is measured to the microsecond if a CPU stops its tick (NO_HZ). Work is only sampled by the tick, 100 to 1,000
/// times a second, and a load whose parts wake each other is never sampled fairly. Time that a hypervisor takes counts
/// as neither.
pub struct Meter {
    cpu: Option<usize>,
    begun: Instant,
    rested: Rest,
}

/// The idle time of the observed CPUs since the host started.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rest {
    cpus: usize,
    seconds: f64,
}

impl Meter {
    /// The idle time of one CPU, or of all.
    pub fn start(cpu: Option<usize>) -> Result<Self, String> {
        Ok(Self { cpu, rested: rest(cpu)?, begun: Instant::now() })
    }

    /// Seconds of work since then.
    pub fn busy_seconds(&self) -> Result<f64, String> {
        let passed = self.begun.elapsed().as_secs_f64();
        let rest = rest(self.cpu)?;
        Ok(passed * rest.cpus as f64 - (rest.seconds - self.rested.seconds))
    }

    /// The idle part of the time since then, as a fraction of 1.
    pub fn idle_share(&self) -> Result<f64, String> {
        let passed = self.begun.elapsed().as_secs_f64();
        let rest = rest(self.cpu)?;
        Ok((rest.seconds - self.rested.seconds) / (passed * rest.cpus as f64))
    }
}

fn rest(cpu: Option<usize>) -> Result<Rest, String> {
    let text = fs::read_to_string("/proc/stat").map_err(|error| format!("cannot read /proc/stat: {error}"))?;
    parse_rest(&text, cpu)
}

/// USER_HZ, which is 100 on every architecture that Linux still supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// The times in /proc/stat of idling, of waiting for a disk, and of other virtual machines.
fn parse_rest(text: &str, cpu: Option<usize>) -> Result<Rest, String> {
    let wanted = cpu.map(|cpu| format!("cpu{cpu}"));
    let mut rest = Rest { cpus: 0, seconds: 0.0 };
    for line in text.lines().filter(|line| line.starts_with("cpu")) {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        // The first line is the sum of the others.
        if !wanted.as_ref().map_or(name != "cpu", |wanted| name == wanted) {
            continue;
        }
        let ticks: Vec<f64> = words.map_while(|word| word.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal
        let [_user, _nice, _system, idle, iowait, _irq, _softirq, steal, ..] = ticks.as_slice() else {
            return Err(format!("/proc/stat has the line {line:?}"));
        };
        rest.cpus += 1;
        rest.seconds += (idle + iowait + steal) / TICKS_PER_SECOND;
    }
    if rest.cpus > 0 { Ok(rest) } else { Err(format!("/proc/stat has no {}", wanted.as_deref().unwrap_or("CPU"))) }
}

/// The kernel and the settings that affect the figures, one per line.
pub fn describe() -> Vec<String> {
    let read =
        |path: &str| fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned());
    let jit = read("/proc/sys/net/core/bpf_jit_enable");
    vec![
        format!(
            "kernel {}; {} CPUs",
            read("/proc/sys/kernel/osrelease"),
            std::thread::available_parallelism().map_or(0, usize::from)
        ),
        format!(
            "TCP: cubic in every namespace (the host's own: {}); net.core.netdev_max_backlog {}; BPF JIT {jit}",
            read("/proc/sys/net/ipv4/tcp_congestion_control"),
            read("/proc/sys/net/core/netdev_max_backlog"),
        ),
    ]
}

/// The slope of the straight line through the points: the median of the slopes of all pairs (Theil and Sen). Up to
/// three in ten points may be outliers. `None` if all points have the same position.
pub fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let pairs =
        points.iter().enumerate().flat_map(|(index, one)| points[index + 1..].iter().map(move |other| (one, other)));
    let slopes: Vec<f64> = pairs
        .filter(|(one, other)| one.0 != other.0)
        .map(|(one, other)| (other.1 - one.1) / (other.0 - one.0))
        .collect();
    median(&slopes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_as_rest() {
        let stat = "cpu  100 1 50 900 7 2 30 4 10 0\ncpu0 60 1 20 500 7 1 20 4 10 0\ncpu1 40 0 30 400 0 1 10 0 0 0\nintr 1 2\n";
        let check = |cpu: Option<usize>, cpus: usize, seconds: f64| {
            assert_eq!(parse_rest(stat, cpu), Ok(Rest { cpus, seconds }), "{cpu:?}");
        };
        check(Some(0), 1, 5.11);
        check(Some(1), 1, 4.0);
        check(None, 2, 5.11 + 4.0);
        assert!(parse_rest(stat, Some(2)).is_err());
        assert!(parse_rest("cpu0 1 2 3\n", None).is_err());
        assert!(parse_rest("", None).is_err());
    }

    #[test]
    fn slopes() {
        let check = |points: &[(f64, f64)], expect: Option<f64>| assert_eq!(slope(points), expect, "{points:?}");
        check(&[(0.0, 5.0), (1.0, 7.0), (2.0, 9.0), (4.0, 13.0)], Some(2.0));
        // An outlier.
        check(&[(0.0, 5.0), (1.0, 7.0), (2.0, 9.0), (4.0, 99.0), (4.0, 13.0), (2.0, 9.0)], Some(2.0));
        check(&[(0.0, 1.0), (2.0, 1.0)], Some(0.0));
        check(&[(1.0, 1.0), (1.0, 2.0)], None);
        check(&[(1.0, 1.0)], None);
        check(&[], None);
    }
}
