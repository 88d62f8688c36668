//! The load generator.
//!
//! Job: `steelyard load http|grpc|ws|tcp-rr|tcp-crr|stream`, and the same as a library ([`run_http`] and its siblings). Not its job: to judge
//! whether the balancer or the load was saturated. The report contains the results and the CPU time of the load itself.

mod args;
mod arrivals;
mod client;
mod dial;
mod engine;
mod files;
mod generators;
mod grpc;
mod h2c;
mod http;
mod latency;
mod live;
mod mix;
mod pace;
mod payload;
mod prometheus;
mod reach;
mod replay;
mod report;
mod search;
mod shape;
mod socket;
mod stream;
mod strest_report;
mod tally;
mod target;
mod tcp;
mod threshold;
mod websocket;

use std::fmt::Display;
use std::future::Future;
use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;

pub use args::{
    CommonArgs, EXAMPLES, HttpLoadArgs, LoadCommand, OperationArgs, StreamArgs, TcpCrrArgs, TcpRrArgs, TlsArgs,
};
pub use arrivals::Stage;
pub(crate) use engine::burn;
pub use generators::GeneratorArgs;
pub use grpc::{CallArgs, GrpcLoad, GrpcLoadArgs, Replies, run_grpc};
pub use http::{HttpLoad, Version, run_http};
pub use latency::Latencies;
pub(crate) use latency::micros;
pub use live::Progress;
pub use mix::Entry;
pub use replay::{Recording, ReplayArgs, Replayed, Speed};
pub use report::{Generator, LoadReport, OfTarget, Outside, REPORT_VERSION, Remote};
pub use search::{CapacityReport, Objective, RateStep, find_capacity};
pub use shape::{Shape, Stop, Until};
pub use socket::{Tls, Trust};
pub use stream::{Direction, StreamLoad, run_stream, run_tcp_stream};
use strest_report::StrestReport;
pub use target::Target;
pub use tcp::{TcpLoad, run_tcp};
pub use threshold::{ErrorsMax, Judged, Thresholds};
pub use websocket::{Answers, WebSocketLoad, WebSocketLoadArgs, run_websocket};

use files::Files;
use generators::Share;

use crate::command::Outcome;
use crate::{host, schedule};

/// Runs a load and prints its report to standard output. Returns `Failed` if no operation succeeded or no capacity was found, and
/// `GateDoesNotHold` if a threshold was missed. SIGINT and SIGTERM end the load early, and it reports the results so far.
///
/// # Errors
/// The target is invalid or cannot be reached, or the host refuses a thread or a timer.
pub fn run(mut command: LoadCommand) -> io::Result<Outcome> {
    host::raise_open_files_limit();
    if matches!(command, LoadCommand::Generator) {
        return generators::serve();
    }
    if command.operations().is_some_and(|(operations, ..)| !operations.generators.generators.is_empty()) {
        let files = Files::Kept(Default::default());
        command.read_files(&files)?;
        return driven(&command, files);
    }
    run_as(command, &Files::Here, Role::Alone)
}

/// Whether a replay takes so long that its user should know before. A log may have a gap of days.
fn is_long(span: &Duration) -> bool {
    *span >= Duration::from_secs(60)
}

/// Whether this process puts a whole load on, or a part of one.
#[derive(Clone, Copy)]
enum Role {
    Alone,
    Generator(Share),
}

/// Runs the load of several generators.
fn driven(command: &LoadCommand, files: Files) -> io::Result<Outcome> {
    let Some((operations, common, streams)) = command.operations() else { return Ok(Outcome::Failed) };
    check_stages(operations)?;
    let shape = operations.shape(common, streams);
    let load = generators::drive(&operations.generators, command, files, &shape);
    let report = host::runtime()?.block_on(until_interrupted(&shape, load))?;
    conclude(operations, common, report)
}

