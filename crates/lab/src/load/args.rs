//! The command line of `steelyard load`, and its conversion to loads.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};
use serde::{Deserialize, Serialize};

use super::arrivals::Stage;
use super::files::Files;
use super::generators::GeneratorArgs;
use super::grpc::{self, GrpcLoadArgs};
use super::http::{HttpLoad, Version};
use super::mix;
use super::reach::{Attempt, Reached, reach};
use super::replay::ReplayArgs;
use super::search::Objective;
use super::shape::{Shape, Until};
use super::socket::{self, Manner, Offer, Tls, Trust};
use super::stream::{Direction, StreamLoad};
use super::target::{self, Target, Url};
use super::tcp::TcpLoad;
use super::threshold::Thresholds;
use super::websocket::{self, WebSocketLoadArgs};
use crate::record::Pacing;
use crate::units;

/// The maximum number of connections of one load. One client address has fewer ports than this.
const CONNECTIONS_MAX: u32 = 65_536;

/// The maximum number of concurrent operations on one connection.
pub(super) const STREAMS_MAX: u32 = 1_024;

/// The pause between two steps of a search for capacity.
const COOL_DOWN: Duration = Duration::from_secs(1);

/// The kinds of load.
#[derive(Clone, Debug, Subcommand, Serialize, Deserialize)]
pub enum LoadCommand {
    /// Send HTTP requests, over http or https
    #[command(after_long_help = EXAMPLES)]
    Http(Box<HttpLoadArgs>),
    /// Make gRPC calls, with messages written as JSON
    #[command(after_long_help = grpc::EXAMPLES)]
    Grpc(Box<GrpcLoadArgs>),
    /// Send WebSocket messages; `load ws://HOST/PATH` is short for `load ws ws://HOST/PATH`
    #[command(name = "ws", alias = "websocket", after_long_help = websocket::EXAMPLES)]
    WebSocket(Box<WebSocketLoadArgs>),
    /// Send requests of a fixed size over TCP connections that stay open
    TcpRr(Box<TcpRrArgs>),
    /// Open a TCP connection for each request and close it afterwards
    TcpCrr(Box<TcpCrrArgs>),
    /// Transfer bulk data over TCP in one direction or both, or receive timed messages from an origin
    #[command(alias = "tcp-stream")]
    Stream(StreamArgs),
    /// Put a part of a load on, for `--generators` of another host
    #[command(hide = true)]
    Generator,
}

/// The last part of `--help`.
pub const EXAMPLES: &str = "\
Examples:
  steelyard load https://example.com/
      64 connections for 10 seconds, each as fast as the server answers
  steelyard load http://localhost:8080/ -c 100 -d 30s -r 2000
      2000 requests per second over 100 connections
  steelyard load http://localhost:8080/ -n 1000 --data @order.json -H 'content-type: application/json'
      1000 POST requests with the file as the body
  steelyard load http://localhost:8080 --replay access.log --speed 2
      The requests of an access log, twice as fast as they were recorded
  steelyard load http://localhost:8080/ --max-p99 50ms --max-errors 0.1%
      Exit with 99 if the service is too slow or fails too often

A response with a status from 200 to 399 is a success; redirects are not followed. Ctrl-C prints the
results so far.

Exit codes:
  0   at least one request succeeded, and every threshold was met
  1   no request succeeded, or the server could not be reached
  2   the command line is wrong
  99  a threshold was missed";

