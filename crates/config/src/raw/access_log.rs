//! The keys of the access log.

use super::{OtlpCompression, OtlpName, RawSecretValue, word};
use crate::defaults;
use crate::define::{Kind, keys};
use crate::diagnostic::{Report, Wrong};
use crate::read::{Choice, Flag, Formed, Located, Many, Named, OneOf, OneOrMany, Read, Scalar, True, unexpected};
use crate::text::{
    ChangedHeader, HeaderName, HeaderValue, HostHeader, HttpPath, Label, LogFile, LogFormatText, LogName, LogReason,
    LogStatus, LogValueText, Percent, Positive, QueryName, RouteName, SdId, SyslogTarget, Text, duration_text,
};
use crate::yaml::{Node, Value};

keys! {
    /// One record for each request or connection. [The access log](access-log.md) has every value, and examples.
    pub struct RawAccessLogObject as "an access log" {
        /// The file to append to; `stdout` or `"-"` is standard output.
        optional path: LogFile, default "stdout";
        /// A syslog server, instead of a file.
        optional syslog: RawSyslog, default "none";
        /// A collector that understands OpenTelemetry, instead of a file. `fields` are attributes of its records.
        optional otlp: RawLogOtlp, default "none";
        /// How a record is written: `text` (`key=value`), `json`, or a text with values in it, such as `${client_ip} "${request_line}" ${status}`.
        /// `$$` is a dollar sign.
        optional format: LogFormatText, default "text";
        /// The values of a record: a list of [values](access-log.md#values), or a mapping from names of your own to values.
        optional fields: RawLogFields, default "the usual ones";
        /// Headers that are written although they may have secrets. Of all others whose name says so (`authorization`, `cookie`, `x-api-key`,
        /// whatever has `token`), only the presence is written.
        optional reveal: OneOrMany<HeaderName>, default "none";
        /// Write only records that meet one of these conditions.
        optional only: RawLogConditions, default "all records";
        /// Write only records of these routes.
        optional routes: OneOrMany<RouteName>, default "all routes";
        /// Write no records of these routes, such as one for probes.
        optional except_routes: OneOrMany<RouteName>, default "none";
        /// The share of records that are written, chosen at random. Errors (a `reason`, a status from 500 on, or a gRPC call that a server failed) are always written.
        optional sampling: Percent, default "100%";
        /// Whether query strings are written. With `false`, targets end before their `?`, and so do `Referer` and `Location`.
        optional query: Flag, default "true";
    }
}

keys! {
    /// A syslog server, which gets one message (RFC 5424) for each record.
    pub struct RawSyslog as "a syslog server" {
        /// Its address for UDP, or a Unix datagram socket such as `unix:/dev/log`. The default port is 514.
        required to: SyslogTarget;
        /// The facility of the messages.
        optional facility: OneOf<Facility>, default word(&defaults::FACILITY);
        /// The name of this process in the messages (APP-NAME).
        optional app_name: Label, default defaults::SERVICE;
        /// Write the fields as structured data with this SD-ID (a name, `@`, and your private enterprise number) instead of a line.
        optional structured_data: SdId, default "none: the message is the line";
    }
}

keys! {
    /// A collector that gets the records.
    pub struct RawLogOtlp as "a collector of logs" {
        /// The cluster of the collector.
        required to: Label;
        /// How the collector is spoken to.
        optional protocol: OneOf<OtlpName>, default word(&OtlpName::Grpc);
        /// The path of exports, with `protocol: http`.
        optional path: HttpPath, default defaults::OTLP_LOGS_PATH;
        /// The `Host` (`:authority`) of exports.
        optional host: HostHeader, default "the name of the cluster";
        /// Headers of exports, such as `authorization`. Each is the value, or `{file: FILE}`.
        optional headers: Named<ChangedHeader, RawSecretValue>, default "none";
        /// How exports are compressed.
        optional compression: OneOf<OtlpCompression>, default word(&OtlpCompression::None);
        /// The name of this process in logs (`service.name`).
        optional service: Text, default defaults::SERVICE;
        /// Further attributes of this process (the resource), such as `deployment.environment.name: production`.
        optional attributes: Named<QueryName, HeaderValue>, default "none";
        /// From the connect to the end of the collector's answer.
        optional timeout: Positive, default duration_text(defaults::OTLP_TIMEOUT);
    }
}

keys! {
    /// Conditions on a record. One that is met is enough.
    pub struct RawLogConditions as "the conditions of the log" {
        /// Statuses: `404`, `400-403`, or a class such as `5xx`.
        optional status: OneOrMany<LogStatus>, default "none";
        /// It took longer, from the first byte of the request to the last byte of the response.
        optional slower_than: Positive, default "none";
        /// It has one of these [reasons](reasons.md), or `any`.
        optional reason: OneOrMany<LogReason>, default "none";
        /// More than one endpoint was tried.
        optional retried: True, default "false";
    }
}

text_or_object! {
    /// A file, or an object with a target, a format and conditions.
    RawAccessLog = LogFile | RawAccessLogObject
}

/// The values of a record.
#[derive(Debug)]
pub enum RawLogFields {
    List(Vec<Located<LogValueText>>),
    Named(Named<LogName, LogValueText>),
}

impl Read for RawLogFields {
    fn kind() -> Kind {
        Kind::Either(vec![
            Kind::List(Box::new(<LogValueText as Scalar>::kind())),
            Kind::Named(LogName::FORM, Box::new(<LogValueText as Scalar>::kind())),
        ])
    }

    fn read(node: &Node, subject: &str, report: &mut Report) -> Option<Self> {
        match &node.value {
            Value::List(_) => Many::read(node, subject, report).map(|Many(values)| Self::List(values)),
            Value::Map(_) => Named::read(node, subject, report).map(Self::Named),
            other => {
                report.add(node.location, unexpected(subject, &Self::kind(), other));
                None
            }
        }
    }
}

/// The number of a facility (RFC 5424 section 6.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facility(pub u8);

impl Choice for Facility {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("user", Self(1), "programs of users"),
        ("daemon", Self(3), "system daemons"),
        ("local0", Self(16), "for local use"),
        ("local1", Self(17), "for local use"),
        ("local2", Self(18), "for local use"),
        ("local3", Self(19), "for local use"),
        ("local4", Self(20), "for local use"),
        ("local5", Self(21), "for local use"),
        ("local6", Self(22), "for local use"),
        ("local7", Self(23), "for local use"),
    ];
}
