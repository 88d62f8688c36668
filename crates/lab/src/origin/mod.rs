//! Origins: the servers behind a balancer under test.
//!
//! `steelyard origin http|grpc|tcp|stream` must be cheap enough that a benchmark measures the balancer and not the origin. It is not a web
//! server, and does not defend itself. It is for test networks: it limits what a connection may cost, but not how long a quiet one may
//! stay.

mod answer;
mod grpc;
mod http;
mod manner;
mod request;
mod stats;
mod stream;
mod tcp;

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use clap::{Args, Subcommand};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

pub use grpc::GrpcOrigin;
pub use http::HttpOrigin;
pub use manner::MannerArgs;
pub use stats::OriginStats;
pub use stream::StreamOrigin;
pub use tcp::TcpOrigin;

use crate::alarm::Alarms;
use crate::message::{HEADER_BYTES, MESSAGE_BYTES_MAX};
use crate::percentiles::Percentiles;
use crate::{host, units};
use stats::Counts;

/// Connections that an origin holds at once. Further ones are closed when they arrive.
const CONNECTIONS_MAX: usize = 65_536;

/// The kind of origin.
#[derive(Debug, Subcommand)]
pub enum OriginCommand {
    /// An HTTP/1.1 origin. /healthz answers 200, /echo sends the request's body back, and any other path gets the body; uploads are counted
    Http(HttpOriginCommand),
    /// An HTTP/2 origin in plain text: strest.Responder, health checks, and plain requests
    Grpc(GrpcOriginArgs),
    /// A TCP origin, which echoes by default
    Tcp(TcpOriginCommand),
    /// A TCP origin that sends as fast as possible, or sends messages with time stamps at a pace
    Stream(StreamOriginArgs),
}

/// `origin http`.
#[derive(Clone, Debug, Args)]
pub struct HttpOriginCommand {
    /// The content of the answers.
    #[command(flatten)]
    pub args: HttpOriginArgs,

    /// The manner of the answers.
    #[command(flatten)]
    pub manner: MannerArgs,
}

/// `origin tcp`.
#[derive(Clone, Debug, Args)]
pub struct TcpOriginCommand {
    /// The content of the answers.
    #[command(flatten)]
    pub args: TcpOriginArgs,

    /// Echo the first bytes, up to 4 KiB, and then close: the other side of load tcp-crr --wait-for-close
    #[arg(long, conflicts_with_all = ["send", "sink"])]
    pub once: bool,

    /// The manner of the answers.
    #[command(flatten)]
    pub manner: MannerArgs,
}

/// The arguments of `origin http`.
#[derive(Clone, Debug, Args)]
pub struct HttpOriginArgs {
    /// Address to listen on; repeatable; port 0 chooses a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9001", value_parser = units::listen_address)]
    pub listen: Vec<SocketAddr>,

    /// Size of the body of an answer, as in 18 or 64KiB
    #[arg(long, value_name = "BYTES", default_value = "18", value_parser = units::size)]
    pub body: u64,

    /// Time between a request and its answer, as in 200ms. It is a timer and uses no CPU; /healthz and /echo do not wait
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub delay: Option<std::time::Duration>,

    /// Name to send as the header x-origin, and at the start of the body if it fits
    #[arg(long, value_name = "TEXT", value_parser = header_value)]
    pub name: Option<String>,

    /// Close the connection after each answer, and announce that in the answer
    #[arg(long)]
    pub close: bool,

    /// Number of threads, each with its own runtime
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
}

/// The arguments of `origin tcp`.
#[derive(Clone, Debug, Args)]
pub struct TcpOriginArgs {
    /// Address to listen on; repeatable; port 0 chooses a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9001", value_parser = units::listen_address)]
    pub listen: Vec<SocketAddr>,

    /// Send this many bytes on each connection, as in 1GiB, and then close
    #[arg(long, value_name = "BYTES", value_parser = units::size, conflicts_with = "sink")]
    pub send: Option<u64>,

    /// Read everything and answer nothing; close when the other side closes
    #[arg(long)]
    pub sink: bool,

