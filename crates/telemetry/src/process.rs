//! The kernel's figures about this process, under the names that Prometheus client libraries have agreed on.

use std::fs;

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::prometheus::{Kind, Sample};

/// The available figures. What `/proc` does not have (not mounted, or in a sandbox) is left out.
pub(crate) fn samples() -> Vec<Sample> {
    let gauge = |name, help, value| Sample { name, help, kind: Kind::Gauge, labels: Vec::new(), value };
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let cpu_seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
    let mut samples = vec![Sample {
        kind: Kind::Counter,
        ..gauge("process_cpu_seconds_total", "CPU time of all threads, user and system.", cpu_seconds)
    }];
    let mut add = |name, help, value: Option<f64>| samples.extend(value.map(|value| gauge(name, help, value)));
    add("process_resident_memory_bytes", "Resident memory of the process.", resident_bytes());
    let OpenFiles { used, max } = open_files();
    add("process_open_fds", "Open file descriptors.", used.map(|used| used as f64));
    add("process_max_fds", "Limit of open file descriptors.", max.map(|max| max as f64));
    add("process_start_time_seconds", "Start time of the process, in seconds since 1970.", start_time_seconds());
    samples
}

fn resident_bytes() -> Option<f64> {
    // proc_pid_statm(5): the second number is the resident pages.
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as f64)
}

/// The file descriptors of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFiles {
    /// The number of open descriptors; `None` if `/proc` does not say.
    pub used: Option<u64>,
    /// The limit; `None` if there is no limit.
    pub max: Option<u64>,
}

/// The number of open file descriptors, and their limit.
pub fn open_files() -> OpenFiles {
    let max = getrlimit(Resource::Nofile).current;
    let used = match fs::read_dir("/proc/self/fd") {
        // One of them is used to list them.
        Ok(listed) => Some(listed.count().saturating_sub(1) as u64),
        // No descriptor is left to list them with, so all are in use.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => max,
        Err(_) => None,
    };
    OpenFiles { used, max }
}

fn start_time_seconds() -> Option<f64> {
    let host = fs::read_to_string("/proc/stat").ok()?;
    let booted: f64 = host.lines().find_map(|line| line.strip_prefix("btime "))?.parse().ok()?;
    let ticks = start_ticks(&fs::read_to_string("/proc/self/stat").ok()?)?;
    Some(booted + ticks / rustix::param::clock_ticks_per_second() as f64)
}

/// Field 22 of `/proc/PID/stat`, `starttime`.
fn start_ticks(stat: &str) -> Option<f64> {
    // Field 2 is the name of the program in parentheses, which may itself contain spaces and parentheses. Field 3 follows.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(22 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_ticks_of_an_odd_name() {
        let check = |name: &str, expect| {
            let stat = format!("7 ({name}) S 1 5 5 0 -1 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20\n");
            assert_eq!(start_ticks(&stat), expect, "{name}");
        };
        check("steelyard", Some(4242.0));
        check("a) S (b", Some(4242.0));
        assert_eq!(start_ticks("7 (steelyard) S 1"), None);
        assert_eq!(start_ticks(""), None);
    }

    #[test]
    fn this_process() {
        let samples = samples();
        let value = |name| samples.iter().find(|sample| sample.name == name).map(|sample| sample.value);
        assert!(value("process_resident_memory_bytes").unwrap() > 100_000.0);
        assert!(value("process_open_fds").unwrap() >= 1.0);
        // Younger than this code.
        assert!(value("process_start_time_seconds").unwrap() > 1_760_000_000.0);
        assert!(value("process_cpu_seconds_total").is_some());
    }
}
