//! The files that a snapshot names: certificates, keys, pages, and lists of users.
//!
//! The control thread reads them before any part of a snapshot takes effect, and the workers only share the results.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::{LogTarget, Snapshot};
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
    /// Values of headers for collectors.
    headers: HashMap<PathBuf, String>,
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
        match (keys, PageFiles::load(snapshot), auth, operators.transpose(), headers(snapshot)) {
            (Ok(keys), Ok(pages), Ok(auth), Ok(operators), Ok(headers)) => {
                let clients = keys.admin_clients();
                let operators = operators.map(|operators| Arc::new(operators.trusting(clients)));
                Ok(Self { keys, pages, auth, operators, headers })
            }
            (keys, pages, auth, operators, headers) => {
                let all = keys.err().into_iter().chain(pages.err()).chain(auth.err()).chain(operators.err());
                Err(all.chain(headers.err()).flatten().collect())
            }
        }
    }

    /// The value of a header for a collector, which this file has.
    pub fn header(&self, path: &Path) -> Option<&str> {
        self.headers.get(path).map(String::as_str)
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

/// The files with values of headers for collectors.
fn headers(snapshot: &Snapshot) -> Result<HashMap<PathBuf, String>, Vec<(String, Fault)>> {
    let of_traces = snapshot.tracing.iter().map(|tracing| ("tracing", &tracing.otlp));
    let of_log = snapshot.access_log.iter().filter_map(|log| match &log.target {
        LogTarget::Otlp(otlp) => Some(("access_log", otlp)),
        LogTarget::Stdout | LogTarget::File(_) | LogTarget::Syslog(_) => None,
    });
    let files = of_traces.chain(of_log).flat_map(|(owner, otlp)| otlp.header_files().map(move |path| (owner, path)));
    let (mut found, mut faults) = (HashMap::new(), Vec::new());
    for (owner, path) in files {
        match header(path) {
            Ok(value) => drop(found.insert(path.clone(), value)),
            Err(fault) => faults.push((owner.to_owned(), fault)),
        }
    }
    if faults.is_empty() { Ok(found) } else { Err(faults) }
}

/// The value of a header in a file, without the line feed at its end.
fn header(path: &Path) -> Result<String, Fault> {
    let bytes = read(path, 8)?;
    let value = bytes.trim_ascii();
    if value.is_empty() || !value.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        let fault = Fault::in_file(path, "not the value of a header");
        return Err(fault.hint("write it in one line, with visible characters of ASCII".to_owned()));
    }
    Ok(String::from_utf8_lossy(value).into_owned())
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
