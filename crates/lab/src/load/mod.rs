//! Load: what is put in front of a balancer under test.
//!
//! Job: `steelyard load http|tcp-rr|tcp-stream`, and the same as a library ([`run_http`]). Non-job: verdicts about who was saturated; the
//! report says what was met, nothing more.

mod client;
mod http;
mod latency;
mod pace;
mod report;
mod target;
mod tcp;

use std::fmt::Display;
use std::io;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;

pub use http::{HttpLoad, Until, run_http};
pub(crate) use latency::micros;
pub use latency::{Latencies, LatencySummary};
pub use report::HttpReport;
pub use target::Target;
pub use tcp::{Direction, RrReport, StreamReport, run_tcp_rr, run_tcp_stream};

use crate::{Verdict, host, units};

/// Connections of one load at most: more than a client address has ports for.
const CONNECTIONS_MAX: u32 = 65_536;

/// Which load.
#[derive(Debug, Subcommand)]
pub enum LoadCommand {
    /// HTTP/1.1 requests: a closed loop, or an open one with --rate
    Http(HttpLoadArgs),
    /// TCP: requests and answers of a fixed size on connections that stay
    TcpRr(TcpRrArgs),
    /// TCP: bulk, one way or both
    TcpStream(TcpStreamArgs),
}

/// The arguments of `load http`.
#[derive(Clone, Debug, Args)]
pub struct HttpLoadArgs {
    /// Where to, as in http://127.0.0.1:8080/path
    pub url: String,

    /// Connections, each with one request at a time
    #[arg(short, long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=i64::from(CONNECTIONS_MAX)))]
    pub connections: u32,

    /// Threads, each with its share of the connections
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,

    /// How long, as in 10s; the default unless --requests is given
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    pub duration: Duration,

    /// How many requests, whatever time they take
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "duration")]
    pub requests: Option<u64>,

    /// Open loop: requests per second over all connections; latency then counts from when a request was due
    #[arg(short, long, value_name = "PER_SECOND", value_parser = rate)]
    pub rate: Option<f64>,

    /// Request method
    #[arg(short, long, value_name = "METHOD", default_value = "GET", value_parser = method)]
    pub method: String,

    /// Further header, as in 'accept: text/html'; repeatable
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = header)]
    pub headers: Vec<(String, String)>,

    /// Size of the request's body, as in 10kB or 5GiB
    #[arg(short, long, value_name = "BYTES", default_value = "0", value_parser = units::size)]
    pub body: u64,

    /// How long a connect or a whole answer may take
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    pub timeout: Duration,

    /// Keep the connections open and unused for so long after the last answer
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    pub hold: Duration,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `load tcp-rr`.
#[derive(Clone, Debug, Args)]
pub struct TcpRrArgs {
    /// Where to, as in 127.0.0.1:8080; an echo must answer there
    #[arg(value_name = "HOST:PORT")]
    pub address: String,

    /// Connections
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(CONNECTIONS_MAX)))]
    pub connections: u32,

    /// Size of a request, and of its answer
    #[arg(short, long, value_name = "BYTES", default_value = "1", value_parser = rr_size)]
    pub size: u64,

    /// How long
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    pub duration: Duration,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `load tcp-stream`.
#[derive(Clone, Debug, Args)]
pub struct TcpStreamArgs {
    /// Where to, as in 127.0.0.1:8080
    #[arg(value_name = "HOST:PORT")]
    pub address: String,

    /// Which way: send to a sink, receive from an origin that sends, or both with an echo
    #[arg(long, value_enum, default_value_t = Direction::Send)]
    pub direction: Direction,

    /// Connections
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(CONNECTIONS_MAX)))]
    pub connections: u32,

    /// How long
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    pub duration: Duration,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Puts a load on and prints its report on standard output. `Failed` when nothing at all was answered.
///
/// # Errors
/// A target that is none, and threads or timers that this host refuses.
pub fn run(command: LoadCommand) -> io::Result<Verdict> {
    host::raise_open_files_limit();
    let runtime = host::runtime()?;
    match command {
        LoadCommand::Http(args) => {
            let report = runtime.block_on(run_http(&args.to_load()?))?;
            print(args.json, &report)?;
            Ok(verdict(report.answers))
        }
        LoadCommand::TcpRr(args) => {
            let address = target::resolve_address(&args.address)?;
            let run = run_tcp_rr(address, args.connections as usize, args.size as usize, args.duration);
            let report = runtime.block_on(run)?;
            print(args.json, &report)?;
            Ok(verdict(report.transactions))
        }
        LoadCommand::TcpStream(args) => {
            let address = target::resolve_address(&args.address)?;
            let run = run_tcp_stream(address, args.connections as usize, args.direction, args.duration);
            let report = runtime.block_on(run)?;
            print(args.json, &report)?;
            Ok(verdict(report.bytes))
        }
    }
}

impl HttpLoadArgs {
    fn to_load(&self) -> io::Result<HttpLoad> {
        Ok(HttpLoad {
            target: Target::resolve(&self.url)?,
            method: self.method.clone(),
            headers: self.headers.clone(),
            body_bytes: self.body,
            connections: self.connections as usize,
            threads: usize::from(self.threads),
            until: self.requests.map_or(Until::Elapsed(self.duration), Until::Requests),
            rate: self.rate,
            timeout: self.timeout,
            hold: self.hold,
            mark: Default::default(),
        })
    }
}

fn verdict(answers: u64) -> Verdict {
    if answers > 0 { Verdict::Good } else { Verdict::Failed }
}

fn print<R: Display + Serialize>(as_json: bool, report: &R) -> io::Result<()> {
    use std::io::Write;
    let mut out = io::stdout().lock();
    if as_json {
        serde_json::to_writer(&mut out, report)?;
        writeln!(out)
    } else {
        write!(out, "{report}")
    }
}

impl Display for RrReport {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        writeln!(to, "transactions  {} in {seconds:.2} s, {:.0}/s", self.transactions, self.tps)?;
        writeln!(to, "errors        {}", self.errors)?;
        writeln!(to, "latency       {}", self.latency)
    }
}

impl Display for StreamReport {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (least, most) = self.bytes_per_connection;
        let seconds = self.elapsed.as_secs_f64();
        writeln!(to, "moved            {} bytes in {seconds:.2} s, {:.3} Gbit/s", self.bytes, self.gbit_per_s)?;
        writeln!(to, "per connection   {least} to {most} bytes")?;
        writeln!(to, "errors           {}", self.errors)
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (0.001..=10_000_000.0).contains(&rate) {
        Ok(rate)
    } else {
        Err("between 0.001 and 10,000,000, please".to_owned())
    }
}

fn rr_size(text: &str) -> Result<u64, String> {
    let size = units::size(text)?;
    // What is sent before anything is read must fit into the socket buffers on the way.
    if (1..=64 * 1024).contains(&size) { Ok(size) } else { Err("between 1 and 64KiB, please".to_owned()) }
}

fn method(text: &str) -> Result<String, String> {
    let is_token = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-');
    if !is_token {
        return Err("a method is made of letters".to_owned());
    }
    if text.eq_ignore_ascii_case("connect") {
        Err("CONNECT is no request for load".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("a name, a colon and a value, please")?;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(format!("{name:?} is no header name"));
    }
    if value.bytes().any(|byte| byte < 0x20 && byte != b'\t') {
        return Err("a header value is one line of text".to_owned());
    }
    Ok((name.to_owned(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests;
