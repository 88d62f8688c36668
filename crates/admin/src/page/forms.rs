//! The forms of the page: two questions, and the actions.

use maud::{Markup, html};

use super::View;
use crate::query::Query;
use crate::show::visible;
use crate::{RouteReport, TraceReport};

/// An action that a form asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Drain an endpoint, or put it back in service.
    Endpoint { address: String, cluster: Option<String>, draining: bool },
    /// Put a route into maintenance, or back into service.
    Maintenance { route: String, listener: Option<String>, on: bool },
    /// Read the configuration again.
    Reload,
}

/// What a form sends.
pub(crate) struct Form {
    pub(crate) action: Action,
    /// Proves that the page made the form.
    pub(crate) token: String,
}

/// The words to type for an action.
const RELOAD: &str = "reload";

impl Form {
    /// Reads the body of a form.
    ///
    /// # Errors
    /// Says what is missing. In particular, what the action is about must have been typed a second time.
    pub(crate) fn parse(body: &str) -> Result<Self, String> {
        let query = Query::parse_form(body, &["action", "about", "within", "confirm", "token"])?;
        let text = |name: &str| query.get(name).unwrap_or_default().to_owned();
        let (action, about, confirm) = (text("action"), text("about"), text("confirm"));
        let within = query.get("within").map(str::to_owned);
        let (expected, action) = match action.as_str() {
            "reload" => (RELOAD.to_owned(), Action::Reload),
            "drain" | "ready" => {
                (about.clone(), Action::Endpoint { address: about, cluster: within, draining: action == "drain" })
            }
            "maintenance" | "service" => {
                (about.clone(), Action::Maintenance { route: about, listener: within, on: action == "maintenance" })
            }
            _ => return Err("this is not an action of the page".to_owned()),
        };
        if expected.is_empty() {
            return Err("say what the action is about: the address of an endpoint, or the name of a route".to_owned());
        }
        if confirm != expected {
            return Err(format!("to confirm, type {expected:?} a second time; nothing has changed"));
        }
        Ok(Self { action, token: text("token") })
    }
}

pub(super) fn actions(view: &View<'_>) -> Markup {
    let token = html! { input type="hidden" name="token" value=(view.form_token); };
    let form = |title: &str, about: &str, within: &str, choices: [(&str, &str); 2]| {
        html! {
            h3 { (title) }
            form method="post" action="/do" autocomplete="off" {
                (token)
                label { "Do" select name="action" { @for (value, name) in choices { option value=(value) { (name) } } } }
                label { (about) input name="about" required; }
                label { (within) input name="within"; }
                label { "Type it again to confirm" input name="confirm" required; }
                button { "Do it" }
            }
        }
    };
    html! {
        section id="actions" aria-label="Actions" {
            h2 { "Actions" }
            p class="dim" { "Each is logged with your name. They last until the process ends." }
            (form("An endpoint", "Address, as above", "Only in this cluster", [("drain", "drain: give it no new work"), ("ready", "put it back in service")]))
            (form("A route", "Name, as above", "Only in this listener", [("maintenance", "maintenance: answer 503"), ("service", "put it back into service")]))
            h3 { "The configuration" }
            form method="post" action="/do" autocomplete="off" {
                (token)
                input type="hidden" name="action" value="reload";
                label { "Type \"" (RELOAD) "\" to confirm" input name="confirm" required; }
                button { "Reload" }
            }
        }
    }
}

pub(super) fn questions(view: &View<'_>) -> Markup {
    let asked = view.wish.route.clone().unwrap_or_default();
    let packet = view.wish.packet.clone();
    let (vip, from) = packet.as_ref().map_or(("", ""), |packet| (packet.vip.as_str(), packet.from.as_str()));
    let interface = packet.as_ref().and_then(|packet| packet.interface.clone()).unwrap_or_default();
    let flags = packet.as_ref().and_then(|packet| packet.flags.clone()).unwrap_or_default();
    let method = if asked.method.is_empty() { "GET" } else { asked.method.as_str() };
    html! {
        section id="questions" aria-label="Questions" {
            h2 { "Which route would take this request, and why not the others?" }
            @if view.status.listeners.is_empty() { p { (super::tables::no_listeners(view.status)) } } @else {
            form method="get" action="/#questions" {
                label { "Listener" select name="listener" { @for listener in &view.status.listeners {
                    @if listener.name == asked.listener { option selected { (visible(&listener.name)) } } @else { option { (visible(&listener.name)) } }
                } } }
                label { "Method" input name="method" value=(method) size="8"; }
                label { "Host" input name="host" value=(asked.host) placeholder="shop.example.com"; }
                label { "Path and query" input name="path" value=(asked.path) placeholder="/cart?id=1" required; }
                label { "Header fields, such as X-A: b" textarea name="headers" rows="1" { (asked.headers.join("\n")) } }
                button { "Ask" }
            } }
            @match &view.route {
                Some(Ok(report)) => { (route_report(report)) }
                Some(Err(why)) => { p class="bad" { (visible(why)) } }
                None => {}
            }
            @if view.status.kernel_plane.is_some() {
                h2 { "What would the kernel plane do with this packet?" }
                form method="get" action="/#questions" {
                    label { "Vip, or address and port" input name="vip" value=(vip) required; }
                    label { "From IP[:PORT]" input name="from" value=(from) required; }
                    label { "Interface, if not the usual one" input name="interface" value=(interface); }
                    label { "TCP flags" input name="flags" value=(flags) placeholder="syn"; }
                    button { "Trace" }
                }
                @match &view.packet {
                    Some(Ok(report)) => { (trace_report(report)) }
                    Some(Err(why)) => { p class="bad" { (visible(why)) } }
                    None => {}
                }
            }
        }
    }
}

fn route_report(report: &RouteReport) -> Markup {
    html! {
        p {
            @match &report.route {
                Some(route) => { "The route " strong { (visible(route)) } " takes it, and sends it to " strong { (visible(&report.to)) } "." }
                None => { "No route takes it: it would be answered 404." }
            }
            " Routes see the path as " code { (visible(&report.target)) } "."
        }
        @if !report.others.is_empty() {
            div class="scroll" tabindex="0" { table {
                thead { tr { th scope="col" { "ROUTE" } th scope="col" { "WHY NOT" } } }
                tbody { @for other in &report.others { tr { td class="name" { (visible(&other.route)) } td { (other.why) } } } }
            } }
        }
        @if report.more > 0 { p { "and " (report.more) " more routes" } }
    }
}

fn trace_report(report: &TraceReport) -> Markup {
    html! {
        p { strong { (visible(&report.verdict)) } }
        ol { @for step in &report.steps { li { code { (step.stage) } " " (visible(&step.text)) } } }
    }
}
