//! The stream origin: sends as fast as possible, or sends messages with time stamps at a pace.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::manner::Manner;
use super::stats::Counts;
use super::{Acceptors, StreamOriginArgs};
use crate::alarm::Alarms;
use crate::message::{HEADER_BYTES, Header, monotonic_ns};
use crate::stats::Rng;

/// A stream origin with its addresses bound.
pub struct StreamOrigin {
    acceptors: Acceptors,
    service: Arc<Service>,
}

struct Service {
    /// Bytes of one write, or of one message.
    block_bytes: usize,
    /// The time between two messages; `None` for bytes without a pace.
    interval: Option<Duration>,
    manner: Manner,
    counts: Arc<Counts>,
}

impl StreamOrigin {
    /// Binds the addresses, and serves nothing yet.
    ///
    /// # Errors
    /// An address that cannot be bound; the message names it.
    pub fn bind(args: &StreamOriginArgs) -> io::Result<Self> {
        let interval = args.rate.map(|rate| Duration::from_secs_f64(1.0 / rate));
        let bytes = if interval.is_some() { args.message } else { args.block };
        let counts = Arc::<Counts>::default();
        Ok(Self {
            acceptors: Acceptors::bind(&args.listen, args.threads)?.telling(args.manner.stats, &counts)?,
            service: Arc::new(Service {
                block_bytes: bytes as usize,
                interval,
                manner: Manner::new(None, &args.manner),
                counts,
            }),
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

    /// Bytes sent on all connections.
    pub fn sent(&self) -> u64 {
        self.service.counts.sent.load(Ordering::Relaxed)
    }
}

async fn serve(stream: TcpStream, alarms: Alarms, service: Arc<Service>) {
    let number = service.counts.connections.fetch_add(1, Ordering::Relaxed);
    // This only fails for a dead socket, and the first write will find that out.
    let _ = stream.set_nodelay(true);
    let (mut from, mut to) = stream.into_split();
    let sending = async {
        match service.interval {
            None => saturate(&mut to, &service, &alarms, number).await,
            Some(interval) => at_a_pace(&mut to, &service, &alarms, number, interval).await,
        }
    };
    // Runs until the other side closes, and then there is nothing left to do.
    let gone = async {
        let mut block = [0; 4 * 1024];
        while from.read(&mut block).await? > 0 {}
        io::Result::Ok(())
    };
    tokio::select! {
        _ = sending => {}
        _ = gone => {}
    }
}

async fn saturate<W: AsyncWriteExt + Unpin>(
    to: &mut W,
    service: &Service,
    alarms: &Alarms,
    number: u64,
) -> io::Result<()> {
    let block = vec![b'.'; service.block_bytes];
    let mut rng = Rng::new(number);
    loop {
        service.manner.hold(Duration::ZERO, &mut rng, alarms).await;
        send(to, &block, service).await?;
        // Every stream gets its turn after each block; tokio would let one continue 128 times.
        tokio::task::yield_now().await;
    }
}

/// Each connection has its own schedule from its start on, shifted by a part of the interval from its neighbour's, so that a hundred of
/// them do not send at the same instant. A message that cannot be sent in time is sent late, and those after it keep their times.
async fn at_a_pace<W: AsyncWriteExt + Unpin>(
    to: &mut W,
    service: &Service,
    alarms: &Alarms,
    number: u64,
    interval: Duration,
) -> io::Result<()> {
    let mut message = vec![b'.'; service.block_bytes.max(HEADER_BYTES)];
    let mut rng = Rng::new(number);
    let (start, start_ns) = (Instant::now() + interval.mul_f64(rng.unit()), monotonic_ns());
    let start_ns = start_ns + start.saturating_duration_since(Instant::now()).as_nanos() as u64;
    for index in 0.. {
        let offset = interval.mul_f64(f64::from(index));
        alarms.sleep_until(start + offset).await;
        service.manner.hold(Duration::ZERO, &mut rng, alarms).await;
        let header = Header {
            length: message.len() as u32,
            due_ns: start_ns + offset.as_nanos() as u64,
            sent_ns: monotonic_ns(),
        };
        message[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        send(to, &message, service).await?;
        service.counts.requests.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

async fn send<W: AsyncWriteExt + Unpin>(to: &mut W, mut bytes: &[u8], service: &Service) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = to.write(bytes).await?;
        service.counts.sent.fetch_add(count as u64, Ordering::Relaxed);
        bytes = &bytes[count..];
    }
    Ok(())
}
