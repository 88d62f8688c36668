//! Rate limits of routes: how a client is identified, and what responses say about its limit.
//!
//! Every client knows `Retry-After`. The other fields are only sent where the route asks for them, as their form has changed with nearly every
//! draft.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use balance::{Bandwidth, Rate, RateTable};
use ipnet::IpNet;
use model::{AddressRules, FurtherRate, LimitTerms, RateHeaders, RateKey, RateLimit};
use smallvec::SmallVec;
use telemetry::Reason;

use super::RequestView;
use super::addresses::AddressTable;
use super::rate_headers::{Quota, Quotas};
use crate::error::Error;
use crate::http::client_address;

/// The clients of all rate limits of the process.
#[derive(Default)]
pub(crate) struct Clients {
    table: RateTable,
    /// Each process makes a new one, so that no client can choose which other client it shares an entry with.
    hasher: RandomState,
}

impl Clients {
    /// The key of something in the table.
    pub(super) fn hash(&self, of: impl std::hash::Hash) -> u64 {
        self.hasher.hash_one(of)
    }

    /// See [`RateTable::reserve`].
    pub(super) fn reserve(&self, key: u64, bandwidth: Bandwidth, bytes: u64, now_ns: u64) -> u64 {
        self.table.reserve(key, bandwidth, bytes, now_ns)
    }

    /// See [`RateTable::forgotten`].
    pub(crate) fn forgotten(&self) -> u64 {
        self.table.forgotten()
    }
}

/// The rate limit of one route, or of a listener, for all workers.
pub(crate) struct Limiter {
    /// At least one.
    rates: SmallVec<[Counted; 1]>,
    by: RateKey,
    clients: Arc<Clients>,
    headers: RateHeaders,
    exempt: Exempt,
}

/// One of the rates of a limit.
struct Counted {
    rate: Rate,
    /// What the client is told that it is called.
    name: String,
    /// Identifies the route and the rate. The usage of clients survives a reload that changes neither.
    id: u64,
    /// As many requests may come at once.
    burst: u64,
}

/// The clients that a limit does not hold for.
pub(super) struct Exempt(Option<AddressTable>);

impl Exempt {
    pub(super) fn new(networks: &[IpNet]) -> Self {
        Self(AddressTable::new(&AddressRules { allow: networks.into(), ..AddressRules::default() }))
    }

    /// Whether the request is one of theirs.
    pub(super) fn has(&self, asked: &RequestView<'_>) -> bool {
        let of_client = |table: &AddressTable| {
            table.admits(client_address::known_client_ip(asked.head, asked.buffer, asked.client).ok())
        };
        self.0.as_ref().is_some_and(of_client)
    }
}

/// The key of a client, as a limit identifies it: what `by` names, and its address if that is missing.
pub(super) fn client_key(hasher: &RandomState, id: u64, by: &RateKey, asked: &RequestView<'_>) -> u64 {
    match by.header().and_then(|name| first_value(asked, name)) {
        Some(value) => hasher.hash_one((id, value)),
        None => hasher.hash_one((id, network(client_address::client_ip(asked.head, asked.buffer, asked.client)))),
    }
}

impl Limiter {
    /// That of a route, or without one of a listener.
    pub(crate) fn new(limit: &RateLimit, listener: &str, route: Option<&str>, clients: &Arc<Clients>) -> Self {
        let RateLimit { by, headers, terms, .. } = limit;
        let LimitTerms { except, group, status: _ } = terms;
        let name = if route.is_some() { "local" } else { "listener" };
        let counted = |(number, of): (usize, FurtherRate)| {
            let what = (of.requests, of.per, by.header(), of.burst);
            let id = match group {
                Some(group) => clients.hasher.hash_one((group, what)),
                None => clients.hasher.hash_one((listener, route, what)),
            };
            let name = if number == 0 { name.to_owned() } else { format!("{name}-{}", number + 1) };
            Counted { rate: Rate::new(of), name, id, burst: u64::from(of.burst.max(1)) }
        };
        Self {
            rates: limit.rates().enumerate().map(counted).collect(),
            by: by.clone(),
            clients: clients.clone(),
            headers: *headers,
            exempt: Exempt::new(except),
        }
    }

