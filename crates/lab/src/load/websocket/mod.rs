//! WebSocket load (RFC 6455), in clear text or over TLS. Each connection is a lane, and each message that is sent is an operation.
//!
//! Job: connections that are opened, used and replaced. Not its job: frames, which are tungstenite's.

mod args;
mod client;
mod upgrade;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use tungstenite::Message;

pub(super) use args::EXAMPLES;
pub use args::WebSocketLoadArgs;
use client::Client;

use super::engine::{self, Lane, Protocol};
use super::report::LoadReport;
use super::shape::Shape;
use super::socket::Tls;
use super::tally::{Met, Outcome};
use super::target::Target;

/// A load of WebSocket messages.
#[derive(Clone, Debug)]
pub struct WebSocketLoad {
    /// The server and the path.
    pub target: Target,
    /// The encryption of the connections; `None` means clear text.
    pub tls: Option<Tls>,
    /// Additional headers of the upgrade. `host` replaces the default one.
    pub headers: Vec<(String, String)>,
    /// What each operation sends, or each connection once if it only receives. `None` sends nothing.
    pub message: Option<Message>,
    /// What an operation waits for.
    pub answers: Answers,
    /// The longest message that is accepted.
    pub message_bytes_max: usize,
    /// Connections, rate and duration of the load.
    pub shape: Shape,
}

/// What an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// This many messages after the one that it sends.
    Count(u32),
    /// One message, equal to the one that it sends.
    Echo,
    /// One message. It sends nothing.
    Unasked,
}

impl Answers {
    /// How many messages an operation waits for.
    fn wanted(self) -> u64 {
        match self {
            Self::Count(count) => u64::from(count),
            Self::Echo | Self::Unasked => 1,
        }
    }
}

/// Runs the load, and returns the report when it ends.
///
/// # Errors
/// The host refuses a thread or a timer. The failures of operations are in the report.
pub async fn run_websocket(load: &WebSocketLoad) -> io::Result<LoadReport> {
    let name = if load.tls.is_some() { "websocket over TLS" } else { "websocket" };
    let shape = Shape { streams: 1, ..load.shape.clone() };
    engine::run(name, Arc::new(load.clone()), &shape, Arc::<AtomicBool>::default()).await
}

impl Protocol for Arc<WebSocketLoad> {
    type Lane = Connection;

    fn lanes(&self, number: u64, _: usize) -> Vec<Connection> {
        vec![Connection { load: self.clone(), number, client: None, has_connected: false }]
    }
}

/// A connection and those that replace it.
pub(super) struct Connection {
    load: Arc<WebSocketLoad>,
    number: u64,
    client: Option<Client>,
    has_connected: bool,
}

impl Lane for Connection {
    async fn prepare(&mut self) {
        self.client = self.connect().await.ok();
        self.has_connected = self.client.is_some();
    }

    async fn operate(&mut self, _: Option<usize>, met: &mut Met) -> Outcome {
        let Some(mut client) = self.take_client(met).await else { return Outcome::NoConnection };
        let sent = self.load.message.as_ref().filter(|_| self.load.answers != Answers::Unasked);
        let outcome = client.exchange(sent, self.load.answers).await;
        client.count(met);
        if let Err(error) = outcome {
            met.failed("message", &error);
            return Outcome::Broken;
        }
        self.client = Some(client);
        Outcome::Good
    }

    fn is_open(&self) -> bool {
        self.client.is_some()
    }
}

impl Connection {
    /// Takes the open connection, or opens a new one. A connection that the server has closed since its last operation is replaced, as one of
    /// HTTP is: nothing was sent on it.
    async fn take_client(&mut self, met: &mut Met) -> Option<Client> {
        // What arrives unasked is what the operation waits for.
        let is_unasked = self.load.answers == Answers::Unasked;
        if let Some(mut client) = self.client.take()
            && (is_unasked || client.catch_up().await.is_ok())
        {
            return Some(client);
        }
        let begun = Instant::now();
        let client = match self.connect().await {
            Ok(client) => client,
            Err(error) => {
                met.failed("connect", &error);
                return None;
            }
        };
        met.connected = Some(begun.elapsed());
        met.reconnects += u64::from(std::mem::replace(&mut self.has_connected, true));
        Some(client)
    }

    async fn connect(&mut self) -> io::Result<Client> {
        let source = self.load.shape.source(self.number);
        self.number += 1;
        let mut client = Client::connect(&self.load, source).await?;
        if self.load.answers == Answers::Unasked
            && let Some(message) = &self.load.message
        {
            client.exchange(Some(message), Answers::Count(0)).await?;
        }
        Ok(client)
    }
}

#[cfg(test)]
mod tests;
