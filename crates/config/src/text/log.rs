//! What is written about the access log: values, templates, conditions, addresses of syslog servers.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use model::{LogHeader, LogPart, LogValue, REASON_NAMES, SyslogAddress};

use super::dollar::{self, Part};
use super::http::{HeaderName, StatusRange, Text};
use crate::define::Form;
use crate::diagnostic::{Wrong, nearest, quoted, ticked};
use crate::read::Formed;

/// Characters of a template.
const TEMPLATE_CHARS_MAX: usize = 4096;

/// The port of syslog over UDP (RFC 5426 section 3.3).
const SYSLOG_PORT: u16 = 514;

/// What can be logged. Whether a header is a secret is decided later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogValueText(pub LogValue);

/// The name of a value in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogName(pub String);

/// A format of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogFormatText {
    Text,
    Json,
    Template(Vec<LogPart>),
}

/// A condition on the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogStatus(pub u16, pub u16);

/// A reason, or any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogReason {
    Any,
    One(&'static str),
}

/// Where a syslog server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyslogTarget(pub SyslogAddress);

/// The id of an element of structured data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SdId(pub String);

impl Formed for LogValueText {
    const FORM: Form = Form { noun: "a value", example: "status", pattern: Some("^[a-z0-9_]+(:[!-~]+)?$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        log_value(text).map(Self)
    }
}

/// Finds a value by its name.
fn log_value(text: &str) -> Result<LogValue, Wrong> {
    if let Some((_, value)) = LogValue::SIMPLE.iter().find(|(name, _)| *name == text) {
        return Ok(value.clone());
    }
    let header = |name: &str| HeaderName::parse(name).map(|HeaderName(name)| LogHeader { name, is_secret: false });
    if let Some(name) = text.strip_prefix(LogValue::REQUEST_HEADER) {
        return header(name).map(LogValue::RequestHeader);
    }
    if let Some(name) = text.strip_prefix(LogValue::RESPONSE_HEADER) {
        return header(name).map(LogValue::ResponseHeader);
    }
    let wrong = Wrong::new(format!("there is no value {}", ticked(text)));
    Err(wrong.hint(match meant(text) {
        Some(name) => format!("did you mean `{name}`?"),
        None => {
            let names: Vec<&str> = LogValue::SIMPLE.iter().map(|(name, _)| *name).collect();
            format!("it can be {}, request_header:NAME or response_header:NAME", names.join(", "))
        }
    }))
}

/// The value that a name stands for in other proxies, or that it almost is.
fn meant(name: &str) -> Option<String> {
    let known = [
        ("remote_addr", "client_ip"),
        ("realip_remote_addr", "client"),
        ("request", "request_line"),
        ("request_uri", "target"),
        ("uri", "path"),
        ("request_method", "method"),
        ("server_protocol", "version"),
        ("http_host", "host"),
        ("body_bytes_sent", "bytes_out"),
        ("bytes_sent", "bytes_out"),
        ("request_length", "bytes_in"),
        ("request_time", "total_ms"),
        ("duration", "total_ms"),
        ("upstream_response_time", "upstream_ms"),
        ("upstream_header_time", "upstream_ms"),
        ("upstream_addr", "endpoint"),
        ("time_local", "time_clf"),
        ("time_iso8601", "time"),
        ("timestamp", "time"),
        ("msec", "time_unix_ms"),
        ("ssl_protocol", "tls_version"),
        ("ssl_server_name", "sni"),
        ("ssl_client_s_dn", "client_cert_subject"),
        ("ssl_client_fingerprint", "client_cert_sha256"),
        ("user_agent", "request_header:user-agent"),
        ("referer", "request_header:referer"),
        ("query", "target"),
    ];
    let plain = name.to_ascii_lowercase().replace('-', "_");
    if let Some((_, ours)) = known.iter().find(|(other, _)| *other == plain) {
        return Some((*ours).to_owned());
    }
    // nginx has the headers of requests as `http_user_agent`, and those of responses as `sent_http_content_type`.
    for (theirs, ours) in [
        ("upstream_http_", LogValue::RESPONSE_HEADER),
        ("sent_http_", LogValue::RESPONSE_HEADER),
        ("http_", LogValue::REQUEST_HEADER),
    ] {
        if let Some(header) = plain.strip_prefix(theirs).filter(|header| !header.is_empty()) {
            return Some(format!("{ours}{}", header.replace('_', "-")));
        }
    }
    let names = LogValue::SIMPLE.iter().map(|(name, _)| *name);
    nearest(name, names.chain([LogValue::REQUEST_HEADER, LogValue::RESPONSE_HEADER])).map(|near| match near {
        prefix if prefix.ends_with(':') => format!("{prefix}NAME"),
        name => name.to_owned(),
    })
}

impl Formed for LogName {
    const FORM: Form = Form { noun: "a name", example: "http.status", pattern: Some("^[A-Za-z0-9_.@:/-]{1,64}$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.@:/-".contains(&byte);
        if text.is_empty() || text.len() > 64 || !text.bytes().all(is_plain) {
            let hint = "a name has 1 to 64 letters, digits, `_`, `.`, `@`, `:`, `/` and `-`";
            return Err(Wrong::new(format!("{} is not a name of a field", quoted(text))).hint(hint));
        }
        Ok(Self(text.to_owned()))
    }
}

impl Formed for LogFormatText {
    const FORM: Form = Form { noun: "a format", example: "json", pattern: Some(r"^(text|json|.*\$\{.*)$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        match text {
            "text" => return Ok(Self::Text),
            "json" => return Ok(Self::Json),
            _ => {}
        }
        if !text.contains('$') {
            let wrong = Wrong::new(format!("{} is not a format", quoted(text)));
            return Err(match nearest(text, ["text", "json"]) {
                Some(name) => wrong.hint(format!("did you mean `{name}`?")),
                None => wrong.hint("write `text`, `json`, or a text with values such as `${client_ip} ${status}`"),
            });
        }
        if text.len() > TEMPLATE_CHARS_MAX {
            return Err(Wrong::new(format!("the format has {} bytes; the limit is {TEMPLATE_CHARS_MAX}", text.len())));
        }
        if text.chars().any(|c| c.is_control() && c != '\t') {
            let hint = "a record is one line; Steelyard ends it itself";
            return Err(Wrong::new(format!("{} contains a control character", quoted(text))).hint(hint));
        }
        template(text).map(Self::Template)
    }
}

/// The parts of a template, each value with what stands beside it.
fn template(text: &str) -> Result<Vec<LogPart>, Wrong> {
    let parts = dollar::parts(text, reference)?;
    let literal = |part: Option<&Part<LogValue>>, is_after: bool| match part {
        Some(Part::Text(text)) if is_after => text.chars().next(),
        Some(Part::Text(text)) => text.chars().next_back(),
        _ => None,
    };
    let mut is_quoted = false;
    let mut made = Vec::with_capacity(parts.len());
    for (place, part) in parts.iter().enumerate() {
        made.push(match part {
            Part::Text(text) => {
                is_quoted ^= !text.matches('"').count().is_multiple_of(2);
                LogPart::Text(text.clone())
            }
            Part::Reference(value) => {
                let before = place.checked_sub(1).and_then(|before| literal(parts.get(before), false));
                let beside = [before, literal(parts.get(place + 1), true)];
                LogPart::Value { value: value.clone(), is_quoted, beside }
            }
        });
    }
    if is_quoted {
        let wrong = Wrong::new(format!("{} has a quote that does not end", quoted(text)));
        return Err(wrong.hint("a value between quotes is escaped for them, so they must come in pairs"));
    }
    if !made.iter().any(|part| matches!(part, LogPart::Value { .. })) {
        let wrong = Wrong::new(format!("{} has no value", quoted(text)));
        return Err(wrong.hint("every record would be the same; write values such as `${client_ip}`"));
    }
    Ok(made)
}

/// The value after a `$`, and the text behind it.
fn reference(text: &str) -> Result<(LogValue, &str), Wrong> {
    if let Some((name, behind)) = text.strip_prefix('{').and_then(|braced| braced.split_once('}')) {
        return Ok((log_value(name)?, behind));
    }
    let length = text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
    let name = text.get(..length).unwrap_or_default();
    let is_value = |name: &str| LogValue::SIMPLE.iter().any(|(known, _)| *known == name);
    let ours = if is_value(name) { Some(name.to_owned()) } else { meant(name) };
    // The likely cause is the syntax of nginx.
    match ours.filter(|_| !name.is_empty()) {
        Some(ours) => {
            let wrong = Wrong::new(format!("{} is not a value", ticked(&format!("${name}"))));
            Err(wrong.hint(format!("write `${{{ours}}}`, or `$$` for a dollar sign")))
        }
        None => Err(Wrong::new("a `$` stands before no value").hint("write `${status}`, or `$$` for a dollar sign")),
    }
}

impl Formed for LogStatus {
    const FORM: Form = Form {
        noun: "a status, a class, or two statuses with a `-` between them",
        example: "5xx",
        pattern: Some("^[1-5]([0-9]{2}(-[1-5][0-9]{2})?|xx)$"),
    };

