//! The context of the figures: the host, the limits of what it can show, what took part and what did not.

use std::collections::BTreeSet;

use crate::record::{Case, Cell, Instance, Layer, LoadKind, Mode, NetCounters, Pacing, Rate, Run, Setting, Verdict};
use crate::stats::ROUNDS_MIN;

use super::figures::{Figures, GBPS, LB_CORES_PER_GBPS, LB_US, P99, RPS};
use super::number;
use super::table::Table;
use super::tables::title;

/// The host, one property per line.
pub(crate) fn host(run: &Run) -> Table {
    let env = &run.environment;
    let mut table = Table::new("", ["what", "value"]).words_from(0);
    let yes_no = |known: Option<bool>| known.map_or("unknown", |is| if is { "yes" } else { "no" }).to_owned();
    let settings = |settings: &[Setting]| {
        settings.iter().map(|setting| format!("{} = {}", setting.name, setting.value)).collect::<Vec<_>>().join("; ")
    };
    let gib = env.memory_bytes as f64 / f64::from(1 << 30);
    let rows = [
        ("CPU", format!("{}, {} online, {} threads a core", env.cpu_model, env.cpus, env.threads_per_core)),
        ("memory", format!("{gib:.1} GiB")),
        ("hypervisor", env.hypervisor.clone().unwrap_or_else(|| "none that says so".to_owned())),
        ("kernel", env.kernel.clone()),
        ("system", env.os.clone()),
        ("counters of cycles (PMU)", yes_no(Some(env.has_pmu))),
        ("time of interrupts accounted", yes_no(env.irq_time_accounting)),
        ("ticks a second", env.hz.map_or("unknown".to_owned(), |hz| hz.to_string())),
        ("frequency governor", env.governor.clone().unwrap_or_else(|| "none".to_owned())),
        ("mitigations", settings(&env.mitigations)),
        ("accounting", format!("cgroups: {:?}", env.cgroups)),
        ("limits", format!("{} open files, somaxconn {}", env.limits.open_files, env.limits.somaxconn)),
        ("settings of the kernel", settings(&env.sysctls)),
        ("offloads", settings(&env.offloads)),
        ("load average at the start", format!("{:.2}", env.load_average)),
        ("CPU stolen since the host's start", number::per_cent(env.steal_share)),
        ("root", yes_no(Some(env.is_root))),
        ("guest", env.guest.clone().unwrap_or_default()),
        ("placement", env.placement.clone()),
        ("MTU", if run.scenario.mtu == 0 { "loopback".to_owned() } else { run.scenario.mtu.to_string() }),
        ("commit", env.commit.clone().unwrap_or_default()),
        (
            "run",
            format!(
                "{}; {} to {}; {} rounds; seed {}",
                run.program,
                run.started,
                run.ended.as_deref().unwrap_or("?"),
                run.rounds,
                run.seed
            ),
        ),
    ];
    for (what, value) in rows.into_iter().filter(|(_, value)| !value.is_empty()) {
        table.row([what.to_owned(), value]);
    }
    table
}

/// The workloads, one per line.
pub(crate) fn cases(run: &Run) -> Table {
    let head = ["case", "published as", "what", "origins", "load", "connections", "window"];
    let mut table = Table::new("", head).words_from(0);
    for case in &run.scenario.cases {
        let (load, origin) = (&case.load, &case.origin);
        let mode = match &load.mode {
            Mode::Closed => "closed loop".to_owned(),
            Mode::Open { rate: Rate::Fixed(rate), pacing } => format!("{}/s, {}", number::plain(*rate), paced(*pacing)),
            Mode::Open { rate: Rate::OfSlowest { share, case }, pacing } => {
                format!("{} of the slowest in {case}, {}", number::per_cent(*share), paced(*pacing))
            }
            Mode::Search { objective_p99_us } => {
                format!("the greatest rate with p99 up to {}", number::micros(*objective_p99_us as f64))
            }
        };
        let seconds = |ms: u64| ms as f64 / 1e3;
        table.row([
            case.name.clone(),
            case.label.clone().unwrap_or_default(),
            case.title.clone(),
            format!("{} × {:?} {}", origin.count, origin.kind, origin.arguments.join(" ")),
            format!("{:?}, {mode} {}", load.kind, load.arguments.join(" ")),
            format!("{} × {}", load.connections, load.streams.max(1)),
            format!(
                "{} s after {} s of ramp and {} s of warm-up",
                seconds(load.measure_ms),
                seconds(load.ramp_ms),
                seconds(load.warm_up_ms)
            ),
        ]);
    }
    table
}

fn paced(pacing: Pacing) -> &'static str {
    match pacing {
        Pacing::Uniform => "evenly",
        Pacing::Burst1hz => "in one burst a second",
        Pacing::Poisson => "at random times",
    }
}

