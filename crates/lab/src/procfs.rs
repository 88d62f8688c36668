//! The cost of a process in the kernel's own account (proc(5)).
//!
//! It reads CPU time and resident memory of a process by its id. It does not cover network and softirq time: a kernel without
//! CONFIG_IRQ_TIME_ACCOUNTING charges softirqs to the process that was running. These figures are good for comparisons on one host, but not
//! as absolute costs.

use std::fs;
use std::io;
use std::time::Duration;

/// CPU time that `pid` has used, all threads, user and system together.
///
/// `/proc/PID/task/*/schedstat` has it in ns, but loses the time of threads that have ended. `/proc/PID/stat` keeps that time, but in ticks
/// of 10 ms, which is too coarse for the cost of a request over a short run. This returns the larger of the two: exact for a process whose
/// threads stay, and at most two ticks too low for any other.
///
/// # Errors
/// If the process is gone, or the kernel was built without CONFIG_SCHED_INFO.
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    Ok(of_living_threads(pid)?.max(of_all_threads(pid)?))
}

/// CPU time that the calling thread has used, in ns, from `/proc/thread-self/schedstat`.
///
/// # Errors
/// If the kernel was built without CONFIG_SCHED_INFO.
pub fn own_thread_cpu_time() -> io::Result<Duration> {
    Ok(Duration::from_nanos(first_number(&fs::read_to_string("/proc/thread-self/schedstat")?)?))
}

/// CPU time of this process's children that have ended and been waited for, and of theirs, in ticks of 10 ms.
///
/// # Errors
/// None in practice: a process may read its own files.
pub fn ended_children_cpu_time() -> io::Result<Duration> {
    // The 14th and 15th field behind the name: cutime and cstime.
    ticks_of(&fs::read_to_string("/proc/self/stat")?, 13)
}

fn of_living_threads(pid: u32) -> io::Result<Duration> {
    let mut total_ns = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        match fs::read_to_string(task?.path().join("schedstat")) {
            Ok(text) => total_ns += first_number(&text)?,
            // A thread may end between the listing and the read.
            Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Duration::from_nanos(total_ns))
}

fn of_all_threads(pid: u32) -> io::Result<Duration> {
    // The 12th and 13th field behind the name: utime and stime.
    ticks_of(&fs::read_to_string(format!("/proc/{pid}/stat"))?, 11)
}

/// The sum of two times in the stat line, after the given number of fields behind the name.
fn ticks_of(stat: &str, fields_before: usize) -> io::Result<Duration> {
    // The second field is the name in brackets, which may contain anything.
    let (_, fields) = stat.rsplit_once(')').ok_or_else(|| malformed("the stat file of the process has no name"))?;
    let mut fields = fields.split_ascii_whitespace().skip(fields_before);
    let ticks = first_number(fields.next().unwrap_or_default())? + first_number(fields.next().unwrap_or_default())?;
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_nanos(ticks * 1_000_000_000 / ticks_per_second.max(1)))
}

/// The error of the kernel if a thread ends while its file is open.
const ESRCH: i32 = 3;

