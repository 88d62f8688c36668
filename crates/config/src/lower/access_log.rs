//! The access log.

use std::path::Path;
use std::sync::Arc;

use model::{
    AccessLog, Auth, Cluster, KeyPlace, Listener, LogConditions, LogField, LogFilter, LogFormat, LogHeader, LogPart,
    LogTarget, LogValue, Protocol, Route, Syslog,
};

use super::{ClusterIds, otlp};
use crate::defaults;
use crate::diagnostic::{Report, Wrong, nearest, ticked};
use crate::raw::{RawAccessLog, RawAccessLogObject, RawLogConditions, RawLogFields};
use crate::read::{Located, Named, OneOrMany};
use crate::text::{HeaderName, LogFormatText, LogReason, LogStatus, RouteName};

/// The most values of a record. Each header is looked up in every request that is logged.
const VALUES_MAX: usize = 60;

/// Characters of a name in structured data, and of an APP-NAME (RFC 5424 section 6).
const PARAM_NAME_CHARS_MAX: usize = 32;
const APP_NAME_CHARS_MAX: usize = 48;

/// What is in the names of headers with secrets.
const SECRET_WORDS: [&str; 17] = [
    "auth",
    "cookie",
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "credential",
    "api-key",
    "apikey",
    "access-key",
    "private-key",
    "subscription-key",
    "functions-key",
    "session",
    "jwt",
    "signature",
];

/// What the log has to know of the rest of the file.
pub struct Context<'c> {
    pub ids: &'c ClusterIds,
    pub clusters: &'c [Cluster],
    pub listeners: &'c [Listener],
    pub base: &'c Path,
}

impl<'c> Context<'c> {
    /// Those of HTTP listeners.
    fn routes(&self) -> impl Iterator<Item = &'c Route> + use<'c> {
        let routes = self.listeners.iter().filter_map(|listener| match &listener.protocol {
            Protocol::Http(http) => Some(&http.routes),
            Protocol::Tcp(_) | Protocol::Tls(_) | Protocol::Capture(_) => None,
        });
        routes.flat_map(|routes| routes.iter())
    }
}

/// Returns `None` if the report says why.
pub fn access_log(raw: &RawAccessLog, context: &Context<'_>, report: &mut Report) -> Option<AccessLog> {
    match raw {
        RawAccessLog::Text(file) => {
            let target = file.0.clone().map_or(LogTarget::Stdout, LogTarget::File);
            Some(AccessLog::new(target, LogFormat::Text(None)))
        }
        RawAccessLog::Object(object) => of_object(object, context, report),
    }
}

fn of_object(raw: &RawAccessLogObject, context: &Context<'_>, report: &mut Report) -> Option<AccessLog> {
    let format = format(raw, context, report);
    Some(AccessLog {
        target: target(raw, context, report)?,
        format,
        filter: LogFilter {
            routes: routes(&raw.routes, context, report),
            except_routes: routes(&raw.except_routes, context, report),
            conditions: raw.only.as_ref().map_or_else(LogConditions::default, |only| conditions(only, report)),
        },
        sampling: raw.sampling.as_ref().map_or(1.0, |share| share.value.0),
        query: raw.query.as_ref().is_none_or(|query| query.value.0),
    })
}

fn target(raw: &RawAccessLogObject, context: &Context<'_>, report: &mut Report) -> Option<LogTarget> {
    let written = [
        raw.path.as_ref().map(|path| ("path", path.location)),
        raw.syslog.as_ref().map(|syslog| ("syslog", syslog.location)),
        raw.otlp.as_ref().map(|otlp| ("otlp", otlp.location)),
    ];
    let mut written = written.into_iter().flatten();
    if let (Some((first, _)), Some((second, location))) = (written.next(), written.next()) {
        let wrong = Wrong::new(format!("an access log has both `{first}` and `{second}`"));
        report.add(location, wrong.hint("keep one of them: it has one target"));
    }
    if let Some(Located { value: raw, .. }) = &raw.syslog {
        if let Some(name) = raw.app_name.as_ref().filter(|name| name.value.0.len() > APP_NAME_CHARS_MAX) {
            let wrong = Wrong::new(format!("`app_name` has more than {APP_NAME_CHARS_MAX} characters"));
            report.add(name.location, wrong.hint("the syslog protocol allows no more"));
        }
        return Some(LogTarget::Syslog(Syslog {
            to: raw.to.as_ref()?.value.0.clone(),
            facility: raw.facility.as_ref().map_or(defaults::FACILITY, |facility| facility.value.0).0,
            app_name: raw.app_name.as_ref().map_or(defaults::SERVICE, |name| &name.value.0).to_owned(),
        }));
    }
    if let Some(Located { value: raw, .. }) = &raw.otlp {
        let Context { ids, clusters, base, .. } = *context;
        return otlp::otlp(&raw.into(), ids, clusters, base, report).map(LogTarget::Otlp);
    }
    Some(raw.path.as_ref().and_then(|path| path.value.0.clone()).map_or(LogTarget::Stdout, LogTarget::File))
}