    fn parse(text: &str) -> Result<Self, Wrong> {
        if let Some(Ok(class)) = text.strip_suffix("xx").map(str::parse::<u16>)
            && (1..=5).contains(&class)
            && text.len() == 3
        {
            return Ok(Self(class * 100, class * 100 + 99));
        }
        match StatusRange::parse(text) {
            Ok(StatusRange(first, last)) => Ok(Self(first, last)),
            Err(_) => Err(Wrong::new(format!("{} is not a status", quoted(text))).hint(
                "write one status from 100 to 599, the first and the last such as 400-403, or a class such as 5xx",
            )),
        }
    }
}

impl Formed for LogReason {
    const FORM: Form = Form { noun: "a reason", example: "connect_timeout", pattern: Some("^[a-z0-9_]+$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        if text == "any" {
            return Ok(Self::Any);
        }
        if let Some(name) = REASON_NAMES.iter().find(|name| **name == text) {
            return Ok(Self::One(name));
        }
        let wrong = Wrong::new(format!("there is no reason {}", ticked(text)));
        Err(match nearest(text, REASON_NAMES.iter().copied()) {
            Some(name) => wrong.hint(format!("did you mean `{name}`?")),
            None => wrong.hint("docs/reasons.md lists them; `any` stands for all"),
        })
    }
}

impl Formed for SyslogTarget {
    const FORM: Form = Form { noun: "an address", example: "192.0.2.5:514", pattern: None };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let Text(text) = Text::parse(text)?;
        if let Some(path) = text.strip_prefix("unix:") {
            if !path.starts_with('/') {
                let hint = "write a whole path, such as `unix:/dev/log`";
                return Err(Wrong::new(format!("{} is not the path of a socket", quoted(path))).hint(hint));
            }
            return Ok(Self(SyslogAddress::Unix(PathBuf::from(path))));
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self(SyslogAddress::Udp(address)));
        }
        if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            return Ok(Self(SyslogAddress::Udp(SocketAddr::new(ip, SYSLOG_PORT))));
        }
        let wrong = Wrong::new(format!("{} is not the address of a syslog server", quoted(&text)));
        Err(if text.starts_with('/') {
            wrong.hint(format!("write `unix:{text}` for a socket"))
        } else {
            wrong.hint("write an IP address and a port such as 192.0.2.5:514, or a socket such as `unix:/dev/log`")
        })
    }
}

