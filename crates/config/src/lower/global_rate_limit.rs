//! Global rate limits.

use std::sync::Arc;

use model::{Auth, DescriptorEntry, DescriptorSource, GlobalRateLimit};

use super::inherited::{self, or_inherited};
use super::limits::rate_headers;
use super::{ClusterIds, positive};
use crate::defaults;
use crate::diagnostic::{Report, Wrong, ticked};
use crate::raw::{RawDescriptorEntry, RawGlobalRateLimit, RawGlobalRateLimitObject};
use crate::read::Located;

/// The most descriptors, and the most entries of each. The message with all of them is made for each request.
const DESCRIPTORS_MAX: usize = 16;
const ENTRIES_MAX: usize = 16;

/// The service that counts the requests of a listener or a route. A route that says nothing takes that of its listener.
pub fn global_rate_limit(
    raw: &Option<Located<RawGlobalRateLimit>>,
    inherited: Option<&Arc<GlobalRateLimit>>,
    ids: &ClusterIds,
    report: &mut Report,
) -> Option<Arc<GlobalRateLimit>> {
    or_inherited("global_rate_limit", raw, inherited, report, |object, report| service(object, ids, report))
}

/// What one policy says. `off` is for routes that would otherwise take that of a less specific policy.
pub fn alone(
    raw: &Option<Located<RawGlobalRateLimit>>,
    ids: &ClusterIds,
    report: &mut Report,
) -> Option<Arc<GlobalRateLimit>> {
    inherited::alone(raw, report, |object, report| service(object, ids, report))
}

/// Refuses claims in what is written here for routes that demand no token: they would never have a value, so nothing would be counted.
pub fn check_claims(
    raw: &Option<Located<RawGlobalRateLimit>>,
    limit: Option<&Arc<GlobalRateLimit>>,
    auth: Option<&Arc<Auth>>,
    report: &mut Report,
) {
    let (Some(raw), Some(limit)) = (raw, limit) else { return };
    let demands_token = auth.is_some_and(|auth| matches!(**auth, Auth::Jwt(_)));
    if let (Some(claim), false) = (limit.claims().next(), demands_token) {
        let wrong =
            Wrong::new(format!("`global_rate_limit` counts by the claim {}, and there is no token", ticked(claim)));
        report.add(raw.location, wrong.hint("add `auth: {jwt: ...}` beside it, or count by something else"));
    }
}

/// Returns `None` if a required key is missing; the report says so.
fn service(raw: &RawGlobalRateLimitObject, ids: &ClusterIds, report: &mut Report) -> Option<GlobalRateLimit> {
    let to = raw.to.as_ref().and_then(|to| ids.find(to, report));
    if let Some(to) = raw.to.as_ref().filter(|to| ids.speaks_h1(&to.value)) {
        let name = ticked(&to.value.0);
        let wrong = Wrong::new(format!("the cluster {name} speaks HTTP/1.1, and a rate limit service needs HTTP/2"));
        report.add(to.location, wrong.hint(format!("add `protocol: h2c`, or `protocol: h2` and `tls`, to {name}")));
    }
    let domain = raw.domain.as_ref();
    if let Some(domain) = domain.filter(|domain| domain.value.0.is_empty()) {
        report.add(domain.location, Wrong::new("`domain` is empty").hint("write the `domain` of the service's limits"));
    }
    let headers = rate_headers(&raw.headers, report);
    let written = raw.descriptors.as_ref();
    if let Some(written) = written.filter(|written| written.value.0.len() > DESCRIPTORS_MAX) {
        let found = written.value.0.len();
        report.add(written.location, Wrong::new(format!("{found} descriptors; the limit is {DESCRIPTORS_MAX}")));
    }
    let mut descriptors = Vec::new();
    for descriptor in written.iter().flat_map(|written| &written.value.0) {
        let Some(entries) = &descriptor.value.entries else { continue };
        if entries.value.0.len() > ENTRIES_MAX {
            let found = entries.value.0.len();
            report.add(
                entries.location,
                Wrong::new(format!("`entries` has {found} entries; the limit is {ENTRIES_MAX}")),
            );
        }
        descriptors.push(entries.value.0.iter().filter_map(|raw| entry(raw, report)).collect());
    }
    let status = raw.failure_status.as_ref().and_then(|status| u16::try_from(status.value.0).ok());
    Some(GlobalRateLimit {
        to: to?,
        host: raw.host.as_ref().map(|host| host.value.0.clone()),
        domain: domain?.value.0.clone(),
        descriptors: written.map(|_| descriptors)?,
        timeout: positive(&raw.timeout, defaults::GLOBAL_RATE_LIMIT_TIMEOUT),
        fail_open: raw.fail_open.as_ref()?.value.0,
        failure_status: status.unwrap_or(defaults::EXTERNAL_AUTH_STATUS),
        headers,
    })
}

/// Returns `None` if it has no source; the report says so.
fn entry(raw: &Located<RawDescriptorEntry>, report: &mut Report) -> Option<DescriptorEntry> {
    let RawDescriptorEntry { key, client_ip, header, claim, path, method, host, value, .. } = &raw.value;
    let (named, source) = if client_ip.is_some() {
        ("remote_address", DescriptorSource::ClientIp)
    } else if let Some(header) = header {
        (header.value.0.as_str(), DescriptorSource::Header(header.value.0.clone()))
    } else if let Some(claim) = claim {
        (claim.value.0.as_str(), DescriptorSource::Claim(claim.value.0.clone()))
    } else if path.is_some() {
        ("path", DescriptorSource::Path)
    } else if method.is_some() {
        ("method", DescriptorSource::Method)
    } else if host.is_some() {
        ("host", DescriptorSource::Host)
    } else {
        let value = value.as_ref()?;
        if value.value.0.is_empty() {
            report.add(value.location, Wrong::new("`value` is empty").hint("the service would not know it"));
        }
        ("generic_key", DescriptorSource::Text(value.value.0.clone()))
    };
    if let Some(key) = key.as_ref().filter(|key| key.value.0.is_empty()) {
        report.add(key.location, Wrong::new("`key` is empty").hint("write the key of the service's limits"));
    }
    let key = key.as_ref().map_or(named, |key| &key.value.0).to_owned();
    Some(DescriptorEntry { key, source })
}
