//! Commands that ask a running Steelyard: `status`, `reload`, `endpoint`.

use std::io::IsTerminal;

use admin::{ClientError, Status};

use crate::cli::{AdminArgs, EndpointArgs, EndpointCommand, StatusArgs};
use crate::exit::Exit;

/// `steelyard status`.
pub(crate) fn status(args: &StatusArgs) -> Exit {
    let json = match admin::get(args.admin.admin, "/status") {
        Ok(json) => json,
        Err(error) => return crate::fail(&error.to_string()),
    };
    if args.json {
        return crate::print_line(String::from_utf8_lossy(&json).trim_end());
    }
    match Status::parse(&json) {
        Ok(status) => crate::print_line(admin::render_status_text(&status, wants_color()).trim_end()),
        Err(error) => crate::fail(&error),
    }
}

fn wants_color() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// `steelyard reload`. A refused file exits with the code of `steelyard check`.
pub(crate) fn reload(args: &AdminArgs) -> Exit {
    match admin::post(args.admin, "/reload") {
        Ok(answer) => crate::print_line(&format!("reloaded: generation {}", number(&answer, "generation"))),
        Err(ClientError::Refused { why, .. }) => {
            eprintln!("{why}");
            Exit::BadConfig
        }
        Err(error) => crate::fail(&error.to_string()),
    }
}

/// `steelyard endpoint drain|ready`.
pub(crate) fn endpoint(command: &EndpointCommand) -> Exit {
    let (args, draining) = match command {
        EndpointCommand::Drain(args) => (args, true),
        EndpointCommand::Ready(args) => (args, false),
    };
    let EndpointArgs { endpoint, cluster, admin } = args;
    match admin::post(admin.admin, &admin::endpoint_path(cluster.as_deref(), endpoint, draining)) {
        Ok(answer) => {
            let done = if draining { "draining" } else { "ready" };
            let count = number(&answer, "endpoints");
            crate::print_line(&format!("{done}: {endpoint} (clusters that have it: {count})"))
        }
        Err(error) => crate::fail(&error.to_string()),
    }
}

/// A number of a JSON answer.
fn number(answer: &[u8], field: &str) -> u64 {
    let answer: Option<serde_json::Value> = serde_json::from_slice(answer).ok();
    answer.and_then(|answer| answer.get(field)?.as_u64()).unwrap_or_default()
}
