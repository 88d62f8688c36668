//! Global rate limits: a service counts the requests of all instances, and says whether this one is within its limits. The call is
//! `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`. The messages have only the fields that are used here, with the numbers of
//! Envoy's `service/ratelimit/v3/rls.proto` and `extensions/common/ratelimit/v3/ratelimit.proto`.
//!
//! An answer with the code OK is a yes, and one with OVER_LIMIT is a no; so is one that is too long to be read. Any other is no answer. Headers, body and
//! metadata in an answer are ignored.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use model::{DescriptorSource, GlobalRateLimit};
use prost::Message;
use telemetry::Reason;

use crate::auth::jwt::Verified;
use crate::error::Error;
use crate::exchange::route::HostText;
use crate::http::client_address;
use crate::policy::RequestView;
use crate::policy::rate_headers::Quota;
use crate::policy::rate_limit::first_value;
use crate::question::call::{self, bad};
use crate::question::{About, Question};
use crate::upstream::connect::OnBehalfOf;
use crate::upstream::subrequest::Answer;
use crate::worker::ListenerView;

/// The method that is called.
const PATH: &[u8] = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Bytes of the values in all descriptors of a request. They may have the same header more than once.
const VALUES_BYTES_MAX: usize = 64 * 1024;

/// Limits of an answer about which a client is told.
const QUOTAS_MAX: usize = 16;

#[derive(Clone, PartialEq, Message)]
struct RateLimitRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<Status>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(message, optional, tag = "2")]
    current_limit: Option<Limit>,
    #[prost(uint32, tag = "3")]
    limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    duration_until_reset: Option<Duration>,
}

#[derive(Clone, PartialEq, Message)]
struct Limit {
    #[prost(uint32, tag = "1")]
    requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    unit: i32,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(message, optional, tag = "4")]
    unit_multiplier: Option<Multiplier>,
}

/// `google.protobuf.UInt32Value`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Multiplier {
    #[prost(uint32, tag = "1")]
    value: u32,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Duration {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;

/// What the service says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) is_over: bool,
    /// The seconds after which the client may try again, if the service says so and the request is over a limit.
    pub(crate) retry_after_s: Option<u64>,
    /// The limits that apply to the request.
    pub(crate) quotas: Vec<Quota>,
}

/// What the values of descriptors come from.
pub(crate) struct Counted<'c> {
    pub(crate) view: &'c RequestView<'c>,
    /// What the token of the request says, if it has one.
    pub(crate) bearer: Option<&'c Verified>,
}

/// What the service has to be asked about this request; `None` if none of the descriptors applies to it.
///
/// # Errors
/// [`Reason::HeaderTooLarge`] if the values are too long together.
pub(crate) fn question(
    policy: &Arc<GlobalRateLimit>,
    listener: &ListenerView,
    counted: &Counted<'_>,
    who: OnBehalfOf,
    timeout_ms: u64,
) -> Result<Option<Question>, Error> {
    let Some(message) = request(policy, counted)? else { return Ok(None) };
    let asked = counted.view;
    let cluster = listener.clusters.get(policy.to.0).ok_or(Error::internal(Reason::Internal))?.clone();
    let request = call::request(&cluster, PATH, policy.host.as_deref(), &message, asked, timeout_ms);
    Ok(Some(Question::new(cluster, request, asked, who, timeout_ms, About::RateLimit)))
}

fn request(policy: &GlobalRateLimit, counted: &Counted<'_>) -> Result<Option<RateLimitRequest>, Error> {
    let mut bytes = 0;
    let mut descriptors = Vec::with_capacity(policy.descriptors.len());
    for entries in &policy.descriptors {
        let entries = entries.iter().map(|entry| {
            let value = value(&entry.source, counted)?;
            bytes += value.len();
            Some(Entry { key: entry.key.clone(), value })
        });
        descriptors.extend(entries.collect::<Option<Vec<_>>>().map(|entries| Descriptor { entries }));
        if bytes > VALUES_BYTES_MAX {
            return Err(Error::downstream(Reason::HeaderTooLarge));
        }
    }
    let message = RateLimitRequest { domain: policy.domain.clone(), descriptors, hits_addend: 1 };
    Ok((!message.descriptors.is_empty()).then_some(message))
}

