//! The TCP origin: echoes, sends, or swallows.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Acceptors, TcpOriginArgs};

/// Bytes moved by one read or write at most.
const BLOCK_BYTES: usize = 128 * 1024;

/// A TCP origin with its addresses bound.
pub struct TcpOrigin {
    acceptors: Acceptors,
    mode: Mode,
    counts: Arc<Counts>,
}

#[derive(Clone, Copy)]
enum Mode {
    Echo,
    Send(u64),
    Sink,
}

#[derive(Default)]
struct Counts {
    received: AtomicU64,
    sent: AtomicU64,
}

impl TcpOrigin {
    /// Binds the addresses; serves nothing yet.
    ///
    /// # Errors
    /// An address that cannot be bound; the message names it.
    pub fn bind(args: &TcpOriginArgs) -> io::Result<Self> {
        let mode = match (args.send, args.sink) {
            (Some(bytes), _) => Mode::Send(bytes),
            (None, true) => Mode::Sink,
            (None, false) => Mode::Echo,
        };
        Ok(Self { acceptors: Acceptors::bind(&args.listen, args.threads)?, mode, counts: Arc::default() })
    }

    /// The bound addresses, in the order of the arguments.
    ///
    /// # Errors
    /// None in practice: the kernel knows the address of a bound socket.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.acceptors.addresses()
    }

    /// Serves, on this thread and as many more as were asked for, until `end` is ready.
    ///
    /// # Errors
    /// Those of `end`, and a runtime that cannot start.
    pub fn run_until(&self, end: impl Future<Output = io::Result<()>>) -> io::Result<()> {
        let (mode, counts) = (self.mode, self.counts.clone());
        self.acceptors.run_until(move |stream| serve(stream, mode, counts.clone()), end)
    }

    /// Bytes received on all connections.
    pub fn received(&self) -> u64 {
        self.counts.received.load(Ordering::Relaxed)
    }

    /// Bytes sent on all connections.
    pub fn sent(&self) -> u64 {
        self.counts.sent.load(Ordering::Relaxed)
    }
}

async fn serve(mut stream: TcpStream, mode: Mode, counts: Arc<Counts>) {
    // Refused only by a socket that is dead already; the first read finds that out.
    let _ = stream.set_nodelay(true);
    let outcome = match mode {
        Mode::Echo => echo(&mut stream, &counts).await,
        Mode::Send(bytes) => send(&mut stream, bytes, &counts).await,
        Mode::Sink => sink(&mut stream, &counts).await,
    };
    if outcome.is_ok() {
        // The other side may be gone by now, and owes us nothing.
        let _ = stream.shutdown().await;
    }
}

async fn echo(stream: &mut TcpStream, counts: &Counts) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        let count = stream.read(&mut block).await?;
        if count == 0 {
            return Ok(());
        }
        counts.received.fetch_add(count as u64, Ordering::Relaxed);
        stream.write_all(&block[..count]).await?;
        counts.sent.fetch_add(count as u64, Ordering::Relaxed);
    }
}

async fn send(stream: &mut TcpStream, bytes: u64, counts: &Counts) -> io::Result<()> {
    let block = vec![b'.'; BLOCK_BYTES];
    let mut left = bytes;
    while left > 0 {
        let count = stream.write(&block[..left.min(BLOCK_BYTES as u64) as usize]).await?;
        left -= count as u64;
        counts.sent.fetch_add(count as u64, Ordering::Relaxed);
        // Every stream gets its turn after each block: tokio would let one go on 128 times.
        tokio::task::yield_now().await;
    }
    // Closing with unread bytes would be a reset, which may overtake the last of what was sent.
    stream.shutdown().await?;
    sink(stream, counts).await
}

async fn sink(stream: &mut TcpStream, counts: &Counts) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        match stream.read(&mut block).await? {
            0 => return Ok(()),
            count => counts.received.fetch_add(count as u64, Ordering::Relaxed),
        };
        tokio::task::yield_now().await;
    }
}
