//! Parses a script's text into steps. Errors name the line.

use testkit::Signal;

use crate::script::{Action, ConnAction, DEFAULT_CONFIG, Expectation, Extent, Peer, Script, Step};
use crate::text::Template;

/// The counter of everything that the balancer refused, aborted or closed.
const REASONS_METRIC: &str = "steelyard_refused_total";

impl Script {
    /// Reads a script; an error is `LINE: what is wrong`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = Lines::new(text);
        let title = lines.description()?;
        let mut script = Self { title, config: String::new(), steps: Vec::new() };
        let mut config = DEFAULT_CONFIG.to_owned();
        while let Some((line, words)) = lines.step()? {
            let place = |error: String| format!("{line}: {error}");
            match words.as_slice() {
                ["config"] => config = lines.yaml(0),
                ["listener"] => config = config.replace("    to: web\n", &format!("    to: web\n{}", lines.yaml(4))),
                ["cluster"] => config.push_str(&lines.yaml(4)),
                words => {
                    let action = action(words, &mut lines).map_err(place)?;
                    script.steps.push(Step { line, action });
                }
            }
        }
        script.config = config;
        Ok(script)
    }
}

fn action(words: &[&str], lines: &mut Lines<'_>) -> Result<Action, String> {
    match words {
        ["balancer", "reloads"] => Ok(Action::Reload { config: lines.optional_yaml(), taken: true }),
        ["balancer", "refuses"] => Ok(Action::Reload { config: lines.optional_yaml(), taken: false }),
        ["balancer", "gets", name] => signal(name).map(Action::Signal),
        ["balancer", "exits", code] => number(code).map(Action::Exits),
        ["counted", "nothing"] => Ok(Action::Metric { name: REASONS_METRIC.into(), labels: Vec::new(), expect: 0.0 }),
        ["counted", reason] => Ok(counted(reason, 1.0)),
        ["counted", reason, times] => Ok(counted(reason, number(times)?)),
        ["metric", series, expect] => metric(series, number(expect)?),
        ["metric", series, "reaches", at_least] => match metric(series, number(at_least)?)? {
            Action::Metric { name, labels, expect } => Ok(Action::MetricReaches { name, labels, at_least: expect }),
            other => Ok(other),
        },
        [client, "connects", how @ ..] => connect(client, how),
        [name, rest @ ..] => {
            let peer = peer(name)?;
            if rest == ["gets", "nothing"] {
                return Ok(Action::NothingYet(peer));
            }
            conn_action(rest, lines).map(|action| Action::Conn(peer, action))
        }
        [] => Err("an empty step".into()),
    }
}

fn conn_action(words: &[&str], lines: &mut Lines<'_>) -> Result<ConnAction, String> {
    match words {
        ["sends"] => Ok(ConnAction::Send(lines.block()?, None)),
        ["sends", "in", "pieces", "of", size] => Ok(ConnAction::Send(lines.block()?, Some(number(size)?))),
        ["half-closes"] => Ok(ConnAction::HalfClose),
        ["closes"] => Ok(ConnAction::Close),
        ["resets"] => Ok(ConnAction::Reset),
        ["gets", "bytes"] => Ok(ConnAction::GetBytes(lines.block()?)),
        ["gets", "end"] => Ok(ConnAction::GetEnd),
        ["gets", "head", method, target, "HTTP/1.1"] => {
            Ok(ConnAction::GetRequest(format!("{method} {target}"), Extent::Head, lines.expectation()?))
        }
        ["gets", method, target, "HTTP/1.1"] => {
            Ok(ConnAction::GetRequest(format!("{method} {target}"), Extent::Whole, lines.expectation()?))
        }
        ["gets", "no", "whole", "request"] => Ok(ConnAction::GetNoWholeRequest),
        ["gets", "no", "whole", "response"] => Ok(ConnAction::GetNoWholeResponse),
        ["ignores", "the", "rest"] => Ok(ConnAction::Ignore),
        ["gets", "head", status] => Ok(ConnAction::GetResponse(number(status)?, Extent::Head, lines.expectation()?)),
        ["gets", "truncated", status] => {
            Ok(ConnAction::GetResponse(number(status)?, Extent::Truncated, lines.expectation()?))
        }
        ["gets", status, "to", "HEAD"] => {
            Ok(ConnAction::GetResponse(number(status)?, Extent::ToHead, lines.expectation()?))
        }
        ["gets", status] => Ok(ConnAction::GetResponse(number(status)?, Extent::Whole, lines.expectation()?)),
        _ => Err(format!("no such step: {:?}; see e2e/src/script.rs", words.join(" "))),
    }
}

