//! Renders a status for people: first the findings, then tables. The output is bounded so that it fits one screen of 80
//! columns; `--json` shows everything.

mod table;
mod top;
mod vips;

use std::collections::BTreeMap;

use crate::status::{
    ClusterStatus, EndpointState, EndpointStatus, ListenerStatus, MethodStatus, Quantiles, RouteStatus, Status,
    ZoneStatus,
};
use crate::{Finding, Severity};
use table::{Layout, Row, wrapped};

pub use top::{TopOptions, TopSort, TopView, render_top_text};
pub use vips::{render_flows_text, render_trace_text, render_vips_text};

/// Columns of the screen.
const WIDTH: usize = 80;
/// The maximum number of rows of a table. Rows with a problem, or the most used ones, come first.
const ROWS_MAX: usize = 20;
/// The maximum number of endpoints in a sentence, of reasons in a cell, and of errors of a reload.
const NAMED_MAX: usize = 5;

const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// Returns what `steelyard status` prints, in colour if `color` is set.
pub fn render_status_text(status: &Status, color: bool) -> String {
    let paint = |style: &str, text: &str| if color { format!("{style}{text}{PLAIN}") } else { text.to_owned() };
    let mut text = paint(BOLD, &visible(&title(status))) + "\n\n";
    let wrong = status.findings.iter().filter(|finding| finding.severity == Severity::Wrong).count();
    let notices = status.findings.len() - wrong;
    text += &match wrong {
        0 => paint(GREEN, "Nothing is wrong."),
        1 => "1 thing is wrong:".to_owned(),
        count => format!("{count} things are wrong:"),
    };
    text.push('\n');
    text += &listed(&status.findings, Severity::Wrong, |line| paint(RED, line));
    if notices > 0 {
        text += if notices == 1 { "1 thing to look at:\n" } else { "Things to look at:\n" };
        text += &listed(&status.findings, Severity::Notice, str::to_owned);
    }
    if status.listeners.is_empty() && !status.vips.is_empty() {
        text += "\nThere are no listeners: this process serves vips alone.\n";
    }
    for table in [
        listeners(&status.listeners),
        routes(&status.routes),
        methods(&status.methods),
        clusters(&status.clusters),
        endpoints(&status.clusters),
        vips::vips(&status.vips),
        vips::endpoints(&status.vips),
        status.kernel_plane.as_ref().map(vips::tables).unwrap_or_default(),
    ] {
        if !table.is_empty() {
            text += &format!("\n{}", visible(&table));
        }
    }
    text
}

/// Returns one list item for each finding of this severity.
fn listed(findings: &[Finding], severity: Severity, paint: impl Fn(&str) -> String) -> String {
    let mut text = String::new();
    for finding in findings.iter().filter(|finding| finding.severity == severity) {
        let lines = finding.text.lines().flat_map(|line| wrapped(&visible(line), WIDTH - 2));
        for (number, line) in lines.enumerate() {
            let mark = if number == 0 { "- " } else { "  " };
            text += &format!("{mark}{}\n", paint(&line));
        }
    }
    text
}

fn title(status: &Status) -> String {
    format!(
        "steelyard {}, pid {}, up {}, {} {}, generation {}",
        status.steelyard,
        status.pid,
        duration(status.uptime_seconds),
        status.workers,
        if status.workers == 1 { "worker" } else { "workers" },
        status.generation
    )
}

fn listeners(listeners: &[ListenerStatus]) -> String {
    let row = |listener: &ListenerStatus| {
        let cells = [
            listener.name.clone(),
            listener.bind.clone(),
            listener.protocol.clone(),
            listener.connections_open.to_string(),
            listener.connections_total.to_string(),
            listener.requests.to_string(),
        ];
        Row::noted(cells, note("refused or cut", &listener.refused))
    };
    let head = ["LISTENER", "BIND", "PROTOCOL", "OPEN", "ACCEPTED", "REQUESTS"];
    table(head, &Layout { names: &[0], addresses: &[1], numbers: &[3, 4, 5] }, listeners.iter().map(row))
}

fn routes(routes: &[RouteStatus]) -> String {
    let mut routes: Vec<&RouteStatus> = routes.iter().collect();
    routes.sort_by_key(|route| std::cmp::Reverse(route.requests));
    let row = |route: &&RouteStatus| {
        Row::of([
            route.name.clone(),
            route.listener.clone(),
            route.cluster.clone(),
            route.requests.to_string(),
            quantiles(route.added_us),
            quantiles(route.upstream_us),
        ])
    };
    let head = ["ROUTE", "LISTENER", "CLUSTER", "REQUESTS", "ADDED p50/p99", "UPSTREAM p50/p99"];
    table(head, &Layout { names: &[0, 1, 2], addresses: &[], numbers: &[3, 4, 5] }, routes.iter().map(row))
}

fn methods(methods: &[MethodStatus]) -> String {
    let calls = |method: &MethodStatus| method.codes.values().sum::<u64>();
    let mut methods: Vec<&MethodStatus> = methods.iter().collect();
    methods.sort_by_key(|method| std::cmp::Reverse(calls(method)));
    let row = |method: &&MethodStatus| {
        let failed = method.codes.iter().filter(|(code, _)| *code != "OK");
        let failed = failed.map(|(code, count)| (code.clone(), *count)).collect();
        let cells = [
            format!("{}/{}", method.service, method.method),
            method.listener.clone(),
            calls(method).to_string(),
            quantiles(method.duration_us),
        ];
        Row::noted(cells, note("not OK", &failed))
    };
    let layout = Layout { names: &[0, 1], addresses: &[], numbers: &[2, 3] };
    table(["METHOD", "LISTENER", "CALLS", "TOOK p50/p99"], &layout, methods.iter().map(row))
}

