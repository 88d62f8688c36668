//! Records as lines of the usual fields, text or JSON. Operators' scripts rely on the fields and their order.

use std::fmt::{self, Display, Formatter};
use std::io::Write;
use std::net::SocketAddr;

use super::escape;
use super::{HttpRecord, Record};

/// A line of the usual fields.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fixed {
    Text,
    Json,
}

/// Appends the line of a record without its line feed.
pub(super) fn fixed(out: &mut Vec<u8>, fixed: Fixed, record: &Record<'_>) {
    match fixed {
        Fixed::Text => text(out, record),
        Fixed::Json => json(out, record),
    }
}

fn text(out: &mut Vec<u8>, record: &Record<'_>) {
    put(out, format_args!("{} client={} listener=", Timestamp(record.unix_ms), Client(record.client)));
    escape::value(out, record.listener.as_bytes());
    match &record.http {
        Some(http) => text_request(out, http),
        None => out.extend_from_slice(b" tcp"),
    }
    put(out, format_args!(" bytes_in={} bytes_out={}", record.bytes_in, record.bytes_out));
    if let Some(http) = &record.http {
        out.extend_from_slice(b" route=");
        escape::value(out, http.route.as_bytes());
    }
    out.extend_from_slice(b" cluster=");
    escape::value(out, record.cluster.as_bytes());
    put(out, format_args!(" endpoint={} total_ms={}", dash(record.endpoint), Millis(record.total_us)));
    if let Some(http) = &record.http {
        put(out, format_args!(" added_us={} upstream_ms={}", http.added_us, dash(http.upstream_us.map(Millis))));
        if let Some(took_us) = http.authorization_us {
            put(out, format_args!(" authorization_ms={}", Millis(took_us)));
        }
        if let Some(took_us) = http.rate_limit_us {
            put(out, format_args!(" rate_limit_ms={}", Millis(took_us)));
        }
        if let Some(status) = http.intercepted {
            put(out, format_args!(" intercepted={status}"));
        }
    }
    put(out, format_args!(" attempts={} reason={}", record.attempts, dash(record.reason)));
}

fn text_request(out: &mut Vec<u8>, http: &HttpRecord<'_>) {
    out.extend_from_slice(b" \"");
    if http.method.is_empty() {
        out.push(b'-');
    } else {
        escape::quoted(out, http.method);
        out.push(b' ');
        escape::quoted(out, http.target);
        put(out, format_args!(" HTTP/{}", http.version));
    }
    out.extend_from_slice(b"\" host=");
    escape::value(out, http.host);
    put(out, format_args!(" status={}", dash(Some(http.status).filter(|status| *status != 0))));
    if let Some(code) = http.grpc_status {
        put(out, format_args!(" grpc_status={code}"));
    }
    if !http.request_id.is_empty() {
        out.extend_from_slice(b" request_id=");
        escape::value(out, http.request_id.as_bytes());
    }
}

