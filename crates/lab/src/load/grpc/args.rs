//! The command line of `steelyard load grpc`, and its conversion to a load.

use std::io;
use std::path::PathBuf;

use clap::{Args, ValueHint};
use prost_reflect::{DescriptorPool, MethodDescriptor};
use serde::{Deserialize, Serialize};

use super::{GrpcLoad, Replies, messages, reflection, schema};
use crate::load::args::{CommonArgs, OperationArgs, STREAMS_MAX, TlsArgs, header};
use crate::load::files::Files;
use crate::load::reach::Reached;
use crate::load::socket::Offer;
use crate::load::target::Url;
use crate::percentiles::Percentiles;

/// The last part of `load grpc --help`.
pub(in crate::load) const EXAMPLES: &str = "\
Examples:
  steelyard load grpc localhost:50051/shop.Orders/Create --data '{\"item\": 7}'
      Calls with this message; the server describes the method (server reflection)
  steelyard load grpc https://shop.example/shop.Orders/Create --proto orders.proto --data @orders.json
      Calls with the messages of the file in turn; the file describes the method
  steelyard load grpc localhost:50051 --data '{}'
      Lists the methods of the server

Without --data, --proto and --protoset, the message of each call is empty, or that of strest.Responder.
Calls with the gRPC status OK succeed.";

/// The arguments of `load grpc`. The names that strest-grpc uses for them work too.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
#[command(
    mut_arg("requests", |arg| arg.alias("totalRequests")),
    mut_arg("rate", |arg| arg.alias("totalTargetRps"))
)]
pub struct GrpcLoadArgs {
    /// The server to call: 127.0.0.1:9001, or a URL. The path of a URL is the method to call, and https means TLS
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

    /// What the calls send.
    #[command(flatten)]
    pub call: CallArgs,

    /// Run this many concurrent calls on each connection
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(STREAMS_MAX)))]
    pub streams: u32,

    /// With strest.Responder: request replies with a body of this many bytes
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub length: u32,

    /// With strest.Responder: ask the origin to delay its replies by these percentiles, in whole ms. As in strest-grpc, 100=10 means 0 to 9 ms
    #[arg(long, alias = "latencyPercentiles", value_name = "P=MS,...", value_parser = Percentiles::strest)]
    pub latency_percentiles: Option<Percentiles>,

    /// With strest.Responder: ask the origin to fail this share of the calls, from 0 to 1
    #[arg(long, alias = "errorRate", value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub error_rate: f32,

    /// With strest.Responder: request this many replies to each call, with StreamingGet instead of Get
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub streaming: Option<u32>,

    /// The seed for the random delays
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Print a JSON report in the format of strest-grpc, in ms, plus the achieved rate and the latencies from when calls were due
    #[arg(long, conflicts_with_all = ["json", "find_capacity", "generators"])]
    pub strest_report: bool,
}

/// What the calls send, and what describes it.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct CallArgs {
    /// Send this message to the method in the URL. It is JSON, or a file of it: @FILE, or @- for standard input. Calls send the messages of an
    /// array, or of several values, in turn; a method with a stream of requests gets all of them in each call
    #[arg(long, value_name = "JSON|@FILE", conflicts_with_all = STREST_ARGS)]
    pub data: Option<String>,

    /// The file that describes the method; repeat it for several. Without --proto and --protoset, --data asks the server (server reflection)
    #[arg(long = "proto", value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = STREST_ARGS)]
    pub protos: Vec<PathBuf>,

    /// With --proto: look for files and their imports in this folder; repeat it for several [default: the folder of each file, and the current one]
    #[arg(short = 'I', long = "import-path", value_name = "DIR", value_hint = ValueHint::DirPath, requires = "protos")]
    pub import_paths: Vec<PathBuf>,

    /// A file that describes the method as `protoc --include_imports --descriptor_set_out` writes it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "protos", conflicts_with_all = STREST_ARGS)]
    pub protoset: Option<PathBuf>,

    /// Add metadata, such as 'authorization: Bearer ...'; repeat it for several. The value of a name that ends with -bin is base64
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = metadata)]
    pub headers: Vec<(String, String)>,
}

/// The name under which compiled files of `--proto` are sent to generators.
const COMPILED: &str = "(--proto)";

/// Arguments that only strest.Responder understands.
const STREST_ARGS: [&str; 5] = ["length", "latency_percentiles", "error_rate", "streaming", "strest_report"];

