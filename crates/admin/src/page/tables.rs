//! The tables of the page.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::{ROWS, Sort, View, Wish, mark, per_second, quantiles};
use crate::history::Point;
use crate::replicas::{sum, sum_so_far};
use crate::show::{duration, state_name, visible};
use crate::status::{
    ClusterStatus, EndpointCause, EndpointState, EndpointStatus, ListenerStatus, RouteStatus, Status, ZoneStatus,
};
use crate::vip::{VipEndpointStatus, VipStatus};
use crate::{Replica, SoFar};

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// A form for the text that rows must contain.
fn find(wish: &Wish, id: &str) -> Markup {
    html! {
        form method="get" action={ "/#" (id) } role="search" {
            label { "Only with this text" input name="find" value=(visible(&wish.find)); }
            @if wish.sort != Sort::Rate { input type="hidden" name="sort" value=(wish.sort.name()); }
            @if wish.hour { input type="hidden" name="span" value="hour"; }
            button { "Find" }
        }
    }
}

/// Which rows of how many these are, and links to the others.
fn leaf(all: usize, page: usize, link: impl Fn(usize) -> String) -> Markup {
    let pages = all.div_ceil(ROWS).max(1);
    let first = page * ROWS;
    html! {
        @if all > ROWS {
            p {
                "Rows " (first + 1) " to " (all.min(first + ROWS)) " of " (all) ". "
                @if page > 0 { a rel="prev" href=(link(page - 1)) { "Previous" } " " }
                @if page + 1 < pages { a rel="next" href=(link(page + 1)) { "Next" } }
            }
        }
    }
}

fn counts(counts: &BTreeMap<String, u64>) -> String {
    let mut all: Vec<(&String, &u64)> = counts.iter().collect();
    all.sort_by(|one, other| other.1.cmp(one.1));
    visible(&all.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", "))
}

pub(super) fn routes(view: &View<'_>) -> Markup {
    let (status, wish) = (view.status, view.wish);
    let mut routes: Vec<&RouteStatus> =
        status.routes.iter().filter(|route| wish.finds(&[&route.name, &route.listener, &route.cluster])).collect();
    let added = |route: &RouteStatus| route.added_us.map_or(0.0, |added| added.p99);
    match wish.sort {
        Sort::Rate => routes.sort_by_key(|route| std::cmp::Reverse(route.recent.responses)),
        Sort::Errors => routes.sort_by_key(|route| std::cmp::Reverse(route.recent.errors)),
        Sort::Added => routes.sort_by(|one, other| added(other).total_cmp(&added(one))),
        Sort::Name => routes.sort_by(|one, other| one.name.cmp(&other.name)),
    }
    let all = routes.len();
    let page = wish.routes_page.min(all.saturating_sub(1) / ROWS);
    let link = |sort: Sort, page: usize| format!("{}#routes", wish.link(sort, page, wish.endpoints_page, wish.hour));
    html! {
        h2 { "Routes" }
        (find(wish, "routes"))
        p { "Sorted by " @for (sort, name) in Sort::ALL {
            @if sort == wish.sort { strong { (name) } } @else { a href=(link(sort, 0)) { (name) } } " "
        } }
        @if all == 0 { p { "No route has served a request" @if !wish.find.is_empty() { " and has this text" } "." } } @else {
            div class="scroll" tabindex="0" { table {
                thead { tr {
                    th scope="col" { "ROUTE" } th scope="col" { "TO" } th scope="col" class="n" { "REQUESTS/MIN" } th scope="col" class="n" { "FAILED/MIN" }
                    th scope="col" class="n" { "ADDED p50 / p99" } th scope="col" class="n" { "ENDPOINT p50 / p99" } th scope="col" class="n" { "REQUESTS" } th scope="col" { "STATUSES" }
                    th scope="col" { "REFUSED OR FAILED" } th scope="col" class="n" { "RETRIES" }
                } }
                tbody { @for route in routes.iter().skip(page * ROWS).take(ROWS) { (self::route(route, status)) } }
            } }
            (leaf(all, page, |page| link(wish.sort, page)))
        }
    }
}

