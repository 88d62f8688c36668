//! The report as one self-contained HTML page: no script, no network, plots inline.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::record::{Conclusion, Instance, Run, Variant, Verdict};

use super::Language;
use super::figures::Figures;
use super::table::Table;
use super::{environment, first, hops, number, plots, sizing, tables};

const STYLE: &str = include_str!("page.css");

pub(super) fn render(run: &Run, language: Language) -> String {
    let figures = Figures::new(run).in_language(language);
    let scenario = &run.scenario;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="generator" content=(run.program);
                title { (scenario.title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (scenario.title) }
                    @if let Some(title) = scenario.title_zh.as_ref().filter(|_| language == Language::Zh) {
                        p lang="zh" { (title) }
                    }
                }
                main { (first_screen(figures)) (first_page(figures)) (body(figures)) }
            }
        }
    };
    page.into_string()
}

/// All that many readers will read: the question, the answer, one chart, and what the answer does not cover.
fn first_screen(figures: Figures<'_>) -> Markup {
    let run = figures.run;
    let first::Answer { text, because } = first::answer(figures);
    let cautions = environment::cautions(run);
    let (first, more) = cautions.split_at(cautions.len().min(CAUTIONS_SHOWN));
    let absences = environment::absences(run);
    html! {
        section class="first" id="answer" {
            div class="said" {
                @if let Some(guest) = environment::of_guest(run) { p class="answer" { (guest) } }
                p class="question" { (run.scenario.question) }
                p class="answer" { (text) }
                @if !because.is_empty() { p class="because" { (because) } }
                p class="soft" {
                    @if let Some(report) = &run.scenario.report { "After: " (report) ". " }
                    (run.program) ", " (run.started) ", " (run.rounds) " rounds, seed " (run.seed) "."
                }
            }
            @if let Some(chart) = plots::leading(figures) { div class="chart" { (chart) } }
            div class="limits" {
                h2 { "What this cannot tell" }
                ul { @for caution in first { li { (caution) } } }
                @if !more.is_empty() || !absences.is_empty() {
                    details {
                        summary { (more.len() + absences.len()) " more" }
                        ul {
                            @for caution in more { li { (caution) } }
                            @for (what, why) in absences { li { "Not there: " strong { (what) } ": " (why) } }
                        }
                    }
                }
            }
        }
    }
}

/// Limits on the first screen; the others are one click away, and all of them are in report.md.
const CAUTIONS_SHOWN: usize = 4;

/// The tables that bear the answer out, and the way to all others.
fn first_page(figures: Figures<'_>) -> Markup {
    let run = figures.run;
    let has_hops = hops::table(figures).is_some();
    html! {
        section class="verdict" id="verdict" {
            h2 { "Verdict" }
            @if let Some(sizing) = sizing::sentence(figures) { p class="sizing" { (sizing) } }
            @if let Some(headline) = tables::headline(figures) { (table(&headline)) }
            h2 { "Noise floor" }
            p { (environment::noise_sentence(figures)) }
        }
        nav aria-label="Sections" {
            ul {
                @for (id, title) in SECTIONS.into_iter().filter(|(id, _)| *id != "hops" || has_hops) {
                    li { a href={ "#" (id) } { (title) } }
                }
            }
        }
        section id="conclusions" {
            h2 { "Conclusions" }
            @if run.conclusions.is_empty() { p { "None: no figure bears one out." } }
            @let (leading, others): (Vec<_>, Vec<_>) = run.conclusions.iter().partition(|conclusion| conclusion.leads);
            (conclusions(&leading))
            @if !others.is_empty() { details { summary { (others.len()) " more" } (conclusions(&others)) } }
        }
    }
}

fn conclusions(conclusions: &[&Conclusion]) -> Markup {
    html! {
        ul class="conclusions" {
            @for Conclusion { text, because, .. } in conclusions { li { (text) span class="because" { (because) } } }
        }
    }
}

/// Sections below the first box, by id.
const SECTIONS: [(&str, &str); 9] = [
    ("conclusions", "Conclusions"),
    ("published", "Published tables"),
    ("honest", "Full tables"),
    ("hops", "Hops"),
    ("plots", "Plots"),
    ("sizing", "Sizing"),
    ("host", "Cases, host, programs"),
    ("configurations", "Commands and configurations"),
    ("rounds", "All rounds"),
];

