//! The configuration file: reading, checking, and watching it for changes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::{Written, WrongFile};
use model::{Certificate, Generation, LogTarget, PageBody, Pem, Protocol, Snapshot};
use proxy::{Fault, NamedFiles, OwnCertificate};
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::exit::Exit;

/// The interval between two looks at the file. It is polled rather than watched, because editors replace the file and
/// Kubernetes replaces a link, and polling sees both.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Larger files are refused before they are read.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Reads a file.
///
/// # Errors
/// Returns every error in the file with its location, or why the file cannot be read.
pub(crate) fn load(path: &Path, generation: Generation) -> Result<config::File, String> {
    let name = path.display().to_string();
    let text = read(path).map_err(|error| format!("cannot read {name}: {}", why(&error)))?;
    config::read_file(&name, &text, generation).map_err(|errors| errors.to_string())
}

fn read(path: &Path) -> std::io::Result<String> {
    if fs::metadata(path)?.len() > FILE_BYTES_MAX {
        return Err(std::io::Error::other(format!("larger than {} MiB", FILE_BYTES_MAX >> 20)));
    }
    fs::read_to_string(path)
}

/// Says why this process cannot create a file or socket, and what to do about it.
pub(crate) fn cannot_make(error: &std::io::Error) -> String {
    let hint = match error.kind() {
        std::io::ErrorKind::NotFound => "; make its directory first",
        std::io::ErrorKind::PermissionDenied => "; the user that steelyard runs as must be able to write there",
        std::io::ErrorKind::ReadOnlyFilesystem => "; name a path where this process can write",
        _ => "",
    };
    format!("{}{hint}", why(error))
}

/// Returns the error without its number, which does not help the operator.
fn why(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Loads the files that a snapshot names. Unchanged certificates and keys are taken from `previous`.
///
/// # Errors
/// Says what is wrong with them, at the location where the file names them.
pub(crate) fn named_files(
    snapshot: &Snapshot,
    written: &Written,
    previous: Option<&NamedFiles>,
) -> Result<NamedFiles, String> {
    NamedFiles::load(snapshot, previous).map_err(|faults| {
        let wrong = |(owner, Fault { file, message, hint })| WrongFile { owner, file, message, hint };
        written.errors(faults.into_iter().map(wrong).collect())
    })
}

/// Returns the file if the files that it names are good, too.
///
/// # Errors
/// Same as [`named_files`].
pub(crate) fn with_good_files(file: config::File) -> Result<config::File, String> {
    named_files(&file.snapshot, &file.written, None).map(|_| file)
}

/// Returns the file if others accept the certificates that it names. A process serves with others, too, because they may be renewed at any
/// time; `steelyard status` reports them then.
fn with_valid_certificates(file: config::File) -> Result<config::File, String> {
    let now_s = crate::control::unix_seconds();
    let wrong = |(owner, certificate): (String, &OwnCertificate)| {
        let message = format!("{}: {}, and nobody accepts it", certificate.file, certificate.fault(now_s)?);
        let hint = match certificate.valid_until_s < now_s {
            true => "renew it",
            false => "issue it again, or set the clock of this host",
        };
        Some(WrongFile { owner, file: Some(certificate.file.as_str().into()), message, hint: Some(hint.to_owned()) })
    };
    let files = named_files(&file.snapshot, &file.written, None)?;
    let mut errors: Vec<WrongFile> = files.certificates().filter_map(wrong).collect();
    errors.sort_by(|one, other| (&one.file, &one.owner).cmp(&(&other.file, &other.owner)));
    errors.dedup_by(|later, first| later.file == first.file);
    if errors.is_empty() { Ok(file) } else { Err(file.written.errors(errors)) }
}

/// Runs `steelyard check`.
pub(crate) fn check(path: &Path) -> Exit {
    match load(path, Generation(1)).and_then(|file| with_good_files(file).and_then(with_valid_certificates)) {
        Ok(config::File { snapshot, .. }) => {
            let (listeners, clusters) = (snapshot.listeners.len(), snapshot.clusters.len());
            let vips = match snapshot.vips.len() {
                0 => String::new(),
                vips => format!(", {}", counted(vips, "vip")),
            };
            let missing = match l4::built() {
                Err(refusal) if !snapshot.vips.is_empty() => format!("; but {refusal}"),
                _ => String::new(),
            };
            let what = format!("{}, {}{vips}", counted(listeners, "listener"), counted(clusters, "cluster"));
            let insecure = insecure(&snapshot);
            crate::print_line(&format!("{}: good ({what}){missing}{insecure}", path.display()))
        }
        Err(errors) => {
            eprintln!("{}", errors.trim_end());
            Exit::BadConfig
        }
    }
}

/// A line for each listener and cluster whose TLS accepts a certificate that was not verified.
fn insecure(snapshot: &Snapshot) -> String {
    let is_open = |tls: &model::ListenerTls| tls.client_ca.as_ref().is_some_and(|client| !client.verify);
    let listeners = snapshot.listeners.iter().filter(|listener| listener.tls.as_ref().is_some_and(is_open));
    let listeners = listeners.map(|listener| {
        format!(
            "\nlistener {} admits clients without a valid certificate: client_ca has `verify: false`",
            listener.name
        )
    });
    let clusters = snapshot.clusters.iter().filter(|cluster| cluster.tls.as_ref().is_some_and(|tls| !tls.verify));
    let clusters = clusters.map(|cluster| {
        format!("\ncluster {} accepts any certificate of its endpoints: tls has `verify: false`", cluster.name)
    });
    listeners.chain(clusters).collect()
}

/// For example "1 listener" or "2 listeners".
fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Detects changes of the configuration file and of the files that it names.
pub(crate) struct Watch {
    /// Whether the file asks to be watched.
    on: bool,
    /// The configuration file, then those that it names.
    paths: Vec<PathBuf>,
    /// The files as they were last read: `seen.len() == paths.len()`. `None` if a file never existed.
    seen: Vec<Option<Mark>>,
    /// A different state, in which files may still be being written.
    pending: Option<Vec<Option<Mark>>>,
    // The timer is here and not in `changed`, and so is `pending`: a caller that also waits for other events starts
    // `changed` anew after each of them.
    look: Interval,
}

/// What changes when a file is written or replaced, also behind a symbolic link.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mark {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    /// The change time, which the kernel sets. A program can set back the modification time (`cp -p`, `rsync`, `tar`),
    /// but not this one.
    changed: (i64, i64),
}

