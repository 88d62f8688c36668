//! How a call ends: the gRPC codes, and the codes for failures and HTTP statuses.

use telemetry::Reason;

/// A gRPC code ("statuscodes").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Status {
    const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// Parses the value of a `grpc-status`. An unknown number is `Unknown`, as for clients.
    pub(crate) fn parse(value: &[u8]) -> Self {
        let number = match value {
            [digit] => Some((b'0', *digit)),
            [ten, digit] => Some((*ten, *digit)),
            _ => None,
        };
        let number = number
            .filter(|(ten, digit)| ten.is_ascii_digit() && digit.is_ascii_digit())
            .map(|(ten, digit)| usize::from(ten - b'0') * 10 + usize::from(digit - b'0'));
        number.and_then(|number| Self::ALL.get(number)).copied().unwrap_or(Self::Unknown)
    }

    /// The code for an endpoint's response that is HTTP and not gRPC ("http-grpc-status-mapping").
    pub(crate) fn of_http(status: u16) -> Self {
        match status {
            400 => Self::Internal,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 => Self::Unimplemented,
            429 | 502..=504 => Self::Unavailable,
            _ => Self::Unknown,
        }
    }

    /// The code for a failure that has this HTTP status for other clients.
    ///
    /// If this hop knows more than the status says, the code is more precise than the mapping for foreign statuses.
    pub(crate) fn of_failure(reason: Reason, status: Option<u16>) -> Self {
        match (reason, status) {
            // No connection was made, so the call has not begun anywhere and may be tried again.
            (Reason::ConnectTimeout, _) => Self::Unavailable,
            // Whatever status the configuration gives other clients, the call may be tried again.
            (Reason::ExternalAuthFailed | Reason::RateLimitFailed, _) => Self::Unavailable,
            // A limit of this hop on clients, whatever status it gives others.
            (Reason::RateLimited | Reason::ConcurrencyLimited, _) => Self::ResourceExhausted,
            // A redirect to a login, or any other way in which a service refuses.
            (Reason::ExternalAuthDenied, Some(status)) if !matches!(status, 401 | 429) => Self::PermissionDenied,
            // The client is gone or does not read, so nothing receives the code.
            (_, None) => Self::Cancelled,
            // A time limit has passed: that of the call, of the route, or for silence.
            (_, Some(408 | 504)) => Self::DeadlineExceeded,
            // A limit of this hop, on size or rate.
            (_, Some(413 | 414 | 429 | 431)) => Self::ResourceExhausted,
            // The client has not proved who it is.
            (_, Some(401)) => Self::Unauthenticated,
            // The client may not make the call, whoever serves it.
            (_, Some(403)) => Self::PermissionDenied,
            // No route serves the method.
            (_, Some(404 | 501)) => Self::Unimplemented,
            // A GRPCRoute whose backend does not exist (GRPCBackendRef of the Gateway API).
            (Reason::ClusterMissing, _) => Self::Unavailable,
            // Another connection may carry the call, or this one later.
            (_, Some(421 | 502 | 503)) => Self::Unavailable,
            // The client's HTTP is wrong, or this hop is: neither is the application's fault.
            _ => Self::Internal,
        }
    }

    /// Whether it counts against the endpoint that sent it, as 5xx does in HTTP. UNIMPLEMENTED and similar codes do not, because clients
    /// can cause them at will.
    pub(crate) fn is_endpoints_fault(self) -> bool {
        matches!(self, Self::Unknown | Self::Internal | Self::Unavailable | Self::DataLoss)
    }

    /// Whether it counts as 5xx does in HTTP: what counts against an endpoint, and 504.
    pub(crate) fn is_failure(self) -> bool {
        self.is_endpoints_fault() || self == Self::DeadlineExceeded
    }

    /// The value of `grpc-status`.
    pub(crate) fn code(self) -> &'static [u8] {
        const CODES: [&[u8]; 17] = [
            b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9", b"10", b"11", b"12", b"13", b"14", b"15", b"16",
        ];
        CODES.get(self as usize).copied().unwrap_or(b"2")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_and_written() {
        for (number, status) in Status::ALL.into_iter().enumerate() {
            assert_eq!(status as usize, number);
            assert_eq!(status.code(), number.to_string().as_bytes());
            assert_eq!(Status::parse(status.code()), status);
        }
        for other in ["", "17", "99", "100", "-1", "x", "1x", " 0", "00x"] {
            assert_eq!(Status::parse(other.as_bytes()), Status::Unknown, "{other:?}");
        }
    }

    #[test]
    fn what_speaks_against_an_endpoint() {
        let faults: Vec<_> = Status::ALL.into_iter().filter(|status| status.is_endpoints_fault()).collect();
        assert_eq!(faults, [Status::Unknown, Status::Internal, Status::Unavailable, Status::DataLoss]);
    }

    #[test]
    fn statuses_of_endpoints() {
        let check = |status, expect| assert_eq!(Status::of_http(status), expect, "{status}");
        check(400, Status::Internal);
        check(401, Status::Unauthenticated);
        check(403, Status::PermissionDenied);
        check(404, Status::Unimplemented);
        check(429, Status::Unavailable);
        check(500, Status::Unknown);
        check(501, Status::Unknown);
        check(502, Status::Unavailable);
        check(503, Status::Unavailable);
        check(504, Status::Unavailable);
        check(200, Status::Unknown);
    }

    #[test]
    fn failures_of_ours() {
        let check = |reason, status, expect| assert_eq!(Status::of_failure(reason, Some(status)), expect, "{reason}");
        assert_eq!(Status::of_failure(Reason::SlowRead, None), Status::Cancelled);
        check(Reason::NoRoute, 404, Status::Unimplemented);
        check(Reason::ClientDenied, 403, Status::PermissionDenied);
        check(Reason::NoEndpoint, 503, Status::Unavailable);
        check(Reason::ClusterMissing, 500, Status::Unavailable);
        check(Reason::PendingFull, 503, Status::Unavailable);
        check(Reason::ConnectRefused, 502, Status::Unavailable);
        check(Reason::UpstreamReset, 502, Status::Unavailable);
        check(Reason::ConnectTimeout, 504, Status::Unavailable);
        check(Reason::RequestTimeout, 504, Status::DeadlineExceeded);
        check(Reason::ResponseTimeout, 504, Status::DeadlineExceeded);
        check(Reason::BodyTimeout, 408, Status::DeadlineExceeded);
        check(Reason::BodyTooSlow, 408, Status::DeadlineExceeded);
        check(Reason::UpstreamPingTimeout, 502, Status::Unavailable);
        check(Reason::BodyTooLarge, 413, Status::ResourceExhausted);
        check(Reason::TooManyHeaders, 431, Status::ResourceExhausted);
        check(Reason::Misdirected, 421, Status::Unavailable);
        check(Reason::BadFraming, 400, Status::Internal);
        check(Reason::Internal, 500, Status::Internal);
        // Anything that is refused for its rate.
        check(Reason::Draining, 429, Status::ResourceExhausted);
    }
}