fn peer(name: &str) -> Result<Peer, String> {
    if name.starts_with("client") {
        return Ok(Peer::Client(name.to_owned()));
    }
    let (endpoint, connection) = name.split_once('/').unwrap_or((name, "1"));
    match number(connection)? {
        0 => Err("connections are counted from 1".into()),
        connection if endpoint.starts_with("origin") => Ok(Peer::Origin(endpoint.to_owned(), connection)),
        _ => Err(format!("{name:?} is not client..., origin..., balancer or counted")),
    }
}

fn connect(client: &str, how: &[&str]) -> Result<Action, String> {
    let Peer::Client(client) = peer(client)? else { return Err("only a client connects".into()) };
    let address = |text: &str| text.parse().map_err(|_| format!("{text:?} is not an IP address"));
    let (to, from) = match how {
        [] => ("listen", None),
        ["to", port] => (*port, None),
        ["from", ip] => ("listen", Some(address(ip)?)),
        ["to", port, "from", ip] => (*port, Some(address(ip)?)),
        _ => return Err("expected: connects [to PORT] [from IP]".into()),
    };
    Ok(Action::Connect { client, to: to.to_owned(), from })
}

fn counted(reason: &str, expect: f64) -> Action {
    Action::Metric { name: REASONS_METRIC.into(), labels: vec![("reason".into(), reason.into())], expect }
}

/// `name` or `name{label="value",...}`.
fn metric(series: &str, expect: f64) -> Result<Action, String> {
    let (name, labels) = match series.split_once('{') {
        None => (series, ""),
        Some((name, labels)) => (name, labels.strip_suffix('}').ok_or("labels without }")?),
    };
    let label = |text: &str| {
        let (key, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not label=\"value\""))?;
        Ok::<_, String>((key.to_owned(), value.trim_matches('"').to_owned()))
    };
    let labels = labels.split(',').filter(|text| !text.is_empty()).map(label).collect::<Result<_, _>>()?;
    Ok(Action::Metric { name: name.to_owned(), labels, expect })
}

fn signal(name: &str) -> Result<Signal, String> {
    match name {
        "HUP" => Ok(Signal::HUP),
        "INT" => Ok(Signal::INT),
        "TERM" => Ok(Signal::TERM),
        "USR1" => Ok(Signal::USR1),
        "USR2" => Ok(Signal::USR2),
        _ => Err(format!("unknown signal {name:?}")),
    }
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

/// The lines of a script, and the current position.
struct Lines<'a> {
    rest: std::iter::Peekable<std::iter::Enumerate<std::str::Lines<'a>>>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        Self { rest: text.lines().enumerate().peekable() }
    }

    /// The first line, a comment that describes the script.
    fn description(&mut self) -> Result<String, String> {
        let title = self.rest.peek().and_then(|(_, line)| line.strip_prefix("# ")).map(str::trim);
        title
            .filter(|title| !title.is_empty())
            .map(str::to_owned)
            .ok_or_else(|| "1: expected `# what must happen`".into())
    }

    /// The next step: its line number and its words. Comments and empty lines are skipped.
    fn step(&mut self) -> Result<Option<(usize, Vec<&'a str>)>, String> {
        for (index, line) in self.rest.by_ref() {
            let number = index + 1;
            match line.as_bytes().first() {
                None | Some(b'#') => {}
                Some(b' ' | b'|') => return Err(format!("{number}: belongs to no step: {line:?}")),
                Some(_) => return Ok(Some((number, line.split_ascii_whitespace().collect()))),
            }
        }
        Ok(None)
    }

    /// The bytes of the following `|` lines.
    fn block(&mut self) -> Result<Template, String> {
        let mut block = Template::default();
        let mut empty = true;
        while let Some((index, line)) = self.rest.next_if(|(_, line)| line.starts_with('|')) {
            let text = line.strip_prefix("| ").or(line.strip_prefix('|')).unwrap_or_default();
            block.extend(Template::parse(text).map_err(|error| format!("line {}: {error}", index + 1))?);
            empty = false;
        }
        if empty { Err("expected lines that begin with |".into()) } else { Ok(block) }
    }

    /// The following `|` lines, each indented by `indent` spaces.
    fn yaml(&mut self, indent: usize) -> String {
        let mut yaml = String::new();
        while let Some((_, line)) = self.rest.next_if(|(_, line)| line.starts_with('|')) {
            yaml.extend(std::iter::repeat_n(' ', indent));
            yaml.push_str(line.strip_prefix("| ").unwrap_or_default());
            yaml.push('\n');
        }
        yaml
    }

    fn optional_yaml(&mut self) -> Option<String> {
        Some(self.yaml(0)).filter(|yaml| !yaml.is_empty())
    }

    /// The following indented lines.
    fn expectation(&mut self) -> Result<Expectation, String> {
        let mut expect = Expectation::default();
        while let Some((index, line)) = self.rest.next_if(|(_, line)| line.starts_with(' ')) {
            expectation_line(line.trim_start(), &mut expect).map_err(|error| format!("line {}: {error}", index + 1))?;
        }
        Ok(expect)
    }
}

