//! `cargo xtask sim`: the simulation of exchanges, from many seeds or from one.

use crate::command::{cargo, run as run_command};

/// The default of `--seeds`, which is what CI runs.
const SEEDS_DEFAULT: u64 = 100_000;

const USAGE: &str = "usage: cargo xtask sim [--seeds N | --seed N]";

/// Runs the simulation. A seed that fails is printed, and goes to `FOUND` in crates/proxy/src/exchange/sim/mod.rs once
/// its bug is fixed.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let (variable, value) = parse(arguments)?;
    // Built with the features of the whole workspace, so that nothing is compiled again. Only one crate has a test with
    // this name.
    let test = ["test", "--workspace", "--lib", "--locked", "--quiet", "--", "exchange::sim::whatever", "--nocapture"];
    run_command(cargo(&test).env(variable, value.to_string()))?;
    if variable == "SIM_SEEDS" {
        println!("sim: {value} seeds, no finding");
    }
    Ok(())
}

fn parse(arguments: &[String]) -> Result<(&'static str, u64), String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is not a number; {USAGE}"));
    match arguments[..] {
        [] => Ok(("SIM_SEEDS", SEEDS_DEFAULT)),
        ["--seeds", seeds] => Ok(("SIM_SEEDS", number(seeds)?)),
        ["--seed", seed] => Ok(("SIM_SEED", number(seed)?)),
        _ => Err(USAGE.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let check = |arguments: &[&str], expect: Option<(&'static str, u64)>| {
            let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
            assert_eq!(parse(&arguments).ok(), expect, "{arguments:?}");
        };
        check(&[], Some(("SIM_SEEDS", SEEDS_DEFAULT)));
        check(&["--seeds", "7"], Some(("SIM_SEEDS", 7)));
        check(&["--seed", "7"], Some(("SIM_SEED", 7)));
        check(&["--seed"], None);
        check(&["--seeds", "many"], None);
    }
}
