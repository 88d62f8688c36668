//! The commands that talk to a running Steelyard: `status`, `reload`, `endpoint`, `vip`, `flows`, `trace`.

use std::io::IsTerminal;

use admin::{ClientError, Flows, Severity, Status, TraceQuestion, TraceReport, Within};
use serde_json::{Map, Value, json};

use crate::cli::{
    AskArgs, EndpointArgs, EndpointCommand, FlowsArgs, MaintenanceArgs, MaintenanceCommand, StatusArgs, TraceArgs,
    VipAddArgs, VipCommand, VipRemoveArgs,
};
use crate::exit::{Exit, Refused};
use crate::sole::{Sole, Taken};

/// Appended to the message about a change that is not in the file.
const NOT_KEPT: &str = "until this process ends";

/// Runs `steelyard status`. With `--check`, the command fails if something is wrong.
pub(crate) fn status(args: &StatusArgs) -> Exit {
    let json = match get(&args.ask, "/status") {
        Ok(json) => json,
        Err(error) => return crate::fail(&error),
    };
    let status = match Status::parse(&json) {
        Ok(status) => status,
        // The status has another version, which the program that reads the JSON may know.
        Err(_) if args.ask.json && !args.check => return crate::print_line(String::from_utf8_lossy(&json).trim_end()),
        Err(error) => return crate::fail(&error),
    };
    match args.ask.json {
        true => crate::print_line(String::from_utf8_lossy(&json).trim_end()),
        false => crate::print_line(admin::render_status_text(&status, wants_color()).trim_end()),
    };
    let is_wrong = status.findings.iter().any(|finding| finding.severity == Severity::Wrong);
    if args.check && is_wrong { Exit::Failed } else { Exit::Good }
}

fn wants_color() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Runs `steelyard reload`. If the file is refused, the exit code is that of `steelyard check`.
pub(crate) fn reload(args: &AskArgs) -> Exit {
    changed(args, "/reload", "", |answer| format!("reloaded: generation {}", number(answer, "generation")))
}

/// `steelyard endpoint drain|ready`.
pub(crate) fn endpoint(command: &EndpointCommand) -> Exit {
    let (args, draining) = match command {
        EndpointCommand::Drain(args) => (args, true),
        EndpointCommand::Ready(args) => (args, false),
    };
    let EndpointArgs { endpoint, cluster, vip, ask } = args;
    let within = match (cluster, vip) {
        (Some(name), _) => Within::Cluster(name),
        (None, Some(name)) => Within::Vip(name),
        (None, None) => Within::All,
    };
    changed(ask, &admin::endpoint_path(within, endpoint, draining), "", |answer| {
        let count = number(answer, "endpoints");
        match draining {
            true => format!("draining, {NOT_KEPT}: {endpoint} (clusters and vips that have it: {count})"),
            false => format!("ready: {endpoint} (clusters and vips that have it: {count})"),
        }
    })
}

/// `steelyard maintenance on|off`.
pub(crate) fn maintenance(command: &MaintenanceCommand) -> Exit {
    let (args, on) = match command {
        MaintenanceCommand::On(args) => (args, true),
        MaintenanceCommand::Off(args) => (args, false),
    };
    let MaintenanceArgs { route, listener, ask } = args;
    changed(ask, &admin::maintenance_path(listener.as_deref(), route, on), "", |answer| {
        let count = number(answer, "routes");
        match on {
            true => format!("in maintenance, {NOT_KEPT}: {route} (listeners that have it: {count})"),
            false => format!("in service: {route} (listeners that have it: {count})"),
        }
    })
}

/// `steelyard vip add|list|remove|detach`.
pub(crate) fn vip(command: &VipCommand) -> Exit {
    match command {
        VipCommand::Add(args) => {
            let VipAddArgs { name, ask, .. } = &**args;
            let path = admin::vip_add_path(name);
            changed(ask, &path, &description(args).to_string(), |_| format!("added, {NOT_KEPT}: {name}"))
        }
        VipCommand::List(args) => told(args, "/status", Status::parse, admin::render_vips_text),
        VipCommand::Remove(VipRemoveArgs { name, ask }) => {
            changed(ask, &admin::vip_remove_path(name), "", |_| format!("removed: {name}"))
        }
        VipCommand::Detach(args) => detach(args),
    }
}

