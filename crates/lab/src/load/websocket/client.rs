//! One WebSocket connection: sends a message and waits for messages, while it answers pings.

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::protocol::{CloseFrame, Role, WebSocketConfig, WebSocketContext};
use tungstenite::{Error, Message};

use super::upgrade::upgrade;
use super::{Answers, WebSocketLoad};
use crate::load::socket::Socket;
use crate::load::tally::Met;

/// The read buffer of a connection. It is allocated at once, and a load may have many connections.
const READ_BUFFER_BYTES: usize = 16 * 1024;

/// An open connection.
pub(super) struct Client {
    socket: Counted,
    frames: WebSocketContext,
    /// Messages received that `count` has not counted yet.
    messages: u64,
}

/// A socket, and the bytes that it has carried and `Client::count` has not counted yet.
struct Counted {
    socket: Socket,
    received: u64,
    sent: u64,
}

impl Client {
    /// Connects, and upgrades the connection.
    pub(super) async fn connect(load: &WebSocketLoad, source: Option<IpAddr>) -> io::Result<Self> {
        let mut socket = Socket::connect(load.target.address, source, load.tls.as_ref()).await?;
        let (early, sent, received) = upgrade(&mut socket, load).await?;
        let limits = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER_BYTES)
            .max_message_size(Some(load.message_bytes_max))
            .max_frame_size(Some(load.message_bytes_max));
        let frames = WebSocketContext::from_partially_read(early, Role::Client, Some(limits));
        Ok(Self { socket: Counted { socket, received, sent }, frames, messages: 0 })
    }

    /// Sends the message, if there is one, and waits for the answers. Reads while it sends: a server that echoes stops reading when nothing
    /// reads its echo.
    ///
    /// # Errors
    /// The connection breaks or is closed, or an answer is not what it must be.
    pub(super) async fn exchange(&mut self, message: Option<&Message>, answers: Answers) -> io::Result<()> {
        let wanted = answers.wanted();
        let (mut unsent, mut came) = (message.cloned(), 0);
        poll_fn(|context| {
            if let Some(message) = unsent.take() {
                let queued = self.frames.write(&mut self.socket.polled(context), message);
                unless_blocked(queued).map_err(explained)?;
            }
            let flushed = self.frames.flush(&mut self.socket.polled(context));
            let is_sent = unless_blocked(flushed).map_err(explained)?.is_some();
            while came < wanted || !is_sent {
                let Some(answer) = self.poll_data(context)? else { return Poll::Pending };
                came += 1;
                if answers == Answers::Echo && came == 1 && Some(&answer) != message {
                    return Poll::Ready(Err(io::Error::other("the answer is not an echo of the message")));
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Reads what has arrived since the last operation, and answers pings.
    ///
    /// # Errors
    /// The connection is closed or broken.
    pub(super) async fn catch_up(&mut self) -> io::Result<()> {
        poll_fn(|context| {
            while self.poll_data(context)?.is_some() {}
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// The next message of text or data that has arrived; `None` if there is none yet.
    fn poll_data(&mut self, context: &mut Context<'_>) -> io::Result<Option<Message>> {
        loop {
            let read = self.frames.read(&mut self.socket.polled(context));
            match unless_blocked(read).map_err(explained)? {
                None => return Ok(None),
                Some(message @ (Message::Text(_) | Message::Binary(_))) => {
                    self.messages += 1;
                    return Ok(Some(message));
                }
                Some(Message::Close(frame)) => return Err(closed(frame.as_ref())),
                // The next read sends the pong.
                Some(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => {}
            }
        }
    }

    /// Adds what the connection has carried since the last call.
    pub(super) fn count(&mut self, met: &mut Met) {
        met.messages += std::mem::take(&mut self.messages);
        met.received_bytes += std::mem::take(&mut self.socket.received);
        met.sent_bytes += std::mem::take(&mut self.socket.sent);
    }
}

impl Drop for Client {
    /// Says goodbye or confirms the server's goodbye, if the socket takes it at once.
    fn drop(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let goodbye = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        // Whether it arrives makes no difference to the load.
        let _ = self.frames.close(&mut self.socket.polled(&mut context), Some(goodbye));
    }
}

/// `None` if the socket would block: what is unsent stays in the buffer, and the task is woken.
fn unless_blocked<T>(outcome: Result<T, Error>) -> Result<Option<T>, Error> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

fn explained(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        Error::ConnectionClosed | Error::AlreadyClosed => closed(None),
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

/// The report shows the code alone: the text is the server's and may be different each time.
fn closed(frame: Option<&CloseFrame>) -> io::Error {
    let why = match frame {
        Some(frame) => format!("the server closed the connection with code {}", u16::from(frame.code)),
        None => "the server closed the connection".to_owned(),
    };
    io::Error::new(io::ErrorKind::ConnectionAborted, why)
}

impl Counted {
    fn polled<'a, 'b>(&'a mut self, context: &'a mut Context<'b>) -> Polled<'a, 'b> {
        Polled { counted: self, context }
    }
}

/// A socket as tungstenite wants it: what would block says so, and wakes the task later.
struct Polled<'a, 'b> {
    counted: &'a mut Counted,
    context: &'a mut Context<'b>,
}

fn now<T>(poll: Poll<io::Result<T>>) -> io::Result<T> {
    match poll {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl Read for Polled<'_, '_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let mut to = ReadBuf::new(to);
        now(Pin::new(&mut self.counted.socket).poll_read(self.context, &mut to))?;
        let count = to.filled().len();
        self.counted.received += count as u64;
        Ok(count)
    }
}

impl Write for Polled<'_, '_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let count = now(Pin::new(&mut self.counted.socket).poll_write(self.context, from))?;
        self.counted.sent += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        now(Pin::new(&mut self.counted.socket).poll_flush(self.context))
    }
}
