//! The busy time of each CPU to the microsecond, and the CPU time of everything that runs on the host.
//!
//! `/proc/stat` counts in ticks of 10 ms, which is 1 % of a window of a second. The kernel itself knows for how many nanoseconds a CPU has
//! been idle, and shows it in `/proc/timer_list`, but adds a period of idleness only when it ends. So each CPU is read by a thread that runs
//! on it: that thread has just ended the last period. What is not idle is busy, with the soft interrupts in it that arrive while nothing
//! else runs, which no account of processes has. Compared with `/proc/stat` over 2 s on a busy host of two CPUs, the two differ by at most
//! 0.4 %, which is what the ticks cannot tell.
//!
//! Without root, or with a kernel that does not show it, there are only the ticks of `environment`.

use std::fs;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::cgroup::Accounts;
use crate::procfs;
use crate::reference::pin;

/// Every reading of a CPU is a reading of the whole file, so on a larger host this takes too long at the edges of a window.
const CPUS_MAX: usize = 64;

/// One reading of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Idle {
    /// When it was read.
    pub at: Instant,
    /// For how long the CPU has been idle since the start of the host.
    pub idle: Duration,
}

/// Reads all of `cpus`, by CPU number; `None` for a CPU that is not among them or cannot be read.
pub(crate) fn idle(cpus: &[u32]) -> Vec<Option<Idle>> {
    if cpus.len() > CPUS_MAX {
        return Vec::new();
    }
    let cpus = cpus.to_vec();
    // A thread of its own, because its affinity changes.
    let reader = std::thread::spawn(move || {
        let mut each = Vec::new();
        for cpu in cpus {
            let place = cpu as usize;
            each.resize(each.len().max(place + 1), None);
            if let (Ok(()), Some(slot)) = (pin(cpu), each.get_mut(place)) {
                let text = fs::read_to_string("/proc/timer_list").unwrap_or_default();
                let at = Instant::now();
                *slot = idle_in(&text, cpu).map(|idle| Idle { at, idle });
            }
        }
        each
    });
    reader.join().unwrap_or_default()
}

/// The idle time of one CPU in the text of `/proc/timer_list`. `None` if the kernel does not count it there.
fn idle_in(text: &str, cpu: u32) -> Option<Duration> {
    let head = format!("cpu: {cpu}");
    let lines = text.lines().skip_while(|line| line.trim() != head).skip(1);
    let lines: Vec<&str> = lines.take_while(|line| !line.starts_with("cpu: ")).collect();
    let value = |name: &str| {
        let line = lines.iter().find_map(|line| line.trim_start().strip_prefix(name))?;
        line.trim_start().strip_prefix(':')?.trim().strip_suffix("nsecs")?.trim().parse::<u64>().ok()
    };
    let idle = value(".idle_sleeptime")?.checked_add(value(".iowait_sleeptime").unwrap_or_default())?;
    // A kernel that ticks while idle leaves it at zero, and has ticks to count.
    (idle > 0).then(|| Duration::from_nanos(idle))
}

/// The share of the time between two readings for which each CPU was busy; empty if one of them is missing.
pub(crate) fn busy_share(before: &[Option<Idle>], after: &[Option<Idle>]) -> Vec<f64> {
    let of = |(before, after): (&Option<Idle>, &Option<Idle>)| match (before, after) {
        (Some(before), Some(after)) => {
            let wall = after.at.duration_since(before.at).as_secs_f64();
            let idle = after.idle.saturating_sub(before.idle).as_secs_f64();
            Some(if wall > 0.0 { (1.0 - idle / wall).clamp(0.0, 1.0) } else { 0.0 })
        }
        // A CPU that is not the run's.
        (None, None) => Some(0.0),
        _ => None,
    };
    let is_any = before.iter().chain(after).any(Option::is_some);
    let shares: Option<Vec<f64>> = before.iter().zip(after).map(of).collect();
    shares.filter(|_| is_any && before.len() == after.len()).unwrap_or_default()
}

/// CPU time of tasks that belong to no component of the run, since the start of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Strangers {
    /// `None` if the kernel does not tell the time of all tasks together.
    pub all: Option<Duration>,
    /// By CPU number; empty if the kernel does not tell it.
    pub by_cpu: Vec<Duration>,
}

