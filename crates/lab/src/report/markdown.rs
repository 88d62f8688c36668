//! The report as Markdown: everything on the page except the plots.

use std::fmt::Write;

use crate::record::{Conclusion, Instance, Run, Variant};

use super::Language;
use super::figures::Figures;
use super::table::Table;
use super::{environment, first, hops, sizing, tables};

pub(super) fn render(run: &Run, language: Language) -> String {
    let figures = Figures::new(run).in_language(language);
    let mut text = String::new();
    let scenario = &run.scenario;
    let _ = writeln!(text, "# {}\n", scenario.title);
    if let Some(guest) = environment::of_guest(run) {
        let _ = writeln!(text, "**{guest}**\n");
    }
    if let Some(title) = scenario.title_zh.as_ref().filter(|_| language == Language::Zh) {
        let _ = writeln!(text, "{title}\n");
    }
    let _ = writeln!(text, "{}\n", scenario.question);
    if let Some(report) = &scenario.report {
        let _ = writeln!(text, "After: {report}\n");
    }
    first_page(&mut text, figures);
    section(&mut text, "The tables of the published report", tables::published(figures));
    section(&mut text, "The tables that it should have had", tables::honest(figures));
    section(&mut text, "Hops", hops::table(figures));
    section(&mut text, "Sizing", sizing::table(figures));
    section(&mut text, "Cases", [environment::cases(run)]);
    section(&mut text, "Host", [environment::host(run)]);
    section(&mut text, "Programs", [environment::programs(run)]);
    section(&mut text, "Ceilings of the instrument", [environment::calibrations(run)]);
    let _ = writeln!(text, "## Topology\n\n```\n{}\n```\n", scenario.topology.trim_end());
    configurations(&mut text, figures);
    section(&mut text, "Cells that do not count", [environment::excluded(figures)]);
    section(&mut text, "What the kernel counted", [environment::network(figures)]);
    section(&mut text, "All rounds", [environment::rounds(figures)]);
    let _ = writeln!(text, "## Again\n\n```\n{}\n```", run.reproduce);
    text
}

fn first_page(text: &mut String, figures: Figures<'_>) {
    let run = figures.run;
    let _ = writeln!(text, "**{}**\n", first::answer(figures).text);
    if let Some(headline) = tables::headline(figures) {
        let _ = writeln!(text, "## Verdict\n\n{}", headline.markdown());
    }
    let _ = writeln!(text, "## Conclusions\n");
    if let Some(sizing) = sizing::sentence(figures) {
        let _ = writeln!(text, "- {sizing}");
    }
    let (leading, others): (Vec<_>, Vec<_>) = run.conclusions.iter().partition(|conclusion| conclusion.leads);
    conclusions(text, &leading);
    if !others.is_empty() {
        let _ = writeln!(text, "\n<details><summary>{} more</summary>\n", others.len());
        conclusions(text, &others);
        let _ = writeln!(text, "\n</details>");
    }
    let _ = writeln!(text, "\n## Noise floor\n\n{}\n", environment::noise_sentence(figures));
    let noise = environment::noise(figures);
    if !noise.rows.is_empty() {
        let _ = writeln!(text, "{}", noise.markdown());
    }
    let _ = writeln!(text, "## What this cannot tell\n");
    for caution in environment::cautions(run) {
        let _ = writeln!(text, "- {caution}");
    }
    for (what, why) in environment::absences(run) {
        let _ = writeln!(text, "- Not there: {what}: {why}");
    }
    text.push('\n');
}

pub(super) fn conclusions(text: &mut String, conclusions: &[&Conclusion]) {
    for Conclusion { text: sentence, because, .. } in conclusions {
        let _ = writeln!(text, "- {sentence} *({because})*");
    }
}

fn section(text: &mut String, title: &str, tables: impl IntoIterator<Item = Table>) {
    let tables: Vec<Table> = tables.into_iter().filter(|table| !table.rows.is_empty()).collect();
    if tables.is_empty() {
        return;
    }
    let _ = writeln!(text, "## {title}\n");
    for table in tables {
        let _ = writeln!(text, "{}", table.markdown());
    }
}

fn configurations(text: &mut String, figures: Figures<'_>) {
    let _ = writeln!(text, "## Commands and configurations\n");
    for instance in &figures.run.scenario.instances {
        let Instance { id, variant, commands, configuration, .. } = instance;
        let variant = match variant {
            Variant::Tuned => "as its makers recommend for a comparison",
            Variant::Default => "as one gets it who sets nothing",
        };
        let _ = writeln!(text, "### {} (`{id}`), {variant}\n", tables::title(figures, instance));
        for block in [commands.join("\n"), configuration.trim_end().to_owned()] {
            if !block.is_empty() {
                let fence = fence(&block);
                let _ = writeln!(text, "{fence}\n{block}\n{fence}\n");
            }
        }
    }
    for case in &figures.run.scenario.cases {
        let command = figures.run.cells.iter().find(|cell| cell.case == case.name).map(|cell| &cell.command);
        if let Some(command) = command.filter(|command| !command.is_empty()) {
            let _ = writeln!(text, "Load of {}: `{command}`\n", tables::case_title(case));
        }
    }
}

/// Longer than any run of backticks in the block.
fn fence(block: &str) -> String {
    let longest = block.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    "`".repeat(longest.max(2) + 1)
}
