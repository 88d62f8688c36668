//! What a listener has of the settings of its servers about clients: who they are, which paths they may write, how large their bodies are.

use ipnet::IpNet;
use serde_json::json;

use super::super::draft::{Became, Keys, milliseconds};
use super::parse::Directive;
use super::server::size;
use super::upstream::duration;
use super::{Bound, Making, Scope};

/// Directives that decide what the address of a client is.
const REAL_IP: &[&str] = &["set_real_ip_from", "real_ip_header", "real_ip_recursive"];

/// Directives of which a listener has one value.
const OF_THE_PORT: &[&str] = &[
    "client_body_timeout",
    "client_header_timeout",
    "http2_max_concurrent_streams",
    "ignore_invalid_headers",
    "keepalive_requests",
    "keepalive_timeout",
    "large_client_header_buffers",
    "send_timeout",
    "underscores_in_headers",
];

/// Where the address of a client comes from.
enum Address<'d> {
    /// From these proxies; from the connection or the PROXY protocol if there is none.
    Known(Vec<String>),
    /// From something else.
    Unclear(&'d Directive, &'static str),
}

impl<'d> Making<'d, '_> {
    pub(super) fn clients(&mut self, first: Bound<'d>, bound: &[Bound<'d>], keys: &mut Keys) {
        self.paths(first, bound, keys);
        self.bodies(bound, keys);
        self.times(first, bound, keys);
        match self.address(bound) {
            Address::Known(trusted) => {
                self.unclear = None;
                if !trusted.is_empty() {
                    keys.set("trusted_proxies", trusted);
                }
            }
            Address::Unclear(place, why) => {
                let more = format!(
                    "{why}: endpoints get the address of the connection, and locations with allow or deny are closed"
                );
                self.draft.note(place.place(), &place.told(), Became::Lost, &more);
                self.unclear = Some((place, why));
            }
        }
        let tells = bound.iter().any(|one| names_forwarded(&one.server.block)) || names_forwarded(self.http);
        if !tells {
            keys.set("forwarded", "off");
        }
    }

    /// nginx decodes a path before it compares it, also `%2F` and what stands for a folder then.
    fn paths(&mut self, first: Bound<'d>, bound: &[Bound<'d>], keys: &mut Keys) {
        let mut paths = json!({"refuse_ambiguous": true});
        let off = |making: &Self, one: &Bound<'d>| {
            making.scope.inner(&one.server.block).last("merge_slashes").filter(|one| one.arg(0) == "off")
        };
        let merges: Vec<_> = bound.iter().map(|one| off(self, one)).collect();
        if off(self, &first).is_some() {
            paths["merge_slashes"] = json!(false);
        }
        if let Some(one) = merges.iter().flatten().next()
            && merges.iter().any(Option::is_none)
        {
            let why =
                "the servers of a port read paths in one way, so all are closed; write it for each server, or for none";
            self.draft.note(one.place(), &one.told(), Became::Closed, why);
            self.closed = true;
        }
        let why = "a path with %2F, a backslash or an escaped control character is answered 400, because nginx decodes it before it looks for a \
            location; `paths: {refuse_ambiguous: true}` of the listener does it";
        self.draft.note(first.server.place(), "server", Became::Different, why);
        keys.set("paths", paths);
    }

    /// Times, sizes and counts that clients have, and the names that their headers may have: those of the default server, as in nginx before it
    /// knows which server a request is for.
    fn times(&mut self, first: Bound<'d>, bound: &[Bound<'d>], keys: &mut Keys) {
        let scope = self.scope.inner(&first.server.block);
        let last = |name: &str| scope.last(name).map(|one| one.arg(0));
        let time = |name: &str| last(name).and_then(duration);
        if let Some(time) = time("client_header_timeout") {
            keys.set("header_timeout", milliseconds(time));
        }
        if let Some(time) = time("client_body_timeout").into_iter().chain(time("send_timeout")).max() {
            keys.set("stall_timeout", milliseconds(time));
        }
        match last("keepalive_timeout") {
            Some(text) if text.trim_end_matches('s') == "0" => {
                let mut limits = keys.get("limits").cloned().unwrap_or_else(|| json!({}));
                limits["requests_per_connection"] = json!(1);
                keys.set("limits", limits);
            }
            Some(text) => {
                if let Some(time) = duration(text) {
                    keys.set("idle_timeout", milliseconds(time));
                }
            }
            None => {}
        }
        let mut limits = keys.get("limits").cloned().unwrap_or_else(|| json!({}));
        for (name, key, most) in [
            ("keepalive_requests", "requests_per_connection", 1_000_000_000),
            ("http2_max_concurrent_streams", "streams_per_connection", 10_000),
        ] {
            let count = last(name).and_then(|text| text.parse::<u64>().ok()).filter(|count| *count > 0);
            if let Some(count) = count.filter(|_| limits[key].is_null()) {
                limits[key] = json!(count.min(most));
            }
        }
        if let Some(one) = scope.last("large_client_header_buffers") {
            let bytes = one.arg(0).parse::<u64>().ok().zip(size(one.arg(1)));
            if let Some((count, bytes)) = bytes {
                limits["header_bytes"] = json!(format!("{}B", count.saturating_mul(bytes).clamp(1 << 10, 1 << 20)));
            }
        }
        if limits.as_object().is_some_and(|limits| !limits.is_empty()) {
            keys.set("limits", limits);
        }
        let names = match (last("ignore_invalid_headers"), last("underscores_in_headers")) {
            (Some("off"), _) => "any",
            (_, Some("on")) => "underscores",
            _ => "strict",
        };
        keys.set("header_names", names);
        // Of the other servers, and of locations, these are not read.
        for server in bound {
            let blocks = server.server.block.iter().filter(|one| one.name == "location").map(|one| &one.block);
            let own = (server.number != first.number).then_some(&server.server.block);
            for one in own.into_iter().chain(blocks).flatten().filter(|one| OF_THE_PORT.contains(&one.name.as_str())) {
                if scope.last(&one.name).map(|known| &known.args) != Some(&one.args) {
                    let why = "a listener has one value, that of the default server of the port";
                    self.draft.note(one.place(), &one.told(), Became::Different, why);
                }
            }
        }
    }

    fn bodies(&mut self, bound: &[Bound<'d>], keys: &mut Keys) {
        let mut sizes = Vec::new();
        for one in bound {
            let scope = self.scope.inner(&one.server.block);
            sizes.extend(self.sizes(&one.server.block, &scope));
        }
        let largest = if sizes.contains(&0) { 0 } else { sizes.iter().copied().max().unwrap_or(1 << 20) };
        if sizes.iter().any(|size| *size != largest)
            && let Some(one) = bound.first()
        {
            let why = "the size of bodies is limited for each listener, so the largest of these counts; `max_body` limits a route";
            self.draft.note(one.server.place(), "client_max_body_size", Became::Different, why);
        }
        if largest > 0 {
            keys.set("limits", json!({"body_bytes": format!("{largest}B")}));
        }
    }

    /// Where the addresses of the clients of a port come from. All servers must say the same: the proxies that one of them trusts are strangers
    /// to the others.
    fn address(&self, bound: &[Bound<'d>]) -> Address<'d> {
        let mut all = bound.iter().map(|one| self.address_of(one));
        let Some(first) = all.next() else { return Address::Known(Vec::new()) };
        let Address::Known(trusted) = &first else { return first };
        for other in all {
            match other {
                Address::Known(other) if other == *trusted => {}
                Address::Known(_) => {
                    let any = bound
                        .iter()
                        .flat_map(|one| self.scope.inner(&one.server.block).all(&["set_real_ip_from"]))
                        .next();
                    // One of them trusts somebody, so it has one.
                    let Some(place) = any.or_else(|| bound.first().map(|one| one.server)) else { continue };
                    return Address::Unclear(place, "the servers of a port trust the same proxies");
                }
                unclear @ Address::Unclear(..) => return unclear,
            }
        }
        first
    }

    fn address_of(&self, one: &Bound<'d>) -> Address<'d> {
        use Address::{Known, Unclear};
        if let Some(inner) = below(&one.server.block) {
            return Unclear(inner, "the proxies that are trusted are those of a port, and not of a location");
        }
        let scope = self.scope.inner(&one.server.block);
        let from = scope.all(&["set_real_ip_from"]);
        let Some(place) = from.first().copied() else {
            let why = "nginx takes the address of the connection, and Steelyard that of the PROXY protocol";
            return if one.has_proxy_protocol { Unclear(one.server, why) } else { Known(Vec::new()) };
        };
        let mut networks: Vec<IpNet> = Vec::new();
        for text in from.iter().map(|one| one.arg(0)).filter(|text| *text != "unix:") {
            match text.parse().ok().or_else(|| Some(IpNet::from(text.parse::<std::net::IpAddr>().ok()?))) {
                Some(network) => networks.push(network),
                None => return Unclear(place, "a proxy that is trusted is an address or a network"),
            }
        }
        networks.sort_unstable();
        networks.dedup();
        let header = scope.last("real_ip_header").map_or("X-Real-IP", |one| one.arg(0)).to_ascii_lowercase();
        let is_recursive = scope.last("real_ip_recursive").is_some_and(|one| one.arg(0) == "on");
        match (header.as_str(), one.has_proxy_protocol) {
            ("proxy_protocol", true) if networks.iter().any(|network| network.prefix_len() == 0) => Known(Vec::new()),
            ("proxy_protocol", true) => {
                Unclear(place, "every client that connects is believed what it writes in the PROXY protocol")
            }
            ("proxy_protocol", false) => Known(Vec::new()),
            (_, true) => Unclear(place, "with the PROXY protocol, the address in it counts"),
            ("x-forwarded-for", false) if is_recursive => Known(networks.iter().map(ToString::to_string).collect()),
            ("x-forwarded-for", false) => Unclear(
                place,
                "addresses of trusted proxies in X-Forwarded-For are passed over, as with `real_ip_recursive on`; write that if it is meant",
            ),
            _ => Unclear(place, "trusted proxies report clients in X-Forwarded-For"),
        }
    }

    /// The sizes of bodies of all locations of a block.
    fn sizes(&mut self, block: &'d [Directive], scope: &Scope<'d>) -> Vec<u64> {
        let own = match scope.last("client_max_body_size") {
            None => 1 << 20,
            Some(one) => size(one.arg(0)).unwrap_or_else(|| {
                self.draft.note(
                    one.place(),
                    &one.told(),
                    Became::Different,
                    "it is no size, so the default of 1m counts",
                );
                1 << 20
            }),
        };
        let mut all = vec![own];
        for one in block.iter().filter(|one| one.name == "location") {
            all.extend(self.sizes(&one.block, &scope.inner(&one.block)));
        }
        all
    }
}

/// A directive about the addresses of clients within a location.
fn below(block: &[Directive]) -> Option<&Directive> {
    let mut inner = block.iter().filter(|one| !one.block.is_empty()).flat_map(|one| &one.block);
    inner
        .clone()
        .find(|one| REAL_IP.contains(&one.name.as_str()))
        .or_else(|| inner.find_map(|one| if one.block.is_empty() { None } else { below(std::slice::from_ref(one)) }))
}

/// Whether a block sets a header that tells endpoints about clients.
fn names_forwarded(block: &[Directive]) -> bool {
    block.iter().any(|one| {
        one.name == "proxy_set_header" && one.arg(0).to_ascii_lowercase().starts_with("x-forwarded-")
            || one.name != "server" && names_forwarded(&one.block)
    })
}
