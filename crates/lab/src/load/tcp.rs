//! TCP load: requests and responses of a fixed size, on connections that stay open (netperf's TCP_RR) or on a new connection for each
//! request (its TCP_CRR).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::dial::dial;
use super::engine::{self, Lane, Protocol};
use super::report::LoadReport;
use super::shape::Shape;
use super::tally::{Met, Outcome};

/// A load of TCP requests.
#[derive(Clone, Debug)]
pub struct TcpLoad {
    /// The server's address. The server must echo what it receives.
    pub address: SocketAddr,
    /// The size of each request and of each response, in bytes.
    pub size: usize,
    /// Whether to open a connection for each request.
    pub close: bool,
    /// With `close`: whether to wait until the origin closes each connection. TIME_WAIT is then on the side of the origin, and this host
    /// does not run out of ports.
    pub wait_for_close: bool,
    /// Connections, rate and duration of the load.
    pub shape: Shape,
}

/// Runs the load.
///
/// # Errors
/// The host refuses a thread or a timer. The failures of requests are in the report.
pub async fn run_tcp(load: &TcpLoad) -> io::Result<LoadReport> {
    let name = if load.close { "tcp-crr" } else { "tcp-rr" };
    let shape = Shape { streams: 1, ..load.shape.clone() };
    engine::run(name, Arc::new(load.clone()), &shape, Arc::default()).await
}

impl Protocol for Arc<TcpLoad> {
    type Lane = Connection;

    fn lanes(&self, number: u64, _: usize) -> Vec<Connection> {
        let (request, answer) = (vec![b'.'; self.size], vec![0; self.size]);
        vec![Connection { load: self.clone(), number, stream: None, has_connected: false, request, answer }]
    }
}

/// A connection and its reconnects.
pub(super) struct Connection {
    load: Arc<TcpLoad>,
    number: u64,
    stream: Option<TcpStream>,
    has_connected: bool,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Lane for Connection {
    async fn prepare(&mut self) {
        // With a connection for each request, the first operation opens its own.
        if !self.load.close {
            self.stream = self.connect().await.ok();
            self.has_connected = self.stream.is_some();
        }
    }

    async fn operate(&mut self, _: Option<usize>, met: &mut Met) -> Outcome {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                let begun = Instant::now();
                let stream = match self.connect().await {
                    Ok(stream) => stream,
                    Err(error) => {
                        met.failed("connect", &error);
                        return Outcome::NoConnection;
                    }
                };
                met.connected = Some(begun.elapsed());
                met.reconnects += u64::from(std::mem::replace(&mut self.has_connected, true) && !self.load.close);
                stream
            }
        };
        if let Err(error) = self.exchange(&mut stream, met).await {
            met.failed("request", &error);
            return Outcome::Broken;
        }
        if !self.load.close {
            self.stream = Some(stream);
        } else if self.load.wait_for_close && stream.read(&mut self.answer).await.ok() != Some(0) {
            met.failed("request", &"the origin did not close the connection");
            return Outcome::Broken;
        }
        Outcome::Good
    }

    fn is_open(&self) -> bool {
        self.stream.is_some()
    }
}

impl Connection {
    async fn exchange(&mut self, stream: &mut TcpStream, met: &mut Met) -> io::Result<()> {
        stream.write_all(&self.request).await?;
        met.sent_bytes += self.request.len() as u64;
        stream.read_exact(&mut self.answer).await?;
        met.received_bytes += self.answer.len() as u64;
        Ok(())
    }

    async fn connect(&mut self) -> io::Result<TcpStream> {
        let source: Option<IpAddr> = self.load.shape.source(self.number);
        self.number += 1;
        let stream = dial(self.load.address, source).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}
