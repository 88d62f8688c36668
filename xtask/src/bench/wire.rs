//! `cargo xtask bench wire`: the HTTP/2 codec in comparison with the h2 crate, in memory. It needs no rival, no socket
//! and no root.
//!
//! `crates/wire/benches/h2.rs` describes what is measured and how; this only builds and runs it. With `--instructions`
//! it counts the instructions of one exchange in `crates/wire/benches/exchange.rs` under valgrind's callgrind, which it
//! installs if it is missing. These counts are the same on a busy host.

use super::options::pairs;
use crate::command::{capture, cargo, run as run_command};
use crate::setup;

const USAGE: &str =
    "usage: cargo xtask bench wire [--rounds N] [--calls N], or bench wire --instructions, which needs valgrind";

/// The variants of `exchange.rs`.
const VARIANTS: [&str; 3] = ["same", "paths", "tenants"];
/// The exchanges of the shorter and the longer run. Their difference is the result.
const EXCHANGES: [u64; 2] = [3_200, 9_600];

/// The rounds of each of the two, in turns.
const ROUNDS_DEFAULT: u32 = 7;
/// The calls per round.
const CALLS_DEFAULT: u32 = 100_000;
/// With fewer calls, the result would be dominated by the warm-up.
const CALLS_MIN: u32 = 1_000;

/// Builds the benchmark with the release profile, and runs it.
pub fn run(arguments: &[String]) -> Result<(), String> {
    if arguments == ["--instructions"] {
        return count_instructions();
    }
    let (rounds, calls) = parse(arguments)?;
    let (rounds, calls) = (rounds.to_string(), calls.to_string());
    run_command(&mut cargo(&["bench", "--package", "wire", "--bench", "h2", "--", &rounds, &calls]))
}

fn count_instructions() -> Result<(), String> {
    // Only this needs valgrind, so no other verb installs it.
    setup::install_for("instructions")?;
    println!("{:<10}{:>14}", "", "instructions");
    for variant in VARIANTS {
        let [few, many] = EXCHANGES;
        let more = instructions(variant, many)?.saturating_sub(instructions(variant, few)?);
        println!("{variant:<10}{:>14}", more / (many - few));
    }
    Ok(())
}

fn instructions(variant: &str, exchanges: u64) -> Result<u64, String> {
    let runner =
        "target.'cfg(all())'.runner=['valgrind','--tool=callgrind','--callgrind-out-file=/dev/null','--log-fd=1']";
    let exchanges = exchanges.to_string();
    let bench = ["bench", "--package", "wire", "--bench", "exchange", "--config", runner, "--", variant, &exchanges];
    collected(&capture(&mut cargo(&bench))?).ok_or_else(|| "callgrind did not print what it collected".into())
}

/// Parses `==1234== Collected : 89848528`.
pub fn collected(log: &str) -> Option<u64> {
    log.lines().find_map(|line| line.split_once("Collected : ")).and_then(|(_, count)| count.trim().parse().ok())
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

    #[test]
    fn what_callgrind_collected() {
        let check = |log: &str, expect| assert_eq!(collected(log), expect, "{log}");
        check("==1== Events    : Ir\n==1== Collected : 89848528\n==1== \n", Some(89_848_528));
        check("==1== Collected : many", None);
        check("", None);
    }
}
