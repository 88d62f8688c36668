//! The memory of the process: how much it uses, how close that is to its limit, and when free memory goes back to the system.
//!
//! The figure is the resident anonymous memory (`RssAnon` of proc_pid_status(5)). It excludes the pages of the program, and what the kernel
//! holds for sockets and pipes. It is read ten times a second ([`look`]). Buffers allocated between two readings are added to it, because a
//! burst fills hundreds of MiB of them in that time; so is the memory that accepted work will need.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize};

use crate::clock;

/// Time between two readings of the memory of the process.
const LOOK_EVERY_MS: u64 = 100;

/// Less than this is not worth giving back.
const WORTH_BYTES: usize = 1024 * 1024;

/// Bytes of buffers that were freed since memory was last given back.
static FREED: AtomicUsize = AtomicUsize::new(0);

/// The limit in bytes; 0 is no limit.
static BYTES_MAX: AtomicU64 = AtomicU64::new(0);

/// Workers that share the limit.
static WORKERS: AtomicU64 = AtomicU64::new(1);

/// Bytes in use: the last reading, plus what was allocated and minus what was freed since. An allocation may be counted before a reading
/// and its buffer mapped after it, so the figure may be off by one buffer until the next reading, and may be negative.
static USED: AtomicI64 = AtomicI64::new(0);

/// Bytes that accepted work will still need.
static PROMISED: AtomicI64 = AtomicI64::new(0);

/// The time of the last reading, in milliseconds.
static LOOKED_MS: AtomicU64 = AtomicU64::new(0);

/// Records that a buffer of `bytes` was allocated.
pub fn note_allocated(bytes: usize) {
    USED.fetch_add(bytes as i64, Relaxed);
}

/// Records that a buffer of `bytes` was freed. A burst leaves many of them.
pub fn note_freed(bytes: usize) {
    FREED.fetch_add(bytes, Relaxed);
    USED.fetch_sub(bytes as i64, Relaxed);
}

/// Records that accepted work will need `bytes` more. A negative number takes back what the work now has or no longer needs. Many requests
/// are accepted before the response to the first of them arrives.
pub fn note_promised(bytes: i64) {
    PROMISED.fetch_add(bytes, Relaxed);
}

/// How close the process is to its memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Below three quarters of the limit.
    Low,
    /// From three quarters on, buffers stay small, and a connection is not read while it holds many bytes that nothing takes.
    High,
    /// From seven eighths on, no new work is accepted. The last eighth is for work under way, and for memory that no reading has seen yet.
    Full,
}

/// Sets the limit in bytes, with [`default_bytes_max`] for `None`, and the number of workers that share it.
pub fn limit(bytes_max: Option<u64>, workers: usize) {
    WORKERS.store(workers.max(1) as u64, Relaxed);
    BYTES_MAX.store(bytes_max.unwrap_or_else(default_bytes_max), Relaxed);
}

/// The limit in bytes; `None` is no limit.
pub fn bytes_max() -> Option<u64> {
    Some(BYTES_MAX.load(Relaxed)).filter(|bytes| *bytes > 0)
}

/// A worker's share of [`bytes_max`].
pub fn bytes_max_of_worker() -> Option<u64> {
    bytes_max().map(|bytes| bytes / WORKERS.load(Relaxed))
}

/// Bytes that the process uses now or needs for accepted work.
pub fn bytes_used() -> u64 {
    (USED.load(Relaxed) + PROMISED.load(Relaxed)).max(0) as u64
}

/// How close the process is to its memory limit now.
pub fn pressure() -> Pressure {
    pressure_of(bytes_used(), BYTES_MAX.load(Relaxed))
}

fn pressure_of(used: u64, bytes_max: u64) -> Pressure {
    match used {
        _ if bytes_max == 0 => Pressure::Low,
        _ if used >= bytes_max - bytes_max / 8 => Pressure::Full,
        _ if used >= bytes_max - bytes_max / 4 => Pressure::High,
        _ => Pressure::Low,
    }
}

/// Reads how much memory the process uses, unless that happened within `LOOK_EVERY_MS`. All workers call it at about the same rate, so that
/// a busy one does not delay the reading. It takes a few microseconds, and no lock that a page fault holds.
pub fn look() {
    let (now_ms, before_ms) = (clock::now_ms(), LOOKED_MS.load(Relaxed));
    let is_due = now_ms >= before_ms.saturating_add(LOOK_EVERY_MS) || before_ms == 0;
    if is_due
        && LOOKED_MS.compare_exchange(before_ms, now_ms.max(1), Relaxed, Relaxed).is_ok()
        && let Some(bytes) = anonymous_bytes()
    {
        USED.store(i64::try_from(bytes).unwrap_or(i64::MAX), Relaxed);
    }
}

/// The resident anonymous memory of the process.
fn anonymous_bytes() -> Option<u64> {
    static STATM: OnceLock<Option<File>> = OnceLock::new();
    let statm = STATM.get_or_init(|| File::open("/proc/self/statm").ok()).as_ref()?;
    let mut text = [0; 128];
    let count = statm.read_at(&mut text, 0).ok()?;
    // proc_pid_statm(5): the second number is the resident pages; the third is the number of those that belong to files.
    let mut pages =
        std::str::from_utf8(text.get(..count)?).ok()?.split(' ').skip(1).map_while(|pages| pages.parse().ok());
    let (resident, of_files): (u64, u64) = (pages.next()?, pages.next()?);
    Some(resident.saturating_sub(of_files) * rustix::param::page_size() as u64)
}

