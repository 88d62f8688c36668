//! Traces and access logs, with the OTLP receiver of the OpenTelemetry collector (`hack/otlp`): a request through two Steelyards and three services
//! is one tree, and each Steelyard's record of it names the trace.
//!
//! The first Steelyard exports over gRPC, the second over HTTP with gzip. One endpoint of the first refuses connections, so one try fails.

use std::collections::HashSet;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use testkit::{PATIENCE, free_port, until};

use super::Score;
use super::field::start;
use crate::command::{capture, command};

/// The trace of a client, which has not recorded it.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// The SERVER and CLIENT spans of the way through the first Steelyard and twice through the second, and a try that failed.
const SPANS: usize = 7;

/// The records of the same way.
const RECORDS: usize = 3;

/// The ports of everything.
struct Ports {
    first: u16,
    second: u16,
    /// Nothing listens there.
    dead: u16,
    grpc: u16,
    http: u16,
    services: [u16; 3],
}

impl Ports {
    fn new() -> Result<Self, String> {
        let port = || free_port().map_err(|error| error.to_string());
        let (first, second, dead) = (port()?, port()?, port()?);
        Ok(Self { first, second, dead, grpc: port()?, http: port()?, services: [port()?, port()?, port()?] })
    }

    /// The file of the first Steelyard. Each request is tried at the dead endpoint first.
    fn first_file(&self) -> String {
        let Self { first, dead, grpc, services: [a, ..], .. } = self;
        format!(
            "tracing: {{to: otel, sampling: 100%, service: first}}
access_log: {{otlp: {{to: otel, service: first, compression: gzip}}, fields: {{path: path, agent: 'request_header:user-agent', st: status, ms: total_ms}}}}
listeners: {{web: {{bind: '127.0.0.1:{first}', protocol: http, routes: [{{path: /a, to: a}}]}}}}
clusters:
  a: {{outlier: off, endpoints: [{{address: '127.0.0.1:{dead}'}}, {{address: '127.0.0.1:{a}', priority: 1}}]}}
  otel: {{endpoints: ['127.0.0.1:{grpc}'], protocol: h2c}}
"
        )
    }

    /// The file of the second, which records nothing but what the first has decided.
    fn second_file(&self) -> String {
        let Self { second, http, services: [_, b, c], .. } = self;
        format!(
            "tracing: {{to: otel, protocol: http, sampling: 0%, service: second, compression: gzip}}
access_log: {{otlp: {{to: otel, protocol: http, service: second}}}}
listeners:
  web:
    {{bind: '127.0.0.1:{second}', protocol: http, trusted_proxies: 127.0.0.2, routes: [{{path: /b, to: b}}, {{path: /c, to: c}}]}}
clusters:
  b: {{endpoints: ['127.0.0.1:{b}']}}
  c: {{endpoints: ['127.0.0.1:{c}']}}
  otel: {{endpoints: ['127.0.0.1:{http}']}}
"
        )
    }

    /// Starts the collector, which writes what it gets into a file.
    fn collect(&self, collector: &Path, exports: &Path) -> Result<Child, String> {
        let Self { grpc, http, .. } = *self;
        let file = std::fs::File::create(exports).map_err(|error| format!("{}: {error}", exports.display()))?;
        let mut program = Command::new(collector);
        program.arg(format!("127.0.0.1:{grpc}")).arg(format!("127.0.0.1:{http}")).stdout(Stdio::from(file));
        let child = program.spawn().map_err(|error| format!("cannot start the collector: {error}"))?;
        let child = Child(child);
        let is_up = |port: u16| std::net::TcpStream::connect(("127.0.0.1", port)).ok();
        let up = until(PATIENCE, || is_up(grpc).and_then(|_| is_up(http)));
        up.map(|_| child).ok_or_else(|| "the collector does not listen".to_owned())
    }
}