/// Programs with their versions and checksums.
pub(crate) fn programs(run: &Run) -> Table {
    let mut table = Table::new("", ["name", "version", "program", "SHA-256"]).words_from(0);
    for contender in &run.contenders {
        let layer = match contender.layer {
            Layer::Direct => "no balancer",
            Layer::Routed => "forwarding only",
            Layer::Kernel => "kernel",
            Layer::Tcp | Layer::Http | Layer::H2 => "",
        };
        let program = if contender.program.is_empty() { layer.to_owned() } else { contender.program.clone() };
        table.row([contender.title.clone(), contender.version.clone(), program, contender.sha256.clone()]);
    }
    for binary in &run.environment.binaries {
        table.row([&binary.name, &binary.version, &binary.path, &binary.sha256].map(String::as_str));
    }
    table
}

/// Ceilings of the instrument.
pub(crate) fn calibrations(run: &Run) -> Table {
    let mut table = Table::new("", ["case", "load can make", "origins can serve", "p50 of one connection alone"]);
    for calibration in &run.calibrations {
        let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{}/s", number::plain(rate)));
        table.row([
            calibration.case.clone(),
            rate(calibration.generator_ceiling_per_s),
            rate(calibration.origin_ceiling_per_s),
            calibration.unloaded_p50_us.map_or("-".to_owned(), number::micros),
        ]);
    }
    table
}

/// The noise floor: how much the same contender differs from itself.
pub(crate) fn noise(figures: Figures<'_>) -> Table {
    let mut table = Table::new("", ["case", "rate", "LB CPU", "p50", "p99"]);
    for case in &figures.run.scenario.cases {
        let of = |name: &str| {
            let ratios = figures.same_over_same(&case.name, name);
            if ratios.is_empty() {
                "-".to_owned()
            } else {
                format!("± {}", number::per_cent(figures.noise(&case.name, name)))
            }
        };
        let (_, rate) = super::tables::rate_figure(case);
        let cost = if case.load.kind == LoadKind::Stream { LB_CORES_PER_GBPS } else { LB_US };
        let row = [of(rate), of(cost), of("p50_us"), of(P99)];
        if row.iter().any(|cell| cell != "-") {
            table.row(std::iter::once(super::tables::case_title(case).to_owned()).chain(row));
        }
    }
    table
}

/// The noise floor in one sentence.
pub(crate) fn noise_sentence(figures: Figures<'_>) -> String {
    let cases = &figures.run.scenario.cases;
    let widest = |names: &[&str]| {
        let of_case = |case: &Case| {
            let measured = names.iter().filter(|name| !figures.same_over_same(&case.name, name).is_empty());
            measured.map(|name| figures.noise(&case.name, name)).reduce(f64::max)
        };
        cases.iter().filter_map(of_case).reduce(f64::max)
    };
    let parts = [
        ("rate", &[RPS, GBPS][..]),
        ("CPU per operation", &[LB_US]),
        ("CPU per Gbps", &[LB_CORES_PER_GBPS]),
        ("p99", &[P99]),
    ]
    .into_iter()
    .filter_map(|(what, names)| Some(format!("{what} ± {}", number::per_cent(widest(names)?))));
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() {
        "Nothing was measured twice in a round, so the noise floor is not known; 1 % is assumed.".to_owned()
    } else {
        format!(
            "A contender against itself in the same round, widest of the cases: {}. Nothing smaller counts as a difference.",
            parts.join(", ")
        )
    }
}

/// What a reader must know of the cells that are not in every figure.
fn of_cells(run: &Run) -> Vec<String> {
    let (all, mut texts) = (run.cells.len(), Vec::new());
    let repeated = repeated(run);
    if repeated > 0 {
        texts.push(format!(
            "The hypervisor or strangers took CPU time from {repeated} cells, which were then measured again; every attempt is kept."
        ));
    }
    let (invalid, why) = cells_of(run, Verdict::Invalid);
    if invalid > 0 {
        texts.push(format!("{invalid} of {all} cells do not count, and are in no figure: {why}."));
    }
    let (disturbed, why) = cells_of(run, Verdict::Disturbed);
    if disturbed > 0 {
        texts.push(format!(
            "The host disturbed {disturbed} of {all} cells: {why}. They have no figures of their own, and take part in ratios to the reference, \
             corrected by the reference loop."
        ));
    }
    texts
}

/// The first line of the report of a guest.
pub(crate) fn of_guest(run: &Run) -> Option<String> {
    let guest = run.environment.guest.as_ref()?;
    Some(format!("This run took place in {guest}: only ratios within it mean anything."))
}

