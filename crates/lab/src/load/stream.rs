//! Streams over TCP: bulk data (like iperf), and timed messages whose one-way latency is measured.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::dial::dial;
use super::engine::{self, Thread};
use super::report::LoadReport;
use super::shape::{Shape, Until};
use super::tally::{Met, Tally};
use crate::message::{MessageReader, monotonic_ns};

/// The maximum number of bytes of one read or write.
const BLOCK_BYTES: usize = 128 * 1024;

/// Bulk data has no operations, so this many bytes count as one.
const BYTES_PER_OPERATION: u64 = 100_000;

/// The direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Send to a sink
    Send,
    /// Receive from an origin that sends
    Receive,
    /// Send to an echo, and receive what it returns
    Echo,
}

/// A load of streams.
#[derive(Clone, Debug)]
pub struct StreamLoad {
    /// The server's address.
    pub address: SocketAddr,
    /// The direction.
    pub direction: Direction,
    /// Whether the origin sends messages with time stamps; only for `Receive`.
    pub messages: bool,
    /// Connections and duration of the load. A rate and a number of operations have no effect.
    pub shape: Shape,
}

/// Runs the load. With `Receive`, it ends early if the origin has sent everything.
///
/// # Errors
/// The host refuses a thread. The failures of connections are in the report.
pub async fn run_stream(load: &StreamLoad) -> io::Result<LoadReport> {
    let name = match (load.direction, load.messages) {
        (Direction::Send, _) => "stream to a sink",
        (Direction::Receive, false) => "stream from an origin",
        (Direction::Receive, true) => "messages from an origin",
        (Direction::Echo, _) => "stream to an echo",
    };
    let shape = Shape { streams: 1, rate: None, ..load.shape.clone() };
    let load = Arc::new(load.clone());
    engine::drive(name, &shape, Arc::default(), move |thread| on_thread(thread, load.clone())).await
}

/// Transfers bulk data over this number of connections for this time.
///
/// # Errors
/// The same as for [`run_stream`].
pub async fn run_tcp_stream(
    address: SocketAddr,
    connections: usize,
    direction: Direction,
    duration: Duration,
) -> io::Result<LoadReport> {
    let shape = Shape::closed(connections, Until::Elapsed(duration));
    run_stream(&StreamLoad { address, direction, messages: false, shape }).await
}

async fn on_thread(thread: Thread, load: Arc<StreamLoad>) -> io::Result<()> {
    let numbers = thread.first..thread.first + thread.share;
    engine::all(numbers.map(|number| {
        let flow = Flow { thread: thread.clone(), bytes: 0 };
        connection(flow, load.clone(), number)
    }))
    .await;
    Ok(())
}

/// Runs one connection from its connect to its end.
async fn connection(mut flow: Flow, load: Arc<StreamLoad>, number: u64) {
    flow.thread.run.ramp(number).await;
    let begun = Instant::now();
    let source = load.shape.source(number);
    let outcome = match within(load.shape.timeout, dial(load.address, source)).await {
        Ok(stream) => {
            flow.thread.tally().connect.get_or_insert_default().record(begun.elapsed());
            carry(&mut flow, &load, stream).await
        }
        Err(error) => {
            let mut met = Met::default();
            met.failed("connect", &error);
            let mut tally = flow.thread.tally();
            tally.errors.connect += 1;
            tally.count_reason(&met.why.unwrap_or_default(), 1);
            Ok(())
        }
    };
    let mut tally = flow.thread.tally();
    match outcome {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::TimedOut => tally.errors.timeout += 1,
        Err(error) => {
            let mut met = Met::default();
            met.failed("stream", &error);
            tally.errors.request += 1;
            tally.count_reason(&met.why.unwrap_or_default(), 1);
        }
    }
    tally.streams.push(flow.bytes);
    tally.ended_at(Instant::now());
}

async fn carry(flow: &mut Flow, load: &StreamLoad, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let deadline = flow.thread.run.timeline.deadline;
    let timeout = load.shape.timeout;
    match load.direction {
        Direction::Receive if load.messages => receive_messages(flow, &mut stream, deadline).await,
        Direction::Receive => receive(&mut stream, deadline, |count| flow.received(count)).await,
        Direction::Send => {
            send(&mut stream, deadline, |count| flow.sent(count)).await?;
            // A sink closes when it has read everything. Until then, bytes may still be in any buffer along the path.
            within(timeout, receive(&mut stream, None, |_| ())).await
        }
        Direction::Echo => {
            let (mut from, mut to) = stream.split();
            let mut sent = 0;
            let sending = send(&mut to, deadline, |count| sent += count);
            let receiving = within_deadline(deadline, timeout, receive(&mut from, None, |count| flow.received(count)));
            tokio::try_join!(sending, receiving)?;
            if sent == flow.bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
        }
    }
}

