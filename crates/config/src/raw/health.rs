//! The keys of health checks, of PING and of outlier ejection.

use std::sync::LazyLock;

use model::{HealthCheck, Outlier, Ping, Probe};

use crate::defaults;
use crate::define::keys;
use crate::read::{Choice, Int, Named, OneOrMany, True};
use crate::text::{
    ChangedHeader, GrpcService, HeaderValue, HostHeader, HttpPath, Percent, Positive, ProbeText, StatusRange,
    duration_text, percent_text,
};

static PING: LazyLock<Ping> = LazyLock::new(Ping::default);
static PROBE: LazyLock<HealthCheck> = LazyLock::new(|| HealthCheck::new(Probe::Tcp));

keys! {
    /// An active probe.
    pub struct RawHealthCheck as "a health check", one of [http, grpc, tcp] {
        /// Send `GET` for this path, in the protocol of the cluster, or in HTTP/1.1 if another `port` is set; the status must be in
        /// `expect`.
        optional http: HttpPath;
        /// Call `grpc.health.v1.Health/Check` for this service; it must be SERVING. `""` asks about the endpoint as a whole.
        optional grpc: GrpcService;
        /// The TCP handshake must complete.
        optional tcp: True;
        /// The `Host` header, or `:authority`. Only with `http` or `grpc`.
        optional host: HostHeader, default "the endpoint's address";
        /// Names and values of further headers of the request. Only with `http`.
        optional headers: Named<ChangedHeader, HeaderValue>, default "none";
        /// The statuses that count as success, each a status or a range. Only with `http`.
        optional expect: OneOrMany<StatusRange>, default format!("{}-{}", defaults::EXPECTED_STATUSES.0, defaults::EXPECTED_STATUSES.1);
        /// A text that the first 16 KiB of the response's body must contain, byte by byte. Without it the body is not read. Only with `http`.
        optional body: ProbeText, default "any body";
        /// The time from the start of one probe to the start of the next, plus or minus a tenth.
        optional interval: Positive, default duration_text(PROBE.interval);
        /// The time for the whole probe.
        optional timeout: Positive, default duration_text(PROBE.timeout);
        /// Failures in a row that make a healthy endpoint unhealthy.
        optional unhealthy_after: Int<1, 1000>, default PROBE.unhealthy_after.to_string();
        /// Successes in a row that make an unhealthy endpoint healthy.
        optional healthy_after: Int<1, 1000>, default PROBE.healthy_after.to_string();
        /// Probe this port instead of the endpoint's own.
        optional port: Int<1, 65535>, default "the endpoint's";
    }
}

keys! {
    /// Passive ejection: real requests act as the probe.
    pub struct RawOutlierObject as "the outlier ejection" {
        /// Responses from 500 to 599, failed connections, resets and timeouts in a row that eject an endpoint.
        optional consecutive_5xx: Int<1, 1_000_000>, default Outlier::default().consecutive_5xx.to_string();
        /// The duration of the first ejection; the n-th in a row lasts n times as long, at most ten times. It ends early when the endpoint
        /// proves that it works: by a health check that passes (unless it was ejected for responses from 500 to 599), or by serving a
        /// request that had no other endpoint to go to.
        optional eject_for: Positive, default duration_text(Outlier::default().eject_for);
        /// The share of the endpoints that may be ejected at once. With two or more endpoints, one may always be ejected. At the limit, an
        /// endpoint that takes no connections replaces the ejected endpoint that would return first, if no other endpoint is known to work.
        optional max_ejected: Percent, default percent_text(Outlier::default().max_ejected);
    }
}

keys! {
    /// When to send PING to the other side of an HTTP/2 connection, and when to give the connection up. An endpoint that answers and stays
    /// silent gets the next PING only after five minutes, because gRPC servers close connections that send it more often.
    pub struct RawPingObject as "the setting of PING" {
        /// The silence after which PING is sent.
        optional after: Positive, default duration_text(PING.after);
        /// The silence after PING after which the connection is given up.
        optional timeout: Positive, default duration_text(PING.timeout);
    }
}

/// What happens to long connections to an endpoint that is no longer healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnhealthyWord {
    Keep,
    Close,
}

impl Choice for OnUnhealthyWord {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("keep", Self::Keep, "they continue, because an endpoint that fails a probe may still serve them"),
        ("close", Self::Close, "they are closed, so that clients connect again at once; needs a `health_check`"),
    ];
}
