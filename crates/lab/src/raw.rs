//! The raw data of a kept run: `rounds.json.gz`.
//!
//! `run.json` of a kept run has what tables are computed from. This file has what those figures were computed from in turn: each cell with its
//! histograms, its series and its samples, and the logs of everything that ran. It is compressed, because nobody reads it but to check or to
//! draw again.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::record::Cell;

/// The file beside a kept `run.json`.
pub const FILE: &str = "rounds.json.gz";

/// What it unpacks to at most. A larger file is not from this program.
const BYTES_MAX: u64 = 1 << 30;

/// The end of a longer log says more than its begin.
const LOG_BYTES_MAX: usize = 16 * 1024;

/// Logs and directories of a run that are read.
const LOGS_MAX: usize = 2_000;

/// The raw data of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rounds {
    /// The version of this form.
    pub version: u32,
    /// Every cell, as it was measured.
    pub cells: Vec<Cell>,
    /// The logs by path in the run's directory.
    pub logs: BTreeMap<String, String>,
}

impl Rounds {
    /// Packs it.
    ///
    /// # Errors
    /// None in practice: it writes to memory.
    pub fn pack(&self) -> io::Result<Vec<u8>> {
        pack(self)
    }

    /// Unpacks it.
    ///
    /// # Errors
    /// If it is not such data.
    pub fn unpack(packed: &[u8]) -> io::Result<Self> {
        unpack(packed, BYTES_MAX)
    }
}

/// As a compressed line of JSON.
pub(crate) fn pack(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    serde_json::to_writer(&mut packed, value)?;
    packed.write_all(b"\n")?;
    packed.finish()
}

/// The reverse. What unpacks to more than `bytes_max` is cut off there, and so is an error.
pub(crate) fn unpack<T: DeserializeOwned>(packed: &[u8], bytes_max: u64) -> io::Result<T> {
    let mut text = String::new();
    GzDecoder::new(packed).take(bytes_max).read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

/// The logs below `directory`, by their path in it. What cannot be read is left out.
#[must_use]
pub fn logs(directory: &Path) -> BTreeMap<String, String> {
    let mut logs = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    let mut seen = 0;
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            seen += 1;
            if seen > LOGS_MAX {
                return logs;
            }
            let path = entry.path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|suffix| suffix == "log")
                && let (Ok(bytes), Ok(name)) = (fs::read(&path), path.strip_prefix(directory))
            {
                let end = &bytes[bytes.len().saturating_sub(LOG_BYTES_MAX)..];
                logs.insert(name.to_string_lossy().into_owned(), String::from_utf8_lossy(end).into_owned());
            }
        }
    }
    logs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        let cells = crate::report::sample::run(crate::record::Table::GrpcGateway).cells;
        let rounds = Rounds { version: 1, cells, logs: [("a/b.log".to_owned(), "last words\n".to_owned())].into() };
        let packed = rounds.pack().unwrap();
        assert!(packed.len() * 4 < serde_json::to_string(&rounds).unwrap().len());
        assert_eq!(Rounds::unpack(&packed).unwrap(), rounds);
        assert!(Rounds::unpack(b"no").is_err() && Rounds::unpack(&packed[..packed.len() / 2]).is_err());
    }

    #[test]
    fn the_ends_of_logs_are_found() {
        let directory = std::env::temp_dir().join(format!("steelyard-raw-{}", std::process::id()));
        fs::create_dir_all(directory.join("a")).unwrap();
        fs::write(directory.join("a/b.log"), "x".repeat(LOG_BYTES_MAX) + "end").unwrap();
        fs::write(directory.join("a/config.yaml"), "no log").unwrap();
        let logs = logs(&directory);
        assert_eq!(logs.keys().collect::<Vec<_>>(), ["a/b.log"]);
        assert!(logs["a/b.log"].len() == LOG_BYTES_MAX && logs["a/b.log"].ends_with("end"));
        fs::remove_dir_all(&directory).unwrap();
    }
}
