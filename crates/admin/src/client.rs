//! The client of the control API. It is blocking and uses one connection per request, because the commands that use it
//! have nothing else to do meanwhile.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::{AdminAddress, Secret};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::feed::Wanted;
use crate::query::path;
use crate::{ADMIN_HEADER, TraceQuestion, Within};

/// The timeout of the TCP handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest time without data. It is longer than the server allows for its slowest response, a reload.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(65);
/// The limit on a response, in bytes. The metrics of 10,000 routes take about 100 MiB.
const ANSWER_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// The limit on the head of a response, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// How an alert of TLS begins (RFC 8446 section 5.1). No response of HTTP does.
const TLS_ALERT: &[u8] = &[21, 3];
/// The limit on a reason why there is no stream, in bytes.
const REASON_BYTES_MAX: u64 = 64 * 1024;

/// A running Steelyard.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its admin address.
    pub address: AdminAddress,
    /// What says who this is; `None` where whoever can connect may do everything.
    pub login: Option<Login>,
    /// How the connection is encrypted; `None`: it is not.
    pub tls: Option<ClientTls>,
}

/// What a client says who it is with.
#[derive(Clone, Debug)]
pub enum Login {
    /// A token.
    Token(Secret),
    /// A user, whose name has no `:`, and a password.
    Password(String, Secret),
}

impl Login {
    /// The value of `Authorization`.
    fn value(&self) -> String {
        match self {
            Self::Token(Secret(token)) => format!("Bearer {token}"),
            Self::Password(user, Secret(password)) => {
                format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
            }
        }
    }
}

/// The TLS of a client.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl ClientTls {
    /// `config` says what is trusted, and has the certificate that says who this is. `name` is what the certificate of the admin address must
    /// have.
    ///
    /// # Errors
    /// The name is neither a DNS name nor an address.
    pub fn new(config: Arc<ClientConfig>, name: &str) -> Result<Self, String> {
        let wrong = |_| format!("{name} is not a name or an address that a certificate can have");
        Ok(Self { config, name: ServerName::try_from(name.to_owned()).map_err(wrong)? })
    }
}

impl From<AdminAddress> for Client {
    fn from(address: AdminAddress) -> Self {
        Self { address, login: None, tls: None }
    }
}

impl From<SocketAddr> for Client {
    fn from(address: SocketAddr) -> Self {
        AdminAddress::from(address).into()
    }
}

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
    /// What listens there expects TLS.
    Encrypted {
        /// The address.
        address: AdminAddress,
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
pub fn get(client: &Client, path: &str) -> Result<Vec<u8>, ClientError> {
    ask(client, "GET", path, "")
}

/// Sends a `POST` of `body` to `path` and returns the body of the response.
///
/// # Errors
/// See [`ClientError`].
pub fn post(client: &Client, path: &str, body: &str) -> Result<Vec<u8>, ClientError> {
    ask(client, "POST", path, body)
}

/// The events of a running Steelyard, one after the other. See [`events`].
#[derive(Debug)]
pub struct EventStream {
    address: AdminAddress,
    lines: BufReader<Connected>,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its kind: `second`, `counters`, `request` or `passed_over`.
    pub name: String,
    /// JSON.
    pub data: String,
}

/// Opens the stream of events; `path` is that of [`events_path`].
///
/// # Errors
/// See [`ClientError`].
pub fn events(client: &Client, path: &str) -> Result<EventStream, ClientError> {
    let address = client.address.clone();
    let broken = |source| ClientError::Broken { address: client.address.clone(), source };
    let mut connected = connect(client).map_err(|source| ClientError::Connect { address: address.clone(), source })?;
    send(&mut connected, "GET", path, "", client.login.as_ref()).map_err(broken)?;
    let mut lines = BufReader::new(connected);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let read = (&mut lines).take(HEAD_BYTES_MAX as u64).read_line(&mut head).map_err(broken)?;
        if read == 0 || head.len() > HEAD_BYTES_MAX {
            return Err(ClientError::Foreign { address });
        }
    }
    let foreign = || ClientError::Foreign { address: address.clone() };
    let status =
        head.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)).and_then(|word| word.parse().ok());
    match status.ok_or_else(foreign)? {
        200 if head.to_ascii_lowercase().contains("content-type: text/event-stream") => {
            Ok(EventStream { address, lines })
        }
        200 => Err(foreign()),
        status => {
            let mut why = String::new();
            let _ = lines.take(REASON_BYTES_MAX).read_to_string(&mut why);
            Err(ClientError::Refused { status, why: why.trim_end().to_owned() })
        }
    }
}

