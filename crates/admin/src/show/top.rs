//! Rates and latencies of an interval, as `steelyard top` shows them.

use std::cmp::Ordering;

use super::table::{self, Layout, Row};
use super::{BOLD, PLAIN, RED, duration, quantiles, state_name, visible};
use crate::counters::{EndpointRates, ListenerRates, Rates, RouteRates, VipEndpointRates, VipRow};
use crate::status::Quantiles;

/// What rows are sorted by. The largest comes first; names go from A to Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopSort {
    /// Requests per second.
    Rate,
    /// Errors per second.
    Errors,
    /// The latency that Steelyard added, at p99.
    Added,
    /// The latency of the endpoint, at p99.
    Endpoint,
    /// The name.
    Name,
}

/// Which tables to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopView {
    /// All of them.
    All,
    /// Listeners.
    Listeners,
    /// Routes.
    Routes,
    /// Endpoints, of clusters and of virtual IPs.
    Endpoints,
    /// Virtual IPs and their endpoints.
    Vips,
}

/// How to show it.
#[derive(Clone, Copy, Debug)]
pub struct TopOptions {
    /// What rows are sorted by.
    pub sort: TopSort,
    /// Which tables to show.
    pub view: TopView,
    /// Columns of the screen.
    pub width: usize,
    /// The maximum number of rows of each table.
    pub rows_max: usize,
    /// The maximum number of lines in total, if a screen limits them.
    pub lines_max: Option<usize>,
    /// Whether to use colours.
    pub color: bool,
}

impl TopSort {
    /// All, in the order in which a key cycles through them.
    pub const ALL: [Self; 5] = [Self::Rate, Self::Errors, Self::Added, Self::Endpoint, Self::Name];

    /// The name on the screen.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Errors => "errors",
            Self::Added => "added latency",
            Self::Endpoint => "endpoint latency",
            Self::Name => "name",
        }
    }
}

/// The figures of a row that it can be sorted by. A figure that the row does not have counts as 0.
struct Keys {
    rate: f64,
    errors: f64,
    added: Option<Quantiles>,
    endpoint: Option<Quantiles>,
    name: String,
}

/// Returns what `steelyard top` prints for an interval: a summary line and one table of each kind.
pub fn render_top_text(rates: &Rates, options: &TopOptions) -> String {
    let title = visible(&title(rates));
    let title: String = title.chars().take(options.width).collect();
    let title = if options.color { format!("{BOLD}{title}{PLAIN}") } else { title };
    let sums = visible(&sums(rates));
    let sums: String = sums.chars().take(options.width).collect();
    let mut text = format!("{title}\n{sums}\n");
    let shown = |views: &[TopView], count: usize| match options.view == TopView::All || views.contains(&options.view) {
        true => count.min(options.rows_max),
        false => 0,
    };
    let wanted = [
        shown(&[TopView::Listeners], rates.listeners.len()),
        shown(&[TopView::Routes], rates.routes.len()),
        shown(&[TopView::Endpoints], rates.endpoints.len()),
        shown(&[TopView::Vips], rates.vips.len()),
        shown(&[TopView::Endpoints, TopView::Vips], rates.vip_endpoints.len()),
    ];
    let [listeners_max, routes_max, endpoints_max, vips_max, vip_endpoints_max] = match options.lines_max {
        Some(lines) => shared(wanted, lines.saturating_sub(text.lines().count())),
        None => wanted,
    };
    for table in [
        listeners(rates, options, listeners_max),
        routes(rates, options, routes_max),
        endpoints(rates, options, endpoints_max),
        vips(rates, options, vips_max),
        vip_endpoints(rates, options, vip_endpoints_max),
    ] {
        if !table.is_empty() {
            text += &format!("\n{table}");
        }
    }
    if wanted == [0; TABLES] {
        text += match options.view {
            TopView::Routes => "\nNo route has served a request yet.\n",
            TopView::Vips => "\nThere are no vips.\n",
            _ => "\nThe configuration has nothing to show here.\n",
        };
    }
    text
}

fn title(rates: &Rates) -> String {
    let Rates { steelyard, pid, uptime_seconds, workers, generation, draining, .. } = rates;
    let workers = if *workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers") };
    let draining = if *draining { ", draining" } else { "" };
    let up = duration(*uptime_seconds);
    format!("steelyard {steelyard}, pid {pid}, up {up}, {workers}, generation {generation}{draining}")
}

