//! The log on standard error: its filter and its format.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

/// The level of all other modules if the filter names only single modules. A line about the start must not vanish
/// because somebody debugs one module.
const LEVEL_DEFAULT: &str = "info";

/// The levels, from the least to the most output.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The modules that a filter may name: the crates of this program. A filter may also name a dependency, to see its log.
const MODULES: [&str; 13] = [
    "admin",
    "balance",
    "config",
    "controller",
    "health",
    "l4",
    "lab",
    "model",
    "net",
    "proxy",
    "steelyard",
    "telemetry",
    "wire",
];

/// Lines that are kept for `steelyard debug bundle`.
const LINES_MAX: usize = 500;
/// Bytes of a line that are kept.
const LINE_BYTES_MAX: usize = 2048;

static LAST: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Writes to standard error, and keeps the last lines.
struct Both;

impl Write for Both {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes.get(..LINE_BYTES_MAX).unwrap_or(bytes));
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= LINES_MAX {
            last.pop_front();
        }
        last.push_back(without_colors(text.trim_end()));
        drop(last);
        io::stderr().write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// The last lines of the log.
pub(crate) fn last_lines() -> String {
    let last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    last.iter().map(|line| format!("{line}\n")).collect()
}

/// Removes the sequences that color a terminal: from an escape to the letter `m`.
fn without_colors(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |out, part| out + part.split_once('m').map_or(part, |(_, rest)| rest))
}

/// Starts logging.
///
/// # Errors
/// Says what is wrong with the filter and what would be right.
pub(crate) fn begin(filter: &str) -> Result<(), String> {
    let complete = complete(filter)?;
    let filter = EnvFilter::builder().parse(&complete).map_err(|error| error.to_string())?;
    let color = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let fields = debug_fn(|to, field, value| write_field(to, field.name(), value)).delimited(" ");
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Both).with_ansi(color);
    log.fmt_fields(fields).init();
    for module in unknown(&complete) {
        tracing::warn!(
            "--log names {module}, which is not a module of steelyard; its modules are {}",
            MODULES.join(", ")
        );
    }
    Ok(())
}

/// Returns the modules of a filter that this program does not have: they are mistyped, or belong to a dependency.
fn unknown(filter: &str) -> impl Iterator<Item = &str> {
    let modules = filter.split(',').filter_map(|part| Some(part.rsplit_once('=')?.0));
    modules.filter(|module| module.split("::").next().is_none_or(|first| !MODULES.contains(&first)))
}

/// Adds a level for everything that the filter does not name.
fn complete(filter: &str) -> Result<String, String> {
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    let levels = || format!("{} or {}", LEVELS[..5].join(", "), LEVELS[5]);
    let mut has_level_for_all = false;
    let parts: Vec<&str> = filter.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    for part in &parts {
        match part.rsplit_once('=') {
            None if is_level(part) => has_level_for_all = true,
            // The library would take the word for a module, log all of that module, and nothing else.
            None => {
                return Err(format!(
                    "{part:?} is not a level; write {}, or a module and its level, such as proxy=debug",
                    levels()
                ));
            }
            Some((module, level)) if module.is_empty() || !is_level(level) => {
                return Err(format!(
                    "{part:?} is not a module and its level; write it like proxy=debug, with {}",
                    levels()
                ));
            }
            Some(_) => {}
        }
    }
    match has_level_for_all {
        true => Ok(parts.join(",")),
        false => Ok([&[LEVEL_DEFAULT], parts.as_slice()].concat().join(",")),
    }
}

/// Writes `name=value`. A value whose end would not be clear is in quotes.
fn write_field(to: &mut Writer<'_>, name: &str, value: &dyn fmt::Debug) -> fmt::Result {
    let text = format!("{value:?}");
    if name == "message" {
        return to.write_str(&text);
    }
    let is_quoted = text.len() > 1 && text.starts_with('"') && text.ends_with('"');
    let is_plain = !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"');
    if is_quoted || is_plain { write!(to, "{name}={text}") } else { write!(to, "{name}={text:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters() {
        let check = |filter: &str, expect: &str| {
            assert_eq!(complete(filter).unwrap_or_else(|error| error), expect, "{filter}");
        };
        check("info", "info");
        check("WARN", "WARN");
        check("proxy=debug", "info,proxy=debug");
        check("proxy=debug, l4=trace", "info,proxy=debug,l4=trace");
        check("warn,proxy::h2=debug", "warn,proxy::h2=debug");
        check("", "info");
        let levels = "off, error, warn, info, debug or trace";
        check(
            "foo",
            &format!("\"foo\" is not a level; write {levels}, or a module and its level, such as proxy=debug"),
        );
        check(
            "info,proxy",
            &format!("\"proxy\" is not a level; write {levels}, or a module and its level, such as proxy=debug"),
        );
        check(
            "proxy=loud",
            &format!("\"proxy=loud\" is not a module and its level; write it like proxy=debug, with {levels}"),
        );
        check("=debug", &format!("\"=debug\" is not a module and its level; write it like proxy=debug, with {levels}"));
        assert!(EnvFilter::builder().parse("info,proxy=debug,l4=trace").is_ok());
    }

    #[test]
    fn the_last_lines_are_kept_without_colors() {
        assert_eq!(without_colors("\u{1b}[32m INFO\u{1b}[0m a=b"), " INFO a=b");
        for number in 0..=LINES_MAX {
            Both.write_all(format!("line {number}\n").as_bytes()).unwrap();
        }
        let lines = last_lines();
        assert!(lines.starts_with("line 1\n") && lines.ends_with(&format!("line {LINES_MAX}\n")), "{lines}");
    }

    #[test]
    fn modules_that_nothing_has() {
        let check = |filter: &str, expect: &[&str]| assert_eq!(unknown(filter).collect::<Vec<_>>(), expect, "{filter}");
        check("info", &[]);
        check("info,proxy=debug,l4::plane=trace", &[]);
        check("info,nosuch=debug,proxi::h2=debug,net=warn", &["nosuch", "proxi::h2"]);
    }

    #[test]
    fn modules_are_the_crates() {
        let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let names = std::fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        // One is for tests.
        let mut names: Vec<_> = names.filter(|name| name != "testkit").collect();
        names.sort();
        assert_eq!(names, MODULES);
    }

    #[test]
    fn values_with_spaces_are_in_quotes() {
        let check = |name: &str, value: &dyn fmt::Debug, expect: &str| {
            let mut text = String::new();
            write_field(&mut Writer::new(&mut text), name, value).unwrap();
            assert_eq!(text, expect);
        };
        check("message", &format_args!("endpoint is unhealthy"), "endpoint is unhealthy");
        check("why", &format_args!("connect refused"), r#"why="connect refused""#);
        check("why", &format_args!("the answer \"no\""), r#"why="the answer \"no\"""#);
        check("why", &"SIGHUP", r#"why="SIGHUP""#);
        check("why", &"two words", r#"why="two words""#);
        check("why", &format_args!(""), r#"why="""#);
        check("endpoint", &format_args!("127.0.0.1:9001"), "endpoint=127.0.0.1:9001");
        check("workers", &2, "workers=2");
        check("error", &format_args!("a\nb"), r#"error="a\nb""#);
    }
}
