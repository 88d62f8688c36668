//! The files that a snapshot names: certificates, keys and pages.
//!
//! The control thread reads them before any part of a snapshot takes effect, and the workers only share the results.

use std::path::{Path, PathBuf};

use model::Snapshot;

use crate::http::pages::PageFiles;
use crate::tls::Keys;

/// The contents of all files that a snapshot names.
#[derive(Default)]
pub struct NamedFiles {
    pub(crate) keys: Keys,
    pub(crate) pages: PageFiles,
}

impl NamedFiles {
    /// Reads all files that a snapshot names. What `previous` made of the same files and settings is kept.
    ///
    /// # Errors
    /// Everything that is wrong with any of them, each with its user, such as "listener web" or "cluster app".
    pub fn load(snapshot: &Snapshot, previous: Option<&Self>) -> Result<Self, Vec<(String, Fault)>> {
        let keys = Keys::load(snapshot, previous.map(|previous| &previous.keys));
        match (keys, PageFiles::load(snapshot)) {
            (Ok(keys), Ok(pages)) => Ok(Self { keys, pages }),
            (keys, pages) => Err(keys.err().into_iter().chain(pages.err()).flatten().collect()),
        }
    }
}

/// What is wrong with a file that the configuration names, or with files that must belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file that contains the error, if there is one.
    pub file: Option<PathBuf>,
    /// What is wrong, with the name of the file.
    pub message: String,
    /// What would be right, if that is known.
    pub hint: Option<String>,
}

impl Fault {
    /// An error in this file.
    pub(crate) fn in_file(path: &Path, what: &str) -> Self {
        Self { file: Some(path.to_owned()), message: format!("{}: {what}", path.display()), hint: None }
    }

    pub(crate) fn hint(self, hint: String) -> Self {
        Self { hint: Some(hint), ..self }
    }
}

impl From<String> for Fault {
    fn from(message: String) -> Self {
        Self { file: None, message, hint: None }
    }
}

/// Reads a whole file.
///
/// # Errors
/// It cannot be read, or it is larger than `kib_max` KiB.
pub(crate) fn read(path: &Path, kib_max: u64) -> Result<Vec<u8>, Fault> {
    let fail = |error: std::io::Error| Fault::in_file(path, &error.to_string());
    if std::fs::metadata(path).map_err(fail)?.len() > kib_max * 1024 {
        let limit =
            if kib_max.is_multiple_of(1024) { format!("{} MiB", kib_max / 1024) } else { format!("{kib_max} KiB") };
        return Err(Fault::in_file(path, &format!("larger than {limit}")));
    }
    std::fs::read(path).map_err(fail)
}