impl Watch {
    /// Watches a file from its present state on. Watches nothing if there is none.
    pub(crate) fn new(path: Option<PathBuf>) -> Self {
        let paths: Vec<_> = path.into_iter().collect();
        let seen = paths.iter().map(|path| mark(path)).collect();
        let mut look = tokio::time::interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { on: true, paths, seen, pending: None, look }
    }

    /// Turns watching on or off, and logs it if that is new or `is_first`.
    pub(crate) fn turn(&mut self, on: bool, is_first: bool) {
        let was_on = std::mem::replace(&mut self.on, on);
        let Some(file) = self.paths.first().filter(|_| is_first || was_on != on) else { return };
        let file = file.display();
        if on {
            tracing::info!(
                %file,
                "watching the files: a saved change takes effect within two seconds (`watch: false` turns this off)"
            );
        } else {
            tracing::info!(
                %file,
                "not watching the files: a change takes effect on `steelyard reload` or SIGHUP (`watch: false`)"
            );
        }
    }

    /// Watches these files too, instead of those that the configuration file named before. The caller calls this before
    /// it reads them, so that a change during the read is noticed.
    pub(crate) fn also(&mut self, files: impl Iterator<Item = PathBuf>) {
        if self.paths.is_empty() {
            return;
        }
        self.paths.truncate(1);
        self.seen.truncate(1);
        self.paths.extend(files);
        self.seen.extend(self.paths.iter().skip(1).map(|path| mark(path)));
        self.pending = None;
    }

    /// Notes that the configuration file is about to be read, for whatever reason. The caller calls this before it
    /// reads, so that a change during the read is noticed.
    pub(crate) fn reading(&mut self) {
        self.seen = self.now();
        self.pending = None;
    }

    /// Waits until a file has changed and is stable again, so that no file is read while it is being written. The
    /// future can be dropped and created again at any time without losing a change.
    pub(crate) async fn changed(&mut self) {
        if self.paths.is_empty() || !self.on {
            return std::future::pending().await;
        }
        loop {
            self.look.tick().await;
            let now = self.now();
            if self.seen == now {
                self.pending = None;
            } else if self.pending.as_ref() == Some(&now) {
                (self.seen, self.pending) = (now, None);
                return;
            } else {
                self.pending = Some(now);
            }
        }
    }