/// Returns `None` if the request has no such value.
fn value(source: &DescriptorSource, counted: &Counted<'_>) -> Option<String> {
    let Counted { view: asked, bearer } = *counted;
    let RequestView { head, buffer, .. } = *asked;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let value = match source {
        DescriptorSource::ClientIp => network(client_address::client_ip(head, buffer, asked.client)),
        DescriptorSource::Header(name) => text(first_value(asked, name)?),
        DescriptorSource::Path => text(asked.target.split(|byte| *byte == b'?').next()?),
        DescriptorSource::Method => text(head.method_name.get(buffer)),
        DescriptorSource::Host => HostText::new(head.authority.get(buffer)).as_str().to_owned(),
        DescriptorSource::Claim(name) => bearer?.claim(name)?.values().join(","),
        DescriptorSource::Text(text) => text.clone(),
    };
    // The service refuses a descriptor with an empty value, and with it the whole question.
    (!value.is_empty()).then_some(value)
}

/// The part of an address that a client cannot change, as for the rate limits of routes.
fn network(ip: IpAddr) -> String {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("{}/64", Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
    }
}

/// # Errors
/// There is no answer, or one that says neither yes nor no.
pub(crate) fn verdict(answer: Answer) -> Result<Verdict, Error> {
    let Some(answer) = call::message::<RateLimitResponse>(answer)? else {
        return Ok(Verdict { is_over: true, ..Verdict::default() });
    };
    let is_over = match answer.overall_code {
        OK => false,
        OVER_LIMIT => true,
        _ => return Err(bad("the answer is neither OK nor OVER_LIMIT")),
    };
    let exceeded = answer.statuses.iter().filter(|status| is_over && status.code == OVER_LIMIT);
    let retry_after_s = exceeded.filter_map(Status::reset_s).max();
    let quotas = answer.statuses.iter().filter_map(quota).take(QUOTAS_MAX).collect();
    Ok(Verdict { is_over, retry_after_s, quotas })
}

/// Returns `None` if no limit applies, as if the service has none for the descriptor.
fn quota(status: &Status) -> Option<Quota> {
    let limit = status.current_limit.as_ref()?;
    // Envoy takes the lengths of month and year to be these, too.
    let unit_s = match limit.unit {
        1 => 1,
        2 => 60,
        3 => 3600,
        4 => 24 * 3600,
        5 => 30 * 24 * 3600,
        6 => 365 * 24 * 3600,
        7 => 7 * 24 * 3600,
        _ => return None,
    };
    let multiplier = limit.unit_multiplier.map_or(1, |multiplier| u64::from(multiplier.value.max(1)));
    Some(Quota {
        name: limit.name.clone(),
        limit: limit.requests_per_unit.into(),
        window_s: unit_s * multiplier,
        remaining: status.limit_remaining.into(),
        reset_s: status.reset_s().unwrap_or_default(),
    })
}

impl Status {
    /// Rounded up.
    fn reset_s(&self) -> Option<u64> {
        let Duration { seconds, nanos } = self.duration_until_reset?;
        u64::try_from(seconds).ok()?.checked_add(u64::from(nanos > 0))
    }
}

#[cfg(test)]
mod tests {
    use model::{DescriptorEntry, RateHeaders};

    use super::*;
    use crate::grpc::Status as Code;
    use crate::policy::testing::asked;
    use crate::question::call::testing::answer;

    fn policy(descriptors: &[&[DescriptorSource]]) -> GlobalRateLimit {
        let entry = |source: &DescriptorSource| DescriptorEntry { key: "k".into(), source: source.clone() };
        GlobalRateLimit {
            to: model::ClusterId(0),
            host: None,
            domain: "edge".into(),
            descriptors: descriptors.iter().map(|sources| sources.iter().map(entry).collect()).collect(),
            timeout: std::time::Duration::from_millis(100),
            fail_open: false,
            failure_status: 503,
            headers: RateHeaders::default(),
        }
    }

