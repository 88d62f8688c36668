//! The configuration file: read, checked, and watched for changes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::{Generation, Snapshot};

use crate::exit::Exit;

/// Between two looks at the file. Looking, not watching: an editor replaces a file and Kubernetes a link, and both are seen this way.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Larger files are refused before they are read.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Reads a file into a snapshot.
///
/// # Errors
/// Every error in it, each with its place; or why it cannot be read.
pub(crate) fn load(path: &Path, generation: Generation) -> Result<Snapshot, String> {
    let name = path.display().to_string();
    let text = read(path).map_err(|error| format!("{name}: {error}"))?;
    config::parse(&name, &text, generation).map_err(|errors| errors.to_string())
}

fn read(path: &Path) -> std::io::Result<String> {
    if fs::metadata(path)?.len() > FILE_BYTES_MAX {
        return Err(std::io::Error::other(format!("larger than {} MiB", FILE_BYTES_MAX >> 20)));
    }
    fs::read_to_string(path)
}

/// `steelyard check`.
pub(crate) fn check(path: &Path) -> Exit {
    match load(path, Generation(1)) {
        Ok(snapshot) => {
            let (listeners, clusters) = (snapshot.listeners.len(), snapshot.clusters.len());
            crate::print_line(&format!("{}: good ({listeners} listeners, {clusters} clusters)", path.display()))
        }
        Err(errors) => {
            eprintln!("{}", errors.trim_end());
            Exit::BadConfig
        }
    }
}

/// Tells when a file has changed.
pub(crate) struct Watch {
    path: Option<PathBuf>,
    seen: Option<Mark>,
}

/// What changes when a file is written or replaced, be it behind a symbolic link.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mark {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Watch {
    /// Watches a file from its present state on; nothing, if there is none.
    pub(crate) fn new(path: Option<PathBuf>) -> Self {
        let seen = path.as_deref().and_then(mark);
        Self { path, seen }
    }

    /// Waits until the file is another, and has stopped changing: a file is not read while it is being written.
    pub(crate) async fn changed(&mut self) {
        let Some(path) = &self.path else { return std::future::pending().await };
        let mut pending = None;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // A file that is missing is about to come back: removing it is no way to say anything.
            let Some(now) = mark(path) else { continue };
            if self.seen == Some(now) {
                pending = None;
            } else if pending == Some(now) {
                self.seen = Some(now);
                return;
            } else {
                pending = Some(now);
            }
        }
    }
}

fn mark(path: &Path) -> Option<Mark> {
    let metadata = fs::metadata(path).ok()?;
    Some(Mark {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
    })
}