impl GrpcLoadArgs {
    /// Finds out what to send. Connects, to check that the server accepts connections and, with TLS, speaks HTTP/2, and to ask it for its
    /// methods unless files describe them.
    pub(in crate::load) async fn to_load(&self, files: &Files) -> io::Result<GrpcLoad> {
        let url = Url::parse(&self.url)?;
        // What is wrong here is wrong without a server, too.
        let data = self.call.data.as_deref().map(|text| files.data(text)).transpose()?;
        let from_files =
            self.call.pool_of_files(files)?.map(|pool| schema::method(&pool, &url, "the files")).transpose()?;
        let sent = |method: &MethodDescriptor| messages::encode(method, data.as_deref().unwrap_or(b"{}"));
        let mut described = from_files.map(|method| sent(&method).map(|sent| (method, sent))).transpose()?;

        self.tls.check(url.is_secure)?;
        let reached = self.common.reach(&url, &self.tls, Offer::Grpc, files).await?;
        if described.is_none() && data.is_some() {
            let method = self.reflected(&url, &reached).await?;
            described = Some((method.clone(), sent(&method)?));
        }
        let mut target = url.at(reached.address);
        let mut replies = if self.streaming.is_some() || target.path != "/" { Replies::Any } else { Replies::One };
        let mut messages = Vec::new();
        if let Some((method, sent)) = described {
            target.path = schema::path(&method);
            replies = if method.is_server_streaming() { Replies::Any } else { Replies::One };
            messages = sent;
        }
        let shape = self.operations.shape(&self.common, self.streams);
        Ok(GrpcLoad {
            target,
            tls: reached.tls.map(|tls| tls.counting(&shape.handshakes)),
            metadata: self.call.headers.clone(),
            messages,
            replies,
            length: self.length,
            latency: self.latency_percentiles.clone(),
            error_rate: self.error_rate,
            streaming: self.streaming,
            seed: self.seed,
            shape,
        })
    }

    /// Reads the files of the load. Those of `--proto` and what they import become one, which `--protoset` names.
    pub(in crate::load) fn read_files(&mut self, files: &Files) -> io::Result<()> {
        let url = Url::parse(&self.url)?;
        let data = self.call.data.as_deref().map(|text| files.data(text)).transpose()?;
        self.tls.authorities(files)?;
        let Some(pool) = self.call.pool_of_files(files)? else { return Ok(()) };
        messages::encode(&schema::method(&pool, &url, "the files")?, data.as_deref().unwrap_or(b"{}"))?;
        if self.call.protoset.is_none() {
            files.keep(COMPILED, pool.encode_to_vec());
            self.call.protos.clear();
            self.call.import_paths.clear();
            self.call.protoset = Some(PathBuf::from(COMPILED));
        }
        Ok(())
    }

    /// Asks the server for the method in the URL.
    async fn reflected(&self, url: &Url, reached: &Reached) -> io::Result<MethodDescriptor> {
        let source = self.common.sources.first().copied();
        let asking = reflection::method(url, reached, source, &self.call.headers);
        match tokio::time::timeout(self.common.timeout, asking).await {
            Ok(method) => method,
            Err(_) => {
                let why = format!(
                    "{} did not describe its methods within {:?}: describe the method with --proto FILE",
                    url.authority, self.common.timeout
                );
                Err(io::Error::new(io::ErrorKind::TimedOut, why))
            }
        }
    }
}

impl CallArgs {
    /// What the files of the command line describe, if there are any.
    fn pool_of_files(&self, files: &Files) -> io::Result<Option<DescriptorPool>> {
        match &self.protoset {
            Some(file) => schema::of_protoset(file, &files.read(file)?).map(Some),
            None if self.protos.is_empty() => Ok(None),
            None => schema::of_protos(&self.protos, &self.import_paths).map(Some),
        }
    }
}

fn metadata(text: &str) -> Result<(String, String), String> {
    let (name, value) = header(text)?;
    let name = name.to_ascii_lowercase();
    match name.as_str() {
        "te" | "content-type" | "content-length" | "connection" => Err(format!("gRPC sets {name} itself")),
        _ if name.starts_with("grpc-") => Err(format!("{name}: names that begin with grpc- belong to gRPC itself")),
        _ => Ok((name, value)),
    }
}

fn share(text: &str) -> Result<f32, String> {
    let share: f32 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err("must be between 0 and 1".to_owned()) }
}
