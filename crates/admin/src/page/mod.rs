//! The page at `/`: what a person who is called at night needs to know, problems first.
//!
//! The server writes it as plain HTML, from the same status that programs get as JSON. A short script keeps it current; without the script it
//! is a page that one reloads. It loads nothing from any other host. Every name is escaped, and characters that reorder or hide text are
//! replaced.

mod chart;
mod forms;
mod tables;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use self::chart::{charts, per_second};
use crate::access::{Role, User};
use crate::findings::Severity;
use crate::history::{Point, Points, Verdict, Who};
use crate::query::Query;
use crate::show::{duration, time, visible};
use crate::status::{Quantiles, Status};
use crate::{Replica, RouteReport, TraceReport};

pub(crate) use forms::{Action, Form};

/// The script.
pub(crate) const SCRIPT: &str = include_str!("script.js");
/// The styles.
pub(crate) const STYLE: &str = include_str!("style.css");
/// Only what this server itself sends is loaded, no script stands in the page, and no other page shows it.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                                 form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Rows of a table. A person looks for a row by its name instead of leafing through more.
const ROWS: usize = 50;
/// Lines of the difference of two snapshots.
const CHANGES: usize = 200;

/// What the reader wants to see.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Only rows that contain this text.
    find: String,
    sort: Sort,
    routes_page: usize,
    endpoints_page: usize,
    hour: bool,
    /// Whether the figures of all replicas are wanted.
    pub(crate) replicas: bool,
    /// The question to the routes: listener, method, host, path, header fields.
    pub(crate) route: Option<crate::RouteQuestion>,
    /// The question to the kernel plane.
    pub(crate) packet: Option<crate::TraceQuestion>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sort {
    #[default]
    Rate,
    Errors,
    Added,
    Name,
}

impl Sort {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Rate, "rate"), (Self::Errors, "errors"), (Self::Added, "added"), (Self::Name, "name")];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(sort, _)| *sort == self).map_or("rate", |(_, name)| name)
    }
}

impl Wish {
    /// Reads the query of the page.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub(crate) fn parse(query: &str) -> Result<Self, String> {
        let names = [
            "find",
            "sort",
            "routes",
            "endpoints",
            "span",
            "replicas",
            "listener",
            "method",
            "host",
            "path",
            "headers",
            "vip",
            "from",
            "interface",
            "flags",
        ];
        let query = Query::parse_form(query, &names)?;
        let text = |name: &str| query.get(name).unwrap_or_default().to_owned();
        let page = |name: &str| text(name).parse::<usize>().unwrap_or(1).saturating_sub(1);
        let sort = Sort::ALL.iter().find(|(_, name)| *name == text("sort")).map_or(Sort::Rate, |(sort, _)| *sort);
        let route = query.get("path").map(|path| crate::RouteQuestion {
            listener: text("listener"),
            method: query.get("method").unwrap_or("GET").to_owned(),
            host: text("host"),
            path: path.to_owned(),
            headers: query.get("headers").unwrap_or_default().lines().map(str::to_owned).collect(),
        });
        let optional = |name: &str| query.get(name).map(str::to_owned);
        let packet = query.get("vip").zip(query.get("from")).map(|(vip, from)| crate::TraceQuestion {
            vip: vip.to_owned(),
            from: from.to_owned(),
            interface: optional("interface"),
            flags: optional("flags"),
        });
        let (routes_page, endpoints_page) = (page("routes"), page("endpoints"));
        let (hour, replicas) = (text("span") == "hour", text("replicas") == "1");
        Ok(Self { find: text("find"), sort, routes_page, endpoints_page, hour, replicas, route, packet })
    }

    /// A link to the same page with one thing changed.
    fn link(&self, sort: Sort, routes_page: usize, endpoints_page: usize, hour: bool) -> String {
        let pages = [routes_page, endpoints_page].map(|page| (page > 0).then(|| (page + 1).to_string()));
        let [routes, endpoints] = &pages;
        let find = (!self.find.is_empty()).then_some(self.find.as_str());
        crate::query::path(
            "/",
            &[
                ("find", find),
                ("sort", (sort != Sort::Rate).then(|| sort.name())),
                ("routes", routes.as_deref()),
                ("endpoints", endpoints.as_deref()),
                ("span", hour.then_some("hour")),
            ],
        )
    }

    fn finds(&self, texts: &[&str]) -> bool {
        self.find.is_empty() || texts.iter().any(|text| text.to_lowercase().contains(&self.find.to_lowercase()))
    }
}

