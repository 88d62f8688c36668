//! TCP load: requests and answers of a fixed size (as netperf's TCP_RR), and bulk (as iperf).

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::latency::{Latencies, LatencySummary};
use super::report::{per_second, seconds};
use crate::host;

/// Bytes moved by one read or write of a stream at most.
const BLOCK_BYTES: usize = 128 * 1024;

/// How long a connect, an answer, or the end of a stream after its last byte may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which way a stream flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From here to a sink.
    Send,
    /// From an origin that sends, to here.
    Receive,
    /// To an echo, and back.
    Echo,
}

/// What `tcp-rr` measured.
#[derive(Clone, Debug, Serialize)]
pub struct RrReport {
    /// Of this form, as JSON.
    pub version: u32,
    /// From the first connect to the last answer.
    #[serde(rename = "elapsed_s", serialize_with = "seconds")]
    pub elapsed: Duration,
    /// Answers of full size.
    pub transactions: u64,
    /// Answers per second.
    pub tps: f64,
    /// Connections that could not be made, or broke.
    pub errors: u64,
    /// From the send to the last byte of the answer.
    pub latency: LatencySummary,
}

/// What `tcp-stream` measured.
#[derive(Clone, Debug, Serialize)]
pub struct StreamReport {
    /// Of this form, as JSON.
    pub version: u32,
    /// Which way.
    pub direction: Direction,
    /// From the first connect to the end of the last connection.
    #[serde(rename = "elapsed_s", serialize_with = "seconds")]
    pub elapsed: Duration,
    /// Bytes that went the whole way: received here, or sent from here on connections whose other end confirmed with its close.
    pub bytes: u64,
    /// Of those bytes.
    pub gbit_per_s: f64,
    /// The least and the most that one connection carried: far apart, and some connections starve.
    pub bytes_per_connection: (u64, u64),
    /// Connections that could not be made, or broke.
    pub errors: u64,
}

/// `size` bytes there and `size` bytes back, one after the other on each connection, for `duration`.
///
/// # Errors
/// Threads that this host refuses. What the other side does is in the report.
pub async fn run_tcp_rr(
    address: SocketAddr,
    connections: usize,
    size: usize,
    duration: Duration,
) -> io::Result<RrReport> {
    let start = Instant::now();
    let deadline = start + duration;
    let work = move |_| async move {
        let counts = Arc::new(Mutex::new((Latencies::default(), 0)));
        let tasks = (0..connections).map(|_| {
            let counts = counts.clone();
            tokio::spawn(async move {
                let outcome = request_response(address, size, deadline, &counts).await;
                counts.lock().unwrap_or_else(PoisonError::into_inner).1 += u64::from(outcome.is_err());
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.map_err(io::Error::other)?;
        }
        let counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((counts.0.clone(), counts.1))
    };
    let (mut latencies, mut errors) = (Latencies::default(), 0);
    for (counted, failed) in host::on_threads(1, work).await? {
        latencies.add(&counted);
        errors += failed;
    }
    let (elapsed, transactions) = (start.elapsed(), latencies.count());
    let tps = per_second(transactions, elapsed);
    Ok(RrReport { version: 1, elapsed, transactions, tps, errors, latency: latencies.summary() })
}

async fn request_response(
    address: SocketAddr,
    size: usize,
    deadline: Instant,
    counts: &Mutex<(Latencies, u64)>,
) -> io::Result<()> {
    let mut stream = connect(address).await?;
    let request = vec![b'.'; size];
    let mut answer = vec![0; size];
    loop {
        let sent_at = Instant::now();
        if sent_at >= deadline {
            return Ok(());
        }
        let exchange = async {
            stream.write_all(&request).await?;
            stream.read_exact(&mut answer).await
        };
        within_patience(exchange).await?;
        counts.lock().unwrap_or_else(PoisonError::into_inner).0.record(sent_at.elapsed());
    }
}

/// Bulk over `connections`, for `duration`; `Receive` ends earlier when the origin has sent what it was told to.
///
/// # Errors
/// Threads that this host refuses. What the other side does is in the report.
pub async fn run_tcp_stream(
    address: SocketAddr,
    connections: usize,
    direction: Direction,
    duration: Duration,
) -> io::Result<StreamReport> {
    let start = Instant::now();
    let deadline = start + duration;
    let work = move |_| async move {
        let tasks = (0..connections).map(|_| tokio::spawn(stream_once(address, direction, deadline)));
        let mut outcomes = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            outcomes.push(task.await.map_err(io::Error::other)?);
        }
        Ok(outcomes)
    };
    let outcomes: Vec<_> = host::on_threads(1, work).await?.into_iter().flatten().collect();
    let elapsed = start.elapsed();
    let carried = || outcomes.iter().flatten().copied();
    let bytes: u64 = carried().sum();
    Ok(StreamReport {
        version: 1,
        direction,
        elapsed,
        bytes,
        gbit_per_s: per_second(bytes, elapsed) * 8.0 / 1e9,
        bytes_per_connection: (carried().min().unwrap_or_default(), carried().max().unwrap_or_default()),
        errors: outcomes.iter().filter(|outcome| outcome.is_err()).count() as u64,
    })
}

/// One connection; the bytes that went the whole way.
async fn stream_once(address: SocketAddr, direction: Direction, deadline: Instant) -> io::Result<u64> {
    let mut stream = connect(address).await?;
    match direction {
        Direction::Receive => receive(&mut stream, Some(deadline)).await,
        Direction::Send => {
            let sent = send(&mut stream, deadline).await?;
            // A sink closes when it has read everything: until then the bytes may lie in any buffer on the way.
            within_patience(receive(&mut stream, None)).await?;
            Ok(sent)
        }
        Direction::Echo => {
            let (mut from, mut to) = stream.split();
            let sending = send(&mut to, deadline);
            let receiving = async {
                let until_end = deadline + PATIENCE;
                receive(&mut from, Some(until_end)).await
            };
            let (sent, received) = tokio::try_join!(sending, receiving)?;
            if sent == received { Ok(received) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
        }
    }
}

async fn send<W: AsyncWriteExt + Unpin>(stream: &mut W, deadline: Instant) -> io::Result<u64> {
    let block = vec![b'.'; BLOCK_BYTES];
    let mut sent = 0;
    let until = tokio::time::sleep_until(deadline.into());
    tokio::pin!(until);
    loop {
        tokio::select! {
            biased;
            () = &mut until => break,
            count = stream.write(&block) => sent += count? as u64,
        }
    }
    stream.shutdown().await?;
    Ok(sent)
}

/// Reads to the end of the stream, or to the deadline.
async fn receive<R: AsyncReadExt + Unpin>(stream: &mut R, deadline: Option<Instant>) -> io::Result<u64> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut received = 0;
    let until = async {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(until);
    loop {
        tokio::select! {
            biased;
            () = &mut until => return Ok(received),
            count = stream.read(&mut block) => match count? {
                0 => return Ok(received),
                count => {
                    received += count as u64;
                    // tokio lets a task read 128 times in a row. Where one thread reads a hundred streams that never run dry, a stream
                    // would then get its turn twice a second, and its sender's window closes meanwhile.
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = within_patience(TcpStream::connect(address)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn within_patience<T>(what: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(PATIENCE, what).await {
        Ok(outcome) => outcome,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}
