//! `docs/cli.md`: every command with its arguments, generated from the definitions in `cli`.

use std::fmt::Write;
use std::path::Path;

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory};

use crate::cli::Cli;

/// If this variable is set, the test writes the page instead of comparing it.
const WRITE: &str = "STEELYARD_WRITE_DOCS";

const HEAD: &str = "# Commands\n\n<!-- Generated from crates/steelyard/src/cli.rs and the crates that it uses. To \
                    regenerate it: STEELYARD_WRITE_DOCS=1 cargo test --workspace --bin steelyard the_page_of_commands \
                    -->\n\n`steelyard help COMMAND` prints the same for one command. `steelyard completions SHELL` \
                    prints completions, and `steelyard man DIRECTORY` writes man pages. \
                    [Operating](operate.md#exit-codes) lists the exit codes.\n";

fn page() -> String {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut page = HEAD.to_owned();
    let mut index = String::new();
    for command in shown(&command) {
        section(&mut page, command, "steelyard");
        let name = command.get_name();
        _ = writeln!(index, "| [`{name}`](#steelyard-{name}) | {} |", cell(&text(command.get_about())));
    }
    page.insert_str(HEAD.len(), &format!("\n| command | |\n|---|---|\n{index}"));
    page
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

fn section(page: &mut String, command: &Command, before: &str) {
    let path = format!("{before} {}", command.get_name());
    let about = text(command.get_long_about().or(command.get_about()));
    _ = writeln!(page, "\n## {path}\n\n{about}");
    let (positional, options): (Vec<&Arg>, Vec<&Arg>) = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !is_everywhere(arg))
        .partition(|arg| arg.is_positional());
    if command.get_subcommands().next().is_none() || !positional.is_empty() {
        let usage = command.clone().render_usage().to_string();
        _ = writeln!(page, "\n```text\n{}\n```", usage.trim_start_matches("Usage: ").trim());
    }
    if !positional.is_empty() || !options.is_empty() {
        page.push_str("\n| argument | default | meaning |\n|---|---|---|\n");
    }
    for arg in positional.into_iter().chain(options) {
        _ = writeln!(page, "| {} | {} | {} |", name(arg), default(arg), meaning(arg));
    }
    for command in shown(command) {
        section(page, command, &path);
    }
}

fn is_everywhere(arg: &Arg) -> bool {
    ["help", "version"].contains(&arg.get_id().as_str())
}

/// For example `-c`, `--config FILE`.
fn name(arg: &Arg) -> String {
    let takes = arg.get_action().takes_values();
    let value =
        arg.get_value_names().into_iter().flatten().map(|value| value.to_string()).collect::<Vec<_>>().join(" ");
    if arg.is_positional() {
        return format!("`{}`", cell(&value));
    }
    let short = arg.get_short().map(|short| format!("`-{short}`"));
    let long =
        arg.get_long().map(|long| if takes { format!("`--{long} {}`", cell(&value)) } else { format!("`--{long}`") });
    let others = arg.get_visible_short_aliases().into_iter().flatten().map(|short| format!("`-{short}`"));
    let others = others.chain(arg.get_visible_aliases().into_iter().flatten().map(|long| format!("`--{long}`")));
    short.into_iter().chain(long).chain(others).collect::<Vec<_>>().join(", ")
}

fn default(arg: &Arg) -> String {
    if !arg.get_action().takes_values() {
        return String::new();
    }
    let values: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    match (values.is_empty(), arg.is_required_set()) {
        (false, _) => format!("`{}`", cell(&values.join(","))),
        (true, true) => "required".to_owned(),
        (true, false) => String::new(),
    }
}

fn meaning(arg: &Arg) -> String {
    let mut meaning = text(arg.get_long_help().or(arg.get_help()));
    let possible: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if !possible.is_empty() && arg.get_action().takes_values() {
        _ = write!(meaning, " ({})", possible.join(", "));
    }
    if let Some(variable) = arg.get_env() {
        _ = write!(meaning, "; or the variable `{}`", variable.to_string_lossy());
    }
    cell(&meaning)
}

fn text(help: Option<&StyledStr>) -> String {
    // A line that begins with four spaces would be code, and a `<` outside code would be a tag.
    let text = help.map(ToString::to_string).unwrap_or_default();
    let text = text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let parts = text.split('`').enumerate();
    parts
        .map(|(at, part)| if at % 2 == 0 { part.replace('<', "&lt;") } else { part.to_owned() })
        .collect::<Vec<_>>()
        .join("`")
}

/// Joins the text into one line without characters that would end a cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace("\n\n", " ").replace('\n', " ")
}

#[test]
fn the_page_of_commands_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let page = page();
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        page == written,
        "docs/cli.md is out of date: run {WRITE}=1 cargo test --workspace --bin steelyard the_page_of_commands"
    );
}