/// The path of the stream of events, with those that are wanted.
pub fn events_path(wanted: Wanted) -> String {
    let is = |wanted: bool| wanted.then_some("1");
    path(
        "/events",
        &[
            ("overview", is(wanted.overview)),
            ("counters", is(wanted.counters)),
            ("requests", is(wanted.requests)),
            ("all", is(wanted.all_requests)),
        ],
    )
}

impl EventStream {
    /// The next event; `None` if the stream has ended.
    ///
    /// # Errors
    /// The connection broke, or nothing came for too long, or what came is no event.
    pub fn next_event(&mut self) -> Result<Option<Event>, ClientError> {
        let mut event = Event { name: String::new(), data: String::new() };
        loop {
            let mut line = String::new();
            let read = (&mut self.lines).take(ANSWER_BYTES_MAX).read_line(&mut line);
            let broken = |source| ClientError::Broken { address: self.address.clone(), source };
            if read.map_err(broken)? == 0 {
                return Ok(None);
            }
            let line = line.trim_end_matches(['\r', '\n']);
            if let Some(name) = line.strip_prefix("event: ") {
                event.name = name.to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                event.data = data.to_owned();
            } else if line.is_empty() && !event.name.is_empty() {
                return Ok(Some(event));
            }
        }
    }
}

/// A connection to the admin address.
#[derive(Debug)]
enum Connected {
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    Unix(UnixStream),
}

impl Read for Connected {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Connected {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Ok(()),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// Connects, and sets how long the other side may be silent.
fn connect(client: &Client) -> io::Result<Connected> {
    let timeout = Some(SILENCE_TIMEOUT);
    match &client.address {
        AdminAddress::Socket(socket) => {
            let stream = TcpStream::connect_timeout(socket, CONNECT_TIMEOUT)?;
            stream.set_read_timeout(timeout)?;
            stream.set_write_timeout(timeout)?;
            let Some(ClientTls { config, name }) = &client.tls else { return Ok(Connected::Tcp(stream)) };
            let tls = ClientConnection::new(Arc::clone(config), name.clone()).map_err(io::Error::other)?;
            Ok(Connected::Tls(Box::new(StreamOwned::new(tls, stream))))
        }
        AdminAddress::Path(socket) => {
            let stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(timeout)?;
            stream.set_write_timeout(timeout)?;
            Ok(Connected::Unix(stream))
        }
    }
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

/// The path that logs the requests of a route for some seconds, for [`post`].
pub fn debug_route_path(route: &str, seconds: u64) -> String {
    path("/debug/route", &[("route", Some(route)), ("seconds", Some(&seconds.to_string()))])
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

fn ask(client: &Client, method: &str, path: &str, body: &str) -> Result<Vec<u8>, ClientError> {
    let address = &client.address;
    let connected = connect(client).map_err(|source| ClientError::Connect { address: address.clone(), source })?;
    let exchanged = exchange(connected, method, path, body, client.login.as_ref());
    let answer = exchanged.map_err(|source| ClientError::Broken { address: address.clone(), source })?;
    if answer.starts_with(TLS_ALERT) {
        return Err(ClientError::Encrypted { address: address.clone() });
    }
    let (status, body) = read(&answer).ok_or_else(|| ClientError::Foreign { address: address.clone() })?;
    match status {
        200 => Ok(body.to_vec()),
        _ => Err(ClientError::Refused { status, why: String::from_utf8_lossy(body).trim_end().to_owned() }),
    }
}

fn exchange(mut stream: Connected, method: &str, path: &str, body: &str, login: Option<&Login>) -> io::Result<Vec<u8>> {
    send(&mut stream, method, path, body, login)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}

fn send(stream: &mut Connected, method: &str, path: &str, body: &str, login: Option<&Login>) -> io::Result<()> {
    // A response to HTTP/1.0 is never chunked and ends with the connection.
    let length = body.len();
    let login = login.map_or_else(String::new, |login| format!("Authorization: {}\r\n", login.value()));
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\n{login}{ADMIN_HEADER}: 1\r\nContent-Length: \
         {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    stream.flush()
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
            Self::Encrypted { address } => {
                write!(
                    f,
                    "{address} expects TLS: write `--admin https://NAME:PORT`, with a name that its certificate has"
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
            Self::Encrypted { .. } | Self::Foreign { .. } | Self::Refused { .. } => None,
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
    fn logins() {
        let check = |login: Login, expect: &str| assert_eq!(login.value(), expect);
        check(Login::Token(Secret("0123456789abcdef".into())), "Bearer 0123456789abcdef");
        // RFC 7617 sections 2 and 2.1.
        check(Login::Password("Aladdin".into(), Secret("open sesame".into())), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        check(Login::Password("test".into(), Secret("123£".into())), "Basic dGVzdDoxMjPCow==");
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
