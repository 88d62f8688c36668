//! Plays one script against its own balancer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use testkit::strict::{Field, Request, Response, ResponseTo};
use testkit::{Balancer, Conn, Exit, Failure, Origin, client, escape, free_port};

use crate::script::{Action, ConnAction, Expectation, Extent, Peer, Script, Step};
use crate::text::Template;

/// Fields that the balancer adds to nearly every request. A script about something else need not list them.
const FORWARDED: [&str; 4] = ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "forwarded"];

/// Plays all steps, then checks that nothing arrived that no step expected. The error names the line, and includes the balancer's log.
pub fn play(script: &Script, exe: &Path) -> Result<(), String> {
    let mut stage = Stage::set(script, exe).map_err(|failure| failure.to_string())?;
    for Step { line, action } in &script.steps {
        if let Err(failure) = stage.act(action) {
            let log = stage.balancer.log();
            return Err(format!("line {line}: {failure}\nstderr of the balancer:\n{log}"));
        }
    }
    stage.nothing_left().map_err(|failure| format!("at the end: {failure}\nstderr:\n{}", stage.balancer.log()))
}

/// Everything that takes part.
struct Stage<'a> {
    config: &'a str,
    balancer: Balancer,
    origins: BTreeMap<String, Origin>,
    clients: BTreeMap<String, Conn>,
    /// The ports in the config, and those of the clients once they are connected.
    ports: BTreeMap<String, u16>,
}

impl<'a> Stage<'a> {
    fn set(script: &'a Script, exe: &Path) -> Result<Self, Failure> {
        let mut origins = BTreeMap::new();
        let mut ports = BTreeMap::new();
        for name in port_names(&script.config) {
            let port = if name.starts_with("origin") {
                let origin = Origin::listen(&name)?;
                let port = origin.address().port();
                origins.insert(name.clone(), origin);
                port
            } else {
                free_port()?
            };
            ports.insert(name, port);
        }
        let balancer = Balancer::start(exe, &script.config, ports.clone())?;
        Ok(Self { config: &script.config, balancer, origins, clients: BTreeMap::new(), ports })
    }

    fn act(&mut self, action: &Action) -> Result<(), Failure> {
        match action {
            Action::Connect { client, to, from } => self.connect(client, to, *from),
            Action::Conn(peer, action) => self.act_on_conn(peer, action),
            Action::NothingYet(peer) => self.nothing_yet(peer),
            Action::Reload { config, taken } => self.reload(config.as_deref(), *taken),
            Action::Signal(signal) => self.balancer.signal(*signal),
            Action::Exits(code) => match self.balancer.exit()? {
                Exit::Code(got) if got == *code => Ok(()),
                got => Err(Failure(format!("the balancer ended with {got:?}, expected code {code}"))),
            },
            Action::Metric { name, labels, expect } => self.balancer.metric_becomes(name, &borrowed(labels), *expect),
            Action::MetricReaches { name, labels, at_least } => {
                self.balancer.metric_reaches(name, &borrowed(labels), *at_least)
            }
        }
    }

