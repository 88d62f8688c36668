//! Moving bytes from one socket to another inside the kernel (splice(2), Linux 2.6.17), through a pipe.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// What a pipe should hold. The default limit of an unprivileged pipe is 1 MiB (fs.pipe-max-size), and 64 MiB for all of a user.
const PIPE_BYTES: usize = 512 * 1024;

/// A pipe between two sockets.
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    /// Bytes in it: `0 <= filled <= capacity`.
    filled: usize,
    capacity: usize,
}

impl Pipe {
    /// An empty pipe.
    ///
    /// # Errors
    /// The process is out of descriptors, or its user out of pipe memory: relay through a buffer instead.
    pub fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        // What the kernel grants, if not what we ask: an unprivileged user over its quota gets 4 KiB, useless but right.
        let capacity = fcntl_setpipe_size(&write, PIPE_BYTES).unwrap_or(64 * 1024);
        Ok(Self { read, write, filled: 0, capacity })
    }

    /// Nothing in it.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Takes what `from` has into the pipe, up to so many bytes, which are not 0. `Ready(Ok(0))` is the end of the stream. The pipe must be
    /// empty.
    ///
    /// # Errors
    /// Those of splice(2).
    pub fn poll_fill(&mut self, cx: &mut Context<'_>, from: &TcpStream, bytes_max: usize) -> Poll<io::Result<usize>> {
        let bytes = self.capacity.min(bytes_max);
        loop {
            ready!(from.poll_read_ready(cx))?;
            let outcome = from.try_io(Interest::READABLE, || {
                Ok(splice(from, None, &self.write, None, bytes, SpliceFlags::MOVE | SpliceFlags::NONBLOCK)?)
            });
            match outcome {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => {
                    if let Ok(count) = &outcome {
                        self.filled += count;
                    }
                    return Poll::Ready(outcome);
                }
            }
        }
    }

    /// Gives what is in the pipe to `to`, as much as it takes now.
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
    async fn bytes_go_through_a_pipe_to_the_end() {
        let ((mut source, from), (to, mut sink)) = (pair().await, pair().await);
        source.write_all(b"hello").await.unwrap();
        let mut pipe = Pipe::new().unwrap();
        assert_eq!(poll_fn(|cx| pipe.poll_fill(cx, &from, usize::MAX)).await.unwrap(), 5);
        assert_eq!(poll_fn(|cx| pipe.poll_drain(cx, &to)).await.unwrap(), 5);
        assert!(pipe.is_empty());
        let mut got = [0; 5];
        sink.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"hello");
        drop(source);
        assert_eq!(poll_fn(|cx| pipe.poll_fill(cx, &from, usize::MAX)).await.unwrap(), 0);
    }
}