fn route(route: &RouteStatus, status: &Status) -> Markup {
    let statuses: Vec<String> = CLASSES
        .iter()
        .zip(route.statuses)
        .filter(|(_, count)| *count > 0)
        .map(|(class, count)| format!("{count} {class}"))
        .collect();
    let retries = |cluster: &&ClusterStatus| {
        route.cluster == cluster.name
            || route
                .cluster
                .split(", ")
                .any(|share| share.rsplit_once(' ').is_some_and(|(name, _)| name == cluster.name))
    };
    let clusters: Vec<&ClusterStatus> = status.clusters.iter().filter(retries).collect();
    html! {
        tr {
            td class="name" {
                (visible(&route.name)) " "
                details {
                    summary { "more" }
                    dl {
                        dt { "Listener" } dd { (visible(&route.listener)) }
                        dt { "Shares" } dd { (visible(&route.cluster)) }
                        @if let Some(auth) = &route.auth { dt { "Demands" } dd { (visible(auth)) } }
                        @for cluster in clusters { dt { "Retries of " (visible(&cluster.name)) } dd {
                            (cluster.retries) @if cluster.retry_budget_used > 0.0 { " (" (format!("{:.0} %", cluster.retry_budget_used * 100.0)) " of the budget is used)" }
                        } }
                        dt { "Reasons, last minute" }
                        dd { (if route.recent.refused.is_empty() { "none".to_owned() } else { counts(&route.recent.refused) }) }
                    }
                }
            }
            td { (visible(&route.cluster)) }
            td class="n" { (route.recent.responses) }
            td class="n" { @if route.recent.errors > 0 { (mark(&route.recent.errors.to_string(), "bad")) } @else { "0" } }
            td class="n" { (quantiles(route.added_us)) }
            td class="n" { (quantiles(route.upstream_us)) }
            td class="n" { (route.requests) }
            td { (statuses.join(", ")) }
            td { (counts(&route.refused)) }
            td class="n" { (route.retries) }
        }
    }
}

pub(super) fn endpoints(view: &View<'_>) -> Markup {
    let (status, wish) = (view.status, view.wish);
    let of_cluster =
        |cluster: &'_ ClusterStatus| -> u64 { cluster.endpoints.iter().map(|of| of.recent.requests).sum() };
    let mut endpoints: Vec<(&ClusterStatus, &EndpointStatus)> =
        status.clusters.iter().flat_map(|cluster| cluster.endpoints.iter().map(move |of| (cluster, of))).collect();
    endpoints.retain(|(cluster, of)| wish.finds(&[&cluster.name, &of.address, state_name(of.state)]));
    // Those that get no work first. The sort is stable, so equal ones stay in the order of the file.
    endpoints.sort_by_key(|(_, of)| of.state.takes_work());
    let all = endpoints.len();
    let page = wish.endpoints_page.min(all.saturating_sub(1) / ROWS);
    let link = |page: usize| format!("{}#endpoints", wish.link(wish.sort, wish.routes_page, page, wish.hour));
    html! {
        h2 { "Endpoints" }
        (find(wish, "endpoints"))
        @if all == 0 { p { "There are none" @if !wish.find.is_empty() { " with this text" } "." } } @else {
            div class="scroll" tabindex="0" { table {
                thead { tr {
                    th scope="col" { "ENDPOINT" } th scope="col" { "CLUSTER" } th scope="col" { "STATE" } th scope="col" class="n" { "LOAD" } th scope="col" class="n" { "WEIGHT" }
                    th scope="col" class="n" { "REQUESTS/MIN" } th scope="col" class="n" { "FAILED/MIN" } th scope="col" class="n" { "p50 / p99" } th scope="col" class="n" { "BUSY" }
                    th scope="col" class="n" { "CONNS" } th scope="col" class="n" { "REQUESTS" } th scope="col" class="n" { "FAILED" }
                } }
                tbody { @for (cluster, of) in endpoints.iter().skip(page * ROWS).take(ROWS) { (endpoint(cluster, of, of_cluster(cluster))) } }
            } }
            (leaf(all, page, link))
        }
    }
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.0} %", part as f64 * 100.0 / whole as f64) }
}

