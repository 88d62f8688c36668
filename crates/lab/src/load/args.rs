//! The command line of `steelyard load`, and what it means.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::grpc::GrpcLoad;
use super::http::{HttpLoad, Version};
use super::search::Objective;
use super::shape::{Shape, Stop, Until};
use super::stream::{Direction, StreamLoad};
use super::target::{self, Target};
use super::tcp::TcpLoad;
use crate::percentiles::Percentiles;
use crate::record::Pacing;
use crate::units;

/// Connections of one load at most: more than a client address has ports for.
const CONNECTIONS_MAX: u32 = 65_536;

/// Operations under way on one connection at most.
const STREAMS_MAX: u32 = 1_024;

/// Between two steps of a search for capacity.
const COOL_DOWN: Duration = Duration::from_secs(1);

/// Which load.
#[derive(Debug, Subcommand)]
pub enum LoadCommand {
    /// HTTP requests: a closed loop, or an open one with --rate
    Http(HttpLoadArgs),
    /// gRPC calls, of strest.Responder or of any method that takes an empty message
    Grpc(GrpcLoadArgs),
    /// TCP: requests and answers of a fixed size on connections that stay
    TcpRr(TcpRrArgs),
    /// TCP: connect, a request, its answer, close
    TcpCrr(TcpCrrArgs),
    /// TCP: bulk, one way or both, or messages at the pace of the origin
    #[command(alias = "tcp-stream")]
    Stream(StreamArgs),
}

/// What all loads have in common.
#[derive(Clone, Debug, Args)]
pub struct CommonArgs {
    /// Connections
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(CONNECTIONS_MAX)))]
    pub connections: u32,

    /// Threads, each with its share of the connections
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,

    /// How long, as in 10s, or 10 for seconds; what follows ramp and warm-up
    #[arg(short, long, visible_short_alias = 'z', value_name = "TIME", default_value = "10s", value_parser = measured_time)]
    pub duration: Duration,

    /// Make the connections one after the other over so long, instead of all at once
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    pub ramp: Duration,

    /// Go on for so long before anything is measured
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    pub warm_up: Duration,

    /// Go on for so long after the measured time; without it, what is under way at the end is waited for and counts
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    pub trim: Duration,

    /// How long one operation may take, with its connect
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = seconds_or_duration)]
    pub timeout: Duration,

    /// Address of this host to connect from; repeatable, connections take turns
    #[arg(long = "source", value_name = "ADDRESS")]
    pub sources: Vec<IpAddr>,

    /// Say on standard error when the measured time begins and when it ends
    #[arg(long)]
    pub announce: bool,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// What loads of operations have in common: all but streams.
#[derive(Clone, Debug, Args)]
pub struct OperationArgs {
    /// How many operations, whatever time they take
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "duration", value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: Option<u64>,

    /// Open loop: operations a second over all connections; latency then counts from when one was due
    #[arg(short, long, visible_short_alias = 'q', value_name = "PER_SECOND", value_parser = rate)]
    pub rate: Option<f64>,

    /// Open loop: evenly (uniform), or all of a second's at its start, as strest-grpc does (burst1hz)
    #[arg(long, value_name = "HOW", default_value = "uniform", value_parser = pacing, requires = "rate")]
    pub pacing: Pacing,

    /// Find the greatest rate at which p99, from when operations were due, is within this time; --rate is where to begin
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with = "requests")]
    pub find_capacity: Option<Duration>,

    /// How long each step of the search takes; the rate that is found is then tried three times for --duration
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = units::duration)]
    pub step: Duration,

    /// Keep the connections open and unused for so long after the last answer
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    pub hold: Duration,

    /// Burn so much CPU before each operation: a load that saturates on purpose, to see whether that is noticed
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration, hide = true)]
    pub work: Duration,
}

/// The arguments of `load http`.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("connections", |arg| arg.default_value("64")))]
pub struct HttpLoadArgs {
    /// Where to, as in http://127.0.0.1:8080/path
    pub url: String,

    /// What all loads have in common.
    #[command(flatten)]
    pub common: CommonArgs,

    /// What loads of operations have in common.
    #[command(flatten)]
    pub operations: OperationArgs,

