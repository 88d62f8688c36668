//! The client of the control API. It is blocking and uses one connection per request, because the commands that use it
//! have nothing else to do meanwhile.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use model::AdminAddress;

use crate::query::path;
use crate::{ADMIN_HEADER, TraceQuestion, Within};

/// The timeout of the TCP handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest time without data. It is longer than the server allows for its slowest response, a reload.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(65);
/// The limit on a response, in bytes. The metrics of 10,000 routes take about 100 MiB.
const ANSWER_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Why there is no response, or none with status 200.
#[derive(Debug)]
pub enum ClientError {
    /// The connection failed.
    Connect {
        /// The address.
        address: AdminAddress,
        /// The cause.
        source: io::Error,
    },
    /// The connection broke, or there was no data for too long.
    Broken {
        /// The address.
        address: AdminAddress,
        /// The cause.
        source: io::Error,
    },
    /// What listens there does not respond as Steelyard does.
    Foreign {
        /// The address.
        address: AdminAddress,
    },
    /// Steelyard responded with a status other than 200.
    Refused {
        /// The status.
        status: u16,
        /// The reason for people, in one or more lines.
        why: String,
    },
}

/// Sends a `GET` for `path` and returns the body of the response.
///
/// # Errors
/// See [`ClientError`].
pub fn get(address: &AdminAddress, path: &str) -> Result<Vec<u8>, ClientError> {
    ask(address, "GET", path, "")
}

/// Sends a `POST` of `body` to `path` and returns the body of the response.
///
/// # Errors
/// See [`ClientError`].
pub fn post(address: &AdminAddress, path: &str, body: &str) -> Result<Vec<u8>, ClientError> {
    ask(address, "POST", path, body)
}

/// The path that drains an endpoint or puts it back in service, for [`post`].
pub fn endpoint_path(within: Within<'_>, endpoint: &str, draining: bool) -> String {
    let (cluster, vip) = match within {
        Within::All => (None, None),
        Within::Cluster(name) => (Some(name), None),
        Within::Vip(name) => (None, Some(name)),
    };
    let verb = if draining { "/endpoint/drain" } else { "/endpoint/ready" };
    path(verb, &[("endpoint", Some(endpoint)), ("cluster", cluster), ("vip", vip)])
}

/// The path that puts a route into maintenance or back into service, for [`post`].
pub fn maintenance_path(listener: Option<&str>, route: &str, on: bool) -> String {
    let verb = if on { "/maintenance/on" } else { "/maintenance/off" };
    path(verb, &[("route", Some(route)), ("listener", listener)])
}

/// The path that adds a vip, for [`post`]. The body is the vip's description.
pub fn vip_add_path(name: &str) -> String {
    path("/vip/add", &[("name", Some(name))])
}

/// The path that removes a vip, for [`post`].
pub fn vip_remove_path(name: &str) -> String {
    path("/vip/remove", &[("name", Some(name))])
}

/// The path that lists flows, for [`get`].
pub fn flows_path(vip: Option<&str>, limit: usize) -> String {
    path("/flows", &[("vip", vip), ("limit", Some(&limit.to_string()))])
}

/// The path that traces a packet, for [`get`].
pub fn trace_path(question: &TraceQuestion) -> String {
    let TraceQuestion { vip, from, interface, flags } = question;
    let optional = [("interface", interface.as_deref()), ("flags", flags.as_deref())];
    path("/trace", &[&[("vip", Some(vip.as_str())), ("from", Some(from.as_str()))], optional.as_slice()].concat())
}

fn ask(address: &AdminAddress, method: &str, path: &str, body: &str) -> Result<Vec<u8>, ClientError> {
    let timeout = Some(SILENCE_TIMEOUT);
    let connected = match address {
        AdminAddress::Socket(socket) => TcpStream::connect_timeout(socket, CONNECT_TIMEOUT).map(|stream| {
            let set = stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout));
            set.and_then(|()| exchange(stream, method, path, body))
        }),
        AdminAddress::Path(socket) => UnixStream::connect(socket).map(|stream| {
            let set = stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout));
            set.and_then(|()| exchange(stream, method, path, body))
        }),
    };
    let exchanged = connected.map_err(|source| ClientError::Connect { address: address.clone(), source })?;
    let answer = exchanged.map_err(|source| ClientError::Broken { address: address.clone(), source })?;
    let (status, body) = read(&answer).ok_or_else(|| ClientError::Foreign { address: address.clone() })?;
    match status {
        200 => Ok(body.to_vec()),
        _ => Err(ClientError::Refused { status, why: String::from_utf8_lossy(body).trim_end().to_owned() }),
    }
}

