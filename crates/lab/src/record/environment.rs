//! The host, and what ran on it.

use serde::{Deserialize, Serialize};

/// The host when the run began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// `model name` of `/proc/cpuinfo`.
    pub cpu_model: String,
    /// CPUs that are online.
    pub cpus: u32,
    /// Threads of one core; 1 without SMT.
    pub threads_per_core: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// The hypervisor, if there is one and it identifies itself.
    pub hypervisor: Option<String>,
    /// `uname -r`.
    pub kernel: String,
    /// `PRETTY_NAME` of `/etc/os-release`.
    pub os: String,
    /// Whether the host has counters of cycles and instructions.
    pub has_pmu: bool,
    /// Whether the kernel measures the time of interrupts (CONFIG_IRQ_TIME_ACCOUNTING); absent if unknown.
    pub irq_time_accounting: Option<bool>,
    /// The kernel's ticks per second (CONFIG_HZ); absent if unknown.
    pub hz: Option<u32>,
    /// The frequency governor of the first CPU, if there is one.
    pub governor: Option<String>,
    /// Vulnerabilities of the CPU and their mitigations, as the kernel reports them.
    pub mitigations: Vec<Setting>,
    /// The available cgroups.
    pub cgroups: Cgroups,
    /// Relevant limits.
    pub limits: Limits,
    /// Relevant `sysctl` settings, as they were in the namespaces of the run.
    pub sysctls: Vec<Setting>,
    /// Offloads of the links, which were not changed.
    pub offloads: Vec<Setting>,
    /// Load average of one minute when the run began.
    pub load_average: f64,
    /// CPU time taken by the hypervisor since the start of the host, as a share.
    pub steal_share: f64,
    /// Whether the lab ran as root.
    pub is_root: bool,
    /// The guest that `lab run --guest` ran in; then only ratios within the run mean anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<String>,
    /// The commit that the program was built from, in hex, with `-dirty` if files differed from it. Absent if the build did not say so: see
    /// [`COMMIT`](crate::environment::COMMIT).
    #[serde(default)]
    pub commit: Option<String>,
    /// Programs of the lab itself and tools it used.
    pub binaries: Vec<Binary>,
    /// Which CPUs each component got, in words.
    pub placement: String,
    /// Share of the time for which each CPU was busy while nothing of the run did anything and no other program ran, by CPU number: the
    /// kernel's own work, which is subtracted. Empty in runs of before it was measured.
    #[serde(default)]
    pub idle_busy_by_cpu: Vec<f64>,
}

/// A setting of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// The cgroups that the lab used for counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cgroups {
    /// Version 1: `cpuacct` and `memory`.
    V1,
    /// Version 2.
    V2,
    /// CPU from version 2, memory from version 1.
    Hybrid,
    /// None that can be used: processes were counted one by one.
    #[default]
    None,
}

/// Limits of the lab's processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Open files.
    pub open_files: u64,
    /// Connections that may wait to be accepted (`net.core.somaxconn`).
    pub somaxconn: u64,
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binary {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub path: String,
    /// The version that it reports.
    pub version: String,
    /// SHA-256 in hex.
    pub sha256: String,
}