fn clusters(clusters: &[ClusterStatus]) -> String {
    let row = |cluster: &ClusterStatus| {
        let usable = cluster.endpoints.iter().filter(|endpoint| endpoint.state.takes_work()).count();
        Row::of([
            cluster.name.clone(),
            cluster.algorithm.clone(),
            format!("{usable} of {}", cluster.endpoints.len()),
            cluster.requests.to_string(),
            cluster.retries.to_string(),
        ])
    };
    let layout = Layout { names: &[0], addresses: &[], numbers: &[2, 3, 4] };
    table(["CLUSTER", "ALGORITHM", "USABLE", "REQUESTS", "RETRIES"], &layout, clusters.iter().map(row))
}

fn endpoints(clusters: &[ClusterStatus]) -> String {
    let of_cluster = |cluster: &'_ ClusterStatus| {
        let (name, used) = (cluster.name.clone(), cluster.priority);
        let stays_in_zone = cluster.zone_share == Some(1.0);
        let stands_by = move |endpoint: &EndpointStatus| {
            used.is_some_and(|used| used != endpoint.priority) || stays_in_zone && endpoint.zone != ZoneStatus::Own
        };
        cluster.endpoints.clone().into_iter().map(move |endpoint| (name.clone(), stands_by(&endpoint), endpoint))
    };
    let mut endpoints: Vec<(String, bool, EndpointStatus)> = clusters.iter().flat_map(of_cluster).collect();
    // The sort is stable, so that equal endpoints stay in the order of the file.
    endpoints.sort_by_key(|(.., endpoint)| endpoint.state.takes_work());
    let row = |(cluster, stands_by, endpoint): &(String, bool, EndpointStatus)| {
        let state = if *stands_by && endpoint.state.takes_work() { "standby" } else { state_name(endpoint.state) };
        let cells = [
            endpoint.address.clone(),
            cluster.clone(),
            state.to_owned(),
            endpoint.weight.to_string(),
            endpoint.in_flight.to_string(),
            endpoint.connections.to_string(),
            endpoint.requests.to_string(),
            endpoint.failures.to_string(),
        ];
        Row::noted(cells, endpoint.why.clone().unwrap_or_default())
    };
    let head = ["ENDPOINT", "CLUSTER", "STATE", "WEIGHT", "BUSY", "CONNS", "REQUESTS", "FAILED"];
    table(head, &Layout { names: &[1], addresses: &[0], numbers: &[3, 4, 5, 6, 7] }, endpoints.iter().map(row))
}

/// Formats counts by kind, most frequent first. Returns an empty string if there are none.
fn note(title: &str, counts: &BTreeMap<String, u64>) -> String {
    if counts.is_empty() {
        return String::new();
    }
    let mut counts: Vec<(&String, &u64)> = counts.iter().collect();
    counts.sort_by(|left, right| right.1.cmp(left.1));
    format!("{title}: {}", shortened(counts.iter().map(|(what, count)| format!("{count} {what}")), ", "))
}

/// Renders at most [`ROWS_MAX`] rows. Returns an empty string if there is no row.
fn table<const N: usize>(head: [&str; N], layout: &Layout<'_>, rows: impl ExactSizeIterator<Item = Row<N>>) -> String {
    let more = rows.len().saturating_sub(ROWS_MAX);
    let lines = table::render(WIDTH, head, layout, rows.take(ROWS_MAX));
    if more == 0 { lines } else { format!("{lines}and {more} more: `--json` shows them all\n") }
}

pub(crate) fn state_name(state: EndpointState) -> &'static str {
    match state {
        EndpointState::Healthy => "healthy",
        EndpointState::Unchecked => "unchecked",
        EndpointState::Unhealthy => "unhealthy",
        EndpointState::Ejected => "ejected",
        EndpointState::Draining => "draining",
    }
}

/// Joins the first few items and says how many more there are.
pub(crate) fn shortened<T: Into<String>>(items: impl ExactSizeIterator<Item = T>, between: &str) -> String {
    let more = items.len().saturating_sub(NAMED_MAX);
    let mut named: Vec<String> = items.take(NAMED_MAX).map(Into::into).collect();
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    named.join(between)
}

fn quantiles(quantiles: Option<Quantiles>) -> String {
    quantiles.map_or_else(|| "-".into(), |of| format!("{} / {}", time(of.p50), time(of.p99)))
}

pub(crate) fn time(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.0} us"),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

/// Formats a duration in its two largest units.
pub(crate) fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// Replaces control characters, which a terminal would act on, and characters that reorder or hide text: names and errors may contain
/// anything.
pub fn visible(text: &str) -> String {
    text.replace(|c: char| (c.is_control() && c != '\n') || is_format(c), "\u{fffd}")
}

/// Characters without a width that change how others are shown: directions of writing, joiners, and line separators.
fn is_format(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

pub(crate) fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

#[cfg(test)]
pub(crate) mod tests;
