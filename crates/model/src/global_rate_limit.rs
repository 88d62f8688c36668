//! Global rate limits: a service that counts for all instances says whether a request is within its limits.

use std::time::Duration;

use crate::{ClusterId, RateHeaders};

/// A service that is asked about each request, by a call of `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlobalRateLimit {
    /// The cluster of the service.
    pub to: ClusterId,
    /// The `:authority` of the call; `None` means the name of the cluster.
    pub host: Option<String>,
    /// The set of limits, as the service calls it.
    pub domain: String,
    /// What the service counts by. A request counts for each of them of which all entries have a value.
    pub descriptors: Vec<Vec<DescriptorEntry>>,
    /// The limit from the question to the end of the answer.
    pub timeout: Duration,
    /// Whether a request passes if there is no answer.
    pub fail_open: bool,
    /// What a client gets if there is no answer.
    pub failure_status: u16,
    /// The fields that tell a client about the limits.
    pub headers: RateHeaders,
}

impl GlobalRateLimit {
    /// The names of the claims in its descriptors.
    pub fn claims(&self) -> impl Iterator<Item = &str> {
        self.descriptors.iter().flatten().filter_map(|entry| match &entry.source {
            DescriptorSource::Claim(name) => Some(name.as_str()),
            _ => None,
        })
    }
}

/// A part of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorEntry {
    /// Its key, as the service calls it.
    pub key: String,
    /// Where its value comes from.
    pub source: DescriptorSource,
}

/// Where the value of an entry comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DescriptorSource {
    /// The client's address, as trusted proxies report it. Of IPv6 the network of 64 bits, because one client may have all addresses in it.
    ClientIp,
    /// The value of the header with this name, in lower case.
    Header(String),
    /// The claim of the request's token with this name ([`claim_path`](crate::claim_path)). The values of a list are joined with commas.
    Claim(String),
    /// The path as routes see it.
    Path,
    /// The method.
    Method,
    /// The host without its port.
    Host,
    /// The same text for each request.
    Text(String),
}