    /// Counts a request of a client, or refuses it. `quotas` get what the client is told about the limit.
    ///
    /// # Errors
    /// [`Reason::RateLimited`], with the time after which the client may try again.
    pub(crate) fn admit(
        &self,
        asked: &RequestView<'_>,
        now_us: u64,
        quotas: &mut Option<Box<Quotas>>,
    ) -> Result<(), Error> {
        if self.exempt.has(asked) {
            return Ok(());
        }
        let table = &self.clients.table;
        let key = |counted: &Counted| client_key(&self.clients.hasher, counted.id, &self.by, asked);
        let mut told: SmallVec<[(&Counted, u64); 1]> = SmallVec::new();
        for counted in &self.rates {
            match table.admit(key(counted), counted.rate, now_us.saturating_mul(1000)) {
                Ok(whole_after_ns) => told.push((counted, whole_after_ns)),
                Err(wait_ns) => {
                    told.iter().for_each(|(earlier, _)| table.take_back(key(earlier), earlier.rate));
                    if !self.headers.is_none() {
                        quotas.get_or_insert_default().add(self.headers, counted.quota(Err(wait_ns)));
                    }
                    return Err(Error::internal(Reason::RateLimited).retry_after(seconds(wait_ns)));
                }
            }
        }
        if !self.headers.is_none() {
            let quotas = quotas.get_or_insert_default();
            told.iter().for_each(|(counted, whole)| quotas.add(self.headers, counted.quota(Ok(*whole))));
        }
        Ok(())
    }
}

impl Counted {
    /// What a client is told, whose request was admitted or refused.
    fn quota(&self, admitted: Result<u64, u64>) -> Quota {
        let (remaining, whole_after_ns) = match admitted {
            Ok(whole_after_ns) => (self.rate.remaining(whole_after_ns), whole_after_ns),
            Err(wait_ns) => (0, self.rate.whole_after_ns(wait_ns)),
        };
        Quota {
            name: self.name.clone(),
            limit: self.burst,
            window_s: seconds(self.rate.allowance_ns()),
            remaining,
            reset_s: seconds(whole_after_ns),
        }
    }
}

fn seconds(ns: u64) -> u64 {
    ns.div_ceil(1_000_000_000)
}

/// The value of the first field with this name.
pub(crate) fn first_value<'a>(asked: &RequestView<'a>, name: &str) -> Option<&'a [u8]> {
    let is_it = |field: &&wire::message::Field| field.name.get(asked.buffer).eq_ignore_ascii_case(name.as_bytes());
    asked.head.fields.iter().find(is_it).map(|field| field.value.get(asked.buffer))
}

