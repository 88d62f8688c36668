//! The files that a load reads: those of this host, or those that came with the plan of a load that another host drives.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;

/// The maximum size of a file. It is kept in memory.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// The name of standard input.
const STDIN: &str = "-";

/// Where files are read.
#[derive(Debug)]
pub(super) enum Files {
    /// On this host.
    Here,
    /// On this host, and what was read is kept, to be sent to others.
    Kept(RefCell<BTreeMap<PathBuf, Bytes>>),
    /// From these alone.
    Sent(BTreeMap<PathBuf, Bytes>),
}

impl Files {
    /// The contents of a file; `-` is standard input.
    ///
    /// # Errors
    /// It cannot be read, or is longer than a load may keep in memory. The message names it.
    pub(super) fn read(&self, file: &Path) -> io::Result<Bytes> {
        self.contents(file).map_err(|error| named(&file.display().to_string(), &error))
    }

    fn contents(&self, file: &Path) -> io::Result<Bytes> {
        let kept = match self {
            Self::Sent(files) => {
                return files.get(file).cloned().ok_or_else(|| io::ErrorKind::NotFound.into());
            }
            // Standard input can be read only once.
            Self::Kept(kept) if kept.borrow().contains_key(file) => return Ok(kept.borrow()[file].clone()),
            Self::Kept(kept) => Some(kept),
            Self::Here => None,
        };
        let mut bytes = Vec::new();
        match file.to_str() {
            Some(STDIN) => io::stdin().lock().take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes),
            _ => std::fs::File::open(file).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)),
        }?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is longer than 1 GiB"));
        }
        let bytes = Bytes::from(bytes);
        if let Some(kept) = kept {
            kept.borrow_mut().insert(file.to_owned(), bytes.clone());
        }
        Ok(bytes)
    }

    /// The text itself, or with `@` in front of it the contents of that file.
    pub(super) fn data(&self, text: &str) -> io::Result<Bytes> {
        match text.strip_prefix('@') {
            Some(file) => self.contents(Path::new(file)).map_err(|error| named(text, &error)),
            None => Ok(Bytes::copy_from_slice(text.as_bytes())),
        }
    }

    /// Adds a file that was made here.
    pub(super) fn keep(&self, name: &str, contents: Vec<u8>) {
        if let Self::Kept(kept) = self {
            kept.borrow_mut().insert(PathBuf::from(name), contents.into());
        }
    }
}

fn named(file: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot read {file}: {error}"))
}