fn endpoint(cluster: &ClusterStatus, of: &EndpointStatus, requests: u64) -> Markup {
    let weights: u64 = cluster.endpoints.iter().map(|of| u64::from(of.weight)).sum();
    let takes_work = of.state.takes_work();
    html! {
        tr {
            td class="name" { (visible(&of.address)) @if of.zone == ZoneStatus::Other { span class="dim" { " other zone" } } }
            td { (visible(&cluster.name)) @if cluster.panic { " " (mark("panic: health is ignored", "warn")) } }
            td {
                (mark(state_name(of.state), if takes_work { "good" } else { "bad" }))
                @for line in causes(of) { br; span class="dim" { (visible(&line)) } }
            }
            td class="n" { (percent(of.recent.requests, requests)) }
            td class="n" { (percent(of.weight.into(), weights)) }
            td class="n" { (of.recent.requests) }
            td class="n" { @if of.recent.failures() > 0 { (mark(&of.recent.failures().to_string(), "bad")) } @else { "0" } }
            td class="n" { (quantiles(of.upstream_us)) }
            td class="n" { (of.in_flight) }
            td class="n" { (of.connections) }
            td class="n" { (of.requests) }
            td class="n" { (of.failures) }
        }
    }
}

/// What led to the state of an endpoint, each as a sentence without a period.
fn causes(of: &EndpointStatus) -> Vec<String> {
    let EndpointCause { last_probe, ejected_seconds_left: _, slow_start_seconds_left } = of.cause;
    let mut lines: Vec<String> = Vec::new();
    if of.state == EndpointState::Draining {
        lines.push(format!("an operator drains it; requests in progress: {}", of.in_flight));
    }
    // For an ejected endpoint, this has the time when it ends.
    lines.extend(of.why.clone());
    lines.extend(last_probe.map(|probe| {
        let result = if probe.is_success { "succeeded" } else { "failed" };
        format!("the last probe {result}, {} ago", duration(probe.seconds_ago))
    }));
    lines.extend(slow_start_seconds_left.map(|left| format!("slow start: gets less than its share for {left} s")));
    lines
}

/// What stands in place of a list of listeners.
pub(super) fn no_listeners(status: &Status) -> &'static str {
    if status.vips.is_empty() {
        "There are no listeners."
    } else {
        "There are no listeners: this process serves vips alone."
    }
}

pub(super) fn listeners(status: &Status) -> Markup {
    let row = |listener: &ListenerStatus| {
        html! { tr {
            td class="name" { (visible(&listener.name)) }
            td { (visible(&listener.bind)) } td { (listener.protocol) }
            td class="n" { (listener.connections_open) } td class="n" { (listener.connections_total) } td class="n" { (listener.requests) }
            td { (counts(&listener.refused)) }
        } }
    };
    html! {
        h2 { "Listeners" }
        @if status.listeners.is_empty() { p { (no_listeners(status)) } } @else { div class="scroll" tabindex="0" { table {
            thead { tr {
                th scope="col" { "LISTENER" } th scope="col" { "BIND" } th scope="col" { "PROTOCOL" } th scope="col" class="n" { "OPEN" } th scope="col" class="n" { "CONNECTIONS" }
                th scope="col" class="n" { "REQUESTS" } th scope="col" { "REFUSED, FAILED OR CLOSED" }
            } }
            tbody { @for listener in status.listeners.iter().take(ROWS) { (row(listener)) } }
        } } }
        @if status.listeners.len() > ROWS { p { "and " (status.listeners.len() - ROWS) " more" } }
    }
}