fn format(raw: &RawAccessLogObject, context: &Context<'_>, report: &mut Report) -> LogFormat {
    let mut secrets = Secrets::new(raw, context);
    let fields = raw.fields.as_ref().map(|fields| self::fields(fields, &mut secrets, report));
    let id = raw.syslog.as_ref().and_then(|syslog| syslog.value.structured_data.as_ref());
    let has_attributes = match (&raw.otlp, id) {
        (Some(_), _) => Some("`otlp` sends fields"),
        (None, Some(_)) => Some("`structured_data` has fields"),
        (None, None) => None,
    };
    if let (Some(why), Some(format)) = (has_attributes, &raw.format) {
        let wrong = Wrong::new(format!("`format` has no effect: {why}, and no lines"));
        report.add(format.location, wrong.hint("remove it, and choose with `fields`"));
    }
    let made = match (&raw.otlp, id, raw.format.as_ref().map(|format| (&format.value, format.location))) {
        (Some(_), ..) => LogFormat::Attributes(fields.unwrap_or_else(LogValue::usual_fields)),
        (None, Some(id), _) => {
            let fields = fields.unwrap_or_else(LogValue::usual_fields);
            if let Some(long) = fields.iter().find(|field| field.name.len() > PARAM_NAME_CHARS_MAX) {
                let name = ticked(&long.name);
                let wrong = Wrong::new(format!("{name} is longer than {PARAM_NAME_CHARS_MAX} characters"));
                report.add(id.location, wrong.hint("give the field a shorter name: structured data allows no more"));
            }
            LogFormat::StructuredData { id: id.value.0.clone(), fields }
        }
        (None, None, Some((LogFormatText::Template(parts), location))) => {
            if let Some(fields) = &raw.fields {
                let wrong = Wrong::new("`fields` has no effect: the format has its values in it");
                report.add(fields.location, wrong.hint("remove it, or choose `format: json` or `format: text`"));
            }
            let values = parts.iter().filter(|part| matches!(part, LogPart::Value { .. })).count();
            if values > VALUES_MAX {
                report.add(location, Wrong::new(format!("the format has {values} values; the limit is {VALUES_MAX}")));
            }
            let part = |part: &LogPart| match part {
                LogPart::Text(text) => LogPart::Text(text.clone()),
                LogPart::Value { value, is_quoted, beside } => {
                    LogPart::Value { value: secrets.mark(value), is_quoted: *is_quoted, beside: *beside }
                }
            };
            LogFormat::Template(parts.iter().map(part).collect())
        }
        (None, None, Some((LogFormatText::Json, _))) => LogFormat::Json(fields),
        (None, None, Some((LogFormatText::Text, _)) | None) => LogFormat::Text(fields),
    };
    secrets.refuse_unused(report);
    made
}

fn fields(raw: &Located<RawLogFields>, secrets: &mut Secrets<'_>, report: &mut Report) -> Arc<[LogField]> {
    let mut made: Vec<LogField> = Vec::new();
    match &raw.value {
        RawLogFields::List(values) => {
            for Located { location, value } in values {
                let (name, value) = (value.0.name(), secrets.mark(&value.0));
                if made.iter().any(|field| field.name == name) {
                    report.add(*location, Wrong::new(format!("`fields` has {} twice", ticked(&name))));
                }
                made.push(LogField { name, value });
            }
        }
        RawLogFields::Named(Named(entries)) => {
            for entry in entries {
                let Some(value) = &entry.value else { continue };
                made.push(LogField { name: entry.name.0.clone(), value: secrets.mark(&value.0) });
            }
        }
    }
    if made.len() > VALUES_MAX {
        report.add(raw.location, Wrong::new(format!("{} fields; the limit is {VALUES_MAX}", made.len())));
    }
    made.into()
}