/// The arguments that all loads share.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct CommonArgs {
    /// Number of connections
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(CONNECTIONS_MAX)))]
    pub connections: u32,

    /// Number of threads; they share the connections
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,

    /// Measure for this long, after the ramp and the warm-up: 10s, or 10 for seconds
    #[arg(short, long, visible_short_alias = 'z', value_name = "TIME", default_value = "10s", value_parser = measured_time)]
    pub duration: Duration,

    /// Spread the opening of the connections over this time, instead of opening all at once
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    pub ramp: Duration,

    /// Run the load for this long before the measurement begins
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    pub warm_up: Duration,

    /// Keep the load running for this long after the measurement. With 0s, operations in progress at the end are finished and counted
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    pub trim: Duration,

    /// Give up on an operation after this time, including its connect
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = seconds_or_duration)]
    pub timeout: Duration,

    /// Connect from this address of this host; repeat it to alternate between several
    #[arg(long = "source", value_name = "ADDRESS")]
    pub sources: Vec<IpAddr>,

    /// Print a line on standard error when the measurement begins and when it ends
    #[arg(long)]
    pub announce: bool,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// The arguments that all loads of operations share: all loads except `load stream`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct OperationArgs {
    /// Stop after this many operations, however long they take
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "duration", value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: Option<u64>,

    /// Start this many operations per second, over all connections; latency then counts from the time at which an operation was due
    #[arg(short, long, visible_short_alias = 'q', value_name = "PER_SECOND", value_parser = rate)]
    pub rate: Option<f64>,

    /// With --rate: start operations evenly (uniform), at random as independent users do (poisson), or all of each second at its start, as
    /// strest-grpc does (burst1hz)
    #[arg(long, value_name = "HOW", default_value = "uniform", value_parser = pacing, requires = "rate")]
    pub pacing: Pacing,

    /// The seed of what is random: the times of --pacing poisson, the order of --mix. Equal seeds give the same
    #[arg(long = "random-seed", value_name = "N", default_value_t = 1)]
    pub random_seed: u64,

    /// With --rate: change the rate in stages after the warm-up, such as 30s:2000,1m:2000,10s:0. Over each time, the rate changes evenly from the
    /// one before it (at first, that of --rate) to the given one; 0s is a jump. Their sum is the duration
    #[arg(long, value_name = "TIME:RATE,...", value_delimiter = ',', value_parser = stage, requires = "rate", conflicts_with_all = ["requests", "duration", "find_capacity"])]
    pub stages: Vec<Stage>,

    /// Find the highest rate at which the p99 latency, counted from when operations were due, stays within this time; start at --rate
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with = "requests")]
    pub find_capacity: Option<Duration>,

    /// With --find-capacity: try each rate for this long. The rate that it finds is then tried three times for --duration
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = units::duration)]
    pub step: Duration,

    /// Also write the results to this file, in the text format of Prometheus
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "find_capacity")]
    pub prometheus: Option<PathBuf>,

    /// Keep the connections open and idle for this long after the last response
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    pub hold: Duration,

    /// Busy-wait for this long before each operation, to test whether a saturated load is noticed
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration, hide = true)]
    pub work: Duration,

    /// The hosts that put the load on.
    #[command(flatten)]
    pub generators: GeneratorArgs,

    /// Limits that set the exit code.
    #[command(flatten)]
    pub thresholds: Thresholds,
}

/// The arguments that loads over https share.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct TlsArgs {
    /// With https: accept any certificate
    #[arg(short = 'k', long)]
    pub insecure: bool,

    /// With https: trust the authorities in this PEM file instead of those of this host
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "insecure")]
    pub cacert: Option<PathBuf>,

    /// With https: begin every connection with a full handshake. By default, a connection resumes the session of an earlier one if the server allows it
    #[arg(long)]
    pub full_handshakes: bool,

    /// With https: offer only these cipher suites, such as TLS_AES_128_GCM_SHA256 [default: TLS 1.3 and 1.2 with all that are safe]
    #[arg(long, value_name = "SUITE,...", value_delimiter = ',', value_parser = socket::cipher)]
    pub ciphers: Vec<String>,

    /// With https: offer only these groups for the key exchange: X25519MLKEM768, X25519, secp256r1, secp384r1 [default: all of them]
    #[arg(long, value_name = "GROUP,...", value_delimiter = ',', value_parser = socket::group)]
    pub groups: Vec<String>,
}

/// The arguments of `load http`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
#[command(mut_arg("connections", |arg| arg.default_value("64")))]
pub struct HttpLoadArgs {
    /// The URL to request: `https://example.com/path`, or `localhost:8080/path` for plain HTTP
    #[arg(value_hint = ValueHint::Url)]
    pub url: String,

    /// The arguments that all loads share.
    #[command(flatten)]
    pub common: CommonArgs,

    /// HTTP version: 1.0 (with keep-alive, like ab -k), 1.1 or 2 [default: the server's choice of 2 or 1.1 (ALPN) for https, 1.1 for http]
    #[arg(long = "http", value_name = "VERSION", value_parser = version)]
    pub version: Option<Version>,

    /// Open a connection for each request, like ab without -k
    #[arg(long)]
    pub close: bool,

