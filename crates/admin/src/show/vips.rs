//! The kernel plane on the screen: vips and their endpoints, flows, traces.

use super::table::{self, Layout, Row};
use super::{WIDTH, duration, note, shortened, state_name, visible};
use crate::status::Status;
use crate::vip::{
    AnnouncementState, AnnouncementStatus, FlowStatus, Flows, KernelPlaneStatus, TraceReport, VipEndpointStatus,
    VipStatus,
};

/// What `steelyard vip list` prints.
pub fn render_vips_text(status: &Status) -> String {
    if status.vips.is_empty() {
        return "no vips: the file has none and none was added\n".to_owned();
    }
    let row = |vip: &VipStatus| {
        let cells = [
            vip.name.clone(),
            vip.address.clone(),
            vip.tunnel.as_ref().map_or_else(|| vip.mode.clone(), |tunnel| format!("{}, {tunnel}", vip.mode)),
            vip.algorithm.clone(),
            if vip.added { "a command" } else { "the file" }.to_owned(),
        ];
        Row::noted(cells, lists(vip))
    };
    let head = ["VIP", "ADDRESS", "MODE", "BALANCE", "FROM"];
    let layout = Layout { names: &[0], addresses: &[1], numbers: &[] };
    visible(&table::render(WIDTH, head, &layout, status.vips.iter().map(row)))
}

/// Interfaces and endpoints are lists, and no column of a terminal is wide enough for them.
fn lists(vip: &VipStatus) -> String {
    let along = if vip.along_routes { "along the routes: " } else { "" };
    let interfaces = match shortened(vip.interfaces.iter(), ", ") {
        none if none.is_empty() => "none".to_owned(),
        found => found,
    };
    let endpoints = shortened(vip.endpoints.iter().map(|endpoint| endpoint.address.as_str()), ", ");
    let endpoints = if endpoints.is_empty() { String::new() } else { format!("\n  endpoints   {endpoints}") };
    let announced = vip.announcement.as_ref().map_or_else(String::new, |it| format!("\n  announced   {}", state(it)));
    match vip.mode.as_str() {
        "socket" => format!("  interfaces  none: at the socket alone{endpoints}"),
        _ => format!("  interfaces  {along}{interfaces}{endpoints}{announced}"),
    }
}

fn state(announcement: &AnnouncementStatus) -> String {
    let why = announcement.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    match announcement.state {
        AnnouncementState::Announced => format!("by {}{why}", announcement.by),
        AnnouncementState::Waiting => format!("not yet{why}"),
        AnnouncementState::Withdrawn => format!("no{why}"),
    }
}

/// What `steelyard flows` prints.
pub fn render_flows_text(flows: &Flows) -> String {
    let row = |flow: &FlowStatus| {
        Row::of([
            flow.vip.clone(),
            flow.protocol.clone(),
            flow.client.clone(),
            flow.endpoint.clone(),
            flow.state.clone(),
            duration(flow.age_seconds),
            flow.idle_seconds.map_or_else(|| "-".to_owned(), duration),
        ])
    };
    // The table leaves out the address of the vip, which `vip list` shows: a line with it is too long for most
    // terminals.
    let head = ["VIP", "PROTO", "CLIENT", "ENDPOINT", "STATE", "AGE", "IDLE"];
    let layout = Layout { names: &[0], addresses: &[2, 3], numbers: &[5, 6] };
    let mut text = table::render(WIDTH, head, &layout, flows.flows.iter().map(row));
    if flows.flows.is_empty() {
        text += "no flows\n";
    }
    if flows.more {
        text += "and more: `--limit N` shows them\n";
    }
    text
}

/// What `steelyard trace` prints: a line for each stage, and the verdict.
pub fn render_trace_text(report: &TraceReport) -> String {
    let width = report.steps.iter().map(|step| step.stage.len()).max().unwrap_or(0);
    let mut text: String = report.steps.iter().map(|step| format!("{:width$}  {}\n", step.stage, step.text)).collect();
    text += &report.verdict;
    visible(text.trim_end()) + "\n"
}

