//! Moves bytes from one socket to another inside the kernel, through a pipe (splice(2), Linux 2.6.17).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use rustix::process::{Resource, getrlimit};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::socket;

/// The size of a pipe. The default limit for an unprivileged pipe is 1 MiB (fs.pipe-max-size), and 64 MiB for all pipes of a user.
const PIPE_BYTES: usize = 512 * 1024;

/// Pipes may use a quarter of the process's descriptors, two each. Stalled clients keep theirs, and connections need the rest.
const DESCRIPTORS_PER_PIPE_MIN: u64 = 8;

/// Pipes of this process. The count changes once per bulk transfer, not once per piece.
static PIPES: AtomicU64 = AtomicU64::new(0);

/// Permission for one pipe under the limit.
struct PipePermit;

impl PipePermit {
    fn take() -> io::Result<Self> {
        let descriptors_max = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let pipes = PIPES.fetch_add(1, Relaxed);
        // If this is one too many, dropping the permit takes it back.
        let permit = Self;
        if pipes < descriptors_max / DESCRIPTORS_PER_PIPE_MIN { Ok(permit) } else { Err(Errno::MFILE.into()) }
    }
}

impl Drop for PipePermit {
    fn drop(&mut self) {
        PIPES.fetch_sub(1, Relaxed);
    }
}

/// A pipe between two sockets.
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    /// Bytes in it: `0 <= filled <= capacity`.
    filled: usize,
    capacity: usize,
    /// The last move into it took less than it was allowed to, so the sender's socket is probably empty.
    is_source_drained: bool,
    /// Bytes that the receiver has room for: half of what it reported when it was last asked, less what was moved since.
    room: usize,
    _permit: PipePermit,
}

impl Pipe {
    /// An empty pipe.
    ///
    /// # Errors
    /// The process has as many pipes as its descriptors allow, or its user is out of pipe memory (fs.pipe-user-pages-soft). The caller then
    /// relays through a buffer. A smaller pipe would cost more than that: beyond its quota a user gets 8 KiB, and 20 MB took 16 ms of CPU,
    /// where copying takes 10.
    pub fn new() -> io::Result<Self> {
        let permit = PipePermit::take()?;
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        let capacity = fcntl_setpipe_size(&write, PIPE_BYTES)?;
        Ok(Self { read, write, filled: 0, capacity, is_source_drained: false, room: 0, _permit: permit })
    }

    /// Whether the pipe is empty.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Bytes that `to` takes without waiting. It is asked only when less than `bytes_min` is left of its last answer: asking before each move
    /// was two of seven system calls for every 32 KiB that an origin writes. 0 if the kernel does not report it.
    pub fn room(&mut self, to: &TcpStream, bytes_min: usize) -> usize {
        if self.room < bytes_min {
            // The kernel counts queued bytes with its own overhead, which can be as much again.
            self.room = socket::send_room(to).unwrap_or_default() / 2;
        }
        self.room
    }