/// A line with the requests of all listeners and the errors of all routes, per second.
fn sums(rates: &Rates) -> String {
    let requests = rates.listeners.iter().map(|of| of.requests_per_second).sum();
    let errors = rates.routes.iter().map(|of| of.errors_per_second).sum();
    // What answers may be anything that listens there.
    let open = rates.listeners.iter().fold(0_u64, |open, of| open.saturating_add(of.connections_open));
    let (requests, errors) = (per_second(requests), per_second(errors));
    format!("last {:.1} s: {requests} requests/s, {errors} errors/s, {open} connections open", rates.interval_seconds)
}

/// An empty line, a header, and a line that says how many rows are missing if the table is cut.
const LINES_BESIDE_ROWS: usize = 3;
/// The number of tables, and the indices of those that may be dropped.
const TABLES: usize = 5;
const LISTENERS: usize = 0;
const ENDPOINTS: usize = 2;
const VIPS: usize = 3;
const VIP_ENDPOINTS: usize = 4;

/// Returns the number of rows for each table if not all rows fit.
fn shared(mut wanted: [usize; TABLES], lines: usize) -> [usize; TABLES] {
    let tables = |wanted: &[usize; TABLES]| wanted.iter().filter(|count| **count > 0).count();
    // If not even one row of each table fits, the least important tables are dropped first.
    for dropped in [VIP_ENDPOINTS, VIPS, LISTENERS, ENDPOINTS] {
        if (LINES_BESIDE_ROWS + 1) * tables(&wanted) > lines
            && tables(&wanted) > 1
            && let Some(count) = wanted.get_mut(dropped)
        {
            *count = 0;
        }
    }
    let mut left = lines.saturating_sub(LINES_BESIDE_ROWS * tables(&wanted));
    let mut given = [0; TABLES];
    // Each table gets one row in turn, so that a long table does not crowd out a short one.
    while left > 0 && given != wanted {
        for (given, wanted) in given.iter_mut().zip(wanted) {
            if *given < wanted && left > 0 {
                *given += 1;
                left -= 1;
            }
        }
    }
    given
}

fn listeners(rates: &Rates, options: &TopOptions, rows_max: usize) -> String {
    let keys = |of: &ListenerRates| Keys {
        rate: of.requests_per_second,
        errors: of.refused_per_second,
        added: None,
        endpoint: None,
        name: of.name.clone(),
    };
    let row = |of: &ListenerRates| {
        let cells = [
            of.name.clone(),
            of.bind.clone(),
            of.connections_open.to_string(),
            per_second(of.connections_per_second),
            per_second(of.requests_per_second),
            per_second(of.refused_per_second),
        ];
        (cells, of.refused_per_second > 0.0)
    };
    let head = ["LISTENER", "BIND", "OPEN", "CONNS/s", "REQS/s", "REFUSED/s"];
    let layout = Layout { names: &[0], addresses: &[1], numbers: &[2, 3, 4, 5] };
    table_of(options, rows_max, head, &layout, sorted(&rates.listeners, options.sort, keys), row)
}

fn routes(rates: &Rates, options: &TopOptions, rows_max: usize) -> String {
    let keys = |of: &RouteRates| Keys {
        rate: of.requests_per_second,
        errors: of.errors_per_second,
        added: of.added_us,
        endpoint: of.upstream_us,
        name: of.name.clone(),
    };
    let row = |of: &RouteRates| {
        let cells = [
            of.name.clone(),
            of.listener.clone(),
            per_second(of.requests_per_second),
            per_second(of.client_errors_per_second),
            per_second(of.errors_per_second),
            quantiles(of.added_us),
            quantiles(of.upstream_us),
        ];
        (cells, of.errors_per_second > 0.0)
    };
    let head = ["ROUTE", "LISTENER", "REQS/s", "4xx/s", "5xx/s", "ADDED p50/p99", "ENDPOINT p50/p99"];
    let layout = Layout { names: &[0, 1], addresses: &[], numbers: &[2, 3, 4, 5, 6] };
    table_of(options, rows_max, head, &layout, sorted(&rates.routes, options.sort, keys), row)
}

