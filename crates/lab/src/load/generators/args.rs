//! The command line of a load that several generators put on together.

use std::io;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::load::shape::{Shape, Until};

const HEADING: &str = "Several generators";

/// The most generators of one load.
const GENERATORS_MAX: usize = 64;

/// The generators of a load, and how they are started.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct GeneratorArgs {
    /// Put the load on from these hosts together, over ssh: HOST or USER@HOST. They share the connections, the rate and the requests, start together,
    /// and the report is that of all. Files are read here
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', value_parser = host, conflicts_with_all = ["find_capacity", "sources", "announce"], help_heading = HEADING)]
    pub generators: Vec<String>,

    /// With --generators: the command that runs another one on a host. The host replaces {}, or is appended. Its words are separated by spaces,
    /// and quotes are not understood
    #[arg(long, value_name = "COMMAND", value_parser = rsh, default_value = "ssh -o BatchMode=yes -o ServerAliveInterval=5", requires = "generators", help_heading = HEADING)]
    pub rsh: String,

    /// With --generators: where Steelyard is on these hosts
    #[arg(long, value_name = "PATH", default_value = "steelyard", requires = "generators", help_heading = HEADING)]
    pub remote_program: String,
}

impl GeneratorArgs {
    /// Checks that every generator gets a part of this load.
    ///
    /// # Errors
    /// There are more generators than connections or requests, or more than are supported.
    pub(super) fn check(&self, shape: &Shape) -> io::Result<()> {
        let count = self.generators.len();
        let why = if count > GENERATORS_MAX {
            format!("{count} generators: use at most {GENERATORS_MAX}")
        } else if shape.connections < count {
            let connections = shape.connections;
            format!("{count} generators cannot share {connections} connections: use at least {count} (-c)")
        } else if matches!(shape.until, Until::Requests(requests) if requests < count as u64) {
            format!("each of {count} generators needs a request: use -n {count} at least")
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, why))
    }

    /// The program and the arguments that start a generator on this host.
    pub(super) fn command(&self, host: &str) -> Vec<String> {
        let mut words: Vec<String> = self.rsh.split_ascii_whitespace().map(|word| word.replace("{}", host)).collect();
        if !self.rsh.contains("{}") {
            words.push(host.to_owned());
        }
        words.extend([self.remote_program.as_str(), "load", "generator"].map(str::to_owned));
        words
    }
}

/// A command. The host would be the program if there were none.
fn rsh(text: &str) -> Result<String, String> {
    match text.split_ascii_whitespace().next() {
        None => Err("write the command that runs another one on a host, such as ssh".to_owned()),
        Some(program) if program.contains("{}") => {
            Err("the host cannot be the program: write a command first".to_owned())
        }
        Some(_) => Ok(text.to_owned()),
    }
}

/// A host that ssh does not take for an option.
fn host(text: &str) -> Result<String, String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || ".-_:@[]%/".contains(c);
    match text {
        "" => Err("a host is missing: write HOST or USER@HOST, with commas between them".to_owned()),
        _ if text.starts_with('-') || !text.chars().all(is_part) => Err("write HOST or USER@HOST".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_generators() {
        let check = |rsh: &str, expect: &str| {
            let args = GeneratorArgs {
                generators: Vec::new(),
                rsh: rsh.to_owned(),
                remote_program: "/opt/steelyard".to_owned(),
            };
            assert_eq!(args.command("me@one").join(" "), expect);
        };
        check("ssh -p 22", "ssh -p 22 me@one /opt/steelyard load generator");
        check("kubectl exec -i {} --", "kubectl exec -i me@one -- /opt/steelyard load generator");
    }

    #[test]
    fn a_host_is_never_the_program() {
        for (text, is_command) in [("ssh", true), (" ssh -p 22 ", true), ("", false), ("  ", false), ("{} x", false)] {
            assert_eq!(rsh(text).is_ok(), is_command, "{text}");
        }
    }

    #[test]
    fn hosts_are_no_options() {
        for (text, is_host) in [
            ("a", true),
            ("me@10.0.0.7", true),
            ("fe80::1%eth0", true),
            ("-oProxyCommand=x", false),
            ("a b", false),
            ("", false),
        ] {
            assert_eq!(host(text).is_ok(), is_host, "{text}");
        }
    }

    #[test]
    fn every_generator_has_a_part() {
        let args = |count| GeneratorArgs {
            generators: vec!["a".to_owned(); count],
            rsh: "ssh".to_owned(),
            remote_program: "steelyard".to_owned(),
        };
        let shape = Shape::closed(3, Until::Requests(2));
        assert!(args(2).check(&shape).is_ok());
        let refused = |count, shape: &Shape, expect: &str| {
            let why = args(count).check(shape).unwrap_err().to_string();
            assert!(why.contains(expect), "{why}");
        };
        refused(4, &shape, "4 generators cannot share 3 connections: use at least 4 (-c)");
        refused(3, &shape, "use -n 3 at least");
        refused(65, &Shape::closed(99, Until::Requests(99)), "use at most 64");
    }
}
