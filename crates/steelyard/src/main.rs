//! `steelyard`: the command line, and the only place where sources, planes, health checks and the control API meet.
//!
//! `serve`, `proxy` and `controller` end up in [`run`], which connects them. Every other command is a short call into
//! the crate that does the job.
#![forbid(unsafe_code)]
#![cfg_attr(not(feature = "controller"), allow(dead_code, reason = "only the controller uses some of this"))]

mod cli;
#[cfg_attr(not(feature = "controller"), path = "no_cluster.rs")]
mod cluster;
mod control;
mod debug;
mod exit;
mod files;
mod handover;
mod jwks;
mod kernel;
mod limits;
mod logging;
mod manager;
#[cfg(feature = "controller")]
mod migrate;
mod network;
mod operate;
mod otlp;
mod overlay;
#[cfg(test)]
mod reference;
mod resolve;
mod run;
mod sidecar;
mod signals;
mod sole;
mod stalls;
mod tail;
mod top;
mod vips;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use cli::{Cli, Command};
use exit::Exit;

fn main() -> ExitCode {
    if let Some(exit) = handover::launch() {
        return exit.into();
    }
    net::memory::configure();
    let cli = Cli::parse_from(cli::with_kind_of_load(std::env::args_os().collect()));
    match cli.command {
        Command::Demo(args) => demo(&args),
        Command::Proxy(args) => run::proxy(args),
        Command::Serve(args) => run::serve(args),
        #[cfg(feature = "controller")]
        Command::Controller(args) => cluster::controller(*args),
        #[cfg(feature = "controller")]
        Command::Migrate(command) => migrate::migrate(command),
        Command::Sidecar(command) => sidecar::sidecar(command),
        Command::Check(args) => files::check(&args.config),
        Command::Schema => print_line(&format!("{:#}", config::schema())),
        Command::Status(args) => operate::status(&args),
        Command::Top(args) => top::top(&args),
        Command::Tail(args) => tail::tail(&args),
        Command::Reload(args) => operate::reload(&args),
        Command::Endpoint(command) => operate::endpoint(&command),
        Command::Maintenance(command) => operate::maintenance(&command),
        Command::Vip(command) => operate::vip(&command),
        Command::Flows(args) => operate::flows(&args),
        Command::Trace(args) => operate::trace(&args),
        Command::Debug(command) => debug::debug(&command),
        Command::Origin(command) => report(lab::origin::run(command)),
        Command::Load(command) => load(command),
        Command::Lab(command) => laboratory(command),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "steelyard", &mut std::io::stdout());
            Exit::Good
        }
        Command::Man { directory } => man(&directory),
    }
    .into()
}

/// Writes a page for each command, and creates the directory if necessary.
fn man(directory: &std::path::Path) -> Exit {
    let written = std::fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(Cli::command(), directory));
    written.map_or_else(|error| fail(&format!("cannot write to {}: {error}", directory.display())), |()| Exit::Good)
}

fn demo(args: &lab::demo::DemoArgs) -> Exit {
    let exe = match std::env::current_exe() {
        Ok(exe) => exe,
        Err(error) => return fail(&format!("cannot find the file of this program: {error}")),
    };
    match lab::demo::run(args, &exe) {
        Ok(lab::Verdict::Good) => Exit::Good,
        Ok(lab::Verdict::Failed) => Exit::Failed,
        Err(error) => fail(&error.to_string()),
    }
}

fn load(command: lab::load::LoadCommand) -> Exit {
    match lab::load::run(command) {
        Ok(lab::command::Outcome::Good) => Exit::Good,
        Ok(lab::command::Outcome::Failed) => Exit::Failed,
        Ok(lab::command::Outcome::GateDoesNotHold) => Exit::GateDoesNotHold,
        Err(error) => fail(&error.to_string()),
    }
}

fn laboratory(command: lab::command::LabCommand) -> Exit {
    let exe = match std::env::current_exe() {
        Ok(exe) => exe,
        Err(error) => return fail(&format!("cannot find the file of this program: {error}")),
    };
    match lab::command::run(command, &exe, env!("CARGO_PKG_VERSION")) {
        Ok(lab::command::Outcome::Good) => Exit::Good,
        Ok(lab::command::Outcome::Failed) => Exit::Failed,
        Ok(lab::command::Outcome::GateDoesNotHold) => Exit::GateDoesNotHold,
        Err(error) => {
            fail(&error.to_string());
            // The request is wrong, as opposed to refused by the host.
            match error.kind() {
                std::io::ErrorKind::InvalidInput => Exit::BadConfig,
                std::io::ErrorKind::Unsupported => Exit::HostCannot,
                _ => Exit::Failed,
            }
        }
    }
}

fn report(outcome: std::io::Result<()>) -> Exit {
    outcome.map_or_else(|error| fail(&error.to_string()), |()| Exit::Good)
}

fn fail(message: &str) -> Exit {
    // What another program answered may be in it.
    eprintln!("steelyard: {}", admin::visible(message));
    Exit::Failed
}

/// Prints to standard output. It is not an error if the reader has gone away (`| head`).
fn print_line(text: &str) -> Exit {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{text}");
    Exit::Good
}