/// Reads it: all tasks, less those of the run, of the lab itself, and of the kernel's threads for soft interrupts, which may work for the run.
pub(crate) fn strangers(accounts: &Accounts) -> Strangers {
    let tasks = accounts.tasks();
    let threads = soft_interrupt_threads();
    let (itself, soft) =
        (procfs::cpu_time(std::process::id()), threads.iter().map(|(_, time)| *time).sum::<Duration>());
    let less = |all: Duration, own: Duration| all.saturating_sub(own);
    let by_cpu = tasks.all_by_cpu.iter().zip(&tasks.own_by_cpu).enumerate().map(|(cpu, (all, own))| {
        let soft = threads.iter().filter(|(of, _)| *of as usize == cpu).map(|(_, time)| *time).sum::<Duration>();
        less(less(*all, *own), soft)
    });
    Strangers {
        all: tasks.all.map(|all| less(less(less(all, tasks.own), soft), itself.unwrap_or_default())),
        by_cpu: by_cpu.collect(),
    }
}

/// CPU number and CPU time of each of the kernel's threads for soft interrupts.
fn soft_interrupt_threads() -> Vec<(u32, Duration)> {
    static THREADS: OnceLock<Vec<(u32, u32)>> = OnceLock::new();
    let find = || {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let thread = |entry: fs::DirEntry| {
            let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            Some((name.trim().strip_prefix("ksoftirqd/")?.parse().ok()?, pid))
        };
        entries.filter_map(thread).collect()
    };
    let of = |&(cpu, pid): &(u32, u32)| Some((cpu, procfs::cpu_time(pid).ok()?));
    THREADS.get_or_init(find).iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_kernel() {
        let text = "Timer List Version: v0.10\nnow at 5 nsecs\n\ncpu: 0\n clock 0:\n  .idle_sleeptime : 1500 nsecs\n  .iowait_sleeptime: 500 nsecs\n\
                    jiffies: 4\n\ncpu: 1\n  .idle_sleeptime : 0 nsecs\n\ncpu: 10\n  .idle_sleeptime : 7 nsecs\n";
        let check =
            |cpu, expect: Option<u64>| assert_eq!(idle_in(text, cpu), expect.map(Duration::from_nanos), "{cpu}");
        check(0, Some(2_000));
        check(1, None);
        check(10, Some(7));
        check(2, None);
    }

    #[test]
    fn what_is_not_idle_is_busy() {
        let at = Instant::now();
        let read = |ms: u64, idle_ms: u64| {
            Some(Idle { at: at + Duration::from_millis(ms), idle: Duration::from_millis(idle_ms) })
        };
        assert_eq!(busy_share(&[read(0, 50), None], &[read(1_000, 300), None]), [0.75, 0.0]);
        // The other CPU's reading is missing at one end.
        assert_eq!(busy_share(&[read(0, 50), read(0, 1)], &[read(1_000, 300), None]), [0.0; 0]);
        assert_eq!(busy_share(&[None], &[None]), [0.0; 0]);
        assert_eq!(busy_share(&[], &[]), [0.0; 0]);
    }

    #[test]
    fn a_cpu_that_computes_is_busy() {
        if !crate::host::is_root() {
            crate::host::skip("host_cpu: reading idle times takes root");
            return;
        }
        let cpus = crate::environment::online();
        let before = idle(&cpus);
        if before.iter().all(Option::is_none) {
            crate::host::skip("host_cpu: this kernel does not show idle times");
            return;
        }
        let cpu = cpus[0];
        let worker = std::thread::spawn(move || {
            pin(cpu).unwrap();
            while procfs::own_thread_cpu_time().unwrap() < Duration::from_millis(60) {
                std::hint::black_box((0..100_000_u64).sum::<u64>());
            }
        });
        worker.join().unwrap();
        let after = idle(&cpus);
        let wall = after[cpu as usize].unwrap().at.duration_since(before[cpu as usize].unwrap().at).as_secs_f64();
        let busy = busy_share(&before, &after)[cpu as usize] * wall;
        assert!(busy >= 0.059, "{busy} s");
    }
}
