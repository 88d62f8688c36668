//! Why something was refused, failed or was closed: one list, from which come the enum, the metric labels, the words of the access log,
//! and the page `docs/reasons.md`.
//!
//! A reason that is no longer used leaves the list, and its number is not given to another.

/// Makes the enum and all that is known about its variants from one table.
macro_rules! reasons {
    ($($number:literal $variant:ident $name:literal $group:ident $meaning:literal;)*) => {
        /// Why something was refused, failed or was closed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Reason {
            $(#[doc = $meaning] $variant = $number,)*
        }

        impl Reason {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Reason] = &[$(Reason::$variant),*];

            /// The word for it in metrics and access logs. Never changes.
            pub const fn name(self) -> &'static str {
                match self { $(Reason::$variant => $name,)* }
            }

            /// Where it happened, by which reasons are grouped.
            pub const fn group(self) -> ReasonGroup {
                match self { $(Reason::$variant => ReasonGroup::$group,)* }
            }

            /// One sentence for people.
            pub const fn meaning(self) -> &'static str {
                match self { $(Reason::$variant => $meaning,)* }
            }
        }
    };
}

reasons! {
    0 BadRequestLine "bad_request_line" Downstream "The request line is not one, or could be read in two ways.";
    1 BadHeader "bad_header" Downstream "A header field of the request is malformed: its name, its value, its line ending, or folded over lines.";
    2 BadFraming "bad_framing" Downstream "Where the request's body ends is unclear or contradicted, a chunk is malformed, or the text of a gRPC-Web body is no base64.";
    3 BadHost "bad_host" Downstream "The request has no Host where one is due, several, or one that is not a host.";
    4 BadVersion "bad_version" Downstream "The request is not HTTP/1.0 or HTTP/1.1.";
    5 HeaderTooLarge "header_too_large" Downstream "Request line and header fields together are longer than the listener's limit.";
    6 TooManyHeaders "too_many_headers" Downstream "The request has more header fields than the listener's limit.";
    7 UriTooLong "uri_too_long" Downstream "The request line alone is longer than the listener's limit.";
    8 BodyTooLarge "body_too_large" Downstream "The request's body is longer than the listener's limit.";
    9 HeaderTimeout "header_timeout" Downstream "The request's head was not complete in time.";
    10 BodyTimeout "body_timeout" Downstream "The client fell silent within the request's body.";
    11 SlowRead "slow_read" Downstream "The client did not read its response for too long.";
    12 ClientReset "client_reset" Downstream "The client's connection was reset, or its stream of HTTP/2, or it could not be written to.";
    13 ClientEof "client_eof" Downstream "The client ended its side in the middle of a request, or before the first byte of a TLS handshake, as probes do; with `abort_on_half_close`, also before its response was complete.";
    14 ConnectionsFull "connections_full" Downstream "The listener has as many connections open as it may.";
    15 BadProxyProtocol "bad_proxy_protocol" Downstream "The connection did not begin with a valid PROXY protocol header where the listener asks for one.";
    16 ProxyProtocolTimeout "proxy_protocol_timeout" Downstream "The PROXY protocol header was not complete in time.";
    17 ExpectationFailed "expectation_failed" Downstream "The request expects something other than 100-continue.";
    18 IdleTimeout "idle_timeout" Downstream "A connection was closed because nothing came over it for too long.";
    19 MethodNotSupported "method_not_supported" Downstream "The method is one that this proxy does not serve: CONNECT.";
    20 NoRoute "no_route" Routing "No route of the listener matches the request.";
    21 NoEndpoint "no_endpoint" Cluster "The cluster has no endpoint that takes new work.";
    22 PendingFull "pending_full" Cluster "All connections to the cluster are in use, and so are its places for requests that wait for one.";
    23 PendingTimeout "pending_timeout" Cluster "The request waited too long for a connection to the cluster.";
    24 RetryBudget "retry_budget" Cluster "The request failed, could have been sent again, and was not because too many are.";
    25 ConnectRefused "connect_refused" Upstream "The endpoint refused the connection: nothing listens on its port.";
    26 ConnectTimeout "connect_timeout" Upstream "The endpoint did not answer the TCP handshake in time.";
    27 ConnectFailed "connect_failed" Upstream "The endpoint could not be connected to for another cause, such as no route to its network.";
    28 UpstreamReset "upstream_reset" Upstream "The endpoint reset the connection before its response was complete.";
    29 UpstreamEof "upstream_eof" Upstream "The endpoint closed the connection before its response was complete.";
    30 UpstreamBadHead "upstream_bad_head" Upstream "The head of the endpoint's response is malformed.";
    31 UpstreamBadFraming "upstream_bad_framing" Upstream "Where the response's body ends is unclear or contradicted, or a chunk is malformed.";
    32 UpstreamHeadTooLarge "upstream_head_too_large" Upstream "The head of the endpoint's response is longer than the limit.";
    33 ResponseTimeout "response_timeout" Upstream "The endpoint was silent for longer than the cluster's response timeout.";
    34 RequestTimeout "request_timeout" Upstream "The response was not complete within the route's timeout.";
    35 Draining "draining" Internal "Steelyard is draining, and closed what had not ended in time or had not begun.";
    36 Internal "internal" Internal "A fault of Steelyard itself. Please report it.";
    37 TunnelIdle "tunnel_idle" Internal "Both sides of a tunnel were silent for too long.";
    38 NoLocalResources "no_local_resources" Internal "No upstream connection for want of open files, ports or memory on this host.";
    39 TlsHandshake "tls_handshake" Downstream "The TLS handshake failed: the client broke it off, offered nothing that is spoken here, or showed no certificate where one is asked for.";
    40 TlsHandshakeTimeout "tls_handshake_timeout" Downstream "The TLS handshake, or the first message of a connection that is passed through, was not complete in time.";
    41 Misdirected "misdirected" Downstream "The request is for a host for which its connection was not made: another certificate, or another demand on the client's, holds there.";
    42 UpstreamTls "upstream_tls" Upstream "The TLS handshake with the endpoint failed for a cause that has no reason of its own: it does not speak TLS, or no version, cipher or protocol that this side does.";
    43 H2Preface "h2_preface" Downstream "The connection does not begin as HTTP/2 does: another preface, or no SETTINGS behind it.";
    44 H2FrameSize "h2_frame_size" Downstream "A frame of HTTP/2 has a size that its type cannot have, or is longer than allowed.";
    45 H2StreamId "h2_stream_id" Downstream "A frame of HTTP/2 came on a stream that it has no place on.";
    46 H2StreamClosed "h2_stream_closed" Downstream "A frame of HTTP/2 came on a stream that its sender had ended.";
    47 H2Padding "h2_padding" Downstream "A frame of HTTP/2 has more padding than it is long.";
    48 H2Continuation "h2_continuation" Downstream "Something stood between the pieces of a head in HTTP/2, or a piece without a head.";
    49 H2Push "h2_push" Downstream "A client of HTTP/2 sent PUSH_PROMISE.";
    50 H2Setting "h2_setting" Downstream "A setting of HTTP/2 has a value that it cannot have.";
    51 H2Priority "h2_priority" Downstream "A stream of HTTP/2 was said to depend on itself.";
    52 H2WindowUpdate "h2_window_update" Downstream "A window of HTTP/2 was opened by nothing, or too far.";
    53 H2FlowControl "h2_flow_control" Downstream "More DATA came over HTTP/2 than its window allowed.";
    54 H2Compression "h2_compression" Downstream "A head in HTTP/2 could not be decoded.";
    55 H2Field "h2_field" Downstream "A field of a request in HTTP/2 has a malformed name or value.";
    56 H2ConnectionField "h2_connection_field" Downstream "A request in HTTP/2 has a field that belongs to a connection of HTTP/1: `connection`, `transfer-encoding` and the like.";
    57 H2PseudoHeader "h2_pseudo_header" Downstream "The pseudo-header fields of a request in HTTP/2 are missing, repeated, unknown, out of place, or malformed.";
    58 H2Authority "h2_authority" Downstream "A request in HTTP/2 has no authority, a malformed one, or a Host that says something else.";
    59 H2ContentLength "h2_content_length" Downstream "The content-length of a request in HTTP/2 is malformed, repeated, or not what came as DATA.";
    60 H2Response "h2_response" Downstream "A response in HTTP/2 came out of order.";
    61 H2Trailers "h2_trailers" Downstream "The trailers of a request in HTTP/2 do not end it, or hold what must not stand there.";
    62 H2HeadTooLarge "h2_head_too_large" Downstream "Trailers in HTTP/2 are beyond the limits of the listener.";
    63 H2HeadFlood "h2_head_flood" Downstream "A head in HTTP/2 is far beyond the limits, or came in too many pieces; the connection was closed.";
    64 H2StreamLimit "h2_stream_limit" Downstream "A client of HTTP/2 had more requests under way than it was told it may.";
    65 H2Glitches "h2_glitches" Downstream "A client of HTTP/2 sent too much that costs work and leads nowhere (resets, PING, SETTINGS, empty frames); the connection was closed.";
    66 H2OutputFlood "h2_output_flood" Downstream "A client of HTTP/2 asked for answers (PING, SETTINGS) and did not read them; the connection was closed.";
    67 H2SettingsTimeout "h2_settings_timeout" Downstream "A client of HTTP/2 did not acknowledge the settings in time.";
    68 UpstreamH2 "upstream_h2" Upstream "The endpoint broke the rules of HTTP/2, or does not speak it.";
    69 UpstreamRefused "upstream_refused" Upstream "The endpoint refused the request without looking at it: REFUSED_STREAM, or it was going away.";
    70 UpstreamNotGrpc "upstream_not_grpc" Upstream "A call of gRPC was answered in plain HTTP: by a server in front of the endpoint, or by one that does not speak gRPC.";
    71 NotHttp "not_http" Downstream "The connection begins neither as HTTP/1 does nor as HTTP/2; it was closed.";
    72 RateLimited "rate_limited" Downstream "The client has made as many requests of the route as the route's rate limit grants.";
    73 PerTryTimeout "per_try_timeout" Upstream "The endpoint did not begin its response within the route's per_try_timeout.";
    74 MirrorTooLarge "mirror_too_large" Cluster "A request was not mirrored: its body is larger than what is kept for a copy.";
    75 MirrorFull "mirror_full" Cluster "A request was not mirrored: as many copies as may be are under way.";
    76 MirrorFailed "mirror_failed" Cluster "A copy of a request was not answered: no endpoint took it, the connection failed, or the answer took too long.";
    77 BodyTooSlow "body_too_slow" Downstream "The client sent its request's body more slowly than the listener's min_rate.";
    78 ReadTooSlow "read_too_slow" Downstream "The client took its response more slowly than the listener's min_rate.";
    79 H2PingTimeout "h2_ping_timeout" Downstream "A client of HTTP/2 was silent while a request was under way, and did not answer a PING in time.";
    80 UpstreamPingTimeout "upstream_ping_timeout" Upstream "The endpoint was silent over HTTP/2, and did not answer a PING in time.";
    81 UpstreamNoTunnel "upstream_no_tunnel" Upstream "The request asks for WebSocket over HTTP/2 (extended CONNECT), which the endpoint does not take.";
    82 ClusterMissing "cluster_missing" Cluster "What the route leads to does not exist, or may not be used.";
    83 AmbiguousPath "ambiguous_path" Downstream "The path can be read in two ways (`%2F`, `%00`, a backslash), and the listener's `refuse_ambiguous` asks to refuse it.";
    84 PlainHttp "plain_http" Downstream "A request came in the clear to a listener that speaks HTTPS; it was answered 400.";
    85 UpstreamTlsExpired "upstream_tls_expired" Upstream "The endpoint's certificate has expired, or is not valid yet.";
    86 UpstreamTlsIssuer "upstream_tls_issuer" Upstream "The endpoint's certificate was not signed by an authority that the cluster's `tls` believes.";
    87 UpstreamTlsName "upstream_tls_name" Upstream "The endpoint's certificate is for another name than the one that the cluster's `tls` expects.";
    88 UpstreamTlsCertificate "upstream_tls_certificate" Upstream "The endpoint's certificate was not believed for another cause: malformed, revoked, or not made for this use.";
    89 UpstreamTlsAlert "upstream_tls_alert" Upstream "The endpoint broke off the TLS handshake with an alert; it may want a certificate of ours.";
    90 MemoryFull "memory_full" Internal "The process uses as much of memory_max as new connections and requests may have.";
}