/// What the figures cannot show, from what is known of the host and the run.
pub(crate) fn cautions(run: &Run) -> Vec<String> {
    let env = &run.environment;
    let mut cautions = Vec::new();
    let mut say = |is_so: bool, text: String| {
        if is_so {
            cautions.push(text);
        }
    };
    say(run.partial.is_some(), format!("The run is not whole: {}.", run.partial.as_deref().unwrap_or_default()));
    say(run.quick, "It was run with --quick: short windows, fewer cases.".to_owned());
    say(
        (run.rounds as usize) < ROUNDS_MIN,
        format!(
            "{} rounds are too few for a 95 % interval ({ROUNDS_MIN} are not): ranges are shown, and nothing is called different.",
            run.rounds
        ),
    );
    let contended = contended(run);
    say(
        !contended.is_empty(),
        format!(
            "Had no CPUs for themselves, but shared them with load and origins, so that no rate of theirs is a capacity: {}.",
            contended.join(", ")
        ),
    );
    of_cells(run).into_iter().for_each(|text| say(true, text));
    say(
        run.scenario.loopback,
        "Everything ran on the loopback of one namespace: no links, no steering, no contenders of the kernel."
            .to_owned(),
    );
    say(
        env.irq_time_accounting == Some(false),
        "This kernel charges soft interrupts to whoever was running. So the balancer's CPU is the busy time of its own CPUs where it has \
         any, and a component's own account is right to a few per cent at best."
            .to_owned(),
    );
    let load = env.load_average / f64::from(env.cpus.max(1));
    say(
        load > 0.5,
        format!(
            "The host was busy when the run began (load average {load:.2} per CPU > 0.5), with the run before or with strangers."
        ),
    );
    say(
        env.cpus > 0 && env.cpus < 4,
        format!(
            "{} CPUs: load and origins share what the balancer does not have. What a balancer of more than one CPU does was not asked.",
            env.cpus
        ),
    );
    say(
        !env.has_pmu,
        "No counters of cycles and instructions: CPU time stands for work, and the CPU's frequency is in it."
            .to_owned(),
    );
    say(env.hypervisor.is_some(), "A virtual machine: its neighbours are part of the noise.".to_owned());
    say(true, "One host: no wire, no switch, no network card took part.".to_owned());
    cautions.extend(run.notes.iter().cloned());
    cautions
}

/// What is missing, and why: one sentence for everything with the same reason.
pub(crate) fn absences(run: &Run) -> Vec<(String, &str)> {
    let mut absences: Vec<(String, &str)> = Vec::new();
    for gap in &run.gaps {
        match absences.iter_mut().find(|(_, why)| *why == gap.why) {
            Some((what, _)) => *what = format!("{what}; {}", gap.what),
            None => absences.push((gap.what.clone(), &gap.why)),
        }
    }
    absences
}

/// Instances of balancers that shared their CPUs, unless all did, as on loopback.
fn contended(run: &Run) -> Vec<&str> {
    let shared = |instance: &&Instance| {
        let measured = run.cells.iter().filter(|cell| cell.instance == instance.id);
        let mut measured = measured.filter_map(|cell| cell.measurement.as_ref()).peekable();
        measured.peek().is_some() && !measured.all(crate::judge::is_box_apart)
    };
    let is_balancer = |instance: &&Instance| crate::judge::layer_of(run, &instance.id) != Layer::Direct;
    let instances = run.scenario.instances.iter().filter(is_balancer).filter(shared);
    if run.scenario.loopback { Vec::new() } else { instances.map(|instance| instance.id.as_str()).collect() }
}

/// Cells that were measured again.
fn repeated(run: &Run) -> usize {
    let key = |cell: &Cell| (cell.case.clone(), cell.instance.clone(), cell.round, cell.block, cell.twin);
    let cells: BTreeSet<_> = run.cells.iter().map(key).collect();
    run.cells.len() - cells.len()
}

/// How many cells have a verdict (or failed, with `Invalid`), and how many for each reason, the most frequent first.
fn cells_of(run: &Run, verdict: Verdict) -> (usize, String) {
    let mut reasons: Vec<(String, usize)> = Vec::new();
    let mut count = 0;
    for cell in &run.cells {
        let judged = cell.judgement.as_ref().filter(|judgement| judgement.verdict == verdict);
        let kinds: Vec<String> = match (&cell.failure, judged) {
            (Some(_), _) if verdict == Verdict::Invalid => vec!["failed".to_owned()],
            (_, Some(judgement)) => judgement.reasons.iter().map(|reason| kind_of(reason)).collect(),
            (_, None) => continue,
        };
        count += 1;
        for kind in kinds {
            match reasons.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, count)) => *count += 1,
                None => reasons.push((kind, 1)),
            }
        }
    }
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let reasons: Vec<String> = reasons.iter().map(|(kind, count)| format!("{kind} ({count})")).collect();
    (count, reasons.join(", "))
}