pub(super) fn methods(status: &Status) -> Markup {
    html! {
        h2 { "gRPC methods" }
        div class="scroll" tabindex="0" { table {
            thead { tr { th scope="col" { "METHOD" } th scope="col" { "LISTENER" } th scope="col" { "CALLS" } th scope="col" class="n" { "p50 / p99" } } }
            tbody { @for method in status.methods.iter().take(4 * ROWS) { tr {
                td class="name" { (visible(&method.service)) "/" (visible(&method.method)) }
                td { (visible(&method.listener)) } td { (counts(&method.codes)) } td class="n" { (quantiles(method.duration_us)) }
            } } }
        } }
        @if status.methods.len() > 4 * ROWS { p { "and " (status.methods.len() - 4 * ROWS) " more" } }
    }
}

pub(super) fn kernel(view: &View<'_>) -> Markup {
    let status = view.status;
    let Some(plane) = &status.kernel_plane else {
        return html! { h2 { "Kernel plane" } p { "There are no vips." } };
    };
    html! {
        h2 { "Kernel plane" }
        p { (plane.entries) " of " (plane.entries_max) " entries of the flow table are in use"
            @if plane.pressure { ": " (mark("connections that are opening or closing expire sooner", "warn")) } "." }
        @for vip in status.vips.iter().take(ROWS) { (self::vip(view, vip)) }
        @if status.vips.len() > ROWS { p { "and " (status.vips.len() - ROWS) " more vips" } }
        @if !plane.drops.is_empty() { h3 { "Packets that belong to no vip" } (drops(view, &plane.drops)) }
    }
}

fn vip(view: &View<'_>, vip: &VipStatus) -> Markup {
    html! {
        h3 { (visible(&vip.name)) " " (visible(&vip.address)) " (" (vip.mode) ")" }
        p { (vip.flows) " flows, " (vip.flows_total) " in all; "
            @if vip.sockets_total > 0 { "sockets: " (vip.sockets) ", " (vip.sockets_total) " in all; " }
            (format!("{:.0}", vip.rates.packets_per_second)) " packets/s, "
            (format!("{:.1}", vip.rates.bits_per_second / 1e6)) " Mbit/s"
            @if let Some(announcement) = &vip.announcement { @if let Some(why) = &announcement.why { "; " (mark(&visible(why), "warn")) } } "." }
        div class="scroll" tabindex="0" { table {
            thead { tr { th scope="col" { "ENDPOINT" } th scope="col" { "STATE" } th scope="col" class="n" { "FLOWS" } th scope="col" class="n" { "ALL FLOWS" } th scope="col" class="n" { "PACKETS TO" } th scope="col" class="n" { "FROM" } } }
            tbody { @for of in vip.endpoints.iter().take(ROWS) { tr {
                td class="name" { (visible(&of.address)) }
                td { (mark(state_name(of.state), if of.state.takes_work() { "good" } else { "bad" })) @for line in vip_causes(of) { br; span class="dim" { (visible(&line)) } } }
                td class="n" { (of.flows) } td class="n" { (of.flows_total) } td class="n" { (of.packets_to) } td class="n" { (of.packets_from) }
            } } }
        } }
        @if !vip.drops.is_empty() { (drops(view, &vip.drops)) }
    }
}

/// What led to the state of an endpoint of a vip, each as a sentence without a period.
fn vip_causes(of: &VipEndpointStatus) -> Vec<String> {
    let drained = of.state == EndpointState::Draining;
    let drains = drained.then(|| format!("an operator drains it; flows in progress: {}", of.flows));
    drains.into_iter().chain(of.why.clone()).collect()
}

fn drops(view: &View<'_>, drops: &BTreeMap<String, u64>) -> Markup {
    html! { dl { @for (reason, count) in drops {
        dt { (count) " " (reason) } dd { ((view.drop_meaning)(reason).unwrap_or("")) }
    } } }
}

pub(super) fn certificates(status: &Status) -> Markup {
    let left =
        |expires: u64| expires.checked_sub(status.unix_seconds).filter(|left| *left > 0).map(|left| left / 86_400);
    html! {
        h3 { "Certificates" }
        div class="scroll" tabindex="0" { table {
            thead { tr { th scope="col" { "OF" } th scope="col" { "NAMES" } th scope="col" class="n" { "DAYS LEFT" } } }
            tbody { @for certificate in status.about.certificates.iter().take(4 * ROWS) {
                @let days = left(certificate.expires_unix_seconds);
                tr {
                    td class="name" { (visible(&certificate.owner)) }
                    td { (visible(&certificate.names.join(", "))) }
                    td class="n" { @match days {
                        None => { (mark("expired", "bad")) }
                        Some(days) if days < 15 => { (mark(&days.to_string(), "warn")) }
                        Some(days) => { (days) }
                    } }
                }
            } }
        } }
    }
}

