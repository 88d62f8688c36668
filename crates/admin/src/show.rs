//! A status for people: what needs a look first, then tables. Bounded, so that it fits one screen; `--json` has all of it.

mod vips;

use comfy_table::{CellAlignment, Table, presets};

use crate::status::{
    ClusterStatus, EndpointState, EndpointStatus, ListenerStatus, MethodStatus, Quantiles, Reload, RouteStatus, Status,
};

pub use vips::{render_flows_text, render_trace_text, render_vips_text};

/// Rows of a table. What needs a look, or is used most, comes first.
const ROWS_MAX: usize = 20;
/// Endpoints named in one sentence, reasons in one cell, errors of one reload.
const NAMED_MAX: usize = 5;

const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// What `steelyard status` prints; with colours of the terminal where `color` asks for them.
pub fn render_status_text(status: &Status, color: bool) -> String {
    let paint = |style: &str, text: &str| if color { format!("{style}{text}{PLAIN}") } else { text.to_owned() };
    let mut text = paint(BOLD, &visible(&title(status))) + "\n\n";
    let findings = findings(status);
    match findings.len() {
        0 => text += &paint(GREEN, "Nothing is wrong."),
        1 => text += "1 thing to look at:",
        count => text += &format!("{count} things to look at:"),
    }
    text.push('\n');
    for finding in &findings {
        // Further lines belong to the same finding.
        text += &format!("- {}\n", paint(RED, &visible(finding)).replace('\n', "\n  "));
    }
    for table in [
        listeners(&status.listeners),
        routes(&status.routes),
        methods(&status.methods),
        clusters(&status.clusters),
        endpoints(&status.clusters),
        vips::vips(&status.vips),
        vips::endpoints(&status.vips),
    ] {
        if !table.is_empty() {
            text += &format!("\n{}", visible(&table));
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

/// What an operator wants to know before anything else, the widest first.
fn findings(status: &Status) -> Vec<String> {
    let mut findings = Vec::new();
    if status.draining {
        findings
            .push("steelyard is draining: it takes no new connections, and ends when the old ones are done".to_owned());
    }
    if let Some(reload) = status.last_reload.as_ref().filter(|reload| !reload.ok) {
        findings.push(refused_reload(status, reload));
    }
    for cluster in &status.clusters {
        cluster_findings(cluster, &mut findings);
    }
    vips::findings(status, &mut findings);
    let internal = telemetry::Reason::Internal.name();
    let faults: u64 = status.listeners.iter().filter_map(|listener| listener.refused.get(internal)).sum();
    if faults > 0 {
        findings.push(format!(
            "{faults} times something failed by a fault of steelyard itself: please report it, with its log"
        ));
    }
    findings
}

fn refused_reload(status: &Status, reload: &Reload) -> String {
    let ago = duration(status.unix_seconds.saturating_sub(reload.unix_seconds));
    let errors = shortened(reload.errors.iter().map(String::as_str), "\n");
    format!("the last reload, {ago} ago, was refused; generation {} goes on:\n{errors}", status.generation)
}

fn cluster_findings(cluster: &ClusterStatus, findings: &mut Vec<String>) {
    let name = &cluster.name;
    let usable = |endpoint: &&EndpointStatus| endpoint.state == EndpointState::Healthy && endpoint.weight > 0;
    if cluster.endpoints.is_empty() {
        findings.push(format!("{name} has no endpoint now: do its names resolve?"));
    } else if cluster.panic {
        findings.push(format!(
            "{name} is in panic: too few of its endpoints are usable, so unhealthy and ejected ones get requests, too"
        ));
    } else if cluster.endpoints.iter().filter(usable).count() == 0 {
        findings.push(format!("{name} takes no requests: none of its endpoints is usable"));
    }
    let states =
        cluster.endpoints.iter().map(|endpoint| (endpoint.state, endpoint.address.as_str(), endpoint.why.as_deref()));
    endpoint_findings(name, &states.collect::<Vec<_>>(), findings);
}

/// Of the endpoints of one cluster or vip, each with its state, its address and the reason.
fn endpoint_findings(name: &str, endpoints: &[(EndpointState, &str, Option<&str>)], findings: &mut Vec<String>) {
    for state in [EndpointState::Unhealthy, EndpointState::Ejected, EndpointState::Draining] {
        let of_it: Vec<_> = endpoints.iter().filter(|(this, ..)| *this == state).collect();
        let who = match (of_it.len(), endpoints.len()) {
            (0, _) => continue,
            (1, 1) => format!("the only endpoint of {name} is"),
            (1, all) => format!("1 of {all} endpoints of {name} is"),
            (some, all) if some == all => format!("all {all} endpoints of {name} are"),
            (some, all) => format!("{some} of {all} endpoints of {name} are"),
        };
        let each = of_it.iter().map(|(_, address, why)| match why {
            Some(why) => format!("{address} {why}"),
            None => (*address).to_owned(),
        });
        findings.push(format!("{who} {}: {}", state_name(state), shortened(each, ", ")));
    }
}

fn listeners(listeners: &[ListenerStatus]) -> String {
    let row = |listener: &ListenerStatus| {
        let mut refused: Vec<(&String, &u64)> = listener.refused.iter().collect();
        refused.sort_by(|left, right| right.1.cmp(left.1));
        let refused = shortened(refused.iter().map(|(reason, count)| format!("{count} {reason}")), ", ");
        [
            listener.name.clone(),
            listener.bind.clone(),
            listener.protocol.clone(),
            listener.connections_open.to_string(),
            listener.connections_total.to_string(),
            listener.requests.to_string(),
            refused,
        ]
    };
    let head = ["LISTENER", "BIND", "PROTOCOL", "OPEN", "ACCEPTED", "REQUESTS", "REFUSED OR CUT"];
    table(head, &[3, 4, 5], listeners.iter().map(row))
}

fn routes(routes: &[RouteStatus]) -> String {
    let mut routes: Vec<&RouteStatus> = routes.iter().collect();
    routes.sort_by_key(|route| std::cmp::Reverse(route.requests));
    let row = |route: &&RouteStatus| {
        [
            route.name.clone(),
            route.listener.clone(),
            route.cluster.clone(),
            route.requests.to_string(),
            quantile(route.added_us, |quantiles| quantiles.p50),
            quantile(route.added_us, |quantiles| quantiles.p99),
            quantile(route.upstream_us, |quantiles| quantiles.p50),
            quantile(route.upstream_us, |quantiles| quantiles.p99),
        ]
    };
    let head = ["ROUTE", "LISTENER", "CLUSTER", "REQUESTS", "ADDED p50", "p99", "UPSTREAM p50", "p99"];
    table(head, &[3, 4, 5, 6, 7], routes.iter().map(row))
}

fn methods(methods: &[MethodStatus]) -> String {
    let calls = |method: &MethodStatus| method.codes.values().sum::<u64>();
    let mut methods: Vec<&MethodStatus> = methods.iter().collect();
    methods.sort_by_key(|method| std::cmp::Reverse(calls(method)));
    let row = |method: &&MethodStatus| {
        let mut failed: Vec<(&String, &u64)> = method.codes.iter().filter(|(code, _)| *code != "OK").collect();
        failed.sort_by(|left, right| right.1.cmp(left.1));
        [
            format!("{}/{}", method.service, method.method),
            method.listener.clone(),
            calls(method).to_string(),
            quantile(method.duration_us, |quantiles| quantiles.p50),
            quantile(method.duration_us, |quantiles| quantiles.p99),
            shortened(failed.iter().map(|(code, count)| format!("{count} {code}")), ", "),
        ]
    };
    table(["METHOD", "LISTENER", "CALLS", "TOOK p50", "p99", "NOT OK"], &[2, 3, 4], methods.iter().map(row))
}

fn clusters(clusters: &[ClusterStatus]) -> String {
    let row = |cluster: &ClusterStatus| {
        let healthy = cluster.endpoints.iter().filter(|endpoint| endpoint.state == EndpointState::Healthy).count();
        [
            cluster.name.clone(),
            cluster.algorithm.clone(),
            format!("{healthy} of {}", cluster.endpoints.len()),
            cluster.requests.to_string(),
            cluster.retries.to_string(),
        ]
    };
    table(["CLUSTER", "ALGORITHM", "HEALTHY", "REQUESTS", "RETRIES"], &[2, 3, 4], clusters.iter().map(row))
}

fn endpoints(clusters: &[ClusterStatus]) -> String {
    let of_cluster = |cluster: &'_ ClusterStatus| {
        let name = cluster.name.clone();
        cluster.endpoints.clone().into_iter().map(move |endpoint| (name.clone(), endpoint))
    };
    let mut endpoints: Vec<(String, EndpointStatus)> = clusters.iter().flat_map(of_cluster).collect();
    // A stable sort: otherwise as in the file.
    endpoints.sort_by_key(|(_, endpoint)| endpoint.state == EndpointState::Healthy);
    let row = |(cluster, endpoint): &(String, EndpointStatus)| {
        [
            endpoint.address.clone(),
            cluster.clone(),
            state_name(endpoint.state).to_owned(),
            endpoint.weight.to_string(),
            endpoint.in_flight.to_string(),
            endpoint.connections.to_string(),
            endpoint.requests.to_string(),
            endpoint.failures.to_string(),
            endpoint.why.clone().unwrap_or_default(),
        ]
    };
    let head = ["ENDPOINT", "CLUSTER", "STATE", "WEIGHT", "IN FLIGHT", "CONNECTIONS", "REQUESTS", "FAILED", "WHY"];
    table(head, &[3, 4, 5, 6, 7], endpoints.iter().map(row))
}

/// Empty where there is no row. `numbers` are the columns that are set to the right.
fn table<const N: usize>(
    head: [&str; N],
    numbers: &[usize],
    rows: impl ExactSizeIterator<Item = [String; N]>,
) -> String {
    let more = rows.len().saturating_sub(ROWS_MAX);
    let lines = table_of(head, numbers, ROWS_MAX, rows);
    if more == 0 { lines } else { format!("{lines}and {more} more: `--json` has all\n") }
}

/// The same with another limit, and no word of what is left out.
fn table_of<const N: usize>(
    head: [&str; N],
    numbers: &[usize],
    rows_max: usize,
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(head);
    table.add_rows(rows.take(rows_max));
    if table.row_iter().next().is_none() {
        return String::new();
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if numbers.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn state_name(state: EndpointState) -> &'static str {
    match state {
        EndpointState::Healthy => "healthy",
        EndpointState::Unhealthy => "unhealthy",
        EndpointState::Ejected => "ejected",
        EndpointState::Draining => "draining",
    }
}

/// The first few, and how many there are besides.
fn shortened<T: Into<String>>(items: impl ExactSizeIterator<Item = T>, between: &str) -> String {
    let more = items.len().saturating_sub(NAMED_MAX);
    let mut named: Vec<String> = items.take(NAMED_MAX).map(Into::into).collect();
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    named.join(between)
}

fn quantile(quantiles: Option<Quantiles>, which: fn(&Quantiles) -> f64) -> String {
    match quantiles.as_ref().map(which) {
        None => "-".into(),
        Some(us) if us < 1e3 => format!("{us:.0} us"),
        Some(us) if us < 1e6 => format!("{:.1} ms", us / 1e3),
        Some(us) => format!("{:.1} s", us / 1e6),
    }
}

/// In its two greatest units.
fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// Without what a terminal would obey: names and errors may hold anything.
fn visible(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}

#[cfg(test)]
mod tests;