    /// The present state. A missing file counts as unchanged: it is about to come back, and nobody removes a file to
    /// request something.
    fn now(&self) -> Vec<Option<Mark>> {
        self.paths.iter().zip(&self.seen).map(|(path, seen)| mark(path).or(*seen)).collect()
    }
}

/// The files that a snapshot names.
pub(crate) fn named(snapshot: &Snapshot) -> impl Iterator<Item = PathBuf> {
    let file = |pem: &Pem| pem.file().map(Path::to_owned);
    let pair = |pair: &Certificate| [file(&pair.cert), file(&pair.key), pair.ocsp.clone()];
    let listeners = snapshot.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    let shown = listeners.clone().flat_map(|tls| &tls.certificates).flat_map(pair);
    let clients = listeners.filter_map(|tls| tls.client_ca.as_ref());
    let clients = clients.flat_map(|client| [file(&client.ca), client.crl.as_ref().and_then(file)]);
    let clusters = snapshot.clusters.iter().filter_map(|cluster| cluster.tls.as_ref());
    let upstream = clusters.clone().filter_map(|tls| tls.certificate.as_ref()).flat_map(pair);
    let roots = clusters.map(|tls| tls.ca.as_ref().and_then(file));
    let pages = snapshot.listeners.iter().filter_map(|listener| match &listener.protocol {
        Protocol::Http(http) => Some(http.pages()),
        Protocol::Tcp(_) | Protocol::Tls(_) | Protocol::Capture(_) => None,
    });
    let pages = pages.flatten().map(|page| match &page.body {
        PageBody::File(path) => Some(path.clone()),
        PageBody::Text(_) => None,
    });
    let routes = snapshot.listeners.iter().filter_map(|listener| match &listener.protocol {
        Protocol::Http(http) => Some(&http.routes),
        Protocol::Tcp(_) | Protocol::Tls(_) | Protocol::Capture(_) => None,
    });
    let auth =
        routes.flat_map(|routes| routes.iter()).map(|route| Some(route.policy.auth.as_ref()?.file()?.to_owned()));
    let all: BTreeSet<PathBuf> =
        shown.chain(clients).chain(upstream).chain(roots).chain(pages).chain(auth).flatten().collect();
    let admin = snapshot.admin_access.files().map(Path::to_owned);
    let of_log = snapshot.access_log.iter().filter_map(|log| match &log.target {
        LogTarget::Otlp(otlp) => Some(otlp),
        LogTarget::Stdout | LogTarget::File(_) | LogTarget::Syslog(_) => None,
    });
    let collectors = snapshot.tracing.iter().map(|tracing| &tracing.otlp).chain(of_log);
    let headers: Vec<PathBuf> = collectors.flat_map(|otlp| otlp.header_files().cloned()).collect();
    admin.chain(headers).chain(all).collect::<BTreeSet<PathBuf>>().into_iter()
}