/// Returns what the file would have under the name of the vip.
fn description(args: &VipAddArgs) -> Value {
    let mut vip = Map::new();
    let mut put = |key: &str, value: Value| drop(vip.insert(key.to_owned(), value));
    put("address", json!(args.address));
    if !args.interface.is_empty() {
        put("interfaces", json!(args.interface));
    }
    if !args.endpoint.is_empty() {
        put("endpoints", args.endpoint.iter().map(|endpoint| endpoint_value(endpoint)).collect());
    }
    if !args.source.is_empty() {
        put("sources", json!(args.source));
    }
    for (key, value) in
        [("balance", &args.balance), ("mode", &args.mode), ("affinity", &args.affinity), ("announce", &args.announce)]
    {
        if let Some(value) = value {
            put(key, json!(value));
        }
    }
    match args.health_check.as_deref() {
        None => {}
        Some("tcp") => put("health_check", json!({ "tcp": true })),
        Some(path) => put("health_check", json!({ "http": path })),
    }
    Value::Object(vip)
}

/// `ADDRESS` or `ADDRESS=WEIGHT`.
fn endpoint_value(written: &str) -> Value {
    match written.split_once('=') {
        Some((address, weight)) => json!({ "address": address, "weight": weight }),
        None => json!(written),
    }
}

/// Asks the process that serves the vips to detach the plane, or detaches it itself if there is no such process.
fn detach(args: &AskArgs) -> Exit {
    let _sole = match Sole::take() {
        Ok(sole) => sole,
        Err(Taken::By(_)) => {
            return changed(args, "/vip/detach", "", |_| {
                "detached: no vip is served until the next `steelyard reload` or a restart".to_owned()
            });
        }
        Err(taken) => return crate::fail(&taken.to_string()),
    };
    match l4::detach(&l4::Options::default()) {
        Ok(was) if args.json => crate::print_line(&json!({ "detached": was }).to_string()),
        Ok(true) => crate::print_line("detached: no vip is served now"),
        Ok(false) => crate::print_line("there is nothing to detach"),
        Err(refusal) => {
            let Refused { exit, why, .. } = refusal.into();
            eprintln!("steelyard: {why}");
            exit
        }
    }
}

/// `steelyard flows`.
pub(crate) fn flows(args: &FlowsArgs) -> Exit {
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let path = admin::flows_path(args.vip.as_deref(), limit);
    told(&args.ask, &path, of_json::<Flows>, admin::render_flows_text)
}

/// Runs `steelyard trace`. The exit code is 0 if the packet would be forwarded, else 1.
pub(crate) fn trace(args: &TraceArgs) -> Exit {
    let TraceArgs { vip, from, interface, flags, ask } = args;
    let question =
        TraceQuestion { vip: vip.clone(), from: from.clone(), interface: interface.clone(), flags: flags.clone() };
    let json = match get(ask, &admin::trace_path(&question)) {
        Ok(json) => json,
        Err(error) => return crate::fail(&error),
    };
    let report = match of_json::<TraceReport>(&json) {
        Ok(report) => report,
        Err(error) => return crate::fail(&error),
    };
    match ask.json {
        true => crate::print_line(String::from_utf8_lossy(&json).trim_end()),
        false => crate::print_line(admin::render_trace_text(&report).trim_end()),
    };
    if report.forwarded { Exit::Good } else { Exit::Failed }
}

fn get(args: &AskArgs, path: &str) -> Result<Vec<u8>, String> {
    admin::get(&args.admin.client()?, path).map_err(|error| error.to_string())
}

