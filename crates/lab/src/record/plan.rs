//! The plan of a run: the workloads and the contenders.

use serde::{Deserialize, Serialize};

/// A scenario, as it was run, without the cases and contenders that `--quick`, `--contenders` or the host removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// The name in `lab run NAME`.
    pub name: String,
    /// The kind of tables in the report.
    pub table: Table,
    /// The name and source of the published report that is repeated; absent for other scenarios.
    pub report: Option<String>,
    /// One line.
    pub title: String,
    /// The same in Chinese, as in the published reports; absent for other scenarios.
    pub title_zh: Option<String>,
    /// The question that the scenario answers.
    pub question: String,
    /// A drawing of the topology in characters.
    pub topology: String,
    /// Whether everything ran on the loopback of one namespace, because the lab was not root: no steering, no kernel contenders.
    pub loopback: bool,
    /// The reference instance for ratios.
    pub reference: String,
    /// Instances that were measured twice in each round, for the noise floor.
    pub twins: Vec<String>,
    /// Workloads.
    pub cases: Vec<Case>,
    /// The instances that took part.
    pub instances: Vec<Instance>,
    /// MTU of all links; 0 on loopback.
    pub mtu: u32,
    /// Whether received packets were steered (RPS) to the CPUs of the component that they are for. Otherwise the CPU of the sender receives
    /// them, on every hop alike.
    #[serde(default = "steered")]
    pub steering: bool,
    /// Origins.
    pub endpoints: u32,
}

/// Runs of before there was a choice.
fn steered() -> bool {
    true
}

/// The kind of tables of a report. Each but the last is that of one published report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Table {
    /// By type of balancer: CPU, memory, requests per second, ab's times.
    L4l7Ab,
    /// Percentiles, direct and through the gateway.
    GrpcGateway,
    /// Tools by balancers.
    L4Matrix,
    /// By path: throughput, CPU of each process.
    TcpDownstream,
    /// By number of CPUs.
    CpuScaling,
    /// No particular one: cases by instances.
    Generic,
}

/// One workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Unique in its scenario.
    pub name: String,
    /// One line.
    pub title: String,
    /// The ids of the instances that run it.
    pub instances: Vec<String>,
    /// The origin.
    pub origin: OriginSpec,
    /// The load.
    pub load: LoadSpec,
    /// The label of the row or column that this case fills, as in the published report (`1000 Concurrency`, `wrk(RPS)`).
    pub label: Option<String>,
}

/// An origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OriginSpec {
    /// Protocol and manner.
    pub kind: OriginKind,
    /// Arguments of `steelyard origin` as given, without the address.
    pub arguments: Vec<String>,
    /// The number of the scenario's origins that take part in the case.
    pub count: u32,
}

/// Kinds of origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OriginKind {
    /// HTTP/1.
    Http,
    /// gRPC over HTTP/2, clear text.
    Grpc,
    /// Bytes: requests and answers, connections, echo.
    Tcp,
    /// Bytes that the origin sends.
    Stream,
}

/// A load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadSpec {
    /// Protocol and manner.
    pub kind: LoadKind,
    /// Closed, open, or a search.
    pub mode: Mode,
    /// Connections.
    pub connections: u32,
    /// Streams on each connection; 1 if the protocol has none.
    pub streams: u32,
    /// Further arguments of `steelyard load`, as given.
    pub arguments: Vec<String>,
    /// Time over which connections are made, in ms.
    pub ramp_ms: u64,
    /// Load before the window, in ms.
    pub warm_up_ms: u64,
    /// The window, in ms.
    pub measure_ms: u64,
    /// Load after the window, in ms, because connections do not all end at once.
    pub trim_ms: u64,
}

/// Kinds of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadKind {
    /// HTTP/1.1, connections kept.
    Http,
    /// HTTP/1.0 with keep-alive, like ab.
    Http10,
    /// HTTP/1.1 with a connection per request.
    HttpClose,
    /// HTTP/1.1 over TLS, connections kept.
    Https,
    /// HTTP/1.1 over TLS, with a connection and a full handshake per request.
    HttpsClose,
    /// HTTP/1.1 over TLS, with a connection per request that resumes the session of an earlier one.
    HttpsResume,
    /// HTTP/2, clear text.
    H2c,
    /// HTTP/2, clear text, to origins of HTTP/1.1.
    H2cHttp,
    /// gRPC, unary.
    Grpc,
    /// One byte in each direction.
    TcpRr,
    /// Connect, one byte in each direction, close.
    TcpCrr,
    /// Bulk towards the load, as fast as possible.
    Stream,
    /// Messages towards the load, at a pace.
    StreamPaced,
}

