//! What an origin has served so far, reported at its own address. The lab reads it when a window opens and when it closes.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::host;
use crate::message::monotonic_ns;

/// How long one reader may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The limit of a request for the counts. It is not read beyond that.
const QUESTION_BYTES_MAX: usize = 4 * 1024;

/// What an origin has served since it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginStats {
    /// The version of this JSON form.
    pub version: u32,
    /// The CLOCK_MONOTONIC time when the rest was read.
    pub monotonic_ns: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Requests whose head has been read (without health checks), or messages sent; 0 if there are only bytes.
    pub requests: u64,
    /// Bytes of streams received. Nothing is counted for HTTP and gRPC.
    pub received_bytes: u64,
    /// Bytes of streams sent; nothing for HTTP and gRPC.
    pub sent_bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub connections: AtomicU64,
    pub requests: AtomicU64,
    pub received: AtomicU64,
    pub sent: AtomicU64,
}

impl Counts {
    pub(super) fn stats(&self) -> OriginStats {
        OriginStats {
            version: 1,
            monotonic_ns: monotonic_ns(),
            connections: self.connections.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            received_bytes: self.received.load(Ordering::Relaxed),
            sent_bytes: self.sent.load(Ordering::Relaxed),
        }
    }
}

/// Answers every HTTP request at `listener` with the counts, until the runtime ends.
pub(super) async fn tell(listener: TcpListener, counts: Arc<Counts>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // A reader that goes away needs no answer. Serving one reader at a time is fast enough.
                let _ = tokio::time::timeout(PATIENCE, answer(stream, &counts)).await;
            }
            Err(_) => tokio::time::sleep(host::ACCEPT_PAUSE).await,
        }
    }
}

async fn answer(mut stream: TcpStream, counts: &Counts) -> io::Result<()> {
    let mut question = [0; QUESTION_BYTES_MAX];
    let mut length = 0;
    while !question[..length].ends_with(b"\r\n\r\n") && length < QUESTION_BYTES_MAX {
        match stream.read(&mut question[length..]).await? {
            0 => return Ok(()),
            count => length += count,
        }
    }
    let body = serde_json::to_string(&counts.stats())?;
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    stream.shutdown().await
}
