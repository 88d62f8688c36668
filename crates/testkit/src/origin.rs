//! An endpoint that accepts connections; the test decides what each one answers.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Conn, Failure, PATIENCE};

/// A listening socket and the connections it has accepted, in order.
///
/// It accepts only on request. Until then, connections wait in the kernel's queue, and the balancer sees them as
/// established.
pub struct Origin {
    name: String,
    listener: TcpListener,
    address: SocketAddr,
    connections: Vec<Conn>,
}

impl Origin {
    /// Listens on a port of 127.0.0.1 that the kernel picks.
    pub fn listen(name: &str) -> Result<Self, Failure> {
        let io = |error: std::io::Error| Failure::of(name, format_args!("cannot listen: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(io)?;
        listener.set_nonblocking(true).map_err(io)?;
        let address = listener.local_addr().map_err(io)?;
        Ok(Self { name: name.to_owned(), listener, address, connections: Vec::new() })
    }

    /// The address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the connection with this number, counted from 1 in the order of opening. Waits for it if necessary.
    pub fn connection(&mut self, number: usize) -> Result<&mut Conn, Failure> {
        while self.connections.len() < number {
            let listener = PollFd::new(&self.listener, PollFlags::IN);
            let patience = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
            let ready = poll(&mut [listener], Some(&patience))
                .map_err(|error| Failure::of(&self.name, format_args!("poll failed: {error}")))?;
            if !self.accept()? && ready == 0 {
                let what =
                    format_args!("no connection {number} within {PATIENCE:?}, {} arrived", self.connections.len());
                return Err(Failure::of(&self.name, what));
            }
        }
        Ok(&mut self.connections[number - 1])
    }

    /// What reached this origin although the test did not ask for it: one line for each connection that has something
    /// to report.
    ///
    /// Does not wait. The result is exact once the balancer has closed the downstream connection: what a balancer sends
    /// upstream over loopback before it closes downstream has arrived by then.
    pub fn unclaimed(&mut self) -> Result<Vec<String>, Failure> {
        let claimed = self.connections.len();
        while self.accept()? {}
        let mut told = Vec::new();
        for (index, conn) in self.connections.iter_mut().enumerate() {
            let bytes = conn.unclaimed()?;
            if !bytes.is_empty() {
                told.push(format!("{} sent unexpected bytes:\n{}", conn.name(), crate::escape(&bytes)));
            } else if index >= claimed {
                told.push(format!("{} was opened unexpectedly", conn.name()));
            }
        }
        Ok(told)
    }

    /// Checks that every connection got at most the beginning of a request before it was cut off. The result is exact
    /// when [`Origin::unclaimed`] is.
    pub fn no_whole_request(&mut self) -> Result<(), Failure> {
        while self.accept()? {}
        self.connections.iter_mut().try_for_each(Conn::no_whole_request)
    }

    fn accept(&mut self) -> Result<bool, Failure> {
        match self.listener.accept() {
            Ok((stream, _)) => {
                let name = format!("{}/{}", self.name, self.connections.len() + 1);
                self.connections.push(Conn::new(&name, stream)?);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(Failure::of(&self.name, format_args!("accept failed: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strict::ResponseTo;
    use crate::{End, client};

    /// An origin and a client connected to it, which plays the balancer here.
    fn pair() -> (Origin, Conn) {
        let origin = Origin::listen("origin").unwrap();
        let client = client::connect("client", origin.address(), None).unwrap();
        (origin, client)
    }

    fn told<T>(result: Result<T, Failure>) -> String {
        result.err().map_or_else(String::new, |failure| failure.0)
    }

    #[test]
    fn a_request_and_its_response() {
        let (mut origin, mut client) = pair();
        client.send_pieces(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 3).unwrap();
        assert_eq!(origin.connection(1).unwrap().request().unwrap().target, "/");
        origin.connection(1).unwrap().send(b"HTTP/1.1 200 OK\r\n\r\nhi").unwrap();
        origin.connection(1).unwrap().close();
        assert_eq!(client.response(ResponseTo::Other).unwrap().body, b"hi");
        assert_eq!(client.expect_end().unwrap(), End::Fin);
        assert_eq!(origin.unclaimed().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn what_nobody_asked_for_is_told() {
        let (mut origin, mut client) = pair();
        assert_eq!(origin.unclaimed().unwrap(), ["origin/1 was opened unexpectedly"]);
        client.send(b"x").unwrap();
        client.close();
        origin.connection(1).unwrap().expect_bytes(b"x").unwrap();
        let (mut origin, mut client) = pair();
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nmore").unwrap();
        client.close();
        origin.connection(1).unwrap().request().unwrap();
        assert_eq!(origin.unclaimed().unwrap(), ["origin/1 sent unexpected bytes:\nmore"]);
    }

    #[test]
    fn ambiguity_and_truncation_fail() {
        let (mut origin, mut client) = pair();
        client.send(b"GET / HTTP/1.1\nHost: a\r\n\r\n").unwrap();
        assert!(told(origin.connection(1).unwrap().request()).contains("bare LF"));
        let (mut origin, mut client) = pair();
        client.send(b"GET / HTTP/1.1\r\nHo").unwrap();
        client.close();
        assert!(told(origin.connection(1).unwrap().request()).contains("before a complete request"));
        origin.no_whole_request().unwrap();
        assert_eq!(origin.unclaimed().unwrap(), Vec::<String>::new());
        let (mut origin, mut client) = pair();
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        client.close();
        origin.connection(1).unwrap();
        assert!(told(origin.no_whole_request()).contains("a complete request arrived"));
    }

    #[test]
    fn truncated_responses_and_resets() {
        let (mut origin, mut client) = pair();
        origin.connection(1).unwrap().send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi").unwrap();
        origin.connection(1).unwrap().close();
        assert_eq!(client.truncated_response().unwrap().body, b"hi");
        let (mut origin, mut client) = pair();
        origin.connection(1).unwrap().send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").unwrap();
        origin.connection(1).unwrap().close();
        assert!(told(client.truncated_response()).contains("should have been cut"));
        let (mut origin, mut client) = pair();
        origin.connection(1).unwrap().reset().unwrap();
        assert_eq!(client.expect_end().unwrap(), End::Reset);
        assert!(told(client.expect_bytes(b"x")).contains("ended"));
    }
}
