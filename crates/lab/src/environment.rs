//! The properties of this host, and what it can and cannot measure.
//!
//! It reads everything from `/proc` and `/sys`, for the record of a run and for `lab doctor`. It changes nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Resource, getrlimit};

use crate::contender::Digests;
use crate::host;
use crate::record::{Binary, Environment, Limits, Setting};

/// The commit that this program was built from, if the build set `STEELYARD_COMMIT`, as `cargo xtask dist` does. A build script that asked git
/// would rebuild everything after each commit.
pub const COMMIT: Option<&str> = option_env!("STEELYARD_COMMIT");

/// Reads the host's properties. `itself` is the file of this program. The caller fills in cgroups, settings of namespaces and placement.
#[must_use]
pub(crate) fn capture(itself: &Path, version: &str, digests: &mut Digests) -> Environment {
    let cpuinfo = read("/proc/cpuinfo");
    let config = KernelConfig::of_this_host();
    Environment {
        cpu_model: field(&cpuinfo, "model name").or_else(|| field(&cpuinfo, "Model")).unwrap_or_default(),
        cpus: online().len() as u32,
        threads_per_core: threads_per_core(),
        memory_bytes: field(&read("/proc/meminfo"), "MemTotal").as_deref().and_then(first_number).unwrap_or_default()
            * 1024,
        hypervisor: hypervisor(&cpuinfo),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        os: field_of_os("PRETTY_NAME"),
        has_pmu: has_pmu(),
        irq_time_accounting: config.is_set("CONFIG_IRQ_TIME_ACCOUNTING"),
        hz: config.value("CONFIG_HZ").and_then(|value| value.parse().ok()),
        governor: some(read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").trim()),
        mitigations: mitigations(),
        cgroups: Default::default(),
        limits: Limits {
            open_files: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
            somaxconn: first_number(&read("/proc/sys/net/core/somaxconn")).unwrap_or_default(),
        },
        sysctls: Vec::new(),
        offloads: Vec::new(),
        load_average: load_average(),
        steal_share: Ticks::now().total.steal_share(),
        is_root: host::is_root(),
        guest: None,
        commit: COMMIT.filter(|commit| !commit.is_empty()).map(str::to_owned),
        binaries: vec![Binary {
            name: "steelyard".to_owned(),
            path: itself.display().to_string(),
            version: version.to_owned(),
            sha256: digests.of(itself),
        }],
        placement: String::new(),
        idle_busy_by_cpu: Vec::new(),
    }
}

/// The guest that `lab run --guest` has booted with this accelerator of qemu, as reports name it.
#[must_use]
pub(crate) fn guest(accelerator: &str) -> String {
    match accelerator {
        "kvm" => "a guest of qemu under KVM".to_owned(),
        _ => "a guest whose CPUs are emulated by qemu".to_owned(),
    }
}

/// The CPUs that this process may use.
#[must_use]
pub fn online() -> Vec<u32> {
    let allowed = field(&read("/proc/self/status"), "Cpus_allowed_list").unwrap_or_default();
    let cpus = parse_list(&allowed);
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// `0-3,8` as CPUs.
fn parse_list(text: &str) -> Vec<u32> {
    /// A larger number is a misreading.
    const CPUS_MAX: usize = 8192;
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    });
    ranges.flatten().take(CPUS_MAX).collect()
}

fn threads_per_core() -> u32 {
    let siblings = read("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list");
    parse_list(&siblings).len().max(1) as u32
}

fn hypervisor(cpuinfo: &str) -> Option<String> {
    let is_virtual = field(cpuinfo, "flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"));
    let named =
        ["/sys/hypervisor/type", "/sys/class/dmi/id/sys_vendor"].iter().find_map(|file| some(read(file).trim()));
    is_virtual.then(|| named.unwrap_or_else(|| "unknown".to_owned()))
}

/// Whether there are hardware counters: a PMU appears as a device of its own.
#[must_use]
pub fn has_pmu() -> bool {
    let devices = fs::read_dir("/sys/bus/event_source/devices").into_iter().flatten().flatten();
    devices.into_iter().any(|device| device.file_name().to_string_lossy().starts_with("cpu"))
}

fn mitigations() -> Vec<Setting> {
    let files = fs::read_dir("/sys/devices/system/cpu/vulnerabilities").into_iter().flatten().flatten();
    let mut settings: Vec<_> = files
        .map(|file| Setting {
            name: file.file_name().to_string_lossy().into_owned(),
            value: read(file.path()).trim().to_owned(),
        })
        .collect();
    settings.sort_by(|one, other| one.name.cmp(&other.name));
    settings
}

fn field_of_os(name: &str) -> String {
    let text = read("/etc/os-release");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    line.unwrap_or_default().trim_matches('"').to_owned()
}

/// The load average of one minute.
#[must_use]
pub fn load_average() -> f64 {
    read("/proc/loadavg").split(' ').next().and_then(|word| word.parse().ok()).unwrap_or_default()
}

