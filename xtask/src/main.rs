//! The developer's commands: `cargo xtask <verb>`. CI calls the same verbs, and there is no second way to do any of
//! this.
//!
//! Not here: anything that a user of Steelyard runs. That is in the `steelyard` binary.
#![forbid(unsafe_code)]

mod bench;
mod cargo;
mod ci;
mod cluster;
mod command;
mod demo;
mod dist;
mod docs;
mod fuzz;
mod go;
mod h2;
mod kernels;
mod kube;
mod setup;
mod sim;
mod soak;
mod test;
mod tidy;
mod without_clang;

use std::process::ExitCode;

/// A verb.
struct Verb {
    name: &'static str,
    arguments: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Result<(), String>,
}

const VERBS: &[Verb] = &[
    Verb {
        name: "demo",
        arguments: "[ARGS]",
        about: "build Steelyard and watch it balance, lose an endpoint, and report what that cost",
        run: demo::run,
    },
    Verb {
        name: "test",
        arguments: "[h2|kube|cluster|conformance|kernels|dist] [ARGS]",
        about: "run every test, as root also those that need root; or (h2) h2spec, gRPC's interoperability suite and services of others; \
                or (kube) the tests on a real API server; or (cluster) the tests on real nodes; or (conformance) the \
                conformance suite of the Gateway API; or (kernels) the kernel plane on Debian's kernels under qemu; or (dist) the \
                packages",
        run: test::run,
    },
    Verb {
        name: "cluster",
        arguments: "up [NODES] | down | kubectl ARGS",
        about: "start a Kubernetes cluster of one or two nodes on this host, without Docker, and install Steelyard on it",
        run: cluster::run,
    },
    Verb {
        name: "ci",
        arguments: "",
        about: "run everything that a change must pass: format, tidy, lints, documentation, tests",
        run: ci::run,
    },
    Verb {
        name: "tidy",
        arguments: "",
        about: "check the rules of this repository that no compiler checks: dependencies, bans, licences, links",
        run: tidy::run,
    },
    Verb {
        name: "sim",
        arguments: "[--seeds N | --seed N]",
        about: "simulate exchanges from many seeds (100,000), or show what happens in one, without sockets",
        run: sim::run,
    },
    Verb {
        name: "fuzz",
        arguments: "[TARGET] [--seconds N]",
        about: "fuzz one target or all of them, 60 s each",
        run: fuzz::run,
    },
    Verb {
        name: "bench",
        arguments: "[lab SCENARIO|l4|packet|kube] [ARGS]",
        about: "compare with nginx, HAProxy and Envoy on this host: (lab) a scenario of the lab, with a build that knows its commit, or \
                (l4) its balancers in the kernel; without a word streams, memory and routes; or (packet) measure the BPF programs \
                alone, or (kube) the controller with thousands of routes",
        run: bench::run,
    },
    Verb {
        name: "soak",
        arguments: "[--minutes N] [--bin FILE]",
        about: "run mixed load with a reload every 2 s, for 10 minutes or N, and report memory, descriptors and \
                failures over time",
        run: soak::run,
    },
    Verb {
        name: "docs",
        arguments: "",
        about: "build the documentation as a site in target/book/html, and check its links",
        run: docs::run,
    },
    Verb {
        name: "dist",
        arguments: "[render | --profile NAME]",
        about: "build what a release publishes: programs, Debian package, image, chart, bill of materials; or (render) \
                regenerate deploy/*.yaml",
        run: dist::run,
    },
    Verb {
        name: "setup",
        arguments: "[VERB]",
        about: "install the Debian packages that a verb needs (the verbs also do that themselves)",
        run: setup::run,
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = arguments.split_first() else {
        print!("{}", usage());
        return ExitCode::SUCCESS;
    };
    let Some(verb) = VERBS.iter().find(|verb| verb.name == name) else {
        eprint!("xtask: no verb `{name}`\n\n{}", usage());
        return ExitCode::from(2);
    };
    match (verb.run)(rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask {name}: {why}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> String {
    let mut text = String::from("cargo xtask <verb>\n\n");
    for verb in VERBS {
        text += &format!("  {:<31} {}\n", format!("{} {}", verb.name, verb.arguments), verb.about);
    }
    text
}
