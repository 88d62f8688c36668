//! One stream, as its exchange holds it: the exchange reads from and writes to it instead of an HTTP/1 connection.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use net::buffer::{self, Buffer};
use telemetry::Reason;
use tokio::io::ReadBuf;
use wire::h2::{ErrorCode, SendError, StreamKey};
use wire::message::{Field, ResponseHead};

use super::connection::{SharedConnection, StreamEnd};
use super::header_list::HeaderList;
use super::stream_state::StreamState;
use super::window::{self, Counted};
use crate::error::Error;
use crate::grpc;

/// A stream. Dropping it releases the stream, which is reset if it is not over.
pub(crate) struct Handle {
    connection: Rc<SharedConnection>,
    phase: Phase,
}

enum Phase {
    /// For a request to an endpoint. Its stream is opened when its head is sent.
    Unopened,
    /// It could not be opened.
    Refused(Reason),
    /// `_counted` is set for a stream to an endpoint.
    Open { key: StreamKey, _counted: Option<Counted> },
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(key) = self.key() {
            self.connection.forget(key);
        }
    }
}

impl Handle {
    /// The stream of a received request.
    pub(crate) fn of_request(connection: Rc<SharedConnection>, key: StreamKey) -> Self {
        Self { connection, phase: Phase::Open { key, _counted: None } }
    }

    /// A stream for a request that is not sent yet.
    pub(crate) fn unopened(connection: Rc<SharedConnection>) -> Self {
        Self { connection, phase: Phase::Unopened }
    }

    /// The stream; `None` if it is not open.
    fn key(&self) -> Option<StreamKey> {
        if let Phase::Open { key, .. } = self.phase { Some(key) } else { None }
    }

    fn with<R>(&self, with: impl FnOnce(&mut StreamState) -> R) -> Result<R, StreamEnd> {
        let done = self.key().and_then(|key| self.connection.with_stream(key, with));
        done.ok_or(self.connection.over().unwrap_or(StreamEnd::Gone))
    }

    /// Why the stream can do no more. This also covers a stream that ended normally.
    fn end_error(&self) -> io::Error {
        let end = self.with(|state| state.ended).ok().flatten();
        io::Error::other(end.or(self.connection.over()).unwrap_or(StreamEnd::Gone))
    }

    /// Whether the request's head exceeds the limits and was not kept.
    pub(crate) fn is_too_large(&self) -> bool {
        self.with(|state| state.is_too_large).unwrap_or_default()
    }

    /// Whether everything that will arrive is in the buffer that [`Handle::poll_data`] filled last.
    pub(crate) fn has_ended(&self) -> bool {
        self.with(|state| state.is_ended && state.input.is_empty()).unwrap_or_default()
    }

    /// Puts the received part of the body into `input`, which is empty, without copying it. Returns false if the body is over.
    ///
    /// # Errors
    /// [`StreamEnd`], once everything that arrived before it was taken.
    pub(crate) fn poll_data(&self, cx: &Context<'_>, input: &mut Buffer) -> Poll<io::Result<bool>> {
        *input = Buffer::none();
        let polled = self.with(|state| {
            if !state.input.is_empty() {
                *input = std::mem::replace(&mut state.input, Buffer::none());
                return Poll::Ready(Ok(true));
            }
            poll_nothing(state, cx).map_ok(|()| false)
        });
        polled.unwrap_or_else(|end| Poll::Ready(Err(end))).map_err(io::Error::other)
    }

    /// Records that `count` bytes of the body were passed on, so that as many more may arrive.
    pub(crate) fn release(&self, count: usize) {
        let Some(key) = self.key() else { return };
        let mut wire = self.connection.wire.borrow_mut();
        let before = wire.output().len();
        wire.release_capacity(key, u32::try_from(count).unwrap_or(u32::MAX));
        let has_news = wire.output().len() > before;
        drop(wire);
        if has_news || self.connection.is_paused() {
            self.connection.wake_task();
        }
    }

    /// Whether trailers ended the body.
    pub(crate) fn has_trailers(&self) -> bool {
        self.with(|state| state.has_trailers).unwrap_or_default()
    }

    /// Takes the trailers, if there are any, and leaves the caller's buffers for reuse.
    pub(crate) fn take_trailers(&self, fields: &mut Vec<Field>, bytes: &mut Vec<u8>) {
        let taken = self.with(|state| {
            let has_trailers = std::mem::take(&mut state.has_trailers);
            if let Some(received) = state.received.as_mut().filter(|_| has_trailers) {
                std::mem::swap(&mut received.trailers, fields);
                std::mem::swap(&mut received.trailer_bytes, bytes);
            }
        });
        // If the stream is gone, so are its trailers.
        taken.unwrap_or_default();
    }

    /// The status of a call whose head has arrived, if its trailers have too, with nothing in between.
    pub(crate) fn early_status(&self) -> Option<grpc::Status> {
        let status = self.with(|state| {
            let is_all = state.has_trailers && state.input.is_empty();
            let received = state.received.as_ref().filter(|_| is_all)?;
            grpc::find(&received.trailers, &received.trailer_bytes, b"grpc-status").map(grpc::Status::parse)
        });
        status.ok().flatten()
    }

