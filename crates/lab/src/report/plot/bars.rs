//! Horizontal bars: one figure with its interval and rounds, or parts of a whole.

use maud::{Markup, html};

use super::axis::{Axis, Scale, short};
use super::{Ink, WIDTH, figure, px};
use crate::report::number;
use crate::stats::Estimate;

const LEFT: f64 = 172.0;
const RIGHT: f64 = 62.0;
const TOP: f64 = 6.0;
const BOTTOM: f64 = 38.0;
const ROW: f64 = 26.0;
const BAR: f64 = 14.0;
/// The number of characters of a name that fit beside its bar.
const NAME_MAX: usize = 21;

/// One bar.
pub(in crate::report) struct Bar {
    pub name: String,
    pub ink: Ink,
    pub estimate: Estimate,
    /// Every round, drawn as a dot, because a bar alone hides two clusters.
    pub rounds: Vec<f64>,
}

/// Bars with their intervals and rounds; None if there are none.
pub(in crate::report) fn bars(caption: &str, unit: &str, note: &str, bars: &[Bar]) -> Option<Markup> {
    let values = bars.iter().flat_map(|bar| bar.rounds.iter().copied().chain([bar.estimate.high]));
    let x = Axis::new(Scale::Linear, values, LEFT, WIDTH - RIGHT)?;
    let height = TOP + ROW * bars.len() as f64 + BOTTOM;
    let svg = html! {
        svg class="plot" viewBox={ "0 0 " (WIDTH) " " (px(height)) } role="img" aria-label=(caption) {
            (rows(&x, height, unit, bars)?)
        }
    };
    Some(figure(caption, note, &svg, &[]))
}

/// The grid, and a row for each bar.
fn rows(x: &Axis, height: f64, unit: &str, bars: &[Bar]) -> Option<Markup> {
    let zero = x.at(0.0)?;
    Some(html! {
        (grid(x, height, unit))
        @for (row, bar) in bars.iter().enumerate() {
            @let middle = TOP + ROW * (row as f64 + 0.5);
            @let end = x.at(bar.estimate.median).unwrap_or(zero);
            g style=(bar.ink.style()) {
                title { (bar.name) ": " (number::with_interval(&bar.estimate, number::plain)) " " (unit) }
                text x=(LEFT - 8.0) y=(px(middle + 4.0)) text-anchor="end" { (shortened(&bar.name)) }
                rect class="bar" x=(px(zero)) y=(px(middle - BAR / 2.0)) width=(px((end - zero).max(0.0))) height=(BAR) {}
                @for round in bar.rounds.iter().filter_map(|round| x.at(*round)) {
                    circle class="round" cx=(px(round)) cy=(px(middle)) r="2" {}
                }
                @if let (Some(low), Some(high)) = (x.at(bar.estimate.low), x.at(bar.estimate.high)) {
                    path class="interval" d={ "M" (px(low)) " " (px(middle - 5.0)) "v10m0 -5H" (px(high)) "m0 -5v10" } {}
                }
                text x=(WIDTH - 4.0) y=(px(middle + 4.0)) text-anchor="end" { (number::median(Some(bar.estimate), number::plain)) }
            }
        }
    })
}

/// The part of the page's style sheet that a chart in its own file needs. A file cannot know the page that shows it, but it knows whether
/// its reader prefers dark. It has its own background, so that it is readable on either.
const STYLE: &str = "
:root { --paper: #fdfdfb; --ink: #1b1f24; --soft: #5a636e; --rule: #d9dde2; --s0: #6b7480; --s1: #0b6fc2; --s2: #c25700; --s3: #16803c; --s4: #9a3ab0; \
--s5: #b3261e; --s6: #00798a; --s7: #7a6a00; --s8: #4b4bc8; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e4e7ea; --soft: #9aa4af; --rule: #343b43; --s0: #a0aab5; --s1: #5fb0ff; \
--s2: #ffa057; --s3: #5fd38a; --s4: #d990ea; --s5: #ff8a80; --s6: #4dd0e1; --s7: #dcca4e; --s8: #a3a3ff; } }
text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.caption { font-weight: 600; font-size: 14px; }
.note, .name { font-size: 10.5px; fill: var(--soft); }
.paper { fill: var(--paper); }
.grid { stroke: var(--rule); fill: none; }
.bar { fill: var(--c); opacity: .55; }
.round { fill: var(--ink); }
.interval { stroke: var(--ink); fill: none; stroke-width: 1.5; }
";

/// Bars in their own file: SVG with its caption, its note, its style sheet and the command that made it. None if there are no bars.
pub(in crate::report) fn document(
    caption: &str,
    unit: &str,
    note: &str,
    made_by: &str,
    bars: &[Bar],
) -> Option<String> {
    const CAPTION: f64 = 26.0;
    const NOTE: f64 = 18.0;
    let values = bars.iter().flat_map(|bar| bar.rounds.iter().copied().chain([bar.estimate.high]));
    let x = Axis::new(Scale::Linear, values, LEFT, WIDTH - RIGHT)?;
    let plot = TOP + ROW * bars.len() as f64 + BOTTOM;
    let height = CAPTION + plot + NOTE;
    let figures =
        bars.iter().map(|bar| format!("{}: {}", bar.name, number::with_interval(&bar.estimate, number::plain)));
    let description = format!("{unit}. {}. {note}", figures.collect::<Vec<_>>().join("; "));
    let svg = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (WIDTH) " " (px(height)) } width=(WIDTH) height=(px(height)) role="img"
            aria-labelledby="title description" {
            title id="title" { (caption) }
            desc id="description" { (description) }
            style { (STYLE) }
            rect class="paper" width="100%" height="100%" rx="6" {}
            text class="caption" x="10" y="19" { (caption) }
            g transform={ "translate(0 " (CAPTION) ")" } { (rows(&x, plot, unit, bars)?) }
            text class="note" x="10" y=(px(height - 7.0)) { (note) }
        }
    };
    Some(format!("<?made-by {made_by}?>\n{}\n", svg.into_string()))
}

