//! The handshake that turns a connection of HTTP/1.1 into one of WebSocket (RFC 6455 section 4.1).

use std::io;

use tokio::io::AsyncWriteExt;
use tungstenite::handshake::client::generate_key;
use tungstenite::handshake::derive_accept_key;

use super::WebSocketLoad;
use crate::buffer::ReadBuffer;
use crate::framing::{has_token, invalid};
use crate::load::socket::Socket;

/// The maximum number of header fields of a response; more are an error.
const HEADERS_MAX: usize = 100;

/// Headers that the handshake sets. No extension is offered, because the load understands none.
pub(super) const OWN_HEADERS: [&str; 7] = [
    "connection",
    "upgrade",
    "content-length",
    "transfer-encoding",
    "sec-websocket-key",
    "sec-websocket-version",
    "sec-websocket-extensions",
];

/// Asks for the upgrade. Returns what has arrived after the response, and how many bytes were sent and received.
///
/// # Errors
/// The server does not accept the upgrade, or the connection breaks.
pub(super) async fn upgrade(socket: &mut Socket, load: &WebSocketLoad) -> io::Result<(Vec<u8>, u64, u64)> {
    let key = generate_key();
    let request = request(load, &key);
    socket.write_all(request.as_bytes()).await?;
    socket.flush().await?;
    let mut input = ReadBuffer::new();
    let mut received = 0;
    loop {
        let count = input.fill(socket).await?;
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
        }
        received += count as u64;
        if let Some(length) = accepted(input.unused(), &derive_accept_key(key.as_bytes()))? {
            input.consume(length);
            return Ok((input.unused().to_vec(), request.len() as u64, received));
        }
    }
}

fn request(load: &WebSocketLoad, key: &str) -> String {
    let mut request = format!("GET {} HTTP/1.1\r\n", load.target.path);
    if !load.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        request.push_str(&format!("host: {}\r\n", load.target.host));
    }
    request.push_str("connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n");
    request.push_str(&format!("sec-websocket-key: {key}\r\n"));
    for (name, value) in &load.headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    request
}

/// Judges a response, and returns the length of its head. `None` if more of it must arrive.
fn accepted(input: &[u8], accept_key: &str) -> io::Result<Option<usize>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(input) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
    };
    let status = response.code.unwrap_or_default();
    if status != 101 {
        return Err(io::Error::other(format!("the server answers the upgrade with status {status} instead of 101")));
    }
    let has = |name: &str, is_right: &dyn Fn(&[u8]) -> bool| {
        response.headers.iter().any(|header| header.name.eq_ignore_ascii_case(name) && is_right(header.value))
    };
    if !has("upgrade", &|value| has_token(value, "websocket"))
        || !has("connection", &|value| has_token(value, "upgrade"))
    {
        return Err(invalid("the server upgrades to another protocol than WebSocket"));
    }
    if !has("sec-websocket-accept", &|value| value.trim_ascii() == accept_key.as_bytes()) {
        return Err(invalid("sec-websocket-accept of the response does not fit the key of the request"));
    }
    if has("sec-websocket-extensions", &|value| !value.trim_ascii().is_empty()) {
        return Err(invalid("the server uses an extension that was not offered"));
    }
    Ok(Some(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(head: &str, expect: Result<Option<usize>, &str>) {
        let found = accepted(head.as_bytes(), "K=").map_err(|error| error.to_string());
        match (&found, expect) {
            (Ok(length), Ok(expect)) => assert_eq!(*length, expect, "{head:?}"),
            (Err(why), Err(expect)) => assert!(why.contains(expect), "{head:?}: {why}"),
            _ => panic!("{head:?}: {found:?}"),
        }
    }

    #[test]
    fn responses_to_an_upgrade() {
        let begin = "HTTP/1.1 101 Switching Protocols\r\n";
        let right =
            format!("{begin}Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Accept: K=\r\n\r\n");
        check(&right, Ok(Some(right.len())));
        check(&format!("{right}\u{1}"), Ok(Some(right.len())));
        check(begin, Ok(None));
        check("HTTP/1.1 404 Not Found\r\n\r\n", Err("status 404 instead of 101"));
        check("HTTP/1.1 200 OK\r\n\r\n", Err("status 200"));
        check("SSH-2.0-x\r\n\r\n", Err(""));
        check(&right.replace("Upgrade: WebSocket", "Upgrade: h2c"), Err("another protocol"));
        check(&right.replace("keep-alive, Upgrade", "close"), Err("another protocol"));
        check(&right.replace("K=", "L="), Err("does not fit the key"));
        let extended = right.replace("Upgrade: W", "Sec-WebSocket-Extensions: permessage-deflate\r\nUpgrade: W");
        check(&extended, Err("an extension that was not offered"));
    }
}
