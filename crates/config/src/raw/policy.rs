//! The keys of what a route does besides choosing who serves it, and of clients that come back.

use std::sync::LazyLock;

use model::{Retry, Scheme};

use super::{KeyWord, Off, word};
use crate::defaults;
use crate::define::{Kind, keys};
use crate::diagnostic::{Report, Wrong};
use crate::read::{Choice, Flag, Int, Many, Named, OneOf, OneOrMany, Read, Scalar, unexpected};
use crate::text::{
    ChangedHeader, CookieName, HeaderName, HeaderValue, HostHeader, HttpPath, Label, Percent, PlainHost, Positive,
    RedirectStatus, RedirectUrl, RetryOn, Text, percent_text,
};
use crate::yaml::{Node, Value};

static RETRY: LazyLock<Retry> = LazyLock::new(Retry::default);

/// One cluster, or several with their shares.
#[derive(Debug)]
pub enum RawTo {
    One(Label),
    Split(Many<RawShare>),
}

impl Read for RawTo {
    fn kind() -> Kind {
        Kind::Either(vec![<Label as Read>::kind(), <Many<RawShare> as Read>::kind()])
    }

    fn read(node: &Node, subject: &str, report: &mut Report) -> Option<Self> {
        match &node.value {
            Value::List(_) => Many::read(node, subject, report).map(Self::Split),
            Value::Scalar { .. } => <Label as Read>::read(node, subject, report).map(Self::One),
            other => {
                report.add(node.location, unexpected(subject, &Self::kind(), other));
                None
            }
        }
    }
}

keys! {
    /// A cluster and its share of a route's requests.
    pub struct RawShare as "a share" {
        /// Who serves it.
        required cluster: Label;
        /// Relative to the others of the list; 0 gets nothing.
        optional weight: Int<0, 1_000_000>, default defaults::WEIGHT.to_string();
    }
}

keys! {
    /// Where clients are sent instead. What is not said stays as the client wrote it; the query always does.
    pub struct RawRedirect as "a redirect" {
        /// `https://shop.example.com`, with a port and a path where they are to change; short for the keys below.
        optional to: RedirectUrl, default "said by the next five";
        /// Of the new URL. Without `port` it is then the scheme's own port.
        optional scheme: OneOf<Scheme>, default "the client's";
        /// Of the new URL.
        optional host: PlainHost, default "the client's";
        /// Of the new URL.
        optional port: Int<1, 65535>, default "the client's; with `host` alone the listener's";
        /// Instead of the whole path.
        optional path: HttpPath, default "the client's";
        /// Instead of the prefix that the route's `path` matched; the rest of the path stays.
        optional path_prefix: HttpPath, default "the client's";
        /// 301 or 308 for good, 302 or 307 for now; 307 and 308 leave a POST a POST. 303: the answer to a POST is to be had there by GET.
        optional status: RedirectStatus, default defaults::REDIRECT_STATUS.to_string();
    }
}

keys! {
    /// When a request that went wrong is sent again, to another endpoint where there is one. Never after anything of a response went to the client, and never when a part of its body is gone already (a small one that came with the headers is still there).
    pub struct RawRetryObject as "a retry" {
        /// How often a request is sent again, at most. An endpoint that refuses the connection, or that there is no way to, is not counted while another one takes work, up to 10 of them. Before each time some time passes, drawn by lot: less than 25ms, 75ms, 175ms, and then 250ms; none where the endpoint was asked for nothing and another one takes work.
        optional attempts: Int<1, 10>, default RETRY.attempts.to_string();
        /// `connect_failure`: no connection came about. `reset`: it ended before a byte of the response came. `timeout`: the response did not begin in time (the cluster's `response_timeout`, or `per_try_timeout`). `5xx`, or a status from 400 to 599: the endpoint answered so; the last such answer is the client's. `cancelled`, `deadline_exceeded`, `resource_exhausted`, `internal`, `unavailable`: a call of gRPC failed so before its first message.
        optional on: OneOrMany<RetryOn>, default "[connect_failure, reset]";
        /// Send POST, PATCH and unknown methods again too, though an endpoint may have acted on them already. Without it that is done only where no endpoint can have.
        optional non_idempotent: Flag, default "false";
        /// Retries as a share of the cluster's requests in the last ten seconds, counted by each worker; ten a second are allowed besides.
        optional budget: Percent, default percent_text(RETRY.budget);
        /// From the beginning of one try to the end of the response's headers. Counts as `timeout`; 504 where nothing is tried again.
        optional per_try_timeout: Positive, default "the other timeouts alone";
    }
}

