//! Records in the form that the operator has chosen.

use std::io::Write;

use model::{LogFormat, LogPart, LogValue};

use super::entry::{Field, LogEntry, Source, Value, fields_of, source};
use super::escape;
use super::format::{self, Fixed};

/// How records are written.
#[derive(Debug)]
pub(super) enum Formatter {
    Fixed(Fixed),
    Text(Vec<Field>),
    Json(Vec<Field>),
    Template(Vec<Part>),
    StructuredData { id: String, fields: Vec<Field> },
}

/// A part of a template.
#[derive(Debug)]
pub(super) enum Part {
    Text(String),
    Value { source: Source, is_quoted: bool, beside: [Option<char>; 2] },
}

impl Formatter {
    /// `extras` has the values of the log that are extras.
    pub(super) fn new(log: &LogFormat, extras: &[LogValue]) -> Self {
        match log {
            LogFormat::Text(None) => Self::Fixed(Fixed::Text),
            // Attributes have no line: their destination does not ask for one.
            LogFormat::Json(None) | LogFormat::Attributes(_) => Self::Fixed(Fixed::Json),
            LogFormat::Text(Some(fields)) => Self::Text(fields_of(fields, extras)),
            LogFormat::Json(Some(fields)) => Self::Json(fields_of(fields, extras)),
            LogFormat::StructuredData { id, fields } => {
                Self::StructuredData { id: id.clone(), fields: fields_of(fields, extras) }
            }
            LogFormat::Template(parts) => {
                let part = |part: &LogPart| match part {
                    LogPart::Text(text) => Part::Text(text.clone()),
                    LogPart::Value { value, is_quoted, beside } => {
                        Part::Value { source: source(value, extras), is_quoted: *is_quoted, beside: *beside }
                    }
                };
                Self::Template(parts.iter().map(part).collect())
            }
        }
    }

    /// Appends a record without a line feed.
    pub(super) fn write(&self, out: &mut Vec<u8>, entry: &LogEntry<'_>) {
        match self {
            Self::Fixed(fixed) => format::fixed(out, *fixed, &entry.cut_record()),
            Self::Text(fields) => {
                for (place, Field { name, source }) in fields.iter().enumerate() {
                    let before = if place == 0 { "" } else { " " };
                    let _ = write!(out, "{before}{name}=");
                    write_value(out, &entry.value(source), false, &[None; 2]);
                }
            }
            Self::Json(fields) => {
                for (place, Field { name, source }) in fields.iter().enumerate() {
                    let before = if place == 0 { '{' } else { ',' };
                    let _ = write!(out, "{before}\"{name}\":");
                    entry.value(source).json(out);
                }
                out.push(b'}');
            }
            Self::Template(parts) => {
                for part in parts {
                    match part {
                        Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                        Part::Value { source, is_quoted, beside } => {
                            write_value(out, &entry.value(source), *is_quoted, beside);
                        }
                    }
                }
            }
            Self::StructuredData { id, fields } => {
                let _ = write!(out, "[{id}");
                for Field { name, source } in fields {
                    let value = entry.value(source);
                    if !matches!(value, Value::Absent) {
                        let mut raw = Vec::new();
                        value.raw(&mut raw);
                        let _ = write!(out, " {name}=\"");
                        escape::structured(out, &raw);
                        out.push(b'"');
                    }
                }
                out.push(b']');
            }
        }
    }
}

/// Appends a value to text, so that a reader can tell where it ends.
fn write_value(out: &mut Vec<u8>, value: &Value<'_>, is_quoted: bool, beside: &[Option<char>; 2]) {
    match value {
        Value::Absent => out.push(b'-'),
        Value::Text(_) | Value::RequestLine(_) => {
            let mut raw = Vec::new();
            value.raw(&mut raw);
            match raw.as_slice() {
                b"" if is_quoted => {}
                raw if is_quoted => escape::quoted(out, raw),
                raw => escape::between(out, raw, beside),
            }
        }
        // They are ours.
        other => other.raw(out),
    }
}
