//! Finds and removes what a killed lab left behind.
//!
//! It gives everything that a lab makes on the host a name that identifies the process, and removes what belongs to no living process:
//! network namespaces, cgroups, and the processes in them. It does not remove files: a run's directory is a result, even if the run was
//! killed.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::cgroup;
use crate::topology::PREFIX;

/// How long a killed process may take to disappear.
const DEATH_S_MAX: i64 = 5;

/// How often to kill new processes of a cgroup, or to check whether the last one is gone.
const ROUNDS_MAX: u32 = 500;

/// The time between two such attempts: 5 s in all.
const ROUND: Duration = Duration::from_millis(10);

/// Identifies what this process makes: its id and its start time, because ids are reused, and `what`, for several topologies of one
/// process.
#[must_use]
pub fn tag(what: &str) -> String {
    let pid = std::process::id();
    format!("{pid}-{}-{what}", start_time(pid).unwrap_or_default())
}

/// The 22nd field of `/proc/PID/stat`: ticks between the start of the host and that of the process.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name in brackets, in which there may be anything, it is the 20th.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Whether the process that made something with this name still exists.
fn is_alive(name: &str) -> bool {
    let mut fields = name.strip_prefix(PREFIX).unwrap_or(name).split('-');
    let (pid, start) = (fields.next().and_then(|field| field.parse().ok()), fields.next());
    match (pid, start) {
        (Some(pid), Some(start)) => start_time(pid).is_some_and(|known| known.to_string() == start),
        _ => false,
    }
}

/// Namespaces and cgroups of labs that no longer run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Names of namespaces.
    pub namespaces: Vec<String>,
    /// Directories of cgroups.
    pub cgroups: Vec<PathBuf>,
}

impl Leftovers {
    /// Finds them.
    #[must_use]
    pub fn find() -> Self {
        let of_the_dead = |name: &String| name.starts_with(PREFIX) && !is_alive(name);
        let names = names_in(Path::new("/run/netns"));
        let namespaces = names.into_iter().filter(of_the_dead).collect();
        let cgroups = cgroup::mounts().into_iter().flat_map(|mount| {
            names_in(&mount).into_iter().filter(of_the_dead).map(move |name| mount.join(name)).collect::<Vec<_>>()
        });
        Self { namespaces, cgroups: cgroups.collect() }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty() && self.cgroups.is_empty()
    }

    /// Removes them, processes first. Returns what could not be removed.
    #[must_use]
    pub fn remove(&self) -> Vec<String> {
        let mut stubborn = Vec::new();
        for directory in &self.cgroups {
            if let Err(why) = remove_cgroup(directory) {
                stubborn.push(format!("{}: {why}", directory.display()));
            }
        }
        for namespace in &self.namespaces {
            if let Err(why) = remove_namespace(namespace) {
                stubborn.push(format!("namespace {namespace}: {why}"));
            }
        }
        stubborn
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn remove_namespace(namespace: &str) -> Result<(), String> {
    let ip = |arguments: &[&str]| {
        let output =
            Command::new("ip").args(arguments).stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.success() { Ok(String::from_utf8_lossy(&output.stdout).into_owned()) } else { Err(said) }
    };
    for pid in ip(&["netns", "pids", namespace])?.split_whitespace().filter_map(|word| word.parse().ok()) {
        end_process(pid);
    }
    ip(&["netns", "delete", namespace]).map(drop)
}

/// Ends all processes of a cgroup and of those below it, and removes the cgroups.
///
/// # Errors
/// The host's error, for example if a process does not end.
pub(crate) fn remove_cgroup(directory: &Path) -> Result<(), String> {
    for name in names_in(directory) {
        let child = directory.join(name);
        if child.is_dir() {
            remove_cgroup(&child)?;
        }
    }
    for _ in 0..ROUNDS_MAX {
        cgroup::processes(directory).into_iter().for_each(end_process);
        match fs::remove_dir(directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            // The kernel removes a process from the list before it releases the group, and version 1 sends no notification.
            Err(error) if error.kind() == ErrorKind::ResourceBusy => thread::park_timeout(ROUND),
            Err(error) => return Err(error.to_string()),
            Ok(()) => return Ok(()),
        }
    }
    Err("it is still in use".to_owned())
}

/// Kills a process and waits until it is gone. It is no error if it has already ended.
pub(crate) fn end_process(pid: u32) {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    // A handle of this process, which a later process with the same number cannot have.
    let handle = pidfd_open(pid, PidfdFlags::empty());
    let _ = kill_process(pid, Signal::KILL);
    if let Ok(handle) = handle {
        let patience = Timespec { tv_sec: DEATH_S_MAX, tv_nsec: 0 };
        let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&patience));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::is_root;

    #[test]
    fn names_tell_whether_their_maker_is_there() {
        let own = tag("x");
        assert!(is_alive(&format!("{PREFIX}{own}-client")) && is_alive(&own));
        let (pid, rest) = own.split_once('-').unwrap();
        // The same id, started at another time; an id above the kernel's limit; and no id at all.
        for dead in [format!("{PREFIX}{pid}-1{rest}"), format!("{PREFIX}4194305-1-x"), format!("{PREFIX}nobody")] {
            assert!(!is_alive(&dead), "{dead}");
        }
    }

    #[test]
    fn what_belongs_to_nobody_is_removed_with_its_processes() {
        if !is_root() {
            crate::host::skip("leftovers: namespaces and cgroups take root");
            return;
        }
        let name = format!("{PREFIX}4194305-{}-x", std::process::id());
        let netns = |verb| Command::new("ip").args(["netns", verb, &name]).status().unwrap();
        assert!(netns("add").success());
        let directories: Vec<_> = cgroup::mounts().into_iter().map(|mount| mount.join(&name)).collect();
        let made: Vec<_> = directories.iter().filter(|directory| fs::create_dir(directory).is_ok()).cloned().collect();
        let mut sleeper = Command::new("sleep").arg("600").spawn().unwrap();
        for directory in &made {
            fs::write(directory.join("cgroup.procs"), sleeper.id().to_string()).unwrap();
        }
        let mut inside = Command::new("ip").args(["netns", "exec", &name, "sleep", "600"]).spawn().unwrap();
        // Until it is inside, it does not belong to the namespace and would not be ended.
        let network = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).unwrap();
        for round in 0.. {
            if network(&inside.id().to_string()) != network("self") {
                break;
            }
            assert!(round < ROUNDS_MAX, "it does not get inside");
            thread::park_timeout(ROUND);
        }

        let found = Leftovers::find();
        assert!(found.namespaces.contains(&name));
        assert!(made.iter().all(|directory| found.cgroups.contains(directory)));
        let own = Leftovers { namespaces: vec![name.clone()], cgroups: made.clone() };
        assert_eq!(own.remove(), Vec::<String>::new());
        assert!(!Leftovers::find().namespaces.contains(&name) && !made.iter().any(|directory| directory.exists()));
        // Without cgroups it has not been killed yet.
        let _ = sleeper.kill();
        let ended = sleeper.wait().unwrap();
        assert!(!ended.success());
        assert!(!inside.wait().unwrap().success());
    }
}