    /// With HTTP/2: run this many concurrent requests on each connection
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(STREAMS_MAX)))]
    pub streams: u32,

    /// Request method [default: GET, or POST with --data]
    #[arg(short, long, visible_short_alias = 'X', value_name = "METHOD", value_parser = method)]
    pub method: Option<String>,

    /// Add a header, such as 'accept: text/html'; repeat it for several. `Host`, `Connection` and `Content-Length` replace the default ones
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = header)]
    pub headers: Vec<(String, String)>,

    /// Send this text as the body of each request, or the contents of a file: @FILE, or @- for standard input
    #[arg(long, value_name = "TEXT|@FILE", conflicts_with = "body")]
    pub data: Option<String>,

    /// Send a body of this size, such as 10kB or 5GiB, filled with dots
    #[arg(short, long, value_name = "BYTES", default_value = "0", value_parser = units::size)]
    pub body: u64,

    /// Send the requests of this file in random order. Its lines are a weight, a method, a path at the server of the URL or a whole URL, and perhaps
    /// a file with the body: `3 GET /search?q=1`, `1 POST https://shop.example/orders @order.json`. At most 64 servers
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["method", "data", "body", "same_length"])]
    pub mix: Option<PathBuf>,

    /// The recorded requests to send.
    #[command(flatten)]
    pub replay: ReplayArgs,

    /// Which certificates to accept.
    #[command(flatten)]
    pub tls: TlsArgs,

    /// Count a response as failed if its length differs from that of the first one, like ab
    #[arg(long)]
    pub same_length: bool,

    /// The arguments that all loads of operations share.
    #[command(flatten)]
    pub operations: OperationArgs,
}

/// The arguments of `load tcp-rr`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct TcpRrArgs {
    /// The address of the server, which must echo what it receives: 127.0.0.1:8080
    #[arg(value_name = "HOST:PORT")]
    pub address: String,

    /// The arguments that all loads share.
    #[command(flatten)]
    pub common: CommonArgs,

    /// The arguments that all loads of operations share.
    #[command(flatten)]
    pub operations: OperationArgs,

    /// Size of each request and of each response
    #[arg(long, value_name = "BYTES", default_value = "1", value_parser = rr_size)]
    pub size: u64,
}

/// The arguments of `load tcp-crr`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct TcpCrrArgs {
    /// The arguments of `load tcp-rr`.
    #[command(flatten)]
    pub rr: TcpRrArgs,

    /// Wait for the origin to close each connection (origin tcp --once). It then keeps TIME_WAIT, and this host does not run out of ports
    #[arg(long)]
    pub wait_for_close: bool,
}

/// The arguments of `load stream`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct StreamArgs {
    /// The address of the server: 127.0.0.1:8080
    #[arg(value_name = "HOST:PORT")]
    pub address: String,

    /// The arguments that all loads share.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Send to a sink, receive from an origin that sends, or do both with an echo
    #[arg(long, value_enum, default_value_t = Direction::Send)]
    pub direction: Direction,

    /// Receive messages with time stamps (origin stream --rate), and measure the one-way latency of each
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
            ramp: self.ramp,
            warm_up: self.warm_up,
            trim: self.trim,
            timeout: self.timeout,
            sources: self.sources.clone(),
            announce: self.announce,
            ..Shape::closed(1, Until::Requests(1))
        }
    }

    /// Connects once, to find out whether the server accepts connections and which protocols it speaks.
    pub(super) async fn reach(&self, url: &Url, tls: &TlsArgs, offer: Offer, files: &Files) -> io::Result<Reached> {
        let authorities = tls.authorities(files)?;
        let trust = match (&tls.cacert, &authorities) {
            _ if tls.insecure => Trust::Anything,
            (Some(name), Some(text)) => Trust::Pem { name, text },
            _ => Trust::Host,
        };
        let manner = tls.manner();
        reach(url, &Attempt { trust, offer, manner, source: self.sources.first().copied(), timeout: self.timeout })
            .await
    }
}

impl TlsArgs {
    /// Checks that an option for https has a use.
    pub(super) fn check(&self, is_any_secure: bool) -> io::Result<()> {
        let given = [
            ("--insecure", self.insecure),
            ("--cacert", self.cacert.is_some()),
            ("--full-handshakes", self.full_handshakes),
            ("--ciphers", !self.ciphers.is_empty()),
            ("--groups", !self.groups.is_empty()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) if !is_any_secure => {
                let why = format!("{option} is for https, but the URL is for http");
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
            _ => Ok(()),
        }
    }

    fn manner(&self) -> Manner<'_> {
        Manner { full_handshakes: self.full_handshakes, ciphers: &self.ciphers, groups: &self.groups }
    }