pub(super) fn refused(status: &Status) -> Markup {
    let about = &status.about;
    html! {
        h3 { "Objects of the cluster that are not served as they say" }
        div class="scroll" tabindex="0" { table {
            thead { tr { th scope="col" { "OBJECT" } th scope="col" { "CONDITION" } th scope="col" { "REASON" } th scope="col" { "WHY" } } }
            tbody { @for refused in &about.refused_objects { tr {
                td class="name" { (visible(&refused.object)) }
                td { (if refused.condition.is_empty() { "(Event)".to_owned() } else { visible(&refused.condition) }) }
                td { (visible(&refused.reason)) } td { (visible(&refused.message)) }
            } } }
        } }
        @if about.refused_objects_more > 0 { p { "and " (about.refused_objects_more) " more" } }
    }
}

/// The figures of all processes that serve the same.
pub(super) fn replicas(status: &Status, replicas: Option<&[Replica]>) -> Markup {
    let figures = |of: &Point, so_far: SoFar| {
        html! {
            td class="n" { (so_far.requests) } td class="n" { (so_far.errors) }
            td class="n" { (per_second(of.requests_per_second)) } td class="n" { (per_second(of.errors_per_second)) }
            td class="n" { (per_second(of.retries_per_second)) }
            td class="n" { (of.connections_open) } td class="n" { (of.pending) }
            td class="n" { (quantiles(of.added_us)) } td class="n" { (quantiles(of.upstream_us)) }
        }
    };
    let row = |replica: &Replica| {
        html! { tr {
            @match &replica.overview {
                Ok(of) => {
                    td class="name" { (visible(&of.host)) @if of.pid == status.pid && of.host == status.about.host { " (this one)" }
                        span class="dim" { " " (visible(&replica.address)) } }
                    td class="n" { (of.generation) } (figures(&of.point, of.so_far)) td class="text" { (visible(&of.verdict.text)) }
                }
                Err(why) => { td class="name" { (visible(&replica.address)) @if !replica.pod.is_empty() { span class="dim" { " " (visible(&replica.pod)) } } } td colspan="11" { (mark(&visible(why), "bad")) } }
            }
        } }
    };
    html! {
        section id="replicas" aria-label="Replicas" {
            h2 { "All replicas" }
            @match replicas {
                None => { p { "Everything else on this page is about one process. " a href="/?replicas=1#replicas" { "Add up the figures of all replicas" } } }
                Some(all) => {
                    @let answered = all.iter().filter(|replica| replica.overview.is_ok()).count();
                    p { "What each process has counted since it started, and its last second. Of quantiles, which cannot be added up, the worst counts. " a href="/?replicas=1#replicas" { "Ask again" } }
                    div class="scroll" tabindex="0" { table {
                        thead { tr {
                            th scope="col" { "REPLICA" } th scope="col" class="n" { "GENERATION" } th scope="col" class="n" { "ALL REQUESTS" } th scope="col" class="n" { "ALL FAILED" }
                            th scope="col" class="n" { "REQUESTS/s" } th scope="col" class="n" { "FAILED/s" } th scope="col" class="n" { "RETRIES/s" } th scope="col" class="n" { "CONNS" } th scope="col" class="n" { "PENDING" }
                            th scope="col" class="n" { "ADDED p50 / p99" } th scope="col" class="n" { "ENDPOINT p50 / p99" } th scope="col" { "VERDICT" }
                        } }
                        tbody {
                            @for replica in all { (row(replica)) }
                            tr { td class="name" { strong { "All " (answered) " that answered" } } td {} (figures(&sum(all), sum_so_far(all))) td {} }
                        }
                    } }
                }
            }
        }
    }
}