/// `pid` and all processes that descend from it, as far as their parents live.
pub(crate) fn with_descendants(pid: u32) -> Vec<u32> {
    /// A process tree that is deeper or wider is not one of the lab's.
    const PROCESSES_MAX: usize = 10_000;
    let mut found = vec![pid];
    let mut place = 0;
    while let Some(&next) = found.get(place).filter(|_| place < PROCESSES_MAX) {
        for task in fs::read_dir(format!("/proc/{next}/task")).into_iter().flatten().flatten() {
            let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(text.split_ascii_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        }
        place += 1;
    }
    found
}

/// The ids of the BPF maps that `pid` has open, with the memory of each in bytes (`memlock` of `/proc/PID/fdinfo`).
pub(crate) fn bpf_maps(pid: u32) -> Vec<(u64, u64)> {
    let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    files.filter_map(|file| bpf_map(&fs::read_to_string(file.path()).ok()?)).collect()
}

fn bpf_map(fdinfo: &str) -> Option<(u64, u64)> {
    let value = |name: &str| {
        let line = fdinfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().parse::<u64>().ok()
    };
    // Programs have `memlock` too, and no `map_id`.
    Some((value("map_id")?, value("memlock")?))
}

/// Resident memory of `pid` in bytes: `VmRSS` of `/proc/PID/status`.
///
/// # Errors
/// If the process is gone, or has no memory (a zombie, a kernel thread).
pub fn resident_bytes(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let line = line.ok_or_else(|| malformed("the status file of the process has no VmRSS"))?;
    // proc(5): always in kB, which means 1,024 bytes.
    Ok(first_number(line)? * 1024)
}

fn first_number(text: &str) -> io::Result<u64> {
    let number = text.split_ascii_whitespace().next().and_then(|word| word.parse().ok());
    number.ok_or_else(|| malformed("expected a number"))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_cpu_time_grows_with_work_in_any_thread() {
        let pid = std::process::id();
        let before = cpu_time(pid).unwrap();
        let (done, may_end) = std::sync::mpsc::channel::<()>();
        let (worked, has_worked) = std::sync::mpsc::channel();
        let worker = std::thread::spawn(move || {
            // Uses CPU until the kernel has accounted for it. Other threads of this test may be busy too, but this one alone is enough.
            while cpu_time(pid).unwrap() < before + Duration::from_millis(20) {
                std::hint::black_box((0..100_000_u64).sum::<u64>());
            }
            worked.send(()).unwrap();
            may_end.recv().unwrap_err();
        });
        has_worked.recv().unwrap();
        assert!(cpu_time(pid).unwrap() >= before + Duration::from_millis(20));
        drop(done);
        worker.join().unwrap();
    }

    #[test]
    fn the_time_of_ended_threads_is_kept() {
        let pid = std::process::id();
        let before = cpu_time(pid).unwrap();
        let thread = std::thread::spawn(move || {
            while own_thread_cpu_time().unwrap() < Duration::from_millis(100) {
                std::hint::black_box((0..100_000_u64).sum::<u64>());
            }
        });
        thread.join().unwrap();
        // 100 ms, minus the two ticks that the account of ended threads may lack, and a third for the position of `before`.
        assert!(cpu_time(pid).unwrap() >= before + Duration::from_millis(70));
    }

    #[test]
    fn maps_are_told_from_other_files() {
        let map = "pos:\t0\nflags:\t02000002\nmap_type:\t1\nkey_size:\t16\nmemlock:\t8192\nmap_id:\t77\nfrozen:\t0\n";
        assert_eq!(bpf_map(map), Some((77, 8192)));
        assert_eq!(bpf_map("pos:\t0\nprog_type:\t3\nmemlock:\t4096\nprog_id:\t9\n"), None);
        assert_eq!(bpf_map("pos:\t0\nflags:\t02\n"), None);
    }

    #[test]
    fn descendants_are_found() {
        let mut child = std::process::Command::new("/bin/sh").args(["-c", "sleep 600 & wait"]).spawn().unwrap();
        let found = loop {
            let found = with_descendants(child.id());
            if found.len() > 1 {
                break found;
            }
            std::thread::yield_now();
        };
        assert!(found.len() == 2 && with_descendants(std::process::id()).contains(&found[1]), "{found:?}");
        found.iter().for_each(|&pid| crate::leftovers::end_process(pid));
        child.wait().unwrap();
    }

    #[test]
    fn times_of_a_stat() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 1 2 3 4 100 20 30 6 20 0 1 0";
        for (before, ticks) in [(11, 120), (13, 36)] {
            let seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
            assert!((ticks_of(stat, before).unwrap().as_secs_f64() - seconds).abs() < 1e-6);
        }
        assert!(ticks_of("7 a", 11).is_err());
    }

    #[test]
    fn own_memory_is_at_least_what_was_just_touched() {
        let touched = std::hint::black_box(vec![1_u8; 32 << 20]);
        assert!(resident_bytes(std::process::id()).unwrap() >= touched.len() as u64);
    }

    #[test]
    fn a_process_that_is_not_there() {
        // Above the largest pid_max that a kernel allows (2^22).
        assert!(cpu_time(u32::MAX).is_err());
        assert!(resident_bytes(u32::MAX).is_err());
    }
}
