//! The reasons why something was refused, failed or was closed. This is the only list: the enum, the metric labels, the words of the access
//! log and the page `docs/reasons.md` are made from it.
//!
//! A reason that is no longer used is removed from the list, and its number is never reused.

/// Makes the enum and the properties of its variants from one table.
macro_rules! reasons {
    ($($number:literal $variant:ident $name:literal $group:ident $meaning:literal;)*) => {
        /// Why something was refused, failed or was closed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Reason {
            $(#[doc = $meaning] $variant = $number,)*
        }

        impl Reason {
            /// All reasons, by number.
            pub const ALL: &[Reason] = &[$(Reason::$variant),*];

            /// Its word in metrics and access logs. It never changes.
            pub const fn name(self) -> &'static str {
                match self { $(Reason::$variant => $name,)* }
            }

            /// The part of the system where it happened.
            pub const fn group(self) -> ReasonGroup {
                match self { $(Reason::$variant => ReasonGroup::$group,)* }
            }

            /// A sentence for people.
            pub const fn meaning(self) -> &'static str {
                match self { $(Reason::$variant => $meaning,)* }
            }
        }
    };
}

reasons! {
    0 BadRequestLine "bad_request_line" Downstream "The request line is malformed or ambiguous.";
    1 BadHeader "bad_header" Downstream "A header field of the request is malformed: its name, its value or its line ending, or it is \
        folded over several lines.";
    2 BadFraming "bad_framing" Downstream "The end of the request's body is unclear or contradictory, a chunk is malformed, or the text of \
        a gRPC-Web body is not base64.";
    3 BadHost "bad_host" Downstream "The request has no Host although it needs one, has several, or has one that is not a host.";
    4 BadVersion "bad_version" Downstream "The request is not HTTP/1.0 or HTTP/1.1.";
    5 HeaderTooLarge "header_too_large" Downstream "The request line and the header fields together exceed the listener's limit.";
    6 TooManyHeaders "too_many_headers" Downstream "The request has more header fields than the listener allows.";
    7 UriTooLong "uri_too_long" Downstream "The request line alone exceeds the listener's limit.";
    8 BodyTooLarge "body_too_large" Downstream "The request's body exceeds the listener's limit.";
    9 HeaderTimeout "header_timeout" Downstream "The request's headers were not complete in time.";
    10 BodyTimeout "body_timeout" Downstream "The client stopped sending within the request's body.";
    11 SlowRead "slow_read" Downstream "The client stopped reading its response.";
    12 ClientReset "client_reset" Downstream "The client's connection or HTTP/2 stream was reset, or could not be written to.";
    13 ClientEof "client_eof" Downstream "The client closed its side in the middle of a request, or before the first byte of a TLS \
        handshake, as probes do; with `abort_on_half_close`, also before its response was complete.";
    14 ConnectionsFull "connections_full" Downstream "The listener has reached its limit of open connections.";
    15 BadProxyProtocol "bad_proxy_protocol" Downstream "The connection did not begin with a valid PROXY protocol header, which the \
        listener requires.";
    16 ProxyProtocolTimeout "proxy_protocol_timeout" Downstream "The PROXY protocol header was not complete in time.";
    17 ExpectationFailed "expectation_failed" Downstream "The request expects something other than 100-continue.";
    18 IdleTimeout "idle_timeout" Downstream "A connection was closed because it was idle for too long.";
    19 MethodNotSupported "method_not_supported" Downstream "The proxy does not support the method: CONNECT.";
    20 NoRoute "no_route" Routing "No route of the listener matches the request.";
    21 NoEndpoint "no_endpoint" Cluster "The cluster has no endpoint that takes new work.";
    22 PendingFull "pending_full" Cluster "All connections to the cluster are in use, and its queue of waiting requests is full.";
    23 PendingTimeout "pending_timeout" Cluster "The request waited too long for a connection to the cluster.";
    24 RetryBudget "retry_budget" Cluster "The request failed and could have been retried, but the cluster's retry budget was exhausted.";
    25 ConnectRefused "connect_refused" Upstream "The endpoint refused the connection: nothing listens on its port.";
    26 ConnectTimeout "connect_timeout" Upstream "The endpoint did not answer the TCP handshake in time.";
    27 ConnectFailed "connect_failed" Upstream "The connection to the endpoint failed for another cause, such as a missing route to its \
        network.";
    28 UpstreamReset "upstream_reset" Upstream "The endpoint reset the connection before its response was complete.";
    29 UpstreamEof "upstream_eof" Upstream "The endpoint closed the connection before its response was complete.";
    30 UpstreamBadHead "upstream_bad_head" Upstream "The head of the endpoint's response is malformed.";
    31 UpstreamBadFraming "upstream_bad_framing" Upstream "The end of the response's body is unclear or contradictory, or a chunk is \
        malformed.";
    32 UpstreamHeadTooLarge "upstream_head_too_large" Upstream "The head of the endpoint's response exceeds the limit.";
    33 ResponseTimeout "response_timeout" Upstream "The endpoint was silent for longer than the cluster's response timeout.";
    34 RequestTimeout "request_timeout" Upstream "The response was not complete within the route's timeout.";
    35 Draining "draining" Internal "Steelyard is draining, and closed a request or connection that had not ended in time or had not \
        begun.";
    36 Internal "internal" Internal "An error in Steelyard itself. Please report it.";
    37 TunnelIdle "tunnel_idle" Internal "Both sides of a tunnel were silent for too long.";
    38 NoLocalResources "no_local_resources" Internal "The host had no file descriptors, ports or memory left for an upstream connection.";
    39 TlsHandshake "tls_handshake" Downstream "The TLS handshake failed: the client aborted it, offered no supported version, cipher or \
        protocol, or presented no certificate although one is required.";
    40 TlsHandshakeTimeout "tls_handshake_timeout" Downstream "The TLS handshake, or the first message of a connection with TLS \
        passthrough, was not complete in time.";
    41 Misdirected "misdirected" Downstream "The request is for a host for which its connection was not made: that host has another \
        certificate, belongs to another isolated host, or has other requirements for client certificates. Or the listener has changed \
        them, and would not admit the client any more.";
    42 UpstreamTls "upstream_tls" Upstream "The TLS handshake with the endpoint failed for a cause without a reason of its own: it does \
        not speak TLS, or shares no version, cipher or protocol with Steelyard.";
    43 H2Preface "h2_preface" Downstream "The connection does not begin like HTTP/2: the preface is wrong, or no SETTINGS follow it.";
    44 H2FrameSize "h2_frame_size" Downstream "An HTTP/2 frame has a size that its type cannot have, or exceeds the allowed size.";
    45 H2StreamId "h2_stream_id" Downstream "An HTTP/2 frame arrived on a stream where it is not allowed.";
    46 H2StreamClosed "h2_stream_closed" Downstream "An HTTP/2 frame arrived on a stream that its sender had ended.";
    47 H2Padding "h2_padding" Downstream "An HTTP/2 frame has more padding than its length.";
    48 H2Continuation "h2_continuation" Downstream "Another frame arrived between the parts of an HTTP/2 header block, or a part arrived \
        without a header block.";
    49 H2Push "h2_push" Downstream "An HTTP/2 client sent PUSH_PROMISE.";
    50 H2Setting "h2_setting" Downstream "An HTTP/2 setting has an invalid value.";
    51 H2Priority "h2_priority" Downstream "An HTTP/2 stream was made to depend on itself.";
    52 H2WindowUpdate "h2_window_update" Downstream "A WINDOW_UPDATE of HTTP/2 was zero, or made the window too large.";
    53 H2FlowControl "h2_flow_control" Downstream "More HTTP/2 DATA arrived than the window allowed.";
    54 H2Compression "h2_compression" Downstream "An HTTP/2 header block could not be decoded.";
    55 H2Field "h2_field" Downstream "A field of an HTTP/2 request has a malformed name or value.";
    56 H2ConnectionField "h2_connection_field" Downstream "An HTTP/2 request has a field that belongs to an HTTP/1 connection, such as \
        `connection` or `transfer-encoding`.";
    57 H2PseudoHeader "h2_pseudo_header" Downstream "The pseudo-header fields of an HTTP/2 request are missing, repeated, unknown, out of \
        place or malformed.";
    58 H2Authority "h2_authority" Downstream "An HTTP/2 request has no authority, a malformed one, or a Host that differs from it.";
    59 H2ContentLength "h2_content_length" Downstream "The content-length of an HTTP/2 request is malformed, repeated, or differs from the \
        DATA.";
    60 H2Response "h2_response" Downstream "An HTTP/2 response arrived out of order.";
    61 H2Trailers "h2_trailers" Downstream "The trailers of an HTTP/2 request do not end it, or contain a field that is not allowed there.";
    62 H2HeadTooLarge "h2_head_too_large" Downstream "The trailers of an HTTP/2 request exceed the listener's limits.";
    63 H2HeadFlood "h2_head_flood" Downstream "An HTTP/2 header block is far beyond the limits, or arrived in too many parts; the \
        connection was closed.";
    64 H2StreamLimit "h2_stream_limit" Downstream "An HTTP/2 client had more concurrent requests than SETTINGS allowed.";
    65 H2Glitches "h2_glitches" Downstream "An HTTP/2 client sent too many frames that cause work and do nothing (resets, PING, SETTINGS, \
        empty frames); the connection was closed.";
    66 H2OutputFlood "h2_output_flood" Downstream "An HTTP/2 client caused responses (to PING, SETTINGS) and did not read them; the \
        connection was closed.";
    67 H2SettingsTimeout "h2_settings_timeout" Downstream "An HTTP/2 client did not acknowledge SETTINGS in time.";
    68 UpstreamH2 "upstream_h2" Upstream "The endpoint violated HTTP/2, or does not speak it.";
    69 UpstreamRefused "upstream_refused" Upstream "The endpoint refused the request without processing it, by REFUSED_STREAM or GOAWAY.";
    70 UpstreamNotGrpc "upstream_not_grpc" Upstream "A gRPC call got a plain HTTP response, from a server in front of the endpoint or from \
        an endpoint that does not speak gRPC.";
    71 NotHttp "not_http" Downstream "The connection begins like neither HTTP/1 nor HTTP/2; it was closed.";
    72 RateLimited "rate_limited" Downstream "The client exceeded the route's rate limit.";
    73 PerTryTimeout "per_try_timeout" Upstream "The endpoint did not begin its response within the route's per_try_timeout.";
    74 MirrorTooLarge "mirror_too_large" Cluster "A request was not mirrored because its body exceeds the limit for copies.";
    75 MirrorFull "mirror_full" Cluster "A request was not mirrored because too many copies were in progress.";
    76 MirrorFailed "mirror_failed" Cluster "A copy of a request got no response: no endpoint took it, the connection failed, or the \
        response took too long.";
    77 BodyTooSlow "body_too_slow" Downstream "The client sent its request's body more slowly than the listener's min_rate.";
    78 ReadTooSlow "read_too_slow" Downstream "The client read its response more slowly than the listener's min_rate.";
    79 H2PingTimeout "h2_ping_timeout" Downstream "An HTTP/2 client was silent while a request was in progress, and did not answer a PING \
        in time.";
    80 UpstreamPingTimeout "upstream_ping_timeout" Upstream "The endpoint was silent on an HTTP/2 connection, and did not answer a PING in \
        time.";
    81 UpstreamNoTunnel "upstream_no_tunnel" Upstream "The request asks for WebSocket over HTTP/2 (extended CONNECT), which the endpoint \
        does not support.";
    82 ClusterMissing "cluster_missing" Cluster "The route leads to a cluster or Service that does not exist, or that it may not use.";
    83 AmbiguousPath "ambiguous_path" Downstream "The path can be read in two ways (`%2F`, `%00`, a backslash), and the listener has \
        `refuse_ambiguous`; or what a regular expression captured of it would make `..` a segment of the new path.";
    84 PlainHttp "plain_http" Downstream "A request without TLS arrived at a listener for HTTPS; it was answered 400.";
    85 UpstreamTlsExpired "upstream_tls_expired" Upstream "The endpoint's certificate has expired, or is not valid yet.";
    86 UpstreamTlsIssuer "upstream_tls_issuer" Upstream "The endpoint's certificate was not signed by a CA that the cluster's `tls` \
        trusts.";
    87 UpstreamTlsName "upstream_tls_name" Upstream "The endpoint's certificate is for another name than the one that the cluster's `tls` expects.";
    88 UpstreamTlsCertificate "upstream_tls_certificate" Upstream "The endpoint's certificate was rejected for another cause: it is \
        malformed, revoked, or not valid for this use.";
    89 UpstreamTlsAlert "upstream_tls_alert" Upstream "The endpoint aborted the TLS handshake with an alert; it may require a client \
        certificate, or have refused the one that it got.";
    90 MemoryFull "memory_full" Internal "The process has reached the part of memory_max above which new connections and requests are \
        refused.";
    91 Maintenance "maintenance" Routing "The route is in maintenance.";
    92 ClientDenied "client_denied" Downstream "The client's address is refused by `allow` and `deny` of the listener or the route, or is not \
        known there because a trusted proxy has sent an `X-Forwarded-For` without it.";
    93 CredentialsMissing "credentials_missing" Downstream "The route demands a password, an API key or a token, and the request has none.";
    94 CredentialsInvalid "credentials_invalid" Downstream "The request has a user, a password, an API key or a token that is not right.";
    95 AuthenticationBusy "authentication_busy" Internal "A password could not be checked, because too many others were waiting for that, of \
        this client or of all, or because the check took too long.";
    100 TokenExpired "token_expired" Downstream "The request has a token that has ended (`exp`).";
    101 TokenNotYetValid "token_not_yet_valid" Downstream "The request has a token that does not hold yet (`nbf`): the clock of its issuer \
        may be ahead.";
    102 TokenKeyUnknown "token_key_unknown" Downstream "The request has a token whose key is not in the key set, or may not be used for the \
        algorithm of the token.";
    103 TokenAudience "token_audience" Downstream "The request has a token that was made for others: it has none of the audiences (`aud`) \
        of the route.";
    104 ClaimsDenied "claims_denied" Downstream "No route takes the request with the claims of its token, and one would take it with others.";
    105 TokenKeysMissing "token_keys_missing" Cluster "A token could not be verified, because the key set was not fetched yet.";
    106 TokenAttempts "token_attempts" Downstream "The client has sent so many tokens with wrong signatures that no other token of it is \
        verified for now. Tokens that are known pass.";
    107 TokensBusy "tokens_busy" Internal "Clients have sent so many tokens with wrong signatures that the worker verifies no other tokens for \
        now. Tokens that are known pass.";
    110 ExternalAuthDenied "external_auth_denied" Downstream "The route's external authorization refuses the request.";
    111 ExternalAuthFailed "external_auth_failed" Cluster "The route's external authorization gave no answer: no endpoint took the question, \
        the connection failed, the answer came too late, was cut off or has no meaning, or its status is neither a yes nor a no. With \
        `fail_open`, the request passed all the same.";
    112 ClientCertMissing "client_cert_missing" Downstream "The route demands a certificate of the client, and the client has shown none.";
    113 ClientCertInvalid "client_cert_invalid" Downstream "The client has shown a certificate that the route does not take: `client_ca` has not \
        signed it, or it is not valid now.";
    114 ClientCertDenied "client_cert_denied" Downstream "The subject of the client's certificate is not one that the route accepts, or the client has shown none.";
    140 GlobalRateLimited "global_rate_limited" Downstream "The service of the route's `global_rate_limit` says that the request exceeds a \
        limit.";
    141 RateLimitFailed "rate_limit_failed" Cluster "The service of the route's `global_rate_limit` gave no answer: no endpoint took the \
        question, the connection failed, or the answer came too late, was cut off or has no meaning. With `fail_open`, the request passed \
        all the same.";
    142 ClientConnectionsFull "client_connections_full" Downstream "The client has as many open connections as `client_limits` of the \
        listener allows.";
    143 ConcurrencyLimited "concurrency_limited" Downstream "The client has as many requests in progress as `concurrency_limit` of the route \
        allows.";
    150 NotCaptured "not_captured" Downstream "A connection arrived at the sidecar itself: it was not redirected there, so it has no other \
        destination.";
    151 UnknownDestination "unknown_destination" Routing "The application's connection goes to a destination that no listener captures, \
        and the sidecar has `unknown: refuse`.";
    152 PlainText "plain_text" Downstream "The connection is not encrypted, and the sidecar has `mode: strict`.";
    153 SpiffeId "spiffe_id" Downstream "The client's certificate was signed by the right CA, and its SPIFFE id is not one of those that \
        may connect.";
    160 BuffersFull "buffers_full" Internal "A request whose body has to be collected or decompressed was refused, because the worker has as \
        many of them as it may, or memory is short.";
    161 EncodingUnsupported "encoding_unsupported" Downstream "The request's body has a `Content-Encoding` that `decompress` of the route \
        does not allow, or several.";
    162 EncodingInvalid "encoding_invalid" Downstream "The request's body is not what its `Content-Encoding` says, is cut off, or needs a \
        larger window than 8 MiB of zstd.";
    163 DecompressedTooLarge "decompressed_too_large" Downstream "The request's body exceeds `max_size` or `max_ratio` of `decompress` once \
        it is decompressed.";
    164 LoopDetected "loop_detected" Routing "The request has been here before: `Via` or `CDN-Loop` has the name of the listener's or the \
        route's `via`. Or this installation has sent it itself to a host outside of the cluster, as a question or a copy, and it has come back to a \
        route that would ask or copy again: it is refused, or only not copied.";
    165 EndpointUnhealthy "endpoint_unhealthy" Cluster "A TCP connection or a tunnel was closed, because the health check of its endpoint began \
        to fail and the cluster says `on_unhealthy: close`.";
    166 ErrorBackendFailed "error_backend_failed" Cluster "The error backend of the route's `intercept_errors` gave no response: no endpoint \
        took the request, the connection failed, or the response came too late or cannot be read. The client got the status that was to be \
        replaced, with a page of Steelyard.";
}

/// The part of the system in which a [`Reason`] arises. `docs/reasons.md` has a section for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasonGroup {
    /// The client, or a limit of the listener.
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
    /// One more than the largest number: the length of an array that is indexed by [`Reason::index`].
    pub const COUNT: usize = match Self::ALL.last() {
        Some(last) => last.index() + 1,
        None => 0,
    };

    /// Its number. It never changes, and is never reused.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The text of `docs/reasons.md`.
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

Everything that Steelyard refuses, fails to do or cuts short is counted under one of these reasons, by listener, in
`steelyard_refused_total{listener,reason}`. Of requests that a route has taken, it is also in `steelyard_route_refused_total{listener,route,reason}`; only
copies for mirrors are not. The access log has it as `reason=`.

This page is generated from the list in `crates/telemetry/src/reason.rs`:
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
    fn operators_may_write_every_name() {
        let names: Vec<&str> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names, model::REASON_NAMES);
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