/// Everything that the page shows.
pub(crate) struct View<'v> {
    pub(crate) status: &'v Status,
    pub(crate) points: &'v Points,
    pub(crate) verdict: &'v Verdict,
    pub(crate) user: &'v User,
    pub(crate) wish: &'v Wish,
    pub(crate) route: Option<Result<RouteReport, String>>,
    pub(crate) packet: Option<Result<TraceReport, String>>,
    /// `None`: this process does not know how to find the others. `Some(None)`: it was not asked for their figures.
    pub(crate) replicas: Option<Option<&'v [Replica]>>,
    /// What a form must send back, so that no other page can send one.
    pub(crate) form_token: &'v str,
    /// What a reason of drops means.
    pub(crate) drop_meaning: &'v dyn Fn(&str) -> Option<&'static str>,
    /// The other pages, for programs.
    pub(crate) pages: Markup,
}

/// Writes the page.
pub(crate) fn page(view: &View<'_>) -> String {
    let (status, wish) = (view.status, view.wish);
    let problems = status.findings.iter().filter(|finding| finding.severity == Severity::Wrong).count();
    let title = if problems == 0 { "Steelyard".to_owned() } else { format!("({problems}) Steelyard") };
    let body = html! {
        a class="skip" href="#problems" { "Skip to the problems" }
        (head(view))
        main {
            (verdict(view.verdict))
            section id="problems" data-live aria-label="Problems" { (problem_list(status)) }
            (now(view))
            @if let Some(replicas) = view.replicas { (tables::replicas(status, replicas)) }
            (saturation(status))
            section id="routes" data-live aria-label="Routes" { (tables::routes(view)) }
            section id="endpoints" data-live aria-label="Endpoints" { (tables::endpoints(view)) }
            section id="listeners" data-live aria-label="Listeners" { (tables::listeners(status)) }
            @if !status.methods.is_empty() {
                section id="methods" data-live aria-label="gRPC methods" { (tables::methods(status)) }
            }
            section id="kernel" data-live aria-label="Kernel plane" { (tables::kernel(view)) }
            (live_tail())
            (forms::questions(view))
            (configuration(status))
            @if view.user.role == Role::Act { (forms::actions(view)) }
            h2 { "For programs" }
            (view.pages)
        }
    };
    document(&title, if wish.hour { "hour" } else { "minute" }, true, &body)
}

/// A whole document.
fn document(title: &str, span: &str, script: bool, body: &Markup) -> String {
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                link rel="stylesheet" href="page.css";
                @if script { script src="page.js" defer {} }
            }
            body data-span=(span) { (body) }
        }
    };
    document.into_string()
}

/// A short page that says what an action has done.
pub(crate) fn outcome(text: &str) -> String {
    let body = html! {
        main {
            h1 { "Steelyard" }
            p { (visible(text)) }
            p { a href="/" { "Back" } }
        }
    };
    document("Steelyard", "minute", false, &body)
}