    /// Ready when [`Handle::take_response`] has a head to return.
    ///
    /// # Errors
    /// Those of the upstream side.
    pub(crate) fn poll_response_ready(&self, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        match self.phase {
            Phase::Open { .. } => {}
            // It was woken to be opened, or because it never will be.
            Phase::Unopened => return Poll::Pending,
            // This does not count against the endpoint: any client can ask for what the endpoint does not have.
            Phase::Refused(Reason::UpstreamNoTunnel) => {
                return Poll::Ready(Err(Error::internal(Reason::UpstreamNoTunnel)));
            }
            Phase::Refused(reason) => return Poll::Ready(Err(Error::upstream(reason))),
        }
        let polled = self.with(|state| {
            if state.has_head {
                return Poll::Ready(Ok(()));
            }
            match state.ended {
                Some(end) => Poll::Ready(Err(end)),
                None => {
                    wait(&mut state.reader, cx);
                    Poll::Pending
                }
            }
        });
        polled.unwrap_or_else(|end| Poll::Ready(Err(end))).map_err(|end| Error::endpoint_io(io::Error::other(end)))
    }

    /// Takes the head of a response, which may be informational, and which has arrived.
    pub(crate) fn take_response(&self, head: &mut ResponseHead, bytes: &mut Vec<u8>) {
        let taken = self.with(|state| {
            let Some(received) = state.received.as_mut().filter(|_| state.has_head) else { return };
            std::mem::swap(&mut received.head, head);
            std::mem::swap(&mut received.head_bytes, bytes);
            state.has_head = false;
            if let Some(next) = received.heads.pop_front() {
                (received.head, received.head_bytes) = next;
                state.has_head = true;
            }
        });
        // It was there when the caller checked.
        taken.unwrap_or_default();
    }

    /// Ready when the stream was reset.
    pub(crate) fn poll_cut(&self, cx: &Context<'_>) -> Poll<io::Error> {
        let polled = self.with(|state| {
            if state.ended.is_none() {
                wait(&mut state.reader, cx);
            }
            state.ended
        });
        match polled {
            Ok(None) => Poll::Pending,
            Ok(Some(end)) | Err(end) => Poll::Ready(io::Error::other(end)),
        }
    }

    /// Ready when [`Handle::poll_read`] would return something.
    pub(crate) fn poll_readable(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let polled =
            self.with(|state| if state.input.is_empty() { poll_nothing(state, cx) } else { Poll::Ready(Ok(())) });
        polled.unwrap_or_else(|end| Poll::Ready(Err(end))).map_err(io::Error::other)
    }

    /// Reads bytes, which count as passed on. None is the end.
    pub(crate) fn poll_read(&self, cx: &Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let polled = self.with(|state| {
            if state.input.is_empty() {
                return poll_nothing(state, cx).map_ok(|()| 0);
            }
            let bytes = state.input.filled();
            let count = bytes.len().min(to.remaining());
            to.put_slice(bytes.get(..count).unwrap_or_default());
            state.input.consume(count);
            if state.input.is_empty() {
                state.input = Buffer::none();
            }
            Poll::Ready(Ok(count))
        });
        let count = ready!(polled.unwrap_or_else(|end| Poll::Ready(Err(end)))).map_err(io::Error::other)?;
        if count > 0 {
            self.release(count);
        }
        Poll::Ready(Ok(()))
    }

    /// Sends a head: a request's, which opens the stream, or a response's. `end`: nothing follows.
    pub(crate) fn poll_send_head(&mut self, cx: &Context<'_>, head: &HeaderList, end: bool) -> Poll<io::Result<()>> {
        let Some(key) = self.key() else { return self.poll_open(cx, head, end) };
        let mut wire = self.connection.wire.borrow_mut();
        let sent = wire.send_response(key, head.status, end, |to| head.write(to));
        drop(wire);
        self.poll_sent(cx, sent)
    }

    fn poll_open(&mut self, cx: &Context<'_>, head: &HeaderList, end: bool) -> Poll<io::Result<()>> {
        if let Some(end) = self.connection.over() {
            // Nothing of it was sent.
            tracing::trace!(%end, "connection ended before a stream was opened");
            return self.refuse(Reason::UpstreamRefused);
        }
        let mut wire = self.connection.wire.borrow_mut();
        if head.to().protocol.is_some() && !wire.allows_extended_connect() {
            // RFC 8441 section 3: the request would be malformed.
            drop(wire);
            return self.refuse(Reason::UpstreamNoTunnel);
        }
        let window = window::next_bytes(wire.stream_window());
        wire.set_stream_window(window);
        let opened = wire.send_request(&head.to(), end, |to| head.write(to));
        drop(wire);
        match opened {
            Ok(key) => {
                self.connection.begin(key, false, false);
                self.phase = Phase::Open { key, _counted: Some(Counted::new()) };
                self.connection.wake_task();
                Poll::Ready(Ok(()))
            }
            Err(SendError::Full) => {
                self.connection.openers.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            }
            Err(SendError::Closed | SendError::GoingAway) => self.refuse(Reason::UpstreamRefused),
        }
    }

