//! The values of one record, whatever they are written as.

use std::borrow::Cow;
use std::io::Write;
use std::net::SocketAddr;

use model::{LogField, LogValue};

use super::format::{ClfTime, Client, Millis, Timestamp};
use super::{HttpRecord, Record, escape};

/// A record as the writer has it.
#[derive(Clone, Copy, Debug)]
pub struct LogEntry<'b> {
    pub(super) record: Record<'b>,
    pub(super) extras: Extras<'b>,
    /// Longer texts are cut, because the line would be too long.
    pub(super) text_bytes_max: usize,
}

/// What was looked up for a record besides what every record has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extras<'b> {
    pub(super) bytes: &'b [u8],
    pub(super) places: &'b [Option<(u32, u32)>],
}

/// A value that is looked up once per record.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Simple(LogValue),
    /// The number of an extra.
    Extra(usize),
}

/// A named value.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) source: Source,
}

/// A value of a record.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'b> {
    Absent,
    /// From the client or the endpoint, whatever it contains.
    Text(&'b [u8]),
    Word(&'static str),
    Number(u64),
    /// Microseconds, written as milliseconds.
    Millis(u64),
    Address(SocketAddr),
    Client(SocketAddr),
    /// Milliseconds since 1970.
    Time(u64),
    ClfTime(u64),
    RequestLine(HttpRecord<'b>),
}

/// A value for a collector.
#[derive(Clone, Debug, PartialEq)]
pub enum LogAttribute<'v> {
    /// Text. Bytes that were not UTF-8 are escaped.
    Text(Cow<'v, str>),
    /// A whole number.
    Integer(u64),
    /// Milliseconds.
    Double(f64),
}

impl<'b> LogEntry<'b> {
    /// The beginning of the request, in milliseconds since 1970.
    pub fn unix_ms(&self) -> u64 {
        self.record.unix_ms
    }

    /// Whether it was refused or failed.
    pub fn is_error(&self) -> bool {
        is_error(&self.record)
    }

    /// The request and its status in a few words, without anything that a reader could mistake.
    pub fn summary(&self) -> String {
        let mut out = Vec::new();
        let Record { listener, cluster, .. } = &self.record;
        match &self.record.http {
            Some(http) => {
                escape::quoted(&mut out, self.cut(http.method));
                out.push(b' ');
                escape::quoted(&mut out, self.cut(path(http.target)));
                put(&mut out, format_args!(" {}", http.status));
            }
            None => put(&mut out, format_args!("tcp {listener} {cluster}")),
        }
        text_of(out)
    }

    /// The texts are cut to this length.
    pub(super) fn with_texts_of(self, text_bytes_max: usize) -> Self {
        Self { text_bytes_max, ..self }
    }

    /// The record with texts of the wanted length. Names from the configuration are short.
    pub(super) fn cut_record(&self) -> Record<'b> {
        let http = self.record.http.map(|http| HttpRecord {
            method: self.cut(http.method),
            target: self.cut(http.target),
            host: self.cut(http.host),
            ..http
        });
        Record { http, ..self.record }
    }

    fn cut<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        text.get(..self.text_bytes_max).unwrap_or(text)
    }

    pub(super) fn value(&self, source: &Source) -> Value<'b> {
        match source {
            Source::Extra(number) => match self.extras.places.get(*number) {
                Some(Some((begin, end))) => {
                    let text = self.extras.bytes.get(*begin as usize..*end as usize).unwrap_or_default();
                    Value::Text(self.cut(text))
                }
                _ => Value::Absent,
            },
            Source::Simple(value) => self.simple(value),
        }
    }

    fn simple(&self, value: &LogValue) -> Value<'b> {
        let record = &self.record;
        match value {
            LogValue::Time => Value::Time(record.unix_ms),
            LogValue::TimeClf => Value::ClfTime(record.unix_ms),
            LogValue::TimeUnixMs => Value::Number(record.unix_ms),
            LogValue::Client => Value::Client(record.client),
            LogValue::Listener => self.text(record.listener.as_bytes()),
            LogValue::Protocol => Value::Word(if record.http.is_some() { "http" } else { "tcp" }),
            LogValue::BytesIn => Value::Number(record.bytes_in),
            LogValue::BytesOut => Value::Number(record.bytes_out),
            LogValue::Cluster => self.text(record.cluster.as_bytes()),
            LogValue::Endpoint => record.endpoint.map_or(Value::Absent, Value::Address),
            LogValue::TotalMs => Value::Millis(record.total_us),
            LogValue::Attempts => Value::Number(record.attempts.into()),
            LogValue::Reason => record.reason.map_or(Value::Absent, |reason| Value::Word(reason.name())),
            of_http => record.http.as_ref().map_or(Value::Absent, |http| self.of_http(of_http, http)),
        }
    }

    fn of_http(&self, value: &LogValue, http: &HttpRecord<'b>) -> Value<'b> {
        let millis = |took_us: Option<u64>| took_us.map_or(Value::Absent, Value::Millis);
        match value {
            LogValue::RequestLine if http.method.is_empty() => Value::Absent,
            LogValue::RequestLine => {
                let (method, target) = (self.cut(http.method), self.cut(http.target));
                Value::RequestLine(HttpRecord { method, target, ..*http })
            }
            LogValue::Method => self.text(http.method),
            LogValue::Target => self.text(http.target),
            LogValue::Path => self.text(path(http.target)),
            LogValue::Version => Value::Word(http.version),
            LogValue::Host => self.text(http.host),
            LogValue::Status if http.status == 0 => Value::Absent,
            LogValue::Status => Value::Number(http.status.into()),
            LogValue::GrpcStatus => http.grpc_status.map_or(Value::Absent, |code| Value::Number(code.into())),
            LogValue::RequestId => self.text(http.request_id.as_bytes()),
            LogValue::Route => self.text(http.route.as_bytes()),
            LogValue::AddedUs => Value::Number(http.added_us),
            LogValue::UpstreamMs => millis(http.upstream_us),
            LogValue::AuthorizationMs => millis(http.authorization_us),
            LogValue::RateLimitMs => millis(http.rate_limit_us),
            LogValue::Intercepted => http.intercepted.map_or(Value::Absent, |status| Value::Number(status.into())),
            // The others are those of `simple`, and extras.
            _ => Value::Absent,
        }
    }

    fn text(&self, text: &'b [u8]) -> Value<'b> {
        match self.cut(text) {
            b"" => Value::Absent,
            text => Value::Text(text),
        }
    }
}

/// Whether it was refused or failed.
pub(super) fn is_error(record: &Record<'_>) -> bool {
    let is_fault = |http: HttpRecord<'_>| crate::grpc::is_fault(http.status, http.grpc_status);
    record.reason.is_some() || record.http.is_some_and(is_fault)
}

/// A target without its query.
pub(super) fn path(target: &[u8]) -> &[u8] {
    target.split(|byte| *byte == b'?').next().unwrap_or_default()
}

impl Value<'_> {
    /// Appends it as it is. What a client has sent is not escaped.
    pub(super) fn raw(&self, out: &mut Vec<u8>) {
        match self {
            Self::Absent => {}
            Self::Text(text) => out.extend_from_slice(text),
            Self::Word(word) => out.extend_from_slice(word.as_bytes()),
            Self::Number(number) => put(out, format_args!("{number}")),
            Self::Millis(us) => put(out, format_args!("{}", Millis(*us))),
            Self::Address(address) => put(out, format_args!("{address}")),
            Self::Client(address) => put(out, format_args!("{}", Client(*address))),
            Self::Time(unix_ms) => put(out, format_args!("{}", Timestamp(*unix_ms))),
            Self::ClfTime(unix_ms) => put(out, format_args!("{}", ClfTime(*unix_ms))),
            Self::RequestLine(http) => {
                out.extend_from_slice(http.method);
                out.push(b' ');
                out.extend_from_slice(http.target);
                put(out, format_args!(" HTTP/{}", http.version));
            }
        }
    }

    /// Appends it as JSON.
    pub(super) fn json(&self, out: &mut Vec<u8>) {
        match self {
            Self::Absent => out.extend_from_slice(b"null"),
            Self::Number(_) | Self::Millis(_) => self.raw(out),
            Self::Text(text) => escape::json(out, text),
            other => {
                let mut text = Vec::new();
                other.raw(&mut text);
                escape::json(out, &text);
            }
        }
    }

    fn attribute(&self) -> Option<LogAttribute<'_>> {
        match self {
            Self::Absent => None,
            Self::Number(number) => Some(LogAttribute::Integer(*number)),
            Self::Millis(us) => Some(LogAttribute::Double(*us as f64 / 1000.0)),
            Self::Word(word) => Some(LogAttribute::Text(Cow::Borrowed(word))),
            Self::Text(text) => Some(LogAttribute::Text(match std::str::from_utf8(text) {
                Ok(text) => Cow::Borrowed(text),
                Err(_) => {
                    let mut out = Vec::new();
                    escape::quoted(&mut out, text);
                    Cow::Owned(text_of(out))
                }
            })),
            other => {
                let mut out = Vec::new();
                other.raw(&mut out);
                Some(LogAttribute::Text(Cow::Owned(text_of(out))))
            }
        }
    }
}