fn run_as(command: LoadCommand, files: &Files, role: Role) -> io::Result<Outcome> {
    match command {
        LoadCommand::Http(args) => {
            let load = host::runtime()?.block_on(args.to_load(files))?;
            if let Some(span) = load.shape.replay.as_ref().and_then(|schedule| schedule.span()).filter(is_long) {
                eprintln!("the recorded requests take {} to send; --speed changes that", schedule::clock(span));
            }
            let shaped = |shape: Shape| HttpLoad { shape, ..load.clone() };
            operate(role, &args.operations, &args.common, &load.shape, async |shape| run_http(&shaped(shape)).await)
        }
        LoadCommand::Grpc(args) => {
            let load = host::runtime()?.block_on(args.to_load(files))?;
            if args.strest_report {
                let report = host::runtime()?.block_on(until_interrupted(&load.shape, run_grpc(&load)))?;
                print_json(&StrestReport::of(&report))?;
                return Ok(outcome(report.ok > 0));
            }
            let shaped = |shape: Shape| GrpcLoad { shape, ..load.clone() };
            operate(role, &args.operations, &args.common, &load.shape, async |shape| run_grpc(&shaped(shape)).await)
        }
        LoadCommand::WebSocket(args) => {
            let load = host::runtime()?.block_on(args.to_load(files))?;
            let shaped = |shape: Shape| WebSocketLoad { shape, ..load.clone() };
            operate(role, &args.operations, &args.common, &load.shape, async |shape| {
                run_websocket(&shaped(shape)).await
            })
        }
        LoadCommand::TcpRr(args) => tcp(role, &args.to_load()?, &args),
        LoadCommand::TcpCrr(args) => tcp(role, &args.to_load()?, &args.rr),
        LoadCommand::Stream(args) => {
            let load = args.to_load()?;
            let report = host::runtime()?.block_on(until_interrupted(&load.shape, run_stream(&load)))?;
            print(args.common.json, &report)?;
            Ok(outcome(report.received_bytes.max(report.sent_bytes) > 0))
        }
        LoadCommand::Generator => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "a generator cannot drive another one"))
        }
    }
}

fn tcp(role: Role, load: &TcpLoad, args: &TcpRrArgs) -> io::Result<Outcome> {
    let shaped = |shape: Shape| TcpLoad { shape, ..load.clone() };
    operate(role, &args.operations, &args.common, &load.shape, async |shape| run_tcp(&shaped(shape)).await)
}

fn check_stages(operations: &OperationArgs) -> io::Result<()> {
    if !operations.stages.is_empty() && operations.stages.iter().all(|stage| stage.time.is_zero()) {
        let why = "--stages take no time together: give at least one of them a time, such as 30s:2000";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(())
}

/// Runs a load of this shape. With `--find-capacity`, runs many loads like it at other rates.
fn operate(
    role: Role,
    operations: &OperationArgs,
    common: &CommonArgs,
    shape: &Shape,
    run: impl AsyncFn(Shape) -> io::Result<LoadReport>,
) -> io::Result<Outcome> {
    check_stages(operations)?;
    if let Role::Generator(share) = role {
        return generators::generate(share, shape, run);
    }
    let runtime = host::runtime()?;
    if let Some(objective) = operations.objective() {
        let report = runtime.block_on(until_interrupted(shape, find_capacity(&objective, shape, run)))?;
        print(common.json, &report)?;
        return Ok(outcome(report.capacity_per_s.is_some()));
    }
    let load = live::shown(shape, run(shape.clone()));
    let report = runtime.block_on(until_interrupted(shape, load))?;
    conclude(operations, common, report)
}

/// Judges and prints a report.
fn conclude(operations: &OperationArgs, common: &CommonArgs, mut report: LoadReport) -> io::Result<Outcome> {
    report.thresholds = operations.thresholds.judge(&report);
    if let Some(file) = &operations.prometheus {
        crate::report::write_text(file, &prometheus::text(&report))
            .map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", file.display())))?;
    }
    print(common.json, &report)?;
    match report.thresholds.iter().all(|threshold| threshold.met) {
        true => Ok(outcome(report.ok > 0)),
        false => Ok(Outcome::GateDoesNotHold),
    }
}

/// Waits for the loads of this shape. Stops them on SIGINT or SIGTERM, and returns what they then report.
async fn until_interrupted<T>(shape: &Shape, load: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::pin!(load);
    tokio::select! {
        report = &mut load => return report,
        outcome = host::interrupted() => outcome?,
    }
    shape.stop.now();
    load.await
}

fn outcome(is_good: bool) -> Outcome {
    if is_good { Outcome::Good } else { Outcome::Failed }
}

fn print<R: Display + Serialize>(as_json: bool, report: &R) -> io::Result<()> {
    if as_json { print_json(report) } else { unless_gone(write!(io::stdout().lock(), "{report}")) }
}

/// Ignores a pipe that the reader has closed (`| head`).
fn unless_gone(outcome: io::Result<()>) -> io::Result<()> {
    outcome.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

fn print_json<R: Serialize>(report: &R) -> io::Result<()> {
    let mut out = io::stdout().lock();
    unless_gone(serde_json::to_writer(&mut out, report).map_err(io::Error::from).and_then(|()| writeln!(out)))
}

#[cfg(test)]
mod tests;