    /// The file of `--cacert`.
    pub(super) fn authorities(&self, files: &Files) -> io::Result<Option<bytes::Bytes>> {
        self.cacert.as_deref().map(|file| files.read(file)).transpose()
    }
}

impl OperationArgs {
    pub(super) fn shape(&self, common: &CommonArgs, streams: u32) -> Shape {
        let shape = common.shape(streams);
        Shape {
            until: match (self.requests, self.stages.is_empty()) {
                (Some(requests), _) => Until::Requests(requests),
                (None, true) => shape.until,
                (None, false) => Until::Elapsed(self.stages.iter().map(|stage| stage.time).sum()),
            },
            rate: self.rate,
            pacing: self.pacing,
            stages: self.stages.clone(),
            seed: self.random_seed,
            hold: self.hold,
            work: self.work,
            ..shape
        }
    }

    /// The objective of `--find-capacity`, if that is given.
    pub(super) fn objective(&self) -> Option<Objective> {
        self.find_capacity.map(|p99| Objective { p99, step: self.step, cool_down: COOL_DOWN, begin: self.rate })
    }
}

impl LoadCommand {
    /// The arguments of a load of operations.
    pub(super) fn operations(&self) -> Option<(&OperationArgs, &CommonArgs, u32)> {
        match self {
            Self::Http(args) => Some((&args.operations, &args.common, args.streams)),
            Self::Grpc(args) => Some((&args.operations, &args.common, args.streams)),
            Self::WebSocket(args) => Some((&args.operations, &args.common, 1)),
            Self::TcpRr(args) => Some((&args.operations, &args.common, 1)),
            Self::TcpCrr(args) => Some((&args.rr.operations, &args.rr.common, 1)),
            Self::Stream(_) | Self::Generator => None,
        }
    }

    /// Reads all files of the load, so that what is wrong with them is known at once. What describes gRPC methods becomes one file.
    pub(super) fn read_files(&mut self, files: &Files) -> io::Result<()> {
        match self {
            Self::Http(args) => {
                let url = Url::parse(&args.url)?;
                args.data.as_deref().map(|text| files.data(text)).transpose()?;
                args.mix.as_deref().map(|file| mix::read(file, &url, files)).transpose()?;
                args.tls.authorities(files)?;
            }
            Self::Grpc(args) => args.read_files(files)?,
            Self::WebSocket(args) => args.read_files(files)?,
            Self::TcpRr(_) | Self::TcpCrr(_) | Self::Stream(_) | Self::Generator => {}
        }
        Ok(())
    }
}

impl HttpLoadArgs {
    /// Connects once, to find out which HTTP versions the server speaks.
    pub(super) async fn to_load(&self, files: &Files) -> io::Result<HttpLoad> {
        let url = Url::parse(&self.url)?;
        let data = self.data.as_deref().map(|text| files.data(text)).transpose()?;
        let mix = self.mix.as_deref().map(|file| mix::read(file, &url, files)).transpose()?.unwrap_or_default();
        let has_rate = self.operations.rate.is_some();
        let recording = self.replay.read(&url, self.operations.requests, has_rate)?.map(Arc::new);
        let shape = self.operations.shape(&self.common, self.streams);
        let shape = match &recording {
            None => shape,
            Some(recording) => {
                let until = Until::Requests(recording.schedule.len());
                Shape { until, replay: Some(recording.schedule.clone()), ..shape }
            }
        };
        let (mix, servers) = mix.with_url(url);
        let (version, servers) = self.reach_all(&servers, files).await?;
        let counting = |tls: Option<Tls>| tls.map(|tls| tls.counting(&shape.handshakes));
        let mut servers = servers.into_iter().map(|(target, tls)| (target, counting(tls)));
        let (target, tls) = servers.next().ok_or_else(|| io::Error::other("no server was reached"))?;
        let default_method = if data.is_some() { "POST" } else { "GET" };
        Ok(HttpLoad {
            target,
            tls,
            version,
            close: self.close,
            method: self.method.clone().unwrap_or_else(|| default_method.to_owned()),
            headers: self.headers.clone(),
            data,
            body_bytes: self.body,
            mix,
            others: servers.collect::<Vec<_>>(),
            replay: recording,
            keep_host: self.replay.keep_host,
            same_length: self.same_length,
            shape,
            mark: Default::default(),
        })
    }