/// Which headers are secret.
struct Secrets<'s> {
    revealed: Vec<(&'s Located<HeaderName>, bool)>,
    /// Headers that may have keys or tokens of clients, as the routes say.
    with_keys: Vec<String>,
}

impl<'s> Secrets<'s> {
    fn new(raw: &'s RawAccessLogObject, context: &Context<'_>) -> Self {
        let revealed = raw.reveal.as_ref().map_or(&[][..], |reveal| &reveal.value.0);
        let auths = context.routes().filter_map(|route| route.policy.auth.as_deref());
        let places = auths.flat_map(|auth| match auth {
            Auth::ApiKey(keys) => keys.places.as_slice(),
            Auth::Jwt(tokens) => tokens.places.as_slice(),
            Auth::Basic(_) => &[],
        });
        let with_keys = places.filter_map(|place| match place {
            KeyPlace::Header(name) => Some(name.clone()),
            KeyPlace::Query(_) | KeyPlace::Cookie(_) => None,
        });
        Self { revealed: revealed.iter().map(|name| (name, false)).collect(), with_keys: with_keys.collect() }
    }

    /// The value, marked if it is a header that may have a secret.
    fn mark(&mut self, value: &LogValue) -> LogValue {
        let mut marked = |header: &LogHeader| {
            let name = header.name.clone();
            let revealed = self.revealed.iter_mut().find(|(written, _)| written.value.0 == name);
            let is_revealed = revealed.map(|(_, is_used)| *is_used = true).is_some();
            let is_secret =
                SECRET_WORDS.iter().any(|word| name.replace('_', "-").contains(word)) || self.with_keys.contains(&name);
            LogHeader { name, is_secret: is_secret && !is_revealed }
        };
        match value {
            LogValue::RequestHeader(header) => LogValue::RequestHeader(marked(header)),
            LogValue::ResponseHeader(header) => LogValue::ResponseHeader(marked(header)),
            other => other.clone(),
        }
    }

    fn refuse_unused(&self, report: &mut Report) {
        for (written, _) in self.revealed.iter().filter(|(_, is_used)| !is_used) {
            let name = ticked(&written.value.0);
            let wrong = Wrong::new(format!("`reveal` names {name}, which the log does not have"));
            report.add(written.location, wrong.hint(format!("remove it, or add `request_header:{}`", written.value.0)));
        }
    }
}

fn routes(raw: &Option<Located<OneOrMany<RouteName>>>, context: &Context<'_>, report: &mut Report) -> Vec<String> {
    let written = raw.as_ref().map_or(&[][..], |raw| &raw.value.0);
    let known: Vec<&str> = context.routes().map(|route| route.name.as_str()).collect();
    for Located { location, value: RouteName(name) } in written {
        // If a listener could not be read, its routes are not known.
        if known.is_empty() || known.contains(&name.as_str()) {
            continue;
        }
        let wrong = Wrong::new(format!("no listener has a route {}", ticked(name)));
        report.add(
            *location,
            match nearest(name, known.iter().copied()) {
                Some(near) => wrong.hint(format!("did you mean {}?", ticked(near))),
                None => wrong.hint("`steelyard status` shows the names of routes; a route can have a `name`"),
            },
        );
    }
    written.iter().map(|name| name.value.0.clone()).collect()
}

fn conditions(raw: &Located<RawLogConditions>, report: &mut Report) -> LogConditions {
    let RawLogConditions { status, slower_than, reason, retried, .. } = &raw.value;
    let reasons = reason.as_ref().map_or(&[][..], |reason| &reason.value.0);
    let named = reasons.iter().filter_map(|reason| match reason.value {
        LogReason::Any => None,
        LogReason::One(name) => Some(name.to_owned()),
    });
    let made = LogConditions {
        statuses: status.iter().flat_map(|status| &status.value.0).map(|status| status.value).map(range).collect(),
        slower_than: slower_than.as_ref().map(|least| least.value.0),
        reasons: named.collect(),
        any_reason: reasons.iter().any(|reason| reason.value == LogReason::Any),
        retried: retried.is_some(),
    };
    if made.is_empty() {
        let wrong = Wrong::new("`only` has no condition");
        report.add(raw.location, wrong.hint("write one, such as `only: {status: 5xx}`, or remove it"));
    }
    made
}

fn range(LogStatus(first, last): LogStatus) -> std::ops::RangeInclusive<u16> {
    first..=last
}