fn head(view: &View<'_>) -> Markup {
    let status = view.status;
    html! {
        header {
            h1 { "Steelyard " (status.steelyard) @if !status.about.host.is_empty() { " on " (visible(&status.about.host)) } }
            p class="dim" {
                "The figures of this one process, " (status.pid) ", and of no other. Up for "
                span id="uptime" { (duration(status.uptime_seconds)) } "; generation " (status.generation)
                @if !status.about.source.is_empty() { " from " (visible(&status.about.source)) }
                "; " span id="live" role="status" { "not live: reload the page for newer figures" }
                @if let Some(name) = &view.user.name { "; you are " (visible(name)) @if view.user.role == Role::Read { ", and may only read" } }
                "."
            }
            nav aria-label="Sections" {
                @for (id, name) in [
                    ("problems", "Problems"), ("now", "Traffic"), ("routes", "Routes"), ("endpoints", "Endpoints"), ("kernel", "Kernel plane"),
                    ("requests", "Requests"), ("questions", "Questions"), ("configuration", "Configuration"),
                ] { a href={ "#" (id) } { (name) } " " }
                @if view.user.role == Role::Act { a href="#actions" { "Actions" } }
            }
        }
    }
}

fn verdict(Verdict { who, text }: &Verdict) -> Markup {
    let class = match who {
        Who::Quiet => "quiet",
        Who::Nobody => "nobody",
        Who::Steelyard => "steelyard",
        Who::Endpoints => "endpoints",
        Who::Clients => "clients",
    };
    html! { p id="verdict" class=(class) { (text) } }
}

fn problem_list(status: &Status) -> Markup {
    html! {
        h2 { "Problems" }
        @if status.findings.is_empty() { p { "None." } }
        ul class="problems" {
            @for finding in &status.findings {
                @let is_wrong = finding.severity == Severity::Wrong;
                li class=(if is_wrong { "wrong" } else { "notice" }) {
                    span class="tag" { (if is_wrong { "Problem: " } else { "Note: " }) }
                    (visible(&finding.text))
                }
            }
        }
    }
}

fn quantiles(of: Option<Quantiles>) -> String {
    of.map_or_else(|| "- / -".to_owned(), |of| format!("{} / {}", time(of.p50), time(of.p99)))
}

fn now(view: &View<'_>) -> Markup {
    let (points, wish) = (view.points, view.wish);
    let quiet = Point::default();
    let last = points.minute.last().unwrap_or(&quiet);
    let shown = if wish.hour { &points.hour } else { &points.minute };
    let link = wish.link(wish.sort, wish.routes_page, wish.endpoints_page, !wish.hour);
    html! {
        section id="now" aria-label="Traffic" {
            h2 { "Traffic" }
            div class="cards" {
                div class="card" { "requests" b id="now-requests" { (per_second(last.requests_per_second)) } }
                div class="card" { "failed (5xx, gRPC)" b id="now-errors" { (per_second(last.errors_per_second)) } }
                div class="card" { "added by Steelyard, p50 / p99" b id="now-added" { (quantiles(last.added_us)) } }
                div class="card" { "endpoints, p50 / p99" b id="now-upstream" { (quantiles(last.upstream_us)) } }
            }
            p { "The last " (if wish.hour { "hour" } else { "minute" }) ". " a href=(link) { "Show the last " (if wish.hour { "minute" } else { "hour" }) } }
            (charts(shown))
        }
    }
}

/// A figure, its limit, and how full that is.
fn gauge(name: &str, used: u64, max: Option<u64>, id: Option<&str>) -> Markup {
    html! {
        dt { (name) }
        dd {
            span id=[id] { (used) }
            @if let Some(max) = max {
                " of " (max) " "
                meter min="0" max=(max) high=(max / 10 * 8) value=(used.min(max)) { (used * 100 / max.max(1)) " %" }
            }
        }
    }
}