/// The part of the system in which a [`Reason`] arises. `docs/reasons.md` has a section for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasonGroup {
    /// The client, or a limit of the listener that it met.
    Downstream,
    /// The routing table.
    Routing,
    /// The choice of an endpoint, or a limit of the cluster.
    Cluster,
    /// The endpoint.
    Upstream,
    /// Steelyard.
    Internal,
}

impl Reason {
    /// One more than the greatest number: the length of an array that is indexed by [`Reason::index`].
    pub const COUNT: usize = match Self::ALL.last() {
        Some(last) => last.index() + 1,
        None => 0,
    };

    /// Its number. Never changes, and never passes to another reason.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The page `docs/reasons.md`.
    pub fn page() -> String {
        let mut page = PAGE_HEAD.to_owned();
        for (group, title) in ReasonGroup::TITLES {
            page += &format!("\n## {title}\n\n| reason | number | meaning |\n|---|---|---|\n");
            for reason in Self::ALL.iter().filter(|reason| reason.group() == *group) {
                page += &format!("| `{}` | {} | {} |\n", reason.name(), reason.index(), reason.meaning());
            }
        }
        page
    }
}

impl ReasonGroup {
    const TITLES: &[(ReasonGroup, &str)] = &[
        (ReasonGroup::Downstream, "Client and listener"),
        (ReasonGroup::Routing, "Routing"),
        (ReasonGroup::Cluster, "Cluster"),
        (ReasonGroup::Upstream, "Endpoint"),
        (ReasonGroup::Internal, "Steelyard itself"),
    ];
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

const PAGE_HEAD: &str = "\
# Reasons

Whatever Steelyard refuses, fails to do or closes before its end is counted under one of these, by listener, in
`steelyard_refused_total{listener,reason}`, and stands as `reason=` in the access log.

This page is made from the list in `crates/telemetry/src/reason.rs`:
`cargo run -p telemetry --example reasons > docs/reasons.md`.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_grow_and_names_are_unique_words() {
        for pair in Reason::ALL.windows(2) {
            assert!(pair[0].index() < pair[1].index(), "{} and {}", pair[0], pair[1]);
        }
        let mut names: Vec<&str> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        assert!(
            names.iter().all(|name| name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')),
            "{names:?}"
        );
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Reason::ALL.len());
        assert!(Reason::ALL.iter().all(|reason| reason.index() < Reason::COUNT));
    }

    #[test]
    fn names_are_those_of_the_variants() {
        for reason in Reason::ALL {
            let mut snake = String::new();
            for letter in format!("{reason:?}").chars() {
                if letter.is_uppercase() && !snake.is_empty() {
                    snake.push('_');
                }
                snake.push(letter.to_ascii_lowercase());
            }
            assert_eq!(reason.name(), snake);
        }
    }

    #[test]
    fn every_place_has_its_section() {
        let page = Reason::page();
        assert!(Reason::ALL.iter().all(|reason| page.contains(&format!("| `{}` |", reason.name()))));
    }

    #[test]
    fn the_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reasons.md");
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert!(page == Reason::page(), "run `cargo run -p telemetry --example reasons > docs/reasons.md`");
    }
}