fn endpoints(rates: &Rates, options: &TopOptions, rows_max: usize) -> String {
    let keys = |of: &EndpointRates| Keys {
        rate: of.requests_per_second,
        errors: of.failures_per_second,
        added: None,
        endpoint: of.upstream_us,
        name: of.address.clone(),
    };
    let row = |of: &EndpointRates| {
        let cells = [
            of.address.clone(),
            of.cluster.clone(),
            state_name(of.state).to_owned(),
            of.in_flight.to_string(),
            per_second(of.requests_per_second),
            per_second(of.failures_per_second),
            quantiles(of.upstream_us),
        ];
        (cells, of.failures_per_second > 0.0 || !of.state.takes_work())
    };
    let head = ["ENDPOINT", "CLUSTER", "STATE", "BUSY", "REQS/s", "FAILED/s", "LATENCY p50/p99"];
    let layout = Layout { names: &[1], addresses: &[0], numbers: &[3, 4, 5, 6] };
    table_of(options, rows_max, head, &layout, sorted(&rates.endpoints, options.sort, keys), row)
}

fn vips(rates: &Rates, options: &TopOptions, rows_max: usize) -> String {
    let keys = |of: &VipRow| Keys {
        rate: of.flows_per_second,
        errors: of.dropped_per_second,
        added: None,
        endpoint: None,
        name: of.name.clone(),
    };
    let row = |of: &VipRow| {
        let cells = [
            of.name.clone(),
            of.address.clone(),
            of.flows.to_string(),
            per_second(of.flows_per_second),
            per_second(of.packets_per_second),
            per_second(of.bits_per_second),
            per_second(of.dropped_per_second),
        ];
        (cells, of.dropped_per_second > 0.0)
    };
    let head = ["VIP", "ADDRESS", "FLOWS", "NEW/s", "PACKETS/s", "BITS/s", "DROPPED/s"];
    let layout = Layout { names: &[0], addresses: &[1], numbers: &[2, 3, 4, 5, 6] };
    table_of(options, rows_max, head, &layout, sorted(&rates.vips, options.sort, keys), row)
}

fn vip_endpoints(rates: &Rates, options: &TopOptions, rows_max: usize) -> String {
    let keys = |of: &VipEndpointRates| Keys {
        rate: of.flows_per_second,
        errors: 0.0,
        added: None,
        endpoint: None,
        name: of.address.clone(),
    };
    let row = |of: &VipEndpointRates| {
        let cells = [
            of.address.clone(),
            of.vip.clone(),
            state_name(of.state).to_owned(),
            of.flows.to_string(),
            per_second(of.flows_per_second),
            per_second(of.packets_to_per_second),
            per_second(of.packets_from_per_second),
            per_second(of.bits_per_second),
        ];
        (cells, !of.state.takes_work())
    };
    let head = ["VIP ENDPOINT", "VIP", "STATE", "FLOWS", "NEW/s", "PACKETS/s TO", "FROM", "BITS/s"];
    let layout = Layout { names: &[1], addresses: &[0], numbers: &[3, 4, 5, 6, 7] };
    table_of(options, rows_max, head, &layout, sorted(&rates.vip_endpoints, options.sort, keys), row)
}

fn sorted<T>(all: &[T], sort: TopSort, keys: impl Fn(&T) -> Keys) -> Vec<&T> {
    let mut all: Vec<(Keys, &T)> = all.iter().map(|of| (keys(of), of)).collect();
    // The sort is stable: equal rows, such as idle ones, stay in the order of the file.
    all.sort_by(|(left, _), (right, _)| compare(left, right, sort));
    all.into_iter().map(|(_, of)| of).collect()
}

fn compare(left: &Keys, right: &Keys, sort: TopSort) -> Ordering {
    let p99 = |quantiles: Option<Quantiles>| quantiles.map_or(0.0, |quantiles| quantiles.p99);
    // The largest comes first.
    let by = |figure: &dyn Fn(&Keys) -> f64| figure(right).total_cmp(&figure(left));
    match sort {
        TopSort::Rate => by(&|keys| keys.rate),
        TopSort::Errors => by(&|keys| keys.errors).then_with(|| by(&|keys| keys.rate)),
        TopSort::Added => by(&|keys| p99(keys.added)).then_with(|| by(&|keys| keys.rate)),
        TopSort::Endpoint => by(&|keys| p99(keys.endpoint)).then_with(|| by(&|keys| keys.rate)),
        TopSort::Name => left.name.cmp(&right.name),
    }
}

/// Shows the first rows, and how many more there are. Rows with errors are red on a terminal.
fn table_of<T, const N: usize>(
    options: &TopOptions,
    rows_max: usize,
    head: [&str; N],
    layout: &Layout<'_>,
    all: Vec<&T>,
    row: impl Fn(&T) -> ([String; N], bool),
) -> String {
    let rows = all.iter().take(rows_max).map(|of| row(of));
    let rows =
        rows.map(|(cells, is_wrong)| Row { style: if options.color && is_wrong { RED } else { "" }, ..Row::of(cells) });
    let table = table::render(options.width, head, layout, rows);
    match all.len().saturating_sub(rows_max) {
        more if more == 0 || table.is_empty() => table,
        more => format!("{table}and {more} more\n"),
    }
}

