//! Requests through layer 4 and layer 7, as ab reports them.

use crate::record::{Case, Distribution, Layer, LoadKind, Measurement, Mode};

use crate::stats::ROUNDS_MIN;

use super::super::Language;
use super::super::figures::{Figures, LB_US, ORIGIN_US, P99, RPS, lb_seconds, mib};
use super::super::number;
use super::super::table::Table;
use super::{absent, case_title, middle, or_dash, rps, title, verdict};

pub(super) fn published(figures: Figures<'_>) -> Vec<Table> {
    closed_http(figures).map(|case| published_of(figures, case)).collect()
}

fn closed_http(figures: Figures<'_>) -> impl Iterator<Item = &Case> {
    let is_http = |case: &&Case| matches!(case.load.kind, LoadKind::Http | LoadKind::Http10 | LoadKind::HttpClose);
    figures.run.scenario.cases.iter().filter(is_http).filter(|case| case.load.mode == Mode::Closed)
}

fn published_of(figures: Figures<'_>, case: &Case) -> Table {
    let connections = f64::from(case.load.connections);
    let caption = case.label.as_ref().map(|label| match figures.language {
        Language::En => format!("{label}: {}", case.name),
        Language::Zh => format!("在 {label} 下 (at {})", case.name),
    });
    let mut table = Table::new(
        caption.unwrap_or_else(|| format!("{}: {}", case.name, case.title)),
        ["type", "LB CPU/Memory", "backend CPU/Memory", "r/s", "wait time(ms) / r", "server process time(ms) / r"],
    );
    for instance in figures.instances(&case.name) {
        let rate = middle(figures, &case.name, &instance.id, |m| (m.ok_per_s > 0.0).then_some(m.ok_per_s));
        table.row([
            title(figures, instance),
            balancer(figures, case, &instance.id),
            origin(figures, case, &instance.id),
            rps(figures, &case.name, &instance.id),
            or_dash(rate, |rate| format!("{:.3}", connections * 1e3 / rate)),
            or_dash(rate, |rate| format!("{:.3}", 1e3 / rate)),
        ]);
    }
    super::add_gaps(&mut table, figures, 3);
    table.note(
        "The last two columns are ab's, and say nothing that r/s does not: they are connections / (r/s) and 1 / (r/s), neither a time that \
         a request waited nor one that a server worked. ≥: the balancer was not at its limit.",
    );
    table
}

/// The first of the published cases, with its columns, and the cost of a request.
pub(super) fn summary(figures: Figures<'_>) -> Option<Table> {
    let case = closed_http(figures).next()?;
    let head = [
        "type",
        "LB CPU/Memory",
        "backend CPU/Memory",
        "r/s",
        "wait time(ms) / r",
        "LB µs/req",
        "backend µs/req",
        "p99",
        "verdict",
    ];
    let mut table = Table::new(format!("{}: {}", case_title(case), case.title), head).words_from(8);
    for instance in figures.instances(&case.name) {
        let id = &instance.id;
        let rate = middle(figures, &case.name, id, |m| (m.ok_per_s > 0.0).then_some(m.ok_per_s));
        let rounds = figures.values(&case.name, id, RPS).len();
        let p99 = figures.estimate(&case.name, id, P99);
        table.row([
            title(figures, instance),
            balancer(figures, case, id),
            origin(figures, case, id),
            rps(figures, &case.name, id),
            or_dash(rate, |rate| {
                let wait_ms = f64::from(case.load.connections) * 1e3 / rate;
                number::of_rounds(wait_ms, rounds, |wait_ms| format!("{wait_ms:.1}"))
            }),
            super::cell(figures, &case.name, id, LB_US, number::plain),
            super::cell(figures, &case.name, id, ORIGIN_US, number::plain),
            number::median(p99, number::micros),
            verdict(figures, &case.name, id),
        ]);
    }
    super::add_gaps(&mut table, figures, 3);
    table.note(
        "≥: the balancer was not at its limit; the verdict says what was. The wait is ab's: connections / (r/s).",
    );
    Some(table)
}

/// `680m/130MiB`, in the notation of kubectl.
fn balancer(figures: Figures<'_>, case: &Case, instance: &str) -> String {
    let layer = crate::judge::layer_of(figures.run, instance);
    if layer == Layer::Direct {
        return "-".to_owned();
    }
    let cpu = middle(figures, &case.name, instance, |m| Some(lb_seconds(m, layer)? / m.window_s));
    let memory =
        middle(figures, &case.name, instance, |m| Some(mib(m.memory.balancer_bytes())).filter(|&mib| mib > 0.0));
    share(cpu, memory)
}

fn origin(figures: Figures<'_>, case: &Case, instance: &str) -> String {
    let cpu = middle(figures, &case.name, instance, |m| Some(m.cpu.origin_s / m.window_s));
    share(cpu, middle(figures, &case.name, instance, |m| Some(mib(m.memory.origin_rss))))
}