fn saturation(status: &Status) -> Markup {
    let about = &status.about;
    let open: u64 = status.listeners.iter().map(|listener| listener.connections_open).sum();
    let refused = |reason: &str| -> u64 {
        status.listeners.iter().filter_map(|listener| listener.recent.refused.get(reason)).sum()
    };
    let fullest = status
        .clusters
        .iter()
        .reduce(|one, other| if other.retry_budget_used > one.retry_budget_used { other } else { one });
    html! {
        section id="saturation" data-live aria-label="Saturation" {
            h2 { "Saturation" }
            dl {
                @if let Some(percent) = about.busiest_worker_percent {
                    dt { "Busiest of " (status.workers) " workers" } dd { (format!("{percent:.0} % of a CPU")) }
                }
                (gauge("Requests that wait for a connection", about.pending, None, Some("now-pending")))
                (gauge("Connections", open, about.connections_max, Some("now-open")))
                @if let Some(kernel) = &status.kernel_plane { (gauge("Entries of the flow table", kernel.entries, Some(kernel.entries_max), None)) }
                @if let Some(fullest) = fullest {
                    dt { "Most used retry budget" }
                    dd {
                        span { (format!("{:.0} %", fullest.retry_budget_used * 100.0)) }
                        @if fullest.retry_budget_used > 0.0 { " of " (visible(&fullest.name)) }
                        " " meter min="0" max="100" high="80" value=(format!("{:.0}", fullest.retry_budget_used * 100.0)) {}
                        "; refused retries, last minute: " (refused("retry_budget"))
                    }
                }
                @if let Some(used) = status.open_files { (gauge("File descriptors", used, status.open_files_max, None)) }
                (gauge("Memory, MiB", status.memory >> 20, status.memory_max.map(|max| max >> 20), None))
            }
        }
    }
}

fn live_tail() -> Markup {
    html! {
        section id="requests" aria-label="Requests" {
            h2 { "Requests that were refused, that failed, and slow ones" }
            noscript { p { "These come live, which needs a script. " code { "steelyard tail" } " shows them in a terminal." } }
            p class="dim" { "From now on, the last 100. Slow is a response that takes 500 ms to begin. Queries, headers and bodies are not shown. " span id="passed" {} }
            div class="scroll" tabindex="0" {
                table {
                    thead { tr {
                        @for name in ["TIME", "STATUS", "REASON", "REQUEST", "ROUTE", "ENDPOINT", "TRIES", "ADDED", "ENDPOINT TOOK", "CLIENT"] { th scope="col" { (name) } }
                    } }
                    tbody id="tail" {}
                }
            }
        }
    }
}

fn configuration(status: &Status) -> Markup {
    let about = &status.about;
    html! {
        section id="configuration" data-live aria-label="Configuration" {
            h2 { "Configuration" }
            p {
                "Generation " (status.generation) @if !about.source.is_empty() { " from " (visible(&about.source)) } "."
                @if let Some(reload) = &status.last_reload {
                    " The last change, " (duration(status.unix_seconds.saturating_sub(reload.unix_seconds))) " ago, was "
                    (if reload.ok { "accepted." } else { "refused." })
                }
            }
            @if let Some(changes) = &about.changes {
                h3 { "What generation " (changes.generation) " changed" }
                @if changes.lines.is_empty() { p { "Nothing in the configuration itself. Files that it names may have changed." } } @else {
                    pre tabindex="0" { @for line in changes.lines.iter().take(CHANGES) { (visible(line)) "\n" } }
                }
                @if changes.more > 0 { p { "and " (changes.more) " more lines" } }
            }
            @if !about.certificates.is_empty() { (tables::certificates(status)) }
            @if !about.refused_objects.is_empty() { (tables::refused(status)) }
        }
    }
}

/// The list of the other pages.
pub(crate) fn list_of_pages(pages: &[(&str, bool, &str)]) -> Markup {
    html! {
        div class="scroll" tabindex="0" {
            table {
                @for (path, changes_state, what) in pages {
                    tr {
                        td { @if *changes_state { "POST " code { (path) } } @else { a href=(path) { code { (path) } } } }
                        td { (what) }
                    }
                }
            }
        }
        p { "A POST needs the header " code { (crate::ADMIN_HEADER) ": 1" } "." }
    }
}

/// A mark that needs no colour.
fn mark(text: &str, class: &str) -> Markup {
    html! { span class=(class) { (PreEscaped(if class == "good" { "&#9679; " } else { "&#9650; " })) (text) } }
}

#[cfg(test)]
mod tests;
