//! HTTP/2 (RFC 9113) as a state machine: bytes in, events out; calls in, bytes out. Both sides' roles, no I/O, no clock.
//!
//! A [`Connection`] has one owner, which reads the socket and writes it:
//!
//! 1. What was read goes into [`Connection::handle_bytes`], again and again, until all of it is taken. Each call gives at most one
//!    [`Event`]. Nothing of the input has to be kept: pieces of frames that are not whole are kept inside (at most one frame of 16 KiB),
//!    so that one buffer for reading serves all connections of a thread. DATA is never copied: an event lends the piece of the input.
//! 2. Whoever has something to send calls `send_request`, `send_response`, `send_data`, `send_trailers`, `reset`, at any time.
//! 3. [`Connection::output`] is what has to be written: one write for the frames of all streams. [`Connection::consume_output`] says how
//!    much went out. Then `handle_bytes` is called once more, with nothing if need be: a stream may wait for room in the output.
//!
//! **Heads** are the neutral [`RequestHead`](crate::message::RequestHead) and [`ResponseHead`](crate::message::ResponseHead), indexes over
//! bytes in an arena. [`Connection::take_request`] and its like swap both for buffers of the caller: nothing is copied, and nothing is
//! allocated once the buffers have grown to their size.
//!
//! **Backpressure** goes end to end. `send_data` takes what the windows, the frame size and the output have room for, and
//! [`Event::Writable`] says when it will take more. Received bytes count against the windows until the owner has passed them on and says
//! so ([`Connection::release_capacity`]); a client whose origin stalls is stopped by its window.
//!
//! **A stream** belongs to the owner from its first event, or from `send_request`, until [`Connection::forget`], whatever happens on the
//! wire meanwhile. `forget` is right at any time: it resets what is not over and gives back what was not released. So it belongs into the
//! `Drop` of what stands for the stream.
//!
//! On one thread, with a task for each stream and the connection in an `Rc<RefCell<_>>`:
//!
//! ```ignore
//! // The connection's task: reads, hands out events, writes.
//! let mut rest = scratch.filled();
//! loop {
//!     let handled = shared.connection.borrow_mut().handle_bytes(now_ms, rest)?;   // an error: write the output, close
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
//! // After the streams' tasks have run: what they all had to say, in one write.
//! let written = socket.try_write(shared.connection.borrow().output())?;
//! shared.connection.borrow_mut().consume_output(written);
//!
//! // A stream's task, as soon as its slot has bytes and the other side takes them:
//! let taken = upstream.connection.borrow_mut().send_data(upstream_stream, bytes, end)?;
//! downstream.connection.borrow_mut().release_capacity(downstream_stream, taken as u32);
//! ```
//!
//! **What is refused.** Malformed messages end their stream, as RFC 9113 section 8.1.1 says, and are never seen by the owner; what breaks
//! the connection's state ends the connection. Beyond the standard: fields that HTTP/1.1 could not carry, schemes other than http and https,
//! a request without an authority, `content-length` twice, framing fields in trailers. Priorities are read and ignored. PUSH is refused.
//!
//! **Limits** are in [`Limits`]; [`Limits::memory_bytes_max`] says what a connection can cost. Each frame that is allowed but leads nowhere
//! spends from one budget, [`Limits::glitches_max`].

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
