//! CPU time and memory by component, from control groups.
//!
//! There is a group for each component (load, origins, each balancer), in whichever version of cgroups this host has. It counts CPU time to
//! the microsecond, whichever processes and threads come and go, and the peak of memory. If no group can be made, for example without root,
//! processes are counted one by one. Groups set no limits: a quota would show as latency, so CPUs are assigned by affinity instead.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::leftovers::remove_cgroup;
use crate::procfs;
use crate::record::Cgroups;
use crate::topology::PREFIX;

/// The period of a quota: the kernel's default.
const QUOTA_PERIOD_US: u32 = 100_000;

/// The mount points of the hierarchies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Mounts {
    /// Version 1, `cpuacct`.
    cpuacct: Option<PathBuf>,
    /// Version 1, `cpu`, which has quotas; often the same as `cpuacct`.
    cpu: Option<PathBuf>,
    /// Version 1, `memory`.
    memory: Option<PathBuf>,
    /// Version 2.
    unified: Option<PathBuf>,
}

impl Mounts {
    fn of_this_host() -> Self {
        Self::parse(&fs::read_to_string("/proc/self/mounts").unwrap_or_default())
    }

    fn parse(mounts: &str) -> Self {
        let mut found = Self::default();
        for line in mounts.lines() {
            let mut fields = line.split(' ').skip(1);
            let (Some(place), Some(kind), Some(options)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let has = |controller| options.split(',').any(|option| option == controller);
            match kind {
                "cgroup2" => found.unified = Some(place.into()),
                "cgroup" => {
                    let kinds =
                        [("cpuacct", &mut found.cpuacct), ("cpu", &mut found.cpu), ("memory", &mut found.memory)];
                    for (controller, slot) in kinds {
                        if has(controller) {
                            *slot = Some(place.into());
                        }
                    }
                }
                _ => {}
            }
        }
        found
    }
}

/// Every hierarchy in which a lab may have made groups.
pub(crate) fn mounts() -> Vec<PathBuf> {
    let Mounts { cpuacct, cpu, memory, unified } = Mounts::of_this_host();
    let mut mounts: Vec<_> = [cpuacct, cpu, memory, unified].into_iter().flatten().collect();
    mounts.sort();
    mounts.dedup();
    mounts
}

/// The ids of a group's processes.
pub(crate) fn processes(directory: &Path) -> Vec<u32> {
    let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

/// CPU time of tasks, from the start of their accounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tasks {
    /// Of all tasks of the host; `None` if it is not told.
    pub all: Option<Duration>,
    /// Of the tasks of this lab's groups.
    pub own: Duration,
    /// The same by CPU number, in version 1 only.
    pub all_by_cpu: Vec<Duration>,
    /// The same by CPU number, in version 1 only.
    pub own_by_cpu: Vec<Duration>,
}

/// The groups of one lab. Dropping this removes them, with the processes in them.
#[derive(Debug)]
pub struct Accounts {
    kind: Cgroups,
    cpu: Option<PathBuf>,
    memory: Option<PathBuf>,
    /// The group of version 2, which programs at sockets can be attached to, whichever version counts.
    unified: Option<PathBuf>,
    /// The group that has a quota; `None` without one.
    quota: Option<PathBuf>,
}

impl Accounts {
    /// Makes the parent group of all components' groups. If that is refused, there are no groups, and processes are counted.
    #[must_use]
    pub fn new(tag: &str) -> Self {
        Self::within(&Mounts::of_this_host(), tag)
    }

    fn within(mounts: &Mounts, tag: &str) -> Self {
        let name = format!("{PREFIX}{tag}");
        let make = |mount: &Option<PathBuf>| {
            let directory = mount.as_ref()?.join(&name);
            fs::create_dir(&directory).is_ok().then_some(directory)
        };
        let (cpuacct, memory) = (make(&mounts.cpuacct), make(&mounts.memory));
        let unified = make(&mounts.unified);
        let counting = unified.clone().filter(|_| cpuacct.is_none() || memory.is_none());
        if let (Some(mount), Some(directory)) = (&mounts.unified, &counting) {
            // CPU time is counted by default, but memory is not. The kernel refuses this if version 1 has the controller.
            let _ = fs::write(mount.join("cgroup.subtree_control"), "+memory");
            let _ = fs::write(directory.join("cgroup.subtree_control"), "+memory");
        }
        let kind = match (&cpuacct, &memory, &counting) {
            (Some(_), _, None) => Cgroups::V1,
            (None, None, Some(_)) => Cgroups::V2,
            (None, None, None) => Cgroups::None,
            _ => Cgroups::Hybrid,
        };
        Self { kind, cpu: cpuacct.or_else(|| counting.clone()), memory: memory.or(counting), unified, quota: None }
    }

