//! The defaults that the model leaves to its sources, each with its reason. The constructors of the model have all others.

use std::time::Duration;

use model::{Encoding, ForwardedHeaders, HeaderNames, TlsVersion, VipAlgorithm};

use crate::raw::Facility;

/// Open connections of one listener. Each takes up to two descriptors. The hard limit that systemd gives a service is 524,288, which is
/// enough for four listeners. At 2 KiB per idle connection, this many take 128 MiB.
pub const CONNECTIONS_MAX: usize = 65_536;

/// The time between "not ready" and the drain. Zero: how soon others learn of the end depends on what stands in front, and a host with
/// nothing in front should end at once.
pub const DRAIN_DELAY: Duration = Duration::ZERO;

/// The length of a drain. It is long enough for nearly every request, and Kubernetes waits this long before it kills a pod.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// The idle timeout of a TCP connection. Databases and message queues are silent for long periods, and Linux waits twice as long before its
/// first keep-alive probe. A shorter timeout would close connections that both ends still want.
pub const TCP_IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// How long a sidecar waits for the bytes that tell protocols apart. A client that sends first does so within a round trip of its connect,
/// which the kernel completes on the same host. A server that sends first is late by this much.
pub const DETECT_TIMEOUT: Duration = Duration::from_millis(100);

/// The ports that the kernel redirects to, which sidecars have had since Istio's.
pub const SIDECAR_INBOUND_PORT: u16 = 15_006;
pub const SIDECAR_OUTBOUND_PORT: u16 = 15_001;

/// The user of a sidecar, as with Istio: a number that images do not use.
pub const SIDECAR_USER: u32 = 1337;

/// DNS over TCP. A resolver is not a service of the mesh, and nothing works if it does not.
pub const SIDECAR_EXCLUDED_PORTS: [u16; 1] = [53];

/// Statuses that an HTTP health check counts as success. A redirect, for example to a login page, shows that the endpoint works.
pub const EXPECTED_STATUSES: (u16, u16) = (200, 399);

/// The headers that most origins can read.
pub const FORWARDED: ForwardedHeaders = ForwardedHeaders::XForwarded;

/// HTTP allows them, and most software keeps names with `_` and `-` apart. Those that stand for a header of this hop are dropped in any case.
pub const HEADER_NAMES: HeaderNames = HeaderNames::Any;

/// The facility that nginx uses for access logs.
pub const FACILITY: Facility = Facility(23);

/// The weight of an endpoint that sets none.
pub const WEIGHT: u32 = 1;

/// How long browsers remember the answer to a preflight request. It is the default of browsers and of Gateway API: a mistake does not last.
pub const CORS_MAX_AGE: Duration = Duration::from_secs(5);

/// All encodings. At the default level, zstd needs a third of the CPU time of the others for the same size.
pub const ENCODINGS: [Encoding; 3] = Encoding::ALL;

/// The level of compression. A lower one saves little time, and from 4 on `br` needs twice the memory.
pub const COMPRESSION_LEVEL: u8 = 3;

/// A shorter response fits into one packet as it is.
pub const COMPRESSED_BYTES_MIN: u64 = 1024;

/// Types that are text, and WebAssembly. Event streams are not among them: each would hold a compressor for as long as it lasts.
pub const COMPRESSED_TYPES: [&str; 17] = [
    "text/html",
    "text/css",
    "text/plain",
    "text/javascript",
    "text/xml",
    "text/csv",
    "text/markdown",
    "application/javascript",
    "application/json",
    "application/ld+json",
    "application/manifest+json",
    "application/problem+json",
    "application/xml",
    "application/rss+xml",
    "application/xhtml+xml",
    "application/wasm",
    "image/svg+xml",
];

/// The body of a request that is collected. Forms and documents of JSON are smaller, and files are not for memory.
pub const BUFFERED_BYTES_MAX: u64 = 1 << 20;

/// The body of a request once it is decompressed. Larger bodies are files, which are mostly compressed in themselves.
pub const DECOMPRESSED_BYTES_MAX: u64 = 10 << 20;

