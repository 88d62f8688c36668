//! HTTP/2 (RFC 9113) as a state machine: bytes in and events out, calls in and bytes out. It implements both roles, without I/O or a clock.
//!
//! A [`Connection`] has one owner, which reads and writes the socket:
//!
//! 1. The owner passes the bytes that it read to [`Connection::handle_bytes`], repeatedly, until all of them are taken. Each call returns
//!    at most one [`Event`]. The owner need not keep any input: the connection keeps incomplete frames (at most one frame of 16 KiB), so
//!    one read buffer serves all connections of a thread. DATA is never copied: an event borrows the piece of the input.
//! 2. To send something, call `send_request`, `send_response`, `send_data`, `send_trailers` or `reset`, at any time.
//! 3. [`Connection::output`] is the bytes to write: one write for the frames of all streams. Tell [`Connection::consume_output`] how much
//!    was written, and then call `handle_bytes` again, if necessary with no bytes: a stream may wait for room in the output.
//!
//! **Heads** are the neutral [`RequestHead`](crate::message::RequestHead) and [`ResponseHead`](crate::message::ResponseHead), indexes over
//! bytes in an arena. [`Connection::take_request`] and similar calls swap both for buffers of the caller: nothing is copied, and nothing is
//! allocated once the buffers have grown to their size.
//!
//! **Backpressure** goes end to end. `send_data` takes what the windows, the frame size and the output have room for, and
//! [`Event::Writable`] says when it will take more. Received bytes count against the windows until the owner has passed them on and calls
//! [`Connection::release_capacity`], so the window stops a client whose origin stalls.
//!
//! **A stream** belongs to the owner from its first event, or from `send_request`, until [`Connection::forget`], whatever its state in the
//! protocol. `forget` is valid at any time: it resets a stream that is not over and returns the bytes that were not released. So call it in
//! the `Drop` of the owner's stream object.
//!
//! On one thread, with a task for each stream and the connection in an `Rc<RefCell<_>>`:
//!
//! ```ignore
//! // The connection's task: reads, hands out events, writes.
//! let mut rest = scratch.filled();
//! loop {
//!     let handled = shared.connection.borrow_mut().handle_bytes(now_ms, rest)?;   // on an error: write the output, close
//!     rest = &rest[handled.consumed..];
//!     match handled.event {
//!         Some(Event::Request { stream, end }) => {
//!             let mut work = worker.take_work();
//!             shared.connection.borrow_mut().take_request(&mut work.request, &mut work.head_bytes);
//!             spawn_local(exchange(Stream::new(&shared, stream), work, end));     // Stream's Drop calls forget
//!         }
//!         Some(Event::Data { stream, bytes, end }) => shared.slot(stream).push(bytes, end),   // and wakes its task
//!         Some(Event::Writable { stream }) => shared.slot(stream).wake_writer(),
//!         Some(Event::Reset { stream, .. }) => shared.slot(stream).fail(),
//!         Some(_) => {}
//!         None if rest.is_empty() => break,
//!         None => {}
//!     }
//! }
//! // After the streams' tasks have run: all of their output, in one write.
//! let written = socket.try_write(shared.connection.borrow().output())?;
//! shared.connection.borrow_mut().consume_output(written);
//!
//! // A stream's task, as soon as its slot has bytes and the other side takes them:
//! let taken = upstream.connection.borrow_mut().send_data(upstream_stream, bytes, end)?;
//! downstream.connection.borrow_mut().release_capacity(downstream_stream, taken as u32);
//! ```
//!
//! **What is refused.** Malformed messages end their stream, as RFC 9113 section 8.1.1 says, and the owner never sees them. An error that
//! breaks the connection's state ends the connection. Beyond the standard, this refuses fields that HTTP/1.1 could not carry, schemes other
//! than http and https, a request without an authority, a repeated `content-length`, and framing fields in trailers. Priorities are read
//! and ignored. PUSH is refused.
//!
//! **Limits** are in [`Limits`]; [`Limits::memory_bytes_max`] says what a connection can cost. Each valid frame that achieves nothing uses
//! one budget, [`Limits::glitches_max`].

mod blocks;
mod connection;
mod control;
mod error;
mod event;
mod flow;
mod frame;
mod glitches;
mod head;
mod limits;
mod memo;
mod output;
mod receive;
mod send;
mod settings;
mod streams;

pub use connection::{Connection, Role};
pub use error::{Error, ErrorCode, Reason, SendError};
pub use event::{Event, Handled, ResetBy};
pub use frame::{FRAME_BYTES_MAX, PREFACE};
pub use limits::{ANSWER_BYTES_MAX, CONTINUATIONS_MAX, Limits};
pub use send::{HeadWriter, PseudoHeaders};
pub use streams::StreamKey;

#[cfg(test)]
mod tests;