    /// Limits all groups that are made from now on to so many CPUs together. Only a test of the lab itself does this: see `neighbours`.
    ///
    /// # Errors
    /// The host's error, or that it has no quotas.
    pub(crate) fn limit(&mut self, cpus: f64) -> io::Result<()> {
        let Mounts { cpu, unified, .. } = Mounts::of_this_host();
        let quota_us = (f64::from(QUOTA_PERIOD_US) * cpus) as u64;
        if let (Some(mount), Some(name)) = (cpu, self.cpu.as_ref().and_then(|cpu| cpu.file_name())) {
            let directory = mount.join(name);
            match fs::create_dir(&directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => self.quota = Some(directory.clone()),
            }
            fs::write(directory.join("cpu.cfs_period_us"), QUOTA_PERIOD_US.to_string())?;
            return fs::write(directory.join("cpu.cfs_quota_us"), quota_us.to_string());
        }
        let (Some(mount), Some(directory)) = (unified, self.cpu.clone()) else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this host has no cgroups with CPU quotas"));
        };
        fs::write(mount.join("cgroup.subtree_control"), "+cpu")?;
        fs::write(directory.join("cpu.max"), format!("{quota_us} {QUOTA_PERIOD_US}"))?;
        self.quota = Some(directory);
        Ok(())
    }

    /// How often a quota held back all groups together: the one of [`limit`](Self::limit), or one of the container that the lab runs in.
    #[must_use]
    pub(crate) fn throttled(&self) -> u64 {
        let root = self.cpu.as_ref().and_then(|cpu| cpu.parent());
        let of = |directory: &Path| value_in(&directory.join("cpu.stat"), "nr_throttled").unwrap_or_default();
        root.map_or(0, of) + self.quota.as_deref().map_or(0, of)
    }

    /// The version that counts.
    #[must_use]
    pub fn kind(&self) -> Cgroups {
        self.kind
    }

    /// CPU time of all tasks of the host and of those of this lab's groups.
    #[must_use]
    pub(crate) fn tasks(&self) -> Tasks {
        let Some((own, all)) = self.cpu.as_ref().and_then(|own| Some((own, own.parent()?))) else {
            return Tasks::default();
        };
        Tasks {
            all: usage_of(all),
            own: usage_of(own).unwrap_or_default(),
            all_by_cpu: usage_by_cpu(all),
            own_by_cpu: usage_by_cpu(own),
        }
    }

    /// Makes a component's group.
    ///
    /// # Errors
    /// The host's error.
    pub fn group(&self, name: &str) -> io::Result<Group> {
        let make = |parent: &Option<PathBuf>| -> io::Result<Option<PathBuf>> {
            let Some(directory) = parent.as_ref().map(|parent| parent.join(name)) else { return Ok(None) };
            match fs::create_dir(&directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                _ => Ok(Some(directory)),
            }
        };
        let quota = self.quota.clone().filter(|quota| Some(quota) != self.cpu.as_ref());
        let unified = make(&self.unified)?;
        Ok(Group { cpu: make(&self.cpu)?, memory: make(&self.memory)?, unified, quota, counted: Mutex::default() })
    }
}

impl Drop for Accounts {
    fn drop(&mut self) {
        let all = [self.cpu.take(), self.memory.take(), self.unified.take(), self.quota.take()];
        for directory in all.into_iter().flatten().filter(|directory| directory.exists()) {
            // The next run finds what stays behind.
            let _ = remove_cgroup(&directory);
        }
    }
}

/// A component's group, or without groups, the processes that were added to it.
#[derive(Debug, Default)]
pub struct Group {
    cpu: Option<PathBuf>,
    memory: Option<PathBuf>,
    /// Its group of version 2.
    unified: Option<PathBuf>,
    /// The group that limits it, together with all others.
    quota: Option<PathBuf>,
    /// Without a group: the last known CPU time of each process, so that the time of ended processes is not lost.
    counted: Mutex<BTreeMap<u32, Duration>>,
}

impl Group {
    /// The files to which a process writes its id to join the group.
    #[must_use]
    pub fn doors(&self) -> Vec<PathBuf> {
        let mut doors: Vec<_> = [&self.cpu, &self.memory, &self.unified, &self.quota]
            .into_iter()
            .flatten()
            .map(|directory| directory.join("cgroup.procs"))
            .collect();
        doors.sort();
        doors.dedup();
        doors
    }

    /// Its group of version 2, for programs that are attached to the sockets of its processes. `None` on a host without that version.
    #[must_use]
    pub(crate) fn of_sockets(&self) -> Option<&Path> {
        self.unified.as_deref()
    }

    /// Counts a process if there are no groups.
    pub(crate) fn add(&self, pid: u32) {
        if self.cpu.is_none() {
            self.counted.lock().unwrap_or_else(PoisonError::into_inner).insert(pid, Duration::ZERO);
        }
    }