    fn act_on_conn(&mut self, peer: &Peer, action: &ConnAction) -> Result<(), Failure> {
        if let Peer::Client(name) = peer
            && !self.clients.contains_key(name)
        {
            self.connect(name, "listen", None)?;
        }
        if let (Peer::Origin(name, 1), ConnAction::GetNoWholeRequest) = (peer, action) {
            return origin(&mut self.origins, name)?.no_whole_request();
        }
        let Self { clients, origins, ports, .. } = self;
        let conn = conn(clients, origins, peer)?;
        let bytes = |template: &Template| template.bytes(ports).map_err(Failure);
        match action {
            ConnAction::Send(block, None) => conn.send(&bytes(block)?),
            ConnAction::Send(block, Some(size)) => conn.send_pieces(&bytes(block)?, *size),
            ConnAction::HalfClose => conn.half_close(),
            ConnAction::Close => {
                conn.close();
                Ok(())
            }
            ConnAction::Reset => conn.reset(),
            ConnAction::GetBytes(block) => conn.expect_bytes(&bytes(block)?),
            ConnAction::GetEnd => conn.expect_end().map(|_| ()),
            ConnAction::GetNoWholeRequest => conn.no_whole_request(),
            ConnAction::GetNoWholeResponse => conn.no_whole_response(),
            ConnAction::Ignore => {
                conn.ignore_rest();
                Ok(())
            }
            ConnAction::GetRequest(line, extent, expect) => {
                let request = if *extent == Extent::Whole { conn.request() } else { conn.request_head() }?;
                check_raw(conn, expect, ports)?;
                check_request(&request, line, expect, ports).map_err(|what| about(conn, &what))
            }
            ConnAction::GetResponse(status, extent, expect) => {
                let response = match extent {
                    Extent::Whole => conn.response(ResponseTo::Other)?,
                    Extent::ToHead => conn.response(ResponseTo::Head)?,
                    Extent::Head => conn.response_head()?,
                    Extent::Truncated => conn.truncated_response()?,
                };
                check_raw(conn, expect, ports)?;
                check_response(&response, *status, expect, ports).map_err(|what| about(conn, &what))
            }
        }
    }

    fn connect(&mut self, name: &str, to: &str, from: Option<std::net::IpAddr>) -> Result<(), Failure> {
        let conn = client::connect(name, self.balancer.address(to)?, from)?;
        // It has no address if it was reset at once.
        if let Ok(local) = conn.local_address() {
            self.ports.insert(name.to_owned(), local.port());
        }
        self.clients.insert(name.to_owned(), conn);
        Ok(())
    }

    fn nothing_yet(&mut self, peer: &Peer) -> Result<(), Failure> {
        let told = match peer {
            Peer::Origin(name, 1) => origin(&mut self.origins, name)?.unclaimed()?,
            _ => {
                let conn = conn(&mut self.clients, &mut self.origins, peer)?;
                let bytes = conn.unclaimed()?;
                if bytes.is_empty() { Vec::new() } else { vec![format!("{} got\n{}", conn.name(), escape(&bytes))] }
            }
        };
        if told.is_empty() { Ok(()) } else { Err(Failure(format!("expected nothing, but {}", told.join("\n")))) }
    }

    fn reload(&mut self, config: Option<&str>, taken: bool) -> Result<(), Failure> {
        const RELOADS: &str = "steelyard_reloads_total";
        let result = if taken { "good" } else { "refused" };
        let before = self.balancer.metric(RELOADS, &[("result", result)])?;
        self.balancer.write_config(config.unwrap_or(self.config))?;
        self.balancer.signal(testkit::Signal::HUP)?;
        self.balancer.metric_reaches(RELOADS, &[("result", result)], before + 1.0)
    }

    fn nothing_left(&mut self) -> Result<(), Failure> {
        for conn in self.clients.values_mut() {
            let bytes = conn.unclaimed()?;
            if !bytes.is_empty() {
                return Err(Failure(format!(
                    "{} received bytes that no step expects:\n{}",
                    conn.name(),
                    escape(&bytes)
                )));
            }
        }
        for origin in self.origins.values_mut() {
            if let Some(told) = origin.unclaimed()?.first() {
                return Err(Failure(told.clone()));
            }
        }
        Ok(())
    }
}

/// Every `{name}` that could be a port: lower case letters, digits and underscores.
fn port_names(config: &str) -> BTreeSet<String> {
    let is_name = |text: &&str| {
        text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    let pieces: Vec<&str> = config.split('{').collect();
    // `${name}` is a variable of the balancer.
    let ours = pieces.windows(2).filter(|pair| !pair[0].ends_with('$')).map(|pair| pair[1]);
    let inside = ours.filter_map(|rest| rest.split_once('}').map(|(name, _)| name));
    inside.filter(is_name).map(str::to_owned).collect()
}

fn origin<'o>(origins: &'o mut BTreeMap<String, Origin>, name: &str) -> Result<&'o mut Origin, Failure> {
    origins.get_mut(name).ok_or_else(|| Failure(format!("the config has no {{{name}}}")))
}

