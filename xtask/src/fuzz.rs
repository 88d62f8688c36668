//! `cargo xtask fuzz`: runs the targets of `fuzz/` with cargo-fuzz, with limits on time and memory.

use std::path::PathBuf;

use crate::cargo::binaries;
use crate::command::{cargo, command, root, run as run_command, succeeds};
use crate::setup;

/// The manifest with the names of the targets.
pub const MANIFEST: &str = "fuzz/Cargo.toml";
/// The default of `--seconds`, for each target.
const SECONDS_DEFAULT: u32 = 60;
/// An input that takes longer is a finding, because parsers take microseconds.
const INPUT_SECONDS_MAX: u32 = 5;
/// A process that uses more memory is a finding.
const RSS_MIB_MAX: u32 = 1024;

const USAGE: &str = "usage: cargo xtask fuzz [TARGET] [--seconds N]";

/// Fuzzes one target or all, one after another, and stops at the first finding.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let (wanted, seconds) = parse(arguments)?;
    let known = binaries(MANIFEST)?;
    let targets = match wanted {
        None => known,
        Some(target) if known.contains(&target) => vec![target],
        Some(target) => return Err(format!("no target `{target}`; there are: {}", known.join(", "))),
    };
    setup::install_for("fuzz")?;
    tools()?;
    for target in &targets {
        // libFuzzer writes its findings to the first folder. The seeds are committed and are only read.
        let corpus = root().join("fuzz/corpus").join(target);
        std::fs::create_dir_all(&corpus).map_err(|error| format!("{}: {error}", corpus.display()))?;
        let options =
            [format!("-dict={}", root().join("fuzz/http.dict").display()), format!("-max_total_time={seconds}")];
        // This uses rustup and not `cargo +nightly`, because the cargo on the PATH may be the one that runs us, which
        // does not understand `+`.
        let mut fuzz = command("rustup", &["run", "nightly", "cargo", "fuzz", "run", target]);
        fuzz.arg(corpus).arg(seed_folder(target)).arg("--").args(options).args(limits());
        run_command(fuzz.env_remove("CARGO").env_remove("RUSTC"))?;
    }
    println!("fuzz: {} targets, {seconds} s each, no finding", targets.len());
    Ok(())
}

/// The options of libFuzzer that define a finding.
pub fn limits() -> [String; 2] {
    [format!("-timeout={INPUT_SECONDS_MAX}"), format!("-rss_limit_mb={RSS_MIB_MAX}")]
}

/// The committed inputs of a target, one file each. Every target has some.
pub fn seeds(target: &str) -> Result<Vec<PathBuf>, String> {
    let folder = seed_folder(target);
    let failed = |error: std::io::Error| format!("{}: {error}; every fuzz target needs a seed there", folder.display());
    let entries: Result<Vec<_>, _> = std::fs::read_dir(&folder).map_err(failed)?.collect();
    let mut seeds: Vec<PathBuf> = entries.map_err(failed)?.into_iter().map(|entry| entry.path()).collect();
    seeds.sort();
    if seeds.is_empty() {
        Err(format!("{} is empty: every fuzz target needs a seed", folder.display()))
    } else {
        Ok(seeds)
    }
}

fn seed_folder(target: &str) -> PathBuf {
    root().join("fuzz/seeds").join(target)
}

fn parse(arguments: &[String]) -> Result<(Option<String>, u32), String> {
    let mut target = None;
    let mut seconds = SECONDS_DEFAULT;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--seconds" => {
                let number = rest.next().and_then(|text| text.parse().ok());
                seconds = number.filter(|seconds| *seconds > 0).ok_or("--seconds takes a whole number of 1 or more")?;
            }
            name if !name.starts_with('-') && target.is_none() => target = Some(name.to_owned()),
            _ => return Err(USAGE.into()),
        }
    }
    Ok((target, seconds))
}

fn tools() -> Result<(), String> {
    if !succeeds(&mut command("rustup", &["run", "nightly", "rustc", "--version"])) {
        return Err("libFuzzer's instrumentation needs a nightly compiler: `rustup toolchain install nightly`".into());
    }
    if !succeeds(&mut cargo(&["fuzz", "--version"])) {
        println!("fuzz: cargo-fuzz is missing, installing it");
        run_command(&mut cargo(&["install", "cargo-fuzz", "--locked"]))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let check = |words: &[&str], expect: Result<(Option<&str>, u32), &str>| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let expect = expect.map(|(target, seconds)| (target.map(str::to_owned), seconds)).map_err(str::to_owned);
            assert_eq!(parse(&words), expect, "{words:?}");
        };
        check(&[], Ok((None, SECONDS_DEFAULT)));
        check(&["chunked"], Ok((Some("chunked"), SECONDS_DEFAULT)));
        check(&["--seconds", "600", "chunked"], Ok((Some("chunked"), 600)));
        check(&["--seconds"], Err("--seconds takes a whole number of 1 or more"));
        check(&["--seconds", "0"], Err("--seconds takes a whole number of 1 or more"));
        check(&["a", "b"], Err(USAGE));
        check(&["--fast"], Err(USAGE));
    }

    #[test]
    fn every_target_has_seeds() {
        let targets = binaries(MANIFEST).unwrap();
        assert!(!targets.is_empty());
        for target in targets {
            let seeds = seeds(&target).unwrap();
            assert!(seeds.iter().all(|seed| seed.is_file()), "{target}: {seeds:?}");
        }
        assert!(seeds("nonsense").unwrap_err().contains("fuzz/seeds/nonsense"));
    }
}
