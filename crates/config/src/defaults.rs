//! The defaults that the model leaves to whoever makes it, each with its reason. All others are those of the model's constructors.

use std::time::Duration;

use model::{AccessLogFormat, ForwardedHeaders, TlsVersion, VipAlgorithm};

/// Open connections of one listener. Each takes up to two descriptors, and the hard limit that systemd gives a service is 524,288: four
/// listeners fit. At 2 KiB for each idle connection this many take 128 MiB.
pub const CONNECTIONS_MAX: usize = 65_536;

/// Of a drain. Long enough for nearly every request, and what Kubernetes waits before it kills a pod.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Of a TCP connection. Databases and message queues are silent for long, and half of this is how long Linux waits before its first keep-alive
/// probe: shorter, and connections die that both ends still want.
pub const TCP_IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Statuses that an HTTP health check counts as success: a redirect, to a login say, shows that the endpoint lives.
pub const EXPECTED_STATUSES: (u16, u16) = (200, 399);

/// What most origins know how to read.
pub const FORWARDED: ForwardedHeaders = ForwardedHeaders::XForwarded;

/// For people first.
pub const ACCESS_LOG_FORMAT: AccessLogFormat = AccessLogFormat::Text;

/// Of an endpoint that says none.
pub const WEIGHT: u32 = 1;

/// For now: a permanent redirect that was a mistake stays in the caches of browsers. What Gateway API has.
pub const REDIRECT_STATUS: u16 = 302;

/// Older ones were withdrawn by RFC 8996.
pub const TLS_MIN_VERSION: TlsVersion = TlsVersion::V1_2;

/// Flows of the kernel plane, whose table is allocated whole when the first vip comes: as many as Linux's own connection tracking takes by
/// default on a host of more than 4 GiB, in some 90 MiB.
pub const FLOWS_MAX: u32 = 262_144;

/// Of a vip. Spreads evenly whatever the sources are; the others are for those who know why.
pub const VIP_ALGORITHM: VipAlgorithm = VipAlgorithm::RoundRobin;

/// A changed file is served without a command. Certificates that are renewed and files that Kubernetes mounts rely on it, and a file that is
/// wrong or half written leaves the last good one in force.
pub const WATCH: bool = true;