    /// Number of threads, each with its own runtime
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
}

/// The arguments of `origin grpc`.
#[derive(Clone, Debug, Args)]
pub struct GrpcOriginArgs {
    /// Address to listen on; repeatable; port 0 chooses a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9001", value_parser = units::listen_address)]
    pub listen: Vec<SocketAddr>,

    /// Size of the body of an answer to a plain request
    #[arg(long, value_name = "BYTES", default_value = "18", value_parser = body_size)]
    pub body: u64,

    /// Time between a request and its answer, as in 10ms, added to what a call asks for
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub delay: Option<std::time::Duration>,

    /// The same in whole ms by percentile, as strest-grpc reads them: 100=10 is 0 to 9 ms
    #[arg(long, alias = "latencyPercentiles", value_name = "P=MS,...", value_parser = Percentiles::strest)]
    pub latency_percentiles: Option<Percentiles>,

    /// Name to send as the header x-origin
    #[arg(long, value_name = "TEXT", value_parser = header_value)]
    pub name: Option<String>,

    /// Number of threads, each with its own runtime
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,

    /// The manner of the answers.
    #[command(flatten)]
    pub manner: MannerArgs,
}

/// The arguments of `origin stream`.
#[derive(Clone, Debug, Args)]
pub struct StreamOriginArgs {
    /// Address to listen on; repeatable; port 0 chooses a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9001", value_parser = units::listen_address)]
    pub listen: Vec<SocketAddr>,

    /// Bytes per write
    #[arg(long, value_name = "BYTES", default_value = "100kB", value_parser = block_size)]
    pub block: u64,

    /// Messages per second on each connection, instead of as much as it takes
    #[arg(long, value_name = "PER_SECOND", value_parser = message_rate)]
    pub rate: Option<f64>,

    /// Bytes per message, including its time stamps
    #[arg(long, value_name = "BYTES", default_value = "25kB", value_parser = block_size, requires = "rate")]
    pub message: u64,

    /// Number of threads, each with its own runtime
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,

    /// The manner of the answers.
    #[command(flatten)]
    pub manner: MannerArgs,
}

/// Runs an origin until SIGINT or SIGTERM. It prints its addresses to standard error, and at the end what it has served.
///
/// # Errors
/// An address that cannot be bound; the message names it.
pub fn run(command: OriginCommand) -> io::Result<()> {
    host::raise_open_files_limit();
    match command {
        OriginCommand::Http(HttpOriginCommand { args, manner }) => {
            let origin = HttpOrigin::with_manner(&args, &manner)?;
            announce("http", &origin.addresses()?);
            origin.run_until(ended())?;
            eprintln!("origin http served {} requests on {} connections", origin.requests(), origin.connections());
        }
        OriginCommand::Grpc(args) => {
            let origin = GrpcOrigin::bind(&args)?;
            announce("grpc", &origin.addresses()?);
            origin.run_until(ended())?;
            eprintln!("origin grpc served {} requests on {} connections", origin.requests(), origin.connections());
        }
        OriginCommand::Tcp(command) => {
            let origin = TcpOrigin::with_manner(&command)?;
            announce("tcp", &origin.addresses()?);
            origin.run_until(ended())?;
            eprintln!("origin tcp received {} and sent {} bytes", origin.received(), origin.sent());
        }
        OriginCommand::Stream(args) => {
            let origin = StreamOrigin::bind(&args)?;
            announce("stream", &origin.addresses()?);
            origin.run_until(ended())?;
            eprintln!("origin stream sent {} bytes", origin.sent());
        }
    }
    Ok(())
}

fn announce(kind: &str, addresses: &[SocketAddr]) {
    for address in addresses {
        eprintln!("origin {kind} listening on {address}");
    }
}

async fn ended() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

fn header_value(text: &str) -> Result<String, String> {
    let visible = !text.is_empty() && text.len() <= 256 && text.bytes().all(|byte| (0x21..0x7f).contains(&byte));
    visible.then(|| text.to_owned()).ok_or_else(|| "must have 1 to 256 visible ASCII characters".to_owned())
}

