//! The arguments of `lab run`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::units;

/// The arguments of `lab run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Scenarios by name (`lab list` has them), or .toml files, or `all`
    #[arg(value_name = "SCENARIO", required = true)]
    pub scenarios: Vec<String>,

    /// Finish within 3 minutes per scenario: fewer cases, fewer rounds, shorter windows
    #[arg(long)]
    pub quick: bool,

    /// Only these contenders, as in nginx-http,nginx-http:default,haproxy-tcp*2
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub contenders: Vec<String>,

    /// Only these cases
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub cases: Vec<String>,

    /// Exactly this many rounds, unless --precision is given too; every contender is measured once in each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,

    /// Add rounds until the 95 % interval of every ratio to the reference is within this share of it, or the time is used up [default: 5%;
    /// with --rounds, none]
    #[arg(long, value_name = "PERCENT", value_parser = units::percent)]
    pub precision: Option<f64>,

    /// Seed of the order of cells; the same seed gives the same order
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Length of every window, such as 6s
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub measure: Option<Duration>,

    /// End within this time, such as 10m: shorten windows, then rounds, until everything planned fits, and add rounds in what is left
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub budget: Option<Duration>,

    /// Hold all components back to so many CPUs together: only to see whether the lab notices, as `lab verify --neighbours` does
    #[arg(long, value_name = "CPUS", hide = true)]
    pub quota: Option<f64>,

    /// MTU of all links
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(576..=65_535))]
    pub mtu: Option<u32>,

    /// Another build of a contender's program beside the one that is installed, such as haproxy=/opt/haproxy-3.4/haproxy: every contender of that
    /// program takes part with both, named by their versions
    #[arg(long, value_name = "PROGRAM=PATH", value_parser = name_and_path)]
    pub contender: Vec<(String, PathBuf)>,

    /// Continue the run in --out that was interrupted, with the cells that it lacks
    #[arg(long, conflicts_with = "plan")]
    pub resume: bool,

    /// Run on Debian's own kernel, in a guest under qemu with the programs of this host: for what its kernel lacks, such as IPVS. Without a usable
    /// KVM the CPUs are emulated, and only ratios mean anything
    #[arg(long, conflicts_with_all = ["plan", "resume", "loopback"])]
    pub guest: bool,

    /// This is the lab in such a guest, whose CPUs qemu makes in this way
    #[arg(long, value_name = "ACCELERATOR", hide = true, conflicts_with = "guest")]
    pub in_guest: Option<String>,

    /// Run everything on loopback, without namespaces, even as root
    #[arg(long)]
    pub loopback: bool,

    /// A directory of .toml files with more contenders, or others of the same names
    #[arg(long, value_name = "DIR")]
    pub contenders_dir: Option<PathBuf>,

    /// Directory for report.html, report.md, run.json and the logs [default: lab-SCENARIO]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Only print the plan, and how long it would take
    #[arg(long)]
    pub plan: bool,
}

impl RunArgs {
    pub(crate) fn directory(&self, scenario: &str) -> PathBuf {
        let otherwise =
            || PathBuf::from(if scenario.is_empty() { "lab".to_owned() } else { format!("lab-{scenario}") });
        self.out.clone().unwrap_or_else(otherwise)
    }

    /// The command that repeats one scenario of this run.
    pub(super) fn command(&self, scenario: &str, seed: u64) -> String {
        let file = self.scenarios.iter().find(|name| name.ends_with(&format!("{scenario}.toml")));
        let mut words = vec!["steelyard lab run".to_owned(), file.map_or(scenario, String::as_str).to_owned()];
        if self.quick {
            words.push("--quick".to_owned());
        }
        let mut option =
            |name: &str, value: Option<String>| words.extend(value.map(|value| format!("--{name} {value}")));
        let some = |list: &[String]| (!list.is_empty()).then(|| list.join(","));
        option("contenders", some(&self.contenders));
        option("cases", some(&self.cases));
        option("rounds", self.rounds.map(|rounds| rounds.to_string()));
        option("precision", self.precision.map(|share| format!("{}%", share * 100.0)));
        option("measure", self.measure.map(|time| format!("{}ms", time.as_millis())));
        option("budget", self.budget.map(|time| format!("{}ms", time.as_millis())));
        option("mtu", self.mtu.map(|mtu| mtu.to_string()));
        option("quota", self.quota.map(|cpus| cpus.to_string()));
        option("contenders-dir", self.contenders_dir.as_ref().map(|directory| directory.display().to_string()));
        option("seed", Some(seed.to_string()));
        words.extend(self.contender.iter().map(|(name, path)| format!("--contender {name}={}", path.display())));
        if self.loopback {
            words.push("--loopback".to_owned());
        }
        if self.in_guest.is_some() {
            words.push("--guest".to_owned());
        }
        words.join(" ")
    }
}

/// The parser of `NAME=PATH`.
pub(crate) fn name_and_path(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok((name.to_owned(), path.into())),
        _ => Err(format!("{text:?} is not a name and a path, as in haproxy=/opt/haproxy-3.4/haproxy")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_does_it_again_reads_as_the_same_run() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: RunArgs,
        }
        let parse = |line: &str| <Line as clap::Parser>::try_parse_from(line.split(' ')).unwrap().args;
        let line = "run l4-matrix --quick --contenders routed,haproxy-tcp*2 --cases tcp-rr --rounds 3 --precision 2.5% --measure 1s --mtu 9000 --loopback";
        let again = parse(line).command("l4-matrix", 7);
        assert_eq!(
            again,
            "steelyard lab run l4-matrix --quick --contenders routed,haproxy-tcp*2 --cases tcp-rr --rounds 3 --precision 2.5% --measure 1000ms \
             --mtu 9000 --seed 7 --loopback"
        );
        assert_eq!(parse(again.strip_prefix("steelyard lab ").unwrap()).command("l4-matrix", 7), again);
        let other = "run own --contender haproxy=/x/haproxy --contender nginx=/y/nginx";
        let again = parse(other).command("own", 1);
        assert_eq!(again, "steelyard lab run own --seed 1 --contender haproxy=/x/haproxy --contender nginx=/y/nginx");
        assert!(["haproxy", "=x", "x="].iter().all(|bad| name_and_path(bad).is_err()));
        assert_eq!(parse("run /x/own.toml").command("own", 1), "steelyard lab run /x/own.toml --seed 1");
    }
}
