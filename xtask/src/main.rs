//! The developer's verbs: `cargo xtask <verb>`. CI calls the same verbs; there is no second way to do any of this.
//!
//! Not here: anything that a user of Steelyard runs. That is the `steelyard` binary.
#![forbid(unsafe_code)]

mod bench;
mod cargo;
mod ci;
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

/// One thing a developer can ask for.
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
        about: "build Steelyard and watch it balance, lose an endpoint, and say what that cost",
        run: demo::run,
    },
    Verb {
        name: "test",
        arguments: "[h2|kube|kernels|dist] [ARGS]",
        about: "every test, as root also those that need root; or (h2) h2spec and gRPC's interoperability suite; or (kube) those on a real API server; or (kernels) the kernel plane on Debian's kernels, under qemu; or (dist) the packages",
        run: test::run,
    },
    Verb {
        name: "ci",
        arguments: "",
        about: "format, house, lints, documentation, tests: what a change must pass",
        run: ci::run,
    },
    Verb {
        name: "tidy",
        arguments: "",
        about: "hold the house against its own rules: arrows, bans, licences, links",
        run: tidy::run,
    },
    Verb {
        name: "sim",
        arguments: "[--seeds N | --seed N]",
        about: "simulate exchanges from many seeds (100,000) or tell what happens in one, without sockets",
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
        arguments: "[l4|packet|kube] [ARGS]",
        about: "beside nginx, HAProxy and Envoy on this host, or (l4) beside nftables, IPVS and a routed path, or (packet) the BPF programs alone, or (kube) as a controller with thousands of routes",
        run: bench::run,
    },
    Verb {
        name: "soak",
        arguments: "[--minutes N] [--bin FILE]",
        about: "mixed load with a reload every 2 s, for 10 minutes or N: memory, descriptors and failures over time",
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
        about: "make what a release publishes: programs, Debian package, image, chart, bill of materials; or (render) write deploy/*.yaml anew",
        run: dist::run,
    },
    Verb {
        name: "setup",
        arguments: "[VERB]",
        about: "install the Debian packages that a verb needs; the verbs do it by themselves",
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
