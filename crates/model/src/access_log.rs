//! The access log: what a line has, which requests have one, and where it goes.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::Otlp;

/// One record per request (HTTP) or connection (TCP).
#[derive(Clone, Debug, PartialEq)]
pub struct AccessLog {
    /// Where records go.
    pub target: LogTarget,
    /// How they are written.
    pub format: LogFormat,
    /// Which of them are written.
    pub filter: LogFilter,
    /// The share of records that are written, from 0.0 to 1.0, chosen at random. Errors are always written.
    pub sampling: f64,
    /// Whether query strings are written.
    pub query: bool,
}

impl AccessLog {
    /// A log of everything.
    pub fn new(target: LogTarget, format: LogFormat) -> Self {
        Self { target, format, filter: LogFilter::default(), sampling: 1.0, query: true }
    }
}

/// Where the records of an access log go.
#[derive(Clone, Debug, PartialEq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// A file, which is appended to.
    File(PathBuf),
    /// A server of the syslog protocol (RFC 5424).
    Syslog(Syslog),
    /// A collector of OpenTelemetry.
    Otlp(Arc<Otlp>),
}

/// A server of the syslog protocol, which gets one datagram per record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Syslog {
    /// Its address.
    pub to: SyslogAddress,
    /// The number of the facility, from 0 to 23.
    pub facility: u8,
    /// The name of this process in its messages.
    pub app_name: String,
}

/// The address of a syslog server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyslogAddress {
    /// RFC 5426.
    Udp(SocketAddr),
    /// A datagram socket, such as `/dev/log`.
    Unix(PathBuf),
}

/// How a record is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// `key=value`. Without fields, those of [`LogValue::USUAL`] in a fixed form with the request line in quotes.
    Text(Option<Arc<[LogField]>>),
    /// One JSON object.
    Json(Option<Arc<[LogField]>>),
    /// Text with values in it.
    Template(Arc<[LogPart]>),
    /// The structured data of a syslog message.
    StructuredData {
        /// The SD-ID: `name@` and a private enterprise number.
        id: String,
        /// The parameters.
        fields: Arc<[LogField]>,
    },
    /// The attributes of a record of OpenTelemetry.
    Attributes(Arc<[LogField]>),
}

/// A value and what it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogField {
    /// Its name in the log.
    pub name: String,
    /// The value.
    pub value: LogValue,
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogPart {
    /// Text.
    Text(String),
    /// A value.
    Value {
        /// Which one.
        value: LogValue,
        /// It stands between quotes.
        is_quoted: bool,
        /// The characters on both sides of it: one that contains them must be quoted, or it could not be told where it ends.
        beside: [Option<char>; 2],
    },
}

/// A header field that is logged.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogHeader {
    /// Its name, in lower case.
    pub name: String,
    /// Only its presence is logged.
    pub is_secret: bool,
}