/// How many times as large a body may become. Text becomes 3 to 20 times as large. Envoy has the same limit.
pub const DECOMPRESSED_RATIO_MAX: u64 = 100;

/// The time in which the bytes of a bandwidth move. Links are measured by the second.
pub const BANDWIDTH_PER: Duration = Duration::from_secs(1);

/// What may move at once of a narrow bandwidth: what fits into the first buffers of a connection in any case.
pub const BANDWIDTH_BURST_BYTES_MIN: u64 = 64 << 10;

/// A temporary redirect: a permanent redirect that was a mistake stays in the caches of browsers. Gateway API has the same default.
pub const REDIRECT_STATUS: u16 = 302;

/// The status of a fixed response.
pub const FIXED_STATUS: u16 = 200;

/// The type of a fixed response. Text is never interpreted by a browser.
pub const FIXED_CONTENT_TYPE: &str = "text/plain; charset=utf-8";

/// The type of an error page. People see them in browsers.
pub const ERROR_CONTENT_TYPE: &str = "text/html; charset=utf-8";

/// The path that an error backend is asked for. The error backend of ingress-nginx is asked for the same.
pub const ERROR_PATH: &str = "/";

/// How long an error backend has. A client that gets an error has often waited for it already.
pub const ERROR_TIMEOUT: Duration = Duration::from_secs(5);

/// The realm of authentication. Browsers show it, and it must have a value (RFC 7617 section 2).
pub const REALM: &str = "restricted";

/// How much the clocks of the issuer of a token and of this host may differ. Envoy has the same default.
pub const JWT_LEEWAY: Duration = Duration::from_secs(60);

/// How long external authorization may take. It is Envoy's default: the time is added to every request.
pub const EXTERNAL_AUTH_TIMEOUT: Duration = Duration::from_millis(200);

/// The parameter that oauth2-proxy and most other services read, and that nginx's users write.
pub const SIGN_IN_PARAM: &str = "rd";

/// What clients get while nothing says whether they may use a route: the fault is not theirs, and they may try again.
pub const EXTERNAL_AUTH_STATUS: u16 = 503;

/// How long a global rate limit may take. Envoy's default is 20 ms, which a service on a busy host exceeds now and then.
pub const GLOBAL_RATE_LIMIT_TIMEOUT: Duration = Duration::from_millis(100);

/// The share of requests that are recorded as spans. A collector that gets every request of a busy service costs more than the service.
pub const SAMPLING: f64 = 0.01;

/// What this process is called in traces.
pub const SERVICE: &str = "steelyard";

/// The path that the specification of OTLP gives traces over HTTP.
pub const OTLP_PATH: &str = "/v1/traces";

/// The path that the specification of OTLP gives logs over HTTP.
pub const OTLP_LOGS_PATH: &str = "/v1/logs";

/// How long an export may take: the default of OpenTelemetry's exporters.
pub const OTLP_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest time for which an answer is remembered.
pub const EXTERNAL_AUTH_TTL_MAX: Duration = model::AuthCacheTtl::MAX;

/// The headers of a refusal that a client needs to log in or to know why it may not. A service has others for its own infrastructure.
pub const REFUSAL_HEADERS: [&str; 5] = ["cache-control", "location", "retry-after", "set-cookie", "www-authenticate"];

/// RFC 8996 deprecates older versions.
pub const TLS_MIN_VERSION: TlsVersion = TlsVersion::V1_2;

/// Flows of the kernel plane. The table is allocated in full with the first vip. The number is what Linux's own connection tracking takes
/// by default on a host with more than 4 GiB, and needs about 90 MiB.
pub const FLOWS_MAX: u32 = 262_144;

/// The algorithm of a vip. Round robin spreads evenly whatever the sources are; the others are for operators who know why they want them.
pub const VIP_ALGORITHM: VipAlgorithm = VipAlgorithm::RoundRobin;

/// A changed file takes effect without a command. Renewed certificates and files that Kubernetes mounts rely on this. A wrong or
/// half-written file leaves the last good configuration in force.
pub const WATCH: bool = true;
