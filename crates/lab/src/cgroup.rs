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

use crate::leftovers::remove_cgroup;
use crate::procfs;
use crate::record::Cgroups;
use crate::topology::PREFIX;

/// The mount points of the hierarchies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Mounts {
    /// Version 1, `cpuacct`.
    cpuacct: Option<PathBuf>,
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
                "cgroup" if has("cpuacct") => found.cpuacct = Some(place.into()),
                "cgroup" if has("memory") => found.memory = Some(place.into()),
                _ => {}
            }
        }
        found
    }
}

/// Every hierarchy in which a lab may have made groups.
pub(crate) fn mounts() -> Vec<PathBuf> {
    let Mounts { cpuacct, memory, unified } = Mounts::of_this_host();
    [cpuacct, memory, unified].into_iter().flatten().collect()
}

/// The ids of a group's processes.
pub(crate) fn processes(directory: &Path) -> Vec<u32> {
    let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

/// The groups of one lab. Dropping this removes them, with the processes in them.
#[derive(Debug)]
pub struct Accounts {
    kind: Cgroups,
    cpu: Option<PathBuf>,
    memory: Option<PathBuf>,
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
        let unified = if cpuacct.is_some() && memory.is_some() { None } else { make(&mounts.unified) };
        if let (Some(mount), Some(directory)) = (&mounts.unified, &unified) {
            // CPU time is counted by default, but memory is not. The kernel refuses this if version 1 has the controller.
            let _ = fs::write(mount.join("cgroup.subtree_control"), "+memory");
            let _ = fs::write(directory.join("cgroup.subtree_control"), "+memory");
        }
        let kind = match (&cpuacct, &memory, &unified) {
            (Some(_), _, None) => Cgroups::V1,
            (None, None, Some(_)) => Cgroups::V2,
            (None, None, None) => Cgroups::None,
            _ => Cgroups::Hybrid,
        };
        Self { kind, cpu: cpuacct.or_else(|| unified.clone()), memory: memory.or(unified) }
    }

    /// The version that counts.
    #[must_use]
    pub fn kind(&self) -> Cgroups {
        self.kind
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
        Ok(Group { cpu: make(&self.cpu)?, memory: make(&self.memory)?, counted: Mutex::default() })
    }
}

impl Drop for Accounts {
    fn drop(&mut self) {
        for directory in [self.cpu.take(), self.memory.take()].into_iter().flatten() {
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
    /// Without a group: the last known CPU time of each process, so that the time of ended processes is not lost.
    counted: Mutex<BTreeMap<u32, Duration>>,
}

impl Group {
    /// The files to which a process writes its id to join the group.
    #[must_use]
    pub fn doors(&self) -> Vec<PathBuf> {
        let mut doors: Vec<_> =
            [&self.cpu, &self.memory].into_iter().flatten().map(|directory| directory.join("cgroup.procs")).collect();
        doors.dedup();
        doors
    }

    /// Counts a process if there are no groups.
    pub(crate) fn add(&self, pid: u32) {
        if self.cpu.is_none() {
            self.counted.lock().unwrap_or_else(PoisonError::into_inner).insert(pid, Duration::ZERO);
        }
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
        match number_in(&directory.join("cpuacct.usage")) {
            Some(ns) => Duration::from_nanos(ns),
            None => Duration::from_micros(value_in(&directory.join("cpu.stat"), "usage_usec").unwrap_or_default()),
        }
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
        let pids = match &self.cpu {
            Some(directory) => processes(directory),
            None => self.counted.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect(),
        };
        pids.into_iter().filter_map(|pid| procfs::resident_bytes(pid).ok()).sum()
    }
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
            assert_eq!(Mounts::parse(text), Mounts { cpuacct, memory, unified }, "{text}");
        };
        check("", [None; 3]);
        check("cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n", [None, None, Some("/sys/fs/cgroup")]);
        check(
            "proc /proc proc rw 0 0\ncgroup /c/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup /c/memory cgroup rw,memory 0 0\n\
             cgroup2 /c/unified cgroup2 rw 0 0\n",
            [Some("/c/cpu,cpuacct"), Some("/c/memory"), Some("/c/unified")],
        );
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
            let directories: Vec<_> = [&accounts.cpu, &accounts.memory].into_iter().flatten().cloned().collect();
            check_counts(&accounts);
            drop(accounts);
            assert!(!directories.iter().any(|directory| directory.exists()), "{name}");
        }
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