/// Sends a request and prints the response: as it is with `--json`, else formatted for people.
fn told<T>(
    args: &AskArgs,
    path: &str,
    parse: impl FnOnce(&[u8]) -> Result<T, String>,
    show: impl FnOnce(&T) -> String,
) -> Exit {
    let json = match get(args, path) {
        Ok(json) => json,
        Err(error) => return crate::fail(&error),
    };
    if args.json {
        return crate::print_line(String::from_utf8_lossy(&json).trim_end());
    }
    match parse(&json) {
        Ok(value) => crate::print_line(show(&value).trim_end()),
        Err(error) => crate::fail(&error),
    }
}

/// Requests a change and reports the result.
fn changed(args: &AskArgs, path: &str, body: &str, show: impl FnOnce(&[u8]) -> String) -> Exit {
    let client = match args.admin.client() {
        Ok(client) => client,
        Err(why) => return crate::fail(&why),
    };
    match admin::post(&client, path, body) {
        Ok(answer) if args.json => crate::print_line(String::from_utf8_lossy(&answer).trim_end()),
        Ok(answer) => crate::print_line(&show(&answer)),
        // The control API uses these statuses if the request is wrong, and if the host cannot do it.
        Err(ClientError::Refused { status: status @ (422 | 501), why }) => {
            eprintln!("{why}");
            if status == 422 { Exit::BadConfig } else { Exit::HostCannot }
        }
        Err(error) => crate::fail(&error.to_string()),
    }
}

fn of_json<T: serde::de::DeserializeOwned>(json: &[u8]) -> Result<T, String> {
    serde_json::from_slice(json).map_err(|error| {
        format!(
            "the running Steelyard has another version, and this program cannot read its response: {error}; use the \
             same binary for both"
        )
    })
}

/// Returns a number from a JSON response, or 0.
fn number(answer: &[u8], field: &str) -> u64 {
    let answer: Option<Value> = serde_json::from_slice(answer).ok();
    answer.and_then(|answer| answer.get(field)?.as_u64()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn a_vip_on_the_command_line_is_one_of_the_file() {
        let check = |words: &str, expect: &str| {
            let words = format!("steelyard vip add web {words}");
            let cli = Cli::try_parse_from(words.split(' ')).unwrap();
            let Command::Vip(VipCommand::Add(args)) = cli.command else { panic!("{words}") };
            let file = format!("vips: {{web: {expect}}}");
            let file = config::parse("f", &file, model::Generation(1)).unwrap_or_else(|errors| panic!("{errors}"));
            assert_eq!(
                config::parse_vip("web", &description(&args).to_string()).as_ref(),
                Ok(&file.vips[0]),
                "{words}"
            );
        };
        check(
            "--address 192.0.2.1:80/tcp --interface eth0 --interface eth1 --endpoint 10.0.0.1:81 --endpoint 10.0.0.2=3",
            "{address: 192.0.2.1:80/tcp, interfaces: [eth0, eth1], endpoints: [10.0.0.1:81, {address: 10.0.0.2, weight: 3}]}",
        );
        check(
            "--address [fd00::1]:53/udp --interface eth0 --endpoint [fd00::2]:53,[fd00::3]:53 --balance maglev --mode full_nat \
             --source fd00::9 --affinity 10m --health-check tcp",
            "{address: '[fd00::1]:53/udp', interfaces: eth0, endpoints: ['[fd00::2]:53', '[fd00::3]:53'], balance: maglev, \
             mode: full_nat, sources: 'fd00::9', affinity: 10m, health_check: {tcp: true}}",
        );
        check(
            "--address 192.0.2.1:80/tcp --interface eth0 --endpoint 10.0.0.1 --announce route --health-check /ready",
            "{address: 192.0.2.1:80/tcp, interfaces: eth0, endpoints: [10.0.0.1], announce: route, health_check: {http: /ready}}",
        );
        check(
            "--address 192.0.2.1:80/tcp --interface eth0 --mode local",
            "{address: 192.0.2.1:80/tcp, interfaces: eth0, mode: local}",
        );
    }
}