    /// Connects once to each server, and finds out which version of HTTP all of them speak.
    async fn reach_all(&self, all: &[Url], files: &Files) -> io::Result<(Version, Vec<(Target, Option<Tls>)>)> {
        self.tls.check(all.iter().any(|url| url.is_secure))?;
        let mut offer = match self.version {
            Some(Version::Http2) => Offer::Http2,
            // --close is only for HTTP/1. Over http, there is no choice.
            None if !self.close && all.iter().all(|url| url.is_secure) => Offer::Both,
            _ => Offer::Http1,
        };
        loop {
            let mut reached = Vec::new();
            for url in all {
                reached.push(self.common.reach(url, &self.tls, offer, files).await?);
            }
            let chose_http2 = reached.iter().filter(|server| server.chose_http2).count();
            // A load has one version.
            if offer == Offer::Both && chose_http2 > 0 && chose_http2 < all.len() {
                offer = Offer::Http1;
                continue;
            }
            let chosen = if chose_http2 > 0 { Version::Http2 } else { Version::Http11 };
            let servers =
                all.iter().zip(reached).map(|(url, Reached { address, tls, .. })| (url.clone().at(address), tls));
            return Ok((self.version.unwrap_or(chosen), servers.collect()));
        }
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
                "--messages needs --direction receive, because the origin sends the messages",
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

/// Parses a duration. A number without a unit means seconds, as in wrk.
fn seconds_or_duration(text: &str) -> Result<Duration, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_number { units::duration(&format!("{text}s")) } else { units::duration(text) }
}

/// Parses the duration of the measurement, which must not be zero.
fn measured_time(text: &str) -> Result<Duration, String> {
    match seconds_or_duration(text)? {
        Duration::ZERO => Err("must be longer than zero".to_owned()),
        duration => Ok(duration),
    }
}

fn version(text: &str) -> Result<Version, String> {
    match text {
        "1.0" => Ok(Version::Http10),
        "1.1" => Ok(Version::Http11),
        "2" => Ok(Version::Http2),
        _ => Err("must be 1.0, 1.1 or 2".to_owned()),
    }
}

fn pacing(text: &str) -> Result<Pacing, String> {
    match text {
        "uniform" => Ok(Pacing::Uniform),
        "poisson" => Ok(Pacing::Poisson),
        "burst1hz" => Ok(Pacing::Burst1hz),
        _ => Err("must be uniform, poisson or burst1hz".to_owned()),
    }
}

fn stage(text: &str) -> Result<Stage, String> {
    let (time, rate) = text.split_once(':').ok_or("a stage is a time, a colon and a rate, such as 30s:2000")?;
    let time = seconds_or_duration(time)?;
    let rate = match rate.parse::<f64>() {
        Ok(rate) if rate == 0.0 || (0.001..=10_000_000.0).contains(&rate) => rate,
        _ => return Err(format!("{rate:?} is not a rate: write 0, or a number between 0.001 and 10,000,000")),
    };
    Ok(Stage { time, rate })
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (0.001..=10_000_000.0).contains(&rate) {
        Ok(rate)
    } else {
        Err("must be between 0.001 and 10,000,000".to_owned())
    }
}

fn rr_size(text: &str) -> Result<u64, String> {
    let size = units::size(text)?;
    // A request is written before its response is read, so it must fit into the socket buffers along the path.
    if (1..=64 * 1024).contains(&size) { Ok(size) } else { Err("must be between 1 and 64KiB".to_owned()) }
}

pub(super) fn method(text: &str) -> Result<String, String> {
    let is_token = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-');
    if !is_token {
        return Err("a method consists of letters and hyphens".to_owned());
    }
    if text.eq_ignore_ascii_case("connect") {
        Err("CONNECT is not supported, because it opens a tunnel".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

pub(super) fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("must be a name, a colon and a value")?;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(format!("{name:?} is not a header name"));
    }
    if value.bytes().any(|byte| byte < 0x20 && byte != b'\t') {
        return Err("a header value must be a single line of text".to_owned());
    }
    Ok((name.to_owned(), value.trim().to_owned()))
}