    /// Its processes, with those that they have started.
    fn pids(&self) -> Vec<u32> {
        match &self.cpu {
            Some(directory) => processes(directory),
            None => {
                let own: Vec<u32> =
                    self.counted.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect();
                own.into_iter().flat_map(procfs::with_descendants).collect()
            }
        }
    }

    /// Stops all of its processes, or lets them go on. A stopped balancer cannot take CPU time from the one that is measured.
    pub(crate) fn freeze(&self, is_frozen: bool) {
        let signal = if is_frozen { Signal::STOP } else { Signal::CONT };
        for pid in self.pids() {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                // It may have ended by now.
                let _ = kill_process(pid, signal);
            }
        }
    }

    /// Memory of the BPF maps that its processes hold, in bytes, each map once: the kernel charges it to no process's resident memory.
    #[must_use]
    pub fn maps_bytes(&self) -> u64 {
        let maps: BTreeMap<u64, u64> = self.pids().into_iter().flat_map(procfs::bpf_maps).collect();
        maps.values().sum()
    }

    /// CPU time that its processes have used, including those that have ended.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        let Some(directory) = &self.cpu else {
            let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
            for (&pid, time) in counted.iter_mut() {
                *time = procfs::cpu_time(pid).unwrap_or(*time).max(*time);
            }
            return counted.values().sum();
        };
        usage_of(directory).unwrap_or_default()
    }

    /// How often a quota held it back.
    #[must_use]
    pub fn throttled(&self) -> u64 {
        let directory = self.cpu.as_ref();
        directory.and_then(|directory| value_in(&directory.join("cpu.stat"), "nr_throttled")).unwrap_or_default()
    }

    /// The peak of its memory in bytes, including caches and kernel memory.
    #[must_use]
    pub fn memory_peak(&self) -> Option<u64> {
        let directory = self.memory.as_ref()?;
        let files = ["memory.max_usage_in_bytes", "memory.peak"];
        files.iter().find_map(|file| number_in(&directory.join(file)))
    }

    /// Resident memory of its processes in bytes. Shared memory counts for each process.
    #[must_use]
    pub fn resident(&self) -> u64 {
        self.pids().into_iter().filter_map(|pid| procfs::resident_bytes(pid).ok()).sum()
    }
}

/// CPU time of a group and those below it.
fn usage_of(directory: &Path) -> Option<Duration> {
    match number_in(&directory.join("cpuacct.usage")) {
        Some(ns) => Some(Duration::from_nanos(ns)),
        None => value_in(&directory.join("cpu.stat"), "usage_usec").map(Duration::from_micros),
    }
}

fn usage_by_cpu(directory: &Path) -> Vec<Duration> {
    let text = fs::read_to_string(directory.join("cpuacct.usage_percpu")).unwrap_or_default();
    text.split_ascii_whitespace().map_while(|word| word.parse().ok().map(Duration::from_nanos)).collect()
}

