//! `cargo xtask test h2`: tests HTTP/2 and gRPC through the built binary with the suites of other projects.
//!
//! There are seven suites, all in Go and pinned by `hack/interop`, `hack/oauth2-proxy` and `hack/otlp`: h2spec with all of its cases,
//! strictly, the gRPC interoperability suite with all cases that need no cloud, `steelyard load grpc` with the service of that suite, external
//! authorization by a service
//! that is written against Envoy's protos, global rate limits by the service of the Envoy project with a Redis, a
//! login at oauth2-proxy, and traces and access logs for the receiver of the OpenTelemetry collector. Each of the first two runs against a listener in cleartext and one over TLS; h2spec also in
//! front of origins of both protocols. If a case fails, is skipped or does not run, the verb fails.
//!
//! Not here: attacks, and behaviour beyond the standards. The tests in `e2e` cover them.

mod authz;
mod field;
mod grpc;
mod h2spec;
mod load;
mod oauth2_proxy;
mod otlp;
mod ratelimit;
mod tools;

use std::time::Instant;

use crate::cargo::metadata;
use crate::{setup, test};
use field::{Field, Side};

const USAGE: &str = "usage: cargo xtask test h2 [h2spec|grpc|load|authz|ratelimit|oauth2-proxy|otlp]";

const SUITES: [&str; 7] = ["h2spec", "grpc", "load", "authz", "ratelimit", "oauth2-proxy", "otlp"];

/// Runs all suites, or the named one.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let wanted = match arguments {
        [] => None,
        [suite] if SUITES.contains(&suite.as_str()) => Some(suite.as_str()),
        _ => return Err(USAGE.into()),
    };
    let runs = |suite: &str| wanted.is_none_or(|wanted| wanted == suite);
    setup::install_for("test")?;
    let binary = test::build_steelyard(&[])?;
    let target = metadata()?.target_directory;
    let directory = target.join("interop");
    let tools = tools::build(&directory)?;
    let field = Field::start(&binary, &tools, &directory)?;

    let mut outcomes = Vec::new();
    for side in Side::ALL {
        if runs("h2spec") {
            for (origin, port) in field.h2spec_ports(side) {
                let start = Instant::now();
                let outcome = h2spec::run(&tools.h2spec, side, port, &directory);
                outcomes.push((format!("h2spec {side} -> {origin}"), start.elapsed().as_secs(), outcome));
            }
        }
        if runs("grpc") {
            let start = Instant::now();
            let outcome = grpc::run(&tools.client, side, &field);
            outcomes.push((format!("grpc   {side} -> h2c"), start.elapsed().as_secs(), outcome));
        }
    }
    if runs("load") {
        let start = Instant::now();
        let outcome = load::run(&binary, &tools.described, &directory);
        outcomes.push(("load with reflection".into(), start.elapsed().as_secs(), outcome));
    }
    if runs("authz") {
        let start = Instant::now();
        let outcome = authz::run(&binary, &tools.authz, &directory);
        outcomes.push(("external authorization".into(), start.elapsed().as_secs(), outcome));
    }
    if runs("ratelimit") {
        let start = Instant::now();
        let outcome = ratelimit::run(&binary, &tools, &directory);
        outcomes.push(("global rate limits".into(), start.elapsed().as_secs(), outcome));
    }
    if runs("oauth2-proxy") {
        let oauth2_proxy = tools::build_login(&directory)?;
        let start = Instant::now();
        let outcome = oauth2_proxy::run(&binary, &oauth2_proxy, &directory);
        outcomes.push(("login at oauth2-proxy".into(), start.elapsed().as_secs(), outcome));
    }
    if runs("otlp") {
        let collector = tools::build_collector(&directory)?;
        let start = Instant::now();
        let outcome = otlp::run(&binary, &collector, &directory);
        outcomes.push(("traces".into(), start.elapsed().as_secs(), outcome));
    }
    report(&outcomes)
}

/// The result of a suite: how many cases passed of how many, and a paragraph about each other case.
#[derive(Debug, Default, PartialEq, Eq)]
struct Score {
    held: usize,
    all: usize,
    failures: Vec<String>,
}

fn report(outcomes: &[(String, u64, Result<Score, String>)]) -> Result<(), String> {
    for (name, _, outcome) in outcomes {
        let failures = match outcome {
            Ok(score) => score.failures.as_slice(),
            Err(why) => std::slice::from_ref(why),
        };
        for failure in failures {
            println!("\n{name}: {failure}");
        }
    }
    println!();
    for (name, seconds, outcome) in outcomes {
        match outcome {
            Ok(score) => println!("  {name:<22} {:>3} of {} in {seconds} s", score.held, score.all),
            Err(_) => println!("  {name:<22} did not run"),
        }
    }
    let is_good = |outcome: &Result<Score, String>| outcome.as_ref().is_ok_and(|score| score.held == score.all);
    let failed: Vec<&str> =
        outcomes.iter().filter(|(_, _, outcome)| !is_good(outcome)).map(|(name, ..)| name.as_str()).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_to_hold() {
        let check = |score: Result<Score, String>, expect: Result<(), &str>| {
            let outcome = report(&[("a".to_owned(), 1, score)]);
            assert_eq!(outcome, expect.map_err(str::to_owned));
        };
        let score = |held, all| Ok(Score { held, all, failures: Vec::new() });
        check(score(3, 3), Ok(()));
        check(score(2, 3), Err("failed: a"));
        check(Err("no server".into()), Err("failed: a"));
    }

    #[test]
    fn arguments() {
        assert!(run(&["everything".into()]).unwrap_err().starts_with("usage:"));
        assert!(run(&["grpc".into(), "h2spec".into()]).unwrap_err().starts_with("usage:"));
    }
}
