//! The first page of a kept run: what was measured, where and how, the result, and what it cannot show.
//!
//! It has what a reader needs who finds the run in a repository and reads nothing else. `report.md` has the rest.

use std::fmt::Write;

use crate::record::Run;

use super::figures::Figures;
use super::{environment, markdown, sizing, tables};

pub(super) fn render(run: &Run) -> String {
    let figures = Figures::new(run);
    let scenario = &run.scenario;
    let mut text = format!("# {}\n\n{}\n\n", scenario.title, scenario.question);
    if let Some(report) = &scenario.report {
        let _ = writeln!(text, "After: {report}\n");
    }
    facts(&mut text, run);
    outcome(&mut text, figures);
    caveats(&mut text, figures);
    // A run that was kept without its commit was kept without its raw data, too.
    let raw = run.environment.commit.as_ref().map_or("", |_| RAW);
    text.push_str(&FILES.replace("\n\nIn this directory", &format!("\n{raw}\nIn this directory")));
    text
}

/// What, where and how, one fact per line.
fn facts(text: &mut String, run: &Run) {
    let env = &run.environment;
    let gib = env.memory_bytes as f64 / f64::from(1 << 30);
    let versions = run.contenders.iter().filter(|contender| !contender.version.is_empty());
    let versions = versions.map(|contender| format!("{} {}", contender.title, contender.version)).collect::<Vec<_>>();
    let lines = [
        ("when", format!("{} to {}", run.started, run.ended.as_deref().unwrap_or("?"))),
        ("host", format!("{} CPUs ({}), {gib:.1} GiB, Linux {}, {}", env.cpus, env.cpu_model, env.kernel, env.os)),
        ("placement", env.placement.clone()),
        (
            "measured",
            format!("{} cells in {} rounds, in an order drawn from seed {}", run.cells.len(), run.rounds, run.seed),
        ),
        ("by", by(run)),
        ("commit", env.commit.clone().unwrap_or_default()),
        ("versions", versions.join("; ")),
        ("again", format!("`{}`", run.reproduce)),
    ];
    for (what, value) in lines.into_iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(text, "- {what}: {value}");
    }
    text.push('\n');
}

/// The program, and the beginning of its digest.
fn by(run: &Run) -> String {
    let digest =
        run.environment.binaries.first().map(|binary| binary.sha256.as_str()).filter(|digest| !digest.is_empty());
    let digest = digest.map_or(String::new(), |digest| format!(", SHA-256 {digest}"));
    format!("{}{digest}", run.program)
}

fn outcome(text: &mut String, figures: Figures<'_>) {
    let run = figures.run;
    if let Some(summary) = tables::summary(figures) {
        let _ = writeln!(text, "## The run in one table\n\n{}", summary.markdown());
    }
    if let Some(headline) = tables::headline(figures) {
        let _ = writeln!(text, "## Verdicts\n\n{}", headline.markdown());
    }
    let _ = writeln!(text, "## Conclusions\n");
    if let Some(sizing) = sizing::sentence(figures) {
        let _ = writeln!(text, "- {sizing}");
    }
    let (leading, others): (Vec<_>, Vec<_>) = run.conclusions.iter().partition(|conclusion| conclusion.leads);
    markdown::conclusions(text, &leading);
    if !others.is_empty() {
        let _ = writeln!(text, "- {} more are in report.md.", others.len());
    }
    text.push('\n');
}

fn caveats(text: &mut String, figures: Figures<'_>) {
    let run = figures.run;
    let _ = writeln!(text, "## What this cannot tell\n\n{}\n", environment::noise_sentence(figures));
    for caution in environment::cautions(run) {
        let _ = writeln!(text, "- {caution}");
    }
    for (what, why) in environment::absences(run) {
        let _ = writeln!(text, "- Not there: {what}: {why}");
    }
}

const RAW: &str = "- `rounds.json.gz`: every round with its histograms and series, and the logs.\n";

const FILES: &str = "
## What lies here

- `report.md`: all tables, every round, every command and configuration.
- `run.json`: what all of it is computed from; without histograms, series and logs, and without the paths and the name of the host.

In this directory `steelyard lab verify .` computes all tables again, this page's too, and `steelyard lab report . --out DIR` writes the page
with plots (those that do not take histograms).
";
