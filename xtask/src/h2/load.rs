//! `steelyard load grpc` with the service of gRPC's interoperability suite: the server of grpc-go describes its methods (server reflection, in
//! both versions of its protocol), and messages of JSON go through a balancer to every kind of method.

use std::path::Path;
use std::process::Command;

use testkit::free_port;

use super::Score;
use super::field::start;
use crate::command::command;

/// A case: the method, the messages, and what standard output and standard error must contain.
struct Case {
    method: &'static str,
    data: &'static str,
    has: &'static str,
}

const CASES: &[Case] = &[
    Case {
        method: "UnaryCall",
        data: r#"{"responseSize": 1000, "payload": {"body": "aGk="}}"#,
        has: "succeeded   20 ",
    },
    Case {
        method: "UnaryCall",
        data: r#"[{"responseSize": 9}, {"responseStatus": {"code": 7}}]"#,
        has: "DENIED (7) x 10",
    },
    Case {
        method: "StreamingOutputCall",
        data: r#"{"responseParameters": [{"size": 10}, {"size": 70000}, {"size": 30}]}"#,
        has: "messages    60 received",
    },
    Case { method: "StreamingInputCall", data: r#"[{"payload": {"body": "aGk="}}, {}]"#, has: "succeeded   20 " },
    Case {
        method: "FullDuplexCall",
        data: r#"[{"responseParameters": [{"size": 100000}]}, {"responseParameters": [{"size": 1}]}]"#,
        has: "messages    40 received",
    },
    Case { method: "UnaryCall", data: r#"{"size": 1}"#, has: "grpc.testing.SimpleRequest has responseType" },
    Case { method: "Unary", data: "{}", has: "it has EmptyCall, UnaryCall, " },
];

/// Runs the cases through a balancer to a server with each version of the protocol.
pub fn run(steelyard: &Path, server: &Path, directory: &Path) -> Result<Score, String> {
    let mut score = Score::default();
    for version in ["v1", "v1alpha"] {
        let [service, listen] = [free_port(), free_port()].map(|port| port.map_err(|error| error.to_string()));
        let (service, listen) = (service?, listen?);
        let mut serving = Command::new(server);
        serving.args(["-port", &service.to_string()]);
        if version == "v1alpha" {
            serving.arg("-v1alpha");
        }
        let _server = start("described", &mut serving, &[service])?;
        let file = directory.join("described.yaml");
        let text = format!(
            "listeners: {{edge: {{bind: '127.0.0.1:{listen}', protocol: http, to: calls}}}}\n\
             clusters: {{calls: {{endpoints: ['127.0.0.1:{service}'], protocol: h2c}}}}\n"
        );
        std::fs::write(&file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        let mut balancing = Command::new(steelyard);
        balancing.args(["serve", "--workers", "1", "-c"]).arg(&file);
        let _balancer = start("steelyard", &mut balancing, &[listen])?;
        for case in CASES {
            score.all += 1;
            match check(steelyard, listen, case) {
                Ok(()) => score.held += 1,
                Err(why) => score.failures.push(format!("{version}, {} {}: {why}", case.method, case.data)),
            }
        }
    }
    Ok(score)
}

fn check(steelyard: &Path, port: u16, case: &Case) -> Result<(), String> {
    let url = format!("127.0.0.1:{port}/grpc.testing.TestService/{}", case.method);
    let mut load = command(&steelyard.to_string_lossy(), &["load", "grpc", &url, "-n", "20", "-c", "2", "-s", "3"]);
    load.args(["--data", case.data]);
    let output = load.output().map_err(|error| error.to_string())?;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if text.contains(case.has) { Ok(()) } else { Err(format!("{:?} is not in:\n{text}", case.has)) }
}
