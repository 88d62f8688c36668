//! Rate limits of routes: how a client is identified, and what responses say about its limit.
//!
//! Every client knows `Retry-After`. The other fields are only sent where the route asks for them, as their form has changed with nearly every
//! draft.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use balance::{Bandwidth, Rate, RateTable};
use ipnet::IpNet;
use model::{AddressRules, LimitTerms, RateHeaders, RateKey, RateLimit};
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
    rate: Rate,
    by: RateKey,
    /// What the client is told that it is called.
    name: &'static str,
    /// Identifies the route and its limit. The usage of clients survives a reload that changes neither.
    id: u64,
    clients: Arc<Clients>,
    /// As many requests may come at once.
    burst: u64,
    headers: RateHeaders,
    exempt: Exempt,
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
        let RateLimit { requests, per, by, burst, headers, terms } = limit;
        let LimitTerms { except, group, status: _ } = terms;
        let header = by.header();
        let counted = (requests, per, header, burst);
        let id = match group {
            Some(group) => clients.hasher.hash_one((group, counted)),
            None => clients.hasher.hash_one((listener, route, counted)),
        };
        let (burst, headers) = (u64::from((*burst).max(1)), *headers);
        let name = if route.is_some() { "local" } else { "listener" };
        Self {
            rate: Rate::new(limit),
            by: by.clone(),
            name,
            id,
            clients: clients.clone(),
            burst,
            headers,
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
        let key = client_key(&self.clients.hasher, self.id, &self.by, asked);
        let admitted = self.clients.table.admit(key, self.rate, now_us.saturating_mul(1000));
        if !self.headers.is_none() {
            quotas.get_or_insert_default().add(self.headers, self.quota(admitted));
        }
        let refused = |wait_ns| Error::internal(Reason::RateLimited).retry_after(seconds(wait_ns));
        admitted.map(|_| ()).map_err(refused)
    }

    /// What a client is told, whose request was admitted or refused.
    fn quota(&self, admitted: Result<u64, u64>) -> Quota {
        let (remaining, whole_after_ns) = match admitted {
            Ok(whole_after_ns) => (self.rate.remaining(whole_after_ns), whole_after_ns),
            Err(wait_ns) => (0, self.rate.whole_after_ns(wait_ns)),
        };
        Quota {
            name: self.name.to_owned(),
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
        RateLimit { requests: 1, per: Duration::from_secs(10), by, burst: 2, headers, terms }
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
