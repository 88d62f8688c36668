//! `cargo xtask bench wire`: the HTTP/2 codec beside the h2 crate, in memory. Needs no rival, no socket and no root.
//!
//! What is measured, and how, stands in `crates/wire/benches/h2.rs`; this only builds and runs it.

use super::options::pairs;
use crate::command::{cargo, run as run_command};

const USAGE: &str = "usage: cargo xtask bench wire [--rounds N] [--calls N]";

/// Rounds of each of the two, in turns.
const ROUNDS_DEFAULT: u32 = 7;
/// Calls of one round.
const CALLS_DEFAULT: u32 = 100_000;
/// Fewer would measure the warm-up.
const CALLS_MIN: u32 = 1_000;

/// Builds the benchmark as the release is built, and runs it.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let (rounds, calls) = parse(arguments)?;
    let (rounds, calls) = (rounds.to_string(), calls.to_string());
    run_command(&mut cargo(&["bench", "--package", "wire", "--bench", "h2", "--", &rounds, &calls]))
}

fn parse(arguments: &[String]) -> Result<(u32, u32), String> {
    let (mut rounds, mut calls) = (ROUNDS_DEFAULT, CALLS_DEFAULT);
    for pair in pairs(arguments, USAGE) {
        let (option, value) = pair?;
        let number: u32 = value.parse().map_err(|_| USAGE)?;
        match option {
            "--rounds" if number >= 1 => rounds = number,
            "--calls" if number >= CALLS_MIN => calls = number,
            _ => return Err(format!("{USAGE}; N is at least 1 and {CALLS_MIN}")),
        }
    }
    Ok((rounds, calls))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let check = |line: &str, expect: Option<(u32, u32)>| {
            let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(parse(&arguments).ok(), expect, "{line}");
        };
        check("", Some((ROUNDS_DEFAULT, CALLS_DEFAULT)));
        check("--rounds 3 --calls 5000", Some((3, 5000)));
        check("--rounds 0", None);
        check("--calls 999", None);
        check("--calls", None);
        check("--seconds 3", None);
    }
}