impl Formed for SdId {
    const FORM: Form = Form { noun: "an SD-ID", example: "steelyard@32473", pattern: Some("^[!-~]+@[0-9.]+$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"=]\"@".contains(&byte))
        };
        let is_number = |number: &str| {
            let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            number.split('.').all(digits)
        };
        match text.split_once('@') {
            Some((name, number)) if is_name(name) && is_number(number) && text.len() <= 32 => Ok(Self(text.to_owned())),
            _ => Err(Wrong::new(format!("{} is not an SD-ID", quoted(text)))
                .hint("write a name, `@` and your private enterprise number, at most 32 characters: steelyard@32473")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Formed>(text: &str, expect: &str, show: impl Fn(T) -> String) {
        assert_eq!(T::parse(text).map_or_else(|wrong| wrong.to_string(), show), expect, "{text:?}");
    }

    #[test]
    fn values() {
        let value = |text: &str, expect: &str| check(text, expect, |LogValueText(value)| value.name());
        value("status", "status");
        value("request_header:User-Agent", "request_header:user-agent");
        value("response_header:x-a", "response_header:x-a");
        value("statsu", "there is no value `statsu`; did you mean `status`?");
        value("remote_addr", "there is no value `remote_addr`; did you mean `client_ip`?");
        value("http_user_agent", "there is no value `http_user_agent`; did you mean `request_header:user-agent`?");
        value("request_header", "there is no value `request_header`; did you mean `request_header:NAME`?");
        let all = LogValue::SIMPLE.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        value(
            "colour",
            &format!("there is no value `colour`; it can be {all}, request_header:NAME or response_header:NAME"),
        );
        value("request_header:a b", r#""a b" is not the name of a header; use letters, digits and !#$%&'*+-.^_`|~"#);
    }

    #[test]
    fn formats() {
        let format = |text, expect| {
            check(text, expect, |format| match format {
                LogFormatText::Text => "text".to_owned(),
                LogFormatText::Json => "json".to_owned(),
                LogFormatText::Template(parts) => {
                    let part = |part: &LogPart| match part {
                        LogPart::Text(text) => text.clone(),
                        LogPart::Value { value, is_quoted, beside: [before, after] } => {
                            let side = |c: &Option<char>| c.map_or_else(|| "^".to_owned(), String::from);
                            let mark = if *is_quoted { "Q" } else { "" };
                            format!("<{}{mark}{}{}>", value.name(), side(before), side(after))
                        }
                    };
                    parts.iter().map(part).collect()
                }
            });
        };
        format("text", "text");
        format("json", "json");
        format("jsno", "\"jsno\" is not a format; did you mean `json`?");
        format(
            "combined",
            "\"combined\" is not a format; write `text`, `json`, or a text with values such as `${client_ip} ${status}`",
        );
        format(
            "${client_ip} [${time_clf}] \"${request_line}\" ${status}",
            "<client_ip^ > [<time_clf[]>] \"<request_lineQ\"\">\" <status ^>",
        );
        format("$$${status}${method}", "$<status$^><method^^>");
        format("${statu}", "there is no value `statu`; did you mean `status`?");
        format("$remote_addr", "`$remote_addr` is not a value; write `${client_ip}`, or `$$` for a dollar sign");
        format("$status", "`$status` is not a value; write `${status}`, or `$$` for a dollar sign");
        format("a $ b", "a `$` stands before no value; write `${status}`, or `$$` for a dollar sign");
        format("$$", "\"$$\" has no value; every record would be the same; write values such as `${client_ip}`");
        format(
            "\"${status}",
            "\"\\\"${status}\" has a quote that does not end; a value between quotes is escaped for them, so they must come in pairs",
        );
        format(
            "${status}\n",
            "\"${status}\\n\" contains a control character; a record is one line; Steelyard ends it itself",
        );
    }

    #[test]
    fn conditions_and_targets() {
        let status = |text: &str, expect: &str| check(text, expect, |LogStatus(first, last)| format!("{first} {last}"));
        status("5xx", "500 599");
        status("404", "404 404");
        status("400-403", "400 403");
        let hint = "write one status from 100 to 599, the first and the last such as 400-403, or a class such as 5xx";
        status("6xx", &format!("\"6xx\" is not a status; {hint}"));
        status("+5xx", &format!("\"+5xx\" is not a status; {hint}"));
        let reason = |text, expect| {
            check(text, expect, |reason| match reason {
                LogReason::Any => "any".to_owned(),
                LogReason::One(name) => name.to_owned(),
            });
        };
        reason("any", "any");
        reason("no_route", "no_route");
        reason("no_rout", "there is no reason `no_rout`; did you mean `no_route`?");
        let target = |text, expect| {
            check(text, expect, |SyslogTarget(address)| match address {
                SyslogAddress::Udp(address) => address.to_string(),
                SyslogAddress::Unix(path) => path.display().to_string(),
            });
        };
        target("192.0.2.5", "192.0.2.5:514");
        target("[::1]", "[::1]:514");
        target("[::1]:5514", "[::1]:5514");
        target("unix:/dev/log", "/dev/log");
        target("unix:dev", "\"dev\" is not the path of a socket; write a whole path, such as `unix:/dev/log`");
        target("/dev/log", "\"/dev/log\" is not the address of a syslog server; write `unix:/dev/log` for a socket");
        target(
            "logs.example.com:514",
            "\"logs.example.com:514\" is not the address of a syslog server; write an IP address and a port such as 192.0.2.5:514, or a socket \
             such as `unix:/dev/log`",
        );
        let id = |text: &str, expect: &str| check(text, expect, |SdId(id)| id);
        id("a@1.2", "a@1.2");
        let hint = "write a name, `@` and your private enterprise number, at most 32 characters: steelyard@32473";
        id("steelyard", &format!("\"steelyard\" is not an SD-ID; {hint}"));
        id("a]@1", &format!("\"a]@1\" is not an SD-ID; {hint}"));
    }
}