/// Sends until the deadline, and then shuts down the sending side.
async fn send<W: AsyncWriteExt + Unpin>(
    stream: &mut W,
    deadline: Option<Instant>,
    mut sent: impl FnMut(u64),
) -> io::Result<()> {
    let block = vec![b'.'; BLOCK_BYTES];
    let until = until(deadline);
    tokio::pin!(until);
    loop {
        tokio::select! {
            biased;
            () = &mut until => break,
            count = stream.write(&block) => sent(count? as u64),
        }
    }
    stream.shutdown().await
}

/// Reads until the end of the stream or the deadline.
async fn receive<R: AsyncReadExt + Unpin>(
    stream: &mut R,
    deadline: Option<Instant>,
    mut received: impl FnMut(u64),
) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    let until = until(deadline);
    tokio::pin!(until);
    loop {
        tokio::select! {
            biased;
            () = &mut until => return Ok(()),
            count = stream.read(&mut block) => match count? {
                0 => return Ok(()),
                count => {
                    received(count as u64);
                    // tokio lets a task read 128 times in a row. If one thread reads a hundred streams that always have data, each
                    // stream would run only twice a second, and the window of its sender would close meanwhile.
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

async fn receive_messages(flow: &mut Flow, stream: &mut TcpStream, deadline: Option<Instant>) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut reader = MessageReader::default();
    let until = until(deadline);
    tokio::pin!(until);
    loop {
        let count = tokio::select! {
            biased;
            () = &mut until => return Ok(()),
            count = stream.read(&mut block) => count?,
        };
        if count == 0 {
            return Ok(());
        }
        flow.received_of_messages(count as u64);
        let (now, now_ns) = (Instant::now(), monotonic_ns());
        let since = |then_ns: u64| Duration::from_nanos(now_ns.saturating_sub(then_ns));
        let thread = &flow.thread;
        let counted = reader.read(&block[..count], |header| {
            thread.tally().count_message(&thread.run.timeline, now, since(header.due_ns), since(header.sent_ns));
        });
        counted.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        tokio::task::yield_now().await;
    }
}

/// Counts the bytes of one connection.
struct Flow {
    thread: Thread,
    /// All bytes, within the window or not.
    bytes: u64,
}

impl Flow {
    /// Counts bytes of bulk data that were received.
    fn received(&mut self, count: u64) {
        let (is_measured, mut tally) = self.count(count, true);
        tally.received_bytes += if is_measured { count } else { 0 };
    }

    /// Counts bytes of bulk data that were sent.
    fn sent(&mut self, count: u64) {
        let (is_measured, mut tally) = self.count(count, true);
        tally.sent_bytes += if is_measured { count } else { 0 };
    }

    /// Counts bytes of messages that were received. The messages themselves are the operations, so the bytes count as none.
    fn received_of_messages(&mut self, count: u64) {
        let (is_measured, mut tally) = self.count(count, false);
        tally.received_bytes += if is_measured { count } else { 0 };
    }

    fn count(&mut self, count: u64, is_bulk: bool) -> (bool, MutexGuard<'_, Tally>) {
        let now = Instant::now();
        let before = self.bytes / BYTES_PER_OPERATION;
        self.bytes += count;
        let timeline = &self.thread.run.timeline;
        let mut tally = self.thread.tally();
        if is_bulk {
            tally.count_blocks(timeline, now, self.bytes / BYTES_PER_OPERATION - before);
        }
        (timeline.is_measured(now), tally)
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

async fn within<T>(timeout: Duration, what: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(timeout, what).await {
        Ok(outcome) => outcome,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Like `within`, but the timeout begins at the deadline.
async fn within_deadline<T>(
    deadline: Option<Instant>,
    timeout: Duration,
    what: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let Some(deadline) = deadline else { return what.await };
    within((deadline + timeout).saturating_duration_since(Instant::now()), what).await
}