fn conn<'c>(
    clients: &'c mut BTreeMap<String, Conn>,
    origins: &'c mut BTreeMap<String, Origin>,
    peer: &Peer,
) -> Result<&'c mut Conn, Failure> {
    match peer {
        Peer::Client(name) => clients.get_mut(name).ok_or_else(|| Failure(format!("{name} is not connected"))),
        Peer::Origin(name, number) => origin(origins, name)?.connection(*number),
    }
}

fn about(conn: &Conn, what: &str) -> Failure {
    Failure(format!("{}: {what}\nreceived in all:\n{}", conn.name(), escape(conn.received())))
}

fn check_request(
    request: &Request,
    line: &str,
    expect: &Expectation,
    ports: &BTreeMap<String, u16>,
) -> Result<(), String> {
    let got = format!("{} {}", request.method, request.target);
    if got != line {
        return Err(format!("got the request {got:?}, expected {line:?}"));
    }
    let is_forwarded = |name: &str| FORWARDED.iter().any(|forwarded| name.eq_ignore_ascii_case(forwarded));
    let about_forwarded =
        expect.fields.iter().any(|(name, _)| is_forwarded(name)) || expect.absent.iter().any(|name| is_forwarded(name));
    check_listed("header", &request.headers, expect, &expect.fields, ports)?;
    let unlisted = request.headers.iter().filter(|field| about_forwarded || !is_forwarded(&field.name));
    all_listed("header", unlisted, &expect.fields)?;
    check_trailers(&request.trailers, expect, ports)?;
    let body = expect.body.clone().unwrap_or_default().bytes(ports)?;
    check_body(&request.body, &body)
}

fn check_response(
    response: &Response,
    status: u16,
    expect: &Expectation,
    ports: &BTreeMap<String, u16>,
) -> Result<(), String> {
    if response.status != status {
        return Err(format!("got status {}, expected {status}", response.status));
    }
    check_listed("header", &response.headers, expect, &expect.fields, ports)?;
    check_trailers(&response.trailers, expect, ports)?;
    expect.body.as_ref().map_or(Ok(()), |body| check_body(&response.body, &body.bytes(ports)?))
}

fn check_trailers(trailers: &[Field], expect: &Expectation, ports: &BTreeMap<String, u16>) -> Result<(), String> {
    check_listed("trailer", trailers, &Expectation::default(), &expect.trailers, ports)?;
    all_listed("trailer", trailers.iter(), &expect.trailers)
}

/// Fields with the same name are compared in order. The order of fields with different names has no meaning and is not compared (RFC 9110
/// section 5.3).
fn check_listed(
    kind: &str,
    fields: &[Field],
    expect: &Expectation,
    listed: &[(String, Template)],
    ports: &BTreeMap<String, u16>,
) -> Result<(), String> {
    for (name, _) in listed {
        let same = listed.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        let want = same.map(|(_, value)| value.bytes(ports)).collect::<Result<Vec<_>, _>>()?;
        let got = testkit::strict::values(fields, name);
        if got != want {
            let show =
                |values: &mut dyn Iterator<Item = &[u8]>| values.map(escape).collect::<Vec<_>>().join("\" and \"");
            let (want, got) = (show(&mut want.iter().map(Vec::as_slice)), show(&mut got.into_iter()));
            return Err(format!("{kind} {name} is \"{got}\", expected \"{want}\""));
        }
    }
    let forbidden = expect.absent.iter().find(|name| !testkit::strict::values(fields, name).is_empty());
    forbidden.map_or(Ok(()), |name| Err(format!("{kind} {name} is there, and should not be")))
}

fn all_listed<'f>(
    kind: &str,
    mut fields: impl Iterator<Item = &'f Field>,
    listed: &[(String, Template)],
) -> Result<(), String> {
    let surprise = fields.find(|field| !listed.iter().any(|(name, _)| name.eq_ignore_ascii_case(&field.name)));
    surprise.map_or(Ok(()), |field| {
        Err(format!("{kind} \"{}: {}\" is there, and not listed", field.name, escape(&field.value)))
    })
}

