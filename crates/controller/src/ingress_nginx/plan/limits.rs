//! Limits on clients and on responses: `limit-*`.
//!
//! ingress-nginx counts for each Ingress, whichever of its paths is asked for, over HTTP or HTTPS. The translation says that
//! ([`Plan::limits_clients`]), because a TrafficPolicy cannot.

use serde_json::{Value, json};

use super::access::texts;
use super::{Plan, Reading};
use crate::ingress_nginx::value;

/// The most that a limit can count, and so the most that its burst can be.
const REQUESTS_MAX: u64 = 1_000_000;

/// The fastest response.
const BYTES_MAX: u64 = 1 << 40;

impl Plan {
    /// Whether all routes of the Ingress count the requests of a client together.
    pub fn limits_clients(&self) -> bool {
        let has = |name: &str| self.spec.get("route").is_some_and(|route| route.get(name).is_some());
        has("rateLimit") || has("concurrencyLimit")
    }
}

impl Reading<'_> {
    pub(super) fn limits(&mut self) {
        self.response_rate();
        let of_clients = |this: &Self, name: &str| this.int(name).filter(|count| *count > 0);
        let concurrent = of_clients(self, "limit-connections");
        let (rps, rpm) = (of_clients(self, "limit-rps"), of_clients(self, "limit-rpm"));
        if rps.is_none() && rpm.is_none() {
            self.idle(&["limit-burst-multiplier"], "without limit-rps or limit-rpm, it has no effect");
        }
        let except = self.exempt(concurrent.or(rps).or(rpm).is_some());
        let with = |this: &Self, mut limit: Value, status: &str| {
            // nginx takes no other statuses.
            let status = this.globals.int(status, 503);
            limit["status"] = json!(if (400..=599).contains(&status) { status } else { 503 });
            if let Some(except) = &except {
                limit["except"] = except.clone();
            }
            limit
        };
        if let Some(requests) = concurrent {
            let limit = with(self, json!({"requests": requests.min(REQUESTS_MAX)}), "limit-conn-status-code");
            self.route.insert("concurrencyLimit".to_owned(), limit);
        }
        let multiplier = self.int("limit-burst-multiplier").filter(|times| *times > 0).unwrap_or(5);
        let rate = |requests: u64, per: &str| {
            let requests = requests.min(REQUESTS_MAX);
            let burst = requests.saturating_mul(multiplier).saturating_add(1).min(REQUESTS_MAX);
            json!({"requests": requests, "per": per, "burst": burst})
        };
        let (by_second, by_minute) =
            (rps.map(|requests| rate(requests, "1s")), rpm.map(|requests| rate(requests, "1m")));
        let limit = match (by_second, by_minute) {
            (Some(mut limit), Some(also)) => {
                limit["also"] = json!([also]);
                limit
            }
            (Some(limit), None) | (None, Some(limit)) => limit,
            (None, None) => return,
        };
        let limit = with(self, limit, "limit-req-status-code");
        self.route.insert("rateLimit".to_owned(), limit);
    }

    /// The networks of clients that are not limited. limit-whitelist is the older name of limit-allowlist, which counts if both are there.
    fn exempt(&mut self, is_limited: bool) -> Option<Value> {
        let name = ["limit-allowlist", "limit-whitelist"].into_iter().find(|name| self.text(name).is_some())?;
        if !is_limited {
            self.idle(&["limit-allowlist", "limit-whitelist"], "without another limit, it has no effect");
            return None;
        }
        if name == "limit-allowlist" {
            self.idle(&["limit-whitelist"], "limit-allowlist is there as well, and counts");
        }
        let networks = value::networks(self.text(name)?).ok()?;
        Some(texts(networks.iter()))
    }

    /// How fast responses are. nginx counts from the beginning of a second, so the first one's bytes go at once. It slows down only what it
    /// buffers: with `proxy_buffering off`, which is ingress-nginx's default, nginx 1.22 sent 500 kB in 12 ms in spite of `limit_rate 100k`.
    fn response_rate(&mut self) {
        let kilobytes = |this: &Self, name: &str| this.either(name).and_then(value::integer).unwrap_or(0);
        let (rate, after) = (kilobytes(self, "limit-rate"), kilobytes(self, "limit-rate-after"));
        let is_buffered = self.either("proxy-buffering").is_some_and(|word| word.eq_ignore_ascii_case("on"));
        if rate > 0 && !is_buffered {
            let why = "nginx slows down only what it buffers: without proxy-buffering: \"on\", it has no effect";
            return self.idle(&["limit-rate", "limit-rate-after"], why);
        }
        if rate == 0 {
            return self.idle(&["limit-rate-after"], "without limit-rate, it has no effect");
        }
        let bytes = |kilobytes: u64| kilobytes.saturating_mul(1024).min(BYTES_MAX);
        let limit = json!({
            "bytes": format!("{}B", bytes(rate)),
            "after": format!("{}B", bytes(after.saturating_add(rate))),
        });
        self.route.insert("responseBandwidth".to_owned(), limit);
    }
}
