//! What was to be measured, and with whom.

use serde::{Deserialize, Serialize};

/// A scenario, as it was run: cases and contenders that `--quick`, `--contenders` or the host took away are not here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// As in `lab run NAME`.
    pub name: String,
    /// Which table the report ends in.
    pub table: Table,
    /// Of the published report that is done again, a name and where it stood; absent for a scenario of one's own.
    pub report: Option<String>,
    /// One line.
    pub title: String,
    /// The same in Chinese, as the published reports have it; absent for a scenario of one's own.
    pub title_zh: Option<String>,
    /// What the scenario answers.
    pub question: String,
    /// What stands where, drawn in characters.
    pub topology: String,
    /// Whether everything ran on the loopback of one namespace, for want of root: no steering, no kernel contenders.
    pub loopback: bool,
    /// The instance that ratios are taken to.
    pub reference: String,
    /// Instances that were measured twice in each round, for the noise floor.
    pub twins: Vec<String>,
    /// Workloads.
    pub cases: Vec<Case>,
    /// Who took part.
    pub instances: Vec<Instance>,
    /// MTU of all links; 0 on loopback.
    pub mtu: u32,
    /// Origins.
    pub endpoints: u32,
}

/// Which table a report ends in; each is that of one published report, but the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Table {
    /// By type of balancer: CPU, memory, requests a second, ab's times.
    L4l7Ab,
    /// Percentiles, direct and through the gateway.
    GrpcGateway,
    /// Tools by balancers.
    L4Matrix,
    /// By path: throughput, CPU of each process.
    TcpDownstream,
    /// By number of CPUs.
    CpuScaling,
    /// None in particular: cases by instances.
    Generic,
}

/// One workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Unique in its scenario.
    pub name: String,
    /// One line.
    pub title: String,
    /// Instances, by id, that it is put on.
    pub instances: Vec<String>,
    /// What answers.
    pub origin: OriginSpec,
    /// What asks.
    pub load: LoadSpec,
    /// Of the table's row or column that this case fills, a label as the published report has it (`1000 Concurrency`, `wrk(RPS)`).
    pub label: Option<String>,
}

/// What answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OriginSpec {
    /// Protocol and manner.
    pub kind: OriginKind,
    /// Arguments of `steelyard origin`, as they were given, but for the address.
    pub arguments: Vec<String>,
    /// Origins of the scenario's endpoints that take part in the case.
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

/// What asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadSpec {
    /// Protocol and manner.
    pub kind: LoadKind,
    /// Closed, open, or a search.
    pub mode: Mode,
    /// Connections.
    pub connections: u32,
    /// Streams on each; 1 where the protocol has none.
    pub streams: u32,
    /// Further arguments of `steelyard load`, as they were given.
    pub arguments: Vec<String>,
    /// Time over which connections are made, in ms.
    pub ramp_ms: u64,
    /// Load before the window, in ms.
    pub warm_up_ms: u64,
    /// The window, in ms.
    pub measure_ms: u64,
    /// Load after the window, in ms: its end is ragged.
    pub trim_ms: u64,
}

/// Kinds of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadKind {
    /// HTTP/1.1, connections kept.
    Http,
    /// HTTP/1.0 with keep-alive, as ab does it.
    Http10,
    /// HTTP/1.1, a connection for each request.
    HttpClose,
    /// HTTP/2, clear text.
    H2c,
    /// gRPC, unary.
    Grpc,
    /// A byte there, a byte back.
    TcpRr,
    /// Connect, a byte there, a byte back, close.
    TcpCrr,
    /// Bulk towards the load, as fast as it goes.
    Stream,
    /// Messages towards the load, at a pace.
    StreamPaced,
}

impl LoadKind {
    /// What a contender must understand to take part.
    #[must_use]
    pub fn protocol(self) -> Protocol {
        match self {
            Self::Http | Self::Http10 | Self::HttpClose => Protocol::Http,
            Self::H2c | Self::Grpc => Protocol::H2,
            Self::TcpRr | Self::TcpCrr | Self::Stream | Self::StreamPaced => Protocol::Tcp,
        }
    }
}

/// Protocols that a contender can understand. One that moves packets or bytes carries all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// HTTP/1.
    Http,
    /// HTTP/2 by prior knowledge, on both sides.
    H2,
    /// Any bytes.
    Tcp,
}

/// How the load decides when to send.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// When the answer is there, the next request.
    Closed,
    /// By a schedule, whatever comes back.
    Open {
        /// Operations a second, or how they follow from other cells.
        rate: Rate,
        /// How they are spread.
        pacing: Pacing,
    },
    /// Capacity: the greatest rate that keeps to an objective.
    Search {
        /// Latency at p99 from the scheduled send, in µs, that must hold.
        objective_p99_us: u64,
    },
}

/// An offered rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rate {
    /// Operations a second.
    Fixed(f64),
    /// A share of what the slowest instance of another case reached: equal for all, and within everybody's reach.
    OfSlowest {
        /// 0 to 1.
        share: f64,
        /// The other case, which is measured before.
        case: String,
    },
}

/// How the requests of an open loop are spread over a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pacing {
    /// Evenly.
    Uniform,
    /// All at once, at the start of each second, as strest-grpc has it.
    Burst1hz,
}

/// A contender, as it took part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    /// Unique: `nginx-http`, `nginx-http:default`, `haproxy-tcp*2` (a chain), `envoy-http@4` (workers).
    pub id: String,
    /// [`Contender::name`].
    pub contender: String,
    /// Which of its configurations.
    pub variant: Variant,
    /// How many of it stand one behind the other; 0 for direct.
    pub hops: u32,
    /// Workers of each, which is also how many CPUs it may use.
    pub workers: u32,
    /// Where it listens, as the load sees it.
    pub address: String,
    /// How it was started: commands, each in one line.
    pub commands: Vec<String>,
    /// The text of the configuration that it ran with; empty for a contender without one.
    pub configuration: String,
}

/// Which configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// What its own makers recommend for such a comparison.
    Tuned,
    /// What one gets who sets nothing.
    Default,
}

/// A contender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contender {
    /// As in `--contenders NAME`.
    pub name: String,
    /// As in the tables.
    pub title: String,
    /// Where it works.
    pub layer: Layer,
    /// Its own account of its version; empty for what has none.
    pub version: String,
    /// The program; empty for what has none.
    pub program: String,
    /// SHA-256 of the program, in hex; empty for what has none.
    pub sha256: String,
}

/// Where a contender works.
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

/// Who or what did not take part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// A contender's name, an instance's id, or a case's name.
    pub what: String,
    /// Why, and how to get it where there is a way.
    pub why: String,
}

/// Ceilings of the instrument for a case, measured without any balancer before the first round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// [`Case::name`].
    pub case: String,
    /// What the load can make, against an origin that has a CPU of its own and no delay; operations a second.
    pub generator_ceiling_per_s: Option<f64>,
    /// What the origins can serve with the placement of the run, `direct`; operations a second.
    pub origin_ceiling_per_s: Option<f64>,
    /// Latency at p50 of one connection alone, without a balancer, in µs.
    pub unloaded_p50_us: Option<f64>,
}
