//! The gRPC interoperability suite: the cases of grpc-go, each in its own process, through the balancer to the server
//! of grpc-go.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use testkit::{Exit, Program};

use super::Score;
use super::field::{Field, HOST, Side};
use crate::command::{capture, command};

/// More than the limit that a case sets itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs all cases that the client has.
pub fn run(client: &Path, side: Side, field: &Field) -> Result<Score, String> {
    let names = capture(&mut command(&client.to_string_lossy(), &["cases"]))?;
    let mut score = Score::default();
    for name in names.lines() {
        score.all += 1;
        match case(client, name, side, field) {
            Ok(()) => score.held += 1,
            Err(why) => score.failures.push(format!("{name}: {why}")),
        }
    }
    if score.all == 0 { Err("the client has no cases".into()) } else { Ok(score) }
}

fn case(client: &Path, name: &str, side: Side, field: &Field) -> Result<(), String> {
    let mut command = Command::new(client);
    command.args(["run", "-address", &field.grpc_address(side), "-case", name]);
    if side == Side::Tls {
        command.arg("-ca").arg(&field.certificate).args(["-name", HOST]);
    }
    let failed = |failure: testkit::Failure| failure.to_string();
    let mut program = Program::spawn(name, &mut command).map_err(failed)?;
    match program.exit_within(PATIENCE).map_err(failed)? {
        Exit::Code(0) => Ok(()),
        exit => Err(format!("{exit:?}\n{}", program.log())),
    }
}
