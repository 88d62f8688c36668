//! External authorization over HTTP, with oauth2-proxy (`hack/oauth2-proxy`). A user logs in with a password of its htpasswd file, so no
//! identity provider is needed.

use std::path::Path;
use std::process::Command;

use testkit::free_port;

use super::Score;
use super::field::start;
use crate::command::{capture, command};

/// The user `joe` with the password `letmein`. oauth2-proxy takes bcrypt alone.
const HTPASSWD: &str = "joe:$2y$05$dQfLQ8/baz5szxskEGCjPu2rl6mXU9GW1zFcSvjRvKVARl7C.vsl2\n";

/// The steps of a login, in order: the path, what curl sends besides, and what its output must contain and must not contain. The endpoint
/// answers with the headers that it got.
const STEPS: [Step; 8] = [
    Step {
        name: "a page gets the login form, which leads back",
        path: "/app?x=1",
        words: &[],
        has: &["HTTP/1.1 403", "text/html", r#"name="rd" value="/app?x=1""#],
        lacks: &[SERVED],
    },
    Step {
        name: "a program gets 401",
        path: "/app",
        words: &["-H", "accept: application/json"],
        has: &["HTTP/1.1 401"],
        lacks: &[SERVED],
    },
    Step {
        name: "a name that the client invents",
        path: "/app",
        words: &["-H", "x-auth-request-user: root", "-H", "x_auth_request_user: root"],
        has: &["HTTP/1.1 403"],
        lacks: &[SERVED],
    },
    Step {
        name: "a session that nobody began",
        path: "/app",
        words: &[
            "-H",
            "cookie: _oauth2_proxy=XJ997Tzd1_1EbVMAUs8Xyc3jdmxk83mv7Lw==|1795527526|8atKi1Od93i0MvNUfy2IwkDjKKs=",
        ],
        has: &["HTTP/1.1 403"],
        lacks: &[SERVED],
    },
    Step {
        name: "a wrong password",
        path: "/oauth2/sign_in",
        words: &["-d", "username=joe&password=wrong&rd=/app"],
        has: &["HTTP/1.1 401"],
        lacks: &["set-cookie: _oauth2_proxy="],
    },
    Step {
        name: "the right password",
        path: "/oauth2/sign_in",
        words: &["-d", "username=joe&password=letmein&rd=/app?x=1"],
        has: &["HTTP/1.1 302", "location: /app?x=1", "set-cookie: _oauth2_proxy="],
        lacks: &[],
    },
    Step {
        name: "the session, and again a name that the client invents",
        path: "/app?x=1",
        words: &["-H", "x-auth-request-user: root"],
        has: &["HTTP/1.1 200", SERVED, "x-auth-request-user: joe"],
        lacks: &["root"],
    },
    Step {
        name: "the session over HTTP/2",
        path: "/app",
        words: &["--http2-prior-knowledge"],
        has: &["HTTP/2 200", SERVED, "x-auth-request-user: joe"],
        lacks: &[],
    },
];

/// What only the endpoint says.
const SERVED: &str = "the endpoint got";

struct Step {
    name: &'static str,
    path: &'static str,
    words: &'static [&'static str],
    has: &'static [&'static str],
    lacks: &'static [&'static str],
}

/// Takes all steps.
pub fn run(steelyard: &Path, oauth2_proxy: &Path, directory: &Path) -> Result<Score, String> {
    let port = || free_port().map_err(|error| error.to_string());
    let (listen, origin, login) = (port()?, port()?, port()?);
    let config = format!(
        "listeners:
  edge:
    bind: 127.0.0.1:{listen}
    protocol: http
    external_auth: {{to: login, http: {{path: /}}, timeout: 5s, response_headers: x-auth-request-user}}
    routes:
      - {{path: /oauth2, external_auth: off, to: login}}
      - {{to: web}}
clusters:
  web: {{endpoints: ['127.0.0.1:{origin}']}}
  login: {{endpoints: ['127.0.0.1:{login}'], outlier: off}}
"
    );
    let write = |name: &str, text: &str| {
        let file = directory.join(name);
        std::fs::write(&file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        Ok::<_, String>(file)
    };
    let (file, users) = (write("oauth2-proxy.yaml", &config)?, write("oauth2-proxy.htpasswd", HTPASSWD)?);
    let jar = write("oauth2-proxy.cookies", "")?;
    let _origin = start("origin", Command::new("python3").args(["-c", ORIGIN, &origin.to_string()]), &[origin])?;
    let mut service = Command::new(oauth2_proxy);
    service.arg(format!("--http-address=127.0.0.1:{login}")).arg(format!("--htpasswd-file={}", users.display()));
    service.args(["--reverse-proxy=true", "--trusted-proxy-ip=127.0.0.1", "--upstream=static://202"]);
    service.args(["--set-xauthrequest=true", "--cookie-secure=false", "--email-domain=*"]);
    service.args(["--cookie-secret=0123456789abcdef0123456789abcdef", "--provider=github"]);
    service.args(["--client-id=steelyard", "--client-secret=none"]);
    let _service = start("oauth2-proxy", &mut service, &[login])?;
    let _steelyard = start("steelyard", Command::new(steelyard).args(["serve", "-c"]).arg(&file), &[listen])?;
    let mut score = Score::default();
    for Step { name, path, words, has, lacks } in STEPS {
        let url = format!("http://127.0.0.1:{listen}{path}");
        let mut curl = command("curl", &["-s", "-i", "-m", "20"]);
        let output = capture(curl.arg("-b").arg(&jar).arg("-c").arg(&jar).args(words).arg(&url))?;
        // Names of headers in any case.
        let lower = output.to_ascii_lowercase();
        let contains = |text: &&str| lower.contains(&text.to_ascii_lowercase());
        score.all += 1;
        if has.iter().all(contains) && !lacks.iter().any(contains) {
            score.held += 1;
        } else {
            score.failures.push(format!("{name}: {output}"));
        }
    }
    Ok(score)
}

/// An endpoint that answers with the headers that it got.
const ORIGIN: &str = r#"
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = ("the endpoint got\n" + str(self.headers)).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;