fn expectation_line(line: &str, expect: &mut Expectation) -> Result<(), String> {
    let field = |line: &str| {
        let (name, value) = line.split_once(':').ok_or_else(|| format!("{line:?} is not `name: value`"))?;
        Ok::<_, String>((name.to_owned(), Template::parse(value.trim())?))
    };
    match line.split_once(' ') {
        Some(("no", name)) => expect.absent.push(name.trim().to_owned()),
        Some(("body", text)) => expect.body = Some(Template::parse(text)?),
        Some(("raw", text)) => expect.raw.push(Template::parse(text)?),
        Some(("trailer", line)) => expect.trailers.push(field(line)?),
        _ => expect.fields.push(field(line)?),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script() {
        let text = "# Title.\n# More.\n\nlistener\n| idle_timeout: 1s\ncluster\n| connect_timeout: 1s\n\nclient sends\n| GET / HTTP/1.1\\r\\n\n\
                    | \\r\\n\norigin/2 gets GET / HTTP/1.1\n  host: a\n  no x\nclient gets 200\n  body hi\ncounted bad_host 2\n";
        let script = Script::parse(text).unwrap();
        assert_eq!(script.title, "Title.");
        assert!(script.config.contains("    to: web\n    idle_timeout: 1s\n"), "{}", script.config);
        assert!(script.config.ends_with("    connect_timeout: 1s\n"), "{}", script.config);
        let lines: Vec<usize> = script.steps.iter().map(|step| step.line).collect();
        assert_eq!(lines, [9, 12, 15, 17]);
        let Action::Conn(Peer::Origin(name, 2), ConnAction::GetRequest(line, Extent::Whole, expect)) =
            &script.steps[1].action
        else {
            panic!("{:?}", script.steps[1])
        };
        assert_eq!((name.as_str(), line.as_str()), ("origin", "GET /"));
        assert_eq!((expect.fields.len(), expect.absent.len()), (1, 1));
    }

    #[test]
    fn errors_name_the_line() {
        let check = |text: &str, expect: &str| assert_eq!(Script::parse(text).unwrap_err(), expect);
        check("client sends\n| x", "1: expected `# what must happen`");
        check("# T\nclient sends\n", "2: expected lines that begin with |");
        check("# T\nclient sends\n| \\q", "2: line 3: unknown escape at \"\\\\q\"");
        check("# T\n  host: a\n", "2: belongs to no step: \"  host: a\"");
        check("# T\nclient sings\n", "2: no such step: \"sings\"; see e2e/src/script.rs");
        check("# T\nclyent sends\n| x", "2: \"clyent\" is not client..., origin..., balancer or counted");
        check("# T\norigin/0 gets end\n", "2: connections are counted from 1");
        check("# T\nclient gets 2oo\n", "2: \"2oo\" is not a number");
        check("# T\nbalancer gets KILL\n", "2: unknown signal \"KILL\"");
    }
}