/// Makes the enum and the names of its simple variants from one table.
macro_rules! log_values {
    ($($(#[doc = $doc:literal])* $variant:ident $name:literal;)*) => {
        /// What can be logged of a request or a connection.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum LogValue {
            $($(#[doc = $doc])* $variant,)*
            /// A header of the request.
            RequestHeader(LogHeader),
            /// A header of the response.
            ResponseHeader(LogHeader),
        }

        impl LogValue {
            /// The values that are no headers, with their names.
            pub const SIMPLE: &[(&str, LogValue)] = &[$(($name, LogValue::$variant)),*];
        }
    };
}

log_values! {
    /// The beginning of the request, RFC 3339 in UTC.
    Time "time";
    /// The same as in the Common Log Format of Apache: `21/Nov/2026:06:07:15 +0000`.
    TimeClf "time_clf";
    /// The same in milliseconds since 1970.
    TimeUnixMs "time_unix_ms";
    /// The address of the connection, with its port.
    Client "client";
    /// The client's IP address as trusted proxies report it.
    ClientIp "client_ip";
    /// The listener.
    Listener "listener";
    /// `http` or `tcp`.
    Protocol "protocol";
    /// The method, the target and the version.
    RequestLine "request_line";
    /// The method.
    Method "method";
    /// The target.
    Target "target";
    /// The target without its query.
    Path "path";
    /// The HTTP version of the client.
    Version "version";
    /// The host.
    Host "host";
    /// The status.
    Status "status";
    /// The status of a gRPC call.
    GrpcStatus "grpc_status";
    /// The id of the request.
    RequestId "request_id";
    /// The id of the trace.
    TraceId "trace_id";
    /// The id of the SERVER span.
    SpanId "span_id";
    /// The version of TLS.
    TlsVersion "tls_version";
    /// The name that the client asked for in its handshake.
    Sni "sni";
    /// The subject of the client's certificate.
    ClientCertSubject "client_cert_subject";
    /// The SHA-256 of the client's certificate.
    ClientCertSha256 "client_cert_sha256";
    /// Bytes from the client.
    BytesIn "bytes_in";
    /// Bytes to the client.
    BytesOut "bytes_out";
    /// The route.
    Route "route";
    /// The cluster.
    Cluster "cluster";
    /// The last endpoint that was tried.
    Endpoint "endpoint";
    /// From the first byte of the request to the last byte of the response, in milliseconds.
    TotalMs "total_ms";
    /// The time that Steelyard itself took, in microseconds.
    AddedUs "added_us";
    /// The time until the head of the endpoint's response, in milliseconds.
    UpstreamMs "upstream_ms";
    /// The time of external authorization, in milliseconds.
    AuthorizationMs "authorization_ms";
    /// The time of the global rate limit, in milliseconds.
    RateLimitMs "rate_limit_ms";
    /// The status of a response that another one has replaced (`intercept_errors`).
    Intercepted "intercepted";
    /// Endpoints that were tried.
    Attempts "attempts";
    /// The reason of a failure.
    Reason "reason";
}

impl LogValue {
    /// What is logged if no fields are chosen.
    pub const USUAL: &[LogValue] = &[
        Self::Time,
        Self::Client,
        Self::Listener,
        Self::Protocol,
        Self::Method,
        Self::Target,
        Self::Version,
        Self::Host,
        Self::Status,
        Self::GrpcStatus,
        Self::RequestId,
        Self::BytesIn,
        Self::BytesOut,
        Self::Route,
        Self::Cluster,
        Self::Endpoint,
        Self::TotalMs,
        Self::AddedUs,
        Self::UpstreamMs,
        Self::AuthorizationMs,
        Self::RateLimitMs,
        Self::Intercepted,
        Self::Attempts,
        Self::Reason,
    ];

    /// The prefix of the names of request headers.
    pub const REQUEST_HEADER: &str = "request_header:";
    /// The prefix of the names of response headers.
    pub const RESPONSE_HEADER: &str = "response_header:";

    /// Its name in a configuration.
    pub fn name(&self) -> String {
        match self {
            Self::RequestHeader(header) => format!("{}{}", Self::REQUEST_HEADER, header.name),
            Self::ResponseHeader(header) => format!("{}{}", Self::RESPONSE_HEADER, header.name),
            simple => Self::SIMPLE.iter().find(|(_, value)| value == simple).map_or("", |(name, _)| name).to_owned(),
        }
    }

    /// The fields of [`LogValue::USUAL`] under their own names.
    pub fn usual_fields() -> Arc<[LogField]> {
        Self::USUAL.iter().map(|value| LogField { name: value.name(), value: value.clone() }).collect()
    }

    /// Whether the head of the request, the head of the response, the connection or the trace must be looked at for it.
    pub fn is_extra(&self) -> bool {
        matches!(
            self,
            Self::ClientIp
                | Self::TraceId
                | Self::SpanId
                | Self::TlsVersion
                | Self::Sni
                | Self::ClientCertSubject
                | Self::ClientCertSha256
                | Self::RequestHeader(_)
                | Self::ResponseHeader(_)
        )
    }
}

impl LogFormat {
    /// The values in it.
    pub fn values(&self) -> Vec<&LogValue> {
        match self {
            Self::Text(None) | Self::Json(None) => LogValue::USUAL.iter().collect(),
            Self::Text(Some(fields))
            | Self::Json(Some(fields))
            | Self::StructuredData { fields, .. }
            | Self::Attributes(fields) => fields.iter().map(|field| &field.value).collect(),
            Self::Template(parts) => parts
                .iter()
                .filter_map(|part| match part {
                    LogPart::Value { value, .. } => Some(value),
                    LogPart::Text(_) => None,
                })
                .collect(),
        }
    }
}

/// Which records are written. The default is all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFilter {
    /// Only those of these routes, if there are some.
    pub routes: Vec<String>,
    /// None of these routes.
    pub except_routes: Vec<String>,
    /// If there is a condition, one of them must be met.
    pub conditions: LogConditions,
}

/// Conditions on a record; one of them must be met if there are some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogConditions {
    /// The status is in one of these ranges.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// It took longer.
    pub slower_than: Option<Duration>,
    /// It has one of these reasons.
    pub reasons: Vec<String>,
    /// It has any reason.
    pub any_reason: bool,
    /// More than one endpoint was tried.
    pub retried: bool,
}

impl LogConditions {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