/// One bar of parts.
pub(in crate::report) struct Stack {
    pub name: String,
    /// One value for each part.
    pub parts: Vec<f64>,
}

/// Bars of parts, with the parts' names in `parts`. None if there are none.
pub(in crate::report) fn stacked(
    caption: &str,
    unit: &str,
    note: &str,
    parts: &[(String, Ink)],
    stacks: &[Stack],
) -> Option<Markup> {
    let total = |stack: &Stack| stack.parts.iter().sum::<f64>();
    let x = Axis::new(Scale::Linear, stacks.iter().map(total), LEFT, WIDTH - RIGHT)?;
    let height = TOP + ROW * stacks.len() as f64 + BOTTOM;
    let svg = html! {
        svg class="plot" viewBox={ "0 0 " (WIDTH) " " (px(height)) } role="img" aria-label=(caption) {
            (grid(&x, height, unit))
            @for (row, stack) in stacks.iter().enumerate() {
                @let middle = TOP + ROW * (row as f64 + 0.5);
                text x=(LEFT - 8.0) y=(px(middle + 4.0)) text-anchor="end" { (shortened(&stack.name)) }
                @for ((from, to, value), (name, ink)) in spans(stack, &x).into_iter().zip(parts) {
                    rect class="part" style=(ink.style()) x=(px(from)) y=(px(middle - BAR / 2.0)) width=(px(to - from)) height=(BAR) {
                        title { (stack.name) ", " (name) ": " (number::plain(value)) " " (unit) }
                    }
                }
                text x=(WIDTH - 4.0) y=(px(middle + 4.0)) text-anchor="end" { (number::plain(total(stack))) }
            }
        }
    };
    Some(figure(caption, note, &svg, parts))
}

/// From, to and value of each part.
fn spans(stack: &Stack, x: &Axis) -> Vec<(f64, f64, f64)> {
    let mut sum = 0.0;
    let mut spans = Vec::new();
    for &part in &stack.parts {
        let (from, to) = (x.at(sum).unwrap_or(LEFT), x.at(sum + part).unwrap_or(LEFT));
        sum += part;
        spans.push((from, to.max(from), part));
    }
    spans
}

fn grid(x: &Axis, height: f64, unit: &str) -> Markup {
    let floor = height - BOTTOM + 4.0;
    html! {
        @for (at, text) in x.ticks(short) {
            path class="grid" d={ "M" (px(at)) " " (TOP) "V" (px(floor)) } {}
            text x=(px(at)) y=(px(floor + 14.0)) text-anchor="middle" { (text) }
        }
        text class="name" x=(WIDTH - RIGHT) y=(px(height - 4.0)) text-anchor="end" { (unit) }
    }
}

fn shortened(name: &str) -> String {
    if name.chars().count() <= NAME_MAX {
        return name.to_owned();
    }
    let mut short: String = name.chars().take(NAME_MAX - 1).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_and_parts_follow_each_other() {
        assert_eq!(shortened("NodePort (nftables DNAT), default"), "NodePort (nftables D…");
        assert_eq!(shortened("nginx http, tuned"), "nginx http, tuned");
        let stack = Stack { name: String::new(), parts: vec![1.0, 0.0, 3.0] };
        let x = Axis::new(Scale::Linear, [4.0].into_iter(), LEFT, WIDTH).unwrap();
        let spans = spans(&stack, &x);
        assert!(spans.windows(2).all(|pair| pair[0].1 == pair[1].0), "{spans:?}");
        assert_eq!(spans[1].0, spans[1].1);
    }
}
