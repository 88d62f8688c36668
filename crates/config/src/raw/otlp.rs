//! The keys of collectors of OpenTelemetry.

use crate::define::{Form, Kind, keys};
use crate::diagnostic::{Report, Wrong};
use crate::read::{Choice, Read, unexpected};
use crate::text::{FileName, HeaderValue};
use crate::yaml::{Node, Value};

/// A transport of OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpName {
    Grpc,
    Http,
}

impl Choice for OtlpName {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("grpc", Self::Grpc, "gRPC, usually at port 4317; the cluster needs `protocol: h2c` or `h2`"),
        ("http", Self::Http, "HTTP/1.1 with protobuf, usually at port 4318"),
    ];
}

/// How exports are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpCompression {
    Gzip,
    None,
}

impl Choice for OtlpCompression {
    const CHOICES: &'static [(&'static str, Self, &'static str)] =
        &[("gzip", Self::Gzip, "a tenth of the bytes, for some CPU time"), ("none", Self::None, "not at all")];
}

/// The value of a header, or the file that has it.
#[derive(Debug)]
pub enum RawSecretValue {
    Text(String),
    File(Box<RawSecretFile>),
}

keys! {
    /// A value that is kept in a file of its own.
    pub struct RawSecretFile as "a secret" {
        /// The file with the value, in one line of at most 8 KiB. A changed file takes effect as a changed configuration does.
        required file: FileName;
    }
}

impl Read for RawSecretValue {
    fn kind() -> Kind {
        let text = Form { noun: "text", example: "Bearer 4f6c65", pattern: None };
        Kind::Either(vec![Kind::Text(text), RawSecretFile::kind()])
    }

    fn read(node: &Node, subject: &str, report: &mut Report) -> Option<Self> {
        match &node.value {
            Value::Map(_) => RawSecretFile::read(node, subject, report).map(|file| Self::File(Box::new(file))),
            Value::Scalar { text, .. } => {
                report.hide(text);
                match <HeaderValue as crate::read::Formed>::parse(text) {
                    Ok(HeaderValue(value)) if !value.is_empty() => Some(Self::Text(value)),
                    _ => {
                        let wrong = Wrong::new(format!("{subject} is not the value of a header"));
                        report.add(
                            node.location,
                            wrong.hint("use visible characters of ASCII and spaces between them, or `{file: FILE}`"),
                        );
                        None
                    }
                }
            }
            other => {
                report.add(node.location, unexpected(subject, &Self::kind(), other));
                None
            }
        }
    }
}
