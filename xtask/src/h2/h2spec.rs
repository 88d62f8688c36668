//! Runs h2spec, and parses its JUnit report.
//!
//! It tests RFC 7540 and RFC 7541. Where RFC 9113 changed something (priorities), its cases still pass, and must.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use testkit::{Exit, Program};

use super::Score;
use super::field::Side;
use crate::command::{command, succeeds};

/// All cases, including the strict ones. A case that cannot even connect is missing from the report.
const CASES: usize = 146;

/// How long a case waits for an answer. Many cases pass if no answer comes in this time, so it determines the duration
/// of the suite.
const CASE_SECONDS: &str = "2";

/// The time in which all cases would have waited to the end. After that, h2spec hangs.
const PATIENCE: Duration = Duration::from_secs(2 * CASES as u64 + 30);

/// Runs all cases against a listener of this host.
pub fn run(h2spec: &Path, side: Side, port: u16, directory: &Path) -> Result<Score, String> {
    let report = directory.join(format!("h2spec-{port}.xml"));
    // Otherwise, if h2spec fails to write a report, we would read that of the last run.
    succeeds(command("rm", &["-f"]).arg(&report));
    let port = port.to_string();
    let mut command = Command::new(h2spec);
    command.args(["--strict", "--timeout", CASE_SECONDS, "--port", &port, "--junit-report"]).arg(&report);
    if side == Side::Tls {
        command.args(["--tls", "--insecure"]);
    }
    let mut program = Program::spawn("h2spec", &mut command).map_err(|failure| failure.to_string())?;
    let exit = program.exit_within(PATIENCE).map_err(|failure| failure.to_string())?;
    let xml =
        std::fs::read_to_string(&report).map_err(|error| format!("h2spec wrote no report ({exit:?}): {error}"))?;
    let mut score = read(&xml)?;
    if exit != Exit::Code(0) && score.failures.is_empty() {
        return Err(format!("h2spec ended with {exit:?}, and its report names no failure"));
    }
    score.all = score.all.max(CASES);
    Ok(score)
}

/// Counts the cases of a report. A case is `<testcase package= classname= time=>`. It contains `<failure>`, `<error>`
/// or `<skipped>` if it did not pass.
fn read(xml: &str) -> Result<Score, String> {
    let mut score = Score::default();
    for case in xml.split("<testcase").skip(1) {
        let case = case.split("</testcase>").next().unwrap_or(case);
        let (head, body) = case.split_once('>').ok_or("h2spec's report is cut off within a case")?;
        score.all += 1;
        let outcome = ["failure", "error", "skipped"].into_iter().find(|word| body.contains(&format!("<{word}>")));
        match outcome {
            None => score.held += 1,
            Some(word) => {
                let name = format!("{} {}", attribute(head, "package"), attribute(head, "classname"));
                score.failures.push(format!("{name}: {word}\n{}", text(body, word)));
            }
        }
    }
    if score.all == 0 { Err("h2spec's report has no cases".into()) } else { Ok(score) }
}

fn attribute<'x>(head: &'x str, name: &str) -> &'x str {
    let value = head.split_once(&format!("{name}=\"")).and_then(|(_, rest)| rest.split_once('"'));
    value.map_or("?", |(value, _)| value)
}

/// The content of an element, without the escapes that h2spec's messages contain.
fn text(body: &str, element: &str) -> String {
    let inner = body.split_once(&format!("<{element}>")).map_or("", |(_, rest)| rest);
    let inner = inner.split("</").next().unwrap_or("").trim();
    inner.replace("&#xA;", "\n").replace("&lt;", "<").replace("&gt;", ">").replace("&#34;", "\"").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites>
  <testsuite name="3.5. HTTP/2 Connection Preface" package="http2/3.5" id="3.5" tests="2" skipped="0" failures="0" errors="1">
    <testcase package="http2/3.5" classname="Sends client connection preface" time="0.0003"></testcase>
    <testcase package="http2/3.5" classname="Sends invalid connection preface" time="2.0004">
      <error>Connection closed&#xA;Timeout</error>
    </testcase>
    <testcase package="http2/6.9" classname="Needs a body" time="0.0001">
      <skipped></skipped>
    </testcase>
  </testsuite>
</testsuites>"#;

    #[test]
    fn counts_cases_and_names_those_that_did_not_hold() {
        let score = read(REPORT).unwrap();
        assert_eq!((score.held, score.all), (1, 3));
        assert_eq!(
            score.failures,
            [
                "http2/3.5 Sends invalid connection preface: error\nConnection closed\nTimeout",
                "http2/6.9 Needs a body: skipped\n"
            ]
        );
    }

    #[test]
    fn an_empty_report_is_no_success() {
        assert!(read("<testsuites></testsuites>").is_err());
        assert!(read("<testsuites><testcase package=\"a\"").is_err());
    }
}
