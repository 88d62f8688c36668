//! A collector of OpenTelemetry.

use std::path::PathBuf;
use std::time::Duration;

use crate::{ClusterId, Secret};

/// A collector, and how records are sent to it by the OpenTelemetry protocol (OTLP).
#[derive(Clone, Debug, PartialEq)]
pub struct Otlp {
    /// The cluster of the collector.
    pub to: ClusterId,
    /// How the collector is spoken to.
    pub protocol: OtlpProtocol,
    /// The `Host` or `:authority` of exports; `None` means the name of the cluster.
    pub host: Option<String>,
    /// Further headers of exports, by their names in lower case.
    pub headers: Vec<(String, OtlpHeader)>,
    /// Exports are compressed with gzip.
    pub gzip: bool,
    /// The value of the attribute `service.name`.
    pub service: String,
    /// Further attributes of the resource, by name.
    pub attributes: Vec<(String, String)>,
    /// The limit from the connect to the end of the collector's answer.
    pub timeout: Duration,
}

/// A transport of OTLP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// Calls of the service for what is sent.
    Grpc,
    /// Requests with a protobuf body.
    Http {
        /// The path that they are sent to.
        path: String,
    },
}

/// The value of a header, which is often a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtlpHeader {
    /// The value.
    Text(Secret),
    /// A file that has it.
    File(PathBuf),
}

impl Otlp {
    /// The files with values of headers.
    pub fn header_files(&self) -> impl Iterator<Item = &PathBuf> {
        self.headers.iter().filter_map(|(_, value)| match value {
            OtlpHeader::File(path) => Some(path),
            OtlpHeader::Text(_) => None,
        })
    }
}