    /// Moves up to `bytes_max` bytes, which must not be 0, from `from` into the pipe, which must be empty. `Some(0)` is the end of the
    /// stream. `None` means that the kernel cannot move what comes next, and the caller has to read it. This happens at urgent data, where
    /// splice(2) never finds anything.
    ///
    /// # Errors
    /// Those of splice(2).
    pub fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        from: &TcpStream,
        bytes_max: usize,
    ) -> Poll<io::Result<Option<usize>>> {
        let bytes = self.capacity.min(bytes_max);
        loop {
            ready!(from.poll_read_ready(cx))?;
            let is_probably_empty = std::mem::take(&mut self.is_source_drained);
            let outcome = from.try_io(Interest::READABLE, || {
                if is_probably_empty {
                    // One call finds that out, where splice(2) needs another to tell an empty socket from urgent data. A short move does not
                    // prove it: the pipe may have run out of slots for pages.
                    peek(from)?;
                }
                match splice(from, None, &self.write, None, bytes, SpliceFlags::MOVE | SpliceFlags::NONBLOCK) {
                    Err(Errno::AGAIN) if peek(from).is_ok_and(|count| count > 0) => Ok(None),
                    outcome => Ok(Some(outcome?)),
                }
            });
            match outcome {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => {
                    if let Ok(Some(count)) = &outcome {
                        self.filled += count;
                        self.room = self.room.saturating_sub(*count);
                        self.is_source_drained = *count < bytes;
                    }
                    return Poll::Ready(outcome);
                }
            }
        }
    }

    /// Moves bytes from the pipe into `to`, as many as it takes now.
    ///
    /// # Errors
    /// Those of splice(2).
    pub fn poll_drain(&mut self, cx: &mut Context<'_>, to: &TcpStream) -> Poll<io::Result<usize>> {
        loop {
            ready!(to.poll_write_ready(cx))?;
            let outcome = to.try_io(Interest::WRITABLE, || {
                Ok(splice(&self.read, None, to, None, self.filled, SpliceFlags::MOVE | SpliceFlags::NONBLOCK)?)
            });
            match outcome {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                outcome => {
                    if let Ok(count) = &outcome {
                        self.filled = self.filled.saturating_sub(*count);
                    }
                    return Poll::Ready(outcome);
                }
            }
        }
    }
}

/// How many bytes, 0 or 1, a read of one byte would return. They stay in the socket.
fn peek(from: &TcpStream) -> Result<usize, Errno> {
    let mut byte = [0; 1];
    recv(from, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT).map(|(_, count)| count)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn a_receiver_is_asked_for_room_when_its_last_answer_is_used_up() {
        let ((mut source, from), (mut to, _sink)) = (pair().await, pair().await);
        let mut pipe = Pipe::new().unwrap();
        let room = pipe.room(&to, 4);
        assert!(room > 1000, "{room}");
        source.write_all(b"hello").await.unwrap();
        poll_fn(|cx| pipe.poll_fill(cx, &from, usize::MAX)).await.unwrap();
        // What was moved is taken off the answer. The receiver's own view of its room is not looked at.
        assert_eq!(pipe.room(&to, room - 5), room - 5);
        to.try_write(&[0; 1000]).unwrap();
        assert_eq!(pipe.room(&to, 4), room - 5);
        let asked_again = pipe.room(&to, room);
        assert_ne!(asked_again, room - 5);
        // After a short move, an empty socket is found to be so, and the bytes that follow are moved.
        poll_fn(|cx| pipe.poll_drain(cx, &to)).await.unwrap();
        assert!(poll_fn(|cx| Poll::Ready(pipe.poll_fill(cx, &from, usize::MAX))).await.is_pending());
        source.write_all(b"again").await.unwrap();
        assert_eq!(poll_fn(|cx| pipe.poll_fill(cx, &from, usize::MAX)).await.unwrap(), Some(5));
        to.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn bytes_go_through_a_pipe_to_the_end() {
        let ((mut source, mut from), (to, mut sink)) = (pair().await, pair().await);
        source.write_all(b"hello").await.unwrap();
        let mut pipe = Pipe::new().unwrap();
        assert_eq!(poll_fn(|cx| pipe.poll_fill(cx, &from, usize::MAX)).await.unwrap(), Some(5));
        assert_eq!(poll_fn(|cx| pipe.poll_drain(cx, &to)).await.unwrap(), 5);
        assert!(pipe.is_empty());
        let mut got = [0; 5];
        sink.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"hello");
        // Urgent data: splice(2) finds nothing there, and a read goes past it.
        rustix::net::send(&source, b"!", rustix::net::SendFlags::OOB).unwrap();
        source.write_all(b"behind").await.unwrap();
        assert_eq!(poll_fn(|cx| pipe.poll_fill(cx, &from, usize::MAX)).await.unwrap(), None);
        let mut got = [0; 6];
        from.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"behind");
        drop(source);
        assert_eq!(poll_fn(|cx| pipe.poll_fill(cx, &from, usize::MAX)).await.unwrap(), Some(0));
    }
}
