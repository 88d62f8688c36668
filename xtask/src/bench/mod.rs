//! `cargo xtask bench`: Steelyard beside nginx, HAProxy and Envoy, on this host; the kernel plane has a bench of its own ([`l4`]).
//!
//! Every contender is one process with one worker, pinned to CPU 1; the load and the origin share CPU 0. Contenders take turns, round by
//! round, so that a host that changes on the way does so for all. What is printed are medians and, in brackets, the least and the most of
//! the rounds. Nothing here is asserted: a figure belongs to the host it was measured on.
//!
//! The origin is `steelyard origin http`: a request costs it about a tenth less CPU than nginx's `return 200`, which leaves more of CPU 0 to
//! the load. It and the load are the same for all contenders. HTTP/2 is in [`h2`], TLS in [`tls`].

mod child;
mod contender;
mod h2;
mod l4;
mod options;
mod rivals;
mod scenario;
mod table;
mod tls;
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
       cargo xtask bench l4 ...
       cargo xtask bench packet
       cargo xtask bench collect
       cargo xtask bench kube [--routes N] [--services N] [--changes N]";

/// What pins and what puts load on: the program, and Debian's package of it.
const TOOLS: [(&str, &str); 5] =
    [("wrk", "wrk"), ("taskset", "util-linux"), ("h2load", "nghttp2-client"), ("openssl", "openssl"), ("curl", "curl")];

/// What all scenarios need.
struct Bench {
    steelyard: PathBuf,
    contenders: Vec<Contender>,
    /// For configurations, standard errors and `raw.csv`.
    directory: PathBuf,
    rounds: usize,
    seconds: u64,
}

/// Builds the release binary, finds the rivals, and runs all scenarios or those named.
///
/// With `wire` in front, the codec alone: see [`wire`].
pub fn run(arguments: &[String]) -> Result<(), String> {
    match arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some(("l4", rest)) => return l4::run(rest),
        // Rust does nothing there that an optimised build would do faster.
        Some(("packet", [])) => return kernel_plane("packet", "dev"),
        Some(("collect", [])) => return kernel_plane("collect", "release"),
        Some(("wire", rest)) => return wire::run(rest),
        Some(("kube", rest)) => return crate::kube::bench(rest),
        _ => {}
    }
    let options = parse(arguments)?;
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Err("one CPU for the contender and one for load and origin are needed, and there is only one".into());
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
    std::fs::create_dir_all(&directory).map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
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

/// What the BPF programs alone cost a packet, and what the collection of a large table costs.
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

    /// The contenders in the order of one round: everybody is first once.
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
        check("--rounds 3 --seconds 1 --only http,tcp", Some((3, 1, 2)));
        check("--only h2", Some((5, 5, 3)));
        check("--only h2c-8x32,tls", Some((5, 5, 4)));
        check("--only nonsense", None);
        check("--rounds", None);
        check("--rounds 0", None);
        check("--loud yes", None);
    }
}