/// Takes all steps.
pub fn run(steelyard: &Path, collector: &Path, directory: &Path) -> Result<Score, String> {
    let ports = Ports::new()?;
    let write = |name: &str, text: String| {
        let file = directory.join(name);
        std::fs::write(&file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        Ok::<_, String>(file)
    };
    let files = [write("otlp-first.yaml", ports.first_file())?, write("otlp-second.yaml", ports.second_file())?];
    let mut services = Command::new("python3");
    services.args(["-c", SERVICES, &ports.second.to_string()]).args(ports.services.map(|port| port.to_string()));
    let _services = start("services", &mut services, &ports.services)?;
    let serve = |name: &str, file: &Path, port: u16| {
        start(name, Command::new(steelyard).args(["serve", "-c"]).arg(file), &[port])
    };
    let _first = serve("first", &files[0], ports.first)?;
    let _second = serve("second", &files[1], ports.second)?;
    let exports = directory.join("otlp.json");
    let ask = |fields: &[&str]| {
        let mut curl = command("curl", &["-s", "-f", "-m", "20"]);
        capture(curl.args(fields).arg(format!("http://127.0.0.1:{}/a", ports.first)))
    };
    let spans = || {
        let read = || Some(read(&std::fs::read_to_string(&exports).ok()?)).filter(|spans| spans.len() >= SPANS);
        until(PATIENCE, read)
            .ok_or_else(|| format!("fewer than {SPANS} spans: {:?}", std::fs::read_to_string(&exports)))
    };
    let mut score = Score::default();
    let mut step = |name: &str, outcome: Result<(), String>| {
        score.all += 1;
        match outcome {
            Ok(()) => score.held += 1,
            Err(why) => score.failures.push(format!("{name}: {why}")),
        }
    };
    // Both begin to export when there is no collector, and try again.
    ask(&[])?;
    let running = ports.collect(collector, &exports)?;
    step("a new trace, once the collector is there", spans().and_then(|spans| is_tree(&spans, None)));
    drop(running);
    let _running = ports.collect(collector, &exports)?;
    let parent = format!("traceparent: 00-{TRACE}-{SPAN}-00");
    let answer = ask(&["-H", &parent, "-H", "tracestate: a=1", "-H", "tracestate: b=2"])?;
    step("the trace of a client", spans().and_then(|spans| is_tree(&spans, Some((TRACE, SPAN)))));
    let records = until(PATIENCE, || {
        let records = read_records(&std::fs::read_to_string(&exports).ok()?);
        Some(records).filter(|records| records.len() >= RECORDS)
    });
    step("the records of the request", records.ok_or("too few".to_owned()).and_then(|records| are_of(&records, TRACE)));
    step("its state", if answer.contains("a=1,b=2") { Ok(()) } else { Err(answer) });
    Ok(score)
}

/// Ends with this value.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The spans of all exports.
fn read(exports: &str) -> Vec<Value> {
    let exports = exports.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let scopes =
        exports.flat_map(|export| list(&export, "resourceSpans")).flat_map(|resource| list(&resource, "scopeSpans"));
    scopes.flat_map(|scope| list(&scope, "spans")).collect()
}

/// The records of all exports, without those before the trace of the client.
fn read_records(exports: &str) -> Vec<Value> {
    let exports = exports.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let scopes =
        exports.flat_map(|export| list(&export, "resourceLogs")).flat_map(|resource| list(&resource, "scopeLogs"));
    let records = scopes.flat_map(|scope| list(&scope, "logRecords"));
    records.filter(|record| record["traceId"] == TRACE).collect()
}

/// Whether these are the records of one request, each with its own span: `/a`, and then `/b` and `/c`.
fn are_of(records: &[Value], trace: &str) -> Result<(), String> {
    let spans: HashSet<&str> = records.iter().filter_map(|record| record["spanId"].as_str()).collect();
    let has = |record: &&Value, name: &str, kind: &str, expect: &str| {
        let attributes = record["attributes"].as_array();
        let found = attributes.and_then(|all| all.iter().find(|attribute| attribute["key"] == name));
        found.is_some_and(|found| found["value"][kind].as_str().is_some_and(|value| value.starts_with(expect)))
    };
    let first = records.iter().find(|record| {
        has(record, "path", "stringValue", "/a")
            && has(record, "agent", "stringValue", "curl/")
            && has(record, "st", "intValue", "200")
    });
    let is_usual = |record: &&Value| {
        record["severityText"] == "INFO" && record["traceId"] == trace && has(record, "cluster", "stringValue", "")
    };
    let second = records.iter().filter(|record| is_usual(record) && has(record, "target", "stringValue", "/")).count();
    let body = first.is_some_and(|record| record["body"]["stringValue"] == "GET /a 200");
    if spans.len() == RECORDS && body && second == 2 { Ok(()) } else { Err(format!("{records:#?}")) }
}

/// Whether the spans are one tree, whose root has this trace and parent, and which has one failed try.
fn is_tree(spans: &[Value], root: Option<(&str, &str)>) -> Result<(), String> {
    let text = |span: &Value, key: &str| span[key].as_str().unwrap_or_default().to_owned();
    let traces: HashSet<String> = spans.iter().map(|span| text(span, "traceId")).collect();
    let ids: HashSet<String> = spans.iter().map(|span| text(span, "spanId")).collect();
    let roots: Vec<String> =
        spans.iter().map(|span| text(span, "parentSpanId")).filter(|parent| !ids.contains(parent)).collect();
    let failed = spans.iter().filter(|span| span["status"]["code"] == 2).count();
    let is_root = match root {
        None => roots == [""],
        Some((trace, parent)) => roots == [parent] && traces.contains(trace),
    };
    if spans.len() == SPANS && traces.len() == 1 && ids.len() == SPANS && is_root && failed == 1 {
        return Ok(());
    }
    Err(format!("{spans:#?}"))
}

/// Three services. The first asks the second, and that the third, both through the second Steelyard, and pass the context on.
const SERVICES: &str = r#"
import http.client, http.server, socketserver, sys, threading
second, ports = int(sys.argv[1]), [int(port) for port in sys.argv[2:]]
NEXT = {"/a": "/b", "/b": "/c"}
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = str(self.headers).encode()
        if self.path in NEXT:
            ask = http.client.HTTPConnection("127.0.0.1", second, source_address=("127.0.0.2", 0))
            context = {name: self.headers[name] for name in ("traceparent", "tracestate") if name in self.headers}
            ask.request("GET", NEXT[self.path], headers=context)
            body = ask.getresponse().read()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
for port in ports:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever).start()
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees() {
        let span = |id: usize, parent: &str| {
            let code = usize::from(id == 3) * 2;
            format!(r#"{{"traceId": "t", "spanId": "{id}", "parentSpanId": "{parent}", "status": {{"code": {code}}}}}"#)
        };
        let export = |spans: &[String]| {
            read(&format!(r#"{{"resourceSpans": [{{"scopeSpans": [{{"spans": [{}]}}]}}]}}"#, spans.join(",")))
        };
        let mut all: Vec<String> = vec![span(1, ""), span(2, "1"), span(3, "1")];
        all.extend((4..=7).map(|id| span(id, &(id - 1).to_string())));
        assert_eq!(is_tree(&export(&all), None), Ok(()));
        assert!(is_tree(&export(&all), Some(("t", "9"))).is_err());
        assert!(is_tree(&export(&all[1..]), None).is_err());
        all[6] = span(7, "9");
        assert!(is_tree(&export(&all), None).is_err());
        all[0] = span(1, "9");
        all[6] = span(7, "6");
        assert_eq!(is_tree(&export(&all), Some(("t", "9"))), Ok(()));
    }
}
