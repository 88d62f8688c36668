//! Plots as inline SVG, laid out by hand.
//!
//! It has lines ([`Lines`]), bars with their rounds ([`bars()`]) and stacked bars ([`stacked`]), each a `<figure>`. `plots` decides which
//! plots a report has. Colours are CSS variables, so that one plot works on light and on dark; series also differ in their dashes and in
//! the shape of their marks, not only in colour. A plot is drawn 520 wide and scaled by the page: its text stays readable from 340 px on.

mod axis;
mod bars;
mod lines;

use maud::{Markup, html};

pub(super) use axis::{Scale, short, short_micros};
pub(super) use bars::{Bar, Stack, bars, document, stacked};
pub(super) use lines::{Line, Lines, Point};

/// Colours that the style sheet defines as `--s0` to `--s8`.
pub(super) const COLOURS: usize = 9;
/// Dashes that the style sheet defines as `.d0` to `.d3`.
pub(super) const DASHES: usize = 4;

const WIDTH: f64 = 520.0;

/// The appearance that distinguishes a series from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ink {
    /// Below [`COLOURS`].
    pub colour: usize,
    /// Below [`DASHES`].
    pub dash: usize,
}

impl Ink {
    fn style(self) -> String {
        format!("--c:var(--s{})", self.colour % COLOURS)
    }

    fn dash_class(self) -> String {
        format!("line d{}", self.dash % DASHES)
    }
}

/// A plot with its caption, and the note and legend below it.
fn figure(caption: &str, note: &str, svg: &Markup, legend: &[(String, Ink)]) -> Markup {
    html! {
        figure {
            figcaption { (caption) }
            (svg)
            @if !legend.is_empty() {
                ul class="legend" {
                    @for (name, ink) in legend {
                        li style=(ink.style()) {
                            svg viewBox="0 0 28 10" width="28" height="10" aria-hidden="true" {
                                path class=(ink.dash_class()) d="M0 5H28" {}
                                (mark(14.0, 5.0, *ink))
                            }
                            (name)
                        }
                    }
                }
            }
            @if !note.is_empty() { p class="note" { (note) } }
        }
    }
}

/// A mark whose shape depends on the dash, so that series differ without colour.
fn mark(x: f64, y: f64, ink: Ink) -> Markup {
    let path = match ink.dash % DASHES {
        0 => format!("M{} {y}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0", px(x - 3.0)),
        1 => format!("M{} {}h6v6h-6z", px(x - 3.0), px(y - 3.0)),
        2 => format!("M{x} {}l4 7h-8z", px(y - 4.0)),
        _ => format!("M{x} {}l4 4l-4 4l-4 -4z", px(y - 4.0)),
    };
    html! { path class="mark" d=(path) {} }
}

/// A coordinate: a tenth of a unit is finer than any screen.
fn px(value: f64) -> String {
    format!("{value:.1}")
}