/// Three quarters of the memory that the process can have: the host's memory or the limit of its control group, whichever is less. 0 if
/// neither is known.
pub fn default_bytes_max() -> u64 {
    let host = host_bytes(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group_bytes_max(&groups, Path::new("/sys/fs/cgroup"));
    host.into_iter().chain(group).min().map_or(0, |bytes| bytes - bytes / 4)
}

fn host_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The smallest limit of the process's control group and its ancestors (cgroup v2). `groups` is the content of /proc/self/cgroup, and
/// `root` is the mount point.
fn group_bytes_max(groups: &str, root: &Path) -> Option<u64> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limit = |group: &Path| fs::read_to_string(root.join(group).join("memory.max")).ok()?.trim().parse::<u64>().ok();
    Path::new(group).ancestors().filter_map(limit).min()
}

/// Allocations from this size on have pages of their own, which go back to the system when they are freed. More than any buffer of a
/// connection has, and less than the tables that are made of thousands of routes.
#[cfg(target_env = "gnu")]
const PAGES_OF_ITS_OWN_BYTES: libc::c_int = 256 * 1024;

/// Free memory at the end of the heap that is not given back with every deallocation.
#[cfg(target_env = "gnu")]
const SPARE_BYTES: libc::c_int = 8 * 1024 * 1024;

/// Sets how the allocator treats large pieces; call it before the first thread is started.
///
/// glibc raises the size from which a piece has its own pages to the largest one that was ever freed, up to 32 MiB. Then tables of a
/// megabyte are made between small pieces, and leave holes: with 5,000 routes of which ten change each second, the process takes 61 MiB
/// that way, and 55 MiB with a fixed size. A request costs the same (18 bytes over HTTP/1.1 21.8 and 21.2 us of CPU time, over HTTP/2 16.4
/// and 16.1, medians of seven rounds of 20,000 that differ by more).
pub fn configure() {
    // SAFETY: mallopt(3) only sets parameters of the allocator, under its own lock.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, PAGES_OF_ITS_OWN_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, SPARE_BYTES);
    }
}

/// Gives back memory after bursts, if it is worth it: otherwise the allocator keeps free memory between pieces in use for ever. Call it
/// about once a second, and never on a worker. While memory is short it is always worth it, because free memory that was not given back
/// counts as used.
pub fn give_back_after_bursts() {
    if FREED.load(Relaxed) >= WORTH_BYTES || pressure() > Pressure::Low {
        FREED.store(0, Relaxed);
        give_back();
    }
}

/// Gives back memory that the allocator holds and nothing uses. Otherwise the allocator keeps it for ever after a large one-time job, such
/// as reading a whole cluster. This takes milliseconds; call it seldom, and never on a worker.
pub fn give_back() {
    // SAFETY: malloc_trim(3) has no preconditions: it takes the allocator's own locks, and touches nothing that is in use.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_grows_with_what_is_used() {
        let check = |used, bytes_max, expect| assert_eq!(pressure_of(used, bytes_max), expect, "{used} of {bytes_max}");
        check(599, 800, Pressure::Low);
        check(600, 800, Pressure::High);
        check(699, 800, Pressure::High);
        check(700, 800, Pressure::Full);
        check(u64::MAX, 0, Pressure::Low);
    }

    #[test]
    fn this_process() {
        let before = anonymous_bytes().unwrap();
        let room = vec![1_u8; 64 << 20];
        let grown = anonymous_bytes().unwrap() - before;
        // Other tests of this process allocate and free at the same time.
        assert!(grown > 48 << 20 && grown < 96 << 20, "{grown} of {}", room.len());
        assert!(default_bytes_max() > 10 << 20);
    }

    #[test]
    fn the_least_limit_of_all_groups_counts() {
        let root = std::env::temp_dir().join(format!("steelyard-groups-{}", std::process::id()));
        let put = |group: &str, text: &str| {
            fs::create_dir_all(root.join(group)).unwrap();
            fs::write(root.join(group).join("memory.max"), text).unwrap();
        };
        put("a", "1000\n");
        put("a/b", "max\n");
        put("a/b/c", "2000\n");
        let check = |groups, expect| assert_eq!(group_bytes_max(groups, &root), expect, "{groups}");
        check("0::/a/b\n", Some(1000));
        check("0::/a/b/c\n", Some(1000));
        check("0::/elsewhere\n", None);
        check("4:cpu,memory:/a\n1:name=systemd:/a\n", None);
        check("", None);
        // This is how a process in a container sees its own group.
        put("", "700\n");
        check("0::/\n", Some(700));
        check("0::/../a\n", Some(700));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_hosts_memory() {
        assert_eq!(host_bytes("MemTotal:       16316412 kB\nMemFree: 1 kB\n"), Some(16_316_412 * 1024));
        assert_eq!(host_bytes(""), None);
    }
}