fn json(out: &mut Vec<u8>, record: &Record<'_>) {
    put(out, format_args!("{{\"time\":\"{}\",\"client\":\"{}\"", Timestamp(record.unix_ms), Client(record.client)));
    json_text(out, "listener", record.listener.as_bytes());
    json_text(out, "protocol", if record.http.is_some() { b"http" } else { b"tcp" });
    if let Some(http) = &record.http {
        json_text(out, "method", http.method);
        json_text(out, "target", http.target);
        put(out, format_args!(",\"version\":\"{}\"", http.version));
        json_text(out, "host", http.host);
        put(out, format_args!(",\"status\":{}", null(Some(http.status).filter(|status| *status != 0))));
        if let Some(code) = http.grpc_status {
            put(out, format_args!(",\"grpc_status\":{code}"));
        }
        if !http.request_id.is_empty() {
            json_text(out, "request_id", http.request_id.as_bytes());
        }
    }
    put(out, format_args!(",\"bytes_in\":{},\"bytes_out\":{}", record.bytes_in, record.bytes_out));
    if let Some(http) = &record.http {
        json_text(out, "route", http.route.as_bytes());
    }
    json_text(out, "cluster", record.cluster.as_bytes());
    match record.endpoint {
        Some(endpoint) => put(out, format_args!(",\"endpoint\":\"{endpoint}\"")),
        None => out.extend_from_slice(b",\"endpoint\":null"),
    }
    put(out, format_args!(",\"total_ms\":{}", Millis(record.total_us)));
    if let Some(http) = &record.http {
        let upstream = null(http.upstream_us.map(Millis));
        put(out, format_args!(",\"added_us\":{},\"upstream_ms\":{upstream}", http.added_us));
        if let Some(took_us) = http.authorization_us {
            put(out, format_args!(",\"authorization_ms\":{}", Millis(took_us)));
        }
        if let Some(took_us) = http.rate_limit_us {
            put(out, format_args!(",\"rate_limit_ms\":{}", Millis(took_us)));
        }
        if let Some(status) = http.intercepted {
            put(out, format_args!(",\"intercepted\":{status}"));
        }
    }
    put(out, format_args!(",\"attempts\":{}", record.attempts));
    json_text(out, "reason", record.reason.map_or("", |reason| reason.name()).as_bytes());
    out.push(b'}');
}

/// `,"name":"text"`, and `null` for the empty text.
fn json_text(out: &mut Vec<u8>, name: &str, text: &[u8]) {
    put(out, format_args!(",\"{name}\":"));
    match text {
        b"" => out.extend_from_slice(b"null"),
        text => escape::json(out, text),
    }
}

fn dash(value: Option<impl Display>) -> Or<impl Display> {
    Or(value, "-")
}

fn null(value: Option<impl Display>) -> Or<impl Display> {
    Or(value, "null")
}

/// A value, or a word for its absence.
struct Or<T>(Option<T>, &'static str);

impl<T: Display> Display for Or<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str(self.1),
        }
    }
}

/// An address, without its port if that is unknown.
pub(super) struct Client(pub(super) SocketAddr);

impl Display for Client {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.port() {
            0 => self.0.ip().fmt(f),
            _ => self.0.fmt(f),
        }
    }
}

/// Microseconds, written as milliseconds with three decimals.
pub(super) struct Millis(pub(super) u64);

impl Display for Millis {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// Milliseconds since 1970, written in RFC 3339, in UTC.
#[derive(Clone, Copy, Debug)]
pub struct Timestamp(pub u64);

impl Display for Timestamp {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ((year, month, day), (hour, minute, second), ms) = parts(self.0);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
    }
}

/// The same as in the Common Log Format of Apache.
pub(super) struct ClfTime(pub(super) u64);

impl Display for ClfTime {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let ((year, month, day), (hour, minute, second), _) = parts(self.0);
        let month = usize::try_from(month).ok().and_then(|month| MONTHS.get(month.wrapping_sub(1))).unwrap_or(&"");
        write!(f, "{day:02}/{month}/{year:04}:{hour:02}:{minute:02}:{second:02} +0000")
    }
}

/// The date, the time of day, and the milliseconds.
fn parts(unix_ms: u64) -> ((u64, u64, u64), (u64, u64, u64), u64) {
    let (days, ms_of_day) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    let (seconds, ms) = (ms_of_day / 1000, ms_of_day % 1000);
    (date(days), (seconds / 3600, seconds / 60 % 60, seconds % 60), ms)
}

/// The year, month and day of a day since 1970-01-01. After Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days:
/// years begin in March, so that the leap day is the last of its year.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // Counted from 0000-03-01.
    let (era, day_of_era) = (days / 146_097, days % 146_097); // 400 years.
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

fn put(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    // Writing to a Vec does not fail.
    let _ = out.write_fmt(text);
}
