//! Lines over two axes.

use maud::{Markup, html};

use super::axis::{Axis, Scale, short};
use super::{Ink, WIDTH, figure, mark, px};

const HEIGHT: f64 = 300.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 44.0;

/// A plot of lines.
pub(in crate::report) struct Lines<'a> {
    pub caption: &'a str,
    pub note: &'a str,
    pub x: (&'a str, Scale),
    pub y: (&'a str, Scale),
    pub show_y: fn(f64) -> String,
    pub lines: Vec<Line>,
    /// Ranges of the x axis that do not count, which are shaded.
    pub shades: Vec<(f64, f64)>,
}

/// One series.
pub(in crate::report) struct Line {
    pub name: String,
    pub ink: Ink,
    pub points: Vec<Point>,
    /// Whether points have marks; a fit or an ideal line has none.
    pub has_marks: bool,
}

/// A point with its interval.
#[derive(Clone, Copy)]
pub(in crate::report) struct Point {
    pub x: f64,
    pub y: f64,
    pub interval: Option<(f64, f64)>,
}

impl Lines<'_> {
    /// The plot; None if there is nothing to show.
    pub(in crate::report) fn draw(&self) -> Option<Markup> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let ends = points().flat_map(|point| {
            [Some(point.y), point.interval.map(|(low, _)| low), point.interval.map(|(_, high)| high)]
        });
        let shades = self.shades.iter().flat_map(|(from, to)| [*from, *to]);
        let x = Axis::new(self.x.1, points().map(|point| point.x).chain(shades), LEFT, WIDTH - RIGHT)?;
        let y = Axis::new(self.y.1, ends.flatten(), HEIGHT - BOTTOM, TOP)?;
        let svg = html! {
            svg class="plot" viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(self.caption) {
                @for (from, to) in &self.shades {
                    @if let (Some(from), Some(to)) = (x.at(*from), x.at(*to)) {
                        rect class="shade" x=(px(from)) y=(px(TOP)) width=(px((to - from).max(0.0))) height=(px(HEIGHT - BOTTOM - TOP)) {}
                    }
                }
                (self.grid(&x, &y))
                @for line in &self.lines {
                    (draw_line(line, &x, &y))
                }
            }
        };
        let shown = self.lines.iter().filter(|line| !line.points.is_empty());
        let legend: Vec<(String, Ink)> = shown.map(|line| (line.name.clone(), line.ink)).collect();
        Some(figure(self.caption, self.note, &svg, &legend))
    }

    fn grid(&self, x: &Axis, y: &Axis) -> Markup {
        let floor = HEIGHT - BOTTOM;
        html! {
            @for (at, text) in y.ticks(self.show_y) {
                path class="grid" d={ "M" (LEFT) " " (px(at)) "H" (WIDTH - RIGHT) } {}
                text x=(LEFT - 6.0) y=(px(at + 4.0)) text-anchor="end" { (text) }
            }
            @for (at, text) in x.ticks(short) {
                path class="grid" d={ "M" (px(at)) " " (TOP) "V" (floor) } {}
                text x=(px(at)) y=(floor + 16.0) text-anchor="middle" { (text) }
            }
            path class="axis" d={ "M" (LEFT) " " (TOP) "V" (floor) "H" (WIDTH - RIGHT) } {}
            text class="name" x=(WIDTH - RIGHT) y=(HEIGHT - 8.0) text-anchor="end" { (self.x.0) }
            text class="name" x="2" y=(TOP - 11.0) { (self.y.0) }
        }
    }
}

fn draw_line(line: &Line, x: &Axis, y: &Axis) -> Markup {
    let place = |point: &Point| Some((x.at(point.x)?, y.at(point.y)?, *point));
    let places: Vec<(f64, f64, Point)> = line.points.iter().filter_map(place).collect();
    let path: Vec<String> = places.iter().map(|(x, y, _)| format!("{} {}", px(*x), px(*y))).collect();
    let whiskers = places.iter().filter_map(|(x, _, point)| {
        let (low, high) = point.interval?;
        Some((*x, y.at(low)?, y.at(high)?))
    });
    html! {
        g style=(line.ink.style()) {
            title { (line.name) }
            @if path.len() > 1 {
                path class=(line.ink.dash_class()) d={ "M" (path.join("L")) } {}
            }
            @for (x, low, high) in whiskers {
                path class="whisker" d={ "M" (px(x)) " " (px(low)) "V" (px(high)) } {}
            }
            @if line.has_marks {
                @for (x, y, _) in &places { (mark(*x, *y, line.ink)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::number;

    fn plot(points: &[(f64, f64)]) -> Option<String> {
        let points = points.iter().map(|&(x, y)| Point { x, y, interval: Some((y * 0.9, y * 1.1)) }).collect();
        let line = Line { name: "a & b".into(), ink: Ink { colour: 1, dash: 1 }, points, has_marks: true };
        let lines = Lines {
            caption: "c",
            note: "",
            x: ("x", Scale::Linear),
            y: ("y", Scale::Log),
            show_y: number::plain,
            lines: vec![line],
            shades: vec![(0.0, 1.0)],
        };
        lines.draw().map(|markup| markup.into_string())
    }

    #[test]
    fn a_mark_and_a_whisker_for_each_point_and_one_path() {
        let text = plot(&[(0.0, 10.0), (1.0, 20.0), (2.0, 0.0), (3.0, 40.0)]).unwrap();
        // One more mark is in the legend. A value that is not above 0 has no position on a logarithmic axis.
        assert_eq!(text.matches("class=\"mark\"").count(), 4);
        assert_eq!(text.matches("class=\"whisker\"").count(), 3);
        assert_eq!(text.matches("class=\"line d1\"").count(), 2);
        assert_eq!(text.matches("class=\"shade\"").count(), 1);
        assert!(text.contains("a &amp; b") && !text.contains("NaN"), "{text}");
    }

    #[test]
    fn nothing_to_show() {
        assert_eq!(plot(&[]), None);
        assert_eq!(plot(&[(1.0, f64::NAN)]), None);
    }
}