fn body_size(text: &str) -> Result<u64, String> {
    let size = units::size(text)?;
    if size <= 4 << 20 { Ok(size) } else { Err("must be at most 4MiB".to_owned()) }
}

fn block_size(text: &str) -> Result<u64, String> {
    let size = units::size(text)?;
    let range = HEADER_BYTES as u64..=u64::from(MESSAGE_BYTES_MAX);
    if range.contains(&size) { Ok(size) } else { Err("must be between 24 and 64MiB".to_owned()) }
}

fn message_rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (0.001..=100_000.0).contains(&rate) { Ok(rate) } else { Err("must be between 0.001 and 100,000".to_owned()) }
}

/// Listening sockets, and the threads that accept from them.
struct Acceptors {
    listeners: Vec<TcpListener>,
    threads: u16,
    /// Where to report the counts, and the counts.
    told: Option<(TcpListener, Arc<Counts>)>,
}

impl Acceptors {
    fn bind(listen: &[SocketAddr], threads: u16) -> io::Result<Self> {
        let bind = |&address: &SocketAddr| {
            host::listen(address)
                .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))
        };
        Ok(Self { listeners: listen.iter().map(bind).collect::<io::Result<_>>()?, threads, told: None })
    }

    /// Also binds the address for the counts, if there is one, and prints it.
    fn telling(mut self, address: Option<SocketAddr>, counts: &Arc<Counts>) -> io::Result<Self> {
        if let Some(address) = address {
            let listener = host::listen(address)
                .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))?;
            eprintln!("origin stats on {}", listener.local_addr()?);
            self.told = Some((listener, counts.clone()));
        }
        Ok(self)
    }

    fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Passes each connection to `serve` until `end` is ready.
    ///
    /// All threads accept from the same sockets, so that an idle thread takes the next connection. With a socket per thread (SO_REUSEPORT),
    /// the kernel's hash would distribute 64 connections visibly unevenly, and a second origin on the same port would go unnoticed.
    fn run_until<S, F>(&self, serve: S, end: impl Future<Output = io::Result<()>>) -> io::Result<()>
    where
        S: Fn(TcpStream, Alarms) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let (end_sender, end_receiver) = tokio::sync::watch::channel(());
        let mut threads = Vec::new();
        for _ in 1..self.threads {
            let (listeners, serve, slots, mut ended) =
                (self.clone_listeners()?, serve.clone(), slots.clone(), end_receiver.clone());
            threads.push(std::thread::spawn(move || -> io::Result<()> {
                host::runtime()?.block_on(async {
                    accept_from(listeners, &serve, &slots)?;
                    // An error means that the sender is gone, which is also the end.
                    let _ = ended.changed().await;
                    Ok(())
                })
            }));
        }
        let outcome = host::runtime()?.block_on(async {
            accept_from(self.clone_listeners()?, &serve, &slots)?;
            if let Some((listener, counts)) = &self.told {
                tokio::spawn(stats::tell(listener.try_clone()?, counts.clone()));
            }
            end.await
        });
        drop(end_sender);
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        outcome
    }

    fn clone_listeners(&self) -> io::Result<Vec<TcpListener>> {
        self.listeners.iter().map(TcpListener::try_clone).collect()
    }
}

fn accept_from<S, F>(listeners: Vec<TcpListener>, serve: &S, slots: &Arc<Semaphore>) -> io::Result<()>
where
    S: Fn(TcpStream, Alarms) -> F + Clone + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let alarms = Alarms::start()?;
    for listener in listeners {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (serve, slots, alarms) = (serve.clone(), slots.clone(), alarms.clone());
        tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let Ok(slot) = slots.clone().try_acquire_owned() else { continue };
                        let serving = serve(stream, alarms.clone());
                        tokio::spawn(async move {
                            serving.await;
                            drop(slot);
                        });
                    }
                    Err(_) => tokio::time::sleep(host::ACCEPT_PAUSE).await,
                }
            }
        });
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
