//! `cargo xtask bench wire`: the HTTP/2 codec beside the h2 crate, in memory. Needs no rival, no socket and no root.
//!
//! What is measured, and how, stands in `crates/wire/benches/h2.rs`; this only builds and runs it. With `--instructions` it counts
//! the instructions of one exchange under valgrind's callgrind, which it installs where it is missing, of `crates/wire/benches/exchange.rs`: they are the same on a busy host.

use super::options::pairs;
use crate::command::{capture, cargo, run as run_command};
use crate::setup;

const USAGE: &str =
    "usage: cargo xtask bench wire [--rounds N] [--calls N], or bench wire --instructions, which needs valgrind";

/// What `exchange.rs` can vary.
const VARIANTS: [&str; 3] = ["same", "paths", "tenants"];
/// Exchanges of the shorter and of the longer run, whose difference is what counts.
const EXCHANGES: [u64; 2] = [3_200, 9_600];

/// Rounds of each of the two, in turns.
const ROUNDS_DEFAULT: u32 = 7;
/// Calls of one round.
const CALLS_DEFAULT: u32 = 100_000;
/// Fewer would measure the warm-up.
const CALLS_MIN: u32 = 1_000;

/// Builds the benchmark as the release is built, and runs it.
pub fn run(arguments: &[String]) -> Result<(), String> {
    if arguments == ["--instructions"] {
        return count_instructions();
    }
    let (rounds, calls) = parse(arguments)?;
    let (rounds, calls) = (rounds.to_string(), calls.to_string());
    run_command(&mut cargo(&["bench", "--package", "wire", "--bench", "h2", "--", &rounds, &calls]))
}

fn count_instructions() -> Result<(), String> {
    // Nothing else here needs valgrind, so that no other verb asks for it.
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
    collected(&capture(&mut cargo(&bench))?).ok_or_else(|| "callgrind did not say what it collected".into())
}

/// `==1234== Collected : 89848528`
fn collected(log: &str) -> Option<u64> {
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