/// A reason without its figures, which differ between cells.
fn kind_of(reason: &str) -> String {
    const KINDS: [(&str, &str); 8] = [
        ("reference loop", "the reference loop changed"),
        ("stolen", "CPU time stolen by the hypervisor"),
        ("strangers", "CPU time used by strangers"),
        ("errors", "errors"),
        ("drops", "drops at listening sockets"),
        ("quota", "held back by a CPU quota"),
        ("Little", "connections that were not all in use"),
        ("nothing was sent", "nothing was sent"),
    ];
    KINDS.iter().find(|(word, _)| reason.contains(word)).map_or(reason, |(_, kind)| kind).to_owned()
}

/// Cells that failed, or were judged invalid, and why.
pub(crate) fn excluded(figures: Figures<'_>) -> Table {
    let mut table = Table::new("", ["case", "contender", "round", "why"]).words_from(0);
    for cell in &figures.run.cells {
        if let Some(why) = why_excluded(cell) {
            let name =
                figures.run.instance(&cell.instance).map_or(cell.instance.clone(), |instance| title(figures, instance));
            let twin = if cell.twin == 0 { "" } else { ", second" };
            table.row([cell.case.clone(), name, format!("{}{twin}", cell.round + 1), why]);
        }
    }
    table
}

fn why_excluded(cell: &Cell) -> Option<String> {
    if let Some(failure) = &cell.failure {
        let log = failure.log.join(" / ");
        return Some(if log.is_empty() { failure.why.clone() } else { format!("{}: {log}", failure.why) });
    }
    let judgement = cell.judgement.as_ref()?;
    let reasons = || judgement.reasons.join("; ");
    match judgement.verdict {
        Verdict::Invalid => Some(format!("invalid: {}", reasons())),
        Verdict::Disturbed => Some(format!("disturbed, in ratios only: {}", reasons())),
        _ => None,
    }
}

/// The kernel's counters, summed over the rounds of a cell. They can explain a rate that CPU use does not.
pub(crate) fn network(figures: Figures<'_>) -> Table {
    let head = [
        "case",
        "contender",
        "segments sent again",
        "SYNs sent again",
        "listen drops",
        "connections opened",
        "tracked",
        "TIME_WAIT",
    ];
    let mut table = Table::new("", head);
    table.head[1].is_figure = false;
    for case in &figures.run.scenario.cases {
        for instance in figures.instances(&case.name) {
            let cells = figures.cells(&case.name, &instance.id);
            let counters: Vec<&NetCounters> =
                cells.iter().filter_map(|cell| Some(&cell.measurement.as_ref()?.net)).collect();
            let sum = |of: fn(&NetCounters) -> u64| counters.iter().map(|net| of(net)).sum::<u64>();
            let most = |of: fn(&NetCounters) -> u64| counters.iter().map(|net| of(net)).max().unwrap_or(0);
            let row = [
                sum(|net| net.retransmitted),
                sum(|net| net.syn_retransmitted),
                sum(|net| net.listen_drops),
                sum(|net| net.active_opens),
                most(|net| net.conntrack),
                most(|net| net.time_wait),
            ];
            if row.iter().any(|&count| count > 0) {
                let names = [case.name.clone(), title(figures, instance)];
                table.row(names.into_iter().chain(row.map(number::count)));
            }
        }
    }
    table.note("Sums over the rounds; of tracked connections and of TIME_WAIT the most of any round.");
    table
}

/// Every round of every cell.
pub(crate) fn rounds(figures: Figures<'_>) -> Table {
    let head = ["case", "contender", "round", "order", "rate/s or Gbps", "LB CPU/op", "p50", "p99", "verdict"];
    let mut table = Table::new("", head).words_from(8);
    table.head[1].is_figure = false;
    let run = figures.run;
    for cell in run.cells.iter().filter(|cell| cell.measurement.is_some()) {
        let Some(case) = run.case(&cell.case) else { continue };
        let (_, rate) = super::tables::rate_figure(case);
        let own = |name: &str| figures.of_cell(cell, name);
        let cost = own(LB_US).or_else(|| own(super::figures::LB_CORES_PER_GBPS));
        let show = |value: Option<f64>, show: fn(f64) -> String| value.map_or("-".to_owned(), show);
        let twin = if cell.twin == 0 { "" } else { " (second)" };
        table.row([
            cell.case.clone(),
            format!("{}{twin}", cell.instance),
            (cell.round + 1).to_string(),
            (cell.order + 1).to_string(),
            show(own(rate), number::plain),
            show(cost, number::plain),
            show(own("p50_us"), number::micros),
            show(own(P99), number::micros),
            cell.judgement.as_ref().map_or("-", |judgement| number::verdict(judgement.verdict)).to_owned(),
        ]);
    }
    table
}