    /// Whether the connection accepts no more streams, or is over.
    pub(crate) fn is_connection_ending(&self) -> bool {
        self.connection.over().is_some() || self.connection.wire.borrow().is_going_away()
    }

    /// Records that the stream will not be opened. Whatever waits for a response gets the reason.
    fn refuse(&mut self, reason: Reason) -> Poll<io::Result<()>> {
        self.phase = Phase::Refused(reason);
        Poll::Ready(Err(io::Error::other(StreamEnd::Refused)))
    }

    /// Bytes of a body that the other side allows the stream to send now.
    pub(crate) fn send_window(&self) -> usize {
        self.key().map_or(0, |key| self.connection.wire.borrow_mut().data_window(key))
    }

    /// How much to read at once of what the stream is to send. With few streams on a connection, each may read a whole piece and keep the
    /// rest of it. With many, each reads no more than it can send now.
    pub(crate) fn piece_bytes(&self) -> usize {
        /// This many may wait with at most 16 KiB each. A client with more that takes nothing holds 1 to 4 KiB for each of the others.
        const FEW: usize = 16;
        let mut wire = self.connection.wire.borrow_mut();
        match self.key() {
            Some(key) if wire.streams_held() > FEW => buffer::piece_bytes_within(wire.data_room(key)),
            _ => buffer::piece_bytes(),
        }
    }

    /// Sends some of `bytes`. If all of them are taken, `end` is sent, too.
    pub(crate) fn poll_send(&self, cx: &Context<'_>, bytes: &[u8], end: bool) -> Poll<io::Result<usize>> {
        let Some(key) = self.key().filter(|_| self.connection.over().is_none()) else {
            return Poll::Ready(Err(self.end_error()));
        };
        let taken = self.connection.wire.borrow_mut().send_data(key, bytes, end);
        match taken {
            Err(_) => Poll::Ready(Err(self.end_error())),
            Ok(0) if !bytes.is_empty() => self.poll_room(cx),
            Ok(taken) => {
                self.connection.wake_task();
                Poll::Ready(Ok(taken))
            }
        }
    }

    /// Sends the trailers that end the message.
    pub(crate) fn poll_send_trailers(&self, cx: &Context<'_>, trailers: &HeaderList) -> Poll<io::Result<()>> {
        let Some(key) = self.key() else { return Poll::Ready(Err(self.end_error())) };
        let mut wire = self.connection.wire.borrow_mut();
        let sent = wire.send_trailers(key, |to| trailers.write(to));
        drop(wire);
        self.poll_sent(cx, sent)
    }

    fn poll_sent(&self, cx: &Context<'_>, sent: Result<(), SendError>) -> Poll<io::Result<()>> {
        match sent {
            _ if self.connection.over().is_some() => Poll::Ready(Err(self.end_error())),
            Ok(()) => {
                self.connection.wake_task();
                Poll::Ready(Ok(()))
            }
            Err(SendError::Full) => self.poll_room(cx).map_ok(|_| ()),
            Err(SendError::Closed | SendError::GoingAway) => Poll::Ready(Err(self.end_error())),
        }
    }

    /// Waits until the stream may send again.
    fn poll_room(&self, cx: &Context<'_>) -> Poll<io::Result<usize>> {
        match self.with(|state| wait(&mut state.writer, cx)) {
            Ok(()) => Poll::Pending,
            Err(end) => Poll::Ready(Err(io::Error::other(end))),
        }
    }

    /// Resets the stream, if it is not over.
    pub(crate) fn reset(&self, code: ErrorCode) {
        let Some(key) = self.key() else { return };
        self.connection.wire.borrow_mut().reset(key, code);
        self.connection.wake_task();
    }
}

/// The result if there is no DATA: the end, an early end, or nothing yet.
fn poll_nothing(state: &mut StreamState, cx: &Context<'_>) -> Poll<Result<(), StreamEnd>> {
    match state.ended {
        _ if state.is_ended => Poll::Ready(Ok(())),
        Some(end) => Poll::Ready(Err(end)),
        None => {
            wait(&mut state.reader, cx);
            Poll::Pending
        }
    }
}

fn wait(registered: &mut Option<Waker>, cx: &Context<'_>) {
    if !registered.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *registered = Some(cx.waker().clone());
    }
}

/// The code for resetting a stream whose response cannot be completed: the endpoint's own, if it means something to a client.
pub(crate) fn code(error: &Error) -> ErrorCode {
    match (error.source.as_ref().and_then(StreamEnd::within), error.reason) {
        (Some(StreamEnd::Reset(code @ (ErrorCode::CANCEL | ErrorCode::ENHANCE_YOUR_CALM))), _) => code,
        (_, Reason::ClientReset | Reason::RequestTimeout) => ErrorCode::CANCEL,
        (_, Reason::SlowRead | Reason::ReadTooSlow | Reason::BodyTimeout | Reason::BodyTooSlow) => ErrorCode::CANCEL,
        _ => ErrorCode::INTERNAL_ERROR,
    }
}
