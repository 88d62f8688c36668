//! Lines as SVG.

use std::fmt::Write;

use maud::{Markup, html};

use crate::history::Point;
use crate::show::time;
use crate::status::Quantiles;

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 120.0;
/// The lines keep this distance from the edges.
const MARGIN: f64 = 4.0;

type Read = fn(&Point) -> f64;

/// A chart with one or two lines. The second one is dashed, so that nobody needs colours to tell them apart.
struct Chart {
    series: &'static str,
    title: &'static str,
    lines: &'static [Read],
    value: fn(f64) -> String,
}

const CHARTS: &[Chart] = &[
    Chart {
        series: "requests",
        title: "requests per second",
        lines: &[|of| of.requests_per_second],
        value: per_second,
    },
    Chart {
        series: "errors",
        title: "failed per second (5xx, gRPC)",
        lines: &[|of| of.errors_per_second],
        value: per_second,
    },
    Chart {
        series: "p50",
        title: "p50: added by Steelyard (solid), endpoints (dashed)",
        lines: &[|of| p50(of.added_us), |of| p50(of.upstream_us)],
        value: time,
    },
    Chart {
        series: "p99",
        title: "p99: added by Steelyard (solid), endpoints (dashed)",
        lines: &[|of| p99(of.added_us), |of| p99(of.upstream_us)],
        value: time,
    },
];

fn p50(of: Option<Quantiles>) -> f64 {
    of.map_or(0.0, |of| of.p50)
}

fn p99(of: Option<Quantiles>) -> f64 {
    of.map_or(0.0, |of| of.p99)
}

pub(super) fn per_second(rate: f64) -> String {
    if rate >= 100.0 { format!("{rate:.0}/s") } else { format!("{rate:.1}/s") }
}

/// All charts of these points.
pub(super) fn charts(points: &[Point]) -> Markup {
    html! {
        div class="charts" {
            @for chart in CHARTS {
                @let top = highest(chart, points);
                figure {
                    figcaption { (chart.title) ", at most " span class="top" { ((chart.value)(top)) } }
                    svg data-series=(chart.series) viewBox="0 0 600 120" preserveAspectRatio="none" role="img" aria-label=(chart.title) {
                        @for (index, read) in chart.lines.iter().enumerate() {
                            polyline class=(if index == 0 { "a" } else { "b" }) points=(line(points, *read, top)) {}
                        }
                    }
                }
            }
        }
    }
}

fn highest(chart: &Chart, points: &[Point]) -> f64 {
    points.iter().flat_map(|point| chart.lines.iter().map(move |read| read(point))).fold(0.0, f64::max)
}

fn line(points: &[Point], read: Read, top: f64) -> String {
    let step = WIDTH / points.len().saturating_sub(1).max(1) as f64;
    let mut line = String::new();
    for (at, point) in points.iter().enumerate() {
        let share = if top > 0.0 { read(point) / top } else { 0.0 };
        let y = HEIGHT - MARGIN - share * (HEIGHT - 2.0 * MARGIN - 2.0);
        // Writing to a String cannot fail.
        let _ = write!(line, "{}{:.1},{y:.1}", if at == 0 { "" } else { " " }, at as f64 * step);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_point_for_each_value() {
        let point = |requests_per_second| Point { requests_per_second, ..Point::default() };
        let points = [point(0.0), point(5.0), point(10.0)];
        assert_eq!(line(&points, |of| of.requests_per_second, 10.0), "0.0,116.0 300.0,61.0 600.0,6.0");
        assert_eq!(line(&points[..1], |of| of.requests_per_second, 0.0), "0.0,116.0");
        assert_eq!(line(&[], |of| of.requests_per_second, 0.0), "");
    }
}
