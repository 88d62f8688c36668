//! Limits on the requests of clients.

use std::collections::HashSet;

use ipnet::IpNet;
use model::{ConcurrencyLimit, FurtherRate, LimitTerms, RateHeaders, RateKey, RateLimit};

use super::addresses;
use crate::diagnostic::{Report, Wrong};
use crate::raw::{RateHeader, RawClientRate, RawConcurrencyLimit, RawFurtherRate, RawRateKey, RawRateLimit};
use crate::read::{Int, Located, Many, OneOf, OneOrMany};
use crate::text::{ClientNetwork, Label, duration_text};

/// The most networks of clients that one limit does not hold for.
const EXCEPT_MAX: usize = 1024;

/// The most further rates of one limit.
const FURTHER_MAX: usize = 4;

/// Returns `None` if a required key is missing; the report says so.
pub fn rate_limit(raw: &RawRateLimit, report: &mut Report) -> Option<RateLimit> {
    let headers = rate_headers(&raw.headers, report);
    let terms = terms(&raw.except, &raw.status, &raw.group, report);
    let requests = number(raw.requests.as_ref()?.value.0);
    let by = key(&raw.by)?;
    let burst = raw.burst.as_ref().map_or(requests, |burst| number(burst.value.0));
    let also = further(&raw.also, report);
    let limit = RateLimit { requests, per: raw.per.as_ref()?.value.0, by, burst, also, headers, terms };
    let mut seen = HashSet::new();
    let twice = limit.rates().find(|rate| !seen.insert((rate.requests, rate.per)));
    if let (Some(rate), Some(also)) = (twice, &raw.also) {
        let FurtherRate { requests, per, .. } = rate;
        let wrong = Wrong::new(format!("`rate_limit` has {requests} requests per {} twice", duration_text(per)));
        report.add(also.location, wrong.hint("keep the one with the smaller `burst`, which decides"));
    }
    Some(limit)
}

/// The further rates of a limit, without those that lack something.
fn further(written: &Option<Located<Many<RawFurtherRate>>>, report: &mut Report) -> Vec<FurtherRate> {
    let Some(Located { location, value: Many(list) }) = written else { return Vec::new() };
    if list.len() > FURTHER_MAX {
        let message = format!("`also` has {} rates; the limit is {FURTHER_MAX}", list.len());
        report.add(*location, Wrong::new(message));
    }
    let one = |raw: &Located<RawFurtherRate>| {
        let requests = number(raw.value.requests.as_ref()?.value.0);
        let burst = raw.value.burst.as_ref().map_or(requests, |burst| number(burst.value.0));
        Some(FurtherRate { requests, per: raw.value.per.as_ref()?.value.0, burst })
    };
    list.iter().filter_map(one).collect()
}

/// Returns `None` if a required key is missing; the report says so.
pub fn concurrency_limit(raw: &RawConcurrencyLimit, report: &mut Report) -> Option<Box<ConcurrencyLimit>> {
    let terms = terms(&raw.except, &raw.status, &raw.group, report);
    Some(Box::new(ConcurrencyLimit { requests: number(raw.requests.as_ref()?.value.0), by: key(&raw.by)?, terms }))
}

/// The rate of each client of a listener. Returns `None` if a required key is missing; the report says so.
pub fn client_rate(raw: &RawClientRate, report: &mut Report) -> Option<RateLimit> {
    let headers = rate_headers(&raw.headers, report);
    let requests = number(raw.requests.as_ref()?.value.0);
    let burst = raw.burst.as_ref().map_or(requests, |burst| number(burst.value.0));
    let (per, terms) = (raw.per.as_ref()?.value.0, LimitTerms::default());
    Some(RateLimit { requests, per, by: RateKey::ClientIp, burst, also: Vec::new(), headers, terms })
}

/// The fields that tell clients about their limits.
pub fn rate_headers(raw: &Option<Located<OneOrMany<OneOf<RateHeader>>>>, report: &mut Report) -> RateHeaders {
    let mut headers = RateHeaders::default();
    for form in raw.iter().flat_map(|forms| &forms.value.0) {
        let flag = match form.value.0 {
            RateHeader::XRateLimit => &mut headers.x_ratelimit,
            RateHeader::RateLimit => &mut headers.ratelimit,
        };
        if std::mem::replace(flag, true) {
            report.add(form.location, Wrong::new("this form is listed twice").hint("remove it"));
        }
    }
    headers
}

/// What identifies a client. Returns `None` if the name of the header is wrong; the report says so.
fn key(raw: &Option<Located<RawRateKey>>) -> Option<RateKey> {
    Some(match raw.as_ref().map(|by| &by.value) {
        Some(RawRateKey::Object(object)) => RateKey::Header(object.header.as_ref()?.value.0.clone()),
        Some(RawRateKey::Text(_)) | None => RateKey::ClientIp,
    })
}

fn terms(
    except: &Option<Located<OneOrMany<ClientNetwork>>>,
    status: &Option<Located<Int<400, 599>>>,
    group: &Option<Located<Label>>,
    report: &mut Report,
) -> LimitTerms {
    let status = status.as_ref().and_then(|status| u16::try_from(status.value.0).ok());
    LimitTerms {
        except: except.as_ref().map_or_else(Vec::new, |except| networks(except, report)),
        status: status.unwrap_or(LimitTerms::STATUS),
        group: group.as_ref().map(|group| group.value.0.clone()),
    }
}

fn networks(raw: &Located<OneOrMany<ClientNetwork>>, report: &mut Report) -> Vec<IpNet> {
    let networks = addresses::listed("except", raw, &mut addresses::Seen::new(), report);
    if networks.len() > EXCEPT_MAX {
        let wrong = Wrong::new(format!("`except` has {} networks; the limit is {EXCEPT_MAX}", networks.len()));
        report.add(raw.location, wrong.hint("merge neighbouring networks into larger ones"));
    }
    networks
}

fn number(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