fn share(cpus: Option<f64>, memory_mib: Option<f64>) -> String {
    let memory = or_dash(memory_mib, |mib| format!("{mib:.0}MiB"));
    or_dash(cpus, |cpus| format!("{:.0}m/{memory}", cpus * 1e3))
}

pub(super) fn honest(figures: Figures<'_>) -> Vec<Table> {
    let of_case = |case| [connection_times(figures, case), costs(figures, case)];
    closed_http(figures).flat_map(of_case).collect()
}

fn connection_times(figures: Figures<'_>, case: &Case) -> Table {
    let mut table = Table::new(
        format!("{}: connection times in ms, min / mean / sd / median / max, as ab reports them", case_title(case)),
        ["type", "Connect", "Waiting", "Total"],
    );
    for instance in figures.instances(&case.name) {
        let rounds = figures.values(&case.name, &instance.id, RPS).len();
        let is_coarse = rounds < ROUNDS_MIN;
        let of = |which: fn(&Measurement) -> Option<&Distribution>| {
            let figure = |figure: fn(&Distribution) -> f64| {
                let value = middle(figures, &case.name, &instance.id, |m| which(m).filter(|d| d.count > 0).map(figure));
                let ms = |us: f64| number::plain(us / 1e3);
                or_dash(value, |us| if is_coarse { number::in_two_digits(us, ms) } else { ms(us) })
            };
            let p50 = |d: &Distribution| d.percentile_us(50.0).unwrap_or(f64::NAN);
            let all = [
                figure(|d| d.min_us),
                figure(|d| d.mean_us),
                figure(|d| d.stdev_us),
                figure(p50),
                figure(|d| d.max_us),
            ];
            if all.iter().all(|text| text == "-") {
                return absent(figures, &case.name, &instance.id);
            }
            let mark = if is_coarse { format!(" (n={rounds})") } else { String::new() };
            format!("{}{mark}", all.join(" / "))
        };
        table.row([
            title(figures, instance),
            of(|m| m.connect.as_ref()),
            of(|m| m.waiting.as_ref()),
            of(|m| m.service.as_ref()),
        ]);
    }
    table.note("Each is the median over the rounds. Connect counts only connections that were made within the window.");
    table
}

/// The share of the rate that this many connections would reach if only the origin's delay took time.
fn ceiling_share(figures: Figures<'_>, case: &Case, instance: &str) -> Option<f64> {
    let delay = case.origin.arguments.iter().find_map(|argument| argument.strip_prefix("--delay="))?;
    let delay = crate::units::duration(delay).ok()?.as_secs_f64();
    let ceiling = f64::from(case.load.connections) / delay;
    middle(figures, &case.name, instance, |m| (delay > 0.0).then_some(m.ok_per_s / ceiling))
}

/// The cost of a request for the balancer, and the cost that the balancer causes the origins.
fn costs(figures: Figures<'_>, case: &Case) -> Table {
    let reference = &figures.run.scenario.reference;
    let than = figures.run.instance(reference).map_or(reference.clone(), |instance| title(figures, instance));
    let head = [
        "type".to_owned(),
        "LB µs/req".to_owned(),
        "backend µs/req".to_owned(),
        format!("backend, more than {than}"),
        "client CPU".to_owned(),
        "upstream reuse".to_owned(),
        format!("r/s against {than}"),
        "of connections / delay".to_owned(),
        "verdict".to_owned(),
    ];
    let mut table = Table::new(format!("{}: who paid for a request", case_title(case)), head).words_from(8);
    for instance in figures.instances(&case.name) {
        let id = &instance.id;
        let reuse = middle(figures, &case.name, id, |m| Some(1.0 - m.origin_connections? as f64 / m.ok.max(1) as f64));
        let loss = figures.ratio(&case.name, id, reference, super::super::figures::RPS).filter(|_| id != reference);
        let extra = figures.shift(&case.name, id, reference, ORIGIN_US).filter(|_| id != reference);
        table.row([
            title(figures, instance),
            super::cell(figures, &case.name, id, LB_US, number::plain),
            super::cell(figures, &case.name, id, ORIGIN_US, number::plain),
            extra.map_or("-".to_owned(), |extra| number::with_interval(&extra, number::plain)),
            or_dash(middle(figures, &case.name, id, |m| Some(m.cpu.client_s / m.window_s)), |cpus| {
                format!("{:.0}m", cpus * 1e3)
            }),
            or_dash(reuse, |reuse| number::per_cent(reuse.max(0.0))),
            loss.map_or("-".to_owned(), |loss| number::change(loss.median - 1.0)),
            or_dash(ceiling_share(figures, case, id), number::per_cent),
            verdict(figures, &case.name, id),
        ]);
    }
    table.note("A balancer that does not reuse its connections upstream makes the origins pay for it; the figure is theirs, the cause is not.");
    table.notes.extend(super::softirq_note(figures, &case.name));
    table
}
