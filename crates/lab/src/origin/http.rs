//! The HTTP/1.1 origin: one read and one write per request on a connection that is kept alive.
//!
//! Pipelined requests that arrive in one read are answered in one write. A malformed request gets 400 and closes its connection.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::answer::{Answer, Connection};
use super::manner::{Manner, MannerArgs};
use super::request::{Head, RequestedPath};
use super::stats::Counts;
use super::{Acceptors, HttpOriginArgs};
use crate::alarm::Alarms;
use crate::buffer::ReadBuffer;
use crate::framing::{BodyReader, Framing};
use crate::stats::Rng;

/// Answers are written once this many bytes wait, even if more pipelined requests have arrived.
const OUT_BYTES_MAX: usize = 64 * 1024;

/// Before a connection with unread bytes closes, they are read for this long, up to this many bytes. The kernel turns a close with unread
/// bytes into a reset, which could overtake the answer.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: u64 = 1024 * 1024;

/// An HTTP origin with its addresses bound.
pub struct HttpOrigin {
    acceptors: Acceptors,
    service: Arc<Service>,
}

struct Service {
    ok: Answer,
    health: Answer,
    refused: Answer,
    /// The field `x-origin` with its CRLF, or nothing.
    origin_field: String,
    close: bool,
    manner: Manner,
    counts: Arc<Counts>,
}

impl HttpOrigin {
    /// An origin with no manner other than a delay.
    ///
    /// # Errors
    /// Those of [`HttpOrigin::with_manner`].
    pub fn bind(args: &HttpOriginArgs) -> io::Result<Self> {
        Self::with_manner(args, &MannerArgs::default())
    }

    /// Binds the addresses, and serves nothing yet.
    ///
    /// # Errors
    /// An address that cannot be bound; the message names it.
    pub fn with_manner(args: &HttpOriginArgs, manner: &MannerArgs) -> io::Result<Self> {
        let counts = Arc::<Counts>::default();
        let name = args.name.as_deref();
        let service = Service {
            ok: Answer::ok(name, args.body),
            health: Answer::text("200 OK", name, "ok"),
            refused: Answer::text("400 Bad Request", name, "bad request"),
            origin_field: name.map(|name| format!("x-origin: {name}\r\n")).unwrap_or_default(),
            close: args.close,
            manner: Manner::new(args.delay, manner),
            counts: counts.clone(),
        };
        let acceptors = Acceptors::bind(&args.listen, args.threads)?.telling(manner.stats, &counts)?;
        Ok(Self { acceptors, service: Arc::new(service) })
    }

    /// The bound addresses, in the order of the arguments.
    ///
    /// # Errors
    /// None in practice: the kernel knows the address of a bound socket.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.acceptors.addresses()
    }

    /// Serves on this thread and on the other requested threads until `end` is ready.
    ///
    /// # Errors
    /// Those of `end`, or the runtime cannot start.
    pub fn run_until(&self, end: impl Future<Output = io::Result<()>>) -> io::Result<()> {
        let service = self.service.clone();
        self.acceptors.run_until(move |stream, alarms| serve(stream, alarms, service.clone()), end)
    }

    /// Requests whose head has been read, without those of `/healthz`.
    pub fn requests(&self) -> u64 {
        self.service.counts.requests.load(Ordering::Relaxed)
    }

    /// Connections accepted.
    pub fn connections(&self) -> u64 {
        self.service.counts.connections.load(Ordering::Relaxed)
    }
}

async fn serve(stream: TcpStream, alarms: Alarms, service: Arc<Service>) {
    let number = service.counts.connections.fetch_add(1, Ordering::Relaxed);
    // This only fails for a dead socket, and the first read will find that out.
    let _ = stream.set_nodelay(true);
    let rng = Rng::new(number);
    let mut session = Session { stream, input: ReadBuffer::new(), out: Vec::new(), service, alarms, rng };
    // If the client aborts, there is nothing left to do.
    let _ = session.run().await;
}

/// One connection.
struct Session {
    stream: TcpStream,
    input: ReadBuffer,
    /// Answers that are not written yet.
    out: Vec<u8>,
    service: Arc<Service>,
    alarms: Alarms,
    /// For the delays.
    rng: Rng,
}

impl Session {
    async fn run(&mut self) -> io::Result<()> {
        loop {
            match Head::parse(self.input.unused()) {
                Ok(Some(head)) => {
                    self.input.consume(head.length);
                    if !self.answer(&head).await? {
                        return self.close().await;
                    }
                    if self.out.len() >= OUT_BYTES_MAX {
                        self.flush().await?;
                    }
                }
                Ok(None) => {
                    self.flush().await?;
                    match self.input.fill(&mut self.stream).await {
                        Ok(0) => return Ok(()),
                        Ok(_) => {}
                        Err(error) if error.kind() == io::ErrorKind::InvalidData => return self.refuse().await,
                        Err(error) => return Err(error),
                    }
                }
                Err(_) => return self.refuse().await,
            }
        }
    }