keys! {
    /// A copy of requests for another cluster. Its answers are thrown away, and whatever it does the client does not notice.
    pub struct RawMirror as "a mirror" {
        /// The cluster that gets it. Path, headers and `Host` are those that the route's own endpoint gets.
        required to: Label;
        /// Of the requests, how many in a hundred. A body above 64KiB is not copied, nor one of more copies than 128 under way for each worker; both are counted.
        optional percent: Int<1, 100>, default "100";
    }
}

keys! {
    /// Changes to header fields. Those that frame a message, belong to one hop or name the host cannot be changed. A name stands in one of the three only.
    pub struct RawHeaderChanges as "a change of headers" {
        /// Names and values; each takes the place of all fields of its name.
        optional set: Named<ChangedHeader, HeaderValue>, default "none";
        /// Names and values; each is one more field.
        optional add: Named<ChangedHeader, HeaderValue>, default "none";
        /// Names; all fields that have them go.
        optional remove: OneOrMany<ChangedHeader>, default "none";
    }
}

keys! {
    /// What the endpoint is asked for instead of what the client asked for. The query stays.
    pub struct RawRewrite as "a rewrite" {
        /// The `Host` that the endpoint gets. `X-Forwarded-Host` still tells the client's.
        optional host: HostHeader, default "the client's";
        /// Instead of the whole path.
        optional path: HttpPath, default "the client's";
        /// Instead of the prefix that the route's `path` matched; the rest of the path stays.
        optional path_prefix: HttpPath, default "the client's";
    }
}

keys! {
    /// How many requests one client may make of this route, over all workers; one more is answered 429 with `Retry-After`. At most 262,144 clients are remembered at once.
    pub struct RawRateLimit as "a rate limit" {
        /// So many in each `per`, in the long run.
        required requests: Int<1, 1_000_000>;
        /// See `requests`.
        required per: Positive;
        /// What clients are told apart by: their address, as trusted proxies report it (of IPv6 its first 64 bits), or a header. Where the header is missing: the address.
        optional by: RawRateKey, default word(&KeyWord);
        /// How many may come at once after a silence.
        optional burst: Int<1, 1_000_000>, default "as many as `requests`";
    }
}

keys! {
    /// A header that clients are told apart by. Clients can write any value there: use one that a trusted proxy sets, or an API key that the endpoints check.
    pub struct RawRateKeyObject as "a rate key" {
        /// The header's name.
        required header: HeaderName;
    }
}

keys! {
    /// Clients come back to the endpoint that served them first, by a cookie, as long as it is healthy; else they are given another. One that drains keeps its clients and gets no new ones.
    pub struct RawSticky as "a sticky cookie" {
        /// Its name. The value is a keyed hash of the endpoint's address.
        required cookie: CookieName;
        /// How long the client keeps it, from its first request on. At least 1s.
        optional ttl: Positive, default "until its session ends";
        /// The key of the hash, the same wherever the same clients arrive. Without one, who knows the cluster's name can find an endpoint's address by trying addresses.
        optional secret: Text, default "none";
    }
}

text_or_object! {
    /// `off`, or the settings.
    RawRetry = OneOf<Off> | RawRetryObject
}
text_or_object! {
    /// The client's address, or a header.
    RawRateKey = OneOf<KeyWord> | RawRateKeyObject
}

impl Choice for Scheme {
    const CHOICES: &'static [(&'static str, Self, &'static str)] =
        &[("http", Self::Http, "in the clear"), ("https", Self::Https, "within TLS")];
}