fn body(figures: Figures<'_>) -> Markup {
    let run = figures.run;
    html! {
        section id="published" {
            h2 { "The tables of the published report" }
            div class="tables" { @for published in tables::published(figures) { (table(&published)) } }
        }
        section id="honest" {
            h2 { "The tables that it should have had" }
            div class="tables" { @for honest in tables::honest(figures) { (table(&honest)) } }
        }
        @if let Some(hops) = hops::table(figures) { section id="hops" { h2 { "Hops" } (table(&hops)) } }
        section id="plots" {
            h2 { "Plots" }
            div class="plots" { @for plot in plots::plots(figures) { (plot) } }
        }
        section id="sizing" {
            h2 { "Sizing" }
            @match sizing::table(figures) {
                Some(sizing) => (table(&sizing)),
                None => p { "No case of this scenario is one of requests through a balancer that runs as a process." },
            }
        }
        section id="host" {
            h2 { "Cases, host, programs" }
            (table(&Table { caption: "Cases".into(), ..environment::cases(run) }))
            (table(&Table { caption: "Host".into(), ..environment::host(run) }))
            (table(&Table { caption: "Programs".into(), ..environment::programs(run) }))
            (table(&Table { caption: "Ceilings of the instrument".into(), ..environment::calibrations(run) }))
            (table(&Table { caption: "Noise floor, by case".into(), ..environment::noise(figures) }))
            h3 { "Topology" }
            pre { (run.scenario.topology.trim_end()) }
        }
        section id="configurations" { h2 { "Commands and configurations" } (configurations(figures)) }
        section id="rounds" {
            h2 { "All rounds" }
            (table(&Table { caption: "Cells that do not count".into(), ..environment::excluded(figures) }))
            (table(&Table { caption: "What the kernel counted".into(), ..environment::network(figures) }))
            details { summary { (run.cells.len()) " cells" } (table(&environment::rounds(figures))) }
            h3 { "Again" }
            pre { (run.reproduce) }
        }
    }
}

fn configurations(figures: Figures<'_>) -> Markup {
    html! {
        @for instance in &figures.run.scenario.instances {
            @let Instance { id, variant, commands, configuration, .. } = instance;
            details {
                summary {
                    (tables::title(figures, instance)) " " code { (id) } ": "
                    @match variant {
                        Variant::Tuned => "as its makers recommend for a comparison",
                        Variant::Default => "as one gets it who sets nothing",
                    }
                }
                @if !commands.is_empty() { pre { (commands.join("\n")) } }
                @if !configuration.is_empty() { pre { (configuration.trim_end()) } }
            }
        }
        h3 { "Load" }
        ul {
            @for case in &figures.run.scenario.cases {
                @if let Some(cell) = figures.run.cells.iter().find(|cell| cell.case == case.name) {
                    li { (tables::case_title(case)) ": " code { (cell.command) } }
                }
            }
        }
    }
}

fn table(table: &Table) -> Markup {
    html! {
        @if !table.rows.is_empty() {
            div class="table" {
                @if !table.caption.is_empty() { h3 { (table.caption) } }
                // Reachable by keyboard, since it may scroll.
                div class="scroll" tabindex="0" role="region" aria-label=(table.caption) {
                    table {
                        thead { tr { @for head in &table.head { th scope="col" class=[head.is_figure.then_some("figure")] { (head.title) } } } }
                        tbody {
                            @for row in &table.rows {
                                tr { @for (text, head) in row.iter().zip(&table.head) { td class=[head.is_figure.then_some("figure")] { (cell(text)) } } }
                            }
                        }
                    }
                }
                @for note in &table.notes { p class="note" { (note) } }
            }
        }
    }
}

/// A verdict becomes a badge; everything else is unchanged.
fn cell(text: &str) -> Markup {
    let (value, word) = text.rsplit_once(" · ").map_or(("", text), |(value, word)| (value, word));
    let class = match number::verdict_of(word) {
        Some(Verdict::LbSaturated) => "badge good",
        Some(Verdict::BelowCapacity | Verdict::ConcurrencyLimited) => "badge",
        Some(Verdict::GeneratorSaturated | Verdict::BackendSaturated | Verdict::CapBound | Verdict::Disturbed) => {
            "badge warn"
        }
        Some(Verdict::Invalid) => "badge bad",
        None if word == "failed" => "badge bad",
        None if word == tables::NOT_THERE => "badge",
        None => return html! { (text) },
    };
    html! { @if !value.is_empty() { (value) " " } span class=(class) { (word) } }
}