/// The values of a record that a collector gets.
#[derive(Clone, Debug)]
pub struct LogAttributes {
    fields: Vec<Field>,
    trace: [Source; 2],
}

impl LogAttributes {
    /// `extras` has the values of the log that are extras.
    pub(super) fn new(fields: &[LogField], extras: &[LogValue]) -> Self {
        let trace = [LogValue::TraceId, LogValue::SpanId].map(|value| source(&value, extras));
        Self { fields: fields_of(fields, extras), trace }
    }

    /// Calls `each` with the name and the value of each attribute.
    pub fn each(&self, entry: &LogEntry<'_>, mut each: impl FnMut(&str, LogAttribute<'_>)) {
        for Field { name, source } in &self.fields {
            if let Some(value) = entry.value(source).attribute() {
                each(name, value);
            }
        }
    }

    /// The ids of the trace and of the span, in hex; empty if there are none.
    pub fn trace<'b>(&self, entry: &LogEntry<'b>) -> [&'b [u8]; 2] {
        self.trace.each_ref().map(|source| match entry.value(source) {
            Value::Text(text) => text,
            _ => &[],
        })
    }
}

/// Where each of these fields comes from.
pub(super) fn fields_of(fields: &[LogField], extras: &[LogValue]) -> Vec<Field> {
    fields.iter().map(|field| Field { name: field.name.clone(), source: source(&field.value, extras) }).collect()
}

/// Where a value comes from.
pub(super) fn source(value: &LogValue, extras: &[LogValue]) -> Source {
    extras.iter().position(|extra| extra == value).map_or_else(|| Source::Simple(value.clone()), Source::Extra)
}

/// What was escaped, which is UTF-8.
fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a Vec does not fail.
    let _ = out.write_fmt(text);
}