fn mark(path: &Path) -> Option<Mark> {
    let metadata = fs::metadata(path).ok()?;
    Some(Mark {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_cannot_be_made() {
        let check = |number, expect: &str| {
            assert_eq!(cannot_make(&std::io::Error::from_raw_os_error(number)), expect);
        };
        check(2, "No such file or directory; make its directory first");
        check(13, "Permission denied; the user that steelyard runs as must be able to write there");
        check(30, "Read-only file system; name a path where this process can write");
        check(28, "No space left on device");
    }

    /// A temporary file of one test, which is removed with it.
    struct File(PathBuf);

    impl File {
        fn new(name: &str) -> Self {
            let file = Self(std::env::temp_dir().join(format!("steelyard-watch-{name}-{}", std::process::id())));
            file.write("first");
            file
        }

        /// Replaces the file, so that the inode changes whatever the clock of the file system says.
        fn write(&self, text: &str) {
            let new = self.0.with_extension("new");
            fs::write(&new, text).unwrap();
            fs::rename(&new, &self.0).unwrap();
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    /// Looks this many times, and drops and restarts the wait twice in each interval.
    async fn is_seen(watch: &mut Watch, looks: u32) -> bool {
        for _ in 0..looks * 3 {
            if tokio::time::timeout(LOOK_EVERY / 3, watch.changed()).await.is_ok() {
                return true;
            }
        }
        false
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_seen_by_one_who_is_called_away_all_the_time() {
        let file = File::new("busy");
        let mut watch = Watch::new(Some(file.0.clone()));
        assert!(!is_seen(&mut watch, 3).await);
        file.write("second, longer");
        assert!(!is_seen(&mut watch, 1).await, "it may still be being written");
        assert!(is_seen(&mut watch, 2).await);
        assert!(!is_seen(&mut watch, 3).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_named_is_watched_too() {
        let (file, named) = (File::new("naming"), File::new("named"));
        let mut watch = Watch::new(Some(file.0.clone()));
        watch.also(std::iter::once(named.0.clone()));
        named.write("second, longer");
        assert!(is_seen(&mut watch, 3).await);
        fs::remove_file(&named.0).unwrap();
        assert!(!is_seen(&mut watch, 4).await, "it is about to come back");
        named.write("the third, longer still");
        assert!(is_seen(&mut watch, 3).await);
        watch.also(std::iter::empty());
        named.write("the fourth, and nobody names it any more");
        assert!(!is_seen(&mut watch, 4).await);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_turned_off_sees_nothing() {
        let file = File::new("off");
        let mut watch = Watch::new(Some(file.0.clone()));
        watch.turn(false, true);
        file.write("second, longer");
        assert!(!is_seen(&mut watch, 4).await);
        // As a reload does.
        watch.reading();
        watch.turn(true, false);
        assert!(!is_seen(&mut watch, 4).await);
        file.write("the third, longer still");
        assert!(is_seen(&mut watch, 3).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rewrite_of_the_same_size_and_time_is_seen() {
        let file = File::new("same");
        let mut watch = Watch::new(Some(file.0.clone()));
        let before = fs::metadata(&file.0).unwrap();
        let changed = |of: &fs::Metadata| (of.ctime(), of.ctime_nsec());
        // The clock of the file system advances in steps of some milliseconds.
        while changed(&fs::metadata(&file.0).unwrap()) == changed(&before) {
            // Writes in place, so that the inode stays.
            fs::write(&file.0, "other").unwrap();
        }
        fs::File::options().write(true).open(&file.0).unwrap().set_modified(before.modified().unwrap()).unwrap();
        let after = fs::metadata(&file.0).unwrap();
        assert_eq!((after.len(), after.ino()), (before.len(), before.ino()));
        assert_eq!(after.modified().unwrap(), before.modified().unwrap());
        assert!(is_seen(&mut watch, 3).await);
        assert!(!is_seen(&mut watch, 3).await);
    }

    #[test]
    fn what_accepts_anyone_is_named() {
        let check = |verify: bool, expect: &str| {
            let text = format!(
                "listeners: {{edge: {{bind: ':1', protocol: https, to: web, tls: {{certificates: [{{cert: a.pem, key: a.key}}], \
                 client_ca: {{ca: ca.pem, verify: {verify}}}}}}}}}\n\
                 clusters: {{web: {{endpoints: ['a:1'], tls: {{verify: {verify}}}}}}}\n"
            );
            assert_eq!(insecure(&config::parse("f", &text, Generation(1)).unwrap()), expect);
        };
        check(true, "");
        let expect = "\nlistener edge admits clients without a valid certificate: client_ca has `verify: false`\n\
                      cluster web accepts any certificate of its endpoints: tls has `verify: false`";
        check(false, expect);
    }

    #[test]
    fn numbers_agree_with_their_nouns() {
        let check = |count, expect: &str| assert_eq!(counted(count, "listener"), expect);
        check(0, "0 listeners");
        check(1, "1 listener");
        check(2, "2 listeners");
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_was_read_is_none() {
        let file = File::new("read");
        let mut watch = Watch::new(Some(file.0.clone()));
        file.write("second, longer");
        assert!(!is_seen(&mut watch, 1).await);
        watch.reading();
        assert!(!is_seen(&mut watch, 4).await);
        file.write("the third, longer still");
        assert!(is_seen(&mut watch, 3).await);
    }
}
