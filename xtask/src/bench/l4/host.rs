//! What the whole machine did, and what it is: the kernel plane has no process whose time could be read.

use std::fs;

/// Time that any CPU of this host spent working, in seconds. What a hypervisor took is in neither sum.
pub fn busy_seconds() -> Result<f64, String> {
    let text = fs::read_to_string("/proc/stat").map_err(|error| format!("cannot read /proc/stat: {error}"))?;
    parse_busy(&text).map(|ticks| ticks / TICKS_PER_SECOND)
}

/// USER_HZ, which is 100 on every architecture that Linux still runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// The ticks in /proc/stat but those of idling, waiting, and other people's machines.
fn parse_busy(text: &str) -> Result<f64, String> {
    let line = text.lines().next().and_then(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; the guests' time is in user and nice already.
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = ticks.as_slice() else {
        return Err(format!("/proc/stat begins with {line:?}"));
    };
    Ok(user + nice + system + irq + softirq)
}

/// The kernel and the settings that the figures depend on, a line each.
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

/// The slope of the straight line that fits the points best (least squares); `None` for fewer than two.
pub fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let (sum_x, sum_y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0, y + point.1));
    let (mean_x, mean_y) = (sum_x / count, sum_y / count);
    let (covariance, variance) = points.iter().fold((0.0, 0.0), |(covariance, variance), (x, y)| {
        (covariance + (x - mean_x) * (y - mean_y), variance + (x - mean_x) * (x - mean_x))
    });
    (variance > 0.0).then(|| covariance / variance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_as_work() {
        let stat = "cpu  100 1 50 900 7 2 30 4 10 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(parse_busy(stat), Ok(183.0));
        assert!(parse_busy("cpu  1 2 3\n").is_err());
        assert!(parse_busy("").is_err());
    }

    #[test]
    fn slopes() {
        let check = |points: &[(f64, f64)], expect: Option<f64>| assert_eq!(slope(points), expect, "{points:?}");
        check(&[(0.0, 5.0), (1.0, 7.0), (2.0, 9.0), (4.0, 13.0)], Some(2.0));
        check(&[(0.0, 1.0), (2.0, 1.0)], Some(0.0));
        check(&[(0.0, 0.0), (1.0, 3.0), (2.0, 0.0)], Some(0.0));
        check(&[(1.0, 1.0), (1.0, 2.0)], None);
        check(&[(1.0, 1.0)], None);
        check(&[], None);
    }
}