impl LoadKind {
    /// The protocol that a contender must support to take part.
    #[must_use]
    pub fn protocol(self) -> Protocol {
        match self {
            Self::Http | Self::Http10 | Self::HttpClose => Protocol::Http,
            Self::H2c | Self::Grpc => Protocol::H2,
            Self::H2cHttp => Protocol::H2Http,
            Self::Https | Self::HttpsClose | Self::HttpsResume => Protocol::Https,
            Self::TcpRr | Self::TcpCrr | Self::Stream | Self::StreamPaced => Protocol::Tcp,
        }
    }
}

impl OriginKind {
    /// Whether origins of this kind answer such a load through a contender that supports it.
    #[must_use]
    pub fn answers(self, load: LoadKind) -> bool {
        match self {
            Self::Http => matches!(load.protocol(), Protocol::Http | Protocol::H2Http | Protocol::Https),
            Self::Grpc => load.protocol() == Protocol::H2,
            Self::Tcp => matches!(load, LoadKind::TcpRr | LoadKind::TcpCrr),
            Self::Stream => matches!(load, LoadKind::Stream | LoadKind::StreamPaced),
        }
    }
}

/// Protocols that a contender can support. A contender that moves packets or bytes carries those that are the same on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// HTTP/1.
    Http,
    /// HTTP/2 by prior knowledge, on both sides.
    H2,
    /// HTTP/2 by prior knowledge from clients, HTTP/1.1 to origins.
    H2Http,
    /// HTTP/1.1 over TLS from clients, in clear text to origins.
    Https,
    /// Any bytes.
    Tcp,
}

impl Protocol {
    /// All of them, in the order of messages.
    pub const ALL: [Self; 5] = [Self::Http, Self::H2, Self::H2Http, Self::Https, Self::Tcp];

    /// Its name in contenders' files and templates.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::H2 => "h2",
            Self::H2Http => "h2-http",
            Self::Https => "https",
            Self::Tcp => "tcp",
        }
    }
}

/// How the load decides when to send.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The next request is sent when the answer has arrived.
    Closed,
    /// By a schedule, independent of the answers.
    Open {
        /// Operations per second, or how they follow from other cells.
        rate: Rate,
        /// How they are spread.
        pacing: Pacing,
    },
    /// Capacity: the highest rate that meets an objective.
    Search {
        /// The limit for the latency at p99 from the scheduled send, in µs.
        objective_p99_us: u64,
    },
}

/// An offered rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rate {
    /// Operations a second.
    Fixed(f64),
    /// A share of what the slowest instance of another case reached: equal for all, and possible for each.
    OfSlowest {
        /// 0 to 1.
        share: f64,
        /// The other case, which is measured first.
        case: String,
    },
}

/// How the requests of an open loop are spread over a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pacing {
    /// Evenly.
    Uniform,
    /// All at once, at the start of each second, like strest-grpc.
    Burst1hz,
    /// At random times, like those of independent users: a Poisson process.
    Poisson,
}

/// A contender, as it took part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    /// Unique: `nginx-http`, `nginx-http:default`, `haproxy-tcp*2` (a chain), `envoy-http@4` (workers).
    pub id: String,
    /// [`Contender::name`].
    pub contender: String,
    /// Which of its configurations it uses.
    pub variant: Variant,
    /// How many of it form a chain; 0 for direct.
    pub hops: u32,
    /// Workers of each, which is also how many CPUs it may use.
    pub workers: u32,
    /// The address on which the load reaches it.
    pub address: String,
    /// How it was started: commands, each in one line.
    pub commands: Vec<String>,
    /// The text of its configuration; empty for a contender without one.
    pub configuration: String,
}

/// Which configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// The configuration that its makers recommend for such a comparison.
    Tuned,
    /// The configuration if nothing is set.
    Default,
}

/// A contender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contender {
    /// The name in `--contenders NAME`.
    pub name: String,
    /// The name in tables.
    pub title: String,
    /// The layer at which it works.
    pub layer: Layer,
    /// The version that it reports; empty if there is none.
    pub version: String,
    /// The program; empty if there is none.
    pub program: String,
    /// SHA-256 of the program, in hex; empty if there is none.
    pub sha256: String,
}

/// The layer at which a contender works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// Nothing between load and origin.
    Direct,
    /// Packets are forwarded, nothing is balanced.
    Routed,
    /// Packets, in the kernel.
    Kernel,
    /// Connections, in user space.
    Tcp,
    /// Requests of HTTP/1.
    Http,
    /// Requests of HTTP/2.
    H2,
}

/// Something that did not take part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// A contender's name, an instance's id, or a case's name.
    pub what: String,
    /// Why, and how to get it if that is possible.
    pub why: String,
}

/// Ceilings of the instrument for a case, measured without a balancer before the first round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// [`Case::name`].
    pub case: String,
    /// The load's maximum, against an origin that has its own CPU and no delay; operations per second.
    pub generator_ceiling_per_s: Option<f64>,
    /// The origins' maximum with the placement of the run, `direct`; operations per second.
    pub origin_ceiling_per_s: Option<f64>,
    /// Latency at p50 of one connection alone, without a balancer, in µs.
    pub unloaded_p50_us: Option<f64>,
}
