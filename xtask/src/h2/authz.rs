//! External authorization over gRPC, with a service that is written against Envoy's protos and gRPC's own server
//! (`hack/interop/authz`). `x-mode` of a request says what it answers.

use std::path::Path;
use std::process::Command;

use testkit::free_port;

use super::Score;
use super::field::start;
use crate::command::{capture, command};

/// What curl sends besides the URL, and what its output must contain and must not contain. The endpoint answers 200 with
/// a body of its own.
const CASES: [Case; 12] = [
    Case { name: "yes", words: &[], has: &["HTTP/1.1 200"], lacks: &[] },
    Case { name: "yes over HTTP/2", words: &["--http2-prior-knowledge"], has: &["HTTP/2 200"], lacks: &[] },
    Case { name: "yes with a body", words: &["-d", "hello"], has: &["HTTP/1.1 200"], lacks: &[] },
    Case {
        name: "a redirect to a login",
        words: &["-H", "x-mode: deny"],
        has: &["HTTP/1.1 302", "location: /login", "set-cookie: a=b", "log in"],
        lacks: &["x-internal"],
    },
    Case {
        name: "a challenge",
        words: &["-H", "x-mode: 401"],
        has: &["HTTP/1.1 401", "www-authenticate: Bearer"],
        lacks: &[],
    },
    Case { name: "a bare no", words: &["-H", "x-mode: bare"], has: &["HTTP/1.1 403"], lacks: &[] },
    Case { name: "a no that is too long", words: &["-H", "x-mode: long"], has: &["HTTP/1.1 403"], lacks: &["aaaa"] },
    Case { name: "no status", words: &["-H", "x-mode: empty"], has: &["HTTP/1.1 503"], lacks: &[] },
    Case { name: "a failed call", words: &["-H", "x-mode: fail"], has: &["HTTP/1.1 503"], lacks: &[] },
    Case { name: "silence", words: &["-H", "x-mode: hang"], has: &["HTTP/1.1 503"], lacks: &[] },
    Case {
        name: "a call that may not be made",
        words: &["--http2-prior-knowledge", "-H", "content-type: application/grpc", "-H", "x-mode: deny", "-d", ""],
        has: &["grpc-status: 7"],
        lacks: &[],
    },
    Case {
        name: "a call without credentials",
        words: &["--http2-prior-knowledge", "-H", "content-type: application/grpc", "-H", "x-mode: 401", "-d", ""],
        has: &["grpc-status: 16"],
        lacks: &[],
    },
];

struct Case {
    name: &'static str,
    words: &'static [&'static str],
    has: &'static [&'static str],
    lacks: &'static [&'static str],
}

/// Runs all cases.
pub fn run(steelyard: &Path, service: &Path, directory: &Path) -> Result<Score, String> {
    let port = || free_port().map_err(|error| error.to_string());
    let (listen, origin, authz) = (port()?, port()?, port()?);
    let config = format!(
        "listeners:
  web:
    bind: 127.0.0.1:{listen}
    protocol: http
    external_auth:
      to: authz
      grpc: {{context: {{tier: gold}}}}
      timeout: 2s
      body: {{bytes: 1KiB}}
      response_headers: [x-user, x-seen]
    to: web
clusters:
  web: {{endpoints: ['127.0.0.1:{origin}']}}
  authz: {{endpoints: ['127.0.0.1:{authz}'], protocol: h2c, outlier: off}}
"
    );
    let file = directory.join("authz.yaml");
    std::fs::write(&file, config).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    let at = format!("127.0.0.1:{origin}");
    let _origin = start("origin", Command::new(steelyard).args(["origin", "http", "--listen", &at]), &[origin])?;
    let _authz = start("authz", Command::new(service).args(["-port", &authz.to_string()]), &[authz])?;
    let _steelyard = start("steelyard", Command::new(steelyard).args(["serve", "-c"]).arg(&file), &[listen])?;
    let mut score = Score::default();
    for Case { name, words, has, lacks } in CASES {
        let url = format!("http://127.0.0.1:{listen}/a?b=c");
        let output = capture(command("curl", &["-s", "-i", "-m", "20", &url]).args(words))?;
        score.all += 1;
        if has.iter().all(|text| output.contains(text)) && !lacks.iter().any(|text| output.contains(text)) {
            score.held += 1;
        } else {
            score.failures.push(format!("{name}: {output}"));
        }
    }
    Ok(score)
}
