//! The TCP origin: echoes, sends, or discards.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::manner::{Manner, MannerArgs};
use super::stats::Counts;
use super::{Acceptors, TcpOriginArgs, TcpOriginCommand};
use crate::alarm::Alarms;
use crate::stats::Rng;

/// The most bytes of one read or write.
const BLOCK_BYTES: usize = 128 * 1024;

/// The buffer of a connection that gets one answer. A larger one per connection would cost more than all the rest.
const ONCE_BYTES: usize = 4 * 1024;

/// A TCP origin with its addresses bound.
pub struct TcpOrigin {
    acceptors: Acceptors,
    service: Arc<Service>,
}

struct Service {
    mode: Mode,
    manner: Manner,
    counts: Arc<Counts>,
}

#[derive(Clone, Copy)]
enum Mode {
    Echo,
    Once,
    Send(u64),
    Sink,
}

impl TcpOrigin {
    /// An origin that answers at once.
    ///
    /// # Errors
    /// Those of [`TcpOrigin::with_manner`].
    pub fn bind(args: &TcpOriginArgs) -> io::Result<Self> {
        let (args, manner) = (args.clone(), MannerArgs::default());
        Self::with_manner(&TcpOriginCommand { args, once: false, manner })
    }

    /// Binds the addresses, and serves nothing yet.
    ///
    /// # Errors
    /// An address that cannot be bound; the message names it.
    pub fn with_manner(command: &TcpOriginCommand) -> io::Result<Self> {
        let TcpOriginCommand { args, once, manner } = command;
        let mode = match (args.send, args.sink, once) {
            (Some(bytes), ..) => Mode::Send(bytes),
            (None, true, _) => Mode::Sink,
            (None, false, true) => Mode::Once,
            (None, false, false) => Mode::Echo,
        };
        let counts = Arc::<Counts>::default();
        Ok(Self {
            acceptors: Acceptors::bind(&args.listen, args.threads)?.telling(manner.stats, &counts)?,
            service: Arc::new(Service { mode, manner: Manner::new(None, manner), counts }),
        })
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

    /// Bytes received on all connections.
    pub fn received(&self) -> u64 {
        self.service.counts.received.load(Ordering::Relaxed)
    }

    /// Connections accepted.
    pub fn connections(&self) -> u64 {
        self.service.counts.connections.load(Ordering::Relaxed)
    }

    /// Bytes sent on all connections.
    pub fn sent(&self) -> u64 {
        self.service.counts.sent.load(Ordering::Relaxed)
    }
}

async fn serve(mut stream: TcpStream, alarms: Alarms, service: Arc<Service>) {
    let counts = &service.counts;
    let number = counts.connections.fetch_add(1, Ordering::Relaxed);
    // This only fails for a dead socket, and the first read will find that out.
    let _ = stream.set_nodelay(true);
    let outcome = match service.mode {
        Mode::Echo => echo(&mut stream, &service, &alarms, number, (BLOCK_BYTES, usize::MAX)).await,
        Mode::Once => echo(&mut stream, &service, &alarms, number, (ONCE_BYTES, 1)).await,
        Mode::Send(bytes) => send(&mut stream, bytes, counts).await,
        Mode::Sink => sink(&mut stream, counts).await,
    };
    if outcome.is_ok() {
        // The other side may be gone by now, which does no harm.
        let _ = stream.shutdown().await;
    }
}

/// Sends back what arrives in each of `reads` reads.
async fn echo(
    stream: &mut TcpStream,
    service: &Service,
    alarms: &Alarms,
    number: u64,
    (block_bytes, reads): (usize, usize),
) -> io::Result<()> {
    let mut block = vec![0; block_bytes];
    let mut rng = Rng::new(number);
    for _ in 0..reads {
        let count = stream.read(&mut block).await?;
        if count == 0 {
            return Ok(());
        }
        service.counts.received.fetch_add(count as u64, Ordering::Relaxed);
        service.manner.hold(Duration::ZERO, &mut rng, alarms).await;
        stream.write_all(&block[..count]).await?;
        service.counts.sent.fetch_add(count as u64, Ordering::Relaxed);
    }
    Ok(())
}

async fn send(stream: &mut TcpStream, bytes: u64, counts: &Counts) -> io::Result<()> {
    let block = vec![b'.'; BLOCK_BYTES];
    let mut left = bytes;
    while left > 0 {
        let count = stream.write(&block[..left.min(BLOCK_BYTES as u64) as usize]).await?;
        left -= count as u64;
        counts.sent.fetch_add(count as u64, Ordering::Relaxed);
        // Every stream gets its turn after each block; tokio would let one continue 128 times.
        tokio::task::yield_now().await;
    }
    // A close with unread bytes would be a reset, which may overtake the last bytes sent.
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