/// The part of an address that a client cannot change: a client controls the last 64 bits of its IPv6 address (RFC 7421).
pub(crate) fn network(ip: IpAddr) -> u64 {
    match ip.to_canonical() {
        // These numbers are different from all IPv6 networks in use, which begin with 2 or 3 or are local.
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::testing;
    use super::*;

    fn limiter(by: RateKey, route: &str, clients: &Arc<Clients>) -> Limiter {
        Limiter::new(&limit(by, LimitTerms::default()), "web", Some(route), clients)
    }

    fn limit(by: RateKey, terms: LimitTerms) -> RateLimit {
        let headers = RateHeaders { x_ratelimit: false, ratelimit: true };
        RateLimit { requests: 1, per: Duration::from_secs(10), by, burst: 2, also: Vec::new(), headers, terms }
    }

    /// The number of three requests that are accepted.
    fn granted(limiter: &Limiter, fields: &str, is_trusted: bool) -> usize {
        let lines = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}");
        (0..3)
            .filter(|_| testing::asked(&lines, is_trusted, |asked| limiter.admit(asked, 1, &mut None)).is_ok())
            .count()
    }

    #[test]
    fn clients_are_told_apart_by_what_the_limit_says() {
        let clients = Arc::default();
        let by_ip = limiter(RateKey::ClientIp, "/", &clients);
        assert_eq!(granted(&by_ip, "", false), 2);
        assert_eq!(granted(&by_ip, "X-Forwarded-For: 1.1.1.1\r\n", false), 0);
        assert_eq!(granted(&by_ip, "X-Forwarded-For: 1.1.1.1\r\n", true), 2);
        // One client controls all addresses of its network.
        assert_eq!(granted(&by_ip, "X-Forwarded-For: 2001:db8::1\r\n", true), 2);
        assert_eq!(granted(&by_ip, "X-Forwarded-For: 2001:db8::2\r\n", true), 0);
        assert_eq!(granted(&by_ip, "X-Forwarded-For: 2001:db8:0:1::1\r\n", true), 2);
        assert_eq!(granted(&by_ip, "X-Forwarded-For: ::ffff:1.1.1.1\r\n", true), 0);

        let by_key = limiter(RateKey::Header("x-key".into()), "/", &clients);
        assert_eq!(granted(&by_key, "X-Key: joe\r\n", false), 2);
        assert_eq!(granted(&by_key, "x-KEY: ann\r\n", false), 2);
        assert_eq!(granted(&by_key, "X-Key: joe\r\n", false), 0);
        assert_eq!(granted(&by_key, "", false), 2);
    }

    #[test]
    fn a_request_needs_room_in_each_rate_and_counts_for_none_if_it_is_refused() {
        let clients = Arc::default();
        let further = |requests, per, burst| FurtherRate { requests, per: Duration::from_secs(per), burst };
        let of = RateLimit { also: vec![further(1, 3600, 3)], ..limit(RateKey::ClientIp, LimitTerms::default()) };
        let limiter = Limiter::new(&of, "web", Some("/"), &clients);
        let ask = |limiter: &Limiter, now_s: u64| {
            let mut quotas = None;
            let lines = "GET / HTTP/1.1\r\nHost: a\r\n";
            let outcome = testing::asked(lines, false, |asked| limiter.admit(asked, now_s * 1_000_000, &mut quotas));
            let told = format!("{quotas:?}");
            (outcome.map_err(|error| error.retry_after_s), told.matches("name:").count(), told.contains("local-2"))
        };
        assert_eq!(ask(&limiter, 1), (Ok(()), 2, true));
        assert_eq!(ask(&limiter, 1), (Ok(()), 2, true));
        // The first rate refuses these, so the second does not count them.
        assert_eq!(ask(&limiter, 1), (Err(Some(10)), 1, false));
        assert_eq!(ask(&limiter, 1), (Err(Some(10)), 1, false));
        assert_eq!(ask(&limiter, 11), (Ok(()), 2, true));
        // The second refuses these, and the first has as much room as without them.
        assert_eq!(ask(&limiter, 31), (Err(Some(3570)), 1, true));
        assert_eq!(ask(&limiter, 31), (Err(Some(3570)), 1, true));
        let first = Limiter::new(&limit(RateKey::ClientIp, LimitTerms::default()), "web", Some("/"), &clients);
        let outcomes = [31, 31, 31].map(|now_s| ask(&first, now_s).0);
        assert_eq!(outcomes, [Ok(()), Ok(()), Err(Some(10))]);
        assert_eq!(ask(&limiter, 3601).0, Ok(()));
    }

    #[test]
    fn routes_do_not_share_and_a_reload_forgets_nothing() {
        let clients = Arc::default();
        assert_eq!(granted(&limiter(RateKey::ClientIp, "/a", &clients), "", false), 2);
        assert_eq!(granted(&limiter(RateKey::ClientIp, "/b", &clients), "", false), 2);
        assert_eq!(granted(&limiter(RateKey::ClientIp, "/a", &clients), "", false), 0);
    }

    #[test]
    fn routes_of_a_group_share_and_some_clients_are_not_limited() {
        let clients = Arc::default();
        let limiter = |listener: &str, route: &str, group: Option<&str>, except: &[&str]| {
            let except = except.iter().map(|network| network.parse().unwrap()).collect();
            let terms = LimitTerms { except, group: group.map(str::to_owned), ..LimitTerms::default() };
            Limiter::new(&limit(RateKey::ClientIp, terms), listener, Some(route), &clients)
        };
        assert_eq!(granted(&limiter("web", "/a", Some("g"), &[]), "", false), 2);
        assert_eq!(granted(&limiter("tls", "/b", Some("g"), &[]), "", false), 0);
        assert_eq!(granted(&limiter("web", "/a", Some("h"), &[]), "", false), 2);
        let some = limiter("web", "/c", None, &["10.0.0.0/24", "1.2.3.4/32"]);
        assert_eq!(granted(&some, "", false), 3);
        assert_eq!(granted(&some, "X-Forwarded-For: 1.2.3.4\r\n", true), 3);
        assert_eq!(granted(&some, "X-Forwarded-For: 1.2.3.5\r\n", true), 2);
        // A proxy that says something else says nothing about its client.
        assert_eq!(granted(&some, "X-Forwarded-For: 1.2.3.4, x\r\n", true), 2);
    }

    #[test]
    fn who_is_refused_is_told_when_to_come_again() {
        let limiter = limiter(RateKey::ClientIp, "/", &Arc::default());
        let admit = |now_us| {
            let mut quotas = None;
            let lines = "GET / HTTP/1.1\r\nHost: a\r\n";
            let admitted = testing::asked(lines, false, |asked| limiter.admit(asked, now_us, &mut quotas));
            let mut out: Vec<u8> = Vec::new();
            quotas.unwrap().write(&mut out);
            let told = String::from_utf8(out).unwrap();
            let told = told.strip_prefix("ratelimit-policy: \"local\";q=2;w=20\r\nratelimit: \"local\";").unwrap();
            (admitted.err().map(|error| error.retry_after_s.unwrap()), told.trim_end().to_owned())
        };
        let check = |now_us, wait, told: &str| assert_eq!(admit(now_us), (wait, told.to_owned()), "{now_us}");
        check(0, None, "r=1;t=10");
        check(0, None, "r=0;t=20");
        check(0, Some(10), "r=0;t=20");
        check(1, Some(10), "r=0;t=20");
        check(9_000_001, Some(1), "r=0;t=11");
    }
}