/// Formats a rate: large ones with an SI prefix, small ones with one decimal.
fn per_second(rate: f64) -> String {
    match rate {
        0.0 => "0".to_owned(),
        rate if rate < 9.95 => format!("{rate:.1}"),
        rate if rate < 99_999.5 => format!("{rate:.0}"),
        rate if rate < 9_999_500.0 => format!("{:.0}k", rate / 1e3),
        rate if rate < 9_999_500_000.0 => format!("{:.0}M", rate / 1e6),
        rate if rate < 1e15 => format!("{:.0}G", rate / 1e9),
        rate => format!("{rate:.0e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::rates_between;
    use crate::counters::tests::before_and_now;

    const PLAIN_TEXT: TopOptions =
        TopOptions { sort: TopSort::Rate, view: TopView::All, width: 80, rows_max: 20, lines_max: None, color: false };

    fn rates() -> Rates {
        let [before, now] = before_and_now();
        rates_between(&before, &now).unwrap()
    }

    #[test]
    fn all_that_there_is() {
        let expect = "\
steelyard 0.1.0, pid 4242, up 1 min 2 s, 2 workers, generation 7
last 2.0 s: 100 requests/s, 5.0 errors/s, 12 connections open

LISTENER  BIND        OPEN  CONNS/s  REQS/s  REFUSED/s
web       0.0.0.0:80    12       10     100        1.0

ROUTE  LISTENER  REQS/s  4xx/s  5xx/s  ADDED p50/p99  ENDPOINT p50/p99
/      web          100    2.5    5.0    2 us / 4 us       7 us / 8 us

ENDPOINT        CLUSTER  STATE    BUSY  REQS/s  FAILED/s  LATENCY p50/p99
127.0.0.1:9001  shop     healthy     3      95         0      7 us / 8 us
127.0.0.1:9002  shop     ejected     3     5.0       5.0      7 us / 8 us

VIP  ADDRESS           FLOWS  NEW/s  PACKETS/s  BITS/s  DROPPED/s
dns  192.0.2.1:53/udp      8     10      45678   9400M          0

VIP ENDPOINT   VIP  STATE    FLOWS  NEW/s  PACKETS/s TO  FROM  BITS/s
192.0.2.53:53  dns  healthy      8     10          1000   500    800k
";
        assert_eq!(render_top_text(&rates(), &PLAIN_TEXT), expect);
    }

    #[test]
    fn a_view_has_its_tables_and_the_sort_decides_what_comes_first() {
        let rates = rates();
        let first = |sort, view| {
            let text = render_top_text(&rates, &TopOptions { sort, view, ..PLAIN_TEXT });
            // Endpoints are those of clusters, and those of vips below them.
            let tables = if view == TopView::Endpoints { 2 } else { 1 };
            assert_eq!(text.matches("\n\n").count(), tables, "{text}");
            text.lines().nth(4).unwrap().split(' ').next().unwrap().to_owned()
        };
        assert_eq!(first(TopSort::Rate, TopView::Endpoints), "127.0.0.1:9001");
        assert_eq!(first(TopSort::Errors, TopView::Endpoints), "127.0.0.1:9002");
        assert_eq!(first(TopSort::Endpoint, TopView::Endpoints), "127.0.0.1:9001");
        assert_eq!(first(TopSort::Name, TopView::Endpoints), "127.0.0.1:9001");
        assert_eq!(first(TopSort::Added, TopView::Routes), "/");
    }

    #[test]
    fn errors_are_red_on_a_terminal() {
        let text = render_top_text(&rates(), &TopOptions { color: true, view: TopView::Endpoints, ..PLAIN_TEXT });
        assert_eq!(text.matches(RED).count(), 1, "{text}");
        assert!(text.contains(&format!("{RED}127.0.0.1:9002")), "{text}");
    }

    #[test]
    fn a_small_terminal_shows_the_first_of_each() {
        let mut rates = rates();
        let endpoint = rates.endpoints[0].clone();
        rates.endpoints.extend((0..100).map(|_| endpoint.clone()));
        for lines in [3, 6, 10, 14, 18, 24, 40] {
            let text = render_top_text(&rates, &TopOptions { lines_max: Some(lines), rows_max: 1_000, ..PLAIN_TEXT });
            assert!(text.lines().count() <= lines.max(2), "{lines}\n{text}");
            assert!(lines < 18 || text.contains("\nweb "), "{lines}\n{text}");
            // The table of routes is dropped last.
            assert!(lines < 6 || text.contains("\n/ "), "{lines}\n{text}");
        }
        let text = render_top_text(&rates, &TopOptions { rows_max: 1, view: TopView::Endpoints, ..PLAIN_TEXT });
        assert!(text.contains("\nand 101 more\n\nVIP ENDPOINT "), "{text}");
    }

    #[test]
    fn long_values_fit_80_columns() {
        let mut rates = rates();
        rates.routes[0].name = "shop.example.com/api/v1/products/with/a/path/that/does/not/end".into();
        rates.routes[0].listener = "the-listener-of-the-shop-in-the-north".into();
        rates.routes[0].added_us = Some(Quantiles { p50: 99_949.0, p99: 99_949.0 });
        rates.routes[0].upstream_us = rates.routes[0].added_us;
        let route = &mut rates.routes[0];
        (route.requests_per_second, route.errors_per_second, route.client_errors_per_second) = (99e3, 99e3, 99e3);
        let endpoint = &mut rates.endpoints[0];
        (endpoint.requests_per_second, endpoint.failures_per_second) = (99e3, 99e3);
        rates.listeners[0].bind = "[2001:db8:1234:5678:9abc:def0:1234:5678]:8443".into();
        rates.endpoints[0].address = "[2001:db8:1234:5678:9abc:def0:1234:5678]:8443".into();
        rates.endpoints[0].cluster = "the-cluster-of-the-shop-in-the-north".into();
        rates.endpoints[0].upstream_us = rates.routes[0].added_us;
        rates.vips[0].address = "[2001:db8:1234:5678:9abc:def0:1234:5678]:5000-5010/udp".into();
        let endpoint = &mut rates.vip_endpoints[0];
        endpoint.address = "[2001:db8:1234:5678:9abc:def0:1234:5678]:8443".into();
        endpoint.vip = "the-vip-of-the-shop-in-the-north".into();
        (endpoint.flows, endpoint.flows_per_second, endpoint.bits_per_second) = (9_999_999, 99_999.0, 9.4e10);
        (endpoint.packets_to_per_second, endpoint.packets_from_per_second) = (9_999_999.0, 9_999_999.0);
        let text = render_top_text(&rates, &PLAIN_TEXT);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}\n{text}");
        }
        assert!(text.contains("\n[2001:db8:1234:5678:9abc:def0:1234:5678]:8443\n"), "{text}");
    }

    #[test]
    fn where_there_is_nothing() {
        let mut rates = rates();
        rates.routes.clear();
        rates.vips.clear();
        rates.vip_endpoints.clear();
        let shown = |view| render_top_text(&rates, &TopOptions { view, ..PLAIN_TEXT });
        assert!(shown(TopView::Routes).ends_with("\nNo route has served a request yet.\n"));
        assert!(shown(TopView::Vips).ends_with("\nThere are no vips.\n"));
        assert!(!shown(TopView::All).contains("ROUTE"));
    }

    #[test]
    fn rates_are_short() {
        let check = |rate, expect: &str| assert_eq!(per_second(rate), expect, "{rate}");
        check(0.0, "0");
        check(0.5, "0.5");
        check(9.94, "9.9");
        check(9.96, "10");
        check(99_999.0, "99999");
        check(123_456.0, "123k");
        check(12_345_678.0, "12M");
        check(9.4e9, "9400M");
        check(94e9, "94G");
        check(1.8e19, "2e19");
    }

    #[test]
    fn what_answers_may_tell_any_number_and_any_name() {
        let [mut before, mut now] = before_and_now();
        for (counters, count) in [(&mut before, 0), (&mut now, u64::MAX)] {
            counters.listeners.push(counters.listeners[0].clone());
            counters.listeners.iter_mut().for_each(|of| (of.connections_open, of.requests) = (count, count));
            counters.routes[0].added = vec![count; 3];
            counters.routes[0].name = "\u{1b}[2J\u{9b}2J\u{202e}evil\u{200b}".into();
        }
        let text = render_top_text(&rates_between(&before, &now).unwrap(), &PLAIN_TEXT);
        assert!(text.contains("\u{fffd}[2J\u{fffd}2J\u{fffd}evil\u{fffd} "), "{text}");
        assert!(!text.contains(|c: char| c != '\n' && c.is_control()), "{text}");
    }
}
