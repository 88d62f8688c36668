//! The files that a snapshot names: certificates, keys, pages, and lists of users.
//!
//! The control thread reads them before any part of a snapshot takes effect, and the workers only share the results.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::Snapshot;
use rustix::fs::OFlags;

use crate::auth::files::AuthFiles;
use crate::auth::jwt::keys::KeySource;
use crate::auth::operators::Operators;
use crate::http::pages::PageFiles;
use crate::tls::{ClientKeys, Keys, OwnCertificate};

/// The contents of all files that a snapshot names.
#[derive(Default)]
pub struct NamedFiles {
    pub(crate) keys: Keys,
    pub(crate) pages: PageFiles,
    pub(crate) auth: AuthFiles,
    operators: Option<Arc<Operators>>,
}

impl NamedFiles {
    /// Reads all files that a snapshot names. What `previous` made of the same files and settings is kept.
    ///
    /// # Errors
    /// Everything that is wrong with any of them, each with its user, such as "listener web" or "cluster app".
    pub fn load(snapshot: &Snapshot, previous: Option<&Self>) -> Result<Self, Vec<(String, Fault)>> {
        let keys = Keys::load(snapshot, previous.map(|previous| &previous.keys));
        let auth = AuthFiles::load(snapshot, previous.map(|previous| &previous.auth));
        let old = previous.and_then(|previous| previous.operators.as_deref());
        let operators = snapshot.admin_access.demands().then(|| Operators::load(&snapshot.admin_access, old));
        match (keys, PageFiles::load(snapshot), auth, operators.transpose()) {
            (Ok(keys), Ok(pages), Ok(auth), Ok(operators)) => {
                Ok(Self { keys, pages, auth, operators: operators.map(Arc::new) })
            }
            (keys, pages, auth, operators) => {
                let all = keys.err().into_iter().chain(pages.err()).chain(auth.err()).chain(operators.err());
                Err(all.flatten().collect())
            }
        }
    }

    /// Those who may use the admin address; `None` if everybody may who can connect.
    pub fn operators(&self) -> Option<&Arc<Operators>> {
        self.operators.as_ref()
    }

    /// The TLS of the admin address; `None` if it has none.
    pub fn admin_tls(&self) -> Option<&Arc<rustls::ServerConfig>> {
        self.keys.admin()
    }

    /// The certificates that are shown to others, each with its user, such as "listener web" or "cluster app".
    pub fn certificates(&self) -> impl Iterator<Item = (String, &OwnCertificate)> {
        self.keys.certificates()
    }

    /// The sources of the keys that verify tokens. For a source that is fetched with TLS, what it trusts, or why that is not known.
    pub fn key_sources(&self) -> impl Iterator<Item = (&Arc<KeySource>, Option<&Result<Arc<ClientKeys>, String>>)> {
        self.auth.sources()
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
/// It cannot be read, it is not a regular file, or it is larger than `kib_max` KiB.
pub(crate) fn read(path: &Path, kib_max: u64) -> Result<Vec<u8>, Fault> {
    let fail = |error: std::io::Error| Fault::in_file(path, &error.to_string());
    // Without the flag, opening a FIFO waits for a writer, and with it the control thread.
    let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path).map_err(fail)?;
    if !file.metadata().map_err(fail)?.is_file() {
        return Err(Fault::in_file(path, "not a regular file"));
    }
    // The size may change while the file is read, and is 0 for the files of /proc: only the bytes themselves count.
    let bytes_max = kib_max * 1024;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > bytes_max {
        let limit =
            if kib_max.is_multiple_of(1024) { format!("{} MiB", kib_max / 1024) } else { format!("{kib_max} KiB") };
        return Err(Fault::in_file(path, &format!("larger than {limit}")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn only_files_of_a_bounded_size_are_read() {
        let folder = std::env::temp_dir().join(format!("steelyard-named-files-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = |name: &str| folder.join(name);
        std::fs::write(path("fits"), vec![b'x'; 1024]).unwrap();
        std::fs::write(path("large"), vec![b'x'; 1025]).unwrap();
        mknodat(CWD, path("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(read(&path("fits"), 1).unwrap().len(), 1024);
        let check = |path: &Path, expect: &str| {
            let fault = read(path, 1).unwrap_err();
            assert_eq!(fault.message, format!("{}: {expect}", path.display()));
        };
        check(&path("large"), "larger than 1 KiB");
        check(&path("fifo"), "not a regular file");
        check(&folder, "not a regular file");
        check(Path::new("/dev/zero"), "not a regular file");
        check(&path("none"), "No such file or directory (os error 2)");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
