//! The command line of `steelyard load ws`, and its conversion to a load.

use std::io;

use bytes::Bytes;
use clap::{Args, ValueHint};
use serde::{Deserialize, Serialize};
use tungstenite::Message;

use super::client::Client;
use super::upgrade::OWN_HEADERS;
use super::{Answers, WebSocketLoad};
use crate::load::args::{CommonArgs, OperationArgs, TlsArgs, header};
use crate::load::files::Files;
use crate::load::socket::Offer;
use crate::load::target::Url;
use crate::units;

/// The longest message that a load sends or accepts.
const MESSAGE_BYTES_MAX: u64 = 64 << 20;

/// The last part of `load ws --help`.
pub(in crate::load) const EXAMPLES: &str = "\
Examples:
  steelyard load ws://localhost:8080/chat --data hello -c 100
      100 connections; each sends its next message when the last one was answered
  steelyard load wss://example.com/chat --data @message.json -r 2000
      2000 messages per second over all connections
  steelyard load ws://localhost:8080/ticker --receive
      Receive only, and count the messages

A message succeeds when it was answered by --answers messages.";

/// The arguments of `load ws`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
#[command(mut_arg("connections", |arg| arg.default_value("64")))]
pub struct WebSocketLoadArgs {
    /// The URL to connect to: `ws://localhost:8080/path`, or wss:// for TLS
    #[arg(value_hint = ValueHint::Url)]
    pub url: String,

    /// The arguments that all loads share.
    #[command(flatten)]
    pub common: CommonArgs,

    /// The arguments that all loads of operations share.
    #[command(flatten)]
    pub operations: OperationArgs,

    /// Which certificates to accept.
    #[command(flatten)]
    pub tls: TlsArgs,

    /// Add a header to the request of the upgrade, such as 'authorization: Bearer TOKEN'; repeat it for several
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = upgrade_header)]
    pub headers: Vec<(String, String)>,

    /// Send this text as each message, or the contents of a file: @FILE, or @- for standard input
    #[arg(long, value_name = "TEXT|@FILE", conflicts_with = "size")]
    pub data: Option<String>,

    /// Send messages of this size, such as 10kB, filled with dots
    #[arg(long, value_name = "BYTES", default_value = "16", value_parser = message_size, conflicts_with = "receive")]
    pub size: u64,

    /// Send messages of data (binary) instead of text
    #[arg(long)]
    pub binary: bool,

    /// Wait for this many messages after each one that is sent; 0 for none
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1_000_000), conflicts_with_all = ["echo", "receive"])]
    pub answers: u32,

    /// Count an answer as failed if it is not an echo of the message
    #[arg(long, conflicts_with = "receive")]
    pub echo: bool,

    /// Send nothing, and count each message that arrives. With --data, each connection sends that once, when it is open
    #[arg(long, conflicts_with_all = ["rate", "find_capacity"])]
    pub receive: bool,

    /// The longest message to accept; a longer one breaks the connection
    #[arg(long, value_name = "BYTES", default_value = "16MiB", value_parser = message_size)]
    pub max_message: u64,
}

impl WebSocketLoadArgs {
    /// Reads the files of the load, and checks what can be checked without a server.
    pub(in crate::load) fn read_files(&self, files: &Files) -> io::Result<()> {
        url(&self.url)?;
        self.message(files)?;
        self.tls.authorities(files)?;
        Ok(())
    }

    /// Opens a WebSocket once, to find out whether the server accepts it.
    pub(in crate::load) async fn to_load(&self, files: &Files) -> io::Result<WebSocketLoad> {
        let url = url(&self.url)?;
        let message = self.message(files)?;
        self.tls.check(url.is_secure)?;
        let reached = self.common.reach(&url, &self.tls, Offer::Http1, files).await?;
        let shape = self.operations.shape(&self.common, 1);
        let load = WebSocketLoad {
            target: url.at(reached.address),
            tls: reached.tls.map(|tls| tls.counting(&shape.handshakes)),
            headers: self.headers.clone(),
            message,
            answers: match (self.receive, self.echo) {
                (true, _) => Answers::Unasked,
                (_, true) => Answers::Echo,
                _ => Answers::Count(self.answers),
            },
            message_bytes_max: self.max_message as usize,
            shape,
        };
        let opening = Client::connect(&load, self.common.sources.first().copied());
        let refused = match tokio::time::timeout(self.common.timeout, opening).await {
            Ok(Ok(_)) => {
                // This connection is not one of the load.
                load.shape.handshakes.take();
                return Ok(load);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the server did not answer the upgrade within {:?}", self.common.timeout),
        };
        Err(io::Error::other(format!("cannot open a WebSocket at {}: {refused}", self.url)))
    }

    /// What is sent.
    fn message(&self, files: &Files) -> io::Result<Option<Message>> {
        let data = match &self.data {
            Some(text) => files.data(text)?,
            None if self.receive => return Ok(None),
            None => Bytes::from(vec![b'.'; self.size as usize]),
        };
        if data.len() as u64 > MESSAGE_BYTES_MAX {
            return Err(invalid("--data is longer than 64 MiB".to_owned()));
        }
        if self.binary {
            return Ok(Some(Message::Binary(data)));
        }
        let text = data.try_into().map_err(|_| invalid("--data is not UTF-8: use --binary".to_owned()))?;
        Ok(Some(Message::Text(text)))
    }
}

/// Parses a URL of the schemes `ws` and `wss`. Without a scheme, it means `ws`.
fn url(text: &str) -> io::Result<Url> {
    let as_http = match text.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("ws") || scheme.eq_ignore_ascii_case("http") => {
            format!("http://{rest}")
        }
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("wss") || scheme.eq_ignore_ascii_case("https") => {
            format!("https://{rest}")
        }
        Some((scheme, _)) => {
            return Err(invalid(format!("cannot put load on {text}: the scheme is {scheme:?}; use ws or wss")));
        }
        None => text.to_owned(),
    };
    Url::parse(&as_http)
}

fn upgrade_header(text: &str) -> Result<(String, String), String> {
    let (name, value) = header(text)?;
    match OWN_HEADERS.iter().any(|own| name.eq_ignore_ascii_case(own)) {
        true => Err(format!("{name} is set by the handshake")),
        false => Ok((name, value)),
    }
}

fn message_size(text: &str) -> Result<u64, String> {
    let size = units::size(text)?;
    if (1..=MESSAGE_BYTES_MAX).contains(&size) { Ok(size) } else { Err("must be between 1 and 64MiB".to_owned()) }
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