fn exchange(mut stream: impl Read + Write, method: &str, path: &str, body: &str) -> io::Result<Vec<u8>> {
    // A response to HTTP/1.0 is never chunked and ends with the connection.
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\n{ADMIN_HEADER}: 1\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Returns status and body of a complete response; `None` if it is not HTTP, was cut short, or is an error on an HTML page. Errors of
/// Steelyard are plain text.
fn read(answer: &[u8]) -> Option<(u16, &[u8])> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let (head, body) = (std::str::from_utf8(answer.get(..end)?).ok()?, answer.get(end + 4..)?);
    let mut lines = head.split("\r\n");
    let status: u16 = lines.next()?.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    let fields: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(':')).collect();
    let field =
        |name: &str| fields.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim());
    let is_page = field("content-type").is_some_and(|kind| kind.to_ascii_lowercase().starts_with("text/html"));
    let is_foreign = is_page && status != 200;
    (!is_foreign && field("content-length")?.parse() == Ok(body.len())).then_some((status, body))
}

/// Whether nothing listens: a socket whose process has ended refuses connections, and a socket that was removed is not
/// found.
fn is_nobody_there(address: &AdminAddress, error: &io::Error) -> bool {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => true,
        io::ErrorKind::NotFound => matches!(address, AdminAddress::Path(_)),
        _ => false,
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect { address, source } if is_nobody_there(address, source) => {
                write!(
                    f,
                    "nothing listens on {address}: is steelyard running, and does its file have `admin: {address}`?"
                )
            }
            Self::Connect { address: address @ AdminAddress::Path(_), source }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                write!(f, "cannot connect to {address}: only root and the user that steelyard runs as may connect")
            }
            Self::Connect { address, source } => write!(f, "cannot connect to {address}: {source}"),
            Self::Broken { address, source } => {
                write!(
                    f,
                    "{address} accepted the connection but did not respond: {source}; is this the address of `admin:`?"
                )
            }
            Self::Foreign { address } => {
                write!(
                    f,
                    "what listens on {address} does not respond as steelyard does: is this the address of `admin:`?"
                )
            }
            Self::Refused { status: 404, why } if why.is_empty() => f.write_str("not found"),
            Self::Refused { status, why } if why.is_empty() => write!(f, "refused with status {status}"),
            Self::Refused { why, .. } => f.write_str(why),
        }
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connect { source, .. } | Self::Broken { source, .. } => Some(source),
            Self::Foreign { .. } | Self::Refused { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        let check = |answer: &str, expect: Option<(u16, &str)>| {
            assert_eq!(read(answer.as_bytes()), expect.map(|(status, body)| (status, body.as_bytes())), "{answer:?}");
        };
        check("HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nok\n", Some((200, "ok\n")));
        check("HTTP/1.1 503 Service Unavailable\r\nA: b\r\nContent-Length:0\r\n\r\n", Some((503, "")));
        check("HTTP/1.0 404 Not Found\r\nContent-Type: Text/HTML;charset=utf-8\r\nContent-Length: 3\r\n\r\nok\n", None);
        check("HTTP/1.0 200 OK\r\ncontent-length: 4\r\n\r\nok\n", None);
        check("HTTP/1.0 200 OK\r\n\r\nok\n", None);
        check("HTTP/1.0 200 OK\r\ncontent-length: 3\r\n", None);
        check("SSH-2.0-OpenSSH_9.2\r\n", None);
        check("", None);
    }

    #[test]
    fn paths() {
        let drain = endpoint_path(Within::All, "10.0.0.7:80", true);
        assert_eq!(drain, "/endpoint/drain?endpoint=10.0.0.7%3A80");
        let ready = endpoint_path(Within::Vip("a b"), "x\r\ny", false);
        assert_eq!(ready, "/endpoint/ready?endpoint=x%0D%0Ay&vip=a%20b");
        assert_eq!(flows_path(None, 5), "/flows?limit=5");
        let question =
            TraceQuestion { vip: "web".into(), from: "10.0.0.1".into(), interface: None, flags: Some("ack".into()) };
        assert_eq!(trace_path(&question), "/trace?vip=web&from=10.0.0.1&flags=ack");
    }
}