    #[test]
    fn descriptors_have_what_the_request_has() {
        use DescriptorSource::{Claim, ClientIp, Header, Host, Method, Path, Text};
        let check = |lines: &str, sources: &[&[DescriptorSource]], expect: &[&str]| {
            let bearer = Verified::of_claims(&[("sub", &["joe"]), ("scope", &["read", "write"]), ("none", &[])]);
            let counted = |view: &RequestView<'_>| {
                let counted = Counted { view, bearer: Some(&bearer) };
                request(&policy(sources), &counted)
            };
            let sent = asked(lines, true, counted).unwrap();
            let descriptors = sent.map(|sent| sent.descriptors).unwrap_or_default();
            let joined = |descriptor: &Descriptor| -> String {
                descriptor.entries.iter().map(|entry| entry.value.as_str()).collect::<Vec<_>>().join("|")
            };
            assert_eq!(descriptors.iter().map(joined).collect::<Vec<_>>(), expect, "{lines}");
        };
        let header = || Header("x-key".into());
        let lines = "POST /a/./b?c=d HTTP/1.1\r\nHost: Shop.test:81\r\nX-Key: 1\r\nx-key: 2\r\n";
        check(
            lines,
            &[&[ClientIp, header(), Path, Method, Host, Text("t".into())]],
            &["10.0.0.9|1|/a/b|POST|shop.test|t"],
        );
        check(lines, &[&[Path], &[Header("x-other".into()), Path], &[header()]], &["/a/b", "1"]);
        check(lines, &[&[Header("x-other".into())]], &[]);
        let claim = |name: &str| Claim(name.into());
        check(lines, &[&[claim("sub"), Path], &[claim("scope")]], &["joe|/a/b", "read,write"]);
        check(lines, &[&[claim("none")], &[claim("absent"), Path]], &[]);
        let nobody = asked(lines, true, |view| request(&policy(&[&[claim("sub")]]), &Counted { view, bearer: None }));
        assert_eq!(nobody.map_err(|error| error.reason), Ok(None));
        check("GET / HTTP/1.1\r\nHost: a\r\nX-Key:\r\n", &[&[header()]], &[]);
        let from = |ip: &str| format!("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {ip}\r\n");
        check(&from("2001:db8:0:1:a:b:c:d"), &[&[ClientIp]], &["2001:db8:0:1::/64"]);
        check(&from("::ffff:1.2.3.4"), &[&[ClientIp]], &["1.2.3.4"]);
        let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX-Key: {}\r\n", "a".repeat(VALUES_BYTES_MAX / 2));
        let refused = asked(&long, false, |view| {
            request(&policy(&[&[header()], &[header(), Path]]), &Counted { view, bearer: None })
        });
        assert_eq!(refused.map_err(|error| error.reason), Err(Reason::HeaderTooLarge));
    }

    #[test]
    fn only_two_codes_are_an_answer() {
        let check = |message: RateLimitResponse, expect: Option<(bool, Option<u64>, usize)>| {
            let verdict = verdict(answer(&message.encode_to_vec(), Some(Code::Ok)));
            let got = verdict.ok().map(|verdict| (verdict.is_over, verdict.retry_after_s, verdict.quotas.len()));
            assert_eq!(got, expect, "{message:?}");
        };
        let limit = |unit| Limit { requests_per_unit: 5, unit, name: String::new(), unit_multiplier: None };
        let status = |code, unit, seconds| Status {
            code,
            current_limit: Some(limit(unit)),
            limit_remaining: 3,
            duration_until_reset: Some(Duration { seconds, nanos: 1 }),
        };
        let statuses = vec![status(OK, 2, 30), status(OVER_LIMIT, 1, 0), status(OVER_LIMIT, 9, 7), Status::default()];
        check(RateLimitResponse { overall_code: OK, statuses: statuses.clone() }, Some((false, None, 2)));
        check(RateLimitResponse { overall_code: OVER_LIMIT, statuses }, Some((true, Some(8), 2)));
        check(RateLimitResponse { overall_code: OVER_LIMIT, statuses: Vec::new() }, Some((true, None, 0)));
        for overall_code in [0, 3, -1] {
            check(RateLimitResponse { overall_code, statuses: Vec::new() }, None);
        }
        let many = vec![status(OK, 1, -5); 1000];
        check(RateLimitResponse { overall_code: OK, statuses: many }, Some((false, None, QUOTAS_MAX)));
        let long = Answer { body: Ok(None), ..answer(b"", Some(Code::Ok)) };
        assert_eq!(verdict(long).unwrap(), Verdict { is_over: true, ..Verdict::default() });
    }

    #[test]
    fn a_limit_of_the_service_is_a_quota() {
        let unit_multiplier = Some(Multiplier { value: 2 });
        let limit = Limit { requests_per_unit: 5, unit: 2, name: "per-ip".into(), unit_multiplier };
        let duration_until_reset = Some(Duration { seconds: 20, nanos: 0 });
        let status = Status { code: OK, current_limit: Some(limit), limit_remaining: 3, duration_until_reset };
        let expect = Quota { name: "per-ip".into(), limit: 5, window_s: 120, remaining: 3, reset_s: 20 };
        assert_eq!(quota(&status), Some(expect));
    }
}