fn number_in(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn value_in(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn mounts_of_either_version_and_both() {
        let check = |text: &str, expect: [Option<&str>; 3]| {
            let [cpuacct, memory, unified] = expect.map(|place| place.map(PathBuf::from));
            // In all of these, quotas are where the accounts are.
            let expect = Mounts { cpu: cpuacct.clone(), cpuacct, memory, unified };
            assert_eq!(Mounts::parse(text), expect, "{text}");
        };
        check("", [None; 3]);
        check("cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n", [None, None, Some("/sys/fs/cgroup")]);
        check(
            "proc /proc proc rw 0 0\ncgroup /c/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup /c/memory cgroup rw,memory 0 0\n\
             cgroup2 /c/unified cgroup2 rw 0 0\n",
            [Some("/c/cpu,cpuacct"), Some("/c/memory"), Some("/c/unified")],
        );
    }

    #[test]
    fn apart_from_accounts_quotas_are_found() {
        let found = Mounts::parse("cgroup /c/cpu cgroup rw,cpu 0 0\ncgroup /c/cpuacct cgroup rw,cpuacct 0 0\n");
        assert_eq!((found.cpu, found.cpuacct), (Some("/c/cpu".into()), Some("/c/cpuacct".into())));
    }

    #[test]
    fn a_quota_holds_back_and_is_counted() {
        let mut accounts = Accounts::new(&crate::leftovers::tag("quota"));
        if let Err(error) = accounts.limit(0.2) {
            crate::host::skip(&format!("cgroup: no quota can be set here: {error}"));
            return;
        }
        let directory = accounts.quota.clone().unwrap();
        let group = accounts.group("x").unwrap();
        let doors: Vec<_> = group.doors().iter().map(|door| door.display().to_string()).collect();
        let script = "for door in $0; do echo $$ > $door; done; while :; do :; done";
        let mut child = Command::new("/bin/sh").args(["-c", script, &doors.join(" ")]).spawn().unwrap();
        while accounts.throttled() == 0 {
            std::thread::yield_now();
        }
        drop(accounts);
        assert!(!child.wait().unwrap().success() && !directory.exists());
    }

    /// Starts a process that computes in a group, then checks the group's account of it.
    fn check_counts(accounts: &Accounts) {
        let group = accounts.group("x").unwrap();
        let doors: Vec<_> = group.doors().iter().map(|door| door.display().to_string()).collect();
        let script = "for door in $0; do echo $$ > $door; done; i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let mut child = Command::new("/bin/sh").args(["-c", script, &doors.join(" ")]).spawn().unwrap();
        group.add(child.id());
        let mut seen = Duration::ZERO;
        while child.try_wait().unwrap().is_none() {
            seen = group.cpu_time();
        }
        // The process has ended and still counts.
        assert!(group.cpu_time() >= seen && group.cpu_time() > Duration::from_millis(20), "{seen:?}");
        assert_eq!(group.throttled(), 0);
        if accounts.kind() != Cgroups::None {
            assert_eq!(group.resident(), 0);
        }
        if accounts.memory.is_some() && accounts.kind() == Cgroups::V1 {
            assert!(group.memory_peak().unwrap() > 0);
        }
    }

    #[test]
    fn each_version_counts_and_is_gone_afterwards() {
        let host = Mounts::of_this_host();
        let v2 = Mounts { unified: host.unified.clone(), ..Mounts::default() };
        for (name, mounts) in [("none", Mounts::default()), ("v2", v2), ("host", host)] {
            let accounts = Accounts::within(&mounts, &crate::leftovers::tag(name));
            let all = [&accounts.cpu, &accounts.memory, &accounts.unified];
            let directories: Vec<_> = all.into_iter().flatten().cloned().collect();
            check_counts(&accounts);
            drop(accounts);
            assert!(!directories.iter().any(|directory| directory.exists()), "{name}");
        }
    }

    #[test]
    fn a_frozen_group_uses_no_cpu_time() {
        let kinds = [Mounts::default(), Mounts::of_this_host()];
        for mounts in kinds {
            let accounts = Accounts::within(&mounts, &crate::leftovers::tag("frozen"));
            let group = accounts.group("x").unwrap();
            let doors: Vec<_> = group.doors().iter().map(|door| door.display().to_string()).collect();
            // The one that computes is a child of the one that was added.
            let script = "for door in $0; do echo $$ > $door; done; while :; do :; done & wait";
            let mut child = Command::new("/bin/sh").args(["-c", script, &doors.join(" ")]).spawn().unwrap();
            group.add(child.id());
            let used = || group.pids().iter().filter_map(|&pid| procfs::cpu_time(pid).ok()).sum::<Duration>();
            while group.pids().len() < 2 {
                std::thread::yield_now();
            }
            let is_stopped = |pid: u32| {
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
            };
            group.freeze(true);
            while !group.pids().into_iter().all(is_stopped) {
                std::thread::yield_now();
            }
            let before = used();
            let now = procfs::own_thread_cpu_time().unwrap();
            while procfs::own_thread_cpu_time().unwrap() < now + Duration::from_millis(50) {
                std::hint::black_box((0..100_000_u64).sum::<u64>());
            }
            assert_eq!(used(), before);
            group.freeze(false);
            while used() < before + Duration::from_millis(20) {
                std::thread::yield_now();
            }
            for pid in group.pids() {
                crate::leftovers::end_process(pid);
            }
            let _ = child.wait();
        }
    }

    #[test]
    fn all_tasks_are_at_least_those_of_the_groups() {
        let accounts = Accounts::new(&crate::leftovers::tag("tasks"));
        let tasks = accounts.tasks();
        if accounts.kind() == Cgroups::None {
            crate::host::skip("cgroup: no group can be made here");
            return;
        }
        assert!(tasks.all.unwrap() > tasks.own, "{tasks:?}");
        assert_eq!(tasks.all_by_cpu.len(), tasks.own_by_cpu.len());
    }

    #[test]
    fn a_group_goes_with_the_processes_in_it() {
        let accounts = Accounts::new(&crate::leftovers::tag("alive"));
        let group = accounts.group("x").unwrap();
        if group.doors().is_empty() {
            crate::host::skip("cgroup: no group can be made here");
            return;
        }
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        for door in group.doors() {
            fs::write(door, child.id().to_string()).unwrap();
        }
        assert!(group.resident() > 0);
        drop(accounts);
        assert!(!child.wait().unwrap().success());
        assert!(group.doors().iter().all(|door| !door.exists()));
    }
}
