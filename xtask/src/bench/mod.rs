//! `cargo xtask bench`: what the lab cannot measure yet, and a way into it.
//!
//! Proxies and balancers in the kernel are compared by the lab, with its contenders, meters, rounds and records: `bench lab SCENARIO` runs one
//! of its scenarios with a release build ([`lab`]), and `bench l4` the one of balancers in the kernel. Here is the rest: long-lived
//! streams ([`h2`]), memory of idle connections, and many routes. Every contender is one process
//! with one worker, pinned to CPU 1. The load and the origin share CPU 0. Contenders take turns, round by round. The output has medians and, in
//! brackets, the minimum and maximum of the rounds. Nothing is asserted: a figure belongs to the host it was measured on.

mod child;
mod contender;
mod h2;
mod lab;
mod options;
mod policies;
mod rivals;
mod scenario;
mod table;
mod tools;
mod wire;

use std::path::PathBuf;
use std::time::Duration;

use crate::cargo::metadata;
use crate::command::{self, cargo, find_program};
use crate::setup;
use contender::Contender;
use options::Options;
use scenario::{SCENARIOS, Scenario};

const USAGE: &str = "usage: cargo xtask bench [--rounds N] [--seconds N] [--only SCENARIO[,SCENARIO]]
       cargo xtask bench wire [--rounds N] [--calls N]
       cargo xtask bench wire --instructions
       cargo xtask bench policies [--demo] [--requests N]
       cargo xtask bench lab SCENARIO [ARGS of steelyard lab run]
       cargo xtask bench l4 [ARGS of steelyard lab run]
       cargo xtask bench packet
       cargo xtask bench collect
       cargo xtask bench kube [--routes N] [--services N] [--changes N]";

/// The tools that pin and that generate load: each program and its Debian package.
const TOOLS: [(&str, &str); 3] = [("wrk", "wrk"), ("taskset", "util-linux"), ("h2load", "nghttp2-client")];

/// What all scenarios need.
struct Bench {
    steelyard: PathBuf,
    contenders: Vec<Contender>,
    /// The folder for configurations, standard errors and `raw.csv`.
    directory: PathBuf,
    rounds: usize,
    seconds: u64,
}

/// Builds the release binary, finds the rivals, and runs all scenarios or the named ones.
///
/// `wire` as the first argument runs only the codec's bench: see [`wire`].
pub fn run(arguments: &[String]) -> Result<(), String> {
    match arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some(("lab", rest)) => return lab::run(rest),
        Some(("l4", rest)) => return lab::run(&[&["l4-matrix".to_owned()], rest].concat()),
        // There, an optimised build of the Rust code would not be faster.
        Some(("packet", [])) => return kernel_plane("packet", "dev"),
        Some(("collect", [])) => return kernel_plane("collect", "release"),
        Some(("wire", rest)) => return wire::run(rest),
        Some(("policies", rest)) => return policies::run(rest),
        Some(("kube", rest)) => return crate::kube::bench(rest),
        _ => {}
    }
    let options = parse(arguments)?;
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Err("this needs one CPU for the contender and one for load and origin, but there is only one".into());
    }
    setup::install_for("bench")?;
    for (tool, package) in TOOLS {
        if find_program(tool).is_none() {
            return Err(format!("{tool} is missing: apt-get install {package}"));
        }
    }
    command::run(&mut cargo(&["build", "--release", "--package", "steelyard"]))?;
    let target = metadata()?.target_directory;
    let directory = target.join("bench");
    std::fs::create_dir_all(&directory).map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    let steelyard = target.join("release/steelyard");
    let (contenders, gaps) = contender::find_all(&steelyard, &directory);
    let bench = Bench { steelyard, contenders, directory, rounds: options.rounds, seconds: options.seconds };
    println!("{} rounds of {} s; one worker each, on CPU 1; load and origin on CPU 0", bench.rounds, bench.seconds);
    for contender in &bench.contenders {
        println!("  {:<10} {}", contender.name, contender.version());
    }
    for gap in &gaps {
        println!("  GAP        {gap}");
    }
    let mut csv = String::from("scenario,contender,round,figure,value\n");
    for scenario in &options.only {
        println!("\n== {}: {}\n", scenario.name, scenario.about);
        let samples = (scenario.run)(&bench)?;
        print!("{}", table::text(&samples));
        println!("\n{}", samples.ratios(scenario.headline));
        samples.append_csv(scenario.name, &mut csv);
    }
    let raw = bench.directory.join("raw.csv");
    std::fs::write(&raw, csv).map_err(|error| format!("cannot write {}: {error}", raw.display()))?;
    println!("\nevery round: {}", raw.display());
    Ok(())
}

/// The cost of the BPF programs per packet, and of collecting a large table.
fn kernel_plane(bench: &str, profile: &str) -> Result<(), String> {
    setup::install_for("bench")?;
    command::run(&mut cargo(&["bench", "--profile", profile, "--package", "l4", "--bench", bench]))
}

fn parse(arguments: &[String]) -> Result<Options<&'static Scenario>, String> {
    let options = Options { rounds: 5, seconds: 5, only: SCENARIOS.iter().collect() };
    options.parse(arguments, USAGE, scenario::by_name, |_, _| false)
}

impl Bench {
    /// The same bench for other contenders.
    fn clone_settings(&self) -> Self {
        let (steelyard, directory) = (self.steelyard.clone(), self.directory.clone());
        Self { steelyard, contenders: Vec::new(), directory, rounds: self.rounds, seconds: self.seconds }
    }

    fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// The contenders in the order of a round: each comes first once.
    fn order(&self, round: usize) -> impl Iterator<Item = usize> + use<> {
        let count = self.contenders.len();
        (0..count).map(move |position| (position + round) % count.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options() {
        let check = |line: &str, expect: Option<(usize, u64, usize)>| {
            let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let got = parse(&arguments).ok().map(|options| (options.rounds, options.seconds, options.only.len()));
            assert_eq!(got, expect, "{line}");
        };
        check("", Some((5, 5, SCENARIOS.len())));
        check("--rounds 3 --seconds 1 --only routes,memory", Some((3, 1, 2)));
        check("--only grpc-streams", Some((5, 5, 1)));
        check("--only nonsense", None);
        check("--rounds", None);
        check("--rounds 0", None);
        check("--loud yes", None);
    }
}