    /// Answers one request, including its body. Returns whether the connection stays open.
    async fn answer(&mut self, head: &Head) -> io::Result<bool> {
        let connection = match (head.keep_alive && !self.service.close, head.is_http_10) {
            (false, _) => Connection::Close,
            (true, false) => Connection::Keep,
            (true, true) => Connection::Keep10,
        };
        if head.expects_continue && !head.is_http_10 && head.framing != Framing::Length(0) {
            self.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            self.flush().await?;
        }
        if head.requested != RequestedPath::Health {
            self.service.counts.requests.fetch_add(1, Ordering::Relaxed);
        }
        match head.requested {
            RequestedPath::Echo if !head.is_head => self.echo(head, connection).await?,
            RequestedPath::Health => self.respond(head, connection, |service| &service.health).await?,
            RequestedPath::Echo | RequestedPath::Elsewhere => {
                if let Some(until) = self.service.manner.wait(Duration::ZERO, &mut self.rng) {
                    self.flush().await?;
                    self.alarms.sleep_until(until).await;
                }
                self.respond(head, connection, |service| &service.ok).await?;
            }
        }
        Ok(connection != Connection::Close)
    }

    async fn respond(&mut self, head: &Head, connection: Connection, pick: fn(&Service) -> &Answer) -> io::Result<()> {
        let received = match head.framing {
            Framing::Length(0) => None,
            framing => {
                self.flush().await?;
                self.input.grow_to_max();
                Some(BodyReader::new(framing).drain(&mut self.input, &mut self.stream).await?)
            }
        };
        let answer = pick(&self.service);
        if head.is_head {
            answer.put_head(&mut self.out, connection, received);
            return Ok(());
        }
        let mut left = answer.put(&mut self.out, connection, received);
        if left > 0 {
            write_out(&mut self.stream, &mut self.out).await?;
        }
        while left > 0 {
            let block = answer.block(left);
            self.stream.write_all(block).await?;
            left -= block.len() as u64;
        }
        Ok(())
    }

    /// Sends the request's body back as it arrives, with the same framing.
    async fn echo(&mut self, head: &Head, connection: Connection) -> io::Result<()> {
        let length = match head.framing {
            Framing::Length(length) => format!("content-length: {length}\r\n"),
            Framing::Chunked | Framing::UntilClose => "transfer-encoding: chunked\r\n".to_owned(),
        };
        self.out.extend_from_slice(b"HTTP/1.1 200 OK\r\nserver: steelyard-origin\r\n");
        self.out.extend_from_slice(self.service.origin_field.as_bytes());
        self.out.extend_from_slice(length.as_bytes());
        self.out.extend_from_slice(connection.field());
        self.out.extend_from_slice(b"\r\n");
        self.flush().await?;
        if head.framing != Framing::Length(0) {
            self.input.grow_to_max();
        }

        let chunked = head.framing == Framing::Chunked;
        let mut body = BodyReader::new(head.framing);
        loop {
            let put = |data: &[u8]| put_piece(&mut self.out, data, chunked);
            if body.next_data(&mut self.input, &mut self.stream, put).await?.is_none() {
                break;
            }
            write_out(&mut self.stream, &mut self.out).await?;
        }
        if chunked {
            self.out.extend_from_slice(b"0\r\n\r\n");
        }
        Ok(())
    }

    async fn refuse(&mut self) -> io::Result<()> {
        self.service.refused.put(&mut self.out, Connection::Close, None);
        self.close().await
    }

    async fn close(&mut self) -> io::Result<()> {
        self.flush().await?;
        self.stream.shutdown().await?;
        let mut rest = (&mut self.stream).take(LINGER_BYTES_MAX);
        // It does not matter if the time runs out: the client had time to read the answer.
        let _ = tokio::time::timeout(LINGER, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await;
        Ok(())
    }

    async fn flush(&mut self) -> io::Result<()> {
        write_out(&mut self.stream, &mut self.out).await
    }
}

fn put_piece(out: &mut Vec<u8>, data: &[u8], chunked: bool) {
    if chunked {
        out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
    }
    out.extend_from_slice(data);
    if chunked {
        out.extend_from_slice(b"\r\n");
    }
}

async fn write_out(stream: &mut TcpStream, out: &mut Vec<u8>) -> io::Result<()> {
    if !out.is_empty() {
        stream.write_all(out).await?;
        out.clear();
    }
    Ok(())
}