pub(super) fn vips(vips: &[VipStatus]) -> String {
    let row = |vip: &VipStatus| {
        let usable = vip.endpoints.iter().filter(|endpoint| endpoint.state.takes_work()).count();
        let cells = [
            vip.name.clone(),
            vip.address.clone(),
            if vip.mode == "local" { "local".to_owned() } else { format!("{usable} of {}", vip.endpoints.len()) },
            vip.flows.to_string(),
            vip.flows_total.to_string(),
            rate(vip.rates.flows_per_second),
            rate(vip.rates.packets_per_second),
            rate(vip.rates.bits_per_second),
        ];
        Row::noted(cells, lines([at_sockets(vip.sockets, vip.sockets_total), note("dropped", &vip.drops)]))
    };
    let head = ["VIP", "ADDRESS", "USABLE", "FLOWS", "MADE", "NEW/s", "PACKETS/s", "BITS/s"];
    super::table(head, &Layout { names: &[0], addresses: &[1], numbers: &[2, 3, 4, 5, 6, 7] }, vips.iter().map(row))
}

pub(super) fn endpoints(vips: &[VipStatus]) -> String {
    let mut endpoints: Vec<(&str, &VipEndpointStatus)> =
        vips.iter().flat_map(|vip| vip.endpoints.iter().map(|endpoint| (vip.name.as_str(), endpoint))).collect();
    // The sort is stable, so that equal endpoints stay in the order of the file.
    endpoints.sort_by_key(|(_, endpoint)| endpoint.state.takes_work());
    let row = |(vip, endpoint): &(&str, &VipEndpointStatus)| {
        let cells = [
            endpoint.address.clone(),
            (*vip).to_owned(),
            state_name(endpoint.state).to_owned(),
            endpoint.weight.to_string(),
            endpoint.flows.to_string(),
            endpoint.flows_total.to_string(),
            endpoint.packets_to.to_string(),
            endpoint.packets_from.to_string(),
        ];
        let at_sockets = at_sockets(endpoint.sockets, endpoint.sockets_total);
        Row::noted(cells, lines([endpoint.why.clone().unwrap_or_default(), at_sockets]))
    };
    let head = ["ENDPOINT", "VIP", "STATE", "WEIGHT", "FLOWS", "MADE", "PACKETS TO", "FROM"];
    super::table(head, &Layout { names: &[1], addresses: &[0], numbers: &[3, 4, 5, 6, 7] }, endpoints.iter().map(row))
}

/// What the kernel plane holds, and its memory.
pub(super) fn tables(plane: &KernelPlaneStatus) -> String {
    let mebibytes = plane.map_bytes as f64 / f64::from(1 << 20);
    let (entries, entries_max) = (plane.entries, plane.entries_max);
    format!("Table of flows: {entries} of at most {entries_max} entries. Memory of all tables: {mebibytes:.1} MiB.\n")
}

/// Connections that are balanced at the socket; empty if there never were any.
fn at_sockets(open: u64, made: u64) -> String {
    if made == 0 { String::new() } else { format!("at the socket: {open} open, {made} made") }
}

/// One below the other, without those that are empty.
fn lines(notes: [String; 2]) -> String {
    let [first, second] = notes;
    if first.is_empty() || second.is_empty() { first + &second } else { format!("{first}\n{second}") }
}

/// Formats a rate with an SI prefix from a thousand upwards.
fn rate(rate: f64) -> String {
    match rate {
        rate if rate < 1e3 => format!("{rate:.0}"),
        rate if rate < 1e6 => format!("{:.1} k", rate / 1e3),
        rate if rate < 1e9 => format!("{:.1} M", rate / 1e6),
        rate => format!("{:.1} G", rate / 1e9),
    }
}