fn check_body(got: &[u8], want: &[u8]) -> Result<(), String> {
    if got == want {
        return Ok(());
    }
    Err(format!(
        "got a body of {} bytes, expected {}:\n{}\nexpected\n{}",
        got.len(),
        want.len(),
        escape(got),
        escape(want)
    ))
}

fn check_raw(conn: &Conn, expect: &Expectation, ports: &BTreeMap<String, u16>) -> Result<(), Failure> {
    for raw in &expect.raw {
        let raw = raw.bytes(ports).map_err(Failure)?;
        if !conn.received().windows(raw.len().max(1)).any(|window| window == raw) {
            return Err(about(conn, &format!("nowhere {:?}", escape(&raw))));
        }
    }
    Ok(())
}

fn borrowed(labels: &[(String, String)]) -> Vec<(&str, &str)> {
    labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use testkit::strict;

    use super::*;
    use crate::script::Script;

    /// The expectation in these lines.
    fn expectation(lines: &str) -> Expectation {
        let script = Script::parse(&format!("# T\norigin gets GET / HTTP/1.1\n{lines}")).unwrap();
        match script.steps.into_iter().next().unwrap().action {
            Action::Conn(_, ConnAction::GetRequest(_, _, expect)) => expect,
            action => panic!("{action:?}"),
        }
    }

    #[test]
    fn requests_are_compared_whole() {
        let check = |lines: &str, bytes: &str, expect: Result<(), &str>| {
            let (request, _) = strict::request(bytes.as_bytes()).unwrap().unwrap();
            let got = check_request(&request, "GET /", &expectation(lines), &BTreeMap::new());
            assert_eq!(
                got.as_ref().map_err(|error| error.lines().next().unwrap_or_default()),
                expect.as_ref().map_err(|e| *e)
            );
        };
        let get = |more: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{more}");
        check("  host: a\n", &get("\r\n"), Ok(()));
        check("  host: a\n", &get("x-forwarded-for: b\r\n\r\n"), Ok(()));
        check("  host: b\n", &get("\r\n"), Err("header host is \"a\", expected \"b\""));
        check("  host: a\n", &get("x: y\r\n\r\n"), Err("header \"x: y\" is there, and not listed"));
        check("  host: a\n  x: y\n", &get("\r\n"), Err("header x is \"\", expected \"y\""));
        check(
            "  host: a\n  x: 1\n  x: 2\n",
            &get("x: 2\r\nx: 1\r\n\r\n"),
            Err("header x is \"2\" and \"1\", expected \"1\" and \"2\""),
        );
        check(
            "  host: a\n  no forwarded\n",
            &get("x-forwarded-for: b\r\n\r\n"),
            Err("header \"x-forwarded-for: b\" is there, and not listed"),
        );
        check(
            "  host: a\n  no forwarded\n",
            &get("forwarded: b\r\n\r\n"),
            Err("header forwarded is there, and should not be"),
        );
        let body = get("content-length: 2\r\n\r\nhi");
        check("  host: a\n  content-length: 2\n  body hi\n", &body, Ok(()));
        check("  host: a\n  content-length: 2\n", &body, Err("got a body of 2 bytes, expected 0:"));
        let trailers = get("transfer-encoding: chunked\r\n\r\n0\r\nt: u\r\n\r\n");
        check("  host: a\n  transfer-encoding: chunked\n  trailer t: u\n", &trailers, Ok(()));
        check("  host: a\n  transfer-encoding: chunked\n", &trailers, Err("trailer \"t: u\" is there, and not listed"));
        check("", "GET /x HTTP/1.1\r\nHost: a\r\n\r\n", Err("got the request \"GET /x\", expected \"GET /\""));
    }

    #[test]
    fn ports_are_named_once() {
        let names = port_names("{admin} {listen} {origin_a} {origin_a} {x: y} {http: /} {Upper}");
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["admin", "listen", "origin_a"]);
    }
}