    /// 1.0 (with keep-alive, as ab -k), 1.1, or 2 (clear text, by prior knowledge)
    #[arg(long = "http", value_name = "VERSION", default_value = "1.1", value_parser = version)]
    pub version: Version,

    /// A connection for each request, as ab without -k
    #[arg(long)]
    pub close: bool,

    /// HTTP/2: streams on each connection, each with one request at a time
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(STREAMS_MAX)))]
    pub streams: u32,

    /// Request method
    #[arg(short, long, visible_short_alias = 'X', value_name = "METHOD", default_value = "GET", value_parser = method)]
    pub method: String,

    /// Further header, as in 'accept: text/html'; repeatable. `Host`, `Connection` and `Content-Length` take the place of what would be sent
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = header)]
    pub headers: Vec<(String, String)>,

    /// Size of the request's body, as in 10kB or 5GiB
    #[arg(short, long, value_name = "BYTES", default_value = "0", value_parser = units::size)]
    pub body: u64,

    /// Count an answer of another length than the first one as failed, as ab does
    #[arg(long)]
    pub same_length: bool,
}

/// The arguments of `load grpc`. strest-grpc's own names for them are understood, too.
#[derive(Clone, Debug, Args)]
#[command(
    mut_arg("requests", |arg| arg.alias("totalRequests")),
    mut_arg("rate", |arg| arg.alias("totalTargetRps"))
)]
pub struct GrpcLoadArgs {
    /// Where to, as in 127.0.0.1:9001, or http://127.0.0.1:9001/package.Service/Method
    pub url: String,

    /// What all loads have in common.
    #[command(flatten)]
    pub common: CommonArgs,

    /// What loads of operations have in common.
    #[command(flatten)]
    pub operations: OperationArgs,

    /// Streams on each connection, each with one call at a time
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(STREAMS_MAX)))]
    pub streams: u32,

    /// Bytes of each reply's body
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub length: u32,

    /// Wait that the origin is asked for, in whole ms by percentile, as strest-grpc reads them: 100=10 is 0 to 9 ms
    #[arg(long, alias = "latencyPercentiles", value_name = "P=MS,...", value_parser = Percentiles::strest)]
    pub latency_percentiles: Option<Percentiles>,

    /// Share of the calls that the origin is asked to fail, 0 to 1
    #[arg(long, alias = "errorRate", value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub error_rate: f32,

    /// Replies to each call: StreamingGet instead of Get
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub streaming: Option<u32>,

    /// Of the draws of latencies
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Print the JSON that strest-grpc prints at its end, in ms, with the rate that was reached and latencies from when calls were due
    #[arg(long, conflicts_with_all = ["json", "find_capacity"])]
    pub strest_report: bool,
}

/// The arguments of `load tcp-rr`.
#[derive(Clone, Debug, Args)]
pub struct TcpRrArgs {
    /// Where to, as in 127.0.0.1:8080; an echo must answer there
    #[arg(value_name = "HOST:PORT")]
    pub address: String,

    /// What all loads have in common.
    #[command(flatten)]
    pub common: CommonArgs,

    /// What loads of operations have in common.
    #[command(flatten)]
    pub operations: OperationArgs,

    /// Size of a request, and of its answer
    #[arg(long, value_name = "BYTES", default_value = "1", value_parser = rr_size)]
    pub size: u64,
}

/// The arguments of `load tcp-crr`.
#[derive(Clone, Debug, Args)]
pub struct TcpCrrArgs {
    /// As for tcp-rr.
    #[command(flatten)]
    pub rr: TcpRrArgs,

    /// Wait for the origin to close (origin tcp --once): TIME_WAIT is then on its side, and ports on this one do not run out
    #[arg(long)]
    pub wait_for_close: bool,
}

/// The arguments of `load stream`.
#[derive(Clone, Debug, Args)]
pub struct StreamArgs {
    /// Where to, as in 127.0.0.1:8080
    #[arg(value_name = "HOST:PORT")]
    pub address: String,

    /// What all loads have in common.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Which way: send to a sink, receive from an origin that sends, or both with an echo
    #[arg(long, value_enum, default_value_t = Direction::Send)]
    pub direction: Direction,

    /// What comes are messages with time stamps (origin stream --rate): measure how long each took, one way
    #[arg(long)]
    pub messages: bool,
}

