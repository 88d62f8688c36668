//! What the two sides of a generator tell each other: lines of JSON, over the standard input and output of the generator.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::load::LoadCommand;
use crate::load::live::Seen;
use crate::load::tally::Tally;

/// Both sides must be of the same version: it names the program, and the form of these messages.
pub(super) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "/1");

/// The longest line. The results of an hour take less than 10 MB.
pub(super) const LINE_BYTES_MAX: u64 = 64 << 20;

/// The most bytes of all files that go to a generator. In base64, with the rest of the plan, they fit into a line.
pub(super) const FILES_BYTES_MAX: usize = 40 << 20;

/// What begins the lines of a generator. A login may print other lines.
pub(super) const MARK: &str = "steelyard-generator ";

/// The line that starts the load, and the one that ends it early. The end of standard input does so, too.
pub(super) const GO: &str = "go\n";
pub(super) const STOP: &str = "stop\n";

/// The version of a plan. It is read before the rest, which another version may not understand.
#[derive(Serialize, Deserialize)]
pub(super) struct Version {
    pub version: String,
}

/// What a generator gets first: the whole load, and which part of it is its own.
#[derive(Serialize, Deserialize)]
pub(super) struct Plan {
    /// [`VERSION`].
    pub version: String,
    pub command: LoadCommand,
    /// The files that the load reads, in base64.
    pub files: BTreeMap<PathBuf, String>,
    /// `index < count`
    pub index: u64,
    pub count: u64,
}

impl Plan {
    /// The files.
    pub(super) fn files(&self) -> Option<BTreeMap<PathBuf, Bytes>> {
        let decoded = |(name, text): (&PathBuf, &String)| Some((name.clone(), STANDARD.decode(text).ok()?.into()));
        self.files.iter().map(decoded).collect()
    }
}

/// Files as a plan has them.
pub(super) fn encoded(files: &BTreeMap<PathBuf, Bytes>) -> BTreeMap<PathBuf, String> {
    files.iter().map(|(name, bytes)| (name.clone(), STANDARD.encode(bytes))).collect()
}

/// What a generator says.
#[derive(Serialize, Deserialize)]
pub(super) enum Said {
    /// It has reached the server, and waits for the start.
    Ready,
    /// The results so far.
    Progress(Seen),
    /// The results.
    Done(Box<Part>),
    /// It cannot put the load on.
    Failed(String),
}

/// The results of one generator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::load) struct Part {
    pub protocol: String,
    /// From the start of the load to the end of its last operation.
    pub end: Option<Duration>,
    pub tally: Tally,
}

impl Part {
    pub(in crate::load) fn new(protocol: &str, start: Instant, tally: &Tally) -> Self {
        let end = tally.end.map(|end| end.saturating_duration_since(start));
        Self { protocol: protocol.to_owned(), end, tally: tally.clone() }
    }
}
