//! `--telemetry`: what a gateway logs and records, and where that goes. The collector of a cluster is a Service with a name.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};

use testkit::until;

use crate::edge::{pod, within};
use crate::harness::{GATEWAY, PATIENCE};
use crate::parameters::{telltale, until_answered};
use crate::support::{Scratch, local};

#[test]
fn telemetry_of_a_gateway() {
    within("telemetry_of_a_gateway", |edge| {
        let scratch = Scratch::new();
        let (exports, collector) = collector();
        let log = scratch.write("access.log", "");
        scratch.write("token", "Bearer of-the-cluster\n");
        let file = scratch.write(
            "telemetry.yaml",
            &format!(
                "access_log: {{path: {log}, format: json, fields: {{at: route, trace: trace_id, code: status}}, only: {{status: 2xx}}}}\n\
                 tracing: {{to: otel, protocol: http, sampling: 100%, headers: {{authorization: {{file: token}}}}}}\n\
                 clusters: {{otel: {{endpoints: ['localhost:{collector}']}}}}\n"
            ),
        );
        edge.web(&[telltale(1)]);
        let controller = edge.controller_with("one", &["--listen-address", GATEWAY, "--telemetry", &file]);
        edge.until_served("HTTPRoute", "web");
        let seen = until_answered(b"");
        let parent = seen.lines().find_map(|line| line.strip_prefix("traceparent: 00-")).expect("a traceparent");
        let trace = parent.get(..32).expect("the id of a trace");

        let line = until(PATIENCE, || {
            let text = std::fs::read_to_string(&log).unwrap();
            text.lines().find(|line| line.contains(trace)).map(str::to_owned)
        });
        let line = line.unwrap_or_else(|| panic!("no line of trace {trace} in {log}"));
        let name = format!("{}/web", edge.name);
        assert!(line.contains(&name) && line.ends_with("\"code\":200}"), "{line}");
        let head = exports.recv_timeout(PATIENCE).expect("an export");
        assert!(head.starts_with("POST /v1/traces HTTP/1.1\n"), "{head}");
        assert!(head.contains("authorization: Bearer of-the-cluster\n"), "{head}");

        // New endpoints change the snapshot, and nothing about the collector.
        edge.endpoints("web", &[pod(1, 8080), pod(2, 8080)]);
        let exported = || controller.metric("steelyard_trace_spans_total", &[("result", "exported")]) >= 2.0;
        assert!(until(PATIENCE, || exported().then_some(())).is_some(), "nothing was exported");
    });
}

/// A collector that takes everything: the heads of its requests, and its port.
fn collector() -> (Receiver<String>, u16) {
    let listener = TcpListener::bind(local(0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(&stream);
            loop {
                let lines = reader.by_ref().lines().map_while(Result::ok);
                let head: String = lines.take_while(|line| !line.is_empty()).map(|line| line + "\n").collect();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                let Some(length) = length else { break };
                let mut body = vec![0; length];
                // The balancer may be gone.
                if reader.read_exact(&mut body).is_err()
                    || write!(&stream, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err()
                {
                    break;
                }
                let _ = tell.send(head);
            }
        }
    });
    (told, port)
}