/// The kernel's configuration, if it can be read.
#[derive(Clone, Debug, Default)]
pub struct KernelConfig(String);

impl KernelConfig {
    /// Reads it from `/proc/config.gz` or `/boot`.
    #[must_use]
    pub fn of_this_host() -> Self {
        let release = read("/proc/sys/kernel/osrelease");
        let beside = PathBuf::from(format!("/boot/config-{}", release.trim()));
        if beside.is_file() {
            return Self(read(beside));
        }
        let unpacked = Command::new("gzip").args(["-dc", "/proc/config.gz"]).output();
        Self(unpacked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default())
    }

    /// Whether an option is built in or a module; `None` if the configuration is not available.
    #[must_use]
    pub fn is_set(&self, name: &str) -> Option<bool> {
        (!self.0.is_empty()).then(|| self.value(name).is_some_and(|value| value == "y" || value == "m"))
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }
}

/// CPU time by kind, in ticks since the start of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTicks {
    /// User, nice, system, irq, softirq.
    pub busy: u64,
    /// Softirq alone, part of `busy`.
    pub softirq: u64,
    /// Idle and waiting for disks.
    pub idle: u64,
    /// Time taken by the hypervisor.
    pub steal: u64,
}

impl CpuTicks {
    fn parse(numbers: &str) -> Self {
        let values: Vec<u64> = numbers.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
        let at = |index: usize| values.get(index).copied().unwrap_or_default();
        Self { busy: at(0) + at(1) + at(2) + at(5) + at(6), softirq: at(6), idle: at(3) + at(4), steal: at(7) }
    }

    fn steal_share(self) -> f64 {
        let all = self.busy + self.idle + self.steal;
        if all == 0 { 0.0 } else { self.steal as f64 / all as f64 }
    }
}

/// `/proc/stat`: all CPUs together, and each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ticks {
    /// All together.
    pub total: CpuTicks,
    /// By CPU number. A CPU that is off has zeros.
    pub each: Vec<CpuTicks>,
}

impl Ticks {
    /// As it is now.
    #[must_use]
    pub fn now() -> Self {
        Self::parse(&read("/proc/stat"))
    }

    fn parse(stat: &str) -> Self {
        let mut ticks = Self::default();
        for line in stat.lines() {
            let Some((name, numbers)) = line.split_once(' ') else { continue };
            match name.strip_prefix("cpu") {
                Some("") => ticks.total = CpuTicks::parse(numbers),
                Some(number) => {
                    let Ok(number) = number.parse::<usize>() else { continue };
                    ticks.each.resize(ticks.each.len().max(number + 1), CpuTicks::default());
                    if let Some(slot) = ticks.each.get_mut(number) {
                        *slot = CpuTicks::parse(numbers);
                    }
                }
                None => {}
            }
        }
        ticks
    }

    /// Ticks a second.
    #[must_use]
    pub fn per_second() -> f64 {
        rustix::param::clock_ticks_per_second().max(1) as f64
    }
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The value of `name : value` or `name: value`.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_a_name_a_kernel_and_cpus() {
        let environment = capture(Path::new("/bin/sh"), "1.2.3", &mut Digests::default());
        assert!(!environment.kernel.is_empty() && environment.cpus > 0 && environment.memory_bytes > 1 << 20);
        assert!(environment.threads_per_core > 0 && environment.limits.somaxconn > 0);
        assert_eq!((environment.binaries[0].sha256.len(), environment.binaries[0].version.as_str()), (64, "1.2.3"));
    }

    #[test]
    fn lists_of_cpus() {
        for (text, expect) in [("0", &[0][..]), ("0-2,5\n", &[0, 1, 2, 5]), ("", &[]), ("x", &[]), ("3-1", &[])] {
            assert_eq!(parse_list(text), expect, "{text}");
        }
    }

    #[test]
    fn stat_by_cpu() {
        let ticks = Ticks::parse(
            "cpu  10 1 20 100 5 2 3 7 0 0\ncpu0 1 0 2 3 0 0 1 0 0 0\ncpu2 4 0 0 6 0 0 0 0 0 0\nintr 1 2\n",
        );
        assert_eq!(ticks.total, CpuTicks { busy: 36, softirq: 3, idle: 105, steal: 7 });
        assert_eq!(ticks.each.len(), 3);
        assert_eq!((ticks.each[0].busy, ticks.each[1].busy, ticks.each[2].busy), (4, 0, 4));
    }

    #[test]
    fn kernel_configurations() {
        let config = KernelConfig("CONFIG_HZ=250\nCONFIG_IP_VS=m\n# CONFIG_X is not set\nCONFIG_HZ_250=y\n".to_owned());
        assert_eq!((config.value("CONFIG_HZ"), config.is_set("CONFIG_IP_VS")), (Some("250"), Some(true)));
        assert_eq!((config.is_set("CONFIG_X"), KernelConfig::default().is_set("CONFIG_X")), (Some(false), None));
    }
}