impl CommonArgs {
    fn shape(&self, streams: u32) -> Shape {
        Shape {
            connections: self.connections as usize,
            streams: streams as usize,
            threads: usize::from(self.threads),
            until: Until::Elapsed(self.duration),
            rate: None,
            pacing: Pacing::Uniform,
            ramp: self.ramp,
            warm_up: self.warm_up,
            trim: self.trim,
            timeout: self.timeout,
            hold: Duration::ZERO,
            sources: self.sources.clone(),
            work: Duration::ZERO,
            announce: self.announce,
            stop: Stop::default(),
        }
    }
}

impl OperationArgs {
    fn shape(&self, common: &CommonArgs, streams: u32) -> Shape {
        let shape = common.shape(streams);
        Shape {
            until: self.requests.map_or(shape.until, Until::Requests),
            rate: self.rate,
            pacing: self.pacing,
            hold: self.hold,
            work: self.work,
            ..shape
        }
    }

    /// What is searched for, if anything is.
    pub(super) fn objective(&self) -> Option<Objective> {
        self.find_capacity.map(|p99| Objective { p99, step: self.step, cool_down: COOL_DOWN, begin: self.rate })
    }
}

impl HttpLoadArgs {
    pub(super) fn to_load(&self) -> io::Result<HttpLoad> {
        Ok(HttpLoad {
            target: Target::resolve(&self.url)?,
            version: self.version,
            close: self.close,
            method: self.method.clone(),
            headers: self.headers.clone(),
            body_bytes: self.body,
            same_length: self.same_length,
            shape: self.operations.shape(&self.common, self.streams),
            mark: Default::default(),
        })
    }
}

impl GrpcLoadArgs {
    pub(super) fn to_load(&self) -> io::Result<GrpcLoad> {
        Ok(GrpcLoad {
            target: Target::resolve(&self.url)?,
            length: self.length,
            latency: self.latency_percentiles.clone(),
            error_rate: self.error_rate,
            streaming: self.streaming,
            seed: self.seed,
            shape: self.operations.shape(&self.common, self.streams),
        })
    }
}

impl TcpRrArgs {
    pub(super) fn to_load(&self) -> io::Result<TcpLoad> {
        Ok(TcpLoad {
            address: target::resolve_address(&self.address)?,
            size: self.size as usize,
            close: false,
            wait_for_close: false,
            shape: self.operations.shape(&self.common, 1),
        })
    }
}

impl TcpCrrArgs {
    pub(super) fn to_load(&self) -> io::Result<TcpLoad> {
        Ok(TcpLoad { close: true, wait_for_close: self.wait_for_close, ..self.rr.to_load()? })
    }
}

impl StreamArgs {
    pub(super) fn to_load(&self) -> io::Result<StreamLoad> {
        if self.messages && self.direction != Direction::Receive {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "--messages come from an origin: --direction receive",
            ));
        }
        Ok(StreamLoad {
            address: target::resolve_address(&self.address)?,
            direction: self.direction,
            messages: self.messages,
            shape: self.common.shape(1),
        })
    }
}

/// A number alone is one of seconds, as for wrk.
fn seconds_or_duration(text: &str) -> Result<Duration, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_number { units::duration(&format!("{text}s")) } else { units::duration(text) }
}

/// Nothing would be measured in no time.
fn measured_time(text: &str) -> Result<Duration, String> {
    match seconds_or_duration(text)? {
        Duration::ZERO => Err("more than zero, please".to_owned()),
        duration => Ok(duration),
    }
}

fn version(text: &str) -> Result<Version, String> {
    match text {
        "1.0" => Ok(Version::Http10),
        "1.1" => Ok(Version::Http11),
        "2" => Ok(Version::Http2),
        _ => Err("1.0, 1.1 or 2, please".to_owned()),
    }
}

fn pacing(text: &str) -> Result<Pacing, String> {
    match text {
        "uniform" => Ok(Pacing::Uniform),
        "burst1hz" => Ok(Pacing::Burst1hz),
        _ => Err("uniform or burst1hz, please".to_owned()),
    }
}

fn share(text: &str) -> Result<f32, String> {
    let share: f32 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err("between 0 and 1, please".to_owned()) }
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
